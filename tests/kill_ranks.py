"""kill -9 of a random rank of ppo_atari_multigpu.py at random moments, by torchrun restarted or not.

    python tests/kill_ranks.py --kills 20 --ends 10        (some minutes)

One run with --max-restarts is killed --kills times, from a rank's first moment on; each time it must go on, in its
folder. Then its log must have each step once. --ends runs without it must end within 30 seconds, all of them.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = map(str, Path(__file__).parents[:2])
from ranks import SMALL  # noqa: E402
from toy_envs import ROOT, checkpoint, scalars, start  # noqa: E402

ENDLESS = [ROOT / "ppo_atari_multigpu.py", *SMALL.split(), "--total-timesteps", "100000000"]


def torchrun(folder, ranks, restarts):
    folder.mkdir()
    options = f"-m torch.distributed.run --standalone --nproc-per-node {ranks} --max-restarts {restarts}".split()
    with open(folder / "errors", "w") as errors:
        return start([*options, *ENDLESS], folder, stderr=errors, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")


def ranks_of(process):
    """The process numbers of the ranks that torchrun has now."""
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
        found = [int(pid) for pid in children.read().split()]
    return [pid for pid in found if b"ppo_atari_multigpu" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def wait_for(what, seconds):
    """Waits until what() is true and returns that; what() may meet a process that is just gone."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if answer := what():
                return answer
        except OSError:
            pass
        time.sleep(0.05)
    raise TimeoutError


def newest(folder):
    return max((int(path.stem[11:]) for path in folder.glob("runs/*/checkpoint_*.pt")), default=0)


def kill_and_go_on(folder, kills, ranks):
    process = torchrun(folder, ranks, kills)
    took = []
    for kill in range(kills):
        before = newest(folder)
        pids = wait_for(lambda: len(found := ranks_of(process)) == ranks and found, 600)
        if kill % 4:  # else while it starts
            wait_for(lambda before=before: newest(folder) > before, 1200)
        time.sleep(random.uniform(0, 4))
        began, victim = time.monotonic(), random.choice(pids)
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda pids=pids: len(found := ranks_of(process)) == ranks and not set(found) & set(pids), 600)
        took.append(time.monotonic() - began)
        print(f"kill {kill + 1}: rank {pids.index(victim)}, step {before}; new ranks in {took[-1]:.1f} s", flush=True)
    reached = newest(folder)
    wait_for(lambda: newest(folder) > reached + 256, 1200)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    folders = sorted((folder / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    last = checkpoint(folders[-1])["global_step"]
    steps = [step for step, _ in scalars(folders[-1])["losses/policy_loss"]]
    assert steps == list(range(128, last + 1, 128)), steps
    unused = [path for path in folders[:-1] if list(path.glob("torchrun-*"))]
    assert not unused, "it began anew although a run had begun"
    print(f"all {kills} went on, to step {last}; slowest {max(took):.1f} s; the log has each step once", flush=True)


def kill_and_end(folder, ranks):
    process = torchrun(folder, ranks, 0)
    pids = wait_for(lambda: len(found := ranks_of(process)) == ranks and found, 600)
    wait_for(lambda: newest(folder) > 0, 1200)
    time.sleep(random.uniform(0, 4))
    began, victim = time.monotonic(), random.choice(pids)
    os.kill(victim, signal.SIGKILL)
    assert process.wait(30) == 1
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    lines = [line for line in (folder / "errors").read_text().splitlines() if line.startswith("error:")]
    assert len(lines) == ranks - 1 or pids.index(victim) == 0, lines
    return time.monotonic() - began, lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"--kills": 20, "--ends": 10, "--ranks": 2, "--seed": 1}.items():
        parser.add_argument(name, type=int, default=default)
    options = parser.parse_args()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory() as name:
        if options.kills:
            kill_and_go_on(Path(name, "on"), options.kills, options.ranks)
        for number in range(options.ends):
            seconds, lines = kill_and_end(Path(name, str(number)), options.ranks)
            print(f"end {number + 1}: all ended after {seconds:.1f} s; {lines}", flush=True)
