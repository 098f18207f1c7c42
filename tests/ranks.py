"""Runs ppo_atari_multigpu.py as several ranks: forked from this process, where the libraries are loaded already."""

import os
import re
import signal
import socket
import sys
import time
import traceback

import envpool.atari  # noqa: F401 (late imports, here made once before the forks: each run would take 4 seconds more)
import torch

import ppo_atari_multigpu as script

torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # imports torch._dynamo

SMALL = "--num-envs 8 --num-steps 16 --threads 1 --save-every 1"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Ranks:
    """R processes in one group, as torchrun starts them; what each prints is in the file `folder`/rank_<number>.

    change(rank) is called in each before it begins. R = 0: one process without a group, of `module`."""

    def __init__(self, number, options, folder, change=None, module=script, **environment):
        folder.mkdir(exist_ok=True)
        port, self.folder, self.pids, self.codes = free_port(), folder, [], {}
        for rank in range(max(number, 1)):
            group = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number}
            group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": port}
            group |= {"TORCHELASTIC_MAX_RESTARTS": 0} | environment
            self.pids.append(os.fork())
            if self.pids[-1] == 0:
                os._exit(child(rank, group if number else {}, options, folder, change, module))

    def wait(self, seconds=120):
        """The exit status of each rank, negative where a signal ended it; TimeoutError after that time."""
        end = time.monotonic() + seconds
        while waiting := [pid for pid in self.pids if pid not in self.codes]:
            for pid in waiting:
                if (ended := os.waitpid(pid, os.WNOHANG))[0]:
                    self.codes[pid] = os.waitstatus_to_exitcode(ended[1])
            if time.monotonic() > end:
                for pid in waiting:
                    os.kill(pid, signal.SIGKILL)
                raise TimeoutError(f"ranks {[self.pids.index(pid) for pid in waiting]} have not ended")
            time.sleep(0.02)
        return [self.codes[pid] for pid in self.pids]

    def said(self, rank):
        return said(self.folder, rank)


def said(folder, rank):
    """What a rank said, without what Python 3.14's resource tracker says of any process that was forked."""
    text = (folder / f"rank_{rank}").read_text()
    return re.sub(r".*UserWarning: resource_tracker: .*\n  warnings.warn\(\n", "", text)


def child(rank, group, options, folder, change, module):
    """What a forked process does; returns its exit status."""
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
        module.every_rank(module) if group else module.main()
        return 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        return 1
