"""Trains agents of ppo_seeds.py side by side with the settings of docs/environment.md, and plays 20 games with each.

    python -m benchmark.untuned.ours ScaledPusher-v5 --total-timesteps 81920
    python -m benchmark.untuned.ours ScaledPusher-v5 --total-timesteps 81920 --seeds 101 102 103 104 105

The first command compares values of gamma and, where actions are Discrete, of the learning rate. The second, with seeds
from 101 on, takes those that were best in the first, by the mean returns of the last 100 episodes of training; it may
have more steps than the first. A row for each agent, and one of random play, goes to results/untuned/scores.csv.
"""

import contextlib
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import tyro

import benchmark.untuned.tasks  # noqa: F401  It registers the tasks.
import enjoy
from benchmark import collect
from benchmark.random_play import random_returns
from benchmark.results import FIRST_FRESH_SEED, ROOT, WINDOW
from benchmark.sweep import about_recipes, write_script
from benchmark.tables import read_rows
from benchmark.untuned import scores

COMMON = "--num-envs 8 --bootstrap-truncated"


class Settings(NamedTuple):
    """The settings of docs/environment.md for one kind of actions."""

    options: str
    recipes: tuple
    gammas: tuple
    learning_rates: tuple


BOX = Settings(
    f"{COMMON} --num-steps 256 --num-minibatches 32",
    ("without/core-9", "with/seeds-continuous"),
    gammas=(0.9, 0.95, 0.99),
    learning_rates=(1e-3,),
)
DISCRETE = Settings(
    f"{COMMON} --num-steps 128 --num-minibatches 8 --update-epochs 10",
    ("without/core-9",),
    gammas=(0.95, 0.99),
    learning_rates=(1e-3, 3e-3),
)
PACKAGES = "torch", "gymnasium", "numpy", "mujoco"
GAMES = 20


def best_options(task):
    """(gamma, learning rate) of the agents in the table, of the first command, whose training returns were highest."""
    returns = {}
    for row in read_rows(scores.TABLE):
        if row["task"] == task and row["who"] == scores.OURS and int(row["seed"]) < FIRST_FRESH_SEED:
            options = float(row["gamma"]), float(row["learning_rate"])
            returns.setdefault(options, []).append(float(row["training"]))
    return max(returns, key=lambda options: np.mean(returns[options]))


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
        "who": scores.OURS,
        "gamma": options.get("gamma", 0.99),
        "learning_rate": options["learning_rate"],
        "seed": about["seed"],
        "steps": about["steps"],
        "score": round(float(np.mean(returns)), 3),
        "training": round(float(np.mean(run.episodes["return"][-WINDOW:])), 3),
        "cpu_seconds": round(seconds, 1),
        "versions": " ".join(f"{name}=={about['versions'][name]}" for name in PACKAGES if name in about["versions"]),
        "commit": commit,
    }


def settings_of(task):
    """The settings for the actions of a task."""
    return BOX if isinstance(gym.make(task).action_space, gym.spaces.Box) else DISCRETE


def train(task, total_timesteps, seeds, gammas, learning_rates, folder):
    """Trains agents in one process, with a folder for each in `folder`; returns the CPU seconds of one, its share."""
    settings = settings_of(task)
    script = write_script("ppo_seeds.py", settings.recipes, folder.parent)
    words = ["--env-id", f"benchmark.untuned.tasks:{task}", "--total-timesteps", total_timesteps, "--no-cuda"]
    words += [*settings.options.split(), "--seeds", *seeds, "--gamma", *gammas, "--learning-rate", *learning_rates]
    words += ["--runs-folder", folder]
    shutil.rmtree(folder, ignore_errors=True)  # agents of an earlier call, perhaps with other settings
    before = cpu_seconds()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, script, *map(str, words)], check=True, cwd=ROOT, env=environment)
    return (cpu_seconds() - before) / (len(seeds) * len(gammas) * len(learning_rates))


def main(
    task: tyro.conf.Positional[str],
    total_timesteps: int,
    seeds: tuple[int, ...] = (1, 2, 3),
    folder: Path = ROOT / "build" / "untuned",
):
    settings = settings_of(task)
    gammas, rates = settings.gammas, settings.learning_rates
    if min(seeds) >= FIRST_FRESH_SEED:
        gamma, rate = best_options(task)
        gammas, rates = (gamma,), (rate,)
    commit = about_recipes("ppo_seeds.py", settings.recipes)["commit"]
    runs_folder = folder / f"{task}__{total_timesteps}__{'_'.join(map(str, seeds))}"
    share = train(task, total_timesteps, seeds, gammas, rates, runs_folder)
    for run in sorted(runs_folder.iterdir()):
        scores.add(row_of(run, share, commit))
    score = round(float(np.mean(random_returns(task, GAMES))), 3)
    scores.add(dict.fromkeys(scores.KEYS, "") | {"task": task, "who": "random", "score": score})


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
