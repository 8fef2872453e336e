"""Shared-memory arrays and wake-ups between a batch and its worker processes."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import numpy as np
from joblib.externals.loky.backend.context import get_context

from joblib_envs.gil import gil_is_enabled
from joblib_envs.info_columns import Form, Table
from joblib_envs.rows import Array, Leaf, Rows

__all__ = [
    "NewTables",
    "SharedArrays",
    "SharedBlock",
    "Signal",
    "ThreadSignal",
    "gil_is_enabled",
    "no_header",
    "shared_table",
]

_ALIGNMENT = 64
_MIN_SPIN_S = 20e-6
_MAX_SPIN_S = 200e-6
_MEMORY = 1 / 8
_TRIES_PER_LOOK = 20
_LIVENESS_S = 0.1
_MAX_ACTION_ITEM_BYTES = 8

# The words of a worker's header.
COMMAND, ACTION_DTYPE, SLOT, HAS_MESSAGE, HAS_INFOS = range(5)
HEADER_WORDS = 8
# The commands: step with the actions in shared memory, or a request that follows in the pipe.
STEP, MESSAGE = range(2)


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
    ) -> None:
        self._arguments = (tuple(leaves), num_envs, num_slots, action_shape, num_workers)
        self._num_envs = num_envs
        self._action_shape = action_shape
        places = _Places()
        self._headers = places.reserve((num_workers, HEADER_WORDS), np.int64)
        action_items = 0 if action_shape is None else num_envs * int(np.prod(action_shape))
        self._actions = places.reserve((action_items * _MAX_ACTION_ITEM_BYTES,), np.uint8)
        self._rows: list[list[tuple[int, tuple[int, ...], Any]]] = []
        for _ in range(num_slots):
            reserved: list[tuple[int, tuple[int, ...], Any]] = []
            Rows.allocate(leaves, num_envs, _noting(places, reserved))
            self._rows.append(reserved)
        self.size = places.size

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedArrays, self._arguments

    def header(self, block: SharedBlock, worker: int) -> memoryview:
        """Return a worker's header words."""
        return _words(block.array(*self._headers)[worker])

    def rows(self, block: SharedBlock, slot: int) -> Rows:
        """Return the rows of a slot."""
        places = iter(self._rows[slot])
        return Rows.allocate(self._arguments[0], self._num_envs, lambda *_: block.array(*next(places)))

    def all_rows(self, block: SharedBlock) -> list[Rows]:
        """Return the rows of every slot."""
        return [self.rows(block, slot) for slot in range(len(self._rows))]

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


_let_others_run = getattr(os, "sched_yield", lambda: time.sleep(0))
"""On a busy machine the other side may be waiting for the very processor on which this one polls."""


class Signal:
    """One side tells the other that something is ready.

    A semaphore from loky's context: it fences memory, so what was written to shared arrays
    before is seen after, also on weakly ordered processors. A step of a cheap environment is over
    sooner than the operating system wakes a process, so the waiter polls before it sleeps: for
    about twice as long as it mostly had to wait, if that is short, and hardly at all where the other
    side takes longer, since then it would only keep a core busy.

    Args:
        may_poll: False where there are more workers than processors: a waiter that polls would
            keep another one from its work.
    """

    def __init__(self, *, may_poll: bool = True) -> None:
        self._use(get_context("loky").Semaphore(0), may_poll)

    def _use(self, semaphore: Any, may_poll: bool) -> None:
        self._semaphore, self._may_poll = semaphore, may_poll
        self.send: Callable[[], None] = semaphore.release
        self._usual_s = _MIN_SPIN_S

    def __getstate__(self) -> Any:
        return self._semaphore, self._may_poll

    def __setstate__(self, state: Any) -> None:
        self._use(*state)

    def wait(self, is_alone: Callable[[], bool] | None = None, deadline: float | None = None) -> bool:
        """Wait until the other side has sent.

        Args:
            is_alone: Tells whether the other side is gone; asked ten times a second.
            deadline: ``time.perf_counter()`` at which to give up.

        Returns:
            Whether it came; False when the other side is gone or the time is up.
        """
        acquire = self._semaphore.acquire
        if acquire(False):
            self._usual_s *= 1 - _MEMORY
            return True
        if not self._may_poll:
            return self._sleep(is_alone, deadline)
        began = time.perf_counter()
        came, now = False, began
        spin_until = began + (max(_MIN_SPIN_S, 2 * self._usual_s) if self._usual_s < _MAX_SPIN_S else _MIN_SPIN_S)
        while not came and now < spin_until:
            for _ in range(_TRIES_PER_LOOK):
                if acquire(False):
                    came = True
                    break
            else:
                _let_others_run()
            now = time.perf_counter()
        if not came:
            came = self._sleep(is_alone, deadline)
            now = time.perf_counter()
        self._usual_s += (min(now - began, 4 * _MAX_SPIN_S) - self._usual_s) * _MEMORY
        return came

    def _sleep(self, is_alone: Callable[[], bool] | None, deadline: float | None) -> bool:
        acquire = self._semaphore.acquire
        if is_alone is None and deadline is None:
            return bool(acquire())
        while True:
            pause = _LIVENESS_S
            if deadline is not None:
                pause = min(pause, max(deadline - time.perf_counter(), 0.0))
            if acquire(True, pause):
                return True
            if is_alone is not None and is_alone():
                return bool(acquire(False))  # it may have sent just before it ended
            if deadline is not None and time.perf_counter() >= deadline:
                return False


class ThreadSignal(Signal):
    """The same between threads: a lock that one thread holds until another one releases it.

    Where Python has its global lock nobody polls: a thread that does keeps all others from running.
    """

    def __init__(self, *, may_poll: bool = True) -> None:
        lock = threading.Lock()
        lock.acquire()
        self._use(lock, may_poll and not gil_is_enabled())


def ignore_broken_pipe() -> contextlib.suppress:
    """Suppress what a pipe raises when its other end is gone; the death is found by waiting."""
    return contextlib.suppress(BrokenPipeError, ConnectionResetError)
