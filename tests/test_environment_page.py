"""The modules that docs/environment.md tells its readers to save train as they stand there."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from script_table import ROOT

PAGE = (ROOT / "docs" / "environment.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def save(folder, word):
    """Saves the module of the page that has a word into a folder, as a file of the word's name."""
    [text] = [block for block in BLOCKS if f'gym.register("{word}-v0"' in block]
    (folder / f"{word.lower()}.py").write_text(text)


def load(folder, word, monkeypatch):
    save(folder, word)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, word.lower(), raising=False)
    return __import__(word.lower())


@pytest.mark.parametrize("word", ["Walk", "Called"])
def test_check_finds_no_fault(tmp_path, word):
    save(tmp_path, word)
    command = [sys.executable, ROOT / "check.py", ROOT / "ppo.py", "--env-id", f"{word.lower()}:{word}-v0"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "repeats" in done.stdout and "0 warnings" in done.stdout


def test_a_called_agent_gets_what_the_program_tells(tmp_path, monkeypatch):
    module = load(tmp_path, "Called", monkeypatch)
    heard = []

    def play(choose, env):
        for episode in range(3):
            heard.append(choose([episode], 0.0, False))
            heard.append(choose([episode + 0.5], 2.0, episode == 0))
        raise ValueError("no more")

    monkeypatch.setattr(module, "play", play)
    env = module.Called()
    assert env.reset(seed=1)[0] == [0]
    observation, reward, ended, *_ = env.step(1)
    assert (observation.item(), reward, ended) == (0.5, 2.0, True)
    assert env.reset()[0] == [1]
    env.step(0)
    assert env.reset()[0] == [2]  # in the middle of an episode
    env.step(1)
    with pytest.raises(RuntimeError, match="has ended") as caught:
        env.step(np.int64(1))
    assert isinstance(caught.value.__cause__, ValueError)
    assert heard == [1, None, 0, None, 1, 1]
