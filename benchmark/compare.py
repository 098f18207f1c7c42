"""Draws the learning curves of a folder of runs, and tests whether two experiments in it differ.

    python -m benchmark.compare runs
    python -m benchmark.compare runs --a ppo --b my_ppo --env-id CartPole-v1 --steps 10000 100000
    python -m benchmark.compare runs --a ppo --b my_ppo

The first writes runs/curves.svg, with a panel for each environment, and prints the scores and the best run. The
second runs Welch's t-test at the 5% level. The third does so in every environment that has both, and summarizes the
environments by median, mean and interquartile mean.

An experiment is named by its --exp-name, or by its script, with the options that differ between the experiments of an
environment. Where its runs have different options, the name alone means the defaults; add options for the others:
--a "ppo --learning-rate 0.001". Without --steps, the longest run of each experiment counts, and scores are compared
after the steps of the shorter of these two. Runs that are left out are named.
"""

import argparse
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmark import aggregate
from benchmark.collect import attempt, describe, read
from benchmark.curves import together
from benchmark.experiments import Experiment
from benchmark.results import WINDOW, Run, option_text
from benchmark.scores import compare, mean_and_deviation, p_value, scores, with_count

# What the numbers of a table are
SHOWN = (
    f"mean return of the last {WINDOW} episodes, ± standard deviation over runs (number of runs); the difference is b "
    "minus a, with its 95% interval"
)


class Unclear(Exception):
    """Why two experiments cannot be compared."""


# Which runs there are


class Names(NamedTuple):
    """The names of an experiment. Only the whole name is that of no other."""

    script: str  # "my_ppo", the script or the --exp-name
    without_steps: str  # "my_ppo --gamma 0.9 --num-envs 8"
    whole: str  # "my_ppo --gamma 0.9 --num-envs 8 --total-timesteps 2048"
    short: str = ""  # "my_ppo --gamma 0.9", where the others have other values of gamma and of nothing else


def names_of(about):
    """The Names of a run's experiment."""
    options = dict(about["options"])
    script = options.pop("exp_name", about["script"])
    words = {name: option_text(name, value) for name, value in options.items()}
    whole = " ".join([script, *words.values()])
    words.pop("total_timesteps", None)
    return Names(script, " ".join([script, *words.values()]), whole)


def find_runs(folder):
    """{environment: {whole name: [(folder, about), ...]}} of a folder of runs; prints a line for each broken run."""
    experiments = {}
    for file in sorted(folder.glob("*/run.json")):
        about, why = attempt(describe, file.parent)
        if about is None:
            print(f"left out: {why}")
            continue
        named = experiments.setdefault(about["env_id"], {})
        named.setdefault(names_of(about).whole, []).append((file.parent, about))
    return experiments


def parts_of(name):
    """The script and the options of a name, sorted, as the order of options does not matter."""
    return sorted(re.split(" (?=--)", name))


def choose(experiments, name):
    """The whole name of the experiment that `name` means; Unclear with a list of names where that is not clear.

    experiments: {whole name: [(folder, about), ...]} of one environment."""
    names = []
    for whole, short in short_names(experiments).items():
        _, about = experiments[whole][0]
        names.append(names_of(about)._replace(short=short))
    for kind in ("whole", "short", "without_steps", "script"):
        meant = [each.whole for each in names if parts_of(getattr(each, kind)) == parts_of(name)]
        if len(meant) == 1:
            return meant[0]
    listed = [f'  "{whole}" ({len(runs)} runs)' for whole, runs in experiments.items()]
    if not listed:
        listed = ["  there are no runs on this environment"]
    problem = "is none of the experiments"
    if any(name in each for each in names):
        problem = "may mean several of the experiments; name one whole"
    raise Unclear("\n".join([f"{name} {problem}:", *listed]))


def read_runs(runs):
    """{seed: Run} of [(folder, about), ...]; prints what is left out.

    Of two runs with one seed the longer counts, or else the one whose folder has the later name, and so time."""
    by_seed = {}
    for folder, about in runs:
        tables, why = attempt(read, folder, about)
        if tables is None:
            print(f"left out: {why}")
            continue
        episodes, updates = tables
        episodes = {name: np.array(column) for name, column in episodes.items()}
        updates = {name: np.array(column) for name, column in updates.items()}
        run = Run(about | {"steps": int(updates["step"][-1])}, episodes, updates)
        seed = about["seed"]
        if seed in by_seed:
            shorter, run = sorted([by_seed[seed], run], key=lambda each: each.about["steps"])
            print(f"left out: {folder.parent / shorter.about['run']}: seed {seed} is there twice")
        by_seed[seed] = run
    hashes = source_hashes(by_seed.values())
    if len(hashes) > 1:
        scripts = ", ".join(sorted({f"{run.about['script']}.py" for run in by_seed.values()}))
        _, about = runs[0]
        whole = names_of(about).whole
        print(f"note: {about['env_id']}: {whole} was run with {len(hashes)} versions of {scripts}")
    return dict(sorted(by_seed.items()))


def source_hashes(runs):
    """The hashes of all texts of scripts that runs were made with."""
    hashes = set()
    for run in runs:
        hashes.add(run.about.get("source"))
        for text in run.about.get("resumed", []):
            hashes.add(text["source"])
    return hashes


# Their scores


def score_at(run, step):
    """Mean return of the last 100 episodes up to a step; None without one, or where the run does not reach it.

    A run that ended less than an update before the step reaches it."""
    returns = run.episodes["return"][run.episodes["step"] <= step][-WINDOW:]
    reaches = run.updates["step"][-1] + run.about["batch_size"] > step
    return returns.mean() if reaches and len(returns) else None


def scores_at(name, runs, step):
    """The scores of runs {seed: Run} after a step, float64 [runs]; prints a line for each run without one."""
    values = []
    for seed, run in runs.items():
        value = score_at(run, step)
        if value is None:
            print(f"left out after {step:,} steps: {name} on {run.about['env_id']}, seed {seed}")
        else:
            values.append(value)
    return np.array(values)


def row(names, a, b, step):
    """The cells of a step's row, from the scores of --a and --b, [runs]."""
    cells = [f"{step:,}", with_count(mean_and_deviation(a), a), with_count(mean_and_deviation(b), b)]
    if not len(a) or not len(b):
        return [*cells, "", "no runs on a side", ""]
    difference = compare(b, a)
    verdict = difference.verdict(names[1]) or "not tested"  # a single run, or no spread on either side
    return [*cells, difference.text(a.mean()), verdict, p_value(difference.p)]


def show(table):
    """Prints a table, [[text, ...], ...], in columns."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


def shared_options(experiments):
    """The options, {name: value}, that are not the default and that all experiments of an environment have.

    experiments: {whole name: [(folder, about), ...]}"""
    if not experiments:
        return {}
    first, *others = (runs[0][1]["options"] for runs in experiments.values())
    shared = {}
    for name, value in first.items():
        if name != "exp_name" and all(name in other and other[name] == value for other in others):
            shared[name] = value
    return shared


def short_names(experiments):
    """{whole name: short name} of the experiments of an environment, {whole name: [(folder, about), ...]}.

    A short name has the options that differ between the experiments, also where they have the default."""
    shared = shared_options(experiments)
    abouts = {whole: runs[0][1] for whole, runs in experiments.items()}
    different = {name for about in abouts.values() for name in about["options"] if name not in shared}
    short = {}
    for whole, about in abouts.items():
        known = about["args"] | about["options"]  # the second has the values of a resume, too
        options = {name: known[name] for name in sorted(different) if name in known and name != "exp_name"}
        if "exp_name" in about["options"]:
            options["exp_name"] = about["options"]["exp_name"]
        short[whole] = names_of(about | {"options": options}).whole
    return short


def best_run(runs):
    """The run with the highest score; one without an episode, whose score is NaN, comes last."""
    return max(runs, key=lambda run: np.nan_to_num(run.score, nan=-np.inf))


def draw_all(folder, experiments):
    """Draws all experiments, and prints their scores, and what is left out."""
    table = [["environment", "experiment", "steps", f"return of the last {WINDOW} episodes"]]
    panels = {}
    scored = {}  # {environment: the runs that are scored}
    for env_id, named in experiments.items():
        short = short_names(named)
        shared = [option_text(name, value) for name, value in shared_options(named).items()]
        if shared and len(named) > 1:
            print(f"{env_id}, all: {' '.join(shared)}")
        for whole, runs in named.items():
            by_seed = read_runs(runs)
            if not by_seed:
                continue
            # the whole name has the options in it, and there is no ppo2 beside it
            experiment = Experiment(whole, env_id, options={}, ours=list(by_seed.values()), ppo2=[])
            scored_folders = {run.about["run"] for run in experiment.scored_runs}
            for run in experiment.ours:
                if run.about["run"] not in scored_folders:
                    what = "not drawn, and not in the score" if experiment.finished else "not in the score"
                    print(f"{what}: {run.about['run']}, stopped at {run.about['steps']:,} steps")
            values = scores(experiment.scored_runs)
            table.append([env_id, short[whole], experiment.steps_text, with_count(mean_and_deviation(values), values)])
            # the mean reaches as far as the shortest run
            drawn = experiment.scored_runs if experiment.finished else experiment.ours
            panels.setdefault(env_id, []).append((short[whole], drawn))
            scored.setdefault(env_id, []).extend(experiment.scored_runs)
    if not panels:
        raise SystemExit(f"error: {folder} has no run that can be drawn")
    show(table)
    for env_id, runs in scored.items():
        best = best_run(runs)
        print(f"{env_id}, the run with the highest return, {best.score:.4g}: {folder / best.about['run']}")
    together(panels, folder / "curves.svg")
    print(f"{folder / 'curves.svg'}: open it in a browser")


def read_sides(names, experiments):
    """(whole names, [{seed: Run}, {seed: Run}]) of the experiments that --a and --b name in one environment.

    Unclear if both names mean one experiment, or no run can be read."""
    wholes = [choose(experiments, name) for name in names]
    if wholes[0] == wholes[1]:
        raise Unclear(f"--a and --b are the same experiment, {wholes[0]}")
    sides = []
    for whole in wholes:
        sides.append(read_runs(experiments[whole]))
        if not sides[-1]:
            raise Unclear(f"no run of {whole} can be read")
    return wholes, sides


def common_steps(sides):
    """The steps that both sides reach: those of the longest run of the side that came less far."""
    longest = []
    for runs in sides:
        longest.append(max(run.about["steps"] for run in runs.values()))
    return min(longest)


def compare_two(args, experiments):
    """Prints whether two experiments differ after each of the steps, and what is left out."""
    names = [args.a, args.b]
    wholes, sides = read_sides(names, experiments.get(args.env_id, {}))
    table = [["after steps", *names, "difference", "verdict", "p"]]
    for step in args.steps or [common_steps(sides)]:
        a, b = (scores_at(name, runs, step) for name, runs in zip(names, sides, strict=True))
        table.append(row(names, a, b, step))
    print(f"{args.env_id}, {wholes[0]} (a) and {wholes[1]} (b): {SHOWN}")
    show(table)


def compare_everywhere(args, experiments):
    """Prints whether two experiments differ in each environment that has both, and what is left out.

    Also summarizes the environments. Unclear if no environment has both."""
    names = [args.a, args.b]
    problems = []
    table = [["environment", "after steps", *names, "difference", "verdict", "p"]]
    tasks = {}  # {environment: (scores of --a, scores of --b)}
    for env_id, named in experiments.items():
        try:
            wholes, sides = read_sides(names, named)
        except Unclear as problem:
            problems.append(problem)
            print(f"left out: {env_id}: {str(problem).splitlines()[0].removesuffix(':')}")
            continue
        print(f"{env_id}: {wholes[0]} (a) and {wholes[1]} (b)")
        step = common_steps(sides)
        a, b = (scores_at(name, runs, step) for name, runs in zip(names, sides, strict=True))
        table.append([env_id, *row(names, a, b, step)])
        if len(a) and len(b):
            tasks[env_id] = (a, b)
    if len(table) == 1 and problems:
        raise problems[0]
    if len(table) == 1:
        raise Unclear("there are no runs")
    print(SHOWN)
    show(table)
    if len(tasks) > 1:
        show(summary(names, tasks))


def summary(names, tasks):
    """The table [[text, ...], ...] of statistics over tasks, {environment: (scores of --a, of --b)}, arrays [runs].

    In each environment 0 is the lowest score of a run, and 1 the highest. The statistics need the same number of runs
    everywhere, so each side has as many as the side with the fewest. Prints what is left out."""
    counts = {len(side) for sides in tasks.values() for side in sides}
    count = min(counts)
    if len(counts) > 1:
        print(f"the summary has {count} runs of each side in each environment, those with the lowest seeds")
    scaled = []
    for env_id, sides in tasks.items():
        values = np.array([side[:count] for side in sides])
        if np.ptp(values) == 0:
            print(f"not in the summary: {env_id}, where all scores are the same")
        else:
            scaled.append((values - values.min()) / np.ptp(values))
    table = [[f"{len(scaled)} environments, scaled to [0, 1]", *names, "difference"]]
    if not scaled:
        return table
    of_a = [pair[0] for pair in scaled]
    of_b = [pair[1] for pair in scaled]
    values = np.array(of_a + of_b)  # [2 * tasks, runs]
    for name in ("median", "mean", "IQM"):
        cells = [name]
        for statistic in statistics_of_sides(aggregate.STATISTICS[name], len(scaled)):
            cells.append(f"{statistic(values):.2f}")
            if count > 1:
                low, high = aggregate.interval(statistic, values)
                cells[-1] += f" [{low:.2f}, {high:.2f}]"
        table.append(cells)
    return table


def statistics_of_sides(statistic, num_tasks):
    """A statistic of --a, that of --b, and b less a, as functions of scores [..., 2 * tasks, runs]."""

    def of_a(values):
        return statistic(values[..., :num_tasks, :])

    def of_b(values):
        return statistic(values[..., num_tasks:, :])

    def difference(values):
        return of_b(values) - of_a(values)

    return [of_a, of_b, difference]


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default="runs", help="folder of the runs' folders")
    parser.add_argument("--a", help="an experiment: its script or --exp-name, perhaps with options")
    parser.add_argument("--b", help="the other")
    parser.add_argument("--env-id", help="the environment; default: all that have both")
    parser.add_argument(
        "--steps", type=int, nargs="+", help="after which steps; default: as far as the longest runs of both go"
    )
    args = parser.parse_args()
    if (args.a is None) != (args.b is None):
        parser.error("a comparison needs --a and --b")
    if args.a is None and args.env_id is not None:
        parser.error("--env-id belongs to a comparison of --a and --b")
    if args.env_id is None and args.steps:
        parser.error("--steps belongs to a comparison in one environment: give --env-id")
    experiments = find_runs(args.folder)
    try:
        if args.a is None:
            draw_all(args.folder, experiments)
        elif args.env_id is None:
            compare_everywhere(args, experiments)
        else:
            compare_two(args, experiments)
    except Unclear as problem:
        raise SystemExit(f"error: {problem}") from None


if __name__ == "__main__":
    main()
