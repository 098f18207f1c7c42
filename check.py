# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "filelock>=3.20", "gymnasium[mujoco]>=1.4", "numpy>=2.0", "tensorboard>=2.21", "torch>=2.13,<2.16", "tqdm>=4.67",
#   "tyro>=1.0",
#   "ale-py>=0.12", "opencv-python-headless>=4.11", "moviepy>=2.2", "pygame-ce>=2.5",
# ]
# ///
"""Checks an edited script and an environment before a long run, and prints what it found.

    python check.py my_ppo.py --env-id walk:Walk-v0        (--help lists every option)

It takes random steps in an environment that the script makes. Then the script itself trains for two updates in a
temporary folder, and resumes from a checkpoint, while check.py looks at what its functions get and return. Options of
the script may follow. The exit status is 0 without errors, 1 with errors, and 2 where nothing could be checked.
"""

import dataclasses
import sys
import tempfile
from pathlib import Path

import torch
import tyro

from checker.environment import check_environment, check_vector, makes_single_environments
from checker.learn import check_learning
from checker.page import Page, Source, describe
from checker.policies import check_agent
from checker.resume import check_checkpoint, check_resume_option
from checker.tools import replaced
from checker.update import check_update
from checker.watched import Watched
from saved import import_script


@dataclasses.dataclass(frozen=True)
class Args:
    script: tyro.conf.Positional[Path]  # the script to check
    learn: bool = False  # also train on six small environments whose answers are known


def check(path, options, with_learning=False):
    """Prints the page of a script with options of its own, and returns the exit status."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(path.resolve().parent))  # as `python my_ppo.py` does
    try:
        script = import_script(path, path.stem)  # processes of --async-envs import it by this name
        options_of_user = tyro.cli(script.Args, args=options, prog=path.name)
        source = Source(path)
    except (Exception, SystemExit) as error:
        if not isinstance(error, SystemExit) or isinstance(error.code, str):
            print(f"error: {path}: {describe(error)}")
        return 2
    page = Page()
    make = "make_env" if makes_single_environments(script, options_of_user) else "make_envs"
    print(
        f"{path.name} on {options_of_user.env_id} (as {path.stem}.{make} makes it), seed {options_of_user.seed}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # of ppo_seeds.py's several values of an option, the first, so that the resume has one agent, too
        per_agent = {name: getattr(options_of_user, name) for name in getattr(script, "OPTIONS_OF_AGENTS", ())}
        first_values = {name: value[0] for name, value in per_agent.items() if isinstance(value, tuple)}
        args = dataclasses.replace(options_of_user, **first_values)
        args = replaced(args, runs_folder=folder, track=False, compile=False, resume=None)
        args = replaced(args, total_timesteps=2 * args.num_envs * args.num_steps, save_every=1)
        if not check_environment(script, args, page):
            print(page.summary())
            return 1
        obs = None
        with page.check("make_envs()"):
            obs = check_vector(script, args, page)
        run = Watched(script, args)
        if run.first_agent is not None:
            check_agent(run, obs, args, source, page)
        check_update(run, args, source, page)
        with page.check("checkpoint"):
            check_checkpoint(script, args, run, source, page)
        if isinstance(options_of_user.resume, str):
            with page.check("--resume"):
                check_resume_option(script, options_of_user, options, source, page)
        if with_learning:
            check_learning(script, args, folder, page)
    text = page.summary()
    if run.update_times:
        seconds = run.update_times[-1] * options_of_user.total_timesteps / (args.num_envs * args.num_steps)
        text += f"; {options_of_user.total_timesteps:,} steps will take about {duration(seconds)}"
    print(text)
    return 1 if page.counts["ERROR"] > 0 else 0


def duration(seconds):
    for unit, name in ((3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def main():
    args, options = tyro.cli(Args, description=__doc__, return_unknown_args=True)
    sys.exit(check(args.script, options, args.learn))


if __name__ == "__main__":
    main()
