"""The adapter of plain_ppo.py, an example to imitate."""

import dataclasses

import numpy as np
import torch
from plain_ppo import PPO, network

from conformance.adapters.torch_tables import Recorder, layers
from conformance.problems import Player, Update

NAME = "plain_ppo.py"
KINDS = ("discrete",)


class Environments:
    """Environments as plain_ppo.py takes them, which play the world. An observation is the number of a row."""

    def __init__(self, world):
        self.player = Player(world)

    def reset(self):
        return torch.as_tensor(self.player.reset())[:, None]

    def step(self, actions):
        rows, rewards, terminated, truncated, _ = self.player.step(actions.numpy())
        return torch.as_tensor(rows)[:, None], torch.as_tensor(rewards), torch.as_tensor(terminated | truncated)


def updates(world, settings, count):
    envs = Environments(world)
    found = []
    with Recorder(world) as recorder:  # its tables take the place of the networks
        trainer = PPO(envs, recorder.policy, recorder.value, world.num_steps, **dataclasses.asdict(settings))
        for number in range(count):
            first_step = len(recorder.steps)
            rollout = trainer.update()
            recorder.finish()
            actions = np.array(envs.player.rollouts[number])
            arrays = rollout["advantages"].numpy(), rollout["returns"].numpy()
            found.append(Update(actions, recorder.steps[first_step:], *arrays))
    return found


def update(world, settings):
    return updates(world, settings, 1)[0]


def advantages(world, settings):
    found = update(world, settings)
    return {"advantages": found.advantages, "returns": found.returns}


def initial_weights(seed, kind):
    return {"policy": layers(network(6, 3)), "value": layers(network(6, 1))}
