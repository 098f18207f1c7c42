"""docs/details.md, the README's table of scripts and the page of diffs say what the scripts are."""

import importlib
import re
from html import unescape

import pytest
from dependencies import EXTRAS
from test_scripts import marks_of, parents, text, texts
from toy_envs import ROOT

from docs import diffs

DETAILS, README = diffs.DETAILS.read_text(), diffs.README.read_text()
ROWS = [line for line in DETAILS.splitlines() if line.startswith("| <a id=")]
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: re.search(r"</a>(\w+ \d+)", row)[1].replace(" ", "_"))
children = [script for script in texts if script.parent]
every_child = pytest.mark.parametrize("script", children, ids=lambda script: script.name)


def cells(row):
    return [cell.strip() for cell in row.strip("| ").split(" | ")]


def scripts_table():
    """{script: the cells of its row in the README}."""
    rows = [line for line in README.splitlines() if re.match(r"\| \[`ppo\w*\.py`\]", line)]
    return {re.search(r"(\w+)\.py", row)[1]: cells(row.replace("| |", "|  |")) for row in rows}


@pytest.fixture(scope="module")
def page():
    return diffs.page()


# docs/details.md


def test_every_detail_has_its_row():
    """In order, with an anchor and no empty cell, of six."""
    sizes = {"core": 13, "atari": 9, "continuous": 9, "lstm": 5, "procgen": 1, "multidiscrete": 1, "selfplay": 1}
    sizes["aux"] = 4
    assert [cells(row)[0] for row in ROWS] == [
        f'<a id="{name}-{number}"></a>{name} {number}' for name, size in sizes.items() for number in range(1, size + 1)
    ]
    assert all(len(cells(row)) == 6 and all(cells(row)) for row in ROWS)


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
    assert {name for name, *_ in links} >= {script.name for script in texts if mark in marks_of(script)}
    assert links or cells(row)[2] == "not yet" and not any(f"[{mark}]" in text(script) for script in texts)


@every_row
def test_links_to_ppo2(row):
    """Text and target name the same lines of the same file at the same commit; three details are not in ppo2."""
    links = re.findall(r"\[([\w/]+\.py):(\d+)(?:-(\d+))?\]\(([^)]*)\)", cells(row)[3])
    for path, first, last, url in links:
        lines = f"L{first}" + (f"-L{last}" if last else "")
        assert url == f"https://github.com/openai/baselines/blob/ea25b9e/baselines/{path}#{lines}"
    absent = re.search(r"</a>(\w+ \d+)", row)[1] in ("selfplay 1", "aux 3", "aux 4")
    assert links or absent and cells(row)[3] == "none"


# the README


def test_the_table_has_every_script():
    """Its parent and details as the tests know them, the extra that it needs, a command with its own default."""
    table = scripts_table()
    assert set(table) == {path.stem for path in ROOT.glob("ppo*.py")} == set(parents)
    for name, (_, parent, own, _, _, _, extra, command) in table.items():
        group, first, last = parents[name].marks
        assert parent.strip("`") == (f"{parents[name].parent}.py" if parents[name].parent else "")
        assert own == f"{group} {first}" + (f"-{last}" if last > first else "")
        assert [word for word in [extra.strip("`")] if word] == EXTRAS[f"{name}.py"]
        default = importlib.import_module(name).Args().env_id
        assert command == f"`python {name}.py --env-id {default}`"
    assert diffs.scripts() == {name: (script.parent or "", sorted_marks(script)) for name, script in parents.items()}


def sorted_marks(script):
    return sorted(marks_of(script), key=lambda mark: int(mark.split()[1]))


@every_child
def test_size_of_a_diff(script):
    """What it adds, less what it removes, is how much longer the script is."""
    added, removed = map(int, re.fullmatch(r"\+(\d+) -(\d+)", scripts_table()[script.name][3]).groups())
    longer = len(text(script).splitlines()) - len(text(parents[script.parent]).splitlines())
    assert added - removed == longer and min(added, removed) > 0


def test_size_of_all_diffs():
    sizes = [re.findall(r"\d+", cells[3]) for cells in scripts_table().values() if cells[3]]
    added, removed = (sum(map(int, column)) for column in zip(*sizes, strict=True))
    assert len(sizes) == len(children) and f"**+{added} -{removed}**" in README


def test_the_example_changes_lines_that_are_there():
    quoted = re.search(r"In `my_ppo.py` the line `(.*?)` becomes", README)[1]
    assert text(parents["ppo"]).count(quoted) == 1
    below = text(parents["ppo"]).split("# [core 9]")[1].splitlines()[1:3]
    assert "clipped_values =" in below[0] and "value_loss =" in below[1]


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
    """At the top all of the script's own, each with its claim; above every change below Args at least one of them."""
    shown, claims = section(page, script), diffs.claims()
    expected = [f"[{mark}] {claims[mark].replace('`', '')}" for mark in sorted_marks(script)]
    assert [plain(item) for item in re.findall(r"<li>(.*?)</li>", shown)] == expected
    rows = re.findall(r"<tr.*?</tr>", shown)
    titles = [re.findall(r"\[(\w+ \d+)\]", plain(row)) for row in rows if 'class="title"' in row]
    assert plain(next(row for row in rows if 'class="title"' in row)).startswith("Above the code")
    assert all(set(title) & marks_of(script) for title in titles[1:])
    assert set(sum(titles, [])) >= marks_of(script)
