"""Collects runs into the results: the episodes and updates of each, its script, options and machine.

    python -m benchmark.collect runs/*__*

A broken run is named and left out. A run that was stopped counts up to its newest checkpoint. Each script and each
--exp-name is an experiment of its own. A run replaces a result of the same experiment and seed if it has at least as
many steps.
"""

import argparse
import ast
import csv
import hashlib
import json
import math
import shlex
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import SessionLog

from benchmark import results
from benchmark.results import RESULTS, ROOT, Run, option_words

# How the names of checkpoints, and of the files that a resume adds, end: as in the scripts' checkpoint_files()
STEP = "[0-9]" * 12
# Options that do not make another experiment
NO_EXPERIMENT = {
    "cuda",
    "threads",
    "async_envs",
    "track",
    "capture_video",
    "save_every",
    "resume",
    "runs_folder",
}
# Left out of the "options" of a run: those above, and two that the run has as keys of its own
NOT_OPTIONS = NO_EXPERIMENT | {"env_id", "seed"}
# Packages whose versions are kept
PACKAGES = {
    "python",
    "torch",
    "numpy",
    "gymnasium",
    "ale-py",
    "opencv-python-headless",
    "mujoco",
    "envpool",
    "gym-microrts",
    "slimevolleygym",
    "tensorflow",
    "gym",
    "baselines",
    "atari-py",
    "mujoco-py",
    "opencv-python",
}
# The columns of the updates of ppo2, and what ppo2 calls them
PPO2_COLUMNS = {
    "step": "misc/total_timesteps",
    "seconds": "misc/time_elapsed",
    "policy_loss": "loss/policy_loss",
    "value_loss": "loss/value_loss",
    "entropy": "loss/policy_entropy",
    "approx_kl_ppo2": "loss/approxkl",
    "clipfrac": "loss/clipfrac",
    "explained_variance": "misc/explained_variance",
    "SPS": "fps",
}


class Broken(Exception):
    """Why a run cannot be collected."""


# What a run says about itself


def read_json(path):
    return json.loads(path.read_text())


def git_hash(file):
    """The hash that git has for the contents of a file."""
    data = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def git(*words):
    """What a command of git in the checkout prints, stripped; nothing where git is not installed."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()


def commit_of(about, script, source):
    """The commit of the checkout that run.json names, if the script's text is the one in it; else None."""
    if not about.get("commit"):
        return None
    commit = about["commit"].removesuffix("-dirty")
    return commit if git("rev-parse", f"{commit}:{script}.py") == source else None


def step_of(file):
    """The step at the end of a file's name."""
    return int(file.stem.rpartition("_")[2])


def newest_step(run_folder):
    """The step of a run's newest checkpoint; 0 without one."""
    return max((step_of(file) for file in run_folder.glob(f"checkpoint_{STEP}.pt")), default=0)


# What an option's default may consist of, such as -1, 5e-4 / 2 or (1, 2)
LITERALS = ast.Constant, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator, ast.Tuple, ast.List, ast.expr_context


def literal_defaults(file):
    """{option: its default} of a script, without running it: of those options whose default has only LITERALS.

    A resume by an older script left no copy; then there are none."""
    if not file.exists():
        return {}
    defaults = {}
    for node in ast.parse(file.read_bytes()).body:
        if not isinstance(node, ast.ClassDef) or node.name != "Args":
            continue
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and field.value is not None:
                if all(isinstance(node, LITERALS) for node in ast.walk(field.value)):
                    defaults[field.target.id] = eval(ast.unparse(field.value))
    return json.loads(json.dumps(defaults))  # a tuple is a list in run.json


def defaults_of(about, script_file):
    """{option: its default} of a run.json; `script_file` is the copy of the script beside it.

    A run.json of an older script has them itself. An option whose default is no literal has its default if it is not
    on the script's command line; a program may have set it."""
    if "defaults" in about:
        return about["defaults"]
    if Path(about["command"][0]).name != about["script"]:
        return literal_defaults(script_file)
    words = [word.partition("=")[0] for word in about["command"] if word.startswith("--")]
    given = {word.removeprefix("--").removeprefix("no-").replace("-", "_") for word in words}
    defaults = {name: value for name, value in about["args"].items() if name not in given}
    return defaults | literal_defaults(script_file)


def resumed_texts(run_folder, script):
    """The changed texts of the script with which a run was resumed, [{"step", "source", "commit"}, ...]."""
    texts = []
    source = git_hash(run_folder / f"{script}.py")
    for step, about in resumes(run_folder):
        file = run_folder / f"{script}_{step:012}.py"
        if file.exists() and git_hash(file) != source:
            source = git_hash(file)
            texts.append({"step": step, "source": source, "commit": commit_of(about, script, source)})
    return texts


def changed_options(run_folder):
    """What resumes of a run changed, {option: [(step, its value from that step on), ...]}; the first step is 0."""
    args = read_json(run_folder / "run.json")["args"]
    changes = {}
    for step, about in resumes(run_folder):
        script = Path(about["script"]).stem
        defaults = defaults_of(about, run_folder / f"{script}_{step:012}.py")
        for name in about["args"].keys() - NOT_OPTIONS - {"exp_name"}:  # a resume cannot rename a run
            value = about["args"][name]
            values = changes.get(name, [(0, args.get(name, defaults.get(name)))])
            _, before = values[-1]
            if value != before:
                changes[name] = [*values, (step, value)]
    return changes


def resumes(run_folder):
    """The resumes after which a run trained on, [(step, run.json of the resume), ...]."""
    end = newest_step(run_folder)
    files = sorted(run_folder.glob(f"run_{STEP}.json"))
    return [(step_of(file), read_json(file)) for file in files if step_of(file) < end]


def describe(run_folder):
    """What is known about a run: its run.json with more keys. Raises Broken, or another error for a damaged file.

    The keys are "run", "ours", "script", "env_id", "seed", "options", "batch_size", "total_timesteps" and
    "steps_wanted". The options are those that are not the script's defaults; for ppo2 all but environment and seed.
    Runs of ours also have "source", git's hash of the script, "commit" and, after a resume with another text,
    "resumed". An option that a resume changed has a text with all its values, which makes another experiment."""
    if not run_folder.is_dir():
        raise Broken("not the folder of a run")
    about = read_json(run_folder / "run.json")
    about["run"] = run_folder.name
    about["seed"] = int(about["args"]["seed"])
    about["ours"] = "--alg=ppo2" not in about["command"]
    more = describe_ours(run_folder, about) if about["ours"] else describe_ppo2(run_folder, about)
    about |= more
    about["options"] = dict(sorted(about["options"].items()))
    about["steps_wanted"] = about["total_timesteps"] // about["batch_size"] * about["batch_size"]
    return about


def describe_ours(run_folder, about):
    """What describe() says of a run of our scripts alone."""
    args = about["args"]
    if args.get("resume"):
        raise Broken(f"begun from {args['resume']}: its log does not have what was before")
    script = Path(about["script"]).stem
    source = git_hash(run_folder / f"{script}.py")
    texts = resumed_texts(run_folder, script)
    changes = changed_options(run_folder)
    if {"num_envs", "num_steps"} & changes.keys():
        raise Broken("num_envs or num_steps was changed at a resume")

    defaults = defaults_of(about, run_folder / f"{script}.py") | {"exp_name": script}
    options = {}
    for name in args.keys() - NOT_OPTIONS:
        if name not in defaults or args[name] != defaults[name]:
            options[name] = args[name]
    for name, values in changes.items():
        _, first = values[0]
        words = [str(first)]
        for step, value in values[1:]:
            words.append(f"from step {step} {value}")
        options[name] = ", ".join(words)

    more = {
        "script": script,
        "env_id": args["env_id"],
        "source": source,
        "commit": commit_of(about, script, source),
        "options": options,
        "batch_size": args["num_envs"] * args["num_steps"],
        "total_timesteps": args["total_timesteps"],
    }
    if "total_timesteps" in changes:
        _, more["total_timesteps"] = changes["total_timesteps"][-1]
    if texts:
        more["resumed"] = texts
    return more


def describe_ppo2(run_folder, about):
    """What describe() says of a run of openai/baselines' ppo2 alone."""
    args = about["args"]
    with (run_folder / "progress.csv").open() as file:
        first = next(csv.DictReader(file), None)
    if first is None:
        raise Broken("no update")
    return {
        "env_id": args["env"],
        "options": {name: value for name, value in args.items() if name not in ("env", "seed")},
        "batch_size": int(float(first["misc/total_timesteps"])),
        "total_timesteps": int(float(args["num_timesteps"])),
    }


# What a run logged


def events(run_folder):
    """{tag: [(step, value, seconds of training), ...]} of a run.

    As in TensorBoard, a start at step S removes the earlier points whose step is S or more. The time between a stop and
    a resume is not counted."""
    points = {}
    for path in sorted(run_folder.glob("events.*")):
        started = None  # the time of the first event in the file
        offset = None  # what turns the time of an event into seconds of training
        for event in LegacyEventFileLoader(str(path)).Load():
            if started is None:
                started = event.wall_time
            if event.session_log.status == SessionLog.START:  # the run starts or is resumed at this step
                for tag, logged in points.items():
                    points[tag] = [point for point in logged if point[0] < event.step]
            for value in event.summary.value:
                if offset is None:  # a file's seconds go on where the points of the files before it end
                    trained = max((point[2] for logged in points.values() for point in logged), default=0.0)
                    offset = trained - started
                points.setdefault(value.tag, []).append((event.step, value.simple_value, event.wall_time + offset))
    return points


def read_ours(run_folder, about):
    """(episodes, updates) of a run of one of our scripts, as read() returns them.

    The updates have a column for whatever the script logs, with NaN where an update lacks it."""
    last = newest_step(run_folder)
    if last == 0:
        raise Broken("no checkpoint of an update")
    logged = {tag: [point for point in points if point[0] <= last] for tag, points in events(run_folder).items()}
    returns = logged.pop("charts/episodic_return", [])
    lengths = logged.pop("charts/episodic_length", [])
    if len(returns) != len(lengths):
        raise Broken(f"the log has {len(returns)} returns and {len(lengths)} lengths")

    steps = list(range(about["batch_size"], last + 1, about["batch_size"]))
    seconds = {}
    for points in logged.values():
        for step, _, second in points:
            seconds.setdefault(step, second)  # the time of an update is that of the first scalar that it logged
    missing = set(steps) - seconds.keys()
    if missing:
        raise Broken(f"the log lacks {len(missing)} of the {len(steps)} updates")
    updates = {"step": steps, "seconds": [seconds[step] for step in steps]}
    own_last = sorted(logged, key=lambda tag: not tag.startswith(("charts/", "losses/")))
    for tag in own_last:
        values = {step: value for step, value, _ in logged[tag]}
        name = tag.rpartition("/")[2]
        if name in updates or name == "run":  # a column that the table has already
            name = tag
        updates[name] = [values.get(step, math.nan) for step in steps]

    episodes = {
        "step": [step for step, _, _ in returns],
        "seconds": [second for _, _, second in returns],
        "return": [value for _, value, _ in returns],
        "length": [value for _, value, _ in lengths],
    }
    return episodes, updates


def read_ppo2(run_folder, about):
    """(episodes, updates) of a run of ppo2, as read() returns them: from its log, and its episodes.csv or monitors.

    A run that a hook recorded has episodes.csv, with the columns step, seconds, return and length. Episodes that ended
    after the last update do not count. Other runs have a monitor of each environment, which counts its own steps; all
    environments step together. On Atari a monitor counts the steps of FIRE and of restarts after lost lives too, so
    there a curve by episodes lies a little to the right."""
    with (run_folder / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    updates = {name: [float(row[column]) for row in rows] for name, column in PPO2_COLUMNS.items()}
    columns = ("step", "seconds", "return", "length")
    if (run_folder / "episodes.csv").exists():
        with (run_folder / "episodes.csv").open() as file:
            recorded = [row for row in csv.DictReader(file) if float(row["step"]) <= updates["step"][-1]]
        return {name: [float(row[name]) for row in recorded] for name in columns}, updates
    monitors = sorted(run_folder.glob("*.monitor.csv"))
    num_env = int(about["args"].get("num_env", 1))
    if len(monitors) != num_env:
        raise Broken(f"{len(monitors)} monitors of {num_env} environments")
    ended = []  # (step, seconds, return, length) of each episode
    for path in monitors:
        with path.open() as file:
            next(file)  # a comment
            monitored = list(csv.DictReader(file))
        own_steps = accumulate(int(row["l"]) for row in monitored)
        for row, own_step in zip(monitored, own_steps, strict=True):
            ended.append((own_step * len(monitors), float(row["t"]), float(row["r"]), int(row["l"])))
    ended.sort()
    episodes = {name: [row[i] for row in ended] for i, name in enumerate(columns)}
    return episodes, updates


def read(run_folder, about):
    """(episodes, updates) of a run, each {column: [number, ...]}; `about` is what describe() returned.

    Raises Broken, or another error for a damaged file."""
    episodes, updates = read_ours(run_folder, about) if about["ours"] else read_ppo2(run_folder, about)
    if not episodes["step"]:
        raise Broken("no episode ended")
    return episodes, updates


def command_of(about, args):
    """The command that makes a run of ours."""
    words = ["python", f"{about['script']}.py", "--env-id", about["env_id"], "--seed", str(about["seed"])]
    for name in about["options"]:
        if name in args:
            words += option_words(name, args[name])
    return shlex.join(words)


def gathered(run_folder, machine="unknown"):
    """The Run in a folder; its `about` is what the results say about it, and the key "ours", which collect() removes.

    machine: what made the run, as a text. Where the folder has a sweep.json, the machine in that file counts instead.
    Raises what describe() raises."""
    about = describe(run_folder)
    episodes, updates = read(run_folder, about)
    versions = {}
    for name, version in about["versions"].items():
        name = name.lower().replace("_", "-")
        if name in PACKAGES:
            versions[name] = version
    about["versions"] = versions
    about["steps"] = int(updates["step"][-1])
    about["machine"] = machine
    if (run_folder / "sweep.json").exists():  # the launcher knows the machine, and a recipe with its commit
        about |= read_json(run_folder / "sweep.json")
    if about["ours"]:
        about["command"] = command_of(about, about["args"])
    for name in ("args", "defaults", "batch_size"):
        about.pop(name, None)
    tables = []
    for columns in (episodes, updates):
        tables.append({name: np.array(column, dtype=np.float64) for name, column in columns.items()})
    return Run(about, *tables)


# Into the results


def attempt(function, *args):
    """(the result of a function of a run, None), or (None, "FOLDER: why the run cannot be read").

    The first of `args` is the folder of the run."""
    try:
        return function(*args), None
    except Exception as error:  # of many kinds: files may be damaged, half-written, or of another version
        why = str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
        return None, f"{args[0]}: {why}"


def collect(run_folders, results_folder, machine="unknown", preset=results.SMALL):
    """Puts runs into the results and prints a line about each; returns how many are broken.

    machine: what made those runs that do not say so themselves, as a text."""
    families = {}  # the runs that are new in each family, {(family, side): {name: Run}}
    broken = 0
    for run_folder in run_folders:
        run, why = attempt(gathered, run_folder, machine)
        if run is None:
            print(f"broken: {why}", flush=True)
            broken += 1
            continue
        about = run.about
        side = "ours" if about.pop("ours") else "ppo2"
        new = families.setdefault((results.family_of(results_folder, about, side), side), {})
        name = results.name_of(about, side)
        before = new[name].about if name in new else results.find(results_folder, about, side)
        if before is not None and before["steps"] > about["steps"]:
            why = f"another run of this experiment and seed has {before['steps']} steps, this has {about['steps']}"
            print(f"left out: {run_folder}: {why}", flush=True)
            continue
        new[name] = run
        part = "" if run.finished else f" of {about['steps_wanted']}"
        replaced = ""
        if before is not None and before.get("run") != run_folder.name:
            replaced = f", in place of {before.get('run', 'another')} of {before['steps']} steps"
        count = len(run.episodes["step"])
        print(f"collected: {run_folder}: {about['steps']}{part} steps, {count} episodes{replaced}", flush=True)
    for (family, side), new in families.items():
        if new:
            for run in results.add(family, list(new.values()), side, preset):
                print(f"left out: {run.about['run']}: meanwhile the results got one of more steps", flush=True)
    return broken


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--machine", default="unknown", help="what made the runs, where they do not say")
    args = parser.parse_args()
    return collect(args.runs, args.results, args.machine) > 0


if __name__ == "__main__":
    sys.exit(main())
