"""Plays 100 games without exploration with the agents of runs, and puts a row for each into results/tuned/games.csv.

    python benchmark/games.py runs/*__*

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

sys.path.insert(0, str(ROOT := Path(__file__).resolve().parents[1]))

import enjoy  # noqa: E402
from benchmark import collect, sweep  # noqa: E402

PACKAGES = "stable-baselines3", "torch", "gymnasium", "numpy"
COLUMNS = "task who seed steps mean std minutes threshold_step machine versions commit recipe command".split()


def machine_text(machine):
    """The machine of a run in words: the text that was given, or what the launcher found."""
    if isinstance(machine, dict):
        machine = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in machine.items() if value)
    return machine or "unknown"


def row_of(run, who):
    """The row of a run."""
    about, episodes, updates = collect.gathered(run)
    goal, ends = gym.spec(about["env_id"]).reward_threshold, np.array(episodes["step"])
    past = [(step, np.array(episodes["return"])[ends <= step][-100:]) for step in updates["step"]]
    reached = [int(step) for step, last in past if goal is not None and len(last) == 100 and last.mean() >= goal]
    with contextlib.redirect_stdout(None):
        returns = enjoy.enjoy(enjoy.Args(run, episodes=100, greedy=True, seed=1000 * about["seed"]))
    about |= {"mean": round(np.mean(returns), 2), "std": round(np.std(returns), 2)}
    about["minutes"] = round(updates["seconds"][-1] / 60, 2)
    return about | {"task": about["env_id"], "who": who, "threshold_step": min(reached, default=None)}


def main(
    runs: tyro.conf.Positional[tuple[Path, ...]] = (),
    who: str = "ours",
    table: Path = ROOT / "benchmark/results/tuned/games.csv",
):
    new = [row_of(run, who) for run in runs] or [json.loads(line) for line in sys.stdin]
    old = csv.DictReader(table.open()) if table.exists() else []
    rows = {(row["task"], row["who"], row["seed"]): row for row in old}
    for row in new:
        row["versions"] = " ".join(f"{name}=={row['versions'][name]}" for name in PACKAGES if name in row["versions"])
        row["machine"] = machine_text(row.get("machine") or sweep.machine(1))
        rows[row["task"], row["who"], str(row["seed"])] = row
    with table.open("w") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
