"""Asks an adapter, and checks what it answers."""

import dataclasses
import traceback
from pathlib import Path

import numpy as np

from conformance.problems import Refused, Update


class BadAnswer(Exception):
    """An answer of an adapter cannot be used; the message says why in a line."""


def describe_error(error):
    """The type of an exception and its message, in one line; of the message, at most 160 characters."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message[:160]}"


def one_line(error):
    """Words for an exception of an adapter, with the last line that is neither a library's nor of this folder."""
    words = f"the adapter failed: {describe_error(error)}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        is_of_library = "site-packages" in file.parts or not file.is_file()
        if not is_of_library and Path(__file__).parent not in file.resolve().parents:
            return f"{words} ({file.name}, line {frame.lineno}: {frame.line})"
    return words


class Adapter:
    """An adapter's module, asked so that each of its errors becomes one line and ends nothing else."""

    def __init__(self, module):
        self.module = module
        self.errors = {}  # for the name of a function, why it gave no answer
        self.second_rate = None  # the rate of the second update's steps, relative to that of the first, if it is known

    def option(self, name, default):
        """A constant of the module, such as KINDS."""
        return getattr(self.module, name, default)

    def has(self, name):
        """Whether the module has a function of this name."""
        return getattr(self.module, name, None) is not None

    def reason(self, name, default):
        """What the module's REASONS say about something that it does not answer."""
        return self.option("REASONS", {}).get(name, default)

    def ask(self, name, *arguments):
        """The answer of a function of the module, or None; then `errors[name]` says why."""
        try:
            return self.ask_or_refuse(name, *arguments)
        except Refused as error:
            self.errors[name] = f"it refuses: {error}"
            return None

    def ask_dict(self, name, *arguments):
        """As ask(), for a function that must return a dict."""
        answer = self.ask(name, *arguments)
        if answer is not None and not isinstance(answer, dict):
            self.errors[name] = f"{name} must return a dict, and not {type(answer).__name__}"
            return None
        return answer

    def ask_or_refuse(self, name, *arguments):
        """As ask(), but passes Refused on, where a refusal is an answer too."""
        no_answer = self.reason(name, "the adapter does not answer it")
        if not self.has(name):
            self.errors[name] = no_answer
            return None
        try:
            answer = getattr(self.module, name)(*arguments)
        except Refused:
            raise
        except (Exception, SystemExit) as error:
            self.errors[name] = one_line(error)
            return None
        if answer is None:
            self.errors[name] = no_answer
        return answer

    def update(self, world, settings):
        """A checked Update, or None; then `errors["update"]` says why."""
        answer = self.ask("update", world, settings)
        if answer is None:
            return None
        try:
            return check_update(answer, world)
        except BadAnswer as error:
            self.errors["update"] = str(error)
            return None

    def updates(self, world, settings, count):
        """Checked Updates of several rollouts, or None; then `errors["updates"]` says why."""
        answer = self.ask("updates", world, settings, count)
        if answer is None:
            return None
        if not isinstance(answer, list | tuple) or len(answer) != count:
            self.errors["updates"] = f"updates must return a list of {count} Updates"
            return None
        if any(getattr(each, "problem", None) is not None for each in answer):
            self.errors["updates"] = "an Update of updates() answers the question that was asked, without a problem"
            return None
        try:
            return [check_update(each, world, is_later=number > 0) for number, each in enumerate(answer)]
        except BadAnswer as error:
            self.errors["updates"] = str(error)
            return None

    def second_of_schedule(self, name):
        """The second of two numbers of a schedule, divided by the first; None if they are not known."""
        answer = self.ask_dict("schedules", 2) or {}
        try:
            first, second = arrays_of(answer, {name: (2,)}, "schedules")[name]
        except BadAnswer:
            return None
        return float(second / first) if first > 0 else None


def arrays_of(answer, shapes, source):
    """The arrays of a dict as float64. Raises BadAnswer for a name that is missing, a wrong shape, NaN or inf.

    shapes: {name: shape} of the arrays that are wanted.
    source: what an error message calls the dict."""
    if not isinstance(answer, dict):
        raise BadAnswer(f"{source} must be a dict, and not {type(answer).__name__}")
    checked = {}
    for name, shape in shapes.items():
        if name not in answer:
            raise BadAnswer(f'{source} has no "{name}"')
        try:
            array = np.asarray(answer[name], dtype=float)
        except (RuntimeError, TypeError, ValueError):  # torch's for a tensor with a gradient is a RuntimeError
            raise BadAnswer(f'{source}: "{name}" is not an array of numbers') from None
        if array.shape != shape:
            raise BadAnswer(f'{source}: "{name}" has the shape {list(array.shape)}, and not {list(shape)}')
        if not np.isfinite(array).all():
            raise BadAnswer(f'{source}: "{name}" has NaN or inf')
        checked[name] = array
    return checked


def check_step(step, number, shapes, allowed):
    """A problems.Step with float64 arrays. Raises BadAnswer where something is wrong with it.

    number: the number of the step in its update, from 1.
    shapes: {name: shape} of the tables.
    allowed: the first and the last row of the rollout."""
    try:
        rows = np.asarray(step.rows).reshape(-1)
    except ValueError:
        raise BadAnswer(f"update, step {number}: rows are not an array") from None
    first, last = allowed
    if len(rows) == 0 or rows.dtype.kind not in "iu" or rows.min() < first or rows.max() > last:
        raise BadAnswer(f"update, step {number}: rows must be whole numbers from {first} to {last}")
    checked = {}
    for name in ("before", "after", "gradient", "clipped"):
        tables = getattr(step, name)
        if tables is not None or name in ("before", "after"):  # only gradients may be left out
            tables = arrays_of(tables, shapes, f"update, step {number}, {name}")
        checked[name] = tables
    if step.others is not None:
        others_shapes = {name: np.shape(array) for name, array in step.others.items()}
        checked["others"] = arrays_of(step.others, others_shapes, f"update, step {number}, others")
    return dataclasses.replace(step, rows=rows, **checked)


def check_logged(logged):
    """Raises BadAnswer where what is logged of an update is no dict, or its "approx_kl" no finite number."""
    if isinstance(logged, dict) and logged.get("approx_kl") is None:
        return
    try:
        arrays_of(logged, {"approx_kl": ()}, "logged")
    except BadAnswer:
        raise BadAnswer('update: logged must be a dict, and its "approx_kl" a finite number') from None


def check_update(answer, world, is_later=False):
    """A problems.Update with float64 arrays. Raises BadAnswer where something is wrong with it.

    is_later: whether it is that of a later rollout, which begins with the rows behind the last step."""
    if not isinstance(answer, Update):
        raise BadAnswer(f"update must return an Update, and not {type(answer).__name__}")
    if answer.problem is not None:  # the adapter made the question as well
        return answer
    arrays_of({"actions": answer.actions}, {"actions": world.actions.shape}, "update")
    optional = {name: getattr(answer, name) for name in ("advantages", "returns", "old_log_probs")}
    given = {name: array for name, array in optional.items() if array is not None}
    checked = arrays_of(given, {name: world.rewards.shape for name in given}, "update")
    check_logged(answer.logged)
    if not answer.steps:
        raise BadAnswer("update took no step")
    shapes = {"policy": world.policy.shape, "value": world.value.shape}
    first_tables = answer.steps[0].before
    if world.kind == "continuous" and isinstance(first_tables, dict) and "logstd" in first_tables:
        shapes["logstd"] = world.logstd.shape
    allowed = 0, world.rewards.size - 1
    if is_later:
        allowed = world.num_envs, world.rewards.size + world.num_envs - 1
    steps = [check_step(step, number, shapes, allowed) for number, step in enumerate(answer.steps, start=1)]
    return dataclasses.replace(answer, steps=steps, **checked)
