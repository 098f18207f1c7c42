"""impala_atari_cleanba.py: V-trace, its loss and RMSprop against their formulas; the rollouts that it trains on."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from in_process import watched
from ranks import Ranks, in_float64, run, weights
from run_files import checkpoint, scalars
from test_cleanba import changed, delay, numbers
from toy_envs import spaces

import impala_atari_cleanba as script

SMALL = "--num-envs 8 --num-steps 8 --num-minibatches 2 --threads 1 --network nature"
M, B, GAMMA = 9, 5, 0.9


def rollout(seed=1):
    """Random rewards, values, dones and ratios, in float64; the ratios are around 1."""
    random = np.random.default_rng(seed)
    numbers = [random.normal(size=(M, B)), random.normal(size=(M + 1, B))]
    return [*numbers, random.random((M, B)) < 0.2, np.exp(random.normal(size=(M, B)))]


def by_definition(rewards, values, dones, ratios):
    """Equation 1 of Espeholt et al. (2018), as the double sum and product that it is, and the gradient's advantage."""
    targets = values.copy()
    for b in range(B):
        for s in range(M):
            for t in range(s, M):
                if dones[s:t, b].any():  # the episode of step s has ended
                    break
                after = 0.0 if dones[t, b] else values[t + 1, b]
                delta = min(1.0, ratios[t, b]) * (rewards[t, b] + GAMMA * after - values[t, b])
                targets[s, b] += GAMMA ** (t - s) * np.prod(np.minimum(1.0, ratios[s:t, b])) * delta
    advantages = np.zeros((M, B))
    for s, b in np.ndindex(M, B):
        after = 0.0 if dones[s, b] else targets[s + 1, b]
        advantages[s, b] = min(1.0, ratios[s, b]) * (rewards[s, b] + GAMMA * after - values[s, b])
    return targets[:-1], advantages


@pytest.mark.parametrize("seed", [1, 2])
def test_vtrace_by_definition(seed):
    columns = rollout(seed)
    _, _, dones, ratios = columns
    assert dones.any() and (ratios > 1).any() and (ratios < 1).any()
    traced = script.vtrace(*map(torch.from_numpy, columns), GAMMA)
    for found, expected in zip(traced, by_definition(*columns), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


class Linear(torch.nn.Module):
    """An agent of 3 numbers, 2 actions: `weights` are those of the logits, and of the value."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.randn(3, 3, dtype=torch.float64))

    def forward(self, obs):
        outputs = obs @ self.weights
        return script.Categorical(outputs[..., :2]), outputs[..., 2]


def test_the_state_of_rmsprop_is_restored():
    torch.manual_seed(1)
    agent = Linear()
    first = script.RMSprop(agent)
    second = script.RMSprop(agent)
    script.rmsprop_step(first, torch.randn(9, dtype=torch.float64), 0.1)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.square, first.square) and first.square.all()


def test_minibatches_that_do_not_divide(tmp_path):
    group = Ranks(0, f"{SMALL} --num-minibatches 3 --total-timesteps 64", tmp_path, module=script)
    assert group.wait() == [1]
    assert "error: --num-envs gives each actor 8 environments, not a multiple of --num-minibatches 3" in group.said()


def test_the_loss_and_its_gradient():
    """Sums over the steps; targets and advantages are constants."""
    torch.manual_seed(1)
    args, agent = script.Args(gamma=GAMMA, vf_coef=0.7, ent_coef=0.3), Linear()
    rewards, _, dones, _ = rollout()
    obs, actions = torch.randn(M + 1, B, 3, dtype=torch.float64), torch.randint(2, (M, B))
    logprobs = torch.randn(M, B, dtype=torch.float64).clamp(max=-0.1)
    minibatch = {"obs": obs[:-1], "next_obs": obs[-1:], "actions": actions, "logprobs": logprobs}
    minibatch |= {"rewards": torch.from_numpy(rewards), "dones": torch.from_numpy(dones)}
    loss, _ = script.impala_loss(agent, minibatch, args)
    outputs = obs @ agent.weights
    policy, values = torch.distributions.Categorical(logits=outputs[:-1, :, :2]), outputs[..., 2]
    chosen = policy.log_prob(actions)
    ratios = (chosen - logprobs).exp().detach().numpy()
    constants = by_definition(rewards, values.detach().numpy(), dones, ratios)
    targets, advantages = map(torch.from_numpy, constants)
    errors, entropy = values[:-1] - targets, policy.entropy().sum()
    expected = -(advantages * chosen).sum() + 0.7 * 0.5 * (errors**2).sum() - 0.3 * entropy
    torch.testing.assert_close(loss, expected)
    gradients = (torch.autograd.grad(each, agent.weights)[0] for each in (loss, expected))
    torch.testing.assert_close(*gradients)


def record(file):
    """Writes every step of the environments, every minibatch, and the policy's bias and gradient at each step."""
    seen = {"steps": [], "minibatches": [], "gradients": []}
    step, gradient_step, rmsprop_step = script.EnvPool.step, script.gradient_step, script.rmsprop_step

    def step_seen(envs, actions):
        before = np.stack(envs.frames, axis=-1)
        answer = step(envs, actions)
        seen["steps"].append([torch.from_numpy(np.array(x)) for x in (before, actions, *answer[:4])])
        return answer

    def gradient_step_seen(agent, optimizer, minibatch, args):
        seen["minibatches"].append({name: column.clone() for name, column in minibatch.items()})
        return gradient_step(agent, optimizer, minibatch, args)

    def rmsprop_step_seen(optimizer, gradient, learning_rate):
        sizes = [parameter.numel() for parameter in optimizer.parameters]
        place = -3  # the last parameters are the policy's bias, and the weight and the bias of the value
        bias = optimizer.parameters[place]
        gradient_of_bias = gradient.split(sizes)[place]
        seen["gradients"].append((bias.detach().clone(), gradient_of_bias.clone()))
        # copies of the lists, as an actor goes on with "steps" meanwhile
        torch.save({name: list(each) for name, each in seen.items()}, file)
        rmsprop_step(optimizer, gradient, learning_rate)

    script.EnvPool.step, script.gradient_step, script.rmsprop_step = step_seen, gradient_step_seen, rmsprop_step_seen


def test_a_run_trains_on_what_happened(tmp_path):
    """Each action with its own reward and end, in rollouts that follow each other; two minibatches of every second
    environment; RMSprop after the formula."""
    options = "--num-envs 4 --num-steps 40 --num-minibatches 2 --total-timesteps 640 --threads 1 --network nature"
    folder = run(0, options, tmp_path, changed(lambda: record(tmp_path / "seen")), script)
    seen = torch.load(tmp_path / "seen", weights_only=True)
    ends = 0
    for number, minibatch in enumerate(seen["minibatches"]):
        first, part = number // 2 * 40, slice(number % 2, None, 2)
        before, actions, after, rewards, terminated, truncated = (
            torch.stack(column)[:, part] for column in zip(*seen["steps"][first : first + 40], strict=True)
        )
        assert torch.equal(minibatch["obs"], before) and torch.equal(minibatch["next_obs"][0], after[-1])
        assert torch.equal(minibatch["actions"], actions) and torch.equal(minibatch["rewards"], rewards.float())
        assert torch.equal(minibatch["dones"], terminated | truncated)
        ends += minibatch["dones"].sum()
    assert len(seen["minibatches"]) == 8 and ends > 0

    squares, biases = 0.0, [bias for bias, _ in seen["gradients"][1:]]
    biases.append(checkpoint(folder)["parts"]["agent"]["policy.bias"])
    for number, ((before, gradient), after) in enumerate(zip(seen["gradients"], biases, strict=True)):
        squares = 0.99 * squares + 0.01 * gradient.double() ** 2
        step = 6e-4 * (1 - number // 2 / 4) * gradient.double() / (squares.sqrt() + 0.01)
        # A step is at most 6e-4 / sqrt(0.01) = 6e-3, and some ten roundings in float32 make 1e-6 of it.
        torch.testing.assert_close(before.double() - step, after.double(), rtol=1e-6, atol=1e-8)
    rates = [rate for _, rate in scalars(folder)["charts/learning_rate"]]
    np.testing.assert_allclose(rates, [6e-4, 4.5e-4, 3e-4, 1.5e-4], rtol=1e-6)


def test_the_bootstrap_at_a_truncation(tmp_path):
    """--bootstrap-truncated adds gamma times the value of the last observation to the reward of a truncated step."""

    def change(rank):
        step, forward = script.EnvPool.step, script.Agent.forward

        def truncated(envs, actions):
            obs, rewards, terminated, _, infos = step(envs, actions)
            never = np.zeros_like(terminated)
            return obs, np.zeros(len(rewards)), never, ~never, infos | {"final_obs": obs}

        script.EnvPool.step = truncated
        script.Agent.forward = lambda agent, obs: (forward(agent, obs)[0], torch.full((len(obs),), 2.0))

        def gradient_step(agent, optimizer, minibatch, args):
            torch.save(minibatch["rewards"].clone(), tmp_path / "rewards")
            return {"policy_loss": torch.zeros(())}

        script.gradient_step = gradient_step

    run(0, f"{SMALL} --total-timesteps 64 --bootstrap-truncated", tmp_path, change, script)
    assert (torch.load(tmp_path / "rewards", weights_only=True) == torch.tensor(0.99 * 2.0)).all()


def test_the_norm_is_cut_at_40():
    """Of the gradient of all steps together."""
    norms = []
    for scale in (0.1, 100.0):
        torch.manual_seed(1)
        agent, args = Linear(), script.Args(num_envs=B, num_steps=M, num_minibatches=1, ent_coef=0.0, vf_coef=0.0)
        minibatch = {"obs": torch.randn(M, B, 3).double(), "next_obs": torch.zeros(1, B, 3).double()}
        minibatch |= {"actions": torch.ones(M, B, dtype=torch.int64), "logprobs": torch.full((M, B), -0.7).double()}
        minibatch |= {"rewards": torch.full((M, B), scale).double(), "dones": torch.ones(M, B, dtype=torch.bool)}
        with watched(script, "rmsprop_step", lambda optimizer, gradient, learning_rate: gradient) as given:
            stats = script.gradient_step(agent, script.RMSprop(agent), minibatch, args)
        [gradient] = given
        norms.append((float(stats["grad_norm"]), float(gradient.norm())))
    assert norms[0][0] == pytest.approx(norms[0][1]) and norms[0][0] < 40 < norms[1][0]
    assert norms[1][1] == pytest.approx(40, rel=1e-5)


@pytest.mark.slow
def test_ratios_are_those_to_the_behaviour(tmp_path):
    """1 where the agent that trains made the rollout: always without concurrency, else in the first update alone."""
    options = f"{SMALL} --num-minibatches 1 --total-timesteps 256 --learning-rate 0.003 --no-anneal-lr"
    for concurrency, name in ((True, ""), (False, " --no-concurrency")):
        log = scalars(run(0, options + name, tmp_path / str(concurrency), module=script))
        off = [abs(ratio - 1) for _, ratio in log["losses/ratio"]]
        kl = [kl for _, kl in log["losses/approx_kl"]]
        assert off[0] < 1e-5 and kl[0] < 1e-6 and len(kl) == 4
        if concurrency:
            assert min(kl[1:]) > 1e-6
        else:
            assert max(off) < 1e-5 and max(kl) < 1e-6
        assert [lag for _, lag in log["charts/policy_lag"]] == ([0, 1, 1, 1] if concurrency else [0] * 4)


@pytest.mark.slow
def test_speed_and_ranks_change_nothing(tmp_path):
    """Bit for bit where one side is slow; to rounding as two ranks, of which each has a part of every minibatch."""
    options = f"{SMALL} --total-timesteps 256 --actor-threads 2"
    one = run(0, options, tmp_path / "one", module=script)
    for name, change in {
        "slow learner": lambda: delay(script, "gradient_step", 0.1),
        "slow actors": lambda: delay(script, "EnvPool.step", 0.02),
    }.items():
        other = run(0, options, tmp_path / name, changed(change), script)
        assert torch.equal(weights(other), weights(one)) and numbers(other) == numbers(one)
    change = changed(lambda: in_float64(script))
    one, two = (run(ranks, options, tmp_path / f"{ranks} ranks", change, script) for ranks in (0, 2))
    assert (weights(one) - weights(two)).abs().max() < 1e-12
    for name in ("losses/value_loss", "losses/entropy", "losses/grad_norm", "losses/ratio"):
        np.testing.assert_allclose(numbers(two)[name], numbers(one)[name], rtol=1e-6)  # a log is in float32


def test_the_default_network_is_cleanba_s():
    """1,094,115 parameters with 18 actions; pooling goes over the edge as TensorFlow's does."""
    images = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    agent = script.Agent(spaces(images, gym.spaces.Discrete(18)), network="impala")
    assert sum(parameter.numel() for parameter in agent.parameters()) == 1_094_115
    poolings = []
    for layer in agent.trunk:
        if isinstance(layer, torch.nn.MaxPool2d):
            layer.register_forward_hook(lambda layer, images, pooled: poolings.append((images[0], pooled)))
    agent(torch.randint(256, (2, 84, 84, 4), dtype=torch.uint8))
    for images, pooled in poolings:
        size = images.shape[-1]
        total = max((-(-size // 2) - 1) * 2 + 3 - size, 0)  # the padding of SAME, less of it at the top and the left
        padded = torch.nn.functional.pad(images, (total // 2, total - total // 2) * 2, value=-torch.inf)
        assert torch.equal(pooled, torch.nn.functional.max_pool2d(padded, 3, 2))
    assert [pooled.shape[-1] for _, pooled in poolings] == [42, 21, 11]
    convolutions = [layer for layer in agent.trunk.modules() if isinstance(layer, torch.nn.Conv2d)]
    assert len(convolutions) == 15
    for layer in convolutions:  # LeCun's initialization
        assert layer.weight.std().item() * layer.weight[0].numel() ** 0.5 == pytest.approx(1, rel=0.1)
    assert torch.equal(script.Residual(torch.nn.Identity())(torch.ones(2)), torch.full((2,), 2.0))
