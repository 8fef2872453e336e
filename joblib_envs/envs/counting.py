"""Environments that count their steps: every expected value can be written in a test."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

__all__ = ["BufferReusingEnv", "CountingEnv", "VariableLengthEnv"]


class CountingEnv(gymnasium.Env[npt.NDArray[np.int64], int]):
    """Count the steps since the reset.

    Spaces:
        observation: ``Box`` of shape ``()``, int64: ``start`` plus the steps since the reset.
        action: ``Discrete(2)``, ignored.
    Reward: the count plus :attr:`bonus`, a float.
    Episode end: terminated when ``episode_length`` steps were made.
    Info: ``count`` (int) always; ``drawn`` (int) after a reset, a draw from the
    environment's own generator, which shows a stream that was lost or repeated.
    Frame: ``(2, 2, 3)`` uint8, filled with the count modulo 256.

    Args:
        episode_length: Steps in an episode, at least 1.
        start: The count after a reset.
        render_mode: None or ``"rgb_array"``.

    Attributes:
        bonus: What every reward gets on top, 0.0 at first; meant for ``set_attr``.

    Example:
        >>> env = CountingEnv(episode_length=2)
        >>> observation, info = env.reset(seed=0)
        >>> env.step(1)
        (array(1), 1.0, False, False, {'count': 1})
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 1}  # noqa: RUF012 (Gymnasium's own)

    def __init__(self, episode_length: int = 5, start: int = 0, render_mode: str | None = None) -> None:
        if episode_length < 1:
            raise ValueError(f"episode_length {episode_length} is not allowed: give 1 or more")
        self.observation_space = Box(0, np.iinfo(np.int64).max, shape=(), dtype=np.int64)
        self.action_space = Discrete(2)  # type: ignore[assignment]
        self.render_mode = render_mode
        self.episode_length = episode_length
        self.start = start
        self.count = start
        self.bonus = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
        """Set the count back and draw one number, which the info shows."""
        super().reset(seed=seed, options=options)
        self.count = self.start
        return self._observation(), {"count": self.count, "drawn": int(self.np_random.integers(2**31))}

    def step(self, action: int) -> tuple[npt.NDArray[np.int64], float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        """Add one to the count."""
        self.count += 1
        terminated = self.count - self.start >= self.episode_length
        return self._observation(), self.count + self.bonus, terminated, False, {"count": self.count}

    def render(self) -> npt.NDArray[np.uint8] | None:
        """Return a frame filled with the count, or None without a render mode."""
        if self.render_mode is None:
            return None
        return np.full((2, 2, 3), self.count % 256, dtype=np.uint8)

    def count_after(self, num_steps: int, *, twice: bool = False) -> int:
        """Return what the count will be after so many steps (twice as many if ``twice``); for ``call``."""
        return self.count + num_steps * (2 if twice else 1)

    def _observation(self) -> npt.NDArray[np.int64]:
        return np.array(self.count, dtype=np.int64)


class BufferReusingEnv(gymnasium.Env[npt.NDArray[np.float32], int]):
    """Return the same objects at every step, changed in place.

    Environments in the wild do so to save time. Whoever keeps a step's result without a
    copy finds all of them equal to the last one.

    Spaces:
        observation: ``Box`` of shape ``(3,)``, float32: steps since the reset, resets, the action.
        action: ``Discrete(4)``.
    Reward: the steps since the reset, a float.
    Episode end: truncated when ``episode_length`` steps were made.
    Info: one dict for ever, with ``array`` (a copy of the observation's values in one
    float64 array), ``history`` (a list that grows during the episode) and ``inner`` (a dict).

    Args:
        episode_length: Steps in an episode, at least 1.
    """

    def __init__(self, episode_length: int = 3) -> None:
        self.observation_space = Box(-np.inf, np.inf, shape=(3,), dtype=np.float32)
        self.action_space = Discrete(4)  # type: ignore[assignment]
        self.episode_length = episode_length
        self._buffer = np.zeros(3, dtype=np.float32)
        self._info: dict[str, Any] = {"array": np.zeros(3), "history": [], "inner": {"count": 0, "log": []}}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Start an episode in the same buffers."""
        super().reset(seed=seed, options=options)
        self._buffer[:] = (0, self._buffer[1] + 1, -1)
        self._info["history"].clear()
        return self._buffer, self._updated_info()

    def step(self, action: int) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Write the next values into the same buffers."""
        self._buffer[0] += 1
        self._buffer[2] = action
        steps = int(self._buffer[0])
        return self._buffer, float(steps), False, steps >= self.episode_length, self._updated_info()

    def _updated_info(self) -> dict[str, Any]:
        self._info["array"][:] = self._buffer
        self._info["history"].append(int(self._buffer[0]))
        self._info["inner"]["count"] = int(self._buffer[0])
        self._info["inner"]["log"][:] = [int(self._buffer[1])]
        return self._info


class VariableLengthEnv(gymnasium.Env[npt.NDArray[np.float64], int]):
    """Run episodes whose length and kind of end are drawn at the reset.

    Spaces:
        observation: ``Box`` of shape ``(2,)``, float64: steps since the reset, the length drawn.
        action: ``Discrete(2)``, ignored.
    Reward: a float in [0, 1) from the environment's generator, with all its bits.
    Episode end: after 2 to ``max_length`` steps, drawn at the reset: terminated,
    truncated, or both at once.
    Info: ``length`` (int) after a reset, ``remaining`` (int) after a step.

    Args:
        max_length: The longest episode, at least 2.
    """

    def __init__(self, max_length: int = 20) -> None:
        self.observation_space = Box(0.0, np.inf, shape=(2,), dtype=np.float64)
        self.action_space = Discrete(2)  # type: ignore[assignment]
        self.max_length = max_length
        self._steps = 0
        self._length = 0
        self._terminates = False
        self._truncates = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
        """Draw the length and the kind of end of the next episode."""
        super().reset(seed=seed, options=options)
        self._steps = 0
        self._length = int(self.np_random.integers(2, self.max_length, endpoint=True))
        end = int(self.np_random.integers(3))
        self._terminates, self._truncates = end != 1, end != 0
        return self._observation(), {"length": self._length}

    def step(self, action: int) -> tuple[npt.NDArray[np.float64], float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        """Go one step towards the end that was drawn."""
        self._steps += 1
        over = self._steps >= self._length
        info = {"remaining": self._length - self._steps}
        reward = float(self.np_random.random())
        return self._observation(), reward, over and self._terminates, over and self._truncates, info

    def _observation(self) -> npt.NDArray[np.float64]:
        return np.array([self._steps, self._length], dtype=np.float64)
