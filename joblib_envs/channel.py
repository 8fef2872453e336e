"""Shared-memory arrays between a batch and its worker processes; what they hold is told by signals and a pipe."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import numpy as np

from joblib_envs.info_columns import Form, Table
from joblib_envs.rows import Array, Leaf, Rows

__all__ = ["NewTables", "Ring", "SharedArrays", "SharedBlock", "no_header", "shared_table"]

_ALIGNMENT = 64
_MAX_ACTION_ITEM_BYTES = 8

# The words of a worker's header.
COMMAND, ACTION_DTYPE, SLOT, HAND_OUT, SAID = range(5)
HEADER_WORDS = 8
# The commands: step with the actions in shared memory, a request that follows in the pipe, or some rows' step.
STEP, MESSAGE, ROWS = range(3)
# The words of an entry of a ring: the rows from one to another, and how their actions came, or what their reply has.
ENTRY_WORDS = 3
IN_MESSAGE = -1
# What was said beside the rows: a message in the pipe, infos in columns.
SAID_MESSAGE, SAID_INFOS = 1, 2


class SharedBlock:
    """Memory that several processes see, without a name that could be left behind.

    It is an anonymous file, kept by descriptors alone: gone with the last process that
    holds it, however that ends, and not bounded by the size of /dev/shm.

    Args:
        size: Bytes.
        descriptor: An existing block's file descriptor, as received from its maker.
    """

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        self.size = max(size, 1)
        self._descriptor = self._create(self.size) if descriptor is None else descriptor
        self._memory = mmap.mmap(self._descriptor, self.size)

    @staticmethod
    def _create(size: int) -> int:
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("joblib-envs", os.MFD_CLOEXEC)
        else:  # not on Linux: a temporary file whose name is removed at once
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, size)
        return descriptor

    def array(self, offset: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array over the memory from ``offset`` on."""
        return np.ndarray(shape, dtype, self._memory, offset)

    def send(self, connection: Connection, pid: int) -> None:
        """Give the block to the process at the other end of a pipe."""
        send_handle(connection, self._descriptor, pid)

    @classmethod
    def receive(cls, connection: Connection, size: int) -> SharedBlock:
        """Take a block that the other end of a pipe sends."""
        return cls(size, recv_handle(connection))

    def close(self) -> None:
        """Close the descriptor; the memory stays while arrays over it live."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def no_header() -> memoryview:
    """Return header words that nobody else sees."""
    return _words(np.zeros(HEADER_WORDS, np.int64))


def _words(array: Any) -> memoryview:
    return memoryview(array)  # single words are read and written in half of NumPy's time


class Ring:
    """A queue in shared memory, of one who puts in and one who takes out; a :class:`Signal` tells of each entry.

    Args:
        entries: int32 ``(capacity, ENTRY_WORDS)``; a sub-environment has one entry at most, so it never overflows.
    """

    def __init__(self, entries: Array) -> None:
        self._capacity = len(entries)
        self._words = _words(entries.reshape(-1))
        self._next = 0

    def put(self, start: int, stop: int, what: int) -> None:
        """Add an entry."""
        at = self._turn()
        self._words[at], self._words[at + 1], self._words[at + 2] = start, stop, what

    def take(self) -> tuple[int, int, int]:
        """Take the oldest entry out."""
        at = self._turn()
        return self._words[at], self._words[at + 1], self._words[at + 2]

    def _turn(self) -> int:
        at = self._next
        self._next = (at + 1) % self._capacity
        return at * ENTRY_WORDS


class _Places:
    """Gives out places in a block, one after another: who asks for the same gets the same."""

    def __init__(self) -> None:
        self.size = 0

    def reserve(self, shape: tuple[int, ...], dtype: Any) -> tuple[int, tuple[int, ...], Any]:
        """Return a place: its offset, with the shape and the dtype."""
        offset = self.size
        num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self.size += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        return offset, shape, dtype

    def pretend(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Reserve a place and return an array of that shape that takes no memory."""
        self.reserve(shape, dtype)
        return np.broadcast_to(np.zeros((), dtype), shape)


def shared_table(form: Form, num_rows: int, block: SharedBlock | None = None) -> tuple[Table, SharedBlock]:
    """Make the table of a form in shared memory: in a new block, or in the one that the other side has made."""
    size = _Places()
    Table(form, num_rows, size.pretend)
    block = block or SharedBlock(size.size)
    places = _Places()
    return Table(form, num_rows, lambda shape, dtype: block.array(*places.reserve(shape, dtype))), block


class NewTables:
    """A worker's tables of infos, as their forms appear; each waits here until the caller is told of it."""

    def __init__(self) -> None:
        self._untold: list[tuple[Form, SharedBlock]] = []

    def __call__(self, form: Form, num_rows: int) -> Table:
        """Make a table."""
        table, block = shared_table(form, num_rows)
        self._untold.append((form, block))
        return table

    @property
    def untold(self) -> list[tuple[Form, int]]:
        """The forms that the caller doesn't know yet, and the bytes of each one's block."""
        return [(form, block.size) for form, block in self._untold]

    def send(self, connection: Connection, pid: int) -> None:
        """Send the blocks of those forms, in their order."""
        for _, block in self._untold:
            block.send(connection, pid)
            block.close()
        self._untold.clear()


class SharedArrays:
    """Where everything lies in a block: headers, actions, and the rows, one set for each slot.

    Both sides make it from the same arguments, so they agree on the offsets.

    Args:
        leaves: The observation space's leaves.
        num_envs: Rows.
        num_slots: Sets of rows; two where returned views must outlive the next step.
        action_shape: Shape of one action; None where actions have no fixed shape.
        num_workers: Headers.
        num_hand_outs: Arrays in which observations are given to the caller.

    Attributes:
        size: Bytes that the block must have.
    """

    def __init__(
        self,
        leaves: Sequence[Leaf],
        num_envs: int,
        num_slots: int,
        action_shape: tuple[int, ...] | None,
        num_workers: int,
        num_hand_outs: int,
    ) -> None:
        self._arguments = (tuple(leaves), num_envs, num_slots, action_shape, num_workers, num_hand_outs)
        self._num_envs = num_envs
        self._action_shape = action_shape
        places = _Places()
        self._headers = places.reserve((num_workers, HEADER_WORDS), np.int64)
        self._rings = places.reserve((num_workers, 2, num_envs, ENTRY_WORDS), np.int32)
        action_items = 0 if action_shape is None else num_envs * int(np.prod(action_shape))
        self._actions = places.reserve((action_items * _MAX_ACTION_ITEM_BYTES,), np.uint8)
        self._rows: list[list[tuple[int, tuple[int, ...], Any]]] = []
        for _ in range(num_slots):
            reserved: list[tuple[int, tuple[int, ...], Any]] = []
            Rows.allocate(leaves, num_envs, _noting(places, reserved))
            self._rows.append(reserved)
        self._hand_outs = [
            places.reserve((num_envs, *(leaves[0].space.shape or ())), leaves[0].space.dtype)
            for _ in range(num_hand_outs)
        ]
        self.size = places.size

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedArrays, self._arguments

    def header(self, block: SharedBlock, worker: int) -> memoryview:
        """Return a worker's header words."""
        return _words(block.array(*self._headers)[worker])

    def rings(self, block: SharedBlock, worker: int) -> tuple[Ring, Ring]:
        """Return a worker's rings: of rows to step, and of rows that were stepped."""
        requests, completions = block.array(*self._rings)[worker]
        return Ring(requests), Ring(completions)

    def rows(self, block: SharedBlock, slot: int) -> Rows:
        """Return the rows of a slot."""
        places = iter(self._rows[slot])
        return Rows.allocate(self._arguments[0], self._num_envs, lambda *_: block.array(*next(places)))

    def all_rows(self, block: SharedBlock) -> list[Rows]:
        """Return the rows of every slot."""
        return [self.rows(block, slot) for slot in range(len(self._rows))]

    def hand_outs(self, block: SharedBlock) -> list[Array]:
        """Return the arrays in which observations are given to the caller."""
        return [block.array(*place) for place in self._hand_outs]

    def takes_actions(self, actions: Any) -> bool:
        """Tell whether a batch of actions fits the shared buffer as it is."""
        return (
            self._action_shape is not None
            and isinstance(actions, np.ndarray)
            and actions.dtype.kind in "biuf"
            and actions.dtype.itemsize <= _MAX_ACTION_ITEM_BYTES
            and actions.dtype.isnative
        )

    def actions(self, block: SharedBlock, dtype_number: int) -> Array:
        """Return the actions' buffer as an array of the dtype that the actions have."""
        shape = (self._num_envs, *(self._action_shape or ()))
        return block.array(self._actions[0], shape, np.dtype(_DTYPES[dtype_number]))


def _noting(places: _Places, noted: list[Any]) -> Callable[[tuple[int, ...], Any], Array]:
    """Return an allocator that notes the places that it gives out; its arrays take no memory."""

    def reserve(shape: tuple[int, ...], dtype: Any) -> Array:
        noted.append(places.reserve(shape, dtype))
        return np.broadcast_to(np.zeros((), dtype), shape)

    return reserve


_DTYPES: dict[int, str] = {np.dtype(code).num: code for code in "?bBhHiIlLqQefd"}


def ignore_broken_pipe() -> contextlib.suppress:
    """Suppress what a pipe raises when its other end is gone; the death is found by waiting."""
    return contextlib.suppress(BrokenPipeError, ConnectionResetError)
