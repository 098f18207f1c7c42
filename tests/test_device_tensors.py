"""The recipe device-tensors: it does with tensors what ppo_continuous_action.py does with arrays."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import PendulumEnv
from in_process import patched, train
from run_files import checkpoint, scalars
from script_table import CONTINUOUS

from recipes.environments import PendulumTensors

ENDS = [(3, "truncated"), (5, "terminated"), (1, "both"), (4, "truncated"), (7, "terminated")]
OBS = gym.spaces.Box(-10, 10, (3,))
ACTIONS = gym.spaces.Box(-1, 1, (2,))


def shown(index, episode, step):
    """An observation, float32 [3]."""
    return np.sin(np.array([1.0, 2.0, 3.0]) * (index + 7 * episode + 0.3 * step + 0.1)).astype(np.float32)


class One(gym.Env):
    """Pays for an action near what is shown; its episodes end as ENDS says."""

    observation_space = OBS
    action_space = ACTIONS
    metadata = {"render_modes": []}

    def __init__(self, index):
        self.index = index
        self.episode = -1

    def reset(self, seed=None, options=None):
        self.episode += 1
        self.steps = 0
        return shown(self.index, self.episode, 0), {}

    def step(self, actions):
        target = shown(self.index, self.episode, self.steps)[:2]
        reward = 1 - float(((actions.astype(np.float64) - target) ** 2).sum())
        self.steps += 1
        length, kind = ENDS[(self.index + self.episode) % len(ENDS)]
        over = self.steps == length
        terminated, truncated = over and kind != "truncated", over and kind != "terminated"
        return shown(self.index, self.episode, self.steps), reward, terminated, truncated, {}


class All(gym.vector.VectorEnv):
    """N of them, in tensors; it changes the tensors that it got and gave in later steps."""

    single_observation_space = OBS
    single_action_space = ACTIONS
    metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}

    def __init__(self, num_envs, convert=torch.from_numpy):
        self.num_envs = num_envs
        self.convert = convert
        self.envs = [One(index) for index in range(num_envs)]
        self.given = []

    def give(self, values, dtype):
        array = np.array(values, dtype)
        self.given.append(array)
        return self.convert(array)

    def reset(self, *, seed=None, options=None):
        return self.give([env.reset()[0] for env in self.envs], np.float32), {}

    def step(self, actions):
        assert isinstance(actions, torch.Tensor)
        answers = [env.step(action) for env, action in zip(self.envs, actions.numpy(), strict=True)]
        for array in self.given:
            array[...] = 0
        actions[...] = 0
        self.given.clear()
        obs, rewards, terminated, truncated, _ = zip(*answers, strict=True)
        final_obs = self.give(obs, np.float32)
        obs = [
            env.reset()[0] if ended or cut else each
            for env, each, ended, cut in zip(self.envs, obs, terminated, truncated, strict=True)
        ]
        ends = self.give(terminated, bool), self.give(truncated, bool)
        return self.give(obs, np.float32), self.give(rewards, np.float64), *ends, {"final_obs": final_obs}


def as_dlpack(array):
    """An array of another library: only what DLPack needs."""

    class Array:
        def __dlpack__(self, **options):
            return array.__dlpack__(**options)

        def __dlpack_device__(self):
            return array.__dlpack_device__()

    return Array()


def with_arrays(num_envs):
    return All(num_envs, as_dlpack)


def next_step(num_envs):
    envs = All(num_envs)
    envs.metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}
    return envs


def broadcast(num_envs):
    """Rewards [N, 1]."""
    envs = All(num_envs)
    step = envs.step
    envs.step = lambda actions: [x[:, None] if i == 1 else x for i, x in enumerate(step(actions))]
    return envs


gym.register("InTensors-v0", vector_entry_point=All)
gym.register("InArrays-v0", vector_entry_point=with_arrays)
gym.register("NextStep-v0", vector_entry_point=next_step)
gym.register("Broadcast-v0", vector_entry_point=broadcast)
OPTIONS = "--no-cuda --num-envs 6 --num-steps 32 --num-minibatches 4 --update-epochs 2 --total-timesteps 576"


@pytest.fixture
def made(with_recipe):
    return with_recipe("with/device-tensors")


def check_the_same_run(made, arrays, options, env_id, folder):
    """A run of `made` with tensors is that of the script `arrays`, to rounding: weights, statistics, and log."""
    run = train(made, f"{options} --env-id {env_id}", folder / "tensors")
    module = arrays.module
    with patched((module, "make_env", lambda args, index, folder: module.Episodes(One(index)))):
        expected = train(arrays, options, folder / "arrays")
    one, other = checkpoint(run), checkpoint(expected)
    assert len(one["returns"]) > 50 and one["returns"] == pytest.approx(other["returns"], abs=1e-5)
    for name, weight in one["parts"]["agent"].items():
        torch.testing.assert_close(weight, other["parts"]["agent"][name], rtol=0, atol=1e-5)
    for name in ("obs", "return"):
        for numbers, others in zip(one["parts"]["envs"][name], other["parts"]["envs"][name], strict=True):
            np.testing.assert_allclose(numbers, others, rtol=1e-6)
    logs = [scalars(folder) for folder in (run, expected)]
    for log in logs:
        del log["charts/SPS"]
    assert list(logs[0]) == list(logs[1])
    for name, points in logs[0].items():
        np.testing.assert_allclose(points, logs[1][name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("env_id, bootstrap", [("InTensors-v0", False), ("InTensors-v0", True), ("InArrays-v0", True)])
def test_a_run_is_that_of_the_script_for_arrays(env_id, bootstrap, made, tmp_path):
    check_the_same_run(made, CONTINUOUS, OPTIONS + " --bootstrap-truncated" * bootstrap, env_id, tmp_path)


@pytest.mark.parametrize("bootstrap", [False, True])
def test_a_run_with_memory_is_that_of_the_recipe_for_arrays(bootstrap, with_recipe, tmp_path):
    """The recipes combine in either order."""
    made = with_recipe("with/device-tensors", second="with/lstm-continuous")
    text = Path(made.module.__file__).read_text()
    other_order = with_recipe("with/lstm-continuous", second="with/device-tensors")
    assert text == Path(other_order.module.__file__).read_text()
    options = OPTIONS.replace("--num-minibatches 4", "--num-minibatches 3") + " --bootstrap-truncated" * bootstrap
    check_the_same_run(made, with_recipe("with/lstm-continuous"), options, "InTensors-v0", tmp_path)


def test_what_it_cannot_train_on(made, tmp_path):
    with pytest.raises(SystemExit, match="^error: .* must reset an environment in the step that ends its episode"):
        train(made, f"{OPTIONS} --env-id NextStep-v0", tmp_path)


def test_rewards_of_another_shape_end_the_run(made, tmp_path):
    with pytest.raises(RuntimeError):
        train(made, f"{OPTIONS} --env-id Broadcast-v0", tmp_path)


def test_the_pendulum_in_tensors_is_gymnasiums():
    """Its state, reward and observation, step by step; an episode has 200 steps."""
    envs = PendulumTensors(3, "cpu")
    envs.reset(seed=1)
    theirs = [PendulumEnv() for _ in range(3)]
    for env in theirs:
        env.reset()
    torch.manual_seed(1)
    for step in range(1, 201):
        actions = 3 * torch.randn(3, 1)
        for env, state in zip(theirs, envs.state.double().numpy(), strict=True):
            env.state = state  # differences would grow
        obs, rewards, terminated, truncated, infos = envs.step(actions)
        answers = [env.step(action) for env, action in zip(theirs, actions.numpy(), strict=True)]
        np.testing.assert_allclose(infos["final_obs"], [answer[0] for answer in answers], atol=1e-4)
        np.testing.assert_allclose(rewards, [answer[1] for answer in answers], atol=1e-4)
        assert truncated.tolist() == [step == 200] * 3 and not terminated.any()
        assert torch.equal(obs, infos["final_obs"]) == (step < 200)
