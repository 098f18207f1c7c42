"""What does not fit is an error, never a silent run: environments, and what an edit gives to the loss.

An environment ends with one line; its own errors keep their traceback.

The environments are those of tests/abuse.py, which is run by hand and tries all of them, and much else, at random.
"""

import contextlib
import re

import gymnasium as gym
import pytest
import torch
from abuse import Odd
from toy_envs import SCRIPTS, checkpoint, newest_run, train

SCRIPT = {script.name: script for script in SCRIPTS}
ACTIONS = {
    "ppo": gym.spaces.Discrete(2), "ppo_shared": gym.spaces.Discrete(2),
    "ppo_continuous_action": gym.spaces.Box(-1, 1, (2,)),
    "ppo_multidiscrete": gym.spaces.MultiDiscrete([3, 2]), "ppo_multidiscrete_mask": gym.spaces.MultiDiscrete([3, 2]),
}  # fmt: skip
# what is odd, in which scripts, and what the line that ends the run says
AT_ONCE = [
    ("obs sequence", ACTIONS, "has the observations 'Sequence.*of no fixed length"),
    ("obs graph", ACTIONS, "has the observations 'Graph.*of no fixed length"),
    ("action start", ["ppo", "ppo_shared"], r"Discrete\(2, start=5\)', not Discrete ones from 0"),
    ("action start", ["ppo_multidiscrete", "ppo_multidiscrete_mask"], "not vectors from 0"),
    *((f"action {kind} box", ["ppo_continuous_action"], "no bounded vector") for kind in ("int", "scalar", "matrix")),
    ("action unbounded", ["ppo_continuous_action"], "no bounded vector"),
    ("action sequence", ACTIONS, "has the actions 'Sequence"),
    ("action multibinary", ACTIONS, "has the actions 'MultiBinary"),
]
IN_A_RUN = [
    ("obs nan", ["ppo_continuous_action"], "first observation has NaN or inf"),
    ("obs nan", ["ppo", "ppo_multidiscrete"], "NaN or inf in losses/policy_loss of update 1"),
    ("reward inf", ["ppo_continuous_action"], "environment 0 gave NaN or inf"),
    ("reward nan", ["ppo", "ppo_multidiscrete"], "NaN or inf in losses"),
    *((f"mask {x}", ["ppo_multidiscrete_mask"], r"a mask of 3 \+ 2") for x in ("nan", "string", "of words", "short")),
    ("step exits 0", ACTIONS, "something ended the program in update 1"),
]  # fmt: skip
OWN = ["init raises", "reset raises", "step raises"]
FINE = [f"obs {kind}" for kind in ("dict", "tuple", "matrix", "scalar", "int", "discrete", "text")] + ["info odd"]


def cases(table):
    return [pytest.param(name, *row[::2], id=f"{name}-{row[0]}") for row in table for name in row[1]]


def train_on(oddity, name, folder):
    spaces = gym.spaces.Box(-1, 1, (4,)), ACTIONS[name]
    gym.register("Odd-v0", lambda **kwargs: Odd(oddity, spaces, **kwargs), disable_env_checker=True)
    sizes = "--num-envs 2 --num-steps 32 --total-timesteps 128 --num-minibatches 2 --save-every 1"
    try:
        return train(SCRIPT[name], f"--env-id Odd-v0 {sizes}", folder)
    finally:
        del gym.registry["Odd-v0"]


@pytest.mark.parametrize("name, oddity, said", cases(AT_ONCE))
def test_refused_before_a_folder_is_made(name, oddity, said, tmp_path):
    with pytest.raises(SystemExit) as end:
        train_on(oddity, name, tmp_path)
    assert re.fullmatch(f"error: .*{said}.*", end.value.code)
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.parametrize("name, oddity, said", cases(IN_A_RUN))
def test_refused_in_the_first_rollout(name, oddity, said, tmp_path):
    with pytest.raises(SystemExit) as end:
        train_on(oddity, name, tmp_path)
    assert re.fullmatch(f"error: .*{said}.*", end.value.code)


@pytest.mark.parametrize("oddity", OWN)
@pytest.mark.parametrize("name", ACTIONS)
def test_its_own_error_keeps_its_traceback(name, oddity, tmp_path):
    with pytest.raises((ValueError, OSError, RuntimeError), match="its own fault"):
        train_on(oddity, name, tmp_path)


@pytest.mark.parametrize("oddity", FINE)
@pytest.mark.parametrize("name", ACTIONS)
def test_what_is_odd_but_fits(name, oddity, tmp_path):
    assert checkpoint(train_on(oddity, name, tmp_path))["global_step"] == 128
    assert newest_run(tmp_path)


class Policy:
    """In place of a policy: the log probabilities of B actions are their columns of numbers."""

    def log_prob(self, actions):
        return actions

    def entropy(self):
        return torch.zeros(8)

    def masked(self, masks):
        return self


@pytest.mark.parametrize("wrong", [None, "values", "actions", "returns"])
@pytest.mark.parametrize("name", [name for name in SCRIPT if hasattr(SCRIPT[name].module, "ppo_loss")])
def test_a_column_of_another_shape_ends_the_loss(name, wrong):
    """[B, 1] instead of [B] would broadcast to [B, B], and train on."""
    module = SCRIPT[name].module
    columns = ("obs", "actions", "logprobs", "values", "returns", "advantages_of_all", "masks", "state", "dones")
    minibatch = {name: torch.linspace(-1, 1, 8) for name in columns}
    values = torch.zeros(8, 1) if wrong == "values" else torch.zeros(8)
    if wrong in minibatch:
        minibatch[wrong] = minibatch[wrong][:, None]
    given = (Policy(), values, None) if name == "ppo_atari_lstm" else (Policy(), values)
    with contextlib.nullcontext() if wrong is None else pytest.raises(AssertionError):
        module.ppo_loss(lambda *_: given, minibatch, 0.1, module.Args())
