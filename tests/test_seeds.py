"""ppo_seeds.py: each agent of a process makes its own run of ppo.py, whatever agents are beside it."""

import json
import math

import in_process
import numpy as np
import processes
import pytest
import script_table
import torch
from in_process import patched
from rounding import ROUNDING
from run_files import checkpoint, equal, scalars
from script_table import PPO, ROOT, SEEDS

import enjoy
import ppo_seeds
from benchmark import collect

TINY = "--num-steps 16 --total-timesteps 640"  # ten updates


@pytest.fixture
def float64():
    """Everything that a script computes in torch is float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with patched((torch.Tensor, "float", torch.Tensor.double)):
        yield
    torch.set_default_dtype(before)


def train_agents(options, folder):
    """The folders of the agents of a run of ppo_seeds.py, in their order."""
    started = []
    start = ppo_seeds.Run.start

    def start_and_keep(run, *args, **parts):
        start(run, *args, **parts)
        started.append(folder / run.folder)

    with patched((ppo_seeds.Run, "start", start_and_keep)):
        in_process.train(SEEDS, options, folder)
    return started


def train_alone(agent, options, folder):
    """The folder of the run of ppo.py with the options of the agent in a folder."""
    args = json.loads((agent / "run.json").read_text())["args"]
    for name in ppo_seeds.OPTIONS_OF_AGENTS:
        if name != "resume":
            options += f" --{name.replace('_', '-')} {args[name]}"
    return in_process.train(PPO, options, folder)


def difference(one, other):
    """The largest difference of two states of parts, {part: {name: tensor}}, which must have the same names."""
    assert one.keys() == other.keys()
    largest = 0.0
    for part, tensors in one.items():
        assert list(tensors) == list(other[part])
        for name, tensor in tensors.items():
            largest = max(largest, (tensor.double() - other[part][name].double()).abs().max().item())
    return largest


def assert_same_runs(agents, options, folder, bound):
    """That each agent ended where its own run of ppo.py does, and logged the same."""
    for k, agent in enumerate(agents):
        alone = train_alone(agent, options, folder / f"alone{k}")
        ours, its_own = checkpoint(agent), checkpoint(alone)
        assert ours["returns"] == its_own["returns"]
        assert difference(ours["parts"], its_own["parts"]) < bound
        sizes = [max(folder.glob("checkpoint_*")).stat().st_size for folder in (agent, alone)]
        assert abs(sizes[0] - sizes[1]) < 10_000  # it holds no other agent's weights, which have 100,000 bytes
        log, its_log = scalars(agent), scalars(alone)
        assert log.keys() == its_log.keys()
        for tag in log.keys() - {"charts/SPS"}:
            np.testing.assert_allclose(log[tag], its_log[tag], rtol=1e-4, atol=1e-4, err_msg=tag)


@pytest.mark.parametrize(
    ("agents", "options"),
    [
        (1, "--seed 3 --learning-rate 1e-3 --clip-coef 0.05"),
        (3, "--seeds 1 2 3 --anneal-clip"),
        (4, "--gamma 0.9 0.99 --gae-lambda 0.8 1.0"),
        (8, "--clip-coef 0.02 0.2 --ent-coef 0.0 0.1 --vf-coef 0.05 0.5"),
        (10, "--seeds 1 2 3 4 5 --learning-rate 1e-3 2.5e-4"),
    ],
)
def test_an_agent_equals_its_own_run(agents, options, float64, tmp_path):
    folders = train_agents(f"{TINY} {options}", tmp_path)
    assert len(folders) == agents
    shared = f"{TINY} --anneal-clip" if "--anneal-clip" in options else TINY
    assert_same_runs(folders, shared, tmp_path, 1e-9)
    ends = [checkpoint(folder)["parts"]["agent"]["policy.weight"] for folder in folders]
    assert all((one - other).abs().max() > 1e-6 for i, one in enumerate(ends) for other in ends[:i])


def test_an_agent_equals_its_own_run_where_episodes_are_cut(float64, tmp_path):
    options = "--env-id MountainCar-v0 --num-envs 2 --num-steps 128 --total-timesteps 1280 --bootstrap-truncated"
    assert_same_runs(train_agents(f"{options} --gamma 0.9 0.99", tmp_path), options, tmp_path, 1e-9)


def test_an_agent_equals_its_own_run_in_float32(tmp_path):
    options = "--num-steps 16 --total-timesteps 192"
    assert_same_runs(train_agents(f"{options} --seeds 1 2 3", tmp_path), options, tmp_path, ROUNDING)


def test_an_agent_that_fails_ends_alone_and_is_named(capsys, float64, tmp_path):
    """A learning rate of 1e300 makes its weights infinite in the first update."""
    with pytest.raises(SystemExit) as end:
        train_agents(f"{TINY} --learning-rate 1e-3 1e300 2e-3", tmp_path)
    assert end.value.code == 1
    folders = sorted((tmp_path / "runs").iterdir())
    [failed] = [folder for folder in folders if "1e+300" in folder.name]
    errors = capsys.readouterr().err
    assert f"in update 1; {failed.relative_to(tmp_path)} ends here" in errors and errors.count("ends here") == 1
    assert checkpoint(failed)["global_step"] == 0
    [(step, loss)] = scalars(failed)["losses/policy_loss"]
    assert step == 64 and not math.isfinite(loss)
    others = [folder for folder in folders if folder != failed]
    assert len(others) == 2
    assert_same_runs(others, TINY, tmp_path, 1e-9)


def test_a_process_without_agents_left_ends(tmp_path):
    with pytest.raises(SystemExit, match="no agent is left"):
        train_agents(f"{TINY} --learning-rate inf", tmp_path)


def test_agents_go_on_side_by_side_alone_or_under_ppo(tmp_path):
    """And their folders are those of runs to enjoy.py and collect.py."""
    first, second = train_agents(f"{TINY} --seeds 1 2 --learning-rate 1e-3", tmp_path)
    before = [checkpoint(folder) for folder in (first, second)]
    folders = " ".join(str(folder.relative_to(tmp_path)) for folder in (first, second))
    assert train_agents(f"--resume {folders} --total-timesteps 1280", tmp_path) == [first, second]
    for seed, folder, old in zip((1, 2), (first, second), before, strict=True):
        state = checkpoint(folder)
        assert state["global_step"] == 1280 and len(scalars(folder)["charts/SPS"]) == 20
        assert state["args"]["seed"] == seed and state["args"]["learning_rate"] == 1e-3
        assert not equal(state["parts"], old["parts"])
        about = collect.describe(folder)
        assert about["script"] == "ppo_seeds" and about["seed"] == seed and about["options"]["learning_rate"] == 1e-3
        assert collect.read(folder, about)

    alone = train_agents(f"--resume {first.relative_to(tmp_path)} --total-timesteps 1920", tmp_path)
    assert alone == [first] and checkpoint(first)["global_step"] == 1920
    state = checkpoint(second)
    assert len(enjoy.enjoy(enjoy.Args(second, episodes=1))) == 1

    [file] = second.glob("checkpoint_000000001280.pt")
    with in_process.loaded_parts(PPO) as loaded:
        under_ppo = in_process.train(PPO, f"--resume {file} --total-timesteps 1920", tmp_path)
    assert equal(dict(loaded), state["parts"])
    assert checkpoint(under_ppo)["global_step"] == 1920 and checkpoint(under_ppo)["args"]["seed"] == 2


def test_the_table_of_agents(capsys, tmp_path):
    folders = train_agents(f"{TINY} --seeds 1 2 --gamma 0.9 0.99 --total-timesteps 64", tmp_path)
    table = "seed  gamma\n   1    0.9\n   2    0.9\n   1   0.99\n   2   0.99\n"
    assert capsys.readouterr().out.startswith(table)
    made = [json.loads((folder / "run.json").read_text())["args"] for folder in folders]
    assert [(args["seed"], args["gamma"]) for args in made] == [(1, 0.9), (2, 0.9), (1, 0.99), (2, 0.99)]


def test_the_names_of_folders_differ_even_where_options_do_not_fit(tmp_path):
    long = "--max-grad-norm 0.123456789123456 --gae-lambda 0.9123456789123456 --learning-rate 0.00123456789123456"
    folders = train_agents(f"{TINY} {long} --vf-coef 0.1 0.2 --total-timesteps 64", tmp_path)
    assert len(set(folders)) == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("--seeds 1 1", "--seed needs values that differ"),
        ("--seeds", "--seed needs values that differ"),
        ("--seeds 1 2 --track", "--track needs a single agent"),
        ("--seeds 1 2 --target-kl 0.01", "--target-kl ends the update of each agent at another epoch"),
        ("--gamma 0.9 1.1", "--gamma and --gae-lambda must be in"),
        ("--resume a b --seeds 1 2", "an agent that is resumed keeps its options"),
    ],
)
def test_options_that_cannot_be(options, error, tmp_path):
    with pytest.raises(SystemExit, match=error):
        train_agents(f"{TINY} {options}", tmp_path)
    assert not (tmp_path / "runs").exists()


def test_runs_that_cannot_go_on_side_by_side(tmp_path):
    [one] = train_agents(f"{TINY} --total-timesteps 128", tmp_path)
    [longer] = train_agents(f"{TINY} --seed 2 --total-timesteps 256", tmp_path)
    [other] = train_agents(f"{TINY} --seed 3 --total-timesteps 128 --max-grad-norm 1", tmp_path)
    with pytest.raises(SystemExit, match="is at step 128, .* at step 256"):
        train_agents(f"--resume {one} {longer} --total-timesteps 640", tmp_path)
    with pytest.raises(SystemExit, match="differ in max_grad_norm"):
        train_agents(f"--resume {one} {other} --total-timesteps 640", tmp_path)


def test_a_layer_that_cannot_be_stacked():
    agents = [torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3)) for _ in range(2)]
    with pytest.raises(SystemExit, match="1 has parameters or buffers; only nn.Linear"):
        ppo_seeds.stack(agents)


@script_table.slow
def test_compiled_agents_are_the_same_within_rounding(tmp_path):
    options = f"{TINY} --seeds 1 2 --learning-rate 1e-3 2e-3 --total-timesteps 192"
    plain = sorted(train_agents(options, tmp_path / "plain"))
    (tmp_path / "compiled").mkdir()
    process = processes.start([ROOT / "ppo_seeds.py", *options.split(), "--compile"], tmp_path / "compiled")
    status, _, errors = processes.finish(process)
    assert status == 0, errors
    compiled = sorted((tmp_path / "compiled/runs").iterdir())
    for one, other in zip(plain, compiled, strict=True):
        assert difference(checkpoint(one)["parts"], checkpoint(other)["parts"]) < ROUNDING
