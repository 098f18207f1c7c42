"""All rows of an adapter's module, in the order of docs/details.md."""

import dataclasses

import numpy as np

from conformance import reference
from conformance.answers import Adapter, BadAnswer, arrays_of, describe_error
from conformance.atari import measure_atari
from conformance.explanation import (
    APART,
    NO,
    OTHER,
    TOLERANCE,
    UNKNOWN,
    YES,
    Explanation,
    Row,
    first_difference,
    total_error,
    unknown,
)
from conformance.images import measure_images
from conformance.masks import measure_masks
from conformance.normalization import measure_actions, measure_normalization
from conformance.problems import later_world, make_world
from conformance.recurrence import measure_recurrence
from conformance.updates import (
    LOSS,
    measure_continuous_components,
    measure_divergence,
    measure_multidiscrete,
    measure_updates,
)
from conformance.weights import measure_continuous_weights, measure_weights

KINDS = "discrete", "multidiscrete", "continuous"  # of actions
GROUPS = "core", "atari", "continuous", "lstm", "multidiscrete", "aux"


def order(detail):
    """Where a detail such as "core 5" stands in docs/details.md."""
    group, number = detail.split()
    return GROUPS.index(group), int(number)


def kinds_of(adapter):
    """The kinds of actions that an adapter answers for. Raises BadAnswer where its KINDS are not names of such."""
    kinds = adapter.option("KINDS", KINDS)
    has_names = isinstance(kinds, tuple | list) and len(kinds) > 0
    if not has_names or any(kind not in KINDS for kind in kinds):
        raise BadAnswer(f'KINDS must be a tuple such as ("continuous",), not {kinds!r}')
    return kinds


def measure(module):
    """The rows of an adapter's module, in the order of docs/details.md. Raises BadAnswer where its KINDS are wrong."""
    adapter = Adapter(module)
    kinds = kinds_of(adapter)
    main_kind = "discrete" if "discrete" in kinds else kinds[0]  # for what does not depend on the kind of actions
    other_kinds = [kind for kind in kinds if kind != main_kind]
    rows = []

    def add(detail, part, *arguments):
        """Adds the rows of a part, whose first detail is `detail`, or a row that says why they cannot be measured."""
        try:
            rows.extend(part(adapter, *arguments))
        except Exception as error:  # the answer has a form that nothing here expects
            reason = f"the answer cannot be used: {describe_error(error)}"
            rows.extend(unknown([(detail, f"all of {part.__name__}")], reason))

    add("core 2", measure_weights, main_kind)
    add("core 5", measure_advantages, main_kind)
    add("core 8", measure_updates, main_kind, other_kinds)
    add("core 12", measure_divergence, main_kind)
    add("core 4", measure_schedules)
    if "continuous" in kinds:
        add("continuous 1", measure_continuous_weights)
        add("continuous 3", measure_continuous_components)
        add("continuous 5", measure_actions)
        add("continuous 6", measure_normalization)
    if main_kind == "continuous":
        rows = [row for row in rows if row.detail != "core 13"]  # continuous 4 says the same
    if "multidiscrete" in kinds:
        add("multidiscrete 1", measure_multidiscrete)
    if adapter.option("MASKS", False):
        add("aux 4", measure_masks, "multidiscrete" if "multidiscrete" in kinds else main_kind)
    if adapter.has("recurrence") or adapter.has("recurrent_weights"):
        add("lstm 1", measure_recurrence)
    if adapter.has("atari"):
        add("atari 1", measure_atari)
    if adapter.has("images"):
        add("atari 8", measure_images)
    return sorted(rows, key=lambda row: order(row.detail))


# Advantages and returns

ROLLOUT = {
    "lambda": ("core 5", "generalized advantage estimation with lambda"),
    "form": ("core 5", "an advantage is the discounted sum of the deltas"),
    "returns": ("core 5", "returns are advantages + values"),
    "last": ("core 5", "the value after the last step is counted"),
    "limit": ("core 5", "a time limit counts as an end"),
    "cut": ("core 5", "no advantage reaches over a time limit"),
}


def describe_lambda(choice):
    """Words for the lambda of a combination."""
    return f"lambda {choice['lambda']}"


def measure_advantages(adapter, kind):
    """The rows of the advantages and returns of a rollout."""
    world = make_world(kind, truncations=True)
    settings = LOSS
    answer = adapter.ask_dict("advantages", world, settings)
    if answer is None:
        return unknown(ROLLOUT.values(), adapter.errors["advantages"])
    if "problem" in answer:
        world, settings = answer["problem"]
    names = [name for name in ("advantages", "returns") if answer.get(name) is not None]
    if not names:
        return unknown(ROLLOUT.values(), 'advantages has neither "advantages" nor "returns"')
    try:
        arrays = arrays_of(answer, {name: world.rewards.shape for name in names}, "advantages")
    except BadAnswer as error:
        return unknown(ROLLOUT.values(), str(error))

    def predict(choice):
        predicted = reference.advantages(world, settings, choice)
        return [{name: predicted[name] for name in names}]

    explanation = Explanation([arrays], reference.choices(reference.ADVANTAGES), predict)
    rows = []
    for name, (detail, title) in ROLLOUT.items():
        words = describe_lambda if name == "lambda" else None
        row = explanation.row(detail, title, name, words=words, expected=(reference.ADVANTAGES[name][0],))
        ends = explanation.best["ends"]
        if name == "form" and explanation.reproduced and ends != reference.ADVANTAGES["ends"][0]:
            row = Row(detail, title, NO, f"a sum is cut by the end {ends}", explanation.error)
        if name == "limit" and row.result == NO:
            row.found = "its step has no delta" if row.found == "left out" else f"bootstrapped from {row.found}"
        rows.append(row)
    if explanation.reproduced:
        check_second_advantages(adapter, world, settings, explanation.best, rows)
    return rows


def check_second_advantages(adapter, world, settings, choice, rows):
    """Changes the row of the form of advantages where those of a second rollout do not follow the same combination."""
    answers = adapter.updates(world, dataclasses.replace(settings, num_minibatches=1, update_epochs=1), 2)
    if answers is None:
        return
    second = {name: getattr(answers[1], name) for name in ("advantages", "returns")}
    second = {name: array for name, array in second.items() if array is not None}
    predicted = reference.advantages(later_world(world), settings, choice)
    error = total_error([second], [predicted]) if second else 0.0
    [row] = [row for row in rows if (row.detail, row.title) == ROLLOUT["form"]]
    if error > TOLERANCE and row.result in (YES, NO):
        row.result = OTHER
        row.found = f"not in the second update: {first_difference([second], [predicted], [{}])}"
        row.error = error


# Schedules

UPDATES = 8  # of a run whose schedules are asked for
SCHEDULES = {
    "learning_rate": ("core 4", "by default the learning rate falls linearly to 0"),
    "clip_range": ("aux 1", "by default the clip range is constant"),
}
LINEAR = "falls to 0, the last update has 1 / updates"  # ppo2's


def known_schedules(updates):
    """{words: numbers [updates]} of the known schedules, up to a factor."""
    return {
        "constant": np.ones(updates),
        LINEAR: 1 - np.arange(updates) / updates,
        "falls to 0, which the last update has": 1 - np.arange(updates) / (updates - 1),
        "falls to 0, the first update has 1 - 1 / updates": 1 - np.arange(1, updates + 1) / updates,
    }


def measure_schedules(adapter):
    """The rows of the schedules of a run of UPDATES updates with the implementation's defaults."""
    answer = adapter.ask_dict("schedules", UPDATES)
    if answer is None:
        return unknown(SCHEDULES.values(), adapter.errors["schedules"])
    updates = answer.get("updates", UPDATES)
    rows = [schedule_row(adapter, name, answer.get(name), updates) for name in SCHEDULES]
    check_second_rate(adapter, rows[0])
    return rows


def check_second_rate(adapter, row):
    """Changes the row of the learning rate where the steps of a second update do not have the rate that it says."""
    if adapter.second_rate is None or row.result not in (YES, NO):
        return
    factor = adapter.second_of_schedule("learning_rate")
    if factor is not None and abs(adapter.second_rate - factor) > APART * TOLERANCE:
        row.result = OTHER
        words = f"of two updates, the second has {factor:.4g} times the rate"
        row.found = f"{row.found}; but {words}, and its steps are {adapter.second_rate:.4g} times as large"


def schedule_row(adapter, name, numbers, updates):
    """The row SCHEDULES[name].

    numbers: what an answer has for it: numbers [updates], words for them, or None."""
    detail, title = SCHEDULES[name]
    if numbers is None:
        return Row(detail, title, UNKNOWN, adapter.reason(name, "the adapter gives none"))
    if isinstance(numbers, str):
        return Row(detail, title, NO, numbers, 0.0)
    try:
        numbers = arrays_of({name: numbers}, {name: (updates,)}, "schedules")[name]
    except BadAnswer as error:
        return Row(detail, title, UNKNOWN, str(error))
    if numbers[0] <= 0:
        return Row(detail, title, UNKNOWN, f"schedules: {name} must begin above 0, and not at {numbers[0]:g}")
    relative = numbers / numbers[0]
    known = known_schedules(updates)
    errors = {words: float(np.abs(relative - each / each[0]).max()) for words, each in known.items()}
    first, second = sorted(errors, key=errors.get)[:2]
    if errors[first] > TOLERANCE:
        return Row(detail, title, OTHER, f"{np.round(relative, 4).tolist()}", errors[first], first)
    expected = LINEAR if name == "learning_rate" else "constant"
    return Row(detail, title, YES if first == expected else NO, first, errors[first], second, errors[second])
