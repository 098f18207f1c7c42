"""Scores of runs: what a difference between two experiments is worth, and how numbers are written."""

from typing import NamedTuple

import numpy as np
from scipy import stats


class Difference(NamedTuple):
    """The first mean minus the second, its 95% interval, and the p value of Welch's t-test.

    Interval and p are NaN where a side is a single run, or where neither side has any spread."""

    mean: float
    low: float
    high: float
    p: float

    def verdict(self, name):
        """What the test says of the first side, called `name`, at the 5% level; empty without a test."""
        if np.isnan(self.p):
            return ""
        if self.p >= 0.05:
            return "cannot be told apart"
        return f"{name} is {'better' if self.mean > 0 else 'worse'}"

    def text(self, like):
        """The text "+9.0 [-1.0, +19.0]", with the decimals that suit the score `like`."""
        mean = signed(self.mean, like)
        if np.isnan(self.low):
            return mean
        return f"{mean} [{signed(self.low, like)}, {signed(self.high, like)}]"


def compare(first, second):
    """The Difference of two sets of scores, by Welch's t-test."""
    mean = float(np.mean(first) - np.mean(second))
    # The range is compared with 0, as a standard deviation of equal numbers may be a little above it.
    if min(len(first), len(second)) < 2 or max(np.ptp(first), np.ptp(second)) == 0:
        return Difference(mean, np.nan, np.nan, np.nan)
    test = stats.ttest_ind(first, second, equal_var=False)
    low, high = test.confidence_interval(0.95)
    return Difference(mean, float(low), float(high), float(test.pvalue))


def scores(runs):
    """The final scores of runs, float64 [runs]."""
    return np.array([run.score for run in runs])


def number(value, like=None):
    """The text of a number with the decimals that suit its size, or the size of `like`."""
    size = abs(value if like is None else like)
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if 0 < size < 0.01:
        return f"{value:.1g}"
    return f"{value:.2f}"


def signed(value, like):
    """The texts "+9" and "-2", and "0" for what rounds to it."""
    text = number(value, like)
    if float(text) == 0:
        return text.lstrip("-")
    return f"+{text}" if value > 0 else text


def p_value(p):
    """The text "0.041", or "<0.001"; empty for NaN."""
    if np.isnan(p):
        return ""
    return f"{p:.3f}" if p >= 0.0005 else "<0.001"


def short_steps(steps):
    """The text "500k" of 499712 steps, or "1M" of 999424."""
    if steps >= 995_000:
        return f"{round(steps / 1e6, 1):g}M"
    if steps < 1000:
        return str(steps)
    return f"{steps / 1e3:.0f}k"


def mean_and_deviation(values):
    """The text "478 ± 13": mean and sample standard deviation; the mean alone of one value, empty without any."""
    if not len(values):
        return ""
    mean = np.mean(values)
    if len(values) == 1:
        return number(mean)
    return f"{number(mean)} ± {number(np.std(values, ddof=1), mean)}"


def with_count(text, values):
    """The text with how many values it is of: "478 ± 13 (5)"; empty without values."""
    return f"{text} ({len(values)})" if len(values) else ""


def mean_and_interval(values):
    """The text "500 [490, 510]": the mean and, from 3 values on, its 95% interval by Student; empty without any."""
    if not len(values):
        return ""
    mean = np.mean(values)
    if len(values) < 3:
        return number(mean)
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    size = max(abs(mean), half)
    return f"{number(mean, size)} [{number(mean - half, size)}, {number(mean + half, size)}]"
