"""The page of what is found, and places in the user's code."""

import ast
import collections
import contextlib
import functools
import inspect
import sysconfig
import time
import traceback
from pathlib import Path


class Page:
    """Prints what the checks find, and counts it."""

    def __init__(self):
        self.counts = collections.Counter()
        self.name = ""
        self.first_error = ""  # the name of the section that has it
        self.failures = set()  # the descriptions of exceptions
        self.start_time = time.monotonic()

    def section(self, name, details=""):
        self.name = name
        print(f"{name}{details}", flush=True)

    def add(self, kind, text):
        self.counts[kind] += 1
        if kind == "ERROR" and not self.first_error:
            self.first_error = self.name
        print(f"  {kind:<6} {text}", flush=True)

    ok = functools.partialmethod(add, "ok")
    note = functools.partialmethod(add, "note")
    warn = functools.partialmethod(add, "warn")
    error = functools.partialmethod(add, "ERROR")
    skip = functools.partialmethod(add, "skip")

    @contextlib.contextmanager
    def check(self, name):
        """Turns an exception in a check into an error on the page, so that the next check goes on."""
        try:
            yield
        except (Exception, SystemExit) as error:
            self.failure(name, error)

    def failure(self, name, error):
        """Adds an exception; of one that comes again, where it did."""
        text = describe(error)
        if text in self.failures:
            self.skip(f"{name}: the same {type(error).__name__}")
        else:
            self.failures.add(text)
            self.error(f"{name}: {text}")

    def summary(self):
        texts = []
        for kind, word in (("ERROR", "error"), ("warn", "warning"), ("note", "note")):
            plural = "" if self.counts[kind] == 1 else "s"
            texts.append(f"{self.counts[kind]} {word}{plural}")
        text = f"{', '.join(texts)} in {time.monotonic() - self.start_time:.0f} s"
        return f'{text}; first mend those of "{self.first_error}"' if self.first_error else text


@functools.cache
def is_users(file):
    """Whether a source file is the user's: neither Python's, nor a library's, nor one of this program."""
    if file.startswith("<"):
        return False
    path = Path(file).resolve()
    program = Path(__file__).resolve().parents[1]
    libraries = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")}
    if path.parent == program / "checker" or path in (program / "check.py", program / "enjoy.py", program / "saved.py"):
        return False
    return not any(library in path.parents for library in libraries)


def place_of(thing):
    """Where a class or a function of the user begins, such as " (walk.py:88)"; "" if it is not the user's."""
    try:
        file = inspect.getsourcefile(thing)
        _, line = inspect.getsourcelines(thing)
    except (OSError, TypeError):  # it has no source in Python
        return ""
    return f" ({Path(file).name}:{line})" if is_users(file) else ""


def describe(error):
    """An exception as one line, with the last line of the user's code in its traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    text = " ".join(str(error).split()).removeprefix("error: ")
    if not text and frames:
        text = frames[-1].line
    if not isinstance(error, SystemExit):
        text = f"{type(error).__name__}: {text}"
    if isinstance(error, ConnectionError | EOFError):
        text += "; a process of the environment ended, perhaps with a traceback above"
    if len(text) > 300:
        text = f"{text[:300]}..."
    return f"{text} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else text


class Source:
    """The text of the script, in which names are looked up: each method returns a place, or "" if there is none."""

    def __init__(self, path):
        self.file_name = path.name
        self.nodes = list(ast.walk(ast.parse(path.read_text())))

    def first(self, matches):
        lines = [node.lineno for node in self.nodes if matches(node)]
        return f" ({self.file_name}:{min(lines)})" if lines else ""

    def option(self, name):
        """Where Args has an option."""
        return self.first(lambda node: isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == name)

    def attribute(self, name):
        """Where the agent gets what has a name such as trunk.0.weight."""
        name, _, _ = name.partition(".")
        is_stored = lambda node: isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)  # noqa: E731
        return self.first(lambda node: is_stored(node) and node.attr == name)

    def call(self, name):
        """Where nn.NAME() or NAME() is called."""
        is_name = lambda node: name in (getattr(node, "attr", ""), getattr(node, "id", ""))  # noqa: E731
        return self.first(lambda node: isinstance(node, ast.Call) and is_name(node.func))

    def create_run(self):
        """The name of what makes the run: the argument of main() in the last lines, or Run."""
        calls = [node for node in self.nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "main"]
        return next((node.args[0].id for node in calls if node.args), "Run")

    def names(self):
        """All attributes and strings in the text."""
        attributes = {node.attr for node in self.nodes if isinstance(node, ast.Attribute)}
        return attributes | {node.value for node in self.nodes if isinstance(node, ast.Constant)}
