"""Measures the CPU time of a step of training on tasks, of our agents and of Stable-Baselines3's, which take turns.

    taskset -c 0 python -m benchmark.untuned.cpu_time ScaledPusher-v5 Swimmer-v5

Ours are five agents in one process, whose start counts; of Stable-Baselines3 learn() alone counts. It is installed into
.venv-sb3, unless SB3_PYTHON names a Python that has it. Nothing else should run. A row for each turn goes to
results/untuned/cpu_time.csv. Printed are the steps that one of ours makes in the CPU time in which Stable-Baselines3
makes those of scores.csv.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import tyro

from benchmark import sweep
from benchmark.libraries import find_python
from benchmark.results import ROOT
from benchmark.tables import put_row, read_rows
from benchmark.untuned import ours, scores

TABLE = scores.FOLDER / "cpu_time.csv"
COLUMNS = "task who turn steps cpu_seconds machine".split()
PACKAGES = ["stable-baselines3==2.9.2", "gymnasium[box2d,mujoco]"]
SEEDS = (101, 102, 103, 104, 105)
STEPS = 20_480  # of each agent


def seconds_of_ours(task):
    """The CPU seconds of one of our agents."""
    gamma, rate = ours.best_options(task)
    with tempfile.TemporaryDirectory() as folder:
        return ours.train(task, STEPS, SEEDS, (gamma,), (rate,), Path(folder, "runs"))


def seconds_of_sb3(python, task, settings, seed):
    """The CPU seconds of an agent of Stable-Baselines3 with the settings "defaults" or "zoo"."""
    command = [python, "-m", "benchmark.untuned.sb3", task, settings, "--steps", str(STEPS), "--seed", str(seed)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])["cpu_seconds"]


def main(tasks: tyro.conf.Positional[tuple[str, ...]], turns: int = 2):
    os.environ["OMP_NUM_THREADS"] = "1"
    python = find_python("SB3_PYTHON", ".venv-sb3", PACKAGES)
    machine = " ".join(f"{name}={value}" for name, value in sweep.machine(1).items() if value)
    for task in tasks:
        for turn in range(1, turns + 1):
            seconds = {scores.OURS: seconds_of_ours(task)}
            for who in scores.PEERS:
                seconds[who] = seconds_of_sb3(python, task, who.split()[-1], turn)
            for who, value in seconds.items():
                row = dict(task=task, who=who, turn=turn, steps=STEPS, cpu_seconds=round(value, 2), machine=machine)
                put_row(TABLE, COLUMNS, ("task", "who", "turn"), row)
        times = read_rows(TABLE)
        steps = min(scores.by_steps(read_rows(scores.TABLE), task, scores.OURS))
        for who in scores.PEERS:
            theirs, each = (scores.seconds_per_step(times, task, name) for name in (who, scores.OURS))
            print(f"{task}: {who}: {steps * theirs / each:.0f} steps, {theirs / each:.2f} times {steps}", flush=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
