"""enjoy.py: rebuilds a run's environment and agent, plays whole games, and exports the policy."""

import dataclasses
import os
import pickle
import re
import signal
import sys
from pathlib import Path

import cv2
import gymnasium as gym
import in_process
import numpy as np
import onnxruntime
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
from script_table import ATARI, CONTINUOUS, ENVPOOL, LSTM, MASK, PPO, PROCGEN, ROOT
from toy_envs import Clock, Target

import enjoy

gym.register("EnjoyClock-v0", lambda **kwargs: Clock(images=False), disable_env_checker=True)
gym.register("EnjoyTarget-v0", lambda **kwargs: Target(images=False), disable_env_checker=True)
CLOCK = "--env-id EnjoyClock-v0 --total-timesteps 96 --num-envs 2 --num-steps 16"
FEW = "--total-timesteps 64 --num-envs 2 --num-steps 16 --num-minibatches 2 --update-epochs 1"
TARGET = "--env-id EnjoyTarget-v0 --total-timesteps 512 --num-envs 2 --num-steps 32 --num-minibatches 4"


def play(run, capsys, words=(), **options):
    """The games [(return, length), ...] that enjoy.py prints, and its other lines."""
    capsys.readouterr()
    enjoy.enjoy(enjoy.Args(run, **options), words)
    lines = capsys.readouterr().out.splitlines()
    games = [match.groups() for line in lines if (match := re.fullmatch(r"game \d+: return (\S+), length (\d+)", line))]
    return [(float(score), int(length)) for score, length in games], [x for x in lines if not x.startswith("game ")]


def error(run, words=(), **options):
    """The line with which enjoy.py ends."""
    with pytest.raises(SystemExit, match=r"^error: [^\n]+$") as end:
        enjoy.enjoy(enjoy.Args(run, **options), words)
    return end.value.code


def frames(film):
    return int(cv2.VideoCapture(str(film)).get(cv2.CAP_PROP_FRAME_COUNT))


def rebuilt(run, greedy=True):
    """(envs, player) of a run."""
    script, options, state, _ = enjoy.load(run)
    envs = enjoy.make_envs(script, options, state)
    return envs, enjoy.Player(script, options, state, envs, greedy)


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
    assert lines[1].startswith(f"{len(games)} games: mean {np.mean(scores):.4g}, std {np.std(scores):.4g}, min ")
    films = [frames(path) for folder in set(run.iterdir()) - before for path in folder.iterdir()]
    assert films == pytest.approx([games[0][1]] if film else [], abs=2)


SCORES = {"BreakoutNoFrameskip": 30, "CartPole": 450, "HalfCheetah": 1000, "LunarLander": 200, "MicrortsMining": 15}


AGENTS = [
    pytest.param(file, id=file.stem, marks=[pytest.mark.slow] * ("NoFrameskip" in file.stem))  # its games are long
    for file in sorted((ROOT / "agents").glob("*.pt"))
]


@pytest.mark.parametrize("file", AGENTS)
def test_agents_of_the_repository(file):
    assert max(enjoy.enjoy(enjoy.Args(file, episodes=2))) > SCORES[file.stem.split("-v")[0]]


def test_the_seed_decides_and_games_differ_from_training(cartpole, tmp_path, capsys):
    games = [play(cartpole, capsys, episodes=5, seed=seed)[0] for seed in (1, 1, 2)]
    assert games[0] == games[1] != games[2]
    with in_process.watched(Clock, "reset", lambda env, seed=None, options=None: seed) as seeds:
        run = train(PPO, f"{CLOCK} --seed 1", tmp_path)
        trained = len(seeds)
        play(run, capsys, episodes=1, seed=1)
    assert {*seeds[:trained]} == {1, 2, None} and seeds[trained] not in (1, 2, None)


def test_returns_are_raw_and_statistics_frozen(tmp_path):
    run = train(CONTINUOUS, TARGET, tmp_path)
    envs, player = rebuilt(run)
    saved = envs.state_dict()
    with in_process.watched(Target, "step", lambda env, action: 1 - abs(action - env.answer)) as rewards:
        games = list(enjoy.play(envs, player.act, enjoy.Args(run, episodes=3), None))
    assert [length for _, length in games] == [16] * 3
    assert [score for score, _ in games] == pytest.approx([sum(rewards[i : i + 16]).item() for i in (0, 16, 32)])
    assert envs.state_dict() == saved == checkpoint(run)["parts"]["envs"] and envs.return_stats.count > 500


def test_the_recurrent_state_is_carried_from_step_to_step():
    """Steps one by one equal the sequence, with episodes that begin at the third and the sixth step."""
    spaces = toy_envs.spaces(gym.spaces.Box(0, 255, (84, 84, 1), np.uint8), gym.spaces.Discrete(4))
    agent = LSTM.module.Agent(spaces).requires_grad_(False)
    obs, dones = torch.randint(256, (8, 84, 84, 1), dtype=torch.uint8), torch.tensor([0, 0, 1, 0, 0, 1, 0, 0]).bool()
    player = enjoy.Player(LSTM.module, LSTM.module.Args(), {"parts": {"agent": agent.state_dict()}}, spaces)
    for t in range(8):
        player.act(obs[t, None].numpy(), dones[t, None].numpy(), {})
    _, _, state = agent(obs, (torch.zeros(1, 1, 128),) * 2, dones)
    torch.testing.assert_close(tuple(player.memory.values()), state, rtol=ROUNDING, atol=ROUNDING)


def test_masks(tmp_path, capsys, monkeypatch):
    """Only valid actions are taken, here a single one of each choice."""
    run = train(MASK, MASK.tiny, tmp_path)
    monkeypatch.setattr(toy_envs.Choices, "action_mask", lambda env: np.array([0, 1, 0, 1, 0]))
    with in_process.watched(toy_envs.Choices, "step", lambda env, action: action.tolist()) as taken:
        play(run, capsys, episodes=2)
        play(run, capsys, episodes=2, greedy=True)
    assert taken == [[1, 0]] * 64


def test_an_edited_copy_is_rebuilt_by_the_source_in_its_folder(tmp_path, capsys, monkeypatch):
    """Here with other layers, and with AutoresetMode.NEXT_STEP, where an ended episode stands in the infos."""
    text = (ROOT / "ppo.py").read_text()
    for old, new in (("self.policy_trunk", "self.actor"), ("64", "24"), ("SAME_STEP", "NEXT_STEP")):
        text = text.replace(old, new)
    (tmp_path / "my_edit.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    run = train(PPO._replace(name="my_edit"), CLOCK, tmp_path / "train")
    assert len(play(run, capsys, episodes=3)[0]) == 3 and not (run / "__pycache__").exists()
    (run / "my_edit.py").unlink()
    with pytest.raises(FileNotFoundError, match="my_edit.py"):
        enjoy.load(run)


def test_the_newest_script_that_began_before_the_checkpoint(tmp_path, capsys):
    run = train(PPO, CLOCK, tmp_path)
    assert train(PPO, f"--resume {run} --total-timesteps 192", tmp_path) == run
    (run / "ppo.py").write_text("1 / 0")
    (run / "ppo_000000000500.py").write_text("1 / 0")
    games, _ = play(run, capsys, episodes=3)
    (tmp_path / "model.pt").write_bytes(max(run.glob("checkpoint*")).read_bytes())
    assert play(tmp_path / "model.pt", capsys, episodes=3)[0] == games  # by the script beside enjoy.py


def test_a_word_that_is_no_option(cartpole, capsys):
    """The error names it, without a traceback."""
    with pytest.raises(SystemExit) as end:
        enjoy.enjoy(enjoy.Args(cartpole), ["--epsodes", "3"])
    assert end.value.code == 2 and "Unrecognized options: --epsodes" in capsys.readouterr().err


def test_an_environment_of_a_module(tmp_path, capsys):
    """A run's folder has a script, which runs anyway; a checkpoint alone imports nothing that is not named."""
    run = train(PPO, CLOCK.replace("Enjoy", "toy_envs:Enjoy"), tmp_path)
    assert len(play(run, capsys, episodes=1)[0]) == 1
    (tmp_path / "model.pt").write_bytes(max(run.glob("checkpoint*")).read_bytes())
    assert "if you trust toy_envs:EnjoyClock-v0, add --env-id toy_envs:EnjoyClock-v0" in error(tmp_path / "model.pt")
    assert len(play(tmp_path / "model.pt", capsys, ["--env-id", "toy_envs:EnjoyClock-v0"], episodes=1)[0]) == 1


def test_bad_checkpoints(cartpole, tmp_path, capsys):
    """The newest one is played or named as damaged, and code in a file never runs."""
    (older, newer), folder, trap = sorted(cartpole.glob("checkpoint*")), tmp_path / "run", tmp_path / "trap"
    folder.mkdir()
    with pytest.raises(FileNotFoundError, match="checkpoint_"):
        enjoy.load(folder)
    for path in (older, newer):
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "checkpoint_best.pt").write_bytes(b"")  # not a checkpoint by its name
    assert str(folder / newer.name) in play(folder, capsys, episodes=1)[1][0]
    whole = newer.read_bytes()
    half, encrypted = len(whole) // 2, bytearray(whole)
    encrypted[encrypted.index(b"PK\x01\x02") + 8] |= 1
    code = type("Code", (), {"__reduce__": lambda self: (os.mkdir, (str(trap),))})()  # unpickling it makes a folder
    torch.save(checkpoint(cartpole) | {"code": code}, tmp_path / "evil.pt")
    torch.save(torch.zeros(2), tmp_path / "tensor.pt")
    others = (tmp_path / "evil.pt").read_bytes(), (tmp_path / "tensor.pt").read_bytes(), pickle.dumps(code)
    for bad in (whole[:half], b"", whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :], encrypted, *others):
        (folder / newer.name).write_bytes(bad)
        assert f"{newer.name} is damaged" in error(folder)
    assert not trap.exists()


def test_greedy_takes_the_most_likely_action(tmp_path, capsys):
    """On Clock, where nothing is random, every greedy game is the same; samples differ."""
    run = train(PPO, CLOCK, tmp_path)
    shown = torch.tensor([[float(step), 0, 0, 0] for step in range(8)])
    likeliest = rebuilt(run)[1].agent(shown)[0].logits.argmax(-1)
    expected = sum(int(action) == step % 2 for step, action in enumerate(likeliest))
    assert play(run, capsys, episodes=6, greedy=True, seed=3)[0] == [(expected, 8)] * 6
    assert len(set(play(run, capsys, episodes=12)[0])) > 1


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
        show(image, fps)
        images.append(image)

    monkeypatch.setattr(enjoy, "show", watched)
    monkeypatch.setattr(sys, "argv", f"enjoy.py {cartpole} --env-id CartPole-v0 --render --episodes 100".split())
    with pytest.raises(SystemExit) as end:
        enjoy.main()
    assert end.value.code == 130 and len(images) == 5 and (images[0] != images[4]).any()
    assert "CartPole-v0" in capsys.readouterr().out


@pytest.mark.slow
def test_opponents(cartpole, tmp_path, capsys):
    """The agent of the run has seat 0, and the result is its own."""
    script, options = script_table.SELFPLAY, "--env-id toy_envs:Signs-v0 --num-envs 4 --num-steps 32 --total-timesteps"
    strong = train(script, f"{options} 8192 --learning-rate 1e-2", tmp_path / "strong")
    weak = train(script, f"{options} 256 --learning-rate 0", tmp_path / "weak")
    assert play(strong, capsys, episodes=5, opponent="random")[1][-1].endswith("won 5, drawn 0, lost 0")
    assert play(weak, capsys, episodes=5, opponent=str(strong))[1][-1].endswith("won 0, drawn 0, lost 5")
    assert play(strong, capsys, episodes=2, opponent="random", export=tmp_path / "agent.onnx")[1][-1].endswith("lost 0")
    assert "not for games of two" in error(cartpole, opponent="random")


def test_ctrl_c_ends_with_what_was_played(cartpole, tmp_path):
    process = start([ROOT / "enjoy.py", cartpole, "--episodes", "1000000"], tmp_path)
    while not process.stdout.readline().startswith("game 2"):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    status, output, errors = processes.finish(process)
    assert (status, errors) == (130, "") and re.search(r"\n\d+ games: mean .*\n$", "\n" + output)


EXPORTS = [(PPO, CLOCK), (CONTINUOUS, f"{FEW} --env-id Hopper-v5"), (ATARI, FEW), (LSTM, FEW), (MASK, MASK.tiny)]


@pytest.mark.parametrize(
    "script, options",
    [pytest.param(*row, id=row[0].name, marks=pytest.mark.slow if row[0].images else ()) for row in EXPORTS],
)
def test_an_exported_policy_plays_without_the_script(script, options, tmp_path):
    """For 200 steps its actions are those of torch, for two environments without the script's wrappers."""
    run, file = train(script, options, tmp_path), tmp_path / "agent.onnx"
    enjoy.enjoy(enjoy.Args(run, episodes=1, export=file))
    session = onnxruntime.InferenceSession(file)
    script, options, state, _ = enjoy.load(run)
    normalize = script.make_envs(dataclasses.replace(options, num_envs=2), None)
    envs, box = getattr(normalize, "env", normalize), hasattr(normalize, "scale")
    if box:
        normalize.load_state_dict(state["parts"]["envs"])
    player = enjoy.Player(script, options, state, envs)
    close = {"rtol": ROUNDING, "atol": ROUNDING}
    (obs, infos), dones = envs.reset(seed=3), np.ones(2, bool)
    for _ in range(200):
        inputs = player.inputs(obs.astype(np.float32) if box else obs, dones, infos)
        outputs = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        outputs = dict(zip([value.name for value in session.get_outputs()], outputs, strict=True))
        inputs["obs"] = torch.from_numpy(normalize.scale(obs) if box else obs)
        policy, player.memory = player.policy(inputs)
        expected = {f"next_{name}": x for name, x in player.memory.items()}
        if box:
            expected["action"] = policy.mean.clip(-1, 1)
        else:  # where rounding decides which of two actions is the likeliest, either will do
            actions = [enjoy.mode(policy), torch.from_numpy(outputs["action"])]
            torch.testing.assert_close(*map(policy.log_prob, actions), **close)
        for name, tensor in expected.items():
            np.testing.assert_allclose(outputs[name], tensor, **close)
        obs, _, terminated, truncated, infos = envs.step(outputs["action"])
        dones = terminated | truncated


def test_an_exported_network_takes_any_number_of_images(tmp_path):
    """ppo_procgen.py divides them into parts on a CPU."""
    images = gym.spaces.Box(0, 255, (3, 64, 64), np.uint8)
    envs = gym.vector.SyncVectorEnv([lambda: gym.wrappers.TransformObservation(gym.make("CartPole-v1"), None, images)])
    envs.reset = lambda: (images.sample()[None], {})
    agent, options = PROCGEN.module.Agent(envs), PROCGEN.module.Args()
    player = enjoy.Player(PROCGEN.module, options, {"parts": {"agent": agent.state_dict()}}, envs)
    enjoy.export(player, tmp_path / "agent.onnx")
    obs = np.random.default_rng(0).integers(0, 256, (65, 3, 64, 64), dtype=np.uint8)
    [actions] = onnxruntime.InferenceSession(tmp_path / "agent.onnx").run(["action"], {"obs": obs})
    assert actions.tolist() == agent(torch.from_numpy(obs))[0].logits.argmax(-1).tolist()


def test_what_cannot_be_exported(tmp_path, monkeypatch):
    """A script whose Normalize treats actions otherwise, here twice as large."""
    text = (ROOT / "ppo_continuous_action.py").read_text()
    (tmp_path / "my_twice.py").write_text(text.replace("actions = actions.clip(", "actions = 2 * actions.clip("))
    monkeypatch.syspath_prepend(tmp_path)
    run = train(CONTINUOUS._replace(name="my_twice"), TARGET, tmp_path)
    assert "no export" in error(run, export=tmp_path / "agent.onnx") and not (tmp_path / "agent.onnx").exists()
