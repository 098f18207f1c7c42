"""The short form of kill.py, and that it sees what it is there to see."""

import re
import shutil

import kill
import pytest
from toy_envs import ROOT, SCRIPTS, finish, start, train


def test_a_few_kills(tmp_path):
    """`python tests/kill.py --script ppo --kills 50` is the long form; there is one for every script."""
    status, output, errors = finish(start([ROOT / "tests" / "kill.py", "--kills", "4"], tmp_path))
    assert status == 0, output + errors
    assert re.search(r"\n4 kills, \d resumed, .*; all \d runs equal the undisturbed one\n$", output)
    assert kill.OPTIONS.keys() >= {path.stem for path in ROOT.glob("ppo*.py")}


def test_it_sees_what_is_wrong(tmp_path):
    whole = train(SCRIPTS[0], f"{SCRIPTS[0].tiny} --save-every 2", tmp_path)
    kill.check(whole, whole, exact=True)

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
    other, _ = damaged("other")
    shutil.copy(sorted(other.glob("*.pt"))[0], sorted(other.glob("*.pt"))[1])
    for run, said in ((twice, "double point"), (gap, "gap"), (litter, "checkpoint.tmp"), (other, "weights differ")):
        with pytest.raises(AssertionError, match=said):
            kill.check(run, whole, exact=True)
