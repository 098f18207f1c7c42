"""Trains PPO of Stable-Baselines3 on a task, and prints a row of JSON after half of the steps and after all of them.

    python -m benchmark.untuned.sb3 ScaledPusher-v5 defaults --steps 81920 --seed 1

The Python needs stable-baselines3. Settings: its defaults, or those of RL Zoo for Pendulum. The score is the mean
return of 20 games without exploration.
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
SHARES = 1 / 2, 1
PACKAGES = "stable-baselines3", "torch", "gymnasium", "numpy", "mujoco"
# {name: (arguments of PPO, the number of environments)}; those of the zoo are in hyperparams/ppo.yml of
# DLR-RM/rl-baselines3-zoo at 00128b5
PENDULUM = dict(n_steps=1024, gamma=0.9, learning_rate=1e-3, use_sde=True, sde_sample_freq=4)
SETTINGS = {"defaults": ({}, 1), "zoo": (PENDULUM, 4)}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("settings", choices=SETTINGS)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def make_envs(task, num_envs, seed):
    return make_vec_env(task, num_envs, seed=seed, wrapper_class=gym.wrappers.FlattenObservation)


def main():
    args = parse_args()
    arguments, num_envs = SETTINGS[args.settings]
    envs = make_envs(args.task, num_envs, args.seed)
    model = PPO("MlpPolicy", envs, seed=args.seed, device="cpu", **arguments)
    versions = " ".join(f"{name}=={importlib.metadata.version(name)}" for name in PACKAGES)
    seconds = 0.0
    for share in SHARES:
        start = time.process_time()
        model.learn(round(share * args.steps) - model.num_timesteps, reset_num_timesteps=False)
        seconds += time.process_time() - start
        games = make_envs(args.task, 10, 1_000_000 + 1000 * args.seed)
        score, _ = evaluate_policy(model, games, n_eval_episodes=GAMES, deterministic=True)
        returns = [episode["r"] for episode in model.ep_info_buffer]
        row = {
            "task": args.task,
            "who": f"Stable-Baselines3, {args.settings}",
            "gamma": model.gamma,
            "seed": args.seed,
            "steps": model.num_timesteps,
            "score": round(float(score), 3),
            "training": round(float(np.mean(returns)), 3) if returns else None,
            "cpu_seconds": round(seconds, 1),
            "versions": versions,
            "commit": None,
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
