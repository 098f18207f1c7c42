"""Checkpoints, resumes, signals and errors, tested on ppo.py, as the plumbing is the same in every script."""

import json
import os
import pickle
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import gymnasium as gym
import in_process
import numpy as np
import pytest
import run_files
import script_table
import torch
from filelock import FileLock, Timeout
from in_process import patched
from processes import PATIENCE, finish, start, started
from run_files import checkpoint, equal, same_weights, scalars
from script_table import PPO
from toy_envs import Clock

ppo = PPO.module
CLOCK = "--num-envs 2 --num-steps 16 --total-timesteps 384 --num-minibatches 2 --update-epochs 2 --save-every 2"
FOREVER = "--num-envs 2 --num-steps 32 --total-timesteps 10000000"


def train(options, folder, toy=Clock, script=PPO):
    """Runs the script on toys in this process; returns the run's folder."""
    with patched() as patch:
        in_process.put_in_place_of_games(script, lambda images, index: toy(images), patch.setattr)
        return in_process.train(script, options, folder)


def steps_of(run):
    return [step for step, _ in scalars(run)["losses/policy_loss"]]


def checkpoints(run):
    """The steps of a run's checkpoints."""
    return [int(file.stem[11:]) for file in sorted(run.glob("checkpoint_*.pt"))]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def cut(run, step):
    """Makes the run look as if it had been killed after the checkpoint of that step: it has no newer one."""
    for file in run.glob("checkpoint_*.pt"):
        if int(file.stem[11:]) > step:
            file.unlink()


# Checkpoints and resumes


@script_table.every_script
def test_every_part_is_resumed(script, tmp_path):
    """Each part has the state of the checkpoint, schedules continue, and the log has each step once."""
    options = CLOCK.replace("--num-envs 2", "--num-envs 4 --learning-rate 0.01 --anneal-lr")
    run = train(options, tmp_path, script=script)
    cut(run, 256)
    saved = checkpoint(run)
    with in_process.loaded_parts(script) as loaded:
        assert train(f"--resume {run}", tmp_path, script=script) == run
    assert equal(loaded, saved["parts"]) and saved["global_step"] == 256
    log = scalars(run)
    for tag in log.keys() - {"charts/episodic_return", "charts/episodic_length"}:
        assert [step for step, _ in log[tag]] == list(range(64, 385, 64)), tag
    assert len(log["charts/episodic_return"]) == 384 // 8
    rates = [0.01 * left / 6 for left in (6, 5, 4, 3, 2, 1)]
    assert [value for _, value in log["charts/learning_rate"]] == pytest.approx(rates)
    names = {path.name for path in run.iterdir() if not path.name.startswith(("events.", "checkpoint_"))}
    assert names == {f"{script.name}{end}" for end in (".py", "_000000000256.py")} | {
        "run.json", "run_000000000256.json", "lock"
    }  # fmt: skip
    assert not same_weights(checkpoint(run), saved)


def test_the_newest_two_checkpoints_stay(tmp_path):
    assert checkpoints(train(CLOCK.replace("--save-every 2", "--save-every 5"), tmp_path)) == [320, 384]
    assert checkpoints(train(CLOCK.replace("--save-every 2", "--save-every 0"), tmp_path)) == [0, 384]


def test_seeds(tmp_path):
    """A resume plays other games with other random numbers; the same resume gives the same run."""
    draw = torch.randperm
    orders = []

    def draw_and_keep(*args, **kwargs):
        orders.append(draw(*args, **kwargs))
        return orders[-1]

    with (
        in_process.watched(gym.vector.SyncVectorEnv, "reset", lambda envs, seed, **_: seed) as seeds,
        patched() as patch,
    ):
        patch.setattr(torch, "randperm", draw_and_keep)
        run = train(f"{CLOCK} --seed 7", tmp_path)
        cut(run, 320)
        shutil.copytree(run, tmp_path / "copy")
        for folder in (run, tmp_path / "copy"):
            train(f"--resume {folder}", tmp_path)
    assert seeds == [7, 7 + 320, 7 + 320]
    assert same_weights(checkpoint(run), checkpoint(tmp_path / "copy"))
    # 12 updates of 2 epochs; each resume makes the last two updates anew
    whole = torch.stack(orders[20:24])
    one = torch.stack(orders[24:28])
    other = torch.stack(orders[28:32])
    assert torch.equal(one, other) and not torch.equal(whole, one)
    assert not torch.equal(orders[0], orders[24])


def test_options_of_a_resume(tmp_path):
    """They replace the run's, but for the machine's; an option that one side lacks has its default, or is ignored."""
    run = train(f"{CLOCK} --no-anneal-lr --learning-rate 0.002", tmp_path)
    state = checkpoint(run)
    elsewhere = {
        "runs_folder": "/no/such/folder",
        "threads": 2,
        "track": True,
        "cuda": False,
        "option_of_another_copy": 1,
    }
    del state["args"]["bootstrap_truncated"]
    torch.save(state | {"args": state["args"] | elsewhere}, max(run.glob("checkpoint_*.pt")))
    assert train(f"--resume {run} --total-timesteps 512", tmp_path) == run
    args = checkpoint(run)["args"]
    assert args["total_timesteps"] == 512 and args["num_steps"] == 16 and not args["anneal_lr"]
    assert args["bootstrap_truncated"] is False
    assert (args["threads"], args["track"], args["cuda"], args["runs_folder"]) == (1, False, True, "runs")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert json.loads((run / "run.json").read_text())["device"] == device
    assert [value for _, value in scalars(run)["charts/learning_rate"]] == pytest.approx([0.002] * 16)


def test_a_finished_run_stays_as_it_is(tmp_path):
    run = train(CLOCK, tmp_path)
    before = contents(run)
    for total in (384, 96):
        with pytest.raises(SystemExit, match="^error: --total-timesteps .* leaves no rollout"):
            train(f"--resume {run} --total-timesteps {total}", tmp_path)
    assert contents(run) == before


def test_a_named_checkpoint_begins_a_new_run(tmp_path):
    """With the checkpoint's parts, no returns of episodes, and schedules from there on; a resume of it continues it."""
    run = train(f"{CLOCK} --exp-name first --learning-rate 0.01", tmp_path)
    before, older = contents(run), min(run.glob("checkpoint_*.pt"))
    with in_process.loaded_parts(PPO) as loaded:
        new = train(f"--resume {older} --total-timesteps 448", tmp_path)
    assert equal(loaded, checkpoint(run, 0)["parts"]) and checkpoint(run, 0)["returns"]
    assert new != run and new.name.split("__")[1] == "ppo" and contents(run) == before
    assert steps_of(new) == [352, 384, 416, 448] and checkpoints(new) == [384, 448]
    rates = [0.01, 0.0075, 0.005, 0.0025]
    assert [value for _, value in scalars(new)["charts/learning_rate"]] == pytest.approx(rates)
    assert len(checkpoint(new)["returns"]) == (448 - 320) // 8 < len(checkpoint(run, 0)["returns"])
    cut(new, 384)
    train(f"--resume {new}", tmp_path)
    assert [value for _, value in scalars(new)["charts/learning_rate"]] == pytest.approx(rates)


def test_a_new_run_has_a_checkpoint_of_its_own_at_once(tmp_path):
    run = train(CLOCK, tmp_path)
    with patched((ppo, "gae", None)), pytest.raises(TypeError):
        train(f"--resume {min(run.glob('checkpoint_*.pt'))}", tmp_path)
    state = checkpoint(run_files.newest_run(tmp_path))
    assert state["returns"] == [] and equal(state["parts"], checkpoint(run, 0)["parts"])


def test_parts_that_a_named_checkpoint_lacks_start_anew(tmp_path, capsys):
    """As of a file with nothing but weights; a line says so."""
    run = train(CLOCK, tmp_path)
    state = checkpoint(run)
    del state["parts"]["optimizer"]
    torch.save(state, tmp_path / "weights.pt")
    with in_process.loaded_parts(PPO) as loaded:
        train("--resume weights.pt --total-timesteps 448", tmp_path)
    assert equal(loaded["agent"], state["parts"]["agent"])
    assert not any(tensor.any() for tensor in loaded["optimizer"].values())
    assert "weights.pt has no optimizer: it starts anew\n" in capsys.readouterr().out


def test_only_names_with_twelve_digits_are_checkpoints(tmp_path):
    """A copy is neither counted nor loaded nor deleted; the resume begins at the newest checkpoint."""
    run = train(CLOCK, tmp_path)
    for name in ("best", "0000000003840", "99", "000000000999.old"):
        shutil.copy(min(run.glob("checkpoint_*.pt")), run / f"checkpoint_{name}.pt")
    kept = contents(run)
    assert train(f"--resume {run} --total-timesteps 512", tmp_path) == run
    assert {"checkpoint_000000000448.pt", "checkpoint_000000000512.pt"} < contents(run).keys()
    assert steps_of(run) == list(range(32, 513, 32)) and (run / "run_000000000384.json").exists()
    assert all(contents(run)[name] == kept[name] for name in kept if re.search(r"best|99|3840", name))


def test_a_damaged_checkpoint_is_passed_over(tmp_path, capsys):
    """It is renamed, and the run continues from the one before."""
    run = train(CLOCK, tmp_path)
    newest = max(run.glob("checkpoint_*.pt"))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    capsys.readouterr()
    assert train(f"--resume {run}", tmp_path) == run
    assert newest.name in capsys.readouterr().out
    assert [path.read_bytes() for path in run.glob("*.damaged")] == [data]
    assert checkpoints(run) == [320, 384] and steps_of(run) == list(range(32, 385, 32))


@pytest.mark.parametrize("damage", ["a byte before", "cut", "empty", "central directory", "an older one"])
def test_what_cannot_be_read_is_damage(damage, tmp_path):
    """So is an older file under the newest's name. The run continues from the one before."""
    run = train(CLOCK, tmp_path)
    older, newest = sorted(run.glob("checkpoint_*.pt"))
    data = bytearray(newest.read_bytes())
    if damage == "a byte before":
        data.insert(0, 0)
    elif damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "empty":
        data.clear()
    elif damage == "central directory":
        data[data.rindex(b"PK\x01\x02") + 16] ^= 1  # in the checksum of the last record
    else:
        data = older.read_bytes()
    newest.write_bytes(data)
    assert train(f"--resume {run}", tmp_path) == run
    assert checkpoints(run) == [320, 384] and steps_of(run) == list(range(32, 385, 32))
    assert [path.read_bytes() for path in run.glob("*.damaged")] == [bytes(data)]


def test_a_resume_leaves_the_targets_of_links_as_they_are(tmp_path):
    run = train(CLOCK, tmp_path)
    target = tmp_path / "target"
    target.write_text("mine")
    for name in ("run_000000000384.json", "ppo_000000000384.py", "checkpoint.tmp", "checkpoint_000000000448.pt"):
        (run / name).symlink_to(target)
    train(f"--resume {run} --total-timesteps 448", tmp_path)
    assert target.read_text() == "mine" and checkpoint(run)["global_step"] == 448


def test_checkpoints_that_are_refused(tmp_path, capsys):
    """Code in a file is not run."""
    malice = type("Malice", (), {"__reduce__": lambda self: (print, ("this was run",))})()
    kinds = {
        "malice": ({"args": malice, "parts": {}}, pickle.UnpicklingError),
        "another": ({"weights": torch.zeros(3)}, KeyError),
        "text": (None, SystemExit),
    }
    for name, (content, error) in kinds.items():
        (tmp_path / name).mkdir()
        file = tmp_path / name / "checkpoint_000000000064.pt"
        if content:
            torch.save(content, file)
        else:
            file.write_text("not a checkpoint")
        for path in (file, file.parent):
            with pytest.raises(error):
                in_process.train(PPO, f"--resume {path}", tmp_path)
            assert file.exists() == (path == file or content is not None)  # a file that was named keeps its name
    assert "this was run" not in capsys.readouterr().out and not list(tmp_path.glob("runs/*"))


def test_a_file_that_cannot_be_read_is_not_damaged(tmp_path):
    """An OSError ends the run, and no file changes."""
    run = train(CLOCK, tmp_path)
    before = contents(run)
    fail = mock.Mock(side_effect=OSError("Input/output error"))
    with patched((ppo.Path, "read_bytes", fail)), pytest.raises(OSError, match="Input/output error"):
        train(f"--resume {run}", tmp_path)
    assert contents(run) == before


def coefficient(value, *names):
    """A part of an edited script: a state with a number by each of these names."""
    state = dict.fromkeys(names or ["value"], value)
    return SimpleNamespace(state_dict=lambda: state, load_state_dict=state.update)


def train_with(part, options, folder):
    """Runs ppo.py with one part more."""
    begin = ppo.Run.start
    with patched((ppo.Run, "start", lambda self, device, **parts: begin(self, device, **parts, coefficient=part))):
        return train(options, folder)


@pytest.mark.parametrize("part", [object(), coefficient(object())])
def test_a_part_that_cannot_be_saved_ends_the_run_at_once(part, tmp_path):
    # gae is None, so that a run that goes on to its first update fails with a message about NoneType
    with patched((ppo, "gae", None)), pytest.raises((SystemExit, Exception)) as raised:
        train_with(part, CLOCK, tmp_path)
    assert "NoneType" not in str(raised.value)


def test_another_width(tmp_path):
    """torch's error names the parameter."""
    run = train(CLOCK, tmp_path)
    narrow = lambda inputs: torch.nn.Sequential(torch.nn.Linear(inputs, 8), ppo.nn.Tanh(), torch.nn.Linear(8, 64))  # noqa: E731
    with patched((ppo, "mlp", narrow)), pytest.raises(RuntimeError, match="policy_trunk.0.weight"):
        train(f"--resume {run} --total-timesteps 512", tmp_path)


def test_parts_that_do_not_fit(tmp_path):
    """New, gone or reordered parts or keys end a resume; the run stays as it is."""
    run = train(CLOCK, tmp_path)
    extra = train_with(coefficient(1.0, "a", "b"), CLOCK, tmp_path)

    class Reordered(ppo.Agent):
        def __init__(self, envs):
            super().__init__(envs)
            self._modules = dict(reversed(self._modules.items()))

    def refusal(resume, begin=train):
        before = contents(resume)
        with pytest.raises(SystemExit) as end:
            begin(f"--resume {resume} --total-timesteps 512", tmp_path)
        assert {name: contents(resume)[name] for name in before} == before
        return end.value.code

    another = partial(train_with, coefficient(1.0))
    turned = partial(train_with, coefficient(1.0, "b", "a"))
    assert "coefficient" in refusal(extra) and "coefficient" in refusal(run, another)
    assert "order" in refusal(extra, turned)
    with patched((ppo, "Agent", Reordered)):
        assert "order" in refusal(run)


def test_the_state_of_another_optimizer(tmp_path):
    """A checkpoint of an edited copy with torch's Adam is refused."""
    state = checkpoint(train(CLOCK, tmp_path))
    state["parts"]["optimizer"] = torch.optim.Adam([torch.zeros(2)]).state_dict()
    torch.save(state, tmp_path / "other.pt")
    with pytest.raises(SystemExit, match="^error: the checkpoint does not fit: .*param_groups"):
        train(f"--resume {tmp_path / 'other.pt'} --total-timesteps 512", tmp_path)


class Growing:
    """A part whose state has one more key at each call."""

    def __init__(self):
        self.keys = []

    def state_dict(self):
        self.keys.append(f"key {len(self.keys)}")
        return dict.fromkeys(self.keys, 0)

    def load_state_dict(self, state): ...


def test_a_part_whose_keys_change(tmp_path):
    """A new run says so before its first update: it could not be resumed."""
    with pytest.raises(SystemExit, match="^error: the checkpoint does not fit: .*key 1"):
        train_with(Growing(), CLOCK, tmp_path)


def test_another_number_of_environments(tmp_path):
    """The run ends with the last whole rollout; the speed counts the steps of this process alone."""
    run = train(CLOCK.replace("384", "128"), tmp_path)
    times = iter([5.0, 15.0, 15.0, 15.0])  # of the first update's begin, and of each update's end
    with patched((ppo, "time", SimpleNamespace(monotonic=lambda: next(times)))):
        train(f"--resume {run} --num-envs 5 --total-timesteps 400", tmp_path)  # three rollouts of 80 steps fit
    assert steps_of(run) == [32, 64, 96, 128, 208, 288, 368] and checkpoint(run)["global_step"] == 368
    assert scalars(run)["charts/SPS"][-3:] == [(208, 8), (288, 16), (368, 24)]


# What ends a run


class Broken(Clock):
    """Observes NaN in its hundredth step."""

    count = 0

    def step(self, action):
        obs, *others = super().step(action)
        self.count += 1
        return np.full_like(obs, np.nan) if self.count == 100 else obs, *others


def test_a_gradient_that_is_not_finite_ends_the_run(tmp_path):
    step = ppo.gradient_step

    def infinite_norm(*args):
        return step(*args) | {"grad_norm": torch.tensor(torch.inf)}

    line = "^losses/grad_norm is inf at step 32; "
    with patched((ppo, "gradient_step", infinite_norm)), pytest.raises(FloatingPointError, match=line):
        train(CLOCK, tmp_path)


def test_threads_and_repeatable_convolutions(tmp_path):
    torch.backends.cudnn.deterministic = False
    try:
        with in_process.watched(ppo, "gradient_step", lambda *_: torch.get_num_threads()) as seen:
            train(f"{CLOCK} --threads 2", tmp_path)
        assert set(seen) == {2} and torch.backends.cudnn.deterministic
    finally:
        torch.set_num_threads(1)


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    options = "--num-envs 2 --num-steps 32 --total-timesteps 512 --save-every 1 --num-minibatches 1 --update-epochs 1"
    with pytest.raises(FloatingPointError, match="^losses/.* is nan at step 256"):
        train(options, tmp_path, Broken)
    state = checkpoint(run_files.newest_run(tmp_path))
    assert state["global_step"] == 3 * 64
    assert all(tensor.isfinite().all() for tensor in state["parts"]["agent"].values())


def test_the_printed_command_continues_the_run(tmp_path):
    """Also in a folder with a blank in its name, with an environment of a module, without a GPU and with two threads.

    Its first line says the step."""
    options = "--env-id toy_envs:Endless-v0 --num-envs 2 --num-steps 16 --num-minibatches 2 --total-timesteps 32"
    command = [ppo.__file__, *options.split(), "--no-cuda", "--threads", "2", "--runs-folder", "my runs"]
    for start_of_run in ("", " from step 32"):
        status, output, errors = finish(start(command, tmp_path))
        assert status == 0, errors
        said, printed = output.splitlines()[0].split("; Ctrl-C stops; to continue: python ")
        assert said.endswith(f": training on cpu{start_of_run}")
        assert printed.endswith(" --no-cuda --threads 2")
        command = [*shlex.split(printed), "--total-timesteps", "64"]
    (run,) = (tmp_path / "my runs").iterdir()
    assert steps_of(run) == [32, 64]


@pytest.mark.parametrize(
    "number, group",
    [
        (signal.SIGTERM, False),
        pytest.param(signal.SIGHUP, True, marks=pytest.mark.slow),
        (signal.SIGUSR1, False),
        (signal.SIGUSR2, False),
    ],
)
def test_a_signal_saves_and_ends_the_run(number, group, tmp_path):
    """Also one that the whole process group gets, as from a terminal or Slurm; the workers leave it to the run."""
    workers = ["--async-envs"] if group else []
    process = start([ppo.__file__, *FOREVER.split(), *workers], tmp_path, group=0)
    run = started(process, tmp_path)
    kill = os.killpg if group else os.kill
    kill(process.pid, number)
    status, output, errors = finish(process)
    assert status == 128 + number and "Traceback" not in errors, errors
    last = max(run.glob("checkpoint_*.pt")).relative_to(tmp_path)
    continues = f"to continue: python {ppo.__file__} --resume {run.relative_to(tmp_path)}"
    assert output.splitlines()[-1] == f"saved {last}; {continues}"
    step = checkpoint(run)["global_step"]
    assert steps_of(run) == list(range(64, step + 1, 64))
    assert in_process.train(PPO, f"--resume {run} --total-timesteps {step + 128}", tmp_path) == run
    assert steps_of(run) == list(range(64, step + 129, 64))


def test_a_signal_in_the_last_update_leaves_a_complete_run(tmp_path):
    """Its exit status is 0, as there is nothing to continue."""
    log_update = ppo.Run.log_update

    def stopped(run, scalars):
        log_update(run, scalars)
        if run.global_step == 384:
            os.kill(os.getpid(), signal.SIGTERM)

    with patched((ppo.Run, "log_update", stopped)):
        assert checkpoints(train(CLOCK, tmp_path))[-1] == 384
    with patched((ppo.Run, "log_update", stopped)), pytest.raises(SystemExit) as end:
        train(CLOCK.replace("384", "416"), tmp_path)
    assert end.value.code == 128 + signal.SIGTERM


def test_a_signal_after_the_last_update_changes_nothing(tmp_path):
    """The environments may take long to close."""
    make_envs = ppo.make_envs

    def with_slow_close(args, folder=None):
        envs = make_envs(args, folder)
        envs.close = lambda: os.kill(os.getpid(), signal.SIGTERM)
        return envs

    with patched((ppo, "make_envs", with_slow_close)):
        assert checkpoints(train(CLOCK, tmp_path))[-1] == 384


def test_what_nohup_ignores_stays_ignored(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with in_process.watched(ppo.Run, "updates", lambda run: signal.getsignal(signal.SIGHUP)) as seen:
        train(CLOCK, tmp_path)
    signal.signal(signal.SIGHUP, before)
    assert seen == [signal.SIG_IGN]


# A program for another process: ppo.py, whose first update has no end
ENDLESS = """
import signal, sys, time, ppo
def gradient_step(*args):
    print("learning", flush=True)
    while signal.getsignal(signal.SIGINT) != signal.SIG_DFL:
        time.sleep(0.01)
    print("told to stop", flush=True)
    time.sleep(1000)
ppo.gradient_step, sys.argv = gradient_step, ["ppo.py"]
ppo.main()
"""


def test_the_second_ctrl_c_ends_the_program_at_once(tmp_path):
    process = start(["-c", ENDLESS], tmp_path)
    for said in ("learning", "told to stop"):
        assert any(said in line for line in iter(process.stdout.readline, ""))
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.3)
        process.send_signal(signal.SIGINT)
    assert finish(process)[0] == -signal.SIGINT


@pytest.mark.slow
def test_nothing_is_lost_where_tee_dies_of_the_same_ctrl_c(tmp_path):
    command = f"{sys.executable} {ppo.__file__} {FOREVER} 2>&1 | tee log"
    process = subprocess.Popen(["bash", "-c", command], cwd=tmp_path, stdout=subprocess.DEVNULL, process_group=0)
    run = started(process, tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    process.wait(PATIENCE)
    with FileLock(run / "lock", timeout=PATIENCE):  # bash does not wait for the run, which holds the lock
        assert checkpoint(run)["global_step"] == steps_of(run)[-1]


# A program for another process: ppo.py, whose `gae` ends with an error, with workers
WRONG_EDIT = """
import multiprocessing, sys, ppo
def gae(*args):
    print(*(process.pid for process in multiprocessing.active_children()), flush=True)
    raise ValueError("an edit")
ppo.gae, sys.argv = gae, ["ppo.py", "--async-envs", "--num-envs", "3"]
if __name__ == "__main__":
    ppo.main()
"""


@pytest.mark.slow
def test_an_error_ends_the_workers(tmp_path):
    process = start(["-c", WRONG_EDIT], tmp_path)
    status, output, errors = finish(process)
    assert status == 1 and errors.splitlines()[-1] == "ValueError: an edit"
    workers = [int(pid) for pid in output.splitlines()[-1].split()]
    assert len(workers) == 3 and not any(Path(f"/proc/{pid}").exists() for pid in workers)


# A program for another process: ppo.py, whose files may not grow beyond a size after the first checkpoint
FULL = """
import resource, sys, ppo
save = ppo.Run.save
def limited(run):
    state = save(run)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return state
ppo.Run.save, size, sys.argv = limited, int(sys.argv[1]), ["ppo.py", *sys.argv[2:]]
ppo.main()
"""


@pytest.mark.parametrize("size", [60_000, 10], ids=["in a checkpoint", "in the log"])
def test_a_full_disk(size, tmp_path):
    """An error says so; the last checkpoint is whole, and a resume continues from it."""
    status, _, errors = finish(start(["-c", FULL, size, *f"{PPO.tiny} --save-every 3".split()], tmp_path))
    assert status == 1 and "File too large" in errors.splitlines()[-1]
    run = run_files.newest_run(tmp_path)
    in_process.train(PPO, f"--resume {run}", tmp_path)
    assert steps_of(run) == list(range(64, 513, 64))


# A program for another process: ppo.py, killed when half of a checkpoint is written, the second after the start
KILLED = """
import os, signal, sys, ppo
write_file, files = ppo.write_file, []
def write_half(path, data):
    files.append(path.name)
    if files.count("checkpoint.tmp") == 3:
        path.write_bytes(data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    write_file(path, data)
ppo.write_file, sys.argv[0] = write_half, "ppo.py"
ppo.main()
"""


def test_killed_while_it_writes_a_checkpoint(tmp_path):
    status, _, errors = finish(start(["-c", KILLED, *f"{PPO.tiny} --save-every 3".split()], tmp_path))
    assert status == -signal.SIGKILL, errors
    run = run_files.newest_run(tmp_path)
    assert checkpoints(run) == [0, 3 * 64]
    in_process.train(PPO, f"--resume {run}", tmp_path)
    assert steps_of(run) == list(range(64, 513, 64)) and not list(run.glob("*.damaged"))


# The folder and the log


def test_runs_of_one_second_have_folders_of_their_own(tmp_path):
    """Those of one program, and those of several, which have other process ids."""
    with patched((ppo.time, "strftime", lambda form: "20260101-000000")):
        first, second = train(CLOCK, tmp_path), train(CLOCK, tmp_path)
        with patched((ppo.os, "getpid", lambda: 1)):
            third = train(CLOCK, tmp_path)
    assert re.fullmatch(rf"CartPole-v1__ppo__1__20260101-000000-{os.getpid()}", first.name)
    assert len({first, second, third}) == 3


def test_the_name_of_a_folder_has_no_character_of_a_pattern(tmp_path):
    assert "__lr-1e-3--a__7__" in train(f"{CLOCK} --exp-name lr[1e-3]/a --seed 7", tmp_path).name


def test_a_script_started_through_a_link_is_known_by_its_own_name(tmp_path):
    link = tmp_path / "link.py"
    link.symlink_to(ppo.__file__)
    with patched((ppo, "__file__", str(link))):
        run = train(CLOCK, tmp_path)
    assert (run / "ppo.py").read_bytes() == Path(ppo.__file__).read_bytes()
    assert checkpoint(run)["script"] == json.loads((run / "run.json").read_text())["script"] == "ppo.py"


def test_the_commit_of_a_run(tmp_path):
    """The whole hash, never a tag, and whether files have changed since."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    git += ["-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"]
    (tmp_path / "file").write_text("1")
    for words in (["init", "-q"], ["add", "file"], ["commit", "-qm", "a"], ["tag", "-am", "b", "b"]):
        subprocess.run([*git, *words], check=True)
    commit = ppo.git_commit(tmp_path)
    assert re.fullmatch("[0-9a-f]{40}", commit)
    (tmp_path / "file").write_text("2")
    assert ppo.git_commit(tmp_path) == f"{commit}-dirty"


def test_a_run_where_there_is_no_git(tmp_path, monkeypatch):
    """Or where git refuses the checkout of another owner."""
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\necho 'fatal: detected dubious ownership' >&2\nexit 128\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert json.loads((train(CLOCK, tmp_path) / "run.json").read_text())["commit"] == ""
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert ppo.git_commit(tmp_path) == ""


def test_the_id_of_a_tracked_run(tmp_path, monkeypatch):
    """It has only characters that wandb takes, and at most 128; a resume has the same, and goes on there."""
    settings = []
    wandb = SimpleNamespace(init=lambda **kept: settings.append(kept))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    run = train(f"{CLOCK} --track --exp-name lr=3e-4,gamma=0.99{'x' * 100}", tmp_path)
    train(f"--resume {run} --total-timesteps 512 --track", tmp_path)
    first, second = settings
    assert re.fullmatch(r"[\w-]{1,128}", first["id"]) and first["id"] == second["id"]
    assert [each["config"]["total_timesteps"] for each in settings] == [384, 512]
    assert all(each["resume"] == "allow" and each["sync_tensorboard"] for each in settings)


def test_a_folder_belongs_to_one_process(tmp_path):
    """A second one ends before it reads a checkpoint; after the first has been killed, the folder is free."""
    process = start([ppo.__file__, *FOREVER.split(), "--save-every", "1"], tmp_path)
    run = started(process, tmp_path)
    with (
        patched((ppo, "load_checkpoint", None)),
        pytest.raises(Timeout),
    ):
        in_process.train(PPO, f"--resume {run}", tmp_path)
    assert process.poll() is None
    process.kill()
    assert finish(process)[0] == -signal.SIGKILL
    step = checkpoint(run)["global_step"]
    assert in_process.train(PPO, f"--resume {run} --total-timesteps {step + 64}", tmp_path) == run


def test_a_run_without_progress_bar(tmp_path):
    """The steps per second do not need it."""
    status, _, errors = finish(start([ppo.__file__, *PPO.tiny.split()], tmp_path, TQDM_DISABLE="1"))
    assert status == 0 and not errors, errors
    assert all(speed > 0 for _, speed in scalars(run_files.newest_run(tmp_path))["charts/SPS"])


def histories(log):
    """The rows of history in wandb's file of an offline run, [{key: value}, ...].

    The file is a log as LevelDB has it: blocks of 32,768 bytes, which hold records, or parts of records, behind a
    header of a checksum, the length and the kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = log.read_bytes()
    rows = []
    place, parts = 7, b""  # wandb's own header has seven bytes
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # no header fits into the rest of a block
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            record = Record.FromString(parts)
            parts = b""
            if record.WhichOneof("record_type") == "history":
                rows.append({"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item})
    return rows


@pytest.mark.slow
def test_weights_and_biases_gets_the_same_scalars(tmp_path):
    """Also each episode, where several end in one step of all environments: MountainCar has a time limit."""
    command = [ppo.__file__, "--env-id", "MountainCar-v0", "--num-envs", "8", "--num-steps", "64"]
    command += ["--total-timesteps", "4096", "--track"]
    status, _, errors = finish(start(command, tmp_path, WANDB_MODE="offline", WANDB_SILENT="true"))
    assert status == 0, errors
    [log], logged = tmp_path.glob("wandb/offline-run-*/run-*.wandb"), scalars(run_files.newest_run(tmp_path))
    rows = histories(log)
    for tag in ("losses/policy_loss", "charts/episodic_return"):
        values = [float(row[tag]) for row in rows if tag in row]
        assert values == pytest.approx([value for _, value in logged[tag]])
    assert len(logged["charts/episodic_return"]) == 16
    [link] = [path for path in tmp_path.rglob("events.out.*") if path.is_symlink()]  # it is found once, not nested
