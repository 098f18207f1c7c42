"""Compares runs of Procgen with runs of ppo2 that the authors of Procgen published, after equal steps.

The published runs have the defaults of ppo_procgen.py; benchmark/results/README.md says where they come from. The
learning rate and the clip range are constant in them, so a run is also the first part of every longer one.
"""

import csv
from pathlib import Path

import numpy as np

from benchmark.curves import last_100
from benchmark.scores import compare, mean_and_deviation, number, short_steps, with_count
from benchmark.tables import read_rows

STEPS = (98_304, 245_760, 491_520, 999_424, 1_998_848)  # after 6, 15, 30, 61 and 122 updates
# The options that our runs may have
LENGTH = {"total_timesteps"}
PRECISIONS = ("", "bf16", "tf32")  # each is a row of its own
NAMES = ["environment", "random play", "after", "options", "ours (runs)", "`ppo2`, published (runs)", "difference"]
# What is logged of each update, by its column
VARIABLES = {
    "entropy": "entropy",
    "approx_kl_ppo2": "approximate KL",
    "clipfrac": "clip fraction",
    "policy_loss": "policy loss",
    "value_loss": "value loss",
    "explained_variance": "explained variance",
}
VARIABLES_UNTIL = 491_520  # the step up to which the variables are averaged
VARIABLE_NAMES = ["variable", *NAMES[4:]]


def read_published(results, env_id):
    """The published runs of a game, [{column: float64 [updates]}, ...]; an empty list where there is no file.

    The columns are "step", those of VARIABLES, and "return" and "length", the means over the last 100 episodes at the
    end of an update."""
    path = Path(results, "published", f"{env_id}.csv")
    if not path.exists():
        return []
    rows_by_run = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            rows_by_run.setdefault(row.pop("run"), []).append(row)
    tables = []
    for rows in rows_by_run.values():
        tables.append({name: np.array([float(row[name]) for row in rows]) for name in rows[0]})
    return tables


def our_runs(experiments, env_id, precision=""):
    """Our runs of a game that are comparable, [Run, ...]: of each seed the one with the most steps.

    They have the default options, and the option `precision`, if any; only their lengths may differ."""
    wanted = {precision: True} if precision else {}
    runs = []
    for experiment in experiments:
        is_of_game = experiment.script == "ppo_procgen" and experiment.env_id == env_id
        given = {name: value for name, value in experiment.options.items() if name not in LENGTH}
        if is_of_game and given == wanted:
            runs.extend(experiment.ours)
    runs.sort(key=lambda run: run.about["steps"])
    longest = {run.about["seed"]: run for run in runs}  # of a seed, the last one stays
    return list(longest.values())


def our_scores(runs, step):
    """The scores of the runs that came so far, float64 [runs]: the mean return of the last 100 episodes then."""
    values = []
    for run in runs:
        ended = run.episodes["step"] <= step
        if run.updates["step"][-1] >= step and ended.any():
            values.append(last_100(run.episodes, "return")[ended][-1])
    return np.array(values)


def published_scores(published, step):
    """The scores after a step of the published runs that came so far, float64 [runs]."""
    values = []
    for run in published:
        if run["step"][-1] >= step:
            until = run["step"] <= step
            values.append(run["return"][until][-1])
    return np.array(values)


def rows(experiments, results):
    """The rows of the table, [[cell, ...], ...]; the last cell is our mean minus that of ppo2, with Welch's interval.

    A row needs runs on both sides."""
    random = {row["task"]: number(float(row["mean"])) for row in read_rows(Path(results, "tuned", "random.csv"))}
    cells = []
    for env_id in sorted({experiment.env_id for experiment in experiments if experiment.script == "ppo_procgen"}):
        published = read_published(results, env_id)
        for precision in PRECISIONS:
            runs = our_runs(experiments, env_id, precision)
            options = f"`--{precision}`" if precision else ""
            for step in STEPS:
                ours = our_scores(runs, step)
                theirs = published_scores(published, step)
                if len(ours) and len(theirs):
                    sides = [with_count(mean_and_deviation(values), values) for values in (ours, theirs)]
                    difference = compare(ours, theirs).text(max(ours.mean(), theirs.mean(), key=abs))
                    cells.append([env_id, random.get(env_id, ""), short_steps(step), options, *sides, difference])
    return cells


def published_mean(results, env_id, last):
    """(steps, returns) up to the step `last`, both float64 [updates]: the mean over the published runs of a game."""
    published = read_published(results, env_id)
    steps = published[0]["step"]
    inside = steps <= last
    return steps[inside], np.mean([run["return"][inside] for run in published], axis=0)


def variable_means(tables, name):
    """The means of a variable up to the step VARIABLES_UNTIL over the runs that came so far, float64 [runs].

    tables: of updates, [{column: float64 [updates]}, ...]."""
    means = []
    for table in tables:
        if table["step"][-1] >= VARIABLES_UNTIL:
            means.append(table[name][table["step"] <= VARIABLES_UNTIL].mean())
    return np.array(means)


def three_digits(values):
    """The text "2.46 ± 0.04 (3)": mean, sample standard deviation and number; without a deviation of a single value."""
    deviation = f" ± {np.std(values, ddof=1):.1g}" if len(values) > 1 else ""
    return with_count(f"{np.mean(values):.3g}{deviation}", values)


def variable_rows(experiments, results, env_id="starpilot"):
    """The rows of the table of variables, [[cell, ...], ...], of our runs with the defaults."""
    ours = [run.updates for run in our_runs(experiments, env_id)]
    theirs = read_published(results, env_id)
    cells = []
    for name, title in VARIABLES.items():
        sides = variable_means(ours, name), variable_means(theirs, name)
        if len(sides[0]) and len(sides[1]):
            found = compare(*sides)
            interval = "" if np.isnan(found.low) else f" [{found.low:+.2g}, {found.high:+.2g}]"
            cells.append([title, *map(three_digits, sides), f"{found.mean:+.2g}{interval}"])
    return cells
