"""The scores of settings on tasks that nobody tuned them for: puts rows into their table, and shows it.

python -m benchmark.untuned.scores < rows.json        rows as sb3.py prints them
"""

import json
import sys

import numpy as np

from benchmark.results import RESULTS
from benchmark.tables import put_row

TABLE = RESULTS / "untuned" / "scores.csv"
# score: the mean return of 20 games without exploration. training: that of the last 100 episodes of training.
# cpu_seconds: of training; for agents of one process, their share of it.
COLUMNS = "task who gamma learning_rate seed steps score training cpu_seconds versions commit".split()
KEYS = "task", "who", "gamma", "learning_rate", "seed", "steps"
NEW_SEEDS = 101  # seeds from here on chose nothing
# {who: the head of a column}
SIDES = {
    "random": "random",
    "ours": "ours",
    "Stable-Baselines3, defaults": "SB3, defaults",
    "Stable-Baselines3, zoo": "SB3, RL Zoo",
}


def add(row):
    """Puts a row into the table, in the place of the one of the same agent."""
    TABLE.parent.mkdir(exist_ok=True)
    put_row(TABLE, COLUMNS, KEYS, row)


def chosen(rows, task, who):
    """The rows of a task that count: the last of each seed; of ours those of seeds that chose nothing."""
    found = [row for row in rows if (row["task"], row["who"]) == (task, who)]
    if who == "ours":
        found = [row for row in found if int(row["seed"]) >= NEW_SEEDS]
    most = max((int(row["steps"] or 0) for row in found), default=0)
    return [row for row in found if int(row["steps"] or 0) == most]


def scores_text(values):
    """The mean of scores and all of them, from the lowest up; "" where there is none."""
    if not values:
        return ""
    each = " ".join(f"{value:.4g}" for value in sorted(values))
    return f"{np.mean(values):.4g} ({each})" if len(values) > 1 else each


def table(rows):
    """The lines of the table in Markdown: a row for each task with the scores of all agents, and CPU seconds of one."""
    lines = [
        f"| task | steps | gamma, rate | {' | '.join(SIDES.values())} | CPU seconds |",
        "|---|---:|---|---|---|---|---|---|",
    ]
    for task in dict.fromkeys(row["task"] for row in rows):
        found = {who: chosen(rows, task, who) for who in SIDES}
        ours = found["ours"]
        if not ours:
            continue
        options = f"{ours[0]['gamma']}, {ours[0]['learning_rate']}"
        cells = [task, f"{int(ours[0]['steps']):,}", options]
        cells += [scores_text([float(row["score"]) for row in each]) for each in found.values()]
        seconds = []
        for who, each in found.items():
            if each and who != "random":
                seconds.append(f"{np.median([float(row['cpu_seconds']) for row in each]):.0f}")
        lines.append(f"| {' | '.join([*cells, ', '.join(seconds)])} |")
    return lines


if __name__ == "__main__":
    for line in sys.stdin:
        add(json.loads(line))
