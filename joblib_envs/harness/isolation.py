"""Runs a function in a process of its own, with a watchdog.

Libraries don't disturb one another, a crash is a finding, and nothing hangs. The process
is a plain ``python -m joblib_envs.harness.child``: it inherits no state, starts with one
thread for linear algebra, and is ended with everything below it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import Any

import cloudpickle
import psutil

__all__ = ["Ending", "run_isolated"]

THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMEXPR")}
THREADS["VECLIB_MAXIMUM_THREADS"] = "1"


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


def run_isolated(
    function: Callable[..., None], *arguments: Any, receive: Callable[..., None], silence_s: float
) -> Ending:
    """Call ``function(send, *arguments)`` in a new process, until it returns.

    Args:
        function: An importable function. What it sends is passed to ``receive``, but
            for ``send("at", label)``, which tells the watchdog that it is alive.
        arguments: Its arguments; they must pickle.
        receive: Called as ``receive(kind, *values)`` in this process.
        silence_s: The time without a word after which it counts as hanging.

    Returns:
        How it ended. The process and everything it started are gone.
    """
    ours, theirs = Pipe(duplex=True)
    environment = os.environ | THREADS | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    with tempfile.TemporaryFile() as output, ours:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "joblib_envs.harness.child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        watch = _Watch(process, ours, receive)
        try:
            with contextlib.suppress(EOFError, ConnectionError):
                ours.send_bytes(cloudpickle.dumps((function, arguments)))
                watch.listen(silence_s)
        finally:
            exitcode = _end(process, at_once=watch.hung)
        return Ending(watch.finished, watch.hung, exitcode, watch.at, _last_line(output))


class _Watch:
    """Listens to a process until it finishes, ends or falls silent."""

    def __init__(self, process: subprocess.Popen[bytes], connection: Any, receive: Callable[..., None]) -> None:
        self.at, self.hung, self.finished = "its start", False, False
        self._process, self._connection, self._receive = process, connection, receive

    def listen(self, silence_s: float) -> None:
        """Pass on what is sent. An EOFError says that the process has ended."""
        heard = time.monotonic()
        while not self.finished:
            ended = self._process.poll() is not None
            # Forked workers keep the pipe open after a crash, so its end can't be waited for.
            if self._connection.poll(0 if ended else 0.1):
                self._take(*cloudpickle.loads(self._connection.recv_bytes()))
                heard = time.monotonic()
            elif ended:
                return
            elif time.monotonic() - heard > silence_s:
                self.hung = True
                return

    def _take(self, kind: str, *values: Any) -> None:
        if kind == "at":
            self.at = values[0]
        elif kind == "finished":
            self.finished = True
        else:
            self._receive(kind, *values)


def _end(process: subprocess.Popen[bytes], *, at_once: bool) -> int:
    """Wait for the process, end what it left behind, and return its exit code."""
    children: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(process.pid).children(recursive=True)
    try:
        process.wait(timeout=0 if at_once or sys.exc_info()[0] else 10)
    except subprocess.TimeoutExpired:
        process.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.kill()
    return process.wait()


def _last_line(output: Any) -> str:
    output.seek(0)
    lines = [line.strip() for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""
