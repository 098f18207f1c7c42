"""The scripts as texts: what differs from the parent is marked, what no detail changes is the same, none grows."""

import ast
import difflib
import itertools
import re

import pytest
from toy_envs import ENVPOOL, LSTM, MASK, PROCGEN, ROOT, SCRIPTS, every_text, finish, start

texts = [*SCRIPTS, LSTM, ENVPOOL, PROCGEN, MASK]
parents = {script.name: script for script in texts}
every_child = pytest.mark.parametrize(
    "script", [script for script in texts if script.parent], ids=lambda script: script.name
)


def text(script):
    return (ROOT / f"{script.name}.py").read_text()


def marks(lines):
    """The details that carry their mark in a text, as {"core 5", ...}."""
    return set(re.findall(r"\[(\w+ \d+)\]", lines))


def marks_of(script):
    """The details that the script adds to its parent."""
    name, first, last = script.marks
    return {f"{name} {number}" for number in range(first, last + 1)}


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
    source = text(script)
    [args] = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Args"]
    return source.splitlines()[args.end_lineno :]


def plumbing(script):
    source = text(script)
    return source[source.index("# PLUMBING") : source.index("\ndef train(")]


def hunks(script):
    """[(lines of the parent, lines of the script)] wherever they differ below Args, without a line of context."""
    before, after = below_args(parents[script.parent]), below_args(script)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return [(before[i:j], after[k:m]) for kind, i, j, k, m in matcher.get_opcodes() if kind != "equal"]


@every_child
def test_every_difference_from_the_parent_is_marked(script):
    """Each hunk shows, in its own new lines, a mark of the details that the script adds: there are no exceptions."""
    for removed, added in hunks(script):
        if not marks("\n".join(added)) & marks_of(script):
            pytest.fail("\n".join(["unmarked:", *(f"- {line}" for line in removed), *(f"+ {line}" for line in added)]))


def marked_lines(script):
    """The numbers of the lines for which a mark of the script's own speaks: that of their statement, of the head of a
    statement around them, of the docstring of a definition around them, of a comment above in the same paragraph."""
    lines, own, found = text(script).splitlines(), marks_of(script), set()
    for node in ast.walk(ast.parse(text(script))):
        if not isinstance(node, ast.stmt):
            continue
        one_line = isinstance(node, ast.If) and node.end_lineno - node.lineno == 1  # is one with its condition
        last = node.end_lineno if one_line or not hasattr(node, "body") else node.body[0].lineno - 1
        said = "\n".join(lines[node.lineno - 1 : last])
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            said += ast.get_docstring(node) or ""
        if marks(said) & own:
            found.update(range(node.lineno, node.end_lineno + 1))
    for i, line in enumerate(lines):
        if line.lstrip().startswith("#") and marks(line) & own:
            paragraph = itertools.takewhile(str.strip, lines[i:])
            found.update(range(i + 1, i + 1 + len(list(paragraph))))
    return found


def docstring_lines(script):
    return {
        number
        for node in ast.walk(ast.parse(text(script)))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for number in range(node.lineno, node.end_lineno + 1)
    }


@every_child
def test_every_new_statement_is_marked(script):
    """Not only each hunk: a statement beside a marked one has a mark of its own, or is part of what has one."""
    before, after = below_args(parents[script.parent]), below_args(script)
    lines, matcher = text(script).splitlines(), difflib.SequenceMatcher(None, before, after, autojunk=False)
    changes = [range(first, last) for kind, _, _, first, last in matcher.get_opcodes() if kind != "equal"]
    new = {len(lines) - len(after) + 1 + place for change in changes for place in change}
    unmarked = new - marked_lines(script) - docstring_lines(script)
    assert not [f"{number}: {lines[number - 1]}" for number in sorted(unmarked) if lines[number - 1].strip()]


@every_text
def test_every_detail_of_the_script_has_its_mark(script):
    """All of its own set and of the core's, below Args, each in a line that says more than the mark."""
    body = "\n".join(below_args(script))
    expected = marks_of(script) | marks_of(SCRIPTS[0])
    assert marks(body) >= expected, expected - marks(body)
    for line in body.splitlines():
        assert re.sub(r"\[\w+ \d+\]|[\W_]", "", line) or not marks(line), f"nothing but a mark: {line}"


@every_child
def test_a_definition_that_no_detail_changes_is_the_same(script):
    """Byte for byte. One that differs, or is new, carries a mark of the script's own details."""
    before, after = definitions(parents[script.parent]), definitions(script)
    same = [name for name in before if after.get(name) == before[name]]
    assert {"load_checkpoint", "Replay", "Run", "main", "gae", "layer_init"} <= set(same)
    for name in after.keys() - same - {"Args"}:
        assert marks(after[name]) & marks_of(script), f"{name} differs without a mark"


@every_text
def test_the_plumbing_is_the_same_everywhere(script):
    assert plumbing(script) == plumbing(SCRIPTS[0])
    names = re.findall(r"^(?:def|class) (\w+)", plumbing(script), re.MULTILINE)
    assert names == ["load_checkpoint", "Replay", "Run", "main"]


@every_text
def test_length(script):
    lines = text(script).splitlines()
    assert len(lines) <= script.lines
    assert max(map(len, lines)) <= 120


def test_sharing_the_network_makes_the_script_no_longer():
    assert len(text(parents["ppo_shared"]).splitlines()) <= len(text(parents["ppo"]).splitlines())


@every_text
def test_the_parts_come_in_one_order(script):
    """The block of PEP 723, docstring, imports, Args, environments, agent, gae and loss, plumbing, train, the start."""
    source = text(script)
    places = [
        source.index(part)
        for part in (
            "# /// script\n", '\n"""', "\nimport ", "\nclass Args:", "\ndef make_env", "\ndef layer_init",
            "\nclass Agent(", "\ndef gae(", "\ndef ppo_loss(", "# PLUMBING", "\ndef train(", "\nif __name__",
        )
    ]  # fmt: skip
    assert places == sorted(places) and places[0] == 0


@every_text
def test_nothing_is_defined_where_only_the_program_sees_it(script):
    """A test that imports the script sees all of it; and the import does nothing."""
    last = ast.parse(text(script)).body[-1]
    assert isinstance(last, ast.If) and ast.unparse(last) == "if __name__ == '__main__':\n    main()"


@every_text
def test_an_import_says_and_writes_nothing(script, tmp_path):
    assert finish(start(["-c", f"import {script.name}"], tmp_path)) == (0, "", "")
    assert not list(tmp_path.iterdir())
