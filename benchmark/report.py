"""Writes what benchmark/results hold as one HTML file that needs no network; the README's table of scores and picture.

    python benchmark/report.py

Everything is computed from the results: final scores, learning curves, whether ours and ppo2 can be told apart. A
script of any name and every --exp-name has rows and curves of its own. What is in no score is named.
"""

import argparse
import csv
import html
import json
import lzma
import re
import sys
from collections import defaultdict
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import plotly.graph_objects as go
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator
from plotly.colors import qualitative
from plotly.offline import get_plotlyjs
from scipy import stats

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmark.collect import typed  # noqa: E402

# Our scripts in the order of the report, and which runs of ppo2 they repeat.
PAIRS = {
    "ppo": "ppo2_copy", "ppo_shared": "ppo2_shared", "ppo_continuous_action": "ppo2_mujoco", "ppo_atari": "ppo2_atari",
    "ppo_atari_lstm": "ppo2_lstm", "ppo_atari_envpool": None, "ppo_procgen": None, "ppo_multidiscrete": None,
    "ppo_multidiscrete_mask": None, "ppo_selfplay": None, "ppo_atari_multigpu": None,
    "ppo_atari_cleanba": None, "impala_atari_cleanba": None,
}  # fmt: skip
FIRST = {"CartPole-v1", "HalfCheetah-v4", "BreakoutNoFrameskip-v4", "Breakout-v5", "starpilot", "MicrortsMining-v1"}
# One of each kind of task, for the README's picture.
PICTURED = [
    ("ppo", "CartPole-v1"), ("ppo_continuous_action", "HalfCheetah-v4"), ("ppo_atari", "BreakoutNoFrameskip-v4"),
    ("ppo_atari_lstm", "BreakoutNoFrameskip-v4"), ("ppo_procgen", "starpilot"),
    ("ppo_multidiscrete_mask", "MicrortsMining-v1"),
]  # fmt: skip
COLORS = {"ours": "#3b7dd8", "ppo2": "#d9730d"}
GRAY = "#797979"  # text and axes: as far from white as from the black of dark pages
METRICS = {
    "length": "episode length", "policy_loss": "policy loss", "value_loss": "value loss", "entropy": "entropy",
    "approx_kl_ppo2": "approximate KL", "clipfrac": "clip fraction", "explained_variance": "explained variance",
    "SPS": "steps per second, since the start",
}  # fmt: skip
AXES = {"step": "steps", "seconds": "minutes of training"}
SAME_IDEA = {"total_timesteps", "bf16", "compile"}  # options with which a script is still compared as itself
POINTS = 150  # of a curve
WINDOW = 100  # episodes in a score
# The post's "best-reported performance of PPO in popular RL libraries", in the post's words and numbers.
GAMES = ["Breakout", "Pong", "BeamRider", "Hopper", "Walker2d", "HalfCheetah"]
POST = [
    ("Baselines pposgd / ppo1 (da99706)", "v1", "274.8", "20.7", "1590", "~2250", "~3000", "~1750"),
    ("Baselines ppo2 (7bfbcf1 and ea68f3b)", "v2", "114.26", "13.68", "1299.25", "2316.16", "3424.95", "1668.58"),
    ("Baselines ppo2 (ea25b9e)", "v2", "409.265 ± 30.98", "20.59 ± 0.40", "2627.96 ± 625.751",
     "2448.73 ± 596.13", "3142.24 ± 982.25", "2148.77 ± 1166.023"),
    ("Stable-Baselines3, 1 seed", "v3", "398.03 ± 33.28", "20.98 ± 0.10", "3397.00 ± 1662.36",
     "2410.43 ± 10.02", "3478.79 ± 821.70", "5819.09 ± 663.53"),
    ("CleanRL, MuJoCo 2M steps", "v2", "~402", "~20.39", "~2131", "~2685", "~3753", "~1683"),
    ("Ray/RLlib, Atari 25M, MuJoCo 44M steps", "v2", "201", "-", "4480", "-", "-", "9664"),
    ("SpinningUp, 3M steps", "v3", "-", "-", "-", "~2500", "~2500", "~3000"),
    ("ChainerRL, 2M steps", "v2", "-", "-", "-", "2719 ± 67", "2994 ± 113", "2404 ± 185"),
    ("Tianshou, 3M steps", "v3", "-", "-", "-", "7337.4 ± 1508.2", "3127.7 ± 413.0", "4895.6 ± 704.3"),
    ("Tonic, 5M steps", "v3", "-", "-", "-", "~2000", "~4500", "~5000"),
]  # fmt: skip


# What the post reports of ppo2 (ea25b9e), by environment.
IDS = [f"{game}{'NoFrameskip' if game in GAMES[:3] else ''}-v4" for game in GAMES]
PUBLISHED = dict(zip(IDS, POST[2][2:], strict=True))


# {game: (score of random play, score of a human)}, by which Atari scores are usually normalised; benchmark/README.md.
with open(Path(__file__).with_name("atari_human.csv")) as file:
    HUMAN = {row["game"]: (float(row["random"]), float(row["human"])) for row in csv.DictReader(file)}


class Run(NamedTuple):
    """A run: its .json, and its tables as {column: float64 [rows]}."""

    about: dict
    episodes: dict
    updates: dict

    @property
    def score(self):
        """Mean return of the last 100 episodes."""
        return float(self.episodes["return"][-WINDOW:].mean())

    @property
    def finished(self):
        return self.about["steps"] == self.about["steps_wanted"]


def read_table(path):
    """{column: float64 [rows]} of a compressed CSV."""
    with lzma.open(path, "rt") as file:
        names = file.readline().strip().split(",")
        rows = np.loadtxt(file, delimiter=",", ndmin=2)
    return dict(zip(names, rows.reshape(-1, len(names)).T, strict=True))


def load(results):
    """{("ours" or "ppo2", script, environment, options as JSON, steps wanted): [Run, ...]} of every run, by seed."""
    experiments = defaultdict(list)
    for path in sorted(Path(results).glob("*/*.json"), key=lambda path: path.name):
        about, side = json.loads(path.read_text()), path.parent.name
        tables = (read_table(f"{str(path)[:-5]}.{kind}.csv.xz") for kind in ("episodes", "updates"))
        options = about["options"] if side == "ours" else {}  # ppo2's have no defaults to differ from
        key = side, about["script"], about["env_id"], json.dumps(options), about["steps_wanted"]
        experiments[key].append(Run(about, *tables))
    for runs in experiments.values():
        runs.sort(key=lambda run: run.about["seed"])
    return dict(experiments)


class Experiment(NamedTuple):
    """What one script did on one environment, and ppo2's runs to compare with: none, or of as many steps."""

    script: str
    env_id: str
    options: dict
    ours: list
    ppo2: list

    @property
    def title(self):
        return f"{self.env_id} · {self.name}"

    @property
    def name(self):
        return " ".join([f"{self.script}.py", *map(typed, self.options.items())])

    @property
    def published(self):
        """ppo2's score in the post, or None."""
        return PUBLISHED.get(self.env_id) if self.script in ("ppo_atari", "ppo_continuous_action") else None

    @property
    def steps(self):
        """Steps that a run was made for, and how many there are where all were stopped."""
        wanted = max(run.about["steps_wanted"] for run in self.ours)
        most = max(run.about["steps"] for run in self.ours)
        return short(wanted) if most == wanted else f"{short(most)} of {short(wanted)}"

    @property
    def done(self):
        """The finished runs, or where none is those that came furthest."""
        most = max(run.about["steps"] for run in self.ours)
        return [run for run in self.ours if run.finished or run.about["steps"] == most]


def short(steps):
    """499712 as "500k", 999424 as "1M"."""
    return f"{round(steps / 1e6, 1):g}M" if steps >= 950_000 else f"{steps / 1e3:.0f}k"


def experiments_of(found):
    """A list of Experiment from what load() found: the known scripts in their order, then copies by name."""
    table = []
    for (side, script, env_id, options, wanted), runs in found.items():
        if side == "ours":
            ppo2 = found.get(("ppo2", PAIRS.get(script), env_id, "{}", wanted), [])
            ppo2 = [run for run in ppo2 if run.finished]
            ppo2 = ppo2 if any(run.finished for run in runs) else []
            table.append(Experiment(script, env_id, json.loads(options), runs, ppo2))
    known = list(PAIRS)

    def place(one):
        order = known.index(one.script) if one.script in known else len(known)
        furthest = max(run.about["steps"] for run in one.ours)
        return order, one.script, one.env_id not in FIRST, one.env_id, -furthest, str(one.options)

    return sorted(table, key=place)


def left_out(found, experiments):
    """A line for each run that is in no score, with the reason."""
    scored = {id(run) for one in experiments for run in [*one.done, *one.ppo2]}
    lines = []
    for (_, script, env_id, options, wanted), runs in found.items():
        for run in runs:
            if id(run) not in scored:
                name = " ".join([script, *map(typed, json.loads(options).items())])
                why = f"stopped at {run.about['steps']:,} of {wanted:,} steps"
                if run.finished:
                    why = f"{wanted:,} steps, there are no runs of ours of as many"
                lines.append(f"{env_id}, {name}, seed {run.about['seed']}: {why}")
    return lines


def iqm(scores, axis=-1):
    """Interquartile mean: the mean without the lowest and the highest quarter."""
    return stats.trim_mean(scores, 0.25, axis=axis)


def interval(samples, statistic):
    """95% percentile interval of statistic(*samples), from a bootstrap that draws anew within each sample.

    With a sample for each environment this is the stratified bootstrap; None where a sample is a single run, or
    where the only one has fewer than 5: of 3 it would be their range, which holds the centre 75% of the time."""
    if min(map(len, samples)) < 2 or (len(samples) == 1 and len(samples[0]) < 5):
        return None
    options = dict(n_resamples=5000, paired=False, vectorized=True, method="percentile", rng=np.random.default_rng(1))
    return stats.bootstrap(samples, statistic, **options).confidence_interval


class Comparison(NamedTuple):
    """Scores of one experiment beside another's; all None but the verdict where no score has any spread to test by."""

    verdict: str
    welch: float | None  # p of Welch's t-test, two-sided
    mann_whitney: float | None  # p of the Mann-Whitney U test, two-sided
    visible: float | None  # the difference of the means that Welch's test would show 8 times out of 10


def compare(first, second, name="ours"):
    """Whether two sets of scores can be told apart at the 5% level; None where one has fewer than two runs.

    The verdict is Welch's t-test's, on the first, called `name`; the U test can reject nothing at 3 runs beside 3."""
    if min(len(first), len(second)) < 2:
        return None
    spreads = [np.std(scores, ddof=1) for scores in (first, second)]
    if max(map(np.ptp, (first, second))) == 0:  # a deviation would not be exactly 0
        same = first[0] == second[0]
        return Comparison("every run scores the same" if same else "every run differs, by the same", None, None, None)
    welch = stats.ttest_ind(first, second, equal_var=False)
    verdict = "cannot be told apart"
    if welch.pvalue < 0.05:
        verdict = f"{name} is {'better' if np.mean(first) > np.mean(second) else 'worse'}"
    u = stats.mannwhitneyu(first, second).pvalue
    return Comparison(verdict, welch.pvalue, u, visible_difference(spreads, (len(first), len(second))))


def visible_difference(spreads, sizes):
    """The smallest difference of two means that Welch's t-test at the 5% level finds with power 80%.

    Of 20,000 pairs of normal samples of these standard deviations and sizes: a difference is found where the confidence
    interval, which moves with it, lies above 0."""
    rng = np.random.default_rng(1)
    first, second = (rng.normal(0, spread, (20_000, size)) for spread, size in zip(spreads, sizes, strict=True))
    bounds = stats.ttest_ind(first, second, axis=1, equal_var=False).confidence_interval(0.95)
    return float(np.quantile(-bounds.low, 0.8))


def scores(runs):
    """Final scores, float64 [runs]."""
    return np.array([run.score for run in runs])


def compared(experiment):
    """The Comparison of an experiment's finished runs, or None."""
    return compare(scores(experiment.done), scores(experiment.ppo2)) if experiment.ppo2 else None


def number(value, like=None):
    """A number with the decimals that suit its size, or that of `like`."""
    size = abs(value if like is None else like)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def p_value(p):
    """"0.041", or "<0.001"."""
    return f"{p:.3f}" if p >= 0.0005 else "<0.001"


def mean_and_spread(runs):
    """"478 ± 13 (5)": mean and sample standard deviation over the runs, and how many; empty without runs."""
    if not runs:
        return ""
    values = scores(runs)
    spread = f" ± {number(values.std(ddof=1), values.mean())}" if len(values) > 1 else ""
    return f"{number(values.mean())}{spread} ({len(values)})"


def iqm_and_interval(runs):
    """"479 [467, 490]", or without the interval where there are fewer than 5 runs."""
    if not runs:
        return ""
    values = scores(runs)
    bounds = interval((values,), iqm)
    middle = iqm(values)
    return number(middle) + (f" [{number(bounds[0], middle)}, {number(bounds[1], middle)}]" if bounds else "")


def all_together(experiments):
    """(interquartile mean, its stratified 95% interval, environments) of our scores, over environments; or None.

    0 is the mean of the first 100 episodes of ppo2's runs and 1 is ppo2's score, so where ppo2 learns nothing it says
    nothing."""
    samples = []
    for one in experiments:
        if compared(one) is not None and one.options.keys() <= SAME_IDEA and one.script in PAIRS:
            low = np.mean([run.episodes["return"][:WINDOW].mean() for run in one.ppo2])
            high = scores(one.ppo2).mean()
            if high > low:
                samples.append((scores(one.done) - low) / (high - low))
    if not samples:
        return None

    def over_all(*samples, axis=-1):
        return iqm(np.concatenate(samples, axis=axis), axis=axis)

    return over_all(*samples), interval(samples, over_all), len(samples)


def human_scores(experiments):
    """{(script and options, steps): {game: scores of finished runs, float64 [runs]}} on Atari games, normalised.

    0 is the score of random play and 1 that of a human."""
    found = defaultdict(dict)
    for one in experiments:
        game = re.sub(r"^ALE/|(NoFrameskip)?-v\d+$", "", one.env_id)
        finished = [run for run in one.ours if run.finished]
        if game in HUMAN and finished:
            random, human = HUMAN[game]
            found[one.name, one.steps][game] = (scores(finished) - random) / (human - random)
    return dict(found)


def over_games(games):
    """[(name, value, its 95% interval or None), ...] of {game: normalised scores}: median and interquartile mean.

    The median is that of the games' means; the interquartile mean is that of all runs of all games. The interval is of
    the stratified bootstrap, which draws anew among each game's runs (Agarwal et al., 2021)."""

    def median(*samples, axis=-1):
        return np.median([sample.mean(axis=axis) for sample in samples], axis=0)

    def middle(*samples, axis=-1):
        return iqm(np.concatenate(samples, axis=axis), axis=axis)

    samples = list(games.values())
    return [
        (name, statistic(*samples), interval(samples, statistic))
        for name, statistic in (("median", median), ("IQM", middle))
    ]


def readme_table(experiments):
    """The lines of README.md's table of scores."""
    lines = ["| script | environment | steps | ours | `ppo2` | ours and `ppo2` |", "|---|---|---|---|---|---|"]
    for one in experiments:
        comparison, verdict = compared(one), ""
        if comparison:
            verdict = comparison.verdict
        if comparison and comparison.visible is not None:
            verdict += f"; {number(comparison.visible, one.done[0].score)} would show"
        options = "".join(f" `{typed(option)}`" for option in one.options.items())
        ppo2 = "; ".join(filter(None, [mean_and_spread(one.ppo2), published(one)]))
        cells = [f"`{one.script}.py`{options}", one.env_id, one.steps, mean_and_spread(one.done), ppo2, verdict]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def published(experiment):
    """"published: 409 ± 31", or empty."""
    if experiment.published is None:
        return ""
    mean, spread = map(float, experiment.published.split(" ± "))
    return f"published: {number(mean)} ± {number(spread, mean)}"


def put_into_readme(text, lines):
    """The README's text with these lines between its two marks."""
    before, _, after = re.split(r"(?s)(?<=<!-- scores -->\n)(.*?)(?=<!-- /scores -->)", text)
    return before + "\n".join(lines) + "\n" + after


# CURVES


def last_100(episodes, column):
    """Mean over the last 100 episodes, or over as many as there are, after each episode."""
    total = np.concatenate([[0.0], np.cumsum(episodes[column])])
    ends = np.arange(1, len(total))
    starts = np.maximum(ends - WINDOW, 0)
    return (total[ends] - total[starts]) / (ends - starts)


def curve_of(run, name, axis):
    """(x, y) of a run: what it logged as `name`, against "step" or "seconds"."""
    if name in ("return", "length"):
        return run.episodes[axis], last_100(run.episodes, name)
    if name == "SPS":
        return run.updates[axis], run.updates["step"] / np.maximum(run.updates["seconds"], 0.1)
    return run.updates[axis], run.updates[name]


def sample(run, name, axis, grid):
    """A run's curve at the points of a grid, float64 [points]; NaN before its first value and after its end.

    What is logged for each update is the mean since the point before, or the last one where nothing new was logged."""
    x, y = curve_of(run, name, axis)
    last = np.searchsorted(x, grid, side="right") - 1
    values = y[np.maximum(last, 0)]
    if name not in ("return", "length", "SPS"):  # those are means already
        total = np.concatenate([[0.0], np.cumsum(y)])
        before = np.concatenate([[-1], last[:-1]])
        new = last > before
        values[new] = ((total[last + 1] - total[before + 1]) / np.maximum(last - before, 1))[new]
    ended = grid > run.updates[axis][-1] * (1 + 1e-9)
    return np.where((last < 0) | ended, np.nan, values)


def curves(runs, name, axis, points=POINTS):
    """(grid, values [runs, points], mean, half the width of its 95% band or None): the band from 3 runs on.

    The mean reaches as far as the shortest run; the band is Student's t interval."""
    grid = np.linspace(0, max(run.updates[axis][-1] for run in runs), points + 1)[1:]
    values = np.array([sample(run, name, axis, grid) for run in runs])
    half = None
    if len(runs) > 2:
        half = stats.t.ppf(0.975, len(runs) - 1) * values.std(0, ddof=1) / len(runs) ** 0.5
    return grid, values, values.mean(0), half


def lines_of(runs, name, axis, color, label):
    """The traces of some runs' curves: each run thin, their mean thick, from 3 runs on its band."""
    grid, values, mean, half = curves(runs, name, axis)
    grid = grid / 60 if axis == "seconds" else grid
    grid, values, mean = (x.astype(np.float32) for x in (grid, values, mean))
    look, traces = dict(mode="lines", legendgroup=label), []
    if half is not None and name == "return":
        known = ~np.isnan(mean)
        x, low, high = grid[known], (mean - half)[known], (mean + half)[known]
        around = np.concatenate([low, high[::-1]]).astype(np.float32)
        traces.append(go.Scatter(x=np.concatenate([x, x[::-1]]), y=around, fill="toself", fillcolor=color, opacity=0.18,
                                 line_width=0, hoverinfo="skip", showlegend=False, **look))  # fmt: skip
    for run, each in zip(runs, values, strict=True):
        line = dict(color=color, width=1)
        traces.append(go.Scatter(x=grid, y=each, name=f"{label}, seed {run.about['seed']}", line=line, opacity=0.35,
                                 showlegend=False, **look))  # fmt: skip
    thick = dict(name=f"{label} ({len(runs)})", line=dict(color=color, width=2.5))
    return [*traces, go.Scatter(x=grid, y=mean, **thick, **look)]


def figure_of(traces, x, y, legend=False):
    """A chart with titled axes."""
    figure = go.Figure(traces, dict(template="none", paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)"))
    figure.update_layout(font=dict(color=GRAY, size=12), margin=dict(l=60, r=10, t=30 if legend else 10, b=40),
                         showlegend=legend, legend=dict(orientation="h", x=0, y=1, yanchor="bottom"))  # fmt: skip
    grid = dict(gridcolor="rgba(128,128,128,.25)", zerolinecolor="rgba(128,128,128,.5)")
    figure.update_xaxes(title_text=x, rangemode="tozero", **grid).update_yaxes(title_text=y, **grid)
    return figure


def charts_of(experiment):
    """The charts of an experiment: returns against steps and minutes, the other metrics against steps."""
    sides = [(side, runs) for side, runs in (("ppo2", experiment.ppo2), ("ours", experiment.ours)) if runs]
    returned = f"mean return of the last {WINDOW} episodes"
    for name, axis, y in [("return", "step", returned), ("return", "seconds", returned),
                          *((name, "step", label) for name, label in METRICS.items())]:  # fmt: skip
        able = [(side, [run for run in runs if name in run.episodes or name in run.updates]) for side, runs in sides]
        traces = [lines_of(runs, name, axis, COLORS[side], side) for side, runs in able if runs]
        if traces:
            yield figure_of(sum(traces, []), AXES[axis], y, legend=name == "return")


def chart_together(experiments):
    """The returns of several experiments on one environment in one chart, a colour each."""
    colored = zip(experiments, cycle(qualitative.D3), strict=False)
    traces = [lines_of(one.ours, "return", "step", color, one.name) for one, color in colored]
    return figure_of(sum(traces, []), "steps", f"mean return of the last {WINDOW} episodes", legend=True)


def picture(experiments, path):
    """Writes the README's picture: returns of one experiment of each kind of task, and ppo2's, as SVG.

    Its background is transparent and its colours are readable on white and on black."""
    most = lambda one: max(run.about["steps"] for run in one.ours)  # noqa: E731
    known = [one for one in experiments if one.options.keys() <= SAME_IDEA]
    found = [[one for one in known if (one.script, one.env_id) == pictured] for pictured in PICTURED]
    panels = [max(candidates, key=most) for candidates in found if candidates]
    settings = {"svg.hashsalt": "ppo", "svg.fonttype": "none", "font.size": 8.5, "axes.titlesize": 9}
    settings["font.sans-serif"] = ["DejaVu Sans", "Verdana", "sans-serif"]  # as wide as each other
    colored = ["text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color"]
    with matplotlib.rc_context(settings | dict.fromkeys(colored, GRAY)):
        rows = -(-len(panels) // 3)
        figure = Figure(figsize=(9, 2.55 * rows), layout="constrained")
        for i, one in enumerate(panels):
            axes = figure.add_subplot(rows, 3, i + 1)
            for side, runs in (("ppo2", one.ppo2), ("ours", one.ours)):
                if runs:
                    grid, values, mean, half = curves(runs, "return", "step", points=100)
                    label = f"{side}, {len(runs)} run{'s' * (len(runs) > 1)}"
                    axes.plot(grid, mean, color=COLORS[side], linewidth=1.6, label=label)
                    if half is not None:
                        axes.fill_between(grid, mean - half, mean + half, color=COLORS[side], alpha=0.2, linewidth=0)
            if one.published is not None and not one.ppo2:
                score = float(one.published.split()[0])
                axes.axhline(score, color=COLORS["ppo2"], linestyle="--", linewidth=1.2, label="ppo2, published")
            others = "".join(f" {typed(option)}" for option in one.options.items() if option[0] != "total_timesteps")
            others = re.sub(r"( True)?(, from step \d+ [^ ,]+)+", " at first", others)  # changed at a resume
            axes.set_title(f"{one.env_id}\n{one.script}.py{others}, {one.steps}", linespacing=1.3)
            axes.set_xlim(0)
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(color=GRAY, alpha=0.2, linewidth=0.6)
            axes.legend(frameon=False, fontsize=7.5)
        figure.supxlabel("steps", fontsize=8.5, color=GRAY)
        figure.supylabel(f"mean return of the last {WINDOW} episodes", fontsize=8.5, color=GRAY)
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None, "Creator": None})


# THE PAGE


def statement(experiment):
    """What can be said of an experiment beside ppo2, in a sentence or two."""
    ours = f"Ours {mean_and_spread(experiment.done)} after {experiment.steps} steps"
    if not experiment.ppo2:
        text = f"{ours}; there are no runs of ppo2 of as many steps to compare with."
        if experiment.published:
            text += f" Published, measured elsewhere and not tested: {experiment.published}."
        return text
    text = f"{ours}, ppo2 {mean_and_spread(experiment.ppo2)}"
    text += f" ({published(experiment)})" if experiment.published else ""
    comparison = compared(experiment)
    if comparison is None:
        return f"{text}: too few runs to compare."
    if comparison.visible is None:
        return f"{text}: {comparison.verdict}; without any spread there is nothing to test."
    welch, u = map(p_value, (comparison.welch, comparison.mann_whitney))
    ps = f"Welch's t-test, p = {welch}; Mann-Whitney U test, p = {u}".replace("= <", "< ")
    seen = number(comparison.visible, experiment.done[0].score)
    return f"{text}: {comparison.verdict} ({ps}). A difference of {seen} would be seen 8 times out of 10."


def table(header, rows, name=""):
    """An HTML table, without the columns that are empty; a cell that is a pair is (class, text)."""
    cells = [[cell if isinstance(cell, tuple) else ("", cell) for cell in row] for row in rows]
    kept = [i for i in range(len(header)) if any(str(row[i][1]) for row in cells)]

    def line(row):
        return "".join(f'<td class="{row[i][0]}">{html.escape(str(row[i][1]))}</td>' for i in kept)

    head = "".join(f"<th>{html.escape(header[i])}</th>" for i in kept)
    body = "\n".join(f"<tr>{line(row)}</tr>" for row in cells)
    return f"<div class=scroll><table id='{name}'><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"


def score_rows(experiments):
    for one in experiments:
        comparison = compared(one)
        verdict, ps, visible = ("", ""), "", ""
        if comparison:
            kind = {"ours is worse": "bad", "ours is better": "good"}.get(comparison.verdict, "")
            verdict = (kind, comparison.verdict)
        if comparison and comparison.visible is not None:
            visible = number(comparison.visible, one.done[0].score)
            ps = f"{p_value(comparison.welch)} / {p_value(comparison.mann_whitney)}"
        ppo2 = "\n".join(filter(None, [mean_and_spread(one.ppo2), iqm_and_interval(one.ppo2), published(one)]))
        ours = f"{mean_and_spread(one.done)}\n{iqm_and_interval(one.done)}"
        yield ("wrap", f"{one.env_id}\n{one.name}"), one.steps, ours, ppo2, verdict, visible, ps


def post_rows(experiments):
    """The post's table, and below it what was measured here for the same games and robots."""
    # Of several experiments the one that got furthest, which comes first
    same = {one.env_id: one for one in reversed(experiments) if one.env_id in IDS
            and one.options.keys() <= {"bf16", "compile"}
            and one.script in ("ppo_atari", "ppo_continuous_action")}  # fmt: skip
    rows = [(("wrap", name), *cells) for name, *cells in POST]
    for side, name in (("ppo2", "ppo2 (ea25b9e), run here, 1M steps"), ("done", "ours, run here, MuJoCo 1M steps")):
        cells = []
        for env_id in IDS:
            runs = getattr(same[env_id], side) if env_id in same else []
            stopped = "" if all(run.finished for run in runs) else f" after {same[env_id].steps}"
            cells.append(mean_and_spread(runs) + stopped if runs else "-")
        if set(cells) != {"-"}:
            rows.append([("here wrap", name), *(("here", cell) for cell in ("v4", *cells))])
    return rows


def run_rows(found):
    for runs in found.values():
        for run in runs:
            about = run.about
            machine = about["machine"] or "unknown"
            if isinstance(machine, dict):
                machine = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in machine.items() if value)
            versions = about["versions"]
            framework = f"torch {versions['torch']}" if "torch" in versions else f"tensorflow {versions['tensorflow']}"
            commits = []
            for text in (about, *about.get("resumed", ())):
                recipe = f" with {Path(text['recipe']).name}" if "recipe" in text else ""
                since = f"from {text['step']:,} " if text is not about else ""
                commits.append(f"{since}{(text['commit'] or 'not committed')[:13]}{recipe}")
            commits = ", ".join(commits)
            yield (about["env_id"], about["script"], about["seed"],
                   ("" if run.finished else "bad", f"{about['steps']:,} of {about['steps_wanted']:,}"),
                   f"{run.updates['seconds'][-1] / 60:.1f}", number(run.score), about["command"],
                   commits, framework, machine)  # fmt: skip


STYLE = """
:root { color-scheme: light dark; --line: light-dark(#ddd, #444); --here: light-dark(#eef3fb, #1c2a40) }
body { font: 16px/1.5 system-ui, sans-serif; color: light-dark(#1c1c1e, #e3e3e6); background: light-dark(#fff, #121214);
  max-width: 1400px; margin: 0 auto; padding: 1rem }
a { color: light-dark(#0550ae, #7ab7ff) }
h1 { margin-bottom: 0 } h2 { margin: 2.2rem 0 .3rem } h3 { margin: 2rem 0 0 }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top }
th { border-bottom: 2px solid #888; white-space: nowrap } td { white-space: pre }
td.wrap { white-space: pre-line; min-width: 12rem; max-width: 24rem }
th.sorts { cursor: pointer } th[aria-sort=ascending]::after { content: " ▲" }
th[aria-sort=descending]::after { content: " ▼" }
.scroll { overflow-x: auto } .here { background: var(--here); font-weight: 600 }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(300px, 100%), 1fr)); gap: .3rem }
.chart { height: 240px; min-width: 0 } .chart.wide { height: 380px }
@media (min-width: 700px) { .charts .wide { grid-column: span 2 } }
.beside { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(600px, 100%), 1fr)); gap: 1rem }
section { min-width: 0 } h3, p, nav { overflow-wrap: anywhere }
.bad { color: light-dark(#b3261e, #ff8a80); font-weight: 600 }
.good { color: light-dark(#1b7f3b, #6fdc8c); font-weight: 600 }
nav { columns: 3; font-size: 14px } nav a { display: block } p { max-width: 60rem; margin: .4rem 0 }
input { font: inherit; width: min(30rem, 100%); box-sizing: border-box; margin: .4rem 0 }
@media (max-width: 800px) { nav { columns: 1 } }
"""

DRAW = """
const observer = new IntersectionObserver(seen => seen.filter(one => one.isIntersecting).forEach(one => {
  observer.unobserve(one.target);
  const figure = JSON.parse(one.target.nextElementSibling.textContent);
  Plotly.newPlot(one.target, figure.data, figure.layout, {responsive: true, displayModeBar: false});
}), {rootMargin: "600px"});
document.querySelectorAll(".chart").forEach(chart => observer.observe(chart));

const runs = document.getElementById("runs"), body = runs.tBodies[0], rows = [...body.rows];
const number = text => /^-?[\\d,.]+( of [\\d,]+)?$/.test(text) ? parseFloat(text.replaceAll(",", "")) : NaN;
const compare = (a, b) => isNaN(number(a) - number(b)) ? a.localeCompare(b) : number(a) - number(b);
const heads = [...runs.tHead.rows[0].cells];
heads.forEach((head, i) => {
  head.className = "sorts";
  head.onclick = () => {
    const down = head.ariaSort === "ascending", text = row => row.cells[i].textContent;
    heads.forEach(other => other.ariaSort = null);
    head.ariaSort = down ? "descending" : "ascending";
    body.append(...rows.sort((a, b) => (down ? -1 : 1) * compare(text(a), text(b))));
  };
});
const filter = document.getElementById("filter"), count = document.getElementById("count");
filter.oninput = () => {
  const words = filter.value.toLowerCase().split(/\\s+/);
  rows.forEach(row => row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word)));
  count.textContent = `${rows.filter(row => !row.hidden).length} of ${rows.length} runs`;
};
filter.oninput();
"""


def chart(figure, kind=""):
    """A place for a figure, which is drawn once it comes into sight."""
    content = figure.to_json().replace("</", "<\\/")
    return f'<div class="chart {kind}"></div><script type="application/json">{content}</script>'


def beside(experiments):
    """A section with a chart for each environment that has several experiments, or nothing."""
    charts = []
    for env_id in dict.fromkeys(one.env_id for one in experiments):
        same = [one for one in experiments if one.env_id == env_id]
        if len(same) > 1:
            charts.append(f"<section><h3>{html.escape(env_id)}</h3>{chart(chart_together(same), 'wide')}</section>")
    return f"""<h2>Experiments on the same environment</h2>
<p>Ours, a colour for each. <code>benchmark/compare.py</code> tests whether two of them can be told apart.</p>
<div class="beside">{"".join(charts)}</div>""" if charts else ""


def beside_humans(experiments):
    """A section on the scores of Atari games beside those of humans, or nothing."""
    found = human_scores(experiments)
    if not found:
        return ""
    summary, by_game = [], []
    for (name, steps), games in found.items():
        row = [name, steps, len(games)]
        for _, value, bounds in over_games(games):
            row.append(f"{value:.2f}" + (f" [{bounds[0]:.2f}, {bounds[1]:.2f}]" if bounds else ""))
        summary += [row] if len(games) > 1 else []
        by_game += [[game, name, steps, f"{each.mean():.2f} ({len(each)})"] for game, each in games.items()]
    together = f"""<p>Over all games: the median of the games' means, and the interquartile mean (IQM) of all runs, with
95% intervals by a bootstrap that draws among each game's runs (Agarwal et al., 2021).</p>
{table(["experiment", "steps", "games", "median", "IQM"], summary)}""" if summary else ""
    return f"""<h2>Atari scores beside humans</h2>
<p>Human-normalised: 0 is the score of random play and 1 that of a human tester, as DQN Zoo lists them. Means over
finished runs (number of runs).</p>
{together}
{table(["game", "experiment", "steps", "normalised score"], sorted(by_game))}"""


def page(found):
    """The report on what load() found, as one text of HTML."""
    experiments = experiments_of(found)
    tested = [comparison for one in experiments if (comparison := compared(one)) is not None]
    counts = {verdict: sum(one.verdict == verdict for one in tested) for verdict in {one.verdict for one in tested}}
    summary = "; ".join(f"{verdict}: {count}" for verdict, count in sorted(counts.items())) or "none yet"
    together = all_together(experiments)
    over_all = ""
    if together:
        middle, bounds, environments = together
        limits = f", 95% interval [{bounds[0]:.2f}, {bounds[1]:.2f}] by stratified bootstrap" if bounds else ""
        over_all = (
            f"<p>Over the {environments} comparisons in which ppo2 learns anything, with 0 the mean return of its "
            f"first {WINDOW} episodes and 1 its final score, the interquartile mean of ours is {middle:.2f}{limits}. "
            "The interval is over our runs alone, and takes ppo2's means of 3 runs or so for exact.</p>"
        )
    sections, links = [], []
    for i, one in enumerate(experiments):
        comparison = compared(one)
        kind = {"ours is worse": "bad", "ours is better": "good"}.get(comparison and comparison.verdict, "")
        title = html.escape(one.title)
        links.append(f'<a href="#e{i}" class="{kind}">{title}</a>')
        charts = "\n".join(chart(figure, "wide" if j < 2 else "") for j, figure in enumerate(charts_of(one)))
        sections.append(
            f'<h3 id="e{i}">{title}, {one.steps} steps</h3>\n<p class="{kind}">{html.escape(statement(one))}</p>\n'
            f'<div class="charts">{charts}</div>'
        )
    others = "".join(f"<li>{html.escape(line)}</li>" for line in left_out(found, experiments))
    others = f"<p>In no score:</p><ul>{others}</ul>" if others else ""
    post = post_rows(experiments)
    libraries = f"""<h2>Other libraries</h2>
<p>The first rows are the table of the blog post on PPO's implementation details (Huang et al., 2022), which collects
the best scores that each library reports: with other versions of the environments, other numbers of steps and seeds, in
part other hyperparameters. None of those numbers was measured here. The marked rows were.</p>
{table(["library", "MuJoCo", *GAMES], post)}""" if len(post) > len(POST) else ""
    header = ["experiment", "steps", "ours, IQM", "ppo2, IQM", "verdict", "visible difference", "p: Welch / U"]
    runs = ["environment", "script", "seed", "steps", "minutes", "score", "command", "commit", "framework", "machine"]
    scored = table(header, score_rows(experiments))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>PPO: ours and ppo2</title><style>{STYLE}</style><script>{get_plotlyjs()}</script></head><body>
<h1>PPO: ours and ppo2</h1>
<p>Runs of the scripts of this project beside runs of openai/baselines' ppo2 (ea25b9e). Comparisons: {summary}.</p>
{over_all}
<h2>Final scores</h2>
<p>A score is the mean return of the last {WINDOW} episodes of a run. Given are mean ± sample standard deviation over
runs (number of runs), and below it the interquartile mean (IQM), from 5 runs on with its 95% interval, bootstrapped
over the runs; of 3 runs or fewer it is the mean. The verdict is that of Welch's t-test, two-sided, at the 5% level; one
in twenty such tests goes wrong by chance where there is no difference. The visible difference is the smallest one that
this test finds with a power of 80%, so 8 times out of 10, with so many runs of that spread; a smaller one may well be
there unseen. With 3 runs of each the Mann-Whitney U test, whose p is given too, can reject nothing. Runs that were
stopped early are marked with the steps that they did, and are not tested; nor are published scores, which the post on
implementation details (Huang et al., 2022) reports of ppo2: they were measured elsewhere, with older versions of the
environments.</p>
{scored}
{others}
{beside_humans(experiments)}
{libraries}
{beside(experiments)}
<h2>Curves</h2>
<p>Blue is ours, orange is ppo2. Thin lines are runs, thick ones their mean as far as all of them reach; the band is
the 95% confidence interval of the mean (Student's t). Drag to zoom, double-click to go back, click the legend to hide
a side. Minutes and steps per second depend on the machine and on what else it did, see the list of runs. KL is half the
mean square of the log ratio, as ppo2 logs it.</p>
<nav>{"".join(links)}</nav>
{"".join(sections)}
<h2>Runs</h2>
<p>A click on a column's title sorts by it. <span id="count"></span></p>
<input id="filter" type="search" placeholder="only runs with all of these words" aria-label="words of a run">
{table(runs, run_rows(found), "runs")}
<script>{DRAW}</script></body></html>
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "benchmark" / "results")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmark" / "report.html")
    parser.add_argument("--readme", action="store_true", help="write the README's table and docs/curves.svg too")
    args = parser.parse_args()
    found = load(args.results)
    if not found:
        raise SystemExit(f"error: {args.results} holds no runs; collect.py puts them there")
    experiments = experiments_of(found)
    args.output.write_text(page(found))
    if args.readme:
        readme = ROOT / "README.md"
        readme.write_text(put_into_readme(readme.read_text(), readme_table(experiments)))
        picture(experiments, ROOT / "docs" / "curves.svg")
    for line in left_out(found, experiments):
        print(f"in no score: {line}")
    print(f"{args.output}: {args.output.stat().st_size / 1e6:.1f} MB, open it in a browser")


if __name__ == "__main__":
    main()
