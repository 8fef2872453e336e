"""Keeps the infos of a call in typed columns, so that they cross to the caller without pickling.

An info is a dictionary of anything, yet nearly all infos of an environment are alike. A *form* says
what they have in common: the keys in order, and under each key a number of one type, an array of
one shape and dtype, a dictionary of a form, or anything else. For each form that appears there is a
:class:`Table` with a column for each number and array, in memory that may be shared; what fits no column
is kept beside, and goes by message. Forms are found at run time: whatever an environment tells is kept.

Where all sub-environments tell infos of one form the batch is made of whole columns. Everywhere else
the dictionaries are built again, exactly as they were told, and :mod:`joblib_envs.infos` batches them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from joblib_envs.copies import own
from joblib_envs.infos import batch_infos, own_info

__all__ = ["InfoColumns", "Table", "batch_columns"]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Form: TypeAlias = tuple[tuple[str, tuple[Any, ...]], ...]
"""Keys, each with what is under it: ("number", type), ("array", dtype, shape), ("dict", form), or ("rest",)."""

_NOTHING, _BESIDE = 0, -1
"""Numbers of rows without an info, and of rows whose info is kept beside the columns; tables count from 1."""

_MAX_FORMS = 32
"""An environment whose infos never look alike gets no more tables."""

_MAX_DEPTH = 4
"""Dictionaries in dictionaries: a deeper one, or one that holds itself, is kept as it is."""

_REST = ("rest",)


class _Found(NamedTuple):
    """What the rows that have an info have in common.

    Attributes:
        table: The one that all of them are in, if it can be batched by column.
        is_one: Whether there is just one such table, or no info at all.
        rows: Which rows are in it; None: every one.
        places: Where they are in the table.
    """

    table: Table | None
    is_one: bool
    rows: Array | None = None
    places: Any = None


class InfoColumns:
    """The infos of some sub-environments in one call, a row each.

    Args:
        num_rows: Number of sub-environments.
        numbers: Where it stands which form each row has: int16 ``(num_rows,)``, all zero.
        new_table: Makes the table of a new form; by default in ordinary memory.

    Attributes:
        numbers: Which form each row has.
        has_any: Whether there is any info.
    """

    def __init__(
        self, num_rows: int, numbers: Array | None = None, new_table: Callable[[Form, int], Table] | None = None
    ) -> None:
        self._use(np.zeros(num_rows, dtype=np.int16) if numbers is None else numbers)
        self._store = _Store(num_rows, new_table or Table)
        self._first = 0
        self.has_any = False

    def _use(self, numbers: Array) -> None:
        self.numbers = numbers
        self._written_numbers = _buffer(numbers)
        self._usual: tuple[int, _Storer] | None = None
        self._found: tuple[bytes, _Found] = (b"", _NONE_HAS)

    def __len__(self) -> int:
        return len(self.numbers)

    def part(self, start: int, stop: int) -> InfoColumns:
        """Return the infos of rows ``start`` to ``stop``, in the same columns."""
        part = InfoColumns.__new__(InfoColumns)
        part._use(self.numbers[start:stop])
        part._store, part._usual = self._store, self._usual
        part._first = self._first + start
        part.has_any = bool(part.numbers.any())
        return part

    def clear(self) -> None:
        """Forget all rows."""
        if self.has_any:
            self.has_any = False
            self.numbers.fill(_NOTHING)
            if self._store.beside:
                for row in range(self._first, self._first + len(self)):
                    self._store.beside.pop(row, None)

    def drop(self, row: int) -> None:
        """Forget one row."""
        self.numbers[row] = _NOTHING
        self._store.beside.pop(self._first + row, None)

    def write(self, row: int, info: dict[Any, Any]) -> None:
        """Keep a snapshot of an info; nothing that happens to it later changes what was kept."""
        self.has_any = True
        store, place = self._store, self._first + row
        if type(info) is dict:
            try:
                if self._usual is not None:
                    number, store_alike = self._usual
                    if store_alike(place, info):
                        self._written_numbers[row] = number
                        return
                keys = tuple(info)
                for number, table in store.by_keys.get(keys, ()):
                    if table.store(place, info, keys):
                        if table.rest:
                            store.beside[place] = table.rest_of(info)
                        elif table.is_plain:
                            self._usual = number, table.store_alike
                        self._written_numbers[row] = number
                        return
            except (OverflowError, TypeError, ValueError):  # an integer that no column holds, an unhashable key
                pass
            else:
                if store.add(info):
                    self.write(row, info)
                    return
        store.beside[place] = own_info(info)
        self._written_numbers[row] = _BESIDE

    def dicts(self) -> list[dict[Any, Any] | None]:
        """Return the infos as they were told; None where there is none."""
        return [self._dict(row, number) for row, number in enumerate(self.numbers.tolist())]

    @property
    def beside(self) -> dict[int, Any]:
        """What is kept beside the columns, by row: a whole info, or the values that have no column."""
        kept = self._store.beside
        return {row: kept[self._first + row] for row in range(len(self)) if self._first + row in kept} if kept else {}

    def take_beside(self, beside: dict[int, Any]) -> None:
        """Take what was kept beside the columns of another process."""
        kept = self._store.beside
        if kept:
            for row in range(len(self)):
                kept.pop(self._first + row, None)
        kept.update((self._first + row, value) for row, value in beside.items())

    def take_in(self) -> None:
        """Note that another process has written to the columns."""
        self.has_any = True

    def add_table(self, form: Form, table: Table) -> None:
        """Add the table of a form, where another process has made it."""
        self._store.add_table(form, table)

    def tables_in_use(self) -> set[int]:
        """Return the numbers of the forms that there are."""
        return set(self.numbers.tolist()) - {_NOTHING}

    def has_columns_of(self, other: InfoColumns) -> bool:
        """Tell whether both are in the same columns."""
        return self._store is other._store

    def one_table(self) -> _Found:
        """Return the table of all rows that have an info, if there is just one and it can be batched by column."""
        numbers = self.numbers.tobytes()
        if numbers != self._found[0]:  # mostly they are those of the call before
            self._found = (numbers, self._find())
        return self._found[1]

    def _find(self) -> _Found:
        numbers = set(self.numbers.tolist())
        numbers.discard(_NOTHING)
        if not numbers:
            return _NONE_HAS
        if len(numbers) > 1 or _BESIDE in numbers:
            return _MIXED
        table = self._store.tables[numbers.pop() - 1]
        if not table.is_batchable:
            return _MIXED
        if self.numbers.all():
            return _Found(table, is_one=True, places=self.place(slice(0, len(self))))
        rows = np.flatnonzero(self.numbers)
        return _Found(table, is_one=True, rows=rows, places=self.place(rows))

    def place(self, rows: Any) -> Any:
        """Return where in the tables some rows are: an array of them, or a slice."""
        if isinstance(rows, slice):
            return slice(self._first + rows.start, self._first + rows.stop)
        return rows + self._first

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the rows that have an info, and no more of the columns."""
        numbers = self.numbers.copy()
        filled = []
        for number in sorted(self.tables_in_use() - {_BESIDE}):
            rows = np.flatnonzero(numbers == number)
            table = self._store.tables[number - 1]
            filled.append((table.form, rows, [array[self.place(rows)] for array in table.arrays()]))
        return _unpickled, (numbers, filled, self.beside)

    def _dict(self, row: int, number: int) -> dict[Any, Any] | None:
        if number == _NOTHING:
            return None
        place = self._first + row
        if number == _BESIDE:
            whole: dict[Any, Any] = self._store.beside[place]
            return whole
        table = self._store.tables[number - 1]
        return table.load(place, iter(self._store.beside[place]) if table.rest else iter(()))


_NONE_HAS, _MIXED = _Found(None, is_one=True), _Found(None, is_one=False)


class Table:
    """The columns of one form.

    Args:
        form: What the infos have in common.
        num_rows: Rows of each column.
        allocate: Makes a zeroed array of a shape and a dtype.

    Attributes:
        is_flat: Whether all is in columns: no dictionaries, and nothing beside.
        is_plain: Whether all are numbers.
    """

    def __init__(self, form: Form, num_rows: int, allocate: Callable[[tuple[int, ...], Any], Array] = np.zeros) -> None:
        self.form = _SEEN.setdefault(form, form)
        self.keys = tuple(key for key, _ in form)
        self._names = [name for key in self.keys for name in (key, f"_{key}")]
        self.rest: bool
        self.is_batchable: bool
        self._blocks = [
            (positions, allocate((len(positions), num_rows), dtype))
            for dtype, positions in _numbers_by_dtype(form).items()
        ]
        numbers: dict[int, Array] = {}
        for positions, block in self._blocks:
            numbers.update(zip(positions, block, strict=True))
        self.columns: list[_Column] = []
        for at, (_, what) in enumerate(form):
            if what[0] == "number":
                self.columns.append(_Numbers(what[1], numbers[at]))
            else:
                self.columns.append(_COLUMNS[what[0]](what[1:], num_rows, allocate))
        self.rest = any(isinstance(column, _Rest | _Dicts) and column.has_rest for column in self.columns)
        taken = set(self.keys)
        self.is_batchable = (
            not self.rest
            and not any(f"_{key}" in taken for key in self.keys)
            and "final_obs" not in taken  # always an object array
            and all(column.table.is_batchable for column in self.columns if isinstance(column, _Dicts))
        )
        self.is_flat = all(isinstance(column, _Numbers | _Arrays) for column in self.columns)
        self.is_plain = all(isinstance(column, _Numbers) for column in self.columns)

    def store(self, row: int, info: dict[Any, Any], keys: tuple[Any, ...]) -> bool:
        """Write an info with keys equal to these into a row, or tell that it has another form."""
        for key in keys:  # an equal one of a subclass of str isn't the same
            if type(key) is not str:
                return False
        return all(column.store(row, value) for column, value in zip(self.columns, info.values(), strict=True))

    @functools.cached_property
    def store_alike(self) -> _Storer:
        """The quick way to ``store`` where all values are numbers, and the keys the very objects that were seen first.

        Nearly all are: they are constants of the environment's code. False says nothing of other infos.
        """
        written = [column.written for column in self.columns if isinstance(column, _Numbers)]
        storer: _Storer = _make_storer(len(self.keys))(self.keys, [what[1] for _, what in self.form], written)
        return storer

    def rest_of(self, info: dict[Any, Any]) -> list[Any]:
        """Return copies of the values that have no column, in order."""
        rest: list[Any] = []
        for column, value in zip(self.columns, info.values(), strict=True):
            if isinstance(column, _Rest):
                rest.append(own(value))
            elif isinstance(column, _Dicts):
                rest.extend(column.table.rest_of(value))
        return rest

    def load(self, row: int, rest: Iterator[Any]) -> dict[Any, Any]:
        """Return the info of a row, as it was told."""
        return {key: column.load(row, rest) for key, column in zip(self.keys, self.columns, strict=True)}

    def arrays(self) -> list[Array]:
        """Return all columns' arrays, those of dictionaries too."""
        arrays: list[Array] = []
        for column in self.columns:
            if isinstance(column, _Numbers | _Arrays):
                arrays.append(column.array)
            elif isinstance(column, _Dicts):
                arrays.extend(column.table.arrays())
        return arrays

    def batch(self, parts: Sequence[tuple[Table, Any, Any]], num_envs: int, present: Array | None) -> dict[str, Any]:
        """Return the batch of infos that are all of this form.

        Args:
            parts: Tables of this form, which rows of them to take, and where in the batch those go.
            num_envs: Number of sub-environments.
            present: Which of them have an info: bool ``(n,)``; None: all.
        """
        values: list[Any] = [None] * len(self._names)  # each key's, then its mask
        new = np.empty if present is None else np.zeros
        for number, (positions, block) in enumerate(self._blocks):  # numbers of one type at once
            batched = new((len(block), num_envs), block.dtype)
            for table, rows, place in parts:
                batched[:, place] = table._blocks[number][1][:, rows]
            if len(block) == len(self.keys):
                values[::2] = batched
            else:
                for at, row in zip(positions, batched, strict=True):
                    values[2 * at] = row
        for at, column in () if self.is_plain else enumerate(self.columns):
            if isinstance(column, _Dicts):
                inner = [(table.columns[at].table, rows, place) for table, rows, place in parts]  # type: ignore[union-attr]
                values[2 * at] = column.table.batch(inner, num_envs, present)
            elif isinstance(column, _Arrays):
                values[2 * at] = new((num_envs, *column.array.shape[1:]), column.array.dtype)
                for table, rows, place in parts:
                    values[2 * at][place] = table.columns[at].array[rows]  # type: ignore[union-attr]
        masks = np.empty((len(self.keys), num_envs), dtype=np.bool_)
        masks[:] = True if present is None else present
        values[1::2] = masks
        return dict(zip(self._names, values, strict=True))


_Storer: TypeAlias = Callable[[int, dict[Any, Any]], bool]


@functools.cache
def _make_storer(num_keys: int) -> Callable[[Sequence[str], Sequence[type], Sequence[Any]], _Storer]:
    """Return what makes the functions that store infos with so many keys, from the keys, types and columns.

    The functions are written out, key after key: with loops over the keys they would take three times as long,
    for each sub-environment at each step.
    """
    every = range(num_keys)

    def each(name: str) -> str:
        return "".join(f"{name}{at}, " for at in every)

    source = f"""
def make(keys, kinds, columns):
    {each("KEY")} = keys
    {each("KIND")} = kinds
    {each("COLUMN")} = columns
    def store(row, info):
        if len(info) != {num_keys}:
            return False
        {each("key")} = info
        {each("value")} = info.values()
        if {" and ".join(f"key{at} is KEY{at} and type(value{at}) is KIND{at}" for at in every)}:
            {"; ".join(f"COLUMN{at}[row] = value{at}" for at in every)}
            return True
        return False
    return store
"""
    namespace: dict[str, Any] = {}
    exec(compile(source, f"<infos with {num_keys} keys>", "exec"), namespace)
    make: Callable[[Sequence[str], Sequence[type], Sequence[Any]], _Storer] = namespace["make"]
    return make


class _Numbers:
    """Numbers of one type: Python's int, float, bool, or one of NumPy's."""

    def __init__(self, kind: type, array: Array) -> None:
        self.kind, self.array = kind, array
        # A buffer takes a number in half of NumPy's time.
        self.written: Any = _buffer(array) if array.dtype.char in _BUFFERED else array

    def store(self, row: int, value: Any) -> bool:
        if type(value) is not self.kind:
            return False
        self.array[row] = value
        return True

    def load(self, row: int, rest: Iterator[Any]) -> Any:  # noqa: ARG002
        return self.kind(self.array[row])


_BUFFERED = frozenset("?bBhHiIlLqQfd")
"""The numbers that buffers take as NumPy does, bit by bit."""


def _buffer(array: Any) -> Any:
    return memoryview(array) if array.flags.writeable else array  # a pretended one is never written to


class _Arrays:
    """Arrays of one shape and dtype."""

    def __init__(self, what: tuple[Any, ...], num_rows: int, allocate: Callable[[tuple[int, ...], Any], Array]) -> None:
        self._dtype, self._shape = np.dtype(what[0]), what[1]
        self.array = allocate((num_rows, *self._shape), self._dtype)

    def store(self, row: int, value: Any) -> bool:
        if type(value) is not np.ndarray or value.dtype != self._dtype or value.shape != self._shape:
            return False
        self.array[row] = value
        return True

    def load(self, row: int, rest: Iterator[Any]) -> Any:  # noqa: ARG002
        return self.array[row, ...].copy()


class _Dicts:
    """Dictionaries of one form."""

    def __init__(self, what: tuple[Any, ...], num_rows: int, allocate: Callable[[tuple[int, ...], Any], Array]) -> None:
        self.table = Table(what[0], num_rows, allocate)
        self.has_rest = self.table.rest

    def store(self, row: int, value: Any) -> bool:
        if type(value) is not dict:
            return False
        keys = tuple(value)
        return keys == self.table.keys and self.table.store(row, value, keys)

    def load(self, row: int, rest: Iterator[Any]) -> Any:
        return self.table.load(row, rest)


class _Rest:
    """Values that have no column."""

    has_rest = True

    def __init__(self, what: tuple[Any, ...], num_rows: int, allocate: Any) -> None:
        """Need nothing: the values are kept beside."""

    def store(self, row: int, value: Any) -> bool:  # noqa: ARG002
        return True

    def load(self, row: int, rest: Iterator[Any]) -> Any:  # noqa: ARG002
        return next(rest)


_Column: TypeAlias = _Numbers | _Arrays | _Dicts | _Rest
_COLUMNS: dict[str, type[_Arrays | _Dicts | _Rest]] = {"array": _Arrays, "dict": _Dicts, "rest": _Rest}
_SEEN: dict[Form, Form] = {}
"""One object for each form, so that equal ones are quickly known."""


class _Store:
    """The tables, and what has no place in them; parts of an ``InfoColumns`` have one together."""

    def __init__(self, num_rows: int, new_table: Callable[[Form, int], Table]) -> None:
        self.num_rows = num_rows
        self.new_table = new_table
        self.tables: list[Table] = []
        self.by_keys: dict[tuple[str, ...], list[tuple[int, Table]]] = {}
        self.beside: dict[int, Any] = {}

    def add(self, info: dict[Any, Any]) -> bool:
        """Make a table for infos like this one; tell whether there can be one."""
        if len(self.tables) >= _MAX_FORMS or not all(type(key) is str for key in info):
            return False
        form = _form_of(info, 0)
        if all(what == _REST for _, what in form):
            return False
        try:
            table = self.new_table(form, self.num_rows)
        except (OSError, MemoryError):  # no memory to share is left: the info goes by message
            return False
        self.add_table(form, table)
        return True

    def add_table(self, form: Form, table: Table) -> None:
        self.tables.append(table)
        self.by_keys.setdefault(tuple(key for key, _ in form), []).append((len(self.tables), table))


def batch_columns(parts: Sequence[InfoColumns]) -> dict[Any, Any]:
    """Batch the infos of a call, by the rule of :func:`joblib_envs.infos.batch_infos`.

    Args:
        parts: The shards' infos, in index order.
    """
    pieces: list[tuple[Table, Any, Any]] = []
    start, is_full = 0, True
    for part in parts:
        table, is_one, rows, places = part.one_table()
        if not is_one or (table is not None and pieces and table.form is not pieces[0][0].form):
            return batch_infos([info for part in parts for info in part.dicts()])
        stop = start + len(part.numbers)
        if table is not None:
            pieces.append((table, places, slice(start, stop) if rows is None else rows + start))
        is_full = is_full and table is not None and rows is None
        start = stop
    if not pieces:
        return {}
    present = None
    if not is_full:
        present = np.zeros(start, dtype=np.bool_)
        for _, _, where in pieces:
            present[where] = True
    return pieces[0][0].batch(pieces, start, present)


def _numbers_by_dtype(form: Form) -> dict[Any, list[int]]:
    """Return the positions of a form's numbers, by their dtype."""
    positions: dict[Any, list[int]] = {}
    for at, (_, what) in enumerate(form):
        if what[0] == "number":
            positions.setdefault(np.dtype(what[1]), []).append(at)
    return positions


def _form_of(info: dict[Any, Any], depth: int) -> Form:
    return tuple((key, _what_of(value, depth)) for key, value in info.items())


def _what_of(value: Any, depth: int) -> tuple[Any, ...]:
    kind = type(value)
    if kind is int:
        return ("number", int) if -(2**63) <= value < 2**63 else _REST
    if kind in (float, bool) or _is_numpy_number(kind):
        return ("number", kind)
    if kind is np.ndarray and value.dtype.kind in "biufc" and value.dtype.isnative:
        return ("array", value.dtype.str, value.shape)
    if kind is dict and depth < _MAX_DEPTH and all(type(key) is str for key in value):
        return ("dict", _form_of(value, depth + 1))
    return _REST


def _is_numpy_number(kind: type) -> bool:
    """Tell whether it is one of NumPy's own types of numbers; ``np.bool_`` is none to Gymnasium's rule."""
    return issubclass(kind, np.number) and np.dtype(kind).type is kind and np.dtype(kind).kind in "iufc"


def _unpickled(
    numbers: Array, filled: Sequence[tuple[Form, Array, Sequence[Array]]], beside: dict[int, Any]
) -> InfoColumns:
    infos = InfoColumns(len(numbers), numbers)
    infos.has_any = bool(numbers.any())
    for number, (form, rows, values) in enumerate(filled, start=1):
        table = Table(form, len(numbers))
        for array, given in zip(table.arrays(), values, strict=True):
            array[rows] = given
        infos.add_table(form, table)
        numbers[rows] = number
    infos.take_beside(beside)
    return infos
