"""Steps per second of our scripts, by phase, beside Stable-Baselines3 and the machine's own limits.

    python benchmark/speed CartPole HalfCheetah "Breakout --bf16" --repeats 3

A setting is CartPole, HalfCheetah, Breakout, Envpool or the file name of a script, and any options of that script. In
each repeat ours, Stable-Baselines3 and what finds the limits work in turns, of some updates each, never two at once.
docs/speed.md says what the columns mean. Stable-Baselines3 is installed into .venv-sb3, unless SB3_PYTHON names a
Python that has it.
"""

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
import venv
from pathlib import Path

from turns import Program

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
SB3 = ["stable-baselines3==2.9.2", "gymnasium[mujoco]", "ale-py", "opencv-python-headless"]
# a setting's command, and the updates of a turn
SETTINGS = {
    "CartPole": ("ppo.py --env-id CartPole-v1", 20),
    "HalfCheetah": ("ppo_continuous_action.py --env-id HalfCheetah-v5", 1),
    "Breakout": ("ppo_atari.py --env-id BreakoutNoFrameskip-v4", 1),
    "Envpool": ("ppo_atari_envpool.py --env-id Breakout-v5", 1),
}
HAVE_PEER = ("ppo.py", "ppo_continuous_action.py", "ppo_atari.py", "ppo_atari_envpool.py")


def find_peer():
    """The Python that has Stable-Baselines3; its environment is made where there is none."""
    if "SB3_PYTHON" in os.environ:
        return os.environ["SB3_PYTHON"]
    folder = ROOT / ".venv-sb3"
    python, stamp = folder / "bin/python", folder / "stamp"
    if not stamp.exists():
        print(f"installing {SB3[0]} into {folder}", flush=True)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", *SB3], check=True)
        stamp.touch()
    return python


def measure(setting, options, python):
    """Yields, after each repeat, the runs of a setting so far."""
    name, *more = shlex.split(setting)
    command, updates = SETTINGS.get(name, (name, 1))
    script, *arguments = shlex.split(command) + more
    counts, runs = [options.warmup, options.turns, updates], []
    for _ in range(options.repeats):
        ours = Program([sys.executable, HERE / "ours.py", "speed", script, *counts, *arguments])
        programs = {"ours": ours}
        if python and script in HAVE_PEER:
            programs["sb3"] = Program([python, HERE / "peer.py", script, *counts, options.sb3_threads], ours.lines[0])
        programs["limit"] = Program([sys.executable, HERE / "ours.py", "limit", script, *counts, *arguments])
        for _ in range(options.turns):
            for program in programs.values():
                program.turn()
        runs.append({name: json.loads(program.lines[-1]) for name, program in programs.items()})
        yield {"setting": setting, "command": shlex.join([script, *arguments]), "updates_a_turn": updates, "runs": runs}


def median(runs, number, per=None):
    """Median over the runs of a number, such as "ours.learning", or of its ratio to another; None where it lacks."""

    def get(run, number):
        who, name = number.split(".")
        return run[who][name]

    if any(path and path.split(".")[0] not in run for run in runs for path in (number, per)):
        return None
    return statistics.median(get(run, number) / (get(run, per) if per else 1) for run in runs)


COLUMNS = {  # name: (number, what it is divided by, format)
    "steps/s": ("ours.steps_per_second", None, ",.0f"),
    "SB3 steps/s": ("sb3.steps_per_second", None, ",.0f"),
    "ratio": ("ours.steps_per_second", "sb3.steps_per_second", ".2f"),
    "ratio by CPU time": ("ours.steps_per_cpu_second", "sb3.steps_per_cpu_second", ".2f"),
    "environment": ("ours.environment", None, ".0%"),
    "inference": ("ours.inference", None, ".0%"),
    "learning": ("ours.learning", None, ".0%"),
    "environment alone, steps/s": ("limit.environment_steps_per_second", None, ",.0f"),
    "learning / its limit": ("ours.learning_seconds_per_update", "limit.learning_seconds_per_update", ".2f"),
    "products, GFLOP/s": ("limit.operations_per_second", None, ".3g"),
    "GPU memory, MiB": ("ours.gpu_memory_mib", None, ",.0f"),
}


def summary(runs):
    """{column: median} of a setting's runs."""
    return {name: median(runs, number, per) for name, (number, per, _) in COLUMNS.items()}


def table(report):
    """The report in Markdown."""
    names = [name for name in COLUMNS if any(setting["medians"][name] for setting in report["settings"])]
    lines = [f"| {' | '.join(['setting', *names])} |", f"|---|{'---:|' * len(names)}"]
    for setting in report["settings"]:
        cells = []
        for name in names:
            value, scale = setting["medians"][name], 1e-9 if "GFLOP" in name else 1
            cells.append("" if value is None else format(value * scale, COLUMNS[name][2]))
        lines.append(f"| {' | '.join([setting['setting'], *cells])} |")
    what = {name: ", ".join(f"{k} {v}" for k, v in report[name].items()) for name in ("machine", "versions", "sb3")}
    repeats = f"{report['repeats']} repeats of {report['turns']} turns"
    lines += ["", f"Medians of {repeats}, {report['time']}, commit {report['commit']}."]
    lines += ["", f"Machine: {what['machine']}.", "", f"Ours: {what['versions']}."]
    lines += ["", f"Stable-Baselines3: {what['sb3']}."] if what["sb3"] else []
    return "\n".join(lines) + "\n"


def machine():
    """What the timings were made on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []  # where the system is Linux
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    about = {"CPU": names[0] if names else platform.processor(), "cores": os.cpu_count(), "system": platform.platform()}
    return about | {"load before": round(os.getloadavg()[0], 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="+", metavar="SETTING", help='such as CartPole or "Breakout --bf16"')
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--turns", type=int, default=8, help="turns of each, of 20 updates for CartPole, else 1")
    parser.add_argument("--warmup", type=int, default=2, help="updates before them (default: 2)")
    parser.add_argument("--no-sb3", action="store_true", help="leave Stable-Baselines3 out")
    parser.add_argument("--sb3-threads", type=int, default=0, help="of its torch (default: torch's own choice)")
    parser.add_argument("--out", type=Path, help="where to write .md and .json (default: runs/speed-<time>)")
    options = parser.parse_args()
    out = options.out or Path("runs", time.strftime("speed-%Y%m%d-%H%M%S"))
    out = out.with_suffix("") if out.suffix in (".md", ".json") else out
    out.parent.mkdir(parents=True, exist_ok=True)
    python = None if options.no_sb3 else find_peer()
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    report = {"time": time.strftime("%Y-%m-%d %H:%M"), "commit": commit.stdout.strip(), "repeats": options.repeats}
    report["turns"] = options.turns
    report |= {"machine": machine(), "versions": {}, "sb3": {}, "settings": []}
    for setting in options.settings:
        report["settings"].append(None)
        for measured in measure(setting, options, python):
            ours, peer = measured["runs"][-1]["ours"], measured["runs"][-1].get("sb3")
            report["settings"][-1] = measured | {"medians": summary(measured["runs"])}
            report["machine"] |= ours["gpu"]
            report["versions"] = ours["versions"]
            if peer:
                report["sb3"] = peer["versions"] | {"threads": peer["threads"]}
            Path(f"{out}.json").write_text(json.dumps(report, indent=1))
            Path(f"{out}.md").write_text(table(report))
            beside = f", SB3 {peer['steps_per_second']:,.0f}" if peer else ""
            print(f"{setting}, {len(measured['runs'])}: {ours['steps_per_second']:,.0f} steps/s{beside}", flush=True)
    print(table(report), f"{out}.md", sep="\n")


if __name__ == "__main__":
    main()
