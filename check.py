# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "filelock>=3.20", "gymnasium[mujoco]>=1.4", "numpy>=2.0", "tensorboard>=2.21", "torch>=2.13,<2.16", "tqdm>=4.67",
#   "tyro>=1.0",
#   "ale-py>=0.12", "opencv-python-headless>=4.11", "moviepy>=2.2", "pygame-ce>=2.5",
# ]
# ///
"""Checks an edited script and an environment before a long run, and prints what it found.

    python check.py my_ppo.py --env-id walk:Walk-v0        (--help lists every option)

It takes random steps in an environment that the script makes. Then the script itself trains for two updates in a
temporary folder, and resumes from a checkpoint, while check.py looks at what its functions get and return. Options of
the script may follow. The exit status is 0 without errors, 1 with errors, and 2 where nothing could be checked.
"""

import ast
import collections
import contextlib
import copy
import dataclasses
import functools
import inspect
import io
import math
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
import typing
import warnings
from pathlib import Path
from unittest import mock

import gymnasium as gym
import numpy as np
import torch
import tyro
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers.utils import RunningMeanStd
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from saved import import_script

RANDOM_STEPS = 1000
REPEATED_STEPS = 100  # a second environment with the same seed must repeat so many of them
PLAIN = (type(None), bool, int, float, str)
LARGE = 50  # observations beyond it slow learning down
# Of log probabilities. Dropout of 0.1 changes those of a new agent by about 0.01, as its last layer is small.
ROUNDING = 1e-4
ROUNDING_LOW_PRECISION = 0.02  # with --tf32 or --bf16


@dataclasses.dataclass(frozen=True)
class Args:
    script: tyro.conf.Positional[Path]  # the script to check
    learn: bool = False  # also train on six small environments whose answers are known


# The page, and places in the user's code.


class Page:
    """Prints what the checks find, and counts it."""

    def __init__(self):
        self.counts = collections.Counter()
        self.name = ""
        self.first_error = ""  # the name of the section that has it
        self.failures = set()  # the descriptions of exceptions
        self.start_time = time.monotonic()

    def section(self, name, details=""):
        self.name = name
        print(f"{name}{details}", flush=True)

    def add(self, kind, text):
        self.counts[kind] += 1
        if kind == "ERROR" and not self.first_error:
            self.first_error = self.name
        print(f"  {kind:<6} {text}", flush=True)

    ok = functools.partialmethod(add, "ok")
    note = functools.partialmethod(add, "note")
    warn = functools.partialmethod(add, "warn")
    error = functools.partialmethod(add, "ERROR")
    skip = functools.partialmethod(add, "skip")

    @contextlib.contextmanager
    def check(self, name):
        """Turns an exception in a check into an error on the page, so that the next check goes on."""
        try:
            yield
        except (Exception, SystemExit) as error:
            self.failure(name, error)

    def failure(self, name, error):
        """Adds an exception; of one that comes again, where it did."""
        text = describe(error)
        if text in self.failures:
            self.skip(f"{name}: the same {type(error).__name__}")
        else:
            self.failures.add(text)
            self.error(f"{name}: {text}")

    def summary(self):
        texts = []
        for kind, word in (("ERROR", "error"), ("warn", "warning"), ("note", "note")):
            plural = "" if self.counts[kind] == 1 else "s"
            texts.append(f"{self.counts[kind]} {word}{plural}")
        text = f"{', '.join(texts)} in {time.monotonic() - self.start_time:.0f} s"
        return f'{text}; first mend those of "{self.first_error}"' if self.first_error else text


@functools.cache
def is_users(file):
    """Whether a source file is the user's: neither Python's, nor a library's, nor one of this program."""
    if file.startswith("<"):
        return False
    path = Path(file).resolve()
    program = Path(__file__).resolve().parent
    libraries = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")}
    if path in (program / "check.py", program / "enjoy.py", program / "saved.py"):
        return False
    return not any(library in path.parents for library in libraries)


def place_of(thing):
    """Where a class or a function of the user begins, such as " (walk.py:88)"; "" if it is not the user's."""
    try:
        file = inspect.getsourcefile(thing)
        _, line = inspect.getsourcelines(thing)
    except (OSError, TypeError):  # it has no source in Python
        return ""
    return f" ({Path(file).name}:{line})" if is_users(file) else ""


def describe(error):
    """An exception as one line, with the last line of the user's code in its traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    text = " ".join(str(error).split()).removeprefix("error: ")
    if not text and frames:
        text = frames[-1].line
    if not isinstance(error, SystemExit):
        text = f"{type(error).__name__}: {text}"
    if isinstance(error, ConnectionError | EOFError):
        text += "; a process of the environment ended, perhaps with a traceback above"
    if len(text) > 300:
        text = f"{text[:300]}..."
    return f"{text} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else text


class Source:
    """The text of the script, in which names are looked up: each method returns a place, or "" if there is none."""

    def __init__(self, path):
        self.file_name = path.name
        self.nodes = list(ast.walk(ast.parse(path.read_text())))

    def first(self, matches):
        lines = [node.lineno for node in self.nodes if matches(node)]
        return f" ({self.file_name}:{min(lines)})" if lines else ""

    def option(self, name):
        """Where Args has an option."""
        return self.first(lambda node: isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == name)

    def attribute(self, name):
        """Where the agent gets what has a name such as trunk.0.weight."""
        name, _, _ = name.partition(".")
        is_stored = lambda node: isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)  # noqa: E731
        return self.first(lambda node: is_stored(node) and node.attr == name)

    def call(self, name):
        """Where nn.NAME() or NAME() is called."""
        is_name = lambda node: name in (getattr(node, "attr", ""), getattr(node, "id", ""))  # noqa: E731
        return self.first(lambda node: isinstance(node, ast.Call) and is_name(node.func))

    def create_run(self):
        """The name of what makes the run: the argument of main() in the last lines, or Run."""
        calls = [node for node in self.nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "main"]
        return next((node.args[0].id for node in calls if node.args), "Run")

    def names(self):
        """All attributes and strings in the text."""
        attributes = {node.attr for node in self.nodes if isinstance(node, ast.Attribute)}
        return attributes | {node.value for node in self.nodes if isinstance(node, ast.Constant)}


@contextlib.contextmanager
def quiet():
    """Hides what the script and the environment print and warn of."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        # Libraries in C++, such as MuJoCo's and ALE, write to the files 1 and 2.
        nothing = stack.enter_context(open(os.devnull, "w"))
        for number in (1, 2):
            kept = os.dup(number)
            os.dup2(nothing.fileno(), number)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, number)
        yield


# The environment.


def replaced(args, **changes):
    """The options with changes, of those that the script has."""
    return dataclasses.replace(args, **{name: value for name, value in changes.items() if hasattr(args, name)})


def layers(env):
    """An environment, or a vector of them, from the outermost wrapper to what is in all of them."""
    yield env
    while isinstance(env, gym.Wrapper | gym.vector.VectorWrapper):
        env = env.env
        yield env


def leaves(space, obs=None, name="observation"):
    """The parts of a Dict or Tuple, or the space itself: a name, the space and its part of an observation for each."""
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        parts = space.items() if isinstance(space, gym.spaces.Dict) else enumerate(space)
        for key, part in parts:
            yield from leaves(part, None if obs is None else obs[key], f"{name}[{key!r}]")
    else:
        yield name, space, obs


def has_convolutions(script):
    return "Conv2d" in Path(script.__file__).read_text()


def check_spaces(script, space, page):
    """Finds parts of an observation that do not belong in a vector: images, and what has no fixed size."""
    axes = 3 if hasattr(script, "Seats") else 2  # of an image; the first is that of the two players
    for name, part, _ in leaves(space):
        try:
            is_flat = part.is_np_flattenable
        except NotImplementedError:  # a space of the user's own
            is_flat = False
        if not is_flat:
            page.error(f"{name} is of the space {part}, which has no fixed size: a wrapper must encode or drop it")
        elif isinstance(part, gym.spaces.Box) and len(part.shape) >= axes and (part.high == 255).any():
            if has_convolutions(script):
                continue  # its network makes an image of the vector again
            page.warn(f"{name} is an image {list(part.shape)}, which the script makes a part of a vector")


def misfit(space, obs):
    """How an observation does not fit its space, in words; "" if it does."""
    for name, part, value in leaves(space, obs):
        if isinstance(part, gym.spaces.Box):
            text = misfit_of_array(part, np.asarray(value))
        else:
            text = "" if part.contains(value) else f"is {value!r}, which is not in {part}"
        if text:
            return f"{name} {text}"
    return ""


def misfit_of_array(space, array):
    """The same for a Box, without the observation's name."""
    if array.shape != space.shape:
        return f"has the shape {list(array.shape)}, and its space {list(space.shape)}"
    if array.dtype.kind not in "biuf":
        return f"has the type {array.dtype}, and its space {space.dtype}"
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return f"has a value that is {array[~np.isfinite(array)][0]}"
    if array.dtype.kind == "f" and space.dtype.kind != "f" and (array % 1 != 0).any():
        return f"has fractions, and its space of the type {space.dtype} has none"
    rounding = 1e-5 * (1 + np.abs(array))
    for outside, bound, word in (
        (array > space.high + rounding, space.high, "ends"),
        (array < space.low - rounding, space.low, "begins"),
    ):
        if outside.any():
            index = tuple(np.argwhere(outside)[0].tolist())
            where = " ".join(map(str, index))
            return f"{where} is {array[index]:.6g}, and its space {word} at {bound[index]:.6g}"
    return ""


class Innermost:
    """Looks at what the innermost environment gets and returns, before the wrappers change it."""

    def __init__(self, env):
        self.env = env.unwrapped
        self.space = self.env.observation_space
        self.step = self.env.step
        self.reset = self.env.reset
        self.env.step = self.watched_step
        self.env.reset = self.watched_reset
        self.steps = 0
        self.rewards = []
        self.return_ = 0.0  # of the episode that goes on
        self.returns = []  # of those that ended
        self.problems = {}  # {kind: text}, the first of each kind
        self.changes_actions = False

    def find(self, kind, text):
        self.problems.setdefault(kind, text + place_of(type(self.env).step))

    def look_at_observation(self, obs):
        text = misfit(self.space, obs)
        if text:
            self.find("observation", f"{text}, at step {self.steps}; correct the space or the value")

    def look_at_reward(self, reward):
        number = np.asarray(reward)
        if number.size != 1 or number.dtype.kind not in "biuf":
            self.find("reward", f"reward {reward!r} at step {self.steps} is not one number")
        elif not np.isfinite(number).all():
            self.find("reward", f"reward at step {self.steps} is {number.item()}")
        else:
            self.rewards.append(float(number.item()))
            self.return_ += self.rewards[-1]

    def watched_reset(self, **options):
        if self.steps > 0:
            self.returns.append(self.return_)
        self.return_ = 0.0
        obs, info = self.reset(**options)
        self.look_at_observation(obs)
        return obs, info

    def watched_step(self, action):
        action_before = copy.deepcopy(action)
        obs, reward, terminated, truncated, info = self.step(action)
        self.steps += 1
        self.changes_actions |= not np.array_equal(action, action_before)
        self.look_at_observation(obs)
        self.look_at_reward(reward)
        return obs, reward, terminated, truncated, info


class RandomSteps:
    """What an environment, with all wrappers of the script, does in random steps."""

    def __init__(self, env, seed):
        self.env = env
        self.seed = seed
        self.observations = []
        self.rewards = []
        self.lengths = []  # of the episodes that ended
        self.cut_lengths = []  # of those that were truncated
        self.returns = []  # of those that the infos report
        self.problem = ""

    def take(self, count, beside=None, actions_seed=None):
        """Takes steps, each after one of the environment `beside`, if there is one."""
        env = self.env
        env.action_space.seed(self.seed if actions_seed is None else actions_seed)
        obs, info = env.reset(seed=self.seed)
        length = 0
        for step in range(count):
            if beside is not None:
                if step == 0:
                    _, info_beside = beside.reset(seed=self.seed + 1)
                    action_space = copy.deepcopy(beside.action_space)  # actions of its own
                _, _, terminated, truncated, info_beside = beside.step(sample_action(action_space, info_beside))
                if terminated or truncated:
                    _, info_beside = beside.reset()
            self.observations.append(copy.deepcopy(obs))
            next_obs, reward, terminated, truncated, info = env.step(sample_action(env.action_space, info))
            self.rewards.append(float(reward))
            length += 1
            if not are_equal(obs, self.observations[-1]):
                self.problem = self.problem or f"observation {step} is changed in place by the next step: return a copy"
            self.problem = self.problem or misfit(env.observation_space, next_obs)
            obs = next_obs
            if terminated or truncated:
                self.lengths.append(length)
                if not terminated:
                    self.cut_lengths.append(length)
                if "episode" in info:
                    self.returns.append(float(np.asarray(info["episode"]["r"]).item()))
                length = 0
                obs, info = env.reset()

    def begins_as(self, other):
        """Whether the observations and rewards are those of the other, as far as the shorter goes."""
        length = min(len(self.rewards), len(other.rewards))
        pairs = zip(self.observations[:length], other.observations[:length], strict=True)
        return self.rewards[:length] == other.rewards[:length] and all(are_equal(*pair) for pair in pairs)


def sample_action(space, info):
    """A random action, of those that a mask in the info allows."""
    mask = info.get("action_mask")
    if mask is None:
        return space.sample()
    mask = np.asarray(mask, dtype=np.int8)
    if isinstance(space, gym.spaces.MultiDiscrete):
        mask = tuple(np.split(mask, np.cumsum(space.nvec)[:-1]))
    return space.sample(mask=mask)


def are_equal(one, other):
    """Whether two observations are equal."""
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return repr(one) == repr(other)


def global_generators():
    """The states of the random generators that a whole process shares, {name: state}."""
    _, keys, position, *_ = np.random.get_state()
    torch_state = torch.get_rng_state().numpy().tobytes()
    return {"np.random": (keys.tobytes(), position), "random": random.getstate(), "torch": torch_state}


def torch_settings():
    """The settings of torch that a whole process shares, {name: value}."""
    return {"default dtype": torch.get_default_dtype(), "gradient mode": torch.is_grad_enabled()}


def restore_torch_settings(settings):
    torch.set_default_dtype(settings["default dtype"])
    torch.set_grad_enabled(settings["gradient mode"])


def makes_single_environments(script, args):
    """Whether make_env() makes the environments: EnvPool's come as a whole vector."""
    return hasattr(script, "make_env") and not args.env_id.startswith("envpool/")


def check_environment(script, args, page):
    """Takes random steps in an environment as the script makes it; returns whether there is one."""
    page.section("environment", f", {RANDOM_STEPS} random steps")
    if not makes_single_environments(script, args):
        page.skip("random steps: only a whole vector of environments can be made")
        return True
    settings = torch_settings()
    try:
        with quiet():
            env = script.make_env(args, 0, None)
    except (Exception, SystemExit) as error:
        page.failure("it cannot be made", error)
        if not isinstance(error, SystemExit):  # a script's own message says why
            with contextlib.suppress(Exception):
                with quiet():
                    space = gym.make(args.env_id).observation_space
                check_spaces(script, space, page)
        return False
    place = place_of(type(env.unwrapped))
    innermost = Innermost(env)
    steps = RandomSteps(env, args.seed)
    generators = global_generators()
    start_time = time.monotonic()
    failure = None
    try:
        with quiet():
            steps.take(RANDOM_STEPS)
    except (Exception, SystemExit) as error:
        failure = error
    speed = len(steps.rewards) / (time.monotonic() - start_time)
    drawn = [name for name, state in global_generators().items() if state != generators[name]]

    for text in innermost.problems.values():
        page.error(text)
    if not innermost.problems:  # else it may be their effect
        if failure is not None:
            page.failure(f"step {innermost.steps}", failure)
        if steps.problem:
            page.error(f"with the script's wrappers, {steps.problem}{place_of(type(env))}")
    for name, value in torch_settings().items():
        if value != settings[name]:
            page.error(f"the environment sets torch's {name} to {value}, for the agent as well{place}")
    restore_torch_settings(settings)
    if innermost.changes_actions:
        page.note(f"step() changes the action that it gets in place{place_of(type(env.unwrapped).step)}")
    if drawn:
        hint = "use self.np_random, which reset(seed) seeds"
        page.warn(f"it uses random generators of the whole process: {', '.join(drawn)}{place}; {hint}")
    with page.check("wrappers"):
        check_wrappers(script, env, page)
    if innermost.rewards and failure is None:
        with page.check("observations, rewards and episodes"):
            check_observations(script, steps, innermost.problems, page)
            check_rewards(env, innermost.rewards, page)
            check_episodes(steps, page)
            check_returns(steps.returns, innermost.returns, page)
        with page.check("reset"):
            check_repetition(script, args, steps, speed, page)
    with page.check("close"), quiet():
        env.close()
    with page.check("gymnasium's check_env"):
        run_check_env(script, args, page)
    restore_torch_settings(settings)
    return True


def check_wrappers(script, env, page):
    """Looks for statistics that no checkpoint holds, and for observations that do not belong in a vector."""
    for layer in layers(env):
        for name, value in vars(layer).items():
            if isinstance(value, RunningMeanStd):
                hint = "no checkpoint holds them, so a resume and enjoy.py start them anew"
                page.error(f"{type(layer).__name__} keeps running statistics, {name}{place_of(type(layer))}: {hint}")
    is_vector = env.observation_space.shape is not None and len(env.observation_space.shape) == 1
    if is_vector and isinstance(env, gym.Wrapper):
        check_spaces(script, env.env.observation_space, page)


def check_observations(script, steps, problems, page):
    space = steps.env.observation_space
    text = f"observations {space.__class__.__name__}{space.shape} {space.dtype}"
    obs = np.array(steps.observations)
    if obs.ndim == 2:
        deviations = obs.std(axis=0)
        text += f", std {deviations.min():.2g} to {deviations.max():.2g}"
    if not problems and not steps.problem:
        page.ok(f"{text}; finite and in their space")
    is_scaled = hasattr(script, "Normalize") or has_convolutions(script)
    if obs.ndim == 2 and np.abs(obs).max() > LARGE and not is_scaled:
        page.warn(f"observations of up to {np.abs(obs).max():.4g}: scale them to about [-1, 1]")


def check_rewards(env, rewards, page):
    actions = env.action_space
    if isinstance(actions, gym.spaces.Box):
        finite = np.concatenate([bound[np.isfinite(bound)] for bound in (actions.low, actions.high)])
        is_off = (actions.low > 0).any() or (actions.high < 0).any()  # 0 is no action
        is_far = len(finite) and (np.abs(finite).max() > 10 or (actions.high - actions.low).min() < 0.1)
        if is_off or is_far:
            hint = "the first policy draws from a normal distribution about 0: scale them to [-1, 1]"
            page.warn(f"actions from {finite.min():.4g} to {finite.max():.4g}; {hint}")
    share = 100 * np.mean(np.array(rewards) != 0)
    page.ok(f"actions {actions}; rewards {min(rewards):.4g} to {max(rewards):.4g}, {share:.3g} % not 0")
    if share == 0:
        page.warn("all rewards are 0: random actions find none, so that nothing can be learned from them")


def check_episodes(steps, page):
    lengths = steps.lengths
    limits = [layer._max_episode_steps for layer in layers(steps.env) if isinstance(layer, gym.wrappers.TimeLimit)]
    if lengths:
        shortest = f"{min(lengths)} to " if min(lengths) < max(lengths) else ""
        text = f"{len(lengths)} episodes of {shortest}{max(lengths)} steps"
        if steps.returns:
            text += f", with a mean return of {np.mean(steps.returns):.4g}"
        cuts = steps.cut_lengths
        if len(set(cuts)) > 1:
            page.warn(f"{text}; {len(cuts)} truncated, after {min(cuts)} to {max(cuts)} steps: an end is terminated")
        elif cuts:
            page.note(f"{text}; {len(cuts)} cut by a time limit: see --bootstrap-truncated")
        elif len(lengths) >= 5 and len(set(lengths)) == 1 and lengths[0] > 1:
            page.note(f"{text}, all terminated: if that is a time limit, step() must return truncated")
        else:
            page.ok(text)
    elif limits:
        page.note(f"no episode ended; the time limit is {limits[0]} steps")
    else:
        page.warn("no episode ended: no return would be logged; register it with max_episode_steps")
    if len(lengths) >= 10 and not steps.returns:
        page.warn('no info of an episode\'s last step has the key "episode": no return would be logged')


def check_returns(logged, returns, page):
    """The returns that are logged must be those of the environment's own rewards."""
    if not logged or len(logged) != len(returns):
        return
    if not np.isclose(logged, returns, rtol=1e-3, atol=1e-3).any():
        hint = "a wrapper inside Episodes changes the rewards"
        page.note(f"the first return that is logged is {logged[0]:.6g}, and the environment's {returns[0]:.6g}: {hint}")


def check_repetition(script, args, steps, speed, page):
    """Makes the environment a second time, and takes the same steps."""
    with quiet():
        second = RandomSteps(script.make_env(args, 0, None), steps.seed)
        second.take(REPEATED_STEPS)
        second.env.close()
    place = place_of(type(steps.env.unwrapped))
    if not second.begins_as(steps):
        page.warn(f"reset(seed={steps.seed}) and the same actions do not repeat{place}: use self.np_random")
        return
    with quiet():
        used = RandomSteps(steps.env, steps.seed)
        used.take(REPEATED_STEPS)
        beside = RandomSteps(script.make_env(args, 0, None), steps.seed)
        beside.take(REPEATED_STEPS, beside=steps.env)
        other = RandomSteps(beside.env, steps.seed)
        other.take(REPEATED_STEPS, actions_seed=steps.seed + 1)
        beside.env.close()
    if not used.begins_as(second):
        hint = "what does reset() leave of the episode before?"
        page.warn(f"reset(seed={steps.seed}) of an environment that was used does not repeat{place}: {hint}")
    elif not beside.begins_as(second):
        hint = "do they share an attribute of the class, or of the module?"
        page.warn(f"steps of another environment change this one{place}: {hint}")
    elif other.begins_as(second):
        page.warn(f"other actions change neither observations nor rewards{place}")
    else:
        page.ok(f"reset(seed={steps.seed}) repeats; {speed:,.0f} steps/s")


def run_check_env(script, args, page):
    """Runs gymnasium's own check. Its warnings of bounds are left out, as these scripts take any."""
    with quiet():
        env = script.make_env(args, 0, None)
        _, info = env.reset(seed=args.seed)
        env = env.unwrapped
    if "action_mask" in info:
        page.skip("gymnasium's check_env: it knows no masks, and would take invalid actions")
        return
    failure = None
    with quiet(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(env, skip_render_check=True, skip_close_check=True)
        except Exception as error:
            failure = error
        env.close()
    if failure is not None:
        page.warn(f"gymnasium's check_env: {describe(failure)}{place_of(type(env))}")
    texts = [" ".join(re.sub(r"\033\[\d+m|WARN: ", "", str(warning.message)).split()) for warning in caught]
    for text in dict.fromkeys(texts):
        if "A Box observation space" not in text and "For Box action spaces" not in text:
            page.note(f"gymnasium's check_env: {text[:200]}")


def check_vector(script, args, page):
    """Takes a few steps with make_envs(), and returns its observations [B, ...]."""
    place = place_of(script.make_envs)
    seen = []
    with quiet():
        envs = script.make_envs(args)
        obs, infos = envs.reset(seed=args.seed)
        envs.single_action_space.seed(args.seed)
        for _ in range(8):
            seen.append(obs.copy())
            masks = infos.get("action_mask", [None] * len(obs))
            actions = np.array([sample_action(envs.single_action_space, {"action_mask": mask}) for mask in masks])
            next_obs, rewards, _, _, infos = envs.step(actions)
            is_changed = not are_equal(obs, seen[-1])
            obs = next_obs
        envs.close()
    if is_changed:
        page.error(f"step() of make_envs() changes in place what it has returned before: return a copy{place}")
    mode = envs.metadata.get("autoreset_mode")
    if mode not in (None, gym.vector.AutoresetMode.SAME_STEP):
        page.error(f"make_envs() returns {mode}, and the rollout needs AutoresetMode.SAME_STEP{place}")
    if obs.shape[1:] != envs.single_observation_space.shape:
        spaces = list(envs.single_observation_space.shape)
        page.error(f"observations of make_envs() are {list(obs.shape)}, and their space is {spaces}{place}")
    if not (np.isfinite(obs).all() and np.isfinite(rewards).all()):
        page.error(f"make_envs() returns observations or rewards that are not finite{place}")
    return np.concatenate(seen)


# A run of the script.


class FirstStep(typing.NamedTuple):
    """The first gradient step of an update."""

    minibatch: dict
    options: dict
    optimizer: typing.Any
    before: dict  # the agent's parameters, {name: tensor}
    after: dict
    buffers: dict  # what else the agent saves, such as statistics of observations


class PolicySlopes(typing.NamedTuple):
    """Derivatives of the loss of a minibatch by the log probability of each action, float32 [B].

    Where one is below 0, a step of gradient descent makes the action more likely."""

    advantages: torch.Tensor
    before: torch.Tensor  # where the probabilities are those of the rollout
    log_ratios: torch.Tensor
    after: torch.Tensor  # where they differ by these log_ratios
    shifted: torch.Tensor  # as before, with the same number added to the value and the return of each action


class Watched:
    """A run of the script, and what its functions got and returned.

    The functions are wrapped while the script trains, and do what they always do. `first_step`, if it is given, has the
    minibatch that takes the place of the first one, and the agent's buffers of that time."""

    def __init__(self, script, args, words=(), first_step=None):
        self.script = script
        self.first_step = first_step
        self.error = None  # the exception that ended the run
        self.result = None  # what train() returned
        self.runs = []  # the Run, or those of several agents
        self.agents = []
        self.first_agent = None  # a copy of the first, from before the first update
        self.parts = {}
        self.unsavable = {}  # {part: why}
        self.modules = {}  # {id: module} of all with parameters that were called
        self.optimizers = {}  # {id: optimizer} of torch's that took a step
        self.states = {}  # of the parts after run.start()
        self.options_read = set()
        self.update_times = []  # seconds
        self.stats = []  # the scalars of each gradient step, in a list for each update
        self.first_steps = []  # of each update
        self.gradients = {}  # {parameter: its gradient in the first step, or None if the loss does not use it}
        self.vectors = 0  # of environments that the run has made
        self.envs = None  # the first vector
        self.resets = []  # (update, seed) of each of its resets
        self.obs = None  # those that it returned last
        self.steps = []  # of the first update: the observations before each step and its rewards
        self.ends = []  # whether an episode ended, bool [N], of each step
        self.numpy_state = None  # of np.random after the last step
        self.draws_from_numpy = False  # whether anything but the environments does, in the updates
        self.seeds_numpy = False
        self.samples = 0  # calls of sample()
        self.schedulers = []  # of torch's
        self.cuts = []  # (step, environment, last observation) of each episode of the first update that was cut off
        self.gae_calls = {}  # {update: (gae, {name: argument}) of its first call}
        self.advantages = None  # what the first call returned
        self.last_obs = None  # those at the time of the first call
        self.rows = []  # of the minibatches of the first update: the hashes of observations, and {column: numbers}
        self.statistics_saved = []  # those of running statistics in the first checkpoint after an update
        self.statistics_loaded = []  # the same after run.start()
        self.log_probs = None  # in the first gradient step
        self.inner_calls = collections.Counter()  # {thread: calls of sample() and log_prob() that have not returned}
        self.values = None
        self.slopes = None  # a PolicySlopes
        self.terms = {}  # of the loss: {name: (how much it grows with the coefficient, the scalar)}
        self.step_norms = []  # of the gradients with which the agent's optimizer took steps
        self.learning_rates = collections.defaultdict(dict)  # {update: {id of an optimizer: those of its first step}}
        self.logprobs_of_steps = []  # of the first rollout, by the policies that acted
        self.logprobs_of_batch = None  # the same, as the script computes them after the rollout
        self.added_to_values = None  # what forward() adds to the values, [B]
        self.values_of_update_2 = None  # those of the first gradient step, of an agent with memory
        self.train(args, words)

    def train(self, args, words):
        script = self.script
        watched = {
            (script.Agent, "__init__"): self.make_agent,
            (script.Agent, "forward"): self.forward,
            (script.Run, "start"): self.start,
            (script.Run, "save"): self.save,
            (script.Run, "log_update"): self.log_update,
            (script, "make_envs"): self.make_envs,
            (script, "gae"): self.gae,
            (script, "gradient_step"): self.gradient_step,
            (script, "adam_step"): self.adam_step,
            (np.random, "seed"): self.seed_numpy,
            (torch.optim.lr_scheduler.LRScheduler, "__init__"): self.make_scheduler,
        }
        for name, value in vars(script).items():
            if name.endswith("_loss") and inspect.isfunction(value):
                watched[script, name] = self.loss
            if inspect.isclass(value) and hasattr(value, "log_prob"):  # a class may inherit one of the two
                looks = {"log_prob": self.log_prob, "sample": self.sample}
                watched |= {(value, name): look for name, look in looks.items() if name in vars(value)}
        handlers = {number: signal.getsignal(number) for number in script_signals()}
        with contextlib.ExitStack() as stack:
            stack.enter_context(quiet())
            stack.enter_context(mock.patch.object(sys, "argv", [script.__file__, *words]))
            stack.enter_context(torch.compiler.set_stance("force_eager"))  # also without --compile
            stack.enter_context(mock.patch.object(script.Args, "__getattribute__", reader(self.options_read)))
            for (owner, name), look in watched.items():
                if hasattr(owner, name):
                    stack.enter_context(mock.patch.object(owner, name, wrap(getattr(owner, name), look)))
            for handle in (
                register_module_forward_hook(self.see_module),
                register_optimizer_step_post_hook(self.see_optimizer),
            ):
                stack.callback(handle.remove)
            try:
                run = getattr(script, Source(Path(script.__file__)).create_run())(args)
                run.updates = functools.partial(self.updates, run.updates)
                self.result = script.train(run.args, run)
            except (Exception, SystemExit) as error:
                self.error = error
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for run in self.runs:
            if hasattr(run, "writer"):
                run.writer.close()
        for process in multiprocessing.active_children():
            process.kill()

    def see_module(self, module, inputs, outputs):
        if any(True for _ in module.parameters()):
            self.modules[id(module)] = module

    def see_optimizer(self, optimizer, args, kwargs):
        self.optimizers[id(optimizer)] = optimizer
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        of_agent = set(self.agents[0].parameters()) if self.agents else set()
        if of_agent.intersection(parameters):
            rates = [float(group["lr"]) for group in optimizer.param_groups]
            self.learning_rates[len(self.stats)].setdefault(id(optimizer), rates)
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            self.step_norms.append(torch.nn.utils.get_total_norm(gradients).item())

    def outside_parts(self):
        """The modules and optimizers that belong to no part, but for copies of the agent."""
        known = self.agents + [module for module in self.modules.values() if isinstance(module, self.script.Agent)]
        for part in self.parts.values():
            known += [part, *getattr(part, "__dict__", {}).values()]  # also what a part keeps in its attributes
        inside = {id(thing) for thing in known}
        for module in known:
            if isinstance(module, torch.nn.Module):
                inside |= {id(inner) for inner in module.modules()}
        outside = [module for key, module in self.modules.items() if key not in inside]
        inner = {id(each) for module in outside for each in module.modules() if each is not module}
        outside = [module for module in outside if id(module) not in inner]
        optimizers = self.optimizers | {id(step.optimizer): step.optimizer for step in self.first_steps}
        outside += [optimizer for key, optimizer in optimizers.items() if key not in inside]
        outside += [scheduler for scheduler in self.schedulers if id(scheduler) not in inside]
        return [thing for thing in outside if self.trains(thing)]

    def trains(self, thing):
        """Whether a module, optimizer or scheduler has parameters of a module that was called."""
        optimizer = getattr(thing, "optimizer", thing)  # of a scheduler
        if not isinstance(optimizer, torch.optim.Optimizer):
            return True
        known = {parameter for module in self.modules.values() for parameter in module.parameters()}
        return any(parameter in known for group in optimizer.param_groups for parameter in group["params"])

    def is_in_first_step(self):
        """Whether the loss of the first gradient step is computed; actors in other threads have no gradients."""
        return len(self.stats) == 1 and not self.stats[0] and torch.is_grad_enabled()

    def make_agent(self, function, agent, *args, **kwargs):
        function(agent, *args, **kwargs)
        self.agents.append(agent)

    def make_scheduler(self, function, scheduler, *args, **kwargs):
        self.schedulers.append(scheduler)
        return function(scheduler, *args, **kwargs)

    def seed_numpy(self, function, *args, **kwargs):
        self.seeds_numpy = True
        return function(*args, **kwargs)

    def forward(self, function, agent, *inputs, **kwargs):
        outputs = function(agent, *inputs, **kwargs)
        if self.is_in_first_step() and self.values is None:
            self.values = outputs[1].detach()
        is_in_second_update = len(self.stats) == 2 and not self.stats[1] and torch.is_grad_enabled()
        if is_in_second_update and self.values_of_update_2 is None:
            self.values_of_update_2 = outputs[1].detach()
        if self.added_to_values is not None and torch.is_grad_enabled():  # not in the rollout of another thread
            policy, values, *rest = outputs
            outputs = policy, values + self.added_to_values, *rest
        return outputs

    def is_in_first_rollout(self):
        return len(self.stats) == 1 and not self.stats[0] and not torch.is_grad_enabled()

    def sample(self, function, policy, *args, **kwargs):
        self.samples += 1
        thread = threading.get_ident()
        self.inner_calls[thread] += 1
        actions = function(policy, *args, **kwargs)
        if self.is_in_first_rollout() and self.inner_calls[thread] == 1:
            self.logprobs_of_steps.append(policy.log_prob(actions))
        self.inner_calls[thread] -= 1
        return actions

    def log_prob(self, function, policy, actions):
        thread = threading.get_ident()
        self.inner_calls[thread] += 1  # a policy of several parts calls log_prob() of each
        log_probs = function(policy, actions)
        self.inner_calls[thread] -= 1
        if self.inner_calls[thread] > 0:
            return log_probs
        if self.is_in_first_step() and self.log_probs is None:
            self.log_probs = log_probs
        steps = self.logprobs_of_steps
        is_whole = len(steps) > 1 and log_probs.numel() == sum(step.numel() for step in steps)
        if self.is_in_first_rollout() and is_whole and self.logprobs_of_batch is None:
            self.logprobs_of_batch = log_probs
        return log_probs

    def start(self, function, run, device, **parts):
        self.runs.append(run)
        self.parts = parts
        if self.agents:
            self.first_agent = copy.deepcopy(self.agents[0])
        self.find_unsavable()
        function(run, device, **parts)
        self.states = copy.deepcopy({name: part.state_dict() for name, part in parts.items()})
        self.statistics_loaded = running_statistics(self.envs)

    def save(self, function, run):
        self.find_unsavable()
        if len(self.stats) == 1:
            self.statistics_saved = running_statistics(self.envs)
        return function(run)

    def find_unsavable(self):
        for name, part in self.parts.items():
            problem = why_unsavable(part)
            if problem:
                self.unsavable.setdefault(name, problem)

    def make_envs(self, function, *args, **kwargs):
        envs = function(*args, **kwargs)
        self.vectors += 1
        envs.step = wrap(envs.step, self.step)
        if self.vectors == 1:
            self.envs = envs
            envs.reset = wrap(envs.reset, self.reset)
        return envs

    def reset(self, function, *args, **kwargs):
        outcome = function(*args, **kwargs)
        [seed] = args or [kwargs.get("seed")]
        self.resets.append((len(self.stats), seed))
        self.obs = np.array(outcome[0])
        return outcome

    def step(self, function, *args, **kwargs):
        if self.numpy_state not in (None, global_generators()["np.random"]):
            self.draws_from_numpy = True
        outcome = function(*args, **kwargs)
        self.numpy_state = global_generators()["np.random"]
        obs, rewards, terminated, truncated, infos = outcome
        self.ends.append(np.asarray(terminated | truncated))
        if len(self.stats) == 1 and self.vectors == 1:
            if "final_obs" in infos:
                for i in np.flatnonzero(truncated & ~terminated):
                    self.cuts.append((len(self.steps), i, np.array(infos["final_obs"][i])))
            self.steps.append((self.obs, np.array(rewards)))
            self.obs = np.array(obs)
        return outcome

    def gae(self, function, *args, **kwargs):
        arguments = inspect.signature(function).bind(*args, **kwargs).arguments
        self.gae_calls.setdefault(len(self.stats), (function, copy.deepcopy(arguments)))
        advantages = function(*args, **kwargs)
        if self.advantages is None:
            self.advantages = copy.deepcopy(advantages)
            self.last_obs = self.obs
        return advantages

    def updates(self, function):
        for update in function():
            self.stats.append([])
            self.update_start = time.monotonic()
            yield update

    def log_update(self, function, run, scalars):
        self.update_times.append(time.monotonic() - self.update_start)
        return function(run, scalars)

    def loss(self, function, agent, *args, **kwargs):
        outputs = function(agent, *args, **kwargs)
        # A loss with its scalars is that of the minibatch; one tensor alone is a term that an edit adds to it.
        is_whole = isinstance(outputs, tuple)
        if is_whole and self.is_in_first_step() and isinstance(agent, torch.nn.Module):
            self.find_gradients(agent, outputs[0])
            named = inspect.signature(function).bind(agent, *args, **kwargs).arguments
            if self.slopes is None and isinstance(named.get("minibatch"), dict):
                self.find_slopes(function, named, outputs[0])
                self.find_terms(function, named, *outputs[:2])
        return outputs

    def find_gradients(self, agent, loss):
        named = {name: parameter for name, parameter in agent.named_parameters() if parameter.requires_grad}
        gradients = torch.autograd.grad(loss, named.values(), retain_graph=True, allow_unused=True)
        for name, gradient in zip(named, gradients, strict=True):
            earlier = self.gradients.get(name)  # of another loss of the same step
            if earlier is not None and gradient is not None:
                gradient = earlier + gradient
            self.gradients[name] = earlier if gradient is None else gradient

    def find_slopes(self, function, named, loss):
        """Takes the loss once more, as if half of the actions had become twice as likely, and the others half."""
        minibatch = named["minibatch"]
        log_probs = self.log_probs
        if not {"logprobs", "returns", "values"} <= minibatch.keys() or log_probs is None:
            return
        if not log_probs.shape == minibatch["logprobs"].shape == minibatch["returns"].shape:
            return
        log_ratios = torch.full_like(log_probs, math.log(2)).detach()
        log_ratios[::2] = -math.log(2)
        before = slope(loss, log_probs)
        self.log_probs = None  # so that log_prob() keeps those of this call
        changed = minibatch | {"logprobs": log_probs.detach() - log_ratios}
        changed_loss, *_ = function(**named | {"minibatch": changed})
        changed_log_probs = self.log_probs
        self.log_probs = log_probs
        if changed_log_probs is None:  # the loss has no policy
            return
        after = slope(changed_loss, changed_log_probs)
        numbers = torch.linspace(-10, 10, log_probs.numel(), device=log_probs.device).view_as(log_probs)
        names = ("values", "returns")
        moved = minibatch | {name: minibatch[name] + numbers for name in names}
        self.log_probs = None
        self.added_to_values = numbers
        moved_loss, *_ = function(**named | {"minibatch": moved})
        self.added_to_values = None
        shifted = slope(moved_loss, self.log_probs)
        self.log_probs = log_probs
        self.slopes = PolicySlopes(minibatch["returns"] - minibatch["values"], before, log_ratios, after, shifted)

    def find_terms(self, function, named, loss, stats):
        """Takes the loss once more with each coefficient larger by 1: by how much it grows, beside its term."""
        options = named.get("args")
        for option, term in (("ent_coef", "entropy"), ("vf_coef", "value_loss")):
            if dataclasses.is_dataclass(options) and hasattr(options, option) and term in stats:
                changed = dataclasses.replace(options, **{option: getattr(options, option) + 1.0})
                changed_loss, *_ = function(**named | {"args": changed})
                self.terms[term] = (changed_loss - loss).item(), float(stats[term])

    def adam_step(self, function, optimizer, gradient, *args, **kwargs):
        self.step_norms.append(gradient.norm(dim=-1).max().item())  # ppo_seeds.py has a row for each agent
        named = inspect.signature(function).bind(optimizer, gradient, *args, **kwargs).arguments
        if "learning_rate" in named:
            rates = torch.as_tensor(named["learning_rate"], dtype=torch.float64)
            self.learning_rates[len(self.stats)].setdefault(id(optimizer), [rates.max().item()])
        return function(optimizer, gradient, *args, **kwargs)

    def gradient_step(self, function, *inputs, **kwargs):
        named = inspect.signature(function).bind(*inputs, **kwargs).arguments  # an edit may add an argument
        self.remember_rows(named.get("minibatch"))
        is_first_of_update = not self.stats[-1]
        if not is_first_of_update:
            stats = function(**named)
        else:
            agent = named["agent"]
            if not self.first_steps and self.first_step is not None:
                named["minibatch"] = self.first_step.minibatch
                agent.load_state_dict(self.first_step.buffers, strict=False)  # a resume has another rollout
            kept = copy.deepcopy(named["minibatch"])
            before = copy_parameters(agent)
            buffers = {name: value.clone() for name, value in agent.state_dict().items() if name not in before}
            torch.manual_seed(0)  # for dropout, so that the step after a resume draws the same numbers
            stats = function(**named)
            after = copy_parameters(agent)
            options = dict(vars(named["args"]))
            self.first_steps.append(FirstStep(kept, options, named.get("optimizer"), before, after, buffers))
        means = {name: torch.as_tensor(scalar, dtype=torch.float64).mean().item() for name, scalar in stats.items()}
        self.stats[-1].append(means)
        return stats

    def remember_rows(self, minibatch):
        """Keeps which rows of the rollout a minibatch of the first update has, and what it says of them."""
        if (
            len(self.stats) != 1
            or not isinstance(minibatch, dict)
            or not isinstance(minibatch.get("obs"), torch.Tensor)
        ):
            return
        obs = minibatch["obs"].cpu().numpy()
        columns = {}
        for name in ("returns", "logprobs"):
            if name in minibatch and minibatch[name].shape == (len(obs),):
                columns[name] = minibatch[name].detach().double().cpu().numpy()
        self.rows.append(([hash(row.tobytes()) for row in obs], columns))


def running_statistics(envs):
    """[(class of the wrapper, mean, variance, count), ...] of the running statistics in a vector's wrappers."""
    found = []
    for layer in layers(envs):
        for value in getattr(layer, "__dict__", {}).values():
            if isinstance(value, RunningMeanStd):
                found.append((type(layer), np.array(value.mean), np.array(value.var), value.count))
    return found


def script_signals():
    """The signals that a script may handle."""
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


def wrap(function, look):
    """In place of a function: calls look(function, ...) with its arguments."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        return look(function, *args, **kwargs)

    return call


def reader(names):
    """In place of Args.__getattribute__: adds the names of the options that the user's code reads."""

    def read(options, name):
        if is_users(sys._getframe(1).f_code.co_filename):
            names.add(name)
        return object.__getattribute__(options, name)

    return read


def slope(loss, tensor):
    """The derivative of a loss by a tensor, of the tensor's shape."""
    [gradient] = torch.autograd.grad(loss, tensor, retain_graph=True, allow_unused=True)
    return torch.zeros_like(tensor) if gradient is None else gradient


def copy_parameters(agent):
    return {name: parameter.detach().clone() for name, parameter in agent.named_parameters()}


def why_unsavable(part):
    """Why a checkpoint cannot hold the state of a part, in words; "" if it can."""
    try:
        state = part.state_dict()
        path = path_of_numpy(state, "state_dict()")
        if path:
            return f"{path}, of numpy: .item() or .tolist() makes it Python's{place_of(type(part).state_dict)}"
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:
        return describe(error)
    return ""


def items_of(value):
    """The items of a dict, list or tuple, [(key, item), ...]; none of anything else."""
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list | tuple) else []


def path_of_numpy(value, path):
    """Where a state has a number or array of numpy; "" if it has none."""
    if isinstance(value, np.generic | np.ndarray):
        return f"{path} is a {type(value).__name__}"
    texts = (path_of_numpy(item, f"{path}[{key!r}]") for key, item in items_of(value))
    return next(filter(None, texts), "")


def difference(saved, loaded, path):
    """Where a loaded state differs from the saved one; "" if it does not."""
    if isinstance(saved, torch.Tensor) and isinstance(loaded, torch.Tensor) and saved.shape == loaded.shape:
        if torch.equal(saved.cpu().nan_to_num(), loaded.cpu().nan_to_num()):
            return ""
        return f"{path} is {saved.double().mean():.4g} before, {loaded.double().mean():.4g} after save and load"
    items = items_of(saved)
    if items and [key for key, _ in items] == [key for key, _ in items_of(loaded)]:
        texts = (difference(item, loaded[key], f"{path}[{key!r}]") for key, item in items)
        return next(filter(None, texts), "")
    if isinstance(saved, torch.Tensor) or isinstance(loaded, torch.Tensor) or items:
        return f"{path} has another type, shape or keys after save and load"
    return "" if saved == loaded or saved != saved else f"{path} is {saved} before, {loaded} after save and load"


# What the run shows.


def tolerance_of(args):
    is_low = getattr(args, "tf32", False) or getattr(args, "bf16", False)
    return ROUNDING_LOW_PRECISION if is_low else ROUNDING


def random_layers(agent, source):
    """Names the agent's layers that depend on more than an observation."""
    for name, module in agent.named_modules():
        kind = type(module).__name__
        if kind.startswith(("Dropout", "AlphaDropout", "FeatureAlphaDropout", "BatchNorm", "SyncBatchNorm")):
            return f": {kind} {name}{source.call(kind) or source.attribute(name)}"
    return ""


def check_agent(run, obs, args, source, page):
    """Looks at an agent before its first update. obs: observations [B, ...], or None."""
    agent = run.first_agent
    tensors = list(agent.parameters())
    page.section("agent", f", {sum(map(torch.numel, tensors)):,} parameters in {len(tensors)} tensors")
    if obs is None:
        page.skip("policy and values: make_envs() gives no observations")
    else:
        with page.check("policy and values"), torch.no_grad():
            minibatch = run.first_steps[0].minibatch if run.first_steps else None
            obs = torch.from_numpy(obs[:64]).to(tensors[0].device)
            check_outputs(agent, obs, minibatch, args, source, page)
    for name, module in agent.named_modules():
        for attribute, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                path = f"{name}.{attribute}".lstrip(".")
                hint = "neither trained nor saved, as it is no nn.Parameter and no buffer"
                page.note(f"{path} is {hint}{source.attribute(attribute)}")
    with page.check("first minibatch"):
        check_first_minibatch(run, args, source, page)


def check_outputs(agent, obs, minibatch, args, source, page):
    """Compares forward() with get_policy(), and looks at the shapes of what they return."""
    size = len(obs)
    place = place_of(type(agent).forward)
    policy, values = outputs_of(agent, obs)
    actions = policy.sample()
    log_probs = policy.log_prob(actions)
    for name, tensor in (("values", values), ("log probabilities", log_probs)):
        if tensor.shape != (size,):
            page.error(f"{name} have the shape {list(tensor.shape)}, and must have [{size}] for {size} rows{place}")
    if not hasattr(agent, "get_policy"):
        page.skip("get_policy() = forward(): forward() alone has the policy")
    else:
        # as many observations at a time as in the rollout, which batch normalization tells apart
        pairs = zip(obs.split(args.num_envs), actions.split(args.num_envs), strict=True)
        log_probs_of_rollout = torch.cat([agent.get_policy(rows).log_prob(taken) for rows, taken in pairs])
        gap = (log_probs_of_rollout - log_probs).abs().max().item()
        if gap > tolerance_of(args):
            why = random_layers(agent, source) or place
            page.error(f"get_policy() and forward() differ by {gap:.2g} in log_prob{why}")
        else:
            page.ok("get_policy() = forward()")
    if inspect.signature(policy.entropy).parameters:
        page.skip("entropy: the policy alone does not have it")
        return
    entropy = policy.entropy().mean().item()
    most = sum(math.log(logits.shape[-1]) for logits in logits_of(policy))
    if most > 0 and entropy < most / 2:
        page.warn(f"entropy {entropy:.3g} of at most {most:.3g} before training: give the last layer std=0.01")
    else:
        page.ok(f"entropy {entropy:.4g}" + (f" of at most {most:.4g}" if most > 0 else ""))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        check_entropy(agent, obs, page)
        check_ranges(agent, obs, most, minibatch, page)


def outputs_of(agent, obs):
    """The policy and the values of observations [B, ...]; a memory begins at 0."""
    if hasattr(agent, "initial_state"):
        dones = torch.zeros(len(obs), dtype=torch.bool, device=obs.device)
        policy, values, *_ = agent(obs, agent.initial_state(len(obs)), dones)
    else:
        policy, values, *_ = agent(obs)
    return policy, values


def add_noise(agent, scale):
    """A copy of an agent with other weights."""
    agent = copy.deepcopy(agent)
    for parameter in agent.parameters():
        parameter.add_(scale * torch.randn_like(parameter))
    return agent


def check_entropy(agent, obs, page):
    """The entropy must be the mean of -log_prob() of the policy's own samples, also after the first updates."""
    count = 4096 if obs[0].numel() <= 1000 else 256
    policy, _ = outputs_of(add_noise(agent, 0.3), obs[:1].repeat(count, *[1] * (obs.ndim - 1)))
    log_probs = policy.log_prob(policy.sample()).double()
    entropy = policy.entropy().double().mean().item()
    gap = abs(-log_probs.mean().item() - entropy)
    if gap > 6 * log_probs.std().item() / count**0.5 + 0.05 * max(1.0, abs(entropy)):
        text = f"{-log_probs.mean():.3g}, and its entropy() {entropy:.3g}"
        page.warn(f"with other weights, the policy's mean of -log_prob(sample()) is {text}{place_of(type(policy))}")


def check_ranges(agent, obs, most, minibatch, page):
    """With some weights, the policy must be sure of an action, and the values must be in the range of the returns.

    most: the largest entropy that the policy can have, or 0."""
    entropies = []
    values = []
    for _ in range(16):
        policy, values_of_weights = outputs_of(add_noise(agent, 1.0), obs)
        values.append(values_of_weights)
        if most > 0:
            entropies.append(policy.entropy().min().item())
    place = place_of(type(agent).forward)
    if most > 0 and min(entropies) > most / 2:
        text = f"{min(entropies):.3g} of {most:.3g}"
        hint = "is a softmax or a tanh before its logits?"
        page.warn(f"with 16 random weights, no observation has an entropy below {text}: {hint}{place}")
    returns = minibatch.get("returns") if isinstance(minibatch, dict) else None
    values = torch.cat(values)
    if returns is None:
        return
    lowest, highest = values.min().item(), values.max().item()
    has_one_sign = lowest >= 0 > returns.min() or highest <= 0 < returns.max()
    is_small = values.abs().max() <= 1 < returns.abs().max()
    if has_one_sign or is_small:
        text = f"from {lowest:.3g} to {highest:.3g}, and returns from {returns.min():.3g} to {returns.max():.3g}"
        hint = "is a relu or a tanh behind the last layer?"
        page.warn(f"with 16 random weights, the agent has values {text}: {hint}{place}")


def logits_of(policy):
    """The logits of a policy's components, [[B, A], ...]; none if its actions are not discrete."""
    logits = getattr(policy, "logits", [])
    return logits if isinstance(logits, list) else [logits]


def check_first_minibatch(run, args, source, page):
    """Before the first gradient step, the agent must compute what the rollout has stored."""
    if not run.first_steps:
        page.skip("first minibatch: there was no gradient step")
        return
    minibatch = run.first_steps[0].minibatch
    if not isinstance(minibatch, dict):
        page.skip("first minibatch: it is no dict")
        return
    if "logprobs" in minibatch and minibatch["logprobs"].min() < -1e6:
        page.error("in the first minibatch, an action has the probability 0: is its mask that of another step?")
        return
    if run.logprobs_of_batch is not None:
        acted = torch.cat(run.logprobs_of_steps, dim=-1).flatten()
        gap = (acted - run.logprobs_of_batch.flatten()).abs().max().item()
        if gap > tolerance_of(args):
            hint = "are obs and actions those of one step?"
            page.error(f"the logprobs of the rollout differ from those of the policies that acted by {gap:.2g}: {hint}")
    texts = []
    failed = False
    for name, computed in (("logprobs", run.log_probs), ("values", run.values)):
        if name not in minibatch or computed is None or computed.numel() != minibatch[name].numel():
            continue
        stored = minibatch[name].flatten()
        gap = ((computed.detach().flatten() - stored).abs() / stored.abs().clamp(min=1)).max().item()
        words = f"ratio 1 ± {gap:.0e}" if name == "logprobs" else "values as in the rollout"
        texts.append(words)
        if not gap <= tolerance_of(args):
            failed = True
            why = random_layers(run.first_agent, source)
            page.error(f"in the first minibatch, {name} differ from those of the rollout by {gap:.2g}{why}")
    # in update 1 the memory begins at 0
    has_memory = hasattr(run.first_agent, "initial_state") and "values" in minibatch
    if has_memory and len(run.first_steps) > 1 and run.values_of_update_2 is not None:
        stored = run.first_steps[1].minibatch["values"].flatten()
        computed = run.values_of_update_2.flatten()
        gap = (computed - stored).abs().max().item() if computed.shape == stored.shape else 0.0
        if gap > tolerance_of(args) * max(1.0, stored.abs().max().item()):
            failed = True
            hint = "does the minibatch begin with the state of the rollout?"
            page.error(f"in update 2, values differ from those of the rollout by {gap:.2g}: {hint}")
    if not texts:
        page.skip("first minibatch: the loss computes no log probabilities or values that could be compared")
    elif not failed:
        page.ok(f"first minibatch: {', '.join(texts)}")


def check_options_saved(args, source, page):
    """A checkpoint holds the options, and is loaded without running code from it."""
    for name, value in vars(args).items():
        if not all(type(each) in PLAIN for each in (value if isinstance(value, (tuple, list)) else [value])):
            hint = "a checkpoint holds numbers and texts, and tuples of them"
            option = f"--{name.replace('_', '-')}"
            page.error(f"option {option} is of the type {type(value).__name__}: {hint}{source.option(name)}")


def check_update(run, args, source, page):
    """Looks at the gradient steps of the first update."""
    stats = run.stats[0] if run.stats else []
    page.section("update 1", f", {len(stats)} gradient steps")
    check_options_saved(args, source, page)
    if stats:
        with page.check("parameters"):
            check_parameters(run, stats, args, source, page)
        with page.check("losses"):
            check_losses(stats, args, page)
        with page.check("options"):
            check_options_read(run, source, page)
        with page.check("policy loss"):
            check_policy_loss(run, page)
        with page.check("advantages"):
            check_advantages(run, page)
            check_gae(run, args, page)
            check_ends(run, page)
        with page.check("rollout"):
            check_resets(run, page)
            check_rollout(run, args, source, page)
            check_rows(run, page)
    if run.error is None:
        return
    name = f"the run ended after {len(run.update_times)} of 2 updates"
    if page.counts["ERROR"] > 0:
        page.skip(f"{name}, perhaps for an error above: {describe(run.error)}")
    else:
        page.failure(name, run.error)


def check_parameters(run, stats, args, source, page):
    first = run.first_steps[0]
    after = run.first_steps[1].before if len(run.first_steps) > 1 else first.after
    unmoved = [name for name, tensor in first.before.items() if torch.equal(tensor, after[name])]
    gradients = run.gradients
    unused = [name for name in unmoved if name in gradients and gradients[name] is None]
    outside = [name for name in unmoved if gradients.get(name) is not None and gradients[name].any()]
    still = [name for name in unmoved if gradients.get(name) is not None and not gradients[name].any()]
    frozen = [name for name in unmoved if gradients and name not in gradients]
    if unused:
        page.error(f"{', '.join(unused)} have no gradient: the loss does not use them{source.attribute(unused[0])}")
    if outside:
        hint = "the optimizer does not have them"
        page.error(f"{', '.join(outside)} have gradients and did not move: {hint}{source.attribute(outside[0])}")
    if still:
        page.note(f"gradients of 0: {', '.join(still)}{source.attribute(still[0])}")
    if frozen:
        page.note(f"frozen: {', '.join(frozen)}{source.attribute(frozen[0])}")
    # an optimizer that is made anew in each update has another id
    for rates in zip(run.learning_rates[1].values(), run.learning_rates[2].values(), strict=False):
        check_rates(*rates, args, page)
    later = run.first_steps[1].options if len(run.first_steps) > 1 else {}
    for name in ("ent_coef", "vf_coef", "clip_coef"):
        if name in later and np.max(later[name]) < 0 <= getattr(args, name, 0.0):
            page.error(f"{name} is {float(np.max(later[name])):.3g} in update 2: it changes its sign")
    norms = [each["grad_norm"] for each in stats if "grad_norm" in each]
    limit = getattr(args, "max_grad_norm", math.inf)  # an edit may take the option out
    clipped = sum(norm > limit for norm in norms)
    text = f"norm {np.mean(norms):.2g}, clipped in {clipped} of {len(norms)}" if norms else "no norm is logged"
    if not unused and not outside:
        which = f"{len(after) - len(unmoved)} tensors {'have gradients and ' if run.gradients else ''}moved"
        page.ok(f"{which}; {text}")
    largest = max(run.step_norms, default=0.0)
    if largest > 1.01 * limit:
        hint = f"--max-grad-norm {limit:g} does not clip it"
        page.warn(f"the optimizer gets a gradient of norm {largest:.2g}: {hint}")
    if norms and min(norms) > 100 * limit:
        returns = first.minibatch.get("returns") if isinstance(first.minibatch, dict) else None
        size = "" if returns is None else f": returns of up to {returns.abs().max():,.4g}"
        page.warn(f"gradient {text}{size}; scale the rewards or the observations")


def check_rates(first, second, args, page):
    """The learning rates of an optimizer's groups in the two updates."""
    if min(first + second) < 0:
        page.error(f"the optimizer has a learning rate below 0: {min(first + second):.3g}")
    elif getattr(args, "anneal_lr", False):
        if first == second:
            text = f"the learning rate {first[0]:.3g} in both updates"
            page.warn(f"the optimizer has {text}: --anneal-lr does not lower it")
        elif all(0.9 * one < two < 1.001 * one for one, two in zip(first, second, strict=True)):
            text = f"from {first[0]:.4g} to {second[0]:.4g} in a run of two updates"
            page.warn(f"the learning rate falls only {text}: --anneal-lr lowers it to near 0 by the end of a run")


def check_losses(stats, args, page):
    means = {name: float(np.mean([each[name] for each in stats])) for name in stats[0]}
    wrong = [f"{name} {mean}" for name, mean in means.items() if not math.isfinite(mean)]
    if wrong:
        page.error(f"not finite: {', '.join(wrong)}")
    else:
        shown = [f"{name} {means[name]:.2g}" for name in ("approx_kl", "clipfrac") if name in means]
        page.ok(", ".join([*shown, "all losses finite"]))
    if means.get("approx_kl", 0) > 0.2 and hasattr(args, "clip_coef"):  # V-trace has no clip range
        hint = "" if page.counts["ERROR"] else "; lower the rate"
        page.warn(f"approx_kl {means['approx_kl']:.2g}: the policy leaves the old one in one update{hint}")


def check_policy_loss(run, page):
    """The loss must make good actions more likely. A clip must hold back what moves on from the old policy alone."""
    if run.slopes is None:
        return
    advantages, before, log_ratios, after, shifted = run.slopes
    growth, entropy = run.terms.get("entropy", (0.0, 0.0))
    if growth != 0 and math.isclose(growth, entropy, rel_tol=0.01):
        page.error("the loss grows with the entropy, and its bonus must lower it")
    growth, value_loss = run.terms.get("value_loss", (0.0, 0.0))
    if growth < -0.5 * value_loss:
        page.error("the loss falls with the value loss, and must grow with it")
    if not before.any():
        page.warn("the loss of the first minibatch has no gradient for the policy")
        return
    correlation = torch.corrcoef(torch.stack([advantages.flatten(), -before.flatten()]))[0, 1]
    if correlation < -0.9:
        page.error(f"the loss makes actions of higher advantages less likely (correlation {correlation:.2f})")
        return
    still = ((before == 0) & (advantages != 0)).double().mean().item()
    gap = (run.log_probs.detach() - run.first_steps[0].minibatch["logprobs"]).abs().max().item()
    if still > 0.1 and gap < ROUNDING_LOW_PRECISION:
        hint = "are the bounds of the clip in each other's place?"
        page.warn(f"at ratio 1, where no clip acts, {still:.0%} of the actions have no gradient: {hint}")
        return
    moves_on = -after * log_ratios > 0
    moves_back = -after * log_ratios < 0
    if moves_on.any() and not moves_back.any():
        hint = "the loss must take the smaller of the two surrogates"
        page.error(f"at ratios of 2 and 1/2, the policy can move on from the old one, and not back: {hint}")
        return
    if not correlation > 0.5:
        hint = "do shapes [B] and [B, 1] make [B, B]?"
        page.warn(f"the loss does not follow the advantages (correlation {correlation:.2f}): {hint}")
        return
    correlation_of_shifted = torch.corrcoef(torch.stack([before.flatten(), shifted.flatten()]))[0, 1]
    if not correlation_of_shifted > 0.9:
        page.warn("the loss follows the returns, and not how far they are from the values")
        return
    clip = "; at ratios of 2 and 1/2, the clip lets the policy only move back" if not moves_on.any() else ""
    page.ok(f"actions of higher advantages become more likely (correlation {correlation:.2f}){clip}")


def check_advantages(run, page):
    """What follows the end of an episode must not change the advantages before it."""
    for function, arguments in run.gae_calls.values():
        if not {"rewards", "values", "dones"} <= arguments.keys() or len(arguments["dones"]) < 3:
            continue
        middle = len(arguments["dones"]) // 2
        advantages = []
        for change in (0.0, 1.0):
            changed = copy.deepcopy(arguments)
            changed["rewards"] = changed["rewards"] * 1.0  # not of integers, which an edit may have made of them
            changed["dones"][middle] = True
            changed["rewards"][middle + 1 :] += change
            changed["values"][middle + 1 :] += change
            advantages.append(np.asarray(function(**changed))[:middle])
        if not np.array_equal(*advantages):
            hint = "rewards and values after an episode's end change the advantages before it"
            page.error(f"{function.__name__}(): {hint}{place_of(function)}")
        return  # one call is enough


def check_gae(run, args, page):
    """The advantages must be those of generalized advantage estimation with the options."""
    for function, arguments in run.gae_calls.values():
        if not {"rewards", "values", "dones", "next_value"} <= arguments.keys() or not hasattr(args, "gae_lambda"):
            continue
        rewards, values, dones, next_value = (
            np.asarray(arguments[name], dtype=np.float64) for name in ("rewards", "values", "dones", "next_value")
        )
        next_values = np.concatenate([values[1:], [next_value]])
        expected = np.zeros_like(values)
        advantage = np.zeros_like(next_value)
        for t in reversed(range(len(rewards))):
            nonterminal = 1.0 - dones[t]
            delta = rewards[t] + args.gamma * next_values[t] * nonterminal - values[t]
            advantage = delta + args.gamma * args.gae_lambda * nonterminal * advantage
            expected[t] = advantage
        gap = np.abs(np.asarray(function(**arguments)) - expected).max()
        if gap > 1e-3 * np.abs(expected).max():
            options = f"--gamma {args.gamma:g} and --gae-lambda {args.gae_lambda:g}"
            page.warn(f"{function.__name__}(): advantages are up to {gap:.2g} from those of GAE with {options}")
        else:
            page.ok(f"the advantages of {function.__name__}() are those of GAE")
        return  # one call is enough


def check_ends(run, page):
    """The dones that gae() gets must be those that the environments returned."""
    count = 0
    for update, (function, arguments) in run.gae_calls.items():
        dones = np.asarray(arguments.get("dones"), dtype=bool)
        steps = len(dones) if dones.ndim else 0
        ends = np.array(run.ends[(update - 1) * steps : update * steps])
        if run.vectors != 1 or ends.shape != dones.shape:
            return
        for step, env in np.argwhere(ends != dones)[:1]:
            said = "True, and no episode ended" if dones[step, env] else "False, and an episode ended there"
            place = f"step {step} of environment {env} in update {update}"
            page.warn(f"the dones of {function.__name__}(): {place} is {said}{place_of(function)}")
            return
        count += ends.sum()
    if run.gae_calls and count == 0:
        page.skip(f"the dones of gae(): no episode ended in {len(run.gae_calls)} updates")
    elif run.gae_calls:
        page.ok(f"the dones of gae() are the ends of episodes: {count} in {len(run.gae_calls)} updates")


def check_resets(run, page):
    """train() must reset the environments once, with a seed, and draw from generators that have one."""
    place = place_of(run.script.train)
    if run.vectors == 1 and run.resets:
        _, seed = run.resets[0]
        if seed is None:
            page.warn(f"train() resets the environments without a seed, so no run repeats{place}")
        elif np.ndim(seed) == 1 and len(set(map(int, seed))) < len(seed):
            page.warn(f"environments have the same seed: {list(seed)}{place}")
        for update, _ in run.resets:
            if update > 0:
                page.warn(f"train() resets the environments in update {update}, and cuts their episodes off{place}")
                break
    if run.samples == 0 and any(hasattr(value, "sample") for value in vars(run.script).values()):
        page.warn(f"no action of training is drawn by sample(), so nothing is explored{place}")
    if run.draws_from_numpy and not run.seeds_numpy:
        page.warn(f"training draws from np.random, which the script does not seed{place}: use torch's generator")


def check_rollout(run, args, source, page):
    """What gae() gets must be the rewards and values of the steps, in their order."""
    if 1 not in run.gae_calls or run.vectors != 1:
        return
    function, arguments = run.gae_calls[1]
    if not {"rewards", "values", "next_value"} <= arguments.keys() or not isinstance(arguments["rewards"], np.ndarray):
        return
    rewards = np.array([rewards for _, rewards in run.steps])
    ends = np.array(run.ends[: len(rewards)])
    given = arguments["rewards"]
    if given.shape != rewards.shape:
        return
    place = place_of(function)
    is_other = ~np.isclose(given, rewards)
    if is_other[~ends].any():
        for name, one, other in (("after", given[:-1], rewards[1:]), ("before", given[1:], rewards[:-1])):
            if np.allclose(one, other):
                page.warn(f"the rewards of {function.__name__}() are those of the step {name}{place}")
    elif ends.any() and is_other[ends].all() and not given[ends].any():
        page.warn(f"the rewards of {function.__name__}() are 0 where episodes end{place}")
    if is_other.any() and given.dtype.kind in "iu":
        page.warn(f"the rewards of {function.__name__}() are integers, and those of the steps are not{place}")
    agent = run.first_agent
    if hasattr(agent, "initial_state") or random_layers(agent, source):
        return
    if run.cuts and getattr(args, "bootstrap_truncated", False):
        rows, columns, final_obs = zip(*run.cuts, strict=True)
        obs = torch.from_numpy(np.array(final_obs)).to(next(agent.parameters()).device)
        with torch.no_grad():
            _, final_values, *_ = agent(obs)
        expected = rewards[rows, columns] + args.gamma * final_values.double().cpu().numpy()
        gap = np.abs(given[rows, columns] - expected).max()
        if gap > 10 * tolerance_of(args) * max(1.0, np.abs(expected).max()):
            hint = "reward + gamma * value of the last observation"
            page.warn(
                f"--bootstrap-truncated: rewards where episodes are cut off differ by {gap:.2g} from {hint}{place}"
            )
    chosen = np.unique(np.linspace(0, len(rewards) - 1, 8).astype(int))  # enough, where images are large
    values = []
    for obs in [*(run.steps[t][0] for t in chosen), run.last_obs]:
        with torch.no_grad():
            _, value, *_ = agent(torch.from_numpy(obs).to(next(agent.parameters()).device))
        values.append(value.double().cpu().numpy())
    *values, next_value = values
    for name, computed, stored in (
        ("values", np.array(values), arguments["values"][chosen]),
        ("next_value", next_value, arguments["next_value"]),
    ):
        if computed.shape != np.shape(stored):
            return
        gap = np.abs(computed - stored).max()
        if gap > 10 * tolerance_of(args) * max(1.0, np.abs(stored).max()):
            of = "the observations before their steps" if name == "values" else "those after the last step"
            page.warn(f"{name} of {function.__name__}() differ by {gap:.2g} from the agent's values of {of}{place}")


def check_rows(run, page):
    """An epoch must use each step once, with the return and the log probability of that step."""
    if 1 not in run.gae_calls or run.vectors != 1 or hasattr(run.first_agent, "initial_state") or not run.rows:
        return
    values = run.gae_calls[1][1].get("values")
    advantages = run.advantages
    if not isinstance(values, np.ndarray) or not isinstance(advantages, np.ndarray):
        return
    hashes = [[hash(row.tobytes()) for row in obs] for obs, _ in run.steps]
    if values.shape != np.shape(hashes) or values.shape != advantages.shape:
        return
    counts = collections.Counter(sum(hashes, []))
    returns = advantages + values
    return_of = {}  # of each step whose observation no other step has
    for t, row in enumerate(hashes):
        for i, key in enumerate(row):
            if counts[key] == 1:
                return_of[key] = returns[t, i]
    uses = collections.Counter(key for keys, _ in run.rows for key in keys if key in return_of)
    if not uses:
        why = "they have other observations than the steps" if return_of else "no observation is that of one step alone"
        page.skip(f"rows of the minibatches: {why}")
        return
    problems = page.counts["warn"]
    least, most = (function(uses[key] for key in return_of) for function in (min, max))
    if least != most:
        page.warn(f"update 1 uses some steps {least} times and others {most} times: each epoch should use all once")
    orders = [tuple(keys) for keys, _ in run.rows]
    if len(set(orders)) < len(orders) and len(orders[0]) > 8:
        page.warn("two minibatches of update 1 have the same steps in the same order: each epoch needs a permutation")
    wrong = set()
    change = 0.0
    logprobs = {}
    bound = 1e-3 * max(1.0, np.abs(returns).max())
    for keys, columns in run.rows:
        for row, key in enumerate(keys):
            if key in return_of and "returns" in columns and abs(columns["returns"][row] - return_of[key]) > bound:
                wrong.add(key)
            if key in return_of and "logprobs" in columns:
                first = logprobs.setdefault(key, columns["logprobs"][row])
                change = max(change, abs(columns["logprobs"][row] - first))
    if wrong:
        text = f"{len(wrong)} of {len(return_of)} steps"
        page.warn(f"the returns of {text} are not the advantages of gae() plus the values of the same steps")
    if change > ROUNDING:
        page.warn(f"logprobs of a step change by {change:.2g} in update 1: the ratio is to those of the rollout")
    if page.counts["warn"] == problems:
        page.ok(f"minibatches have the returns of their steps, each step {most} times")


def check_options_read(run, source, page):
    """Finds options that neither the run nor any line of the script reads."""
    names = [field.name for field in dataclasses.fields(run.script.Args)]
    unread = [name for name in names if name not in run.options_read and name not in source.names()]
    for name in unread:
        page.error(f"option --{name.replace('_', '-')} is never read{source.option(name)}")
    if not unread:
        page.ok(f"all {len(names)} options are read")


def check_checkpoint(script, args, run, source, page):
    """Resumes from the checkpoint of update 1, and compares update 2 with that of the run that was not interrupted."""
    page.section("checkpoint")
    for name, problem in run.unsavable.items():
        page.error(f"part {name}: {problem}")
    for thing in run.outside_parts():
        name = type(thing).__name__
        hint = "a resume begins it anew, unless train() loads it from a file"
        page.warn(f"training uses an object {name} that is in no part of run.start(): {hint}{source.call(name)}")
    if run.error is not None or not run.first_steps:
        page.skip("resume: the run did not end")
        return
    [file, _] = sorted(run.runs[0].folder.glob("checkpoint_*.pt"))
    folder = Path(args.runs_folder, "resumed")
    shutil.copytree(run.runs[0].folder, folder, ignore=shutil.ignore_patterns("lock", "*.pt"))
    shutil.copy(file, folder)
    words = ["--env-id", args.env_id]
    resumed = Watched(script, dataclasses.replace(args, resume=str(folder)), words, run.first_steps[1])
    errors = page.counts["ERROR"]
    saved = torch.load(file, map_location="cpu", weights_only=True)["parts"]
    for name, state in resumed.states.items():
        text = difference(saved[name], state, "state_dict()")
        if text:
            page.error(f"part {name}: {text}{place_of(type(resumed.parts[name]).load_state_dict)}")
    other = []
    for (kind, *numbers), (_, *loaded) in zip(run.statistics_saved, resumed.statistics_loaded, strict=False):
        if not all(map(np.allclose, numbers, loaded)):
            other.append(kind)
    if other and resumed.error is None:
        hint = "is it a part of run.start(), and does its state_dict() have all of them?"
        page.error(f"statistics of {other[0].__name__} are others after a resume: {hint}{place_of(other[0])}")
    if resumed.error is not None:
        page.error(f"the resume ended: {describe(resumed.error)}")
    elif page.counts["ERROR"] > errors:
        page.skip("update 2 after a resume: the part above")
    else:
        compare_first_steps(run.first_steps[1], resumed, page)


def compare_first_steps(first, resumed, page):
    """Compares the first gradient step of update 2, on the same minibatch, with that after a resume."""
    second = resumed.first_steps[0]
    not_resumed = {"resume", *getattr(resumed.script, "NOT_RESUMED", ())}
    for name, value in first.options.items():
        other = second.options.get(name)
        if name not in not_resumed and not np.array_equal(value, other):
            page.error(f"option {name} is {value} in update 2, and {other} after a resume: keep it in a part")
            return
    moved = max((first.after[name] - before).abs().max().item() for name, before in first.before.items())
    gap = max((first.after[name] - after).abs().max().item() for name, after in second.after.items())
    if gap <= 0.01 * moved:
        page.ok(f"{', '.join(resumed.parts)} saved and loaded; update 2 begins with the same gradient step")
    elif second.optimizer not in resumed.parts.values() and "optimizer" not in resumed.parts:
        page.error("the optimizer is not a part: name it in run.start(), or a resume starts it anew")
    else:
        hint = ", or gradients of earlier steps are left over"
        page.error(f"update 2 begins with another step after a resume, by {gap / moved:.0%}: a part is missing{hint}")


def check_resume_option(script, args, options, source, page):
    """With --resume: which options have another value in the checkpoint than the script's default, and so keep it."""
    path = Path(args.resume)
    page.section("resume", f" of {path}")
    file = sorted(path.glob("checkpoint_*.pt"))[-1] if path.is_dir() else path
    state = torch.load(file, map_location="cpu", weights_only=True)
    # tyro also takes --learning_rate
    named = {option.partition("=")[0].replace("_", "-").replace("--no-", "--") for option in options}
    for field in dataclasses.fields(script.Args):
        option = f"--{field.name.replace('_', '-')}"
        value = state["args"].get(field.name, field.default)
        if value != field.default and option not in named and field.name not in {"env_id", *script.NOT_RESUMED}:
            place = source.option(field.name)
            page.note(f"{option} is {field.default} in the script{place}, and the checkpoint's {value} holds")


# Environments with known answers.


class Probe(typing.NamedTuple):
    """An environment of one or two steps; x is -1 or 1, at random, and `first` whether its first action was above 0."""

    name: str
    length: int
    observe: typing.Callable  # (step, x) to the observation
    pay: typing.Callable  # (x, first) to the reward of the last step
    values: dict = {}  # the right values, {observation: value}; "gamma" is the option
    actions: dict = {}  # the right actions, {observation: whether the action should be above 0}
    ent_coef: float = 0.0  # with a large one, the policy must stay as random as it was

    @property
    def env_id(self):
        return f"{self.name.replace(' ', '-')}-v0"


PROBES = [
    Probe("constant value", 1, lambda step, x: 0, lambda x, first: 1, values={0: 1}),
    Probe("value by observation", 1, lambda step, x: x, lambda x, first: x, values={-1: -1, 1: 1}),
    Probe("discounting", 2, lambda step, x: step, lambda x, first: 1, values={0: "gamma", 1: 1}),
    # The reward comes a step later, where the observation does not tell the action: it needs lambda.
    Probe("one action", 2, lambda step, x: step, lambda x, first: first, actions={0: True}),
    Probe(
        "action by observation", 1, lambda step, x: x, lambda x, first: first == (x > 0), actions={-1: False, 1: True}
    ),
    Probe("entropy bonus", 1, lambda step, x: 0, lambda x, first: first, ent_coef=3.0),
]


class ProbeEnv(gym.Env):
    """The environment of a Probe. Of any actions, the first component counts."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, probe, action_space):
        self.probe = probe
        self.action_space = action_space

    def action_mask(self):
        return np.ones(gym.spaces.flatdim(self.action_space))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.x = int(self.np_random.choice([-1, 1]))
        return self.observe(), {}

    def observe(self):
        return np.array([self.probe.observe(self.steps, self.x)], dtype=np.float32)

    def step(self, action):
        if self.steps == 0:
            self.first = bool(np.ravel(action)[0] > 0)
        self.steps += 1
        is_over = self.steps == self.probe.length
        reward = float(self.probe.pay(self.x, self.first)) if is_over else 0.0
        self.steps = min(self.steps, 1)
        return self.observe(), reward, is_over, False, {}


def check_learning(script, args, folder, page):
    """Trains on each Probe with the script's own train()."""
    page.section("learn", f", {len(PROBES)} environments with known answers")
    reason = ""
    if not makes_single_environments(script, args):
        reason = "its environments are compiled games"
    elif hasattr(script, "Seats"):
        reason = "its environments have two players"
    elif hasattr(getattr(script, "Agent", None), "initial_state"):
        reason = "its agent has a memory"
    else:
        with quiet():
            env = script.make_env(args, 0, None)
        reason = "its observations are images" if len(env.observation_space.shape) != 1 else ""
    if not reason:
        with quiet():
            register_probes(env.action_space)
        reason = why_unfit(script, replaced(args, env_id=PROBES[0].env_id))
    if reason:
        page.skip(reason)
        return
    for probe in PROBES:
        with page.check(probe.name):
            learn(probe, script, args, folder, page)


def register_probes(space):
    """Makes the ids of the probes. Their actions are of the same kind as `space`."""
    if isinstance(space, gym.spaces.Box):
        action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    elif isinstance(space, gym.spaces.MultiDiscrete):
        action_space = gym.spaces.MultiDiscrete([2])
    else:
        action_space = gym.spaces.Discrete(2)
    for probe in PROBES:
        parts = {"probe": probe, "action_space": action_space}
        gym.register(probe.env_id, ProbeEnv, kwargs=parts, max_episode_steps=10)  # more than any episode has


def learn(probe, script, args, folder, page):
    """Trains on a Probe, and compares what the agent has learned with the answer."""
    gamma = 0.5  # another value would hardly show in the answer
    changes = dict(num_envs=8, num_steps=16, num_minibatches=2, update_epochs=4, total_timesteps=128 * 60)
    changes |= dict(learning_rate=2e-3, anneal_lr=False, gamma=gamma, save_every=0, async_envs=False)
    changes |= dict(ent_coef=probe.ent_coef, reward_shift=0.0, reward_scale=1.0, reward_clip=None)
    args = replaced(args, env_id=probe.env_id, runs_folder=str(folder), capture_video=False, **changes)
    with mock.patch.object(script, "make_envs", wrap(script.make_envs, freeze_statistics)):
        run = Watched(script, args)
    if run.error is not None:
        raise run.error
    agent = run.result[0] if isinstance(run.result, list) else run.result
    device = next(agent.parameters()).device
    texts = []
    failed = False
    for observation in [*probe.values, *probe.actions]:
        obs = torch.full((1000, 1), float(observation), device=device)
        with torch.no_grad():
            policy, values, *_ = agent(obs)
            actions = policy.sample().reshape(1000, -1)[:, 0] > 0
        if observation in probe.values:
            right = gamma if probe.values[observation] == "gamma" else probe.values[observation]
            texts.append(f"value of {observation} is {values[0].item():.2f}, right is {right} for unscaled rewards")
            failed |= abs(values[0].item() - right) > 0.2
        else:
            share = (actions == probe.actions[observation]).float().mean().item()
            texts.append(f"right actions at {observation}: {share:.0%}")
            failed |= share < 0.75
    if probe.ent_coef > 0:
        obs = torch.zeros((1, 1), device=device)
        with torch.no_grad():
            before, after = [each(obs)[0].entropy().mean().item() for each in (run.first_agent, agent)]
        bonus = f"with a coefficient of {probe.ent_coef:g}"
        texts.append(f"entropy {before:.2f} before training, {after:.2f} after it {bonus}")
        failed |= after < before - 0.1
    text = f"{probe.name}: {'; '.join(texts)}"
    if failed:
        page.error(text)
    else:
        page.ok(text)


def why_unfit(script, args):
    """Why the script's agent would not see a Probe's observations; "" if it does."""
    try:
        with quiet():
            env = script.make_env(args, 0, None)
    except (Exception, SystemExit) as error:
        return f"its make_env() does not take this environment: {describe(error)}"
    if env.observation_space.shape != (1,):
        return f"its make_env() makes {env.observation_space.shape} of an observation of one number"
    return ""


def freeze_statistics(function, *args, **kwargs):
    """make_envs() without normalization, with which the answers would be others."""
    envs = function(*args, **kwargs)
    for layer in layers(envs):
        if hasattr(layer, "frozen"):
            layer.frozen = True
    return envs


# The program.


def check(path, options, with_learning=False):
    """Prints the page of a script with options of its own, and returns the exit status."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(path.resolve().parent))  # as `python my_ppo.py` does
    try:
        script = import_script(path, path.stem)  # processes of --async-envs import it by this name
        options_of_user = tyro.cli(script.Args, args=options, prog=path.name)
        source = Source(path)
    except (Exception, SystemExit) as error:
        if not isinstance(error, SystemExit) or isinstance(error.code, str):
            print(f"error: {path}: {describe(error)}")
        return 2
    page = Page()
    make = "make_env" if makes_single_environments(script, options_of_user) else "make_envs"
    print(
        f"{path.name} on {options_of_user.env_id} (as {path.stem}.{make} makes it), seed {options_of_user.seed}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # of ppo_seeds.py's several values of an option, the first, so that the resume has one agent, too
        per_agent = {name: getattr(options_of_user, name) for name in getattr(script, "OPTIONS_OF_AGENTS", ())}
        first_values = {name: value[0] for name, value in per_agent.items() if isinstance(value, tuple)}
        args = dataclasses.replace(options_of_user, **first_values)
        args = replaced(args, runs_folder=folder, track=False, compile=False, resume=None)
        args = replaced(args, total_timesteps=2 * args.num_envs * args.num_steps, save_every=1)
        if not check_environment(script, args, page):
            print(page.summary())
            return 1
        obs = None
        with page.check("make_envs()"):
            obs = check_vector(script, args, page)
        run = Watched(script, args)
        if run.first_agent is not None:
            check_agent(run, obs, args, source, page)
        check_update(run, args, source, page)
        with page.check("checkpoint"):
            check_checkpoint(script, args, run, source, page)
        if isinstance(options_of_user.resume, str):
            with page.check("--resume"):
                check_resume_option(script, options_of_user, options, source, page)
        if with_learning:
            check_learning(script, args, folder, page)
    text = page.summary()
    if run.update_times:
        seconds = run.update_times[-1] * options_of_user.total_timesteps / (args.num_envs * args.num_steps)
        text += f"; {options_of_user.total_timesteps:,} steps will take about {duration(seconds)}"
    print(text)
    return 1 if page.counts["ERROR"] > 0 else 0


def duration(seconds):
    for unit, name in ((3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def main():
    args, options = tyro.cli(Args, description=__doc__, return_unknown_args=True)
    sys.exit(check(args.script, options, args.learn))


if __name__ == "__main__":
    main()
