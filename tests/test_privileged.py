"""The recipe privileged-critic: what only the value network sees reaches it, and never the policy."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from in_process import patched, train
from toy_envs import Counting

KINDS = ["Dict", "info", "attribute"]
ENDS = [(3, "truncated"), (5, "terminated"), (1, "both")]


class Secrets(Counting):
    """Counting with a secret, ten times what is shown and two more: in the observation, the infos or an attribute."""

    def __init__(self, kind, index):
        super().__init__(None, index, ENDS[index:] + ENDS[:index])
        self.kind = kind
        self.shown = self.observation_space
        if kind == "Dict":
            secret = gym.spaces.Box(-np.inf, np.inf, (2, 3), np.float64)
            self.observation_space = gym.spaces.Dict(asecret=secret, shown=self.shown)

    def show(self, *numbers):
        return np.array(numbers, np.float32)

    def add_secret(self, obs):
        secret = np.append(10.0 * obs, [1.0, 2.0]).reshape(2, 3)
        info = {"asecret": secret} if self.kind == "info" else {}
        if self.kind == "attribute":
            self.asecret = secret
        return ({"asecret": secret, "shown": obs} if self.kind == "Dict" else obs), info

    def reset(self, seed=None, options=None):
        return self.add_secret(super().reset(seed=seed)[0])

    def step(self, action):
        obs, reward, terminated, truncated, _ = super().step(action)
        obs, info = self.add_secret(obs)
        return obs, reward, terminated, truncated, info


@pytest.fixture
def made(with_recipe):
    return with_recipe("with/privileged-critic")


def secret_envs(made, kind):
    """In place of the script's make_env: environments with a secret."""

    def make_env(args, index, folder):
        return made.module.Episodes(made.module.Privileged(Secrets(kind, index), args.privileged, args.policy_sees_all))

    return make_env


@pytest.mark.parametrize("kind", KINDS)
def test_the_value_network_sees_the_secret_of_its_observation(kind, made, tmp_path):
    """In every row of the rollout, also of final observations; the policy sees what is shown."""
    module = made.module
    seen = {"policy": [], "value": []}

    class Watched(module.Agent):
        def __init__(self, envs):
            super().__init__(envs)
            self.policy_trunk[0].register_forward_pre_hook(lambda _, inputs: seen["policy"].append(*inputs))
            self.value_trunk.register_forward_pre_hook(lambda _, inputs: seen["value"].append(*inputs))

    patches = (module, "make_env", secret_envs(made, kind)), (module, "Agent", Watched)
    options = "--privileged asecret --num-envs 3 --num-steps 8 --total-timesteps 48 --bootstrap-truncated --no-cuda"
    with patched(*patches):
        train(made, options, tmp_path)
    for inputs in seen["policy"]:
        assert inputs.shape[1] == 4 and (inputs[:, 3] == 7).all()
    cuts = 0
    for inputs in seen["value"]:
        assert torch.equal(inputs[:, 4:8], 10 * inputs[:, :4])
        assert torch.equal(inputs[:, 8:], torch.tensor([[1.0, 2.0]]).expand(len(inputs), 2))
        cuts += len(inputs) < 3
    assert cuts > 0  # values of final observations


def test_the_secret_changes_the_value_alone(made):
    module = made.module
    with patched((module, "make_env", secret_envs(made, "info"))):
        envs = module.make_envs(module.Args(privileged="asecret"))
    torch.manual_seed(1)
    agent = module.Agent(envs)
    obs = torch.randn(6, 10)
    other = obs.clone()
    other[:, 4:] += 1
    (policy, values), (other_policy, other_values) = agent(obs), agent(other)
    assert torch.equal(policy.logits, other_policy.logits)
    assert torch.equal(agent.get_policy(other).logits, policy.logits)
    assert (values != other_values).all()


def test_an_environment_without_the_secret(made, tmp_path):
    with pytest.raises(AttributeError, match="privileged_state"):
        train(made, "--env-id CartPole-v1", tmp_path)
