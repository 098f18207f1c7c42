"""Trains with a script in the current folder, with its functions wrapped by timers, and prints JSON. For speed.py.

    python ours.py SCRIPT UPDATES OPTION ...

The rollout of an update lasts until the environments' last step, and the rest is learning; inference is the rollout
without the environments' steps. Scripts whose actors and learner run at the same time have no phases.
"""

import hashlib
import importlib
import inspect
import json
import os
import sys
import time
from pathlib import Path

import torch
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for the script, too, as this runs in another folder

from saved import read_state  # noqa: E402

WARMUP = 2  # updates that are not counted: memory is allocated in them, and --compile compiles


class Timers:
    """Seconds in functions, and what they had added up to at the end of each update."""

    def __init__(self, synchronize):
        self.synchronize = synchronize  # waits for the GPU
        self.spent = {"environment": 0.0, "collectives": 0.0}
        self.ends = {}  # when each function was left for the last time
        self.updates = []

    def timed(self, name, function, wait=False):
        """The function, with its seconds added to `name`; with `wait` the GPU's work counts where it belongs."""

        def call(*args, **kwargs):
            if wait:
                self.synchronize()
            start = time.perf_counter()
            result = function(*args, **kwargs)
            if wait:
                self.synchronize()
            self.ends[name] = time.perf_counter()
            self.spent[name] += self.ends[name] - start
            return result

        return call

    def end_update(self):
        """Notes the end of an update."""
        self.synchronize()
        self.updates.append(
            self.spent
            | {
                "end": time.perf_counter(),
                "cpu": time.process_time(),
                "stepped": self.ends.get("environment", 0.0),
            }
        )


def has_phases(module):
    """Whether rollouts and updates of a script take turns."""
    return not hasattr(module, "make_rollouts")


def train(module, timers):
    """Runs the script's main() with timers in its environments, at its updates and in its collectives."""
    make_envs = module.make_envs
    make_run = getattr(module, "make_run", module.Run)

    def make_timed_envs(*args):
        envs = make_envs(*args)
        envs.step = timers.timed("environment", envs.step)
        return envs

    def make_timed_run(*args):
        run = make_run(*args)
        log_update = run.log_update

        def log_and_time(scalars):
            log_update(scalars)  # it waits for the update's end
            timers.end_update()

        run.log_update = log_and_time
        return run

    if has_phases(module):
        module.make_envs = make_timed_envs
    if "TORCHELASTIC_RUN_ID" in os.environ:
        module.dist.all_reduce = timers.timed("collectives", module.dist.all_reduce, wait=True)
        module.all_gather = timers.timed("collectives", module.all_gather, wait=True)
    try:
        if inspect.signature(module.main).parameters:
            module.main(make_timed_run)
        else:
            module.make_run = make_timed_run
            module.main()
    except SystemExit as end:
        if end.code:
            raise


def hash_of_weights():
    """A hash of the weights in the newest checkpoint below the current folder; None without one, as on most ranks."""
    files = sorted(Path("runs").glob("*/checkpoint_*.pt"))
    if not files:
        return None
    weights = read_state(files[-1])["parts"]["agent"].values()
    return hashlib.sha256(b"".join(weight.numpy().tobytes() for weight in weights)).hexdigest()


def main():
    script, updates, *options = sys.argv[1:]
    updates = int(updates)
    module = importlib.import_module(Path(script).stem)
    args = tyro.cli(module.Args, args=options)
    steps = (WARMUP + updates) * args.num_envs * args.num_steps
    sys.argv = [script, *options, "--total-timesteps", str(steps), "--save-every", "0"]
    on_gpu = args.cuda and torch.cuda.is_available()
    timers = Timers(torch.cuda.synchronize if on_gpu else lambda: None)
    train(module, timers)

    first, last = timers.updates[WARMUP - 1], timers.updates[-1]
    seconds = last["end"] - first["end"]
    found = {  # speed.py knows the line of the result by its first key
        "steps": updates * args.num_envs * args.num_steps,
        "seconds": seconds,
        "cpu": last["cpu"] - first["cpu"],
        "envs": args.num_envs,
        "collectives": (last["collectives"] - first["collectives"]) / seconds,
        "memory": torch.cuda.max_memory_allocated() / 2**20 if on_gpu else 0.0,
        "args": vars(args),
    }
    if has_phases(module):
        learning = sum(update["end"] - update["stepped"] for update in timers.updates[WARMUP:])
        found["environment"] = (last["environment"] - first["environment"]) / seconds
        found["learning"] = learning / seconds
        found["inference"] = 1 - found["environment"] - found["learning"]
    weights = hash_of_weights()
    if weights is not None:
        found["weights"] = weights
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
