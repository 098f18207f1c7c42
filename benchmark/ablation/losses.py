"""The tables of docs/losses.md: the clip and other objectives, of the runs of losses.sh.

The first third of the seeds chooses the learning rate of each objective, and the other seeds judge it there.
"""

import functools
import json
from typing import NamedTuple

import numpy as np
from scipy import stats

from benchmark.ablation.collapse import describe
from benchmark.results import RESULTS, load_finished
from benchmark.scores import compare, mean_and_interval, p_value

RATE = 2.5e-4  # ppo.py's, and that of ppo_seeds.py
CONTINUOUS_RATE = 3e-4  # ppo_continuous_action.py's, and that of ppo_seeds.py with seeds-continuous
SEEDS_TO_CHOOSE = 30  # With fewer runs of each learning rate a third of them is too few to choose one.


class Loss(NamedTuple):
    """An objective in an environment, with the runs at each learning rate."""

    script: str  # the script that it is a recipe for
    text: str  # "with [ano](...)"; empty for the script itself
    runs: dict  # {learning rate: its runs, by seed}

    @property
    def seeds(self):
        """The number of seeds, such as 30, or "27 to 30" where the learning rates have different ones."""
        counts = {len(runs) for runs in self.runs.values()}
        return f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(min(counts))

    def chosen_rate(self):
        """The learning rate with the highest median return of the first third of the seeds.

        A mean would choose by how many of ten runs never leave the return of random play."""
        medians = {rate: np.median([run.score for run in runs[: len(runs) // 3]]) for rate, runs in self.runs.items()}
        return max(medians, key=medians.get)

    def judged_scores(self):
        """The scores at the chosen learning rate of the seeds that did not choose it, float64 [runs]."""
        runs = self.runs[self.chosen_rate()]
        return np.array([run.score for run in runs[len(runs) // 3 :]])


@functools.cache
def finished_runs(results):
    """What load_finished() returns, read once for the tables of all environments."""
    return load_finished(results / "losses")


def losses(results, env_id):
    """The objectives that were run in an environment, by script; the script itself comes first.

    An option that every run has is not named."""
    experiments = []
    for (_, script, env, options, _), runs in finished_runs(results).items():
        if env != env_id:
            continue
        options = json.loads(options)
        rate = options.pop("learning_rate", CONTINUOUS_RATE if "continuous" in script else RATE)
        experiments.append((script, rate, options, runs))
    shared = set.intersection(*(set(options.items()) for _, _, options, _ in experiments))
    found = {}
    for script, rate, options, runs in experiments:
        parent = script.split("+")[0]
        others = {name: value for name, value in options.items() if (name, value) not in shared}
        loss = found.setdefault((parent, describe(script, others)), Loss(parent, describe(script, others), {}))
        loss.runs[rate] = sorted(runs, key=lambda run: run.about["seed"])
    return [found[key] for key in sorted(found)]


def rates_table(group):
    """Returns at each learning rate: the script's own, and the differences from it.

    Bold is where Welch's p, corrected for the number of differences by Benjamini and Hochberg (1995), is below 0.05."""
    base, *others = group
    rates = sorted(base.runs)
    differences = {}
    for loss in others:
        for rate in rates:
            ours, clip = ([run.score for run in each.runs[rate]] for each in (loss, base))
            differences[loss.text, rate] = compare(ours, clip)
    p_values = stats.false_discovery_control([difference.p for difference in differences.values()])
    is_clear = dict(zip(differences, p_values < 0.05, strict=True))
    yield f"| {base.script}.py | seeds | {' | '.join(f'{rate:g}' for rate in rates)} |"
    yield "|---|---:" + "|---" * len(rates) + "|"
    own = [mean_and_interval([run.score for run in base.runs[rate]]) for rate in rates]
    yield f"| the clip | {base.seeds} | {' | '.join(own)} |"
    for loss in others:
        cells = []
        for rate in rates:
            text = differences[loss.text, rate].text(100)
            cells.append(f"**{text}**" if is_clear[loss.text, rate] else text)
        yield f"| {loss.text} | {loss.seeds} | {' | '.join(cells)} |"


def best_table(group):
    """Each objective at the rate that was chosen for it, by the seeds that did not choose.

    p and the share of better runs are of the Mann-Whitney test, which knows no mean: returns end at a maximum."""
    base, *others = group
    clip = base.judged_scores()
    tests = [stats.mannwhitneyu(loss.judged_scores(), clip) for loss in others]
    p_values = stats.false_discovery_control([test.pvalue for test in tests])
    head = "rate | seeds | return | beside the clip | better than a run with the clip | p, corrected"
    yield f"| {base.script}.py | {head} |"
    yield "|---|---:|---:|---|---|---:|---:|"
    yield f"| the clip | {base.chosen_rate():g} | {len(clip)} | {mean_and_interval(clip)} |  |  |  |"
    lines = []
    for loss, test, p in zip(others, tests, p_values, strict=True):
        ours = loss.judged_scores()
        share = test.statistic / (len(ours) * len(clip))
        cells = [loss.text, f"{loss.chosen_rate():g}", str(len(ours)), mean_and_interval(ours)]
        cells += [compare(ours, clip).text(100), f"{share:.0%}", p_value(p)]
        lines.append((-np.mean(ours), f"| {' | '.join(cells)} |"))
    for _, line in sorted(lines):
        yield line


def rows(env_id, results=RESULTS):
    """The lines of the tables of an environment."""
    lines = []
    found = losses(results, env_id)
    for script in sorted({loss.script for loss in found}, reverse=True):  # ppo_seeds.py, with more seeds, comes first
        group = [loss for loss in found if loss.script == script]
        lines += [*rates_table(group), ""]
        if min(len(runs) for loss in group for runs in loss.runs.values()) >= SEEDS_TO_CHOOSE:
            lines += [*best_table(group), ""]
    return lines[:-1]
