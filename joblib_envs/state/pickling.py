"""The generic way to keep a state: a pickle that takes every attribute of every layer, whatever their classes say.

``gymnasium.utils.EzPickle`` pickles a constructor's arguments and drops all that happened
since; other classes drop state in a ``__getstate__`` of their own. Here each environment, each
wrapper and each other user of EzPickle is made blank (``object.__new__``) and given all its
attributes, the random generators of it and of its spaces among them.
"""

from __future__ import annotations

import io
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeAlias

import cloudpickle
import gymnasium
import numpy as np
from gymnasium.utils import EzPickle

from joblib_envs.processes import unpickled
from joblib_envs.state.adapters import adapter_of, generation
from joblib_envs.state.arrays import note_natives, reduce_array
from joblib_envs.state.cargo import Blob, Departure, SpareParts, arrival
from joblib_envs.state.drawings import is_drawing

__all__ = [
    "DEFAULT_OPTIONS",
    "CaptureOptions",
    "attributes_of",
    "blank",
    "captured",
    "culprit",
    "restored",
    "set_attributes",
]

Attributes: TypeAlias = tuple[dict[str, Any], dict[str, Any] | None]
"""What is in an object's ``__dict__``, and what is in its slots."""


@dataclass(frozen=True)
class CaptureOptions:
    """How states are pickled. Which way is right for an environment is for the probe to find out.

    Attributes:
        own_hooks: Whether environments' own ``__getstate__``, ``__reduce__`` and the like are used;
            EzPickle's never are.
        keeps_drawings: Whether surfaces that environments draw on travel; else they are None on
            the other side, which makes environments make them again.
    """

    own_hooks: bool = False
    keeps_drawings: bool = False


DEFAULT_OPTIONS = CaptureOptions()


def captured(value: Any, options: CaptureOptions, departure: Departure | None = None) -> tuple[bytes, Departure]:
    """Pickle an environment, or what holds some.

    Args:
        value: The environment.
        options: How.
        departure: Takes what has to travel beside it; a new one unless given.

    Returns:
        The pickle, and what has to travel beside it.

    Raises:
        Exception: Something in it can't be pickled.
    """
    file, departure = io.BytesIO(), Departure() if departure is None else departure
    _Pickler(file, options, departure).dump(value)
    return file.getvalue(), departure


def culprit(env: gymnasium.Env[Any, Any], options: CaptureOptions) -> str:
    """Name what of an environment can't be pickled, to follow an error; empty where it can't be told."""
    layer: Any = env
    while True:
        below = layer.env if isinstance(layer, gymnasium.Wrapper) else None
        for name, value in attributes_of(layer)[0].items():
            try:
                if value is not below:
                    captured(value, options)
            except Exception:
                return f" (in the attribute {name!r}, of type {type(value).__name__}, of {type(layer).__name__})"
        if below is None:
            return ""
        layer = below


_spares = SpareParts(most_bytes=128 * 2**20)


def restored(data: bytes, shared: Mapping[str, Blob], *, is_private: bool = False) -> Any:
    """Unpickle what :func:`captured` has pickled.

    Args:
        data: The pickle.
        shared: What travelled beside it.
        is_private: Whether nothing of it outlives the call, as in a task: then a simulator of one
            that is gone may be used again, though MuJoCo's ``data.body(name).xpos`` and the like,
            which somebody might hold, don't show in any count of references.
    """
    with arrival(shared, _spares, is_private=is_private) as lent:
        value = unpickled(data)
    if lent:
        _spares.lend(lent, value)
    return value


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, options: CaptureOptions, departure: Departure) -> None:
        super().__init__(file, protocol=5)
        self._departure = departure
        self._options = options
        self._reducers = _reducers_by_options.setdefault((options, generation()), weakref.WeakKeyDictionary())
        self._trusts_references = not cloudpickle.list_registry_pickle_by_value()

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if (kind is type or kind is FunctionType) and self._trusts_references:
            return self._reduce_by_name(value)
        reduce = self._reducers.get(kind)
        if reduce is None:
            reduce = self._reducers[kind] = _reducer_of(kind, self._options)
        reduced = reduce(value, self._departure)
        return super().reducer_override(value) if reduced is NotImplemented else reduced

    def _reduce_by_name(self, value: Any) -> Any:
        """Ask cloudpickle about a class or a function, once where the answer is that its name will do."""
        if value in _known_by_name:
            return NotImplemented
        reduced = super().reducer_override(value)
        if reduced is NotImplemented:
            _known_by_name.add(value)
        return reduced


_known_by_name: weakref.WeakSet[Any] = weakref.WeakSet()
_Reducer = Callable[[Any, Departure], Any]
_reducers_by_options: dict[tuple[CaptureOptions, int], weakref.WeakKeyDictionary[type, _Reducer]] = {}


def _reducer_of(kind: type, options: CaptureOptions) -> _Reducer:
    adapter = adapter_of(kind)
    if adapter is not None:
        return adapter
    if kind is np.ndarray:
        return reduce_array
    if issubclass(kind, gymnasium.Env):
        hooks = _has_hooks(kind)
        if options.own_hooks and hooks:
            return _leave
        reduce = _reduce_whole if options.keeps_drawings else _reduce_but_drawings
        return _noting_hooks(reduce) if hooks else reduce
    if issubclass(kind, EzPickle) and kind.__basicsize__ == EzPickle.__basicsize__:  # not of a dict, list, ...
        return _reduce_whole
    return _leave


def _leave(value: Any, departure: Departure) -> Any:  # noqa: ARG001
    return NotImplemented


def _has_hooks(kind: type) -> bool:
    """Tell whether a class says itself how it is pickled, EzPickle's way aside."""
    hooks = ("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__")
    known = (getattr(base, name, None) for base in (object, gymnasium.Env, EzPickle) for name in hooks)
    return not {getattr(kind, name, None) for name in hooks} <= set(known)


def _noting_hooks(reduce: _Reducer) -> _Reducer:
    def reduce_and_note(value: Any, departure: Departure) -> Any:
        departure.has_hooks = True
        return reduce(value, departure)

    return reduce_and_note


def _reduce_whole(value: Any, departure: Departure) -> tuple[Any, ...]:
    """Keep every attribute of an object, whatever its class says."""
    return _reduced(value, attributes_of(value), departure)


def _reduce_but_drawings(env: Any, departure: Departure) -> tuple[Any, ...]:
    attributes, slots = attributes_of(env)
    drawn = [name for name, value in attributes.items() if is_drawing(value.__class__)]
    if drawn:
        departure.has_drawings = True
        attributes = {**attributes, **dict.fromkeys(drawn)}
    return _reduced(env, (attributes, slots), departure)


def _reduced(value: Any, state: Attributes, departure: Departure) -> tuple[Any, ...]:
    note_natives(state[0], departure)
    return blank, (type(value),), state, None, None, set_attributes


def attributes_of(value: Any) -> Attributes:
    """Return what ``object.__getstate__`` would, whatever the class has in its place."""
    state: Any = object.__getstate__(value)
    if isinstance(state, tuple):
        return state[0] or {}, state[1]
    return state or {}, None


def blank(kind: type) -> Any:
    """Make an object of a type without calling anything of its own."""
    return object.__new__(kind)


def set_attributes(value: Any, state: Attributes) -> None:
    """Give an object its attributes without calling anything of its own."""
    attributes, slots = state
    if attributes:
        value.__dict__.update(attributes)
    for name, each in (slots or {}).items():
        object.__setattr__(value, name, each)
