# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "filelock>=3.20", "gymnasium>=1.4", "numpy>=2.0", "tensorboard>=2.21", "torch>=2.13,<2.16", "tqdm>=4.67",
#   "tyro>=1.0",
#   "ale-py>=0.12", "opencv-python-headless>=4.11",
# ]
# ///
"""PPO with memory for Atari games: ppo_atari.py and the 5 LSTM details of openai/baselines' ppo2, in one file.

    python ppo_atari_lstm.py --env-id BreakoutNoFrameskip-v4        (--help lists every option)

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
from functools import partial
from pathlib import Path

import ale_py  # noqa: F401 (registers the games)
import cv2
import filelock
import gymnasium as gym
import numpy as np
import torch
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
    bf16: bool = False  # compute the network up to the LSTM in bfloat16; slow where the hardware does not support it
    threads: int = torch.get_num_threads()  # number of CPU threads for torch
    track: bool = False  # also log to Weights & Biases, which is configured by WANDB_MODE, WANDB_PROJECT, ...
    capture_video: bool = False  # record videos of environment 0 in the run's folder
    save_every: int = 100  # updates between checkpoints; 0 saves only at the start and the end
    resume: str | None = None  # the folder of a run to continue, or a checkpoint to continue in a new folder
    # environment
    env_id: str = "BreakoutNoFrameskip-v4"  # an Atari game, <Game>NoFrameskip-v4
    num_envs: int = 8  # number of parallel environments, N
    async_envs: bool = False  # step each environment in its own process
    frame_stack: int = 1  # number of frames in an observation; the LSTM remembers earlier ones [atari 7]
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


class NoopReset(gym.Wrapper):
    """[atari 1] Starts each game with 1 to 30 no-ops, so that games differ."""

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        for _ in range(self.unwrapped.np_random.integers(1, 31)):
            obs, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                obs, info = self.env.reset()
        return obs, info


class MaxAndSkip(gym.Wrapper):
    """[atari 2] Repeats an action for 4 frames, sums the rewards, and takes the maximum of the last two frames."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # for enjoy.py: 60 frames a second / 4; ALE says 30

    def __init__(self, env):
        super().__init__(env)
        self.read_screen = env.unwrapped.ale.getScreenRGB  # [speed] called only for the frames that are used
        self.frames = np.zeros((2, *self.read_screen().shape), dtype=np.uint8)

    def reset(self, **kwargs):
        _, info = self.env.reset(**kwargs)  # the observation is the RAM (make_env)
        return self.read_screen(), info

    def step(self, action):
        total_reward = 0.0
        for i in range(4):
            _, reward, terminated, truncated, info = self.env.step(action)
            total_reward += reward
            if i >= 2:
                self.read_screen(self.frames[i - 2])  # into this array
            if terminated or truncated:
                break  # before the fourth frame this leaves frames of earlier actions, as in ppo2
        return np.maximum(*self.frames), total_reward, terminated, truncated, info


class EpisodicLife(gym.Wrapper):
    """[atari 3] Ends the episode when a life is lost, but restarts the game only when it is over."""

    def __init__(self, env):
        super().__init__(env)
        self.lives = 0
        self.game_over = True

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.game_over = terminated or truncated
        lives = self.unwrapped.ale.lives()
        lost = 0 < lives < self.lives  # at 0 lives the game itself ends, in some games a few frames later
        self.lives = lives
        return obs, reward, terminated or lost, truncated, info

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.game_over = True  # a seed starts a new game
        if not self.game_over:
            obs, _, terminated, truncated, info = self.env.step(0)
            self.game_over = terminated or truncated
        if self.game_over:
            obs, info = self.env.reset(seed=seed, options=options)
        self.lives = self.unwrapped.ale.lives()
        return obs, info


class FireReset(gym.Wrapper):
    """[atari 4] Takes actions 1 (FIRE) and 2, to start games that wait for FIRE."""

    def reset(self, **kwargs):
        self.env.reset(**kwargs)
        for action in (1, 2):
            obs, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                self.env.reset()  # as in ppo2, the observation returned is still that of the last step
        return obs, info


class WarpFrame(gym.ObservationWrapper):
    """[atari 5] Converts RGB frames, uint8 [H, 160, 3], to gray and resizes them, uint8 [84, 84]."""

    observation_space = gym.spaces.Box(0, 255, (84, 84), np.uint8)

    def observation(self, obs):
        return cv2.resize(cv2.cvtColor(obs, cv2.COLOR_RGB2GRAY), (84, 84), interpolation=cv2.INTER_AREA)


def make_env(args, index, folder):
    """Environment `index`, with image observations; info["episode"] has the score and length of a whole game."""
    record = args.capture_video and index == 0
    # [speed] the observation is the RAM, as MaxAndSkip reads the screen when it is needed
    env = gym.make(args.env_id, obs_type="ram", render_mode="rgb_array" if record else None)
    if env.spec.kwargs.get("frameskip") != 1:  # [check] MaxAndSkip repeats each action, so the game itself must not
        sys.exit(f"error: {args.env_id} is not a NoFrameskip game such as PongNoFrameskip-v4; see docs/environment.md")
    if record and folder is not None:  # enjoy.py has no folder: it shows the frames itself
        # [library] videos of up to 6000 frames; gymnasium begins them with the games 0, 1, 8, 27, ..., 1000, 2000, ...
        videos = folder / time.strftime("videos-%Y%m%d-%H%M%S")
        env = gym.wrappers.RecordVideo(env, videos, video_length=6000, fps=60)  # [library] ALE's metadata say 30
    env = NoopReset(env)
    env = MaxAndSkip(env)
    env = gym.wrappers.RecordEpisodeStatistics(env)  # [library] counts whole games, so it stands before EpisodicLife
    env = EpisodicLife(env)
    if "FIRE" in env.unwrapped.get_action_meanings():
        env = FireReset(env)
    env = WarpFrame(env)
    env = gym.wrappers.TransformReward(env, np.sign)  # [atari 6] the sign of each reward
    # [atari 7] the last frames, oldest first, uint8 [frames, 84, 84]; black ones precede an episode's first frame
    env = gym.wrappers.FrameStackObservation(env, args.frame_stack, padding_type="zero")
    # [speed] the channels come last, which makes convolutions faster
    shape = (84, 84, args.frame_stack)
    space = gym.spaces.Box(0, 255, shape, np.uint8)
    # cv2.merge() makes the frames the channels of a new image; an image of one channel lacks the last axis
    return gym.wrappers.TransformObservation(env, lambda frames: cv2.merge(frames).reshape(shape), space)


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


def make_workers(makers, args, mode):
    """The environments, each in a process of its own."""
    makers = [partial(make_in_worker, make, os.getpid(), args.seed + i) for i, make in enumerate(makers)]
    # multiprocessing also starts a process that tracks resources; it inherits that signals are ignored.
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    # Forked workers would copy the state of generators, and so all draw the same numbers.
    envs = gym.vector.AsyncVectorEnv(makers, context="spawn", autoreset_mode=mode)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    return envs


def make_envs(args, folder=None):
    """[core 1] N environments stepped as one, each reset in the step that ends its episode (common/vec_env).

    So the observation after an episode's last step is the first of the next episode; infos["final_obs"] has the last.
    folder: where --capture-video puts its videos; None records nothing."""
    # [check] a minibatch holds whole environments
    if args.num_envs % args.num_minibatches:
        sys.exit("error: --num-minibatches must divide --num-envs, as a minibatch holds all steps of its environments")
    makers = [partial(make_env, args, index, folder) for index in range(args.num_envs)]
    mode = gym.vector.AutoresetMode.SAME_STEP
    if args.async_envs:
        return make_workers(makers, args, mode)
    return gym.vector.SyncVectorEnv(makers, autoreset_mode=mode)


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
    """[core 13] [atari 8] Policy and value function as one network with two heads and a memory (cnn_lstm of ppo2)."""

    def __init__(self, envs, bf16=False):
        super().__init__()
        self.bf16 = bf16  # [speed] in the trunk; the weights stay float32
        channels = envs.single_observation_space.shape[-1]
        actions = envs.single_action_space.n
        self.trunk = nature_cnn(channels)
        # [lstm 1] each weight matrix, all four gates as one, is orthogonal with gain 1; zero bias (a2c/utils.py)
        self.lstm = nn.LSTM(512, 128)
        nn.init.orthogonal_(self.lstm.weight_ih_l0)
        nn.init.orthogonal_(self.lstm.weight_hh_l0)
        nn.init.zeros_(self.lstm.bias_ih_l0)
        nn.init.zeros_(self.lstm.bias_hh_l0)
        self.lstm.bias_hh_l0.requires_grad_(False)  # ppo2 has one bias, so torch's second one stays 0
        self.policy = layer_init(nn.Linear(128, actions), std=0.01)
        self.value = layer_init(nn.Linear(128, 1), std=1.0)

    def initial_state(self, num_envs):
        """[lstm 2] Hidden and cell state before an environment's first step: zeros, float32 [1, num_envs, 128] each."""
        device = self.policy.weight.device
        return torch.zeros(1, num_envs, 128, device=device), torch.zeros(1, num_envs, 128, device=device)

    def forward(self, obs, state, dones):
        """[lstm 5] The policy and the values, float32 [T * E], of T steps of E environments, and the final state.

        obs: uint8 [T * E, 84, 84, channels]; state: (h_0, c_0) as in nn.LSTM, float32 [1, E, 128] each;
        dones: bool [T * E], true where an observation begins an episode after another. Row t * E + e is step t of
        environment e."""
        frames = obs.movedim(-1, 1)
        pixels = (frames.bfloat16() if self.bf16 else frames.float()) / 255  # [atari 9] scaled to [0, 1]
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.bf16):  # [speed]
            features = self.trunk(pixels).float()

        # [lstm 3] the state is reset to zero at the start of an episode; the steps between two resets take one call
        num_envs = state[0].shape[1]
        features = features.view(-1, num_envs, 512)
        dones = dones.view(-1, num_envs)
        # torch.export, which sees a single step, cannot trace cuts at places that depend on the data
        starts = [] if len(dones) == 1 else dones.any(dim=1).nonzero().flatten().tolist()
        outputs = []
        # only the first step of a piece may begin episodes
        for piece, done in zip(features.tensor_split(starts), dones.tensor_split(starts), strict=True):
            if len(piece) > 0:  # the first is empty if an episode begins with the first step
                state = tuple(s * ~done[0, :, None] for s in state)
                output, state = self.lstm(piece, state)
                outputs.append(output.flatten(0, 1))
        features = torch.cat(outputs)
        return Categorical(self.policy(features)), self.value(features).squeeze(-1), state


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
    [lstm 5] dones, bool [B]; state: (h_0, c_0) before the rollout's first step, float32 [1, E, 128] each.
    args: the options, with learning_rate and clip_coef as annealed."""
    policy, values, *_ = agent(minibatch["obs"], minibatch["state"], minibatch["dones"])
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
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:  # each process would make the same run
        sys.exit("error: several processes need ppo_atari_multigpu.py or a script made from it (docs/scale.md)")
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
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    torch.set_num_threads(args.threads)
    seed = args.seed + run.global_step  # so a resume does not repeat the random numbers of the start
    envs = make_envs(dataclasses.replace(args, seed=seed), run.folder)
    torch.manual_seed(seed)
    agent = Agent(envs, args.bf16).to(device)  # [speed] --bf16
    optimizer = Adam(agent)
    # Pass here, by name, what a resume must restore: objects with state_dict() and load_state_dict(). A run that is
    # resumed must have the same names, and the same keys in each state_dict().
    run.start(device, agent=agent, optimizer=optimizer)
    # The noise of actions and the permutations have a generator of their own, as an environment may seed torch's.
    generator = torch.Generator(device).manual_seed(torch.randint(2**62, ()).item())
    next_obs, _ = envs.reset(seed=seed)  # a resume starts new episodes
    next_done = np.zeros(args.num_envs, dtype=bool)  # [lstm 3] before the first step, no episode has ended
    state = agent.initial_state(args.num_envs)  # [lstm 2]

    for update in run.updates():  # which also saves checkpoints between updates, and ends a run that is stopped
        # [core 4] annealing of the learning rate, and [aux 1] of the clip range
        remaining = 1.0 - (update - 1) / run.num_updates  # 1 in the first update, 1 / num_updates in the last
        learning_rate = args.learning_rate * (remaining if args.anneal_lr else 1.0)
        clip_coef = args.clip_coef * (remaining if args.anneal_clip else 1.0)
        annealed_args = dataclasses.replace(args, learning_rate=learning_rate, clip_coef=clip_coef)

        # The rollout: the policy acts for M steps.
        steps = []
        rewards = np.zeros((args.num_steps, args.num_envs), dtype=np.float32)
        dones = np.zeros((args.num_steps, args.num_envs), dtype=bool)
        initial_state = state  # [lstm 5]
        # [speed] With --bf16, the agent casts its weights to bfloat16 in an autocast block, and torch keeps the results
        # until the outermost such block ends. This block casts nothing itself: it keeps them for the whole rollout.
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            for t in range(args.num_steps):
                obs = torch.from_numpy(next_obs).to(device)  # needs no copy: each step() returns a new array
                done = torch.from_numpy(next_done).to(device)
                # [speed] the trunk is expensive, so log probabilities and values are kept from this pass
                policy, value, state, *_ = agent(obs, state, done)  # [lstm 3] resets the state where done
                action = policy.sample(generator)
                # each name, [N, ...], becomes a column of the batch
                step = dict(obs=obs, actions=action, logprobs=policy.log_prob(action), values=value)
                step |= dict(dones=done)  # [lstm 3] the update resets the state at the same steps
                steps.append(step)
                # a copy of the actions, as an environment may change them in place
                next_obs, reward, terminated, truncated, infos = envs.step(action.cpu().numpy().copy())
                next_done = terminated | truncated  # [lstm 3]
                rewards[t] = reward
                dones[t] = next_done  # [lstm 3]
                if args.bootstrap_truncated:
                    # To gae() a time limit is an end. Adding gamma * V(the episode's last observation) to its last
                    # reward has the effect of bootstrapping there.
                    cut = truncated & ~terminated
                    if cut.any():
                        final_obs = torch.from_numpy(np.stack(infos["final_obs"][cut])).to(device)
                        # [lstm 3] the final observation continues its episode: its state is not reset
                        final_state = tuple(s[:, torch.from_numpy(cut).to(device)] for s in state)
                        no_dones = torch.zeros(len(final_obs), dtype=torch.bool, device=device)
                        _, final_value, *_ = agent(final_obs, final_state, no_dones)  # [lstm 3]
                        rewards[t, cut] += args.gamma * final_value.cpu().numpy()
                run.log_step(infos)

            # Row t * N + i of the batch is step t of environment i.
            batch = {name: torch.cat([step[name] for step in steps]) for name in steps[0]}
            values = batch["values"]  # [speed] kept from the rollout
            # [lstm 3] the last observation may begin an episode as well
            inputs = (torch.from_numpy(next_obs).to(device), state, torch.from_numpy(next_done).to(device))
            _, next_value, *_ = agent(*inputs)  # [lstm 3]

        # The update: epochs of gradient steps on minibatches of the rollout.
        values_by_step = values.view(rewards.shape).cpu().numpy()
        advantages = gae(rewards, values_by_step, dones, next_value.cpu().numpy(), args.gamma, args.gae_lambda)
        returns = torch.from_numpy(advantages).to(device).flatten() + values
        batch["returns"] = returns
        stats = []
        for _ in range(args.update_epochs):
            # [core 6] minibatches of a new permutation in each epoch, [lstm 4] of environments with all of their steps
            permutation = torch.randperm(args.num_envs, generator=generator, device=device)
            for chosen in permutation.chunk(args.num_minibatches):
                # [lstm 4] the rows of the chosen environments in the batch, in order of time, as forward() needs them
                all_rows = torch.arange(run.batch_size, device=device).view(args.num_steps, args.num_envs)
                rows = all_rows[:, chosen].flatten()
                minibatch = {name: column.index_select(0, rows) for name, column in batch.items()}
                # [lstm 5] the states at the start of the rollout; later ones are computed again
                minibatch["state"] = tuple(s[:, chosen] for s in initial_state)
                stats.append(gradient_step(agent, optimizer, minibatch, annealed_args))
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
