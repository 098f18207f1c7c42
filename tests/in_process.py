"""Runs a script inside the process of the tests, with toy environments or with functions that are watched."""

import contextlib
import copy
import importlib.metadata
import signal
import sys
from functools import cache, partial
from types import SimpleNamespace

import filelock
import gymnasium as gym
import pytest
from run_files import newest_run
from torch.utils.tensorboard import SummaryWriter
from toy_envs import AsTheyAre


def put_in_place_of_games(script, toy, patch):
    """Makes the script train on toy(script.images, index) instead; returns the list that its environments come into."""
    made = []
    # observations that are no images come as the script's own wrapper gives them, and masks of actions with them
    wrap = getattr(script.module, "Episodes", gym.wrappers.RecordEpisodeStatistics)
    if hasattr(script.module, "Normalize"):
        patch(script.module, "Normalize", AsTheyAre)

    def make_env(args, index, folder):
        made.append(toy(script.images, index))
        if script.box:
            made[-1].action_space = gym.spaces.Box(-2, 2, (1,))
        if script.several:
            made[-1].action_space = gym.spaces.MultiDiscrete([2])
        return wrap(made[-1])

    def make_envs(args, folder=None):
        makers = [partial(make_env, args, index, folder) for index in range(args.num_envs)]
        envs = gym.vector.SyncVectorEnv(makers, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
        return script.module.Normalize(envs, 1.0) if hasattr(script.module, "Normalize") else envs

    if hasattr(script.module, "make_env") and not hasattr(script.module, "Seats"):
        patch(script.module, "make_env", make_env)
    else:  # its own environments are in C++, or each is of two players
        patch(script.module, "make_envs", make_envs)
    return made


@contextlib.contextmanager
def patched(*patches):
    """Sets attributes, (object, name, value), for a while."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, value in patches:
            patch.setattr(owner, name, value)
        yield patch


@contextlib.contextmanager
def watched(owner, name, look):
    """The list of what `look` makes of the arguments of each call of a function, before the call."""
    seen, function = [], getattr(owner, name)

    def look_and_call(*args, **kwargs):
        seen.append(look(*args, **kwargs))
        return function(*args, **kwargs)

    with patched((owner, name, look_and_call)):
        yield seen


@contextlib.contextmanager
def loaded_parts(script):
    """A dict that gets the states of the parts as a run of the script begins."""
    states, start = {}, script.module.Run.start

    def look(run, device, **parts):
        start(run, device, **parts)
        states.update(copy.deepcopy({name: part.state_dict() for name, part in parts.items()}))

    with patched((script.module.Run, "start", look)):
        yield states


def run_main(module):
    """What `python script.py` does."""
    create_run = module.Run
    for name in ("make_run", "Runs"):  # of several processes, of several agents
        create_run = getattr(module, name, create_run)
    module.main(create_run)


@cache
def installed_packages():
    """Those that run.json names, read once: they would take half of the time of so short a run."""
    packages = importlib.metadata.distributions()
    return [SimpleNamespace(name=package.name, version=package.version) for package in packages]


def train(script, options, folder):
    """Runs `python script.py options` in this process, in `folder`, which it makes; returns the run's own folder."""
    kept = []
    handlers = {number: signal.getsignal(number) for number in script.module.SIGNALS}

    def keep(make):
        def make_and_keep(*args, **kwargs):
            kept.append(make(*args, **kwargs))
            return kept[-1]

        return make_and_keep

    folder.mkdir(exist_ok=True)
    argv = [f"{script.name}.py", *options.split()]
    module = script.module
    metadata = SimpleNamespace(distributions=installed_packages)
    patches = (
        (module, "importlib", SimpleNamespace(metadata=metadata, import_module=importlib.import_module)),
        (module, "SummaryWriter", keep(SummaryWriter)),
        (module, "filelock", SimpleNamespace(FileLock=keep(filelock.FileLock), Timeout=filelock.Timeout)),
        (sys, "argv", argv),
    )
    with patched(*patches) as patch:
        patch.chdir(folder)
        try:
            run_main(module)
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        finally:  # as the end of a process does; the writer needs the folder that it was opened in
            for each in kept:
                if isinstance(each, filelock.BaseFileLock):
                    each.release(force=True)
                else:
                    each.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return newest_run(folder)
