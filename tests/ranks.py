"""Runs a script as several ranks: forked from this process, where the libraries are loaded already."""

import os
import re
import signal
import socket
import sys
import time

import envpool.atari  # noqa: F401  scripts import it late; one import before the forks saves 4 seconds in each
import torch
from in_process import run_main
from processes import PATIENCE
from run_files import checkpoint, newest_run

import ppo_atari_multigpu as script

torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # imports torch._dynamo
SMALL = "--num-envs 8 --num-steps 16 --threads 1 --save-every 1"


class Ranks:
    """R processes in a group, as torchrun starts them; the file `folder`/rank_<number> has the output of each.

    change(rank) is called in each before it begins. R = 0: one process without a group."""

    def __init__(self, number, options, folder, change=None, module=script, **environment):
        folder.mkdir(exist_ok=True)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        self.folder = folder
        self.pids = []
        self.codes = {}
        for rank in range(max(number, 1)):
            group = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number}
            group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": port}
            group |= {"TORCHELASTIC_MAX_RESTARTS": 0} | environment
            self.pids.append(os.fork())
            if self.pids[-1] == 0:
                status = 1
                try:
                    status = child(rank, group if number else {}, options, folder, change, module)
                finally:
                    os._exit(status)  # in any case: a child must not return into the tests

    def wait(self):
        """The exit status of each rank, negative where a signal ended it; TimeoutError if they do not end."""
        end = time.monotonic() + PATIENCE
        while waiting := [pid for pid in self.pids if pid not in self.codes]:
            for pid in waiting:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self.codes[pid] = os.waitstatus_to_exitcode(status)
            if time.monotonic() > end:
                for pid in waiting:
                    os.kill(pid, signal.SIGKILL)
                raise TimeoutError(f"ranks {[self.pids.index(pid) for pid in waiting]} have not ended")
            time.sleep(0.02)
        return [self.codes[pid] for pid in self.pids]

    def said(self, rank=0):
        """The output of a rank, without what Python 3.14's resource tracker says of a process that was forked."""
        text = (self.folder / f"rank_{rank}").read_text()
        return re.sub(r".*UserWarning: resource_tracker: .*\n  warnings.warn\(\n", "", text)


def child(rank, group, options, folder, change, module):
    """The work of a forked process; returns its exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    output = os.open(folder / f"rank_{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = sys.__stdout__ = open(1, "w", buffering=1, closefd=False)
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, closefd=False)
    os.chdir(folder)
    os.environ.update({name: str(value) for name, value in group.items()})
    sys.argv = [f"{module.__name__}.py", *options.split()]
    try:
        if change:
            change(rank)
        run_main(module)
        return 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1


def in_float64(module=script):
    """Makes a process that was forked for one run compute in float64, in all its threads; see rounding.InFloat64."""
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double


def run(ranks, options, folder, change=None, module=script, **environment):
    """Runs to the end, which must be a good one; returns the folder of the newest run."""
    group = Ranks(ranks, options, folder, change, module, **environment)
    assert group.wait() == [0] * max(ranks, 1), group.said()
    return newest_run(folder)


def weights(folder):
    return torch.cat([weight.flatten() for weight in checkpoint(folder)["parts"]["agent"].values()])


def wait_for_step(folder, step):
    """Waits for a checkpoint of that step or a later one in a run of `folder`; returns its step."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = [int(path.stem.removeprefix("checkpoint_")) for path in folder.glob("runs/*/checkpoint_*.pt")]
        if max(found, default=-1) >= step:
            return max(found)
        time.sleep(0.05)
    raise TimeoutError
