"""Computes the docs' tables of scores, and their pictures, from benchmark/results.

    python -m benchmark.report

Each script and each --exp-name is an experiment of its own. The site shows the rest, also which runs are in no score.
"""

import math
import re
import textwrap
from pathlib import Path

import gymnasium as gym
import numpy as np

from benchmark import aggregate, equal_steps, procgen, time_to_score
from benchmark.ablation import collapse, losses
from benchmark.curves import COLORS, GRAY, plot, write_picture
from benchmark.experiments import experiments_of
from benchmark.results import RESULTS, ROOT, WINDOW, fresh, load
from benchmark.scores import compare, mean_and_deviation, mean_and_interval, scores, short_steps
from benchmark.tables import read_rows
from benchmark.untuned import scores as untuned

SB3 = "Stable-Baselines3"
# The script and environment of each panel of the picture
PICTURED = [
    ("ppo", "CartPole-v1"),
    ("ppo_continuous_action", "HalfCheetah-v4"),
    ("ppo_atari", "BreakoutNoFrameskip-v4"),
    ("ppo_atari", "PongNoFrameskip-v4"),
    ("ppo_atari_lstm", "BreakoutNoFrameskip-v4"),
    ("ppo_atari_cleanba", "Breakout-v5"),
    ("impala_atari_cleanba", "Breakout-v5"),
    ("ppo_procgen", "starpilot"),
    ("ppo_multidiscrete_mask", "MicrortsMining-v1"),
]
# The options that an experiment in the picture may have: they change the size or the speed of a run
SAME_IDEA = {"total_timesteps", "bf16", "compile", "network", "num_envs"}
METRICS = {
    "length": "episode length",
    "policy_loss": "policy loss",
    "value_loss": "value loss",
    "entropy": "entropy",
    "approx_kl_ppo2": "approximate KL",
    "clipfrac": "clip fraction",
    "explained_variance": "explained variance",
    "SPS": "steps per second",
}
# What RL Zoo's benchmark.md reports of one run each (DLR-RM/rl-baselines3-zoo at 0088472), for some on an older version
# of the environment.
ZOO = {
    "CartPole-v1": "500 (100k)",
    "Acrobot-v1": "-73.5 (1M)",
    "MountainCar-v0": "-110 (1M)",
    "MountainCarContinuous-v0": "88.3 (20k)",
    "Pendulum-v1": "-172 (100k)",
    "LunarLander-v3": "242 (1M)",
    "LunarLanderContinuous-v3": "271 (1M)",
    "BipedalWalker-v3": "213 (5M)",
    "HalfCheetah-v5": "5819 (1M)",
    "Hopper-v5": "2410 (1M)",
    "Walker2d-v5": "3479 (1M)",
    "Ant-v5": "1327 (1M)",
}

# Tables


def table_row(cells):
    """A row of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def table_head(names):
    """The two lines above the rows of a table in Markdown."""
    return [table_row(names), "|" + "---|" * len(names)]


def score_table(experiments):
    """The lines of a table of scores in Markdown."""
    lines = table_head(["script", "environment", "steps", "ours", "runs", "`ppo2`", "difference", "options"])
    for experiment in experiments:
        ours = scores(experiment.scored_runs)
        difference = ""
        if experiment.ppo2:
            difference = compare(ours, scores(experiment.ppo2)).text(ours.mean())
        options = " ".join(f"`{word}`" for word in experiment.words_without("total_timesteps"))
        cells = [
            f"`{experiment.script}.py`",
            experiment.env_id,
            experiment.steps_text,
            mean_and_deviation(ours),
            str(len(ours)),
        ]
        lines.append(table_row([*cells, experiment.reference, difference, options]))
    return lines


def equal_steps_table(experiments):
    """The lines of a table in Markdown of the scores after equal steps beside ppo2."""
    lines = table_head(equal_steps.NAMES)
    return lines + [table_row(equal_steps.cells(*row)) for row in equal_steps.rows(experiments)]


def procgen_table(experiments, results):
    """The lines of a table in Markdown of the scores on Procgen beside published runs of ppo2."""
    return table_head(procgen.NAMES) + [table_row(cells) for cells in procgen.rows(experiments, results)]


def variables_table(experiments, results):
    """The lines of a table in Markdown of what is logged of each update on Procgen, beside the same runs of ppo2."""
    lines = table_head(procgen.VARIABLE_NAMES)
    return lines + [table_row(cells) for cells in procgen.variable_rows(experiments, results)]


def read_games(results):
    """The rows of results/tuned/games.csv, [{column: text}, ...]; an empty list where there is no such file."""
    return read_rows(Path(results, "tuned", "games.csv"))


def script_with_recipes(command, recipe, root):
    """The script of a command, and its recipes as links.

    recipe: the paths of the recipes, with " + " between them. root: the way to the root of the checkout."""
    _, file, *_ = command.split()  # "python ppo+normalization.py ..."
    script = file.removesuffix(".py").partition("+")[0]
    links = {}  # {"with" or "without": links to recipes}
    if recipe:
        for path in recipe.split(" + "):
            file = Path(path)
            links.setdefault(file.parent.name, []).append(f"[{file.stem}]({root}{path})")
    groups = [f"{word} {' and '.join(recipes)}" for word, recipes in links.items()]
    return f"`{script}.py` {', '.join(groups)}".strip()


def asked_steps(row):
    """The steps that the command of a row of games.csv asks for; without the option those that were made."""
    asked = re.search(r"--total-timesteps (\d+)", row["command"])
    return int(asked[1]) if asked else int(row["steps"])


def threshold_text(task, rows):
    """The return that counts as a solution of a task, and at which step half of our runs reached it: "475 (88k)"."""
    threshold = gym.spec(task).reward_threshold
    if threshold is None:
        return ""
    half = np.median([float(row["threshold_step"] or "inf") for row in rows])
    return f"{threshold:g}" if np.isinf(half) else f"{threshold:g} ({short_steps(half)})"


def tuned_table(results, tasks=(), root=""):
    """The lines of a table in Markdown of results/tuned/games.csv, of all tasks by default."""
    rows = read_games(results)
    names = ["environment", "script", "steps", "minutes", "ours", "runs", "ours, tuning seeds", "SB3", "SB3 runs"]
    lines = table_head([*names, "zoo", "solved"])
    for task in tasks or dict.fromkeys(row["task"] for row in rows):
        ours = [row for row in rows if row["task"] == task and row["who"] == "ours"]
        theirs = [row for row in rows if row["task"] == task and row["who"] == SB3]
        if not ours:
            raise SystemExit(f"error: {Path(results, 'tuned', 'games.csv')} has no run of ours of {task}")
        judged = fresh(ours)
        tuning = [row for row in ours if row not in judged]
        script_text = script_with_recipes(ours[0]["command"], ours[0]["recipe"], root)
        cells = [task, script_text, short_steps(asked_steps(ours[0]))]
        cells.append(f"{np.median([float(row['minutes']) for row in tuning or judged]):.1f}")
        cells += [mean_and_interval([float(row["mean"]) for row in judged]), str(len(judged))] if judged else ["", ""]
        for side in (tuning, theirs):
            cells.append(mean_and_interval([float(row["mean"]) for row in side]) if side else "")
        cells += [str(len(theirs)), ZOO.get(task, ""), threshold_text(task, judged or tuning)]
        lines.append(table_row(cells))
    return lines


def reference_score(task):
    """The score of a task that counts as 1: gymnasium's threshold, or that of RL Zoo where there is none."""
    threshold = gym.spec(task).reward_threshold
    return float(ZOO[task].split()[0]) if threshold is None else threshold


def normalized_scores(results, who):
    """The scores of all tasks in results/tuned/games.csv, [tasks, runs]: 0 is random play, 1 is reference_score().

    The runs of a task have fresh seeds, where it has such runs. Each task has as many runs as the one with the fewest,
    those with the first seeds."""
    rows_by_task = {}
    for row in sorted(read_games(results), key=lambda row: int(row["seed"])):
        if row["who"] == who:
            rows_by_task.setdefault(row["task"], []).append(row)
    if not rows_by_task:
        raise SystemExit(f"error: {Path(results, 'tuned', 'games.csv')} has no run of {who}")
    means = {}
    for task, rows in rows_by_task.items():
        means[task] = [float(row["mean"]) for row in fresh(rows) or rows]
    runs = min(map(len, means.values()))
    random = {row["task"]: row for row in read_rows(Path(results, "tuned", "random.csv"))}
    lows = [float(random[task]["mean"]) for task in means]
    highs = [reference_score(task) for task in means]
    return aggregate.normalized([of_task[:runs] for of_task in means.values()], lows, highs)


def aggregate_table(results):
    """The lines of a table in Markdown of the normalized scores of all tasks with tuned settings."""
    lines = table_head(["", *aggregate.STATISTICS, "tasks", "seeds of each"])
    for who in ("ours", SB3):
        values = normalized_scores(results, who)
        cells = [who]
        for statistic in aggregate.STATISTICS.values():
            low, high = aggregate.interval(statistic, values)
            cells.append(f"{statistic(values):.2f} [{low:.2f}, {high:.2f}]")
        lines.append(table_row([*cells, *map(str, values.shape)]))
    return lines


def worlds_table(results, root=""):
    """The lines of a table in Markdown of the whole runs in results/tuned on environments of other libraries."""
    lines = table_head(["environment", "script", "steps", "minutes", "return", "runs"])
    experiments = load(Path(results, "tuned"))
    for key in sorted(experiments, key=lambda key: key[2]):  # by environment
        side, script, env_id, _, _ = key
        if script.endswith("+turns"):
            continue  # the return of a game against oneself says nothing
        runs = [run for run in experiments[key] if run.finished]
        # "envpool/Snake-v1" and "pettingzoo.classic.connect_four_v3:env", beside "CartPole-v1"
        is_other_world = env_id.startswith("envpool/") or ":" in env_id
        if side != "ours" or not runs or not is_other_world:
            continue
        about = runs[0].about
        script_text = script_with_recipes(about["command"], about.get("recipe"), root)
        minutes = np.median([run.updates["seconds"][-1] / 60 for run in runs])
        cells = [f"`{env_id}`", script_text, short_steps(about["steps"]), f"{minutes:.1f}"]
        lines.append(table_row([*cells, mean_and_deviation(scores(runs)), str(len(runs))]))
    return lines


def with_scores(text, experiments, results, root=""):
    """A text with the tables between its marks: all scores, those after equal steps on Atari and on Procgen, the tuned
    settings of the tasks that the mark names, what sums up all tuned settings, the time to a score, tuned settings of
    other worlds, what keeps a return that was reached, objectives beside the clip in the environment that the mark
    names, and settings on tasks that nobody tuned.

    `root` is the way from the text's folder to the root of the checkout, for links."""

    def section(match):
        begin, name, tasks, end = match.groups()
        if name == "scores":
            lines = score_table(experiments)
        elif name == "equal steps":
            lines = equal_steps_table(experiments)
        elif name == "procgen":
            lines = procgen_table(experiments, results)
        elif name == "variables":
            lines = variables_table(experiments, results)
        elif name == "tuned":
            lines = tuned_table(results, tasks.split(), root)
        elif name == "aggregate":
            lines = aggregate_table(results)
        elif name == "worlds":
            lines = worlds_table(results, root)
        elif name == "collapse":
            lines = collapse.rows(results)
        elif name == "losses":
            lines = losses.rows(tasks.strip(), results)
        elif name == "untuned":
            folder = Path(results, "untuned")
            rows, times = read_rows(folder / "scores.csv"), read_rows(folder / "cpu_time.csv")
            lines = [*untuned.equal_steps(rows), "", *untuned.equal_time(rows, times)]
        elif name == "time to a score":
            lines = time_to_score.table(read_rows(Path(results, time_to_score.TABLE.name)))
        return "\n".join([begin, *lines, end])

    # from <!-- NAME --> or <!-- tuned TASK ... --> to <!-- /NAME -->, over several lines
    names = "scores|equal steps|procgen|variables|tuned|aggregate|time to a score|worlds|collapse|losses|untuned"
    return re.sub(rf"(?s)(<!-- ({names})(.*?) -->).*?(<!-- /\2 -->)", section, text)


def texts():
    """The texts that may have tables, {file: the way from its folder to the root of the checkout}."""
    return {ROOT / "README.md": ""} | dict.fromkeys(sorted(ROOT.glob("docs/*.md")), "../")


# Pictures


def sides_of(experiment):
    """The runs of ppo2 and ours, as plot() takes them."""
    return [("ppo2", COLORS["ppo2"], experiment.ppo2), ("ours", COLORS["ours"], experiment.ours)]


def pictured(experiments):
    """The experiments of PICTURED, in its order; of those of a pair the one that came furthest."""
    furthest = {}
    for experiment in experiments:  # experiments_of() puts the one that came furthest first
        if experiment.options.keys() <= SAME_IDEA:
            furthest.setdefault((experiment.script, experiment.env_id), experiment)
    return [furthest[pair] for pair in PICTURED if pair in furthest]


def picture(experiments, path):
    """Draws the README's picture: returns of the experiments in PICTURED, and of ppo2."""
    panels = pictured(experiments)
    rows = math.ceil(len(panels) / 3)

    def draw(figure):
        for i, experiment in enumerate(panels):
            axes = figure.add_subplot(rows, 3, i + 1)
            # A mean reaches as far as the shortest run, so a run that stopped early would cut the curve.
            plot(axes, sides_of(experiment._replace(ours=experiment.scored_runs)))
            if experiment.published is not None and not experiment.ppo2:
                line = {"color": COLORS["ppo2"], "linestyle": "--", "linewidth": 1.2}
                mean, _ = experiment.published
                axes.axhline(mean, **line, label="ppo2, published")
            if experiment.script == "ppo_procgen":
                curve = procgen.published_mean(RESULTS, experiment.env_id, experiment.most_steps)
                axes.plot(*curve, color=COLORS["ppo2"], linewidth=1.6, label="ppo2, published")
            words = [f"{experiment.script}.py", *experiment.words_without("total_timesteps")]
            title = textwrap.fill(f"{' '.join(words)}, {experiment.steps_text}", 40)
            axes.set_title(f"{experiment.env_id}\n{title}", linespacing=1.3)
            axes.legend(frameon=False, fontsize=7.5)
        figure.supxlabel("steps", fontsize=8.5, color=GRAY)
        figure.supylabel(f"mean return of the last {WINDOW} episodes", fontsize=8.5, color=GRAY)

    write_picture((9, 2.55 * rows), path, draw)


def charts(experiment, path):
    """Draws all curves of an experiment: returns against steps and minutes, the other metrics against steps."""
    sides = sides_of(experiment)

    def draw(figure):
        # two rows of returns, over half the width each, and two rows of four metrics
        grid = figure.add_gridspec(4, 4)
        returns = [(grid[:2, :2], "step", "steps"), (grid[:2, 2:], "seconds", "minutes of training")]
        for place, axis, label in returns:
            axes = figure.add_subplot(place)
            plot(axes, sides, axis=axis, draws_each_run=axis == "step")
            axes.set(title=f"mean return of the last {WINDOW} episodes", xlabel=label)
            axes.legend(frameon=False)
        for i, (name, label) in enumerate(METRICS.items()):
            axes = figure.add_subplot(grid[2 + i // 4, i % 4])
            plot(axes, sides, name, points=50)
            axes.set_title(label)

    write_picture((11, 8), path, draw)


def main():
    runs_by_key = load(RESULTS)
    if not runs_by_key:
        raise SystemExit("error: there are no results; python -m benchmark.collect makes some of runs")
    experiments = experiments_of(runs_by_key)
    for file, root in texts().items():
        file.write_text(with_scores(file.read_text(), experiments, RESULTS, root))
    picture(experiments, ROOT / "docs" / "curves.svg")
    equal_steps.picture(experiments, ROOT / "docs" / "equal_steps.svg")


if __name__ == "__main__":
    main()
