"""benchmark/speed: the turns, the shares of the phases, the products of a layer, and what a run of it writes."""

import importlib
import importlib.util
import io
import json
import sys
import time
from types import SimpleNamespace

import gymnasium as gym
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


class Stopwatch:
    """In place of the module time: it moves by what is said to pass, and by a millisecond whenever it is read."""

    def __init__(self):
        self.now = 0.0

    def passes(self, seconds):
        self.now += seconds

    def perf_counter(self):
        self.passes(0.001)
        return self.now

    process_time = perf_counter


@pytest.fixture
def stopwatch(ours, monkeypatch):
    watch = Stopwatch()
    for module in (ours, importlib.import_module("turns")):
        monkeypatch.setattr(module, "time", watch)
    return watch


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
    given = [0.0, 0.0]  # a turn begins after it is given, and ends before that is known here
    for _ in range(3):
        for i, program in enumerate(programs):
            start = time.perf_counter()
            program.turn()
            given[i] += time.perf_counter() - start
    a, b = ([float(line.split()[-1]) for line in program.lines] for program in programs)
    assert sorted(a[:3] + b[:3]) == [a[0], b[0], a[1], b[1], a[2], b[2]]
    assert 0.3 <= a[3] < given[0] and 0.3 <= b[3] < given[1]
    with pytest.raises(SystemExit, match="(?s)error: .*NameError"):
        Program([sys.executable, "-c", "oops"])


def test_a_script_whose_actors_play_while_it_learns(ours):
    with pytest.raises(SystemExit, match="^error: ppo_atari_cleanba.py: its actors"):
        ours.load("ppo_atari_cleanba.py", 1, [])


@pytest.mark.parametrize("slow", ["environment", "inference", "learning"])
def test_a_slow_phase_has_the_larger_share(ours, stopwatch, monkeypatch, slow):
    """All but what reading the time takes; and all of them together are no more than the whole."""

    class Slow(Clock):
        def step(self, action):
            stopwatch.passes(1.0 * (slow == "environment"))
            return super().step(action)

    def forward(agent, obs):
        stopwatch.passes(2.0 * (slow == ("learning" if torch.is_grad_enabled() else "inference")))
        return original(agent, obs)

    original = PPO.module.Agent.forward
    monkeypatch.setattr(PPO.module.Agent, "forward", forward)
    put_in_place_of_games(PPO, lambda images, index: Slow(images), monkeypatch.setattr)
    module, args = ours.load("ppo.py", 3, "--num-envs 2 --num-steps 8 --update-epochs 2".split())
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n\n"))
    result = ours.speed(module, args, ours.Turns(), 1, 2, 1)
    shares = {name: result[name] for name in ("environment", "inference", "learning")}
    # of a rollout's values the last belong to the learning: they are those of the state after the last step
    expected = {"environment": 1.0, "inference": 8 / 9, "learning": 1.0}[slow]
    assert shares[slow] == pytest.approx(expected, abs=0.01)
    assert min(shares.values()) > 0 and sum(shares.values()) <= 1
    seconds = {"environment": 8 * 2 * 1.0, "inference": 9 * 2.0, "learning": 8 * 2.0}[slow]  # of an update
    assert result["steps_per_second"] == pytest.approx(2 * 8 / seconds, rel=0.01)


def test_the_speed_of_the_environments_alone(ours, stopwatch):
    """Two that take a tenth of a second each for a step, through half a second at least and through a rollout."""

    class Slow(Clock):
        def step(self, action):
            stopwatch.passes(0.1)
            self.count = getattr(self, "count", 0) + 1
            return super().step(action)

    same_step = gym.vector.AutoresetMode.SAME_STEP
    envs = gym.vector.SyncVectorEnv([lambda: Slow(images=False)] * 2, autoreset_mode=same_step)
    for num_steps, taken in ((1, 3), (50, 50)):
        before = getattr(envs.envs[0], "count", 0)
        speed = ours.steps_alone(envs, SimpleNamespace(seed=1, num_envs=2, num_steps=num_steps))
        assert envs.envs[0].count - before == taken and speed == pytest.approx(10, rel=0.05)


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


def test_a_run_of_it(tmp_path, cuda_build):
    setting = "ppo.py --num-envs 2 --num-steps 32"
    arguments = [ROOT / "benchmark/speed", setting, *"--no-sb3 --repeats 1 --turns 2 --warmup 1 --out table".split()]
    status, output, errors = finish(start(arguments, tmp_path, PYTHONPATH=str(cuda_build)))
    assert (status, errors) == (0, "")
    text, report = (tmp_path / "table.md").read_text(), json.loads((tmp_path / "table.json").read_text())
    assert text in output and f"| {setting} |" in text and "SB3" not in text and "torch 2.13.0+cu130" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table.json", "table.md"]
    (run,) = report["settings"][0]["runs"]
    assert run["ours"]["args"]["num_steps"] == 32
    assert 0 < run["ours"]["environment"] + run["ours"]["inference"] + run["ours"]["learning"] <= 1
    assert run["limit"]["environment_steps_per_second"] > 0
    # each of the 64 rows, in each of 4 epochs: 2 products in the first layers and 3 in the others, of both networks
    products = 2 * (4 * 64) * 2 + (2 * 64 * 64 + 64 * 2 + 64) * 3
    assert run["limit"]["operations_per_update"] == 64 * 4 * 2 * products
