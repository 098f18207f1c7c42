"""benchmark/search.py: its trials, with scores that are given, and with ppo.py itself."""

import logging
import re
import signal
import subprocess
import sys

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
    """The program; of trial i the score is the i-th of those given for seed 1, and 1 more for seed 2."""

    def run(scores, *words):
        def score(line, folder, seed):
            found = scores.split()[int(re.search(r"--exp-name=trial-(\d+)", line)[1])]
            if found == "fails":
                raise program.Failed
            return float(found) + seed - 1

        monkeypatch.setattr(program, "score", score)
        monkeypatch.setattr(sys, "argv", ["", "ppo.py", "--folder", str(tmp_path), *words])
        program.main()
        return capsys.readouterr()

    return run


def test_the_best_trial_is_said_as_a_command(search):
    """Its score is the mean over seeds; a second command goes on with the study; a trial that fails is left out."""
    said = search("1 7 3 fails", "--trials", "4", "--seeds", "2", "--vf-coef", "0.9").out
    assert said.startswith("3 of 4 trials completed; the best scored 7.5:\npython ppo.py --vf-coef 0.9 --lear")
    assert search("1 7 3 fails 8", "--trials", "1", "--seeds", "2", "--vf-coef", "0.9").out.startswith("4 of 5 trials")


def test_a_poor_trial_is_given_up_after_its_first_seed(search):
    """From the sixth on, where it is below the median of those before."""
    assert search("1 2 3 4 5 2.5 3.5", "--trials", "7", "--seeds", "2").out.startswith("6 of 7 trials")
    with pytest.raises(SystemExit, match="no trial completed"):
        search("fails", "--trials", "1", "--seeds", "1")


def test_it_tries_what_fits():
    """Rollouts of which minibatches are a part without a rest, of two steps at least, and that fit the whole run."""
    args = {"num_envs": 1, "num_minibatches": 32, "total_timesteps": 1_000_000}
    assert program.fitting_num_steps(args) == [64, 128, 256, 512]  # 32 steps would be minibatches of one
    assert program.fitting_num_steps(args | {"num_envs": 2}) == [32, 64, 128, 256, 512]
    assert program.fitting_num_steps(args | {"num_minibatches": 3}) == []
    assert program.fitting_num_steps(args | {"num_envs": 4, "total_timesteps": 600}) == [32, 64, 128]


@pytest.mark.parametrize("words", [("--gamma", "0.5"), ("--num_steps=64",), ("--seed", "3")])
def test_a_searched_option_is_refused(search, words):
    """The option of a trial would replace it without a word."""
    with pytest.raises(SystemExit, match="^error: "):
        search("1", *words)


def test_nothing_fits(search):
    with pytest.raises(SystemExit, match="no --num-steps of .* fits"):
        search("1", "--num-minibatches", "7", "--num-envs", "1")


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
        program.score("ppo.py", tmp_path, 1)


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
    options = "--trials 1 --seeds 1 --total-timesteps 4096 --num-envs 8 --folder".split()
    command = [sys.executable, "-m", "benchmark.search", "ppo.py", *options, tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "1 of 1 trials" in done.stdout, done.stderr
    [about] = tmp_path.glob("*/runs/*/run.json")
    assert about.read_text().count('"num_envs": 8') == 1
