"""Trains PPO of Stable-Baselines3 with the hyperparameters of a script of ours, and prints JSON. For speed.py.

    python sb3_like_ours.py SCRIPT UPDATES ARGS

ARGS are the options of the script as JSON. The Python needs stable-baselines3.
"""

import json
import sys
import time
from importlib.metadata import version
from types import SimpleNamespace

import gymnasium as gym
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

WARMUP = 2  # updates that are not counted, as in ours.py


class Times(BaseCallback):
    """Notes the time and the CPU time at the start of each rollout."""

    def __init__(self):
        super().__init__()
        self.noted = []

    def note(self):
        self.noted.append((time.perf_counter(), time.process_time()))

    def _on_rollout_start(self):
        self.note()

    def _on_step(self):
        return True


def make_envs(script, args):
    """(the environments of a script, the policy that suits them)."""
    if script == "ppo.py":
        return make_vec_env(args.env_id, args.num_envs, seed=args.seed), "MlpPolicy"
    if script == "ppo_continuous_action.py":
        envs = make_vec_env(args.env_id, args.num_envs, seed=args.seed)
        return VecNormalize(envs, gamma=args.gamma), "MlpPolicy"
    import ale_py

    gym.register_envs(ale_py)
    env_id = args.env_id.replace("-v5", "NoFrameskip-v4")  # -v5 is the name in EnvPool
    return VecFrameStack(make_atari_env(env_id, args.num_envs, seed=args.seed), args.frame_stack), "CnnPolicy"


def main():
    script, updates, text = sys.argv[1:]
    updates, args = int(updates), SimpleNamespace(**json.loads(text))
    torch.set_num_threads(args.threads)  # as our scripts do
    envs, policy = make_envs(script, args)
    batch_size = args.num_envs * args.num_steps
    times = Times()
    model = PPO(
        policy,
        envs,
        learning_rate=lambda remaining: args.learning_rate * (remaining if args.anneal_lr else 1.0),
        n_steps=args.num_steps,
        batch_size=batch_size // args.num_minibatches,
        n_epochs=args.update_epochs,
        gamma=args.gamma,
        gae_lambda=args.gae_lambda,
        clip_range=args.clip_coef,
        clip_range_vf=args.clip_coef,
        ent_coef=args.ent_coef,
        vf_coef=args.vf_coef / 2,  # it multiplies the squared error, ours half of it
        max_grad_norm=args.max_grad_norm,
        target_kl=args.target_kl,
        seed=args.seed,
        device="auto" if args.cuda else "cpu",
    )
    model.learn((WARMUP + updates) * batch_size, callback=times)
    times.note()
    (start, cpu_start), (end, cpu_end) = times.noted[WARMUP], times.noted[-1]
    found = {  # speed.py knows the line of the result by its first key
        "steps": updates * batch_size,
        "seconds": end - start,
        "cpu": cpu_end - cpu_start,
        "version": f"stable-baselines3 {version('stable_baselines3')}",
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
