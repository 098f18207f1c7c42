"""Times Stable-Baselines3 with the hyperparameters of a script of ours; prints JSON.

    python benchmark/speed/peer.py SCRIPT UPDATES WARMUP THREADS < args.json

Run by the Python that has Stable-Baselines3. THREADS of torch: 0 leaves torch's own choice.
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


def make_envs(script, args):
    """(policy, environments) that do what the script does."""
    if script == "ppo.py":
        return "MlpPolicy", make_vec_env(args.env_id, args.num_envs, seed=args.seed)
    if script == "ppo_continuous_action.py":
        envs = make_vec_env(args.env_id, args.num_envs, seed=args.seed)
        return "MlpPolicy", VecNormalize(envs, gamma=args.gamma)
    import ale_py

    gym.register_envs(ale_py)
    env_id = args.env_id if "NoFrameskip" in args.env_id else args.env_id.replace("-v5", "NoFrameskip-v4")
    return "CnnPolicy", VecFrameStack(make_atari_env(env_id, args.num_envs, seed=args.seed), args.frame_stack)


class Clock(BaseCallback):
    """The time at which each rollout starts and ends."""

    def __init__(self):
        super().__init__()
        self.starts, self.ends = [], []

    def now(self):
        return time.perf_counter(), time.process_time()

    def _on_rollout_start(self):
        self.starts.append(self.now())

    def _on_rollout_end(self):
        self.ends.append(self.now())

    def _on_step(self):
        return True


def main(script, updates, warmup, threads):
    args = SimpleNamespace(**json.load(sys.stdin))
    if threads:
        torch.set_num_threads(threads)
    batch_size, clip = args.num_envs * args.num_steps, args.clip_coef
    policy, envs = make_envs(script, args)
    model = PPO(
        policy, envs, n_steps=args.num_steps, n_epochs=args.update_epochs,
        batch_size=batch_size // args.num_minibatches,
        learning_rate=lambda remaining: args.learning_rate * (remaining if args.anneal_lr else 1.0),
        gamma=args.gamma, gae_lambda=args.gae_lambda, clip_range=clip, clip_range_vf=clip, ent_coef=args.ent_coef,
        vf_coef=args.vf_coef / 2, max_grad_norm=args.max_grad_norm, target_kl=args.target_kl, seed=args.seed,
        device="auto" if args.cuda else "cpu",
    )  # fmt: skip
    clock = Clock()
    model.learn(updates * batch_size, callback=clock)
    starts = [*clock.starts, clock.now()][warmup:]
    wall, cpu = (end - start for start, end in zip(starts[0], starts[-1], strict=True))
    steps = (len(starts) - 1) * batch_size
    learning = sum(start[0] - end[0] for start, end in zip(starts[1:], clock.ends[warmup:], strict=True))
    return {
        "steps_per_second": steps / wall,
        "steps_per_cpu_second": steps / cpu,
        "learning": learning / wall,
        "threads": torch.get_num_threads(),
        "versions": {"python": sys.version.split()[0]}
        | {package: version(package) for package in ("stable_baselines3", "torch", "numpy", "gymnasium")},
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *map(int, sys.argv[2:]))))
