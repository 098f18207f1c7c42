"""Trains on small environments whose answers are known."""

import typing
from unittest import mock

import gymnasium as gym
import numpy as np
import torch

from checker.environment import makes_single_environments
from checker.page import describe
from checker.spaces import layers
from checker.tools import quiet, replaced, wrap
from checker.watched import Watched


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
