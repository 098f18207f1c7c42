"""Writes a copy of a script with recipes applied. Needs git and Python alone, no installed package.

python -m recipes.apply core-9 my_ppo.py
python -m recipes.apply wide core-9 my_ppo.py       several recipes, one after the other
python -m recipes.apply core-9 my_ppo.py --script ppo_shared.py
python -m recipes.apply as-sb3 my_ppo.py            a list of changes: the script becomes Stable-Baselines3's PPO
"""

import argparse
import difflib
import shlex
import sys
from pathlib import Path

from recipes import lists
from recipes.recipe import ROOT, apply, read


def read_or_exit(file):
    """The recipe in a file; ends the program if it cannot be read."""
    try:
        return read(file)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")


def find(name):
    """The recipe of a name such as core-9 or without/core-9, or of the path of a .diff file.

    Ends the program if there is none."""
    if name.endswith(".diff"):
        return read_or_exit(Path(name))
    files = sorted(ROOT.glob("recipes/*/*.diff"))
    for file in files:
        if name in (file.stem, f"{file.parent.name}/{file.stem}"):
            return read_or_exit(file)
    near = difflib.get_close_matches(name, [file.stem for file in files] + lists.names(), n=3)
    hint = f", perhaps {' or '.join(near)}" if near else ""
    sys.exit(f"error: there is no recipe {name}{hint}; recipes/README.md lists them")


def applied(chosen, script):
    """The text of the file `script` with the recipes and lists applied in turn, and a line for each change.

    Ends the program where that fails."""
    lines = []
    try:
        text = script.read_text()
        for each in chosen:
            if isinstance(each, str):  # the name of a list
                for change in lists.changes(each, text):
                    text = change.apply(text)
                    lines.append(f"- {change.describe()}")
            else:
                text = apply(each, text)
                lines.append(f"- {each.name}: {each.header['what']}")
    except FileNotFoundError as error:
        sys.exit(f"error: {error.filename} was not found")  # the script, or git
    except OSError as error:
        sys.exit(f"error: {error}")
    except ValueError as error:
        reason = " ".join(str(error).split())  # git's message has several lines
        sys.exit(f"error: the recipe does not fit {script.name}: {reason}")
    return text, lines


def main(words=None):
    """Runs the command line; `words` replace those of sys.argv."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m recipes.apply", description=__doc__, formatter_class=layout)
    what = f"such as core-9, the path of a .diff file, or a list: {', '.join(lists.names())}"
    parser.add_argument("names", nargs="+", metavar="recipe", help=what)
    parser.add_argument("copy", type=Path, help="the file to write, such as my_ppo.py")
    parser.add_argument("--script", type=Path, help="the script to change; default: the first recipe's, or ppo.py")
    args = parser.parse_args(words)
    if args.copy.suffix != ".py":
        parser.error(f"the last argument is the file to write, such as my_ppo.py, not {args.copy}")
    if args.copy.is_dir():
        parser.error(f"{args.copy} is a folder")
    if not args.copy.parent.is_dir():
        parser.error(f"there is no folder {args.copy.parent}")

    chosen = [name if name in lists.names() else find(name) for name in args.names]
    first = chosen[0]
    is_list = isinstance(first, str)
    script = args.script or (ROOT / "ppo.py" if is_list else first.script)
    text, lines = applied(chosen, script)
    if args.copy.exists() and args.copy.read_text() != text:
        sys.exit(f"error: {args.copy} exists with other contents; choose another name, or remove it")
    args.copy.write_text(text)

    print(f"{args.copy} is {script.name} with these changes:")
    for line in lines:
        print(line)
    if is_list:
        print(f"see that it has the details of that library: python -m conformance {shlex.quote(str(args.copy))}")
    elif not args.script:
        command = first.header["command"].replace("my_ppo.py", shlex.quote(str(args.copy)))
        if "recipes.environments" in command and args.copy.resolve().parent != ROOT:
            command = f"PYTHONPATH={shlex.quote(str(ROOT))} {command}"  # the copy's folder has no package "recipes"
        print(f"try it: {command}")


if __name__ == "__main__":
    main()
