"""Runs a script as a process of its own: starts it, waits until it trains, and ends it where it does not."""

import os
import subprocess
import sys
import time

from run_files import newest_run, scalars
from script_table import ROOT

PATIENCE = 600  # seconds until a test gives up on a process; on a quiet core they need 5, and some of several ranks 30


def started(process, folder):
    """The folder of the run that a process has begun in `folder`, once its log has an update."""
    end = time.monotonic() + PATIENCE
    while not list(folder.glob("runs/*/events.*")) or not scalars(newest_run(folder)):
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise AssertionError(process.communicate())
        time.sleep(0.05)
    return newest_run(folder)


def start(arguments, folder, stderr=subprocess.PIPE, group=None, **environment):
    """Starts `python arguments` in `folder`; its output is a pipe of text, its errors are another or go to `stderr`.

    With 0 as `group` it has a process group of its own."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"} | environment
    command = [sys.executable, *map(str, arguments)]
    pipes = dict(stdout=subprocess.PIPE, stderr=stderr, text=True)
    return subprocess.Popen(command, cwd=folder, env=environment, process_group=group, **pipes)


def finish(process):
    """Waits for the end; (exit status, output, errors). What does not end in time is killed."""
    try:
        output, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return process.returncode, output, errors
