"""ppo_atari_cleanba.py: which version makes what, the same run however fast threads are, no end but a clean one."""

import itertools
import os
import random
import re
import signal
import sys
import threading
import time

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch._dynamo  # which an optimizer imports: here once, and not in every forked process
from ranks import Ranks
from toy_envs import checkpoint, newest_run, scalars

import impala_atari_cleanba as impala
import ppo_atari_cleanba as script
import ppo_atari_multigpu

SMALL = "--num-envs 8 --num-steps 8 --num-minibatches 2 --update-epochs 1 --threads 1"
SIZE = "--num-envs 12 --num-steps 4 --num-minibatches 2 --threads 1 --save-every 0"
TIMES = {"charts/SPS", "charts/wait_for_rollouts", "charts/wait_for_agents", "charts/wait_difference"}


def none_is_left(module):
    """The run fails where a thread of an actor lives on after `train`."""
    close = module.Run.close

    def closed(run):
        close(run)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("actor")]

    module.Run.close = closed


def run(options, folder, change=lambda: None, module=script, ranks=0):
    """Runs to the end, which must be a good one; returns the run's folder."""

    def changes(rank):
        if module is not ppo_atari_multigpu:
            none_is_left(module)
        change()

    group = Ranks(ranks, options, folder, changes, module)
    assert group.wait(240) == [0] * max(ranks, 1), group.said(0)
    return newest_run(folder)


def weights(folder):
    return torch.cat([weight.flatten() for weight in checkpoint(folder)["parts"]["agent"].values()])


def numbers(folder):
    """What was logged but times."""
    return {tag: points for tag, points in scalars(folder).items() if tag not in TIMES}


def slow(module, method, seconds, only=None):
    """Lets a function wait each time, or each time in one of the actors' threads."""
    owner, _, name = method.rpartition(".")
    owner = getattr(module, owner) if owner else module
    work = getattr(owner, name)

    def slowly(*args, **kwargs):
        if only is None or threading.current_thread().name.startswith(f"actor-{only}_"):
            time.sleep(seconds)
        return work(*args, **kwargs)

    setattr(owner, name, slowly)


def fingerprint(agent):
    return sum(float(weight.double().abs().sum()) for weight in agent.state_dict().values())


def record(file):
    """Writes each actor's (fingerprint of the agent, values, which agent it is) of every step, and each update's
    fingerprint of the agent and values that it trains on."""
    seen = {"updates": []}
    forward, step = script.Agent.forward, script.gradient_step

    def forward_seen(agent, obs):
        policy, values = forward(agent, obs)
        if (name := threading.current_thread().name).startswith("actor"):
            seen.setdefault(name, []).append((fingerprint(agent), values.tolist(), id(agent)))
        return policy, values

    def step_seen(agent, optimizer, minibatch, *args):
        seen["updates"].append((fingerprint(agent), sorted(minibatch["values"].tolist())))
        torch.save(seen, file)
        return step(agent, optimizer, minibatch, *args)

    script.Agent.forward, script.gradient_step = forward_seen, step_seen


@pytest.mark.parametrize("concurrency, threads", [(True, 1), (True, 2), (False, 1)])
def test_which_version_makes_what(concurrency, threads, tmp_path):
    """By the weights themselves: update u trains version u, on a rollout that version u - 1 made from its first step to
    its last; on one of version u where nothing runs at once, and in the first update."""
    options = f"{SMALL} --num-minibatches 1 --total-timesteps 384 --actor-threads {threads}"
    options += "" if concurrency else " --no-concurrency"
    folder = run(options, tmp_path, lambda: record(tmp_path / "seen"))
    seen = torch.load(tmp_path / "seen", weights_only=True)
    updates = seen.pop("updates")
    versions = [weights for weights, _ in updates]
    assert len(set(versions)) == 6 and len(seen) == threads
    table = []
    for u, (_, trained_on) in enumerate(updates, 1):
        steps = [actor[(u - 1) * 9 : u * 9] for actor in seen.values()]  # 8, and the value of the observation after
        makers = {weights for actor in steps for weights, _, _ in actor}
        assert len(makers) == 1
        assert len({own for actor in steps for *_, own in actor}) == threads  # each thread has a copy of its own
        assert sorted(value for actor in steps for _, values, _ in actor[:-1] for value in values) == trained_on
        table.append((u, u, versions.index(makers.pop()) + 1))
    late = [(1, 1, 1), (2, 2, 1), (3, 3, 2), (4, 4, 3), (5, 5, 4), (6, 6, 5)]
    assert table == (late if concurrency else [(u, u, u) for u in range(1, 7)])
    assert [lag for _, lag in scalars(folder)["charts/policy_lag"]] == [u - made_by for u, _, made_by in table]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.slow
def test_speed_changes_nothing(threads, tmp_path):
    """The same weights and log, bit for bit, with a slow learner, and with one actor slower than the others."""
    options = f"{SMALL} --num-envs 6 --total-timesteps 288 --actor-threads {threads}"
    ways = {
        "as it is": lambda: None,
        "slow learner": lambda: slow(script, "gradient_step", 0.1),
        "slow last actor": lambda: slow(script, "EnvPool.step", 0.02, only=threads - 1),
    }
    runs = [run(options, tmp_path / way, change) for way, change in ways.items()]
    for other in runs[1:]:
        assert torch.equal(weights(other), weights(runs[0])) and numbers(other) == numbers(runs[0])
    assert len(numbers(runs[0])["losses/policy_loss"]) == 6


@pytest.mark.slow
def test_one_thread_without_concurrency_is_the_parent(tmp_path):
    options = "--num-envs 8 --num-steps 32 --total-timesteps 1024 --threads 1"
    one = run(f"{options} --no-concurrency", tmp_path / "one")
    parent = run(options, tmp_path / "parent", module=ppo_atari_multigpu)
    assert torch.equal(weights(one), weights(parent))
    found, lag = numbers(one), numbers(one)["charts/policy_lag"]
    assert [value for _, value in lag] == [0] * 4
    del found["charts/policy_lag"]
    assert found == numbers(parent) and len(found["losses/value_loss"]) == 4
    assert torch.equal(checkpoint(one)["generators"]["torch"], checkpoint(parent)["generators"]["torch"])


@pytest.mark.slow
def test_two_ranks_of_two_threads_are_one_process(tmp_path):
    """The same games in the same columns: what differs is rounding."""
    options = f"{SMALL} --total-timesteps 192 --actor-threads 2 --no-anneal-lr"
    one, two = (run(options, tmp_path / str(ranks), ranks=ranks) for ranks in (0, 2))
    assert (weights(one) - weights(two)).abs().max() < 2e-6
    assert (weights(one) - weights(run(f"{options} --seed 2", tmp_path / "other"))).abs().max() > 1e-2


def test_every_environment_is_another(tmp_path):
    """Threads and ranks have different seeds, 1 to 8, and noise of their own."""

    def note():
        reset = script.EnvPool.reset

        def reset_noted(envs, seed=None):
            with open(tmp_path / "seeds", "a") as file:
                print(*range(seed, seed + envs.num_envs), file=file)
            return reset(envs, seed)

        script.EnvPool.reset = reset_noted

    run(f"{SMALL} --total-timesteps 64 --actor-threads 2", tmp_path / "run", note, ranks=2)
    assert sorted(map(int, (tmp_path / "seeds").read_text().split())) == list(range(1, 9))


def fail_at(call, where="EnvPool.step", error=ZeroDivisionError("of the user's own code")):
    """Lets a function raise in its call of that number."""
    owner, name = where.split(".")
    owner, numbers = getattr(script, owner), itertools.count(1)
    work = getattr(owner, name)

    def fails(*args):
        if next(numbers) == call:
            raise error
        return work(*args)

    setattr(owner, name, fails)


def test_an_actor_that_raises_ends_the_run(tmp_path):
    """With its traceback; the last checkpoint is there."""
    options = f"{SMALL} --save-every 1 --total-timesteps 100000 --actor-threads 2"
    group = Ranks(0, options, tmp_path, lambda rank: (none_is_left(script), fail_at(60)), script)
    assert group.wait(240) == [1]
    said = group.said(0)
    assert "in actor\n" in said and "in fails\n" in said
    assert said.splitlines()[-1] == "ZeroDivisionError: of the user's own code"
    assert checkpoint(newest_run(tmp_path))["update"] >= 2


def test_a_signal_stops_cleanly(tmp_path):
    """The update under way is finished and saved, and the run can go on."""
    options = f"{SMALL} --actor-threads 2 --save-every 1 --total-timesteps"
    group = Ranks(0, f"{options} 100000", tmp_path, lambda rank: none_is_left(script), script)
    while not list(tmp_path.glob("runs/*/checkpoint_*.pt")):
        time.sleep(0.02)
    os.kill(group.pids[0], signal.SIGTERM)
    assert group.wait(240) == [128 + signal.SIGTERM], group.said(0)
    folder = newest_run(tmp_path)
    done = checkpoint(folder)["global_step"]
    assert group.said(0).splitlines()[-1] == f"stopped; --resume runs/{folder.name} goes on"
    assert run(f"{options} {done + 128} --resume {folder}", tmp_path) == folder
    assert [step for step, _ in scalars(folder)["losses/policy_loss"]] == list(range(64, done + 129, 64))
    lags = [lag for _, lag in scalars(folder)["charts/policy_lag"]]
    assert lags[0] == 0 and lags[-2:] == [0, 1]  # actors begin anew


def test_a_loss_that_is_not_finite(tmp_path):
    def change(rank):
        none_is_left(script)
        loss, numbers = script.ppo_loss, itertools.count(1)

        def not_finite(*args):
            value, stats = loss(*args)
            factor = float("nan") if next(numbers) == 4 else 1.0
            return value * factor, {name: scalar * factor for name, scalar in stats.items()}

        script.ppo_loss = not_finite

    group = Ranks(0, f"{SMALL} --save-every 1 --total-timesteps 100000 --actor-threads 2", tmp_path, change, script)
    assert group.wait(240) == [1]
    assert re.match(r"error: NaN or inf in losses/.* of update 2 of runs/", group.said(0).splitlines()[-1])
    saved = [torch.load(file, weights_only=True)["update"] for file in tmp_path.glob("runs/*/checkpoint_*.pt")]
    assert max(saved, default=0) == 1


class Noise:
    """Environments of random pixels in EnvPool's place: quick, or slow by chance, and one step may raise."""

    def __init__(self, args, random, fails_at):
        self.num_envs, self.random, self.calls, self.fails_at = args.num_envs, random, 0, fails_at
        self.single_observation_space = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
        self.single_action_space = gym.spaces.Discrete(2)

    def reset(self, seed=None):
        self.pixels = np.random.default_rng(seed)
        return self.pixels.integers(256, size=(self.num_envs, 84, 84, 4), dtype=np.uint8), {}

    def step(self, actions):
        self.calls += 1
        if self.calls == self.fails_at:
            raise ZeroDivisionError("of the user's own code")
        time.sleep(0.02 if self.fails_at else self.random.choice([0, 0, 0.001, 0.003]))  # the others get ahead
        never = np.zeros(self.num_envs, dtype=bool)
        return self.reset(self.calls)[0], np.ones(self.num_envs), never, never, {}

    def close(self):
        pass


def ends(how, module, random):
    """Lets a run of `module` end in that way, at some time of which `random` decides."""
    fails_at = iter([random.randint(1, 20)] if how == "exception" else [])  # of the first actor: others wait then
    at, steps = random.randint(1, 10), itertools.count(1)
    learner_waits = random.choice([0, 0.005, 0.03])
    module.make_envs = lambda args, folder: Noise(args, random, next(fails_at, None))
    step = module.gradient_step

    def step_then_end(*args):
        time.sleep(learner_waits)
        stats = step(*args)
        if next(steps) == at and how == "signal":
            signal.raise_signal(signal.SIGTERM)
        if how == "nan" and next(steps) > at:
            stats["policy_loss"] = stats["policy_loss"] * float("nan")
        return stats

    module.gradient_step = step_then_end
    return step


@pytest.mark.parametrize("module", [script, impala], ids=lambda module: module.__name__)
@pytest.mark.parametrize("how", ["signal", "nan", "exception", "last update"])
@pytest.mark.slow
def test_twenty_ends_without_a_deadlock(how, module, tmp_path):
    """Each at another time, of fast and slow actors and learners; no thread is left."""

    def twenty(rank):
        none_is_left(module)
        module.nature_cnn = lambda channels: torch.nn.Sequential(
            torch.nn.AvgPool2d(42), module.Flatten(), torch.nn.Linear(16, 512)
        )
        module.importlib.metadata.distributions = lambda: ()  # of no use here, and slow
        for number in range(20):
            sys.argv = [f"{module.__name__}.py", *f"{SIZE} --network nature --seed {number}".split()]
            sys.argv += ["--total-timesteps", "640" if how == "last update" else "100000"]
            sys.argv += ["--actor-threads", str(number % 3 + 1)] + ["--no-concurrency"] * (number % 5 == 4)
            step, code = ends(how, module, random.Random(number)), 0
            try:
                module.main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else "NaN" in end.code
            except ZeroDivisionError as error:
                code = str(error)
            module.gradient_step = step
            expected = {"signal": 128 + signal.SIGTERM, "nan": True, "exception": "of the user's own code"}
            assert code == expected.get(how, 0), (number, code)
        print("all of them")
        sys.exit(0)

    group = Ranks(0, "", tmp_path, twenty, module)
    assert group.wait(240) == [0], group.said(0)[-2000:]
    assert group.said(0).splitlines()[-1] == "all of them"


@pytest.mark.parametrize(
    "options, error",
    [
        ("--actor-threads 3", "error: --num-envs 8 is no multiple of 1 ranks x 3 threads"),
        ("--actor-threads 0", "error: --num-envs 8 is no multiple of 1 ranks x 0 threads"),
        ("--actor-device cuda:99", "error: --actor-device cuda:99: "),
        ("--actor-device tpu", "error: --actor-device tpu: RuntimeError: Expected one of cpu, cuda, "),
    ],
)
def test_what_cannot_work_is_one_line(options, error, tmp_path):
    group = Ranks(0, f"{SMALL} {options}", tmp_path, module=script)
    assert group.wait(240) == [1]
    assert group.said(0).startswith(error) and group.said(0).count("\n") == 1
    assert not list(tmp_path.glob("runs/*"))
