"""Plays 100 games without exploration with the agents of runs, and puts a row for each into results/tuned/games.csv.

    python -m benchmark.games runs/*__*

Without runs it reads rows from its input, as rl_zoo.py prints them. A row replaces that of the same task, seed and
`who`. Runs that are broken or not finished are named and left out.
The threshold_step is that of the first update after which the last 100 episodes of training reached the task's
reward_threshold. The minutes are those of training, measured by the clock; rl_zoo.py counts processor time.
"""

import contextlib
import json
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import tyro

import enjoy
from benchmark import collect, sweep, tables
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
    """The row of a run: what its results say, and the returns of 100 games.

    Raises Broken where the run is not finished, or a game does not end."""
    run = collect.gathered(folder)
    about = run.about
    if not run.finished:
        raise collect.Broken(f"stopped at {about['steps']:,} of {about['steps_wanted']:,} steps")
    spec = gym.registry.get(about["env_id"])  # None for environments of other libraries
    with contextlib.redirect_stdout(None):
        returns = enjoy.enjoy(enjoy.Args(folder, episodes=100, greedy=True, seed=1000 * about["seed"]))
    if len(returns) < 100:
        raise collect.Broken(f"{100 - len(returns)} of 100 games did not end")
    return about | {
        "task": about["env_id"],
        "who": who,
        "mean": round(np.mean(returns), 2),
        "std": round(np.std(returns), 2),
        "minutes": round(run.updates["seconds"][-1] / 60, 2),
        "threshold_step": threshold_step(run, spec.reward_threshold if spec else None),
    }


def rows_of(folders, who):
    """Yields the rows of runs; names those that have none. Ends the program where two are of the same task and seed."""
    known = {}  # {(task, seed): folder of the run}
    for folder in folders:
        about, _ = collect.attempt(collect.describe, folder)
        if about is None:
            continue  # row_of() says why
        key = about["env_id"], about["seed"]
        if key in known:
            sys.exit(f"error: {known[key]} and {folder} would have the same row; name the runs of one setting alone")
        known[key] = folder
    for folder in folders:
        row, why = collect.attempt(row_of, folder, who)
        if row is None:
            print(f"left out: {why}", flush=True)
        else:
            yield row


def add(row, table):
    """Puts a row into the table, in the place of the one with the same task, seed and `who`."""
    versions = row["versions"]
    row["versions"] = " ".join(f"{name}=={versions[name]}" for name in PACKAGES if name in versions)
    row["machine"] = machine_text(row.get("machine") or sweep.machine(1))
    tables.put_row(table, COLUMNS, ("task", "who", "seed"), row)


def main(
    runs: tyro.conf.Positional[tuple[Path, ...]] = (),
    who: str = "ours",
    table: Path = RESULTS / "tuned" / "games.csv",
):
    new = rows_of(runs, who) if runs else map(json.loads, sys.stdin)
    for row in new:
        add(row, table)  # after each, as a run takes minutes


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
