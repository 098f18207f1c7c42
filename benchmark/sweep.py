"""Runs experiments, each with every seed. It reads them from its input, one command line each.

    SEEDS="1 2 3" WORKERS=2 benchmark/ours/classic_control.sh CartPole-v1
    echo "ppo.py + without/core-9 --env-id CartPole-v1" | python -m benchmark.sweep

A line names a script, or a copy of one, then recipes to apply, each after a "+", then options. A pattern such as
without/core-* stands for one line for each recipe that fits. Words on the command line choose the lines that contain
all of them. A finished run is skipped, and one that was stopped continues from its newest checkpoint.
benchmark/README.md lists the environment variables.
"""

import argparse
import csv
import dataclasses
import fcntl
import fnmatch
import hashlib
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
from typing import NamedTuple

from benchmark import collect, results
from benchmark.collect import NOT_OPTIONS
from benchmark.results import ROOT
from recipes import recipe as recipe_files

# The signals that stop a sweep; Slurm sends the last two before a time limit, if asked to
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

# Experiments


def parts(line):
    """(script, names of recipes, options) of "ppo.py + without/core-9 --gamma 0.9"."""
    script, *words = shlex.split(line)
    names = []
    while words[:1] == ["+"]:
        names.append(words[1])
        words = words[2:]
    return script, names, words


def with_recipes(script, names):
    """The text of a script with recipes; ValueError or OSError where a file is missing or a recipe does not fit."""
    text = Path(ROOT, script).read_text()
    for name in names:
        recipe = recipe_files.read(ROOT / "recipes" / f"{name}.diff")
        text = recipe_files.apply(recipe, text)
    return text


def expand(line):
    """The lines that a line stands for: where the name of a recipe is a pattern, one for each recipe that fits."""
    script, names, options = parts(line)
    patterns = [name for name in names if "*" in name]
    if not patterns:
        return [line]
    if len(patterns) > 1:
        sys.exit(f"error: {line}: only one of the recipes can be a pattern")
    pattern = patterns[0]
    lines, unfit = [], []
    for recipe in recipe_files.recipes():
        if not fnmatch.fnmatch(recipe.name, pattern):
            continue
        chosen = [recipe.name if name == pattern else name for name in names]
        try:
            with_recipes(script, chosen)
        except (OSError, ValueError):
            unfit.append(recipe.name)
            continue
        words = [script]
        for name in chosen:
            words += ["+", name]
        lines.append(shlex.join([*words, *options]))
    if not lines:
        sys.exit(f"error: {pattern} is no recipe that fits {script}")
    if unfit:
        print(f"not for {script}: {', '.join(unfit)}", file=sys.stderr)
    return lines


def parse_options(script, options):
    """(the options of a script, its defaults), each {name: value as in run.json}; a wrong option ends the program.

    The script's own parser reads them, so that a mistake is found before any run of a sweep starts."""
    import tyro

    spec = importlib.util.spec_from_file_location("<sweep>", script)
    module = importlib.util.module_from_spec(spec)
    sys.modules["<sweep>"] = module  # where tyro and dataclasses look for it
    spec.loader.exec_module(module)
    given = tyro.cli(module.Args, args=options, prog=script.name)
    return [json.loads(json.dumps(dataclasses.asdict(args))) for args in (given, module.Args())]


def agents_of(script):
    """The options that may differ between the agents of one process of a script, such as those of ppo_seeds.py."""
    names = re.search(r"^OPTIONS_OF_AGENTS = \((.*)\)$", script.read_text(), re.MULTILINE)
    return re.findall(r'"(\w+)"', names[1]) if names else []


def command_words(options):
    """The words of a command line for options, {name: value}; None is no option."""
    words = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words += [f"--{flag}", str(value)]
    return words


class Ours:
    """A run of one of our scripts, or of a copy, with its recipes and options."""

    def __init__(self, line, seed, folder, total_timesteps=None, results_folder=None):
        script, names, self.options = parts(line)
        self.folder = folder
        self.results = results_folder
        self.about = {}  # what the run itself cannot know, for sweep.json
        self.file = ROOT / script
        if names:
            self.file = self.write_script(script, names)
        self.script = self.file.stem
        self.options += ["--seed", str(seed)]
        if total_timesteps:
            self.options += ["--total-timesteps", total_timesteps]
        self.args, self.defaults = parse_options(self.file, self.options)
        if any(isinstance(self.args[name], list) for name in agents_of(self.file)):
            sys.exit(f"error: {line}: a line of a sweep has one value for each option")
        batch_size = self.args["num_envs"] * self.args["num_steps"]
        self.steps = self.args["total_timesteps"] // batch_size * batch_size
        changed = sorted(name for name in self.args.keys() - NOT_OPTIONS if self.args[name] != self.defaults[name])
        self.entry = {
            "env_id": self.args["env_id"],
            "script": self.script,
            "seed": seed,
            "options": {name: self.args[name] for name in changed},
        }
        self.name = file_name(results.name_of(self.entry))

    def write_script(self, script, names):
        """Writes a script with recipes, such as build/ppo+core-9.py, and returns its path."""
        try:
            text = with_recipes(script, names)
        except (OSError, ValueError) as error:
            sys.exit(f"error: {' + '.join([script, *names])}: {error}")
        commit = subprocess.getoutput(f"git -C '{ROOT}' describe --always --dirty --abbrev=40 --exclude='*'")
        is_clean = re.fullmatch("[0-9a-f]{40}", commit) is not None
        self.about["recipe"] = " + ".join(f"recipes/{name}.diff" for name in names)
        self.about["commit"] = commit if is_clean else None
        stem = "+".join(Path(name).stem for name in (script, *names))
        file = self.folder / "build" / f"{stem}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
        return file

    def has_options(self, args):
        """Whether a run with these options is this one.

        An option that it lacks has the default. A run that started from another run's checkpoint is another run."""
        if args.get("resume"):
            return False
        names = (self.args.keys() - NOT_OPTIONS) | {"env_id", "seed"}
        return all(args.get(name, self.defaults[name]) == self.args[name] for name in names)

    def run(self):
        """The folder of this run, of several the one with the most steps; None without one."""
        found = []
        for file in sorted(Path(self.folder, self.args["runs_folder"]).glob("*/run.json")):
            folder = file.parent
            try:
                about = json.loads(file.read_text())
                is_ours = Path(about["script"]).stem == self.script and self.has_options(about["args"])
                if is_ours and not collect.changed_options(folder):
                    found.append(folder)
            except (ValueError, KeyError, OSError):
                pass  # the file is half-written, or not one of a run of ours; collect.py reports it
        return max(found, key=collect.newest_step, default=None)

    def done(self):
        """Whether the results have the whole run, or its folder has the last checkpoint."""
        if self.collected():
            return True
        run = self.run()
        if run is None:
            return False
        if collect.blob(run / f"{self.script}.py") != collect.blob(self.file):
            print(f"note: {run} was made with another text of {self.file.name}", flush=True)
        return collect.newest_step(run) >= self.steps

    def collected(self):
        """Whether the results have the whole run."""
        if not self.results:
            return False
        entry = results.find(self.results, self.entry)
        return entry is not None and entry["steps"] == entry["steps_wanted"] == self.steps

    def members(self):
        """The runs that the process makes."""
        return [self]

    def command(self):
        """The command that starts the run or continues it."""
        command = [sys.executable, str(self.file), *self.options]
        run = self.run()
        if run is not None and collect.newest_step(run) > 0:
            command += ["--resume", os.path.relpath(run, self.folder)]
        return command


class SideBySide:
    """Runs that one process of ppo_seeds.py makes: one for each combination of the agents' options."""

    def __init__(self, runs):
        self.runs = runs
        self.results = runs[0].results
        self.name = file_name(" and ".join(run.name for run in runs))

    def members(self):
        return self.runs

    def collected(self):
        return all(run.collected() for run in self.runs)

    def done(self):
        return all(run.done() for run in self.runs)

    def command(self):
        """The command that starts the runs or continues them; plan() has put runs of one step together."""
        first = self.runs[0]
        of_agents = agents_of(first.file)
        shared = {name: value for name, value in first.args.items() if value != first.defaults[name]}
        shared = {name: value for name, value in shared.items() if name not in of_agents}
        command = [sys.executable, str(first.file), *command_words(shared)]
        folders = [run.run() for run in self.runs]
        if None not in folders and collect.newest_step(folders[0]) > 0:
            return [*command, "--resume", *(os.path.relpath(folder, first.folder) for folder in folders)]
        for name in of_agents:
            values = {run.args[name]: None for run in self.runs}  # without repetitions, in order
            if name != "resume":
                command += [f"--{name.replace('_', '-')}", *map(str, values)]
        return command


class PPO2:
    """A run of openai/baselines' ppo2, from a line such as "ppo2_copy --env=CartPole-v1".

    The first word names the experiment. A run cannot resume. BASELINES_PYTHON is the Python that has baselines."""

    def __init__(self, line, seed, folder, total_timesteps=None, results_folder=None):
        self.script, *words = shlex.split(line)
        self.options = dict(word.removeprefix("--").split("=", 1) for word in words)
        self.options["seed"] = str(seed)
        if total_timesteps:
            self.options["num_timesteps"] = total_timesteps
        self.python = os.environ.get("BASELINES_PYTHON", "python3.7")
        self.about = {}
        self.steps = int(float(self.options["num_timesteps"]))
        self.results = results_folder
        self.name = file_name(f"{self.options['env']}__{self.script}__{seed}__{self.steps}")
        self.folder = folder / "runs" / self.name

    def run(self):
        return self.folder

    def members(self):
        return [self]

    def collected(self):
        """A run that is done is not collected again: only its own sweep does so, as it ends."""
        return True

    def done(self):
        """Whether another update would exceed the steps asked for; ppo2 logs a row for each update."""
        try:
            with (self.folder / "progress.csv").open() as file:
                steps = [float(row["misc/total_timesteps"]) for row in csv.DictReader(file)]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        if not steps:
            return False
        before, last = [0.0, *steps][-2:]
        return last + (last - before) > self.steps

    def command(self):
        """The command that starts the run; also writes run.json."""
        options = [f"--{name}={value}" for name, value in self.options.items()]
        command = [self.python, "-m", "baselines.run", "--alg=ppo2", *options, f"--log_path={self.folder}"]
        listing = [self.python, "-m", "pip", "list", "--format=json"]
        packages = json.loads(subprocess.run(listing, capture_output=True, check=True).stdout)
        versions = {package["name"]: package["version"] for package in packages}
        about = {"command": command[1:], "script": self.script, "args": self.options, "versions": versions}
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "run.json").write_text(json.dumps(about, indent=2))
        return command


def make(line, seed, folder, total_timesteps=None, results_folder=None):
    """The run of a line with a seed."""
    kind = PPO2 if line.startswith("ppo2_") else Ours
    return kind(line, seed, folder, total_timesteps, results_folder)


def plan(waiting, settings):
    """The processes that make the runs, [(line, seed), ...]: for each a list of its runs, in order."""
    processes = []
    groups = {}
    for line, seed in waiting:
        key = group_of(line, seed, settings) if settings.agents > 1 else None
        if key is None:
            processes.append([(line, seed)])
        else:
            groups.setdefault(key, []).append((line, seed))
    for group in groups.values():
        processes += divided(group, settings)
    return processes


def group_of(line, seed, settings):
    """What the runs of one process have in common, as text; None for a run that needs a process of its own."""
    if line.startswith("ppo2_"):
        return None
    run = make(line, seed, settings.folder, settings.total_timesteps, settings.results)
    of_agents = agents_of(run.file)
    if not of_agents or run.done():
        return None
    shared = {name: value for name, value in run.args.items() if name not in of_agents}
    folder = run.run()
    return json.dumps([str(run.file), shared, 0 if folder is None else collect.newest_step(folder)])


def divided(group, settings):
    """The runs of a group, [(line, seed), ...], as lists of those of one process.

    A process makes every combination of the values of its options. Lines that differ in one option only are such
    combinations; where there are others, or too many, each line has processes of its own."""
    lines = list(dict.fromkeys(line for line, _ in group))
    runs = [make(line, group[0][1], settings.folder) for line in lines]
    differing = [name for name in agents_of(runs[0].file) if len({run.args[name] for run in runs}) > 1]
    if len(group) == len(lines) * len({seed for _, seed in group}) <= settings.agents and len(differing) <= 1:
        return [group]
    found = []
    for line in lines:
        of_line = [run for run in group if run[0] == line]
        found += [of_line[first : first + settings.agents] for first in range(0, len(of_line), settings.agents)]
    return found


def make_process(members, settings):
    """What one process makes: a run, or several side by side."""
    runs = [make(*member, settings.folder, settings.total_timesteps, settings.results) for member in members]
    return runs[0] if len(runs) == 1 else SideBySide(runs)


def file_name(name):
    """A name as that of a file: without separators, and of at most 180 characters; a hash then replaces the end."""
    name = name.replace("/", "-").replace(":", "-")
    if len(name) <= 180:
        return name
    return f"{name[:160]}-{hashlib.sha1(name.encode()).hexdigest()[:16]}"


# The machine


def cores():
    """How many CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def machine(workers):
    """The hardware, and how many runs share it."""
    import torch

    cpuinfo = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return {
        "cpu": model[1] if model else platform.processor(),
        "cores": cores(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "runs_at_once": workers,
    }


# Making the runs


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
        paths = [str(ROOT)]  # so that a script in build/ finds the module of --env-id MODULE:ID
        if "PYTHONPATH" in os.environ:
            paths.append(os.environ["PYTHONPATH"])
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        return subprocess.Popen(run.command(), cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)


def finish(run, status, about):
    """Prints how a run, or runs side by side, ended, writes sweep.json into each folder, and collects it.

    Returns whether one failed."""
    print(f"{'failed' if status else 'finished'}: logs/{run.name}.log", flush=True)
    failed = status != 0
    for member in run.members():
        folder = member.run()
        if folder is None:
            failed |= member.results is not None
            continue
        (folder / "sweep.json").write_text(json.dumps({"machine": about} | member.about, indent=2))
        if member.results is not None:
            failed |= collect.collect([folder], member.results, preset=results.QUICK) > 0
    return failed


class Settings(NamedTuple):
    """The environment variables, which benchmark/README.md explains."""

    seeds: list
    workers: int
    agents: int
    folder: Path
    results: Path | None
    total_timesteps: str | None
    task: int | None
    list_only: bool


def read_settings(variables):
    """The Settings in a dict of environment variables; one that is empty counts as not set."""
    variables = {name: value for name, value in variables.items() if value}
    return Settings(
        seeds=[int(seed) for seed in variables.get("SEEDS", "1 2 3").split()],
        workers=int(variables.get("WORKERS", 1)),
        agents=int(variables.get("AGENTS", 1)),
        folder=Path(ROOT, variables.get("FOLDER", "")).resolve(),
        results=Path(ROOT, variables["RESULTS"]) if "RESULTS" in variables else None,
        total_timesteps=variables.get("TOTAL_TIMESTEPS"),
        task=int(variables["TASK"]) if "TASK" in variables else None,
        list_only="LIST" in variables,
    )


def chosen_lines(lines, words):
    """The lines, with patterns expanded, that contain all words."""
    expanded = [each for line in lines for each in expand(line)]
    return [line for line in expanded if set(words) <= set(line.split())]


def make_runs(waiting, settings):
    """Makes the runs, [[(line, seed), ...], ...], a list for each process; returns how many processes failed.

    As many processes run at once as there are workers."""
    about = machine(settings.workers)
    running = []  # [(run, its process), ...]
    failed = 0
    stopped = []
    for number in STOPPING:
        signal.signal(number, lambda number, _: stopped.append(number))
    try:
        while waiting or running:
            if stopped:  # looked at only here, where `running` has every run that was started
                sys.exit("stopped; the same command goes on")
            for run, process in list(running):
                if process.poll() is not None:
                    running.remove((run, process))
                    failed += finish(run, process.returncode, about)
            if not waiting or len(running) == settings.workers:
                time.sleep(0.2)
                continue
            run = make_process(waiting.pop(0), settings)
            process = start(run, settings.folder)
            if isinstance(process, str):
                print(f"{process}: {run.name}", flush=True)
            else:
                print(f"started: {run.name}", flush=True)
                running.append((run, process))
            if process == "done" and run.results and not run.collected():
                failed += collect.collect([each.run() for each in run.members()], run.results, preset=results.QUICK)
    finally:
        stop([process for _, process in running])
    return failed


def stop(processes):
    """Ends processes with a checkpoint, however long that takes.

    A run ignores signals until it has started, so it gets one again after a while; but not soon, as a second signal
    ends a run at once."""
    while True:
        alive = [process for process in processes if process.poll() is None]
        if not alive:
            return
        for process in alive:
            process.terminate()
        for process in alive:
            try:
                process.wait(timeout=120)
            except subprocess.TimeoutExpired:
                pass


def main(lines, words=()):
    """Makes the runs of the lines that contain all words; returns how many failed."""
    settings = read_settings(os.environ)
    lines = chosen_lines(lines, words)
    waiting = plan([(line, seed) for seed in settings.seeds for line in lines], settings)
    if settings.task is not None:
        waiting = waiting[settings.task :][:1]
    if not waiting or settings.workers < 1 or settings.agents < 1:
        sys.exit("error: no experiment has these words, TASK is beyond the last run, or WORKERS or AGENTS is 0")
    if settings.list_only:
        for members in waiting:
            print(", ".join(f"{line} (seed {seed})" for line, seed in members))
        return 0
    for line in lines:
        make(line, 1, settings.folder)  # a recipe or an option that does not fit ends the sweep here
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // settings.workers)))
    return make_runs(waiting, settings)


if __name__ == "__main__":
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.sweep", description=__doc__, formatter_class=plain, allow_abbrev=False
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="of the experiments to make; without, all")
    found, options = parser.parse_known_args()  # a word may be an option of an experiment
    if sys.stdin.isatty():
        parser.error("the experiments come from a pipe, as in benchmark/ours/classic_control.sh")
    failed = main([line.strip() for line in sys.stdin if line.strip()], [*found.words, *options])
    sys.exit(failed > 0)
