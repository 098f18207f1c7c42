"""Compares two experiments of one's own, straight from a folder of runs: can they be told apart after so many steps?

    python benchmark/compare.py runs --a ppo --b my_ppo --env-id CartPole-v1 --steps 10000 100000

An experiment is an --exp-name, or a script that ran without one. Where its runs have different options, the name alone
means those of the defaults; name the others with theirs, such as --a "ppo --learning-rate 0.001". The test is the
report's: Welch's t-test at 5%, and the visible difference is the smallest that it finds with a power of 80%. What is
left out is named.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmark.collect import describe, read, reason, typed  # noqa: E402
from benchmark.report import WINDOW, Run, compare, number, p_value  # noqa: E402


def names_of(about):
    """The names of a run's experiment: short, "my_ppo", and whole, "my_ppo --gamma 0.9 --total-timesteps 2048"."""
    options = dict(about["options"])
    short = options.pop("exp_name", None) or about["script"]
    return short, " ".join([short, *map(typed, options.items())])


def without_steps(about):
    """The whole name without the length of the runs: "my_ppo --gamma 0.9"."""
    options = {name: value for name, value in about["options"].items() if name != "total_timesteps"}
    return names_of(about | {"options": options})[1]


def found_in(folder, env_id):
    """({whole name: [(short name, run, about), ...]} of the runs on an environment, lines on what is broken)."""
    experiments, broken = {}, []
    for run in sorted(path for path in folder.iterdir() if path.is_dir()):
        try:
            about = describe(run)
        except Exception as error:  # whatever is wrong with one run, the others are compared
            broken.append(f"left out: {run}: {reason(error)}")
            continue
        if about["env_id"] == env_id:
            short, whole = names_of(about)
            experiments.setdefault(whole, []).append((short, run, about))
    return experiments, broken


def chosen(experiments, name):
    """The whole name of the one experiment that `name` means; SystemExit with the names that there are otherwise."""
    if name in experiments:
        return name
    meant = [whole for whole, runs in experiments.items() if without_steps(runs[0][2]) == name]
    meant = meant or [whole for whole, runs in experiments.items() if runs[0][0] == name]
    if len(meant) != 1:
        names = "\n".join(f'  "{whole}" ({len(runs)} runs)' for whole, runs in experiments.items())
        what = "is none of the experiments" if not meant else "may mean several of the experiments; name one whole"
        raise SystemExit(f"error: {name} {what}:\n{names or '  there are no runs on this environment'}")
    return meant[0]


def read_all(runs):
    """({seed: Run}, lines on what is left out): of two runs of a seed the one that got further, or else the newer."""
    by_seed, lines = {}, []
    for _, run, about in runs:
        try:
            tables = read(run, about)
        except Exception as error:  # whatever is wrong with one run, the others are compared
            lines.append(f"left out: {run}: {reason(error)}")
            continue
        episodes, updates = ({name: np.array(column) for name, column in table.items()} for table in tables)
        one, seed = Run(about, episodes, updates), about["seed"]
        before = by_seed.get(seed)
        by_seed[seed] = one if before is None or one.updates["step"][-1] >= before.updates["step"][-1] else before
        if before is not None:
            less = before if by_seed[seed] is one else one
            lines.append(f"left out: {run.parent / less.about['run']}: seed {seed} is there twice")
    sources = {text.get("source") for one in by_seed.values() for text in (one.about, *one.about.get("resumed", ()))}
    if len(sources) > 1:
        scripts = ", ".join(sorted({f"{one.about['script']}.py" for one in by_seed.values()}))
        lines.append(f"note: {names_of(about)[1]} was run with {len(sources)} different texts of {scripts}")
    return by_seed, lines


def reached(run, step):
    """Whether a run has done all updates up to a step."""
    return run.updates["step"][-1] + run.about["batch_size"] > step


def score(run, step):
    """Mean return of the last 100 episodes that ended by a step; None where none had, or where the run ended before."""
    returns = run.episodes["return"][run.episodes["step"] <= step][-WINDOW:]
    return returns.mean() if reached(run, step) and len(returns) else None


def row(names, sides, step):
    """(cells of the row of a step, lines on the runs that have no score there)."""
    scores = [{seed: score(run, step) for seed, run in runs.items()} for runs in sides]
    lines = [f"left out after {step:,} steps: {name}, seed {seed}" for name, side in zip(names, scores, strict=True)
             for seed, value in side.items() if value is None]  # fmt: skip
    first, second = (np.array([value for value in side.values() if value is not None]) for side in scores)
    cells = [f"{step:,}"]
    for values in (first, second):
        spread = f" ± {number(values.std(ddof=1), values.mean())}" if len(values) > 1 else ""
        cells.append(f"{number(values.mean())}{spread} ({len(values)})" if len(values) else "")
    comparison = compare(second, first, names[1])
    if comparison is None:
        return [*cells, "", "too few runs", "", ""], lines
    size, p, visible = first.mean(), "", ""
    if comparison.visible is not None:
        p, visible = p_value(comparison.welch), number(comparison.visible, size)
    difference = second.mean() - size
    return [*cells, f"{'+' if difference > 0 else ''}{number(difference, size)}", comparison.verdict, p, visible], lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default="runs", help="folder of the runs' folders")
    parser.add_argument("--a", required=True, help="an experiment: script or --exp-name")
    parser.add_argument("--b", required=True, help="the other")
    parser.add_argument("--env-id", required=True)
    parser.add_argument("--steps", type=int, nargs="+", help="after which steps; default: as far as both go")
    args = parser.parse_args()
    if not args.folder.is_dir():
        raise SystemExit(f"error: {args.folder} is no folder")
    experiments, lines = found_in(args.folder, args.env_id)
    names, sides = [args.a, args.b], []
    wholes = [chosen(experiments, name) for name in names]
    if len(set(wholes)) == 1:
        raise SystemExit(f"error: --a and --b are the same experiment, {wholes[0]}")
    for whole in wholes:
        runs, more = read_all(experiments[whole])
        sides.append(runs)
        lines += more
        if not runs:
            raise SystemExit("\n".join([*lines, f"error: no run of {whole} can be read"]))
    furthest = [max(run.updates["step"][-1] for run in runs.values()) for runs in sides]
    table = [["after steps", *names, "difference", "verdict", "p", "visible difference"]]
    for step in args.steps or [int(min(furthest))]:
        cells, more = row(names, sides, step)
        table.append(cells)
        lines += more
    print(f"{args.env_id}, {wholes[0]} (a) and {wholes[1]} (b): mean return of the last {WINDOW} episodes, ± standard "
          "deviation over runs (how many)")  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    print(*lines, sep="\n", end="\n" if lines else "")


if __name__ == "__main__":
    main()
