"""Keeps what an array holds, time after time."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

__all__ = ["Tape"]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class Tape:
    """What an array held, time after time, as bytes: appending them takes a third of the time of NumPy's assignment.

    Attributes:
        data: The bytes so far, to which ``source`` is appended.
        source: The array's bytes as they are now.
    """

    def __init__(self, array: Array) -> None:
        self._shape, self._dtype = array.shape, array.dtype
        self.data = bytearray()
        self.source = memoryview(np.frombuffer(array, np.uint8)) if array.size else memoryview(b"")  # type: ignore[arg-type]

    def time_major(self, made: int, num_steps: int) -> Array:
        """Return ``(num_steps, *shape)``: what was kept first, then zeros from ``made`` on."""
        size = made * int(np.prod(self._shape))
        kept = np.frombuffer(self.data, self._dtype, count=size) if size else np.zeros(0, self._dtype)
        kept = kept.reshape((made, *self._shape))
        if made == num_steps:
            return kept
        whole: Array = np.zeros((num_steps, *self._shape), self._dtype)
        whole[:made] = kept
        return whole
