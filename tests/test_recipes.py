"""Each recipe applies to its script without fuzz, and trains; where it has state of its own, it resumes with it."""

import importlib
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from toy_envs import ROOT, checkpoint, train

tool = importlib.import_module("recipes.__main__")
RECIPES = tool.recipes()
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
with_parts = [recipe for recipe in RECIPES if re.search(r"^\+.*run\.start\(", recipe.diff, re.MULTILINE)]

# options of a run of two updates of each script
TINY = {
    "ppo.py": "--total-timesteps 128 --num-envs 2 --num-steps 32",
    "ppo_atari.py": "--total-timesteps 32 --num-envs 2 --num-steps 8",
    "ppo_atari_lstm.py": "--total-timesteps 64 --num-envs 4 --num-steps 8",
    "ppo_continuous_action.py": "--env-id Hopper-v5 --total-timesteps 256 --num-envs 2 --num-steps 64",
    "ppo_procgen.py": "--total-timesteps 32 --num-envs 2 --num-steps 8",
    "ppo_multidiscrete.py": "--env-id toy_envs:Choices-v0 --total-timesteps 128 --num-envs 2 --num-steps 32",
    "ppo_multidiscrete_mask.py": "--env-id toy_envs:Choices-v0 --total-timesteps 128 --num-envs 2 --num-steps 32",
}


def patched_script(recipe):
    """The text of the recipe's script, the recipe applied."""
    return tool.apply(recipe, recipe.script.read_text())


@pytest.fixture
def made(recipe, tmp_path, monkeypatch):
    """The recipe's script as a module of a name of its own, for `toy_envs.train`."""
    name = "made_" + re.sub(r"\W", "_", recipe.name)
    (tmp_path / f"{name}.py").write_text(patched_script(recipe))
    monkeypatch.syspath_prepend(str(tmp_path))
    if recipe.script.name == "ppo_procgen.py":
        needs_procgen()
    yield SimpleNamespace(name=name, module=importlib.import_module(name))
    del sys.modules[name]


def needs_procgen():
    """Skips where the system has no Qt 5, which EnvPool's own Procgen needs."""
    try:
        importlib.import_module("envpool").make_gymnasium("StarpilotEasy-v0", num_envs=1)
    except ImportError as error:
        pytest.skip(str(error))


@every_recipe
def test_it_applies_without_fuzz(recipe):
    """And changes what it stands for alone: it leaves the plumbing as it is."""
    before = recipe.script.read_text()
    after = patched_script(recipe)
    assert after != before
    assert before.partition(tool.PLUMBING)[1:] == after.partition(tool.PLUMBING)[1:]
    assert all(len(line) <= 121 for line in recipe.diff.splitlines() if line.startswith("+"))


@pytest.mark.skipif(shutil.which("patch") is None, reason="there is no patch")
@pytest.mark.parametrize("recipe", RECIPES[::10], ids=lambda recipe: recipe.name)
def test_patch_makes_the_same_script(recipe, tmp_path):
    """By the README's command."""
    command = ["patch", "--fuzz=0", "-o", tmp_path / "my_ppo.py", recipe.script, recipe.file]
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "my_ppo.py").read_text() == patched_script(recipe)


def test_a_recipe_for_each_detail():
    """At least one *without* for every detail that has a mark in a script."""
    marks = {mark for path in ROOT.glob("ppo*.py") for mark in re.findall(r"\[(\w+ \d+)\]", path.read_text())}
    absent = {mark.replace(" ", "-") for mark in marks - {"aux 1", "aux 3"}}  # these two are off by default
    names = {re.match(r"\w+-\d+", recipe.file.stem)[0] for recipe in RECIPES if recipe.name.startswith("without")}
    assert names == absent


@every_recipe
def test_it_trains(recipe, made, tmp_path):
    """Two updates, after which all weights are finite and some have moved."""
    run = train(made, f"{TINY[recipe.header['script']]} --no-cuda --save-every 1", tmp_path / "run")
    first, last = (checkpoint(run, which)["parts"]["agent"] for which in (0, -1))
    assert all(torch.as_tensor(weight).isfinite().all() for weight in last.values())
    assert any(not torch.equal(first[name], last[name]) for name in last)


@pytest.mark.parametrize("recipe", with_parts, ids=lambda recipe: recipe.name)
def test_its_own_state_survives_a_resume(recipe, made, tmp_path):
    """What a recipe adds to the parts is in the checkpoint, and a resumed run begins with it."""
    options = TINY[recipe.header["script"]]
    run = train(made, f"{options} --no-cuda --save-every 1", tmp_path / "run")
    before = checkpoint(run)
    first_parts = checkpoint(run, 0)["parts"]
    steps = before["args"]["total_timesteps"]
    again = train(made, f"--resume {run} --total-timesteps {steps + 2 * steps}", tmp_path / "run")
    assert checkpoint(again)["global_step"] == 3 * steps
    assert first_parts.keys() == checkpoint(again)["parts"].keys() > {"agent", "optimizer"}
