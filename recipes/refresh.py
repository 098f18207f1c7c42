"""Brings recipes up to date after a script has changed, and finds the tests that catch them."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from recipes.recipe import ROOT, apply, outside_environment, plumbing, recipes, run_git

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


def repository_environment(folder):
    """The environment in which git works on a folder with this repository's objects, and with an index of its own."""
    command = ["git", "rev-parse", "--absolute-git-dir"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    environment = outside_environment(folder)
    environment["GIT_DIR"] = done.stdout.strip()
    environment["GIT_WORK_TREE"] = str(folder)
    environment["GIT_INDEX_FILE"] = str(Path(folder, ".index"))
    return environment


def diff(script, before, after):
    """The diff of two texts of a script, with the hashes of both; ValueError where they differ in the plumbing."""
    if plumbing(before) != plumbing(after):
        raise ValueError(f"{script}: a recipe must not change the lines from '# That was PPO' to the end of main()")
    with tempfile.TemporaryDirectory() as folder:
        environment = repository_environment(folder)
        Path(folder, script).write_text(before)
        run_git(folder, "add", script, environment=environment)
        Path(folder, script).write_text(after)
        # A user's git may be set to call another program, or to write colors.
        command = "diff", "--no-ext-diff", "--no-color", "--no-prefix", "--full-index", "-U2", script
        return run_git(folder, *command, environment=environment)


def refreshed(recipe):
    """The recipe for the current script; ValueError where both have changed the same lines.

    The diff's index line names the script's text that it was made from, so `git apply --3way` can merge it with what
    has changed in the script since."""
    name = recipe.header["script"]
    current = recipe.script.read_text()
    if "\nindex " not in recipe.diff:  # the diff is one of `diff -U2`
        return recipe._replace(diff=diff(name, current, apply(recipe, current)))
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, name)
        script.write_text(current)
        environment = repository_environment(folder)
        run_git(folder, "add", name, environment=environment)
        merge = "apply", "--3way", "-p0", "--whitespace=nowarn", "-"
        try:
            run_git(folder, *merge, environment=environment, input=recipe.diff)
        except ValueError as error:
            if "<<<<<<<" not in script.read_text():  # git could not merge at all: it may lack the text that was changed
                raise ValueError(f"{recipe.name}: {error}") from None
            conflict = ROOT / "build" / f"{recipe.file.stem}.py"
            conflict.parent.mkdir(exist_ok=True)
            conflict.write_text(script.read_text())
            raise ValueError(
                f"{recipe.name}: the script has changed in the same lines. Resolve {conflict.relative_to(ROOT)}, then "
                f"put below the recipe's header what this prints: diff -U2 {name} {conflict.relative_to(ROOT)}"
            ) from None
        return recipe._replace(diff=diff(name, current, script.read_text()))


def write_index():
    """Writes the lists of recipes/README.md: what each recipe does, by the script that it changes."""
    index = ROOT / "recipes" / "README.md"
    text = index.read_text().split("<!-- recipes -->")[0] + "<!-- recipes -->\n"
    for kind in ("without", "with"):
        text += f"\n## {kind.title()}\n"
        found = [recipe for recipe in recipes() if recipe.file.parent.name == kind]
        for script in sorted({recipe.script.name for recipe in found}):
            text += f"\n[`{script}`](../{script}):\n\n"
            for recipe in found:
                if recipe.script.name == script:
                    text += f"- [{recipe.file.stem}]({recipe.name}.diff): {recipe.header['what']}\n"
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
