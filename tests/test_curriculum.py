"""The recipe curriculum: options of an environment's reset, drawn from a range that widens with success."""

import gymnasium as gym
import numpy as np
import pytest
from in_process import loaded_parts, train
from run_files import checkpoint, scalars
from test_export import written

import enjoy

FEW = "--no-cuda --num-envs 4 --num-steps 16 --num-minibatches 2 --reset-options mass gust --easy 1 0 --hard 3 -8"


class Wind(gym.Env):
    """Shows the mass and the gust of its last reset, and a number that this reset drew. An episode pays 1."""

    shown = []
    observation_space = gym.spaces.Box(-10, 10, (3,), np.float32)
    metadata = {"render_modes": []}

    def __init__(self, actions, render_mode=None):
        self.action_space = actions

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        options = options or {"mass": 2.0, "gust": 5.0}
        self.obs = np.array([options["mass"], options["gust"], self.np_random.uniform()], np.float32)
        self.shown.append(self.obs)
        self.steps = 0
        return self.obs, {}

    def step(self, action):
        self.steps += 1
        return self.obs, 0.25, self.steps == 4, False, {}


gym.register("WindDiscrete-v0", Wind, kwargs={"actions": gym.spaces.Discrete(2)})
gym.register("WindBox-v0", Wind, kwargs={"actions": gym.spaces.Box(-1, 1, (1,))})
SCRIPTS = [("ppo.py", "WindDiscrete-v0"), ("ppo_continuous_action.py", "WindBox-v0")]
both_scripts = pytest.mark.parametrize("script, env_id", SCRIPTS)


def difficulties(rows):
    """The difficulties of which the options of resets are made, for rows (mass, gust, number drawn)."""
    rows = np.array(rows)
    drawn = (rows[:, 0] - 1) / 2
    np.testing.assert_allclose(drawn, rows[:, 1] / -8, atol=1e-5)
    return drawn


@both_scripts
def test_the_range_widens_with_success(script, env_id, with_recipe, tmp_path):
    """By a step after 20 good episodes; draws fill the range. A resume goes on, and enjoy.py sets no options."""
    made = with_recipe("with/curriculum", script)
    options = f"{FEW} --env-id {env_id} --widen-return 1 --widen-step 0.3"
    Wind.shown.clear()
    run = train(made, f"{options} --total-timesteps 320", tmp_path)
    drawn = difficulties(Wind.shown)
    assert len(drawn) == 4 + 80  # the 20th episode ends in the step after which the level rises
    levels = [value for _, value in scalars(run)["charts/level"]]
    assert levels == pytest.approx([0, 0.3, 0.6, 0.9, 1])
    # 20 episodes end in 5 ends of 4 environments at once, and the next ones begin in the same step
    for level, part in zip((0, 0.3, 0.6, 0.9), (drawn[:24], drawn[24:44], drawn[44:64], drawn[64:]), strict=True):
        assert level - 0.15 < part.max() <= level + 1e-5
    own_draws = np.array(Wind.shown)[24:, 2]  # the environment draws other numbers
    assert abs(np.corrcoef(drawn[24:], own_draws)[0, 1]) < 0.5
    saved = checkpoint(run)["parts"]["curriculum"]
    assert saved["level"] == 1 and saved["returns"] == []
    Wind.shown.clear()
    with loaded_parts(made) as parts:
        train(made, f"--resume {run} --total-timesteps 384", tmp_path)
    assert parts["curriculum"] == saved
    assert difficulties(Wind.shown).max() > 0.7
    Wind.shown.clear()
    assert enjoy.enjoy(enjoy.Args(run, episodes=2)) == [1, 1]
    assert all(row[:2].tolist() == [2, 5] for row in Wind.shown)
    assert written(run, tmp_path).get_inputs()[0].shape == ["batch", 3]


def test_the_range_stays_without_success(with_recipe, tmp_path):
    made = with_recipe("with/curriculum")
    Wind.shown.clear()
    run = train(made, f"{FEW} --env-id WindDiscrete-v0 --widen-return 1.01 --total-timesteps 320", tmp_path)
    assert set(value for _, value in scalars(run)["charts/level"]) == {0}
    assert not difficulties(Wind.shown).any()


@pytest.mark.slow
def test_environments_in_processes_of_their_own(with_recipe, tmp_path):
    """Get the level, too: MountainCar's car starts at its easy place, and then farther left."""
    made = with_recipe("with/curriculum")
    args = made.module.Args(env_id="MountainCar-v0", async_envs=True, num_envs=2, hard=(-0.6, -0.6), easy=(0.3, 0.3))
    envs = made.module.make_envs(args)
    try:
        curriculum = made.module.Curriculum(envs, args)
        curriculum.load_state_dict({"level": 0.0, "returns": []})
        obs, _ = envs.reset(seed=1)
        np.testing.assert_allclose(obs[:, 0], 0.3, rtol=1e-6)
        curriculum.load_state_dict({"level": 1.0, "returns": []})
        obs, _ = envs.reset()
        assert (obs[:, 0] < 0.3).all() and obs[0, 0] != obs[1, 0]
    finally:
        envs.close()
