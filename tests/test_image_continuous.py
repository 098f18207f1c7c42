"""The recipe image-continuous: images and Box actions."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from in_process import train

import enjoy
import recipes.environments  # noqa: F401  (registers ImagePlace-v0)


class Frames(gym.Env):
    """Images of one color or of three, which become brighter by 20 in each step; the reward is the step's number."""

    action_space = gym.spaces.Box(-1, 1, (2,))

    def __init__(self, channels):
        self.observation_space = gym.spaces.Box(0, 255, (40, 50, channels), np.uint8)

    def image(self):
        return np.full(self.observation_space.shape, 20 * self.steps + 20, np.uint8) + self.colors

    def reset(self, seed=None, options=None):
        self.colors = np.arange(self.observation_space.shape[-1], dtype=np.uint8)
        self.steps = 0
        return self.image(), {}

    def step(self, action):
        self.steps += 1
        return self.image(), float(self.steps), self.steps == 6, False, {"steps": self.steps}


for channels in (1, 3):
    gym.register(f"Frames{channels}-v0", Frames, kwargs={"channels": channels})


@pytest.fixture
def made(with_recipe):
    return with_recipe("with/image-continuous")


@pytest.mark.parametrize("channels", [1, 3])
def test_the_network_gets_the_last_frames(channels, made):
    """Oldest first, black before an episode; a repeated action has the sum of the rewards and the last image."""
    args = made.module.Args(env_id=f"Frames{channels}-v0", frame_stack=2, action_repeat=3)
    envs = made.module.make_envs(args)

    def numbers(obs):
        """The images as the network gets them, each plane by its only value, and times 255."""
        images = made.module.Images()(torch.from_numpy(obs).float()) * 255
        assert images.shape == (1, 2 * channels, 64, 64) and torch.allclose(images.amin((2, 3)), images.amax((2, 3)))
        return images[0, :, 0, 0].numpy()

    obs, _ = envs.reset(seed=1)
    assert obs.dtype == np.uint8
    colors = np.arange(channels)
    np.testing.assert_allclose(numbers(obs), [*(0 * colors), *(20 + colors)], rtol=1e-5)
    obs, *_ = envs.step(np.zeros((1, 2), np.float32))
    np.testing.assert_allclose(numbers(obs), [*(20 + colors), *(80 + colors)], rtol=1e-5)
    assert envs.returns == [1 + 2 + 3]
    obs, _, terminated, _, infos = envs.step(np.zeros((1, 2), np.float32))
    assert terminated and infos["final_info"]["episode"]["r"] == [21]
    np.testing.assert_allclose(numbers(np.stack(infos["final_obs"])), [*(80 + colors), *(140 + colors)], rtol=1e-5)
    np.testing.assert_allclose(numbers(obs), [*(0 * colors), *(20 + colors)], rtol=1e-5)


def test_an_episode_that_ends_within_a_repeated_action(made):
    """Of the second step's four frames there are two, and the last image is their maximum."""
    envs = made.module.make_envs(made.module.Args(env_id="Frames1-v0", frame_stack=1, action_repeat=4))
    envs.reset(seed=1)
    action = np.zeros((1, 2), np.float32)
    obs, *_ = envs.step(action)
    assert (obs == 20 * 4 + 20).all()
    _, _, terminated, _, infos = envs.step(action)
    assert terminated and (np.stack(infos["final_obs"]) == 20 * 6 + 20).all()
    obs, *_ = envs.step(action)
    assert (obs == 20 * 4 + 20).all()


@pytest.mark.parametrize("env_id, problem", [("Pendulum-v1", "not images"), ("Image-v0", "takes a Box of floats")])
def test_other_spaces_end_the_run(env_id, problem, made):
    with pytest.raises(SystemExit, match=problem):
        made.module.make_envs(made.module.Args(env_id=env_id))


@pytest.mark.slow
def test_images_are_learned(made, tmp_path):
    """An agent that does not look earns at most 3.9 on average."""
    options = "--num-envs 8 --num-steps 64 --num-minibatches 8 --update-epochs 4 --learning-rate 1e-3 --no-cuda"
    env_id = "--env-id recipes.environments:ImagePlace-v0 --frame-stack 1"
    run = train(made, f"{options} {env_id} --total-timesteps 4096", tmp_path)
    assert np.mean(enjoy.enjoy(enjoy.Args(run, greedy=True))) > 6
