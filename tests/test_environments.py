"""What environments may do and give: arrays that they use again, seeds, frames, masks, rewards, and own processes."""

import multiprocessing
import sys
import time

import gymnasium as gym
import in_process
import numpy as np
import pytest
import script_table
import torch
import toy_envs
from in_process import patched, train, watched
from processes import PATIENCE, finish, start
from run_files import checkpoint, newest_run, same_weights, without_speed
from script_table import CONTINUOUS, MASK, MULTIDISCRETE, PPO, SEEDS, SELFPLAY, SHARED
from test_cli import train_on

import ppo
import ppo_continuous_action
import ppo_multidiscrete_mask

# Arrays that the environment and the script share


@pytest.mark.parametrize("vector", ["sync", "async"])
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
def test_what_an_environment_overwrites_is_kept(script, env_id, vector, tmp_path):
    """Actions, observations, masks and rewards of a batch are those of their steps."""
    options = f"--env-id {env_id} --num-envs 4 --num-steps 12 --total-timesteps 144 --num-minibatches 1"
    options += " --update-epochs 1 --gamma 1 --gae-lambda 0" + (" --async-envs" if vector == "async" else "")
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
        steps = np.arange(12 * number + 1, 12 * number + 13)[:, None] / 2
        assert (np.abs(rewards) == np.broadcast_to(steps, rewards.shape)).all()


@pytest.mark.parametrize("async_envs", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    "script, env_id, actions",
    [
        (PPO, "BorrowedDiscrete-v0", np.ones(2, int)),
        (CONTINUOUS, "BorrowedBox-v0", np.ones((2, 2), np.float32)),
        (SELFPLAY, "BorrowedPlayers-v0", np.ones(2, int)),
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


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
@pytest.mark.parametrize("script", [PPO, SHARED, SEEDS], ids=lambda script: script.name)
def test_processes_know_the_environments_that_a_script_registers(script):
    """Also from Python 3.14 on, where a new process inherits nothing unless it is told to."""
    usual = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    try:
        args = script.module.Args(env_id="BorrowedDiscrete-v0", num_envs=2, async_envs=True)
        envs = script.module.make_envs(args)
    finally:
        multiprocessing.set_start_method(usual, force=True)
    envs.reset(seed=1)
    envs.close()


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


@pytest.mark.parametrize("reward", [np.ones(2), [], [1.0, 2.0], None, "1.0", {"speed": 1.0}, 1j], ids=repr)
def test_a_reward_must_be_one_number(reward):
    with pytest.raises(gym.error.Error, match="^the reward of an environment must be one number, and is "):
        rewarded(reward, 1)


# Frames and videos


@pytest.mark.parametrize(
    "frame, expected",
    [
        (toy_envs.gray(4, 6), np.stack([toy_envs.gray(4, 6)] * 3, axis=-1)),
        (toy_envs.gray(4, 6)[..., None], np.stack([toy_envs.gray(4, 6)] * 3, axis=-1)),
        (np.dstack([toy_envs.gray(4, 6)] * 4), np.stack([toy_envs.gray(4, 6)] * 3, axis=-1)),
        (np.full((4, 6, 3), 0.5), np.full((4, 6, 3), 127, np.uint8)),
        (np.full((4, 6, 3), 99.9), np.full((4, 6, 3), 99, np.uint8)),
        (np.full((4, 6, 3), 300), np.full((4, 6, 3), 255, np.uint8)),
        ([np.zeros((4, 6)), toy_envs.gray(4, 6)], np.stack([toy_envs.gray(4, 6)] * 3, axis=-1)),
        (np.ones((4, 6), bool), np.full((4, 6, 3), 255, np.uint8)),
    ],
    ids=["gray", "one channel", "alpha", "up to 1", "floats", "integers", "list", "bools"],
)
def test_frames_become_rgb(frame, expected):
    env = toy_envs.Endless(render_mode="rgb_array")
    env.render = lambda: frame
    shown = ppo.RGBFrames(env).render()
    assert shown.dtype == np.uint8
    np.testing.assert_array_equal(shown, expected)


@pytest.mark.parametrize(
    "frame",
    [
        None,
        "text",
        [1, 2, 3],
        [],
        np.zeros((3, 4, 6)),
        np.zeros((1, 4, 6, 3)),
        np.zeros((4, 6, 2)),
        np.zeros((0, 0, 3)),
    ],
    ids=lambda frame: str(np.shape(frame)),
)
def test_what_is_no_frame(frame):
    """A line says so."""
    env = toy_envs.Endless(render_mode="rgb_array")
    env.render = lambda: frame
    with pytest.raises(gym.error.Error, match=r"^the environment's render\(\) must return an image, .* and returns "):
        ppo.RGBFrames(env).render()


def test_a_video_of_an_endless_environment_of_gray_frames(tmp_path):
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


@pytest.mark.parametrize("more", ["", " --async-envs"], ids=["sync", "async"])
def test_statistics_that_no_checkpoint_holds_are_said_once(more, tmp_path, capfd):
    train(PPO, f"{PPO.tiny} --env-id toy_envs:Normalized-v0{more}", tmp_path)
    said = capfd.readouterr().out
    assert said.count("warning: NormalizeObservation in Normalized-v0 ") == 1 and "docs/environment.md" in said
    train(PPO, f"{PPO.tiny}{more}", tmp_path)
    assert "warning" not in capfd.readouterr().out


def test_statistics_of_a_wrapper_in_an_edited_script(tmp_path, capfd):
    """The line is printed as well where the script itself adds the wrapper."""

    class Episodes(ppo.Episodes):
        def __init__(self, env):
            super().__init__(gym.wrappers.NormalizeObservation(env))

    with patched((ppo, "Episodes", Episodes)):
        train(PPO, PPO.tiny, tmp_path)
    assert capfd.readouterr().out.count("warning: NormalizeObservation in CartPole-v1 ") == 1


@pytest.mark.parametrize("more", ["", " --async-envs"], ids=["sync", "async"])
def test_warnings_of_gymnasium_are_seen(more, tmp_path):
    """Also those in a worker, where the observation would be rounded without a word."""
    command = [ppo.__file__, *f"{PPO.tiny} --env-id toy_envs:Rounded-v0{more}".split()]
    status, _, errors = finish(start(command, tmp_path))
    assert status == 0 and "not within the observation space" in errors


@pytest.mark.parametrize(
    "low, high, hinted",
    [
        (100, 200, True), (-200, -100, True), (-1000, 1000, True), (-0.01, 0.01, True), (0.5, 2, True),
        (-1, 1, False), (-2, 2, False), (0, 1, False), (-10, 10, False), (-np.inf, np.inf, False),
    ],
)  # fmt: skip
def test_bounds_that_actions_would_not_reach(low, high, hinted, capsys):
    """A line says so, of the whole space or of one of its numbers."""
    for lows, highs in ((low, high), ([-1, low], [1, high])):
        space = gym.spaces.Box(np.float32(np.broadcast_to(lows, 2)), np.float32(np.broadcast_to(highs, 2)))
        ppo_continuous_action.hint_at_bounds(space)
        said = capsys.readouterr().out
        assert said.count("hint: ") == said.count("\n") == (1 if hinted else 0)


@pytest.mark.parametrize("async_envs", [False, True], ids=["sync", "async"])
def test_the_hint_is_said_once(async_envs, capfd):
    args = ppo_continuous_action.Args(env_id="BorrowedFar-v0", num_envs=2, async_envs=async_envs)
    ppo_continuous_action.make_envs(args).close()
    assert capfd.readouterr().out.count("hint: ") == 1


@pytest.mark.parametrize(
    "observations, actions, reason",
    [
        ((2, 4), gym.spaces.MultiDiscrete([3, 4]), "are not the same for both players"),
        ((2, 4), gym.spaces.MultiDiscrete([3, 3], start=[1, 1]), "do not start at 0"),
        ((2, 4), gym.spaces.MultiDiscrete([3, 3, 3]), r"are not MultiDiscrete\(\[A, A\]\)"),
        ((2, 4), gym.spaces.Tuple([gym.spaces.Discrete(3)] * 2), r"are not MultiDiscrete\(\[A, A\]\)"),
        ((3, 4), gym.spaces.MultiDiscrete([3, 3]), r"are not a Box or MultiBinary of shape \[2, ...\]"),
        ((), gym.spaces.MultiDiscrete([3, 3]), r"are not a Box or MultiBinary of shape \[2, ...\]"),
    ],
)
def test_what_is_no_game_of_two_players(observations, actions, reason, tmp_path):
    """A line with the cause."""
    env = toy_envs.Endless()
    env.observation_space = gym.spaces.Box(-1, 1, observations)
    env.action_space = actions
    with patched((gym, "make", lambda *_, **__: env)):
        with pytest.raises(SystemExit, match=f"^error: .* is not a two-player game: its .*{reason}"):
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


def test_a_mask_that_is_an_attribute():
    env = Dials(None)
    env.action_mask = np.array(MASK_OF_FIVE)
    _, info = ppo_multidiscrete_mask.Episodes(env).reset()
    assert info["action_mask"].tolist() == [False, True, True, True, False]


@pytest.mark.parametrize(
    "mask", [[0, 1, 1, 1], [0, 1, 1, 1, 2], [[0, 1, 1], [1]], [0.5, 1, 1, 1, 1], 1, "11111", {"left": 1}], ids=repr
)
def test_a_mask_of_another_size_or_of_other_numbers(mask):
    with pytest.raises(gym.error.Error, match="^action_mask must be 5 zeros and ones, for MultiDiscrete"):
        ppo_multidiscrete_mask.Episodes(Dials(mask)).reset()


def test_an_environment_without_a_mask(tmp_path):
    """The line says what is needed."""
    with pytest.raises(
        SystemExit, match="^error: every info must have the key action_mask, or the environment a method"
    ):
        train_on(MASK, gym.spaces.Box(-1, 1, (4,)), gym.spaces.MultiDiscrete([3, 2]), tmp_path)


# Errors


@pytest.mark.parametrize("more", ["", " --async-envs"], ids=["sync", "async"])
@pytest.mark.parametrize(
    "script, env_id, line",
    [
        (PPO, "toy_envs:PairOfRewards-v0", "the reward of an environment must be one number, and is "),
        (MASK, "toy_envs:NoMask-v0", "every info must have the key action_mask, or the environment a method "),
        (PPO, "toy_envs:AnotherSize-v0", "the size of an observation is 1, and that of its space 4; "),
    ],
)
def test_a_known_mistake_is_one_line(script, env_id, line, more, tmp_path, capfd):
    """In a worker, too, and not one for each of them."""
    with pytest.raises(SystemExit, match=f"^error: {line}[^\n]*$"):
        train(script, f"{script.tiny} --env-id {env_id}{more}", tmp_path)
    errors = capfd.readouterr().err
    assert "Traceback" not in errors and "ERROR" not in errors


@pytest.mark.parametrize("more", ["", " --async-envs"], ids=["sync", "async"])
def test_an_error_of_the_environment_s_own_keeps_its_traceback(more, tmp_path):
    """The reason comes last, also where the error cannot be sent to another process."""
    command = [ppo.__file__, *f"{PPO.tiny} --env-id toy_envs:Broken-v0{more}".split()]
    status, _, errors = finish(start(command, tmp_path))
    assert status == 1
    assert errors.count("Traceback") == 1 and 'raise Unsendable(f"{action % 1}")' in errors
    assert "Unsendable: 0" in errors.splitlines()[-1]


@pytest.fixture
def settings_of_torch():
    """Puts torch's settings back after a test."""
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)
    torch.set_grad_enabled(True)


@pytest.mark.parametrize("script", [PPO, SEEDS], ids=["ppo", "ppo_seeds"])
@pytest.mark.parametrize(
    "change, line",
    [
        ("Float64-init", "default dtype to torch.float64"),
        ("Float64-reset", "default dtype to torch.float64"),
        ("Float64-step", "default dtype to torch.float64"),
        ("Gradients-init", "gradient mode to False"),
        ("Gradients-reset", "gradient mode to False"),
    ],
)
def test_an_environment_that_changes_torch(script, change, line, settings_of_torch, tmp_path):
    """A line says so, and no agent is trained in another way."""
    with pytest.raises(SystemExit, match=f"^error: an environment has changed torch's {line}"):
        train(script, f"{script.tiny} --env-id toy_envs:{change}-v0", tmp_path)


@pytest.mark.parametrize("change", ["Float64-reset", "Float64-step", "Gradients-step"])
def test_an_environment_that_may_change_torch(change, settings_of_torch, tmp_path):
    """In a process of its own; and gradients in a step, which a rollout does not need."""
    more = "" if change == "Gradients-step" else " --async-envs"
    run = train(PPO, f"{PPO.tiny} --env-id toy_envs:{change}-v0{more}", tmp_path)
    assert checkpoint(run)["global_step"] == 512


# Processes


def is_running(pid):
    """Whether there is such a process, which has not ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_environment_may_compute_with_torch_s_threads(tmp_path):
    """Threads of torch in a process that is forked would let its workers wait for ever."""
    options = f"{PPO.tiny} --env-id toy_envs:Threads-v0 --async-envs --threads 2"
    status, _, errors = finish(start([ppo.__file__, *options.split()], tmp_path))
    assert status == 0, errors


def test_an_environment_may_start_a_process(tmp_path):
    """Also in a worker of --async-envs; those of the workers end with them."""
    options = f"{PPO.tiny} --env-id toy_envs:Worker-v0 --async-envs"
    status, _, errors = finish(start([ppo.__file__, *options.split()], tmp_path))
    assert status == 0, errors
    assert checkpoint(newest_run(tmp_path))["global_step"] == 512
    pids = [int(line) for line in (tmp_path / "processes").read_text().split()]
    assert len(pids) >= 2
    end = time.monotonic() + PATIENCE
    while any(map(is_running, pids)):  # they have been told to end
        assert time.monotonic() < end
        time.sleep(0.05)
