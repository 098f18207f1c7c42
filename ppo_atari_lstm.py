# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "gymnasium>=1.4", "numpy>=2.0", "tensorboard>=2.20", "torch>=2.13", "tqdm>=4.67", "tyro>=1.0",
#   "ale-py>=0.12", "opencv-python-headless>=4.11",
# ]
# ///
"""PPO with memory for Atari games: ppo_atari.py and the 5 LSTM details of openai/baselines' ppo2, in one file.

    python ppo_atari_lstm.py --env-id BreakoutNoFrameskip-v4        (python ppo_atari_lstm.py --help lists every option)

A mark such as [core 5] names the implementation detail that its line carries; docs/details.md explains each.
"""

import ctypes
import dataclasses
import gc
import importlib.metadata
import io
import json
import math
import os
import pickle
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import torch
import tyro
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
    cuda: bool = True  # use the GPU where there is one
    threads: int = torch.get_num_threads()  # of torch on the CPU
    bf16: bool = False  # compute the network up to its heads in bfloat16, where the hardware makes that faster
    compile: bool = False  # compile the gradient: faster updates after some seconds; on the CPU it needs a C++ compiler
    track: bool = False  # log to Weights & Biases too; its variables apply (WANDB_MODE=offline, WANDB_PROJECT, ...)
    capture_video: bool = False  # film environment 0 into the run's folder
    save_every: int = 100  # updates between checkpoints; 0: only at the end
    resume: str | None = None  # folder (or checkpoint) of a run to go on with; options not given are as they were there
    # environment
    env_id: str = "BreakoutNoFrameskip-v4"  # one of the ids <Game>NoFrameskip-v4
    num_envs: int = 8  # environments stepped together, N
    frame_stack: int = 1  # newest frames that an observation holds
    # rollout
    total_timesteps: int = 10_000_000  # environment steps in all, over all environments
    num_steps: int = 128  # steps of each environment between two updates, M
    gamma: float = 0.99  # discount
    gae_lambda: float = 0.95  # lambda of generalized advantage estimation
    bootstrap_truncated: bool = False  # value the state in which a time limit cut an episode (ppo2: an end as any)
    # update
    learning_rate: float = 2.5e-4  # Adam's step size
    anneal_lr: bool = True  # let it fall linearly to 0
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
        self.screen = env.unwrapped.ale.getScreenRGB  # takes time: read only where it is seen
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
                break
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
                self.env.reset()
        return obs, info


class WarpFrame(gym.ObservationWrapper):
    """[atari 5] RGB frames, uint8 [210, 160, 3], become grey and then small, uint8 [84, 84]."""

    observation_space = gym.spaces.Box(0, 255, (84, 84), np.uint8)

    def observation(self, obs):
        return cv2.resize(cv2.cvtColor(obs, cv2.COLOR_RGB2GRAY), (84, 84), interpolation=cv2.INTER_AREA)


def make_env(args, index, folder):
    """Environment `index`, its observations images; info["episode"] has the score and length of a whole game."""
    if "NoFrameskip" not in args.env_id:  # [atari 2] the skipping is done here
        sys.exit(f"error: {args.env_id} is not an Atari id such as BreakoutNoFrameskip-v4; ppo.py takes vectors")
    # [atari 2] observations are the 128 bytes of RAM: MaxAndSkip reads the screen
    env = gym.make(args.env_id, render_mode="rgb_array" if args.capture_video and index == 0 else None, obs_type="ram")
    if not isinstance(env.action_space, gym.spaces.Discrete):
        sys.exit(f"error: {args.env_id}: Box actions need ppo_continuous_action.py, MultiDiscrete ppo_multidiscrete.py")
    if env.render_mode is not None:
        env = gym.wrappers.RecordVideo(env, folder / time.strftime("videos-%Y%m%d-%H%M%S"))
    env = gym.wrappers.RecordEpisodeStatistics(MaxAndSkip(NoopReset(env)))  # [atari 1] [atari 2]
    env = EpisodicLife(env)  # [atari 3]
    if "FIRE" in env.unwrapped.get_action_meanings():
        env = FireReset(env)  # [atari 4]
    env = gym.wrappers.TransformReward(WarpFrame(env), np.sign)  # [atari 5]; [atari 6] a reward is its sign
    # [atari 7] the newest frames, oldest first, uint8 [84, 84, frames]; black before an episode's first one
    env = gym.wrappers.FrameStackObservation(env, args.frame_stack, padding_type="zero")
    images = gym.spaces.Box(0, 255, (84, 84, args.frame_stack), np.uint8)  # [atari 7] last: convolutions are faster
    return gym.wrappers.TransformObservation(env, lambda x: cv2.merge(x).reshape(images.shape), images)  # [atari 7]


def make_envs(args, folder):
    """[core 1] N environments stepped as one; an ended episode restarts in the same step (common/cmd_util.py)."""
    if args.compile:
        sys.exit("error: --compile: here each minibatch is cut elsewhere, and compiled anew")  # [lstm 3]
    if args.num_envs % args.num_minibatches:  # [lstm 4]
        sys.exit("error: --num-minibatches must divide --num-envs: a minibatch holds whole environments")
    makers = [lambda index=index: Replay(make_env(args, index, folder)) for index in range(args.num_envs)]
    envs = gym.vector.SyncVectorEnv(makers, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    return envs


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


class Dense(nn.Linear):
    """[atari 8] Linear on whole images, [B, 64, 7, 7] to [B, 512]; in float32 on a CPU by a faster convolution."""

    def forward(self, images):
        if images.is_cuda or images.dtype != torch.float32:
            return super().forward(images.movedim(1, -1).flatten(1))
        return nn.functional.conv2d(images, self.weight.view(512, 7, 7, 64).movedim(-1, 1), self.bias).flatten(1)


def nature_cnn(channels):
    """[atari 8] The network of Mnih et al. (2015), float32 [B, channels, 84, 84] to [B, 512] (common/models.py)."""
    return nn.Sequential(
        layer_init(nn.Conv2d(channels, 32, 8, stride=4)), nn.ReLU(),
        layer_init(nn.Conv2d(32, 64, 4, stride=2)), nn.ReLU(),
        layer_init(nn.Conv2d(64, 64, 3)), nn.ReLU(),
        layer_init(Dense(7 * 7 * 64, 512)), nn.ReLU(),
    ).to(memory_format=torch.channels_last)  # fmt: skip


class Agent(nn.Module):
    """[core 13] Policy and value from one network with two heads (value_network=None in common/policies.py)."""

    def __init__(self, envs):
        super().__init__()
        self.bf16 = False  # [atari 8]
        channels, actions = envs.single_observation_space.shape[-1], envs.single_action_space.n  # [atari 7] frames
        self.trunk = nature_cnn(channels)  # [core 13] [atari 8]
        # [lstm 1] orthogonal weights of gain 1, one over all gates, and a single bias, of zeros (a2c/utils.py)
        self.lstm = nn.LSTM(512, 128)
        nn.init.orthogonal_(self.lstm.weight_ih_l0)
        nn.init.orthogonal_(self.lstm.weight_hh_l0)
        nn.init.zeros_(self.lstm.bias_ih_l0)
        nn.init.zeros_(self.lstm.bias_hh_l0.requires_grad_(False))
        self.policy = layer_init(nn.Linear(128, actions), std=0.01)  # [lstm 1]
        self.value = layer_init(nn.Linear(128, 1), std=1.0)

    def forward(self, obs, state, dones):
        """T steps of E environments: the policy and values, float32 [T * E], and the state after the last step.

        obs: uint8 [T * E, 84, 84, channels]; state: [lstm 5] hidden and cell before the first step, two [1, E, 128];
        dones: bool [T, E], true where an observation opens an episode.
        """
        pixels = obs.movedim(-1, 1).to(torch.bfloat16 if self.bf16 else torch.float32).div_(255)  # [atari 9]
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.bf16):  # [atari 8]
            hidden = self.trunk(pixels)  # [core 13]
        hidden = hidden.float()  # [atari 8]
        hidden, outputs = hidden.view(*dones.shape, 512), []
        # [lstm 3] the state starts again from zero with each episode; between two such steps the LSTM runs through
        cuts = dones.any(dim=1).nonzero().flatten().tolist()
        for piece, done in zip(hidden.tensor_split(cuts), dones.tensor_split(cuts), strict=True):
            if len(piece):
                output, state = self.lstm(piece, tuple(s * ~done[0, :, None] for s in state))
                outputs.append(output.flatten(0, 1))
        hidden = torch.cat(outputs)
        return Categorical(self.policy(hidden)), self.value(hidden).squeeze(-1), state


def gae(rewards, values, dones, next_value, next_done, gamma, gae_lambda):
    """[core 5] Generalized advantage estimation, float32 [M, N]; numpy, in float64 between the steps (ppo2/runner.py).

    rewards, values: float32 [M, N]; dones: bool [M, N], true where obs[t] opens an episode; next_*: [N]."""
    nonterminal = 1.0 - np.append(dones, [next_done], axis=0)[1:]  # 0 where the next observation opens an episode
    deltas = rewards + gamma * np.append(values, [next_value], axis=0)[1:] * nonterminal - values
    advantages, advantage = np.zeros_like(values), 0.0
    for t in reversed(range(len(deltas))):
        advantages[t] = advantage = deltas[t] + gamma * gae_lambda * nonterminal[t] * advantage
    return advantages


class Batch(NamedTuple):  # the B = M * N steps of a rollout, or the B of a minibatch
    obs: torch.Tensor  # [B, ...], as the environments give them
    actions: torch.Tensor  # [B, ...]
    logprobs: torch.Tensor  # float32 [B], of the actions when they were taken
    values: torch.Tensor  # float32 [B], predicted when they were taken
    returns: torch.Tensor  # float32 [B], advantages + values
    dones: torch.Tensor  # bool [M, N], [lstm 3] true where an observation opens an episode
    state: tuple  # [lstm 5] hidden and cell before the first step, float32 [1, N, 128]


def ppo_loss(agent, minibatch, clip_coef, args):
    """The loss of a minibatch, and a dict of scalars to log (ppo2/model.py)."""
    policy, values, _ = agent(minibatch.obs, minibatch.state, minibatch.dones)  # [lstm 5] the rollout's states again
    logratio = policy.log_prob(minibatch.actions) - minibatch.logprobs
    ratio = logratio.exp()
    # [core 7] normalization of advantages, in the minibatch, by the population's standard deviation
    advantages = minibatch.returns - minibatch.values
    advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    # [core 8] clipped surrogate objective
    policy_loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - clip_coef, 1 + clip_coef)).mean()
    # [core 9] value function loss clipping
    clipped_values = minibatch.values + (values - minibatch.values).clamp(-clip_coef, clip_coef)
    value_loss = 0.5 * torch.max((values - minibatch.returns) ** 2, (clipped_values - minibatch.returns) ** 2).mean()
    # [core 10] overall loss and entropy bonus
    entropy = policy.entropy().mean()
    loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss
    # [core 12] debug variables; the "approxkl" of ppo2 is half the mean square of the log ratio
    stats = dict(policy_loss=policy_loss, value_loss=value_loss, entropy=entropy)
    with torch.no_grad():
        stats |= dict(old_approx_kl=-logratio.mean(), approx_kl=(ratio - 1 - logratio).mean())
        stats |= dict(approx_kl_ppo2=(logratio**2).mean() / 2, clipfrac=((ratio - 1).abs() > clip_coef).float().mean())
    return loss, {name: scalar.detach() for name, scalar in stats.items()}


def gradient(agent, minibatch, clip_coef, args):
    """Gives parameters without a gradient that of a minibatch's loss, clipped; returns the scalars to log."""
    loss, stats = ppo_loss(agent, minibatch, clip_coef, args)
    loss.backward()
    parameters = [p for p in agent.parameters() if p.requires_grad]
    norm = torch.cat([p.grad.flatten() for p in parameters]).square().sum().sqrt()
    nn.utils.clip_grads_with_norm_(parameters, args.max_grad_norm, norm)  # [core 11] global gradient clipping
    return stats


def gradient_step(agent, optimizer, minibatch, clip_coef, args, gradient=gradient):
    """One step of Adam on the loss of a minibatch; returns the scalars to log. `gradient` may be compiled."""
    optimizer.zero_grad()
    stats = gradient(agent, minibatch, clip_coef, args)
    group = optimizer.param_groups[0]
    group["steps"] = group.get("steps", 0) + 1
    group["eps"] = 1e-5 / math.sqrt(1 - 0.999 ** group["steps"])  # [core 3] 1e-5 as TensorFlow adds it: uncorrected
    optimizer.step()
    return stats


# PLUMBING: the same in every script
def load_checkpoint(path):
    """(state, folder) of a run's newest checkpoint, or of the one given; reads plain values and runs no code."""
    *older, file = sorted(Path(path).glob("checkpoint_*.pt")) or [Path(path)]
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError):
        hint = f"; the one before is {older[-1]}" if older else ""
        sys.exit(f"error: --resume {path}: {file} is not a whole checkpoint of plain values{hint}")
    if state.get("script") != Path(__file__).name:
        sys.exit(f"error: --resume {path}: a run of {state.get('script')}, not of {Path(__file__).name}")
    return state, file.parent


class Replay(gym.Wrapper):
    """Remembers what brought its environment to where it is, so that a resumed run can bring its own there again."""

    info = {"episode": None}

    def reset(self, **kwargs):
        if "episode" in self.info or kwargs.get("seed") is not None:  # a game begins; after a lost life it goes on
            self.past = [kwargs, self.unwrapped.np_random.bit_generator.state]
        else:
            self.past.append(None)
        obs, self.info = self.env.reset(**kwargs)
        return obs, self.info

    def step(self, action):
        self.past.append(action.tolist())
        *result, self.info = self.env.step(action)
        return *result, self.info

    def replay(self, past):
        """Repeats the past of another, all its actions; False where a game ends too early, by chance."""
        kwargs, self.unwrapped.np_random.bit_generator.state, *actions = past
        self.reset(**kwargs)
        for action in actions:
            self.reset() if action is None else self.step(np.asarray(action, self.action_space.dtype))
            if "episode" in self.info:
                return False
        return True


class Run:
    """A run of the script: its random generators, folder, log, checkpoints and progress bar."""

    def __init__(self, args):
        """Ends the program where a number cannot work, seeds the generators, names the folder; writes nothing yet."""
        for name, value in vars(args).items():
            least = int(type(value) is int and name not in ("seed", "save_every", "num_levels", "start_level"))
            if isinstance(value, int | float) and not least <= value < math.inf:
                sys.exit(f"error: --{name.replace('_', '-')} must be a number from {least} up, not {value}")
        self.batch_size = args.num_envs * args.num_steps
        self.num_updates = args.total_timesteps // self.batch_size
        if self.batch_size % args.num_minibatches or self.num_updates < 1:
            sys.exit(f"error: a rollout is {self.batch_size} steps; --num-minibatches must divide it, training hold it")
        torch.set_num_threads(args.threads)
        if hasattr(ctypes.pythonapi, "mallopt"):  # glibc: keep freed memory, which each minibatch would fetch anew
            ctypes.pythonapi.mallopt(-4, 0)  # M_MMAP_MAX
            ctypes.pythonapi.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        torch.manual_seed(args.seed)
        torch.backends.cudnn.deterministic = True
        name = f"{args.env_id}__{Path(__file__).stem}__{args.seed}__{time.strftime('%Y%m%d-%H%M%S')}"
        self.args, self.folder, self.state = args, Path("runs", name.replace("/", "-")), None
        self.global_step, self.returns, self.signal = 0, [], 0
        if args.resume is not None:
            self.state, self.folder = load_checkpoint(args.resume)
            self.global_step, self.returns = self.state["global_step"], self.state["returns"]
            if (before := self.state["args"]["env_id"]) != args.env_id:
                sys.exit(f"error: --resume {args.resume}: a run on {before}, not on {args.env_id}")

    def start(self, envs, **parts):
        """Opens folder and log; a resumed log is cut back to its checkpoint. `parts` are what a checkpoint saves.

        Returns the observations [N, ...] and dones, bool [N], to begin with, and what else the checkpoint carries."""
        self.parts = parts | ({"envs": envs} if hasattr(envs, "state_dict") else {})
        self.replays = [env for env in getattr(envs.unwrapped, "envs", ()) if isinstance(env, Replay)]
        carry, wandb = (), importlib.import_module("wandb") if self.args.track else None
        if self.state is not None:
            for name, part in self.parts.items():
                part.load_state_dict(self.state["parts"][name])
            pasts = self.state.get("pasts", ())
            if 0 < len(pasts) == len(self.replays) and all(map(Replay.replay, self.replays, pasts)):
                carry = [tensor.numpy() for tensor in self.state["carry"]]
            torch.set_rng_state(self.state["torch"])
            torch.cuda.set_rng_state_all(self.state["cuda"][: torch.cuda.device_count()])
            for newer in (f for f in self.folder.glob("checkpoint_*.pt") if f.stem[11:] > f"{self.global_step:012}"):
                newer.unlink()  # first, as their log is cut away next
            for file in self.folder.glob("events.*"):
                os.truncate(file, self.state["log"].get(file.name, 0))
        carry = carry or (envs.reset(seed=self.args.seed + self.global_step)[0], np.zeros(self.args.num_envs, bool))
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / Path(__file__).name).write_bytes(Path(__file__).read_bytes())
        versions = {"python": sys.version} | {p.name: p.version for p in importlib.metadata.distributions()}
        about = {"command": sys.argv, "args": vars(self.args), "versions": versions}
        (self.folder / "run.json").write_text(json.dumps(about, indent=2))
        if wandb is not None:
            wandb.init(id=self.folder.name, resume="allow", dir=self.folder, config=about, sync_tensorboard=True)
        self.writer = SummaryWriter(self.folder)
        gc.freeze()  # what is there stays to the end: garbage collection, 0.2 s otherwise, need not go through it
        print(f"{self.folder}: watch it with tensorboard --logdir {self.folder.parent}", flush=True)
        return carry

    def stop(self, number, frame):
        """On Ctrl-C or SIGTERM: ends the run after the update under way; once more ends the program at once."""
        self.signal = number
        signal.signal(number, signal.SIG_DFL)
        os.write(2, b"\nstopping after this update; once more stops at once\n")  # print is not safe here

    def updates(self):
        """Yields the updates to do, 1 to the last, and shows the progress: a bar, or now and then a line in a file."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.stop)
        first, start, done, last = self.global_step, time.time(), self.global_step // self.batch_size, self.num_updates
        line = {"mininterval": 30, "bar_format": "{n_fmt}/{total_fmt}, {rate_fmt}, {remaining} left{postfix}\n"}
        form = {"unit": " steps", "unit_scale": self.batch_size} | ({} if sys.stderr.isatty() else line)
        for update in (bar := tqdm(range(done + 1, last + 1), initial=done, total=last, **form)):
            yield update
            self.writer.add_scalar("charts/SPS", (self.global_step - first) / (time.time() - start), self.global_step)
            bar.set_postfix_str(f"return {np.mean(self.returns or math.nan):.4g}", refresh=False)
            if update == last or self.signal or self.args.save_every and update % self.args.save_every == 0:
                self.save()
            if self.signal and update < last:
                print(f"stopped; --resume {self.folder} goes on")
                sys.exit(128 + self.signal)

    def log_step(self, infos):
        """Counts a step of the environments, and logs each episode that ended in it."""
        self.global_step += self.args.num_envs
        ended = infos.get("final_info", {})
        for i in np.flatnonzero(ended.get("_episode", ())):
            self.returns = [*self.returns[-99:], float(ended["episode"]["r"][i])]
            self.writer.add_scalar("charts/episodic_return", self.returns[-1], self.global_step)
            self.writer.add_scalar("charts/episodic_length", ended["episode"]["l"][i], self.global_step)

    def log_update(self, update, scalars, **rollout):
        """Logs the scalars of an update; ends the program where a number of the rollout or a loss is not finite."""
        for name, scalar in scalars.items():
            self.writer.add_scalar(name, scalar, self.global_step)
        loss = torch.tensor(scalars["losses/policy_loss"] + scalars["losses/value_loss"])
        for name, numbers in {**rollout, "loss": loss}.items():
            if not numbers.isfinite().all():
                sys.exit(f"error: NaN or inf in the {name} of update {update}; {self.folder} has the one before")

    def save(self):
        """Writes a checkpoint in full before it gets its name; keeps the newest two."""
        self.writer.flush()
        state = {"script": Path(__file__).name, "args": vars(self.args), "global_step": self.global_step}
        state["parts"] = {name: part.state_dict() for name, part in self.parts.items()}
        state |= {"pasts": [env.past for env in self.replays], "carry": [torch.as_tensor(x) for x in self.carry]}
        state |= {"returns": self.returns, "torch": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all()}
        state["log"] = {file.name: file.stat().st_size for file in self.folder.glob("events.*")}
        torch.save(state, whole := io.BytesIO())
        try:
            temporary = self.folder / "checkpoint.tmp"
            temporary.write_bytes(whole.getbuffer())
            temporary.replace(self.folder / f"checkpoint_{self.global_step:012}.pt")
        finally:  # the disk may be full
            temporary.unlink(missing_ok=True)
        for old in sorted(self.folder.glob("checkpoint_*.pt"))[:-2]:
            old.unlink()


def main():
    """Trains as the command line says; an error that the user can put right is one line, without a traceback."""
    try:
        args = tyro.cli(Args, description=__doc__)
        if args.resume is not None:  # options that are not given stay as they were in that run
            args = tyro.cli(Args, default=Args(**load_checkpoint(args.resume)[0]["args"]))
        train(args)
    except KeyboardInterrupt:  # before the first update
        sys.exit(128 + signal.SIGINT)
    except (OSError, ModuleNotFoundError, gym.error.Error) as error:
        hint = f": pip install {error.name}" if getattr(error, "name", None) else ""
        sys.exit(f"error: {error}{hint}")


def train(args):
    """Trains an agent and returns it. Raises SystemExit, before any training, where the arguments cannot work."""
    run = Run(args)
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    envs = make_envs(args, run.folder)
    agent = Agent(envs).to(device)
    agent.bf16 = args.bf16  # [atari 8]
    optimizer = torch.optim.Adam(agent.parameters(), args.learning_rate, fused=True)
    torch._dynamo.config.trace_autograd_ops = True  # the backward pass is part of what --compile compiles
    step = partial(gradient_step, gradient=torch.compile(gradient)) if args.compile else gradient_step
    next_obs, next_done, *state = run.start(envs, agent=agent, optimizer=optimizer)  # [lstm 2] of a resumed run
    # [lstm 2] hidden and cell
    state = [torch.from_numpy(s).to(device) for s in state] or [torch.zeros(1, args.num_envs, 128, device=device)] * 2

    for update in run.updates():
        remaining = 1.0 - (update - 1.0) / run.num_updates
        optimizer.param_groups[0]["lr"] = args.learning_rate * (remaining if args.anneal_lr else 1.0)  # [core 4]
        clip_coef = args.clip_coef * (remaining if args.anneal_clip else 1.0)  # [aux 1]

        rollout, rewards, dones, stats = [], [], [], []
        initial_state = state  # [lstm 5]
        # [atari 8] the outer autocast keeps the weights that --bf16 converts until the rollout ends
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            for _ in range(args.num_steps):
                obs = torch.from_numpy(next_obs).to(device)
                policy, value, state = agent(obs, state, torch.from_numpy(next_done[None]).to(device))  # [lstm 3]
                action = policy.sample()
                rollout.append((obs, action, policy.log_prob(action), value))
                dones.append(next_done)
                next_obs, reward, terminated, truncated, infos = envs.step(action.cpu().numpy())
                next_done = terminated | truncated
                if args.bootstrap_truncated and (cut := truncated & ~terminated).any():
                    final_obs = torch.from_numpy(np.stack(infos["final_obs"][cut])).to(device)
                    cut_state = tuple(s[:, torch.from_numpy(cut).to(device)] for s in state)  # [lstm 3] not reset yet
                    going_on = torch.zeros(1, cut.sum(), dtype=torch.bool, device=device)  # [lstm 3]
                    reward[cut] += args.gamma * agent(final_obs, cut_state, going_on)[1].cpu().numpy()  # [lstm 3]
                rewards.append(reward.astype(np.float32))
                run.log_step(infos)
            # [lstm 3] where the last observation opens an episode
            last_obs, last_done = torch.from_numpy(next_obs).to(device), torch.from_numpy(next_done[None]).to(device)
            next_value = agent(last_obs, state, last_done)[1].cpu().numpy()  # [lstm 3]

        obs, actions, logprobs, values = (torch.stack(column) for column in zip(*rollout, strict=True))
        rewards = np.stack(rewards)
        advantages = gae(rewards, values.cpu().numpy(), dones, next_value, next_done, args.gamma, args.gae_lambda)
        returns = torch.from_numpy(advantages).to(device) + values
        columns = obs, actions, logprobs, values, returns, torch.from_numpy(np.stack(dones)).to(device)  # [lstm 4]

        for _ in range(args.update_epochs):
            # [core 6] [lstm 4] a minibatch is the sequences of some of the environments
            for n in torch.randperm(args.num_envs, device=device).chunk(args.num_minibatches):
                *flat, done = (x.index_select(1, n) for x in columns)
                minibatch = Batch(*(x.flatten(0, 1) for x in flat), done, tuple(s[:, n] for s in initial_state))
                stats.append(step(agent, optimizer, minibatch, clip_coef, args))
            if args.target_kl is not None and stats[-1]["approx_kl"] > args.target_kl:  # [aux 3]
                break
        scalars = {f"losses/{name}": torch.stack([s[name] for s in stats]).mean().item() for name in stats[0]}
        scalars["losses/explained_variance"] = (1 - (returns - values).var() / returns.var()).item()
        scalars["charts/learning_rate"] = optimizer.param_groups[0]["lr"]
        run.log_update(update, scalars, observations=obs, rewards=torch.from_numpy(rewards))
        run.carry = next_obs, next_done, *(s.cpu() for s in state)  # [lstm 5]
    envs.close()
    return agent


if __name__ == "__main__":
    main()
