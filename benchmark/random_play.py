"""Plays with random actions, and writes the mean returns into results/tuned/random.csv.

    python -m benchmark.random_play CartPole-v1 Acrobot-v1 starpilot

A row replaces that of the same task. An action is drawn uniformly from the action space, and in Gym-µRTS each of its
components from the valid ones. Another task that gymnasium does not know is a game of Procgen, in the easy mode with
all levels.
"""

import importlib.metadata
import sys

import gymnasium as gym
import numpy as np
import torch

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


def random_returns_of_microrts(task, episodes):
    """The returns of whole episodes with random valid actions, float64 [episodes]; episode i has the seed i."""
    script = import_script(ROOT / "ppo_multidiscrete_mask.py")
    env = script.make_env(script.Args(env_id=task), 0, None)
    nvec = env.action_space.nvec.tolist()
    uniform = script.MultiDiscrete(torch.zeros(1, sum(nvec)), nvec)
    generator = torch.Generator().manual_seed(1)
    returns = np.zeros(episodes)
    for episode in range(episodes):
        _, info = env.reset(seed=episode)
        while "action_mask" in info:  # the last step of an episode has none
            policy = uniform.masked(torch.from_numpy(info["action_mask"])[None])
            _, reward, _, _, info = env.step(policy.sample(generator)[0].numpy())
            returns[episode] += reward
    return returns


def main():
    installed = {package.name: package.version for package in importlib.metadata.distributions()}
    packages = [name for name in "gymnasium numpy mujoco box2d envpool gym_microrts".split() if name in installed]
    versions = " ".join(f"{name}=={installed[name]}" for name in packages)
    for task in sys.argv[1:]:
        if task.startswith("Microrts"):  # asked first, as gymnasium knows these once one of them was made
            returns = random_returns_of_microrts(task, EPISODES)
        elif task in gym.registry:
            returns = random_returns(task, EPISODES)
        else:
            returns = random_returns_of_procgen(task, EPISODES)
        mean = round(returns.mean(), 2)
        std = round(returns.std(), 2)
        row = {"task": task, "episodes": EPISODES, "mean": mean, "std": std, "versions": versions}
        put_row(FILE, COLUMNS, ("task",), row)
        print(f"{task}: {mean} ± {std}", flush=True)


if __name__ == "__main__":
    main()
