"""TRL's PPO trainer: its train() runs on a world in place of tokens, with tables in place of its language models.

A response is the rollout of an environment, without an end, whose last token alone has a reward. A query is the number
of the environment. The reference model is the policy that acts, so nothing is subtracted from the reward.
"""

import contextlib
import dataclasses
import importlib.metadata
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from trl.experimental.ppo import ppo_trainer

from conformance.adapters.torch_tables import Recorder
from conformance.problems import Update

NAME = "TRL"
VERSION = importlib.metadata.version("trl")
KINDS = ("discrete",)
HOOKS = "on_train_begin", "on_step_end", "on_train_end"
LOOP = False  # an optimizer that is not the library's takes its steps


class Nothing:
    """Takes every call, and does nothing."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


class Accelerator(Nothing):
    """In place of its accelerator, for one process."""

    device = "cpu"

    def accumulate(self, model):
        return contextlib.nullcontext()

    def backward(self, loss):
        loss.backward()

    def unwrap_model(self, model):
        return model

    def gather_for_metrics(self, numbers):
        return numbers


def problem_of(world):
    """The World that it answers for: no episode ends, and all rewards but those of the last step are 0."""
    none = np.zeros_like(world.terminated)
    rewards = world.rewards.copy()
    rewards[:-1] = 0.0
    return dataclasses.replace(world, terminated=none, truncated=none, rewards=rewards)


def train(world, settings):
    """(recorder, what it logs, its functions' results by name) of one update."""
    M, N = world.rewards.shape
    rows = torch.arange(M * N).reshape(M, N).T  # of the tokens of a response
    queries = torch.arange(N)[:, None]
    responses = torch.cat([queries, torch.as_tensor(world.actions).T], 1)
    seen = {}

    def observations(tokens):
        """The rows of a response, with one before and one behind that are cut off: float32 [B, M + 1, 1]."""
        chosen = rows[tokens[:, 0]].float()
        return torch.cat([chosen, chosen[:, -1:]], 1)[..., None]

    def forward(model, tokens, pad):
        obs = observations(tokens)
        output = SimpleNamespace(logits=recorder.policy(obs) + 0.0)  # it divides them in place by the temperature
        return (output, recorder.value(obs)) if model is policy_and_value else output

    def get_reward(model, tokens, pad, context):
        if model is policy_and_value.value_model:
            return recorder.value(observations(tokens)), None, None
        return None, torch.as_tensor(world.rewards[-1])[tokens[:, 0]], None

    def generate(*arguments):
        return responses, recorder.policy(observations(responses))[:, :-1]

    def whiten(values, mask):
        seen["advantages"] = values.numpy().T.copy()
        return masked_whiten(values, mask)

    masked_whiten = ppo_trainer.masked_whiten
    policy_and_value = SimpleNamespace(policy=None, value_model="value", train=lambda: None)
    args = SimpleNamespace(
        response_length=M,
        temperature=1.0,
        num_ppo_epochs=settings.update_epochs,
        num_mini_batches=settings.num_minibatches,
        gradient_accumulation_steps=1,
        num_total_batches=1,
        total_episodes=N,
        batch_size=N,
        local_batch_size=N,
        local_mini_batch_size=N // settings.num_minibatches,
        per_device_train_batch_size=N,
        local_rollout_forward_batch_size=N,
        num_sample_generations=0,
        logging_steps=None,
        eval_steps=None,
        save_steps=None,
        ds3_gather_for_generation=False,
        missing_eos_penalty=None,
        kl_estimator="k1",
        kl_coef=0.05,
        whiten_rewards=False,
        gamma=settings.gamma,
        lam=settings.gae_lambda,
        cliprange=settings.clip_coef,
        cliprange_value=settings.clip_coef,
        vf_coef=settings.vf_coef,
    )
    with Recorder(world) as recorder:
        trainer = SimpleNamespace(
            args=args,
            accelerator=Accelerator(),
            optimizer=torch.optim.Adam(recorder.parameters().values(), lr=settings.learning_rate),
            lr_scheduler=SimpleNamespace(get_last_lr=lambda: [settings.learning_rate], step=lambda: None),
            model=policy_and_value,
            ref_model="the policy that acts",
            reward_model="reward",
            processing_class=SimpleNamespace(pad_token_id=-1, eos_token_id=-2),
            stop_token_id=None,
            dataloader=[{"input_ids": queries}],
            train_dataset_len=N,
            state=SimpleNamespace(),
            control=SimpleNamespace(should_save=False),
            callback_handler=SimpleNamespace(**dict.fromkeys(HOOKS, lambda args, state, control: control)),
            is_deepspeed_enabled=False,
            log=seen.update,
        )
        replaced = {
            "batch_generation": generate,
            "forward": forward,
            "get_reward": get_reward,
            "masked_whiten": whiten,
            "unwrap_model_for_generation": lambda model, *args, **kwargs: contextlib.nullcontext(model),
        }
        np.random.seed(1)
        with mock.patch.multiple(ppo_trainer, **replaced):
            ppo_trainer.PPOTrainer.train(trainer)
    return recorder, seen


def update(world, settings):
    if world.kind not in KINDS:
        return None
    world = problem_of(world)
    M, N = world.rewards.shape
    recorder, seen = train(world, settings)
    steps = []
    for step in recorder.steps:
        _, places = np.unique(step.rows, return_index=True)  # without the row that is there twice
        steps.append(dataclasses.replace(step, rows=step.rows[np.sort(places)]))
    found = seen["advantages"]
    values = world.old_value[: M * N].reshape(M, N)
    logged = {"approx_kl": seen["policy/approxkl_avg"]}
    return Update(world.actions, steps, found, found + values, logged, problem=(world, settings))


def advantages(world, settings):
    answer = update(world, settings)
    return {"advantages": answer.advantages, "problem": answer.problem}
