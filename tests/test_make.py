"""The Makefile chooses PyTorch's build before anything else is installed."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from script_table import ROOT

needs_make = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("make") is None or Path("/dev/nvidiactl").exists(),
    reason="needs make on Linux, without an NVIDIA device",
)


@needs_make
@pytest.mark.parametrize(
    "present, offered, by_uv",
    [(True, True, True), (False, True, True), (False, False, True), (False, False, False)],
)
def test_the_build_for_the_cpu_is_taken_where_pip_or_uv_finds_it(present, offered, by_uv, tmp_path):
    """A torch that is there already is kept; pip comes before uv.

    The arguments say what a python and a uv of the test's own answer."""
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
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\necho "uv $*" >> calls\nexit {int(not by_uv)}\n')
    uv.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    said = ""
    for _ in range(2):  # the second call finds all done
        done = subprocess.run(
            ["make", ".venv/video.stamp"], cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PATH": path}
        )
        assert done.returncode == 0, done.stderr
        said += done.stdout
    assert said.count("with CUDA") == (0 if present or offered or by_uv else 1)

    calls = (tmp_path / "calls").read_text().splitlines()
    cpu_build = [call for call in calls if call.endswith("+cpu") and "--dry-run" not in call]
    assert cpu_build == (["-m pip install torch==2.13.0+cpu"] if offered and not present else [])
    with_uv = [call for call in calls if call.startswith("uv ")]
    asks_uv = not present and not offered
    assert with_uv == ["uv pip install --python .venv/bin/python --torch-backend=cpu torch==2.13.0"] * asks_uv
    assert calls[-1] == "-m pip install -c constraints.txt -r .venv/video.txt" and calls.count(calls[-1]) == 1


@needs_make
@pytest.mark.parametrize("status", [0, 1])
def test_what_make_installs_and_says(status, tmp_path):
    """The requirements of the extras without the package itself; nothing of those that are there; and an error."""
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.with_name("pip").touch()
    python.write_text(f"""#!/bin/sh
case "$*" in
    *tomllib*) exec {sys.executable} "$@" ;;
    *" -r "*) printf 'Requirement already satisfied: a\nCollecting b\n'; exit {status} ;;
esac
""")
    python.chmod(0o755)
    # a make that runs these tests would give its own options to this one
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    command = ["make", ".venv/video,search.stamp"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout == "installing what is missing of the extras video,search\nCollecting b\n"
    assert (done.returncode == 0) == (status == 0) == (tmp_path / ".venv/video,search.stamp").exists()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    required = (tmp_path / ".venv/video,search.txt").read_text().splitlines()
    assert required == [*project["dependencies"], *extras["video"], *extras["search"]]
