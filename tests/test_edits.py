"""Mistakes in an edited copy of a script that would train without an error: each ends the run with a line."""

import gymnasium as gym
import pytest
import script_table
import torch
from in_process import patched, train
from script_table import ATARI, CONTINUOUS, LSTM, MASK, MULTIDISCRETE, PPO, SEEDS, SELFPLAY, SHARED

import ppo
import ppo_shared

# The scripts in which get_policy() acts, and forward() computes the log probabilities after the rollout
ONE_PASS = [PPO, SHARED, CONTINUOUS, MULTIDISCRETE, MASK, SELFPLAY, SEEDS]
# The scripts whose vector of environments is one of gymnasium's
GYMNASIUM = [*ONE_PASS, ATARI, LSTM]


def train_edited(script, folder, **edits):
    """Trains with other objects under some names of a script."""
    patches = [(script.module, name, edit) for name, edit in edits.items()]
    with patched(*patches):
        train(script, script.tiny, folder)


@script_table.of_scripts(ONE_PASS)
def test_values_with_an_axis_too_many(script, tmp_path):
    class Agent(script.module.Agent):
        def forward(self, obs):
            policy, values = super().forward(obs)
            return policy, values.unsqueeze(-1)

    with pytest.raises(SystemExit, match=r"^error: values has the shape \[.*, 1\], and must be \["):
        train_edited(script, tmp_path, Agent=Agent)


@script_table.of_scripts(ONE_PASS)
def test_two_policies(script, tmp_path):
    """forward() has another policy than the one that acts."""

    class Agent(script.module.Agent):
        def forward(self, obs):
            _, values = super().forward(obs)
            return self.get_policy(obs + 1), values

    with pytest.raises(SystemExit, match=r"^error: get_policy\(\) and forward\(\) give different probabilities"):
        train_edited(script, tmp_path, Agent=Agent)


def with_layer(layer):
    """In place of ppo.mlp(): its layers, with another one before each tanh."""

    def mlp(inputs):
        first = [torch.nn.Linear(inputs, 64), layer(), torch.nn.Tanh()]
        second = [torch.nn.Linear(64, 64), layer(), torch.nn.Tanh()]
        return torch.nn.Sequential(*first, *second)

    return mlp


@pytest.mark.parametrize(
    "layer", [lambda: torch.nn.BatchNorm1d(64), lambda: torch.nn.Dropout(0.1)], ids=["batch", "dropout"]
)
def test_layers_that_depend_on_more_than_the_observation(layer, tmp_path):
    with pytest.raises(SystemExit, match="without dropout or batch normalization$"):
        train_edited(PPO, tmp_path, mlp=with_layer(layer))


def test_a_layer_in_one_of_two_functions(tmp_path):
    """Each of them computes the shared trunk, and the layer was put into one."""

    class Agent(ppo_shared.Agent):
        def __init__(self, envs):
            super().__init__(envs)
            self.norm = torch.nn.LayerNorm(64)

        def forward(self, obs):
            features = self.norm(self.trunk(obs.float()))
            return ppo_shared.Categorical(self.policy(features)), self.value(features).squeeze(-1)

    with pytest.raises(SystemExit, match=r"^error: get_policy\(\) and forward\(\) give different probabilities"):
        train_edited(SHARED, tmp_path, Agent=Agent)


def test_layers_that_do_no_harm(tmp_path):
    """Layer normalization in both functions is no mistake."""
    train_edited(PPO, tmp_path, mlp=with_layer(lambda: torch.nn.LayerNorm(64)))


def test_observations_that_are_not_numbers(tmp_path):
    """They make every probability NaN, which is not a mistake of the agent: the line names the environment."""

    class Episodes(ppo.Episodes):
        def flatten(self, obs):
            return super().flatten(obs) * float("nan")

    with pytest.raises(SystemExit, match="^error: losses/.* is nan in update 1; perhaps"):
        train_edited(PPO, tmp_path, Episodes=Episodes)


@pytest.mark.parametrize("column", ["obs", "extra"])
def test_a_column_of_another_length(column):
    args = ppo.Args(num_envs=2, num_steps=4)
    batch = {name: torch.zeros(8) for name in ("obs", "extra", "logprobs", "values")}
    batch[column] = torch.zeros(16, 3)
    with pytest.raises(SystemExit, match=rf"^error: {column} must have a row .* 8 steps, .* shape \[16, 3\]$"):
        ppo.check_batch(None, batch, args)


@script_table.of_scripts(GYMNASIUM)
@pytest.mark.parametrize("mode", [gym.vector.AutoresetMode.NEXT_STEP, gym.vector.AutoresetMode.DISABLED])
def test_another_autoreset_mode(script, mode, tmp_path):
    def make_envs(args, folder=None):
        envs = made(args, folder)
        envs.metadata["autoreset_mode"] = mode
        return envs

    made = script.module.make_envs
    with pytest.raises(SystemExit, match="^error: the rollout needs AutoresetMode.SAME_STEP"):
        train_edited(script, tmp_path, make_envs=make_envs)
