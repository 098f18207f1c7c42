"""What an adapter is asked, and what it answers.

The policy and the value function are tables in place of networks: an observation is the number of a row, and the row
holds the policy's outputs and the value. The gradient of a row then belongs to one sample alone, and every gradient
step of an update can be compared with a reference.

Shapes: M steps, N environments, R rows of the tables, A outputs of the policy, K components of a multidiscrete action,
B samples of a minibatch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np


class Refused(Exception):
    """An adapter raises it where its implementation refuses what it is asked; the message is the implementation's."""


@dataclass(frozen=True)
class Settings:
    """The hyperparameters of an update; what is not named here is left at the implementation's default."""

    learning_rate: float = 0.02
    gamma: float = 0.9
    gae_lambda: float = 0.8
    clip_coef: float = 0.2
    ent_coef: float = 0.5
    vf_coef: float = 0.5
    max_grad_norm: float = 1e6
    num_minibatches: int = 2
    update_epochs: int = 2


@dataclass(frozen=True)
class World:
    """M steps of N environments that play the same script whatever the actions are, and tables in place of networks.

    The rows of the tables are observations:
    - t * N + n: before step t in environment n.
    - M * N + n: after the last step.
    - (M + 1) * N + t * N + n: the last one of an episode that ends in step t. The environment hands it out beside the
      first observation of the next episode, which is row (t + 1) * N + n.
    """

    kind: str  # "discrete", "multidiscrete" or "continuous"
    rewards: np.ndarray  # float32 [M, N]
    terminated: np.ndarray  # bool [M, N]: step t reaches a terminal state
    truncated: np.ndarray  # bool [M, N]: step t reaches a time limit
    # While the rollout is collected
    old_policy: np.ndarray  # float32 [R, A]: logits or means
    old_value: np.ndarray  # float32 [R]
    # From these the update starts.
    policy: np.ndarray  # float32 [R, A]: logits or means
    value: np.ndarray  # float32 [R]
    # For both
    logstd: np.ndarray  # float32 [A]: log standard deviations of continuous actions
    # For implementations that can be told which actions to take: int64 [M, N], int64 [M, N, K] or float32 [M, N, A]
    actions: np.ndarray
    nvec: tuple = ()  # the sizes of the components of multidiscrete actions
    masks: np.ndarray | None = None  # bool [R, A]: which actions are valid for a row; None if all are

    @property
    def num_steps(self):
        return self.rewards.shape[0]

    @property
    def num_envs(self):
        return self.rewards.shape[1]

    @property
    def num_rows(self):
        return len(self.value)

    @property
    def num_outputs(self):
        """A, the number of outputs of the policy."""
        return self.policy.shape[1]

    @property
    def ended(self):
        return self.terminated | self.truncated

    def rows(self, t):
        """The rows of the observations before step t, int64 [N]; t may be M."""
        return t * self.num_envs + np.arange(self.num_envs)

    def final_rows(self, t):
        """The rows of the observations with which episodes end in step t, int64 [N]."""
        return (self.num_steps + 1) * self.num_envs + self.rows(t)


@dataclass(frozen=True)
class Stream:
    """What T steps of N environments gave, for the normalization of observations and rewards."""

    obs: np.ndarray  # float32 [T + 1, N, D]; behind an end, the first observation of the next episode
    finals: np.ndarray  # float32 [T, N, D]: the last observation of an episode that ends in step t
    rewards: np.ndarray  # float32 [T, N]
    ends: np.ndarray  # bool [T, N]: step t reaches a terminal state
    gamma: float  # the discount


class Player:
    """Plays a world for an adapter's environment, over and over, and records the actions."""

    def __init__(self, world):
        self.world = world
        self.t = 0  # of the next step
        self.rollouts = []  # for each time, the actions of its steps, [N, ...]

    @property
    def actions(self):
        """The actions of the first time."""
        return self.rollouts[0]

    def reset(self):
        """The rows of the first observations, int64 [N]."""
        return self.world.rows(0)

    def step(self, actions):
        """(rows of the next observations, rewards, terminated, truncated, rows of final observations), each [N]."""
        world = self.world
        t = self.t
        if t == 0:
            self.rollouts.append([])
        self.rollouts[-1].append(np.array(actions))
        self.t = (t + 1) % world.num_steps
        return world.rows(t + 1), world.rewards[t], world.terminated[t], world.truncated[t], world.final_rows(t)


class Game:
    """An Atari emulator that plays a script whatever the actions are, for an adapter's environment.

    A game has 3 lives. It loses one in each of the frames LOSSES, and is over with the last of them. An adapter calls
    restart(), step() and screen(); `log` keeps what was asked.
    """

    LOSSES = 60, 90, 120  # numbers of frames of a game, from 1
    MEANINGS = "NOOP", "FIRE", "RIGHT", "LEFT"  # the names of the actions 0 to 3

    def __init__(self):
        self.log = []  # of Frame
        self.lives = 0
        self.played = 0  # frames of this game

    def restart(self):
        """Begins a game anew."""
        self.lives = len(self.LOSSES)
        self.played = 0
        self.log.append(Frame(None, 0.0, self.lives))

    def step(self, action):
        """Plays one frame with an action, an int; returns (its reward, whether the game is over)."""
        self.played += 1
        if self.played in self.LOSSES:
            self.lives -= 1
        reward = float(np.random.default_rng([7, len(self.log)]).choice([-2.0, -0.25, 0.0, 0.5, 3.0]))
        self.log.append(Frame(int(action), reward, self.lives))
        return reward, self.lives == 0

    def screen(self):
        """The newest frame, RGB: uint8 [210, 160, 3]; before the first restart, some frame."""
        return screen_of(max(len(self.log) - 1, 0))


@dataclass(frozen=True)
class Frame:
    """An entry of the log of a Game: what was asked, and what the emulator answered."""

    action: int | None  # None for a restart
    reward: float
    lives: int  # after it


def screen_of(number):
    """What the emulator shows after entry `number` of its log: noise, uint8 [210, 160, 3]."""
    return np.random.default_rng(number).integers(0, 256, (210, 160, 3), dtype=np.uint8)


# In place of a recurrent layer stands a state of one number. Each step makes it MEMORY times itself plus the input. The
# factors of rollout and update differ, as the weights do once an update has begun.
MEMORY = {"rollout": 0.5, "update": 0.75}


def memory_input(rows):
    """What the memory takes in for the observations of rows, float64."""
    return 1 + np.asarray(rows, float) / 50


@dataclass
class Call:
    """A call of what stands in place of a recurrent layer."""

    training: bool  # whether it is for the loss of a minibatch, and not for the rollout
    rows: np.ndarray  # int64 [T, B]: the observations, of T steps of B sequences; -1 where a sequence is padded
    states: np.ndarray  # float [T, B]: the state before each of them, after it was reset


@dataclass
class Step:
    """One gradient step of an update.

    The arrays of a dict are "policy" [R, A], "value" [R] and, for continuous actions, "logstd" [A]."""

    rows: np.ndarray  # int64 [B]: the rows of the minibatch
    before: dict  # the tables before the step
    after: dict  # the tables after it
    gradient: dict | None = None  # the gradient of the loss, before it is clipped
    clipped: dict | None = None  # the gradient that reaches the optimizer

    # For an answer that comes from networks and not from tables, as in adapters/ppo2.py:
    # two dicts, the weights before and after the step; the names of the value function's begin with "v"
    weights: tuple | None = None
    # a function from the gradient of the tables to that of the weights
    project: Callable | None = None

    moments: dict | None = None  # Adam's two means after the step: keys "m" and "v" before the name of a weight
    # the gradient of weights that are in no table, before it is clipped: it counts in the norm of all parameters
    others: dict | None = None


@dataclass
class Update:
    """An answer of `update`."""

    actions: np.ndarray  # those of the rollout, as in World.actions
    steps: list  # of Step
    advantages: np.ndarray | None = None  # float [M, N], if they are not those that the world's rewards give
    returns: np.ndarray | None = None  # float [M, N], likewise
    logged: dict = field(default_factory=dict)  # what is logged of the update: "approx_kl"
    old_log_probs: np.ndarray | None = None  # float [M, N], if the world's old policy does not give them
    problem: tuple | None = None  # (World, Settings), if the answer is to another question than the one asked
    # Advantages of steps that are not in the rollout, but count where advantages are normalized over it: float [steps]
    added: np.ndarray | None = None


def split_updates(actions, steps, **last):
    """The Updates of several rollouts, each with as many of the steps.

    actions: a list of the actions of each rollout, or of lists of those of its steps.
    last: what else is known of the last Update, by name. What is not given of the others follows from the world.
    """
    count = len(actions)
    size = len(steps) // count
    found = [Update(np.array(each), steps[i * size : (i + 1) * size]) for i, each in enumerate(actions)]
    return [*found[:-1], replace(found[-1], **last)]


def make_world(kind="discrete", truncations=False, masks=False, seed=5):
    """A World whose numbers tell all alternatives apart: 4 environments of 12 steps, or of 24 for continuous actions.

    kind: "discrete", "multidiscrete" or "continuous".
    truncations: whether episodes end at time limits, too.
    masks: whether some actions are invalid; not for continuous ones."""
    rng = np.random.default_rng(seed)
    M = 24 if kind == "continuous" else 12
    N = 4
    num_rows = (2 * M + 1) * N
    outputs, nvec = {"discrete": (3, ()), "multidiscrete": (5, (3, 2)), "continuous": (2, ())}[kind]
    terminated = np.zeros((M, N), bool)
    truncated = np.zeros((M, N), bool)
    for t, n in ((2, 0), (5, 1), (M - 1, 2)):
        terminated[t, n] = True
    if truncations:
        for t, n in ((3, 1), (4, 3), (1, 2), (M - 1, 0)):
            truncated[t, n] = True
    old_policy = rng.normal(size=(num_rows, outputs)) * 0.5
    # By how much the policy of the update differs from the old one: enough for ratios on both sides of the clip range.
    shift = rng.normal(size=(num_rows, outputs)) * {"discrete": 2.0, "multidiscrete": 1.2, "continuous": 0.5}[kind]
    old_value = rng.normal(size=num_rows)
    value = old_value + rng.normal(size=num_rows) * 0.4
    rewards = rng.normal(size=(M, N)) * np.array([0.3, 1.0, 3.0, 1.0])
    logstd = np.linspace(-0.4, 0.3, outputs)
    if kind == "continuous":
        actions = favor_continuous(rng, old_policy, shift, logstd, M * N)
        actions = actions.reshape(M, N, outputs)
    else:
        actions = favor_discrete(rng, old_policy, shift, nvec or (outputs,), M * N)
        actions = actions.reshape(M, N, len(nvec)) if nvec else actions.reshape(M, N)
    return World(
        kind=kind,
        rewards=rewards.astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        old_policy=old_policy.astype(np.float32),
        old_value=old_value.astype(np.float32),
        policy=(old_policy + shift).astype(np.float32),
        value=value.astype(np.float32),
        logstd=logstd.astype(np.float32),
        actions=actions,
        nvec=nvec,
        masks=draw_masks(rng, actions, nvec or (outputs,), num_rows) if masks else None,
    )


def of_later_rollout(array, world):
    """An array [R, ...] of the rows of a world, as a later rollout has it.

    A world that is played once more begins with the observation behind the last step of the time before. So this row
    stands in the place of that before the first step."""
    first = world.rows(0)
    moved = np.array(array)
    moved[first] = moved[world.rows(world.num_steps)]
    return moved


def later_world(world, step=None):
    """The World of a later rollout.

    step: the first problems.Step of its update: the log standard deviations are those that the last update left."""
    names = "old_policy", "old_value", "policy", "value", "masks"
    arrays = {name: getattr(world, name) for name in names}
    moved = {name: of_later_rollout(array, world) for name, array in arrays.items() if array is not None}
    if step is not None:
        moved["logstd"] = step.before.get("logstd", world.logstd)
    return replace(world, **moved)


def later_step(step, world):
    """A problems.Step of an update of a later rollout, with the rows of its later_world()."""
    last = world.rows(world.num_steps)
    rows = np.where(np.isin(step.rows, last), step.rows - last[0], step.rows)
    changed = {"rows": rows}
    for name in ("before", "after", "gradient", "clipped"):
        tables = getattr(step, name)
        if tables is None:
            continue
        tables = {key: array if key == "logstd" else of_later_rollout(array, world) for key, array in tables.items()}
        if name in ("gradient", "clipped"):  # the gradient is now that of the first rows
            for key in ("policy", "value"):
                tables[key][last] = 0.0
        changed[name] = tables
    return replace(step, **changed)


def make_near_world(kind):
    """A World of 4 environments in which many ratios and changes of values are about as far from 1, or 0, as 0.2.

    So a clip range that differs from that of the settings shows. It has more steps than make_world()'s, so what depends
    on their number shows as well."""
    rng = np.random.default_rng(6)
    M = 96 if kind == "continuous" else 30  # images, whose first pixel is the row, need fewer than 256 rows
    N = 4
    num_rows = (2 * M + 1) * N
    outputs, nvec = {"discrete": (3, ()), "multidiscrete": (5, (3, 2)), "continuous": (2, ())}[kind]
    logstd = np.linspace(-0.4, 0.3, outputs)
    old_policy = rng.normal(size=(num_rows, outputs)) * 0.3
    if kind == "continuous":
        policy = old_policy + rng.normal(size=(num_rows, outputs)) * 0.2 * np.exp(logstd)
        actions = old_policy[: M * N] + np.exp(logstd) * rng.normal(size=(M * N, outputs))
        actions = actions.astype(np.float32).reshape(M, N, outputs)
    else:
        # Of three actions, the first becomes 1.15 to 1.25 times as likely, and the second 0.75 to 0.85 times.
        old = np.tile([0.45, 0.45, 0.1], (num_rows, 1))
        new = old * rng.uniform([1.15, 0.75, 1.0], [1.25, 0.85, 1.0], size=(num_rows, 3))
        new[:, 2] = 1 - new[:, 0] - new[:, 1]
        policy = old_policy.copy()
        old_policy[:, :3] = np.log(old)
        policy[:, :3] = np.log(new)
        actions = rng.integers(nvec or outputs, size=(M, N, len(nvec)) if nvec else (M, N))
    old_value = rng.normal(size=num_rows)
    value = old_value + rng.uniform(-0.4, 0.4, size=num_rows)
    return World(
        kind=kind,
        rewards=rng.normal(size=(M, N)).astype(np.float32),
        terminated=rng.random((M, N)) < 0.05,
        truncated=np.zeros((M, N), bool),
        old_policy=old_policy.astype(np.float32),
        old_value=old_value.astype(np.float32),
        policy=policy.astype(np.float32),
        value=value.astype(np.float32),
        logstd=logstd.astype(np.float32),
        actions=actions,
        nvec=nvec,
    )


def draw_masks(rng, actions, nvec, num_rows):
    """Masks, bool [R, sum(nvec)], in which the prescribed actions and the first of each component are valid."""
    masks = rng.random((num_rows, sum(nvec))) < 0.5
    first_choices = np.cumsum([0, *nvec[:-1]])
    masks[:, first_choices] = True
    actions = actions.reshape(-1, len(nvec))
    for k, first in enumerate(first_choices):
        masks[np.arange(len(actions)), first + actions[:, k]] = True
    return masks


# A dual clip bounds ratios above 3. So in every second row of the rollout one action is favored: the update's policy
# makes it more than three times as likely. In every second of these rows it is the prescribed action. The numbers below
# were chosen for that.


def favor_continuous(rng, old_policy, shift, logstd, size):
    """Prescribed actions, float32 [size, A]; changes `shift` in every second row."""
    noise = rng.normal(size=(size, len(logstd)))
    noise[::4] = 1.6 * np.sign(noise[::4])
    shift[:size:2] = np.exp(logstd) * 1.5 * np.sign(noise[::2])
    actions = old_policy[:size] + np.exp(logstd) * noise
    return actions.astype(np.float32)


def favor_discrete(rng, old_policy, shift, nvec, size):
    """Prescribed actions, int64 [size, K], of K components of the sizes nvec.

    Changes both tables in every second row. There, one action of each component has at first a logit of 0, and the
    others a higher one."""
    rows = np.arange(0, size, 2)
    actions = rng.integers(nvec, size=(size, len(nvec)))
    begin = 0  # of the component among the outputs
    for k, choices in enumerate(nvec):
        favored = rng.integers(choices, size=len(rows))
        others, change = (0.15, 3.6) if choices > 2 else (1.5, 4.5)
        old_policy[rows, begin : begin + choices] = others
        old_policy[rows, begin + favored] = 0.0
        shift[rows, begin : begin + choices] = 0.0
        shift[rows, begin + favored] = change
        actions[::4, k] = favored[::2]
        begin += choices
    return actions
