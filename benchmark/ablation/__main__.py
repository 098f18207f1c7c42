"""Measures what recipes do, a detail taken out or an idea put in: trains a script and its recipes with the same seeds.

    python benchmark/ablation run --recipes without/core --env-id CartPole-v1 --steps 50000 --seeds 10
    python benchmark/ablation run --recipes "with/(muon|ppg)" --env-id CartPole-v1 --steps 50000 --seeds 10
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

from benchmark.collect import collect, defaults  # noqa: E402
from benchmark.report import COLORS, GRAY, WINDOW, load  # noqa: E402
from benchmark.sweep import machine  # noqa: E402
from recipes.__main__ import KEYS, apply, recipes, write  # noqa: E402


def scripts(names):
    """The paths of the scripts to run, which it writes: the recipes' parents, and each recipe's. Old ones stay.

    The names of the recipes, as without/core-3, begin as the regular expression `names` says."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    chosen = [recipe for recipe in recipes() if re.match(names, recipe.name)]
    chosen = [recipe for recipe in chosen if recipe.file.stem != "core-12"]  # it changes the log alone
    texts = {recipe.script.stem: recipe.script.read_text() for recipe in chosen}
    texts |= {recipe.file.stem: apply(recipe, recipe.script.read_text()) for recipe in chosen}
    for name, text in texts.items():
        if not (FOLDER / f"{name}.py").exists():
            (FOLDER / f"{name}.py").write_text(text)
    return [FOLDER / f"{name}.py" for name in texts]


def run_of(script, env_id, seed, steps):
    """The folder of a run that is done, which has its last checkpoint, the only one; None where there is none."""
    found = [file.parent for file in FOLDER.glob(f"runs/{env_id}__{script.stem}__{seed}__*/checkpoint_*.pt")]
    found = [run for run in found if json.loads((run / "run.json").read_text())["args"]["total_timesteps"] == steps]
    return next(iter(found), None)


def has_result(script, env_id, seed, steps):
    """Whether the results have this run; collect() leaves an option that is the default out of the name."""
    is_default = defaults(script.read_text())["total_timesteps"] == steps
    option = "" if is_default else f"__total_timesteps={steps}"
    return (RESULTS / f"ours/{env_id}__{script.stem}__{seed}{option}.json").exists()


def make_run(script, env_id, seed, steps):
    """Makes one run in a child of this process, which has imported the libraries already; True where that went well.

    The folder's file log has what the runs printed, and why one failed."""
    if child := os.fork():
        return os.waitpid(child, 0)[1] == 0
    status = 1
    try:
        os.chdir(FOLDER)
        options = ["--env-id", env_id, "--seed", seed, "--total-timesteps", steps, "--save-every", 0]
        sys.argv = [script.name, *map(str, options), "--no-cuda"]
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
    chosen, failed, about = scripts(args.recipes), 0, json.dumps(machine(workers=1), indent=2)
    importlib.import_module("ppo")  # and the libraries with it
    for seed in range(1, args.seeds + 1):
        for script in chosen:
            which = script, args.env_id, seed, args.steps
            if run_of(*which) is None and not has_result(*which):
                well = make_run(*which)
                failed += not well
                print(f"{script.stem}, seed {seed}: {'finished' if well else 'failed'}", flush=True)
                if well:
                    (run_of(*which) / "machine.json").write_text(about)
    for seed in range(1, args.seeds + 1):
        for script in chosen:
            if run := run_of(script, args.env_id, seed, args.steps):
                collect(run, RESULTS, "unknown")
    return failed


def area(run):
    """Mean over the updates of the mean return of the last 100 episodes up to each: what a run earned on its way."""
    ended = np.searchsorted(run.episodes["step"], run.updates["step"], side="right")
    return float(np.mean([run.episodes["return"][max(n - WINDOW, 0) : n].mean() for n in ended if n]))


def effect(with_it, without):
    """(difference of the means, its 95% interval) of two samples, by Welch's t-test; the second less the first."""
    low, high = stats.ttest_ind(without, with_it, equal_var=False).confidence_interval(0.95)
    return np.mean(without) - np.mean(with_it), low, high


def effects():
    """{(environment, steps): [(recipe, runs, final return's effect, area's effect), ...]}, the largest effect first."""
    found, tables = load(RESULTS), {}
    by_script = {key[1:]: runs for key, runs in found.items()}
    for recipe in recipes():
        for (script, env_id, options, steps), runs in by_script.items():
            if script == recipe.file.stem:
                parent = by_script[recipe.script.stem, env_id, options, steps]
                finals = effect(*([run.score for run in group] for group in (parent, runs)))
                areas = effect(*([area(run) for run in group] for group in (parent, runs)))
                tables.setdefault((env_id, steps), []).append((recipe, parent, runs, finals, areas))
    for rows in tables.values():
        rows.sort(key=lambda row: row[3][0])
    return tables


def interval(difference):
    """ "+4.2 [-1.0, 9.4]"."""
    return f"{difference[0]:+.1f} [{difference[1]:.1f}, {difference[2]:.1f}]"


def escape(text):
    """A text as a cell of a Markdown table."""
    return text.replace("|", r"\|")


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
        for ((env_id, steps), rows), pair in zip(tables.items(), panels, strict=True):
            for axes, what, column in zip(pair, ("final return", "mean of the curve"), (3, 4), strict=True):
                for y, row in enumerate(rows):
                    mean, low, high = row[column]
                    color = GRAY if low <= 0 <= high else COLORS["ours"]
                    axes.plot([low, high], [y, y], color=color, linewidth=1.2)
                    axes.plot(mean, y, "o", color=color, markersize=3.5)
                axes.axvline(0, color=GRAY, linewidth=0.8)
                axes.set_title(f"{env_id}, {steps:,} steps: {what}")
                axes.set_yticks(range(len(rows)), [row[0].name for row in rows])
                axes.spines[["top", "right"]].set_visible(False)
            pair[0].invert_yaxis()
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None, "Creator": None})


def write_effects():
    """Writes the effects into the recipes' headers and into the table of this folder's README."""
    lines, said, found, tables = [], {}, studies(), effects()
    draw(tables, ROOT / "docs/effects.svg")
    for (env_id, steps), rows in tables.items():
        _, parent, _, _, _ = rows[0]
        finals, areas = [run.score for run in parent], [area(run) for run in parent]
        lines += [
            f"### {env_id}, {steps:,} steps", "",
            f"`{rows[0][0].script.name}` itself, with {len(parent)} seeds, ends at {np.mean(finals):.1f} ± "
            f"{np.std(finals, ddof=1):.1f}; the mean of its curve is {np.mean(areas):.1f} ± "
            f"{np.std(areas, ddof=1):.1f} (standard deviations).", "",
            "| recipe | what it puts in place | seeds | final return | mean of the curve | studies found, or source |",
            "|---|---|---|---|---|---|",
        ]  # fmt: skip
        for recipe, _, runs, final, whole in rows:
            link = f"[{recipe.name}](../../recipes/{recipe.name}.diff)"
            cells = link, recipe.header["what"], str(len(runs)), interval(final), interval(whole), found[recipe.name]
            lines.append(f"| {' | '.join(escape(cell) for cell in cells)} |")
            said.setdefault(recipe.name, []).append(
                f"{env_id}, {steps} steps, {len(runs)} seeds: final return {interval(final)}, mean of the curve "
                f"{interval(whole)} (95% intervals; that of {recipe.script.name} is {np.mean(finals):.1f}, "
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
    parser.add_argument("--recipes", default="without/core", help="how the names begin, a regular expression")
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    if args.what == "effects":
        write_effects()
    else:
        sys.exit(make_runs(args) > 0)


if __name__ == "__main__":
    main()
