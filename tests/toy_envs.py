"""Environments with known answers, and stand-ins for the parts of a script that its environments come from."""

import dataclasses
import multiprocessing
import time
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import torch


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
        self.index = index
        self.ends = ends
        self.random = np.random.default_rng(index)
        self.log = []
        self.episode = -1
        self.steps = None  # between episodes

    def reset(self, seed=None, options=None):
        self.episode += 1
        self.steps = 0
        return self.show(self.index, self.episode, 0, 7), {}

    def step(self, action):
        assert self.steps is not None, "a step after the end of an episode"
        before = (self.index, self.episode, self.steps, 7)
        self.steps += 1
        length, kind = self.ends[self.episode % len(self.ends)]
        over = self.steps == length
        terminated = over and kind != "truncated"
        truncated = over and kind != "terminated"
        obs = self.show(self.index, self.episode, self.steps, 7)
        reward = float(np.float32(self.random.normal()))
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
        reward = float(round(np.asarray(action).item()) == self.steps % 2)
        self.steps += 1
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
        reward = float(self.pay(action))
        self.steps += 1
        return self.ask(), reward, False, self.steps == 16, {}

    def render(self):
        return np.zeros((32, 32, 3), np.uint8)


class Misfit(Toy):
    """Its observations do not fit its space: they have another size, or are not whole numbers."""

    def __init__(self, shape=(4,), dtype=np.float32, value=0.0):
        super().__init__(images=None)
        self.observation_space = gym.spaces.Box(-1, 1, shape, dtype)
        self.value = value

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([self.value]), {}

    def step(self, action):
        return np.array([self.value]), 0.0, False, False, {}


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
        brightness = 255 if self.observation_space.dtype == np.uint8 else 1
        return self.show(*(brightness * np.eye(4)[self.answer]))

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


class Borrowed(gym.Env):
    """Keeps its arrays to itself: it overwrites the action that it was given, and what it gave in the last step.

    Shows (seed, step, the action that it was given), to each seat its own where there are `players`; a step's number,
    halved, is the reward, float16 [1]. Episodes have 5 steps; the mask allows the choices that `allowed` says."""

    def __init__(self, actions, players=0, render_mode=None):
        self.action_space = actions
        self.players = players
        shape = (2, 4) if players else (4,)
        self.obs = np.zeros(shape, np.float32)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, shape)
        self.reward = np.zeros(1, np.float16)
        self.mask = np.zeros(6, bool)
        self.steps = 0

    @staticmethod
    def allowed(step):
        """Of two components with three choices each, one is not valid."""
        return (np.arange(6) + step) % 3 != 0

    def answer(self, action):
        action = np.broadcast_to(action, 2)
        for seat, obs in enumerate(self.obs if self.players else [self.obs]):
            obs[:] = (self.seed, self.steps, *(np.full(2, action[seat]) if self.players else action))
        self.mask[:] = self.allowed(self.steps)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.seed = seed
        self.answer(-1)
        return self.obs, {"action_mask": self.mask}

    def step(self, action):
        self.steps += 1
        self.reward[:] = self.steps / 2
        self.answer(action)
        if isinstance(action, np.ndarray):
            action[...] = 0
        return self.obs, self.reward, self.steps % 5 == 0, False, {"action_mask": self.mask}


def gray(height, width):
    """A gray picture, uint8 [height, width], whose pixels are all different."""
    return np.arange(height * width, dtype=np.uint8).reshape(height, width)


class Endless(Guess):
    """Never ends."""

    def ask(self):
        return self.show(0, 0, 0, 0)

    def pay(self, action):
        self.steps = 0
        return 1

    def render(self):
        return np.dstack([gray(16, 16)] * 3)


class Worker(Toy):
    """Starts a process of its own, and writes its number into a file of the folder that it is started in.

    The process would end by itself after an hour."""

    def __init__(self, render_mode=None):
        super().__init__(None)
        self.process = multiprocessing.Process(target=time.sleep, args=(3600,))
        self.process.start()
        with open("processes", "a") as file:
            print(self.process.pid, file=file)

    def reset(self, seed=None, options=None):
        self.steps = 0
        return self.show(0, 0, 0, 0), {}

    def step(self, action):
        assert self.process.is_alive()
        self.steps += 1
        return self.show(0, 0, 0, 0), 1.0, self.steps == 8, False, {}


class PairOfRewards(Toy):
    """Gives a reward for each of two players."""

    def __init__(self, render_mode=None):
        super().__init__(None)

    def reset(self, seed=None, options=None):
        return self.show(0, 0, 0, 0), {}

    def step(self, action):
        return self.show(0, 0, 0, 0), np.ones(2), False, False, {}


class NoMask(PairOfRewards):
    """Has several actions at a time, and no masks."""

    action_space = gym.spaces.MultiDiscrete([2, 2])
    action_mask = property()  # without a getter, so hasattr() says that there is none


class Broken(PairOfRewards):
    """Its step raises an error that pickle cannot send, from a line with a percent sign."""

    def step(self, action):
        class Unsendable(Exception):
            pass

        raise Unsendable(f"{action % 1}")


class ChangesTorch(Toy):
    """Calls a function of torch with an argument when it is made, in its reset, or in its steps."""

    def __init__(self, place, function, argument, render_mode=None):
        super().__init__(None)
        self.place = place
        self.change = partial(getattr(torch, function), argument)
        self.change_in("init")

    def change_in(self, place):
        if place == self.place:
            self.change()

    def reset(self, seed=None, options=None):
        self.change_in("reset")
        return self.show(0, 0, 0, 0), {}

    def step(self, action):
        self.change_in("step")
        return self.show(0, 0, 0, 0), 1.0, False, False, {}


class Threads(Clock):
    """Computes with all threads of torch when it is made, and in each step."""

    def __init__(self, render_mode=None):
        super().__init__(None)
        self.compute()

    def compute(self):
        matrix = torch.ones(512, 512)
        assert (matrix @ matrix == 512).all()

    def step(self, action):
        self.compute()
        return super().step(action)


class Crowd:
    """A ParallelEnv of PettingZoo: shows agent p of game g (g, episode, step, p); rewards are random. `log` has all.

    Of its agents, "early" is terminated after 2 steps, "late" comes in step 1 and stays, "short" is truncated after 4
    steps, and the game ends after 5 to 7. `made` has all games."""

    metadata = {"render_modes": [], "render_fps": 5}
    possible_agents = ["early", "late", "short"]
    made = []

    def __init__(self):
        self.index = len(self.made)
        self.made.append(self)
        self.random = np.random.default_rng(self.index)
        self.episode = -1
        self.agents = []
        self.log = []

    def observation_space(self, agent):
        return gym.spaces.Dict(here=gym.spaces.Box(0, 100, (3,), np.int32), who=gym.spaces.Box(0, 2, (1, 1)))

    def action_space(self, agent):
        return gym.spaces.Discrete(4)

    def show(self, agents):
        here = np.array([self.index, self.episode, self.steps], np.int32)
        return {name: {"here": here, "who": np.array([[self.possible_agents.index(name)]])} for name in agents}

    def reset(self, seed=None, options=None):
        self.episode += 1
        self.steps = 0
        self.agents = ["early", "short"]
        return self.show(self.agents), {name: {} for name in self.agents}

    def step(self, actions):
        assert list(actions) == [name for name in self.possible_agents if name in self.agents]
        self.steps += 1
        over = self.steps == 5 + (self.index + self.episode) % 3
        rewards = {name: float(np.float32(self.random.normal())) for name in actions}
        terminations = {name: over or (name == "early" and self.steps == 2) for name in actions}
        truncations = {name: name == "short" and self.steps == 4 for name in actions}
        for name in actions:
            row = (self.index, self.episode, self.steps - 1, self.possible_agents.index(name))
            self.log.append((row, actions[name], rewards[name], terminations[name], truncations[name]))
        self.agents = [name for name in actions if not terminations[name] and not truncations[name]]
        if self.steps == 1:
            self.agents.append("late")
        shown = self.show({*actions, *self.agents})
        return shown, rewards, terminations, truncations, {name: {} for name in actions}

    def close(self):
        self.agents = []


class Keeping(Crowd):
    """Keeps in `agents` those whose episodes have ended, which PettingZoo's games do not."""

    def reset(self, seed=None, options=None):
        result = super().reset(seed, options)
        self.playing = list(self.agents)
        return result

    def step(self, actions):
        kept = [name for name in self.agents if name not in self.playing]
        self.agents = self.playing
        result = super().step(actions)
        self.playing = self.agents
        self.agents = list({*kept, *actions, *self.playing})
        return result


class Leaving(Crowd):
    """Does not say that an episode is terminated: the agent is no longer among `agents`, against PettingZoo's rule."""

    def step(self, actions):
        shown, rewards, _, truncations, infos = super().step(actions)
        return shown, rewards, {name: False for name in actions}, truncations, infos


class Unpaid(Crowd):
    """Has no reward for those that leave in this step."""

    def step(self, actions):
        shown, rewards, *others = super().step(actions)
        return shown, {name: rewards[name] for name in actions if name in self.agents}, *others


class Signals(Crowd):
    """Each of three agents is shown one of 4 signs for 16 steps; the action of its number is right.

    Each earns the share of right actions, or where it is competitive, 1 if its own is right, less that share."""

    def __init__(self, competitive):
        super().__init__()
        self.competitive = competitive

    def observation_space(self, agent):
        return gym.spaces.Box(0, 1, (4,))

    def show(self, agents):
        self.answers = {name: self.random.integers(4) for name in agents}
        return {name: np.float32(np.eye(4)[answer]) for name, answer in self.answers.items()}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.agents = list(self.possible_agents)
        return self.show(self.agents), {}

    def step(self, actions):
        self.steps += 1
        right = {name: float(action == self.answers[name]) for name, action in actions.items()}
        share = sum(right.values()) / 3
        rewards = {name: right[name] - share if self.competitive else share for name in actions}
        ends = dict.fromkeys(actions, self.steps == 16)
        if self.steps == 16:
            self.agents = []
        return self.show(actions), rewards, dict.fromkeys(actions, False), ends, {}


class Different(Crowd):
    """One agent has other actions than the rest."""

    def action_space(self, agent):
        return gym.spaces.Discrete(5 if agent == "late" else 4)


cooperative = partial(Signals, competitive=False)
competitive = partial(Signals, competitive=True)


@dataclasses.dataclass
class Turn:
    """An agent's turn in a game of Table."""

    agent: str
    place: tuple  # (game, episode, move)
    action: int
    earned: float = 0.0  # what the agent has earned since, up to its next turn
    ended: bool = False  # whether it was the agent's last turn in the game


class Table:
    """An AEC game of PettingZoo for three, in an order of chance: shows (game, episode, move, agent), of the next move.

    Each move pays each agent something by chance. Agent "c" leaves after two turns, and the game ends after 7 to 9
    moves. The last action is never valid, and one other. `log` has every Turn, `made` all games."""

    metadata = {"render_modes": [], "render_fps": 5}
    possible_agents = ["a", "b", "c"]
    made = []

    def __init__(self):
        self.index = len(self.made)
        self.made.append(self)
        self.chance = np.random.default_rng(self.index)
        self.episode = -1
        self.log = []

    def observation_space(self, agent):
        numbers = gym.spaces.Box(0, 1000, (4,))
        return gym.spaces.Dict(action_mask=gym.spaces.Box(0, 1, (5,), np.int8), numbers=numbers)

    def action_space(self, agent):
        return gym.spaces.Discrete(5)

    def reset(self, seed=None, options=None):
        self.episode += 1
        self.move = 0
        self.moves_of_c = 0
        self.agents = list(self.possible_agents)
        self.dead = []
        self.earned = dict.fromkeys(self.agents, 0.0)
        self.turns = dict.fromkeys(self.agents)  # each agent's last Turn
        self.agent_selection = self.chance.choice(self.agents)

    def mask(self):
        return np.array([self.move % 4 != action for action in range(4)] + [False], np.int8)

    def last(self, observe=True):
        name = self.agent_selection
        numbers = np.float32([self.index, self.episode, self.move, self.possible_agents.index(name)])
        obs = {"action_mask": self.mask(), "numbers": numbers} if observe else None
        return obs, self.earned[name], name in self.dead, False, {}

    def step(self, action):
        mover = self.agent_selection
        if mover in self.dead:
            assert action is None
            self.dead.remove(mover)
            self.agents.remove(mover)
        else:
            assert self.mask()[action]
            self.turns[mover] = Turn(mover, (self.index, self.episode, self.move), action)
            self.log.append(self.turns[mover])
            self.earned[mover] = 0.0
            self.move += 1
            for name in self.agents:
                payment = float(self.chance.integers(-5, 6))
                self.earned[name] += payment
                if self.turns[name] is not None:
                    self.turns[name].earned += payment
            if mover == "c":
                self.moves_of_c += 1
                if self.moves_of_c == 2:
                    self.dead = ["c"]
            if self.move == 7 + self.episode % 3:
                self.dead = list(self.agents)
            for name in self.dead:
                if self.turns[name] is not None:
                    self.turns[name].ended = True
        if self.agents:
            self.agent_selection = self.dead[0] if self.dead else self.chance.choice(self.agents)

    def close(self):
        self.agents = []


class Clearing(Table):
    """Removes agents whose episodes have ended at once, which PettingZoo's games do not do."""

    def step(self, action):
        super().step(action)
        self.agents = [name for name in self.agents if name not in self.dead]
        if self.agents and self.agent_selection in self.dead:
            self.agent_selection = self.agents[0]


def normalized():
    """An environment with a wrapper whose statistics are not in a checkpoint."""
    return gym.wrappers.NormalizeObservation(Identity())


gym.register("Choices-v0", Choices)
gym.register("Endless-v0", Endless)
gym.register("Worker-v0", Worker)
gym.register("Threads-v0", Threads)
gym.register("PairOfRewards-v0", PairOfRewards)
gym.register("NoMask-v0", NoMask)
gym.register("Broken-v0", Broken)
gym.register("AnotherSize-v0", Misfit)
gym.register("Rounded-v0", Misfit, kwargs={"shape": (1,), "dtype": np.int64, "value": 0.5})
for place in ("init", "reset", "step"):
    for name, function, argument in (
        ("Float64", "set_default_dtype", torch.float64),
        ("Gradients", "set_grad_enabled", False),
    ):
        options = {"place": place, "function": function, "argument": argument}
        gym.register(f"{name}-{place}-v0", ChangesTorch, kwargs=options)
gym.register("Normalized-v0", normalized)
BORROWED = {
    "BorrowedDiscrete-v0": {"actions": gym.spaces.Discrete(3)},
    "BorrowedBox-v0": {"actions": gym.spaces.Box(-1, 1, (2,))},
    "BorrowedFar-v0": {"actions": gym.spaces.Box(100, 200, (2,))},
    "BorrowedMultiDiscrete-v0": {"actions": gym.spaces.MultiDiscrete([3, 3])},
    "BorrowedPlayers-v0": {"actions": gym.spaces.MultiDiscrete([3, 3]), "players": 2},
}
for env_id, options in BORROWED.items():
    gym.register(env_id, Borrowed, disable_env_checker=True, kwargs=options)
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


class Pool:
    """Toys behind the interface of EnvPool: the step after an episode's end ignores its action, and opens the next.

    Such a step may pay, as those of EnvPool's dm_control do. An observation is a Dict of all of the toy's numbers, as
    float64 and last first, of the first one as Discrete from -1, and of a text. As in EnvPool, a step that ends an
    episode and is the last of its time limit is only truncated."""

    config = {"max_num_players": 1}
    observation_space = gym.spaces.Dict(
        {
            "numbers": gym.spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
            "mission": gym.spaces.Box(0, 255, (8,), np.uint8),
            "index": gym.spaces.Discrete(8, start=-1),
        }
    )

    def __init__(self, toys, actions):
        self.toys = toys
        self.action_space = actions

    def answer(self, ids, obs):
        obs = np.array(obs, dtype=np.float64)
        obs = {
            "numbers": obs[:, ::-1].reshape(-1, 2, 2),
            "mission": np.full((len(obs), 8), 100, np.uint8),
            "index": obs[:, 0].astype(np.int32),
        }
        return obs, {"env_id": np.array(ids, np.int32)}

    def reset(self):
        return self.answer(range(len(self.toys)), [toy.reset()[0] for toy in self.toys])

    def step(self, actions, ids=None):
        ids = range(len(self.toys)) if ids is None else ids
        steps = []
        for action, i in zip(actions, ids, strict=True):
            toy = self.toys[i]
            over = toy.steps is None
            steps.append((toy.reset()[0], 0.5, False, False) if over else toy.step(action)[:4])
        obs, rewards, terminated, truncated = map(np.array, zip(*steps, strict=True))
        obs, info = self.answer(ids, obs)
        return obs, np.float32(rewards), terminated & ~truncated, truncated, info


class AsTheyAre(gym.vector.VectorWrapper):
    """In place of a script's Normalize, so that a test finds the numbers that an environment gave."""

    def __init__(self, envs, gamma):
        super().__init__(envs)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        assert state == {}
