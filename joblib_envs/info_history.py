"""Keeps the infos of many steps by key, so that values of one type cross to the caller as one array.

:func:`~joblib_envs.infos.batch_infos` would take an hour's worth of dictionaries one value at a
time. Here a worker keeps, key by key, who told what when; keys whose values are all of one number
type, or arrays of one shape and dtype, become columns in the worker. The result is exactly that of
``batch_infos`` over all steps and sub-environments together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from joblib_envs.info_columns import InfoColumns, Table
from joblib_envs.infos import batch_column, batch_infos
from joblib_envs.tape import Tape

__all__ = ["InfoHistory", "time_major_infos"]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@dataclass
class _Column:
    """What was told under one key.

    Attributes:
        places: Who told it when: ``step * num_rows + row``, rising.
        values: What was told: an array of one row each, or a list.
        kind: Where ``values`` is an array, the values' type: ``np.ndarray``, or a number's.
    """

    places: Any
    values: Any
    kind: type | None = None

    def raw(self) -> list[Any]:
        """Return the values as they were told."""
        if self.kind in (int, float, bool):
            plain: list[Any] = self.values.tolist()
            return plain
        return [value.copy() if self.kind is np.ndarray else value for value in self.values]


class _WholeTable:
    """The columns of a form, in the steps in which all sub-environments told infos of it."""

    def __init__(self, table: Table, rows: slice) -> None:
        self.steps: list[int] = []
        self._keys = [(key, what[1] if what[0] == "number" else np.ndarray) for key, what in table.form]
        self._tapes = [Tape(array[rows]) for array in table.arrays()]
        self.written = [(tape.data, tape.source) for tape in self._tapes]

    def columns(self, num_rows: int) -> Iterator[tuple[Any, _Column]]:
        """Return what was kept."""
        steps = np.array(self.steps, dtype=np.int64)
        places = (steps[:, None] * num_rows + np.arange(num_rows)).reshape(-1)
        for (key, kind), tape in zip(self._keys, self._tapes, strict=True):
            values = tape.time_major(len(steps), len(steps))
            yield key, _Column(places, values.reshape((len(places), *values.shape[2:])), kind)


class InfoHistory:
    """The infos of some sub-environments over many steps.

    Args:
        num_rows: Number of sub-environments.

    Attributes:
        columns: What was told, once it is packed: keys with columns; a key may have several.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.columns: list[tuple[Any, _Column]] = []
        self._told: dict[Any, tuple[list[int], list[Any]]] = {}
        self._whole: dict[bytes, _WholeTable] = {}
        self._source: InfoColumns | None = None

    def add(self, step: int, infos: Iterable[Mapping[Any, Any] | None]) -> None:
        """Keep one step's infos, which must be nobody else's."""
        told = self._told
        for place, info in enumerate(infos, step * self.num_rows):
            if info:
                for key, value in info.items():
                    column = told.get(key)
                    if column is None:
                        column = told[key] = ([], [])
                    column[0].append(place)
                    column[1].append(value)

    def add_columns(self, step: int, infos: InfoColumns) -> None:
        """Keep one step's infos: whole columns where all sub-environments told infos of one form."""
        if self._source is None:
            self._source = infos
        elif not self._source.has_columns_of(infos):  # they have crossed by message: there are others each time
            self.add(step, infos.dicts())
            return
        numbers = infos.numbers.tobytes()
        whole = self._whole.get(numbers)
        if whole is None:
            found = infos.one_table()
            if found.table is None or found.rows is not None or not found.table.is_flat:
                self.add(step, infos.dicts())
                return
            whole = self._whole[numbers] = _WholeTable(found.table, found.places)
        whole.steps.append(step)
        for data, source in whole.written:
            data += source

    def pack(self) -> None:
        """Make arrays of what can be one; after this nothing is added."""
        for whole in self._whole.values():
            self.columns.extend(whole.columns(self.num_rows))
        self._whole = {}
        self._source = None
        for key, (places, values) in self._told.items():
            array = _one_array(values)
            column = _Column(np.array(places, dtype=np.int64), values)
            if array is not None:
                column = _Column(column.places, array, type(values[0]))
            self.columns.append((key, column))
        self._told = {}

    def drop(self, row: int, refuses: Callable[[Any], BaseException | None]) -> tuple[int, BaseException] | None:
        """Take out of a row what can't cross to the caller.

        Args:
            row: Which sub-environment.
            refuses: Returns why a value can't cross, or None.

        Returns:
            The first step with such a value, and why it can't; None if all can.
        """
        first: tuple[int, BaseException] | None = None
        for _, column in self.columns:
            if column.kind is not None:
                continue
            stays = np.ones(len(column.values), dtype=np.bool_)
            for number in np.flatnonzero(column.places % self.num_rows == row).tolist():
                error = refuses(column.values[number])
                if error is not None:
                    stays[number] = False
                    step = int(column.places[number]) // self.num_rows
                    first = (step, error) if first is None or step < first[0] else first
            if not stays.all():
                column.places = column.places[stays]
                column.values = [value for value, kept in zip(column.values, stays.tolist(), strict=True) if kept]
        self.columns = [(key, column) for key, column in self.columns if len(column.places)]
        return first


def time_major_infos(parts: Sequence[tuple[int, InfoHistory]], num_steps: int, num_envs: int) -> dict[Any, Any]:
    """Batch the infos of all steps and sub-environments.

    Args:
        parts: Packed histories, each with the index of its first sub-environment.
        num_steps: Number of steps, T.
        num_envs: Number of sub-environments, n.

    Returns:
        What ``batch_infos`` gives for T * n infos, its arrays ``(T, n, ...)``.
    """
    columns: dict[Any, list[_Column]] = {}
    for first_index, history in parts:
        for key, column in history.columns:
            step, row = np.divmod(column.places, history.num_rows)
            columns.setdefault(key, []).append(_Column(step * num_envs + first_index + row, column.values, column.kind))
    size = num_steps * num_envs
    if any(f"_{key}" in columns for key in columns):  # one is the other's mask: for Gymnasium to decide
        return _time_major(batch_infos(_rebuilt(columns, size)), num_steps, num_envs)
    batch: dict[Any, Any] = {}
    for key in sorted(columns, key=lambda key: min(int(column.places[0]) for column in columns[key])):
        batch[key] = _batched(key, columns[key], size)
        mask = np.zeros(size, dtype=np.bool_)
        for column in columns[key]:
            mask[column.places] = True
        batch[f"_{key}"] = mask
    return _time_major(batch, num_steps, num_envs)


def _one_array(values: list[Any]) -> Array | None:
    """Return the values as one array, if that holds each exactly, with its type."""
    kinds = set(map(type, values))
    kind = kinds.pop()
    if kinds:
        return None
    if kind is np.ndarray:
        first = values[0]
        same = all(value.dtype == first.dtype and value.shape == first.shape for value in values)
        if not same or first.dtype.hasobject:
            return None
        array: Array = np.zeros((len(values), *first.shape), dtype=first.dtype)
        for number, value in enumerate(values):
            array[number] = value
        return array
    if kind not in (int, float, bool) and not (issubclass(kind, np.number) and np.dtype(kind).kind in "iufc"):
        return None
    if issubclass(kind, np.generic) and np.dtype(kind).type is not kind:  # a class of the user's
        return None
    try:
        array = np.array(values, dtype=np.dtype(kind))
    except OverflowError:  # an integer that needs more than 64 bits
        return None
    return array


def _batched(key: Any, columns: Sequence[_Column], size: int) -> Any:
    first = columns[0]
    alike = first.kind is not None and all(
        column.kind is first.kind
        and column.values.dtype == first.values.dtype
        and column.values.shape[1:] == first.values.shape[1:]
        for column in columns
    )
    if alike and key != "final_obs":
        whole = np.zeros((size, *first.values.shape[1:]), dtype=first.values.dtype)
        for column in columns:
            whole[column.places] = column.values
        return whole
    values = [pair for column in columns for pair in zip(column.places.tolist(), column.raw(), strict=True)]
    return batch_column(key, sorted(values, key=lambda pair: pair[0]), size)


def _rebuilt(columns: Mapping[Any, Sequence[_Column]], size: int) -> list[dict[Any, Any] | None]:
    """Return the infos as they were told."""
    infos: list[dict[Any, Any] | None] = [None] * size
    for key, each in columns.items():
        for column in each:
            for place, value in zip(column.places.tolist(), column.raw(), strict=True):
                info = infos[place]
                if info is None:
                    info = infos[place] = {}
                info[key] = value
    return infos


def _time_major(batch: dict[Any, Any], num_steps: int, num_envs: int) -> dict[Any, Any]:
    """Return the batch with its arrays' first axis split in two."""
    split: dict[Any, Any] = {}
    for key, value in batch.items():
        if isinstance(value, dict):
            split[key] = _time_major(value, num_steps, num_envs)
        elif isinstance(value, np.ndarray) and value.shape[:1] == (num_steps * num_envs,):
            split[key] = value.reshape((num_steps, num_envs, *value.shape[1:]))
        else:
            split[key] = value
    return split
