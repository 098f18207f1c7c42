"""Collects runs into benchmark/results: the episodes and updates of each, its script, options and machine.

    python benchmark/collect.py runs/*__*

A broken run is named and left out. A run that was stopped counts up to its newest checkpoint. Each script and each
--exp-name is an experiment of its own. A run replaces a result of the same experiment and seed if it has at least as
many steps.
"""

import argparse
import ast
import contextlib
import csv
import hashlib
import json
import lzma
import math
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import SessionLog

ROOT = Path(__file__).resolve().parents[1]
STEP = "[0-9]" * 12  # how checkpoints, and the files that a resume adds, end
NOT_OPTIONS = {
    "seed", "env_id", "cuda", "threads", "async_envs", "track", "capture_video", "save_every", "resume", "runs_folder",
}  # fmt: skip
PACKAGES = {
    "python", "torch", "numpy", "gymnasium", "ale-py", "opencv-python-headless", "mujoco", "envpool", "gym-microrts",
    "slimevolleygym", "tensorflow", "gym", "baselines", "atari-py", "mujoco-py", "opencv-python",
}  # fmt: skip
# The columns of ppo2's table of updates after step and seconds, and what ppo2 calls them.
PPO2 = {
    "policy_loss": "loss/policy_loss", "value_loss": "loss/value_loss", "entropy": "loss/policy_entropy",
    "approx_kl_ppo2": "loss/approxkl", "clipfrac": "loss/clipfrac", "explained_variance": "misc/explained_variance",
    "SPS": "fps",
}  # fmt: skip


class Broken(Exception):
    """Why a run cannot be collected."""


def defaults(source):
    """{name: default} of the class Args in a script's text, where the default is a literal."""
    [args] = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Args"]
    found = {}
    for node in args.body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            with contextlib.suppress(ValueError):  # not a literal
                found[node.target.id] = json.loads(json.dumps(ast.literal_eval(node.value)))  # as in run.json
    return found


def blob(file):
    """The hash that git has for a file."""
    text = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()


def commit_of(about, script, source):
    """The commit of the checkout that run.json names, if the script's text is the one in it; else None."""
    commit = (about.get("commit") or "").removesuffix("-dirty")
    found = subprocess.run(["git", "rev-parse", f"{commit}:{script}.py"], cwd=ROOT, capture_output=True, text=True)
    return commit if found.stdout.strip() == source else None


def newest_step(run):
    """The step of a run's newest checkpoint; 0 without one."""
    return max((int(path.stem[-12:]) for path in run.glob(f"checkpoint_{STEP}.pt")), default=0)


def events(run):
    """{tag: [(step, value, seconds of training), ...]} of a run.

    As in TensorBoard, a start of the run replaces what was logged before from its step on. The time between a stop and
    a resume is not counted."""
    points = {}
    for path in sorted(run.glob("events.*")):
        first = offset = None
        for event in LegacyEventFileLoader(str(path)).Load():
            first = first or event.wall_time
            if event.session_log.status == SessionLog.START:
                points = {tag: [each for each in logged if each[0] < event.step] for tag, logged in points.items()}
            for value in event.summary.value:
                if offset is None:
                    offset = max((each[2] for logged in points.values() for each in logged), default=0.0) - first
                points.setdefault(value.tag, []).append((event.step, value.simple_value, event.wall_time + offset))
    return points


def resumes(run, script):
    """What resumes changed in a run of `script`: (texts, options), the texts as [{"step", "source", "commit"}, ...] and
    the options as {name: [(step, its value from that step on), ...]}."""
    texts, changes, end = [], {}, newest_step(run)
    args, source = json.loads((run / "run.json").read_text())["args"], blob(run / f"{script}.py")
    for file in sorted(run.glob(f"run_{STEP}.json")):
        step, about = int(file.stem[-12:]), json.loads(file.read_text())
        text = run / f"{script}_{step:012}.py"
        if step >= end:
            break  # nothing was trained from there on
        if text.exists() and blob(text) != source:
            source = blob(text)
            texts.append({"step": step, "source": source, "commit": commit_of(about, script, source)})
        default = defaults(text.read_text()) if text.exists() else {}
        for name in about["args"].keys() - NOT_OPTIONS - {"exp_name"}:  # a resume cannot rename a run
            value, first = about["args"][name], args.get(name, default.get(name))
            if value != (changes[name][-1][1] if name in changes else first):
                changes.setdefault(name, []).append((step, value))
    return texts, changes


def describe(run):
    """run.json of a run, and its script, env_id, seed, options other than the script's defaults, batch_size and
    steps_wanted. Raises Broken, or an error of another kind where a file is damaged.

    The text of an option that a resume changed has all its values, so it makes another experiment."""
    if not run.is_dir():
        raise Broken("not the folder of a run")
    about = json.loads((run / "run.json").read_text())
    args = about["args"]
    about |= {"run": run.name, "ours": "--alg=ppo2" not in about["command"], "seed": int(args["seed"])}
    if not about["ours"]:
        with (run / "progress.csv").open() as file:
            first = next(csv.DictReader(file), None)
        if first is None:
            raise Broken("no update")
        options = {key: value for key, value in args.items() if key not in ("env", "seed")}
        batch_size, env_id, total = int(float(first["misc/total_timesteps"])), args["env"], args["num_timesteps"]
    else:
        if args.get("resume"):
            raise Broken(f"begun from {args['resume']}: its log does not have what was before")
        script, env_id = Path(about["script"]).stem, args["env_id"]
        about |= {"script": script, "source": (source := blob(run / f"{script}.py"))}
        about |= {"commit": commit_of(about, script, source)}
        texts, changed = resumes(run, script)
        if {"num_envs", "num_steps"} & changed.keys():
            raise Broken("num_envs or num_steps was changed at a resume")
        about |= {"resumed": texts} if texts else {}
        default = {"exp_name": script} | defaults((run / f"{script}.py").read_text())
        options = {key: args[key] for key in args.keys() - NOT_OPTIONS if (key, args[key]) not in default.items()}
        for key, steps in changed.items():
            options[key] = ", ".join([str(args.get(key)), *(f"from step {step} {value}" for step, value in steps)])
        batch_size = args["num_envs"] * args["num_steps"]
        total = changed.get("total_timesteps", [(0, args["total_timesteps"])])[-1][1]
    about |= {"env_id": env_id, "options": dict(sorted(options.items())), "batch_size": batch_size}
    return about | {"steps_wanted": int(float(total)) // batch_size * batch_size}


def typed(option):
    """The option (name, value) of a script as on its command line: "--num-envs 16", "--bf16" or "--no-anneal-lr"."""
    name, value = option[0].replace("_", "-"), option[1]
    if isinstance(value, list):
        return " ".join([f"--{name}", *map(str, value)])
    return f"--{'' if value else 'no-'}{name}" if type(value) is bool else f"--{name} {value}"


def short(name):
    """A file's name, shortened to at most 180 characters; a hash then replaces the end."""
    return name if len(name) <= 180 else f"{name[:160]}-{hashlib.sha1(name.encode()).hexdigest()[:16]}"


def result_file(results, about):
    """The file of a run in the results; a run of ours is told apart by its options, too."""
    options = [f"{option}={value}" for option, value in about["options"].items()] if about["ours"] else []
    name = "__".join([about["env_id"], about["script"], str(about["seed"]), *options])
    name = name.replace("/", "-").replace(":", "-")
    return Path(results, "ours" if about["ours"] else "ppo2", f"{short(name)}.json")


def read_ours(run, about):
    """(episodes, updates) of a run of one of our scripts. Updates have a column for whatever else the script logs, with
    NaN where an update lacks it."""
    batch_size, steps = about["batch_size"], newest_step(run)
    if not steps:
        raise Broken("no checkpoint of an update")
    logged = {tag: [point for point in points if point[0] <= steps] for tag, points in events(run).items()}
    returns, lengths = (logged.pop(f"charts/episodic_{name}", []) for name in ("return", "length"))
    if len(returns) != len(lengths):
        raise Broken(f"the log has {len(returns)} returns and {len(lengths)} lengths")
    ends = range(batch_size, steps + 1, batch_size)
    seconds = {step: second for tag in reversed(logged) for step, _, second in logged[tag]}
    if missing := set(ends) - seconds.keys():
        raise Broken(f"the log lacks {len(missing)} of the {len(ends)} updates")
    updates = {"step": [*ends], "seconds": [seconds[step] for step in ends]}
    for tag, points in logged.items():
        values = {step: value for step, value, _ in points}
        updates[tag.rpartition("/")[2]] = [values.get(step, math.nan) for step in ends]
    return [(x[0], x[2], x[1], length[1]) for x, length in zip(returns, lengths, strict=True)], updates


def read_ppo2(run, about):
    """(episodes, updates) of a run of openai/baselines' ppo2: from its log and a monitor of each environment.

    A monitor counts the steps of its own environment; all environments step together. On Atari it counts the steps of
    FIRE and of restarts after lost lives too, so there a curve by episodes lies a little to the right."""
    with (run / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    monitors = sorted(run.glob("*.monitor.csv"))
    if len(monitors) != int(about["args"].get("num_env", 1)):
        raise Broken(f"{len(rows)} updates and {len(monitors)} monitors")
    names, episodes = {"step": "misc/total_timesteps", "seconds": "misc/time_elapsed"} | PPO2, []
    for path in monitors:
        with path.open() as file:
            next(file)  # a comment
            ended = [(float(row["r"]), int(row["l"]), float(row["t"])) for row in csv.DictReader(file)]
        for (score, length, seconds), step in zip(ended, accumulate(row[1] for row in ended), strict=True):
            episodes.append((step * len(monitors), seconds, score, length))
    return sorted(episodes), {name: [float(row[column]) for row in rows] for name, column in names.items()}


def read(run, about):
    """(episodes, updates) of a run, each {column: [number, ...]}; `about` is from describe(), and so are the errors."""
    episodes, updates = (read_ours if about["ours"] else read_ppo2)(run, about)
    if not episodes:
        raise Broken("no episode ended")
    return dict(zip(["step", "seconds", "return", "length"], zip(*episodes, strict=True), strict=True)), updates


def write(path, table, digits):
    """Writes a compressed CSV: steps as integers, seconds with one decimal, other columns with `digits` digits."""
    lines = [",".join(table)]
    for step, seconds, *others in zip(*table.values(), strict=True):
        lines.append(",".join([f"{step:.0f}", f"{seconds:.1f}", *(f"{number:.{digits}g}" for number in others)]))
    path.write_bytes(lzma.compress("\n".join([*lines, ""]).encode()))


def gathered(run, machine="unknown"):
    """(about, episodes, updates) of a run; `about` is what its .json in the results has, and "ours"."""
    about = describe(run)
    episodes, updates = read(run, about)
    names = {name: name.lower().replace("_", "-") for name in about["versions"]}
    about["versions"] = {names[name]: v for name, v in about["versions"].items() if names[name] in PACKAGES}
    about |= {"steps": int(updates["step"][-1]), "machine": machine}
    if (run / "sweep.json").exists():  # the launcher knows the machine, and a recipe with its commit
        about |= json.loads((run / "sweep.json").read_text())
    args = about.pop("args")
    del about["batch_size"]
    if about["ours"]:
        words = ["python", f"{about['script']}.py", "--env-id", about["env_id"], "--seed", str(about["seed"])]
        about["command"] = " ".join([*words, *(typed((key, args[key])) for key in about["options"] if key in args)])
    return about, episodes, updates


def collect(run, results, machine="unknown"):
    """Puts a run into the results, and returns a line about it; raises what describe() and read() raise."""
    about, episodes, updates = gathered(run, machine)
    file = result_file(results, about)
    del about["ours"]
    file.parent.mkdir(parents=True, exist_ok=True)
    replaced = ""
    if file.exists():
        before = json.loads(file.read_text())
        if before["steps"] > about["steps"]:
            return f"left out: {run}: the results have one of {before['steps']} steps, this has {about['steps']}"
        if before.get("run") != run.name:
            replaced = f", in place of {before.get('run', 'another')} of {before['steps']} steps"
    for kind, table, digits in (("episodes", episodes, 7), ("updates", updates, 4)):
        write(file.with_name(f"{file.name.removesuffix('.json')}.{kind}.csv.xz"), table, digits)
    file.write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")
    part = "" if about["steps"] == about["steps_wanted"] else f" of {about['steps_wanted']}"
    return f"collected: {run}: {about['steps']}{part} steps, {len(episodes['step'])} episodes{replaced}"


def attempt(function, *args):
    """(the result of a function of a run, None), or (None, why the run cannot be read)."""
    try:
        return function(*args), None
    except Exception as error:
        why = str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
        return None, f"left out: {args[0]}: {why}"


def collected(run, results, machine="unknown"):
    """Collects a run and says so; returns whether that worked."""
    said, why = attempt(collect, run, results, machine)
    print(said or f"broken, {why}", flush=True)
    return said is not None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmark" / "results")
    parser.add_argument("--machine", default="unknown", help="what made the runs, where they do not say")
    args = parser.parse_args()
    return not all([collected(run, args.results, args.machine) for run in args.runs])


if __name__ == "__main__":
    sys.exit(main())
