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
from typing import NamedTuple

from benchmark.libraries import find_python
from benchmark.results import ROOT
from benchmark.scripts import SCRIPTS
from benchmark.sweep import machine

TIMED = ROOT / "benchmark" / "timed"  # the programs that are timed
SB3 = ["stable-baselines3==2.9.2", "gymnasium[mujoco]", "ale-py", "opencv-python-headless", "box2d", "pygame-ce"]
NAMED = {  # the settings that have a name
    "CartPole": "ppo.py --env-id CartPole-v1",
    "HalfCheetah": "ppo_continuous_action.py --env-id HalfCheetah-v5",
    "Breakout": "ppo_atari.py --env-id BreakoutNoFrameskip-v4",
    "Envpool": "ppo_atari_envpool.py --env-id Breakout-v5",
}
HAVE_PEER = ("ppo.py", "ppo_continuous_action.py", "ppo_atari.py", "ppo_atari_envpool.py")
PHASES = ("environment", "inference", "learning")


class Setting(NamedTuple):
    """What is timed: a script with options."""

    label: str  # as on the command line, with the number of ranks
    script: str  # its file name
    words: list  # its options
    ranks: int  # the number of processes under torchrun; 0 is a process without torchrun


# Running the programs


def run_program(command, processes=1, **environment):
    """What a timed program prints, [dict, ...] of each process, from a new folder; or [{"error": text}]."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, text=True)
    # a program prints more, but only its result is a line that begins so: "steps" is the first key in timed/*.py
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"steps"')]
    if done.returncode == 0 and len(results) == processes:
        return results
    # "error: ..." of sys.exit, or "ValueError: ..." of a traceback; torchrun adds one that only says which rank failed
    errors = [line for line in done.stderr.splitlines() if "rror: " in line and "ChildFailedError" not in line]
    if errors:
        message = errors[-1]
    elif done.returncode != 0:
        message = f"status {done.returncode}"
    else:
        message = f"{len(results)} results of {processes} processes"
    message = message.replace("|", "/")  # a | would end the cell of a table in Markdown
    return [{"error": message.removeprefix("error: ")}]


def with_speed(result):
    """A result with its steps per second, and per second of CPU time."""
    if "error" in result:
        return result
    return result | {"speed": result["steps"] / result["seconds"], "by_cpu": result["steps"] / result["cpu"]}


def run_ours(script, updates, words, ranks=0):
    """The result of timed/ours.py with a script and its options, {name: number or text}, or {"error": text}.

    With `ranks` that many processes run under torchrun. Then seconds are those of the slowest rank, the share of
    collectives is the mean over ranks, and CPU time the sum; only the rank that saves checkpoints knows the weights.
    All else, such as the shares of the phases and the memory, is that of the rank that prints first."""
    program = [str(TIMED / "ours.py"), script, str(updates), *words]
    if not ranks:
        return with_speed(run_program([sys.executable, *program])[0])
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    results = run_program([sys.executable, *torchrun, *program], ranks, OMP_NUM_THREADS=threads)
    if "error" in results[0]:
        return results[0]
    together = results[0] | {
        "seconds": max(result["seconds"] for result in results),
        "cpu": sum(result["cpu"] for result in results),
        "collectives": mean(result["collectives"] for result in results),
    }
    for result in results:
        if "weights" in result:
            together["weights"] = result["weights"]
    return with_speed(together)


def run_peer(script, updates, args):
    """The result of timed/sb3_like_ours.py with the hyperparameters `args` of a script."""
    python = find_python("SB3_PYTHON", ".venv-sb3", SB3)
    program = [str(TIMED / "sb3_like_ours.py"), script, str(updates), json.dumps(args)]
    return with_speed(run_program([python, *program])[0])


def chosen_settings(options):
    """[Setting, ...] of the command line."""
    chosen = []
    for text in options.settings:
        name, *more_words = shlex.split(text)
        script, *words = shlex.split(NAMED.get(name, name))
        if (ROOT / script).resolve().parent != ROOT:  # a script of the same name may lie there
            sys.exit(f"error: {script}: a script that is timed must lie in {ROOT}")
        for ranks in options.ranks or [0]:
            label = f"{text}, {ranks} ranks" if ranks else text
            chosen.append(Setting(label, script, [*words, *more_words], ranks))
    return chosen


def speed_text(result):
    """The steps per second of a result, or its error."""
    if "error" in result:
        return result["error"]
    return f"{result['speed']:,.0f} steps/s"


def measure(options):
    """{label: [(our result, Stable-Baselines3's or None), ...]}: the repeats of all settings, which take turns."""
    repeats_by_label = {}
    for _ in range(options.repeats):
        for setting in chosen_settings(options):
            ours = run_ours(setting.script, options.updates, setting.words, setting.ranks)
            has_peer = setting.script in HAVE_PEER and not setting.ranks and not options.no_sb3
            peer = None
            if has_peer and "error" not in ours:
                peer = run_peer(setting.script, options.updates, ours["args"])
            repeats_by_label.setdefault(setting.label, []).append((ours, peer))
            line = f"{setting.label}: {speed_text(ours)}"
            if peer is not None:
                line += f", SB3 {speed_text(peer)}"
            print(line, flush=True)
    return repeats_by_label


# The report


def first_error(repeats):
    """The first error of a setting's repeats, or None."""
    for pair in repeats:
        for result in pair:
            if result is not None and "error" in result:
                return result["error"]
    return None


def weights_differ(repeats):
    """Whether a setting's repeats, which have one seed, ended with different weights."""
    return len({ours.get("weights") for ours, _ in repeats}) > 1


def cells(repeats, base, ranks):
    """{column: text} of a setting's repeats, [(ours, Stable-Baselines3's or None), ...].

    `base`, (repeats, ranks), is what the efficiency is relative to. 0 ranks are one process without torchrun."""
    error = first_error(repeats)
    if error is not None:
        return {"result": f"error: {error}"}
    ours = [our_result for our_result, _ in repeats]
    peers = [peer for _, peer in repeats if peer is not None]
    shown = {"N": str(ours[0]["envs"]), "steps/s": f"{median(each['speed'] for each in ours):,.0f}"}
    if peers:
        shown["SB3 steps/s"] = f"{median(each['speed'] for each in peers):,.0f}"
        pairs = list(zip(ours, peers, strict=True))
        shown["ratio"] = f"{median(one['speed'] / peer['speed'] for one, peer in pairs):.2f}"
        if not ours[0]["args"].get("async_envs"):  # their processes have CPU time of their own
            shown["ratio by CPU time"] = f"{median(one['by_cpu'] / peer['by_cpu'] for one, peer in pairs):.2f}"
    base_repeats, base_ranks = base
    if ranks and first_error(base_repeats) is None:
        # the speed of a rank beside that of a rank in the base, within each repeat, as a machine's speed drifts
        ratios = []
        base_processes = max(base_ranks, 1)
        for one, (base_result, _) in zip(ours, base_repeats, strict=True):
            ratios.append((one["speed"] / ranks) / (base_result["speed"] / base_processes))
        shown["efficiency"] = f"{median(ratios):.0%}"
    shares = [*PHASES, "collectives"] if ranks else PHASES
    for name in shares:
        if name in ours[0]:
            shown[name] = f"{median(each[name] for each in ours):.0%}"
    if ours[0]["memory"]:
        shown["GPU memory, MiB"] = f"{ours[0]['memory']:,.0f}"
    if len(ours) > 1 and "weights" in ours[0]:
        shown["result"] = "differ" if weights_differ(repeats) else "the same"
    return shown


def has_failed(repeats):
    """Whether --check fails at a setting: on an error, and on a CPU where two runs with one seed differ.

    On a GPU the sums of some operations have no fixed order, so weights may differ."""
    if first_error(repeats) is not None:
        return True
    on_gpu = any(ours["memory"] > 0 for ours, _ in repeats)
    return weights_differ(repeats) and not on_gpu


def conditions(options, repeats_by_label):
    """A sentence on what was measured when and where."""
    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    about = [
        f"Medians of {options.repeats} repeats of {options.updates} updates",
        time.strftime("%Y-%m-%d %H:%M"),
        f"commit {commit or 'unknown'}",
        f"load {os.getloadavg()[0]:.1f}",
    ]
    hardware = machine(workers=1)
    del hardware["runs_at_once"]  # the programs take turns
    about += [f"{name} {value}" for name, value in hardware.items() if value]
    about += [f"{name} {version(name)}" for name in ("torch", "numpy", "gymnasium")]
    peers = [peer for repeats in repeats_by_label.values() for _, peer in repeats if peer is not None]
    about += sorted({peer["version"] for peer in peers if "version" in peer})
    return f"{', '.join(about)}."


def report(options, repeats_by_label):
    """The lines of a table in Markdown, and a paragraph on versions and machine."""
    rows = []
    bases = {}  # of each script with options, (the repeats with the first number of ranks, that number)
    for label, script, words, ranks in chosen_settings(options):
        base = bases.setdefault((script, *words), (repeats_by_label[label], ranks))
        rows.append((label, cells(repeats_by_label[label], base, ranks)))
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    lines = [f"| {' | '.join(['setting', *names])} |", "|---|" + "---:|" * len(names)]
    for label, row in rows:
        lines.append(f"| {' | '.join([label, *(row.get(name, '') for name in names)])} |")
    return [*lines, "", conditions(options, repeats_by_label)]


def run_golden_tests():
    """(whether the golden tests fail, a line about them); on the GPU if there is one."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    command = [sys.executable, "-m", "pytest", "tests/test_golden.py", "-n", "0", "-q", "--device", device]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    result = lines[-1].strip("= ") if lines else f"no output, status {done.returncode}"
    return done.returncode != 0, f"Golden tests on {device}: {result}."


def main():
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmark.speed", description=__doc__, formatter_class=plain)
    parser.add_argument("settings", nargs="*", metavar="SETTING", help='such as CartPole or "Breakout --bf16"')
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--updates", type=int, default=8, help="of a run, after the first two")
    parser.add_argument("--ranks", type=int, nargs="+", help="numbers of processes under torchrun; 0: without it")
    parser.add_argument("--check", action="store_true", help="run the golden tests, and each script twice, without SB3")
    parser.add_argument("--no-sb3", action="store_true", help="leave Stable-Baselines3 out")
    parser.add_argument("--out", type=Path, help="where to write .md and .json (default: runs/speed-<time>)")
    options = parser.parse_args()
    lines = []
    failed = False
    if options.check:
        options.settings = options.settings or [f"{name}.py" for name in SCRIPTS]
        options.repeats = 2
        options.no_sb3 = True
        failed, line = run_golden_tests()
        lines = [line, ""]
    elif not options.settings:
        parser.error("there is nothing to time: give a SETTING, or --check")
    out = options.out or Path("runs", time.strftime("speed-%Y%m%d-%H%M%S"))
    out.parent.mkdir(parents=True, exist_ok=True)
    repeats_by_label = measure(options)
    out.with_name(f"{out.name}.json").write_text(json.dumps(repeats_by_label, indent=1))
    lines += report(options, repeats_by_label)
    table = out.with_name(f"{out.name}.md")
    table.write_text("\n".join([*lines, ""]))
    for line in lines:
        print(line)
    print(table)
    for repeats in repeats_by_label.values():
        if options.check:
            setting_failed = has_failed(repeats)
        else:
            setting_failed = first_error(repeats) is not None
        failed = failed or setting_failed
    sys.exit(failed)


if __name__ == "__main__":
    main()
