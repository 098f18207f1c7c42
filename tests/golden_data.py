"""What ppo2 computed (golden/README.md), and how its variables map to the parameters of the scripts' agents."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import torch
from toy_envs import spaces

import ppo
import ppo_atari
import ppo_atari_lstm
import ppo_continuous_action
import ppo_multidiscrete
import ppo_procgen
import ppo_shared


def load(name):
    """The arrays of golden/`name`.npz, all read into a dict."""
    with np.load(Path(__file__).parent / "golden" / f"{name}.npz") as file:
        return dict(file)


# from the layout of a ppo2 variable to that of a torch parameter
def dense(array):
    return array.T


def bias(array):
    return array.reshape(-1)


def convolution(array):
    return array.transpose(3, 2, 0, 1)


def gates(array):
    """ppo2's order of the gates, input, forget, output, candidate, as torch's, whose last two are swapped."""
    i, f, o, u = np.split(array, 4)
    return np.concatenate([i, f, u, o])


def layer(theirs, ours, layout=dense, names=("w", "b")):
    """The rows of `Config.parameters` for a layer with weights and biases, and ppo2's names of these two."""
    weight, of_bias = names
    return {f"{theirs}/{weight}": (f"{ours}.weight", layout), f"{theirs}/{of_bias}": (f"{ours}.bias", bias)}


def log_softmax(pdflat):
    return torch.from_numpy(pdflat).log_softmax(-1).numpy()


class Config(NamedTuple):
    """A network of ppo2 beside the script that has it."""

    script: ModuleType
    observation_space: gym.Space
    action_space: gym.Space
    parameters: dict  # ppo2's name of a variable: (name in the agent's state_dict, layout function)
    obs: Callable = torch.from_numpy  # from the recorded observations to those that the agent takes
    pdflat: Callable = log_softmax  # from ppo2's distribution parameters to those that `policy_numbers` gives
    policy_numbers: Callable = lambda policy: policy.logits
    memory: bool = False  # the agent takes and gives a state, and its batches are sequences
    kinks: bool = False  # the network is not smooth: it has rectified units, and some pool the largest of several

    def agent(self, **options):
        """The script's agent with the weights that it starts with."""
        return self.script.Agent(spaces(self.observation_space, self.action_space), **options)

    def load(self, agent, arrays):
        """Gives the agent ppo2's weights, a dict by ppo2's names; every parameter of the agent must be among them."""
        state = {}
        for name, array in arrays.items():
            ours, layout = self.parameters[name]
            state[ours] = torch.from_numpy(np.ascontiguousarray(layout(array)))
        if self.memory:
            state["lstm.bias_hh_l0"] = torch.zeros_like(agent.lstm.bias_hh_l0)  # ppo2 has one bias
        agent.load_state_dict(state)

    def unload(self, tensors, shapes):
        """Tensors by the agent's names, as arrays by ppo2's names in ppo2's layout; `shapes` by ppo2's names."""
        arrays = {}
        for name, (ours, layout) in self.parameters.items():
            size = int(np.prod(shapes[name]))
            array = np.empty(size, np.float64)
            # layout() of the places of ppo2's entries says at which of them each entry of ours belongs
            places = layout(np.arange(size).reshape(shapes[name]))
            array[places] = tensors[ours].detach().cpu().numpy()
            arrays[name] = array.reshape(shapes[name])
        return arrays


def shapes(data):
    """The shapes of ppo2's variables by name."""
    pairs = zip(data["param_names"], data["param_shapes"], strict=True)
    return {str(name): tuple(int(number) for number in shape.split(",")) for name, shape in pairs}


def theta0(data):
    """The weights, by ppo2's names, at which a recorded batch was evaluated."""
    arrays = {}
    for i, (name, shape) in enumerate(shapes(data).items()):
        if i in data["big_param_index"]:
            scale = np.sqrt(2 / np.prod(shape[:-1]))
            arrays[name] = (np.random.RandomState(1000 + i).standard_normal(shape) * scale).astype(np.float32)
        else:
            arrays[name] = data[f"theta0/{name}"]
    return arrays


def pairs(data, kind, arrays):
    """(name, our entries, ppo2's, the largest of ppo2's) of each tensor of the recorded `kind`.

    `arrays` has ours by ppo2's names. The entries of a big tensor are those of which ppo2's were kept."""
    assert set(arrays) == set(shapes(data))
    for i, name in enumerate(shapes(data)):
        array = arrays[name]
        if i in data["big_param_index"]:
            kept = np.random.RandomState(7000 + i).randint(0, array.size, 4096)
            yield name, array.reshape(-1)[kept], data[f"{kind}_sample/{name}"], data[f"{kind}_sums/{name}"][2]
        else:
            expected = data[f"{kind}/{name}"]
            yield name, array, expected, np.abs(expected).max()


def assert_equal_tensors(data, kind, arrays, tolerance, relative=False, at_kinks=()):
    """Compares arrays by ppo2's names with the recorded `kind`: every entry, or of a big one what was kept of it.

    The tolerance is absolute, or relative to the largest entry of the tensor. `at_kinks` holds tensors of which one
    filter may differ by a hundredth of the largest entry.
    """
    for i, (name, array, expected, largest) in enumerate(pairs(data, kind, arrays)):
        atol = tolerance * largest if relative else tolerance
        if name in at_kinks:
            error = np.abs(array - expected).reshape(-1, array.shape[-1])  # a column is a filter
            assert (error > atol).any(axis=0).sum() <= 1 and error.max() < 0.01 * largest
            continue
        np.testing.assert_allclose(array, expected, rtol=0, atol=atol, err_msg=f"{kind}/{name}")
        if i in data["big_param_index"]:
            wide = arrays[name].astype(np.float64)
            sums = np.concatenate([wide.sum(0), wide.sum(1)])
            bound = atol * np.sqrt(max(wide.shape))  # of a sum of that many errors of either sign
            recorded_sums = data[f"{kind}_rowcol/{name}"]
            np.testing.assert_allclose(sums, recorded_sums, rtol=0, atol=bound, err_msg=f"{kind}/{name}")
            assert abs(np.abs(wide).max() - largest) <= atol


def distance(data, kind, arrays, origin=None):
    """The Euclidean distance of all our tensors from the recorded `kind`, as a share of ppo2's from the origin.

    `origin`: arrays by ppo2's names; without it, zeros."""
    error, length = 0.0, 0.0
    from_origin = pairs(data, kind, origin or {name: np.zeros(shape) for name, shape in shapes(data).items()})
    for (_, array, expected, _), (_, start, _, _) in zip(pairs(data, kind, arrays), from_origin, strict=True):
        error += np.square(array - expected, dtype=np.float64).sum()
        length += np.square(expected - start, dtype=np.float64).sum()
    return np.sqrt(error / length)


TRUNK = layer("pi/mlp_fc0", "trunk.0") | layer("pi/mlp_fc1", "trunk.2")
POLICY_TRUNK = layer("pi/mlp_fc0", "policy_trunk.0") | layer("pi/mlp_fc1", "policy_trunk.2")
VALUE_TRUNK = layer("vf/mlp_fc0", "value_trunk.0") | layer("vf/mlp_fc1", "value_trunk.2")
CNN = layer("pi/c1", "trunk.0", convolution) | layer("pi/c2", "trunk.2", convolution)
CNN |= layer("pi/c3", "trunk.4", convolution) | layer("pi/fc1", "trunk.7")
OF_TF = ("kernel", "bias")  # a layer's variables where ppo2 leaves their names to TensorFlow
IMPALA = layer(  # ppo2 flattens images as [height, width, channels], torch channels first
    "pi/layer_15", "trunk.14", lambda array: array.reshape(8, 8, 32, -1).transpose(3, 2, 0, 1).reshape(256, -1), OF_TF
)
for stage in range(3):  # each a convolution, the pooling, and two blocks of two convolutions
    for i, place in enumerate(("{0}", "{1}.0", "{1}.2", "{2}.0", "{2}.2")):
        ours = "trunk." + place.format(4 * stage, 4 * stage + 2, 4 * stage + 3)
        IMPALA |= layer(f"pi/layer_{5 * stage + i}", ours, convolution, OF_TF)
HEADS = layer("pi", "policy") | layer("vf", "value")
LSTM = {
    "pi/lstm/wx": ("lstm.weight_ih_l0", lambda array: gates(array.T)),
    "pi/lstm/wh": ("lstm.weight_hh_l0", lambda array: gates(array.T)),
    "pi/lstm/b": ("lstm.bias_ih_l0", gates),
}


def box(*shape):
    return gym.spaces.Box(-np.inf, np.inf, shape)


CONFIGS = {
    "mlp_copy_discrete": Config(ppo, box(6), gym.spaces.Discrete(3), POLICY_TRUNK | VALUE_TRUNK | HEADS),
    "mlp_shared_discrete": Config(ppo_shared, box(4), gym.spaces.Discrete(2), TRUNK | HEADS),
    "cnn": Config(
        ppo_atari, gym.spaces.Box(0, 255, (84, 84, 4), np.uint8), gym.spaces.Discrete(4), CNN | HEADS,
        kinks=True,
    ),
    "mlp_copy_box": Config(
        ppo_continuous_action, box(11), box(3),
        POLICY_TRUNK | VALUE_TRUNK | HEADS | {"pi/logstd": ("logstd", lambda array: array.reshape(1, -1))},
        pdflat=lambda pdflat: pdflat,
        policy_numbers=lambda policy: torch.cat([policy.mean, policy.logstd.expand_as(policy.mean)], dim=-1),
    ),
    "cnn_lstm": Config(
        ppo_atari_lstm, gym.spaces.Box(0, 255, (84, 84, 1), np.uint8), gym.spaces.Discrete(4), CNN | LSTM | HEADS,
        memory=True, kinks=True,
    ),
    "mlp_multidiscrete": Config(
        ppo_multidiscrete, box(7), gym.spaces.MultiDiscrete([3, 4, 2]), TRUNK | HEADS,
        pdflat=lambda x: np.concatenate([log_softmax(part) for part in np.split(x, (3, 7), axis=-1)], axis=-1),
        policy_numbers=lambda policy: torch.cat(policy.logits, dim=-1),
    ),
    "impala": Config(
        ppo_procgen, gym.spaces.Box(0, 255, (3, 64, 64), np.uint8), gym.spaces.Discrete(15), IMPALA | HEADS,
        obs=lambda obs: torch.from_numpy(np.ascontiguousarray(obs.transpose(0, 3, 1, 2))),
        kinks=True,
    ),
}  # fmt: skip
