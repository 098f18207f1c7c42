"""sb3-contrib's MaskablePPO: as Stable-Baselines3's PPO; it uses masks where a world has them."""

import numpy as np
import sb3_contrib
from sb3_contrib import MaskablePPO

from conformance.adapters import sb3

NAME = "sb3-contrib, MaskablePPO"
VERSION = sb3_contrib.__version__
KINDS = "discrete", "multidiscrete"
MASKS = True


class Environments(sb3.Environments):
    """A world whose environments say which actions are valid."""

    def reset(self):
        self.rows = self.player.reset()
        return super().reset()

    def step_wait(self):
        obs, rewards, ended, infos = super().step_wait()
        self.rows = obs[:, 0].astype(int)
        return obs, rewards, ended, infos

    def has_attr(self, name):
        return name == "action_masks"

    def env_method(self, name, *arguments, indices=None, **options):
        masks = self.player.world.masks[self.rows]
        return [np.array(mask) for mask in masks]


def update(world, settings):
    if world.kind not in KINDS:
        return None
    learning = {"use_masking": world.masks is not None}
    return sb3.update(world, settings, learning=learning, algorithm=MaskablePPO, environments=Environments)


def advantages(world, settings):
    answer = update(world, settings)
    return {"advantages": answer.advantages, "returns": answer.returns}


def initial_weights(seed, kind):
    return sb3.initial_weights(seed, kind, MaskablePPO) if kind in KINDS else None


def schedules(updates):
    return sb3.schedules(updates, MaskablePPO)
