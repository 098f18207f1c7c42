"""Whole runs of every script: what they write, that they repeat, and that their batches hold what happened."""

import copy
import dataclasses
import json
import math
import os
import re
import sys
from types import SimpleNamespace

import gymnasium as gym
import in_process
import numpy as np
import pytest
import run_files
import script_table
import torch
import toy_envs
import tyro
from in_process import patched, train, watched
from rounding import ROUNDING
from run_files import checkpoint, scalars, without_speed
from script_table import PPO, SCRIPTS, SELFPLAY

UPDATE_TAGS = {
    "charts/SPS", "charts/learning_rate", "losses/policy_loss", "losses/value_loss", "losses/entropy",
    "losses/old_approx_kl", "losses/approx_kl", "losses/approx_kl_ppo2", "losses/clipfrac", "losses/explained_variance",
    "losses/grad_norm",
}  # fmt: skip
EPISODE_TAGS = {"charts/episodic_return", "charts/episodic_length"}


@script_table.every_script_with_its_games
def test_a_run_on_its_real_environment(script, tmp_path):
    """All files and scalars are there, and the first ratios of an update are 1 but for rounding."""
    module = script.module
    args = tyro.cli(module.Args, args=script.quick.split())
    passes = args.num_minibatches * args.update_epochs

    @torch.no_grad()
    def deviation(agent, minibatch, *_):
        """The largest distance of a ratio from 1, divided by the size of its log probability where that is above 1."""
        memory = [minibatch[name] for name in ("state", "dones") if name in minibatch]
        policy = agent(minibatch["obs"], *memory)[0]
        policy = policy.masked(minibatch["masks"]) if "masks" in minibatch else policy
        logprobs = minibatch["logprobs"]
        ratios = (policy.log_prob(minibatch["actions"]) - logprobs).exp()
        return ((ratios - 1).abs() / logprobs.abs().clamp(min=1)).max().item()

    with watched(module, "ppo_loss", deviation) as deviations:
        folder = train(script, script.quick, tmp_path)

    name = rf"{args.env_id.replace(':', '-')}__{script.name}__1__\d{{8}}-\d{{6}}-{os.getpid()}"
    assert re.fullmatch(name, folder.name) and [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert (folder / f"{script.name}.py").read_bytes() == (script_table.ROOT / f"{script.name}.py").read_bytes()
    about = json.loads((folder / "run.json").read_text())
    assert about["args"] == dataclasses.asdict(args)
    assert about["command"] == [f"{script.name}.py", *script.quick.split()]
    assert about["versions"]["torch"] and about["versions"]["gymnasium"]
    assert re.fullmatch("([0-9a-f]{40}(-dirty)?)?", about["commit"])
    files = {re.sub(r"\d{9,}.*", "", path.name) for path in folder.iterdir()}
    assert files == {"checkpoint_", "events.out.tfevents.", f"{script.name}.py", "run.json", "lock"}

    log, rollout = scalars(folder), args.num_envs * args.num_steps
    updates = args.total_timesteps // rollout
    assert log.keys() == UPDATE_TAGS | EPISODE_TAGS and updates >= 3
    for tag in UPDATE_TAGS:
        assert [step for step, _ in log[tag]] == [rollout * update for update in range(1, updates + 1)]
        assert all(math.isfinite(value) for _, value in log[tag])
    assert checkpoint(folder)["global_step"] == updates * rollout

    assert len(deviations) == updates * passes
    assert max(deviations[::passes]) < ROUNDING
    assert min(deviations[passes - 1 :: passes]) > 10 * ROUNDING  # the policy does move between


def assert_same_run(one, other):
    assert without_speed(one) == without_speed(other)
    assert run_files.same_weights(checkpoint(one), checkpoint(other))


@script_table.every_script_with_its_games
def test_the_same_seed_gives_the_same_run(script, tmp_path):
    one = train(script, script.tiny, tmp_path / "one")
    assert_same_run(one, train(script, script.tiny, tmp_path / "same"))
    if script in (PPO, script_table.ATARI, script_table.ENVPOOL):
        other = train(script, f"{script.tiny} --seed 2", tmp_path / "other")
        assert without_speed(one)["losses/policy_loss"] != without_speed(other)["losses/policy_loss"]
        assert not run_files.same_weights(checkpoint(one), checkpoint(other))


IN_PYTHON = [script for script in SCRIPTS if hasattr(script.module.Args, "async_envs")]


@script_table.of_scripts([s if s is PPO else pytest.param(s, marks=script_table.slow) for s in IN_PYTHON])
def test_environments_in_processes_give_the_same_run(script, tmp_path):
    options = script.tiny if "--num-envs 2" in script.tiny else f"{script.tiny} --num-envs 2"
    pids = lambda envs, *_: {process.pid for process in envs.processes}  # noqa: E731
    with watched(gym.vector.AsyncVectorEnv, "step_async", pids) as seen:
        several = train(script, f"{options} --async-envs", tmp_path / "several")
    assert len(seen[0] - {os.getpid()}) == (1 if script is SELFPLAY else 2)
    assert_same_run(train(script, options, tmp_path / "one"), several)


# Runs on environments that record what happened in them


def record(script, options, toy, folder):
    """(updates, environments, folder) of a run on toys.

    An update has the arguments and the result of `gae`, a copy of the agent of the rollout, and its gradient steps."""
    module, updates = script.module, []
    gae, gradient_step = module.gae, module.gradient_step

    def recording_gae(rewards, values, dones, next_value, *rest):
        given = {"rewards": rewards, "values": values, "dones": dones, "next_value": next_value}
        updates.append(SimpleNamespace(**{name: np.array(column) for name, column in given.items()}, steps=[]))
        updates[-1].advantages = gae(rewards, values, dones, next_value, *rest)
        return updates[-1].advantages

    def recording_step(agent, optimizer, minibatch, args):
        if not updates[-1].steps:
            updates[-1].agent = copy.deepcopy(agent)
        stats = gradient_step(agent, optimizer, minibatch, args)
        updates[-1].steps.append(SimpleNamespace(minibatch=minibatch, args=args, stats=stats))
        return stats

    patches = ("gae", recording_gae), ("gradient_step", recording_step)
    with patched(*((module, *each) for each in patches)) as patch:
        made = in_process.put_in_place_of_games(script, toy, patch.setattr)
        run = train(script, options, folder)
    return updates, made, run


@torch.no_grad()
def judge(agent, observations):
    """(policy, values) of the agent in a list of observations."""
    return agent(torch.from_numpy(np.stack(observations)))


STEPS, UPDATES = 8, 12  # of each environment in a rollout; rollouts
KINDS = ("terminated", "truncated", "both")
COUNTING = f"--num-envs 6 --num-steps {STEPS} --total-timesteps {6 * STEPS * UPDATES} --gamma 0.9 --gae-lambda 0.8"


def endings(images, index):
    """Environments that between them end an episode in every way at every step of a rollout."""
    lengths = [(1, 2, 3), (5,), (7, 4, 1), (9,), (11, 8, 1), (3,)][index]
    return toy_envs.Counting(images, index, [(length, KINDS[(index + i) % 3]) for i, length in enumerate(lengths * 3)])


WITHOUT_MEMORY = [script for script in SCRIPTS if script is not script_table.LSTM]  # test_lstm.py has the other


@pytest.fixture(scope="module", params=WITHOUT_MEMORY, ids=lambda script: script.name)
def counted(request, tmp_path_factory):
    """A run with a single minibatch, a truncation being an end as in ppo2, at a constant learning rate."""
    options = f"{COUNTING} --num-minibatches 1 --update-epochs 1 --no-anneal-lr --learning-rate 0.001"
    return record(request.param, options, endings, tmp_path_factory.mktemp(request.param.name))


@pytest.fixture(scope="module", params=SCRIPTS, ids=lambda script: script.name)
def annealed(request, tmp_path_factory):
    """A run with three minibatches, two epochs, both schedules and --bootstrap-truncated."""
    options = f"{COUNTING} --num-minibatches 3 --update-epochs 2 --learning-rate 0.01 --anneal-lr --anneal-clip"
    folder = tmp_path_factory.mktemp(request.param.name)
    return request.param, *record(request.param, f"{options} --clip-coef 0.3 --bootstrap-truncated", endings, folder)


def test_every_step_of_a_batch_is_what_happened_in_the_environment(counted):
    """No action is ignored, each has its own observation and reward, and dones[t] says that it ended its episode."""
    updates, envs, _ = counted
    close = {"rtol": ROUNDING, "atol": ROUNDING}
    assert len(updates) == UPDATES and {len(env.log) for env in envs} == {UPDATES * STEPS}
    for number, update in enumerate(updates):
        [step] = update.steps
        batch = step.minibatch
        rows = {tuple(map(int, key)): row for row, key in enumerate(toy_envs.numbers_in(batch["obs"]).tolist())}
        assert len(rows) == len(envs) * STEPS
        for i, env in enumerate(envs):
            first = number * STEPS
            for t, happened in enumerate(env.log[first : first + STEPS]):
                row = rows[happened.obs]
                assert np.array_equal(batch["obs"][row], env.show(*happened.obs))
                assert batch["actions"][row] == happened.action
                assert update.rewards[t, i] == np.float32(happened.reward)
                assert update.dones[t, i] == (happened.terminated or happened.truncated)
                assert batch["values"][row] == update.values[t, i]
                assert batch["returns"][row] == pytest.approx(update.advantages[t, i] + update.values[t, i], abs=1e-6)
            after = env.log[first + STEPS].obs if number + 1 < len(updates) else (i, env.episode, env.steps, 7)
            np.testing.assert_allclose(update.next_value[i], judge(update.agent, [env.show(*after)])[1], **close)
        policy, values = judge(update.agent, list(batch["obs"].numpy()))
        np.testing.assert_allclose(batch["values"], values, **close)
        np.testing.assert_allclose(batch["logprobs"], policy.log_prob(batch["actions"]).detach(), **close)


def test_every_finished_episode_is_logged_once(counted):
    """At a step of its own, also where several end in one step of all environments, or are one step long."""
    _, envs, run = counted
    ended = []
    for env in envs:
        score, length = 0.0, 0
        for t, happened in enumerate(env.log, 1):
            score, length = score + happened.reward, length + 1
            if happened.terminated or happened.truncated:
                ended.append(((t - 1) * len(envs) + env.index + 1, score, length))
                score, length = 0.0, 0
    ended.sort()
    assert len(ended) > 120 and len({step for step, *_ in ended}) == len(ended)
    log = scalars(run)
    assert log["charts/episodic_length"] == [(step, length) for step, _, length in ended]
    assert [step for step, _ in log["charts/episodic_return"]] == [step for step, *_ in ended]
    scores = [score for _, score, _ in ended]
    np.testing.assert_allclose([value for _, value in log["charts/episodic_return"]], scores, rtol=1e-6)
    np.testing.assert_allclose(checkpoint(run)["returns"], scores[-100:], rtol=1e-6)


def check_advantages(updates, envs, bootstrap):
    """Compares with the sum of (gamma lambda)^l delta[t + l] up to the episode's end, from what the environments saw.

    After a termination a state is worth nothing; after a truncation, with `bootstrap`, its value."""
    gamma, lam, seen = 0.9, 0.8, set()
    for number, update in enumerate(updates):
        for i, env in enumerate(envs):
            steps = env.log[number * STEPS : (number + 1) * STEPS]
            values = judge(update.agent, [env.show(*step.obs) for step in steps])[1].double().numpy()
            following = judge(update.agent, [step.next_obs for step in steps])[1].double().numpy()
            expected = np.zeros(STEPS)
            for t in range(STEPS):
                weight = 1.0
                for k in range(t, STEPS):
                    happened = steps[k]
                    over = happened.terminated or happened.truncated
                    counts = not over or (bootstrap and not happened.terminated)
                    expected[t] += weight * (happened.reward + gamma * following[k] * counts - values[k])
                    if over:
                        seen.add((k, happened.terminated, happened.truncated))
                        break
                    weight *= gamma * lam
            # a sum of up to 8 differences of two values each
            bound = 16 * ROUNDING * max(1, np.abs(values).max(), np.abs(following).max())
            message = f"update {number}, {i}"
            np.testing.assert_allclose(update.advantages[:, i], expected, rtol=0, atol=bound, err_msg=message)
    assert len(seen) == 3 * STEPS  # every way to end at every step


def test_a_truncation_is_an_end(counted):
    updates, envs, _ = counted
    check_advantages(updates, envs, bootstrap=False)


def test_bootstrap_truncated(annealed):
    script, updates, envs, _ = annealed
    if script is script_table.LSTM:
        pytest.skip("test_lstm.py has it")
    check_advantages(updates, envs, bootstrap=True)


def test_what_an_update_logs(annealed):
    """The means over its minibatches, and how much of the returns' variance the values explain."""
    _, updates, _, run = annealed
    log = {tag: [value for _, value in points] for tag, points in scalars(run).items()}
    names = updates[0].steps[0].stats
    assert {f"losses/{name}" for name in names} | {"losses/explained_variance"} == {
        tag for tag in log if tag.startswith("losses/")
    }
    for number, update in enumerate(updates):
        for name in names:
            each = [float(step.stats[name]) for step in update.steps]
            assert len(each) == 6 and (len(set(each)) > 1 or name == "clipfrac")  # which may be 0 in all of them
            assert log[f"losses/{name}"][number] == pytest.approx(np.mean(each), rel=1e-4, abs=1e-7)
        returns = (update.advantages + update.values).astype(np.float64)
        explained = 1 - (returns - update.values).var() / returns.var()
        assert log["losses/explained_variance"][number] == pytest.approx(explained, rel=1e-3, abs=1e-4)


def test_an_epoch_has_every_step_once_in_an_order_of_its_own(annealed):
    _, updates, _, _ = annealed
    orders = []
    for update in updates:
        returns = [step.minibatch["returns"] for step in update.steps]
        assert [len(each) for each in returns] == [2 * STEPS] * 6
        for epoch in (torch.cat(returns[:3]), torch.cat(returns[3:])):
            whole = np.sort((update.advantages + update.values).ravel())
            np.testing.assert_allclose(np.sort(epoch.numpy()), whole, atol=1e-6)
            orders.append(tuple(epoch.tolist()))
    assert len(set(orders)) == len(orders)


def test_schedules(annealed):
    _, updates, _, run = annealed
    left = 1 - np.arange(UPDATES) / UPDATES
    given = [step.args for update in updates for step in update.steps]
    assert [args.learning_rate for args in given] == pytest.approx(np.repeat(0.01 * left, 6))
    assert [args.clip_coef for args in given] == pytest.approx(np.repeat(0.3 * left, 6))
    assert [value for _, value in scalars(run)["charts/learning_rate"]] == pytest.approx(0.01 * left)


@script_table.every_script
@pytest.mark.parametrize("kl, kl_of_ppo2, epochs", [(0.03, 0.01, 1), (0.01, 0.03, 3)])
def test_target_kl_ends_the_epochs_of_an_update(script, kl, kl_of_ppo2, epochs, tmp_path):
    """By approx_kl of an epoch's last minibatch, not by ppo2's estimator."""
    calls = []

    def gradient_step(*_):
        calls.append(len(calls) % 2)
        stats = {"approx_kl": kl if calls[-1] else 1 - kl, "approx_kl_ppo2": kl_of_ppo2}
        return {name: torch.tensor(number) for name, number in stats.items()}

    options = "--num-envs 2 --num-steps 8 --total-timesteps 32 --num-minibatches 2 --update-epochs 3 --target-kl 0.02"
    with patched((script.module, "gradient_step", gradient_step)) as patch:
        in_process.put_in_place_of_games(script, endings, patch.setattr)
        train(script, options, tmp_path)
    assert len(calls) == 2 * 2 * epochs


@script_table.of_scripts([PPO, script_table.ATARI, script_table.MULTIDISCRETE, script_table.MASK, SELFPLAY])
def test_the_first_environment_is_filmed(script, tmp_path):
    options = script.tiny.split() + ["--num-envs", "6", "--capture-video"]
    envs = script.module.make_envs(tyro.cli(script.module.Args, args=options), tmp_path)
    first, *others = getattr(envs, "env", envs).envs
    assert first.render_mode == "rgb_array" and len(others) >= 2
    assert {env.render_mode for env in others} == {None}
    envs.close()


@pytest.mark.filterwarnings("ignore:.*autoreset mode is same-step")
@script_table.every_script_with_its_games
@pytest.mark.slow
def test_video(script, tmp_path):
    options = f"{script.tiny} --capture-video"
    if script is script_table.CONTINUOUS:
        options += " --total-timesteps 64"  # without a GPU, MuJoCo draws a frame in a fifth of a second
        if sys.platform == "linux":
            pytest.importorskip("OpenGL.EGL")  # MuJoCo needs it without a screen
    folder = train(script, options, tmp_path)
    films = list(folder.glob("videos*/*.mp4"))
    assert films and all(b"ftyp" in film.read_bytes()[:32] and film.stat().st_size > 1000 for film in films)
