"""Finds which of the details in which two PPOs differ makes their scores differ.

    python -m benchmark.between ppo as-sb3 --env-id CartPole-v1 --seeds 10 --total-timesteps 50000

A and B are ppo, ppo_continuous_action, or lists of recipes/lists. This makes runs of A, of B, of A with each single
detail of B, and of B with each single detail of A. It prints the number of runs and about how long they take before
they begin. The same command continues after a stop. Words after these options are options of every run, such as
--num-envs 8. The folder gets scripts/, runs/, logs/, between.md with the table, and between.svg.
"""

import argparse
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import numpy as np
from scipy import stats

from benchmark import sweep
from benchmark.ablation.effects import area
from benchmark.compare import find_runs, read_runs
from benchmark.curves import COLORS, GRAY, write_picture
from benchmark.results import ROOT
from benchmark.scores import mean_and_deviation, signed
from recipes import lists, recipe

SCRIPTS = "ppo", "ppo_continuous_action"
# Changes that leave every number of a run as it is
SILENT = {
    "without/core-6-uneven": "the sizes of minibatches divide the rollout",
    "without/core-12-k3": "it changes a number that is logged, and nothing else",
}
PILOT_UPDATES = 2, 12  # of two short runs, whose times say how long the others take


class Detail(NamedTuple):
    """What A and B have in different forms: changes of the script that A has, and those that B has in their place."""

    of_a: tuple  # of lists.Change
    of_b: tuple

    @property
    def rows(self):
        """The rows of docs/conformance.md, in their order."""
        rows = [row for change in (*self.of_a, *self.of_b) for row in change.rows]
        return list(dict.fromkeys(rows))

    @property
    def name(self):
        """Such as "core-9", a part of names of files: the changes of B, or of A where B has none."""
        changes = self.of_b or self.of_a
        return "+".join(Path(change.name).name.lstrip("-") for change in changes)

    @property
    def mark(self):
        """Such as "core 9"."""
        return " and ".join(dict.fromkeys(row.partition(":")[0] for row in self.rows))

    def describe(self, a, b):
        """The difference in words, for the names of the sides."""
        sides = []
        for name, changes in ((a, self.of_a), (b, self.of_b)):
            if changes:
                sides.append(f"{name}: {', '.join(change.describe() for change in changes)}")
        return "; ".join(sides)


class Contrast(NamedTuple):
    """A sum of weighted means of scores, with its 95% interval and p value by Welch and Satterthwaite."""

    mean: float
    low: float
    high: float
    p: float

    def text(self, like):
        """Such as "+9.0 [-1.0, +19.0]", with the decimals that suit the score `like`."""
        if np.isnan(self.low):
            return signed(self.mean, like)
        return f"{signed(self.mean, like)} [{signed(self.low, like)}, {signed(self.high, like)}]"


def contrast(weighted):
    """The Contrast of [(weight, scores), ...]; a single run on a side leaves no interval."""
    mean = sum(weight * np.mean(values) for weight, values in weighted)
    if any(len(values) < 2 for _, values in weighted):
        return Contrast(float(mean), np.nan, np.nan, np.nan)
    parts = [weight**2 * np.var(values, ddof=1) / len(values) for weight, values in weighted]
    variance = sum(parts)
    if variance == 0:
        return Contrast(float(mean), np.nan, np.nan, np.nan)
    freedom = sum(part**2 / (len(values) - 1) for part, (_, values) in zip(parts, weighted, strict=True))
    freedom = variance**2 / freedom
    half = stats.t.ppf(0.975, freedom) * variance**0.5
    p = 2 * stats.t.sf(abs(mean) / variance**0.5, freedom)
    return Contrast(float(mean), float(mean - half), float(mean + half), float(p))


# The scripts


def script_for(sides, env_id):
    """The script that both sides are made from, such as "ppo"."""
    named = [side for side in sides if side in SCRIPTS]
    if len(set(named)) == 2:
        sys.exit("error: ppo and ppo_continuous_action have other actions; name a list, such as as-sb3")
    if named:
        return named[0]
    has_box = isinstance(gym.make(env_id).action_space, gym.spaces.Box)
    return "ppo_continuous_action" if has_box else "ppo"


def option_name(word):
    """anneal-lr for "--no-anneal-lr", "--anneal_lr" or "--anneal-lr=False"."""
    return word.partition("=")[0].removeprefix("--").removeprefix("no-").replace("_", "-")


def why_silent(change, options):
    """Why a change makes no difference to runs with these options; "" if it does."""
    given = {option_name(word) for word in options if word.startswith("--")}
    if change.is_option and option_name(change.name) in given:
        return "every run has this option from the command line"
    return SILENT.get(change.name, "")


def changes_of(side, text, options=()):
    """The changes that make a side from the text of the script, without those that are silent in runs with options."""
    if side in SCRIPTS:
        return []
    if side not in lists.names():
        known = ", ".join([*SCRIPTS, *lists.names()])
        sys.exit(f"error: {side} is none of {known}; make compare compares edited scripts")
    return [change for change in lists.changes(side, text) if not why_silent(change, options)]


def details_between(of_a, of_b):
    """The details in which two lists of changes differ. Changes for a common row are one detail."""
    groups = []  # [(rows, changes of A, changes of B), ...]
    for side, changes in enumerate((of_a, of_b)):
        for change in changes:
            if change in of_a and change in of_b:
                continue
            rows = set(change.rows)
            joined = [set(rows), [], []]
            joined[side + 1].append(change)
            for group in [group for group in groups if group[0] & rows]:
                groups.remove(group)
                joined = [joined[0] | group[0], group[1] + joined[1], group[2] + joined[2]]
            groups.append(joined)
    return sorted((Detail(tuple(a), tuple(b)) for _, a, b in groups), key=lambda detail: place(detail.rows[0]))


def place(row):
    """Where a row such as "core 10: entropy bonus" stands among the others."""
    group, count = row.partition(":")[0].split()
    return ("core", "continuous").index(group), int(count)


def text_with(text, changes):
    """The text of a script with changes, in the order of their rows; ValueError where one does not fit."""
    for change in sorted(changes, key=lambda change: place(change.rows[0])):
        text = change.apply(text)
    return text


def variants(a, b, of_a, of_b, details):
    """{name: changes}: A, B, A with each detail of B, and B with each detail of A. With one detail, A and B alone.

    Where there are two details, A with one of them is B without the other: the same script under two names."""
    made = {a: of_a, b: of_b}
    if len(details) > 1:
        for detail in details:
            made[f"{a}+{detail.name}"] = [change for change in of_a if change not in detail.of_a] + [*detail.of_b]
            made[f"{b}-{detail.name}"] = [change for change in of_b if change not in detail.of_b] + [*detail.of_a]
    return made


def write_scripts(folder, texts):
    """Writes {name: text} into a folder, and returns {name: file}; a text with two names is one file."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    file_of_text = {}
    for name, text in texts.items():
        files[name] = file_of_text.setdefault(text, folder / f"{name}.py")
        files[name].write_text(text)
    return files


def make_texts(script, env_id, made):
    """({name: text}, whether they are of ppo_seeds.py), which trains all seeds in one process, where all changes fit.

    made: {name: changes}."""
    seeds = (ROOT / "ppo_seeds.py").read_text()
    for_seeds = []
    if script == "ppo_continuous_action":
        for_seeds.append("with/seeds-continuous")
    elif env_id == "CartPole-v1":
        for_seeds.append("with/seeds-vector")
    try:
        for name in for_seeds:
            seeds = recipe.apply(recipe.read(ROOT / f"recipes/{name}.diff"), seeds)
        return {name: text_with(seeds, changes) for name, changes in made.items()}, True
    except ValueError:
        plain = (ROOT / f"{script}.py").read_text()
        return {name: text_with(plain, changes) for name, changes in made.items()}, False


# The runs


def time_pilot(file, options, seeds, steps):
    """About how many CPU seconds one process takes for these seeds and steps, from two short runs."""
    taken = []
    lengths = []
    for updates in PILOT_UPDATES:
        with tempfile.TemporaryDirectory() as folder:
            args = sweep.make_ours(shlex.join([str(file), *options]), seeds[0], Path(folder)).args
            length = updates * args["num_envs"] * args["num_steps"]
            words = ["--total-timesteps", str(length), "--seed", *map(str, seeds)]
            before = children_seconds()
            done = subprocess.run([sys.executable, file, *options, *words], cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"error: {file.name} does not train: {done.stderr.strip().splitlines()[-1]}")
        taken.append(children_seconds() - before)
        lengths.append(length)
    rate = max(taken[1] - taken[0], 0.0) / (lengths[1] - lengths[0])
    return taken[0] + rate * max(steps - lengths[0], 0)


def children_seconds():
    """The CPU seconds of all processes that this one started and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def read_scores(folder, files, options, seeds):
    """{name: ({seed: final return}, {seed: mean of the curve})} for {name: file}, of the whole runs of these options.

    The folder may also hold runs of other options and seeds, which earlier commands made."""
    groups = [group for named in find_runs(folder / "runs").values() for group in named.values()]
    scores = {}
    for name, file in files.items():
        line = shlex.join([str(file), *options])
        wanted = {sweep.make_ours(line, seed, folder).run_folder() for seed in seeds}
        runs = [run for group in groups for run in group if run[0] in wanted]
        by_seed = read_runs(runs) if runs else {}
        # another process may still be at a run
        by_seed = {seed: run for seed, run in by_seed.items() if run.finished}
        finals = {seed: run.score for seed, run in by_seed.items()}
        scores[name] = finals, {seed: area(run) for seed, run in by_seed.items()}
    return scores


# The table


class Effect(NamedTuple):
    """What a detail changes, on the way from A to B."""

    detail: Detail
    in_a: Contrast  # A with the detail of B, less A
    in_b: Contrast  # B, less B with the detail of A
    both: Contrast  # the mean of the two


def effects_of(a, b, details, scores):
    """(the Contrast of B less A, [Effect, ...]) of {name: [score, ...]}."""
    total = contrast([(1, scores[b]), (-1, scores[a])])
    if len(details) == 1:
        return total, [Effect(details[0], total, total, total)]
    found = []
    for detail in details:
        with_it = scores[f"{a}+{detail.name}"]
        without_it = scores[f"{b}-{detail.name}"]
        in_a = contrast([(1, with_it), (-1, scores[a])])
        in_b = contrast([(1, scores[b]), (-1, without_it)])
        both = contrast([(0.5, with_it), (-0.5, scores[a]), (0.5, scores[b]), (-0.5, without_it)])
        found.append(Effect(detail, in_a, in_b, both))
    return total, found


def verdict(a, b, total, effects, like):
    """Sentences about which detail makes the difference.

    A detail counts as told apart if p times the number of details is below 0.05."""
    if np.isnan(total.p):
        return "With a single seed, or scores that are all the same, nothing can be said."
    clear = [effect for effect in effects if effect.both.p * len(effects) < 0.05]
    clear.sort(key=lambda effect: -abs(effect.both.mean))
    rest = "none of the details" if not clear else "none of the others"
    if total.p >= 0.05:
        words = f"{a} and {b} cannot be told apart: {b} less {a} is {total.text(like)}."
        for effect in clear:
            words += f" {effect.detail.mark} ({effect.detail.name}) changes the return by {effect.both.text(like)}."
        return f"{words} {rest.capitalize()} is told apart." if len(clear) < len(effects) else words
    words = f"{b} is {'better' if total.mean > 0 else 'worse'} than {a} by {total.text(like)}."
    for effect in clear:
        share = effect.both.mean / total.mean
        part = f"{effect.detail.mark} ({effect.detail.name}) changes the return by {effect.both.text(like)}"
        if share < 0:
            words += f" {part}, against the difference."
        elif share >= 0.5:
            words += f" Most of it is {effect.detail.mark} ({effect.detail.name}): {effect.both.text(like)}."
        else:
            words += f" {part}, {share:.0%} of it."
    return f"{words} {rest.capitalize()} is told apart." if len(clear) < len(effects) else words


def table(a, b, details, finals, areas):
    """The lines of a table in Markdown: A and B, and the effect of each detail on the final return and the mean."""
    total, effects = effects_of(a, b, details, finals)
    total_area, effects_area = effects_of(a, b, details, areas)
    like = max(abs(np.mean(finals[a])), abs(np.mean(finals[b])))
    lines = [
        "| | runs | final return | mean of the curve |",
        "|---|---:|---|---|",
    ]
    for name in (a, b):
        cells = [name, str(len(finals[name])), mean_and_deviation(finals[name]), mean_and_deviation(areas[name])]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        f"| {b} less {a} | | {total.text(like)} | {total_area.text(like)} |",
        "",
        f"| detail | change | put into {a} | taken out of {b} | mean of both | mean of the curve, both |",
        "|---|---|---|---|---|---|",
    ]
    by_size = sorted(zip(effects, effects_area, strict=True), key=lambda pair: -abs(pair[0].both.mean))
    for effect, effect_area in by_size:
        contrasts = [effect.in_a, effect.in_b, effect.both, effect_area.both]
        cells = [effect.detail.mark, effect.detail.describe(a, b), *(each.text(like) for each in contrasts)]
        lines.append(f"| {' | '.join(recipe.escape(cell) for cell in cells)} |")
    sum_of_all = sum(effect.both.mean for effect in effects)
    lines += [
        "",
        f"Together the details make {signed(sum_of_all, like)} of {signed(total.mean, like)}; what is missing or too "
        "much is how they act on each other.",
        "",
        verdict(a, b, total, effects, like),
    ]
    return lines


def draw(a, b, details, finals, path):
    """Draws the difference of A and B, and the effect of each detail, as points with their intervals."""
    total, effects = effects_of(a, b, details, finals)
    effects = sorted(effects, key=lambda effect: effect.both.mean)
    rows = [(f"{b} less {a}", [(total, "D", COLORS["ours"])])]
    for effect in effects:
        marks = [(effect.in_a, ">", GRAY), (effect.in_b, "<", GRAY), (effect.both, "o", COLORS["ours"])]
        rows.append((f"{effect.detail.mark}: {effect.detail.name}", marks))

    def panels(figure):
        axes = figure.subplots()
        for y, (_, marks) in enumerate(rows):
            for k, (each, marker, color) in enumerate(marks):
                height = y + 0.22 * (k - (len(marks) - 1) / 2)
                axes.plot([each.low, each.high], [height, height], color=color, linewidth=1.2)
                axes.plot(each.mean, height, marker, color=color, markersize=3.5)
        axes.axvline(0, color=GRAY, linewidth=0.8)
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.invert_yaxis()
        axes.set_xlabel(f"change of the final return; > put into {a}, < taken out of {b}, o both")
        axes.spines[["top", "right"]].set_visible(False)

    write_picture((8, 0.8 + 0.35 * len(rows)), path, panels)


def minutes(seconds):
    """Such as "12 minutes"."""
    return f"{seconds / 60:.1f} minutes" if seconds < 600 else f"{seconds / 60:.0f} minutes"


def report(args, a, b, details, scores):
    """The page of the results; ends the program where a variant has no run."""
    lacking = [name for name, (finals, _) in scores.items() if len(finals) < args.seeds]
    if lacking:
        why = "another process still makes them, or no episode ended in them: raise --total-timesteps"
        sys.exit(f"error: runs are missing of {', '.join(lacking)}: {why}")
    finals = {name: np.array(list(columns[0].values())) for name, columns in scores.items()}
    areas = {name: np.array(list(columns[1].values())) for name, columns in scores.items()}
    about = [args.env_id, f"seeds 1 to {args.seeds}", *([shlex.join(args.options)] if args.options else [])]
    if args.total_timesteps is not None:
        about.insert(1, f"{args.total_timesteps:,} steps")
    lines = [
        f"{', '.join(about)}. The final return is the mean of the last 100 episodes, ± standard deviation over the "
        "seeds; the mean of the curve is that over all updates from the first end of an episode on. Differences have "
        "Welch's 95% intervals.",
        "",
        *table(a, b, details, finals, areas),
    ]
    draw(a, b, details, finals, args.folder / "between.svg")
    (args.folder / "between.md").write_text("\n".join(lines) + "\n")
    return lines


def read_args(words):
    """The options of the command line; what it does not know are `options` of every run."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.between", description=__doc__, formatter_class=plain, allow_abbrev=False
    )
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--env-id", required=True)
    parser.add_argument("--seeds", type=int, default=10, help="seeds 1 to this number")
    parser.add_argument("--total-timesteps", type=int, help="of each run; default: the script's")
    parser.add_argument("--workers", type=int, default=1, help="processes at the same time")
    parser.add_argument("--folder", type=Path, help="default: build/between/A_B_ENVIRONMENT")
    parser.add_argument("--list", action="store_true", help="only say what would be run")
    args, args.options = parser.parse_known_args(words)
    if args.a == args.b:
        parser.error("A and B are the same")
    if args.seeds < 1 or args.workers < 1:
        parser.error("--seeds and --workers must be at least 1")
    if args.folder is None:
        args.folder = ROOT / "build" / "between" / sweep.file_name(f"{args.a}_{args.b}_{args.env_id}")
    args.folder = args.folder.resolve()
    return args


def main(words=None):
    """Runs the command line; `words` replace those of sys.argv."""
    args = read_args(words)
    a, b = args.a, args.b
    script = script_for([a, b], args.env_id)
    text = (ROOT / f"{script}.py").read_text()
    of_a = changes_of(a, text, args.options)
    of_b = changes_of(b, text, args.options)
    details = details_between(of_a, of_b)
    if not details:
        sys.exit(f"error: {a} and {b} differ in nothing that changes a run of {script}.py")
    print(f"{a} and {b} differ in {len(details)} details of {script}.py:")
    for detail in details:
        print(f"- {detail.mark}: {detail.describe(a, b)}")
    for side in {a, b} - {*SCRIPTS}:
        for change in lists.changes(side, text):
            why = why_silent(change, args.options)
            if why:
                print(f"left out: {change.name} of {side}: {why}")
    made = variants(a, b, of_a, of_b, details)
    try:
        texts, side_by_side = make_texts(script, args.env_id, made)
    except ValueError as error:
        sys.exit(f"error: the details cannot be changed alone: {' '.join(str(error).split())}")
    files = write_scripts(args.folder / "scripts", texts)
    options = ["--env-id", args.env_id, *args.options]
    if args.total_timesteps is not None:
        options += ["--total-timesteps", str(args.total_timesteps)]
    every = list(range(1, args.seeds + 1))
    count = len(set(files.values()))
    jobs = count if side_by_side else count * args.seeds
    how = f"in {jobs} processes of ppo_seeds.py" if side_by_side else "each in a process of its own"
    print(f"{count} scripts x {args.seeds} seeds: {count * args.seeds} runs, {how}, in {args.folder}")
    if args.list:
        return
    first = sweep.make_ours(shlex.join([str(files[a]), *options]), 1, args.folder)
    per_job = time_pilot(
        files[a], ["--env-id", args.env_id, *args.options], every if side_by_side else [1], first.steps
    )
    print(f"about {minutes(jobs * per_job / args.workers)}, from two short runs of {a}", flush=True)

    settings = sweep.Settings(
        seeds=every,
        workers=args.workers,
        agents=args.seeds if side_by_side else 1,
        folder=args.folder,
        results=None,
        total_timesteps=None,
        task=None,
        list_only=False,
    )
    before = children_seconds()
    start = time.monotonic()
    failed = sweep.main([shlex.join([str(file), *options]) for file in dict.fromkeys(files.values())], settings)
    if failed:
        sys.exit(f"error: {failed} processes failed; {args.folder / 'logs'} says why")
    cpu = children_seconds() - before
    lines = report(args, a, b, details, read_scores(args.folder, files, options, every))
    print("\n".join(lines))
    print(f"{minutes(cpu)} of CPU time, {minutes(time.monotonic() - start)} in all")
    print(f"{args.folder}: between.md, between.svg")


if __name__ == "__main__":
    main()
