# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "filelock>=3.20", "gymnasium>=1.4", "numpy>=2.0", "tensorboard>=2.21", "torch>=2.13,<2.16", "tqdm>=4.67",
#   "tyro>=1.0",
# ]
# ///
"""PPO for classic control: S runs of ppo.py side by side in one process, each with a seed and options of its own.

    python ppo_seeds.py --seeds 1 2 3 --learning-rate 1e-3 3e-4        (six agents; see docs/seeds.md)

Marks such as [core 5] refer to docs/details.md, paths such as ppo2/model.py to openai/baselines.
"""

import atexit
import contextlib
import copy
import dataclasses
import importlib.metadata
import io
import itertools
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
from typing import Annotated

import filelock
import gymnasium as gym
import numpy as np
import torch
import tyro
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

# [seeds 1] the type of an option that takes several values, and a second name
Seeds = Annotated[int | tuple[int, ...], tyro.conf.arg(aliases=["--seeds"])]


@dataclasses.dataclass(frozen=True)
class Args:
    # These options take several values, and each combination makes an agent: seed, gamma, gae_lambda, learning_rate,
    # clip_coef, ent_coef and vf_coef. So does resume: each folder or checkpoint makes an agent.
    # run
    seed: Seeds = 1  # seed of torch and of environment 0; environment i gets seed + i; a resume adds its step
    exp_name: str = Path(__file__).stem  # name of the experiment, part of the run folder's name
    runs_folder: str = "runs"  # folder in which the run's folder is created
    cuda: bool = True  # use a GPU if there is one
    tf32: bool = False  # allow TF32 on the GPU: faster, with a 10-bit mantissa
    threads: int = 1  # number of CPU threads for torch; more is slower for so small a network
    compile: bool = False  # compile the gradient step: slow start, then mostly faster; on a CPU it needs a C++ compiler
    track: bool = False  # also log to Weights & Biases, which is configured by WANDB_MODE, ...; only with one agent
    capture_video: bool = False  # record videos of the first agent's environment 0 in its folder
    save_every: int = 100  # updates between checkpoints; 0 saves only at the start and the end
    # the folder of a run to continue, or a checkpoint to continue in a new folder
    resume: str | tuple[str, ...] | None = None
    # environment
    env_id: str = "CartPole-v1"  # a gymnasium id with Discrete actions
    num_envs: int = 4  # number of parallel environments of each agent, N
    async_envs: bool = False  # step each environment in its own process
    # rollout
    total_timesteps: int = 500_000  # number of steps of each agent in total, over all its environments
    num_steps: int = 128  # steps of each environment in a rollout, M
    gamma: float | tuple[float, ...] = 0.99  # discount factor
    gae_lambda: float | tuple[float, ...] = 0.95  # lambda of generalized advantage estimation
    bootstrap_truncated: bool = False  # bootstrap at time limits; if false, they are terminal states, as in ppo2
    # update
    learning_rate: float | tuple[float, ...] = 2.5e-4  # learning rate of Adam
    anneal_lr: bool = True  # anneal the learning rate linearly to 0 [core 4]
    num_minibatches: int = 4  # number of minibatches in an epoch
    update_epochs: int = 4  # number of epochs over each rollout
    clip_coef: float | tuple[float, ...] = 0.2  # clip range of the probability ratio and of the value
    anneal_clip: bool = False  # anneal the clip range linearly to 0 [aux 1]
    ent_coef: float | tuple[float, ...] = 0.01  # coefficient of the entropy bonus
    vf_coef: float | tuple[float, ...] = 0.5  # coefficient of the value loss
    max_grad_norm: float = 0.5  # maximum norm of the gradient
    # end the update after an epoch whose last minibatch has a higher approx_kl [aux 3]; only with one agent
    target_kl: float | None = None


class Episodes(gym.Wrapper):
    """Flattens observations, and puts the return and length of an episode into the info of its last step.

    Of the other infos only is_success is kept, as gymnasium cannot join those that change their shape or type."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gym.spaces.flatten_space(env.observation_space)

    def reset(self, *, seed=None, options=None):
        obs, _ = self.env.reset(seed=seed, options=options)
        self.episode_return = 0.0
        self.episode_length = 0
        return gym.spaces.flatten(self.env.observation_space, obs), {}

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        reward = np.asarray(reward, dtype=np.float64).item()  # some environments return arrays of one
        self.episode_return += reward
        self.episode_length += 1
        last_info = {}
        if terminated or truncated:
            last_info["episode"] = {"r": self.episode_return, "l": self.episode_length}
            if "is_success" in info:  # enjoy.py counts it
                last_info["is_success"] = bool(info["is_success"])
        return gym.spaces.flatten(self.env.observation_space, obs), reward, terminated, truncated, last_info


def make_env(args, index, folder):
    """Environment `index`, with flat observations; info["episode"] has the return and length of a finished episode."""
    record = args.capture_video and index == 0
    options = {"render_mode": "rgb_array"} if record else {}  # not every environment takes a render_mode
    env = gym.make(args.env_id, **options)
    actions = env.action_space
    observations = env.observation_space
    if not isinstance(actions, gym.spaces.Discrete) or actions.start != 0:
        hint = "Discrete actions from 0; ppo_continuous_action.py takes Box, ppo_multidiscrete.py MultiDiscrete"
        sys.exit(f"error: {args.env_id} has the actions {actions}, and this script takes {hint}")
    if isinstance(observations, gym.spaces.Box) and len(observations.shape) >= 2 and (observations.high == 255).any():
        sys.exit(f"error: {args.env_id} has images, which need a network with convolutions; see docs/environment.md")
    if record and folder is not None:  # enjoy.py has no folder: it shows the frames itself
        # videos of up to 1000 steps; gymnasium begins them with the episodes 0, 1, 8, 27, ..., 1000, 2000, ...
        videos = folder / time.strftime("videos-%Y%m%d-%H%M%S")
        env = gym.wrappers.RecordVideo(env, videos, video_length=1000)
    return Episodes(env)


def make_in_worker(make, run_process, seed):
    """Makes an environment of --async-envs, in a process of its own or, to see its spaces, in that of the run."""
    if os.getpid() != run_process:
        for number in SIGNALS:  # Ctrl-C reaches the workers, too, but only the process of the run acts on it
            signal.signal(number, signal.SIG_IGN)
        torch.set_num_threads(1)  # in an environment that uses torch: the workers share the cores
        # generators of the whole process, from which an environment may draw
        np.random.seed(seed)
        torch.manual_seed(seed)
    return make()


def make_workers(makers, seeds, mode):  # [seeds 1]
    """The environments, each in a process of its own, whose generators have the seed that stands in its place."""
    makers = [partial(make_in_worker, make, os.getpid(), seed) for make, seed in zip(makers, seeds, strict=True)]
    # multiprocessing also starts a process that tracks resources; it inherits that signals are ignored.
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    # Forked workers would copy the state of generators, and so all draw the same numbers.
    envs = gym.vector.AsyncVectorEnv(makers, context="spawn", autoreset_mode=mode)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    return envs


def make_envs(args, folder=None, seeds=None):
    """[core 1] N environments stepped as one, each reset in the step that ends its episode (common/vec_env).

    So the observation after an episode's last step is the first of the next episode; infos["final_obs"] has the last.
    folder: where --capture-video puts its videos; None records nothing.
    seeds: [seeds 1] of the generators of processes with --async-envs, as an agent's environments have its own seeds."""
    makers = [partial(make_env, args, index, folder) for index in range(args.num_envs)]
    mode = gym.vector.AutoresetMode.SAME_STEP
    if args.async_envs:
        if seeds is None:
            seeds = range(args.seed, args.seed + args.num_envs)
        return make_workers(makers, seeds, mode)
    return gym.vector.SyncVectorEnv(makers, autoreset_mode=mode)


class Categorical:
    """Distribution over A discrete actions, from logits float32 [B, A]."""

    def __init__(self, logits):
        self.logits = logits.log_softmax(-1)

    def sample(self, generator=None, noise=None):  # [seeds 1]
        """Actions, int64 [B], drawn by the Gumbel-max trick (common/distributions.py)."""
        if noise is None:  # [seeds 1] given where each agent has noise of its own
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


def mlp(inputs):
    """Two layers of 64 tanh units, float32 [B, inputs] to [B, 64] (common/models.py)."""
    return nn.Sequential(layer_init(nn.Linear(inputs, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh())


class Agent(nn.Module):
    """[core 13] Policy and value function as separate networks (value_network="copy" in common/policies.py)."""

    def __init__(self, envs):
        super().__init__()
        (inputs,) = envs.single_observation_space.shape
        actions = envs.single_action_space.n
        self.policy_trunk = mlp(inputs)
        self.value_trunk = mlp(inputs)
        self.policy = layer_init(nn.Linear(64, actions), std=0.01)
        self.value = layer_init(nn.Linear(64, 1), std=1.0)

    def get_policy(self, obs):
        """The distribution of the actions for observations [B, D]. The rollout acts by it, as it needs no values."""
        return Categorical(self.policy(self.policy_trunk(obs.float())))

    def forward(self, obs):
        """The policy and the values, float32 [B], of observations [B, D]."""
        values = self.value(self.value_trunk(obs.float())).squeeze(-1)
        return self.get_policy(obs), values


class StackedLinear(nn.Module):
    """[seeds 1] The same linear layer of S agents, float32 [S, B, inputs] to [S, B, outputs].

    Each agent's own layer becomes a view of its part of the parameters."""

    def __init__(self, layers):
        super().__init__()
        # [speed] Weights are [S, inputs, outputs]: the gradients of baddbmm have this layout, and need no copy.
        weights = torch.stack([layer.weight.detach().mT for layer in layers])
        biases = torch.stack([layer.bias.detach() for layer in layers]).unsqueeze(1)  # [S, 1, outputs]
        # a frozen parameter stays frozen
        self.weight = nn.Parameter(weights, requires_grad=layers[0].weight.requires_grad)
        self.bias = nn.Parameter(biases, requires_grad=layers[0].bias.requires_grad)
        for layer, weight, bias in zip(layers, self.weight.detach(), self.bias.detach(), strict=True):
            layer.weight.data = weight.mT
            layer.bias.data = bias.squeeze(0)

    def forward(self, inputs):
        return torch.baddbmm(self.bias, inputs, self.weight)


def stack(agents):
    """[seeds 1] One agent with the parameters of all, [S, ...], in memory that it shares with them.

    Its observations are [S, B, D], and so its outputs have the axis S in front."""
    names = {name for name, _ in agents[0].named_parameters(remove_duplicate=False)}
    second_names = names - {name for name, _ in agents[0].named_parameters()}
    if second_names:
        sys.exit(f"error: {', '.join(sorted(second_names))}: a parameter that has two names cannot be stacked")
    stacked = copy.deepcopy(agents[0])
    for name, module in agents[0].named_modules():
        parameters = {name for name, _ in module.named_parameters(recurse=False)}
        # a subclass may compute something else
        if type(module) is nn.Linear and parameters == {"weight", "bias"}:
            stacked.set_submodule(name, StackedLinear([agent.get_submodule(name) for agent in agents]))
        elif [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            sys.exit(f"error: {name or 'Agent'} has parameters or buffers; only nn.Linear with a bias can be stacked")
    return stacked


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
    """[core 3] The state of Adam: means of the gradient and of its square, each a row of all parameters per agent."""

    def __init__(self, agent):
        self.parameters = [p for p in agent.parameters() if p.requires_grad]
        self.sizes = [p[0].numel() for p in self.parameters]  # [seeds 1] of one agent
        # [seeds 1] float32 [S, P], for the P numbers in all parameters of an agent
        self.mean = torch.cat([torch.zeros_like(p).flatten(1) for p in self.parameters], dim=1)
        self.square = torch.zeros_like(self.mean)
        self.steps = torch.zeros((), dtype=torch.float64)  # a tensor, as a number would be compiled anew at each step


# [seeds 1] The gradient has a row for each agent, [S, P]. The learning rate is [S, 1], or [1, 1] if it is that of all.
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


class AdamOfAgent:
    """[seeds 1] A part of a run: the state of Adam of agent k alone, as Adam in ppo.py has it."""

    def __init__(self, optimizer, agent, k):
        self.optimizer = optimizer
        self.parameters = [p for p in agent.parameters() if p.requires_grad]
        self.k = k

    def split(self, rows):
        """The agent's part of rows of all parameters, [S, P]: views, each in the shape of one of its parameters."""
        sizes = [p.numel() for p in self.parameters]
        views = []
        for parameter, part in zip(self.parameters, rows[self.k].split(sizes), strict=True):
            if parameter.dim() == 2:  # StackedLinear keeps weights as [inputs, outputs]
                views.append(part.view(parameter.mT.shape).mT)
            else:
                views.append(part)
        return views

    def state_dict(self):
        """Vectors in the order of the agent's own parameters."""
        state = {"steps": self.optimizer.steps.clone()}
        for name, rows in (("mean", self.optimizer.mean), ("square", self.optimizer.square)):
            state[name] = torch.cat([view.flatten() for view in self.split(rows)])
        return state

    def load_state_dict(self, state):
        self.optimizer.steps.copy_(state["steps"])  # the same in all agents, which check_steps() makes sure of
        sizes = [p.numel() for p in self.parameters]
        for name, rows in (("mean", self.optimizer.mean), ("square", self.optimizer.square)):
            for view, part in zip(self.split(rows), state[name].split(sizes), strict=True):
                view.copy_(part.view_as(view))


class Copied:
    """[seeds 1] A part of a run whose state is a copy: of a view, torch.save would write the memory of all agents."""

    def __init__(self, part):
        self.part = part

    def state_dict(self):
        state = self.part.state_dict()
        return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}

    def load_state_dict(self, state):
        self.part.load_state_dict(state)


def losses_of_agents(agent, minibatch, args):
    """[seeds 1] The losses of S agents, float32 [S], and a dict of scalars to log, each [S].

    minibatch: as that of ppo_loss, with an axis S in front. An option in args is the same number for all agents, or a
    tensor [S]. The network computes its outputs for all agents at once; vmap then gives ppo_loss those of one agent."""
    policy, values, *more = agent(minibatch["obs"])  # an edited agent may return more
    options = {}  # those that differ between agents; with --compile the others are tensors, too, but without an axis
    for name, value in vars(args).items():
        if isinstance(value, torch.Tensor) and value.dim() == 1:
            options[name] = value

    def loss_of_one(outputs, values, more, minibatch, options):
        policy = Categorical(**outputs)

        def computed(obs):  # in place of the agent, whose outputs are there already
            return policy, values, *more

        return ppo_loss(computed, minibatch, dataclasses.replace(args, **options))

    # What the distribution is made of, as vmap() takes tensors alone. The log_softmax of logits that are normalized
    # changes them by no more than rounding.
    outputs = {"logits": policy.logits}
    if len(values) > 1:
        return torch.vmap(loss_of_one)(outputs, values, more, minibatch, options)
    # [speed] A single agent does without vmap, which would double the time of the loss.
    outputs = {name: output[0] for name, output in outputs.items()}
    more = [output[0] for output in more]
    minibatch = {name: column[0] for name, column in minibatch.items()}
    loss, stats = loss_of_one(outputs, values[0], more, minibatch, options)
    return loss.unsqueeze(0), {name: scalar.unsqueeze(0) for name, scalar in stats.items()}


def gradient_step(agent, optimizer, minibatch, args):
    """[seeds 1] Takes a step of each agent on the loss of its minibatch, and returns the scalars to log, each [S]."""
    losses, stats = losses_of_agents(agent, minibatch, args)
    # The gradient of the sum has each agent's own gradient, as no other loss depends on the agent's parameters.
    # zeros for parameters that the losses do not use, which so stay as they are
    gradients = torch.autograd.grad(losses.sum(), optimizer.parameters, materialize_grads=True)
    gradient = torch.cat([part.flatten(1) for part in gradients], dim=1)  # [seeds 1] a row per agent, [S, P]

    # [core 11] global gradient clipping, [seeds 1] of each agent by its own norm
    stats["grad_norm"] = gradient.norm(dim=1)
    scale = (args.max_grad_norm / (stats["grad_norm"] + 1e-6)).clamp(max=1.0)  # 1e-6 as in torch's clip_grad_norm_()
    scale = scale.view(-1, 1)
    learning_rate = torch.as_tensor(args.learning_rate, dtype=scale.dtype, device=scale.device).view(-1, 1)
    adam_step(optimizer, gradient * scale, learning_rate)
    return stats


def floats_as_tensors(args):
    """The options with float64 tensors for floats, as torch.compile compiles anew for each value of a Python float."""
    floats = {name: value for name, value in vars(args).items() if isinstance(value, float)}
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in floats.items()}
    return dataclasses.replace(args, **tensors)


# [seeds 1] the options that may differ between agents
OPTIONS_OF_AGENTS = ("seed", "gamma", "gae_lambda", "learning_rate", "clip_coef", "ent_coef", "vf_coef", "resume")


def join_options(args_of_agents, device):
    """[seeds 1] The options of all agents in one Args: numbers that differ between agents as tensors [S]."""
    joined = args_of_agents[0]
    for name in OPTIONS_OF_AGENTS:
        values = [getattr(args, name) for args in args_of_agents]
        if name not in ("seed", "resume") and len(set(values)) > 1:
            numbers = torch.tensor([float(value) for value in values], device=device)  # a program may give integers
            joined = dataclasses.replace(joined, **{name: numbers})
    return joined


def draw_noise(args, envs, generators):
    """[seeds 1] The noise of a rollout, float32 [M, S, N, A].

    On a CPU, an agent gets the numbers that its own run draws in M calls. On a GPU, one call for M steps draws other
    numbers."""
    shape = (args.num_steps, args.num_envs, envs.single_action_space.n)
    noise = [torch.empty(shape, device=g.device).exponential_(generator=g) for g in generators]
    return torch.stack(noise, dim=1)


def columns_of_environments(values, num_steps):
    """[seeds 1] Numbers of all agents, [S, M * N], as gae() takes them: a column of each environment, [M, S * N]."""
    return values.unflatten(1, (num_steps, -1)).transpose(0, 1).flatten(1)


def rows_of_agents(columns, num_agents):
    """[seeds 1] Numbers with a column of each environment, [M, S * N], as rows of the agents, [S, M * N]."""
    return columns.unflatten(1, (num_agents, -1)).transpose(0, 1).flatten(1)


def train(args, run):
    """Trains S agents and returns them; `run` holds their folders, logs, progress bar and checkpoints."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:  # each process would make the same run
        sys.exit("error: several processes need ppo_atari_multigpu.py or a script made from it (docs/scale.md)")
    for agent_args in run.args_of_agents:  # [seeds 1]
        if not (0 <= agent_args.gamma <= 1 and 0 <= agent_args.gae_lambda <= 1):
            sys.exit("error: --gamma and --gae-lambda must be in [0, 1]")
        if agent_args.clip_coef < 0 or agent_args.max_grad_norm <= 0:
            sys.exit("error: --clip-coef must be at least 0, and --max-grad-norm above 0")
    # [seeds 1]
    num_agents = len(run.args_of_agents)
    if num_agents > 1 and args.target_kl is not None:
        sys.exit("error: --target-kl may end the agents' updates at different epochs: it works with one agent only")
    # in a minibatch of one step, the normalized advantage would be 0
    if run.batch_size % args.num_minibatches or run.batch_size == args.num_minibatches:
        sys.exit(f"error: --num-minibatches must cut a rollout's {run.batch_size} steps into equal parts of 2 or more")
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = args.tf32
    torch.backends.cuda.matmul.allow_tf32 = args.tf32
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    torch.set_num_threads(args.threads)
    # [seeds 1] S x N environments, those of an agent beside each other
    num_envs = num_agents * args.num_envs
    seeds = [each.seed + run.global_step + i for each in run.args_of_agents for i in range(args.num_envs)]
    envs = make_envs(dataclasses.replace(args, num_envs=num_envs), run.folder, seeds)
    # [seeds 1] the agents, each with the weights and the generator of its own run
    agents = []
    generators = []
    for agent_args in run.args_of_agents:
        torch.manual_seed(agent_args.seed + run.global_step)
        agents.append(Agent(envs).to(device))
        # The noise of actions and the permutations have a generator of their own, as an environment may seed torch's.
        generators.append(torch.Generator(device).manual_seed(torch.randint(2**62, ()).item()))
    agent = stack(agents)
    optimizer = Adam(agent)
    take_step = gradient_step
    if args.compile:
        torch._dynamo.config.trace_autograd_ops = True  # compiles torch.autograd.grad as well
        take_step = torch.compile(gradient_step)
    # Pass here, by name, what a resume must restore: objects with state_dict() and load_state_dict(). A run that is
    # resumed must have the same names, and the same keys in each state_dict().
    # [seeds 1] one of each part per agent
    agent_parts = [Copied(each) for each in agents]
    optimizer_parts = [AdamOfAgent(optimizer, each, k) for k, each in enumerate(agents)]
    run.start(device, agent=agent_parts, optimizer=optimizer_parts)
    # [seeds 1] the discount of each environment's agent, [S * N]
    gamma = np.repeat([each.gamma for each in run.args_of_agents], args.num_envs)
    gae_lambda = np.repeat([each.gae_lambda for each in run.args_of_agents], args.num_envs)
    joined_args = join_options(run.args_of_agents, device)
    # [seeds 1] the row in which each agent's steps begin where the batches of all agents follow each other, [S, 1]
    first_rows = torch.arange(num_agents, device=device).unsqueeze(1) * run.batch_size
    next_obs, _ = envs.reset(seed=seeds)  # a resume starts new episodes

    for update in run.updates():  # which also saves checkpoints between updates, and ends a run that is stopped
        # [core 4] annealing of the learning rate, and [aux 1] of the clip range; [seeds 1] each a tensor [S] where the
        # agents' values differ
        remaining = 1.0 - (update - 1) / run.num_updates  # 1 in the first update, 1 / num_updates in the last
        learning_rate = joined_args.learning_rate * (remaining if args.anneal_lr else 1.0)
        clip_coef = joined_args.clip_coef * (remaining if args.anneal_clip else 1.0)
        annealed_args = dataclasses.replace(joined_args, learning_rate=learning_rate, clip_coef=clip_coef)
        if args.compile:
            annealed_args = floats_as_tensors(annealed_args)

        # The rollout: the policy acts for M steps.
        steps = []
        rewards = np.zeros((args.num_steps, envs.num_envs), dtype=np.float32)  # [seeds 1] [M, S * N]
        dones = np.zeros((args.num_steps, envs.num_envs), dtype=bool)
        noise = draw_noise(args, envs, generators)
        with torch.no_grad():
            for t in range(args.num_steps):
                # [seeds 1] observations [S, N, D] and actions [S, N]
                obs = torch.from_numpy(next_obs).to(device).unflatten(0, (num_agents, args.num_envs))
                action = agent.get_policy(obs).sample(noise=noise[t])
                step = dict(obs=obs, actions=action)  # each name, [N, ...], becomes a column of the batch
                steps.append(step)
                # a copy of the actions, as an environment may change them in place; [seeds 1] of all agents in a row
                next_obs, reward, terminated, truncated, infos = envs.step(action.flatten(0, 1).cpu().numpy().copy())
                rewards[t] = reward
                dones[t] = terminated | truncated
                if args.bootstrap_truncated:
                    # To gae() a time limit is an end. Adding gamma * V(the episode's last observation) to its last
                    # reward has the effect of bootstrapping there.
                    # [seeds 1] one by one, as each environment has its agent
                    for i in np.flatnonzero(truncated & ~terminated):
                        final_obs = torch.from_numpy(infos["final_obs"][i]).to(device).unsqueeze(0)
                        _, final_value, *_ = agents[i // args.num_envs](final_obs)
                        rewards[t, i] += gamma[i] * final_value.item()
                run.log_step(infos)

            # Row t * N + i of the batch is step t of environment i. [seeds 1] Each column is [S, M * N, ...].
            batch = {name: torch.cat([step[name] for step in steps], dim=1) for name in steps[0]}
            # Values and log probabilities follow in one pass: no step needed them.
            policy, values, *_ = agent(batch["obs"])
            batch["logprobs"] = policy.log_prob(batch["actions"])
            batch["values"] = values
            assert all(column.shape[1] == run.batch_size for column in batch.values())  # [seeds 1]
            if update == 1:  # [check] the policy that acts, get_policy(), must be that of forward(): no dropout
                logprobs = agent.get_policy(batch["obs"]).log_prob(batch["actions"])
                is_same = torch.allclose(logprobs, batch["logprobs"], rtol=1e-5, atol=1e-5, equal_nan=True)
                assert is_same, "get_policy() and forward() give different policies"
            # [seeds 1] the values after the last step, [S, N]
            _, next_value, *_ = agent(torch.from_numpy(next_obs).to(device).unflatten(0, (num_agents, args.num_envs)))

        # The update: epochs of gradient steps on minibatches of the rollout.
        values_by_step = columns_of_environments(values, args.num_steps).cpu().numpy()  # [seeds 1]
        # [seeds 1] the gamma and gae_lambda of each column
        advantages = gae(rewards, values_by_step, dones, next_value.flatten().cpu().numpy(), gamma, gae_lambda)
        returns = rows_of_agents(torch.from_numpy(advantages).to(device), num_agents) + values  # [seeds 1] [S, M * N]
        batch["returns"] = returns
        batch = {name: column.flatten(0, 1) for name, column in batch.items()}  # [seeds 1] each [S * M * N, ...]
        stats = []
        for _ in range(args.update_epochs):
            # [core 6] minibatches of a new permutation in each epoch, [seeds 1] of each agent's own, [S, M * N]
            permutation = torch.stack([torch.randperm(run.batch_size, generator=g, device=device) for g in generators])
            for rows in (first_rows + permutation).chunk(args.num_minibatches, dim=1):
                minibatch = {name: column.index_select(0, rows.flatten()) for name, column in batch.items()}
                minibatch = {name: column.unflatten(0, rows.shape) for name, column in minibatch.items()}
                stats.append(take_step(agent, optimizer, minibatch, annealed_args))
            if args.target_kl is not None and stats[-1]["approx_kl"] > args.target_kl:  # [aux 3]
                break

        # [core 12] means of the debug variables over the minibatches, [seeds 1] each [S]
        scalars = {f"losses/{name}": torch.stack([each[name] for each in stats]).mean(0) for name in stats[0]}
        scalars["losses/explained_variance"] = 1 - (returns - values).var(1) / returns.var(1)
        scalars["charts/learning_rate"] = torch.as_tensor(learning_rate).expand(num_agents)
        run.log_update(scalars)
    envs.close()
    return agents  # [seeds 1]


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


class Runs:
    """[seeds 1] The runs of all agents, with one progress bar. Each has a folder, a log and checkpoints of its own.

    It has the attributes and methods of a Run that main() and train() use."""

    def __init__(self, args):
        self.runs = []
        if isinstance(args.resume, tuple):
            set_aside_newer(args)
        for agent_args in combinations(args):
            run = Run(agent_args)
            if run.folder in [other.folder for other in self.runs]:  # the name does not show every option
                run.folder = run.folder.with_name(f"{run.folder.name}-{len(self.runs)}")
            self.runs.append(run)
        first = self.runs[0]
        for run in self.runs:
            check_same(run, first)
        check_distinct(self.runs)
        self.args_of_agents = [run.args for run in self.runs]
        self.args = first.args
        self.folder = first.folder
        self.batch_size = first.batch_size
        self.global_step = first.global_step
        self.updates_done = first.updates_done
        self.num_updates = first.num_updates
        self.signal = None  # the number of the signal that ends the runs
        self.complete = False
        # the runs of agents whose loss or gradient norm was not finite: updated like the others, but neither logged nor
        # saved
        self.failed = []
        print_table(self.args_of_agents)

    def stop(self, number, frame):
        """Ends all runs after this update, as Run.stop() does one."""
        Run.stop(self, number, frame)

    def start(self, device, **parts):
        """Starts the run of each agent with its own of the parts, {name: [part of an agent, ...]}."""
        check_steps(self.runs)
        for k, run in enumerate(self.runs):
            run.parts = {name: parts_of_agents[k] for name, parts_of_agents in parts.items()}
            if run.saved_parts is not None:
                run.restore(run.saved_parts)  # all before the first has a folder: parts that do not fit leave none
        for run in self.runs:
            run.start(device, **run.parts)

    def running(self):
        """[(number, run), ...] of the agents that have not failed."""
        return [(k, run) for k, run in enumerate(self.runs) if run not in self.failed]

    def updates(self):
        """Yields the numbers of the updates; shows the progress of all agents, and saves where due.

        The bar counts the steps of one agent, which are those of --total-timesteps."""
        total = self.args.total_timesteps
        with tqdm(total=total, initial=self.global_step, unit=" steps", unit_scale=True, mininterval=1) as self.bar:
            for update in range(self.updates_done + 1, self.num_updates + 1):
                yield update
                self.complete = update == self.num_updates
                stopping = self.signal is not None  # read once, as a signal may come between two lines
                due = self.args.save_every > 0 and update % self.args.save_every == 0
                if due or stopping or self.complete:
                    for _, run in self.running():
                        run.save()
                # after the saves, as in Run.updates()
                means = [np.mean(run.returns) for _, run in self.running() if run.returns]
                if means:
                    text = f"return {np.mean(means):.4g} [{min(means):.4g}, {max(means):.4g}]"
                    self.bar.set_postfix_str(text, refresh=False)
                self.bar.update(self.batch_size)
                if stopping:
                    break
        for _, run in self.running():
            run.writer.close()
            print(f"saved {checkpoint_files(run.folder)[-1]}", flush=True)
        if not self.complete:
            folders = [run.folder for _, run in self.running()]
            print(f"to continue: {resume_command(self.args, *folders)}", flush=True)
        elif self.failed:
            raise FloatingPointError(f"of {len(self.failed)} agents a loss or a gradient norm was not finite")

    def log_step(self, infos):
        """Counts a step of all environments, and gives each agent's run the episodes that ended in its own."""
        final_info = infos.get("final_info", {})
        self.global_step += self.args.num_envs  # the step of each agent; an edit of train() may read it, as of a Run
        for k, run in self.running():
            agent_infos = {}
            if "_episode" in final_info:
                rows = slice(k * self.args.num_envs, (k + 1) * self.args.num_envs)
                episode = {name: final_info["episode"][name][rows] for name in ("r", "l")}
                agent_infos = {"final_info": {"_episode": final_info["_episode"][rows], "episode": episode}}
            run.log_step(agent_infos)

    def log_update(self, scalars):
        """Logs the scalars, {name: tensor [S]}. An agent whose loss or gradient norm is not finite is named.

        From then on it is neither logged nor saved."""
        values_of_agents = {name: tensor.tolist() for name, tensor in scalars.items()}
        for k, run in self.running():
            try:
                run.log_update({name: values[k] for name, values in values_of_agents.items()})
            except FloatingPointError as error:
                run.writer.close()
                self.failed.append(run)
                self.bar.write(f"error: {error}; {run.folder} ends here", file=sys.stderr)
        if not self.running():
            raise FloatingPointError("no agent is left")


def combinations(args):
    """[seeds 1] The options of each agent: one Args for each combination of the values given.

    Agents that differ in the seed alone follow each other."""
    values = {}
    for name in reversed(OPTIONS_OF_AGENTS):  # product() below changes its last factor fastest: it must be the seed
        value = getattr(args, name)
        values[name] = value if isinstance(value, tuple) else (value,)
        if not values[name]:
            sys.exit(f"error: --{name.replace('_', '-')} needs a value")
        distinct = set(values[name])
        if args.resume is not None and name == "resume":
            distinct = {Path(folder).resolve() for folder in values[name]}  # one folder may be spelled in several ways
        if len(values[name]) != len(distinct):
            sys.exit(f"error: --{name.replace('_', '-')} needs values that differ from each other")
    several = [name for name in values if len(values[name]) > 1]
    changed = " and ".join(f"--{name.replace('_', '-')}" for name in several if name != "resume")
    if args.resume is not None and changed:
        sys.exit(f"error: with --resume, {changed} takes a single value, which then holds for all agents")
    if several and args.track:
        sys.exit("error: Weights & Biases takes one run of a process; --track needs a single agent")
    found = []
    for combination in itertools.product(*values.values()):
        options = dict(zip(values, combination, strict=True))
        found.append(dataclasses.replace(args, **options))
    return found


def set_aside_newer(args):
    """[seeds 1] Renames checkpoints in the folders args.resume that are newer than the last which all agents have.

    A run that is killed while it saves has saved some of its agents, and others not yet."""
    folders = [Path(folder) for folder in args.resume]
    names = [{file.name for file in checkpoint_files(folder)} for folder in folders]  # none where a path is of a file
    oldest = min(max(each, default="") for each in names)  # the newest of an agent that was not saved again
    if not all(oldest in each for each in names):
        return
    with contextlib.ExitStack() as locks:  # all folders' before the first file is renamed
        for folder in folders:
            locks.enter_context(filelock.FileLock(folder / "lock").acquire(timeout=0))
        states = [read_checkpoint(folder / oldest) for folder in folders]
        if None in states:
            return
        options = [shared_options(vars(resumed_args(args, state["args"]))) for state in states]
        if any(each != options[0] for each in options):
            return  # no agents of one process: check_same() ends the program
        for folder in folders:
            for file in checkpoint_files(folder):
                if file.name > oldest:
                    renamed = file.rename(file.with_suffix(".ahead"))
                    print(f"{renamed}: this checkpoint is set aside, as other agents have none of its step")


def check_distinct(runs):
    """[seeds 1] Ends the program if two resumed runs have the same agent, as if one's checkpoint lay in two folders."""
    found = {}
    for run in runs:
        options = tuple(getattr(run.args, name) for name in OPTIONS_OF_AGENTS if name != "resume")
        if options in found:
            sys.exit(f"error: {found[options].folder} and {run.folder} have an agent of the same seed and options")
        found[options] = run


def shared_options(args):
    """[seeds 1] Those of a run's options, {name: value}, that must be the same for all agents."""
    return {name: value for name, value in args.items() if name not in (*OPTIONS_OF_AGENTS, "exp_name")}


def check_same(run, first):
    """[seeds 1] Ends the program if a resumed run cannot go on beside the first one."""
    options = shared_options(vars(run.args))
    of_first = shared_options(vars(first.args))
    differing = [name for name in options if options[name] != of_first[name]]
    if differing:
        hint = "an option on the command line holds for all agents"
        sys.exit(f"error: {first.args.resume} and {run.args.resume} differ in {', '.join(differing)}; {hint}")
    if run.global_step != first.global_step:
        steps = f"{first.args.resume} is at step {first.global_step}, {run.args.resume} at step {run.global_step}"
        sys.exit(f"error: {steps}; continue them in processes of their own")
    if run.first_step != first.first_step:
        steps = f"{first.args.resume} began at step {first.first_step}, {run.args.resume} at step {run.first_step}"
        sys.exit(f"error: {steps}, so their learning rates fall in different ways")


def check_steps(runs):
    """[seeds 1] Ends the program if resumed runs have taken different numbers of Adam's steps, which all agents share.

    Runs of the same options and number of environment steps may do so, if an earlier part had other options."""
    counts = []
    for run in runs:
        optimizer = (run.saved_parts or {}).get("optimizer", {})  # a checkpoint without one begins anew
        counts.append(float(optimizer.get("steps", 0)))
    for run, count in zip(runs, counts, strict=True):
        if count != counts[0]:
            text = f"{counts[0]:.0f} steps of Adam, {run.args.resume} {count:.0f}"
            sys.exit(f"error: {runs[0].args.resume} has taken {text}: continue them in processes of their own")


def print_table(args_of_agents):
    """[seeds 1] Prints a row for each agent, with its seed and the options in which agents differ."""
    columns = {}
    for name in OPTIONS_OF_AGENTS:
        texts = [str(getattr(args, name)) for args in args_of_agents]
        if name == "seed" or (name != "resume" and len(set(texts)) > 1):
            columns[name] = [name, *texts]
    widths = [max(map(len, column)) for column in columns.values()]
    for row in zip(*columns.values(), strict=True):
        print("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)))


if __name__ == "__main__":
    main(Runs)  # [seeds 1]
