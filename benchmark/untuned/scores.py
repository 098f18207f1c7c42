"""The scores of settings on tasks that nobody tuned them for: puts rows into their table, and shows it.

python -m benchmark.untuned.scores < rows.json        rows as sb3.py prints them
"""

import json
import sys

import numpy as np

from benchmark.results import RESULTS, fresh
from benchmark.tables import put_row

FOLDER = RESULTS / "untuned"
TABLE = FOLDER / "scores.csv"
# score: the mean return of 20 games without exploration. training: that of the last 100 episodes of training.
# cpu_seconds: of training; for agents of one process, their share of it.
COLUMNS = "task who gamma learning_rate seed steps score training cpu_seconds versions commit".split()
KEYS = "task", "who", "gamma", "learning_rate", "seed", "steps"
# The programs in the column "who", with their heads in the table
OURS = "ours"
PEERS = {"Stable-Baselines3, defaults": "SB3, defaults", "Stable-Baselines3, zoo": "SB3, RL Zoo"}


def add(row):
    """Puts a row into the table, in the place of the one of the same agent."""
    TABLE.parent.mkdir(exist_ok=True)
    put_row(TABLE, COLUMNS, KEYS, row)


def by_steps(rows, task, who):
    """The rows of the agents of a program, {steps: rows} from the fewest steps up; of ours those that chose nothing."""
    found = [row for row in rows if (row["task"], row["who"]) == (task, who)]
    groups = {}
    for row in fresh(found) if who == OURS else found:
        groups.setdefault(int(row["steps"] or 0), []).append(row)
    return dict(sorted(groups.items()))


def scores_text(rows):
    """The mean of the scores and all of them, from the lowest up."""
    values = sorted(float(row["score"]) for row in rows)
    each = " ".join(f"{value:.4g}" for value in values)
    return f"{np.mean(values):.4g} ({each})" if len(values) > 1 else each


def seconds_per_step(times, task, who):
    """The CPU seconds of a step in cpu_time.csv, the median over the turns; NaN where it has none."""
    found = [float(row["cpu_seconds"]) / int(row["steps"]) for row in times if (row["task"], row["who"]) == (task, who)]
    return np.median(found) if found else np.nan


def most_steps(rows, task, who):
    """The rows of a program that trained longest; an empty list where there is none."""
    groups = by_steps(rows, task, who)
    return groups[max(groups)] if groups else []


def equal_steps(rows):
    """The lines of a table in Markdown of the scores after equal steps: a row for each task.

    rows: those of scores.csv."""
    yield f"| task | steps | gamma, rate | random | ours | {' | '.join(PEERS.values())} |"
    yield "|---|---:|---|---:|---|---|---|"
    for task in dict.fromkeys(row["task"] for row in rows):
        ours = by_steps(rows, task, OURS)
        if not ours:
            continue
        steps, first = next(iter(ours.items()))
        cells = [task, f"{steps:,}", f"{first[0]['gamma']}, {first[0]['learning_rate']}"]
        sides = [most_steps(rows, task, "random"), first, *(most_steps(rows, task, who) for who in PEERS)]
        cells += [scores_text(side) if side else "" for side in sides]
        yield f"| {' | '.join(cells)} |"


def equal_time(rows, times):
    """The lines of a table in Markdown of the agents of ours that trained for longer than those in the first table.

    times: the rows of cpu_time.csv."""
    yield "| task | steps of SB3 | CPU time | steps of ours | ours | SB3, the better mean |"
    yield "|---|---:|---:|---:|---|---:|"
    for task in dict.fromkeys(row["task"] for row in rows):
        for steps, ours in [*by_steps(rows, task, OURS).items()][1:]:
            own = seconds_per_step(times, task, OURS)
            ratios = [f"{seconds_per_step(times, task, who) / own:.1f}" for who in PEERS]
            peers = [side for who in PEERS if (side := most_steps(rows, task, who))]
            best = max(np.mean([float(row["score"]) for row in side]) for side in peers)
            cells = [task, f"{int(peers[0][0]['steps']):,}", ", ".join(ratios), f"{steps:,}", scores_text(ours)]
            yield f"| {' | '.join([*cells, f'{best:.4g}'])} |"


if __name__ == "__main__":
    for line in sys.stdin:
        add(json.loads(line))
