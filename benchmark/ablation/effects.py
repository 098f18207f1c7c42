"""Computes the effect of each recipe from benchmark/ablation/results, which benchmark/ablation/*.sh make.

    python benchmark/ablation/effects.py

Writes the effects into the headers of the recipes and into benchmark/ablation/README.md, and draws docs/effects.svg.
"""

import json
import re
import sys
import textwrap
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parent / "results"
sys.path.insert(0, str(ROOT))

from benchmark.collect import typed  # noqa: E402
from benchmark.curves import COLORS, GRAY, WINDOW, drawing  # noqa: E402
from benchmark.report import compare, load  # noqa: E402
from docs import diffs  # noqa: E402
from recipes.__main__ import Recipe, escape, recipes, write  # noqa: E402

# An option whose absence has a row of its own
TRUNCATED = Recipe(
    Path("without/--bootstrap-truncated"),
    {
        "what": "a time limit counts as an end, as in `ppo2`",
        "source": 'Pardo et al. (2018), "Time Limits in Reinforcement Learning"',
    },
    "",
)


def area(run):
    """The mean of the learning curve: over the updates, of the mean return of the last 100 episodes up to each."""
    ended = np.searchsorted(run.episodes["step"], run.updates["step"], side="right")
    return float(np.mean([run.episodes["return"][max(n - WINDOW, 0) : n].mean() for n in ended if n]))


def effects():
    """{"CartPole-v1, 49,664 steps": [(recipe, parent's runs, its runs, final returns' Difference, curves' Difference),
    ...]}, sorted by the effect on the final return."""
    tables, known, found = {}, {recipe.file.stem: recipe for recipe in recipes()}, load(RESULTS)
    for (side, script, env_id, options, steps), runs in found.items():
        parent, _, name = script.partition("+")
        recipe, truncated = known.get(name), json.loads(options) | {"bootstrap_truncated": True}
        options_with = json.dumps(dict(sorted(truncated.items())))
        if options_with != options and (side, script, env_id, options_with, steps) in found:
            recipe, options = TRUNCATED, options_with
        if recipe:
            words = [typed(option) for option in json.loads(options).items() if option[0] != "total_timesteps"]
            base = found[side, parent, env_id, options, steps]
            finals = compare(*([run.score for run in group] for group in (runs, base)))
            areas = compare(*([area(run) for run in group] for group in (runs, base)))
            row = recipe, base, runs, finals, areas
            tables.setdefault(f"{' '.join([env_id, *words])}, {steps:,} steps", []).append(row)
    for rows in tables.values():
        rows.sort(key=lambda row: row[3].mean)
    return tables


def interval(effect):
    """ "+4.2 [-1.0, 9.4]"; "+4.2 (no interval)" where there is none."""
    none = np.isnan(effect.low)
    return f"{effect.mean:+.1f} (no interval)" if none else f"{effect.mean:+.1f} [{effect.low:.1f}, {effect.high:.1f}]"


def spread(scores):
    """ "199.3 ± 17.5", mean and standard deviation; "199.3" of a single run."""
    return f"{np.mean(scores):.1f}" + (f" ± {np.std(scores, ddof=1):.1f}" if len(scores) > 1 else "")


def studies():
    """{recipe: what studies found about its detail, or where its idea is from}; of docs/details.md, or the header."""
    reasons, found = diffs.reasons(), {}
    for recipe in [*recipes(), TRUNCATED]:
        detail = re.match(r"without/(\w+)-(\d+)", recipe.name)
        found[recipe.name] = reasons[" ".join(detail.groups())]["studies"] if detail else recipe.header["source"]
    return found


def draw(tables, path):
    """Draws the effects on the final return and on the mean of the curve, as points with their intervals."""
    heights = [len(rows) for rows in tables.values()]

    def panels(figure):
        grid = figure.subplots(len(heights), 2, squeeze=False, sharey="row", height_ratios=heights)
        for (what, rows), pair in zip(tables.items(), grid, strict=True):
            for axes, score, column in zip(pair, ("final return", "mean of the curve"), (3, 4), strict=True):
                for y, row in enumerate(rows):
                    effect = row[column]
                    color = COLORS["ours"] if effect.low > 0 or effect.high < 0 else GRAY
                    axes.plot([effect.low, effect.high], [y, y], color=color, linewidth=1.2)
                    axes.plot(effect.mean, y, "o", color=color, markersize=3.5)
                axes.axvline(0, color=GRAY, linewidth=0.8)
                title = textwrap.fill(f"{what}: {score}", 100, break_on_hyphens=False) if axes is pair[0] else score
                axes.set_title(title, loc="right")  # a long one has room on the left
                says = [textwrap.shorten(recipe.header["what"], 65, placeholder=" ...") for recipe, *_ in rows]
                names = [f"{text} ({recipe.file.stem})" for text, (recipe, *_) in zip(says, rows, strict=True)]
                axes.set_yticks(range(len(rows)), names)
                axes.spines[["top", "right"]].set_visible(False)
            pair[0].invert_yaxis()

    drawing((12, 0.9 * len(heights) + 0.19 * sum(heights)), path, panels)


def main():
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
            file = f"recipes/{recipe.name}.diff" if recipe.diff else "docs/details.md#core-5"
            link = f"[{recipe.name}](../../{file})"
            cells = link, recipe.header["what"], str(len(runs)), interval(final), interval(whole), found[recipe.name]
            lines.append(f"| {' | '.join(escape(cell) for cell in cells)} |")
            seeds = f"{len(runs)} seeds" if len(runs) > 1 else "1 seed"
            said.setdefault(recipe.name, []).append(
                f"{what}, {seeds}: final return {interval(final)}, mean of the curve {interval(whole)} "
                f"({'95% intervals; ' if len(runs) > 1 else ''}{script} itself: {np.mean(finals):.1f}, "
                f"{np.mean(areas):.1f})"
            )
        lines.append("")
    readme = Path(__file__).parent / "README.md"
    before, after = readme.read_text().split("<!-- effects -->")[0], readme.read_text().split("<!-- /effects -->")[1]
    readme.write_text(before + "<!-- effects -->\n" + "\n".join(lines) + "<!-- /effects -->" + after)
    for recipe in recipes():
        if recipe.name in said:
            write(recipe._replace(header=recipe.header | {"measured effect": "; ".join(said[recipe.name])}))


if __name__ == "__main__":
    main()
