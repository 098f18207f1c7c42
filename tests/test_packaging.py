"""Every way to install gives the same: the scripts' own blocks, pyproject.toml, poetry.lock and constraints.txt."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(path.name for path in ROOT.glob("*.py"))
EXTRAS = {
    "ppo.py": [],
    "ppo_shared.py": [],
    "ppo_atari.py": ["atari"],
    "ppo_atari_lstm.py": ["atari"],
    "ppo_atari_envpool.py": ["envpool"],
    "ppo_continuous_action.py": ["mujoco"],
    "ppo_procgen.py": ["procgen"],
    "ppo_multidiscrete.py": ["microrts"],
    "ppo_multidiscrete_mask.py": ["microrts"],
    "enjoy.py": ["atari", "mujoco", "video"],
}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, OPTIONAL = PYPROJECT["project"], PYPROJECT["project"]["optional-dependencies"]
LOCKED = tomllib.loads((ROOT / "poetry.lock").read_text())["package"]
CONSTRAINTS = (ROOT / "constraints.txt").read_text().splitlines()


def test_there_are_scripts():
    assert {"ppo.py", "ppo_shared.py", "ppo_atari.py"} <= set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_asks_for_what_pyproject_has(script):
    """Exactly the core and the script's extras, in the same words; and no newer Python than the project.

    An extra may ask for a part of the core with an extra of its own, gymnasium[mujoco]; then that takes its place.
    """
    block = re.match(r"# /// script\n((?:#(?: .*)?\n)+?)# ///\n", (ROOT / script).read_text())[1]
    block = tomllib.loads(re.sub(r"^# ?", "", block, flags=re.MULTILINE))
    extras = [line for extra in EXTRAS[script] for line in OPTIONAL[extra]]
    replaced = {re.sub(r"\[\w+\]", "", line) for line in extras if "[" in line}
    assert replaced <= set(PROJECT["dependencies"])
    assert sorted(block["dependencies"]) == sorted(set(PROJECT["dependencies"]) - replaced | set(extras))
    assert block["requires-python"] == PROJECT["requires-python"].split(",")[0]


def test_all_is_everything_but_dev():
    everything = {line for extra, lines in OPTIONAL.items() if extra not in ("all", "dev") for line in lines}
    assert sorted(OPTIONAL["all"]) == sorted(everything)
    assert everything <= set(PYPROJECT["dependency-groups"]["lock"])


def test_constraints_are_the_lock():
    """The same names and versions in both. A package of one platform may have several."""
    pinned = {tuple(line.split(" ;")[0].split("==")) for line in CONSTRAINTS}
    assert pinned == {(package["name"], package["version"]) for package in LOCKED}
    assert len(pinned) > 50 and ("torch", "2.13.0") in pinned  # the release of which a machine has its own build


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("system", [("linux", "Linux", "x86_64"), ("darwin", "Darwin", "arm64")], ids=lambda s: s[0])
def test_a_machine_gets_one_version_of_each(python, system):
    """Two that hold at once would leave pip without a solution."""
    names = ("sys_platform", "platform_system", "platform_machine")
    machine = dict(zip(names, system, strict=True)) | {"python_version": python, "python_full_version": f"{python}.0"}
    held = [line.split("==")[0] for line in CONSTRAINTS if Marker(line.split(" ;")[1].strip()).evaluate(machine)]
    assert len(held) == len(set(held)) > 50
    needed = {canonicalize_name(re.match(r"[\w-]+", line)[0]) for line in PROJECT["dependencies"] + OPTIONAL["all"]}
    assert needed <= set(held)


def test_no_file_names_a_registry():
    """A lock with download addresses, or an index in a settings file, would bind everyone to one machine's registry."""
    assert not any("source" in package or any("url" in file for file in package["files"]) for package in LOCKED)
    ignored = [".git", *(line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines())]
    tops = [path for path in ROOT.iterdir() if not any(fnmatch(path.name, pattern) for pattern in ignored)]
    files = [path for top in tops for path in (top, *top.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    assert {"pyproject.toml", "poetry.lock", "ppo.py", "run", "test_packaging.py"} <= {path.name for path in files}
    hosts = re.compile(rb"py[p]i\.org|python[h]osted|https?://[^\s\"]*/(simple|py[p]i)\b", re.IGNORECASE)
    assert [path.name for path in files if hosts.search(path.read_bytes())] == []
