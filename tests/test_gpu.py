"""benchmark/gpu: scripts with CUDA graphs, as far as a machine without a GPU can run them."""

import contextlib
import importlib.util
from types import SimpleNamespace

import pytest
import torch
from in_process import train
from run_files import checkpoint, same_weights, scalars
from script_table import CONTINUOUS, ENVPOOL

from benchmark.gpu import turns
from benchmark.results import ROOT
from recipes import recipe as recipe_files

DIFFS = sorted((ROOT / "benchmark" / "gpu").glob("*.diff"))


def captured(file, folder):
    """The module of a script with a diff."""
    recipe = recipe_files.read(file)
    script = folder / f"captured_{recipe.script.name}"
    script.write_text(recipe_files.apply(recipe, recipe.script.read_text()))
    spec = importlib.util.spec_from_file_location(script.stem, script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", DIFFS, ids=lambda file: file.stem)
def test_a_graph_replays_what_it_has_recorded(file, tmp_path, monkeypatch):
    """With a stand-in for CUDA, whose replay runs the function on the recorded arguments and fills its results."""
    module = captured(file, tmp_path)
    registered = []
    calls = []

    class Recording:
        def register_generator_state(self, generator):
            registered.append(generator)

        def replay(self):
            for name, result in graph.function(**graph.arguments).items():
                graph.results[name].copy_(result)

    def function(x, rate):
        calls.append(x)
        return {"product": x * rate, "sum": x.sum()}

    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recording)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, capture_error_mode: contextlib.nullcontext())
    generator = SimpleNamespace(device=torch.device("cuda"))
    graph = module.Graph(function, generator)
    inputs = [(torch.arange(3.0) + i, torch.tensor(0.5 * i)) for i in range(8)]
    results = [graph(x=x, rate=rate) for x, rate in inputs]
    for (x, rate), result in zip(inputs, results, strict=True):
        assert torch.equal(result["product"], x * rate) and torch.equal(result["sum"], x.sum())
    assert registered == [generator] and len(calls) == 8 + 1  # the recording runs the function once, too
    assert all(x is graph.arguments["x"] for x in calls[graph.WARM_UP :])
    with pytest.raises(AssertionError):
        graph(x=torch.arange(1.0), rate=torch.tensor(1.0))


@pytest.mark.parametrize(
    "script, options",
    [
        (CONTINUOUS, "--env-id Pendulum-v1 --num-envs 2 --num-steps 32 --num-minibatches 4 --anneal-clip"),
        pytest.param(ENVPOOL, "--env-id Breakout-v5 --num-envs 4 --num-steps 16", marks=pytest.mark.slow),
    ],
    ids=["continuous_action", "atari_envpool"],
)
def test_on_a_cpu_it_is_the_run_of_the_script(script, options, tmp_path):
    """Bit for bit, although the learning rate and the clip range are tensors."""
    module = captured(ROOT / "benchmark" / "gpu" / f"{script.name.removeprefix('ppo_')}.diff", tmp_path)
    runs = []
    for each in (script, SimpleNamespace(name=module.__name__, module=module)):
        folder = tmp_path / str(len(runs))
        runs.append(train(each, f"{options} --total-timesteps 256 --no-cuda", folder))
    assert same_weights(*map(checkpoint, runs))
    assert scalars(runs[0])["losses/policy_loss"] == scalars(runs[1])["losses/policy_loss"]


def test_their_speed():
    """LeanRL prints its own; CleanRL a mean since the start: of 6 updates of 10 s, then 6 of 5 s, 100 steps each."""
    assert turns.steps_per_second_of_theirs("x\nspeed:  12.5 sps, a\nspeed:  6809.0 sps, b") == 6809.0
    ends = [10 * k for k in range(1, 7)] + [60 + 5 * k for k in range(1, 7)]
    printed = "\n".join(f"SPS: {round(1e6 * k / end)}" for k, end in enumerate(ends, 1))
    speed = turns.steps_per_second_of_theirs(printed)
    assert speed == pytest.approx(8e6 / (90 - 40), rel=1e-4)
