"""enjoy.py: rebuilds what a run was made of, plays whole games with it, and runs no code out of a checkpoint."""

import os
import pickle
import re
import shutil
import signal
import sys
from ctypes.util import find_library
from pathlib import Path
from types import SimpleNamespace

import cv2
import gymnasium as gym
import numpy as np
import pytest
import torch
from test_procgen import every_script_with_its_games, with_qt
from toy_envs import (
    ENVPOOL,
    LSTM,
    MASK,
    PROCGEN,
    ROOT,
    SCRIPTS,
    Choices,
    Clock,
    Target,
    checkpoint,
    finish,
    newest_run,
    patched,
    start,
    train,
)

import enjoy

ppo = SCRIPTS[0]
BOX = next(script for script in SCRIPTS if script.box)
gym.register("EnjoyClock-v0", lambda **kwargs: Clock(images=False), disable_env_checker=True)
gym.register("EnjoyTarget-v0", lambda **kwargs: Target(images=False), disable_env_checker=True)
CLOCK = "--env-id EnjoyClock-v0 --total-timesteps 96 --num-envs 2 --num-steps 16"
UNSEEN = "playing unseen: --render shows the games in a window, --video films them"
TARGET = "--env-id EnjoyTarget-v0 --total-timesteps 512 --num-envs 2 --num-steps 32 --num-minibatches 4"


def play(run, capsys, **options):
    """Runs `python enjoy.py run options` in this process; ([(return, length), ...], its first and last line).

    Between the first and the games it must say that nobody sees them, or in the end where their films are."""
    capsys.readouterr()
    enjoy.enjoy(enjoy.Args(run, **{"trust": "toy_envs-" in str(run)} | options))
    first, *games, last = capsys.readouterr().out.splitlines()
    if options.get("video"):
        folder = max((options.get("video_folder") or run).glob("videos-*"))
        assert last == f"films: {folder}" and len(list(folder.iterdir())) == options["episodes"]
        last = games.pop()
    else:
        assert games.pop(0) == UNSEEN
    found = [re.fullmatch(r"game (\d+): return (\S+), length (\d+)", game).groups() for game in games]
    assert [int(number) for number, *_ in found] == list(range(1, len(found) + 1))
    return [(float(score), int(length)) for _, score, length in found], first, last


def refusal(run, **options):
    """The one line with which enjoy.py ends."""
    with pytest.raises(SystemExit, match=r"^error: [^\n]+$") as end:
        enjoy.enjoy(enjoy.Args(run, **options))
    return end.value.code


def frames(film):
    return int(cv2.VideoCapture(str(film)).get(cv2.CAP_PROP_FRAME_COUNT))


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    """A run of ppo.py, with two checkpoints."""
    options = "--total-timesteps 512 --num-envs 2 --num-steps 32 --save-every 5"
    return train(ppo, options, tmp_path_factory.mktemp("run"))


@every_script_with_its_games
def test_whole_games_of_every_script(script, tmp_path, capsys):
    """Of EnvPool's, which draw nothing for us, what the agent sees is filmed, into the run's folder."""
    few = "--total-timesteps 32 --num-envs 2 --num-steps 8 --num-minibatches 2 --update-epochs 1"
    run = train(script, few if script.images else script.tiny, tmp_path)
    before, number, film = set(run.iterdir()), 1 if script.images else 2, script in (ENVPOOL, PROCGEN)
    games, first, last = play(run, capsys, episodes=number, video=film)
    assert str(next(run.glob("checkpoint*"))) in first and checkpoint(run)["args"]["env_id"] in first
    assert all(length > (100 if "Breakout" in first else 1) for _, length in games)  # a game has five lives
    told = re.fullmatch(rf"{number} games: mean (\S+), std (\S+), min (\S+), max (\S+)", last).groups()
    scores = [score for score, _ in games]
    expected = np.mean(scores), np.std(scores), min(scores), max(scores)
    assert len(scores) == number and [float(number) for number in told] == pytest.approx(expected, rel=1e-3)
    if film:
        [folder] = set(run.iterdir()) - before
        assert [frames(film) for film in folder.iterdir()] == pytest.approx([games[0][1]], abs=2)
    else:
        assert set(run.iterdir()) == before


def test_an_id_that_imports_a_module_needs_trust(tmp_path):
    [script] = (script for script in SCRIPTS if script.name == "ppo_multidiscrete")
    assert "toy_envs:Choices-v0 imports a module; --trust lets it" in refusal(train(script, script.tiny, tmp_path))


def test_a_seed_decides_all(cartpole, capsys):
    games = [play(cartpole, capsys, episodes=5, seed=seed)[0] for seed in (1, 1, 2)]
    assert games[0] == games[1] != games[2]


def test_the_agent_that_comes_with_the_project():
    """Random play of Breakout is at 1.7, as benchmark/atari_human.csv has it."""
    assert max(enjoy.enjoy(enjoy.Args(ROOT / "agents/BreakoutNoFrameskip-v4__ppo_atari__1.pt", episodes=2))) > 30


def test_no_game_is_one_of_the_training(tmp_path, monkeypatch, capsys):
    """Not with the run's own --seed either."""
    seeds, reset = [], Clock.reset

    def recorded(env, *, seed=None, options=None):
        seeds.append(seed)
        return reset(env, seed=seed, options=options)

    monkeypatch.setattr(Clock, "reset", recorded)
    run = train(ppo, f"{CLOCK} --seed 1", tmp_path)
    trained = set(seeds) - {None}
    seeds.clear()
    play(run, capsys, episodes=1, seed=1)
    assert trained == {1, 2} and len(set(seeds) - {None}) == 1 and not trained & set(seeds)


def test_returns_are_raw_and_statistics_frozen(tmp_path):
    """What the agent sees is scaled by the numbers of the checkpoint from the first step to the last."""
    run = train(BOX, TARGET, tmp_path)
    state, _ = enjoy.load(run)
    saved, seen, rewards = state["parts"]["envs"], [], []
    script = enjoy.import_script(state["script"], run)

    class Watched(Target):
        def number(self):
            seen.append(super().number())
            return seen[-1]

        def step(self, action):
            answer = super().step(action)
            rewards.append(answer[1])
            return answer

    with patched((script.gym, "make", lambda *args, **kwargs: Watched(images=False))):
        envs, agent = enjoy.rebuild(script, state, tmp_path)
    player, shown = enjoy.Player(script, envs, agent, greedy=True), []
    act = player.act
    player.act = lambda obs, *rest: shown.append(obs) or act(obs, *rest)
    games = list(enjoy.play(player, enjoy.Args(run, episodes=3), tmp_path))
    assert [length for _, length in games] == [16] * 3 and len(shown) == 48
    assert [score for score, _ in games] == pytest.approx([sum(rewards[i : i + 16]) for i in (0, 16, 32)])
    mean, var, count = envs.obs_stats.mean, envs.obs_stats.var, float(envs.return_stats.count)
    assert count > 500 and all(str(numbers) in str(saved) for numbers in (mean.tolist(), var.tolist(), count))
    raw = np.concatenate([np.stack(seen[i : i + 16]) for i in (0, 17, 34)])  # an episode's 17th ends it
    scaled = np.clip((raw - mean) / np.sqrt(var + 1e-8), -10, 10)
    np.testing.assert_allclose(np.concatenate(shown), scaled, rtol=1e-5)


def test_the_memory_is_carried_from_step_to_step():
    """As the agent itself runs over the sequence; episodes open in the third and in the sixth step."""
    spaces = SimpleNamespace(
        single_observation_space=gym.spaces.Box(0, 255, (84, 84, 1), np.uint8),
        single_action_space=gym.spaces.Discrete(4),
    )
    agent = LSTM.module.Agent(spaces)
    torch.nn.init.normal_(agent.policy.weight)
    obs, dones = torch.randint(256, (8, 84, 84, 1), dtype=torch.uint8), torch.zeros(8, dtype=torch.bool)
    dones[[2, 5]] = True
    with torch.no_grad():
        agent.policy.bias -= agent(obs, (torch.zeros(1, 1, 128),) * 2, dones)[0].logits.mean(0)
        player = enjoy.Player(LSTM.module, spaces, agent, greedy=True)
        actions = [player.act(obs[t, None].numpy(), dones[t, None].numpy(), {}).item() for t in range(8)]
        policy, _, state = agent(obs, (torch.zeros(1, 1, 128),) * 2, dones)
    assert actions == policy.logits.argmax(-1).tolist() and len(set(actions)) > 1
    for ours, theirs in zip(player.state, state, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_each_seat_of_a_game_has_a_memory():
    """Where a recurrent agent plays itself; and the first step opens an episode, as each step after an end does."""
    agent, told = torch.nn.Module(), []
    agent.core = torch.nn.GRU(3, 5)
    agent.forward = lambda obs, state, dones: told.append((state, dones)) or (ppo.module.Categorical(obs), None, state)
    envs = SimpleNamespace(reset=lambda seed: (np.zeros((2, 3), np.float32), {}), step=None, unwrapped=None)
    games = enjoy.play(enjoy.Player(None, envs, agent, greedy=True), enjoy.Args(Path()), Path())
    with pytest.raises(TypeError):  # by the step
        next(games)
    [(state, dones)] = told
    assert state.shape == (1, 2, 5) and dones.tolist() == [True, True]


class OneIsValid(Choices):
    """Of each choice a single action, drawn anew in every step, is valid: only those may be taken, and pay 1."""

    def numbers(self):
        obs = super().numbers()
        self.valid = np.concatenate([np.eye(n)[self.np_random.integers(n)] for n in self.action_space.nvec])
        return obs

    def step(self, action):
        taken = np.concatenate([np.eye(n)[a] for n, a in zip(self.action_space.nvec, action, strict=True)])
        obs, _, *rest = super().step(action) if (taken == self.valid).all() else pytest.fail("an action is not valid")
        return obs, 1.0, *rest

    def action_mask(self):
        return self.valid


gym.register("EnjoyOneIsValid-v0", OneIsValid)


@pytest.mark.parametrize("greedy", [True, False])
def test_masks(greedy, tmp_path, capsys):
    run = train(MASK, MASK.tiny.replace("toy_envs:Choices-v0", "EnjoyOneIsValid-v0"), tmp_path)
    assert play(run, capsys, episodes=4, greedy=greedy)[0] == [(16, 16)] * 4


def edited(folder):
    """A user's copy of ppo.py: another name, other layers, a hidden size of its own as an option."""
    text = (ROOT / "ppo.py").read_text()
    for old, new in (
        ("self.policy_trunk", "self.actor"),
        ("self.value_trunk", "self.critic"),
        ("64", "24"),
    ):
        assert text.count(old) > 1
        text = text.replace(old, new)
    (folder / "my_edit.py").write_text(text)
    return ppo._replace(name="my_edit")


def test_an_edited_copy_is_rebuilt_by_the_source_in_its_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    run = train(edited(tmp_path), ppo.tiny, tmp_path / "train")
    (tmp_path / "my_edit.py").unlink()
    assert len(play(run, capsys, episodes=3)[0]) == 3
    weights = checkpoint(run)["parts"]["agent"]
    assert weights["actor.0.weight"].shape == (24, 4)
    (run / "my_edit.py").unlink()
    assert "my_edit.py" in refusal(run)
    (run / "my_edit.py").write_text("import my_networks")
    assert re.search("my_networks.*PYTHONPATH", refusal(run))
    for half in ("", "class Args:\n    def"):
        (run / "my_edit.py").write_text(half)
        assert "my_edit.py" in refusal(run)


def test_a_copy_whose_episodes_restart_in_the_next_step(tmp_path, capsys, monkeypatch):
    """It is not played for ever: an ended episode stands in the infos themselves."""
    text = (ROOT / "ppo.py").read_text()
    assert text.count("SAME_STEP") == 1
    (tmp_path / "my_next.py").write_text(text.replace("SAME_STEP", "NEXT_STEP"))
    monkeypatch.syspath_prepend(tmp_path)
    run, step = train(ppo._replace(name="my_next"), CLOCK, tmp_path / "train"), gym.vector.SyncVectorEnv.step
    steps = iter(range(200))
    monkeypatch.setattr(gym.vector.SyncVectorEnv, "step", lambda *args: next(steps) < 199 and step(*args))
    assert len(play(run, capsys, episodes=3)[0]) == 3


def test_a_run_that_was_resumed_is_rebuilt_by_the_source_that_went_on(tmp_path, capsys, monkeypatch):
    """Which has its step in its name. Without the folder it is the script beside enjoy.py, of the name without it."""
    run = train(ppo, CLOCK, tmp_path)
    assert train(ppo, f"--resume {run} --total-timesteps 192", tmp_path) == run
    assert checkpoint(run)["script"] == "ppo_000000000096.py"
    (run / "ppo.py").write_text("1 / 0")
    games, *_ = play(run, capsys, episodes=3)
    lone = tmp_path / "model.pt"
    lone.write_bytes(sorted(run.glob("checkpoint*"))[-1].read_bytes())
    enjoy.enjoy(enjoy.Args(lone, episodes=3))
    note, _, _, *lines, _ = capsys.readouterr().out.splitlines()
    assert note == f"{tmp_path} has no ppo_000000000096.py: taking {ROOT / 'ppo.py'}"
    assert lines == [f"game {i}: return {score:g}, length {length}" for i, (score, length) in enumerate(games, 1)]


def test_a_run_with_a_process_for_each_environment(tmp_path, capsys):
    """Is played in this one, where it can be seen."""
    run = train(ppo, f"{ppo.tiny} --async-envs", tmp_path)
    assert checkpoint(run)["args"]["async_envs"]
    filmed, *_ = play(run, capsys, episodes=1, video=True)
    [film] = run.glob("videos*/*.mp4")
    assert frames(film) == pytest.approx(filmed[0][1], abs=2)


def test_a_part_that_does_not_play_is_named(cartpole, tmp_path, capsys):
    run = Path(shutil.copytree(cartpole, tmp_path / "run"))
    state = checkpoint(run)
    state["parts"]["ema"] = {}
    torch.save(state, max(run.glob("checkpoint*")))
    capsys.readouterr()
    enjoy.enjoy(enjoy.Args(run, episodes=1))
    assert capsys.readouterr().out.splitlines()[1] == "the part agent plays; not used: ema"


def test_a_checkpoint_without_its_folder(cartpole, tmp_path, capsys):
    """The script beside enjoy.py stands in, if it fits."""
    lone = tmp_path / "model.pt"
    lone.write_bytes(sorted(cartpole.glob("checkpoint*"))[-1].read_bytes())
    games, _, _ = play(cartpole, capsys, episodes=3)
    enjoy.enjoy(enjoy.Args(lone, episodes=3))
    note, _, _, *lines, _ = capsys.readouterr().out.splitlines()
    assert str(ROOT / "ppo.py") in note
    assert lines == [f"game {i}: return {score:g}, length {length}" for i, (score, length) in enumerate(games, 1)]
    state = torch.load(lone) | {"script": "ppo_shared.py"}
    torch.save(state, lone)
    assert "does not fit" in refusal(lone) and "trunk.0.weight" in refusal(lone)
    for name in ("../ppo.py", str(ROOT / "ppo.py"), ".."):
        torch.save(state | {"script": name}, lone)
        assert f"needs its script {name}" in refusal(lone)


class Evil:
    """Unpickling it makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_a_checkpoint_that_would_run_code_is_refused(cartpole, tmp_path, capsys):
    """The real program; with --trust the code does run, so the test would see it."""
    file, trap = tmp_path / "checkpoint_000000000512.pt", tmp_path / "trap"
    torch.save(checkpoint(cartpole) | {"trap": Evil(str(trap))}, file)
    status, output, errors = finish(start([ROOT / "enjoy.py", tmp_path], tmp_path))
    assert (status, output) == (1, "") and re.fullmatch(r"error: .*can run code.*--trust.*\n", errors)
    assert not trap.exists()
    (tmp_path / "ppo.py").write_bytes((ROOT / "ppo.py").read_bytes())
    assert len(play(file, capsys, episodes=1, trust=True)[0]) == 1 and trap.exists()
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(Evil(str(tmp_path / "other"))))
    assert "no whole checkpoint" in refusal(tmp_path / "raw.pt") and not (tmp_path / "other").exists()


def test_a_damaged_checkpoint_offers_the_one_before(cartpole, tmp_path, capsys):
    older, newer = [tmp_path / path.name for path in sorted(cartpole.glob("checkpoint*"))]
    for path in (older, newer):
        path.write_bytes((cartpole / path.name).read_bytes())
    whole = newer.read_bytes()
    half = len(whole) // 2
    for damaged in (whole[:half], whole[:-1], b"", whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :]):
        newer.write_bytes(damaged)
        for named in (tmp_path, newer):
            assert refusal(named).endswith(f"the one before is whole: python enjoy.py {older}")
    enjoy.enjoy(enjoy.Args(older, episodes=1))
    older.write_bytes(whole[:1000])
    assert refusal(tmp_path).endswith("there is none before it")


def test_a_damaged_checkpoint_may_look_encrypted(cartpole, tmp_path):
    """A bit in a zip file's table says that; zipfile then raises RuntimeError."""
    older, newer = sorted(cartpole.glob("checkpoint*"))
    content = bytearray(newer.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / newer.name).write_bytes(content)
    assert "no whole checkpoint" in refusal(tmp_path / newer.name)


def test_no_game_ended_in_training(tmp_path, capsys):
    options = "--no-cuda --env-id MountainCar-v0 --total-timesteps 64 --num-envs 2 --num-steps 32"
    run = train(SCRIPTS[0], options, tmp_path)
    enjoy.enjoy(enjoy.Args(run, episodes=1))
    assert "MountainCar-v0, no game ended in training\n" in capsys.readouterr().out


def test_greedy_takes_the_likeliest_action(tmp_path, capsys):
    """On Clock, which has no chance in it, every greedy game is the same; samples differ."""
    run = train(ppo, CLOCK, tmp_path)
    state, _ = enjoy.load(run)
    with torch.no_grad():
        _, agent = enjoy.rebuild(ppo.module, state, tmp_path)
        shown = torch.tensor([[float(step), 0, 0, 0] for step in range(8)])
        likeliest = agent(shown)[0].logits.argmax(-1)
    expected = sum(int(action) == step % 2 for step, action in enumerate(likeliest))
    assert play(run, capsys, episodes=6, greedy=True, seed=3)[0] == [(expected, 8)] * 6
    assert len(set(play(run, capsys, episodes=12)[0])) > 1


def test_modes():
    categorical = ppo.module.Categorical(torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]]))
    assert enjoy.mode(categorical).tolist() == [1, 0]
    normal = BOX.module.Normal(torch.tensor([[0.5, -3.0]]), torch.zeros(1, 2))
    assert enjoy.mode(normal).tolist() == [[0.5, -3.0]]
    several = SimpleNamespace(logits=[torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 1.0, 2.0]])])
    assert enjoy.mode(several).tolist() == [[1, 2]]


def test_films_of_every_game(cartpole, tmp_path, capsys):
    games, _, _ = play(cartpole, capsys, episodes=3)
    filmed, _, _ = play(cartpole, capsys, episodes=3, video=True, video_folder=tmp_path / "films")
    films = sorted((tmp_path / "films").glob("videos*/*.mp4"))
    assert filmed == games and len(films) == 3
    assert [frames(film) for film in films] == pytest.approx([length for _, length in games], abs=2)


def test_a_window(cartpole, capsys, monkeypatch):
    """Shows what the environment draws, leaves no film, and closing it ends the games."""
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr(enjoy.time, "sleep", lambda seconds: None)
    images, show = [], enjoy.show

    def watched(image):
        if len(images) == 5:
            pygame.event.post(pygame.event.Event(pygame.QUIT))
        show(image)
        images.append(image)
        screen = pygame.display.get_surface()
        assert np.array_equal(pygame.surfarray.array3d(screen).swapaxes(0, 1), image)

    monkeypatch.setattr(enjoy, "show", watched)
    before = sorted(cartpole.iterdir())
    monkeypatch.setattr(sys, "argv", ["enjoy.py", str(cartpole), "--render", "--episodes", "100"])
    with pytest.raises(SystemExit) as end:
        enjoy.main()
    assert end.value.code == 130 and len(images) == 5 and (images[0] != images[4]).any()
    assert sorted(cartpole.iterdir()) == before


def test_ctrl_c(cartpole, tmp_path):
    """No traceback: during the imports it ends the program, during the games it ends with what was seen."""
    (tmp_path / "gymnasium.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(600)")
    process = start([ROOT / "enjoy.py", cartpole], tmp_path, PYTHONPATH=str(tmp_path))
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert finish(process) == (-signal.SIGINT, "", "")
    process = start([ROOT / "enjoy.py", cartpole, "--episodes", "1000000"], tmp_path)
    while not process.stdout.readline().startswith("game 2"):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    status, output, errors = finish(process)
    assert (status, errors) == (130, "") and re.search(r"\n\d+ games: mean .*\n$", "\n" + output)


def test_nothing_to_show(tmp_path):
    """Neither vectors nor any planes of a 10 x 10 board are pictures."""
    planes = SimpleNamespace(render_mode=None), np.zeros((1, 26, 10, 10), np.uint8)
    with pytest.raises(SystemExit, match="draws no pictures"):
        enjoy.picture(*planes)
    run = train(ppo, CLOCK, tmp_path)
    assert "draws no pictures" in refusal(run, video=True) and "draws no pictures" in refusal(run, render=True)


def test_a_board_of_microrts():
    """A square for each cell, 3 x 4 of them: empty ones dark, the others in their owner's colour."""
    planes = np.zeros((27, 3, 4), np.uint8)
    planes[[0, 5, 10, 13, 21]] = 1  # no hit points, no resources, nobody's, no unit, doing nothing
    for (y, x), owner, unit in (((0, 0), 0, 1), ((0, 3), 1, 2), ((2, 1), 2, 4)):  # ore, the agent's base, a worker
        planes[[10, 13], y, x] = 0
        planes[[10 + owner, 13 + unit], y, x] = 1
    image = enjoy.picture(SimpleNamespace(render_mode=None), planes[None])
    assert image.shape == (120, 160, 3)
    middles = image[5::40, 5::40].astype(int)  # beside the letters
    brightest = np.where(np.ptp(middles, axis=-1) > 50, middles.argmax(-1), -1)  # red, green, blue; -1: grey
    assert brightest.tolist() == [[1, -1, -1, 2], [-1, -1, -1, -1], [-1, 0, -1, -1]]
    planes[5, 0, 0], planes[8, 0, 0] = 0, 1  # the ore has 3 resources, which its square alone says
    changed = (enjoy.picture(SimpleNamespace(render_mode=None), planes[None]) != image).any(-1)
    assert changed[:40, :40].any() and changed.sum() == changed[:40, :40].sum()


def test_a_film_of_microrts(tmp_path, capsys):
    few = "--env-id MicrortsMining-v1 --total-timesteps 32 --num-envs 1 --num-steps 16"
    run = train(MASK, few, tmp_path)
    games, *_ = play(run, capsys, episodes=1, video=True)
    [film] = run.glob("videos*/*.mp4")
    assert frames(film) == pytest.approx(games[0][1], abs=2)
    _, image = cv2.VideoCapture(str(film)).read()
    assert image.shape == (400, 400, 3)  # of 10 x 10 cells, some of them in colour
    assert np.ptp(image.astype(int), axis=-1).max() > 100


def test_a_window_that_nobody_sees(cartpole, capsys, monkeypatch):
    """Without a screen pygame draws into memory, and says nothing."""
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "offscreen")
    monkeypatch.setattr(enjoy.time, "sleep", lambda seconds: None)
    pygame.display.quit()
    enjoy.enjoy(enjoy.Args(cartpole, episodes=1, render=True))
    assert capsys.readouterr().out.count("no screen here for a window") == 1
    pygame.display.quit()


def test_options_of_the_script_that_are_set(tmp_path, capsys, monkeypatch):
    """As the script takes them, with the type that they have in the run; every other option is the run's."""
    run = train(ppo, CLOCK, tmp_path)
    asked, rebuild = [], enjoy.rebuild

    def watched(script, state, folder, **options):
        asked.append(options)
        return rebuild(script, state, folder, **options)

    monkeypatch.setattr(enjoy, "rebuild", watched)
    for words in (["--set", "gamma=1", "target-kl=0.5"], ["--set", "gamma=1", "--set", "target_kl=0.5"]):
        monkeypatch.setattr(sys, "argv", ["enjoy.py", str(run), "--episodes", "1", *words])
        enjoy.main()
        assert asked.pop() == {"seed": enjoy.NEW_GAMES, "capture_video": False, "gamma": 1, "target_kl": 0.5}
    saved = checkpoint(run)["args"]
    settings = enjoy.changed(saved, ["env_id=CartPole-v1", "async_envs=True"])
    assert settings == {"env_id": "CartPole-v1", "async_envs": True}
    play(run, capsys, episodes=1, set=(("env_id=CartPole-v1",),))
    assert asked.pop()["env_id"] == "CartPole-v1"
    for wrong, named in (("levels=3", "levels=3.*one of seed"), ("num_envs=2", "one of seed"), ("gamma", "name=value"),
                         ("gamma=high", "gamma is 0.99"), ("num_steps=1.5", "another type"),
                         ("num_steps=true", "another type"), ("async_envs=1", "another type")):  # fmt: skip
        assert re.search(named, refusal(run, set=((wrong,),)))


@with_qt
def test_levels_of_procgen(tmp_path, capsys):
    """Of one level every game begins with the same picture, and of another with another."""
    few = "--env-id coinrun --total-timesteps 32 --num-envs 2 --num-steps 8 --num-minibatches 2 --num-levels 1"
    run = train(PROCGEN, few, tmp_path)
    (state, _), first = enjoy.load(run), []
    for settings in ([], ["start_level=7"], ["start_level=7"]):
        options = enjoy.changed(state["args"], settings)
        envs, _ = enjoy.rebuild(PROCGEN.module, state, tmp_path, **options)
        first.append(envs.reset(seed=3)[0])
    assert (first[1] == first[2]).all() and (first[0] != first[1]).any()


@pytest.mark.filterwarnings("ignore:.*zero frames")
def test_where_nothing_can_be_drawn(cartpole, monkeypatch):
    monkeypatch.setattr(gym.envs.classic_control.CartPoleEnv, "render", lambda env: 1 / 0)
    assert "division by zero" in refusal(cartpole, video=True, video_folder=cartpole.parent)
    assert enjoy.enjoy(enjoy.Args(cartpole, episodes=1))


# A program for another process: a run of a script that says what its environments would be drawn with.
DRAWN = """
import os, sys
import gymnasium, ppo_continuous_action
gymnasium.make = lambda *args, **kwargs: sys.exit(f"drawn with {os.environ.get('MUJOCO_GL')}")
sys.argv[0] = "ppo_continuous_action.py"
ppo_continuous_action.main()
"""


def test_mujoco_is_filmed_without_a_screen(tmp_path, monkeypatch):
    """By the script, and by enjoy.py with a script that cannot; both choose EGL. What cannot draw is named."""
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    for options, display, drawn in (("--capture-video", "", "egl"), ("", "", None), ("--capture-video", ":7", None)):
        _, _, errors = finish(start(["-c", DRAWN, *options.split()], tmp_path, DISPLAY=display))
        assert errors == f"drawn with {drawn}\n"
    film = "--capture-video" if find_library("EGL") else ""
    script = ROOT / f"{BOX.name}.py"
    options = f"--env-id Hopper-v5 --total-timesteps 256 --num-steps 256 {film}"
    status, _, errors = finish(start([script, *options.split()], tmp_path, DISPLAY=""))
    assert status == 0, errors
    run = newest_run(tmp_path)
    filming = [script, *options.split(), "--capture-video"]
    status, _, errors = finish(start(filming, tmp_path, DISPLAY="", MUJOCO_GL="nothing"))
    assert status == 1 and re.fullmatch(r"error: Hopper-v5 cannot be filmed; [^\n]*MUJOCO_GL: nothing[^\n]*\n", errors)
    command = [ROOT / "enjoy.py", run, "--episodes", "1", "--video"]
    status, _, errors = finish(start(command, tmp_path, DISPLAY="", MUJOCO_GL="nothing"))
    assert status == 1 and re.fullmatch(r"error: [^\n]*MUJOCO_GL=nothing[^\n]*\n", errors)
    if film:
        assert list(run.glob("videos-*/*.mp4"))
        copy, chosen = run / script.name, 'os.environ.setdefault("MUJOCO_GL", "egl")'
        copy.write_text(script.read_text().replace(chosen, "pass"))
        status, output, errors = finish(start(command, tmp_path, DISPLAY=""))
        assert (status, len(list(Path(output.split("films: ")[1].strip()).iterdir()))) == (0, 1), errors
    else:
        status, _, errors = finish(start(command, tmp_path, DISPLAY=""))
        assert status == 1 and re.fullmatch(r"error: [^\n]*MUJOCO_GL[^\n]*\n", errors)


def test_bad_input(cartpole, tmp_path):
    assert "no such file" in refusal(tmp_path / "nowhere")
    assert "no checkpoint in this folder" in refusal(tmp_path)
    assert "--episodes" in refusal(cartpole, episodes=0)
    (tmp_path / "text.pt").write_text("hello")
    assert "no whole checkpoint" in refusal(tmp_path / "text.pt")
    for other in ([1, 2], {"weights": torch.zeros(3)}):
        torch.save(other, tmp_path / "other.pt")
        assert "no checkpoint of these scripts" in refusal(tmp_path / "other.pt")
