"""Plays 100 games without exploration with the agents of runs, and puts a row for each into results/tuned/games.csv.

    python -m benchmark.games runs/*__*

Without runs it reads rows from its input, as sb3.py prints them. A row replaces that of the same task, seed and `who`.
The threshold_step is that of the first update after which the last 100 episodes of training reached the task's
reward_threshold. The minutes are those of training, measured by the clock; sb3.py counts processor time.
"""

import contextlib
import csv
import json
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import tyro

import enjoy
from benchmark import collect, sweep
from benchmark.results import RESULTS, WINDOW

PACKAGES = "stable-baselines3", "torch", "gymnasium", "numpy"
COLUMNS = "task who seed steps mean std minutes threshold_step machine versions commit recipe command".split()


def machine_text(machine):
    """The machine of a run in words: the text that was given, or what the launcher found."""
    if isinstance(machine, dict):
        machine = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in machine.items() if value)
    return machine or "unknown"


def threshold_step(run, threshold):
    """The step of the first update after which the last 100 episodes reached a return on average, or None."""
    if threshold is None:
        return None
    ends = np.array(run.episodes["step"])
    returns = np.array(run.episodes["return"])
    for step in run.updates["step"]:
        last = returns[ends <= step][-WINDOW:]
        if len(last) == WINDOW and last.mean() >= threshold:
            return int(step)
    return None


def row_of(folder, who):
    """The row of a run: what its results say, and the returns of 100 games."""
    run = collect.gathered(folder)
    about = run.about
    with contextlib.redirect_stdout(None):
        returns = enjoy.enjoy(enjoy.Args(folder, episodes=100, greedy=True, seed=1000 * about["seed"]))
    return about | {
        "task": about["env_id"],
        "who": who,
        "mean": round(np.mean(returns), 2),
        "std": round(np.std(returns), 2),
        "minutes": round(run.updates["seconds"][-1] / 60, 2),
        "threshold_step": threshold_step(run, gym.spec(about["env_id"]).reward_threshold),
    }


def main(
    runs: tyro.conf.Positional[tuple[Path, ...]] = (),
    who: str = "ours",
    table: Path = RESULTS / "tuned" / "games.csv",
):
    if runs:
        new = [row_of(run, who) for run in runs]
    else:
        new = [json.loads(line) for line in sys.stdin]
    old = []
    if table.exists():
        with table.open() as file:
            old = list(csv.DictReader(file))
    rows = {(row["task"], row["who"], row["seed"]): row for row in old}
    for row in new:
        versions = row["versions"]
        row["versions"] = " ".join(f"{name}=={versions[name]}" for name in PACKAGES if name in versions)
        row["machine"] = machine_text(row.get("machine") or sweep.machine(1))
        rows[row["task"], row["who"], str(row["seed"])] = row
    with table.open("w") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
