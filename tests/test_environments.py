"""What environments may do and give: arrays that they use again, seeds, frames, masks, rewards, and own processes."""

import inspect
import os

import gymnasium as gym
import in_process
import numpy as np
import pytest
import script_table
import torch
import toy_envs
from in_process import patched, train, watched
from processes import finish, start
from run_files import checkpoint, newest_run, same_weights, without_speed
from script_table import CONTINUOUS, MASK, MULTIDISCRETE, PPO, SEEDS, SELFPLAY, SHARED

import ppo
import ppo_continuous_action
import ppo_multidiscrete_mask

# Arrays that the environment and the script share


in_one_process_and_in_several = pytest.mark.parametrize(
    "async_envs", [False, pytest.param(True, marks=script_table.slow)], ids=["sync", "async"]
)


@in_one_process_and_in_several
@pytest.mark.parametrize(
    "script, env_id",
    [
        (PPO, "toy_envs:BorrowedDiscrete-v0"),
        (SHARED, "toy_envs:BorrowedDiscrete-v0"),
        (CONTINUOUS, "toy_envs:BorrowedBox-v0"),
        (MULTIDISCRETE, "toy_envs:BorrowedMultiDiscrete-v0"),
        (MASK, "toy_envs:BorrowedMultiDiscrete-v0"),
        (SELFPLAY, "toy_envs:BorrowedPlayers-v0"),
    ],
    ids=lambda each: each.name if isinstance(each, script_table.Script) else "",
)
def test_what_an_environment_overwrites_is_kept(script, env_id, async_envs, tmp_path):
    """Actions, observations, masks and rewards of a batch are those of their steps."""
    num_envs, num_steps = (2, 24) if async_envs else (4, 12)  # each process takes long to start
    options = f"--env-id {env_id} --num-envs {num_envs} --num-steps {num_steps} --total-timesteps 144"
    options += " --num-minibatches 1 --update-epochs 1 --gamma 1 --gae-lambda 0"
    if async_envs:
        options += " --async-envs"
    patches = [(script.module, "Normalize", toy_envs.AsTheyAre)] if script is CONTINUOUS else []
    with (
        patched(*patches),
        watched(script.module, "gradient_step", lambda agent, optimizer, minibatch, args: minibatch) as batches,
        watched(script.module, "gae", lambda rewards, *_: rewards) as rollouts,
    ):
        train(script, options, tmp_path)
    assert len(batches) == len(rollouts) == 3
    columns = ("obs", "actions", *(["masks"] if script is MASK else []))
    rows = [
        dict(zip(columns, row, strict=True))
        for batch in batches
        for row in zip(*(batch[name] for name in columns), strict=True)
    ]
    # by the environment's seed and the step: an observation that a step leads to shows the action that was given
    by_step = {}
    for row in rows:
        seed, step, *shown = row["obs"].tolist()
        by_step.setdefault((int(seed), int(step)), []).append((shown, row))
    compared = 0
    for (seed, step), of_seats in by_step.items():
        for seat, (_, row) in enumerate(of_seats):
            following = by_step.get((seed, step + 1))
            if following and (step + 1) % 5:  # else an episode begins, and shows no action
                shown = [shown for shown, _ in following]
                expected = np.broadcast_to(row["actions"].numpy(), 2).tolist()
                if script is SELFPLAY:  # rows come in any order, so a seat is one of two
                    assert expected in shown
                elif script is CONTINUOUS:
                    assert shown[seat] == pytest.approx(expected)
                else:
                    assert shown[seat] == expected
                compared += 1
            if script is MASK:
                assert row["masks"].tolist() == toy_envs.Borrowed.allowed(step).tolist()
    assert compared > 70 and any(row["actions"].any() for row in rows)
    for number, rewards in enumerate(rollouts):
        steps = np.arange(num_steps * number + 1, num_steps * (number + 1) + 1)[:, None] / 2
        assert (np.abs(rewards) == np.broadcast_to(steps, rewards.shape)).all()


@in_one_process_and_in_several
@pytest.mark.parametrize(
    "script, env_id, actions",
    [
        (PPO, "toy_envs:BorrowedDiscrete-v0", np.ones(2, int)),
        (CONTINUOUS, "toy_envs:BorrowedBox-v0", np.ones((2, 2), np.float32)),
        (SELFPLAY, "toy_envs:BorrowedPlayers-v0", np.ones(2, int)),
    ],
    ids=["ppo", "ppo_continuous_action", "ppo_selfplay"],
)
def test_the_last_observation_of_an_episode_is_kept(script, env_id, actions, async_envs):
    """The reset overwrites it in the environment."""
    patches = [(script.module, "Normalize", toy_envs.AsTheyAre)] if script is CONTINUOUS else []
    with patched(*patches):
        envs = script.module.make_envs(script.module.Args(env_id=env_id, num_envs=2, async_envs=async_envs))
    envs.reset(seed=1)
    for _ in range(5):
        obs, _, terminated, _, infos = envs.step(actions.copy())
    assert terminated.all() and (obs[:, 2:] == -1).all()
    assert [each.tolist()[1:] for each in infos["final_obs"]] == [[5, 1, 1]] * 2
    envs.close()


WITH_WORKERS = [script for script in (*script_table.SCRIPTS, SEEDS) if hasattr(script.module, "make_workers")]


@pytest.mark.parametrize("script", WITH_WORKERS, ids=lambda script: script.name)
def test_all_scripts_make_workers_alike(script):
    """So the tests below need one script; the seeds of ppo_seeds.py have a test in test_seeds.py."""
    names = ["make_in_worker", "make_workers"]
    for name in names[: 1 if script is SEEDS else 2]:
        assert inspect.getsource(getattr(script.module, name)) == inspect.getsource(getattr(ppo, name))


@script_table.slow
def test_processes_know_the_environments_that_a_script_registers(tmp_path):
    """A worker begins by running the script's definitions again."""
    copy = tmp_path / "ppo.py"
    text = (script_table.ROOT / copy.name).read_text()
    line = "import toy_envs\n\ngym.register('Own-v0', toy_envs.Endless)\n\n\n@dataclasses.dataclass(frozen=True)"
    copy.write_text(text.replace("@dataclasses.dataclass(frozen=True)", line, 1))
    options = "--env-id Own-v0 --async-envs --num-envs 2 --num-steps 8 --total-timesteps 32"
    status, _, errors = finish(start([copy, *options.split()], tmp_path))
    assert status == 0, errors


DRAWING = """
import os
import gymnasium as gym, numpy as np, torch
GENERATOR = np.random.default_rng()
class Drawing(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 1, (1,), np.float32), gym.spaces.Discrete(2)
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}
    def step(self, action):
        with open(f"draws-{os.getpid()}-{id(self)}", "a") as file:
            file.write(f"{np.random.rand()} {torch.rand(()).item()} {GENERATOR.random()}\\n")
        return np.zeros(1, np.float32), 0.0, False, False, {}
gym.register("Drawing-v0", Drawing)
"""


@script_table.slow
def test_each_worker_draws_numbers_of_its_own(tmp_path):
    """From whichever generator. The same run draws the same again, if a seed reaches them; a resume draws new ones."""
    (tmp_path / "drawing.py").write_text(DRAWING)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    new = "--async-envs --num-envs 2 --num-steps 8 --total-timesteps 32 --num-minibatches 2".split()
    runs = []
    for resumes in (False, False, True):
        options = ["--resume", newest_run(tmp_path), "--total-timesteps", "64"] if resumes else new
        command = [ppo.__file__, *options, "--env-id", "drawing:Drawing-v0"]
        status, _, errors = finish(start(command, tmp_path, PYTHONPATH=path))
        assert status == 0, errors
        files = list(tmp_path.glob("draws-*"))
        draws = np.stack([np.loadtxt(file) for file in files], -1)  # [step, generator, worker]
        assert len(files) == 2 and (draws[..., 0] != draws[..., 1]).all()
        runs.append(np.sort(draws))  # the files come in any order
        for file in files:
            file.unlink()
    first, same, resumed = runs
    assert (first[:, :2] == same[:, :2]).all() and (first != resumed).all()


@script_table.every_script
def test_an_environment_that_seeds_torch_changes_nothing(script, tmp_path):
    """The run has generators of its own, so it is the same run, bit for bit."""

    class Seeding(toy_envs.Clock):
        def reset(self, seed=None, options=None):
            torch.manual_seed(0)
            np.random.seed(0)
            return super().reset(seed, options)

        def step(self, action):
            torch.manual_seed(1)
            return super().step(action)

    runs = []
    for toy in (toy_envs.Clock, Seeding):
        with patched() as patch:
            in_process.put_in_place_of_games(script, lambda images, index, toy=toy: toy(images), patch.setattr)
            options = "--num-envs 4 --num-steps 16 --total-timesteps 192 --num-minibatches 2 --update-epochs 2"
            runs.append(train(script, options, tmp_path / toy.__name__))
    assert without_speed(runs[0]) == without_speed(runs[1])
    assert same_weights(checkpoint(runs[0]), checkpoint(runs[1]))


# Rewards


class Paying(toy_envs.Endless):
    """Pays the same reward in each step."""

    def __init__(self, reward):
        super().__init__()
        self.reward = reward

    def step(self, action):
        return self.ask(), self.reward, False, False, {}


def rewarded(reward, steps):
    """The return of an episode of ppo.py, and the types of its rewards, from an environment that pays `reward`."""
    episodes = ppo.Episodes(Paying(reward))
    episodes.reset()
    given = {type(episodes.step(0)[1]) for _ in range(steps)}
    return episodes.episode_return, given


@pytest.mark.parametrize("reward", [np.float16(1), np.ones(1, np.float16), np.ones((1, 1), np.int8), True, 1], ids=repr)
def test_a_return_is_summed_exactly(reward):
    """Of 3,000 steps; the largest float16 that 1 can be added to is 2,048."""
    assert rewarded(reward, 3000) == (3000, {float})


# Frames and videos


def test_a_video_of_an_endless_environment(tmp_path):
    """It ends after 1,000 frames, and is then written; a run goes on."""
    args = ppo.Args(env_id="toy_envs:Endless-v0", num_envs=1, capture_video=True)
    envs = ppo.make_envs(args, tmp_path)
    envs.reset(seed=1)
    for _ in range(999):
        envs.step(np.zeros(1, int))
    assert not list(tmp_path.glob("videos-*/*.mp4"))
    for _ in range(2):
        envs.step(np.zeros(1, int))
    [film] = tmp_path.glob("videos-*/*.mp4")
    assert b"ftyp" in film.read_bytes()[:32]
    envs.close()


def test_nothing_is_recorded_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    envs = ppo.make_envs(ppo.Args(env_id="toy_envs:Endless-v0", capture_video=True))
    envs.reset(seed=1)
    envs.close()
    assert not list(tmp_path.iterdir())


# Lines at the start


@in_one_process_and_in_several
def test_warnings_of_gymnasium_are_seen(async_envs, tmp_path):
    """Also those in a worker, where the observation would be rounded without a word."""
    more = " --async-envs" if async_envs else ""
    command = [ppo.__file__, *f"{PPO.tiny} --env-id toy_envs:Rounded-v0{more}".split()]
    status, _, errors = finish(start(command, tmp_path))
    assert status == 0 and "not within the observation space" in errors


@pytest.mark.parametrize(
    "low, high, hinted",
    [
        (100, 200, True), (-200, -100, True), (-1000, 1000, True), (-0.01, 0.01, True), (0.5, 2, True),
        (5, np.inf, True), (-np.inf, -3, True),
        (-1, 1, False), (-2, 2, False), (0, 1, False), (-10, 10, False), (-np.inf, np.inf, False), (-3, np.inf, False),
    ],
)  # fmt: skip
def test_bounds_that_actions_would_not_reach(low, high, hinted, capsys):
    """A line says so, of the whole space or of one of its numbers."""
    for lows, highs in ((low, high), ([-1, low], [1, high])):
        space = gym.spaces.Box(np.float32(np.broadcast_to(lows, 2)), np.float32(np.broadcast_to(highs, 2)))
        ppo_continuous_action.hint_at_bounds(space)
        said = capsys.readouterr().out
        assert said.count("hint: ") == said.count("\n") == (1 if hinted else 0)


@in_one_process_and_in_several
def test_the_hint_is_said_once(async_envs, capfd):
    args = ppo_continuous_action.Args(env_id="toy_envs:BorrowedFar-v0", num_envs=2, async_envs=async_envs)
    ppo_continuous_action.make_envs(args).close()
    assert capfd.readouterr().out.count("hint: ") == 1


@pytest.mark.parametrize(
    "observations, actions",
    [
        ((2, 4), gym.spaces.MultiDiscrete([3, 4])),
        ((2, 4), gym.spaces.MultiDiscrete([3, 3], start=[1, 1])),
        ((2, 4), gym.spaces.MultiDiscrete([3, 3, 3])),
        ((2, 4), gym.spaces.Discrete(3)),
        ((3, 4), gym.spaces.MultiDiscrete([3, 3])),
        ((), gym.spaces.MultiDiscrete([3, 3])),
    ],
)
def test_what_is_no_game_of_two_players(observations, actions, tmp_path):
    """It would train on halves of observations that mean nothing."""
    env = toy_envs.Endless()
    env.observation_space = gym.spaces.Box(-1, 1, observations)
    env.action_space = actions
    with patched((gym, "make", lambda *_, **__: env)):
        with pytest.raises(SystemExit, match="^error: .* a game of two has the actions"):
            train(SELFPLAY, SELFPLAY.tiny, tmp_path)


# Masks


MASK_OF_FIVE = [0, 1, 1, 1, 0]


class Dials(toy_envs.Toy):
    """Its mask comes in the infos or, with method=True, from a method."""

    action_space = gym.spaces.MultiDiscrete([3, 2])

    def __init__(self, mask, method=False):
        super().__init__(None)
        self.info = {}
        if method:
            self.action_mask = lambda: mask
        elif mask is not None:
            self.info = {"action_mask": mask}
        if mask is None:
            self.action_mask = None

    def reset(self, seed=None, options=None):
        return self.show(0, 0, 0, 0), self.info


@pytest.mark.parametrize(
    "mask",
    [
        np.array(MASK_OF_FIVE), MASK_OF_FIVE, tuple(MASK_OF_FIVE), np.array(MASK_OF_FIVE, bool),
        np.array(MASK_OF_FIVE, np.float64), [bool(each) for each in MASK_OF_FIVE],
        [np.array(MASK_OF_FIVE[:3]), np.array(MASK_OF_FIVE[3:])], (MASK_OF_FIVE[:3], MASK_OF_FIVE[3:]),
    ],
    ids=["array", "list", "tuple", "bools", "floats", "list of bools", "array of each component", "lists"],
)  # fmt: skip
@pytest.mark.parametrize("method", [False, True], ids=["info", "method"])
def test_forms_of_a_mask(mask, method):
    _, info = ppo_multidiscrete_mask.Episodes(Dials(mask, method)).reset()
    assert info["action_mask"].dtype == bool and info["action_mask"].tolist() == [False, True, True, True, False]


# Errors


@in_one_process_and_in_several
def test_an_error_of_an_environment_ends_the_run(async_envs, tmp_path):
    """No process stays behind. Masks are missing."""
    more = " --async-envs" if async_envs else ""
    command = [MASK.module.__file__, *f"{MASK.tiny} --env-id toy_envs:NoMask-v0{more}".split()]
    status, _, errors = finish(start(command, tmp_path))
    assert status == 1 and "action_mask" in errors


# Processes


@script_table.slow
def test_an_environment_may_compute_with_torch_s_threads(tmp_path):
    """In workers, too, beside a run that uses several threads itself."""
    options = f"{PPO.tiny} --env-id toy_envs:Threads-v0 --async-envs --threads 2"
    status, _, errors = finish(start([ppo.__file__, *options.split()], tmp_path))
    assert status == 0, errors
