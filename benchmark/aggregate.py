"""Sums up the scores of several tasks: median, mean, interquartile mean and optimality gap, with intervals.

As Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the Statistical Precipice", and their library
rliable have it: an interval is that of a stratified bootstrap, which draws anew among the runs of each task. The
numbers are those of rliable 1.2.0. It is no dependency, because arch 7.2.0, which it needs, cannot be imported with
pandas 3.
"""

import numpy as np
from scipy import stats

RESAMPLES = 10_000


def median(values):
    """The median over the tasks of the means over their runs, [...], of scores [..., tasks, runs]."""
    return np.median(values.mean(axis=-1), axis=-1)


def mean(values):
    """The mean of all scores, [...], of scores [..., tasks, runs]."""
    return values.mean(axis=(-2, -1))


def interquartile_mean(values):
    """The mean of the middle half of all scores, [...], of scores [..., tasks, runs]."""
    together = values.reshape(*values.shape[:-2], -1)
    return stats.trim_mean(together, 0.25, axis=-1)


def optimality_gap(values):
    """How far the scores are from 1 on average, [...], where more than 1 counts as 1; of scores [..., tasks, runs]."""
    return 1 - np.minimum(values, 1).mean(axis=(-2, -1))


STATISTICS = {"median": median, "mean": mean, "IQM": interquartile_mean, "optimality gap": optimality_gap}


def normalized(scores, lows, highs):
    """Scores [tasks, runs] on a scale where `lows` of the tasks, [tasks], become 0 and `highs` become 1."""
    lows = np.array(lows)[:, np.newaxis]
    highs = np.array(highs)[:, np.newaxis]
    return (np.array(scores) - lows) / (highs - lows)


def interval(statistic, values, resamples=RESAMPLES):
    """(low, high): the 95% percentile interval of a statistic of scores [tasks, runs].

    The resamples are the same in each call."""

    def of_columns(*columns, axis):
        return statistic(np.stack(columns, axis=-2))  # each [resamples, runs]

    generator = np.random.default_rng(1)
    found = stats.bootstrap(tuple(values), of_columns, n_resamples=resamples, method="percentile", rng=generator)
    return found.confidence_interval
