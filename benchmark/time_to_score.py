"""Measures how long training takes until the mean return of the last 100 episodes reaches a score.

    python -m benchmark.time_to_score CartPole-v1 Acrobot-v1 --seeds 101 102 103

Ours have the settings of tuned.sh, which were chosen on seeds below 101; where a program has runs from there on, the
table has these alone. Stable-Baselines3 and SBX have those of RL Zoo (rl_zoo.py); they are installed into
.venv-score, unless SCORE_PYTHON names a Python that has them. For each seed the programs take turns. PyTorch has one
thread; start the command with `taskset -c 0`, so that JAX has one core, too. A row for each run goes to
results/time_to_score.csv; `make report` puts the table into docs/speed.md.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmark import collect, sweep
from benchmark.libraries import find_python
from benchmark.results import FIRST_FRESH_SEED, RESULTS, ROOT, fresh
from benchmark.tables import put_row, read_rows

TABLE = RESULTS / "time_to_score.csv"
# The column "who" has the name of the program, as in tuned/games.csv.
COLUMNS = ["task", "who", "seed", "score", "steps", "seconds", "reached", "date", "commit", "machine", "versions"]
# The mean return of the last 100 episodes of training to reach: where there is one, gymnasium's reward_threshold.
SCORES = {
    "CartPole-v1": 475,
    "Acrobot-v1": -100,
    "Pendulum-v1": -200,
    "LunarLander-v3": 200,
    "HalfCheetah-v5": 4800,
}
# RL Zoo's steps, which Stable-Baselines3 and SBX round up to whole rollouts
ZOO_STEPS = {
    "CartPole-v1": 100_000,
    "Acrobot-v1": 1_000_000,
    "Pendulum-v1": 100_000,
    "LunarLander-v3": 1_000_000,
    "HalfCheetah-v5": 1_000_000,
}
# The programs by their names on the command line, with those in the tables
PROGRAMS = {"ours": "ours", "sb3": "Stable-Baselines3", "sbx": "SBX"}
PEER_PACKAGES = ["stable-baselines3==2.9.2", "sbx-rl==0.28.0", "gymnasium[box2d,mujoco]"]
SHOWN_PACKAGES = ("stable_baselines3", "sbx-rl", "jax", "torch", "gymnasium", "numpy")


def tuned_lines():
    """The experiments of tuned.sh, {task: line}."""
    lines = (ROOT / "benchmark" / "tuned.sh").read_text().splitlines()
    lines_by_task = {}
    for line in lines:
        task = re.search(r"--env-id (\S+)", line)
        if line.startswith("ppo") and task:
            lines_by_task[task[1]] = line
    return lines_by_task


def run_command(command):
    """What a command prints last, as a dict; it runs in a new folder, with one thread."""
    one_thread = {
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # so that the compiler's time counts
    }
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=os.environ | one_thread, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"error: {shlex.join(map(str, command))}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def run_ours(task, seed):
    """The result of a script of ours: steps, CPU seconds, and whether the score was reached."""
    script, recipes, options = sweep.parts(tuned_lines()[task])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, script)
        file.write_text(sweep.with_recipes(script, recipes))
        command = [sys.executable, ROOT / "benchmark" / "timed" / "score.py", file, str(SCORES[task])]
        return run_command([*command, *options, "--seed", str(seed)])


def run_peer(python, program, task, seed):
    """The result of "sb3" or "sbx" with RL Zoo's settings, as run_ours() returns it; `python` has both."""
    command = [python, ROOT / "benchmark" / "rl_zoo.py", task, "--library", program]
    return run_command([*command, "--steps", str(ZOO_STEPS[task]), "--score", str(SCORES[task]), "--seed", str(seed)])


def versions_of(python):
    """The versions of the packages of a Python that matter here."""
    code = f"""
import importlib.metadata
for name in {SHOWN_PACKAGES}:
    try:
        print(name + "==" + importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        pass
"""
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return " ".join(done.stdout.split())


def values_of(rows, column):
    """The numbers of a column, inf for runs that did not reach the score."""
    return [float(row[column]) if row["reached"] == "True" else np.inf for row in rows]


def number(value, unit):
    """A number in units of `unit`; "more" for inf."""
    return "more" if np.isinf(value) else f"{value / unit:.0f}"


def median_text(values, unit=1, suffix=""):
    """The median and the range of values: "67k (61 to more)", or "-" unless more than half of the values are finite."""
    middle = np.median(values)
    if np.isinf(middle):
        return "-"
    return f"{number(middle, unit)}{suffix} ({number(min(values), unit)} to {number(max(values), unit)})"


def table(rows):
    """The lines of a table in Markdown: a row for each task and program."""
    lines = ["| task | score | program | reached | steps | CPU seconds | times ours |"]
    lines.append("|---|---:|---|---:|---:|---:|---:|")
    for task, score in SCORES.items():
        ours = None  # the median of our CPU seconds
        for who in PROGRAMS.values():
            runs = [row for row in rows if (row["task"], row["who"]) == (task, who)]
            if not runs:
                continue
            runs = fresh(runs) or runs
            seconds = values_of(runs, "seconds")
            middle = np.median(seconds)
            ratio = ""
            if who == "ours":
                ours = middle
            elif ours is not None and np.isfinite(ours) and np.isfinite(middle):
                ratio = f"{middle / ours:.1f}"
            reached = sum(row["reached"] == "True" for row in runs)
            cells = [task, f"{score}", who, f"{reached} of {len(runs)}"]
            cells += [median_text(values_of(runs, "steps"), 1000, "k"), median_text(seconds), ratio]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def main():
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.time_to_score", description=__doc__, formatter_class=plain
    )
    parser.add_argument("tasks", nargs="+", choices=SCORES, metavar="TASK", help=f"one of {', '.join(SCORES)}")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(FIRST_FRESH_SEED, FIRST_FRESH_SEED + 5)))
    parser.add_argument("--programs", nargs="+", default=list(PROGRAMS), choices=PROGRAMS)
    options = parser.parse_args()
    pythons = {}
    for program in options.programs:
        if program == "ours":
            pythons[program] = sys.executable
        else:
            pythons[program] = find_python("SCORE_PYTHON", ".venv-score", PEER_PACKAGES)
    versions = {program: versions_of(python) for program, python in pythons.items()}
    commit = collect.git("describe", "--always")
    # this program itself changes the results
    if collect.git("status", "--porcelain", "--untracked-files=no", "--", ":!benchmark/results"):
        commit += "-dirty"
    machine = " ".join(f"{name}={value}" for name, value in sweep.machine(1).items() if value)
    for seed in options.seeds:
        for task in options.tasks:
            for program in options.programs:
                if program == "ours":
                    result = run_ours(task, seed)
                else:
                    result = run_peer(pythons[program], program, task, seed)
                row = {
                    "task": task,
                    "who": PROGRAMS[program],
                    "seed": seed,
                    "score": SCORES[task],
                    "steps": result["steps"],
                    "seconds": round(result["seconds"], 2),
                    "reached": str(result["reached"]),
                    "date": time.strftime("%Y-%m-%d"),
                    "commit": commit,
                    "machine": machine,
                    "versions": versions[program],
                }
                put_row(TABLE, COLUMNS, ("task", "who", "seed"), row)
                print(*(row[name] for name in COLUMNS[:7]), flush=True)
    for line in table(read_rows(TABLE)):
        print(line)


if __name__ == "__main__":
    main()
