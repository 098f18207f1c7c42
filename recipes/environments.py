"""Small environments that show what some recipes are for. An id such as recipes.environments:NAME imports this file."""

import math
from functools import partial

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv


def without_velocities(make, positions, **kwargs):
    """An environment whose observations have only the components `positions`."""
    env = make(**kwargs)
    space = gym.spaces.Box(env.observation_space.low[positions], env.observation_space.high[positions])
    return gym.wrappers.TransformObservation(env, lambda obs: obs[positions], space)


def with_choices(env_id, number, **kwargs):
    """A continuous environment with MultiDiscrete actions: a component's range is cut into `number` equal parts.

    The choice of a part stands for the value in its middle."""
    return gym.wrappers.DiscretizeAction(gym.make(env_id, **kwargs), number, multidiscrete=True)


class ImageAndVector(gym.Env):
    """The image has a white quarter, the vector a 1: the action that is the sum of their indices modulo 4 pays 1.

    An episode has 16 steps. An agent that sees only one of the two earns 4 on average, like random actions."""

    observation_space = gym.spaces.Dict(
        image=gym.spaces.Box(0, 255, (84, 84, 1), np.uint8), vector=gym.spaces.Box(0, 1, (4,), np.float32)
    )
    action_space = gym.spaces.Discrete(4)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def next_observation(self):
        """Draws the next problem, and returns its observation."""
        self.quarter, component = self.np_random.integers(4, size=2)
        self.answer = (self.quarter + component) % 4
        return {"image": self.draw()[:, :, :1], "vector": np.eye(4, dtype=np.float32)[component]}

    def draw(self):
        image = np.zeros((2, 42, 2, 42, 3), np.uint8)
        image[self.quarter // 2, :, self.quarter % 2] = 255
        return image.reshape(84, 84, 3)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.next_observation(), {}

    def step(self, action):
        reward = float(action == self.answer)  # of the observation before this step
        self.steps += 1
        return self.next_observation(), reward, False, self.steps == 16, {}

    def render(self):
        return self.draw()


class Image(ImageAndVector):
    """The image alone: the action that is the index of its white quarter pays 1."""

    observation_space = gym.spaces.Box(0, 255, (42, 42, 3), np.uint8)

    def next_observation(self):
        self.answer = self.quarter = self.np_random.integers(4)
        return self.draw()[::2, ::2]


class ImagePlace(Image):
    """A white column on black: the action that is its place, from -1 to 1, pays 1, and less the farther it is.

    An episode has 16 steps. An agent that does not look earns 3.9 on average at most, with actions of 0."""

    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def next_observation(self):
        self.column = int(self.np_random.integers(42))
        return self.draw()[::2, ::2]

    def draw(self):
        image = np.zeros((84, 84, 3), np.uint8)
        image[:, 2 * self.column : 2 * self.column + 2] = 255
        return image

    def step(self, action):
        place = self.column / 41 * 2 - 1
        reward = max(0.0, 1 - 2 * abs(action.item() - place))
        self.steps += 1
        return self.next_observation(), reward, False, self.steps == 16, {}


class ToolAndPlace(gym.Env):
    """The right one of three tools pays 1, minus the distance to the right place, but never less than 0.

    The observation has a 1 for the right tool, and the right place. An episode has 16 steps. An agent that chooses the
    tool at random earns 5.3 on average at most, and one that chooses the place at random 3.7."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Dict(place=gym.spaces.Box(-1, 1, (1,)), tool=gym.spaces.Discrete(3))

    def next_observation(self):
        """Draws the next problem, and returns its observation."""
        self.tool = int(self.np_random.integers(3))
        self.place = self.np_random.uniform(-1, 1)
        return np.array([*np.eye(3)[self.tool], self.place], np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.next_observation(), {}

    def step(self, action):
        reward = 0.0
        if action["tool"] == self.tool:
            reward = max(0.0, 1 - 2 * abs(action["place"].item() - self.place))
        self.steps += 1
        return self.next_observation(), reward, False, self.steps == 16, {}


class TicTacToe:
    """Tic-tac-toe, with the interface of an AEC game of PettingZoo: the winner earns 1, the loser -1.

    An observation has the mover's own marks and the other's, and the free squares as action_mask."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 2}
    possible_agents = ("first", "second")
    lines = np.array([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]])

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def observation_space(self, agent):
        marks = gym.spaces.Box(0, 1, (2, 9), np.int8)
        return gym.spaces.Dict(observation=marks, action_mask=gym.spaces.Box(0, 1, (9,), np.int8))

    def action_space(self, agent):
        return gym.spaces.Discrete(9)

    def reset(self, seed=None, options=None):
        self.marks = np.zeros((2, 9), np.int8)  # of each agent
        self.agents = list(self.possible_agents)
        self.agent_selection = "first"
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.is_over = False

    def last(self, observe=True):
        agent = self.possible_agents.index(self.agent_selection)
        mask = 1 - self.marks.sum(0, dtype=np.int8)
        obs = {"observation": self.marks[[agent, 1 - agent]], "action_mask": mask} if observe else None
        return obs, self.rewards[self.agent_selection], self.is_over, False, {}

    def step(self, action):
        mover = self.agent_selection
        agent = self.possible_agents.index(mover)
        other = self.possible_agents[1 - agent]
        if self.is_over:
            self.agents.remove(mover)
        else:
            if self.marks[:, action].any():
                raise ValueError(f"square {action} is not free")
            self.marks[agent, action] = 1
            has_won = bool(self.marks[agent][self.lines].all(axis=1).any())
            self.is_over = has_won or bool(self.marks.any(axis=0).all())
            if has_won:
                self.rewards = {mover: 1.0, other: -1.0}
        self.agent_selection = other

    def render(self):
        """The board, uint8 [192, 192, 3]: squares of the first agent are blue, those of the second red."""
        board = np.full((9, 3), 255, np.uint8)
        board[self.marks[0] == 1] = (59, 125, 216)
        board[self.marks[1] == 1] = (208, 64, 48)
        image = board.reshape(3, 3, 3).repeat(64, axis=0).repeat(64, axis=1)
        image[::64] = 0  # the lines of the board
        image[:, ::64] = 0
        return image

    def close(self):
        pass


class HiddenLimit(gym.Wrapper):
    """Truncates episodes after 50 to 500 steps, a number drawn at each reset.

    info["privileged_state"] has the steps that are left, divided by 500, float32 [1]."""

    def reset(self, *, seed=None, options=None):
        obs, info = self.env.reset(seed=seed, options=options)
        self.steps_left = int(self.env.np_random.integers(50, 501))
        return obs, info | self.privileged_state()

    def step(self, action):
        obs, reward, terminated, _, info = self.env.step(action)
        self.steps_left -= 1
        return obs, reward, terminated, self.steps_left == 0, info | self.privileged_state()

    def privileged_state(self):
        return {"privileged_state": np.array([self.steps_left / 500], np.float32)}


def with_hidden_limit(**kwargs):
    """CartPole whose limit of steps appears only in the info."""
    return HiddenLimit(CartPoleEnv(**kwargs))


class PendulumTensors(gym.vector.VectorEnv):
    """gymnasium's Pendulum, all environments at once, in torch's tensors on one device. Episodes have 200 steps."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
    single_observation_space = PendulumEnv().observation_space
    single_action_space = PendulumEnv().action_space

    def __init__(self, num_envs, device=None):
        self.num_envs = num_envs
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.generator = torch.Generator(self.device)

    def start_states(self):
        """Angles and angular velocities at the start of episodes, float32 [N, 2]."""
        bounds = torch.tensor([math.pi, 1.0], device=self.device)
        numbers = torch.rand(self.num_envs, 2, generator=self.generator, device=self.device)
        return (2 * numbers - 1) * bounds

    def observe(self):
        angle, velocity = self.state.T
        return torch.stack([angle.cos(), angle.sin(), velocity], dim=1)

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.generator.manual_seed(seed)
        self.state = self.start_states()
        self.steps = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        return self.observe(), {}

    def step(self, actions):
        angle, velocity = self.state.T
        torque = actions[:, 0].to(self.device).clamp(-2, 2)
        from_top = (angle + math.pi) % (2 * math.pi) - math.pi
        rewards = -(from_top**2 + 0.1 * velocity**2 + 0.001 * torque**2)
        velocity = (velocity + (15 * angle.sin() + 3 * torque) * 0.05).clamp(-8, 8)
        self.state = torch.stack([angle + velocity * 0.05, velocity], dim=1)
        self.steps = self.steps + 1
        final_obs = self.observe()
        truncated = self.steps == 200
        self.state = torch.where(truncated[:, None], self.start_states(), self.state)
        self.steps = self.steps.masked_fill(truncated, 0)
        return self.observe(), rewards, torch.zeros_like(truncated), truncated, {"final_obs": final_obs}


# The position of the cart and the angle of the pole; the cosine and the sine of the pendulum's angle
gym.register("CartPoleNoVelocities-v1", partial(without_velocities, CartPoleEnv, [0, 2]), max_episode_steps=500)
gym.register("PendulumNoVelocity-v1", partial(without_velocities, PendulumEnv, [0, 1]), max_episode_steps=200)
# Each engine, and each joint, has eleven choices
gym.register("LunarLanderChoices-v3", partial(with_choices, "LunarLanderContinuous-v3", 11))
gym.register("BipedalWalkerChoices-v3", partial(with_choices, "BipedalWalker-v3", 11))
gym.register("CartPoleHiddenLimit-v1", with_hidden_limit)
gym.register("PendulumTensors-v1", vector_entry_point=PendulumTensors)
gym.register("ImageAndVector-v0", ImageAndVector)
gym.register("Image-v0", Image)
gym.register("ImagePlace-v0", ImagePlace)
gym.register("ToolAndPlace-v0", ToolAndPlace)
