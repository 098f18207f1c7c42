"""Trains with the script, and looks on."""

import contextlib
import copy
import functools
import multiprocessing
import signal
import sys
import time
from pathlib import Path
from unittest import mock

import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from checker.gradient_steps import GradientSteps
from checker.page import Source, is_users
from checker.parts import Parts
from checker.policies import Policies
from checker.rollouts import Rollouts
from checker.tools import quiet, wrap


class Watched:
    """A run of the script, with what the four observers of it saw.

    The functions that an observer names are wrapped while the script trains, and do what they always do. `first_step`,
    if it is given, has the minibatch that takes the place of the first one, and the agent's buffers of that time."""

    def __init__(self, script, args, words=(), first_step=None):
        self.script = script
        self.first_step = first_step
        self.error = None  # the exception that ended the run
        self.result = None  # what train() returned
        self.runs = []  # the Run, or those of several agents
        self.agents = []
        self.first_agent = None  # a copy of the first, from before the first update
        self.options_read = set()
        self.update_times = []  # seconds
        self.stats = []  # the scalars of each gradient step, in a list for each update
        self.first_steps = []  # a FirstStep of each update
        self.policies = Policies(self)
        self.rollouts = Rollouts(self)
        self.gradient_steps = GradientSteps(self)
        self.parts = Parts(self)
        self.train(args, words)

    def functions(self):
        return {
            (self.script.Agent, "__init__"): self.make_agent,
            (self.script.Run, "start"): self.start,
            (self.script.Run, "log_update"): self.log_update,
        }

    def train(self, args, words):
        script = self.script
        handlers = {number: signal.getsignal(number) for number in script_signals()}
        with contextlib.ExitStack() as stack:
            stack.enter_context(quiet())
            stack.enter_context(mock.patch.object(sys, "argv", [script.__file__, *words]))
            stack.enter_context(torch.compiler.set_stance("force_eager"))  # also without --compile
            stack.enter_context(mock.patch.object(script.Args, "__getattribute__", reader(self.options_read)))
            for observer in (self.parts, self.gradient_steps, self.rollouts, self.policies, self):
                for (owner, name), look in observer.functions().items():
                    if hasattr(owner, name):
                        stack.enter_context(mock.patch.object(owner, name, wrap(getattr(owner, name), look)))
            for handle in (
                register_module_forward_hook(self.parts.see_module),
                register_optimizer_step_post_hook(self.parts.see_optimizer),
                register_optimizer_step_post_hook(self.gradient_steps.see_optimizer),
            ):
                stack.callback(handle.remove)
            try:
                run = getattr(script, Source(Path(script.__file__)).create_run())(args)
                run.updates = functools.partial(self.updates, run.updates)
                self.result = script.train(run.args, run)
            except (Exception, SystemExit) as error:
                self.error = error
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for run in self.runs:
            if hasattr(run, "writer"):
                run.writer.close()
        for process in multiprocessing.active_children():
            process.kill()

    def is_in_step(self, number):
        """Whether the loss of a gradient step of update 1 is computed; actors in other threads have no gradients."""
        return len(self.stats) == 1 and len(self.stats[0]) == number - 1 and torch.is_grad_enabled()

    def make_agent(self, function, agent, *args, **kwargs):
        function(agent, *args, **kwargs)
        self.agents.append(agent)

    def start(self, function, run, device, **parts):
        self.runs.append(run)
        if self.agents:
            self.first_agent = copy.deepcopy(self.agents[0])
        function(run, device, **parts)

    def updates(self, function):
        for update in function():
            self.stats.append([])
            self.update_start = time.monotonic()
            yield update

    def log_update(self, function, run, scalars):
        self.update_times.append(time.monotonic() - self.update_start)
        return function(run, scalars)


def script_signals():
    """The signals that a script may handle."""
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


def reader(names):
    """In place of Args.__getattribute__: adds the names of the options that the user's code reads."""

    def read(options, name):
        if is_users(sys._getframe(1).f_code.co_filename):
            names.add(name)
        return object.__getattribute__(options, name)

    return read
