"""Bounds BLAS and OpenMP threads while environments run.

Linear algebra changes its last bits with the number of threads, so equal data on every
backend need an equal number everywhere. Worker processes get it once, through their
environment variables; in the caller's process it holds only during a call, and the
caller's own setting is restored after.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from joblib.parallel import ParallelBackendBase
from threadpoolctl import ThreadpoolController

__all__ = ["ThreadLimit", "thread_variables"]


def thread_variables(num_threads: int) -> dict[str, str]:
    """Return the environment variables that bound the threads of a new process."""
    return dict.fromkeys(ParallelBackendBase.MAX_NUM_THREADS_VARS, str(num_threads))


class _Library:
    """One loaded BLAS or OpenMP library."""

    def __init__(self, controller: Any) -> None:
        # threadpoolctl 3.8 lets only one thread of the process set OpenBLAS's limit and ignores
        # the others in silence; a batch may be used from any thread, hence its inner function.
        self.get = controller.get_num_threads
        self.set = getattr(controller, "_real_set_num_threads", controller.set_num_threads)
        # OpenMP keeps the number per thread, the others one for the process.
        self.is_per_thread = controller.user_api == "openmp" or (
            getattr(controller, "threading_layer", None) == "openmp"
        )
        find = getattr(controller, "_get_symbol", None)
        if controller.internal_api == "openblas" and not self.is_per_thread and find is not None:
            # The library's own functions: each is called twice a step, and takes a third of the time.
            self.get = find("openblas_get_num_threads") or self.get
            self.set = find("openblas_set_num_threads") or self.set


class _Process:
    """What this process has: its libraries, and who holds a limit of theirs."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.holders: list[ThreadLimit] = []
        self.restore: list[tuple[_Library, int]] = []
        self._num_modules = -1
        self._shared: list[_Library] = []
        self._per_thread: list[_Library] = []

    def shared(self) -> list[_Library]:
        """Return the libraries that keep one number for the process."""
        if len(sys.modules) != self._num_modules:
            self._find()
        return self._shared

    def per_thread(self) -> list[_Library]:
        """Return the libraries that keep a number per thread."""
        if len(sys.modules) != self._num_modules:
            self._find()
        return self._per_thread

    def _find(self) -> None:
        """Look which libraries are loaded: modules were imported since."""
        self._num_modules = len(sys.modules)
        found = [_Library(controller) for controller in ThreadpoolController().lib_controllers]
        self._shared = [library for library in found if not library.is_per_thread]
        self._per_thread = [library for library in found if library.is_per_thread]


_process = _Process()


class ThreadLimit:
    """A number of BLAS and OpenMP threads, in force where the two contexts are entered.

    The limits of several batches may be held at once, in different threads: the newest
    is in force, and the caller's own numbers return when the last one is given back.

    Args:
        num_threads: How many threads each library may use.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads

    def acquire(self) -> None:
        """Put the limit in force for the process's shared libraries."""
        process, wanted = _process, self.num_threads
        with process.lock:
            if process.holders:
                for library, _ in process.restore:
                    library.set(wanted)
            else:  # nearly always: a few microseconds a step count
                restore = process.restore
                for library in process.shared():
                    before = library.get()
                    restore.append((library, before))
                    if before != wanted:
                        library.set(wanted)
            process.holders.append(self)

    def release(self) -> None:
        """Give the limit back."""
        process = _process
        with process.lock:
            process.holders.remove(self)
            if process.holders:
                for library, _ in process.restore:
                    library.set(process.holders[-1].num_threads)
                return
            for library, before in process.restore:
                if before != self.num_threads:
                    library.set(before)
            process.restore.clear()

    @property
    def is_per_thread(self) -> bool:
        """Whether there are libraries that keep a number per thread, so that ``in_this_thread`` does anything."""
        return bool(_process.per_thread())

    def in_this_thread(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the limit is in force for the libraries that keep a number per thread."""
        per_thread = _process.per_thread()
        return self._held_here(per_thread) if per_thread else _NOTHING

    @contextlib.contextmanager
    def _held_here(self, per_thread: list[_Library]) -> Iterator[None]:
        before = [library.get() for library in per_thread]
        for library in per_thread:
            library.set(self.num_threads)
        try:
            yield
        finally:
            for library, num_threads in zip(per_thread, before, strict=True):
                library.set(num_threads)


_NOTHING = contextlib.nullcontext()
