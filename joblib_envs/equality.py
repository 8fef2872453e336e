"""Bit-equality, the first difference, and the one vocabulary of verdicts.

Everything that judges data in this project judges it here: the probe of a
pickled environment, the conformance checker and the experiment harness.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Difference", "Verdict", "bit_equal", "first_difference"]


class Verdict(enum.StrEnum):
    """What was found out about a way to step environments."""

    CORRECT = "correct"
    WRONG = "wrong"
    RAISES = "raises"
    REFUSED = "refused"
    HANGS = "hangs"
    NOT_REPRODUCIBLE = "not_reproducible"
    UNAVAILABLE = "unavailable"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True)
class Difference:
    """Where two values differ first.

    Attributes:
        path: The way to the value, such as ``"infos['speed'][3]"``.
        wanted: The reference's value there, or a description of it.
        got: The other value there, or a description of it.
    """

    path: str
    wanted: str
    got: str

    def __str__(self) -> str:
        return f"{self.path}: wanted {self.wanted}, got {self.got}"


def bit_equal(wanted: Any, got: Any) -> bool:
    """Tell whether two values are equal to the last bit, types and dtypes included."""
    return first_difference(wanted, got) is None


def first_difference(wanted: Any, got: Any, path: str = "value") -> Difference | None:
    """Find the first place where two values are not equal to the last bit.

    Arrays are equal when dtype, shape and bytes are; a NaN equals the same NaN, and
    0.0 differs from -0.0. Containers are compared by type, keys or length, and elements.
    Random generators are equal when their states are. A value that contains itself is
    compared once.

    Args:
        wanted: The reference's value.
        got: The value to judge.
        path: The name of the value in the answer.

    Returns:
        The first difference in the reference's order, or None.
    """
    return _compare(wanted, got, path, set())


def _compare(wanted: Any, got: Any, path: str, seen: set[tuple[int, int]]) -> Difference | None:
    if wanted is got:
        return None
    if type(wanted) is not type(got):
        return Difference(path, f"{_show(wanted)} ({_type(wanted)})", f"{_show(got)} ({_type(got)})")
    pair = (id(wanted), id(got))
    if pair in seen:
        return None
    if isinstance(wanted, np.ndarray):
        return _compare_arrays(wanted, got, path, seen | {pair})
    if isinstance(wanted, np.generic):
        return _compare_arrays(np.asarray(wanted), np.asarray(got), path, seen)
    if isinstance(wanted, float):
        same = struct.pack("d", wanted) == struct.pack("d", got)
        return None if same else Difference(path, repr(wanted), repr(got))
    if isinstance(wanted, Mapping):
        return _compare_mappings(wanted, got, path, seen | {pair})
    if isinstance(wanted, Sequence) and not isinstance(wanted, str | bytes | bytearray | range):
        return _compare_sequences(wanted, got, path, seen | {pair})
    if isinstance(wanted, np.random.Generator):
        return _compare(wanted.bit_generator.state, got.bit_generator.state, f"{path} state", seen | {pair})
    return _compare_others(wanted, got, path, seen | {pair})


def _compare_arrays(
    wanted: np.ndarray[Any, Any], got: np.ndarray[Any, Any], path: str, seen: set[tuple[int, int]]
) -> Difference | None:
    if wanted.dtype != got.dtype:
        return Difference(path, f"dtype {wanted.dtype}", f"dtype {got.dtype}")
    if wanted.shape != got.shape:
        return Difference(path, f"shape {wanted.shape}", f"shape {got.shape}")
    if wanted.dtype.hasobject:
        for index in np.ndindex(wanted.shape):
            difference = _compare(wanted[index], got[index], path + _subscript(index), seen)
            if difference is not None:
                return difference
        return None
    if wanted.tobytes() == got.tobytes():
        return None
    for index in np.ndindex(wanted.shape):
        if wanted[index].tobytes() != got[index].tobytes():
            return Difference(path + _subscript(index), repr(wanted[index]), repr(got[index]))
    return None


def _compare_mappings(
    wanted: Mapping[Any, Any], got: Mapping[Any, Any], path: str, seen: set[tuple[int, int]]
) -> Difference | None:
    if wanted.keys() != got.keys():
        missing = [key for key in wanted if key not in got]
        extra = [key for key in got if key not in wanted]
        return Difference(path, f"keys {list(wanted)}", f"keys {list(got)} (missing {missing}, extra {extra})")
    for key in wanted:
        difference = _compare(wanted[key], got[key], f"{path}[{key!r}]", seen)
        if difference is not None:
            return difference
    return None


def _compare_sequences(
    wanted: Sequence[Any], got: Sequence[Any], path: str, seen: set[tuple[int, int]]
) -> Difference | None:
    for index, (left, right) in enumerate(zip(wanted, got, strict=False)):
        difference = _compare(left, right, f"{path}[{index}]", seen)
        if difference is not None:
            return difference
    if len(wanted) != len(got):
        return Difference(path, f"length {len(wanted)}", f"length {len(got)}")
    return None


def _compare_others(wanted: Any, got: Any, path: str, seen: set[tuple[int, int]]) -> Difference | None:
    """Compare by ``==`` where a class defines it, else by the attributes."""
    if getattr(type(wanted), "__eq__", None) is object.__eq__ and hasattr(wanted, "__dict__"):
        return _compare(vars(wanted), vars(got), f"{path}.__dict__", seen)
    try:
        same = bool(wanted == got)
    except Exception as error:
        return Difference(path, _show(wanted), f"{_show(got)} (comparing raised {error!r})")
    return None if same else Difference(path, _show(wanted), _show(got))


def _subscript(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""


def _type(value: Any) -> str:
    return type(value).__name__


def _show(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + "..."
