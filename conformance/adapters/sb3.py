"""Stable-Baselines3's PPO: its learn() plays a world; tables replace the last layers of its policy."""

import numpy as np
import stable_baselines3
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecNormalize

from conformance.adapters.emulator import Emulator
from conformance.adapters.torch_tables import Recorder, describe_image_network, layers
from conformance.problems import Player, Stream, make_world, split_updates

NAME = "Stable-Baselines3"
VERSION = stable_baselines3.__version__
REASONS = {}
if VERSION.startswith("1."):
    import gym
    from gym import spaces

    REASONS["atari"] = "its wrappers need gym 0.21"
else:
    import gymnasium as gym
    from gymnasium import spaces


class Environments(VecEnv):
    """A world as a VecEnv whose observations are the numbers of rows."""

    def __init__(self, world):
        self.player = Player(world)
        super().__init__(world.num_envs, spaces.Box(-1e6, 1e6, (1,)), action_space(world.kind))

    def reset(self):
        return self.player.reset().astype(np.float32)[:, None]

    def step_async(self, actions):
        self.chosen = actions

    def step_wait(self):
        rows, rewards, terminated, truncated, finals = self.player.step(self.chosen)
        infos = [{} for _ in rows]
        for n in np.flatnonzero(terminated | truncated):
            infos[n] = {
                "terminal_observation": np.float32([finals[n]]),
                "TimeLimit.truncated": bool(truncated[n] and not terminated[n]),
            }
        return rows.astype(np.float32)[:, None], rewards.copy(), terminated | truncated, infos

    def close(self):
        pass

    def seed(self, seed=None):
        pass

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * self.num_envs

    def get_attr(self, name, indices=None):
        return [None] * self.num_envs

    def set_attr(self, name, value, indices=None):
        pass

    def env_method(self, name, *arguments, indices=None, **options):
        return [None] * self.num_envs


def action_space(kind):
    world = make_world(kind)
    if kind == "continuous":
        return spaces.Box(-100.0, 100.0, (world.num_outputs,))
    if kind == "multidiscrete":
        return spaces.MultiDiscrete(world.nvec)
    return spaces.Discrete(world.num_outputs)


def make_model(
    world, settings, algorithm=PPO, policy="MlpPolicy", environments=Environments, policy_kwargs=None, **options
):
    """The library's own model on a world, with the given settings and its defaults for the rest."""
    size = world.rewards.size
    return algorithm(
        policy,
        environments(world),
        device="cpu",
        seed=1,
        n_steps=world.num_steps,
        batch_size=size // settings.num_minibatches,
        n_epochs=settings.update_epochs,
        learning_rate=settings.learning_rate,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        clip_range=settings.clip_coef,
        ent_coef=settings.ent_coef,
        vf_coef=settings.vf_coef,
        max_grad_norm=settings.max_grad_norm,
        policy_kwargs={"net_arch": []} | (policy_kwargs or {}),
        **options,
    )


def learn(world, settings, learning=None, prepare=None, updates=1, **options):
    """The trained model and the recorder of its tables, after rollouts and updates.

    `learning` has arguments of learn(); prepare(policy) replaces what lies before the last layers."""
    model = make_model(world, settings, **options)
    policy = model.policy
    with Recorder(world) as recorder:
        if prepare is not None:
            prepare(policy)
        policy.action_net = recorder.policy
        policy.value_net = recorder.value
        if world.kind == "continuous":
            policy.log_std = recorder.logstd
        policy.optimizer = policy.optimizer_class(
            policy.parameters(), lr=settings.learning_rate, **policy.optimizer_kwargs
        )
        model.learn(updates * world.rewards.size, **(learning or {}))
    return model, recorder


def updates(world, settings, count, **options):
    model, recorder = learn(world, settings, updates=count, **options)
    buffer = model.rollout_buffer
    # train() has flattened the buffer, environment by environment
    advantages, returns = (
        array.reshape(world.num_envs, world.num_steps).T for array in (buffer.advantages, buffer.returns)
    )
    logged = {"approx_kl": model.logger.name_to_value.get("train/approx_kl")}
    actions = [np.array(each).reshape(world.actions.shape) for each in model.env.player.rollouts]
    return split_updates(actions, recorder.steps, advantages=advantages, returns=returns, logged=logged)


def update(world, settings, **options):
    return updates(world, settings, 1, **options)[0]


def advantages(world, settings):
    answer = update(world, settings)
    return {"advantages": answer.advantages, "returns": answer.returns}


def initial_weights(seed, kind, algorithm=PPO):
    world = make_world(kind)
    actions = action_space(kind)

    class Vector(gym.Env):
        observation_space = spaces.Box(-1, 1, (6,))
        action_space = actions

        def seed(self, seed=None):  # which versions before 2 call
            pass

    model = algorithm("MlpPolicy", DummyVecEnv([Vector]), seed=seed, device="cpu")
    policy = model.policy
    parts = model.policy.mlp_extractor
    found = {
        "policy": layers(parts.policy_net, policy.action_net),
        "value": layers(parts.value_net, policy.value_net),
    }
    if world.kind == "continuous":
        found["logstd"] = policy.log_std.detach().numpy()
    return found


def images(images):
    """Of CnnPolicy, on observations of four frames."""
    observations = spaces.Box(0, 255, images.shape[1:], np.uint8)
    actions = action_space("discrete")

    class Vector(gym.Env):
        observation_space = observations
        action_space = actions

    model = PPO("CnnPolicy", DummyVecEnv([Vector]), n_steps=8, batch_size=8, device="cpu")
    obs = torch.as_tensor(images)

    def outputs():
        policy = model.policy.get_distribution(obs).distribution
        return policy.logits[:, 0], model.policy.predict_values(obs)

    found = describe_image_network(outputs)
    return found | {"stored": str(model.rollout_buffer.observations.dtype)}


def schedules(updates, algorithm=PPO, policy="MlpPolicy"):
    world = make_world()
    model = algorithm(policy, Environments(world), n_steps=world.num_steps, batch_size=48, device="cpu")
    remaining = [1 - update / updates for update in range(updates)]
    return {
        "learning_rate": [model.lr_schedule(each) for each in remaining],
        "clip_range": [model.clip_range(each) for each in remaining],
    }


class Replay(Environments):
    """Replays a stream, and keeps the actions."""

    def __init__(self, stream, low=(-1, -1), high=(1, 1)):
        self.stream = stream
        self.t = 0
        self.actions = []
        box = spaces.Box(-np.inf, np.inf, stream.obs.shape[2:])
        VecEnv.__init__(self, stream.rewards.shape[1], box, spaces.Box(np.float32(low), np.float32(high)))

    def reset(self):
        return self.stream.obs[0].copy()

    def step_wait(self):
        t = self.t
        self.t = self.t + 1
        self.actions.append(np.array(self.chosen))
        ends = self.stream.ends[t]
        finals = self.stream.finals[t]
        infos = [{"terminal_observation": finals[n]} if end else {} for n, end in enumerate(ends)]
        return self.stream.obs[t + 1].copy(), self.stream.rewards[t].copy(), ends.copy(), infos


def normalize(stream):
    """VecNormalize, which the library offers and PPO does not use by itself."""
    envs = VecNormalize(Replay(stream), gamma=stream.gamma)
    seen = [envs.reset()]
    paid = []
    for _ in stream.rewards:
        found, reward, *_ = envs.step(np.zeros((envs.num_envs, 2)))
        seen.append(found)
        paid.append(reward)
    return {"observations": np.array(seen), "rewards": np.array(paid)}


def environment_actions(samples, low, high):
    """What collect_rollouts hands to environments whose bounds are low and high."""
    count = len(samples)
    zeros = np.zeros((3, count, 2), np.float32)
    envs = Replay(Stream(zeros, zeros[1:], zeros[1:, :, 0], np.zeros((2, count), bool), 0.9), low, high)
    model = PPO("MlpPolicy", envs, n_steps=1, batch_size=count, n_epochs=1, device="cpu")
    means = torch.as_tensor(samples)
    with torch.no_grad():
        model.policy.log_std.fill_(-40.0)  # an action is its mean
    model.policy.action_net.forward = lambda features: means[: len(features)] + 0 * features[:, :1]
    model.learn(count)
    return envs.actions[0]


class Games:
    """A stacked vector of one game, whose images are [84, 84, frames]."""

    def __init__(self, game):
        envs = DummyVecEnv([lambda: AtariWrapper(Emulator(game))])
        self.envs = VecFrameStack(envs, 4)
        self.envs.seed(1)

    def reset(self):
        return np.moveaxis(self.envs.reset()[0], -1, 0).copy()

    def step(self, action):
        obs, rewards, ends, _ = self.envs.step(np.array([action]))
        return np.moveaxis(obs[0], -1, 0).copy(), rewards[0], ends[0]


def atari(game):
    """What make_atari_env() wraps around a game, and the stack of 4 that the library's documentation puts around it."""
    return None if "atari" in REASONS else Games(game)
