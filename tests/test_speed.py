"""benchmark/speed: the turns, the shares of the phases, the products of a layer, and what a run of it writes."""

import importlib
import importlib.util
import io
import json
import sys
import time

import pytest
import torch
from torch import nn
from toy_envs import ROOT, SCRIPTS, Clock, finish, put_in_place_of_games, start

PPO = SCRIPTS[0]


@pytest.fixture
def ours(monkeypatch, tmp_path):
    """benchmark/speed/ours.py, free to wrap ppo.py and to train in a folder of its own."""
    spec = importlib.util.spec_from_file_location("ours", ROOT / "benchmark/speed/ours.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmark/speed"), *sys.path])
    spec.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(PPO.module, "make_envs", PPO.module.make_envs)
    for name in ("updates", "log_update"):
        monkeypatch.setattr(PPO.module.Run, name, getattr(PPO.module.Run, name))
    return module


WORKER = """
import sys, time
from turns import Turns
turns = Turns()
for _ in range(3):
    turns.next()
    time.sleep(0.1)
    print(sys.argv[1], time.monotonic())
turns.end()
print(turns.wall)
"""


def test_programs_work_in_turns(ours, monkeypatch):
    """One at a time, and what each waits is not counted."""
    Program = importlib.import_module("turns").Program
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "benchmark/speed"))
    programs = [Program([sys.executable, "-c", WORKER, name]) for name in "ab"]
    assert [program.lines for program in programs] == [[], []]
    for _ in range(3):
        for program in programs:
            program.turn()
    a, b = ([float(line.split()[-1]) for line in program.lines] for program in programs)
    assert sorted(a[:3] + b[:3]) == [a[0], b[0], a[1], b[1], a[2], b[2]]
    assert 0.3 <= a[3] < 0.5 and 0.3 <= b[3] < 0.5
    with pytest.raises(SystemExit, match="(?s)error: .*NameError"):
        Program([sys.executable, "-c", "oops"])


@pytest.mark.parametrize("slow", ["environment", "inference", "learning"])
def test_a_slow_phase_has_the_larger_share(ours, monkeypatch, slow):
    """And all of them together are no more than the whole."""

    class Slow(Clock):
        def step(self, action):
            time.sleep(0.01 * (slow == "environment"))
            return super().step(action)

    def forward(agent, obs):
        time.sleep(0.02 * (slow == ("learning" if torch.is_grad_enabled() else "inference")))
        return original(agent, obs)

    original = PPO.module.Agent.forward
    monkeypatch.setattr(PPO.module.Agent, "forward", forward)
    put_in_place_of_games(PPO, lambda images, index: Slow(images), monkeypatch.setattr)
    module, args = ours.load("ppo.py", 3, "--num-envs 2 --num-steps 8 --update-epochs 2".split())
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n\n"))
    result = ours.speed(module, args, ours.Turns(), 1, 2, 1)
    shares = {name: result[name] for name in ("environment", "inference", "learning")}
    assert max(shares, key=shares.get) == slow
    assert min(shares.values()) > 0 and 0.5 < sum(shares.values()) <= 1
    assert 0 < result["steps_per_second"] < 2 * 8 / (8 * 0.02)  # 8 steps, or gradient steps, of 0.02 s an update


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("with_input", [True, False], ids=["input's gradient", "none"])
@pytest.mark.parametrize(
    "layer, shape, outputs",
    [(nn.Linear(5, 3), (7, 5), 7 * 3), (nn.Conv2d(4, 8, 3, stride=2), (2, 4, 9, 9), 2 * 8 * 4 * 4)],
)
def test_the_products_of_a_layer(ours, layer, shape, outputs, with_input, dtype):
    """Forward, gradient of the weights and, where it is wanted, of the input; each to be repeated as it was made."""
    with ours.Products() as products, torch.autocast("cpu", dtype, enabled=dtype is torch.bfloat16):
        for _ in range(3):
            y = layer(torch.ones(shape, requires_grad=with_input))
            y.sum().backward()
    assert products.operations == 3 * (2 + with_input) * 2 * outputs * layer.weight[0].numel()
    assert set(products.counts.values()) == {3} and len(products.calls) == len(products.counts)
    assert all(call.args[1].dtype is dtype for call in products.calls.values())
    forward, *_ = products.calls.values()
    assert torch.equal(forward(), y)


def test_a_run_of_it(tmp_path):
    setting = "ppo.py --num-envs 2 --num-steps 32"
    arguments = [ROOT / "benchmark/speed", setting, *"--no-sb3 --repeats 1 --turns 2 --warmup 1 --out table".split()]
    status, output, errors = finish(start(arguments, tmp_path))
    assert (status, errors) == (0, "")
    text, report = (tmp_path / "table.md").read_text(), json.loads((tmp_path / "table.json").read_text())
    assert text in output and f"| {setting} |" in text and "SB3" not in text and torch.__version__ in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table.json", "table.md"]
    (run,) = report["settings"][0]["runs"]
    assert run["ours"]["args"]["num_steps"] == 32
    assert 0 < run["ours"]["environment"] + run["ours"]["inference"] + run["ours"]["learning"] <= 1
    assert run["limit"]["environment_steps_per_second"] > run["ours"]["steps_per_second"]
    # each of the 64 rows, in each of 4 epochs: 2 products in the first layers and 3 in the others, of both networks
    products = 2 * (4 * 64) * 2 + (2 * 64 * 64 + 64 * 2 + 64) * 3
    assert run["limit"]["operations_per_update"] == 64 * 4 * 2 * products
