"""Every way to install gives the same: the scripts' own blocks, pyproject.toml, poetry.lock and constraints.txt."""

import re
import tomllib
from fnmatch import fnmatch

import pytest
from script_table import ROOT

from benchmark.scripts import SCRIPTS

EXTRAS = {f"{name}.py": [script.extra] if script.extra else [] for name, script in SCRIPTS.items()}
EXTRAS |= {
    "check.py": ["atari", "mujoco", "video"],
    "enjoy.py": ["atari", "mujoco", "video"],
    "export.py": ["atari", "mujoco", "export"],
}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, OPTIONAL = PYPROJECT["project"], PYPROJECT["project"]["optional-dependencies"]
LOCKED = tomllib.loads((ROOT / "poetry.lock").read_text())["package"]
CONSTRAINTS = (ROOT / "constraints.txt").read_text().splitlines()


@pytest.mark.parametrize("script", EXTRAS)
def test_a_script_asks_for_what_pyproject_has(script):
    """The core and the script's extras, in the same words; gymnasium[mujoco] takes the place of gymnasium."""
    block = re.match(r"# /// script\n((?:#(?: .*)?\n)+?)# ///\n", (ROOT / script).read_text())[1]
    asked = tomllib.loads(re.sub(r"^# ?", "", block, flags=re.MULTILINE))
    lines = {line for extra in EXTRAS[script] for line in OPTIONAL[extra]}
    special = {re.sub(r"\[\w+\]", "", line) for line in lines if "[" in line}
    assert sorted(asked["dependencies"]) == sorted(lines | set(PROJECT["dependencies"]) - special)
    assert asked["requires-python"] == PROJECT["requires-python"].split(",")[0]


def test_what_is_repeated_in_pyproject():
    """The extra `all` is all others but dev; and the group for poetry's resolver is the same, and what it pins."""
    everything = {line for extra, lines in OPTIONAL.items() if extra not in ("all", "dev") for line in lines}
    assert sorted(OPTIONAL["all"]) == sorted(everything)
    pins = set(PYPROJECT["dependency-groups"]["lock"]) - everything
    assert everything <= set(PYPROJECT["dependency-groups"]["lock"])
    versions = {(package["name"], package["version"]) for package in LOCKED}
    assert all(tuple(pin.split("==")) in versions for pin in pins)


def test_constraints_are_the_lock():
    """The same names and versions in both."""
    pinned = {tuple(line.split(" ;")[0].split("==")) for line in CONSTRAINTS}
    assert pinned == {(package["name"], package["version"]) for package in LOCKED}
    assert len(pinned) > 50 and ("torch", "2.13.0") in pinned  # the release of which a machine has its own build


def test_no_file_names_a_registry():
    """A lock with download addresses, or an index in a settings file, would bind everyone to one machine's registry."""
    assert not any("source" in package or any("url" in file for file in package["files"]) for package in LOCKED)
    ignored = [".git", *(line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines())]
    tops = [path for path in ROOT.iterdir() if not any(fnmatch(path.name, pattern) for pattern in ignored)]
    tops = [top for top in tops if not (top / "pyvenv.cfg").exists()]  # a user's virtual environment
    files = [path for top in tops for path in (top, *top.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    assert {"pyproject.toml", "poetry.lock", "ppo.py", "run", "test_packaging.py"} <= {path.name for path in files}
    hosts = re.compile(rb"py[p]i\.org|python[h]osted|https?://[^\s\"]*/(simple|py[p]i)\b", re.IGNORECASE)
    assert [path.name for path in files if hosts.search(path.read_bytes())] == []
