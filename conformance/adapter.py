"""A template: copy it, and let each function call your implementation.

    python -m conformance path/to/my_adapter.py

Here it answers for three scripts: ppo_continuous_action.py, ppo_atari.py (the games and their network), and
ppo_atari_lstm.py (the LSTM).

- Leave out what your implementation has no function for: it is printed as "not measured".
- Do not compute here what your implementation should compute.
- Numbers may be numpy arrays of any float type.
- problems.py describes the arguments and the answers.

An implementation in torch can use adapters/torch_tables.py, which puts tables in place of its networks and records
each gradient step. adapters/sb3.py is an example.
"""

from pathlib import Path

from conformance.adapters import ours

NAME = "ppo_continuous_action.py"
VERSION = "of this checkout"
# The kinds of actions that it answers for, of "discrete", "multidiscrete" and "continuous"
KINDS = ("continuous",)
# Whether its own choice is one network with two heads
SHARED = False
# Whether update() heeds the masks of a world, which say which discrete actions are valid
MASKS = False
# False if the loop around the loss is the user's, so that minibatches and gradient steps are not the implementation's
LOOP = True
# {name of a function below: why the implementation has none}
REASONS = {}

ROOT = Path(__file__).parents[1]
SCRIPT = ours.load(ROOT / "ppo_continuous_action.py")
ATARI = ours.load(ROOT / "ppo_atari.py")
LSTM = ours.load(ROOT / "ppo_atari_lstm.py")


def initial_weights(seed, kind):
    """The weights that a policy and a value function start with, for 6 inputs.

    seed: int.
    kind: one of KINDS. The actions are those of problems.make_world(kind).

    Returns a dict:
    - "policy" and "value": the layers of each network from the input to the output, a list of pairs (weight [out, in],
      bias [out] or None). Shared layers are in both lists.
    - "logstd", for continuous actions: the log standard deviations [A], if they are trained as parameters.
    - "std": True if the parameter is the standard deviation itself.
    """
    return SCRIPT.initial_weights(seed, kind)


def advantages(world, settings):
    """The advantages and returns of a rollout.

    world: problems.World, with rewards, ends and values. Its policy does not matter.
    settings: problems.Settings.

    Returns {"advantages": [M, N], "returns": [M, N]}, before any normalization. Either may be left out.
    """
    return SCRIPT.advantages(world, settings)


def update(world, settings):
    """One update: all epochs and minibatches of a rollout.

    world: problems.World. The rollout is collected with old_policy and old_value, and the update starts from policy and
        value. Actions may be drawn, or those of the world may be taken. With MASKS, an observation comes with its row
        of world.masks, if there are any, which says which actions are valid.
    settings: problems.Settings. All else is your implementation's default.

    Returns a problems.Update, or None for a kind of actions that it does not have. Each of its steps has the rows of
    the minibatch, the tables before and after the step, and a gradient: that of the loss, that which reaches the
    optimizer, or both. Raise problems.Refused if your implementation refuses the settings.
    """
    return SCRIPT.update(world, settings)


def updates(world, settings, count):
    """Several updates, one after the other: each begins with the weights and with Adam's means that the last has left.

    world, settings: as for update(), or those of its problem, if it answers with one. The world is played once more
        for each update. In each rollout old_policy and old_value act, with the log standard deviations of the moment.
        A later rollout begins with the observation behind the last step of the one before, whose row is M * N + n.
    count: int, the number of updates.

    Returns a list of problems.Update. Leave it out if update() is all that you have.
    """
    return SCRIPT.updates(world, settings, count)


def schedules(updates):
    """The learning rates and clip ranges of a whole run with the defaults of your implementation.

    updates: int, the number of updates of the run.

    Returns {"learning_rate": [updates], "clip_range": [updates]}. A text instead of numbers says how they depend on the
    run.
    """
    return SCRIPT.schedules(updates)


def normalize(stream):
    """What the normalization of observations and rewards makes of a stream.

    stream: problems.Stream, with obs [T + 1, N, D] and rewards [T, N].

    Returns {"observations": [T + 1, N, D], "rewards": [T, N]}. Either may be left out, or be a text that says what it
    is.
    """
    return SCRIPT.normalize(stream)


def environment_actions(samples, low, high):
    """The actions that reach the environment when the policy has drawn samples.

    samples: float32 [B, 2].
    low, high: float32 [2], the bounds of the actions.

    Returns float [B, 2].
    """
    return SCRIPT.environment_actions(samples, low, high)


def atari(game):
    """An Atari environment, with all of its preprocessing, around a game.

    game: problems.Game, an emulator.

    Returns an object with two methods: reset() gives an observation, and step(action) gives (observation, reward, end).
    An observation is uint8 [frames, 84, 84], with the newest frame last. What follows an end, such as the restart of an
    episode, is done as your implementation does it.
    """
    return ATARI.atari(game)


def images(images):
    """How observations that are images go through the network for them.

    images: uint8 [B, 4, 84, 84].

    Returns a dict. torch_tables.describe_image_network() makes all of it but "stored" from a network in torch.
    - "input": float, what the first layer gets, in any order of its numbers.
    - "layers": list of str, words for each layer before the head of the policy, such as "32 of 8 x 8 / 4" for a
      convolution and "512" for a linear layer.
    - "shared": bool, whether the values go through these layers as well.
    - "stored": str, the dtype with which a rollout stores observations. It may be left out.
    """
    return ATARI.images(images)


def recurrent_weights(seed):
    """The weights that a recurrent layer starts with.

    seed: int.

    Returns a dict for a layer with G gates of H units each, and any number of inputs I:
    - "input": [G * H, I], the matrix of the inputs of all gates.
    - "recurrent": [G * H, H], the matrix of the state.
    - "biases": list of [G * H], all biases.
    - "trained": int, how many of the biases are trained.
    """
    return LSTM.recurrent_weights(seed)


def recurrence(world, settings):
    """What a recurrent policy computes each step from, in two rollouts and updates, one after the other.

    world: problems.World of discrete actions.
    settings: problems.Settings.

    Returns a list of problems.Call: the calls of what stands in place of the recurrent layer, in their order. This
    stand-in must do what problems.MEMORY says; torch_tables.Memory does.
    """
    return LSTM.recurrence(world, settings)
