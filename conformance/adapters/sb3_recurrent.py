"""sb3-contrib's RecurrentPPO: as Stable-Baselines3's PPO, with a module in place of each LSTM that passes rows on.

Its minibatches are sequences, which it pads with zeros. Observations are therefore the numbers of rows + 1, so that a
zero is no row.
"""

import sb3_contrib
from sb3_contrib import RecurrentPPO
from torch import nn

from conformance.adapters import sb3, torch_tables
from conformance.adapters.torch_tables import Memory
from conformance.problems import Settings, make_world

NAME = "sb3-contrib, RecurrentPPO"
VERSION = sb3_contrib.__version__
POLICY = "MlpLstmPolicy"


class Environments(sb3.Environments):
    """A world whose observations are the numbers of rows + 1."""

    def reset(self):
        return super().reset() + 1

    def step_wait(self):
        obs, rewards, ended, infos = super().step_wait()
        for info in infos:
            if "terminal_observation" in info:
                info["terminal_observation"] = info["terminal_observation"] + 1
        return obs + 1, rewards, ended, infos


class RowNumber(nn.Module):
    """In place of an LSTM: its output is the number of the row, -1 where a sequence is padded."""

    input_size = 1

    def forward(self, sequence, states):
        return sequence - 1, states


class ShiftedMemory(Memory):
    """A Memory for these observations; the row is -1 where a sequence is padded."""

    def forward(self, sequence, states):
        return super().forward(sequence - 1, states)


def replace_lstms(policy):
    policy.lstm_actor = RowNumber()
    policy.lstm_critic = RowNumber()


def update(world, settings):
    answer = sb3.update(
        world,
        settings,
        algorithm=RecurrentPPO,
        policy=POLICY,
        environments=Environments,
        prepare=replace_lstms,
        policy_kwargs={"lstm_hidden_size": 1},
    )
    for step in answer.steps:
        step.rows = step.rows[step.rows >= 0]
    return answer


def advantages(world, settings):
    answer = update(world, settings)
    return {"advantages": answer.advantages, "returns": answer.returns}


def recurrent_weights(seed):
    model = sb3.make_model(make_world(), Settings(), RecurrentPPO, POLICY)
    return torch_tables.recurrent_weights(model.policy.lstm_actor)


def recurrence(world, settings):
    """Of the LSTM of its policy; that of its values is another, and used alike."""
    memory = ShiftedMemory(1)

    def replace(policy):
        policy.lstm_actor = memory
        policy.lstm_critic = ShiftedMemory(1)

    sb3.learn(
        world,
        settings,
        updates=2,
        algorithm=RecurrentPPO,
        policy=POLICY,
        environments=Environments,
        prepare=replace,
        policy_kwargs={"lstm_hidden_size": 1},
    )
    return memory.calls


def schedules(updates):
    return sb3.schedules(updates, RecurrentPPO, POLICY)
