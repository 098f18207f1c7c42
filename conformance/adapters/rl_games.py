"""rl_games' continuous PPO: its agent plays a world; its network is the user's, here tables.

Settings without a default are as in its examples: advantages are normalized, values and gradients are clipped. Its
normalization of observations and values, and its penalty on large means, are off.
"""

import contextlib
import importlib.metadata
import io
import tempfile

import gymnasium as gym
import numpy as np
import torch
from rl_games.algos_torch.a2c_continuous import A2CAgent
from rl_games.algos_torch.models import ModelA2CContinuousLogStd
from rl_games.common.algo_observer import AlgoObserver
from rl_games.common.tr_helpers import DefaultRewardsShaper
from torch import nn

from conformance.adapters.torch_tables import Recorder
from conformance.problems import Player, Refused, Update

NAME = "rl_games"
VERSION = importlib.metadata.version("rl-games")
KINDS = ("continuous",)


class Environments:
    """A world as a vector of environments, as rl_games steps them."""

    def __init__(self, world):
        self.player = Player(world)

    def set_train_info(self, *arguments):
        pass

    def get_env_state(self):
        return None

    def reset(self):
        return self.player.reset().astype(np.float32)[:, None]

    def step(self, actions):
        rows, rewards, terminated, truncated, _ = self.player.step(actions)
        infos = {"time_outs": (truncated & ~terminated).astype(np.float32)}
        return rows.astype(np.float32)[:, None], rewards.copy(), terminated | truncated, infos


class Network(nn.Module):
    """A network that answers from the recorder's tables."""

    def __init__(self, recorder):
        super().__init__()
        self.policy = recorder.policy
        self.value = recorder.value
        self.logstd = recorder.logstd

    def forward(self, inputs):
        mean = self.policy(inputs["obs"])
        return mean, self.logstd.expand_as(mean), self.value(inputs["obs"]), None

    def is_rnn(self):
        return False

    def get_aux_loss(self):
        return None

    def get_value_layer(self):
        return self.value


def play(world, settings):
    """(agent, environments, recorder) after one rollout and update."""
    envs = Environments(world)
    with Recorder(world) as recorder, tempfile.TemporaryDirectory() as folder:

        class Builder:
            def build(self, *_, **options):
                return Network(recorder)

        class Agent(A2CAgent):
            def load_networks(self, params):
                self.config["network"] = ModelA2CContinuousLogStd(Builder())

        spaces = {
            "observation_space": gym.spaces.Box(-1e6, 1e6, (1,)),
            "action_space": gym.spaces.Box(-100.0, 100.0, (world.num_outputs,)),
        }
        config = {
            "name": "world",
            "features": {"observer": AlgoObserver()},
            "train_dir": folder,
            "device": "cpu",
            "num_actors": world.num_envs,
            "env_name": "world",
            "env_info": spaces,
            "vec_env": envs,
            "lr_schedule": None,
            "e_clip": settings.clip_coef,
            "clip_value": True,
            "truncate_grads": True,
            "reward_shaper": DefaultRewardsShaper(),
            "horizon_length": world.num_steps,
            "normalize_advantage": True,
            "normalize_input": False,
            "critic_coef": settings.vf_coef,
            "grad_norm": settings.max_grad_norm,
            "gamma": settings.gamma,
            "tau": settings.gae_lambda,
            "mini_epochs": settings.update_epochs,
            "minibatch_size": world.rewards.size // settings.num_minibatches,
            "bounds_loss_coef": 0.0,
            "learning_rate": settings.learning_rate,
            "entropy_coef": settings.ent_coef,
            "clip_actions": False,
        }
        torch.manual_seed(3)
        with contextlib.redirect_stdout(io.StringIO()):
            agent = Agent("run", {"config": config})
            agent.init_tensors()
            agent.obs = agent.env_reset()
            agent.train_epoch()
        agent.writer.close()
    return agent, envs, recorder


def update(world, settings):
    if world.kind != "continuous":
        return None
    try:
        agent, envs, recorder = play(world, settings)
    except ValueError as error:
        raise Refused(str(error)) from None
    returns = advantages(world, settings)["returns"]
    values = world.old_value[: returns.size].reshape(returns.shape)
    actions = np.array(envs.player.actions).reshape(world.actions.shape)
    return Update(actions, recorder.steps, returns - values, returns)


def advantages(world, settings):
    """The returns that its dataset has; the library keeps its advantages only after it has normalized them."""
    agent, *_ = play(world, settings)
    found = agent.dataset.values_dict["returns"].numpy().reshape(world.num_envs, world.num_steps)
    return {"returns": found.T}
