"""kill -9 at random moments of many runs of a script; each goes on with --resume, and its log has each step once.

    python tests/kill.py --script ppo --kills 50        (tests/test_kill.py does a few in CI)
    python tests/kill.py --script ppo --kills 0 --stops 40

Half of the moments are drawn by the clock, from a run's first line to its last. Of the other half each is within some
milliseconds of a file operation of the run: opening, writing, renaming, deleting, cutting. A run that has been killed
is resumed (now and then its newest checkpoint is damaged before), killed again, and so on, until it gets through. Then
its log must have every point once, its schedule be that of the undisturbed run, its checkpoints be whole, and nothing
else lie about. With --stops each signal that asks a run to end comes at so many moments: the run must save and end with
that signal's status, its log where its checkpoint is. Processes are forked when the libraries are loaded: nothing is
written before that.
"""

import collections
import dataclasses
import importlib
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import torch
import tyro

sys.path[:0] = map(str, Path(__file__).parents[:2])  # the scripts, and toy_envs
from toy_envs import checkpoint, scalars  # noqa: E402

CLASSIC = "--num-envs 2 --num-steps 32 --total-timesteps 2048"
ATARI = "--num-envs 2 --num-steps 16 --total-timesteps 640 --num-minibatches 2 --update-epochs 1"
OPTIONS = {
    "ppo": CLASSIC,
    "ppo_shared": CLASSIC,
    "ppo_atari": ATARI,
    "ppo_atari_lstm": ATARI,
    "ppo_atari_envpool": ATARI,
    "ppo_atari_multigpu": ATARI,
    "ppo_atari_cleanba": ATARI,
    "impala_atari_cleanba": ATARI.replace("--update-epochs 1", "--network nature"),
    "ppo_continuous_action": "--num-steps 128 --total-timesteps 4096 --num-minibatches 4 --update-epochs 2",
    "ppo_procgen": ATARI,
    "ppo_multidiscrete": f"{CLASSIC} --env-id toy_envs:Choices-v0",
    "ppo_multidiscrete_mask": f"{CLASSIC} --env-id toy_envs:Choices-v0",
    "ppo_selfplay": f"{CLASSIC} --num-minibatches 4 --env-id toy_envs:Signs-v0",
}


@dataclasses.dataclass(frozen=True)
class Args:
    script: str = "ppo"  # which script; its process is killed
    kills: int = 50  # how often
    stops: int = 0  # by each of SIGINT, SIGTERM and SIGHUP
    seed: int = 1  # of the moments


def begin(module, arguments, folder, kill_at=None, delay=0.0):
    """Forks a process that runs the script in `folder`; returns its id.

    It kills itself `delay` seconds after its file operation number `kill_at`; writes how many it had where it ends."""
    pid = os.fork()
    if pid:
        return pid
    operations = 0

    def count(event, args):
        nonlocal operations
        if event in ("open", "os.rename", "os.remove", "os.truncate", "os.mkdir") and str(args[0]).startswith("runs/"):
            operations += 1
            if operations == kill_at:
                kill = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL))
                kill.start() if delay else kill.function(*kill.args)

    status = 1
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
        os.chdir(folder)
        output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.argv = [f"{module.__name__}.py", *arguments]
        sys.addaudithook(count)
        module.main()
        status = 0
    except SystemExit as end:
        print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        Path("operations").write_text(str(operations))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ended(pid, folder):
    """Waits for the process; whether it came to its end. Raises AssertionError where it failed."""
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert status == 0, f"it failed in {folder}:\n{(folder / 'output').read_text()}"
    return True


def check(run, whole):
    """Raises AssertionError where a run that is through is not as the undisturbed one, but for its new episodes."""
    log, expected = scalars(run), scalars(whole)
    episodes = {"charts/episodic_return", "charts/episodic_length"}
    assert log.keys() - episodes == expected.keys() - episodes, f"no points of {expected.keys() - log.keys()}"
    for tag in log.keys() - episodes:
        steps, right = ([step for step, _ in each[tag]] for each in (log, expected))
        assert steps == right, f"{tag} has a gap or a double point: {steps}, not {right}"
    for tag in episodes & log.keys():
        steps = [step for step, _ in log[tag]]
        assert steps == sorted(steps), f"{tag} goes back: {steps}"
    assert log["charts/learning_rate"] == expected["charts/learning_rate"], "the schedule differs"
    names, right = ({path.name for path in each.iterdir() if "events." not in path.name} for each in (run, whole))
    older = {path.name for path in sorted(run.glob("checkpoint_*.pt"))[:-2]}  # if killed just before it is deleted
    again = {name for name in names if re.fullmatch(r"\w+_\d{12}\.(py|json)", name)}  # one of each for a resume
    assert names - older - again == right, f"the files differ: {names - again ^ right}"
    last = [torch.load(file, weights_only=True) for file in sorted(run.glob("*.pt"))][-1]
    assert last["global_step"] == checkpoint(whole)["global_step"], "it is not through"


def torment(module, options, folder, chance, most, duration, operations):
    """Kills and resumes one run until it gets through, `most` times at most; what it did, one line for each process."""
    arguments, history, damaged = options, [], None
    while True:
        if len(history) == most:
            how, pid = "let be", begin(module, arguments, folder)
        elif chance.random() < 0.5:
            seconds = chance.uniform(0, duration)
            how, pid = f"killed after {seconds:.3f} s", begin(module, arguments, folder)
            time.sleep(seconds)
            os.kill(pid, signal.SIGKILL)
        else:
            number = chance.randint(1, chance.choice([8, operations]))  # 8: until the first update
            delay = chance.choice([0.0, chance.uniform(0, 0.005)])
            how = f"killed {delay:.4f} s after its file operation {number}"
            pid = begin(module, arguments, folder, number, delay)
        if ended(pid, folder):
            return history
        saved = sorted(folder.glob("runs/*/checkpoint_*.pt"))
        history.append(f"{' '.join(arguments)}: {how}; then there were {[file.name for file in saved]}")
        for file in saved:
            if file != damaged:
                torch.load(file, weights_only=True)
        if not saved:
            shutil.rmtree(folder / "runs", ignore_errors=True)
            continue
        place = options.index("--env-id") if "--env-id" in options else len(options)
        arguments = ["--resume", str(saved[0].parent.relative_to(folder)), *options[place : place + 2]]
        if len(saved) > 1 and saved[-2] != damaged and chance.random() < 0.25:
            damaged = saved[-1]
            os.truncate(damaged, damaged.stat().st_size // 2)
            history[-1] += f"; {damaged.name} is damaged"


def stopped(module, options, folder, number, seconds):
    """Sends a run the signal after so many seconds; "saved", or "early" before the first update, or "late"."""
    pid, output = begin(module, options, folder), folder / "output"
    while not output.exists() or "watch it" not in output.read_text():
        time.sleep(0.005)
    time.sleep(seconds)
    os.kill(pid, number)
    status = os.waitpid(pid, 0)[1]
    saved = sorted(folder.glob("runs/*/checkpoint_*.pt"))
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == number and not saved
        return "early"
    if os.WEXITSTATUS(status) == 0:
        return "late"
    said = f"status {os.WEXITSTATUS(status)} after {signal.Signals(number).name}:\n{output.read_text()}"
    assert os.WEXITSTATUS(status) == 128 + number and "Traceback" not in output.read_text(), said
    if not saved:  # Ctrl-C before the first update
        assert "stopped" not in output.read_text(), said
        return "early"
    run = saved[0].parent
    assert scalars(run)["losses/policy_loss"][-1][0] == checkpoint(run)["global_step"], said
    return "saved"


def main():
    args = tyro.cli(Args, description=__doc__)
    chance, module = random.Random(args.seed), importlib.import_module(args.script)
    torch.optim.Adam([torch.zeros(1)])  # loads what the first optimizer of a process loads
    options = f"--save-every 2 --threads 1 {OPTIONS[args.script]}".split()
    with tempfile.TemporaryDirectory() as top:
        began, folder = time.monotonic(), Path(top, "whole")
        folder.mkdir()
        assert ended(begin(module, options, folder), folder)
        duration, operations = time.monotonic() - began, int((folder / "operations").read_text())
        [whole] = (folder / "runs").iterdir()
        print(f"{args.script} undisturbed: {duration:.1f} s, {operations} file operations", flush=True)
        kills, runs = [], 0
        while len(kills) < args.kills:
            folder, runs = Path(top, str(runs)), runs + 1
            folder.mkdir()
            history = torment(module, options, folder, chance, args.kills - len(kills), duration, operations)
            [run] = (folder / "runs").iterdir()
            try:
                check(run, whole)
            except Exception:
                print(*history, sep="\n", flush=True)
                raise
            kills += history
            shutil.rmtree(folder)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if args.stops else ():
            counts = collections.Counter()
            while counts["saved"] < args.stops:
                folder = Path(top, "stopped")
                folder.mkdir()
                counts[stopped(module, options, folder, number, chance.uniform(0, duration))] += 1
                shutil.rmtree(folder)
            print(f"{signal.Signals(number).name}: {dict(counts)}", flush=True)
    resumed = sum("checkpoint_" in kill for kill in kills)
    print(f"{len(kills)} kills, {resumed} resumed, the others before the first checkpoint; ", end="")
    print(f"all {runs} runs got through, with every point once")


if __name__ == "__main__":
    main()
