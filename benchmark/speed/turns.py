"""How the timed programs take turns, so that a machine whose speed drifts is the same one for each of them."""

import shlex
import subprocess
import sys
import tempfile
import time


class Turns:
    """A timed program's side: it works in its turns alone, and the time that they take adds up in `wall` and `cpu`."""

    def __init__(self):
        self.wall, self.cpu, self.start = 0.0, 0.0, None

    def end(self):
        """Ends the turn."""
        self.wall += time.perf_counter() - self.start[0]
        self.cpu += time.process_time() - self.start[1]
        self.start = None

    def next(self):
        """Ends the turn, if there was one before, and waits for the next."""
        if self.start is not None:
            self.end()
        print("turn", flush=True)
        if not sys.stdin.readline():  # nobody gives turns any more
            sys.exit(1)
        self.start = time.perf_counter(), time.process_time()


class Program:
    """The other side: a program that runs up to its first turn, and on from there only when it is given one.

    It works in a folder that is deleted afterwards. `lines` are those that it has printed; `given` is one for it."""

    def __init__(self, command, given=None):
        self.folder, self.errors, self.lines = tempfile.TemporaryDirectory(), tempfile.TemporaryFile("w+"), []
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors}
        self.process = subprocess.Popen([*map(str, command)], cwd=self.folder.name, text=True, **pipes)
        if given is not None:
            print(given, end="", file=self.process.stdin, flush=True)
        self.listen()

    def listen(self):
        """Returns once the program waits for its turn or has ended. Raises SystemExit where it has failed."""
        for line in self.process.stdout:
            if line == "turn\n":
                return
            self.lines.append(line)
        self.folder.cleanup()
        if self.process.wait():
            self.errors.seek(0)
            sys.exit(f"error: {shlex.join(self.process.args)}\n{self.errors.read()[-2000:]}")

    def turn(self):
        """Gives the program a turn and waits for its end."""
        print(file=self.process.stdin, flush=True)
        self.listen()
