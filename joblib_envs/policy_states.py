"""A recurrent policy's state: arrays with a row for each sub-environment, alone or in dictionaries and sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from joblib_envs.errors import ArgumentError, ArgumentTypeError

__all__ = ["checked_policy_state", "joined_states", "own_state", "rows_of_state", "with_rows_of"]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def checked_policy_state(state: Any, num_rows: int, what: str) -> Any:
    """Return the state, if it is one of so many rows.

    Args:
        state: What should be one.
        num_rows: The number of rows that each array must have.
        what: What to call it in an error.

    Raises:
        ArgumentTypeError: Something in it is no NumPy array of plain data.
        ArgumentError: An array has another number of rows.
    """
    if type(state) is np.ndarray and state.ndim and len(state) == num_rows and not state.dtype.hasobject:
        return state
    _map(lambda leaf: _check_leaf(leaf, num_rows, what), state)
    return state


def own_state(state: Any) -> Any:
    """Return a copy of the state."""
    return _map(lambda leaf: leaf.copy(), state)


def rows_of_state(state: Any, rows: range) -> Any:
    """Return a copy of some rows."""
    return _map(lambda leaf: leaf[rows.start : rows.stop].copy(), state)


def with_rows_of(state: Any, other: Any, mask: Array) -> Any:
    """Return the state with the rows of another one where the mask is True; both are left as they are.

    Raises:
        ArgumentTypeError: They differ in form: in keys, lengths, types, dtypes or shapes.
    """

    def put(leaf: Array, others: Array) -> Array:
        _check_alike(isinstance(leaf, np.ndarray) and (leaf.shape, leaf.dtype) == (others.shape, others.dtype))
        mixed = leaf.copy()
        mixed[mask] = others[mask]
        return mixed

    return _map(put, state, other)


def joined_states(states: Sequence[Any]) -> Any:
    """Return one state with the rows of all, in order."""
    return states[0] if len(states) == 1 else _map(lambda *leaves: np.concatenate(leaves), *states)


def _check_leaf(leaf: Any, num_rows: int, what: str) -> None:
    wanted = (
        f"{what} must be a NumPy array with {num_rows} rows, one for each sub-environment, or a dictionary, tuple or "
        f"list of such arrays"
    )
    if not isinstance(leaf, np.ndarray) or leaf.dtype.hasobject:
        given = f"an array of dtype {leaf.dtype}" if isinstance(leaf, np.ndarray) else type(leaf).__name__
        raise ArgumentTypeError(f"{wanted}; it holds {given}: convert it in the policy, as in tensor.numpy()")
    if leaf.shape[:1] != (num_rows,):
        raise ArgumentError(f"{wanted}; it holds an array of shape {leaf.shape}")


def _map(function: Callable[..., Any], state: Any, *others: Any) -> Any:
    """Apply the function to each array of a state, together with those in the same place of others."""
    if isinstance(state, dict):
        _check_alike(all(isinstance(other, dict) and other.keys() == state.keys() for other in others))
        return {key: _map(function, value, *(other[key] for other in others)) for key, value in state.items()}
    if isinstance(state, tuple | list):
        _check_alike(all(type(other) is type(state) and len(other) == len(state) for other in others))
        parts = [_map(function, *values) for values in zip(state, *others, strict=True)]
        if isinstance(state, list):
            return parts
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    _check_alike(not any(isinstance(other, dict | tuple | list) for other in others))
    return function(state, *others)


def _check_alike(alike: bool) -> None:
    if not alike:
        raise ArgumentTypeError(
            "the policy's state has another form than initial_state gave: it must keep its keys, lengths, types, "
            "dtypes and shapes"
        )
