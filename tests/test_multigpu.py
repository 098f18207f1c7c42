"""ppo_atari_multigpu.py: R ranks make the run of one process, decide alike, and end or continue together."""

import itertools
import os
import signal
import sys
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from processes import finish, start
from ranks import SMALL, Ranks, in_float64, run, script, wait_for_step, weights
from run_files import checkpoint, newest_run, scalars
from script_table import ROOT

import ppo_atari_envpool

ONE_UPDATE = f"{SMALL} --total-timesteps 128"  # of 16 gradient steps
ENDLESS = f"{SMALL} --total-timesteps 1000000"


def record(folder, float64=False):
    """A change for `Ranks`: each rank writes its steps, its first gradient, and the KL divergences."""

    def change(rank):
        if float64:
            in_float64()
        seen, total, step = {"steps": [], "kl": []}, script.sum_over_ranks, script.EnvPool.step

        def sum_over_ranks(tensors, share):
            *gradients, _, _, _, _, kl, _, _ = tensors  # seven scalars, of which approx_kl is the fifth
            own = float(kl)
            total(tensors, share)
            seen["kl"].append((own, float(kl)))
            seen.setdefault("gradient", torch.cat([gradient.flatten() for gradient in gradients]))
            torch.save(seen, folder / f"seen_{rank}")

        def step_seen(envs, actions):
            answer = step(envs, actions)
            seen["steps"].append([torch.from_numpy(np.array(x)) for x in (actions, *answer[:4])])
            return answer

        script.sum_over_ranks, script.EnvPool.step = sum_over_ranks, step_seen

    return change


def seen(folder, ranks):
    return [torch.load(folder / f"seen_{rank}", weights_only=True) for rank in range(max(ranks, 1))]


@pytest.mark.parametrize("float64", [pytest.param(False, marks=pytest.mark.slow), True], ids=["float32", "float64"])
def test_an_update_of_r_ranks_is_that_of_one_process(float64, tmp_path):
    """The rollout bit for bit; the first gradient, the logged KL, and the weights after 16 steps, to rounding."""
    # In float32 a rectified unit, whose input is 0 but for rounding, may count or not: a part of the gradient. The
    # weights then differ by a part of a step of 2.5e-4. Float64 has the tight bound.
    limit = (1e-12, 1e-12) if float64 else (1e-2, 1e-4)  # of the gradient, of the weights
    found = {}
    for ranks in (0, 2, 4) if float64 else (0, 2):
        folder = tmp_path / str(ranks)
        final = weights(run(ranks, ONE_UPDATE, folder, record(folder, float64)))
        parts = seen(folder, ranks)
        together = zip(*(part["steps"] for part in parts), strict=True)
        steps = [torch.cat(each) for step in together for each in zip(*step, strict=True)]
        assert len(steps) == 16 * 5 and all(torch.equal(part["gradient"], parts[0]["gradient"]) for part in parts)
        kl = torch.tensor([common for _, common in parts[-1]["kl"]])
        found[ranks] = steps, parts[0]["gradient"], final, kl
    steps, gradient, final, kl = found[0]
    for other_steps, other_gradient, other_final, other_kl in found.values():
        assert all(torch.equal(one, other) for one, other in zip(steps, other_steps, strict=True))
        assert (other_gradient - gradient).abs().max() < limit[0] * gradient.abs().max()
        assert (other_final - final).abs().max() < limit[1]
        assert (other_kl - kl).abs().max() < limit[1]


@pytest.mark.slow
def test_one_rank_is_the_parent(tmp_path):
    """Without torchrun, and as one rank: the weights and the log of ppo_atari_envpool.py, bit for bit."""
    options = f"{SMALL} --total-timesteps 384"
    parent = run(0, options, tmp_path / "parent", module=ppo_atari_envpool)
    logs = [scalars(parent)]
    for ranks in (0, 1):
        folder = run(ranks, options, tmp_path / str(ranks))
        assert torch.equal(weights(folder), weights(parent))
        logs.append(scalars(folder))
    for log in logs:
        del log["charts/SPS"]
        assert log == logs[0]


def test_rank_0_gives_the_others_its_weights(tmp_path):
    """Other weights and random numbers on rank 1 change nothing; a part may be frozen, and each rank knows the step."""

    def change(rank, factor):
        init, make_run = script.Agent.__init__, script.make_run

        def doubled(agent, *args):
            init(agent, *args)
            agent.trunk.requires_grad_(False)
            with torch.no_grad():
                agent.policy.weight.mul_(factor**rank)
            torch.rand(rank * (factor - 1))

        def made_run(*args):
            run = make_run(*args)
            log_update = run.log_update

            def checked(scalars):
                log_update(scalars)
                assert run.global_step == 128

            run.log_update = checked
            return run

        script.Agent.__init__, script.make_run = doubled, made_run

    one, other = (run(2, ONE_UPDATE, tmp_path / str(factor), partial(change, factor=factor)) for factor in (1, 2))
    assert torch.equal(weights(one), weights(other))


@pytest.mark.slow
def test_a_rank_without_rows(tmp_path):
    """In minibatches of 4 rows one of 2 ranks sometimes has none; its part is 0, and not the NaN of an empty mean."""
    options = "--num-envs 2 --num-steps 8 --total-timesteps 64 --threads 1"
    folders = {ranks: tmp_path / str(ranks) for ranks in (0, 2)}
    one, two = (run(ranks, options, folder, record(folder, float64=True)) for ranks, folder in folders.items())
    assert any(np.isnan(own) for own, _ in seen(tmp_path / "2", 2)[0]["kl"])
    assert (weights(two) - weights(one)).abs().max() < 1e-12


@pytest.mark.slow
def test_ranks_stop_their_epochs_together(tmp_path):
    """A KL limit between the divergence in one rank and that of all stops all ranks where one process stops."""
    run(2, ONE_UPDATE, tmp_path / "free", record(tmp_path / "free"))
    ends = [[part["kl"][step] for part in seen(tmp_path / "free", 2)] for step in (3, 7, 11)]
    (one, common), (other, _) = max(ends, key=lambda end: abs(end[0][0] - end[1][0]))
    for name, limit in {"stop": (min(one, other) + common) / 2, "go": (max(one, other) + common) / 2}.items():
        counts = []
        for ranks in (0, 2):
            folder = tmp_path / f"{name}_{ranks}"
            run(ranks, f"{ONE_UPDATE} --target-kl {limit}", folder, record(folder))
            counts += [len(part["kl"]) for part in seen(folder, ranks)]
        assert len(set(counts)) == 1, counts
        if name == "stop":
            assert counts[0] <= 12  # of 16 steps: the limit was reached after one of the first three epochs


@pytest.mark.slow
def test_only_rank_0_writes(tmp_path):
    """One folder, and one log of the episodes of all environments; rank 1 needs no disk, prints and tracks nothing."""

    def change(rank):
        in_float64()
        sys.modules["wandb"] = SimpleNamespace(init=lambda **settings: print("tracked"))
        if rank == 1:
            os.chdir("/proc/self")  # where nothing can be written

    options = "--num-envs 8 --num-steps 256 --total-timesteps 2048 --update-epochs 1 --threads 1"
    logs = [scalars(run(ranks, options, tmp_path / str(ranks), change)) for ranks in (0, 2)]
    assert logs[0].keys() == logs[1].keys()
    for name, points in logs[0].items():
        if name.startswith("charts/episodic"):
            assert logs[1][name] == points and len(points) > 1
        elif name.startswith("losses"):
            assert logs[1][name] == [(2048, pytest.approx(points[0][1], rel=1e-6))]  # a log is in float32
    assert len(list((tmp_path / "2/runs").iterdir())) == 1
    group = Ranks(2, f"{ONE_UPDATE} --track", tmp_path / "track", change)
    assert group.wait() == [0, 0] and "tracked" in group.said() and group.said(1) == ""


@pytest.mark.slow
def test_any_number_of_ranks_continues(tmp_path):
    """2 ranks, then 1, then 4, in one folder; 4 ranks make of a checkpoint what one process makes of it."""
    options = f"{SMALL} --update-epochs 1 --no-anneal-lr --total-timesteps"
    change = lambda rank: in_float64()  # noqa: E731
    folder = run(2, f"{options} 256", tmp_path, change)
    assert run(0, f"{options} 384 --resume {folder}", tmp_path, change) == folder
    named = sorted(folder.glob("checkpoint_*"))[-1]
    one = run(0, f"{options} 512 --resume {named}", tmp_path, change)
    run(4, f"{options} 512 --resume {folder}", tmp_path, change)
    assert (weights(one) - weights(folder)).abs().max() < 1e-12
    assert checkpoint(folder)["global_step"] == 512
    assert [step for step, _ in scalars(folder)["losses/policy_loss"]] == [128, 256, 384, 512]


@pytest.mark.slow
def test_the_run_of_a_rdzv_id_continues(tmp_path):
    """The newest run of the same id, and of no other."""
    first = run(2, ONE_UPDATE, tmp_path, TORCHELASTIC_RUN_ID="exp/1")
    second = run(2, ONE_UPDATE, tmp_path, TORCHELASTIC_RUN_ID="run[1]*")
    assert first != second
    (second / "rdzv-id").write_text("exp/1")  # a newer run of the first id
    os.utime(first / "rdzv-id", (0, 0))
    group = Ranks(2, f"{SMALL} --total-timesteps 256", tmp_path, TORCHELASTIC_RUN_ID="exp/1")
    assert group.wait() == [0, 0] and f"--rdzv-id exp/1: continues runs/{second.name}" in group.said()
    assert checkpoint(second)["global_step"] == 256 and checkpoint(first)["global_step"] == 128
    group = Ranks(2, f"{SMALL} --total-timesteps 256 --learning-rate 1", tmp_path, TORCHELASTIC_RUN_ID="exp/1")
    assert group.wait()[0] == 1 and "continues" in group.said() and "leaves no rollout" in group.said()
    (second / "rdzv-id").write_text("none")  # what torchrun says without the option, of every run
    assert run(2, ONE_UPDATE, tmp_path, TORCHELASTIC_RUN_ID="none") not in (first, second)


def test_a_rank_that_dies_ends_the_others(tmp_path):
    """Each rank reports its error under its number; there is a checkpoint from the first moment on."""
    group = Ranks(2, f"{ENDLESS} --save-every 0", tmp_path)
    assert wait_for_step(tmp_path, 0) == 0
    time.sleep(2)  # so that, on most machines, the ranks are in the middle of an update
    os.kill(group.pids[1], signal.SIGKILL)
    assert group.wait() == [1, -signal.SIGKILL]
    assert "[rank0]: Traceback" in group.said()


def test_a_signal_to_one_rank_stops_all(tmp_path):
    """After the update, with a checkpoint, and with status 0; further signals change nothing."""
    group = Ranks(2, f"{ENDLESS} --update-epochs 1 --save-every 3", tmp_path)
    wait_for_step(tmp_path, 384)
    for _ in range(20):  # those that arrive together count as one
        os.kill(group.pids[1], signal.SIGTERM)
        time.sleep(0.01)
    assert group.wait() == [0, 0]
    last = checkpoint(newest_run(tmp_path))["global_step"]
    assert scalars(newest_run(tmp_path))["losses/policy_loss"][-1][0] == last > 0


@pytest.mark.parametrize("rank, lines", [(0, 1), (1, 0)])
def test_rank_0_says_once_that_it_stops(rank, lines, capfd):
    run = script.RankRun.__new__(script.RankRun)
    run.rank, run.received = rank, None
    for _ in range(2):
        run.stop(signal.SIGINT, None)
    assert run.received == signal.SIGINT and capfd.readouterr().err.count("stopping after this update") == lines


def test_ranks_end_without_torchrun(tmp_path):
    """As after a signal: a rank that has another parent stops all ranks, with a checkpoint."""

    def change(rank):
        if rank == 1:
            script.os.getppid = itertools.count().__next__  # another parent at every look

    assert checkpoint(run(2, f"{ENDLESS} --save-every 0", tmp_path, change))["global_step"] == 128


@pytest.mark.parametrize(
    "options, environment, error",
    [
        ("--num-envs 3", {}, "error: --num-envs 3 is not a multiple of 2 ranks"),
        ("", {"TORCHELASTIC_MAX_RESTARTS": 1}, "error: --max-restarts needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"),
    ],
)
def test_errors_of_options(options, environment, error, tmp_path):
    group = Ranks(2, f"{SMALL} --total-timesteps 256 {options}", tmp_path, **environment)
    assert group.wait()[0] == 1
    assert error in group.said(), group.said()


@pytest.mark.slow
def test_torchrun(tmp_path):
    """With PYTHONSAFEPATH and a dotted name; a killed rank restarts the run, which then stops with its last update."""
    copy = tmp_path / "my.ppo.py"
    copy.write_text((ROOT / "ppo_atari_multigpu.py").read_text())
    options = "-m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 1".split()
    with open(tmp_path / "errors", "w") as errors:
        environment = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHONSAFEPATH": "1"}
        process = start([*options, copy, *ENDLESS.split()], tmp_path, stderr=errors, **environment)
        killed_at = wait_for_step(tmp_path, 256)
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
            _, rank_1 = children.read().split()  # torchrun starts its ranks in order
        os.kill(int(rank_1), signal.SIGKILL)
        wait_for_step(tmp_path, killed_at + 384)
        process.send_signal(signal.SIGTERM)
        _, output, _ = finish(process)
    [folder] = (tmp_path / "runs").iterdir()
    assert output.count(f"runs/{folder.name}: training on ") == 2
    steps = [step for step, _ in scalars(folder)["losses/policy_loss"]]
    assert steps == list(range(128, checkpoint(folder)["global_step"] + 1, 128))
