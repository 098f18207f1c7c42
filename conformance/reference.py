"""What an answer would be under any combination of the known alternatives, computed here in float64."""

import itertools
import math
from functools import cache

import numpy as np

# The alternatives of each choice; the first is what ppo2 does. "V(s_T)" is the value of the observation before the step
# that ends, and "the final observation" the one after it.
ADVANTAGES = {
    "lambda": ("lambda", "1", "0"),
    "limit": ("an end", "the final observation", "V(s_T)", "the next reset's observation", "left out"),
    "cut": ("cut", "leaks over time limits"),
    "last": ("bootstrapped", "not bootstrapped"),
    "form": ("sum of deltas", "next return"),
    "returns": ("advantages + values", "discounted rewards"),
    # whose end cuts the sum of a step; the others are mistakes of one step, not found in a library
    "ends": ("its own", "of the step before", "of the step before, but for the last step", "of the step after"),
}
AVERAGED = "bonus, averaged over the components"
POLICY = {
    "scope": ("minibatch", "rollout", "not normalized"),
    "std": ("N", "N - 1"),
    "ratio": (
        "clipped",
        "not clipped",
        "dual clip",
        "quadratic penalty",
        "log probability alone",
        "clipped, without the minimum",
    ),
    "entropy": ("bonus", "no bonus", "a penalty", AVERAGED),
    "penalty": ("none", "0.2 times the KL divergence"),
    "components": ("sum", "mean"),
}
# For worlds in which some actions are invalid
MASKS = {
    "probabilities": ("of valid actions", "of all actions", "of valid actions in the rollout alone"),
    "entropies": ("of valid actions", "of all actions"),
}
WITH_ADDED = "rollout, with steps that are not in it"  # another scope, for an Update that names such steps
VALUE = {
    "value clip": ("the larger loss", "not clipped", "the clipped loss alone"),
    "error": ("squared", "Huber", "squared, at most 10"),
    "factor": ("1/2", "1", "1/4", "2"),
}
CLIP = {"gradient clip": ("all parameters", "each network", "none", "each number")}
ADAM = {
    "epsilon": (1e-5, 1e-8, 1e-7, 1e-6),
    "place": ("before the bias correction", "after it"),
    "betas": ((0.9, 0.999), (0.9, 0.99), (0.9, 0.95), (0.99, 0.99)),
    "decay": (0.0, 0.01),
    "correction": (True, False),
}
# What Adam has of the first update when the second begins
CARRIED = {"carried": ("they go on", "they begin anew", "the means begin anew", "the count begins anew")}


@cache
def products(alternatives):
    """Every combination of alternatives, given as (choice, alternatives) pairs, as dicts."""
    names = [name for name, _ in alternatives]
    values = [values for _, values in alternatives]
    return [dict(zip(names, combination, strict=True)) for combination in itertools.product(*values)]


def choices(alternatives, **fixed):
    """The combinations of a table of alternatives, without those that another one stands for.

    fixed: {choice: alternatives}, in place of those in the table."""
    kept = {name: fixed.get(name, values) for name, values in alternatives.items()}
    return [each for each in products(tuple(kept.items())) if not is_redundant(each)]


def is_redundant(choice):
    """Whether another combination gives the same numbers and stands for this one, too."""
    if choice.get("entropy") == AVERAGED and choice["ratio"] == "quadratic penalty":
        return True  # beside this penalty's gradient, the two bonuses are too near each other
    if choice.get("scope") == "not normalized":
        return choice["std"] != "N"  # no deviation is used
    if choice.get("correction") is False:
        return choice["place"] != ADAM["place"][0]  # epsilon cannot be before or after what is not done
    if "lambda" in choice:
        of_ppo2 = choice["form"] == ADVANTAGES["form"][0] and choice["returns"] == ADVANTAGES["returns"][0]
        if choice["ends"] != ADVANTAGES["ends"][0] and (choice["limit"] != "an end" or choice["cut"] != "cut"):
            return True  # a time limit is then an end as well
        if choice["ends"].endswith("but for the last step") and choice["last"] != ADVANTAGES["last"][0]:
            return True  # nothing follows the last step anyway
        if choice["limit"] == "left out" and choice["cut"] != "cut":
            return True
        if choice["lambda"] == "1":
            return not of_ppo2  # sums of deltas are then discounted rewards
        if choice["lambda"] == "0":
            return of_ppo2 and choice["cut"] != "cut"  # an advantage is then one delta
    return False


# Advantages


def step_whose_end_counts(t, M, ends):
    """The step whose end cuts the sum of step t of M, by an alternative of ADVANTAGES["ends"]; None if none does."""
    if ends == "of the step before" or (ends == "of the step before, but for the last step" and t < M - 1):
        return t - 1 if t > 0 else None
    if ends == "of the step after":
        return min(t + 1, M - 1)
    return t


def advantages(world, settings, choice):
    """{"advantages": [M, N], "returns": [M, N]} of the rollout of a world under a combination of ADVANTAGES."""
    M = world.num_steps
    N = world.num_envs
    values = world.old_value.astype(float)
    gamma = settings.gamma
    gae_lambda = {"lambda": settings.gae_lambda, "1": 1.0, "0": 0.0}[choice["lambda"]]
    # Three sums over the steps that follow, each less the value of its step. Behind the last step they are 0.
    discounted_deltas = np.zeros((M + 1, N))  # discounted by gamma * lambda: GAE
    discounted_rewards = np.zeros((M + 1, N))  # discounted by gamma alone
    next_returns = np.zeros((M, N))  # reward + gamma * the next step's lambda-return
    for t in reversed(range(M)):
        value = values[world.rows(t)]
        next_value = values[world.rows(t + 1)]
        step_of_end = step_whose_end_counts(t, M, choice["ends"])
        terminated = np.zeros(N, bool) if step_of_end is None else world.terminated[step_of_end]
        cut_short = np.zeros(N, bool) if step_of_end is None else world.truncated[step_of_end] & ~terminated
        if t == M - 1 and choice["last"] == "not bootstrapped":
            next_value = np.zeros(N)
        value_at_limit = {
            "an end": np.zeros(N),
            "the final observation": values[world.final_rows(t)],
            "V(s_T)": value,
            "the next reset's observation": next_value,
            "left out": next_value,
        }[choice["limit"]]
        bootstrap = np.where(cut_short, value_at_limit, next_value)
        bootstrap = np.where(terminated, 0.0, bootstrap)
        delta = world.rewards[t] + gamma * bootstrap - value
        if choice["limit"] == "left out":
            delta = np.where(cut_short, 0.0, delta)
        goes_on = ~terminated
        if choice["cut"] == "cut":
            goes_on = goes_on & ~cut_short
        discounted_deltas[t] = delta + gamma * gae_lambda * goes_on * discounted_deltas[t + 1]
        discounted_rewards[t] = delta + gamma * goes_on * discounted_rewards[t + 1]
        next_returns[t] = delta + gamma * goes_on * discounted_deltas[t + 1]
    found = discounted_deltas[:M] if choice["form"] == "sum of deltas" else next_returns
    targets = discounted_deltas if choice["returns"] == "advantages + values" else discounted_rewards
    return {"advantages": found, "returns": targets[:M] + values[: M * N].reshape(M, N)}


# Distributions of actions


def softmax(logits):
    """Probabilities [..., A] of logits [..., A]."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def parts(world):
    """The slices of the outputs that are a categorical distribution of their own."""
    sizes = world.nvec or (world.num_outputs,)
    ends = np.cumsum(sizes)
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def log_probabilities(world, outputs, logstd, actions, components="sum"):
    """Log probabilities [B] of actions, from outputs [B, A] and log standard deviations [A].

    components: "sum" or "mean", how those of an action's components are joined."""
    if world.kind == "continuous":
        scaled = (actions - outputs) / np.exp(logstd)
        of_components = -0.5 * scaled**2 - logstd - math.log(math.tau) / 2
    else:
        actions = actions.reshape(len(outputs), -1)
        columns = []
        for k, part in enumerate(parts(world)):
            probabilities = softmax(outputs[:, part])
            columns.append(np.log(probabilities[np.arange(len(outputs)), actions[:, k]]))
        of_components = np.stack(columns, axis=-1)
    return of_components.sum(-1) if components == "sum" else of_components.mean(-1)


def slopes(world, outputs, logstd, actions):
    """Four derivatives, arrays [B, A], of log probabilities and entropies that are summed over the components:

    - the log probability by the outputs,
    - the log probability by logstd,
    - the entropy by the outputs,
    - the entropy by logstd."""
    zeros = np.zeros_like(outputs)
    if world.kind == "continuous":
        scaled = (actions - outputs) / np.exp(logstd)
        return scaled / np.exp(logstd), scaled**2 - 1, zeros, zeros + 1
    actions = actions.reshape(len(outputs), -1)
    of_log_prob = np.zeros_like(outputs)
    of_entropy = np.zeros_like(outputs)
    for k, part in enumerate(parts(world)):
        p = softmax(outputs[:, part])
        one_hot = np.eye(p.shape[1])[actions[:, k]]
        p_log_p = p * np.log(p, out=np.zeros_like(p), where=p > 0)  # 0 for an invalid action
        entropy = -p_log_p.sum(-1, keepdims=True)
        of_log_prob[:, part] = one_hot - p
        of_entropy[:, part] = -p_log_p - p * entropy
    return of_log_prob, zeros, of_entropy, zeros


def masked(world, rows, outputs):
    """Outputs [B, A] in which those of invalid actions are so low that their probability is 0."""
    return np.where(world.masks[rows], outputs, -1e8)


# The loss


class Batch:
    """The samples of a rollout in rows t * N + n, float64, for the loss; what the answer does not give is computed."""

    def __init__(self, world, settings, answer):
        self.world = world
        self.settings = settings
        size = world.num_steps * world.num_envs
        self.actions = np.asarray(answer.actions).reshape(size, *np.shape(answer.actions)[2:])
        self.advantages = answer.advantages
        self.returns = answer.returns
        if self.advantages is None or self.returns is None:
            computed = advantages(world, settings, {name: values[0] for name, values in ADVANTAGES.items()})
            if self.advantages is None:
                self.advantages = computed["advantages"]
            if self.returns is None:
                self.returns = computed["returns"]
        self.advantages = np.asarray(self.advantages, dtype=float).reshape(-1)
        self.returns = np.asarray(self.returns, dtype=float).reshape(-1)
        self.added = None if answer.added is None else np.asarray(answer.added, dtype=float)
        self.old_values = world.old_value[:size].astype(float)
        self.old_policy = world.old_policy[:size].astype(float)
        self.old_logstd = world.logstd.astype(float)
        self.given_log_probs = answer.old_log_probs  # None if those of the old policy are
        if self.given_log_probs is not None:
            self.given_log_probs = np.asarray(self.given_log_probs, dtype=float).reshape(-1)
        self.kept = {}  # by ratios_and_slopes(), as hundreds of combinations share a few of its results

    def old_log_probabilities(self, rows, components="sum", is_masked=False):
        """Log probabilities [B] of the actions in rows under the policy that acted."""
        if self.given_log_probs is not None:
            return self.given_log_probs[rows]
        old = self.old_policy[rows]
        if is_masked:
            old = masked(self.world, rows, old)
        return log_probabilities(self.world, old, self.old_logstd, self.actions[rows], components)


def normalized(batch, rows, scope, std):
    """The advantages [B] of a minibatch under a scope and a standard deviation."""
    found = batch.advantages[rows]
    if scope == "not normalized":
        return found
    population = found if scope == "minibatch" else batch.advantages
    if scope == WITH_ADDED:
        population = np.concatenate([population, batch.added])
    deviation = population.std(ddof=1 if std == "N - 1" else 0)
    return (found - population.mean()) / (deviation + 1e-8)


def slope_of_surrogate(ratio, a, clip_coef, how):
    """The derivative [B] of the policy's loss by the log probability, by an alternative of POLICY["ratio"].

    ratio: [B], of the new and the old probability. a: normalized advantages [B]."""
    if how == "log probability alone":
        return -a
    slope = -a * ratio  # where nothing is clipped
    if how == "clipped, without the minimum":
        return np.where(np.abs(ratio - 1) > clip_coef, 0.0, slope)
    beyond = np.where(a >= 0, ratio > 1 + clip_coef, ratio < 1 - clip_coef)
    if how == "clipped":
        return np.where(beyond, 0.0, slope)
    if how == "dual clip":
        return np.where(beyond | ((a < 0) & (ratio > 3)), 0.0, slope)
    if how == "quadratic penalty":
        return slope + np.abs(a) / clip_coef * (ratio - 1) * ratio
    return slope


def slope_of_divergence(world, outputs, old_outputs, logstd, old_logstd):
    """The derivatives of the exact KL divergence, old to new, by outputs and logstd: two arrays [B, A]."""
    if world.kind == "continuous":
        variance = np.exp(2 * logstd)
        ratio_of_variances = np.exp(2 * (old_logstd - logstd))
        by_outputs = (outputs - old_outputs) / variance
        return by_outputs, 1 - ratio_of_variances - (outputs - old_outputs) ** 2 / variance
    by_outputs = np.zeros_like(outputs)
    for part in parts(world):
        by_outputs[:, part] = softmax(outputs[:, part]) - softmax(old_outputs[:, part])
    return by_outputs, np.zeros_like(outputs)


def ratios_and_slopes(batch, rows, outputs, logstd, components, probabilities, entropies):
    """The ratios [B] of the new and the old probabilities of a minibatch, and the four derivatives of slopes().

    probabilities, entropies: of which actions, by the alternatives of MASKS."""
    world = batch.world
    actions = batch.actions[rows]
    acting_outputs = outputs  # of the distribution that has the log probabilities
    if probabilities == "of valid actions":
        acting_outputs = masked(world, rows, outputs)
    new_log_probs = log_probabilities(world, acting_outputs, logstd, actions, components)
    old_log_probs = batch.old_log_probabilities(rows, components, is_masked=probabilities != "of all actions")
    derivatives = slopes(world, acting_outputs, logstd, actions)
    if entropies != probabilities:
        entropy_outputs = masked(world, rows, outputs) if entropies == "of valid actions" else outputs
        derivatives = (*derivatives[:2], *slopes(world, entropy_outputs, logstd, actions)[2:])
    return np.exp(new_log_probs - old_log_probs), *derivatives


def policy_gradient(batch, step, choice):
    """{"policy": [R, A], "logstd": [A]}: the gradient of the policy's loss at a step under a combination of POLICY.

    Where the combination has the choices of MASKS as well, the masks of the world count."""
    world = batch.world
    settings = batch.settings
    rows = step.rows
    outputs = step.before["policy"][rows].astype(float)
    logstd = np.asarray(step.before.get("logstd", world.logstd), float)
    components = choice["components"]
    kinds = choice.get("probabilities", "of all actions"), choice.get("entropies", "of all actions")
    key = id(step), components, *kinds
    if key not in batch.kept:
        batch.kept[key] = ratios_and_slopes(batch, rows, outputs, logstd, components, *kinds)
    ratio, log_prob_by_outputs, log_prob_by_logstd, entropy_by_outputs, entropy_by_logstd = batch.kept[key]
    a = normalized(batch, rows, choice["scope"], choice["std"])
    slope = slope_of_surrogate(ratio, a, settings.clip_coef, choice["ratio"])
    number = world.num_outputs if world.kind == "continuous" else max(len(world.nvec), 1)  # of components
    factors = {"bonus": 1.0, "no bonus": 0.0, "a penalty": -1.0, AVERAGED: 1 / number}
    ent_coef = settings.ent_coef * factors[choice["entropy"]]
    by_outputs = slope[:, None] * log_prob_by_outputs - ent_coef * entropy_by_outputs
    by_logstd = slope[:, None] * log_prob_by_logstd - ent_coef * entropy_by_logstd
    if components == "mean":  # slopes() are those of the sum
        by_outputs /= number
        by_logstd /= number
    if choice["penalty"] != "none":
        penalty_by_outputs, penalty_by_logstd = slope_of_divergence(
            world, outputs, batch.old_policy[rows], logstd, batch.old_logstd
        )
        by_outputs += 0.2 * penalty_by_outputs
        by_logstd += 0.2 * penalty_by_logstd
    gradient = {"policy": np.zeros((world.num_rows, world.num_outputs))}
    np.add.at(gradient["policy"], rows, by_outputs / len(rows))
    if world.kind == "continuous":
        gradient["logstd"] = by_logstd.sum(0) / len(rows)
    return gradient


def loss_and_slope(error, how):
    """The loss [B] of errors [B] of the value, and its derivative, by an alternative of VALUE["error"]."""
    if how == "squared":
        return error**2, 2 * error
    if how == "squared, at most 10":
        return np.minimum(error**2, 10), np.where(error**2 > 10, 0.0, 2 * error)
    huber = np.where(np.abs(error) < 1, error**2, 2 * np.abs(error) - 1)  # twice torch's, so that it is the square
    return huber, 2 * np.clip(error, -1, 1)


def value_gradient(batch, step, choice):
    """{"value": [R]}: the gradient of the value's loss at a step under a combination of VALUE."""
    world = batch.world
    settings = batch.settings
    rows = step.rows
    values = step.before["value"][rows].astype(float)
    old_values = batch.old_values[rows]
    returns = batch.returns[rows]
    loss, slope = loss_and_slope(values - returns, choice["error"])
    if choice["value clip"] != "not clipped":
        change = np.clip(values - old_values, -settings.clip_coef, settings.clip_coef)
        clipped_loss, clipped_slope = loss_and_slope(old_values + change - returns, choice["error"])
        clipped_slope = np.where(np.abs(values - old_values) > settings.clip_coef, 0.0, clipped_slope)
        if choice["value clip"] == "the clipped loss alone":
            slope = clipped_slope
        else:
            slope = np.where(clipped_loss > loss, clipped_slope, slope)
    factor = {"1/2": 0.5, "1": 1.0, "1/4": 0.25, "2": 2.0}[choice["factor"]]
    gradient = np.zeros(world.num_rows)
    np.add.at(gradient, rows, factor * settings.vf_coef * slope / len(rows))
    return {"value": gradient}


# The step


def clip_gradient(gradient, max_norm, choice, added=0.0):
    """A gradient, a dict of arrays, after it is clipped under a combination of CLIP; `added` is added to the norm."""
    how = choice["gradient clip"]
    if how == "none":
        return gradient
    if how == "each number":
        return {name: np.clip(array, -max_norm, max_norm) for name, array in gradient.items()}
    groups = [list(gradient)]
    if how == "each network":
        of_value = [name for name in gradient if name.startswith("v")]
        of_policy = [name for name in gradient if name not in of_value]
        groups = [of_policy, of_value]
    clipped = {}
    for names in groups:
        norm = math.sqrt(sum(float((gradient[name] ** 2).sum()) for name in names))
        scale = min(1.0, max_norm / max(norm + added, 1e-30))
        for name in names:
            clipped[name] = gradient[name] * scale
    return clipped


def adam_changes(gradients, weights, learning_rate, choice, second=None):
    """(changes of the weights, moments) under a combination of ADAM: two lists with a dict for each step.

    gradients: a list of dicts of arrays, one for each step.
    weights: likewise, the weights before each step.
    second: the number of steps before the second update, if there is one; the combination is then one of CARRIED, too.

    The moments are Adam's two running means after the step, with "m " or "v " before the name of a weight."""
    beta1, beta2 = choice["betas"]
    epsilon = choice["epsilon"]
    m = {name: np.zeros_like(array) for name, array in gradients[0].items()}
    v = {name: np.zeros_like(array) for name, array in gradients[0].items()}
    changes = []
    moments = []
    t = 0
    for number, (gradient, before) in enumerate(zip(gradients, weights, strict=True)):
        if number == second and choice["carried"] in ("they begin anew", "the means begin anew"):
            m = {name: np.zeros_like(array) for name, array in m.items()}
            v = {name: np.zeros_like(array) for name, array in v.items()}
        if number == second and choice["carried"] in ("they begin anew", "the count begins anew"):
            t = 0
        t += 1
        correction1 = 1 - beta1**t if choice["correction"] else 1.0
        correction2 = 1 - beta2**t if choice["correction"] else 1.0
        change = {}
        after = {}
        for name, g in gradient.items():
            m[name] = beta1 * m[name] + (1 - beta1) * g
            v[name] = beta2 * v[name] + (1 - beta2) * g**2
            if choice["place"] == "before the bias correction":
                root = (np.sqrt(v[name]) + epsilon) / math.sqrt(correction2)
            else:
                root = np.sqrt(v[name] / correction2) + epsilon
            change[name] = -learning_rate * (m[name] / correction1 / root + choice["decay"] * before[name])
            after[f"m {name}"] = m[name]
            after[f"v {name}"] = v[name]
        changes.append(change)
        moments.append(after)
    return changes, moments


# What is logged


def divergences(batch, rows, outputs):
    """{name: number}: estimators of the KL divergence of a minibatch between the policy that acted and `outputs`."""
    world = batch.world
    logstd = world.logstd.astype(float)
    old_outputs = batch.old_policy[rows]
    new_log_probs = log_probabilities(world, outputs, logstd, batch.actions[rows])
    log_ratio = new_log_probs - batch.old_log_probabilities(rows)
    found = {
        "half the mean square of the log ratio": (log_ratio**2).mean() / 2,
        "mean of -log ratio": -log_ratio.mean(),
        "mean of ratio - 1 - log ratio": (np.exp(log_ratio) - 1 - log_ratio).mean(),
        "mean square of the log ratio": (log_ratio**2).mean(),
    }
    if batch.given_log_probs is not None:
        return found  # the policy that acted is not known
    if world.kind == "continuous":
        # at the first step the deviations are still those of the old policy, so only the means differ
        found["exact, old to new"] = ((old_outputs - outputs) ** 2 / (2 * np.exp(2 * logstd))).sum(-1).mean()
    else:
        found["exact, old to new"] = exact_divergence(world, old_outputs, outputs)
        found["exact, new to old"] = exact_divergence(world, outputs, old_outputs)
    return found


def exact_divergence(world, one, other):
    """The mean over rows of the KL divergence between two categorical policies, from their outputs [B, A]."""
    total = 0.0
    for part in parts(world):
        p = softmax(one[:, part])
        q = softmax(other[:, part])
        total = total + (p * (np.log(p) - np.log(q))).sum(-1)
    return total.mean()
