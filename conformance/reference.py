"""Our own answers, in float64, under every combination of the known alternatives."""

import itertools
import math
from functools import cache

import numpy as np

# The alternatives of each choice; the first is what ppo2 does.
ADVANTAGES = {
    "lambda": ("lambda", "1", "0"),
    "limit": ("an end", "the final observation", "V(s_T)", "the next reset's observation", "left out"),
    "cut": ("cut", "leaks over time limits"),
    "last": ("bootstrapped", "not bootstrapped"),
    "form": ("sum of deltas", "next return"),
    "returns": ("advantages + values", "discounted rewards"),
}
POLICY = {
    "scope": ("minibatch", "rollout", "not normalized"),
    "std": ("N", "N - 1"),
    "ratio": ("clipped", "not clipped", "dual clip", "quadratic penalty", "log probability alone"),
    "entropy": ("bonus", "no bonus"),
    "penalty": ("none", "0.2 times the KL divergence"),
    "components": ("sum", "mean"),
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


@cache
def combinations(names):
    """Every combination of the alternatives whose names are given as (choice, alternatives) pairs, as dicts."""
    keys = [key for key, _ in names]
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*(values for _, values in names))]


def choices(alternatives, **fixed):
    """The combinations of a table of alternatives that are not the same by definition; `fixed` narrows choices."""
    chosen = {key: fixed.get(key, values) for key, values in alternatives.items()}
    return [each for each in combinations(tuple(chosen.items())) if not redundant(each)]


def redundant(choice):
    """Whether another combination has the same meaning, and stands for this one, too."""
    return (
        (choice.get("scope") == "not normalized" and choice["std"] != "N")
        or (choice.get("limit") == "left out" and choice["cut"] != "cut")
        or (choice.get("lambda") == "1" and (choice["form"], choice["returns"]) != ADVANTAGES_FIRST)
        or (
            choice.get("lambda") == "0"
            and choice["cut"] != "cut"
            and (choice["form"], choice["returns"]) == ADVANTAGES_FIRST
        )
        or (choice.get("correction") is False and choice["place"] != ADAM["place"][0])
    )


ADVANTAGES_FIRST = ADVANTAGES["form"][0], ADVANTAGES["returns"][0]


def advantages(world, settings, choice):
    """{"advantages": [M, N], "returns": [M, N]} of the rollout of a world under a combination of ADVANTAGES."""
    M, N = world.num_steps, world.num_envs
    values = world.old_value.astype(float)
    gamma = settings.gamma
    gae_lambda = {"lambda": settings.gae_lambda, "1": 1.0, "0": 0.0}[choice["lambda"]]
    limit = choice["limit"]
    sums, sums_of_rewards, direct = np.zeros((M + 1, N)), np.zeros((M + 1, N)), np.zeros((M, N))
    for t in reversed(range(M)):
        here, following = values[world.rows(t)], values[world.rows(t + 1)]
        if t == M - 1 and choice["last"] == "not bootstrapped":
            following = np.zeros(N)
        at_limit = {
            "an end": np.zeros(N),
            "the final observation": values[world.final_rows(t)],
            "V(s_T)": here,
            "the next reset's observation": following,
            "left out": following,
        }[limit]
        cut_short = world.truncated[t] & ~world.terminated[t]
        next_value = np.where(world.terminated[t], 0.0, np.where(cut_short, at_limit, following))
        goes_on = ~world.terminated[t]
        if choice["cut"] == "cut":
            goes_on = goes_on & ~cut_short
        kept = 1.0 - cut_short if limit == "left out" else np.ones(N)
        delta = kept * (world.rewards[t] + gamma * next_value - here)
        sums[t] = delta + gamma * gae_lambda * goes_on * sums[t + 1]
        sums_of_rewards[t] = delta + gamma * goes_on * sums_of_rewards[t + 1]
        direct[t] = delta + gamma * goes_on * sums[t + 1]
    base = values[: M * N].reshape(M, N)
    targets = sums if choice["returns"] == "advantages + values" else sums_of_rewards
    found = sums[:M] if choice["form"] == "sum of deltas" else direct
    return {"advantages": found, "returns": targets[:M] + base}


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def parts(world):
    """The slices of the outputs that are a categorical distribution of their own."""
    ends = np.cumsum(world.nvec or (world.outputs,))
    return [slice(end - size, end) for size, end in zip(world.nvec or (world.outputs,), ends, strict=True)]


def log_probabilities(world, outputs, logstd, actions, components="sum"):
    """Log probabilities [B] of actions, from outputs [B, A] and log standard deviations [A]."""
    if world.kind == "continuous":
        scaled = (actions - outputs) / np.exp(logstd)
        each = -0.5 * scaled**2 - logstd - math.log(math.tau) / 2
    else:
        actions = actions.reshape(len(outputs), -1)
        each = np.stack(
            [
                np.log(softmax(outputs[:, part]))[np.arange(len(outputs)), actions[:, k]]
                for k, part in enumerate(parts(world))
            ],
            axis=-1,
        )
    return each.sum(-1) if components == "sum" else each.mean(-1)


def slopes(world, outputs, logstd, actions):
    """The derivatives of log probability and entropy by outputs and logstd: four arrays [B, A]; components summed."""
    if world.kind == "continuous":
        scaled = (actions - outputs) / np.exp(logstd)
        zeros = np.zeros_like(outputs)
        return scaled / np.exp(logstd), scaled**2 - 1, zeros, zeros + 1
    actions = actions.reshape(len(outputs), -1)
    of_log_prob, of_entropy = np.zeros_like(outputs), np.zeros_like(outputs)
    for k, part in enumerate(parts(world)):
        p = softmax(outputs[:, part])
        of_log_prob[:, part] = np.eye(p.shape[1])[actions[:, k]] - p
        entropy = -(p * np.log(p)).sum(-1, keepdims=True)
        of_entropy[:, part] = -p * (np.log(p) + entropy)
    return of_log_prob, np.zeros_like(outputs), of_entropy, np.zeros_like(outputs)


class Batch:
    """The samples of a rollout in rows t * N + n, float64, for the loss."""

    def __init__(self, world, settings, answer):
        first = {key: values[0] for key, values in ADVANTAGES.items()}
        known = answer.advantages is not None and answer.returns is not None
        ours = {"advantages": None, "returns": None} if known else advantages(world, settings, first)
        size = world.num_steps * world.num_envs
        self.world, self.settings = world, settings
        self.actions = np.asarray(answer.actions).reshape(size, *np.shape(answer.actions)[2:])
        self.advantages = self.flat(answer.advantages, ours["advantages"])
        self.returns = self.flat(answer.returns, ours["returns"])
        self.added = None if answer.added is None else np.asarray(answer.added, float)
        self.old_values = world.old_value[:size].astype(float)
        self.old_policy = world.old_policy[:size].astype(float)
        self.old_logstd = world.logstd.astype(float)
        self.given = None if answer.old_log_probs is None else np.asarray(answer.old_log_probs, float).reshape(-1)

    def old_log_probabilities(self, rows, components="sum"):
        """Log probabilities [B] of the actions in rows under the policy that acted."""
        if self.given is not None:
            return self.given[rows]
        old = self.old_policy[rows]
        return log_probabilities(self.world, old, self.old_logstd, self.actions[rows], components)

    @staticmethod
    def flat(given, ours):
        return np.asarray(ours if given is None else given, dtype=float).reshape(-1)


def normalized(batch, rows, scope, std):
    """The advantages [B] of a minibatch under a scope and a standard deviation."""
    found = batch.advantages[rows]
    if scope == "not normalized":
        return found
    among = found if scope == "minibatch" else batch.advantages
    if scope == WITH_ADDED:
        among = np.concatenate([among, batch.added])
    return (found - among.mean()) / (among.std(ddof=1 if std == "N - 1" else 0) + 1e-8)


def policy_gradient(batch, step, choice):
    """{"policy": [R, A], "logstd": [A]}: the gradient of the policy's loss at a step under a combination of POLICY."""
    world, settings, rows = batch.world, batch.settings, step.rows
    outputs = step.before["policy"][rows].astype(float)
    logstd = np.asarray(step.before.get("logstd", world.logstd), float)
    actions = batch.actions[rows]
    summed = choice["components"]
    share = 1.0 if summed == "sum" else 1.0 / (world.outputs if world.kind == "continuous" else max(len(world.nvec), 1))
    log_ratio = log_probabilities(world, outputs, logstd, actions, summed)
    log_ratio = log_ratio - batch.old_log_probabilities(rows, summed)
    ratio = np.exp(log_ratio)
    a = normalized(batch, rows, choice["scope"], choice["std"])
    slope = -a * ratio  # of the loss by the log probability, where nothing is clipped
    low, high = 1 - settings.clip_coef, 1 + settings.clip_coef
    beyond = np.where(a >= 0, ratio > high, ratio < low)
    if choice["ratio"] == "clipped":
        slope = np.where(beyond, 0.0, slope)
    elif choice["ratio"] == "dual clip":
        slope = np.where(beyond | ((a < 0) & (ratio > 3)), 0.0, slope)
    elif choice["ratio"] == "quadratic penalty":
        slope = slope + np.abs(a) / settings.clip_coef * (ratio - 1) * ratio
    elif choice["ratio"] == "log probability alone":
        slope = -a
    of_log_prob, of_log_prob_by_std, of_entropy, of_entropy_by_std = slopes(world, outputs, logstd, actions)
    weight = settings.ent_coef if choice["entropy"] == "bonus" else 0.0
    by_outputs = share * (slope[:, None] * of_log_prob - weight * of_entropy) / len(rows)
    penalized = choice["penalty"] != "none"
    if penalized:
        old = batch.old_policy[rows]
        if world.kind == "continuous":
            by_outputs += 0.2 * (outputs - old) / np.exp(2 * logstd) / len(rows)
        else:
            for part in parts(world):
                by_outputs[:, part] += 0.2 * (softmax(outputs[:, part]) - softmax(old[:, part])) / len(rows)
    gradient = {"policy": np.zeros((world.num_rows, world.outputs))}
    np.add.at(gradient["policy"], rows, by_outputs)
    if world.kind == "continuous":
        by_std = share * (slope[:, None] * of_log_prob_by_std - weight * of_entropy_by_std) / len(rows)
        if penalized:
            ratio_of_variances = np.exp(2 * (batch.old_logstd - logstd))
            by_std += 0.2 * (1 - ratio_of_variances - (outputs - old) ** 2 / np.exp(2 * logstd)) / len(rows)
        gradient["logstd"] = by_std.sum(0)
    return gradient


def value_gradient(batch, step, choice):
    """{"value": [R]}: the gradient of the value's loss at a step under a combination of VALUE."""
    world, settings, rows = batch.world, batch.settings, step.rows
    values, old, returns = step.before["value"][rows].astype(float), batch.old_values[rows], batch.returns[rows]
    limit = settings.clip_coef
    clipped = old + np.clip(values - old, -limit, limit)

    def loss_and_slope(error):
        if choice["error"] == "squared":
            return error**2, 2 * error
        if choice["error"] == "squared, at most 10":
            return np.minimum(error**2, 10), np.where(error**2 > 10, 0.0, 2 * error)
        return np.where(np.abs(error) < 1, error**2, 2 * np.abs(error) - 1), 2 * np.clip(error, -1, 1)

    loss, slope = loss_and_slope(values - returns)
    if choice["value clip"] != "not clipped":
        clipped_loss, clipped_slope = loss_and_slope(clipped - returns)
        clipped_slope = np.where(np.abs(values - old) > limit, 0.0, clipped_slope)
        larger = clipped_loss > loss
        if choice["value clip"] == "the clipped loss alone":
            larger = np.ones_like(larger)
        slope = np.where(larger, clipped_slope, slope)
    factor = {"1/2": 0.5, "1": 1.0, "1/4": 0.25, "2": 2.0}[choice["factor"]]
    gradient = np.zeros(world.num_rows)
    np.add.at(gradient, rows, factor * settings.vf_coef * slope / len(rows))
    return {"value": gradient}


def clip_gradient(gradient, max_norm, choice, added=0.0):
    """A gradient, a dict of arrays, after it is clipped under a combination of CLIP; `added` is added to the norm."""
    kind = choice["gradient clip"]
    if kind == "none":
        return gradient
    if kind == "each number":
        return {name: np.clip(array, -max_norm, max_norm) for name, array in gradient.items()}
    groups = [list(gradient)]
    if kind == "each network":
        values = [name for name in gradient if name.startswith("v")]
        groups = [[name for name in gradient if name not in values], values]
    clipped = {}
    for names in groups:
        norm = math.sqrt(sum(float((gradient[name] ** 2).sum()) for name in names))
        for name in names:
            clipped[name] = gradient[name] * min(1.0, max_norm / max(norm + added, 1e-30))
    return clipped


def adam_changes(gradients, weights, learning_rate, choice):
    """(changes of the weights, moments), of each step of Adam, lists of dicts, under a combination of ADAM.

    gradients, weights: lists of dicts of arrays, those of each step, and the weights before it."""
    beta1, beta2 = choice["betas"]
    epsilon, changes, moments = choice["epsilon"], [], []
    m = {name: np.zeros_like(array) for name, array in gradients[0].items()}
    v = {name: np.zeros_like(array) for name, array in gradients[0].items()}
    for t, (gradient, before) in enumerate(zip(gradients, weights, strict=True), start=1):
        change = {}
        first, second = (1 - beta1**t, 1 - beta2**t) if choice["correction"] else (1.0, 1.0)
        for name, g in gradient.items():
            m[name] = beta1 * m[name] + (1 - beta1) * g
            v[name] = beta2 * v[name] + (1 - beta2) * g**2
            if choice["place"] == "before the bias correction":
                root = (np.sqrt(v[name]) + epsilon) / math.sqrt(second)
            else:
                root = np.sqrt(v[name] / second) + epsilon
            change[name] = -learning_rate * (m[name] / first / root + choice["decay"] * before[name])
        changes.append(change)
        moments.append({f"{kind} {name}": m_or_v[name] for kind, m_or_v in (("m", m), ("v", v)) for name in gradient})
    return changes, moments


def divergences(batch, rows, outputs):
    """{name: number}: estimators of the KL divergence of a minibatch between the policy that acted and `outputs`."""
    world = batch.world
    logstd, actions = world.logstd.astype(float), batch.actions[rows]
    old = batch.old_policy[rows]
    log_ratio = log_probabilities(world, outputs, logstd, actions) - batch.old_log_probabilities(rows)
    found = {
        "half the mean square of the log ratio": (log_ratio**2).mean() / 2,
        "mean of -log ratio": -log_ratio.mean(),
        "mean of ratio - 1 - log ratio": (np.exp(log_ratio) - 1 - log_ratio).mean(),
        "mean square of the log ratio": (log_ratio**2).mean(),
    }
    if batch.given is not None:
        return found
    if world.kind == "continuous":
        found["exact, old to new"] = ((old - outputs) ** 2 / (2 * np.exp(2 * logstd))).sum(-1).mean()
    else:
        found["exact, old to new"] = exact_divergence(world, old, outputs)
        found["exact, new to old"] = exact_divergence(world, outputs, old)
    return found


def exact_divergence(world, one, other):
    """The mean over rows of the KL divergence between two categorical policies, from their outputs [B, A]."""
    total = 0.0
    for part in parts(world):
        p, q = softmax(one[:, part]), softmax(other[:, part])
        total = total + (p * (np.log(p) - np.log(q))).sum(-1)
    return total.mean()
