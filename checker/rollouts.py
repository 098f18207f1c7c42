"""The rollouts and the advantages."""

import copy
import inspect

import numpy as np
import torch

from checker.environment import are_equal, global_generators
from checker.page import place_of
from checker.policies import random_layers, tolerance_of
from checker.tools import wrap


class Rollouts:
    """Sees what the vector of environments and gae() get and return."""

    def __init__(self, run):
        self.run = run
        self.vectors = 0  # of environments that the run has made
        self.envs = None  # the first vector
        self.resets = []  # (update, seed) of each of its resets
        self.obs = None  # those that it returned last
        self.steps = []  # of the first update: the observations before each step, its rewards and its actions
        self.ends = []  # whether an episode ended, bool [N], of each step
        self.cuts = []  # (step, environment, last observation) of each episode of the first update that was cut off
        self.inner_outcome = None  # of the last step, before the wrappers of the vector: (observations, infos)
        self.wraps_obs = False  # whether these wrappers change observations
        self.wraps_final_obs = False  # and the last ones of the episodes in `cuts`
        self.numpy_state = None  # of np.random after the last step
        self.draws_from_numpy = False  # whether anything but the environments does, in the updates
        self.seeds_numpy = False
        self.gae_calls = {}  # {update: (gae, {name: argument}) of its first call}
        self.advantages = None  # what the first call returned
        self.last_obs = None  # those at the time of the first call

    def functions(self):
        script = self.run.script
        return {
            (script, "make_envs"): self.make_envs,
            (script, "gae"): self.gae,
            (np.random, "seed"): self.seed_numpy,
        }

    def make_envs(self, function, *args, **kwargs):
        envs = function(*args, **kwargs)
        self.vectors += 1
        envs.step = wrap(envs.step, self.step)
        if self.vectors == 1:
            self.envs = envs
            envs.reset = wrap(envs.reset, self.reset)
            if envs.unwrapped is not envs:
                envs.unwrapped.step = wrap(envs.unwrapped.step, self.inner_step)
        return envs

    def inner_step(self, function, *args, **kwargs):
        outcome = function(*args, **kwargs)
        obs, _, _, _, infos = outcome
        self.inner_outcome = copy.deepcopy((obs, infos))
        return outcome

    def reset(self, function, *args, **kwargs):
        outcome = function(*args, **kwargs)
        [seed] = args or [kwargs.get("seed")]
        self.resets.append((len(self.run.stats), seed))
        self.obs = np.array(outcome[0])
        return outcome

    def step(self, function, *args, **kwargs):
        if self.numpy_state not in (None, global_generators()["np.random"]):
            self.draws_from_numpy = True
        [actions] = [*args, *kwargs.values()]
        actions = np.array(actions)  # a copy, as an environment may change them in place
        outcome = function(*args, **kwargs)
        self.numpy_state = global_generators()["np.random"]
        obs, rewards, terminated, truncated, infos = outcome
        self.ends.append(np.asarray(terminated | truncated))
        if len(self.run.stats) == 1 and self.vectors == 1:
            inner_obs, inner_infos = self.inner_outcome or (obs, infos)
            self.wraps_obs |= not are_equal(obs, inner_obs)
            if "final_obs" in infos:
                for i in np.flatnonzero(truncated & ~terminated):
                    self.cuts.append((len(self.steps), i, np.array(infos["final_obs"][i])))
                    self.wraps_final_obs |= not are_equal(infos["final_obs"][i], inner_infos["final_obs"][i])
            self.steps.append((self.obs, np.array(rewards), actions))
            self.obs = np.array(obs)
        return outcome

    def gae(self, function, *args, **kwargs):
        arguments = inspect.signature(function).bind(*args, **kwargs).arguments
        self.gae_calls.setdefault(len(self.run.stats), (function, copy.deepcopy(arguments)))
        advantages = function(*args, **kwargs)
        if self.advantages is None:
            self.advantages = copy.deepcopy(advantages)
            self.last_obs = self.obs
        return advantages

    def seed_numpy(self, function, *args, **kwargs):
        self.seeds_numpy = True
        return function(*args, **kwargs)


def check_advantages(run, page):
    """What follows the end of an episode must not change the advantages before it."""
    for function, arguments in run.rollouts.gae_calls.values():
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
    for function, arguments in run.rollouts.gae_calls.values():
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
    seen = run.rollouts
    count = 0
    for update, (function, arguments) in seen.gae_calls.items():
        dones = np.asarray(arguments.get("dones"), dtype=bool)
        steps = len(dones) if dones.ndim else 0
        if seen.vectors == 1 and dones.ndim == 1 and len(dones) > len(seen.steps) > 0:
            shapes = f"[{len(dones)}], and needs [{len(seen.steps)}, {len(dones) // len(seen.steps)}]"
            hint = "else it goes on from one environment into another"
            page.warn(f"{function.__name__}() gets dones of the shape {shapes}: {hint}{place_of(function)}")
            return
        ends = np.array(seen.ends[(update - 1) * steps : update * steps])
        if seen.vectors != 1 or ends.shape != dones.shape:
            return
        for step, env in np.argwhere(ends != dones)[:1]:
            said = "True, and no episode ended" if dones[step, env] else "False, and an episode ended there"
            place = f"step {step} of environment {env} in update {update}"
            page.warn(f"the dones of {function.__name__}(): {place} is {said}{place_of(function)}")
            return
        count += ends.sum()
    if seen.gae_calls and count == 0:
        page.skip(f"the dones of gae(): no episode ended in {len(seen.gae_calls)} updates")
    elif seen.gae_calls:
        page.ok(f"the dones of gae() are the ends of episodes: {count} in {len(seen.gae_calls)} updates")


def check_resets(run, page):
    """train() must reset the environments once, with a seed, and draw from generators that have one."""
    seen = run.rollouts
    place = place_of(run.script.train)
    if seen.vectors == 1 and seen.resets:
        _, seed = seen.resets[0]
        if seed is None:
            page.warn(f"train() resets the environments without a seed, so no run repeats{place}")
        elif np.ndim(seed) == 1 and len(set(map(int, seed))) < len(seed):
            page.warn(f"environments have the same seed: {list(seed)}{place}")
        for update, _ in seen.resets:
            if update > 0:
                page.warn(f"train() resets the environments in update {update}, and cuts their episodes off{place}")
                break
    if run.policies.samples == 0 and any(hasattr(value, "sample") for value in vars(run.script).values()):
        page.warn(f"no action of training is drawn by sample(), so nothing is explored{place}")
    if seen.draws_from_numpy and not seen.seeds_numpy:
        page.warn(f"training draws from np.random, which the script does not seed{place}: use torch's generator")


def check_rollout(run, args, source, page):
    """What gae() gets must be the rewards and values of the steps, in their order."""
    seen = run.rollouts
    if 1 not in seen.gae_calls or seen.vectors != 1:
        return
    function, arguments = seen.gae_calls[1]
    if not {"rewards", "values", "next_value"} <= arguments.keys() or not isinstance(arguments["rewards"], np.ndarray):
        return
    rewards = np.array([rewards for _, rewards, _ in seen.steps])
    ends = np.array(seen.ends[: len(rewards)])
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
    if seen.cuts and getattr(args, "bootstrap_truncated", False):
        if seen.wraps_obs and not seen.wraps_final_obs:
            hint = "the wrappers of the vector must change final_obs as they change observations"
            page.warn(f"--bootstrap-truncated: {hint}{place_of(run.script.make_envs)}")
        rows, columns, final_obs = zip(*seen.cuts, strict=True)
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
    for obs in [*(seen.steps[t][0] for t in chosen), seen.last_obs]:
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
