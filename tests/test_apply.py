"""`python -m recipes.apply` writes a copy of a script with recipes, on a machine with git and Python alone."""

import re
import subprocess
import sys

import pytest
from script_table import ROOT

from recipes import apply as command
from recipes import lists
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


def test_two_recipes_that_fit_and_do_not_work(tmp_path, capsys):
    """The reason is printed, and the command of each recipe."""
    command.main(["symmetry", "normalization", str(tmp_path / "my.py")])
    page = capsys.readouterr().out
    assert "warning: with/symmetry does not work with with/normalization: normalized observations" in page
    assert "the command of with/symmetry: python " in page and "the command of with/normalization: python " in page
    command.main(["symmetry", "layer-norm", str(tmp_path / "other.py")])
    assert "warning" not in capsys.readouterr().out


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
        "--script ppo_seeds.py core-9 normalization": "with/normalization does not fit ppo_seeds.py: both change these",
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


def test_a_list_is_recipes_and_defaults(tmp_path, capsys):
    """Of a script for continuous actions, some more; and a recipe may follow."""
    copy = tmp_path / "my_ppo.py"
    command.main(["as-sb3", str(copy)])
    names = "core-3-torch", "core-6-uneven", "core-7-sample", "core-9", "core-10-whole", "core-12-k3"
    expected = with_recipes("ppo.py", *(f"without/{name}" for name in names))
    for option, value in (("anneal_lr", "False"), ("bootstrap_truncated", "True")):
        expected = re.sub(rf"( {option}: bool =) \w+", rf"\1 {value}", expected)
    assert copy.read_text() == expected
    printed = capsys.readouterr().out
    assert "- without/core-9: the value loss is not clipped\n- without/core-10" in printed
    assert "- --no-anneal-lr is the default\n" in printed and f"python -m conformance {copy}" in printed

    copy = tmp_path / "my_continuous.py"
    command.main(["as-cleanrl", "core-11", str(copy), "--script", str(ROOT / "ppo_continuous_action.py")])
    assert "of each environment alone" in copy.read_text() and "global gradient clipping" not in copy.read_text()


def test_what_a_list_cannot_change(tmp_path):
    with pytest.raises(ValueError, match="no option --no-annealing"):
        lists.with_default((ROOT / "ppo.py").read_text(), "--no-annealing")
    with pytest.raises(SystemExit, match="there is no recipe as-sb4, perhaps as-sb3"):
        command.main(["as-sb4", str(tmp_path / "my.py")])
    with pytest.raises(SystemExit, match="does not fit ppo_atari_lstm.py"):
        command.main(["as-sb3", str(tmp_path / "my.py"), "--script", str(ROOT / "ppo_atari_lstm.py")])
