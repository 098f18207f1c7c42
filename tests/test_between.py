"""benchmark.between: the details in which two PPOs differ, the scripts of each, and what the scores say of them."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from processes import finish, start
from script_table import ROOT

from benchmark import between, scores
from benchmark.results import Run
from recipes import lists

PPO = (ROOT / "ppo.py").read_text()
CONTINUOUS = (ROOT / "ppo_continuous_action.py").read_text()


def details(a, b, text=PPO):
    return between.details_between(between.changes_of(a, text), between.changes_of(b, text))


def test_a_list_differs_from_the_script_in_each_of_its_changes():
    """But for those that are silent, in the order of the details."""
    names = [detail.name for detail in details("ppo", "as-sb3")]
    assert names == ["core-3-torch", "no-anneal-lr", "bootstrap-truncated", "core-7-sample", "core-9", "core-10-whole"]
    assert [detail.name for detail in details("as-cleanrl", "ppo_continuous_action", CONTINUOUS)] == [
        "core-3-torch", "core-7-sample", "continuous-6-each",
    ]  # fmt: skip


@pytest.mark.parametrize("option", ["--no-anneal-lr", "--anneal-lr", "--anneal_lr=True"])
def test_an_option_of_all_runs_is_no_detail(option):
    """It replaces the default of both sides, so the runs of such a detail would be those of another."""
    names = [change.name for change in between.changes_of("as-sb3", PPO, ["--gamma", "0.9", option])]
    assert "--no-anneal-lr" not in names and "--bootstrap-truncated" in names
    assert "--no-anneal-lr" in [change.name for change in between.changes_of("as-sb3", PPO, ["--gamma", "0.9"])]


def test_changes_of_the_same_row_are_one_detail():
    """And what both sides have is none: core 3 differs in one of its two rows, core 4 in none."""
    first, *others = details("as-sb3", "as-skrl")
    assert [change.name for change in first.of_a] == ["without/core-3-torch"]
    assert [change.name for change in first.of_b] == ["without/core-3"]
    assert len(first.rows) == 2 and first.mark == "core 3"
    assert [detail.mark for detail in others] == ["core 5", "core 7", "core 9"]
    assert all(detail.of_a and detail.of_b for detail in others)


CASES = [(script, script, name) for script in between.SCRIPTS for name in lists.names()]
CASES += [(script, "as-sb3", "as-skrl") for script in between.SCRIPTS]
QUICK = CASES[0], ("ppo", "ppo", "as-rsl_rl")


@pytest.mark.parametrize(
    "script, a, b", [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in CASES]
)
def test_each_detail_can_be_changed_alone(script, a, b):
    """All scripts differ from each other, but for those of two details; all details put into A give B."""
    text = (ROOT / f"{script}.py").read_text()
    of_a, of_b = between.changes_of(a, text), between.changes_of(b, text)
    found = between.details_between(of_a, of_b)
    made = between.variants(a, b, of_a, of_b, found)
    texts = {name: between.text_with(text, changes) for name, changes in made.items()}
    assert len(texts) == 2 + 2 * len(found)
    assert len(set(texts.values())) == (4 if len(found) == 2 else len(texts))
    replaced = {change for detail in found for change in detail.of_a}
    everything = [change for change in of_a if change not in replaced]
    everything += [change for detail in found for change in detail.of_b]
    assert between.text_with(text, everything) == texts[b]


def test_all_seeds_of_cartpole_are_trained_side_by_side():
    of_b = between.changes_of("as-sb3", PPO)
    texts, side_by_side = between.make_texts("ppo", "CartPole-v1", {"ppo": [], "as-sb3": of_b})
    assert side_by_side and "class VectorCartPole" in texts["ppo"]
    assert "anneal_lr: bool = False" in texts["as-sb3"] and "clipped_error" not in texts["as-sb3"]
    of_b = between.changes_of("as-rsl_rl", PPO)  # two norms of the gradient, which that script has no place for
    assert not between.make_texts("ppo", "CartPole-v1", {"ppo": [], "as-rsl_rl": of_b})[1]


rng = np.random.default_rng(1)


def drawn(mean):
    """Scores of ten seeds."""
    return rng.normal(mean, 10, size=10)


def test_a_contrast_of_two_is_welchs():
    one, other = drawn(200), rng.normal(150, 40, size=7)
    expected = scores.compare(one, other)
    found = between.contrast([(1, one), (-1, other)])
    assert tuple(found) == pytest.approx(tuple(expected))


def test_a_contrast_of_four_covers_the_truth():
    """The 95% interval of the mean of two differences holds it in 95% of cases, to four deviations of 1,000 draws."""
    count = 0
    for _ in range(1000):
        found = between.contrast([(0.5, drawn(3)), (-0.5, drawn(1)), (0.5, drawn(7)), (-0.5, drawn(2))])
        count += found.low < 3.5 < found.high
    assert abs(count / 1000 - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 1000)
    assert np.isnan(between.contrast([(1, drawn(1)), (-1, np.array([2.0]))]).p)


def verdict_of(effects, a="ppo", b="as-sb3", base=200):
    """The verdict where each detail adds its effect, {name: effect}."""
    found = details(a, b)
    total = sum(effects.values())
    columns = {a: drawn(base), b: drawn(base + total)}
    for detail in found:
        effect = effects.get(detail.name, 0)
        columns[f"{a}+{detail.name}"] = drawn(base + effect)
        columns[f"{b}-{detail.name}"] = drawn(base + total - effect)
    return between.verdict(a, b, *between.effects_of(a, b, found, columns), base)


def test_the_verdict():
    words = verdict_of({"core-9": 120, "core-10-whole": 40})
    assert words.startswith("as-sb3 is better than ppo by +1")
    assert "Most of it is core 9 (core-9): +1" in words
    assert re.search(r"core 10 \(core-10-whole\) changes the return by \+\d+ \[.*\], \d\d% of it", words)
    assert words.endswith("None of the others is told apart.")
    words = verdict_of({"core-9": 120, "core-10-whole": -60})
    assert "core 10 (core-10-whole) changes the return by -6" in words and "against the difference" in words
    words = verdict_of({"core-9": 60, "core-10-whole": -60})
    assert words.startswith("ppo and as-sb3 cannot be told apart") and words.count("changes the return by") == 2
    words = verdict_of({})
    assert words.endswith("None of the details is told apart.")


def test_the_table_and_the_picture(tmp_path):
    found = details("ppo", "as-cleanrl")
    names = between.variants("ppo", "as-cleanrl", [], between.changes_of("as-cleanrl", PPO), found)
    columns = {name: drawn(200) for name in names}
    lines = between.table("ppo", "as-cleanrl", found, columns, columns)
    assert sum(line.startswith("| core ") for line in lines) == 2 == len(found)
    between.draw("ppo", "as-cleanrl", found, columns, tmp_path / "between.svg")
    assert "core 7: core-7-sample" in (tmp_path / "between.svg").read_text()


def test_a_run_that_another_process_still_makes_has_no_score(tmp_path, monkeypatch):
    table = {"step": np.array([512, 1024]), "return": np.array([1.0, 2.0])}
    half = Run({"steps": 1024, "steps_wanted": 2048}, table, table)
    whole = half._replace(about={"steps": 2048, "steps_wanted": 2048})
    monkeypatch.setattr(between, "read_runs", lambda _: {1: half, 2: whole})
    monkeypatch.setattr(between, "find_runs", lambda _: {"CartPole-v1": {"ppo": [("ppo", {})]}})
    monkeypatch.setattr(between.sweep, "make_ours", lambda *_: SimpleNamespace(run_folder=lambda: "ppo"))
    finals, areas = between.read_scores(tmp_path, {"ppo": "ppo.py"}, [], [1, 2])["ppo"]
    assert list(finals) == list(areas) == [2]


@pytest.mark.parametrize(
    "words, message",
    [
        ("ppo ppo", "A and B are the same"),
        ("ppo ppo_continuous_action", "have other actions"),
        ("ppo as-sb4", "as-sb4 is none of ppo, ppo_continuous_action, as-cleanrl"),
        ("ppo my_ppo.py", "make compare compares edited scripts"),
    ],
)
def test_what_cannot_be_compared(words, message, capsys):
    with pytest.raises(SystemExit) as end:
        between.main([*words.split(), "--env-id", "CartPole-v1"])
    assert message in str(end.value.code) + capsys.readouterr().err


@pytest.mark.slow
def test_it_runs_and_goes_on(tmp_path):
    """With few steps; a second time it finds all runs done."""
    words = ["-m", "benchmark.between", "ppo", "as-cleanrl", "--env-id", "CartPole-v1", "--seeds", "2"]
    words += ["--total-timesteps", "2048", "--folder", tmp_path, "--num-envs", "2", "--no-cuda"]
    status, output, errors = finish(start(words, ROOT))
    assert status == 0, errors
    assert "4 scripts x 2 seeds: 8 runs, in 4 processes of ppo_seeds.py" in output and "\nabout " in output
    table = (tmp_path / "between.md").read_text()
    assert table in output and "2,048 steps, seeds 1 to 2, --num-envs 2 --no-cuda" in table
    assert len(list(tmp_path.glob("runs/*/run.json"))) == 8
    status, _, errors = finish(start([*words, "--seeds", "1", "--gamma", "0.9"], ROOT))  # other runs, the same folder
    assert status == 0, errors
    assert len(list(tmp_path.glob("runs/*/run.json"))) == 12
    assert "seeds 1 to 1, --num-envs 2 --no-cuda --gamma 0.9" in (tmp_path / "between.md").read_text()
    status, again, _ = finish(start(words, ROOT))
    assert status == 0 and "started:" not in again and table in again
