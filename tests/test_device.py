"""A run on another device than the CPU, which second_device.py simulates, as there need be no GPU where tests run.

No operation mixes devices, and the host reads no more than it must: `READS` has every such place, and how often.
"""

from functools import partial

import pytest
import torch
from second_device import simulated
from toy_envs import (
    ATARI,
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
)  # fmt: skip

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
    known = OWN_READS.get(script.name, READS)
    reads = {}
    for line, count in simulation.reads.items():
        if not any(place in line for place in SAVING):
            [place] = [place for place in known if place in line] or [line]
            reads[place] = reads.get(place, 0) + count
    return run, reads


@every_text
def test_a_run(script, tmp_path, monkeypatch, capsys):
    """The host reads what it must; and the numbers are those of the CPU."""
    run, reads = run_on_device(script, options(script), tmp_path / "second", monkeypatch)
    assert reads == OWN_READS.get(script.name, READS)
    assert ": on second;" in capsys.readouterr().out
    ours, of_cpu = checkpoint(run), checkpoint(train(script, f"{options(script)} --no-cuda", tmp_path / "cpu"))
    assert ours["global_step"] == UPDATES * ENVS * STEPS
    for name, weights in of_cpu["parts"]["agent"].items():
        torch.testing.assert_close(ours["parts"]["agent"][name], weights, rtol=0, atol=1e-6)


@every_text
def test_the_rarer_ways(script, tmp_path, monkeypatch):
    """The value of a final observation; and for the actors one thread, an update ahead."""
    arguments = options(script).replace(f" --actor-threads {ACTORS} --no-concurrency", "")
    _, reads = run_on_device(script, f"{arguments} --bootstrap-truncated", tmp_path, monkeypatch)
    *states, final = sorted(reads.keys() - OWN_READS.get(script.name, READS))
    assert final.startswith("reward[cut] += ") and 0 < reads[final] <= (UPDATES + 1) * STEPS
    assert len(states) == (script.name == LSTM.name)  # and the states that belong to such observations


def test_a_limit_of_the_divergence_is_looked_at_once_an_epoch(tmp_path, monkeypatch):
    _, reads = run_on_device(PPO, f"{options(PPO)} --target-kl 100", tmp_path, monkeypatch)
    [limit] = reads.keys() - READS
    assert limit.startswith("if args.target_kl is not None") and reads[limit] == UPDATES * EPOCHS


TWO = "tensors of two devices"
STEP = "stats.append(gradient_step(agent, optimizer, minibatch, clip_coef, args, gradient))"
MISTAKES = {
    "forward": (SHARED, "hidden = self.trunk(obs.float())", "hidden = self.trunk(obs.float()) + torch.zeros(64)", TWO),
    "loss": (PPO, "args.vf_coef * value_loss", "torch.tensor(args.vf_coef) * value_loss", TWO),
    "returns": (PPO, "torch.from_numpy(advantages).to(device)", "torch.from_numpy(advantages)", TWO),
    "rows": (PPO, "torch.randperm(run.batch_size, device=device)", "torch.randperm(run.batch_size)", TWO),
    "state": (LSTM, "args.num_envs, 128, device=device)", "args.num_envs, 128)", TWO),
    "done": (LSTM, "torch.from_numpy(next_done).to(device)", "torch.from_numpy(next_done)", TWO),
    "masks": (MASK, "action_masks(envs, infos).to(device)", "action_masks(envs, infos)", TWO),
    "generator": (CLEANBA, "torch.Generator(actor_device)", "torch.Generator()", "a generator of another device"),
    "autocast": (ATARI, "autocast(device.type, enabled", 'autocast("cpu", enabled', "autocast of another device"),
    "item": (PPO, STEP, f"{STEP}; stats[-1]['approx_kl'].item()", None),
    "branch": (PPO, STEP, f"{STEP}; assert stats[-1]['approx_kl'] < 100", None),
    "rewards": (PPO, "rewards.append(reward", "value.cpu(); rewards.append(reward", None),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(mistake, tmp_path, monkeypatch):
    """A copy of a script with a tensor that stays on the CPU, or with one more that the host reads."""
    script, right, wrong, message = MISTAKES[mistake]
    copy = script._replace(name=f"{script.name}_{mistake}")
    text = (ROOT / f"{script.name}.py").read_text()
    assert right in text
    (tmp_path / f"{copy.name}.py").write_text(text.replace(right, wrong))
    monkeypatch.syspath_prepend(tmp_path)
    if message is None:
        _, reads = run_on_device(copy, options(script), tmp_path, monkeypatch)
        assert len(reads.keys() - READS) == 1
    else:
        with pytest.raises(RuntimeError, match=message):
            run_on_device(copy, options(script), tmp_path, monkeypatch)
