"""Plays with random actions, and writes the mean returns into results/tuned/random.csv.

    python -m benchmark.random_play CartPole-v1 Acrobot-v1

A row replaces that of the same task. An action is drawn uniformly from the action space.
"""

import importlib.metadata
import sys

import gymnasium as gym
import numpy as np

from benchmark.results import RESULTS
from benchmark.tables import put_row

EPISODES = 100
FILE = RESULTS / "tuned" / "random.csv"
COLUMNS = "task episodes mean std versions".split()


def random_returns(task, episodes):
    """The returns of whole episodes with random actions, float64 [episodes]; episode i has the seed i."""
    env = gym.make(task)
    returns = np.zeros(episodes)
    for episode in range(episodes):
        env.reset(seed=episode)
        env.action_space.seed(episode)
        ended = False
        while not ended:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            returns[episode] += reward
            ended = terminated or truncated
    env.close()
    return returns


def main():
    installed = {package.name: package.version for package in importlib.metadata.distributions()}
    packages = [name for name in ("gymnasium", "numpy", "mujoco", "box2d") if name in installed]
    versions = " ".join(f"{name}=={installed[name]}" for name in packages)
    for task in sys.argv[1:]:
        returns = random_returns(task, EPISODES)
        mean = round(returns.mean(), 2)
        std = round(returns.std(), 2)
        row = {"task": task, "episodes": EPISODES, "mean": mean, "std": std, "versions": versions}
        put_row(FILE, COLUMNS, ("task",), row)
        print(f"{task}: {mean} ± {std}", flush=True)


if __name__ == "__main__":
    main()
