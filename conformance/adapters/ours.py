"""This project's scripts, and edited copies of them: the adapter of a script that defines Agent, gae and train."""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from conformance.adapters.emulator import Emulator
from conformance.adapters.proxy import Proxy
from conformance.adapters.torch_tables import Memory, Recorder, describe_image_network, recurrent_weights
from conformance.problems import (
    Player,
    Refused,
    Settings,
    Stream,
    Update,
    later_world,
    make_world,
    of_later_rollout,
)
from saved import import_script


class Environments(gym.vector.VectorEnv):
    """A world as a vector of environments whose observations are the numbers of rows, as vectors or as images."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}

    def __init__(self, world, image_shape):
        self.player = Player(world)
        self.world = world
        self.image_shape = image_shape
        self.num_envs = world.num_envs
        self.single_observation_space, self.single_action_space = spaces(world.kind, image_shape)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, self.num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, self.num_envs)

    def infos(self, rows):
        """For ppo_multidiscrete_mask.py, which actions are valid."""
        if not self.world.nvec:
            return {}
        masks = self.world.masks
        if masks is None:
            masks = np.ones(self.world.policy.shape, dtype=bool)
        return {"action_mask": masks[rows], "_action_mask": np.ones(len(rows), dtype=bool)}

    def show(self, rows):
        if self.image_shape is None:
            obs = np.zeros((len(rows), *self.single_observation_space.shape), dtype=np.float32)
            obs[:, 0] = rows
            return obs
        images = np.full((len(rows), *self.image_shape), 255, dtype=np.uint8)
        images[:, 0, 0, 0] = rows
        return images

    def reset(self, **options):
        rows = self.player.reset()
        return self.show(rows), self.infos(rows)

    def step(self, actions):
        rows, rewards, terminated, truncated, final_rows = self.player.step(actions)
        infos = self.infos(rows)
        if (terminated | truncated).any():
            finals = self.show(final_rows)
            infos["final_obs"] = np.empty(len(rows), dtype=object)
            for n in np.flatnonzero(terminated | truncated):
                infos["final_obs"][n] = finals[n]
        return self.show(rows), rewards.astype(float), terminated.copy(), truncated.copy(), infos

    def close(self, **options):
        pass


class Run:
    """A run that writes nothing and whose other methods do nothing."""

    def __init__(self, args, updates):
        self.args = args
        self.num_updates = updates
        self.batch_size = args.num_envs * args.num_steps
        self.updates_done = 0
        self.global_step = 0
        self.folder = None

    def updates(self):
        return range(1, self.num_updates + 1)

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


def spaces(kind, image_shape=None, inputs=6):
    """The observation and action space of an environment of a kind."""
    box = gym.spaces.Box(-np.inf, np.inf, (inputs,))
    if image_shape is not None:
        box = gym.spaces.Box(0, 255, image_shape, np.uint8)
    world = make_world(kind)
    if kind == "discrete":
        return box, gym.spaces.Discrete(world.num_outputs)
    if kind == "multidiscrete":
        return box, gym.spaces.MultiDiscrete(world.nvec)
    return box, gym.spaces.Box(-1, 1, (world.num_outputs,))


class RowNumber(nn.Module):
    """In place of a trunk: features whose first number is the row that the observation shows, and the others 0.

    An image has the row in its first pixel, and 255 elsewhere, which tells how pixels are scaled."""

    def __init__(self, image_shape, width):
        super().__init__()
        self.image_shape = image_shape
        self.width = width

    def forward(self, obs):
        rows = obs[..., :1]
        if self.image_shape is not None:
            rows = obs[..., 0, 0, :1] / obs[..., 0, 0, 1:2] * 255
        return nn.functional.pad(rows, (0, self.width - 1))


class PassOn(nn.Module):
    """In place of an LSTM: its input is its output."""

    def forward(self, features, state):
        return features[..., :128], state


@dataclass
class Seen:
    """What was seen of a run of a script's train()."""

    updates: list = dataclasses.field(default_factory=list)  # of problems.Update; IMPALA's are not seen
    stored: str = ""  # the dtype of the observations of a minibatch
    stats: dict = dataclasses.field(default_factory=dict)  # what the last step logs
    learning_rates: list = dataclasses.field(default_factory=list)  # of each step
    clip_ranges: list = dataclasses.field(default_factory=list)  # of each step
    rollouts: list = dataclasses.field(default_factory=list)  # of SeenRollout


@dataclass
class SeenRollout:
    """What was seen of one rollout and its update."""

    first_step: int  # the number of steps before
    advantages: np.ndarray  # float32 [M, N]
    returns: np.ndarray  # float [R], of the rows that came into a minibatch, with NaN for the others


def layers_with_weights(module):
    """The linear layers and convolutions of a module, in their order."""
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]


class Script:
    """The adapter of one script; its methods are the functions of conformance/adapter.py."""

    def __init__(self, module):
        self.module = module
        self.NAME = Path(module.__file__).name
        self.VERSION = "of this checkout"
        self.kind = "discrete"
        if hasattr(module, "MultiDiscrete"):
            self.kind = "multidiscrete"
        is_procgen = hasattr(module, "Residual")  # it normalizes rewards, but its actions are discrete
        if hasattr(module, "Normalize") and not is_procgen:
            self.kind = "continuous"
        self.KINDS = (self.kind,)
        self.image_shape = None
        if hasattr(module, "nature_cnn"):
            self.image_shape = (84, 84, 1)
        elif hasattr(module, "impala_cnn"):
            self.image_shape = (3, 64, 64)
        has_images = self.image_shape is not None
        self.SHARED = has_images or self.kind == "multidiscrete" or Path(module.__file__).name.startswith("ppo_shared")
        self.MASKS = hasattr(getattr(module, "Episodes", None), "action_mask")
        self.REASONS = {}
        if not hasattr(module, "ppo_loss"):
            reason = "its loss and its advantages are not PPO's, but V-trace's, and its optimizer is RMSprop"
            self.REASONS = {"update": reason, "updates": reason, "advantages": reason, "clip_range": reason}
        if hasattr(module.Args, "actor_threads"):
            self.REASONS["updates"] = "its actors play the next rollout while it trains"
        if not hasattr(module, "WarpFrame"):
            self.REASONS["atari"] = "EnvPool plays the game, in C++, where no scripted one can be put"
        if not hasattr(module, "nature_cnn"):
            self.atari = None  # it is no script for Atari games
            self.images = None
        if not hasattr(module.Agent, "initial_state"):
            self.recurrence = None
            self.recurrent_weights = None

    def agent(self, kind, image_shape=None):
        """The script's own agent for a kind of actions."""
        observations, actions = spaces(kind, image_shape or self.image_shape)
        envs = SimpleNamespace(
            single_observation_space=observations, single_action_space=actions, num_envs=1, envs=None
        )
        options = {}
        if hasattr(self.module.Args, "network"):  # the scripts after Cleanba have two
            options["network"] = self.module.Args.network
        return self.module.Agent(envs, **options)

    def initial_weights(self, seed, kind):
        torch.manual_seed(seed)
        agent = self.agent(kind)
        found = {}
        for name in ("policy", "value"):
            trunk = getattr(agent, f"{name}_trunk", None) or agent.trunk
            layers = layers_with_weights(trunk) + layers_with_weights(getattr(agent, name))
            found[name] = [(layer.weight.detach().flatten(1).numpy(), layer.bias.detach().numpy()) for layer in layers]
        # What is in no layer is the scale of a normal distribution: logstd, or a recipe's in its place.
        outside = []
        for name, parameter in agent.named_parameters():
            is_in_layer = any(word in name for word in ("trunk", "policy.", "value.", "lstm"))
            if not is_in_layer:
                outside.append(parameter)
            if name in ("logstd", "std"):  # whatever else an edited copy has
                outside = [parameter]
                break
        if len(outside) == 1:
            scale = outside[0].detach().numpy()
            scale = scale.reshape(-1) if 1 in scale.shape else scale
            found["std"] = hasattr(agent, "std")  # a recipe's parameter is the deviation itself
            found["logstd"] = np.log(scale) if found["std"] else scale
        return found

    def train(self, world, settings, updates=1, memory=None):
        """What was Seen of a run of the script's train() on a world, or None if the script has other actions.

        memory: what takes the place of its LSTM; by default, PassOn."""
        module = self.module
        if world.kind != self.kind:
            return None
        options = dataclasses.asdict(settings) | {
            "num_envs": world.num_envs,
            "num_steps": world.num_steps,
            "total_timesteps": updates * world.rewards.size,
            "cuda": False,
            "actor_threads": 1,
        }
        fields = {field.name for field in dataclasses.fields(module.Args)}
        args = module.Args(**{name: value for name, value in options.items() if name in fields})
        seen = Seen()
        environments = Environments(world, self.image_shape)
        with Recorder(world) as recorder:
            replaced = self.replacements(environments, recorder, seen, memory or PassOn())
            kept = {name: getattr(module, name) for name in replaced}
            vars(module).update(replaced)
            try:
                module.train(args, Run(args, updates))
            except SystemExit as error:
                raise Refused(str(error)) from None
            finally:
                vars(module).update(kept)
        shape = world.rewards.shape
        for number, rollout in enumerate(seen.rollouts):
            played = later_world(world) if number > 0 else world
            values = played.old_value[: world.rewards.size].reshape(shape)
            returns = of_later_rollout(rollout.returns, world) if number > 0 else rollout.returns
            returns = returns[: world.rewards.size].reshape(shape)
            # A minibatch may not have come to every row.
            returns = np.where(np.isnan(returns), rollout.advantages + values, returns)
            following = seen.rollouts[number + 1 :]
            steps = recorder.steps[rollout.first_step : following[0].first_step if following else None]
            actions = np.array(environments.player.rollouts[number])
            seen.updates.append(Update(actions, steps, rollout.advantages, returns))
        return seen

    def replacements(self, environments, recorder, seen, memory):
        """{name: value} of what takes the place of the script's own definitions.

        These are the environments, the agent, and functions that look at their arguments before they call the script's.
        """
        module = self.module
        module_agent = module.Agent

        def agent_with_tables(envs, *rest, **options):
            agent = module_agent(envs, *rest, **options)
            for name, part in list(agent.named_children()):
                if "trunk" in name:
                    *_, last = layers_with_weights(part)
                    setattr(agent, name, RowNumber(self.image_shape, last.out_features))
                elif name in ("policy", "value"):
                    setattr(agent, name, getattr(recorder, name))
                elif name == "lstm":
                    setattr(agent, name, memory)
            if hasattr(agent, "logstd"):
                recorder.trains_logstd = isinstance(agent.logstd, nn.Parameter)
                del agent.logstd
                agent.logstd = recorder.logstd if recorder.trains_logstd else recorder.logstd.detach()
            elif hasattr(agent, "std"):  # its logarithm is in the table
                del agent.std
                agent.logstd = recorder.logstd
                of_table = property(lambda agent: agent.logstd.exp())
                agent.__class__ = type("AgentWithTables", (type(agent),), {"std": of_table})
            elif self.kind == "continuous":
                raise ValueError("its policy has no logstd")
            in_tables = [id(parameter) for parameter in recorder.parameters().values()]
            for name, parameter in agent.named_parameters():
                if id(parameter) not in in_tables and parameter.requires_grad:
                    recorder.watch(name, parameter)
            return agent

        replaced = {"make_envs": lambda *arguments, **options: environments, "Agent": agent_with_tables}
        if not hasattr(module, "ppo_loss"):
            return replaced | self.replacements_of_impala(seen)
        module_gae = module.gae
        module_loss = module.ppo_loss

        def gae(*arguments, **options):
            found = module_gae(*arguments, **options)
            recorder.finish()
            first_step = len(recorder.steps)
            # An edited copy may call it for another reward as well, after that of the environment.
            if not seen.rollouts or seen.rollouts[-1].first_step < first_step:
                returns = np.full(recorder.world.num_rows, np.nan)
                seen.rollouts.append(SeenRollout(first_step, found.copy(), returns))
            return found

        def ppo_loss(agent, minibatch, args):
            loss, stats = module_loss(agent, minibatch, args)
            seen.stored = str(minibatch["obs"].numpy().dtype)
            seen.rollouts[-1].returns[recorder.rows] = minibatch["returns"].detach().numpy()
            seen.stats = {name: float(number) for name, number in stats.items()}
            seen.clip_ranges.append(float(args.clip_coef))
            seen.learning_rates.append(float(args.learning_rate))
            return loss, stats

        return replaced | {"gae": gae, "ppo_loss": ppo_loss}

    def replacements_of_impala(self, seen):
        """The functions of replacements() for impala_atari_cleanba.py."""
        module_loss = self.module.impala_loss
        module_step = self.module.rmsprop_step

        def impala_loss(agent, minibatch, args):
            seen.stored = str(minibatch["obs"].numpy().dtype)
            return module_loss(agent, minibatch, args)

        def rmsprop_step(optimizer, gradient, learning_rate):
            seen.learning_rates.append(learning_rate)
            return module_step(optimizer, gradient, learning_rate)

        return {"impala_loss": impala_loss, "rmsprop_step": rmsprop_step}

    def advantages(self, world, settings):
        if "advantages" in self.REASONS:
            return None
        if world.kind != self.kind:
            world = make_world(self.kind, truncations=True)
        seen = self.train(world, dataclasses.replace(settings, num_minibatches=1, update_epochs=1))
        [update] = seen.updates
        return {"advantages": update.advantages, "returns": update.returns, "problem": (world, settings)}

    def update(self, world, settings):
        if "update" in self.REASONS:
            return None
        seen = self.train(world, settings)
        if seen is None:
            return None
        logged = {"approx_kl": seen.stats.get("approx_kl_ppo2", seen.stats.get("approx_kl"))}
        [update] = seen.updates
        return dataclasses.replace(update, logged=logged)

    def updates(self, world, settings, count):
        if "updates" in self.REASONS:
            return None
        seen = self.train(world, settings, count)
        return seen and seen.updates

    def schedules(self, updates):
        seen = self.train(make_world(self.kind), Settings(num_minibatches=1, update_epochs=1), updates)
        return {"learning_rate": seen.learning_rates, "clip_range": seen.clip_ranges or None}

    def atari(self, game):
        if "atari" in self.REASONS:
            return None
        return OneGame(self.module, game)

    def images(self, images):
        agent = self.agent(self.kind, image_shape=(84, 84, images.shape[1]))
        inputs = [torch.as_tensor(images).movedim(1, -1)]
        if hasattr(agent, "lstm"):
            inputs += [agent.initial_state(len(images)), torch.zeros(len(images), dtype=torch.bool)]

        def outputs():
            policy, values, *_ = agent(*inputs)
            return policy.logits[:, 0], values  # of normalized logits, the sum over all actions may be constant

        found = describe_image_network(outputs)
        seen = self.train(make_world(self.kind), Settings(num_minibatches=1, update_epochs=1))
        return found | {"stored": seen.stored}

    def recurrent_weights(self, seed):
        torch.manual_seed(seed)
        return recurrent_weights(self.agent(self.kind).lstm)

    def recurrence(self, world, settings):
        memory = Memory(128)
        self.train(world, settings, updates=2, memory=memory)
        return memory.calls

    def normalize(self, stream):
        if self.kind != "continuous":
            return None
        envs = self.module.Normalize(Replay(stream), stream.gamma)
        seen = [envs.reset()[0]]
        paid = []
        for _ in stream.rewards:
            obs, reward, *_ = envs.step(np.zeros((envs.num_envs, 2), np.float32))
            seen.append(obs)
            paid.append(reward)
        return {"observations": np.stack(seen), "rewards": np.stack(paid)}

    def environment_actions(self, samples, low, high):
        if self.kind != "continuous":
            return None
        count = len(samples)
        zeros = np.zeros((2, count, 2), np.float32)
        stream = Stream(zeros, zeros[1:], zeros[1:, :, 0], np.zeros((1, count), bool), 0.9)
        played = Replay(stream, low, high)
        envs = self.module.Normalize(played, stream.gamma)
        envs.reset()
        envs.step(samples)
        return played.actions[0]


class OneGame:
    """The environments that a script makes, with an emulator in place of ale_py's, as conformance/adapter.py says."""

    def __init__(self, module, game):
        library = module.gym
        module.gym = Proxy(
            library,
            make=lambda name, obs_type="rgb", **options: Emulator(game, ram=obs_type == "ram"),
        )
        try:
            self.envs = module.make_envs(module.Args(num_envs=1, num_minibatches=1))
        finally:
            module.gym = library

    def reset(self):
        obs, _ = self.envs.reset(seed=1)
        return np.moveaxis(obs[0], -1, 0)

    def step(self, action):
        obs, rewards, terminated, truncated, _ = self.envs.step(np.array([action]))
        return np.moveaxis(obs[0], -1, 0), rewards[0], terminated[0] | truncated[0]


class Replay(gym.vector.VectorEnv):
    """A vector of environments that replays a stream, and keeps the actions."""

    def __init__(self, stream, low=(-1.0, -1.0), high=(1.0, 1.0)):
        self.stream = stream
        self.t = 0
        self.actions = []
        self.num_envs = stream.rewards.shape[1]
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, stream.obs.shape[2:])
        self.single_action_space = gym.spaces.Box(np.float32(low), np.float32(high))

    def reset(self, **options):
        return self.stream.obs[0].copy(), {}

    def step(self, actions):
        self.actions.append(np.array(actions))
        t = self.t
        self.t = self.t + 1
        ends = self.stream.ends[t]
        infos = {}
        if ends.any():
            # np.array() of the last observations would stack them; this array has None where no episode ended
            infos["final_obs"] = np.empty(len(ends), dtype=object)
            for n in np.flatnonzero(ends):
                infos["final_obs"][n] = self.stream.finals[t, n]
        rewards = self.stream.rewards[t].astype(float)
        return self.stream.obs[t + 1].copy(), rewards, ends.copy(), np.zeros_like(ends), infos


def load(path):
    """The adapter of the script in a file. Exits with a line for ppo_seeds.py, and for a copy of it."""
    sys.path.insert(0, str(path.resolve().parent))  # for what it imports from its own folder
    module = import_script(path)
    if hasattr(module, "OPTIONS_OF_AGENTS"):
        sys.exit(f"error: {path.name} trains several agents at once; measure ppo.py, from which it comes")
    return Script(module)
