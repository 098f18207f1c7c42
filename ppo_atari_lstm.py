# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "filelock>=3.20", "gymnasium>=1.4", "numpy>=2.0", "tensorboard>=2.20", "torch>=2.13,<2.16", "tqdm>=4.67",
#   "tyro>=1.0",
#   "ale-py>=0.12", "opencv-python-headless>=4.11",
# ]
# ///
"""PPO with memory for Atari games: ppo_atari.py and the 5 LSTM details of openai/baselines' ppo2, in one file.

    python ppo_atari_lstm.py --env-id BreakoutNoFrameskip-v4        (python ppo_atari_lstm.py --help lists every option)

A mark such as [core 5] names the implementation detail that its line carries; docs/details.md explains each.
Read down to the end of `train`: that is all of PPO. The rest of the file is what any run needs.
"""

import contextlib
import ctypes
import dataclasses
import gc
import importlib.metadata
import io
import json
import math
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import threading
import time
import warnings
import zipfile
from datetime import datetime
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
import tyro
from filelock import FileLock
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

try:
    import ale_py  # noqa: F401 (it registers the games)
    import cv2
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}: pip install ale-py opencv-python-headless")


@dataclasses.dataclass(frozen=True)
class Args:
    # run
    seed: int = 1  # seed of every random generator; environment i gets seed + i
    exp_name: str = Path(__file__).stem  # a word in the name of the run's folder
    runs_folder: str = "runs"  # where that folder goes
    cuda: bool = True  # use the GPU where there is one
    tf32: bool = False  # let a GPU round the factors of products to 10 bits: faster
    bf16: bool = False  # compute the network up to its LSTM in bfloat16: fast only where the hardware has it
    threads: int = torch.get_num_threads()  # of torch on the CPU
    compile: bool = False  # compile the gradient: faster updates after some seconds; on the CPU it needs a C++ compiler
    track: bool = False  # log to Weights & Biases too; its variables apply (WANDB_MODE=offline, WANDB_PROJECT, ...)
    capture_video: bool = False  # film environment 0 into the run's folder
    save_every: int = 100  # updates between checkpoints; 0: only at the end
    resume: str | None = None  # folder of a run to go on with, or a checkpoint to start from; see the README
    # environment
    env_id: str = "BreakoutNoFrameskip-v4"  # one of the ids <Game>NoFrameskip-v4
    num_envs: int = 8  # environments stepped together, N
    async_envs: bool = False  # step each in a process of its own
    frame_stack: int = 1  # newest frames that an observation holds: one, as the LSTM remembers [atari 7]
    # rollout
    total_timesteps: int = 10_000_000  # environment steps in all, over all environments
    num_steps: int = 128  # steps of each environment between two updates, M
    gamma: float = 0.99  # discount
    gae_lambda: float = 0.95  # lambda of generalized advantage estimation
    bootstrap_truncated: bool = False  # value the state where a time limit cuts an episode; ppo2: an end like any other
    # update
    learning_rate: float = 2.5e-4  # Adam's step size
    anneal_lr: bool = True  # let it fall linearly to 0 [core 4]
    num_minibatches: int = 4  # minibatches in an epoch
    update_epochs: int = 4  # epochs over each rollout
    clip_coef: float = 0.1  # clip range of the policy's ratio and of the value
    anneal_clip: bool = False  # let it fall linearly to 0 [aux 1]
    ent_coef: float = 0.01  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # largest norm of the gradient
    target_kl: float | None = None  # end an update's epochs once the approximate KL divergence exceeds this [aux 3]


class NoopReset(gym.Wrapper):
    """[atari 1] A game starts with 1 to 30 no-ops, so that no two are alike."""

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        for _ in range(self.unwrapped.np_random.integers(1, 31)):
            obs, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                obs, info = self.env.reset()
        return obs, info


class MaxAndSkip(gym.Wrapper):
    """[atari 2] An action lasts 4 frames; their rewards add up, and of the last two the brighter pixels are seen."""

    def __init__(self, env):
        super().__init__(env)
        self.screen = env.unwrapped.ale.getScreenRGB  # [speed] it takes time: read only where it is seen
        self.frames = np.zeros((2, *self.screen().shape), dtype=np.uint8)

    def reset(self, **kwargs):
        _, info = self.env.reset(**kwargs)
        return self.screen(), info

    def step(self, action):
        total_reward = 0.0
        for i in range(4):
            _, reward, terminated, truncated, info = self.env.step(action)
            total_reward += reward
            if i >= 2:
                self.screen(self.frames[i - 2])
            if terminated or truncated:
                break  # before the third frame the last action's pictures are seen once more, as in ppo2
        return np.maximum(*self.frames), total_reward, terminated, truncated, info


class EpisodicLife(gym.Wrapper):
    """[atari 3] A lost life ends the episode, but the game goes on until it is over."""

    def __init__(self, env):
        super().__init__(env)
        self.lives, self.game_over = 0, True

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.game_over = terminated or truncated
        lives = self.unwrapped.ale.lives()
        lost = 0 < lives < self.lives  # at 0 the game itself ends, in some games some frames later
        self.lives = lives
        return obs, reward, terminated or lost, truncated, info

    def reset(self, **kwargs):
        if not self.game_over:
            obs, _, terminated, truncated, info = self.env.step(0)
            self.game_over = terminated or truncated
        if self.game_over:
            obs, info = self.env.reset(**kwargs)
        self.lives = self.unwrapped.ale.lives()
        return obs, info


class FireReset(gym.Wrapper):
    """[atari 4] Presses FIRE, and then action 2, to start games that wait for it."""

    def reset(self, **kwargs):
        self.env.reset(**kwargs)
        for action in (1, 2):
            obs, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                self.env.reset()  # its observation is not shown, as in ppo2: that of the last step is
        return obs, info


class WarpFrame(gym.ObservationWrapper):
    """[atari 5] RGB frames, uint8 [210, 160, 3], become grey and then small, uint8 [84, 84]."""

    observation_space = gym.spaces.Box(0, 255, (84, 84), np.uint8)

    def observation(self, obs):
        return cv2.resize(cv2.cvtColor(obs, cv2.COLOR_RGB2GRAY), (84, 84), interpolation=cv2.INTER_AREA)


def make_env(args, index, folder):
    """Environment `index`, its observations images; info["episode"] has the score and length of a whole game."""
    if multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which ends its environments
        if hasattr(os, "setpgrp"):
            os.setpgrp()  # so is what a terminal or a scheduler sends to the run's whole process group
    if "NoFrameskip" not in args.env_id:  # [check] MaxAndSkip does the skipping
        near = re.sub(r"ALE/|-v\d$", "", args.env_id) + "NoFrameskip-v4"
        near = near if near in gym.registry else "BreakoutNoFrameskip-v4"
        sys.exit(f"error: {args.env_id} is not an Atari id such as {near}; ppo.py takes vectors")
    # [speed] observations are the 128 bytes of RAM: MaxAndSkip reads the screen
    env = gym.make(args.env_id, render_mode="rgb_array" if args.capture_video and index == 0 else None, obs_type="ram")
    if not isinstance(env.action_space, gym.spaces.Discrete) or env.action_space.start != 0:
        hint = "Box actions need ppo_continuous_action.py, MultiDiscrete ppo_multidiscrete.py"
        sys.exit(f"error: {args.env_id} has the actions {str(env.action_space)!r}, not Discrete ones from 0; {hint}")
    if env.render_mode is not None:
        env = gym.wrappers.RecordVideo(env, folder / time.strftime("videos-%Y%m%d-%H%M%S"))
    env = gym.wrappers.RecordEpisodeStatistics(MaxAndSkip(NoopReset(env)))  # [atari 1] [atari 2]
    env = EpisodicLife(env)  # [atari 3]
    if "FIRE" in env.unwrapped.get_action_meanings():
        env = FireReset(env)  # [atari 4]
    env = gym.wrappers.TransformReward(WarpFrame(env), np.sign)  # [atari 5]; [atari 6] a reward is its sign
    # [atari 7] the newest frames, oldest first, uint8 [84, 84, frames]; black before an episode's first one
    env = gym.wrappers.FrameStackObservation(env, args.frame_stack, padding_type="zero")
    # [speed] frames come last, as convolutions are faster so
    images = gym.spaces.Box(0, 255, (84, 84, args.frame_stack), np.uint8)
    return gym.wrappers.TransformObservation(env, lambda x: cv2.merge(x).reshape(images.shape), images)


def make_envs(args, folder):
    """[core 1] N environments stepped as one; an ended episode restarts in the same step (common/cmd_util.py)."""
    if args.compile:  # [check]
        sys.exit("error: --compile: each minibatch of the LSTM is cut elsewhere, and would be compiled anew")
    if args.num_envs % args.num_minibatches:  # [check]
        sys.exit("error: --num-minibatches must divide --num-envs: a minibatch holds whole environments")
    vector = gym.vector.AsyncVectorEnv if args.async_envs else gym.vector.SyncVectorEnv
    makers = [partial(make_env, args, index, folder) for index in range(args.num_envs)]
    return vector(makers, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


class Categorical:
    """Distribution over A discrete actions, from logits float32 [B, A]."""

    def __init__(self, logits):
        self.logits = logits.log_softmax(-1)

    def sample(self):
        """Actions, int64 [B]: the argmax after Gumbel noise (common/distributions.py)."""
        return (self.logits - torch.empty_like(self.logits).exponential_().log()).argmax(-1)

    def log_prob(self, actions):
        """Log probabilities, float32 [B], of actions int64 [B]."""
        return self.logits.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self):
        """Entropies, float32 [B]."""
        return -(self.logits.exp() * self.logits).sum(-1)


def layer_init(layer, std=math.sqrt(2)):
    """[core 2] The layer, its weights orthogonal with gain `std`, its biases zero (a2c/utils.py)."""
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


class Flatten(nn.Flatten):
    """[atari 8] Images, [B, C, H, W], to [B, H * W * C]: TensorFlow's order, and here that of memory."""

    def forward(self, images):
        return super().forward(images.movedim(1, -1))


def nature_cnn(channels):
    """[atari 8] The network of Mnih et al. (2015), float32 [B, channels, 84, 84] to [B, 512] (common/models.py)."""
    return nn.Sequential(
        layer_init(nn.Conv2d(channels, 32, 8, stride=4)), nn.ReLU(),
        layer_init(nn.Conv2d(32, 64, 4, stride=2)), nn.ReLU(),
        layer_init(nn.Conv2d(64, 64, 3)), nn.ReLU(), Flatten(),
        layer_init(nn.Linear(7 * 7 * 64, 512)), nn.ReLU(),
    ).to(memory_format=torch.channels_last)  # fmt: skip


class Agent(nn.Module):
    """[core 13] Policy and value from one network with two heads (value_network=None in common/policies.py)."""

    def __init__(self, envs, bf16=False):  # [speed]
        super().__init__()
        self.dtype = torch.bfloat16 if bf16 else torch.float32  # [speed]
        channels, actions = envs.single_observation_space.shape[-1], envs.single_action_space.n  # [atari 7] frames
        self.trunk = nature_cnn(channels)  # [core 13] [atari 8]
        # [lstm 1] orthogonal weights of gain 1, one over all gates, and a single bias, of zeros (a2c/utils.py)
        self.lstm = nn.LSTM(512, 128)
        nn.init.orthogonal_(self.lstm.weight_ih_l0)
        nn.init.orthogonal_(self.lstm.weight_hh_l0)
        nn.init.zeros_(self.lstm.bias_ih_l0)
        nn.init.zeros_(self.lstm.bias_hh_l0.requires_grad_(False))  # torch has two biases, TensorFlow one
        self.policy = layer_init(nn.Linear(128, actions), std=0.01)  # [lstm 1]
        self.value = layer_init(nn.Linear(128, 1), std=1.0)  # [lstm 1]

    def forward(self, obs, state, dones):
        """T steps of E environments: the policy and values, float32 [T * E], and the state after the last step.

        obs: uint8 [T * E, 84, 84, channels]; state: [lstm 5] hidden and cell before the first step, two [1, E, 128];
        dones: bool [T * E], true where an observation opens an episode.
        """
        pixels = obs.movedim(-1, 1).to(self.dtype) / 255  # [atari 9] scaled to the range from 0 to 1
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):  # [speed]
            hidden = self.trunk(pixels)  # [core 13] [atari 9]

        # [lstm 3] the state starts again from zero with each episode; between two such steps the LSTM runs through
        environments, outputs = state[0].shape[1], []
        hidden, dones = hidden.float().view(-1, environments, 512), dones.view(-1, environments)
        cuts = dones.any(dim=1).nonzero().flatten().tolist()
        for piece, done in zip(hidden.tensor_split(cuts), dones.tensor_split(cuts), strict=True):
            if len(piece):
                output, state = self.lstm(piece, tuple(s * ~done[0, :, None] for s in state))
                outputs.append(output.flatten(0, 1))
        hidden = torch.cat(outputs)
        return Categorical(self.policy(hidden)), self.value(hidden).squeeze(-1), state  # [lstm 5]


def gae(rewards, values, dones, next_value, next_done, gamma, gae_lambda):
    """[core 5] Generalized advantage estimation, float32 [M, N]; numpy, in float64 between the steps (ppo2/runner.py).

    rewards, values: float32 [M, N]; dones: bool [M, N], true where obs[t] opens an episode; next_*: [N]."""
    nonterminal = 1.0 - np.append(dones, [next_done], axis=0)[1:]  # 0 where the next observation opens an episode
    deltas = rewards + gamma * np.append(values, [next_value], axis=0)[1:] * nonterminal - values
    advantages, advantage = np.zeros_like(values), 0.0
    for t in reversed(range(len(deltas))):
        advantages[t] = advantage = deltas[t] + gamma * gae_lambda * nonterminal[t] * advantage
    return advantages


def ppo_loss(agent, minibatch, clip_coef, args):
    """The loss of a minibatch, and a dict of scalars to log (ppo2/model.py).

    The minibatch has B steps of a rollout: obs and actions [B, ...], and float32 [B] the logprobs and values that these
    had then, and the returns; [lstm 5] dones, bool [B], and the state before the first step, two of [1, E, 128]."""
    policy, values, _ = agent(minibatch["obs"], minibatch["state"], minibatch["dones"])  # [lstm 5]
    logratio = policy.log_prob(minibatch["actions"]) - minibatch["logprobs"]
    ratio = logratio.exp()

    # [core 7] normalization of advantages, in the minibatch, by the population's standard deviation
    advantages = minibatch["returns"] - minibatch["values"]  # as in ppo2, which passes no advantages on
    advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    assert ratio.shape == advantages.shape == values.shape  # [B] each; what differs would broadcast, to [B, B]

    # [core 8] clipped surrogate objective
    policy_loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - clip_coef, 1 + clip_coef)).mean()

    # [core 9] value function loss clipping
    clipped_values = minibatch["values"] + (values - minibatch["values"]).clamp(-clip_coef, clip_coef)
    squared_errors = (values - minibatch["returns"]) ** 2, (clipped_values - minibatch["returns"]) ** 2
    value_loss = 0.5 * torch.max(*squared_errors).mean()

    # [core 10] overall loss and entropy bonus
    entropy = policy.entropy().mean()
    loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss

    # [core 12] debug variables; the "approxkl" of ppo2 is half the mean square of the log ratio
    stats = dict(policy_loss=policy_loss, value_loss=value_loss, entropy=entropy)
    with torch.no_grad():
        stats |= dict(old_approx_kl=-logratio.mean(), approx_kl=(ratio - 1 - logratio).mean())
        stats |= dict(approx_kl_ppo2=(logratio**2).mean() / 2, clipfrac=((ratio - 1).abs() > clip_coef).float().mean())
    return loss, {name: scalar.detach() for name, scalar in stats.items()}


def clipped_gradient(agent, minibatch, clip_coef, args):
    """Adds the gradient of the loss to parameters that have none, and clips it; returns the scalars to log."""
    loss, stats = ppo_loss(agent, minibatch, clip_coef, args)
    loss.backward()

    # [core 11] global gradient clipping; torch's own norm of a million weights is 0.002 % too small on a CPU
    parameters = [p for p in agent.parameters() if p.grad is not None]
    stats["grad_norm"] = torch.cat([p.grad.flatten() for p in parameters]).square().sum().sqrt()
    nn.utils.clip_grads_with_norm_(parameters, args.max_grad_norm, stats["grad_norm"])
    return stats


def gradient_step(agent, optimizer, minibatch, clip_coef, args, gradient=clipped_gradient):
    """One step of Adam on the loss of a minibatch; returns the scalars to log."""
    optimizer.zero_grad()
    stats = gradient(agent, minibatch, clip_coef, args)

    # [core 3] TensorFlow's Adam adds its epsilon of 1e-5 before the bias correction, and torch's adds it after
    for group in optimizer.param_groups:
        group["steps"] = group.get("steps", 0) + 1
        group["eps"] = 1e-5 / math.sqrt(1 - 0.999 ** group["steps"])
    optimizer.step()
    return stats


def train(args, run):
    """Trains an agent and returns it; `run` has the run's folder, log, progress and checkpoints."""
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    envs = make_envs(args, run.folder)
    agent = Agent(envs, args.bf16).to(device)  # [speed]
    optimizer = torch.optim.Adam(agent.parameters(), args.learning_rate, fused=True)
    gradient = clipped_gradient
    if args.compile:
        torch._dynamo.config.trace_autograd_ops = True  # loss.backward() too
        gradient = torch.compile(clipped_gradient)
    # What must survive a resume is named here: anything with state_dict() and load_state_dict(), of plain values.
    run.start(device, agent=agent, optimizer=optimizer)
    next_obs, _ = envs.reset(seed=args.seed + run.global_step)  # after a resume other games
    next_done = np.zeros(args.num_envs, dtype=bool)
    state = torch.zeros(2, 1, args.num_envs, 128, device=device).unbind()  # [lstm 2] hidden and cell start from zero

    for update in run.updates():
        remaining = 1.0 - (update - 1.0) / run.num_updates
        learning_rate = args.learning_rate * (remaining if args.anneal_lr else 1.0)  # [core 4]
        clip_coef = args.clip_coef * (remaining if args.anneal_clip else 1.0)  # [aux 1]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate  # [core 4]

        rollout, rewards, dones = [], [], []
        initial_state = state  # [lstm 5]
        with torch.no_grad(), torch.autocast(device.type, enabled=False):  # [speed] converts weights once for --bf16
            for _ in range(args.num_steps):
                obs = torch.from_numpy(next_obs).to(device)
                done = torch.from_numpy(next_done).to(device)  # [lstm 3]
                policy, value, state = agent(obs, state, done)  # [lstm 3]
                action = policy.sample()
                step = dict(obs=obs, actions=action, logprobs=policy.log_prob(action), values=value)
                step |= dict(dones=done)  # [lstm 3]
                rollout.append(step)
                dones.append(next_done)
                next_obs, reward, terminated, truncated, infos = envs.step(action.cpu().numpy())
                next_done = terminated | truncated
                if args.bootstrap_truncated and (cut := truncated & ~terminated).any():
                    final_obs = torch.from_numpy(np.stack(infos["final_obs"][cut])).to(device)
                    cut_state = tuple(s[:, torch.from_numpy(cut).to(device)] for s in state)  # [lstm 3] not reset yet
                    going_on = torch.zeros(len(final_obs), dtype=torch.bool, device=device)  # [lstm 3]
                    reward[cut] += args.gamma * agent(final_obs, cut_state, going_on)[1].cpu().numpy()  # [lstm 3]
                rewards.append(reward.astype(np.float32))
                run.log_step(infos)
            last = torch.from_numpy(next_obs).to(device), state, torch.from_numpy(next_done).to(device)  # [lstm 3]
            next_value = agent(*last)[1].cpu().numpy()  # [lstm 3]

        batch = {name: torch.stack([step[name] for step in rollout]) for name in rollout[0]}  # each [M, N, ...]
        values, rewards = batch["values"], np.stack(rewards)
        advantages = gae(rewards, values.cpu().numpy(), dones, next_value, next_done, args.gamma, args.gae_lambda)
        batch["returns"] = returns = torch.from_numpy(advantages).to(device) + values
        batch = {name: column.flatten(0, 1) for name, column in batch.items()}  # each [M * N, ...]

        stats = []
        for _ in range(args.update_epochs):
            # [lstm 4] a minibatch is the whole sequences of some of the environments
            for n in torch.randperm(args.num_envs, device=device).chunk(args.num_minibatches):  # [core 6] [lstm 4]
                rows = torch.arange(run.batch_size, device=device).view(-1, args.num_envs)[:, n].flatten()  # [lstm 4]
                minibatch = {name: column.index_select(0, rows) for name, column in batch.items()}
                minibatch["state"] = tuple(s[:, n] for s in initial_state)  # [lstm 5] the states are computed again
                stats.append(gradient_step(agent, optimizer, minibatch, clip_coef, args, gradient))
            if args.target_kl is not None and stats[-1]["approx_kl"] > args.target_kl:  # [aux 3]
                break

        # [core 12] means over the minibatches
        scalars = {f"losses/{name}": torch.stack([each[name] for each in stats]).mean() for name in stats[0]}
        scalars["losses/explained_variance"] = 1 - (returns - values).var() / returns.var()
        run.log_update(scalars | {"charts/learning_rate": learning_rate})
        if run.stopping or update == run.num_updates or (args.save_every and update % args.save_every == 0):
            run.save()
        if run.stopping:
            break
    envs.close()
    return agent


# That was PPO. What follows is the same in every script, and about runs: options, folder, log, progress, checkpoints.

LIMITS = dict.fromkeys(("num_envs", "num_steps", "num_minibatches", "update_epochs", "threads"), (1, 1e6))
LIMITS |= dict.fromkeys(("seed", "learning_rate", "clip_coef", "max_grad_norm", "num_levels", "start_level"), (0, 2e9))
LIMITS |= dict.fromkeys(("gamma", "gae_lambda", "reward_gamma"), (0, 1)) | {"frame_stack": (1, 128)}


@contextlib.contextmanager
def one_line(what, *kinds):
    """Ends the program with one line, without a traceback, where an exception of one of the kinds is raised."""
    try:
        yield
    except kinds as error:
        sys.exit(f"error: {what}: {type(error).__name__}: {' '.join(str(error).split())}")


def parse_args():
    """(args, state, file): the options and, to resume from, a checkpoint; its options hold where none is given."""
    args, state, file = tyro.cli(Args, description=__doc__), None, None
    if args.resume is not None:
        state, file = load_checkpoint(args.resume)
        env_id = state["args"]["env_id"]
        if ":" in env_id and env_id != args.env_id:  # what stands before the colon would be imported
            sys.exit(f"error: --resume {args.resume}: say --env-id {env_id} too, if you trust it")
        with one_line(f"--resume {args.resume}: its options", TypeError, UserWarning), warnings.catch_warnings():
            warnings.simplefilter("error")  # tyro only warns of a value that is of another type
            own = {} if file != Path(args.resume) else {"exp_name": args.exp_name}  # another run than the file's
            args = tyro.cli(Args, default=Args(**state["args"] | own), description=__doc__)
        before = [env_id, state["args"]["seed"], re.sub(r"(_\d{12})?\.py$", "", state["script"])]
        now = [args.env_id, args.seed, Path(__file__).stem]
        if now[:2] != before[:2] or (now != before and file != Path(args.resume)):
            sys.exit(f"error: --resume {args.resume}: it is of {before}, not of {now}; a copy may begin from a file")
    for name, (least, most) in LIMITS.items():
        if not least <= (value := getattr(args, name, least)) <= most:
            sys.exit(f"error: --{name.replace('_', '-')} must be from {least} to {most:g}, not {value}")
    module, colon, _ = args.env_id.rpartition(":")
    if colon and not all(map(str.isidentifier, module.split("."))):
        sys.exit(f"error: --env-id {args.env_id}: there can be no module {module!r}")
    rollout = args.num_envs * args.num_steps
    if rollout % args.num_minibatches or rollout == args.num_minibatches:
        sys.exit(f"error: --num-minibatches {args.num_minibatches} must divide {rollout} steps into several each")
    done = state["global_step"] if state else 0
    if not max(rollout, done) <= args.total_timesteps < 1e12:  # a checkpoint's name has 12 digits for them
        sys.exit(f"error: --total-timesteps {args.total_timesteps}: a rollout is {rollout}, done {done}, at most 1e12")
    return args, state, file


def load_checkpoint(path):
    """(state, file) of a folder's newest whole checkpoint, or of the file that is named; runs no code that is in it."""
    named = [] if Path(path).is_dir() else [Path(path)]
    for file in sorted(Path(path).glob("checkpoint_*.pt"), reverse=True) or named:
        try:
            damaged = zipfile.ZipFile(file).testzip()  # torch does not look at the checksums
            state = torch.load(file, map_location="cpu", weights_only=True)
            if damaged is None and {"args", "parts"} <= state.keys():
                return state, file
            print(f"{file} is damaged or no checkpoint")
        except Exception as error:  # damaged bytes can raise anything
            print(f"{file} is not a whole checkpoint of plain values: {error!r}")
    sys.exit(f"error: --resume {path}: there is no whole checkpoint")


class Run:
    """A run of the script: its folder, which belongs to this process alone, its log, progress bar and checkpoints."""

    @one_line("the run's folder", OSError)
    def __init__(self, args, state, file):
        """Seeds the random generators; makes the run's folder, or takes the one that `file` is the newest of."""
        self.args, self.state, self.writer, self.stopping = args, state, None, 0
        done = state or {"global_step": 0, "update": 0, "returns": []}
        self.global_step, self.update, self.returns = done["global_step"], done["update"], done["returns"]
        self.batch_size = args.num_envs * args.num_steps
        self.num_updates = self.update + (args.total_timesteps - self.global_step) // self.batch_size
        self.goes_on = file is not None and file != Path(args.resume)  # a checkpoint that is named begins a new run
        name = f"{args.env_id}__{args.exp_name}__{args.seed}__{datetime.now():%Y%m%d-%H%M%S-%f}"
        self.folder = file.parent if self.goes_on else Path(args.runs_folder, re.sub("[/:]", "-", name))
        if not self.goes_on:
            self.folder.mkdir(parents=True)
        self.lock = FileLock(self.folder / "lock")
        self.lock.acquire(timeout=0)  # raises Timeout where another process is at work there
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(args.seed)
        torch.set_num_threads(args.threads)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = args.tf32
        if hasattr(ctypes.pythonapi, "mallopt"):  # glibc: keep freed memory, which makes Atari 12 % faster
            ctypes.pythonapi.mallopt(-4, 0)  # M_MMAP_MAX
            ctypes.pythonapi.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD

    @one_line("the run's folder", OSError)
    def start(self, device, **parts):
        """Loads what a resumed run has saved of the parts, and opens the log."""
        self.device, self.parts, saved = device, parts, self.state["parts"] if self.state else {}
        if saved and saved.keys() != parts.keys():
            sys.exit(f"error: the checkpoint has the parts {', '.join(saved)}; the script has {', '.join(parts)}")
        for name in parts:
            with one_line(f"the part {name} cannot be saved and loaded", Exception):
                torch.save(parts[name].state_dict(), copy := io.BytesIO())
                copy = torch.load(io.BytesIO(copy.getvalue()), weights_only=True)
                parts[name].load_state_dict(saved[name] if saved else copy)
        if saved:
            torch.set_rng_state(self.state["generators"]["torch"])
            np.random.set_state(self.state["generators"]["numpy"])
            random.setstate(self.state["generators"]["random"])
            if device.type == "cuda" and "cuda" in self.state["generators"]:
                torch.cuda.set_rng_state(self.state["generators"]["cuda"], device)
        if self.args.track:
            wandb, settings = importlib.import_module("wandb"), {"dir": self.folder, "config": vars(self.args)}
            with one_line("--track", Exception):
                wandb.init(id=self.folder.name, resume="allow", sync_tensorboard=True, **settings)
        if self.goes_on:  # what came after the checkpoint is done again
            for newer in (f for f in self.folder.glob("checkpoint_*.pt") if int(f.stem[11:]) > self.global_step):
                newer.unlink()
            for file in self.folder.glob("events.*"):
                size = self.state["log"].get(file.name, 0)
                os.truncate(file, size) if size else file.unlink()
        source, again = Path(__file__), f"_{self.global_step:012}" if self.goes_on else ""
        self.source = self.folder / f"{source.stem}{again}.py"
        self.source.write_bytes(source.read_bytes())
        before = self.folder / self.state["script"] if self.goes_on else self.source
        if before.exists() and before.read_bytes() != self.source.read_bytes():
            print(f"{source.name} is not as it was: {self.source} is what this run goes on with")
        versions = {p.name: p.version for p in importlib.metadata.distributions()}
        versions |= {"python": sys.version, "torch": torch.__version__}
        about = {"script": source.name, "command": sys.argv, "args": vars(self.args), "device": str(device)}
        about = json.dumps(about | {"versions": versions}, indent=2)
        (self.folder / f"run{again}.json").write_text(about)
        # the thread that writes the log raises its error here, too
        threading.excepthook = lambda e: "tensorboard" in type(e.thread).__module__ or threading.__excepthook__(e)
        self.writer = SummaryWriter(self.folder)
        self.writer.add_text("run", f"```json\n{about}\n```", self.global_step)
        gc.freeze()  # what there is now stays: 8 % faster on CartPole without its collector looking through it
        print(f"{self.folder}: on {device}; watch it with tensorboard --logdir {self.folder.parent}", flush=True)

    def updates(self):
        """Yields the updates to do, 1 to the last, and shows the progress: a bar, or now and then a line in a file."""

        def stop(number, frame):  # after the update under way; the second time the program ends at once
            self.stopping = number
            signal.signal(number, signal.SIG_DFL)

        for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, stop)
        lines = {"mininterval": 30, "bar_format": "{n_fmt}/{total_fmt} steps, {rate_fmt}, {remaining} left{postfix}\n"}
        form = {"unit": " steps", "unit_scale": True} | ({} if sys.stderr.isatty() else lines)
        self.first, self.began = self.global_step, time.perf_counter()
        total = self.global_step + (self.num_updates - self.update) * self.batch_size
        with tqdm(initial=self.global_step, total=total, **form) as bar:
            while self.update < self.num_updates:
                self.update += 1
                yield self.update
                bar.set_postfix_str(f"return {np.mean(self.returns or math.nan):.4g}", refresh=False)
                bar.update(self.batch_size)

    @one_line("the run's folder", OSError)
    def log_step(self, infos):
        """Counts a step of the environments, and logs each episode that ended in it."""
        self.global_step += self.args.num_envs
        ended = infos.get("final_info", {})
        for i in np.flatnonzero(ended.get("_episode", ())):
            self.returns = [*self.returns[-99:], float(ended["episode"]["r"][i])]
            self.writer.add_scalar("charts/episodic_return", self.returns[-1], self.global_step)
            self.writer.add_scalar("charts/episodic_length", ended["episode"]["l"][i], self.global_step)

    @one_line("the run's folder", OSError)
    def log_update(self, scalars):
        """Logs an update's scalars, numbers or tensors; ends the run where a loss or the gradient is not finite."""
        tensors = [torch.as_tensor(scalar, dtype=torch.float32, device=self.device) for scalar in scalars.values()]
        scalars = dict(zip(scalars, torch.stack(tensors).tolist(), strict=True))  # in one copy
        scalars["charts/SPS"] = (self.global_step - self.first) / max(time.perf_counter() - self.began, 1e-9)
        for name, number in scalars.items():
            self.writer.add_scalar(name, number, self.global_step)
            if not math.isfinite(number) and name.endswith(("loss", "norm")):
                sys.exit(f"error: NaN or inf in {name} of update {self.update} of {self.folder}")

    @one_line("the run's folder", OSError)
    def save(self):
        """Writes a checkpoint in full before it gets its name; keeps the newest two."""
        self.writer.flush()
        generators = {"torch": torch.get_rng_state(), "random": random.getstate()}
        generators["numpy"] = [x.tolist() if isinstance(x, np.ndarray) else x for x in np.random.get_state()]
        if self.device.type == "cuda":
            generators["cuda"] = torch.cuda.get_rng_state(self.device)
        state = {"script": self.source.name, "args": vars(self.args), "returns": self.returns, "generators": generators}
        state |= {"global_step": self.global_step, "update": self.update}
        state["parts"] = {name: part.state_dict() for name, part in self.parts.items()}
        state["log"] = {file.name: file.stat().st_size for file in self.folder.glob("events.*")}
        torch.save(state, data := io.BytesIO())  # which has an error of its own for a file that cannot be written
        data.seek(0)
        with one_line("a part holds what cannot be loaded again", Exception):
            torch.load(data, weights_only=True)
        with open(temporary := self.folder / "checkpoint.tmp", "wb") as file:
            file.write(data.getbuffer())
            file.flush()
            os.fsync(file)
        temporary.replace(self.folder / f"checkpoint_{self.global_step:012}.pt")
        if os.name == "posix":  # the name, too, is to be on the disk
            os.fsync(folder := os.open(self.folder, os.O_RDONLY))
            os.close(folder)
        for old in sorted(self.folder.glob("checkpoint_*.pt"))[:-2]:
            old.unlink()

    @one_line("the run's folder", OSError)
    def close(self):
        """Closes the log; a run that never began leaves no folder."""
        gc.unfreeze()
        if self.writer is not None:
            self.writer.close()
        elif not self.goes_on:
            shutil.rmtree(self.folder)
        self.lock.release()


class Output:
    """A stream whose reader may be gone, or may not know a letter: what it cannot take is dropped, and no run ends."""

    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, text):
        try:
            self.stream.write(text)
            self.stream.flush()
        except OSError:  # what is written from here on goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
        except ValueError:
            pass


def main():
    """Trains as the command line says; what the command line got wrong is one line, without a traceback."""
    try:
        with contextlib.redirect_stdout(Output(sys.stdout)), contextlib.redirect_stderr(Output(sys.stderr)):
            with contextlib.closing(Run(*parse_args())) as run:
                try:
                    train(run.args, run)
                except SystemExit as end:  # an environment, say, has called sys.exit()
                    sys.exit(end.code or f"error: something ended the program in update {run.update} of {run.folder}")
            if run.update < run.num_updates:
                print(f"stopped; --resume {run.folder} goes on")
                sys.exit(128 + run.stopping)
    except KeyboardInterrupt:  # before the first update
        sys.exit(128 + signal.SIGINT)
    except (ImportError, gym.error.Error) as error:
        hint = f": pip install {error.name}" if getattr(error, "name", None) else ""
        sys.exit(f"error: {error}{hint}")


if __name__ == "__main__":
    main()
