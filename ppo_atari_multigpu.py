# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "filelock>=3.20", "gymnasium>=1.4", "numpy>=2.0", "tensorboard>=2.21", "torch>=2.13,<2.16", "tqdm>=4.67",
#   "tyro>=1.0",
#   "envpool>=1.2,<1.2.6",
# ]
# ///
"""PPO for Atari games in several processes, called ranks, which torchrun starts and which together make one run.

    torchrun --standalone --nproc-per-node 2 ppo_atari_multigpu.py --num-envs 8        (see docs/scale.md)

It makes the run that ppo_atari_envpool.py makes in one process, except for rounding.

Marks such as [core 5] refer to docs/details.md, paths such as ppo2/model.py to openai/baselines.
"""

import atexit
import contextlib
import ctypes
import dataclasses
import importlib.metadata
import io
import json
import math
import multiprocessing
import os
import pickle
import re
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from datetime import timedelta
from functools import partial
from pathlib import Path

import envpool
import filelock
import gymnasium as gym
import numpy as np
import torch
import torch.distributed as dist
import tyro
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm


@dataclasses.dataclass(frozen=True)
class Args:
    # run
    seed: int = 1  # seed of torch and of environment 0; environment i gets seed + i; a resume adds its step
    exp_name: str = Path(__file__).stem  # name of the experiment, part of the run folder's name
    runs_folder: str = "runs"  # folder in which the run's folder is created
    cuda: bool = True  # use a GPU if there is one
    tf32: bool = False  # allow TF32 on the GPU: faster, with a 10-bit mantissa
    bf16: bool = False  # compute the network up to its heads in bfloat16; slow where the hardware does not support it
    threads: int = torch.get_num_threads()  # number of CPU threads for torch in each rank [aux 2]
    compile: bool = False  # compile the gradient step: slow start, then mostly faster; on a CPU it needs a C++ compiler
    track: bool = False  # also log to Weights & Biases, which is configured by WANDB_MODE, WANDB_PROJECT, ...
    capture_video: bool = False  # record videos of environment 0, as the agent sees it, in the run's folder
    save_every: int = 100  # updates between checkpoints; 0 saves only at the start and the end
    resume: str | None = None  # the folder of a run to continue, or a checkpoint to continue in a new folder
    # environment
    env_id: str = "Breakout-v5"  # a game of EnvPool, <Game>-v5
    num_envs: int = 8  # number of parallel environments over all ranks, N [aux 2]
    frame_stack: int = 4  # number of frames in an observation [atari 7]
    machado: bool = False  # protocol of Machado et al. (2018): sticky actions, all 18 actions, episodes of whole games
    # rollout
    total_timesteps: int = 10_000_000  # number of steps (4 frames each) in total, over all environments [atari 2]
    num_steps: int = 128  # steps of each environment in a rollout, M
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalized advantage estimation
    bootstrap_truncated: bool = False  # bootstrap at time limits; if false, they are terminal states, as in ppo2
    # update
    learning_rate: float = 2.5e-4  # learning rate of Adam
    anneal_lr: bool = True  # anneal the learning rate linearly to 0 [core 4]
    num_minibatches: int = 4  # number of minibatches in an epoch
    update_epochs: int = 4  # number of epochs over each rollout
    clip_coef: float = 0.1  # clip range of the probability ratio and of the value
    anneal_clip: bool = False  # anneal the clip range linearly to 0 [aux 1]
    ent_coef: float = 0.01  # coefficient of the entropy bonus
    vf_coef: float = 0.5  # coefficient of the value loss
    max_grad_norm: float = 0.5  # maximum norm of the gradient
    target_kl: float | None = None  # end the update after an epoch whose last minibatch has a higher approx_kl [aux 3]


class EnvPool(gym.vector.VectorEnv):
    """[library] N games, stepped by C++ threads; the interface is that of gymnasium with AutoresetMode.SAME_STEP.

    EnvPool implements [atari 1] to [atari 5]; its no-ops, skipped frames and FIRE differ a little from ppo2's."""

    render_mode = "rgb_array"
    metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP, "render_fps": 15}

    def __init__(self, args):
        options = {"episodic_life": True}
        if args.machado:
            options = {"repeat_action_probability": 0.25, "full_action_space": True, "episodic_life": False}
        self.make = partial(envpool.make_gymnasium, args.env_id, num_envs=args.num_envs, stack_num=1, **options)
        self.pool = self.make(seed=args.seed % 2**31)  # reset() replaces it
        self.num_envs = args.num_envs
        self.single_action_space = self.pool.action_space
        self.single_observation_space = gym.spaces.Box(0, 255, (84, 84, args.frame_stack), np.uint8)

    def reset(self, seed=None, options=None):
        if seed is not None:  # EnvPool takes a seed only when it is created
            self.pool.close()
            self.pool = self.make(seed=seed % 2**31)
        frames, _ = self.pool.reset()
        self.scores = np.zeros(self.num_envs)
        self.lengths = np.zeros(self.num_envs, dtype=int)
        # [atari 7] the newest frames, oldest first, uint8 [frames, N, 84, 84]; black ones precede an episode's first
        self.frames = np.zeros((self.single_observation_space.shape[-1], *frames[:, 0].shape), dtype=np.uint8)
        self.frames[-1] = frames[:, 0]
        return np.stack(self.frames, axis=-1), {}

    def step(self, actions):
        frames, _, terminated, truncated, info = self.pool.step(actions)
        self.frames = np.concatenate((self.frames[1:], [frames[:, 0]]))
        self.scores += info["reward"]  # not clipped, and summed over the lives of a game
        self.lengths += 1
        infos = {}
        done = terminated | truncated
        if done.any():
            infos["final_obs"] = np.stack(self.frames, axis=-1)
            game_over = (info["terminated"] == 1) | truncated  # `terminated` is also true at the end of a life
            episode = {"r": self.scores.copy(), "l": self.lengths.copy()}
            infos["final_info"] = {"episode": episode, "_episode": game_over}
            self.scores[game_over] = 0
            self.lengths[game_over] = 0
            ended = np.flatnonzero(done)
            self.frames[:, ended] = 0
            # [core 1] EnvPool restarts a game in the step after its end; taking that step here makes it the same step
            first_frames, *_ = self.pool.step(np.zeros(len(ended), dtype=int), ended)
            self.frames[-1, ended] = first_frames[:, 0]
        rewards = np.sign(info["reward"])  # [atari 6] the sign of each reward
        return np.stack(self.frames, axis=-1), rewards, terminated, truncated, infos

    def render(self):
        """The newest frame of each game, uint8 [84, 84, 3], for videos."""
        return list(self.frames[-1, ..., None].repeat(3, axis=-1))

    def close(self):
        self.pool.close()


def make_envs(args, folder=None):
    """[core 1] [library] N games of EnvPool, with a video of the first one if asked for.

    folder: where --capture-video puts its videos; None records nothing."""
    envs = EnvPool(args)
    if args.capture_video and folder is not None:
        # videos of up to 1500 steps; gymnasium begins them with the episodes 0, 1, 8, 27, ..., 1000, 2000, ...
        videos = folder / time.strftime("videos-%Y%m%d-%H%M%S")
        envs = gym.wrappers.vector.RecordVideo(envs, videos, record_first_only=True, video_length=1500)
    return envs


class Categorical:
    """Distribution over A discrete actions, from logits float32 [B, A]."""

    def __init__(self, logits):
        self.logits = logits.log_softmax(-1)

    def sample(self, generator=None, rank=0, ranks=1):  # [aux 2]
        """Actions, int64 [B], drawn by the Gumbel-max trick (common/distributions.py)."""
        # [aux 2] each rank draws the noise of all ranks, so that actions are those of one process
        noise = self.logits.new_empty(ranks, *self.logits.shape).exponential_(generator=generator)
        gumbel = -noise[rank].log()  # [aux 2]
        return (self.logits + gumbel).argmax(-1)

    def mode(self):
        """The most likely actions, int64 [B]."""
        return self.logits.argmax(-1)

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


class Agent(nn.Module):
    """[core 13] [atari 8] Policy and value function as one network with two heads (common/policies.py)."""

    def __init__(self, envs, bf16=False):
        super().__init__()
        self.bf16 = bf16  # [speed] in the trunk; the weights stay float32
        channels = envs.single_observation_space.shape[-1]
        actions = envs.single_action_space.n
        self.trunk = nature_cnn(channels)
        self.policy = layer_init(nn.Linear(512, actions), std=0.01)
        self.value = layer_init(nn.Linear(512, 1), std=1.0)

    def forward(self, obs):
        """The policy and the values, float32 [B], of observations, uint8 [B, 84, 84, channels]."""
        frames = obs.movedim(-1, 1)
        pixels = (frames.bfloat16() if self.bf16 else frames.float()) / 255  # [atari 9] scaled to [0, 1]
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.bf16):  # [speed]
            features = self.trunk(pixels).float()
        return Categorical(self.policy(features)), self.value(features).squeeze(-1)


def gae(rewards, values, dones, next_value, gamma, gae_lambda):
    """[core 5] Generalized advantage estimation in numpy: the advantages, float32 [M, N] (ppo2/runner.py).

    rewards, values: float32 [M, N]; dones: bool [M, N], true where step t ended an episode. next_value: float32 [N], of
    the observation after the last step."""
    # 0 where step t ended an episode. It is float64, so the sums below are, too, as in ppo2.
    nonterminal = 1.0 - dones
    next_values = np.append(values[1:], [next_value], axis=0)
    deltas = rewards + gamma * next_values * nonterminal - values
    advantages = np.zeros_like(values)
    advantage = 0.0
    for t in reversed(range(len(deltas))):
        advantage = deltas[t] + gamma * gae_lambda * nonterminal[t] * advantage
        advantages[t] = advantage
    return advantages


def ppo_loss(agent, minibatch, args):
    """The loss of a minibatch, and a dict of scalars to log (ppo2/model.py).

    minibatch: obs and actions, [B, ...]; logprobs and values at the time of the rollout, and returns, float32 [B];
    [aux 2] all_advantages, the float32 advantages of the minibatch of all ranks.
    args: the options, with learning_rate and clip_coef as annealed; with --compile, floats are tensors."""
    policy, values, *_ = agent(minibatch["obs"])  # an edited agent may return more
    logratio = policy.log_prob(minibatch["actions"]) - minibatch["logprobs"]
    ratio = logratio.exp()

    # [core 7] per-minibatch normalization of advantages, by the population standard deviation
    advantages = minibatch["returns"] - minibatch["values"]  # ppo2 computes them again from the returns
    all_advantages = minibatch["all_advantages"]  # [aux 2] of the whole minibatch; this rank has some of its rows
    advantages = (advantages - all_advantages.mean()) / (all_advantages.std(correction=0) + 1e-8)  # [aux 2]
    assert ratio.shape == advantages.shape == values.shape  # each [B]: other shapes would broadcast

    # [core 8] clipped surrogate objective
    surrogate = advantages * ratio
    clipped_surrogate = advantages * ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    policy_loss = torch.max(-surrogate, -clipped_surrogate).mean()

    # [core 9] value function loss clipping
    change = (values - minibatch["values"]).clamp(-args.clip_coef, args.clip_coef)
    clipped_values = minibatch["values"] + change
    error = (values - minibatch["returns"]) ** 2
    clipped_error = (clipped_values - minibatch["returns"]) ** 2
    value_loss = 0.5 * torch.max(error, clipped_error).mean()

    # [core 10] overall loss and entropy bonus
    entropy = policy.entropy().mean()
    loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss

    # [core 12] debug variables, of which three estimate the KL divergence KL(old policy || new policy)
    with torch.no_grad():
        stats = dict(
            policy_loss=policy_loss,
            value_loss=value_loss,
            entropy=entropy,
            old_approx_kl=-logratio.mean(),  # unbiased, but noisy, and sometimes negative
            approx_kl=(ratio - 1 - logratio).mean(),  # unbiased, and never negative
            approx_kl_ppo2=(logratio**2).mean() / 2,  # ppo2's "approxkl": biased, and never negative
            clipfrac=((ratio - 1).abs() > args.clip_coef).float().mean(),
        )
    return loss, {name: scalar.detach() for name, scalar in stats.items()}  # the first three have a graph


class Adam:
    """[core 3] The state of Adam: means of the gradient and of its square, each one vector of all parameters."""

    def __init__(self, agent):
        self.parameters = [p for p in agent.parameters() if p.requires_grad]
        self.sizes = [p.numel() for p in self.parameters]
        self.mean = torch.cat([torch.zeros_like(p).flatten() for p in self.parameters])
        self.square = torch.zeros_like(self.mean)
        self.steps = torch.zeros((), dtype=torch.float64)  # a tensor, as a number would be compiled anew at each step

    def state_dict(self):
        return {"steps": self.steps, "mean": self.mean, "square": self.square}

    def load_state_dict(self, state):
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])


@torch.no_grad()
def adam_step(optimizer, gradient, learning_rate):
    """[core 3] Takes a step of Adam as TensorFlow does: epsilon is 1e-5, and is added before the bias correction.

    torch.optim.Adam would add it after: lr * m / (1 - 0.9^t) / (sqrt(v / (1 - 0.999^t)) + 1e-5). This is a function, so
    that torch.compile can compile it with the gradient. gradient: of all parameters, in one vector."""
    optimizer.steps += 1
    bias_correction = torch.sqrt(1 - 0.999**optimizer.steps) / (1 - 0.9**optimizer.steps)
    optimizer.mean.lerp_(gradient, 1 - 0.9)
    optimizer.square.lerp_(gradient.square(), 1 - 0.999)
    step = learning_rate * bias_correction * optimizer.mean / (optimizer.square.sqrt() + 1e-5)
    for parameter, part in zip(optimizer.parameters, step.split(optimizer.sizes, dim=-1), strict=True):
        parameter.sub_(part.view_as(parameter))


def all_gather(value):
    """[aux 2] The `value` of every rank, in rank order."""
    if not dist.is_initialized():
        return [value]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def from_rank_0(value):
    """[aux 2] The `value` of rank 0, on every rank."""
    if not dist.is_initialized():
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def sum_over_ranks(tensors, share):
    """[aux 2] Replaces tensors by their sums over the ranks, each rank's multiplied by its `share` of the minibatch.

    So means over the rows of each rank become means over the rows of all. With a share of 1, sums become sums."""
    if not dist.is_initialized():
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    flat = flat * share if share > 0 else torch.zeros_like(flat)  # a mean over no rows is NaN
    dist.all_reduce(flat)
    sums = flat.split([tensor.numel() for tensor in tensors])
    for tensor, total in zip(tensors, sums, strict=True):
        tensor.copy_(total.view_as(tensor))


def ended_episodes(infos):
    """[aux 2] The episodes that ended in a step, [(environment, return, length), ...]."""
    final_info = infos.get("final_info", {})
    if "_episode" not in final_info:
        return []
    returns = final_info["episode"]["r"]
    lengths = final_info["episode"]["l"]
    return [(i, returns[i], lengths[i]) for i in np.flatnonzero(final_info["_episode"])]


def joined_episodes(ends, num_envs):
    """[aux 2] Infos for Run.log_step(), with the episodes of several parts, of `num_envs` environments each.

    ends: of each part, what ended_episodes() returns. The environments of a part follow those of the part before."""
    ended = np.zeros(len(ends) * num_envs, dtype=bool)
    returns = np.zeros(len(ended))
    lengths = np.zeros(len(ended), dtype=int)
    for part, episodes in enumerate(ends):
        for i, episode_return, episode_length in episodes:
            row = part * num_envs + i
            ended[row] = True
            returns[row] = episode_return
            lengths[row] = episode_length
    return {"final_info": {"_episode": ended, "episode": {"r": returns, "l": lengths}}}


def gradient_step(agent, optimizer, minibatch, args):
    """Takes a step on the loss of a minibatch, and returns the scalars to log."""
    loss, stats = ppo_loss(agent, minibatch, args)
    # zeros for parameters that the loss does not use
    gradients = torch.autograd.grad(loss, optimizer.parameters, materialize_grads=True)
    gradient = torch.cat([part.flatten() for part in gradients])  # one vector, for which a step takes fewer calls
    share = len(minibatch["obs"]) / len(minibatch["all_advantages"])
    sum_over_ranks([gradient, *stats.values()], share)  # [aux 2]

    # [core 11] global gradient clipping
    stats["grad_norm"] = gradient.norm()
    scale = (args.max_grad_norm / (stats["grad_norm"] + 1e-6)).clamp(max=1.0)  # 1e-6 as in torch's clip_grad_norm_()
    adam_step(optimizer, gradient * scale, args.learning_rate)
    return stats


def floats_as_tensors(args):
    """The options with float64 tensors for floats, as torch.compile compiles anew for each value of a Python float."""
    floats = {name: value for name, value in vars(args).items() if isinstance(value, float)}
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in floats.items()}
    return dataclasses.replace(args, **tensors)


def keep_freed_memory():
    """[speed] Makes glibc keep freed memory for the next tensors, which saves page faults."""
    mallopt = getattr(ctypes.pythonapi, "mallopt", None)  # a function of glibc, which not every system has
    if mallopt is not None:
        M_MMAP_MAX = -4  # numbers of glibc's malloc.h
        M_TRIM_THRESHOLD = -1
        mallopt(M_MMAP_MAX, 0)  # no block comes from mmap(), whose blocks go back to the system when they are freed
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)  # and the end of the heap does not go back either


def train(args, run):
    """Trains an agent and returns it; `run` holds the run's folder, log, progress bar and checkpoints."""
    if not (0 <= args.gamma <= 1 and 0 <= args.gae_lambda <= 1):
        sys.exit("error: --gamma and --gae-lambda must be in [0, 1]")
    if args.clip_coef < 0 or args.max_grad_norm <= 0:
        sys.exit("error: --clip-coef must be at least 0, and --max-grad-norm above 0")
    # in a minibatch of one step, the normalized advantage would be 0
    if run.batch_size % args.num_minibatches or run.batch_size == args.num_minibatches:
        sys.exit(f"error: --num-minibatches must cut a rollout's {run.batch_size} steps into equal parts of 2 or more")
    keep_freed_memory()  # [speed]
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = args.tf32
    torch.backends.cuda.matmul.allow_tf32 = args.tf32
    # [aux 2] each rank has an equal part of the environments
    rank = dist.get_rank() if dist.is_initialized() else 0
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    if args.num_envs % ranks:
        sys.exit(f"error: --num-envs {args.num_envs} is not a multiple of {ranks} ranks")
    # [aux 2] from here on, N and args.num_envs are those of this rank; run.batch_size counts the steps of all
    args = dataclasses.replace(args, num_envs=args.num_envs // ranks, capture_video=args.capture_video and rank == 0)
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    torch.set_num_threads(args.threads)
    seed = args.seed + run.global_step  # so a resume does not repeat the random numbers of the start
    envs = make_envs(dataclasses.replace(args, seed=seed), run.folder)
    torch.manual_seed(seed)
    agent = Agent(envs, args.bf16).to(device)  # [speed] --bf16
    optimizer = Adam(agent)
    take_step = gradient_step
    if args.compile:
        torch._dynamo.config.trace_autograd_ops = True  # compiles torch.autograd.grad as well
        take_step = torch.compile(gradient_step)
    # Pass here, by name, what a resume must restore: objects with state_dict() and load_state_dict(). A run that is
    # resumed must have the same names, and the same keys in each state_dict().
    run.start(device, agent=agent, optimizer=optimizer)
    # The noise of actions and the permutations have a generator of their own, as an environment may seed torch's.
    # [aux 2] All ranks must draw the same numbers, so they take the seed of rank 0.
    generator_seed = from_rank_0(torch.randint(2**62, ()).item())
    generator = torch.Generator(device).manual_seed(generator_seed)
    # a resume starts new episodes; [aux 2] the environments of all ranks have consecutive seeds
    next_obs, _ = envs.reset(seed=seed + rank * args.num_envs)

    for update in run.updates():  # which also saves checkpoints between updates, and ends a run that is stopped
        # [core 4] annealing of the learning rate, and [aux 1] of the clip range
        remaining = 1.0 - (update - 1) / run.num_updates  # 1 in the first update, 1 / num_updates in the last
        learning_rate = args.learning_rate * (remaining if args.anneal_lr else 1.0)
        clip_coef = args.clip_coef * (remaining if args.anneal_clip else 1.0)
        annealed_args = dataclasses.replace(args, learning_rate=learning_rate, clip_coef=clip_coef)
        if args.compile:
            annealed_args = floats_as_tensors(annealed_args)

        # The rollout: the policy acts for M steps.
        steps = []
        rewards = np.zeros((args.num_steps, args.num_envs), dtype=np.float32)
        dones = np.zeros((args.num_steps, args.num_envs), dtype=bool)
        # [speed] With --bf16, the agent casts its weights to bfloat16 in an autocast block, and torch keeps the results
        # until the outermost such block ends. This block casts nothing itself: it keeps them for the whole rollout.
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            for t in range(args.num_steps):
                obs = torch.from_numpy(next_obs).to(device)  # needs no copy: each step() returns a new array
                # [speed] the trunk is expensive, so log probabilities and values are kept from this pass
                policy, value, *_ = agent(obs)
                action = policy.sample(generator, rank, ranks)  # [aux 2]
                # each name, [N, ...], becomes a column of the batch
                step = dict(obs=obs, actions=action, logprobs=policy.log_prob(action), values=value)
                steps.append(step)
                # a copy of the actions, as an environment may change them in place
                next_obs, reward, terminated, truncated, infos = envs.step(action.cpu().numpy().copy())
                rewards[t] = reward
                dones[t] = terminated | truncated
                if args.bootstrap_truncated:
                    # To gae() a time limit is an end. Adding gamma * V(the episode's last observation) to its last
                    # reward has the effect of bootstrapping there.
                    cut = truncated & ~terminated
                    if cut.any():
                        final_obs = torch.from_numpy(np.stack(infos["final_obs"][cut])).to(device)
                        _, final_value, *_ = agent(final_obs)
                        rewards[t, cut] += args.gamma * final_value.cpu().numpy()
                run.log_step(infos)

            # Row t * N + i of the batch is step t of environment i.
            batch = {name: torch.cat([step[name] for step in steps]) for name in steps[0]}
            values = batch["values"]  # [speed] kept from the rollout
            _, next_value, *_ = agent(torch.from_numpy(next_obs).to(device))

        # The update: epochs of gradient steps on minibatches of the rollout.
        values_by_step = values.view(rewards.shape).cpu().numpy()
        advantages = gae(rewards, values_by_step, dones, next_value.cpu().numpy(), args.gamma, args.gae_lambda)
        returns = torch.from_numpy(advantages).to(device).flatten() + values
        batch["returns"] = returns
        # [aux 2] the values and returns of this rank, then of all, each [M * ranks * N]
        values_and_returns = torch.stack([values, returns]).view(2, args.num_steps, args.num_envs)
        joined = torch.cat(all_gather(values_and_returns.cpu()), dim=-1)  # [2, M, ranks * N]
        all_values, all_returns = joined.flatten(1).to(device)
        all_advantages = all_returns - all_values
        stats = []
        for _ in range(args.update_epochs):
            # [core 6] minibatches of a new permutation in each epoch
            permutation = torch.randperm(run.batch_size, generator=generator, device=device)
            for rows in permutation.chunk(args.num_minibatches):
                # [aux 2] the rows of all ranks are [M, ranks, N], those of this rank's batch [M, N]
                t, owner, n = torch.unravel_index(rows, (args.num_steps, ranks, args.num_envs))
                rank_rows = (t * args.num_envs + n)[owner == rank]
                minibatch = {name: column.index_select(0, rank_rows) for name, column in batch.items()}
                minibatch["all_advantages"] = all_advantages[rows]
                stats.append(take_step(agent, optimizer, minibatch, annealed_args))
            if args.target_kl is not None and stats[-1]["approx_kl"] > args.target_kl:  # [aux 3]
                break

        # [core 12] means of the debug variables over the minibatches
        scalars = {f"losses/{name}": torch.stack([each[name] for each in stats]).mean() for name in stats[0]}
        # [aux 2] of all ranks
        scalars["losses/explained_variance"] = 1 - all_advantages.var() / all_returns.var()
        scalars["charts/learning_rate"] = learning_rate
        run.log_update(scalars)
    if dist.is_initialized():  # [aux 2]
        dist.destroy_process_group()
    envs.close()
    return agent


# That was PPO. The rest serves the run: options, folder, log, progress, checkpoints. It is the same in every script.

# The signals after which a run saves a checkpoint and ends. Slurm can send the last two before a job's time is up.
SIGNALS = [signal.SIGINT, signal.SIGTERM]
if sys.platform != "win32":
    SIGNALS += [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
# Options that a resume does not take from the checkpoint: they are of a machine or of a command.
NOT_RESUMED = {"resume", "cuda", "threads", "track", "runs_folder", "exp_name"}


def checkpoint_name(step):
    """The name of the checkpoint that is saved at a step; the order of names is that of steps."""
    return f"checkpoint_{step:012}.pt"


def checkpoint_files(folder):
    """The checkpoints in a run's folder, oldest first."""
    return sorted(folder.glob(f"checkpoint_{'[0-9]' * 12}.pt"))


def read_checkpoint(file):
    """The state in a checkpoint, or None if the file is damaged. Runs no code from it."""
    data = file.read_bytes()
    if not data.startswith(b"PK"):  # a checkpoint is a zip archive; torch.load() would try older formats
        return None
    try:
        if zipfile.ZipFile(io.BytesIO(data)).testzip() is None:  # the checksums, which torch.load() does not verify
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # the file holds objects whose loading could run code
        raise
    except Exception:  # damaged bytes raise errors of many kinds
        pass
    return None


def load_checkpoint(path):
    """The state in a checkpoint, or in the newest intact one of a run's folder."""
    if path.is_file():
        state = read_checkpoint(path)
        if state is not None:
            return state
    for file in reversed(checkpoint_files(path)):
        state = read_checkpoint(file)
        if state is not None and file.name == checkpoint_name(state["global_step"]):
            return state
        print(f"{file} is damaged, or another checkpoint under this name; the one before it is tried")
        file.rename(file.with_suffix(".damaged"))
    sys.exit(f"error: --resume {path}: there is no such file or folder, or no intact checkpoint")


def resumed_args(args, saved):
    """The options of a resume: those of the command line, and for the others the checkpoint's, {name: value}."""
    saved = {name: value for name, value in saved.items() if name in vars(args) and name not in NOT_RESUMED}
    env_id = saved.pop("env_id")
    # The command line is parsed again, with the checkpoint's values as defaults. An env_id of "" shows that the command
    # line names none.
    resumed = tyro.cli(Args, description=__doc__, default=dataclasses.replace(args, **saved, env_id=""))
    # ppo_seeds.py and the ranks of torchrun choose the folder themselves
    resumed = dataclasses.replace(resumed, resume=args.resume)
    if resumed.env_id != "":
        return resumed
    if ":" in env_id:  # gymnasium would import the module, so the command line must name it
        sys.exit(f"error: --resume {args.resume}: add --env-id {env_id} if you trust this module")
    return dataclasses.replace(resumed, env_id=env_id)


def resume_command(args, *folders):
    """The command that continues the runs in these folders, with what a resume does not take from a checkpoint."""
    command = ["python", sys.argv[0], "--resume", *map(str, folders)]
    if ":" in args.env_id:  # as resumed_args() demands
        command += ["--env-id", args.env_id]
    if not args.cuda:
        command.append("--no-cuda")
    if args.threads != Args.threads:
        command += ["--threads", str(args.threads)]
    if args.track:
        command.append("--track")
    return shlex.join(command)


def new_folder(args):
    """The path of a new run's folder; runs that begin in the same second have folders of their own."""
    now = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    name = f"{args.env_id}__{args.exp_name}__{args.seed}__{now}"
    folder = Path(args.runs_folder, re.sub(r"[^\w.+=,-]", "-", name))
    while folder.exists():  # a program may make several runs in one second
        folder = folder.with_name(f"{folder.name}+")
    return folder


def git_commit(folder):
    """The commit of a checkout, with "-dirty" after it if files have changed; "" if git does not tell it."""
    # --exclude=*: the commit's hash, even where a tag has a name for it
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:  # there is no git
        return ""


def write_file(path, data):
    """Writes bytes to the disk. A file of this name is replaced; so is a link, whose target stays as it is."""
    path.unlink(missing_ok=True)
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


class Run:
    """A run of the script: its folder, log, progress bar and checkpoints."""

    def __init__(self, args):
        """Prepares a new run, or one that continues: in the folder args.resume, or from the checkpoint args.resume.

        A new run has no folder before start(), unless it records videos."""
        self.script = Path(__file__).resolve()
        self.lock = None
        self.continues_folder = args.resume is not None and Path(args.resume).is_dir()
        if self.continues_folder:
            self.folder = Path(args.resume)
            self.lock_folder()  # before its checkpoints are read
        state = {"global_step": 0, "first_step": 0, "returns": [], "parts": None}
        if args.resume is not None:
            state = load_checkpoint(Path(args.resume))
            args = resumed_args(args, state["args"])
        if not self.continues_folder:
            self.folder = new_folder(args)
        elif (self.script.name, args.env_id) != (state["script"], state["args"]["env_id"]):
            sys.exit(f"error: {self.folder} is a run of {state['script']} on {state['args']['env_id']}")
        self.args = args
        self.saved_parts = state["parts"]  # the states that start() loads
        self.signal = None  # the number of the signal that ends the run
        self.complete = False
        # --total-timesteps counts from step 0. Updates and schedules count from first_step: 0, or the step of the
        # checkpoint from which a run with a folder of its own begins.
        self.global_step = state["global_step"]
        self.first_step = self.global_step
        self.returns = []  # of the last 100 episodes
        if self.continues_folder:
            self.first_step = state["first_step"]
            self.returns = state["returns"]
        self.batch_size = args.num_envs * args.num_steps
        self.updates_done = (self.global_step - self.first_step) // self.batch_size
        self.num_updates = self.updates_done + (args.total_timesteps - self.global_step) // self.batch_size
        if self.num_updates <= self.updates_done:
            end = self.global_step + self.batch_size
            sys.exit(f"error: --total-timesteps {args.total_timesteps} leaves no rollout; {end} or more are needed")

    def lock_folder(self):
        """Makes the folder, and keeps other processes from writing to it; raises filelock.Timeout if one does."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = filelock.FileLock(self.folder / "lock")
        self.lock.acquire(timeout=0)

    def start(self, device, **parts):
        """Restores the parts from the checkpoint, if there is one; opens the folder and the log; says so.

        A part has load_state_dict(), and a state_dict() that returns a dict."""
        self.parts = parts
        if self.saved_parts is not None:
            self.restore(self.saved_parts)  # before a new run has a folder: parts that do not fit leave none behind
        if self.lock is None:
            self.lock_folder()
        if self.args.track:
            import wandb  # pip install ".[track]"

            run_id = re.sub(r"[^\w-]", "-", self.folder.resolve().name)[-128:]
            wandb.init(id=run_id, resume="allow", sync_tensorboard=True, config=vars(self.args))
        # purge_step hides what an earlier process logged after the checkpoint
        self.writer = SummaryWriter(self.folder, purge_step=self.global_step + 1)
        atexit.register(self.writer.close)
        if not self.continues_folder:
            # so that a part that cannot be saved and loaded fails now, and not at the first resume
            self.restore(self.save())
        self.write_about(device)
        self.start_time = time.monotonic()
        self.start_step = self.global_step
        start = f" from step {self.global_step}" if self.global_step > 0 else ""
        command = resume_command(self.args, self.folder)
        print(f"{self.folder}: training on {device}{start}; Ctrl-C stops; to continue: {command}", flush=True)

    def restore(self, saved):
        """Loads saved states, {part: state}, into the parts; ends the program if they do not fit."""
        if not self.continues_folder:
            for name in self.parts.keys() - saved.keys():  # such as an agent of agents/, without optimizer
                print(f"{self.args.resume} has no {name}: it starts anew")
                saved = saved | {name: self.parts[name].state_dict()}
        # The order counts, too: the optimizer knows a parameter by its place.
        saved_keys = [(name, key) for name in sorted(saved) for key in saved[name]]
        keys = [(name, key) for name in sorted(self.parts) for key in self.parts[name].state_dict()]
        if saved_keys != keys:
            differing = sorted(set(saved_keys) ^ set(keys)) or "their order"
            sys.exit(f"error: the checkpoint does not fit: {differing}")
        for name, part in self.parts.items():
            part.load_state_dict(saved[name])

    def write_about(self, device):
        """Copies the script, and writes run.json; a resume gives both its step."""
        suffix = f"_{self.global_step:012}" if self.continues_folder else ""
        about = {
            "script": self.script.name,
            "command": sys.argv,
            "args": vars(self.args),
            "device": str(device),
            "commit": git_commit(self.script.parent),
            "versions": {package.name: package.version for package in importlib.metadata.distributions()},
        }
        write_file(self.folder / f"{self.script.stem}{suffix}.py", self.script.read_bytes())
        write_file(self.folder / f"run{suffix}.json", json.dumps(about, indent=2).encode())

    def stop(self, number, frame):
        """Ends the run after this update; the same signal again ends it at once."""
        self.signal = number
        signal.signal(number, signal.SIG_DFL)
        with contextlib.suppress(OSError):  # the terminal may be gone
            # not print(), which the signal may have interrupted
            os.write(2, b"\nstopping after this update; the same signal again ends the run at once\n")

    def updates(self):
        """Yields the numbers of the updates, 1 to num_updates in a new run; shows the progress, and saves where due."""
        total = self.args.total_timesteps
        with tqdm(total=total, initial=self.global_step, unit=" steps", unit_scale=True, mininterval=1) as bar:
            for update in range(self.updates_done + 1, self.num_updates + 1):
                yield update  # here train() makes its rollout and its update
                self.complete = update == self.num_updates
                stopping = self.signal is not None  # read once, as a signal may come between two lines
                due = self.args.save_every > 0 and update % self.args.save_every == 0
                if due or stopping or self.complete:
                    self.save()
                # after the save, as the bar fails where Ctrl-C has ended what reads it, such as tee
                if self.returns:
                    bar.set_postfix_str(f"return {np.mean(self.returns):.4g}", refresh=False)
                bar.update(self.batch_size)
                if stopping:
                    break
        self.writer.close()
        play = shlex.join(["python", "enjoy.py", str(self.folder)])
        hint = f"to play: {play}" if self.complete else f"to continue: {resume_command(self.args, self.folder)}"
        print(f"saved {checkpoint_files(self.folder)[-1]}; {hint}", flush=True)

    def log_step(self, infos):
        """Counts a step of all environments; logs the episodes that ended in it."""
        final_info = infos.get("final_info", {})
        if "_episode" in final_info:
            for i in np.flatnonzero(final_info["_episode"]):  # the environments in which a whole episode ended
                episode_return = float(final_info["episode"]["r"][i])
                self.returns = [*self.returns[-99:], episode_return]
                # a step of its own for each: Weights & Biases keeps one episode of a step
                step = self.global_step + int(i) + 1
                self.writer.add_scalar("charts/episodic_return", episode_return, step)
                self.writer.add_scalar("charts/episodic_length", final_info["episode"]["l"][i], step)
        self.global_step += self.args.num_envs

    def log_update(self, scalars):
        """Logs the scalars of an update; raises FloatingPointError if a loss or a norm is not finite."""
        scalars["charts/SPS"] = (self.global_step - self.start_step) / (time.monotonic() - self.start_time)
        for name, scalar in scalars.items():
            self.writer.add_scalar(name, scalar, self.global_step)
            if name.endswith(("loss", "norm")) and not math.isfinite(scalar):
                text = f"{name} is {scalar:g} at step {self.global_step}; the last checkpoint is kept"
                raise FloatingPointError(text)

    def save(self):
        """Writes a checkpoint, reads it back and renames it into place; keeps the newest two. Returns its parts."""
        self.writer.flush()
        state = {
            "script": self.script.name,
            "args": vars(self.args),
            "first_step": self.first_step,
            "global_step": self.global_step,
            "returns": self.returns,
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
        }
        data = io.BytesIO()
        torch.save(state, data)
        unfinished = self.folder / "checkpoint.tmp"
        write_file(unfinished, data.getvalue())
        # fails where a part holds what a resume could not load
        state = torch.load(unfinished, map_location="cpu", weights_only=True)
        os.replace(unfinished, self.folder / checkpoint_name(self.global_step))
        for old in checkpoint_files(self.folder)[:-2]:
            old.unlink()
        return state["parts"]


def main(create_run=Run):
    """Trains with the options of the command line; after a signal, exits with 128 + its number.

    create_run: makes the run from the options."""
    run = create_run(tyro.cli(Args, description=__doc__))
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup ignores SIGHUP
            signal.signal(number, run.stop)
    try:
        train(run.args, run)
    finally:
        for process in multiprocessing.active_children():  # workers ignore signals, and outlive an error
            process.kill()
    if run.signal is not None and not run.complete:
        sys.exit(128 + run.signal)


# [aux 2] The rest makes one run of several ranks: rank 0 does what a Run does, and the others follow it.


class RankRun(Run):
    """[aux 2] The run on one rank of torchrun. Rank 0 has the folder, log and progress bar; all ranks stop together."""

    def __init__(self, args):
        rank = dist.get_rank()
        fields = {}
        if rank == 0:
            # If it ends the program, torchrun ends the other ranks, which wait for the fields.
            super().__init__(continued_args(args))
            fields = {name: value for name, value in vars(self).items() if name != "lock"}  # a lock cannot be sent
        for name, value in from_rank_0(fields).items():
            setattr(self, name, value)
        self.rank = rank
        self.torchrun_pid = os.getppid()  # if torchrun ends, this process gets another parent
        self.received = None  # the number of a signal that has reached this rank
        self.ends = []  # for each step since the last update, the episodes that ended

    def start(self, device, **parts):
        """Starts the run on rank 0, and gives the state of its parts to those of all ranks."""
        states = {}
        if self.rank == 0:
            super().start(device, **parts)
            (self.folder / "rdzv-id").write_text(os.environ["TORCHELASTIC_RUN_ID"])
            states = {name: part.state_dict() for name, part in parts.items()}
        states = from_rank_0(states)
        for name, part in parts.items():
            part.load_state_dict(states[name])

    def stop(self, number, frame):
        """Ends the run of all ranks after this update.

        torchrun passes the signal on to the ranks, and kills those that have not ended after 30 seconds, or after as
        many as the variable TORCH_ELASTIC_SHUTDOWN_TIMEOUT says."""
        if self.rank == 0 and self.received is None:
            with contextlib.suppress(OSError):  # as in Run.stop()
                os.write(2, b"\nstopping after this update; torchrun may kill ranks that take more than 30 seconds\n")
        self.received = number

    def updates(self):
        """Yields the numbers of the updates; only rank 0 shows the progress and saves."""
        if self.rank == 0:
            yield from super().updates()
        else:
            for update in range(self.updates_done + 1, self.num_updates + 1):
                yield update
                if self.signal is not None:
                    break
        self.signal = None  # the exit status is 0, as torchrun would restart ranks that fail

    def log_step(self, infos):
        """Keeps the episodes that ended in a step for log_update()."""
        self.ends.append(ended_episodes(infos))

    def log_update(self, scalars):
        """Decides with all ranks whether to stop; rank 0 logs the episodes of all ranks, and the scalars."""
        if os.getppid() != self.torchrun_pid:
            self.received = signal.SIGTERM
        gathered = all_gather((self.received, self.ends))
        self.signal = next((received for received, _ in gathered if received is not None), None)
        self.ends = []
        if self.rank == 0:
            self.log_episodes([ends for _, ends in gathered])
            super().log_update(scalars)  # if it raises an error, torchrun ends the other ranks, which wait below
        # an edit of train() may read them on every rank
        self.global_step, self.returns = from_rank_0((self.global_step, self.returns))

    def log_episodes(self, ends_of_ranks):
        """Logs the episodes that ended since the last update, step by step, and of each step rank by rank."""
        num_envs = self.args.num_envs // len(ends_of_ranks)
        for ends_of_step in zip(*ends_of_ranks, strict=True):
            super().log_step(joined_episodes(ends_of_step, num_envs))


def continued_args(args):
    """[aux 2] The options; where a run with torchrun's --rdzv-id has begun, --resume becomes the folder of that run.

    RankRun.start() writes the id into the folder."""
    run_id = os.environ["TORCHELASTIC_RUN_ID"]
    files = sorted(Path(args.runs_folder).glob("*/rdzv-id"), key=os.path.getmtime)
    folders = [file.parent for file in files if file.read_text() == run_id]
    if run_id == "none" or not folders:  # "none" is torchrun's default
        return args
    print(f"--rdzv-id {run_id}: continues {folders[-1]}", flush=True)
    return dataclasses.replace(args, resume=str(folders[-1]))


def make_run(args):
    """[aux 2] Joins the process group of torchrun and creates the rank's run; without torchrun, an ordinary run."""
    if not dist.is_torchelastic_launched():
        if int(os.environ.get("WORLD_SIZE", 1)) > 1:  # each process would make the same run
            sys.exit("error: another launcher than torchrun has started several processes; see docs/scale.md")
        return Run(args)
    # Ranks that torchrun restarts find their run by its id. Without TORCH_DISABLE_SHARE_RDZV_TCP_STORE, torch 2.13
    # gives the new ranks the addresses of those that have ended.
    has_id = os.environ["TORCHELASTIC_RUN_ID"] != "none"
    new_store = os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == "1"
    if os.environ["TORCHELASTIC_MAX_RESTARTS"] != "0" and not (has_id and new_store):
        sys.exit("error: --max-restarts needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, and --standalone or --rdzv-id")
    local_rank = int(os.environ["LOCAL_RANK"])
    local_ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    gpus = torch.cuda.device_count()
    if gpus > 0:
        # each rank has an equal part of this machine's GPUs, and trains on the first of them
        gpus_per_rank = max(gpus // local_ranks, 1)
        torch.cuda.set_device(local_rank * gpus_per_rank % gpus)
    # NCCL does not let ranks share a GPU. All machines must choose the same backend, so they need the same GPUs.
    backend = "gloo" if gpus < local_ranks else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=timedelta(minutes=5))
    return RankRun(args)


if __name__ == "__main__":
    main(make_run)  # [aux 2]
