"""Arrays in a state: views stay views, names of a simulator's arrays stay such, one number many times is kept once."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from joblib_envs.state.adapters import qualified_name
from joblib_envs.state.cargo import Departure

__all__ = ["note_natives", "reduce_array"]

_NAMES_OF_ARRAYS = {
    "mujoco._structs.MjData": "joblib_envs.state.mujoco_objects:all_arrays",
    "mujoco._structs.MjModel": "joblib_envs.state.mujoco_objects:all_arrays",
}
"""Native types whose arrays environments like to have under names of their own, and what lists those arrays."""


@functools.cache
def _is_native(kind: Any) -> bool:
    return qualified_name(kind) in _NAMES_OF_ARRAYS


def note_natives(attributes: Mapping[str, Any], departure: Departure) -> None:
    """Note the simulators that an environment has, before their arrays are met under other names."""
    for value in attributes.values():
        if _is_native(value.__class__) and all(value is not each for each in departure.natives):
            departure.natives.append(value)


_MOST_OF_A_BASE = 8
"""An array that is a view of another one takes it along where it is at most so many times as large."""
_SMALL_BASE = 65_536
"""... or has no more bytes than this."""

_LARGE = 256
"""From so many bytes on it is looked whether an array is one number many times."""


def reduce_array(array: np.ndarray[Any, Any], departure: Departure) -> Any:
    """Keep a view a view: an environment that writes into an array expects to see it in the array's views.

    Views of far larger arrays, such as one episode of a data set, travel alone, as in any pickle.
    """
    reduced = _of_a_native(array, departure) or _of_its_base(array) or _of_one_element(array)
    # Else not by pickle's buffers: that array wouldn't own its memory, and its views wouldn't be known as such.
    return reduced or array.__reduce__()


def _of_a_native(array: np.ndarray[Any, Any], departure: Departure) -> tuple[Any, ...] | None:
    """Keep one of a simulator's arrays, or a view of one, as what it is."""
    if array.flags.owndata:
        return None
    whole = array.base if type(array.base) is np.ndarray else array
    for native in departure.natives:
        module, _, function = _NAMES_OF_ARRAYS[qualified_name(type(native))].partition(":")
        names = getattr(importlib.import_module(module), function)(type(native))
        name = next((name for name in names if getattr(native, name) is whole), None)
        if name is not None and whole is array:
            return getattr, (native, name)
        if name is not None and whole.flags.c_contiguous:
            return _as_view(array, whole)
    return None


def _of_its_base(array: np.ndarray[Any, Any]) -> tuple[Any, ...] | None:
    base: Any = array.base
    is_view = type(base) is np.ndarray and base.flags.owndata and base.flags.forc and not base.dtype.hasobject
    if is_view and 0 < base.nbytes <= max(_SMALL_BASE, _MOST_OF_A_BASE * array.nbytes):
        return _as_view(array, base)
    return None


def _of_one_element(array: np.ndarray[Any, Any]) -> tuple[Any, ...] | None:
    """Keep one element where all are equal: so are an image space's bounds, which are larger than all else."""
    if array.nbytes < _LARGE or array.dtype.hasobject:
        return None
    element = array.flat[0].tobytes()
    if element != array.flat[-1].tobytes() or array.tobytes() != element * array.size:
        return None
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    return _filled, (array.shape, array.dtype, element, order)


def _as_view(array: np.ndarray[Any, Any], whole: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    offset = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return _view, (whole, array.shape, array.dtype, offset, array.strides, array.flags.writeable)


def _filled(
    shape: tuple[int, ...], dtype: np.dtype[Any], element: bytes, order: Literal["C", "F"]
) -> np.ndarray[Any, Any]:
    size = math.prod(shape)
    array: np.ndarray[Any, Any] = np.frombuffer(element * size, dtype).reshape(shape, order=order).copy(order)
    return array


def _view(
    base: np.ndarray[Any, Any],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    offset: int,
    strides: tuple[int, ...],
    writeable: bool,
) -> np.ndarray[Any, Any]:
    memory = base if base.flags.c_contiguous else base.T
    view: np.ndarray[Any, Any] = np.ndarray(shape, dtype, memory, offset, strides)
    view.flags.writeable = writeable
    return view
