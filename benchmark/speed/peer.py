"""Times Stable-Baselines3 with the hyperparameters of a script of ours; prints JSON.

    python benchmark/speed/peer.py SCRIPT WARMUP TURNS UPDATES THREADS

Run by the Python that has Stable-Baselines3. The script's arguments come as a line of JSON; then, after WARMUP updates,
it trains for as many UPDATES in each of its TURNS (turns.py). THREADS of torch: 0 leaves torch's own choice.
"""

import json
import sys
from importlib.metadata import version
from types import SimpleNamespace

import gymnasium as gym
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize
from turns import Turns


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


class Rollouts(BaseCallback):
    """Waits for its turn before the rollouts with which one begins."""

    def __init__(self, warmup, updates):
        super().__init__()
        self.warmup, self.updates, self.rollout, self.turns = warmup, updates, 0, Turns()

    def _on_rollout_start(self):
        if self.rollout >= self.warmup and (self.rollout - self.warmup) % self.updates == 0:
            self.turns.next()
        self.rollout += 1

    def _on_step(self):
        return True


def main(script, warmup, turns, updates, threads):
    args = SimpleNamespace(**json.loads(sys.stdin.readline()))
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
    rollouts = Rollouts(warmup, updates)
    model.learn((warmup + turns * updates) * batch_size, callback=rollouts)
    rollouts.turns.end()
    steps = turns * updates * batch_size
    return {
        "steps_per_second": steps / rollouts.turns.wall,
        "steps_per_cpu_second": steps / rollouts.turns.cpu,
        "threads": torch.get_num_threads(),
        "versions": {"python": sys.version.split()[0], "torch": torch.__version__}
        | {package: version(package) for package in ("stable_baselines3", "numpy", "gymnasium")},
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *map(int, sys.argv[2:]))))
