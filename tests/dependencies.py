"""Writes into the scripts what they ask for, after a change of pyproject.toml, which has the one list of it.

    python tests/dependencies.py        (tests/test_packaging.py sees that nothing was forgotten)

A script's PEP 723 block has the core of pyproject.toml and the extras that the script needs, in the same words.
"""

import re
import textwrap
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = {
    "ppo.py": [],
    "ppo_shared.py": [],
    "ppo_atari.py": ["atari"],
    "ppo_atari_lstm.py": ["atari"],
    "ppo_atari_envpool.py": ["envpool"],
    "ppo_atari_multigpu.py": ["envpool"],
    "ppo_atari_cleanba.py": ["envpool"],
    "impala_atari_cleanba.py": ["envpool"],
    "ppo_continuous_action.py": ["mujoco"],
    "ppo_procgen.py": ["procgen"],
    "ppo_multidiscrete.py": ["microrts"],
    "ppo_multidiscrete_mask.py": ["microrts"],
    "ppo_selfplay.py": ["selfplay"],
    "enjoy.py": ["atari", "mujoco", "video"],
}
BLOCK = re.compile(r"# /// script\n((?:#(?: .*)?\n)+?)# ///\n")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def needed(script):
    """(core, extras): what a script asks for. An extra may ask for a part of the core with an extra of its own,
    gymnasium[mujoco]; then that takes its place."""
    extras = [line for extra in EXTRAS[script] for line in PROJECT["optional-dependencies"][extra]]
    special = {re.sub(r"\[\w+\]", "", line): line for line in extras if "[" in line}
    core = [special.get(line, line) for line in PROJECT["dependencies"]]
    return core, [line for line in extras if line not in core]


def asked(text):
    """What the block of a script's text asks for: {"requires-python": ..., "dependencies": [...]}."""
    return tomllib.loads(re.sub(r"^# ?", "", BLOCK.match(text)[1], flags=re.MULTILINE))


def block(script):
    """The block that the script should have: the dependencies in one line, or in lines of at most 120 characters."""
    core, extras = ([f'"{line}"' for line in part] for part in needed(script))
    lines = [f"# dependencies = [{', '.join(core)}]"]
    if extras or len(lines[0]) > 120:
        whole = {"break_long_words": False, "break_on_hyphens": False}
        rows = [row for part in (core, extras) for row in textwrap.wrap(", ".join(part), 115, **whole)]
        lines = ["# dependencies = [", *(f"#   {row.removesuffix(',')}," for row in rows), "# ]"]
    python = PROJECT["requires-python"].split(",")[0]
    return "\n".join(["# /// script", f'# requires-python = "{python}"', *lines, "# ///", ""])


if __name__ == "__main__":
    for script in EXTRAS:
        path = ROOT / script
        text = path.read_text()
        if (new := block(script) + text[BLOCK.match(text).end() :]) != text:
            path.write_text(new)
            print(script)
