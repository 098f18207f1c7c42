"""Spinning Up's PPO in torch, whose package spinup must be importable: PYTHONPATH=path/to/its/checkout.

Its ppo() runs on one environment, which plays the steps of all environments of a world one after the other. It has no
minibatches, and takes the steps of the policy before those of the value.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import io
import sys
from types import ModuleType, SimpleNamespace

import gym.spaces
import numpy as np
import torch

from conformance.adapters.torch_tables import Recorder, layers
from conformance.problems import Player, Settings, Step, Update, make_world, split_updates


class OneProcess:
    """Takes the place of MPI's communicator, for a single process."""

    def Get_rank(self):
        return 0

    def Get_size(self):
        return 1

    def Allreduce(self, numbers, total, op):
        total[:] = numbers


def load():
    """Its module of PPO, without MPI, its log, and the package's other algorithms, which need TensorFlow 1."""
    package = ModuleType("spinup")
    package.__path__ = importlib.util.find_spec("spinup").submodule_search_locations
    sys.modules["spinup"] = package
    mpi = SimpleNamespace(COMM_WORLD=OneProcess(), SUM=None)
    sys.modules["mpi4py"] = SimpleNamespace(MPI=mpi)
    sys.modules["spinup.utils.logx"] = SimpleNamespace(EpochLogger=Log)
    return importlib.import_module("spinup.algos.pytorch.ppo.ppo")


class Log:
    """In place of its log: keeps the newest of each number."""

    newest = {}

    def store(self, **numbers):
        self.newest.update(numbers)

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


ppo = load()
core = importlib.import_module("spinup.algos.pytorch.ppo.core")

NAME = "Spinning Up"
VERSION = ""
KINDS = "discrete", "continuous"
EPISODE = 7  # the time limit of a world with time limits: no terminal state of it is reached just then


def problem_of_one(world, settings):
    """(World, Settings) of the question that it answers: one environment, one minibatch, and no factor of the value.

    It has time limits of its own, so those of the world are moved to where they are reached."""
    flat = world.rewards.size
    terminated = world.terminated.reshape(flat, 1)
    truncated = np.zeros_like(terminated)
    if world.truncated.any():
        length = 0
        for t in range(flat):
            length += 1
            truncated[t] = length == EPISODE
            if terminated[t] or truncated[t]:
                length = 0
    alone = dataclasses.replace(
        world,
        rewards=world.rewards.reshape(flat, 1),
        terminated=terminated,
        truncated=truncated,
        actions=world.actions.reshape(flat, 1, *world.actions.shape[2:]),
    )
    return alone, dataclasses.replace(settings, num_minibatches=1, vf_coef=1.0)


def action_space(world, low=-100.0, high=100.0):
    if world.kind == "discrete":
        return gym.spaces.Discrete(world.num_outputs)
    bounds = [np.full(world.num_outputs, bound, np.float32) for bound in (low, high)]
    return gym.spaces.Box(*bounds)


class Environment:
    """A world of one environment, with the interface of gym before 0.26."""

    observation_space = gym.spaces.Box(-1e6, 1e6, (1,))

    def __init__(self, world, actions):
        self.player = Player(world)
        self.action_space = actions
        self.next_rows = world.rows(0)

    def reset(self):
        return self.next_rows.astype(np.float32)

    def step(self, action):
        self.next_rows, rewards, terminated, truncated, finals = self.player.step([action])
        done = terminated[0] | truncated[0]
        obs = finals if done else self.next_rows
        return obs.astype(np.float32), float(rewards[0]), bool(done), {}


def play(alone, settings, updates=1, actions=None, **options):
    """(player, recorder, advantages, returns) after rollouts and updates of a world of one environment.

    actions: the space of actions.
    options: of its ppo(), in place of those that the settings give."""
    environment = Environment(alone, actions or action_space(alone))
    found = {}

    class Buffer(ppo.PPOBuffer):
        def get(self):
            found.update(advantages=self.adv_buf.copy(), returns=self.ret_buf.copy())
            return super().get()

    kept = ppo.PPOBuffer
    with Recorder(alone) as recorder:

        def make_tables(*spaces, **kwargs):
            model = core.MLPActorCritic(*spaces, **kwargs)
            model.v.v_net = recorder.value
            if alone.kind == "discrete":
                model.pi.logits_net = recorder.policy
            else:
                model.pi.mu_net = recorder.policy
                model.pi.log_std = recorder.logstd
            return model

        ppo.PPOBuffer = Buffer
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                ppo.ppo(
                    lambda: environment,
                    actor_critic=make_tables,
                    seed=1,
                    steps_per_epoch=alone.num_steps,
                    epochs=updates,
                    gamma=settings.gamma,
                    lam=settings.gae_lambda,
                    clip_ratio=settings.clip_coef,
                    train_pi_iters=settings.update_epochs,
                    train_v_iters=settings.update_epochs,
                    max_ep_len=EPISODE if alone.truncated.any() else 1000,
                    **{
                        "pi_lr": settings.learning_rate,
                        "vf_lr": settings.learning_rate,
                        "target_kl": np.inf,
                    }
                    | options,
                )
        finally:
            ppo.PPOBuffer = kept
    return environment.player, recorder, *(found[name][:, None] for name in ("advantages", "returns"))


def pair(steps):
    """Steps of both networks, of the policy's steps and, behind them, as many of the value's."""
    half = len(steps) // 2
    joined = []
    for of_policy, of_value in zip(steps[:half], steps[half:], strict=True):
        parts = []
        for name in ("before", "after", "gradient", "clipped"):
            parts.append(getattr(of_policy, name) | {"value": getattr(of_value, name)["value"]})
        joined.append(Step(of_policy.rows, *parts))
    return joined


def update(world, settings):
    """Without its early stop, which would end the policy's part of the update before its first step."""
    if world.kind not in KINDS:
        return None
    alone, settings = problem_of_one(world, settings)
    player, recorder, found, returns = play(alone, settings)
    actions = np.array(player.actions).reshape(alone.actions.shape)
    logged = {"approx_kl": Log.newest["KL"]}
    return Update(actions, pair(recorder.steps), found, returns, logged, problem=(alone, settings))


def updates(world, settings, count):
    """For a world of one environment, and settings of one minibatch."""
    if world.kind not in KINDS or world.num_envs > 1 or settings.num_minibatches > 1:
        return None
    player, recorder, found, returns = play(world, settings, count)
    steps = []
    for of_update in np.split(np.arange(len(recorder.steps)), count):
        steps += pair([recorder.steps[i] for i in of_update])
    actions = [np.array(each).reshape(world.actions.shape) for each in player.rollouts]
    return split_updates(actions, steps, advantages=found, returns=returns)


def advantages(world, settings):
    alone, settings = problem_of_one(world, settings)
    _, _, found, returns = play(alone, settings)
    return {"advantages": found, "returns": returns, "problem": (alone, settings)}


def initial_weights(seed, kind):
    if kind not in KINDS:
        return None
    torch.manual_seed(seed)
    model = core.MLPActorCritic(gym.spaces.Box(-1, 1, (6,)), action_space(make_world(kind)))
    policy = model.pi.logits_net if kind == "discrete" else model.pi.mu_net
    found = {"policy": layers(policy), "value": layers(model.v.v_net)}
    if kind == "continuous":
        found["logstd"] = model.pi.log_std.detach().numpy()
    return found


def schedules(updates):
    """The learning rates that reach the optimizer of the policy."""
    alone, settings = problem_of_one(make_world(), Settings(update_epochs=1))
    _, recorder, *_ = play(alone, settings, updates)
    return {"learning_rate": recorder.rates[::2]}  # one step of the policy, and one of the value


def environment_actions(samples, low, high):
    """What its loop hands to an environment whose bounds are low and high."""
    world = make_world("continuous")
    alone, settings = problem_of_one(world, Settings(update_epochs=1))
    means = np.zeros_like(alone.old_policy)
    means[: len(samples)] = samples
    precise = dataclasses.replace(alone, old_policy=means, logstd=np.float32([-40, -40]))
    player, *_ = play(precise, settings, actions=gym.spaces.Box(np.float32(low), np.float32(high)))
    return np.array(player.actions)[: len(samples), 0]
