"""Every way to install gives the same: the scripts' own blocks, pyproject.toml, poetry.lock and constraints.txt."""

import re
import tomllib
from fnmatch import fnmatch

import pytest
from dependencies import EXTRAS, ROOT, asked, block, needed
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from toy_envs import TEXTS

SCRIPTS = ["enjoy.py", *(f"{script.name}.py" for script in TEXTS)]  # and no copy of the user's
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, OPTIONAL = PYPROJECT["project"], PYPROJECT["project"]["optional-dependencies"]
LOCKED = tomllib.loads((ROOT / "poetry.lock").read_text())["package"]
CONSTRAINTS = (ROOT / "constraints.txt").read_text().splitlines()


def test_there_are_scripts():
    assert {"ppo.py", "ppo_shared.py", "ppo_atari.py"} <= set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_asks_for_what_pyproject_has(script):
    """Exactly the core and the script's extras, in the same words; and no newer Python than the project."""
    written = asked((ROOT / script).read_text())
    core, extras = needed(script)
    assert sorted(written["dependencies"]) == sorted(core + extras)
    assert written["requires-python"] == PROJECT["requires-python"].split(",")[0]


def test_what_is_written_into_a_script():
    """Every script has its extras; and what asks for a part of the core with an extra of its own takes its place."""
    assert EXTRAS.keys() == set(SCRIPTS)
    for script in SCRIPTS:
        assert asked(block(script))["dependencies"] == sum(needed(script), [])
        assert max(map(len, block(script).splitlines())) <= 120
        assert (ROOT / script).read_text().startswith(block(script)), "run python tests/dependencies.py"
    core, extras = needed("ppo_continuous_action.py")
    assert "gymnasium[mujoco]>=1.4" in core and "gymnasium>=1.4" not in core and extras == []
    assert needed("ppo_atari.py") == (PROJECT["dependencies"], OPTIONAL["atari"])


def test_what_is_repeated_in_pyproject():
    """The extra `all` is all others but dev; and the group for poetry's resolver is the same, and what it pins."""
    everything = {line for extra, lines in OPTIONAL.items() if extra not in ("all", "dev") for line in lines}
    assert sorted(OPTIONAL["all"]) == sorted(everything)
    pins = set(PYPROJECT["dependency-groups"]["lock"]) - everything
    assert everything <= set(PYPROJECT["dependency-groups"]["lock"])
    versions = {(package["name"], package["version"]) for package in LOCKED}
    assert all(tuple(pin.split("==")) in versions for pin in pins)


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
    asked_for = map(Requirement, PROJECT["dependencies"] + OPTIONAL["all"])
    needed = {canonicalize_name(one.name) for one in asked_for if one.marker is None or one.marker.evaluate(machine)}
    assert needed <= set(held) and ("box2d" in needed) == (python != "3.14")


def test_no_file_names_a_registry():
    """A lock with download addresses, or an index in a settings file, would bind everyone to one machine's registry."""
    assert not any("source" in package or any("url" in file for file in package["files"]) for package in LOCKED)
    ignored = [".git", *(line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines())]
    tops = [path for path in ROOT.iterdir() if not any(fnmatch(path.name, pattern) for pattern in ignored)]
    files = [path for top in tops for path in (top, *top.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    assert {"pyproject.toml", "poetry.lock", "ppo.py", "run", "test_packaging.py"} <= {path.name for path in files}
    hosts = re.compile(rb"py[p]i\.org|python[h]osted|https?://[^\s\"]*/(simple|py[p]i)\b", re.IGNORECASE)
    assert [path.name for path in files if hosts.search(path.read_bytes())] == []
