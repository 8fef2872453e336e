"""States of a batch: taken, put back, saved, loaded, pickled. The part of ``BatchEnv`` that deals with them."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

from gymnasium.vector import VectorEnv

from joblib_envs import arguments
from joblib_envs.checkpoint import BatchSetup, pack_batch, read_file, unpack_batch, write_file
from joblib_envs.errors import JoblibEnvsError, StateCannotTravelError
from joblib_envs.execution import Execution
from joblib_envs.factories import packed_factories
from joblib_envs.guard import Guard
from joblib_envs.readiness import Readiness
from joblib_envs.relay import replay
from joblib_envs.rows import Array
from joblib_envs.shard import EnvFactory, Reply, Request
from joblib_envs.state.env_state import EnvState, Situation, check_versions
from joblib_envs.state.pickling import DEFAULT_OPTIONS, CaptureOptions
from joblib_envs.state.probe import require_travelling_state

__all__ = ["BatchStates"]

_BY_REPLAY = "state_method='replay', which keeps all calls in place of the state and makes them again"


class BatchStates(VectorEnv[Any, Any, Array]):
    """What ``BatchEnv`` can do with states. It sets the attributes."""

    _guard: Guard
    _execution: Execution
    _readiness: Readiness
    _setup: BatchSetup
    _factories: tuple[EnvFactory, ...]
    _proven_options: CaptureOptions | None = None

    def __init__(self, *_env: Any, **_settings: Any) -> None:
        super().__init__()

    @abstractmethod
    def _ask(self, requests: Sequence[Request]) -> Reply:
        """Make a call of each shard."""

    @abstractmethod
    def _observations(self) -> Any:
        """Return the current observations."""

    def get_state(self) -> list[EnvState]:
        """Return the state of each sub-environment, as a list of n.

        Pending autoresets, failures and last observations are in it. On the first call it is proven
        that such states go on bit for bit (see ``probe``), which takes a second or two.

        Raises:
            StateCannotTravelError: They don't, or something can't be captured.
        """
        with self._guard("get_state"):
            return self._states()

    def set_state(self, states: EnvState | Sequence[EnvState], indices: Any = None) -> Any:
        """Let sub-environments go on from states, of this batch or another one, bit for bit.

        A state may be given to several: that is how a search branches. Either all get theirs, or,
        where that raises, all stay as they are.

        Args:
            states: One for each of ``indices``, or a single one for all of them.
            indices: Which sub-environments: whole numbers, or a bool mask ``(n,)``; None: all.

        Returns:
            The last observations of all sub-environments ``(n, ...)``, zeros where a state has none.

        Raises:
            ArgumentError: The states' number, an index or a space isn't allowed.
            StateVersionError: A state was made with other versions of Python or of packages.
            StateFormatError: A state can't be unpickled here.
        """
        given = arguments.checked_states(states, indices, self.num_envs)
        for state in {id(state): state for state in given.values()}.values():
            check_versions(state)
        with self._guard("set_state"):
            return self._put_states(given)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the whole batch to a file, from which ``BatchEnv.load`` goes on bit for bit.

        The file is written whole or not at all. It holds pickles: load it only where you trust it.

        Raises:
            StateCannotTravelError: A sub-environment's state can't be captured.
            UnpicklableError: A factory can't be pickled.
            OSError: The file can't be written.
        """
        write_file(path, self._packed("save"))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        backend: Any = None,
        n_jobs: int | None = None,
        execution: str | None = None,
        caller_steps: bool | None = None,
    ) -> Self:
        """Build a batch from a file of ``save``; it goes on bit for bit where that one was.

        It unpickles the file, which runs code: load only files that you trust.

        Args:
            path: The file.
            backend: As for ``BatchEnv``; with all four left out, those of the saved batch.
            n_jobs: The same.
            execution: The same.
            caller_steps: The same.

        Raises:
            StateFormatError: The file was cut or changed, or is something else; nothing was unpickled.
            StateVersionError: It was made with other versions of Python or of packages.
        """
        where = {"backend": backend, "n_jobs": n_jobs, "execution": execution, "caller_steps": caller_steps}
        anew = any(value is not None for value in where.values())
        return cls._of_bytes(read_file(path), f"the file {os.fspath(path)!r}", where if anew else None)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle the whole batch, as ``save`` does; the other side builds workers of its own."""
        return _unpickled_batch, (type(self), self._packed("pickling"))

    def _capture_options(self, purpose: str, remedies: Sequence[str] = ()) -> CaptureOptions:
        """Return the way of pickling that is right for the environments, proven once.

        Args:
            purpose: What it is needed for, with a place for the environments' name.
            remedies: What else can be done, beside replay.
        """
        if self._proven_options is None:
            if self._setup.probe:
                label = self.spec.id if self.spec is not None else "the environment"
                by_replay = () if self._setup.state_method == "replay" else (_BY_REPLAY,)
                remedy = ", or ".join([*remedies, *by_replay])
                self._proven_options = require_travelling_state(
                    self._packed_factories(purpose),
                    label,
                    self._setup.num_threads,
                    purpose,
                    f"Use {remedy}" if remedy else "There is no other way to keep it",
                )
            else:
                self._proven_options = DEFAULT_OPTIONS
        return self._proven_options

    def _packed_factories(self, purpose: str) -> list[bytes]:
        try:
            return packed_factories(self._factories)
        except Exception as error:
            raise StateCannotTravelError(
                f"{purpose.format('the environments')}, and it can't be tried in fresh processes whether they go on "
                f"bit for bit, since a factory can't be pickled ({type(error).__name__}: {error}). Make such objects "
                f"inside the factory, or give probe=False to take the states as they are"
            ) from error

    def _states(self) -> list[EnvState]:
        options = self._capture_options("states of {} are to be captured")
        reply = self._ask([Request("get_state", (options, self._setup.probe))] * len(self._execution.shards))
        replay(reply.output)
        if reply.failures:
            first = reply.failures[min(reply.failures)]
            raise StateCannotTravelError(f"sub-environment {first.env_index}: {first.message}") from first.as_cause()
        rows, readiness = self._execution.rows, self._readiness
        return [
            Situation(readiness.reason(index), rows.values(index) if readiness.is_observed(index) else None).into(state)
            for index, state in enumerate(reply.results or ())
        ]

    def _put_states(self, given: Mapping[int, EnvState]) -> Any:
        staged = [given.get(index) for index in range(self.num_envs)]
        shards = self._execution.shards
        reply = self._ask([Request("stage", (staged[s.start : s.stop],)) for s in shards])
        replay(reply.output)
        if reply.failures:
            self._ask([Request("unstage")] * len(shards))
            first = reply.failures[min(reply.failures)]
            if isinstance(first.exception, JoblibEnvsError):
                first.exception.add_note(f"(the state for sub-environment {first.env_index}; nothing was changed)")
            raise first.as_cause()
        mask = [state is not None for state in staged]
        self._ask([Request("adopt", (mask[s.start : s.stop],)) for s in shards])
        self._readiness.after_set_state(given)
        return self._observations()

    def _packed(self, what: str) -> bytes:
        with self._guard(what):
            return pack_batch(self._setup, self._states(), self)

    @classmethod
    def _of_bytes(cls, data: bytes, what: str, where: dict[str, Any] | None) -> Self:
        setup, states, spaces = unpack_batch(data, what)
        batch = cls(
            setup.source,
            autoreset_mode=setup.autoreset_mode,
            observation_mode=setup.observation_mode,
            copy=setup.copy,
            inner_max_num_threads=setup.num_threads,
            state_method=setup.state_method,
            probe=setup.probe,
            **(setup.where if where is None else where),
        )
        try:
            batch.set_state(states)
            for name, space in spaces.items():
                setattr(batch, name, space)  # equal ones, whose generators are where they were
        except BaseException:
            batch.close()
            raise
        return batch


def _unpickled_batch(cls: type[BatchStates], data: bytes) -> BatchStates:
    return cls._of_bytes(data, "the pickled batch", None)
