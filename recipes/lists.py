"""Lists of changes that turn a script into the PPO of another library, such as lists/as-sb3.txt.

A line has a recipe or an option, then, behind two spaces or more, the row of docs/conformance.md that it is for. A
change with several rows has a line for each. The changes of continuous details are for ppo_continuous_action.py."""

import re
from pathlib import Path
from typing import NamedTuple

from recipes.merge import with_recipe
from recipes.recipe import ROOT, read

FOLDER = Path(__file__).parent / "lists"


class Change(NamedTuple):
    """One line of a list: a recipe, or an option whose value becomes the default."""

    name: str  # such as without/core-9 or --no-anneal-lr
    rows: tuple  # of docs/conformance.md, such as "core 9: the change of the value is clipped, the larger loss counts"

    @property
    def is_option(self):
        return self.name.startswith("--")

    @property
    def is_continuous(self):
        return self.rows[0].startswith("continuous")

    def describe(self):
        """The change in words."""
        if self.is_option:
            return f"{self.name} is the default"
        return f"{self.name}: {read(ROOT / f'recipes/{self.name}.diff').header['what']}"

    def apply(self, text):
        """The text of a script with the change; ValueError where it does not fit."""
        if self.is_option:
            return with_default(text, self.name)
        return with_recipe(text, read(ROOT / f"recipes/{self.name}.diff"))


def names():
    """The names of all lists."""
    return sorted(file.stem for file in FOLDER.glob("*.txt"))


def changes(name, text):
    """The changes of a list that concern a script with this text, in their order."""
    rows = {}
    for line in (FOLDER / f"{name}.txt").read_text().splitlines():
        if not line.startswith("#"):
            change, row = re.split(r"  +", line, maxsplit=1)
            rows.setdefault(change, []).append(row)
    found = [Change(change, tuple(of_change)) for change, of_change in rows.items()]
    has_continuous_actions = "[continuous 1]" in text
    return [change for change in found if has_continuous_actions or not change.is_continuous]


def with_default(text, option):
    """The text of a script in which an option such as "--no-anneal-lr" is the default; ValueError where it has none."""
    name = option.removeprefix("--").removeprefix("no-").replace("-", "_")
    value = str(not option.startswith("--no-"))
    changed, count = re.subn(rf"^(    {name}: bool = )(True|False)\b", rf"\g<1>{value}", text, flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"the script has no option {option}")
    return changed
