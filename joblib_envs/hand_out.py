"""Large batches of observations that the caller gets as its own, without copying them once more.

Each worker copies its rows into an array that is handed out, while they are still in its cache and
the other workers do the same. The array is written again only once nothing refers to it or to
a view of it any more; while all of them are kept by the caller, batches are copied as usual.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from joblib_envs.rows import Array, Leaf

__all__ = ["MIN_BYTES", "NUM_ARRAYS", "HandOuts", "is_worth_handing_out"]

NUM_ARRAYS = 3
"""A loop holds the last batch while it gets the next; one more for who keeps one for longer."""

MIN_BYTES = 1 << 18
"""Below, a copy by the caller takes less time than all this."""


def is_worth_handing_out(leaves: Sequence[Leaf], num_envs: int) -> bool:
    """Tell whether observations are one array, and a large one."""
    if len(leaves) != 1 or not leaves[0].is_array or leaves[0].path:
        return False
    space = leaves[0].space
    return num_envs * int(np.prod(space.shape or ())) * np.dtype(space.dtype).itemsize >= MIN_BYTES


class _Kept(np.ndarray[Any, Any]):
    """An array that stays here."""


class _Lent(np.ndarray[Any, Any]):
    """What every view of a handed-out array refers to in the end.

    NumPy lets a view refer to the base of its base, and so on, as long as those are of its own type.
    """


class HandOuts:
    """Arrays for handing out.

    Args:
        arrays: The arrays, which nobody else gives away.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = [array.view(_Kept) for array in arrays]
        self._lent: list[Callable[[], Any]] = [lambda: None for _ in arrays]
        self._next = 0

    def choose(self) -> int:
        """Return the number of an array that nobody has any more, or -1."""
        for turn in range(len(self._arrays)):
            number = (self._next + turn) % len(self._arrays)
            if self._lent[number]() is None:
                self._next = number + 1
                return number
        return -1

    def array(self, number: int) -> Array:
        """Return an array for the caller to have."""
        array = self._arrays[number]
        lent = array.view(_Lent)
        self._lent[number] = weakref.ref(lent)
        return lent.view(np.ndarray)
