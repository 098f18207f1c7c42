"""benchmark/: sweeps go on where they were stopped, no run is dropped in silence, tables are those of the results."""

import csv
import hashlib
import json
import lzma
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from filelock import FileLock, Timeout
from in_process import train
from processes import finish, start, started
from run_files import scalars
from scipy import stats
from script_table import PPO, ROOT
from torch.utils.tensorboard import SummaryWriter

from benchmark import (
    aggregate,
    atari57,
    collect,
    compare,
    curves,
    equal_steps,
    experiments,
    games,
    procgen,
    report,
    results,
    scores,
    sweep,
)
from benchmark.ablation import effects
from benchmark.scripts import SCRIPTS
from recipes import recipe as recipe_files


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of runs of ppo.py on CartPole-v1 of 2048 steps in 4 updates: seed 1 is done, seed 2 lacks the last."""
    folder = tmp_path_factory.mktemp("sweep")
    for seed in (1, 2):
        run = train(PPO, f"--total-timesteps 2048 --save-every 1 --seed {seed}", folder)
        with_about(run)
    [last] = folder.glob("runs/CartPole-v1__ppo__2__*/checkpoint_000000002048.pt")
    last.unlink()
    return folder


@pytest.fixture
def run(folder, tmp_path):
    """A copy of the run that is done."""
    [done] = folder.glob("runs/CartPole-v1__ppo__1__*")
    return shutil.copytree(done, tmp_path / done.name)


def stopped(folder):
    """The run that is not done."""
    return next(folder.glob("runs/CartPole-v1__ppo__2__*"))


def table(folder, kind):
    """A table of the only run in a folder of results."""
    [path] = Path(folder).glob(f"*/*.{kind}.csv.xz")
    [run] = results.read_table(path).values()
    return run


def listed(folder):
    """What a folder of results knows about its only run."""
    [path] = Path(folder).glob("ours/*.json")
    [about] = results.read_list(path)
    return about


def collect_one(run, folder, capsys):
    """Collects a run; returns what is said about it."""
    collect.collect([run], folder)
    return capsys.readouterr().out


def with_about(run, file="run.json", args=(), **about):
    """Gives a run another run.json, or adds one of a resume."""
    text = json.loads((run / "run.json").read_text())
    text.pop("defaults", None)  # only older scripts write them
    (run / file).write_text(json.dumps(text | about | {"args": text["args"] | dict(args)}))


def copy_of(run, folder, script="ppo", seed=1, **args):
    """A copy of a run of ppo.py, as if `script` had made it with this seed and args."""
    options = "".join(f"-{key}-{value}" for key, value in args.items())
    to = Path(shutil.copytree(run, folder / f"CartPole-v1__{args.get('exp_name', script)}__{seed}__{options}"))
    with_about(to, script=f"{script}.py", args={"exp_name": script, "seed": seed} | args)
    (to / "ppo.py").rename(to / f"{script}.py")
    return to


# THE LAUNCHER


def run_sweep(lines, *words):
    """What a sweep of the lines returns, with words of its command line."""
    settings, others = sweep.read_settings(words, os.environ)
    return sweep.main(lines, settings, others)


def start_job(job, folder):
    """The process of a job, or None where another sweep makes a run of it."""
    with sweep.locked_logs(job, folder) as logs:
        return None if logs is None else sweep.start(job, folder, logs)


def start_sweep(script, *words, **variables):
    """Starts benchmark/<script> as a user does."""
    variables = {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"} | {k: str(v) for k, v in variables.items()}
    command, pipe = [ROOT / "benchmark" / script, *words], subprocess.PIPE
    return subprocess.Popen(command, env=os.environ | variables, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_sweep_that_was_killed_repeats_nothing(number, folder, tmp_path):
    """The done run is only collected, the other one goes on from its checkpoint, also after the sweep was stopped."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*__1__*/*")}
    name = "CartPole-v1__ppo__{}__total_timesteps=2048"
    words = "ppo.py", "CartPole-v1", "--seeds", "1", "2"
    variables = dict(FOLDER=tmp_path, SEEDS="3", TOTAL_TIMESTEPS=2048)
    process = start_sweep("ours/classic_control.sh", *words, **variables)
    said = [process.stdout.readline(), process.stdout.readline()]
    assert said == [f"done: {name.format(1)}\n", f"started: {name.format(2)}\n"]
    process.send_signal(number)
    assert finish(process) == (1, "", "stopped; the same command goes on\n")
    process = start_sweep("ours/classic_control.sh", *words, **variables, RESULTS=tmp_path / "results")
    status, output, _ = finish(process)
    lines = output.splitlines()
    done, started, ended = map(str.strip, [*said, f"finished: logs/{name.format(2)}.log"])
    assert status == 0 and [lines.pop(0), lines.pop(1), lines.pop(1)] == [done, started, ended]
    assert len(lines) == 2 and all(line.startswith("collected: ") and "2048 steps" in line for line in lines)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*__1__*/*")} == before
    [run] = tmp_path.glob("runs/*__2__*")
    assert [step for step, *_ in collect.events(run)["losses/policy_loss"]] == [512, 1024, 1536, 2048]
    seeds = {about["seed"]: about for about in results.read_list(tmp_path / "results/ours/ppo.json")}
    assert set(seeds) == {1, 2} and seeds[2]["machine"]["runs_at_once"] == 1
    shutil.rmtree(run)  # the results have it
    assert sweep.make_ours("ppo.py", 2, tmp_path, "2048", tmp_path / "results").done()
    assert not sweep.make_ours("ppo.py", 2, tmp_path, "4096", tmp_path / "results").done()


def test_a_sweep_knows_a_run_by_script_and_options(folder):
    def make(line="ppo.py --env-id CartPole-v1", seed=1, steps="2048"):
        return sweep.make_ours(line, seed, folder, steps)

    assert make().done() and make("ppo.py --env-id CartPole-v1 --no-cuda --save-every 7").done()
    others = [make(steps="4096"), make("ppo_shared.py"), make("ppo.py --env-id Acrobot-v1"), make(seed=3)]
    for other in [*others, make("ppo.py --gamma 0.9"), make("ppo.py --anneal-clip"), make(seed=2)]:
        assert not other.done()
        assert ("--resume" in other.command()) == (other.args["seed"] == 2)
    assert {"--resume", "--no-cuda"} < {*make("ppo.py --no-cuda", seed=2).command()}
    assert make("ppo.py --gamma 0.9").name == "CartPole-v1__ppo__1__gamma=0.9__total_timesteps=2048"


def test_a_sweep_does_not_take_another_run_for_its_own(run, tmp_path):
    """One from before an option existed has its default, one of another text is named, one from a file is another."""
    (tmp_path / "runs").mkdir()
    run = run.rename(tmp_path / "runs" / run.name)
    about = json.loads((run / "run.json").read_text())
    del about["args"]["anneal_clip"]
    (run / "run.json").write_text(json.dumps(about))
    same = sweep.make_ours("ppo.py", 1, tmp_path, "2048")
    assert same.done() and same.note() is None
    assert not sweep.make_ours("ppo.py --anneal-clip", 1, tmp_path, "2048").done()
    edited = tmp_path / "ppo.py"
    option = "    layers: tuple[int, ...] = (64,)\n    seed: int"
    edited.write_text((ROOT / "ppo.py").read_text().replace("    seed: int", option))
    other_text = sweep.make_ours(str(edited), 1, tmp_path, "2048")
    assert other_text.done() and "another text of ppo.py" in other_text.note()
    with_about(run, args={"layers": [64, 64]})  # a tuple is a list in run.json
    assert sweep.make_ours(f"{edited} --layers 64 64", 1, tmp_path, "2048").done()
    with_about(run, args={"resume": "runs/other/checkpoint_000000000512.pt"})
    assert not sweep.make_ours("ppo.py", 1, tmp_path, "2048").done()


@pytest.mark.parametrize("name", ["my_ppo", "ppo"])
def test_a_result_of_another_text_of_a_copy_is_named(name, tmp_path):
    copy = tmp_path / f"{name}.py"
    shutil.copy(ROOT / "ppo.py", copy)
    run = sweep.make_ours(str(copy), 1, tmp_path, "2048", tmp_path / "results")
    assert not run.done()
    result = run.entry | {"steps": 2048, "steps_wanted": 2048, "source": collect.git_hash(copy)}
    (tmp_path / "results/ours").mkdir(parents=True)
    (tmp_path / f"results/ours/{name}.json").write_text(json.dumps([result]))
    assert run.done() and run.note() is None
    copy.write_text(copy.read_text() + "# edited\n")
    assert run.done() and f"of another text of {name}.py, so it is not run" in run.note()


def test_two_scripts_of_one_name(tmp_path):
    """Their runs would have the same names."""
    copy = tmp_path / "ppo.py"
    shutil.copy(ROOT / "ppo.py", copy)
    settings, _ = sweep.read_settings(["--folder", str(tmp_path), "--seeds", "1"], {})
    with pytest.raises(SystemExit, match="scripts of a sweep need different file names"):
        sweep.main(["ppo.py --total-timesteps 512", f"{copy} --total-timesteps 512"], settings)


def test_a_run_is_found_by_what_it_says_not_by_its_name(run, tmp_path):
    """A name with the characters of a pattern is no pattern, and a folder may have any name."""
    (tmp_path / "runs").mkdir()
    run = run.rename(tmp_path / "runs" / "renamed")
    with_about(run, args={"exp_name": "lr[1e-3]*"})
    line = "ppo.py --exp-name 'lr[1e-3]*'"
    assert sweep.make_ours(line, 1, tmp_path, "2048").done()
    assert not sweep.make_ours("ppo.py --exp-name lr1", 1, tmp_path, "2048").done()
    assert not sweep.make_ours("ppo.py", 1, tmp_path, "2048").done()


@pytest.mark.parametrize("committed", [False, True])
def test_a_result_of_another_text_of_a_recipe_is_named(committed, tmp_path, monkeypatch):
    """But not where the present text is committed: the results have runs of many such texts."""
    run = sweep.make_ours("ppo.py + without/core-9", 1, tmp_path, "2048", tmp_path / "results")
    run.sweep_about["commit"] = "0" * 40 if committed else None
    result = run.entry | {"steps": 2048, "steps_wanted": 2048, "source": "another"}
    (tmp_path / "results/ours").mkdir(parents=True)
    (tmp_path / "results/ours/ppo.json").write_text(json.dumps([result]))
    assert run.done() and (run.note() is None) == committed
    own = sweep.make_ours("ppo.py", 1, tmp_path, "2048", tmp_path / "results")
    (tmp_path / "results/ours/ppo.json").write_text(json.dumps([result | own.entry]))
    text = own.file.read_bytes() if committed else b"edited"
    monkeypatch.setattr(collect, "git", lambda *_: hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest())
    assert own.done() and (own.note() is None) == committed


def test_a_line_with_recipes_makes_a_script(tmp_path, monkeypatch):
    """Named after them; a pattern stands for those that fit, and the result has the recipe."""
    lines = sweep.expand("ppo.py + without/core-1* --gamma 0.9")
    assert "ppo.py + without/core-11 --gamma 0.9" in lines and sweep.expand(lines[0]) == [lines[0]]
    assert "ppo.py + with/muon + without/core-10" in sweep.expand("ppo.py + with/muon + without/core-1*")
    run = sweep.make_ours("ppo.py + without/core-11 + without/core-9 --total-timesteps 512", 1, tmp_path)
    assert run.file == tmp_path / "build/ppo+core-11+core-9.py" and run.script == "ppo+core-11+core-9"
    assert "[core 9]" not in run.file.read_text() and "[core 8]" in run.file.read_text()
    assert start_job(run, tmp_path).wait() == 0 and run.done()
    assert sweep.finish(run, 0, {"cores": 2}) == 0
    collect.collect([run.run_folder()], tmp_path / "results")
    about = listed(tmp_path / "results")
    assert about["recipe"] == "recipes/without/core-11.diff + recipes/without/core-9.diff"
    assert about["script"] == "ppo+core-11+core-9" and about["machine"] == {"cores": 2} and "commit" in about
    monkeypatch.setattr(sweep, "start", None)  # no run is started
    monkeypatch.setenv("FOLDER", str(tmp_path))
    wrong = {
        "ppo.py + without/nix": FileNotFoundError,
        "ppo.py + with/lstm-mask": ValueError,  # it does not apply
        "ppo.py --gama 0.9": SystemExit,
    }
    for line, error in wrong.items():
        with pytest.raises(error):
            run_sweep([lines[0], line])


def test_two_sweeps_do_not_make_the_same_run(tmp_path, monkeypatch):
    """The log is locked by the run itself, even when its sweep is no more."""
    run = sweep.make_ours("ppo.py", 1, tmp_path, "512")
    monkeypatch.setattr(run, "command", lambda: ["sleep", "60"])
    for _ in range(2):
        process = start_job(run, tmp_path)
        assert start_job(run, tmp_path) is None
        process.kill()
        process.wait()


def test_runs_side_by_side_are_locked_one_by_one(tmp_path, monkeypatch):
    """A sweep with another number of AGENTS puts them together in another way."""
    first, second, third = (sweep.make_ours("ppo_seeds.py", seed, tmp_path, "512") for seed in (1, 2, 3))
    job = sweep.SideBySide([first, second])
    for each in (job, first, second, third):
        monkeypatch.setattr(each, "command", lambda: ["sleep", "60"])
    process = start_job(job, tmp_path)
    assert [start_job(run, tmp_path) for run in (first, second)] == [None, None]
    assert f"see {job.name}.log" in (tmp_path / "logs" / f"{first.name}.log").read_text()
    free = start_job(third, tmp_path)
    assert start_job(sweep.SideBySide([second, third]), tmp_path) is None
    for each in (process, free):
        each.kill()
        each.wait()


def test_a_run_gets_one_signal(monkeypatch):
    """A second one would end it without a checkpoint, and the update under way may take long."""

    class Slow:
        polls = signals = 0

        def poll(self):
            self.polls += 1
            return 0 if self.polls > 3 else None

        def send_signal(self, number):
            self.signals += 1

        def wait(self, timeout=None):
            if timeout is not None:
                raise subprocess.TimeoutExpired("slow", timeout)

    process = Slow()
    sweep.stop([process])
    assert process.signals == 1


def test_a_run_that_got_the_signal_of_its_sweep_still_saves(tmp_path):
    """As under timeout, which sends SIGTERM to the sweep and to its runs."""
    words = "--num-envs 1 --num-steps 8192 --total-timesteps 50000000 --no-cuda"  # an update takes seconds
    process = start([ROOT / "ppo.py", *words.split()], tmp_path)
    folder = started(process, tmp_path)
    process.terminate()
    while "stopping after this update" not in process.stderr.readline():
        assert process.poll() is None
    sweep.stop([process])
    assert process.returncode == 128 + signal.SIGUSR2
    assert sorted(folder.glob("checkpoint_*.pt"))[-1].stem > "checkpoint_000000000000"


def test_options_of_a_sweep_go_before_its_variables():
    """Other words choose lines; a variable that is empty counts as not set."""
    variables = {"SEEDS": "4 5 4", "WORKERS": "3", "RESULTS": "", "TASK": "2", "TOTAL_TIMESTEPS": "512"}
    settings, words = sweep.read_settings(["ppo.py", "--bf16"], variables)
    assert (settings.seeds, settings.workers, settings.task, settings.results) == ([4, 5], 3, 2, None)
    assert words == ["ppo.py", "--bf16"] and settings.total_timesteps == "512" and not settings.list_only
    options = "A-v0 --seeds 1 2 --workers 1 --results x --folder y --task 0 --list".split()
    settings, words = sweep.read_settings(options, variables)
    assert (settings.seeds, settings.workers, settings.task, settings.list_only) == ([1, 2], 1, 0, True)
    assert (settings.results, settings.folder, words) == (ROOT / "x", ROOT / "y", ["A-v0"])
    with pytest.raises(SystemExit):  # it would wait for ever
        sweep.read_settings([], {"WORKERS": "0"})


LINES = {
    "ppo.py --resume runs/x": "a line has no --resume",
    "ppo.py --seed 3": "a line has no --seed",
    "ppo_seeds.py --seeds 3 4": "a line has no --seed",
    "ppo_seeds.py --gamma 0.9 0.99": "one value for each option",
    "ppo2_copy --env=A-v0 --num_timesteps=512 --seed=3": "a line has no --seed",
}


@pytest.mark.parametrize("line", LINES)
def test_lines_of_which_a_sweep_would_replace_something(line, tmp_path):
    """In silence."""
    make = sweep.PPO2 if line.startswith("ppo2_") else sweep.make_ours
    with pytest.raises(SystemExit, match=LINES[line]):
        make(line, 1, tmp_path)


def test_a_pattern_that_fits_nothing():
    with pytest.raises(SystemExit, match="is no recipe that fits"):
        sweep.expand("ppo.py + nowhere/core-*")


def test_a_run_that_outlived_its_sweep_keeps_its_recipe(tmp_path):
    """Nothing wrote sweep.json, the only file that names the recipe and its commit, when the run ended."""
    line = "ppo.py + without/core-9 --total-timesteps 512"
    run = sweep.make_ours(line, 1, tmp_path, results_folder=tmp_path / "results")
    assert start_job(run, tmp_path).wait() == 0
    assert sweep.collect_done(run, tmp_path / "results") == 0
    about = listed(tmp_path / "results")
    assert about["recipe"] == "recipes/without/core-9.diff" and about["machine"] == "unknown"


def test_a_script_with_recipes_is_replaced_as_a_whole(tmp_path):
    """Another sweep may be reading it."""
    run = sweep.make_ours("ppo.py + without/core-9", 1, tmp_path)
    text = run.file.read_text()
    run.file.write_text("an older text")
    os.link(run.file, tmp_path / "open elsewhere")
    sweep.make_ours("ppo.py + without/core-9", 1, tmp_path)
    assert run.file.read_text() == text and (tmp_path / "open elsewhere").read_text() == "an older text"
    assert [path.name for path in run.file.parent.glob("*.*")] == ["ppo+core-9.py"]


def test_names_of_recipes_differ():
    """Also without their folders, which the name of a script with recipes does not have."""
    names = [recipe.file.stem for recipe in recipe_files.recipes()]
    assert len(names) == len(set(names)) > 100


def test_only_what_the_results_lack_is_collected(run, tmp_path):
    """Of runs side by side that are done, one may be in the results alone."""
    (tmp_path / "runs").mkdir()
    run = run.rename(tmp_path / "runs" / run.name)
    collect.collect([run], tmp_path / "results")
    with_about(run, args={"seed": 2})
    first, second = (sweep.make_ours("ppo.py", seed, tmp_path, "2048", tmp_path / "results") for seed in (1, 2))
    job = sweep.SideBySide([first, second])
    assert first.run_folder() is None and job.done() and job.to_collect() == [run]
    assert sweep.make_ours("ppo.py", 2, tmp_path, "2048").to_collect() == []


def test_a_sweep_reports_what_failed(tmp_path, monkeypatch, capsys):
    """And makes the other runs."""
    for name, value in {"FOLDER": tmp_path, "SEEDS": "1 2", "TOTAL_TIMESTEPS": 512, "OMP_NUM_THREADS": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    fails = lambda run: [sys.executable, "-c", f"import sys; sys.exit({run.args['seed'] == 1})"]  # noqa: E731
    monkeypatch.setattr(sweep.Ours, "command", fails)
    assert run_sweep(["ppo.py"]) == 1
    one = "CartPole-v1__ppo__1__total_timesteps=512"
    two = "CartPole-v1__ppo__2__total_timesteps=512"
    assert capsys.readouterr().out.splitlines() == [
        f"started: {one}",
        f"failed: logs/{one}.log",
        f"started: {two}",
        f"finished: logs/{two}.log",
    ]


SWEEPS = sorted((ROOT / "benchmark").glob("*/*.sh")) + sorted((ROOT / "benchmark").glob("tuned.sh"))


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_sweep_has_its_lines(path, tmp_path):
    """Of scripts that are there, with recipes that apply to them; sweep.py reads the lines from its input."""
    (tmp_path / "python").write_text("#!/bin/sh\ncat\n")
    (tmp_path / "python").chmod(0o755)
    status, output, _ = finish(start_sweep(path.relative_to(ROOT / "benchmark"), PYTHON=tmp_path / "python"))
    lines = output.splitlines()
    assert status == 0 and len(lines) == len(set(lines)) > 0
    for line in lines:
        for expanded in sweep.expand(line):  # a pattern stands for the recipes that fit
            script, names, _ = sweep.parts(expanded)
            if script not in experiments.PAIRS.values():  # not a run of ppo2
                assert script.removesuffix(".py") in SCRIPTS
                sweep.with_recipes(script, names)


def test_a_sweep_lists_its_runs(monkeypatch, capsys):
    """Each with every seed, of the lines that have all words; a task of a Slurm array is one of them."""
    lines = ["ppo.py --env-id A-v0", "ppo.py --bf16 --env-id A-v0", "ppo_shared.py --env-id A-v0"]
    monkeypatch.setenv("LIST", "1")
    monkeypatch.setenv("SEEDS", "1 5")
    assert run_sweep(lines, "ppo.py") == 0
    assert capsys.readouterr().out.splitlines() == [f"{line} (seed {seed})" for seed in (1, 5) for line in lines[:2]]
    monkeypatch.setenv("TASK", "3")
    run_sweep(lines)
    assert capsys.readouterr().out == f"{lines[0]} (seed 5)\n"
    for task in ("6", "-1"):
        monkeypatch.setenv("TASK", task)
        with pytest.raises(SystemExit, match="there are tasks 0 to 5"):
            run_sweep(lines)
    with pytest.raises(SystemExit, match="no experiment has the words"):
        run_sweep(lines, "ppo.py", "nix")


def test_a_run_of_ppo2(tmp_path, monkeypatch, capsys):
    """Its command has the options; it is done once its log is, and is collected."""
    monkeypatch.setenv("BASELINES_PYTHON", sys.executable)
    run = sweep.PPO2("ppo2_copy --env=CartPole-v1 --num_env=4 '--lr=lambda f: f * 2.5e-4'", 3, tmp_path, "2000")
    assert {"--lr=lambda f: f * 2.5e-4", "--seed=3", "--num_timesteps=2000"} < {*run.command()} and not run.done()
    names = [f"loss/{name}" for name in ("policy_loss", "value_loss", "policy_entropy", "approxkl", "clipfrac")]
    lines = [[*names, "misc/explained_variance", "fps", "misc/time_elapsed", "misc/total_timesteps"]]
    lines += [[*[0.5] * 7, update * 2.0, update * 512] for update in (1, 2, 3)]
    (run.folder / "progress.csv").write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
    for i in range(4):
        (run.folder / f"0.{i}.monitor.csv").write_text(f'#{{"t_start": 1.0}}\nr,l,t\n{i}.5,{100 + i},1.25\n7,20,2.5\n')
    assert run.done() and "1536 steps, 8 episodes" in collect_one(run.folder, tmp_path / "results", capsys)
    episodes, updates = table(tmp_path / "results", "episodes"), table(tmp_path / "results", "updates")
    assert episodes["step"].tolist() == [400, 404, 408, 412, 480, 484, 488, 492]  # 4 environments step together
    assert episodes["return"].tolist() == [0.5, 1.5, 2.5, 3.5, 7, 7, 7, 7]
    assert updates["step"].tolist() == [512, 1024, 1536] and updates["seconds"].tolist() == [2, 4, 6]
    (run.folder / "0.3.monitor.csv").unlink()
    assert "3 monitors of 4 environments" in collect_one(run.folder, tmp_path / "results", capsys)
    (run.folder / "episodes.csv").write_text("step,seconds,return,length,env\n396,1.5,3.0,99,2\n1540,7.5,9.0,200,0\n")
    collect_one(run.folder, tmp_path / "results", capsys)
    episodes = table(tmp_path / "results", "episodes")  # of what a hook recorded, up to the last update
    assert {name: column.tolist() for name, column in episodes.items()} == {
        "step": [396], "seconds": [1.5], "return": [3], "length": [99]
    }  # fmt: skip


# COLLECTING


def remove_checkpoints(run):
    for path in run.glob("*.pt"):
        path.unlink()


def cut_log(run):
    for path in run.glob("events.*"):
        os.truncate(path, 4000)


WRECKS = {  # what is done to a run, and the reason that is given
    "half a run.json": (lambda run: os.truncate(run / "run.json", 100), "JSONDecodeError"),
    "no checkpoint": (remove_checkpoints, "no checkpoint"),
    "half a log": (cut_log, "the log lacks"),
    "begun from a file": (lambda run: with_about(run, args={"resume": "x/c.pt"}), "begun from x/c.pt"),
    "other rollouts": (lambda run: with_about(run, "run_000000000512.json", {"num_envs": 2}), "num_envs or num_steps"),
}


@pytest.mark.parametrize("wreck", WRECKS)
def test_a_broken_run_is_named_and_left_out(wreck, run, folder, tmp_path, monkeypatch, capsys):
    """And the one beside it is collected."""
    damage, reason = WRECKS[wreck]
    damage(run)
    monkeypatch.setattr(sys, "argv", ["", str(run), str(stopped(folder)), "--results", str(tmp_path / "results")])
    assert collect.main() is True
    broken, good = capsys.readouterr().out.splitlines()
    assert broken.startswith(f"broken: {run}: ") and reason in broken
    assert good.startswith("collected: ") and good.endswith(" episodes") and "1536 of 2048 steps" in good


def test_what_is_collected_is_what_was_logged(run, tmp_path):
    with SummaryWriter(run) as writer:
        writer.add_scalar("charts/win_rate_random", 0.75, 1024)
        for tag in ("a/value_loss", "a/step", "a/run"):  # whose short names the table has already
            writer.add_scalar(tag, 0.5, 1024)
    collect.collect([run], tmp_path, "a test")
    logged, episodes, updates = scalars(run), table(tmp_path, "episodes"), table(tmp_path, "updates")
    assert list(zip(episodes["step"], episodes["return"], strict=True)) == logged["charts/episodic_return"]
    assert list(zip(episodes["step"], episodes["length"], strict=True)) == logged["charts/episodic_length"]
    assert {"policy_loss", "approx_kl_ppo2", "explained_variance", "learning_rate", "SPS"} < updates.keys()
    np.testing.assert_array_equal(updates["win_rate_random"], [np.nan, 0.75, np.nan, np.nan])
    for name in ("a/value_loss", "a/step", "a/run"):
        np.testing.assert_array_equal(updates.pop(name), [np.nan, 0.5, np.nan, np.nan])
    for name in updates.keys() - {"step", "seconds", "win_rate_random"}:
        kind = "charts" if name in ("SPS", "learning_rate") else "losses"
        np.testing.assert_allclose(updates[name], [value for _, value in logged[f"{kind}/{name}"]], rtol=1e-3)
    assert updates["step"].tolist() == [512, 1024, 1536, 2048] and (np.diff(updates["seconds"]) >= 0).all()
    about = listed(tmp_path)
    assert results.name_of(about) == "CartPole-v1__ppo__1__total_timesteps=2048"
    assert about["command"] == "python ppo.py --env-id CartPole-v1 --seed 1 --total-timesteps 2048"
    assert about["options"] == {"total_timesteps": 2048} and about["machine"] == "a test"
    assert "torch" in about["versions"] and about["steps"] == about["steps_wanted"] == 2048
    hashed = subprocess.run(["git", "hash-object", run / "ppo.py"], capture_output=True, text=True, check=True)
    assert about["source"] == hashed.stdout.strip()


def test_a_start_replaces_what_was_logged_from_its_step_on(tmp_path):
    """As TensorBoard reads a log; the time between a stop and a resume does not count."""
    for number, (purge, steps) in enumerate([(1, (1, 2, 3, 4)), (3, (3, 4, 5))]):
        with SummaryWriter(tmp_path, purge_step=purge, filename_suffix=str(number)) as writer:
            for step in steps:
                writer.add_scalar("x", 10 * number + step, step, walltime=1000 * number + step + 2e9)
        [file] = tmp_path.glob(f"events.*{number}")
        file.rename(tmp_path / f"events.{number}")
    read = collect.events(tmp_path)["x"]
    assert [(step, value) for step, value, _ in read] == [(1, 1), (2, 2), (3, 13), (4, 14), (5, 15)]
    assert read[2][2] - read[1][2] < 2e9 and np.all(np.diff([each[2] for each in read]) > 0)


def test_a_run_counts_up_to_its_checkpoint_and_gives_way_to_a_longer_one(folder, run, tmp_path, capsys):
    part = stopped(folder)
    shutil.copy(part / "checkpoint_000000001536.pt", part / "checkpoint_best.pt")  # a recipe's, say
    assert "1536 of 2048 steps" in collect_one(part, tmp_path / "results", capsys)
    assert table(tmp_path / "results", "updates")["step"].tolist() == [512, 1024, 1536]
    assert table(tmp_path / "results", "episodes")["step"].max() <= 1536
    with_about(run, args={"seed": 2})  # as if the other had been done
    assert "in place of" in collect_one(run, tmp_path / "results", capsys)
    assert "left out: " in collect_one(part, tmp_path / "results", capsys)
    assert table(tmp_path / "results", "updates")["step"].max() == 2048


@pytest.mark.slow
def test_what_a_resume_changed(folder, tmp_path):
    """Options make another experiment; what was given again as it was, or after the end, changes nothing."""
    run = shutil.copytree(stopped(folder), tmp_path / "runs/CartPole-v1__ppo__2__now")
    changes = {512: {"exp_name": "x"}, 1024: {"gamma": 0.9}, 1280: {"gamma": 0.9}, 1536: {"gamma": 0.5}}
    for step, args in changes.items():
        shutil.copy(run / "ppo.py", run / f"ppo_{step:012}.py")
        with_about(run, f"run_{step:012}.json", args)
    about = collect.describe(run)
    assert about["options"] == {"gamma": "0.99, from step 1024 0.9", "total_timesteps": 2048}
    assert "resumed" not in about  # the script's text stayed the same
    assert sweep.make_ours("ppo.py", 2, tmp_path, "2048").run_folder() is None


def test_a_run_outside_of_git_has_no_commit():
    """Not that of the files that the index has now."""
    assert collect.commit_of({"commit": ""}, "ppo", collect.git_hash(ROOT / "ppo.py")) is None


def test_without_git_a_run_has_no_commit(run, tmp_path, monkeypatch, capsys):
    """And it is collected all the same."""
    with_about(run, commit="0" * 40)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert collect_one(run, tmp_path / "results", capsys).startswith("collected: ")
    assert listed(tmp_path / "results")["commit"] is None


def test_a_command_can_be_typed():
    about = {"script": "ppo", "env_id": "CartPole-v1", "seed": 1, "options": {"exp_name": "a b"}}
    command = collect.command_of(about, {"exp_name": "a b"})
    assert command == "python ppo.py --env-id CartPole-v1 --seed 1 --exp-name 'a b'"


def test_a_shorter_run_does_not_replace_a_longer_one(run, tmp_path):
    """Also where the longer one was added by another process meanwhile."""
    family = tmp_path / "ours/ppo.json"
    longer = collect.gathered(run)
    shorter = longer._replace(about=longer.about | {"steps": 1024})
    assert results.add(family, [shorter]) == [] and results.add(family, [longer]) == []
    assert results.add(family, [shorter]) == [shorter]
    assert [about["steps"] for about in results.read_list(family)] == [2048]


def test_a_repeat_of_a_seed_is_a_run_of_the_same_experiment(run, tmp_path):
    family = tmp_path / "results/ours/ppo.json"
    first = collect.gathered(run)
    results.add(family, [first, first._replace(about=first.about | {"repeat": 2})])
    [runs] = results.load(tmp_path / "results").values()
    assert [each.about.get("repeat") for each in runs] == [None, 2]


def test_every_result_of_ours_names_its_commits():
    """So whoever doubts a score can run the script that made it, as it was."""
    lists = [*ROOT.glob("benchmark/results/ours/*.json"), *ROOT.glob("benchmark/ablation/results/ours/*.json")]
    runs = [about for path in lists for about in results.read_list(path)]
    assert len(runs) >= 600
    for about in runs:
        assert all(text["commit"] for text in [about, *about.get("resumed", [])]), results.name_of(about)
        if "+" in about["script"]:
            assert "recipe" in about


def test_defaults_are_those_of_the_script(run):
    """Of its copy in the run's folder, or in an older run those that it wrote down. Without both, as where a default
    is no number, an option that was not typed has its default. A program of another name types none."""
    text = (run / "ppo.py").read_text().replace("    vf_coef: float = 0.5", "    vf_coef: float = 1 / 2")
    (run / "ppo.py").write_text(text.replace("    gamma: float = 0.99", '    gamma: float = float("0.99")'))
    about = json.loads((run / "run.json").read_text())
    args = {"learning_rate": 0.001, "anneal_lr": False, "vf_coef": 0.5}
    with_about(run, args=args, command=[*about["command"], "--gamma=0.99", "--vf-coef", "0.5"])
    changed = {"anneal_lr": False, "gamma": 0.99, "learning_rate": 0.001, "total_timesteps": 2048}
    assert collect.describe(run)["options"] == changed
    with_about(run, args={"gamma": 0.5}, command=["program.py"])
    assert collect.describe(run)["options"] == changed | {"gamma": 0.5}
    with_about(run, args={"gamma": 0.99}, command=[*about["command"], "--gamma=0.99", "--vf-coef", "0.5"])
    (run / "ppo.py").write_text("")
    assert collect.describe(run)["options"] == {"gamma": 0.99, "total_timesteps": 2048, "vf_coef": 0.5}
    with_about(run, defaults=about["args"] | {"total_timesteps": 500_000})
    assert collect.describe(run)["options"] == {"anneal_lr": False, "learning_rate": 0.001, "total_timesteps": 2048}


def test_runs_of_a_script_share_its_tables(run, tmp_path):
    """One that replaces another, and one with a column of its own, leave the others as they are."""
    first, second = copy_of(run, tmp_path / "runs", seed=1), copy_of(run, tmp_path / "runs", seed=2)
    collect.collect([first, second], tmp_path / "results")
    before = results.load(tmp_path / "results")
    with SummaryWriter(second) as writer:
        writer.add_scalar("charts/win_rate_random", 0.75, 1024)
    (tmp_path / "results/ours/ppo.json").chmod(0o444)  # it is replaced as a whole
    collect.collect([second], tmp_path / "results")
    [[one, two]] = results.load(tmp_path / "results").values()
    [[old, _]] = before.values()
    assert one.about == old.about and one.updates.keys() == old.updates.keys()
    for kind in results.KINDS:
        for name, column in getattr(old, kind).items():
            np.testing.assert_array_equal(getattr(one, kind)[name], column)
    np.testing.assert_array_equal(two.updates["win_rate_random"], [np.nan, 0.75, np.nan, np.nan])
    assert len(two.updates["step"]) == 4 and two.about["seed"] == 2
    lines = lzma.decompress((tmp_path / "results/ours/ppo.updates.csv.xz").read_bytes()).decode().splitlines()
    assert len(lines) == 9 and len({line.count(",") for line in lines}) == 1


def test_a_run_is_added_while_the_results_are_read(run, tmp_path, monkeypatch):
    """The list that was read may lack it, and must not name a run that the tables lack."""
    collect.collect([run], tmp_path / "results")
    second = collect.gathered(copy_of(run, tmp_path / "runs", seed=2))
    read_list = results.read_list

    def add_and_read(family):
        monkeypatch.setattr(results, "read_list", read_list)
        results.add(family, [second])
        return read_list(family)

    monkeypatch.setattr(results, "read_list", add_and_read)
    [runs] = results.load(tmp_path / "results").values()
    assert [each.about["seed"] for each in runs] == [1, 2]


def test_the_score_of_a_run_in_a_folder(run, tmp_path):
    collect.collect([run], tmp_path / "results")
    [[collected]] = results.load(tmp_path / "results").values()
    assert collect.gathered(run).score == pytest.approx(collected.score)


def test_results_are_locked_while_they_are_changed(run, tmp_path, monkeypatch):
    """From before the list is read until it is written, so that no process loses what another adds."""
    seen = []

    def locked():
        try:
            with FileLock(tmp_path / "ours/ppo.lock", timeout=0):
                return False
        except Timeout:
            return True

    for name in ("read_list", "write_table", "replace_file"):
        function = getattr(results, name)

        def look(*args, name=name, function=function):
            seen.append((name, locked()))
            return function(*args)

        monkeypatch.setattr(results, name, look)
    results.add(tmp_path / "ours/ppo.json", [collect.gathered(run)])
    assert {name for name, _ in seen} == {"read_list", "write_table", "replace_file"}
    assert all(held for _, held in seen) and not locked()


# THE REPORT


@pytest.mark.slow
def test_pictures_are_those_of_the_results(tmp_path):
    """But for the last digits, which differ between processors; so the step of .ci/run leaves pictures out."""
    found = experiments.experiments_of(results.load(results.RESULTS))
    assert len(found) >= 8
    report.picture(found, tmp_path / "curves.svg")
    equal_steps.picture(found, tmp_path / "equal_steps.svg")
    effects.draw(effects.effects(), tmp_path / "effects.svg")
    for name in ("curves.svg", "equal_steps.svg", "effects.svg"):
        drawn, committed = (without_ids((folder / name).read_text()) for folder in (tmp_path, ROOT / "docs"))
        number = r"-?\d+\.\d+"
        assert re.sub(number, "", drawn) == re.sub(number, "", committed), "make report brings the picture up to date"
        pairs = [[float(x) for x in re.findall(number, text)] for text in (drawn, committed)]
        np.testing.assert_allclose(*pairs, atol=0.05)


def without_ids(picture):
    """Removes the ids that Matplotlib makes: hashes of coordinates, whose last bits differ between processors."""
    return re.sub(r'(id="|#)[a-z][0-9a-f]{10}\b', r"\1", picture)


def test_what_an_experiment_is_called():
    """Words of a command line; an option that a resume changed has its first value, and the step of the change."""
    options = {"gamma": 0.9, "bf16": "True, from step 512 False", "anneal_lr": False, "total_timesteps": 2048}
    one = experiments.Experiment("ppo", "CartPole-v1", options, [], [])
    assert one.name == "ppo.py --gamma 0.9 --bf16 until step 512 --no-anneal-lr --total-timesteps 2048"
    assert one.has_options
    assert not one._replace(options={"total_timesteps": 2048, "exp_name": "x"}).has_options


def test_why_a_run_is_in_no_score():
    def made(seed, steps):
        return results.Run({"seed": seed, "steps": steps, "steps_wanted": 200, "script": "x"}, {}, {})

    found = {
        ("ours", "ppo", "CartPole-v1", '{"bf16": "True, from step 50 False"}', 200): [made(1, 100), made(2, 150)],
        ("ppo2", "ppo2_copy", "CartPole-v1", "{}", 200): [made(3, 180), made(4, 200)],
    }
    first, second, third = experiments.left_out(found, experiments.experiments_of(found))
    assert first.startswith("ppo --bf16 until step 50 on CartPole-v1, seed 1: it was stopped at 100 of 200 steps, and")
    assert second.startswith("ppo2_copy on CartPole-v1, seed 3: it was stopped at 180 of 200 steps, and we compare")
    assert third.startswith("ppo2_copy on CartPole-v1, seed 4: none of our runs has its 200 steps")


def stopped_run(last, value):
    """A Run with a game of 10 steps after another up to step `last`, each with the return value + 1 after 200k steps
    and `value` before, and an update of 1000 steps after another."""
    ends = np.arange(10.0, last + 1, 10)
    episodes = {"step": ends, "return": value + (ends > 200_000)}
    return results.Run({"steps": last}, episodes, {"step": np.arange(1000.0, last + 1, 1000)})


def test_equal_steps_beside_stopped_runs():
    """Of the games in the last 50k steps; each step compares the runs that reached it, with Welch's interval."""
    run = stopped_run(300_000, 2.0)
    assert [equal_steps.score_at(run, step) for step in (100_000, 200_000, 225_000, 250_000)] == [2, 2, 2.5, 3]
    assert equal_steps.score_at(run, 300_001) is None
    late = run._replace(episodes={"step": np.array([60_000.0]), "return": np.array([4.0])})
    assert equal_steps.score_at(late, 110_000) is None and equal_steps.score_at(late, 109_999) == 4

    ours = [run, stopped_run(300_000, 4.0), stopped_run(100_000, 3.0)]
    beside = [stopped_run(500_000, 1.0), stopped_run(500_000, 2.0)]
    found = {
        ("ours", "ppo_atari", "Game-v4", "{}", 9_999_360): ours,
        ("ours", "ppo_atari", "Game-v4", '{"bf16": true}', 9_999_360): ours,
        ("ours", "ppo_atari", "Other-v4", "{}", 9_999_360): ours,
        ("ppo2", "ppo2_atari", "Game-v4", "{}", 9_999_360): beside,
    }
    for runs in found.values():
        for i, each in enumerate(runs):
            each.about.update({"steps_wanted": 9_999_360, "seed": i})
    of_game = [one for one in experiments.experiments_of(found) if one.beside]
    assert [(one.env_id, one.options, one.ppo2) for one in of_game] == [("Game-v4", {}, [])]
    first, _, second = report.equal_steps_table(of_game)[2:]  # after 100k, 200k and 250k; none of ours reached 500k
    difference = scores.compare([2.0, 4.0, 3.0], [1.0, 2.0]).text(3.0)
    assert first == f"| `ppo_atari.py` | Game-v4 | 100k | 3.00 ± 1.00 (3) | 1.50 ± 0.71 (2) | {difference} |"
    assert second.startswith("| `ppo_atari.py` | Game-v4 | 250k | 4.00 ± 1.41 (2) | 2.50 ± 0.71 (2) | +1.50 [")
    [[theirs, mine]] = equal_steps.panels(of_game).values()
    assert theirs[0] == "ppo2" and [each.updates["step"][-1] for each in theirs[2]] == [500_000] * 2
    assert mine[0] == "ppo_atari.py" and len(mine[2]) == 3
    assert {line.split(": ")[1] for line in experiments.left_out(found, of_game) if line.startswith("ppo2")} == {
        "it was stopped at 500,000 of 9,999,360 steps, and is compared at equal steps"
    }


def test_procgen_beside_published_curves(tmp_path, monkeypatch):
    """At the end of the same update, of the last 100 episodes; of each seed the run that came furthest counts.

    Runs with --bf16 or --tf32 are rows of their own."""
    (tmp_path / "published").mkdir()
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned/random.csv").write_text("task,mean\nstarpilot,1.58\n")
    lines = [f"{run},{step},{run + step / 98_304},{run}" for run in (0, 1) for step in range(16_384, 524_289, 16_384)]
    (tmp_path / "published/starpilot.csv").write_text("\n".join(["run,step,return,entropy", *lines, ""]))

    def experiment(env_id, options, *runs):
        runs = [run._replace(about=run.about | {"seed": seed}) for seed, run in enumerate(runs)]
        return experiments.Experiment("ppo_procgen", env_id, options, runs, [])

    found = [
        experiment("bigfish", {}, stopped_run(300_000, 7.0)),  # has no published curves
        experiment("starpilot", {}, stopped_run(98_400, 2.0), stopped_run(300_000, 4.0)),
        experiment("starpilot", {"bf16": True}, stopped_run(300_000, 0.0), stopped_run(300_000, 1.0)),
        experiment("starpilot", {"tf32": True}, stopped_run(200_000, 8.0)),
        experiment("starpilot", {"tf32": "True, from step 100000 False"}, stopped_run(300_000, 9.0)),
        experiment("starpilot", {"total_timesteps": 300_000}, stopped_run(300_000, 3.0)),
        experiment("starpilot", {"num_envs": 32}, stopped_run(300_000, 9.0)),
    ]
    # after 98,304 and 245,760 steps: none of ours went further
    first, second, third, _, fifth = procgen.rows(found, tmp_path)
    difference = scores.compare([3.0, 4.0], [1.0, 2.0]).text(3.5)
    assert first == ["starpilot", "1.58", "98k", "", "3.50 ± 0.71 (2)", "1.50 ± 0.71 (2)", difference]
    assert second[2:6] == ["246k", "", "4.50 ± 0.71 (2)", "3.00 ± 0.71 (2)"]
    assert third[2:5] == ["98k", "`--bf16`", "0.50 ± 0.71 (2)"]
    assert fifth[2:5] == ["98k", "`--tf32`", "8.00 (1)"]
    steps, returns = procgen.published_mean(tmp_path, "starpilot", 100_000)
    assert steps[-1] == 98_304 and len(steps) == 6 and returns[-1] == 1.5

    runs = [stopped_run(600_000, 2.0), stopped_run(500_000, 2.0), stopped_run(400_000, 2.0)]  # the last stops too early
    for run, entropy in zip(runs, (2.0, 3.0, 9.0), strict=True):
        run.updates["entropy"] = np.where(run.updates["step"] <= 491_520, entropy, 100.0)
    monkeypatch.setattr(procgen, "VARIABLES", {"entropy": "the entropy"})
    found = scores.compare([2.0, 3.0], [0.0, 1.0])
    assert procgen.variable_rows([experiment("starpilot", {}, *runs)], tmp_path) == [
        ["the entropy", "2.5 ± 0.7 (2)", "0.5 ± 0.7 (2)", f"+2 [{found.low:+.2g}, {found.high:+.2g}]"]
    ]


def test_tuned_tasks_have_their_intervals(tmp_path):
    """Of the same task one line, with Student's interval of each side's seeds; solved when half of our runs are.

    Seeds from 101 on are the ones that count; minutes are those of the tuning."""
    recipes = "recipes/with/x.diff + recipes/without/y.diff + recipes/with/z.diff"
    row = f"CartPole-v1,ours,{{}},98304,{{}},{recipes},python ppo+x+y+z.py{{}}"
    head = "task,who,seed,steps,mean,minutes,threshold_step,recipe,command"
    other = "CartPole-v1,Stable-Baselines3,1,9,470"
    (tmp_path / "tuned").mkdir()
    words = "with [x](../recipes/with/x.diff) and [z](../recipes/with/z.diff), without [y](../recipes/without/y.diff)"
    for first_seed, second, solved, option, steps, shown in (
        (101, "70000", "475 (70k)", " --total-timesteps 100000", "100k", ["490 [465, 515]", "3", "499"]),
        (1, "", "475", "", "98k", ["", "", "492 [477, 507]"]),
    ):
        games = ("480,0.5,50000", "490,0.6,", f"500,0.7,{second}")
        ours = [row.format(first_seed + i, text, option) for i, text in enumerate(games)]
        tuning = row.format(9, "499,0.9,1", option)
        (tmp_path / "tuned/games.csv").write_text("\n".join([head, *ours, tuning, other, ""]))
        [*_, last] = report.tuned_table(tmp_path, ["CartPole-v1"], "../")
        minutes = "0.9" if first_seed == 101 else "0.6"
        cells = ["CartPole-v1", f"`ppo.py` {words}", steps, minutes, *shown, "470", "1"]
        assert last == f"| {' | '.join([*cells, '500 (100k)', solved])} |"
    with pytest.raises(SystemExit, match="no run of ours of Acrobot-v1"):
        report.tuned_table(tmp_path, ["Acrobot-v1"])


# Scores of two tasks with four runs each
SCORES = np.array([[0.0, 0.2, 0.4, 1.4], [0.5, 0.6, 0.9, 2.0]])


def test_statistics_of_several_tasks():
    """By hand: the tasks' means are 0.5 and 1; the middle half of all shown is 0.4, 0.5, 0.6 and 0.9."""
    found = [statistic(SCORES) for statistic in aggregate.STATISTICS.values()]
    gap = (1 + 0.8 + 0.6 + 0 + 0.5 + 0.4 + 0.1 + 0) / 8
    assert found == pytest.approx([0.75, 0.75, (0.4 + 0.5 + 0.6 + 0.9) / 4, gap])
    both = aggregate.normalized([[0.0, 20.0], [-5.0, 0.0]], [0.0, -10.0], [10.0, 0.0])
    assert both.tolist() == [[0.0, 2.0], [0.5, 1.0]]


def test_a_resample_draws_within_each_task():
    """So the mean over two tasks of one score each, 0 and 1, is always 0.5."""
    same = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    assert tuple(aggregate.interval(aggregate.mean, same, 100)) == (0.5, 0.5)


def test_statistics_and_intervals_are_those_of_rliable():
    """Its version 1.2.0 gave these numbers for SCORES, with 50,000 resamples."""
    theirs = {
        "median": (0.75, 0.3875, 1.175),
        "mean": (0.75, 0.3875, 1.175),
        "IQM": (0.6, 0.35, 1.2),
        "optimality gap": (0.425, 0.2, 0.625),
    }
    for name, statistic in aggregate.STATISTICS.items():
        found = statistic(SCORES), *aggregate.interval(statistic, SCORES)
        # bounds are multiples of 1/80, and a bound may be the next one
        assert found == pytest.approx(theirs[name], abs=0.02)


def test_scores_of_all_tasks_are_normalized(tmp_path):
    """0 is random play, 1 the threshold, or the zoo's score where there is none; a run too many is left out.

    So are those of the seeds of the tuning, where there are others."""
    (tmp_path / "tuned").mkdir()
    games_of = {"CartPole-v1": [475.0, 250.0, 0.0], "Pendulum-v1": [-172.0, -1200.0]}
    rows = [f"{task},ours,{101 + i},{mean}" for task, means in games_of.items() for i, mean in enumerate(means)]
    rows += ["CartPole-v1,ours,1,500"]
    (tmp_path / "tuned/games.csv").write_text("\n".join(["task,who,seed,mean", *rows[::-1], ""]))
    (tmp_path / "tuned/random.csv").write_text("task,mean\nCartPole-v1,25\nPendulum-v1,-1200\n")
    assert report.normalized_scores(tmp_path, "ours").tolist() == [[1, 0.5], [1, 0]]


def test_games_after_training_replace_a_row(run, tmp_path, monkeypatch):
    """Of the same task, seed and name; with the first step at which training reached the threshold."""
    monkeypatch.setitem(games.gym.registry, "CartPole-v1", SimpleNamespace(reward_threshold=0.0))
    monkeypatch.setattr(games.enjoy, "enjoy", lambda args: [args.seed, 1002.0] * 50 if args.greedy else None)
    returns = np.array([-1.0] * 60 + [0.5] * 100)
    updates = {"step": np.array([1024, 1440, 1536, 2048]), "seconds": [1, 2, 3, 90]}
    log = {"step": np.arange(1, 161) * 12, "return": returns}, updates
    about = collect.gathered(run).about
    monkeypatch.setattr(collect, "gathered", lambda _: results.Run(about, *log))
    rows = [f"CartPole-v1,ours,{seed},499" for seed in (1, 10)]
    (tmp_path / "games.csv").write_text("\n".join(["task,who,seed,mean", *rows, ""]))
    for who in ("ours", "b"):
        games.main((run,), who, tmp_path / "games.csv")
    first, second, third = csv.DictReader((tmp_path / "games.csv").open())
    found = [first[name] for name in ("who", "seed", "mean", "minutes", "threshold_step")]
    assert found == ["ours", "1", "1001.0", "1.5", "1536"]
    assert second["mean"] == "499" and third == first | {"who": "b"}
    assert first["command"] == about["command"] and f"torch=={about['versions']['torch']}" in first["versions"]


def test_games_leave_out_what_is_broken_or_stopped(run, folder, tmp_path, monkeypatch, capsys):
    """The rows before stay, and a task that gymnasium does not know has no threshold."""
    monkeypatch.setattr(games.enjoy, "enjoy", lambda args: [1.0, 2.0] * 49)
    games.main((run,), "ours", tmp_path / "games.csv")
    assert not (tmp_path / "games.csv").exists() and "2 of 100 games did not end" in capsys.readouterr().out
    monkeypatch.setattr(games.enjoy, "enjoy", lambda args: [1.0, 2.0] * 50)
    monkeypatch.delitem(games.gym.registry, "CartPole-v1")
    games.main((tmp_path, run, stopped(folder)), "ours", tmp_path / "games.csv")
    [row] = csv.DictReader((tmp_path / "games.csv").open())
    assert (row["seed"], row["mean"], row["threshold_step"]) == ("1", "1.5", "")
    broken, unfinished = capsys.readouterr().out.splitlines()
    assert broken.startswith(f"left out: {tmp_path}: ") and unfinished.endswith(": stopped at 1,536 of 2,048 steps")
    with pytest.raises(SystemExit, match="would have the same row"):
        games.main((run, run), "ours", tmp_path / "games.csv")


def test_the_difference_is_welchs():
    """With its interval, not Student's; nothing is tested of single runs or without any spread."""
    scores_of_a, scores_of_b = [10.0, 12.0, 14.0, 11.0], [20.0, 30.0, 25.0]
    found = scores.compare(scores_of_b, scores_of_a)
    a, b = np.var(scores_of_b, ddof=1) / 3, np.var(scores_of_a, ddof=1) / 4
    freedom = (a + b) ** 2 / (a**2 / 2 + b**2 / 3)
    half = stats.t.ppf(0.975, freedom) * np.sqrt(a + b)
    mean = 25 - 11.75
    assert found == pytest.approx((mean, mean - half, mean + half, 2 * stats.t.sf(mean / np.sqrt(a + b), freedom)))
    assert found.text(like=25.0) == f"+13.2 [+{mean - half:.1f}, +{mean + half:.1f}]"
    assert found.verdict("b") == "b is better" and scores.compare(scores_of_a, scores_of_b).verdict("b") == "b is worse"
    assert scores.compare([1.0, 2, 3], [2.0, 3, 4]).verdict("b") == "cannot be told apart"
    for pair in (([1.0], [2.0, 3.0]), ([5.0] * 3, [6.0] * 3)):
        none = scores.compare(*pair)
        assert np.isnan(none.p) and none.verdict("b") == "" and "[" not in none.text(5.0)
    assert effects.interval(found) == f"+13.2 [{mean - half:.1f}, {mean + half:.1f}]"


def test_curves():
    """Of updates the mean between two points, of episodes the mean of the last 100; nothing beyond a run's end."""
    steps = np.arange(1, 301) * 10.0
    numbers = np.random.default_rng(0).normal(size=300)
    tables = {"step": steps, "seconds": steps / 10, "return": numbers, "length": numbers, "entropy": numbers}
    run, grid = results.Run({}, tables, tables), np.arange(1, 13) * 300.0
    values = curves.sample(run, "entropy", "step", grid)
    np.testing.assert_allclose(values[:10], numbers.reshape(10, 30).mean(1))
    assert np.isnan(values[10:]).all() and run.score == pytest.approx(numbers[-100:].mean())
    with_a_gap = numbers.copy()
    with_a_gap[45] = np.nan  # an update that lacks the metric, in the second of the ten intervals
    gap = run._replace(updates=tables | {"entropy": with_a_gap, "never": np.full(300, np.nan)})
    means = np.nanmean(with_a_gap.reshape(10, 30), axis=1)
    np.testing.assert_allclose(curves.sample(gap, "entropy", "step", grid)[:10], means)
    assert np.isnan(curves.sample(gap, "never", "step", grid)).all()
    expected = [numbers[max(0, end - 100) : end].mean() for end in range(30, 301, 30)]
    np.testing.assert_allclose(curves.sample(run, "return", "step", grid)[:10], expected)
    with_a_nan = np.where(np.arange(300) == 50, np.nan, numbers)
    np.testing.assert_allclose(
        curves.last_100({"return": with_a_nan}, "return")[150:],
        [numbers[end - 100 : end].mean() for end in range(151, 301)],
    )
    other = run._replace(episodes=tables | {"return": numbers + 3})
    _, values, mean, half = curves.curves([run, other, other], "return", "step", 10)
    np.testing.assert_allclose(mean, values[0] + 2)
    np.testing.assert_allclose(half, stats.t.ppf(0.975, 2))  # of a deviation of sqrt 3
    ends = np.array([5, 20, 1000, 2000])
    run = results.Run({}, {"step": np.arange(10, 2010, 10), "return": np.arange(200.0)}, {"step": ends})
    assert effects.area(run) == pytest.approx(np.mean([0.5, np.arange(0, 100).mean(), np.arange(100, 200).mean()]))


def test_an_effect_is_bold_where_its_corrected_p_is_low():
    """Of three tests the lowest p counts three times; a row without a test counts as none."""
    rows = [scores.Difference(1.0, -1.0, 2.0, p) for p in (0.02, np.nan, 0.04, 0.5)]
    assert effects.cells_of(rows) == ["+1.0 [-1.0, 2.0]"] * 4
    assert [text[:2] for text in effects.cells_of([rows[0]._replace(p=0.016), *rows[1:]])] == ["**", "+1", "+1", "+1"]


def test_a_run_that_did_not_end_is_left_out(monkeypatch, capsys):
    runs = [
        results.Run({"seed": seed, "steps": steps, "steps_wanted": 200}, {}, {}) for seed, steps in ((1, 200), (2, 100))
    ]
    monkeypatch.setattr(results, "load", lambda folder: {("ours", "ppo", "A-v0", "{}", 200): runs})
    assert results.load_finished(None) == {("ours", "ppo", "A-v0", "{}", 200): runs[:1]}
    assert "left out: ppo on A-v0, {}, seed 2: 100 of 200 steps" in capsys.readouterr().out


def test_the_options_of_a_recipe():
    """Those that its script does not have; frame-attention changes one that the script has."""
    known = {recipe.file.stem: recipe for recipe in recipe_files.recipes()}
    assert effects.own_options(known["privileged-critic"]) == {"privileged", "policy_sees_all"}
    assert effects.own_options(known["frame-attention"]) == set()


def test_the_effects_are_those_of_the_results():
    """In the table and in the recipes' headers; each beside the runs of its parent with the same options."""
    text = (ROOT / "benchmark/ablation/README.md").read_text()
    tables = effects.effects()
    assert "\n".join(effects.summary(tables)) in text
    for what, rows in tables.items():
        assert rows and f"### {what}\n" in text
        assert [row.final.mean for row in rows] == sorted(row.final.mean for row in rows)
        for recipe, parent, runs, final, whole in rows:
            script, *names = runs[0].about["script"].split("+")
            if script == "ppo_seeds":
                beside = f"{script}+{names[-1]}"
            else:  # the script with all recipes but the last
                beside = "+".join([script, *names[:-1]])
            assert {run.about["script"] for run in parent} == {beside}
            shown = f"| {len(runs)} | {effects.interval(final)} | {effects.interval(whole)} |"
            lines = text.replace("**", "").splitlines()
            [row] = [line for line in lines if f"[{recipe.name}](" in line and line.endswith(shown)]
            assert len(re.split(r"(?<!\\)\|", row)) == 7
            if recipe is not effects.TRUNCATED:
                assert f"final return {effects.interval(final)}" in recipe.header["measured effect"]


# ONE'S OWN RUNS


def test_the_score_after_a_step(capsys):
    """Of the last 100 episodes that had ended; a run that ended less than an update before counts as there."""
    end = np.arange(1.0, 2049)
    run = results.Run(
        {"batch_size": 512, "env_id": "A-v0"}, {"step": end, "return": end}, {"step": np.arange(512, 2049, 512)}
    )
    assert compare.score_at(run, 1000) == np.arange(901, 1001).mean()
    assert compare.score_at(run, 50) == np.arange(1, 51).mean()
    assert compare.score_at(run, 2559) == np.arange(1949, 2049).mean() and compare.score_at(run, 2560) is None
    a, b = compare.scores_at("ppo", {1: run, 2: run}, 2560), compare.scores_at("my_ppo", {1: run}, 2560)
    assert compare.row(("ppo", "my_ppo"), a, b, 2560)[3:] == ["", "no runs on a side", ""]
    assert capsys.readouterr().out.count("left out after 2,560 steps: ") == 3


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
def test_the_best_run_has_episodes():
    runs = [results.Run({}, {"return": np.array(returns)}, {}) for returns in ([], [-3.0, -1], [-1.0, -1], [-2.0])]
    assert compare.best_run(runs) is runs[2]


def test_an_unfinished_run_does_not_shorten_a_curve(run, folder, tmp_path, capsys, monkeypatch):
    runs = tmp_path / "runs"
    for seed in (1, 2):
        copy_of(run, runs, seed=seed)
    copy_of(stopped(folder), runs, seed=3)
    drawn = []
    monkeypatch.setattr(compare, "together", lambda panels, path: drawn.append(panels))
    monkeypatch.setattr(sys, "argv", ["compare", str(runs)])
    compare.main()
    [[(_, of_name)]] = drawn[0].values()
    assert [each.about["seed"] for each in of_name] == [1, 2]
    assert "not drawn, and not in the score: CartPole-v1__ppo__3__, stopped at 1,536 steps" in capsys.readouterr().out


def test_experiments_of_a_folder(run, tmp_path, capsys, monkeypatch):
    """Two are compared, and all drawn, as a user does it. A broken run, and the second of a seed, are named."""
    folder = tmp_path / "runs"
    for seed in (1, 2):
        copy_of(run, folder, seed=seed)
        copy_of(run, folder, seed=seed, gamma=0.9)  # another experiment, which "ppo" does not mean
        copy_of(run, folder, "my_ppo", seed)
    copy_of(run, folder, "my_ppo", 2, threads=2)
    remove_checkpoints(copy_of(run, folder, "my_ppo", 3))
    (folder / "broken").mkdir()
    (folder / "broken/run.json").write_text("{")

    def start(*words):
        monkeypatch.setattr(sys, "argv", ["compare", str(folder), *words])
        compare.main()
        return capsys.readouterr().out.splitlines()

    pair = "--env-id", "CartPole-v1", "--a", "ppo", "--b"
    *left_out, heading, titles, first, second = start(*pair, "my_ppo", "--steps", "1024", "2048")
    assert heading.startswith("CartPole-v1, ppo --total-timesteps 2048 (a) and my_ppo --total-timesteps 2048 (b): ")
    assert titles.split()[:4] == ["after", "steps", "ppo", "my_ppo"] and first.startswith("1,024 ")
    assert "(2)" in second and second.endswith("not tested")
    broken, *others = left_out
    assert broken.startswith(f"left out: {folder}/broken: JSONDecodeError")
    assert others == [
        f"left out: {folder}/CartPole-v1__my_ppo__2__: seed 2 is there twice",
        f"left out: {folder}/CartPole-v1__my_ppo__3__: no checkpoint of an update",
    ]  # fmt: skip
    for name in ("ppo --gamma 0.9", "ppo --total-timesteps 2048 --gamma 0.9"):
        assert "ppo --gamma 0.9 --total-timesteps 2048 (b)" in "".join(start(*pair, name))
    for name, said in (("nix", "is none of"), ("ppo", "the same experiment")):
        with pytest.raises(SystemExit, match=said):
            start(*pair, name)
        assert "broken: JSONDecodeError" in capsys.readouterr().out  # it may be the reason
    with pytest.raises(SystemExit, match="there are no runs on this environment"):
        start("--env-id", "Acrobot-v1", "--a", "ppo", "--b", "my_ppo")
    capsys.readouterr()
    lines = start()
    assert "CartPole-v1, all: --total-timesteps 2048" in lines and str(folder / "curves.svg") in "".join(lines)
    [best] = [line for line in lines if "the run with the highest return, " in line]
    assert Path(best.rpartition(": ")[2]).is_dir()
    rows = [re.split("  +", line)[1] for line in lines if line.startswith("CartPole-v1 ")]
    names = ["my_ppo --gamma 0.99", "ppo --gamma 0.9", "ppo --gamma 0.99"]  # the default, too, where others differ
    assert sorted(rows) == names
    picture = (folder / "curves.svg").read_text()
    assert picture.count(", 2 runs</text>") == 3 and "total-timesteps" not in picture  # which all have
    assert all(f">{name}, 2 runs<" in picture for name in names)
    assert "ppo --gamma 0.9 --total-timesteps 2048 (b)" in "".join(start(*pair[:3], names[2], "--b", names[1]))


def test_long_names_in_a_picture(tmp_path):
    """They are below the panel, which stays as large as without them."""
    end = np.arange(1.0, 2049)
    run = results.Run({}, {"step": end, "return": end}, {"step": np.arange(512, 2049, 512)})
    for name, count in (("ppo", 1), (" ".join(f"--option-{i} {i}" for i in range(30)), 9)):
        curves.together({"A-v0": [(name, [run])] * count}, tmp_path / "curves.svg")
        picture = (tmp_path / "curves.svg").read_text()
        corners = re.search(r'id="patch_2">\s*<path d="M (\S+) (\S+)\s*L (\S+) \S+\s*L \S+ (\S+)', picture)
        left, bottom, right, top = map(float, corners.groups())
        assert right - left > 330 and bottom - top > 200
    assert picture.count("--option-29 29") == 9 and max(map(len, re.findall(">(--option.*?)</text>", picture))) < 80


def test_two_experiments_in_all_environments(run, tmp_path, capsys, monkeypatch):
    """Each environment that has both is a row; their sum scales each from its lowest to its highest run."""
    folder = tmp_path / "runs"
    for seed in (1, 2, 3):
        for env_id in ("CartPole-v1", "Acrobot-v1"):
            copy_of(run, folder, "ppo", seed, env_id=env_id)
            copy_of(run, folder, "my_ppo", seed, env_id=env_id)
    copy_of(run, folder, "ppo", 1, env_id="Pendulum-v1")  # has no my_ppo

    def start(*words):
        monkeypatch.setattr(sys, "argv", ["compare", str(folder), *words])
        compare.main()
        return capsys.readouterr().out.splitlines()

    lines = start("--a", "ppo", "--b", "my_ppo")
    assert lines[0].startswith("Acrobot-v1: ppo --total-timesteps 2048 (a) and my_ppo --total-timesteps 2048 (b)")
    assert lines[-1].startswith("0 environments, scaled")  # the copies of one run have one score
    rows = [line.split()[0] for line in lines if line.endswith("not tested")]
    assert rows == ["Acrobot-v1", "CartPole-v1"]
    assert "left out: Pendulum-v1: my_ppo is none of the experiments" in lines
    without_b = "^2$"  # argparse's status; its message goes to the standard error
    cases = [(("--a", "ppo", "--b", "nix"), "nix is none of the experiments:\n"), (("--a", "ppo"), without_b)]
    for words, said in cases:
        with pytest.raises(SystemExit, match=said):
            start(*words)

    # b is a little better than a in one task, and much better in another; in the third all are the same
    tasks = {
        "one": (np.array([0.0, 10.0, 7.0]), np.array([4.0, 6.0])),
        "two": (np.array([-100.0, -90.0]), np.array([-50.0, -60.0])),
        "three": (np.array([500.0, 500.0]), np.array([500.0, 500.0])),
    }
    titles, _, means, _ = compare.summary(["a", "b"], tasks)
    assert titles == ["2 environments, scaled to [0, 1]", "a", "b", "difference"]
    # (0 + 1 + 0 + 0.2) / 4 and (0.4 + 0.6 + 1 + 0.8) / 4
    assert [cell.split()[0] for cell in means] == ["mean", "0.30", "0.70", "0.40"]
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "the summary has 2 runs of each side in each environment, those with the lowest seeds",
        "not in the summary: three, where all scores are the same",
    ]


# Atari beside published runs


def test_published_scores_of_atari_have_the_published_median():
    """Its authors computed 0.7959851540635047 for the 57 games."""
    published = atari57.read_published()
    normalized = np.array([[each.normalize(each.ppo2_mean)] for each in published.values()])
    assert len(published) == 57 and aggregate.median(normalized) == pytest.approx(0.7959851540635047)


def test_runs_on_atari_beside_published_ones(monkeypatch, capsys):
    """By hand: 16.1 and 30.5 on Breakout are 0.5 and 1; the second run of Breakout has none of Pong beside it."""

    def made(score, run, seed, finished=True):
        return SimpleNamespace(score=score, finished=finished, about={"steps": 1000, "run": run, "seed": seed})

    runs = {
        Path("runs/a"): made(16.1, "a", 1),
        Path("runs/b"): made(400.0, "b", 2),
        Path("runs/c"): made(30.5, "c", 2),  # the same seed again
        Path("runs/d"): made(14.6, "d", 1),
        Path("runs/e"): made(9.0, "e", 1),
        Path("runs/f"): made(9.0, "f", 3, finished=False),
        Path("runs/g"): made(55.0, "g", 1),
    }

    def named(names):
        return {"ppo_atari": [(Path("runs", name), None) for name in names]}

    found = {"BreakoutNoFrameskip-v4": named("abcf"), "PongNoFrameskip-v4": named("d"), "CartPole-v1": named("e")}
    found["ALE/Breakout-v5"] = named("g")
    monkeypatch.setattr(atari57, "find_runs", lambda folder: found)
    monkeypatch.setattr(atari57, "gathered", runs.get)
    published = atari57.read_published()
    experiments = atari57.returns_by_experiment(None, published)
    games = experiments.pop(("ppo_atari", "NAMENoFrameskip-v4", 1000))
    [(key, others)] = experiments.items()
    assert key == ("ppo_atari", "ALE/NAME-v5", 1000) and others["Breakout"].tolist() == [55.0]
    assert {game: values.tolist() for game, values in games.items()} == {"Breakout": [16.1, 30.5], "Pong": [14.6]}
    said = capsys.readouterr().out
    assert "runs/f: it is not finished" in said and "CartPole-v1 is none of the 57 games" in said
    assert "left out: runs/b: seed 2 is there twice" in said
    lines = atari57.report(games, published)
    assert "| Breakout | 1.70 | 30.5 | 406 ± 11 | 23.3 ± 10.2 | 2 | 14.03 | 0.75 |" in lines
    assert "2 games, 1 of the runs of each:" in lines
    assert "| ours | 0.75 | 0.75 | 0.75 | 0.25 |" in lines
