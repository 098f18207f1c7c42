"""benchmark/gpu_check.py, as far as it can be tried on a CPU."""

import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from toy_envs import ROOT, TEXTS

PROGRAM = ROOT / "benchmark/gpu_check.py"
OWN = "--no-cuda --num-steps 32"


@pytest.fixture
def gpu_check():
    spec = importlib.util.spec_from_file_location("gpu_check", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_script_is_checked(gpu_check):
    assert set(gpu_check.SCRIPTS) >= {script.name for script in TEXTS}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_with_one_line():
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "no GPU: torch finds none here, so there is nothing to check\n"


def test_the_table(gpu_check, monkeypatch):
    """A line of each kind, of runs on the CPU."""
    monkeypatch.setattr(gpu_check, "GOLDEN", ["-n", "0", "-q", "-k", "forward and mlp_shared_discrete"])
    monkeypatch.setattr(gpu_check, "SPEED", {"ppo_shared": ["--num-steps 32"]})
    head, line, golden, *runs = gpu_check.rows(["ppo_shared"], "cpu", 3)
    assert head.count("|") == line.count("|") == 6
    assert golden.startswith("| golden tests | | | | 1 passed, ")
    cells = [[cell.strip() for cell in run.strip("|").split("|")] for run in runs]
    named = "`ppo_shared.py --num-steps 32`"
    assert [(what, n, mib, end) for what, n, _, mib, end in cells] == [
        ("`ppo_shared.py`", "4", "0", "the same twice"), (named, "8", "0", "trains"), (named, "64", "0", "trains"),
    ]  # fmt: skip
    assert all(float(speed.replace(",", "")) > 0 for _, _, speed, *_ in cells)


def test_runs_of_two_seeds_are_not_the_same(gpu_check):
    weights = {gpu_check.run("ppo_shared", 3, f"{OWN} --seed {seed}")["weights"] for seed in (1, 2)}
    assert len(weights) == 2


def test_the_error_of_one_run_of_two_is_shown(gpu_check, monkeypatch):
    fine = {"N": 4, "steps/s": 1.0, "MiB": 0.0, "weights": "w"}
    monkeypatch.setattr(gpu_check.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="1 failed", returncode=1))
    for results in ([{"error": "oops"}, fine], [fine, {"error": "oops"}]):
        monkeypatch.setattr(gpu_check, "run", lambda *_, results=iter(results): next(results))
        *_, golden, last = gpu_check.rows(["ppo_shared"], "cpu", 3)
        assert (golden, last) == (
            "| golden tests | | | | error: 1 failed |", "| `ppo_shared.py` | | | | error: oops |",
        )  # fmt: skip


def test_a_run_that_fails_has_its_error_in_the_table(gpu_check):
    got = gpu_check.run("ppo_shared", 3, f"{OWN} --env-id Pendulum-v1")
    assert got["error"].startswith("error: Pendulum-v1 has the actions ")
    assert gpu_check.row("this", got, "trains") == f"| this | | | | {got['error']} |"
