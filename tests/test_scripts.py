"""The scripts as texts: what differs from the parent is marked, what no detail changes is the same."""

import ast
import re
from itertools import zip_longest

import pytest
from script_table import MULTIGPU, PPO, ROOT, TEXTS, every_text
from test_packaging import OPTIONAL

from site_tools.diffs import KINDS, changes, end_of_args, marks_by_line

parents = {script.name: script for script in TEXTS}
children = [script for script in TEXTS if script.parent]
every_child = pytest.mark.parametrize("script", children, ids=lambda script: script.name)


def text(script):
    return (ROOT / f"{script.name}.py").read_text()


def marks(lines):
    """The marks in a text: details, {"core 5", ...}, and kinds, {"speed", ...}; "[atari 1] to [atari 5]" are five."""
    ranges = re.findall(r"\[(\w+) (\d+)\] to \[\w+ (\d+)\]", lines)
    inner = {f"{name} {number}" for name, first, last in ranges for number in range(int(first), int(last) + 1)}
    return inner | set(re.findall(r"\[(\w+ \d+|speed|check|library)\]", lines))


def of_ancestors(script):
    """The details of the script, of its parent, and so on."""
    return script.marks | (of_ancestors(parents[script.parent]) if script.parent else set())


def definitions(script):
    """{name: text} of every function and class; decorators and all."""
    source = text(script)
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


def below_args(script):
    """The lines after the Args class."""
    lines = text(script).splitlines()
    return lines[end_of_args(lines) :]


def plumbing(script):
    """The text from "# That was PPO." to the end of the function main()."""
    main = definitions(script)["main"]
    source = text(script)
    return source[source.index("# That was PPO.") : source.index(main) + len(main)]


def below_plumbing(script):
    return text(script).partition(plumbing(script))[2]


def new_lines(script):
    """The numbers of the lines below Args that the parent has not."""
    first = end_of_args(text(script).splitlines()) + 1
    found = changes(below_args(parents[script.parent]), below_args(script))
    return {first + n for _, _, k, m in found for n in range(k, m)}


def docstring_lines(script):
    return {
        number
        for node in ast.walk(ast.parse(text(script)))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for number in range(node.lineno, node.end_lineno + 1)
    }


def uses_of_marked_definitions(script):
    """The lines that call a function or a class which carries a mark, and the line before, which may be a condition."""
    marked = "|".join(name for name, source in definitions(script).items() if marks(source))
    lines = text(script).splitlines()
    uses = {number for number, line in enumerate(lines, 1) if marked and re.search(rf"\b({marked})\(", line)}
    return uses | {number - 1 for number in uses}


@every_child
def test_every_new_statement_is_marked(script):
    """As one of the script's details or as no detail, unless it only calls a definition that is marked."""
    lines, spoken = text(script).splitlines(), marks_by_line(text(script), script.marks)
    unmarked = new_lines(script) - spoken.keys() - docstring_lines(script) - uses_of_marked_definitions(script)
    assert not [f"{number}: {lines[number - 1]}" for number in sorted(unmarked) if lines[number - 1].strip()]


@every_text
def test_every_detail_of_the_script_has_its_mark(script):
    """Those of the script and of its ancestors."""
    expected = of_ancestors(script)
    if script.name == "impala_atari_cleanba":  # it has another loss, optimizer and return
        expected -= {f"core {number}" for number in (3, 5, 6, 7, 8, 9, 10)}
    missing = expected - marks("\n".join(below_args(script)))
    assert not missing, missing


@every_text
def test_there_are_no_other_marks(script):
    """A slip such as [core 14], [core5] or [Check] would hide a mark."""
    known = {mark for each in TEXTS for mark in each.marks} | {"aux 1", "aux 3", *KINDS} | {*OPTIONAL}
    comments = "\n".join(line.partition("#")[2] for line in text(script).split("\n# ///\n")[1].splitlines())
    assert marks(text(script)) | set(re.findall(r"\[([A-Za-z]{2}\w*(?: \d+)?)\]", comments)) <= known


@every_child
def test_a_definition_that_no_detail_changes_is_the_same(script):
    """Byte for byte. One that differs, or is new, carries a mark of the script's own."""
    before, after = definitions(parents[script.parent]), definitions(script)
    same = [name for name in before if after.get(name) == before[name]]
    assert {"layer_init", *(["gae"] if "gae" in after else [])} <= set(same)
    for name in after.keys() - same - {"Args"}:
        assert marks(after[name]) & (script.marks | {*KINDS}), f"{name} differs without a mark"


@every_text
def test_the_plumbing_is_the_same_everywhere(script):
    """Byte for byte. Below it, only scripts of several processes or agents have definitions, which are marked."""
    assert not marks(plumbing(script))
    for line, line_of_ppo in zip_longest(plumbing(script).split("\n"), plumbing(PPO).split("\n")):
        assert line == line_of_ppo, f"{script.name}.py differs from ppo.py; python -m site_tools.plumbing copies it"
    if "seeds 1" in script.marks:
        assert below_plumbing(script).endswith('\n\n\nif __name__ == "__main__":\n    main(Runs)  # [seeds 1]\n')
    elif "aux 2" not in of_ancestors(script):
        assert below_plumbing(script) == '\n\n\nif __name__ == "__main__":\n    main()\n'
    else:
        assert below_plumbing(script) == below_plumbing(MULTIGPU)
        assert re.findall(r"^(?:class|def) (\w+)", below_plumbing(script), re.MULTILINE) == [
            "RankRun", "continued_args", "make_run"
        ]  # fmt: skip
        assert below_plumbing(script).endswith('\n\n\nif __name__ == "__main__":\n    main(make_run)  # [aux 2]\n')
