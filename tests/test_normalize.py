"""Normalize of ppo_continuous_action.py and of ppo_procgen.py, which leaves observations alone: ppo2's VecNormalize."""

import gymnasium as gym
import numpy as np
import pytest
from golden_data import load

import ppo_continuous_action as script
import ppo_procgen

IDLE = np.zeros((3, 2), np.float32)  # actions


class Recorded(gym.vector.VectorEnv):
    """Replays the environments under ppo2's VecNormalize, and records its actions.

    Its episodes end as `kind` says, "terminated" or "truncated", which ppo2 does not tell apart."""

    num_envs = 3
    single_observation_space = gym.spaces.Box(-np.inf, np.inf, (5,), np.float32)
    single_action_space = gym.spaces.Box(-1.0, 2.0, (2,), np.float32)

    def __init__(self, data, kind="terminated"):
        self.data, self.kind, self.step_count, self.actions = data, kind, 0, []
        self.resets = iter((data["in_obs"][0], data["in_second_reset_obs"]))

    def reset(self, **kwargs):
        return next(self.resets).copy(), {}

    def step(self, actions):
        self.actions.append(actions)
        t, self.step_count = self.step_count, self.step_count + 1
        done = self.data["in_dones"][t]
        final_obs = np.array([np.full(5, 7.0) if d else None for d in done], dtype=object)
        infos = {"final_obs": final_obs} if done.any() else {}
        rewards, never = self.data["in_rews"][t].copy(), np.zeros(3, bool)
        ends = (done, never) if self.kind == "terminated" else (never, done)
        return self.data["in_obs"][t + 1].copy(), rewards, *ends, infos


@pytest.fixture
def data():
    return load("d_vecnormalize")


@pytest.fixture(params=["terminated", "truncated"])
def kind(request):
    return request.param


@pytest.fixture
def envs(data, kind):
    return script.Normalize(Recorded(data, kind), 0.99)


def assert_statistics(stats, data, name, t):
    for ours, theirs in ((stats.mean, "mean"), (stats.var, "var"), (stats.count, "count")):
        np.testing.assert_allclose(ours, data[f"full/{name}_{theirs}"][t], rtol=1e-9, err_msg=f"{name}_{theirs} {t}")


def test_equals_vecnormalize(envs, data):
    """Observations, rewards, statistics and running returns over 200 steps of 3 environments, and a second reset."""
    assert script.make_envs(script.Args(env_id="Pendulum-v1", gamma=0.9), None).gamma == 0.9
    np.testing.assert_allclose(envs.reset()[0], data["full/reset_obs"], rtol=0, atol=2e-6)
    for t in range(200):
        assert_statistics(envs.obs_stats, data, "ob", t)
        assert_statistics(envs.return_stats, data, "ret", t)
        np.testing.assert_allclose(envs.returns, data["full/ret_after"][t], rtol=1e-9)
        obs, rewards, *_ = envs.step(IDLE)
        assert obs.dtype == np.float32
        np.testing.assert_allclose(obs, data["full/obs"][t], rtol=0, atol=2e-6)
        np.testing.assert_allclose(rewards, data["full/rews"][t], rtol=0, atol=2e-6)
    np.testing.assert_allclose(envs.reset()[0], data["full/second_reset_obs"], rtol=0, atol=2e-6)
    np.testing.assert_allclose(envs.returns, data["full/second_reset_ret"], rtol=0, atol=0)
    np.testing.assert_allclose(envs.obs_stats.var, data["full/second_reset_ob_var"], rtol=1e-9)


def test_equals_vecnormalize_of_rewards_alone(data, kind):
    """The same for ppo_procgen.py; the observations are the environments'."""
    envs = ppo_procgen.Normalize(Recorded(data, kind), 0.99)
    np.testing.assert_array_equal(envs.reset()[0], data["in_obs"][0])
    for t in range(200):
        for name, value in envs.state_dict().items():
            np.testing.assert_allclose(value, data[f"procgen/ret_{name}"][t], rtol=1e-9, err_msg=f"{name} {t}")
        np.testing.assert_allclose(envs.returns, data["procgen/ret_after"][t], rtol=1e-9)
        obs, rewards, *_ = envs.step(IDLE)
        np.testing.assert_array_equal(obs, data["in_obs"][t + 1])
        np.testing.assert_allclose(rewards, data["procgen/rews"][t], rtol=0, atol=2e-6)
    np.testing.assert_array_equal(envs.reset()[0], data["in_second_reset_obs"])
    np.testing.assert_array_equal(envs.returns, data["procgen/second_reset_ret"])


def test_final_observations_are_scaled_and_do_not_count(envs, data):
    """They serve --bootstrap-truncated alone."""
    envs.reset()
    for _ in range(int(data["in_dones"].any(axis=1).argmax()) + 1):
        *_, terminated, truncated, infos = envs.step(IDLE)
    ended = terminated | truncated
    assert ended.any()
    for i in np.flatnonzero(ended):
        expected = (7.0 - envs.obs_stats.mean) / np.sqrt(envs.obs_stats.var + 1e-8)
        assert infos["final_obs"][i].dtype == np.float32
        np.testing.assert_allclose(infos["final_obs"][i], expected.clip(-10, 10), rtol=1e-6)


def test_actions_are_clipped_for_the_environment_alone(envs):
    envs.reset()
    actions = np.array([[-5.0, 5.0], [0.5, -0.5], [2.0, -1.0]], np.float32)
    kept = actions.copy()
    envs.step(actions)
    np.testing.assert_array_equal(envs.env.actions[0], [[-1.0, 2.0], [0.5, -0.5], [2.0, -1.0]])
    np.testing.assert_array_equal(actions, kept)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["in_obs", "in_rews"])
def test_what_is_not_finite_reaches_the_loss(data, where, value):
    """As NaN, which ends the run there; a number such as 0 would be trained on."""
    data[where] = data[where].astype(np.float64)
    data[where][5 if where == "in_obs" else 4][1] = value
    envs = script.Normalize(Recorded(data), 0.99)
    envs.reset()
    for _ in range(4):
        envs.step(IDLE)
    with np.errstate(all="ignore"):
        obs, rewards, *_ = envs.step(IDLE)
    assert np.isnan(obs if where == "in_obs" else rewards).any()
