"""Environments whose state a pickle loses, shares or refuses."""

from __future__ import annotations

import collections
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.utils import EzPickle

from joblib_envs.envs.counting import CountingEnv

__all__ = ["EzPickledCountingEnv", "HandleEnv", "UnpicklableEnv"]


class EzPickledCountingEnv(CountingEnv, EzPickle):
    """Count, but pickle the constructor's arguments only, as MuJoCo and Atari environments do.

    A copy made by pickling has lost the count and the random stream, and raises nothing.
    Spaces, reward and episode end are those of :class:`CountingEnv`.
    """

    def __init__(self, episode_length: int = 5, start: int = 0, render_mode: str | None = None) -> None:
        EzPickle.__init__(self, episode_length, start, render_mode)
        CountingEnv.__init__(self, episode_length, start, render_mode)


class UnpicklableEnv(CountingEnv):
    """Count, but hold a lock and a running generator, which no pickle takes.

    Spaces and episode end are those of :class:`CountingEnv`; the reward is the number of
    steps since the reset, which only the generator knows.
    """

    def __init__(self, episode_length: int = 5, start: int = 0, render_mode: str | None = None) -> None:
        super().__init__(episode_length, start, render_mode)
        self._lock = threading.Lock()
        self._ticks = _ticks()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
        """Set the count back and start a new generator."""
        self._ticks = _ticks()
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[npt.NDArray[np.int64], float, bool, bool, dict[str, Any]]:
        """Add one to the count and take one tick of the generator."""
        with self._lock:
            observation, _, terminated, truncated, info = super().step(action)
            return observation, float(next(self._ticks)), terminated, truncated, info


def _ticks() -> Iterator[int]:
    yield from itertools.count(1)


# What an outside simulator would hold. A handle it doesn't know is a new, empty
# simulation, so that a copy in another process goes wrong without an error.
_TOTALS: collections.defaultdict[int, int] = collections.defaultdict(int)
_HANDLES = itertools.count()


class HandleEnv(CountingEnv):
    """Count, and count in a simulator outside too, of which the environment holds a handle.

    It pickles without an error: a copy in the same process drives the original's
    simulator, a copy in another process an empty one.
    Spaces and episode end are those of :class:`CountingEnv`; the reward is the number of
    steps that the simulator has seen since the reset.
    """

    def __init__(self, episode_length: int = 5, start: int = 0, render_mode: str | None = None) -> None:
        super().__init__(episode_length, start, render_mode)
        self._handle = next(_HANDLES)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
        """Set both counts back."""
        _TOTALS[self._handle] = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[npt.NDArray[np.int64], float, bool, bool, dict[str, Any]]:
        """Add one to the count and to the simulator's total."""
        observation, _, terminated, truncated, info = super().step(action)
        _TOTALS[self._handle] += 1
        return observation, float(_TOTALS[self._handle]), terminated, truncated, info

    def close(self) -> None:
        """End the simulation."""
        _TOTALS.pop(self._handle, None)
