"""ppo_atari_cleanba.py: which version makes what, the same run at any speed of the threads, clean ends."""

import contextlib
import itertools
import math
import os
import signal
import threading
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from processes import PATIENCE
from ranks import Ranks, in_float64, run, wait_for_step, weights
from run_files import checkpoint, newest_run, scalars

import ppo_atari_cleanba as script
import ppo_atari_multigpu

SMALL = "--num-envs 8 --num-steps 8 --num-minibatches 2 --update-epochs 1 --threads 1"
ACTORS = "actor-0", "actor-1"
slow_test = pytest.mark.slow
TIMES = {"charts/SPS", "charts/wait_for_rollouts", "charts/wait_for_agents", "charts/wait_difference"}


def changed(*changes):
    """A change for `Ranks` from changes that take no arguments."""

    def change_rank(rank):
        for change in changes:
            change()

    return change_rank


def numbers(folder):
    """The logged scalars without times."""
    return {tag: points for tag, points in scalars(folder).items() if tag not in TIMES}


def delay(module, method, seconds, only=None):
    """Makes a function wait each time, or each time in the thread of one actor."""
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
    forward, gradient_step = script.Agent.forward, script.gradient_step

    def forward_seen(agent, obs):
        policy, values = forward(agent, obs)
        if (name := threading.current_thread().name).startswith("actor"):
            seen.setdefault(name, []).append((fingerprint(agent), values.tolist(), id(agent)))
        return policy, values

    def step_seen(agent, optimizer, minibatch, args):
        seen["updates"].append((fingerprint(agent), sorted(minibatch["values"].tolist())))
        torch.save(seen, file)
        return gradient_step(agent, optimizer, minibatch, args)

    script.Agent.forward, script.gradient_step = forward_seen, step_seen


@pytest.mark.parametrize("concurrency, threads", [pytest.param(True, 1, marks=slow_test), (True, 2), (False, 1)])
def test_which_version_makes_what(concurrency, threads, tmp_path):
    """By the weights themselves: update u trains version u, on a rollout that version u - 1 made from its first step to
    its last; on one of version u where nothing runs at once, and in the first update."""
    options = f"{SMALL} --num-minibatches 1 --total-timesteps 384 --actor-threads {threads}"
    options += "" if concurrency else " --no-concurrency"
    folder = run(0, options, tmp_path, changed(lambda: record(tmp_path / "seen")), script)
    seen = torch.load(tmp_path / "seen", weights_only=True)
    updates = seen.pop("updates")
    versions = [weights for weights, _ in updates]
    assert len(set(versions)) == 6 and len(seen) == threads
    made_by = []  # the version that made the rollout of each update
    for u, (_, trained_on) in enumerate(updates, 1):
        steps = [actor[(u - 1) * 9 : u * 9] for actor in seen.values()]  # 8, and the value of the observation after
        makers = {weights for actor in steps for weights, _, _ in actor}
        assert len(makers) == 1
        assert len({own for actor in steps for *_, own in actor}) == threads  # each thread has a copy of its own
        assert sorted(value for actor in steps for _, values, _ in actor[:-1] for value in values) == trained_on
        made_by.append(versions.index(makers.pop()) + 1)
    assert made_by == ([1, 1, 2, 3, 4, 5] if concurrency else [1, 2, 3, 4, 5, 6])
    lags = [lag for _, lag in scalars(folder)["charts/policy_lag"]]
    assert lags == [u - version for u, version in enumerate(made_by, 1)]


@pytest.mark.parametrize("threads, more", [(1, ""), (2, ""), (3, ""), (2, "--no-concurrency")])
@slow_test
def test_speed_changes_nothing(threads, more, tmp_path):
    """The same weights and log, bit for bit, with a slow learner, and with one actor slower than the others."""
    options = f"{SMALL} --num-envs 6 --total-timesteps 288 --actor-threads {threads} {more}"
    ways = {
        "as it is": lambda: None,
        "slow learner": lambda: delay(script, "gradient_step", 0.1),
        "slow last actor": lambda: delay(script, "EnvPool.step", 0.02, only=threads - 1),
    }
    runs = [run(0, options, tmp_path / way, changed(change), script) for way, change in ways.items()]
    for other in runs[1:]:
        assert torch.equal(weights(other), weights(runs[0])) and numbers(other) == numbers(runs[0])
    assert len(numbers(runs[0])["losses/policy_loss"]) == 6


def test_a_rollout_reads_nothing_before_it_is_computed(monkeypatch):
    """On a GPU, a copy to the CPU waits for its own stream alone: returns are made of values that are there."""
    open_streams, unfinished = [], []
    copy_to_cpu = torch.Tensor.cpu

    @contextlib.contextmanager
    def stream(actors):
        open_streams.append(actors)
        yield
        open_streams.pop()

    def wait_and_copy(tensor):
        if open_streams:
            for compute in unfinished:
                compute()
            unfinished.clear()
        return copy_to_cpu(tensor)

    def agent(obs):
        values = torch.full((2,), math.nan)
        unfinished.append(partial(values.fill_, 1.0))
        return script.Categorical(torch.zeros(2, 3)), values

    step = np.zeros((2, 1)), np.ones(2), np.full(2, False), np.full(2, False), {}
    envs = SimpleNamespace(reset=lambda seed: (np.zeros((2, 1)), {}), step=lambda actions: step)
    gpu = SimpleNamespace(Stream=lambda device: "the actor's", stream=stream)
    monkeypatch.setattr(torch, "get_device_module", lambda device: gpu)
    monkeypatch.setattr(torch.Tensor, "cpu", wait_and_copy)
    args = script.Args(num_envs=2, num_steps=4)
    rollouts = script.make_rollouts(args, envs, 0, torch.device("cpu"), torch.Generator(), 0, 1)
    next(rollouts)
    rollout, _, _ = rollouts.send(agent)
    assert rollout["returns"].isfinite().all() and not unfinished


@slow_test
def test_one_thread_without_concurrency_is_the_parent(tmp_path):
    def cut(module):
        """Truncates some episodes, whose last observations are then bootstrapped."""
        step = module.EnvPool.step

        def step_cut(envs, actions):
            obs, rewards, terminated, truncated, infos = step(envs, actions)
            return obs, rewards, terminated, truncated | (actions == 0), infos | {"final_obs": obs}

        module.EnvPool.step = step_cut

    options = "--num-envs 8 --num-steps 32 --total-timesteps 1024 --threads 1 --bootstrap-truncated"
    one = run(0, f"{options} --no-concurrency", tmp_path / "one", changed(partial(cut, script)), script)
    module = ppo_atari_multigpu
    parent = run(0, options, tmp_path / "parent", changed(partial(cut, module)), module)
    assert torch.equal(weights(one), weights(parent))
    found, lag = numbers(one), numbers(one)["charts/policy_lag"]
    assert [value for _, value in lag] == [0] * 4
    del found["charts/policy_lag"]
    assert found == numbers(parent) and len(found["losses/value_loss"]) == 4


@slow_test
def test_two_ranks_of_two_threads_are_one_process(tmp_path):
    """The same games in the same columns, up to rounding."""
    options = f"{SMALL} --total-timesteps 192 --actor-threads 2 --no-anneal-lr"
    change = changed(partial(in_float64, script))
    one, two = (run(ranks, options, tmp_path / str(ranks), change, script) for ranks in (0, 2))
    assert (weights(one) - weights(two)).abs().max() < 1e-12
    other = run(0, f"{options} --seed 2", tmp_path / "other", change, script)
    assert (weights(one) - weights(other)).abs().max() > 1e-2


def test_every_environment_is_another(tmp_path):
    """Threads and ranks have different seeds, 1 to 8, and noise of their own."""

    def note():
        reset, exponential = script.EnvPool.reset, torch.Tensor.exponential_

        def reset_noted(envs, seed=None):
            with open(tmp_path / "seeds", "a") as file:
                print(*range(seed, seed + envs.num_envs), file=file)
            return reset(envs, seed)

        def noise_noted(tensor, generator=None):
            noise = exponential(tensor, generator=generator)
            with open(tmp_path / f"noise_{threading.current_thread().name[:7]}_{os.getpid()}", "a") as file:
                print(torch.get_num_threads(), noise.tolist(), file=file)
            return noise

        script.EnvPool.reset, torch.Tensor.exponential_ = reset_noted, noise_noted

    run(2, f"{SMALL} --threads 2 --total-timesteps 64 --actor-threads 2", tmp_path / "run", changed(note), script)
    assert sorted(map(int, (tmp_path / "seeds").read_text().split())) == list(range(1, 9))
    noise = {name: {f.read_text().splitlines()[0] for f in tmp_path.glob(f"noise_{name}_*")} for name in ACTORS}
    assert all(len(texts) == 1 for texts in noise.values())  # each rank draws the noise of all ranks
    assert noise["actor-0"] != noise["actor-1"] and all(text.startswith("2 ") for text in set.union(*noise.values()))


@slow_test
def test_the_wait_of_the_slower_side(tmp_path):
    """wait_difference is positive where actors are slow, and negative where the learner is."""
    options = f"{SMALL} --total-timesteps 256 --update-epochs 1"
    speeds = scalars(run(0, options, tmp_path / "free", module=script))["charts/SPS"]
    seconds_of_update = 64 / speeds[-1][1]  # a mean, of which most is the slow first one
    # each side then needs far longer for 8 steps, or for 2 minibatches, than the other
    for method, seconds in (("EnvPool.step", seconds_of_update / 2), ("gradient_step", 2 * seconds_of_update)):
        change = changed(partial(delay, script, method, seconds))
        waits = scalars(run(0, options, tmp_path / method, change, script))["charts/wait_difference"]
        assert (waits[-1][1] > 0) == (method == "EnvPool.step")


def test_an_actor_that_raises_ends_the_run(tmp_path):
    """With its traceback, which is shown once; the last checkpoint is there."""
    step, numbers = script.EnvPool.step, itertools.count()

    def fails(*args):
        if next(numbers) == 60:
            raise ZeroDivisionError("of the user's own code")
        return step(*args)

    options = f"{SMALL} --save-every 1 --total-timesteps 100000 --actor-threads 2"
    group = Ranks(0, options, tmp_path, changed(lambda: setattr(script.EnvPool, "step", fails)), script)
    assert group.wait() == [1]
    said = group.said()
    assert said.count("Traceback") == 1 and "in make_rollouts\n" in said and "in fails\n" in said
    assert said.splitlines()[-1] == "ZeroDivisionError: of the user's own code"
    assert checkpoint(newest_run(tmp_path))["global_step"] >= 128


def test_a_signal_stops_cleanly(tmp_path):
    """The run finishes and saves the update, and can continue; its actors then begin with the newest version."""
    options = f"{SMALL} --actor-threads 2 --save-every 1 --total-timesteps"
    group = Ranks(0, f"{options} 100000", tmp_path, module=script)
    wait_for_step(tmp_path, 64)
    os.kill(group.pids[0], signal.SIGTERM)
    assert group.wait() == [128 + signal.SIGTERM], group.said()
    folder = newest_run(tmp_path)
    done = checkpoint(folder)["global_step"]
    assert run(0, f"{options} {done + 128} --resume {folder}", tmp_path, module=script) == folder
    assert [step for step, _ in scalars(folder)["losses/policy_loss"]] == list(range(64, done + 129, 64))
    lags = [lag for _, lag in scalars(folder)["charts/policy_lag"]]
    assert lags[0] == 0 and lags[-2:] == [0, 1]


def test_threads_that_do_not_divide(tmp_path):
    group = Ranks(0, f"{SMALL} --actor-threads 3", tmp_path, module=script)
    assert group.wait() == [1]
    assert "error: --num-envs 8 is not a multiple of 1 processes of torchrun x 3 of --actor-threads" in group.said()


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:64"])
def test_actors_on_a_device_that_is_not_there(device):
    args = script.Args(actor_device=device)
    with pytest.raises(SystemExit, match=f"^error: --actor-device {device}: this process has cpu, and [0-9]+ GPUs"):
        script.find_actor_device(args, torch.device("cpu"))


def test_which_gpu_the_actors_take(monkeypatch):
    """Of 8 GPUs, rank 1 of 2 trains on cuda:4, and its actors may use the three after it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 4)
    monkeypatch.setattr(script.dist, "is_initialized", lambda: True)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    learner = torch.device("cuda")
    for option, index in {None: 4, "cuda": 4, "cuda:0": 4, "cuda:3": 7}.items():
        device = script.find_actor_device(script.Args(actor_device=option), learner)
        assert device == torch.device("cuda", index)
    assert script.find_actor_device(script.Args(actor_device="cpu"), learner) == torch.device("cpu")
    with pytest.raises(SystemExit, match="cuda:4: this process has cpu, and 4 GPUs"):
        script.find_actor_device(script.Args(actor_device="cuda:4"), learner)


def follow_recipe(module, file):
    """Writes the fingerprints of the weights in the actor's steps; new weights come in the middle of rollout 3.

    Each rollout has 9 forward passes: 8 steps, and the value of the observation after them."""
    seen = []
    in_the_middle, written = threading.Event(), threading.Event()
    forward, load = module.Agent.forward, module.Agent.load_state_dict
    loads = []

    def forward_seen(agent, obs):
        if threading.current_thread().name.startswith("actor"):
            seen.append(fingerprint(agent))
            torch.save(seen, file)
            if len(seen) == 2 * 9 + 4:
                in_the_middle.set()
                assert written.wait(PATIENCE)
        return forward(agent, obs)

    def load_late(agent, state):
        loads.append(agent)
        if len(loads) == 4:  # that of update 3, as the first one checks whether the parts can be loaded
            assert in_the_middle.wait(PATIENCE)
        load(agent, state)
        if len(loads) == 4:
            written.set()

    module.Agent.forward, module.Agent.load_state_dict = forward_seen, load_late


def test_new_weights_in_the_middle_of_a_rollout(with_recipe, tmp_path):
    """With the recipe `asynchronous`, which tells what Cleanba's order is for."""
    module = with_recipe("with/asynchronous").module
    refused = Ranks(0, f"{SMALL} --num-minibatches 1 --total-timesteps 64 --bf16", tmp_path, None, module)
    assert refused.wait() == [1] and "error: --bf16" in refused.said()
    options = f"{SMALL} --num-minibatches 1 --total-timesteps 320"
    run(0, options, tmp_path, changed(lambda: follow_recipe(module, tmp_path / "seen")), module)
    seen = torch.load(tmp_path / "seen", weights_only=True)
    assert len(seen) == 5 * 9
    third = seen[2 * 9 : 3 * 9]
    assert len(set(third[:4])) == len(set(third[4:])) == 1 and third[3] != third[4]
