"""Sums up the scores of several tasks: median, mean, interquartile mean and optimality gap, with intervals.

As Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the Statistical Precipice", and
their library rliable have it: an interval is that of a stratified bootstrap, which draws anew among
the runs of each task. The numbers are those of rliable 1.2.0. It is no dependency, because arch 7.2.0,
which it needs, cannot be imported with pandas 3.

A statistic takes scores, an array [..., tasks, runs], and returns an array [...].
"""

import numpy as np
from scipy import stats

RESAMPLES = 10_000


def median(values):
    """The median over the tasks of the means over their runs."""
    return np.median(values.mean(axis=-1), axis=-1)


def mean(values):
    """The mean of all scores."""
    return values.mean(axis=(-2, -1))


def interquartile_mean(values):
    """The mean of the middle half of all scores."""
    together = values.reshape(*values.shape[:-2], -1)
    return stats.trim_mean(together, 0.25, axis=-1)


def optimality_gap(values):
    """How far the scores are from 1 on average, where more than 1 counts as 1."""
    return 1 - np.minimum(values, 1).mean(axis=(-2, -1))


STATISTICS = {
    "median": median,
    "mean": mean,
    "IQM": interquartile_mean,
    "optimality gap": optimality_gap,
}


def normalized(scores, lows, highs):
    """Scores [tasks, runs] on a scale where `lows`, [tasks], become 0 and `highs`, [tasks], become 1."""
    lows = np.array(lows)[:, np.newaxis]
    highs = np.array(highs)[:, np.newaxis]
    return (np.array(scores) - lows) / (highs - lows)


def interval(statistic, values, resamples=RESAMPLES):
    """(low, high): the 95% percentile interval of a statistic of scores [tasks, runs].

    The resamples are the same in each call."""

    # Each task is an array [resamples, runs], drawn among its own runs. bootstrap() gives many
    # resamples at once only to a function with the parameter `axis`. It is that of the runs, always
    # the last one, as the statistics assume.
    def of_tasks(*tasks, axis):
        return statistic(np.stack(tasks, axis=-2))  # of [resamples, tasks, runs]

    found = stats.bootstrap(
        tuple(values),
        of_tasks,
        n_resamples=resamples,
        method="percentile",
        rng=np.random.default_rng(1),
    )
    return found.confidence_interval
