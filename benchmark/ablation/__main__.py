"""Measures what recipes do, a detail taken out or an idea put in: trains a script and its recipes with the same seeds.

    python benchmark/ablation run --recipes without/core --env-id CartPole-v1 --steps 50000 --seeds 10
    python benchmark/ablation run --recipes "with/(muon|ppg)" --env-id CartPole-v1 --steps 50000 --seeds 10
    python benchmark/ablation run --script ppo_continuous_action.py --env-id Hopper-v4 --steps 200000 --seeds 3
    python benchmark/ablation effects

`run` makes the runs that neither build/ablation nor benchmark/ablation/results has, seed by seed, into build/ablation,
and collects them into the results. `effects` computes the effects from these, writes them into the headers of the
recipes and into benchmark/ablation/README.md, and draws docs/effects.svg.
"""

import argparse
import contextlib
import importlib
import json
import os
import re
import runpy
import sys
import traceback
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/ablation"
RESULTS = Path(__file__).parent / "results"
sys.path.insert(0, str(ROOT))

from benchmark.collect import collect, defaults, newest_step, reason, short, typed  # noqa: E402
from benchmark.report import COLORS, GRAY, WINDOW, load  # noqa: E402
from benchmark.sweep import machine  # noqa: E402
from recipes.__main__ import KEYS, apply, escape, recipes, write  # noqa: E402


def scripts(names, parent):
    """The paths of the scripts to run, which it writes: the parent, and each recipe's. Old ones stay, and are named.

    The names of the recipes, as without/core-3, begin as the regular expression `names` says. A recipe that is made
    for another script is taken where it fits the parent."""
    folder, source = FOLDER / Path(parent).stem, (ROOT / parent).read_text()
    folder.mkdir(parents=True, exist_ok=True)
    unfit = []
    texts = {Path(parent).stem: source}
    for recipe in recipes():
        if re.match(names, recipe.name) and recipe.file.stem != "core-12":  # it changes the log alone
            try:
                texts[recipe.file.stem] = apply(recipe, source)
            except ValueError:
                unfit.append(recipe.name)
    if unfit:
        print(f"not for {parent}: {', '.join(unfit)}")
    files = {folder / f"{name}.py": text for name, text in texts.items()}
    for file, text in files.items():
        if not file.exists():
            file.write_text(text)
    if old := [file.name for file, text in files.items() if file.read_text() != text]:
        print(f"changed since {folder} was made, which is what is trained: {', '.join(old)}")
    return list(files)


def run_of(script, env_id, seed, options):
    """The folder of a run that came to its end; None where there is none."""
    name = re.sub("[/:]", "-", f"{env_id}__{script.stem}__{seed}")
    for run in script.parent.glob(f"runs/{name}__*/"):
        if done := newest_step(run):
            args = json.loads((run / "run.json").read_text())["args"]
            if all(args[name] == value for name, value in options.items()):
                if done + args["num_envs"] * args["num_steps"] > args["total_timesteps"]:
                    return run
    return None


def has_result(script, env_id, seed, options):
    """Whether the results have this run; collect() leaves an option that is the default out of the name."""
    default = defaults(script.read_text())
    named = [f"{name}={value}" for name, value in sorted(options.items()) if default[name] != value]
    name = "__".join([env_id, script.stem, str(seed), *named]).replace("/", "-")
    return (RESULTS / f"ours/{short(name)}.json").exists()


def other_parent(script, env_id, options):
    """Another script of ours with which the results have runs of such a length and options; None where there is none.

    A result has its recipe's name alone, so those of two scripts would be taken for each other."""
    default = defaults((ROOT / script).read_text())
    batch_size = default["num_envs"] * default["num_steps"]
    wanted = options["total_timesteps"] // batch_size * batch_size
    others = {name: value for name, value in options.items() if name != "total_timesteps" and value != default[name]}
    for file in RESULTS.glob("ours/*.json"):
        about = json.loads(file.read_text())
        there = {name: value for name, value in about["options"].items() if name != "total_timesteps"}
        if (about["env_id"], about["steps_wanted"], there) == (env_id, wanted, others):
            if about["script"] != Path(script).stem and (ROOT / f"{about['script']}.py").exists():
                return about["script"]
    return None


def make_run(script, env_id, seed, options):
    """Makes one run in a child of this process, which has imported the libraries already; True where that went well.

    The file log beside the script has what the runs printed, and why one failed."""
    if child := os.fork():
        return os.waitpid(child, 0)[1] == 0
    status = 1
    try:
        os.chdir(script.parent)
        words = [word for option in options.items() for word in typed(option).split()]
        sys.argv = [script.name, "--env-id", env_id, "--seed", str(seed), *words, "--save-every", "0", "--no-cuda"]
        with open("log", "a") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            try:
                runpy.run_path(str(script), run_name="__main__")
            except BaseException:
                traceback.print_exc()
                raise
        status = 0
    finally:
        os._exit(status)


def make_runs(args):
    """Makes the runs that are missing, one after the other, and collects all; returns how many failed."""
    chosen, failed, about = scripts(args.recipes, args.script), 0, json.dumps(machine(workers=1), indent=2)
    options = {"total_timesteps": args.steps, "compile": args.compile}
    if other := other_parent(args.script, args.env_id, options):
        sys.exit(f"error: the results have runs of so many steps with {other}.py: choose other --steps")
    importlib.import_module("ppo")  # and the libraries with it
    for seed in range(1, args.seeds + 1):
        for script in chosen:
            which = script, args.env_id, seed, options
            if run_of(*which) is None and not has_result(*which):
                well = make_run(*which) and run_of(*which) is not None
                failed += not well
                print(f"{script.stem}, seed {seed}: {'finished' if well else 'failed'}", flush=True)
                if well:
                    (run_of(*which) / "machine.json").write_text(about)
    for seed in range(1, args.seeds + 1):
        for script in chosen:
            if run := run_of(script, args.env_id, seed, options):
                try:
                    collect(run, RESULTS, "unknown")
                except Exception as error:  # whatever is wrong with one run, the others are collected
                    failed += 1
                    print(f"broken, left out: {run}: {reason(error)}")
    return failed


def area(run):
    """Mean over the updates of the mean return of the last 100 episodes up to each: what a run earned on its way."""
    ended = np.searchsorted(run.episodes["step"], run.updates["step"], side="right")
    return float(np.mean([run.episodes["return"][max(n - WINDOW, 0) : n].mean() for n in ended if n]))


def effect(parent, recipe):
    """(difference of the means, its 95% interval) of two samples, by Welch's t-test; the recipe's less the parent's.

    The interval is NaN where a sample is a single run."""
    low = high = np.nan
    if min(len(parent), len(recipe)) > 1:
        low, high = stats.ttest_ind(recipe, parent, equal_var=False).confidence_interval(0.95)
    return np.mean(recipe) - np.mean(parent), low, high


def effects():
    """{what was run: [(recipe, parent's runs, its runs, final return's effect, area's effect), ...]}, in order of
    the effect on the final return; what was run is "CartPole-v1, 49,664 steps"."""
    tables, groups, known = {}, {}, {recipe.file.stem: recipe for recipe in recipes()}
    for (_, script, env_id, options, steps), runs in load(RESULTS).items():
        words = [typed(option) for option in json.loads(options).items() if option[0] != "total_timesteps"]
        groups.setdefault(f"{' '.join([env_id, *words])}, {steps:,} steps", {})[script] = runs
    for what, by_script in groups.items():
        parents = [script for script in by_script if (ROOT / f"{script}.py").exists()]
        if len(parents) != 1:
            sys.exit(f"error: {what}: the results must have one script's runs to compare with, not {len(parents)}")
        parent = by_script[parents[0]]
        for script in sorted(by_script.keys() & known.keys()):
            runs = by_script[script]
            finals = effect(*([run.score for run in group] for group in (parent, runs)))
            areas = effect(*([area(run) for run in group] for group in (parent, runs)))
            tables.setdefault(what, []).append((known[script], parent, runs, finals, areas))
    for rows in tables.values():
        rows.sort(key=lambda row: row[3][0])
    return tables


def interval(difference):
    """ "+4.2 [-1.0, 9.4]"; "+4.2 (no interval)" where there is none."""
    mean, low, high = difference
    return f"{mean:+.1f} (no interval)" if np.isnan(low) else f"{mean:+.1f} [{low:.1f}, {high:.1f}]"


def spread(scores):
    """ "199.3 ± 17.5", mean and standard deviation; "199.3" of a single run."""
    return f"{np.mean(scores):.1f}" + (f" ± {np.std(scores, ddof=1):.1f}" if len(scores) > 1 else "")


def studies():
    """{recipe: what studies found about its detail, or where its idea is from}; of docs/details.md, or the header."""
    text = (ROOT / "docs/details.md").read_text()
    rows = dict(re.findall(r'^\| <a id="([\w-]+)"></a>.*\| (.*) \|$', text, re.MULTILINE))
    found = {}
    for recipe in recipes():
        detail = re.match(r"without/(\w+-\d+)", recipe.name)
        found[recipe.name] = rows[detail[1]] if detail else recipe.header["source"]
    return found


def draw(tables, path):
    """Draws the effects as points with their intervals, of each environment the final return and the curve's mean.

    The picture is an SVG without a background, in colours that are readable on white and on black."""
    settings = {"svg.hashsalt": "ppo", "svg.fonttype": "none", "font.size": 8.5, "axes.titlesize": 9}
    colored = ["text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color"]
    heights = [len(rows) for rows in tables.values()]
    with matplotlib.rc_context(settings | dict.fromkeys(colored, GRAY)):
        figure = Figure(figsize=(9, 0.9 * len(heights) + 0.19 * sum(heights)), layout="constrained")
        panels = figure.subplots(len(heights), 2, squeeze=False, sharey="row", height_ratios=heights)
        for (what, rows), pair in zip(tables.items(), panels, strict=True):
            for axes, score, column in zip(pair, ("final return", "mean of the curve"), (3, 4), strict=True):
                for y, row in enumerate(rows):
                    mean, low, high = row[column]
                    color = COLORS["ours"] if low > 0 or high < 0 else GRAY
                    axes.plot([low, high], [y, y], color=color, linewidth=1.2)
                    axes.plot(mean, y, "o", color=color, markersize=3.5)
                axes.axvline(0, color=GRAY, linewidth=0.8)
                axes.set_title(f"{what}: {score}" if axes is pair[0] else score)
                axes.set_yticks(range(len(rows)), [row[0].name for row in rows])
                axes.spines[["top", "right"]].set_visible(False)
            pair[0].invert_yaxis()
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None, "Creator": None})


def write_effects():
    """Writes the effects into the recipes' headers and into the table of this folder's README."""
    lines, said, found, tables = [], {}, studies(), effects()
    draw(tables, ROOT / "docs/effects.svg")
    for what, rows in tables.items():
        _, parent, _, _, _ = rows[0]
        script = f"{parent[0].about['script']}.py"
        finals, areas = [run.score for run in parent], [area(run) for run in parent]
        shown = f"mean ± standard deviation, {len(parent)} seeds" if len(parent) > 1 else "1 seed"
        lines += [
            f"### {what}", "",
            f"`{script}` itself ends at {spread(finals)}; the mean of its curve is {spread(areas)} ({shown}).", "",
            "| recipe | what it puts in place | seeds | final return | mean of the curve | "
            "what studies found, or source |",
            "|---|---|---|---|---|---|",
        ]  # fmt: skip
        for recipe, _, runs, final, whole in rows:
            link = f"[{recipe.name}](../../recipes/{recipe.name}.diff)"
            cells = link, recipe.header["what"], str(len(runs)), interval(final), interval(whole), found[recipe.name]
            lines.append(f"| {' | '.join(escape(cell) for cell in cells)} |")
            seeds = f"{len(runs)} seeds" if len(runs) > 1 else "1 seed"
            said.setdefault(recipe.name, []).append(
                f"{what}, {seeds}: final return {interval(final)}, mean of the curve {interval(whole)} "
                f"({'95% intervals; ' if len(runs) > 1 else ''}that of {script} is {np.mean(finals):.1f}, "
                f"{np.mean(areas):.1f})"
            )
        lines.append("")
    readme = Path(__file__).parent / "README.md"
    before, after = readme.read_text().split("<!-- effects -->")[0], readme.read_text().split("<!-- /effects -->")[1]
    readme.write_text(before + "<!-- effects -->\n" + "\n".join(lines) + "<!-- /effects -->" + after)
    for recipe in recipes():
        if recipe.name in said:
            header = recipe.header | {"measured effect": "; ".join(said[recipe.name])}
            write(recipe._replace(header={key: header[key] for key in KEYS if key in header}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["run", "effects"])
    parser.add_argument("--recipes", default="without/", help="how the names begin, a regular expression")
    parser.add_argument("--script", default="ppo.py", help="the parent, which recipes of others may fit too")
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--compile", action="store_true", help="train with --compile: faster in runs of minutes")
    args = parser.parse_args()
    if args.what == "effects":
        write_effects()
    else:
        try:
            sys.exit(make_runs(args) > 0)
        except KeyboardInterrupt:
            sys.exit("stopped; the same command makes what is missing")


if __name__ == "__main__":
    main()
