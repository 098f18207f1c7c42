"""What the adapters of JAX's libraries share."""

import numpy as np


def find(tree, name):
    """The first attribute of a name in nested tuples, such as the mean `mu` in a state of optax's Adam; or None."""
    if hasattr(tree, name):
        return getattr(tree, name)
    if isinstance(tree, dict):
        tree = list(tree.values())
    parts = tree if isinstance(tree, tuple | list) else ()
    for part in parts:
        found = find(part, name)
        if found is not None:
            return found
    if hasattr(tree, "inner_state"):
        return find(tree.inner_state, name)
    return None


def gradient_of_means(before, after, decay=0.9):
    """The gradient that Adam got in a step, from its mean before and after it."""
    return (np.asarray(after, float) - decay * np.asarray(before, float)) / (1 - decay)
