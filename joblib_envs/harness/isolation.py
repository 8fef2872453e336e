"""Runs a function in a process of its own, with a watchdog.

Libraries don't disturb one another, a crash is a finding, and nothing hangs. The process
is a plain ``python -m joblib_envs.harness.child``: it inherits no state, starts with one
thread for linear algebra, and is ended with everything below it. Where the parent vanishes
the process ends itself in the same way.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from types import TracebackType
from typing import Any

import cloudpickle
import psutil

__all__ = ["Ending", "Isolated", "end_descendants", "run_isolated"]

THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMEXPR")}
THREADS["VECLIB_MAXIMUM_THREADS"] = "1"
CLOSING_S = 10
"""Time that a process gets to end by itself when its work is done."""

TRACKERS_S = 3
"""Time that resource trackers get to remove files after it."""


@dataclass(frozen=True)
class Ending:
    """How the process ended.

    Attributes:
        finished: The function returned.
        hung: Nothing was sent for too long, and the process was ended.
        exitcode: The exit code of a crash; negative for a signal.
        at: The last thing the function said it was at.
        output: The last line it printed.
    """

    finished: bool
    hung: bool
    exitcode: int
    at: str
    output: str

    def describe(self, silence_s: float) -> str:
        """Return what happened in one line."""
        if self.hung:
            return f"no answer within {silence_s:g} s in {self.at}"
        if self.exitcode < 0:
            with contextlib.suppress(ValueError):
                return f"the process was ended by {signal.Signals(-self.exitcode).name} in {self.at}"
        words = f": {self.output}" if self.output else ""
        return f"the process ended with exit code {self.exitcode} in {self.at}{words}"


class Isolated:
    """A process that calls one function and reports.

    As a context manager it ends the process, and everything the process started, on the
    way out.

    Args:
        function: An importable function, called as ``function(send, *arguments)``. It
            says where it is with ``send("at", label)``, which keeps the watchdog calm.
        arguments: The function's arguments; they must pickle.
        takes_requests: Call ``function(send, requests, *arguments)``, with an iterator
            over what is passed to :meth:`tell`.
    """

    def __init__(self, function: Callable[..., None], *arguments: Any, takes_requests: bool = False) -> None:
        self._at, self._hung, self._finished = "its start", False, False
        self._ending: Ending | None = None
        self._below: set[psutil.Process] = set()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._connection, theirs = Pipe(duplex=True)
        paths = os.pathsep.join(map(os.path.abspath, sys.path))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "joblib_envs.harness.child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=os.environ | THREADS | {"PYTHONPATH": paths},
                start_new_session=True,  # Ctrl-C reaches only the parent, which ends the children
            )
        self.tell(function, arguments, takes_requests)

    def __enter__(self) -> Isolated:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.end(patience_s=CLOSING_S if kind is None else 0)
        except BaseException:  # an interrupt while waiting
            self.end(patience_s=0)
            raise

    @property
    def is_open(self) -> bool:
        """Whether nobody has ended the process yet."""
        return self._ending is None

    def tell(self, *request: Any) -> None:
        """Send a request; None ends the function's iterator. A process that is gone gets nothing."""
        with contextlib.suppress(OSError):
            self._connection.send_bytes(cloudpickle.dumps(request))

    def listen(self, receive: Callable[..., None], silence_s: float, until: str = "finished") -> bool:
        """Pass on what is sent, until a kind of message has come.

        Args:
            receive: Called as ``receive(kind, *values)``.
            silence_s: The time without a word after which the process counts as hanging.
            until: The kind of message.

        Returns:
            Whether it came; without it the process has ended, finished or hangs.
        """
        heard = time.monotonic()
        kind = ""
        with contextlib.suppress(EOFError, ConnectionError):
            while kind != until and not self._finished:
                ended = self._process.poll() is not None
                # Forked workers keep the pipe open after a crash, so its end can't be waited for.
                if self._connection.poll(0 if ended else 0.1):
                    kind, *values = cloudpickle.loads(self._connection.recv_bytes())
                    self._take(receive, kind, *values)
                    heard = time.monotonic()
                elif ended:
                    break
                elif time.monotonic() - heard > silence_s:
                    self._hung = True
                    break
        return kind == until

    def end(self, patience_s: float = CLOSING_S) -> Ending:
        """End the process, and everything it started."""
        if self._ending is None:
            self._below.update(_below(self._process.pid))  # kept: an interrupt may come before they are ended
            _stop(self._process, 0 if self._hung else patience_s)
            _clear({*self._below, *_group(self._process.pid)})
            self._connection.close()
            with self._output:
                output = _last_line(self._output)
            self._ending = Ending(self._finished, self._hung, self._process.returncode, self._at, output)
        return self._ending

    def _take(self, receive: Callable[..., None], kind: str, *values: Any) -> None:
        if kind == "at":
            self._at = values[0]
        elif kind == "finished":
            self._finished = True
        else:
            receive(kind, *values)


def run_isolated(
    function: Callable[..., None], *arguments: Any, receive: Callable[..., None], silence_s: float
) -> Ending:
    """Call ``function(send, *arguments)`` in a new process, until it returns.

    Args:
        function: As for :class:`Isolated`.
        arguments: As for :class:`Isolated`.
        receive: Called as ``receive(kind, *values)`` for what it sends.
        silence_s: The time without a word after which it counts as hanging.

    Returns:
        How it ended. The process and everything it started are gone.
    """
    with Isolated(function, *arguments) as process:
        process.listen(receive, silence_s)
        return process.end()


def end_descendants() -> None:
    """End everything that this process has started, but the resource trackers.

    They end by themselves when this process has, and remove its files.
    """
    for _ in range(10):  # others may be started while some are being ended
        left = [each for each in _below(os.getpid()) if not _is_tracker(each) and _is_running(each)]
        if not left:
            return
        for each in left:
            with contextlib.suppress(psutil.Error):
                each.kill()
        psutil.wait_procs(left, timeout=1)


def _stop(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Wait for the process, and end it if it takes too long."""
    try:
        process.wait(timeout=patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def _clear(left: set[psutil.Process]) -> None:
    """End the processes that another one left behind."""
    # A resource tracker ends by itself when the others are gone, and removes their files.
    trackers = {each for each in left if _is_tracker(each)}
    for each in left - trackers:
        with contextlib.suppress(psutil.Error):
            each.kill()
    _, still_there = psutil.wait_procs(trackers, timeout=TRACKERS_S)
    for each in still_there:
        with contextlib.suppress(psutil.Error):
            each.kill()


def _group(leader: int) -> Iterator[psutil.Process]:
    """Yield the processes of a session's first process group."""
    for each in psutil.process_iter():
        with contextlib.suppress(OSError):
            if os.getpgid(each.pid) == leader:
                yield each


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return any("resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _last_line(output: Any) -> str:
    output.seek(0)
    lines = [line.strip() for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""
