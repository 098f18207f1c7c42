"""docs/details.md, the README's table of scripts and the page of diffs say what the scripts are."""

import importlib
import re

import pytest
from dependencies import EXTRAS
from test_scripts import children, every_child, parents, text
from toy_envs import ROOT, SCRIPTS, TEXTS

from docs import diffs

DETAILS, README = diffs.DETAILS.read_text(), diffs.README.read_text()
ROWS = [line for line in DETAILS.splitlines() if line.startswith("| <a id=")]
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: re.search(r"</a>(\w+ \d+)", row)[1].replace(" ", "_"))


def cells(row):
    return [cell.strip() for cell in row.strip("| ").split(" | ")]


def scripts_table():
    """{script: the cells of its row in the README}."""
    rows = [line for line in README.splitlines() if re.match(r"\| \[`\w+\.py`\]\(\w+\.py\) \|", line)]
    return {re.search(r"(\w+)\.py", row)[1]: cells(row) for row in rows}


def sizes_table():
    """The table of sizes in docs/details.md, [{column: cell}, ...]; the last row has the sums."""
    header, _, *rows = map(cells, diffs.SIZES.search(DETAILS)[0].splitlines())
    return [dict(zip(header, row, strict=True)) for row in rows]


# docs/details.md


def test_every_detail_has_its_row():
    """With an anchor and no empty cell, of five; each set in order from 1 and without a gap."""
    found = [re.fullmatch(r'<a id="(\w+)-(\d+)"></a>\1 \2', cells(row)[0]).groups() for row in ROWS]
    sets = {name: [int(number) for set_, number in found if set_ == name] for name, _ in found}
    assert found == [(name, str(number)) for name, numbers in sets.items() for number in range(1, len(numbers) + 1)]
    assert {f"{name} {number}" for name, number in found} >= set().union(*(script.marks for script in TEXTS))
    assert all(len(cells(row)) == 5 and all(cells(row)) for row in ROWS)


def test_every_detail_has_its_reason():
    """Once, in the order of the tables; and where ours is compared, that is apart."""
    found = diffs.reasons()
    assert list(found) == re.findall(r"^- \*\*(\w+ \d+)\*\*", DETAILS, re.MULTILINE)
    assert list(found) == [mark for mark in diffs.claims() if mark not in diffs.KINDS]
    assert all(why.endswith(".") and compared and "*Compared*" not in why + compared for why, compared in found.values())
    assert found["core 7"][1].startswith("by the population's") and found["core 7"][1].endswith("stored advantages")
    assert found["core 8"][1] == "the same"


def test_what_is_no_detail_is_explained():
    assert [mark for mark in diffs.claims() if " " not in mark] == list(diffs.KINDS)
    assert all(f'<a id="{kind}"></a>' in DETAILS and f"`[{kind}]`" in README for kind in diffs.KINDS)


def test_the_docs_are_up_to_date():
    assert diffs.with_links(DETAILS) == DETAILS, "make diffs brings the lines up to date"
    assert diffs.with_sizes(DETAILS) == DETAILS, "make diffs brings the sizes up to date"
    assert diffs.with_diffs_and_scores(README) == README, "make diffs brings sizes and scores up to date"


@every_row
def test_links_lead_to_the_mark(row):
    """Into each script that adds the detail; where it is said to be missing, no script has the mark."""
    mark = re.search(r"</a>(\w+ \d+)", row)[1]
    links = []
    for line in cells(row)[2].split("<br>"):
        of_one = re.findall(r"\[(\w+)\]\(\.\./(\w+)\.py#L(\d+)\)", line)
        assert {name for _, name, _ in of_one} <= {line.split(":")[0]}
        links += of_one
    for definition, name, number in links:
        source = (ROOT / f"{name}.py").read_text().splitlines()
        assert f"[{mark}]" in source[int(number) - 1]
        assert any(re.match(rf"(def|class) {definition}\b", line) for line in source[: int(number)])
    assert {name for _, name, _ in links} >= {script.name for script in SCRIPTS if mark in script.marks}
    assert links or cells(row)[2] == "not yet" and not any(f"[{mark}]" in text(script) for script in SCRIPTS)


@every_row
def test_links_to_ppo2(row):
    """Text and target name the same lines of the same file at the same commit; three details are not in ppo2."""
    links = re.findall(r"\[(\w+\.py):(\d+)(?:-(\d+))?\]\(([^)]*)\)", cells(row)[3])
    for file, first, last, url in links:
        lines = f"L{first}" + (f"-L{last}" if last else "")
        folder = re.fullmatch(r"https://github.com/openai/baselines/blob/ea25b9e/baselines/([\w/]+/)(.*)", url)
        assert folder[2] == f"{file}#{lines}"
    absent = re.search(r"</a>(\w+ \d+)", row)[1] in ("selfplay 1", "aux 3", "aux 4")
    absent = absent or re.search(r"</a>(\w+) ", row)[1] in ("cleanba", "impala")
    assert links or absent and cells(row)[3] == "none"


# the README


def test_the_table_has_every_script():
    """Its parent and details as the tests know them, and the parent's name beside the diff."""
    table, found = scripts_table(), diffs.scripts()
    assert set(table) == set(found) == set(parents)
    for name, row in found.items():
        assert row.parent == (parents[name].parent or "") and set(row.own) == parents[name].marks
        assert len(table[name]) == 5 and bool(table[name][3]) == bool(row.parent)
        assert all(table[name][:3] + table[name][4:])
    assert diffs.details("procgen 1, continuous 8-9") == ["procgen 1", "continuous 8", "continuous 9"]


def test_every_script_has_its_command():
    """With its own default, and the extra that it needs."""
    commands = re.findall(r"^\| `((?:python|torchrun) [^`]*)` \|([^|]*)\|$", README, re.MULTILINE)
    assert len(commands) == len(parents)
    for (command, extra), name in zip(commands, diffs.scripts(), strict=True):
        assert [word for word in [extra.strip(" `")] if word] == EXTRAS[f"{name}.py"]
        assert command.endswith(f" {name}.py --env-id {importlib.import_module(name).Args().env_id}")
        assert f"\n    {command.split()[0]} " in text(parents[name]).split('"""')[1]


@every_child
def test_size_of_a_diff(script):
    """What it adds, less what it removes, is how much longer the script is; details are apart from what is none."""
    [row] = [row for row in sizes_table() if row["script"] == f"{script.name}.py"]
    counts = {kind: int(row[kind]) for kind in ("added", "removed", "details", *diffs.KINDS)}
    assert scripts_table()[script.name][3] == f"`{script.parent}.py`<br>+{row['added']} -{row['removed']}"
    longer = len(text(script).splitlines()) - len(text(parents[script.parent]).splitlines())
    assert counts["added"] - counts["removed"] == longer and min(counts["added"], counts["removed"]) > 0
    assert counts["details"] > 0
    assert sum(counts[kind] for kind in ("details", *diffs.KINDS)) < counts["added"]


BEFORE = """\
class Args:
    seed: int = 1


def step():
    look()
    return act()
"""
AFTER = """\
class Args:
    seed: int = 2  # [lstm 1]


def step():
    if not fits():  # [check]
        raise ValueError

    look()  # [lstm 1] and [speed]: a detail
    remember()  # [core 1] not its own
    return act(fast=True)  # [speed]
"""


def test_what_is_counted(monkeypatch):
    """Lines below Args that are new and not blank, each once."""
    monkeypatch.setattr(diffs, "lines", {"before": BEFORE.splitlines(), "after": AFTER.splitlines()}.get)
    expected = {"+": 7, "-": 3, "details": 1, "check": 2, "speed": 1}
    sizes = diffs.size("after", "before", ["lstm 1"])
    assert sizes == expected


def test_size_of_all_diffs():
    *rows, total = sizes_table()
    assert len(rows) == len(children) and total.pop("script") == f"all {len(rows)}"
    assert total == {column: str(sum(int(row[column]) for row in rows)) for column in total}


def test_the_recipes_that_the_readme_names_are_there():
    named = re.findall(r"recipes/\w+/[\w-]+\.diff", README)
    assert len(named) >= 2 and all((ROOT / name).exists() for name in named)
