"""Measures what each detail does: trains a script, and the script without each of its details, with the same seeds.

    python benchmark/ablation run --details core --env-id CartPole-v1 --steps 50000 --seeds 10
    python benchmark/ablation effects

`run` makes the runs that are missing, seed by seed, into build/ablation, and collects them into
benchmark/ablation/results. `effects` computes the effects from these, and writes them into the headers of the recipes
and into benchmark/ablation/README.md.
"""

import argparse
import contextlib
import importlib
import os
import re
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/ablation"
RESULTS = Path(__file__).parent / "results"
sys.path.insert(0, str(ROOT))


def scripts(details):
    """The paths of the scripts to run, which it writes: the recipes' parent, and each recipe's. Old ones stay."""
    from recipes.__main__ import apply, recipes

    FOLDER.mkdir(parents=True, exist_ok=True)
    chosen = [recipe for recipe in recipes() if re.fullmatch(rf"without/{details}-\d.*", recipe.name)]
    texts = {recipe.script.stem: recipe.script.read_text() for recipe in chosen}
    texts |= {recipe.file.stem: apply(recipe, recipe.script.read_text()) for recipe in chosen}
    for name, text in texts.items():
        if not (FOLDER / f"{name}.py").exists():
            (FOLDER / f"{name}.py").write_text(text)
    return [FOLDER / f"{name}.py" for name in texts]


def done(script, env_id, seed, steps):
    """Whether a run has its last checkpoint; --save-every 0 makes one only at the end."""
    return any(FOLDER.glob(f"runs/{env_id}__{script.stem}__{seed}__*/checkpoint_*.pt"))


def run(script, env_id, seed, steps):
    """Makes one run in a child of this process, which has imported the libraries already; True where that went well."""
    if child := os.fork():
        return os.waitpid(child, 0)[1] == 0
    status = 1
    try:
        os.chdir(FOLDER)
        options = ["--env-id", env_id, "--seed", seed, "--total-timesteps", steps, "--save-every", 0]
        sys.argv = [script.name, *map(str, options), "--no-cuda"]
        with open("log", "a") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            runpy.run_path(str(script), run_name="__main__")
        status = 0
    finally:
        os._exit(status)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["run", "effects"])
    parser.add_argument("--details", default="core", help="a set of details: core, atari, continuous, ...")
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    chosen, failed = scripts(args.details), 0
    importlib.import_module(chosen[0].stem if (ROOT / chosen[0].name).exists() else "ppo")
    for seed in range(1, args.seeds + 1):
        for script in chosen:
            if not done(script, args.env_id, seed, args.steps):
                well = run(script, args.env_id, seed, args.steps)
                failed += not well
                print(f"{script.stem}, seed {seed}: {'finished' if well else 'failed'}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
