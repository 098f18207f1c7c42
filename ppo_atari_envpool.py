# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "filelock>=3.20", "gymnasium>=1.4", "numpy>=2.0", "tensorboard>=2.20", "torch>=2.13,<2.16", "tqdm>=4.67",
#   "tyro>=1.0",
#   "envpool>=1.2,<1.2.6",
# ]
# ///
"""PPO for Atari games at speed: ppo_atari.py with the environments and 5 of the 9 Atari details in EnvPool's C++.

    python ppo_atari_envpool.py --env-id Breakout-v5        (--help lists every option)

Marks such as [core 5] refer to docs/details.md, paths such as ppo2/model.py to openai/baselines.
"""

import atexit
import contextlib
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
from functools import partial
from pathlib import Path

import envpool  # pip install ".[envpool]"
import gymnasium as gym
import numpy as np
import torch
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
    # environment
    env_id: str = "Breakout-v5"  # a game of EnvPool, <Game>-v5
    num_envs: int = 8  # number of parallel environments, N
    frame_stack: int = 4  # number of frames in an observation [atari 7]
    machado: bool = False  # protocol of Machado et al. (2018): sticky actions, all 18 actions, episodes of all lives
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

    def sample(self):
        """Actions, int64 [B], drawn by the Gumbel-max trick (common/distributions.py)."""
        return (self.logits - torch.empty_like(self.logits).exponential_().log()).argmax(-1)

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
        self.dtype = torch.bfloat16 if bf16 else torch.float32  # [speed]
        channels, actions = envs.single_observation_space.shape[-1], envs.single_action_space.n
        self.trunk = nature_cnn(channels)
        self.policy = layer_init(nn.Linear(512, actions), std=0.01)
        self.value = layer_init(nn.Linear(512, 1), std=1.0)

    def forward(self, obs):
        """The policy and the values, float32 [B], of observations, uint8 [B, 84, 84, channels]."""
        pixels = obs.movedim(-1, 1).to(self.dtype) / 255  # [atari 9] scaled to [0, 1]
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):  # [speed]
            features = self.trunk(pixels).float()
        return Categorical(self.policy(features)), self.value(features).squeeze(-1)


def gae(rewards, values, dones, next_value, next_done, gamma, gae_lambda):
    """[core 5] Generalized advantage estimation in numpy: the advantages, float32 [M, N] (ppo2/runner.py).

    rewards, values: float32 [M, N]; dones: bool [M, N], true where obs[t] begins an episode; next_*: [N]."""
    nonterminal = 1.0 - np.array([*dones[1:], next_done])  # 0 where the next observation begins an episode
    deltas = rewards + gamma * np.array([*values[1:], next_value]) * nonterminal - values
    advantages, advantage = np.zeros_like(values), 0.0
    for t in reversed(range(len(deltas))):
        advantages[t] = advantage = deltas[t] + gamma * gae_lambda * nonterminal[t] * advantage
    return advantages


def ppo_loss(agent, minibatch, clip_coef, args):
    """The loss of a minibatch, and a dict of scalars to log (ppo2/model.py).

    minibatch: obs and actions, [B, ...]; logprobs and values at the time of the rollout, and returns, float32 [B]."""
    policy, values = agent(minibatch["obs"])
    logratio = policy.log_prob(minibatch["actions"]) - minibatch["logprobs"]
    ratio = logratio.exp()

    # [core 7] per-minibatch normalization of advantages, by the population standard deviation
    advantages = minibatch["returns"] - minibatch["values"]  # as in ppo2; equal to gae()'s up to rounding
    advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    assert ratio.shape == advantages.shape == values.shape  # each [B]: other shapes would broadcast

    # [core 8] clipped surrogate objective
    policy_loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - clip_coef, 1 + clip_coef)).mean()

    # [core 9] value function loss clipping
    clipped_values = minibatch["values"] + (values - minibatch["values"]).clamp(-clip_coef, clip_coef)
    squared_error, clipped_error = (values - minibatch["returns"]) ** 2, (clipped_values - minibatch["returns"]) ** 2
    value_loss = 0.5 * torch.max(squared_error, clipped_error).mean()

    # [core 10] overall loss and entropy bonus
    entropy = policy.entropy().mean()
    loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss

    # [core 12] debug variables; ppo2's "approxkl" is half the mean square of the log ratio
    stats = dict(policy_loss=policy_loss, value_loss=value_loss, entropy=entropy)
    with torch.no_grad():
        stats |= dict(old_approx_kl=-logratio.mean(), approx_kl=(ratio - 1 - logratio).mean())
        stats |= dict(approx_kl_ppo2=(logratio**2).mean() / 2, clipfrac=((ratio - 1).abs() > clip_coef).float().mean())
    return loss, {name: scalar.detach() for name, scalar in stats.items()}


def clipped_gradient(agent, minibatch, clip_coef, args):
    """Computes the gradient of the loss and clips it; returns the scalars to log."""
    loss, stats = ppo_loss(agent, minibatch, clip_coef, args)
    loss.backward()

    # [core 11] global gradient clipping
    stats["grad_norm"] = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
    return stats


def adam_step(optimizer):
    """[core 3] Takes a step of Adam with TensorFlow's epsilon: 1e-5, added before the bias correction, not after it."""
    for group in optimizer.param_groups:
        group["steps"] = group.get("steps", 0) + 1
        group["eps"] = 1e-5 / math.sqrt(1 - 0.999 ** group["steps"])  # torch divides by this root, then adds eps
    optimizer.step()
    optimizer.zero_grad()


def train(args, run):
    """Trains an agent and returns it; `run` holds the run's folder, log, progress bar and checkpoints."""
    assert 0 <= args.gamma <= 1 and 0 <= args.gae_lambda <= 1 and min(args.clip_coef, args.max_grad_norm) >= 0
    if run.batch_size % args.num_minibatches or run.batch_size == args.num_minibatches:
        sys.exit(f"error: --num-minibatches must cut a rollout's {run.batch_size} steps into equal parts of 2 or more")
    if run.updates_done >= run.num_updates:
        sys.exit(f"error: no rollout of {run.batch_size} steps fits from step {run.global_step} to --total-timesteps")
    torch.manual_seed(args.seed + run.global_step)
    torch.set_num_threads(args.threads)
    if hasattr(ctypes.pythonapi, "mallopt"):  # [speed] glibc keeps freed memory, which saves page faults
        ctypes.pythonapi.mallopt(-4, 0)  # M_MMAP_MAX
        ctypes.pythonapi.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = args.tf32
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    envs = make_envs(args, run.folder)
    agent = Agent(envs, args.bf16).to(device)  # [speed]
    optimizer = torch.optim.Adam(agent.parameters(), args.learning_rate, fused=True)
    gradient = clipped_gradient
    if args.compile:
        torch._dynamo.config.trace_autograd_ops = True  # compiles loss.backward() as well
        gradient = torch.compile(clipped_gradient)
    # Pass here what a resume must restore: objects with load_state_dict() and state_dict(), whose keys must not change.
    run.start(device, agent=agent, optimizer=optimizer)
    next_obs, _ = envs.reset(seed=args.seed + run.global_step)  # a resume starts new episodes
    next_done = np.zeros(args.num_envs, dtype=bool)

    for update in run.updates():
        # [core 4] annealing of the learning rate, and [aux 1] of the clip range
        remaining = 1.0 - (update - 1.0) / run.num_updates
        learning_rate = args.learning_rate * (remaining if args.anneal_lr else 1.0)
        clip_coef = args.clip_coef * (remaining if args.anneal_clip else 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate

        rollout, rewards, dones = [], [], []
        with torch.no_grad(), torch.autocast(device.type, enabled=False):  # [speed] keeps autocast's cache of weights
            for _ in range(args.num_steps):
                obs = torch.from_numpy(next_obs).to(device)
                policy, value = agent(obs)
                action = policy.sample()
                step = dict(obs=obs, actions=action, logprobs=policy.log_prob(action), values=value)
                rollout.append(step)
                dones.append(next_done)
                next_obs, reward, terminated, truncated, infos = envs.step(action.cpu().numpy())
                next_done = terminated | truncated
                if args.bootstrap_truncated and (cut := truncated & ~terminated).any():
                    final_obs = torch.from_numpy(np.stack(infos["final_obs"][cut])).to(device)
                    reward[cut] += args.gamma * agent(final_obs)[1].cpu().numpy()
                rewards.append(reward.astype(np.float32))
                run.log_step(infos)
            next_value = agent(torch.from_numpy(next_obs).to(device))[1].cpu().numpy()

        batch = {name: torch.stack([step[name] for step in rollout]) for name in rollout[0]}  # each [M, N, ...]
        values, rewards = batch["values"], np.stack(rewards)
        advantages = gae(rewards, values.cpu().numpy(), dones, next_value, next_done, args.gamma, args.gae_lambda)
        batch["returns"] = returns = torch.from_numpy(advantages).to(device) + values
        batch = {name: column.flatten(0, 1) for name, column in batch.items()}  # each [M * N, ...]

        stats = []
        for _ in range(args.update_epochs):
            for rows in torch.randperm(run.batch_size, device=device).chunk(args.num_minibatches):  # [core 6]
                minibatch = {name: column.index_select(0, rows) for name, column in batch.items()}
                stats.append(gradient(agent, minibatch, clip_coef, args))
                adam_step(optimizer)
            if args.target_kl is not None and stats[-1]["approx_kl"] > args.target_kl:  # [aux 3]
                break

        # [core 12] means of the debug variables over the minibatches
        scalars = {f"losses/{name}": torch.stack([each[name] for each in stats]).mean() for name in stats[0]}
        scalars["losses/explained_variance"] = 1 - (returns - values).var() / returns.var()
        run.log_update(scalars | {"charts/learning_rate": learning_rate})
        if run.stopping or update == run.num_updates or (args.save_every and update % args.save_every == 0):
            run.save()
            if run.stopping:
                break
    envs.close()
    return agent


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
