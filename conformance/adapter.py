"""A template: copy it, and let each function call your implementation.

    python -m conformance path/to/my_adapter.py

Here it answers for ppo_continuous_action.py, for the games and the network of ppo_atari.py, and for the LSTM of
ppo_atari_lstm.py.

Leave out what your implementation has no function for: it is printed as "not measured". Do not compute here what
your implementation should compute. Numbers may be numpy arrays of any float type; problems.py describes the problems.
An implementation in torch can use adapters/torch_tables.py, which puts tables in place of its networks and records
each step; adapters/sb3.py is an example.
"""

from pathlib import Path

from conformance.adapters import ours

NAME = "ppo_continuous_action.py"
VERSION = "of this checkout"
KINDS = ("continuous",)  # of "discrete", "multidiscrete" and "continuous", those that it answers for
SHARED = False  # whether its own choice is one network with two heads
MASKS = False  # whether update() heeds the masks of a world, which say which discrete actions are valid

ROOT = Path(__file__).parents[1]
SCRIPT = ours.load(ROOT / "ppo_continuous_action.py")
ATARI = ours.load(ROOT / "ppo_atari.py")
LSTM = ours.load(ROOT / "ppo_atari_lstm.py")


def initial_weights(seed, kind):
    """The weights that a policy and a value function start with, for 6 inputs.

    seed: int. kind: one of KINDS; the actions are those of problems.make_world(kind).
    Returns {"policy": layers, "value": layers}, where layers are a list of (weight [out, in], bias [out] or None)
    from the input to the output. Shared layers are in both. For continuous actions "logstd" has the log standard
    deviations that are trained as parameters, [A], if there are such, and "std" is True if the parameter is the
    standard deviation itself.
    """
    return SCRIPT.initial_weights(seed, kind)


def advantages(world, settings):
    """Advantages and returns of a rollout.

    world: problems.World, with rewards, ends and values; its policy does not matter. settings: problems.Settings.
    Returns {"advantages": [M, N], "returns": [M, N]}, before any normalization; either may be left out.
    """
    return SCRIPT.advantages(world, settings)


def update(world, settings):
    """One update: all epochs and minibatches of a rollout.

    world: problems.World. The rollout is collected with its old_policy and old_value, and the update starts from its
    policy and value. Actions may be drawn, or those of the world may be taken. With MASKS, an observation comes with
    the row of world.masks, if there are some, that says which actions are valid.
    settings: problems.Settings; all else is your implementation's default.
    Returns a problems.Update, or None for a kind of actions that it does not have. Its steps have the rows of each
    minibatch, the tables before and after the step, and the gradient of the loss, or the gradient that reaches the
    optimizer, or both. Raise problems.Refused if it refuses the settings.
    """
    return SCRIPT.update(world, settings)


def schedules(updates):
    """The learning rates and clip ranges of a run of so many updates, with the defaults of your implementation.

    Returns {"learning_rate": [updates], "clip_range": [updates]}: the numbers, or a text if they depend on the run.
    """
    return SCRIPT.schedules(updates)


def normalize(stream):
    """What its normalization makes of observations and rewards.

    stream: problems.Stream, with obs [T + 1, N, D] and rewards [T, N].
    Returns {"observations": [T + 1, N, D], "rewards": [T, N]}; either may be left out, or a text that says what it is.
    """
    return SCRIPT.normalize(stream)


def environment_actions(samples, low, high):
    """The actions that reach environments for samples of the policy.

    samples: float32 [B, 2]. low, high: float32 [2], the bounds of the actions. Returns float [B, 2].
    """
    return SCRIPT.environment_actions(samples, low, high)


def atari(game):
    """An Atari environment with all of its preprocessing around a game.

    game: problems.Game, an emulator. Returns an object with two methods: reset() gives an observation, and
    step(action) gives (observation, reward, end). An observation is uint8 [frames, 84, 84], the newest frame last.
    What follows an end, such as the restart of an episode, is done as your implementation does it.
    """
    return ATARI.atari(game)


def images(images):
    """How observations of images go through its network for them; torch_tables.describe_image_network() tells.

    images: uint8 [B, 4, 84, 84].
    Returns {"input": float, "layers": list of str, "shared": bool, "stored": str}: the input of the first layer, in
    any order of its numbers; words such as "32 of 8 x 8 / 4" for a convolution, and "512" for a linear layer, for
    each layer before the head of the policy; whether the values go through them as well; and the dtype with which a
    rollout stores observations, which may be left out.
    """
    return ATARI.images(images)


def recurrent_weights(seed):
    """The weights that a recurrent layer starts with.

    seed: int.
    Returns {"input": [G * H, I], "recurrent": [G * H, H], "biases": list of [G * H], "trained": int}: the matrices of
    all G gates of H units, for any number of inputs I; all biases; and how many of these are trained.
    """
    return LSTM.recurrent_weights(seed)


def recurrence(world, settings):
    """What a recurrent policy computes each step from, in two rollouts and updates, one after the other.

    world: problems.World of discrete actions. settings: problems.Settings.
    Returns a list of problems.Call: the calls of what stands in place of the recurrent layer, in their order. It must
    do what problems.MEMORY says; torch_tables.Memory does.
    """
    return LSTM.recurrence(world, settings)
