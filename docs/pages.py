"""Writes the site, which needs no network; site/index.html is its first page.

    python -m docs.pages

A page for each script, with the details beside its lines; the diffs of the scripts to their parents; the recipes; the
report on benchmark/results; and every text of the repository.
"""

import argparse
import difflib
import re
import shutil
from functools import cache
from html import escape, unescape
from itertools import pairwise
from pathlib import Path

import jinja2
import markdown
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import DiffLexer, PythonLexer

from benchmark import report
from benchmark.curves import together
from docs import diffs
from docs.diffs import DETAILS, KINDS, MARK, ROOT
from recipes.__main__ import recipes

TEXTS = "*.md", "docs/*.md", "recipes/*.md", "benchmark/README.md", "benchmark/*/README.md"
CONTEXT = 3  # unchanged lines shown around a change
WORD = re.compile(r"\[[\w ]+\]|\w+|\s+|.")  # a mark is one word
COMMAND = re.compile(r"^    ((?:python|torchrun) .*?)(?:  .*)?$", re.MULTILINE)
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
)  # fmt: skip


def slug(mark):
    """The anchor of a mark, core-5 of "core 5"."""
    return mark.replace(" ", "-")


TEMPLATES.filters["slug"] = slug

# texts


@cache
def texts():
    """{a text's file: the name of its page}."""
    files = [file for pattern in TEXTS for file in sorted(ROOT.glob(pattern))]
    names = ["-".join(file.relative_to(ROOT).with_suffix("").parts).lower() for file in files]
    return {file: f"{re.sub('^docs-|-readme$', '', name)}.html" for file, name in zip(files, names, strict=True)}


def target(link, file):
    """The link on the site that corresponds to a link of a text; None without one."""
    path, _, place = link.partition("#")
    place = f"#{place}" if place else ""
    if "://" in link or not path:
        return link
    path = (file.parent / path).resolve()
    if path in texts():
        return texts()[path] + place
    if path.parent == ROOT and path.stem in diffs.scripts():
        return f"{path.stem}.html{place}"
    if path.suffix == ".diff":
        return f"recipes.html#{path.parent.name}-{path.stem}"
    return path.name if path.suffix in (".svg", ".webp") else None


def rendered(text, file):
    """A Markdown text as HTML with links to the site's pages."""

    def with_target(found):
        link = target(unescape(found[2]), file)
        return f'{found[1]}"{escape(link)}"' if link else found[1].removesuffix("href=").removesuffix("src=")

    html = markdown.markdown(text, extensions=["tables", "toc", "fenced_code"])
    html = re.sub(r'((?:href|src)=)"([^"]*)"', with_target, html)
    return Markup(html.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>"))


def inline(text):
    """A cell of docs/details.md as HTML for another page."""
    html = rendered(text.replace("](#", f"]({DETAILS.name}#"), DETAILS)
    return Markup(html.removeprefix("<p>").removesuffix("</p>"))


def text_page(file):
    """The HTML of a text. In docs/details.md a link to a line leads to the detail's note beside that line."""
    text = file.read_text()
    if file == DETAILS:
        noted = lambda row: row[1] + re.sub(r"(#L\d+)\)", rf"\1-{slug(row[2])})", row[5]) + row[6]  # noqa: E731
        text = diffs.DETAIL.sub(noted, text)
    return rendered(text, file)


# details


@cache
def details():
    """{mark: what docs/details.md and the recipes say about it}; the KINDS have only a claim."""
    reasons = diffs.reasons()
    found = {mark: {"mark": mark, "claim": inline(claim)} for mark, claim in diffs.claims().items()}
    for row in diffs.DETAIL.finditer(DETAILS.read_text()):
        said = {name: inline(text) for name, text in reasons[row[2]].items()}
        found[row[2]] |= said | {"ppo2": inline(row[7] or "nowhere"), "without": []}
    for recipe in recipes():
        mark = re.match(r"without/(\w+)-(\d+)", recipe.name)
        if mark:
            found[f"{mark[1]} {mark[2]}"]["without"].append(recipe)
    return found


# scripts


def linked_marks(html):
    """HTML of code with a link from each mark to its row in docs/details.md."""
    known = details()

    def link(found):
        return f'<a class="mark" href="details.html#{slug(found[1])}">{found[0]}</a>' if found[1] in known else found[0]

    return MARK.sub(link, html)


def script_blocks(name, parent):
    """A script, cut before each marked line: [{"marks": [...], "first": number, "lines": [(HTML, new), ...]}].

    `new` is true where the parent lacks the line. Marks above the first definition are examples without notes."""
    lines = diffs.lines(name)
    code = highlight("\n".join(lines), PythonLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True))
    new = {n for _, _, k, m in diffs.changes(diffs.lines(parent), lines) for n in range(k, m)} if parent else set()
    starts = next(n for n, line in enumerate(lines) if line.startswith(("class ", "def ")))
    blocks = []
    for n, (line, html) in enumerate(zip(lines, code.rstrip("\n").split("\n"), strict=True)):
        marks = [mark for mark in dict.fromkeys(MARK.findall(line)) if mark in details()] if n > starts else []
        if marks or not blocks:
            blocks.append({"marks": marks, "first": n + 1, "lines": []})
        blocks[-1]["lines"].append((Markup(linked_marks(html)), n in new))
    return blocks


def definitions(name):
    """[(name, line), ...] of a script's classes and functions."""
    found = [(re.match(r"(?:class|def) (\w+)", line), number) for number, line in enumerate(diffs.lines(name), 1)]
    return [(match[1], number) for match, number in found if match]


# diffs


@cache
def likeness(one, other):
    """The similarity of two lines, by their words."""
    return difflib.SequenceMatcher(None, WORD.findall(one), WORD.findall(other), autojunk=False).ratio()


def aligned(before, after):
    """[(line or None, line or None), ...] of two lists of numbered lines, with similar lines side by side."""
    found = {(i, j): likeness(a[1], b[1]) for i, a in enumerate(before) for j, b in enumerate(after)}
    i, j = max(found, key=found.get, default=(0, 0))
    if found.get((i, j), 0) <= 0.5:
        return [*((line, None) for line in before), *((None, line) for line in after)]
    return [*aligned(before[:i], after[:j]), (before[i], after[j]), *aligned(before[i + 1 :], after[j + 1 :])]


def changed_words(old, new):
    """(old, new) as HTML in which the words that differ are highlighted."""
    (a, b), sides = (WORD.findall(old), WORD.findall(new)), ["", ""]
    for kind, i, j, k, m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        for side, tag, words in ((0, "del", a[i:j]), (1, "ins", b[k:m])):
            html = escape("".join(words))
            sides[side] += html if kind == "equal" or not words else f"<{tag}>{html}</{tag}>"
    return sides


def diff_rows(name, script):
    """The rows of a script's diff to its parent: ("gap",), ("title", marks, others), or ("line", number and HTML in the
    parent, number and HTML in the script, whether they differ)."""
    before, after = (list(enumerate(diffs.lines(each), 1)) for each in (script.parent, name))
    speakers, args = diffs.spoken_for("\n".join(diffs.lines(name)), script.own), diffs.end_of_args(diffs.lines(name))
    rows = []

    def line(old, new, differs):
        (n, left), (m, right) = old or ("", ""), new or ("", "")
        sides = changed_words(left, right) if old and new and differs else (escape(left), escape(right))
        left, right = (Markup(linked_marks(side)) for side in sides)
        rows.append(("line", n, left, m, right, differs))

    def change(pairs):
        """Adds the rows of a change, below a title with its details if it adds lines below Args."""
        added = [new for _, new in pairs if new]
        said = set().union(*(MARK.findall(text) for _, text in added), *(speakers.get(n, ()) for n, _ in added))
        marks = [mark for mark in details() if mark in said]
        own = [mark for mark in marks if mark in script.own or mark in KINDS]
        if marks and added[0][0] > args:
            rows.append(("title", own, [mark for mark in marks if mark not in own]))
        for old, new in pairs:
            line(old, new, True)

    matcher = difflib.SequenceMatcher(None, diffs.lines(script.parent), diffs.lines(name), autojunk=False)
    for number, group in enumerate(matcher.get_grouped_opcodes(CONTEXT)):
        rows += [("gap",)] if number else []
        for kind, i, j, k, m in group:
            if kind == "equal":
                for old, new in zip(before[i:j], after[k:m], strict=True):
                    line(old, new, False)
                continue
            pairs = aligned(before[i:j], after[k:m])
            starts = [n for n, (_, new) in enumerate(pairs) if new and re.match("(class|def) ", new[1])]
            for first, last in pairwise(sorted({0, *starts, len(pairs)})):
                change(pairs[first:last])
    return rows


# the picture of the family


def family(indented):
    """The scripts' places in the picture: {name: (column, row)}, children right of their parents or below them."""
    table, places = diffs.scripts(), {}

    def place(name, column, row):
        """Places a script and its descendants; returns the next free row."""
        places[name] = column, row
        children = [child for child, script in table.items() if script.parent == name]
        free = row + 1 if indented or not children else row
        for child in children:
            free = place(child, column + 1, free)
        return free

    row = 0
    for name, script in table.items():
        if not script.parent:
            row = place(name, 0, row)
    return places


# the report


def report_values(results, output):
    """(experiments, {script: its first picture}, values of the report's template); draws the pictures into `output`."""
    found = report.load(results)
    experiments, firsts, environments, sections = report.experiments_of(found), {}, {}, []
    for number, one in enumerate(experiments):
        picture = f"curves-{number}.svg"
        report.charts(one, output / picture)
        firsts.setdefault(one.script, picture)
        sections.append({"title": f"{one.env_id} · {one.name}", "steps": one.steps, "picture": picture})
        environments.setdefault(one.env_id, []).append((one.name, one.ours))
    several = {env_id: sides for env_id, sides in environments.items() if len(sides) > 1}
    for number, (env_id, sides) in enumerate(several.items()):
        together({env_id: sides}, output / f"together-{number}.svg")
    values = {
        "scores": rendered("\n".join(report.score_table(experiments)), ROOT / "docs" / "results.md"),
        "left_out": report.left_out(found, experiments), "several": list(several), "sections": sections,
    }  # fmt: skip
    return experiments, firsts, values


# all


def first_notes(blocks):
    """{mark: the anchor of its first note}."""
    found = {}
    for block in blocks:
        found |= {mark: f"L{block['first']}-{slug(mark)}" for mark in block["marks"] if mark not in found}
    return found


def write(output, results):
    """Writes the site into a folder."""
    output.mkdir(parents=True, exist_ok=True)
    table = diffs.scripts()
    blocks = {name: script_blocks(name, script.parent) for name, script in table.items()}
    experiments, pictures, of_report = report_values(results, output)
    sizes = {name: diffs.size(name, script.parent) for name, script in table.items() if script.parent}
    heads = {name: "\n".join(diffs.lines(name)).split('"""')[1] for name in table}
    common = {
        "scripts": table, "sizes": sizes, "details": details(), "inline": inline, "kinds": KINDS,
        "abouts": {name: head.split("\n")[0] for name, head in heads.items()},
        "commands": {name: COMMAND.search(head)[1] for name, head in heads.items()},
        "reached": {name: inline(score.replace("docs/", "")) for name, score in diffs.best(experiments).items()},
        "firsts": {name: first_notes(found) for name, found in blocks.items()},
    }  # fmt: skip

    def page(file, template, title, **values):
        html = TEMPLATES.get_template(f"{template}.html").render(**common, **values, title=title, file=file)
        (output / file).write_text(html)

    titles = {file: file.read_text().partition("\n")[0].removeprefix("# ") for file in texts()}
    page(
        "index.html", "start", titles[diffs.README], texts=texts(), titles=titles,
        places={"columns": family(False), "indented": family(True)},
        lengths={name: len(diffs.lines(name)) for name in table},
    )  # fmt: skip
    for name, script in table.items():
        page(
            f"{name}.html", "script", f"{name}.py", name=name, script=script, blocks=blocks[name],
            picture=pictures.get(name), definitions=definitions(name),
            children=[child for child, other in table.items() if other.parent == name],
        )  # fmt: skip
    rows = {name: diff_rows(name, script) for name, script in table.items() if script.parent}
    page("diffs.html", "diffs", "The diffs of the scripts", rows=rows)
    page("report.html", "report", "What the scripts reach", **of_report)
    for file, name in texts().items():
        shown = [
            (recipe, Markup(highlight(recipe.diff, DiffLexer(), HtmlFormatter(nowrap=True))))
            for recipe in recipes()
            if file.parent == recipe.file.parents[1]
        ]
        page(name, "text", titles[file], text=text_page(file), recipes=shown)
    light, dark = (HtmlFormatter(style=style).get_style_defs("pre") for style in ("default", "github-dark"))
    style = Path(__file__).with_name("templates").joinpath("style.css").read_text()
    (output / "style.css").write_text(f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{style}")
    for picture in [*ROOT.glob("docs/*.svg"), *ROOT.glob("docs/*.webp")]:
        shutil.copy(picture, output)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "benchmark" / "results", help="of the report")
    parser.add_argument("--output", type=Path, default=ROOT / "site", help="a folder, which is replaced")
    args = parser.parse_args()
    if not list(args.results.glob("*/*.json")):
        raise SystemExit(f"error: {args.results} holds no runs; collect.py puts them there")
    shutil.rmtree(args.output, ignore_errors=True)
    write(args.output, args.results)
    size = sum(file.stat().st_size for file in args.output.iterdir())
    print(f"{args.output / 'index.html'}: {size / 1e6:.1f} MB in all, open it in a browser")


if __name__ == "__main__":
    main()
