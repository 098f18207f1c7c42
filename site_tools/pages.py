"""Writes the site, which needs no network; site/index.html is its first page.

    python -m site_tools.pages

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
from typing import NamedTuple

import jinja2
import markdown
from markdown.extensions.toc import slugify_unicode
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import DiffLexer, PythonLexer

from benchmark import report
from benchmark.curves import together
from benchmark.experiments import experiments_of, left_out
from benchmark.results import RESULTS, ROOT, load
from benchmark.scripts import SCRIPTS
from recipes.recipe import recipes
from site_tools import diffs
from site_tools.diffs import DETAILS, KINDS, MARK

TEXTS = "*.md", "docs/*.md", "recipes/*.md", "benchmark/README.md", "benchmark/*/README.md"
CONTEXT = 3  # unchanged lines shown around a change
WORD = re.compile(r"\[[\w ]+\]|\w+|\s+|.")  # a mark is one word
EMPTY_HEAD = re.compile(r"<thead>\s*<tr>\s*(?:<th[^>]*></th>\s*)+</tr>\s*</thead>\s*")  # Markdown demands a head
COMMAND = re.compile(r"^    ((?:python|torchrun) .*?)(?:  .*)?$", re.MULTILINE)
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


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
    if path.parent == ROOT and path.stem in SCRIPTS:
        return f"{path.stem}.html{place}"
    if path.suffix == ".diff":
        return f"recipes.html#{path.parent.name}-{path.stem}"
    return path.name if path.suffix in (".svg", ".webp") else None


def rendered(text, file):
    """A Markdown text as HTML with links to the site's pages."""

    def with_target(match):
        link = target(unescape(match[2]), file)
        if link is None:
            return ""  # without the attribute
        return f'{match[1]}"{escape(link)}"'

    # slugify_unicode keeps letters such as µ in the anchors of headings, as GitHub does
    anchors = {"toc": {"slugify": slugify_unicode}}
    html = markdown.markdown(text, extensions=["tables", "toc", "fenced_code"], extension_configs=anchors)
    html = re.sub(r'((?:href|src)=)"([^"]*)"', with_target, html)
    html = EMPTY_HEAD.sub("", html)
    html = html.replace(" ± ", "&nbsp;±&nbsp;")  # so that a score stands on one line
    return Markup(html.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>"))


def inline(text):
    """A paragraph of docs/details.md, or of a text in its folder, as HTML for a place inside another page."""
    html = rendered(text.replace("](#", f"]({DETAILS.name}#"), DETAILS)
    return Markup(html.removeprefix("<p>").removesuffix("</p>"))


def text_page(file):
    """The HTML of a text. In docs/details.md a link to a definition leads to the detail's note in it."""
    text = file.read_text()
    if file == DETAILS:
        text = diffs.DETAIL.sub(with_notes, text)
    return rendered(text, file)


def with_notes(row):
    """An entry of docs/details.md whose links to definitions lead to its note beside the line that has the mark."""
    mark = row["mark"]

    def with_line(match):
        definition, name = match.groups()
        number = diffs.marked_definitions(name, mark)[definition]
        return f"[{definition}](../{name}.py#L{number}-{slug(mark)})"

    links = re.sub(r"\[(\w+)\]\(\.\./(\w+)\.py\)", with_line, row["ours"])
    return row["head"] + links + row["end"] + (row["differ"] or "")


# details


@cache
def details():
    """{mark: what docs/details.md and the recipes say about it}; the KINDS have only a claim."""
    reasons = diffs.reasons()
    details_by_mark = {mark: {"mark": mark, "claim": inline(claim)} for mark, claim in diffs.claims().items()}
    for row in diffs.DETAIL.finditer(DETAILS.read_text()):
        mark = row["mark"]
        said = {name: inline(text) for name, text in reasons[mark].items()}
        details_by_mark[mark] |= said | {"ppo2": inline(row["ppo2"] or "nowhere"), "without": []}
    for recipe in recipes():
        named = re.match(r"without/(\w+)-(\d+)", recipe.name)
        if named:
            details_by_mark[f"{named[1]} {named[2]}"]["without"].append(recipe)
    return details_by_mark


# scripts


def linked_marks(html):
    """HTML of code with a link from each mark to its row in docs/details.md."""
    known = details()

    def link(match):
        if match[1] not in known:
            return match[0]
        return f'<a class="mark" href="details.html#{slug(match[1])}">{match[0]}</a>'

    return MARK.sub(link, html)


def new_lines(name, parent):
    """The indices of a script's lines that its parent lacks."""
    if not parent:
        return set()
    changes = diffs.changes(diffs.lines(parent), diffs.lines(name))
    return {n for _, _, first, end in changes for n in range(first, end)}


def script_blocks(name, parent):
    """A script, cut before each marked line: [{"marks": [...], "first": number, "lines": [(HTML, new), ...]}].

    `new` is true where the parent lacks the line. Marks above the first definition are examples without notes."""
    lines = diffs.lines(name)
    code = highlight("\n".join(lines), PythonLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True))
    new = new_lines(name, parent)
    first_definition = next(n for n, line in enumerate(lines) if line.startswith(("class ", "def ")))
    blocks = []
    for n, (line, html) in enumerate(zip(lines, code.rstrip("\n").split("\n"), strict=True)):
        marks = []
        if n > first_definition:
            marks = [mark for mark in dict.fromkeys(MARK.findall(line)) if mark in details()]
        if marks or not blocks:
            blocks.append({"marks": marks, "first": n + 1, "lines": []})
        blocks[-1]["lines"].append((Markup(linked_marks(html)), n in new))
    return blocks


def definitions(name):
    """[(name, line), ...] of a script's classes and functions."""
    places = []
    for number, line in enumerate(diffs.lines(name), 1):
        match = re.match(r"(?:class|def) (\w+)", line)
        if match:
            places.append((match[1], number))
    return places


# diffs


@cache
def likeness(line, other):
    """The similarity of two lines, from 0 to 1, by their words."""
    matcher = difflib.SequenceMatcher(None, WORD.findall(line), WORD.findall(other), autojunk=False)
    return matcher.ratio()


def aligned(before, after):
    """[(line or None, line or None), ...] of two lists of lines (number, text), with similar lines side by side."""
    similarity = {}
    for i, (_, old) in enumerate(before):
        for j, (_, new) in enumerate(after):
            similarity[i, j] = likeness(old, new)
    closest = max(similarity, key=similarity.get, default=None)
    if closest is None or similarity[closest] <= 0.5:
        return [(line, None) for line in before] + [(None, line) for line in after]
    i, j = closest
    return [*aligned(before[:i], after[:j]), (before[i], after[j]), *aligned(before[i + 1 :], after[j + 1 :])]


def changed_words(old, new):
    """(old, new) as HTML in which the words that differ are highlighted."""
    old_words = WORD.findall(old)
    new_words = WORD.findall(new)
    old_html = ""
    new_html = ""
    matcher = difflib.SequenceMatcher(None, old_words, new_words, autojunk=False)
    for kind, i, j, k, m in matcher.get_opcodes():
        before = escape("".join(old_words[i:j]))
        after = escape("".join(new_words[k:m]))
        if kind == "equal":
            old_html += before
            new_html += after
            continue
        if before:
            old_html += f"<del>{before}</del>"
        if after:
            new_html += f"<ins>{after}</ins>"
    return old_html, new_html


class Gap(NamedTuple):
    """A row of a diff for lines that are not shown."""

    kind: str = "gap"


class Title(NamedTuple):
    """A row of a diff with what the change below it is about."""

    own: list  # the script's own details, and KINDS
    others: list  # the other marks
    kind: str = "title"


class Line(NamedTuple):
    """A row of a diff with a line of the parent and one of the script, of which one may be missing."""

    number: int | str  # in the parent; "" without a line
    before: Markup
    new_number: int | str  # in the script; "" without a line
    after: Markup
    differs: bool
    kind: str = "line"


def line_row(old, new, differs):
    """The Line for a line of the parent, (number, text) or None, and one of the script, (number, text) or None."""
    no_line = ("", "")
    number, left = old or no_line
    new_number, right = new or no_line
    if old and new and differs:
        left, right = changed_words(left, right)
    else:
        left, right = escape(left), escape(right)
    return Line(number, Markup(linked_marks(left)), new_number, Markup(linked_marks(right)), differs)


def change_rows(pairs, script, speakers, end_of_args):
    """The rows of a change: below Args they have a title with the details that the added lines are about."""
    added = [new for _, new in pairs if new]
    said = set()
    for number, text in added:
        said.update(MARK.findall(text))
        said.update(speakers.get(number, ()))
    marks = [mark for mark in details() if mark in said]
    own = [mark for mark in marks if mark in script.own or mark in KINDS]
    rows = []
    if marks and added[0][0] > end_of_args:
        rows.append(Title(own, [mark for mark in marks if mark not in own]))
    return rows + [line_row(old, new, True) for old, new in pairs]


def diff_rows(name, script):
    """The rows of a script's diff to its parent, [Gap, Title or Line, ...]."""
    before = list(enumerate(diffs.lines(script.parent), 1))
    after = list(enumerate(diffs.lines(name), 1))
    speakers = diffs.marks_by_line("\n".join(diffs.lines(name)), script.own)
    end_of_args = diffs.end_of_args(diffs.lines(name))
    rows = []
    matcher = difflib.SequenceMatcher(None, diffs.lines(script.parent), diffs.lines(name), autojunk=False)
    for group_number, group in enumerate(matcher.get_grouped_opcodes(CONTEXT)):
        if group_number:
            rows.append(Gap())
        for kind, i, j, k, m in group:
            if kind == "equal":
                rows += [line_row(old, new, False) for old, new in zip(before[i:j], after[k:m], strict=True)]
                continue
            pairs = aligned(before[i:j], after[k:m])
            # A change is cut before each definition that it adds, so that each has its own title.
            starts = []
            for n, (_, new) in enumerate(pairs):
                if new is not None and re.match("(class|def) ", new[1]):
                    starts.append(n)
            for first, last in pairwise(sorted({0, *starts, len(pairs)})):
                rows += change_rows(pairs[first:last], script, speakers, end_of_args)
    return rows


# the picture of the family


def place_family(indented):
    """The scripts' places in the picture: {name: (column, row)}, each a column right of its parent.

    The first child is in its parent's row, or, if `indented`, in the row below it."""
    table = diffs.scripts()
    places = {}

    def place(name, column, row):
        """Places a script and its descendants; returns the next free row."""
        places[name] = column, row
        children = [child for child, script in table.items() if script.parent == name]
        # Where the first child takes the same row, the row after its descendants is the next free one.
        leaves_row = indented or not children
        free = row + 1 if leaves_row else row
        for child in children:
            free = place(child, column + 1, free)
        return free

    row = 0
    for name, script in table.items():
        if not script.parent:
            row = place(name, 0, row)
    return places


# the report


def report_values(runs_by_key, experiments, output):
    """({script: its first picture}, values of the report's template); draws the pictures into `output`."""
    first_pictures = {}
    environments = {}
    sections = []
    for number, experiment in enumerate(experiments):
        picture = f"curves-{number}.svg"
        report.charts(experiment, output / picture)
        first_pictures.setdefault(experiment.script, picture)
        sections.append(
            {"title": f"{experiment.env_id} · {experiment.name}", "steps": experiment.steps_text, "picture": picture}
        )
        environments.setdefault(experiment.env_id, []).append((experiment.name, experiment.ours))
    several = {env_id: sides for env_id, sides in environments.items() if len(sides) > 1}
    for number, (env_id, sides) in enumerate(several.items()):
        together({env_id: sides}, output / f"together-{number}.svg")
    values = {
        "scores": rendered("\n".join(report.score_table(experiments)), ROOT / "docs" / "results.md"),
        "left_out": left_out(runs_by_key, experiments),
        "several": list(several),
        "sections": sections,
    }
    return first_pictures, values


# all


def first_notes(blocks):
    """{mark: the anchor of its first note}."""
    anchors = {}
    for block in blocks:
        for mark in block["marks"]:
            anchors.setdefault(mark, f"L{block['first']}-{slug(mark)}")
    return anchors


def reached(row):
    """What a script reaches, as HTML: "CartPole-v1, 500k steps: 486 ± 12 (10 runs)".

    row: the cells of the script in the README's table."""
    text = f"{row['environment']}, {row['steps']} steps: {row['score']}"
    if row["runs"] not in ("", "1"):
        text += f" ({row['runs']} runs)"
    return inline(text.replace("docs/", ""))


def write_style(output):
    """Writes style.css: the colours of code for light and dark pages, and the site's own."""
    light = HtmlFormatter(style="default").get_style_defs("pre")
    dark = HtmlFormatter(style="github-dark").get_style_defs("pre")
    style = Path(__file__).with_name("templates").joinpath("style.css").read_text()
    (output / "style.css").write_text(f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{style}")


def shown_recipes(file):
    """[(recipe, HTML of its diff), ...] of the page of recipes/README.md; an empty list for another text."""
    if file != ROOT / "recipes" / "README.md":
        return []
    formatter = HtmlFormatter(nowrap=True)
    return [(recipe, Markup(highlight(recipe.diff, DiffLexer(), formatter))) for recipe in recipes()]


def write(output, results):
    """Writes the site into a folder."""
    output.mkdir(parents=True, exist_ok=True)
    table = diffs.scripts()
    runs_by_key = load(results)
    experiments = experiments_of(runs_by_key)
    first_pictures, of_report = report_values(runs_by_key, experiments, output)
    blocks = {name: script_blocks(name, script.parent) for name, script in table.items()}
    heads = {name: "\n".join(diffs.lines(name)).split('"""')[1] for name in table}
    common = {
        "scripts": table,
        "sizes": {name: diffs.size(name, script.parent) for name, script in table.items() if script.parent},
        "details": details(),
        "inline": inline,
        "kinds": KINDS,
        "abouts": {name: head.split("\n")[0] for name, head in heads.items()},
        "commands": {name: COMMAND.search(head)[1] for name, head in heads.items()},
        "reached": {name: reached(row) for name, row in diffs.first_score_cells(experiments).items()},
        "firsts": {name: first_notes(cut) for name, cut in blocks.items()},
    }

    def page(file, template, title, **values):
        html = TEMPLATES.get_template(f"{template}.html").render(**common, **values, title=title, file=file)
        (output / file).write_text(html)

    titles = {file: file.read_text().partition("\n")[0].removeprefix("# ") for file in texts()}
    page(
        "index.html",
        "start",
        titles[diffs.README],
        texts=texts(),
        titles=titles,
        places={"columns": place_family(indented=False), "indented": place_family(indented=True)},
        lengths={name: len(diffs.lines(name)) for name in table},
        tuned=rendered("\n".join(report.tuned_table(results)), diffs.README),
    )
    for name, script in table.items():
        page(
            f"{name}.html",
            "script",
            f"{name}.py",
            name=name,
            script=script,
            blocks=blocks[name],
            picture=first_pictures.get(name),
            definitions=definitions(name),
            children=[child for child, other in table.items() if other.parent == name],
        )
    rows = {name: diff_rows(name, script) for name, script in table.items() if script.parent}
    page("diffs.html", "diffs", "The diffs of the scripts", rows=rows)
    page("report.html", "report", "What the scripts reach", **of_report)
    for file, name in texts().items():
        page(name, "text", titles[file], text=text_page(file), recipes=shown_recipes(file))
    write_style(output)
    for picture in [*ROOT.glob("docs/*.svg"), *ROOT.glob("docs/*.webp")]:
        shutil.copy(picture, output)


def main():
    parser = argparse.ArgumentParser(prog="python -m site_tools.pages", description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="of the report")
    parser.add_argument("--output", type=Path, default=ROOT / "site", help="a folder; a site that is there is replaced")
    args = parser.parse_args()
    if not list(args.results.glob("*/*.json")):
        raise SystemExit(f"error: {args.results} holds no runs; python -m benchmark.collect puts them there")
    if args.output.exists():
        is_site = (args.output / "index.html").exists() and (args.output / "style.css").exists()
        is_checkout = (args.output / ".git").exists()  # such as a branch of GitHub Pages
        if is_checkout or not is_site and any(args.output.iterdir()):
            raise SystemExit(f"error: {args.output} holds something else than a site; name another folder")
        shutil.rmtree(args.output)
    write(args.output, args.results)
    size = sum(file.stat().st_size for file in args.output.iterdir())
    print(f"{args.output / 'index.html'}: {size / 1e6:.1f} MB in all, open it in a browser")


if __name__ == "__main__":
    main()
