"""What the command line answers: errors for what does not fit, before any training, and the options for --help."""

import dataclasses
import re

import gymnasium as gym
import in_process
import numpy as np
import pytest
import script_table
import tyro
from in_process import train
from processes import finish, start
from run_files import checkpoint, scalars
from script_table import ATARI, CLASSIC_CONTROL, CONTINUOUS, PPO, PROCGEN, ROOT, every_script, every_text, of_scripts

from benchmark.scripts import SCRIPTS


@every_script
def test_an_environment_that_does_not_fit(script, tmp_path):
    """The error names what fits, or comes from the library."""
    for env_id, named in script.unfit.items():
        with pytest.raises((Exception, SystemExit), match=re.escape(named)):
            train(script, f"--env-id {env_id}", tmp_path)


@every_script
def test_sizes_that_do_not_fit(script, tmp_path):
    args = script.module.Args()
    rollout = args.num_envs * args.num_steps
    for number in (3 if rollout % 3 else 7, rollout):  # a minibatch of one step has no deviation
        with pytest.raises(SystemExit, match="^error: .*minibatches"):
            train(script, f"--num-minibatches {number}", tmp_path)
    with pytest.raises(SystemExit, match="^error: --total-timesteps .* leaves no rollout"):
        train(script, f"--total-timesteps {rollout - 1}", tmp_path)


@of_scripts([PPO, script_table.MULTIGPU])
def test_a_launcher_of_several_processes(script, tmp_path, monkeypatch):
    """Each process would make the same run: one of several ends with a line, a single one trains."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="^error: .*docs/scale.md"):
        train(script, script.tiny, tmp_path)
    assert not list(tmp_path.glob("runs/*"))
    monkeypatch.setenv("WORLD_SIZE", "1")
    if script is PPO:
        train(script, script.tiny, tmp_path)


@pytest.mark.parametrize(
    ("script", "option"),
    [
        (PPO, "gamma 1.1"),
        (PPO, "gae-lambda -0.1"),
        (PPO, "clip-coef -0.2"),
        (PPO, "max-grad-norm 0"),
        (PROCGEN, "reward-gamma 99"),
    ],
)
def test_numbers_that_would_train_on_in_silence(script, option, tmp_path):
    with pytest.raises(SystemExit, match="^error: .*must be"):
        train(script, f"{script.tiny} --{option}", tmp_path)


def test_a_resume_of_something_else(tmp_path):
    """Another script's run, another environment, no run, and an id of a module, which gymnasium would import."""
    run = train(PPO, PPO.tiny, tmp_path)
    other = train(ATARI, ATARI.tiny, tmp_path)  # its options are not all ppo.py's
    for path, options, reason in (
        (other, "", "is a run of ppo_atari.py"),
        (run, " --env-id Acrobot-v1", "is a run of ppo.py on CartPole-v1"),
        (run.parent, "", "there is no such file or folder, or no intact checkpoint"),
        (run / "missing", "", "there is no such file or folder"),
    ):
        with pytest.raises(SystemExit, match=f"^error: .*{reason}"):
            train(PPO, f"--resume {path}{options} --total-timesteps 1024", tmp_path)
    run = train(PPO, f"--env-id toy_envs:CartPole-v1 {PPO.tiny}", tmp_path)
    with pytest.raises(SystemExit, match="^error: .*toy_envs:CartPole-v1"):
        train(PPO, f"--resume {run} --total-timesteps 1024", tmp_path)
    options = f"--resume {run} --env-id toy_envs:CartPole-v1 --total-timesteps 1024"
    assert checkpoint(train(PPO, options, tmp_path))["global_step"] == 1024


@every_script
def test_help_lists_every_option(script, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        tyro.cli(script.module.Args, args=["--help"])
    shown = " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    source, fields = (ROOT / f"{script.name}.py").read_text(), dataclasses.fields(script.module.Args)
    assert len(fields) > 20
    for field in fields:
        [comment] = re.findall(rf"^    {field.name}: [^#\n]+  # (.+)$", source, re.MULTILINE)
        assert f"--{field.name.replace('_', '-')}" in shown and comment in shown


@every_text
def test_defaults_are_the_papers(script):
    """None stands for an option that the script lacks."""
    expected = CLASSIC_CONTROL | script.defaults | {"env_id": SCRIPTS[script.name].env_id}
    args = vars(script.module.Args())
    assert {name: args.get(name) for name in expected} == expected


class Odd(gym.Env):
    """An environment with any observations and actions, and infos that hold anything, and no two the same keys."""

    def __init__(self, observations, actions):
        self.observation_space, self.action_space = observations, actions

    def reset(self, seed=None, options=None):
        self.steps = 0
        return self.observation_space.sample(), {"object": object()}

    def step(self, action):
        assert self.action_space.contains(action)
        self.steps += 1
        info = {"list": [1, "2", None], "ragged": np.zeros(self.steps), "number": None if self.steps % 2 else 1.0}
        info |= {"episode": "my own", "_episode": 3, "final_obs": {}, "final_info": [], "is_success": True}
        return self.observation_space.sample(), 1.0, self.steps == 7, False, info


def train_on(script, observations, actions, folder):
    with in_process.patched((gym, "make", lambda *_, **__: Odd(observations, actions))):
        return train(script, script.tiny.replace("--env-id Hopper-v5", ""), folder)


BOX = gym.spaces.Box(-1, 1, (4,))
FINE = {
    "dict": gym.spaces.Dict(a=BOX, b=gym.spaces.Discrete(3)), "tuple": gym.spaces.Tuple([BOX, BOX]),
    "matrix": gym.spaces.Box(-1, 1, (2, 2)), "scalar": gym.spaces.Box(-1, 1, ()), "discrete": gym.spaces.Discrete(3),
    "multidiscrete": gym.spaces.MultiDiscrete([3, 4]), "integers": gym.spaces.Box(-5, 5, (3,), "int64"),
    "float64": gym.spaces.Box(-5, 5, (3,), "float64"), "grid": gym.spaces.Box(0, 1, (2, 12, 12)),
}  # fmt: skip


@pytest.mark.parametrize("kind", FINE)
@pytest.mark.parametrize("script", [PPO, CONTINUOUS], ids=lambda script: script.name)
def test_observations_that_can_be_flattened(script, kind, tmp_path):
    actions = gym.spaces.Discrete(2) if script is PPO else gym.spaces.Box(-1, 1, (2,))
    run = train_on(script, FINE[kind], actions, tmp_path)
    state = checkpoint(run)
    assert {length for _, length in scalars(run)["charts/episodic_length"]} == {7}
    weights = next(tensor for name, tensor in state["parts"]["agent"].items() if name.endswith("weight"))
    assert state["global_step"] == 512 and weights.shape[1] == gym.spaces.flatdim(FINE[kind])


@pytest.mark.parametrize(
    "script, observations, actions, said",
    [
        (PPO, gym.spaces.Box(0, 255, (84, 84, 4), "uint8"), gym.spaces.Discrete(2), "images,"),
        (PPO, gym.spaces.Box(0, 255, (84, 84), "uint8"), gym.spaces.Discrete(2), "images,"),
        (PPO, BOX, gym.spaces.Discrete(2, start=5), "actions"),
        (CONTINUOUS, BOX, gym.spaces.Box(-2, 2, ()), "actions"),
        (CONTINUOUS, BOX, gym.spaces.Box(-2, 2, (2,), "int32"), "actions"),
        (script_table.MULTIDISCRETE, BOX, gym.spaces.MultiBinary(3), "actions"),
        (script_table.MULTIDISCRETE, BOX, gym.spaces.MultiDiscrete([[2, 2], [2, 2]]), "actions"),
        (script_table.MULTIDISCRETE, BOX, gym.spaces.MultiDiscrete([3, 2], start=[1, 0]), "actions"),
    ],
)
def test_spaces_that_do_not_fit(script, observations, actions, said, tmp_path):
    with pytest.raises(SystemExit, match=f"^error: .* has (the )?{said} "):
        train_on(script, observations, actions, tmp_path)


def test_a_run_as_a_program(tmp_path):
    """Its exit status is 0, and its output has no warning and no control sequences."""
    status, output, errors = finish(start([PPO.module.__file__, *PPO.tiny.split()], tmp_path))
    assert status == 0 and output.startswith("runs/CartPole-v1__ppo__1__")
    assert re.search("512/512 .*return", errors) and not re.search("warning|\x1b", errors, re.IGNORECASE)
