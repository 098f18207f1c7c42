"""Runs experiments, each with every seed. It reads them from its input, one command line each.

    SEEDS="1 2 3" WORKERS=2 benchmark/ours/classic_control.sh CartPole-v1
    echo "ppo.py + without/core-9 --env-id CartPole-v1" | python benchmark/sweep.py

A line names a script, or a copy of one, then recipes to apply, each after a "+", then options. A pattern such as
without/core-* stands for one line for each recipe that fits. Words on the command line choose the lines that contain
all of them. A finished run is skipped, and one that was stopped continues from its newest checkpoint.
benchmark/README.md lists the environment variables.
"""

import argparse
import contextlib
import csv
import dataclasses
import fcntl
import fnmatch
import importlib.util
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmark.collect import NOT_OPTIONS, blob, collected, newest_step, result_file, resumes  # noqa: E402
from recipes.__main__ import apply, read, recipes  # noqa: E402


def parts(line):
    """(script, names of recipes, options) of "ppo.py + without/core-9 --gamma 0.9"."""
    (script, *words), names = shlex.split(line), []
    while words[:1] == ["+"]:
        names.append(words[1])
        words = words[2:]
    return script, names, words


def with_recipes(script, names):
    """The text of a script with recipes; SystemExit where a file is missing or a recipe does not fit."""
    try:
        text = Path(ROOT, script).read_text()
        for name in names:
            text = apply(read(ROOT / "recipes" / f"{name}.diff"), text)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {' + '.join([script, *names])}: {error}")
    return text


def expanded(line):
    """The lines that a line stands for: where a name is a pattern, one for each recipe that fits."""
    script, names, options = parts(line)
    if not any("*" in name for name in names):
        return [line]
    [pattern] = [name for name in names if "*" in name]
    lines, unfit = [], []
    for name in (recipe.name for recipe in recipes() if fnmatch.fnmatch(recipe.name, pattern)):
        chosen = [name if each == pattern else each for each in names]
        try:
            with_recipes(script, chosen)
            lines.append(shlex.join([script, *(word for each in chosen for word in ("+", each)), *options]))
        except SystemExit:
            unfit.append(name)
    if not lines:
        sys.exit(f"error: {pattern} is no recipe that fits {script}")
    if unfit:
        print(f"not for {script}: {', '.join(unfit)}", file=sys.stderr)
    return lines


class Ours:
    """A run of one of our scripts, or of a copy, with its recipes and options."""

    def __init__(self, line, seed, folder, total_timesteps=None, results=None):
        import tyro

        script, names, self.options = parts(line)
        self.folder, self.results, self.file, self.about = folder, results, ROOT / script, {}
        if names:
            self.file = self.written(script, names)
        self.options += ["--seed", str(seed)] + (["--total-timesteps", total_timesteps] if total_timesteps else [])
        spec = importlib.util.spec_from_file_location("<sweep>", self.file)
        module = sys.modules["<sweep>"] = importlib.util.module_from_spec(spec)  # where tyro and dataclasses look
        spec.loader.exec_module(module)
        args = module.Args(), tyro.cli(module.Args, args=self.options, prog=self.file.name)
        self.default, self.args = (json.loads(json.dumps(dataclasses.asdict(each))) for each in args)  # as in run.json
        self.script = self.file.stem
        changed = sorted(key for key in self.args.keys() - NOT_OPTIONS if self.args[key] != self.default[key])
        about = {"env_id": self.args["env_id"], "script": self.script, "seed": seed, "ours": True}
        self.result = result_file(results or "", about | {"options": {key: self.args[key] for key in changed}})
        self.name = self.result.stem
        batch_size = self.args["num_envs"] * self.args["num_steps"]
        self.steps = self.args["total_timesteps"] // batch_size * batch_size

    def written(self, script, names):
        """Writes a script with recipes, such as build/ppo+core-9.py, and returns its path."""
        text = with_recipes(script, names)
        commit = subprocess.getoutput(f"git -C '{ROOT}' describe --always --dirty --abbrev=40 --exclude='*'")
        recipe = " + ".join(f"recipes/{name}.diff" for name in names)
        self.about = {"recipe": recipe, "commit": commit if re.fullmatch("[0-9a-f]{40}", commit) else None}
        file = self.folder / "build" / f"{'+'.join(Path(name).stem for name in (script, *names))}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
        return file

    def same(self, args):
        """Whether a run with these options is this one. An option that it lacks has the default; a run that started
        from another run's checkpoint is not this one."""
        counts = (self.args.keys() - NOT_OPTIONS) | {"env_id", "seed"}
        return not args.get("resume") and all(args.get(key, self.default[key]) == self.args[key] for key in counts)

    def run(self):
        """The folder of this run, of several the one with the most steps; None without one."""
        found, name = [], f"{self.args['env_id']}__{self.args.get('exp_name') or self.script}__{self.args['seed']}"
        runs = self.folder / (self.args.get("runs_folder") or "runs")
        for about in runs.glob(re.sub("[/:]", "-", name) + "__*/run.json"):  # as the script names its folder
            try:
                run, args = about.parent, json.loads(about.read_text())["args"]
                if (run / f"{self.script}.py").exists() and self.same(args) and not resumes(run, self.script)[1]:
                    found.append(run)
            except ValueError:  # half-written; collect.py reports it
                pass
        return max(found, key=newest_step, default=None)

    def done(self):
        """Whether the results have the whole run, or its folder has the last checkpoint."""
        if self.results and self.result.exists():
            about = json.loads(self.result.read_text())
            if about["steps"] == about["steps_wanted"] == self.steps:
                return True
        run = self.run()
        if run is not None and blob(run / f"{self.script}.py") != blob(self.file):
            print(f"note: {run} was made with another text of {self.file.name}", flush=True)
        return run is not None and newest_step(run) >= self.steps

    def command(self):
        """The command that starts the run or continues it."""
        run, options = self.run(), self.options
        if run is not None and newest_step(run) > 0:
            options = [*options, "--resume", os.path.relpath(run, self.folder)]
        return [sys.executable, str(self.file), *options]


class PPO2:
    """A run of openai/baselines' ppo2, from a line such as "ppo2_copy --env=CartPole-v1", the first word of which names
    the experiment. It cannot resume. BASELINES_PYTHON is the Python that has baselines."""

    def __init__(self, line, seed, folder, total_timesteps=None, results=None):
        self.script, *words = shlex.split(line)
        self.options = dict(word.removeprefix("--").split("=", 1) for word in words)
        self.options |= {"seed": str(seed)} | ({"num_timesteps": total_timesteps} if total_timesteps else {})
        self.python, self.about = os.environ.get("BASELINES_PYTHON", "python3.7"), {}
        self.steps, self.results = int(float(self.options["num_timesteps"])), results
        self.name = f"{self.options['env']}__{self.script}__{seed}__{self.steps}".replace("/", "-")
        self.folder = folder / "runs" / self.name

    def run(self):
        return self.folder

    def done(self):
        """Whether another update would exceed the steps asked for; ppo2 logs a row for each update."""
        try:
            with (self.folder / "progress.csv").open() as file:
                *_, before, last = 0.0, *(float(row["misc/total_timesteps"]) for row in csv.DictReader(file))
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return last + (last - before) > self.steps

    def command(self):
        """The command that starts the run; also writes run.json."""
        options = [f"--{name}={value}" for name, value in self.options.items()]
        command = [self.python, "-m", "baselines.run", "--alg=ppo2", *options, f"--log_path={self.folder}"]
        versions = subprocess.run([self.python, "-m", "pip", "list", "--format=json"], capture_output=True, check=True)
        versions = {package["name"]: package["version"] for package in json.loads(versions.stdout)}
        about = {"command": command[1:], "script": self.script, "args": self.options, "versions": versions}
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "run.json").write_text(json.dumps(about, indent=2))
        return command


def cores():
    """How many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def machine(workers):
    """The hardware, and how many runs share it."""
    import torch

    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"model name\s*: (.*)", cpuinfo)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    cpu = model[1] if model else platform.processor()
    return {"cpu": cpu, "cores": cores(), "gpu": gpu, "runs_at_once": workers}


def start(run, folder):
    """Starts a run, which locks its log until it ends; or returns "busy" or "done"."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    with (folder / "logs" / f"{run.name}.log").open("a") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "busy"  # in another sweep
        if run.done():
            return "done"
        paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])  # a script in build/ finds --env-id MODULE:ID
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        return subprocess.Popen(run.command(), cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)


def finish(run, status, about):
    """Prints how a run ended, writes sweep.json into its folder, and collects it; returns whether it failed."""
    print(f"{'failed' if status else 'finished'}: logs/{run.name}.log", flush=True)
    if folder := run.run():
        (folder / "sweep.json").write_text(json.dumps({"machine": about} | run.about, indent=2))
    return status != 0 or (run.results is not None and not collected(run.run(), run.results))


def main(lines, words=()):
    """Makes the runs of the lines that contain all words; returns how many failed."""
    variables = os.environ.get
    folder, workers = Path(ROOT, variables("FOLDER") or "").resolve(), int(variables("WORKERS") or 1)
    results = Path(ROOT, variables("RESULTS")) if variables("RESULTS") else None
    lines = [line for each in lines for line in expanded(each) if set(words) <= set(line.split())]
    waiting = [(line, int(seed)) for seed in (variables("SEEDS") or "1 2 3").split() for line in lines]
    if variables("TASK"):
        waiting = waiting[int(variables("TASK")) :][:1]
    if not waiting or workers < 1:
        sys.exit("error: no experiment has these words, TASK is beyond the last run, or WORKERS is 0")
    if variables("LIST"):
        print("\n".join(f"{line} (seed {seed})" for line, seed in waiting))
        return 0
    for line in (line for line in lines if not line.startswith("ppo2_")):
        Ours(line, 1, folder)  # a recipe or an option that does not fit ends the sweep before a run starts
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // workers)))
    about, running, failed, stopped = machine(workers), [], 0, []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: stopped.append(number))
    try:
        while waiting or running:
            if stopped:  # looked at only here, where `running` has every run that was started
                sys.exit("stopped; the same command goes on")
            for run, process in [pair for pair in running if pair[1].poll() is not None]:
                running.remove((run, process))
                failed += finish(run, process.returncode, about)
            if waiting and len(running) < workers:
                line, seed = waiting.pop(0)
                make = PPO2 if line.startswith("ppo2_") else Ours
                run = make(line, seed, folder, variables("TOTAL_TIMESTEPS"), results)
                process = start(run, folder)
                print(f"{process if isinstance(process, str) else 'started'}: {run.name}", flush=True)
                if process == "done" and isinstance(run, Ours) and run.results and not run.result.exists():
                    failed += not collected(run.run(), run.results)
                if not isinstance(process, str):
                    running.append((run, process))
            else:
                time.sleep(0.2)
    finally:
        while alive := [process for _, process in running if process.poll() is None]:
            for process in alive:
                process.terminate()
            for process in alive:  # until a run starts it ignores signals; later a second one would end it at once
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=120)
    return failed


if __name__ == "__main__":
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain, allow_abbrev=False)
    parser.add_argument("words", nargs="*", metavar="WORD", help="of the experiments to make; without, all")
    found, options = parser.parse_known_args()  # a word may be an option of an experiment
    if sys.stdin.isatty():
        parser.error("the experiments come from a pipe, as in benchmark/ours/classic_control.sh")
    sys.exit(main([line.strip() for line in sys.stdin if line.strip()], [*found.words, *options]) > 0)
