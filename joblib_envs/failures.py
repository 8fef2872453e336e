"""What is kept of an exception that a sub-environment raised, wherever that was."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

import cloudpickle

__all__ = ["Failure"]


@dataclass(frozen=True)
class Failure:
    """A sub-environment's exception, as data.

    Attributes:
        env_index: Which sub-environment.
        type_name: The exception's class, with its module where it isn't a builtin.
        message: The exception's text.
        traceback: The traceback as Python prints it.
        exception: The exception itself; None where it didn't survive the way from a worker.
        needs_reset: Whether the sub-environment was in the middle of something, and can only go on
            after a reset; not so where an attribute wasn't found.
    """

    env_index: int
    type_name: str
    message: str
    traceback: str
    exception: BaseException | None = None
    needs_reset: bool = True

    @classmethod
    def of(cls, env_index: int, error: BaseException, *, needs_reset: bool = True) -> Failure:
        """Record an exception that is being handled."""
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        text = "".join(traceback.format_exception(error))
        return cls(env_index, name, _text(error), text, error, needs_reset)

    def __reduce__(self) -> tuple[Any, ...]:
        known = (self.env_index, self.type_name, self.message, self.traceback)
        return _arrive, (*known, self.needs_reset, _to_bytes(self.exception))

    def as_cause(self) -> BaseException:
        """Return the exception to raise from: the original, or one that says what it was."""
        if self.exception is not None:
            return self.exception
        return RuntimeError(f"{self.type_name}: {self.message} (this exception could not be pickled)")


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as another:
        return f"<its text raised {type(another).__name__}>"


def _to_bytes(exception: BaseException | None) -> bytes | None:
    """Pickle an exception if it comes back whole; else what makes one of its type, with what of it can travel."""
    if exception is None:
        return None
    if _travels(exception):
        data: bytes = cloudpickle.dumps(exception)
        return data
    # Not whole: one with two arguments, say, which Python would make again with one.
    args = exception.args if _travels(exception.args) else (_text(exception),)
    attributes = {name: value for name, value in vars(exception).items() if _travels(value)}
    parts = _Parts(type(exception), args, attributes)
    return cloudpickle.dumps(parts) if _travels(parts) else None


def _travels(value: Any) -> bool:
    try:
        cloudpickle.loads(cloudpickle.dumps(value))
    except Exception:
        return False
    return True


class _Parts:
    """An exception's type, arguments and attributes; unpickled, it is the exception."""

    def __init__(self, kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> None:
        self._parts = (kind, args, attributes)

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_parts, self._parts


def _from_parts(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    exception = kind.__new__(kind, *args)
    exception.args = args
    vars(exception).update(attributes)
    return exception


def _arrive(env_index: int, type_name: str, message: str, text: str, needs_reset: bool, data: bytes | None) -> Failure:
    exception: Any = None
    if data is not None:
        try:
            exception = cloudpickle.loads(data)
            # Python prints notes below the message: the worker's traceback isn't lost.
            exception.add_note(f"\nThe traceback in the worker:\n{text}")
        except Exception:
            exception = None
    return Failure(env_index, type_name, message, text, exception, needs_reset)
