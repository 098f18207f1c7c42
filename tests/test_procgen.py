"""ppo_procgen.py on EnvPool's Procgen, where the system has Qt 5, and on games that behave as its do, everywhere."""

import envpool
import gymnasium as gym
import numpy as np
import pytest
import torch
from in_process import loaded_parts, train
from rounding import ROUNDING
from run_files import checkpoint
from script_table import PROCGEN, with_qt
from toy_envs import Asked, spaces

import ppo_procgen as script

N = 8


class Games:
    """Behaves as EnvPool's Procgen: the step after the end of a game ignores its action and opens the next game.

    An observation shows (game, step in it, environment), one in each channel. Every third end is a truncation.
    """

    observation_space, action_space = gym.spaces.Box(0, 255, (3, 64, 64), np.uint8), gym.spaces.Discrete(15)
    made = []

    def __init__(self, game, num_envs, seed, num_levels, start_level):
        self.made.append(self)
        self.asked = {"game": game, "num_envs": num_envs, "seed": seed}
        self.asked |= {"num_levels": num_levels, "start_level": start_level}
        self.random = np.random.default_rng(seed)
        self.game = np.zeros(num_envs, dtype=int)
        self.steps = np.zeros(num_envs, dtype=int)
        self.over = np.zeros(num_envs, dtype=bool)

    def show(self, i):
        numbers = np.array([self.game[i], self.steps[i], i], np.uint8)
        return np.broadcast_to(numbers[:, None, None], (3, 64, 64))

    def answer(self, ids, rewards, terminated, truncated):
        obs = np.stack([self.show(i) for i in ids])
        info = {"elapsed_step": self.steps[ids].astype(np.int32)}
        return obs, np.float32(rewards), np.array(terminated), np.array(truncated), info

    def reset(self):
        obs, _, _, _, info = self.answer(np.arange(len(self.game)), 0, False, False)
        return obs, info

    def step(self, actions, ids=None):
        if ids is None:
            ids = np.arange(len(self.game))
        answers = []
        for i in ids:
            if self.over[i]:
                self.game[i], self.steps[i], self.over[i] = self.game[i] + 1, 0, False
                answers.append((0.0, False, False))
                continue
            self.steps[i] += 1
            self.over[i] = self.steps[i] == 1 + (5 * i + 3 * self.game[i]) % 9
            cut = self.over[i] and (self.game[i] + i) % 3 == 2
            answers.append((self.random.normal(), bool(self.over[i] and not cut), bool(cut)))
        return self.answer(np.asarray(ids), *zip(*answers, strict=True))


@pytest.fixture
def games(monkeypatch):
    """The list of the pools that the script makes, which are of class Games."""
    monkeypatch.setattr(Games, "made", [])
    monkeypatch.setattr(envpool, "make_gymnasium", Games)
    return Games.made


def check_stream(game, least, cuts):
    """5,000 random steps: ended games restart at once, no other action is ignored, a score is the sum of rewards."""
    envs = script.EnvPool(game, script.Args(num_envs=N))
    assert envs.single_action_space.n == 15 and envs.single_observation_space.shape == (3, 64, 64)
    obs, _ = envs.reset(seed=3)
    assert obs.dtype == np.uint8 and obs.shape == (N, 3, 64, 64)
    envs.pool = asked = Asked(envs.pool, N)
    random, scores, lengths = np.random.default_rng(1), np.zeros(N), np.zeros(N, dtype=int)
    earlier, ends, truncations = [], 0, 0
    for _ in range(5000 // N):
        actions, first = random.integers(15, size=N), len(asked.calls)
        obs, rewards, terminated, truncated, infos = envs.step(actions)
        done = terminated | truncated
        _, sent, frames, paid, ended, cut, info = asked.calls[first]
        np.testing.assert_array_equal(sent, actions)
        for ours, theirs in ((rewards, paid), (terminated, ended), (truncated, cut), (obs[~done], frames[~done])):
            np.testing.assert_array_equal(ours, theirs)
        scores, lengths = scores + paid, lengths + 1
        np.testing.assert_array_equal(info["elapsed_step"], lengths)  # so each action has been a step of its game
        assert len(asked.calls) - first == 1 + done.any() and ("final_info" in infos) == done.any()
        if done.any():
            ids, _, opening, paid, ended, cut, later = asked.calls[first + 1]
            np.testing.assert_array_equal(ids, np.flatnonzero(done))
            assert not paid.any() and not ended.any() and not cut.any() and not later["elapsed_step"].any()
            np.testing.assert_array_equal(obs[done], opening)
            np.testing.assert_array_equal(infos["final_obs"][done], frames[done])
            assert (obs[done] != frames[done]).any(axis=(1, 2, 3)).all()
            statistics = infos["final_info"]
            np.testing.assert_array_equal(statistics["_episode"], done)
            np.testing.assert_allclose(statistics["episode"]["r"][done], scores[done], rtol=1e-12)
            np.testing.assert_array_equal(statistics["episode"]["l"][done], lengths[done])
            scores[done], lengths[done] = 0, 0
            ends, truncations = ends + done.sum(), truncations + truncated.sum()
        earlier.append((obs, obs.copy()))  # the learner keeps what it is given: nothing may be written into it later
    assert all(np.array_equal(*pair) for pair in earlier)
    assert ends >= least and (truncations > 0) == cuts


def test_the_stream_that_the_learner_sees(games):
    check_stream("StarpilotEasy-v0", least=500, cuts=True)


@with_qt
@pytest.mark.parametrize("game, least, cuts", [("StarpilotEasy-v0", 30, False), ("MazeHard-v0", N, True)])
def test_the_stream_of_procgen(game, least, cuts):
    """A starpilot that is hit has ended, a maze without a way out by chance is cut after 500 steps."""
    check_stream(game, least, cuts)


SMALL = "--num-envs 6 --num-steps 8 --num-minibatches 1 --update-epochs 1"


def test_a_run_goes_on_where_it_was_stopped(games, tmp_path):
    """A resume has the scale of the rewards, and plays other levels."""
    run = train(PROCGEN, f"{SMALL} --total-timesteps 96", tmp_path)
    scale = checkpoint(run)["parts"]["envs"]
    assert scale["count"] == pytest.approx(96 + 1e-4) and scale["var"] > 0
    with loaded_parts(PROCGEN) as loaded:
        assert train(PROCGEN, f"--resume {run} --total-timesteps 192", tmp_path) == run
    assert loaded["envs"] == scale
    assert checkpoint(run)["parts"]["envs"]["count"] == pytest.approx(192 + 1e-4)
    assert [pool.asked["seed"] for pool in games] == [1, 1, 1 + 96, 1 + 96]


def test_what_envpool_is_asked_for(games):
    """A seed is less than 2**31."""
    game = {"env_id": "heist", "distribution_mode": "memory", "num_levels": 7, "start_level": 100}
    envs = script.make_envs(script.Args(**game, num_envs=3, reward_gamma=0.5), None)
    envs.reset(seed=2**31 + 5)
    assert envs.gamma == 0.5
    asked = {"game": "HeistMemory-v0", "num_envs": 3, "seed": 5, "num_levels": 7, "start_level": 100}
    assert games[-1].asked == asked


@with_qt
def test_levels():
    """--num-levels from --start-level on, in an order by --seed; the first levels are those of procgen 0.10.7."""

    def levels(options, seed=1):
        envs = script.make_envs(script.Args(num_envs=4, **options), None)
        envs.reset(seed=seed)
        pool, seen = envs.env.pool, []
        for _ in range(150):
            seen.append(pool.step(np.full(4, 4))[4]["level_seed"].tolist())
        return seen

    drawn = levels({"num_levels": 5, "start_level": 100})
    assert set(sum(drawn, [])) == {100, 101, 102, 103, 104}
    assert drawn == levels({"num_levels": 5, "start_level": 100}) != levels({"num_levels": 5, "start_level": 100}, 2)
    everything = levels({})
    assert len(set(sum(everything, []))) > 10
    assert everything[0] == [1028862084, 1350755646, 171461426, 1650001247]  # rand_seed=1, num=4 there


@torch.no_grad()
def test_rows_do_not_meet_in_the_network():
    """On a CPU they are computed in parts, the last of which may be smaller."""
    torch.manual_seed(1)
    agent = script.Agent(spaces(Games.observation_space, Games.action_space))
    torch.nn.init.normal_(agent.policy.weight)
    obs = torch.randint(0, 256, (150, 3, 64, 64), dtype=torch.uint8)
    policy, values = agent(obs)
    assert policy.logits.shape == (150, 15) and values.shape == (150,) and values.std() > 0.01
    for row in (0, 63, 64, 127, 128, 149):
        one, value = agent(obs[row : row + 1])
        torch.testing.assert_close(policy.logits[row : row + 1], one.logits, rtol=ROUNDING, atol=ROUNDING)
        torch.testing.assert_close(values[row : row + 1], value, rtol=ROUNDING, atol=ROUNDING)
