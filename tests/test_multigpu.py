"""ppo_atari_multigpu.py: R ranks make the run of one process, decide alike, and end or go on together."""

import importlib
import inspect
import os
import re
import signal
import sys
import time

import numpy as np
import pytest
import torch
from ranks import SMALL, Ranks, said, script
from toy_envs import ROOT, checkpoint, finish, needs_procgen, newest_run, scalars, start

import ppo_atari_envpool

tool = importlib.import_module("recipes.__main__")
ONE_UPDATE = f"{SMALL} --total-timesteps 128"  # of 16 gradient steps


def in_float64(module=script):
    """The agent and its loss compute in float64 from now on."""
    init = module.Agent.__init__

    def doubled(agent, *args):
        init(agent, *args)
        agent.dtype = torch.float64

    torch.set_default_dtype(torch.float64)
    module.Agent.__init__, torch.Tensor.float = doubled, torch.Tensor.double


def recorded(folder, float64=False, module=script):
    """A change for `Ranks`: each rank writes its rollout, its first gradient and its steps' own and common KL."""

    def change(rank):
        if float64:
            in_float64(module)
        seen, norm, total = {"steps": [], "kl": []}, torch.nn.utils.clip_grads_with_norm_, module.sum_over_ranks
        make_envs, gae = module.make_envs, module.gae

        def clip(parameters, *args):
            seen.setdefault("gradient", torch.cat([p.grad.flatten() for p in parameters]))
            norm(parameters, *args)

        def sum_over_ranks(agent, stats, share):
            own, stats = stats["approx_kl"], total(agent, stats, share)
            seen["kl"].append((float(own), float(stats["approx_kl"])))
            torch.save(seen, folder / f"seen_{rank}")
            return stats

        def make_envs_seen(*args):
            envs = make_envs(*args)
            step = envs.step

            def step_seen(actions):
                answer = step(actions)
                seen["steps"].append([torch.from_numpy(np.array(x)) for x in (actions, *answer[:4])])
                return answer

            envs.step = step_seen
            return envs

        def gae_seen(rewards, values, *args):
            seen.setdefault("values", torch.from_numpy(np.array(values)))
            return gae(rewards, values, *args)

        torch.nn.utils.clip_grads_with_norm_, module.sum_over_ranks = clip, sum_over_ranks
        module.make_envs, module.gae = make_envs_seen, gae_seen

    return change


def seen(folder, ranks):
    return [torch.load(folder / f"seen_{rank}", weights_only=True) for rank in range(max(ranks, 1))]


def weights(folder):
    return torch.cat([weight.flatten() for weight in checkpoint(newest_run(folder))["parts"]["agent"].values()])


def run(ranks, options, folder, change=None, module=script):
    """Runs to the end, which must be a good one; returns the newest run's folder."""
    group = Ranks(ranks, options, folder, change, module)
    assert group.wait(300) == [0] * max(ranks, 1), group.said(0)
    return newest_run(folder)


@pytest.mark.parametrize("float64", [False, True], ids=["float32", "float64"])
@pytest.mark.slow
def test_an_update_of_r_ranks_is_that_of_one_process(float64, tmp_path):
    """The rollout bit for bit; the gradient of its first minibatch, and the weights after 16 steps, to rounding."""
    # float32 adds in another order: under 1e-6 on an Intel, 2.9e-6 with 4 ranks on an AMD, in the value head's bias
    gradient_limit, weights_limit = (1e-12, 1e-12) if float64 else (1e-5, 2e-6)
    for ranks in (0, 1, 2, 4):
        folder = tmp_path / str(ranks)
        run(ranks, ONE_UPDATE, folder, recorded(folder, float64))
        parts = seen(folder, ranks)
        together = zip(*(p["steps"] for p in parts), strict=True)
        steps = [torch.cat(each) for step in together for each in zip(*step, strict=True)]
        found = {"weights": weights(folder), "gradient": parts[0]["gradient"]}
        values = torch.cat([p["values"] for p in parts], dim=1)
        if ranks == 0:
            first_steps, first_values, first = steps, values, found
            continue
        assert len(parts[0]["kl"]) == 16 and len(steps) == len(first_steps) == 16 * 5
        assert all(torch.equal(one, other) for one, other in zip(steps, first_steps, strict=True))
        assert (values - first_values).abs().max() < gradient_limit
        for p in parts:
            assert torch.equal(p["gradient"], parts[0]["gradient"])  # the same bits on all
        largest = first["gradient"].abs().max()
        assert (found["gradient"] - first["gradient"]).abs().max() < gradient_limit * largest
        assert (found["weights"] - first["weights"]).abs().max() < weights_limit


@pytest.mark.slow
def test_one_process_is_the_parent(tmp_path):
    """Without torchrun, and as one rank: the same weights and log as ppo_atari_envpool.py's, bit for bit."""
    options = f"{SMALL} --total-timesteps 384"
    parent = Ranks(0, options, tmp_path / "parent", module=ppo_atari_envpool)
    assert parent.wait() == [0], parent.said(0)
    logs = {"parent": scalars(newest_run(tmp_path / "parent"))}
    for ranks in (0, 1):
        logs[ranks] = scalars(run(ranks, options, tmp_path / str(ranks)))
        assert torch.equal(weights(tmp_path / str(ranks)), weights(tmp_path / "parent"))
    for log in logs.values():
        del log["charts/SPS"]
        assert log == logs["parent"]


RECIPES = {  # options of two updates
    "atari": "--num-envs 4 --num-steps 16 --total-timesteps 128",
    "lstm": "--num-envs 8 --num-steps 8 --total-timesteps 128",
    "continuous": "--env-id Hopper-v5 --num-envs 4 --num-steps 32 --total-timesteps 256 --num-minibatches 4",
    "procgen": "--num-envs 4 --num-steps 8 --total-timesteps 64 --num-minibatches 4",
}


def row_by_row(change):
    """Adds to a change for `Ranks`: in a rollout a matrix product of several rows rounds each as if it were alone."""

    def changed(rank):
        change(rank)
        forward = torch.nn.Linear.forward

        def by_rows(layer, x):
            return forward(layer, x) if torch.is_grad_enabled() else torch.stack([forward(layer, row) for row in x])

        torch.nn.Linear.forward = by_rows

    return changed


@pytest.fixture
def made(family, tmp_path, monkeypatch):
    """The script that a recipe torchrun-<family> makes, as a module."""
    if family == "procgen":
        needs_procgen()
    recipe = tool.read(ROOT / f"recipes/with/torchrun-{family}.diff")
    name = f"ranks_{family}"
    (tmp_path / f"{name}.py").write_text(tool.apply(recipe, recipe.script.read_text()))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module(name)
    del sys.modules[name]


@pytest.mark.parametrize("family", RECIPES)
@pytest.mark.slow
def test_recipes_make_ranks_of_other_scripts(family, made, tmp_path):
    """2 ranks beside one process: the first rollout bit for bit, and its statistics; the weights to float64's rounding.

    In float32 rounding may grow in two updates: there are minibatches whose gradient is small beside its terms."""
    options, found = f"{RECIPES[family]} --update-epochs 2 --save-every 1 --threads 1", {}
    for ranks in (0, 2):
        folder = tmp_path / str(ranks)
        last = run(ranks, options, folder, row_by_row(recorded(folder, True, made)), made)
        parts = seen(folder, ranks)
        together = zip(*(p["steps"] for p in parts), strict=True)
        steps = [torch.cat(each) for step in together for each in zip(*step, strict=True)]
        found[ranks] = steps[: len(steps) // 2], checkpoint(last, 0), checkpoint(last)
    (steps, first, last), (other_steps, other_first, other_last) = found.values()
    assert all(torch.equal(one, other) for one, other in zip(steps, other_steps, strict=True))
    assert first["parts"].get("envs") == other_first["parts"].get("envs")
    assert first["update"] == 1 and last["update"] == 2
    assert torch.equal(last["generators"]["torch"], other_last["generators"]["torch"])
    for one, other in ((first, other_first), (last, other_last)):
        for name, weight in one["parts"]["agent"].items():
            assert (weight - other["parts"]["agent"][name]).abs().max() < 1e-9


@pytest.mark.parametrize("family", RECIPES)
def test_recipes_follow_the_script(family, made):
    """What starts ranks, and what sums over them, is ppo_atari_multigpu.py's; for ppo_atari.py all of `train` is."""
    names = ["every_rank", "sum_over_ranks"] + ["gather", "ppo_loss", "clipped_gradient", "train"] * (family == "atari")
    for name in names:
        assert inspect.getsource(getattr(made, name)) == inspect.getsource(getattr(script, name))


@pytest.mark.parametrize("family", ["continuous"])
def test_a_signal_to_ranks_and_their_children(made, tmp_path):
    """As torchrun sends it, to the whole process group: the environments' processes leave the rank to end the run."""
    options = "--env-id Hopper-v5 --async-envs --num-envs 4 --num-steps 16 --num-minibatches 4 --save-every 1"
    group = Ranks(2, f"{options} --total-timesteps 1000000", tmp_path, lambda rank: os.setpgrp(), made)
    wait_for_update(tmp_path, 64)
    for pid in group.pids:
        os.killpg(pid, signal.SIGTERM)
    assert group.wait(60) == [0, 0], group.said(0)
    assert group.said(0).splitlines()[-1] == f"stopped; --resume runs/{newest_run(tmp_path).name} goes on"


@pytest.mark.slow
def test_a_rank_without_rows(tmp_path):
    """Minibatches of 4 rows: now and then one of 2 ranks has none. Its part is 0, not the NaN of an empty mean."""
    options = "--num-envs 2 --num-steps 8 --total-timesteps 64 --threads 1"
    for ranks in (0, 2):
        run(ranks, options, tmp_path / str(ranks), recorded(tmp_path / str(ranks)))
    assert any(np.isnan(own) for own, _ in seen(tmp_path / "2", 2)[0]["kl"])
    assert (weights(tmp_path / "2") - weights(tmp_path / "0")).abs().max() < 1e-5


@pytest.mark.slow
def test_ranks_stop_their_epochs_together(tmp_path):
    """Where at an epoch's end one rank's own KL is above the limit, and the other's below: all as one process does."""
    run(2, ONE_UPDATE, tmp_path / "free", recorded(tmp_path / "free"))
    ends = [[p["kl"][step] for p in seen(tmp_path / "free", 2)] for step in (3, 7, 11)]
    (one, common), (other, _) = max(ends, key=lambda end: abs(end[0][0] - end[1][0]))
    for name, limit in {"stop": (min(one, other) + common) / 2, "go": (max(one, other) + common) / 2}.items():
        assert min(one, other) < limit < max(one, other)
        counts = []
        for ranks in (0, 2):
            folder = tmp_path / f"{name}_{ranks}"
            run(ranks, f"{ONE_UPDATE} --target-kl {limit}", folder, recorded(folder))
            counts += [len(p["kl"]) for p in seen(folder, ranks)]
        assert len(set(counts)) == 1, counts


@pytest.mark.slow
def test_rank_0_alone_says_and_writes_something(tmp_path):
    """One folder, one log, of all environments' episodes as one process has them; nothing from the others."""
    options = "--num-envs 8 --num-steps 256 --total-timesteps 2048 --update-epochs 1 --threads 1"
    logs = {ranks: scalars(run(ranks, options, tmp_path / str(ranks))) for ranks in (0, 2)}
    for name in ("charts/episodic_return", "charts/episodic_length"):
        assert logs[0][name] == logs[2][name] and len(logs[0][name]) > 8
    losses = {name for name in logs[0] if name.startswith("losses")}
    assert logs[0].keys() == logs[2].keys() and len(losses) == 9
    for name in losses:
        assert logs[2][name] == [(2048, pytest.approx(logs[0][name][0][1], rel=1e-4, abs=1e-6))]
    assert len(list((tmp_path / "2/runs").iterdir())) == 1
    rank_0, rank_1 = [said(tmp_path / "2", rank) for rank in (0, 1)]
    assert "watch it with" in rank_0 and "2.05k/2.05k steps" in rank_0 and rank_1 == ""


def test_any_number_of_ranks_goes_on(tmp_path):
    """2 ranks, then 1, then 4, in one folder; what 4 ranks make of a checkpoint is what one process makes of it."""
    options = f"{SMALL} --update-epochs 1 --no-anneal-lr --total-timesteps"
    folder = run(2, f"{options} 256", tmp_path)
    assert run(0, f"{options} 384 --resume {folder}", tmp_path) == folder
    before = checkpoint(folder)
    named = sorted(folder.glob("checkpoint_*"))[-1]
    run(0, f"{options} 512 --resume {named} --runs-folder other", tmp_path)
    assert run(4, f"{options} 512 --resume {folder}", tmp_path) == folder
    other = next((tmp_path / "other").iterdir())
    one, four = checkpoint(other), checkpoint(folder)
    assert one["global_step"] == four["global_step"] == 512 and before["global_step"] == 384
    assert torch.equal(one["generators"]["torch"], four["generators"]["torch"])
    for name, weight in one["parts"]["agent"].items():
        assert (weight - four["parts"]["agent"][name]).abs().max() < 2e-6
    log = scalars(folder)
    assert [step for step, _ in log["losses/policy_loss"]] == [128, 256, 384, 512]


def test_a_rank_that_dies_ends_the_others(tmp_path):
    group = Ranks(2, f"{SMALL} --total-timesteps 1000000", tmp_path)
    wait_for_update(tmp_path, 128)
    os.kill(group.pids[1], signal.SIGKILL)
    assert group.wait(30) == [1, -signal.SIGKILL]
    assert group.said(0).splitlines()[-1] == (
        "error: rank 0 lost another rank; --resume goes on from the newest checkpoint"
    )


def test_a_signal_to_one_rank_stops_all(tmp_path):
    """After the update, with a checkpoint; no rank fails, as torchrun would then start all again."""
    group = Ranks(2, f"{SMALL} --total-timesteps 1000000", tmp_path)
    wait_for_update(tmp_path, 128)
    os.kill(group.pids[1], signal.SIGTERM)
    assert group.wait(60) == [0, 0]
    assert group.said(0).splitlines()[-1] == f"stopped; --resume runs/{newest_run(tmp_path).name} goes on"
    last = checkpoint(newest_run(tmp_path))
    assert scalars(newest_run(tmp_path))["losses/policy_loss"][-1][0] == last["global_step"] == last["update"] * 128


def test_ranks_with_different_weights_end(tmp_path):
    def change(rank):
        total = script.sum_over_ranks

        def sum_over_ranks(agent, stats, share):
            stats = total(agent, stats, share)
            if rank == 1:
                next(agent.parameters()).grad.mul_(1 + 1e-6)
            return stats

        script.sum_over_ranks = sum_over_ranks

    group = Ranks(2, ONE_UPDATE, tmp_path, change)
    assert group.wait() == [1, 1]
    assert group.said(0).splitlines()[-1] == "error: after update 1 the ranks have different weights"


def test_a_reward_of_one_rank_that_is_no_number_ends_all(tmp_path):
    def change(rank):
        step = script.EnvPool.step

        def broken(envs, actions):
            obs, rewards, *others = step(envs, actions)
            return obs, rewards * (np.nan if rank == 1 else 1.0), *others

        script.EnvPool.step = broken

    group = Ranks(2, ONE_UPDATE, tmp_path, change)
    assert group.wait() == [1, 1]
    last = group.said(0).splitlines()[-1]
    assert last == f"error: NaN or inf in losses/policy_loss of update 1 of runs/{newest_run(tmp_path).name}"


@pytest.mark.parametrize(
    "options, environment, error",
    [
        ("--num-envs 3", {}, "error: --num-envs 3 cannot be shared equally among 2 ranks"),
        ("--num-steps 0", {}, "error: --num-steps must be from 1 to 1e+06, not 0"),
        ("", {"TORCHELASTIC_MAX_RESTARTS": 3}, "error: --max-restarts needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, "),
    ],
)
def test_what_cannot_work_is_one_line_of_rank_0(options, environment, error, tmp_path):
    group = Ranks(2, f"{options} --num-minibatches 3", tmp_path, **environment)
    assert group.wait() == [1, 1]
    assert group.said(0).startswith(error) and group.said(0).count("\n") == 1 and group.said(1) == ""
    assert not list(tmp_path.glob("runs/*"))


def wait_for_update(folder, step, seconds=120):
    """Waits until the newest run in `folder` has a checkpoint of that step or a later one; returns the last's step."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        steps = [int(re.search(r"\d+", path.stem)[0]) for path in folder.glob("runs/*/checkpoint_*.pt")]
        if steps and max(steps) >= step:
            return max(steps)
        time.sleep(0.05)
    raise TimeoutError(f"no checkpoint of step {step}")


def test_torchrun_restarts_the_ranks_and_stops_them(tmp_path):
    """A killed rank: all go on from the newest checkpoint, in the same folder. SIGTERM to torchrun: all stop.

    The run began from a checkpoint that was made with another --runs-folder."""
    first = Ranks(0, f"{ONE_UPDATE} --runs-folder {tmp_path / 'other'}", tmp_path)
    assert first.wait(100) == [0]
    [file] = tmp_path.glob("other/*/checkpoint_*.pt")
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 1".split()
    options = [*torchrun, ROOT / "ppo_atari_multigpu.py", *SMALL.split(), "--total-timesteps", "1000000"]
    options += ["--resume", file]
    with open(tmp_path / "errors", "w") as errors:
        process = start(options, tmp_path, stderr=errors, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        killed_at = wait_for_update(tmp_path, 256)
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
            os.kill(int(children.read().split()[1]), signal.SIGKILL)
        wait_for_update(tmp_path, killed_at + 384)
        process.send_signal(signal.SIGTERM)
        _, output, _ = finish(process, 60)
    [folder] = (tmp_path / "runs").iterdir()
    assert output.count(f"runs/{folder.name}: on ") == 2
    assert output.splitlines()[-1] == f"stopped; --resume runs/{folder.name} goes on"
    last = checkpoint(folder)
    steps = [step for step, _ in scalars(folder)["losses/policy_loss"]]
    assert steps == list(range(256, last["global_step"] + 1, 128))
