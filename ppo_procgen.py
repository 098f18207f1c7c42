# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "filelock>=3.20", "gymnasium>=1.4", "numpy>=2.0", "tensorboard>=2.21", "torch>=2.13,<2.16", "tqdm>=4.67",
#   "tyro>=1.0",
#   "envpool>=1.2,<1.2.6",
# ]
# ///
"""PPO for Procgen: ppo_shared.py with the IMPALA network of openai/baselines' ppo2 and with normalized rewards.

    python ppo_procgen.py --env-id starpilot        (--help lists every option)

Marks such as [core 5] refer to docs/details.md, paths such as ppo2/model.py to openai/baselines.
"""

import atexit
import contextlib
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
from functools import partial
from pathlib import Path

import envpool
import filelock
import gymnasium as gym
import numpy as np
import torch
import tyro
from gymnasium.wrappers.utils import RunningMeanStd
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm


@dataclasses.dataclass(frozen=True)
class Args:
    # run
    seed: int = 1  # seed of torch and of EnvPool, which gives each game its own from it; a resume adds its step
    exp_name: str = Path(__file__).stem  # name of the experiment, part of the run folder's name
    runs_folder: str = "runs"  # folder in which the run's folder is created
    cuda: bool = True  # use a GPU if there is one
    tf32: bool = False  # allow TF32 on the GPU: faster, with a 10-bit mantissa
    bf16: bool = False  # compute the network up to its heads in bfloat16; slow where the hardware does not support it
    threads: int = torch.get_num_threads()  # number of CPU threads for torch
    compile: bool = False  # compile the gradient step: slow start, then mostly faster; on a CPU it needs a C++ compiler
    track: bool = False  # also log to Weights & Biases, which is configured by WANDB_MODE, WANDB_PROJECT, ...
    capture_video: bool = False  # record videos of environment 0, as the agent sees it, in the run's folder
    save_every: int = 100  # updates between checkpoints; 0 saves only at the start and the end
    resume: str | None = None  # the folder of a run to continue, or a checkpoint to continue in a new folder
    # environment
    env_id: str = "starpilot"  # one of the 16 games of Procgen
    distribution_mode: str = "easy"  # easy or hard; some games also have extreme, memory or exploration
    num_levels: int = 0  # number of levels, one of which is drawn for each episode; 0 is unlimited
    start_level: int = 0  # seed of the first level; no effect if num_levels is 0
    num_envs: int = 64  # number of parallel environments, N
    # rollout
    total_timesteps: int = 25_000_000  # number of steps in total, over all environments
    num_steps: int = 256  # steps of each environment in a rollout, M
    gamma: float = 0.999  # discount factor
    reward_gamma: float = 0.99  # discount factor of the returns whose std divides the rewards; always 0.99 in ppo2
    gae_lambda: float = 0.95  # lambda of generalized advantage estimation
    bootstrap_truncated: bool = False  # bootstrap at time limits; if false, they are terminal states, as in ppo2
    # update
    learning_rate: float = 5e-4  # learning rate of Adam
    anneal_lr: bool = False  # anneal the learning rate linearly to 0 [core 4]
    num_minibatches: int = 8  # number of minibatches in an epoch
    update_epochs: int = 3  # number of epochs over each rollout
    clip_coef: float = 0.2  # clip range of the probability ratio and of the value
    anneal_clip: bool = False  # anneal the clip range linearly to 0 [aux 1]
    ent_coef: float = 0.01  # coefficient of the entropy bonus
    vf_coef: float = 0.5  # coefficient of the value loss
    max_grad_norm: float = 0.5  # maximum norm of the gradient
    target_kl: float | None = None  # end the update after an epoch whose last minibatch has a higher approx_kl [aux 3]


class EnvPool(gym.vector.VectorEnv):
    """[library] N games, stepped by C++ threads; the interface is that of gymnasium with AutoresetMode.SAME_STEP."""

    render_mode = "rgb_array"
    metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP, "render_fps": 15}

    def __init__(self, env_id, args):
        options = {"num_levels": args.num_levels, "start_level": args.start_level}
        self.make = partial(envpool.make_gymnasium, env_id, num_envs=args.num_envs, **options)
        self.pool = self.make(seed=args.seed % 2**31)  # reset() replaces it
        self.num_envs = args.num_envs
        self.single_observation_space = self.pool.observation_space
        self.single_action_space = self.pool.action_space

    def reset(self, seed=None, options=None):
        if seed is not None:  # EnvPool takes a seed only when it is created
            self.pool = self.make(seed=seed % 2**31)
        self.scores = np.zeros(self.num_envs)
        self.lengths = np.zeros(self.num_envs, dtype=int)
        self.obs, _ = self.pool.reset()
        return self.obs, {}

    def step(self, actions):
        obs, rewards, terminated, truncated, _ = self.pool.step(actions)
        self.scores += rewards
        self.lengths += 1
        infos = {}
        done = terminated | truncated
        if done.any():
            infos["final_obs"] = obs.copy()
            episode = {"r": self.scores.copy(), "l": self.lengths.copy()}
            infos["final_info"] = {"episode": episode, "_episode": done}
            self.scores[done] = 0
            self.lengths[done] = 0
            ended = np.flatnonzero(done)
            # [core 1] EnvPool restarts a game in the step after its end; taking that step here makes it the same step
            first_obs, *_ = self.pool.step(np.zeros(len(ended), dtype=int), ended)
            obs[ended] = first_obs
        self.obs = obs
        return obs, rewards, terminated, truncated, infos

    def render(self):
        """The observation of each game, uint8 [64, 64, 3], for videos."""
        return list(self.obs.transpose(0, 2, 3, 1))


class Normalize(gym.vector.VectorWrapper):
    """[continuous 8] Normalizes rewards, not observations, with statistics over all environments (VecNormalize).

    Rewards are divided by the standard deviation of `returns`, each environment's discounted sum of rewards so far.
    Their mean is not subtracted."""

    def __init__(self, envs, gamma):
        super().__init__(envs)
        self.return_stats = RunningMeanStd()
        self.gamma = gamma
        self.frozen = False  # frozen statistics are not updated, for an evaluation

    def reset(self, **kwargs):
        self.returns = np.zeros(self.num_envs)
        return self.env.reset(**kwargs)

    def step(self, actions):
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        self.returns = self.returns * self.gamma + rewards
        if not self.frozen:
            self.return_stats.update(self.returns)
        rewards = (rewards / np.sqrt(self.return_stats.var + 1e-8)).clip(-10, 10)  # [continuous 9] clipped
        self.returns[terminated | truncated] = 0
        return obs, rewards, terminated, truncated, infos

    def state_dict(self):
        """The statistics as plain numbers."""
        stats = self.return_stats
        return {"mean": float(stats.mean), "var": float(stats.var), "count": float(stats.count)}

    def load_state_dict(self, state):
        """Restores the statistics of `state_dict`."""
        self.return_stats.mean = state["mean"]
        self.return_stats.var = state["var"]
        self.return_stats.count = state["count"]


def make_envs(args, folder=None):
    """[core 1] [library] N games of EnvPool with normalized rewards, and a video of the first one if asked for.

    folder: where --capture-video puts its videos; None records nothing."""
    # EnvPool's names are such as StarpilotEasy-v0
    envs = EnvPool(f"{args.env_id.title()}{args.distribution_mode.title()}-v0", args)
    if args.capture_video and folder is not None:
        # videos of up to 1000 steps; gymnasium begins them with the episodes 0, 1, 8, 27, ..., 1000, 2000, ...
        videos = folder / time.strftime("videos-%Y%m%d-%H%M%S")
        envs = gym.wrappers.vector.RecordVideo(envs, videos, record_first_only=True, video_length=1000)
    return Normalize(envs, args.reward_gamma)  # [continuous 8]


class Categorical:
    """Distribution over A discrete actions, from logits float32 [B, A]."""

    def __init__(self, logits):
        self.logits = logits.log_softmax(-1)

    def sample(self, generator=None):
        """Actions, int64 [B], drawn by the Gumbel-max trick (common/distributions.py)."""
        noise = torch.empty_like(self.logits).exponential_(generator=generator)
        gumbel = -noise.log()
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


class Residual(nn.Sequential):
    """[procgen 1] A ReLU, then layers, and a skip connection around both, float32 [B, depth, H, W] to the same."""

    def forward(self, x):
        return super().forward(x.relu()).add_(x)


def impala_cnn(channels):
    """[procgen 1] Network of Espeholt et al. (2018), float32 [B, channels, 64, 64] to [B, 256] (common/models.py)."""
    layers = []
    for inputs, depth in ((channels, 16), (16, 32), (32, 32)):
        layers.append(nn.Conv2d(inputs, depth, 3, padding=1))
        layers.append(nn.MaxPool2d(3, stride=2, ceil_mode=True))  # pads the bottom and right only, as in TensorFlow
        for _ in range(2):
            first = nn.Conv2d(depth, depth, 3, padding=1)
            second = nn.Conv2d(depth, depth, 3, padding=1)
            layers.append(Residual(first, nn.ReLU(inplace=True), second))
    # Flatten stands before the ReLU, as in ppo2; [speed] so the gradient has the memory order of the activations
    network = nn.Sequential(*layers, nn.Flatten(), nn.ReLU(), nn.Linear(32 * 8 * 8, 256), nn.ReLU())
    for name, weights in network.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(weights)
        else:
            nn.init.xavier_uniform_(weights)  # as in tf.layers
    return network.to(memory_format=torch.channels_last)


class Agent(nn.Module):
    """[core 13] [procgen 1] Policy and value function as one network with two heads (common/policies.py)."""

    def __init__(self, envs, bf16=False):
        super().__init__()
        self.bf16 = bf16  # [speed]
        channels = envs.single_observation_space.shape[0]
        actions = envs.single_action_space.n
        self.trunk = impala_cnn(channels)
        self.policy = layer_init(nn.Linear(256, actions), std=0.01)
        self.value = layer_init(nn.Linear(256, 1), std=1.0)

    def forward(self, obs):
        """The policy and the values, float32 [B], of observations, uint8 [B, channels, 64, 64]."""
        images = obs.to(memory_format=torch.channels_last)
        # [speed] a CPU takes 64 images at a time, which needs less memory; torch.export cannot trace a loop over parts
        parts = images.split(64) if images.is_cpu and not torch.compiler.is_exporting() else [images]
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.bf16):
            features = torch.cat([self.trunk(part.float() / 255) for part in parts]).float()
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

    minibatch: obs and actions, [B, ...]; logprobs and values at the time of the rollout, and returns, float32 [B].
    args: the options, with learning_rate and clip_coef as annealed; with --compile, floats are tensors."""
    policy, values, *_ = agent(minibatch["obs"])  # an edited agent may return more
    logratio = policy.log_prob(minibatch["actions"]) - minibatch["logprobs"]
    ratio = logratio.exp()

    # [core 7] per-minibatch normalization of advantages, by the population standard deviation
    advantages = minibatch["returns"] - minibatch["values"]  # ppo2 computes them again from the returns
    advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
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


def gradient_step(agent, optimizer, minibatch, args):
    """Takes a step on the loss of a minibatch, and returns the scalars to log."""
    loss, stats = ppo_loss(agent, minibatch, args)
    # zeros for parameters that the loss does not use
    gradients = torch.autograd.grad(loss, optimizer.parameters, materialize_grads=True)
    gradient = torch.cat([part.flatten() for part in gradients])  # one vector, for which a step takes fewer calls

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


def train(args, run):
    """Trains an agent and returns it; `run` holds the run's folder, log, progress bar and checkpoints."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:  # each process would make the same run
        sys.exit("error: several processes need ppo_atari_multigpu.py or a script made from it (docs/scale.md)")
    if not (0 <= args.gamma <= 1 and 0 <= args.gae_lambda <= 1 and 0 <= args.reward_gamma <= 1):  # [continuous 8]
        sys.exit("error: --gamma, --gae-lambda and --reward-gamma must be in [0, 1]")
    if args.clip_coef < 0 or args.max_grad_norm <= 0:
        sys.exit("error: --clip-coef must be at least 0, and --max-grad-norm above 0")
    # in a minibatch of one step, the normalized advantage would be 0
    if run.batch_size % args.num_minibatches or run.batch_size == args.num_minibatches:
        sys.exit(f"error: --num-minibatches must cut a rollout's {run.batch_size} steps into equal parts of 2 or more")
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = args.tf32
    torch.backends.cuda.matmul.allow_tf32 = args.tf32
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
    run.start(device, agent=agent, optimizer=optimizer, envs=envs)  # [continuous 8] the statistics
    # The noise of actions and the permutations have a generator of their own, as an environment may seed torch's.
    generator = torch.Generator(device).manual_seed(torch.randint(2**62, ()).item())
    next_obs, _ = envs.reset(seed=seed)  # a resume starts new episodes

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
                action = policy.sample(generator)
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
        stats = []
        for _ in range(args.update_epochs):
            # [core 6] minibatches of a new permutation in each epoch
            permutation = torch.randperm(run.batch_size, generator=generator, device=device)
            for rows in permutation.chunk(args.num_minibatches):
                minibatch = {name: column.index_select(0, rows) for name, column in batch.items()}
                stats.append(take_step(agent, optimizer, minibatch, annealed_args))
            if args.target_kl is not None and stats[-1]["approx_kl"] > args.target_kl:  # [aux 3]
                break

        # [core 12] means of the debug variables over the minibatches
        scalars = {f"losses/{name}": torch.stack([each[name] for each in stats]).mean() for name in stats[0]}
        scalars["losses/explained_variance"] = 1 - (returns - values).var() / returns.var()
        scalars["charts/learning_rate"] = learning_rate
        run.log_update(scalars)
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


if __name__ == "__main__":
    main()
