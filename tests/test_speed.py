"""benchmark/speed.py: equal weights, ranks, and what a script that fails leaves."""

import json
import sys
from types import SimpleNamespace

import pytest

from benchmark import speed


@pytest.mark.slow
def test_a_table(monkeypatch, tmp_path, capsys):
    """Of a run that is the same twice and one that fails, by the program as it is called."""
    good, bad = "ppo.py --num-envs 2 --num-steps 32 --no-cuda", "ppo.py --env-id Pendulum-v1"
    words = "--no-sb3 --repeats 2 --updates 1 --out".split()
    monkeypatch.setattr(sys, "argv", ["speed", good, bad, *words, str(tmp_path / "table.v2")])
    with pytest.raises(SystemExit, match="True"):
        speed.main()
    text = (tmp_path / "table.v2.md").read_text()
    rows = {row.split(" | ")[0].strip("| "): row for row in text.splitlines()}
    assert rows[good].endswith(" | the same |") and " error: " in rows[bad] and "torch 2." in text
    found = json.loads((tmp_path / "table.v2.json").read_text())[good]
    assert len(found) == 2 and all(0 < each[0][name] < 1 for each in found for name in ("environment", "learning"))
    other = speed.run_ours("ppo.py", 1, ["--num-steps", "32", "--seed", "2"])
    assert other["weights"] not in (tmp_path / "table.v2.json").read_text()


def test_a_script_that_lies_elsewhere():
    """Another one of its name would be timed."""
    with pytest.raises(SystemExit, match="must lie in"):
        speed.chosen_settings(SimpleNamespace(settings=["exp/ppo.py"], ranks=None))


def test_efficiency_is_that_of_each_rank():
    one = {"speed": 100.0, "envs": 8, "memory": 0.0}
    two = one | {"speed": 150.0, "collectives": 0.2}
    shown = speed.cells([(two, None)], ([(one, None)], 1), 2)
    assert (shown["efficiency"], shown["collectives"], shown["steps/s"]) == ("75%", "20%", "150")
    without_torchrun = ([(one, None)], 0)  # which is one process as well
    assert speed.cells([(two, None)], without_torchrun, 2)["efficiency"] == "75%"
    peer = {"speed": 75.0, "by_cpu": 10.0}
    shown = speed.cells([(one | {"by_cpu": 30.0, "args": {}}, peer)], ([(one, None)], 0), 0)
    assert (shown["SB3 steps/s"], shown["ratio"], shown["ratio by CPU time"]) == ("75", "1.33", "3.00")
    shown = speed.cells([(one | {"by_cpu": 30.0, "args": {"async_envs": True}}, peer)], ([(one, None)], 0), 0)
    assert shown["ratio"] == "1.33" and "ratio by CPU time" not in shown


def test_what_a_check_does_not_pass():
    """An error, and on a CPU weights that differ between two runs with one seed; a GPU may add in any order."""
    one = {"memory": 0.0, "weights": "a"}
    other = {"memory": 0.0, "weights": "b"}
    assert not speed.has_failed([(one, None), (one, None)])
    assert speed.has_failed([(one, None), (other, None)])
    assert speed.has_failed([(one, None), ({"error": "none"}, None)])
    assert speed.has_failed([(one, {"error": "of Stable-Baselines3"})])
    assert not speed.has_failed([(one | {"memory": 1.0}, None), (other | {"memory": 1.0}, None)])


def test_the_weights_are_those_of_the_rank_that_has_them(monkeypatch):
    """Any rank may be the first to print."""
    result = {"steps": 8, "seconds": 2.0, "cpu": 1.0, "collectives": 0.5}
    printed = [result, result | {"weights": "a", "seconds": 4.0}]
    monkeypatch.setattr(speed, "run_program", lambda *args, **environment: printed)
    found = speed.run_ours("ppo_atari_multigpu.py", 1, [], ranks=2)
    assert (found["weights"], found["speed"], found["by_cpu"]) == ("a", 2.0, 4.0)
