"""One small space of every kind, by name."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Space,
    Text,
    Tuple,
)

__all__ = ["EvenSpace", "SpaceKind", "make_space"]


class SpaceKind(enum.StrEnum):
    """The kinds of spaces that :func:`make_space` makes."""

    BOX_FLOAT16 = "box_float16"
    BOX_FLOAT32 = "box_float32"
    BOX_FLOAT64 = "box_float64"
    BOX_UINT8 = "box_uint8"
    DISCRETE = "discrete"
    DISCRETE_START = "discrete_start"
    MULTI_DISCRETE = "multi_discrete"
    MULTI_BINARY = "multi_binary"
    DICT = "dict"
    TUPLE = "tuple"
    TEXT = "text"
    SEQUENCE = "sequence"
    GRAPH = "graph"
    ONE_OF = "one_of"
    CUSTOM = "custom"


class EvenSpace(Space[int]):
    """The even numbers below 100: a space of a class that Gymnasium doesn't know."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(shape=(), dtype=np.int64, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Return False: only Gymnasium's own spaces flatten."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> int:  # noqa: ARG002
        """Draw an even number; masks are not known here."""
        return int(self.np_random.integers(50)) * 2

    def contains(self, x: Any) -> bool:
        """Tell whether ``x`` is an even int from 0 to 98."""
        return isinstance(x, int) and 0 <= x < 100 and x % 2 == 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EvenSpace)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "EvenSpace()"


def make_space(kind: str) -> Space[Any]:
    """Make a new space of a kind.

    Args:
        kind: A :class:`SpaceKind` or its value.

    Raises:
        ValueError: The kind is unknown.

    Example:
        >>> make_space("discrete_start")
        Discrete(3, start=5)
    """
    return _MAKERS[SpaceKind(kind)]()


def _floats(dtype: npt.DTypeLike, *shape: int) -> Space[Any]:
    return Box(-1.0, 1.0, shape=shape, dtype=dtype)  # type: ignore[arg-type]


def _dict() -> Space[Any]:
    return Dict(
        {
            "position": _floats(np.float32, 2),
            "gear": Discrete(4),
            "inner": Dict({"flags": MultiBinary(3), "pair": Tuple((Discrete(2), _floats(np.float64)))}),
        }
    )


def _tuple() -> Space[Any]:
    return Tuple((Discrete(3), _floats(np.float32, 2), Dict({"grid": MultiDiscrete([2, 3])})))


_MAKERS: dict[SpaceKind, Callable[[], Space[Any]]] = {
    SpaceKind.BOX_FLOAT16: lambda: _floats(np.float16, 3),
    SpaceKind.BOX_FLOAT32: lambda: _floats(np.float32, 3),
    SpaceKind.BOX_FLOAT64: lambda: _floats(np.float64, 2, 2),
    SpaceKind.BOX_UINT8: lambda: Box(0, 255, shape=(4, 4, 3), dtype=np.uint8),
    SpaceKind.DISCRETE: lambda: Discrete(5),
    SpaceKind.DISCRETE_START: lambda: Discrete(3, start=5),
    SpaceKind.MULTI_DISCRETE: lambda: MultiDiscrete([2, 5, 3]),
    SpaceKind.MULTI_BINARY: lambda: MultiBinary((2, 2)),
    SpaceKind.DICT: _dict,
    SpaceKind.TUPLE: _tuple,
    SpaceKind.TEXT: lambda: Text(max_length=8),
    SpaceKind.SEQUENCE: lambda: Sequence(_floats(np.float32, 2)),
    SpaceKind.GRAPH: lambda: Graph(node_space=_floats(np.float32, 2), edge_space=Discrete(3)),
    SpaceKind.ONE_OF: lambda: OneOf((Discrete(4), _floats(np.float32, 2))),
    SpaceKind.CUSTOM: EvenSpace,
}
