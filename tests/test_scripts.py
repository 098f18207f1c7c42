"""The scripts as texts: what differs from the parent is marked, what no detail changes is the same."""

import ast
import difflib
import re

import pytest
from toy_envs import ROOT, SCRIPTS, TEXTS, every_text, finish, start

from docs.diffs import KINDS, spoken_for

parents = {script.name: script for script in TEXTS}
children = [script for script in TEXTS if script.parent]
every_child = pytest.mark.parametrize("script", children, ids=lambda script: script.name)


def text(script):
    return (ROOT / f"{script.name}.py").read_text()


def marks(lines):
    """The marks in a text: details, {"core 5", ...}, and what is none, {"speed", ...}."""
    return set(re.findall(r"\[(\w+ \d+|speed|check|library)\]", lines))


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
    source = text(script)
    [args] = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Args"]
    return source.splitlines()[args.end_lineno :]


def plumbing(script):
    return text(script)[text(script).index("# That was PPO.") :]


def new_lines(script):
    """The numbers of the lines below Args that the parent has not."""
    before, after = below_args(parents[script.parent]), below_args(script)
    first = len(text(script).splitlines()) - len(after) + 1
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return {first + n for kind, _, _, k, m in matcher.get_opcodes() if kind != "equal" for n in range(k, m)}


def docstring_lines(script):
    return {
        number
        for node in ast.walk(ast.parse(text(script)))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for number in range(node.lineno, node.end_lineno + 1)
    }


SPOKEN = """\
class Normalize:
    \'\'\'[continuous 6] A docstring speaks for all of its definition.\'\'\'

    def reset(self):
        while self.lost():  # [core 1] of another script's set, which says nothing here
            return self.env.reset()

    def step(self):
        if self.lost():  # [check]
            sys.exit("error")
        rewards = self.rewards.clip(
            -10, 10
        )  # [continuous 9] the last line of a statement speaks for all of it
        return rewards


def make_env():
    if waits:
        # [atari 4] not of the set either
        env = Fire()
    # [speed] a comment speaks for the rest of its paragraph, up to the next mark
    env = Ram()
    env = Frames()
    env = Noop()  # [atari 1]
    env = Skip()

    return env
    # [library] and no further than it is indented
try:
    train()
except ValueError:  # [check]
    sys.exit("error")
if fires:
    env = fire()  # [continuous 9] one with its condition
"""


def test_for_which_lines_a_mark_speaks():
    expected = {
        **dict.fromkeys([*range(1, 9), 14], {"continuous 6"}), **dict.fromkeys((9, 10), {"check"}),
        **dict.fromkeys((11, 12, 13), {"continuous 9"}), **dict.fromkeys((21, 22, 23), {"speed"}), 28: {"library"},
        **dict.fromkeys((31, 32), {"check"}), **dict.fromkeys((33, 34), {"continuous 9"}),
    }  # fmt: skip
    assert spoken_for(SPOKEN, {"continuous 6", "continuous 9"}) == expected


@every_child
def test_every_new_statement_is_marked(script):
    """Of the script's own details, or as what is none: there are no exceptions but docstrings, which change nothing."""
    lines, spoken = text(script).splitlines(), spoken_for(text(script), script.marks)
    unmarked = new_lines(script) - spoken.keys() - docstring_lines(script)
    assert not [f"{number}: {lines[number - 1]}" for number in sorted(unmarked) if lines[number - 1].strip()]


@every_child
def test_what_is_taken_away_is_marked(script):
    """Where the script has nothing in place of lines of its parent's, the statement around them has a mark."""
    before, after = below_args(parents[script.parent]), below_args(script)
    first, spoken = len(text(script).splitlines()) - len(after) + 1, spoken_for(text(script), script.marks)
    for kind, i, j, k, _ in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "delete" and "".join(before[i:j]).strip():
            assert {first + k - 1, first + k} & spoken.keys(), before[i:j]


@every_child
def test_a_refusal_is_no_detail(script):
    """What ends the program in the script's own lines says [check] itself, and names no detail."""
    lines, new, refusals = text(script).splitlines(), new_lines(script), 0
    for node in ast.walk(ast.parse(text(script))):
        body = node.body if isinstance(node, ast.If | ast.ExceptHandler) else []
        if ends := [each for each in body if ast.unparse(each).startswith("sys.exit(")]:
            if ends[0].lineno in new:
                refusals += 1
                head = "\n".join(lines[node.lineno - 1 : node.body[0].lineno - 1])
                assert marks(head) == {"check"}, head
    assert refusals or script.name == "ppo_shared"


@every_text
def test_every_detail_of_the_script_has_its_mark(script):
    """All of its own set and of its ancestors', below Args, each in a line that says more than the mark."""
    body = "\n".join(below_args(script))
    expected = of_ancestors(script)
    if script.name == "impala_atari_cleanba":  # which has another loss, optimizer and return
        expected -= {f"core {number}" for number in (3, 5, 6, 7, 8, 9, 10)}
    assert marks(body) >= expected, expected - marks(body)
    for line in text(script).splitlines():
        assert re.sub(r"\[\w+ \d+\]|\[(speed|check|library)\]|[\W_]", "", line) or not marks(line), f"bare: {line}"


@every_text
def test_there_are_no_other_marks(script):
    """A slip in a mark would hide it: there is no [core 14], no [core5] and no [Check]."""
    known = {mark for each in TEXTS for mark in each.marks} | {"aux 1", "aux 3", *KINDS}
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
    """To the end of the file, and all of it is below the line that says that PPO ends here."""
    assert plumbing(script) == plumbing(SCRIPTS[0])
    names = re.findall(r"^(?:def|class) (\w+)", plumbing(script), re.MULTILINE)
    assert names == ["one_line", "parse_args", "load_checkpoint", "Run", "Output", "main"]
    assert not marks(plumbing(script))


@every_text
def test_the_parts_come_in_one_order(script):
    """A reader who knows PPO may stop after `train`: only plumbing follows."""
    source = text(script)
    names = re.findall(r"^(?:def|class) (\w+)", source, re.MULTILINE)
    first, loss = ("vtrace", "impala_loss") if script.name == "impala_atari_cleanba" else ("gae", "ppo_loss")
    places = [
        source.index(part)
        for part in (
            "# /// script\n", '\n"""', "\nimport ", "\nclass Args:", "\ndef make_envs(", "\n    def log_prob(",
            "\ndef layer_init", "\nclass Agent(", f"\ndef {first}(", f"\ndef {loss}(",
            "\ndef clipped_gradient(", "\ndef gradient_step(",
            "\ndef train(args, run)", "\n# That was PPO.", "\ndef one_line(",
        )
    ]  # fmt: skip
    places.append(source.rindex("\nif __name__"))
    assert places == sorted(places) and places[0] == 0
    processes = {"gather", "sum_over_ranks", "every_rank", "actor", "learn"}  # of the scripts that have several
    others = processes | {"win_rate"}  # nor are matches a part of PPO
    parts = [name for name in names[names.index(first) : names.index("one_line")] if name not in others]
    assert parts == [first, loss, "clipped_gradient", "gradient_step", "train"]


@every_text
def test_nothing_is_defined_where_only_the_program_sees_it(script):
    """A test that imports the script sees all of it; and the import does nothing."""
    last = ast.parse(text(script)).body[-1]
    assert isinstance(last, ast.If) and ast.unparse(last) == "if __name__ == '__main__':\n    main()"


@every_text
def test_an_import_says_and_writes_nothing(script, tmp_path):
    assert finish(start(["-c", f"import {script.name}"], tmp_path)) == (0, "", "")
    assert not list(tmp_path.iterdir())
