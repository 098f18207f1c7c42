"""Checks the recipes, and brings them up to date after a script has changed.

python -m recipes                    rewrites each diff that its script's changes have broken, and names the conflicts
python -m recipes --caught core-3    runs the tests on the script with that recipe, and records the first that fails
                                     in its header; without a name, does so for all of recipes/without
python -m recipes --pairs            prints which two recipes do not fit together, and the lines that both change
"""

import argparse
import sys

from recipes import pairs
from recipes.recipe import recipes, write
from recipes.refresh import find_catching_test, refreshed, write_index


def record_test(recipe):
    """Finds the test that catches a recipe and writes it into the header; returns whether there is one."""
    test = find_catching_test(recipe)
    print(f"{recipe.name}: {test}", flush=True)
    if test is None:
        return False
    write(recipe._replace(header=recipe.header | {"caught by": test}))
    return True


def refresh(recipe):
    """Rewrites a recipe that no longer applies to its script, or that has another form than write() gives it."""
    before = recipe.file.read_text()
    write(refreshed(recipe))
    if recipe.file.read_text() != before:
        print(f"{recipe.name}: rewritten")


def main():
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m recipes", description=__doc__, formatter_class=plain)
    parser.add_argument("names", nargs="*", help="such as core-3 or without/core-3; default: all")
    parser.add_argument("--caught", action="store_true", help="record the test that fails without the detail")
    parser.add_argument("--pairs", action="store_true", help="print which recipes do not fit together")
    args = parser.parse_args()
    if args.pairs:
        pairs.show()
        return
    folders = ["without"] if args.caught else ["with", "without"]
    among = [recipe for recipe in recipes() if recipe.file.parent.name in folders]
    chosen = []
    missing = set(args.names)
    for recipe in among:
        names = {recipe.file.stem, recipe.name}
        if not args.names or names & set(args.names):
            chosen.append(recipe)
            missing -= names
    if missing:
        sys.exit(f"error: recipes/{' and recipes/'.join(folders)} have no {', '.join(sorted(missing))}")

    failed = 0
    for recipe in chosen:
        try:
            if not args.caught:
                refresh(recipe)
            elif not record_test(recipe):
                failed += 1
        except ValueError as error:
            print(error)
            failed += 1
    write_index()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
