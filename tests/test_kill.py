"""The short form of kill.py, and that it sees what it is there to see."""

import os
import re
import shutil

import kill
import pytest
from toy_envs import ROOT, SCRIPTS, finish, start, train


def test_a_few_kills(tmp_path):
    """`python tests/kill.py --script ppo --kills 50` is the long form; there is one for every script."""
    status, output, errors = finish(start([ROOT / "tests" / "kill.py", "--kills", "4"], tmp_path))
    assert status == 0, output + errors
    assert re.search(r"\n4 kills, \d resumed, .*; all \d runs got through, with every point once\n$", output)
    assert kill.OPTIONS.keys() >= {script.name for script in SCRIPTS}


def test_it_sees_what_is_wrong(tmp_path):
    whole = train(SCRIPTS[0], f"{SCRIPTS[0].tiny} --save-every 2", tmp_path)
    kill.check(whole, whole)

    def damaged(name):
        copy = tmp_path / name
        shutil.copytree(whole, copy)
        return copy, next(copy.glob("events*"))

    twice, events = damaged("twice")
    shutil.copy2(events, f"{events}.again")
    gap, events = damaged("gap")
    events.write_bytes(events.read_bytes()[:-2000])
    litter, _ = damaged("litter")
    (litter / "checkpoint.tmp").touch()
    short, _ = damaged("short")
    max(short.glob("*.pt")).unlink()
    wrong = (twice, "double point"), (gap, "gap"), (litter, "checkpoint.tmp"), (short, "the files differ")
    for run, said in wrong:
        with pytest.raises(AssertionError, match=said):
            kill.check(run, whole)
    half, _ = damaged("half")
    os.truncate(min(half.glob("*.pt")), 1000)
    with pytest.raises(RuntimeError, match="PytorchStreamReader"):
        kill.check(half, whole)
    slower = train(SCRIPTS[0], f"{SCRIPTS[0].tiny} --save-every 2 --learning-rate 0.0001", tmp_path / "slower")
    with pytest.raises(AssertionError, match="the schedule differs"):
        kill.check(slower, whole)
