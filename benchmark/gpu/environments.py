"""Times a step of EnvPool's games without any network, to tell where the time of ppo_atari_envpool.py's rollouts goes.

    python -m benchmark.gpu.environments --steps 2000

Each line is one way to step 8 games of Breakout: the milliseconds of a step (median, 99th percentile and mean), and the
CPU milliseconds that it took in all threads. Between two steps of "busy" and "sleep" the caller computes or sleeps for
half a millisecond, as long as a GPU might take to choose the actions.
"""

import argparse
import os
import time

import envpool
import numpy as np

import ppo_atari_envpool as script

NUM_ENVS = 8
GAP = 0.0005  # seconds
GAME = "Breakout-v5"


def stay_busy():
    end = time.perf_counter() + GAP
    while time.perf_counter() < end:
        pass


def sleep():
    time.sleep(GAP)


def no_gap():
    pass


def make_pool(**options):
    """EnvPool as ppo_atari_envpool.py makes it, with options of its own."""
    options = {"num_envs": NUM_ENVS, "stack_num": 1, "episodic_life": True, "seed": 1} | options
    return envpool.make_gymnasium(GAME, **options)


def make_ours():
    return script.EnvPool(script.Args(env_id=GAME, num_envs=NUM_ENVS))


def measure(envs, wait, steps):
    """The times of the steps and their CPU time, both in milliseconds: float64 [steps], and a mean."""
    envs.reset()
    actions = np.random.default_rng(1).integers(4, size=(steps, NUM_ENVS))
    times = np.zeros(steps)
    cpu = 0.0
    for t in range(steps):
        wait()
        cpu_start = time.process_time()
        start = time.perf_counter()
        envs.step(actions[t])
        times[t] = time.perf_counter() - start
        cpu += time.process_time() - cpu_start
    envs.close()
    return 1000 * times, 1000 * cpu / steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="steps of all games in each line")
    steps = parser.parse_args().steps
    print(f"{len(os.sched_getaffinity(0))} cores for this process, {os.cpu_count()} in the machine")
    ways = {
        "pool": (make_pool, {}, no_gap),
        "pool, busy between": (make_pool, {}, stay_busy),
        "pool, sleep between": (make_pool, {}, sleep),
        "4 threads": (make_pool, {"num_threads": 4}, no_gap),
        "2 threads": (make_pool, {"num_threads": 2}, no_gap),
        "pinned threads": (make_pool, {"thread_affinity_offset": 0}, no_gap),
        "its own stack of 4 frames": (make_pool, {"stack_num": 4}, no_gap),
        "1 no-op at a reset": (make_pool, {"noop_max": 1}, no_gap),
        "a life's end is no end": (make_pool, {"episodic_life": False}, no_gap),
        "ours": (make_ours, {}, no_gap),
        "ours, busy between": (make_ours, {}, stay_busy),
    }
    print("| way | median ms | 99% | mean | CPU ms |\n|---|---|---|---|---|")
    for name, (make, options, wait) in ways.items():
        times, cpu = measure(make(**options), wait, steps)
        median, high = np.percentile(times, [50, 99])
        print(f"| {name} | {median:.2f} | {high:.2f} | {times.mean():.2f} | {cpu:.2f} |", flush=True)


if __name__ == "__main__":
    main()
