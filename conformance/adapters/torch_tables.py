"""Tables in place of torch networks, which record every gradient step that is taken on them."""

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from conformance.problems import MEMORY, Call, Step, memory_input


class Table(nn.Module):
    """A network whose output for an observation is the row of a table; an observation begins with the row's number.

    Without gradients, as while a rollout is collected, it answers from the old table, and otherwise from the weights
    that are trained.
    """

    def __init__(self, recorder, name, old, start):
        super().__init__()
        self.recorder = [recorder]  # a list hides the recorder from torch
        self.name = name
        self.rows = len(start)
        self.register_buffer("old", torch.as_tensor(old).clone(), persistent=False)
        self.weight = nn.Parameter(torch.as_tensor(start).clone())
        self.weight.register_hook(self.record)

    def forward(self, obs):
        """float32 [..., A] of observations [..., D]."""
        rows = obs[..., 0].round().long()
        if not torch.is_grad_enabled() or self.recorder[0].collecting:
            return self.old[rows]
        self.recorder[0].see(self.name, rows.flatten())
        return self.weight[rows]

    def record(self, gradient):
        self.recorder[0].add(self.name, gradient)


class Recorder:
    """The tables of a world, and the gradient steps that an implementation takes on them.

    `collecting` may be set where an implementation collects its rollout with gradients enabled. `steps` has a
    problems.Step for each gradient step, and `rates` the learning rate of each step of an optimizer. Use it in a
    `with`: it watches torch's optimizers.
    """

    def __init__(self, world):
        self.world = world
        self.collecting = False
        self.trains_logstd = world.kind == "continuous"
        self.policy = Table(self, "policy", world.old_policy, world.policy)
        self.value = Table(self, "value", world.old_value[:, None], world.value[:, None])
        self.logstd = nn.Parameter(torch.as_tensor(world.logstd).clone())
        self.logstd.register_hook(lambda gradient: self.add("logstd", gradient))
        self.steps = []
        self.rows = None
        self.pending = {}
        self.others = {}
        self.clipped = None
        self.rates = []

    def __enter__(self):
        self.hook = register_optimizer_step_pre_hook(lambda optimizer, *_: self.see_optimizer(optimizer))
        return self

    def __exit__(self, *error):
        self.hook.remove()
        self.finish()

    def parameters(self):
        """{name: parameter}, those that the world has."""
        found = {"policy": self.policy.weight, "value": self.value.weight}
        if self.trains_logstd:
            found["logstd"] = self.logstd
        return found

    def tables(self):
        """{name: array}, as problems.Step has them."""
        return {name: self.as_array(name, parameter) for name, parameter in self.parameters().items()}

    def as_array(self, name, tensor):
        shape = getattr(self.world, name).shape
        return tensor.detach().cpu().numpy().astype(float).reshape(shape).copy()

    def see(self, name, rows):
        """Called when a table answers with gradients enabled: the step before is over."""
        self.finish()
        if name == "policy" or self.rows is None:
            self.rows = rows.detach().cpu().numpy().copy()

    def add(self, name, gradient):
        """Called when the gradient of a parameter is known."""
        if not self.pending:
            self.before = self.tables()
        array = self.as_array(name, gradient)
        self.pending[name] = self.pending.get(name, 0.0) + array

    def watch(self, name, parameter):
        """Notes the gradients of a parameter that is in no table, such as that of another head."""

        def note(gradient):
            self.others[name] = self.others.get(name, 0.0) + gradient.detach().cpu().numpy().astype(float)

        parameter.register_hook(note)

    def see_optimizer(self, optimizer):
        """Called before an optimizer steps: by now the gradients are clipped."""
        self.rates.append(float(optimizer.param_groups[0]["lr"]))
        if not self.pending:
            return
        clipped = {}
        for name, parameter in self.parameters().items():
            if parameter.grad is not None:
                clipped[name] = self.as_array(name, parameter.grad)
        self.clipped = (self.clipped or {}) | clipped

    def finish(self):
        """Ends the step that is pending."""
        if not self.pending:
            return
        zeros = {name: np.zeros_like(array) for name, array in self.before.items()}
        clipped = None if self.clipped is None else zeros | self.clipped
        gradient = zeros | self.pending
        others = self.others or None
        self.steps.append(Step(self.rows, self.before, self.tables(), gradient, clipped, others=others))
        self.pending = {}
        self.others = {}
        self.clipped = None


class Memory(nn.Module):
    """In place of nn.LSTM or nn.GRU: problems.MEMORY, whose output has a row number in each unit.

    An observation begins with the number of its row. A state is a tensor [1, B, units], or for an LSTM two of them, of
    which the second is kept as it is; all units have the same number. `calls` has the problems.Call of each call."""

    input_size = 1
    num_layers = 1

    def __init__(self, units):
        super().__init__()
        self.hidden_size = units
        self.calls = []

    def forward(self, observations, state):
        """(the numbers of the rows, float32 [T, B, units]; the final state) of observations [T, B, D]."""
        hidden, *rest = state if isinstance(state, tuple) else [state]
        numbers = observations[..., 0].round()
        factor = MEMORY["update" if torch.is_grad_enabled() else "rollout"]
        states = []
        for step in numbers:
            states.append(hidden[0, :, 0].detach().numpy().copy())
            hidden = factor * hidden + torch.as_tensor(memory_input(step.numpy())).float()[None, :, None]
        call = Call(torch.is_grad_enabled(), numbers.long().numpy(), np.stack(states))
        self.calls.append(call)
        outputs = numbers[..., None].expand(*numbers.shape, self.hidden_size)
        return outputs, (hidden, *rest) if rest else hidden


def recurrent_weights(module):
    """The weights of an nn.LSTM or nn.GRU, as conformance/adapter.py describes them."""
    biases = [module.bias_ih_l0, module.bias_hh_l0]
    return {
        "input": module.weight_ih_l0.detach().numpy(),
        "recurrent": module.weight_hh_l0.detach().numpy(),
        "biases": [bias.detach().numpy() for bias in biases],
        "trained": sum(bias.requires_grad for bias in biases),
    }


def describe_image_network(outputs):
    """How images go through an implementation's own network, as conformance/adapter.py describes it, but for "stored".

    outputs: a function without arguments that computes the policy's outputs and the values, two tensors."""
    calls = []  # (layer, input) in their order

    def see(module, inputs, output):
        if isinstance(module, nn.Conv2d | nn.Linear):
            calls.append((module, inputs[0].detach()))

    hook = nn.modules.module.register_module_forward_hook(see)
    try:
        policy, values = outputs()
    finally:
        hook.remove()
    _, first_input = calls[0]
    layers_once = dict.fromkeys(layer for layer, _ in calls)  # both outputs may have gone through them
    of_policy = [layer for layer in layers_once if depends_on(policy, layer)]
    *hidden, _ = of_policy  # without the head
    return {
        "input": first_input.numpy(),
        "layers": [describe_layer(layer) for layer in hidden],
        "shared": depends_on(values, of_policy[0]),
    }


def depends_on(outputs, layer):
    """Whether the gradient of outputs reaches the weights of a layer."""
    (gradient,) = torch.autograd.grad(outputs.sum(), layer.weight, retain_graph=True, allow_unused=True)
    return gradient is not None and bool(gradient.any())


def describe_layer(layer):
    """Words such as "32 of 8 x 8 / 4" for a convolution, and "512" for a linear layer."""
    if isinstance(layer, nn.Linear):
        return str(layer.out_features)
    height, width = layer.kernel_size
    return f"{layer.out_channels} of {height} x {width} / {layer.stride[0]}"


def layers(*modules):
    """The linear layers of modules, in their order, as initial_weights gives them."""
    found = []
    for module in modules:
        for part in module.modules():
            if isinstance(part, nn.Linear):
                weight = part.weight.detach().numpy().copy()
                found.append((weight, None if part.bias is None else part.bias.detach().numpy().copy()))
    return found
