"""Learning curves of runs, and the style of all pictures: SVG without a background, for light and dark pages."""

import math
import textwrap

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator
from scipy import stats

from benchmark.results import WINDOW

COLORS = {"ours": "#3b7dd8", "ppo2": "#d9730d"}
CYCLE = ["#3b7dd8", "#d9730d", "#2a9d57", "#c94f4f", "#8f6bc4", "#8d7355", "#c45fa5", "#6f7f1e", "#1e93a6"]
LEGEND_WIDTH = 75  # characters
GRAY = "#797979"  # text and axes: as far from white as from the black of dark pages
MEANS = {"return", "length", "SPS"}  # the metrics that are means over many episodes or steps already


def last_100(episodes, column):
    """After each episode, the mean over the last 100 episodes, or over all if there are fewer.

    NaN and infinity spoil the means that have them, and no later ones."""
    values = np.asarray(episodes[column], np.float64)
    if not np.isfinite(values).all():
        return np.array([values[max(end - WINDOW, 0) : end].mean() for end in range(1, len(values) + 1)])
    total = np.concatenate([[0.0], np.cumsum(episodes[column])])
    ends = np.arange(1, len(total))
    starts = np.maximum(ends - WINDOW, 0)
    return (total[ends] - total[starts]) / (ends - starts)


def curve_of(run, name, axis):
    """(x, y) of a run: its values of `name` against "step" or "seconds"."""
    if name in ("return", "length"):
        return run.episodes[axis], last_100(run.episodes, name)
    if name == "SPS":
        return run.updates[axis], run.updates["step"] / np.maximum(run.updates["seconds"], 0.1)
    return run.updates[axis], run.updates[name]


def sample(run, name, axis, grid):
    """A run's curve at the points of a grid, float64 [points]; NaN before its first value and after its end.

    A value that is logged for each update is averaged since the previous point; without a new one the last is kept."""
    x, y = curve_of(run, name, axis)
    is_logged = np.isfinite(y)  # an update may lack the metric, and one NaN would spoil every later sum
    x = x[is_logged]
    y = y[is_logged]
    if not len(y):
        return np.full(len(grid), np.nan)
    last = np.searchsorted(x, grid, side="right") - 1  # the index of the last value up to each point; -1 before all
    values = y[np.maximum(last, 0)]
    if name not in MEANS:
        total = np.concatenate([[0.0], np.cumsum(y)])
        previous_last = np.concatenate([[-1], last[:-1]])  # the same for the previous point
        count = last - previous_last
        means = (total[last + 1] - total[previous_last + 1]) / np.maximum(count, 1)
        values = np.where(count > 0, means, values)
    ended = grid > run.updates[axis][-1] * (1 + 1e-9)
    return np.where((last < 0) | ended, np.nan, values)


def curves(runs, name, axis, points=100):
    """(grid, values [runs, points], mean, half the width of its 95% band or None): the band from 3 runs on.

    The mean reaches as far as the shortest run; the band is Student's t interval."""
    grid = np.linspace(0, max(run.updates[axis][-1] for run in runs), points + 1)[1:]
    values = np.array([sample(run, name, axis, grid) for run in runs])
    half = None
    if len(runs) > 2:
        half = stats.t.ppf(0.975, len(runs) - 1) * values.std(0, ddof=1) / len(runs) ** 0.5
    return grid, values, values.mean(0), half


def has_metric(run, name):
    """Whether a run has values of a metric."""
    return name in run.episodes or name in run.updates or name == "SPS"


def plot(axes, sides, name="return", axis="step", points=100, draws_each_run=False):
    """Draws a metric of [(label, colour, runs), ...]: the mean with its band and, with `draws_each_run`, every run.

    The x axis has steps, or where `axis` is "seconds", minutes."""
    for label, color, runs in sides:
        runs = [run for run in runs if has_metric(run, name)]
        if not runs:
            continue
        grid, values, mean, half = curves(runs, name, axis, points)
        if axis == "seconds":
            grid = grid / 60
        if draws_each_run and len(runs) > 1:
            axes.plot(grid, values.T, color=color, linewidth=0.6, alpha=0.35)
        count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        axes.plot(grid, mean, color=color, linewidth=1.6, label=f"{label}, {count}")
        if half is not None:
            axes.fill_between(grid, mean - half, mean + half, color=color, alpha=0.2, linewidth=0)
    axes.set_xlim(0)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    if axis == "step":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=GRAY, alpha=0.2, linewidth=0.6)


def write_picture(size, path, draw):
    """Writes what draw(figure) draws as SVG: no background, and colours that are readable on white and on black."""
    settings = {
        "svg.hashsalt": "ppo",
        "svg.fonttype": "none",
        "font.size": 8.5,
        "axes.titlesize": 9,
        "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],  # as wide as each other
    }
    for name in ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color"):
        settings[name] = GRAY
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None, "Creator": None})


def together(panels, path, columns=2):
    """Draws {environment: [(label, runs), ...]}: a panel for each environment, a colour for each experiment.

    A long label has several lines, and the picture is as much higher as the legends below the panels need."""
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)

    def draw(figure):
        lines = [0] * rows  # of the longest legend in a row
        for i, (env_id, sides) in enumerate(panels.items()):
            axes = figure.add_subplot(rows, columns, i + 1)
            colored = [(label, CYCLE[j % len(CYCLE)], runs) for j, (label, runs) in enumerate(sides)]
            plot(axes, colored)
            axes.set(title=env_id, xlabel="steps", ylabel=f"mean return of the last {WINDOW} episodes")
            legend = axes.legend(frameon=False, fontsize=7.5, loc="upper center", bbox_to_anchor=(0.5, -0.14))
            texts = legend.get_texts()
            for text in texts:
                text.set_text(textwrap.fill(text.get_text(), LEGEND_WIDTH, break_on_hyphens=False))
            row = i // columns
            lines[row] = max(lines[row], sum(text.get_text().count("\n") + 1 for text in texts))
        figure.set_size_inches(5.5 * columns, sum(3.8 + 0.17 * count for count in lines))

    write_picture((5.5 * columns, 4 * rows), path, draw)
