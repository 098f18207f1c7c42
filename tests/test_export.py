"""export.py: writes a policy to ONNX, and finds where the file and the agent differ."""

import re
import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import onnxruntime
import pytest
import torch
from in_process import train
from rounding import ROUNDING
from script_table import ATARI, CONTINUOUS, ENVPOOL, LSTM, MASK, PPO, PROCGEN, ROOT, SELFPLAY
from test_enjoy import CLOCK, FEW, TARGET, checkpoint
from toy_envs import Clock

import enjoy
import export
import saved

TUPLE = gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.Box(0, 1, (2, 2))])
parts = {"disable_env_checker": True, "max_episode_steps": 100}
gym.register("ExportTuple-v0", lambda **kwargs: Parts(images=False), **parts)


class Parts(Clock):
    """Clock with the step in a Tuple."""

    observation_space = property(lambda env: TUPLE, lambda env, space: None)

    def show(self, *numbers):
        return numbers[0] % 3, np.full((2, 2), numbers[0] / 8, np.float32)


def written(run, tmp_path, words=(), **options):
    """The ONNX session of a run."""
    file = tmp_path / "agent.onnx"
    export.export(export.Args(run, file, **{"steps": 40} | options), words)
    return onnxruntime.InferenceSession(file)


def error(run, tmp_path, **options):
    """The line with which export.py ends; it leaves no file."""
    with pytest.raises(SystemExit, match=r"^error: [^\n]+$") as end:
        written(run, tmp_path, **options)
    assert not list(tmp_path.glob("agent.onnx*"))
    return end.value.code


def edited(script, edits, options, folder, monkeypatch):
    """A run of an edited copy of a script."""
    text = (ROOT / f"{script.name}.py").read_text()
    for old, new in edits.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "my_export.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "my_export", raising=False)
    return train(script._replace(name="my_export"), options, folder / "train")


EXPORTS = [
    (PPO, CLOCK, False),
    (CONTINUOUS, f"{FEW} --env-id Hopper-v5", False),
    (MASK, MASK.tiny, False),
    (SELFPLAY, SELFPLAY.tiny, False),
    (ATARI, FEW, True),
    (LSTM, FEW, True),
    (ENVPOOL, FEW, True),
]


@pytest.mark.parametrize(
    "script, options",
    [pytest.param(*row, id=row[0].name, marks=pytest.mark.slow if slow else ()) for *row, slow in EXPORTS],
)
def test_an_exported_policy_plays_without_the_script(script, options, tmp_path):
    """For 200 steps its actions are those of torch, for two environments without the script's Normalize."""
    close = {"rtol": ROUNDING, "atol": ROUNDING}
    run = train(script, options, tmp_path)
    session = written(run, tmp_path)
    names = [value.name for value in session.get_outputs()]
    loaded = saved.load(run)
    envs = loaded.script.make_envs(loaded.options)  # of two environments
    if script is CONTINUOUS:
        envs.load_state_dict(loaded.state["parts"]["envs"])
        envs.frozen = True
    envs, recorder = enjoy.record_inside(envs, enjoy.find_normalize(loaded.script, envs))
    player = enjoy.Player(loaded, envs)
    obs, infos = envs.reset(seed=3)
    player.start_game(0, len(obs))
    dones = np.ones(len(obs), dtype=bool)
    state = {name: tensor.numpy() for name, tensor in export.state_by_name(player.state).items()}
    for _ in range(200):
        inputs = {"obs": recorder.obs} | state
        if state:
            inputs["dones"] = dones
        if script is MASK:
            inputs["masks"] = np.array(infos["action_mask"])
        outputs = dict(zip(names, session.run(names, inputs), strict=True))
        policy = player.next_policy(obs, dones, player.get_masks(infos))
        obs, _, terminated, truncated, infos = envs.step(policy.mode().numpy())
        if script is CONTINUOUS:
            np.testing.assert_allclose(outputs["action"], recorder.actions, **close)
        else:  # where rounding decides which of two actions is the likeliest, either will do
            actions = policy.mode(), torch.from_numpy(outputs["action"])
            torch.testing.assert_close(*map(policy.log_prob, actions), **close)
        for name, tensor in export.state_by_name(player.state).items():
            np.testing.assert_allclose(outputs[f"next_{name}"], tensor, **close)
        state = {name: outputs[f"next_{name}"] for name in state}  # its own, as where it is used
        dones = terminated | truncated


@pytest.mark.parametrize("file", sorted((ROOT / "agents").glob("[CLM]*.pt")), ids=lambda file: file.stem)
def test_agents_of_the_repository(file, tmp_path, capsys):
    if "LunarLander" in file.stem:
        pytest.importorskip("Box2D")  # has no wheel for Python 3.14
    session = written(file, tmp_path)
    lines = capsys.readouterr().out.splitlines()
    inputs = [value.name for value in session.get_inputs()]
    assert inputs == (["obs", "masks"] if "Microrts" in file.name else ["obs"])
    assert re.fullmatch(r".*: the same as .* in 40 steps of .*", lines[-1])


def test_an_exported_network_takes_any_number_of_images(tmp_path):
    """ppo_procgen.py divides them into parts on a CPU."""
    pytest.importorskip("envpool")
    images = gym.spaces.Box(0, 255, (3, 64, 64), np.uint8)
    envs = gym.vector.SyncVectorEnv([lambda: gym.wrappers.TransformObservation(gym.make("CartPole-v1"), None, images)])
    agent = PROCGEN.module.Agent(envs)
    loaded = saved.Saved(None, {"parts": {"agent": agent.state_dict()}}, PROCGEN.module, PROCGEN.module.Args())
    player = enjoy.Player(loaded, envs)
    example = {"obs": torch.from_numpy(images.sample()[None])}
    export.write_onnx(export.Graph(player, None, envs.single_action_space), example, tmp_path / "agent.onnx")
    obs = np.random.default_rng(0).integers(0, 256, (65, 3, 64, 64), dtype=np.uint8)
    [actions] = onnxruntime.InferenceSession(tmp_path / "agent.onnx").run(["action"], {"obs": obs})
    assert actions.tolist() == agent(torch.from_numpy(obs))[0].logits.argmax(-1).tolist()


@pytest.mark.qt
def test_a_game_of_procgen(tmp_path):
    run = train(PROCGEN, FEW, tmp_path)
    assert [value.shape for value in written(run, tmp_path).get_inputs()] == [["batch", 3, 64, 64]]


def test_an_observation_that_is_no_vector(tmp_path, capsys):
    """What the file takes is said in a line, and only then."""
    run = train(PPO, CLOCK.replace("EnjoyClock", "ExportTuple"), tmp_path)
    session = written(run, tmp_path)
    assert session.get_inputs()[0].shape == ["batch", 7]
    assert f"obs is gymnasium.spaces.flatten(space, observation), of the space {TUPLE}\n" in capsys.readouterr().out
    (tmp_path / "other").mkdir()
    written(train(PPO, CLOCK, tmp_path / "other"), tmp_path)
    assert "obs " not in capsys.readouterr().out.replace("obs tensor", "")


def test_an_observation_of_a_wrapper(tmp_path, capsys, with_recipe):
    """A wrapper that makes a vector before Episodes does."""
    run = train(with_recipe("with/time-left", "ppo.py"), CLOCK.replace("EnjoyClock", "ExportTuple"), tmp_path)
    assert written(run, tmp_path).get_inputs()[0].shape == ["batch", 8]
    line = "obs comes from the wrapper TimeAwareObservation, which makes a vector of the space"
    assert f"{line} {TUPLE}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "script, options, inputs",
    [
        ("ppo.py", "--env-id recipes.environments:CartPoleHiddenLimit-v1", 4),
        ("ppo_continuous_action.py", "--env-id recipes.environments:PendulumNoVelocity-v1 --privileged state", 2),
    ],
)
def test_privileged_inputs_are_not_exported(script, options, inputs, tmp_path, capsys, with_recipe):
    """The file takes the policy's observations alone, and normalizes them with their own statistics."""
    run = train(with_recipe("with/privileged-critic", script), f"{FEW} {options}", tmp_path)
    assert written(run, tmp_path).get_inputs()[0].shape == ["batch", inputs]
    assert "obs " not in capsys.readouterr().out.replace("obs tensor", "")


def test_attributes_of_the_environment_are_not_statistics(tmp_path):
    run = train(PPO, CLOCK.replace("Clock", "Own"), tmp_path)
    assert len(written(run, tmp_path).get_inputs()) == 1


TWICE = {"actions = actions.clip(": "actions = 2 * actions.clip("}
OTHERS = {
    "actions": (TWICE, "in step"),
    "observations": ({"return scaled.clip(-10, 10)": "return 1 + scaled.clip(-10, 10)"}, "the script's scale()"),
    # which no game may reach
    "a bound of observations": ({"return scaled.clip(-10, 10)": "return scaled.clip(-5, 5)"}, "the script's scale()"),
}


@pytest.mark.parametrize("edits, text", OTHERS.values(), ids=OTHERS)
def test_a_wrapper_that_changes_what_the_file_does_not(edits, text, tmp_path, monkeypatch):
    run = edited(CONTINUOUS, edits, TARGET, tmp_path, monkeypatch)
    assert f"no export: {text}" in error(run, tmp_path)


def test_parameters_that_differ_where_the_action_does_not():
    """As where a file clips observations at another bound, and the likeliest action stays the same."""
    policy = PPO.module.Categorical(torch.tensor([[3.0, 0.0]]))
    step = export.Step({}, policy, {}, actions=np.array([0]))
    outputs = {"action": np.array([0]), "logits": policy.logits.numpy()}
    assert export.difference(step, outputs, is_box=False) is None
    outputs["logits"] = np.array([[0, -50]], np.float32)
    assert export.difference(step, outputs, is_box=False) == "its output logits differs from the agent's"
    policy = CONTINUOUS.module.Normal(torch.zeros(2, 1), torch.zeros(1, 1))
    step = export.Step({}, policy, {}, actions=np.zeros((2, 1), np.float32))
    outputs = {"action": step.actions, "mean": np.zeros((2, 1)), "std": np.ones((2, 1))}
    assert export.difference(step, outputs, is_box=True) is None
    outputs["std"] = outputs["std"] + 0.1
    assert export.difference(step, outputs, is_box=True) == "its output std differs from the agent's"
    outputs |= {"mean": np.zeros((1, 2, 1)), "std": np.ones((2, 1))}
    assert export.difference(step, outputs, is_box=True) == "its output mean differs from the agent's"


def test_an_agent_of_seeds_continuous():
    """Its statistics have two axes more than an observation; the file takes and returns batches of vectors."""
    stats = SimpleNamespace(mean=np.full((1, 1, 3), 2.0), var=np.full((1, 1, 3), 4.0))
    player = SimpleNamespace(agent=torch.nn.Identity(), state=None, script=CONTINUOUS.module)
    graph = export.Graph(player, SimpleNamespace(obs_stats=stats), None)
    assert graph.normalized(torch.zeros(5, 3)).tolist() == [[-1.0] * 3] * 5


def test_actions_beyond_the_bounds_are_clipped(tmp_path):
    run = train(CONTINUOUS, TARGET, tmp_path)
    state = checkpoint(run)
    state["parts"]["agent"]["policy.bias"] += 5
    torch.save(state, max(run.glob("checkpoint_*.pt")))
    session = written(run, tmp_path)
    action, mean = session.run(["action", "mean"], {"obs": np.zeros((3, 4), np.float32)})
    assert action.tolist() == [[2]] * 3 and (mean > 4).all()


def test_a_copy_that_bounds_actions_in_its_own_way(tmp_path, monkeypatch):
    """With its function bound_actions in the graph."""
    own = "def bound_actions(actions, space):\n    return 2 * actions.clip(-2, 2)\n\n\nclass Normalize("
    run = edited(CONTINUOUS, TWICE | {"class Normalize(": own}, TARGET, tmp_path, monkeypatch)
    written(run, tmp_path)


def test_a_forward_for_one_size_of_batch(tmp_path, monkeypatch):
    """torch.export takes len() for a constant."""
    edits = {"        return self.get_policy(obs), values": "        values = values * len(obs)\n"
        "        return self.get_policy(obs[: len(obs)]), values"}  # fmt: skip
    run = edited(PPO, edits, CLOCK, tmp_path, monkeypatch)
    with pytest.raises((SystemExit, torch.onnx.OnnxExporterError)):
        written(run, tmp_path)
    assert not list(tmp_path.glob("agent.onnx*"))


def test_noise_in_the_network_is_seeded(tmp_path, monkeypatch):
    """So a difference that export.py finds can be found again."""
    edits = {"return self.get_policy(obs), values": "return Categorical(torch.randn(len(obs), 2)), values"}
    # which ends the training of such an agent
    edits['assert is_same, "get_policy() and forward() give different policies"'] = "pass"
    run = edited(PPO, edits, CLOCK, tmp_path, monkeypatch)
    actions = []
    for seed in (0, 0, 1):
        loaded = saved.load(run)
        envs, recorder = enjoy.record_inside(enjoy.make_envs(loaded), None)
        args = export.Args(run, tmp_path / "agent.onnx", steps=40, seed=seed)
        steps = export.record_steps(envs, recorder, enjoy.Player(loaded, envs), args)
        actions.append([step.actions.item() for step in steps])
    assert actions[0] == actions[1] != actions[2]
