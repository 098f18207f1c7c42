"""PureJaxRL's ppo.py, in a folder: its make_train() runs on a world, without compilation.

Its environment, its network and the state of its optimizer are replaced by ones that record.
"""

import importlib.util
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from flax.training.train_state import TrainState

from conformance.adapters.jax_tables import find, gradient_of_means
from conformance.adapters.proxy import Proxy
from conformance.problems import Player, Refused, Settings, Step, Update, make_world


class Environments:
    """A world as a vector of environments; the script's vmap is replaced, so its functions take all of them at once."""

    def __init__(self, world):
        self.world = world
        self.player = Player(world)

    def action_space(self, params):
        return SimpleNamespace(n=self.world.num_outputs)

    def observation_space(self, params):
        return SimpleNamespace(shape=(1,))

    def reset(self, keys, params):
        return jnp.asarray(self.player.reset(), jnp.float32)[:, None], jnp.zeros(self.world.num_envs)

    def step(self, keys, state, actions, params):
        rows, rewards, terminated, truncated, _ = self.player.step(np.asarray(actions))
        obs = jnp.asarray(rows, jnp.float32)[:, None]
        return obs, state, jnp.asarray(rewards), jnp.asarray(terminated | truncated, jnp.float32), {}


class Scripts:
    """The adapter of a folder; its methods are the functions of conformance/adapter.py."""

    KINDS = ("discrete",)

    def __init__(self, folder):
        self.folder = folder
        self.NAME = "PureJaxRL"
        self.VERSION = ""

    def load(self):
        """Its module, with wrappers of environments that wrap nothing."""
        sys.modules["wrappers"] = SimpleNamespace(LogWrapper=lambda env: env, FlattenObservationWrapper=lambda env: env)
        spec = importlib.util.spec_from_file_location("purejaxrl_ppo", self.folder / "ppo.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def train(self, world, settings, updates=1):
        """What was recorded of a run: steps, the player, advantages, and the learning rate as a function of steps."""
        module = self.load()
        envs = Environments(world)
        seen = SimpleNamespace(steps=[], rows=None, advantages=None)

        class Tables:
            def __init__(self, actions, activation):
                pass

            def init(self, key, obs):
                return {"policy": jnp.asarray(world.policy), "value": jnp.asarray(world.value)}

            def apply(self, params, obs):
                rows = obs[:, 0].astype(int)
                policy = params["policy"]
                value = params["value"]
                if isinstance(policy, jax.core.Tracer):  # a gradient is computed: this is the update
                    seen.rows = np.asarray(rows)
                else:
                    policy = jnp.asarray(world.old_policy)
                    value = jnp.asarray(world.old_value)
                return module.distrax.Categorical(logits=policy[rows]), value[rows]

        class Recording(TrainState):
            def apply_gradients(self, *, grads, **options):
                after = super().apply_gradients(grads=grads, **options)
                means = [find(state.opt_state, "mu") for state in (self, after)]
                clipped = {name: gradient_of_means(means[0][name], means[1][name]) for name in grads}
                parts = [
                    {name: np.asarray(part[name], float) for name in grads}
                    for part in (self.params, after.params, grads)
                ]
                seen.steps.append(Step(seen.rows, *parts, clipped))
                return after

        def scan(function, *arguments, **options):
            carry, found = jax.lax.scan(function, *arguments, **options)
            if function.__name__ == "_get_advantages":
                seen.advantages = np.asarray(found)
            return carry, found

        def adam(learning_rate, **options):
            seen.rate = learning_rate
            return optax.adam(learning_rate, **options)

        optax = module.optax
        module.jax = Proxy(jax, vmap=lambda function, in_axes: function, lax=Proxy(jax.lax, scan=scan))
        module.gymnax = SimpleNamespace(make=lambda name: (envs, None))
        module.optax = Proxy(optax, adam=adam)
        module.ActorCritic = Tables
        module.TrainState = Recording
        config = {
            "LR": settings.learning_rate,
            "NUM_ENVS": world.num_envs,
            "NUM_STEPS": world.num_steps,
            "TOTAL_TIMESTEPS": updates * world.rewards.size,
            "UPDATE_EPOCHS": settings.update_epochs,
            "NUM_MINIBATCHES": settings.num_minibatches,
            "GAMMA": settings.gamma,
            "GAE_LAMBDA": settings.gae_lambda,
            "CLIP_EPS": settings.clip_coef,
            "ENT_COEF": settings.ent_coef,
            "VF_COEF": settings.vf_coef,
            "MAX_GRAD_NORM": settings.max_grad_norm,
            "ACTIVATION": "tanh",
            "ENV_NAME": "",
            "ANNEAL_LR": True,
            "DEBUG": False,
        }
        try:
            with jax.disable_jit():
                module.make_train(config)(jax.random.PRNGKey(1))
        except AssertionError as error:
            raise Refused(str(error)) from None
        seen.actions = np.array(envs.player.actions)
        return seen

    def update(self, world, settings):
        if world.kind != "discrete":
            return None
        seen = self.train(world, settings)
        values = world.old_value[: world.rewards.size].reshape(world.rewards.shape)
        return Update(seen.actions, seen.steps, seen.advantages, seen.advantages + values)

    def advantages(self, world, settings):
        return {"advantages": self.train(world, settings).advantages}

    def initial_weights(self, seed, kind):
        if kind != "discrete":
            return None
        network = self.load().ActorCritic(make_world(kind).num_outputs)
        params = network.init(jax.random.PRNGKey(seed), jnp.zeros((1, 6)))["params"]
        dense = [params[f"Dense_{number}"] for number in range(6)]
        layers = [(np.asarray(layer["kernel"]).T, np.asarray(layer["bias"])) for layer in dense]
        return {"policy": layers[:3], "value": layers[3:]}

    def schedules(self, updates):
        """Of its own function from the number of gradient steps, with the options of its main block."""
        settings = Settings(num_minibatches=1, update_epochs=1)
        seen = self.train(make_world(), settings, updates)
        return {"learning_rate": [seen.rate(count) for count in range(updates)]}
