"""What the command line answers: to bad input one line, "error: ...", before any training; to --help the options."""

import dataclasses
import re
import sys

import pytest
import torch
from test_procgen import every_script_with_its_games
from toy_envs import (
    ATARI,
    CLASSIC_CONTROL,
    LSTM,
    ROOT,
    SCRIPTS,
    checkpoint,
    every_script,
    finish,
    same_weights,
    start,
    train,
)

ppo = SCRIPTS[0]


def one_line(capfd, end):
    """What is said where the program ends; the emulator's own two lines, which it says when it is loaded, aside."""
    assert isinstance(end.value.code, str)  # which python prints on stderr, and exits with status 1
    said = re.sub(r"A\.L\.E: .*\n\[Powered by Stella\]\n", "", capfd.readouterr().err) + end.value.code
    assert re.fullmatch(r"error: .+", said), f"not one line: {said!r}"
    return said


def files(folder):
    """All that is in a folder, but for an empty folder of runs."""
    return {path for path in folder.rglob("*") if path.name != "runs" or list(path.iterdir())}


def refusal(script, options, folder, capfd):
    """The one line with which `options` end the program; nothing else may be said, and no new file be there after."""
    before = files(folder)
    with pytest.raises(SystemExit) as end:
        train(script, options, folder)
    said = one_line(capfd, end)
    assert files(folder) == before
    return said


@every_script
def test_an_environment_that_does_not_exist(script, tmp_path):
    """As a user sees it: the real program, its exit status and all that it says."""
    slip, right = script.near_miss
    status, output, errors = finish(start([ROOT / f"{script.name}.py", "--env-id", slip], tmp_path))
    assert status == 1 and "Traceback" not in errors
    assert re.fullmatch(rf"error: .*{right}.*\n", errors)
    assert not files(tmp_path)


@every_script
def test_an_environment_that_does_not_fit(script, tmp_path, capfd):
    for env_id, named in script.unfit.items():
        assert named in refusal(script, f"--env-id {env_id}", tmp_path, capfd)


@pytest.mark.parametrize("script", [ATARI, LSTM], ids=lambda script: script.name)
def test_gymnasiums_other_ids_of_a_game_name_the_right_one(script, tmp_path, capfd):
    for env_id in ("ALE/Pong-v5", "Pong-v4", "Pong-v0", "Pong"):
        assert "such as PongNoFrameskip-v4" in refusal(script, f"--env-id {env_id}", tmp_path, capfd)
    assert "such as BreakoutNoFrameskip-v4" in refusal(script, "--env-id CartPole-v1", tmp_path, capfd)


@every_script
def test_an_environment_that_does_not_fit_leaves_no_folder_for_films(script, tmp_path, capfd):
    for env_id in script.unfit:
        refusal(script, f"--env-id {env_id} --capture-video", tmp_path, capfd)


@every_script
@pytest.mark.parametrize("env_id", ["NoSuchNoFrameskip-v4", "NoSuchNoFrameskip-v0", "no_such_module:NoFrameskip-v4"])
def test_ids_that_name_nothing(script, env_id, tmp_path, capfd):
    assert "pip install None" not in refusal(script, f"--env-id {env_id}", tmp_path, capfd)


@every_script
def test_numbers_that_cannot_work(script, tmp_path, capfd):
    """Those that PPO needs: counts from 1 up, sizes that divide, discounts from 0 to 1."""
    for flag in ("--num-envs", "--num-steps", "--num-minibatches", "--update-epochs", "--threads"):
        for number in ("0", "-1"):
            said = refusal(script, f"{flag} {number}", tmp_path, capfd)
            assert flag in said and number in said
    for flag in ("--gamma", "--gae-lambda"):
        for number in ("-0.1", "1.1", "nan", "inf"):
            said = refusal(script, f"{flag} {number}", tmp_path, capfd)
            assert flag in said and number in said
    for flag in ("--learning-rate", "--clip-coef", "--max-grad-norm"):
        for number in ("-1.0", "nan", "inf"):
            said = refusal(script, f"{flag} {number}", tmp_path, capfd)
            assert flag in said and number in said
    assert "--seed" in refusal(script, "--seed -1", tmp_path, capfd)
    for number in ("0", "1000000000000", "9" * 20):
        assert f"--total-timesteps {number}:" in refusal(script, f"--total-timesteps {number}", tmp_path, capfd)
    rollout = script.module.Args().num_envs * script.module.Args().num_steps
    for number in (3 if rollout % 3 else 5, rollout, 2 * rollout):  # a minibatch of one step has no deviation
        assert "--num-minibatches" in refusal(script, f"--num-minibatches {number}", tmp_path, capfd)
    assert str(rollout) in refusal(script, f"--total-timesteps {rollout - 1}", tmp_path, capfd)


def test_other_numbers_are_the_users(tmp_path):
    """A copy's option may be 0 or negative, and so may those whose sign PPO does not need."""
    options = "--ent-coef -0.01 --vf-coef 0 --target-kl 0 --learning-rate 0 --gamma 0 --save-every 0 --seed 0"
    args = checkpoint(train(ppo, f"{ppo.tiny} {options}", tmp_path))["args"]
    assert args["ent_coef"] == -0.01 and args["vf_coef"] == args["target_kl"] == args["learning_rate"] == 0


@every_script
@pytest.mark.parametrize("options", ["--no-such-flag", "--num-envs four", "--num-envs 2.5", "CartPole-v1"])
def test_a_wrong_flag(script, options, tmp_path, capfd):
    with pytest.raises(SystemExit) as end:
        train(script, options, tmp_path)
    assert end.value.code == 2 and capfd.readouterr().err and not files(tmp_path)


@every_script
def test_resume_of_nothing(script, tmp_path, capfd):
    (tmp_path / "empty").mkdir()
    (tmp_path / "checkpoint.txt").write_text("not a checkpoint")
    (tmp_path / "nothing.pt").touch()
    (tmp_path / "half.pt").write_bytes(b"PK\x03\x04" + bytes(100))
    torch.save({"weights": torch.zeros(3)}, tmp_path / "another.pt")
    (tmp_path / "of_damaged").mkdir()
    (tmp_path / "of_damaged" / "checkpoint_000000000064.pt").write_bytes(b"PK")
    for name in ("missing", "empty", "checkpoint.txt", "nothing.pt", "half.pt", "another.pt", "of_damaged"):
        assert name in refusal(script, f"--resume {name}", tmp_path, capfd)


@every_script
def test_resume_of_another_scripts_run(script, tmp_path, capfd):
    other = SCRIPTS[0] if script is not SCRIPTS[0] else SCRIPTS[1]  # they run on every machine
    run = train(other, f"{other.tiny} --num-envs 1 --num-steps 4 --total-timesteps 4 --num-minibatches 1", tmp_path)
    capfd.readouterr()
    before = checkpoint(run)
    with pytest.raises(SystemExit) as end:
        train(script, f"--resume {run}", tmp_path)
    one_line(capfd, end)
    assert same_weights(checkpoint(run), before) and len(list(run.glob("events.*"))) == 1


def test_resume_with_another_environment(tmp_path, capfd):
    run = train(ppo, ppo.tiny, tmp_path)
    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        train(ppo, f"--resume {run} --env-id Acrobot-v1", tmp_path)
    assert "Acrobot-v1" in one_line(capfd, end)
    with pytest.raises(SystemExit) as end:
        train(ppo, f"--resume {run} --seed 2", tmp_path)
    assert "['CartPole-v1', 2, 'ppo']" in one_line(capfd, end)


@every_script
def test_a_package_that_the_script_needs_is_missing(script, tmp_path):
    for package in script.packages:
        folder = tmp_path / f"without_{package}"
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(
            f"raise ModuleNotFoundError(\"No module named '{package}'\", name='{package}')"
        )
        program = [ROOT / f"{script.name}.py", *script.quick.split()]
        status, _, errors = finish(start(program, folder, PYTHONPATH=str(folder)))
        assert status == 1 and re.fullmatch(rf"error: .*{package}.*pip install .+\n", errors)
        assert not list(folder.glob("runs/*"))


@every_script_with_its_games
@pytest.mark.parametrize("flag, package", [("--track", "wandb"), ("--capture-video", "moviepy")])
def test_a_package_for_an_option_is_missing(script, flag, package, tmp_path, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # its import raises ModuleNotFoundError
    for module in [name for name in sys.modules if name.startswith(f"{package}.")]:
        monkeypatch.setitem(sys.modules, module, None)
    said = refusal(script, f"{script.quick} {flag}", tmp_path, capfd)
    assert package in said.lower() and "pip install" in said


@every_script
def test_runs_cannot_be_written(script, tmp_path, capfd):
    (tmp_path / "blocked").write_text("a file, so that the folder cannot be made, not even by root")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("blocked", "blocked/below", "dangling"):
        assert name in refusal(script, f"{script.quick} --runs-folder {name}", tmp_path, capfd)


@every_script
def test_help_lists_every_option(script, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as end:
        train(script, "--help", tmp_path)
    shown = " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    assert end.value.code == 0 and not files(tmp_path)
    source = (ROOT / f"{script.name}.py").read_text()
    fields = dataclasses.fields(script.module.Args)
    assert len(fields) > 20
    for field in fields:
        [comment] = re.findall(rf"^    {field.name}: [^#\n]+  # (.+)$", source, re.MULTILINE)
        assert f"--{field.name.replace('_', '-')}" in shown and comment in shown


@every_script
def test_defaults_are_the_papers(script):
    assert CLASSIC_CONTROL.items() | script.defaults.items() >= script.defaults.items()
    expected = CLASSIC_CONTROL | script.defaults
    args = vars(script.module.Args())
    assert {name: args[name] for name in expected} == expected
