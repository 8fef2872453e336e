"""Policies for the tests, in a module that workers can import."""

from __future__ import annotations

import threading

import numpy as np


def lean(observations):
    """Push the cart to where the pole leans."""
    return (observations[:, 2] > 0).astype(np.int64)


def alternate(observations):
    """Choose 0 or 1 by the parity of the count."""
    return observations.astype(np.int64) % 2


def alternate_first(observations):
    """The same of the first number."""
    return alternate(observations[:, 0])


class Remembering:
    """Recurrent: sums up what it has seen in the episode, and acts by it."""

    def initial_state(self, num_envs):
        return {"sum": np.full((num_envs, 1), 0.5), "steps": (np.zeros(num_envs, np.int32), [np.zeros((num_envs, 2))])}

    def __call__(self, observations, state):
        steps, [two] = state["steps"]
        total = state["sum"] + observations.reshape(len(observations), -1)[:, :1]
        actions = (np.abs(total[:, 0] * 8).astype(np.int64) + steps) % 2
        observations[...] = 77  # they are its own
        return actions, {"sum": total, "steps": (steps + np.int32(1), [two + 1])}


class InPlace(Remembering):
    """The same, in arrays that it uses again and again."""

    def __call__(self, observations, state):
        actions, following = super().__call__(observations, state)
        state["sum"][...] = following["sum"]
        state["steps"] = following["steps"]
        if getattr(self, "actions", None) is None or len(self.actions) != len(actions):
            self.actions = actions.copy()
        self.actions[...] = actions
        return self.actions, state


class Previous:
    """Acts by the observation before, which is its state."""

    def initial_state(self, num_envs):
        return np.zeros(num_envs, np.int64)

    def __call__(self, observations, state):
        return state % 2, observations


class SameArray:
    """Gives one and the same array, of zeros, for each number of rows."""

    def __init__(self):
        self.arrays = {}

    def __call__(self, observations):
        return self.arrays.setdefault(len(observations), np.zeros((len(observations), 3), np.float32))


class PerEnv:
    """Has a bias for each sub-environment."""

    def __init__(self, biases):
        self.biases = np.asarray(biases)

    def for_envs(self, indices):
        return PerEnv(self.biases[indices.start : indices.stop])

    def __call__(self, observations):
        return (self.biases + observations.astype(np.int64)) % 2


class CountingCalls:
    """Not a function of observations: every other call gives 1."""

    def __init__(self):
        self.calls = 0

    def __call__(self, observations):
        self.calls += 1
        return np.full(len(observations), self.calls % 2)


class FailingAt:
    """Raises where the count of the first sub-environment that it sees reaches a number."""

    def __init__(self, count, at_least_start=0, error=ValueError):
        self.count = count
        self.at_least_start = at_least_start
        self.error = error

    def __call__(self, observations):
        if observations[0] >= self.at_least_start and observations[0] == self.count:
            raise self.error("no more")
        return np.zeros(len(observations), np.int64)


class WrongAt(FailingAt):
    """Gives one action too few there."""

    def __call__(self, observations):
        if observations[0] == self.count:
            return np.zeros(len(observations) - 1, np.int64)
        return np.zeros(len(observations), np.int64)


class Holding:
    """Can't be pickled."""

    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, observations):
        return np.zeros(len(observations), np.int64)


class Unloadable:
    """Can be pickled, and not be unpickled."""

    def __reduce__(self):
        return _refuse, ()

    def __call__(self, observations):
        return np.zeros(len(observations), np.int64)

    def __deepcopy__(self, memo):
        return self


def _refuse():
    raise ImportError("this worker lacks it")


class ChangingDtype:
    """Gives int64 where the count is even, int8 where it is odd."""

    def __call__(self, observations):
        return np.ones(len(observations), np.int64 if observations[0] % 2 == 0 else np.int8)
