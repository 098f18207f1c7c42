"""The rows of Atari games: plays a scripted game through an implementation's preprocessing, and says what that did."""

from dataclasses import dataclass

import numpy as np

from conformance import reference
from conformance.answers import one_line
from conformance.explanation import NO, YES, Explanation, Row, unknown
from conformance.problems import Game, screen_of

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


# Playing


@dataclass
class Decision:
    """One step() of the environment, or its reset(): what it asked of the game, and what it gave."""

    first: int  # the number of its first entry in the game's log
    frames: list  # of Frame: the entries that have its own action
    rest: list  # of Frame: the entries behind them, with which the environment starts the next episode
    lives: int  # before it
    obs: np.ndarray  # uint8 [frames, 84, 84]
    reward: float = 0.0
    end: bool = False


def play(environment, game):
    """The Decisions of RESTARTS games; ValueError where the environment gives what it should not."""
    obs = environment.reset()
    decisions = [Decision(0, [], list(game.log), game.lives, checked(obs))]
    while count_restarts(game.log) <= RESTARTS:
        if len(decisions) > 200 * RESTARTS:
            raise ValueError(f"atari: {len(decisions)} steps do not play {RESTARTS} games")
        first = len(game.log)
        lives = game.lives
        obs, reward, end = environment.step(ACTION)
        frames, rest = split_at_other_action(game.log[first:])
        decisions.append(Decision(first, frames, rest, lives, checked(obs), float(reward), bool(end)))
    return decisions


def count_restarts(entries):
    """How many entries of a log are restarts of the game."""
    return sum(entry.action is None for entry in entries)


def split_at_other_action(entries):
    """The entries of a log up to the first that has not the action ACTION, and the rest."""
    for i, entry in enumerate(entries):
        if entry.action != ACTION:
            return entries[:i], entries[i:]
    return entries, []


def checked(obs):
    """An observation [frames, 84, 84]; ValueError where it is none."""
    obs = np.asarray(obs)
    if obs.ndim != 3 or obs.shape[1:] != (84, 84):
        raise ValueError(f"atari: an observation has the shape {list(obs.shape)}, and not [frames, 84, 84]")
    return obs


def frames_of_an_action(decisions):
    """How many frames most actions last."""
    numbers = [len(decision.frames) for decision in decisions if decision.frames]
    return max(set(numbers), key=numbers.count)


def ordinary(decisions):
    """The decisions that end nothing and have the usual number of frames."""
    usual = frames_of_an_action(decisions)
    return [each for each in decisions if not each.end and not each.rest and len(each.frames) == usual]


# Frames and rewards of a decision


def gray(image, how):
    """An image uint8 [H, W, 3] in gray, uint8 [H, W], by an alternative of FRAMES["gray"]."""
    import cv2  # which not every library needs

    if how == "luma":
        return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    weights = {"the colors' mean": (1 / 3, 1 / 3, 1 / 3), "luma of HDTV": (0.2126, 0.7152, 0.0722)}
    return (image @ np.array(weights[how])).astype(np.uint8)


def resize(image, how):
    """An image as 84 x 84, by an alternative of FRAMES["resize"]."""
    import cv2

    methods = {"area": cv2.INTER_AREA, "bilinear": cv2.INTER_LINEAR, "nearest": cv2.INTER_NEAREST}
    return cv2.resize(image, (84, 84), interpolation=methods[how])


def warp(image, choice):
    """A screen, uint8 [210, 160, 3], as a gray image uint8 [84, 84] under a combination of FRAMES."""
    if choice["order"] == "gray, then resized":
        return resize(gray(image, choice["gray"]), choice["resize"])
    return gray(resize(image, choice["resize"]), choice["gray"])


def newest_frame(decision, choice):
    """The newest frame, uint8 [84, 84], of a decision's observation under a combination of FRAMES."""
    end = decision.first + len(decision.frames)
    screens = [screen_of(number) for number in range(decision.first, end)]
    if choice["pool"] == "the last one":
        return warp(screens[-1], choice)
    if choice["pool"] == "mean of all":
        return warp(np.mean(screens, axis=0).astype(np.uint8), choice)
    if choice["pool"] == "maximum of the last two":
        return warp(np.max(screens[-2:], axis=0), choice)
    return np.max([warp(screen, choice) for screen in screens[-2:]], axis=0)


def reward_of(decision, choice):
    """The reward of a decision under a combination of REWARDS."""
    rewards = [frame.reward for frame in decision.frames]
    totals = {"sum": sum(rewards), "the last one": rewards[-1], "the largest": max(rewards, key=abs)}
    total = totals[choice["total"]]
    if choice["size"] == "sign":
        return float(np.sign(total))
    if choice["size"] == "clipped to [-1, 1]":
        return min(max(total, -1.0), 1.0)
    return total


# What starts and ends an episode


def starts(decisions):
    """The actions behind each restart of the game, up to the next decision: lists of ints."""
    found = []
    for decision in decisions:
        restarts = [i for i, frame in enumerate(decision.rest) if frame.action is None]
        if restarts:
            behind = decision.rest[restarts[-1] + 1 :]
            found.append([frame.action for frame in behind])
    return found


def count_noops(actions):
    """How many no-ops begin a list of actions."""
    for i, action in enumerate(actions):
        if action != 0:
            return i
    return len(actions)


def noops_row(decisions):
    """The row of the no-ops with which games start."""
    numbers = [count_noops(actions) for actions in starts(decisions)]
    fewest = min(numbers)
    most = max(numbers)
    is_right = fewest >= 1 and most <= 30 and fewest < most
    found = "none" if most == 0 else f"{fewest} to {most}"
    return row("noops", is_right, found)


def describe_fire(decisions):
    """The names of the actions with which games start behind their no-ops; "nothing" where there is none."""
    found = set()
    for actions in starts(decisions):
        taken = []
        previous = 0
        for action in actions:
            if action not in (0, previous):  # an action that lasts for some frames counts once
                taken.append(Game.MEANINGS[action])
            previous = action
        found.add(", ".join(taken) or "nothing")
    return " or ".join(sorted(found))


def describe_lives(decisions):
    """Words for what the loss of a life that is not the last does."""
    found = set()
    for decision in decisions:
        if not decision.frames or not 0 < decision.frames[-1].lives < decision.lives:
            continue
        if not decision.end:
            found.add("an episode is a whole game")
        elif count_restarts(decision.rest) > 0:
            found.add("a lost life restarts the game")
        else:
            found.add("a lost life ends the episode")
    return " or ".join(sorted(found))


def describe_first_stack(decisions):
    """Words for the frames of an observation before an episode's first one."""
    found = set()
    previous = None
    for decision in decisions:
        if decision.rest:  # it starts an episode
            older = decision.obs[:-1]
            newest = decision.obs[-1]
            if not older.any():
                found.add("black")
            elif (older == newest).all():
                found.add("the first frame, repeated")
            elif previous is not None and (older == previous.obs[1:]).all():
                found.add("those of the episode before")
            else:
                found.add("other frames")
        previous = decision
    return " or ".join(sorted(found))


def is_stack(decisions):
    """Whether each observation within an episode has the newest frames of the one before it."""
    for previous, decision in zip(decisions, decisions[1:], strict=False):
        if decision.end or decision.rest:
            continue
        if (previous.obs[1:] != decision.obs[:-1]).any():
            return False
    return True


# The rows


def row(name, is_right, found):
    """The row ATARI[name] of something that is counted, and not computed."""
    return Row(*ATARI[name], YES if is_right else NO, found, 0.0)


def describe_image(choice):
    """Words for how a frame is reduced, without what is as in ppo2."""
    words = [choice["order"]]
    for name in ("gray", "resize"):
        if choice[name] != FRAMES[name][0]:
            words.append(choice[name])
    return ", ".join(words)


def reward_rows(decisions):
    """The rows of the rewards of decisions."""
    rewards = np.array([decision.reward for decision in decisions])

    def predict(choice):
        return [{"rewards": np.array([reward_of(decision, choice) for decision in decisions])}]

    explanation = Explanation([{"rewards": rewards}], reference.choices(REWARDS), predict)
    return [
        explanation.row(*ATARI["total"], "total", expected=("sum",)),
        explanation.row(*ATARI["size"], "size", expected=("sign",)),
    ]


def image_rows(decisions):
    """The rows of the newest frames of decisions; ImportError without OpenCV."""
    frames = [{"frame": decision.obs[-1].astype(float)} for decision in decisions]

    def predict(choice):
        return [{"frame": newest_frame(decision, choice).astype(float)} for decision in decisions]

    explanation = Explanation(frames, reference.choices(FRAMES), predict)
    names = "order", "gray", "resize"
    expected = tuple(FRAMES[name][0] for name in names)
    return [
        explanation.row(*ATARI["pool"], "pool", expected=(FRAMES["pool"][0],)),
        explanation.row(*ATARI["image"], *names, words=describe_image, expected=expected),
    ]


def stack_rows(decisions):
    """The rows of the frames that an observation has."""
    count = len(decisions[0].obs)
    if not is_stack(decisions):
        rows = [row("stack", False, f"{count} frames, which do not follow each other")]
    else:
        rows = [row("stack", count == 4, f"{count} frames" if count > 1 else "1 frame")]
    if count > 1:
        first = describe_first_stack(decisions)
        rows.append(row("first", first == "black", first))
    else:
        rows += unknown([ATARI["first"]], "an observation is one frame")
    return rows


def measure_atari(adapter):
    """The rows of what an environment makes of a scripted game."""
    game = Game()
    environment = adapter.ask("atari", game)
    if environment is None:
        return unknown(ATARI.values(), adapter.errors["atari"])
    try:
        decisions = play(environment, game)
    except Exception as error:  # of the implementation's own code
        return unknown(ATARI.values(), one_line(error))
    if not any(decision.frames for decision in decisions):
        return unknown(ATARI.values(), f"the game never got the action {ACTION}, which every decision was")
    frames = frames_of_an_action(decisions)
    lives = describe_lives(decisions)
    fire = describe_fire(decisions)
    inner = ordinary(decisions)
    rows = [
        noops_row(decisions),
        row("skip", frames == 4, f"{frames} frames" if frames > 1 else "1 frame"),
        row("lives", lives == "a lost life ends the episode", lives),
        row("fire", fire == "FIRE, RIGHT", fire),
    ]
    rows += reward_rows(inner)
    try:
        rows += image_rows(inner[:6])
    except ImportError as error:
        rows += unknown([ATARI["pool"], ATARI["image"]], str(error))
    return rows + stack_rows(decisions)
