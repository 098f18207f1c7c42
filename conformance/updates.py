"""The rows of the update: the loss, the minibatches, gradient clipping, Adam, and the KL divergence that is logged."""

import dataclasses
import functools
import math

import numpy as np

from conformance import reference
from conformance.answers import BadAnswer, check_update
from conformance.explanation import APART, NO, OTHER, TOLERANCE, UNKNOWN, YES, Explanation, Row, unknown
from conformance.problems import Refused, Settings, later_step, later_world, make_near_world, make_world
from conformance.weights import initial_weights

# The settings of the updates that are asked for
LOSS = Settings()  # no gradient is clipped
# Minibatches are as large as the rollout
LARGE = Settings(num_minibatches=1)
# Each gradient is clipped, to a size at which epsilons differ.
STEP = Settings(learning_rate=0.3, max_grad_norm=1e-4, vf_coef=1e-4, update_epochs=10)
WHOLE = Settings(num_minibatches=1, update_epochs=1)
UNEVEN = Settings(num_minibatches=9, update_epochs=1)

# Other clip ranges than that of LOSS, which are tried where nothing reproduces an update
CLIP_RANGES = [number / 100 for number in range(2, 51) if number != 20]
# The alternatives of the two clips that have a range
WITH_RANGE = {"ratio": ("clipped",), "value clip": ("the larger loss", "the clipped loss alone")}

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
MINIBATCHES = {
    "order": ("core 6", "each epoch shuffles anew and uses every step once"),
    "uneven": ("core 6", "sizes that do not divide are refused"),
}
STEPS = {
    "clip": ("core 11", "the gradient is clipped by the norm of all parameters"),
    "epsilon": ("core 3", "Adam's epsilon is 1e-5"),
    "place": ("core 3", "it is added before the bias correction"),
    "rest": ("core 3", "Adam's betas are 0.9 and 0.999, without weight decay"),
    "carried": ("core 3", "Adam's means and its count of steps go on in the next update"),
}
WHOLE_ROLLOUT = "the whole rollout in each step"
DIVERGENCE = "core 12", "approximate KL: half the mean square of the log ratio"
COMPONENTS = "continuous 3", "log probabilities of components are summed"
MULTIDISCRETE = "multidiscrete 1", "components are independent, their log probabilities are summed"

# Words of rows for a scope of the normalization
SCOPES = {
    "rollout": "over the whole rollout",
    reference.WITH_ADDED: "over the whole rollout, with a step behind each end",
}


def problem_of(answer, world, settings):
    """(world, settings) that an answer is for: those that the adapter chose itself, or those that it was asked."""
    if answer.problem is not None:
        return answer.problem
    return world, settings


# The loss


def gradient_of_weights(step, gradient):
    """The gradient of the weights of networks from that of the tables; the latter itself where there are tables."""
    if step.project is None:
        return gradient
    return step.project(gradient)


def explain_losses(world, settings, answer, known=None):
    """Two Explanations, of the policy's gradient and of the value's; None where the adapter gave no gradient.

    known: a combination for the policy and one for the value, if no others are to be tried."""
    batch = reference.Batch(world, settings, answer)
    policy_gradients = []
    value_gradients = []
    for step in answer.steps:
        gradient = step.gradient or step.clipped  # with LOSS, clipping changes nothing
        if gradient is None:
            return None
        policy_gradients.append({name: array for name, array in gradient.items() if not name.startswith("v")})
        value_gradients.append({name: array for name, array in gradient.items() if name.startswith("v")})

    def predict_policy(choice):
        return [gradient_of_weights(step, reference.policy_gradient(batch, step, choice)) for step in answer.steps]

    def predict_value(choice):
        return [gradient_of_weights(step, reference.value_gradient(batch, step, choice)) for step in answer.steps]

    components = reference.POLICY["components"]
    entropy = reference.POLICY["entropy"]
    if world.kind != "continuous" and len(world.nvec) < 2:
        components = components[:1]  # of one component, the sum is the mean
        entropy = entropy[:-1]
    scopes = reference.POLICY["scope"]
    if answer.added is not None:
        scopes = (*scopes, reference.WITH_ADDED)
    policy_choices = reference.choices(reference.POLICY, components=components, entropy=entropy, scope=scopes)
    value_choices = reference.choices(reference.VALUE)
    if known is not None:
        policy_choices, value_choices = ([choice] for choice in known)
    policy = Explanation(policy_gradients, policy_choices, predict_policy)
    value = Explanation(value_gradients, value_choices, predict_value)
    if known is None:
        policy = with_another_range(policy, "ratio", batch)
        value = with_another_range(value, "value clip", batch)
    return policy, value


def with_another_range(explanation, name, batch):
    """An Explanation by another clip range, if only that reproduces the answer; `ranges` has those that do.

    name: the choice of the clip. batch: that of the explanation's predictions."""
    explanation.ranges = []
    if explanation.reproduced:
        return explanation
    choices = [choice for choice in explanation.combinations if choice[name] in WITH_RANGE[name]]
    settings = batch.settings
    best = explanation
    ranges = []
    for clip_coef in CLIP_RANGES:
        batch.settings = dataclasses.replace(settings, clip_coef=clip_coef)
        other = Explanation(explanation.answers, choices, explanation.predict)
        if other.reproduced:
            ranges.append(clip_coef)
            best = other
    batch.settings = settings
    best.ranges = ranges
    return best


def check_clip_ranges(adapter, kind, losses, rows):
    """Changes rows of LOSSES where a large minibatch, with much near the clip range, follows another combination.

    losses: the two Explanations of `rows`."""
    if not all(loss.reproduced and not loss.ranges for loss in losses):
        return
    world = make_near_world(kind)
    known = [loss.best for loss in losses]
    answer = adapter.update(world, LARGE)
    if answer is None or answer.problem is not None:
        return
    if all(loss.reproduced for loss in explain_losses(world, LARGE, answer, known)):
        return
    large = explain_losses(world, LARGE, answer)
    small = None
    if not all(loss.reproduced for loss in large):
        answer = adapter.update(world, LOSS)
        small = answer and explain_losses(world, LOSS, answer, known)
    for number, name in enumerate(("ratio", "value clip")):
        explanation = large[number]
        is_of_size = explanation.reproduced or (small is not None and small[number].reproduced)
        if explanation.ranges or not is_of_size:
            [row] = [row for row in rows if (row.detail, row.title) == LOSSES[name]]
            if row.result != UNKNOWN:
                row.result = OTHER
                row.found = f"not where much is near the clip range of {LOSS.clip_coef:g}: {explanation.failure()}"
                row.error = explanation.error
        else:
            choices = reference.POLICY if name == "ratio" else reference.VALUE
            titles = [LOSSES[choice] for choice in choices if choice in LOSSES]
            others = [row for row in loss_rows(*large) if (row.detail, row.title) in titles]
            mark_differences(rows, others, f"in a minibatch of {world.rewards.size}")


def mark_differences(rows, others, where):
    """Changes rows where others of the same titles say something else; `where` says what these are of."""
    of_title = {(row.detail, row.title): row for row in others}
    for row in rows:
        other = of_title.get((row.detail, row.title))
        if other is None or UNKNOWN in (row.result, other.result) or row.result == OTHER:
            continue
        if (other.result, other.found) != (row.result, row.found):
            found = "as in ppo2" if other.result == YES else other.found
            row.found = f"{row.found}, but {where} {found}"
            row.result = OTHER if other.result == OTHER else NO


def check_second_update(adapter, world, settings, rows):
    """Changes the rows of LOSSES, and that of the order, where the second of two updates does something else."""
    answers = adapter.updates(world, settings, 2)
    if answers is None:
        return
    factor = adapter.second_of_schedule("clip_range") or 1.0  # by default it may fall
    settings = dataclasses.replace(settings, clip_coef=settings.clip_coef * factor)
    first, second = answers
    second = dataclasses.replace(second, steps=[later_step(step, world) for step in second.steps])
    losses = explain_losses(later_world(world, second.steps[0]), settings, second)
    if losses is not None:
        mark_differences(rows, loss_rows(*losses), "in the second update")
    if adapter.option("LOOP", True):
        order = order_row(second, world)
        of_first = [step.rows.tolist() for step in first.steps]
        if order.found.startswith("shuffled") and of_first == [step.rows.tolist() for step in second.steps]:
            order = dataclasses.replace(order, result=NO, found="the permutations of the first")
        mark_differences(rows, [order], "in the second update")


def loss_rows(policy, value):
    """The rows of LOSSES, of the two Explanations."""
    rows = []
    for name, (detail, title) in LOSSES.items():
        if name in reference.POLICY:
            explanation = policy
            expected = reference.POLICY[name][0]
        else:
            explanation = value
            expected = reference.VALUE[name][0]
        if name == "std" and explanation.reproduced and explanation.best["scope"] == "not normalized":
            rows.append(Row(detail, title, NO, "not normalized", explanation.error))
            continue
        if name in WITH_RANGE and explanation.ranges:
            limits = f"{min(explanation.ranges):g} to {max(explanation.ranges):g}"
            found = f"{explanation.best[name]}, with a range of {limits} in place of {LOSS.clip_coef:g}"
            rows.append(Row(detail, title, NO, found, explanation.error))
            continue
        row = explanation.row(detail, title, name, expected=(expected,))
        if row.result == OTHER:
            group = reference.POLICY if name in reference.POLICY else reference.VALUE
            details = dict.fromkeys(LOSSES[each][0] for each in group if each in LOSSES)
            row.found = row.found.replace(";", f", so at least one of {', '.join(details)} differs;", 1)
        if name == "scope" and row.result == NO:
            row.found = SCOPES.get(row.found, row.found)
        if name == "factor" and row.result == NO:
            row.found = f"vf_coef times {row.found}"
        rows.append(row)
    return rows


# The minibatches


def is_rotated(epoch, order):
    """Whether the rows of an epoch are `order` from some place on, and then from its beginning to that place."""
    place = int(np.flatnonzero(order == epoch[0])[0])
    return np.array_equal(epoch, np.roll(order, -place))


def describe_order(steps, shape):
    """Words for the rows of the minibatches of an update of M steps of N environments; shape: (M, N)."""
    size = shape[0] * shape[1]
    rows = np.concatenate([step.rows for step in steps])
    if len(rows) % size:
        return f"{len(rows)} rows of {size} in {len(steps)} steps"
    epochs = rows.reshape(-1, size)
    if len(epochs) < LOSS.update_epochs:
        return f"{len(epochs)} epoch, and not {LOSS.update_epochs}"
    if (np.sort(epochs) != np.arange(size)).any():
        return "not every step once"
    if len(steps) == len(epochs):
        return WHOLE_ROLLOUT
    by_steps = np.arange(size)
    by_environments = by_steps.reshape(shape).T.reshape(-1)
    for order in (by_steps, by_environments):
        if (epochs == order).all():
            return "in order"
    for order in (by_steps, by_environments):
        if all(is_rotated(epoch, order) for epoch in epochs):
            return "in order, from another step in each epoch"
    if (epochs[1:] == epochs[0]).all():
        return "shuffled once"
    steps_of_an_epoch = len(steps) // len(epochs)
    following = steps[steps_of_an_epoch:]  # the step at the same place of the next epoch
    if all(same_rows(one, other) for one, other in zip(steps, following, strict=False)):
        return "the same minibatches in each epoch"
    return "shuffled anew"


def same_rows(one, other):
    """Whether two steps have the same rows in any order."""
    return np.array_equal(np.sort(one.rows), np.sort(other.rows))


def order_row(answer, world):
    """The row of the order in which an update uses the steps of its rollout."""
    order = describe_order(answer.steps, world.rewards.shape)
    return Row(*MINIBATCHES["order"], YES if order == "shuffled anew" else NO, order, 0.0)


def uneven_row(adapter, world):
    """The row of an update whose number of minibatches does not divide the rollout."""
    detail, title = MINIBATCHES["uneven"]
    try:
        answer = adapter.ask_or_refuse("update", world, UNEVEN)
        if answer is None:
            return Row(detail, title, UNKNOWN, adapter.errors["update"])
        sizes = [len(step.rows) for step in check_update(answer, world).steps]
    except Refused as error:
        return Row(detail, title, YES, f"refused: {error}", 0.0)
    except BadAnswer as error:
        return Row(detail, title, UNKNOWN, str(error))
    if len(sizes) == 1:
        return Row(detail, title, NO, WHOLE_ROLLOUT, 0.0)
    if sum(sizes) < world.rewards.size:
        found = "the rest is left out"
    elif sizes[-1] > sizes[0]:
        found = "the last minibatch is larger"
    elif sizes[-1] < sizes[0]:
        found = "the last minibatch is smaller"
    elif sum(sizes) > world.rewards.size:
        found = "the last minibatch is filled up"
    else:
        found = f"{len(sizes)} minibatches, and not {UNEVEN.num_minibatches}:"
    return Row(detail, title, NO, f"{found} {sizes}", 0.0)


# Gradient clipping and Adam


def predict_gradients(world, settings, answer, policy_choice, value_choice):
    """The gradients of all steps under a combination for the policy's loss and one for the value's."""
    batch = reference.Batch(world, settings, answer)
    gradients = []
    for step in answer.steps:
        tables = reference.policy_gradient(batch, step, policy_choice)
        tables |= reference.value_gradient(batch, step, value_choice)
        gradients.append(gradient_of_weights(step, tables))
    return gradients


def join(arrays):
    """The numbers of a dict of arrays in one row, float64 [total size], in the order of the names."""
    return np.concatenate([np.asarray(arrays[name], float).reshape(-1) for name in sorted(arrays)])


def clip_tables(step, gradient, settings, choice, added=0.0):
    """The gradient of a step's tables after the clip, which counts the gradients of other weights, too."""
    others = {f"other {name}": array for name, array in (step.others or {}).items()}
    clipped = reference.clip_gradient(gradient | others, settings.max_grad_norm, choice, added)
    return {name: clipped[name] for name in gradient}


def known_of_steps(steps):
    """What is known of steps, by how much it may be wrong, and the weights before each: three lists of dicts."""
    answers = []
    roundings = []
    all_weights = []
    for step in steps:
        before, after = step.weights or (step.before, step.after)
        before = {name: np.asarray(array, float) for name, array in before.items()}
        known = {"change of the weights": join(after) - join(before)}
        if step.clipped is not None:
            known["clipped gradient"] = join(step.clipped)
        if step.moments is not None:
            known["moments"] = join(step.moments)
        answers.append(known)
        # A weight is a float32 number, and so its change is known only up to the distance of two such numbers.
        roundings.append({"change of the weights": np.spacing(np.abs(np.float32(join(before)))).astype(float)})
        all_weights.append(before)
    return answers, roundings, all_weights


def explain_steps(world, settings, answer, losses):
    """An Explanation of the changes of the weights, and of what else is known: clipped gradients, Adam's means.

    losses: the Explanations of explain_losses, or None.

    Raises BadAnswer if the gradients before the clip are not known."""
    gradients = [step.gradient for step in answer.steps]
    if any(gradient is None for gradient in gradients):
        if losses is None or not all(loss.reproduced for loss in losses):
            raise BadAnswer("the gradient before it is clipped is not known")
        policy, value = losses
        gradients = predict_gradients(world, settings, answer, policy.best, value.best)
    answers, roundings, all_weights = known_of_steps(answer.steps)

    joined_weights = [{"all": join(weights)} for weights in all_weights]

    @functools.cache
    def joined_gradients(how, added):
        """The clipped gradients of all steps, each in one row."""
        steps = zip(answer.steps, gradients, strict=True)
        choice = {"gradient clip": how}
        return [{"all": join(clip_tables(step, gradient, settings, choice, added))} for step, gradient in steps]

    def predict(choice, added):
        clipped = joined_gradients(choice["gradient clip"], added)
        changes, moments = reference.adam_changes(clipped, joined_weights, settings.learning_rate, choice)
        predictions = []
        for number in range(len(clipped)):
            prediction = {
                "change of the weights": changes[number]["all"],
                "clipped gradient": clipped[number]["all"],
                "moments": join(moments[number]),
            }
            predictions.append(prediction)
        return predictions

    # torch adds 1e-6 to the norm, which shows where a gradient is small: a variant, and no detail of its own.
    combinations = reference.choices(reference.CLIP | reference.ADAM)
    exact = Explanation(answers, combinations, lambda choice: predict(choice, 0.0), roundings)
    of_torch = Explanation(answers, combinations, lambda choice: predict(choice, 1e-6), roundings)
    exact.added = 0.0
    of_torch.added = 1e-6
    return exact if exact.error <= of_torch.error else of_torch


def carried_row(adapter, world, settings, steps):
    """The row of what Adam has of the first update when the second begins.

    world, settings: the question that the adapter answers for one update.
    steps: the Explanation of explain_steps, by which one update takes its steps.

    Notes as adapter.second_rate how large the rate of the second is, relative to that of the first."""
    row = STEPS["carried"]
    if not steps.reproduced:
        return Row(*row, UNKNOWN, "nothing known reproduces the first update")
    answers = adapter.updates(world, settings, 2)
    if answers is None:
        return Row(*row, UNKNOWN, adapter.errors["updates"])
    first, second = answers
    both = [*first.steps, *second.steps]
    if any(step.gradient is None for step in both):
        return Row(*row, UNKNOWN, "the gradient before it is clipped is not known")
    known, roundings, all_weights = known_of_steps(both)
    known = [{"change of the weights": each["change of the weights"]} for each in known]
    clipped = [clip_tables(step, step.gradient, settings, steps.best, steps.added) for step in both]
    rates = {}

    def predict(choice):
        predicted, _ = reference.adam_changes(
            clipped, all_weights, settings.learning_rate, steps.best | choice, second=len(first.steps)
        )
        predicted = [join(each) for each in predicted]
        # The rate of the second update is the one that fits best: the schedule has a row of its own.
        later = np.concatenate(predicted[len(first.steps) :])
        measured = np.concatenate([each["change of the weights"] for each in known[len(first.steps) :]])
        rates[choice["carried"]] = rate = float(later @ measured / max(later @ later, 1e-30))
        factors = [1.0] * len(first.steps) + [rate] * len(second.steps)
        return [{"change of the weights": factor * each} for factor, each in zip(factors, predicted, strict=True)]

    explanation = Explanation(known, reference.choices(reference.CARRIED), predict, roundings)
    if explanation.reproduced:
        adapter.second_rate = rates[explanation.best["carried"]]
    return explanation.row(*row, "carried", expected=(reference.CARRIED["carried"][0],))


def describe_adam(choice):
    """Words for Adam's betas, weight decay and bias correction."""
    beta1, beta2 = choice["betas"]
    words = f"betas {beta1:g} and {beta2:g}"
    if choice["decay"]:
        words += f", weight decay {choice['decay']:g}"
    if not choice["correction"]:
        words += ", no bias correction"
    return words


def describe_epsilon(choice):
    """Such as 1e-5."""
    return f"{choice['epsilon']:.0e}".replace("e-0", "e-")


def step_rows(explanation):
    """The rows of STEPS, of the Explanation of explain_steps."""
    adam = "betas", "decay", "correction"
    return [
        explanation.row(*STEPS["clip"], "gradient clip", expected=("all parameters",)),
        explanation.row(*STEPS["epsilon"], "epsilon", words=describe_epsilon, expected=(1e-5,)),
        explanation.row(*STEPS["place"], "place", expected=("before the bias correction",)),
        explanation.row(*STEPS["rest"], *adam, words=describe_adam, expected=((0.9, 0.999), 0.0, True)),
    ]


# All of an update


def measure_updates(adapter, kind, other_kinds=()):
    """The rows of the loss, the minibatches and the steps, for a kind of actions.

    Where another kind has something else, the row says so."""
    rows = rows_of_updates(adapter, kind)
    compared = [*LOSSES.values(), *STEPS.values()]
    for other_kind in other_kinds:
        others = [row for row in rows_of_updates(adapter, other_kind) if (row.detail, row.title) in compared]
        mark_differences(rows, others, f"with {other_kind} actions")
    return rows


def rows_of_updates(adapter, kind):
    """The rows of the loss, the minibatches and the steps, for one kind of actions."""
    world = make_world(kind)
    answer = adapter.update(world, LOSS)
    if answer is None:
        details = [*LOSSES.values(), *MINIBATCHES.values(), *STEPS.values()]
        return unknown(details, adapter.errors["update"])
    answered_world, settings = problem_of(answer, world, LOSS)
    losses = explain_losses(answered_world, settings, answer)
    if losses is None:
        rows = unknown(LOSSES.values(), "the adapter gives no gradient")
    else:
        rows = loss_rows(*losses)
        check_clip_ranges(adapter, kind, losses, rows)
    if not adapter.option("LOOP", True):
        return rows + unknown([*MINIBATCHES.values(), *STEPS.values()], "the user writes the loop")
    rows.append(order_row(answer, world))
    check_second_update(adapter, answered_world, settings, rows)
    rows.append(uneven_row(adapter, world))
    answer = adapter.update(world, STEP)
    if answer is None:
        return rows + unknown(STEPS.values(), adapter.errors["update"])
    answered_world, settings = problem_of(answer, world, STEP)
    try:
        steps = explain_steps(answered_world, settings, answer, losses)
    except BadAnswer as error:
        return rows + unknown(STEPS.values(), str(error))
    rows += step_rows(steps)
    rows.append(carried_row(adapter, answered_world, settings, steps))
    if adapter.has("trace"):
        replaced = {LOSSES["scope"], MINIBATCHES["order"]}
        rows = [row for row in rows if (row.detail, row.title) not in replaced]
        rows += measure_trace(adapter, losses, steps)
    return rows


def measure_trace(adapter, losses, step_explanation):
    """The rows of the order of the steps and of the scope of the normalization, for the adapter's trace().

    Of this update only weights are known, and no gradients.
    losses, step_explanation: Explanations of other updates: what the gradients are, and how they become steps."""
    answer = adapter.ask("trace")
    world, settings = answer.problem
    rows = [order_row(answer, world)]
    policy, value = losses
    fixed = {name: (best,) for name, best in policy.best.items() if name not in ("scope", "std")}
    known = dataclasses.replace(answer, steps=[step for step in answer.steps if step.weights is not None])
    changes = []
    roundings = []
    all_weights = []  # before each step
    for step in known.steps:
        before, after = step.weights
        changes.append({name: after[name] - before[name] for name in before})
        roundings.append({name: np.spacing(np.abs(np.float32(array))) for name, array in before.items()})
        all_weights.append(before)

    def predict(choice):
        gradients = predict_gradients(world, settings, known, choice, value.best)
        best = step_explanation.best
        clipped = [reference.clip_gradient(each, settings.max_grad_norm, best) for each in gradients]
        predicted, _ = reference.adam_changes(clipped, all_weights, settings.learning_rate, best)
        return predicted

    explanation = Explanation(changes, reference.choices(reference.POLICY, **fixed), predict, roundings)
    rows.append(explanation.row(*LOSSES["scope"], "scope", expected=("minibatch",)))
    return rows


# What is logged


def measure_divergence(adapter, kind):
    """The row of the approximate KL divergence, of an update of one step."""
    detail, title = DIVERGENCE
    world = make_world(kind)
    answer = adapter.update(world, WHOLE)
    if answer is None:
        return unknown([DIVERGENCE], adapter.errors["update"])
    logged = answer.logged.get("approx_kl")
    if logged is None:
        return unknown([DIVERGENCE], "the adapter gives none")
    answered_world, settings = problem_of(answer, world, WHOLE)
    batch = reference.Batch(answered_world, settings, answer)
    step = answer.steps[0]
    estimates = reference.divergences(batch, step.rows, step.before["policy"][step.rows])
    errors = {name: abs(float(logged) - estimate) / abs(estimate) for name, estimate in estimates.items()}
    first, second = sorted(errors, key=errors.get)[:2]
    if errors[first] > TOLERANCE:
        found = f"{float(logged):.6g}; the nearest is {first}, {estimates[first]:.6g}"
        return [Row(detail, title, OTHER, found, errors[first], first, errors[first])]
    if errors[second] < APART * TOLERANCE:
        return unknown([DIVERGENCE], "this problem does not tell the alternatives apart")
    result = YES if first == "half the mean square of the log ratio" else NO
    return [Row(detail, title, result, first, errors[first], second, errors[second])]


# Actions of several components


def components_row(adapter, kind, detail, title):
    """The row of the sum over the components of an action."""
    world = make_world(kind)
    answer = adapter.update(world, LOSS)
    if answer is None:
        return unknown([(detail, title)], adapter.errors["update"])
    answered_world, settings = problem_of(answer, world, LOSS)
    losses = explain_losses(answered_world, settings, answer)
    if losses is None:
        return unknown([(detail, title)], "the adapter gives no gradient")
    policy, _ = losses
    return [policy.row(detail, title, "components", expected=("sum",))]


def measure_continuous_components(adapter):
    """The row of continuous 3, of an update and of the shape of the log standard deviation."""
    detail, title = COMPONENTS
    weights = initial_weights(adapter, "continuous")
    components = make_world("continuous").num_outputs
    if weights is not None and weights["logstd"] is not None and weights["logstd"].shape == (components, components):
        return [Row(detail, title, NO, "a full covariance", 0.0)]
    return components_row(adapter, "continuous", detail, title)


def measure_multidiscrete(adapter):
    """The row of multidiscrete 1, of an update and of the number of the policy's outputs."""
    detail, title = MULTIDISCRETE
    weights = initial_weights(adapter, "multidiscrete")
    if weights is not None:
        last_weight, _ = weights["policy"][-1]
        if len(last_weight) == math.prod(make_world("multidiscrete").nvec):
            return [Row(detail, title, NO, "one choice among all combinations", 0.0)]
    return components_row(adapter, "multidiscrete", detail, title)
