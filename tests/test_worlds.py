"""The recipes envpool and envpool-continuous: what the agent sees of EnvPool's families. And Atari in ale-py's C++."""

import os
import re
import shutil
import warnings

import envpool
import gymnasium as gym
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from processes import finish, start
from toy_envs import Asked, Counting, Pool

import ppo_atari

RECIPES = "envpool", "envpool-continuous"
LENGTHS = (1, 2, 3), (5,), (7, 4, 1), (1,), (11, 8, 1), (3,)
KINDS = "terminated", "truncated", "both"
STEPS = 200
# A few ids of each family; all of them were tried once (docs/environment.md).
FAMILIES = {
    "classic control": ["CartPole-v1", "phys2d/CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCarContinuous-v0"],
    "toy text": ["Catch-v0", "FrozenLake-v1", "Taxi-v3", "NChain-v0", "CliffWalking-v1", "Blackjack-v1"],
    "Box2D": ["LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3", "BipedalWalkerHardcore-v3"],
    "MuJoCo of gymnasium": ["HalfCheetah-v5", "Hopper-v4", "Humanoid-v5", "Reacher-v5", "InvertedPendulum-v5"],
    "dm_control": ["CheetahRun-v1", "CartpoleSwingup-v1", "FishSwim-v1", "ManipulatorBringBall-v1", "HumanoidWalk-v1"],
    "MetaWorld": ["MetaWorld/Reach-v3", "MetaWorld/Assembly-v3", "MetaWorld/DoorOpen-v3"],
    "MiniGrid": ["MiniGrid-Empty-5x5-v0", "MiniGrid-MemoryS7-v0", "MiniGrid-Fetch-5x5-N2-v0"],
    "Jumanji": ["Snake-v1", "Game2048-v1", "Maze-v0", "TSP-v1", "Knapsack-v1", "Sokoban-v0"],
    "highway": ["Highway-v0", "Merge-v0", "Roundabout-v0", "Parking-v0", "Racetrack-v0", "LaneKeeping-v0"],
    "Playground": ["BarkourJoystick-v1", "Go1JoystickFlatTerrain-v1", "PandaPickCube-v1"],
}


def make(module, env_id, num_envs):
    """The recipe's EnvPool."""
    return module.EnvPool(module.Args(env_id=f"envpool/{env_id}", num_envs=num_envs))


@pytest.fixture
def counting(monkeypatch):
    """A function from a recipe's module to its EnvPool of Counting environments, and these."""

    def build(module):
        ends = [[(length, KINDS[(i + k) % 3]) for k, length in enumerate(LENGTHS[i] * 3)] for i in range(6)]
        toys = [Counting(None, i, each) for i, each in enumerate(ends)]
        box = hasattr(module, "Normal")
        pool = Pool(toys, gym.spaces.Box(-2, 2, (1,)) if box else gym.spaces.Discrete(5))
        monkeypatch.setattr(module.envpool, "list_all_envs", lambda: ["Counting-v0"])
        monkeypatch.setattr(module.envpool, "make_gymnasium", lambda env_id, num_envs, seed: pool)
        envs = make(module, "Counting-v0", 6)
        for toy in toys:
            toy.episode = -1
        return envs, toys

    return build


def as_seen(numbers):
    """What the agent sees of the four numbers of a Counting environment: the first one-hot, then all, last first."""
    return np.append(np.arange(-1, 7) == numbers[0], numbers[::-1])


@pytest.mark.parametrize("name", RECIPES)
def test_each_row_is_a_step_of_its_environment(name, counting, with_recipe):
    """Observation, action, reward, end and final observation belong together, and no action is ignored.

    Episodes end in every way, many in their first step, and several in the same one."""
    envs, toys = counting(with_recipe(f"with/{name}").module)
    assert envs.single_observation_space == gym.spaces.Box(-np.inf, np.inf, (12,), np.float32)
    envs.single_action_space.seed(1)
    obs, _ = envs.reset()
    scores = np.zeros(6)
    given = []
    seen = set()
    for t in range(STEPS):
        actions = np.array([envs.single_action_space.sample() for _ in toys])
        next_obs, rewards, terminated, truncated, infos = envs.step(actions)
        assert next_obs.dtype == np.float32 and rewards.dtype == np.float32
        scores += rewards
        for i, toy in enumerate(toys):
            happened = toy.log[t]
            assert len(toy.log) == t + 1
            np.testing.assert_array_equal(obs[i], as_seen(np.array(happened.obs)))
            assert happened.action == actions[i]
            assert rewards[i] == np.float32(happened.reward)
            assert truncated[i] == happened.truncated
            assert terminated[i] == (happened.terminated and not happened.truncated)
            if not (terminated[i] or truncated[i]):
                np.testing.assert_array_equal(next_obs[i], as_seen(happened.next_obs))
                continue
            seen.add((happened.terminated, happened.truncated, happened.obs[2] == 0))
            np.testing.assert_array_equal(infos["final_obs"][i], as_seen(happened.next_obs))
            np.testing.assert_array_equal(next_obs[i], as_seen(np.array([i, happened.obs[1] + 1, 0, 7])))
            assert infos["final_info"]["episode"]["l"][i] == happened.obs[2] + 1
            assert infos["final_info"]["episode"]["r"][i] == pytest.approx(scores[i])
            scores[i] = 0
        done = terminated | truncated
        assert ("final_obs" in infos) == done.any()
        if done.any():
            np.testing.assert_array_equal(infos["final_info"]["_episode"], done)
        given.append((next_obs, next_obs.copy()))
        obs = next_obs
    assert len(seen) == 6
    assert all(np.array_equal(*pair) for pair in given)  # the learner keeps what it is given


def check(module, env_id, num_envs=2):
    """200 random steps of an id: rows are those of EnvPool, and the step after an end is asked of it at once."""
    envs = make(module, env_id, num_envs)
    obs, _ = envs.reset(seed=5)
    envs.single_action_space.seed(1)
    lengths = np.zeros(num_envs, dtype=int)
    pool = envs.pool
    asked = Asked(pool, num_envs)
    asked.observation_space = pool.observation_space
    envs.pool = asked
    for _ in range(STEPS):
        first = len(asked.calls)
        actions = np.array([envs.single_action_space.sample() for _ in range(num_envs)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Asked keeps a Dict as an object
            obs, rewards, terminated, truncated, infos = envs.step(actions)
        lengths += 1
        done = terminated | truncated
        assert obs.shape == (num_envs, *envs.single_observation_space.shape) and obs.dtype == np.float32
        assert rewards.shape == (num_envs,)
        assert np.isfinite(obs).all() and np.isfinite(rewards).all()
        _, sent, _, paid, ended, cut, info = asked.calls[first]
        np.testing.assert_array_equal(sent, actions)
        np.testing.assert_array_equal(rewards, paid)
        np.testing.assert_array_equal(terminated, ended)
        np.testing.assert_array_equal(truncated, cut)
        np.testing.assert_array_equal(info["env_id"], np.arange(num_envs))
        np.testing.assert_array_equal(info["elapsed_step"], lengths)  # so no step of an episode was ignored
        assert len(asked.calls) - first == 1 + done.any()
        if done.any():
            ids, _, _, _, ended, cut, info = asked.calls[first + 1]
            np.testing.assert_array_equal(ids, np.flatnonzero(done))
            np.testing.assert_array_equal(info["env_id"], ids)
            assert not ended.any() and not cut.any() and not info["elapsed_step"].any()
            np.testing.assert_array_equal(infos["final_info"]["episode"]["l"][done], lengths[done])
            lengths[done] = 0
    envs.close()


@pytest.mark.parametrize("name, env_id", [("envpool", "Catch-v0"), ("envpool-continuous", "Hopper-v5")])
def test_envpool_keeps_its_part(name, env_id, with_recipe):
    """The step of a part of the environments, which the recipe builds on, does what Pool of toy_envs.py does."""
    check(with_recipe(f"with/{name}").module, env_id)


@pytest.mark.parametrize("name", [*RECIPES, "seeds-envpool"])
def test_envpool_takes_no_processes(name, with_recipe):
    module = with_recipe(f"with/{name}").module
    with pytest.raises(SystemExit, match="^error: --async-envs"):
        module.make_envs(module.Args(env_id="envpool/CartPole-v1", async_envs=True))


def failing(modules, ids):
    """Those of the ids whose check fails, each in a forked process, as an error in C++ ends it."""
    failed = []
    for env_id in ids:
        child = os.fork()
        if child == 0:
            actions = envpool.make_spec(env_id).gymnasium_action_space
            discrete, continuous = modules
            check(continuous if isinstance(actions, gym.spaces.Box) else discrete, env_id)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            failed.append(env_id)
    return failed


def masks_of(call):
    """The masks in an answer of EnvPool, which is a call of Asked: Jumanji's are in a Dict observation."""
    _, _, obs, *_, info = call
    return info["legal_action_mask"] if "legal_action_mask" in info else obs.item()["action_mask"]


@pytest.mark.parametrize("env_id", ["Snake-v1", "Play2048-v1"])
def test_masks(env_id, with_recipe):
    """Infos have those of the observations that the agent sees, also where an episode begins, for the recipe mask."""
    envs = make(with_recipe("with/envpool").module, env_id, 4)
    _, infos = envs.reset(seed=1)
    envs.pool = asked = Asked(envs.pool, 4)
    asked.observation_space = asked.pool.observation_space
    chance = np.random.default_rng(1)
    kept = []
    ends = 0
    while ends < 20:
        masks = infos["action_mask"]
        assert masks.shape == (4, envs.single_action_space.n) and masks.dtype == bool
        kept.append((masks, masks.copy()))
        # a snake soon bites itself; where no valid action is left, any ends its episode
        actions = np.where(masks, chance.random(masks.shape), -1).argmax(axis=1)
        first = len(asked.calls)
        _, _, terminated, truncated, infos = envs.step(actions)
        expected = masks_of(asked.calls[first]).copy()
        if (terminated | truncated).any():
            ids = asked.calls[first + 1][0]
            expected[ids] = masks_of(asked.calls[first + 1])
            ends += len(ids)
        np.testing.assert_array_equal(infos["action_mask"], expected)
    assert not all(masks.all() for masks, _ in kept)
    assert all(np.array_equal(*pair) for pair in kept)


@pytest.mark.slow
def test_a_few_ids_of_each_family(with_recipe, tmp_path):
    """The processes are forked from one that has no threads yet."""
    for name in RECIPES:
        script = with_recipe(f"with/{name}").module.__file__
        shutil.copy(script, tmp_path / f"my_{name.replace('-', '_')}.py")
    ids = [env_id for family in FAMILIES.values() for env_id in family]
    modules = "my_envpool, my_envpool_continuous"
    text = f"import test_worlds, {modules}; print(test_worlds.failing(({modules}), {ids}))"
    status, output, errors = finish(start(["-c", text], tmp_path))
    assert status == 0, errors
    assert output == "[]\n", output + errors


@pytest.mark.parametrize("name", RECIPES)
def test_seeds(name, with_recipe):
    """A seed repeats itself; environments, and other seeds, differ."""
    env_id = "CartPole-v1" if name == "envpool" else "Pendulum-v1"
    envs = make(with_recipe(f"with/{name}").module, env_id, 3)
    starts = [envs.reset(seed=seed)[0] for seed in (1, 1, 2)]
    np.testing.assert_array_equal(starts[0], starts[1])
    assert len(np.unique(starts[0], axis=0)) == 3
    assert (starts[0] != starts[2]).any(axis=1).sum() >= 2  # environment 1 of seed 1 may be environment 0 of seed 2


@pytest.mark.parametrize(
    "name, env_id, reason",
    [
        ("envpool", "Pendulum-v1", r"has the actions Box\(.*takes Discrete"),
        ("envpool", "TicTacToe-v1", "several players"),
        ("envpool", "Pong-v5", "28224 numbers"),
        ("envpool-continuous", "CartPole-v1", r"has the actions Discrete\(.*takes a Box"),
        ("envpool-continuous", "Tetris-v0", r"has the actions Box\(.*takes a Box of floats"),
    ],
)
def test_what_does_not_fit(name, env_id, reason, with_recipe):
    with pytest.raises(SystemExit, match=reason):
        make(with_recipe(f"with/{name}").module, env_id, 2)


def test_a_picture(with_recipe):
    """Of environment 0, as videos need it."""
    module = with_recipe("with/envpool").module
    envs = module.make_envs(module.Args(env_id="envpool/CartPole-v1", capture_video=True))
    envs.reset()
    [image] = envs.render()
    assert image.shape == (400, 600, 3) and image.dtype == np.uint8


def test_codes_are_normalized_one_hot_vectors(with_recipe):
    """With the statistics of all observations before; those at the end of an episode do not count."""
    module = with_recipe("with/envpool", second="with/codes").module
    args = module.Args(env_id="envpool/MiniGrid-MemoryS7-v0", num_envs=8)
    envs = module.make_envs(args)
    raw = module.EnvPool(args)
    (numbers,) = raw.single_observation_space.shape
    assert envs.single_observation_space.shape == (11 * numbers,)
    rows = []

    def expected(obs, is_new=True):
        one_hot = np.zeros((len(obs), numbers, 11))
        for i, j in np.ndindex(obs.shape):
            one_hot[i, j, int(obs[i, j])] = 1
        one_hot = one_hot.reshape(len(obs), -1)
        if is_new:
            rows.extend(one_hot)
        # the statistics begin with a mean of 0 and a variance of 1 that weigh 1e-4 rows
        weights = np.append(np.ones(len(rows)), 1e-4)
        seen = np.append(rows, np.zeros((1, one_hot.shape[1])), axis=0)
        mean = np.average(seen, axis=0, weights=weights)
        var = np.average((seen - mean) ** 2, axis=0, weights=weights) + 1e-4 / weights.sum()
        return ((one_hot - mean) / np.sqrt(var + 1e-8)).clip(-10, 10)

    np.testing.assert_allclose(envs.reset(seed=1)[0], expected(raw.reset(seed=1)[0]), rtol=1e-4, atol=1e-4)
    chance = np.random.default_rng(1)
    ends = 0
    while ends < 3:
        actions = chance.integers(3, size=8)
        obs, rewards, terminated, truncated, infos = envs.step(actions)
        raw_obs, raw_rewards, *_, raw_infos = raw.step(actions)
        assert obs.dtype == np.float32
        np.testing.assert_array_equal(rewards, raw_rewards)
        np.testing.assert_allclose(obs, expected(raw_obs), rtol=1e-4, atol=1e-4)
        for i in np.flatnonzero(terminated | truncated):
            final_obs = expected(raw_infos["final_obs"][i : i + 1], is_new=False)[0]
            np.testing.assert_allclose(infos["final_obs"][i], final_obs, rtol=1e-4, atol=1e-4)
            ends += 1
    count = envs.stats.count
    envs.frozen = True
    envs.step(actions)
    assert envs.stats.count == count


def test_what_are_no_codes(with_recipe):
    module = with_recipe("with/codes").module
    with pytest.raises(SystemExit, match="not codes"):
        module.make_envs(module.Args(env_id="CartPole-v1")).reset()
    envs = module.make_envs(module.Args(env_id="FrozenLake-v1"))
    envs.reset()
    envs.encode(np.full((2, 16), 10.0))
    with pytest.raises(SystemExit, match="not codes"):  # later than in the first observation, too
        envs.encode(np.full((2, 16), 11.0))


def largest_difference_to_ale(game, steps):
    """The largest difference between frames of AtariVectorEnv and of ppo_atari.py, in a game of the same actions."""
    rom = re.sub(r"(?<!^)(?=[A-Z])", "_", game).lower()
    options = {"noop_max": 0, "use_fire_reset": False, "reward_clipping": False, "num_threads": 1}
    theirs = AtariVectorEnv(rom, 1, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP, **options)
    ours = gym.make(f"{game}NoFrameskip-v4", obs_type="ram")
    ours = ppo_atari.WarpFrame(ppo_atari.MaxAndSkip(ours))
    frames, _ = theirs.reset(seed=1)
    frame, _ = ours.reset(seed=1)
    random = np.random.default_rng(1)
    largest = 0
    for _ in range(steps):
        largest = max(largest, np.abs(frames[0, -1].astype(int) - frame).max())
        action = random.integers(theirs.single_action_space.n)
        frames, reward, terminated, _, infos = theirs.step(np.array([action]))
        frame, our_reward, over, _, our_infos = ours.step(action)
        assert (reward[0], terminated[0]) == (our_reward, over)
        if over:
            break
        assert infos["lives"][0] == our_infos["lives"]
    return largest


@pytest.mark.slow
@pytest.mark.parametrize("game, exact", [("Breakout", True), ("SpaceInvaders", True), ("MsPacman", False)])
def test_ale_s_own_vector_is_not_exact(game, exact):
    """It takes the maximum of gray frames, as docs/environment.md says; if that changes, it can be a recipe."""
    assert (largest_difference_to_ale(game, 300) == 0) == exact
