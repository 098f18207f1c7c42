"""Tasks for settings that should hold where nobody tuned them. import benchmark.untuned.tasks registers them.

Box actions are scaled to [-1, 1], as docs/environment.md advises. The tasks whose names begin with Discrete choose
among -1, 0 and 1 for each of them.
"""

import itertools
from functools import partial

import gymnasium as gym
import numpy as np


class CartAndWrist(gym.Env):
    """A cart of 1 kg drives to a place by ±20 N, while a wrist of 0.002 kg m² turns to an angle by ±0.05 Nm.

    Observations are nested Dicts. The reward of a step is minus both errors, each of about 1 at first, and a success
    is an end with both below 0.1.
    """

    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self):
        number = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        part = gym.spaces.Dict({"place": number, "speed": number})
        goal = gym.spaces.Dict({"place": number, "angle": number})
        self.observation_space = gym.spaces.Dict({"cart": part, "wrist": part, "goal": goal})

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.places = self.np_random.uniform(-1, 1, 2).tolist()
        self.speeds = [0.0, 0.0]
        self.goals = self.np_random.uniform(-1, 1, 2).tolist()
        return self.observe(), {}

    def step(self, action):
        errors = []
        for i, (mass, strength, friction) in enumerate(((1.0, 20.0, 0.5), (0.002, 0.05, 0.002))):
            force = strength * min(max(float(action[i]), -1), 1) - friction * self.speeds[i]
            self.speeds[i] += 0.02 * force / mass
            self.places[i] = min(max(self.places[i] + 0.02 * self.speeds[i], -3), 3)
            errors.append(abs(self.places[i] - self.goals[i]))
        return self.observe(), -sum(errors), False, False, {"is_success": max(errors) < 0.1}

    def observe(self):
        def as_array(value):
            return np.array([value], np.float32)

        cart, wrist = (
            {"place": as_array(place), "speed": as_array(speed)}
            for place, speed in zip(self.places, self.speeds, strict=True)
        )
        goal = {"place": as_array(self.goals[0]), "angle": as_array(self.goals[1])}
        return {"cart": cart, "wrist": wrist, "goal": goal}


def make_scaled(env_id, **options):
    """An environment of gymnasium with actions in [-1, 1] instead of its own range."""
    return gym.wrappers.RescaleAction(gym.make(env_id, **options), np.float32(-1), np.float32(1))


def make_discrete(env_id, **options):
    """An environment of gymnasium with Discrete actions: each stands for -1, 0 or 1 in each component of a Box."""
    env = make_scaled(env_id, **options)
    choices = np.array([*itertools.product((-1, 0, 1), repeat=env.action_space.shape[0])], dtype=np.float32)
    return gym.wrappers.TransformAction(env, lambda action: choices[action], gym.spaces.Discrete(len(choices)))


gym.register("ScaledArm-v0", partial(make_scaled, "benchmark.ablation.arm:Arm-v0"))
gym.register("ScaledPusher-v5", partial(make_scaled, "Pusher-v5"))
gym.register("CartAndWrist-v0", CartAndWrist, max_episode_steps=200)
gym.register("DiscretePendulum-v1", partial(make_discrete, "Pendulum-v1"))
gym.register("DiscreteReacher-v5", partial(make_discrete, "Reacher-v5"))
gym.register("DiscreteCartAndWrist-v0", partial(make_discrete, "CartAndWrist-v0"))
