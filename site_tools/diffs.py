"""Compares the scripts with their parents, and brings the docs up to date with them.

    python -m site_tools.diffs

Rewrites the links to definitions and the names of other implementations in docs/details.md, and the sizes of diffs,
the extras and the scores in the README's table of scripts.
"""

import ast
import difflib
import re
from functools import cache
from itertools import takewhile
from typing import NamedTuple

from benchmark.experiments import experiments_of
from benchmark.results import RESULTS, ROOT, load
from benchmark.scores import mean_and_deviation, scores
from benchmark.scripts import SCRIPTS
from conformance import page

README = ROOT / "README.md"
DETAILS = ROOT / "docs" / "details.md"
KINDS = ("speed", "check", "library")  # the marks of what is no detail; docs/details.md says what they mean
MARK = re.compile(rf"\[(\w+ \d+|{'|'.join(KINDS)})\]")
SCRIPT_ROW = re.compile(r"^\| \[`(\w+)\.py`\]\(\w+\.py\) \|.*\|$", re.MULTILINE)
KIND_ROW = re.compile(r'^- <a id="\w+"></a>`\[(\w+)\]`: (.*)$', re.MULTILINE)
# An entry of docs/details.md: a claim, what is said of it, a line of links to our scripts and to ppo2, and, if there
# are such, a line of the implementations that differ. with_links() writes `ours` and `differ` and keeps the rest.
DETAIL = re.compile(
    r'^(?P<head><a id="[\w-]+"></a>\*\*(?P<mark>\w+ \d+): (?P<claim>[^*]*)\.\*\*(?P<said>(?:(?!\n\n).)*?)\n\*Ours\*: )'
    r"(?P<ours>[^\n]*?)(?P<end>\.(?: \*ppo2\*: (?P<ppo2>[^\n]*))?)$(?P<differ>\n\*Differ\*: [^\n]*$)?",
    re.MULTILINE | re.DOTALL,
)
# The own details of a script are the marks in it that its parent lacks, but for these: ppo.py also has marks of other
# sets, and two scripts have another form of a detail that their parent has as well.
OWN_DETAILS = {"ppo": [f"core {i}" for i in range(1, 14)], "ppo_shared": ["core 13"], "ppo_atari_envpool": ["core 1"]}
# What the README says of runs whose mean return says nothing: in self-play one player's win is the other's loss.
SELF_PLAY = {
    "environment": "SlimeVolley-v0",
    "steps": "4M",
    "score": "[wins and ratings](docs/selfplay.md#results)",
    "runs": "5",
}
ALL_SCORES = "docs/results.md#all-scores"
SHORT = 900_000  # steps


@cache
def lines(name):
    """The lines of the script `name`.py."""
    return (ROOT / f"{name}.py").read_text().splitlines()


def cells(line):
    """The cells of a row of a table in Markdown."""
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]


class Script(NamedTuple):
    """A row of the README's table of scripts, and the details that the script adds to its parent."""

    parent: str | None
    own: list
    row: dict

    @property
    def adds(self):
        """Its own details as a text in which those of a set, which follow each other, are a range: "atari 1-9"."""
        numbers = {}
        for mark in self.own:
            name, number = mark.split()
            numbers.setdefault(name, []).append(number)
        texts = []
        for name, of_set in numbers.items():
            first, last = of_set[0], of_set[-1]
            texts.append(f"{name} {first}" if first == last else f"{name} {first}-{last}")
        return ", ".join(texts)


def scripts():
    """{name: Script}, from the README's table."""
    text = README.read_text()
    above = text[: SCRIPT_ROW.search(text).start()].splitlines()
    header = cells(above[-2])  # between it and the first script is the line |---|
    details = [mark for mark in claims() if mark not in KINDS]
    scripts_by_name = {}
    family_texts = {None: ""}  # the text of each script together with those of its ancestors
    for row in SCRIPT_ROW.finditer(text):
        name = row[1]
        parent = SCRIPTS[name].parent
        source = "\n".join(lines(name))
        inherited = family_texts[parent]
        family_texts[name] = inherited + source
        own = OWN_DETAILS.get(name)
        if own is None:
            own = [mark for mark in details if f"[{mark}]" in source and f"[{mark}]" not in inherited]
        scripts_by_name[name] = Script(parent, own, dict(zip(header, cells(row[0]), strict=True)))
    return scripts_by_name


def claims():
    """{mark: what the detail is, or the kind of line}, in the order of docs/details.md."""
    text = DETAILS.read_text()
    of_details = {row["mark"]: " ".join(row["claim"].split()) for row in DETAIL.finditer(text)}
    return of_details | dict(KIND_ROW.findall(text))


def reasons():
    """{mark: {"why": ..., "compared": ..., "studies": ... or ""}}, from docs/details.md."""
    reasons_by_mark = {}
    for row in DETAIL.finditer(DETAILS.read_text()):
        said, _, studies = " ".join(row["said"].split()).partition(" *Studies*: ")
        why, _, compared = said.partition(" *Compared*: ")
        reasons_by_mark[row["mark"]] = {
            "why": why,
            "compared": compared or "the same",
            "studies": studies.removesuffix("."),
        }
    return reasons_by_mark


def marked_definitions(name, mark):
    """{top-level definition of a script: the first of its lines with the mark}."""
    first_lines = {}
    definition = None
    for number, line in enumerate(lines(name), 1):
        if re.match(r"[^\s)]", line):  # not indented, and not the end of a head of several lines
            start = re.match(r"(?:class|def) (\w+)", line)
            definition = start[1] if start else None
        if definition and f"[{mark}]" in line:
            first_lines.setdefault(definition, number)
    return first_lines


def with_links(text):
    """docs/details.md with links from each detail to its definitions in the scripts that add it, or in the first one.

    Each detail also has the names of the implementations that were measured to differ in it."""
    table = scripts()
    differing = page.differing()

    def links(mark):
        owners = [name for name, script in table.items() if mark in script.own] or list(table)[:1]
        texts = []
        for name in owners:
            places = marked_definitions(name, mark)
            if places:
                # without the number of the line, which would change with every line above it
                links_of_script = [f"[{definition}](../{name}.py)" for definition in places]
                texts.append(f"{name}: {', '.join(links_of_script)}")
        return "; ".join(texts)

    def differ(mark):
        names = ", ".join(differing.get(mark, []))
        return f"\n*Differ*: [{names}](conformance.md)" if names else ""

    def entry(row):
        mark = row["mark"]
        return row["head"] + (links(mark) or "not yet") + row["end"] + differ(mark)

    return DETAIL.sub(entry, text)


def changes(before, after):
    """[(start, end, new_start, new_end), ...]: the lines before[start:end] became after[new_start:new_end]."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return [tuple(places) for kind, *places in matcher.get_opcodes() if kind != "equal"]


def marks_by_line(text, own):
    """{number of a line: the marks that speak for it}, of the script's own details and of KINDS.

    A mark speaks for its statement; in the head of a statement, or in the docstring of a definition, for all in it; in
    a comment on a line of its own for what follows, up to the next mark, the paragraph's end, or where the text is
    indented less. The nearest speaks alone.
    """
    rows = text.splitlines()
    spans = []  # (first line, last line, the text that may have marks)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            spans.append((node.lineno, node.end_lineno, head_of(node, rows)))
    for number, row in enumerate(rows, 1):
        if row.lstrip().startswith("#"):
            spans.append((number, number + lines_below(rows, number), row))
    spans.sort(key=lambda span: span[1] - span[0], reverse=True)  # the longest first, so that the nearest stay
    marks_of_lines = {}
    for first, last, said in spans:
        marks = {mark for mark in MARK.findall(said) if mark in own or mark in KINDS}
        if marks:
            marks_of_lines |= dict.fromkeys(range(first, last + 1), marks)
    return marks_of_lines


def head_of(node, rows):
    """The text whose marks speak for a statement: all of it, or its head and docstring where it has a body."""
    last = node.end_lineno
    # an if with a single line below it: a mark on that line speaks for both
    is_short_condition = isinstance(node, ast.If) and node.end_lineno == node.lineno + 1
    if hasattr(node, "body") and not is_short_condition:
        last = node.body[0].lineno - 1
    said = "\n".join(rows[node.lineno - 1 : last])
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        said += ast.get_docstring(node) or ""
    return said


def lines_below(rows, number):
    """How many lines a comment on the line of this number, counted from 1, speaks for."""
    comment = rows[number - 1]
    indent = comment[: comment.index("#")]
    following = takewhile(lambda row: row.strip() and not MARK.search(row) and row.startswith(indent), rows[number:])
    return len(list(following))


def end_of_args(rows):
    """The number of lines, of a script's `rows`, up to the end of the class Args."""
    start = rows.index("class Args:")
    return next(i for i in range(start + 1, len(rows)) if rows[i] and not rows[i].startswith(" "))


def size(name, parent):
    """(added, removed): the numbers of lines in the diff to the parent."""
    added = 0
    removed = 0
    for start, end, new_start, new_end in changes(lines(parent), lines(name)):
        removed += end - start
        added += new_end - new_start
    return added, removed


def score_cells(experiment):
    """{column: text} of the README's table of scripts, of a finished Experiment.

    A link stands beside the score where the options were not the defaults."""
    values = scores(experiment.scored_runs)
    score = mean_and_deviation(values)
    if experiment.has_options:
        score = f"{score}, [options]({ALL_SCORES})"
    return {"environment": experiment.env_id, "steps": experiment.steps_text, "score": score, "runs": str(len(values))}


def first_score_cells(experiments):
    """{script: {column: text}}, of the first finished experiment with default options in the report's order.

    Where a script has none, it is that of its first finished experiment. Shortened runs of less than SHORT steps say
    little, and do not count."""
    cells_by_script = {"ppo_selfplay": SELF_PLAY}
    finished = [experiment for experiment in experiments if experiment.finished and not is_short(experiment)]
    defaults = [experiment for experiment in finished if not experiment.has_options]
    for experiment in [*defaults, *finished]:
        cells_by_script.setdefault(experiment.script, score_cells(experiment))
    return cells_by_script


def is_short(experiment):
    """Whether an experiment's runs are shorter than the script's default, and than SHORT."""
    return "total_timesteps" in experiment.options and experiment.most_steps < SHORT


def with_diffs_and_scores(text, experiments):
    """README.md with the diff's size, the extra and the first score in each script's row."""
    table = scripts()
    cells_by_script = first_score_cells(experiments)

    def updated_row(match):
        name = match[1]
        script = table[name]
        nothing = {"environment": "", "steps": "", "score": f"[shorter runs]({ALL_SCORES})", "runs": ""}
        extra = SCRIPTS[name].extra
        new_cells = script.row | {"extra": f"`{extra}`" if extra else ""} | cells_by_script.get(name, nothing)
        for column in new_cells:
            if column.startswith("diff") and script.parent:
                added, removed = size(name, script.parent)
                new_cells[column] = f"`{script.parent}.py`<br>+{added} -{removed}"
        return f"| {' | '.join(new_cells.values())} |"

    return SCRIPT_ROW.sub(updated_row, text)


def main():
    DETAILS.write_text(with_links(DETAILS.read_text()))
    README.write_text(with_diffs_and_scores(README.read_text(), experiments_of(load(RESULTS))))


if __name__ == "__main__":
    main()
