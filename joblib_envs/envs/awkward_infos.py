"""An environment whose infos are hard to put into one batch."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

__all__ = ["InfoEnv", "InfoKind"]


class InfoKind(enum.StrEnum):
    """The kinds of infos that :class:`InfoEnv` gives."""

    COMING_AND_GOING = "coming_and_going"
    SOME_EMPTY = "some_empty"
    TEXT = "text"
    NOTHING = "nothing"
    NESTED = "nested"
    NUMPY_SCALARS = "numpy_scalars"
    ARRAYS = "arrays"
    EMPTY_DICTS = "empty_dicts"
    MASK_COLLISION = "mask_collision"
    INT_THEN_FLOAT = "int_then_float"
    BOOL_THEN_FLOAT = "bool_then_float"
    FLOAT_THEN_TEXT = "float_then_text"
    DICT_THEN_SCALAR = "dict_then_scalar"
    NESTED_MIXED = "nested_mixed"
    UNEQUAL_SHAPES = "unequal_shapes"
    OVERFLOW = "overflow"


class InfoEnv(gymnasium.Env[npt.NDArray[np.int64], int]):
    """Give infos of a chosen awkward kind.

    Spaces:
        observation: ``Box`` of shape ``()``, int64: the steps since the reset.
        action: ``Discrete(2)``, ignored.
    Reward: 0.0.
    Episode end: truncated when ``episode_length`` steps were made.
    Info: a function of the kind, the variant and the steps since the reset.

    Args:
        kind: A :class:`InfoKind` or its value. ``"mask_collision"`` has the keys ``x`` and ``_x``.
        variant: What sub-environments of one batch differ by. "1 then 0.5" is 1 in
            variant 0 and 0.5 in all others.
        episode_length: Steps in an episode, at least 1.
    """

    def __init__(self, kind: str, variant: int = 0, episode_length: int = 4) -> None:
        self.observation_space = Box(0, np.iinfo(np.int64).max, shape=(), dtype=np.int64)
        self.action_space = Discrete(2)  # type: ignore[assignment]
        self.kind = InfoKind(kind)
        self.variant = variant
        self.episode_length = episode_length
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed, options=options)
        self._steps = 0
        return np.array(0, dtype=np.int64), self._info()

    def step(self, action: int) -> tuple[npt.NDArray[np.int64], float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        """Go one step."""
        self._steps += 1
        over = self._steps >= self.episode_length
        return np.array(self._steps, dtype=np.int64), 0.0, False, over, self._info()

    def _info(self) -> dict[str, Any]:
        return _INFOS[self.kind](self.variant, self._steps)


def _coming_and_going(variant: int, steps: int) -> dict[str, Any]:
    info: dict[str, Any] = {"always": steps}
    if (variant + steps) % 3 != 0:
        info["sometimes"] = variant + 0.25
    if (variant + steps) % 2 == 0:
        info["seldom"] = np.arange(3) + variant
    return info


def _nested(variant: int, steps: int) -> dict[str, Any]:
    inner = {"depth": {"value": variant + 0.5, "name": f"env {variant}"}}
    return {"outer": inner} if (variant + steps) % 2 == 0 else {"outer": {**inner, "more": steps}}


def _numpy_scalars(variant: int, steps: int) -> dict[str, Any]:
    return {
        "int8": np.int8(variant),
        "uint64": np.uint64(2**64 - 1 - variant),
        "float16": np.float16(0.1 * variant),
        "float32": np.float32(0.1 + steps),
        "float64": np.float64(0.1 + variant),
        "complex64": np.complex64(1 + 2j * variant),
        "bool": np.bool_(variant % 2),
        "python": (variant % 2 == 0),
        "nan": float("nan"),
        "negative_zero": -0.0,
    }


def _first_and_others(first: Callable[[], Any], others: Callable[[int], Any]) -> Callable[[int, int], Any]:
    return lambda variant, _: {"value": first() if variant == 0 else others(variant), "variant": variant}


_INFOS: dict[InfoKind, Callable[[int, int], dict[str, Any]]] = {
    InfoKind.COMING_AND_GOING: _coming_and_going,
    InfoKind.SOME_EMPTY: lambda variant, steps: {"variant": variant} if (variant + steps) % 2 else {},
    InfoKind.TEXT: lambda variant, steps: {"text": "x" * (variant + steps), "list": [variant, "two"]},
    InfoKind.NOTHING: lambda variant, _: {"none": None, "maybe": None if variant % 2 else "some"},
    InfoKind.NESTED: _nested,
    InfoKind.NUMPY_SCALARS: _numpy_scalars,
    InfoKind.ARRAYS: lambda variant, steps: {
        "matrix": np.full((2, 2), variant + 0.1, dtype=np.float32),
        "flags": np.array([variant % 2 == 0, steps % 2 == 0]),
        "scalar": np.array(steps, dtype=np.int16),
    },
    InfoKind.EMPTY_DICTS: lambda variant, _: {"empty": {}, "mixed": {"a": variant} if variant % 2 else {}},
    InfoKind.MASK_COLLISION: lambda variant, _: {"x": variant, "_x": True},
    InfoKind.INT_THEN_FLOAT: _first_and_others(lambda: 1, lambda variant: variant / 2),
    InfoKind.BOOL_THEN_FLOAT: _first_and_others(lambda: True, lambda variant: variant / 2),
    InfoKind.FLOAT_THEN_TEXT: _first_and_others(lambda: 0.5, lambda variant: f"{variant}"),
    InfoKind.DICT_THEN_SCALAR: _first_and_others(lambda: {"a": 1, "b": [2]}, lambda variant: variant),
    InfoKind.NESTED_MIXED: lambda variant, _: {"outer": {"value": 0.5 if variant else 1, "name": f"env {variant}"}},
    InfoKind.UNEQUAL_SHAPES: _first_and_others(lambda: np.zeros(2), lambda variant: np.ones(2 + variant)),
    InfoKind.OVERFLOW: _first_and_others(lambda: 1, lambda variant: 2**70 + variant),
}
