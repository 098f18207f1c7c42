"""Trains PPO of Stable-Baselines3 on a task, and prints a row of JSON.

    python -m benchmark.untuned.sb3 ScaledPusher-v5 defaults --steps 81920 --seed 1

The Python needs stable-baselines3. Settings: its defaults, or those of RL Zoo for Pendulum, or for CartPole where
actions are Discrete. The score is the mean return of 20 games without exploration.
"""

import argparse
import importlib.metadata
import json
import time

import gymnasium as gym
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

import benchmark.untuned.tasks  # noqa: F401  It registers the tasks.

GAMES = 20
PACKAGES = "stable-baselines3", "torch", "gymnasium", "numpy", "mujoco"
# Arguments of PPO, and the number of environments, as in hyperparams/ppo.yml of DLR-RM/rl-baselines3-zoo at 00128b5
PENDULUM = dict(n_envs=4, n_steps=1024, gamma=0.9, learning_rate=1e-3, use_sde=True, sde_sample_freq=4)
CARTPOLE = dict(
    n_envs=8,
    n_steps=32,
    batch_size=256,
    gae_lambda=0.8,
    gamma=0.98,
    n_epochs=20,
    learning_rate=lambda remaining: 0.001 * remaining,
    clip_range=lambda remaining: 0.2 * remaining,
)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("settings", choices=["defaults", "zoo"])
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def make_envs(task, num_envs, seed):
    return make_vec_env(task, num_envs, seed=seed, wrapper_class=gym.wrappers.FlattenObservation)


def main():
    args = parse_args()
    arguments = {"n_envs": 1}
    if args.settings == "zoo":
        has_box = isinstance(gym.make(args.task).action_space, gym.spaces.Box)
        arguments = PENDULUM if has_box else CARTPOLE
    arguments = dict(arguments)
    envs = make_envs(args.task, arguments.pop("n_envs"), args.seed)
    model = PPO("MlpPolicy", envs, seed=args.seed, device="cpu", **arguments)
    versions = " ".join(f"{name}=={importlib.metadata.version(name)}" for name in PACKAGES)
    start = time.process_time()
    model.learn(args.steps)
    seconds = time.process_time() - start
    games = make_envs(args.task, 10, 1_000_000 + 1000 * args.seed)
    score, _ = evaluate_policy(model, games, n_eval_episodes=GAMES, deterministic=True)
    row = {
        "task": args.task,
        "who": f"Stable-Baselines3, {args.settings}",
        "gamma": model.gamma,
        "learning_rate": "0.001 to 0" if callable(model.learning_rate) else model.learning_rate,
        "seed": args.seed,
        "steps": model.num_timesteps,
        "score": round(float(score), 3),
        "training": round(float(np.mean([episode["r"] for episode in model.ep_info_buffer])), 3),
        "cpu_seconds": round(seconds, 1),
        "versions": versions,
        "commit": None,
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
