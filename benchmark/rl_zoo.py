"""Trains PPO of Stable-Baselines3 with RL Zoo's settings, plays 100 games without exploration, and prints JSON.

    .venv-sb3/bin/python benchmark/rl_zoo.py LunarLander-v3 --steps 300000 --seed 1 > row.json
    .venv/bin/python -m benchmark.games < row.json

The first Python needs stable-baselines3; games.py puts what is printed into the table of games. The settings are those
of hyperparams/ppo.yml in DLR-RM/rl-baselines3-zoo at 00128b5, where some tasks have older version numbers.

With --score, training ends when the mean return of the last 100 episodes reaches it, and no games are played; that is
for time_to_score.py. --library sbx takes PPO of SBX, which is written in JAX.
"""

import argparse
import copy
import json
import shlex
import sys
import time
from importlib.metadata import version

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

PACKAGES = "stable-baselines3", "torch", "gymnasium", "numpy"
LANDER = dict(n_envs=16, n_steps=1024, gae_lambda=0.98, gamma=0.999, n_epochs=4, ent_coef=0.01)
WIDE = dict(
    log_std_init=-2,
    ortho_init=False,
    activation_fn=torch.nn.ReLU,
    net_arch=dict(pi=[256, 256], vf=[256, 256]),
)
# {task: arguments of PPO, the number of environments, and whether observations and rewards are normalized}
SETTINGS = {
    "CartPole-v1": dict(
        n_envs=8,
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        learning_rate=lambda remaining: 0.001 * remaining,
        clip_range=lambda remaining: 0.2 * remaining,
    ),
    "Acrobot-v1": dict(
        n_envs=16,
        normalize=True,
        n_steps=256,
        gae_lambda=0.94,
        n_epochs=4,
    ),
    "MountainCar-v0": dict(
        n_envs=16,
        normalize=True,
        n_steps=16,
        gae_lambda=0.98,
        n_epochs=4,
    ),
    "MountainCarContinuous-v0": dict(
        n_envs=1,
        normalize=True,
        batch_size=256,
        n_steps=8,
        gamma=0.9999,
        gae_lambda=0.9,
        learning_rate=7.77e-5,
        ent_coef=0.00429,
        clip_range=0.1,
        max_grad_norm=5,
        vf_coef=0.19,
        use_sde=True,
        policy_kwargs=dict(log_std_init=-3.29, ortho_init=False),
    ),
    "Pendulum-v1": dict(
        n_envs=4,
        n_steps=1024,
        gamma=0.9,
        learning_rate=1e-3,
        use_sde=True,
        sde_sample_freq=4,
    ),
    "LunarLander-v3": LANDER,
    "LunarLanderContinuous-v3": LANDER,
    "HalfCheetah-v5": dict(
        n_envs=1,
        normalize=True,
        n_steps=512,
        gamma=0.98,
        learning_rate=2.0633e-5,
        ent_coef=0.000401762,
        clip_range=0.1,
        n_epochs=20,
        gae_lambda=0.92,
        max_grad_norm=0.8,
        vf_coef=0.58096,
        policy_kwargs=WIDE,
    ),
    "Hopper-v5": dict(
        n_envs=1,
        normalize=True,
        batch_size=32,
        n_steps=512,
        gamma=0.999,
        learning_rate=9.80828e-5,
        ent_coef=0.00229519,
        n_epochs=5,
        gae_lambda=0.99,
        max_grad_norm=0.7,
        vf_coef=0.835671,
        policy_kwargs=WIDE,
    ),
    "Walker2d-v5": dict(
        n_envs=1,
        normalize=True,
        batch_size=32,
        n_steps=512,
        learning_rate=5.05041e-5,
        ent_coef=0.000585045,
        clip_range=0.1,
        n_epochs=20,
        max_grad_norm=1,
        vf_coef=0.871923,
    ),
    "Ant-v5": dict(
        n_envs=1,
        normalize=True,
    ),
    "BipedalWalker-v3": dict(
        n_envs=32,
        normalize=True,
        n_steps=2048,
        gamma=0.999,
        clip_range=0.18,
    ),
}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env_id", choices=SETTINGS)
    parser.add_argument("--steps", type=int, required=True, help="the most steps to take, over all environments")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--score", type=float, help="the mean return that ends training")
    parser.add_argument("--library", choices=["sb3", "sbx"], default="sb3", help="the program that trains")
    args = parser.parse_args()
    if args.library == "sbx" and args.score is None:
        parser.error("--library sbx needs --score: the table of games has Stable-Baselines3 alone")
    return args


class UntilScore(BaseCallback):
    """Ends training when the mean return of the last 100 episodes reaches a score; looks at it after each rollout.

    Training then ends after the update of that rollout and one more step, as only a step can end it."""

    def __init__(self, score):
        super().__init__()
        self.score = score
        self.reached = False

    def _on_rollout_end(self):
        episodes = self.model.ep_info_buffer
        if len(episodes) == episodes.maxlen:
            self.reached = np.mean([episode["r"] for episode in episodes]) >= self.score

    def _on_step(self):
        return not self.reached


def train_to_score(model, args):
    """Trains until the score is reached or the steps are used up, and prints steps and CPU seconds as JSON."""
    until = UntilScore(args.score)
    start = time.process_time()
    model.learn(args.steps, callback=until)
    seconds = time.process_time() - start
    print(json.dumps({"steps": model.num_timesteps, "seconds": seconds, "reached": bool(until.reached)}))


def main():
    args = parse_args()
    torch.set_num_threads(1)
    settings = copy.deepcopy(SETTINGS[args.env_id])
    if args.library == "sbx":
        from flax.linen import relu
        from sbx import PPO as algorithm

        if "activation_fn" in settings.get("policy_kwargs", {}):
            settings["policy_kwargs"]["activation_fn"] = relu  # SBX takes a function of flax, not a module of torch
    else:
        algorithm = PPO
    num_envs = settings.pop("n_envs")
    normalize = settings.pop("normalize", False)
    envs = make_vec_env(args.env_id, num_envs, args.seed)
    if normalize:
        envs = VecNormalize(envs, gamma=settings.get("gamma", 0.99))
    model = algorithm("MlpPolicy", envs, seed=args.seed, device="cpu", **settings)
    if args.score is not None:
        train_to_score(model, args)
        return

    start = time.process_time()
    model.learn(args.steps)
    seconds = time.process_time() - start

    games = make_vec_env(args.env_id, 100, 1_000_000 + 1000 * args.seed)  # each plays one game, with unseen seeds
    if normalize:
        games = VecNormalize(games, training=False, norm_reward=False)
        games.obs_rms = envs.obs_rms
    returns, _ = evaluate_policy(model, games, n_eval_episodes=100, deterministic=True, return_episode_rewards=True)
    row = {
        "task": args.env_id,
        "who": "Stable-Baselines3",
        "seed": args.seed,
        "steps": model.num_timesteps,
        "minutes": round(seconds / 60, 2),
        "mean": round(np.mean(returns), 2),
        "std": round(np.std(returns), 2),
        "command": shlex.join(["python", "benchmark/rl_zoo.py", *sys.argv[1:]]),
        "versions": {name: version(name) for name in PACKAGES},
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
