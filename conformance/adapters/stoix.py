"""Stoix's PPO for discrete actions, whose package must be importable: PYTHONPATH=path/to/its/checkout.

The learner of its ff_ppo.py runs on a world, for one device and without compilation, with tables in place of its
networks. Its options are those of its configuration files.
"""

import dataclasses
import importlib
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from omegaconf import OmegaConf

from conformance.adapters.jax_tables import find, gradient_of_means
from conformance.adapters.proxy import Proxy
from conformance.problems import Player, Refused, Settings, Step, later_world, make_world, split_updates

NAME = "Stoix"
VERSION = ""
KINDS = ("discrete",)
HEADS = {"policy": "action_head", "value": "critic_head"}
FOLDER = Path(importlib.util.find_spec("stoix").submodule_search_locations[0])


def load():
    """Its module of PPO, without its environments, its log and what only its other algorithms need."""
    for name in ("stoa", "rlax", "flashbax", "flashbax.buffers", "flashbax.buffers.trajectory_buffer"):
        sys.modules[name] = mock.MagicMock()
    for name in ("make_env", "checkpointing", "logger", "total_timestep_checker"):
        sys.modules[f"stoix.utils.{name}"] = mock.MagicMock()
    sys.modules["stoix.evaluator"] = mock.MagicMock()
    return importlib.import_module("stoix.systems.ppo.anakin.ff_ppo")


ff_ppo = load()
heads = importlib.import_module("stoix.networks.heads")


@flax.struct.dataclass
class TimeStep:
    """What its environments return, with the fields that its learner reads."""

    observation: jax.Array
    reward: jax.Array
    discount: jax.Array  # 0 where the step reaches a terminal state
    ended: jax.Array
    extras: dict

    def last(self):
        return self.ended


class Environments:
    """A world as a vector of environments."""

    def __init__(self, world, inputs=1):
        self.world = world
        self.player = Player(world)
        self.inputs = inputs

    def action_space(self):
        return SimpleNamespace(num_values=self.world.num_outputs)

    def observation_space(self):
        return SimpleNamespace(generate_value=lambda: jnp.zeros(self.inputs))

    def show(self, rows):
        return jnp.tile(jnp.asarray(rows, jnp.float32)[:, None], self.inputs)

    def reset(self, keys):
        obs = self.show(self.player.reset())
        none = jnp.zeros(len(obs))
        extras = {"episode_metrics": {}, "next_obs": obs}
        return none, TimeStep(obs, none, none + 1, none.astype(bool), extras)

    def step(self, state, actions):
        rows, rewards, terminated, truncated, finals = self.player.step(np.asarray(actions))
        ended = terminated | truncated
        extras = {"episode_metrics": {}, "next_obs": self.show(np.where(ended, finals, rows))}
        discount = jnp.asarray(~terminated, jnp.float32)
        return state, TimeStep(self.show(rows), jnp.asarray(rewards), discount, jnp.asarray(ended), extras)


def make_config(world, settings, updates):
    """Its configuration files, with the options that the settings name."""
    config = OmegaConf.create(
        {
            "system": OmegaConf.load(FOLDER / "configs/system/ppo/ff_ppo.yaml"),
            "network": OmegaConf.load(FOLDER / "configs/network/mlp.yaml"),
            "arch": {
                "num_envs": world.num_envs,
                "update_batch_size": 1,
                "num_updates": updates,
                "num_updates_per_eval": updates,
            },
            "logger": {"checkpointing": {"load_model": False}},
        }
    )
    config.system.update(
        actor_lr=settings.learning_rate,
        critic_lr=settings.learning_rate,
        rollout_length=world.num_steps,
        epochs=settings.update_epochs,
        num_minibatches=settings.num_minibatches,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        clip_eps=settings.clip_coef,
        ent_coef=settings.ent_coef,
        vf_coef=settings.vf_coef,
        max_grad_norm=settings.max_grad_norm,
    )
    return config


def on_one_device(**replaced):
    """A context in which its module computes on one device, without a leading dimension; `replaced` has more names."""
    one_device = Proxy(
        jax,
        vmap=lambda function, **options: function,
        pmap=lambda function, **options: function,
        lax=Proxy(jax.lax, pmean=lambda tree, axis_name: tree),
    )
    replicate = lambda tree, devices: jax.tree.map(lambda array: array[None], tree)  # noqa: E731
    without_devices = SimpleNamespace(jax_utils=SimpleNamespace(replicate=replicate))
    return mock.patch.multiple(ff_ppo, jax=one_device, flax=without_devices, **replaced)


def set_up(envs, config, seed=1):
    """(learner, its first state) of its learner_setup(), without the dimensions of devices and of batches."""
    keys = jax.random.split(jax.random.PRNGKey(seed), 3)
    learn, _, state = ff_ppo.learner_setup(envs, keys, config)
    return learn, jax.tree.map(lambda array: array[0, 0], state)


def train(world, settings, updates=1):
    """What was recorded of a run: steps, the player, the last returns, and the rate of each step of the policy."""
    seen = SimpleNamespace(halves=[], rows=None, rates=[])

    class Table:
        """In place of one of its networks."""

        def __init__(self, name):
            self.name = name

        def init(self, key, obs):
            return {self.name: jnp.asarray(getattr(world, self.name))}

        def apply(self, params, obs):
            rows = obs[:, 0].astype(int)
            table = params[self.name]
            if isinstance(table, jax.core.Tracer):  # a gradient is computed: this is the update
                seen.rows = np.asarray(rows)
            else:
                table = jnp.asarray(getattr(world, f"old_{self.name}"))
            return heads.Categorical(logits=table[rows]) if self.name == "policy" else table[rows]

    def chain(*parts):
        made = optax.chain(*parts)

        def update(gradient, state):
            changes, after = made.update(gradient, state)
            means = [find(each, "mu") for each in (state, after)]
            seen.gradients = gradient, {name: gradient_of_means(means[0][name], means[1][name]) for name in gradient}
            return changes, after

        return optax.GradientTransformation(made.init, update)

    def apply_updates(before, changes):
        after = optax.apply_updates(before, changes)
        parts = (before, after, *seen.gradients)
        parts = [{name: np.asarray(array, float) for name, array in part.items()} for part in parts]
        seen.halves.append((seen.rows, *parts))
        return after

    def adam(learning_rate, **options):
        rates = []
        seen.rates.append(rates)

        def rate(count):
            rates.append(float(learning_rate(count)))
            return rates[-1]

        return optax.adam(rate, **options)

    def estimate(*arguments, **options):
        found, returns = original(*arguments, **options)
        seen.returns = np.asarray(returns)
        return found, returns

    original = ff_ppo.batch_truncated_generalized_advantage_estimation
    envs = Environments(world)
    replaced = {
        "Actor": lambda torso, action_head: Table("policy"),
        "Critic": lambda torso, critic_head: Table("value"),
        "optax": Proxy(optax, chain=chain, adam=adam, apply_updates=apply_updates),
        "batch_truncated_generalized_advantage_estimation": estimate,
    }
    try:
        with jax.disable_jit(), on_one_device(**replaced):
            learn, state = set_up(envs, make_config(world, settings, updates))
            learn(state)
    except TypeError as error:
        if "cannot reshape" in str(error):  # the rollout into minibatches
            raise Refused(str(error)) from None
        raise
    seen.player = envs.player
    return seen


def updates(world, settings, count):
    if world.kind not in KINDS:
        return None
    seen = train(world, settings, count)
    steps = []
    for of_policy, of_value in zip(seen.halves[::2], seen.halves[1::2], strict=True):
        rows, *parts = of_policy
        _, *parts_of_value = of_value
        steps.append(Step(rows, *(one | other for one, other in zip(parts, parts_of_value, strict=True))))
    played = later_world(world) if count > 1 else world
    values = played.old_value[: world.rewards.size].reshape(world.rewards.shape)
    return split_updates(seen.player.rollouts, steps, advantages=seen.returns - values, returns=seen.returns)


def update(world, settings):
    answer = updates(world, settings, 1)
    return answer and answer[0]


def advantages(world, settings):
    """The returns; the advantages come out normalized."""
    return {"returns": train(world, dataclasses.replace(settings, num_minibatches=1, update_epochs=1)).returns}


def initial_weights(seed, kind):
    if kind not in KINDS:
        return None
    world = make_world(kind)
    with on_one_device():
        _, state = set_up(Environments(world, inputs=6), make_config(world, Settings(), 1), seed)
    found = {}
    for name, params in (("policy", state.params.actor_params), ("value", state.params.critic_params)):
        parts = params["params"]
        layers = [*parts["torso"].values(), *parts[HEADS[name]].values()]
        found[name] = [(np.asarray(layer["kernel"]).T, np.asarray(layer["bias"])) for layer in layers]
    return found


def schedules(updates):
    """The learning rates of the steps of the policy, as Adam got them."""
    seen = train(make_world(), Settings(num_minibatches=1, update_epochs=1), updates)
    return {"learning_rate": seen.rates[0]}
