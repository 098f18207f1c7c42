"""Small environments that show what some recipes are for. An id such as recipes.environments:NAME imports this file."""

from functools import partial

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv


def without_velocities(make, positions, **kwargs):
    """An environment whose observations have only the components `positions`."""
    env = make(**kwargs)
    space = gym.spaces.Box(env.observation_space.low[positions], env.observation_space.high[positions])
    return gym.wrappers.TransformObservation(env, lambda obs: obs[positions], space)


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

    def observe(self):
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
        return self.observe(), {}

    def step(self, action):
        reward, self.steps = float(action == self.answer), self.steps + 1
        return self.observe(), reward, False, self.steps == 16, {}

    def render(self):
        return self.draw()


class Image(ImageAndVector):
    """The image alone: the action that is the index of its white quarter pays 1."""

    observation_space = gym.spaces.Box(0, 255, (42, 42, 3), np.uint8)

    def observe(self):
        self.answer = self.quarter = self.np_random.integers(4)
        return self.draw()[::2, ::2]


class HiddenLimit(gym.Wrapper):
    """Episodes end after 50 to 500 steps; info["privileged_state"] has the share of 500 steps that is left, [1]."""

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
    """CartPole whose episodes have limits that only an info tells."""
    return HiddenLimit(CartPoleEnv(**kwargs))


# The position of the cart and the angle of the pole; the cosine and the sine of the pendulum's angle
gym.register("CartPoleNoVelocities-v1", partial(without_velocities, CartPoleEnv, [0, 2]), max_episode_steps=500)
gym.register("PendulumNoVelocity-v1", partial(without_velocities, PendulumEnv, [0, 1]), max_episode_steps=200)
gym.register("CartPoleHiddenLimit-v1", with_hidden_limit)
gym.register("ImageAndVector-v0", ImageAndVector)
gym.register("Image-v0", Image)
