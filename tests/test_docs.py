"""docs/details.md, the README's table of scripts and the page of diffs say what the scripts are."""

import importlib
import re
from html import unescape

import pytest
from dependencies import EXTRAS
from test_scripts import children, every_child, parents, text
from toy_envs import ROOT, SCRIPTS

from docs import diffs

DETAILS, README = diffs.DETAILS.read_text(), diffs.README.read_text()
ROWS = [line for line in DETAILS.splitlines() if line.startswith("| <a id=")]
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: re.search(r"</a>(\w+ \d+)", row)[1].replace(" ", "_"))


def cells(row):
    return [cell.strip() for cell in row.strip("| ").split(" | ")]


def scripts_table():
    """{script: the cells of its row in the README}."""
    rows = [line for line in README.splitlines() if re.match(r"\| \[`(ppo|impala)\w*\.py`\]", line)]
    return {re.search(r"(\w+)\.py", row)[1]: cells(row.replace("| |", "|  |")) for row in rows}


@pytest.fixture(scope="module")
def page():
    return diffs.page()


# docs/details.md


def test_every_detail_has_its_row():
    """In order, with an anchor and no empty cell, of six."""
    sizes = {"core": 13, "atari": 9, "continuous": 9, "lstm": 5, "procgen": 1, "multidiscrete": 1, "selfplay": 1}
    sizes |= {"aux": 4, "cleanba": 9, "impala": 6}
    assert [cells(row)[0] for row in ROWS] == [
        f'<a id="{name}-{number}"></a>{name} {number}' for name, size in sizes.items() for number in range(1, size + 1)
    ]
    assert all(len(cells(row)) == 6 and all(cells(row)) for row in ROWS)


def test_what_is_no_detail_is_explained():
    assert [mark for mark in diffs.claims() if " " not in mark] == list(diffs.KINDS)
    assert all(f'<a id="{kind}"></a>' in DETAILS and f"`[{kind}]`" in README for kind in diffs.KINDS)


def test_the_docs_are_up_to_date():
    assert diffs.with_links(DETAILS) == DETAILS, "make diffs brings the lines up to date"
    assert diffs.with_sizes_and_scores(README) == README, "make diffs brings sizes and scores up to date"


@every_row
def test_links_lead_to_the_mark(row):
    """Into each script that adds the detail; where it is said to be missing, no script has the mark."""
    mark = re.search(r"</a>(\w+ \d+)", row)[1]
    links = re.findall(r"\[(\w+)\.py:(\d+)\]\(\.\./(\w+)\.py#L(\d+)\) `(\w+)`", cells(row)[2])
    for name, number, *target, definition in links:
        assert [name, number] == target
        source = (ROOT / f"{name}.py").read_text().splitlines()
        assert f"[{mark}]" in source[int(number) - 1]
        assert any(re.match(rf"(def|class) {definition}\b", line) for line in source[: int(number)])
    assert {name for name, *_ in links} >= {script.name for script in SCRIPTS if mark in script.marks}
    assert links or cells(row)[2] == "not yet" and not any(f"[{mark}]" in text(script) for script in SCRIPTS)


@every_row
def test_links_to_ppo2(row):
    """Text and target name the same lines of the same file at the same commit; three details are not in ppo2."""
    links = re.findall(r"\[([\w/]+\.py):(\d+)(?:-(\d+))?\]\(([^)]*)\)", cells(row)[3])
    for path, first, last, url in links:
        lines = f"L{first}" + (f"-L{last}" if last else "")
        assert url == f"https://github.com/openai/baselines/blob/ea25b9e/baselines/{path}#{lines}"
    absent = re.search(r"</a>(\w+ \d+)", row)[1] in ("selfplay 1", "aux 3", "aux 4")
    absent = absent or re.search(r"</a>(\w+) ", row)[1] in ("cleanba", "impala")
    assert links or absent and cells(row)[3] == "none"


# the README


def test_the_table_has_every_script():
    """Its parent and details as the tests know them, the extra that it needs, a command with its own default."""
    table = scripts_table()
    assert set(table) == {path.stem for path in (*ROOT.glob("ppo*.py"), *ROOT.glob("impala*.py"))} == set(parents)
    for name, (_, parent, own, _, _, _, _, extra, command) in table.items():
        assert parent.strip("`") == (f"{parents[name].parent}.py" if parents[name].parent else "")
        assert set(diffs.details(own)) == parents[name].marks
        assert [word for word in [extra.strip("`")] if word] == EXTRAS[f"{name}.py"]
        default = importlib.import_module(name).Args().env_id
        starts = "torchrun --standalone --nproc-per-node 2" if name == "ppo_atari_multigpu" else "python"
        assert command == f"`{starts} {name}.py --env-id {default}`"
    assert {name: parent for name, (parent, _) in diffs.scripts().items()} == {
        name: script.parent or "" for name, script in parents.items()
    }
    assert diffs.details("procgen 1, continuous 8-9") == ["procgen 1", "continuous 8", "continuous 9"]


def marked(cell):
    """{"details": 86, "speed": 12, ...} of a cell."""
    return {kind: int(number) for number, kind in re.findall(r"(\d+) (\w+)", cell)}


@every_child
def test_size_of_a_diff(script):
    """What it adds, less what it removes, is how much longer the script is; details are apart from what is none."""
    cells = scripts_table()[script.name]
    added, removed = map(int, re.fullmatch(r"\+(\d+) -(\d+)", cells[3]).groups())
    longer = len(text(script).splitlines()) - len(text(parents[script.parent]).splitlines())
    assert added - removed == longer and min(added, removed) > 0
    counts = marked(cells[4])
    assert list(counts) == [kind for kind in ("details", *diffs.KINDS) if kind in counts] and counts["details"] > 0
    assert sum(counts.values()) < added


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
    assert diffs.in_words(sizes) == "1 details, 1 speed, 2 check"


def test_size_of_all_diffs():
    table = [cells for cells in scripts_table().values() if cells[3]]
    added, removed = (sum(int(re.findall(r"\d+", row[3])[column]) for row in table) for column in (0, 1))
    total = {kind: sum(marked(row[4]).get(kind, 0) for row in table) for kind in ("details", *diffs.KINDS)}
    words = ", ".join(f"{number} {kind}" for kind, number in total.items())
    assert len(table) == len(children)
    assert f"All {len(table)} have +{added} -{removed} lines. Marked: {words}." in README


def test_the_recipes_that_the_readme_names_are_there():
    named = re.findall(r"recipes/\w+/[\w-]+\.diff", README)
    assert len(named) >= 2 and all((ROOT / name).exists() for name in named)


# the page


def test_the_page_needs_nothing_else(page):
    """No file and no network: all that it refers to is in it, but for what a reader clicks on."""
    assert not re.search(r"<(script|link|img|iframe)|src=|url\(|@import", page)
    targets = re.findall(r'href="#([^"]*)"', page)
    assert len(targets) > 100 and set(targets) <= set(re.findall(r'id="([^"]*)"', page))


def section(page, script):
    return re.search(rf'<section id="{script.name}">.*?</section>', page, re.DOTALL)[0]


def plain(html):
    return unescape(re.sub(r"<[^>]*>", "", html))


@every_child
def test_the_page_shows_the_diff(page, script):
    """All changed lines, whole and in order, on their sides."""
    before, after = text(parents[script.parent]).splitlines(), text(script).splitlines()
    shown = section(page, script)
    for css, lines in (("removed", before), ("added", after)):
        found = re.findall(rf'<td class="n">(\d+)</td><td class="{css}"[^>]*>(.*?)</td>', shown)
        numbers = [int(number) for number, _ in found]
        assert numbers == sorted(set(numbers))
        assert [plain(html) for _, html in found] == [lines[number - 1] for number in numbers]
        kept = [line for number, line in enumerate(lines, 1) if number not in numbers]
        before, after = (kept, after) if css == "removed" else (before, kept)
    assert before == after  # what is not shown as changed is the same in both


@every_child
def test_the_page_names_the_details(page, script):
    """At the top all of the script's own, each with its claim; above every change below Args at least one of them, or
    what it is instead."""
    shown, claims = section(page, script), diffs.claims()
    _, own = diffs.scripts()[script.name]
    expected = [f"[{mark}] {claims[mark].replace('`', '')}" for mark in own]
    assert [plain(item) for item in re.findall(r"<li>(.*?)</li>", shown)] == expected
    rows = re.findall(r"<tr.*?</tr>", shown)
    titles = [diffs.MARK.findall(plain(row)) for row in rows if 'class="title"' in row]
    assert plain(next(row for row in rows if 'class="title"' in row)).startswith("Above the code")
    assert all(set(title) & (script.marks | {*diffs.KINDS}) for title in titles[1:])
    assert set(sum(titles, [])) >= script.marks
