"""Compares runs whose functions are captured as CUDA graphs with runs of the same scripts without capture, bit for bit.

    python -m benchmark.gpu.exact            or some: continuous_action atari_envpool procgen

For each diff in benchmark/gpu it makes a copy of the script, and another that never captures. Both train for 20
updates, then resume for 4. A third pair ends its updates early by --target-kl. Weights, optimizer and returns must be
equal. The script without the diff is compared, too. It computes Adam's bias correction on the CPU, so its weights may
differ in the last bit. Exits with 1 if a pair differs.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmark.results import ROOT
from recipes import recipe as recipe_files
from saved import read_state

SMALL = {
    "continuous_action": "--env-id HalfCheetah-v5 --num-envs 4 --num-steps 64 --num-minibatches 8",
    "atari_envpool": "--env-id Breakout-v5 --num-envs 8 --num-steps 32",
    "procgen": "--env-id starpilot --num-envs 8 --num-steps 32 --num-minibatches 4",
}
WARM_UP = "    WARM_UP = 3 "


def write_copies(name, folder):
    """The script of a diff in three forms, {form: file}: captured, never captured, and as it is."""
    recipe = recipe_files.read(ROOT / "benchmark" / "gpu" / f"{name}.diff")
    plain = recipe.script.read_text()
    captured = recipe_files.apply(recipe, plain)
    if WARM_UP not in captured:
        raise ValueError(f"{name}.diff: there is no line {WARM_UP!r}")
    texts = {"captured": captured, "eager": captured.replace(WARM_UP, "    WARM_UP = 10**9 "), "plain": plain}
    files = {}
    for form, text in texts.items():
        files[form] = folder / form / recipe.script.name
        files[form].parent.mkdir()
        files[form].write_text(text)
    return files


def train(file, options):
    """The state at the end of a run in the script's own folder: a new one, or the one before, resumed."""
    subprocess.run([sys.executable, file.name, *options], cwd=file.parent, check=True, capture_output=True, text=True)
    newest = max(file.parent.glob("runs/*"), key=lambda run: run.stat().st_mtime)
    return newest, read_state(max(newest.glob("checkpoint_*.pt")))


def equal(a, b):
    """Whether two nested dicts of tensors and numbers are equal, bit for bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return str(a) == str(b)


def compare(name):
    """Runs the forms of a script, and returns whether the captured ones equal the others."""
    options = SMALL[name].split()
    batch = int(options[options.index("--num-envs") + 1]) * int(options[options.index("--num-steps") + 1])
    stages = {
        "20 updates": [*options, "--total-timesteps", str(20 * batch)],
        "resumed for 4": None,
        "--target-kl 1e-4": [*options, "--total-timesteps", str(6 * batch), "--target-kl", "1e-4"],
    }
    same = True
    with tempfile.TemporaryDirectory() as folder:
        files = write_copies(name, Path(folder))
        runs = {}
        for stage, command in stages.items():
            states = {}
            for form, file in files.items():
                words = command or ["--resume", str(runs[form]), "--total-timesteps", str(24 * batch)]
                runs[form], states[form] = train(file, words)
            found = {form: equal(states["captured"]["parts"], states[form]["parts"]) for form in ("eager", "plain")}
            returns = states["captured"]["returns"] == states["eager"]["returns"]
            print(f"{name}, {stage}: captured equals eager: {found['eager'] and returns}, the script: {found['plain']}")
            sys.stdout.flush()
            same = same and found["eager"] and returns
    return same


def main():
    names = sys.argv[1:] or list(SMALL)
    print("on a GPU" if torch.cuda.is_available() else "on a CPU, where nothing is captured")
    results = [compare(name) for name in names]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
