"""The arm of benchmark/ablation/arm.py obeys mechanics, and its tasks are what they are called."""

import gymnasium as gym
import numpy as np
import pytest

from benchmark.ablation.arm import Arm

FRICTION = np.array([2.0, 0.05])


def kinetic_energy(arm):
    """By the speeds of the rods' centers and their turning, of masses 4 kg and 0.2 kg."""
    shoulder, elbow = arm.velocities
    outer = shoulder + elbow
    angles = arm.angles[0], arm.angles[0] + arm.angles[1]
    first, second = [np.array([-np.sin(angle), np.cos(angle)]) for angle in angles]
    center = 0.5 * shoulder * first + 0.25 * outer * second
    inertias = np.array([4.0, 0.2]) * 0.5**2 / 12
    moving = 4.0 * (0.25 * shoulder) ** 2 + 0.2 * center @ center
    return (moving + inertias @ [shoulder**2, outer**2]) / 2


def test_energy_is_kept_without_friction():
    """And what torques do is their power."""
    arm = Arm()
    arm.reset(seed=1)
    arm.velocities = np.array([3.0, -5.0])
    before = kinetic_energy(arm)
    for _ in range(5000):
        arm.move(FRICTION * arm.velocities, 2e-4)
    assert kinetic_energy(arm) == pytest.approx(before, rel=2e-3)
    work = 0.0
    for _ in range(2000):
        work += 2e-4 * np.array([2.0, 0.1]) @ arm.velocities
        arm.move(np.array([2.0, 0.1]) + FRICTION * arm.velocities, 2e-4)
    assert kinetic_energy(arm) - before == pytest.approx(work, rel=2e-2)


def test_the_tasks():
    light, heavy, blind = [gym.make(f"{name}-v0").unwrapped for name in ("Arm", "HeavyArm", "BlindArm")]
    assert heavy.upper == pytest.approx(3 * light.upper) and heavy.lower == pytest.approx(3 * light.lower)
    assert set(light.observation_space) == {"arm", "goal"} and set(blind.observation_space) == {"arm"}
    for env in (light, blind):
        obs, _ = env.reset(seed=1)
        assert env.observation_space.contains(obs)
    obs, reward, *_ = light.step(np.zeros(2))
    assert reward == pytest.approx(-np.linalg.norm(obs["arm"]["hand"] - obs["goal"]), rel=1e-6)
