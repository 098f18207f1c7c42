"""Records the weights of a library's PPO after each of two updates on a script of environments, for the tests.

python -m conformance.recording sb3 tests/golden                      in a Python environment that has the library
python -m conformance.recording cleanrl tests/golden --folder path/to/cleanrl/cleanrl

The library computes in float64 and keeps its defaults, but for SETTINGS. The environments play the same script whatever
the actions are, and the initial weights are drawn here. So a recording has what only the library decides: its actions,
its minibatches, and the weights that follow. test_lists.py gives the first two to a script and compares the weights.
"""

import argparse
import contextlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from conformance.adapters.proxy import Proxy

UPDATES = 2
STEPS = 16  # of each environment in a rollout
ENVS = 4
INPUTS = 3
OUTPUTS = 2  # actions, or components of an action
UNITS = 64  # of each of two hidden layers of tanh units
SETTINGS = {
    "learning_rate": 3e-3,
    "gamma": 0.9,
    "gae_lambda": 0.8,
    "num_minibatches": 4,
    "update_epochs": 3,
    "clip_coef": 0.2,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
}
KIND_OF_ACTIONS = {
    "discrete": gym.spaces.Discrete(OUTPUTS),
    "continuous": gym.spaces.Box(-100, 100, (OUTPUTS,), np.float64),
}


class InFloat64(TorchFunctionMode):
    """Within it, code that asks torch for float32 gets float64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        args = [torch.float64 if each is torch.float32 else each for each in args]
        kwargs = {name: torch.float64 if each is torch.float32 else each for name, each in (kwargs or {}).items()}
        return function(*args, **kwargs)


@dataclass
class Script:
    """What the environments do: T steps of N environments. All numbers of a rollout are exact in float32."""

    obs: np.ndarray  # float64 [T + 1, N, D]; behind an end, the first observation of the next episode
    finals: np.ndarray  # float64 [T, N, D]: the last observation of an episode that ends in step t
    rewards: np.ndarray  # float64 [T, N]
    terminated: np.ndarray  # bool [T, N]
    truncated: np.ndarray  # bool [T, N]


def make_script():
    """The script of all recordings."""
    rng = np.random.default_rng(87)
    steps = UPDATES * STEPS
    obs = rng.normal(size=(steps + 1, ENVS, INPUTS)).astype(np.float32)
    finals = rng.normal(size=(steps, ENVS, INPUTS)).astype(np.float32)
    rewards = rng.normal(size=(steps, ENVS)).astype(np.float32)
    ends = rng.random((steps, ENVS))
    terminated = ends < 0.08
    truncated = (ends >= 0.08) & (ends < 0.2)
    return Script(obs.astype(float), finals.astype(float), rewards.astype(float), terminated, truncated)


def make_weights(kind):
    """{name: float64 array}: the initial weights, "policy 0 weight" [out, in] and so on; "logstd" of normal actions."""
    rng = np.random.default_rng(88)
    weights = {}
    for network, outputs in (("policy", OUTPUTS), ("value", 1)):
        sizes = [INPUTS, UNITS, UNITS, outputs]
        for layer in range(3):
            shape = sizes[layer + 1], sizes[layer]
            weights[f"{network} {layer} weight"] = rng.normal(size=shape) / np.sqrt(shape[1])
            weights[f"{network} {layer} bias"] = 0.1 * rng.normal(size=shape[0])
    if kind == "continuous":
        weights["logstd"] = np.array([-0.3, 0.2])
    return weights


def sample(array):
    """What is kept of an array of weights: all of a small one; of a large one, every 16th number and the total."""
    numbers = np.asarray(array, dtype=float).reshape(-1)
    if len(numbers) <= 512:
        return numbers
    return np.append(numbers[::16], numbers.sum())


class Recorder:
    """The parameters of a library's networks, with the names of make_weights(), and what happens to them."""

    def __init__(self, kind, policy, value, scale=None, is_std=False):
        """policy, value: modules with three nn.Linear each. scale: the parameter of the deviation of normal actions.

        is_std: whether this is the deviation itself, and not its logarithm."""
        self.parameters = {}
        for network, module in (("policy", policy), ("value", value)):
            linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
            for number, layer in enumerate(linear):
                self.parameters[f"{network} {number} weight"] = layer.weight
                self.parameters[f"{network} {number} bias"] = layer.bias
        if scale is not None:
            self.parameters["logstd"] = scale
        first, *_ = [layer for layer in policy.modules() if isinstance(layer, nn.Linear)]
        first.register_forward_hook(self.see)
        weights = make_weights(kind)
        if is_std:
            weights["logstd"] = np.exp(weights["logstd"])
        assert list(weights) == list(self.parameters)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(torch.as_tensor(weights[name]).view_as(parameter))
        self.obs = make_script().obs[:-1].reshape(-1, INPUTS)  # in rows t * N + n
        self.rows = []  # of each minibatch
        self.weights = []  # after each update

    def see(self, layer, inputs, outputs):
        """Notes the rows of a minibatch when the policy's first layer is called with gradients."""
        if torch.is_grad_enabled():
            [obs] = inputs
            distances = np.abs(obs.detach().numpy()[:, None] - self.obs).sum(-1)
            assert distances.min(1).max() < 1e-6
            self.rows.append(distances.argmin(1) % (STEPS * ENVS))

    def end_update(self):
        """Notes the weights."""
        numbers = [sample(parameter.detach().numpy()) for parameter in self.parameters.values()]
        self.weights.append(np.concatenate(numbers))


def record_sb3(kind):
    """(Recorder, actions [T, N, ...], version) of Stable-Baselines3."""
    import stable_baselines3
    from stable_baselines3 import PPO
    from stable_baselines3.common import buffers, on_policy_algorithm
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import VecEnv

    script = make_script()
    taken = []

    class Environments(VecEnv):
        def __init__(self):
            self.t = 0
            box = gym.spaces.Box(-np.inf, np.inf, (INPUTS,), np.float64)
            super().__init__(ENVS, box, KIND_OF_ACTIONS[kind])

        def reset(self):
            return script.obs[0].copy()

        def step_async(self, actions):
            taken.append(np.array(actions))

        def step_wait(self):
            t = self.t
            self.t = t + 1
            infos = [{} for _ in range(ENVS)]
            ends = script.terminated[t] | script.truncated[t]
            for n in np.flatnonzero(ends):
                infos[n]["terminal_observation"] = script.finals[t, n]
                infos[n]["TimeLimit.truncated"] = bool(script.truncated[t, n])
            return script.obs[t + 1].copy(), script.rewards[t].copy(), ends, infos

        def close(self):
            pass

        def env_is_wrapped(self, wrapper_class, indices=None):
            return [False] * ENVS

        def get_attr(self, name, indices=None):
            return [None] * ENVS

        def set_attr(self, name, value, indices=None):
            pass

        def env_method(self, name, *arguments, indices=None, **options):
            return [None] * ENVS

    class EndOfUpdate(BaseCallback):
        """Called before each rollout but the first, and at the end."""

        def _on_rollout_start(self):
            if self.num_timesteps > 0:
                recorder.end_update()

        def _on_training_end(self):
            recorder.end_update()

        def _on_step(self):
            return True

    in_float64 = Proxy(np, float32=np.float64)  # in which buffers keep their numbers
    with mock.patch.object(buffers, "np", in_float64), mock.patch.object(on_policy_algorithm, "np", in_float64):
        model = PPO(
            "MlpPolicy",
            Environments(),
            seed=1,
            device="cpu",
            n_steps=STEPS,
            batch_size=STEPS * ENVS // SETTINGS["num_minibatches"],
            n_epochs=SETTINGS["update_epochs"],
            learning_rate=SETTINGS["learning_rate"],
            clip_range=SETTINGS["clip_coef"],
            **{name: SETTINGS[name] for name in ("gamma", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm")},
        )
        policy = model.policy
        recorder = Recorder(
            kind,
            nn.ModuleList([policy.mlp_extractor.policy_net, policy.action_net]),
            nn.ModuleList([policy.mlp_extractor.value_net, policy.value_net]),
            getattr(policy, "log_std", None),
        )
        model.learn(UPDATES * STEPS * ENVS, callback=EndOfUpdate())
    return recorder, taken, stable_baselines3.__version__


def record_cleanrl(kind, folder):
    """(Recorder, actions [T, N, ...], version) of a script of CleanRL in a folder."""
    from conformance.adapters import single_file

    name = single_file.FILES[kind]
    namespace, main, _ = single_file.Scripts(folder).definitions(name)
    script = make_script()
    recorders = []
    taken = []

    class Environments:
        single_observation_space = gym.spaces.Box(-np.inf, np.inf, (INPUTS,), np.float64)
        single_action_space = KIND_OF_ACTIONS[kind]
        t = 0

        def reset(self, **options):
            return script.obs[0].copy(), {}

        def step(self, actions):
            t = self.t
            if t > 0 and t % STEPS == 0:
                recorders[0].end_update()
            self.t = t + 1
            taken.append(np.array(actions))
            ends = script.terminated[t].copy(), script.truncated[t].copy()
            return script.obs[t + 1].copy(), script.rewards[t].copy(), *ends, {}

        def close(self):
            pass

    make_agent = namespace["Agent"].__init__

    def make_agent_with_weights(agent, *arguments):
        make_agent(agent, *arguments)
        policy = agent.actor if kind == "discrete" else agent.actor_mean
        recorders.append(Recorder(kind, policy, agent.critic, getattr(agent, "actor_logstd", None)))

    namespace["Agent"].__init__ = make_agent_with_weights
    library = namespace["gym"]
    namespace["gym"] = Proxy(
        library, vector=Proxy(library.vector, SyncVectorEnv=lambda makers, **options: Environments())
    )
    namespace |= {"SummaryWriter": single_file.Nothing, "wandb": single_file.Nothing()}
    options = SETTINGS | {"num_envs": ENVS, "num_steps": STEPS, "total_timesteps": UPDATES * STEPS * ENVS}
    words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    with mock.patch.object(sys, "argv", [name, *words]), contextlib.redirect_stdout(io.StringIO()):
        exec(main, namespace)
    recorders[0].end_update()
    return recorders[0], taken, ""


def network(outputs):
    """A network of two hidden layers of tanh units, for libraries whose networks are the user's."""
    return nn.Sequential(
        nn.Linear(INPUTS, UNITS), nn.Tanh(), nn.Linear(UNITS, UNITS), nn.Tanh(), nn.Linear(UNITS, outputs)
    )


def record_skrl(kind):
    """(Recorder, actions [T, N, ...], version) of skrl."""
    import skrl
    from skrl.agents.torch.ppo import PPO
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin, Model

    spaces = {
        "observation_space": gym.spaces.Box(-np.inf, np.inf, (INPUTS,)),
        "action_space": KIND_OF_ACTIONS[kind],
    }
    mixin = CategoricalMixin if kind == "discrete" else GaussianMixin

    class Policy(mixin, Model):
        def __init__(self):
            Model.__init__(self, **spaces, device="cpu")
            mixin.__init__(self)
            self.network = network(OUTPUTS)
            self.logstd = nn.Parameter(torch.zeros(OUTPUTS)) if kind == "continuous" else None

        def compute(self, inputs, role):
            extra = {"log_std": self.logstd} if kind == "continuous" else {}
            return self.network(inputs["observations"]), extra

    class Value(DeterministicMixin, Model):
        def __init__(self):
            Model.__init__(self, **spaces, device="cpu")
            DeterministicMixin.__init__(self)
            self.network = network(1)

        def compute(self, inputs, role):
            return self.network(inputs["observations"]), {}

    script = make_script()
    taken = []
    models = {"policy": Policy(), "value": Value()}
    recorder = Recorder(kind, models["policy"].network, models["value"].network, models["policy"].logstd)
    config = {
        "rollouts": STEPS,
        "learning_epochs": SETTINGS["update_epochs"],
        "mini_batches": SETTINGS["num_minibatches"],
        "discount_factor": SETTINGS["gamma"],
        "gae_lambda": SETTINGS["gae_lambda"],
        "learning_rate": SETTINGS["learning_rate"],
        "grad_norm_clip": SETTINGS["max_grad_norm"],
        "ratio_clip": SETTINGS["clip_coef"],
        "value_clip": SETTINGS["clip_coef"],
        "entropy_loss_scale": SETTINGS["ent_coef"],
        "value_loss_scale": SETTINGS["vf_coef"],
        "experiment": {"write_interval": 0, "checkpoint_interval": 0},
    }
    memory = RandomMemory(memory_size=STEPS, num_envs=ENVS, device="cpu")
    agent = PPO(models=models, memory=memory, cfg=config, device="cpu", **spaces)
    agent.init()
    agent.enable_training_mode(True)
    timesteps = UPDATES * STEPS
    for t in range(timesteps):
        obs, next_obs = torch.as_tensor(script.obs[t : t + 2])
        agent.pre_interaction(timestep=t, timesteps=timesteps)
        with torch.no_grad():
            actions, _ = agent.act(obs, None, timestep=t, timesteps=timesteps)
            taken.append(actions.numpy().copy())
            agent.record_transition(
                observations=obs,
                states=None,
                actions=actions,
                rewards=torch.as_tensor(script.rewards[t])[:, None],
                next_observations=next_obs,
                next_states=None,
                terminated=torch.as_tensor(script.terminated[t])[:, None],
                truncated=torch.as_tensor(script.truncated[t])[:, None],
                infos={},
                timestep=t,
                timesteps=timesteps,
            )
        agent.post_interaction(timestep=t, timesteps=timesteps)
        if (t + 1) % STEPS == 0:
            recorder.end_update()
    return recorder, taken, skrl.__version__


def record_rsl_rl(kind):
    """(Recorder, actions [T, N, ...], version) of rsl_rl, with a fixed learning rate."""
    import importlib.metadata

    from rsl_rl.algorithms import PPO
    from rsl_rl.models import MLPModel
    from rsl_rl.storage import RolloutStorage
    from tensordict import TensorDict

    script = make_script()
    taken = []

    def show(t):
        return TensorDict({"policy": torch.as_tensor(script.obs[t])}, batch_size=[ENVS])

    groups = {"actor": ["policy"], "critic": ["policy"]}
    options = {"hidden_dims": [UNITS, UNITS], "activation": "tanh"}
    normal = {"class_name": "rsl_rl.modules.distribution:GaussianDistribution"}
    actor = MLPModel(show(0), groups, "actor", OUTPUTS, distribution_cfg=normal, **options)
    critic = MLPModel(show(0), groups, "critic", 1, **options)
    recorder = Recorder(kind, actor.mlp, critic.mlp, actor.distribution.std_param, is_std=True)
    algorithm = PPO(
        actor,
        critic,
        RolloutStorage("rl", ENVS, STEPS, show(0), [OUTPUTS]),
        num_learning_epochs=SETTINGS["update_epochs"],
        num_mini_batches=SETTINGS["num_minibatches"],
        clip_param=SETTINGS["clip_coef"],
        gamma=SETTINGS["gamma"],
        lam=SETTINGS["gae_lambda"],
        value_loss_coef=SETTINGS["vf_coef"],
        entropy_coef=SETTINGS["ent_coef"],
        learning_rate=SETTINGS["learning_rate"],
        max_grad_norm=SETTINGS["max_grad_norm"],
        schedule="fixed",
    )
    for t in range(UPDATES * STEPS):
        with torch.inference_mode():
            actions = algorithm.act(show(t))
            taken.append(actions.numpy().copy())
            dones = torch.as_tensor(script.terminated[t] | script.truncated[t]).long()
            time_outs = torch.as_tensor(script.truncated[t]).float()
            rewards = torch.as_tensor(script.rewards[t].copy())
            algorithm.process_env_step(show(t + 1), rewards, dones, {"time_outs": time_outs})
        if (t + 1) % STEPS == 0:
            with torch.inference_mode():
                algorithm.compute_returns(show(t + 1))
            algorithm.update()
            recorder.end_update()
    return recorder, taken, importlib.metadata.version("rsl-rl-lib")


RECORD = {"cleanrl": record_cleanrl, "sb3": record_sb3, "skrl": record_skrl, "rsl_rl": record_rsl_rl}


def main():
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m conformance.recording", description=__doc__, formatter_class=plain)
    parser.add_argument("library", choices=RECORD)
    parser.add_argument("to", type=Path, help="the folder for the recordings, such as as_sb3_discrete.npz")
    parser.add_argument("--folder", type=Path, help="CleanRL's folder of scripts")
    args = parser.parse_args()
    if args.library == "cleanrl" and args.folder is None:
        parser.error("--folder is missing")
    kinds = ["continuous"] if args.library == "rsl_rl" else list(KIND_OF_ACTIONS)
    for kind in kinds:
        torch.manual_seed(1)
        np.random.seed(1)
        torch.set_default_dtype(torch.float64)
        with InFloat64():
            options = [kind, args.folder] if args.folder else [kind]
            recorder, actions, version = RECORD[args.library](*options)
        columns = {
            "actions": np.array(actions).reshape(UPDATES * STEPS, ENVS, -1),
            "rows": np.array(recorder.rows, dtype=np.uint8).reshape(UPDATES, -1, len(recorder.rows[0])),
            "weights": np.array(recorder.weights),
        }
        file = args.to / f"as_{args.library}_{kind}.npz"
        np.savez_compressed(file, **columns)
        print(f"{file} {version}: {', '.join(f'{name} {list(array.shape)}' for name, array in columns.items())}")


if __name__ == "__main__":
    main()
