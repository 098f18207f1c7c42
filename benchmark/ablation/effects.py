"""Computes the effect of each recipe from benchmark/ablation/results, which benchmark/ablation/*.sh make.

    python -m benchmark.ablation.effects

Writes the effects into the headers of the recipes and into benchmark/ablation/README.md, and draws docs/effects.svg.
"""

import json
import re
import textwrap
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

from benchmark.curves import COLORS, GRAY, last_100, write_picture
from benchmark.results import ROOT, load_finished, option_text
from benchmark.scores import Difference, compare, scores
from recipes.recipe import Recipe, escape, recipes, write

RESULTS = Path(__file__).parent / "results"
# An option whose absence has a row of its own
TRUNCATED = Recipe(Path("without/--bootstrap-truncated"), {"what": "a time limit counts as an end, as in `ppo2`"}, "")
# Recipes for ppo_seeds.py that the runs of thirty_seeds.sh have, and those that they are compared with
SIDE_BY_SIDE = ("seeds-vector", "seeds-continuous")
SIDE_BY_SIDE_WORDS = ", agents side by side"
# The options of ppo_seeds.py that do the same as a recipe for ppo.py.
OPTIONS = {("anneal_lr", False): "core-4", ("max_grad_norm", 1e9): "core-11"}


class Effect(NamedTuple):
    """What a recipe changes: its runs beside those of the script that it is applied to."""

    recipe: Recipe
    parent: list  # the runs of the script
    runs: list  # the runs with the recipe
    final: Difference  # of the final returns
    area: Difference  # of the means of the learning curves


def area(run):
    """The mean of the learning curve: over the updates, of the mean return of the last 100 episodes up to each."""
    ended = np.searchsorted(run.episodes["step"], run.updates["step"], side="right")
    means = last_100(run.episodes, "return")[ended[ended > 0] - 1]
    return float(means.mean())


def areas(runs):
    """The means of the learning curves of runs."""
    return [area(run) for run in runs]


def own_options(recipe):
    """The names of the options that a recipe adds to those of its script."""
    added = set(re.findall(r"(?m)^\+    (\w+): \w", recipe.diff))
    return added - set(re.findall(r"(?m)^-    (\w+): \w", recipe.diff))


def effects():
    """{"CartPole-v1, 49,664 steps": [Effect, ...]}, in ascending order of the effect on the final return."""
    known = {recipe.file.stem: recipe for recipe in recipes()}
    found = load_finished(RESULTS)
    tables = {}
    for (side, script, env_id, options, steps), runs in found.items():
        parent, *names = script.split("+")
        if "plasticity-log" in names and len(names) > 1:
            continue  # it only logs, and the same runs without it are there
        if names and names[-1] in SIDE_BY_SIDE:
            parent = f"{parent}+{names.pop()}"
            recipe = known["+".join(names)] if names else None
        else:  # of several recipes the last is compared with the script that has the others
            parent = "+".join([parent, *names[:-1]])
            recipe = known[names[-1]] if names else None
        is_side_by_side = parent.endswith(SIDE_BY_SIDE)
        if is_side_by_side and not names:
            changed = json.loads(options)
            for (option, value), name in OPTIONS.items():
                if changed.get(option) == value:
                    recipe = known[name]
                    del changed[option]
                    options = json.dumps(changed)
        # Runs without --bootstrap-truncated are shown as a change of those with it.
        with_bootstrap = json.loads(options) | {"bootstrap_truncated": True}
        truncated = json.dumps(with_bootstrap, sort_keys=True)  # as collect.py sorts its options
        if truncated != options and (side, script, env_id, truncated, steps) in found:
            recipe, parent, options = TRUNCATED, script, truncated
        own = own_options(recipe) if recipe else set()  # which the script does not have
        of_parent = {name: value for name, value in json.loads(options).items() if name not in own}
        base = found.get((side, parent, env_id, json.dumps(of_parent, sort_keys=True), steps))
        if recipe is None or base is None:  # the script itself; or a recipe that needs other options, such as a2c
            continue
        finals = compare(scores(runs), scores(base))
        effect = Effect(recipe, base, runs, finals, compare(areas(runs), areas(base)))
        shown = {name: value for name, value in json.loads(options).items() if name != "total_timesteps"}
        words = [option_text(name, value) for name, value in shown.items()]
        what = f"{' '.join([env_id, *words])}, {steps:,} steps"
        if is_side_by_side:
            what += SIDE_BY_SIDE_WORDS
        elif "+" in parent:
            what += f", with {' and '.join(parent.split('+')[1:])}"
        tables.setdefault((what, parent), []).append(effect)
    # the headings name the script where two scripts were run in the same environment with the same options
    counts = Counter(what for what, _ in tables)
    with_headings = {}
    for (what, parent), rows in tables.items():
        script, *_ = parent.split("+")
        heading = what if counts[what] == 1 else f"{what}, {script}.py"
        with_headings[heading] = sorted(rows, key=lambda effect: effect.final.mean)
    return with_headings


def interval(difference):
    """The text "+4.2 [-1.0, 9.4]" of a Difference; "+4.2 (no interval)" where there is none."""
    if np.isnan(difference.low):
        return f"{difference.mean:+.1f} (no interval)"
    return f"{difference.mean:+.1f} [{difference.low:.1f}, {difference.high:.1f}]"


def cells_of(differences):
    """The texts of all Differences of a column.

    Bold is where p, corrected for their number by Benjamini and Hochberg (1995), is below 0.05."""
    p_values = np.array([difference.p for difference in differences])
    is_tested = ~np.isnan(p_values)
    p_values[is_tested] = stats.false_discovery_control(p_values[is_tested])
    texts = map(interval, differences)
    return [f"**{text}**" if p < 0.05 else text for text, p in zip(texts, p_values, strict=True)]


def spread(values):
    """The text "199.3 ± 17.5", mean and standard deviation; "199.3" of a single run."""
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}"


def draw_panel(axes, rows, differences):
    """Draws the differences of Effects as points with their intervals."""
    for y, difference in enumerate(differences):
        is_clear = difference.low > 0 or difference.high < 0
        color = COLORS["ours"] if is_clear else GRAY
        axes.plot([difference.low, difference.high], [y, y], color=color, linewidth=1.2)
        axes.plot(difference.mean, y, "o", color=color, markersize=3.5)
    axes.axvline(0, color=GRAY, linewidth=0.8)
    names = []
    for effect in rows:
        what = textwrap.shorten(effect.recipe.header["what"], 65, placeholder=" ...")
        names.append(f"{what} ({effect.recipe.file.stem})")
    axes.set_yticks(range(len(rows)), names)
    axes.spines[["top", "right"]].set_visible(False)


def draw(tables, path):
    """Draws the effects on the final return and on the mean of the curve."""
    heights = [len(rows) for rows in tables.values()]

    def panels(figure):
        grid = figure.subplots(len(heights), 2, squeeze=False, sharey="row", height_ratios=heights)
        for (what, rows), (left, right) in zip(tables.items(), grid, strict=True):
            draw_panel(left, rows, [effect.final for effect in rows])
            title = textwrap.fill(f"{what}: final return", 100, break_on_hyphens=False)
            left.set_title(title, loc="right")  # a long title has room on the left
            draw_panel(right, rows, [effect.area for effect in rows])
            right.set_title("mean of the curve", loc="right")
            left.invert_yaxis()

    write_picture((12, 0.9 * len(heights) + 0.19 * sum(heights)), path, panels)


def name_of_parent(effect):
    """What an Effect is compared with: "ppo.py", or "ppo_seeds.py with seeds-vector"."""
    script, *names = effect.parent[0].about["script"].split("+")
    return " with ".join([f"{script}.py", *names])


def section(what, rows):
    """The lines of a section of the README: a table of Effects."""
    parent = rows[0].parent
    shown = f"mean ± standard deviation, {len(parent)} seeds" if len(parent) > 1 else "1 seed"
    lines = [
        f"### {what}",
        "",
        f"`{name_of_parent(rows[0])}` itself ends at {spread(scores(parent))}; the mean of its curve is "
        f"{spread(areas(parent))} ({shown}).",
        "",
        "| recipe | change | seeds | final return | mean of the curve |",
        "|---|---|---|---|---|",
    ]
    finals, means = cells_of([effect.final for effect in rows]), cells_of([effect.area for effect in rows])
    for effect, final, mean in zip(rows, finals, means, strict=True):
        recipe = effect.recipe
        file = f"recipes/{recipe.name}.diff" if recipe.diff else "docs/details.md#core-5"
        cells = [
            f"[{recipe.name}](../../{file})",
            recipe.header["what"],
            str(len(effect.runs)),
            final,
            mean,
        ]
        lines.append(f"| {' | '.join(map(escape, cells))} |")
    return [*lines, ""]


def summary(tables):
    """The lines of a table of all tasks whose seeds were trained side by side: effects on the final return."""
    columns = {}  # {task: (spread of the script itself, {recipe: cell})}
    for what, rows in tables.items():
        if what.endswith(SIDE_BY_SIDE_WORDS):
            cells = cells_of([effect.final for effect in rows])
            env_id = rows[0].parent[0].about["env_id"]
            names = [effect.recipe.name for effect in rows]
            columns[env_id] = spread(scores(rows[0].parent)), dict(zip(names, cells, strict=True))
    found = {name for _, cells in columns.values() for name in cells}
    lines = [
        f"| detail that is taken out | {' | '.join(columns)} |",
        f"|---|{'---|' * len(columns)}",
        f"| none: final return | {' | '.join(own for own, _ in columns.values())} |",
    ]
    for recipe in recipes():
        if recipe.name in found:
            cells = [cells.get(recipe.name, "") for _, cells in columns.values()]
            link = f"[{recipe.file.stem}](../../recipes/{recipe.name}.diff): {escape(recipe.header['what'])}"
            lines.append(f"| {' | '.join([link, *cells])} |")
    return lines


def put(text, mark, lines):
    """A text with `lines` between the comments of a mark."""
    before, _, _ = text.partition(f"<!-- {mark} -->")
    _, _, after = text.partition(f"<!-- /{mark} -->")
    return before + f"<!-- {mark} -->\n" + "\n".join(lines) + f"<!-- /{mark} -->" + after


def sentence(what, effect):
    """What the header of a recipe says about its effect."""
    several = len(effect.runs) > 1
    seeds = f"{len(effect.runs)} seeds" if several else "1 seed"
    parent = f"{name_of_parent(effect)} itself"
    return (
        f"{what}, {seeds}: final return {interval(effect.final)}, mean of the curve {interval(effect.area)} "
        f"({'95% intervals; ' if several else ''}{parent}: {np.mean(scores(effect.parent)):.1f}, "
        f"{np.mean(areas(effect.parent)):.1f})"
    )


def main():
    tables = effects()
    draw(tables, ROOT / "docs" / "effects.svg")
    lines, sentences = [], {}
    for what, rows in tables.items():
        lines += section(what, rows)
        for effect in rows:
            sentences.setdefault(effect.recipe.name, []).append(sentence(what, effect))
    readme = Path(__file__).parent / "README.md"
    text = put(readme.read_text(), "side by side", [*summary(tables), ""])
    readme.write_text(put(text, "effects", lines))
    for recipe in recipes():
        if recipe.name in sentences:
            measured = "; ".join(sentences[recipe.name])
            write(recipe._replace(header=recipe.header | {"measured effect": measured}))


if __name__ == "__main__":
    main()
