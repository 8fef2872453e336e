"""How a batch and its workers wake one another: in microseconds, and without keeping a core busy for long."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from joblib.externals.loky.backend.context import get_context

from joblib_envs.gil import gil_is_enabled

__all__ = ["Signal", "ThreadBell", "ThreadSignal"]

_MIN_SPIN_S = 20e-6
_MAX_SPIN_S = 200e-6
_MEMORY = 1 / 8
"""The weight of the last wait among those before it."""

_TRIES_PER_LOOK = 20
_CROWDED_S = 20e-6
"""A look that takes so long was interrupted: another process runs on this processor, mostly the very one that is
waited for. Who sleeps is woken on an idle one, if there is any; who polls on would stay here."""

_LIVENESS_S = 0.1

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
            before, now = now, time.perf_counter()
            if now - before > _CROWDED_S:
                break
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

    def has_come(self) -> bool:
        """Take what the other side has sent, if it has; don't wait."""
        return bool(self._semaphore.acquire(False))


class ThreadSignal(Signal):
    """The same between threads: a lock that one thread holds until another one releases it.

    Where Python has its global lock nobody polls: a thread that does keeps all others from running.
    """

    def __init__(self, *, may_poll: bool = True) -> None:
        lock = threading.Lock()
        lock.acquire()
        self._use(lock, may_poll and not gil_is_enabled())


class ThreadBell(ThreadSignal):
    """A signal that many threads may send at once; those that come before it is heard count as one."""

    def _use(self, semaphore: Any, may_poll: bool) -> None:
        super()._use(semaphore, may_poll)
        self.send = self._ring

    def _ring(self) -> None:
        try:  # noqa: SIM105 -- suppress takes as long as the rest
            self._semaphore.release()
        except RuntimeError:  # it rings already
            pass
