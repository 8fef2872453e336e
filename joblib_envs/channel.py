"""Shared-memory arrays and wake-ups between a batch and its worker processes."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import numpy as np
from joblib.externals.loky.backend.context import get_context

from joblib_envs.rows import Array, Leaf, Rows

__all__ = ["SharedArrays", "SharedBlock", "Signal"]

_ALIGNMENT = 64
_SPIN_S = 50e-6
_TRIES_PER_LOOK = 20
_LIVENESS_S = 0.1
_MAX_ACTION_ITEM_BYTES = 8

# The words of a worker's header.
COMMAND, ACTION_DTYPE, SLOT, HAS_MESSAGE = range(4)
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


class SharedArrays:
    """Where everything lies in a block: headers, actions, and the rows, one set for each slot.

    Both sides make it from the same arguments, so they agree on the offsets.

    Args:
        leaves: The observation space's leaves.
        num_envs: Rows.
        num_slots: Sets of rows; two where returned views must outlive the next step.
        action_shape: Shape of one action; None where actions have no fixed shape.
        num_workers: Headers.
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
        self._size = 0
        self._headers = self._reserve((num_workers, HEADER_WORDS), np.int64)
        action_items = 0 if action_shape is None else num_envs * int(np.prod(action_shape))
        self._actions = self._reserve((action_items * _MAX_ACTION_ITEM_BYTES,), np.uint8)
        self._rows: list[list[tuple[int, tuple[int, ...], Any]]] = []
        for _ in range(num_slots):
            reserved: list[tuple[int, tuple[int, ...], Any]] = []
            Rows.allocate(leaves, num_envs, self._reserving(reserved))
            self._rows.append(reserved)

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedArrays, self._arguments

    @property
    def size(self) -> int:
        """Bytes that the block must have."""
        return self._size

    def header(self, block: SharedBlock, worker: int) -> Array:
        """Return a worker's header words."""
        header: Array = block.array(*self._headers)[worker]
        return header

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

    def _reserve(self, shape: tuple[int, ...], dtype: Any) -> tuple[int, tuple[int, ...], Any]:
        offset = self._size
        num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._size += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        return offset, shape, dtype

    def _reserving(self, reserved: list[Any]) -> Callable[[tuple[int, ...], Any], Array]:
        """Return an allocator that notes offsets; its arrays take no memory."""

        def reserve(shape: tuple[int, ...], dtype: Any) -> Array:
            reserved.append(self._reserve(shape, dtype))
            return np.broadcast_to(np.zeros((), dtype), shape)

        return reserve


_DTYPES: dict[int, str] = {np.dtype(code).num: code for code in "?bBhHiIlLqQefd"}


class Signal:
    """One side tells the other that something is ready.

    A semaphore from loky's context: it fences memory, so what was written to shared arrays
    before is seen after, also on weakly ordered processors. The waiter polls for 50
    microseconds before it sleeps on it, since a step of a cheap environment is over sooner
    than the operating system wakes a process.
    """

    def __init__(self) -> None:
        self._semaphore = get_context("loky").Semaphore(0)
        self.send = self._semaphore.release

    def __getstate__(self) -> Any:
        return self._semaphore

    def __setstate__(self, semaphore: Any) -> None:
        self._semaphore = semaphore
        self.send = semaphore.release

    def wait(self, is_alone: Callable[[], bool] | None = None, deadline: float | None = None) -> bool:
        """Wait until the other side has sent.

        Args:
            is_alone: Tells whether the other side is gone; asked ten times a second.
            deadline: ``time.perf_counter()`` at which to give up.

        Returns:
            Whether it came; False when the other side is gone or the time is up.
        """
        acquire = self._semaphore.acquire
        spin_until = time.perf_counter() + _SPIN_S
        while time.perf_counter() < spin_until:
            for _ in range(_TRIES_PER_LOOK):
                if acquire(False):
                    return True
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


def ignore_broken_pipe() -> contextlib.suppress:
    """Suppress what a pipe raises when its other end is gone; the death is found by waiting."""
    return contextlib.suppress(BrokenPipeError, ConnectionResetError)
