"""pytorch-a2c-ppo-acktr-gail, whose package a2c_ppo_acktr must be importable: PYTHONPATH=path/to/its/checkout."""

import importlib
import sys
from types import SimpleNamespace

import gym.spaces
import numpy as np
import torch
from torch import nn

from conformance.adapters import torch_tables
from conformance.adapters.torch_tables import Memory, Recorder, describe_image_network, layers
from conformance.problems import Player, Refused, Update, make_world

# Its environments need libraries of 2021, and are not used here.
sys.modules["a2c_ppo_acktr.envs"] = SimpleNamespace(VecNormalize=None)
sys.modules.setdefault("h5py", SimpleNamespace())
PPO = importlib.import_module("a2c_ppo_acktr.algo.ppo").PPO
NNBase = importlib.import_module("a2c_ppo_acktr.model").NNBase
Policy = importlib.import_module("a2c_ppo_acktr.model").Policy
RolloutStorage = importlib.import_module("a2c_ppo_acktr.storage").RolloutStorage
get_args = importlib.import_module("a2c_ppo_acktr.arguments").get_args

NAME = "pytorch-a2c-ppo-acktr-gail"
VERSION = ""
KINDS = "discrete", "continuous"


def action_space(kind):
    world = make_world(kind)
    if kind == "discrete":
        return gym.spaces.Discrete(world.num_outputs)
    return gym.spaces.Box(-1.0, 1.0, (world.num_outputs,))


def defaults():
    """The options of its command line as they are without any."""
    kept = sys.argv
    sys.argv = ["main.py", "--algo", "ppo", "--no-cuda"]
    try:
        return get_args()
    finally:
        sys.argv = kept


class Rows(nn.Module):
    """In place of its base: the value from a table, and the observation as the features of the policy."""

    is_recurrent = False
    recurrent_hidden_state_size = 1

    def __init__(self, recorder):
        super().__init__()
        self.value = recorder.value

    def forward(self, inputs, states, masks):
        return self.value(inputs), inputs, states


class RecurrentRows(NNBase):
    """The same, behind its own code for a recurrent layer, which `memory` stands in for."""

    def __init__(self, recorder, memory):
        super().__init__(True, 1, memory.hidden_size)
        self.value = recorder.value
        self.gru = memory

    def forward(self, inputs, states, masks):
        rows, states = self._forward_gru(inputs, states, masks)
        return self.value(rows), rows, states


def play(world, settings, updates=1, memory=None):
    """(player, recorder, advantages, returns) after rollouts and updates as its main.py makes them.

    memory: what stands in place of a recurrent layer; without one, the policy is not recurrent."""
    player = Player(world)
    args = defaults()
    torch.manual_seed(1)
    with Recorder(world) as recorder:
        policy = Policy((1,), action_space(world.kind))
        policy.base = Rows(recorder) if memory is None else RecurrentRows(recorder, memory)
        if world.kind == "discrete":
            policy.dist.linear = recorder.policy
        else:
            policy.dist.fc_mean = recorder.policy
            policy.dist.logstd._bias = nn.Parameter(recorder.logstd.detach()[:, None])
            policy.dist.logstd._bias.register_hook(lambda gradient: recorder.add("logstd", gradient))
            recorder.logstd = policy.dist.logstd._bias
        agent = PPO(
            policy,
            settings.clip_coef,
            settings.update_epochs,
            settings.num_minibatches,
            settings.vf_coef,
            settings.ent_coef,
            lr=settings.learning_rate,
            eps=args.eps,
            max_grad_norm=settings.max_grad_norm,
        )
        units = policy.recurrent_hidden_state_size
        rollouts = RolloutStorage(world.num_steps, world.num_envs, (1,), action_space(world.kind), units)
        rollouts.obs[0] = torch.as_tensor(player.reset()).float()[:, None]
        for _ in range(updates):
            collect(world, player, policy, rollouts)
            with torch.no_grad():
                last = policy.get_value(rollouts.obs[-1], rollouts.recurrent_hidden_states[-1], rollouts.masks[-1])
            rollouts.compute_returns(
                last.detach(), True, settings.gamma, settings.gae_lambda, args.use_proper_time_limits
            )
            returns = rollouts.returns[:-1, :, 0].numpy().copy()
            values = rollouts.value_preds[:-1, :, 0].numpy().copy()
            agent.update(rollouts)
            rollouts.after_update()
    return player, recorder, returns - values, returns


def collect(world, player, policy, rollouts):
    """Fills the storage with a rollout."""
    for t in range(world.num_steps):
        with torch.no_grad():
            value, action, log_prob, states = policy.act(
                rollouts.obs[t], rollouts.recurrent_hidden_states[t], rollouts.masks[t]
            )
        chosen = action.numpy()[:, 0] if world.kind == "discrete" else action.numpy()
        rows, rewards, terminated, truncated, _ = player.step(chosen)
        obs = torch.as_tensor(rows).float()[:, None]
        masks = torch.as_tensor(~(terminated | truncated)).float()[:, None]
        # as its main.py: 0 where a time limit ended the episode
        bad_masks = torch.as_tensor(~(truncated & ~terminated)).float()[:, None]
        rollouts.insert(obs, states, action, log_prob, value, torch.as_tensor(rewards)[:, None], masks, bad_masks)


def update(world, settings):
    if world.kind not in KINDS:
        return None
    try:
        player, recorder, found, returns = play(world, settings)
    except AssertionError as error:
        raise Refused(str(error)) from None
    return Update(np.array(player.actions).reshape(world.actions.shape), recorder.steps, found, returns)


def advantages(world, settings):
    *_, returns = play(world, settings)
    return {"returns": returns}


def initial_weights(seed, kind):
    if kind not in KINDS:
        return None
    torch.manual_seed(seed)
    policy = Policy((6,), action_space(kind))
    head = policy.dist.linear if kind == "discrete" else policy.dist.fc_mean
    found = {
        "policy": layers(policy.base.actor, head),
        "value": layers(policy.base.critic, policy.base.critic_linear),
    }
    if kind == "continuous":
        found["logstd"] = policy.dist.logstd._bias.detach().numpy().reshape(-1)
    return found


def recurrent_weights(seed):
    """Of its GRU."""
    torch.manual_seed(seed)
    policy = Policy((6,), action_space("discrete"), base_kwargs={"recurrent": True})
    return torch_tables.recurrent_weights(policy.base.gru)


def recurrence(world, settings):
    memory = Memory(8)
    play(world, settings, updates=2, memory=memory)
    return memory.calls


def images(images):
    space = action_space("discrete")
    policy = Policy(images.shape[1:], space)
    count = len(images)
    obs = torch.as_tensor(images).float()

    def outputs():
        zeros = torch.zeros(count, 1)
        values, log_probs, *_ = policy.evaluate_actions(obs, zeros, zeros + 1, zeros.long())
        return log_probs, values

    rollouts = RolloutStorage(1, count, images.shape[1:], space, 1)
    return describe_image_network(outputs) | {"stored": str(rollouts.obs.numpy().dtype)}
