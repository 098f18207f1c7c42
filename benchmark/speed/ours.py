"""Times a script of ours, or the machine's limits for it, in a process of its own; the last line it prints is JSON.

    python benchmark/speed/ours.py speed|limit SCRIPT WARMUP TURNS UPDATES [OPTION ...]

The script is imported and its main() called. What is timed is wrapped from outside: the environments' step, the
updates of the plumbing, and the gradient steps. After WARMUP updates it trains for as many UPDATES in each of
its TURNS (turns.py); the limits are taken once a turn. The first line that it prints are the script's arguments.
"""

import collections
import importlib
import json
import statistics
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import tyro
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from turns import Turns

sys.path.insert(0, str(Path(__file__).parents[2]))


def load(script, updates, options):
    """Imports the script and puts in sys.argv what trains for so many updates; returns (module, args)."""
    module = importlib.import_module(Path(script).stem)
    if hasattr(module, "actor"):
        sys.exit(f"error: {script}: its actors play while it learns, so an update has no phases to time")
    args = tyro.cli(module.Args, args=options)
    steps = updates * args.num_envs * args.num_steps
    sys.argv = [script, *options, "--total-timesteps", str(steps), "--save-every", "0"]
    return module, args


def keep_envs(module, change):
    """Has `change` see the environments that the script makes."""
    make_envs = module.make_envs

    def wrapped(args, folder):
        envs = make_envs(args, folder)
        change(envs)
        return envs

    module.make_envs = wrapped


def speed(module, args, turns, warmup, count, updates_a_turn):
    """Trains; steps per second, and the share of each phase, over `count` turns, which begin after the warm-up.

    An update is its rollout, up to the end of the last step of the environments, and its learning, up to the call of
    log_update. What a rollout takes beside the environments' steps is inference."""
    updates, log_update, rows = module.Run.updates, module.Run.log_update, []

    def time_steps(envs):
        step = envs.step

        def timed(actions):
            start = time.perf_counter()
            result = step(actions)
            rows[-1]["stepped"] = time.perf_counter()
            rows[-1]["environment"] += rows[-1]["stepped"] - start
            return result

        envs.step = timed

    def timed_updates(run):
        for update in updates(run):
            if update > warmup and (update - warmup - 1) % updates_a_turn == 0:
                turns.next()
            rows.append({"start": time.perf_counter(), "environment": 0.0})
            yield update
        turns.end()

    def timed_log_update(run, scalars):
        if run.device.type == "cuda":
            torch.cuda.synchronize()
        rows[-1]["end"] = time.perf_counter()
        log_update(run, scalars)

    keep_envs(module, time_steps)
    module.Run.updates, module.Run.log_update = timed_updates, timed_log_update
    module.main()

    rows, wall = rows[warmup:], turns.wall
    steps = count * updates_a_turn * args.num_envs * args.num_steps
    environment = sum(row["environment"] for row in rows)
    learning = sum(row["end"] - row["stepped"] for row in rows)
    inference = sum(row["stepped"] - row["start"] for row in rows) - environment
    return {
        "steps_per_second": steps / wall,
        "steps_per_cpu_second": steps / turns.cpu,
        "environment": environment / wall,
        "inference": inference / wall,
        "learning": learning / wall,
        "learning_seconds_per_update": learning / len(rows),
        "gpu_memory_mib": torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0,
        "gpu": {"GPU": torch.cuda.get_device_name()} if torch.cuda.is_available() else {},
        "args": vars(args),
        "versions": {"python": sys.version.split()[0], "torch": torch.__version__}  # with its build, such as +cpu
        | {name: version(name) for name in ("numpy", "gymnasium")},
    }


def seconds(call):
    """Median time of a call, over 0.05 s and at least 5 calls; on a GPU of 10 calls in a row, divided by 10."""
    synchronize, times, in_a_row = lambda: None, [], 1
    if torch.cuda.is_available():
        synchronize, in_a_row = torch.cuda.synchronize, 10
    call()
    while len(times) < 5 or sum(times) * in_a_row < 0.05:
        synchronize()
        start = time.perf_counter()
        for _ in range(in_a_row):
            call()
        synchronize()
        times.append((time.perf_counter() - start) / in_a_row)
    return statistics.median(times)


class Products(TorchDispatchMode):
    """Remembers the matrix products and convolutions that torch is given: of each kind the first, and how many."""

    def __init__(self):
        super().__init__()
        self.calls, self.counts, self.operations = {}, collections.Counter(), 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        call = partial(op, *args, **(kwargs or {}))
        out = call()
        if op.overloadpacket in flop_registry:
            kind = str([op, *((x.shape, x.stride(), x.dtype) if isinstance(x, torch.Tensor) else x for x in args)])
            self.calls.setdefault(kind, call)
            self.counts[kind] += 1
            self.operations += flop_registry[op.overloadpacket](*call.args, **call.keywords, out_val=out)
        return out


def limit(module, args, turns, count):
    """Trains for one update, to see the products in its gradient steps; then times them and the environments alone,
    once a turn: medians."""
    made, products, gradient_step, taken, steps = [], Products(), module.gradient_step, [], []

    def keep_open(envs):
        made.append(envs)
        envs.close = lambda: None

    def recorded(*arguments):
        with products:
            return gradient_step(*arguments)

    keep_envs(module, keep_open)
    module.gradient_step = recorded
    module.main()

    with torch.no_grad():
        for _ in range(count):
            turns.next()
            taken.append(sum(seconds(call) * products.counts[kind] for kind, call in products.calls.items()))
            steps.append(steps_alone(made[0], args))
    learning = statistics.median(taken)
    return {
        "environment_steps_per_second": statistics.median(steps),
        "learning_seconds_per_update": learning,
        "operations_per_update": products.operations,
        "operations_per_second": products.operations / learning,
    }


def steps_alone(envs, args):
    """Steps per second of the environments with random actions, over at least half a second and a rollout."""
    space = envs.single_action_space
    space.seed(args.seed)
    actions = [np.stack([space.sample() for _ in range(args.num_envs)]) for _ in range(args.num_steps)]
    envs.reset(seed=args.seed)
    steps, start = 0, time.perf_counter()
    while (taken := time.perf_counter() - start) < 0.5 or steps < args.num_steps:
        envs.step(actions[steps % args.num_steps])
        steps += 1
    return steps * args.num_envs / taken


if __name__ == "__main__":
    what, script, *counts, options = *sys.argv[1:6], sys.argv[6:]
    warmup, count, updates_a_turn = map(int, counts)
    if what == "speed":
        module, args = load(script, warmup + count * updates_a_turn, options)
        print(json.dumps(vars(args)))
        print(json.dumps(speed(module, args, Turns(), warmup, count, updates_a_turn)))
    else:  # one update of the eager network shows all
        module, args = load(script, 1, [option for option in options if option != "--compile"])
        print(json.dumps(limit(module, args, Turns(), count)))
