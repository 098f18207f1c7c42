"""Plays a scripted Atari game through an implementation's preprocessing, and says what that made of it."""

from dataclasses import dataclass

import numpy as np

from conformance.problems import Game, screen_of

ACTION = 3  # of every decision: no wrapper takes it by itself
RESTARTS = 20  # games that are played

# The alternatives of each choice; the first is what ppo2 does.
FRAMES = {
    "pool": ("maximum of the last two", "maximum of the last two, after they are gray", "the last one", "mean of all"),
    "gray": ("luma", "the colors' mean", "luma of HDTV"),
    "order": ("gray, then resized", "resized, then gray"),
    "resize": ("area", "bilinear", "nearest"),
}
REWARDS = {
    "total": ("sum", "the last one", "the largest"),
    "size": ("sign", "clipped to [-1, 1]", "as it is"),
}


@dataclass
class Decision:
    """What one step() of the environment, or its reset(), was and gave."""

    first: int  # the number of its first entry in the game's log
    frames: list  # the entries that have its own action
    rest: list  # those behind them: what starts the next episode
    lives: int  # before it
    obs: np.ndarray  # uint8 [frames, 84, 84]
    reward: float = 0.0
    end: bool = False


def play(environment, game):
    """The Decisions of RESTARTS games; ValueError where the environment gives what it should not."""
    decisions = []
    obs = environment.reset()
    decisions.append(Decision(0, [], list(game.log), game.lives, checked(obs)))
    while sum(frame.action is None for frame in game.log) <= RESTARTS:
        first, lives = len(game.log), game.lives
        obs, reward, end = environment.step(ACTION)
        entries = game.log[first:]
        number = next((i for i, frame in enumerate(entries) if frame.action != ACTION), len(entries))
        parts = entries[:number], entries[number:]
        decisions.append(Decision(first, *parts, lives, checked(obs), float(reward), bool(end)))
        if len(decisions) > 200 * RESTARTS:
            raise ValueError(f"atari: {len(decisions)} steps do not play {RESTARTS} games")
    return decisions


def checked(obs):
    """An observation [frames, 84, 84]; ValueError where it is none."""
    obs = np.asarray(obs)
    if obs.ndim != 3 or obs.shape[1:] != (84, 84):
        raise ValueError(f"atari: an observation has the shape {list(obs.shape)}, and not [frames, 84, 84]")
    return obs


def inner(decisions):
    """The decisions that end nothing and have the usual number of frames."""
    usual = frames_of_an_action(decisions)
    return [each for each in decisions if not each.end and not each.rest and len(each.frames) == usual]


def frames_of_an_action(decisions):
    """How many frames most actions last."""
    numbers = [len(each.frames) for each in decisions if each.frames]
    return max(set(numbers), key=numbers.count)


def newest_frame(decision, choice):
    """The newest frame [84, 84] of a decision's observation under a combination of FRAMES."""
    import cv2  # which not every library needs

    def gray(image):
        if choice["gray"] == "luma":
            return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        weights = {"the colors' mean": (1 / 3, 1 / 3, 1 / 3), "luma of HDTV": (0.2126, 0.7152, 0.0722)}
        return (image @ np.array(weights[choice["gray"]])).astype(np.uint8)

    def resize(image):
        methods = {"area": cv2.INTER_AREA, "bilinear": cv2.INTER_LINEAR, "nearest": cv2.INTER_NEAREST}
        return cv2.resize(image, (84, 84), interpolation=methods[choice["resize"]])

    def reduced(image):
        return resize(gray(image)) if choice["order"] == "gray, then resized" else gray(resize(image))

    last = decision.first + len(decision.frames) - 1
    screens = [screen_of(number) for number in range(decision.first, last + 1)]
    if choice["pool"] == "the last one":
        return reduced(screens[-1])
    if choice["pool"] == "mean of all":
        return reduced(np.mean(screens, axis=0).astype(np.uint8))
    if choice["pool"] == "maximum of the last two":
        return reduced(np.maximum(*screens[-2:]) if len(screens) > 1 else screens[-1])
    return np.maximum.reduce([reduced(screen) for screen in screens[-2:]])


def reward_of(decision, choice):
    """The reward of a decision under a combination of REWARDS."""
    rewards = [frame.reward for frame in decision.frames]
    total = {"sum": sum(rewards), "the last one": rewards[-1], "the largest": max(rewards, key=abs)}[choice["total"]]
    return {"sign": float(np.sign(total)), "clipped to [-1, 1]": min(max(total, -1.0), 1.0)}.get(choice["size"], total)


def starts(decisions):
    """The actions behind each restart of the game, up to the next decision: lists of ints."""
    found = []
    for decision in decisions:
        restarts = [i for i, frame in enumerate(decision.rest) if frame.action is None]
        if restarts:
            found.append([frame.action for frame in decision.rest[restarts[-1] + 1 :]])
    return found


def describe_noops(decisions):
    """(words, whether there are 1 to 30 of them) for the no-ops with which games start."""
    numbers = []
    for actions in starts(decisions):
        others = [i for i, action in enumerate(actions) if action != 0]
        numbers.append(others[0] if others else len(actions))
    right = min(numbers) >= 1 and max(numbers) <= 30 and len(set(numbers)) > 1
    words = "none" if max(numbers) == 0 else f"{min(numbers)} to {max(numbers)}"
    return words, right


def describe_fire(decisions):
    """The names of the actions with which a game starts behind its no-ops; "nothing" where there is none."""
    found = set()
    for actions in starts(decisions):
        taken = [action for i, action in enumerate(actions) if action != 0 and action != ([0, *actions])[i]]
        found.add(", ".join(Game.MEANINGS[action] for action in taken) or "nothing")
    return " or ".join(sorted(found))


def describe_lives(decisions):
    """Words for what the loss of a life that is not the last does."""
    found = set()
    for decision in decisions:
        if decision.frames and 0 < decision.frames[-1].lives < decision.lives:
            if not decision.end:
                found.add("an episode is a whole game")
            elif any(frame.action is None for frame in decision.rest):
                found.add("a lost life restarts the game")
            else:
                found.add("a lost life ends the episode")
    return " or ".join(sorted(found))


def describe_first_stack(decisions):
    """Words for the frames of an observation before an episode's first one."""
    found = set()
    for before, decision in zip([None, *decisions], decisions, strict=False):
        if not decision.rest:
            continue
        old, newest = decision.obs[:-1], decision.obs[-1]
        if not old.any():
            found.add("black")
        elif (old == newest).all():
            found.add("the first frame, repeated")
        elif before is not None and (old == before.obs[1:]).all():
            found.add("those of the episode before")
        else:
            found.add("other frames")
    return " or ".join(sorted(found))


def is_stack(decisions):
    """Whether each observation has the newest frames of the one before it."""
    pairs = zip(decisions, decisions[1:], strict=False)
    return all((one.obs[1:] == other.obs[:-1]).all() for one, other in pairs if not other.end and not other.rest)
