"""verl's functions for PPO with a critic: advantages and losses alone, on a world in place of tokens.

A response is the rollout of an environment without an end. Its actor and critic have losses of their own; verl's
actor subtracts the entropy's loss times a coefficient, and there is no coefficient of the value.
"""

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from unittest import mock

import numpy as np
import torch

from conformance.problems import Step, Update
from conformance.reference import log_probabilities

NAME = "verl"
VERSION = importlib.metadata.version("verl")
KINDS = ("discrete",)
LOOP = False  # of its trainer, which needs a language model


def load():
    """Its module of algorithms, without the libraries of its trainer."""
    parts = importlib.util.find_spec("verl").submodule_search_locations
    folders = {"verl": "", "verl.utils": "/utils", "verl.trainer": "/trainer", "verl.trainer.ppo": "/trainer/ppo"}
    for name, folder in folders.items():
        package = ModuleType(name)
        package.__path__ = [part + folder for part in parts]
        sys.modules[name] = package
    sys.modules["verl.utils"].as_torch_index = sys.modules["verl.utils"].group_mean_std = None
    for name in ("omegaconf", "transformers", "tensordict", "verl.trainer.config", "verl.workers.config"):
        sys.modules[name] = mock.MagicMock()
    sys.modules["verl.trainer.config"].AlgoConfig = type("AlgoConfig", (), {})
    sys.modules["verl.utils.import_utils"] = SimpleNamespace(deprecated=lambda *words: lambda function: function)
    sys.modules["verl.utils.device"] = SimpleNamespace(get_device_name=None, get_torch_device=None)
    return importlib.import_module("verl.trainer.ppo.core_algos")


algos = load()


class Config(SimpleNamespace):
    """The options of its actor that the loss reads."""

    def get(self, name, default):
        return getattr(self, name, default)


def problem_of(world, settings):
    """(World, Settings): no episode ends, and the value's loss has no factor."""
    none = np.zeros_like(world.terminated)
    return dataclasses.replace(world, terminated=none, truncated=none), dataclasses.replace(settings, vf_coef=1.0)


def tokens(array):
    """A tensor [N, M] of an array [M, N]."""
    return torch.as_tensor(np.asarray(array, np.float32)).T.contiguous()


def estimate(world, settings):
    """(normalized advantages, returns), tensors [N, M], of its compute_gae_advantage_return()."""
    values = tokens(world.old_value[: world.rewards.size].reshape(world.rewards.shape))
    mask = torch.ones_like(values)
    return algos.compute_gae_advantage_return(tokens(world.rewards), values, mask, settings.gamma, settings.gae_lambda)


def advantages(world, settings):
    """The returns; the advantages come out normalized."""
    world, settings = problem_of(world, settings)
    _, returns = estimate(world, settings)
    return {"returns": returns.T.numpy(), "problem": (world, settings)}


def update(world, settings):
    """The gradients of its losses, for minibatches of half of the environments each."""
    if world.kind not in KINDS:
        return None
    world, settings = problem_of(world, settings)
    M, N = world.rewards.shape
    normalized, returns = estimate(world, settings)
    rows = np.arange(M * N).reshape(M, N)
    flat = world.actions.reshape(-1)
    old = log_probabilities(world, world.old_policy[: M * N].astype(float), None, flat).reshape(M, N)
    tables = {"policy": world.policy, "value": world.value}
    config = Config(clip_ratio=settings.clip_coef, clip_ratio_low=None, clip_ratio_high=None, global_batch_info={})
    steps = []
    for some in np.split(np.arange(N), settings.num_minibatches):
        policy = torch.tensor(world.policy, requires_grad=True)
        value = torch.tensor(world.value, requires_grad=True)
        chosen = torch.as_tensor(rows[:, some].T.copy())  # [some, M]
        logits = policy[chosen]
        actions = torch.as_tensor(world.actions[:, some].T.copy())
        log_probs = logits.log_softmax(-1).gather(-1, actions[..., None])[..., 0]
        mask = torch.ones_like(log_probs)
        loss, logged = algos.compute_policy_loss_vanilla(
            tokens(old[:, some]), log_probs, normalized[some], mask, config=config
        )
        entropy = algos.compute_entropy_loss(logits, mask)
        base = tokens(world.old_value[rows[:, some]])
        value_loss, _ = algos.compute_value_loss(value[chosen], returns[some], base, mask, settings.clip_coef)
        (loss - settings.ent_coef * entropy + value_loss).backward()
        gradient = {"policy": policy.grad.numpy(), "value": value.grad.numpy()}
        steps.append(Step(rows[:, some].reshape(-1), tables, tables, gradient))
    found = returns.T.numpy() - world.old_value[: M * N].reshape(M, N)
    divergence = {"approx_kl": logged["actor/ppo_kl"]}
    return Update(world.actions, steps, found, returns.T.numpy(), divergence, problem=(world, settings))
