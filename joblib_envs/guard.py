"""Decides whether a batch may be used now: by whom, and in which order."""

from __future__ import annotations

import os
import threading
from typing import Literal, TypeAlias

from joblib_envs.errors import (
    ClosedBatchError,
    ConcurrentUseError,
    ForkedBatchError,
    JoblibEnvsError,
    NoPendingCallError,
    PendingCallError,
)

__all__ = ["Guard"]

Pending: TypeAlias = Literal["step", "reset", "send"]

_BEGUN_BY: dict[str, str] = {"step": "step_async", "reset": "reset_async", "send": "send"}
_ENDED_BY: dict[str, str] = {"step": "step_wait", "reset": "reset_wait", "send": "recv"}


class Guard:
    """Lets one call of one thread of the owning process in, while the batch can be used.

    ``with guard("step"):`` raises before anything happens where it can't.

    Attributes:
        pending: The call that was begun and not yet waited for, ``"step"``, ``"reset"`` or ``"send"``, or None.
        broken: Why the batch can only be closed, or None.
        closed: Whether it was closed.
        leave: Lets the next call in; ``with`` does it by itself.
    """

    def __init__(self) -> None:
        self.pending: Pending | None = None
        self.broken: JoblibEnvsError | None = None
        self.closed = False
        self._owner_pid = os.getpid()
        self._lock = threading.Lock()
        self.leave = self._lock.release

    @property
    def owned(self) -> bool:
        """Whether this is the process that built the batch, not a forked child of it."""
        return os.getpid() == self._owner_pid

    def __call__(self, what: str, *, waits_for: Pending | None = None) -> Guard:
        """Name the call that is about to enter, and what it waits for."""
        if os.getpid() != self._owner_pid:
            raise ForkedBatchError(
                f"{what} was called in a forked child on a batch that belongs to its parent process, whose workers "
                f"answer only there: build a batch in the child"
            )
        if not self._lock.acquire(blocking=False):
            raise ConcurrentUseError(
                f"{what} was called while another call is running on this batch: give each thread a batch of its "
                f"own, or hold a lock around the calls"
            )
        if self.closed or self.broken is not None or self.pending != waits_for:
            try:
                self._check(what, waits_for)
            except BaseException:
                self._lock.release()
                raise
        return self

    def __enter__(self) -> None:
        """The checks were made when the call was named."""

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def _check(self, what: str, waits_for: str | None) -> None:
        if self.closed:
            raise ClosedBatchError(f"{what} was called on a batch that was closed: build a new one")
        if self.broken is not None:
            raise self.broken
        if waits_for is not None and self.pending != waits_for:
            raise NoPendingCallError(
                f"{what} was called without a call of {_BEGUN_BY[waits_for]} before it: call that first", waits_for
            )
        if waits_for is None and self.pending is not None:
            begun, ended = _BEGUN_BY[self.pending], _ENDED_BY[self.pending]
            until = " has brought all results" if self.pending == "send" else ""
            raise PendingCallError(
                f"{what} was called between {begun} and {ended}{until and ' of all that was sent'}: call {ended} first"
                f"{until and ', until it' + until}",
                self.pending,
            )

    def enter_close(self) -> bool:
        """Close the way in for good; tell whether there is something to close.

        Raises:
            ConcurrentUseError: A call of another thread is running.
        """
        if not self.owned or self.closed:
            return False
        if not self._lock.acquire(blocking=False):
            raise ConcurrentUseError("close was called while another call is running on this batch: wait for it")
        self.closed = True
        self._lock.release()
        return True
