"""The adapter of a folder of scripts in CleanRL's style.

It looks for ppo.py, ppo_continuous_action.py, ppo_multidiscrete.py, ppo_atari.py and ppo_atari_lstm.py. A script is run
as it is. Only the environments, the linear layers of its Agent and its log are replaced.
"""

import ast
import contextlib
import io
import sys
from types import ModuleType, SimpleNamespace
from unittest import mock

import numpy as np
import torch
from torch import nn

from conformance.adapters.proxy import Proxy
from conformance.adapters.torch_tables import Memory, Recorder, describe_image_network, layers, recurrent_weights
from conformance.problems import Player, Settings, Stream, make_world, split_updates

FILES = {
    "discrete": "ppo.py",
    "continuous": "ppo_continuous_action.py",
    "multidiscrete": "ppo_multidiscrete.py",
}
ATARI = "ppo_atari.py"
LSTM = "ppo_atari_lstm.py"


class Nothing:
    """Takes every call, and does nothing."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


class Environments:
    """A world as a vector of environments, with gymnasium's interface or that of gym before 0.26."""

    def __init__(self, world, spaces, old):
        self.player = Player(world)
        self.old = old
        self.num_envs = world.num_envs
        self.single_observation_space, self.single_action_space = spaces
        self.observation_space, self.action_space = spaces

    def show(self, rows):
        return rows.astype(np.float32)[:, None]

    def reset(self, **options):
        obs = self.show(self.player.reset())
        return obs if self.old else (obs, {})

    def step(self, actions):
        rows, rewards, terminated, truncated, _ = self.player.step(actions)
        rewards = rewards.astype(float)
        if self.old:
            return self.show(rows), rewards, terminated | truncated, [{} for _ in rows]
        return self.show(rows), rewards, terminated.copy(), truncated.copy(), {}

    def close(self):
        pass


class RowNumber(nn.Module):
    """In place of a shared trunk: it passes the number of the row on, times a factor."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def forward(self, obs):
        return obs * self.factor


class Scripts:
    """The adapter of a folder; its methods are the functions of conformance/adapter.py."""

    def __init__(self, folder):
        self.folder = folder
        self.NAME = folder.resolve().name
        self.VERSION = ""
        texts = {kind: (folder / name).read_text() for kind, name in FILES.items() if (folder / name).is_file()}
        self.KINDS = tuple(kind for kind, text in texts.items() if "gym_microrts" not in text)
        self.SHARED = False
        self.REASONS = {}
        if not any("import gymnasium" in text for text in texts.values()):
            for name in ("atari", "normalize", "environment_actions"):
                self.REASONS[name] = "its environments need the wrappers of gym 0.21"
        if not (folder / ATARI).is_file():
            self.atari = None
            self.images = None
        if not (folder / LSTM).is_file():
            self.recurrence = None
            self.recurrent_weights = None

    def definitions(self, name):
        """(namespace, code of the main block, text) of a script."""
        path = self.folder / name
        parent = str(self.folder.resolve().parent)  # which has cleanrl_utils
        if parent not in sys.path:
            sys.path.insert(0, parent)
        text = path.read_text()
        tree = ast.parse(text)
        main = [node for node in tree.body if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)]
        tree.body = [node for node in tree.body if node not in main]
        for unneeded in ("wandb", "pybullet_envs"):  # which it imports
            sys.modules.setdefault(unneeded, ModuleType(unneeded))
        namespace = {"__name__": path.stem, "__file__": str(path)}
        module = ModuleType(path.stem)
        sys.modules[path.stem] = module  # where dataclasses look it up
        module.__dict__.update(namespace)
        exec(compile(tree, str(path), "exec"), module.__dict__)
        block = ast.Module([statement for node in main for statement in node.body], [])
        return module.__dict__, compile(block, str(path), "exec"), text

    @staticmethod
    def spaces(gym, kind, inputs=1):
        world = make_world(kind)
        box = gym.spaces.Box(-1e6, 1e6, (inputs,), np.float32)
        if kind == "continuous":
            return box, gym.spaces.Box(-1.0, 1.0, (world.num_outputs,), np.float32)
        if kind == "multidiscrete":
            return box, gym.spaces.MultiDiscrete(world.nvec)
        return box, gym.spaces.Discrete(world.num_outputs)

    def train(self, world, settings, updates=1, name=None, memory=None):
        """(namespace, player, recorder) after the main block has run.

        name: of the script, by default that for the kind of actions.
        memory: what takes the place of an LSTM."""
        name = name or FILES[world.kind]
        factor = 255.0 if name in (ATARI, LSTM) else 1.0  # where the script divides observations by it
        namespace, main, text = self.definitions(name)
        gym = namespace["gym"]
        has_old_interface = "next_obs, reward, done, info = envs.step" in text
        envs = Environments(world, self.spaces(gym, world.kind), has_old_interface)
        make_vector = lambda makers, **options: envs  # noqa: E731
        make_agent = namespace["Agent"].__init__
        with Recorder(world) as recorder:

            def make_agent_with_tables(agent, *arguments):
                make_agent(agent, *arguments)
                for part, _ in list(agent.named_children()):
                    if part in ("actor", "actor_mean"):
                        setattr(agent, part, recorder.policy)
                    elif part == "critic":
                        agent.critic = recorder.value
                    elif part == "network":
                        agent.network = RowNumber(factor)
                    elif part == "lstm":
                        agent.lstm = memory
                if hasattr(agent, "actor_logstd"):
                    del agent.actor_logstd
                    agent.actor_logstd = recorder.logstd

            namespace["Agent"].__init__ = make_agent_with_tables
            namespace["gym"] = Proxy(gym, vector=Proxy(gym.vector, SyncVectorEnv=make_vector))
            namespace |= {"SummaryWriter": Nothing, "wandb": Nothing()}
            options = {
                "seed": 1,
                "num-envs": world.num_envs,
                "num-steps": world.num_steps,
                "total-timesteps": updates * world.rewards.size,
                "learning-rate": settings.learning_rate,
                "gamma": settings.gamma,
                "gae-lambda": settings.gae_lambda,
                "num-minibatches": settings.num_minibatches,
                "update-epochs": settings.update_epochs,
                "clip-coef": settings.clip_coef,
                "ent-coef": settings.ent_coef,
                "vf-coef": settings.vf_coef,
                "max-grad-norm": settings.max_grad_norm,
            }
            arguments = [name, *(f"--{key}={value}" for key, value in options.items())]
            output = io.StringIO()
            with (
                mock.patch.object(sys, "argv", arguments),
                mock.patch.object(torch.cuda, "is_available", lambda: False),  # the tables are on the CPU
                contextlib.redirect_stdout(output),
                contextlib.redirect_stderr(output),
            ):
                exec(main, namespace)
        return namespace, envs.player, recorder

    def updates(self, world, settings, count):
        if world.kind not in self.KINDS:
            return None
        namespace, player, recorder = self.train(world, settings, count)
        actions = [np.array(each).reshape(world.actions.shape) for each in player.rollouts]
        last = {name: namespace[name].numpy() for name in ("advantages", "returns")}
        return split_updates(actions, recorder.steps, **last, logged={"approx_kl": namespace["approx_kl"].item()})

    def update(self, world, settings):
        updates = self.updates(world, settings, 1)
        return updates and updates[0]

    def advantages(self, world, settings):
        namespace, *_ = self.train(world, settings)
        return {name: namespace[name].numpy() for name in ("advantages", "returns")}

    def agent(self, name, kind, seed):
        """The agent of a script, for 6 inputs where it takes no images."""
        namespace, *_ = self.definitions(name)
        observations, actions = self.spaces(namespace["gym"], kind, inputs=6)
        torch.manual_seed(seed)
        return namespace["Agent"](SimpleNamespace(single_observation_space=observations, single_action_space=actions))

    def initial_weights(self, seed, kind):
        if kind not in self.KINDS:
            return None
        agent = self.agent(FILES[kind], kind, seed)
        trunk = [agent.network] if hasattr(agent, "network") else []
        policy = agent.actor_mean if kind == "continuous" else agent.actor
        found = {"policy": layers(*trunk, policy), "value": layers(*trunk, agent.critic)}
        if kind == "continuous":
            found["logstd"] = agent.actor_logstd.detach().numpy().reshape(-1)
        return found

    def schedules(self, updates):
        """The learning rates that reach the optimizer."""
        kind = self.KINDS[0]
        *_, recorder = self.train(make_world(kind), Settings(num_minibatches=1, update_epochs=1), updates)
        return {"learning_rate": recorder.rates}

    def atari(self, game):
        if "atari" in self.REASONS:
            return None
        namespace, *_ = self.definitions(ATARI)
        gym = namespace["gym"]
        from conformance.adapters.emulator import Emulator  # which needs gymnasium

        namespace["gym"] = Proxy(gym, make=lambda *args, **kwargs: Emulator(game))
        return OneGame(gym.vector.SyncVectorEnv([namespace["make_env"]("Game", 0, False, "run")]))

    def images(self, images):
        agent = self.agent(ATARI, "discrete", 1)
        obs = torch.as_tensor(images).float()

        def outputs():
            _, log_probs, _, values = agent.get_action_and_value(obs, torch.zeros(len(obs), dtype=torch.long))
            return log_probs, values

        namespace, *_ = self.train(make_world(), Settings(num_minibatches=1, update_epochs=1), name=ATARI)
        return describe_image_network(outputs) | {"stored": str(namespace["obs"].numpy().dtype)}

    def recurrent_weights(self, seed):
        return recurrent_weights(self.agent(LSTM, "discrete", seed).lstm)

    def recurrence(self, world, settings):
        memory = Memory(128)
        self.train(world, settings, updates=2, name=LSTM, memory=memory)
        return memory.calls

    def environments(self, stream, low, high):
        """The script's own wrappers around environments that replay a stream."""
        namespace, *_ = self.definitions(FILES["continuous"])
        gym = namespace["gym"]
        replays = [replay(gym, stream, n, low, high) for n in range(stream.rewards.shape[1])]
        remaining = iter(replays)
        namespace["gym"] = Proxy(gym, make=lambda *args, **kwargs: next(remaining))
        makers = [namespace["make_env"]("Replay", n, False, "run", stream.gamma) for n in range(len(replays))]
        return gym.vector.SyncVectorEnv(makers), replays

    def normalize(self, stream):
        if "normalize" in self.REASONS:
            return None
        envs, _ = self.environments(stream, [-1, -1], [1, 1])
        seen = [envs.reset()[0]]
        paid = []
        for _ in stream.rewards:
            obs, reward, *_ = envs.step(np.zeros((stream.rewards.shape[1], 2), np.float32))
            seen.append(obs.copy())
            paid.append(reward.copy())
        return {"observations": np.array(seen), "rewards": np.array(paid)}

    def environment_actions(self, samples, low, high):
        if "environment_actions" in self.REASONS:
            return None
        zeros = np.zeros((3, len(samples), 2), np.float32)
        stream = Stream(zeros, zeros[1:], zeros[1:, :, 0], np.zeros((2, len(samples)), bool), 0.9)
        envs, replays = self.environments(stream, low, high)
        envs.reset()
        envs.step(samples)
        return np.array([each.actions[0] for each in replays])


class OneGame:
    """A vector of one game, as conformance/adapter.py says."""

    def __init__(self, envs):
        self.envs = envs

    def reset(self):
        obs, _ = self.envs.reset(seed=1)
        return np.array(obs[0])

    def step(self, action):
        obs, rewards, terminated, truncated, _ = self.envs.step(np.array([action]))
        return np.array(obs[0]), rewards[0], terminated[0] | truncated[0]


def replay(gym, stream, n, low, high):
    """An environment that replays environment n of a stream, and keeps the actions."""

    class Replay(gym.Env):
        observation_space = gym.spaces.Box(-np.inf, np.inf, stream.obs.shape[2:], np.float32)
        action_space = gym.spaces.Box(np.float32(low), np.float32(high))
        t = 0
        actions = []

        def reset(self, **options):
            return stream.obs[self.t, n].copy(), {}

        def step(self, action):
            t = self.t
            self.t = self.t + 1
            end = bool(stream.ends[t, n])
            obs = stream.finals[t, n] if end else stream.obs[t + 1, n]
            self.actions = [*self.actions, np.array(action)]
            return obs.copy(), float(stream.rewards[t, n]), end, False, {}

    return Replay()
