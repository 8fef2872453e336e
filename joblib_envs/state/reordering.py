"""Copies whose sets give their elements in another order, to find out whether an environment cares.

In which order a set gives its elements depends on all that was ever put in and taken out, and,
for strings, on the process. No pickle keeps that. An environment that draws from ``list(a_set)``
goes on differently from a copy, sometimes at once and sometimes much later; one that only asks
what is in its sets doesn't.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from joblib_envs.state.cargo import Blob, arrival

__all__ = ["may_hold_sets", "restored_in_another_order"]


def may_hold_sets(data: bytes) -> bool:
    """Tell whether a pickle may hold sets; what doesn't is seen at once."""
    return pickle.EMPTY_SET in data or pickle.FROZENSET in data


def restored_in_another_order(data: bytes, shared: Mapping[str, Blob]) -> tuple[Any, bool]:
    """Unpickle a state whose sets give their elements in another order; tell whether that may show."""
    unpickler = _Unpickler(io.BytesIO(data))
    with arrival(shared):
        value = unpickler.load()
    return value, unpickler.reordered


class _OtherSet(set[Any]):
    """A set that gives its elements from the last to the first; what is made from it is a plain one."""

    def __iter__(self) -> Iterator[Any]:
        return iter(list(super().__iter__())[::-1])

    def pop(self) -> Any:
        element = next(iter(self))
        self.remove(element)
        return element

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return set, (list(self),)


class _OtherFrozenSet(frozenset[Any]):
    """The same, frozen."""

    def __iter__(self) -> Iterator[Any]:
        return iter(list(super().__iter__())[::-1])

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return frozenset, (list(self),)


_PythonUnpickler: Any = vars(pickle)["_Unpickler"]
"""The one in C has no hook for sets."""


class _Unpickler(_PythonUnpickler):  # type: ignore[misc]
    dispatch: ClassVar[dict[int, Callable[..., None]]] = dict(_PythonUnpickler.dispatch)
    reordered = False

    def load_empty_set(self) -> None:
        self.append(_OtherSet())

    dispatch[pickle.EMPTY_SET[0]] = load_empty_set

    def load_additems(self) -> None:
        elements = self.pop_mark()
        self.reordered |= len(elements) > 1
        self.stack[-1].update(elements)

    dispatch[pickle.ADDITEMS[0]] = load_additems

    def load_frozenset(self) -> None:
        elements = self.pop_mark()
        self.reordered |= len(elements) > 1
        self.append(_OtherFrozenSet(elements))

    dispatch[pickle.FROZENSET[0]] = load_frozenset
