"""Mistakes in an edited copy of a script that would train without an error. check.py names more of them."""

import pytest
import script_table
from in_process import patched, train
from script_table import CONTINUOUS, MASK, MULTIDISCRETE, PPO, SEEDS, SELFPLAY, SHARED

# The scripts in which get_policy() acts, and forward() computes the log probabilities after the rollout
ONE_PASS = [PPO, SHARED, CONTINUOUS, MULTIDISCRETE, MASK, SELFPLAY, SEEDS]


def train_edited(script, folder, agent):
    """Trains with another Agent."""
    with patched((script.module, "Agent", agent)):
        train(script, script.tiny, folder)


@script_table.of_scripts(ONE_PASS)
def test_values_with_an_axis_too_many(script, tmp_path):
    class Agent(script.module.Agent):
        def forward(self, obs):
            policy, values = super().forward(obs)
            return policy, values.unsqueeze(-1)

    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        train_edited(script, tmp_path, Agent)


@script_table.of_scripts(ONE_PASS)
def test_two_policies(script, tmp_path):
    """forward() has another policy than the one that acts."""

    class Agent(script.module.Agent):
        def forward(self, obs):
            _, values = super().forward(obs)
            return self.get_policy(obs + 1), values

    with pytest.raises(AssertionError, match="different policies"):
        train_edited(script, tmp_path, Agent)
