"""Times the scripts in turns with their copies with CUDA graphs, CleanRL's and LeanRL's, on the same machine.

    python -m benchmark.gpu.turns --theirs FOLDER --repeats 2

Steps per second are those after the first updates, in which functions are compiled and captured. FOLDER has checkouts
of cleanrl and LeanRL; without it, ours alone are timed.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

from benchmark.results import ROOT
from benchmark.speed import TIMED, with_speed
from recipes import recipe as recipe_files

CLEANRL = "cleanrl/cleanrl"
LEANRL = "LeanRL/leanrl"
CAPTURED = "--cudagraphs"
COMPILED = "--compile --cudagraphs"
ATARI = "--env-id Breakout-v5"
ROBOT = "--env-id HalfCheetah-v4"
# Their scripts and options, beside which of ours they are timed; all have the same environments and batches
THEIRS = {
    "atari_envpool": {
        "CleanRL": f"{CLEANRL}/ppo_atari_envpool.py {ATARI} --total-timesteps 40960",
        "LeanRL": f"{LEANRL}/ppo_atari_envpool.py {ATARI} --total-timesteps 81920",
        "LeanRL, captured": f"{LEANRL}/ppo_atari_envpool_torchcompile.py {ATARI} --total-timesteps 163840 {CAPTURED}",
        "LeanRL, compiled and captured": (
            f"{LEANRL}/ppo_atari_envpool_torchcompile.py {ATARI} --total-timesteps 163840 {COMPILED}"
        ),
    },
    "continuous_action": {
        "CleanRL": f"{CLEANRL}/ppo_continuous_action.py {ROBOT} --total-timesteps 20480",
        "LeanRL, captured": (
            f"{LEANRL}/ppo_continuous_action_torchcompile.py {ROBOT} --total-timesteps 40960 {CAPTURED}"
        ),
        "LeanRL, compiled and captured": (
            f"{LEANRL}/ppo_continuous_action_torchcompile.py {ROBOT} --total-timesteps 40960 {COMPILED}"
        ),
    },
    "procgen": {},
}
# The options and the counted updates of ours
OURS = {
    "atari_envpool": (ATARI, 60),
    "continuous_action": (f"{ROBOT} --num-envs 1 --num-steps 2048", 8),
    "procgen": ("--env-id starpilot --tf32", 4),
}


def steps_per_second_of_theirs(output):
    """From what their scripts print: LeanRL's mean after its first iterations, or CleanRL's mean since its start.

    CleanRL's mean at step s is s / t, so the last two thirds of its run have the speed of the differences."""
    speeds = re.findall(r"speed: +([0-9.]+) sps", output)
    if speeds:
        return float(speeds[-1])
    means = [float(text) for text in re.findall(r"^SPS: (\d+)", output, re.MULTILINE)]
    if len(means) < 3:
        raise ValueError("no speed among the output:\n" + output[-1000:])
    first = len(means) // 3
    updates = len(means) - first
    return updates / (len(means) / means[-1] - first / means[first - 1])


def time_theirs(folder, line):
    """Steps per second of one of their scripts."""
    script, *options = line.split()
    environment = os.environ | {"WANDB_MODE": "disabled", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryDirectory() as runs:
        command = [sys.executable, str(Path(folder, script).resolve()), *options]
        done = subprocess.run(command, cwd=runs, env=environment, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise ValueError((done.stdout + done.stderr)[-1000:])
    return steps_per_second_of_theirs((done.stdout + done.stderr).replace("\r", "\n"))


def time_ours(script, options, updates):
    """Steps per second of a script, which lies in any folder, from benchmark/timed/ours.py."""
    environment = os.environ | {"PYTHONPATH": f"{script.parent}:{ROOT}"}
    with tempfile.TemporaryDirectory() as runs:
        command = [sys.executable, str(TIMED / "ours.py"), script.name, str(updates), *options.split()]
        done = subprocess.run(command, cwd=runs, env=environment, capture_output=True, text=True, timeout=120)
    results = [line for line in done.stdout.splitlines() if line.startswith('{"steps"')]
    if done.returncode != 0 or not results:
        raise ValueError((done.stdout + done.stderr)[-1000:])
    result = with_speed(json.loads(results[0]))
    shares = ", ".join(f"{phase} {result[phase]:.0%}" for phase in ("environment", "inference", "learning"))
    print(f"    {shares}, {result['memory']:.0f} MiB", flush=True)
    return result["speed"]


def programs(name, theirs, folder):
    """The functions that time each program of a script's group, {label: function without arguments}."""
    recipe = recipe_files.read(ROOT / "benchmark" / "gpu" / f"{name}.diff")
    captured = folder / f"captured_{recipe.script.name}"
    captured.write_text(recipe_files.apply(recipe, recipe.script.read_text()))
    options, updates = OURS[name]
    found = {
        "ours": partial(time_ours, recipe.script, options, updates),
        "ours, captured": partial(time_ours, captured, options, updates),
        "ours, compiled and captured": partial(time_ours, captured, f"{options} --compile", updates),
        "ours, compiled": partial(time_ours, recipe.script, f"{options} --compile", updates),
    }
    if theirs:
        found |= {label: partial(time_theirs, theirs, line) for label, line in THEIRS[name].items()}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--theirs", help="a folder with checkouts of cleanrl and LeanRL")
    parser.add_argument("--repeats", type=int, default=2, help="turns of all programs")
    parser.add_argument("--groups", nargs="+", choices=OURS, default=list(OURS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in options.groups:
            speeds = {}
            for _ in range(options.repeats):
                for label, measure in programs(name, options.theirs, Path(folder)).items():
                    try:
                        speed = measure()
                    except (ValueError, subprocess.TimeoutExpired) as error:
                        print(f"{name}, {label}: {error}", flush=True)
                        continue
                    print(f"{name}, {label}: {speed:.0f} steps/s", flush=True)
                    speeds.setdefault(label, []).append(speed)
            for label, found in speeds.items():
                ratio = median(found) / median(speeds["ours"]) if "ours" in speeds else math.nan
                print(f"| {name} | {label} | {median(found):.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
