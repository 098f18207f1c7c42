"""A second device, simulated on the CPU: its tensors have a name of their own, and no operation takes both kinds.

It is stricter than CUDA, which takes a CPU's scalars and indices beside its own tensors and copies them unseen. What
the host reads of it is kept, by the line of the script that reads: on a GPU the script waits there.
"""

import collections
import contextlib
import linecache
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from toy_envs import patched

DEVICE = None  # until it is needed: a process that has another device starts threads, and ranks cannot be forked then


def begin():
    """Makes the device known to torch, once in a process."""
    global DEVICE
    if DEVICE is None:
        _setup_privateuseone_for_python_backend("second")
        DEVICE = torch.device("second")


class OnDevice(torch.Tensor):
    """A tensor that is on DEVICE; `inner` has its numbers."""

    @staticmethod
    def __new__(cls, inner):
        form = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        tensor = torch.Tensor._make_wrapper_subclass(cls, inner.size(), **form, device=DEVICE)
        tensor.inner = inner
        return tensor

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        raise AssertionError(f"{operation} outside of the simulation")

    def tolist(self):
        return self.cpu().tolist()

    def __reduce_ex__(self, protocol):  # for torch.save
        return self.cpu().__reduce_ex__(protocol)

    def __deepcopy__(self, memo):
        new = self.detach().clone().requires_grad_(self.requires_grad)
        return torch.nn.Parameter(new) if isinstance(self, torch.nn.Parameter) else new


class Simulation(TorchDispatchMode):
    """Runs each operation on DEVICE that has to be there. `reads` counts, by the line of the script, what was read."""

    def __init__(self, script):
        super().__init__()
        self.file, self.reads, self.generators = script.module.__file__, collections.Counter(), []

    def read(self):
        frame = sys._getframe()
        while frame.f_code.co_filename != self.file:
            frame = frame.f_back
        self.reads[linecache.getline(self.file, frame.f_lineno).strip()] += 1

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs, tensors = kwargs or {}, [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        here = [isinstance(x, OnDevice) for x in tensors]
        name, device = operation._schema.name.removeprefix("aten::"), kwargs.get("device")
        if any(here) and not all(here) and name != "copy_":
            raise RuntimeError(f"{name}: tensors of two devices")
        if (generator := kwargs.get("generator")) is not None:  # a copy, which its seed tells
            seeds = [each.initial_seed() for each in self.generators]
            if (generator.initial_seed() in seeds) != any(here):
                raise RuntimeError(f"{name}: a generator of another device")

        goes = any(here) if device is None else device.type == DEVICE.type
        shape_is_data = torch.Tag.dynamic_output_shape in operation.tags and name != "index"
        shape_is_data |= name == "index" and any(x.dtype == torch.bool for x in tensors[1:])
        is_data = shape_is_data or torch.Tag.data_dependent_output in operation.tags
        if any(here) and (is_data or not goes or (name == "copy_" and not here[0])):
            self.read()

        kwargs = kwargs if device is None else kwargs | {"device": torch.device("cpu")}
        inner = tree_map(lambda x: x.inner if isinstance(x, OnDevice) else x, (args, kwargs))
        result = operation(*inner[0], **inner[1])
        if name.endswith("_"):  # in place, of a tensor or of a list of them
            return args[0] if operation._schema.returns else None
        return tree_map(lambda x: OnDevice(x) if goes and isinstance(x, torch.Tensor) else x, result)


class Torch:
    """What a script knows as torch: the real one, where DEVICE is called "cuda"."""

    def __init__(self, simulation):
        self.simulation = simulation
        states = {"get_rng_state": lambda device: torch.get_rng_state(), "set_rng_state": None}
        self.cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 1, **states)

    def __getattr__(self, name):
        return getattr(torch, name)

    def device(self, name):
        return DEVICE if str(name).startswith("cuda") else torch.device(name)

    def Generator(self, device="cpu"):
        if torch.device(device).type == DEVICE.type:
            self.simulation.generators.append(torch.Generator())
            return self.simulation.generators[-1]
        return torch.Generator(device)

    def autocast(self, device_type, dtype=torch.bfloat16, enabled=True):
        if device_type != DEVICE.type or enabled:
            raise RuntimeError("autocast of another device, or one that is not simulated")
        return contextlib.nullcontext()

    def get_device_module(self, device):
        assert device.type == DEVICE.type
        return torch.cpu  # whose streams and events do nothing


def lstm(inputs, state, weights, bias, layers, dropout, training, bidirectional, batch_first):
    """That of torch in its parts, as its whole has no operation that every device knows."""
    (hidden, cell), (of_inputs, of_hidden, *biases), outputs = (part[0] for part in state), weights, []
    for step in inputs:
        gates = step @ of_inputs.T + hidden @ of_hidden.T + sum(biases)
        i, f, candidate, o = gates.chunk(4, dim=-1)
        cell = f.sigmoid() * cell + i.sigmoid() * candidate.tanh()
        hidden = o.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return torch.stack(outputs), hidden[None], cell[None]


@contextlib.contextmanager
def simulated(script):
    """The script runs on DEVICE, its threads too; yields the Simulation."""
    begin()
    simulation, patches = Simulation(script), []
    if hasattr(script.module, "ThreadPoolExecutor"):

        class Pool(ThreadPoolExecutor):
            def submit(self, work, *args):
                def on_device():
                    with simulation:
                        return work(*args)

                return super().submit(on_device)

        patches.append((script.module, "ThreadPoolExecutor", Pool))
    patches.append((script.module, "torch", Torch(simulation)))
    patches.append((torch.nn.modules.rnn, "_VF", SimpleNamespace(lstm=lstm)))
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.as_tensor(number, device=...) passes the simulation, too
    try:
        with patched(*patches), torch.autograd.set_multithreading_enabled(False), simulation:
            yield simulation
    finally:
        torch._C._set_only_lift_cpu_tensors(before)
