"""Toy environments with known answers, the table of scripts, and how the tests run a script and read what it wrote."""

import contextlib
import copy
import importlib
import os
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch
from filelock import BaseFileLock, FileLock
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import SessionLog
from torch.utils.tensorboard import SummaryWriter

ROOT = Path(__file__).parents[1]


class Script(NamedTuple):
    """One script: what its tests need to know about it. A new script is one more entry of SCRIPTS."""

    name: str
    parent: str | None  # the script that it is compared with
    marks: set[str]  # the details that it adds to its parent, or changes: {"lstm 1", ...}
    unfit: dict[str, str]  # environments that it cannot train on, and what the error names
    quick: str  # options of a run of seconds on its default environment; an episode ends in it
    tiny: str  # options of the shortest run, on the same
    images: tuple[int, ...] | None  # the shape of uint8 images of 4 channels that it takes; None: it takes vectors
    defaults: dict  # the hyperparameters that are not CLASSIC_CONTROL's
    box: bool = False  # its actions are a Box, and its observations and rewards are normalised
    several: bool = False  # its actions are MultiDiscrete

    @property
    def module(self):
        return importlib.import_module(self.name)


def details(name, size):
    """The details of a set that has `size` of them."""
    return {f"{name} {number}" for number in range(1, size + 1)}


CLASSIC_CONTROL = {
    "total_timesteps": 500_000, "num_envs": 4, "num_steps": 128, "num_minibatches": 4, "update_epochs": 4,
    "learning_rate": 2.5e-4, "anneal_lr": True, "gamma": 0.99, "gae_lambda": 0.95, "clip_coef": 0.2,
    "anneal_clip": False, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5, "target_kl": None,
    "bootstrap_truncated": False, "env_id": "CartPole-v1", "seed": 1, "track": False, "capture_video": False,
}  # fmt: skip
VECTORS = {
    "unfit": {"Pendulum-v1": "ppo_continuous_action.py"},
    "quick": "--total-timesteps 2048",
    "tiny": "--total-timesteps 512 --num-envs 2 --num-steps 32",
    "images": None,
    "defaults": {},
}
SEVERAL = {
    "unfit": {"CartPole-v1": "ppo.py", "Pendulum-v1": "ppo_continuous_action.py"},
    "quick": "--env-id toy_envs:Choices-v0 --total-timesteps 4096",
    "tiny": "--env-id toy_envs:Choices-v0 --total-timesteps 512 --num-envs 2 --num-steps 32",
    "images": None,
    "defaults": {"total_timesteps": 2_000_000, "num_envs": 8, "clip_coef": 0.1, "env_id": "MicrortsMining-v1"},
    "several": True,
}
PPO = Script("ppo", None, details("core", 13), **VECTORS)
SHARED = Script("ppo_shared", "ppo", {"core 13"}, **VECTORS)
ATARI = Script(
    "ppo_atari", "ppo_shared", details("atari", 9),
    unfit={"CartPole-v1": "docs/environment.md"},
    quick="--total-timesteps 768 --num-envs 2 --update-epochs 1",
    tiny="--total-timesteps 64 --num-envs 1 --num-steps 8 --num-minibatches 2 --update-epochs 2",
    images=(84, 84, 4),
    defaults={"total_timesteps": 10_000_000, "num_envs": 8, "clip_coef": 0.1, "env_id": "BreakoutNoFrameskip-v4"},
)  # fmt: skip
LSTM = ATARI._replace(
    name="ppo_atari_lstm", parent="ppo_atari", marks=details("lstm", 5),
    quick=f"{ATARI.quick} --num-minibatches 2",  # they must divide the environments
    tiny="--total-timesteps 128 --num-envs 2 --num-steps 8 --num-minibatches 2 --update-epochs 2",
)  # fmt: skip
ENVPOOL = ATARI._replace(
    name="ppo_atari_envpool", parent="ppo_atari", marks={"core 1"}, unfit={"CartPole-v1": "no Atari game CartPole-v1"},
    defaults=ATARI.defaults | {"env_id": "Breakout-v5"},
)  # fmt: skip
CONTINUOUS = Script(
    "ppo_continuous_action", "ppo", details("continuous", 9),
    unfit={"CartPole-v1": "ppo.py"},
    quick="--env-id Hopper-v5 --total-timesteps 3072 --num-steps 1024",
    tiny="--env-id Hopper-v5 --total-timesteps 512 --num-envs 2 --num-steps 32 --num-minibatches 4 --update-epochs 2",
    images=None,
    defaults={
        "total_timesteps": 1_000_000, "num_envs": 1, "num_steps": 2048, "num_minibatches": 32, "update_epochs": 10,
        "learning_rate": 3e-4, "ent_coef": 0.0, "env_id": "HalfCheetah-v5",
    },
    box=True,
)  # fmt: skip
PROCGEN = ATARI._replace(
    name="ppo_procgen", parent="ppo_shared", marks={"procgen 1", "continuous 8", "continuous 9"},
    unfit={"CartPole-v1": "no Procgen game"},
    quick="--total-timesteps 1536 --num-envs 8 --num-steps 64 --update-epochs 1",
    images=(4, 64, 64),
    defaults={
        "total_timesteps": 25_000_000, "num_envs": 64, "num_steps": 256, "num_minibatches": 8, "update_epochs": 3,
        "learning_rate": 5e-4, "anneal_lr": False, "gamma": 0.999, "env_id": "starpilot",
        "distribution_mode": "easy", "num_levels": 0, "start_level": 0, "reward_gamma": 0.99,
    },
)  # fmt: skip
MULTIDISCRETE = Script("ppo_multidiscrete", "ppo_shared", {"multidiscrete 1"}, **SEVERAL)
MASK = MULTIDISCRETE._replace(name="ppo_multidiscrete_mask", parent="ppo_multidiscrete", marks={"aux 4"})
MULTIGPU = ENVPOOL._replace(name="ppo_atari_multigpu", parent="ppo_atari_envpool", marks={"aux 2"})
SELFPLAY = Script(
    "ppo_selfplay", "ppo", {"selfplay 1"},
    unfit={"CartPole-v1": "ppo.py", "Pendulum-v1": "not a two-player game"},
    quick="--env-id toy_envs:Signs-v0 --num-envs 4 --total-timesteps 4096",
    tiny="--env-id toy_envs:Signs-v0 --total-timesteps 512 --num-envs 2 --num-steps 32",
    images=None,
    defaults={
        "total_timesteps": 4_000_000, "num_envs": 64, "num_minibatches": 16, "learning_rate": 1e-3,
        "env_id": "SlimeVolley-v0",
    },
)  # fmt: skip
SCRIPTS = [PPO, SHARED, ATARI, LSTM, ENVPOOL, MULTIGPU, CONTINUOUS, PROCGEN, MULTIDISCRETE, MASK, SELFPLAY]
CLEANBA = MULTIGPU._replace(name="ppo_atari_cleanba", parent="ppo_atari_multigpu", marks=details("cleanba", 9))
IMPALA = CLEANBA._replace(
    name="impala_atari_cleanba", parent="ppo_atari_cleanba", marks=details("impala", 6),
    defaults=CLEANBA.defaults | dict.fromkeys(("update_epochs", "gae_lambda", "clip_coef", "anneal_clip")) | {
        "total_timesteps": 50_000_000, "num_envs": 128, "num_steps": 20, "learning_rate": 6e-4, "max_grad_norm": 40.0,
    },
)  # fmt: skip
TEXTS = [*SCRIPTS, CLEANBA, IMPALA]  # the last two have tests of their own of how they run


def of_scripts(scripts):
    """Parametrizes a test with scripts."""
    return pytest.mark.parametrize("script", scripts, ids=lambda script: script.name)


every_script, every_text = of_scripts(SCRIPTS), of_scripts(TEXTS)


def needs_procgen():
    """Skips where the system has no Qt 5, which EnvPool's Procgen needs."""
    try:
        importlib.import_module("envpool.procgen").ProcgenGymnasiumEnvPool  # noqa: B018
    except ImportError:
        pytest.skip("EnvPool's Procgen needs Qt 5 (Debian: libqt5gui5)")


with_qt, slow = pytest.mark.qt, pytest.mark.slow  # conftest.py calls needs_procgen
SPECIAL = {"ppo_procgen": with_qt, "ppo_atari_multigpu": slow, "ppo_atari_lstm": slow}  # slow: it plays as its parent
every_script_with_its_games = of_scripts(
    [pytest.param(script, marks=SPECIAL.get(script.name, ())) for script in SCRIPTS]
)


def spaces(observations, actions):
    """In place of the environments from which an Agent takes its sizes."""
    return SimpleNamespace(single_observation_space=observations, single_action_space=actions)


class Toy(gym.Env):
    """Shows four numbers from 0 to 255: as a vector, or each as one channel of an image. Two actions, always valid."""

    action_space = gym.spaces.Discrete(2)
    metadata = {"render_modes": []}

    def __init__(self, images):
        shape, dtype = (images, np.uint8) if images else ((4,), np.float32)
        self.observation_space = gym.spaces.Box(0, 255, shape, dtype)

    def show(self, *numbers):
        shape = self.observation_space.shape
        numbers = numbers if shape[-1] == 4 else np.reshape(numbers, (4, 1, 1))  # channels come last or first
        return np.broadcast_to(numbers, shape).astype(self.observation_space.dtype)

    def action_mask(self):
        return np.ones(gym.spaces.flatdim(self.action_space))


def numbers_in(obs):
    """The four numbers that a batch of observations shows, [..., 4]."""
    if obs.ndim <= 3:
        return obs
    return obs[..., 0, 0, :] if obs.shape[-1] == 4 else obs[..., 0, 0]


class Step(NamedTuple):
    """What a Counting environment was asked, and what it answered."""

    obs: tuple
    action: float
    reward: float
    terminated: bool
    truncated: bool
    next_obs: np.ndarray  # the final observation where the episode ended


class Counting(Toy):
    """Shows (index, episode, step in it, 7); its episodes end as `ends` says, [(length, kind), ...] over and over.

    A kind is "terminated", "truncated" or "both". `log` has every Step; a step after an episode's end fails.
    """

    def __init__(self, images, index, ends):
        super().__init__(images)
        self.index, self.ends = index, ends
        self.rewards, self.log, self.episode, self.steps = np.random.default_rng(index), [], -1, None

    def reset(self, seed=None, options=None):
        self.episode, self.steps = self.episode + 1, 0
        return self.show(self.index, self.episode, 0, 7), {}

    def step(self, action):
        assert self.steps is not None, "a step after the end of an episode"
        before, self.steps = (self.index, self.episode, self.steps, 7), self.steps + 1
        length, kind = self.ends[self.episode % len(self.ends)]
        over = self.steps == length
        terminated, truncated = over and kind != "truncated", over and kind != "terminated"
        obs, reward = self.show(self.index, self.episode, self.steps, 7), float(np.float32(self.rewards.normal()))
        self.log.append(Step(before, np.asarray(action).item(), reward, terminated, truncated, obs))
        if over:
            self.steps = None
        return obs, reward, terminated, truncated, {}


class Clock(Toy):
    """Without any chance: shows the step in the episode, of 8; of two actions, the one of the step's parity pays 1."""

    def reset(self, seed=None, options=None):
        self.steps = 0
        return self.show(self.steps, 0, 0, 0), {}

    def step(self, action):
        reward, self.steps = float(round(np.asarray(action).item()) == self.steps % 2), self.steps + 1
        return self.show(self.steps, 0, 0, 0), reward, self.steps == 8, False, {}


class Guess(Toy):
    """Asks at each of 16 steps; `ask` returns what is shown, and `pay` the reward of an action that answers it."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, images=None, render_mode=None):
        super().__init__(images)
        self.render_mode = render_mode

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.ask(), {}

    def step(self, action):
        reward, self.steps = float(self.pay(action)), self.steps + 1
        return self.ask(), reward, False, self.steps == 16, {}

    def render(self):
        return np.zeros((32, 32, 3), np.uint8)


class Target(Guess):
    """A number from -1 to 1 is shown; the closer the action, the more of the 1 that a step pays."""

    action_space = gym.spaces.Box(-2, 2, (1,))

    def ask(self):
        self.answer = self.np_random.uniform(-1, 1)
        return self.show(self.answer, 0, 0, 0)

    def pay(self, action):
        return 1 - abs(action.item() - self.answer)


class Identity(Guess):
    """One of four signs is shown; the action of its number pays 1."""

    action_space = gym.spaces.Discrete(4)

    def ask(self):
        self.answer = self.np_random.integers(4)
        return self.show(*(255 if self.observation_space.dtype == np.uint8 else 1) * np.eye(4)[self.answer])

    def pay(self, action):
        return action == self.answer


class Choices(Guess):
    """Two numbers are shown, one of 3 and one of 2; each action that equals its number pays 1."""

    action_space = gym.spaces.MultiDiscrete([3, 2])

    def ask(self):
        self.answer = self.np_random.integers(self.action_space.nvec)
        return self.show(*(self.answer == 1), *(self.answer == 2))

    def pay(self, action):
        assert self.action_space.contains(action)
        return (action == self.answer).sum()


class Signs(Guess):
    """Each seat is shown one of 4 signs of its own; 1 for the action of its number, less the other's."""

    action_space = gym.spaces.MultiDiscrete([4, 4])

    def __init__(self, render_mode=None):
        super().__init__(render_mode=render_mode)
        self.observation_space = gym.spaces.Box(0, 1, (2, 4), np.float32)

    def ask(self):
        self.answers = self.np_random.integers(4, size=2)
        return np.float32(np.eye(4)[self.answers])

    def pay(self, actions):
        right = actions == self.answers
        return int(right[0]) - int(right[1])


gym.register("Choices-v0", Choices)
gym.register("Signs-v0", Signs, disable_env_checker=True)


class Asked:
    """Records every call of a pool of EnvPool and its answer: (ids, actions, obs, rewards, ..., infos)."""

    def __init__(self, pool, num_envs):
        self.pool, self.calls, self.all = pool, [], np.arange(num_envs)

    def step(self, actions, ids=None):
        answer = self.pool.step(actions) if ids is None else self.pool.step(actions, ids)
        kept = [np.array(part) for part in answer[:4]]
        self.calls.append((self.all if ids is None else np.array(ids), np.array(actions), *kept, answer[4]))
        return answer


class AsTheyAre(gym.vector.VectorWrapper):
    """In place of a script's Normalize, so that a test finds the numbers that an environment gave."""

    def __init__(self, envs, gamma):
        super().__init__(envs)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        assert state == {}


def put_in_place_of_games(script, toy, patch=setattr):
    """Makes the script train on toy(script.images, index) instead; returns the list that its environments come into."""
    made = []
    if hasattr(script.module, "Normalize"):
        patch(script.module, "Normalize", AsTheyAre)

    def make_env(args, index, folder):
        made.append(toy(script.images, index))
        if script.box:
            made[-1].action_space = gym.spaces.Box(-2, 2, (1,))
        if script.several:
            made[-1].action_space = gym.spaces.MultiDiscrete([2])
        return gym.wrappers.RecordEpisodeStatistics(made[-1])

    def make_envs(args, folder):
        makers = [partial(make_env, args, index, folder) for index in range(args.num_envs)]
        envs = gym.vector.SyncVectorEnv(makers, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
        return script.module.Normalize(envs, 1.0) if hasattr(script.module, "Normalize") else envs

    if hasattr(script.module, "make_env") and not hasattr(script.module, "Seats"):
        patch(script.module, "make_env", make_env)
    else:  # its own environments are in C++, or each is of two players
        patch(script.module, "make_envs", make_envs)
    return made


@contextlib.contextmanager
def patched(*patches):
    """Sets attributes, (object, name, value), for a while."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, value in patches:
            patch.setattr(owner, name, value)
        yield patch


@contextlib.contextmanager
def watched(owner, name, look):
    """The list of what `look` makes of the arguments of each call of a function, before the call."""
    seen, function = [], getattr(owner, name)

    def look_and_call(*args, **kwargs):
        seen.append(look(*args, **kwargs))
        return function(*args, **kwargs)

    with patched((owner, name, look_and_call)):
        yield seen


@contextlib.contextmanager
def loaded_parts(script):
    """A dict that gets the states of the parts as a run of the script begins."""
    states, start = {}, script.module.Run.start

    def look(run, device, **parts):
        start(run, device, **parts)
        states.update(copy.deepcopy({name: part.state_dict() for name, part in parts.items()}))

    with patched((script.module.Run, "start", look)):
        yield states


def train(script, options, folder):
    """Runs `python script.py options` in this process, in `folder`, which it makes; returns the run's own folder."""
    kept, numbers = [], (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}

    def keep(make):
        return lambda *args, **kwargs: kept.append(make(*args, **kwargs)) or kept[-1]

    folder.mkdir(exist_ok=True)
    argv = [f"{script.name}.py", *options.split()]
    module = script.module
    patches = (module, "SummaryWriter", keep(SummaryWriter)), (module, "FileLock", keep(FileLock)), (sys, "argv", argv)
    with patched(*patches) as patch:
        patch.chdir(folder)
        try:
            module.main()
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        finally:  # as the end of a process does; the writer needs the folder that it was opened in
            for each in kept:
                each.release(force=True) if isinstance(each, BaseFileLock) else each.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return newest_run(folder)


def newest_run(folder):
    return max((folder / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)


def started(process, folder):
    """The folder of the run that a process has begun in `folder`, once its log has an update."""
    while not list(folder.glob("runs/*/events.*")) or not scalars(newest_run(folder)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return newest_run(folder)


def start(arguments, folder, stderr=subprocess.PIPE, group=None, **environment):
    """Starts `python arguments` in `folder`; its output is a pipe of text, its errors are another or go to `stderr`.

    With 0 as `group` it has a process group of its own."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"} | environment
    command = [sys.executable, *map(str, arguments)]
    pipes = dict(stdout=subprocess.PIPE, stderr=stderr, text=True)
    return subprocess.Popen(command, cwd=folder, env=environment, process_group=group, **pipes)


def finish(process, seconds=120):
    """Waits for the end; (exit status, output, errors). What does not end in time is killed."""
    try:
        output, errors = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, output, errors


def scalars(folder):
    """{tag: [(step, value), ...]} of a run as TensorBoard reads it: a start drops the points from its step on."""
    files = [list(LegacyEventFileLoader(str(path)).Load()) for path in folder.glob("events.*")]
    points = {}
    for event in chain.from_iterable(sorted(files, key=lambda file: file[0].wall_time)):
        if event.session_log.status == SessionLog.START:
            points = {tag: [point for point in old if point[0] < event.step] for tag, old in points.items()}
        for each in event.summary.value:
            if each.tag != "run/text_summary":  # the options
                points.setdefault(each.tag, []).append((event.step, each.simple_value))
    return points


def checkpoint(folder, which=-1):
    """The contents of a run's newest checkpoint, or of another."""
    return torch.load(sorted(folder.glob("checkpoint_*.pt"))[which], weights_only=True)


def equal(one, other):
    """Whether two states are equal, bit for bit."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def same_weights(one, other):
    """Whether two checkpoints hold the same weights, bit for bit."""
    return equal(one["parts"]["agent"], other["parts"]["agent"])


def without_speed(folder):
    """The log of a run without its speed, as text, in which NaN equals NaN."""
    return {tag: str(points) for tag, points in scalars(folder).items() if tag != "charts/SPS"}
