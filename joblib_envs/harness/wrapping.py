"""Gymnasium's wrappers by the names that a study gives them, with the arguments that it leaves out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import wrappers

__all__ = ["WRAPPERS", "Wrapping"]

Env: TypeAlias = gymnasium.Env[Any, Any]


@dataclass(frozen=True)
class Wrapping:
    """One wrapper with its arguments.

    Attributes:
        words: What a chart calls it.
        wrap: Puts it around an environment.
    """

    words: str
    wrap: Callable[[Env], Env]


def _with_halved_rewards(env: Env) -> Env:
    return wrappers.TransformReward(env, lambda reward: 0.5 * float(reward))


TWO = np.float32(2.0)

WRAPPERS = {
    "AtariPreprocessing": Wrapping("Atari preprocessing", lambda env: wrappers.AtariPreprocessing(env)),
    "RecordEpisodeStatistics": Wrapping("statistics", lambda env: wrappers.RecordEpisodeStatistics(env)),
    "NormalizeObservation": Wrapping("norm. observation", lambda env: wrappers.NormalizeObservation(env)),
    "NormalizeReward": Wrapping("norm. reward", lambda env: wrappers.NormalizeReward(env)),
    "FrameStackObservation": Wrapping("stack", lambda env: wrappers.FrameStackObservation(env, stack_size=4)),
    "TimeAwareObservation": Wrapping("time", lambda env: wrappers.TimeAwareObservation(env)),
    "RescaleAction": Wrapping("rescaled action", lambda env: wrappers.RescaleAction(env, -TWO, TWO)),
    "ClipReward": Wrapping("clipped reward", lambda env: wrappers.ClipReward(env, -0.5, 0.5)),
    "TransformReward": Wrapping("lambda", _with_halved_rewards),
}
"""By the names of their classes. ``TransformReward`` gets a lambda, as people give it."""
