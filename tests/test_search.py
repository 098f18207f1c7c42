"""recipes/search.py: its trials, against a script whose score follows from its options, and with ppo.py itself."""

import os
import subprocess
import sys

import pytest
import torch
from toy_envs import ROOT, newest_run

# The score of trial i is the i-th of SCORES for two seeds, 0.5 less for one; it fails where that is "fails".
# <score>.pt is a checkpoint of returns with that mean, made before: so it need not load torch.
SCRIPT = """
import os, pathlib, shutil, sys
options = dict(word[2:].split("=") for word in sys.argv[1:])
score = os.environ["SCORES"].split()[int(options["exp-name"].removeprefix("trial-"))]
if score == "fails":
    sys.exit("error: as it was told")
folder = pathlib.Path(options["runs-folder"], f"Env__{options['exp-name']}__{options['seed']}__now")
folder.mkdir()
made = pathlib.Path(__file__).with_name(f"{float(score) + int(options['seed']) - 1.5}.pt")
shutil.copy(made, folder / "checkpoint_000000000001.pt")
(folder / "learning-rate").write_text(options["learning-rate"])
"""


def search(folder, *words, **environment):
    """What the search says and logs, and its exit status."""
    command = [sys.executable, ROOT / "recipes/search.py", *map(str, words)]
    environment = os.environ | environment
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.stdout, done.stderr, done.returncode


@pytest.fixture
def script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    for score in (i / 2 for i in range(22)):
        torch.save({"returns": [score + 1.5, score - 1.5]}, tmp_path / f"{score}.pt")
    return "script.py"


def test_the_best_trial_is_said_as_a_command(script, tmp_path):
    """Its score is the mean over seeds of the mean return; a second command goes on with the study."""
    said, log, status = search(tmp_path, script, "--trials", 3, "--seeds", 2, SCORES="1 7.5 3")
    assert status == 0 and said.startswith("3 of 3 trials came to their end; the best scored 7.5:\npython script.py ")
    assert len(list(tmp_path.glob("runs/search/*/Env__trial-*"))) == 6
    [best] = tmp_path.glob("runs/search/*/Env__trial-1__2__now")
    assert f" --learning-rate={(best / 'learning-rate').read_text()} " in said
    said, log, status = search(tmp_path, script, "--trials", 1, "--seeds", 2, SCORES="1 7.5 3 8")
    assert said.startswith("4 of 4 trials came to their end; the best scored 8:")


def test_a_poor_trial_is_given_up_after_its_first_seed(script, tmp_path):
    """From the sixth on, where it is below the median of those before."""
    said, log, status = search(tmp_path, script, "--trials", 7, "--seeds", 2, SCORES="1 2 3 4 5 2.5 3.5")
    assert log.count(" pruned.") == 1 and said.startswith("6 of 7 trials")
    assert [len(list(tmp_path.glob(f"runs/search/*/Env__trial-{i}__*"))) for i in range(7)] == [2, 2, 2, 2, 2, 1, 2]


def test_another_text_of_the_file_is_another_study(script, tmp_path):
    """What a copy suggests may be other parameters, which those of this one have not. A comment changes nothing."""
    (tmp_path / "my_search.py").write_text((ROOT / "recipes/search.py").read_text().replace('"clip-coef"', '"vf-coef"'))
    options = ["--trials", 1, "--seeds", 1]
    assert search(tmp_path, script, *options, SCORES="9")[2] == 0
    command = [sys.executable, "my_search.py", script, *map(str, options)]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"SCORES": "1"}, capture_output=True, text=True)
    assert "1 of 1 trials" in done.stdout and "--vf-coef=" in done.stdout, done.stderr
    with (tmp_path / "my_search.py").open("a") as file:
        file.write("# a comment\n")
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"SCORES": "1 2"}, capture_output=True, text=True)
    assert "2 of 2 trials" in done.stdout


def test_a_trial_that_fails_is_left_out(script, tmp_path):
    said, log, status = search(tmp_path, script, "--trials", 3, "--seeds", 1, SCORES="1 fails 2")
    assert status == 0 and said.startswith("2 of 3 trials came to their end; the best scored 1.5:")


def test_a_search_in_which_all_trials_fail_says_where_to_look(script, tmp_path):
    said, log, status = search(tmp_path, script, "--trials", 2, SCORES="fails fails")
    assert status == 1 and log.endswith("error: no trial came to its end; runs/search/*/log has what the runs said\n")
    [one, two] = tmp_path.glob("runs/search/*/log")
    assert one.read_text() == two.read_text() == "error: as it was told\n"


def test_it_searches_ppo(tmp_path):
    """What it does not know goes to the script, and the command that it says is one that the script takes."""
    options = "--env-id", "CartPole-v1", "--total-timesteps", 4096, "--num-envs", 8
    said, log, status = search(tmp_path, ROOT / "ppo.py", "--trials", 1, "--seeds", 1, *options)
    assert status == 0, log
    command = said.splitlines()[1].split()[1:]
    subprocess.run([sys.executable, *command], cwd=tmp_path, check=True, capture_output=True)
    assert (newest_run(tmp_path) / "run.json").read_text().count('"num_envs": 8') == 1
