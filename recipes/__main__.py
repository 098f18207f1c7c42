"""Checks the recipes, and brings them up to date after a script has changed.

    python recipes                    rewrites each diff whose script has changed; names those that need a hand
    python recipes --check            only says which do not apply
    python recipes --caught core-3    runs the tests against that recipe's script, and records the first that fails
                                      in its header; without a name all of recipes/without

A recipe is a unified diff to one script under a header of lines "key: text". What has changed in a script since a diff
was made is merged, from the newest commit of the script that the diff fits.
"""

import argparse
import difflib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
KEYS = "what", "why", "source", "script", "command", "caught by", "measured effect"
PLUMBING = "# That was PPO"  # a recipe changes nothing from here on
CONTEXT = 2  # unchanged lines around a change
# Tests in which a script is run, not read, so that one that fails says something; first those of the script's own.
TESTS = "gae", "golden", "normalize", "atari_wrappers", "lstm", "multidiscrete", "procgen", "run", "cli", "learning"
OWN = {
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
    """The recipe in a file; ValueError where its header is not as it should be."""
    header, mark, diff = file.read_text().partition("--- ")
    lines = re.sub(r"\n +", " ", header).strip().splitlines()  # a long text goes on in indented lines
    header = dict(line.partition(": ")[::2] for line in lines)
    keys = [key for key in KEYS if key in header]
    if list(header) != keys or not {*KEYS[:5]} <= set(keys) or not mark:
        raise ValueError(f"{file}: the header has {list(header)}, not {KEYS}; the last two may be missing")
    if not re.match(rf"--- {re.escape(header['script'])}\s", mark + diff):
        raise ValueError(f"{file}: its diff must be of {header['script']}, as diff -U{CONTEXT} makes it")
    names = f"--- {header['script']}\n+++ {header['script']}\n"  # one that was made by hand has the copy's name
    return Recipe(file, header, re.sub(r"\A--- .*\n\+\+\+ .*\n", lambda _: names, mark + diff))


def recipes():
    """All recipes, in the order of their names."""
    return [read(file) for file in sorted(ROOT.glob("recipes/*/*.diff"), key=natural)]


def natural(file):
    """Sorts core-2 before core-10."""
    return file.parent.name, [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", file.stem)]


def write(recipe):
    """Writes a recipe into its file; lines of the header are cut at 120 characters."""
    lines = []
    for key, text in recipe.header.items():
        line = f"{key}:"
        for word in text.split():
            if len(line) + 1 + len(word) > 120:
                lines.append(line)
                line = " "
            line += f" {word}"
        lines.append(line)
    recipe.file.write_text("\n".join(lines) + "\n" + recipe.diff)


def apply(recipe, source):
    """The text of a script, the recipe applied to it without fuzz; ValueError with git's words where that fails."""
    with tempfile.TemporaryDirectory() as folder:  # git takes the names in a diff from the folder that it is in
        script = Path(folder, recipe.header["script"])
        script.write_text(source)
        command = ["git", "apply", "-p0", "--whitespace=nowarn", "-"]
        environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(Path(folder).parent)}
        environment = {key: value for key, value in environment.items() if key not in ("GIT_DIR", "GIT_WORK_TREE")}
        done = subprocess.run(
            command, cwd=folder, input=recipe.diff, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise ValueError(f"{recipe.name}: {done.stderr.strip()}")
        return script.read_text()


def diff(script, before, after):
    """The unified diff of two texts of a script; ValueError where they differ in the plumbing."""
    if before.partition(PLUMBING)[1:] != after.partition(PLUMBING)[1:]:
        raise ValueError(f"{script}: a recipe must not change what follows {PLUMBING!r}")
    before, after = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return "".join(difflib.unified_diff(before, after, script, script, n=CONTEXT))


def merge(current, before, after):
    """`current`, changed as `before` was to give `after`; ValueError with the merged text where both changed a line."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("script", current), ("before", before), ("recipe", after)):
            Path(folder, name).write_text(text)
        command = ["git", "merge-file", "-p", "script", "before", "recipe"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(done.stdout)
        return done.stdout


def versions(script):
    """The texts of a script, the newest first: in the checkout, and in its last 50 commits."""
    yield script.read_text()
    log = ["git", "log", "-50", "--format=%H", "--", script.name]
    for commit in subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split():
        show = subprocess.run(["git", "show", f"{commit}:{script.name}"], cwd=ROOT, capture_output=True, text=True)
        if show.returncode == 0:  # it did not delete the script
            yield show.stdout


def refreshed(recipe):
    """The recipe for the script as it is now; ValueError where it fits no version, or a line was changed twice."""
    current = recipe.script.read_text()
    for before in versions(recipe.script):
        try:
            after = apply(recipe, before)
        except ValueError:
            continue
        try:
            merged = merge(current, before, after)
        except ValueError as error:
            conflict = ROOT / "build" / f"{recipe.file.stem}.py"
            conflict.parent.mkdir(exist_ok=True)
            conflict.write_text(str(error))
            raise ValueError(
                f"{recipe.name}: the script has changed in the same lines. Resolve {conflict.relative_to(ROOT)}, then "
                f"write: diff -U{CONTEXT} {recipe.header['script']} {conflict.relative_to(ROOT)}"
            ) from None
        return recipe._replace(diff=diff(recipe.header["script"], current, merged))
    raise ValueError(f"{recipe.name}: it fits none of the script's last versions")


def escape(text):
    """A text as a cell of a Markdown table."""
    return text.replace("|", r"\|")


def write_index():
    """Writes the tables of recipes/README.md: what each recipe does, its script, and how many lines it changes."""
    index = ROOT / "recipes/README.md"
    text = index.read_text().split("<!-- recipes -->")[0] + "<!-- recipes -->\n"
    for kind in ("without", "with"):
        text += f"\n## {kind.title()}\n\n| recipe | script | lines | what |\n|---|---|---|---|\n"
        for recipe in recipes():
            if recipe.file.parent.name == kind:
                lines = len(re.findall(r"^[+-](?!--|\+\+)", recipe.diff, re.MULTILINE))
                link = f"[{recipe.file.stem}]({recipe.name}.diff)"
                text += f"| {link} | `{recipe.header['script']}` | {lines} | {escape(recipe.header['what'])} |\n"
    index.write_text(text)


def failing(copy, tests, *options):
    """The names of the tests that fail in a copy of the checkout; ValueError where pytest cannot run them.

    They run in a child of this process, which has imported the libraries already, and no script."""
    output = copy.parent / "output"
    if not (child := os.fork()):
        status = 99
        try:
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for number in (1, 2):  # one file, so that neither overwrites the other
                os.dup2(file, number)
            os.chdir(copy)
            sys.path[0] = str(copy)
            fixed = "-n", "0", "-q", "--tb=no", "-p", "no:cacheprovider", "-W", "ignore"
            status = int(pytest.main([*fixed, *options, *tests]))
        finally:
            sys.stdout.flush()
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    failed = re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", output.read_text(), re.MULTILINE)
    if status != (1 if failed else 0):
        raise ValueError(f"pytest ended with {status}: {output.read_text()[-2000:]}")
    return failed


def caught(recipe, source):
    """A test that fails where `source` stands in the place of the recipe's script, and passes with the script itself;
    None where there is none. The one on record is tried first."""
    for library in ("torch", "gymnasium", "tensorboard", "torch.utils.tensorboard", "tyro", "cv2", "ale_py", "scipy"):
        importlib.import_module(library)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        ignored = shutil.ignore_patterns(".git", ".venv*", "build", "site", "runs", "wandb", "results", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=ignored)
        script = copy / recipe.script.name
        known = [recipe.header["caught by"]] if "caught by" in recipe.header else []
        others = sorted(TESTS, key=lambda name: name != OWN.get(script.name))
        for test in known + [f"tests/test_{name}.py" for name in others]:
            script.write_text(source)
            try:
                failed = failing(copy, [test], "--maxfail", "1")
            except ValueError:
                if test not in known:
                    raise
                failed = []  # it may be gone, or have another name now
            script.write_text(recipe.script.read_text())
            if failed and not failing(copy, failed):
                return failed[0]
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="such as core-3; default: all")
    parser.add_argument("--check", action="store_true", help="write nothing")
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
            if args.check:
                apply(recipe, recipe.script.read_text())
            elif args.caught:
                test = caught(recipe, apply(recipe, recipe.script.read_text()))
                print(f"{recipe.name}: {test}", flush=True)
                failed += test is None
                recipe = read(recipe.file)  # which may have been refreshed while the tests ran
                header = {key: text for key, text in recipe.header.items() if key != "caught by"}
                header |= {"caught by": test} if test else {}
                write(recipe._replace(header={key: header[key] for key in KEYS if key in header}))
            else:
                before = recipe.file.read_text()
                write(refreshed(recipe))
                if recipe.file.read_text() != before:
                    print(f"{recipe.name}: rewritten")
        except ValueError as error:
            print(error)
            failed += 1
    if not args.check:
        write_index()
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
