"""Asks an adapter, and explains its answers: which combination of the known alternatives reproduces the numbers."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from conformance import atari, reference
from conformance.problems import Game, Refused, Settings, Stream, Update, make_world

TOLERANCE = 2e-5  # relative to the largest number of an answer: what float32 leaves of a few operations
APART = 100  # an explanation counts where each other one is this many tolerances away

LOSS = Settings()  # no gradient is clipped
# Each gradient is clipped, to a size at which epsilons differ.
STEP = Settings(learning_rate=0.3, max_grad_norm=1e-4, vf_coef=1e-4, update_epochs=10)
WHOLE = Settings(num_minibatches=1, update_epochs=1)
UNEVEN = Settings(num_minibatches=9, update_epochs=1)
UPDATES = 8  # of a run whose schedules are asked for

YES, NO, OTHER, UNKNOWN = "yes", "no", "other", "not measured"


@dataclass
class Row:
    """One detail of one implementation."""

    detail: str  # its mark in docs/details.md
    title: str
    result: str  # YES, NO, OTHER (nothing known reproduces the answer) or UNKNOWN
    found: str = ""  # what it is instead, or why it was not measured
    error: float | None = None  # of the combination that is named, relative to the largest number
    nearest: str = ""  # the nearest other alternative
    nearest_error: float | None = None

    def word(self):
        """The cell of a table."""
        if self.result == YES:
            return YES
        if self.result == NO:
            return f"no: {self.found}"
        return self.result


class BadAnswer(Exception):
    """What an adapter answered cannot be used; the message says why in a line."""


def relative_error(answer, candidate, rounding):
    """The largest difference between two dicts of arrays, relative to the size of the answer.

    `rounding` has, by the same names, by how much an answer may be wrong for lack of digits."""
    worst = 0.0
    for name, array in answer.items():
        difference = np.abs(array - candidate[name]) - rounding.get(name, 0.0)
        worst = max(worst, float((difference / size_of(name, array)).max()))
    return worst


def size_of(name, array):
    """What an error of an array is relative to: its largest number, or, in a table, that of the same row.

    The rows of a table are samples, and a small one must not hide behind a large one."""
    largest = np.abs(array).max()
    if largest == 0:
        return np.ones_like(array)
    if name not in ("policy", "value"):
        return np.full_like(array, largest)
    of_row = np.abs(array).reshape(len(array), -1).max(axis=1)
    return np.maximum(of_row, 0.1 * largest).reshape(-1, *[1] * (array.ndim - 1)) + np.zeros_like(array)


def total_error(answers, candidates, rounding=None):
    """The same over the steps of an update."""
    each = rounding or [{}] * len(answers)
    return max(relative_error(*three) for three in zip(answers, candidates, each, strict=True))


def first_difference(answers, candidates):
    """Words for the first number of an answer, in the order of its steps, that a candidate does not reproduce."""
    for number, (answer, candidate) in enumerate(zip(answers, candidates, strict=True), start=1):
        for name, array in answer.items():
            wrong = np.argwhere(np.abs(array - candidate[name]) > TOLERANCE * size_of(name, array))
            if len(wrong):
                place = tuple(int(i) for i in wrong[0])
                numbers = f"{float(array[place]):.6g}, and not {float(candidate[name][place]):.6g}"
                return f"step {number}, {name}{list(place)} is {numbers}"
    return ""


class Explanation:
    """All combinations of alternatives, with the errors with which they reproduce an answer."""

    def __init__(self, answers, combinations, predict, rounding=None):
        """answers: list of dicts of arrays, one for each step; `predict` makes such a list from a combination."""
        self.answers, self.combinations, self.predict = answers, combinations, predict
        self.errors = np.array([total_error(answers, predict(each), rounding) for each in combinations])
        self.best = combinations[int(self.errors.argmin())]
        self.error = float(self.errors.min())

    @property
    def reproduced(self):
        return self.error <= TOLERANCE

    def nearest_other(self, *names):
        """(combination, error) of the nearest one that differs from the best in one of the named choices."""
        other = [any(each[name] != self.best[name] for name in names) for each in self.combinations]
        errors = np.where(other, self.errors, np.inf)
        return self.combinations[int(errors.argmin())], float(errors.min())

    def failure(self):
        """Words for an answer that nothing reproduces."""
        text = ", ".join(f"{key}: {value}" for key, value in self.best.items())
        difference = first_difference(self.answers, self.predict(self.best))
        return f"nothing known reproduces it; the nearest ({text}) has an error of {self.error:.1e}: {difference}"

    def row(self, detail, title, *names, words=None, expected=None):
        """The row of a detail: yes if the named choices are the first ones, or those expected."""
        if not self.reproduced:
            return Row(detail, title, OTHER, self.failure(), self.error)
        other, distance = self.nearest_other(*names)
        if not math.isfinite(distance):
            return Row(detail, title, UNKNOWN, "there is no alternative to it here", self.error)
        if distance < APART * TOLERANCE:
            return Row(detail, title, UNKNOWN, "this problem does not tell the alternatives apart", self.error)
        found = tuple(self.best[name] for name in names)
        text = words(self.best) if words else ", ".join(map(str, found))
        nearest = words(other) if words else ", ".join(str(other[name]) for name in names)
        result = YES if found == expected else NO
        return Row(detail, title, result, text, self.error, nearest, distance)


def arrays_of(answer, shapes, what):
    """The arrays of a dict as float64; BadAnswer for a name that is missing, a wrong shape, or NaN."""
    if not isinstance(answer, dict):
        raise BadAnswer(f"{what} must be a dict, and not {type(answer).__name__}")
    checked = {}
    for name, shape in shapes.items():
        if name not in answer:
            raise BadAnswer(f'{what} has no "{name}"')
        array = np.asarray(answer[name], dtype=float)
        if array.shape != shape:
            raise BadAnswer(f'{what}: "{name}" has the shape {list(array.shape)}, and not {list(shape)}')
        if not np.isfinite(array).all():
            raise BadAnswer(f'{what}: "{name}" has NaN or inf')
        checked[name] = array
    return checked


def check_update(answer, world):
    """An Update with float64 arrays; BadAnswer where something is wrong with it."""
    if not isinstance(answer, Update):
        raise BadAnswer(f"update must return an Update, and not {type(answer).__name__}")
    if answer.problem is not None:
        return answer
    shapes = {"policy": world.policy.shape, "value": world.value.shape}
    if world.kind == "continuous" and answer.steps and "logstd" in answer.steps[0].before:
        shapes["logstd"] = world.logstd.shape
    if np.shape(answer.actions) != world.actions.shape:
        shapes = list(np.shape(answer.actions)), list(world.actions.shape)
        raise BadAnswer("update: actions have the shape {}, not {}".format(*shapes))
    if not answer.steps:
        raise BadAnswer("update took no step")
    steps = []
    for number, step in enumerate(answer.steps, start=1):
        rows = np.asarray(step.rows).reshape(-1)
        if len(rows) == 0 or rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= world.rewards.size:
            raise BadAnswer(f"update, step {number}: rows must be whole numbers from 0 to {world.rewards.size - 1}")
        parts = {}
        for name in ("before", "after", "gradient", "clipped"):
            given = getattr(step, name)
            parts[name] = None if given is None else arrays_of(given, shapes, f"update, step {number}, {name}")
        steps.append(dataclasses.replace(step, rows=rows, **parts))
    return dataclasses.replace(answer, steps=steps)


class Adapter:
    """An adapter's module, asked so that each error becomes one line and ends nothing else."""

    def __init__(self, module):
        self.module = module
        self.errors = {}

    def ask(self, name, *arguments):
        """The function's answer, or None; `errors[name]` then says why."""
        function = getattr(self.module, name, None)
        reason = getattr(self.module, "REASONS", {}).get(name, "the adapter does not answer it")
        if function is None:
            self.errors[name] = reason
            return None
        try:
            answer = function(*arguments)
        except Refused:
            raise
        except (Exception, SystemExit) as error:
            text = " ".join(str(error).split())
            self.errors[name] = f"the adapter failed: {type(error).__name__}: {text[:160]}"
            return None
        if answer is None:
            self.errors[name] = reason
        return answer

    def update(self, world, settings):
        """A checked Update, or None."""
        try:
            answer = self.ask("update", world, settings)
            return None if answer is None else check_update(answer, world)
        except BadAnswer as error:
            self.errors["update"] = str(error)
        except Refused as error:
            self.errors["update"] = f"it refuses: {error}"
        return None


def unknown(names, why):
    """Rows of what was not measured; `names` are (detail, title) pairs."""
    return [Row(detail, title, UNKNOWN, why) for detail, title in names]


# The initial weights

SQRT2 = math.sqrt(2)
WEIGHTS = {
    "hidden": ("core 2", "hidden layers: orthogonal weights, gain sqrt 2"),
    "policy": ("core 2", "policy head: orthogonal weights, gain 0.01"),
    "value": ("core 2", "value head: orthogonal weights, gain 1"),
    "biases": ("core 2", "biases are zero"),
    "separate": ("core 13", "policy and value: two networks"),
}


def describe_weights(weight):
    """(all words that fit, gain or None, error): how a matrix [out, in] was drawn; its error from an orthogonal one."""
    out, inputs = weight.shape
    gram = weight @ weight.T if out <= inputs else weight.T @ weight
    gain = math.sqrt(np.trace(gram) / len(gram))
    if gain == 0:
        return ["zero"], None, 1.0
    error = float(np.abs(gram - gain**2 * np.eye(len(gram))).max() / gain**2)
    # A single row is orthogonal to no other: only its length can tell.
    usual = any(abs(gain / each - 1) < 1e-4 for each in (0.01, 0.1, 1.0, SQRT2))
    if error < 1e-4 and (len(gram) > 1 or usual):
        return [f"orthogonal, gain {gain:.3g}"], gain, error
    deviation, largest = float(weight.std()), float(np.abs(weight).max())
    bounds = {
        "torch's default, uniform to 1/sqrt(inputs)": 1 / math.sqrt(inputs),
        "LeCun's uniform": math.sqrt(3 / inputs),
        "Glorot's uniform": math.sqrt(6 / (inputs + out)),
        "He's uniform": math.sqrt(6 / inputs),
    }
    deviations = {"LeCun's normal": 1 / math.sqrt(inputs), "Glorot's normal": math.sqrt(2 / (inputs + out))}
    found = []
    for name, bound in bounds.items():
        if 0.93 * bound < largest <= bound * (1 + 1e-6) and abs(deviation * math.sqrt(3) / bound - 1) < 0.12:
            found.append(name)
    for name, expected in deviations.items():
        if abs(deviation / expected - 1) < 0.08 and largest > 1.8 * deviation:
            found.append(name)
    return found or [f"other, with a standard deviation of {deviation:.2g}"], None, error


def layer_row(detail, title, matrices, expected):
    """The row of weight matrices that should be orthogonal with the gain `expected`."""
    described = [describe_weights(weight) for weight in matrices]
    common = [words for words in described[0][0] if all(words in each[0] for each in described)]
    words = common[0] if common else "; ".join(sorted({each[0][0] for each in described}))
    gains = [each[1] for each in described]
    errors = [each[2] if each[1] is None else max(each[2], abs(each[1] / expected - 1)) for each in described]
    right = all(gain is not None and abs(gain / expected - 1) < 1e-4 for gain in gains)
    return Row(detail, title, YES if right else NO, words, max(errors))


def check_layers(layers, what):
    """A list of (weight [out, in], bias [out] or None) as float64 arrays; BadAnswer where it is none."""
    checked = []
    for weight, bias in layers:
        weight = np.asarray(weight, dtype=float)
        bias = None if bias is None else np.asarray(bias, dtype=float)
        if weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[:1]):
            raise BadAnswer(f"initial_weights: a layer of {what} has the shapes {weight.shape} and {np.shape(bias)}")
        if not np.isfinite(weight).all() or (bias is not None and not np.isfinite(bias).all()):
            raise BadAnswer(f"initial_weights: a layer of {what} has NaN or inf")
        checked.append((weight, bias))
    return checked


def initial_weights(adapter, kind):
    """The checked answer for a kind of actions, or None."""
    answer = adapter.ask("initial_weights", 1, kind)
    if answer is None:
        return None
    try:
        layers = {name: check_layers(answer[name], name) for name in ("policy", "value")}
    except BadAnswer as error:
        adapter.errors["initial_weights"] = str(error)
        return None
    except (KeyError, TypeError, ValueError) as error:
        adapter.errors["initial_weights"] = f"initial_weights is not as the template says: {error!r}"
        return None
    logstd = answer.get("logstd")
    scale = {"logstd": None if logstd is None else np.asarray(logstd, dtype=float), "std": answer.get("std", False)}
    return layers | scale


def is_shared(layers):
    """Whether policy and value begin with the same layer."""
    one, other = layers["policy"][0][0], layers["value"][0][0]
    return one.shape == other.shape and np.array_equal(one, other)


def measure_weights(adapter, kind, shared):
    """The rows of the initial weights; `shared` says that the implementation's own choice is one network."""
    layers = initial_weights(adapter, kind)
    if layers is None:
        return unknown(WEIGHTS.values(), adapter.errors["initial_weights"])
    hidden = [weight for name in ("policy", "value") for weight, _ in layers[name][:-1]]
    rows = []
    if hidden:
        rows.append(layer_row(*WEIGHTS["hidden"], hidden, SQRT2))
    else:
        rows += unknown([WEIGHTS["hidden"]], "the networks have no hidden layer")
    rows.append(layer_row(*WEIGHTS["policy"], [layers["policy"][-1][0]], 0.01))
    rows.append(layer_row(*WEIGHTS["value"], [layers["value"][-1][0]], 1.0))
    biases = [bias for name in ("policy", "value") for _, bias in layers[name] if bias is not None]
    if biases:
        largest = max(float(np.abs(bias).max()) for bias in biases)
        rows.append(Row(*WEIGHTS["biases"], YES if largest == 0 else NO, f"up to {largest:.2g}", largest))
    else:
        rows += unknown([WEIGHTS["biases"]], "there are no biases")
    one = is_shared(layers)
    detail, title = WEIGHTS["separate"]
    if shared:
        title = "policy and value: two heads of one network"
    rows.append(Row(detail, title, YES if one == shared else NO, "one network" if one else "two networks", 0.0))
    return rows


# Advantages and returns

ROLLOUT = {
    "lambda": ("core 5", "generalized advantage estimation with lambda"),
    "form": ("core 5", "an advantage is the discounted sum of the deltas"),
    "returns": ("core 5", "returns are advantages + values"),
    "last": ("core 5", "the value after the last step is counted"),
    "limit": ("core 5", "a time limit counts as an end"),
    "cut": ("core 5", "no advantage reaches over a time limit"),
}


def predict_advantages(world, settings, names):
    """A function from a combination to the arrays with these names, for Explanation."""

    def predict(choice):
        found = reference.advantages(world, settings, choice)
        return [{name: found[name] for name in names}]

    return predict


def measure_advantages(adapter, kind):
    """The rows of the advantages and returns of a rollout."""
    world = make_world(kind, truncations=True)
    try:
        answer = adapter.ask("advantages", world, LOSS)
        if answer is None:
            return unknown(ROLLOUT.values(), adapter.errors["advantages"])
        world, settings = answer.get("problem", (world, LOSS))
        names = [name for name in ("advantages", "returns") if answer.get(name) is not None]
        if not names:
            raise BadAnswer('advantages has neither "advantages" nor "returns"')
        arrays = arrays_of(answer, {name: world.rewards.shape for name in names}, "advantages")
    except (BadAnswer, Refused) as error:
        return unknown(ROLLOUT.values(), str(error))
    found = Explanation([arrays], reference.choices(reference.ADVANTAGES), predict_advantages(world, settings, names))
    rows = []
    for name, (detail, title) in ROLLOUT.items():
        words = {"limit": lambda choice: choice["limit"], "lambda": lambda choice: f"lambda {choice['lambda']}"}
        expected = (reference.ADVANTAGES[name][0],)
        row = found.row(detail, title, name, words=words.get(name), expected=expected)
        if name == "limit" and row.result == NO:
            row.found = {"left out": "its step has no delta"}.get(row.found, f"bootstrapped from {row.found}")
        rows.append(row)
    return rows


# The loss and its gradient

LOSSES = {
    "scope": ("core 7", "advantages are normalized within the minibatch"),
    "std": ("core 7", "by the population's standard deviation (N)"),
    "ratio": ("core 8", "the ratio is clipped"),
    "penalty": ("core 8", "there is no penalty on the KL divergence"),
    "value clip": ("core 9", "the change of the value is clipped, the larger loss counts"),
    "error": ("core 10", "the value's error is squared"),
    "factor": ("core 10", "the value's factor is vf_coef / 2"),
    "entropy": ("core 10", "entropy bonus"),
}


OVER_MORE = "over the whole rollout, with a step behind each end"


def project(step, gradient):
    """The gradient of the weights from that of the tables."""
    return gradient if step.project is None else step.project(gradient)


def explain_losses(world, settings, answer):
    """Two Explanations, of the policy's gradient and of the value's; None where the adapter gave no gradient."""
    batch = reference.Batch(world, settings, answer)
    given = [step.gradient or step.clipped for step in answer.steps]
    if any(each is None for each in given):
        return None
    several = world.kind == "continuous" or len(world.nvec) > 1
    components = reference.POLICY["components"][: 2 if several else 1]
    scopes = reference.POLICY["scope"]
    if answer.added is not None:
        scopes = (*scopes, reference.WITH_ADDED)
    policy = Explanation(
        [{name: array for name, array in each.items() if not name.startswith("v")} for each in given],
        reference.choices(reference.POLICY, components=components, scope=scopes),
        lambda choice: [project(step, reference.policy_gradient(batch, step, choice)) for step in answer.steps],
    )
    value = Explanation(
        [{name: array for name, array in each.items() if name.startswith("v")} for each in given],
        reference.choices(reference.VALUE),
        lambda choice: [project(step, reference.value_gradient(batch, step, choice)) for step in answer.steps],
    )
    return policy, value


def loss_rows(policy, value):
    """The rows of LOSSES."""
    rows = []
    for name, (detail, title) in LOSSES.items():
        among, table = (policy, reference.POLICY) if name in reference.POLICY else (value, reference.VALUE)
        if name == "std" and among.reproduced and among.best["scope"] == "not normalized":
            rows.append(Row(detail, title, NO, "not normalized", among.error))
            continue
        row = among.row(detail, title, name, expected=(table[name][0],))
        if name == "scope" and row.result == NO:
            row.found = {"rollout": "over the whole rollout", reference.WITH_ADDED: OVER_MORE}.get(row.found, row.found)
        if name == "factor" and row.result == NO:
            row.found = f"vf_coef times {row.found}"
        rows.append(row)
    return rows


# The rows of minibatches

MINIBATCHES = {
    "order": ("core 6", "each epoch shuffles anew and uses every step once"),
    "uneven": ("core 6", "sizes that do not divide are refused"),
}


def is_rotated(epoch, order):
    """Whether the rows of an epoch are `order` from some place on, and then from its beginning to that place."""
    place = int(np.flatnonzero(order == epoch[0])[0])
    return np.array_equal(epoch, np.roll(order, -place))


def describe_order(steps, shape):
    """Words for the rows of the minibatches of an update of M steps of N environments; shape: (M, N)."""
    size = shape[0] * shape[1]
    by_environments = np.arange(size).reshape(shape).T.reshape(-1)
    rows = np.concatenate([step.rows for step in steps])
    if len(rows) % size:
        return f"{len(rows)} rows of {size} in {len(steps)} steps"
    epochs = rows.reshape(-1, size)
    if len(epochs) < LOSS.update_epochs:
        return f"{len(epochs)} epoch, and not {LOSS.update_epochs}"
    if (np.sort(epochs) != np.arange(size)).any():
        return "not every step once"
    if (epochs == np.arange(size)).all() or (epochs == by_environments).all():
        return "in order"
    if any(all(is_rotated(epoch, order) for epoch in epochs) for order in (np.arange(size), by_environments)):
        return "in order, from another step in each epoch"
    same_sets = all(
        np.array_equal(np.sort(one.rows), np.sort(other.rows))
        for one, other in zip(steps, steps[len(steps) // len(epochs) :], strict=False)
    )
    if len(epochs) > 1 and (epochs[0] == epochs[1:]).all():
        return "shuffled once"
    if len(epochs) > 1 and same_sets:
        return "the same minibatches in each epoch"
    return "shuffled anew"


def measure_minibatches(adapter, answer, world):
    """The rows of MINIBATCHES, of an update and one whose sizes do not divide."""
    order = describe_order(answer.steps, world.rewards.shape)
    rows = [Row(*MINIBATCHES["order"], YES if order == "shuffled anew" else NO, order, 0.0)]
    detail, title = MINIBATCHES["uneven"]
    try:
        uneven = adapter.ask("update", world, UNEVEN)
        if uneven is None:
            return rows + unknown([MINIBATCHES["uneven"]], adapter.errors["update"])
        sizes = [len(step.rows) for step in check_update(uneven, world).steps]
    except Refused as error:
        return rows + [Row(detail, title, YES, f"refused: {error}", 0.0)]
    except BadAnswer as error:
        return rows + unknown([MINIBATCHES["uneven"]], str(error))
    if sum(sizes) < world.rewards.size:
        found = "the rest is left out"
    elif sizes[-1] > sizes[0]:
        found = "the last minibatch is larger"
    elif sizes[-1] < sizes[0]:
        found = "the last minibatch is smaller"
    else:
        found = "the last minibatch is filled up"
    return rows + [Row(detail, title, NO, f"{found} {sizes}", 0.0)]


# Gradient clipping and Adam

STEPS = {
    "clip": ("core 11", "the gradient is clipped by the norm of all parameters"),
    "epsilon": ("core 3", "Adam's epsilon is 1e-5"),
    "place": ("core 3", "it is added before the bias correction"),
    "rest": ("core 3", "Adam's betas are 0.9 and 0.999, without weight decay"),
}


def predict_gradients(world, settings, answer, policy, value):
    """The gradients of all steps under a combination for the policy's loss and one for the value's."""
    batch = reference.Batch(world, settings, answer)
    found = []
    for step in answer.steps:
        tables = reference.policy_gradient(batch, step, policy) | reference.value_gradient(batch, step, value)
        found.append(project(step, tables))
    return found


def join(arrays):
    """The numbers of a dict of arrays in one row, in the order of the names."""
    return np.concatenate([np.asarray(arrays[name], float).reshape(-1) for name in sorted(arrays)])


def explain_steps(world, settings, answer, losses):
    """An Explanation of the clipped gradients, if there are some, and the weights; or words why there is none."""
    raw = [step.gradient for step in answer.steps]
    if any(each is None for each in raw):
        if losses is None or not all(each.reproduced for each in losses):
            return "the gradient before it is clipped is not known"
        raw = predict_gradients(world, settings, answer, losses[0].best, losses[1].best)
    weights = [step.weights or (step.before, step.after) for step in answer.steps]
    answers, rounding = [], []
    for step, (before, after) in zip(answer.steps, weights, strict=True):
        names = sorted(before)
        changes = {name: np.asarray(after[name], float) - before[name] for name in names}
        answers.append({"change of the weights": join(changes)})
        rounding.append({"change of the weights": np.spacing(np.abs(np.float32(join(before)))).astype(float)})
        if step.clipped is not None:
            answers[-1]["clipped gradient"] = join(step.clipped)
        if step.moments is not None:
            answers[-1]["moments"] = join(step.moments)

    def predict(choice, added):
        clipped = [reference.clip_gradient(each, settings.max_grad_norm, choice, added) for each in raw]
        befores = [before for before, _ in weights]
        steps = reference.adam_changes(clipped, befores, settings.learning_rate, choice)
        return [
            {"change of the weights": join(change), "clipped gradient": join(each), "moments": join(moments)}
            for change, moments, each in zip(*steps, clipped, strict=True)
        ]

    # torch adds 1e-6 to the norm, which shows where a gradient is small: a variant, and no detail of its own.
    combinations = reference.choices(reference.CLIP | reference.ADAM)
    variants = []
    for added in (0.0, 1e-6):
        variants.append(Explanation(answers, combinations, lambda choice, n=added: predict(choice, n), rounding))
    return min(variants, key=lambda each: each.error)


def step_rows(found):
    """The rows of STEPS, of an Explanation."""

    def rest(choice):
        text = f"betas {choice['betas'][0]:g} and {choice['betas'][1]:g}"
        if choice["decay"]:
            text += f", weight decay {choice['decay']:g}"
        return text if choice["correction"] else text + ", no bias correction"

    def epsilon(choice):
        return f"{choice['epsilon']:.0e}".replace("e-0", "e-")

    return [
        found.row(*STEPS["clip"], "gradient clip", expected=("all parameters",)),
        found.row(*STEPS["epsilon"], "epsilon", words=epsilon, expected=(1e-5,)),
        found.row(*STEPS["place"], "place", expected=("before the bias correction",)),
        found.row(*STEPS["rest"], "betas", "decay", "correction", words=rest, expected=((0.9, 0.999), 0.0, True)),
    ]


# What is logged

LOGGED = "core 12", "approximate KL: half the mean square of the log ratio"


def measure_divergence(adapter, kind):
    """The row of the approximate KL divergence, of an update of one step."""
    detail, title = LOGGED
    world = make_world(kind)
    answer = adapter.update(world, WHOLE)
    if answer is None:
        return unknown([LOGGED], adapter.errors["update"])
    given = answer.logged.get("approx_kl")
    if given is None:
        return unknown([LOGGED], "the adapter gives none")
    batch = reference.Batch(*(answer.problem or (world, WHOLE)), answer)
    step = answer.steps[0]
    known = reference.divergences(batch, step.rows, step.before["policy"][step.rows])
    errors = {name: abs(float(given) - number) / abs(number) for name, number in known.items()}
    first, second = sorted(errors, key=errors.get)[:2]
    if errors[first] > TOLERANCE:
        text = f"{float(given):.6g}; the nearest is {first}, {known[first]:.6g}"
        return [Row(detail, title, OTHER, text, errors[first], first, errors[first])]
    if errors[second] < APART * TOLERANCE:
        return unknown([LOGGED], "this problem does not tell the alternatives apart")
    right = first == "half the mean square of the log ratio"
    return [Row(detail, title, YES if right else NO, first, errors[first], second, errors[second])]


# Schedules

SCHEDULES = {
    "learning_rate": ("core 4", "by default the learning rate falls linearly to 0"),
    "clip_range": ("aux 1", "by default the clip range is constant"),
}


def measure_schedules(adapter):
    """The rows of the schedules of a run of UPDATES updates with the implementation's defaults."""
    answer = adapter.ask("schedules", UPDATES)
    if answer is None:
        return unknown(SCHEDULES.values(), adapter.errors["schedules"])
    rows = []
    updates = answer.get("updates", UPDATES)
    known = {
        "constant": np.ones(updates),
        "falls to 0, the last update has 1 / updates": 1 - np.arange(updates) / updates,
        "falls to 0, which the last update has": 1 - np.arange(updates) / (updates - 1),
        "falls to 0, the first update has 1 - 1 / updates": 1 - np.arange(1, updates + 1) / updates,
    }
    for name, (detail, title) in SCHEDULES.items():
        given = answer.get(name)
        if given is None:
            reasons = getattr(adapter.module, "REASONS", {})
            rows += unknown([(detail, title)], reasons.get(name, "the adapter gives none"))
            continue
        if isinstance(given, str):
            rows.append(Row(detail, title, NO, given, 0.0))
            continue
        given = np.asarray(given, dtype=float)
        if given.shape != (updates,) or not np.isfinite(given).all() or given[0] <= 0:
            rows += unknown([(detail, title)], f"schedules: {name} must be {updates} numbers above 0, not {given}")
            continue
        errors = {word: float(np.abs(given / given[0] - numbers / numbers[0]).max()) for word, numbers in known.items()}
        first, second = sorted(errors, key=errors.get)[:2]
        expected = "constant" if name == "clip_range" else "falls to 0, the last update has 1 / updates"
        if errors[first] > TOLERANCE:
            rows.append(Row(detail, title, OTHER, f"{np.round(given / given[0], 4).tolist()}", errors[first], first))
            continue
        result = YES if first == expected else NO
        rows.append(Row(detail, title, result, first, errors[first], second, errors[second]))
    return rows


# Continuous and multidiscrete actions

CONTINUOUS = {
    "mean": ("continuous 1", "a normal distribution: one output for each component"),
    "logstd": ("continuous 2", "the log standard deviation is a parameter that starts at 0"),
    "components": ("continuous 3", "log probabilities of components are summed"),
    "separate": ("continuous 4", "policy and value: two networks"),
    "clip": ("continuous 5", "the environment gets the clipped action"),
    "obs": ("continuous 6", "observations are normalized over all environments"),
    "obs clip": ("continuous 7", "normalized observations are clipped to [-10, 10]"),
    "reward": ("continuous 8", "rewards are divided by the deviation of the discounted return"),
    "reward clip": ("continuous 9", "scaled rewards are clipped to [-10, 10]"),
}
MULTIDISCRETE = "multidiscrete 1", "components are independent, their log probabilities are summed"


def measure_continuous_weights(adapter):
    """The rows of the initial weights of a policy with continuous actions."""
    names = [CONTINUOUS[name] for name in ("mean", "logstd", "separate")]
    layers = initial_weights(adapter, "continuous")
    if layers is None:
        return unknown(names, adapter.errors["initial_weights"])
    outputs = make_world("continuous").outputs
    given = layers["policy"][-1][0].shape[0]
    logstd = layers["logstd"]
    rows = []
    if logstd is not None or given in (outputs, 2 * outputs):
        rows.append(Row(*CONTINUOUS["mean"], YES, f"{given} outputs", 0.0))
        if given == 2 * outputs:
            text = "it is an output of the network"
            rows.append(Row(*CONTINUOUS["logstd"], NO, text, 0.0))
        elif logstd is None:
            rows.append(Row(*CONTINUOUS["logstd"], NO, "it is not trained", 0.0))
        elif layers["std"]:
            rows.append(Row(*CONTINUOUS["logstd"], NO, "the deviation itself is the parameter", 0.0))
        else:
            start = np.diag(logstd) if logstd.ndim == 2 and len(logstd) == logstd.shape[1] > 1 else logstd
            largest = float(np.abs(start).max())
            text = f"a parameter that starts at {float(start.reshape(-1)[0]):.3g}"
            rows.append(Row(*CONTINUOUS["logstd"], YES if largest == 0 else NO, text, largest))
    else:
        rows.append(Row(*CONTINUOUS["mean"], NO, f"{given} outputs for {outputs} components", 0.0))
        rows += unknown([CONTINUOUS["logstd"]], "the distribution is not normal")
    one = is_shared(layers)
    rows.append(Row(*CONTINUOUS["separate"], NO if one else YES, "one network" if one else "two networks", 0.0))
    return rows


def measure_components(adapter):
    """The row of the sum over components, of an update and of the shape of the log standard deviation."""
    detail, title = CONTINUOUS["components"]
    layers = initial_weights(adapter, "continuous")
    outputs = make_world("continuous").outputs
    if layers is not None and layers["logstd"] is not None and layers["logstd"].shape == (outputs, outputs):
        return [Row(detail, title, NO, "a full covariance", 0.0)]
    world = make_world("continuous")
    answer = adapter.update(world, LOSS)
    if answer is None:
        return unknown([(detail, title)], adapter.errors["update"])
    losses = explain_losses(*(answer.problem or (world, LOSS)), answer)
    if losses is None:
        return unknown([(detail, title)], "the adapter gives no gradient")
    return [losses[0].row(detail, title, "components", expected=("sum",))]


def measure_multidiscrete(adapter):
    """The row of multidiscrete actions."""
    world = make_world("multidiscrete")
    layers = initial_weights(adapter, "multidiscrete")
    if layers is not None:
        given = layers["policy"][-1][0].shape[0]
        if given == math.prod(world.nvec):
            return [Row(*MULTIDISCRETE, NO, "one choice among all combinations", 0.0)]
    answer = adapter.update(world, LOSS)
    if answer is None:
        return unknown([MULTIDISCRETE], adapter.errors["update"])
    losses = explain_losses(world, LOSS, answer)
    if losses is None:
        return unknown([MULTIDISCRETE], "the adapter gives no gradient")
    return [losses[0].row(*MULTIDISCRETE, "components", expected=("sum",))]


ACTION_LOW, ACTION_HIGH = np.float32([-1.5, -0.5]), np.float32([1.0, 2.5])
SAMPLES = np.float32([[0.5, 0.25], [-3.0, 4.0], [1.5, -0.75], [-1.25, 2.0], [0.9, -2.0]])


def measure_actions(adapter):
    """The row of the action that reaches the environment."""
    detail, title = CONTINUOUS["clip"]
    answer = adapter.ask("environment_actions", SAMPLES, ACTION_LOW, ACTION_HIGH)
    if answer is None:
        return unknown([(detail, title)], adapter.errors["environment_actions"])
    try:
        given = arrays_of({"actions": answer}, {"actions": SAMPLES.shape}, "environment_actions")
    except BadAnswer as error:
        return unknown([(detail, title)], str(error))
    middle, half = (ACTION_LOW + ACTION_HIGH) / 2, (ACTION_HIGH - ACTION_LOW) / 2
    known = {
        "clipped to the bounds": np.clip(SAMPLES, ACTION_LOW, ACTION_HIGH),
        "not clipped": SAMPLES,
        "tanh, scaled to the bounds": middle + half * np.tanh(SAMPLES),
        "tanh": np.tanh(SAMPLES),
        "clipped to [-1, 1]": np.clip(SAMPLES, -1, 1),
        "clipped to [-1, 1], scaled to the bounds": middle + half * np.clip(SAMPLES, -1, 1),
        "scaled to the bounds": middle + half * SAMPLES,
    }
    choices = [{"action": name} for name in known]
    found = Explanation([given], choices, lambda choice: [{"actions": known[choice["action"]]}])
    return [found.row(detail, title, "action", expected=("clipped to the bounds",))]


def make_stream():
    """200 steps of 3 unequal environments, for the normalization of observations and rewards."""
    rng = np.random.default_rng(11)
    T, N, D = 200, 3, 2
    shift = np.array([0.5, -20.0]) + np.arange(N)[:, None]
    obs = rng.normal(size=(T + 1, N, D)) * np.array([1.0, 5.0]) + shift
    finals = rng.normal(size=(T, N, D)) * np.array([3.0, 5.0]) + shift + 2
    rewards = rng.normal(size=(T, N)) * np.array([0.2, 1.0, 3.0]) + 0.5
    obs[[150, 180]] *= 40  # beyond 10 standard deviations of what came before
    rewards[[120, 170]] *= 200
    ends = rng.random((T, N)) < 0.05
    arrays = (array.astype(np.float32) for array in (obs, finals, rewards))
    return Stream(*arrays, ends, LOSS.gamma)


class Moments:
    """A running mean and variance, which begins with a small count, as gymnasium's and ppo2's."""

    def __init__(self, shape):
        self.mean, self.var, self.count = np.zeros(shape), np.ones(shape), 1e-4

    def update(self, batch):
        size = len(batch)
        delta, total = batch.mean(0) - self.mean, self.count + size
        second = self.var * self.count + batch.var(0) * size + delta**2 * self.count * size / total
        self.mean, self.var, self.count = self.mean + delta * size / total, second / total, total


def columns(stream, each):
    """The columns of environments that share statistics."""
    return [[n] for n in range(stream.rewards.shape[1])] if each else [list(range(stream.rewards.shape[1]))]


def normalize_observations(stream, each=False, finals=False):
    """Observations [T + 1, N, D] normalized with statistics of all environments, or of `each` one alone; with
    `finals`, they include the last observations of episodes."""
    found = np.zeros(stream.obs.shape)
    for some in columns(stream, each):
        moments = Moments(stream.obs.shape[2:])
        for t, obs in enumerate(stream.obs[:, some].astype(float)):
            ended = stream.ends[t - 1, some] if t > 0 else np.zeros(len(some), bool)
            if finals and ended.any():
                moments.update(stream.finals[t - 1, some].astype(float)[ended])
            moments.update(obs)
            found[t, some] = (obs - moments.mean) / np.sqrt(moments.var + 1e-8)
    return found


def scale_rewards(stream, each=False, centered=False, forget="behind", gamma=None):
    """Rewards [T, N] divided by the deviation of the running discounted return. An end sets the return to 0 `behind`
    its step, or drops what came `before` it."""
    found = np.zeros(stream.rewards.shape)
    gamma = stream.gamma if gamma is None else gamma
    for some in columns(stream, each):
        moments, total = Moments(()), np.zeros(len(some))
        for t, reward in enumerate(stream.rewards[:, some].astype(float)):
            end = stream.ends[t, some]
            total = total * gamma * (~end if forget == "before" else 1.0) + reward
            moments.update(total)
            shift = moments.mean if centered else 0.0
            found[t, some] = (reward - shift) / np.sqrt(moments.var + 1e-8)
            if forget == "behind":
                total = np.where(end, 0.0, total)
    return found


CLIPS = {"10": 10.0, "5": 5.0, "none": np.inf}


def measure_normalization(adapter):
    """The rows of the normalization of observations and rewards."""
    stream = make_stream()
    answer = adapter.ask("normalize", stream)
    if answer is None:
        names = "obs", "obs clip", "reward", "reward clip"
        return unknown([CONTINUOUS[name] for name in names], adapter.errors["normalize"])
    stream = answer.get("problem", stream)
    rewards = stream.rewards.astype(float)
    known = {
        "obs": {
            "over all environments": normalize_observations(stream),
            "over all, with last observations": normalize_observations(stream, finals=True),
            "for each environment": normalize_observations(stream, each=True),
            "for each, with last observations": normalize_observations(stream, each=True, finals=True),
            "not normalized": stream.obs.astype(float),
        },
        "reward": {
            "by the deviation of the return": scale_rewards(stream),
            "by that of each environment": scale_rewards(stream, each=True),
            "by that of each environment, an end drops what came before it": scale_rewards(
                stream, each=True, forget="before"
            ),
            "by that of each environment, with a discount of 0.99": scale_rewards(stream, each=True, gamma=0.99),
            "centered, too": scale_rewards(stream, centered=True),
            "not scaled": rewards,
        },
    }
    rows = []
    for key, name in (("obs", "observations"), ("reward", "rewards")):
        pair = [CONTINUOUS[key], CONTINUOUS[f"{key} clip"]]
        if answer.get(name) is None:
            rows += unknown(pair, "the adapter gives none")
            continue
        if isinstance(answer[name], str):
            rows += [Row(*pair[0], NO, answer[name], 0.0), Row(*pair[1], NO, answer[name], 0.0)]
            continue
        table = known[key]
        shape = next(iter(table.values())).shape
        try:
            given = arrays_of(answer, {name: shape}, "normalize")
        except BadAnswer as error:
            rows += unknown(pair, str(error))
            continue
        combinations = [{"how": how, "clip": clip} for how in table for clip in CLIPS]

        def predict(choice, name=name, table=table):
            limit = CLIPS[choice["clip"]]
            return [{name: np.clip(table[choice["how"]], -limit, limit)}]

        found = Explanation([given], combinations, predict)
        rows.append(found.row(*pair[0], "how", expected=(next(iter(table)),)))
        clip = found.row(*pair[1], "clip", expected=("10",))
        if clip.result == NO:
            clip.found = "not clipped" if clip.found == "none" else f"to {clip.found}"
        rows.append(clip)
    return rows


# Atari games

ATARI = {
    "noops": ("atari 1", "a game starts with 1 to 30 no-ops"),
    "skip": ("atari 2", "an action lasts 4 frames"),
    "total": ("atari 2", "the rewards of its frames are summed"),
    "pool": ("atari 2", "the observation is the maximum of the last two frames"),
    "lives": ("atari 3", "a lost life ends the episode, but the game goes on"),
    "fire": ("atari 4", "FIRE and then action 2 start a game"),
    "image": ("atari 5", "frames become gray, then 84 x 84 by area interpolation"),
    "size": ("atari 6", "a reward is replaced by its sign"),
    "stack": ("atari 7", "the newest 4 frames are stacked"),
    "first": ("atari 7", "black frames precede an episode's first one"),
}


def describe_image(choice):
    """Words for how a frame is reduced, without what is as in ppo2."""
    words = [choice["order"]]
    words += [choice[name] for name in ("gray", "resize") if choice[name] != atari.FRAMES[name][0]]
    return ", ".join(words)


def measure_atari(adapter):
    """The rows of what an environment makes of a scripted game."""
    game = Game()
    environment = adapter.ask("atari", game)
    if environment is None:
        return unknown(ATARI.values(), adapter.errors["atari"])
    try:
        decisions = atari.play(environment, game)
    except Exception as error:
        text = " ".join(str(error).split())
        return unknown(ATARI.values(), f"the adapter failed: {type(error).__name__}: {text[:160]}")

    def row(name, right, found):
        return Row(*ATARI[name], YES if right else NO, found, 0.0)

    inner = atari.inner(decisions)
    noops, right = atari.describe_noops(decisions)
    number = atari.frames_of_an_action(decisions)
    lives = atari.describe_lives(decisions)
    fire = atari.describe_fire(decisions)
    rows = [
        row("noops", right, noops),
        row("skip", number == 4, f"{number} frames" if number > 1 else "1 frame"),
        row("lives", lives == "a lost life ends the episode", lives),
        row("fire", fire == "FIRE, RIGHT", fire),
    ]
    rewards = Explanation(
        [{"rewards": np.array([decision.reward for decision in inner])}],
        reference.choices(atari.REWARDS),
        lambda choice: [{"rewards": np.array([atari.reward_of(decision, choice) for decision in inner])}],
    )
    rows.append(rewards.row(*ATARI["total"], "total", expected=("sum",)))
    rows.append(rewards.row(*ATARI["size"], "size", expected=("sign",)))
    try:
        some = inner[:6]
        images = Explanation(
            [{"frame": decision.obs[-1].astype(float)} for decision in some],
            reference.choices(atari.FRAMES),
            lambda choice: [{"frame": atari.newest_frame(decision, choice).astype(float)} for decision in some],
        )
        rows.append(images.row(*ATARI["pool"], "pool", expected=(atari.FRAMES["pool"][0],)))
        names = "order", "gray", "resize"
        expected = tuple(atari.FRAMES[name][0] for name in names)
        rows.append(images.row(*ATARI["image"], *names, words=describe_image, expected=expected))
    except ImportError as error:
        rows += unknown([ATARI["pool"], ATARI["image"]], str(error))
    frames = len(decisions[0].obs)
    if not atari.is_stack(decisions):
        rows.append(row("stack", False, f"{frames} frames, which do not follow each other"))
    else:
        rows.append(row("stack", frames == 4, f"{frames} frames" if frames > 1 else "1 frame"))
    if frames > 1:
        first = atari.describe_first_stack(decisions)
        rows.append(row("first", first == "black", first))
    else:
        rows += unknown([ATARI["first"]], "an observation is one frame")
    return rows


# All of them


def measure(module):
    """The rows of an adapter's module, in the order of docs/details.md."""
    adapter = Adapter(module)
    kinds = getattr(module, "KINDS", ("discrete", "multidiscrete", "continuous"))
    main = "discrete" if "discrete" in kinds else kinds[0]
    rows = measure_weights(adapter, main, getattr(module, "SHARED", False))
    rows += measure_advantages(adapter, main)
    rows += measure_updates(adapter, main)
    rows += measure_divergence(adapter, main)
    rows += measure_schedules(adapter)
    if "continuous" in kinds:
        rows += measure_continuous_weights(adapter) + measure_components(adapter)
        rows += measure_actions(adapter) + measure_normalization(adapter)
    if main == "continuous":  # continuous 4 says the same
        rows = [row for row in rows if row.detail != "core 13"]
    if "multidiscrete" in kinds:
        rows += measure_multidiscrete(adapter)
    if getattr(module, "atari", None) is not None:
        rows += measure_atari(adapter)
    return sorted(rows, key=lambda row: order(row.detail))


def measure_updates(adapter, kind):
    """The rows of the loss, the minibatches and the steps."""
    world = make_world(kind)
    answer = adapter.update(world, LOSS)
    if answer is None:
        return unknown([*LOSSES.values(), *MINIBATCHES.values(), *STEPS.values()], adapter.errors["update"])
    losses = explain_losses(*(answer.problem or (world, LOSS)), answer)
    if losses is None:
        rows = unknown(LOSSES.values(), "the adapter gives no gradient")
    else:
        rows = loss_rows(*losses)
    if not getattr(adapter.module, "LOOP", True):
        return rows + unknown([*MINIBATCHES.values(), *STEPS.values()], "the user writes the loop")
    rows += measure_minibatches(adapter, answer, world)
    answer = adapter.update(world, STEP)
    if answer is None:
        return rows + unknown(STEPS.values(), adapter.errors["update"])
    found = explain_steps(*(answer.problem or (world, STEP)), answer, losses)
    rows += unknown(STEPS.values(), found) if isinstance(found, str) else step_rows(found)
    if hasattr(adapter.module, "trace"):
        rows = [row for row in rows if row.title not in (LOSSES["scope"][1], MINIBATCHES["order"][1])]
        rows += measure_trace(adapter, losses, found)
    return rows


def measure_trace(adapter, losses, steps):
    """The rows of minibatches and of the scope of the normalization, of an update of which only weights are known.

    losses, steps: Explanations of other updates, which say how a gradient becomes a step."""
    answer = adapter.ask("trace")
    world, settings = answer.problem
    order = describe_order(answer.steps, world.rewards.shape)
    rows = [Row(*MINIBATCHES["order"], YES if order == "shuffled anew" else NO, order, 0.0)]
    known = dataclasses.replace(answer, steps=[step for step in answer.steps if step.weights is not None])
    fixed = {name: (value,) for name, value in losses[0].best.items() if name not in ("scope", "std")}
    changes, rounding = [], []
    for step in known.steps:
        before, after = step.weights
        changes.append({name: after[name] - before[name] for name in before})
        rounding.append({name: np.spacing(np.abs(np.float32(array))) for name, array in before.items()})

    def predict(choice):
        raw = predict_gradients(world, settings, known, choice, losses[1].best)
        clipped = [reference.clip_gradient(each, settings.max_grad_norm, steps.best) for each in raw]
        befores = [step.weights[0] for step in known.steps]
        return reference.adam_changes(clipped, befores, settings.learning_rate, steps.best)[0]

    found = Explanation(changes, reference.choices(reference.POLICY, **fixed), predict, rounding)
    return [*rows, found.row(*LOSSES["scope"], "scope", expected=("minibatch",))]


GROUPS = "core", "atari", "continuous", "lstm", "multidiscrete", "aux"


def order(detail):
    """Where a detail stands in docs/details.md."""
    group, number = detail.split()
    return GROUPS.index(group), int(number)
