"""The Makefile chooses PyTorch's build before anything else is installed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from script_table import ROOT

needs_make = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("make") is None or Path("/dev/nvidiactl").exists(),
    reason="needs make on Linux, without an NVIDIA device",
)


@needs_make
@pytest.mark.parametrize("present, offered", [(True, True), (False, True), (False, False)])
def test_the_build_for_the_cpu_is_taken_where_pip_finds_it(present, offered, tmp_path):
    """A torch that is there already is kept. `present` and `offered` say what a python of the test's own answers."""
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.with_name("pip").touch()
    python.write_text(f"""#!/bin/sh
echo "$*" >> calls
case "$*" in
    "-c import torch") exit {int(not present)} ;;
    *--dry-run*) exit {int(not offered)} ;;
esac
""")
    python.chmod(0o755)
    said = ""
    for _ in range(2):  # the second call finds all done
        done = subprocess.run(["make", ".venv/video.stamp"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said += done.stdout
    assert said.count("contains CUDA") == (0 if present or offered else 1)

    calls = (tmp_path / "calls").read_text().splitlines()
    cpu_build = [call for call in calls if call.endswith("+cpu") and "--dry-run" not in call]
    assert cpu_build == (["-m pip install torch==2.13.0+cpu"] if offered and not present else [])
    assert calls[-1] == "-m pip install -c constraints.txt .[video]" and calls.count(calls[-1]) == 1
