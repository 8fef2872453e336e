"""The infos of a batch, made a second time from those of its sub-environments.

Written apart from the project's own batching of infos, on purpose: two ways to the same
answer, of which only the rule is shared.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from joblib_envs.equality import bit_equal

__all__ = ["InfoRule", "Records", "gymnasium_infos", "lossless_infos"]

Records = Sequence[tuple[int, dict[str, Any]]]


class InfoRule(enum.StrEnum):
    """How the infos of sub-environments are put together."""

    GYMNASIUM = "gymnasium"
    LOSSLESS = "lossless"

    @property
    def batch(self) -> Callable[[Records, int], dict[str, Any]]:
        """The function that does it."""
        return gymnasium_infos if self is InfoRule.GYMNASIUM else lossless_infos


def gymnasium_infos(records: Records, num_envs: int) -> dict[str, Any]:
    """Put infos together as ``SyncVectorEnv`` does, which loses values where types differ.

    Args:
        records: Sub-environment and info, in the order in which they came.
        num_envs: Number of sub-environments.
    """
    batcher: VectorEnv[Any, Any, Any] = VectorEnv()
    batcher.num_envs = num_envs
    infos: dict[str, Any] = {}
    for env_index, info in records:
        infos = batcher._add_info(infos, info, env_index)
    return infos


def lossless_infos(records: Records, num_envs: int) -> dict[str, Any]:
    """Put infos together as Gymnasium does, except where that would lose a value.

    A key with such a value is an object array with all values unchanged, None where a
    sub-environment has none, and its mask. A key that is another key's mask too is left
    to Gymnasium.

    Example:
        >>> lossless_infos([(0, {"speed": 1}), (1, {"speed": 0.5})], 2)
        {'speed': array([1, 0.5], dtype=object), '_speed': array([ True,  True])}
    """
    entries: dict[str, list[tuple[int, Any]]] = {}
    for env_index, info in records:
        for key, value in info.items():
            entries.setdefault(key, []).append((env_index, value))
    colliding = {key for key in entries if f"_{key}" in entries}
    colliding |= {f"_{key}" for key in colliding}

    infos = gymnasium_infos(
        [(env_index, {key: value for key, value in info.items() if key in colliding}) for env_index, info in records],
        num_envs,
    )
    for key, values in entries.items():
        if key not in colliding:
            infos[key] = _batch(key, values, num_envs)
            infos[f"_{key}"] = np.isin(np.arange(num_envs), [env_index for env_index, _ in values])
    return infos


def _batch(key: str, values: list[tuple[int, Any]], num_envs: int) -> Any:
    num_dicts = sum(isinstance(value, dict) for _, value in values)
    if key != "final_obs" and num_dicts == len(values):
        return lossless_infos(values, num_envs)
    if key != "final_obs" and num_dicts == 0:
        array = _gymnasium_array(key, values, num_envs)
        if array is not None and all(_kept(value, array[env_index]) for env_index, value in values):
            return array
    objects = np.full(num_envs, None, dtype=object)
    for env_index, value in values:
        objects[env_index] = value
    return objects


def _gymnasium_array(key: str, values: list[tuple[int, Any]], num_envs: int) -> Any | None:
    """Return Gymnasium's array for one key, or None where it raises."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return gymnasium_infos([(env_index, {key: value}) for env_index, value in values], num_envs)[key]
    except Exception:
        return None


def _kept(value: Any, stored: Any) -> bool:
    if stored is value or bit_equal(value, stored):
        return True
    if not isinstance(value, bool | int | float | complex | np.generic | np.ndarray):
        return False
    if np.shape(value) != np.shape(stored):
        return False
    # Python compares numbers of different types exactly, NumPy casts them first.
    wanted, got = np.asarray(value).ravel().tolist(), np.asarray(stored).ravel().tolist()
    return all(a == b or (a != a and b != b) for a, b in zip(wanted, got, strict=True))
