"""Times a script of ours, or the machine's limits for it, in a process of its own; the last line it prints is JSON.

    python benchmark/speed/ours.py speed|limit SCRIPT WARMUP TURNS UPDATES [OPTION ...]

The script is imported and its main() called. What is timed is wrapped from outside: the environments' step, the
updates of the plumbing, and the layers of the network. After WARMUP updates it trains for as many UPDATES in each of
its TURNS (turns.py); the limits are taken once a turn. The first line that it prints are the script's arguments.
"""

import importlib
import json
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import tyro
from torch import nn
from torch.nn import functional
from turns import Turns

sys.path.insert(0, str(Path(__file__).parents[2]))


def load(script, updates, options):
    """Imports the script and puts in sys.argv what trains for so many updates; returns (module, args)."""
    module = importlib.import_module(Path(script).stem)
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

    def timed_log_update(*arguments, **rollout):
        rows[-1]["end"] = time.perf_counter()
        log_update(*arguments, **rollout)

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
        "versions": {"python": sys.version.split()[0]} | {p: version(p) for p in ("torch", "numpy", "gymnasium")},
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


def kernels(layer, x, dtype, with_input):
    """The bare products of a layer's forward and backward pass: ([call, ...], operations).

    layer: Linear or Conv2d; x: what it was given; dtype: of what it gave; with_input: whether x has a gradient."""
    weight, bias = layer.weight.detach().to(dtype), layer.bias.detach().to(dtype)
    x = x.to(dtype)
    if isinstance(layer, nn.Linear):
        x = x.flatten(0, -2)
        grad = torch.randn(len(x), layer.out_features, dtype=dtype, device=x.device)
        calls = [lambda: functional.linear(x, weight, bias), lambda: grad.T @ x, lambda: grad @ weight]
        return calls[: 2 + with_input], 2 * len(x) * weight.numel() * (2 + with_input)
    how = (layer.stride, layer.padding, layer.dilation)
    grad = torch.randn_like(functional.conv2d(x, weight, bias, *how, layer.groups))
    backward = torch.ops.aten.convolution_backward
    wanted = [with_input, True, True]
    calls = [
        lambda: functional.conv2d(x, weight, bias, *how, layer.groups),
        lambda: backward(grad, x, weight, [len(bias)], *how, False, [0, 0], layer.groups, wanted),
    ]
    return calls, 2 * grad.numel() * weight[0].numel() * (2 + with_input)


def limit(module, args, turns, count):
    """Trains for one update, to see what the layers are given in its learning; then times their products and the
    environments alone, once a turn: medians. An LSTM's products are not among them."""
    made, seen, counts = [], {}, {}

    def see(layer, inputs, output):
        if isinstance(layer, nn.Linear | nn.Conv2d) and torch.is_grad_enabled():
            key = layer, inputs[0].shape
            seen.setdefault(key, (inputs[0].detach().clone(), output.dtype, inputs[0].requires_grad))
            counts[key] = counts.get(key, 0) + 1

    def keep_open(envs):
        made.append(envs)
        envs.close = lambda: None

    keep_envs(module, keep_open)
    hook = nn.modules.module.register_module_forward_hook(see)
    module.main()
    hook.remove()

    calls, operations, taken, steps = [], 0, [], []
    with torch.no_grad():
        for key, what in seen.items():
            several, products = kernels(key[0], *what)
            calls += [(call, counts[key]) for call in several]
            operations += products * counts[key]
        for _ in range(count):
            turns.next()
            taken.append(sum(seconds(call) * times for call, times in calls))
            steps.append(steps_alone(made[0], args))
    learning = statistics.median(taken)
    return {
        "environment_steps_per_second": statistics.median(steps),
        "learning_seconds_per_update": learning,
        "operations_per_update": operations,
        "operations_per_second": operations / learning,
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
