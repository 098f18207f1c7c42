"""benchmark/time_to_score.py: when training counts as having reached a score, and the table."""

import json
import subprocess
import sys

from benchmark import libraries, tables, time_to_score
from benchmark.results import ROOT

OPTIONS = "--env-id CartPole-v1 --total-timesteps 4096 --num-steps 128 --num-minibatches 4 --no-cuda".split()


def run_score(score, tmp_path):
    """What timed/score.py prints of a short run on CartPole."""
    program = [sys.executable, ROOT / "benchmark" / "timed" / "score.py", ROOT / "ppo.py", str(score)]
    done = subprocess.run([*program, *OPTIONS], cwd=tmp_path, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_training_ends_at_the_score(tmp_path):
    """At the first update after which 100 episodes have ended and their mean is high enough."""
    found = run_score(10, tmp_path)
    assert found["reached"] and found["steps"] < 4096 and found["seconds"] > 0


def test_training_without_the_score_uses_all_steps(tmp_path):
    found = run_score(1000, tmp_path)
    assert not found["reached"] and found["steps"] == 4096


def row(who, seconds, reached=True, seed=1):
    texts = {"steps": "60000", "seconds": str(seconds), "reached": str(reached), "seed": str(seed)}
    return {"task": "CartPole-v1", "who": who} | texts


def test_the_table_counts_runs_that_did_not_reach_the_score():
    """They count as longer than all others."""
    rows = [row("ours", 10), row("ours", 12), row("ours", 90, reached=False)]
    rows += [row("SBX", 24), row("SBX", 36), row("SBX", 30)]
    rows += [row("Stable-Baselines3", 5), row("Stable-Baselines3", 60, False), row("Stable-Baselines3", 60, False)]
    head = "| CartPole-v1 | 475"
    assert time_to_score.table(rows)[2:] == [
        f"{head} | ours | 2 of 3 | 60k (60 to more) | 12 (10 to more) |  |",
        f"{head} | Stable-Baselines3 | 1 of 3 | - | - |  |",
        f"{head} | SBX | 3 of 3 | 60k (60 to 60) | 30 (24 to 36) | 2.5 |",
    ]


def test_runs_of_the_seeds_that_tuned_count_only_where_there_are_no_others():
    rows = [row("ours", 10), row("ours", 20, seed=101), row("SBX", 60)]
    ours, sbx = time_to_score.table(rows)[2:]
    assert "| 1 of 1 |" in ours and "| 20 (20 to 20) |" in ours and sbx.endswith("| 3.0 |")


def test_half_of_the_runs_are_too_few_for_a_median():
    assert time_to_score.median_text([60, float("inf")]) == "-"
    assert time_to_score.median_text([60, 61, float("inf")]) == "61 (60 to more)"


def test_every_task_has_settings_for_all_programs():
    assert time_to_score.SCORES.keys() <= time_to_score.tuned_lines().keys()
    assert time_to_score.SCORES.keys() == time_to_score.ZOO_STEPS.keys()


def test_other_versions_of_the_libraries_are_installed(tmp_path, monkeypatch):
    """And the same ones only once."""
    monkeypatch.setattr(libraries, "ROOT", tmp_path)
    monkeypatch.delenv("OTHER_PYTHON", raising=False)
    (tmp_path / ".venv-other").mkdir()
    commands = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))
    for packages, count in ((["a==1", "b==1"], 2), (["a==1", "b==1"], 2), (["a==2", "b==1"], 4)):
        python = libraries.find_python("OTHER_PYTHON", ".venv-other", packages)
        assert len(commands) == count
    assert commands[-1][-2:] == ["a==2", "b==1"] and python == str(tmp_path / ".venv-other/bin/python")


def test_a_relative_path_of_a_python_is_of_this_folder(tmp_path, monkeypatch):
    """The programs run in other folders. A link stays one, as that in a virtual environment does."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "bin")
    for value in ("bin/python", "python"):
        monkeypatch.setenv("OTHER_PYTHON", value)
        assert libraries.find_python("OTHER_PYTHON", ".venv-other", []) == str(tmp_path / "bin/python")


def test_a_row_takes_the_place_of_that_with_its_keys(tmp_path):
    """A number equals its text in the file; what is no column is left out."""
    file = tmp_path / "table.csv"
    assert tables.read_rows(file) == []
    for seed, score in ((1, 10), (2, 20), (1, 30)):
        tables.put_row(file, ["seed", "score"], ["seed"], {"seed": seed, "score": score, "more": 1})
    assert tables.read_rows(file) == [{"seed": "1", "score": "30"}, {"seed": "2", "score": "20"}]
