"""Measures which details a PPO has, by running it.

python -m conformance sb3                    an adapter of conformance/adapters, in that library's environment
python -m conformance path/to/my_adapter.py  an adapter of your own: conformance/example/adapter.py is an example
python -m conformance my_ppo.py              an edited copy of one of this project's scripts
python -m conformance path/to/cleanrl        a folder of scripts in CleanRL's style
python -m conformance sb3 --json FILE        also writes the rows with their errors
python -m conformance --page                 writes docs/conformance.md and results.csv from conformance/results

In another folder than that of the checkout: python path/to/checkout/conformance my_adapter.py
"""

import argparse
import dataclasses
import datetime
import importlib
import importlib.util
import json
import sys
from pathlib import Path

if not __package__:  # this folder was run, and not the module: what is imported lies beside it
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from conformance import explanation, measure, page
from conformance.answers import BadAnswer, describe_error

FOLDER = Path(__file__).parent
# Of these, an adapter has at least one.
FUNCTIONS = (
    "initial_weights", "advantages", "update", "updates", "schedules", "normalize", "environment_actions", "atari",
    "images", "recurrent_weights", "recurrence",
)  # fmt: skip


def load(name):
    """The adapter with a name, or that of a folder or a file. Exits with a line where there is none."""
    path = Path(name)
    if path.is_dir():
        return load_folder(path)
    if path.suffix == ".py":
        return load_file(path)
    if not is_adapter(FOLDER / f"adapters/{name}.py"):
        known = sorted(file.stem for file in FOLDER.glob("adapters/*.py") if is_adapter(file))
        sys.exit(f"error: there is no adapter {name}; there are {', '.join(known)}, or give the path of yours")
    return import_adapter(name)


def import_adapter(name):
    """A module of conformance/adapters. Exits with a line where it cannot be imported."""
    try:
        return importlib.import_module(f"conformance.adapters.{name}")
    except Exception as error:
        advice = ""
        if isinstance(error, ImportError):  # most often its library is missing
            advice = "; run this in a Python environment that has it"
        sys.exit(f"error: the adapter {name} cannot be imported: {describe_error(error)}{advice}")


def is_adapter(file):
    """Whether a file is the adapter of a library.

    Other files of the folder adapt scripts, or hold what adapters share."""
    return file.is_file() and "\ndef update(" in file.read_text()


def load_folder(folder):
    """The adapter of a folder of scripts: PureJaxRL's, or scripts in CleanRL's style."""
    script = folder / "ppo.py"
    if script.is_file() and "def make_train(" in script.read_text():
        return import_adapter("purejaxrl").Scripts(folder)
    single_file = import_adapter("single_file")
    scripts = single_file.Scripts(folder)
    if not scripts.KINDS:
        sys.exit(f"error: {folder} has none of {', '.join(single_file.FILES.values())}")
    return scripts


def load_file(path):
    """The adapter of a file: of a script of this project, of an edited copy of one, or the file itself."""
    if not path.is_file():
        sys.exit(f"error: there is no file {path}")
    try:
        if "def train(args, run)" in path.read_text():
            return import_adapter("ours").load(path)
        module = load_module(path)
    except Exception as error:
        advice = ""
        if isinstance(error, ImportError):
            advice = "; run this in a Python environment that has it"
        sys.exit(f"error: {path} cannot be imported: {describe_error(error)}{advice}")
    if not any(hasattr(module, name) for name in FUNCTIONS):
        example = FOLDER / "example/adapter.py"
        sys.exit(f"error: {path} is no adapter: it has none of {', '.join(FUNCTIONS)}; {example} is an example")
    return module


def load_module(path):
    """The module of an adapter's file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))  # for what it imports from its own folder
    spec.loader.exec_module(module)
    return module


def as_json(row):
    """A row as a dict, with errors of two digits."""
    saved = dataclasses.asdict(row)
    for name in ("error", "nearest_error"):
        if saved[name] is not None:
            saved[name] = float(f"{saved[name]:.1e}")
    return saved


def line_of(row):
    """A row as a line of text."""
    line = f"{row.detail:15} {row.title:64} {row.word()}"
    if row.result in (explanation.OTHER, explanation.UNKNOWN):
        return f"{line}: {row.found}"
    if row.nearest:
        return f"{line}   (error {row.error:.0e}; nearest: {row.nearest}, {row.nearest_error:.0e})"
    return line


def report(rows):
    """Prints the rows as a table of text."""
    for row in rows:
        print(line_of(row))
    measured = sum(row.result != explanation.UNKNOWN for row in rows)
    as_in_ppo2 = sum(row.result == explanation.YES for row in rows)
    print(f"{measured} of {len(rows)} measured, {as_in_ppo2} as in ppo2")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapter", nargs="?", help="the name of an adapter, or the path of a file")
    parser.add_argument("--json", type=Path, help="write the rows into this file")
    parser.add_argument("--name", help="name of the implementation, in place of the adapter's")
    parser.add_argument("--version", help="its version, likewise")
    parser.add_argument("--page", action="store_true", help="write docs/conformance.md and results.csv, and end")
    args = parser.parse_args()
    if args.page:
        page.write()
        return
    if args.adapter is None:
        parser.error("the name of an adapter, or the path of a file is missing")
    module = load(args.adapter)
    try:
        rows = measure.measure(module)
    except BadAnswer as error:
        sys.exit(f"error: {error}")
    name = args.name or getattr(module, "NAME", args.adapter)
    version = args.version or getattr(module, "VERSION", "")
    print(name, version)
    report(rows)
    if args.json:
        about = {
            "name": name,
            "version": version,
            "date": f"{datetime.date.today()}",
            "command": f"python -m conformance {args.adapter}",
            "rows": [as_json(row) for row in rows],
        }
        args.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
