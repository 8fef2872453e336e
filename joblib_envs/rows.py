"""The batch's arrays: one row for each sub-environment.

An observation space is a tree of Dict and Tuple with *leaves*. Leaves that Gymnasium
stacks into one array (Box, Discrete, MultiDiscrete, MultiBinary) have rows in arrays,
which may live in shared memory. The others (Text, Sequence, Graph, OneOf, custom spaces)
have no fixed size: their observations travel as objects beside the rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from joblib_envs.info_columns import InfoColumns

__all__ = ["Allocator", "Array", "Leaf", "Rows", "assemble", "leaves_of", "nested"]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Allocator: TypeAlias = Callable[[tuple[int, ...], Any], Array]


@dataclass(frozen=True)
class Leaf:
    """One leaf of an observation space.

    Attributes:
        path: Keys and positions that lead from an observation to the leaf's value.
        space: The leaf's space.
        is_array: Whether a batch of it is one array (else a tuple of objects).
    """

    path: tuple[Any, ...]
    space: Space[Any]
    is_array: bool

    def of(self, observation: Any) -> Any:
        """Return the leaf's value in one observation."""
        for key in self.path:
            observation = observation[key]
        return observation

    def empty(self) -> Any:
        """Return what stands for an object leaf before a reset or after a failure."""
        try:
            return create_empty_array(self.space, n=1)[0]  # type: ignore[index]
        except Exception:  # a custom space may have no empty value
            return None


def leaves_of(space: Space[Any], path: tuple[Any, ...] = ()) -> tuple[Leaf, ...]:
    """List the leaves of an observation space, in the space's order."""
    batching = concatenate.dispatch(type(space))
    if isinstance(space, spaces.Dict) and batching is concatenate.dispatch(spaces.Dict):
        return tuple(leaf for key, sub in space.items() for leaf in leaves_of(sub, (*path, key)))
    if isinstance(space, spaces.Tuple) and batching is concatenate.dispatch(spaces.Tuple):
        return tuple(leaf for key, sub in enumerate(space.spaces) for leaf in leaves_of(sub, (*path, key)))
    # Asked of Gymnasium's own dispatch, since users may register spaces with it.
    is_array = batching is concatenate.dispatch(spaces.Box) and (
        create_empty_array.dispatch(type(space)) is create_empty_array.dispatch(spaces.Box)
    )
    return (Leaf(path, space, is_array),)


def assemble(space: Space[Any], leaves: Sequence[Leaf], values: Sequence[Any], num_envs: int) -> Any:
    """Build the batch that Gymnasium's ``concatenate`` would give from the leaves' values.

    Args:
        space: The single observation space.
        leaves: ``leaves_of(space)``.
        values: For each leaf its array, or the list of objects.
        num_envs: Number of sub-environments.
    """
    by_path = {
        leaf.path: value
        if leaf.is_array
        else concatenate(leaf.space, value, create_empty_array(leaf.space, n=num_envs))  # type: ignore[arg-type]
        for leaf, value in zip(leaves, values, strict=True)
    }
    return _nest(space, (), by_path)


def nested(space: Space[Any], leaves: Sequence[Leaf], values: Sequence[Any]) -> Any:
    """Put a value for each leaf in the places of a space's Dict and Tuple."""
    return _nest(space, (), {leaf.path: value for leaf, value in zip(leaves, values, strict=True)})


def _nest(space: Space[Any], path: tuple[Any, ...], by_path: dict[tuple[Any, ...], Any]) -> Any:
    if path in by_path:
        return by_path[path]
    if isinstance(space, spaces.Dict):
        return {key: _nest(sub, (*path, key), by_path) for key, sub in space.items()}
    assert isinstance(space, spaces.Tuple)  # what is no leaf is a Dict or a Tuple
    return tuple(_nest(sub, (*path, key), by_path) for key, sub in enumerate(space.spaces))


class Rows:
    """Observations, rewards and flags of some sub-environments, a row each.

    Attributes:
        leaves: The observation space's leaves.
        observations: For each array leaf ``(n, *shape)`` of the leaf's dtype, in order.
        objects: For each object leaf a list of ``n`` values, in order.
        rewards: ``(n,)`` float64.
        terminations: ``(n,)`` bool.
        truncations: ``(n,)`` bool.
        infos: What the sub-environments told in the last call.
        ready_copy: A copy of the observations that was made already, for the caller to have.
    """

    def __init__(
        self,
        leaves: Sequence[Leaf],
        observations: Sequence[Array],
        rewards: Array,
        flags: tuple[Array, Array],
        infos: InfoColumns | None = None,
    ) -> None:
        self.leaves = tuple(leaves)
        self.observations = tuple(observations)
        self.rewards = rewards
        self.terminations, self.truncations = flags
        self.infos = InfoColumns(len(rewards)) if infos is None else infos
        self.ready_copy: Array | None = None
        self._object_leaves = tuple(leaf for leaf in self.leaves if not leaf.is_array)
        self._array_leaves = tuple(leaf for leaf in self.leaves if leaf.is_array)
        self._is_one_array = len(self.leaves) == 1 and self.leaves[0].is_array and not self.leaves[0].path
        self.objects: tuple[list[Any], ...] = tuple(
            [leaf.empty() for _ in range(len(rewards))] for leaf in self._object_leaves
        )
        self.write_observation = self._writer()

    @classmethod
    def allocate(cls, leaves: Sequence[Leaf], num_rows: int, allocate: Allocator = np.zeros) -> Rows:
        """Make zeroed rows, in ordinary memory or where ``allocate(shape, dtype)`` takes it."""
        observations = [
            allocate((num_rows, *(leaf.space.shape or ())), leaf.space.dtype) for leaf in leaves if leaf.is_array
        ]
        flags = (allocate((num_rows,), np.bool_), allocate((num_rows,), np.bool_))
        infos = InfoColumns(num_rows, allocate((num_rows,), np.int16))
        return cls(leaves, observations, allocate((num_rows,), np.float64), flags, infos)

    def __len__(self) -> int:
        return len(self.rewards)

    def part(self, start: int, stop: int, infos: InfoColumns | None = None) -> Rows:
        """Return rows ``start`` to ``stop``; their arrays are views of these, their infos their own."""
        return Rows(
            self.leaves,
            [array[start:stop] for array in self.observations],
            self.rewards[start:stop],
            (self.terminations[start:stop], self.truncations[start:stop]),
            infos,
        )

    def some(self, start: int, stop: int) -> Rows:
        """Return rows ``start`` to ``stop`` with the infos and objects that these have now."""
        some = self.part(start, stop, self.infos.part(start, stop))
        some.take_objects(0, [objects[start:stop] for objects in self.objects], range(stop - start))
        return some

    def clear(self, row: int) -> None:
        """Set one row to zero, as the row of a sub-environment that failed."""
        for array in self.observations:
            array[row] = 0
        for leaf, values in zip(self._object_leaves, self.objects, strict=True):
            values[row] = leaf.empty()
        self.rewards[row] = 0.0
        self.terminations[row] = self.truncations[row] = False
        self.infos.drop(row)

    def values(self, row: int) -> tuple[Any, ...]:
        """Return copies of one row's observation, a value for each leaf."""
        arrays, objects = iter(self.observations), iter(self.objects)
        return tuple(
            next(arrays)[row].copy() if leaf.is_array else copy.deepcopy(next(objects)[row]) for leaf in self.leaves
        )

    def put(self, row: int, values: Sequence[Any]) -> None:
        """Fill in one row's observation from a value for each leaf."""
        arrays, objects = iter(self.observations), iter(self.objects)
        for leaf, value in zip(self.leaves, values, strict=True):
            if leaf.is_array:
                next(arrays)[row] = value
            else:
                next(objects)[row] = copy.deepcopy(value)

    def take(self, start: int, other: Rows, chosen: Sequence[int]) -> None:
        """Copy the chosen rows of ``other`` into the rows from ``start`` on."""
        positions = np.asarray(chosen, dtype=np.intp)
        for mine, theirs in zip(self.observations, other.observations, strict=True):
            mine[start + positions] = theirs[positions]
        for mine, theirs in (
            (self.rewards, other.rewards),
            (self.terminations, other.terminations),
            (self.truncations, other.truncations),
        ):
            mine[start + positions] = theirs[positions]
        self.take_objects(start, other.objects, chosen)

    def take_objects(self, start: int, objects: Sequence[Sequence[Any]], chosen: Sequence[int]) -> None:
        """Copy the chosen rows' objects into the rows from ``start`` on."""
        for own, given in zip(self.objects, objects, strict=True):
            for row in chosen:
                own[start + row] = given[row]

    def batch(self, space: Space[Any], *, copied: bool) -> Any:
        """Build the batch of observations: the caller's own, or views of these rows."""
        if self._is_one_array:
            if not copied:
                return self.observations[0]
            ready, self.ready_copy = self.ready_copy, None
            return self.observations[0].copy() if ready is None else ready
        arrays, objects = iter(self.observations), iter(self.objects)
        values: list[Any] = []
        for leaf in self.leaves:
            if leaf.is_array:
                array = next(arrays)
                values.append(array.copy() if copied else array)
            else:
                items = next(objects)
                values.append(copy.deepcopy(items) if copied else list(items))
        return assemble(space, self.leaves, values, len(self))

    def chosen(self, space: Space[Any], indices: Array) -> tuple[Any, Array, Array, Array]:
        """Return observations, rewards, terminations and truncations of some rows, in any order: the caller's own."""
        arrays, objects = iter(self.observations), iter(self.objects)
        values = [
            next(arrays)[indices]
            if leaf.is_array
            else (lambda items: [copy.deepcopy(items[index]) for index in indices])(next(objects))
            for leaf in self.leaves
        ]
        observations = values[0] if self._is_one_array else assemble(space, self.leaves, values, len(indices))
        return observations, self.rewards[indices], self.terminations[indices], self.truncations[indices]

    def _writer(self) -> Callable[[int, Any], None]:
        """Return the function that writes one observation into a row."""
        if len(self.leaves) == 1 and self.leaves[0].is_array:
            return _array_writer(self.leaves[0], self.observations[0])
        arrays = [_array_writer(leaf, array) for leaf, array in zip(self._array_leaves, self.observations, strict=True)]
        objects = list(zip(self._object_leaves, self.objects, strict=True))

        def write(row: int, observation: Any) -> None:
            for write_leaf in arrays:
                write_leaf(row, observation)
            for leaf, values in objects:
                # A snapshot: the environment may reuse its object.
                values[row] = copy.deepcopy(leaf.of(observation))

        return write


def _array_writer(leaf: Leaf, array: Array) -> Callable[[int, Any], None]:
    """Return the function that writes one observation's leaf into a row of its array."""
    path = leaf.path
    shape, dtype = array.shape[1:], array.dtype
    rows = _buffers(array)

    def write(row: int, observation: Any) -> None:
        for key in path:
            observation = observation[key]
        if type(observation) is not np.ndarray or observation.dtype != dtype or observation.shape != shape:
            observation = _fitted(observation, shape, dtype, path)
        array[row] = observation

    def write_vector(row: int, observation: Any) -> None:
        try:
            rows[row][_ALL] = observation
            return
        except (TypeError, ValueError):  # another dtype, shape or type
            pass
        write(row, observation)

    return write_vector if rows and not path else write


_ALL = slice(None)


def _buffers(array: Array) -> list[memoryview]:
    """Return a buffer over each row, where that is a vector of numbers; else nothing.

    Writing to it takes half the time of NumPy's, whose checks of dtype and shape it has in it.
    """
    dtype = array.dtype
    if array.ndim != 2 or not array.shape[1] or dtype.kind not in "biuf" or not dtype.isnative or dtype == np.uint8:
        return []  # buffers know no other byte order, and uint8 would take text in bytes for numbers
    try:
        return [memoryview(row) for row in array]
    except (ValueError, BufferError):  # a dtype that buffers don't know
        return []


def _fitted(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], path: tuple[Any, ...]) -> Array:
    """Return the value as an array that may be stored, by the rule of ``np.stack(..., out=...)``."""
    array: Array = np.asanyarray(value)
    if array.shape != shape:
        raise ValueError(
            f"an observation has shape {array.shape}{_at(path)} but the observation space has {shape}: "
            f"return observations of the declared shape, or declare theirs"
        )
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise TypeError(
            f"an observation has dtype {array.dtype}{_at(path)}, which can't be cast to the observation space's "
            f"{dtype} by NumPy's 'same_kind' rule: return observations of the declared dtype, or declare theirs"
        )
    return array


def _at(path: tuple[Any, ...]) -> str:
    return f" at {'/'.join(map(str, path))}" if path else ""
