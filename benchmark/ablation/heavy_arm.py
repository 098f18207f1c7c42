"""Goes on with agents of arm.sh on an arm of three times the mass, with and without critic-warm-up, and compares these.

python -m benchmark.ablation.heavy_arm --seeds 1 2 3 4 5

A row for each run goes to results/arm/heavy.csv: means of the returns of its episodes.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import tyro

from benchmark.ablation.effects import interval, spread
from benchmark.collect import events, newest_step
from benchmark.results import RESULTS, ROOT
from benchmark.scores import compare
from benchmark.sweep import write_script
from benchmark.tables import put_row

RECIPES = "without/core-9", "with/squashed-gaussian"
LIGHT = "*ablation.arm-Arm-v0__ppo_continuous_action+core-9+squashed-gaussian__"
# What is compared of the returns of a run's episodes, in the order of their ends
PARTS = {
    "first 100 episodes": lambda returns: np.mean(returns[:100]),
    "worst 100 in a row": lambda returns: np.convolve(returns, np.full(100, 0.01), "valid").min(),
    "last 100 episodes": lambda returns: np.mean(returns[-100:]),
    "all episodes": np.mean,
}
TABLE = RESULTS / "arm" / "heavy.csv"


def run(script, seed, folder, total_timesteps):
    """The folder of the run of a script from the newest checkpoint of the light arm's agent; makes or ends the run."""
    runs_folder = folder / "heavy"
    pattern = f"*HeavyArm-v0__{script.stem}__{seed}__*"
    found = list(runs_folder.glob(pattern))
    if found and newest_step(found[0]) > total_timesteps - 2048:  # an update has 2048 steps
        return found[0]
    begun = found[0] if found else max(folder.glob(f"runs/{LIGHT}{seed}__*/checkpoint_*.pt"))
    words = ["--resume", begun, "--env-id", "benchmark.ablation.arm:HeavyArm-v0", "--seed", str(seed), "--no-cuda"]
    words += ["--total-timesteps", str(total_timesteps), "--runs-folder", runs_folder]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, script, *words], env=environment, check=True)
    [found] = runs_folder.glob(pattern)
    return found


def main(folder: Path = ROOT / "build/ablation", seeds: tuple[int, ...] = (1, 2, 3), total_timesteps: int = 200_000):
    found = []  # for each script {part: the values of its runs}
    for recipes in (RECIPES, (*RECIPES, "with/critic-warm-up")):
        script = write_script("ppo_continuous_action.py", recipes, folder)
        values = {name: [] for name in PARTS}
        for seed in seeds:
            run_folder = run(script, seed, folder.resolve(), total_timesteps)
            returns = np.array([value for _, value, _ in events(run_folder)["charts/episodic_return"]])
            row = {"script": script.stem, "seed": seed}
            for name, part in PARTS.items():
                value = float(part(returns))
                values[name].append(value)
                row[name] = round(value, 3)
            put_row(TABLE, ["script", "seed", *PARTS], ("script", "seed"), row)
        found.append(values)
    without, with_warm_up = found
    for name in PARTS:
        difference = interval(compare(with_warm_up[name], without[name]))
        print(f"{name}: {spread(without[name])}, with critic-warm-up {spread(with_warm_up[name])}")
        print(f"    difference {difference}")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
