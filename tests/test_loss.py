"""Distributions, losses and the gradient step by brute force: 100,000 samples, and float64 formulas."""

import contextlib

import gymnasium as gym
import numpy as np
import pytest
import torch
from in_process import watched
from script_table import LSTM, PROCGEN, SCRIPTS, of_scripts
from toy_envs import spaces

import ppo
import ppo_atari_multigpu
import ppo_continuous_action
import ppo_multidiscrete

DRAWS = 100_000  # the standard deviation of a frequency is at most 0.0016; how noise is drawn is the processor's
FIVE_DEVIATIONS = 0.008


@pytest.mark.parametrize(
    "sample", [ppo.Categorical.sample, lambda policy: ppo_atari_multigpu.Categorical(policy.logits).sample(None, 1, 3)]
)
def test_discrete_actions_have_their_probabilities(sample):
    torch.manual_seed(1)
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0])
    policy = ppo.Categorical(logits.expand(DRAWS, 4))
    actions = sample(policy)
    assert actions.shape == (DRAWS,) and actions.dtype == torch.int64
    frequencies = torch.bincount(actions, minlength=4) / DRAWS
    torch.testing.assert_close(frequencies, logits.softmax(0), rtol=0, atol=FIVE_DEVIATIONS)
    reference = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(policy.log_prob(actions), reference.log_prob(actions))
    torch.testing.assert_close(policy.entropy()[0], reference.entropy())


def test_continuous_actions_have_their_mean_and_deviation():
    torch.manual_seed(1)
    mean, logstd = torch.tensor([0.5, -1.0]), torch.tensor([[-1.0, 0.7]])
    policy = ppo_continuous_action.Normal(mean.expand(DRAWS, 2), logstd)
    actions, std = policy.sample(), logstd.exp()[0]
    assert (abs(actions.mean(0) - mean) < 5 * std / DRAWS**0.5).all()
    torch.testing.assert_close(actions.std(0), std, rtol=5 / (2 * DRAWS) ** 0.5, atol=0)
    assert abs(torch.corrcoef(actions.T)[0, 1]) < 5 / DRAWS**0.5
    reference = torch.distributions.Normal(mean, std)
    torch.testing.assert_close(policy.log_prob(actions), reference.log_prob(actions).sum(-1))
    torch.testing.assert_close(policy.entropy()[0], reference.entropy().sum())


def test_several_choices_have_the_products_of_their_probabilities():
    torch.manual_seed(1)
    first, second = torch.tensor([0.0, 1.0, -1.0]), torch.tensor([0.5, -0.5])
    logits, pairs = torch.cat([first, second]), torch.cartesian_prod(torch.arange(3), torch.arange(2))
    expected = ppo_multidiscrete.MultiDiscrete(logits.expand(6, 5), [3, 2]).log_prob(pairs).exp()
    torch.testing.assert_close(expected.view(3, 2), first.softmax(0)[:, None] * second.softmax(0))
    actions = ppo_multidiscrete.MultiDiscrete(logits.expand(DRAWS, 5), [3, 2]).sample()
    assert actions.shape == (DRAWS, 2) and actions.dtype == torch.int64
    frequencies = torch.bincount(actions[:, 0] * 2 + actions[:, 1], minlength=6) / DRAWS
    torch.testing.assert_close(frequencies, expected, rtol=0, atol=FIVE_DEVIATIONS)


class Policy:
    """A policy whose log probabilities are the actions themselves and whose entropies are 1.5."""

    def log_prob(self, actions):
        return actions

    def entropy(self):
        return torch.full((B,), 1.5)

    def masked(self, masks):
        return self


B = 64
with_ppo_loss = of_scripts([script for script in SCRIPTS if hasattr(script.module, "ppo_loss")])


def loss_of(script, minibatch, values, args):
    """What the script's `ppo_loss` returns for a policy of class Policy and these values."""
    answer = (Policy(), values, None) if script.name == "ppo_atari_lstm" else (Policy(), values)
    return script.module.ppo_loss(lambda *_: answer, minibatch, args)


def random_minibatch():
    """A minibatch with columns for every script; its ratios and values lie inside and outside of the clip range."""
    torch.manual_seed(1)
    columns = ("obs", "actions", "logprobs", "values", "returns", "masks", "state", "dones")
    minibatch = {name: 0.15 * torch.randn(B) for name in columns}
    return minibatch | {"all_advantages": minibatch["returns"] - minibatch["values"]}


@with_ppo_loss
@pytest.mark.parametrize("clip_coef", [0.05, 0.2])
def test_the_loss_follows_its_formulas(script, clip_coef):
    args = script.module.Args(clip_coef=clip_coef, ent_coef=0.03, vf_coef=0.7)
    minibatch, values = random_minibatch(), 0.15 * torch.randn(B)
    loss, stats = loss_of(script, minibatch, values, args)
    logprobs, old, values, old_values, returns = (
        column.double().numpy()
        for column in (minibatch["actions"], minibatch["logprobs"], values, minibatch["values"], minibatch["returns"])
    )
    ratio = np.exp(logprobs - old)
    advantages = (returns - old_values - (returns - old_values).mean()) / (returns - old_values).std()
    surrogate = np.minimum(advantages * ratio, advantages * np.clip(ratio, 1 - clip_coef, 1 + clip_coef))
    clipped = np.clip(values, old_values - clip_coef, old_values + clip_coef)
    value_loss = np.maximum((values - returns) ** 2, (clipped - returns) ** 2).mean() / 2
    outside = abs(ratio - 1) > clip_coef
    assert 0.1 < outside.mean() < 0.9 and 0.1 < (clipped != values).mean() < 0.9
    expected = {
        "policy_loss": -surrogate.mean(), "value_loss": value_loss, "entropy": 1.5, "clipfrac": outside.mean(),
        "old_approx_kl": (old - logprobs).mean(), "approx_kl": (ratio - 1 - np.log(ratio)).mean(),
        "approx_kl_ppo2": ((old - logprobs) ** 2).mean() / 2,
    }  # fmt: skip
    assert {name: number.item() for name, number in stats.items()} == pytest.approx(expected, rel=1e-4)
    assert loss.item() == pytest.approx(-surrogate.mean() - 0.03 * 1.5 + 0.7 * value_loss, rel=1e-4)


@with_ppo_loss
@pytest.mark.parametrize("wrong", [None, "the agent's values", "values", "actions", "returns"])
def test_a_column_of_another_shape_ends_the_loss(script, wrong):
    """[B, 1] in place of [B] would broadcast to [B, B]."""
    minibatch = random_minibatch()
    values = torch.zeros((B, 1) if wrong == "the agent's values" else B)
    if wrong in minibatch:
        minibatch[wrong] = minibatch[wrong][:, None]
    with contextlib.nullcontext() if wrong is None else pytest.raises(AssertionError):
        loss_of(script, minibatch, values, script.module.Args())


@pytest.mark.parametrize("largest", [0.5, 0.001])
def test_the_gradient_is_clipped_to_a_norm_and_the_log_has_the_norm_before(largest):
    torch.manual_seed(1)
    agent = ppo.Agent(spaces(gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)))
    minibatch = random_minibatch() | {"obs": torch.randn(B, 4), "actions": torch.randint(2, (B,))}
    args = ppo.Args(max_grad_norm=largest)

    def norm(gradients):
        return sum(gradient.double().square().sum() for gradient in gradients).sqrt().item()

    loss, _ = ppo.ppo_loss(agent, minibatch, args)
    before = norm(torch.autograd.grad(loss, list(agent.parameters())))
    with watched(ppo, "adam_step", lambda optimizer, gradient, learning_rate: gradient) as given:
        stats = ppo.gradient_step(agent, ppo.Adam(agent), minibatch, args)
    assert 0.01 < before < 100 and stats["grad_norm"].item() == pytest.approx(before, rel=1e-4)
    assert norm(given) == pytest.approx(min(before, largest), rel=1e-4)


@with_ppo_loss
def test_no_tensor_of_an_update_stays_on_the_cpu(script, monkeypatch):
    """On torch's device "meta", which holds no numbers: mixed devices and reading a number are errors."""
    if script is LSTM:
        pytest.skip("its loss reads on the CPU where episodes end, to cut the sequences there")
    obs = gym.spaces.Box(0, 255, script.images, np.uint8) if script.images else gym.spaces.Box(-1, 1, (4,))
    obs = gym.spaces.Box(0, 255, (3, 64, 64), np.uint8) if script is PROCGEN else obs
    actions = gym.spaces.Box(-1, 1, (2,)) if script.box else gym.spaces.Discrete(3)
    actions = gym.spaces.MultiDiscrete([3, 2]) if script.several else actions
    agent = script.module.Agent(spaces(obs, actions)).to("meta")
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # which "meta" does not have
    with torch.device("meta"):
        minibatch = random_minibatch() | {"masks": torch.ones(B, 5, dtype=torch.bool)}
        minibatch["obs"] = torch.zeros(B, *obs.shape)
    minibatch["actions"] = agent(minibatch["obs"])[0].sample()
    stats = script.module.gradient_step(agent, script.module.Adam(agent), minibatch, script.module.Args())
    assert {scalar.device.type for scalar in stats.values()} == {"meta"}
