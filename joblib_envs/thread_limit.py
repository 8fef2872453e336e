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
        self.get = controller.get_num_threads
        # threadpoolctl 3.8 lets only one thread of the process set OpenBLAS's limit and ignores
        # the others in silence; a batch may be used from any thread, hence its inner function.
        self.set = getattr(controller, "_real_set_num_threads", controller.set_num_threads)
        # OpenMP keeps the number per thread, the others one for the process.
        self.is_per_thread = controller.user_api == "openmp" or (
            getattr(controller, "threading_layer", None) == "openmp"
        )


class _Libraries:
    """The libraries that are loaded now; found again when modules were imported since."""

    def __init__(self) -> None:
        self._num_modules = -1
        self._shared: list[_Library] = []
        self._per_thread: list[_Library] = []

    @property
    def shared(self) -> list[_Library]:
        """Those that keep one number for the process."""
        self._find()
        return self._shared

    @property
    def per_thread(self) -> list[_Library]:
        """Those that keep a number per thread."""
        self._find()
        return self._per_thread

    def _find(self) -> None:
        if len(sys.modules) != self._num_modules:
            self._num_modules = len(sys.modules)
            found = [_Library(controller) for controller in ThreadpoolController().lib_controllers]
            self._shared = [library for library in found if not library.is_per_thread]
            self._per_thread = [library for library in found if library.is_per_thread]


class ThreadLimit:
    """A number of BLAS and OpenMP threads, in force where the two contexts are entered.

    The limits of several batches may be held at once, in different threads: the newest
    is in force, and the caller's own numbers return when the last one is given back.

    Args:
        num_threads: How many threads each library may use.
    """

    _libraries = _Libraries()
    _lock = threading.RLock()
    _holders: list[ThreadLimit] = []  # noqa: RUF012 -- one for the process, as the libraries' numbers are
    _restore: list[tuple[_Library, int]] = []  # noqa: RUF012

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads

    def acquire(self) -> None:
        """Put the limit in force for the process's shared libraries."""
        cls = ThreadLimit
        with cls._lock:
            if not cls._holders:
                cls._restore = [(library, library.get()) for library in cls._libraries.shared]
            cls._holders.append(self)
            for library, num_threads in cls._restore:
                if num_threads != self.num_threads or len(cls._holders) > 1:
                    library.set(self.num_threads)

    def release(self) -> None:
        """Give the limit back."""
        cls = ThreadLimit
        with cls._lock:
            cls._holders.remove(self)
            if cls._holders:
                for library, _ in cls._restore:
                    library.set(cls._holders[-1].num_threads)
                return
            for library, num_threads in cls._restore:
                if num_threads != self.num_threads:
                    library.set(num_threads)
            cls._restore = []

    def in_this_thread(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the limit is in force for the libraries that keep a number per thread."""
        return self._held_here(self._libraries.per_thread) if self._libraries.per_thread else _NOTHING

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
