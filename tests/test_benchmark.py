"""benchmark/: sweeps go on where they were stopped, no run is dropped in silence, the README says what results say."""

import csv
import json
import lzma
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from toy_envs import ROOT, SCRIPTS, finish, scalars, train

from benchmark import collect, compare, report, sweep

PPO = SCRIPTS[0]
SWEEPS = sorted((ROOT / "benchmark").glob("*/*.sh"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of runs of ppo.py on CartPole-v1 of 2048 steps in 4 updates: seed 1 is done, seed 2 lacks the last."""
    folder = tmp_path_factory.mktemp("sweep")
    for seed in (1, 2):
        train(PPO, f"--total-timesteps 2048 --save-every 1 --seed {seed}", folder)
    [last] = folder.glob("runs/CartPole-v1__ppo__2__*/checkpoint_000000002048.pt")
    last.unlink()
    return folder


@pytest.fixture
def run(folder, tmp_path):
    """A copy of the run that is done."""
    [done] = folder.glob("runs/CartPole-v1__ppo__1__*")
    return shutil.copytree(done, tmp_path / done.name)


def stopped(folder):
    """A copy of the run that is not done."""
    return next(folder.glob("runs/CartPole-v1__ppo__2__*"))


def start_sweep(script, *words, **variables):
    """Starts benchmark/<script> as a user does."""
    variables = {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"} | {k: str(v) for k, v in variables.items()}
    command, pipe = [ROOT / "benchmark" / script, *words], subprocess.PIPE
    return subprocess.Popen(command, env=os.environ | variables, stdout=pipe, stderr=pipe, text=True)


def table(results, kind):
    [path] = Path(results).glob(f"*/*.{kind}.csv.xz")
    return report.read_table(path)


# SWEEPS


def test_a_sweep_that_was_killed_repeats_nothing(folder, tmp_path):
    """The done run is skipped, the other one goes on from its checkpoint, also after the sweep itself was stopped."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*__1__*/*")}
    words, variables = ("ppo.py", "CartPole-v1"), dict(FOLDER=tmp_path, SEEDS="1 2", TOTAL_TIMESTEPS=2048)

    process = start_sweep("ours/classic_control.sh", *words, **variables)
    said = [process.stdout.readline(), process.stdout.readline()]
    assert said == ["done: CartPole-v1__ppo__1__2048\n", "started: CartPole-v1__ppo__2__2048\n"]
    process.send_signal(signal.SIGTERM)
    assert finish(process) == (1, "", "stopped; the same command goes on\n")

    process = start_sweep("ours/classic_control.sh", *words, **variables)
    status, output, _ = finish(process)
    assert (status, output.splitlines()) == (
        0, [*map(str.strip, said), "finished: logs/CartPole-v1__ppo__2__2048.log"]
    )  # fmt: skip
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*__1__*/*")} == before
    [run] = tmp_path.glob("runs/*__2__*")
    assert [step for step, _ in scalars(run)["losses/policy_loss"]] == [512, 1024, 1536, 2048]
    assert "2.05k/2.05k" in (tmp_path / "logs" / "CartPole-v1__ppo__2__2048.log").read_text()
    assert json.loads((run / "machine.json").read_text())["runs_at_once"] == 1


def test_options_are_shown_as_they_are_typed():
    options = {"num_envs": 16, "bf16": True, "anneal_lr": False}
    assert [*map(report.typed, options.items())] == ["--num-envs 16", "--bf16", "--no-anneal-lr"]


def test_a_sweep_knows_a_run_by_script_and_options(folder):
    def make(line="ppo.py --env-id CartPole-v1", seed="1", steps="2048"):
        return sweep.Ours(line.split(), seed, steps, folder)

    assert make().done() and make("ppo.py --env-id CartPole-v1 --no-cuda --save-every 7").done()
    others = [make(steps="4096"), make("ppo_shared.py"), make("ppo.py --env-id Acrobot-v1"), make(seed="3")]
    for other in [*others, make("ppo.py --gamma 0.9"), make("ppo.py --anneal-clip"), make(seed="2")]:
        assert not other.done()
        assert ("--resume" in other.command()) == (other.args["seed"] == 2)
    assert len({one.name for one in [make(), *others]}) == 5
    assert make("ppo.py --gamma 0.9").name == "CartPole-v1__ppo__1__2048__gamma=0.9"
    assert len(make(f"ppo.py --exp-name {'x' * 300}").name) < 200


def test_a_sweep_does_not_take_another_run_for_its_own(run, tmp_path):
    """One from before an option existed has its default; one that began from a checkpoint's file is another."""
    about = json.loads((run / "run.json").read_text())
    (tmp_path / "runs").mkdir()
    run = run.rename(tmp_path / "runs" / run.name)

    def done(line="ppo.py"):
        return sweep.Ours(line.split(), "1", "2048", tmp_path).done()

    del about["args"]["anneal_clip"]
    (run / "run.json").write_text(json.dumps(about))
    assert done() and not done("ppo.py --anneal-clip")
    about["args"]["resume"] = "runs/other/checkpoint_000000000512.pt"
    (run / "run.json").write_text(json.dumps(about))
    assert not done()


def test_a_sweep_shares_the_cores_that_it_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert sweep.machine(1)["cores"] == sweep.cores() == 2


def test_a_sweep_finds_a_named_run_in_its_folder(run, tmp_path, monkeypatch):
    """By its --exp-name in its --runs-folder, and not one of another script with the same name."""
    (tmp_path / "ppo_named.py").write_text((ROOT / "ppo.py").read_text())
    monkeypatch.syspath_prepend(tmp_path)

    def make():
        words = "ppo_named.py --exp-name mine --runs-folder elsewhere".split()
        return sweep.Ours(words, "1", "2048", tmp_path)

    assert make().name == "CartPole-v1__ppo_named__1__2048__exp_name=mine"
    copy_of(run, tmp_path / "elsewhere", exp_name="mine")
    assert not make().done()
    made = copy_of(run, tmp_path / "elsewhere", "ppo_named", exp_name="mine", threads=1)
    assert make().done() and make().run() == made
    assert make().command()[-4:] == ["--resume", f"elsewhere/{made.name}", "--env-id", "CartPole-v1"]


def test_a_sweep_of_an_environment_in_a_module_goes_on(run, tmp_path, monkeypatch):
    """A script refuses such a resume unless the command names the environment."""
    copy_of(run, tmp_path / "runs", env_id="gymnasium.envs:CartPole-v1").rename(
        tmp_path / "runs" / run.name.replace("CartPole-v1", "gymnasium.envs-CartPole-v1")
    )
    words = "ppo.py --env-id gymnasium.envs:CartPole-v1".split()
    command = sweep.Ours(words, "1", "2048", tmp_path).command()
    assert command[-2:] == ["--env-id", words[-1]] and "--resume" in command


def test_two_sweeps_do_not_make_the_same_run(tmp_path, monkeypatch):
    """The log is locked by the run itself, even when its sweep is no more."""
    run = sweep.Ours(["ppo.py"], "1", "512", tmp_path)
    monkeypatch.setattr(run, "command", lambda: ["sleep", "60"])
    process = sweep.start(run, tmp_path)
    try:
        assert sweep.start(run, tmp_path) == "busy"
    finally:
        process.kill()
        process.wait()
    second = sweep.start(run, tmp_path)
    second.kill()
    second.wait()


def test_a_sweep_reports_what_failed(tmp_path, monkeypatch, capsys):
    """And makes the other runs."""
    for name, value in {"FOLDER": tmp_path, "SEEDS": "1 2", "TOTAL_TIMESTEPS": 512, "OMP_NUM_THREADS": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    fails = lambda run: [sys.executable, "-c", f"import sys; print('so it was'); sys.exit({run.args['seed'] == 1})"]  # noqa
    monkeypatch.setattr(sweep.Ours, "command", fails)
    assert sweep.main(["ppo.py"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "started: CartPole-v1__ppo__1__512", "failed: logs/CartPole-v1__ppo__1__512.log",
        "started: CartPole-v1__ppo__2__512", "finished: logs/CartPole-v1__ppo__2__512.log",
    ]  # fmt: skip
    assert (tmp_path / "logs" / "CartPole-v1__ppo__1__512.log").read_text() == "so it was\n"


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_sweep_lists_its_runs(path):
    """Each with every seed."""
    status, output, _ = finish(start_sweep(path.relative_to(ROOT / "benchmark"), LIST=1, SEEDS="1 5"))
    lines = output.splitlines()
    assert status == 0 and len(lines) == len(set(lines)) > 1 and lines[0].endswith(" (seed 1)")
    assert {line.split()[0] for line in lines} <= {f"{name}.py" for name in report.PAIRS} | set(report.PAIRS.values())


@pytest.mark.parametrize("script", ["sweep.py", "ours/classic_control.sh"])
def test_help_starts_no_sweep(script):
    """Whatever stands beside it; and an option of an experiment is a word like any other."""
    python = [sys.executable] if script.endswith(".py") else []
    command = [*python, ROOT / "benchmark" / script, "CartPole-v1", "--help"]
    environment = os.environ | {"PYTHON": sys.executable, "LIST": "1"}
    process = subprocess.run(command, env=environment, input="ppo.py\n", capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith("usage: sweep.py [-h] [WORD ...]") and "LIST=1 lists the runs" in process.stdout
    command = [sys.executable, ROOT / "benchmark" / "sweep.py", "--env-id", "A-v0", "--bf16"]
    lines = "ppo.py --env-id A-v0\nppo.py --bf16 --env-id A-v0\n"
    process = subprocess.run(command, env=environment | {"SEEDS": "1"}, input=lines, capture_output=True, text=True)
    assert process.stdout == "ppo.py --bf16 --env-id A-v0 (seed 1)\n"


def test_a_task_of_a_slurm_array_is_one_of_the_runs():
    """And there is no task beyond the last."""
    path = ROOT / "benchmark" / "ours" / "atari.sh"
    lines = finish(start_sweep("ours/atari.sh", LIST=1, SEEDS="1 5"))[1].splitlines()
    slurm = {"SLURM_ARRAY_TASK_ID": "3", "LIST": "1", "SEEDS": "1 5", "PYTHON": sys.executable}
    command = [ROOT / "benchmark" / "slurm.sh", path]
    fourth = subprocess.run(command, env=os.environ | slurm, capture_output=True, text=True)
    assert fourth.stdout.splitlines() == [lines[3]]
    slurm["SLURM_ARRAY_TASK_ID"] = str(len(lines))
    assert subprocess.run(command, env=os.environ | slurm, capture_output=True, text=True).stderr.startswith("error: ")


# COLLECTING

WRECKS = {  # what is done to a run, and the reason that is given
    "no run.json": (lambda run: (run / "run.json").unlink(), "run.json"),
    "half a run.json": (lambda run: os.truncate(run / "run.json", 100), "JSONDecodeError"),
    "no checkpoint": (lambda run: [path.unlink() for path in run.glob("*.pt")], "no checkpoint"),
    "half a log": (lambda run: [os.truncate(path, 4000) for path in run.glob("events.*")], "the log has"),
    "no log": (lambda run: [path.unlink() for path in run.glob("events.*")], "the log has none of the 4 updates"),
    "a flipped bit": (lambda run: [flip(path) for path in run.glob("events.*")], "the log has"),
    "no script": (lambda run: (run / "ppo.py").unlink(), "ppo.py"),
    "begun from a file": (lambda run: with_args(run, resume="x/checkpoint_000000000512.pt"), "begun from x/checkpoint"),
    "a file": (lambda run: (shutil.rmtree(run), run.write_text("")), "not the folder of a run"),
}


def with_args(run, **args):
    """Gives a run other arguments in its run.json."""
    about = json.loads((run / "run.json").read_text())
    about["args"] |= args
    (run / "run.json").write_text(json.dumps(about))


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("wreck", WRECKS)
def test_a_broken_run_is_named_and_left_out(wreck, run, folder, tmp_path, monkeypatch, capsys):
    """And the one beside it is collected."""
    damage, reason = WRECKS[wreck]
    damage(run)
    monkeypatch.setattr(sys, "argv", ["", str(run), str(stopped(folder)), "--results", str(tmp_path / "results")])
    assert collect.main() is True
    broken, good = capsys.readouterr().out.splitlines()
    assert broken.startswith(f"broken, left out: {run}: ") and reason in broken
    assert good.startswith("collected: ") and good.endswith(" episodes") and "1536 of 2048 steps" in good
    [about] = (tmp_path / "results" / "ours").glob("*.json")
    assert json.loads(about.read_text())["seed"] == 2


def test_a_run_that_names_itself_as_what_it_went_on_with_is_whole(run):
    """Scripts wrote that at first."""
    with_args(run, resume=f"runs/{run.name}")
    assert collect.describe(run)["script"] == "ppo"


def test_what_is_collected_is_what_was_logged(run, tmp_path, monkeypatch):
    read = collect.events(run)
    read["charts/episodic_length"] = [(step, 7 + length, t) for step, length, t in read["charts/episodic_length"]]
    monkeypatch.setattr(collect, "events", lambda _: read)  # of CartPole the return is the length
    collect.collect(run, tmp_path, "a test")
    logged, episodes, updates = scalars(run), table(tmp_path, "episodes"), table(tmp_path, "updates")
    assert list(zip(episodes["step"], episodes["return"], strict=True)) == logged["charts/episodic_return"]
    assert list(zip(episodes["step"], episodes["length"] - 7, strict=True)) == logged["charts/episodic_length"]
    assert {"policy_loss", "approx_kl_ppo2", "explained_variance", "learning_rate", "SPS"} < updates.keys()
    for name in updates.keys() - {"step", "seconds"}:
        kind = "charts" if name in ("SPS", "learning_rate") else "losses"
        np.testing.assert_allclose(updates[name], [value for _, value in logged[f"{kind}/{name}"]], rtol=1e-3)
    assert updates["step"].tolist() == [512, 1024, 1536, 2048] and (np.diff(updates["seconds"]) >= 0).all()
    [about] = (tmp_path / "ours").glob("CartPole-v1__ppo__1__total_timesteps=2048.json")
    about = json.loads(about.read_text())
    assert about["command"] == "python ppo.py --env-id CartPole-v1 --seed 1 --total-timesteps 2048"
    assert about["options"] == {"total_timesteps": 2048} and about["machine"] == "a test"
    assert about["steps"] == about["steps_wanted"] == 2048 and "torch" in about["versions"]
    hashed = subprocess.run(["git", "hash-object", run / "ppo.py"], capture_output=True, text=True, check=True)
    assert about["source"] == hashed.stdout.strip()


def test_a_run_counts_up_to_its_checkpoint_and_gives_way_to_a_longer_one(folder, run, tmp_path):
    part = stopped(folder)
    assert "1536 of 2048 steps" in collect.collect(part, tmp_path / "results", None)
    assert table(tmp_path / "results", "updates")["step"].tolist() == [512, 1024, 1536]
    assert table(tmp_path / "results", "episodes")["step"].max() <= 1536
    about = json.loads((run / "run.json").read_text())
    about["args"]["seed"] = 2  # as if the other had been done
    (run / "run.json").write_text(json.dumps(about))
    assert "collected: " in collect.collect(run, tmp_path / "results", None)
    assert "left out: " in collect.collect(part, tmp_path / "results", None)
    assert table(tmp_path / "results", "updates")["step"].max() == 2048


def test_options_that_a_resume_changed_make_another_experiment(folder, tmp_path):
    """Not one of the first options, nor of the last; what was given again as it was, or after the end, is none."""
    run = shutil.copytree(stopped(folder), tmp_path / "run")
    train(PPO, f"--resume {run} --learning-rate 2.5e-4 --threads 1", folder)
    assert collect.describe(run)["options"] == {"total_timesteps": 2048}
    assert sweep.Ours(["ppo.py"], "2", "2048", run).same(json.loads((run / "run.json").read_text())["args"])
    assert not collect.changes(run, "ppo", json.loads((run / "run.json").read_text())["args"])
    train(PPO, f"--resume {run} --total-timesteps 3072 --gamma 0.9 --no-anneal-lr", folder)
    (run / "run_000000003072.json").write_text((run / "run_000000002048.json").read_text().replace("3072", "9999"))
    about = collect.describe(run)
    changed = {
        "anneal_lr": "True, from step 2048 False", "gamma": "0.99, from step 2048 0.9",
        "total_timesteps": "2048, from step 2048 3072",
    }  # fmt: skip
    assert about["options"] == changed and about["steps_wanted"] == 3072
    assert "3072 steps" in collect.collect(run, tmp_path / "results", None)
    [collected] = (tmp_path / "results/ours").glob("*.json")
    assert json.loads(collected.read_text())["command"].endswith(
        " --seed 2 --anneal-lr --gamma 0.99 --total-timesteps 2048"
    )
    assert compare.without_steps(about) == "ppo --anneal-lr True, from step 2048 False --gamma 0.99, from step 2048 0.9"
    first = json.loads((run / "run.json").read_text())
    for option in ("target_kl", "gamma", "exp_name"):  # as if there had not been these options
        del first["args"][option]
    (run / "run.json").write_text(json.dumps(first))
    assert collect.describe(run)["options"].keys() == {*changed}
    (tmp_path / "runs").mkdir()
    run = run.rename(tmp_path / "runs" / "CartPole-v1__ppo__2__now")
    assert sweep.Ours(["ppo.py"], "2", "2048", tmp_path).run() is None
    with_args(run, num_envs=2)
    with pytest.raises(collect.Broken, match="num_envs or num_steps was changed"):
        collect.describe(run)


def test_texts_that_a_resume_changed_are_told(folder, tmp_path):
    """Not one that is as it was, nor one that no step was made with."""
    run = shutil.copytree(stopped(folder), tmp_path / "run")
    first = (run / "ppo.py").read_text()
    for step, text in ((512, first), (1024, f"{first}# edited"), (1280, f"{first}# edited"), (1536, first)):
        (run / f"ppo_{step:012}.py").write_text(text)
    collect.collect(run, tmp_path / "results", None)
    [about] = map(json.loads, (path.read_text() for path in (tmp_path / "results/ours").glob("*.json")))
    hashed = subprocess.run(["git", "hash-object", run / "ppo_000000001024.py"], capture_output=True, text=True)
    assert about["resumed"] == [{"commit": None, "source": hashed.stdout.strip(), "step": 1024}]
    [runs] = report.load(tmp_path / "results").values()
    [row] = report.run_rows({"": runs})
    assert row[7] == f"{(about['commit'] or 'not committed')[:13]}, from 1,024 not committed"
    (run / "ppo_000000001024.py").unlink()
    (run / "ppo_000000001280.py").unlink()
    assert "resumed" not in collect.describe(run)


def test_a_name_with_many_options_is_not_too_long(run, tmp_path):
    folder = copy_of(run, tmp_path, **{f"option_{i}": 0.123456789 for i in range(5)})
    with_args(folder, **{f"option_{i}": 0.123456789 for i in range(20)})
    assert "collected: " in collect.collect(folder, tmp_path / "results", None)
    with_args(folder, **{f"option_{i}": 0.2 for i in range(20)})
    assert "in place of" not in collect.collect(folder, tmp_path / "results", None)
    files = [file.name for file in (tmp_path / "results/ours").iterdir()]
    assert len(files) == 6 and max(map(len, files)) < 220


def test_the_commit_is_the_first_with_the_script_as_it_was_run():
    assert collect.origin("ppo.py", b"never committed") == {"commit": None}
    for at in collect.git("log", "--format=%H", "--", "ppo.py").decode().split()[:1]:  # none without a checkout
        assert collect.origin("ppo.py", collect.git("show", f"{at}:ppo.py")) == {"commit": at}


def test_every_result_of_ours_names_its_commits():
    """So whoever doubts a score can run the script that made it, as it was."""
    results = list((ROOT / "benchmark" / "results" / "ours").glob("*.json"))
    assert len(results) >= 100
    for result in results:
        about = json.loads(result.read_text())
        assert all(text["commit"] for text in [about, *about.get("resumed", [])]), result.name


def test_the_recipe_that_made_a_script_is_named(folder, tmp_path):
    recipe = "recipes/without/core-3.diff"
    for at in collect.git("log", "--format=%H", "--", "ppo.py", recipe).decode().split()[:1]:  # none without a checkout
        text, diff = (collect.git("show", f"{at}:{file}") for file in ("ppo.py", recipe))
        made = collect.patched("ppo.py", text, diff)
        expected = {"commit": at, "recipe": recipe}
        assert collect.origin("my_ppo.py", made) == expected
        assert collect.origin("my_ppo.py", made + b"# edited") == {"commit": None}
        run = shutil.copytree(stopped(folder), tmp_path / "run")
        (run / "ppo_000000001024.py").write_bytes(made)
        collect.collect(run, tmp_path / "results", None)
        [path] = (tmp_path / "results/ours").glob("*.json")
        [later] = json.loads(path.read_text())["resumed"]
        assert later == expected | {"step": 1024, "source": collect.hashed(made)}
        [row] = report.run_rows(report.load(tmp_path / "results"))
        assert row[7].endswith(f", from 1,024 {at[:13]} with core-3.diff")


BASELINES = """#!/usr/bin/env python3
# Writes what baselines.run does: its log, and a monitor for each environment.
import json, sys
from pathlib import Path
if sys.argv[1:3] == ["-m", "pip"]:
    print(json.dumps([dict(name="tensorflow", version="1.15.5"), dict(name="absl-py", version="1")]))
    sys.exit()
options = dict(word.lstrip("-").split("=", 1) for word in sys.argv[3:])
log = Path(options["log_path"])
(log / "options.json").write_text(json.dumps(options))
names = "loss/policy_loss loss/value_loss loss/policy_entropy loss/approxkl loss/clipfrac misc/explained_variance fps"
with open(log / "progress.csv", "w") as file:
    print(*names.split(), "misc/time_elapsed", "misc/total_timesteps", sep=",", file=file)
    for update in range(1, int(float(options["num_timesteps"])) // 512 + 1):
        print(*[0.5] * 7, update * 2.0, update * 512, sep=",", file=file)
for i in range(4):
    (log / f"0.{i}.monitor.csv").write_text(f'#{{"t_start": 1.0}}\\nr,l,t\\n{i}.5,{100 + i},1.25\\n7,20,2.5\\n')
"""


def test_a_run_of_ppo2(tmp_path, monkeypatch):
    """With a stand-in for the Python that has baselines: its options arrive, it is done once, and it is collected."""
    (tmp_path / "python").write_text(BASELINES.replace("/usr/bin/env python3", sys.executable))
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setenv("BASELINES_PYTHON", str(tmp_path / "python"))
    words = ["ppo2_copy", "--env=CartPole-v1", "--num_timesteps=5e5", "--num_env=4", "--lr=lambda f: f * 2.5e-4"]
    run = sweep.PPO2(words, "3", "2000", tmp_path)
    assert not run.done()
    assert sweep.start(run, tmp_path).wait() == 0
    assert sweep.start(run, tmp_path) == "done"
    options = json.loads((run.folder / "options.json").read_text())
    assert options["lr"] == "lambda f: f * 2.5e-4" and options["seed"] == "3" and options["alg"] == "ppo2"
    assert "1536 steps, 8 episodes" in collect.collect(run.folder, tmp_path / "results", None)
    episodes, updates = table(tmp_path / "results", "episodes"), table(tmp_path / "results", "updates")
    assert episodes["step"].tolist() == [400, 404, 408, 412, 480, 484, 488, 492]  # 4 environments step together
    assert episodes["return"].tolist() == [0.5, 1.5, 2.5, 3.5, 7, 7, 7, 7]
    assert updates["step"].tolist() == [512, 1024, 1536] and updates["seconds"].tolist() == [2, 4, 6]
    [about] = (tmp_path / "results" / "ppo2").glob("CartPole-v1__ppo2_copy__3.json")
    about = json.loads(about.read_text())
    assert about["steps_wanted"] == 1536 and about["versions"] == {"tensorflow": "1.15.5"}
    (run.folder / "0.2.monitor.csv").unlink()
    with pytest.raises(collect.Broken, match="3 updates and 3 monitors"):
        collect.collect(run.folder, tmp_path / "results", None)


# THE REPORT


def test_the_readme_has_the_scores_of_the_results():
    """make report writes the table. What the README says beside it of the runs on Breakout is true as well."""
    text = (ROOT / "README.md").read_text()
    experiments = report.experiments_of(report.load(ROOT / "benchmark" / "results"))
    assert len(experiments) >= 8
    assert report.put_into_readme(text, report.readme_table(experiments)) == text
    breakouts = [one for one in experiments if one.script == "ppo_atari" and "Breakout" in one.env_id]
    [plain] = [one for one in breakouts if "--bf16" not in one.name]
    [longest] = [one for one in breakouts if "--bf16" in one.name]
    first = plain.ours[0]
    means = report.last_100(first.episodes, "return")
    sentence = r"at (\S+) after its first 100 games, at (\S+) after ([\d,]+) steps and at (\S+) after ([\d,]+)\."
    said = re.search(sentence.replace(" ", r"\s+"), text)
    assert said[1] == f"{means[99]:.1f}"
    for score, step in (said.group(2, 3), said.group(4, 5)):
        assert score == f"{means[first.episodes['step'] <= int(step.replace(',', ''))][-1]:.1f}"
    score = re.search(r"partly with `--bf16`, \[ended at (\d+)\]", text)[1]
    assert score == f"{report.last_100(longest.ours[0].episodes, 'return')[-1]:.0f}"


def test_the_picture_is_of_the_results(tmp_path):
    """make report draws it. Its background is transparent, and all of its colours can be told from white and black."""
    report.picture(report.experiments_of(report.load(ROOT / "benchmark" / "results")), tmp_path / "curves.svg")
    drawn, committed = (path.read_text() for path in (tmp_path / "curves.svg", ROOT / "docs" / "curves.svg"))
    number = r"-?\d+\.\d+"
    assert re.sub(number, "", drawn) == re.sub(number, "", committed), "make report brings the picture up to date"
    pairs = [[float(x) for x in re.findall(number, text)] for text in (drawn, committed)]
    np.testing.assert_allclose(*pairs, atol=0.01)
    assert len(committed) < 100_000 and committed.count("ours, 1") >= 2 and "ppo2, 3 runs" in committed
    titles = re.findall(r">(ppo[^<]*\.py[^<]*)</text>", committed)
    assert len(titles) >= 6 and max(map(len, titles)) <= 42, titles  # a longer one runs into its neighbour's
    colors = set(re.findall(r"#[0-9a-f]{6}\b", committed))
    assert {report.GRAY, *report.COLORS.values()} <= colors
    for color in colors:
        parts = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        light = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
        assert min(1.05 / (light + 0.05), (light + 0.05) / 0.05) >= 3, color  # what WCAG 2 asks of graphics


def test_the_verdict():
    assert report.compare([1.0], [1.0, 2.0]) is None
    assert report.compare([-200.0] * 3, [-200.0] * 3) == ("every run scores the same", None, None, None)
    assert report.compare([-200.0] * 3, [-100.0] * 3) == ("every run differs, by the same", None, None, None)
    assert report.compare([1.0, 2.0], [8.0, 9.0], "my_ppo").verdict == "my_ppo is worse"
    better, worse = [10.0, 11.0, 12.0, 11.5], [1.0, 2.0, 1.5]
    assert report.compare(better, worse).verdict == "ours is better"
    assert report.compare(worse, better).verdict == "ours is worse"
    scores = np.arange(5.0)  # of two such sets the means differ by 2.306 standard errors, of 1 each, where p is 0.05
    assert report.compare(scores + 2.30, scores).verdict == "cannot be told apart"
    assert report.compare(scores + 2.31, scores).verdict == "ours is better"
    assert report.compare(scores + 2.31, scores).welch == pytest.approx(0.0497, abs=1e-4)


@pytest.mark.parametrize("sizes", [(10, 10), (3, 3), (10, 3), (2, 9)])
@pytest.mark.parametrize("spreads", [(1, 1), (3, 1), (1, 3)])
def test_the_visible_difference_is_seen_8_times_out_of_10(sizes, spreads):
    rng = np.random.default_rng(0)
    ours, ppo2 = (rng.normal(0, spread, (10_000, size)) for size, spread in zip(sizes, spreads, strict=True))
    visible = report.visible_difference(spreads, sizes)
    p = report.stats.ttest_ind(ours + visible, ppo2, axis=1, equal_var=False).pvalue
    assert 0.78 < np.mean(p < 0.05) < 0.82
    pairs = zip((ours[0], ppo2[0]), spreads, strict=True)
    exactly = [(side - side.mean()) / side.std(ddof=1) * spread for side, spread in pairs]
    assert report.compare(*exactly).visible == pytest.approx(visible)  # these two samples have just these spreads


def test_interquartile_means_and_their_interval():
    assert report.iqm(np.array([0.0, 1, 2, 3, 4, 5, 6, 1000])) == 3.5
    low, high = report.interval((np.arange(100.0),), report.iqm)
    assert 40 < low < 48 and 51 < high < 59
    assert report.interval((np.arange(3.0), np.array([1.0])), report.iqm) is None
    assert report.interval((np.arange(4.0),), report.iqm) is None  # and not the range, as if it were 95%
    assert report.interval((np.arange(3.0),) * 2, lambda a, b, axis: report.iqm(a + b, axis)) is not None


def test_the_run_that_came_furthest_stands_for_those_that_were_stopped():
    """In its experiment's score, and in the post's table also for an experiment with --bf16."""

    def stopped(steps, score):
        about = {"steps": steps, "steps_wanted": 10_000_000, "seed": steps}
        return report.Run(about, {"return": np.full(100, score)}, {})

    def experiment(options, *runs):
        return report.Experiment("ppo_atari", "BreakoutNoFrameskip-v4", options, list(runs), [])

    far = experiment({"bf16": True}, stopped(5_000_000, 200.0), stopped(6_000_000, 300.0))
    assert [run.score for run in far.done] == [300.0]
    assert report.post_rows([far, experiment({}, stopped(512_000, 15.0))])[-1][2] == ("here", "300 (1) after 6M of 10M")


def test_curves():
    """Of updates the mean between two points, of episodes the mean of the last 100; nothing beyond a run's end."""
    steps = np.arange(1, 301) * 10.0
    numbers = np.random.default_rng(0).normal(size=300)
    tables = {"step": steps, "seconds": steps / 10, "return": numbers, "length": numbers, "entropy": numbers}
    run, grid = report.Run({}, tables, tables), np.arange(1, 13) * 300.0
    values = report.sample(run, "entropy", "step", grid)
    np.testing.assert_allclose(values[:10], numbers.reshape(10, 30).mean(1))
    assert np.isnan(values[10:]).all()
    expected = [numbers[max(0, end - 100) : end].mean() for end in range(30, 301, 30)]
    np.testing.assert_allclose(report.sample(run, "return", "step", grid)[:10], expected)
    assert run.score == pytest.approx(numbers[-100:].mean())
    np.testing.assert_allclose(report.sample(run, "SPS", "seconds", grid / 10)[:10], 10)


def test_the_page_stands_alone(run, folder, tmp_path, monkeypatch):
    """With runs of ours beside runs of ppo2 of as many steps: a section with a chart, and nothing from the network."""
    results = tmp_path / "results"
    collect.collect(run, results, None)
    collect.collect(stopped(folder), results, None)
    [about] = results.glob("ours/*__1__*.json")
    (results / "ppo2").mkdir()
    for seed in (1, 2, 3):
        to = results / "ppo2" / f"CartPole-v1__ppo2_copy__{seed}"
        for kind in ("episodes", "updates"):
            content = lzma.open(f"{str(about)[:-5]}.{kind}.csv.xz", "rt").read()
            rows = list(csv.reader(content.splitlines()))
            rows = [[*row[:2], *(f"{float(x) + seed}" for x in row[2:])] if i else row for i, row in enumerate(rows)]
            text = "\n".join(map(",".join, rows)) + "\n"
            Path(f"{to}.{kind}.csv.xz").write_bytes(lzma.compress(text.encode()))
        changed = {"script": "ppo2_copy", "seed": seed, "versions": {"tensorflow": "1.15.5"}}
        Path(f"{to}.json").write_text(json.dumps(json.loads(about.read_text()) | changed))
    monkeypatch.setattr(sys, "argv", ["", "--results", str(results), "--output", str(tmp_path / "report.html")])
    report.main()
    page = (tmp_path / "report.html").read_text()
    assert not re.search(r'<script[^>]+src=|<link|<img|src="http', page.replace(report.get_plotlyjs(), ""))
    figures = [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page)]
    assert len(figures) == 2 + len(report.METRICS)
    for figure, title in zip(figures, ["steps", "minutes of training", *["steps"] * len(report.METRICS)], strict=True):
        names = [trace.get("name") for trace in figure["data"]]
        assert {"ours (2)", "ppo2 (3)", "ours, seed 2", "ppo2, seed 3"} <= set(names)
        assert figure["layout"]["xaxis"]["title"]["text"] == title and figure["layout"]["yaxis"]["title"]["text"]
    assert "CartPole-v1 · ppo.py --total-timesteps 2048, 2k steps" in page
    assert '<td class="bad">1,536 of 2,048</td>' in page
    assert "<li>CartPole-v1, ppo --total-timesteps 2048, seed 2: stopped at 1,536 of 2,048 steps</li>" in page
    [experiment] = report.experiments_of(report.load(results))
    assert report.statement(experiment).endswith(": too few runs to compare.")
    assert report.statement(experiment) in page
    assert "<th>ppo2, IQM</th>" in page and "<th>verdict</th>" not in page  # of nothing there is no column


def test_what_is_published_is_said_to_be():
    """Beside what was run here, too, and not tested; a score that has no spread makes no visible difference of 0."""
    experiments = report.experiments_of(report.load(ROOT / "benchmark" / "results"))
    by_title = {one.title: one for one in experiments}
    lone = by_title["HalfCheetah-v4 · ppo_continuous_action.py"]._replace(ppo2=[])
    assert report.published(lone) == "published: 2149 ± 1166" and report.compared(lone) is None
    assert "Published, measured elsewhere and not tested: 2148.77 ± 1166.023." in report.statement(lone)
    [_, _, line] = report.readme_table([by_title["HalfCheetah-v4 · ppo_continuous_action.py"]])
    assert re.search(r"\| [\d± ]+\(3\); published: 2149 ± 1166 \| [^|]* \|$", line)
    assert report.published(by_title["CartPole-v1 · ppo.py"]) == ""
    both = by_title["HalfCheetah-v4 · ppo_continuous_action.py"]
    assert re.search(r"ppo2 [\d± ]+\(3\) \(published: 2149 ± 1166\): ", report.statement(both))
    assert re.search(r"\(3\)\n.+\npublished: 2149 ± 1166$", [*report.score_rows([both])][0][3])
    mountain = by_title["MountainCar-v0 · ppo.py"]
    assert "nothing to test" in report.statement(mountain) and "difference" not in report.statement(mountain)
    [line] = [line for line in report.readme_table([mountain]) if "MountainCar" in line]
    assert line.endswith("| every run scores the same |")


def copy_of(run, folder, script="ppo", seed=1, old="", new="", **args):
    """A copy of a run of ppo.py, as if `script`, in whose text `old` is `new`, had made it with this seed and args."""
    options = "".join(f"-{key}-{value}" for key, value in args.items())
    to = Path(shutil.copytree(run, folder / f"CartPole-v1__{args.get('exp_name', script)}__{seed}__{options}"))
    about = json.loads((to / "run.json").read_text())
    about["args"] |= {"exp_name": script, "seed": seed} | args
    about["command"][0] = about["script"] = f"{script}.py"
    (to / "run.json").write_text(json.dumps(about))
    text = (to / "ppo.py").read_text()
    assert old in text
    (to / "ppo.py").unlink()
    (to / f"{script}.py").write_text(text.replace(old, new))
    return to


def test_copies_and_named_experiments_have_rows_and_curves_of_their_own(run, tmp_path, monkeypatch, capsys):
    """Three learning rates, a name, a copy with an option of its own; a second run of the same is named."""
    folder, results = tmp_path / "runs", tmp_path / "results"
    for rate in (1e-4, 2e-4, 3e-4):
        copy_of(run, folder, learning_rate=rate)
    copy_of(run, folder, exp_name="wide")
    for default, floor in ((-1.0, -1.0), (-1.0, -2.0), ("2**3", 8)):
        field = f"    floor: float = {default}\n    seed: int"
        copy_of(run, folder, "my_ppo", old="    seed: int", new=field, floor=floor)
    copy_of(run, folder, "ppo2_mine", runs_folder="elsewhere")
    again = shutil.copytree(folder / "CartPole-v1__ppo2_mine__1__-runs_folder-elsewhere", folder / "zz__again")
    monkeypatch.setattr(sys, "argv", ["", *map(str, sorted(folder.iterdir())), "--results", str(results)])
    assert not collect.main()
    said = capsys.readouterr().out
    assert said.count("collected: ") == 9 and said.count("in place of") == 1
    assert f"{again}: 2048 steps" in said and "in place of CartPole-v1__ppo2_mine__1__-runs_folder-elsewhere" in said
    names = {one.name for one in report.experiments_of(report.load(results))}
    assert names == {f"{name} --total-timesteps 2048" for name in [
        "ppo.py --learning-rate 0.0001", "ppo.py --learning-rate 0.0002", "ppo.py --learning-rate 0.0003",
        "ppo.py --exp-name wide", "my_ppo.py", "my_ppo.py --floor -2.0", "my_ppo.py --floor 8", "ppo2_mine.py",
    ]}  # fmt: skip
    page = report.page(report.load(results))
    assert all(f"CartPole-v1 · {name}, 2k steps</h3>" in page and f"\n{name}</td>" in page for name in names)
    together = next(text for text in re.findall(r'<script type="application/json">(.*?)</script>', page))
    assert {f"{name} (1)" for name in names} <= {trace.get("name") for trace in json.loads(together)["data"]}


def test_a_copy_that_logs_less_is_collected(run, tmp_path, monkeypatch):
    read = collect.events(run)
    del read["losses/clipfrac"], read["losses/old_approx_kl"]
    monkeypatch.setattr(collect, "events", lambda _: read)
    assert "2048 steps" in collect.collect(run, tmp_path / "results", None)
    updates = table(tmp_path / "results", "updates")
    assert {"clipfrac", "old_approx_kl"}.isdisjoint(updates) and updates["entropy"].size == 4
    [experiment] = report.experiments_of(report.load(tmp_path / "results"))
    assert len(list(report.charts_of(experiment))) == 2 + len(report.METRICS) - 1


def scored(env_id, scores, steps=1024, wanted=1024):
    """Finished runs of ppo_atari_cleanba.py with these final scores, as report.load gives them."""
    about = {"steps": steps, "steps_wanted": wanted, "options": {}, "seed": 1}
    runs = [report.Run(about, {"return": np.full(200, score)}, {}) for score in scores]
    return {("ours", "ppo_atari_cleanba", env_id, "{}", wanted): runs}


def test_atari_scores_beside_humans():
    """0 is random play, 1 a human; the median is of games' means, the IQM of all runs; others are left out."""
    assert len(report.HUMAN) == 57 and all(human > random for random, human in report.HUMAN.values())
    found = scored("Pong-v5", [-20.7, 14.6, 14.6]) | scored("BreakoutNoFrameskip-v4", [1.7, 30.5, 59.3])
    found |= scored("ALE/Boxing-v5", [24.1, 24.1, 24.1]) | scored("CartPole-v1", [500.0] * 3)
    found |= scored("Alien-v5", [7127.7] * 3, steps=512)
    [(name, games)] = report.human_scores(report.experiments_of(found)).items()
    assert name == ("ppo_atari_cleanba.py", "1k") and set(games) == {"Boxing", "Breakout", "Pong"}
    expected = {"Boxing": [2, 2, 2], "Breakout": [0, 1, 2], "Pong": [0, 1, 1]}
    for game, values in expected.items():
        np.testing.assert_allclose(games[game], values, atol=1e-12)
    (median, value, bounds), (_, iqm, iqm_bounds) = report.over_games(games)
    assert median == "median" and value == pytest.approx(1.0) and iqm == pytest.approx((1 + 1 + 1 + 2 + 2) / 5)
    assert 0 <= bounds[0] < 1 < bounds[1] <= 2 and iqm_bounds[0] < iqm < iqm_bounds[1]
    assert report.over_games({"Pong": np.array([0.5])})[1] == ("IQM", 0.5, None)


def test_the_page_has_atari_scores_beside_humans():
    found = scored("Pong-v5", [-20.7, 14.6]) | scored("Breakout-v5", [1.7, 59.3])
    section = report.beside_humans(report.experiments_of(found))
    assert '<td class="">Pong</td>' in section and "0.50 (2)" in section and "1.00 (2)" in section
    assert re.search(r'<td class="">2</td><td class="">0.75 \[0.00, 1.50\]</td>', section)
    assert "over all games" not in report.beside_humans(report.experiments_of(scored("Pong-v5", [1.0]))).lower()
    assert report.beside_humans(report.experiments_of(scored("CartPole-v1", [1.0]))) == ""


# COMPARING ONE'S OWN


def made(scores, steps=1024, every=10):
    """Runs by seed of `steps` steps in updates of 512, with an episode of the same return, `scores`, every 10 steps."""
    end = np.arange(every, steps + 1, every) * 1.0
    about = {"batch_size": 512}
    return {seed: report.Run(about, {"step": end, "return": end * 0 + value}, {"step": np.arange(512, steps + 1, 512)})
            for seed, value in enumerate(scores)}  # fmt: skip


def test_a_comparison_is_the_reports():
    a, b = np.array([10.0, 12, 11, 13]), np.array([14.0, 15, 13.5, 16])
    cells, lines = compare.row(("ppo", "my_ppo"), (made(a), made(b)), 1000)
    expected = report.compare(b, a, "my_ppo")
    assert (cells[0], cells[1], cells[2], cells[3]) == ("1,000", "11.5 ± 1.3 (4)", "14.6 ± 1.1 (4)", "+3.1")
    assert cells[4:] == ["my_ppo is better", f"{expected.welch:.3f}", f"{expected.visible:.1f}"] and not lines
    assert compare.row(("ppo", "my_ppo"), (made(a), made(b + 9)), 1000)[0][5] == "<0.001"
    cells, lines = compare.row(("ppo", "my_ppo"), (made(a), made(b) | {9: made([1.0], 512)[0]}), 1024)
    assert cells[2] == "14.6 ± 1.1 (4)" and lines == ["left out after 1,024 steps: my_ppo, seed 9"]


def test_the_score_after_a_step():
    """Of the last 100 episodes that had ended; a run that ended less than an update before counts as there."""
    [run] = made([0.0], steps=2048, every=1).values()
    run.episodes["return"][:] = run.episodes["step"]
    assert compare.score(run, 1000) == np.arange(901, 1001).mean()
    assert compare.score(run, 50) == np.arange(1, 51).mean()
    assert compare.score(run, 2559) == np.arange(1949, 2049).mean() and compare.score(run, 2560) is None


def test_two_experiments_of_a_folder_are_compared(run, tmp_path):
    """As a user does it. A run that is broken, and the second of a seed, are named."""
    folder = tmp_path / "runs"
    for seed in (1, 2):
        copy_of(run, folder, seed=seed)
        copy_of(run, folder, seed=seed, gamma=0.9)  # another experiment, which "ppo" does not mean
        copy_of(run, folder, "my_ppo", seed, old="[core 3]", new=f"[core 3], {seed}")
        copy_of(run, folder, seed=seed, exp_name="slow", learning_rate=1e-5)
        copy_of(run, folder, seed=seed, exp_name="slow", learning_rate=1e-6)
    copy_of(run, folder, "my_ppo", 2, threads=2)
    [path.unlink() for path in copy_of(run, folder, "my_ppo", 3).glob("*.pt")]
    (folder / "empty").mkdir()

    def start(*words):
        words = [sys.executable, ROOT / "benchmark" / "compare.py", folder, "--env-id", "CartPole-v1", *words]
        return subprocess.run(words, capture_output=True, text=True)

    process = start("--a", "ppo", "--b", "my_ppo", "--steps", "1024", "2048")
    heading, titles, first, second, *lines = process.stdout.splitlines()
    assert heading.startswith("CartPole-v1, ppo --total-timesteps 2048 (a) and my_ppo --total-timesteps 2048 (b): ")
    assert titles.split()[:4] == ["after", "steps", "ppo", "my_ppo"] and first.startswith("1,024 ")
    assert "(2)" in second and second.endswith("every run scores the same")
    assert lines[0].startswith(f"left out: {folder}/empty: FileNotFoundError: ")
    assert lines[1:] == [
        f"left out: {folder}/CartPole-v1__my_ppo__2__: seed 2 is there twice",
        f"left out: {folder}/CartPole-v1__my_ppo__3__: no checkpoint",
        "note: my_ppo --total-timesteps 2048 was run with 2 different texts of my_ppo.py",
    ]  # fmt: skip
    ambiguous = start("--a", "ppo", "--b", "slow")
    whole = "slow --learning-rate 1e-05 --total-timesteps 2048"
    assert ambiguous.returncode == 1 and f'"{whole}" (2 runs)' in ambiguous.stderr
    assert start("--a", "ppo", "--b", whole).returncode == 0
    for seed, script in enumerate(("ppo", "ppo_wide"), 1):
        copy_of(run, folder, script, seed, old="[core 3]", new=f"[core 3], {script}", exp_name="wide")
    assert "with 2 different texts of ppo.py, ppo_wide.py" in start("--a", "ppo", "--b", "wide").stdout
    heading = start("--a", "ppo", "--b", "slow --learning-rate 1e-05").stdout.splitlines()[0]
    assert f"ppo --total-timesteps 2048 (a) and {whole} (b): " in heading
    assert "is none of the experiments" in start("--a", "ppo", "--b", "nix").stderr
    assert "the same experiment" in start("--a", "ppo", "--b", "ppo").stderr
    assert start("--a", "ppo", "--b", "my_ppo", "--env-id", "Acrobot-v1").returncode == 1
    (tmp_path / "core3").symlink_to(folder)  # as the README calls it
    for readme in (ROOT / "README.md", ROOT / "benchmark" / "README.md"):  # after their steps no run is there yet
        words = shlex.split(re.search(r'make compare ARGS="(.*?)"', readme.read_text())[1])
        words = [sys.executable, ROOT / "benchmark" / "compare.py", *words]
        process = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
        assert process.returncode == 0 and "left out after 10,000 steps: ppo, seed 1" in process.stdout


def test_no_results_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["", "--results", str(tmp_path)])
    with pytest.raises(SystemExit, match="error: .* holds no runs"):
        report.main()
