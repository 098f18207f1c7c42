"""skrl's PPO in torch, version 1 or 2: its agent plays a world; its models are the user's, here tables."""

import gymnasium as gym
import numpy as np
import skrl
import torch
from skrl.agents.torch.ppo import PPO
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin, Model, MultiCategoricalMixin

from conformance.adapters.torch_tables import Recorder
from conformance.problems import Player, Settings, later_world, make_world, split_updates

NAME = "skrl"
VERSION = skrl.__version__
OLD = VERSION.startswith("1.")  # in which an observation is called a state


def action_space(kind):
    world = make_world(kind)
    if kind == "continuous":
        return gym.spaces.Box(-1.0, 1.0, (world.num_outputs,))
    if kind == "multidiscrete":
        return gym.spaces.MultiDiscrete(world.nvec)
    return gym.spaces.Discrete(world.num_outputs)


def make_models(world, recorder):
    """A policy and a value function that answer from the recorder's tables."""
    spaces = {"observation_space": gym.spaces.Box(-1e6, 1e6, (1,)), "action_space": action_space(world.kind)}
    mixin = {"discrete": CategoricalMixin, "multidiscrete": MultiCategoricalMixin, "continuous": GaussianMixin}

    class Policy(mixin[world.kind], Model):
        def __init__(self):
            Model.__init__(self, **spaces, device="cpu")
            mixin[world.kind].__init__(self)
            self.table = recorder.policy
            if world.kind == "continuous":
                self.logstd = recorder.logstd

        def compute(self, inputs, role):
            outputs = self.table(inputs["states" if OLD else "observations"])
            if world.kind != "continuous":
                return outputs, {}
            return (outputs, self.logstd, {}) if OLD else (outputs, {"log_std": self.logstd})

    class Value(DeterministicMixin, Model):
        def __init__(self):
            Model.__init__(self, **spaces, device="cpu")
            DeterministicMixin.__init__(self)
            self.table = recorder.value

        def compute(self, inputs, role):
            return self.table(inputs["states" if OLD else "observations"]), {}

    return {"policy": Policy(), "value": Value()}, spaces


def observed(obs, prefix=""):
    """The arguments for observations, in their order."""
    if OLD:
        return {f"{prefix}states": obs}
    return {f"{prefix}observations": obs, f"{prefix}states": None}


def play(world, settings, updates=1):
    """(agent, player, recorder) after so many rollouts and updates, as skrl's trainers make them."""
    player = Player(world)
    timesteps = updates * world.num_steps
    with Recorder(world) as recorder:
        models, spaces = make_models(world, recorder)
        memory = RandomMemory(memory_size=world.num_steps, num_envs=world.num_envs, device="cpu")
        config = {
            "rollouts": world.num_steps,
            "learning_epochs": settings.update_epochs,
            "mini_batches": settings.num_minibatches,
            "discount_factor": settings.gamma,
            "lambda" if OLD else "gae_lambda": settings.gae_lambda,
            "learning_rate": settings.learning_rate,
            "grad_norm_clip": settings.max_grad_norm,
            "ratio_clip": settings.clip_coef,
            "value_clip": settings.clip_coef,
            "entropy_loss_scale": settings.ent_coef,
            "value_loss_scale": settings.vf_coef,
            "experiment": {"write_interval": 0, "checkpoint_interval": 0},
        }
        torch.manual_seed(1)
        agent = PPO(models=models, memory=memory, cfg=config, device="cpu", **spaces)
        agent.init()
        agent.set_running_mode("train") if OLD else agent.enable_training_mode(True)
        show = lambda rows: torch.as_tensor(rows, dtype=torch.float32)[:, None]  # noqa: E731
        obs = show(player.reset())
        for t in range(timesteps):
            agent.pre_interaction(timestep=t, timesteps=timesteps)
            with torch.no_grad():
                actions, *_ = agent.act(*observed(obs).values(), timestep=t, timesteps=timesteps)
                rows, rewards, terminated, truncated, _ = player.step(actions.numpy())
                columns = [torch.as_tensor(each)[:, None] for each in (rewards, terminated, truncated)]
                agent.record_transition(
                    **observed(obs),
                    actions=actions,
                    rewards=columns[0].float(),
                    **observed(show(rows), "next_"),
                    terminated=columns[1],
                    truncated=columns[2],
                    infos={},
                    timestep=t,
                    timesteps=timesteps,
                )
                obs = show(rows)
            agent.post_interaction(timestep=t, timesteps=timesteps)
    return agent, player, recorder


def updates(world, settings, count):
    agent, player, recorder = play(world, settings, count)
    returns = agent.memory.get_tensor_by_name("returns").squeeze(-1).numpy()
    actions = [np.array(each).reshape(world.actions.shape) for each in player.rollouts]
    played = later_world(world) if count > 1 else world
    values = played.old_value[: returns.size].reshape(returns.shape)
    return split_updates(actions, recorder.steps, advantages=returns - values, returns=returns)


def update(world, settings):
    return updates(world, settings, 1)[0]


def advantages(world, settings):
    """The returns; the library keeps its advantages only after it has normalized them."""
    agent, *_ = play(world, settings)
    return {"returns": agent.memory.get_tensor_by_name("returns").squeeze(-1).numpy()}


def schedules(updates):
    """The learning rates that reach its optimizer. The clip range is an option that nothing logs or returns."""
    *_, recorder = play(make_world(), Settings(num_minibatches=1, update_epochs=1), updates)
    return {"learning_rate": recorder.rates}
