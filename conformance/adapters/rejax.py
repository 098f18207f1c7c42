"""Rejax's PPO: its train_iteration() runs on a world, without compilation, with tables in place of its networks."""

import dataclasses
import importlib.metadata
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.training.train_state import TrainState
from gymnax.environments import spaces
from rejax.algos import ppo
from rejax.networks import DiscretePolicy, GaussianPolicy

from conformance.adapters.jax_tables import find, gradient_of_means
from conformance.problems import Player, Refused, Settings, Step, make_world, split_updates

NAME = "Rejax"
VERSION = importlib.metadata.version("rejax")
KINDS = "discrete", "continuous"


class Environments:
    """A world as a vector of environments, with the interface of gymnax."""

    def __init__(self, world, low=-100.0, high=100.0):
        self.world = world
        self.player = Player(world)
        self.bounds = jnp.asarray(low), jnp.asarray(high)

    def action_space(self, params=None):
        if self.world.kind == "discrete":
            return spaces.Discrete(self.world.num_outputs)
        return spaces.Box(*self.bounds, (self.world.num_outputs,))

    def observation_space(self, params=None):
        return SimpleNamespace(shape=(1,))

    def reset(self, keys, params):
        return jnp.asarray(self.player.reset(), jnp.float32)[:, None], jnp.zeros(self.world.num_envs)

    def step(self, keys, state, actions, params):
        rows, rewards, terminated, truncated, _ = self.player.step(np.asarray(actions))
        obs = jnp.asarray(rows, jnp.float32)[:, None]
        return obs, state, jnp.asarray(rewards), jnp.asarray(terminated | truncated, jnp.float32), {}


def make_networks(world, seen):
    """Its policy and a value function, with tables in place of layers; `seen` gets the rows of each minibatch."""

    class Rows(nn.Module):
        name_of_table: str

        @nn.compact
        def __call__(self, obs):
            start = jnp.asarray(getattr(world, self.name_of_table))
            table = self.param("table", lambda key: start)
            rows = obs[:, 0].astype(int)
            if isinstance(table, jax.core.Tracer):  # a gradient is computed: this is the update
                seen.rows = np.asarray(rows)
            else:
                table = jnp.asarray(getattr(world, f"old_{self.name_of_table}"))
            return table[rows]

    class Discrete(DiscretePolicy):
        def setup(self):
            self.features = lambda obs: obs
            self.action_logits = Rows("policy")

    class Gaussian(GaussianPolicy):
        def setup(self):
            self.features = lambda obs: obs
            self.action_mean = Rows("policy")
            self.action_log_std = self.param("action_log_std", lambda key: jnp.asarray(world.logstd))

    unused = {"hidden_layer_sizes": (), "activation": nn.swish}
    if world.kind == "discrete":
        policy = Discrete(world.num_outputs, **unused)
    else:
        policy = Gaussian(world.num_outputs, (-100, 100), **unused)
    return policy, Rows("value")


def tables(tree):
    """{name: array} as problems.Step has them, of the parameters, gradients or means of one of its networks."""
    tree = tree["params"]
    if "table" in tree:
        return {"value": np.asarray(tree["table"], float)}
    named = {}
    for name, part in tree.items():
        if name == "action_log_std":
            named["logstd"] = np.asarray(part, float)
        else:
            named["policy"] = np.asarray(part["table"], float)
    return named


def algorithm_on(envs):
    """Its class for environments whose functions take all of them at once."""

    class Algorithm(ppo.PPO):
        @property
        def vmap_reset(self):
            return envs.reset

        @property
        def vmap_step(self):
            return envs.step

    return Algorithm


def train(world, settings, updates=1, environments=None):
    """What was recorded of a run: steps, the environments, Adam's states, and the last advantages and returns."""
    envs = environments or Environments(world)
    seen = SimpleNamespace(halves=[], rows=None, states=[], envs=envs)
    policy, value = make_networks(world, seen)

    class Recording(TrainState):
        def apply_gradients(self, *, grads, **options):
            after = super().apply_gradients(grads=grads, **options)
            means = [tables(find(state.opt_state, "mu")) for state in (self, after)]
            clipped = {name: gradient_of_means(means[0][name], means[1][name]) for name in means[0]}
            parts = [tables(tree) for tree in (self.params, after.params, grads)]
            seen.halves.append((seen.rows, *parts, clipped))
            seen.states.append(after.opt_state)
            return after

    class Algorithm(algorithm_on(envs)):
        def calculate_gae(self, trajectories, last_val):
            seen.advantages, seen.returns = super().calculate_gae(trajectories, last_val)
            return seen.advantages, seen.returns

    kept = ppo.TrainState
    ppo.TrainState = Recording
    try:
        algorithm = Algorithm(
            env=envs,
            env_params=None,
            eval_callback=None,
            actor=policy,
            critic=value,
            num_envs=world.num_envs,
            num_steps=world.num_steps,
            num_epochs=settings.update_epochs,
            num_minibatches=settings.num_minibatches,
            learning_rate=settings.learning_rate,
            gamma=settings.gamma,
            gae_lambda=settings.gae_lambda,
            clip_eps=settings.clip_coef,
            vf_coef=settings.vf_coef,
            ent_coef=settings.ent_coef,
            max_grad_norm=settings.max_grad_norm,
        )
        with jax.disable_jit():
            state = algorithm.init_state(jax.random.PRNGKey(1))
            for _ in range(updates):
                state = algorithm.train_iteration(state)
    except AssertionError as error:
        raise Refused(str(error)) from None
    finally:
        ppo.TrainState = kept
    return seen


def rate_of_step(before, after, state, count):
    """The learning rate of step `count` of the policy's Adam, from the largest change of its table and Adam's means."""
    mean = tables(find(state, "mu"))["policy"] / (1 - 0.9**count)
    square = tables(find(state, "nu"))["policy"] / (1 - 0.999**count)
    change = after["policy"] - before["policy"]
    largest = np.unravel_index(np.abs(change).argmax(), change.shape)
    return -change[largest] * (np.sqrt(square[largest]) + 1e-8) / mean[largest]


def updates(world, settings, count):
    if world.kind not in KINDS:
        return None
    seen = train(world, settings, count)
    steps = []
    for of_policy, of_value in zip(seen.halves[::2], seen.halves[1::2], strict=True):
        rows, *parts = of_policy
        _, *parts_of_value = of_value
        steps.append(Step(rows, *(one | other for one, other in zip(parts, parts_of_value, strict=True))))
    found = {name: np.asarray(getattr(seen, name)) for name in ("advantages", "returns")}
    return split_updates(seen.envs.player.rollouts, steps, **found)


def update(world, settings):
    answer = updates(world, settings, 1)
    return answer and answer[0]


def advantages(world, settings):
    seen = train(world, settings)
    return {"advantages": np.asarray(seen.advantages), "returns": np.asarray(seen.returns)}


def dense_layers(tree):
    """The layers in a tree of parameters, from the input to the output."""
    found = []
    for name in sorted(tree, key=lambda name: (name.startswith("action"), name.startswith("Dense"), name)):
        part = tree[name]
        if name == "action_log_std":
            continue
        if "kernel" in part:
            found.append((np.asarray(part["kernel"]).T, np.asarray(part["bias"])))
        else:
            found += dense_layers(part)
    return found


def initial_weights(seed, kind):
    if kind not in KINDS:
        return None
    networks = ppo.PPO.create_agent({}, Environments(make_world(kind)), None)
    _, *keys = jax.random.split(jax.random.PRNGKey(seed), 3)
    obs = jnp.zeros((1, 6))
    policy = networks["actor"].init(keys[0], obs, keys[0])["params"]
    value = networks["critic"].init(keys[1], obs)["params"]
    found = {"policy": dense_layers(policy), "value": dense_layers(value)}
    if kind == "continuous":
        found["logstd"] = np.asarray(policy["action_log_std"])
    return found


def schedules(updates):
    """The learning rates of the policy's steps, computed from the changes of its weights."""
    seen = train(make_world(), Settings(num_minibatches=1, update_epochs=1), updates)
    of_policy = zip(seen.halves[::2], seen.states[::2], strict=True)
    steps = enumerate(of_policy, start=1)
    return {"learning_rate": [rate_of_step(half[1], half[2], state, count) for count, (half, state) in steps]}


def environment_actions(samples, low, high):
    """What its loop hands to environments whose bounds are low and high."""
    world = make_world("continuous")
    means = np.zeros_like(world.old_policy)
    means[: len(samples)] = samples
    precise = dataclasses.replace(world, old_policy=means, logstd=np.float32([-40, -40]))
    seen = train(precise, Settings(num_minibatches=1, update_epochs=1), environments=Environments(precise, low, high))
    return np.array(seen.envs.player.actions).reshape(-1, 2)[: len(samples)]


class Replay:
    """A vector of environments that replays a stream; its state is the number of the next step."""

    def __init__(self, stream):
        self.obs, self.rewards, self.ends = (jnp.asarray(array) for array in (stream.obs, stream.rewards, stream.ends))

    def action_space(self, params=None):
        return spaces.Box(-1.0, 1.0, (2,))

    def observation_space(self, params=None):
        return SimpleNamespace(shape=self.obs.shape[2:])

    def reset(self, keys, params):
        return self.obs[0], 0

    def step(self, keys, t, actions, params):
        return self.obs[t + 1], t + 1, self.rewards[t], self.ends[t], {}


def normalize(stream):
    """What its rollout has with its two options for it."""
    envs = Replay(stream)
    algorithm = algorithm_on(envs)(
        env=envs,
        env_params=None,
        eval_callback=None,
        **ppo.PPO.create_agent({}, envs, None),
        num_envs=stream.rewards.shape[1],
        num_steps=len(stream.rewards),
        num_minibatches=1,
        normalize_observations=True,
        normalize_rewards=True,
        reward_normalization_discount=stream.gamma,
    )
    state, rollout = algorithm.collect_trajectories(algorithm.init_state(jax.random.PRNGKey(1)))
    return {"observations": np.concatenate([rollout.obs, state.last_obs[None]]), "rewards": np.asarray(rollout.reward)}
