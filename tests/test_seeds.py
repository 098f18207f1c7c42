"""ppo_seeds.py: each agent of a process makes its own run of ppo.py, whatever agents are beside it."""

import copy
import dataclasses
import json
import math
import os
import re
import shutil
import signal
from types import SimpleNamespace

import filelock
import gymnasium as gym
import in_process
import numpy as np
import pytest
import script_table
import torch
import toy_envs
import tyro
from in_process import patched, watched
from rounding import ROUNDING
from run_files import checkpoint, equal, scalars
from script_table import CONTINUOUS, PPO, SEEDS
from test_precision import BACKEND

import enjoy
import ppo_seeds
from benchmark import collect, sweep

TINY = "--num-steps 16 --total-timesteps 640"  # ten updates


@pytest.fixture
def as_it_was():
    """Undoes what --compile sets for the whole process."""
    with torch._dynamo.config.patch(trace_autograd_ops=False):
        yield


@pytest.fixture
def float64():
    """Everything that a script computes in torch is float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with patched((torch.Tensor, "float", torch.Tensor.double)):
        yield
    torch.set_default_dtype(before)


def train_agents(options, folder, script=SEEDS):
    """The folders of the agents of a run of ppo_seeds.py, or of it with a recipe, in their order."""
    started = []
    start = script.module.Run.start

    def start_and_keep(run, *args, **parts):
        start(run, *args, **parts)
        started.append(folder / run.folder)

    with patched((script.module.Run, "start", start_and_keep)):
        in_process.train(script, options, folder)
    return started


def run_with(learning_rate, folders):
    """The one of the runs' folders with a learning rate."""
    [found] = [folder for folder in folders if checkpoint(folder)["args"]["learning_rate"] == learning_rate]
    return found


def train_alone(agent, options, folder, script):
    """The folder of the run of a script with the options of the agent in a folder."""
    args = json.loads((agent / "run.json").read_text())["args"]
    for name in ppo_seeds.OPTIONS_OF_AGENTS:
        if name != "resume":
            options += f" --{name.replace('_', '-')} {args[name]}"
    return in_process.train(script, options, folder)


def flat(state):
    """A tensor, or the numbers in nested lists, in one row."""
    if isinstance(state, list):
        return [number for each in state for number in flat(each)]
    return state.flatten() if isinstance(state, torch.Tensor) else [state]


def difference(one, other):
    """The largest difference of two states of parts, {part: {name: numbers}}, which must have the same names."""
    assert one.keys() == other.keys()
    largest = 0.0
    for part, tensors in one.items():
        assert list(tensors) == list(other[part])
        for name, tensor in tensors.items():
            distance = torch.as_tensor(flat(tensor)).double() - torch.as_tensor(flat(other[part][name])).double()
            largest = max(largest, distance.abs().max().item())
    return largest


def assert_same_runs(agents, options, folder, bound, script=PPO):
    """That each agent ended where its own run of a script of single agents does, and logged the same."""
    for k, agent in enumerate(agents):
        alone = train_alone(agent, options, folder / f"alone{k}", script)
        ours, its_own = checkpoint(agent), checkpoint(alone)
        np.testing.assert_allclose(ours["returns"], its_own["returns"], rtol=1e-9)
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


def test_an_agent_of_continuous_actions_equals_its_own_run(with_recipe, float64, tmp_path):
    """And so do its statistics of observations and rewards."""
    options = "--env-id Hopper-v5 --num-envs 2 --num-steps 32 --num-minibatches 4 --update-epochs 2"
    options += " --total-timesteps 640"
    script = with_recipe("with/seeds-continuous")
    agents = train_agents(f"{options} --gamma 0.9 0.99 --learning-rate 1e-3 3e-4", tmp_path, script)
    assert_same_runs(agents, options, tmp_path, 1e-9, CONTINUOUS)


def test_an_agent_of_continuous_actions_fails_alone(with_recipe, capsys, float64, tmp_path):
    """Its weights are NaN from then on, but its actions are not, which some simulators would refuse."""
    options = "--env-id Hopper-v5 --num-steps 64 --num-minibatches 4 --update-epochs 1 --total-timesteps 256"
    finite = watched(gym.vector.SyncVectorEnv, "step", lambda _, actions: np.isfinite(actions).all())
    with pytest.raises(FloatingPointError), finite as seen:
        train_agents(f"{options} --learning-rate 1e300 1e-3", tmp_path, with_recipe("with/seeds-continuous"))
    assert len(seen) == 256 and all(seen)
    folders = list((tmp_path / "runs").iterdir())
    failed = run_with(1e300, folders)
    [other] = [folder for folder in folders if folder != failed]
    assert f"the last checkpoint is kept; {failed.relative_to(tmp_path)} ends here" in capsys.readouterr().err
    assert_same_runs([other], options, tmp_path, 1e-9, CONTINUOUS)


def test_an_agent_with_environments_in_numpy_equals_its_own_run(with_recipe, float64, tmp_path):
    """The same episodes, to the bit of their returns."""
    agents = train_agents(f"{TINY} --seeds 1 2 --bootstrap-truncated", tmp_path, with_recipe("with/seeds-vector"))
    assert_same_runs(agents, f"{TINY} --bootstrap-truncated", tmp_path, 1e-9)


def test_processes_take_the_place_of_numpy(with_recipe):
    module = with_recipe("with/seeds-vector").module
    with patched((module, "make_workers", lambda makers, seeds, mode: len(makers))):
        assert module.make_envs(module.Args(num_envs=3, async_envs=True)) == 3


def test_episodes_in_numpy_are_those_of_single_environments(with_recipe):
    """Until they are cut, too: the pole stays up by the sign of its angle and of its angular velocity."""
    args = ppo_seeds.Args(num_envs=3)
    vectors = [module.make_envs(args) for module in (ppo_seeds, with_recipe("with/seeds-vector").module)]
    observations = [envs.reset(seed=[5, 6, 100])[0] for envs in vectors]
    truncations = 0
    for _ in range(1200):
        np.testing.assert_array_equal(*observations)
        actions = (observations[0][:, 2] + 0.3 * observations[0][:, 3] > 0).astype(int)
        (*one, infos), (*other, other_infos) = (envs.step(actions) for envs in vectors)
        for column, other_column in zip(one, other, strict=True):
            np.testing.assert_array_equal(column, other_column)
        assert infos.keys() - {"_final_obs", "_final_info"} == other_infos.keys()
        for i in np.flatnonzero(one[2] | one[3]):
            np.testing.assert_array_equal(infos["final_obs"][i], other_infos["final_obs"][i])
            for name in ("r", "l"):
                episodes = [each["final_info"]["episode"][name][i] for each in (infos, other_infos)]
                assert episodes[0] == episodes[1]
        truncations += one[3].sum()
        observations = [one[0], other[0]]
    assert truncations >= 3


@pytest.fixture
def seeds_envpool(with_recipe):
    """ppo_seeds.py with seeds-envpool, and with seeds-continuous before it."""
    both = with_recipe("with/seeds-continuous", second="with/seeds-envpool")
    return {"envpool": with_recipe("with/seeds-envpool"), "envpool-continuous": both}


@pytest.mark.parametrize(
    ("alone", "options"),
    [
        ("envpool", f"{TINY} --env-id envpool/CartPole-v1"),
        (
            "envpool",
            "--env-id envpool/MountainCar-v0 --num-envs 2 --num-steps 128 --total-timesteps 1280 --bootstrap-truncated",
        ),
        (
            "envpool-continuous",
            "--env-id envpool/Hopper-v5 --num-envs 2 --num-steps 32 --num-minibatches 4 --update-epochs 2 "
            "--total-timesteps 640 --bootstrap-truncated",
        ),
    ],
)
def test_an_agent_in_envpool_equals_its_own_run(alone, options, seeds_envpool, with_recipe, float64, tmp_path):
    """That of ppo.py or ppo_continuous_action.py with their recipe, episodes and all."""
    agents = train_agents(f"{options} --seeds 7 2 4", tmp_path, seeds_envpool[alone])
    assert_same_runs(agents, options, tmp_path, 1e-9, with_recipe(f"with/{alone}"))
    assert all(checkpoint(agent)["returns"] for agent in agents)


def uniform(generator, low, high, size):
    """What C++ draws from uniform_real_distribution<double>(low, high), with numpy's generator of the same seed."""
    words = generator.randint(2**32, size=(size, 2), dtype=np.uint64).astype(np.float64)
    return (words[:, 0] + words[:, 1] * 2.0**32) / 2.0**64 * (high - low) + low


@pytest.mark.parametrize(
    ("env_id", "bound", "velocities"), [("CartPole-v1", 0.05, 0), ("Acrobot-v1", 0.1, 0), ("MountainCar-v0", 0.1, 1)]
)
def test_envpool_steps_as_gymnasium_does(env_id, bound, velocities, seeds_envpool):
    """From the same initial state, to the rounding of float32, until an episode has ended in both."""
    module = seeds_envpool["envpool"].module
    envs = module.make_envs(module.Args(env_id=f"envpool/{env_id}", num_envs=3))
    obs, _ = envs.reset(seed=[3, 1, 8])
    single = [gym.make(env_id) for _ in range(3)]
    for env, seed in zip(single, [3, 1, 8], strict=True):
        env.reset()
        state = uniform(np.random.RandomState(seed), -bound, bound, 4)
        env.unwrapped.state = np.array([state[0] - 0.5, 0.0]) if velocities else state
    random = np.random.default_rng(1)
    ended = np.zeros(3, dtype=bool)
    while not ended.all():
        actions = random.integers(envs.single_action_space.n, size=3)
        obs, rewards, terminated, truncated, infos = envs.step(actions)
        for i in np.flatnonzero(~ended):
            expected, reward, *ends, _ = single[i].step(actions[i])
            done = terminated[i] or truncated[i]
            np.testing.assert_allclose((infos["final_obs"] if done else obs)[i], expected, rtol=0, atol=1e-6)
            assert rewards[i] == reward and [terminated[i], truncated[i]] == ends
            ended[i] = done


def test_games_of_several_players_do_not_fit_in_envpool(seeds_envpool):
    module = seeds_envpool["envpool"].module
    with pytest.raises(SystemExit, match="several players"):
        module.make_envs(module.Args(env_id="envpool/Backgammon-v1"))


def test_statistics_of_agents_have_counts_of_their_own(with_recipe, tmp_path):
    """One agent was resumed before, which counts a reset of its environments once more; then both go on together."""
    script = with_recipe("with/seeds-continuous")
    options = "--env-id Pendulum-v1 --num-envs 2 --num-steps 32 --num-minibatches 4 --update-epochs 1"
    [one] = train_agents(f"{options} --seed 1 --total-timesteps 64", tmp_path, script)
    train_agents(f"--resume {one} --total-timesteps 128", tmp_path, script)
    [other] = train_agents(f"{options} --seed 2 --total-timesteps 128", tmp_path, script)

    def counts(folder):
        return [count for _, _, count in checkpoint(folder)["parts"]["envs"].values()]

    # observations of each reset, and of the steps; returns of the steps alone
    assert counts(one) == pytest.approx([2 + 2 + 128, 128], abs=0.01)
    assert counts(other) == pytest.approx([2 + 128, 128], abs=0.01)
    train_agents(f"--resume {one} {other} --total-timesteps 192", tmp_path, script)
    assert counts(one) == pytest.approx([2 + 2 + 2 + 192, 192], abs=0.01)
    assert counts(other) == pytest.approx([2 + 2 + 192, 192], abs=0.01)


def test_an_agent_equals_its_own_run_in_float32(tmp_path):
    options = "--num-steps 16 --total-timesteps 192"
    assert_same_runs(train_agents(f"{options} --seeds 1 2 3", tmp_path), options, tmp_path, ROUNDING)


def test_an_agent_that_fails_ends_alone_and_is_named(capsys, float64, tmp_path):
    """A learning rate of 1e300 makes its weights infinite in the first update."""
    with pytest.raises(FloatingPointError):
        train_agents(f"{TINY} --learning-rate 1e-3 1e300 2e-3", tmp_path)
    folders = sorted((tmp_path / "runs").iterdir())
    failed = run_with(1e300, folders)
    errors = capsys.readouterr().err
    assert f"the last checkpoint is kept; {failed.relative_to(tmp_path)} ends here" in errors
    assert errors.count("ends here") == 1
    assert checkpoint(failed)["global_step"] == 0
    [(step, loss)] = scalars(failed)["losses/policy_loss"]
    assert step == 64 and not math.isfinite(loss)
    others = [folder for folder in folders if folder != failed]
    assert len(others) == 2
    assert_same_runs(others, TINY, tmp_path, 1e-9)


def test_a_process_without_agents_left_ends(tmp_path):
    with pytest.raises(FloatingPointError, match="no agent is left"):
        train_agents(f"{TINY} --learning-rate inf", tmp_path)


def test_a_signal_saves_all_agents(tmp_path):
    log_update = ppo_seeds.Runs.log_update

    def log_and_stop(runs, scalars):
        log_update(runs, scalars)
        if runs.global_step == 128:
            os.kill(os.getpid(), signal.SIGTERM)

    with patched((ppo_seeds.Runs, "log_update", log_and_stop)), pytest.raises(SystemExit) as end:
        train_agents(f"{TINY} --seeds 1 2", tmp_path)
    assert end.value.code == 128 + signal.SIGTERM
    folders = list((tmp_path / "runs").iterdir())
    assert [checkpoint(folder)["global_step"] for folder in folders] == [128, 128]
    assert all(len(scalars(folder)["losses/policy_loss"]) == 2 for folder in folders)


def test_every_agent_is_resumed(tmp_path):
    """With the weights and the optimizer's state of its own checkpoint, in other games."""
    folders = train_agents(f"{TINY} --learning-rate 1e-3 --seeds 1 2", tmp_path)
    saved = [checkpoint(folder)["parts"] for folder in folders]
    stacks = []
    loaded = []
    stack = ppo_seeds.stack
    start = ppo_seeds.Runs.start

    def stack_and_keep(agents):
        stacks.append(stack(agents))
        return stacks[-1]

    def start_and_look(runs, device, **parts):
        start(runs, device, **parts)
        for k in range(2):
            loaded.append({name: copy.deepcopy(of_agents[k].state_dict()) for name, of_agents in parts.items()})
            # the stacked agent that trains has these weights, too
            assert torch.equal(stacks[-1].policy.weight.mT[k], loaded[k]["agent"]["policy.weight"])

    patches = (ppo_seeds, "stack", stack_and_keep), (ppo_seeds.Runs, "start", start_and_look)
    seeds = watched(gym.vector.SyncVectorEnv, "reset", lambda envs, seed, **_: seed)
    with patched(*patches), seeds as seen:
        resume = " ".join(str(folder.relative_to(tmp_path)) for folder in folders)
        train_agents(f"--resume {resume} --total-timesteps 1280", tmp_path)
    assert equal(loaded, saved) and not equal(*saved)
    assert seen == [[641, 642, 643, 644, 642, 643, 644, 645]]


def test_agents_that_were_killed_between_their_saves(tmp_path, capsys):
    """They go on from the newest step that all have; the newer checkpoint of one stays under another name."""
    first, second = train_agents(f"{TINY} --save-every 5 --seeds 1 2", tmp_path)
    newest = max(second.glob("checkpoint_*.pt"))
    newest.unlink()
    folders = " ".join(str(folder.relative_to(tmp_path)) for folder in (first, second))
    train_agents(f"--resume {folders}", tmp_path)
    assert [checkpoint(folder)["global_step"] for folder in (first, second)] == [640, 640]
    assert [file.stem for file in first.glob("*.ahead")] == [newest.stem]
    assert "other agents have none of its step" in capsys.readouterr().out


def test_a_refused_resume_sets_no_checkpoint_aside(tmp_path):
    """Alone, the agent would go on from an older step afterwards."""
    [shorter] = train_agents(f"{TINY} --total-timesteps 320", tmp_path)
    [longer] = train_agents(f"{TINY} --total-timesteps 320 --seeds 2 --max-grad-norm 1", tmp_path)
    train_agents(f"--resume {longer.relative_to(tmp_path)} --total-timesteps 640", tmp_path)
    folders = " ".join(str(folder.relative_to(tmp_path)) for folder in (longer, shorter))
    with pytest.raises(SystemExit, match="differ in max_grad_norm"):
        train_agents(f"--resume {folders} --total-timesteps 1280", tmp_path)
    with filelock.FileLock(shorter / "lock").acquire(), pytest.raises(filelock.Timeout):
        train_agents(f"--resume {folders} --total-timesteps 1280 --max-grad-norm 1", tmp_path)
    assert checkpoint(longer)["global_step"] == 640


def test_integers_of_a_program_are_numbers_of_an_agent():
    """ent_coef=(0, 5) is as natural there as (0.0, 5.0)."""
    agents = [ppo_seeds.Args(ent_coef=each) for each in (0, 5)]
    joined = ppo_seeds.join_options(agents, torch.device("cpu"))
    assert joined.ent_coef.tolist() == [0.0, 5.0]


def test_one_agent_in_two_folders(tmp_path):
    """The checkpoint of one in place of the other's would train the same agent twice."""
    first, second = train_agents(f"{TINY} --seeds 1 2", tmp_path)
    for file in first.glob("checkpoint_*.pt"):
        shutil.copy(file, second)
    folders = " ".join(str(folder.relative_to(tmp_path)) for folder in (first, second))
    with pytest.raises(SystemExit, match="^error: .* have an agent of the same seed and options$"):
        train_agents(f"--resume {folders} --total-timesteps 1280", tmp_path)


def test_agents_go_on_side_by_side_alone_or_under_ppo(tmp_path):
    """And their folders are those of runs to enjoy.py and collect.py."""
    first, second = train_agents(f"{TINY} --seeds 1 2 --learning-rate 1e-3", tmp_path)
    before = [checkpoint(folder) for folder in (first, second)]
    folders = " ".join(str(folder.relative_to(tmp_path)) for folder in (first, second))
    assert train_agents(f"--resume {folders} --total-timesteps 1280", tmp_path) == [first, second]
    for seed, folder, old in zip((1, 2), (first, second), before, strict=True):
        state = checkpoint(folder)
        assert state["global_step"] == 1280 and len(scalars(folder)["charts/SPS"]) == 20
        assert state["args"]["resume"] == str(folder.relative_to(tmp_path))
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


def test_the_help_of_an_option_is_its_own(capsys):
    """Of the one that follows the words on all options, too."""
    with pytest.raises(SystemExit):
        tyro.cli(ppo_seeds.Args, args=["--help"])
    words = " ".join(re.findall(r"[^\s│]+", capsys.readouterr().out))
    assert " seed of torch and of environment 0; environment i gets" in words and "Several values" not in words
    assert "run seed of torch" not in words


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
        ("--seeds", "--seed needs a value"),
        ("--seeds 1 2 --track", "--track needs a single agent"),
        ("--seeds 1 2 --target-kl 0.01", "--target-kl may end the agents' updates at different epochs"),
        ("--gamma 0.9 1.1", "--gamma and --gae-lambda must be in"),
        ("--resume a b --seeds 1 2", "with --resume, --seed takes a single value"),
        ("--resume a a/", "--resume needs values that differ"),
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
    with pytest.raises(SystemExit, match=f"{one} and {other} differ in max_grad_norm"):
        train_agents(f"--resume {one} {other} --total-timesteps 640", tmp_path)
    first = max(one.glob("checkpoint_*"))
    [later] = train_agents(f"--resume {first} --total-timesteps 256", tmp_path)
    with pytest.raises(SystemExit, match="began at step 0, .* at step 128, so their learning rates"):
        train_agents(f"--resume {longer} {later} --total-timesteps 640", tmp_path)


def test_runs_that_have_taken_other_numbers_of_steps_of_adam(tmp_path):
    """With the same options now, and other epochs before."""
    [one] = train_agents(f"{TINY} --total-timesteps 128", tmp_path)
    [other] = train_agents(f"{TINY} --seed 2 --total-timesteps 128 --update-epochs 2", tmp_path)
    with pytest.raises(SystemExit, match="has taken 32 steps of Adam, .* 16: continue them in processes of their own"):
        train_agents(f"--resume {one} {other} --total-timesteps 640 --update-epochs 4", tmp_path)
    assert checkpoint(one)["global_step"] == checkpoint(other)["global_step"] == 128


def test_no_agent_has_a_new_folder_where_one_checkpoint_does_not_fit(tmp_path):
    options = f"{TINY} --total-timesteps 128"
    others = train_agents(f"{options} --seed 2 --env-id Acrobot-v1", tmp_path)
    folders = [*train_agents(options, tmp_path), *others]
    files = " ".join(str(max(folder.glob("checkpoint_*"))) for folder in folders)
    with pytest.raises(RuntimeError, match="size mismatch"):
        train_agents(f"--resume {files} --env-id CartPole-v1 --total-timesteps 640", tmp_path)
    assert sorted((tmp_path / "runs").iterdir()) == sorted(folders)


def test_a_layer_that_cannot_be_stacked():
    agents = [torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3)) for _ in range(2)]
    with pytest.raises(SystemExit, match="1 has parameters or buffers; only nn.Linear"):
        ppo_seeds.stack(agents)


def test_a_subclass_of_a_linear_layer_is_not_stacked():
    """Its forward() may compute something else, which the stacked layer would leave out."""

    class Scaled(torch.nn.Linear):
        def forward(self, inputs):
            return 5 * super().forward(inputs)

    with pytest.raises(SystemExit, match="0 has parameters or buffers; only nn.Linear with a bias"):
        ppo_seeds.stack([torch.nn.Sequential(Scaled(2, 3)) for _ in range(2)])


def test_parameters_with_two_names_are_not_stacked():
    """Neither a layer that is used twice, nor two layers that share a weight."""
    layer = torch.nn.Linear(3, 3)
    with pytest.raises(SystemExit, match="1.bias, 1.weight: "):
        ppo_seeds.stack([torch.nn.Sequential(layer, layer)])
    other = torch.nn.Linear(3, 3)
    other.weight = layer.weight
    with pytest.raises(SystemExit, match=": 1.weight: "):
        ppo_seeds.stack([torch.nn.Sequential(layer, other)])


def test_a_frozen_layer_stays_as_it_is():
    agents = [torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)) for _ in range(2)]
    for agent in agents:
        agent[0].requires_grad_(False)
    stacked = ppo_seeds.stack(agents)
    trained = ppo_seeds.Adam(stacked).parameters
    assert len(trained) == 2 and trained[0] is stacked[1].weight and trained[1] is stacked[1].bias
    assert {name for name, p in stacked.named_parameters() if p.requires_grad} == {"1.weight", "1.bias"}


@script_table.slow
@pytest.mark.usefixtures("as_it_was")
@pytest.mark.parametrize("name", ["ppo_seeds", "with/seeds-continuous"])
def test_a_process_has_the_seed_of_its_agent(name, with_recipe, tmp_path):
    """The generators of environment i of an agent are seeded with the agent's seed + i, as in its own run."""
    script = SEEDS if name == "ppo_seeds" else SimpleNamespace(name="with_recipe", module=with_recipe(name).module)
    given = []

    def make_here(makers, seeds, mode):
        given.extend(seeds)
        return gym.vector.SyncVectorEnv(makers, autoreset_mode=mode)

    with patched((script.module, "make_workers", make_here)):
        options = "--seeds 5 9 --learning-rate 1e-3 2e-3 --num-envs 3 --num-steps 16 --num-minibatches 4"
        env = "CartPole-v1" if script is SEEDS else "Pendulum-v1"
        in_process.train(script, f"{options} --total-timesteps 48 --async-envs --env-id {env}", tmp_path)
    assert given == 2 * [5, 6, 7, 9, 10, 11]


@script_table.slow
@pytest.mark.parametrize("options", [{}, {"learning_rate": [1e-3, 2e-3, 3e-3], "clip_coef": [0.1, 0.2, 0.3]}])
def test_compiled_steps_are_the_same_within_rounding(options):
    """Options that are the same for all agents, and others; everything is compiled once."""
    torch._dynamo.config.trace_autograd_ops = True  # as train() does
    torch.manual_seed(1)
    envs = toy_envs.spaces(gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2))
    eager = ppo_seeds.stack([ppo_seeds.Agent(envs) for _ in range(3)])
    compiled = copy.deepcopy(eager)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    whole = torch.compile(ppo_seeds.gradient_step, backend=BACKEND, fullgraph=True)
    noise = torch.Generator().manual_seed(1)
    steps = []
    for _ in range(20):
        numbers = torch.randn(3, 3, 64, generator=noise)
        minibatch = dict(zip(("logprobs", "values", "returns"), numbers, strict=True))
        minibatch["logprobs"] = minibatch["logprobs"] / 100 - math.log(2)
        minibatch["obs"] = torch.randn(3, 64, 4, generator=noise)
        minibatch["actions"] = torch.randint(2, (3, 64), generator=noise)
        steps.append(minibatch)
    for agent, gradient_step in ((eager, ppo_seeds.gradient_step), (compiled, whole)):
        optimizer = ppo_seeds.Adam(agent)
        for number, minibatch in enumerate(steps):
            args = ppo_seeds.Args(max_grad_norm=1.0 - 0.01 * number)
            args = dataclasses.replace(args, **{name: torch.tensor(values) for name, values in options.items()})
            gradient_step(agent, optimizer, minibatch, ppo_seeds.floats_as_tensors(args))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1
    assert difference({"agent": eager.state_dict()}, {"agent": compiled.state_dict()}) < ROUNDING


SWEPT = ["ppo_seeds.py --learning-rate 1e-3", "ppo_seeds.py", "ppo_seeds.py + without/core-9", "ppo.py"]


@pytest.mark.parametrize(
    ("agents", "processes"),
    [
        (1, [1] * 8),
        (2, [1, 1, 2, 2, 2]),
        (3, [1, 1, 2, 2, 2]),
        (4, [1, 1, 4, 2]),
    ],
)
def test_a_sweep_plans_its_processes(agents, processes, tmp_path):
    settings, _ = sweep.read_settings([], {"AGENTS": str(agents), "SEEDS": "1 2", "FOLDER": str(tmp_path)})
    planned = sweep.make_plans([(line, seed) for seed in (1, 2) for line in SWEPT], settings)
    assert [len(members) for members in planned] == processes
    made = [member for members in planned for member in members]
    assert sorted(made) == sorted((line, seed) for line in SWEPT for seed in (1, 2))


def test_tasks_keep_their_numbers_while_runs_are_made(tmp_path, monkeypatch):
    """The job of a task is divided as it begins: what is done is left out, and one process has runs of one step."""
    settings, _ = sweep.read_settings([], {"AGENTS": "4", "SEEDS": "1 2 3", "FOLDER": str(tmp_path)})
    runs = [("ppo_seeds.py", seed) for seed in settings.seeds]
    assert sweep.make_plans(runs, settings) == [runs]
    assert sweep.divided_by_step(runs, settings) == [runs]
    monkeypatch.setattr(sweep.Ours, "done", lambda run: run.args["seed"] == 2)
    assert sweep.make_plans(runs, settings) == [runs]
    assert sweep.divided_by_step(runs, settings) == [[runs[1]], [runs[0], runs[2]]]
    monkeypatch.setattr(sweep.Ours, "run_folder", lambda run: run.args["seed"])  # which stands for the folder
    monkeypatch.setattr(sweep.collect, "newest_step", lambda seed: 512 if seed == 3 else 0)
    assert sweep.divided_by_step(runs, settings) == [[runs[1]], [runs[0]], [runs[2]]]


def test_options_for_a_single_agent_are_not_made_side_by_side(tmp_path):
    settings, _ = sweep.read_settings([], {"AGENTS": "4", "FOLDER": str(tmp_path)})
    for line in ("ppo_seeds.py --target-kl 0.01", "ppo_seeds.py --track"):
        runs = [(line, 1), (line, 2)]
        assert sweep.make_plans(runs, settings) == [[run] for run in runs]


def test_lines_that_are_no_combinations_have_processes_of_their_own(tmp_path):
    lines = ["ppo_seeds.py --gamma 0.9 --vf-coef 1.0", "ppo_seeds.py"]
    settings, _ = sweep.read_settings([], {"AGENTS": "10", "FOLDER": str(tmp_path)})
    planned = sweep.make_plans([(line, seed) for line in lines for seed in (1, 2, 3)], settings)
    assert planned == [[(line, seed) for seed in (1, 2, 3)] for line in lines]


def test_a_sweep_makes_agents_side_by_side_and_goes_on_with_them(tmp_path, monkeypatch, capsys):
    variables = {"AGENTS": "4", "SEEDS": "1 2", "TOTAL_TIMESTEPS": "192", "OMP_NUM_THREADS": "1"}
    for name, value in (variables | {"FOLDER": str(tmp_path), "RESULTS": str(tmp_path / "results")}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sweep.signal, "signal", lambda *_: None)
    settings, _ = sweep.read_settings([], os.environ)
    lines = [f"ppo_seeds.py --num-steps 16 --save-every 1 --learning-rate {rate}" for rate in (1e-3, 2e-3)]
    assert sweep.main(lines, settings) == 0
    assert capsys.readouterr().out.count("started: ") == 1
    folders = sorted((tmp_path / "runs").iterdir())
    made = [json.loads((folder / "run.json").read_text())["args"] for folder in folders]
    assert sorted((args["learning_rate"], args["seed"]) for args in made) == [
        (1e-3, 1), (1e-3, 2), (2e-3, 1), (2e-3, 2)
    ]  # fmt: skip
    assert all(json.loads((folder / "sweep.json").read_text())["machine"]["cores"] for folder in folders)
    assert sweep.main(lines, settings) == 0 and "started: " not in capsys.readouterr().out

    complete = [checkpoint(folder) for folder in folders]
    for folder in folders:
        max(folder.glob("checkpoint_*")).unlink()  # as if killed before it
    shutil.rmtree(tmp_path / "results")
    assert sweep.main(lines, settings) == 0
    assert sorted((tmp_path / "runs").iterdir()) == folders
    for folder, before in zip(folders, complete, strict=True):
        state = checkpoint(folder)
        assert state["global_step"] == 192 and len(scalars(folder)["charts/SPS"]) == 3
        assert {**state["args"], "resume": None} == before["args"]
