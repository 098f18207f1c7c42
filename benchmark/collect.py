"""Collects runs, ours and ppo2's, into benchmark/results: what they did in each episode and each update, and on what.

    python benchmark/collect.py runs/*

A run that is broken is named and left out. A run that was stopped counts up to its newest checkpoint. One of the same
script, options and seed that is there already gives way to one of at least as many steps.
"""

import argparse
import ast
import csv
import hashlib
import json
import lzma
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

ROOT = Path(__file__).parents[1]
NOT_OPTIONS = {"seed", "env_id", "cuda", "threads", "track", "capture_video", "save_every", "resume"}
PACKAGES = {
    "python", "torch", "numpy", "gymnasium", "ale-py", "opencv-python-headless", "mujoco", "envpool", "gym-microrts",
    "tensorflow", "gym", "baselines", "atari-py", "mujoco-py", "opencv-python",
}  # fmt: skip
# The columns of a table of updates after step and seconds, and what ppo2 calls them.
UPDATES = {
    "policy_loss": "loss/policy_loss", "value_loss": "loss/value_loss", "entropy": "loss/policy_entropy",
    "approx_kl_ppo2": "loss/approxkl", "clipfrac": "loss/clipfrac", "explained_variance": "misc/explained_variance",
    "SPS": "fps",
}  # fmt: skip
ONLY_OURS = ["approx_kl", "old_approx_kl", "learning_rate"]


class Broken(Exception):
    """Why a run cannot be collected."""


def defaults(source):
    """{name: value} of the defaults in the class Args of a script's text; those that are no constants are left out."""
    [args] = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Args"]
    fields = [node for node in args.body if isinstance(node, ast.AnnAssign)]
    return {node.target.id: node.value.value for node in fields if isinstance(node.value, ast.Constant)}


def commit(name, source):
    """The first commit with this text of the script, None where it is in none; and the text's hash in git."""
    blob = hashlib.sha1(b"blob %d\0" % len(source) + source).hexdigest()
    command = ["git", "log", "--reverse", "--format=%H", f"--find-object={blob}", "--", name]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split()
    return {"commit": found[0] if found else None, "source": blob}


def events(run):
    """{tag: [(step, value, seconds of training), ...]} of a run, without the time from a stop to a resume."""
    points, seconds = {}, 0.0
    for path in sorted(run.glob("events.*")):
        first, before = None, seconds
        for event in LegacyEventFileLoader(str(path)).Load():
            first = event.wall_time if first is None else first
            seconds = before + event.wall_time - first
            for value in event.summary.value:
                points.setdefault(value.tag, []).append((event.step, value.simple_value, seconds))
    return points


def read_ours(run):
    """(about, episodes, updates) of a run of one of our scripts."""
    about, script = json.loads((run / "run.json").read_text()), run.name.split("__")[1]
    args, source = about["args"], (run / f"{script}.py").read_bytes()
    batch_size, checkpoints = args["num_envs"] * args["num_steps"], sorted(run.glob("checkpoint_*.pt"))
    if not checkpoints:
        raise Broken("no checkpoint")
    steps = int(checkpoints[-1].stem.split("_")[1])
    logged = {tag: [point for point in points if point[0] <= steps] for tag, points in events(run).items()}
    columns = []
    for name in [*UPDATES, *ONLY_OURS]:
        columns.append(logged.get(f"{'charts' if name in ('SPS', 'learning_rate') else 'losses'}/{name}", []))
        if [point[0] for point in columns[-1]] != list(range(batch_size, steps + 1, batch_size)):
            raise Broken(f"the log has {len(columns[-1])} of the {steps // batch_size} values of {name}")
    updates = [(points[0][0], points[0][2], *(point[1] for point in points)) for points in zip(*columns, strict=True)]
    returns, lengths = (logged.get(f"charts/episodic_{name}", []) for name in ("return", "length"))
    if len(returns) != len(lengths):
        raise Broken(f"the log has {len(returns)} returns and {len(lengths)} lengths")
    episodes = [(x[0], x[2], x[1], length[1]) for x, length in zip(returns, lengths, strict=True)]
    default = defaults(source)
    options = {key: args[key] for key in sorted(args.keys() - NOT_OPTIONS) if default.get(key, args[key]) != args[key]}
    words = [f"--env-id {args['env_id']} --seed {args['seed']}"]
    for key, value in options.items():
        option = key.replace("_", "-")
        words.append(f"--{'' if value else 'no-'}{option}" if type(value) is bool else f"--{option} {value}")
    about["command"] = " ".join([f"python {script}.py", *words])
    about |= {"script": script, "env_id": args["env_id"], "options": options, "steps": steps}
    about |= {"steps_wanted": args["total_timesteps"] // batch_size * batch_size} | commit(f"{script}.py", source)
    return about, episodes, updates


def read_ppo2(run):
    """(about, episodes, updates) of a run of openai/baselines' ppo2: from its log and a monitor of each environment.

    A monitor counts the steps of its own environment; all environments step together."""
    about = json.loads((run / "run.json").read_text())
    args = about["args"]
    with (run / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    monitors = sorted(run.glob("*.monitor.csv"))
    if not rows or len(monitors) != int(args.get("num_env", 1)):
        raise Broken(f"{len(rows)} updates and {len(monitors)} monitors")
    names = ["misc/total_timesteps", "misc/time_elapsed", *UPDATES.values()]
    updates = [[float(row[name]) for name in names] for row in rows]
    episodes = []
    for path in monitors:
        with path.open() as file:
            next(file)  # a comment
            ended = [(float(row["r"]), int(row["l"]), float(row["t"])) for row in csv.DictReader(file)]
        for (score, length, seconds), step in zip(ended, accumulate(row[1] for row in ended), strict=True):
            episodes.append((step * len(monitors), seconds, score, length))
    about["options"] = {key: args[key] for key in sorted(args.keys() - {"env", "seed"})}
    about |= {"env_id": args["env"], "steps": int(updates[-1][0]), "commit": None}
    batch_size = int(updates[0][0])
    about |= {"steps_wanted": int(float(args["num_timesteps"])) // batch_size * batch_size}
    return about, sorted(episodes), updates


def write(path, names, digits, rows):
    """A compressed CSV; the first column is whole, the second, seconds, has one decimal, the others so many digits."""
    lines = [",".join(names)]
    for step, seconds, *others in rows:
        lines.append(",".join([f"{step:.0f}", f"{seconds:.1f}", *(f"{number:.{digits}g}" for number in others)]))
    path.write_bytes(lzma.compress("\n".join([*lines, ""]).encode()))


def collect(run, results, machine):
    """Puts a run into the results and returns what to say of it. Raises Broken, or what reading a wreck raises."""
    if "__" not in run.name or not run.is_dir():
        raise Broken("not the folder of a run")
    ours = not run.name.split("__")[1].startswith("ppo2")
    about, episodes, updates = (read_ours if ours else read_ppo2)(run)
    if not episodes:
        raise Broken("no episode ended")
    if (run / "machine.json").exists():
        machine = json.loads((run / "machine.json").read_text())
    about["versions"] = {name: version for name, version in about["versions"].items() if name in PACKAGES}
    about |= {"seed": int(about.pop("args")["seed"]), "machine": machine}
    name = f"{about['env_id']}__{about['script']}__{about['seed']}".replace("/", "-")
    if ours:  # other options make another experiment
        name = "__".join([name, *(f"{option}={value}" for option, value in about["options"].items())])
    folder = results / ("ours" if ours else "ppo2")
    folder.mkdir(parents=True, exist_ok=True)
    there = folder / f"{name}.json"
    if there.exists() and (steps := json.loads(there.read_text())["steps"]) > about["steps"]:
        return f"left out: {run}: the results have one of {steps} steps, this has {about['steps']}"
    columns = ["step", "seconds", *UPDATES, *(ONLY_OURS if ours else [])]
    write(folder / f"{name}.episodes.csv.xz", ["step", "seconds", "return", "length"], 7, episodes)
    write(folder / f"{name}.updates.csv.xz", columns, 4, updates)
    there.write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")
    part = "" if about["steps"] == about["steps_wanted"] else f" of {about['steps_wanted']}"
    return f"collected: {run}: {about['steps']}{part} steps, {len(episodes)} episodes"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmark" / "results")
    parser.add_argument("--machine", default="unknown", help="what the runs were made on, where they do not say")
    args, broken = parser.parse_args(), 0
    for run in args.runs:
        try:
            print(collect(run, args.results, args.machine), flush=True)
        except Exception as error:  # whatever is wrong with one run, the others are collected
            broken += 1
            reason = str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
            print(f"broken, left out: {run}: {reason}", flush=True)
    return broken > 0


if __name__ == "__main__":
    sys.exit(main())
