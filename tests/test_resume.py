"""Runs that are killed, and go on: as if nothing had been, with a log that has each step once.

What is only plumbing is tried with ppo.py alone: test_scripts.py says that it is the same in every script.
"""

import signal

import pytest
import torch
from toy_envs import (
    SCRIPTS,
    Clock,
    checkpoint,
    every_script,
    finish,
    newest_run,
    patched,
    put_in_place_of_games,
    same_weights,
    scalars,
    start,
    train,
)

ppo = SCRIPTS[0]

# A program for another process: the script, killed in the update KILL by a signal that it cannot see coming. Its log
# is on the disk up to there, beyond its newest checkpoint. TOY: on Clock, not on the real environment.
KILLED = """
import functools, os, signal, sys, time
import toy_envs
[script] = [script for script in toy_envs.SCRIPTS if script.name == sys.argv[1]]
kill, toy, sys.argv = int(sys.argv[2]), sys.argv[3] == "toy", [f"{script.name}.py", *sys.argv[4:]]
module = script.module
if toy:
    toy_envs.put_in_place_of_games(script, lambda images, index: toy_envs.Clock(images))
class Run(module.Run):
    def log_update(self, update, scalars, **rollout):
        super().log_update(update, scalars, **rollout)
        if update == kill:
            self.writer.flush()
            os.kill(os.getpid(), signal.SIGKILL)
module.Run = Run
module.main()
"""


def killed(script, update, options, folder, toy=True):
    """Runs the script in another process until it is killed in `update`; returns the run's folder."""
    folder.mkdir(exist_ok=True)
    arguments = ["-c", KILLED, script.name, update, "toy" if toy else "game", *options.split()]
    status, _, errors = finish(start(arguments, folder))
    assert status == -signal.SIGKILL, errors
    return newest_run(folder)


def on_clock(script, options, folder):
    """Runs the script to its end on Clock, without a chance in it; returns the run's folder."""
    with patched() as patch:
        put_in_place_of_games(script, lambda images, index: Clock(images), patch.setattr)
        return train(script, options, folder)


def without_speed(log):
    return {tag: [(step, repr(value)) for step, value in points] for tag, points in log.items() if tag != "charts/SPS"}


CLOCK = "--num-envs 2 --num-steps 16 --total-timesteps 384 --num-minibatches 2 --update-epochs 2 --save-every 2"


@every_script
def test_a_run_killed_twice_ends_as_one_that_was_not(script, tmp_path):
    """Weights, optimizer, schedules, random numbers, statistics and log: bit for bit, as Clock has no chance in it."""
    whole = on_clock(script, f"{CLOCK} --anneal-clip", tmp_path / "whole")
    run = killed(script, 5, f"{CLOCK} --anneal-clip", tmp_path / "killed")
    assert checkpoint(run)["global_step"] == 4 * 32
    assert scalars(run)["losses/entropy"][-1][0] == 5 * 32  # there is something to cut away
    killed(script, 9, f"--resume {run}", tmp_path / "killed")
    on_clock(script, f"--resume {run}", tmp_path / "killed")
    assert [path.name for path in run.parent.iterdir()] == [run.name]

    expected, log = without_speed(scalars(whole)), without_speed(scalars(run))
    assert [step for step, _ in log["losses/policy_loss"]] == list(range(32, 385, 32))
    assert len(log["charts/episodic_return"]) == 384 / 8
    assert log == expected
    assert [step for step, _ in scalars(run)["charts/SPS"]] == list(range(32, 385, 32))
    expected, last = checkpoint(whole), checkpoint(run)
    assert same_weights(expected, last)
    assert last["returns"] == expected["returns"] and last["global_step"] == expected["global_step"] == 384
    assert torch.equal(last["torch"], expected["torch"])
    optimizer, expected = last["parts"]["optimizer"], expected["parts"]["optimizer"]
    assert optimizer["param_groups"] == expected["param_groups"]
    assert optimizer["param_groups"][0]["steps"] == 12 * 2 * 2
    for number, state in expected["state"].items():
        assert all(torch.equal(state[name], optimizer["state"][number][name]) for name in state)


@every_script
def test_a_killed_run_on_its_real_environment_ends_as_one_that_was_not(script, tmp_path):
    """Weights and log are the same to the last bit, as the resumed run brings its episodes back to where they were."""
    options = f"{script.tiny} --save-every 2 --learning-rate 0.01"
    whole = train(script, options, tmp_path / "whole")
    run = killed(script, 5, options, tmp_path / "killed", toy=False)
    assert train(script, f"--resume {run}", tmp_path / "killed") == run
    assert same_weights(checkpoint(run), checkpoint(whole))
    log = without_speed(scalars(run))
    assert log == without_speed(scalars(whole))
    args = checkpoint(run)["args"]
    steps = range(rollout := args["num_envs"] * args["num_steps"], args["total_timesteps"] + 1, rollout)
    assert [step for step, _ in log["losses/policy_loss"]] == list(steps)
    rates = [0.01 * (1 - update / len(steps)) for update in range(len(steps))]
    assert [value for _, value in scalars(run)["charts/learning_rate"]] == pytest.approx(rates)


# A program for another process: ppo.py, killed when half of its second checkpoint is on the disk.
KILLED_WHILE_SAVING = """
import os, signal, sys
from pathlib import Path
import ppo
write_bytes, saved = Path.write_bytes, []
def half(path, data):
    saved.extend([path] if path.name == "checkpoint.tmp" else [])
    if len(saved) < 2:
        return write_bytes(path, data)
    write_bytes(path, data[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
Path.write_bytes, sys.argv[0] = half, "ppo.py"
ppo.main()
"""


def test_killed_while_it_writes_a_checkpoint(tmp_path):
    """The one before is whole, and the run goes on from it."""
    status, _, errors = finish(start(["-c", KILLED_WHILE_SAVING, *f"{ppo.tiny} --save-every 3".split()], tmp_path))
    assert status == -signal.SIGKILL, errors
    run = newest_run(tmp_path)
    assert checkpoint(run)["global_step"] == 3 * 64
    train(ppo, f"--resume {run}", tmp_path)
    assert checkpoint(run)["global_step"] == 512
    assert [step for step, _ in scalars(run)["losses/policy_loss"]] == list(range(64, 513, 64))


def test_only_the_newest_two_checkpoints_stay(tmp_path):
    run = on_clock(ppo, CLOCK.replace("--save-every 2", "--save-every 5"), tmp_path)
    assert [path.name for path in sorted(run.glob("checkpoint*"))] == [
        "checkpoint_000000000320.pt", "checkpoint_000000000384.pt"
    ]  # fmt: skip
    only_last = on_clock(ppo, CLOCK.replace("--save-every 2", "--save-every 0"), tmp_path / "never")
    assert [path.name for path in only_last.glob("checkpoint*")] == ["checkpoint_000000000384.pt"]


def test_options_given_with_resume_replace_those_of_the_run(tmp_path):
    run = on_clock(ppo, f"{CLOCK} --no-anneal-lr --learning-rate 0.002", tmp_path)
    on_clock(ppo, f"--resume {run} --total-timesteps 512", tmp_path)
    args = checkpoint(run)["args"]
    assert args["total_timesteps"] == 512 and args["num_steps"] == 16 and not args["anneal_lr"]
    log = scalars(run)
    assert [step for step, _ in log["charts/learning_rate"]] == list(range(32, 513, 32))
    assert [value for _, value in log["charts/learning_rate"]] == pytest.approx([0.002] * 16)


def test_a_finished_run_stays_as_it_is(tmp_path):
    run = on_clock(ppo, CLOCK, tmp_path)
    log, before = scalars(run), checkpoint(run)
    assert on_clock(ppo, f"--resume {run}", tmp_path) == run
    assert scalars(run) == log and same_weights(checkpoint(run), before)
    assert on_clock(ppo, f"--resume {run} --total-timesteps 96", tmp_path) == run  # fewer than it has
    assert scalars(run) == log and checkpoint(run)["global_step"] == before["global_step"]


def test_going_back_to_an_older_checkpoint(tmp_path):
    """A file can be named; what came after it is then no longer there, however often the run is killed again."""
    whole = on_clock(ppo, CLOCK, tmp_path / "whole")
    run = on_clock(ppo, CLOCK, tmp_path / "back")
    older, newer = sorted(run.glob("checkpoint_*.pt"))
    assert (older.name, newer.name) == ("checkpoint_000000000320.pt", "checkpoint_000000000384.pt")
    killed(ppo, 11, f"--resume {older}", tmp_path / "back")  # before it saves
    on_clock(ppo, f"--resume {run}", tmp_path / "back")
    assert without_speed(scalars(run)) == without_speed(scalars(whole))
    assert same_weights(checkpoint(run), checkpoint(whole))
