"""SBX's PPO in JAX: its learn() plays a world; its policy takes an actor and a critic of tables."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import sbx
from gymnasium import spaces
from sbx.ppo.policies import PPOPolicy, tfd
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from conformance.adapters import sb3
from conformance.adapters.jax_tables import find, gradient_of_means
from conformance.problems import Step, Update, make_world

NAME = "SBX"
VERSION = sbx.__version__
KINDS = "discrete", "continuous"


def make_networks(world):
    """Classes of an actor and a critic that answer from tables, which are their only parameters."""

    class TableActor(nn.Module):
        action_dim: int = 0
        num_discrete_choices: object = None

        def get_std(self):
            return jnp.array(0.0)

        @nn.compact
        def __call__(self, obs):
            table = self.param("table", nn.initializers.zeros, world.policy.shape)
            outputs = table[obs[:, 0].astype(int)]
            if world.kind == "discrete":
                return tfd.Categorical(logits=outputs)
            log_std = self.param("log_std", nn.initializers.zeros, (world.num_outputs,))
            return tfd.MultivariateNormalDiag(loc=outputs, scale_diag=jnp.exp(log_std))

    class TableCritic(nn.Module):
        @nn.compact
        def __call__(self, obs):
            return self.param("table", nn.initializers.zeros, (world.num_rows, 1))[obs[:, 0].astype(int)]

    def make_actor(net_arch=None, **options):
        return TableActor(options["action_dim"])

    return make_actor, lambda **_: TableCritic()


def parameters(world, policy, value):
    """The parameters of actor and critic that stand for tables."""
    actor = {"table": jnp.asarray(policy)}
    if world.kind == "continuous":
        actor["log_std"] = jnp.asarray(world.logstd)
    return {"params": actor}, {"params": {"table": jnp.asarray(value)[:, None]}}


def tables(world, actor, critic):
    """{name: array} of parameters, or of what has their form."""
    found = {"policy": np.asarray(actor["params"]["table"]), "value": np.asarray(critic["params"]["table"])[:, 0]}
    if world.kind == "continuous":
        found["logstd"] = np.asarray(actor["params"]["log_std"])
    return found


def put(model, actor, critic):
    policy = model.policy
    policy.actor_state = policy.actor_state.replace(params=actor)
    policy.vf_state = policy.vf_state.replace(params=critic)


class AfterRollout(BaseCallback):
    """Puts the tables from which the update starts in place of those that acted."""

    def __init__(self, world):
        super().__init__()
        self.world = world

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        put(self.model, *parameters(self.world, self.world.policy, self.world.value))


def learn(world, settings):
    """(model, steps) after one rollout and update."""
    actor_class, critic_class = make_networks(world)

    class Policy(PPOPolicy):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options, actor_class=actor_class, critic_class=critic_class)

    model = sb3.make_model(world, settings, algorithm=sbx.PPO, policy=Policy)
    put(model, *parameters(world, world.old_policy, world.old_value))
    steps = []
    one_update = model._one_update

    def watch(actor_state, vf_state, **options):
        states, rest = one_update(actor_state=actor_state, vf_state=vf_state, **options)
        means = [find(state.opt_state, "mu") for state in (actor_state, vf_state, *states)]
        before = tables(world, *means[:2])
        after = tables(world, *means[2:])
        clipped = {name: gradient_of_means(before[name], after[name]) for name in before}
        params = [state.params for state in (actor_state, vf_state, *states)]
        rows = np.asarray(options["observations"])[:, 0].astype(int)
        steps.append(Step(rows, tables(world, *params[:2]), tables(world, *params[2:]), clipped=clipped))
        return states, rest

    model._one_update = watch
    model.learn(world.rewards.size, callback=AfterRollout(world))
    return model, steps


def update(world, settings):
    if world.kind not in KINDS:
        return None
    model, steps = learn(world, settings)
    buffer = model.rollout_buffer
    found = [array.reshape(world.num_envs, world.num_steps).T for array in (buffer.advantages, buffer.returns)]
    logged = {"approx_kl": model.logger.name_to_value.get("train/approx_kl")}
    return Update(np.array(model.env.player.actions).reshape(world.actions.shape), steps, *found, logged)


def advantages(world, settings):
    answer = update(world, settings)
    return {"advantages": answer.advantages, "returns": answer.returns}


def initial_weights(seed, kind):
    if kind not in KINDS:
        return None
    observations = spaces.Box(-1, 1, (6,))
    actions = sb3.action_space(kind)

    class Vector(sb3.gym.Env):
        observation_space = observations
        action_space = actions

    policy = sbx.PPO("MlpPolicy", DummyVecEnv([Vector]), seed=seed).policy
    found = {}
    for name, state in (("policy", policy.actor_state), ("value", policy.vf_state)):
        dense = [part for key, part in sorted(state.params["params"].items()) if key.startswith("Dense")]
        found[name] = [(np.asarray(part["kernel"]).T, np.asarray(part["bias"])) for part in dense]
    if kind == "continuous":
        found["logstd"] = np.asarray(policy.actor_state.params["params"]["log_std"])
    return found


def schedules(updates):
    world = make_world()
    model = sbx.PPO("MlpPolicy", sb3.Environments(world), n_steps=world.num_steps, batch_size=48)
    remaining = [1 - update / updates for update in range(updates)]
    return {
        "learning_rate": [model.lr_schedule(each) for each in remaining],
        "clip_range": [model.clip_range_schedule(each) for each in remaining],
    }
