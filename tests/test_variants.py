"""Recipes of A2C and of variants of PPO's parts: the formula of each, beside a few lines written for the test."""

import copy
import itertools
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from in_process import patched, train, watched
from rounding import ROUNDING
from run_files import checkpoint, equal, same_weights, scalars
from script_table import PPO, ROOT
from toy_envs import spaces

from recipes.recipe import read

SMALL = "--no-cuda --num-envs 2 --num-steps 32"
VECTOR = gym.spaces.Box(-1, 1, (4,))


@pytest.fixture
def made(with_recipe):
    """A function from the name of a recipe to the script that it makes, of its own script or another."""
    return lambda name, script=None: with_recipe(name, script)


def options_of(name):
    """The options in the command of a recipe's header."""
    return read(ROOT / f"recipes/{name}.diff").header["command"].split(" ", 2)[2]


# A2C


def a2c(weights, forward, actions, envs, updates, learning_rate):
    """A2C as baselines has it, on 5 steps of each environment: the weights after some updates, float64.

    weights: {name: float64}; forward: a function from weights and observations to logits and values."""
    squares = {name: torch.ones_like(weight) for name, weight in weights.items()}
    obs, _ = envs.reset(seed=1)
    for update in range(updates):
        seen, rewards, ends = [], [], []
        chosen = torch.stack(actions[5 * update : 5 * update + 5])
        for action in chosen:
            seen.append(obs)
            obs, reward, terminated, truncated, _ = envs.step(action.numpy())
            rewards.append(reward)
            ends.append(terminated | truncated)
        with torch.no_grad():
            _, returned = forward(weights, torch.from_numpy(obs))
        returns = []
        for reward, end in zip(rewards[::-1], ends[::-1], strict=True):
            returned = torch.from_numpy(reward) + 0.99 * returned * torch.from_numpy(~end)
            returns.insert(0, returned)

        leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        logits, values = forward(leaves, torch.from_numpy(np.concatenate(seen)))
        errors = torch.cat(returns) - values
        policy = torch.distributions.Categorical(logits=logits)
        policy_gradient = -(policy.log_prob(chosen.flatten()) * errors.detach()).mean()
        loss = policy_gradient - 0.01 * policy.entropy().mean() + 0.5 * errors.square().mean()
        loss.backward()
        norm = torch.cat([leaf.grad.flatten() for leaf in leaves.values()]).norm()
        rate = learning_rate * (1 - update / updates)
        for name, leaf in leaves.items():
            gradient = leaf.grad * min(1, 0.5 / norm)
            squares[name] = 0.99 * squares[name] + 0.01 * gradient**2
            weights[name] = weights[name] - rate * gradient / torch.sqrt(squares[name] + 1e-5)
    return weights


def test_ppo_becomes_a2c(made, tmp_path):
    """60 updates of the recipe end with the weights of an A2C that has no ratio, clip, permutation or lambda."""
    script = made("with/a2c")
    updates = 60
    learning_rate = 0.02  # high, so that small differences show
    chosen = []
    sample = script.module.Categorical.sample

    def keep(policy, generator):
        chosen.append(sample(policy, generator))
        return chosen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script.module.Categorical, "sample", keep)
        options = f"{options_of('with/a2c')} --no-cuda --total-timesteps {20 * updates} --learning-rate {learning_rate}"
        run = train(script, options, tmp_path)
    first, last = (checkpoint(run, which)["parts"]["agent"] for which in (0, -1))

    def forward(weights, obs):
        hidden = {}
        for name in ("policy", "value"):
            hidden[name] = obs.double()
            for layer in (f"{name}_trunk.0", f"{name}_trunk.2"):
                hidden[name] = torch.tanh(hidden[name] @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"])
        logits = hidden["policy"] @ weights["policy.weight"].T + weights["policy.bias"]
        values = hidden["value"] @ weights["value.weight"].T + weights["value.bias"]
        return logits, values.squeeze(-1)

    envs = script.module.make_envs(script.module.Args())
    expected = a2c(
        {name: weight.double() for name, weight in first.items()}, forward, chosen, envs, updates, learning_rate
    )
    assert max((last[name] - first[name]).abs().max() for name in last) > 0.1
    for name, weight in expected.items():
        torch.testing.assert_close(last[name].double(), weight, rtol=0, atol=ROUNDING)


def test_a2c_for_atari_changes_the_same_lines():
    changed = []
    for name in ("a2c", "a2c-atari"):
        lines = read(ROOT / f"recipes/with/{name}.diff").diff.splitlines()
        changed.append([line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")])
    assert changed[0] == changed[1]


# networks


def test_the_average_pool(made):
    """The first layer behind the convolutions sees the mean of each channel's positive part."""
    network = made("with/average-pool").module.impala_cnn(3)
    images = torch.rand(2, 3, 64, 64)
    features = network[:12](images).detach().numpy()
    assert features.shape == (2, 32, 8, 8)
    means = np.maximum(features, 0).mean(axis=(2, 3))
    linear = network[-2]
    hidden = means @ linear.weight.detach().numpy().T + linear.bias.detach().numpy()
    np.testing.assert_allclose(network(images).detach(), np.maximum(hidden, 0), atol=ROUNDING)


def test_episodes_begin_with_a_state_of_ones(made):
    """In environment 0, which begins one; in environment 1 the past makes a difference."""
    images = gym.spaces.Box(0, 255, (84, 84, 1), np.uint8)
    agent = made("without/lstm-2-ones").module.Agent(spaces(images, gym.spaces.Discrete(2)))
    ones = agent.initial_state(2)
    assert all(torch.equal(state, torch.ones(1, 2, 128)) for state in ones)
    obs = torch.randint(256, (2, 84, 84, 1), dtype=torch.uint8)
    past = torch.randn(1, 2, 128), torch.randn(1, 2, 128)
    _, values, _ = agent(obs, past, torch.tensor([True, False]))
    _, first, _ = agent(obs, ones, torch.tensor([False, False]))
    torch.testing.assert_close(values[0], first[0])
    assert abs(values[1] - first[1]) > 1e-4


def test_the_deviation_does_not_train_the_trunk(made):
    """It depends on the observation, but its gradient reaches its own head alone."""
    agent = made("with/state-dependent-std-detached").module.Agent(spaces(VECTOR, gym.spaces.Box(-1, 1, (2,))))
    policy = agent.get_policy(torch.randn(3, 4))
    assert policy.std.shape == (3, 2) and len(policy.std[:, 0].unique()) == 3
    policy.logstd.square().sum().backward()
    assert agent.logstd.weight.grad.any()
    assert all(weight.grad is None for weight in agent.policy_trunk.parameters())
    policy.mean.square().sum().backward()
    assert agent.policy_trunk[0].weight.grad.any()


# actions


def normal_cdf(number):
    return (1 + math.erf(number / math.sqrt(2))) / 2


def test_the_probability_beyond_a_bound(made):
    """Of a component below, within and above its bounds; and far away it stays finite, with its gradient."""
    mean, std, low, high = 0.5, 0.8, -1.0, 2.0
    policy = made("with/clipped-action").module.Normal(
        torch.full((1, 1), mean), torch.full((1, 1), math.log(std)), torch.tensor([low]), torch.tensor([high])
    )
    density = math.exp(-(((1.2 - mean) / std) ** 2) / 2) / (std * math.sqrt(math.tau))
    expected = np.log([normal_cdf((low - mean) / std), density, 1 - normal_cdf((high - mean) / std)])
    found = [policy.log_prob(torch.tensor([[action]])).item() for action in (-1.7, 1.2, 2.1)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)

    unbounded = gym.spaces.Box(-np.inf, np.inf, (2,))
    agent = made("with/clipped-action").module.Agent(spaces(VECTOR, unbounded))
    policy = agent.get_policy(torch.randn(3, 4))
    loss = policy.log_prob(policy.sample()).sum()
    gradients = torch.autograd.grad(loss, [agent.logstd, agent.policy.weight])
    assert loss.isfinite() and all(gradient.isfinite().all() for gradient in gradients)


def test_the_gradient_has_the_same_mean_and_a_smaller_variance(made):
    """Of the expectation of a function of the clipped action, by the mean of the policy, from 200,000 samples."""
    mean = torch.full((200_000, 1), 0.5, requires_grad=True)
    logstd, low, high = torch.zeros(1, 1), torch.tensor([-1.0]), torch.tensor([1.0])
    clipped = made("with/clipped-action").module.Normal(mean, logstd, low, high)
    actions = clipped.sample(torch.Generator().manual_seed(1)).detach()
    returns = actions.clamp(low, high).square() + 3
    plain = torch.distributions.Normal(mean, 1.0)
    estimates = []
    for log_probs in (clipped.log_prob(actions), plain.log_prob(actions).sum(-1)):
        [gradient] = torch.autograd.grad(log_probs.sum(), mean)
        estimates.append((gradient * returns).numpy())
    ours, theirs = estimates
    error = math.sqrt((ours.var() + theirs.var()) / len(ours))
    assert ours.mean() == pytest.approx(theirs.mean(), abs=4 * error)
    assert ours.var() < 0.95 * theirs.var()


def test_autoregressive_probabilities(made):
    """Those of all actions sum to 1; each is the product of conditional ones, computed with numpy."""
    nvec = [3, 2, 4]
    agent = made("with/autoregressive").module.Agent(spaces(VECTOR, gym.spaces.MultiDiscrete(nvec)))
    for head in agent.heads:
        torch.nn.init.orthogonal_(head.weight, 2.0)  # so that choices matter
    obs = torch.randn(1, 4)
    actions = torch.tensor(list(itertools.product(*map(range, nvec))))
    with torch.no_grad():
        policy = agent.get_policy(obs.expand(len(actions), 4))
        features = agent.trunk(obs)[0].numpy()
        logprobs = policy.log_prob(actions).numpy()
        entropies = policy.entropy(actions).numpy()
    expected = []
    for action in actions.tolist():
        total, hidden = 0.0, features
        for k, choice in enumerate(action):
            head = agent.heads[k]
            logits = np.tanh(hidden) @ head.weight.detach().numpy().T + head.bias.detach().numpy()
            total += logits[choice] - np.log(np.exp(logits).sum())
            if k < 2:
                hidden = hidden + agent.embeddings[k].weight.detach().numpy()[choice]
        expected.append(total)
    np.testing.assert_allclose(logprobs, expected, atol=ROUNDING)
    probabilities = np.exp(logprobs)
    assert probabilities.sum() == pytest.approx(1, abs=ROUNDING)
    # the entropies along the actions have the whole entropy as their mean
    assert (probabilities * entropies).sum() == pytest.approx(-(probabilities * logprobs).sum(), abs=ROUNDING)


def test_autoregressive_samples(made):
    """Each action as often as its probability says; the mode is the best first component, then the best second one."""
    agent = made("with/autoregressive").module.Agent(spaces(VECTOR, gym.spaces.MultiDiscrete([2, 3])))
    for head in agent.heads:
        torch.nn.init.orthogonal_(head.weight, 2.0)
    with torch.no_grad():
        policy = agent.get_policy(torch.randn(1, 4).expand(60_000, 4))
        drawn = policy.sample(torch.Generator().manual_seed(1))
        table = torch.cartesian_prod(torch.arange(2), torch.arange(3))
        small = agent.get_policy(torch.zeros(6, 4))
        small.features = policy.features[:6]
        probabilities = small.log_prob(table).exp().view(2, 3)
        mode = small.mode()[0]
    counts = torch.bincount(3 * drawn[:, 0] + drawn[:, 1], minlength=6).view(2, 3) / 60_000
    torch.testing.assert_close(counts, probabilities, rtol=0, atol=0.01)
    first = probabilities.sum(dim=1).argmax()
    assert mode.tolist() == [first, probabilities[first].argmax()]
    ratios = probabilities / probabilities.sum(dim=1, keepdim=True)
    assert (ratios[0] - ratios[1]).abs().max() > 0.05  # the second component depends on the first


# losses, rewards and observations


def test_values_have_a_clip_range_of_their_own(made, tmp_path):
    """The value loss with numbers; --anneal-clip halves both ranges in the second of two updates."""
    script = made("with/value-clip")
    old, values, returns = np.array([0.0, 1.0, 2.0]), np.array([9.0, 1.1, -3.0]), np.array([9.0, 2.0, -3.0])
    clipped = old + np.clip(values - old, -4, 4)
    expected = 0.5 * np.maximum((values - returns) ** 2, (clipped - returns) ** 2).mean()
    policy = script.module.Categorical(torch.zeros(3, 2))
    minibatch = {"obs": None, "actions": torch.tensor([0, 1, 0]), "logprobs": torch.zeros(3)}
    minibatch |= {"values": torch.tensor(old), "returns": torch.tensor(returns)}
    args = script.module.Args(value_clip_coef=4.0)
    _, stats = script.module.ppo_loss(lambda obs: (policy, torch.tensor(values)), minibatch, args)
    assert stats["value_loss"].item() == pytest.approx(expected)

    def ranges(agent, minibatch, args):
        return args.clip_coef, args.value_clip_coef

    with watched(script.module, "ppo_loss", ranges) as seen:
        train(script, f"{SMALL} --total-timesteps 128 --anneal-clip", tmp_path)
    assert seen == [(0.2, 10.0)] * 16 + [(0.1, 5.0)] * 16


def test_a_cosine_schedule(made, tmp_path):
    """And those that take other options; a resume goes on with the rates of an undisturbed run."""
    script = made("with/schedule")
    rates = script.module.learning_rates(script.module.Args(), 10)
    np.testing.assert_allclose(rates, 2.5e-4 * (1 + np.cos(np.pi * np.arange(10) / 10)) / 2)
    args = script.module.Args(schedule="ExponentialLR", schedule_options='{"gamma": 0.9}')
    np.testing.assert_allclose(script.module.learning_rates(args, 5), 2.5e-4 * 0.9 ** np.arange(5))
    args = script.module.Args(
        schedule="OneCycleLR", schedule_options='{"max_lr":1,"total_steps":"updates","cycle_momentum":false}'
    )
    assert max(script.module.learning_rates(args, 50)) == pytest.approx(1, abs=0.01)

    run = train(script, f"{SMALL} --total-timesteps 256", tmp_path)
    logged = [rate for _, rate in scalars(run)["charts/learning_rate"]]
    np.testing.assert_allclose(logged, script.module.learning_rates(script.module.Args(), 4), rtol=1e-6)
    train(script, f"--resume {run} --total-timesteps 384", tmp_path)
    logged = [rate for _, rate in scalars(run)["charts/learning_rate"]]
    np.testing.assert_allclose(logged[4:], script.module.learning_rates(script.module.Args(), 6)[4:], rtol=1e-6)


def test_the_linear_schedule_is_that_of_ppo(made, tmp_path):
    options = f"{SMALL} --total-timesteps 256"
    linear = '--schedule LinearLR --schedule-options {"start_factor":1,"end_factor":0,"total_iters":"updates"}'
    run = train(made("with/schedule"), f"{options} {linear}", tmp_path / "schedule")
    plain = train(PPO, options, tmp_path / "ppo")
    for name, weight in checkpoint(run)["parts"]["agent"].items():
        torch.testing.assert_close(weight, checkpoint(plain)["parts"]["agent"][name], rtol=0, atol=ROUNDING)


def test_the_agent_learns_from_shaped_rewards(made, tmp_path):
    """Those of a known function; the log has the environment's returns, and a function of 1 changes nothing."""
    script = made("with/reward-shaper")
    args = script.module.Args(reward_shift=1.0, reward_scale=-2.0, reward_clip=3.0)
    assert script.module.shape_rewards(np.array([0.0, 0.25, 5.0, -5.0]), args).tolist() == [-2.0, -2.5, -3.0, 3.0]
    options = f"{SMALL} --total-timesteps 128"
    with watched(script.module, "gae", lambda rewards, *rest: rewards) as seen:
        run = train(script, options, tmp_path / "default")
    assert len(seen) == 2 and all((rewards == np.float32(0.1)).all() for rewards in seen)
    plain = train(PPO, options, tmp_path / "ppo")
    assert scalars(run)["charts/episodic_return"][0] == scalars(plain)["charts/episodic_return"][0]
    same = train(script, f"{options} --reward-scale 1", tmp_path / "same")
    assert same_weights(checkpoint(same), checkpoint(plain))


def test_observations_have_the_time(made):
    module = made("with/time-left").module
    envs = module.make_envs(module.Args(num_envs=1, env_id="MountainCar-v0"))
    obs, _ = envs.reset(seed=1)
    times = [obs[0, -1]]
    for _ in range(200):
        obs, *_, infos = envs.step(np.array([1]))
        times.append(infos["final_obs"][0][-1] if "final_obs" in infos else obs[0, -1])
    np.testing.assert_allclose(times, np.arange(201) / 200, rtol=1e-6)
    assert obs.shape == (1, 3) and obs[0, -1] == 0  # a new episode


def test_the_policy_sees_the_time_with_a_privileged_critic(with_recipe):
    """Whatever the order of the recipes."""
    for names in (("with/privileged-critic", "with/time-left"), ("with/time-left", "with/privileged-critic")):
        module = with_recipe(names[0], "ppo.py", names[1]).module
        env = module.make_env(module.Args(privileged="state"), 0, None)
        assert env.get_wrapper_attr("policy_inputs") == 5 and env.observation_space.shape == (9,)
        env.reset(seed=1)
        obs, *_ = env.step(0)
        assert obs[4] == pytest.approx(1 / 500)


@pytest.mark.parametrize("script", ["ppo_atari.py", "ppo_atari_lstm.py"])
def test_the_protocol_of_machado(script, made):
    """18 actions; a quarter of them is replaced by the one before; an episode is a whole game, of five lives."""
    module = made("with/machado", script).module
    envs = module.make_envs(module.Args(num_envs=1, num_minibatches=1))
    assert envs.single_action_space.n == 18
    emulator = envs.envs[0].unwrapped.ale
    assert emulator.getFloat("repeat_action_probability") == 0.25
    envs.reset(seed=1)
    lives = []
    random = np.random.default_rng(1)
    ended = False
    while not ended:
        lives.append(emulator.lives())
        _, _, terminated, truncated, infos = envs.step(random.integers(18, size=1))
        ended = bool(terminated | truncated)
    assert set(lives) == {5, 4, 3, 2, 1}
    assert infos["final_info"]["_episode"][0]
    assert infos["final_info"]["episode"]["l"][0] == len(lives) + 2  # FIRE and UP


def test_an_update_follows_each_episode(made, tmp_path):
    """A minibatch of all of it; episodes go on over the entries of the log; the returns are discounted sums."""
    script = made("without/core-1-episodes")
    options = "--no-cuda --num-steps 64 --total-timesteps 512 --num-minibatches 1 --update-epochs 1 --gae-lambda 1"
    with watched(script.module, "ppo_loss", lambda agent, minibatch, args: minibatch) as seen:
        run = train(script, options, tmp_path)
    lengths = [length for _, length in scalars(run)["charts/episodic_length"]]
    assert [len(minibatch["obs"]) for minibatch in seen] == lengths and sum(lengths) > 400
    for length, minibatch in zip(lengths, seen, strict=True):
        returns = (1 - 0.99 ** np.arange(1, length + 1)) / (1 - 0.99)  # of steps that pay 1, the last one first
        np.testing.assert_allclose(minibatch["returns"].sort().values, returns, rtol=1e-4)


# ideas against the loss of plasticity


def test_weights_are_drawn_to_the_initial_ones(made, tmp_path):
    """The loss has the squared distance; it is of the first weights of all, also after a resume."""
    script = made("with/l2-init")
    envs = spaces(VECTOR, gym.spaces.Discrete(2))
    agent, initial = (script.module.Agent(envs) for _ in range(2))
    distance = script.module.squared_distance(agent, initial)
    pairs = zip(agent.state_dict().values(), initial.state_dict().values(), strict=True)
    expected = sum(((weight.double() - first.double()).numpy() ** 2).sum() for weight, first in pairs)
    assert distance.item() == pytest.approx(expected, rel=1e-5)

    minibatch = {"obs": torch.randn(8, 4), "actions": torch.ones(8, dtype=torch.int64), "logprobs": torch.zeros(8)}
    minibatch |= {"values": torch.zeros(8), "returns": torch.randn(8)}
    gradients = []

    def keep_gradients(optimizer, gradient, learning_rate):
        gradients.append(gradient)

    for coefficient in (0.0, 0.25):
        with patched((script.module, "adam_step", keep_gradients)):
            args = script.module.Args(l2_init_coef=coefficient, max_grad_norm=1e9)
            script.module.gradient_step(agent, initial, script.module.Adam(agent), minibatch, args)
    plain, drawn = gradients
    weights, first_weights = (torch.nn.utils.parameters_to_vector(a.parameters()) for a in (agent, initial))
    expected = plain + 0.25 * 2 * (weights - first_weights).detach()
    torch.testing.assert_close(drawn, expected, rtol=1e-4, atol=1e-4)

    run = train(script, f"{SMALL} --total-timesteps 128", tmp_path)
    first = checkpoint(run, 0)["parts"]["agent"]
    train(script, f"--resume {run} --total-timesteps 256", tmp_path)
    last = checkpoint(run)["parts"]
    assert equal(last["initial_agent"], first) and not equal(last["agent"], first)


def test_fresh_weights_enter_in_each_step(made, tmp_path):
    """w becomes (1 - c) w + c w_fresh, with other fresh weights each time, the same ones for the same seed."""
    script = made("with/shrink-perturb")
    envs = spaces(VECTOR, gym.spaces.Discrete(2))
    agent, fresh = (script.module.Agent(envs) for _ in range(2))
    expected = []
    for weight, other in zip(agent.parameters(), fresh.parameters(), strict=True):
        expected.append(0.75 * weight.detach().numpy() + 0.25 * other.detach().numpy())
    script.module.shrink_and_perturb(agent, fresh, 0.25)
    for weight, mean in zip(agent.parameters(), expected, strict=True):
        np.testing.assert_allclose(weight.detach(), mean, atol=ROUNDING)
    agent.requires_grad_(False)
    script.module.shrink_and_perturb(agent, script.module.Agent(envs), 0.25)
    for weight, mean in zip(agent.parameters(), expected, strict=True):  # a frozen network stays as it is
        np.testing.assert_allclose(weight.detach(), mean, atol=ROUNDING)

    torch.manual_seed(1)
    random = torch.rand(3)
    torch.manual_seed(1)
    script.module.fresh_agent(envs, 5)
    assert torch.equal(torch.rand(3), random)

    def first_layer(agent, fresh, perturbation):
        return fresh.policy_trunk[0].weight.detach().clone(), perturbation

    seen = []
    for folder in ("one", "two"):
        with watched(script.module, "shrink_and_perturb", first_layer) as calls:
            train(script, f"{SMALL} --total-timesteps 128", tmp_path / folder)
        seen.append(calls)
    assert len(seen[0]) == 2 * 16 and equal(*seen)
    assert len({weight.sum().item() for weight, _ in seen[0]}) == 32
    assert {perturbation for _, perturbation in seen[0]} == {1e-4}


# symmetry


@pytest.mark.parametrize("env_id, steps", [("CartPole-v1", 8), ("Acrobot-v1", 50)])
def test_the_mirrors_are_exact(made, env_id, steps):
    """Mirrored actions from a mirrored state lead to mirrored observations, with the same rewards and ends."""
    signs = np.array(made("with/symmetry").module.MIRRORS[env_id], dtype=np.float32)
    envs = [gym.make(env_id), gym.make(env_id)]
    for env in envs:
        env.reset(seed=1)
    envs[1].unwrapped.state = -np.asarray(envs[0].unwrapped.state)
    random = np.random.default_rng(1)
    highest = int(envs[0].action_space.n) - 1
    for _ in range(steps):
        action = int(random.integers(highest + 1))
        obs, *outcome, _ = envs[0].step(action)
        mirrored, *mirrored_outcome, _ = envs[1].step(highest - action)
        np.testing.assert_allclose(mirrored, signs * obs, rtol=0, atol=1e-6)
        assert mirrored_outcome == outcome


def test_the_loss_has_both_images(made, tmp_path):
    script = made("with/symmetry")
    with watched(script.module, "ppo_loss", lambda agent, minibatch, args: minibatch) as seen:
        train(script, f"{SMALL} --total-timesteps 64", tmp_path)
    assert len(seen) == 16  # one update of 4 epochs and 4 minibatches
    for minibatch in seen:
        halves = {name: column.numpy().reshape(2, 16, -1) for name, column in minibatch.items()}
        np.testing.assert_array_equal(halves["obs"][1], -halves["obs"][0])
        np.testing.assert_array_equal(halves["actions"][1], 1 - halves["actions"][0])
        for name in ("logprobs", "values", "returns"):
            np.testing.assert_array_equal(halves[name][1], halves[name][0])


def test_what_other_recipes_keep_is_mirrored(made):
    """The action of a teacher, and the policy that acted."""
    column = torch.tensor([1.0, 2.0])
    minibatch = dict.fromkeys(("obs", "actions", "teacher_actions"), column[:, None])
    mirrored = made("with/symmetry").module.with_mirrored(
        minibatch | {"logits": torch.tensor([[1.0, 2.0, 3.0]])}, torch.tensor([-1.0]), 3
    )
    assert mirrored["teacher_actions"].flatten().tolist() == mirrored["actions"].flatten().tolist() == [1, 2, 1, 0]
    assert mirrored["logits"].tolist() == [[1, 2, 3], [3, 2, 1]]
    signs = torch.tensor([-1.0])
    mirror = made("with/symmetry-continuous").module.with_mirrored
    mirrored = mirror(minibatch | {"mean": column[:, None]}, signs, signs)
    for name in ("teacher_actions", "mean"):
        assert mirrored[name].flatten().tolist() == [1, 2, -1, -2]


def test_the_mirror_of_pendulum_is_exact(made, tmp_path):
    """As that of CartPole, and normalized observations of mirror images are those of the originals with other signs."""
    script = made("with/symmetry-continuous")
    signs = np.array(script.module.MIRRORS["Pendulum-v1"][0])
    envs = [gym.make("Pendulum-v1"), gym.make("Pendulum-v1")]
    for env in envs:
        env.reset(seed=1)
    envs[1].unwrapped.state = -envs[0].unwrapped.state
    normalize = script.module.make_envs(script.module.Args(env_id="Pendulum-v1"))
    normalize.reset(seed=1)
    random = np.random.default_rng(1)
    for _ in range(100):
        action = random.uniform(-3, 3, 1).astype(np.float32)
        obs, reward, *_ = envs[0].step(action)
        mirrored, mirrored_reward, *_ = envs[1].step(-action)
        np.testing.assert_allclose(mirrored, signs * obs, rtol=0, atol=1e-4)
        assert mirrored_reward == pytest.approx(reward, abs=1e-4)
        normalize.step(action[np.newaxis])
        np.testing.assert_allclose(normalize.scale(signs * obs), signs * normalize.scale(obs), atol=1e-6)
    assert normalize.obs_stats.mean[0] != 0

    options = "--no-cuda --env-id Pendulum-v1 --num-envs 2 --num-steps 32 --num-minibatches 4 --update-epochs 1"
    with watched(script.module, "ppo_loss", lambda agent, minibatch, args: minibatch) as seen:
        train(script, f"{options} --total-timesteps 64", tmp_path)
    assert len(seen) == 4
    for minibatch in seen:
        halves = {name: column.numpy().reshape(2, 16, -1) for name, column in minibatch.items()}
        np.testing.assert_array_equal(halves["obs"][1], signs * halves["obs"][0])
        np.testing.assert_array_equal(halves["actions"][1], -halves["actions"][0])
        for name in ("logprobs", "values", "returns"):
            np.testing.assert_array_equal(halves[name][1], halves[name][0])


# values as distributions


def test_values_over_bins(made):
    """Targets by np.interp, one bin at a time; a distribution of the target gives the return back."""
    script = made("with/two-hot")
    agent = script.module.Agent(spaces(VECTOR, gym.spaces.Discrete(2)))
    bins = agent.bins.double().numpy()
    np.testing.assert_allclose(np.diff(bins), 40 / 254, rtol=1e-4)
    returns = np.array([-1e12, -37.2, 0.0, 0.01, 500.0])
    symlogs = np.sign(returns) * np.log(np.abs(returns) + 1)
    expected = np.array([np.interp(symlogs, bins, unit) for unit in np.eye(255)]).T
    found = script.module.two_hot(script.module.symlog(torch.tensor(returns)), agent.bins.double())
    np.testing.assert_allclose(found, expected, atol=1e-3)  # the bins, float32, have gaps that differ a little
    assert (found > 0.01).sum(-1).tolist() == [1, 2, 1, 2, 2]

    obs = torch.randn(5, 4)
    assert agent(obs)[1].abs().max() < 1e-4
    torch.nn.init.orthogonal_(agent.value.weight, 3.0)
    policy, values, log_bins = agent(obs)
    bin_means = (log_bins.detach().double().exp().numpy() * bins).sum(-1)
    symexps = np.sign(bin_means) * (np.exp(np.abs(bin_means)) - 1)
    np.testing.assert_allclose(values.detach(), symexps, rtol=1e-4, atol=1e-5)

    actions = torch.ones(5, dtype=torch.int64)
    minibatch = {"obs": obs, "actions": actions, "logprobs": policy.log_prob(actions).detach()}
    minibatch |= {"values": values.detach(), "returns": torch.tensor(returns, dtype=torch.float32)}
    _, stats = script.module.ppo_loss(agent, minibatch, script.module.Args())
    cross_entropy = -(expected * log_bins.detach().double().numpy()).sum(-1).mean()
    assert stats["value_loss"].item() == pytest.approx(cross_entropy, rel=1e-4)


# rollouts and minibatches


def test_episodes_begin_apart(made):
    """After random steps that a copy of the environment repeats; later episodes have their whole length."""
    module = made("with/staggered-resets").module
    envs = module.make_envs(module.Args(env_id="MountainCar-v0", num_envs=4))
    obs, _ = envs.reset(seed=7)
    for index in range(4):
        env = gym.make("MountainCar-v0")
        expected, _ = env.reset(seed=7 + index)
        env.action_space.seed(7 + index)
        for _ in range(50 * index):
            expected, *_ = env.step(env.action_space.sample())
        np.testing.assert_array_equal(obs[index], expected)

    ends = [[], [], [], []]
    for step in range(1, 401):
        *_, truncated, infos = envs.step(np.ones(4, dtype=int))
        for index in np.flatnonzero(truncated):
            ends[index].append(step)
            assert infos["final_info"]["episode"]["l"][index] == 200
    assert ends == [[200, 400], [150, 350], [100, 300], [50, 250]]

    env = module.make_env(module.Args(num_envs=1), 0, None)  # later episodes do not seed the action space
    env.reset(seed=7)
    state = env.action_space.np_random.bit_generator.state
    env.reset()
    assert env.action_space.np_random.bit_generator.state == state

    args = module.Args(num_envs=4, horizon=80)  # the random player of CartPole loses, and begins anew
    obs, _ = module.make_envs(args).reset(seed=7)
    assert (np.abs(obs[:, 2]) < 0.21).all()


def test_a_task_without_a_time_limit_needs_a_horizon(made):
    module = made("with/staggered-resets").module
    gym.register("NoLimit-v0", "gymnasium.envs.classic_control:CartPoleEnv")
    with pytest.raises(SystemExit, match="--horizon"):
        module.make_envs(module.Args(env_id="NoLimit-v0"))
    module.make_envs(module.Args(env_id="NoLimit-v0", horizon=100))


def test_the_loss_has_the_churn(made, tmp_path):
    """The KL divergence with numpy; in a run, the policy it starts from is the one before the last step."""
    script = made("with/churn")
    agent = script.module.Agent(spaces(VECTOR, gym.spaces.Discrete(3)))
    torch.nn.init.orthogonal_(agent.policy.weight, 2.0)
    minibatch = {"obs": torch.randn(8, 4), "actions": torch.ones(8, dtype=torch.int64), "logprobs": torch.zeros(8)}
    minibatch |= {"values": torch.zeros(8), "returns": torch.randn(8)}
    minibatch |= {"other_obs": torch.randn(8, 4), "previous_logits": torch.randn(8, 3).log_softmax(-1)}
    losses = []
    for coefficient in (0.0, 2.0):
        loss, stats = script.module.ppo_loss(agent, minibatch, script.module.Args(churn_coef=coefficient))
        losses.append(loss.item())
    before = np.exp(minibatch["previous_logits"].numpy())
    after = np.exp(agent.get_policy(minibatch["other_obs"]).logits.detach().numpy())
    expected = (before * np.log(before / after)).sum(-1).mean()
    assert stats["churn"].item() == pytest.approx(expected, rel=1e-4)
    assert losses[1] - losses[0] == pytest.approx(2 * expected, rel=1e-4)

    def look(agent, minibatch, args):
        rows, other_rows = (set(map(tuple, minibatch[name].tolist())) for name in ("obs", "other_obs"))
        with torch.no_grad():
            logits = agent.get_policy(minibatch["other_obs"]).logits
        common = len(rows & other_rows)
        return copy.deepcopy(agent), minibatch["other_obs"], minibatch["previous_logits"], logits, common

    with watched(script.module, "ppo_loss", look) as seen:
        run = train(script, f"{SMALL} --total-timesteps 128", tmp_path)
    assert torch.equal(seen[0][2], seen[0][3])
    for (earlier, *_), (_, other_obs, previous_logits, logits, common) in itertools.pairwise(seen):
        with torch.no_grad():
            torch.testing.assert_close(previous_logits, earlier.get_policy(other_obs).logits)
        assert not torch.equal(previous_logits, logits) and common < 16
    previous = checkpoint(run)["parts"]["previous"]
    assert equal(previous, dict(seen[-1][0].state_dict()))

    with watched(script.module, "ppo_loss", look) as seen:  # a run of its own that begins with a checkpoint
        file = train(PPO, f"{SMALL} --total-timesteps 64", tmp_path / "base")
        train(script, f"--resume {max(file.glob('checkpoint_*.pt'))} --total-timesteps 128", tmp_path)
    assert torch.equal(seen[0][2], seen[0][3])


def test_an_actor_of_bins(made):
    """Log probabilities and entropies with numpy, and the residual network layer by layer."""
    module = made("with/discrete-actor").module
    low, high = np.array([-2.0, 0.0], dtype=np.float32), np.array([2.0, 1.0], dtype=np.float32)
    agent = module.Agent(spaces(VECTOR, gym.spaces.Box(low, high)))
    torch.nn.init.orthogonal_(agent.policy.weight, 1.0)
    values = agent.bins.numpy()
    np.testing.assert_allclose(values, [np.linspace(-2, 2, 41), np.linspace(0, 1, 41)], atol=1e-6)

    def linear(x, layer):
        return x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()

    def normalize(x):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)

    obs = torch.randn(6, 4)
    first, *blocks, _ = agent.policy_trunk
    hidden = linear(obs.numpy(), first)
    for block in blocks:
        _, wide, _, narrow = block.layers
        hidden = hidden + linear(np.maximum(linear(normalize(hidden), wide), 0), narrow)
    logits = linear(normalize(hidden), agent.policy).reshape(6, 2, 41)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    policy = agent.get_policy(obs)
    actions = policy.sample(torch.Generator().manual_seed(1))
    expected = np.zeros(6)
    for row, action in enumerate(actions.numpy()):
        for component in range(2):
            [chosen] = np.flatnonzero(values[component] == action[component])
            expected[row] += log_probs[row, component, chosen]
    np.testing.assert_allclose(policy.log_prob(actions).detach(), expected, atol=1e-4)
    entropies = -(np.exp(log_probs) * log_probs).sum((1, 2))
    np.testing.assert_allclose(policy.entropy().detach(), entropies, atol=1e-4)
    best = [[values[k][log_probs[row, k].argmax()] for k in range(2)] for row in range(6)]
    np.testing.assert_array_equal(policy.mode(), best)


def test_bins_are_drawn_as_often_as_they_are_likely(made):
    module = made("with/discrete-actor").module
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0, 0.0, 0.5]]).expand(60_000, 6)
    policy = module.Bins(logits, torch.tensor([[-1.0, 0.0, 1.0], [0.0, 2.0, 4.0]]))
    drawn = policy.sample(torch.Generator().manual_seed(1))
    for component, values in enumerate(policy.bins):
        probabilities = np.exp(logits[0].numpy().reshape(2, 3)[component])
        shares = [(drawn[:, component] == value).float().mean().item() for value in values]
        np.testing.assert_allclose(shares, probabilities / probabilities.sum(), atol=0.01)


@pytest.mark.parametrize("name", ["with/discrete-actor", "without/continuous-1"])
def test_bins_need_bounds(name, made):
    def unbounded():
        env = gym.make("Pendulum-v1").unwrapped
        env.action_space = gym.spaces.Box(-np.inf, np.inf, (1,))
        return env

    gym.register("Unbounded-v0", unbounded)
    module = made(name).module
    with pytest.raises(SystemExit, match="finite bounds"):
        module.make_envs(module.Args(env_id="Unbounded-v0"))


def test_segments_of_nan_are_drawn_all_the_same(made):
    """So that log_update() ends the run, with its line."""
    module = made("with/prioritized-segments").module
    segments = module.segment_rows(8, 2, 4)
    rows, _ = module.sample_segments(torch.full((16,), np.nan), segments, 2, module.Args(), torch.Generator())
    assert len(set(rows.tolist())) == 8


def test_vtrace_advantages_of_segments(made, tmp_path):
    """Advantages as sums of products, and each minibatch with values and ratios of the agent at present."""
    script = made("with/prioritized-segments")
    random = np.random.default_rng(1)
    rewards, values, ratios = random.normal(1, 0.5, (3, 6, 2)).astype(np.float32)
    dones = random.random((6, 2)) < 0.3
    next_value = random.normal(size=2).astype(np.float32)
    found = script.module.vtrace(rewards, values, dones, ratios, next_value, 0.9, 0.8)
    expected = np.zeros((6, 2))
    later_values = np.concatenate([values[1:], [next_value]])
    for t, n in np.ndindex(6, 2):
        factor = 1.0
        for k in range(t, 6):
            clipped = min(ratios[k, n], 1)
            delta = rewards[k, n] + 0.9 * later_values[k, n] * (not dones[k, n]) - values[k, n]
            expected[t, n] += factor * clipped * delta
            factor *= 0.9 * 0.8 * clipped * (not dones[k, n])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert (ratios > 1).any() and (ratios < 1).any() and dones.any()

    def look(agent, minibatch, args):
        with torch.no_grad():
            _, values = agent(minibatch["obs"])
        return values, minibatch["values"]

    with (
        watched(script.module, "ppo_loss", look) as seen,
        watched(script.module, "vtrace", lambda *args: args) as calls,
    ):
        train(script, f"{SMALL} --total-timesteps 64", tmp_path)
    assert len(seen) == 16 and len(calls) == 17
    for values, expected in seen:
        torch.testing.assert_close(values, expected)
    assert (calls[0][3] == 1).all() and np.abs(calls[-1][3] - 1).max() > 1e-4
    with pytest.raises(SystemExit, match="--segment-length"):
        train(script, f"{SMALL} --segment-length 5", tmp_path)


def test_segments_are_drawn_by_their_advantages(made):
    """As often as (sum of |A|)^alpha says, with the weights (N p)^-beta, which count in the policy loss alone."""
    module = made("with/prioritized-segments").module
    segments = module.segment_rows(4, 3, 2)
    assert segments.tolist() == [[0, 3], [1, 4], [2, 5], [6, 9], [7, 10], [8, 11]]
    advantages = torch.linspace(-1, 2, 12)
    priorities = [sum(abs(advantages[row].item()) for row in rows) ** 0.8 for rows in segments.tolist()]
    probabilities = np.array(priorities) / sum(priorities)
    generator = torch.Generator().manual_seed(1)
    counts = np.zeros(6)
    for _ in range(5_000):
        rows, weights = module.sample_segments(advantages, segments, 1, module.Args(), generator)
        chosen = segments.tolist().index(rows.tolist())
        np.testing.assert_allclose(weights, (6 * probabilities[[chosen, chosen]]) ** -0.2, rtol=1e-4)
        counts[chosen] += 1
    np.testing.assert_allclose(counts / 5_000, probabilities, atol=0.03)
    rows, _ = module.sample_segments(advantages, segments, 6, module.Args(), generator)
    assert sorted(rows.tolist()) == list(range(12))

    policy = module.Categorical(torch.zeros(4, 2))
    minibatch = {"obs": None, "actions": torch.tensor([0, 1, 0, 1]), "logprobs": torch.zeros(4)}
    minibatch |= {"values": torch.zeros(4), "returns": torch.tensor([1.0, -2.0, 0.5, 3.0])}
    minibatch["weights"] = torch.tensor([1.0, 2.0, 0.5, 1.5])
    _, stats = module.ppo_loss(lambda obs: (policy, torch.zeros(4)), minibatch, module.Args())
    returns = minibatch["returns"].numpy()
    weighted = minibatch["weights"].numpy() * (returns - returns.mean()) / returns.std()
    losses = np.maximum(-0.5 * weighted, -0.8 * weighted)  # each ratio is 0.5, and its clip 0.8
    assert stats["policy_loss"].item() == pytest.approx(losses.mean(), rel=1e-4)
    assert stats["value_loss"].item() == pytest.approx((returns**2).mean() / 2)
