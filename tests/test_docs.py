"""docs/details.md, the README's table of scripts and the site say what the scripts are."""

import re
import shutil
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from script_table import ROOT, TEXTS
from test_scripts import parents

from benchmark.scripts import SCRIPTS
from site_tools import diffs, history, pages

DETAILS, README = diffs.DETAILS.read_text(), diffs.README.read_text()
ROWS = {row["mark"]: row for row in diffs.DETAIL.finditer(DETAILS)}


def test_every_detail_has_its_entry():
    """Each set in order from 1 without a gap, with its anchor; and what is no detail is explained."""
    count = Counter(mark.split()[0] for mark in ROWS)
    assert list(ROWS) == [f"{name} {number}" for name in count for number in range(1, count[name] + 1)]
    assert len(ROWS) + len(diffs.KINDS) == DETAILS.count("<a id=")
    assert ROWS.keys() >= set().union(*(script.marks for script in TEXTS))
    for mark, row in ROWS.items():
        assert row["head"].startswith(f'<a id="{pages.slug(mark)}">') and row["ours"] != "not yet"
    assert not re.search(r"\*\w+\*:", str(diffs.reasons()))
    assert all(reason["why"].endswith(".") and reason["compared"] for reason in diffs.reasons().values())
    assert [mark for mark in diffs.claims() if " " not in mark] == list(diffs.KINDS)


def test_the_table_of_scripts():
    """Has every script, with its details as the tests know them."""
    found = diffs.scripts()
    assert set(found) == set(SCRIPTS) == set(parents) and diffs.size("ppo_shared", "ppo")[0] > 0
    for name, row in found.items():
        assert set(row.own) == parents[name].marks


def test_the_score_of_a_script(monkeypatch):
    """It is that of a whole run that is not short, with the default options if there is one."""
    monkeypatch.setattr(diffs, "score_cells", lambda experiment: experiment.name)
    experiments = [
        SimpleNamespace(
            script=script, name=name, finished=finished, has_options=has_options, most_steps=steps,
            options={"total_timesteps": steps} if steps < 10**7 else {},
        )
        for script, name, finished, has_options, steps in [
            ("a", "stopped", False, False, 10**7),
            ("a", "with options", True, True, 10**7),
            ("a", "short", True, False, 10**5),
            ("a", "default", True, False, 10**7),
            ("b", "stopped", False, False, 10**7),
            ("b", "with options", True, True, 2 * 10**6),
            ("c", "stopped", False, True, 10**7),
            ("c", "short", True, False, 10**5),
        ]
    ]  # fmt: skip
    cells = diffs.first_score_cells(experiments)
    assert {script: cells[script] for script in "abc" if script in cells} == {"a": "default", "b": "with options"}


def test_the_table_of_hyperparameters(tmp_path):
    """Has the defaults of the first script, and those of the others that differ."""
    for name, options in {
        "a": "    x: int = 1\n    y: float = 2.5e-4\n    seed: int = 3\n",
        "b": "    x: int = 1_000\n",
    }.items():
        (tmp_path / f"{name}.py").write_text(f"class Args:\n{options}")
    lines = history.hyperparameter_table([tmp_path / "a.py", tmp_path / "b.py"])
    assert lines[2:] == ["| `x` | 1 | 1_000: b |", "| `y` | 2.5e-4 | absent: b |"]


def test_a_mark_belongs_to_the_definition_that_it_is_in(monkeypatch):
    """And not to the one above it, where it stands beside no definition."""
    text = """
def one(
    x,
):
    return x  # [core 1]
# [core 2] of a constant
X = 1
def two():  # [core 2]
    pass
if X:
    two()  # [core 1]
"""
    monkeypatch.setattr(diffs, "lines", lambda name: text.splitlines())
    assert diffs.marked_definitions("x", "core 1") == {"one": 5}
    assert diffs.marked_definitions("x", "core 2") == {"two": 8}


@pytest.mark.slow
def test_the_site_is_of_the_results_that_are_given(tmp_path):
    """Here there are tuned runs of one task alone, and no others."""
    (tmp_path / "results/tuned").mkdir(parents=True)
    head = "task,who,seed,steps,mean,minutes,threshold_step,recipe,command"
    rows = head, "CartPole-v1,ours,1,1,480,98.7,,,python ppo.py"
    (tmp_path / "results/tuned/games.csv").write_text("\n".join([*rows, ""]))
    pages.write(tmp_path / "site", tmp_path / "results")
    assert "98.7" in (tmp_path / "site/index.html").read_text()


def test_a_folder_that_is_no_site_stays(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.setattr(sys, "argv", ["", "--output", str(tmp_path)])
    with pytest.raises(SystemExit, match="holds something else than a site"):
        pages.main()
    for name in ("index.html", "style.css", ".git"):  # a checkout in which a site was committed
        (tmp_path / name).touch()
    with pytest.raises(SystemExit, match="holds something else than a site"):
        pages.main()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_head_without_words_is_left_out():
    html = pages.rendered("| | |\n|---|---|\n| a | b |\n", diffs.README)
    assert "<thead>" not in html and "<td>a</td>" in html
    assert "<th>c</th>" in pages.rendered("| c | |\n|---|---|\n| a | b |\n", diffs.README)


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


@pytest.mark.slow
def test_links_on_the_site_lead_somewhere(tmp_path):
    """From every page to every other; nothing is loaded from a network. It is written of what git has alone."""
    tree = tmp_path / "tree"
    ignored = (ROOT / ".gitignore").read_text().replace("/\n", "\n").split()
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", *ignored))
    for file in tree.glob("benchmark/results/*/*.*"):
        if not re.match(r"ppo(2_copy)?\.", file.name):  # fewer pictures
            file.unlink()
    subprocess.run([sys.executable, "-m", "site_tools.pages"], cwd=tree, check=True, capture_output=True)
    site = {file.name: file.read_text(errors="replace") for file in (tree / "site").iterdir()}
    web, led, broken = {name: Page(html) for name, html in site.items() if name.endswith(".html")}, set(), []
    assert {f"{name}.html" for name in [*parents, "index", "details", "recipes", "diffs", "report"]} <= web.keys()
    for name, page in web.items():
        assert page.loads and all(load in site for load in page.loads), name
        for link in page.links:
            file, _, place = link.partition("#")
            if not re.match("https://", link):
                led.add(file or name)
                target = web.get(file or name)
                broken += [] if target and (not place or place in target.ids) else [f"{name}: {link}"]
    assert broken == [] and led == set(web) and not re.search(r"url\(|@import", site["style.css"])
