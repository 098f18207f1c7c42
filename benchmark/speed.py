"""Times the scripts: steps per second, the share of each phase, and the memory of the GPU.

    python -m benchmark.speed CartPole HalfCheetah "Breakout --bf16"             beside Stable-Baselines3
    python -m benchmark.speed --ranks 1 2 4 -- "ppo_atari_multigpu.py --bf16"    in many processes
    python -m benchmark.speed --check                                            every script twice, golden tests

A setting is CartPole, HalfCheetah, Breakout, Envpool or the file name of a script, with options of that script. The
programs take turns, each a process of its own, --repeats times; numbers are medians. The first two updates are not
counted. Stable-Baselines3 is installed into .venv-sb3, unless SB3_PYTHON names a Python that has it. docs/speed.md
explains the columns.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median

ROOT = Path(__file__).resolve().parents[1]
TIMED = ROOT / "benchmark" / "timed"  # the programs that are timed
SB3 = ["stable-baselines3==2.9.2", "gymnasium[mujoco]", "ale-py", "opencv-python-headless", "box2d", "pygame-ce"]
SETTINGS = {
    "CartPole": "ppo.py --env-id CartPole-v1",
    "HalfCheetah": "ppo_continuous_action.py --env-id HalfCheetah-v5",
    "Breakout": "ppo_atari.py --env-id BreakoutNoFrameskip-v4",
    "Envpool": "ppo_atari_envpool.py --env-id Breakout-v5",
}
HAVE_PEER = ("ppo.py", "ppo_continuous_action.py", "ppo_atari.py", "ppo_atari_envpool.py")
PHASES = ("environment", "inference", "learning")

# Running the programs


def find_peer():
    """The Python that has Stable-Baselines3; installs it first if necessary."""
    if "SB3_PYTHON" in os.environ:
        return os.environ["SB3_PYTHON"]
    folder = ROOT / ".venv-sb3"
    if not (folder / "stamp").exists():
        print(f"installing {SB3[0]} into {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [folder / "bin/python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt"]
        subprocess.run([*pip, *SB3], check=True)
        (folder / "stamp").touch()
    return str(folder / "bin/python")


def run_program(command, processes=1, **environment):
    """What a program prints, [dict, ...] of each process, from a new folder; or [{"error": its last line}]."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, text=True)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"steps"')]
    if done.returncode == 0 and len(found) == processes:
        return found
    errors = [line for line in done.stderr.splitlines() if "rror: " in line]
    said = errors[-1] if errors else f"status {done.returncode}"
    return [{"error": said.removeprefix("error: ").replace("|", "/")}]


def with_speed(found):
    """A result with its steps per second, and per second of CPU time."""
    if "error" in found:
        return found
    return found | {"speed": found["steps"] / found["seconds"], "by_cpu": found["steps"] / found["cpu"]}


def run_ours(script, updates, options, ranks=0):
    """The result of timed/ours.py with a script, {name: number}, or {"error": text}; with `ranks` under torchrun.

    Of ranks it has the seconds of the slowest, the mean share of collectives, and the sum of CPU time."""
    program = [str(TIMED / "ours.py"), script, str(updates), *options]
    if not ranks:
        return with_speed(run_program([sys.executable, *program])[0])
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    found = run_program([sys.executable, *torchrun, *program], ranks, OMP_NUM_THREADS=threads)
    if "error" in found[0]:
        return found[0]
    together = found[0] | {
        "seconds": max(each["seconds"] for each in found),
        "cpu": sum(each["cpu"] for each in found),
        "collectives": mean(each["collectives"] for each in found),
    }
    return with_speed(together)


def run_peer(script, updates, args):
    """The result of timed/sb3.py with the hyperparameters `args` of a script."""
    program = [str(TIMED / "sb3.py"), script, str(updates), json.dumps(args)]
    return with_speed(run_program([find_peer(), *program])[0])


def settings(options):
    """[(what, script, its options, ranks), ...] of the command line."""
    found = []
    for setting in options.settings:
        name, *more = shlex.split(setting)
        script, *words = shlex.split(SETTINGS.get(name, name))
        for ranks in options.ranks or [0]:
            what = f"{setting}, {ranks} ranks" if ranks else setting
            found.append((what, script, [*words, *more], ranks))
    return found


def measure(options):
    """{what: [(our result, Stable-Baselines3's or None), ...]}: the results of all settings, which take turns."""
    found = {}
    for _ in range(options.repeats):
        for what, script, words, ranks in settings(options):
            ours = run_ours(script, options.updates, words, ranks)
            peer = None
            if script in HAVE_PEER and not options.no_sb3 and not ranks and "error" not in ours:
                peer = run_peer(script, options.updates, ours["args"])
            found.setdefault(what, []).append((ours, peer))
            said = ours["error"] if "error" in ours else f"{ours['speed']:,.0f} steps/s"
            beside = f", SB3 {peer.get('speed', 0):,.0f}" if peer else ""
            print(f"{what}: {said}{beside}", flush=True)
    return found


# The report


def first_error(runs):
    """The first error of a setting's repeats, or None."""
    for pair in runs:
        for result in pair:
            if result is not None and "error" in result:
                return result["error"]
    return None


def cells(runs, base, ranks):
    """{column: text} of a setting's repeats, [(ours, Stable-Baselines3's or None), ...].

    `base`, (repeats, ranks), is what the efficiency is relative to."""
    error = first_error(runs)
    if error is not None:
        return {"result": f"error: {error}"}
    ours = [our_result for our_result, _ in runs]
    peers = [peer for _, peer in runs if peer is not None]
    shown = {"N": str(ours[0]["envs"]), "steps/s": f"{median(each['speed'] for each in ours):,.0f}"}
    if peers:
        shown["SB3 steps/s"] = f"{median(each['speed'] for each in peers):,.0f}"
        pairs = list(zip(ours, peers, strict=True))
        shown["ratio"] = f"{median(one['speed'] / peer['speed'] for one, peer in pairs):.2f}"
        shown["ratio by CPU time"] = f"{median(one['by_cpu'] / peer['by_cpu'] for one, peer in pairs):.2f}"
    base_runs, base_ranks = base
    if ranks and first_error(base_runs) is None:
        pairs = zip(ours, [our_result for our_result, _ in base_runs], strict=True)
        ratios = [one["speed"] / other["speed"] * base_ranks / ranks for one, other in pairs]
        shown["efficiency"] = f"{median(ratios):.0%}"
    shares = [*PHASES, "collectives"] if ranks else PHASES
    for name in shares:
        if name in ours[0]:
            shown[name] = f"{median(each[name] for each in ours):.0%}"
    if ours[0]["memory"]:
        shown["GPU memory, MiB"] = f"{ours[0]['memory']:,.0f}"
    if len(ours) > 1 and "weights" in ours[0]:
        hashes = {each.get("weights") for each in ours}
        shown["result"] = "the same" if len(hashes) == 1 else "differ"
    return shown


def conditions(options, found):
    """A sentence on what was measured when and where."""
    from benchmark.sweep import machine

    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    about = [
        f"Medians of {options.repeats} repeats of {options.updates} updates",
        time.strftime("%Y-%m-%d %H:%M"),
        f"commit {commit or 'unknown'}",
        f"load {os.getloadavg()[0]:.1f}",
    ]
    about += [f"{name} {value}" for name, value in machine(1).items() if value and name != "runs_at_once"]
    about += [f"{name} {version(name)}" for name in ("torch", "numpy", "gymnasium")]
    peers = [peer for runs in found.values() for _, peer in runs if peer is not None]
    about += sorted({peer["version"] for peer in peers if "version" in peer})
    return f"{', '.join(about)}."


def report(options, found):
    """The lines of a table in Markdown, and a paragraph on versions and machine."""
    rows, bases = [], {}
    for what, script, words, ranks in settings(options):
        base = bases.setdefault((script, *words), (found[what], ranks))  # the first number of ranks
        rows.append((what, cells(found[what], base, ranks)))
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    lines = [f"| {' | '.join(['setting', *names])} |", "|---|" + "---:|" * len(names)]
    for what, row in rows:
        lines.append(f"| {' | '.join([what, *(row.get(name, '') for name in names)])} |")
    return [*lines, "", conditions(options, found)]


def run_golden_tests():
    """(whether the golden tests fail, a line about them); on the GPU if there is one."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    command = [sys.executable, "-m", "pytest", "tests/test_golden.py", "-n", "0", "-q", "--device", device]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    said = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1].strip("= ")
    return done.returncode != 0, f"Golden tests on {device}: {said}."


def main():
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmark.speed", description=__doc__, formatter_class=plain)
    parser.add_argument("settings", nargs="*", metavar="SETTING", help='such as CartPole or "Breakout --bf16"')
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--updates", type=int, default=8, help="of a run, after the first two")
    parser.add_argument("--ranks", type=int, nargs="+", help="numbers of processes under torchrun")
    parser.add_argument("--check", action="store_true", help="run the golden tests, and every script twice")
    parser.add_argument("--no-sb3", action="store_true", help="leave Stable-Baselines3 out")
    parser.add_argument("--out", type=Path, help="where to write .md and .json (default: runs/speed-<time>)")
    options = parser.parse_args()
    lines, failed = [], False
    if options.check:
        scripts = [*sorted(ROOT.glob("*ppo*.py")), ROOT / "impala_atari_cleanba.py"]
        options.settings = options.settings or [script.name for script in scripts]
        options.repeats = 2
        options.no_sb3 = True
        failed, line = run_golden_tests()
        lines = [line, ""]
    out = options.out or Path("runs", time.strftime("speed-%Y%m%d-%H%M%S"))
    out.parent.mkdir(parents=True, exist_ok=True)
    found = measure(options)
    lines += report(options, found)
    out.with_suffix(".json").write_text(json.dumps(found, indent=1))
    out.with_suffix(".md").write_text("\n".join([*lines, ""]))
    for line in lines:
        print(line)
    print(out.with_suffix(".md"))
    sys.exit(failed or any("| error: " in line for line in lines))


if __name__ == "__main__":
    main()
