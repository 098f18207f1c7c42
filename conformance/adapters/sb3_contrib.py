"""sb3-contrib's MaskablePPO, where every action is valid: as Stable-Baselines3's PPO."""

import sb3_contrib
from sb3_contrib import MaskablePPO

from conformance.adapters import sb3

NAME, VERSION = "sb3-contrib, MaskablePPO", sb3_contrib.__version__
KINDS = "discrete", "multidiscrete"


def update(world, settings):
    if world.kind not in KINDS:
        return None
    return sb3.update(world, settings, learning={"use_masking": False}, algorithm=MaskablePPO)


def advantages(world, settings):
    answer = update(world, settings)
    return {"advantages": answer.advantages, "returns": answer.returns}


def initial_weights(seed, kind):
    return sb3.initial_weights(seed, kind, MaskablePPO) if kind in KINDS else None


def schedules(updates):
    return sb3.schedules(updates, MaskablePPO)
