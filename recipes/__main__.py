"""Checks the recipes, and brings them up to date after a script has changed.

    python recipes                    rewrites each diff whose script has changed, and names the conflicts
    python recipes --caught core-3    runs the tests on the script with that recipe, and records the first that fails
                                      in its header; without a name, does so for all of recipes/without

A recipe is a diff to one script below a header of lines "key: text". The diff's index line names the script's text that
it was made from, so `git apply --3way` can merge it with later changes of the script.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
KEYS = "what", "why", "source", "script", "command", "caught by", "measured effect"
PLUMBING = "# That was PPO"  # a recipe changes nothing from here on
# Tests that run the scripts; those that only read them would fail with any change.
TESTS = "gae loss golden normalize atari_wrappers lstm multidiscrete procgen run cli learning".split()
NEAREST = {
    "ppo.py": "golden", "ppo_atari.py": "atari_wrappers", "ppo_atari_lstm.py": "lstm",
    "ppo_continuous_action.py": "normalize",
    "ppo_multidiscrete.py": "multidiscrete", "ppo_multidiscrete_mask.py": "multidiscrete", "ppo_procgen.py": "procgen",
}  # fmt: skip


class Recipe(NamedTuple):
    """One diff: its file, its header as {key: text}, and the text of the diff."""

    file: Path
    header: dict
    diff: str

    @property
    def name(self):
        return f"{self.file.parent.name}/{self.file.stem}"

    @property
    def script(self):
        return ROOT / self.header["script"]


def read(file):
    """The recipe in a file; ValueError if its header is invalid."""
    header, *diff = re.split(r"^(?=diff --git |--- )", file.read_text(), maxsplit=1, flags=re.MULTILINE)
    lines = re.sub(r"\n +", " ", header).strip().splitlines()  # a long text goes on in indented lines
    header = dict(line.partition(": ")[::2] for line in lines)
    keys = [key for key in KEYS if key in header]
    if list(header) != keys or not {*KEYS[:5]} <= set(keys):
        raise ValueError(f"{file}: the header has {list(header)}, not {KEYS}; the last two may be missing")
    names = f"--- {header['script']}\n+++ {header['script']}\n"  # diff -U2 has a copy's name and times
    text, found = re.subn(rf"^--- {re.escape(header['script'])}\b.*\n\+\+\+ .*\n", names, "".join(diff), flags=re.M)
    if found != 1:
        raise ValueError(f"{file}: its diff must be of {header['script']}, without the prefixes a/ and b/")
    return Recipe(file, header, text)


def recipes():
    """All recipes, in the order of their names."""
    return [read(file) for file in sorted(ROOT.glob("recipes/*/*.diff"), key=natural)]


def natural(file):
    """Sorts core-2 before core-10."""
    return file.parent.name, [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", file.stem)]


def write(recipe):
    """Writes a recipe into its file, with the header's keys in order and wrapped at 120 characters."""
    wrapper = textwrap.TextWrapper(120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    lines = [wrapper.fill(f"{key}: {recipe.header[key]}") for key in KEYS if key in recipe.header]
    recipe.file.write_text("\n".join(lines) + "\n" + recipe.diff)


def git(folder, *words, repository=False, **options):
    """The output of git in a folder, outside any repository or with this repository's objects and an index of its own;
    ValueError with git's message where it fails."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment |= {"GIT_CEILING_DIRECTORIES": str(Path(folder).resolve().parent)}
    if repository:
        found = subprocess.run(["git", "rev-parse", "--absolute-git-dir"], cwd=ROOT, capture_output=True, text=True)
        paths = {"DIR": found.stdout.strip(), "WORK_TREE": folder, "INDEX_FILE": Path(folder, ".index")}
        environment |= {f"GIT_{name}": str(path) for name, path in paths.items()}
    done = subprocess.run(["git", *words], cwd=folder, env=environment, capture_output=True, text=True, **options)
    if done.returncode:
        raise ValueError(done.stderr.strip())
    return done.stdout


def apply(recipe, source):
    """The text of a script with the recipe applied, without fuzz; ValueError with git's message where that fails."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, recipe.header["script"])
        script.write_text(source)
        try:
            git(folder, "apply", "-p0", "--whitespace=nowarn", "-", input=recipe.diff)
        except ValueError as error:
            raise ValueError(f"{recipe.name}: {error}") from None
        return script.read_text()


def diff(script, before, after):
    """The diff of two texts of a script, with the hashes of both; ValueError where they differ in the plumbing."""
    if before.partition(PLUMBING)[1:] != after.partition(PLUMBING)[1:]:
        raise ValueError(f"{script}: a recipe must not change what follows {PLUMBING!r}")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, script).write_text(before)
        git(folder, "add", script, repository=True)
        Path(folder, script).write_text(after)
        return git(folder, "diff", "--no-prefix", "--full-index", "-U2", script, repository=True)


def refreshed(recipe):
    """The recipe for the current script; ValueError where both have changed the same lines."""
    name, current = recipe.header["script"], recipe.script.read_text()
    if "\nindex " not in recipe.diff:  # of `diff -U2`
        return recipe._replace(diff=diff(name, current, apply(recipe, current)))
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, name)
        script.write_text(current)
        git(folder, "add", name, repository=True)
        try:
            git(folder, "apply", "--3way", "-p0", "--whitespace=nowarn", "-", repository=True, input=recipe.diff)
        except ValueError:
            conflict = ROOT / "build" / f"{recipe.file.stem}.py"
            conflict.parent.mkdir(exist_ok=True)
            conflict.write_text(script.read_text())
            raise ValueError(
                f"{recipe.name}: the script has changed in the same lines. Resolve {conflict.relative_to(ROOT)}, then "
                f"put below the recipe's header what this prints: diff -U2 {name} {conflict.relative_to(ROOT)}"
            ) from None
        return recipe._replace(diff=diff(name, current, script.read_text()))


def escape(text):
    """A text as a cell of a Markdown table."""
    return text.replace("|", r"\|")


def write_index():
    """Writes the lists of recipes/README.md: what each recipe does, by the script that it changes."""
    index = ROOT / "recipes/README.md"
    text = index.read_text().split("<!-- recipes -->")[0] + "<!-- recipes -->\n"
    for kind in ("without", "with"):
        text += f"\n## {kind.title()}\n"
        found = [recipe for recipe in recipes() if recipe.file.parent.name == kind]
        for script in sorted({recipe.script.name for recipe in found}, key=lambda name: Path(name).stem):
            text += f"\n[`{script}`](../{script}):\n\n"
            for recipe in (recipe for recipe in found if recipe.script.name == script):
                text += f"- [{recipe.file.stem}]({recipe.name}.diff): {recipe.header['what']}\n"
    index.write_text(text)


def failing(copy, tests, *options):
    """The names of the tests that fail in a copy of the checkout; ValueError where pytest cannot run them."""
    fixed = "-n", "0", "-q", "--tb=no", "-p", "no:cacheprovider", "-W", "ignore"
    command = [sys.executable, "-m", "pytest", *fixed, *options, *tests]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    failed = re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode != (1 if failed else 0):
        raise ValueError(f"pytest ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failed


def caught(recipe):
    """A test that passes with the script and fails with the recipe, or None; the recorded one is tried first."""
    source = recipe.script.read_text()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        ignored = shutil.ignore_patterns(".git", ".venv*", "build", "site", "runs", "wandb", "results", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=ignored)
        script = copy / recipe.script.name
        known = [recipe.header["caught by"]] if "caught by" in recipe.header else []
        others = sorted(TESTS, key=lambda name: name != NEAREST.get(script.name))
        for test in known + [f"tests/test_{name}.py" for name in others]:
            script.write_text(apply(recipe, source))
            try:
                failed = failing(copy, [test], "--maxfail", "1")
            except ValueError:
                if test not in known:
                    raise
                failed = []  # the recorded test may no longer exist
            script.write_text(source)
            if failed and not failing(copy, failed):
                return failed[0]
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="such as core-3; default: all")
    parser.add_argument("--caught", action="store_true", help="record the test that fails without the detail")
    args = parser.parse_args()
    folders = ["without"] if args.caught else ["with", "without"]
    among = [recipe for recipe in recipes() if recipe.file.parent.name in folders]
    chosen = [recipe for recipe in among if not args.names or recipe.file.stem in args.names]
    if missing := set(args.names) - {recipe.file.stem for recipe in chosen}:
        sys.exit(f"error: recipes/{' and recipes/'.join(folders)} have no {', '.join(sorted(missing))}")
    failed = 0
    for recipe in chosen:
        try:
            if args.caught:
                test = caught(recipe)
                print(f"{recipe.name}: {test}", flush=True)
                failed += test is None
                write(recipe._replace(header=recipe.header | ({"caught by": test} if test else {})))
            elif (fresh := refreshed(recipe)) != recipe:
                write(fresh)
                print(f"{recipe.name}: rewritten")
        except ValueError as error:
            print(error)
            failed += 1
    write_index()
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
