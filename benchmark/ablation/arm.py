"""A planar arm whose two joints have torques of very different scales, for arm.sh.

--env-id benchmark.ablation.arm:Arm-v0, HeavyArm-v0 with three times the mass, BlindArm-v0 without the goal."""

import math

import gymnasium as gym
import numpy as np


class Arm(gym.Env):
    """Two rods of 0.5 m in a horizontal plane, of 4 kg and 0.2 kg; each step costs the hand's distance to the goal.

    A step lasts 0.05 s, an episode 100 steps. The shoulder has torques of up to 20 N m, the elbow of up to 0.5 N m.
    Observations are a nested Dict. `mass` multiplies both masses; with `shows_goal` false the observation has no goal.
    """

    action_space = gym.spaces.Box(np.array([-20, -0.5], np.float32), np.array([20, 0.5], np.float32))

    def __init__(self, mass=1.0, shows_goal=True):
        upper_mass = 4.0 * mass
        lower_mass = 0.2 * mass
        length = 0.5
        # the moments of inertia about the shoulder and the elbow, and what couples them
        self.lower = lower_mass * length**2 / 3
        self.upper = upper_mass * length**2 / 3 + lower_mass * length**2
        self.coupling = lower_mass * length**2 / 2
        self.length = length
        self.shows_goal = shows_goal
        arm = gym.spaces.Dict(
            angles=gym.spaces.Box(-1, 1, (2, 2)),
            velocities=gym.spaces.Box(-np.inf, np.inf, (2,)),
            hand=gym.spaces.Box(-1, 1, (2,)),
        )
        goal = {"goal": gym.spaces.Box(-1, 1, (2,))} if shows_goal else {}
        self.observation_space = gym.spaces.Dict(arm=arm, **goal)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.angles = self.np_random.uniform(-math.pi, math.pi, 2)
        self.velocities = np.zeros(2)
        radius = self.np_random.uniform(0.3, 0.9)
        direction = self.np_random.uniform(-math.pi, math.pi)
        self.goal = radius * np.array([math.cos(direction), math.sin(direction)])
        self.steps = 0
        return self.observe(), {}

    def hand(self):
        """The place of the hand, in meters from the shoulder."""
        shoulder, elbow = self.angles
        outer = shoulder + elbow
        return self.length * np.array([math.cos(shoulder) + math.cos(outer), math.sin(shoulder) + math.sin(outer)])

    def observe(self):
        angles = np.array([np.cos(self.angles), np.sin(self.angles)], np.float32)
        arm = {"angles": angles, "velocities": np.float32(self.velocities / 10), "hand": np.float32(self.hand())}
        if not self.shows_goal:
            return {"arm": arm}
        return {"arm": arm, "goal": np.float32(self.goal)}

    def step(self, action):
        torques = np.clip(action, self.action_space.low, self.action_space.high).astype(np.float64)
        for _ in range(10):
            self.move(torques, 0.005)
        self.steps += 1
        distance = float(np.linalg.norm(self.hand() - self.goal))
        return self.observe(), -distance, False, self.steps == 100, {"is_success": distance < 0.05}

    def move(self, torques, seconds):
        """Newton's equations of the two rods with friction, a step of Euler's method."""
        shoulder_speed, elbow_speed = self.velocities
        cosine = self.coupling * math.cos(self.angles[1])
        sine = self.coupling * math.sin(self.angles[1])
        outer = self.lower + cosine
        inertia = np.array([[self.upper + self.lower + 2 * cosine, outer], [outer, self.lower]])
        turning = np.array([-sine * elbow_speed * (2 * shoulder_speed + elbow_speed), sine * shoulder_speed**2])
        friction = np.array([2.0, 0.05]) * self.velocities
        self.velocities = self.velocities + seconds * np.linalg.solve(inertia, torques - turning - friction)
        self.angles = self.angles + seconds * self.velocities


gym.register("Arm-v0", Arm)
gym.register("HeavyArm-v0", Arm, kwargs={"mass": 3.0})
gym.register("BlindArm-v0", Arm, kwargs={"shows_goal": False})
