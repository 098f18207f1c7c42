"""Brings the docs up to date with the scripts.

    python docs/diffs.py

Rewrites the links to lines in docs/details.md, and the columns "diff" and "score" of the README's table of scripts.
"""

import ast
import difflib
import re
import sys
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
README, DETAILS = ROOT / "README.md", ROOT / "docs/details.md"
KINDS = ("speed", "check", "library")  # the marks of what is no detail; docs/details.md says what they mean
MARK = re.compile(rf"\[(\w+ \d+|{'|'.join(KINDS)})\]")
SCRIPT_ROW = re.compile(r"^\| \[`(\w+)\.py`\]\(\w+\.py\) \|.*\|$", re.MULTILINE)
KIND_ROW = re.compile(r'^- <a id="\w+"></a>`\[(\w+)\]`: (.*)$', re.MULTILINE)
# An entry of docs/details.md: a claim, what is said of it, and a line of links to our scripts and to ppo2
DETAIL = re.compile(
    r'^(<a id="[\w-]+"></a>\*\*(\w+ \d+): ([^*]*)\.\*\*((?:(?!\n\n).)*?)\n\*Ours\*: )'
    r"([^\n]*?)(\.(?: \*ppo2\*: ([^\n]*))?)$",
    re.MULTILINE | re.DOTALL,
)
# The details of scripts that add others than the marks that their parent lacks
CHANGED = {"ppo": [f"core {i}" for i in range(1, 14)], "ppo_shared": ["core 13"], "ppo_atari_envpool": ["core 1"]}
# The mean return of self-play says nothing: one player's win is the other's loss
SCORES = {"ppo_selfplay": "SlimeVolley-v0: [wins and ratings](docs/selfplay.md#results)"}


@cache
def lines(name):
    """The lines of the script `name`.py."""
    return (ROOT / f"{name}.py").read_text().splitlines()


def cells(line):
    """The cells of a row of a table in Markdown."""
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]


class Script(NamedTuple):
    """A row of the README's table of scripts, and the details that the script adds to its parent."""

    parent: str  # "" of the first
    own: list
    row: dict

    @property
    def adds(self):
        """ "atari 1-9" of its details."""
        sets = {}
        for name, number in map(str.split, self.own):
            sets.setdefault(name, []).append(number)
        return ", ".join(f"{name} {'-'.join(dict.fromkeys((of[0], of[-1])))}" for name, of in sets.items())


def scripts():
    """{name: Script}, from the README's table."""
    text, found, before = README.read_text(), {}, {}
    header = cells(text[: SCRIPT_ROW.search(text).start()].splitlines()[-2])
    for row in SCRIPT_ROW.finditer(text):
        about = dict(zip(header, cells(row[0]), strict=True))
        parent = re.match(r"(?:`(\w+)\.py`)?", next(about[name] for name in header if name.startswith("diff")))[1] or ""
        marks = [mark for mark in claims() if f"[{mark}]" in "\n".join(lines(row[1])) and mark not in KINDS]
        before[row[1]] = before.get(parent, "") + "\n".join(lines(row[1]))  # the script and its ancestors
        own = CHANGED.get(row[1]) or [mark for mark in marks if f"[{mark}]" not in before.get(parent, "")]
        found[row[1]] = Script(parent, own, about)
    return found


def claims():
    """{mark: what the detail is, or the kind of line}, in the order of docs/details.md."""
    text = DETAILS.read_text()
    return {row[2]: " ".join(row[3].split()) for row in DETAIL.finditer(text)} | dict(KIND_ROW.findall(text))


def reasons():
    """{mark: {"why": ..., "compared": ..., "studies": ... or ""}}, from docs/details.md."""
    found = {}
    for row in DETAIL.finditer(DETAILS.read_text()):
        said, _, studies = " ".join(row[4].split()).partition(" *Studies*: ")
        why, _, compared = said.partition(" *Compared*: ")
        found[row[2]] = {"why": why, "compared": compared or "the same", "studies": studies.removesuffix(".")}
    return found


def marked_definitions(name, mark):
    """{top-level definition of a script: the first of its lines with the mark}."""
    found, definition = {}, None
    for number, line in enumerate(lines(name), 1):
        if start := re.match(r"(?:class|def) (\w+)", line):
            definition = start[1]
        if definition and f"[{mark}]" in line:
            found.setdefault(definition, number)
    return found


def with_links(text):
    """docs/details.md with links from each detail to its lines in the scripts that add it, or else in the first one."""
    table = scripts()

    def links(mark):
        owners = [name for name, script in table.items() if mark in script.own] or list(table)[:1]
        found = {name: marked_definitions(name, mark).items() for name in owners}
        return "; ".join(
            f"{name}: " + ", ".join(f"[{definition}](../{name}.py#L{n})" for definition, n in places)
            for name, places in found.items()
            if places
        )

    return DETAIL.sub(lambda row: row[1] + (links(row[2]) or "not yet") + row[6], text)


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


def end_of_args(text):
    """The number of lines up to the end of the class Args."""
    start = text.index("class Args:")
    return next(i for i in range(start + 1, len(text)) if text[i] and not text[i].startswith(" "))


def size(name, parent):
    """(added, removed): the numbers of lines in the diff to the parent."""
    found = changes(lines(parent), lines(name))
    return sum(m - k for _, _, k, m in found), sum(j - i for i, j, _, _ in found)


def best(experiments):
    """{script: "CartPole-v1, 500k: 486 ± 12 (10)"}, the first score in the report's order."""
    from benchmark.report import mean_and_spread

    found = {}
    for one in experiments:
        what = one.env_id + one.shown("total_timesteps", "exp_name", quote="`")
        found.setdefault(one.script, f"{what}, {one.steps}: {mean_and_spread(one.done)}")
    return found | SCORES


def with_diffs_and_scores(text, experiments):
    """README.md with the diff's size and the first score in each script's row."""
    table, scores = scripts(), best(experiments)

    def row(found):
        script, about = table[found[1]], {}
        for name, cell in script.row.items():
            if name.startswith("diff"):
                added, removed = size(found[1], script.parent) if script.parent else ("", "")
                cell = f"`{script.parent}.py`<br>+{added} -{removed}" if script.parent else ""
            about[name] = scores.get(found[1], "no long run yet") if name == "score" else cell
        return f"| {' | '.join(about.values())} |"

    return SCRIPT_ROW.sub(row, text)


def main():
    sys.path.insert(0, str(ROOT))
    from benchmark.report import experiments_of, load

    DETAILS.write_text(with_links(DETAILS.read_text()))
    experiments = experiments_of(load(ROOT / "benchmark/results"))
    README.write_text(with_diffs_and_scores(README.read_text(), experiments))


if __name__ == "__main__":
    main()
