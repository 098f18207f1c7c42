"""What ends a run before its time: signals, a full disk, numbers that are not finite, files that are not whole.

Tried with ppo.py: test_scripts.py says that all of this is the same in every script.
"""

import pickle
import shutil
import signal
import time

import numpy as np
import pytest
import torch
from toy_envs import (
    SCRIPTS,
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


def started(arguments, folder):
    """The process and its run's folder, once its log holds some updates."""
    process = start(arguments, folder)
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
import sys, time, ppo
def gradient_step(*args):
    print("learning", flush=True)
    time.sleep(1000)
ppo.gradient_step, sys.argv = gradient_step, ["ppo.py"]
ppo.main()
"""


def test_the_second_ctrl_c_ends_the_program_at_once(tmp_path):
    process = start(["-c", ENDLESS], tmp_path)
    while "learning" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
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
    """One line says so; the last good checkpoint is whole, and nothing is half a file."""
    status, _, errors = finish(start(["-c", FULL, size, *f"{ppo.tiny} --save-every 3".split()], tmp_path))
    assert status == 1
    assert any(line.startswith("error: [Errno 27] File too large") for line in errors.splitlines())
    assert errors.count("Traceback") == (size == 10)  # the thread that writes the log has its own say
    run = newest_run(tmp_path)
    assert [file.name for file in run.glob("checkpoint*")] == [f"checkpoint_{3 * 64:012}.pt"]
    train(ppo, f"--resume {run}", tmp_path)
    assert [step for step, _ in scalars(run)["losses/policy_loss"]] == list(range(64, 513, 64))


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
        with pytest.raises(SystemExit, match=f"NaN or inf in the {what} of update 4"):
            train(ppo, options, tmp_path)
    assert checkpoint(newest_run(tmp_path))["global_step"] == 3 * 64
    assert all(tensor.isfinite().all() for tensor in checkpoint(newest_run(tmp_path))["parts"]["agent"].values())


class Malice:
    def __reduce__(self):
        return print, ("this was run",)


def test_checkpoints_that_are_refused(tmp_path, capsys):
    """One that holds more than plain values runs no code; half of one is named, and the one before it."""
    run = train(ppo, f"{ppo.tiny} --save-every 4", tmp_path)
    older, newer = sorted(run.glob("checkpoint_*.pt"))
    shutil.copy(newer, tmp_path / "whole.pt")
    for bad in (pickle.dumps(Malice()), newer.read_bytes()[:5000], b""):
        newer.write_bytes(bad)
        with pytest.raises(SystemExit, match=f"{newer.name} is not a whole checkpoint.*before is .*{older.name}"):
            train(ppo, f"--resume {run}", tmp_path)
    torch.save({"script": Malice()}, newer)
    with pytest.raises(SystemExit, match="is not a whole checkpoint of plain values"):
        train(ppo, f"--resume {run}", tmp_path)
    assert "this was run" not in capsys.readouterr().out
    train(ppo, f"--resume {older}", tmp_path)
    assert checkpoint(run)["parts"]["agent"].keys() == torch.load(tmp_path / "whole.pt")["parts"]["agent"].keys()
