"""Compares agents that go on with a heavier arm, with and without critic-warm-up: arm.sh made the runs.

python -m benchmark.ablation.tuned_arm build/ablation/tuned
"""

from pathlib import Path

import numpy as np
import tyro

from benchmark.ablation.effects import interval, spread
from benchmark.collect import events
from benchmark.scores import compare

# What is compared of the returns of a run's episodes, in the order of their ends
PARTS = {
    "first 100 episodes": lambda returns: np.mean(returns[:100]),
    "worst 100 in a row": lambda returns: np.convolve(returns, np.full(100, 0.01), "valid").min(),
    "last 100 episodes": lambda returns: np.mean(returns[-100:]),
    "all episodes": np.mean,
}


def main(folder: tyro.conf.Positional[Path]):
    returns = {}
    for script in ("tuned", "tuned_warm_up"):
        returns[script] = []
        for run in sorted(folder.glob(f"*HeavyArm-v0__{script}__*")):
            points = events(run)["charts/episodic_return"]
            returns[script].append(np.array([value for _step, value, _seconds in points]))
    for name, part in PARTS.items():
        without, with_warm_up = [[part(run) for run in runs] for runs in returns.values()]
        difference = interval(compare(with_warm_up, without))
        print(f"{name}: {spread(without)}, with critic-warm-up {spread(with_warm_up)}, difference {difference}")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
