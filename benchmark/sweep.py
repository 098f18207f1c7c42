"""Makes the runs of a sweep: reads experiments, one command line each, and runs each of them with every seed.

    SEEDS="1 2 3" WORKERS=2 benchmark/ours/classic_control.sh CartPole-v1

The words behind it choose the experiments that have all of them. LIST=1 lists the runs and makes none;
benchmark/README.md has the other variables. A run that is done is skipped, and one that was stopped goes on from its
newest checkpoint; ppo2's have none and start anew. What tells runs apart is the script and its options, the seed among
them.
"""

import argparse
import csv
import dataclasses
import fcntl
import importlib
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

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmark.collect import NOT_OPTIONS, changes, newest_step, short  # noqa: E402


class Ours:
    """A run of one of our scripts, with options as in ["ppo.py", "--env-id", "CartPole-v1"]."""

    def __init__(self, words, seed, total_timesteps, folder):
        import tyro

        self.folder, self.script = folder, Path(words[0]).stem
        self.options = [*words[1:], "--seed", seed]
        self.options += ["--total-timesteps", total_timesteps] if total_timesteps else []
        module = importlib.import_module(self.script)
        self.args = dataclasses.asdict(tyro.cli(module.Args, args=self.options))
        self.default = default = dataclasses.asdict(module.Args())
        env_id = self.args["env_id"].replace("/", "-")
        # as the script names its folder
        self.start = re.sub("[/:]", "-", f"{self.args['env_id']}__{self.args.get('exp_name') or self.script}__{seed}")
        self.runs = Path(folder, self.args.get("runs_folder") or "runs")
        named = NOT_OPTIONS | {"total_timesteps"}
        others = [f"{key}={value}" for key, value in self.args.items() if key not in named and value != default[key]]
        self.name = short("__".join([env_id, self.script, seed, str(self.args["total_timesteps"]), *others]))

    def same(self, args):
        """Whether a run that began with `args` is this one. One from before an option existed counts as of its default,
        and one that began from a checkpoint's file is another."""
        counts = (self.args.keys() - NOT_OPTIONS) | {"env_id", "seed"}
        return not args.get("resume") and all(args.get(key, self.default[key]) == self.args[key] for key in counts)

    def run(self):
        """The folder of this run that got furthest; None where there is none."""
        found = []
        for about in self.runs.glob(f"{self.start}__*/run.json"):
            try:
                run, args = about.parent, json.loads(about.read_text())["args"]
                if (run / f"{self.script}.py").exists() and self.same(args) and not changes(run, self.script, args):
                    found.append(run)
            except ValueError:  # half-written; collect.py reports it
                pass
        return max(found, key=newest_step, default=None)

    def done(self):
        batch_size = self.args["num_envs"] * self.args["num_steps"]
        run = self.run()
        return run is not None and newest_step(run) >= self.args["total_timesteps"] // batch_size * batch_size

    def command(self):
        """What to run: goes on with what is there."""
        run, options = self.run(), self.options
        if run is not None and newest_step(run) > 0:  # a resume asks for an --env-id with a colon
            options = ["--resume", os.path.relpath(run, self.folder), "--env-id", self.args["env_id"]]
        return [sys.executable, str(ROOT / f"{self.script}.py"), *options]


class PPO2:
    """A run of openai/baselines' ppo2, with options as in ["ppo2_copy", "--env=CartPole-v1", "--num_timesteps=5e5"].

    The first word names the experiment. BASELINES_PYTHON is the Python that has baselines."""

    def __init__(self, words, seed, total_timesteps, folder):
        self.options = dict(word.removeprefix("--").split("=", 1) for word in words[1:])
        self.options |= {"seed": seed} | ({"num_timesteps": total_timesteps} if total_timesteps else {})
        self.python, self.script = os.environ.get("BASELINES_PYTHON", "python3.7"), words[0]
        self.steps = int(float(self.options["num_timesteps"]))
        self.name = f"{self.options['env']}__{self.script}__{seed}__{self.steps}".replace("/", "-")
        self.folder = folder / "runs" / self.name

    def run(self):
        return self.folder

    def done(self):
        """Whether another update would go beyond the steps asked for; ppo2 writes a line after each."""
        try:
            with (self.folder / "progress.csv").open() as file:
                *_, before, last = 0.0, *(float(row["misc/total_timesteps"]) for row in csv.DictReader(file))
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return last + (last - before) > self.steps

    def command(self):
        """What to run, from the start; says in the run's folder what it is."""
        options = [f"--{name}={value}" for name, value in self.options.items()]
        command = [self.python, "-m", "baselines.run", "--alg=ppo2", *options, f"--log_path={self.folder}"]
        versions = subprocess.run([self.python, "-m", "pip", "list", "--format=json"], capture_output=True, check=True)
        versions = {package["name"]: package["version"] for package in json.loads(versions.stdout)}
        about = {"command": command[1:], "script": self.script, "args": self.options, "versions": versions}
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "run.json").write_text(json.dumps(about, indent=2))
        return command


def cores():
    """How many this process may use, which a cluster's share or taskset may limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def machine(workers):
    """What the runs are made on."""
    import torch

    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"model name\s*: (.*)", cpuinfo)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    cpu = model[1] if model else platform.processor()
    return {"cpu": cpu, "cores": cores(), "gpu": gpu, "runs_at_once": workers}


def start(run, folder):
    """Starts a run, or says in a word why not; it holds the lock of its log for as long as it lives, come what may."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    with (folder / "logs" / f"{run.name}.log").open("a") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "busy"  # another sweep makes it right now
        if run.done():
            return "done"
        return subprocess.Popen(run.command(), cwd=folder, stdout=log, stderr=subprocess.STDOUT)


def main(experiments):
    """Makes every run of the experiments; returns how many failed."""
    variables = os.environ.get
    folder, workers = Path(variables("FOLDER") or ROOT).resolve(), int(variables("WORKERS") or 1)
    seeds, total_timesteps = (variables("SEEDS") or "1 2 3").split(), variables("TOTAL_TIMESTEPS")
    waiting = [(line, seed) for line in experiments for seed in seeds]
    if variables("TASK"):
        waiting = waiting[int(variables("TASK")) :][:1]
    if not waiting or workers < 1:
        sys.exit("error: no experiment has these words, TASK is beyond the last run, or WORKERS is 0")
    if variables("LIST"):
        print("\n".join(f"{line} (seed {seed})" for line, seed in waiting))
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // workers)))
    about, running, failed, stopped = json.dumps(machine(workers), indent=2), [], 0, []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: stopped.append(number))
    try:
        while waiting or running:
            if stopped:  # looked at only here, where `running` has every run that was started
                sys.exit("stopped; the same command goes on")
            for run, process in [pair for pair in running if pair[1].poll() is not None]:
                running.remove((run, process))
                failed += process.returncode != 0
                if run.run() is not None:
                    (run.run() / "machine.json").write_text(about)
                print(f"{'failed' if process.returncode else 'finished'}: logs/{run.name}.log", flush=True)
            if waiting and len(running) < workers:
                line, seed = waiting.pop(0)
                words = shlex.split(line)
                run = (PPO2 if words[0].startswith("ppo2") else Ours)(words, seed, total_timesteps, folder)
                process = start(run, folder)
                print(f"{process if isinstance(process, str) else 'started'}: {run.name}", flush=True)
                if not isinstance(process, str):
                    running.append((run, process))
            else:
                time.sleep(0.2)
    finally:
        for _, process in running:
            process.terminate()
        for _, process in running:
            process.wait()
    return failed


if __name__ == "__main__":
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain, allow_abbrev=False)
    parser.add_argument("words", nargs="*", metavar="WORD", help="of the experiments to make; without, all")
    words, options = parser.parse_known_args()  # a word may be an option of an experiment
    chosen = {*words.words, *options}
    if sys.stdin.isatty():
        parser.error("the experiments come from a pipe, as in benchmark/ours/classic_control.sh")
    lines = [line.strip() for line in sys.stdin]
    sys.exit(main([line for line in lines if line and chosen <= set(line.split())]) > 0)
