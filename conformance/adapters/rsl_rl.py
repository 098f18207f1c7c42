"""rsl-rl-lib's PPO, version 2.3 or later: its rollout and update on a world; tables replace its networks."""

import numpy as np
import torch
from tensordict import TensorDict

from conformance.adapters import rsl_rl_versions
from conformance.adapters.rsl_rl_versions import make_algorithm, make_models, parts, put_tables
from conformance.adapters.torch_tables import Recorder, layers
from conformance.problems import Player, Settings, Update, make_world

NAME = "rsl-rl-lib"
VERSION = rsl_rl_versions.VERSION
KINDS = ("continuous",)


def show(rows):
    obs = torch.as_tensor(np.asarray(rows), dtype=torch.float32)
    return TensorDict({"policy": obs.reshape(len(rows), -1)}, batch_size=[len(rows)])


def play(world, settings, **options):
    """(algorithm, player, recorder, advantages, returns) after a rollout and an update."""
    if world.kind != "continuous":
        return None
    player = Player(world)
    torch.manual_seed(1)
    with Recorder(world) as recorder:
        obs = show(player.reset())
        models = make_models(obs, world.num_outputs, std_type="log")
        put_tables(models, recorder)
        algorithm = make_algorithm(
            models,
            world,
            obs,
            num_learning_epochs=settings.update_epochs,
            num_mini_batches=settings.num_minibatches,
            clip_param=settings.clip_coef,
            gamma=settings.gamma,
            lam=settings.gae_lambda,
            value_loss_coef=settings.vf_coef,
            entropy_coef=settings.ent_coef,
            learning_rate=settings.learning_rate,
            max_grad_norm=settings.max_grad_norm,
            **options,
        )
        with torch.inference_mode():
            for _ in range(world.num_steps):
                actions = algorithm.act(obs)
                rows, rewards, terminated, truncated, _ = player.step(actions.numpy())
                obs = show(rows)
                dones = torch.as_tensor(terminated | truncated).long()
                time_outs = torch.as_tensor(truncated & ~terminated).float()
                algorithm.process_env_step(obs, torch.as_tensor(rewards), dones, {"time_outs": time_outs})
            algorithm.compute_returns(obs)
        storage = algorithm.storage
        returns = storage.returns.squeeze(-1).numpy().copy()
        found = returns - storage.values.squeeze(-1).numpy()
        algorithm.update()
    return algorithm, player, recorder, found, returns


def update(world, settings):
    """With a constant learning rate: the default schedule, by the KL divergence, is measured by itself."""
    played = play(world, settings, schedule="fixed")
    if played is None:
        return None
    _, player, recorder, found, returns = played
    return Update(np.array(player.actions), recorder.steps, found, returns)


def advantages(world, settings):
    """The returns, and what the library normalizes afterwards: returns - values."""
    *_, returns = play(world, settings, schedule="fixed")
    return {"returns": returns}


def initial_weights(seed, kind):
    if kind != "continuous":
        return None
    torch.manual_seed(seed)
    models = make_models(show(np.zeros((1, 6))), make_world(kind).num_outputs)
    policy, value, owner, ending = parts(models)
    deviation = getattr(owner, f"std{ending}").detach().numpy()
    return {"policy": layers(policy), "value": layers(value), "logstd": np.log(deviation), "std": True}


def schedules(updates):
    """The learning rates that reach its optimizer in one rollout's update, or its word for how they change there.

    Its default changes the rate at each gradient step, after the KL divergence of the minibatch.
    """
    settings = Settings(num_minibatches=1, update_epochs=updates)
    algorithm, _, recorder, *_ = play(make_world("continuous"), settings)
    if len(set(recorder.rates)) > 1:
        return {"learning_rate": algorithm.schedule}
    return {"learning_rate": recorder.rates}
