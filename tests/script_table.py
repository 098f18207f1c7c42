"""What the tests of all scripts need to know about each, beside benchmark/scripts.py."""

import importlib
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmark import scripts

ROOT = Path(__file__).parents[1]


class Script(NamedTuple):
    """One script: what its tests need to know about it. A new script is one more entry of SCRIPTS, or of TEXTS."""

    name: str
    marks: set[str]  # the details that it adds to its parent, or changes: {"lstm 1", ...}
    unfit: dict[str, str]  # environments that it cannot train on, and what the error names
    quick: str  # options of a run of seconds on its default environment; an episode ends in it
    tiny: str  # options of the shortest run, on the same
    images: tuple[int, ...] | None  # the shape of uint8 images of 4 channels that it takes; None: it takes vectors
    defaults: dict  # the hyperparameters that are not CLASSIC_CONTROL's, beside the environment
    box: bool = False  # its actions are a Box, and its observations and rewards are normalised
    several: bool = False  # its actions are MultiDiscrete

    @property
    def module(self):
        return importlib.import_module(self.name)

    @property
    def parent(self):
        """The name of the script that it is compared with, or None."""
        return scripts.SCRIPTS[self.name].parent


def details(name, size):
    """The details of a set that has `size` of them."""
    return {f"{name} {number}" for number in range(1, size + 1)}


CLASSIC_CONTROL = {
    "total_timesteps": 500_000, "num_envs": 4, "num_steps": 128, "num_minibatches": 4, "update_epochs": 4,
    "learning_rate": 2.5e-4, "anneal_lr": True, "gamma": 0.99, "gae_lambda": 0.95, "clip_coef": 0.2,
    "anneal_clip": False, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5, "target_kl": None,
    "bootstrap_truncated": False, "seed": 1, "track": False, "capture_video": False,
}  # fmt: skip
VECTORS = {
    "unfit": {"Pendulum-v1": "ppo_continuous_action.py"},
    "quick": "--total-timesteps 2048",
    "tiny": "--total-timesteps 512 --num-envs 2 --num-steps 32",
    "images": None,
    "defaults": {},
}
SEVERAL = {
    "unfit": {"CartPole-v1": "ppo.py", "Pendulum-v1": "ppo_continuous_action.py"},
    "quick": "--env-id toy_envs:Choices-v0 --total-timesteps 4096",
    "tiny": "--env-id toy_envs:Choices-v0 --total-timesteps 512 --num-envs 2 --num-steps 32",
    "images": None,
    "defaults": {"total_timesteps": 2_000_000, "num_envs": 8, "clip_coef": 0.1},
    "several": True,
}
PPO = Script("ppo", details("core", 13), **VECTORS)
SHARED = Script("ppo_shared", {"core 13"}, **VECTORS)
ATARI = Script(
    "ppo_atari", details("atari", 9),
    unfit={"CartPole-v1": "obs_type"},
    quick="--total-timesteps 768 --num-envs 2 --update-epochs 1",
    tiny="--total-timesteps 64 --num-envs 1 --num-steps 8 --num-minibatches 2 --update-epochs 2",
    images=(84, 84, 4),
    defaults={"total_timesteps": 10_000_000, "num_envs": 8, "clip_coef": 0.1},
)  # fmt: skip
LSTM = ATARI._replace(
    name="ppo_atari_lstm", marks=details("lstm", 5),
    quick=f"{ATARI.quick} --num-minibatches 2",  # they must divide the environments
    tiny="--total-timesteps 128 --num-envs 2 --num-steps 8 --num-minibatches 2 --update-epochs 2",
)  # fmt: skip
ENVPOOL = ATARI._replace(name="ppo_atari_envpool", marks={"core 1"}, unfit={"CartPole-v1": "stack_num"})
CONTINUOUS = Script(
    "ppo_continuous_action", details("continuous", 9),
    unfit={"CartPole-v1": "ppo.py"},
    quick="--env-id Hopper-v5 --total-timesteps 3072 --num-steps 1024",
    tiny="--env-id Hopper-v5 --total-timesteps 512 --num-envs 2 --num-steps 32 --num-minibatches 4 --update-epochs 2",
    images=None,
    defaults={
        "total_timesteps": 1_000_000, "num_envs": 1, "num_steps": 2048, "num_minibatches": 32, "update_epochs": 10,
        "learning_rate": 3e-4, "ent_coef": 0.0,
    },
    box=True,
)  # fmt: skip
PROCGEN = ATARI._replace(
    name="ppo_procgen", marks={"procgen 1", "continuous 8", "continuous 9"},
    unfit={"CartPole-v1": "is not supported"},
    quick="--total-timesteps 1536 --num-envs 8 --num-steps 64 --update-epochs 1",
    images=(4, 64, 64),
    defaults={
        "total_timesteps": 25_000_000, "num_envs": 64, "num_steps": 256, "num_minibatches": 8, "update_epochs": 3,
        "learning_rate": 5e-4, "anneal_lr": False, "gamma": 0.999,
        "distribution_mode": "easy", "num_levels": 0, "start_level": 0, "reward_gamma": 0.99,
    },
)  # fmt: skip
MULTIDISCRETE = Script("ppo_multidiscrete", {"multidiscrete 1"}, **SEVERAL)
MASK = MULTIDISCRETE._replace(
    name="ppo_multidiscrete_mask", marks={"aux 4"},
    defaults=MULTIDISCRETE.defaults | {"ent_coef": 0.05},
)  # fmt: skip
MULTIGPU = ENVPOOL._replace(name="ppo_atari_multigpu", marks={"aux 2"})
SELFPLAY = Script(
    "ppo_selfplay", {"selfplay 1"},
    unfit={"CartPole-v1": "a game of two", "Pendulum-v1": "a game of two"},
    quick="--env-id toy_envs:Signs-v0 --num-envs 4 --total-timesteps 4096",
    tiny="--env-id toy_envs:Signs-v0 --total-timesteps 512 --num-envs 2 --num-steps 32",
    images=None,
    defaults={"total_timesteps": 4_000_000, "num_envs": 64, "num_minibatches": 16, "learning_rate": 1e-3},
)  # fmt: skip
SCRIPTS = [PPO, SHARED, ATARI, LSTM, ENVPOOL, MULTIGPU, CONTINUOUS, PROCGEN, MULTIDISCRETE, MASK, SELFPLAY]
CLEANBA = MULTIGPU._replace(name="ppo_atari_cleanba", marks=details("cleanba", 9))
IMPALA = CLEANBA._replace(
    name="impala_atari_cleanba", marks=details("impala", 6),
    defaults=CLEANBA.defaults | dict.fromkeys(("update_epochs", "gae_lambda", "clip_coef", "anneal_clip")) | {
        "total_timesteps": 50_000_000, "num_envs": 128, "num_steps": 20, "learning_rate": 6e-4, "max_grad_norm": 40.0,
    },
)  # fmt: skip
SEEDS = PPO._replace(name="ppo_seeds", marks={"seeds 1"})
TEXTS = [*SCRIPTS, CLEANBA, IMPALA, SEEDS]  # the last three have tests of their own of how they run


def of_scripts(scripts):
    """Parametrizes a test with scripts."""
    return pytest.mark.parametrize("script", scripts, ids=lambda script: script.name)


every_script, every_text = of_scripts(SCRIPTS), of_scripts(TEXTS)


def needs_procgen():
    """Skips where the system has no Qt 5, which EnvPool's Procgen needs."""
    try:
        importlib.import_module("envpool.procgen").ProcgenGymnasiumEnvPool  # noqa: B018
    except ImportError:
        pytest.skip("EnvPool's Procgen needs Qt 5 (Debian: libqt5gui5)")


with_qt, slow = pytest.mark.qt, pytest.mark.slow  # conftest.py calls needs_procgen
SPECIAL = {"ppo_procgen": with_qt, "ppo_atari_multigpu": slow, "ppo_atari_lstm": slow}  # slow: it plays as its parent
every_script_with_its_games = of_scripts(
    [pytest.param(script, marks=SPECIAL.get(script.name, ())) for script in SCRIPTS]
)
