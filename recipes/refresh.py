"""Brings recipes up to date after a script has changed, and finds the tests that catch them."""

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from recipes.merge import merge
from recipes.recipe import ROOT, apply, plumbing, prepared, recipes, run_git

# Tests that run the scripts; those that only read them would fail with any change.
TESTS = "gae loss golden normalize atari_wrappers lstm multidiscrete procgen run cli learning".split()
# The tests that are tried first with a script's recipes
NEAREST = {
    "ppo.py": "golden",
    "ppo_atari.py": "atari_wrappers",
    "ppo_atari_lstm.py": "lstm",
    "ppo_continuous_action.py": "normalize",
    "ppo_multidiscrete.py": "multidiscrete",
    "ppo_multidiscrete_mask.py": "multidiscrete",
    "ppo_procgen.py": "procgen",
}


def diff(script, before, after):
    """The diff of two texts of a script; ValueError where they differ in the plumbing."""
    if plumbing(before) != plumbing(after):
        raise ValueError(f"{script}: a recipe must not change the lines from '# That was PPO' to the end of main()")
    with tempfile.TemporaryDirectory() as folder:
        run_git(folder, "init", "-q")
        Path(folder, script).write_text(before)
        run_git(folder, "add", script)
        Path(folder, script).write_text(after)
        # A user's git may be set to call another program, or to write colors.
        return run_git(folder, "diff", "--no-ext-diff", "--no-color", "--no-prefix", "--full-index", "-U2", script)


def applies(recipe):
    """Whether a recipe applies to its script as it is now, without fuzz, and leaves the plumbing as it is."""
    source = recipe.script.read_text()
    try:
        return plumbing(apply(recipe, source)) == plumbing(source)
    except ValueError:
        return False


def base(recipe):
    """The script's text in the newest commit to which the recipe applies, and this text with the recipe."""
    name = recipe.header["script"]
    for commit in run_git(ROOT, "log", "--format=%H", "--", name).split():
        try:
            source = run_git(ROOT, "show", f"{commit}:{name}")
            return source, apply(recipe, source)
        except ValueError:
            continue
    raise ValueError(f"{recipe.name}: it applies neither to {name} nor to a committed text of it")


def refreshed(recipe):
    """The recipe for the current script; ValueError where both have changed the same lines.

    A recipe that still applies stays as it is. Another is merged with what has changed since it applied."""
    if applies(recipe):
        return recipe
    name = recipe.header["script"]
    current = recipe.script.read_text()
    before, after = base(recipe)
    with contextlib.suppress(ValueError):
        return recipe._replace(diff=diff(name, prepared(recipe, current), merge(before, current, after)))
    # git writes a file with the conflict
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, name)
        script.write_text(current)
        Path(folder, "before").write_text(before)
        Path(folder, "recipe").write_text(after)
        try:
            run_git(folder, "merge-file", name, "before", "recipe")
        except ValueError:
            conflict = ROOT / "build" / f"{recipe.file.stem}.py"
            conflict.parent.mkdir(exist_ok=True)
            conflict.write_text(script.read_text())
            raise ValueError(
                f"{recipe.name}: the script has changed in the same lines. Resolve {conflict.relative_to(ROOT)}, then "
                f"put below the recipe's header what this prints: diff -U2 {name} {conflict.relative_to(ROOT)}"
            ) from None
        return recipe._replace(diff=diff(name, prepared(recipe, current), script.read_text()))


def write_index():
    """Writes the lists of recipes/README.md: what each recipe does, by the script that it changes."""
    index = ROOT / "recipes" / "README.md"
    text = index.read_text().split("<!-- recipes -->")[0] + "<!-- recipes -->\n"
    for kind in ("without", "with"):
        text += f"\n## {kind.title()}\n"
        found = [recipe for recipe in recipes() if recipe.file.parent.name == kind]
        for script in sorted({recipe.script for recipe in found}):
            text += f"\n[`{script.name}`](../{script.name}):\n\n"
            for recipe in found:
                if recipe.script == script:
                    text += f"- [{recipe.file.stem}]({recipe.name}.diff): {recipe.header['what']}\n"
            others = [recipe for recipe in found if script in recipe.scripts[1:]]
            if others:
                links = ", ".join(f"[{recipe.file.stem}]({recipe.name}.diff)" for recipe in others)
                text += f"- those of other scripts that are also for it: {links}\n"
    index.write_text(text)


def run_failing_tests(copy, tests, *options):
    """Runs tests in a copy of the checkout; returns the names of those that fail.

    Raises ValueError where pytest cannot run them."""
    fixed = "-n", "0", "-q", "--tb=no", "-p", "no:cacheprovider", "-W", "ignore"
    command = [sys.executable, "-m", "pytest", *fixed, *options, *tests]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    failed = re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    expected_status = 1 if failed else 0
    if done.returncode != expected_status:
        raise ValueError(f"pytest ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failed


def find_catching_test(recipe):
    """A test that passes with the script and fails with the recipe, or None; the recorded one is tried first."""
    source = recipe.script.read_text()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        ignored = shutil.ignore_patterns(".git", ".venv*", "build", "site", "runs", "wandb", "results", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=ignored)
        script = copy / recipe.script.name
        recorded = recipe.header.get("caught by")
        names = list(TESTS)
        if script.name in NEAREST:
            names.remove(NEAREST[script.name])
            names.insert(0, NEAREST[script.name])
        tests = [f"tests/test_{name}.py" for name in names]
        if recorded:
            tests.insert(0, recorded)
        for test in tests:
            script.write_text(apply(recipe, source))
            try:
                failed = run_failing_tests(copy, [test], "--maxfail", "1")
            except ValueError:
                if test != recorded:
                    raise
                failed = []  # the recorded test may no longer exist
            script.write_text(source)
            if failed and not run_failing_tests(copy, failed):
                return failed[0]
    return None
