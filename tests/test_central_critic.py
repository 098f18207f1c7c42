"""The recipe central-critic: values of the whole game, and policies of what a player sees."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from in_process import train, watched
from test_export import written
from toy_envs import Crowd

import enjoy

SMALL = "--num-envs 6 --num-steps 40 --total-timesteps 480 --num-minibatches 4 --no-cuda"


class Overseen(Crowd):
    """Crowd with a state: the index of the game, the episode and its step, and -1."""

    state_space = gym.spaces.Box(-1, 100, (4,), np.int64)

    def state(self):
        return np.array([self.index, self.episode, self.steps, -1])


class Pictured(Crowd):
    """Crowd whose state is an image."""

    state_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)


@pytest.fixture
def made(with_recipe):
    return with_recipe("with/pettingzoo", second="with/central-critic")


@pytest.mark.parametrize("game, size", [("Overseen", 4), ("Pictured", 12), ("toy_envs:Crowd", 12)])
def test_values_depend_on_the_whole_game(game, size, made, tmp_path, monkeypatch):
    """In each row of a rollout, also of final observations: it is the game of the row, in the same step."""
    monkeypatch.setattr(Crowd, "made", [])
    env_id = game if ":" in game else f"{__name__}:{game}"
    seen = []

    def look(trunk, obs):
        seen.append(obs)

    with watched(made.module.PolicyTrunk, "forward", look):
        options = f"{SMALL} --env-id {env_id} --bootstrap-truncated"
        run = train(made, options, tmp_path)
    rows = torch.cat(seen).numpy().astype(int)
    rows = rows[rows[:, :4].any(axis=1)]  # without those of agents that are not in the game
    assert rows.shape[1] == 4 + size and len(rows) > 1000
    if size == 4:
        np.testing.assert_array_equal(rows[:, 4:7], rows[:, :3])
        assert (rows[:, 7] == -1).all()
    else:
        for own, others in zip(rows[:, :4], rows[:, 4:].reshape(-1, 3, 4), strict=True):
            np.testing.assert_array_equal(others[own[3]], own)
            absent = ~others.any(axis=1)
            assert (others[~absent, :3] == own[:3]).all() and (others[~absent, 3] == np.arange(3)[~absent]).all()
    assert len(enjoy.enjoy(enjoy.Args(run, episodes=1), ["--env-id", env_id])) == 1
    assert written(run, tmp_path, ["--env-id", env_id]).get_inputs()[0].shape == ["batch", 4]


def test_the_policy_sees_its_player_alone(with_recipe):
    """In a game of two players, too."""
    made = with_recipe("with/central-critic")
    envs = made.module.make_envs(made.module.Args(env_id="Signs-v0", num_envs=4))
    obs, _ = envs.reset(seed=1)
    assert obs.shape == (4, 4 + 8)
    np.testing.assert_array_equal(obs[::2, 4:], obs[1::2, 4:])
    np.testing.assert_array_equal(obs[::2, 4:8], obs[::2, :4])
    np.testing.assert_array_equal(obs[1::2, 8:], obs[1::2, :4])
    torch.manual_seed(1)
    agent = made.module.Agent(envs)
    obs = torch.randn(6, 12)
    other = obs.clone()
    other[:, 4:] += 1
    (policy, values), (other_policy, other_values) = agent(obs), agent(other)
    assert torch.equal(policy.logits, other_policy.logits) and (values != other_values).all()
