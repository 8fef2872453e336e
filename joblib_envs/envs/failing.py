"""An environment that fails where, when and how it is told to."""

from __future__ import annotations

import enum
import os
import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from joblib_envs.envs.counting import CountingEnv

__all__ = ["FailingEnv", "FailureKind", "FailurePlace", "TwoArgumentError", "UnpicklableFailureError"]


class FailurePlace(enum.StrEnum):
    """Where :class:`FailingEnv` fails."""

    INIT = "init"
    RESET = "reset"
    STEP = "step"
    CALL = "call"
    SET_ATTR = "set_attr"
    RENDER = "render"
    CLOSE = "close"


class FailureKind(enum.StrEnum):
    """How :class:`FailingEnv` fails."""

    VALUE_ERROR = "value_error"
    TWO_ARGUMENTS = "two_arguments"
    UNPICKLABLE = "unpicklable"
    OS_EXIT = "os_exit"
    SYS_EXIT = "sys_exit"


class TwoArgumentError(Exception):
    """An exception that pickles and then fails to unpickle: its constructor wants two arguments."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class UnpicklableFailureError(Exception):
    """An exception that holds a lock and so doesn't pickle."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class FailingEnv(CountingEnv):
    """Count, and fail once.

    Spaces, reward, info and episode end are those of :class:`CountingEnv`. The failing
    call changes nothing: the count is what it was before.

    Args:
        fail_at: Which call of that place fails, counted from 1 since the environment was
            made; None: none.
        where: A :class:`FailurePlace`. ``"call"`` is the method :meth:`explode`,
            ``"set_attr"`` the attribute :attr:`fragile`.
        kind: A :class:`FailureKind`. ``"os_exit"`` ends the process with code 7,
            ``"sys_exit"`` raises SystemExit(7).
        episode_length: Steps in an episode, at least 1.
        render_mode: None or ``"rgb_array"``.

    Example:
        >>> env = FailingEnv(fail_at=2)
        >>> _ = env.reset(seed=0)
        >>> _ = env.step(0)
        >>> env.step(0)
        Traceback (most recent call last):
        ...
        ValueError: step 2 fails
    """

    def __init__(
        self,
        fail_at: int | None = 1,
        where: str = FailurePlace.STEP,
        kind: str = FailureKind.VALUE_ERROR,
        episode_length: int = 5,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(episode_length, render_mode=render_mode)
        self._fail_at = fail_at
        self._where = FailurePlace(where)
        self._kind = FailureKind(kind)
        self._calls = 0
        self._fragile = 0
        self._meet(FailurePlace.INIT)

    @property
    def fragile(self) -> int:
        """An attribute whose setter may fail."""
        return self._fragile

    @fragile.setter
    def fragile(self, value: int) -> None:
        self._meet(FailurePlace.SET_ATTR)
        self._fragile = value

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
        """Set the count back, or fail."""
        self._meet(FailurePlace.RESET)
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[npt.NDArray[np.int64], float, bool, bool, dict[str, Any]]:
        """Add one to the count, or fail."""
        self._meet(FailurePlace.STEP)
        return super().step(action)

    def render(self) -> npt.NDArray[np.uint8] | None:
        """Return a frame, or fail."""
        self._meet(FailurePlace.RENDER)
        return super().render()

    def explode(self) -> int:
        """Return the count, or fail; for ``call``."""
        self._meet(FailurePlace.CALL)
        return self.count

    def close(self) -> None:
        """Close, or fail."""
        self._meet(FailurePlace.CLOSE)

    def _meet(self, place: FailurePlace) -> None:
        if place is not self._where:
            return
        self._calls += 1
        if self._calls == self._fail_at:
            _fail(self._kind, f"{place} {self._calls} fails")


def _fail(kind: FailureKind, message: str) -> None:
    match kind:
        case FailureKind.VALUE_ERROR:
            raise ValueError(message)
        case FailureKind.TWO_ARGUMENTS:
            raise TwoArgumentError(message, 2)
        case FailureKind.UNPICKLABLE:
            raise UnpicklableFailureError(message)
        case FailureKind.OS_EXIT:
            os._exit(7)
        case FailureKind.SYS_EXIT:
            sys.exit(7)
