"""Draws the learning curves of a folder of runs, and tests whether two experiments in it differ.

    python benchmark/compare.py runs
    python benchmark/compare.py runs --a ppo --b my_ppo --env-id CartPole-v1 --steps 10000 100000

The first writes runs/curves.svg, with a panel for each environment, and prints the scores. The second runs Welch's
t-test at the 5% level. An experiment is named by its --exp-name, or by its script. Where its runs have different
options, the name alone means the defaults; add options for the others: --a "ppo --learning-rate 0.001". Runs that are
left out are named.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmark.collect import attempt, describe, read, typed  # noqa: E402
from benchmark.curves import WINDOW, together  # noqa: E402
from benchmark.report import Experiment, Run, compare, mean_and_spread, p_value  # noqa: E402


def names_of(about):
    """The names of a run's experiment, the longest last: "my_ppo", "my_ppo --gamma 0.9", and "my_ppo --gamma 0.9
    --total-timesteps 2048"."""
    options = dict(about["options"])
    name = options.pop("exp_name", None) or about["script"]
    some = {option: value for option, value in options.items() if option != "total_timesteps"}
    return name, *(" ".join([name, *map(typed, each.items())]) for each in (some, options))


def found_in(folder):
    """(experiments, lines): a folder's runs as {environment: {whole name: [(run, about), ...]}}, and a line for each
    broken run."""
    experiments, broken = {}, []
    for run in sorted(path.parent for path in folder.glob("*/run.json")):
        about, why = attempt(describe, run)
        if about:
            experiments.setdefault(about["env_id"], {}).setdefault(names_of(about)[-1], []).append((run, about))
        broken += [why] if why else []
    return experiments, broken


def chosen(experiments, name):
    """The whole name of the experiment that `name` means; SystemExit with a list of names where that is not clear."""
    named = {whole: names_of(runs[0][1]) for whole, runs in experiments.items()}
    meanings = [[whole for whole, names in named.items() if names[kind] == name] for kind in (2, 1, 0)]
    for meant in meanings:
        if len(meant) == 1:
            return meant[0]
    names = "\n".join(f'  "{whole}" ({len(runs)} runs)' for whole, runs in experiments.items())
    what = "may mean several of the experiments; name one whole" if any(meanings) else "is none of the experiments"
    raise SystemExit(f"error: {name} {what}:\n{names or '  there are no runs on this environment'}")


def read_all(runs):
    """({seed: Run}, lines on what is left out): of two runs with one seed the longer, or else the newer."""
    by_seed, lines = {}, []
    for folder, about in runs:
        tables, why = attempt(read, folder, about)
        if why:
            lines.append(why)
            continue
        tables = [{name: np.array(column) for name, column in table.items()} for table in tables]
        one = Run(about | {"steps": int(tables[1]["step"][-1])}, *tables)
        other = by_seed.get(about["seed"], one)
        kept, dropped = (one, other) if one.updates["step"][-1] >= other.updates["step"][-1] else (other, one)
        by_seed[about["seed"]] = kept
        if other is not one:
            lines.append(f"left out: {folder.parent / dropped.about['run']}: seed {about['seed']} is there twice")
    sources = {text.get("source") for one in by_seed.values() for text in (one.about, *one.about.get("resumed", ()))}
    if len(sources) > 1:
        scripts = ", ".join(sorted({f"{one.about['script']}.py" for one in by_seed.values()}))
        lines.append(f"note: {names_of(runs[0][1])[-1]} was run with {len(sources)} different texts of {scripts}")
    return by_seed, lines


def score(run, step):
    """Mean return of the last 100 episodes up to a step; None without one, or if the run is at least an update
    shorter."""
    returns = run.episodes["return"][run.episodes["step"] <= step][-WINDOW:]
    return returns.mean() if run.updates["step"][-1] + run.about["batch_size"] > step and len(returns) else None


def row(names, sides, step):
    """(the cells of a step's row, a line for each run without a score there)."""
    scores = [{seed: score(run, step) for seed, run in runs.items()} for runs in sides]
    lines = [f"left out after {step:,} steps: {name}, seed {seed}" for name, side in zip(names, scores, strict=True)
             for seed, value in side.items() if value is None]  # fmt: skip
    first, second = (np.array([value for value in side.values() if value is not None]) for side in scores)
    cells = [f"{step:,}", mean_and_spread(first), mean_and_spread(second)]
    if not len(first) or not len(second):
        return [*cells, "", "too few runs", ""], lines
    found = compare(second, first)
    return [*cells, found.text(first.mean()), found.verdict(names[1]) or "nothing to test by", p_value(found.p)], lines


def show(table):
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


def curves(folder, experiments, lines):
    """Draws all experiments, and prints their scores."""
    table, panels = [["environment", "experiment", "steps", f"return of the last {WINDOW} episodes"]], {}
    for env_id, named in experiments.items():
        for whole, runs in named.items():
            by_seed, more = read_all(runs)
            lines += more
            if by_seed:
                one = Experiment(whole, env_id, {}, list(by_seed.values()), [])
                lines += [f"not in the score: {run.about['run']}, stopped at {run.about['steps']:,} steps"
                          for run in one.ours if run not in one.done]  # fmt: skip
                table.append([env_id, whole, one.steps, mean_and_spread(one.done)])
                panels.setdefault(env_id, []).append((whole, one.ours))
    if not panels:
        raise SystemExit("\n".join([*lines, f"error: {folder} has no run that can be drawn"]))
    show(table)
    together(panels, folder / "curves.svg")
    print(f"{folder / 'curves.svg'}: open it in a browser")


def test(args, experiments, lines):
    """Prints whether two experiments differ after each of the steps."""
    names, sides, experiments = [args.a, args.b], [], experiments.get(args.env_id, {})
    wholes = [chosen(experiments, name) for name in names]
    if len(set(wholes)) == 1:
        raise SystemExit(f"error: --a and --b are the same experiment, {wholes[0]}")
    for whole in wholes:
        runs, more = read_all(experiments[whole])
        sides.append(runs)
        lines += more
        if not runs:
            raise SystemExit("\n".join([*lines, f"error: no run of {whole} can be read"]))
    table = [["after steps", *names, "difference", "verdict", "p"]]
    for step in args.steps or [int(min(max(run.updates["step"][-1] for run in runs.values()) for runs in sides))]:
        cells, more = row(names, sides, step)
        table.append(cells)
        lines += more
    print(f"{args.env_id}, {wholes[0]} (a) and {wholes[1]} (b): mean return of the last {WINDOW} episodes, ± standard "
          "deviation over runs (how many); b less a with its 95% interval")  # fmt: skip
    show(table)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default="runs", help="folder of the runs' folders")
    parser.add_argument("--a", help="an experiment: script or --exp-name")
    parser.add_argument("--b", help="the other")
    parser.add_argument("--env-id", help="the environment of both")
    parser.add_argument("--steps", type=int, nargs="+", help="after which steps; default: as far as both go")
    args = parser.parse_args()
    if not args.folder.is_dir():
        raise SystemExit(f"error: {args.folder} is no folder")
    if len({args.a is None, args.b is None, args.env_id is None}) > 1:
        parser.error("a comparison needs --a, --b and --env-id")
    experiments, lines = found_in(args.folder)
    if args.a is None:
        curves(args.folder, experiments, lines)
    else:
        test(args, experiments, lines)
    print(*lines, sep="\n", end="\n" if lines else "")


if __name__ == "__main__":
    main()
