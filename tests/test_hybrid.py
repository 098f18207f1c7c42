"""The recipe hybrid-action: a Dict or Tuple of Discrete and Box actions, as one vector."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from in_process import train
from run_files import scalars

NESTED = gym.spaces.Dict(
    arm=gym.spaces.Tuple([gym.spaces.Box(-2, 3, (2, 2)), gym.spaces.Discrete(3, start=5)]),
    button=gym.spaces.Discrete(2),
    turn=gym.spaces.Box(-1, 1, (1,), np.float64),
)


class Nothing(gym.Env):
    """An environment that has spaces alone."""

    observation_space = gym.spaces.Box(-1, 1, (3,))

    def __init__(self, action_space):
        self.action_space = action_space


@pytest.fixture
def made(with_recipe):
    return with_recipe("with/hybrid-action")


def test_a_vector_becomes_the_action_of_the_space(made):
    env = made.module.HybridActions(Nothing(NESTED))
    assert env.nvec == [3, 2]
    np.testing.assert_array_equal(env.action_space.low, [-np.inf, -np.inf, -2, -2, -2, -2, -1])
    np.testing.assert_array_equal(env.action_space.high, [np.inf, np.inf, 3, 3, 3, 3, 1])
    action = env.action(np.array([2, 1, 0.5, 1.5, -1, -2, 0.25], np.float32))
    assert NESTED.contains(action)
    np.testing.assert_array_equal(action["arm"][0], [[0.5, 1.5], [-1, -2]])
    assert action["arm"][1] == 7 and action["button"] == 1 and action["turn"] == 0.25


@pytest.mark.parametrize("space", [gym.spaces.Discrete(2), gym.spaces.Tuple([gym.spaces.MultiBinary(2), NESTED])])
def test_other_actions_end_the_run(space, made):
    with pytest.raises(SystemExit, match="Discrete and Box actions in a Dict or Tuple, not"):
        made.module.HybridActions(Nothing(space))


def test_log_probabilities_and_entropies_are_sums(made):
    torch.manual_seed(1)
    logits = [torch.randn(6, 3), torch.randn(6, 2)]
    mean, logstd = torch.randn(6, 2), torch.tensor([[0.3, -0.4]])
    policy = made.module.Hybrid(logits, made.module.Normal(mean, logstd))
    choices = [torch.distributions.Categorical(logits=part) for part in logits]
    box = torch.distributions.Independent(torch.distributions.Normal(mean, logstd.exp().expand(6, 2)), 1)
    actions = policy.sample()
    expected = choices[0].log_prob(actions[:, 0]) + choices[1].log_prob(actions[:, 1]) + box.log_prob(actions[:, 2:])
    torch.testing.assert_close(policy.log_prob(actions), expected)
    torch.testing.assert_close(policy.entropy(), choices[0].entropy() + choices[1].entropy() + box.entropy())
    mode = torch.cat([*(part.argmax(-1, keepdim=True) for part in logits), mean], dim=1)
    torch.testing.assert_close(policy.mode(), mode)


def test_choices_are_drawn_as_often_as_they_are_likely(made):
    probabilities = torch.tensor([0.2, 0.5, 0.3])
    box = made.module.Normal(torch.zeros(100_000, 1), torch.zeros(1, 1))
    policy = made.module.Hybrid([probabilities.log().expand(100_000, 3)], box)
    actions = policy.sample(torch.Generator().manual_seed(1))
    shares = actions[:, 0].long().bincount() / len(actions)
    torch.testing.assert_close(shares, probabilities, rtol=0, atol=0.01)  # the deviation of a share is 0.0016
    assert actions[:, 1].std().item() == pytest.approx(1, abs=0.02)


@pytest.mark.slow
def test_both_parts_are_learned(made, tmp_path):
    """An agent that chooses the tool at random earns at most 5.33, whatever place it learns."""
    options = "--num-envs 8 --num-steps 256 --num-minibatches 16 --learning-rate 1e-3 --no-cuda"
    env_id = "--env-id recipes.environments:ToolAndPlace-v0"
    run = train(made, f"{options} {env_id} --total-timesteps 40960", tmp_path)
    returns = [value for _, value in scalars(run)["charts/episodic_return"]]
    assert np.mean(returns[-100:]) > 6
