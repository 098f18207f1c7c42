"""What is in a space, and what does not fit it."""

from pathlib import Path

import gymnasium as gym
import numpy as np


def layers(env):
    """An environment, or a vector of them, from the outermost wrapper to what is in all of them."""
    yield env
    while isinstance(env, gym.Wrapper | gym.vector.VectorWrapper):
        env = env.env
        yield env


def leaves(space, obs=None, name="observation"):
    """The parts of a Dict or Tuple, or the space itself: a name, the space and its part of an observation for each."""
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        parts = space.items() if isinstance(space, gym.spaces.Dict) else enumerate(space)
        for key, part in parts:
            yield from leaves(part, None if obs is None else obs[key], f"{name}[{key!r}]")
    else:
        yield name, space, obs


def has_convolutions(script):
    return "Conv2d" in Path(script.__file__).read_text()


def check_spaces(script, space, page):
    """Finds parts of an observation that do not belong in a vector: images, and what has no fixed size."""
    axes = 3 if hasattr(script, "Seats") else 2  # of an image; the first is that of the two players
    for name, part, _ in leaves(space):
        try:
            is_flat = part.is_np_flattenable
        except NotImplementedError:  # a space of the user's own
            is_flat = False
        if not is_flat:
            page.error(f"{name} is of the space {part}, which has no fixed size: a wrapper must encode or drop it")
        elif isinstance(part, gym.spaces.Box) and len(part.shape) >= axes and (part.high == 255).any():
            if has_convolutions(script):
                continue  # its network makes an image of the vector again
            page.warn(f"{name} is an image {list(part.shape)}, which the script makes a part of a vector")


def misfit(space, obs):
    """How an observation does not fit its space, in words; "" if it does."""
    for name, part, value in leaves(space, obs):
        if isinstance(part, gym.spaces.Box):
            text = misfit_of_array(part, np.asarray(value))
        else:
            text = "" if part.contains(value) else f"is {value!r}, which is not in {part}"
        if text:
            return f"{name} {text}"
    return ""


def misfit_of_array(space, array):
    """The same for a Box, without the observation's name."""
    if array.shape != space.shape:
        return f"has the shape {list(array.shape)}, and its space {list(space.shape)}"
    if array.dtype.kind not in "biuf":
        return f"has the type {array.dtype}, and its space {space.dtype}"
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return f"has a value that is {array[~np.isfinite(array)][0]}"
    if array.dtype.kind == "f" and space.dtype.kind != "f" and (array % 1 != 0).any():
        return f"has fractions, and its space of the type {space.dtype} has none"
    rounding = 1e-5 * (1 + np.abs(array.astype(np.float64)))  # integers of 8 bits would overflow
    for outside, bound, word in (
        (array > space.high + rounding, space.high, "ends"),
        (array < space.low - rounding, space.low, "begins"),
    ):
        if outside.any():
            index = tuple(np.argwhere(outside)[0].tolist())
            where = " ".join(map(str, index))
            return f"{where} is {array[index]:.6g}, and its space {word} at {bound[index]:.6g}"
    return ""
