"""Tries the scripts on a GPU, and writes one Markdown table: `make gpu-check`.

    python benchmark/gpu_check.py                             everything; build/gpu-check.md
    python benchmark/gpu_check.py ppo --device cpu            some scripts; without a GPU this tries the program itself

Rows: the golden tests, which compare with what ppo2 computed; each script twice with one seed, whose weights should be
the same to the last bit; and the speed of some with their options, N = 8 and 64. A run has so many --updates; steps per
second are those after the second, by when all is compiled. Memory is the most that torch had allocated at once.
"""

import argparse
import hashlib
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import tyro

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ["-n", "0", "-q", "-k", "forward or statistics or gradients or first_step or three_steps or trace"]
SCRIPTS = sorted(path.stem for path in ROOT.glob("*ppo*.py")) + ["impala_atari_cleanba"]
BOTH = ["", "--bf16", "--compile", "--bf16 --compile"]
SPEED = {
    "ppo": ["", "--compile"],
    "ppo_continuous_action": ["", "--compile"],
    "ppo_atari_lstm": ["", "--bf16"],
    "ppo_atari_envpool": BOTH,
    "ppo_procgen": BOTH,
}
WARMUP = 2


def measure(name, updates, options):
    """Trains in this process, in this folder; {"N", "steps/s", "MiB", "weights": their digest}."""
    module, times = importlib.import_module(name), []
    args = tyro.cli(module.Args, args=options)
    steps = updates * args.num_envs * args.num_steps
    sys.argv = [f"{name}.py", *options, "--total-timesteps", str(steps), "--save-every", "0"]
    log_update = module.Run.log_update

    def timed(run, scalars):
        log_update(run, scalars)  # it waits for the update's end
        times.append((run.global_step, time.perf_counter()))

    module.Run.log_update = timed
    module.main()
    (first, began), (last, ended) = times[WARMUP - 1], times[-1]
    [file] = Path("runs").glob("*/checkpoint_*.pt")
    digest, agent = hashlib.sha256(), torch.load(file, map_location="cpu", weights_only=True)["parts"]["agent"]
    for weights in agent.values():
        digest.update(weights.numpy().tobytes())
    memory = torch.cuda.max_memory_allocated() / 2**20 if args.cuda and torch.cuda.is_available() else 0.0
    speed = (last - first) / (ended - began)
    return {"N": args.num_envs, "steps/s": speed, "MiB": memory, "weights": digest.hexdigest()}


def run(name, updates, options):
    """measure() in a process and a folder of its own; {"error": its last line} where that fails."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--measure", "--updates", str(updates), name, f"--options={options}"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines() or [f"status {done.returncode}"]
    return {"error": lines[-1]} if done.returncode else json.loads(lines[-1])


def row(what, got, result):
    """A line of the table."""
    if "error" in got:
        return f"| {what} | | | | error: {got['error'].removeprefix('error: ').replace('|', '/')} |"
    return f"| {what} | {got['N']} | {got['steps/s']:,.0f} | {got['MiB']:,.0f} | {result} |"


def rows(scripts, device, updates):
    """Yields the table's lines, each as soon as it is known."""
    yield from ("| what | N | steps/s | GPU memory, MiB | result |", "|---|---:|---:|---:|---|")
    command = [sys.executable, "-m", "pytest", "tests/test_golden.py", *GOLDEN, "--device", device]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    said = (done.stdout.strip() or f"status {done.returncode}").splitlines()[-1].strip("= ")
    yield f"| golden tests | | | | {'error: ' if done.returncode else ''}{said} |"
    own = "" if device == "cuda" else "--no-cuda"
    for script in scripts:
        one, two = (run(script, updates, own) for _ in range(2))
        same = "the same twice" if one.get("weights") == two.get("weights") else "not the same twice"
        yield row(f"`{script}.py`", one if "error" in one else two, same)
    for script in (script for script in SPEED if script in scripts):
        for options in SPEED[script]:
            for envs in (8, 64):
                got = run(script, updates, f"{options} --num-envs {envs} {own}")
                yield row(f"`{script}.py {options}`".replace(" `", "`"), got, "trains")


def about(device):
    """What it was made on."""
    gpu = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}" if device == "cuda" else "no GPU"
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, {platform.platform()}"
    when = f"commit {commit.strip() or 'unknown'}, {time.strftime('%Y-%m-%d')}"
    return f"{gpu}; {versions}; {os.cpu_count()} cores; {when}."


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help="the name of a script without .py; default: all")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--updates", type=int, default=8, help="of each run, more than 2")
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu-check.md")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--options", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.scripts) - set(SCRIPTS):
        sys.exit(f"error: no script {', '.join(sorted(unknown))}; there are {', '.join(SCRIPTS)}")
    if args.updates <= WARMUP:
        sys.exit(f"error: --updates {args.updates}: more than {WARMUP} are needed")
    if args.measure:
        print(json.dumps(measure(args.scripts[0], args.updates, args.options.split())))
        return
    if args.device == "cuda" and not torch.cuda.is_available():
        print("no GPU: torch finds none here, so there is nothing to check")
        return
    lines = []
    for line in rows(args.scripts or SCRIPTS, args.device, args.updates):
        lines.append(line)
        print(line, flush=True)
    lines += ["", about(args.device)]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n".join(lines) + "\n")
    print(f"\n{lines[-1]}\n{args.out}")
    sys.exit(any("| error: " in line for line in lines))


if __name__ == "__main__":
    main()
