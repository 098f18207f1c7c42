"""The parts of a run, which a checkpoint holds."""

import copy
import io

import numpy as np
import torch
from gymnasium.wrappers.utils import RunningMeanStd

from checker.page import describe, place_of
from checker.spaces import layers

PLAIN = (type(None), bool, int, float, str)


class Parts:
    """Sees the parts of a run, which a checkpoint holds, and what training uses besides."""

    def __init__(self, run):
        self.run = run
        self.named = {}
        self.unsavable = {}  # {part: why}
        self.states = {}  # of the parts after run.start()
        self.modules = {}  # {id: module} of all with parameters that were called
        self.optimizers = {}  # {id: optimizer} of torch's that took a step
        self.schedulers = []  # of torch's
        self.statistics_saved = []  # those of running statistics in the first checkpoint after an update
        self.statistics_loaded = []  # the same after run.start()

    def functions(self):
        return {
            (self.run.script.Run, "start"): self.start,
            (self.run.script.Run, "save"): self.save,
            (torch.optim.lr_scheduler.LRScheduler, "__init__"): self.make_scheduler,
        }

    def start(self, function, run, device, **parts):
        self.named = parts
        self.find_unsavable()
        function(run, device, **parts)
        self.states = copy.deepcopy({name: part.state_dict() for name, part in parts.items()})
        self.statistics_loaded = running_statistics(self.run.rollouts.envs)

    def save(self, function, run):
        self.find_unsavable()
        if len(self.run.stats) == 1:
            self.statistics_saved = running_statistics(self.run.rollouts.envs)
        return function(run)

    def find_unsavable(self):
        for name, part in self.named.items():
            problem = why_unsavable(part)
            if problem:
                self.unsavable.setdefault(name, problem)

    def make_scheduler(self, function, scheduler, *args, **kwargs):
        self.schedulers.append(scheduler)
        return function(scheduler, *args, **kwargs)

    def see_module(self, module, inputs, outputs):
        if any(True for _ in module.parameters()):
            self.modules[id(module)] = module

    def see_optimizer(self, optimizer, args, kwargs):
        self.optimizers[id(optimizer)] = optimizer

    def outside(self):
        """The modules and optimizers that belong to no part, but for copies of the agent."""
        agent_class = self.run.script.Agent
        known = self.run.agents + [module for module in self.modules.values() if isinstance(module, agent_class)]
        for part in self.named.values():
            known += [part, *getattr(part, "__dict__", {}).values()]  # also what a part keeps in its attributes
        inside = {id(thing) for thing in known}
        for module in known:
            if isinstance(module, torch.nn.Module):
                inside |= {id(inner) for inner in module.modules()}
        outside = [module for key, module in self.modules.items() if key not in inside]
        inner = {id(each) for module in outside for each in module.modules() if each is not module}
        outside = [module for module in outside if id(module) not in inner]
        optimizers = self.optimizers | {id(step.optimizer): step.optimizer for step in self.run.first_steps}
        outside += [optimizer for key, optimizer in optimizers.items() if key not in inside]
        outside += [scheduler for scheduler in self.schedulers if id(scheduler) not in inside]
        return [thing for thing in outside if self.trains(thing)]

    def trains(self, thing):
        """Whether a module, optimizer or scheduler has parameters of a module that was called."""
        optimizer = getattr(thing, "optimizer", thing)  # of a scheduler
        if not isinstance(optimizer, torch.optim.Optimizer):
            return True
        known = {parameter for module in self.modules.values() for parameter in module.parameters()}
        return any(parameter in known for group in optimizer.param_groups for parameter in group["params"])


def running_statistics(envs):
    """[(class of the wrapper, mean, variance, count), ...] of the running statistics in a vector's wrappers."""
    found = []
    for layer in layers(envs):
        for value in getattr(layer, "__dict__", {}).values():
            if isinstance(value, RunningMeanStd):
                found.append((type(layer), np.array(value.mean), np.array(value.var), value.count))
    return found


def why_unsavable(part):
    """Why a checkpoint cannot hold the state of a part, in words; "" if it can."""
    try:
        state = part.state_dict()
        path = path_of_numpy(state, "state_dict()")
        if path:
            return f"{path}, of numpy: .item() or .tolist() makes it Python's{place_of(type(part).state_dict)}"
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:
        return describe(error)
    return ""


def items_of(value):
    """The items of a dict, list or tuple, [(key, item), ...]; none of anything else."""
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list | tuple) else []


def path_of_numpy(value, path):
    """Where a state has a number or array of numpy; "" if it has none."""
    if isinstance(value, np.generic | np.ndarray):
        return f"{path} is a {type(value).__name__}"
    texts = (path_of_numpy(item, f"{path}[{key!r}]") for key, item in items_of(value))
    return next(filter(None, texts), "")


def difference(saved, loaded, path):
    """Where a loaded state differs from the saved one; "" if it does not."""
    if isinstance(saved, torch.Tensor) and isinstance(loaded, torch.Tensor) and saved.shape == loaded.shape:
        if torch.equal(saved.cpu().nan_to_num(), loaded.cpu().nan_to_num()):
            return ""
        return f"{path} is {saved.double().mean():.4g} before, {loaded.double().mean():.4g} after save and load"
    items = items_of(saved)
    if items and [key for key, _ in items] == [key for key, _ in items_of(loaded)]:
        texts = (difference(item, loaded[key], f"{path}[{key!r}]") for key, item in items)
        return next(filter(None, texts), "")
    if isinstance(saved, torch.Tensor) or isinstance(loaded, torch.Tensor) or items:
        return f"{path} has another type, shape or keys after save and load"
    return "" if saved == loaded or saved != saved else f"{path} is {saved} before, {loaded} after save and load"


def check_options_saved(args, source, page):
    """A checkpoint holds the options, and is loaded without running code from it."""
    for name, value in vars(args).items():
        if not all(type(each) in PLAIN for each in (value if isinstance(value, (tuple, list)) else [value])):
            hint = "a checkpoint holds numbers and texts, and tuples of them"
            option = f"--{name.replace('_', '-')}"
            page.error(f"option {option} is of the type {type(value).__name__}: {hint}{source.option(name)}")
