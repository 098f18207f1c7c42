"""Ray RLlib's PPO: its learner, with its own connectors, is handed a world's episodes; tables replace the networks.

The learner adds a step to each episode that it is handed, so that its value function sees the last observation. These
steps are in its minibatches, but not in its loss; its normalization of advantages counts them.
"""

import gymnasium as gym
import numpy as np
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.base import ACTOR, CRITIC, ENCODER_OUT
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.evaluation.postprocessing import Postprocessing
from torch import nn

from conformance.adapters.torch_tables import Recorder, layers
from conformance.problems import Settings, Update, make_world

NAME = "Ray RLlib"
VERSION = ray.__version__
MODULE = "default_policy"


class RowNumber(nn.Module):
    """In place of an encoder: it passes the number of the row on."""

    def forward(self, batch):
        return {ENCODER_OUT: {ACTOR: batch[Columns.OBS], CRITIC: batch[Columns.OBS]}}


class WithDeviations(nn.Module):
    """A table of means, and log standard deviations that are the same for all rows."""

    def __init__(self, table, logstd):
        super().__init__()
        self.table = table
        self.logstd = logstd

    def forward(self, obs):
        means = self.table(obs)
        return torch.cat([means, self.logstd.expand_as(means)], -1)


def spaces(kind, inputs=1):
    world = make_world(kind)
    box = gym.spaces.Box(-1e6, 1e6, (inputs,), np.float32)
    if kind == "continuous":
        return box, gym.spaces.Box(-100.0, 100.0, (world.num_outputs,), np.float32)
    if kind == "multidiscrete":
        return box, gym.spaces.MultiDiscrete(world.nvec)
    return box, gym.spaces.Discrete(world.num_outputs)


def make_learner(world, settings, recorder):
    """The library's own learner, with tables in place of its networks."""

    class Tables(DefaultPPOTorchRLModule):
        def setup(self):
            self.encoder = RowNumber()
            self.pi = recorder.policy
            self.vf = recorder.value
            if world.kind == "continuous":
                self.pi = WithDeviations(recorder.policy, recorder.logstd)

    config = PPOConfig().training(
        lr=settings.learning_rate,
        gamma=settings.gamma,
        lambda_=settings.gae_lambda,
        clip_param=settings.clip_coef,
        entropy_coeff=settings.ent_coef,
        vf_loss_coeff=settings.vf_coef,
        grad_clip=settings.max_grad_norm,
    )
    observations, actions = spaces(world.kind)
    config = config.environment(observation_space=observations, action_space=actions)
    config = config.rl_module(rl_module_spec=RLModuleSpec(module_class=Tables))
    learner = config.build_learner(spaces={MODULE: (observations, actions), "__env__": (observations, actions)})
    return learner


def episodes(world, learner):
    """The episodes of a world, as the library's own environment runners would hand them on."""
    module = learner.module[MODULE]
    outputs = world.old_policy
    if world.kind == "continuous":
        outputs = np.concatenate([outputs, np.broadcast_to(world.logstd, outputs.shape)], -1)
    found = []
    for n in range(world.num_envs):
        begin = 0
        for t in range(world.num_steps):
            if not (world.ended[t, n] or t == world.num_steps - 1):
                continue
            rows = [world.rows(i)[n] for i in range(begin, t + 1)]
            last = world.final_rows(t)[n] if world.ended[t, n] else world.rows(t + 1)[n]
            actions = world.actions[begin : t + 1, n]
            inputs = torch.as_tensor(outputs[rows])
            distribution = module.get_exploration_action_dist_cls().from_logits(inputs)
            log_probs = distribution.logp(torch.as_tensor(actions)).numpy()
            terminated = bool(world.terminated[t, n])
            truncated = bool(world.truncated[t, n])
            episode = SingleAgentEpisode(
                observations=[np.float32([row]) for row in [*rows, last]],
                observation_space=spaces(world.kind)[0],
                action_space=spaces(world.kind)[1],
                actions=list(actions),
                rewards=[float(reward) for reward in world.rewards[begin : t + 1, n]],
                terminated=terminated,
                truncated=truncated and not terminated,
                len_lookback_buffer=0,
                extra_model_outputs={
                    Columns.ACTION_DIST_INPUTS: list(outputs[rows]),
                    Columns.ACTION_LOGP: list(log_probs),
                },
            )
            found.append(episode.to_numpy())
            begin = t + 1
    return found


def learn(world, settings, updates=1):
    """(recorder, columns of the last rollout, what was logged, rate of each update) after updates of the learner."""
    batches = []
    rates = []
    minibatch_size = None  # the library's word for the whole rollout with the added steps
    if settings.num_minibatches > 1:
        minibatch_size = world.rewards.size // settings.num_minibatches
    with Recorder(world) as recorder:
        learner = make_learner(world, settings, recorder)
        connector = learner._learner_connector

        def see_batch(**arguments):
            recorder.collecting = True  # it asks for the values of the rollout
            batches.append(connector(**arguments))
            recorder.collecting = False
            return batches[-1]

        learner._learner_connector = see_batch
        for _ in range(updates):
            first = len(recorder.rates)
            logged = learner.update(
                episodes=episodes(world, learner),
                num_epochs=settings.update_epochs,
                shuffle_batch_per_epoch=True,
                minibatch_size=minibatch_size,
            )
            rates.append(recorder.rates[first])
        size = world.rewards.size
        columns = {name: column.detach().numpy().copy() for name, column in batches[-1][MODULE].items()}
    for step in recorder.steps:
        step.rows = step.rows[step.rows < size]
    return recorder, columns, logged, rates


def update(world, settings):
    recorder, columns, logged, _ = learn(world, settings)
    size = world.rewards.size
    rows = columns[Columns.OBS][:, 0].round().astype(int)
    targets = columns[Postprocessing.VALUE_TARGETS]
    advantages_of_rows = targets - world.old_value[rows]
    advantages = np.zeros(size)
    returns = np.zeros(size)
    inside = rows < size
    advantages[rows[inside]] = advantages_of_rows[inside]
    returns[rows[inside]] = targets[inside]
    shape = world.rewards.shape
    kl = logged[MODULE]["mean_kl_loss"]
    if hasattr(kl, "peek"):  # one of the library's statistics, not a number
        kl = kl.peek()
    return Update(
        world.actions,
        recorder.steps,
        advantages.reshape(shape),
        returns.reshape(shape),
        {"approx_kl": float(kl)},
        added=advantages_of_rows[~inside],
    )


def advantages(world, settings):
    answer = update(world, settings)
    return {"advantages": answer.advantages, "returns": answer.returns}


def initial_weights(seed, kind):
    observations, actions = spaces(kind, inputs=6)
    config = PPOConfig().environment(observation_space=observations, action_space=actions).debugging(seed=seed)
    torch.manual_seed(seed)
    spec = config.get_default_rl_module_spec()
    spec.observation_space = observations
    spec.action_space = actions
    spec.model_config = config.model_config
    module = spec.build()
    encoder = module.encoder
    shared = getattr(encoder, "encoder", None)
    actor_trunk = shared or encoder.actor_encoder
    critic_trunk = shared or encoder.critic_encoder
    return {"policy": layers(actor_trunk, module.pi), "value": layers(critic_trunk, module.vf)}


def schedules(updates):
    """The learning rates that reach the optimizer."""
    *_, rates = learn(make_world(), Settings(num_minibatches=1, update_epochs=1), updates)
    return {"learning_rate": rates}
