"""Every exception that a batch raises (the conformance checker's own stands in ``conformance/faults.py``).

    JoblibEnvsError
    ├── ArgumentError                 (ValueError)   an argument's value is not allowed
    │   ├── ArgumentTypeError         (TypeError)    ... nor is its type
    │   │   └── EnvInsideFactoryError                an Env object where a factory is wanted
    │   └── BackendUnavailableError                  unknown, or its package is not installed
    ├── SpacesDifferError             (RuntimeError) sub-environments disagree about their spaces
    ├── StateCannotTravelError        (RuntimeError) tasks execution would lose the environment's state
    ├── StateFormatError              (ValueError)   bytes that are no whole, unchanged state
    │   └── StateVersionError                        ... or of another version
    ├── UnpicklableError              (TypeError)    a factory, argument or result can't cross to a worker
    ├── ClosedBatchError              (gymnasium.error.ClosedEnvironmentError)
    ├── PendingCallError              (gymnasium.error.AlreadyPendingCallError)
    ├── NoPendingCallError            (gymnasium.error.NoAsyncCallError)
    ├── CallTimeoutError              (TimeoutError, multiprocessing.TimeoutError)
    ├── ConcurrentUseError            (RuntimeError) two threads used one batch at once
    ├── ForkedBatchError              (RuntimeError) a forked child used its parent's batch
    ├── ResetNeededError              (gymnasium.error.ResetNeeded)
    │   └── EpisodeOverError          (AssertionError) autoreset is disabled and the episode has ended
    ├── PolicyError                   (RuntimeError) a policy raised, or gave what are no actions
    ├── SubEnvError                   (RuntimeError, and the original's type where that can be combined)
    └── WorkerDiedError               (RuntimeError) a worker process ended; names what was in it

BatchSizeDependentWarning (UserWarning) is no error: a policy's actions depend on the number of rows.

Each is also what Gymnasium raises in that place, so an ``except ValueError`` written for
its vector environments goes on working.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium.error as gymnasium_error

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "BackendUnavailableError",
    "BatchSizeDependentWarning",
    "CallTimeoutError",
    "ClosedBatchError",
    "ConcurrentUseError",
    "EnvInsideFactoryError",
    "EpisodeOverError",
    "ForkedBatchError",
    "JoblibEnvsError",
    "NoPendingCallError",
    "PendingCallError",
    "PolicyError",
    "ResetNeededError",
    "SpacesDifferError",
    "StateCannotTravelError",
    "StateFormatError",
    "StateVersionError",
    "SubEnvError",
    "UnpicklableError",
    "WorkerDiedError",
]


class JoblibEnvsError(Exception):
    """The root of all errors that joblib-envs raises."""


class ArgumentError(JoblibEnvsError, ValueError):
    """An argument's value is not allowed; nothing has happened yet."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument's type is not allowed; nothing has happened yet."""


class EnvInsideFactoryError(ArgumentTypeError):
    """An ``Env`` object was given, or is held by a factory.

    In one process it would be a single object shared by all sub-environments, and a
    separate copy in each worker elsewhere: data that depend on the backend.
    """


class BackendUnavailableError(ArgumentError):
    """The backend is unknown to joblib, or its package is not installed."""


class SpacesDifferError(JoblibEnvsError, RuntimeError):
    """The sub-environments' spaces can't be batched under the chosen ``observation_mode``."""


class StateCannotTravelError(JoblibEnvsError, RuntimeError):
    """Tasks execution on a process backend would lose or change this environment's state."""


class StateFormatError(JoblibEnvsError, ValueError):
    """Bytes are not a state, or are one that was cut or changed; nothing of them was unpickled."""


class StateVersionError(StateFormatError):
    """A state was made with other versions of Python or of packages, which may read it wrongly."""


class UnpicklableError(JoblibEnvsError, TypeError):
    """A factory, an argument or a result can't be pickled, so it can't cross to or from a worker."""


class ClosedBatchError(JoblibEnvsError, gymnasium_error.ClosedEnvironmentError):
    """The batch was closed before."""


class PendingCallError(JoblibEnvsError, gymnasium_error.AlreadyPendingCallError):
    """A call was made between ``step_async`` and ``step_wait``, or ``reset_async`` and ``reset_wait``."""


class NoPendingCallError(JoblibEnvsError, gymnasium_error.NoAsyncCallError):
    """``step_wait`` or ``reset_wait`` was called without the call that begins it."""


class CallTimeoutError(JoblibEnvsError, multiprocessing.TimeoutError, TimeoutError):
    """The workers took longer than the caller would wait; the batch can only be closed after it."""


class ConcurrentUseError(JoblibEnvsError, RuntimeError):
    """A second thread used the batch while a call of another thread was running."""


class ForkedBatchError(JoblibEnvsError, RuntimeError):
    """A forked child used a batch that belongs to its parent process."""


class ResetNeededError(JoblibEnvsError, gymnasium_error.ResetNeeded):
    """Some sub-environments must be reset before the batch can step.

    Attributes:
        env_indices: The sub-environments that need a reset.
    """

    def __init__(self, message: str, env_indices: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.env_indices = tuple(env_indices)


class EpisodeOverError(ResetNeededError, AssertionError):
    """With autoreset disabled, an ended sub-environment was stepped.

    Gymnasium raises an AssertionError in this place, so this is one too.
    """


class WorkerDiedError(JoblibEnvsError, RuntimeError):
    """A worker process ended by itself; the sub-environments in it are lost.

    The batch can only be closed after it.

    Attributes:
        env_indices: The sub-environments that were lost.
        exitcode: The process's exit code; negative for a signal, None where it isn't known.
    """

    def __init__(self, message: str, env_indices: Sequence[int] = (), exitcode: int | None = None) -> None:
        super().__init__(message)
        self.env_indices = tuple(env_indices)
        self.exitcode = exitcode


class BatchSizeDependentWarning(UserWarning):
    """A policy gives other actions for some of the sub-environments than it gives them among all.

    What it does in the workers may then differ from stepping in lockstep, and with their number.
    """


class PolicyError(JoblibEnvsError, RuntimeError):
    """A policy raised, or what it gave can't be used as actions.

    It is raised from the policy's own exception, which has the worker's traceback as a note.
    Sub-environments are never in the middle of a step when their policy is asked, so none needs
    a reset: each stands where the steps that it made have brought it.

    Attributes:
        partial: The :class:`~joblib_envs.Rollout` so far, with ``steps_made`` for each
            sub-environment; None where nobody has moved.
    """

    partial: Any = None


class SubEnvError(JoblibEnvsError, RuntimeError):
    """A sub-environment raised an exception.

    Every other sub-environment has made exactly the call that was asked for, on every
    backend, and nothing of it is lost. Until a reset clears them, the failed ones make
    ``step`` raise :class:`ResetNeededError`.

    The error is raised from the original exception, and is an instance of its type too, with
    its attributes, where Python can combine the two.

    Attributes:
        env_index: The first sub-environment that failed.
        failures: Each failed sub-environment's :class:`~joblib_envs.Failure`, by index.
        partial: What the call would have returned, with zeros in the failed rows, and then
            the bool mask ``failed`` of shape ``(num_envs,)``: for ``step`` a tuple of six
            (observations, rewards, terminations, truncations, infos, failed), for ``reset``
            of three, for ``rollout`` of two (the :class:`~joblib_envs.Rollout` so far), for the other
            calls of two (a tuple with None in the failed places).
    """

    env_index: int
    failures: Mapping[int, Any]
    partial: tuple[Any, ...]

    @classmethod
    def of(
        cls,
        message: str,
        failures: Mapping[int, Any],
        partial: tuple[Any, ...],
        original: BaseException | None,
    ) -> SubEnvError:
        """Make the error, combined with the original exception's type where that works."""
        combined = cls if original is None else _combined(cls, type(original))  # type: ignore[arg-type]
        error = _new(combined, message)
        if combined is not cls and original is not None:
            _take_attributes(error, original)
        error.message = message  # type: ignore[attr-defined]
        error.failures = dict(failures)
        error.env_index = min(failures)
        error.partial = partial
        return error

    def __str__(self) -> str:
        # Not the original type's text, which may need what its constructor would have set.
        return str(self.__dict__.get("message", ""))

    def __reduce__(self) -> tuple[Any, ...]:
        # The combined class has no importable name, so the plain one arrives elsewhere.
        return SubEnvError.of, (str(self), self.failures, self.partial, None)


@functools.cache
def _combined(base: type[SubEnvError], original: type[BaseException]) -> type[SubEnvError]:
    """Return a class that is both, or ``base`` where Python can't combine the two."""
    if issubclass(base, original):
        return base
    if not issubclass(original, Exception) or issubclass(original, StopIteration | StopAsyncIteration):
        return base  # these steer the interpreter: nobody should catch a SubEnvError by them
    try:
        combined = type(base.__name__, (base, original), {"__doc__": base.__doc__, "__module__": base.__module__})
        _new(combined, "")
    except Exception:
        return base
    return combined


def _take_attributes(error: SubEnvError, original: BaseException) -> None:
    """Give the error what code that catches the original's type would read from it."""
    vars(error).update({name: value for name, value in vars(original).items() if name != "__notes__"})
    for name in ("errno", "strerror", "filename", "filename2"):  # OSError keeps them in the object itself
        if isinstance(original, OSError):
            setattr(error, name, getattr(original, name))


def _new(cls: type[SubEnvError], message: str) -> SubEnvError:
    """Make an instance without the original's ``__init__``, which may want other arguments."""
    for ancestor in cls.__mro__:
        # Only the ``__new__`` of the class that decides the memory layout (OSError,
        # say) is accepted by Python; which one it is can only be tried.
        if "__new__" in vars(ancestor):
            try:
                error: Any = ancestor.__new__(cls, message)  # type: ignore[arg-type]
            except TypeError:
                continue
            Exception.__init__(error, message)
            made: SubEnvError = error
            return made
    raise TypeError(f"{cls.__mro__} can't be combined")
