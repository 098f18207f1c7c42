"""`python -m recipes.apply` writes a copy of a script with recipes, on a machine with git and Python alone."""

import re
import subprocess
import sys

import pytest
from script_table import ROOT

from recipes import apply as command
from recipes.recipe import apply, read


def with_recipes(script, *names):
    """The text of a script with recipes, by the function that the other tests check."""
    text = (ROOT / script).read_text()
    for name in names:
        text = apply(read(ROOT / f"recipes/{name}.diff"), text)
    return text


def test_it_needs_no_installed_package(tmp_path):
    """-S hides those of the environment; the evaluation fits a descendant of its script, too."""
    copy = tmp_path / "my_shared.py"
    words = ["with/evaluation", copy, "--script", "ppo_shared.py"]
    done = subprocess.run(
        [sys.executable, "-S", "-m", "recipes.apply", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert copy.read_text() == with_recipes("ppo_shared.py", "with/evaluation")
    assert "best.pt" in done.stdout  # what the recipe does


def test_the_printed_command_can_be_typed(tmp_path, capsys):
    """Also where the copy's path has a space, and where the environment is one of the checkout's recipes."""
    folder = tmp_path / "my scripts"
    folder.mkdir()
    command.main(["privileged-critic", str(folder / "my_ppo.py")])
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("try it: ")]
    typed = line.removeprefix("try it: ").replace(" python ", f" {sys.executable} ")
    done = subprocess.run(
        f"{typed} --total-timesteps 512 --no-cuda", shell=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_command_applies_several_recipes_and_overwrites_nothing(tmp_path, monkeypatch, capsys):
    copy = tmp_path / "my.py"
    for _ in range(2):  # the same text may be written again
        command.main(["core-9", "without/core-11", str(copy)])
    text = copy.read_text()
    assert text == with_recipes("ppo.py", "without/core-9", "without/core-11")
    assert f"python {copy} --env-id CartPole-v1" in capsys.readouterr().out

    refused = {
        "core-7": "exists with other contents",
        "core-77": "there is no recipe core-77, perhaps core-7 ",
        "nix.diff": "No such file or directory: 'nix.diff'",
        "core-9 --script nix.py": "nix.py was not found",
        "muon core-9 value-clip": "with/value-clip does not fit without/core-9, in either order: both change these",
        "lstm-mask --script ppo.py": "does not fit ppo.py: both change these lines of ppo_multidiscrete_mask.py:",
    }
    for words, message in refused.items():
        with pytest.raises(SystemExit, match=re.escape(message)):
            command.main([str(copy) if word == "COPY" else word for word in f"{words} COPY".split()])
    for words, message in {"core-9": "required: copy", "core-9 muon": "not muon"}.items():
        with pytest.raises(SystemExit):
            command.main(words.split())
        assert message in capsys.readouterr().err
    assert copy.read_text() == text

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="git was not found"):
        command.main(["core-9", str(tmp_path / "other.py")])
