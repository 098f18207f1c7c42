# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "filelock>=3.20", "gymnasium>=1.4", "numpy>=2.0", "tensorboard>=2.20", "torch>=2.13,<2.16", "tqdm>=4.67",
#   "tyro>=1.0",
#   "envpool>=1.2,<1.2.6",
# ]
# ///
"""IMPALA for Atari games, as in Cleanba: ppo_atari_cleanba.py with V-trace and its loss in place of PPO's.

    python impala_atari_cleanba.py --env-id Breakout-v5 --actor-threads 2

Each rollout is used once; importance ratios correct for the agent that made it, which is one update older.

Marks such as [core 5]: docs/details.md; paths such as common/models.py: openai/baselines. IMPALA ends with `learn`.
"""

import atexit
import contextlib
import copy
import ctypes
import dataclasses
import difflib
import importlib.metadata
import io
import json
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Literal

import envpool  # pip install ".[envpool]"
import gymnasium as gym
import numpy as np
import torch
import torch.distributed as dist
import tyro
from filelock import FileLock
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm


@dataclasses.dataclass(frozen=True)
class Args:
    # run
    seed: int = 1  # seed of torch; environment i gets seed + i; a resume adds its step to both
    exp_name: str = Path(__file__).stem  # name of the experiment, part of the run folder's name
    runs_folder: str = "runs"  # folder in which the run's folder is created
    cuda: bool = True  # use a GPU if there is one
    tf32: bool = False  # allow TF32 on the GPU: faster, with a 10-bit mantissa
    bf16: bool = False  # compute the network up to its heads in bfloat16; slow where the hardware does not support it
    threads: int = torch.get_num_threads()  # number of CPU threads for torch
    compile: bool = False  # compile the gradient: slow start, faster updates; on a CPU it needs a C++ compiler
    track: bool = False  # also log to Weights & Biases, which is configured by WANDB_MODE, WANDB_PROJECT, ...
    capture_video: bool = False  # record videos of environment 0, as the agent sees it, in the run's folder
    save_every: int = 100  # updates between checkpoints; 0 saves only at the start and the end
    resume: str | None = None  # the folder of a run to continue, or a checkpoint to continue in a new folder
    # actors
    actor_threads: int = 1  # number of rollout threads in each process [cleanba 1]
    actor_device: str | None = None  # cpu, or cuda:K, the K-th GPU after the learner's; by default the learner's device
    concurrency: bool = True  # make the next rollout during an update, with the parameters from before it
    network: Literal["nature", "impala"] = "impala"  # of Mnih et al. (2015), or Espeholt et al. (2018) [cleanba 8]
    # environment
    env_id: str = "Breakout-v5"  # a game of EnvPool, <Game>-v5
    num_envs: int = 128  # number of parallel environments over all ranks and actor threads, N [cleanba 1]
    frame_stack: int = 4  # number of frames in an observation [atari 7]
    machado: bool = False  # protocol of Machado et al. (2018): sticky actions, all 18 actions, episodes of all lives
    # rollout
    total_timesteps: int = 50_000_000  # number of steps (4 frames each) in total, over all environments [atari 2]
    num_steps: int = 20  # steps of each environment in a rollout, M
    gamma: float = 0.99  # discount factor
    bootstrap_truncated: bool = False  # bootstrap at time limits; if false, they are terminal states, as in ppo2
    # update
    learning_rate: float = 6e-4  # learning rate of RMSprop [impala 5]
    anneal_lr: bool = True  # anneal the learning rate linearly to 0 [core 4]
    num_minibatches: int = 4  # number of groups of environments, each for one step of RMSprop [impala 4]
    ent_coef: float = 0.01  # coefficient of the entropy bonus
    vf_coef: float = 0.5  # coefficient of the value loss
    max_grad_norm: float = 40.0  # maximum norm of the gradient, which is a sum over the steps [impala 6]


class EnvPool(gym.vector.VectorEnv):
    """[library] N games, stepped by C++ threads; the interface is that of gymnasium with AutoresetMode.SAME_STEP.

    EnvPool implements [atari 1] to [atari 5]; its no-ops, skipped frames and FIRE differ a little from ppo2's."""

    render_mode, metadata = "rgb_array", {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP, "render_fps": 15}

    def __init__(self, args):
        machado = {"repeat_action_probability": 0.25, "full_action_space": True, "episodic_life": False}
        options = machado if args.machado else {"episodic_life": True}
        self.make = partial(envpool.make_gymnasium, args.env_id, num_envs=args.num_envs, stack_num=1, **options)
        self.pool = self.make(seed=args.seed % 2**31)
        self.num_envs, self.single_action_space = args.num_envs, self.pool.action_space
        self.single_observation_space = gym.spaces.Box(0, 255, (84, 84, args.frame_stack), np.uint8)

    def reset(self, seed=None, options=None):
        if seed is not None:  # EnvPool takes a seed only when it is created
            self.pool.close()
            self.pool = self.make(seed=seed % 2**31)
        frames, _ = self.pool.reset()
        self.scores, self.lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=int)
        # [atari 7] the newest frames, oldest first, uint8 [frames, N, 84, 84], black before an episode's first
        self.frames = np.zeros((self.single_observation_space.shape[-1], *frames[:, 0].shape), dtype=np.uint8)
        self.frames[-1] = frames[:, 0]
        return np.stack(self.frames, axis=-1), {}

    def step(self, actions):
        frames, _, terminated, truncated, info = self.pool.step(actions)
        self.frames = np.concatenate((self.frames[1:], [frames[:, 0]]))
        self.scores += info["reward"]  # not clipped, and summed over the lives of a game
        self.lengths += 1
        infos, done, over = {}, terminated | truncated, (info["terminated"] == 1) | truncated
        if done.any():
            infos["final_obs"] = np.stack(self.frames, axis=-1)
            infos["final_info"] = {"episode": {"r": self.scores.copy(), "l": self.lengths.copy()}, "_episode": over}
            self.scores[over], self.lengths[over] = 0, 0
            ended = np.flatnonzero(done)
            self.frames[:, ended] = 0
            # [core 1] EnvPool restarts a game in the step after its end; taking that step here makes it the same step
            self.frames[-1, ended] = self.pool.step(np.zeros(len(ended), dtype=int), ended)[0][:, 0]
        # [atari 6] rewards are reduced to their sign
        return np.stack(self.frames, axis=-1), np.sign(info["reward"]), terminated, truncated, infos

    def render(self):
        """The newest frame of each game, uint8 [84, 84, 3], for videos."""
        return list(self.frames[-1, ..., None].repeat(3, axis=-1))

    def close(self):
        self.pool.close()


def make_envs(args, folder):
    """[core 1] [library] N games of EnvPool, with a video of the first one if asked for."""
    games = [name for name, (module, *_) in envpool.registration.registry.specs.items() if module == "envpool.atari"]
    if args.env_id not in games:  # [check]
        near = ", ".join(difflib.get_close_matches(args.env_id, games)) or "Pong-v5, Breakout-v5, ..."
        sys.exit(f"error: EnvPool has no Atari game {args.env_id}; it has {near}")
    envs = EnvPool(args)
    if args.capture_video:
        videos = folder / time.strftime("videos-%Y%m%d-%H%M%S")
        envs = gym.wrappers.vector.RecordVideo(envs, videos, record_first_only=True)
    return envs


class Categorical:
    """Distribution over A discrete actions, from logits float32 [B, A]."""

    def __init__(self, logits):
        self.logits = logits.log_softmax(-1)

    def sample(self, rank=0, ranks=1, generator=None):  # [cleanba 5]
        """Actions, int64 [B], drawn by the Gumbel-max trick (common/distributions.py)."""
        noise = self.logits.new_empty(ranks, *self.logits.shape).exponential_(generator=generator)  # [cleanba 5]
        return (self.logits - noise[rank].log()).argmax(-1)  # [aux 2]

    def log_prob(self, actions):
        """Log probabilities, float32 [B], of actions int64 [B]."""
        return self.logits.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self):
        """Entropies, float32 [B]."""
        return -(self.logits.exp() * self.logits).sum(-1)


def layer_init(layer, std=math.sqrt(2)):
    """[core 2] Initializes a layer with orthogonal weights of gain `std` and zero biases (a2c/utils.py)."""
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


class Flatten(nn.Flatten):
    """[atari 8] Flattens images [B, C, H, W] to [B, H * W * C], the order of TensorFlow and of channels_last memory."""

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


class Residual(nn.Sequential):
    """[cleanba 8] Layers with a skip connection, float32 [B, depth, H, W] to the same shape."""

    def forward(self, images):
        return super().forward(images) + images


def impala_cnn(channels):
    """[cleanba 8] The network of Espeholt et al. (2018), float32 [B, channels, 84, 84] to [B, 256], as in Cleanba."""
    layers, size = [], 84
    for inputs, depth in ((channels, 16), (16, 32), (32, 32)):
        first, a, b, c, d = (nn.Conv2d(i, depth, 3, padding=1) for i in (inputs, *[depth] * 4))
        layers += first, nn.MaxPool2d(3, stride=2, padding=size % 2, ceil_mode=True)  # TensorFlow's SAME padding
        layers += Residual(nn.ReLU(), a, nn.ReLU(), b), Residual(nn.ReLU(), c, nn.ReLU(), d)
        size = (size + 1) // 2
    for conv in (module for layer in layers for module in layer.modules() if isinstance(module, nn.Conv2d)):
        std = conv.weight[0].numel() ** -0.5 / 0.87962566  # LeCun's initialization: truncation leaves 0.88 of the std
        nn.init.trunc_normal_(conv.weight, 0, std, -2 * std, 2 * std)
        nn.init.zeros_(conv.bias)
    dense = layer_init(nn.Linear(size * size * 32, 256))
    return nn.Sequential(*layers, nn.ReLU(), Flatten(), dense, nn.ReLU()).to(memory_format=torch.channels_last)


class Agent(nn.Module):
    """[core 13] [atari 8] Policy and value function as one network with two heads (common/policies.py)."""

    def __init__(self, envs, bf16=False, network="nature"):  # [cleanba 8]
        super().__init__()
        self.dtype = torch.bfloat16 if bf16 else torch.float32  # [speed]
        channels, actions = envs.single_observation_space.shape[-1], envs.single_action_space.n
        make_trunk, width = {"nature": (nature_cnn, 512), "impala": (impala_cnn, 256)}[network]  # [cleanba 8]
        self.trunk = make_trunk(channels)  # [cleanba 8]
        self.policy = layer_init(nn.Linear(width, actions), std=0.01)  # [cleanba 8]
        self.value = layer_init(nn.Linear(width, 1), std=1.0)  # [cleanba 8]

    def forward(self, obs):
        """The policy and the values, float32 [B], of observations, uint8 [B, 84, 84, channels]."""
        pixels = obs.movedim(-1, 1).to(self.dtype) / 255  # [atari 9] scaled to [0, 1]
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):  # [speed]
            features = self.trunk(pixels).float()
        return Categorical(self.policy(features)), self.value(features).squeeze(-1)


def vtrace(rewards, values, dones, ratios, gamma):
    """[impala 1] [impala 2] V-trace: the targets of the values and the advantages, [M, B] (Espeholt et al., 2018).

    rewards: float [M, B]; ratios: likewise, an action's probability under the agent / under the policy that acted;
    values: float [M + 1, B]; dones: bool [M + 1, B], true where obs[t] begins an episode."""
    discounts = gamma * (1.0 - dones[1:].to(values))  # 0 where the next observation begins an episode
    ratios = ratios.clamp(max=1.0)
    deltas = ratios * (rewards + discounts * values[1:] - values[:-1])
    errors, error = torch.zeros_like(rewards), 0.0
    for t in reversed(range(len(deltas))):
        errors[t] = error = deltas[t] + discounts[t] * ratios[t] * error
    targets = values[:-1] + errors
    next_targets = torch.cat([targets[1:], values[-1:]])
    return targets, ratios * (rewards + discounts * next_targets - values[:-1])


def impala_loss(agent, minibatch, args):
    """[impala 3] The loss of a minibatch, a sum over its steps, and a dict of sums to log.

    minibatch: obs [M, B, ...]; next_obs [1, B, ...]; actions, int64 [M, B]; rewards and the actor's logprobs, float32
    [M, B]; dones, bool [M + 1, B]."""
    rewards, dones = minibatch["rewards"], minibatch["dones"]
    policy, values = agent(torch.cat([minibatch["obs"], minibatch["next_obs"]]).flatten(0, 1))
    policy, values = Categorical(policy.logits.view(*dones.shape, -1)[:-1]), values.view(dones.shape)
    logprobs = policy.log_prob(minibatch["actions"])
    with torch.no_grad():
        logratio = logprobs - minibatch["logprobs"]
        ratios = logratio.exp()
        targets, advantages = vtrace(rewards, values, dones, ratios, args.gamma)

    policy_loss = -(advantages * logprobs).sum()
    value_loss = 0.5 * ((values[:-1] - targets) ** 2).sum()
    entropy = policy.entropy().sum()
    loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss

    # [core 12] debug variables; "clipfrac" is the fraction of the ratios that V-trace clips
    stats = dict(policy_loss=policy_loss, value_loss=value_loss, entropy=entropy, ratio=ratios.sum())
    stats |= dict(approx_kl=(ratios - 1 - logratio).sum(), clipfrac=(ratios > 1).float().sum())
    return loss, {name: scalar.detach() for name, scalar in stats.items()}


def gather(part):
    """[aux 2] The `part` of every rank, in rank order."""
    parts = [part] * (dist.get_world_size() if dist.is_initialized() else 1)
    if dist.is_initialized():
        dist.all_gather_object(parts, part)
    return parts


def sum_over_ranks(agent, stats, share):
    """[aux 2] Sums the gradients and the scalars over the ranks, each times `share`."""
    if dist.is_initialized():
        tensors = [*(p.grad for p in agent.parameters() if p.grad is not None), *stats.values()]
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        flat = flat * share if share > 0 else torch.zeros_like(flat)  # a mean over no rows is NaN
        dist.all_reduce(flat)
        for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))


def clipped_gradient(agent, minibatch, args):  # [impala 3]
    """Computes the gradient of the loss and clips it; returns the scalars to log."""
    loss, stats = impala_loss(agent, minibatch, args)  # [impala 3]
    loss.backward()
    sum_over_ranks(agent, stats, 1.0)  # [impala 6] the gradient is a sum over all steps, the logged scalars are means
    size = minibatch["actions"].numel() * (dist.get_world_size() if dist.is_initialized() else 1)  # [impala 6]
    stats = {name: total / size for name, total in stats.items()}  # [impala 6]

    # [core 11] global gradient clipping
    stats["grad_norm"] = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
    return stats


def train(args, run):
    """Trains an agent and returns it; `run` holds the run's folder, log, progress bar and checkpoints."""
    assert 0 <= args.gamma <= 1 and args.max_grad_norm >= 0  # [impala 1]
    if run.updates_done >= run.num_updates:
        sys.exit(f"error: no rollout of {run.batch_size} steps fits from step {run.global_step} to --total-timesteps")
    torch.manual_seed(args.seed + run.global_step)
    torch.set_num_threads(args.threads)
    if hasattr(ctypes.pythonapi, "mallopt"):  # [speed] glibc keeps freed memory, which saves page faults
        ctypes.pythonapi.mallopt(-4, 0)  # M_MMAP_MAX
        ctypes.pythonapi.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = args.tf32
    # [cleanba 1] each thread has an equal part of the environments; below, N and args.num_envs mean this part
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if args.actor_threads < 1 or args.num_envs % (ranks * args.actor_threads):
        sys.exit(f"error: --num-envs {args.num_envs} is not a multiple of {ranks} ranks x {args.actor_threads} threads")
    args = dataclasses.replace(args, num_envs=args.num_envs // (ranks * args.actor_threads))
    if args.num_envs % args.num_minibatches:  # [impala 4]
        sys.exit(f"error: {args.num_envs} environments a thread do not divide into {args.num_minibatches} minibatches")
    videos = [args.capture_video and rank == i == 0 for i in range(args.actor_threads)]
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    actor_device = torch.device(args.actor_device or device)  # [cleanba 1]
    if actor_device.type == "cuda":  # [cleanba 1] cuda:1 is the GPU after the learner's
        actor_device = torch.device("cuda", torch.cuda.current_device() + (actor_device.index or 0))
    envs = [make_envs(dataclasses.replace(args, capture_video=video), run.folder) for video in videos]  # [cleanba 1]
    agent = Agent(envs[0], args.bf16, args.network).to(device)  # [cleanba 8]
    optimizer = torch.optim.RMSprop(agent.parameters(), args.learning_rate, alpha=0.99, eps=0.01)  # [impala 5]
    gradient = clipped_gradient
    if args.compile:
        torch._dynamo.config.trace_autograd_ops = True  # compiles loss.backward() as well
        gradient = torch.compile(clipped_gradient)
    # Pass here what a resume must restore: objects with load_state_dict() and state_dict(), whose keys must not change.
    run.start(device, agent=agent, optimizer=optimizer)
    with contextlib.ExitStack() as stack:  # [cleanba 7] the threads end with the learner, also after an error
        submits = []
        for i in range(args.actor_threads):
            # [cleanba 5] a generator per thread; without overlap thread 0 has torch's own, as in ppo_atari.py
            shared = i == 0 and not args.concurrency and args.actor_device is None
            generator = None if shared else torch.Generator(actor_device).manual_seed(torch.randint(2**62, ()).item())
            seed = args.seed + run.global_step + (i * ranks + rank) * args.num_envs
            rollouts = make_rollouts(args, envs[i], seed, actor_device, generator, rank, ranks)
            next(rollouts)  # runs to the first yield, which waits for an agent
            set_device = torch.get_device_module(actor_device).set_device  # a new thread starts on the first GPU
            executor = ThreadPoolExecutor(1, f"actor-{i}", set_device, (actor_device,))
            stack.callback(envs[i].close)
            stack.callback(executor.shutdown, cancel_futures=True)
            submits.append(partial(executor.submit, rollouts.send))  # [cleanba 2]
        return learn(args, run, device, agent, optimizer, gradient, submits, actor_device, rank, ranks)


def make_rollouts(args, envs, seed, device, generator, rank, ranks):
    """[cleanba 1] For each agent sent, yields columns [M, N, ...] (dones M + 1, next_obs 1), ends and the wait."""
    backend = torch.get_device_module(device)
    stream, rollout_made = backend.Stream(device), None  # [cleanba 6]
    next_obs, _ = envs.reset(seed=seed)  # [cleanba 1]
    next_done = np.zeros(args.num_envs, dtype=bool)

    while True:  # [cleanba 1]
        started = time.perf_counter()  # [cleanba 9]
        agent = yield rollout_made  # [cleanba 1]
        waited = time.perf_counter() - started  # [cleanba 9]
        rollout, rewards, dones, ends = [], [], [], []  # [cleanba 3]
        with torch.no_grad(), torch.autocast(device.type, enabled=False), backend.stream(stream):  # [cleanba 6]
            for _ in range(args.num_steps):
                obs = torch.from_numpy(next_obs).to(device)
                policy, _ = agent(obs)  # [impala 3]
                action = policy.sample(rank, ranks, generator)  # [cleanba 5]
                step = dict(obs=obs, actions=action, logprobs=policy.log_prob(action))  # [impala 3]
                rollout.append(step)
                dones.append(next_done)
                next_obs, reward, terminated, truncated, infos = envs.step(action.cpu().numpy())
                next_done = terminated | truncated
                if args.bootstrap_truncated and (cut := truncated & ~terminated).any():
                    final_obs = torch.from_numpy(np.stack(infos["final_obs"][cut])).to(device)
                    reward[cut] += args.gamma * agent(final_obs)[1].cpu().numpy()
                rewards.append(reward.astype(np.float32))
                final = infos.get("final_info", {"_episode": [], "episode": {"r": [], "l": []}})  # [cleanba 3]
                ends.append((final["_episode"], final["episode"]["r"], final["episode"]["l"]))  # [cleanba 3]

        batch = {name: torch.stack([step[name] for step in rollout]) for name in rollout[0]}  # each [M, N, ...]
        # [impala 3] the learner computes values, also of the next observation
        batch["logprobs"].cpu()  # waits until a GPU has computed the columns
        batch["next_obs"] = torch.from_numpy(next_obs).to(device)[None]
        batch["rewards"] = torch.from_numpy(np.stack(rewards)).to(device)
        batch["dones"] = torch.from_numpy(np.stack([*dones, next_done])).to(device)
        rollout_made = batch, ends, waited  # [cleanba 3]


def learn(args, run, device, agent, optimizer, gradient, submits, actor_device, rank, ranks):
    """[cleanba 1] Trains on the rollouts that the actors make in other threads."""
    pending = []  # [cleanba 2] pairs of an agent's version and the futures of its rollouts
    for update in run.updates():
        # [core 4] [impala 5] annealing of the learning rate
        remaining = 1.0 - (update - 1.0) / run.num_updates
        learning_rate = args.learning_rate * (remaining if args.anneal_lr else 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate

        # [cleanba 6] a copy per actor: the learner changes its agent in place, and threads share autocast's cache
        snapshots = [copy.deepcopy(agent).to(actor_device) for _ in submits]
        torch.get_device_module(actor_device).synchronize(actor_device)
        # [cleanba 4] with overlap, two rollouts are pending, except in the last update
        while len(pending) <= (args.concurrency and update < run.num_updates):
            pending.append((update, [submit(each) for submit, each in zip(submits, snapshots, strict=True)]))
        started = time.perf_counter()  # [cleanba 9]
        version, futures = pending.pop(0)  # [cleanba 2]
        batches, ends, waits = zip(*(future.result() for future in futures), strict=True)
        waited = time.perf_counter() - started  # [cleanba 9]
        # [cleanba 3] the threads' columns side by side
        batch = {name: torch.cat([each[name].to(device) for each in batches], dim=1) for name in batches[0]}
        for step in zip(*ends, strict=True):
            ended, scores, lengths = (np.concatenate(column) for column in zip(*step, strict=True))
            run.log_step({"final_info": {"_episode": ended, "episode": {"r": scores, "l": lengths}}})

        stats = []
        for i in range(args.num_minibatches):  # [impala 4] of k minibatches, i has environments i, i + k, i + 2k, ...
            minibatch = {name: column[:, i :: args.num_minibatches] for name, column in batch.items()}
            stats.append(gradient(agent, minibatch, args))
            optimizer.step()  # [impala 5]
            optimizer.zero_grad()

        # [core 12] means of the debug variables over the minibatches
        scalars = {f"losses/{name}": torch.stack([each[name] for each in stats]).mean() for name in stats[0]}
        # [cleanba 4] the lag, and [cleanba 9] the waits, whose difference is positive if the actors are too slow
        scalars |= {"charts/policy_lag": update - version, "charts/wait_for_rollouts": waited}
        scalars |= {"charts/wait_for_agents": np.mean(waits), "charts/wait_difference": waited - np.mean(waits)}
        run.log_update(scalars | {"charts/learning_rate": learning_rate})
        if run.stopping or update == run.num_updates or (args.save_every and update % args.save_every == 0):
            run.save()
            if run.stopping:
                break
    if dist.is_initialized():  # [aux 2]
        dist.destroy_process_group()
    return agent


def make_run(args, signals):
    """[aux 2] Creates the run; under torchrun, only rank 0 has its folder, log and progress bar."""
    if not dist.is_torchelastic_launched():
        return Run(args, signals)
    rank, local_rank, local_ranks = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    run_id, gpus, torchrun = os.environ["TORCHELASTIC_RUN_ID"], torch.cuda.device_count(), os.getppid()
    safe = os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == "1" and run_id != "none"
    if os.environ["TORCHELASTIC_MAX_RESTARTS"] != "0" and not safe:
        sys.exit("error: --max-restarts needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, and --standalone or --rdzv-id")
    if gpus:
        torch.cuda.set_device(local_rank * max(gpus // local_ranks, 1) % gpus)  # the first GPU of this rank's share
    backend = "gloo" if gpus < local_ranks else "cpu:gloo,cuda:nccl"  # NCCL does not let ranks share a GPU
    dist.init_process_group(backend, timeout=timedelta(minutes=5))

    class RankRun(Run):
        """The run on one rank: gathers the stops and the ends of episodes, and does the rest on rank 0 only."""

        def __init__(self, args):
            if rank == 0:
                files = sorted(Path(args.runs_folder).glob("*/rdzv-id"), key=os.path.getmtime)
                begun = [file.parent for file in files if file.read_text() == run_id != "none"]
                if begun:
                    print(f"--rdzv-id {run_id}: continues {begun[-1]}", flush=True)
                    args = dataclasses.replace(args, resume=str(begun[-1]))
                super().__init__(args)
            self.ends, self.stops = [], []
            vars(self).update(gather({name: value for name, value in vars(self).items() if name != "lock"})[0])

        def start(self, device, **parts):
            for number in signals:  # repeats count once: Ctrl-C reaches a rank directly and again through torchrun
                signal.signal(number, lambda number, frame: self.stops.append(number))
            if rank == 0:
                super().start(device, **parts)
                (self.folder / "rdzv-id").write_text(run_id)
            saved = gather(self.saved)[0]
            for name, part in parts.items():
                part.load_state_dict(saved[name])

        def updates(self):
            return super().updates() if rank == 0 else range(self.updates_done + 1, self.num_updates + 1)

        def log_step(self, infos):
            final = infos.get("final_info", {"_episode": [], "episode": {"r": [], "l": []}})
            self.ends.append((final["_episode"], final["episode"]["r"], final["episode"]["l"]))

        def log_update(self, scalars):
            stops, ends = zip(*gather((self.stops or os.getppid() != torchrun, self.ends)), strict=True)
            if rank == 0:
                for step in zip(*ends, strict=True):
                    ended, scores, lengths = (np.concatenate(column) for column in zip(*step, strict=True))
                    super().log_step({"final_info": {"_episode": ended, "episode": {"r": scores, "l": lengths}}})
                super().log_update(scalars)
            self.global_step, self.returns = gather((self.global_step, self.returns))[0]
            self.ends, self.stopping = [], -128 * any(stops)  # main() exits with 0, so torchrun does not restart ranks

        def save(self):
            return super().save() if rank == 0 else None

    return RankRun(args)


# That was PPO. The rest is the same in every script and serves the run: options, folder, log, progress, checkpoints.

def load_checkpoint(path):
    """The newest intact checkpoint of the run in a folder, or the checkpoint in a file; runs no code from it."""
    for file in sorted(path.glob(f"checkpoint_{'[0-9]' * 12}.pt"), reverse=True) or [path] * path.is_file():
        data = file.read_bytes()  # an OSError ends the run: it does not mean that the file is damaged
        with contextlib.suppress(Exception):  # damaged bytes raise errors of many kinds
            if zipfile.ZipFile(io.BytesIO(data)).testzip() is None:  # torch.load does not verify the checksums
                return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        print(f"{file} is damaged, or not a checkpoint of plain values")
        if file != path:
            file.rename(file.with_suffix(".damaged"))
    sys.exit(f"error: --resume {path}: there is no intact checkpoint")


class Run:
    """A run of the script: its folder, log, progress bar and checkpoints."""
    def __init__(self, args, signals=()):
        """Begins or continues a run; a resume's options default to the checkpoint's, except those listed below."""
        state, self.folder = {"global_step": 0, "returns": [], "parts": None}, Path(args.resume or "")
        self.resumed = args.resume is not None and self.folder.is_dir()
        self.lock = FileLock(self.folder / "lock").acquire(timeout=0) if self.resumed else None  # one run at a time
        if args.resume is not None:
            state = load_checkpoint(self.folder)
            if ":" in (env_id := state["args"]["env_id"]) and env_id != args.env_id:  # gymnasium imports the module
                sys.exit(f"error: --resume {args.resume}: add --env-id {env_id} if you trust this module")
            kept = vars(args).keys() - {"cuda", "threads", "actor_device", "track", "runs_folder", "exp_name"}
            default = dataclasses.replace(args, **{name: state["args"][name] for name in kept & state["args"].keys()})
            args = tyro.cli(Args, description=__doc__, default=default)
            if self.resumed and (Path(__file__).name, args.env_id) != (state["script"], env_id):
                sys.exit(f"error: --resume {args.resume}: this is a run of {state['script']} on {env_id}")
        if not self.resumed:
            name = f"{args.env_id}__{args.exp_name}__{args.seed}__{time.strftime('%F-%T')}-{time.time_ns() % 10**9:09}"
            self.folder = Path(args.runs_folder, name.replace("/", "-").replace(":", "-"))
        self.args, self.signals, self.stopping, self.batch_size = args, signals, 0, args.num_envs * args.num_steps
        self.global_step, self.returns, self.saved = state["global_step"], state["returns"], state["parts"]
        self.updates_done = self.global_step // self.batch_size  # rounds down if the batch size was changed
        self.num_updates = self.updates_done + (args.total_timesteps - self.global_step) // self.batch_size

    def start(self, device, **parts):
        """Opens the log and restores the parts, which have load_state_dict() and a state_dict() that returns a dict."""
        self.lock = self.lock or FileLock(self.folder / "lock").acquire(timeout=0)  # creates the folder of a new run
        if self.args.track:
            import wandb  # pip install ".[track]"
            wandb.init(id=self.folder.resolve().name, resume="allow", sync_tensorboard=True, config=vars(self.args))
        self.parts, self.writer = parts, SummaryWriter(self.folder, purge_step=self.global_step + 1)
        atexit.register(self.writer.close)
        self.saved = self.saved or self.save()["parts"]  # a part that cannot be saved and loaded fails here
        saved_keys = [(name, key) for name, state in self.saved.items() for key in state.keys()]
        if saved_keys != (keys := [(name, key) for name, part in parts.items() for key in part.state_dict().keys()]):
            sys.exit(f"error: the checkpoint does not fit: {sorted({*saved_keys} ^ {*keys}) or 'the order differs'}")
        for name, part in parts.items():
            part.load_state_dict(self.saved[name])
        self.resumed or self.save()  # also gives a run that starts from another's checkpoint its own
        script, suffix = Path(__file__).resolve(), f"_{self.global_step:012}" if self.resumed else ""
        shutil.copyfile(script, self.folder / f"{script.stem}{suffix}.py")
        commit = subprocess.getoutput(f'git -C "{script.parent}" describe --always --dirty --abbrev=40 2>{os.devnull}')
        about = {"script": script.name, "command": sys.argv, "args": vars(self.args), "device": str(device)}
        about |= {"commit": commit, "versions": {p.name: p.version for p in importlib.metadata.distributions()}}
        (self.folder / f"run{suffix}.json").write_text(json.dumps(about, indent=2))
        print(f"{self.folder}: training on {device}; Ctrl-C stops, --resume {self.folder} continues", flush=True)
        for number in self.signals:
            signal.signal(number, self.stop)

    def stop(self, number, frame):
        """Ends the run after the update; the same signal again ends it at once."""
        self.stopping = number
        signal.signal(number, signal.SIG_DFL)

    def updates(self):
        """Yields the numbers of the updates, 1 to num_updates in a new run, and shows the progress."""
        kwargs = {"total": self.args.total_timesteps, "initial": self.global_step, "unit": " steps", "unit_scale": True}
        with tqdm(**kwargs, mininterval=1) as self.bar:
            for update in range(self.updates_done + 1, self.num_updates + 1):
                yield update
                self.bar.set_postfix_str(f"return {np.mean(self.returns or math.nan):.4g}", refresh=False)
                self.bar.update(self.batch_size)

    def log_step(self, infos):
        """Counts a step of all environments; logs the episodes that ended in it."""
        self.global_step += self.args.num_envs
        for i in np.flatnonzero((final := infos.get("final_info", {})).get("_episode", ())):  # where an episode ended
            self.returns = [*self.returns[-99:], float(final["episode"]["r"][i])]
            self.writer.add_scalar("charts/episodic_return", self.returns[-1], self.global_step)
            self.writer.add_scalar("charts/episodic_length", final["episode"]["l"][i], self.global_step)

    def log_update(self, scalars):
        """Logs the scalars of an update; ends the run if a loss or the gradient norm is not finite."""
        scalars["charts/SPS"] = (self.global_step - self.bar.initial) / self.bar.format_dict["elapsed"]
        for name, scalar in scalars.items():
            self.writer.add_scalar(name, scalar, self.global_step)
            if name.endswith(("loss", "norm")) and not math.isfinite(scalar):
                sys.exit(f"error: {name} is {scalar:g} in update {self.global_step // self.batch_size}")

    def save(self):
        """Writes a checkpoint, reads it back and renames it into place; keeps the newest two. Returns its state."""
        self.writer.flush()
        state = {"script": Path(__file__).name, "args": vars(self.args), "global_step": self.global_step}
        state |= {"returns": self.returns, "parts": {name: part.state_dict() for name, part in self.parts.items()}}
        with open(self.folder / "checkpoint.tmp", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        state = torch.load(file.name, map_location="cpu", weights_only=True)
        os.replace(file.name, self.folder / f"checkpoint_{self.global_step:012}.pt")
        for old in sorted(self.folder.glob(f"checkpoint_{'[0-9]' * 12}.pt"))[:-2]:
            old.unlink()
        return state


def main():
    """Trains with the options of the command line; after a stop, exits with 128 + the signal's number."""
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # None if closed
    make_run, args = globals().get("make_run", Run), tyro.cli(Args, description=__doc__)  # some scripts define make_run
    numbers = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}  # Windows has no SIGHUP
    # Child processes inherit SIG_IGN, which leaves Ctrl-C to this process; what nohup ignores stays ignored.
    run = make_run(args, [number for number in numbers if signal.signal(number, signal.SIG_IGN) != signal.SIG_IGN])
    with contextlib.ExitStack() as stack:  # kills the worker processes, which ignore signals, after an error too
        stack.callback(lambda: [process.kill() for process in multiprocessing.active_children()])
        train(run.args, run)
    sys.exit(128 + run.stopping if run.stopping else 0)


if __name__ == "__main__":
    main()
