"""The tables of objectives beside the clip."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmark.ablation import losses


def runs_of(scores):
    """Runs with these scores, the last seed first."""
    runs = [SimpleNamespace(about={"seed": seed}, score=float(score)) for seed, score in enumerate(scores, start=1)]
    return runs[::-1]


def key(script, **options):
    return "ours", script, "CartPole-v1", str(options).replace("'", '"'), 50000


@pytest.fixture
def found(monkeypatch):
    """Sets the runs that are found: {a key: scores by seed}."""

    def put(scores):
        runs = {key: runs_of(values) for key, values in scores.items()}
        monkeypatch.setattr(losses, "finished_runs", lambda results: runs)
        monkeypatch.setattr(losses, "SEEDS_TO_CHOOSE", 3)

    return put


def test_the_first_third_of_the_seeds_chooses_the_rate(found):
    """The other seeds alone judge: here they are better at the rate that is not chosen.

    One run that failed does not choose, as it would by the mean."""
    found({key("ppo"): [9, -90, 9, 1, 2, 3, 4, 5, 6], key("ppo", learning_rate=0.001): [8, 8, 8, *[100] * 6]})
    (loss,) = losses.losses(losses.RESULTS, "CartPole-v1")
    assert loss.chosen_rate() == 2.5e-4
    assert loss.judged_scores() == pytest.approx([1, 2, 3, 4, 5, 6])


def test_the_number_of_seeds_is_that_of_all_rates(found):
    found({key("ppo"): range(6), key("ppo", learning_rate=0.001): range(4)})
    (loss,) = losses.losses(losses.RESULTS, "CartPole-v1")
    assert loss.seeds == "4 to 6"


def cells_of(table, recipe):
    """The cells of the rows of a table about a recipe."""
    return [[cell.strip() for cell in line.split("|")[2:-1]] for line in table if f"[{recipe}]" in line]


def test_p_values_are_corrected(found):
    """Of twenty objectives with hardly an effect and one with a large one, the latter is told apart; ano, whose own p
    is below 0.05 in both tests, is not."""
    noise = np.arange(-4.0, 5.0)
    ano = 103.1 + noise
    scores = {key("ppo"): 100 + noise, key("ppo+spo"): 150 + noise, key("ppo+ano"): ano}
    assert 0.01 < losses.compare(ano, scores[key("ppo")]).p < 0.05
    assert 0.01 < losses.stats.mannwhitneyu(ano[3:], 100 + noise[3:]).pvalue < 0.05
    for i in range(19):
        scores[key("ppo+rollback", rollback=1.0 + i)] = 100 + noise
    found(scores)
    table = losses.rows("CartPole-v1")
    at_rates, best = cells_of(table, "spo")
    assert at_rates == ["9", "**+50 [+47, +53]**"] and best[-2:] == ["100%", "0.045"]
    at_rates, best = cells_of(table, "ano")
    assert at_rates == ["9", "+3 [0, +6]"] and float(best[-1]) > 0.05
    assert cells_of(table, "rollback")[-1][-2:] == ["50%", "1.000"]


def test_a_difference_is_of_one_rate(found):
    """spo is worse than the clip at the lower rate and better at the higher one, whose column comes second."""
    noise = np.arange(-4.0, 5.0)
    high = {"learning_rate": 0.001}
    found(
        {
            key("ppo", **high): 300 + noise,
            key("ppo"): 200 + noise,
            key("ppo+spo", **high): 350 + noise,
            key("ppo+spo"): 150 + noise,
        }
    )
    table = losses.rows("CartPole-v1")
    assert table[0] == "| ppo.py | seeds | 0.00025 | 0.001 |"
    assert table[2] == "| the clip | 9 | 200 [198, 202] | 300 [298, 302] |"
    assert cells_of(table, "spo")[0] == ["9", "**-50 [-53, -47]**", "**+50 [+47, +53]**"]


def test_an_objective_is_compared_with_its_own_script(found):
    """Of the runs of two scripts, each has its tables; ppo_seeds.py, which has more seeds, comes first.

    Too few seeds choose no rate."""
    found(
        {
            key("ppo"): [1, 2, 3],
            key("ppo+kl-penalty"): [2, 4],
            key("ppo_seeds+seeds-vector"): [11, 12, 13],
            key("ppo_seeds+spo+seeds-vector"): [11, 12, 14],
        }
    )
    heads = [line for line in losses.rows("CartPole-v1") if ".py | " in line]
    assert [head.split(" | ")[0] for head in heads] == ["| ppo_seeds.py", "| ppo_seeds.py", "| ppo.py"]


def test_options_of_every_run_are_not_named(found):
    """Runs with continuous actions share options; without --learning-rate they have the default of their scripts."""
    shared = {"num_envs": 64, "bootstrap_truncated": 1}
    high = {"learning_rate": 0.001, **shared}
    found(
        {
            key("ppo_seeds+seeds-continuous", **shared): [1, 2, 3],
            key("ppo_seeds+seeds-continuous", **high): [4, 5, 6],
            key("ppo_seeds+spo+seeds-continuous", **shared): [1, 2, 4],
            key("ppo_seeds+spo+seeds-continuous", **high): [4, 5, 7],
            key("ppo_seeds+seeds-continuous", clip_coef=0.1, **shared): [1, 2, 5],
            key("ppo_seeds+seeds-continuous", clip_coef=0.1, **high): [4, 5, 8],
            key("ppo_continuous_action", **shared): [1, 2, 3],
            key("ppo_continuous_action+kl-penalty", **shared): [1, 2, 4],
        }
    )
    table = losses.rows("CartPole-v1")
    assert table[0] == "| ppo_seeds.py | seeds | 0.0003 | 0.001 |"
    assert [line.split(" | ")[0] for line in table[2:5]] == [
        "| the clip",
        "| `--clip-coef 0.1`",
        "| with [spo](../recipes/with/spo.diff)",
    ]
    assert "| ppo_continuous_action.py | seeds | 0.0003 |" in table
