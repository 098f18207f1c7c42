"""Brax's PPO: its loss on a world, with a normal distribution of actions that are not squashed, and its networks.

The loss computes advantages anew from the current values, and the loop around it is one compiled function.
"""

import importlib.metadata

import jax
import jax.numpy as jnp
import numpy as np
from brax.training.acme import running_statistics
from brax.training.agents.ppo import losses, networks
from brax.training.types import Transition

from conformance.problems import Step, Update, make_world
from conformance.reference import log_probabilities

NAME = "Brax"
VERSION = importlib.metadata.version("brax")
KINDS = ("continuous",)
LOOP = False  # it can be run only as a whole, on an environment in JAX


def ends(world):
    """(truncation, termination) float [M, N], as its training makes them."""
    truncation = (world.truncated & ~world.terminated).astype(np.float32)
    return truncation, world.terminated.astype(np.float32)


def make_networks(world):
    """Its networks with functions that answer from tables; an observation is the number of a row."""
    made = networks.make_ppo_networks(1, world.num_outputs, distribution_type="normal")

    class Policy:
        @staticmethod
        def apply(_, params, obs):
            mean = params["policy"][obs[..., 0].astype(int)]
            return mean, jnp.exp(params["logstd"]) * jnp.ones_like(mean)

    class Value:
        @staticmethod
        def apply(_, params, obs):
            return params["value"][obs[..., 0].astype(int)]

    return made.replace(policy_network=Policy, value_network=Value)


def estimate(world, settings, values):
    """(advantages, value targets) [M, N] of its compute_gae for values [R]."""
    truncation, termination = ends(world)
    base = values[: world.rewards.size].reshape(world.rewards.shape)
    targets, found = losses.compute_gae(
        jnp.asarray(truncation),
        jnp.asarray(termination),
        jnp.asarray(world.rewards),
        jnp.asarray(base),
        jnp.asarray(values[world.rows(world.num_steps)]),
        lambda_=settings.gae_lambda,
        discount=settings.gamma,
    )
    return np.asarray(found), np.asarray(targets)


def advantages(world, settings):
    found, targets = estimate(world, settings, world.old_value)
    return {"advantages": found, "returns": targets}


def update(world, settings):
    """The gradients of the loss with its defaults, for two minibatches of half of the environments each."""
    if world.kind != "continuous":
        return None
    M, N = world.rewards.shape
    tables = {"policy": world.policy, "value": world.value, "logstd": world.logstd}
    start = {name: jnp.asarray(array) for name, array in tables.items()}
    truncation, termination = ends(world)
    rows = np.arange(M * N).reshape(M, N)
    flat = world.actions.reshape(M * N, -1)
    old = log_probabilities(world, world.old_policy[: M * N].astype(float), world.logstd.astype(float), flat)
    old_means = world.old_policy[: M * N].reshape(M, N, -1)

    def loss(params, some):
        part = lambda array: jnp.asarray(np.swapaxes(np.asarray(array, np.float32)[:, some], 0, 1))  # noqa: E731
        following = np.concatenate([rows[1:], world.rows(M)[None]])
        extras = {
            "state_extras": {"truncation": part(truncation)},
            "policy_extras": {
                "raw_action": part(world.actions),
                "log_prob": part(old.reshape(M, N)),
                "distribution_params": (part(old_means), jnp.exp(start["logstd"]) * jnp.ones_like(part(old_means))),
            },
        }
        data = Transition(
            observation=part(rows)[..., None],
            action=part(world.actions),
            reward=part(world.rewards),
            discount=1 - jnp.maximum(part(truncation), part(termination)),
            next_observation=part(following)[..., None],
            extras=extras,
        )
        both = losses.PPONetworkParams(params, params)
        total, _ = losses.compute_ppo_loss(
            both,
            None,
            data,
            jax.random.PRNGKey(0),
            make_networks(world),
            entropy_cost=settings.ent_coef,
            discounting=settings.gamma,
            gae_lambda=settings.gae_lambda,
            clipping_epsilon=settings.clip_coef,
            vf_coefficient=settings.vf_coef,
        )
        return total

    steps = []
    for some in (np.arange(N // 2), np.arange(N // 2, N)):
        gradient = {name: np.asarray(array) for name, array in jax.grad(loss)(start, some).items()}
        steps.append(Step(rows[:, some].reshape(-1), tables, tables, gradient))
    found, targets = estimate(world, settings, world.value)
    return Update(world.actions, steps, found, targets)


def initial_weights(seed, kind):
    if kind != "continuous":
        return None
    made = networks.make_ppo_networks(
        6, make_world(kind).num_outputs, preprocess_observations_fn=running_statistics.normalize
    )
    keys = jax.random.split(jax.random.PRNGKey(seed))
    found = {}
    for name, network, key in (("policy", made.policy_network, keys[0]), ("value", made.value_network, keys[1])):
        params = network.init(key)["params"]
        layers = [params[f"hidden_{number}"] for number in range(len(params))]
        found[name] = [(np.asarray(layer["kernel"]).T, np.asarray(layer["bias"])) for layer in layers]
    return found
