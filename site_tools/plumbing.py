"""Writes the plumbing of ppo.py into all other scripts.

    python -m site_tools.plumbing

The plumbing is the text from the line "# That was PPO." to the end of main(). What a script has below main() stays.
"""

from benchmark.results import ROOT
from recipes.recipe import plumbing
from site_tools.diffs import scripts


def main():
    source = plumbing((ROOT / "ppo.py").read_text())
    for name in scripts():
        file = ROOT / f"{name}.py"
        text = file.read_text()
        file.write_text(text.replace(plumbing(text), source))


if __name__ == "__main__":
    main()
