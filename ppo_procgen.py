# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "filelock>=3.20", "gymnasium>=1.4", "numpy>=2.0", "tensorboard>=2.20", "torch>=2.13,<2.16", "tqdm>=4.67",
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
import difflib
import importlib.metadata
import io
import json
import math
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
import zipfile
from functools import partial
from pathlib import Path

try:
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
except ImportError as error:
    sys.exit(f'error: {error}; this installs what is missing: pip install -c constraints.txt ".[procgen]"')
if "__file__" not in globals():
    sys.exit("error: a run copies its script, so save this text as a file: in a notebook, %%writefile my_ppo.py")


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
    compile: bool = False  # compile the gradient step: slow start, faster updates; on a CPU it needs a C++ compiler
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
    # [check] EnvPool's names are such as StarpilotEasy-v0
    modes = {}  # the distribution modes of each game
    for name, (module, *_) in envpool.registration.registry.specs.items():
        if module == "envpool.procgen":
            game, mode = re.findall("[A-Z][a-z]+", name)
            modes.setdefault(game.lower(), []).append(mode.lower())
    if args.env_id not in modes:
        near = ", ".join(difflib.get_close_matches(args.env_id, modes)) or ", ".join(modes)
        sys.exit(f"error: EnvPool has no Procgen game {args.env_id}; it has {near}")
    if args.distribution_mode not in modes[args.env_id]:
        known = ", ".join(modes[args.env_id])
        sys.exit(f"error: {args.env_id} has no --distribution-mode {args.distribution_mode}; it has {known}")
    envs = EnvPool(f"{args.env_id.title()}{args.distribution_mode.title()}-v0", args)
    if args.capture_video and folder is not None:
        # videos of 1000 steps, which begin with the episodes 0, 1, 8, 27, ..., 1000, 2000, ...
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
        return (self.logits - noise.log()).argmax(-1)  # -log of exponential noise is Gumbel noise

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
    """[procgen 1] Layers with a skip connection, float32 [B, depth, H, W] to the same shape."""

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
    # [speed] Flatten stands before the ReLU, so that the gradient has the memory order of the activations
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


def gae(rewards, values, dones, next_value, next_done, gamma, gae_lambda):
    """[core 5] Generalized advantage estimation in numpy: the advantages, float32 [M, N] (ppo2/runner.py).

    rewards, values: float32 [M, N]; dones: bool [M, N]; dones[t] is true where an episode ended in step t - 1, and
    dones[0] is not used. next_value: float32 [N], of the observation after the last step. next_done: bool [N], true
    where an episode ended in the last step.
    """
    next_values = np.append(values[1:], [next_value], axis=0)
    next_dones = np.append(dones[1:], [next_done], axis=0)
    nonterminal = 1.0 - next_dones  # float64, as the sums below; 0 where the next observation begins an episode
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
    args: the options; with --compile, floats are tensors."""
    policy, values, *_ = agent(minibatch["obs"])  # an edited agent may return more
    logratio = policy.log_prob(minibatch["actions"]) - minibatch["logprobs"]
    ratio = logratio.exp()

    # [core 7] per-minibatch normalization of advantages, by the population standard deviation
    advantages = minibatch["returns"] - minibatch["values"]  # as in ppo2; equal to gae()'s up to rounding
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
    return loss, {name: scalar.detach() for name, scalar in stats.items()}


class Adam:
    """[core 3] The state of Adam: running means of the gradient and of its square, each one vector of all parameters.

    adam_step() takes the steps. It is a function, so that torch.compile can compile it together with the gradient.
    torch.optim.Adam would add epsilon after the bias correction; TensorFlow adds it before."""

    def __init__(self, agent):
        self.parameters = {name: p for name, p in agent.named_parameters() if p.requires_grad}
        self.mean = torch.cat([torch.zeros_like(p).flatten() for p in self.parameters.values()])
        self.square = torch.zeros_like(self.mean)
        self.steps = torch.zeros((), dtype=torch.float64)  # a tensor, as a number would be compiled anew at each step

    def split(self, vector):
        """The parts of a vector of all parameters, {name: a view in the parameter's shape}."""
        sizes = [p.numel() for p in self.parameters.values()]
        parts = {}
        for (name, parameter), part in zip(self.parameters.items(), vector.split(sizes), strict=True):
            parts[name] = part.view_as(parameter)
        return parts

    def state_dict(self):
        """The state as a dict of tensors."""
        means = {f"mean of {name}": mean for name, mean in self.split(self.mean).items()}
        squares = {f"square of {name}": square for name, square in self.split(self.square).items()}
        return {"steps": self.steps} | means | squares

    def load_state_dict(self, state):
        """Restores the state of `state_dict`."""
        for name, tensor in self.state_dict().items():
            if state[name].shape != tensor.shape:  # copy_() would repeat a smaller tensor
                raise RuntimeError(f"{name} has the shape {list(state[name].shape)}, not {list(tensor.shape)}")
            tensor.copy_(state[name])


@torch.no_grad()
def adam_step(optimizer, gradient, learning_rate):
    """[core 3] Takes a step of Adam as TensorFlow does: epsilon is 1e-5, and is added before the bias correction.

    gradient: of all parameters, in one vector."""
    optimizer.steps += 1
    bias_correction = torch.sqrt(1 - 0.999**optimizer.steps) / (1 - 0.9**optimizer.steps)
    optimizer.mean.lerp_(gradient, 1 - 0.9)
    optimizer.square.lerp_(gradient.square(), 1 - 0.999)
    step = learning_rate * bias_correction * optimizer.mean / (optimizer.square.sqrt() + 1e-5)
    for name, part in optimizer.split(step).items():
        optimizer.parameters[name].sub_(part)


def gradient_step(agent, optimizer, minibatch, args):
    """Takes a step on the loss of a minibatch, and returns the scalars to log."""
    loss, stats = ppo_loss(agent, minibatch, args)
    parameters = list(optimizer.parameters.values())
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)  # zeros for what the loss does not use
    gradient = torch.cat([part.flatten() for part in gradients])  # one vector, for which a step takes fewer calls

    # [core 11] global gradient clipping
    stats["grad_norm"] = gradient.norm()
    scale = (args.max_grad_norm / (stats["grad_norm"] + 1e-6)).clamp(max=1.0)
    adam_step(optimizer, gradient * scale, args.learning_rate)
    return stats


def floats_as_tensors(args):
    """The options with float64 tensors for floats, as torch.compile compiles anew for each value of a Python float."""
    floats = {name: value for name, value in vars(args).items() if isinstance(value, float)}
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in floats.items()}
    return dataclasses.replace(args, **tensors)


def train(args, run):
    """Trains an agent and returns it; `run` holds the run's folder, log, progress bar and checkpoints."""
    if not (0 <= args.gamma <= 1 and 0 <= args.gae_lambda <= 1 and args.clip_coef >= 0 and args.max_grad_norm > 0):
        sys.exit("error: --gamma and --gae-lambda must be in [0, 1], --clip-coef at least 0, --max-grad-norm above 0")
    # in a minibatch of one step, the normalized advantage would be 0
    if run.batch_size % args.num_minibatches or run.batch_size == args.num_minibatches:
        sys.exit(f"error: --num-minibatches must cut a rollout's {run.batch_size} steps into equal parts of 2 or more")
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = args.tf32
    torch.backends.cuda.matmul.allow_tf32 = args.tf32
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)  # a process that is forked while torch has more threads may hang
    envs = make_envs(args, run.folder)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed + run.global_step)
    if envs.metadata.get("autoreset_mode") not in (None, gym.vector.AutoresetMode.SAME_STEP):  # [check]
        sys.exit("error: the rollout needs AutoresetMode.SAME_STEP, and make_envs() returns another mode")
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
    next_obs, _ = envs.reset(seed=args.seed + run.global_step)  # a resume starts new episodes
    next_done = np.zeros(args.num_envs, dtype=bool)  # before the first step, no episode has ended

    for update in run.updates():  # which also saves checkpoints between updates, and ends a run that is stopped
        # [core 4] annealing of the learning rate, and [aux 1] of the clip range
        remaining = 1.0 - (update - 1.0) / run.num_updates  # from 1 to 1 / num_updates
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
                step = dict(obs=obs, actions=action, logprobs=policy.log_prob(action), values=value)
                steps.append(step)
                dones[t] = next_done
                # a copy of the actions, as an environment may change them in place
                next_obs, reward, terminated, truncated, infos = envs.step(action.cpu().numpy().copy())
                next_done = terminated | truncated
                rewards[t] = reward
                if args.bootstrap_truncated:
                    # gae() takes a time limit for an end: gamma * V(last observation) in the reward makes up for it
                    cut = truncated & ~terminated
                    if cut.any():
                        final_obs = torch.from_numpy(np.stack(infos["final_obs"][cut])).to(device)
                        _, final_value, *_ = agent(final_obs)
                        rewards[t, cut] += args.gamma * final_value.cpu().numpy()
                run.log_step(infos)

            batch = {name: torch.cat([step[name] for step in steps]) for name in steps[0]}  # each [M * N, ...]
            values = batch["values"]  # [speed] kept from the rollout
            _, next_value, *_ = agent(torch.from_numpy(next_obs).to(device))

        # The update: epochs of gradient steps on minibatches of the rollout.
        advantages = gae(
            rewards,
            values.view(rewards.shape).cpu().numpy(),
            dones,
            next_value.cpu().numpy(),
            next_done,
            args.gamma,
            args.gae_lambda,
        )
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


# That was PPO. The rest serves the run: options, folder, log, progress, checkpoints. Up to the end of main() it is the
# same in every script.

# The signals after which a run saves a checkpoint and ends. Slurm can send the last two before a job's time is up.
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
# Options of any script that a resume does not take from the checkpoint: they are of a machine or of a command.
NOT_RESUMED = {"resume", "cuda", "threads", "actor_device", "track", "runs_folder", "exp_name"}
# Options that a folder's name does not list, even where they differ from the defaults.
NOT_IN_NAME = NOT_RESUMED | {"env_id", "seed", "total_timesteps", "save_every", "capture_video", "compile"}
# Integer options of any script that may be 0; all others must be at least 1.
MAY_BE_ZERO = {"seed", "save_every", "num_levels", "start_level"}


def check_options(args):
    """Ends the program if an integer among the options is too small."""
    for name, value in vars(args).items():
        smallest = 0 if name in MAY_BE_ZERO else 1
        # type(), as isinstance() also takes a bool for an int
        if type(value) is int and value < smallest:
            sys.exit(f"error: --{name.replace('_', '-')} {value}: the smallest possible value is {smallest}")


def check_single_process():
    """Ends the program if a launcher started it several times, as each process would make the same run."""
    for name in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE"):
        if os.environ.get(name, "1") not in ("", "0", "1"):
            hint = "several processes need torchrun and a script made for it: ppo_atari_multigpu.py (docs/scale.md)"
            sys.exit(f"error: {name}={os.environ[name]}: {hint}")


def checkpoint_files(folder):
    """The checkpoints in a run's folder, oldest first."""
    return sorted(folder.glob(f"checkpoint_{'[0-9]' * 12}.pt"))


def is_intact(data):
    """Whether the bytes of a checkpoint, which is a zip archive, agree with their checksums."""
    try:
        return zipfile.ZipFile(io.BytesIO(data)).testzip() is None
    except MemoryError:
        raise
    except Exception:  # damaged bytes raise errors of many kinds
        return False


def load_checkpoint(path):
    """The state in a checkpoint, or in the newest intact one of a run's folder. Runs no code from it."""
    if not path.exists():
        sys.exit(f"error: --resume {path}: there is no such file or folder")
    files = [path] if path.is_file() else reversed(checkpoint_files(path))
    for file in files:
        data = file.read_bytes()  # an OSError ends the run: it does not mean that the file is damaged
        if is_intact(data):  # torch.load does not verify the checksums
            state = read_state(data, file)
            if state is not None:
                return state
        print(f"{file} is damaged")
        if file != path:  # a file that was named keeps its name
            renamed = file.rename(file.with_suffix(".damaged"))
            print(f"it is now {renamed}, and the checkpoint before it is tried")
    sys.exit(f"error: --resume {path}: there is no intact checkpoint")


def read_state(data, file):
    """The state in the bytes of a checkpoint; None if torch finds its format damaged."""
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except RuntimeError as error:
        if "PytorchStreamReader" in str(error):
            return None
        raise
    except pickle.UnpicklingError:
        text = "this holds objects whose loading could run code; a checkpoint of these scripts holds none"
        sys.exit(f"error: --resume {file}: {text}")
    keys = {"script", "args", "global_step", "returns", "parts"}
    if not isinstance(state, dict) or not keys <= state.keys():
        sys.exit(f"error: --resume {file}: this is not a checkpoint of these scripts")
    return state


def resumed_args(args, state):
    """The options of a resume: those of the command line, and for the others the checkpoint's.

    The name of an environment in a module, "module:Id", must be on the command line, as it runs the module's code."""
    names = (vars(args).keys() & state["args"].keys()) - NOT_RESUMED
    saved = {name: state["args"][name] for name in names}
    saved_env_id = saved.pop("env_id")
    # The command line is parsed a second time: an option that it does not name now takes the checkpoint's value.
    default = dataclasses.replace(args, **saved, env_id="")  # stays "" if the command line names no environment
    resumed = tyro.cli(Args, description=__doc__, default=default)
    # Where torchrun restarts a run, args.resume is the folder of the run, whatever the command line has.
    resumed = dataclasses.replace(resumed, resume=args.resume)
    if resumed.env_id == "":
        if ":" in saved_env_id:  # gymnasium would import the module
            sys.exit(f"error: --resume {args.resume}: add --env-id {saved_env_id} if you trust this module")
        resumed = dataclasses.replace(resumed, env_id=saved_env_id)
    return resumed


def option_defaults(args):
    """The defaults of the options, {name: value}, without those of options that must be given."""
    defaults = {}
    for field in dataclasses.fields(args):
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory()
    return defaults


def new_folder(args):
    """The path of a new run's folder: environment, experiment, seed, changed options, and time."""
    defaults = option_defaults(args)
    changed = []
    for name, value in vars(args).items():
        is_default = name in defaults and value == defaults[name]
        if name not in NOT_IN_NAME and not is_default:
            changed.append(f"{name}={value}")
    options = ",".join(changed)
    if len(options) > 100:  # a folder's name may have 255 characters, with the other words
        options = options[:100].rpartition(",")[0]
    words = [args.env_id, args.exp_name, str(args.seed), options, time.strftime("%Y%m%d-%H%M%S")]
    name = re.sub(r"[^\w.+=,-]", "-", "__".join(word for word in words if word))
    if Path(args.runs_folder, name).exists():
        name += f"-{time.time_ns() % 10**9:09}"
    return Path(args.runs_folder, name)


def torch_settings():
    """The settings of a whole process that an agent needs, by their names: an environment might change them."""
    return {"default dtype": torch.get_default_dtype(), "gradient mode": torch.is_grad_enabled()}


def state_keys(states):
    """[(part, key), ...] of the states of a run's parts, in order."""
    return [(part, key) for part, state in states.items() for key in state]


def without_numpy(value, name):
    """The state of a part with numpy's numbers as Python's; ends the program if there is a numpy array in it."""
    if isinstance(value, dict):
        return {key: without_numpy(each, f"{name}, {key}") for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(without_numpy(each, name) for each in value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        sys.exit(f"error: part {name}: a checkpoint cannot hold numpy arrays; state_dict() may return .tolist()")
    return value


class Run:
    """A run of the script: its folder, log, progress bar and checkpoints."""

    def __init__(self, args):
        """Prepares a new run, or one that continues.

        If args.resume is the folder of a run, this run continues in that folder. If args.resume is a checkpoint, a new
        run, in a folder of its own, begins with the checkpoint's parts. A new run has no folder before start(), unless
        it records videos, so that wrong options leave none behind."""
        self.script = Path(__file__).resolve()
        self.lock = None
        self.continues_folder = args.resume is not None and Path(args.resume).is_dir()
        if self.continues_folder:
            self.folder = Path(args.resume)
            self.lock_folder()
        state = {"global_step": 0, "returns": [], "parts": None}
        if args.resume is not None:
            state = load_checkpoint(Path(args.resume))
            args = resumed_args(args, state)
        check_options(args)
        if self.continues_folder:
            saved_run = (state["script"], state["args"]["env_id"])
            if (self.script.name, args.env_id) != saved_run:
                text = f"this is a run of {saved_run[0]} on {saved_run[1]}, not of {self.script.name} on {args.env_id}"
                sys.exit(f"error: --resume {args.resume}: {text}")
        else:
            self.folder = new_folder(args)

        self.args = args
        self.torch_settings = torch_settings()
        # The states that start() loads into the parts: the checkpoint's. An entirely new run loads those of its own
        # first checkpoint, to see that it can be loaded.
        self.saved = state["parts"]
        self.returns = []  # of the last 100 episodes
        self.global_step = state["global_step"]
        # The step at which the run began: 0, or the step of the checkpoint that a new run began with.
        self.first_step = self.global_step
        if self.continues_folder:
            self.returns = state["returns"]
            self.first_step = state.get("first_step", 0)
        self.batch_size = args.num_envs * args.num_steps
        self.count_updates()
        self.started = False
        self.stopping = False
        self.complete = False
        self.exit_status = 0
        self.episodes_in_update = 0

    def count_updates(self):
        """Counts the updates from first_step, where schedules begin as well; ends the program if none is left."""
        # Rounded down, as a resume with another batch size may begin between two multiples of it.
        self.updates_done = (self.global_step - self.first_step) // self.batch_size
        self.num_updates = self.updates_done + (self.args.total_timesteps - self.global_step) // self.batch_size
        if self.num_updates <= self.updates_done:
            text = f"no rollout of {self.batch_size} steps fits from step {self.global_step} to --total-timesteps"
            end = self.global_step + self.batch_size
            sys.exit(f"error: {text} {self.args.total_timesteps}; {end} or more are needed")

    def lock_folder(self):
        """Keeps other processes from writing to this run; creates the folder of a new one."""
        try:
            self.lock = filelock.FileLock(self.folder / "lock").acquire(timeout=0)  # creates the folder, too
        except filelock.Timeout:
            if self.continues_folder:
                sys.exit(f"error: {self.folder / 'lock'} is held by another process, which writes to this run")
            # Another run took this name in the same second. Its folder exists by now, so the next name differs.
            self.folder = new_folder(self.args)
            self.lock_folder()
        except OSError as error:  # the folder cannot be written to
            sys.exit(f"error: {self.folder}: {error}")

    def start(self, device, **parts):
        """Restores the parts from the checkpoint, if there is one; opens the folder and the log; says so.

        A part has load_state_dict(), and a state_dict() that returns a dict."""
        self.check_torch()
        self.parts = parts
        if self.saved is not None:
            self.restore()  # before a new run has a folder, so that parts that do not fit leave none behind
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
            state = self.save()
            if self.saved is None:  # an entirely new run: a part that cannot be saved and loaded fails here
                self.saved = state["parts"]
                self.restore()
        self.write_about(device)
        self.started = True
        print(f"{self.folder}: training on {device}; Ctrl-C stops, --resume {self.folder} continues", flush=True)

    def check_torch(self):
        """Ends the program if an environment has changed what the agent needs of torch."""
        for name, value in torch_settings().items():
            if value != self.torch_settings[name]:
                sys.exit(f"error: an environment has changed torch's {name} to {value}, and must change it back itself")

    def restore(self):
        """Loads the saved states into the parts; ends the program if they do not fit.

        In a new run from a checkpoint, a part that the checkpoint lacks keeps its state."""
        states = {name: part.state_dict() for name, part in self.parts.items()}
        if not self.continues_folder:
            for name in states.keys() - self.saved.keys():  # such as an agent of agents/, without optimizer
                print(f"{self.args.resume} has no {name}: it starts anew")
            self.saved = states | self.saved
        # The order counts, too: torch's own optimizers know a parameter by its place.
        if state_keys(self.saved) != state_keys(states):
            differing = sorted(set(state_keys(self.saved)) ^ set(state_keys(states)))
            if ("optimizer", "param_groups") in differing:
                hint = "its optimizer is not of this script's class; train with the script in the checkpoint's folder"
                sys.exit(f"error: the checkpoint does not fit: {hint}")
            if self.args.resume is None:
                differing = differing or "their order"
                sys.exit(f"error: state_dict() of a part must always have the same keys, and differs in {differing}")
            sys.exit(f"error: the checkpoint does not fit: {differing or 'the order differs'}")
        for name, part in self.parts.items():
            try:
                part.load_state_dict(self.saved[name])
            except (RuntimeError, ValueError) as error:  # such as another shape; torch's message has several lines
                sys.exit(f"error: the checkpoint does not fit: {name}: {' '.join(str(error).split())}")

    def write_about(self, device):
        """Copies the script, and writes run.json; a resume gives both its step."""
        suffix = f"_{self.global_step:012}" if self.continues_folder else ""
        about = {
            "script": self.script.name,
            "command": sys.argv,
            "args": vars(self.args),
            "defaults": option_defaults(self.args),
            "device": str(device),
            "commit": git_commit(self.script.parent),
            "versions": {package.name: package.version for package in importlib.metadata.distributions()},
        }
        shutil.copyfile(self.script, self.folder / f"{self.script.stem}{suffix}.py")
        (self.folder / f"run{suffix}.json").write_text(json.dumps(about, indent=2))

    def stop(self, number, frame):
        """Ends the run: at once if it has not started, else after the update. The same signal again ends it at once."""
        signal.signal(number, signal.SIG_DFL)
        if self.complete:
            return  # only the environments are left to close
        self.exit_status = 128 + number
        if not self.started:
            sys.exit(self.exit_status)
        if not self.stopping:
            self.stopping = True
            # os.write, as the signal may have interrupted a print(), which cannot be called twice at a time
            with contextlib.suppress(OSError):
                os.write(2, b"\nstopping after this update; the same signal again ends the run at once\n")

    def start_clock(self):
        """Remembers when, and at which step, the updates of this process begin, for the steps per second."""
        self.start_time = time.monotonic()
        self.start_step = self.global_step

    def updates(self):
        """Yields the numbers of the updates, 1 to num_updates in a new run; shows the progress, and saves where due."""
        self.start_clock()
        total = self.args.total_timesteps
        with tqdm(total=total, initial=self.global_step, unit=" steps", unit_scale=True, mininterval=1) as bar:
            for update in range(self.updates_done + 1, self.num_updates + 1):
                self.check_torch()
                yield update  # here train() makes its rollout and its update
                if self.returns:  # else no episode has ended yet
                    bar.set_postfix_str(f"return {np.mean(self.returns):.4g}", refresh=False)
                bar.update(self.batch_size)
                due = self.args.save_every > 0 and update % self.args.save_every == 0
                last = update == self.num_updates
                stopping = self.stopping  # read once, as a signal may change it between two lines
                if due or stopping or last:
                    self.save()
                if stopping:
                    break
        # The loop was run at least once: count_updates() ends the program where no update is left.
        if last:
            self.complete = True
            self.exit_status = 0  # the run is complete, even if a signal came in its last update
        hint = f"python enjoy.py {self.folder} plays" if last else f"--resume {self.folder} continues"
        print(f"saved {checkpoint_files(self.folder)[-1]}; {hint}", flush=True)

    def log_step(self, infos):
        """Counts a step of all environments; logs the episodes that ended in it."""
        self.global_step += self.args.num_envs
        final_info = infos.get("final_info", {})
        for i in np.flatnonzero(final_info.get("_episode", [])):  # the environments in which a whole episode ended
            episode_return = float(final_info["episode"]["r"][i])
            self.returns = [*self.returns[-99:], episode_return]
            self.episodes_in_update += 1
            # at most one episode per five steps: shorter ones would make the log larger than all else
            if self.episodes_in_update <= math.ceil(self.batch_size / 5):
                self.writer.add_scalar("charts/episodic_return", episode_return, self.global_step)
                self.writer.add_scalar("charts/episodic_length", final_info["episode"]["l"][i], self.global_step)

    def log_update(self, scalars):
        """Logs the scalars of an update; ends the run if one whose name ends with "loss" or "norm" is not finite."""
        self.episodes_in_update = 0
        seconds = time.monotonic() - self.start_time
        scalars["charts/SPS"] = (self.global_step - self.start_step) / seconds
        for name, scalar in scalars.items():
            self.writer.add_scalar(name, scalar, self.global_step)
            if name.endswith(("loss", "norm")) and not math.isfinite(scalar):
                update = (self.global_step - self.first_step) // self.batch_size
                why = "perhaps --learning-rate is too large, or an observation or a reward is not finite"
                sys.exit(f"error: {name} is {scalar:g} in update {update}; {why}; the last checkpoint is kept")

    def save(self):
        """Writes a checkpoint, reads it back and renames it into place; keeps the newest two. Returns its state."""
        self.writer.flush()
        state = {
            "script": self.script.name,
            "args": vars(self.args),
            "first_step": self.first_step,
            "global_step": self.global_step,
            "returns": self.returns,
            "parts": {name: without_numpy(part.state_dict(), name) for name, part in self.parts.items()},
        }
        unfinished = self.folder / "checkpoint.tmp"
        data = io.BytesIO()  # torch.save() into a file would not say that the disk is full
        torch.save(state, data)
        with open(unfinished, "wb") as file:
            file.write(data.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        try:
            state = torch.load(unfinished, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:  # torch's message has many lines, and one says GLOBAL and the type
            found = " ".join(re.findall(r"GLOBAL (\S+)", str(error))) or error
            hint = "an option or a part has one that is not a number, a string, a tensor, or a list or dict of these"
            sys.exit(f"error: a checkpoint cannot hold a value of the type {found}; {hint}")
        os.replace(unfinished, self.folder / f"checkpoint_{self.global_step:012}.pt")
        for old in checkpoint_files(self.folder)[:-2]:
            old.unlink()
        return state


def git_commit(folder):
    """The commit of the checkout that a folder is part of, or why git does not tell it."""
    try:
        # the whole hash of the commit, never a tag, with "-dirty" after it if files have changed
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:  # there is no git
        return f"unknown: {error}"
    if done.returncode != 0:
        return f"unknown: {' '.join(done.stderr.split())}"
    return done.stdout.strip()


def signal_numbers():
    """The numbers of SIGNALS that this system has, without those that a parent such as nohup ignores."""
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    return [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]


@contextlib.contextmanager
def errors_with_tracebacks():
    """Turns any error into a gym.error.Error, whose text is the traceback; one of gymnasium's errors keeps its text."""
    try:
        yield
    except gym.error.Error as error:
        raise gym.error.Error(str(error)) from None
    except (Exception, SystemExit):
        raise gym.error.Error(f"in a process of --async-envs:\n{traceback.format_exc()}") from None


class Worker(gym.Wrapper):
    """Wraps an environment that has a process of its own: ignores signals there, and ends the processes it started.

    Errors are passed on as text, since the run would wait for ever for an error that cannot be sent to it."""

    def __init__(self, make):
        # False in the process of the run, where AsyncVectorEnv makes one environment to see its spaces.
        self.is_in_worker = multiprocessing.parent_process() is not None
        if self.is_in_worker:
            for number in signal_numbers():  # they are for the process of the run, which ends the workers
                signal.signal(number, signal.SIG_IGN)
            gym.logger.min_level = gym.logger.WARN  # a forked worker has the level of the process of the run
        # Its errors are seen in the process of the run, which makes environment 0 before the workers do.
        super().__init__(make())
        if not self.is_in_worker:
            # Silences gymnasium's log: AsyncVectorEnv would log each worker's traceback, too, and fail at a "%" in it.
            gym.logger.min_level = gym.logger.ERROR + 1

    def reset(self, *, seed=None, options=None):
        with errors_with_tracebacks():
            return self.env.reset(seed=seed, options=options)

    def step(self, action):
        with errors_with_tracebacks():
            return self.env.step(action)

    def close(self):
        super().close()
        if self.is_in_worker:
            for process in multiprocessing.active_children():  # else the worker would wait for them
                process.kill()


def main(create_run=Run):
    """Trains with the options of the command line; after a stop, exits with 128 + the signal's number.

    create_run: makes the run from the options."""
    if sys.stdout is None:  # some launchers close it
        sys.stdout = open(os.devnull, "w")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")
    # A script that is started through a symbolic link may import modules beside the link. Python itself adds only the
    # folder of the link's target.
    sys.path.append(str(Path(__file__).parent))
    args = tyro.cli(Args, description=__doc__)
    if create_run is Run:  # a function of a script's own takes care of several processes itself
        check_single_process()
    run = create_run(args)
    for number in signal_numbers():
        signal.signal(number, run.stop)
    try:
        train(run.args, run)
    except (gym.error.Error, ModuleNotFoundError) as error:  # what a user can put right in or for an environment
        sys.exit(f"error: {str(error).strip()}; see docs/environment.md and docs/install.md")
    finally:
        for process in multiprocessing.active_children():  # workers ignore signals, and outlive an error
            process.kill()
    sys.exit(run.exit_status)


if __name__ == "__main__":
    main()
