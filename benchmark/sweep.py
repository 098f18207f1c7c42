"""Runs experiments, each with every seed. It reads them from its input, one command line each.

    benchmark/ours/classic_control.sh CartPole-v1 --seeds 1 2 3 --workers 2
    echo "ppo.py + without/core-9 --env-id CartPole-v1" | python -m benchmark.sweep

A line names a script, or a copy of one, then recipes to apply, each after a "+", then options. A pattern such as
without/core-* stands for one line for each recipe that fits. Words on the command line choose the lines that contain
all of them. A finished run is skipped, and one that was stopped continues from its newest checkpoint.
benchmark/README.md lists the environment variables, which the options replace.
"""

import argparse
import contextlib
import csv
import dataclasses
import fcntl
import fnmatch
import functools
import hashlib
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

import torch
import tyro

from benchmark import collect, results
from benchmark.collect import NO_EXPERIMENT, NOT_OPTIONS
from benchmark.libraries import absolute
from benchmark.results import ROOT
from benchmark.scripts import SCRIPTS
from recipes import recipe as recipe_files
from recipes.merge import with_recipe
from saved import import_script

# The signals that stop a sweep; Slurm sends the last two before a time limit, if asked to
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# A run is a line of the input with a seed. A job is what one process makes: a run, or several runs of ppo_seeds.py side
# by side. A job is an object with a name, its runs, done(), command() and to_collect(). A run is also a job, of itself;
# it also has run_folder(), note(), results_folder and sweep_about. To make the object of a run, its script is executed.
# Before that, a pair (line, seed) stands for a run, and a plan, which is a list of pairs, for a job.

# Experiments


def parts(line):
    """(script, names of recipes, options) of "ppo.py + without/core-9 --gamma 0.9"."""
    script, *words = shlex.split(line)
    names = []
    while words[:1] == ["+"]:
        _, name, *words = words
        names.append(name)
    return script, names, words


def with_recipes(script, names):
    """The text of a script with recipes; ValueError where one does not fit."""
    text = Path(ROOT, script).read_text()
    for name in names:
        recipe = recipe_files.read(ROOT / "recipes" / f"{name}.diff")
        text = with_recipe(text, recipe)
    return text


def expand(line):
    """The lines that a line stands for: where the name of a recipe is a pattern, one for each recipe that fits."""
    script, names, options = parts(line)
    patterns = [name for name in names if "*" in name]
    if not patterns:
        return [line]
    [pattern] = patterns
    lines = []
    unfit = []
    for recipe in recipe_files.recipes():
        if not fnmatch.fnmatch(recipe.name, pattern):
            continue
        chosen = [recipe.name if name == pattern else name for name in names]
        try:
            with_recipes(script, chosen)
        except ValueError:
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


def as_in_run_json(args):
    """Options, a script's Args, as {name: value} as in run.json, where a tuple is a list."""
    return json.loads(json.dumps(dataclasses.asdict(args)))


def make_ours(line, seed, folder, total_timesteps=None, results_folder=None):
    """The run of a line with one of our scripts, or a copy.

    Writes the script with the line's recipes into build/, and executes it, as its own parser reads the options. So a
    wrong option ends the program before any run of a sweep starts."""
    script, recipes, options = parts(line)
    if any(word.partition("=")[0] in ("--seed", "--seeds") for word in options):
        sys.exit(f"error: {line}: a sweep gives its seeds itself; a line has no --seed")
    file = ROOT / script
    sweep_about = {}
    if recipes:
        file = write_script(script, recipes, folder)
        sweep_about = about_recipes(script, recipes)
    options += ["--seed", str(seed)]
    if total_timesteps:
        options += ["--total-timesteps", total_timesteps]
    module = import_script(file)
    args = as_in_run_json(tyro.cli(module.Args, args=options, prog=file.name))
    if args.get("resume"):
        sys.exit(f"error: {line}: a sweep resumes its runs itself; a line has no --resume")
    of_agents = getattr(module, "OPTIONS_OF_AGENTS", ())
    if any(isinstance(args[name], list) for name in of_agents):
        sys.exit(f"error: {line}: a line of a sweep has one value for each option")
    return Ours(file, options, args, as_in_run_json(module.Args()), of_agents, folder, results_folder, sweep_about)


def write_script(script, names, folder):
    """Writes a script with recipes, such as build/ppo+core-9.py, and returns its path."""
    text = with_recipes(script, names)
    # no two recipes have the same name, not even in different folders
    stem = "+".join(Path(name).stem for name in (script, *names))
    file = folder / "build" / f"{stem}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists() or file.read_text() != text:
        results.replace_file(file, text.encode())  # another sweep may be reading it
    return file


def about_recipes(script, names):
    """What sweep.json says of a script with recipes: these, and the commit that has their very texts, or None."""
    recipes = [f"recipes/{name}.diff" for name in names]
    # other files, such as results, may have changed since
    commit = collect.git("rev-parse", "HEAD")
    are_committed = []
    for name in [script, *recipes]:
        committed_hash = collect.git("rev-parse", f"{commit}:{name}")
        are_committed.append(committed_hash == collect.git_hash(ROOT / name))
    return {"recipe": " + ".join(recipes), "commit": commit if all(are_committed) else None}


@functools.cache
def read_about(file, _changed):
    """What a run.json says. A sweep of hundreds of runs asks for each in turn, so a file is read once a change."""
    return json.loads(file.read_text())


class Ours:
    """A run of one of our scripts, or of a copy; make_ours() makes it from a line.

    args and defaults are all options of the script, as in run.json. A run.json has them too, but a run that has not
    begun has none."""

    def __init__(self, file, options, args, defaults, of_agents, folder, results_folder, sweep_about):
        self.file = file  # the script
        self.options = options  # words of the command line
        self.args = args
        self.defaults = defaults
        # the options that may differ between agents that one process of ppo_seeds.py trains; none of other scripts
        self.of_agents = of_agents
        self.folder = folder
        self.results_folder = results_folder
        self.sweep_about = sweep_about  # for sweep.json: what the run cannot find out
        self.script = file.stem
        batch_size = args["num_envs"] * args["num_steps"]
        self.steps = args["total_timesteps"] // batch_size * batch_size
        changed = sorted(name for name in args.keys() - NOT_OPTIONS if args[name] != defaults[name])
        self.entry = {
            "env_id": args["env_id"],
            "script": self.script,
            "seed": args["seed"],
            "options": {name: args[name] for name in changed},
        }
        self.name = file_name(results.name_of(self.entry))
        self.runs = [self]

    def has_options(self, args):
        """Whether a run with these options is this one.

        An option that it lacks has the default. A run that started from another run's checkpoint is another run."""
        if args.get("resume"):
            return False
        names = self.args.keys() - NO_EXPERIMENT
        return all(args.get(name, self.defaults[name]) == self.args[name] for name in names)

    def run_folder(self):
        """The folder of this run, of several the one with the most steps; None without one."""
        found = []
        for file in sorted(Path(self.folder, self.args["runs_folder"]).glob("*/run.json")):
            folder = file.parent
            try:
                about = read_about(file, file.stat().st_mtime_ns)
                is_ours = Path(about["script"]).stem == self.script and self.has_options(about["args"])
                if is_ours and not collect.changed_options(folder):
                    found.append(folder)
            except (ValueError, KeyError, OSError):
                pass  # the file is half-written, or not one of a run of ours; collect.py reports it
        return max(found, key=collect.newest_step, default=None)

    def done(self):
        """Whether the results have the whole run, or its folder has the last checkpoint."""
        if self.collected() is not None:
            return True
        folder = self.run_folder()
        return folder is not None and collect.newest_step(folder) >= self.steps

    def note(self):
        """A line for the user if the run was made with another text of the script than there is now; else None.

        Of the committed texts of scripts and recipes, the results have runs of many, so there is no line about
        these."""
        entry = self.collected()
        if entry is not None:
            texts = [entry, *entry.get("resumed", [])]
            if texts[-1]["source"] == collect.git_hash(self.file) or self.is_committed():
                return None
            return f"note: {self.results_folder} has {self.name} of another text of {self.file.name}, so it is not run"
        folder = self.run_folder()
        if folder is None:
            return None
        if collect.git_hash(folder / f"{self.script}.py") == collect.git_hash(self.file):
            return None
        return f"note: {folder} was made with another text of {self.file.name}"

    def is_committed(self):
        """Whether the newest commit has the present text of the script, which is this project's, and of its recipes."""
        if self.sweep_about:
            return self.sweep_about["commit"] is not None
        is_own = self.file.parent == ROOT and self.script in SCRIPTS
        return is_own and collect.git("rev-parse", f"HEAD:{self.file.name}") == collect.git_hash(self.file)

    def collected(self):
        """What the results say of the whole run; None where they do not have it."""
        if not self.results_folder:
            return None
        entry = results.find(self.results_folder, self.entry)
        is_whole = entry is not None and entry["steps"] == entry["steps_wanted"] == self.steps
        return entry if is_whole else None

    def to_collect(self):
        """The folders of runs that are done and not in the results, if there are to be results."""
        if self.results_folder is None or self.collected() is not None:
            return []
        return [self.run_folder()]

    def command(self):
        """The command that starts the run or continues it."""
        command = [sys.executable, str(self.file), *self.options]
        folder = self.run_folder()
        if folder is not None and collect.newest_step(folder) > 0:
            command += ["--resume", os.path.relpath(folder, self.folder)]
        return command


class SideBySide:
    """A job of several runs, which one process of ppo_seeds.py makes: every combination of the agents' options."""

    def __init__(self, runs):
        self.runs = runs
        self.name = file_name(" and ".join(run.name for run in runs))

    def done(self):
        return all(run.done() for run in self.runs)

    def to_collect(self):
        folders = []
        for run in self.runs:
            folders += run.to_collect()
        return folders

    def command(self):
        """The command that starts the runs or continues them; divided_by_step() has put runs of one step together."""
        first = self.runs[0]
        command = [sys.executable, str(first.file)]
        for name, value in first.args.items():
            if name not in first.of_agents and value != first.defaults[name]:
                command += results.option_words(name, value)
        folders = [run.run_folder() for run in self.runs]
        if None not in folders and collect.newest_step(folders[0]) > 0:
            return [*command, "--resume", *(os.path.relpath(folder, first.folder) for folder in folders)]
        for name in first.of_agents:
            if name != "resume":
                values = list(dict.fromkeys(run.args[name] for run in self.runs))  # each once, in order
                command += results.option_words(name, values)
        return command


class PPO2:
    """A run of openai/baselines' ppo2, from a line such as "ppo2_copy --env=CartPole-v1".

    The first word names the experiment. A run cannot resume. BASELINES_PYTHON is the Python that has baselines."""

    def __init__(self, line, seed, folder, total_timesteps=None, results_folder=None):
        self.script, *words = shlex.split(line)
        self.options = {}
        for word in words:
            name, _, value = word.removeprefix("--").partition("=")
            self.options[name] = value
        if "seed" in self.options:
            sys.exit(f"error: {line}: a sweep gives its seeds itself; a line has no --seed")
        self.options["seed"] = str(seed)
        if total_timesteps:
            self.options["num_timesteps"] = total_timesteps
        self.python = absolute(os.environ.get("BASELINES_PYTHON", "python3.7"))
        self.sweep_about = {}  # nothing for sweep.json, as there are no recipes
        self.steps = int(float(self.options["num_timesteps"]))
        self.results_folder = results_folder
        self.name = file_name(f"{self.options['env']}__{self.script}__{seed}__{self.steps}")
        self.folder = folder / "runs" / self.name
        self.runs = [self]

    def run_folder(self):
        return self.folder

    def to_collect(self):
        """No folder: the sweep that makes a run collects it as it ends, and later ones do not look for it."""
        return []

    def note(self):
        """None: baselines is not ours, so its text is not kept beside a run."""
        return None

    def done(self):
        """Whether another update would exceed the steps asked for; ppo2 logs a row for each update."""
        try:
            with (self.folder / "progress.csv").open() as file:
                steps = [float(row["misc/total_timesteps"]) for row in csv.DictReader(file)]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        if not steps:
            return False
        last = steps[-1]
        before = steps[-2] if len(steps) > 1 else 0.0
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


# Options with which ppo_seeds.py trains a single agent
SINGLE_AGENT = ("target_kl", "track")


def make_plans(pairs, settings):
    """The plans for pairs, [(line, seed), ...].

    They depend on the lines, the seeds and AGENTS alone, and not on which runs are done. So a TASK always has the same
    plan."""
    plans = []
    groups = {}
    for line, seed in pairs:
        key = group_of(line, seed, settings) if settings.agents > 1 else None
        if key is None:
            plans.append([(line, seed)])
        else:
            groups.setdefault(key, []).append((line, seed))
    for group in groups.values():
        plans += divided(group, settings)
    return plans


def group_of(line, seed, settings):
    """What runs that one process can make have in common, as text; None for a run that needs a process of its own."""
    if line.startswith("ppo2_"):
        return None
    run = make_run(line, seed, settings)
    if not run.of_agents or any(run.args.get(name) not in (None, False) for name in SINGLE_AGENT):
        return None
    shared = {name: value for name, value in run.args.items() if name not in run.of_agents}
    return json.dumps([str(run.file), shared])


def divided(pairs, settings):
    """The plans for the pairs of one group, [(line, seed), ...].

    A process makes every combination of the values of its options. So all pairs are one plan if each line has each
    seed, the lines differ in one option at most, and there are no more than AGENTS pairs. Lines that differ in two
    options need not be all the combinations of their values, and a process would make runs that nobody asked for.
    Otherwise the pairs of each line are divided into plans of at most AGENTS seeds."""
    lines = list(dict.fromkeys(line for line, _ in pairs))
    seeds = list(dict.fromkeys(seed for _, seed in pairs))
    run_of_each_line = [make_run(line, seeds[0], settings) for line in lines]
    differing = []
    for name in run_of_each_line[0].of_agents:
        if len({run.args[name] for run in run_of_each_line}) > 1:
            differing.append(name)
    is_grid = len(pairs) == len(lines) * len(seeds)
    if is_grid and len(differing) <= 1 and len(pairs) <= settings.agents:
        return [pairs]
    plans = []
    for line in lines:
        of_line = [pair for pair in pairs if pair[0] == line]
        for index in range(0, len(of_line), settings.agents):
            plans.append(of_line[index : index + settings.agents])
    return plans


def divided_by_step(plan, settings):
    """The plans into which a plan must be divided: some runs may be done, or have been stopped at another step.

    One process can only continue runs that are at the same step."""
    if len(plan) == 1:
        return [plan]
    plans = []
    groups = {}
    for line, seed in plan:
        run = make_run(line, seed, settings)
        if run.done():
            plans.append([(line, seed)])
            continue
        folder = run.run_folder()
        step = 0 if folder is None else collect.newest_step(folder)
        groups.setdefault(step, []).append((line, seed))
    for group in groups.values():
        plans += divided(group, settings)
    return plans


def make_run(line, seed, settings):
    """The run of a line with a seed.

    This executes the script. It takes about 0.1 seconds, with a recipe 0.25, which is little beside a run; so a run is
    made anew wherever one is needed."""
    make = PPO2 if line.startswith("ppo2_") else make_ours
    return make(line, seed, settings.folder, settings.total_timesteps, settings.results)


def make_job(plan, settings):
    """The job of a plan, [(line, seed), ...]: a run, or several side by side."""
    runs = [make_run(line, seed, settings) for line, seed in plan]
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
    """The hardware, and how many jobs share it."""
    cpuinfo = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return {
        "cpu": model[1] if model else platform.processor(),
        "cores": cores(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "runs_at_once": workers,
    }


# Making the runs


@contextlib.contextmanager
def locked_logs(job, folder):
    """Opens and locks the logs of a job and of its runs: {name: file}, or None if another sweep has locked one.

    A process that inherits the logs keeps the locks until it ends, so no other sweep makes one of the runs meanwhile.
    """
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    names = dict.fromkeys([job.name, *(run.name for run in job.runs)])  # a job of one run has the name of the run
    with contextlib.ExitStack() as files:
        logs = {}
        for name in names:
            log = files.enter_context((folder / "logs" / f"{name}.log").open("a"))
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logs = None
                break
            logs[name] = log
        yield logs


def start(job, folder, logs):
    """Starts a job, and returns its process; `logs` are those that locked_logs() gives."""
    for name, log in logs.items():
        if name != job.name:
            print(f"this run is made beside others: see {job.name}.log", file=log, flush=True)
    paths = [str(ROOT)]  # so that a script in build/ finds the module of --env-id MODULE:ID
    if "PYTHONPATH" in os.environ:
        paths.append(os.environ["PYTHONPATH"])
    return subprocess.Popen(
        job.command(),
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=logs[job.name],
        stderr=subprocess.STDOUT,
        # the process inherits the open logs, and the locks with them, and keeps these if the sweep is killed
        pass_fds=[log.fileno() for log in logs.values()],
    )


def print_notes(job):
    """Prints a line about each run of a job that was made with another text of its script."""
    for run in job.runs:
        note = run.note()
        if note is not None:
            print(note, file=sys.stderr, flush=True)


def finish(job, status, hardware):
    """Prints how a job ended, writes sweep.json into the folder of each run, and collects these if results are wanted.

    hardware: what machine() returns. Returns whether the job failed or a run of it could not be collected."""
    print(f"{'failed' if status else 'finished'}: logs/{job.name}.log", flush=True)
    failed = status != 0
    to_collect = []
    for run in job.runs:
        folder = run.run_folder()
        if folder is not None:
            write_sweep_json(folder, {"machine": hardware} | run.sweep_about)
            to_collect.append(folder)
        elif run.results_folder is not None:
            print(f"no folder to collect: {run.name}", flush=True)
            failed = True
    results_folder = job.runs[0].results_folder  # the same for all
    if results_folder is not None and collect.collect(to_collect, results_folder, preset=results.QUICK) > 0:
        failed = True
    return failed


def write_sweep_json(folder, about):
    """Writes what a sweep knows of a run, and the run itself cannot find out, into the run's folder."""
    (folder / "sweep.json").write_text(json.dumps(about, indent=2))


def collect_done(job, results_folder):
    """Collects the runs of a job that were done before this sweep and are not in the results; returns how many failed.

    A run that outlived its sweep has no sweep.json, and nobody knows on which machine it was made."""
    for run in job.runs:
        folder = run.run_folder()
        if folder is not None and run.sweep_about and not (folder / "sweep.json").exists():
            write_sweep_json(folder, run.sweep_about)
    return collect.collect(job.to_collect(), results_folder, preset=results.QUICK)


class Settings(NamedTuple):
    """The options and environment variables of a sweep as a whole, which benchmark/README.md explains.

    PYTHON is read by the .sh files, BASELINES_PYTHON by PPO2, and OMP_NUM_THREADS by the runs."""

    seeds: list
    workers: int
    agents: int
    folder: Path
    results: Path | None
    total_timesteps: str | None
    task: int | None
    list_only: bool


def read_settings(words, variables):
    """(Settings, the other words) of a command line and a dict of environment variables; an option goes before its
    variable, and a variable that is empty counts as not set.

    A sweep has no option --total-timesteps, as that is a word of experiments."""
    variables = {name: value for name, value in variables.items() if value}
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.sweep", description=__doc__, formatter_class=plain, allow_abbrev=False
    )
    seeds = [int(seed) for seed in variables.get("SEEDS", "1 2 3").split()]
    parser.add_argument("words", nargs="*", metavar="WORD", help="of the experiments to make; without, all")
    parser.add_argument("--seeds", type=int, nargs="+", default=seeds, help="of every experiment")
    parser.add_argument("--workers", type=int, default=variables.get("WORKERS", "1"), help="runs at the same time")
    parser.add_argument("--agents", type=int, default=variables.get("AGENTS", "1"), help="of ppo_seeds.py in a process")
    parser.add_argument("--folder", default=variables.get("FOLDER", ""), help="holds runs/ and logs/")
    parser.add_argument("--results", default=variables.get("RESULTS"), help="folder to collect finished runs into")
    parser.add_argument("--task", type=int, default=variables.get("TASK"), help="make only this process of the list")
    parser.add_argument("--list", action="store_true", default="LIST" in variables, help="only list the runs")
    known, others = parser.parse_known_args(words)  # a word may be an option of an experiment
    if known.workers < 1:
        parser.error("--workers must be at least 1")
    settings = Settings(
        seeds=list(dict.fromkeys(known.seeds)),
        workers=known.workers,
        agents=known.agents,
        folder=Path(ROOT, known.folder).resolve(),
        results=Path(ROOT, known.results) if known.results else None,
        total_timesteps=variables.get("TOTAL_TIMESTEPS"),
        task=known.task,
        list_only=known.list,
    )
    return settings, [*known.words, *others]


def chosen_lines(lines, words):
    """The lines, with patterns expanded, that contain all words; each once."""
    expanded = []
    for line in lines:
        expanded += expand(line)
    chosen = [line for line in dict.fromkeys(expanded) if all(word in line.split() for word in words)]
    if not chosen and words:
        sys.exit(f"error: no experiment has the words {' '.join(words)}")
    if not chosen:
        sys.exit("error: there are no experiments")
    return chosen


def run_jobs(plans, settings):
    """Runs the jobs of plans, each [(line, seed), ...]; returns how many failed.

    As many processes run at once as there are workers."""
    waiting = list(plans)
    hardware = machine(settings.workers)
    running = []  # [(job, its process), ...]
    failed = 0
    stopped = []  # the signals that came

    def note_signal(number, _frame):
        stopped.append(number)

    for number in STOPPING:
        signal.signal(number, note_signal)
    try:
        while waiting or running:
            if stopped:  # looked at only here, where `running` has every job that was started
                sys.exit("stopped; the same command goes on")
            for job, process in list(running):
                if process.poll() is not None:
                    running.remove((job, process))
                    failed += finish(job, process.returncode, hardware)
            if not waiting or len(running) == settings.workers:
                time.sleep(0.2)
                continue
            job = make_job(waiting.pop(0), settings)
            with locked_logs(job, settings.folder) as logs:
                if logs is None:
                    print(f"busy: {job.name}", flush=True)
                    continue
                print_notes(job)
                if not job.done():
                    running.append((job, start(job, settings.folder, logs)))
                    print(f"started: {job.name}", flush=True)
                    continue
            print(f"done: {job.name}", flush=True)
            if settings.results is not None:
                failed += collect_done(job, settings.results)
    finally:
        stop([process for _, process in running])
    return failed


def stop(processes):
    """Ends processes, and waits until they have, however long that takes.

    A run saves a checkpoint after the update under way. The same signal again would end it at once. Ctrl-C, timeout and
    Slurm may send SIGINT or SIGTERM to the runs, too, so a run gets SIGUSR2, for which it does the same, and gets it
    once."""
    for process in processes:
        process.send_signal(signal.SIGUSR2)
    for process in processes:
        process.wait()


def main(lines, settings, words=()):
    """Makes the runs of the lines that contain all words; returns how many failed."""
    lines = chosen_lines(lines, words)
    plans = make_plans([(line, seed) for seed in settings.seeds for line in lines], settings)
    if settings.task is not None:
        if not 0 <= settings.task < len(plans):
            sys.exit(f"error: the task is {settings.task}, and there are tasks 0 to {len(plans) - 1}")
        plans = [plans[settings.task]]
    if settings.list_only:
        for plan in plans:
            print(", ".join(f"{line} (seed {seed})" for line, seed in plan))
        return 0
    scripts = {}
    for line in lines:
        make_run(line, settings.seeds[0], settings)  # a recipe or an option that does not fit ends the sweep here
        script = line.split()[0]
        if scripts.setdefault(Path(script).stem, script) != script:  # the runs of both would have the same names
            sys.exit(f"error: {scripts[Path(script).stem]} and {script}: scripts of a sweep need different file names")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // settings.workers)))
    divided_plans = []
    for plan in plans:
        divided_plans += divided_by_step(plan, settings)
    return run_jobs(divided_plans, settings)


if __name__ == "__main__":
    settings, words = read_settings(sys.argv[1:], os.environ)
    if sys.stdin.isatty():
        sys.exit("error: the experiments come from a pipe, as in benchmark/ours/classic_control.sh")
    lines = [line.strip() for line in sys.stdin if line.strip()]
    sys.exit(main(lines, settings, words) > 0)
