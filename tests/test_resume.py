"""Runs that are killed, and go on: with what they had learned, and a log that has each step once.

What is only plumbing is tried with ppo.py alone: test_scripts.py says that it is the same in every script.
"""

import importlib
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import time
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from test_procgen import every_script_with_its_games
from toy_envs import (
    ROOT,
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

# Processes that are forked from one that has the libraries loaded but no threads: each begins seconds earlier.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["toy_envs", "torch._dynamo", "mujoco", *(script.name for script in SCRIPTS)])


def run_and_die(script, update, options, folder, toy):
    """What another process does: the script, killed in the update by a signal that it cannot see coming.

    Its log is on the disk up to there, beyond its newest checkpoint."""
    os.chdir(folder)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open("said", os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream.fileno())
    sys.argv = [f"{script}.py", *options.split(), "--threads", "1"]  # whoever began the server
    module = importlib.import_module(script)
    if toy:
        [script] = [each for each in SCRIPTS if each.name == script]
        put_in_place_of_games(script, lambda images, index: Clock(images))

    class Run(module.Run):
        def log_update(self, scalars):
            super().log_update(scalars)
            if self.update == update:
                self.writer.flush()
                os.kill(os.getpid(), signal.SIGKILL)

    module.Run = Run
    module.main()


def killed(script, update, options, folder, toy=True):
    """Runs the script in another process until it is killed in `update`, on Clock or the real environment; returns the
    run's folder."""
    folder.mkdir(exist_ok=True)
    process = SERVER.Process(target=run_and_die, args=(script.name, update, options, folder, toy))
    with mock.patch.dict(os.environ, PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}", OMP_NUM_THREADS="1"):  # the server's
        process.start()
    process.join(300)
    if (status := process.exitcode) is None:  # it hangs, and pytest would wait for it at its end
        process.kill()
    assert status == -signal.SIGKILL, (folder / "said").read_text()
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
def test_a_run_killed_three_times_ends_as_one_that_was_not(script, tmp_path):
    """Weights, optimizer, schedules, random numbers, statistics and log: bit for bit, as Clock has no chance in it."""
    whole = on_clock(script, f"{CLOCK} --anneal-clip", tmp_path / "whole")
    run = killed(script, 5, f"{CLOCK} --anneal-clip", tmp_path / "killed")
    assert checkpoint(run)["global_step"] == 4 * 32
    assert scalars(run)["losses/entropy"][-1][0] == 5 * 32  # there is something to cut away
    killed(script, 5, f"--resume {run}", tmp_path / "killed")  # before it has a checkpoint of its own
    killed(script, 9, f"--resume {run}", tmp_path / "killed")
    on_clock(script, f"--resume {run}", tmp_path / "killed")
    assert [path.name for path in run.parent.iterdir()] == [run.name]
    assert len(list(run.glob("events.*"))) == 3 and all(file.stat().st_size for file in run.glob("events.*"))

    expected, log = without_speed(scalars(whole)), without_speed(scalars(run))
    assert [step for step, _ in log["losses/policy_loss"]] == list(range(32, 385, 32))
    assert len(log["charts/episodic_return"]) == 384 / 8
    assert log == expected
    assert [step for step, _ in scalars(run)["charts/SPS"]] == list(range(32, 385, 32))
    expected, last = checkpoint(whole), checkpoint(run)
    assert same_weights(expected, last)
    assert last["returns"] == expected["returns"] and last["global_step"] == expected["global_step"] == 384
    assert torch.equal(last["generators"]["torch"], expected["generators"]["torch"])
    optimizer, expected = last["parts"]["optimizer"], expected["parts"]["optimizer"]
    assert optimizer["param_groups"] == expected["param_groups"]
    assert optimizer["param_groups"][0]["steps"] == 12 * 2 * 2
    for number, state in expected["state"].items():
        assert all(torch.equal(state[name], optimizer["state"][number][name]) for name in state)


@every_script_with_its_games
def test_a_killed_run_on_its_real_environment_goes_on(script, tmp_path):
    """From its newest checkpoint, in new episodes: its log has each step once, and the schedules go on."""
    run = killed(script, 5, f"{script.tiny} --save-every 2 --learning-rate 0.01", tmp_path, toy=False)
    before = checkpoint(run)
    args = before["args"]
    rollout = args["num_envs"] * args["num_steps"]
    assert (before["update"], before["global_step"]) == (4, 4 * rollout)
    if ":" in args["env_id"]:  # an id that names a module is not believed
        with pytest.raises(SystemExit, match=f"say --env-id {args['env_id']} too"):
            train(script, f"--resume {run}", tmp_path)
    assert train(script, f"--resume {run} --env-id {args['env_id']}", tmp_path) == run
    log, steps = scalars(run), range(rollout, args["total_timesteps"] + 1, rollout)
    for tag in log.keys() - {"charts/episodic_return", "charts/episodic_length"}:
        assert [step for step, _ in log[tag]] == list(steps)
    for tag in log.keys() & {"charts/episodic_return", "charts/episodic_length"}:
        assert [step for step, _ in log[tag]] == sorted(step for step, _ in log[tag])
    rates = [0.01 * (1 - update / len(steps) * args["anneal_lr"]) for update in range(len(steps))]
    assert [value for _, value in log["charts/learning_rate"]] == pytest.approx(rates)
    assert checkpoint(run)["global_step"] == args["total_timesteps"] and not same_weights(checkpoint(run), before)
    name = f"{before['global_step']:012}"
    assert {path.name for path in run.iterdir() if "events." not in path.name and path.suffix != ".pt"} == {
        f"{script.name}.py", f"{script.name}_{name}.py", "run.json", f"run_{name}.json", "lock"
    }  # fmt: skip
    assert before["script"] == f"{script.name}.py" and checkpoint(run)["script"] == f"{script.name}_{name}.py"


# A program for another process: ppo.py, killed when half of its second checkpoint is on the disk.
KILLED_WHILE_SAVING = """
import os, signal, sys
import ppo
fsync, saved = os.fsync, []
def half(file):
    saved.append(file)
    if len(saved) == 3:  # file and folder, and the second file
        os.truncate(file.fileno(), file.tell() // 2)
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(file)
os.fsync, sys.argv[0] = half, "ppo.py"
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
    with pytest.raises(SystemExit, match="error: --total-timesteps 96"):  # fewer than it has
        on_clock(ppo, f"--resume {run} --total-timesteps 96", tmp_path)
    assert scalars(run) == log and checkpoint(run)["global_step"] == before["global_step"]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_checkpoint_that_is_named_begins_a_new_run(tmp_path):
    """The run that it is of stays as it is, to the last byte; the new one goes on as that did."""
    run = on_clock(ppo, CLOCK, tmp_path)
    older, newer = sorted(run.glob("checkpoint_*.pt"))
    assert (older.name, newer.name) == ("checkpoint_000000000320.pt", "checkpoint_000000000384.pt")
    before = contents(run)
    new = on_clock(ppo, f"--resume {older}", tmp_path)
    assert new != run and contents(run) == before
    assert {path.name for path in new.iterdir() if "events." not in path.name} == {
        "checkpoint_000000000384.pt", "ppo.py", "run.json", "lock"
    }  # fmt: skip
    expected = {tag: [point for point in points if point[0] > 320] for tag, points in scalars(run).items()}
    assert without_speed(scalars(new)) == without_speed(expected)
    assert same_weights(checkpoint(new), checkpoint(run))


def test_a_script_that_has_changed_is_said_and_kept_beside_the_first(tmp_path, capsys):
    run = on_clock(ppo, CLOCK, tmp_path)
    assert on_clock(ppo, f"--resume {run} --total-timesteps 448", tmp_path) == run
    assert "is not as it was" not in capsys.readouterr().out
    last = run / checkpoint(run)["script"]
    last.write_text(last.read_text() + "# an edit\n")
    assert on_clock(ppo, f"--resume {run} --total-timesteps 512", tmp_path) == run
    assert f"ppo.py is not as it was: {run / 'ppo_000000000448.py'}" in capsys.readouterr().out
    assert last.read_text().endswith("# an edit\n")


def test_a_copy_that_begins_from_a_file_has_its_own_name(tmp_path):
    run = on_clock(ppo, f"{CLOCK} --exp-name first", tmp_path)
    [_, newest] = sorted(run.glob("checkpoint_*.pt"))
    new = on_clock(ppo, f"--resume {newest} --total-timesteps 448", tmp_path)
    assert new.name.split("__")[1] == "ppo" and on_clock(ppo, f"--resume {run} --total-timesteps 448", tmp_path) == run


def test_a_script_whose_name_has_py_in_it(tmp_path, monkeypatch):
    (tmp_path / "my_pytorch_ppo.py").write_text((ROOT / "ppo.py").read_text())
    monkeypatch.syspath_prepend(tmp_path)
    copy = SimpleNamespace(name="my_pytorch_ppo", module=importlib.import_module("my_pytorch_ppo"))
    run = train(copy, "--no-cuda --total-timesteps 128 --num-steps 32", tmp_path)
    for total in (256, 384):  # the second goes on with the copy my_pytorch_ppo_000000000128.py
        assert train(copy, f"--resume {run} --total-timesteps {total}", tmp_path) == run
    assert checkpoint(run)["global_step"] == 384


def test_a_damaged_checkpoint_is_passed_over(tmp_path, capsys):
    """And said; the run goes on from the one before, and the log has each step once."""
    whole = on_clock(ppo, CLOCK, tmp_path / "whole")
    run = on_clock(ppo, CLOCK, tmp_path / "damaged")
    newest = max(run.glob("checkpoint_*.pt"))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    capsys.readouterr()
    assert on_clock(ppo, f"--resume {run}", tmp_path / "damaged") == run
    assert f"{newest} is damaged" in capsys.readouterr().out
    assert without_speed(scalars(run)) == without_speed(scalars(whole))
    assert same_weights(checkpoint(run), checkpoint(whole))


def test_another_number_of_environments(tmp_path):
    """The run goes on to the last step that whole rollouts reach, and not past it; so does the bar."""
    run = killed(ppo, 5, CLOCK, tmp_path)  # at step 128 of 384
    bars = []

    class Bar(ppo.module.tqdm):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            bars.append(self)

    with patched((ppo.module, "tqdm", Bar)):
        assert on_clock(ppo, f"--resume {run} --num-envs 5", tmp_path) == run  # rollouts of 80 steps: 3 more
    assert [step for step, _ in scalars(run)["losses/policy_loss"]] == [32, 64, 96, 128, 208, 288, 368]
    assert checkpoint(run)["global_step"] == 368 and checkpoint(run)["update"] == 7
    [bar] = bars
    assert (bar.initial, bar.n, bar.total) == (128, 368, 368)


class Clocked:
    """In place of the module time: perf_counter is what the test says."""

    def __init__(self):
        self.now = 1000.0

    def perf_counter(self):
        return self.now

    def __getattr__(self, name):
        return getattr(time, name)


def test_steps_per_second_after_a_resume(tmp_path):
    """Of what this process did in its time: not of the steps that were done before."""
    clock = Clocked()

    class Run(ppo.module.Run):
        def log_step(self, infos):
            super().log_step(infos)
            clock.now += 0.5  # two environments: 4 steps per second

    with patched((ppo.module, "time", clock), (ppo.module, "Run", Run)):
        run = on_clock(ppo, CLOCK, tmp_path)
        assert on_clock(ppo, f"--resume {run} --total-timesteps 512", tmp_path) == run
    assert scalars(run)["charts/SPS"] == [(step, 4.0) for step in range(32, 513, 32)]


class Dice(Clock):
    """Pays what the global generators of numpy and random say."""

    def step(self, action):
        obs, _, *others = super().step(action)
        return obs, np.random.standard_normal() + 10 * random.random(), *others


def test_the_generators_of_numpy_and_random_go_on(tmp_path):
    """They begin from the seed, and a resumed run has the numbers that the undisturbed one has."""

    def with_dice(options, folder):
        with patched() as patch:
            put_in_place_of_games(ppo, lambda images, index: Dice(images), patch.setattr)
            return train(ppo, options, folder)

    options = f"{CLOCK} --no-anneal-lr"  # as the half run has a schedule of its own
    whole, other = with_dice(options, tmp_path / "whole"), with_dice(f"{options} --seed 2", tmp_path / "other")
    half = with_dice(f"{options} --total-timesteps 192", tmp_path / "half")
    np.random.seed(7)
    random.seed(7)
    assert with_dice(f"--resume {half} --total-timesteps 384", tmp_path / "half") == half
    assert without_speed(scalars(half)) == without_speed(scalars(whole))
    assert same_weights(checkpoint(half), checkpoint(whole))
    returns = [scalars(run)["charts/episodic_return"] for run in (whole, other)]
    assert returns[0] != returns[1]


class Coefficient:
    """A part of a copy: a number that adapts."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class WithoutStateDict:
    pass


class WithoutLoad:
    def state_dict(self):
        return {}


def with_part(part, options, folder):
    """Runs ppo.py on Clock, with one part more."""

    class Run(ppo.module.Run):
        def start(self, device, **parts):
            super().start(device, **parts, coefficient=part)

    with patched((ppo.module, "Run", Run)):
        return on_clock(ppo, options, folder)


@pytest.mark.parametrize("part", [WithoutStateDict(), WithoutLoad(), Coefficient(object()), Coefficient(lambda: 0)])
def test_a_part_that_cannot_be_saved(part, tmp_path):
    """One line with its name, before any training; nothing is left."""
    with patched((ppo.module, "gradient_step", None)), pytest.raises(SystemExit) as end:
        with_part(part, CLOCK, tmp_path)
    assert re.fullmatch("error: the part coefficient cannot be saved and loaded: .+", end.value.code)
    assert not list(tmp_path.glob("runs/*"))


def test_a_part_of_a_copy_is_resumed(tmp_path):
    part = Coefficient(0.25)
    run = with_part(part, CLOCK, tmp_path)
    part.value = 3.0
    with_part(part, f"--resume {run} --total-timesteps 512", tmp_path)
    assert part.value == 0.25 and checkpoint(run)["parts"]["coefficient"] == {"value": 0.25}


def test_a_part_that_cannot_be_loaded_any_more(tmp_path):
    """A number of numpy's got into it in the second checkpoint: one line, and the first checkpoint stays."""

    class Spoilt(Coefficient):
        def state_dict(self):
            self.value += 1
            return {"value": self.value if self.value < 4 else np.float64(self.value)}

    with pytest.raises(SystemExit, match="^error: a part holds what cannot be loaded again: UnpicklingError"):
        with_part(Spoilt(1.0), CLOCK, tmp_path)
    assert checkpoint(newest_run(tmp_path))["update"] == 2


def test_a_checkpoint_that_does_not_fit(tmp_path, capsys):
    """Another part, another shape, an option that is unknown or of another kind: one line, and the run stays."""
    run = on_clock(ppo, CLOCK, tmp_path)
    extra = with_part(Coefficient(1.0), CLOCK, tmp_path / "extra")

    def said(resumed, train=on_clock, **changes):
        """The line that ends a resume from a copy of the run whose checkpoint's options are changed."""
        copy = tmp_path / "copy"
        shutil.copytree(resumed, copy)
        state = checkpoint(copy)
        torch.save(state | {"args": state["args"] | changes}, max(copy.glob("checkpoint_*.pt")))
        before = contents(copy)
        with pytest.raises(SystemExit) as end:
            train(ppo, f"--resume {copy} --total-timesteps 512", tmp_path)
        assert contents(copy) == before
        shutil.rmtree(copy)
        assert re.fullmatch("error: .+", end.value.code)
        return end.value.code

    fewer, more = "agent, optimizer", "agent, optimizer, coefficient"
    line = said(run, lambda _, *rest: with_part(Coefficient(1.0), *rest))
    assert line == f"error: the checkpoint has the parts {fewer}; the script has {more}"
    assert said(extra) == f"error: the checkpoint has the parts {more}; the script has {fewer}"
    assert "unexpected keyword argument 'kl_coef'" in said(run, kl_coef=0.5)
    assert "the default value `fast` has type" in said(run, learning_rate="fast")
    assert "the default value `[2, 2]` has type" in said(run, num_envs=[2, 2])

    class Wider(ppo.module.Agent):
        def __init__(self, envs):
            super().__init__(envs)
            self.value = torch.nn.Linear(65, 1)

    with patched((ppo.module, "Agent", Wider)):
        wider = said(run)
    assert "the part agent" in wider and "value.weight" in wider and "65" in wider


def test_a_new_option_has_its_default(tmp_path):
    """An option that a copy has and the checkpoint has not."""
    run = on_clock(ppo, CLOCK, tmp_path)
    state = checkpoint(run)
    del state["args"]["bootstrap_truncated"]
    torch.save(state, max(run.glob("checkpoint_*.pt")))
    on_clock(ppo, f"--resume {run} --total-timesteps 512", tmp_path)
    assert checkpoint(run)["args"]["bootstrap_truncated"] is False


def test_parameters_without_a_gradient(tmp_path):
    """A network of a copy that the loss does not use, and one that is frozen, stay as they are; so after a resume."""

    class Larger(ppo.module.Agent):
        def __init__(self, envs):
            super().__init__(envs)
            self.unused = torch.nn.Linear(3, 2)
            self.frozen = torch.nn.Parameter(torch.ones(5), requires_grad=False)

    with patched((ppo.module, "Agent", Larger)):
        run = on_clock(ppo, CLOCK, tmp_path)
        first, last = checkpoint(run, 0)["parts"]["agent"], checkpoint(run)["parts"]["agent"]
        assert torch.equal(first["unused.weight"], last["unused.weight"]) and last["frozen"].tolist() == [1] * 5
        assert not torch.equal(first["policy.weight"], last["policy.weight"])
        on_clock(ppo, f"--resume {run} --total-timesteps 512", tmp_path)
    assert torch.equal(checkpoint(run)["parts"]["agent"]["unused.weight"], last["unused.weight"])
    assert checkpoint(run)["global_step"] == 512
