"""Writes what benchmark/results hold as one HTML file that needs no network, and the table of scores in README.md.

    python benchmark/report.py

Everything is computed from the results: final scores, learning curves, whether ours and ppo2 can be told apart.
"""

import argparse
import html
import json
import lzma
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots
from scipy import stats

ROOT = Path(__file__).parents[1]
# Our scripts in the order of the report, and which runs of ppo2 they repeat.
PAIRS = {
    "ppo": "ppo2_copy", "ppo_shared": "ppo2_shared", "ppo_continuous_action": "ppo2_mujoco", "ppo_atari": "ppo2_atari",
    "ppo_atari_lstm": "ppo2_lstm", "ppo_atari_envpool": None, "ppo_procgen": None, "ppo_multidiscrete": None,
    "ppo_multidiscrete_mask": None,
}  # fmt: skip
FIRST = {"CartPole-v1", "HalfCheetah-v4", "BreakoutNoFrameskip-v4", "Breakout-v5", "starpilot", "MicrortsMining-v1"}
COLORS = {"ours": "#1f5fbf", "ppo2": "#d9730d"}
METRICS = {
    "length": "episode length", "policy_loss": "policy loss", "value_loss": "value loss", "entropy": "entropy",
    "approx_kl_ppo2": "approximate KL", "clipfrac": "clip fraction", "explained_variance": "explained variance",
    "SPS": "steps per second, since the start",
}  # fmt: skip
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
    """{(script, environment, options as JSON): [Run, ...]} of every run, ours and ppo2's, by seed."""
    experiments = defaultdict(list)
    for path in sorted(Path(results).glob("*/*.json"), key=lambda path: path.name):
        about = json.loads(path.read_text())
        tables = (read_table(f"{str(path)[:-5]}.{kind}.csv.xz") for kind in ("episodes", "updates"))
        options = about["options"] if path.parent.name == "ours" else {}  # ppo2's have no defaults to differ from
        experiments[about["script"], about["env_id"], json.dumps(options)].append(Run(about, *tables))
    for runs in experiments.values():
        runs.sort(key=lambda run: run.about["seed"])
    return dict(experiments)


def typed(option):
    """The option (name, value) of a script as on its command line: "--num-envs 16", "--bf16" or "--no-anneal-lr"."""
    name, value = option[0].replace("_", "-"), option[1]
    return f"--{'' if value else 'no-'}{name}" if type(value) is bool else f"--{name} {value}"


class Experiment(NamedTuple):
    """What one script did on one environment, and ppo2's runs to compare with: none, or of as many steps."""

    script: str
    env_id: str
    options: dict
    ours: list
    ppo2: list

    @property
    def title(self):
        return " ".join([f"{self.env_id} · {self.script}.py", *map(typed, self.options.items())])

    @property
    def steps(self):
        """Steps that a run was made for, and how many there are where all were stopped."""
        wanted = max(run.about["steps_wanted"] for run in self.ours)
        most = max(run.about["steps"] for run in self.ours)
        return short(wanted) if most == wanted else f"{short(most)} of {short(wanted)}"

    @property
    def done(self):
        """The finished runs, or all where none is."""
        return [run for run in self.ours if run.finished] or self.ours


def short(steps):
    """499712 as "500k", 999424 as "1M"."""
    return f"{round(steps / 1e6, 1):g}M" if steps >= 950_000 else f"{steps / 1e3:.0f}k"


def experiments_of(results):
    """A list of Experiment, in the order of the scripts."""
    found = load(results)
    table = []
    for (script, env_id, options), ours in found.items():
        if script in PAIRS:
            ppo2 = found.get((PAIRS[script], env_id, "{}"), [])
            wanted = ours[0].about["steps_wanted"]
            ppo2 = [run for run in ppo2 if run.about["steps"] == wanted] if any(run.finished for run in ours) else []
            table.append(Experiment(script, env_id, json.loads(options), ours, ppo2))
    order = list(PAIRS).index
    return sorted(table, key=lambda one: (order(one.script), one.env_id not in FIRST, one.env_id, str(one.options)))


def iqm(scores, axis=-1):
    """Interquartile mean: the mean without the lowest and the highest quarter."""
    return stats.trim_mean(scores, 0.25, axis=axis)


def interval(samples, statistic):
    """95% percentile interval of statistic(*samples), from a bootstrap that draws anew within each sample.

    With a sample for each environment this is the stratified bootstrap; None where a sample is a single run."""
    if min(map(len, samples)) < 2:
        return None
    options = dict(n_resamples=5000, paired=False, vectorized=True, method="percentile", rng=np.random.default_rng(1))
    return stats.bootstrap(samples, statistic, **options).confidence_interval


class Comparison(NamedTuple):
    """Final scores of ours beside ppo2's."""

    verdict: str
    welch: float  # p of Welch's t-test, two-sided
    mann_whitney: float  # p of the Mann-Whitney U test, two-sided
    visible: float  # the difference of the means that Welch's test would show 8 times out of 10


def compare(ours, ppo2):
    """Whether two sets of final scores can be told apart at the 5% level; None where one has fewer than two runs.

    The verdict is Welch's t-test's, as the U test can reject nothing at 3 runs beside 3."""
    if min(len(ours), len(ppo2)) < 2:
        return None
    variances = [np.var(scores, ddof=1) / len(scores) for scores in (ours, ppo2)]
    if sum(variances) == 0:
        same = float(ours[0] == ppo2[0])
        return Comparison("every run scores the same" if same else "every run differs", same, same, 0.0)
    welch = stats.ttest_ind(ours, ppo2, equal_var=False)
    factor = stats.t.ppf(0.975, welch.df) + stats.t.ppf(0.8, welch.df)
    verdict = "cannot be told apart"
    if welch.pvalue < 0.05:
        verdict = "ours is better" if np.mean(ours) > np.mean(ppo2) else "ours is worse"
    u = stats.mannwhitneyu(ours, ppo2).pvalue
    return Comparison(verdict, welch.pvalue, u, factor * sum(variances) ** 0.5)


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


def mean_and_spread(runs):
    """"478 ± 13 (5)": mean and sample standard deviation over the runs, and how many; empty without runs."""
    if not runs:
        return ""
    values = scores(runs)
    spread = f" ± {number(values.std(ddof=1), values.mean())}" if len(values) > 1 else ""
    return f"{number(values.mean())}{spread} ({len(values)})"


def iqm_and_interval(runs):
    """"479 [467, 490]", or without the interval where there is one run."""
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
        if compared(one) is not None:
            low = np.mean([run.episodes["return"][:WINDOW].mean() for run in one.ppo2])
            high = scores(one.ppo2).mean()
            if high > low:
                samples.append((scores(one.done) - low) / (high - low))
    if not samples:
        return None

    def over_all(*samples, axis=-1):
        return iqm(np.concatenate(samples, axis=axis), axis=axis)

    return over_all(*samples), interval(samples, over_all), len(samples)


def readme_table(experiments):
    """The lines of README.md's table of scores."""
    lines = ["| script | environment | steps | ours | `ppo2` | told apart? |", "|---|---|---|---|---|---|"]
    for one in experiments:
        comparison = compared(one)
        verdict = f"{comparison.verdict}, p = {comparison.welch:.2f}" if comparison else ""
        options = "".join(f" `{typed(option)}`" for option in one.options.items())
        cells = [f"`{one.script}.py`{options}", one.env_id, one.steps]
        cells += [mean_and_spread(one.done), mean_and_spread(one.ppo2), verdict]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


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


def curves(runs, name, axis):
    """(grid, values [runs, points], mean, half the width of its 95% band or None): the band from 3 runs on.

    The mean reaches as far as the shortest run; the band is Student's t interval."""
    grid = np.linspace(0, max(run.updates[axis][-1] for run in runs), POINTS + 1)[1:]
    values = np.array([sample(run, name, axis, grid) for run in runs])
    half = None
    if len(runs) > 2:
        half = stats.t.ppf(0.975, len(runs) - 1) * values.std(0, ddof=1) / len(runs) ** 0.5
    return grid, values, values.mean(0), half


def draw(figure, place, runs, side, name, axis, legend=False):
    """Adds the curves of one side, "ours" or "ppo2", to the subplot at `place`."""
    grid, values, mean, half = curves(runs, name, axis)
    grid = grid / 60 if axis == "seconds" else grid
    grid, values, mean = (x.astype(np.float32) for x in (grid, values, mean))
    color, look = COLORS[side], dict(mode="lines", legendgroup=side, showlegend=False)
    if half is not None and name == "return":
        known = ~np.isnan(mean)
        x, low, high = grid[known], (mean - half)[known], (mean + half)[known]
        around = np.concatenate([low, high[::-1]]).astype(np.float32)
        band = go.Scatter(x=np.concatenate([x, x[::-1]]), y=around, fill="toself", fillcolor=color, opacity=0.18,
                          line_width=0, hoverinfo="skip", **look)  # fmt: skip
        figure.add_trace(band, *place)
    for run, each in zip(runs, values, strict=True):
        label = f"{side}, seed {run.about['seed']}"
        line = go.Scatter(x=grid, y=each, name=label, line=dict(color=color, width=1), opacity=0.35, **look)
        figure.add_trace(line, *place)
    look |= dict(showlegend=legend, name=f"{side} ({len(runs)})", line=dict(color=color, width=2.5))
    figure.add_trace(go.Scatter(x=grid, y=mean, **look), *place)


def figure_of(experiment):
    """The charts of an experiment: returns against steps and minutes, the other metrics against steps."""
    specs = [[{"colspan": 2}, None, {"colspan": 2}, None], [{}] * 4, [{}] * 4]
    titles = ["return, of the last 100 episodes", "the same against minutes of training", *METRICS.values()]
    figure = make_subplots(3, 4, specs=specs, subplot_titles=titles, row_heights=[0.44, 0.28, 0.28],
                           vertical_spacing=0.09, horizontal_spacing=0.05)  # fmt: skip
    for side, runs in (("ppo2", experiment.ppo2), ("ours", experiment.ours)):
        if runs:
            draw(figure, (1, 1), runs, side, "return", "step", legend=True)
            draw(figure, (1, 3), runs, side, "return", "seconds")
            for i, name in enumerate(METRICS):
                draw(figure, (2 + i // 4, 1 + i % 4), runs, side, name, "step")
    figure.update_layout(template="plotly_white", height=900, margin=dict(l=40, r=15, t=60, b=30),
                         legend=dict(orientation="h", y=1.07, x=0), font_size=12)  # fmt: skip
    figure.update_annotations(font_size=13)
    return figure


# THE PAGE


def statement(experiment):
    """What can be said of an experiment beside ppo2, in a sentence or two."""
    ours = f"Ours {mean_and_spread(experiment.done)} after {experiment.steps} steps"
    if not experiment.ppo2:
        return f"{ours}; there are no runs of ppo2 of as many steps to compare with."
    text = f"{ours}, ppo2 {mean_and_spread(experiment.ppo2)}"
    comparison = compared(experiment)
    if comparison is None:
        return f"{text}: too few runs to compare."
    ps = f"Welch's t-test, p = {comparison.welch:.3f}; Mann-Whitney U test, p = {comparison.mann_whitney:.3f}"
    visible = number(comparison.visible, experiment.done[0].score)
    return f"{text}: {comparison.verdict} ({ps}). A difference of {visible} would be seen 8 times out of 10."


def table(header, rows):
    """An HTML table; a cell that is a pair is (class, text)."""
    def cell(value):
        kind, text = value if isinstance(value, tuple) else ("", value)
        return f'<td class="{kind}">{html.escape(str(text))}</td>'

    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "\n".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"


def score_rows(experiments):
    for one in experiments:
        comparison = compared(one)
        verdict, ps, visible = ("", ""), "", ""
        if comparison:
            kind = {"ours is worse": "bad", "ours is better": "good"}.get(comparison.verdict, "")
            verdict, visible = (kind, comparison.verdict), number(comparison.visible, one.done[0].score)
            ps = f"{comparison.welch:.3f} / {comparison.mann_whitney:.3f}"
        yield (one.title, one.steps, mean_and_spread(one.done), iqm_and_interval(one.done), mean_and_spread(one.ppo2),
               iqm_and_interval(one.ppo2), verdict, ps, visible)  # fmt: skip


def post_rows(experiments):
    """The post's table, and below it what was measured here for the same games and robots."""
    ids = {f"{game}{'NoFrameskip' if game in GAMES[:3] else ''}-v4" for game in GAMES}
    same = {one.env_id: one for one in experiments if one.env_id in ids and not one.options
            and one.script in ("ppo_atari", "ppo_continuous_action")}  # fmt: skip
    rows = list(POST)
    for side, name in (("ppo2", "ppo2 (ea25b9e), run here, 1M steps"), ("done", "ours, run here, MuJoCo 1M steps")):
        cells = []
        for env_id in sorted(ids, key=lambda env_id: GAMES.index(re.match("[A-Z][A-Za-z]*?2?d?(?=No|-)", env_id)[0])):
            runs = getattr(same[env_id], side) if env_id in same else []
            stopped = "" if all(run.finished for run in runs) else f" after {same[env_id].steps}"
            cells.append(mean_and_spread(runs) + stopped if runs else "-")
        rows.append([("here", cell) for cell in (name, "v4", *cells)])
    return rows


def run_rows(results):
    for runs in load(results).values():
        for run in runs:
            about = run.about
            machine = about["machine"]
            if isinstance(machine, dict):
                machine = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in machine.items() if value)
            versions = about["versions"]
            framework = f"torch {versions['torch']}" if "torch" in versions else f"tensorflow {versions['tensorflow']}"
            yield (about["env_id"], about["script"], about["seed"],
                   ("" if run.finished else "bad", f"{about['steps']:,} of {about['steps_wanted']:,}"),
                   f"{run.updates['seconds'][-1] / 60:.1f}", number(run.score), about["command"],
                   (about["commit"] or "not committed")[:13], framework, machine)  # fmt: skip


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1c1c1e; max-width: 1400px; margin: 0 auto; padding: 1rem; }
h1 { margin-bottom: 0 } h2 { margin: 2.2rem 0 .3rem } h3 { margin: 2rem 0 0 }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; text-align: left; border-bottom: 1px solid #ddd; vertical-align: top }
th { border-bottom: 2px solid #888 } td, th { white-space: nowrap }
.scroll { overflow-x: auto } .chart { min-height: 900px } .here { background: #eef3fb; font-weight: 600 }
.bad { color: #b3261e; font-weight: 600 } .good { color: #1b7f3b; font-weight: 600 }
nav { columns: 3; font-size: 14px } nav a { display: block } p { max-width: 60rem; margin: .4rem 0 }
@media (max-width: 800px) { nav { columns: 1 } }
"""

DRAW = """
const observer = new IntersectionObserver(seen => seen.filter(one => one.isIntersecting).forEach(one => {
  observer.unobserve(one.target);
  const figure = JSON.parse(document.getElementById(one.target.dataset.figure).textContent);
  Plotly.newPlot(one.target, figure.data, figure.layout, {responsive: true, displaylogo: false});
}), {rootMargin: "600px"});
document.querySelectorAll(".chart").forEach(chart => observer.observe(chart));
"""


def page(results):
    """The report as one text of HTML."""
    experiments = experiments_of(results)
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
            f"first {WINDOW} episodes and 1 its final score, the interquartile mean of ours is {middle:.2f}{limits}."
            "</p>"
        )
    sections, links = [], []
    for i, one in enumerate(experiments):
        comparison = compared(one)
        kind = {"ours is worse": "bad", "ours is better": "good"}.get(comparison and comparison.verdict, "")
        figure = figure_of(one).to_json().replace("</", "<\\/")
        title = html.escape(one.title)
        links.append(f'<a href="#e{i}" class="{kind}">{title}</a>')
        sections.append(
            f'<h3 id="e{i}">{title}, {one.steps} steps</h3>\n<p class="{kind}">{html.escape(statement(one))}</p>\n'
            f'<div class="chart" data-figure="f{i}"></div>\n<script type="application/json" id="f{i}">{figure}</script>'
        )
    header = ["experiment", "steps", "ours", "IQM", "ppo2", "IQM", "verdict", "p: Welch / U", "visible difference"]
    runs = ["environment", "script", "seed", "steps", "minutes", "score", "command", "commit", "framework", "machine"]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>PPO: ours and ppo2</title><style>{STYLE}</style><script>{get_plotlyjs()}</script></head><body>
<h1>PPO: ours and ppo2</h1>
<p>Runs of the scripts of this project beside runs of openai/baselines' ppo2 (ea25b9e). Comparisons: {summary}.</p>
{over_all}
<h2>Final scores</h2>
<p>A score is the mean return of the last {WINDOW} episodes of a run. Given are mean ± sample standard deviation over
runs (number of runs), and the interquartile mean (IQM) with its 95% interval, bootstrapped over the runs. The verdict
is that of Welch's t-test, two-sided, at the 5% level; one in twenty such tests goes wrong by chance where there is no
difference. With 3 runs of each the Mann-Whitney U test, whose p is given too, can reject nothing. The visible
difference is the one that Welch's test would show 8 times out of 10 with so many runs of that spread; a smaller one may
well be there unseen. Runs that were stopped early are marked with the steps that they did, and are not tested.</p>
{table(header, score_rows(experiments))}
<h2>Other libraries</h2>
<p>The first rows are the table of the blog post on PPO's implementation details (Huang et al., 2022), which collects
the best scores that each library reports: with other versions of the environments, other numbers of steps and seeds, in
part other hyperparameters. None of those numbers was measured here. The marked rows were.</p>
{table(["library", "MuJoCo", *GAMES], post_rows(experiments))}
<h2>Curves</h2>
<p>Thin lines are runs, thick ones their mean as far as all of them reach; the band is the 95% confidence interval of
the mean (Student's t). Drag to zoom, double-click to go back, click the legend to hide a side. Minutes and steps per
second depend on the machine and on what else it did, see the list of runs. KL is half the mean square of the log ratio,
as ppo2 logs it.</p>
<nav>{"".join(links)}</nav>
{"".join(sections)}
<h2>Runs</h2>
{table(runs, run_rows(results))}
<script>{DRAW}</script></body></html>
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "benchmark" / "results")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmark" / "report.html")
    parser.add_argument("--readme", action="store_true", help="write the table of README.md too")
    args = parser.parse_args()
    if not list(args.results.glob("*/*.json")):
        raise SystemExit(f"error: {args.results} holds no runs; collect.py puts them there")
    args.output.write_text(page(args.results))
    if args.readme:
        readme = ROOT / "README.md"
        readme.write_text(put_into_readme(readme.read_text(), readme_table(experiments_of(args.results))))
    print(f"{args.output}: {args.output.stat().st_size / 1e6:.1f} MB, open it in a browser")


if __name__ == "__main__":
    main()
