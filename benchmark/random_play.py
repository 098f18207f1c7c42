"""Plays with random actions, and writes the mean returns into results/tuned/random.csv.

    python -m benchmark.random_play CartPole-v1 Acrobot-v1 starpilot

A row replaces that of the same task. An action is drawn uniformly from the action space. A task that gymnasium does not
know is a game of Procgen, in the easy mode with all levels.
"""

import importlib.metadata
import sys

import gymnasium as gym
import numpy as np

from benchmark.results import RESULTS, ROOT
from benchmark.tables import put_row
from saved import import_script

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


def random_returns_of_procgen(game, episodes):
    """The returns of the first episodes of as many games with random actions, float64 [episodes]."""
    script = import_script(ROOT / "ppo_procgen.py")
    envs = script.make_envs(script.Args(env_id=game, num_envs=episodes))
    envs.reset(seed=1)
    rng = np.random.default_rng(1)
    returns = np.full(episodes, np.nan)
    while np.isnan(returns).any():
        *_, infos = envs.step(rng.integers(envs.single_action_space.n, size=episodes))
        if "final_info" in infos:
            first = infos["final_info"]["_episode"] & np.isnan(returns)
            returns[first] = infos["final_info"]["episode"]["r"][first]
    return returns


def main():
    installed = {package.name: package.version for package in importlib.metadata.distributions()}
    packages = [name for name in ("gymnasium", "numpy", "mujoco", "box2d", "envpool") if name in installed]
    versions = " ".join(f"{name}=={installed[name]}" for name in packages)
    for task in sys.argv[1:]:
        play = random_returns if task in gym.registry else random_returns_of_procgen
        returns = play(task, EPISODES)
        mean = round(returns.mean(), 2)
        std = round(returns.std(), 2)
        row = {"task": task, "episodes": EPISODES, "mean": mean, "std": std, "versions": versions}
        put_row(FILE, COLUMNS, ("task",), row)
        print(f"{task}: {mean} ± {std}", flush=True)


if __name__ == "__main__":
    main()
