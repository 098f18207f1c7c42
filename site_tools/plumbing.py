"""Writes the plumbing of ppo.py into all other scripts.

    python -m site_tools.plumbing

The plumbing is the text from the line "# That was PPO." to the end of main(). What a script has below main() stays.
"""

import sys

from benchmark.results import ROOT
from benchmark.scripts import SCRIPTS
from recipes.recipe import plumbing


def main():
    source = plumbing((ROOT / "ppo.py").read_text())
    for name in SCRIPTS:
        file = ROOT / f"{name}.py"
        text = file.read_text()
        try:
            written = text.replace(plumbing(text), source)
        except ValueError as error:
            sys.exit(f"error: {file.name}: {error}")
        if written != text:
            file.write_text(written)
            print(f"{file.name}: rewritten")


if __name__ == "__main__":
    main()
