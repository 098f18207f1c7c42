"""enjoy.py: rebuilds a run's environment and agent, and plays whole games."""

import os
import pickle
import re
import signal
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import cv2
import gymnasium as gym
import in_process
import numpy as np
import processes
import pygame
import pytest
import script_table
import torch
import toy_envs
from in_process import train
from processes import start
from rounding import ROUNDING
from run_files import checkpoint
from script_table import CONTINUOUS, ENVPOOL, LSTM, MASK, PPO, PROCGEN, ROOT
from toy_envs import Clock, Target

import enjoy
import saved

gym.register("EnjoyClock-v0", lambda **kwargs: Clock(images=False), disable_env_checker=True)
gym.register("EnjoyTarget-v0", lambda **kwargs: Target(images=False), disable_env_checker=True)
gym.register("EnjoyOwn-v0", lambda **kwargs: OwnNames(images=False), disable_env_checker=True)
gym.register("EnjoyEndless-v0", lambda **kwargs: Endless(images=False), disable_env_checker=True)
gym.register("EnjoyGoal-v0", lambda **kwargs: Goal(images=False), disable_env_checker=True)
gym.register("EnjoyScreen-v0", lambda **kwargs: Screen(**kwargs), disable_env_checker=True)
CLOCK = "--env-id EnjoyClock-v0 --total-timesteps 96 --num-envs 2 --num-steps 16"
FEW = "--total-timesteps 64 --num-envs 2 --num-steps 16 --num-minibatches 2 --update-epochs 1"
TARGET = "--env-id EnjoyTarget-v0 --total-timesteps 512 --num-envs 2 --num-steps 32 --num-minibatches 4"


class OwnNames(Clock):
    """A game of 8 steps with attributes that wrappers and vectors of gymnasium have, too, or a script's Normalize."""

    def __init__(self, images):
        super().__init__(images)
        self.env = np.zeros((5, 5))
        self.envs = [{"gravity": 9.8}]
        self.frozen = False
        self.obs_stats = {"count": 0}
        self.episode_trigger = lambda step: step == 4

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        assert isinstance(self.env, np.ndarray) and self.envs == [{"gravity": 9.8}] and not self.frozen
        return obs, reward, self.episode_trigger(self.steps), truncated, info


class Endless(Clock):
    """No episode ever ends."""

    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, False, info


class Goal(Clock):
    """Every second game is a success."""

    games = 0

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        Goal.games += terminated
        return obs, reward, terminated, truncated, {"is_success": Goal.games % 2 == 0} if terminated else info


class Screen(Clock):
    """Draws a red bar that grows with the steps, in the form that `kind` names."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": None}
    kind = "rgb"

    def __init__(self, render_mode=None):
        super().__init__(images=False)
        self.render_mode = render_mode

    def render(self):
        image = np.zeros((64, 96, 3), np.uint8)
        image[:, : 10 * self.steps, 0] = 255
        forms = {
            "rgb": image, "rgba": np.dstack([image, image[..., :1]]), "gray": image[..., 0], "list": [image],
            "float": image / 255, "int64": image.astype(np.int64), "none": None, "vector": image[0, 0],
            "size": image[: 64 - 2 * self.steps],
        }  # fmt: skip
        return forms[self.kind]


def play(run, capsys, words=(), **options):
    """The games [(return, length), ...] that enjoy.py prints, and its other lines."""
    capsys.readouterr()
    enjoy.enjoy(enjoy.Args(run, **options), words)
    lines = capsys.readouterr().out.splitlines()
    games = [re.match(r"game \d+: return (\S+), length (\d+)", line) for line in lines]
    games = [(float(game[1]), int(game[2])) for game in games if game is not None]
    return games, [line for line in lines if not line.startswith("game ")]


def error(run, words=(), **options):
    """The line with which enjoy.py ends."""
    with pytest.raises(SystemExit, match=r"^error: [^\n]+$") as end:
        enjoy.enjoy(enjoy.Args(run, **options), words)
    return end.value.code


def frames(film):
    return int(cv2.VideoCapture(str(film)).get(cv2.CAP_PROP_FRAME_COUNT))


def rebuilt(run, greedy=True):
    """(envs, player) of a run."""
    loaded = enjoy.load(run)
    envs = enjoy.make_envs(loaded)
    return envs, enjoy.Player(loaded, envs, greedy)


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    """A run of ppo.py, with two checkpoints."""
    return train(PPO, f"{FEW} --total-timesteps 512 --save-every 10", tmp_path_factory.mktemp("run"))


@script_table.every_script_with_its_games
def test_whole_games_of_every_script(script, tmp_path, capsys):
    """Films of EnvPool's games show what the agent sees."""
    run = train(script, FEW if script.images else script.tiny, tmp_path)
    before, film = set(run.iterdir()), script in (ENVPOOL, PROCGEN)
    games, lines = play(run, capsys, episodes=1 if script.images else 2, video=film)
    assert str(max(run.glob("checkpoint*"))) in lines[0] and checkpoint(run)["args"]["env_id"] in lines[0]
    assert all(length > (100 if "Breakout" in lines[0] else 1) for _, length in games)  # a game has five lives
    scores = [score for score, _ in games]
    assert lines[2].startswith(f"{len(games)} games: mean {np.mean(scores):.4g}, std {np.std(scores):.4g}, min ")
    films = [frames(path) for folder in set(run.iterdir()) - before for path in folder.iterdir()]
    assert films == pytest.approx([games[0][1]] if film else [], abs=2)


SCORES = {"BreakoutNoFrameskip": 30, "CartPole": 450, "HalfCheetah": 1000, "LunarLander": 200, "MicrortsMining": 15}


AGENTS = [
    pytest.param(file, id=file.stem, marks=[pytest.mark.slow] * ("NoFrameskip" in file.stem))  # its games are long
    for file in sorted((ROOT / "agents").glob("*.pt"))
]


@pytest.mark.parametrize("file", AGENTS)
def test_agents_of_the_repository(file):
    if "LunarLander" in file.stem:
        pytest.importorskip("Box2D")  # has no wheel for Python 3.14
    assert max(enjoy.enjoy(enjoy.Args(file, episodes=2))) > SCORES[file.stem.split("-v")[0]]


def test_the_seed_decides_and_each_game_has_its_own(cartpole, tmp_path, capsys):
    """Game 2 of one seed is game 1 of the next; the seeds are not those of training."""
    games = [play(cartpole, capsys, episodes=5, seed=seed)[0] for seed in (1, 1, 2)]
    assert games[0] == games[1] and games[0][1:] == games[2][:-1] and len(set(games[0])) > 1
    with in_process.watched(Clock, "reset", lambda env, seed=None, options=None: seed) as seeds:
        run = train(PPO, f"{CLOCK} --seed 1", tmp_path)
        trained = len(seeds)
        play(run, capsys, episodes=3, seed=1)
    assert {*seeds[:trained]} == {1, 2, None}
    assert [seed for seed in seeds[trained:] if seed is not None] == [enjoy.FIRST_SEED + i for i in (1, 2, 3)]


def test_an_environment_that_seeds_torch_does_not_choose_the_actions(tmp_path, capsys, monkeypatch):
    """The samples come from a generator of the player's own."""
    run = train(PPO, CLOCK, tmp_path)
    before = play(run, capsys, episodes=4)[0]

    def show_and_seed(env, *numbers):
        torch.manual_seed(0)
        return np.float32(numbers)

    monkeypatch.setattr(Clock, "show", show_and_seed)
    assert play(run, capsys, episodes=4)[0] == before and len(set(before)) > 1


def test_returns_are_raw_and_statistics_frozen(tmp_path):
    run = train(CONTINUOUS, TARGET, tmp_path)
    envs, player = rebuilt(run)
    statistics = envs.state_dict()
    with in_process.watched(Target, "step", lambda env, action: 1 - abs(action - env.answer)) as rewards:
        games = [enjoy.play_game(envs, player, number, enjoy.Args(run)) for number in range(3)]
    assert [game.length for game in games] == [16] * 3
    assert [game.score for game in games] == pytest.approx([sum(rewards[i : i + 16]).item() for i in (0, 16, 32)])
    assert envs.state_dict() == statistics == checkpoint(run)["parts"]["envs"] and envs.return_stats.count > 500


def test_statistics_of_a_wrapper_with_another_name():
    envs = SimpleNamespace(frozen=False, load_state_dict=lambda state: None)
    enjoy.restore_statistics(envs, saved.Saved(None, {"parts": {"envs": {}}}, None, None))
    assert envs.frozen


def test_the_recurrent_state_is_carried_from_step_to_step():
    """Steps one by one equal the sequence, with episodes that begin at the third and the sixth step."""
    spaces = toy_envs.spaces(gym.spaces.Box(0, 255, (84, 84, 1), np.uint8), gym.spaces.Discrete(4))
    agent = LSTM.module.Agent(spaces).requires_grad_(False)
    obs, dones = torch.randint(256, (8, 84, 84, 1), dtype=torch.uint8), torch.tensor([0, 0, 1, 0, 0, 1, 0, 0]).bool()
    loaded = saved.Saved(None, {"parts": {"agent": agent.state_dict()}}, LSTM.module, LSTM.module.Args())
    player = enjoy.Player(loaded, spaces)
    player.start_game(seed=0, batch_size=1)
    for t in range(8):
        player.act(obs[t, None].numpy(), dones[t, None].numpy(), {})
    _, _, state = agent(obs, (torch.zeros(1, 1, 128),) * 2, dones)
    torch.testing.assert_close(player.state, state, rtol=ROUNDING, atol=ROUNDING)


def test_masks(tmp_path, capsys, monkeypatch):
    """Only valid actions are taken, here a single one of each choice."""
    run = train(MASK, MASK.tiny, tmp_path)
    monkeypatch.setattr(toy_envs.Choices, "action_mask", lambda env: np.array([0, 1, 0, 1, 0]))
    with in_process.watched(toy_envs.Choices, "step", lambda env, action: action.tolist()) as taken:
        play(run, capsys, episodes=2)
        play(run, capsys, episodes=2, greedy=True)
    assert taken == [[1, 0]] * 64


def test_an_edited_copy_is_rebuilt_by_the_source_in_its_folder(tmp_path, capsys, monkeypatch):
    """Here with other layers, options for the agent, a third output, and AutoresetMode.NEXT_STEP.

    With it an ended episode stands in the infos themselves."""
    text = (ROOT / "ppo.py").read_text()
    init = "def __init__(self, envs):\n        super().__init__()\n        (inputs,)"
    edits = {
        "self.policy_trunk": "self.actor",
        "(64, ": "(24, ",
        ", 64)": ", 24)",
        "SAME_STEP": "NEXT_STEP",
        init: init.replace("envs)", "envs, args)"),
        "Agent(envs)": "Agent(envs, args)",
        "return self.get_policy(obs), values": "return self.get_policy(obs), values, values",
    }
    for old, new in edits.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "my_edit.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # an environment variable may set it
    run = train(PPO._replace(name="my_edit"), CLOCK, tmp_path / "train")
    assert len(play(run, capsys, episodes=3)[0]) == 3 and not (run / "__pycache__").exists()
    (run / "my_edit.py").unlink()
    assert "made by my_edit.py, which is neither" in error(run)


def test_scripts_of_one_name_do_not_mix(tmp_path):
    """Each is a module of its own, in which classes find their source."""
    runs = [train(PPO, CLOCK, tmp_path / name) for name in ("one", "two")]
    (runs[1] / "ppo.py").write_text((ROOT / "ppo.py").read_text().replace("seed of torch;", "another text;"))
    scripts = [enjoy.load(run).script for run in runs]
    assert [sys.modules[script.Args.__module__] for script in scripts] == scripts and scripts[0] != scripts[1]


def test_the_newest_script_that_began_before_the_checkpoint(tmp_path, capsys):
    run = train(PPO, CLOCK, tmp_path)
    assert train(PPO, f"--resume {run} --total-timesteps 192", tmp_path) == run
    (run / "ppo.py").write_text("1 / 0")
    (run / "ppo_000000000500.py").write_text("1 / 0")
    games, _ = play(run, capsys, episodes=3)
    (tmp_path / "model.pt").write_bytes(max(run.glob("checkpoint*")).read_bytes())
    assert play(tmp_path / "model.pt", capsys, episodes=3)[0] == games  # by the script beside enjoy.py


def test_an_environment_of_a_module(tmp_path, capsys, monkeypatch):
    """A run's folder has a script, which runs anyway; a checkpoint alone imports nothing that is not named."""
    run = train(PPO, CLOCK.replace("Enjoy", "toy_envs:Enjoy"), tmp_path)
    assert len(play(run, capsys, episodes=1)[0]) == 1
    (tmp_path / "model.pt").write_bytes(max(run.glob("checkpoint*")).read_bytes())
    assert "if you trust toy_envs:EnjoyClock-v0, add --env-id toy_envs:EnjoyClock-v0" in error(tmp_path / "model.pt")
    assert len(play(tmp_path / "model.pt", capsys, ["--env-id", "toy_envs:EnjoyClock-v0"], episodes=1)[0]) == 1
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/ppo.py").symlink_to(ROOT / "ppo.py")
    monkeypatch.setattr(saved, "__file__", str(tmp_path / "linked/saved.py"))  # the script beside it is no run's either
    assert "if you trust toy_envs:EnjoyClock-v0" in error(tmp_path / "model.pt")


def test_bad_checkpoints(cartpole, tmp_path, capsys):
    """The newest one is played or named as damaged, and code in a file never runs."""
    (older, newer), folder, trap = sorted(cartpole.glob("checkpoint*")), tmp_path / "run", tmp_path / "trap"
    folder.mkdir()
    assert "has a checkpoint_<step>.pt" in error(folder)
    for path in (older, newer):
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "checkpoint_best.pt").write_bytes(b"")  # not a checkpoint by its name
    assert str(folder / newer.name) in play(folder, capsys, episodes=1)[1][0]
    whole = newer.read_bytes()
    weight = whole.index(checkpoint(cartpole)["parts"]["agent"]["policy.weight"].numpy().tobytes())
    flipped = whole[:weight] + bytes([whole[weight] ^ 1]) + whole[weight + 1 :]
    half = len(whole) // 2
    encrypted = bytearray(whole)
    first_entry = encrypted.index(b"PK\x01\x02")  # of the zip archive's directory
    encrypted[first_entry + 8] |= 1  # its flag that says so
    code = type("Code", (), {"__reduce__": lambda self: (os.mkdir, (str(trap),))})()  # unpickling it makes a folder
    torch.save(checkpoint(cartpole) | {"code": code}, tmp_path / "evil.pt")
    for bad in (whole[:half], b"", flipped, encrypted, b"x" + whole, pickle.dumps(code)):
        (folder / newer.name).write_bytes(bad)
        assert f"{newer.name} is damaged" in error(folder)
    (folder / newer.name).write_bytes(older.read_bytes())  # whole, but another agent
    assert f"{newer.name} holds the agent of step {checkpoint(cartpole, -2)['global_step']}" in error(folder)
    (folder / newer.name).write_bytes((tmp_path / "evil.pt").read_bytes())
    with pytest.raises(pickle.UnpicklingError):
        enjoy.enjoy(enjoy.Args(folder))
    assert not trap.exists()


# what is done to a checkpoint that otherwise would play
ODD = {
    "another script": lambda state: state.update(script="other.py"),
    "no agent": lambda state: state["parts"].pop("agent"),
    "a weight too few": lambda state: state["parts"]["agent"].pop("policy.bias"),
    "a weight too many": lambda state: state["parts"]["agent"].update(bias=torch.zeros(1)),
    "a weight of another shape": lambda state: state["parts"]["agent"].update({"policy.bias": torch.zeros(1)}),
    "statistics": lambda state: state["parts"].update(envs={}),
    "other actions": lambda state: state.update(script="ppo_continuous_action.py"),
}


@pytest.mark.parametrize("change", ODD.values(), ids=ODD)
def test_another_agent_is_not_played(change, cartpole, tmp_path):
    state = checkpoint(cartpole)
    change(state)
    torch.save(state, tmp_path / "odd.pt")
    with pytest.raises((SystemExit, KeyError, RuntimeError)):
        enjoy.enjoy(enjoy.Args(tmp_path / "odd.pt", episodes=1))


def test_statistics_that_are_missing(tmp_path):
    """Without them the agent would play on other observations than in training, in silence."""
    run = train(CONTINUOUS, TARGET, tmp_path)
    state = checkpoint(run)
    del state["parts"]["envs"]
    torch.save(state, tmp_path / "odd.pt")
    with pytest.raises(KeyError, match="envs"):
        enjoy.enjoy(enjoy.Args(tmp_path / "odd.pt", episodes=1))


def test_statistics_of_a_wrapper_inside_another(tmp_path, monkeypatch):
    """An edited copy may put wrappers around its Normalize."""
    text = (ROOT / "ppo_continuous_action.py").read_text()
    edits = {
        "return Normalize(envs, args.gamma)": "return gym.vector.VectorWrapper(Normalize(envs, args.gamma))",
        "optimizer=optimizer, envs=envs": "optimizer=optimizer, envs=envs.env",
    }
    for old, new in edits.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "my_wrapped.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    run = train(CONTINUOUS._replace(name="my_wrapped"), TARGET, tmp_path / "train")
    loaded = enjoy.load(run)
    normalize = enjoy.find_normalize(loaded.script, enjoy.make_envs(loaded))
    assert normalize.frozen and normalize.state_dict() == checkpoint(run)["parts"]["envs"]


def test_statistics_of_a_wrapper_of_another_name():
    """A recording would have observations that are normalized already, and an exported file would lack them."""

    class Codes(gym.vector.VectorWrapper):
        def load_state_dict(self, state):
            pass

    envs = Codes(gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")]))
    with pytest.raises(SystemExit, match="^error: the statistics of Codes"):
        enjoy.find_normalize(script_table.PPO.module, envs)


def test_statistics_that_the_script_does_not_keep(cartpole, tmp_path):
    state = checkpoint(cartpole)
    state["parts"]["envs"] = {}
    torch.save(state, tmp_path / "odd.pt")
    assert "has statistics of environments" in error(tmp_path / "odd.pt")
    state["script"] = "ppo_selfplay.py"
    torch.save(state, tmp_path / "opponent.pt")
    player = SimpleNamespace(script=script_table.SELFPLAY.module)
    args = enjoy.Args(tmp_path, opponent=str(tmp_path / "opponent.pt"))
    with pytest.raises(SystemExit, match="has statistics of environments of its own"):
        enjoy.make_match(player, None, args)


def test_an_option_that_the_opponents_script_does_not_have(tmp_path, capsys, monkeypatch):
    """Options on the command line are those of the run that plays."""
    script = script_table.SELFPLAY
    text = (ROOT / "ppo_selfplay.py").read_text().replace("    seed: int = 1", "    extra: int = 3\n    seed: int = 1")
    (tmp_path / "my_selfplay.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    run = train(script._replace(name="my_selfplay"), f"{script.tiny} --extra 4", tmp_path / "mine")
    opponent = train(script, script.tiny, tmp_path / "other")
    games, _ = play(run, capsys, ["--extra", "5"], episodes=1, opponent=str(opponent))
    assert len(games) == 1


def test_agents_play_in_float32():
    """An edited copy may take the option out of `args`."""

    class Agent(torch.nn.Module):
        def __init__(self, envs, args):
            super().__init__()
            self.bf16 = args.bf16

    script = SimpleNamespace(Agent=Agent)
    loaded = saved.Saved(None, {"parts": {"agent": {}}}, script, script_table.ATARI.module.Args(bf16=True))
    assert not enjoy.Player(loaded, None).agent.bf16


def test_a_parameter_of_the_agent_that_is_no_option(capsys):
    """Training may have given it any value: its default is said."""
    options = SimpleNamespace(gamma=0.9)

    def usual(envs, gamma, size=64, **more): ...

    assert enjoy.agent_arguments(SimpleNamespace(Agent=usual), options) == {"gamma": 0.9}
    assert capsys.readouterr().out.startswith("warning: Agent has size=64, the default, as no option has this name")


def test_an_option_that_the_script_does_not_have(cartpole, tmp_path, capsys):
    """As of an edited copy, whose best.pt was moved out of its folder."""
    state = checkpoint(cartpole)
    state["args"]["eval_every"] = 50
    torch.save(state, tmp_path / "best.pt")
    games, lines = play(tmp_path / "best.pt", capsys, episodes=1)
    assert len(games) == 1 and lines[0] == "options of the checkpoint that ppo.py does not have: eval_every"


def test_greedy_takes_the_most_likely_action(tmp_path, capsys):
    """On Clock, where nothing is random, every greedy game is the same; samples differ."""
    run = train(PPO, CLOCK, tmp_path)
    shown = torch.tensor([[float(step), 0, 0, 0] for step in range(8)])
    likeliest = rebuilt(run)[1].agent(shown)[0].logits.argmax(-1)
    expected = sum(int(action) == step % 2 for step, action in enumerate(likeliest))
    assert play(run, capsys, episodes=6, greedy=True, seed=3)[0] == [(expected, 8)] * 6
    assert len(set(play(run, capsys, episodes=12)[0])) > 1


def test_greedy_games_that_score_less_than_training(tmp_path, capsys):
    """A line explains it, unless the options are others than in training."""
    run = train(PPO, CLOCK, tmp_path)
    file = max(run.glob("checkpoint*"))
    score = play(run, capsys, episodes=1, greedy=True)[0][0][0]
    cases = (([score, score + 4], False), ([score + 1, score + 4], False), ([score + 3, score + 4], True))
    for returns, explained in cases:  # the second would be explained if the number of games, 2, did not count
        torch.save(checkpoint(run) | {"returns": returns}, file)
        lines = play(run, capsys, episodes=2, greedy=True)[1]
        assert lines[-1].startswith("the greedy games scored lower") == explained
    assert lines[-1] != play(run, capsys, ["--seed", "3"], episodes=2, greedy=True)[1][-1]
    assert lines[-1] != play(run, capsys, episodes=2)[1][-1]


def test_a_folder_of_runs(tmp_path, capsys):
    """The run that saved last is played, here a resumed one, with its newest checkpoint."""
    one, two = (train(PPO, f"{CLOCK} --exp-name {name}", tmp_path) for name in ("one", "two"))
    assert str(max(two.glob("checkpoint*"))) in play(tmp_path / "runs", capsys, episodes=1)[1][0]
    train(PPO, f"--resume {one} --total-timesteps 192", tmp_path)
    assert str(max(one.glob("checkpoint*"))) in play(tmp_path / "runs", capsys, episodes=1)[1][0]


def test_the_evaluation_of_the_best_checkpoint(cartpole, tmp_path, capsys):
    state = checkpoint(cartpole)
    state["parts"]["best"] = {"mean": torch.tensor(123.25, dtype=torch.float64)}
    torch.save(state, tmp_path / "best.pt")
    assert play(tmp_path / "best.pt", capsys, episodes=1)[1][0].endswith(", in its evaluation 123.2")


def test_a_missing_library_is_named_with_its_extra(cartpole, monkeypatch):
    """Also where gymnasium has replaced the ImportError by its own, which names an extra of gymnasium."""
    monkeypatch.setattr(sys, "argv", ["enjoy.py", str(cartpole)])
    import_error = ModuleNotFoundError("No module named 'Box2D'", name="Box2D.b2")
    replaced = gym.error.DependencyNotInstalled("Box2D is not installed")
    replaced.__cause__ = import_error
    for missing in (import_error, replaced):
        monkeypatch.setattr(enjoy, "enjoy", Mock(side_effect=missing))
        with pytest.raises(SystemExit, match=r"^error: Box2D is not installed.* \"\.\[box2d\]\"$"):
            enjoy.main()
    monkeypatch.setattr(enjoy, "enjoy", Mock(side_effect=ModuleNotFoundError("No module named 'walk'", name="walk")))
    with pytest.raises(ModuleNotFoundError, match="walk"):
        enjoy.main()


def test_every_extra_is_one_of_pyproject():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(saved.EXTRAS.values()) <= set(declared)


def test_films_and_a_window(cartpole, capsys, monkeypatch):
    """Every game has a film of its own; closing the window ends the program, here of another environment."""
    games, lines = play(cartpole, capsys, episodes=2, video=True)
    films = sorted(Path(lines[-1].removeprefix("videos: ")).iterdir())
    assert games == play(cartpole, capsys, episodes=2)[0]
    assert [frames(film) for film in films] == pytest.approx([length for _, length in games], abs=2)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    images, show = [], enjoy.show

    def watched(image, fps):
        if len(images) == 5:
            pygame.event.post(pygame.event.Event(pygame.QUIT))
        elif images:  # there is a window
            pygame.event.post(pygame.event.Event(pygame.MOUSEMOTION))
        show(image, fps)
        assert not pygame.event.peek()  # none piles up
        images.append(image)

    monkeypatch.setattr(enjoy, "show", watched)
    monkeypatch.setattr(sys, "argv", f"enjoy.py {cartpole} --env-id CartPole-v0 --render --episodes 100".split())
    with pytest.raises(SystemExit) as end:
        enjoy.main()
    assert end.value.code == 130 and len(images) == 5 and (images[0] != images[4]).any()
    assert "CartPole-v0" in capsys.readouterr().out


def test_both_players_are_seeded_but_not_alike():
    """With the same seed they would draw the same noise."""
    player, opponent = [], []
    record = [
        SimpleNamespace(start_game=lambda seed, batch_size, seen=seen: seen.append(seed)) for seen in (player, opponent)
    ]
    for seed in (3, 3, 4):
        enjoy.Match(*record).start_game(seed, batch_size=2)
    assert len({*player, *opponent}) == 4
    space = gym.spaces.Discrete(100)
    other = enjoy.RandomPlayer(space, script=None)
    drawn = []
    for _ in range(2):
        other.start_game(5, batch_size=1)
        drawn.append([other.act(None, None, None).item() for _ in range(10)])
    assert drawn[0] == drawn[1] and len(set(drawn[0])) > 1


@pytest.mark.slow
def test_opponents(cartpole, tmp_path, capsys):
    """The agent of the run has seat 0, and the result is its own."""
    script, options = script_table.SELFPLAY, "--env-id toy_envs:Signs-v0 --num-envs 4 --num-steps 32 --total-timesteps"
    strong = train(script, f"{options} 8192 --learning-rate 1e-2", tmp_path / "strong")
    weak = train(script, f"{options} 256 --learning-rate 0", tmp_path / "weak")
    assert play(strong, capsys, episodes=5, opponent="random")[1][-1].endswith("won 5, drawn 0, lost 0")
    assert play(weak, capsys, episodes=5, opponent=str(strong))[1][-1].endswith("won 0, drawn 0, lost 5")
    assert "not for games of two" in error(cartpole, opponent="random")


def test_ctrl_c_ends_with_what_was_played(cartpole, tmp_path):
    process = start([ROOT / "enjoy.py", cartpole, "--episodes", "1000000"], tmp_path)
    while not process.stdout.readline().startswith("game 2"):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    status, output, errors = processes.finish(process)
    assert (status, errors) == (130, "") and re.search(r"\n\d+ games: mean .*\n$", "\n" + output)


def test_the_environments_own_attributes(tmp_path, capsys):
    """Neither are they followed nor set."""
    run = train(PPO, CLOCK.replace("Clock", "Own"), tmp_path)
    assert [length for _, length in play(run, capsys, episodes=3)[0]] == [4] * 3


@pytest.mark.parametrize("kind", ["rgb", "rgba", "gray", "float", "int64", "list"])
def test_films_of_frames_in_other_forms(kind, tmp_path, capsys, monkeypatch):
    """The bar has 10 more columns at each step; gray frames are white instead of red."""
    run = train(PPO, CLOCK.replace("Clock", "Screen"), tmp_path)
    monkeypatch.setattr(Screen, "kind", kind)
    _, lines = play(run, capsys, episodes=1, video=True)
    film = cv2.VideoCapture(str(Path(lines[-1].removeprefix("videos: ")) / "game-1.mp4"))
    images = [film.read()[1] for _ in range(8)]
    widths = [(image[32, :, 2] > 128).sum() for image in images]
    assert widths == pytest.approx([0, 10, 20, 30, 40, 50, 60, 70], abs=3)
    assert ((images[7][32, :60, 0] > 128).sum() > 50) == (kind == "gray")


@pytest.mark.parametrize("frame", [None, np.zeros(3), "a text", np.zeros((3, 64, 64))])
def test_frames_that_are_no_pictures(frame):
    with pytest.raises(SystemExit, match="must return an image"):
        enjoy.as_picture(frame)


def test_pictures_that_change_their_size(tmp_path, monkeypatch):
    """A video would show stripes."""
    run = train(PPO, CLOCK.replace("Clock", "Screen"), tmp_path)
    monkeypatch.setattr(Screen, "kind", "size")
    assert "pictures change" in error(run, video=True)


def test_a_game_that_never_ends(tmp_path, capsys, monkeypatch):
    """It is given up with a line, and counts as no game; a long one says how far it is."""
    run = train(PPO, CLOCK.replace("Clock", "Endless"), tmp_path)
    with in_process.watched(Endless, "step", lambda env, action: env.steps) as steps:
        assert enjoy.enjoy(enjoy.Args(run, episodes=2, max_steps=30)) == []
    assert steps == [*range(30)] * 2
    text = capsys.readouterr().out
    assert "no episode ended in training" in text and text.splitlines()[-1] == "0 games; 2 did not end"
    assert [f"game {i}: no end after 30 steps" in text for i in (1, 2, 3)] == [True, True, False]
    monkeypatch.setattr(enjoy, "SECONDS_OF_SILENCE", -1)
    enjoy.enjoy(enjoy.Args(run, episodes=1, max_steps=30))
    assert "game 1: 29 steps so far" in capsys.readouterr().out


def test_returns_of_training_are_those_of_its_environment(cartpole, capsys):
    lines = play(cartpole, capsys, ["--env-id", "CartPole-v0"], episodes=1)[1]
    assert re.search(r": CartPole-v0, mean return in training \S+ on CartPole-v1$", lines[0])


def test_success_is_printed(tmp_path, capsys):
    run = train(PPO, CLOCK.replace("Clock", "Goal"), tmp_path)
    Goal.games = 0
    enjoy.enjoy(enjoy.Args(run, episodes=3))
    lines = capsys.readouterr().out.splitlines()[-4:]
    assert [line.split(", ")[-1] for line in lines[:3]] == ["no success", "success", "no success"]
    assert lines[3].endswith(", success in 1")


def test_videos_of_an_agent_without_a_run_folder(tmp_path, capsys, monkeypatch):
    """They go into videos/ of the current folder, which git ignores in the checkout."""
    monkeypatch.chdir(tmp_path)
    before = set((ROOT / "agents").iterdir())
    lines = play(ROOT / "agents/CartPole-v1__ppo__1.pt", capsys, episodes=1, video=True)[1]
    [film] = tmp_path.glob("videos/CartPole-v1__ppo__1-*/game-1.mp4")
    assert lines[-1] == f"videos: {film.parent.relative_to(tmp_path)}" and frames(film) > 100
    assert set((ROOT / "agents").iterdir()) == before and "videos/" in (ROOT / ".gitignore").read_text().split()


def test_a_window_needs_a_display(cartpole, monkeypatch, tmp_path):
    """SDL has a driver that draws where nobody sees it, which would look like a program that does nothing."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    process = start([ROOT / "enjoy.py", cartpole, "--episodes", "1", "--render"], tmp_path)
    status, _, errors = processes.finish(process)
    assert status == 1 and errors
