"""tianshou's PPO: its update() on a buffer that a world has filled; actor and critic are the user's, here tables."""

import gymnasium as gym
import numpy as np
import tianshou
import torch
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy, ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, VectorReplayBuffer
from tianshou.utils.torch_utils import policy_within_training_step
from torch import nn
from torch.distributions import Independent, Normal

from conformance.adapters.torch_tables import Recorder
from conformance.problems import Player, Settings, make_world, split_updates

NAME = "tianshou"
VERSION = tianshou.__version__
KINDS = "discrete", "continuous"


class Actor(nn.Module):
    """An actor that answers from the recorder's table."""

    def __init__(self, world, recorder):
        super().__init__()
        self.table = recorder.policy
        self.logstd = None
        if world.kind == "continuous":
            self.logstd = recorder.logstd

    def forward(self, obs, state=None, info=None):
        outputs = self.table(torch.as_tensor(obs))
        if self.logstd is None:
            return outputs, state
        return (outputs, self.logstd.exp().expand_as(outputs)), state


class Critic(nn.Module):
    def __init__(self, recorder):
        super().__init__()
        self.table = recorder.value

    def forward(self, obs):
        return self.table(torch.as_tensor(obs))


def make_algorithm(world, settings, recorder):
    actor = Actor(world, recorder)
    if world.kind == "discrete":
        policy = DiscreteActorPolicy(actor=actor, action_space=gym.spaces.Discrete(world.num_outputs))
    else:
        box = gym.spaces.Box(-1.0, 1.0, (world.num_outputs,))
        policy = ProbabilisticActorPolicy(
            actor=actor, dist_fn=lambda parts: Independent(Normal(*parts), 1), action_space=box
        )
    return PPO(
        policy=policy,
        critic=Critic(recorder),
        optim=AdamOptimizerFactory(lr=settings.learning_rate),
        eps_clip=settings.clip_coef,
        vf_coef=settings.vf_coef,
        ent_coef=settings.ent_coef,
        max_grad_norm=settings.max_grad_norm,
        gae_lambda=settings.gae_lambda,
        gamma=settings.gamma,
    )


def fill(world, player):
    """A buffer with a world's steps and its prescribed actions; an end has its last observation as obs_next."""
    buffer = VectorReplayBuffer(world.rewards.size, world.num_envs)
    show = lambda rows: np.float32(rows)[:, None]  # noqa: E731
    obs = show(world.rows(world.num_steps) if player.rollouts else player.reset())
    for t in range(world.num_steps):
        rows, rewards, terminated, truncated, finals = player.step(world.actions[t])
        ended = terminated | truncated
        following = np.where(ended[:, None], show(finals), show(rows))
        step = {"obs": obs, "act": world.actions[t], "rew": rewards, "obs_next": following, "info": Batch()}
        buffer.add(Batch(step | {"terminated": terminated, "truncated": truncated}))
        obs = show(rows)
    return buffer


def estimate(algorithm, buffer, world):
    """What PPO adds to a batch before it makes its minibatches: {"advantages": [M, N], "returns": [M, N]}."""
    batch, indices = buffer.sample(0)
    batch = algorithm._preprocess_batch(batch, buffer, indices)
    by_envs = world.num_envs, world.num_steps
    return {
        "advantages": batch.adv.numpy().reshape(by_envs).T,
        "returns": batch.returns.numpy().reshape(by_envs).T,
    }


def updates(world, settings, count):
    if world.kind not in KINDS:
        return None
    np.random.seed(1)
    player = Player(world)
    with Recorder(world) as recorder:
        algorithm = make_algorithm(world, settings, recorder)
        for _ in range(count):
            buffer = fill(world, player)
            found = estimate(algorithm, buffer, world)
            with policy_within_training_step(algorithm.policy):
                algorithm.update(buffer, world.rewards.size // settings.num_minibatches, settings.update_epochs)
    return split_updates([world.actions] * count, recorder.steps, **found)


def update(world, settings):
    answer = updates(world, settings, 1)
    return answer and answer[0]


def advantages(world, settings):
    with Recorder(world) as recorder:
        algorithm = make_algorithm(world, settings, recorder)
        return estimate(algorithm, fill(world, Player(world)), world)


def environment_actions(samples, low, high):
    """What the policy makes of an action for the environment, with its defaults."""
    box = gym.spaces.Box(np.float32(low), np.float32(high))
    policy = ProbabilisticActorPolicy(
        actor=nn.Identity(), dist_fn=lambda parts: Independent(Normal(*parts), 1), action_space=box
    )
    return policy.map_action(samples)


def schedules(updates):
    """The learning rates that reach its optimizer, which its factory makes with its defaults."""
    world = make_world()
    settings = Settings(num_minibatches=1, update_epochs=1)
    buffer = fill(world, Player(world))
    with Recorder(world) as recorder:
        algorithm = make_algorithm(world, settings, recorder)
        for _ in range(updates):
            with policy_within_training_step(algorithm.policy):
                algorithm.update(buffer, world.rewards.size, settings.update_epochs)
    return {"learning_rate": recorder.rates}
