"""Trains agents of ppo_seeds.py side by side with the settings of docs/environment.md, and plays 20 games with each.

    python -m benchmark.untuned.ours ScaledPusher-v5 --total-timesteps 81920 --gammas 0.9 0.95 0.99
    python -m benchmark.untuned.ours ScaledPusher-v5 --total-timesteps 81920 --seeds 101 102 103 104 105

The first command compares values of gamma. The second takes the one that was best in it, by the mean returns of the
last 100 episodes of training, and trains on seeds that chose nothing. A row for each agent, and one of random play,
goes to results/untuned/scores.csv.
"""

import contextlib
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import tyro

import benchmark.untuned.tasks  # noqa: F401  It registers the tasks.
import enjoy
from benchmark import collect
from benchmark.random_play import random_returns
from benchmark.results import ROOT, WINDOW
from benchmark.sweep import about_recipes, write_script
from benchmark.tables import read_rows
from benchmark.untuned import scores

WHO = "ours"
SETTINGS = "--num-envs 8 --num-steps 256 --num-minibatches 32 --learning-rate 1e-3 --bootstrap-truncated"
RECIPES = "without/core-9", "with/seeds-continuous"
PACKAGES = "torch", "gymnasium", "numpy", "mujoco"
GAMES = 20


def best_gamma(task):
    """The gamma whose agents in the table, of the first command, had the highest training returns on average."""
    returns = {}
    for row in read_rows(scores.TABLE):
        if row["task"] == task and row["who"] == WHO and int(row["seed"]) < scores.NEW_SEEDS:
            returns.setdefault(float(row["gamma"]), []).append(float(row["training"]))
    return max(returns, key=lambda gamma: np.mean(returns[gamma]))


def cpu_seconds():
    """The processor time of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def row_of(folder, seconds, commit):
    """The row of an agent: what it scored in training and in games, and its share of the processor time."""
    run = collect.gathered(folder)
    about = run.about
    with contextlib.redirect_stdout(None):
        returns = enjoy.enjoy(enjoy.Args(folder, episodes=GAMES, greedy=True, seed=1000 * about["seed"]))
    options = about["options"]
    return {
        "task": about["env_id"].rpartition(":")[2],
        "who": WHO,
        "gamma": options.get("gamma", 0.99),
        "seed": about["seed"],
        "steps": about["steps"],
        "score": round(float(np.mean(returns)), 3),
        "training": round(float(np.mean(run.episodes["return"][-WINDOW:])), 3),
        "cpu_seconds": round(seconds, 1),
        "versions": " ".join(f"{name}=={about['versions'][name]}" for name in PACKAGES if name in about["versions"]),
        "commit": commit,
    }


def main(
    task: tyro.conf.Positional[str],
    total_timesteps: int,
    seeds: tuple[int, ...] = (1, 2, 3),
    gammas: tuple[float, ...] = (),
    folder: Path = ROOT / "build" / "untuned",
):
    if not gammas:
        gammas = (best_gamma(task),)
    script = write_script("ppo_seeds.py", RECIPES, folder)
    commit = about_recipes("ppo_seeds.py", RECIPES)["commit"]
    runs_folder = folder / "runs" / f"{task}__{total_timesteps}__{'_'.join(map(str, (*seeds, *gammas)))}"
    words = ["--env-id", f"benchmark.untuned.tasks:{task}", "--total-timesteps", total_timesteps, "--no-cuda"]
    words += [*SETTINGS.split(), "--seeds", *seeds, "--gamma", *gammas, "--runs-folder", runs_folder]
    shutil.rmtree(runs_folder, ignore_errors=True)  # agents of an earlier call, perhaps with other settings
    before = cpu_seconds()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, script, *map(str, words)], check=True, cwd=ROOT, env=environment)
    share = (cpu_seconds() - before) / (len(seeds) * len(gammas))
    for run in sorted(runs_folder.iterdir()):
        scores.add(row_of(run, share, commit))
    score = round(float(np.mean(random_returns(task, GAMES))), 3)
    scores.add({"task": task, "who": "random", "gamma": "", "seed": "", "steps": "", "score": score})


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
