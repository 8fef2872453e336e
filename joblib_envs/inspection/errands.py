"""Calls in fresh, silent processes, in which an environment may crash or hang: that is an answer too."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joblib_envs.equality import Verdict
from joblib_envs.processes import run_in_fresh_process
from joblib_envs.state.adapters import StateAdapter, registered, take_registered

__all__ = ["Errands", "Mishap", "Whereabouts", "words_of"]

_LABEL_BYTES = 64


@dataclass(frozen=True)
class Mishap:
    """Why a call has no answer.

    Attributes:
        verdict: ``raises`` or ``hangs``.
        reason: What happened, and in which call of the environment.
    """

    verdict: Verdict
    reason: str


class Whereabouts:
    """Where a process is, kept in a file, so that it is known after the process has died."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1

    def at(self, label: str) -> None:
        """Note what comes next, as in ``"step 3"``."""
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_WRONLY)
        os.pwrite(self._descriptor, label.encode()[:_LABEL_BYTES].ljust(_LABEL_BYTES), 0)

    def last(self) -> str:
        """Return what was noted last."""
        with suppress(OSError):
            return Path(self._path).read_bytes().decode(errors="replace").strip()
        return ""

    def __reduce__(self) -> tuple[Any, ...]:
        return Whereabouts, (self._path,)


class Errands:
    """Sends functions out, each into a process of its own, and returns what they return.

    As a context manager it removes its files on the way out; it sends out nothing more then.

    Args:
        timeout_s: How long each may take.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="joblib-envs-inspect-")
        self._is_over = False

    def __enter__(self) -> Errands:
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        self._folder.cleanup()

    def run(self, function: Callable[..., Any], *args: Any) -> Any | Mishap:
        """Call ``function(whereabouts, *args)`` in a fresh process."""
        if self._is_over:
            raise RuntimeError("the inspection was ended")
        handle, path = tempfile.mkstemp(dir=self._folder.name)
        os.close(handle)
        where = Whereabouts(path)
        try:
            answer = run_in_fresh_process(
                _called, registered(), function, where, args, num_threads=1, timeout_s=self._timeout_s
            )
        except TimeoutError:
            return Mishap(Verdict.HANGS, f"no answer within {self._timeout_s:g} s{_in(where)}")
        except EOFError as error:
            return Mishap(Verdict.RAISES, f"it ended its process{_signal(str(error))}{_in(where)}")
        except Exception as error:
            return Mishap(Verdict.RAISES, f"{words_of(error)}{_in(where)}")
        return answer


def words_of(error: BaseException) -> str:
    """Return an exception's type and the first line of its text, not too long."""
    text = " ".join(str(error).split())
    text = text if len(text) <= 200 else f"{text[:197]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _called(
    adapters: Mapping[str, StateAdapter], function: Callable[..., Any], where: Whereabouts, args: tuple[Any, ...]
) -> Any:
    take_registered(adapters)
    try:
        return function(where, *args)
    except SystemExit as error:  # an environment's
        return Mishap(Verdict.RAISES, f"{words_of(error)}{_in(where)}")


def _in(where: Whereabouts) -> str:
    return f" in {label}" if (label := where.last()) else ""


def _signal(words: str) -> str:
    """Return an exit code as text, by its name where it is a signal."""
    code = words.rpartition(" ")[2]
    with suppress(ValueError):
        if int(code) < 0:
            return f" by {signal.Signals(-int(code)).name}"
    return f" with exit code {code}" if code.lstrip("-").isdigit() else ""
