"""The table of docs/environment.md on what keeps a return that was reached, of the runs of collapse.sh.

Returns are means over the last 100 episodes. A run has reached CartPole's threshold, 475, after the first episode with
such a mean. The columns are means over the runs that did, with Student's 95% intervals.
"""

import functools
import json

import numpy as np

from benchmark.curves import last_100
from benchmark.results import RESULTS, WINDOW, load_finished, option_text
from benchmark.scores import mean_and_interval
from recipes.recipe import recipes

THRESHOLD = 475


def after_threshold(run):
    """(the step at which a run reached the threshold, its lowest later return, its last return), or None."""
    returns = last_100(run.episodes, "return")
    reached = np.flatnonzero((returns >= THRESHOLD) & (np.arange(len(returns)) >= WINDOW))
    if not len(reached):
        return None
    first = reached[0]
    return run.episodes["step"][first], returns[first:].min(), returns[-1]


@functools.cache
def recipes_by_name():
    return {recipe.file.stem: recipe for recipe in recipes()}


def describe(script, options):
    """The options and recipes of an experiment in words."""
    words = [f"`{option_text(name, value)}`" for name, value in options.items() if name != "total_timesteps"]
    names = [name for name in script.split("+")[1:] if name not in ("seeds-vector", "seeds-continuous")]
    known = recipes_by_name()
    links = [f"{known[name].file.parent.name} [{name}](../recipes/{known[name].name}.diff)" for name in names]
    return ", ".join(part for part in [" ".join(words), *links] if part)


def rows(results=RESULTS):
    """The lines of the table, in descending order of the return at the end."""
    found = []
    for (_, script, _, options, _), runs in load_finished(results / "collapse").items():
        followed = [after_threshold(run) for run in runs]
        reached = [each for each in followed if each is not None]
        cells = [describe(script, json.loads(options)), f"{len(reached)} of {len(runs)}"]
        if reached:
            steps, lowest, last = zip(*reached, strict=True)
            cells += [f"{np.median(steps) / 1000:.0f}k", mean_and_interval(lowest), mean_and_interval(last)]
            found.append((np.mean(last), f"| {' | '.join(cells)} |"))
        else:
            found.append((-np.inf, f"| {' | '.join(cells)} |  |  |  |"))
    lines = [
        "| with | reached 475 | median step | lowest return after that | return at the end |",
        "|---|---:|---:|---|---|",
    ]
    return lines + [line for _, line in sorted(found, reverse=True)]
