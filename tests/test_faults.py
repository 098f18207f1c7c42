"""What ends a run before its time: signals, a full disk, numbers that are not finite, files that are not whole.

Tried with ppo.py: test_scripts.py says that all of this is the same in every script.
"""

import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_envs import (
    SCRIPTS,
    SELFPLAY,
    Clock,
    checkpoint,
    finish,
    newest_run,
    patched,
    put_in_place_of_games,
    scalars,
    start,
    train,
)

ppo = SCRIPTS[0]
LONG = "--num-envs 2 --num-steps 32 --total-timesteps 10000000 --save-every 0"


def started(arguments, folder, **options):
    """The process and its run's folder, once its log holds some updates."""
    process = start(arguments, folder, **options)
    process.stdout.readline()
    while not scalars(newest_run(folder)):
        assert process.poll() is None
        time.sleep(0.05)
    return process, newest_run(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_saves_and_ends_the_run(number, tmp_path):
    process, run = started([ppo.module.__file__, *LONG.split()], tmp_path)
    process.send_signal(number)
    status, output, errors = finish(process)
    assert status == 128 + number and "Traceback" not in errors
    assert f"--resume {run.relative_to(tmp_path)}" in output
    [file] = run.glob("checkpoint*")
    step = checkpoint(run)["global_step"]
    assert step > 0 and step % 64 == 0 and file.name == f"checkpoint_{step:012}.pt"
    steps = list(range(64, step + 1, 64))
    assert [at for at, _ in scalars(run)["losses/policy_loss"]] == steps
    assert train(ppo, f"--resume {run} --total-timesteps {step + 128}", tmp_path) == run
    assert [at for at, _ in scalars(run)["losses/policy_loss"]] == [*steps, step + 64, step + 128]


# A program for another process: ppo.py, its first update without an end.
ENDLESS = """
import signal, sys, time, ppo
def gradient_step(*args):
    print("learning", flush=True)
    for _ in range(6000):
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
            break
        time.sleep(0.01)
    print("told to stop", flush=True)
    time.sleep(1000)
ppo.gradient_step, sys.argv = gradient_step, ["ppo.py"]
ppo.main()
"""


def test_the_second_ctrl_c_ends_the_program_at_once(tmp_path):
    process = start(["-c", ENDLESS], tmp_path)
    assert any("learning" in line for line in iter(process.stdout.readline, ""))
    process.send_signal(signal.SIGINT)  # the next waits for what it does: two that are pending are one
    assert any("told to stop" in line for line in iter(process.stdout.readline, ""))
    with pytest.raises(subprocess.TimeoutExpired):  # the first waits for the update's end
        process.wait(timeout=1)
    process.send_signal(signal.SIGINT)
    status, _, errors = finish(process)
    assert status == -signal.SIGINT and "Traceback" not in errors


# A program for another process: ppo.py, whose files may not grow beyond a size from its first checkpoint on.
FULL = """
import resource, sys, ppo
class Run(ppo.Run):
    def save(self):
        super().save()
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
ppo.Run, size, sys.argv = Run, int(sys.argv[1]), ["ppo.py", *sys.argv[2:]]
ppo.main()
"""


@pytest.mark.parametrize("size", [60_000, 10], ids=["in a checkpoint", "in the log"])
def test_a_full_disk(size, tmp_path):
    """One line says so; the last good checkpoint is whole, and the run goes on from it."""
    status, _, errors = finish(start(["-c", FULL, size, *f"{ppo.tiny} --save-every 3".split()], tmp_path))
    assert status == 1
    assert errors.splitlines()[-1].startswith("error: ") and errors.splitlines()[-1].endswith("File too large")
    assert "Traceback" not in errors
    run = newest_run(tmp_path)
    assert [file.name for file in run.glob("checkpoint_*")] == [f"checkpoint_{3 * 64:012}.pt"]
    train(ppo, f"--resume {run}", tmp_path)
    assert [step for step, _ in scalars(run)["losses/policy_loss"]] == list(range(64, 513, 64))


def test_a_thread_of_ones_own_keeps_its_traceback(tmp_path, capfd):
    """Only that of the thread which writes the log is left out, as main() tells the same error."""
    train(ppo, ppo.tiny, tmp_path)
    thread = threading.Thread(target=open, args=[tmp_path / "missing"])
    thread.start()
    thread.join()
    assert "FileNotFoundError" in capfd.readouterr().err


class Broken(Clock):
    """Gives a number that is not finite in its hundredth step."""

    def __init__(self, images, what, number):
        super().__init__(images)
        self.what, self.number, self.count = what, number, 0

    def step(self, action):
        obs, reward, *others = super().step(action)
        self.count += 1
        if self.count == 100:
            obs, reward = (obs, self.number) if self.what == "rewards" else (np.full_like(obs, self.number), reward)
        return obs, reward, *others


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("what", ["observations", "rewards"])
def test_a_number_that_is_not_finite_ends_the_run(what, number, tmp_path):
    options = "--num-envs 2 --num-steps 32 --total-timesteps 512 --save-every 1 --num-minibatches 1 --update-epochs 1"
    with patched() as patch:
        put_in_place_of_games(ppo, lambda images, index: Broken(images, what, number), patch.setattr)
        with pytest.raises(SystemExit, match="NaN or inf in losses/policy_loss of update 4"):
            train(ppo, options, tmp_path)
    assert checkpoint(newest_run(tmp_path))["global_step"] == 3 * 64
    assert all(tensor.isfinite().all() for tensor in checkpoint(newest_run(tmp_path))["parts"]["agent"].values())


class Malice:
    def __reduce__(self):
        return print, ("this was run",)


def test_checkpoints_that_are_refused(tmp_path, capsys):
    """One that holds more than plain values runs no code; half of one is named, and the one before it is taken."""
    run = train(ppo, f"{ppo.tiny} --save-every 4", tmp_path)
    older, newer = sorted(run.glob("checkpoint_*.pt"))
    older.rename(older.with_suffix(".kept"))
    for bad in (pickle.dumps(Malice()), newer.read_bytes()[:5000], b"", None):
        torch.save({"args": Malice(), "parts": {}}, newer) if bad is None else newer.write_bytes(bad)
        capsys.readouterr()
        with pytest.raises(SystemExit, match="^error: --resume .*: there is no whole checkpoint$"):
            train(ppo, f"--resume {run}", tmp_path)
        said = capsys.readouterr().out
        assert said.startswith(f"{newer} is not a whole checkpoint of plain values") and "this was run" not in said
    older.with_suffix(".kept").rename(older)
    assert train(ppo, f"--resume {run}", tmp_path) == run
    assert f"{newer} is not a whole checkpoint" in capsys.readouterr().out
    assert checkpoint(run)["global_step"] == 512


class Failing(Clock):
    """Raises what a user's own environment might, in its hundredth step."""

    error, count = None, 0

    def step(self, action):
        self.count += 1
        if self.count == 100:
            raise self.error
        return super().step(action)


@pytest.mark.parametrize("error", [OSError("the disk of the game"), ValueError("the game"), TimeoutError("no answer")])
def test_an_error_of_the_environment_keeps_its_traceback(error, tmp_path):
    """It is no SystemExit, which would hide where it came from; the last checkpoint stays."""
    with patched((Failing, "error", error)) as patch:
        put_in_place_of_games(ppo, lambda images, index: Failing(images), patch.setattr)
        with pytest.raises(type(error)) as raised:
            train(ppo, "--num-envs 2 --num-steps 32 --total-timesteps 512 --save-every 1", tmp_path)
    assert raised.value is error and raised.traceback[-1].path == Path(__file__)
    assert checkpoint(newest_run(tmp_path))["global_step"] == 3 * 64


def test_a_running_runs_folder_takes_no_second_process(tmp_path):
    """One line, and the running one goes on; when it has ended, or was killed, the folder is free."""
    process, run = started([ppo.module.__file__, *LONG.replace("--save-every 0", "--save-every 1").split()], tmp_path)
    while not list(run.glob("checkpoint_*.pt")):
        time.sleep(0.05)
    before = {path.name for path in run.iterdir() if path.suffix != ".pt"}
    status, _, errors = finish(start([ppo.module.__file__, "--resume", run], tmp_path))
    assert status == 1 and re.fullmatch(r"error: .*lock.*\n", errors), errors
    assert {path.name for path in run.iterdir() if path.suffix not in (".pt", ".tmp")} == before
    assert process.poll() is None
    process.kill()
    assert finish(process)[0] == -signal.SIGKILL
    step = checkpoint(run)["global_step"]
    assert train(ppo, f"--resume {run} --total-timesteps {step + 64}", tmp_path) == run


def test_runs_that_start_in_the_same_second_have_a_folder_each(tmp_path):
    """Three learning rates of one seed, started together; their names differ in microseconds."""
    runs = [train(ppo, f"{ppo.tiny} --learning-rate {rate}", tmp_path) for rate in (0.1, 0.01, 0.001)]
    assert len(set(runs)) == 3
    assert [checkpoint(run)["args"]["learning_rate"] for run in runs] == [0.1, 0.01, 0.001]
    assert [len(list(run.glob("events.*"))) for run in runs] == [1, 1, 1]


def test_a_folder_of_the_same_name_is_left_alone(tmp_path):
    class Stopped(datetime):
        @classmethod
        def now(cls):
            return cls(2026, 1, 1)

    with patched((ppo.module, "datetime", Stopped)):
        run = train(ppo, ppo.tiny, tmp_path)
        before = {path.name: path.read_bytes() for path in run.iterdir()}
        with pytest.raises(SystemExit, match="^error: the run's folder: FileExistsError"):
            train(ppo, ppo.tiny, tmp_path)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_three_processes_started_together_have_a_folder_each(tmp_path):
    options = f"--num-envs 2 --num-steps 32 --total-timesteps 128 --runs-folder {tmp_path / 'several' / 'runs'}"
    processes = [start([ppo.module.__file__, *options.split()], tmp_path) for _ in range(3)]
    for status, _, errors in map(finish, processes):
        assert status == 0, errors
    folders = list((tmp_path / "several" / "runs").iterdir())
    assert len(folders) == 3
    assert [checkpoint(folder)["global_step"] for folder in folders] == [128] * 3


def children(pid):
    """And theirs: from Python 3.14 on, the workers are started by a server of the run's."""
    own = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return own + [each for child in own for each in children(child)]


ASYNC = "--num-envs 3 --num-steps 32 --total-timesteps 10000000 --save-every 1 --async-envs"


@pytest.mark.skipif(sys.platform != "linux", reason="looks its workers up in /proc")
def test_a_worker_that_is_killed_ends_the_run(tmp_path):
    """With an error, and soon; no process is left, the last checkpoint stays and goes on."""
    process, run = started([ppo.module.__file__, *ASYNC.split()], tmp_path)
    while not list(run.glob("checkpoint_*.pt")):
        time.sleep(0.05)
    workers = children(process.pid)
    assert len(workers) >= 3
    os.kill(workers[-1], signal.SIGKILL)
    status, _, errors = finish(process, seconds=60)
    assert status == 1 and "Error" in errors.splitlines()[-1]
    until = time.monotonic() + 60  # the server ends by itself, a moment later
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < until
        time.sleep(0.05)
    step = checkpoint(run)["global_step"]
    assert step > 0 and train(ppo, f"--resume {run} --total-timesteps {step + 96}", tmp_path) == run


@pytest.mark.parametrize("script", [ppo, SELFPLAY], ids=lambda script: script.name)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_to_the_whole_process_group_saves_and_ends_the_run(number, script, tmp_path):
    """As a terminal that closes sends it, or timeout: the workers leave the run to end them."""
    options = ASYNC.replace("--num-envs 3", "--num-envs 4").replace("--save-every 1", "--save-every 0").split()
    options += ["--env-id", "toy_envs:Signs-v0"] if script is SELFPLAY else []
    process, run = started([script.module.__file__, *options], tmp_path, group=0)
    os.killpg(process.pid, number)
    status, output, errors = finish(process, seconds=60)
    assert status == 128 + number and "Traceback" not in errors, errors
    assert checkpoint(run)["global_step"] == max(step for step, _ in scalars(run)["losses/policy_loss"])


@pytest.mark.skipif(sys.platform != "linux", reason="looks its workers up in /proc")
def test_ctrl_c_with_workers_saves_and_ends_the_run(tmp_path):
    """A terminal sends SIGINT to the workers, too."""
    process, run = started([ppo.module.__file__, *ASYNC.replace("--save-every 1", "--save-every 0").split()], tmp_path)
    for pid in (*children(process.pid), process.pid):
        os.kill(pid, signal.SIGINT)
    status, output, errors = finish(process, seconds=60)
    assert status == 128 + signal.SIGINT and "Traceback" not in errors, errors
    step = checkpoint(run)["global_step"]
    assert [at for at, _ in scalars(run)["losses/policy_loss"]] == list(range(96, step + 1, 96))
