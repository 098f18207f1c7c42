"""Generalized advantage estimation: as ppo2's runner computed it, and from its definition."""

import numpy as np
import pytest
from golden_data import load

import ppo

DATA = load("a_gae")


@pytest.mark.parametrize("case", DATA["cases"])
def test_advantages_and_returns_are_those_of_ppo2(case):
    rewards, values, dones, next_value, next_done, gamma, gae_lambda = (
        DATA[f"{case}/{name}"]
        for name in ("rewards", "values", "mb_dones", "last_values", "last_dones", "gamma", "lam")
    )
    ends = np.append(dones[1:], [next_done], axis=0)  # ppo2's mb_dones[t] is whether step t - 1 ended an episode
    advantages = ppo.gae(rewards, values, ends, next_value, float(gamma), float(gae_lambda))
    assert advantages.dtype == np.float32
    np.testing.assert_array_equal(advantages, DATA[f"{case}/advs"])  # bit for bit: float64 between the steps in both
    np.testing.assert_array_equal(advantages + values, DATA[f"{case}/returns"])


@pytest.mark.parametrize("seed", range(20))
def test_advantages_follow_the_definition(seed):
    """The advantage of step t is the sum over k of (gamma * lambda)**k * delta[t + k], up to the episode's end."""
    rng = np.random.default_rng(seed)
    M, N, gamma, gae_lambda = rng.integers(1, 40), rng.integers(1, 6), rng.uniform(0.8, 1), rng.uniform(0, 1)
    rewards, values = rng.normal(size=(M, N)).astype(np.float32), rng.normal(size=(M + 1, N)).astype(np.float32)
    dones = rng.random((M, N)) < 0.2
    expected = np.zeros((M, N))
    for n in range(N):
        for t in range(M):
            for k in range(M - t):
                last = dones[t + k, n]
                next_value = 0.0 if last else float(values[t + k + 1, n])
                delta = float(rewards[t + k, n]) + gamma * next_value - float(values[t + k, n])
                expected[t, n] += (gamma * gae_lambda) ** k * delta
                if last:
                    break
    advantages = ppo.gae(rewards, values[:-1], dones, values[-1], gamma, gae_lambda)
    np.testing.assert_allclose(advantages, expected, rtol=0, atol=1e-5)
