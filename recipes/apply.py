"""Writes a copy of a script with recipes applied. Needs git and Python alone, no installed package.

python -m recipes.apply core-9 my_ppo.py
python -m recipes.apply wide core-9 my_ppo.py       several recipes, one after the other
python -m recipes.apply core-9 my_ppo.py --script ppo_shared.py        to another script, or to an edited copy
python -m recipes.apply as-sb3 my_ppo.py            a list of changes: the script becomes Stable-Baselines3's PPO

Without --script it is the first script that all the recipes are made for. Recipes are merged as git merges branches:
what two of them change in different lines is put together, and lines that both change are named.
"""

import argparse
import difflib
import itertools
import shlex
import sys
from pathlib import Path

from recipes import lists, pairs
from recipes.merge import with_recipe
from recipes.recipe import ROOT, read


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


def common_script(chosen):
    """The first script that all the recipes are made for, or that of the first recipe where there is none."""
    for script in chosen[0].scripts:
        if all(script in recipe.scripts for recipe in chosen):
            return script
    return chosen[0].script


def blame(recipe, others, script):
    """The names of the other recipes with which one does not fit the text of a script; "" if it does not fit alone."""
    try:
        with_recipe(script, recipe)
    except ValueError:
        return ""
    names = []
    for other in others:
        try:
            with_recipe(with_recipe(script, other), recipe)
        except ValueError:
            names.append(other.name)
    return " and ".join(names)


def applied(chosen, script):
    """The text of the file `script` with the recipes and lists applied in turn, and a line for each change.

    Ends the program where that fails."""
    lines = []
    try:
        source = text = script.read_text()
        for each in chosen:
            if isinstance(each, str):  # the name of a list
                for change in lists.changes(each, text):
                    text = change.apply(text)
                    lines.append(f"- {change.describe()}")
            else:
                text = with_recipe(text, each)
                lines.append(f"- {each.name}: {each.header['what']}")
    except FileNotFoundError as error:
        sys.exit(f"error: {error.filename} was not found")  # the script, or git
    except OSError as error:
        sys.exit(f"error: {error}")
    except ValueError as error:
        earlier = [recipe for recipe in chosen[: chosen.index(each)] if not isinstance(recipe, str)]
        others = "" if isinstance(each, str) else blame(each, earlier, source)
        where = f"{others}, in either order" if others else script.name
        name = each if isinstance(each, str) else each.name
        sys.exit(f"error: {name} does not fit {where}: {error}")
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
    recipes = [each for each in chosen if not isinstance(each, str)]
    script = args.script or (common_script(recipes) if recipes else ROOT / "ppo.py")
    text, lines = applied(chosen, script)
    if args.copy.exists() and args.copy.read_text() != text:
        sys.exit(f"error: {args.copy} exists with other contents; choose another name, or remove it")
    args.copy.write_text(text)

    print(f"{args.copy} is {script.name} with these changes:")
    for line in lines:
        print(line)
    for one, other in itertools.combinations(recipes, 2):
        reason = pairs.error(one.file.stem, other.file.stem)
        if reason is not None:
            print(f"warning: {one.name} does not work with {other.name}: {reason}")
    if len(recipes) < len(chosen):
        print(f"see that it has the details of that library: python -m conformance {shlex.quote(str(args.copy))}")
    commands = {}
    for recipe in recipes:
        if recipe.script == script:
            command = recipe.header["command"].replace("my_ppo.py", shlex.quote(str(args.copy)))
            if "recipes.environments" in command and args.copy.resolve().parent != ROOT:
                command = f"PYTHONPATH={shlex.quote(str(ROOT))} {command}"  # the copy's folder has no package "recipes"
            commands.setdefault(command, recipe.name)
    for command, name in commands.items():
        print(f"try it: {command}" if len(commands) == 1 else f"the command of {name}: {command}")


if __name__ == "__main__":
    main()
