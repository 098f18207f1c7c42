"""Recipes that put an idea in: each trains, resumes and plays, and its formula is that of its source."""

import copy
import functools
import math
from types import SimpleNamespace
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from in_process import patched, train, watched
from rounding import ROUNDING, InFloat64
from run_files import checkpoint, same_weights, scalars
from script_table import PPO
from toy_envs import spaces

SMALL = "--no-cuda --num-envs 2 --num-steps 32 --save-every 1"
HIDDEN = f"{SMALL} --env-id recipes.environments:"
VECTOR = gym.spaces.Box(-1, 1, (4,))


@pytest.fixture(autouse=True)
def seeded():
    """Random numbers that do not depend on the tests before."""
    torch.manual_seed(1)


@pytest.fixture
def made(with_recipe):
    """A function from the name of a recipe in recipes/with to the script that it makes."""
    return lambda name, script=None: with_recipe(f"with/{name}", script)


# objectives


def loss_of(module, ratios, returns, new_logits=None, values=None, third=None, **columns):
    """What ppo_loss returns for steps with these ratios and returns; `values` are those of the network now, and
    `third` is its third output. The entropy is 1."""
    zeros, logprobs = torch.zeros(len(ratios)), torch.tensor(ratios).log()
    values = zeros if values is None else values
    policy = SimpleNamespace(log_prob=lambda actions: logprobs, entropy=lambda: zeros + 1, logits=new_logits)
    minibatch = dict.fromkeys(("obs", "actions", "logprobs", "values"), zeros) | {"returns": torch.tensor(returns)}
    outputs = (policy, values) if third is None else (policy, values, third)
    return module.ppo_loss(lambda obs: outputs, minibatch | columns, module.Args())


def policy_loss(module, ratios, advantages, **columns):
    """The policy's part of ppo_loss for steps with these ratios and advantages, of mean 0 and deviation 1."""
    _, stats = loss_of(module, ratios, advantages, **columns)
    return stats["policy_loss"].item(), stats["clipfrac"].item()


RATIOS = np.array([1.25, 1.5, 0.5, 1.1, 0.9, 1.5, 0.5, 0.85], dtype=np.float32)
ADVANTAGES = np.array([1, 1, 1, 1, -1, -1, -1, -1], dtype=np.float32)


def test_the_higher_bound(made):
    loss, share = policy_loss(made("clip-higher").module, RATIOS, ADVANTAGES)
    assert loss == pytest.approx(-np.mean([1.25, 1.28, 0.5, 1.1, -0.9, -1.5, -0.8, -0.85]), abs=1e-6)
    assert share == 4 / 8  # 1.5, 0.5, 1.5 and 0.5


def test_the_second_clip(made):
    """The bad action's ratio of 10 costs 3, the good one's is clipped."""
    loss, _ = policy_loss(made("dual-clip").module, [10.0, 10.0], [1.0, -1.0])
    assert loss == pytest.approx((-1.2 + 3) / 2)


def test_the_quadratic_penalty(made):
    objective = RATIOS * ADVANTAGES - np.abs(ADVANTAGES) * (RATIOS - 1) ** 2 / (2 * 0.2)
    assert policy_loss(made("spo").module, RATIOS, ADVANTAGES)[0] == pytest.approx(-objective.mean(), abs=1e-6)


def test_the_anchored_neighborhood(made):
    """By its paper's formula; the slope in the ratio is 1 at a ratio of 1, 0 at 1 + clip_coef, and below it there."""
    module = made("ano").module
    scale = 0.2 / math.log(2)

    def smooth(ratio):
        x = (ratio - 1.2) / scale
        return scale * 45 / 16 * (-0.5 * np.log1p(np.exp(-2 * x)) - 2 / (1 + np.exp(-x)))

    above = smooth(RATIOS) - smooth(1.0) + 1
    below = 2 - (smooth(2 - RATIOS) - smooth(1.0) + 1)
    expected = -(ADVANTAGES * np.where(ADVANTAGES > 0, above, below)).mean()
    assert policy_loss(module, RATIOS, ADVANTAGES)[0] == pytest.approx(expected, abs=1e-6)

    def slope(ratio):
        """Of the objective of a step with the advantage 1, beside one with -1 whose ratio stays 1."""
        low, high = (policy_loss(module, [ratio + change, 1.0], [1.0, -1.0])[0] for change in (-1e-2, 1e-2))
        return (low - high) / 2e-2 * 2

    assert slope(1.0) == pytest.approx(1, abs=0.01) and slope(1.2) == pytest.approx(0, abs=0.01)
    assert slope(1.7) < -0.5 and -0.1 < slope(4.0) < 0


def test_the_slope_beyond_the_clip_range(made):
    """Also of a bad action whose ratio is below the range; where a ratio has gone the wrong way, nothing is clipped."""
    loss, share = policy_loss(made("rollback").module, RATIOS, ADVANTAGES)
    good = [1.2 - 0.3 * 0.05, 1.2 - 0.3 * 0.3, 0.5, 1.1]
    bad = [0.9, 1.5, 0.8 + 0.3 * 0.3, 0.85]
    assert loss == pytest.approx(-(sum(good) - sum(bad)) / 8, abs=1e-6)
    assert share == 5 / 8


def test_the_penalty_where_the_policy_has_gone_too_far(made):
    """Two states, whose policies have moved by a KL divergence above and below the limit of 0.03. In the first, the
    one step of four whose objective has risen pays, and is pulled back."""
    old = torch.tensor([[0.5, 0.5], [0.5, 0.5]]).log().repeat_interleave(4, 0)
    new = torch.tensor([[0.7, 0.3], [0.55, 0.45]]).log().repeat_interleave(4, 0).requires_grad_()
    far = -0.5 * math.log(4 * 0.7 * 0.3)
    assert far > 0.03 > -0.5 * math.log(4 * 0.55 * 0.45) > 0
    ratios, advantages = [1.4, 0.6, 1.4, 1.3] * 2, [1.0, 1.0, -1.0, -1.0] * 2
    loss, stats = loss_of(made("truly-ppo").module, ratios, advantages, new_logits=new, logits=old)
    expected = -np.mean(np.multiply(ratios, advantages)) + 1 / 8 * 5 * far
    assert stats["policy_loss"].item() == pytest.approx(expected, abs=1e-6)
    loss.backward()
    assert new.grad.any(dim=1).tolist() == [True] + [False] * 7


def test_the_policy_that_acted_is_kept(made, tmp_path):
    script = made("truly-ppo")
    with watched(script.module, "ppo_loss", lambda agent, minibatch, args: dict(minibatch)) as minibatches:
        train(script, f"{SMALL} --total-timesteps 64", tmp_path)
    for minibatch in minibatches:
        logprobs = minibatch["logits"].gather(1, minibatch["actions"].unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(logprobs, minibatch["logprobs"])


@pytest.mark.parametrize("name", ["truly-ppo-continuous", "kl-penalty-continuous"])
def test_the_divergence_of_continuous_actions(name, made, tmp_path):
    """It is that of torch's distributions; the policy that acted is kept while the parameters change."""
    script = made(name)
    options = f"{SMALL} --env-id Pendulum-v1 --total-timesteps 64 --num-minibatches 2 --learning-rate 0.05"
    with watched(script.module, "ppo_loss", lambda agent, minibatch, args: (agent, dict(minibatch))) as calls:
        train(script, options, tmp_path)
    for _, minibatch in calls:
        old = script.module.Normal(minibatch["mean"], minibatch["logstd"])
        torch.testing.assert_close(old.log_prob(minibatch["actions"]), minibatch["logprobs"])

    agent, minibatch = calls[-1]
    policy, _ = agent(minibatch["obs"])
    normals = [torch.distributions.Normal(each.mean, each.logstd.exp().expand_as(each.mean)) for each in (old, policy)]
    kl = torch.distributions.kl_divergence(*normals).sum(-1)
    ratio = (policy.log_prob(minibatch["actions"]) - minibatch["logprobs"]).exp()
    advantages = minibatch["returns"] - minibatch["values"]
    advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    if name == "truly-ppo-continuous":
        pays = (kl >= 0.03) & (ratio * advantages > advantages)
        assert 0 < pays.sum() < len(pays)
        penalty = 5 * kl * pays
    else:
        agent.kl_coef.fill_(3)
        penalty = 3 * kl
    expected = (penalty - ratio * advantages).mean()
    stats = script.module.ppo_loss(agent, minibatch, script.module.Args())[1]
    torch.testing.assert_close(stats["policy_loss"], expected.detach())


def test_the_ends_of_the_clip_range(made):
    """Each ratio is drawn to the end on the side of its return's distance from the median, not from the value; and
    the policy's loss does not train the value."""
    module = made("bounded-ratio").module
    ratios, returns, medians = [1.3, 1.1, 0.9, 1.1], [3.0, 1.0, 1.0, -2.0], [2.0, 0.0, 2.0, 2.0]
    values = torch.tensor([1.0, 2.0, 0.0, 1.0], requires_grad=True)
    loss, stats = loss_of(module, ratios, returns, values=values, third=torch.tensor(medians))
    expected = np.mean([2 * (1.3 - 1.2), 1 * (1.2 - 1.1), 1 * (0.9 - 0.8), 3 * (1.1 - 0.8)])
    assert stats["policy_loss"].item() == pytest.approx(expected, abs=1e-6)
    loss.backward()
    gradient, values.grad = values.grad, None
    # That of the plain script is of the loss of the values alone, as its advantages are of the rollout's values.
    loss_of(PPO.module, ratios, returns, values=values)[0].backward()
    torch.testing.assert_close(gradient, values.grad)


def test_the_loss_of_the_median(made):
    """It is least at the median of returns, whose mean is far from it, and nearly half of the mean distance."""
    returns, losses = [0.0, 30.0, 500.0], {}
    for median in 0.0, 30.0, np.mean(returns), 500.0:
        medians = torch.full((3,), median)
        loss, stats = loss_of(made("bounded-ratio").module, [1.0] * 3, returns, third=medians)
        losses[median] = stats["median_loss"].item()
        rest = stats["policy_loss"] - 0.01 + 0.5 * stats["value_loss"]
        assert loss.item() == pytest.approx((rest + stats["median_loss"]).item())
    assert min(losses, key=losses.get) == 30.0
    assert losses[30.0] == pytest.approx(0.5 * (15 + math.log(2) + 235) / 3)


def test_the_clip_is_a_penalty_of_each_step(made):
    """Its gradient is that of r A - beta log r, where beta is r A where the clip acts, held constant, and else 0.

    So "KLip-PPO" (arXiv 2606.23932) is the clip by another name."""
    advantages = torch.tensor(ADVANTAGES) * torch.linspace(0.5, 2, len(ADVANTAGES))
    gradients = []
    for objective in (clipped_objective, penalized_objective):
        logratio = torch.tensor(RATIOS).log().requires_grad_()
        objective(logratio, advantages).sum().backward()
        gradients.append(logratio.grad)
    torch.testing.assert_close(*gradients)


def clipped_objective(logratio, advantages):
    ratio = logratio.exp()
    return torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)


def penalized_objective(logratio, advantages):
    ratio = logratio.exp()
    clipped = torch.where(advantages > 0, ratio > 1.2, ratio < 0.8)
    beta = torch.where(clipped, ratio * advantages, 0.0).detach()
    return ratio * advantages - beta * logratio


def test_the_entropy_as_a_reward(made, tmp_path):
    """Each reward of the first rollout is raised by ent_coef times the negative log probability of the action."""
    options = f"{SMALL} --env-id CartPole-v1 --total-timesteps 64 --num-minibatches 1 --update-epochs 1 --ent-coef 0.5"
    rewards = []
    for script in (PPO, made("entropy-reward")):
        with watched(script.module, "gae", lambda *columns: columns[0].copy()) as seen:
            with watched(script.module, "ppo_loss", lambda agent, minibatch, args: minibatch["logprobs"]) as logprobs:
                train(script, options, tmp_path / script.name)
        rewards += seen
    added = np.sort((rewards[1] - rewards[0]).ravel())
    assert added == pytest.approx(np.sort(-0.5 * logprobs[0].numpy()), abs=1e-6) and added.min() > 0.1


def test_the_advantages_of_the_entropy(made, tmp_path):
    """GAE of the negative log probabilities, with its own values, discount and lambda."""
    script = made("entropy-critic")
    options = f"{SMALL} --env-id CartPole-v1 --total-timesteps 64 --num-minibatches 1 --update-epochs 1"
    options += " --entropy-gamma 0.9 --entropy-gae-lambda 0.3"
    with watched(script.module, "gae", lambda *columns: copy.deepcopy(columns)) as calls:
        with watched(script.module, "ppo_loss", lambda agent, minibatch, args: dict(minibatch)) as minibatches:
            train(script, options, tmp_path)
    (minibatch,), (of_rewards, of_entropies) = minibatches, calls
    entropies, values, dones, next_values, *_ = of_entropies
    assert of_rewards[-2:] == (0.99, 0.95) and of_entropies[-2:] == (0.9, 0.3)
    assert (dones == of_rewards[2]).all() and (next_values != of_rewards[3]).any()
    # The minibatch has the steps in another order, which that of the values of the entropy undoes.
    order, order_by_step = np.argsort(minibatch["entropy_values"].numpy()), np.argsort(values.ravel())
    assert -minibatch["logprobs"].numpy()[order] == pytest.approx(entropies.ravel()[order_by_step], abs=1e-6)
    advantages = (minibatch["entropy_returns"] - minibatch["entropy_values"]).numpy()
    expected = script.module.gae(*of_entropies).ravel()
    assert advantages[order] == pytest.approx(expected[order_by_step], abs=1e-5)


def test_the_entropy_at_a_time_limit(made, tmp_path):
    """With --bootstrap-truncated the last step's entropy is raised by its own discount times its own value, here 8."""
    script = made("entropy-critic")
    forward = script.module.Agent.forward

    def forward_with_8(agent, obs):
        policy, values, entropy_values = forward(agent, obs)
        return policy, values, 0 * entropy_values + 8

    options = f"{SMALL} --env-id MountainCar-v0 --num-steps 200 --total-timesteps 400 --num-minibatches 1"
    options += " --update-epochs 1 --bootstrap-truncated --entropy-gamma 0.5"
    with patched((script.module.Agent, "forward", forward_with_8)):
        with watched(script.module, "gae", lambda *columns: copy.deepcopy(columns)) as calls:
            train(script, options, tmp_path)
    _, (entropies, _, dones, *_) = calls
    assert dones[-1].all() and not dones[:-1].any()
    assert entropies[:-1] == pytest.approx(math.log(3), abs=0.1)
    assert entropies[-1] == pytest.approx(math.log(3) + 0.5 * 8, abs=0.1)


def test_the_loss_with_the_advantages_of_the_entropy(made):
    """They count before the normalization, and the second critic has a squared error of its own."""
    module, entropy_values = made("entropy-critic").module, torch.tensor([3.0, 5.0, 4.0])
    columns = {"entropy_returns": torch.tensor([4.0, 404.0, 4.0]), "entropy_values": torch.tensor([2.0, 4.0, 4.0])}
    ratios, advantages = np.array([1.1, 0.9, 1.0]), np.array([1 + 0.01 * 2, -1 + 0.01 * 400, 0.0])
    loss, stats = loss_of(module, ratios.tolist(), [1.0, -1.0, 0.0], third=entropy_values, **columns)
    normalized = (advantages - advantages.mean()) / advantages.std()
    assert stats["policy_loss"].item() == pytest.approx(-(ratios * normalized).mean(), abs=1e-5)
    assert stats["entropy_value_loss"].item() == pytest.approx((1**2 + 399**2) / 6)
    expected = stats["policy_loss"] + 0.5 * stats["value_loss"] + 0.5 * stats["entropy_value_loss"]
    assert loss.item() == pytest.approx(expected.item())


def test_the_drift(made):
    above = (RATIOS - 1) * ADVANTAGES - 2 * np.tanh((RATIOS - 1) * ADVANTAGES / 2)
    below = np.log(RATIOS) * ADVANTAGES - 0.6 * np.tanh(np.log(RATIOS) * ADVANTAGES / 0.6)
    drift = np.where(ADVANTAGES > 0, above, below).clip(0)
    assert (drift[ADVANTAGES > 0] > 0).any() and (drift[ADVANTAGES < 0] > 0).any()
    loss = policy_loss(made("drift").module, RATIOS, ADVANTAGES)[0]
    assert loss == pytest.approx(-(RATIOS * ADVANTAGES - drift).mean(), abs=1e-6)


def test_the_clip_around_an_average(made):
    center = np.array([1.2, 1.0, 0.6, 0.8, 1.2, 1.2, 0.4, 0.9], dtype=np.float32)
    average = {"average_logprobs": torch.tensor(np.log(center))}
    clipped = center * np.clip(RATIOS / center, 0.8, 1.2)
    objective = np.minimum(RATIOS * ADVANTAGES, clipped * ADVANTAGES)
    loss, share = policy_loss(made("average-policy").module, RATIOS, ADVANTAGES, **average)
    assert loss == pytest.approx(-objective.mean(), abs=1e-6) and share == np.mean(np.abs(RATIOS / center - 1) > 0.2)


def test_the_average_of_the_weights(made):
    """After three steps: the mean of four weights, each 0.889 times as heavy as the one after it."""
    agent = torch.nn.Linear(1, 1, bias=False)
    weights, decays = [3.0, -1.0, 4.0, 7.0], 0.889 ** np.arange(4)[::-1]
    torch.nn.init.constant_(agent.weight, weights[0])
    average = made("average-policy").module.average_of(agent, 0.889)
    for weight in weights[1:]:
        torch.nn.init.constant_(agent.weight, weight)
        average.update_parameters(agent)
    assert average.module.weight.item() == pytest.approx(np.average(weights, weights=decays))


def test_the_average_follows_each_step(made, tmp_path):
    parts = checkpoint(train(made("average-policy"), f"{SMALL} --total-timesteps 64", tmp_path))["parts"]
    assert parts["average"]["n_averaged"] == 1 + 16  # the first weights, and those after each step


def test_the_average_begins_with_the_weights_of_a_checkpoint(made, tmp_path):
    """Of a run that had no average; with a learning rate of 0 the weights stay as they are."""
    file = train(PPO, f"{SMALL} --total-timesteps 64", tmp_path / "plain") / "checkpoint_000000000064.pt"
    options = f"{SMALL} --resume {file} --learning-rate 0 --total-timesteps 128"
    parts = checkpoint(train(made("average-policy"), options, tmp_path / "averaged"))["parts"]
    for name, weight in parts["agent"].items():
        torch.testing.assert_close(parts["average"][f"module.{name}"], weight)


def test_the_perturbed_mean(made):
    module = made("rpo").module
    mean = torch.randn(64, 3)
    policy = module.Normal(mean, torch.full((1, 3), -1.0))
    zeros = torch.zeros(64)
    minibatch = dict.fromkeys(("obs", "values"), zeros)
    minibatch |= {"actions": torch.randn(64, 3), "perturbations": torch.rand(64, 3) - 0.5}
    logprobs = policy.log_prob(minibatch["actions"])
    minibatch |= {"logprobs": logprobs, "returns": torch.linspace(-1, 1, 64)}
    stats = module.ppo_loss(lambda obs: (policy, zeros), minibatch, module.Args(clip_coef=1e9))[1]
    perturbed = torch.distributions.Normal(mean + minibatch["perturbations"], math.exp(-1))
    ratios = (perturbed.log_prob(minibatch["actions"]).sum(-1) - logprobs).exp()
    advantages = minibatch["returns"] / minibatch["returns"].std(correction=0)
    assert stats["policy_loss"].item() == pytest.approx(-(advantages * ratios).mean().item(), rel=1e-4)
    assert stats["approx_kl"].item() == pytest.approx(0, abs=1e-5)  # that of the policy which acts


def test_the_perturbations(made, tmp_path):
    """They are uniform, and other ones for each minibatch."""
    options = f"{SMALL} --env-id Pendulum-v1 --num-steps 512 --total-timesteps 1024 --num-minibatches 4"
    with watched(made("rpo").module, "ppo_loss", lambda agent, minibatch, args: minibatch["perturbations"]) as seen:
        train(made("rpo"), options, tmp_path)
    noise = torch.cat(seen)
    assert noise.shape == (10 * 1024, 1) and len(noise.unique()) > 10_000
    assert noise.abs().max() <= 0.5 and noise.mean().item() == pytest.approx(0, abs=0.01)
    assert noise.var().item() == pytest.approx(1 / 12, rel=0.05)


# values and advantages


@pytest.mark.parametrize("second, reward", [(None, -1), ("with/reward-shaper", np.float32(-0.1))])
def test_an_unchanged_critic_says_the_same_again(second, reward, with_recipe, tmp_path):
    """With a learning rate of 0, GAE has the same rewards, with values at the time limit, and values in each epoch."""
    script, calls = with_recipe("with/recompute-advantages", second=second), []
    gae = script.module.gae

    def record(*args):
        calls.append([*args[:2], gae(*args)])
        return calls[-1][2]

    options = "--env-id MountainCar-v0 --num-envs 2 --num-steps 256 --total-timesteps 512 --learning-rate 0"
    with patched((script.module, "gae", record)):
        train(script, f"--no-cuda {options} --bootstrap-truncated", tmp_path)
    assert len(calls) == 4 and (calls[0][0] != reward).sum() == 2
    for later in calls[1:]:
        # the size of an advantage is that of a sum of 1 / (1 - 0.99 * 0.95) = 17 differences of two values
        for one, other, size in zip(calls[0], later, (1, 1, 2 * 17), strict=True):
            np.testing.assert_allclose(one, other, rtol=ROUNDING, atol=size * ROUNDING)


# optimizers and networks


def test_equal_betas(made):
    """Steps of Adam at a rate of 0.1, computed with numbers."""
    module, gradients = made("equal-betas").module, [1e-4, -0.5, 2.0, 3.0, 1e-3, -7.0, 1.0]
    agent = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(agent.weight)
    optimizer = module.Adam(agent)
    weight = first = second = 0.0
    for t, gradient in enumerate(gradients, start=1):
        module.adam_step(optimizer, torch.tensor([gradient]), 0.1)
        first = 0.99 * first + 0.01 * gradient
        second = 0.99 * second + 0.01 * gradient**2
        weight -= 0.1 * math.sqrt(1 - 0.99**t) / (1 - 0.99**t) * first / (math.sqrt(second) + 1e-5)
    assert agent.weight.item() == pytest.approx(weight, rel=1e-4)


def test_the_steps_of_adam_begin_again(made, tmp_path):
    """In each of two updates, while the moments go on."""
    script = made("adam-relative")

    def look(optimizer, *_):
        return optimizer.steps.item(), optimizer.mean.any().item()

    with watched(script.module, "adam_step", look) as seen:
        train(script, f"{SMALL} --total-timesteps 128", tmp_path)
    assert seen == [(0, False), *((step, True) for step in [*range(1, 16), *range(16)])]


def test_the_outer_step(made, tmp_path):
    """A step of 1 is that of ppo.py, one of 0 keeps the weights, and one of 2 moves them twice as far."""
    options = f"{SMALL} --total-timesteps 64"
    runs = [train(made("outer-step"), f"{options} --outer-step {step}", tmp_path / str(step)) for step in (0, 1, 2)]
    runs.append(train(PPO, options, tmp_path / "ppo"))
    start, one, two, plain = (checkpoint(run)["parts"]["agent"] for run in runs)
    assert not torch.equal(start["policy.weight"], one["policy.weight"])
    for name in start:
        torch.testing.assert_close(one[name], plain[name], rtol=0, atol=1e-6)
        torch.testing.assert_close(two[name] - start[name], 2 * (one[name] - start[name]), rtol=0, atol=1e-6)


def test_muon(made):
    """Two steps: on the hidden matrices those of torch's Muon, whose products are in bfloat16; on the rest Adam's."""
    module = made("muon").module
    agent = module.Agent(spaces(VECTOR, gym.spaces.Discrete(2)))
    copies = copy.deepcopy(agent), copy.deepcopy(agent)
    hidden = [copies[0].policy_trunk[2].weight, copies[0].value_trunk[2].weight]
    muon = torch.optim.Muon(hidden, 0.02, weight_decay=0.0, adjust_lr_fn="original")
    optimizer = module.Adam(agent)
    adam = PPO.module.Adam(copies[1])
    for _ in range(2):
        gradients = [torch.randn_like(weight) for weight in agent.parameters()]
        for weight, gradient in zip(copies[0].parameters(), gradients, strict=True):
            weight.grad = gradient
        muon.step()
        gradient = torch.cat([part.flatten() for part in gradients])
        PPO.module.adam_step(adam, gradient, 1e-3)
        module.optimizer_step(optimizer, gradient, 1e-3, 0.02)
    for name, weight in agent.named_parameters():
        expected = copies[0 if name.endswith("trunk.2.weight") else 1].get_parameter(name)
        rounding = 0.002 if name.endswith("trunk.2.weight") else 0
        torch.testing.assert_close(weight, expected, rtol=0, atol=rounding)


def test_the_rates_of_muon_and_adam(made, tmp_path):
    """In the second of two updates they are half of the first ones."""
    script = made("muon")
    with watched(script.module, "optimizer_step", lambda optimizer, gradients, *rates: rates) as seen:
        train(script, f"{SMALL} --total-timesteps 128", tmp_path)
    assert seen == [(2.5e-4, 0.02)] * 16 + [(1.25e-4, 0.01)] * 16


def test_layer_normalization(made):
    trunk, obs = made("layer-norm").module.mlp(3), torch.randn(5, 3)
    hidden = obs.numpy()
    for layer in (trunk[0], trunk[3]):
        hidden = hidden @ layer.weight.detach().numpy().T
        hidden = np.tanh((hidden - hidden.mean(1, keepdims=True)) / np.sqrt(hidden.var(1, keepdims=True) + 1e-5))
    np.testing.assert_allclose(trunk(obs).detach(), hidden, atol=1e-5)


def test_the_plasticity_of_known_features(made):
    """Two directions of equal variance, one of a thousandth, and a unit that is always 3."""
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    features = torch.cat([signs, signs.prod(1, keepdim=True) / 1000**0.5, torch.full((4, 1), 3.0)], dim=1)
    trunk = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False))
    torch.nn.init.eye_(trunk[0].weight)
    found = made("plasticity-log").module.plasticity("a", trunk, features)
    assert {name: number.item() for name, number in found.items()} == {
        "plasticity/a_rank": 2, "plasticity/a_dead": 1, "plasticity/a_norm": 2,
    }  # fmt: skip


def test_the_plasticity_of_nan_is_no_error(made):
    """So that log_update() ends the run, with its line."""
    trunk = torch.nn.Linear(4, 3)
    torch.nn.init.constant_(trunk.weight, np.nan)
    found = made("plasticity-log").module.plasticity("a", trunk, torch.randn(8, 4))
    assert np.isnan(found["plasticity/a_norm"].item())


def test_the_plasticity_log_changes_nothing(made, tmp_path):
    scripts = PPO, made("plasticity-log")
    plain, logged = (train(script, f"{SMALL} --total-timesteps 128", tmp_path / script.name) for script in scripts)
    assert same_weights(checkpoint(plain), checkpoint(logged))
    assert {"plasticity/policy_rank", "plasticity/value_dead", "plasticity/value_norm"} < scalars(logged).keys()


# noise


def test_the_spectrum_of_colored_noise(made):
    """White noise is what randn draws; else the power at a frequency is 2**-color of that at half of it."""
    colored_noise = made("colored-noise").module.colored_noise
    generator = torch.Generator().manual_seed(1)
    white = colored_noise((64, 2, 3), 0.0, generator)
    torch.testing.assert_close(white, torch.randn(64, 2, 3, generator=torch.Generator().manual_seed(1)))
    colored = colored_noise((64, 1000, 8), 0.5, generator).numpy()
    assert colored.std() == pytest.approx(1, abs=0.01) and colored.mean() == pytest.approx(0, abs=0.01)
    power = (np.abs(np.fft.rfft(colored, axis=0)) ** 2).mean(axis=(1, 2))
    for k in (1, 2, 5, 16):
        assert power[2 * k] / power[k] == pytest.approx(2**-0.5, rel=0.08)


def test_actions_take_the_noise(made, tmp_path):
    """Noise of 2 makes each action two deviations more than its mean."""
    script = made("colored-noise")

    def error(agent, minibatch, *_):
        return minibatch["actions"] - agent(minibatch["obs"])[0].mean - 2

    twos = (script.module, "colored_noise", lambda shape, color, generator: torch.full(shape, 2.0))
    with patched(twos), watched(script.module, "ppo_loss", error) as seen:
        train(script, f"{SMALL} --env-id Pendulum-v1 --total-timesteps 64 --learning-rate 0", tmp_path)
    assert torch.cat(seen).abs().max() < ROUNDING


# memory


MEMORY = {
    "lstm": f"{HIDDEN}CartPoleNoVelocities-v1 --num-minibatches 2",
    "lstm-continuous": f"{HIDDEN}PendulumNoVelocity-v1 --num-minibatches 2",
    "lstm-mask": f"{SMALL} --env-id toy_envs:Choices-v0 --num-minibatches 2",
}


@pytest.mark.parametrize("name", MEMORY)
def test_the_loss_sees_the_states_of_the_rollout(name, made, tmp_path):
    """With a learning rate of 0 the values are the same: states, ends of episodes and environments are as they were."""

    def error(agent, minibatch, *_):
        _, values, _ = agent(minibatch["obs"], minibatch["state"], minibatch["dones"])
        return (values - minibatch["values"]).abs().max()

    options = "--num-envs 4 --total-timesteps 1024 --update-epochs 1 --learning-rate 0 --bootstrap-truncated"
    with watched(made(name).module, "ppo_loss", error) as errors:
        run = train(made(name), f"{MEMORY[name]} {options}", tmp_path)
    assert max(errors) < ROUNDING and len(scalars(run)["charts/episodic_return"]) >= 4


@pytest.mark.parametrize("name", MEMORY)
def test_the_state_is_0_where_an_episode_begins(name, made):
    """In environment 0; in the other one the past makes a difference."""
    actions = {"lstm": gym.spaces.Discrete(2), "lstm-continuous": gym.spaces.Box(-1, 1, (2,))}
    agent = made(name).module.Agent(spaces(VECTOR, actions.get(name, gym.spaces.MultiDiscrete([3, 2]))))
    obs, zeros, state = torch.randn(2, 4), torch.zeros(2, 1, 2, 128).unbind(), torch.randn(2, 1, 2, 128).unbind()
    _, values, _ = agent(obs, state, torch.tensor([True, False]))
    _, first, _ = agent(obs, zeros, torch.tensor([False, False]))
    torch.testing.assert_close(values[0], first[0])
    assert abs(values[1] - first[1]) > 1e-4


@pytest.mark.parametrize("value_trains_memory", [False, True])
def test_the_value_trains_the_memory_only_if_asked_to(value_trains_memory, made, tmp_path):
    """Whether its gradient reaches the LSTM, in the agent that the option makes."""

    def reached(agent, minibatch, *_):
        _, values, _ = agent(minibatch["obs"], minibatch["state"], minibatch["dones"])
        parts = agent.lstm.weight_ih_l0, agent.policy_trunk[0].weight
        gradients = torch.autograd.grad(values.sum(), parts, allow_unused=True)
        return [gradient is not None and bool(gradient.any()) for gradient in gradients]

    options = f"{MEMORY['lstm']} --total-timesteps 64" + (" --value-trains-memory" if value_trains_memory else "")
    with watched(made("lstm").module, "ppo_loss", reached) as seen:
        train(made("lstm"), options, tmp_path)
    assert all(each == [value_trains_memory] * 2 for each in seen) and seen


def test_image_and_vector_go_to_their_trunks(made, tmp_path):
    module, env_id = made("image-and-vector").module, "recipes.environments:ImageAndVector-v0"
    space = gym.make(env_id).observation_space
    agent = module.Agent(module.make_envs(module.Args(env_id=env_id, num_envs=1), tmp_path))
    seen, sample = [], space.sample()
    for trunk in (agent.trunk, agent.vector_trunk):
        trunk.register_forward_pre_hook(lambda trunk, inputs: seen.append(inputs[0][0]))
    agent(torch.from_numpy(gym.spaces.flatten(space, sample))[None])
    np.testing.assert_allclose(seen[0].movedim(0, -1), sample["image"] / 255, rtol=1e-6)
    np.testing.assert_allclose(seen[1], sample["vector"])


# formulas of older recipes


def test_the_divergence_of_the_penalty(made):
    """Of the policy that acted from the new one, and not the other way round."""
    module, zeros = made("kl-penalty").module, torch.zeros(2)
    old, new = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]), np.array([[0.1, 0.6, 0.3], [0.3, 0.3, 0.4]])
    policy = module.Categorical(torch.tensor(np.log(new), dtype=torch.float32))
    minibatch = dict.fromkeys(("obs", "logprobs", "values"), zeros) | {"actions": torch.tensor([0, 1])}
    minibatch |= {"returns": zeros, "logits": torch.tensor(np.log(old), dtype=torch.float32)}

    agent = mock.Mock(return_value=(policy, zeros), kl_coef=torch.tensor(3.0))
    stats = module.ppo_loss(agent, minibatch, module.Args())[1]
    expected = (old * np.log(old / new)).sum(1).mean()
    assert [stats["kl"].item(), stats["policy_loss"].item()] == pytest.approx([expected, 3 * expected], rel=1e-5)


def test_the_auxiliary_phase(made):
    """Ten steps of it are those of SGD on squared errors and on the divergence of the old policy from the new."""
    with InFloat64():
        module = made("ppg").module
        agent = module.Agent(spaces(VECTOR, gym.spaces.Discrete(3)))
        args = module.Args(phase_epochs=10, learning_rate=0.1)

        @torch.no_grad()
        def descend(optimizer, gradient, learning_rate):
            sizes = [parameter.numel() for parameter in optimizer.parameters]
            for parameter, part in zip(optimizer.parameters, gradient.split(sizes), strict=True):
                parameter.sub_(learning_rate * part.view_as(parameter))

        torch.nn.init.orthogonal_(agent.policy.weight, 5)  # so that the two directions of the divergence differ
        agent.double()
        other, obs, returns = copy.deepcopy(agent), torch.randn(64, 4).double(), 3 * torch.randn(64).double()
        phase = module.Phase(agent)
        phase.kept = {"obs": [obs], "returns": [returns]}
        with patched((module, "adam_step", descend)):
            loss = phase.train(agent, args, torch.Generator())
        assert loss.isfinite() and loss > 0
        optimizer, old = torch.optim.SGD(other.parameters(), 0.1), other(obs)[0].logits.detach()
        for _ in range(10):
            policy, values = other(obs)
            auxiliary = other.auxiliary_value(other.policy_trunk(obs)).squeeze(-1)
            before, after = (torch.distributions.Categorical(logits=logits) for logits in (old, policy.logits))
            errors = ((values - returns) ** 2 + (auxiliary - returns) ** 2) / 2
            optimizer.zero_grad()
            (errors + torch.distributions.kl_divergence(before, after)).mean().backward()
            optimizer.step()
        for one, two in zip(agent.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=1e-12)


def test_symlog(made):
    """A network's output is the symlog of the value."""
    module = made("symlog-values").module
    agent, obs = module.Agent(spaces(VECTOR, gym.spaces.Discrete(2))), torch.randn(9, 4)
    torch.nn.init.constant_(agent.value.bias, -3.0)
    output = agent.value(agent.value_trunk(obs)).squeeze(-1).detach().numpy()
    values = agent(obs)[1]
    np.testing.assert_allclose(values.detach(), np.sign(output) * (np.exp(np.abs(output)) - 1), rtol=1e-5)
    np.testing.assert_allclose(module.symlog(values).detach(), output, rtol=1e-5)


def test_the_mode_of_a_uniform_beta_is_its_middle(made):
    policy = made("beta").module.Beta(torch.full((1, 2), -30.0), torch.tensor([-3.0]), torch.tensor([5.0]))
    assert policy.mode().item() == pytest.approx(1.0)


def test_squashed_actions_from_bound_to_bound(made):
    means = torch.tensor([[-20.0], [-math.atanh(0.5)], [20.0]])
    policy = made("squashed-gaussian").module.Normal(
        means, torch.zeros(1, 1), torch.tensor([-3.0]), torch.tensor([5.0])
    )
    np.testing.assert_allclose(policy.mode(), [[-3], [-1], [5]], rtol=1e-6)
    assert policy.log_prob(policy.mode()).isfinite().all()
    assert policy.log_prob(policy.sample(torch.Generator())).isfinite().all()


def test_the_beta_distribution(made):
    """Of actions between other bounds than 0 and 1: beside torch's, which is between these; and the mode is highest."""
    torch.manual_seed(1)
    outputs = torch.tensor([[1.0, -1.0, 0.5, 2.0]])  # two components
    alpha, beta = (1 + torch.nn.functional.softplus(outputs)).chunk(2, dim=-1)
    policy = made("beta").module.Beta(outputs.expand(100_000, 4), torch.tensor([-3.0, -1.0]), torch.tensor([5.0, 1.0]))
    actions = policy.sample(torch.Generator().manual_seed(1))
    scaled = (actions - torch.tensor([-3.0, -1.0])) / torch.tensor([8.0, 2.0])
    theirs = torch.distributions.Beta(alpha, beta)
    torch.testing.assert_close(scaled.mean(0, keepdim=True), theirs.mean, rtol=0, atol=0.005)
    torch.testing.assert_close(scaled.var(0, keepdim=True), theirs.variance, rtol=0.03, atol=0)
    torch.testing.assert_close(policy.log_prob(actions), theirs.log_prob(scaled).sum(-1), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(policy.entropy()[0], theirs.entropy().sum())
    mode = policy.mode()
    for shift in (-0.05, 0.05):
        assert (policy.log_prob(mode + shift) < policy.log_prob(mode)).all()
    bounds = torch.tensor([-3.0, -1.0]).expand_as(actions), torch.tensor([5.0, 1.0]).expand_as(actions)
    assert all(policy.log_prob(bound).isfinite().all() for bound in bounds)


def test_the_value_loss_in_units_of_the_returns(made):
    """A deviation of 2 makes the clip's range twice as wide, and divides the squared errors by 4."""
    module = made("value-normalization").module
    old, values, returns = np.array([0.0, 1.0, 2.0]), np.array([1.0, 1.1, 1.5]), np.array([3.0, 2.0, -1.0])
    clipped = old + np.clip(values - old, -0.4, 0.4)
    expected = 0.5 * np.maximum((values - returns) ** 2, (clipped - returns) ** 2).mean() / 4
    tensor, zeros = functools.partial(torch.tensor, dtype=torch.float32), torch.zeros(3)
    policy = SimpleNamespace(log_prob=lambda actions: zeros, entropy=lambda: zeros)
    minibatch = dict.fromkeys(("obs", "actions", "logprobs"), zeros)
    minibatch |= {"values": tensor(old), "returns": tensor(returns)}

    agent = mock.Mock(return_value=(policy, tensor(values)), moments=module.ReturnMoments())
    agent.moments.var.fill_(4)
    stats = module.ppo_loss(agent, minibatch, module.Args())[1]
    assert stats["value_loss"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("aim, power", [(1e-9, -4), (100.0, 4)])
@pytest.mark.parametrize("script, first", [("ppo.py", 2.5e-4), ("ppo_continuous_action.py", 3e-4)])
def test_the_rate_falls_and_rises(script, first, aim, power, made, tmp_path):
    """By a factor of 1.5 in each of four epochs."""
    env_id = "CartPole-v1" if script == "ppo.py" else "Pendulum-v1"
    options = f"{SMALL} --env-id {env_id} --total-timesteps 64 --update-epochs 4 --kl-aim {aim}"
    run = train(made("kl-learning-rate", script), options, tmp_path)
    rate = first * 1.5**power
    assert checkpoint(run)["parts"]["optimizer"]["learning_rate"].item() == pytest.approx(rate)
    assert scalars(run)["charts/learning_rate"][0][1] == pytest.approx(rate)


@pytest.mark.parametrize("script, env_id", [("ppo.py", "CartPole-v1"), ("ppo_continuous_action.py", "Pendulum-v1")])
def test_the_entropy_bonus_falls(script, env_id, made, tmp_path):
    """The loss has the coefficient of each update, from the first to the last, and so has the log."""
    made = made("entropy-schedule", script)
    options = f"{SMALL} --env-id {env_id} --total-timesteps 192 --ent-coef 0.3 --final-ent-coef 0.1 --update-epochs 1"
    with watched(made.module, "ppo_loss", lambda agent, minibatch, args: args.ent_coef) as seen:
        run = train(made, f"{options} --num-minibatches 2", tmp_path)
    assert seen == pytest.approx([0.3, 0.3, 0.2, 0.2, 0.1, 0.1])
    assert [value for _, value in scalars(run)["charts/ent_coef"]] == pytest.approx([0.3, 0.2, 0.1])


def test_the_opponent_plays_on_its_own_observations(made, tmp_path):
    """Those of seat 1, at each step."""
    script = made("selfplay-past")
    options = "--no-cuda --env-id toy_envs:Signs-v0 --num-envs 4 --num-steps 32 --total-timesteps 128"
    with watched(script.module.Agent, "get_policy", lambda agent, obs: obs) as seen:
        train(script, options, tmp_path)
    assert [len(obs) for obs in seen[:64]] == [4, 2] * 32
    assert all(torch.equal(past, obs[1::2]) for obs, past in zip(seen[:64:2], seen[1:64:2], strict=True))
    assert any(not torch.equal(past, obs[::2]) for obs, past in zip(seen[:64:2], seen[1:64:2], strict=True))
