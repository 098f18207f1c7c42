"""TorchRL's ClipPPOLoss and GAE; the loop around them, with its minibatches and optimizer, is the user's."""

import numpy as np
import torch
import torchrl
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torch.distributions import Categorical, Independent, Normal
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from conformance.adapters.torch_tables import Recorder
from conformance.problems import Player, Update
from conformance.reference import log_probabilities

NAME = "TorchRL"
VERSION = torchrl.__version__
KINDS = "discrete", "continuous"
LOOP = False  # minibatches, the optimizer and the clipping of gradients are not the library's


class Gaussian(nn.Module):
    """Means from a table, and a deviation that is the same in all states."""

    def __init__(self, recorder):
        super().__init__()
        self.table = recorder.policy
        self.logstd = recorder.logstd

    def forward(self, obs):
        mean = self.table(obs)
        return mean, self.logstd.exp().expand_as(mean)


def make_networks(world, recorder):
    """(actor, critic) as TorchRL's losses take them."""
    critic = TensorDictModule(recorder.value, in_keys=["observation"], out_keys=["state_value"])
    if world.kind == "discrete":
        network = TensorDictModule(recorder.policy, in_keys=["observation"], out_keys=["logits"])
        keys = ["logits"]
        distribution = Categorical
    else:
        network = TensorDictModule(Gaussian(recorder), in_keys=["observation"], out_keys=["loc", "scale"])
        keys = ["loc", "scale"]

        def distribution(loc, scale):
            return Independent(Normal(loc, scale), 1)

    chooser = ProbabilisticTensorDictModule(
        in_keys=keys,
        out_keys=["action"],
        distribution_class=distribution,
        return_log_prob=True,
        log_prob_key="sample_log_prob",
    )
    return ProbabilisticTensorDictSequential(network, chooser), critic


def rollout(world):
    """A TensorDict [N, M] of a world's steps with its prescribed actions."""
    player = Player(world)
    columns = {"observation": [], "next": [], "reward": [], "terminated": [], "truncated": []}
    rows = player.reset()
    for t in range(world.num_steps):
        following, rewards, terminated, truncated, finals = player.step(world.actions[t])
        columns["observation"].append(rows)
        columns["next"].append(np.where(terminated | truncated, finals, following))
        for name, column in (("reward", rewards), ("terminated", terminated), ("truncated", truncated)):
            columns[name].append(column)
        rows = following
    arrays = {name: torch.as_tensor(np.array(column)).T[..., None] for name, column in columns.items()}
    actions = torch.as_tensor(world.actions).transpose(0, 1)
    size = world.num_steps * world.num_envs
    flat_actions = world.actions.reshape(size, *world.actions.shape[2:])
    old = log_probabilities(world, world.old_policy[:size].astype(float), world.logstd.astype(float), flat_actions)
    old = torch.as_tensor(old.reshape(world.rewards.shape).T, dtype=torch.float32)
    done = arrays["terminated"] | arrays["truncated"]
    ends = {"done": done, "terminated": arrays["terminated"], "truncated": arrays["truncated"]}
    following = {"observation": arrays["next"].float(), "reward": arrays["reward"].float(), **ends}
    shape = [world.num_envs, world.num_steps]
    data = {"observation": arrays["observation"].float(), "action": actions, "sample_log_prob": old}
    return TensorDict(data | {"next": TensorDict(following, batch_size=shape)}, batch_size=shape)


def estimate(world, settings, critic):
    """The rollout with GAE's advantages and value targets."""
    data = rollout(world)
    with torch.no_grad():
        estimator = GAE(gamma=settings.gamma, lmbda=settings.gae_lambda, value_network=critic)
        estimator(data)  # adds its columns to the data
    return data


def advantages(world, settings):
    with Recorder(world) as recorder:
        data = estimate(world, settings, make_networks(world, recorder)[1])
    return {"advantages": data["advantage"][..., 0].T.numpy(), "returns": data["value_target"][..., 0].T.numpy()}


def update(world, settings):
    """The gradients of the loss with its defaults, on minibatches and with a plain step that are not the library's."""
    if world.kind not in KINDS:
        return None
    with Recorder(world) as recorder:
        actor, critic = make_networks(world, recorder)
        data = estimate(world, settings, critic)
        loss = ClipPPOLoss(
            actor,
            critic,
            clip_epsilon=settings.clip_coef,
            entropy_coeff=settings.ent_coef,
            critic_coeff=settings.vf_coef,
            functional=False,
        )
        flat = data.reshape(-1)
        torch.manual_seed(1)
        for _ in range(settings.update_epochs):
            for rows in torch.randperm(len(flat)).chunk(settings.num_minibatches):
                found = loss(flat[rows])
                total = found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]
                gradients = torch.autograd.grad(total, list(recorder.parameters().values()))
                with torch.no_grad():
                    for parameter, gradient in zip(recorder.parameters().values(), gradients, strict=True):
                        parameter.sub_(settings.learning_rate * gradient)
    arrays = [data[name][..., 0].T.numpy() for name in ("advantage", "value_target")]
    return Update(world.actions, recorder.steps, *arrays, {"approx_kl": found["kl_approx"].item()})
