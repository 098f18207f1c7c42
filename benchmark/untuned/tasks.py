"""Tasks for settings that should hold where nobody tuned them. import benchmark.untuned.tasks registers them.

Their actions are scaled to [-1, 1], as docs/environment.md advises.
"""

import math

import gymnasium as gym
import numpy as np

STEP = 0.05  # seconds


class Arm(gym.Env):
    """A planar arm of two links of 0.5 m, which moves its tip to a point by torques at its shoulder and its elbow.

    Links are rods of 1 kg without gravity, with friction at the joints. The reward of a step is minus the distance.
    """

    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    observation_space = gym.spaces.Box(-np.inf, np.inf, (10,), np.float32)
    torques = 4.0, 1.0  # Nm, of an action of 1

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.angles = self.np_random.uniform(-math.pi, math.pi, 2).tolist()
        self.speeds = [0.0, 0.0]
        radius = self.np_random.uniform(0.2, 0.9)
        direction = self.np_random.uniform(-math.pi, math.pi)
        self.goal = radius * math.cos(direction), radius * math.sin(direction)
        return self.observe(), {}

    def step(self, action):
        torques = [torque * min(max(float(part), -1), 1) for torque, part in zip(self.torques, action, strict=True)]
        for _ in range(5):
            self.move(torques, STEP / 5)
        return self.observe(), -math.dist(self.tip(), self.goal), False, False, {}

    def move(self, torques, seconds):
        """Advances the state by the equations of motion: inertia · accelerations = torques - friction - centrifugal."""
        first, second = self.speeds
        at_end = 0.25 / 3  # a rod's moment of inertia about its end, kg m²
        coupling = 0.125 * math.cos(self.angles[1])
        a = 2 * at_end + 0.25 + 2 * coupling  # the matrix of inertia is [[a, b], [b, c]]
        b = at_end + coupling
        c = at_end
        centrifugal = 0.125 * math.sin(self.angles[1])
        at_shoulder = torques[0] - 0.2 * first + centrifugal * (2 * first + second) * second
        at_elbow = torques[1] - 0.2 * second - centrifugal * first**2
        determinant = a * c - b * b
        first += seconds * (c * at_shoulder - b * at_elbow) / determinant
        second += seconds * (a * at_elbow - b * at_shoulder) / determinant
        self.speeds = [min(max(speed, -15), 15) for speed in (first, second)]
        self.angles = [angle + seconds * speed for angle, speed in zip(self.angles, self.speeds, strict=True)]

    def tip(self):
        """The place of the tip, m."""
        first, second = self.angles
        x = 0.5 * math.cos(first) + 0.5 * math.cos(first + second)
        y = 0.5 * math.sin(first) + 0.5 * math.sin(first + second)
        return x, y

    def observe(self):
        directions = [part(angle) for angle in self.angles for part in (math.cos, math.sin)]
        return np.array([*directions, *self.speeds, *self.tip(), *self.goal], np.float32)


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


def make_pusher(**options):
    """gymnasium's Pusher with actions in [-1, 1] instead of [-2, 2]."""
    return gym.wrappers.RescaleAction(gym.make("Pusher-v5", **options), np.float32(-1), np.float32(1))


gym.register("ScaledPusher-v5", make_pusher)
gym.register("Arm-v0", Arm, max_episode_steps=100)
gym.register("CartAndWrist-v0", CartAndWrist, max_episode_steps=200)
