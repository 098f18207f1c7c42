"""Times the scripts: steps per second, the share of each phase, and the memory of the GPU.

    python benchmark/speed.py CartPole HalfCheetah "Breakout --bf16"             beside Stable-Baselines3
    python benchmark/speed.py --ranks 1 2 4 -- "ppo_atari_multigpu.py --bf16"    in many processes
    python benchmark/speed.py --check                                            every script twice, golden tests

A setting is CartPole, HalfCheetah, Breakout, Envpool or the file name of a script, with options of that script. The
programs take turns, each a process of its own, --repeats times; numbers are medians. The first two updates are not
counted. Stable-Baselines3 is installed into .venv-sb3, unless SB3_PYTHON names a Python that has it. docs/speed.md
explains the columns.
"""

import argparse
import hashlib
import importlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[1]
SB3 = ["stable-baselines3==2.9.2", "gymnasium[mujoco]", "ale-py", "opencv-python-headless", "box2d", "pygame-ce"]
SETTINGS = {
    "CartPole": "ppo.py --env-id CartPole-v1",
    "HalfCheetah": "ppo_continuous_action.py --env-id HalfCheetah-v5",
    "Breakout": "ppo_atari.py --env-id BreakoutNoFrameskip-v4",
    "Envpool": "ppo_atari_envpool.py --env-id Breakout-v5",
}
HAVE_PEER = ("ppo.py", "ppo_continuous_action.py", "ppo_atari.py", "ppo_atari_envpool.py")
WARMUP = 2  # updates that are not counted: memory is allocated in them, and --compile compiles


# IN THE TIMED PROCESS


def measure(script, updates, options):
    """Trains with a script in the current folder, with its functions wrapped by timers, and prints JSON.

    The rollout of an update lasts until the environments' last step, and the rest is learning; inference is the rollout
    without the environments' steps. Scripts whose actors and learner run at the same time have no phases."""
    import torch
    import tyro

    sys.path.insert(0, str(ROOT))
    module, rows = importlib.import_module(Path(script).stem), []
    args = tyro.cli(module.Args, args=options)
    steps = (WARMUP + updates) * args.num_envs * args.num_steps
    sys.argv = [script, *options, "--total-timesteps", str(steps), "--save-every", "0"]
    synchronize = torch.cuda.synchronize if args.cuda and torch.cuda.is_available() else lambda: None
    make_envs, make_run = module.make_envs, getattr(module, "make_run", module.Run)
    spent, ends = {"environment": 0.0, "collectives": 0.0}, {}

    def timed(name, function, wait=lambda: None):
        def call(*arguments, **options):
            wait()
            start = time.perf_counter()
            result = function(*arguments, **options)
            wait()
            ends[name] = time.perf_counter()
            spent[name] += ends[name] - start
            return result

        return call

    def timed_envs(*arguments):
        envs = make_envs(*arguments)
        envs.step = timed("environment", envs.step)
        return envs

    def timed_run(*arguments):
        run = make_run(*arguments)
        log_update = run.log_update

        def timed_update(scalars):
            log_update(scalars)  # it waits for the update's end
            synchronize()
            times = {"end": time.perf_counter(), "cpu": time.process_time()}
            rows.append(spent | times | {"stepped": ends.get("environment", 0.0)})

        run.log_update = timed_update
        return run

    phases = not hasattr(module, "make_rollouts")
    if phases:
        module.make_envs = timed_envs
    module.make_run = timed_run
    if "TORCHELASTIC_RUN_ID" in os.environ:
        module.dist.all_reduce = timed("collectives", module.dist.all_reduce, synchronize)
        module.gather = timed("collectives", module.gather, synchronize)
    try:
        module.main()
    except SystemExit as end:
        if end.code:
            raise

    first, last = rows[WARMUP - 1], rows[-1]
    keys = "end", "cpu", "environment", "collectives"
    wall, cpu, environment, collectives = (last[key] - first[key] for key in keys)
    learning = sum(row["end"] - row["stepped"] for row in rows[WARMUP:])
    found = {
        "steps": updates * args.num_envs * args.num_steps, "seconds": wall, "cpu": cpu, "envs": args.num_envs,
        "collectives": collectives / wall, "memory": torch.cuda.max_memory_allocated() / 2**20 if args.cuda else 0.0,
        "args": vars(args),
    }  # fmt: skip
    if phases:
        found |= {"environment": environment / wall, "learning": learning / wall}
        found["inference"] = 1 - found["environment"] - found["learning"]
    if files := sorted(Path("runs").glob("*/checkpoint_*.pt")):
        weights = torch.load(files[-1], map_location="cpu", weights_only=True)["parts"]["agent"].values()
        found["weights"] = hashlib.sha256(b"".join(each.numpy().tobytes() for each in weights)).hexdigest()
    print(json.dumps(found), flush=True)


def measure_peer(script, updates, args):
    """The same with Stable-Baselines3, with the hyperparameters of a script of ours."""
    import gymnasium as gym
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

    class Rollouts(BaseCallback):
        def _on_rollout_start(self):
            times.append((time.perf_counter(), time.process_time()))

        def _on_step(self):
            return True

    policy, times = "MlpPolicy", []
    if script in ("ppo.py", "ppo_continuous_action.py"):
        envs = make_vec_env(args.env_id, args.num_envs, seed=args.seed)
        envs = envs if script == "ppo.py" else VecNormalize(envs, gamma=args.gamma)
    else:
        import ale_py

        gym.register_envs(ale_py)
        policy, env_id = "CnnPolicy", args.env_id.replace("-v5", "NoFrameskip-v4")  # EnvPool's name
        envs = VecFrameStack(make_atari_env(env_id, args.num_envs, seed=args.seed), args.frame_stack)
    batch_size, clip = args.num_envs * args.num_steps, args.clip_coef
    model = PPO(
        policy, envs, n_steps=args.num_steps, n_epochs=args.update_epochs,
        batch_size=batch_size // args.num_minibatches,
        learning_rate=lambda remaining: args.learning_rate * (remaining if args.anneal_lr else 1.0),
        gamma=args.gamma, gae_lambda=args.gae_lambda, clip_range=clip, clip_range_vf=clip, ent_coef=args.ent_coef,
        vf_coef=args.vf_coef / 2, max_grad_norm=args.max_grad_norm, target_kl=args.target_kl, seed=args.seed,
        device="auto" if args.cuda else "cpu",
    )  # fmt: skip
    model.learn((WARMUP + updates) * batch_size, callback=Rollouts())
    times.append((time.perf_counter(), time.process_time()))
    seconds, cpu = (b - a for a, b in zip(times[WARMUP], times[-1], strict=True))
    about = f"stable-baselines3 {version('stable_baselines3')}"
    print(json.dumps({"steps": updates * batch_size, "seconds": seconds, "cpu": cpu, "version": about}))


# BESIDE IT


def find_peer():
    """The Python that has Stable-Baselines3; installs it first if necessary."""
    folder = ROOT / ".venv-sb3"
    if "SB3_PYTHON" not in os.environ and not (folder / "stamp").exists():
        print(f"installing {SB3[0]} into {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [folder / "bin/python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt"]
        subprocess.run([*pip, *SB3], check=True)
        (folder / "stamp").touch()
    return os.environ.get("SB3_PYTHON", folder / "bin/python")


def run(script, updates, options, ranks=0, peer=None):
    """What measure() prints, in a new process, or so many ranks, and a new folder; or {"error": its last line}.
    Ranks are combined: seconds of the slowest, the mean share of collectives, and the sum of CPU time."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    words = "--peer" if peer else "--measure", script, str(updates)
    command = [str(peer or sys.executable), *launcher, __file__, *words]
    environment = ({"OMP_NUM_THREADS": "1"} if ranks else {}) | os.environ
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*command, *options], cwd=folder, env=environment, capture_output=True, text=True)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"steps"')]
    if done.returncode or len(found) != max(ranks, 1):
        said = [line for line in done.stderr.splitlines() if "rror: " in line] or [f"status {done.returncode}"]
        return {"error": said[-1].removeprefix("error: ").replace("|", "/")}
    found[0] |= {"seconds": max(each["seconds"] for each in found), "cpu": sum(each["cpu"] for each in found)}
    if ranks:
        found[0]["collectives"] = statistics.mean(each["collectives"] for each in found)
    return found[0] | {"speed": found[0]["steps"] / found[0]["seconds"], "by_cpu": found[0]["steps"] / found[0]["cpu"]}


def settings(options):
    """[(what, script, its options, ranks), ...] of the command line."""
    for setting in options.settings:
        name, *more = shlex.split(setting)
        script, *words = shlex.split(SETTINGS.get(name, name)) + more
        for ranks in options.ranks or [0]:
            yield f"{setting}, {ranks} ranks" if ranks else setting, script, words, ranks


def cells(runs, base, ranks):
    """{column: text} of a setting's repeats, [(ours, Stable-Baselines3's or None), ...]; `base`, (repeats, ranks), is
    what the efficiency is relative to."""
    if error := next((each["error"] for pair in runs for each in pair if each and "error" in each), None):
        return {"result": f"error: {error}"}
    ours, peers = [pair[0] for pair in runs], [pair[1] for pair in runs if pair[1]]
    shown = {"N": str(ours[0]["envs"]), "steps/s": f"{statistics.median(each['speed'] for each in ours):,.0f}"}
    if peers:
        shown["SB3 steps/s"] = f"{statistics.median(each['speed'] for each in peers):,.0f}"
        for column, key in (("ratio", "speed"), ("ratio by CPU time", "by_cpu")):
            shown[column] = f"{statistics.median(a[key] / b[key] for a, b in zip(ours, peers, strict=True)):.2f}"
    if ranks and not any("error" in one for one, _ in base[0]):
        ratios = [a["speed"] / b[0]["speed"] * base[1] / ranks for a, b in zip(ours, base[0], strict=True)]
        shown["efficiency"] = f"{statistics.median(ratios):.0%}"
    for key in ("environment", "inference", "learning", *(["collectives"] if ranks else [])):
        if key in ours[0]:
            shown[key] = f"{statistics.median(each[key] for each in ours):.0%}"
    shown |= {"GPU memory, MiB": f"{ours[0]['memory']:,.0f}"} if ours[0]["memory"] else {}
    if len(ours) > 1 and "weights" in ours[0]:
        shown["result"] = "the same" if len({each.get("weights") for each in ours}) == 1 else "differ"
    return shown


def report(options, found):
    """The lines of a table in Markdown, and a paragraph on versions and machine."""
    from benchmark.sweep import machine

    rows, bases = [], {}
    for what, script, words, ranks in settings(options):
        base = bases.setdefault((script, *words), (found[what], ranks))  # the first number of ranks
        rows.append((what, cells(found[what], base, ranks)))
    names = dict.fromkeys(name for _, row in rows for name in row)
    lines = [f"| {' | '.join(['setting', *names])} |", f"|---|{'---:|' * len(names)}"]
    lines += [f"| {' | '.join([what, *(row.get(name, '') for name in names)])} |" for what, row in rows]
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout
    about = [f"Medians of {options.repeats} repeats of {options.updates} updates, {time.strftime('%Y-%m-%d %H:%M')}"]
    about += [f"commit {commit.strip() or 'unknown'}", f"load {os.getloadavg()[0]:.1f}"]
    about += [f"{name} {value}" for name, value in machine(1).items() if value and name != "runs_at_once"]
    about += [f"{name} {version(name)}" for name in ("torch", "numpy", "gymnasium")]
    about += {peer["version"] for runs in found.values() for _, peer in runs if peer and "version" in peer}
    return [*lines, "", f"{', '.join(about)}."]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="SETTING", help='such as CartPole or "Breakout --bf16"')
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--updates", type=int, default=8, help="of a run, after the first two")
    parser.add_argument("--ranks", type=int, nargs="+", help="numbers of processes under torchrun")
    parser.add_argument("--check", action="store_true", help="run the golden tests, and every script twice")
    parser.add_argument("--no-sb3", action="store_true", help="leave Stable-Baselines3 out")
    parser.add_argument("--out", type=Path, help="where to write .md and .json (default: runs/speed-<time>)")
    options, lines, found, failed = parser.parse_args(), [], {}, False
    if options.check:
        scripts = sorted(path.name for path in ROOT.glob("*ppo*.py")) + ["impala_atari_cleanba.py"]
        options.settings, options.repeats, options.no_sb3 = options.settings or scripts, 2, True
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        command = [sys.executable, "-m", "pytest", "tests/test_golden.py", "-n", "0", "-q", "--device", device]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        failed = done.returncode != 0
        said = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1].strip("= ")
        lines = [f"Golden tests on {device}: {said}.", ""]
    out = options.out or Path("runs", time.strftime("speed-%Y%m%d-%H%M%S"))
    out.parent.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(ROOT))
    for _ in range(options.repeats):
        for what, script, words, ranks in settings(options):
            ours, peer = run(script, options.updates, words, ranks), None
            if script in HAVE_PEER and not options.no_sb3 and not ranks and "error" not in ours:
                peer = run(script, options.updates, [json.dumps(ours["args"])], peer=find_peer())
            found.setdefault(what, []).append((ours, peer))
            beside = f", SB3 {peer.get('speed', 0):,.0f}" if peer else ""
            print(f"{what}: {ours.get('error') or format(ours['speed'], ',.0f') + ' steps/s'}{beside}", flush=True)
    out.with_suffix(".json").write_text(json.dumps(found, indent=1))
    lines += report(options, found)
    out.with_suffix(".md").write_text("\n".join([*lines, ""]))
    print(*lines, out.with_suffix(".md"), sep="\n")
    sys.exit(failed or any("| error: " in line for line in lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    elif sys.argv[1:2] == ["--peer"]:
        measure_peer(sys.argv[2], int(sys.argv[3]), SimpleNamespace(**json.loads(sys.argv[4])))
    else:
        main()
