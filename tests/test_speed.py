"""benchmark/speed.py: the shares of the phases, equal weights, ranks, and what a script that fails leaves."""

import json
import sys

import pytest
import torch
from toy_envs import SCRIPTS, Clock, put_in_place_of_games

from benchmark import speed

PPO = SCRIPTS[0]


class Stopwatch:
    """In place of the module time: it moves by what is said to pass, and by a millisecond whenever it is read."""

    now = 0.0

    def passes(self, seconds):
        self.now += seconds

    def perf_counter(self):
        self.passes(0.001)
        return self.now

    process_time = perf_counter


@pytest.mark.parametrize("slow, share", [("environment", 1), ("inference", 8 / 9), ("learning", 1)])
def test_a_slow_phase_has_the_larger_share(slow, share, monkeypatch, tmp_path, capsys):
    """All but what reading the time takes; of a rollout's values the last belong to the learning."""
    watch, forward = Stopwatch(), PPO.module.Agent.forward

    class Slow(Clock):
        def step(self, action):
            watch.passes(1.0 * (slow == "environment"))
            return super().step(action)

    def slow_forward(agent, obs):
        watch.passes(2.0 * (slow == ("learning" if torch.is_grad_enabled() else "inference")))
        return forward(agent, obs)

    monkeypatch.setattr(PPO.module.Agent, "forward", slow_forward)
    put_in_place_of_games(PPO, lambda images, index: Slow(images), monkeypatch.setattr)
    for target, name, value in ((speed, "time", watch), (sys, "argv", sys.argv)):
        monkeypatch.setattr(target, name, value)
    monkeypatch.setattr(PPO.module, "make_envs", PPO.module.make_envs)
    monkeypatch.setattr(PPO.module.Run, "log_update", PPO.module.Run.log_update)
    monkeypatch.chdir(tmp_path)
    speed.measure("ppo.py", 2, "--num-envs 2 --num-steps 8 --update-epochs 2".split())
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found[slow] == pytest.approx(share, abs=0.01) and found["steps"] == 2 * 16
    assert min(found[name] for name in ("environment", "inference", "learning")) >= 0
    seconds = {"environment": 8 * 2, "inference": 9 * 2, "learning": 8 * 2}[slow]  # of an update
    assert found["seconds"] == pytest.approx(2 * seconds, rel=0.02)


def test_a_table(monkeypatch, tmp_path, capsys):
    """Of a run that is the same twice and one that fails, by the program as it is called."""
    good, bad = "ppo.py --num-envs 2 --num-steps 32 --no-cuda", "ppo.py --env-id Pendulum-v1"
    words = "--no-sb3 --repeats 2 --updates 1 --out".split()
    monkeypatch.setattr(sys, "argv", ["speed.py", good, bad, *words, str(tmp_path / "table")])
    with pytest.raises(SystemExit, match="True"):
        speed.main()
    text = (tmp_path / "table.md").read_text()
    rows = {row.split(" | ")[0].strip("| "): row for row in text.splitlines()}
    assert rows[good].endswith(" | the same |") and " error: " in rows[bad] and "torch 2." in text
    assert len(json.loads((tmp_path / "table.json").read_text())[good]) == 2
    other = speed.run("ppo.py", 1, ["--num-steps", "32", "--seed", "2"])
    assert other["weights"] not in (tmp_path / "table.json").read_text()


def test_efficiency_is_that_of_each_rank():
    one = {"speed": 100.0, "envs": 8, "memory": 0.0}
    two = one | {"speed": 150.0, "collectives": 0.2}
    shown = speed.cells([(two, None)], ([(one, None)], 1), 2)
    assert (shown["efficiency"], shown["collectives"], shown["steps/s"]) == ("75%", "20%", "150")
    peer = {"speed": 75.0, "by_cpu": 10.0}
    shown = speed.cells([(one | {"by_cpu": 30.0}, peer)], ([(one, None)], 0), 0)
    assert (shown["SB3 steps/s"], shown["ratio"], shown["ratio by CPU time"]) == ("75", "1.33", "3.00")
