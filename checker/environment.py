"""Takes random steps in the environments that the script makes."""

import contextlib
import copy
import random
import re
import time
import warnings

import gymnasium as gym
import numpy as np
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers.utils import RunningMeanStd

from checker.page import describe, place_of
from checker.spaces import check_spaces, has_convolutions, layers, misfit
from checker.tools import quiet

RANDOM_STEPS = 1000


REPEATED_STEPS = 100  # a second environment with the same seed must repeat so many of them


LARGE = 50  # observations beyond it slow learning down


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
        self.unlogged_cuts = 0  # those that were truncated, and that no info reports
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
                elif truncated:
                    self.unlogged_cuts += 1
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
    if steps.returns and steps.unlogged_cuts:
        text = f"{steps.unlogged_cuts} of the episodes that were cut off would not be logged"
        page.warn(f"{text}: is a TimeLimit around the wrapper Episodes, and not in it?")
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
