"""Explains an answer: which combination of the known alternatives reproduces its numbers, and which other is nearest.

A combination is a dict from the name of each choice to one of its alternatives, such as {"std": "N", "ratio":
"clipped"}. reference.py lists the choices.

An answer is a list with a dict of arrays for each step of an update. What has no steps, such as the advantages of a
rollout, is a list of one dict.
"""

import math
from dataclasses import dataclass

import numpy as np

TOLERANCE = 2e-5  # relative to the largest number of an answer: what float32 leaves of a few operations
APART = 100  # an explanation counts only if every other one is this many tolerances away

# The results of a row
YES = "yes"  # as in ppo2
NO = "no"  # another of the known alternatives
OTHER = "other"  # nothing known reproduces the answer
UNKNOWN = "not measured"


@dataclass
class Row:
    """One detail of one implementation."""

    detail: str  # its mark in docs/details.md, such as "core 5"
    title: str
    result: str  # YES, NO, OTHER or UNKNOWN
    found: str = ""  # what it is instead, or why it was not measured
    error: float | None = None  # of the combination that is named, relative to the largest number
    nearest: str = ""  # the nearest other alternative
    nearest_error: float | None = None

    def word(self):
        """The result, with what is found instead, as the command prints it."""
        if self.result == NO:
            return f"no: {self.found}"
        return self.result


def unknown(details, reason):
    """Rows of what was not measured; `details` are (detail, title) pairs, and `reason` is the same for all."""
    return [Row(detail, title, UNKNOWN, reason) for detail, title in details]


def error_scale(name, array):
    """What the errors of an array are divided by, an array of the same shape.

    That is the array's largest number. But the rows of a table are samples, and an error in a row of small numbers must
    not hide behind a row of large ones. So for a table it is the largest number of the same row, and at least a tenth
    of the table's largest."""
    largest = np.abs(array).max()
    if largest == 0:
        return np.ones_like(array)
    if name not in ("policy", "value"):
        return np.full_like(array, largest)
    largest_of_row = np.abs(array).reshape(len(array), -1).max(axis=1)
    size = np.maximum(largest_of_row, 0.1 * largest)
    size = size.reshape(-1, *[1] * (array.ndim - 1))
    return np.broadcast_to(size, array.shape)


def error_scales(answers):
    """[{name: array}] of the steps of an answer."""
    return [{name: error_scale(name, array) for name, array in answer.items()} for answer in answers]


def relative_error(answer, prediction, rounding, scales):
    """The largest difference between two dicts of arrays, relative to the size of the answer.

    rounding: {name: array}, by how much an answer may be wrong because it has few digits.
    scales: {name: array}, what its errors are divided by."""
    worst = 0.0
    for name, array in answer.items():
        difference = np.abs(array - prediction[name]) - rounding.get(name, 0.0)
        error = float((difference / scales[name]).max())
        if math.isnan(error):  # the combination cannot be: it has the logarithm of 0, for example
            return math.inf
        worst = max(worst, error)
    return worst


def total_error(answers, predictions, roundings=None, scales=None):
    """The largest relative error among the steps of an answer; scales: error_scales(answers), if they are known."""
    if roundings is None:
        roundings = [{}] * len(answers)
    if scales is None:
        scales = error_scales(answers)
    steps = zip(answers, predictions, roundings, scales, strict=True)
    return max(relative_error(*step) for step in steps)


def first_difference(answers, predictions, roundings):
    """Words for the first number of an answer, in the order of its steps, that a prediction does not reproduce."""
    steps = zip(answers, predictions, roundings, strict=True)
    for number, (answer, prediction, rounding) in enumerate(steps, start=1):
        for name, array in answer.items():
            difference = np.abs(array - prediction[name]) - rounding.get(name, 0.0)
            wrong = np.argwhere(difference > TOLERANCE * error_scale(name, array))
            if len(wrong) > 0:
                place = tuple(wrong[0].tolist())
                numbers = f"{float(array[place]):.6g}, and not {float(prediction[name][place]):.6g}"
                return f"step {number}, {name}{list(place)} is {numbers}"
    return ""


class Explanation:
    """All combinations of some alternatives, with the errors with which they reproduce an answer."""

    def __init__(self, answers, combinations, predict, roundings=None):
        """answers: a list of dicts of arrays, one for each step.
        combinations: a list of dicts from the name of a choice to an alternative.
        predict: a function from a combination to what `answers` would be under it.
        roundings: for each step, by how much its arrays may be wrong because they have few digits; None if by nothing.
        """
        self.answers = answers
        self.roundings = [{}] * len(answers) if roundings is None else roundings
        self.combinations = combinations
        self.predict = predict
        scales = error_scales(answers)
        self.errors = np.array([total_error(answers, predict(each), self.roundings, scales) for each in combinations])
        self.best = combinations[int(self.errors.argmin())]
        self.error = float(self.errors.min())

    @property
    def reproduced(self):
        """Whether the best combination reproduces the answer."""
        return self.error <= TOLERANCE

    def nearest_other(self, *names):
        """(combination, error) of the nearest one that differs from the best in one of the named choices."""
        differs = [any(each[name] != self.best[name] for name in names) for each in self.combinations]
        errors = np.where(differs, self.errors, np.inf)
        return self.combinations[int(errors.argmin())], float(errors.min())

    def failure(self):
        """Words for an answer that nothing reproduces."""
        combination = ", ".join(f"{name}: {alternative}" for name, alternative in self.best.items())
        difference = first_difference(self.answers, self.predict(self.best), self.roundings)
        nearest = f"the nearest ({combination}) has an error of {self.error:.1e}"
        return f"nothing known reproduces it; {nearest}: {difference}"

    def row(self, detail, title, *names, expected, words=None):
        """The row of a detail that consists of the named choices.

        expected: the alternatives of these choices, a tuple, for which the result is YES.
        words: a function from a combination to words for these choices; by default, the alternatives themselves."""

        def describe(combination):
            if words is not None:
                return words(combination)
            return ", ".join(str(combination[name]) for name in names)

        if not self.reproduced:
            return Row(detail, title, OTHER, self.failure(), self.error)
        nearest, nearest_error = self.nearest_other(*names)
        if not math.isfinite(nearest_error):
            return Row(detail, title, UNKNOWN, "there is no alternative to it here", self.error)
        if nearest_error < APART * TOLERANCE:
            return Row(detail, title, UNKNOWN, "this problem does not tell the alternatives apart", self.error)
        found = tuple(self.best[name] for name in names)
        result = YES if found == expected else NO
        return Row(detail, title, result, describe(self.best), self.error, describe(nearest), nearest_error)
