"""The Atari wrappers equal those of ppo2, frame by frame (golden/README.md)."""

import functools
import hashlib
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from golden_data import load

import ppo_atari

FAKE, REAL = load("e_atari_fake"), load("e_atari_real_Breakout")


@pytest.mark.parametrize("env_id", ["ALE/Breakout-v5", "Breakout-v4"])
def test_a_game_that_skips_frames_itself(env_id):
    with pytest.raises(SystemExit, match=f"^error: {env_id} is not a NoFrameskip game"):
        ppo_atari.make_env(ppo_atari.Args(env_id=env_id), 0, None)


def sha1(array):
    return hashlib.sha1(np.ascontiguousarray(array).tobytes()).hexdigest()


@functools.cache
def fake_frame(k):
    """Frame k of the emulator that was recorded: large squares, in every other frame with noise."""
    rng = np.random.RandomState(100_000 + k)
    squares, noise = rng.randint(0, 256, (21, 16, 3)), rng.randint(0, 256, (210, 160, 3))
    squares = np.kron(squares, np.ones((10, 10, 1), int))
    return (squares if k % 2 == 0 else (3 * squares + noise) // 4).astype(np.uint8)


class FakeGame(gym.Env):
    """An emulator whose frames, rewards, lives and ends follow a table, whatever the actions are."""

    observation_space, action_space = gym.spaces.Box(0, 255, (128,), np.uint8), gym.spaces.Discrete(4)

    def __init__(self):
        self.frames, self.episode, self.left = 0, -1, 0
        self.ale = SimpleNamespace(lives=lambda: self.left, getScreenRGB=self.screen)

    def screen(self, buffer=None):
        """ale_py's: the newest frame, or None where it is written into `buffer`."""
        if buffer is None:
            return fake_frame(self.frames - 1)
        buffer[:] = fake_frame(self.frames - 1)

    def advance(self):
        """Goes to the next frame; returns an empty RAM."""
        self.frames += 1
        return np.zeros(128, np.uint8)

    def reset(self, *, seed=None, options=None):
        self.episode, self.steps, self.left = self.episode + 1, 0, int(FAKE["LIVES"])
        return self.advance(), {}

    def step(self, action):
        j, self.steps = self.steps, self.steps + 1
        self.left -= int(j in FAKE["LOSS"][self.episode % 3])
        done = bool(j == FAKE["END"][self.episode % 3])
        return self.advance(), float(FAKE["REW"][(self.episode * 7 + j) % 97]), done, False, {}


class Draws:
    """An np_random that returns the recorded numbers of no-ops."""

    bit_generator = SimpleNamespace(state={})

    def __init__(self, draw):
        self.draw = draw

    def integers(self, low, high):
        assert (low, high) == (1, 31)
        return next(self.draw)


def noops_of(data, run):
    """The numbers of no-ops after each reset of Breakout, whose first other action is FIRE."""
    actions = list(data[f"{run}/raw_action"])
    for reset in np.flatnonzero(data[f"{run}/raw_action"] == -1):
        yield actions.index(1, reset) - reset - 1


def record(env, draws):
    """Gives the innermost environment its numbers of no-ops; returns a list that fills with all that it is asked.

    Each entry: (action or -1 for a reset, hash of the screen, reward, done, lives).
    """
    game, log = env.unwrapped, []
    reset, step = game.reset, game.step

    def logged_reset(**kwargs):
        obs, info = reset(**kwargs)
        log.append((-1, sha1(game.ale.getScreenRGB()), 0.0, False, game.ale.lives()))
        return obs, info

    def logged_step(action):
        obs, reward, terminated, truncated, info = step(action)
        log.append((int(action), sha1(game.ale.getScreenRGB()), reward, terminated or truncated, game.ale.lives()))
        return obs, reward, terminated, truncated, info

    game.np_random, game.reset, game.step = Draws(iter(draws)), logged_reset, logged_step
    return log


def assert_raw(log, data, run):
    """The game saw the same actions in the same order, and so answered the same."""
    actions, frames, rewards, dones, lives = zip(*log, strict=True)
    np.testing.assert_array_equal(actions, data[f"{run}/raw_action"])
    if data is REAL:
        np.testing.assert_array_equal(frames, data[f"{run}/raw_sha1"])
    else:
        assert frames == tuple(sha1(fake_frame(k)) for k in data[f"{run}/raw_frame_index"])
    np.testing.assert_array_equal(rewards, data[f"{run}/raw_reward"])
    np.testing.assert_array_equal(dones, data[f"{run}/raw_done"])
    np.testing.assert_array_equal(lives, data[f"{run}/raw_lives"])


def assert_step(data, run, t, obs, reward, done, episode, log):
    """Step t: `obs` in ppo2's layout, [84, 84, 4]; `episode` is what RecordEpisodeStatistics said, or None."""
    assert log[-1][-1] == data[f"{run}/{'lives' if data is REAL else 'lives_after_step_and_reset'}"][t], t
    if t < len(data[f"{run}/newest_frames"]):
        np.testing.assert_array_equal(obs[..., -1], data[f"{run}/newest_frames"][t])
    assert sha1(obs) == data[f"{run}/obs_sha1"][t], t
    assert (reward, done) == (data[f"{run}/rewards"][t], data[f"{run}/dones"][t]), t
    if episode is None:
        assert np.isnan(data[f"{run}/monitor_r"][t]), t
    else:
        assert (episode["r"], episode["l"]) == (data[f"{run}/monitor_r"][t], data[f"{run}/monitor_l"][t]), t


def assert_run_with_repeated_first_frame(env, log, data, run):
    """Steps through a run that was recorded under baselines' FrameStack, which fills up with the first frame.

    ppo2 trains under VecFrameStack, which fills up with black, and so does ppo_atari: here its stack is undone, and
    its newest frames are stacked the other way.
    """

    def start():
        obs, _ = env.reset()
        assert obs.shape == (84, 84, 4) and obs.dtype == np.uint8
        assert not obs[..., :-1].any()
        return np.repeat(obs[..., -1:], 4, axis=-1)

    resets, times = [], "reset_t" if data is REAL else "reset_after_t"
    stack = start()
    np.testing.assert_array_equal(stack, data[f"{run}/reset_obs"])
    assert len(log) == data[f"{run}/nraw_reset" if data is REAL else f"{run}/reset_nraw"]
    for t, action in enumerate(data[f"{run}/actions"]):
        obs, reward, terminated, truncated, info = env.step(action)
        stack = np.concatenate([stack[..., 1:], obs[..., -1:]], axis=-1)
        assert_step(data, run, t, stack, reward, terminated or truncated, info.get("episode"), log)
        if terminated or truncated:
            stack = start()
            resets.append((t, sha1(stack)))
        assert data is REAL or len(log) == data[f"{run}/nraw_after_step"][t]
    assert resets == list(zip(data[f"{run}/{times}"], data[f"{run}/reset_obs_sha1"], strict=True))
    assert_raw(log, data, run)


@pytest.mark.parametrize(
    "run, second, noops",
    [("fake_fire", "FIRE", [5] * 99), ("fake_nofire_seeded", "UP", np.random.RandomState(3).randint(1, 31, 99))],
)
def test_fake_game(run, second, noops, tmp_path, monkeypatch):
    """In the wrappers of make_env, with the meaning of the second action, on which FireReset depends."""
    game = FakeGame()
    game.get_action_meanings = lambda: ["NOOP", second, "RIGHT", "LEFT"]
    game.spec = gym.spec("BreakoutNoFrameskip-v4")
    monkeypatch.setattr(gym, "make", lambda *_, **__: game)
    env = ppo_atari.make_env(ppo_atari.Args(), 0, tmp_path)
    assert_run_with_repeated_first_frame(env, record(env, noops), FAKE, run)


@pytest.mark.parametrize("run", ["framestack_noop7", "framestack_seed1"])
def test_breakout(run, tmp_path):
    env = ppo_atari.make_env(ppo_atari.Args(num_envs=1), 0, tmp_path)
    log = record(env, noops_of(REAL, run))
    assert_run_with_repeated_first_frame(env, log, REAL, run)
    env.close()


def test_breakout_vectorised(tmp_path):
    """Recorded as ppo2 trains: black before the first frame, restarted in the same step."""
    envs = ppo_atari.make_envs(ppo_atari.Args(num_envs=1), tmp_path)
    assert envs.envs[0].unwrapped.get_action_meanings() == REAL["action_meanings"].tolist()
    run, log = "vec_seed1", record(envs.envs[0], noops_of(REAL, "vec_seed1"))
    obs, _ = envs.reset()
    np.testing.assert_array_equal(obs[0], REAL[f"{run}/reset_obs"])
    for t, action in enumerate(REAL[f"{run}/actions"]):
        obs, rewards, terminated, truncated, info = envs.step(np.array([action]))
        assert obs.shape == (1, 84, 84, 4) and obs.dtype == np.uint8
        ended = info.get("final_info", {})
        episode = {key: ended["episode"][key][0] for key in "rl"} if ended.get("_episode", [False])[0] else None
        assert_step(REAL, run, t, obs[0], rewards[0], terminated[0] or truncated[0], episode, log)
    assert_raw(log, REAL, run)
    envs.close()


class Short(gym.Env):
    """A game of three steps and lives, of which each step takes one; shows (game, step), and keeps what is asked.

    A step after the end fails."""

    observation_space, action_space = gym.spaces.Box(0, 99, (2,)), gym.spaces.Discrete(4)

    def __init__(self, kind):
        self.kind, self.game, self.asked = kind, 0, []
        self.ale = SimpleNamespace(lives=lambda: 3 - self.steps, getScreenRGB=self.screen)

    def reset(self, *, seed=None, options=None):
        self.game, self.steps = self.game + 1, 0
        self.asked.append("reset")
        return (self.game, 0), {}

    def step(self, action):
        assert self.steps < 3, "a step after the end of a game"
        self.steps += 1
        self.asked.append(action)
        over = self.steps == 3
        return (self.game, self.steps), 1.0, over and self.kind == "terminated", over and self.kind == "truncated", {}

    def screen(self, buffer=None):
        """The number of the step, as ale_py's getScreenRGB returns it or writes it into `buffer`."""
        if buffer is None:
            return np.zeros(1, np.uint8)
        buffer[:] = self.steps


both_ends = pytest.mark.parametrize("kind", ["terminated", "truncated"])


@both_ends
@pytest.mark.parametrize("noops, shown", [(2, (1, 2)), (3, (2, 0)), (7, (3, 1))])
def test_a_game_that_ends_in_its_noops_is_reset(kind, noops, shown):
    """At once; the observation and the other no-ops are of the next game."""
    env = ppo_atari.NoopReset(game := Short(kind))
    game.np_random = Draws(iter([noops]))
    assert env.reset()[0] == shown
    assert game.asked == ["reset", *([0, 0, 0, "reset"] * 3)[: noops + noops // 3]]


@both_ends
def test_a_game_that_ends_in_the_noop_after_a_lost_life_is_reset(kind):
    """Of three lives two are lost by the agent's steps and the last by the no-op: the next game begins."""
    env = ppo_atari.EpisodicLife(game := Short(kind))
    assert env.reset()[0] == (1, 0)
    assert env.step(3)[2:4] == (True, False) and env.reset()[0] == (1, 2)  # a lost life; its no-op takes the next
    _, _, terminated, truncated, _ = env.step(3)
    assert (terminated, truncated) == (kind == "terminated", kind == "truncated") and env.reset()[0] == (2, 0)
    env.step(3)
    game.steps = 2  # one life is left, which the no-op takes
    assert env.reset()[0] == (3, 0) and env.lives == 3
    env.step(3)
    assert env.reset(seed=1)[0] == (4, 0)  # a seed begins a new game, though lives are left
    assert game.asked == ["reset", 3, 0, 3, "reset", 3, 0, "reset", 3, "reset"]


@both_ends
def test_a_game_that_ends_in_skipped_frames_is_not_stepped_further(kind):
    env = ppo_atari.MaxAndSkip(game := Short(kind))
    env.reset()
    obs, reward, terminated, truncated, _ = env.step(3)
    assert game.asked == ["reset", 3, 3, 3] and reward == 3 and obs == [3]
    assert (terminated, truncated) == (kind == "terminated", kind == "truncated")
