"""The lists of recipes: each turns a script into another library's PPO, in the rows of the table and in the weights."""

import json

import gymnasium as gym
import numpy as np
import pytest
import torch
from golden_data import load
from in_process import patched
from rounding import InFloat64
from script_table import ROOT

from conformance import explanation, measure
from conformance import recording as recorded
from conformance.adapters import ours
from conformance.adapters.proxy import Proxy
from recipes import lists

SCRIPTS = {"discrete": "ppo.py", "continuous": "ppo_continuous_action.py"}
LIBRARIES = {name: name.removeprefix("as-") for name in lists.names()}
CASES = [(name, kind) for name in LIBRARIES for kind in SCRIPTS]
# rsl_rl has continuous actions alone, and RLlib trains on more steps than the rollout has
RECORDED = [case for case in CASES if case != ("as-rsl_rl", "discrete") and case[0] != "as-rllib"]
# Rows in which a list falls short, as its first lines say
FALLS_SHORT = {
    ("as-rsl_rl", "core 4: by default the learning rate falls linearly to 0"),
    ("as-rllib", "core 6: each epoch shuffles anew and uses every step once"),
    ("as-rllib", "core 6: sizes that do not divide are refused"),
    ("as-rllib", "core 7: advantages are normalized within the minibatch"),
    ("as-rllib", "core 8: there is no penalty on the KL divergence"),
    ("as-rllib", "core 12: approximate KL: half the mean square of the log ratio"),
    ("as-rllib", "continuous 2: the log standard deviation is a parameter that starts at 0"),
}


def text_of(name, kind, without=None):
    """A script with a list, perhaps without one of its changes."""
    text = (ROOT / SCRIPTS[kind]).read_text()
    for change in lists.changes(name, text):
        if change != without:
            text = change.apply(text)
    return text


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A function from a text to the adapter of the script; its `module` is the script."""
    folder = tmp_path_factory.mktemp("lists")
    count = 0

    def make(text):
        nonlocal count
        count += 1
        file = folder / f"listed_{count}.py"
        file.write_text(text)
        return ours.load(file)

    return make


def cell(result, found):
    """What a row says: yes, or what else, without the sizes of minibatches, which depend on the kind of actions."""
    return result, "" if result == explanation.YES else found.split(" [")[0]


@pytest.mark.parametrize("name, kind", CASES)
def test_the_rows_are_those_of_the_library(name, kind, made):
    """Wherever both were measured; and each change is for a row that differs from the plain script's."""
    file = ROOT / f"conformance/results/{LIBRARIES[name]}.json"
    theirs = {f"{row['detail']}: {row['title']}": row for row in json.loads(file.read_text())["rows"]}
    compared = 0
    differing = set()
    for row in measure.measure(made(text_of(name, kind))):
        key = f"{row.detail}: {row.title}"
        if explanation.UNKNOWN in (row.result, theirs.get(key, {"result": explanation.UNKNOWN})["result"]):
            continue
        compared += 1
        expected = cell(theirs[key]["result"], theirs[key]["found"])
        if (name, key) not in FALLS_SHORT:
            assert cell(row.result, row.found) == expected, key
        if row.result == explanation.NO:
            differing.add(key)
    assert compared >= 19
    listed = {row for change in lists.changes(name, (ROOT / SCRIPTS[kind]).read_text()) for row in change.rows}
    assert listed == differing


# A lie planted in the script that a list makes: what stands there, what takes its place, and the row that it is in
LIES = {
    "as-cleanrl": ("- args.ent_coef * entropy", "+ args.ent_coef * entropy", "core 10: entropy bonus", "a penalty"),
    "as-sb3": (
        "args.gamma, args.gae_lambda)", "args.gamma, 1.0)", "core 5: generalized advantage estimation with lambda",
        "lambda 1",
    ),
    "as-skrl": (
        "in run.updates():", "in run.updates():\n        optimizer = Adam(agent)\n       ",
        "core 3: Adam's means and its count of steps go on in the next update", "they begin anew",
    ),
    "as-rllib": (
        "gradient * scale, args.learning_rate)", "gradient, args.learning_rate)",
        "core 11: the gradient is clipped by the norm of all parameters", "none",
    ),
    "as-rsl_rl": (
        "torch.max(-surrogate, -clipped_surrogate)", "-surrogate", "core 8: the ratio is clipped", "not clipped"
    ),
}  # fmt: skip
QUICK_LIES = [("as-sb3", "continuous"), ("as-skrl", "discrete")]


@pytest.mark.parametrize(
    "name, kind", [case if case in QUICK_LIES else pytest.param(*case, marks=pytest.mark.slow) for case in CASES]
)
def test_a_planted_lie_is_named_in_its_row_alone(name, kind, made):
    old, new, title, words = LIES[name]
    text = text_of(name, kind)
    assert text.count(old) == 1
    file = ROOT / f"conformance/results/{LIBRARIES[name]}.json"
    theirs = {f"{row['detail']}: {row['title']}": row for row in json.loads(file.read_text())["rows"]}
    differing = {}
    for row in measure.measure(made(text.replace(old, new))):
        key = f"{row.detail}: {row.title}"
        expected = theirs.get(key, {"result": explanation.UNKNOWN})
        if expected["result"] == explanation.UNKNOWN:  # the library was not measured, and the list changes nothing
            is_as_expected = row.result in (explanation.YES, explanation.UNKNOWN)
        else:
            is_as_expected = cell(row.result, row.found) == cell(expected["result"], expected["found"])
        if not is_as_expected and (name, key) not in FALLS_SHORT:
            differing[key] = row
    assert list(differing) == [title]
    assert differing[title].found == words


class Environments(gym.vector.VectorEnv):
    """The environments of the recordings."""

    def __init__(self, kind):
        self.script = recorded.make_script()
        self.t = 0
        self.num_envs = recorded.ENVS
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (recorded.INPUTS,))
        self.single_action_space = recorded.KIND_OF_ACTIONS[kind]

    def reset(self, **options):
        return self.script.obs[0].copy(), {}

    def step(self, actions):
        t = self.t
        self.t = t + 1
        terminated = self.script.terminated[t]
        truncated = self.script.truncated[t]
        infos = {"final_obs": np.empty(self.num_envs, dtype=object)}
        for n in np.flatnonzero(terminated | truncated):
            infos["final_obs"][n] = self.script.finals[t, n]
        return self.script.obs[t + 1].copy(), self.script.rewards[t], terminated.copy(), truncated.copy(), infos

    def close(self, **options):
        pass


def load_weights(agent, kind):
    """Gives an agent the weights with which the recordings begin, and returns its parameters by their names there."""
    parameters = {}
    for network in ("policy", "value"):
        layers = ours.layers_with_weights(getattr(agent, f"{network}_trunk")) + [getattr(agent, network)]
        for number, layer in enumerate(layers):
            parameters[f"{network} {number} weight"] = layer.weight
            parameters[f"{network} {number} bias"] = layer.bias
    weights = recorded.make_weights(kind)
    if hasattr(agent, "std"):
        parameters["logstd"] = agent.std
        weights["logstd"] = np.exp(weights["logstd"])
    elif kind == "continuous":
        parameters["logstd"] = agent.logstd
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.as_tensor(weights[name]).view_as(parameter))
    return parameters


def weights_after_updates(module, kind, data):
    """A script's weights after each update, with the library's actions and minibatches: float64 [updates, weights]."""
    actions = iter(torch.as_tensor(data["actions"]))
    epochs = iter(torch.as_tensor(data["rows"].astype(np.int64)).view(-1, recorded.STEPS * recorded.ENVS))
    parameters = {}
    found = []

    class Agent(module.Agent):
        def __init__(self, envs):
            super().__init__(envs)
            self.double()
            parameters.update(load_weights(self, kind))

    class Run(ours.Run):
        def updates(self):
            for update in range(1, self.num_updates + 1):
                yield update
                numbers = [recorded.sample(parameter.detach().numpy()) for parameter in parameters.values()]
                found.append(np.concatenate(numbers))

    def sample(policy, generator):
        action = next(actions)
        return action.squeeze(-1).long() if kind == "discrete" else action

    distribution = module.Categorical if kind == "discrete" else module.Normal
    patches = [
        (module, "np", Proxy(np, float32=np.float64)),  # the rewards of a rollout
        (module, "make_envs", lambda args, folder: Environments(kind)),
        (module, "Agent", Agent),
        (distribution, "sample", sample),
        # an epoch's; a script that draws one permutation for all takes the first epoch's
        (module.torch, "randperm", lambda *size, **options: next(epochs)),
    ]
    steps = recorded.UPDATES * recorded.STEPS * recorded.ENVS
    args = module.Args(
        num_envs=recorded.ENVS, num_steps=recorded.STEPS, total_timesteps=steps, cuda=False, **recorded.SETTINGS
    )
    with patched(*patches), InFloat64():
        module.train(args, Run(args, recorded.UPDATES))
    return np.array(found)


def difference(name, kind, made, without=None):
    """The largest difference between a script's weights after two updates and the library's."""
    data = load(f"as_{LIBRARIES[name]}_{kind}")
    if name == "as-rsl_rl":  # the same minibatches in each epoch
        order = data["rows"].reshape(recorded.UPDATES, recorded.SETTINGS["update_epochs"], -1)
        assert (order == order[:, :1]).all()
        data["rows"] = order if without and without.name == "without/core-6-once" else order[:, 0]
    found = weights_after_updates(made(text_of(name, kind, without)).module, kind, data)
    assert found.shape == data["weights"].shape
    return np.abs(found - data["weights"]).max()


# Of two computations in float64, relative to weights of size 1. A step of Adam divides a gradient by its size: where
# this is near epsilon, 1e-8 at the least, the rounding of a gradient, below 1e-14, counts 1e-6 times a step of 3e-3.
BOUND = 1e-8


@pytest.mark.parametrize("name, kind", RECORDED)
def test_two_updates_give_the_weights_of_the_library(name, kind, made):
    assert difference(name, kind, made) < BOUND


# Changes that do not change these updates: what is logged, sizes that do not divide, initial weights, the environments'
# wrappers, and a permutation that is given
SILENT = "core-12-k3", "core-6-uneven", "core-6-once", "core-2", "continuous-6-each"


@pytest.mark.slow
@pytest.mark.parametrize("name, kind", RECORDED)
def test_without_one_change_the_weights_differ(name, kind, made):
    """So the recording would show it."""
    for change in lists.changes(name, (ROOT / SCRIPTS[kind]).read_text()):
        if not change.name.endswith(SILENT):
            assert difference(name, kind, made, without=change) > 100 * BOUND, change.name
