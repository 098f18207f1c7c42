"""Each recipe applies to its script without fuzz, and trains; where it has state of its own, it resumes with it."""

import contextlib
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from in_process import loaded_parts, patched, train
from processes import finish, start
from run_files import checkpoint, equal, newest_run, scalars
from script_table import ROOT, TEXTS, needs_procgen

import enjoy
import export
from recipes import __main__ as program
from recipes import merge, pairs
from recipes import refresh as refreshing
from recipes.recipe import apply, plumbing, read, recipes

RECIPES = recipes()


def of_recipes(*recipes):
    """Parametrizes a test with recipes, or with the names of those in recipes/with."""
    recipes = [by_name[f"with/{recipe}"] if isinstance(recipe, str) else recipe for recipe in recipes]
    return pytest.mark.parametrize("recipe", recipes, ids=lambda recipe: recipe.name)


by_name = {recipe.name: recipe for recipe in RECIPES}
every_recipe = of_recipes(*RECIPES)

# options of a run of two updates of each script
TINY = {
    "ppo.py": "--total-timesteps 128 --num-envs 2 --num-steps 32",
    "ppo_atari.py": "--total-timesteps 32 --num-envs 2 --num-steps 8",
    "ppo_atari_lstm.py": "--total-timesteps 64 --num-envs 4 --num-steps 8",
    "ppo_atari_cleanba.py": "--total-timesteps 32 --num-envs 2 --num-steps 8",
    "ppo_continuous_action.py": "--env-id Hopper-v5 --total-timesteps 256 --num-envs 2 --num-steps 64",
    "ppo_seeds.py": "--total-timesteps 128 --num-envs 2 --num-steps 32",
    "ppo_selfplay.py": "--env-id toy_envs:Signs-v0 --total-timesteps 128 --num-envs 2 --num-steps 32",
    "ppo_procgen.py": "--total-timesteps 32 --num-envs 2 --num-steps 8",
    "ppo_multidiscrete.py": "--env-id toy_envs:Choices-v0 --total-timesteps 128 --num-envs 2 --num-steps 32",
    "ppo_multidiscrete_mask.py": "--env-id toy_envs:Choices-v0 --total-timesteps 128 --num-envs 2 --num-steps 32",
}
TINY["without/core-1-episodes"] = "--total-timesteps 128 --num-envs 1 --num-steps 64"
TINY["with/seeds-continuous"] = TINY["ppo_continuous_action.py"]
TINY["with/symmetry-continuous"] = TINY["ppo_continuous_action.py"].replace("Hopper-v5", "Pendulum-v1")
TINY["with/envpool"] = TINY["ppo.py"] + " --env-id envpool/CartPole-v1"
TINY["with/envpool-continuous"] = TINY["ppo_continuous_action.py"] + " --env-id envpool/Pendulum-v1"
TINY["with/seeds-envpool"] = TINY["ppo_seeds.py"] + " --env-id envpool/CartPole-v1"
TINY["with/mask"] = TINY["with/mask-lstm"] = TINY["ppo.py"] + " --env-id Taxi-v4"
TINY["with/privileged-critic"] = TINY["ppo.py"] + " --env-id recipes.environments:CartPoleHiddenLimit-v1"
PRIVILEGED_BOX = "--env-id recipes.environments:PendulumNoVelocity-v1 --privileged state"
TINY["with/privileged-critic", "ppo_continuous_action.py"] = TINY["ppo_continuous_action.py"] + f" {PRIVILEGED_BOX}"
TINY["with/codes"] = TINY["ppo.py"] + " --env-id FrozenLake-v1"
TINY["with/pettingzoo"] = "--env-id toy_envs:Crowd --total-timesteps 192 --num-envs 3 --num-steps 32"
TINY["with/turns"] = "--env-id recipes.environments:TicTacToe --total-timesteps 128 --num-envs 2 --num-steps 32"
TINY["with/device-tensors"] = (
    "--env-id recipes.environments:PendulumTensors-v1 --total-timesteps 256 --num-envs 2 --num-steps 64"
)
GAMES = ROOT / "tests/games"  # two short files of `enjoy.py --record`, of CartPole and Hopper
TINY["with/demonstrations"] = TINY["ppo.py"] + f" --demonstrations {GAMES}/CartPole-v1.npz"
TINY["with/demonstrations", "ppo_continuous_action.py"] = (
    TINY["ppo_continuous_action.py"] + f" --demonstrations {GAMES}/Hopper-v5.npz"
)
AGENTS = ROOT / "agents"
TINY["with/teacher"] = TINY["ppo.py"] + f" --teacher {AGENTS}/CartPole-v1__ppo__1.pt"
TINY["with/teacher", "ppo_continuous_action.py"] = (
    TINY["ppo_continuous_action.py"].replace("Hopper-v5", "HalfCheetah-v5")
    + f" --teacher {AGENTS}/HalfCheetah-v5__ppo_continuous_action__1.pt"
)
TINY["with/curriculum"] = TINY["ppo.py"] + " --env-id MountainCar-v0"
TINY["with/curriculum", "ppo_continuous_action.py"] = (
    TINY["ppo_continuous_action.py"].replace("Hopper-v5", "Pendulum-v1")
    + " --reset-options x_init --easy 0.3 --hard 3.14"
)
TINY["with/critic-warm-up"] = TINY["ppo.py"] + " --warm-up-updates 1"
TINY["with/hybrid-action"] = TINY["ppo_continuous_action.py"].replace(
    "Hopper-v5", "recipes.environments:ToolAndPlace-v0"
)
TINY["with/image-continuous"] = (
    "--env-id recipes.environments:ImagePlace-v0 --total-timesteps 64 --num-envs 2 --num-steps 16 --action-repeat 2"
)
TINY["with/image"] = TINY["ppo_atari.py"] + " --env-id recipes.environments:Image-v0"
TINY["with/image-and-vector"] = TINY["ppo_atari.py"] + " --env-id recipes.environments:ImageAndVector-v0"


@pytest.fixture
def made(recipe, with_recipe):
    """The recipe's script as a module of a name of its own, for `in_process.train`."""
    if recipe.script.name == "ppo_procgen.py":
        needs_procgen()
    return with_recipe(recipe.name)


@every_recipe
def test_it_applies_without_fuzz(recipe):
    """And changes what it stands for alone: it leaves the plumbing as it is."""
    before = recipe.script.read_text()
    after = apply(recipe, before)
    assert after != before
    assert plumbing(before) == plumbing(after)
    assert all(len(line) <= 121 for line in recipe.diff.splitlines() if line.startswith("+"))


@of_recipes(*[recipe for recipe in RECIPES if "after" in recipe.header])
def test_it_comes_with_the_recipe_that_it_changes(recipe):
    """It fits the script, and also what that recipe makes of it."""
    script = recipe.script.read_text()
    first = merge.with_recipe(script, by_name[recipe.header["after"]])
    assert merge.with_recipe(script, recipe) == merge.with_recipe(first, recipe) == apply(recipe, script)


@of_recipes(*[recipe for recipe in RECIPES if "after" not in recipe.header][::10])
def test_a_users_command_makes_the_same_script(recipe, tmp_path):
    """patch, and git where there is none."""
    copy = Path(shutil.copy(recipe.script, tmp_path / recipe.script.name))
    command = ["patch", "--fuzz=0", copy.name] if shutil.which("patch") else ["git", "apply", "-p0"]
    outside = os.environ | {"GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    subprocess.run([*command, recipe.file], cwd=tmp_path, env=outside, check=True, capture_output=True)
    assert copy.read_text() == apply(recipe, recipe.script.read_text())


def test_a_recipe_for_each_detail():
    """At least one *without* for every detail that has a mark in a script."""
    marks = set().union(*(script.marks for script in TEXTS))
    # aux 2 and seeds 1 are scripts, Cleanba's and IMPALA's are systems of their own, a game of two needs both players
    marks -= {"aux 2", "seeds 1", "selfplay 1"} | {mark for mark in marks if mark.startswith(("cleanba", "impala"))}
    absent = {mark.replace(" ", "-") for mark in marks}
    names = {re.match(r"\w+-\d+", recipe.file.stem)[0] for recipe in RECIPES if recipe.name.startswith("without")}
    assert names == absent


@of_recipes(*(recipe for recipe in RECIPES if recipe.name.startswith("without")))
def test_a_test_that_fails_without_the_detail_is_named(recipe, ids):
    """`python -m recipes --caught` wrote it down after it had failed with the recipe, and passed without."""
    named = recipe.header["caught by"]
    file, name = named.split("[")[0].split("::")
    assert f"\ndef {name}(" in (ROOT / file).read_text()
    if any(each.startswith(f"{file}::") for each in ids):  # all tests are run, or those of this file
        assert any(each == named or each.startswith(f"{named}[") for each in ids)


def test_recipes_are_chosen_by_both_names(monkeypatch):
    chosen = []
    monkeypatch.setattr(program, "refresh", lambda recipe: chosen.append(recipe.name))
    monkeypatch.setattr(program, "write_index", lambda: None)
    monkeypatch.setattr(sys, "argv", ["", "core-3", "with/muon", "without/core-5"])
    with pytest.raises(SystemExit) as end:
        program.main()
    assert end.value.code == 0
    assert chosen == ["with/muon", "without/core-3", "without/core-5"]
    monkeypatch.setattr(sys, "argv", ["", "--caught", "with/muon"])
    with pytest.raises(SystemExit, match="recipes/without have no with/muon"):
        program.main()


# The tool

BEFORE = """import a


def f(x):
    y = x
    return y + 1


# That was PPO. And this is not.
print(1)


def main():
    print(2)


if __name__ == "__main__":
    main()
"""
HEADER = "what: w\nwhy: y\nsource: s\nscript: s.py\ncommand: c\n"


@pytest.fixture
def refresh(tmp_path, monkeypatch):
    """A function that writes a script and refreshes a recipe, in a repository that has BEFORE.

    The recipe was made for a text that was never committed."""
    script, file = tmp_path / "s.py", tmp_path / "two.diff"
    monkeypatch.setattr("recipes.recipe.ROOT", tmp_path)
    monkeypatch.setattr(refreshing, "ROOT", tmp_path)
    script.write_text(BEFORE)
    git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "s.py"], ["commit", "-qm", "a"]):
        subprocess.run([*git, *command], check=True)
    made_for = "\n" + BEFORE
    file.write_text(HEADER + refreshing.diff("s.py", made_for, made_for.replace("y + 1", "y + 2")))

    def refresh(text):
        script.write_text(text)
        return refreshing.refreshed(read(file))

    return refresh


def test_a_recipe_follows_its_script(refresh, tmp_path):
    """Also if a line of its context has changed, so that the old diff does not apply."""
    after = BEFORE.replace("import a\n", "import a\nimport b\n").replace("def f(x)", "def f(x, z)")
    with pytest.raises(ValueError):
        apply(read(tmp_path / "two.diff"), after)
    assert apply(refresh(after), after) == after.replace("y + 1", "y + 2")


def test_a_recipe_that_still_applies_is_left_alone(refresh, tmp_path):
    """Where its lines have moved, too. But a diff of a user's copy gets the names that all recipes have."""
    file = tmp_path / "two.diff"
    assert refresh(BEFORE.replace("import a\n", "import a\nimport b\n")) == read(file)
    text = file.read_text()
    file.write_text(text.replace("+++ s.py", "+++ my_s.py\t2026-01-01"))
    program.refresh(read(file))
    assert file.read_text() == text


def test_a_recipe_after_another_follows_the_script(refresh, tmp_path):
    """Its diff is of what the other one makes of the script."""
    first = BEFORE.replace("if __name__", "def g():\n    pass\n\n\nif __name__")
    second = first.replace("y + 1", "y + 2").replace("pass", "return 3")
    (tmp_path / "recipes/with").mkdir(parents=True)
    (tmp_path / "recipes/with/first.diff").write_text(HEADER + refreshing.diff("s.py", BEFORE, first))
    header = HEADER.replace("command", "after: with/first\ncommand")
    (tmp_path / "two.diff").write_text(header + refreshing.diff("s.py", first, second))
    assert apply(refresh(BEFORE), BEFORE) == second
    after = BEFORE.replace("def f(x)", "def f(x, z)")
    assert apply(refresh(after), after) == second.replace("def f(x)", "def f(x, z)")


def test_a_diff_does_not_depend_on_the_settings_of_git(refresh, tmp_path, monkeypatch):
    (tmp_path / ".gitconfig").write_text("[diff]\nexternal = echo\n[color]\nui = always\n")
    plain = refreshing.diff("s.py", BEFORE, BEFORE.replace("y + 1", "y + 2"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert refreshing.diff("s.py", BEFORE, BEFORE.replace("y + 1", "y + 2")) == plain


def test_a_recipe_whose_own_line_has_changed_is_named(refresh, tmp_path):
    with pytest.raises(ValueError, match="two: the script has changed in the same lines"):
        refresh(BEFORE.replace("y + 1", "y + 3"))
    assert "<<<<<<<" in (tmp_path / "build/two.py").read_text()


def test_what_is_no_recipe(refresh, tmp_path):
    for line in ("print(1)", "print(2)", "def main()"):
        with pytest.raises(ValueError, match="must not change"):
            refreshing.diff("s.py", BEFORE, BEFORE.replace(line, line.replace("(", "(3, ")))
    (tmp_path / "r.diff").write_text(HEADER.replace("source: s\n", "") + "--- s.py\n+++ s.py\n")
    with pytest.raises(ValueError, match="the header has"):
        read(tmp_path / "r.diff")


def test_a_recipe_may_add_to_the_end(refresh, tmp_path):
    """What follows the function main is not the plumbing."""
    after = BEFORE.replace("if __name__", "def g():\n    pass\n\n\nif __name__").replace("    main()", "    main(g)")
    diff = refreshing.diff("s.py", BEFORE, after)
    assert apply(read(tmp_path / "two.diff")._replace(diff=diff), BEFORE) == after


# Training


def slow_on_images(recipe):
    images = recipe.script.stem in ("ppo_atari", "ppo_atari_lstm", "ppo_atari_cleanba", "ppo_procgen")
    return pytest.param(recipe, marks=pytest.mark.slow if images else ())


def makes_two_updates(script, options, folder):
    """Trains; after two updates all weights are finite and some have moved. Returns the run's folder."""
    run = train(script, f"{options} --num-minibatches 2 --no-cuda --save-every 1", folder)
    first, last = (checkpoint(run, which)["parts"]["agent"] for which in (0, -1))
    assert all(torch.as_tensor(weight).isfinite().all() for weight in last.values())
    assert any(not torch.equal(first[name], last[name]) for name in last)
    return run


def goes_on_and_plays(script, options, run):
    """Resumes a run for one more update, and plays a game with it."""
    steps = checkpoint(run)["global_step"] * 3 // 2
    train(script, f"{options} --resume {run} --total-timesteps {steps}", run.parents[1])
    assert checkpoint(run)["global_step"] == steps and len(enjoy.enjoy(enjoy.Args(run, episodes=1))) == 1


@of_recipes(*map(slow_on_images, RECIPES))
def test_it_trains(recipe, made, tmp_path):
    options = TINY.get(recipe.name, TINY[recipe.script.name])
    run = makes_two_updates(made, options, tmp_path / "run")
    if recipe.name.startswith("with/"):
        goes_on_and_plays(made, options, run)


CONTINUOUS = [recipe.name for recipe in RECIPES if ROOT / "ppo_continuous_action.py" in recipe.scripts[1:]]


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTINUOUS)
def test_it_trains_with_continuous_actions(name, with_recipe, tmp_path):
    """A recipe for ppo.py that its header also names for ppo_continuous_action.py."""
    script = with_recipe(name, "ppo_continuous_action.py")
    options = TINY.get((name, "ppo_continuous_action.py"), TINY["ppo_continuous_action.py"])
    goes_on_and_plays(script, options, makes_two_updates(script, options, tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("script", pairs.SCRIPTS)
def test_recipes_combine(script, with_recipe, tmp_path):
    """Of the pairs that make sense, 80 % fit; ten of them train. `python -m recipes --pairs` writes the page."""
    found = pairs.conflicts(script)
    assert "\n".join(pairs.section(script, found)) in pairs.FILE.read_text()
    fitting = [names for names, reason in found.items() if reason is None]
    assert len(fitting) >= 0.8 * len(found)
    special = {key if isinstance(key, str) else key[0] for key in TINY}  # these need other options
    plain = [names for names in fitting if not special & {f"with/{name}" for name in names}]
    for number, (one, other) in enumerate(random.Random(1).sample(plain, 10)):
        made = with_recipe(f"with/{one}", script, f"with/{other}")
        makes_two_updates(made, TINY[script], tmp_path / str(number))


@pytest.mark.parametrize("script", [path.name for path in by_name["with/evaluation"].scripts[2:]])
def test_an_evaluation_fits_other_scripts(script, with_recipe):
    assert with_recipe("with/evaluation", script).module.evaluate


@of_recipes(
    "average-policy",
    "churn",
    "codes",
    "kl-penalty",
    "kl-penalty-continuous",
    "kl-learning-rate",
    "l2-init",
    "muon",
    "normalization",
    "ppg",
    "rnd",
    "value-normalization",
)
def test_its_own_state_survives_a_resume(recipe, made, tmp_path):
    run = train(made, f"{TINY.get(recipe.name, TINY[recipe.script.name])} --no-cuda", tmp_path)
    saved = checkpoint(run)["parts"]
    with loaded_parts(made) as loaded:
        train(made, f"--resume {run} --total-timesteps 384", tmp_path)
    assert equal(loaded, saved) and not equal(checkpoint(run)["parts"], saved)


@of_recipes("exact-resume")
@pytest.mark.parametrize(
    "options",
    ["--env-id CartPole-v1", pytest.param("--env-id Acrobot-v1 --async-envs", marks=pytest.mark.slow)],
)
def test_an_exact_resume_in_the_middle_of_games(recipe, made, options, tmp_path):
    """Games in flight go on where they were: the resumed run equals the undisturbed one, to the last bit."""
    options = f"{options} --no-cuda --total-timesteps 320 --num-envs 2 --num-steps 32"
    run = train(made, f"{options} --save-every 2", tmp_path / "run")
    max(run.glob("checkpoint_*.pt")).unlink()  # as if killed before it
    undisturbed = checkpoint(train(made, options, tmp_path / "other"))
    again = checkpoint(train(made, f"--resume {run}", tmp_path / "run"))
    for state in (again, undisturbed):
        pasts = state["parts"]["games"].pop("pasts")  # a first game's has the generator from before it was seeded
        assert any(len(past) > 2 for past in pasts)  # some game is in flight
    assert equal(again["parts"], undisturbed["parts"]) and again["returns"] == undisturbed["returns"]
    first = min(run.glob("checkpoint_*.pt"))
    with loaded_parts(made) as loaded:
        branch = train(made, f"--resume {first} --total-timesteps 384", tmp_path / "branch")  # a run of its own
    begun = torch.load(min(branch.glob("checkpoint_*.pt")), weights_only=True)["parts"]["games"]
    assert equal(begun, loaded["games"]) and any(len(past) > 2 for past in begun["pasts"])


@of_recipes("exact-resume")
def test_games_that_cannot_be_played_again_start_anew(recipe, made, tmp_path, capsys):
    """Where an observation is not what it was before the resume, it is said, and training goes on."""
    options = "--no-cuda --total-timesteps 256 --num-envs 2 --num-steps 32 --save-every 2"
    run = train(made, options, tmp_path / "run")
    max(run.glob("checkpoint_*.pt")).unlink()  # as if killed before it
    [file] = run.glob("checkpoint_*.pt")
    state = torch.load(file, weights_only=True)
    state["parts"]["games"]["obs"] += 1
    torch.save(state, file)
    again = checkpoint(train(made, f"--resume {run}", tmp_path / "run"))
    assert "cannot be replayed" in capsys.readouterr().out
    assert again["global_step"] == 256
    again = checkpoint(train(made, f"--resume {run} --num-envs 4 --total-timesteps 512", tmp_path / "run"))
    assert "cannot be replayed" in capsys.readouterr().out and again["global_step"] == 512


@of_recipes("value-normalization", "rnd")
def test_moments(recipe, made):
    """Of rows in several batches as of all at once."""
    rows = torch.randn(1000, 3, generator=torch.Generator().manual_seed(1)) * 5 + 2
    name = {"value-normalization": "ReturnMoments", "rnd": "RunningMoments"}[recipe.file.stem]
    moments = getattr(made.module, name)(3)
    for part in rows.split([10, 200, 790]):
        moments.update(part)
    torch.testing.assert_close(moments.mean, rows.double().mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(moments.var, rows.double().var(0, correction=0), rtol=1e-4, atol=1e-5)


@of_recipes("rnd")
def test_returns_of_the_intrinsic_reward_go_on(recipe, made):
    """From one rollout to the next: after 2 x 4 steps of surprise 1 they are those of 8 steps."""
    moments, last = made.module.RunningMoments(), torch.zeros(())
    agent = SimpleNamespace(
        obs_moments=SimpleNamespace(update=lambda obs: None), return_moments=moments, last_return=last
    )
    agent.surprise = lambda obs: torch.ones(len(obs))
    for _ in range(2):
        rewards = made.module.update_moments_and_rewards(agent, torch.zeros(4, 3, 2), 0.9)
    assert last.item() == pytest.approx(sum(0.9**k for k in range(8)))
    torch.testing.assert_close(rewards, torch.full((4, 3), moments.var.item() ** -0.5))


@of_recipes("normalization")
def test_the_first_observations_count(recipe, made):
    """As in ppo_continuous_action.py."""
    with contextlib.closing(made.module.make_envs(made.module.Args(), None)) as envs:
        envs.reset(seed=1)
        assert envs.obs_stats.count == pytest.approx(4, abs=0.01)


@of_recipes("squashed-gaussian")
def test_density_of_squashed_actions(recipe, made):
    """As torch's own transformed distribution has it, for actions between other bounds, too."""
    squashed = torch.tensor([[0.3, -1.2], [2.0, 0.0]]).tanh()
    mean = torch.tensor([[0.1, -1.0]])
    logstd = torch.tensor([[0.2, -0.5]])
    base = torch.distributions.Normal(mean, logstd.exp())
    theirs = torch.distributions.TransformedDistribution(base, torch.distributions.TanhTransform())
    expected = theirs.log_prob(squashed).sum(-1)
    for low, high in [(-1.0, 1.0), (-200.0, 300.0)]:
        policy = made.module.Normal(mean, logstd, torch.tensor(low), torch.tensor(high))
        actions = low + (squashed + 1) / 2 * (high - low)
        torch.testing.assert_close(policy.log_prob(actions), expected, rtol=1e-4, atol=1e-4)
    torch.manual_seed(1)
    policy = made.module.Normal(mean.expand(100_000, 2), logstd, torch.tensor(-1.0), torch.tensor(1.0))
    entropy = -theirs.log_prob(theirs.sample((100_000,))).sum(-1).mean().item()
    assert policy.entropy().mean().item() == pytest.approx(entropy, abs=0.02)


@of_recipes("kl-penalty")
def test_the_penalty_can_rise_again(recipe, made, tmp_path):
    """Halved in each of 12 updates, its weight stops above 0."""
    run = train(made, "--no-cuda --total-timesteps 768 --num-envs 2 --num-steps 32 --kl-aim 1", tmp_path / "run")
    assert checkpoint(run)["parts"]["agent"]["kl_coef"].item() == pytest.approx(1e-3)


@of_recipes("evaluation")
def test_an_evaluation_changes_nothing(recipe, made, tmp_path):
    """A run with evaluations ends with the weights and statistics of one without, and has them in its log.

    best.pt is the checkpoint of the best of them, after a resume too, and enjoy.py plays it."""
    options = f"{TINY[recipe.script.name]} --no-cuda --eval-episodes 1"
    runs = [train(made, f"{options} --eval-every {every}", tmp_path / str(every)) for every in (1, None)]
    ends = [checkpoint(run)["parts"] for run in runs]
    best = ends[0].pop("best")["mean"].item(), ends[1].pop("best")["mean"].item()
    assert equal(*ends)
    [(_, first), (_, second)] = scalars(runs[0])["charts/eval_return"]
    assert best == (pytest.approx(max(first, second)), -math.inf) and "charts/eval_return" not in scalars(runs[1])
    kept = torch.load(runs[0] / "best.pt", weights_only=True)
    steps = checkpoint(runs[0])["global_step"] // (2 if first >= second else 1)
    assert kept["global_step"] == steps and not (runs[1] / "best.pt").exists()
    assert enjoy.enjoy(enjoy.Args(runs[0] / "best.pt", episodes=1))
    with patched((made.module, "evaluate", lambda *_: best[0] - 1)):
        total = 2 * checkpoint(runs[0])["args"]["total_timesteps"]
        train(made, f"{options} --eval-every 100 --resume {runs[0]} --total-timesteps {total}", tmp_path / "1")
    assert len(scalars(runs[0])["charts/eval_return"]) == 3 and checkpoint(runs[0])["parts"]["best"]["mean"] == best[0]
    assert equal(torch.load(runs[0] / "best.pt", weights_only=True)["parts"], kept["parts"])


class Endless(gym.Env):
    """A task that never ends, for one player or for two. `steps` counts those of all."""

    steps = 0

    def __init__(self, players, render_mode=None):
        self.observation_space = gym.spaces.Box(-1, 1, (players, 2) if players == 2 else (2,))
        self.action_space = gym.spaces.MultiDiscrete([2, 2]) if players == 2 else gym.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        Endless.steps += 1
        return np.zeros(self.observation_space.shape, np.float32), 1.0, False, False, {}


gym.register("EndlessTask-v0", Endless, disable_env_checker=True, kwargs={"players": 1})
gym.register("EndlessGame-v0", Endless, disable_env_checker=True, kwargs={"players": 2})
ENDLESS = "--no-cuda --env-id EndlessTask-v0 --num-envs 2 --num-steps 32 --total-timesteps 256 --eval-every 1"


@of_recipes("evaluation")
def test_an_evaluation_without_end(recipe, made, tmp_path, capsys):
    """Its steps are limited, which is said; it has no score then, and the training goes on."""
    run = train(made, f"{ENDLESS} --eval-episodes 3 --eval-steps 50", tmp_path)
    assert capsys.readouterr().out.count("no evaluation: 0 of 3 episodes ended in --eval-steps 50\n") == 4
    assert checkpoint(run)["global_step"] == 256
    assert "charts/eval_return" not in scalars(run) and not (run / "best.pt").exists()


def test_an_evaluation_without_masks(with_recipe, tmp_path):
    """With the recipe mask, an evaluation would take actions that training never takes."""
    made = with_recipe("with/mask", second="with/evaluation")
    options = "--env-id toy_envs:Endless-v0 --num-envs 2 --num-steps 32 --total-timesteps 128 --eval-every 1 --no-cuda"
    with pytest.raises(SystemExit, match="^error: this evaluation does not mask invalid actions"):
        train(made, options, tmp_path)


def test_recipes_whose_actions_would_differ():
    """Colored noise would not be squashed: the two recipes change the same lines, so both orders are refused."""
    noise = read(ROOT / "recipes/with/colored-noise.diff")
    squashed = read(ROOT / "recipes/with/squashed-gaussian.diff")
    for first, second in ((noise, squashed), (squashed, noise)):
        text = apply(first, first.script.read_text())
        with pytest.raises(ValueError, match="does not apply"):
            apply(second, text)


@of_recipes("evaluation", "selfplay-evaluation")
def test_one_signal_ends_an_evaluation(recipe, made, tmp_path, capsys):
    """And the run, which saves a checkpoint."""
    module = made.module
    name = {"evaluation": "evaluate", "selfplay-evaluation": "win_rate"}[recipe.file.stem]
    function = getattr(module, name)
    results = []

    def evaluate(*args):
        if not results:
            os.kill(os.getpid(), signal.SIGINT)
        results.append(function(*args))
        return results[-1]

    options = f"{ENDLESS} --eval-steps 5000"
    if name == "win_rate":
        options = options.replace("EndlessTask", "EndlessGame") + " --eval-games 2"
    steps = Endless.steps
    with patched((module, name, evaluate)), pytest.raises(SystemExit, match="130"):
        train(made, options, tmp_path)
    assert Endless.steps - steps < 100 and set(results) == {None}
    assert "saved" in capsys.readouterr().out
    [run] = (tmp_path / "runs").iterdir()
    assert checkpoint(run)["global_step"] == 64


@of_recipes("torchrun-continuous")
def test_the_end_is_that_of_the_script_for_many_processes(recipe, made):
    end = (ROOT / "ppo_atari_multigpu.py").read_text().partition("class RankRun")
    assert Path(made.module.__file__).read_text().partition("class RankRun")[1:] == end[1:]


@pytest.mark.slow
@of_recipes("torchrun-continuous")
def test_two_ranks_make_the_run_of_one(recipe, made, tmp_path):
    """To rounding: weights, statistics and returns."""
    options = "--no-cuda --env-id Hopper-v5 --num-envs 4 --num-steps 64 --num-minibatches 4 --total-timesteps 1024"
    one = checkpoint(train(made, options, tmp_path / "one"))
    (tmp_path / "two").mkdir()
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = start([*torchrun, made.module.__file__, *options.split()], tmp_path / "two")
    status, _, errors = finish(process)
    assert status == 0, errors
    two = checkpoint(newest_run(tmp_path / "two"))
    assert len(one["returns"]) > 10 and two["returns"] == pytest.approx(one["returns"], rel=1e-4)
    for name, weight in one["parts"]["agent"].items():
        torch.testing.assert_close(two["parts"]["agent"][name], weight, rtol=0, atol=1e-5)
    for name in ("obs", "return"):
        for first, second in zip(one["parts"]["envs"][name], two["parts"]["envs"][name], strict=True):
            np.testing.assert_allclose(second, first, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@of_recipes(
    "device-tensors", "hybrid-action", "image-continuous", "mask", "mask-lstm", "privileged-critic", "teacher", "turns"
)
def test_it_is_exported(recipe, made, tmp_path):
    """export() compares the file with the agent in the environment."""
    pytest.importorskip("onnxruntime")
    run = train(made, f"{TINY[recipe.name]} --no-cuda --num-minibatches 2", tmp_path)
    export.export(export.Args(run, tmp_path / "agent.onnx", steps=20))
    assert (tmp_path / "agent.onnx").exists()


@of_recipes("squashed-gaussian", "beta")
def test_the_policy_itself_keeps_the_bounds(recipe, made, tmp_path):
    """So the environment gets what the policy says, and the agent can be exported."""
    pytest.importorskip("onnxruntime")
    run = train(made, f"{TINY[recipe.script.name]} --no-cuda --num-minibatches 2 --env-id Pendulum-v1", tmp_path)
    export.export(export.Args(run, tmp_path / "agent.onnx"))
    assert (tmp_path / "agent.onnx").exists()
