"""Batches the infos of the sub-environments, losing nothing.

Gymnasium's rule, ``VectorEnv._add_info``, lets the first sub-environment that has a key
decide its type: 1 and then 0.5 gives 0. Here the result equals Gymnasium's, dtype too,
wherever Gymnasium's keeps every value; where it would lose or raise, the key is an object
array with the values unchanged. Either way ``_key`` is the bool mask of who has it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from gymnasium.vector import VectorEnv

from joblib_envs.copies import own

__all__ = ["batch_column", "batch_infos", "own_info"]

Values: TypeAlias = list[tuple[int, Any]]
"""What the sub-environments have under one key: (env_index, value), in index order."""

_collisions_warned: set[str] = set()


def batch_infos(env_infos: Sequence[dict[Any, Any] | None]) -> dict[Any, Any]:
    """Batch one info dictionary of each sub-environment.

    Args:
        env_infos: The infos by sub-environment; None or empty where there is none.

    Returns:
        For each key, in the order in which it is met: typed zeros ``(n,)`` with the values of
        scalars, ``(n, *shape)`` of arrays, a dictionary of dictionaries, an object array
        ``(n,)`` of anything else, followed by ``_key``, bool ``(n,)``. Values in object arrays
        are the given ones: see :func:`own_info`.
    """
    if not any(env_infos):
        return {}
    present = [(index, info) for index, info in enumerate(env_infos) if info]
    return _batch(present, len(env_infos), frozenset())


def batch_column(key: Any, values: Values, num_envs: int) -> Any:
    """Batch what the sub-environments have under one key; its mask is the caller's to make.

    Args:
        key: The key.
        values: Who has it, and what: (env_index, value), in index order.
        num_envs: Number of sub-environments.
    """
    return _batch_column(key, values, num_envs, frozenset())


def own_info(info: dict[Any, Any]) -> dict[Any, Any]:
    """Return a snapshot of an environment's info, which neither it nor another can change any more.

    Environments reuse their dictionaries and arrays, and some share them with one another.
    """
    return {key: own(value) for key, value in info.items()}


def _batch(present: list[tuple[int, dict[Any, Any]]], num_envs: int, above: frozenset[int]) -> dict[Any, Any]:
    columns: dict[Any, Values] = {}
    for index, info in present:
        for key, value in info.items():
            columns.setdefault(key, []).append((index, value))
    colliding = [key for key in columns if f"_{key}" in columns]
    if colliding:
        _warn_of_collisions(colliding)
        try:
            return _gymnasium_batch(present, num_envs)
        except Exception:  # Gymnasium can't write the mask into the user's value: the value is kept
            pass
    result: dict[Any, Any] = {}
    for key, values in columns.items():
        result[key] = _batch_column(key, values, num_envs, above)
        if f"_{key}" not in columns:
            mask = np.zeros(num_envs, dtype=np.bool_)
            mask[[index for index, _ in values]] = True
            result[f"_{key}"] = mask
    return result


def _batch_column(key: Any, values: Values, num_envs: int, above: frozenset[int]) -> Any:
    if key == "final_obs":
        return _objects(values, num_envs)
    first = values[0][1]
    if isinstance(first, dict):
        # A dictionary that holds itself has no batch: its values are kept as they are.
        dicts = all(isinstance(value, dict) and id(value) not in above for _, value in values)
        if not dicts:
            return _objects(values, num_envs)
        return _batch(values, num_envs, above | {id(value) for _, value in values})
    if any(isinstance(value, dict) for _, value in values):
        return _objects(values, num_envs)
    if type(first) in (int, float, bool) or isinstance(first, np.number):
        return _typed(values, np.zeros(num_envs, dtype=type(first)), num_envs)
    if isinstance(first, np.ndarray):
        return _typed(values, np.zeros((num_envs, *first.shape), dtype=first.dtype), num_envs)
    return _objects(values, num_envs)


def _typed(values: Values, array: np.ndarray[Any, Any], num_envs: int) -> np.ndarray[Any, Any]:
    """Return ``array`` with the values, or an object array where one doesn't keep its value."""
    shape = array.shape[1:]
    for index, value in values:
        if not _storable(value, array.dtype, shape):
            return _objects(values, num_envs)
        with np.errstate(all="ignore"):
            try:
                array[index] = value
            except (TypeError, ValueError, OverflowError):
                return _objects(values, num_envs)
        if not _kept(value, array[index]):
            return _objects(values, num_envs)
    return array


def _storable(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Tell whether storing the value neither broadcasts nor parses it."""
    if isinstance(value, np.ndarray):
        return value.shape == shape and not isinstance(value, np.ma.MaskedArray)
    if isinstance(value, bool | int | float | complex | np.number | np.bool_):
        return shape == () and dtype.kind in "biufc"
    return False


def _kept(value: Any, stored: Any) -> bool:
    """Tell whether a stored value is the given one, exactly: Python compares numbers without rounding them."""
    given = np.asarray(value)
    if given.dtype == stored.dtype:
        return True
    pairs = zip(given.reshape(-1).tolist(), np.asarray(stored).reshape(-1).tolist(), strict=True)
    return all(one == other or (one != one and other != other) for one, other in pairs)


def _objects(values: Values, num_envs: int) -> np.ndarray[Any, Any]:
    array = np.full(num_envs, fill_value=None, dtype=object)
    for index, value in values:
        array[index] = value
    return array


def _warn_of_collisions(keys: list[Any]) -> None:
    for key in keys:
        if str(key) not in _collisions_warned:
            _collisions_warned.add(str(key))
            warnings.warn(
                f"the environments' infos have both {key!r} and '_{key}', the name that Gymnasium gives to the mask "
                f"of {key!r}: one of them is lost, as in gymnasium.vector.SyncVectorEnv; rename the key",
                stacklevel=2,
            )


def _gymnasium_batch(present: list[tuple[int, dict[Any, Any]]], num_envs: int) -> dict[Any, Any]:
    """Batch by Gymnasium's own function, where a user's key is the name of a mask."""
    batcher: VectorEnv[Any, Any, Any] = VectorEnv()
    batcher.num_envs = num_envs
    result: dict[Any, Any] = {}
    for index, info in present:
        result = batcher._add_info(result, info, index)
    return result
