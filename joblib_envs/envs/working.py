"""Environments that take time, or whose data hang on more than seeds and actions."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

from joblib_envs.envs.counting import CountingEnv

__all__ = ["BusyEnv", "GlobalRandomEnv", "LinearAlgebraEnv", "SleepingEnv"]


class SleepingEnv(CountingEnv):
    """Count, and sleep in each step, as an environment that waits for a device or a network does.

    Spaces, reward, info and episode end are those of :class:`CountingEnv`.

    Args:
        step_s: Seconds a step sleeps.
        episode_length: Steps in an episode, at least 1.
    """

    def __init__(self, step_s: float = 0.001, episode_length: int = 1000) -> None:
        super().__init__(episode_length)
        self.step_s = step_s

    def step(self, action: int) -> tuple[npt.NDArray[np.int64], float, bool, bool, dict[str, Any]]:
        """Sleep, then add one to the count."""
        time.sleep(self.step_s)
        return super().step(action)


class BusyEnv(CountingEnv):
    """Count, and keep the interpreter busy in each step, as an environment in pure Python does.

    It holds the interpreter lock. Spaces, reward, info and episode end are those of
    :class:`CountingEnv`.

    Args:
        step_s: Seconds of processor time a step takes, about; measured with the thread's
            own clock, so that waiting for the processor doesn't count as work.
        episode_length: Steps in an episode, at least 1.
    """

    def __init__(self, step_s: float = 0.001, episode_length: int = 1000) -> None:
        super().__init__(episode_length)
        self.step_s = step_s

    def step(self, action: int) -> tuple[npt.NDArray[np.int64], float, bool, bool, dict[str, Any]]:
        """Work, then add one to the count."""
        end = time.thread_time() + self.step_s
        while time.thread_time() < end:
            sum(range(100))
        return super().step(action)


class LinearAlgebraEnv(gymnasium.Env[npt.NDArray[np.float64], int]):
    """Solve a linear system in each step; the last bits depend on the number of BLAS threads.

    Spaces:
        observation: ``Box`` of shape ``(size,)``, float64: the solution, scaled to length 1.
        action: ``Discrete(3)``, added to the right-hand side.
    Reward: the sum of the observation, a float.
    Episode end: truncated when ``episode_length`` steps were made.
    Info: empty.

    Args:
        size: Unknowns of the system.
        episode_length: Steps in an episode, at least 1.
    """

    def __init__(self, size: int = 100, episode_length: int = 5) -> None:
        self.observation_space = Box(-1.0, 1.0, shape=(size,), dtype=np.float64)
        self.action_space = Discrete(3)  # type: ignore[assignment]
        self.size = size
        self.episode_length = episode_length
        self._matrix: npt.NDArray[np.float64] = np.eye(size)
        self._solution: npt.NDArray[np.float64] = np.zeros(size)
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
        """Draw a new system."""
        super().reset(seed=seed, options=options)
        self._matrix = self.np_random.standard_normal((self.size, self.size))
        self._solution = np.zeros(self.size)
        self._steps = 0
        return self._solution.copy(), {}

    def step(self, action: int) -> tuple[npt.NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """Solve the system with the last solution on the right-hand side."""
        self._steps += 1
        solution = np.linalg.solve(self._matrix, self._solution + 1.0 + action)
        self._solution[:] = solution / np.linalg.norm(solution)
        over = self._steps >= self.episode_length
        return self._solution.copy(), float(self._solution.sum()), False, over, {}


class GlobalRandomEnv(CountingEnv):
    """Count, and draw the reward from NumPy's global generator.

    Not reproducible on purpose: no seed of a reset reaches that generator.
    Spaces, info and episode end are those of :class:`CountingEnv`; the reward is in [0, 1).
    """

    def step(self, action: int) -> tuple[npt.NDArray[np.int64], float, bool, bool, dict[str, Any]]:
        """Add one to the count."""
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(np.random.random()), terminated, truncated, info
