"""benchmark/ablation: which runs it makes, what an effect is, and where it is written."""

import importlib
import json
import lzma
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from toy_envs import ROOT

ablation = importlib.import_module("benchmark.ablation.__main__")
RECIPES = {recipe.file.stem: recipe for recipe in ablation.recipes()}


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Runs, results, README, picture and recipes' headers go into a folder; of the recipes there are four."""
    monkeypatch.setattr(ablation, "FOLDER", tmp_path / "runs")
    monkeypatch.setattr(ablation, "RESULTS", tmp_path / "results")
    chosen = [RECIPES[name] for name in ("dual-clip", "atari-6", "core-3", "core-4")]
    monkeypatch.setattr(ablation, "recipes", lambda: chosen)
    return tmp_path


def options(steps):
    return {"total_timesteps": steps, "compile": False}


def test_it_makes_the_runs_that_are_missing(folders, monkeypatch, capsys):
    """The parent's and one of each recipe of the set, with each seed, and collects them; it counts those that fail."""
    what = {"script": "ppo.py", "env_id": "CartPole-v1", "compile": False}
    args = SimpleNamespace(recipes="without/", steps=1024, seeds=1, **what)
    made, make_run = [], ablation.make_run
    monkeypatch.setattr(ablation, "make_run", lambda script, *rest: made.append(script.stem) or make_run(script, *rest))
    assert ablation.make_runs(args) == 0 and made == ["ppo", "core-3", "core-4"]
    assert "not for ppo.py: without/atari-6" in capsys.readouterr().out
    assert (folders / "runs/ppo/core-4.py").read_text() != (folders / "runs/ppo/ppo.py").read_text()
    monkeypatch.setattr(ablation, "make_run", lambda *run: made.append(run[2]))  # all fail
    assert [script.stem for script in ablation.scripts("with/dual", "ppo.py")] == ["ppo", "dual-clip"]
    args.seeds = 2
    assert ablation.make_runs(args) == 3 and made[3:] == [2, 2, 2]
    args.steps, args.seeds = 2048, 1  # those of 1024 steps are other runs
    assert ablation.make_runs(args) == 3 and made[6:] == [1, 1, 1]
    args.steps, args.compile = 1024, True  # and so are those without --compile
    assert ablation.make_runs(args) == 3 and made[9:] == [1, 1, 1]
    args.seeds, args.compile = 2, False
    shutil.rmtree(folders / "runs")  # the results have those of seed 1
    capsys.readouterr()
    assert ablation.make_runs(args) == 3 and made[12:] == [2, 2, 2]
    (folders / "results/ours/CartPole-v1__core-3__1.json").touch()  # at the default length
    assert ablation.has_result(folders / "runs/ppo/core-3.py", "CartPole-v1", 1, options(500_000))
    assert not ablation.has_result(folders / "runs/ppo/core-3.py", "CartPole-v1", 1, options(2048))
    (folders / "results/ours/CartPole-v1__core-3__1.json").unlink()
    [(what, rows)] = ablation.effects().items()
    assert what == "CartPole-v1, 1,024 steps" and {row[0].file.stem for row in rows} == {"core-3", "core-4"}
    assert all(len(row[1]) == len(row[2]) == 1 for row in rows)


def test_a_run_that_was_stopped_is_made_again(folders, monkeypatch):
    """It has a checkpoint, too, but not the last."""
    [_, script] = ablation.scripts("without/core-3", "ppo.py")
    which = script, "CartPole-v1", 1, options(1024)
    assert ablation.make_run(*which)
    run = ablation.run_of(*which)
    [last] = run.glob("checkpoint_*.pt")
    last = last.rename(run / "checkpoint_000000000512.pt")
    assert ablation.run_of(*which) is None
    last.rename(run / "checkpoint_000000001024.pt")
    broken = run.with_name("CartPole-v1__core-3__1__a")  # killed before it had written what it is
    broken.mkdir()
    (broken / "run.json").touch()
    assert ablation.run_of(*which) == run


def test_recipes_of_two_scripts_do_not_mix(folders):
    """A result has the recipe's name: those of ppo_shared.py would pass for those of ppo.py."""
    (folders / "results/ours").mkdir(parents=True)
    about = {"env_id": "CartPole-v1", "script": "ppo", "steps_wanted": 1024, "options": {"total_timesteps": 1030}}
    (folders / "results/ours/a.json").write_text(json.dumps(about))
    (folders / "results/ours/b.json").write_text(json.dumps(about | {"script": "core-3"}))

    def run(script, env_id="CartPole-v1", compiled=False, steps=1024):
        what = {"env_id": env_id, "compile": compiled, "steps": steps, "seeds": 0}
        return ablation.make_runs(SimpleNamespace(recipes="without/", script=script, **what))

    for steps in (1024, 1100):  # both are two updates
        with pytest.raises(SystemExit, match="^error: the results have runs of so many steps with ppo.py: choose"):
            run("ppo_shared.py", steps=steps)
    assert run("ppo.py") == run("ppo_shared.py", "Acrobot-v1") == run("ppo_shared.py", compiled=True) == 0
    assert run("ppo_shared.py", steps=2048) == 0


def test_scripts_that_have_changed_since_are_named(folders, capsys):
    [script, _] = ablation.scripts("without/core-3", "ppo.py")
    assert capsys.readouterr().out == ""
    script.write_text("before\n")
    assert ablation.scripts("without/core-3", "ppo.py")[0].read_text() == "before\n"
    assert capsys.readouterr().out.endswith(" which is what is trained: ppo.py\n")


def test_a_recipe_of_another_script_is_taken_where_it_fits(folders):
    """core 3 is the same lines in ppo_continuous_action.py; core 4 has others around it."""
    chosen = ablation.scripts("without/", "ppo_continuous_action.py")
    assert [script.stem for script in chosen] == ["ppo_continuous_action", "core-3"]
    assert "class Normalize" in chosen[1].read_text() and "1e-5 / math.sqrt" not in chosen[1].read_text()


def test_runs_with_compile_are_another_table(folders):
    """Each run stands beside those of its parent with the same environment, options and steps."""
    (folders / "results/ours").mkdir(parents=True)
    for name, compiled, score in (
        ("ppo", 0, 1),
        ("core-3", 0, 2),
        ("ppo", 1, 10),
        ("core-3", 1, 30),
        ("core-3", 1, 40),
    ):
        seed, option = score, {"compile": True} if compiled else {}
        about = {"script": name, "env_id": "CartPole-v1", "seed": seed, "options": option, "steps_wanted": 1024}
        path = folders / f"results/ours/{name}__{seed}.json"
        path.write_text(json.dumps(about))
        for kind, column in (("episodes", f"return\n512,1.0,{score}"), ("updates", "SPS\n1024,1.0,1")):
            path.with_suffix(f".{kind}.csv.xz").write_bytes(lzma.compress(f"step,seconds,{column}\n".encode()))
    tables = ablation.effects()
    assert {what: [(len(row[1]), len(row[2]), row[3][0]) for row in rows] for what, rows in tables.items()} == {
        "CartPole-v1, 1,024 steps": [(1, 1, 1.0)],
        "CartPole-v1 --compile, 1,024 steps": [(1, 2, 25.0)],
    }


def test_an_effect_is_the_recipe_less_the_parent_by_welch():
    with_it, without = [10.0, 12.0, 14.0, 11.0], [20.0, 30.0, 25.0]
    mean, low, high = ablation.effect(with_it, without)
    assert mean == pytest.approx(25 - 11.75)
    a, b = np.var(without, ddof=1) / 3, np.var(with_it, ddof=1) / 4
    freedom = (a + b) ** 2 / (a**2 / 2 + b**2 / 3)
    half = stats.t.ppf(0.975, freedom) * np.sqrt(a + b)
    assert (low, high) == pytest.approx((mean - half, mean + half))
    assert ablation.interval((mean, low, high)) == f"+13.2 [{low:.1f}, {high:.1f}]"
    assert ablation.spread(with_it) == "11.8 ± 1.7"


@pytest.mark.filterwarnings("error")
def test_a_single_run_has_no_interval():
    assert ablation.interval(ablation.effect([10.0], [12.0])) == "+2.0 (no interval)"
    assert ablation.spread([10.0]) == "10.0"


def test_the_mean_of_a_curve():
    """After each update the mean of the last 100 episodes up to it; an update before the first end says nothing."""
    episodes = {"step": np.arange(10, 2010, 10), "return": np.arange(200.0)}
    run = SimpleNamespace(episodes=episodes, updates={"step": np.array([5, 20, 1000, 2000])})
    assert ablation.area(run) == pytest.approx(np.mean([0.5, np.arange(0, 100).mean(), np.arange(100, 200).mean()]))


def test_the_newest_effects_are_written():
    """The README's tables, the recipes' headers and the picture are those of the results."""
    text = (ROOT / "benchmark/ablation/README.md").read_text()
    found = ablation.studies()
    for what, rows in ablation.effects().items():
        assert f"### {what}\n" in text and len(rows) > 4
        assert [row[3][0] for row in rows] == sorted(row[3][0] for row in rows)
        for recipe, _, runs, final, whole in rows:
            shown = f"| {len(runs)} | {ablation.interval(final)} | {ablation.interval(whole)} | "
            [row] = [line for line in text.splitlines() if f"[{recipe.name}](" in line and shown in line]
            assert row.endswith(f"| {found[recipe.name]} |") and len(re.split(r"(?<!\\)\|", row)) == 8
            seeds = f"{len(runs)} seed{'s' if len(runs) > 1 else ''}"
            assert f"{what}, {seeds}: final return {ablation.interval(final)}" in recipe.header["measured effect"]


def test_what_studies_found():
    found = ablation.studies()
    assert found["without/core-4"] == "E: helps; A: helps a little, in 4 of 5 tasks"
    assert found["without/core-6"] == found["without/core-6-in-order"] == "nothing"
    assert "skrl" in found["with/kl-learning-rate"] and set(found) == {recipe.name for recipe in RECIPES.values()}


def test_the_picture(tmp_path):
    """One row of panels for an environment; what has 0 in its interval is gray."""
    nan = float("nan")
    rows = [
        (RECIPES["core-3"], [], [], (-5, -9, -1), (9, nan, nan)),
        (RECIPES["core-4"], [], [], (0, -1, 1), (3, 2, 4)),
    ]
    ablation.draw({"A-v1, 1,000 steps": rows, "B-v1, 2,000 steps": rows}, tmp_path / "effects.svg")
    text = (tmp_path / "effects.svg").read_text()
    assert text.count("without/core-3") == text.count("without/core-4") == 2
    assert "B-v1, 2,000 steps: final return" in text and text.count(">mean of the curve<") == 2
    assert text.count("stroke: #3b7dd8; stroke-width: 1.2") == text.count("stroke: #797979; stroke-width: 1.2") == 4
