"""The rows of the network for images: what reaches its first convolution, and its layers."""

import numpy as np

from conformance.answers import BadAnswer, arrays_of
from conformance.explanation import NO, YES, Explanation, Row, unknown

IMAGES = {
    "layers": ("atari 8", "convolutions and a dense layer as in Mnih et al. (2015)"),
    "shared": ("atari 8", "policy and value share it"),
    "scaled": ("atari 9", "pixels are scaled to [0, 1]"),
    "stored": ("atari 9", "the rollout stores them as bytes"),
}
LAYERS = "32 of 8 x 8 / 4, 64 of 4 x 4 / 2, 64 of 3 x 3 / 1, 512"

SCALES = {
    "/ 255": lambda pixels: pixels / 255,
    "not scaled": lambda pixels: pixels,
    "/ 256": lambda pixels: pixels / 256,
    "/ 255 - 0.5": lambda pixels: pixels / 255 - 0.5,
    "to [-1, 1]": lambda pixels: pixels / 127.5 - 1,
    "/ 255 a second time": lambda pixels: pixels / 255**2,
}


def make_images():
    """Two observations of noise, uint8 [2, 4, 84, 84], which have the pixels 0 and 255."""
    return np.random.default_rng(13).integers(0, 256, (2, 4, 84, 84), dtype=np.uint8)


def measure_images(adapter):
    """The rows of the network for images."""
    images = make_images()
    answer = adapter.ask("images", images)
    if answer is None:
        return unknown(IMAGES.values(), adapter.errors["images"])
    try:
        layers = ", ".join(answer["layers"])
        shared = answer["shared"]
        given = arrays_of(answer, {"input": np.shape(answer["input"])}, "images")
        if given["input"].size != images.size:
            raise BadAnswer(f"images: an input of {given['input'].size} numbers, for {images.size} pixels")
    except BadAnswer as error:
        return unknown(IMAGES.values(), str(error))
    except (KeyError, TypeError) as error:
        return unknown(IMAGES.values(), f"images is not as the template says: {error!r}")

    # The order of pixels and channels is the implementation's.
    def in_order(array):
        return [{"input": np.sort(array.reshape(len(images), -1))}]

    choices = [{"scale": name} for name in SCALES]
    pixels = images.astype(float)
    explanation = Explanation(
        in_order(given["input"]), choices, lambda choice: in_order(SCALES[choice["scale"]](pixels))
    )
    rows = [
        Row(*IMAGES["layers"], YES if layers == LAYERS else NO, layers, 0.0),
        Row(*IMAGES["shared"], YES if shared else NO, "one network" if shared else "two networks", 0.0),
        explanation.row(*IMAGES["scaled"], "scale", expected=("/ 255",)),
    ]
    stored = answer.get("stored")
    if stored is None:
        rows += unknown([IMAGES["stored"]], "the adapter gives none")
    else:
        rows.append(Row(*IMAGES["stored"], YES if stored == "uint8" else NO, stored, 0.0))
    return rows
