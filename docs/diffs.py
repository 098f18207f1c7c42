"""Brings the docs up to date with the scripts, and shows the scripts' diffs to their parents as one HTML page.

    python docs/diffs.py

Rewrites the links to lines in docs/details.md, and sizes of diffs and scores in README.md's table of scripts; writes
docs/diffs.html.
"""

import ast
import difflib
import re
from collections import Counter
from functools import cache
from html import escape
from itertools import groupby, takewhile, zip_longest
from pathlib import Path

import markdown
import pygments
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from pygments.token import STANDARD_TYPES

ROOT = Path(__file__).resolve().parents[1]
README, DETAILS, PAGE = ROOT / "README.md", ROOT / "docs/details.md", ROOT / "docs/diffs.html"
KINDS = ("speed", "check", "library")  # the marks of what is no detail; docs/details.md says what they mean
MARK = re.compile(rf"\[(\w+ \d+|{'|'.join(KINDS)})\]")
# | script | parent | adds | diff | of these marked | trains on | score | ...; the diff, its marks and the score are
# written here
SCRIPT_ROW = r"^(\| \[`{}\.py`\]\(\w+\.py\) \|(?: `(\w+)\.py`)? \| ([\w, -]+) \|)[^|]*\|[^|]*(\|[^|]*\|)[^|]*\|"
SCORE_ROW = re.compile(r"^\| `(\w+)\.py`[^|]* \| ([^|]+) \| ([^|]+) \| ([^|]+) \|", re.MULTILINE)
TOTALS = re.compile(r"(?<=<!-- sizes -->\n).*?(?=<!-- /sizes -->)", re.DOTALL)
KIND_ROW = re.compile(r'^- <a id="\w+"></a>`\[(\w+)\]`: (.*)$', re.MULTILINE)
DETAIL_ROW = re.compile(r'^(\| <a id="[\w-]+"></a>(\w+ \d+) \| (.*?) \| )(.*?)( \|)', re.MULTILINE)
# What one player wins the other loses: the mean return says nothing there
SCORES = {"ppo_selfplay": "SlimeVolley-v0: [wins and ratings](docs/selfplay.md#results)"}
CONTEXT = 3  # unchanged lines shown around a change
ALIKE = 0.6  # lines of this similarity are the same line, changed

STYLE = """
html { color-scheme: light; scroll-padding-top: 1em; }
body { margin: 1.5em; font: 15px/1.45 system-ui, sans-serif; color: #1f2328; background: #fff; }
h1 { font-size: 1.7em; }
h2 { font-size: 1.3em; margin: 2.5em 0 0.6em; border-top: 2px solid #d0d7de; padding-top: 1em; }
p, ul { max-width: 60em; } a { color: #0550ae; }
.plus { color: #116329; } .minus { color: #a40e26; }
.mark { background: #fff1b8; color: #1f2328; border-radius: 3px; text-decoration: none; white-space: nowrap; }
.mark:hover { text-decoration: underline; }
.text table { border-collapse: collapse; margin: 1em 0; }
.text td, .text th { border: 1px solid #d0d7de; padding: 0.3em 0.6em; text-align: left; vertical-align: top; }
.text td:first-child, .text code { white-space: nowrap; }
.text tr:has(:target) { background: #fff8dc; }
.diff { width: 100%; table-layout: fixed; border-collapse: collapse; border: 1px solid #d0d7de; }
.diff td { font: 12px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; vertical-align: top; }
.diff td { padding: 0 0.3em 0 calc(0.5em + var(--indent, 0ch)); text-indent: calc(0ch - var(--indent, 0ch)); }
.diff td { white-space: pre-wrap; overflow-wrap: anywhere; }
.diff col.n { width: 3.6em; }
.diff td.n { color: #59636e; background: #f6f8fa; text-align: right; padding-right: 0.5em; user-select: none; }
.diff td.removed { background: #ffebe9; } .diff td.removed .new { background: #ffc4bf; }
.diff td.added { background: #e6ffec; } .diff td.added .new { background: #a6f0b8; }
.diff td.none { background: #f6f8fa; }
.diff .title td { font: 600 14px/1.5 system-ui, sans-serif; background: #ddf4ff; padding: 0.35em 0.8em; }
.diff .title td { border-top: 1px solid #9cd0f5; border-bottom: 1px solid #9cd0f5; }
.diff .others { font-weight: normal; }
.diff .gap td { height: 1.2em; background: #fff; border-top: 1px solid #d0d7de; border-bottom: 1px solid #d0d7de; }
"""

HTML = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>The diffs of the PPO scripts</title>
<style>{style}</style>
</head>
<body>
<h1>The diffs of the PPO scripts</h1>
<p>Each script is shown beside its parent: what it removes on the left, what it adds on the right. The row above a
change names the implementation details that it is about. A mark such as {example} leads to its row in docs/details.md,
at the end of this page: where openai/baselines' ppo2 has it, and what studies found.</p>
<div class="text"><table>
<tr><th>diff</th><th>details that it adds or changes</th><th>lines</th><th>of these marked</th></tr>
{contents}
</table></div>
{sections}
<section class="text" id="details"><h2>docs/details.md</h2>{details}</section>
</body>
</html>
"""


def lines(name):
    """The lines of the script `name`.py."""
    return (ROOT / f"{name}.py").read_text().splitlines()


def details(text):
    """["procgen 1", "continuous 8", "continuous 9"] of "procgen 1, continuous 8-9"."""
    found = re.findall(r"(\w+) (\d+)(?:-(\d+))?", text)
    return [f"{name} {number}" for name, first, last in found for number in range(int(first), int(last or first) + 1)]


def scripts():
    """{name: (parent's name or "", [its own details])}, from the README's table."""
    rows = re.findall(SCRIPT_ROW.format(r"(\w+)"), README.read_text(), re.MULTILINE)
    return {name: (parent, details(own)) for _, name, parent, own, _ in rows}


def claims():
    """{mark: what the detail is, or the kind of line}, in the order of docs/details.md."""
    text = DETAILS.read_text()
    return {mark: claim for _, mark, claim, _, _ in DETAIL_ROW.findall(text)} | dict(KIND_ROW.findall(text))


def marked_definitions(name, mark):
    """{top-level definition of the script: the first line in it that carries the mark}."""
    found, definition = {}, None
    for number, line in enumerate(lines(name), 1):
        if start := re.match(r"(?:class|def) (\w+)", line):
            definition = start[1]
        if definition and f"[{mark}]" in line:
            found.setdefault(definition, number)
    return found


def with_links(text):
    """docs/details.md with a link from each detail to its lines in the scripts that add it, or else in the first."""
    table = scripts()

    def links(mark):
        owners = [name for name, (_, own) in table.items() if mark in own] or list(table)[:1]
        places = [(name, *place) for name in owners for place in marked_definitions(name, mark).items()]
        return "<br>".join(f"[{name}.py:{n}](../{name}.py#L{n}) `{definition}`" for name, definition, n in places)

    return DETAIL_ROW.sub(lambda row: row[1] + (links(row[2]) or "not yet") + row[5], text)


def changes(before, after):
    """[(i, j, k, m), ...]: the lines before[i:j] became after[k:m]."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return [tuple(places) for kind, *places in matcher.get_opcodes() if kind != "equal"]


def spoken_for(text, own):
    """{number of a line: the marks that speak for it}, of the script's own details and of KINDS.

    A mark speaks for its statement; in the head of a statement, or in the docstring of a definition, for all in it; in
    a comment on a line of its own for what follows, up to the next mark, the paragraph's end, or where the text is
    indented less. The nearest speaks alone.
    """
    rows, spans = text.splitlines(), []  # spans: (first, last, marks)
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.stmt | ast.ExceptHandler):
            continue
        one = isinstance(node, ast.If) and node.end_lineno == node.lineno + 1  # a condition is one with its statement
        last = node.body[0].lineno - 1 if hasattr(node, "body") and not one else node.end_lineno
        said = "\n".join(rows[node.lineno - 1 : last])
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            said += ast.get_docstring(node) or ""
        spans.append((node.lineno, node.end_lineno, said))
    for number, row in enumerate(rows, 1):
        if row.lstrip().startswith("#"):
            indent = row[: row.index("#")]
            following = takewhile(lambda each: each.strip() and not MARK.search(each), rows[number:])
            paragraph = takewhile(lambda each, indent=indent: each.startswith(indent), following)
            spans.append((number, number + len(list(paragraph)), row))
    found = {}
    for first, last, said in sorted(spans, key=lambda span: span[0] - span[1]):  # the longest first
        if marks := {mark for mark in MARK.findall(said) if mark in own or mark in KINDS}:
            found |= dict.fromkeys(range(first, last + 1), marks)
    return found


def changed_below_args(name, parent):
    """The numbers of the script's lines below Args, blank ones left out, that its parent has not."""
    before, after = lines(parent), lines(name)
    i, k = end_of_args(before), end_of_args(after)
    places = {k + n + 1 for _, _, first, last in changes(before[i:], after[k:]) for n in range(first, last)}
    return sorted(number for number in places if after[number - 1].strip())


def size(name, parent, own):
    """Counter of the lines "+" added and "-" removed on the way from the parent; and of those added below Args the ones
    that belong to "details", or else to one of KINDS."""
    found = changes(lines(parent), lines(name))
    sizes = Counter({"+": sum(m - k for _, _, k, m in found), "-": sum(j - i for i, j, _, _ in found)})
    speakers = spoken_for("\n".join(lines(name)), own)
    for number in changed_below_args(name, parent):
        marks = speakers.get(number, set())
        sizes.update(["details"] if marks & set(own) else [kind for kind in KINDS if kind in marks][:1])
    return sizes


def in_words(sizes):
    """"94 details, 12 speed" of a Counter of `size`."""
    return ", ".join(f"{sizes[part]} {part}" for part in ("details", *KINDS) if sizes[part])


def with_sizes_and_scores(text):
    """README.md with the diff's sizes and the first score in each script's row, and with the sums of the sizes."""
    found = reversed(SCORE_ROW.findall(text))
    scores = {name: f"{env_id}, {steps}: {score}" for name, env_id, steps, score in found} | SCORES
    sizes = {name: size(name, parent, own) for name, (parent, own) in scripts().items() if parent}
    for name in scripts():
        cells = [f"+{sizes[name]['+']} -{sizes[name]['-']}", in_words(sizes[name])] if name in sizes else ["", ""]
        cells.append(scores.get(name, "no long run yet"))
        row = rf"\g<1> {cells[0]} | {cells[1]} \g<4> {cells[2]} |"
        text = re.sub(SCRIPT_ROW.format(name), row, text, flags=re.MULTILINE)
    total = sum(sizes.values(), Counter())
    sums = f"All {len(sizes)} have +{total['+']} -{total['-']} lines. Marked: {in_words(total)}.\n"
    return TOTALS.sub(sums, text)


# the page


@cache
def similarity(one, other):
    """From 0 to 1; 0 of an empty line."""
    one, other = one.strip(), other.strip()
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio() if one and other else 0.0


def side_by_side(before, after, i, j, k, m):
    """Rows of a change, [(x, y), ...]: before[x] beside after[y], lines that are alike on one row; or None."""
    pairs = ((similarity(before[x], after[y]), -x, -y) for x in range(i, j) for y in range(k, m))
    alike, x, y = max(pairs, default=(0, 0, 0))
    if alike < ALIKE:
        return list(zip_longest(range(i, j), range(k, m)))
    x, y = -x, -y
    return side_by_side(before, after, i, x, k, y) + [(x, y)] + side_by_side(before, after, x + 1, j, y + 1, m)


def coloured(name):
    """For each line of a script its pieces, [(CSS class of Pygments, text), ...]."""
    found = [[]]
    for kind, value in pygments.lex("\n".join(lines(name)), PythonLexer(stripnl=False)):
        while kind not in STANDARD_TYPES:
            kind = kind.parent
        for i, text in enumerate(value.split("\n")):
            if i:
                found.append([])
            found[-1].append((STANDARD_TYPES[kind], text))
    return found


def new_characters(line, other):
    """For each character of a line whether its word is not in the other line."""
    one, two = (re.findall(r"\[\w+ \d+\]|\w+|\W", text) for text in (line, other))
    flags = []
    for kind, i, j, _, _ in difflib.SequenceMatcher(None, one, two, autojunk=False).get_opcodes():
        flags += [kind != "equal"] * len("".join(one[i:j]))
    return flags


def link(mark):
    """A mark that leads to its row in docs/details.md."""
    return f'<a class="mark" href="#{mark.replace(" ", "-")}">[{mark}]</a>'


def named(mark, known):
    """A mark and what the detail is."""
    return f"{link(mark)} {markdown.markdown(known[mark]).removeprefix('<p>').removesuffix('</p>')}"


def code(pieces, flags, known):
    """A line of code as HTML, its flagged characters emphasised and its marks linked."""
    html, place = "", 0
    for css, text in pieces:
        for new, run in groupby(zip(text, flags[place:], strict=False), key=lambda pair: pair[1]):
            part = escape("".join(character for character, _ in run))
            html += f'<span class="{css}{" new" * new}">{part}</span>'
        place += len(text)
    return MARK.sub(lambda match: link(match[1]) if match[1] in known else match[0], html)


def table_row(before, after, x, y, known):
    """One row: line x of the parent and line y of the script, each as (lines, their pieces); x or y may be None."""
    one = None if x is None else before[0][x]
    two = None if y is None else after[0][y]
    alike = None not in (one, two) and similarity(one, two) >= ALIKE
    html = ""
    for (_, pieces), at, line, other, css in ((before, x, one, two, "removed"), (after, y, two, one, "added")):
        if line is None:
            html += '<td class="n"></td><td class="none"></td>'
            continue
        flags = new_characters(line, other) if alike else [False] * len(line)
        css = "" if line == other else css
        indent = len(line) - len(line.lstrip()) + 2  # of what does not fit on the line
        html += f'<td class="n">{at + 1}</td><td class="{css}" style="--indent: {indent}ch">'
        html += code(pieces[at], flags, known) + "</td>"
    return f"<tr>{html}</tr>"


def title(text, own, known):
    """The row above a change: the script's own details and KINDS that a text names, and the others that it does."""
    found = [mark for mark in known if f"[{mark}]" in text]
    html = "".join(f"<div>{named(mark, known)}</div>" for mark in found if mark in own or mark in KINDS)
    others = " ".join(link(mark) for mark in found if mark not in own and mark not in KINDS)
    return html + (f'<div class="others">also marked: {others}</div>' if others else "")


def end_of_args(text):
    """The number of lines up to the end of the class Args."""
    start = text.index("class Args:")
    return next(i for i in range(start + 1, len(text)) if text[i] and not text[i].startswith(" "))


def diff(name, parent, own, known):
    """The table of a script's diff to its parent; above the end of Args without titles of details."""
    before, after = ((lines(script), coloured(script)) for script in (parent, name))
    speakers = spoken_for("\n".join(after[0]), own)
    i, k = end_of_args(before[0]), end_of_args(after[0])
    above = changes(before[0][:i], after[0][:k])
    below = [(i + a, i + b, k + c, k + d) for a, b, c, d in changes(before[0][i:], after[0][k:])]
    html, x, y = "", 0, 0  # x, y: the lines that come next
    for place, (i, j, k, m) in enumerate(above + below):
        if place and i - x <= 2 * CONTEXT:
            html += "".join(table_row(before, after, x + n, y + n, known) for n in range(i - x))
        else:
            if place:
                html += "".join(table_row(before, after, x + n, y + n, known) for n in range(CONTEXT))
            html += '<tr class="gap"><td colspan="4"></td></tr>'
            lead = min(CONTEXT, i)
            html += "".join(table_row(before, after, i - n, k - n, known) for n in range(lead, 0, -1))
        pieces = [[]]  # of the change, one for each class or function that it adds
        for a, b in side_by_side(before[0], after[0], i, j, k, m):
            if b is not None and re.match("class |def ", after[0][b]) and pieces[-1]:
                pieces.append([])
            pieces[-1].append((a, b))
        for piece in pieces:
            new = [b for _, b in piece if b is not None and after[0][b].strip()]
            marks = {f"[{mark}]" for b in new for mark in speakers.get(b + 1, ())}
            heading = title("\n".join([*(after[0][b] for b in new), *marks]), own, known)
            if place < len(above):
                heading = "" if place else "<div>Above the code: packages, docstring, imports, options</div>"
            if heading:
                html += f'<tr class="title"><td colspan="4">{heading}</td></tr>'
            html += "".join(table_row(before, after, a, b, known) for a, b in piece)
        x, y = j, m
    html += "".join(table_row(before, after, x + n, y + n, known) for n in range(min(CONTEXT, len(before[0]) - x)))
    return f'<table class="diff"><colgroup><col class="n"><col><col class="n"><col></colgroup>{html}</table>'


def page():
    """The HTML of all diffs and of docs/details.md, which needs no other file and no network."""
    table, known = scripts(), claims()
    contents, sections = "", ""
    for name, (parent, own) in table.items():
        if not parent:
            continue
        sizes = size(name, parent, own)
        first = "\n".join(lines(name)).split('"""')[1].split("\n")[0]
        facts = f'<span class="plus">+{sizes["+"]}</span> <span class="minus">-{sizes["-"]}</span>'
        contents += f'<tr><td><a href="#{name}">{parent}.py → {name}.py</a></td>'
        contents += f"<td>{', '.join(own)}</td><td>{facts}</td><td>{in_words(sizes)}</td></tr>"
        items = "".join(f"<li>{named(mark, known)}</li>" for mark in own)
        sections += f'<section id="{name}"><h2>{parent}.py → {name}.py {facts}</h2><p>{escape(first)}</p>'
        sections += f"<p>Details that it adds or changes:</p><ul>{items}</ul>{diff(name, parent, own, known)}</section>"
    text = markdown.markdown(DETAILS.read_text(), extensions=["tables", "toc"])
    style = HtmlFormatter(style="default").get_style_defs(".diff td") + STYLE
    example = link("core 5")
    return HTML.format(style=style, example=example, contents=contents, sections=sections, details=text)


def main():
    DETAILS.write_text(with_links(DETAILS.read_text()))
    README.write_text(with_sizes_and_scores(README.read_text()))
    PAGE.write_text(page())
    print(f"{PAGE}: open it in a browser")


if __name__ == "__main__":
    main()
