"""Steps per second of ppo_atari_multigpu.py by the number of ranks, and the share of the time spent in collectives.

    python benchmark/scale.py --ranks 1 2 4 --updates 8 [options of the script ...]

The numbers of ranks take turns, --repeats times, each under a torchrun of its own; medians are printed. Efficiency is
the speed over that of the first number of ranks, divided by how many times the ranks are. A collective's time is what a
rank spends in it, its wait for the slowest rank included: the mean over the ranks. All ranks have --num-envs together.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WARMUP = 2  # updates that are not counted


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_known_args()


def rank(updates, options):
    """One rank: trains for the updates after the warm-up, and prints its seconds and those in collectives as JSON."""
    sys.path.insert(0, str(ROOT))
    import torch

    import ppo_atari_multigpu as script

    spent, marks, output = 0.0, [], sys.stdout  # every_rank silences sys.stdout

    def timed(collective):
        def call(*args, **kwargs):
            nonlocal spent
            wait = torch.cuda.synchronize if torch.cuda.is_available() else int
            wait()
            began = time.perf_counter()
            result = collective(*args, **kwargs)
            wait()
            spent += time.perf_counter() - began
            return result

        return call

    log_update = script.Run.log_update

    def count(run, scalars):
        log_update(run, scalars)
        marks.append((time.perf_counter(), spent, time.process_time(), run.global_step))

    script.Run.log_update = count
    script.dist.all_reduce, script.dist.all_gather = timed(script.dist.all_reduce), timed(script.dist.all_gather)
    args = script.tyro.cli(script.Args, args=options)
    steps = (updates + WARMUP) * args.num_envs * args.num_steps
    sys.argv = [sys.argv[0], *options, "--total-timesteps", str(steps), "--save-every", "0"]
    script.every_rank(script)
    seconds, collectives, processor, steps = (b - a for a, b in zip(marks[WARMUP - 1], marks[-1], strict=True))
    found = {"seconds": seconds, "collectives": collectives, "processor": processor, "steps": steps}
    print(json.dumps(found), file=output, flush=True)


def measure(ranks, updates, options):
    """{steps per second, share of collectives, steps per second of processor time} of one run of so many ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += [str(Path(__file__).resolve()), *options]
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"SCALE_UPDATES": str(updates)}
    with tempfile.TemporaryDirectory() as folder:  # of its runs, which nobody needs
        result = subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == ranks, result.stdout
    seconds = max(line["seconds"] for line in lines)
    return {
        "speed": lines[0]["steps"] / seconds,
        "share": statistics.mean(line["collectives"] / line["seconds"] for line in lines),
        "by_processor": lines[0]["steps"] / sum(line["processor"] for line in lines),
    }


def main():
    options, others = parse()
    found = {ranks: [] for ranks in options.ranks}
    for _ in range(options.repeats):
        for ranks in options.ranks:
            found[ranks].append(measure(ranks, options.updates, others))
            print(ranks, found[ranks][-1], file=sys.stderr, flush=True)
    print("| ranks | steps/s | efficiency | in collectives | steps per second of processor time |")
    print("|---|---|---|---|---|")
    first = options.ranks[0]
    for ranks, runs in found.items():
        ratios = [one["speed"] / base["speed"] * first / ranks for one, base in zip(runs, found[first], strict=True)]
        speed, share, processor = (statistics.median(run[name] for run in runs) for name in runs[0])
        print(f"| {ranks} | {speed:.0f} | {statistics.median(ratios):.0%} | {share:.1%} | {processor:.0f} |")


if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:
        rank(int(os.environ["SCALE_UPDATES"]), sys.argv[1:])
    else:
        main()
