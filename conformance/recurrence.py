"""The rows of a recurrent policy: its initial weights, and the states with which each step is computed."""

import math
from dataclasses import dataclass

import numpy as np

from conformance import reference
from conformance.answers import one_line
from conformance.explanation import NO, UNKNOWN, YES, Explanation, Row, unknown
from conformance.problems import MEMORY, Settings, make_world, memory_input
from conformance.weights import describe_weights

SETTINGS = Settings(num_minibatches=2, update_epochs=1)  # of two updates

RECURRENT_WEIGHTS = {
    "weights": ("lstm 1", "recurrent layer: orthogonal weights, gain 1, all gates as one"),
    "biases": ("lstm 1", "its biases are zero"),
    "trained": ("lstm 1", "one bias of it is trained"),
}
STATES = {
    "start": ("lstm 2", "the first state is zero, and rollouts carry it on"),
    "reset": ("lstm 3", "each episode starts from it, in the rollout and the update"),
    "sequences": ("lstm 4", "a minibatch is the whole sequences of some environments"),
    "source": ("lstm 5", "states are recomputed from the one before the sequence"),
}

# The alternatives of each choice; the first is what ppo2 does.
ALTERNATIVES = {
    "start": ("zero", "one", "other numbers"),
    "rollouts": ("carried on", "begun anew"),
    "reset": ("rollout and update", "rollout alone", "update alone", "never"),
    "source": ("recomputed", "recomputed from the first state", "each step has its stored state"),
}
WHOLE_SEQUENCES = "whole sequences"
SINGLE_STEPS = "single steps"


# The initial weights


def describe_recurrent_weights(weight, units):
    """As describe_weights, of a matrix [gates * units, inputs] of a recurrent layer."""
    words, gain, error = describe_weights(weight)
    bound = 1 / math.sqrt(units)
    if gain is None and 0.98 * bound < np.abs(weight).max() <= bound * (1 + 1e-6):
        words = ["torch's default, uniform to 1/sqrt(units)"]
    return words, gain, error


def describe_all_weights(answer):
    """(words, error from orthogonal matrices of gain 1) of an answer of recurrent_weights."""
    if "orthogonal" in answer:
        gains, errors = zip(*answer["orthogonal"], strict=True)
        words = [f"orthogonal, gain {gain:.3g}" for gain in gains]
    else:
        units = np.shape(answer["recurrent"])[1]
        words = []
        gains = []
        errors = []
        for name in ("input", "recurrent"):
            all_that_fit, gain, error = describe_recurrent_weights(np.asarray(answer[name], float), units)
            words.append(all_that_fit[0])
            gains.append(gain)
            errors.append(error)
    worst = max(errors)
    for gain in gains:
        if gain is not None:  # the matrix is orthogonal, with this gain
            worst = max(worst, abs(gain - 1))
    return "; ".join(sorted(set(words))), worst


def measure_recurrent_weights(adapter):
    """The rows of the initial weights of a recurrent layer."""
    answer = adapter.ask("recurrent_weights", 1)
    if answer is None:
        return unknown(RECURRENT_WEIGHTS.values(), adapter.errors["recurrent_weights"])
    try:
        words, error = describe_all_weights(answer)
        largest = max(float(np.abs(bias).max()) for bias in answer["biases"])
        trained = answer["trained"]
    except (IndexError, KeyError, TypeError, ValueError) as problem:
        return unknown(RECURRENT_WEIGHTS.values(), f"recurrent_weights is not as the template says: {problem!r}")
    return [
        Row(*RECURRENT_WEIGHTS["weights"], YES if error < 1e-4 else NO, words, error),
        Row(*RECURRENT_WEIGHTS["biases"], YES if largest == 0 else NO, f"up to {largest:.2g}", largest),
        Row(*RECURRENT_WEIGHTS["trained"], YES if trained == 1 else NO, f"{trained} are trained", 0.0),
    ]


# The states


@dataclass
class Recording:
    """The states of two rollouts and of the update after the second one."""

    rollout: np.ndarray  # float [2 * M, N], before the steps of both rollouts
    minibatches: list  # of the second update, of {(t, n): state}, for t from 0 to M - 1

    def answers(self):
        """As Explanation takes them."""
        answers = [{"rollout": self.rollout}]
        for minibatch in self.minibatches:
            answers.append({"update": in_order(minibatch)})
        return answers


def in_order(states):
    """The states of a minibatch, {(t, n): state}, as an array."""
    return np.array([states[place] for place in sorted(states)])


def read(world, calls):
    """The Recording of an adapter's calls; ValueError where they lack a step."""
    rollouts, updates = divide(calls)
    if len(rollouts) < 2 or len(updates) < 2:
        raise ValueError(f"recurrence: {len(updates)} updates after {len(rollouts)} rollouts, and not 2 after 2")
    M = world.num_steps
    # Row M is that of the value behind the first rollout, and the first that is acted on in the second.
    first = states_of_rollout(world, [place for place in places_of(world, rollouts[0]) if place[0] < M])
    second = states_of_rollout(world, places_of(world, rollouts[1]))
    return Recording(np.concatenate([first, second]), states_of_update(world, places_of(world, updates[1])))


def states_of_rollout(world, found):
    """The states, float [M, N], of a rollout's places; the first one of a step counts."""
    M, N = world.rewards.shape
    states = np.full((M, N), np.nan)
    for t, n, state in found:
        if np.isnan(states[t % M, n]):
            states[t % M, n] = state
    if np.isnan(states).any():
        raise ValueError("recurrence: a step of the rollouts has no call")
    return states


def states_of_update(world, found):
    """The minibatches, as Recording has them, of an update's places."""
    size = world.rewards.size // SETTINGS.num_minibatches
    minibatches = []
    for begin in range(0, len(found), size):
        minibatch = found[begin : begin + size]
        minibatches.append({(t % world.num_steps, n): state for t, n, state in minibatch})
    if [len(minibatch) for minibatch in minibatches] != [size] * SETTINGS.num_minibatches:
        raise ValueError("recurrence: the minibatches do not have each step once")
    return minibatches


def divide(calls):
    """Lists of the calls of each rollout, and of each update, which takes turns with them."""
    rollouts = []
    updates = []
    previous = None
    for call in calls:
        group = updates if call.training else rollouts
        if call.training != previous:
            group.append([])
            previous = call.training
        group[-1].append(call)
    return rollouts, updates


def places_of(world, calls):
    """(t, n, state) of all observations of calls up to the one after the last step, where t is M."""
    found = []
    for call in calls:
        for row, state in zip(call.rows.flatten(), call.states.flatten(), strict=True):
            t, n = divmod(int(row), world.num_envs)
            if 0 <= t <= world.num_steps:  # not padding, and not the last observation of an episode
                found.append((t, n, float(state)))
    return found


def predict_states(world, recording, choice):
    """What recording.answers() would be under a combination of ALTERNATIVES."""
    stored, rollout = predict_rollouts(world, recording, choice)
    answers = [{"rollout": rollout}]
    for minibatch in recording.minibatches:
        states = predict_minibatch(world, sorted(minibatch), stored, choice)
        answers.append({"update": in_order(states)})
    return answers


def state_of_episode(choice):
    """The state to which an episode's start sets an environment."""
    return 1.0 if choice["start"] == "one" else 0.0


def predict_rollouts(world, recording, choice):
    """The states before each step of the two rollouts, before and after they are reset: two arrays, [2 * M, N]."""
    M, N = world.rewards.shape
    start = recording.rollout[0]
    if choice["start"] != "other numbers":
        start = np.full(N, state_of_episode(choice))
    stored = np.zeros((2 * M, N))
    rollout = np.zeros((2 * M, N))
    state = start
    for k in range(2 * M):
        if k == M and choice["rollouts"] == "begun anew":
            state = start
        stored[k] = state
        if k > 0 and choice["reset"] in ("rollout and update", "rollout alone"):
            state = np.where(world.ended[(k - 1) % M], state_of_episode(choice), state)
        rollout[k] = state
        state = MEMORY["rollout"] * state + memory_input(row_of_step(world, k))
    return stored, rollout


def predict_minibatch(world, places, stored, choice):
    """{(t, n): state} for the places (t, n) of a minibatch of the second update, sorted.

    stored: float [2 * M, N], the states of the rollouts before they are reset."""
    M = world.num_steps
    states = {}
    for t, n in places:
        if choice["source"] == "each step has its stored state":
            state = stored[M + t, n]
        elif (t - 1, n) in states:  # the sequence goes on
            row = row_of_step(world, M + t - 1)[n]
            state = MEMORY["update"] * states[t - 1, n] + memory_input(row)
        elif choice["source"] == "recomputed from the first state":
            state = state_of_episode(choice)
        else:
            state = stored[M + t, n]
        # For t = 0, t - 1 is the last step of the first rollout, whose script is the same.
        if choice["reset"] in ("rollout and update", "update alone") and world.ended[t - 1, n]:
            state = state_of_episode(choice)
        states[t, n] = state
    return states


def row_of_step(world, k):
    """The rows [N] of the observations before step k of the two rollouts."""
    if k == world.num_steps:
        return world.rows(k)  # what came after the last step, as nothing restarts the environments
    return world.rows(k % world.num_steps)


def describe_sequences(world, minibatches):
    """Words for the steps of minibatches, as in Recording."""
    pieces = 0
    environments = 0
    is_whole = True
    for minibatch in minibatches:
        for n in range(world.num_envs):
            times = sorted(t for t, its_n in minibatch if its_n == n)
            if not times:
                continue
            environments += 1
            gaps = np.count_nonzero(np.diff(times) > 1)
            pieces += 1 + gaps
            if len(times) < world.num_steps:
                is_whole = False
    if is_whole:
        return WHOLE_SEQUENCES
    # A run of steps that wraps around leaves at most one environment of a minibatch in two pieces.
    if pieces <= environments + len(minibatches):
        return "consecutive steps, cut anywhere"
    return SINGLE_STEPS


def describe_start(choice):
    """Words for the first state, and for that of a later rollout."""
    words = choice["start"]
    if choice["rollouts"] == "begun anew":
        words += ", also in each rollout"
    return words


def measure_states(adapter):
    """The rows of the states of a recurrent layer."""
    world = make_world("discrete")
    calls = adapter.ask("recurrence", world, SETTINGS)
    if calls is None:
        return unknown(STATES.values(), adapter.errors["recurrence"])
    try:
        recording = read(world, calls)
    except (AttributeError, TypeError, ValueError) as error:
        return unknown(STATES.values(), one_line(error))
    alternatives = dict(ALTERNATIVES)
    if (recording.rollout[0] == 0).all() or (recording.rollout[0] == 1).all():
        alternatives["start"] = ("zero", "one")
    combinations = reference.choices(alternatives)
    explanation = Explanation(
        recording.answers(), combinations, lambda choice: predict_states(world, recording, choice)
    )
    sequences = describe_sequences(world, recording.minibatches)
    expected = "zero", "carried on"
    rows = [
        explanation.row(*STATES["start"], "start", "rollouts", words=describe_start, expected=expected),
        explanation.row(*STATES["reset"], "reset", expected=("rollout and update",)),
        Row(*STATES["sequences"], YES if sequences == WHOLE_SEQUENCES else NO, sequences, 0.0),
    ]
    if sequences == SINGLE_STEPS:
        rows.append(Row(*STATES["source"], UNKNOWN, "a minibatch has no sequences"))
    else:
        rows.append(explanation.row(*STATES["source"], "source", expected=("recomputed",)))
    return rows


def measure_recurrence(adapter):
    """The rows of a recurrent policy."""
    return measure_recurrent_weights(adapter) + measure_states(adapter)
