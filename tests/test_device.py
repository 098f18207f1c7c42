"""Runs on a second device, which second_device.py simulates, so that no GPU is needed.

No operation mixes devices, and the host reads no more than it must: `READS` has every such place, and how often.
"""

import json
from functools import partial

import pytest
import torch
from second_device import simulated
from toy_envs import (
    CLEANBA,
    IMPALA,
    LSTM,
    MASK,
    MULTIGPU,
    PPO,
    ROOT,
    SHARED,
    Counting,
    checkpoint,
    every_text,
    put_in_place_of_games,
    train,
)

ENDS = [(3, "truncated"), (5, "terminated"), (4, "both")]
UPDATES, ENVS, STEPS, MINIBATCHES, EPOCHS = 2, 4, 8, 2, 2
OPTIONS = f"--total-timesteps {UPDATES * ENVS * STEPS} --num-envs {ENVS} --num-steps {STEPS} --save-every 0"
OPTIONS += f" --num-minibatches {MINIBATCHES}"
FORWARD = UPDATES * (STEPS + 1 + EPOCHS * MINIBATCHES)  # calls of Agent.forward

READS = {
    "envs.step(action.cpu()": UPDATES * STEPS,  # the actions
    "next_value = ": UPDATES,  # advantages are computed on the CPU, as ppo2 does, in float64
    "gae(rewards, values.cpu()": UPDATES,
    "torch.stack(tensors).tolist()": UPDATES,  # all statistics in one
}
SAVING = ("parts[name].state_dict(), copy", "torch.save(state, data")  # at the start and in a checkpoint: everything
ACTORS = 2  # threads, each with half of the environments
OF_MULTIGPU = READS | {
    "torch.stack(ends).cpu()": UPDATES,  # what the ranks tell each other of episodes that ended
    "own = rows[rows //": UPDATES * EPOCHS * MINIBATCHES,  # how many of a minibatch's rows are a rank's own
    "weights = torch.cat(": 1,  # before a checkpoint
}
OF_CLEANBA = OF_MULTIGPU | {"envs.step(action.cpu()": ACTORS * UPDATES * STEPS, "next_value = ": ACTORS * UPDATES}
OF_CLEANBA["gae(rewards, values.cpu()"] = ACTORS * UPDATES
OF_IMPALA = {
    "envs.step(action.cpu()": ACTORS * UPDATES * STEPS,
    'batch["logprobs"].cpu()': ACTORS * UPDATES,  # the actor waits until its batch is complete
    "zip(*ends.cpu()": UPDATES,
    "torch.stack(tensors).tolist()": UPDATES,
    "weights = torch.cat(": 1,
}
OWN_READS = {
    LSTM.name: READS | {"cuts = dones.any(dim=1)": 2 * FORWARD},  # where sequences are cut: which steps, as a list
    MULTIGPU.name: OF_MULTIGPU,
    CLEANBA.name: OF_CLEANBA,
    IMPALA.name: OF_IMPALA,
}


def options(script):
    epochs = "" if script.name == IMPALA.name else f" --update-epochs {EPOCHS}"
    actors = f" --actor-threads {ACTORS} --no-concurrency" if script.name in (CLEANBA.name, IMPALA.name) else ""
    return OPTIONS + epochs + actors


def run_on_device(script, arguments, folder, monkeypatch):
    """The run's folder, and {place in the script: how often the host read something there}, places as in READS."""
    put_in_place_of_games(script, partial(Counting, ends=ENDS), monkeypatch.setattr)
    with simulated(script) as simulation:
        run = train(script, arguments, folder)
    known, reads = OWN_READS.get(script.name, READS), {}
    for line, count in simulation.reads.items():
        if not any(place in line for place in SAVING):
            [place] = [place for place in known if place in line] or [line]
            reads[place] = reads.get(place, 0) + count
    return run, reads


@every_text
def test_a_run(script, tmp_path, monkeypatch):
    """The host reads what it must, and the numbers are those of the CPU."""
    run, reads = run_on_device(script, options(script), tmp_path / "second", monkeypatch)
    assert reads == OWN_READS.get(script.name, READS)
    assert json.loads((run / "run.json").read_text())["device"] == "second"
    ours, of_cpu = checkpoint(run), checkpoint(train(script, f"{options(script)} --no-cuda", tmp_path / "cpu"))
    assert ours["global_step"] == UPDATES * ENVS * STEPS
    for name, weights in of_cpu["parts"]["agent"].items():
        torch.testing.assert_close(ours["parts"]["agent"][name], weights, rtol=0, atol=1e-6)


@every_text
def test_rarer_options(script, tmp_path, monkeypatch):
    """--bootstrap-truncated reads values of final observations, --target-kl once an epoch; actors run ahead."""
    arguments = options(script).replace(f" --actor-threads {ACTORS} --no-concurrency", " --bootstrap-truncated")
    arguments += "" if "actor" in options(script) else " --bootstrap-truncated --target-kl 100"
    _, reads = run_on_device(script, arguments, tmp_path, monkeypatch)
    new = {line: reads[line] for line in reads.keys() - OWN_READS.get(script.name, READS)}
    for line, count in new.items():
        assert line.startswith(("reward[cut] += ", "if args.target_kl", "cut_state = ")), line
        assert count == UPDATES * EPOCHS if "target_kl" in line else 0 < count <= 2 * (UPDATES + 1) * STEPS


STEP = "stats.append(gradient("
MISTAKES = {
    "forward": (SHARED, "hidden = self.trunk(obs.float())", "hidden = self.trunk(obs.float()) + torch.zeros(64)"),
    "rows": (PPO, "torch.randperm(run.batch_size, device=device)", "torch.randperm(run.batch_size)"),
    "done": (LSTM, "torch.from_numpy(next_done).to(device)", "torch.from_numpy(next_done)"),
    "masks": (MASK, "action_masks(envs, infos).to(device)", "action_masks(envs, infos)"),
    "item": (PPO, STEP, f"rows.sum().item(); {STEP}"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(mistake, tmp_path, monkeypatch):
    """In a copy of a script a tensor stays on the CPU, or the host reads one more."""
    script, right, wrong = MISTAKES[mistake]
    copy = script._replace(name=f"{script.name}_{mistake}")
    text = (ROOT / f"{script.name}.py").read_text()
    assert right in text
    (tmp_path / f"{copy.name}.py").write_text(text.replace(right, wrong))
    monkeypatch.syspath_prepend(tmp_path)
    if mistake == "item":
        assert len(run_on_device(copy, options(script), tmp_path, monkeypatch)[1].keys() - READS) == 1
    else:
        with pytest.raises(RuntimeError, match="tensors of two devices"):
            run_on_device(copy, options(script), tmp_path, monkeypatch)
