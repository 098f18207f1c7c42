"""The table of what keeps a return that was reached."""

import numpy as np
import pytest

from benchmark.ablation import collapse
from benchmark.results import Run


def run_of(returns):
    steps = np.arange(1.0, len(returns) + 1)
    return Run({}, {"step": steps, "return": np.array(returns, float)}, {})


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        ([400] * 300, None),
        ([500] * 90, None),  # no mean of 100 episodes yet
        ([0] * 100 + [500] * 200, (195, 475, 500)),
        ([0] * 100 + [500] * 200 + [0] * 50 + [500] * 100, (195, 250, 500)),
        ([0] * 100 + [500] * 100 + [300] * 100, (195, 300, 300)),
    ],
)
def test_a_run_is_followed_from_the_threshold_on(returns, expected):
    assert collapse.after_threshold(run_of(returns)) == expected


def test_a_setting_that_never_reached_it_comes_last(monkeypatch):
    def key(rate):
        return "ours", "ppo", "CartPole-v1", f'{{"learning_rate": {rate}}}', None

    runs = {key(1.0): [run_of([400] * 300)], key(2.0): [run_of([0] * 100 + [500] * 200)]}
    monkeypatch.setattr(collapse, "load_finished", lambda folder: runs)
    *_, reached, never = collapse.rows()
    assert "1 of 1 | 0k | 475" in reached
    assert never == "| `--learning-rate 1.0` | 0 of 1 |  |  |  |"
