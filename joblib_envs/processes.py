"""Worker processes: started from loky's context, one by one, and gone when their parent is.

Not from joblib's shared executor: that is one per process, and a long task in it starves
the user's own ``Parallel`` calls. Nor from a private executor: there the death of one
worker ends its siblings.
"""

from __future__ import annotations

import io
import multiprocessing.process
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import cloudpickle
from joblib.externals.loky.backend.context import get_context

from joblib_envs.errors import ArgumentError
from joblib_envs.thread_limit import thread_variables

__all__ = [
    "WorkerProcess",
    "end_at_termination",
    "end_with_parent",
    "interrupts_ignored",
    "killed_unless_ended",
    "refuse_while_unpickling",
    "run_in_fresh_process",
    "unpickled",
]

_STOP_S = 5.0
"""How long a process may take to end by itself once asked."""

_PARENT_CHECK_S = 1.0
"""How often a worker looks whether its parent is still there (its pipe tells sooner)."""


class WorkerProcess:
    """A process that runs ``target(connection, *args)`` and ends when its parent does.

    Args:
        target: An importable function.
        args: Its further arguments; loky's semaphores may be among them.
        num_threads: BLAS and OpenMP threads that it may use.
        name: Shown in process listings and errors.

    Attributes:
        connection: The parent's end of a two-way pipe to the process.
    """

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], num_threads: int, name: str) -> None:
        refuse_while_unpickling()
        self.connection, child_end = Pipe(duplex=True)
        lifeline, self._lifeline = Pipe(duplex=False)
        self._process = get_context("loky").Process(
            target=_main,
            args=(target, child_end, lifeline, os.getpid(), args),
            env=thread_variables(num_threads),
            name=name,
        )
        with _interrupts_blocked():  # inherited: no traceback of a Ctrl-C while it imports
            self._process.start()
        # Off multiprocessing's list: at the program's end it waits for the processes on it, which
        # wait for requests; and so does a forked child, for processes that aren't its own.
        getattr(multiprocessing.process, "_children", set()).discard(self._process)
        child_end.close()
        lifeline.close()
        self._sentinel = self._process.sentinel
        self.pid: int = self._process.pid

    def has_ended(self) -> bool:
        """Tell whether the process is gone."""
        # The exit code is lost where somebody else waits for all children; the sentinel
        # stays open where the worker's own child holds it. One of the two tells.
        return self._process.exitcode is not None or bool(wait([self._sentinel], 0))

    @property
    def exitcode(self) -> int | None:
        """The exit code once it has ended; negative for a signal."""
        self._process.join(0.2)
        code: int | None = self._process.exitcode
        return code

    def stop(self, timeout_s: float = _STOP_S) -> None:
        """Wait for the process to end; end it where it doesn't."""
        for name in ("SIGTERM", "SIGKILL"):
            self._process.join(timeout_s)
            if self.has_ended():
                break
            # LokyProcess.kill raises AttributeError in loky 3.5.
            os.kill(self.pid, getattr(signal, name, signal.SIGTERM))
            timeout_s = _STOP_S
        self._process.join(_STOP_S)
        self.connection.close()
        self._lifeline.close()


class _Unpickling(threading.local):
    """Whether this thread of a worker is unpickling, hence importing, what it was sent."""

    depth = 0


_unpickling = _Unpickling()


def unpickled(data: bytes) -> Any:
    """Unpickle what the caller has sent to this worker; it may import the caller's modules, but start nothing."""
    _unpickling.depth += 1
    try:
        return pickle.loads(data)
    finally:
        _unpickling.depth -= 1


def refuse_while_unpickling() -> None:
    """Refuse to start workers in a worker that is importing what it was sent.

    Each worker would import the module, which would start workers, and so on without end.

    Raises:
        ArgumentError: This process is such a worker.
    """
    if _unpickling.depth:
        raise ArgumentError(
            "workers were to be started while a worker imports the module that starts them: a module that an "
            "environment comes from builds a batch when it is imported. Put that code under "
            "`if __name__ == '__main__':`, or in a function"
        )


def run_in_fresh_process(function: Callable[..., Any], *args: Any, num_threads: int, timeout_s: float) -> Any:
    """Run a function in a new process, in silence, and return what it returns.

    Raises:
        TimeoutError: It took longer than ``timeout_s``.
        EOFError: The process died; the message has its exit code.
        Exception: Whatever the function raised.
    """
    worker = WorkerProcess(_answer, (), num_threads, "joblib-envs-probe")
    timed_out = True
    try:
        worker.connection.send_bytes(cloudpickle.dumps((function, args)))
        if not worker.connection.poll(timeout_s):
            raise TimeoutError(f"no answer within {timeout_s:g} s")
        timed_out = False
        try:
            succeeded, value = pickle.loads(worker.connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise EOFError(f"the process ended with exit code {worker.exitcode}") from error
    finally:
        worker.stop(0.0 if timed_out else _STOP_S)
    if succeeded:
        return value
    raise value


def _answer(connection: Connection) -> None:
    """Run one pickled call, whose output nobody shall see, and send its outcome."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    try:
        function, args = unpickled(connection.recv_bytes())
        outcome = (True, function(*args))
    except Exception as error:
        outcome = (False, error)
    try:
        data = cloudpickle.dumps(outcome)
        pickle.loads(data)
    except Exception:
        data = pickle.dumps((False, RuntimeError(f"{type(outcome[1]).__name__}: {outcome[1]}")))
    connection.send_bytes(data)


def _main(
    target: Callable[..., None],
    connection: Connection,
    lifeline: Connection,
    parent_pid: int,
    args: tuple[Any, ...],
) -> None:
    """Run in the new process: see to its end first, then call the target."""
    # Ctrl-C reaches the whole group: the parent decides what it means. A handler rather
    # than SIG_IGN, which an environment's own subprocesses would inherit.
    signal.signal(signal.SIGINT, _ignore)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # what an environment prints appears when it prints
    end_with_parent(parent_pid, lifeline)
    target(connection, *args)


def end_with_parent(parent_pid: int, lifeline: Connection | None = None) -> None:
    """See to it that this process ends when its parent is gone, whatever the environments are doing.

    Args:
        parent_pid: The parent.
        lifeline: A pipe whose other end only the parent holds; it tells at once.
    """
    is_child = lifeline is not None or os.getppid() == parent_pid  # a cluster's worker has another parent
    if is_child and parent_pid not in _watched:
        _watched.add(parent_pid)
        threading.Thread(target=_watch_parent, args=(parent_pid, lifeline), daemon=True).start()


_watched: set[int] = set()


def _watch_parent(parent_pid: int, lifeline: Connection | None) -> None:
    while not wait([lifeline] if lifeline is not None else [], _PARENT_CHECK_S):
        # The pipe stays open where another child of the parent has inherited it.
        if os.getppid() != parent_pid:
            break
    os._exit(1)


def _ignore(*_: object) -> None:
    """Do nothing at a signal."""


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Leave a Ctrl-C, which reaches a task's worker too, to the parent."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, _ignore)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        _heed_termination()


def _heed_termination() -> None:
    """Let SIGTERM do in this process what Python believes that it does.

    SDL, hence ``pygame.init()``, puts a handler of its own behind Python's back, so that SIGTERM does
    nothing; and so it is in a forked child. ``multiprocessing.Pool.terminate`` would wait for ever.
    """
    believed = signal.getsignal(signal.SIGTERM)
    if believed is not None:
        signal.signal(signal.SIGTERM, believed)


def end_at_termination() -> None:
    """Let SIGTERM end this process: a forked worker has its parent's handlers, and nothing to clean up."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def killed_unless_ended(processes: Sequence[Any], timeout_s: float = _STOP_S) -> Iterator[None]:
    """Kill those of some child processes that haven't ended when the time is over; they are waited for inside."""

    def kill() -> None:
        for process in processes:
            if process.exitcode is None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, getattr(signal, "SIGKILL", signal.SIGTERM))

    timer = threading.Timer(timeout_s, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
