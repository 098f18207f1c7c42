"""Small tools."""

import contextlib
import dataclasses
import functools
import io
import os
import warnings


@contextlib.contextmanager
def quiet():
    """Hides what the script and the environment print and warn of."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        # Libraries in C++, such as MuJoCo's and ALE, write to the files 1 and 2.
        nothing = stack.enter_context(open(os.devnull, "w"))
        for number in (1, 2):
            kept = os.dup(number)
            os.dup2(nothing.fileno(), number)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, number)
        yield


def wrap(function, look):
    """In place of a function: calls look(function, ...) with its arguments."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        return look(function, *args, **kwargs)

    return call


def replaced(args, **changes):
    """The options with changes, of those that the script has."""
    return dataclasses.replace(args, **{name: value for name, value in changes.items() if hasattr(args, name)})
