"""The EnvPool of ppo_atari_envpool.py: what ppo_atari.py would see, nothing ignored, whole games counted."""

import gymnasium as gym
import numpy as np
import pytest
from toy_envs import Asked

import ppo_atari
import ppo_atari_envpool as script

N = 8


@pytest.mark.parametrize("env_id, machado", [("Breakout-v5", False), ("SpaceInvaders-v5", True)])
def test_the_stream_that_the_learner_sees(env_id, machado):
    """5,000 random steps: ended episodes restart at once, stacks begin black, a score is the sum of rewards."""
    envs = script.EnvPool(script.Args(env_id=env_id, num_envs=N, machado=machado))
    assert envs.single_action_space.n == (18 if machado else 4)
    assert envs.make.keywords.get("repeat_action_probability", 0) == machado * 0.25
    before, _ = envs.reset()
    assert before.dtype == np.uint8 and not before[..., :-1].any() and before[..., -1].any(axis=(1, 2)).all()
    envs.pool = asked = Asked(envs.pool, N)
    random, scores, lengths = np.random.default_rng(1), np.zeros(N), np.zeros(N, dtype=int)
    games = episodes = 0
    for _ in range(5000 // N):
        actions = random.integers(envs.single_action_space.n, size=N)
        first = len(asked.calls)
        obs, rewards, terminated, truncated, infos = envs.step(actions)
        done = terminated | truncated
        _, sent, frames, _, _, _, info = asked.calls[first]
        stack = np.concatenate([before[..., 1:], np.moveaxis(frames, 1, -1)], axis=-1)
        np.testing.assert_array_equal(sent, actions)
        np.testing.assert_array_equal(rewards, np.sign(info["reward"]))
        np.testing.assert_array_equal(obs[~done], stack[~done])
        scores, lengths = scores + info["reward"], lengths + 1
        over = (info["terminated"] == 1) | truncated
        assert len(asked.calls) - first == 1 + done.any()
        if done.any():
            # the one step whose action EnvPool ignores: without reward or end, and nobody learns from it
            ids, _, opening, reward, ended, cut, later = asked.calls[first + 1]
            np.testing.assert_array_equal(ids, np.flatnonzero(done))
            assert not reward.any() and not ended.any() and not cut.any() and not later["terminated"].any()
            assert not obs[done, ..., :-1].any() and (obs[done, ..., -1] == opening[:, 0]).all()
            np.testing.assert_array_equal(infos["final_obs"][done], stack[done])
            statistics = infos["final_info"]
            np.testing.assert_array_equal(statistics["_episode"], over)
            np.testing.assert_array_equal(statistics["episode"]["r"][over], scores[over])
            np.testing.assert_array_equal(statistics["episode"]["l"][over], lengths[over])
            scores[over], lengths[over] = 0, 0
        games, episodes, before = games + over.sum(), episodes + done.sum(), obs
    assert games > 5
    assert episodes == games if machado else episodes > 3 * games  # Breakout has five lives


def test_frames_are_those_of_ppo_atari():
    """A game has the same gray frames and score in EnvPool and in ppo_atari.py's wrappers."""
    options = {"stack_num": 1, "noop_max": 1, "use_fire_reset": False, "episodic_life": False}
    pool = script.envpool.make_gymnasium("Breakout-v5", num_envs=1, seed=3, repeat_action_probability=0.0, **options)
    env = ppo_atari.WarpFrame(ppo_atari.MaxAndSkip(gym.make("BreakoutNoFrameskip-v4")))
    env.reset()
    frame, _, _, _, _ = env.unwrapped.step(0)
    np.testing.assert_array_equal(pool.reset()[0][0, 0], env.observation(frame))
    random, over, steps, scores = np.random.default_rng(1), False, 0, np.zeros(2)
    while not over:
        action = int(random.integers(4)) if steps else 1
        theirs, reward, over, _, _ = pool.step(np.array([action]))
        ours = env.step(action)
        np.testing.assert_array_equal(theirs[0, 0], ours[0])
        scores, steps = scores + (reward[0], ours[1]), steps + 1
        assert over[0] == ours[2]
    assert steps > 100 and scores[0] == scores[1]
    pool.close()
