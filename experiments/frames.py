"""An environment whose observations are large and whose steps do nothing: what is left is the copying."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

__all__ = ["FramesEnv"]


class FramesEnv(gymnasium.Env[Any, int]):
    """Shows pictures of the size of Atari's, whose first pixel is the number of the step.

    Spaces: an observation is ``Box`` of shape ``(210, 160, 3)``, uint8; an action is one of ``Discrete(2)``.
    """

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (210, 160, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(2)  # type: ignore[assignment]
        self._picture = np.zeros((210, 160, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin with a black picture."""
        super().reset(seed=seed, options=options)
        self._picture[0, 0, 0] = 0
        return self._picture, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count in the first pixel."""
        self._picture[0, 0, 0] += 1
        return self._picture, float(action), False, bool(self._picture[0, 0, 0] == 200), {}
