"""docs/details.md, the README's table of scripts and the site say what the scripts are."""

import importlib
import re
import shutil
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser

import pytest
from dependencies import EXTRAS
from test_scripts import children, every_child, parents, text
from toy_envs import ROOT, SCRIPTS, TEXTS, every_text

from docs import diffs, pages
from recipes.__main__ import recipes

DETAILS, README, ALL_RECIPES = diffs.DETAILS.read_text(), diffs.README.read_text(), recipes()
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
    assert all(why.endswith(".") and compared for why, compared in found.values())
    assert "*Compared*" not in str(found)
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


# the site


class Page(HTMLParser):
    """What a page has: ids, the links that a reader may click, and what it loads."""

    def __init__(self, html):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids |= {values[key] for key in ("id", "name") if key in values}
        found = [values[key] for key in ("href", "xlink:href", "src", "srcset", "data", "poster") if values.get(key)]
        (self.links if tag == "a" else self.loads).extend(found)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """{file's name: text} of the site, written in a tree with nothing but what git has."""
    tree = tmp_path_factory.mktemp("clean") / "tree"
    ignored = shutil.ignore_patterns(".git", *(ROOT / ".gitignore").read_text().replace("/\n", "\n").split())
    shutil.copytree(ROOT, tree, ignore=ignored)
    subprocess.run([sys.executable, "-m", "docs.pages"], cwd=tree, check=True, capture_output=True)
    assert sum(file.stat().st_size for file in (tree / "site").iterdir()) < 15e6
    return {file.name: file.read_text() for file in (tree / "site").iterdir()}


@pytest.fixture(scope="module")
def web(site):
    return {name: Page(text) for name, text in site.items() if name.endswith(".html")}


def plain(html):
    return unescape(re.sub(r"<[^>]*>", "", html))


def test_every_page_is_there(site):
    texts = ["details", "recipes", "readme", "scale", "speed", "benchmark"]
    expected = {f"{name}.html" for name in [*parents, *texts, "index", "diffs", "report"]}
    assert expected <= site.keys()
    assert {name for name, text in site.items() if not text.strip()} == set()


def test_the_site_needs_no_network(site, web):
    """What a page loads is beside it; the style loads nothing."""
    for name, page in web.items():
        assert all(load in site or load.startswith("data:") for load in page.loads), name
        assert page.loads or name == "report.html"
    assert not re.search(r"url\(|@import", site["style.css"])


def test_links_on_the_site_lead_somewhere(web):
    """From every page to every other but by the internet: the page is there, and the place on it."""
    broken, led = [], set()
    for name, page in web.items():
        for link in page.links:
            file, _, place = link.partition("#")
            if not re.match("https://", link):
                led.add(file)
                target = web.get(file or name)
                if target is None or place and place not in target.ids:
                    broken.append(f"{name}: {link}")
    assert broken == [] and led - {""} == set(web)


@every_text
def test_a_page_shows_the_whole_script(site, script):
    lines = re.findall(r'<span class="line[^"]*" id="L(\d+)" data-n="\1">(.*?)\n</span>', site[f"{script.name}.html"])
    assert [plain(html) for _, html in lines] == text(script).splitlines()
    assert [int(number) for number, _ in lines] == list(range(1, len(lines) + 1))


def notes(site, name):
    """{(line, mark's anchor): the text of the note} of a script's page."""
    found = re.findall(r'<div class="notes">(.*?)</div>\n<pre>', site[f"{name}.html"], re.DOTALL)
    pieces = [piece for block in found for piece in re.split(r'(?=<details class="note"|<p class="note)', block)[1:]]
    places = (re.search(r'id="L(\d+)-([\w-]+)"', piece) for piece in pieces)
    said = (" ".join(plain(piece.replace("<br>", " ")).split()) for piece in pieces)
    return {(int(place[1]), place[2]): each for place, each in zip(places, said, strict=True)}


def words(markdown):
    """A cell of docs/details.md as it is read."""
    return plain(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown.replace("`", "").replace("<br>", " ")))


@every_text
def test_every_marked_line_has_its_notes(site, script):
    """Each with the claim; of a detail also why, where in ppo2, what studies found, how ours compares, and what each
    recipe that takes it out says and did."""
    lines, found = text(script).splitlines(), notes(site, script.name)
    start = next(n for n, line in enumerate(lines, 1) if re.match("class|def", line))
    marked = [(n, mark) for n, line in enumerate(lines, 1) if n > start for mark in diffs.MARK.findall(line)]
    assert found.keys() == {(n, mark.replace(" ", "-")) for n, mark in marked} and len(found) > 20
    rows = {row[2]: row for row in diffs.DETAIL_ROW.finditer(DETAILS)}
    for n, mark in marked:
        note = found[n, mark.replace(" ", "-")]
        assert words(diffs.claims()[mark]) in note
        row = rows[mark].group(6, 7) if mark not in diffs.KINDS else ()
        for said in (*diffs.reasons().get(mark, ()), *row):
            assert words(said) in note
        for recipe in ALL_RECIPES:
            if re.fullmatch(rf"without/{mark.replace(' ', '-')}(-[a-z-]+)?", recipe.name):
                assert recipe.header["what"] in note and recipe.header["why"] in note
                assert recipe.header.get("measured effect", "not measured yet") in note


def test_what_a_page_shows_of_its_family(site):
    """Links to the parent, to the diff, to each child; bars at what is new."""
    for script in TEXTS:
        html = site[f"{script.name}.html"]
        for other in [script.parent, *(child.name for child in TEXTS if child.parent == script.name)]:
            assert other is None or f'href="{other}.html"' in html
        assert (f'href="diffs.html#{script.name}"' in html) == bool(script.parent)
        [row] = [row for row in sizes_table() if row["script"] == f"{script.name}.py"] or [{"added": "0"}]
        assert html.count('<span class="line new"') == int(row["added"])


def test_the_picture_of_the_family(site):
    """Every script in a place of its own, right of its parent or below it, and leading to its page."""
    for indented in (False, True):
        places = pages.family(indented)
        assert places.keys() == parents.keys() and len(set(places.values())) == len(places)
        for script in children:
            (column, row), (of_parent, above) = places[script.name], places[script.parent]
            assert column == of_parent + 1 and (row > above if indented else row >= above)
    pictures = re.findall(r"<svg.*?</svg>", site["index.html"], re.DOTALL)
    assert [picture.count("<path") for picture in pictures] == [len(children)] * 2
    assert all(f'href="{name}.html"' in picture for name in parents for picture in pictures)


def section(site, script):
    return re.search(rf'<section id="{script.name}">.*?</section>', site["diffs.html"], re.DOTALL)[0]


@every_child
def test_the_diffs_are_whole(site, script):
    """All changed lines, in order, on their sides; what is not shown as changed is the same in both."""
    rest = []
    for css, lines in (("removed", text(parents[script.parent])), ("added", text(script))):
        lines = lines.splitlines()
        found = re.findall(rf'<td class="n">(\d+)</td><td class="{css}">(.*?)</td>', section(site, script))
        numbers = [int(number) for number, _ in found]
        assert numbers == sorted(set(numbers))
        assert [plain(html).rstrip() for _, html in found] == [lines[number - 1] for number in numbers]
        rest.append([line for number, line in enumerate(lines, 1) if number not in numbers])
    assert rest[0] == rest[1]


@every_child
def test_the_diffs_name_the_details(site, script):
    """At the top all of the script's own, each with its claim; above every change below Args that adds something at
    least one of them, or what it is instead."""
    shown, claims = section(site, script), diffs.claims()
    expected = [f"[{mark}] {words(claims[mark])}" for mark in diffs.scripts()[script.name].own]
    assert [plain(item).strip() for item in re.findall(r"<li>(.*?)</li>", shown)] == expected
    titles = [diffs.MARK.findall(plain(row)) for row in re.findall(r'<tr class="title">.*?</tr>', shown, re.DOTALL)]
    assert all(set(title) & (script.marks | {*diffs.KINDS}) for title in titles)
    assert set(sum(titles, [])) >= script.marks
