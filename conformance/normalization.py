"""The rows of what stands between environments and a policy with continuous actions: clipping and normalization."""

import numpy as np

from conformance.answers import BadAnswer, arrays_of
from conformance.explanation import NO, Explanation, Row, unknown
from conformance.problems import Settings, Stream

ACTIONS = "continuous 5", "the environment gets the clipped action"
NORMALIZATION = {
    "obs": ("continuous 6", "observations are normalized over all environments"),
    "obs clip": ("continuous 7", "normalized observations are clipped to [-10, 10]"),
    "reward": ("continuous 8", "rewards are divided by the deviation of the discounted return"),
    "reward clip": ("continuous 9", "scaled rewards are clipped to [-10, 10]"),
}

# Actions within and beyond their bounds, which are not symmetric
ACTION_LOW = np.float32([-1.5, -0.5])
ACTION_HIGH = np.float32([1.0, 2.5])
SAMPLES = np.float32([[0.5, 0.25], [-3.0, 4.0], [1.5, -0.75], [-1.25, 2.0], [0.9, -2.0]])


def measure_actions(adapter):
    """The row of the action that reaches the environment."""
    detail, title = ACTIONS
    answer = adapter.ask("environment_actions", SAMPLES, ACTION_LOW, ACTION_HIGH)
    if answer is None:
        return unknown([ACTIONS], adapter.errors["environment_actions"])
    try:
        given = arrays_of({"actions": answer}, {"actions": SAMPLES.shape}, "environment_actions")
    except BadAnswer as error:
        return unknown([ACTIONS], str(error))
    middle = (ACTION_LOW + ACTION_HIGH) / 2
    half = (ACTION_HIGH - ACTION_LOW) / 2
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
    explanation = Explanation([given], choices, lambda choice: [{"actions": known[choice["action"]]}])
    return [explanation.row(detail, title, "action", expected=("clipped to the bounds",))]


def make_stream():
    """200 steps of 3 unequal environments, for the normalization of observations and rewards."""
    rng = np.random.default_rng(11)
    T = 200
    N = 3
    D = 2
    shift = np.array([0.5, -20.0]) + np.arange(N)[:, None]  # of each environment and number of an observation
    obs = rng.normal(size=(T + 1, N, D)) * np.array([1.0, 5.0]) + shift
    finals = rng.normal(size=(T, N, D)) * np.array([3.0, 5.0]) + shift + 2
    rewards = rng.normal(size=(T, N)) * np.array([0.2, 1.0, 3.0]) + 0.5
    obs[[150, 180]] *= 40  # beyond 10 standard deviations of what came before
    rewards[[120, 170]] *= 200
    ends = rng.random((T, N)) < 0.05
    obs = obs.astype(np.float32)
    finals = finals.astype(np.float32)
    return Stream(obs, finals, rewards.astype(np.float32), ends, Settings().gamma)


class Moments:
    """A running mean and variance, which begins with a small count, as gymnasium's and ppo2's."""

    def __init__(self, shape):
        self.mean = np.zeros(shape)
        self.var = np.ones(shape)
        self.count = 1e-4

    def update(self, batch):
        """Counts a batch, [B, *shape]."""
        size = len(batch)
        total = self.count + size
        delta = batch.mean(0) - self.mean
        sum_of_squares = self.var * self.count + batch.var(0) * size + delta**2 * self.count * size / total
        self.mean = self.mean + delta * size / total
        self.var = sum_of_squares / total
        self.count = total


def groups(num_envs, per_environment):
    """The numbers of the environments that share statistics: each has its own, or all are one group."""
    numbers = list(range(num_envs))
    if per_environment:
        return [[n] for n in numbers]
    return [numbers]


def normalize_observations(stream, per_environment=False, finals=False, first=True):
    """Observations [T + 1, N, D] normalized by their running mean and deviation.

    per_environment: whether each environment has statistics of its own.
    finals: whether the statistics include the last observations of episodes.
    first: whether the first observations of the run are normalized and counted."""
    T, N, D = stream.finals.shape
    normalized = np.zeros(stream.obs.shape)
    for group in groups(N, per_environment):
        moments = Moments((D,))
        for t in range(T + 1):
            obs = stream.obs[t, group].astype(float)
            if t == 0 and not first:
                normalized[t, group] = obs
                continue
            if finals and t > 0:
                ended = stream.ends[t - 1, group]
                if ended.any():
                    moments.update(stream.finals[t - 1, group].astype(float)[ended])
            moments.update(obs)
            normalized[t, group] = (obs - moments.mean) / np.sqrt(moments.var + 1e-8)
    return normalized


def scale_rewards(stream, per_environment=False, centered=False, end_drops_step=True, gamma=None):
    """Rewards [T, N] divided by the deviation of the running discounted return.

    per_environment: whether each environment has statistics of its own.
    centered: whether their mean is subtracted.
    end_drops_step: whether an end sets the return to 0 after its own reward was added, as in ppo2, or before.
    gamma: the discount, by default the stream's."""
    T, N = stream.rewards.shape
    if gamma is None:
        gamma = stream.gamma
    scaled = np.zeros(stream.rewards.shape)
    for group in groups(N, per_environment):
        moments = Moments(())
        total = np.zeros(len(group))
        for t in range(T):
            reward = stream.rewards[t, group].astype(float)
            ended = stream.ends[t, group]
            if not end_drops_step:
                total = np.where(ended, 0.0, total)
            total = gamma * total + reward
            moments.update(total)
            shift = moments.mean if centered else 0.0
            scaled[t, group] = (reward - shift) / np.sqrt(moments.var + 1e-8)
            if end_drops_step:
                total = np.where(ended, 0.0, total)
    return scaled


LIMITS = {"10": 10.0, "5": 5.0, "none": np.inf}  # of normalized numbers


def known_observations(stream):
    """{words: observations [T + 1, N, D]} of the known normalizations; the first is ppo2's."""
    return {
        "over all environments": normalize_observations(stream),
        "over all, with last observations": normalize_observations(stream, finals=True),
        "over all, without the first observations": normalize_observations(stream, first=False),
        "for each environment": normalize_observations(stream, per_environment=True),
        "for each, with last observations": normalize_observations(stream, per_environment=True, finals=True),
        "not normalized": stream.obs.astype(float),
    }


def known_rewards(stream):
    """{words: rewards [T, N]} of the known normalizations; the first is ppo2's."""
    early = scale_rewards(stream, per_environment=True, end_drops_step=False)
    return {
        "by the deviation of the return": scale_rewards(stream),
        "by the deviation of the return, an end drops what came before it": scale_rewards(stream, end_drops_step=False),
        "by that of each environment": scale_rewards(stream, per_environment=True),
        "by that of each environment, an end drops what came before it": early,
        "by that of each environment, with a discount of 0.99": scale_rewards(stream, per_environment=True, gamma=0.99),
        "centered, too": scale_rewards(stream, centered=True),
        "not scaled": stream.rewards.astype(float),
    }


def measure_normalization(adapter):
    """The rows of the normalization of observations and rewards."""
    stream = make_stream()
    answer = adapter.ask_dict("normalize", stream)
    if answer is None:
        return unknown(NORMALIZATION.values(), adapter.errors["normalize"])
    stream = answer.get("problem", stream)
    return [
        *normalization_rows(answer, "observations", known_observations(stream), "obs"),
        *normalization_rows(answer, "rewards", known_rewards(stream), "reward"),
    ]


def normalization_rows(answer, name, known, key):
    """The rows NORMALIZATION[key] and NORMALIZATION[f"{key} clip"], of answer[name].

    known: {words: array} of the known normalizations, without a clip; the first is ppo2's."""
    how_detail = NORMALIZATION[key]
    clip_detail = NORMALIZATION[f"{key} clip"]
    given = answer.get(name)
    if given is None:
        return unknown([how_detail, clip_detail], "the adapter gives none")
    if isinstance(given, str):
        return [Row(*how_detail, NO, given, 0.0), Row(*clip_detail, NO, given, 0.0)]
    usual, *_ = known
    try:
        given = arrays_of(answer, {name: known[usual].shape}, "normalize")
    except BadAnswer as error:
        return unknown([how_detail, clip_detail], str(error))

    def predict(choice):
        limit = LIMITS[choice["clip"]]
        return [{name: np.clip(known[choice["how"]], -limit, limit)}]

    combinations = [{"how": how, "clip": clip} for how in known for clip in LIMITS]
    explanation = Explanation([given], combinations, predict)
    how = explanation.row(*how_detail, "how", expected=(usual,))
    clip = explanation.row(*clip_detail, "clip", expected=("10",))
    if clip.result == NO:
        clip.found = "not clipped" if clip.found == "none" else f"to {clip.found}"
    return [how, clip]
