"""Which attributes of an environment a copy has lost: all layers are walked, and what is in them."""

from __future__ import annotations

import collections
import enum
import functools
import inspect
import random
import types
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np

from joblib_envs.equality import bit_equal
from joblib_envs.inspection.findings import LostField

__all__ = ["lost_fields"]

_LEAVES = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    range,
    type(None),
    enum.Enum,
    np.generic,
    np.dtype,
    np.random.Generator,
    np.random.RandomState,
    random.Random,
)
_SAY_NOTHING = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
)
_MOST_VALUES = 200_000
_DEEPEST = 12
_TELLING = ("qpos", "qvel", "time")
"""Of a native object's many arrays these are named first: a reader knows them."""


def lost_fields(original: gymnasium.Env[Any, Any], copy: gymnasium.Env[Any, Any]) -> list[LostField]:
    """Return the attributes that differ: the layers' own first, then what is in them.

    What can't be compared, such as a lock or a handle in native code, isn't among them.

    Args:
        original: The environment.
        copy: The copy, made just before.
    """
    found = list(_Walk().layers(original, copy))
    # A layer's own attributes first: they say more than the insides of what it holds.
    return sorted(found, key=lambda each: each.path.count(".") > 1)


class _Walk:
    """Compares two object graphs, each pair of objects once."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()
        self._num_values = 0

    def layers(self, original: Any, copy: Any) -> Iterator[LostField]:
        """Walk through the wrappers, then the environment."""
        while True:
            name = type(original).__name__
            if type(original) is not type(copy):
                yield LostField(name, name, type(copy).__name__)
                return
            self._seen.add((id(original), id(copy)))
            is_wrapper = isinstance(original, gymnasium.Wrapper)
            yield from self._attributes(original, copy, name, 0, skip="env" if is_wrapper else "")
            if not is_wrapper:
                return
            original, copy = original.env, copy.env

    def _attributes(self, was: Any, now: Any, path: str, depth: int, skip: str = "") -> Iterator[LostField]:
        olds, news = _attributes_of(was), _attributes_of(now)
        for name in [*olds, *(name for name in news if name not in olds)]:
            if name == skip:
                continue
            place = f"{path}.{'np_random' if name == '_np_random' else name}"
            if name not in olds or name not in news:
                yield LostField(place, _shown(olds.get(name, _MISSING)), _shown(news.get(name, _MISSING)))
            else:
                yield from self._values(olds[name], news[name], place, depth + 1)

    def _values(self, was: Any, now: Any, path: str, depth: int) -> Iterator[LostField]:
        self._num_values += 1
        if was is now or self._num_values > _MOST_VALUES or depth > _DEEPEST:
            return
        if isinstance(was, _SAY_NOTHING) and isinstance(now, _SAY_NOTHING):
            return
        if type(was) is not type(now):
            yield LostField(path, _shown(was), _shown(now))
        elif _is_leaf(was):
            if not _are_equal(was, now):
                yield LostField(path, _shown(was), _shown(now))
        elif (id(was), id(now)) not in self._seen:
            self._seen.add((id(was), id(now)))
            yield from self._insides(was, now, path, depth)

    def _insides(self, was: Any, now: Any, path: str, depth: int) -> Iterator[LostField]:
        if isinstance(was, Mapping):
            if list(map(_key, was)) != list(map(_key, now)):
                yield LostField(path, _shown(was), _shown(now))
                return
            pairs = [
                (f"{path}[{key!r}]", one, other) for (key, one), other in zip(was.items(), now.values(), strict=True)
            ]
            yield from self._first_of_each(pairs, depth)
        elif isinstance(was, list | tuple | collections.deque):
            if len(was) != len(now):
                yield LostField(path, f"{len(was)} elements", f"{len(now)} elements")
                return
            pairs = [(f"{path}[{index}]", one, other) for index, (one, other) in enumerate(zip(was, now, strict=True))]
            yield from self._first_of_each(pairs, depth)
        elif isinstance(was, set | frozenset):
            if all(map(_is_leaf, was)) and all(map(_is_leaf, now)) and was != now:
                yield LostField(path, _shown(was), _shown(now))
        elif _attributes_of(was) or _attributes_of(now):
            yield from self._attributes(was, now, path, depth)
        else:
            yield from self._natives(was, now, path)

    def _first_of_each(self, pairs: list[tuple[str, Any, Any]], depth: int) -> Iterator[LostField]:
        """Walk through a container: one element that differs tells enough, unless they are objects."""
        for place, one, other in pairs:
            found = list(self._values(one, other, place, depth + 1))
            yield from found
            if found and _is_leaf(one):
                return

    def _natives(self, was: Any, now: Any, path: str) -> Iterator[LostField]:
        """Compare the numbers, texts and arrays that an object of native code shows."""
        for name in _shown_names(was.__class__):
            try:
                one, other = getattr(was, name), getattr(now, name)
            except Exception:  # not to be read in this state
                continue
            if type(one) is type(other) and _is_leaf(one) and not _are_equal(one, other):
                yield LostField(f"{path}.{name}", _shown(one), _shown(other))


_MISSING = object()


def _attributes_of(value: Any) -> dict[str, Any]:
    """Return what ``__dict__`` and ``__slots__`` hold, by no property's code."""
    found: dict[str, Any] = {}
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    attributes = getattr(value, "__dict__", None)
    return found | attributes if isinstance(attributes, dict) else found


@functools.cache
def _shown_names(kind: Any) -> list[str]:
    """List the data that a native type shows; methods aren't called."""
    names = [name for name in dir(kind) if not name.startswith("_")]
    data = [name for name in names if not callable(inspect.getattr_static(kind, name, None))]
    return sorted(data, key=lambda name: name not in _TELLING)


def _is_leaf(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    return isinstance(value, _LEAVES)


def _are_equal(was: Any, now: Any) -> bool:
    if isinstance(was, random.Random):
        return bool(was.getstate() == now.getstate())
    if isinstance(was, np.random.RandomState):
        return bit_equal(was.get_state(legacy=False), now.get_state(legacy=False))
    return bit_equal(was, now)


def _key(key: Any) -> Any:
    return key if _is_leaf(key) else type(key)


def _shown(value: Any) -> str:
    if value is _MISSING:
        return "missing"
    if isinstance(value, np.random.Generator):
        return "a generator"
    if isinstance(value, np.ndarray) and value.size > 4:
        return f"an array {value.shape}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 40 else text[:37] + "..."
