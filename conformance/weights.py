"""The rows of the initial weights: how they were drawn, and whether policy and value share a network."""

import math

import numpy as np

from conformance.answers import BadAnswer
from conformance.explanation import NO, YES, Row, unknown
from conformance.problems import make_world

SQRT2 = math.sqrt(2)

WEIGHTS = {
    "hidden": ("core 2", "hidden layers: orthogonal weights, gain sqrt 2"),
    "policy": ("core 2", "policy head: orthogonal weights, gain 0.01"),
    "value": ("core 2", "value head: orthogonal weights, gain 1"),
    "biases": ("core 2", "biases are zero"),
    "separate": ("core 13", "policy and value: two networks"),
}
CONTINUOUS_WEIGHTS = {
    "mean": ("continuous 1", "a normal distribution: one output for each component"),
    "logstd": ("continuous 2", "the log standard deviation is a parameter that starts at 0"),
    "separate": ("continuous 4", "policy and value: two networks"),
}


def describe_weights(weight):
    """How a matrix [out, in] was drawn: (all words that fit, its gain or None, its error from an orthogonal one)."""
    out, inputs = weight.shape
    # An orthogonal matrix times its transpose is gain**2 on the diagonal, and 0 elsewhere.
    gram = weight @ weight.T if out <= inputs else weight.T @ weight
    gain = math.sqrt(np.trace(gram) / len(gram))
    if gain == 0:
        return ["zero"], None, 1.0
    error = float(np.abs(gram - gain**2 * np.eye(len(gram))).max() / gain**2)
    # A single row is orthogonal to no other: only its length can tell.
    has_usual_gain = any(abs(gain / usual - 1) < 1e-4 for usual in (0.01, 0.1, 1.0, SQRT2))
    if error < 1e-4 and (len(gram) > 1 or has_usual_gain):
        return [f"orthogonal, gain {gain:.3g}"], gain, error
    deviation = float(weight.std())
    largest = float(np.abs(weight).max())
    bounds = {
        "torch's default, uniform to 1/sqrt(inputs)": 1 / math.sqrt(inputs),
        "LeCun's uniform": math.sqrt(3 / inputs),
        "Glorot's uniform": math.sqrt(6 / (inputs + out)),
        "He's uniform": math.sqrt(6 / inputs),
    }
    deviations = {"LeCun's normal": 1 / math.sqrt(inputs), "Glorot's normal": math.sqrt(2 / (inputs + out))}
    words = []
    for name, bound in bounds.items():
        # Uniform numbers come near their bound, and their deviation is the bound / sqrt 3.
        if 0.93 * bound < largest <= bound * (1 + 1e-6) and abs(deviation * math.sqrt(3) / bound - 1) < 0.12:
            words.append(name)
    for name, expected in deviations.items():
        # The largest of uniform numbers would be at most sqrt 3 = 1.73 deviations.
        if abs(deviation / expected - 1) < 0.08 and largest > 1.8 * deviation:
            words.append(name)
    if not words:
        words = [f"other, with a standard deviation of {deviation:.2g}"]
    return words, None, error


def layer_row(detail, title, matrices, expected_gain):
    """The row of weight matrices that should be orthogonal with a gain."""
    candidates = []  # for each matrix, all words that fit
    errors = []
    is_right = True
    for weight in matrices:
        words, gain, error = describe_weights(weight)
        candidates.append(words)
        if gain is not None:
            error = max(error, abs(gain / expected_gain - 1))
        errors.append(error)
        if gain is None or abs(gain / expected_gain - 1) >= 1e-4:
            is_right = False
    fits_all = [word for word in candidates[0] if all(word in words for words in candidates)]
    if fits_all:
        found = fits_all[0]
    else:
        found = "; ".join(sorted({words[0] for words in candidates}))
    return Row(detail, title, YES if is_right else NO, found, max(errors))


def check_layers(layers, name):
    """A list of (weight [out, in], bias [out] or None) as float64 arrays; BadAnswer where it is none."""
    checked = []
    for weight, bias in layers:
        weight = np.asarray(weight, dtype=float)
        if bias is not None:
            bias = np.asarray(bias, dtype=float)
        if weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[:1]):
            raise BadAnswer(f"initial_weights: a layer of {name} has the shapes {weight.shape} and {np.shape(bias)}")
        if not np.isfinite(weight).all() or (bias is not None and not np.isfinite(bias).all()):
            raise BadAnswer(f"initial_weights: a layer of {name} has NaN or inf")
        checked.append((weight, bias))
    return checked


def initial_weights(adapter, kind):
    """The checked answer for a kind of actions, as conformance/adapter.py describes it, or None."""
    answer = adapter.ask("initial_weights", 1, kind)
    if answer is None:
        return None
    try:
        checked = {name: check_layers(answer[name], name) for name in ("policy", "value")}
    except BadAnswer as error:
        adapter.errors["initial_weights"] = str(error)
        return None
    except (KeyError, TypeError, ValueError) as error:
        adapter.errors["initial_weights"] = f"initial_weights is not as the template says: {error!r}"
        return None
    logstd = answer.get("logstd")
    checked["logstd"] = None if logstd is None else np.asarray(logstd, dtype=float)
    checked["std"] = answer.get("std", False)
    return checked


def is_shared(weights):
    """Whether policy and value begin with the same layer."""
    first_of_policy, _ = weights["policy"][0]
    first_of_value, _ = weights["value"][0]
    return first_of_policy.shape == first_of_value.shape and np.array_equal(first_of_policy, first_of_value)


def measure_weights(adapter, kind):
    """The rows of the initial weights."""
    weights = initial_weights(adapter, kind)
    if weights is None:
        return unknown(WEIGHTS.values(), adapter.errors["initial_weights"])
    hidden = [weight for name in ("policy", "value") for weight, _ in weights[name][:-1]]
    policy_head, _ = weights["policy"][-1]
    value_head, _ = weights["value"][-1]
    rows = []
    if hidden:
        rows.append(layer_row(*WEIGHTS["hidden"], hidden, SQRT2))
    else:
        rows += unknown([WEIGHTS["hidden"]], "the networks have no hidden layer")
    rows.append(layer_row(*WEIGHTS["policy"], [policy_head], 0.01))
    rows.append(layer_row(*WEIGHTS["value"], [value_head], 1.0))
    biases = [bias for name in ("policy", "value") for _, bias in weights[name] if bias is not None]
    if biases:
        largest = max(float(np.abs(bias).max()) for bias in biases)
        rows.append(Row(*WEIGHTS["biases"], YES if largest == 0 else NO, f"up to {largest:.2g}", largest))
    else:
        rows += unknown([WEIGHTS["biases"]], "there are no biases")
    rows.append(separate_row(adapter, weights))
    return rows


def separate_row(adapter, weights):
    """The row of core 13: two networks, or one if that is the implementation's own choice; ppo2 has both."""
    detail, title = WEIGHTS["separate"]
    should_be_shared = adapter.option("SHARED", False)
    if should_be_shared:
        title = "policy and value: two heads of one network"
    shared = is_shared(weights)
    found = "one network" if shared else "two networks"
    return Row(detail, title, YES if shared == should_be_shared else NO, found, 0.0)


def measure_continuous_weights(adapter):
    """The rows of the initial weights of a policy with continuous actions."""
    weights = initial_weights(adapter, "continuous")
    if weights is None:
        return unknown(CONTINUOUS_WEIGHTS.values(), adapter.errors["initial_weights"])
    components = make_world("continuous").num_outputs
    last_weight, _ = weights["policy"][-1]
    outputs = len(last_weight)
    if weights["logstd"] is None and outputs not in (components, 2 * components):
        rows = [Row(*CONTINUOUS_WEIGHTS["mean"], NO, f"{outputs} outputs for {components} components", 0.0)]
        rows += unknown([CONTINUOUS_WEIGHTS["logstd"]], "the distribution is not normal")
    else:
        rows = [Row(*CONTINUOUS_WEIGHTS["mean"], YES, f"{outputs} outputs", 0.0)]
        rows.append(logstd_row(weights, is_output=outputs == 2 * components))
    shared = is_shared(weights)
    found = "one network" if shared else "two networks"
    rows.append(Row(*CONTINUOUS_WEIGHTS["separate"], NO if shared else YES, found, 0.0))
    return rows


def logstd_row(weights, is_output):
    """The row of continuous 2; `is_output` says that the policy has two outputs for each component."""
    logstd = weights["logstd"]
    if is_output:
        return Row(*CONTINUOUS_WEIGHTS["logstd"], NO, "it is an output of the network", 0.0)
    if logstd is None:
        return Row(*CONTINUOUS_WEIGHTS["logstd"], NO, "it is not trained", 0.0)
    if weights["std"]:
        return Row(*CONTINUOUS_WEIGHTS["logstd"], NO, "the deviation itself is the parameter", 0.0)
    if logstd.ndim == 2 and len(logstd) == logstd.shape[1] > 1:
        logstd = np.diag(logstd)  # of a full covariance
    largest = float(np.abs(logstd).max())
    found = f"a parameter that starts at {float(logstd.reshape(-1)[0]):.3g}"
    return Row(*CONTINUOUS_WEIGHTS["logstd"], YES if largest == 0 else NO, found, largest)
