"""Tasks for settings that should hold where nobody tuned them, and the table of their scores."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from benchmark.tables import read_rows
from benchmark.untuned import ours, scores
from benchmark.untuned.scores import add


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setattr(scores, "TABLE", tmp_path / "untuned" / "scores.csv")


def row(**values):
    default = dict(task="Arm-v0", who="ours", gamma=0.9, learning_rate=1e-3, seed=101, steps=1000)
    return default | dict(score=-1, training=-1, cpu_seconds=2, versions="", commit="") | values


@pytest.mark.parametrize("task", ["ScaledArm-v0", "ScaledPusher-v5", "CartAndWrist-v0"])
def test_actions_have_one_scale(task):
    space = gym.make(task).action_space
    assert (space.low == -1).all() and (space.high == 1).all()


def test_discrete_actions_are_all_choices():
    env = gym.make("DiscreteCartAndWrist-v0")
    choices = [tuple(env.get_wrapper_attr("func")(action)) for action in range(env.action_space.n)]
    assert len(set(choices)) == 9 and set(np.ravel(choices)) == {-1, 0, 1}


@pytest.mark.filterwarnings("ignore:.*Box observation space")
def test_the_cart_is_an_environment():
    check_env(gym.make("CartAndWrist-v0").unwrapped, skip_render_check=True)


@pytest.mark.parametrize("axis", [0, 1])
def test_each_motor_moves_its_own_part(axis):
    env = gym.make("CartAndWrist-v0").unwrapped
    env.reset(seed=1)
    before = list(env.places)
    env.step(np.eye(2, dtype=np.float32)[axis])
    moved = [place != old for place, old in zip(env.places, before, strict=True)]
    assert moved == [axis == 0, axis == 1]


def test_options_are_chosen_by_old_seeds(table):
    add(row(seed=1, gamma=0.9, training=-3))
    add(row(seed=1, gamma=0.99, training=-2))
    add(row(seed=101, gamma=0.9, training=-1))
    add(row(seed=1, gamma=0.99, learning_rate=3e-3, training=-4))
    assert ours.best_options("Arm-v0") == (0.99, 1e-3)


def test_the_tables_have_new_seeds(table):
    add(row(seed=1, score=-50))
    add(row(seed=102, score=-20))
    add(row(seed=101, score=-10))
    add(row(seed=101, score=-5, steps=4000))
    peer = dict(who="Stable-Baselines3, defaults", gamma="")
    add(row(**peer, seed=1, steps=500, score=-99))
    add(row(**peer, seed=1, steps=1000, score=-30))
    add(row(who="Stable-Baselines3, zoo", gamma="", seed=1, steps=1000, score=-31))
    rows = read_rows(scores.TABLE)
    [line] = [*scores.equal_steps(rows)][2:]
    assert line == "| Arm-v0 | 1,000 | 0.9, 0.001 |  | -15 (-20 -10) | -30 | -31 |"
    times = [dict(task="Arm-v0", who="ours", steps="100", cpu_seconds=text) for text in ("2", "2.2", "9")]
    times.append(dict(task="Arm-v0", who="Stable-Baselines3, defaults", steps="200", cpu_seconds="11"))
    times.append(dict(task="Arm-v0", who="Stable-Baselines3, zoo", steps="200", cpu_seconds="22"))
    [line] = [*scores.equal_time(rows, times)][2:]
    assert line == "| Arm-v0 | 1,000 | 2.5, 5.0 | 4,000 | -5 | -30 |"
