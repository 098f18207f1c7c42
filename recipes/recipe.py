"""A recipe: a diff to one script, below a header of lines "key: text". Reads, writes and applies recipes."""

import os
import re
import subprocess
import tempfile
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
REQUIRED = "what", "why", "source", "script", "command"
KEYS = *REQUIRED[:4], "after", "also for", "command", "caught by", "measured effect"
# The plumbing of a script, which a recipe leaves as it is: from this line to the end of the function main
PLUMBING = re.compile(r"^# That was PPO.*?^def main\(.*?(?=^\S)", re.MULTILINE | re.DOTALL)


class Recipe(NamedTuple):
    """One recipe: its file, its header as {key: text}, and the text of the diff."""

    file: Path
    header: dict
    diff: str

    @property
    def name(self):
        """The name, such as with/muon."""
        return f"{self.file.parent.name}/{self.file.stem}"

    @property
    def script(self):
        """The file of the script that the recipe changes."""
        return ROOT / self.header["script"]

    @property
    def scripts(self):
        """The files of all scripts that the recipe is made for: its own, and those that it merges into."""
        return [self.script, *(ROOT / name for name in self.header.get("also for", "").split())]


def read(file):
    """The recipe in a file.

    Raises OSError if the file cannot be read, and ValueError if its header is invalid or its diff is not one of the
    header's script."""
    whole = file.read_text()
    start_of_diff = re.search(r"^(?:diff --git |--- )", whole, re.MULTILINE)
    end_of_head = start_of_diff.start() if start_of_diff else len(whole)
    head = whole[:end_of_head]
    diff = whole[end_of_head:]
    joined = re.sub(r"\n +", " ", head)  # a long text goes on in indented lines
    header = {}
    for line in joined.strip().splitlines():
        key, _, text = line.partition(": ")
        header[key] = text
    is_ordered = list(header) == [key for key in KEYS if key in header]
    is_complete = all(key in header for key in REQUIRED)
    if not is_ordered or not is_complete:
        raise ValueError(f"{file}: the header has {list(header)}, not {KEYS}, of which {REQUIRED} must be there")
    script = header["script"]
    # The diff that `diff -U2` prints has the name of the copy and the times of both.
    heads = rf"^--- {re.escape(script)}\b.*\n\+\+\+ .*\n"
    diff, count = re.subn(heads, f"--- {script}\n+++ {script}\n", diff, flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"{file}: its diff must be of {script}, without the prefixes a/ and b/")
    return Recipe(file, header, diff)


def natural_order(file):
    """A key that sorts core-2 before core-10."""
    words = re.split(r"(\d+)", file.stem)
    return file.parent.name, [int(word) if word.isdigit() else word for word in words]


def recipes():
    """All recipes, in the order of their names."""
    return [read(file) for file in sorted(ROOT.glob("recipes/*/*.diff"), key=natural_order)]


def write(recipe):
    """Writes a recipe into its file, with the header's keys in order and wrapped at 120 characters."""
    wrapper = textwrap.TextWrapper(120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    lines = [wrapper.fill(f"{key}: {recipe.header[key]}") for key in KEYS if key in recipe.header]
    recipe.file.write_text("\n".join(lines) + "\n" + recipe.diff)


def plumbing(text):
    """The plumbing in the text of a script; ValueError where it has none."""
    match = PLUMBING.search(text)
    if match is None:
        raise ValueError("the script has no line '# That was PPO' with a function main() below it")
    return match[0].rstrip()


def escape(text):
    """A text as a cell of a Markdown table."""
    return text.replace("|", r"\|")


def run_git(folder, *words, **options):
    """The output of git in a folder; ValueError with git's message where it fails.

    git sees a repository in the folder itself, but none above it. `options` are those of subprocess.run."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment["GIT_CEILING_DIRECTORIES"] = str(Path(folder).resolve().parent)
    done = subprocess.run(["git", *words], cwd=folder, env=environment, capture_output=True, text=True, **options)
    if done.returncode:
        raise ValueError(done.stderr.strip())
    return done.stdout


def prepared(recipe, source):
    """The text that the diff is of: that of a script, with the recipe that the header's "after" names, if any."""
    if "after" in recipe.header:
        return apply(read(ROOT / f"recipes/{recipe.header['after']}.diff"), source)
    return source


def apply(recipe, source):
    """The text of a script with the recipe applied, without fuzz; ValueError with git's message where that fails."""
    source = prepared(recipe, source)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, recipe.header["script"])
        script.write_text(source)
        try:
            run_git(folder, "apply", "-p0", "--whitespace=nowarn", "-", input=recipe.diff)
        except ValueError as error:
            raise ValueError(f"{recipe.name}: {error}") from None
        return script.read_text()
