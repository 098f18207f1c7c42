"""Brings the docs up to date with the scripts.

    python docs/diffs.py

Rewrites the links to lines and the sizes of the diffs in docs/details.md, and diffs and scores in README.md's table of
scripts.
"""

import ast
import difflib
import re
from collections import Counter
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
README, DETAILS = ROOT / "README.md", ROOT / "docs/details.md"
KINDS = ("speed", "check", "library")  # the marks of what is no detail; docs/details.md says what they mean
MARK = re.compile(rf"\[(\w+ \d+|{'|'.join(KINDS)})\]")
# | script | trains on | adds | diff to its parent | score |; the sizes of the diff and the score are written here
SCRIPT_ROW = r"^(\| \[`({})\.py`\]\(\w+\.py\) \| ([^|]*) \| ([\w, -]+) \|) *(?:`(\w+)\.py`)?[^|]*\|[^|]*\|$"
SCORE_ROW = re.compile(r"^\| `(\w+)\.py`([^|]*) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|", re.MULTILINE)
OF_LENGTH_OR_NAME = re.compile(r" `--(total-timesteps|exp-name) [^`]*`")
SIZES = re.compile(r"(?<=<!-- sizes -->\n).*?(?=<!-- /sizes -->)", re.DOTALL)
KIND_ROW = re.compile(r'^- <a id="\w+"></a>`\[(\w+)\]`: (.*)$', re.MULTILINE)
# | mark | detail | ours | ppo2 | studies found |
DETAIL_ROW = re.compile(
    r'^(\| <a id="[\w-]+"></a>(\w+ \d+) \| (.*?) \| )(.*?)( \| (.*?) \| (.*?) \|)$', re.MULTILINE
)
# What one player wins the other loses: the mean return says nothing there
SCORES = {"ppo_selfplay": "SlimeVolley-v0: [wins and ratings](docs/selfplay.md#results)"}
REASON = re.compile(r"^- \*\*(\w+ \d+)\*\*: (.*(?:\n  .*)*)", re.MULTILINE)


def lines(name):
    """The lines of the script `name`.py."""
    return (ROOT / f"{name}.py").read_text().splitlines()


def details(text):
    """["procgen 1", "continuous 8", "continuous 9"] of "procgen 1, continuous 8-9"."""
    found = re.findall(r"(\w+) (\d+)(?:-(\d+))?", text)
    return [f"{name} {number}" for name, first, last in found for number in range(int(first), int(last or first) + 1)]


class Script(NamedTuple):
    """A row of the README's table: `adds` is "atari 1-9" as it stands there, `own` the list of these details."""

    parent: str  # "" of the first
    own: list
    adds: str
    trains_on: str


def scripts():
    """{name: Script}, from the README's table."""
    rows = re.findall(SCRIPT_ROW.format(r"\w+"), README.read_text(), re.MULTILINE)
    return {name: Script(parent, details(adds), adds, trains_on) for _, name, trains_on, adds, parent in rows}


def claims():
    """{mark: what the detail is, or the kind of line}, in the order of docs/details.md."""
    text = DETAILS.read_text()
    return {row[1]: row[2] for row in DETAIL_ROW.findall(text)} | dict(KIND_ROW.findall(text))


def reasons():
    """{mark: (why the detail is there, how ours compares with ppo2 and the usual ports)}, from docs/details.md."""
    found = {mark: " ".join(said.split()) for mark, said in REASON.findall(DETAILS.read_text())}
    return {mark: (*said.split(" *Compared*: "), "the same")[:2] for mark, said in found.items()}


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
        owners = [name for name, script in table.items() if mark in script.own] or list(table)[:1]
        found = {name: marked_definitions(name, mark).items() for name in owners}
        return "<br>".join(
            f"{name}: " + ", ".join(f"[{definition}](../{name}.py#L{n})" for definition, n in places)
            for name, places in found.items()
            if places
        )

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


def all_sizes():
    """{name: its `size`} of every script that has a parent."""
    return {name: size(name, script.parent, script.own) for name, script in scripts().items() if script.parent}


def with_sizes(text):
    """docs/details.md with the table of the diffs' sizes, and their sums."""
    parts, sizes = ("+", "-", "details", *KINDS), all_sizes()
    rows = [("script", "added", "removed", *parts[2:]), ["---", *["---:"] * len(parts)]]
    rows += [[f"{name}.py", *(found[part] for part in parts)] for name, found in sizes.items()]
    rows.append([f"all {len(sizes)}", *(sum(found[part] for found in sizes.values()) for part in parts)])
    return SIZES.sub("".join(f"| {' | '.join(map(str, row))} |\n" for row in rows), text)


def with_diffs_and_scores(text):
    """README.md with the diff's size and the first score in each script's row."""
    found = reversed(SCORE_ROW.findall(text))
    scores = {
        name: f"{env_id}{OF_LENGTH_OR_NAME.sub('', options)}, {steps}: {score}"
        for name, options, env_id, steps, score in found
    } | SCORES
    sizes = all_sizes()
    for name, script in scripts().items():
        diff = f"`{script.parent}.py`<br>+{sizes[name]['+']} -{sizes[name]['-']}" if script.parent else ""
        row = rf"\g<1> {diff} | {scores.get(name, 'no long run yet')} |"
        text = re.sub(SCRIPT_ROW.format(name), row, text, flags=re.MULTILINE)
    return text


def end_of_args(text):
    """The number of lines up to the end of the class Args."""
    start = text.index("class Args:")
    return next(i for i in range(start + 1, len(text)) if text[i] and not text[i].startswith(" "))


def main():
    DETAILS.write_text(with_sizes(with_links(DETAILS.read_text())))
    README.write_text(with_diffs_and_scores(README.read_text()))


if __name__ == "__main__":
    main()
