"""Collects runs, ours and ppo2's, into benchmark/results: what they did in each episode and each update, and on what.

    python benchmark/collect.py runs/*

A run that is broken is named and left out. A run that was stopped counts up to its newest checkpoint. A script of any
name and every --exp-name are experiments of their own. One of the same experiment and seed that is there already gives
way to one of at least as many steps, and is named.
"""

import argparse
import ast
import contextlib
import csv
import functools
import hashlib
import json
import lzma
import subprocess
import sys
import tempfile
from itertools import accumulate
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

ROOT = Path(__file__).parents[1]
NOT_OPTIONS = {
    "seed", "env_id", "cuda", "threads", "async_envs", "track", "capture_video", "save_every", "resume", "runs_folder",
}  # fmt: skip
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
    """{name: value} of the defaults in the class Args of a script's text; those that are no literals are left out."""
    [args] = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Args"]
    found = {}
    for node in args.body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            with contextlib.suppress(ValueError):  # not a literal
                found[node.target.id] = json.loads(json.dumps(ast.literal_eval(node.value)))  # as run.json has it
    return found


def git(*words):
    """What git prints, as bytes; none where it fails."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True).stdout


def hashed(text):
    """The hash that git has for a file of this text, bytes."""
    return hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()


def patched(name, text, diff):
    """What a diff to the file `name` makes of its text, bytes; None where it does not fit."""
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder, name)).write_bytes(text)
        done = subprocess.run(["git", "apply", "-p0"], input=diff, cwd=folder, capture_output=True)
        return None if done.returncode else file.read_bytes()


@functools.cache
def origin(name, text):
    """{"commit": the first in which the script `name` has this text, bytes} or, where a recipe of a commit makes it
    from its script, {"commit": the first such, "recipe": its file}; the commit is None where there is neither."""
    if found := git("log", "--reverse", "--format=%H", f"--find-object={hashed(text)}", "--", name).decode().split():
        return {"commit": found[0]}
    lines = set(text.splitlines())
    for path in sorted(ROOT.glob("recipes/*/*.diff")):
        diff = path.read_bytes().partition(b"\n--- ")[2].splitlines()
        there, gone = ({line[1:] for line in diff[2:] if line[:1] in signs} for signs in (b"+ ", b"-"))
        if len(there & lines) < 0.9 * len(there) or len(gone - lines) < 0.5 * len(gone):
            continue  # nor was it this one when it was a little different
        recipe, script = path.relative_to(ROOT).as_posix(), diff[0].decode()
        for at in git("log", "--reverse", "--format=%H", "--", recipe, script).decode().split():
            if patched(script, git("show", f"{at}:{script}"), git("show", f"{at}:{recipe}")) == text:
                return {"commit": at, "recipe": recipe}
    return {"commit": None}


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


def newest_step(run):
    """The step of a run's newest checkpoint; 0 where there is none."""
    return max((int(path.stem.split("_")[1]) for path in run.glob("checkpoint_*.pt")), default=0)


def changes(run, script, args):
    """{option: [(step, its value from there on), ...]} of what was given anew when a run of `script` was resumed."""
    found, files = {}, {int(file.stem.split("_")[1]): file for file in run.glob("run_*.json")}
    for step in sorted(step for step in files if step < newest_step(run)):
        now, source = json.loads(files[step].read_text())["args"], run / f"{script}_{step:012}.py"
        default = {"exp_name": script} | (defaults(source.read_text()) if source.exists() else {})
        for name in now.keys() - NOT_OPTIONS:
            first = args.get(name, default.get(name))  # the run may be from before there was this option
            before = found[name][-1][1] if name in found else first
            if now[name] != before:
                found.setdefault(name, []).append((step, now[name]))
    return found


def sources(run, script):
    """[(step, hash of the script's text from there on), ...] of a run: its first, and each that a resume changed."""
    files = [(0, run / f"{script}.py")]
    files += [(int(file.stem[-12:]), file) for file in sorted(run.glob(f"{script}_{'[0-9]' * 12}.py"))]
    found = []
    for step, file in files:
        blob = hashed(file.read_bytes())
        if not found or (step < newest_step(run) and blob != found[-1][1]):
            found.append((step, blob))
    return found


def describe(run):
    """What a run is, without its log: run.json's, and script, env_id, seed, options that are not the script's defaults,
    batch_size, steps_wanted, `resumed` with the script's later texts, where it was changed; `ours` is false for ppo2's.
    Raises Broken, or what reading a wreck raises.

    An option that was changed at a resume has both values as its text: another experiment."""
    if not run.is_dir():
        raise Broken("not the folder of a run")
    about = json.loads((run / "run.json").read_text())
    args, about["run"], about["ours"] = about["args"], run.name, "--alg=ppo2" not in about["command"]
    if about["ours"]:
        if Path(args.get("resume") or run).name != run.name:  # at first a run that went on named itself there
            raise Broken(f"begun from {args['resume']}: the log has not what was before")
        script = Path(about.get("script") or about["command"][0]).stem
        # some name their script in the folder's name only
        about["script"] = script if (run / f"{script}.py").exists() else run.name.split("__")[1]
        source, batch_size = (run / f"{about['script']}.py").read_bytes(), args["num_envs"] * args["num_steps"]
        options, env_id, total = set(args) - NOT_OPTIONS, args["env_id"], args["total_timesteps"]
        default = {"exp_name": about["script"]} | defaults(source)
        options = {key for key in options if key not in default or default[key] != args[key]}
        (_, about["source"]), *later = sources(run, about["script"])
        if later:
            about["resumed"] = [{"step": step, "source": blob} for step, blob in later]
        changed = changes(run, about["script"], args)
        if {"num_envs", "num_steps"} & changed.keys():
            raise Broken("num_envs or num_steps was changed at a resume")
        total = changed.get("total_timesteps", [(0, total)])[-1][1]
    else:
        with (run / "progress.csv").open() as file:
            first = next(csv.DictReader(file), None)
        if first is None:
            raise Broken("no update")
        batch_size, options = int(float(first["misc/total_timesteps"])), set(args) - {"env", "seed"}
        env_id, total = args["env"], args["num_timesteps"]
    options = {key: args[key] for key in options}
    if about["ours"]:
        for key, steps in changed.items():
            options[key] = ", ".join([str(args.get(key)), *(f"from step {step} {value}" for step, value in steps)])
    about |= {"env_id": env_id, "seed": int(args["seed"]), "options": dict(sorted(options.items()))}
    return about | {"batch_size": batch_size, "steps_wanted": int(float(total)) // batch_size * batch_size}


def short(name):
    """A file's name of at most 180 characters; the end of a longer one gives way to a hash of the whole."""
    return name if len(name) <= 180 else f"{name[:160]}-{hashlib.sha1(name.encode()).hexdigest()[:16]}"


def typed(option):
    """The option (name, value) of a script as on its command line: "--num-envs 16", "--bf16" or "--no-anneal-lr"."""
    name, value = option[0].replace("_", "-"), option[1]
    if isinstance(value, list):
        return " ".join([f"--{name}", *map(str, value)])
    return f"--{'' if value else 'no-'}{name}" if type(value) is bool else f"--{name} {value}"


def read_ours(run, about):
    """(episodes, updates) of a run of one of our scripts. A metric that an edited copy does not log is left out."""
    batch_size, checkpoints = about["batch_size"], sorted(run.glob("checkpoint_*.pt"))
    if not checkpoints:
        raise Broken("no checkpoint")
    steps = int(checkpoints[-1].stem.split("_")[1])
    logged = {tag: [point for point in points if point[0] <= steps] for tag, points in events(run).items()}
    columns = {}
    for name in [*UPDATES, *ONLY_OURS]:
        points = logged.get(f"{'charts' if name in ('SPS', 'learning_rate') else 'losses'}/{name}", [])
        if points and [point[0] for point in points] != list(range(batch_size, steps + 1, batch_size)):
            raise Broken(f"the log has {len(points)} of the {steps // batch_size} values of {name}")
        if points:
            columns[name] = points
    if not columns:
        raise Broken(f"the log has none of the {steps // batch_size} updates")
    first = next(iter(columns.values()))
    updates = {"step": [point[0] for point in first], "seconds": [point[2] for point in first]}
    updates |= {name: [point[1] for point in points] for name, points in columns.items()}
    returns, lengths = (logged.get(f"charts/episodic_{name}", []) for name in ("return", "length"))
    if len(returns) != len(lengths):
        raise Broken(f"the log has {len(returns)} returns and {len(lengths)} lengths")
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
    names = {"step": "misc/total_timesteps", "seconds": "misc/time_elapsed"} | UPDATES
    episodes = []
    for path in monitors:
        with path.open() as file:
            next(file)  # a comment
            ended = [(float(row["r"]), int(row["l"]), float(row["t"])) for row in csv.DictReader(file)]
        for (score, length, seconds), step in zip(ended, accumulate(row[1] for row in ended), strict=True):
            episodes.append((step * len(monitors), seconds, score, length))
    return sorted(episodes), {name: [float(row[column]) for row in rows] for name, column in names.items()}


def read(run, about):
    """(episodes, updates) of a run that describe() has told `about`, each {column: [a number for each, ...]}.

    Raises Broken, or what reading a wreck raises."""
    episodes, updates = (read_ours if about["ours"] else read_ppo2)(run, about)
    if not episodes:
        raise Broken("no episode ended")
    return dict(zip(["step", "seconds", "return", "length"], zip(*episodes, strict=True), strict=True)), updates


def write(path, table, digits):
    """A compressed CSV; the first column is whole, the second, seconds, has one decimal, the others so many digits."""
    lines = [",".join(table)]
    for step, seconds, *others in zip(*table.values(), strict=True):
        lines.append(",".join([f"{step:.0f}", f"{seconds:.1f}", *(f"{number:.{digits}g}" for number in others)]))
    path.write_bytes(lzma.compress("\n".join([*lines, ""]).encode()))


def collect(run, results, machine):
    """Puts a run into the results and returns what to say of it. Raises Broken, or what reading a wreck raises."""
    about = describe(run)
    episodes, updates = read(run, about)
    ours, args = about.pop("ours"), about.pop("args")
    del about["batch_size"]
    if (run / "machine.json").exists():
        machine = json.loads((run / "machine.json").read_text())
    about["versions"] = {name: version for name, version in about["versions"].items() if name in PACKAGES}
    about |= {"steps": int(updates["step"][-1]), "machine": machine, "commit": None}
    name = f"{about['env_id']}__{about['script']}__{about['seed']}"
    if ours:  # other options make another experiment
        name = "__".join([name, *(f"{option}={value}" for option, value in about["options"].items())])
        for text in (about, *about.get("resumed", ())):
            file = f"{about['script']}_{text['step']:012}.py" if "step" in text else f"{about['script']}.py"
            text |= origin(f"{about['script']}.py", (run / file).read_bytes())
        words = ["python", f"{about['script']}.py", "--env-id", args["env_id"], "--seed", str(args["seed"])]
        first = [(key, args[key]) for key in about["options"] if key in args]  # of a run that was resumed
        about["command"] = " ".join([*words, *map(typed, first)])
    folder = results / ("ours" if ours else "ppo2")
    folder.mkdir(parents=True, exist_ok=True)
    there, instead = folder / f"{short(name.replace('/', '-'))}.json", ""
    if there.exists():
        before = json.loads(there.read_text())
        if before["steps"] > about["steps"]:
            return f"left out: {run}: the results have one of {before['steps']} steps, this has {about['steps']}"
        if before.get("run") != run.name:
            instead = f", in place of {before.get('run', 'another')} of {before['steps']} steps"
    for kind, table, digits in (("episodes", episodes, 7), ("updates", updates, 4)):
        write(there.with_name(f"{there.name.removesuffix('.json')}.{kind}.csv.xz"), table, digits)
    there.write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")
    part = "" if about["steps"] == about["steps_wanted"] else f" of {about['steps_wanted']}"
    return f"collected: {run}: {about['steps']}{part} steps, {len(episodes['step'])} episodes{instead}"


def reason(error):
    """What to say of a run that could not be read."""
    return str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"


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
            print(f"broken, left out: {run}: {reason(error)}", flush=True)
    return broken > 0


if __name__ == "__main__":
    sys.exit(main())
