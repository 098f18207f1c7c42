"""benchmark/search.py: its trials, with scores that are given, and with ppo.py itself."""

import json
import logging
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from script_table import ROOT

from benchmark import search as program


@pytest.fixture(autouse=True)
def restored_signals():
    """The handlers that the program replaces, so that they do not outlive a test."""
    kept = {number: signal.getsignal(number) for number in program.sweep.STOPPING}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def search(monkeypatch, tmp_path, capsys):
    """The program, whose output has the lines and seeds of all runs.

    Of trial i the score is the i-th of those given for seed 1, and 1 more for seed 2. On the way of the first run it is
    looked at twice, and is the same. With fresh seeds it is 100, or 50 with the command line's options."""

    def run(scores, *words):
        def score(line, folder, seed, report):
            print("run", seed, line)
            if "--exp-name=trial" not in line:
                return 50.0 if "--exp-name=command-line" in line else 100.0
            found = scores.split()[int(re.search(r"--exp-name=trial-(\d+)", line)[1])]
            if found == "fails":
                raise program.Failed
            if seed == 1 and any(report(float(found), number) for number in (1, 2)):
                raise program.optuna.TrialPruned
            print("whole", seed, line)
            return float(found) + seed - 1

        monkeypatch.setattr(program, "score", score)
        monkeypatch.setattr(sys, "argv", ["", "ppo.py", "--folder", str(tmp_path), *words])
        program.main()
        return capsys.readouterr()

    return run


FOUR = ("--trials", "4", "--seeds", "2", "--vf-coef", "0.9")


def test_the_best_trial_is_trained_with_fresh_seeds(search):
    """Its score is the mean over seeds; a second command goes on with the study; a trial that fails is left out."""
    lines = search("1 7 3 fails", *FOUR).out.splitlines()
    seeds = [line.split()[1] for line in lines if line.startswith("run ")]
    assert seeds == ["1", "2"] * 3 + ["1"] + ["3", "4"] * 2
    assert "3 of 4 trials completed; trial 1 was the best, 7.5" in lines
    assert "  the best trial: mean return 100, lowest 100, highest 100" in lines
    assert "  the command line's options: mean return 50, lowest 50, highest 50" in lines
    assert lines[-1].startswith("python ppo.py --vf-coef 0.9 --learning-rate=")
    again = search("1 7 3 fails 8", "--trials", "1", *FOUR[2:]).out.splitlines()
    assert "4 of 5 trials completed; trial 4 was the best, 8.5" in again


def test_trial_0_has_the_options_of_the_command_line(search):
    """Also values that no other trial has; the others do not get them."""
    options = "--gamma 0.5 --num_steps=48 --ent-coef 0 --num-envs 2"
    *runs, last = search("9 7", "--trials", "2", "--seeds", "1", *options.split()).out.splitlines()
    assert runs[0] == f"run 1 ppo.py {options} --exp-name=trial-0" and last == f"python ppo.py {options}"
    assert runs[2].startswith("run 1 ppo.py --num-envs 2 --learning-rate=") and "0.5 " not in runs[2]
    assert "the command line" not in "".join(runs)  # it is the best trial


def test_optuna_knows_the_options_of_the_command_line(search, tmp_path):
    """And a trial of theirs whose process was killed, which seems to run still, is tried again."""
    search("9", "--trials", "1", "--seeds", "1")
    storage = program.optuna.storages.JournalStorage(
        program.optuna.storages.journal.JournalFileBackend(str(tmp_path / "study"))
    )
    [name] = program.optuna.get_all_study_names(storage)
    [trial] = program.optuna.load_study(study_name=name, storage=storage).trials
    assert trial.params["gae-lambda"] == 0.95 and trial.params["num-steps"] == 128
    study = program.optuna.create_study()
    for _ in range(2):
        program.enqueue_command_line(study, {"x": 1})
        study.ask()
    program.enqueue_command_line(study, {"x": 1})
    assert [trial.state.name for trial in study.trials] == ["RUNNING", "RUNNING", "WAITING"]
    study.tell(study.ask(), 1.0)
    program.enqueue_command_line(study, {"x": 1})
    assert len(study.trials) == 3


def test_a_poor_trial_is_given_up_on_its_way(search):
    """From the sixth on, where it is below the median of those before."""
    lines = search("1 2 3 4 5 2.5 3.5", "--trials", "7", "--seeds", "2").out.splitlines()
    assert "6 of 7 trials completed; trial 4 was the best, 5.5" in lines
    of_poor = [line for line in lines if line.endswith("--exp-name=trial-5")]
    assert len(of_poor) == 1 and of_poor[0].startswith("run 1 ")
    with pytest.raises(SystemExit, match="no trial completed"):
        search("fails", "--trials", "1", "--seeds", "1")


def test_minibatches_of_32_steps_or_more():
    """They divide the rollout, and have the size that is asked for or the next larger one."""
    args = {"num_envs": 4, "total_timesteps": 20_000}
    rollouts = program.find_rollouts(args, is_recurrent=False)
    assert list(rollouts) == [32, 64, 128, 256]  # of 512 steps there would be 9
    assert rollouts[32] == {32: 4, 64: 2, 128: 1, 256: 1, 512: 1}
    assert program.find_rollouts(args | {"num_envs": 5}, is_recurrent=False)[32][64] == 2  # 80 steps
    assert program.find_rollouts(args, is_recurrent=True)[128] == {32: 4, 64: 4, 128: 4, 256: 2, 512: 1}
    for num_envs in (1, 3, 7):
        for num_steps, counts in program.find_rollouts(args | {"num_envs": num_envs}, is_recurrent=False).items():
            for size, count in counts.items():
                minibatch, rest = divmod(num_envs * num_steps, count)
                assert rest == 0 and minibatch >= min(size, num_envs * num_steps) >= 32


def test_a_run_is_looked_at_three_times(tmp_path):
    """At its checkpoints on the way; a report may end the trial."""
    reports = []

    def report(*numbers):
        reports.append(numbers)
        return len(reports) == 3

    progress = program.Progress(SimpleNamespace(run_folder=lambda: tmp_path, steps=4000), report)
    ended = [progress.look()]
    for step, returns in ((0, []), (500, [1.0]), (1000, [1.0, 3.0]), (2000, [4.0]), (3000, [5.0]), (4000, [6.0])):
        torch.save({"returns": returns, "global_step": step}, tmp_path / f"checkpoint_{step:012}.pt")
        ended += [progress.look(), progress.look()]
    assert reports == [(2.0, 1), (4.0, 2), (5.0, 3)] and ended.index(True) == 9 and sum(ended) == 1


def test_a_seed_is_refused(search):
    """The seed of a run would replace it without a word."""
    with pytest.raises(SystemExit, match="^error: "):
        search("1", "--seed", "3")


def test_nothing_fits(search):
    with pytest.raises(SystemExit, match="no --num-steps of .* fits"):
        search("1", "--total-timesteps", "600")


def test_no_episode_ends(monkeypatch, tmp_path):
    """Then there is no score, whatever the options are: the search ends with the reason, instead of nan."""

    def start(run, folder, logs):
        made = folder / "runs" / "run"
        made.mkdir(parents=True)
        torch.save({"returns": [], "global_step": 512}, made / "checkpoint_000000000512.pt")
        monkeypatch.setattr(program.sweep.Ours, "run_folder", lambda run: made)
        return subprocess.Popen([sys.executable, "-c", ""])

    monkeypatch.setattr(program.sweep, "start", start)
    words = ["", "ppo.py", "--folder", str(tmp_path), "--trials", "2", "--total-timesteps", "2048"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="no episode ended"):
        program.main()


def test_a_failed_run_has_its_reason(monkeypatch, tmp_path):
    failing = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
    monkeypatch.setattr(program.sweep, "start", lambda run, folder, logs: failing)
    with pytest.raises(program.Failed, match=r"logs/.*\.log"):
        program.score("ppo.py", tmp_path, 1, None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_search_after_its_run(number, monkeypatch, tmp_path, caplog):
    """In a line, without Optuna's traceback. Further signals change nothing, as the run may save a checkpoint."""
    started = []

    def start(run, folder, logs):
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(20)"]))
        signal.raise_signal(number)
        signal.raise_signal(number)
        return started[-1]

    signal.signal(number, lambda *_: None)  # what the program must replace
    monkeypatch.setattr(program, "stopped", [])
    monkeypatch.setattr(program.sweep, "start", start)
    monkeypatch.setattr(sys, "argv", ["", "ppo.py", "--folder", str(tmp_path), "--trials", "2"])
    caplog.set_level(logging.INFO, "optuna")  # also restores what the program changes
    monkeypatch.setattr(logging.getLogger("optuna"), "handlers", [caplog.handler])
    with pytest.raises(SystemExit, match="stopped; the same command continues"):
        program.main()
    assert [process.returncode for process in started] == [-signal.SIGUSR2]
    assert "new study" in caplog.text and "KeyboardInterrupt" not in caplog.text


@pytest.mark.parametrize("option", ["--seeds", "--trials"])
def test_a_search_needs_a_seed_and_a_trial(option, search):
    with pytest.raises(SystemExit, match="2"):
        search("1", option, "0")


@pytest.mark.slow
def test_it_searches_ppo(tmp_path):
    options = "--trials 2 --seeds 1 --total-timesteps 4096 --num-envs 8 --gae-lambda 0.75 --folder".split()
    command = [sys.executable, "-m", "benchmark.search", "ppo.py", *options, tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "2 of 2 trials" in done.stdout, done.stderr
    abouts = [json.loads(file.read_text())["args"] for file in tmp_path.glob("*/runs/*/run.json")]
    assert len(abouts) >= 3 and all(args["num_envs"] == 8 for args in abouts)
    assert 0.75 in [args["gae_lambda"] for args in abouts]
