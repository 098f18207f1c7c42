"""Abuses a script, many times at random: damaged checkpoints, odd command lines, odd environments. Counts what happens.

    python tests/abuse.py --script ppo --checkpoints 1000 --command-lines 100 --environments 30

clear: the run trains to its end, or refuses with one line. traceback: python's, out of the script's own code.
altered: something else than what was saved is trained on. lost: it hangs, dies, or ends well without a checkpoint.
The first example of each kind but the first is printed, with what brings it about again.
"""

import collections
import contextlib
import dataclasses
import importlib
import io
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
import tyro

sys.path[:0] = map(str, Path(__file__).parents[:2])  # the scripts, and toy_envs
from kill import OPTIONS  # noqa: E402
from toy_envs import newest_run  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Args:
    script: str = "ppo"  # which script
    checkpoints: int = 1000  # damaged ones to resume from
    command_lines: int = 100  # odd ones
    environments: int = 41  # odd ones, each oddity in its turn
    seed: int = 1  # of the abuse
    seconds: int = 60  # that one run may take


def forked(module, arguments, folder, seconds, before=lambda: None):
    """Runs the script's main() in a process of its own, in `folder`; (status, what it wrote). None: out of time."""
    folder.mkdir(exist_ok=True)
    pid = os.fork()
    if not pid:
        os.chdir(folder)
        output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(output, stream)
        sys.stdout, sys.stderr = (open(stream, "w", buffering=1, closefd=False) for stream in (1, 2))
        sys.argv, status = [f"{module.__name__}.py", *arguments], 0
        try:
            before()
            module.main()
        except SystemExit as end:
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            status = 1
        os._exit(status)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), (folder / "output").read_text(errors="replace")
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None, (folder / "output").read_text(errors="replace")


def judged(result, folder, own=None):
    """What kind of end a run had; `own` is what an environment's own error says, whose traceback is right."""
    status, said = result
    if status is None or status < 0:
        return "lost"
    if "Traceback (most recent call last)" in said:
        return "clear" if own is not None and own in said else "traceback"
    if status == 0:
        helped = not any(folder.rglob("events.*"))  # --help and the like
        return "clear" if helped or any(folder.rglob("checkpoint_*.pt")) else "lost"
    return "clear" if "error: " in said or "For full helptext" in said else "lost"


def same(one, other):
    """Whether two states of a checkpoint are the same, bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


def damage(data, chance):
    """The bytes of a file after one of the accidents that files have."""
    data, size = bytearray(data), len(data)
    first = chance.randrange(size)
    match chance.choice(("zeros", "bit", "noise", "cut", "twice", "lost", "swapped")):
        case "zeros":
            first = first // 512 * 512
            data[first : first + 512] = bytes(len(data[first : first + 512]))
        case "bit":
            data[first] ^= 1 << chance.randrange(8)
        case "noise":
            data[first : first + 64] = chance.randbytes(len(data[first : first + 64]))
        case "cut":
            del data[first:]
        case "twice":
            data[first:first] = data[first : first + 512]
        case "lost":
            del data[first : first + 512]
        case "swapped":
            second = chance.randrange(size)
            data[first : first + 64], data[second : second + 64] = data[second : second + 64], data[first : first + 64]
    return bytes(data)


def damaged_checkpoint(module, whole, state, folder, chance):
    """(kind, what was done) of one damaged checkpoint, which the script is to refuse, or to read as it was."""
    file, data = folder / "damaged.pt", damage(whole, chance)
    file.write_bytes(data)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            loaded, _ = module.load_checkpoint(file)
    except SystemExit:
        return "clear", file
    except Exception:
        return "traceback", file
    return ("clear" if same(loaded, state) else "altered"), file


NUMBERS = tuple("-1 0 1 2 3 7 200 1e20 -1e20 99999999999999999999 nan inf -inf 1e-300 0.5 1.5".split())
WORDS = (*"x None True ../.. a/b : :: :CartPole-v1 ..x:F-v0 CartPole-v1 é漢 - %s".split(), "", " ")


def odd_command_line(module, options, chance):
    """Options of a short run, of which some are replaced by odd ones."""
    fields = [field for field in dataclasses.fields(module.Args) if field.name not in ("track", "compile", "resume")]
    line = options.split()
    for field in chance.sample(fields, chance.randint(1, 2)):
        flag = f"--{field.name.replace('_', '-')}"
        if field.type is bool:
            line += [chance.choice((flag, f"--no-{flag[2:]}"))]
        else:
            line += [flag, chance.choice(NUMBERS if field.type is not str else WORDS + NUMBERS)]
    if chance.random() < 0.05:
        line += [chance.choice(("--help", "--no-such-flag", "word", "--resume", "--seed", "--resume=nothing"))]
    return line


class Odd(gym.Env):
    """An environment that has one oddity; where it raises by itself, it says "its own fault"."""

    metadata = {"render_modes": []}
    oddities = (
        "obs dict", "obs tuple", "obs sequence", "obs graph", "obs text", "obs scalar", "obs matrix", "obs int",
        "obs discrete", "obs float64", "action start", "action scalar box", "action matrix box", "action unbounded",
        "action int box", "action sequence", "action multibinary", "reward nan", "reward inf", "reward none",
        "reward array", "reward string", "obs nan", "obs inf", "obs wrong shape", "obs wrong type", "reset raises",
        "step raises", "step exits", "step exits 0", "init raises", "info odd", "done string", "short tuple",
        "always done", "never done", "no render", "mask nan", "mask string", "mask of words", "mask short",
        "global noise",
    )  # fmt: skip

    def __init__(self, oddity, spaces, render_mode=None):
        self.oddity, self.render_mode = oddity, render_mode
        self.observation_space, self.action_space = spaces
        match oddity:
            case "obs dict":
                self.observation_space = gym.spaces.Dict(a=self.observation_space)
            case "obs tuple":
                self.observation_space = gym.spaces.Tuple([self.observation_space])
            case "obs sequence":
                self.observation_space = gym.spaces.Sequence(self.observation_space)
            case "obs graph":
                self.observation_space = gym.spaces.Graph(self.observation_space, None)
            case "obs text":
                self.observation_space = gym.spaces.Text(5)
            case "obs scalar":
                self.observation_space = gym.spaces.Box(-1, 1, ())
            case "obs matrix":
                self.observation_space = gym.spaces.Box(-1, 1, (2, 2))
            case "obs int":
                self.observation_space = gym.spaces.Box(-5, 5, (3,), np.int64)
            case "obs float64":
                self.observation_space = gym.spaces.Box(-5, 5, (3,), np.float64)
            case "obs discrete":
                self.observation_space = gym.spaces.Discrete(3)
            case "action start":
                several = isinstance(self.action_space, gym.spaces.MultiDiscrete)
                self.action_space = (
                    gym.spaces.MultiDiscrete([3, 2], start=[1, 0]) if several else gym.spaces.Discrete(2, start=5)
                )
            case "action scalar box":
                self.action_space = gym.spaces.Box(-1, 1, ())
            case "action matrix box":
                self.action_space = gym.spaces.Box(-1, 1, (2, 2))
            case "action unbounded":
                self.action_space = gym.spaces.Box(-np.inf, np.inf, (1,))
            case "action int box":
                self.action_space = gym.spaces.Box(-2, 2, (1,), np.int32)
            case "action sequence":
                self.action_space = gym.spaces.Sequence(gym.spaces.Discrete(2))
            case "action multibinary":
                self.action_space = gym.spaces.MultiBinary(3)
            case "init raises":
                raise ValueError("its own fault")

    def see(self):
        if self.oddity in ("obs nan", "obs inf"):
            return np.full(self.observation_space.shape, np.nan if self.oddity == "obs nan" else np.inf, np.float32)
        if self.oddity == "obs wrong shape":
            return np.zeros(17, np.float32)
        if self.oddity == "obs wrong type":
            return "text"
        return self.observation_space.sample()

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        if self.oddity == "reset raises":
            raise OSError("its own fault")
        return self.see(), {}

    def step(self, action):
        if not self.action_space.contains(action):
            raise ValueError(f"a wrong action: {action!r} is not in {self.action_space}")
        self.steps += 1
        if self.oddity == "step raises":
            raise RuntimeError("its own fault")
        if self.oddity.startswith("step exits"):
            sys.exit(0 if self.oddity.endswith("0") else "error: its own fault")
        rewards = {"nan": np.nan, "inf": np.inf, "none": None, "array": np.ones(2), "string": "1"}
        reward = rewards.get(self.oddity.removeprefix("reward "), 1.0)
        done = {"always done": True, "never done": False, "done string": "yes"}.get(self.oddity, self.steps == 7)
        info = {"a": object(), "b": [1, "2", None]} if self.oddity == "info odd" else {}
        return (self.see(), reward) if self.oddity == "short tuple" else (self.see(), reward, done, False, info)

    def action_mask(self):
        numbers = {
            "mask nan": np.full(5, np.nan), "mask short": np.ones(3),
            "mask of words": ["0", "1", "x", "1", "0"], "mask string": "11111",
        }  # fmt: skip
        return numbers.get(self.oddity, np.ones(5))


# what an oddity may say with a traceback: the environment's own fault, or gymnasium's or numpy's about its answer
FAULTS = ("its own fault", "gymnasium/", "numpy/")


def odd_environment(module, options, folder, number, seconds):
    """(kind, oddity) of a run on an odd environment."""
    oddity, box = Odd.oddities[number % len(Odd.oddities)], gym.spaces.Box(-1, 1, (4,), np.float32)
    actions = gym.spaces.Discrete(2)
    if "continuous" in module.__name__:
        actions = gym.spaces.Box(-1, 1, (2,), np.float32)
    if "multidiscrete" in module.__name__:
        actions = gym.spaces.MultiDiscrete([3, 2])
    name = "Odd-v0"
    gym.register(name, lambda **kwargs: Odd(oddity, (box, actions), **kwargs), disable_env_checker=True)
    with contextlib.redirect_stderr(io.StringIO()):
        result = forked(module, [*options.split(), "--env-id", name], folder, seconds)
    kind = judged(result, folder)
    if kind == "traceback":
        kind = "clear" if any(fault in result[1] for fault in FAULTS) and "a wrong action" not in result[1] else kind
    if kind == "lost" and oddity.startswith("step exits") and result[0] not in (0, None):
        kind = "clear"
    return kind, oddity, result[1][-600:]


def main():
    args = tyro.cli(Args, description=__doc__)
    chance, module = random.Random(args.seed), importlib.import_module(args.script)
    options = f"--save-every 2 --threads 1 {OPTIONS[args.script]}"
    steps = 512 if "continuous" in args.script else 128
    options = re.sub(r"--total-timesteps \d+", f"--total-timesteps {steps}", options)
    counts, shown = collections.defaultdict(collections.Counter), set()

    def count(what, kind, *example):
        counts[what][kind] += 1
        if kind != "clear" and (what, kind, example[0]) not in shown:
            shown.add((what, kind, example[0]))
            print(f"{what}: {kind}:", *example, sep="\n  ", flush=True)

    with tempfile.TemporaryDirectory() as top:
        top = Path(top)
        status, said = forked(module, options.split(), top / "whole", 10 * args.seconds)
        assert status == 0, said
        file = sorted(newest_run(top / "whole").glob("checkpoint_*.pt"))[-1]
        whole, state = file.read_bytes(), torch.load(file, weights_only=True)
        for number in range(args.checkpoints):
            kind, _ = damaged_checkpoint(module, whole, state, top, chance)
            count("checkpoints", kind, f"number {number}")
        for number in range(args.command_lines):
            folder, line = top / f"line-{number}", odd_command_line(module, options, chance)
            result = forked(module, line, folder, args.seconds)
            count("command lines", judged(result, folder), " ".join(line), result[1][-600:])
            shutil.rmtree(folder)
        for number in range(args.environments):
            folder = top / f"environment-{number}"
            count("environments", *odd_environment(module, options, folder, number, args.seconds))
            shutil.rmtree(folder)
    for what, kinds in counts.items():
        print(f"{args.script}: {sum(kinds.values())} {what}:", ", ".join(f"{n} {kind}" for kind, n in kinds.items()))
    sys.exit(any(set(kinds) - {"clear"} for kinds in counts.values()))


if __name__ == "__main__":
    main()
