"""Merges recipes into a script, into another script, or into an edited copy: a three-way merge of lines.

A recipe is an edit of its script. So is another recipe, a script made from it, or a user's copy. Two edits merge unless
both change the same line. Neighbouring lines are no conflict, and lines that both add at the same place follow each
other, in the order in which the recipes are named.
"""

import ast
import builtins
import contextlib
import difflib
import functools
import re
import symtable
from typing import NamedTuple

from recipes.recipe import apply, prepared

# What run.start(device, agent=agent) gets from a recipe that adds a part
KEYWORDS = re.compile(r"(?:, \w+=\w+)+")


class Change(NamedTuple):
    """The lines start to end (exclusive, from 0) of a text, and the lines that replace them."""

    start: int
    end: int
    lines: tuple


GAP = ["\n", "\n"]  # between two definitions


@functools.lru_cache(maxsize=256)  # a table of pairs needs each many times
def changes(before, after):
    """The changes from one text to another.

    Definitions that are added have the blank lines behind them, and are a change of their own. Else what another change
    adds to the end of the definition above would come behind them."""
    before = before.splitlines(keepends=True)
    after = after.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    found = []
    limit = len(before)  # where the change below begins
    for kind, start, end, first, last in reversed(matcher.get_opcodes()):
        if kind == "equal":
            continue
        lines = after[first:last]
        if before[end : end + 2] == GAP and end + 2 <= limit:
            gaps = [i for i in range(len(lines) - 2) if lines[i : i + 2] == GAP]
            if gaps:
                found.append(Change(end + 2, end + 2, (*lines[gaps[0] + 2 :], *GAP)))
                lines = lines[: gaps[0]]
        if lines or start < end:
            found.append(Change(start, end, tuple(lines)))
        limit = start
    return found[::-1]


def collide(one, other):
    """Whether both changes replace the same line, or one adds lines inside what the other replaces."""
    if one.start == one.end and other.start == other.end:
        return False
    if one.start == one.end:
        return other.start < one.start < other.end
    if other.start == other.end:
        return one.start < other.start < one.end
    return one.start < other.end and other.start < one.end


def place(change):
    """A key that sorts changes: of what is added at one place, lines of an inner block come first."""
    first = next((line for line in change.lines if line.strip()), "")
    return change.start, change.end, len(first.lstrip()) - len(first)


def with_arguments_of_both(line, one, other):
    """A call to which both changes add keyword arguments, with the arguments of both; None where they do more."""
    if len(one.lines) != 1 or len(other.lines) != 1 or ")" not in line:
        return None
    end = line.rindex(")")
    added = {}  # the same argument may be in both
    rests = []
    for [changed] in (one.lines, other.lines):
        match = KEYWORDS.match(changed, end)
        if match is None or changed[:end] != line[:end]:
            return None
        added |= dict.fromkeys(match[0].removeprefix(", ").split(", "))
        rests.append(changed[match.end() :])
    if rests[1] != line[end:] or not rests[0].startswith(")"):  # the first may add a comment
        return None
    return ", ".join([line[:end], *added]) + rests[0]


def merge(base, ours, theirs, name="the base"):
    """The text `base`, of the file `name`, with the changes of two others; ValueError with the lines that both change.

    Where both add lines at the same place, those of `ours` come first."""
    lines = base.splitlines(keepends=True)
    mine = list(changes(base, ours))
    others = list(changes(base, theirs))
    conflicts = []
    for other in list(others):
        for one in list(mine):
            if one == other:  # both do the same
                others.remove(other)
            elif collide(one, other):
                line = lines[max(one.start, other.start)]
                joined = None
                if one[:2] == other[:2] and one.end == one.start + 1:
                    joined = with_arguments_of_both(line, one, other)
                if joined is None:
                    conflicts.append(f"{max(one.start, other.start) + 1}: {line.rstrip()}")
                else:
                    mine[mine.index(one)] = one._replace(lines=(joined,))
                    others.remove(other)
    if conflicts:
        raise ValueError(f"both change these lines of {name}:\n" + "\n".join(dict.fromkeys(conflicts)))
    merged = []
    position = 0
    # sorted() keeps the order of what has the same place; what is added before a line precedes its replacement
    for start, end, new in sorted([*mine, *others], key=place):
        merged += [*lines[position:start], *new]
        position = end
    return "".join([*merged, *lines[position:]])


def with_recipe(text, recipe):
    """A text with a recipe: that of its script, of another one, or of an edited copy.

    ValueError with the lines of the recipe's script that both change, or with git's message if the recipe does not even
    fit its own script."""
    base = recipe.script.read_text()
    changed = apply(recipe, base)
    first = prepared(recipe, base)
    if first != base:
        with contextlib.suppress(ValueError):  # the text may have the recipe that this one comes after
            return merge_scripts(first, text, changed, recipe.script.name)
    return merge_scripts(base, text, changed, recipe.script.name)


def merge_scripts(base, ours, theirs, name):
    """merge() of scripts; ValueError also where both define a name, or one uses a name that the other takes out."""
    merged = merge(base, ours, theirs, name)
    twice = repeated(merged) - repeated(ours) - repeated(theirs)
    if twice:
        raise ValueError(f"both define {', '.join(sorted(twice))}")
    lost = undefined(merged) - undefined(ours) - undefined(theirs)
    if lost:
        raise ValueError(f"one uses {', '.join(sorted(lost))}, which the other takes out")
    return merged


@functools.lru_cache(maxsize=256)
def repeated(text):
    """The names of functions, classes, methods and options that a script defines more than once: the last counts."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"the merged text is no Python: {error}") from None
    found = set()
    for scope in [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]:
        names = []
        for node in scope.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.append(node.name)
            elif isinstance(node, ast.AnnAssign):
                names.append(ast.unparse(node.target))
        found |= {name for name in names if names.count(name) > 1}
    return found


@functools.lru_cache(maxsize=256)
def undefined(text):
    """The global names that a script uses and does not define."""
    script = symtable.symtable(text, "script", "exec")
    defined = {symbol.get_name() for symbol in script.get_symbols() if not symbol.is_referenced() or symbol.is_local()}
    used = set()
    scopes = [script]
    while scopes:
        scope = scopes.pop()
        used |= {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global() and symbol.is_referenced()}
        scopes += scope.get_children()
    return used - defined - set(dir(builtins)) - {"__file__", "__name__", "__doc__"}
