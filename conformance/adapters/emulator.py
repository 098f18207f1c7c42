"""A problems.Game as an environment of gymnasium, as ale_py's are."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np

from conformance.problems import Game


class Emulator(gym.Env):
    """A game whose observation is its screen, uint8 [210, 160, 3], or with `ram` 128 bytes that say nothing."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    render_mode = "rgb_array"

    def __init__(self, game, ram=False):
        self.game = game
        self.ram = ram
        shape = (128,) if ram else (210, 160, 3)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gym.spaces.Discrete(len(Game.MEANINGS))
        self.spec = SimpleNamespace(kwargs={"frameskip": 1})
        self.ale = SimpleNamespace(lives=lambda: game.lives, getScreenRGB=self.screen)

    def screen(self, buffer=None):
        """The newest frame; with a `buffer`, it is written there."""
        if buffer is None:
            return self.game.screen()
        buffer[:] = self.game.screen()

    def observation(self):
        return np.zeros(128, np.uint8) if self.ram else self.game.screen()

    def get_action_meanings(self):
        return list(Game.MEANINGS)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.game.restart()
        return self.observation(), {"lives": self.game.lives}

    def step(self, action):
        reward, over = self.game.step(action)
        return self.observation(), reward, over, False, {"lives": self.game.lives}
