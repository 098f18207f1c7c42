"""The rows of invalid action masking, of an update in a world in which some actions are invalid."""

import numpy as np

from conformance import reference
from conformance.explanation import NO, YES, Explanation, Row, unknown
from conformance.problems import make_world
from conformance.updates import LOSS, explain_losses

MASKS = {
    "taken": ("aux 4", "no invalid action is taken"),
    "probabilities": ("aux 4", "the loss has the probabilities of the valid actions"),
    "entropies": ("aux 4", "the entropy is that of the valid actions"),
}


def count_invalid(world, actions):
    """How many actions [M, N] or [M, N, K] are invalid."""
    size = world.rewards.size
    actions = np.asarray(actions).reshape(size, -1)
    invalid = np.zeros(size, bool)
    for k, part in enumerate(reference.parts(world)):
        invalid |= ~world.masks[:size, part][np.arange(size), actions[:, k]]
    return int(invalid.sum())


def measure_masks(adapter, kind):
    """The rows of invalid action masking, for "discrete" or "multidiscrete" actions."""
    unmasked = adapter.update(make_world(kind), LOSS)
    world = make_world(kind, masks=True)
    answer = adapter.update(world, LOSS)
    if unmasked is None or answer is None:
        return unknown(MASKS.values(), adapter.errors["update"])
    invalid = count_invalid(world, answer.actions)
    words = f"{invalid} of {world.rewards.size} are invalid"
    rows = [Row(*MASKS["taken"], NO if invalid else YES, words, 0.0)]
    # All else of the loss is what it is where every action is valid.
    losses = explain_losses(make_world(kind), LOSS, unmasked)
    if losses is None or not losses[0].reproduced:
        return rows + unknown([MASKS["probabilities"], MASKS["entropies"]], "the loss without masks is not known")
    rest = {name: (best,) for name, best in losses[0].best.items()}
    batch = reference.Batch(world, LOSS, answer)
    gradients = [{"policy": (step.gradient or step.clipped)["policy"]} for step in answer.steps]

    def predict(choice):
        with np.errstate(divide="ignore", invalid="ignore"):  # an invalid action that was taken has the probability 0
            return [reference.policy_gradient(batch, step, choice) for step in answer.steps]

    explanation = Explanation(gradients, reference.choices(rest | reference.MASKS), predict)
    for name in ("probabilities", "entropies"):
        rows.append(explanation.row(*MASKS[name], name, expected=("of valid actions",)))
    return rows
