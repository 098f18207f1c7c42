"""Computes the docs' tables of scores, and their picture, from benchmark/results.

    python benchmark/report.py

Each script and each --exp-name is an experiment of its own. Runs that are in no score are named. docs/pages.py shows
the rest on a page of the site.
"""

import csv
import json
import lzma
import re
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import numpy as np
from scipy import stats

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmark.collect import typed  # noqa: E402
from benchmark.curves import COLORS, GRAY, WINDOW, drawing, plot  # noqa: E402

# Our scripts in the order of the report, and which runs of ppo2 they repeat.
PAIRS = {
    "ppo": "ppo2_copy", "ppo_shared": "ppo2_shared", "ppo_continuous_action": "ppo2_mujoco", "ppo_atari": "ppo2_atari",
    "ppo_atari_lstm": "ppo2_lstm", "ppo_atari_envpool": None, "ppo_procgen": None, "ppo_multidiscrete": None,
    "ppo_multidiscrete_mask": None, "ppo_selfplay": None, "ppo_atari_multigpu": None,
    "ppo_atari_cleanba": None, "impala_atari_cleanba": None,
}  # fmt: skip
SB3 = "Stable-Baselines3"
FIRST = {"CartPole-v1", "HalfCheetah-v4", "BreakoutNoFrameskip-v4", "Breakout-v5", "starpilot", "MicrortsMining-v1"}
# The script and environment of each panel of the picture.
PICTURED = [
    ("ppo", "CartPole-v1"), ("ppo_continuous_action", "HalfCheetah-v4"), ("ppo_atari", "BreakoutNoFrameskip-v4"),
    ("ppo_atari", "PongNoFrameskip-v4"), ("ppo_atari_lstm", "BreakoutNoFrameskip-v4"),
    ("ppo_atari_cleanba", "Breakout-v5"), ("impala_atari_cleanba", "Breakout-v5"), ("ppo_procgen", "starpilot"),
    ("ppo_multidiscrete_mask", "MicrortsMining-v1"),
]  # fmt: skip
METRICS = {
    "length": "episode length", "policy_loss": "policy loss", "value_loss": "value loss", "entropy": "entropy",
    "approx_kl_ppo2": "approximate KL", "clipfrac": "clip fraction", "explained_variance": "explained variance",
    "SPS": "steps per second",
}  # fmt: skip
SAME_IDEA = {"total_timesteps", "bf16", "compile"}  # options with which a script is still compared as itself
# What the blog post on PPO's implementation details (Huang et al., 2022) reports of ppo2 (ea25b9e).
PUBLISHED = {
    "BreakoutNoFrameskip-v4": (409.265, 30.98), "PongNoFrameskip-v4": (20.59, 0.40),
    "BeamRiderNoFrameskip-v4": (2627.96, 625.751), "Hopper-v4": (2448.73, 596.13),
    "Walker2d-v4": (3142.24, 982.25), "HalfCheetah-v4": (2148.77, 1166.023),
}  # fmt: skip
# What RL Zoo's benchmark.md reports of one run each (DLR-RM/rl-baselines3-zoo at 0088472), partly on older versions.
ZOO = {
    "CartPole-v1": "500 (100k)", "Acrobot-v1": "-73.5 (1M)", "MountainCar-v0": "-110 (1M)",
    "MountainCarContinuous-v0": "88.3 (20k)", "Pendulum-v1": "-172 (100k)", "LunarLander-v3": "242 (1M)",
    "LunarLanderContinuous-v3": "271 (1M)", "BipedalWalker-v3": "213 (5M)", "HalfCheetah-v5": "5819 (1M)",
    "Hopper-v5": "2410 (1M)", "Walker2d-v5": "3479 (1M)", "Ant-v5": "1327 (1M)",
}  # fmt: skip


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
    """Our runs of one script on one environment, and the runs of ppo2 of as many steps, which may be none."""

    script: str
    env_id: str
    options: dict
    ours: list
    ppo2: list

    @property
    def name(self):
        return " ".join([f"{self.script}.py", *map(typed, self.options.items())])

    def shown(self, *hidden, quote=""):
        """ " --bf16 --num-envs 32", the options without those in `hidden`; "at first" where a resume changed one."""
        texts = (f" {quote}{typed(option)}{quote}" for option in self.options.items() if option[0] not in hidden)
        changed = rf"( True)?(, from step \d+ [^ ,]+)+({quote})$"
        return "".join(re.sub(changed, r"\3 at first", text) for text in texts)

    @property
    def published(self):
        """(mean, spread) of ppo2's score in the post, or None."""
        return PUBLISHED.get(self.env_id) if self.script in ("ppo_atari", "ppo_continuous_action") else None

    @property
    def reference(self):
        """ "455 ± 105 (3); published: 409 ± 31", the scores of ppo2; empty without any."""
        texts = [mean_and_spread(self.ppo2)] if self.ppo2 else []
        if self.published:
            mean, spread = self.published
            texts.append(f"published: {number(mean)} ± {number(spread, mean)}")
        return "; ".join(texts)

    @property
    def most(self):
        """The steps of the run that came furthest."""
        return max(run.about["steps"] for run in self.ours)

    @property
    def steps(self):
        """The steps of a whole run, "500k", or where none is finished "300k of 500k"."""
        wanted = max(run.about["steps_wanted"] for run in self.ours)
        return short(wanted) if self.most == wanted else f"{short(self.most)} of {short(wanted)}"

    @property
    def done(self):
        """The finished runs; without any, those with the most steps."""
        return [run for run in self.ours if run.finished or run.about["steps"] == self.most]


def short(steps):
    """499712 as "500k", 999424 as "1M"."""
    return f"{round(steps / 1e6, 1):g}M" if steps >= 950_000 else f"{steps / 1e3:.0f}k"


def experiments_of(found):
    """The experiments that load() found, a list of Experiment: the scripts in the order of PAIRS, then other names."""
    table, known = [], list(PAIRS)
    for (side, script, env_id, options, wanted), runs in found.items():
        if side == "ours":
            ppo2 = found.get(("ppo2", PAIRS.get(script), env_id, "{}", wanted), [])
            ppo2 = [run for run in ppo2 if run.finished and any(run.finished for run in runs)]
            table.append(Experiment(script, env_id, json.loads(options), runs, ppo2))

    def place(one):
        order = known.index(one.script) if one.script in known else len(known)
        return order, one.script, one.env_id not in FIRST, one.env_id, -one.most, len(one.options), str(one.options)

    return sorted(table, key=place)


def left_out(found, experiments):
    """A line for each run that is in no score, with the reason."""
    scored = {id(run) for one in experiments for run in [*one.done, *one.ppo2]}
    lines = []
    for (_, script, env_id, options, wanted), runs in found.items():
        for run in (run for run in runs if id(run) not in scored):
            name = " ".join([script, *map(typed, json.loads(options).items())])
            why = f"stopped at {run.about['steps']:,} of {wanted:,} steps"
            if run.finished:
                why = f"{wanted:,} steps, there are no runs of ours of as many"
            lines.append(f"{env_id}, {name}, seed {run.about['seed']}: {why}")
    return lines


# STATISTICS


class Difference(NamedTuple):
    """The first mean minus the second, its 95% interval, and p of Welch's t-test; interval and p are NaN where a side
    is a single run, or where neither has any spread."""

    mean: float
    low: float
    high: float
    p: float

    def verdict(self, name):
        """What the test says of the first, called `name`, at the 5% level; empty without a test."""
        if np.isnan(self.p):
            return ""
        better = f"{name} is {'better' if self.mean > 0 else 'worse'}"
        return better if self.p < 0.05 else "cannot be told apart"

    def text(self, like):
        """ "+9.0 [-1.0, +19.0]", with the decimals that suit the score `like`."""
        mean = signed(self.mean, like)
        return mean if np.isnan(self.low) else f"{mean} [{signed(self.low, like)}, {signed(self.high, like)}]"


def compare(first, second):
    """The Difference of two sets of scores, by Welch's t-test."""
    mean = float(np.mean(first) - np.mean(second))
    if min(len(first), len(second)) < 2 or max(map(np.ptp, (first, second))) == 0:  # a deviation is not exactly 0 then
        return Difference(mean, *[np.nan] * 3)
    test = stats.ttest_ind(first, second, equal_var=False)
    return Difference(mean, *map(float, test.confidence_interval(0.95)), float(test.pvalue))


def scores(runs):
    """Final scores, float64 [runs]."""
    return np.array([run.score for run in runs])


# TEXT


def number(value, like=None):
    """A number with the decimals that suit its size, or that of `like`."""
    size = abs(value if like is None else like)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def signed(value, like):
    """ "+9", "-2", and "0" for what rounds to it."""
    text = number(value, like)
    return text.lstrip("-") if float(text) == 0 else f"+{text}" if value > 0 else text


def p_value(p):
    """ "0.041", or "<0.001"."""
    return "" if np.isnan(p) else f"{p:.3f}" if p >= 0.0005 else "<0.001"


def mean_and_spread(runs):
    """ "478 ± 13 (5)": mean and sample standard deviation over the runs, and how many; empty without runs."""
    if not len(runs):
        return ""
    values = np.asarray(runs) if isinstance(runs, np.ndarray) else scores(runs)
    spread = f" ± {number(values.std(ddof=1), values.mean())}" if len(values) > 1 else ""
    return f"{number(values.mean())}{spread} ({len(values)})"


def score_table(experiments):
    """The lines of a table of scores in Markdown."""
    lines = ["| script | environment | steps | ours | `ppo2` | difference |", "|---|---|---|---|---|---|"]
    for one in experiments:
        difference = compare(scores(one.done), scores(one.ppo2)).text(one.done[0].score) if one.ppo2 else ""
        name = f"`{one.script}.py`{one.shown(quote='`')}"
        cells = [name, one.env_id, one.steps, mean_and_spread(one.done), one.reference, difference]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def mean_and_interval(values):
    """ "500 [490, 510] (10)": the mean, from 3 values on its Student 95% interval, and how many; empty without any."""
    if len(values) < 3:
        return f"{number(np.mean(values))} ({len(values)})" if len(values) else ""
    mean, half = np.mean(values), stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    size = max(abs(mean), half)
    return f"{number(mean, size)} [{number(mean - half, size)}, {number(mean + half, size)}] ({len(values)})"


def tuned_table(results, tasks=()):
    """The lines of a table in Markdown of results/tuned/games.csv, of all tasks by default."""
    with open(Path(results, "tuned", "games.csv")) as file:
        rows = list(csv.DictReader(file))
    lines = ["| environment | script | steps, minutes | ours | SB3 | zoo | solved |", "|---|---|---|---|---|---|---|"]
    for task in tasks or dict.fromkeys(row["task"] for row in rows):
        sides = [[row for row in rows if (row["task"], row["who"]) == (task, who)] for who in ("ours", SB3)]
        script = re.search(r"[^\s+]+(?=\S*\.py)", sides[0][0]["command"])[0]
        recipe = re.sub(r"recipes/(\w+)/(\S+)\.diff", r"\1 \2", sides[0][0]["recipe"]).replace(" + ", ", ")
        goal = gym.spec(task).reward_threshold
        steps, minutes = short(int(sides[0][0]["steps"])), np.median([float(row["minutes"]) for row in sides[0]])
        cells = [task, f"`{script}.py` {recipe}".strip(), f"{steps}, {minutes:.1f}"]
        cells += [mean_and_interval([float(row["mean"]) for row in side]) for side in sides]
        reached = [float(row["threshold_step"] or "inf") for row in sides[0]]
        half = np.median(reached)
        cells += [ZOO[task], "" if goal is None else f"{goal:g}" + (f" ({short(half)})" if half < np.inf else "")]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def with_scores(text, experiments, results):
    """A text with the tables between its marks: all scores, and the tuned settings of the tasks that the mark names."""

    def section(match):
        begin, name, tasks, end = match.groups()
        lines = score_table(experiments) if name == "scores" else tuned_table(results, tasks.split())
        return "\n".join([begin, *lines, end])

    return re.sub(r"(?s)(<!-- (scores|tuned)(.*?) -->).*?(<!-- /\w+ -->)", section, text)


# PICTURES


def sides_of(experiment):
    """ppo2's runs and ours as plot() takes them."""
    return [(side, COLORS[side], getattr(experiment, side)) for side in ("ppo2", "ours")]


def picture(experiments, path):
    """Draws the README's picture: returns of the experiments in PICTURED, and of ppo2."""
    fitting = [one for one in experiments if one.options.keys() <= SAME_IDEA | {"network", "num_envs"}]
    same = {(one.script, one.env_id): one for one in reversed(fitting)}
    panels = [same[pair] for pair in PICTURED if pair in same]  # the first of a pair came furthest

    def draw(figure):
        for i, one in enumerate(panels):
            axes = figure.add_subplot(-(-len(panels) // 3), 3, i + 1)
            plot(axes, sides_of(one))
            if one.published is not None and not one.ppo2:
                line = {"color": COLORS["ppo2"], "linestyle": "--", "linewidth": 1.2}
                axes.axhline(one.published[0], **line, label="ppo2, published")
            title = textwrap.fill(f"{one.script}.py{one.shown('total_timesteps')}, {one.steps}", 46)
            axes.set_title(f"{one.env_id}\n{title}", linespacing=1.3)
            axes.legend(frameon=False, fontsize=7.5)
        figure.supxlabel("steps", fontsize=8.5, color=GRAY)
        figure.supylabel(f"mean return of the last {WINDOW} episodes", fontsize=8.5, color=GRAY)

    drawing((9, 2.55 * -(-len(panels) // 3)), path, draw)


def charts(experiment, path):
    """Draws all curves of an experiment: returns against steps and minutes, the other metrics against steps."""

    def draw(figure):
        grid = figure.add_gridspec(4, 4)
        for place, axis, label in ((grid[:2, :2], "step", "steps"), (grid[:2, 2:], "seconds", "minutes of training")):
            plot(axes := figure.add_subplot(place), sides_of(experiment), axis=axis, each=axis == "step")
            axes.set(title=f"mean return of the last {WINDOW} episodes", xlabel=label)
            axes.legend(frameon=False)
        for i, (name, label) in enumerate(METRICS.items()):
            plot(axes := figure.add_subplot(grid[2 + i // 4, i % 4]), sides_of(experiment), name, points=50)
            axes.set_title(label)

    drawing((11, 8), path, draw)


def main():
    results = ROOT / "benchmark" / "results"
    found = load(results)
    if not found:
        raise SystemExit("error: there are no results; collect.py makes some of runs")
    experiments = experiments_of(found)
    for file in (ROOT / "README.md", *ROOT.glob("docs/*.md")):
        file.write_text(with_scores(file.read_text(), experiments, results))
    picture(experiments, ROOT / "docs" / "curves.svg")
    for line in left_out(found, experiments):
        print(f"in no score: {line}")


if __name__ == "__main__":
    main()
