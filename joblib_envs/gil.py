"""Python's global interpreter lock, and whether there is one."""

from __future__ import annotations

import sys

__all__ = ["gil_is_enabled"]


def gil_is_enabled() -> bool:
    """Tell whether one thread at a time runs Python.

    So it is but in a free-threaded build of CPython (3.13t and later), unless something turned the lock on again:
    ``PYTHON_GIL=1``, or an extension module that doesn't say that it can do without.
    """
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())
