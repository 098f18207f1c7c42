"""Measures whether a library repeats a run, resumes it exactly, and evaluates with frozen statistics.

python -m conformance.runs sb3 --json conformance/results/saving/sb3.json    in that library's environment

python -m conformance.runs ours                                            for ppo_continuous_action.py
python -m conformance.runs cleanrl --folder path/to/cleanrl/cleanrl        for its ppo.py

A run has two updates, on the CPU, with the library's own loop. docs/conformance.md has the results.
"""

import argparse
import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import gymnasium as gym
import numpy as np
import torch

from conformance.runs_table import ROWS

ROOT = Path(__file__).parents[1]
ENV_ID = "Pendulum-v1"
STEPS = 64  # of each environment in a rollout
NUM_ENVS = 4


def seed_all(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)


def flat(module):
    """The weights of a module in one row."""
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()]).double().numpy()


class StableBaselines3:
    """Its learn(), save() and load()."""

    def __init__(self):
        import stable_baselines3

        self.NAME = "Stable-Baselines3"
        self.VERSION = stable_baselines3.__version__
        self.library = stable_baselines3

    def start(self, seed):
        env = gym.make(ENV_ID)
        return self.library.PPO("MlpPolicy", env, n_steps=STEPS, batch_size=32, seed=seed, device="cpu")

    def train(self, model, updates):
        model.learn(updates * STEPS, reset_num_timesteps=False)

    def save(self, model, folder):
        model.save(folder / "model.zip")

    def load(self, folder):
        return self.library.PPO.load(folder / "model.zip", env=gym.make(ENV_ID), device="cpu")

    def begin_episodes(self, model, seed):
        seed_all(seed)
        model.env.seed(seed)
        model._last_obs = None  # so learn() begins a new episode

    def weights(self, model):
        return flat(model.policy)

    def evaluate(self):
        """By evaluate_policy() on the environment that it trains with, normalized by VecNormalize."""
        from stable_baselines3.common.evaluation import evaluate_policy
        from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

        env = VecNormalize(DummyVecEnv([lambda: gym.make(ENV_ID)]))
        model = self.library.PPO("MlpPolicy", env, n_steps=STEPS, batch_size=32, seed=1, device="cpu")
        model.learn(STEPS)
        before = env.obs_rms.mean.copy()
        evaluate_policy(model, model.get_env(), n_eval_episodes=1)
        return before, env.obs_rms.mean


class Skrl:
    """Its SequentialTrainer, and its agent's save() and load()."""

    def __init__(self):
        import skrl

        self.NAME = "skrl"
        self.VERSION = skrl.__version__

    def make(self, seed):
        from skrl.agents.torch.ppo import PPO
        from skrl.envs.wrappers.torch import wrap_env
        from skrl.memories.torch import RandomMemory
        from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
        from skrl.resources.preprocessors.torch import RunningStandardScaler
        from skrl.utils import set_seed
        from torch import nn

        set_seed(seed)
        env = wrap_env(gym.make_vec(ENV_ID, num_envs=NUM_ENVS, vectorization_mode="sync"))
        spaces = {"observation_space": env.observation_space, "action_space": env.action_space}

        class Policy(GaussianMixin, Model):
            def __init__(self):
                Model.__init__(self, **spaces, device="cpu")
                GaussianMixin.__init__(self)
                self.net = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1))
                self.logstd = nn.Parameter(torch.zeros(1))

            def compute(self, inputs, role):
                return self.net(inputs["observations"]), {"log_std": self.logstd}

        class Value(DeterministicMixin, Model):
            def __init__(self):
                Model.__init__(self, **spaces, device="cpu")
                DeterministicMixin.__init__(self)
                self.net = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1))

            def compute(self, inputs, role):
                return self.net(inputs["observations"]), {}

        config = {
            "rollouts": STEPS,
            "observation_preprocessor": RunningStandardScaler,
            "observation_preprocessor_kwargs": {"size": env.observation_space},
            "experiment": {"write_interval": 0, "checkpoint_interval": 0},
        }
        memory = RandomMemory(memory_size=STEPS, num_envs=NUM_ENVS, device="cpu")
        agent = PPO(models={"policy": Policy(), "value": Value()}, memory=memory, cfg=config, device="cpu", **spaces)
        return agent, env

    def start(self, seed):
        return self.make(seed)

    def run(self, pair, steps, how):
        from skrl.trainers.torch import SequentialTrainer

        agent, env = pair
        options = {
            "timesteps": steps,
            "headless": True,
            "disable_progressbar": True,
            "close_environment_at_exit": False,
        }
        trainer = SequentialTrainer(cfg=options, env=env, agents=agent)
        getattr(trainer, how)()

    def train(self, pair, updates):
        self.run(pair, updates * STEPS, "train")

    def save(self, pair, folder):
        pair[0].save(str(folder / "agent.pt"))

    def load(self, folder):
        agent, env = self.make(1)
        agent.load(str(folder / "agent.pt"))
        return agent, env

    def begin_episodes(self, pair, seed):
        from skrl.utils import set_seed

        set_seed(seed)
        _, env = pair
        env._seed = seed
        env._reset_once = True  # so the trainer begins new episodes, with this seed

    def weights(self, pair):
        agent, _ = pair
        return np.concatenate([flat(agent.models["policy"]), flat(agent.models["value"])])

    def evaluate(self):
        """By its trainer's eval()."""
        pair = self.make(1)
        self.train(pair, 1)
        scaler = pair[0]._observation_preprocessor
        before = scaler.running_mean.numpy().copy()
        self.run(pair, STEPS, "eval")
        return before, scaler.running_mean.numpy()


class RslRl:
    """Its OnPolicyRunner, with its adaptive learning rate and its normalization of observations."""

    def __init__(self):
        import importlib.metadata

        self.NAME = "rsl-rl-lib"
        self.VERSION = importlib.metadata.version("rsl-rl-lib")

    def start(self, seed):
        from rsl_rl.env import VecEnv
        from rsl_rl.runners import OnPolicyRunner
        from tensordict import TensorDict

        class Environments(VecEnv):
            """Environments of gymnasium, in which the step after an episode's end begins the next."""

            def __init__(self):
                self.envs = gym.make_vec(ENV_ID, num_envs=NUM_ENVS, vectorization_mode="sync")
                self.num_envs = NUM_ENVS
                self.num_actions = 1
                self.max_episode_length = 200
                self.episode_length_buf = torch.zeros(NUM_ENVS, dtype=torch.long)
                self.device = "cpu"
                self.cfg = {}
                self.begin(seed)

            def begin(self, seed):
                self.obs, _ = self.envs.reset(seed=seed)

            def get_observations(self):
                obs = torch.as_tensor(self.obs).float()
                return TensorDict({"policy": obs}, batch_size=[NUM_ENVS])

            def step(self, actions):
                self.obs, rewards, terminated, truncated, _ = self.envs.step(actions.numpy())
                dones = torch.as_tensor(terminated | truncated).long()
                return self.get_observations(), torch.as_tensor(rewards).float(), dones, {}

        seed_all(seed)
        normal = {"class_name": "GaussianDistribution"}
        config = {
            "num_steps_per_env": STEPS,
            "save_interval": 1000,
            "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
            "actor": {"class_name": "MLPModel", "obs_normalization": True, "distribution_cfg": normal},
            "critic": {"class_name": "MLPModel", "obs_normalization": True},
            "algorithm": {"class_name": "PPO"},
        }
        return OnPolicyRunner(Environments(), config, log_dir=None, device="cpu")

    def train(self, runner, updates):
        runner.learn(updates)

    def save(self, runner, folder):
        runner.save(str(folder / "model.pt"))

    def load(self, folder):
        runner = self.start(1)
        runner.load(str(folder / "model.pt"))
        return runner

    def begin_episodes(self, runner, seed):
        seed_all(seed)
        runner.env.begin(seed)

    def weights(self, runner):
        return np.concatenate([flat(runner.alg.actor), flat(runner.alg.critic)])

    def evaluate(self):
        """By the policy of get_inference_policy()."""
        runner = self.start(1)
        runner.learn(1)
        policy = runner.get_inference_policy()
        before = policy.obs_normalizer.mean.numpy().copy()
        with torch.inference_mode():
            for _ in range(STEPS):
                runner.env.step(policy(runner.env.get_observations()))
        return before, policy.obs_normalizer.mean.numpy()


class Ours:
    """ppo_continuous_action.py by its command line, and enjoy.py. Its --resume seeds the environments itself."""

    NAME = "ppo_continuous_action.py"
    VERSION = "of this checkout"
    size = NUM_ENVS * STEPS

    def start(self, seed):
        return {"words": ["--seed", str(seed)], "folder": None, "updates": 0}

    def train(self, run, updates):
        run["updates"] += updates
        words = [*run["words"], "--total-timesteps", str(run["updates"] * self.size)]
        if run["folder"] is None:
            parent = Path(tempfile.mkdtemp())
            words += ["--env-id", ENV_ID, "--num-envs", str(NUM_ENVS), "--num-steps", str(STEPS)]
            words += ["--no-anneal-lr", "--no-cuda", "--runs-folder", str(parent)]
        done = subprocess.run([sys.executable, ROOT / "ppo_continuous_action.py", *words], capture_output=True)
        done.check_returncode()
        if run["folder"] is None:
            [run["folder"]] = parent.iterdir()

    def save(self, run, folder):
        """A run saves its end by itself; `folder` gets a link to it."""
        (folder / "run").symlink_to(run["folder"])

    def load(self, folder):
        place = (folder / "run").resolve()
        return {"words": ["--resume", str(place), "--no-cuda"], "folder": place, "updates": 1}

    def checkpoint(self, run):
        sys.path.insert(0, str(ROOT))
        import saved

        return saved.load(run["folder"])

    def weights(self, run):
        state = self.checkpoint(run).state["parts"]["agent"]
        return np.concatenate([tensor.double().numpy().ravel() for tensor in state.values()])

    def evaluate(self):
        """By the environments and the player of enjoy.py."""
        run = self.start(1)
        self.train(run, 1)
        checkpoint = self.checkpoint(run)
        import enjoy

        envs = checkpoint.script.make_envs(checkpoint.options)
        enjoy.restore_statistics(envs, checkpoint)
        before = envs.obs_stats.mean.copy()
        player = enjoy.Player(checkpoint, envs)
        player.start_game(1, NUM_ENVS)
        obs, infos = envs.reset(seed=1)
        for _ in range(STEPS):
            obs, *_, infos = envs.step(player.act(obs, np.zeros(NUM_ENVS, bool), infos))
        return before, envs.obs_stats.mean


class CleanRL:
    """Its script ppo.py, which has no resume, on CartPole-v1."""

    NAME = "CleanRL"

    def __init__(self, folder, version):
        self.folder = folder.resolve()
        self.VERSION = version

    def start(self, seed):
        return {"seed": seed}

    def train(self, run, updates):
        total = updates * NUM_ENVS * STEPS
        words = ["ppo.py", f"--seed={run['seed']}", "--no-cuda", f"--num-envs={NUM_ENVS}", f"--num-steps={STEPS}"]
        here = os.getcwd()
        with (
            tempfile.TemporaryDirectory() as place,
            mock.patch.object(sys, "argv", [*words, f"--total-timesteps={total}"]),
        ):
            os.chdir(place)  # where it writes its log
            try:
                run["agent"] = runpy.run_path(str(self.folder / "ppo.py"), run_name="__main__")["agent"]
            finally:
                os.chdir(here)

    def weights(self, run):
        return flat(run["agent"])


LIBRARIES = {"ours": Ours, "cleanrl": CleanRL, "sb3": StableBaselines3, "skrl": Skrl, "rsl_rl": RslRl}


def compare(one, other):
    """ "yes" if two arrays have the same bits, and otherwise their largest difference."""
    difference = float(np.abs(one - other).max())
    return "yes" if difference == 0 else f"no: up to {difference:.1g} apart"


def run_of_two(library, folder=None, seed=None):
    """The weights of a run after two updates.

    folder: where it is saved after the first update, and resumed; None for a run that goes on.
    seed: with it, new episodes begin after the first update, and all generators get it."""
    run = library.start(1)
    if folder is None and seed is None:
        library.train(run, 2)
        return library.weights(run)
    library.train(run, 1)
    if folder is not None:
        library.save(run, folder)
        run = library.load(folder)
    if seed is not None:
        library.begin_episodes(run, seed)
    library.train(run, 1)
    return library.weights(run)


def measure(library):
    """{row: word} of a library."""
    not_stopped = run_of_two(library)
    words = {"repeat": compare(not_stopped, run_of_two(library)), "resumed": "has no resume"}
    if hasattr(library, "load"):
        with tempfile.TemporaryDirectory() as folder:
            words["resumed"] = compare(not_stopped, run_of_two(library, Path(folder)))
    if hasattr(library, "begin_episodes"):
        with tempfile.TemporaryDirectory() as folder:
            words["seeded"] = compare(run_of_two(library, seed=7), run_of_two(library, Path(folder), seed=7))
    if hasattr(library, "evaluate"):
        words["evaluation"] = compare(*library.evaluate())
    return words


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("--folder", type=Path, help="of the scripts of CleanRL")
    parser.add_argument("--version", default="", help="of the scripts of CleanRL")
    parser.add_argument("--json", type=Path, help="write the results into this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    arguments = (args.folder, args.version) if args.library == "cleanrl" else ()
    library = LIBRARIES[args.library](*arguments)
    with contextlib.redirect_stdout(io.StringIO()):
        words = measure(library)
    print(library.NAME, library.VERSION)
    for name, title in ROWS.items():
        print(f"{title:75} {words.get(name, 'not measured')}")
    if args.json:
        about = {"name": library.NAME, "version": library.VERSION, "rows": words}
        args.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
