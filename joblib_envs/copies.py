"""Copies that belong to one environment, or to the caller, alone."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

__all__ = ["own"]

_IMMUTABLE = (bool, int, float, complex, str, bytes, type(None), np.generic)


def own(value: Any) -> Any:
    """Return a value that nobody else can change: a deep copy, or the value where there can be only one.

    What crosses to another process is a copy anyway; the same has to hold everywhere, or
    one environment's change would reach the next one's value, or the caller's.
    """
    if isinstance(value, _IMMUTABLE):
        return value
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    try:
        return copy.deepcopy(value)
    except Exception:  # locks, modules, generators: there is only the one
        return value
