"""Trains with a script until the mean return of the last 100 episodes reaches a score, and prints JSON.

    python score.py SCRIPT SCORE OPTION ...

For time_to_score.py. CPU time counts from the start of training, with that of the compiler.
"""

import json
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this runs in another folder

from saved import import_script  # noqa: E402

WINDOW = 100  # episodes


class Reached(Exception):
    """The score was reached."""


def cpu_seconds():
    """The CPU time of this process, and of those that it started and that have ended, such as a compiler."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main():
    script, score, *options = sys.argv[1:]
    score = float(score)
    module = import_script(Path(script))
    sys.argv = [script, *options, "--save-every", "0"]
    start = cpu_seconds()
    found = {}

    def make_run(args):
        run = module.Run(args)
        log_update = run.log_update

        def log_and_compare(scalars):
            log_update(scalars)
            reached = len(run.returns) == WINDOW and sum(run.returns) / WINDOW >= score
            found.update(steps=run.global_step, seconds=cpu_seconds() - start, reached=reached)
            if reached:
                raise Reached

        run.log_update = log_and_compare
        return run

    try:
        module.main(make_run)
    except Reached:
        pass
    except SystemExit as end:
        if end.code:
            raise
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
