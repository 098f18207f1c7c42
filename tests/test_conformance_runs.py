"""Repeats, resumes and evaluation, as conformance.runs measures them, of libraries that are made up."""

import numpy as np

from conformance import runs


class Exact:
    """A run is [weight, momentum, random number]; a checkpoint has the first two."""

    def start(self, seed):
        return [0.0, 0.0, float(seed)]

    def train(self, run, updates):
        for _ in range(updates):
            run[1] = 0.9 * run[1] + run[2]
            run[0] += run[1]
            run[2] += 0.5

    def save(self, run, folder):
        np.save(folder / "run.npy", run[:2])

    def load(self, folder):
        return [*np.load(folder / "run.npy"), 1.0]

    def begin_episodes(self, run, seed):
        run[2] = float(seed)

    def weights(self, run):
        return np.array(run[:1])

    def evaluate(self):
        return np.zeros(2), np.zeros(2)


def test_a_library_that_saves_all_but_its_generators():
    words = {"repeat": "yes", "resumed": "no: up to 0.5 apart", "seeded": "yes", "evaluation": "yes"}
    assert runs.measure(Exact()) == words


def test_a_checkpoint_without_momentum_is_found():
    class Loses(Exact):
        def load(self, folder):
            weight, _, number = super().load(folder)
            return [weight, 0.0, number]

    assert runs.measure(Loses())["seeded"] == "no: up to 0.9 apart"


def test_a_run_that_does_not_repeat_is_found():
    class Draws(Exact):
        number = 0.0

        def start(self, seed):
            self.number += 1
            return [0.0, 0.0, self.number]

    assert runs.measure(Draws())["repeat"].startswith("no")


def test_what_a_library_lacks_is_not_measured():
    class Trains:
        start, train, weights = Exact.start, Exact.train, Exact.weights

    assert runs.measure(Trains()) == {"repeat": "yes", "resumed": "has no resume"}
