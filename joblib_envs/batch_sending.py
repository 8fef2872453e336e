"""Sub-environments stepped some at a time, first finished, first served. The part of ``BatchEnv`` that does it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from gymnasium.vector.utils import batch_space

from joblib_envs import arguments
from joblib_envs.batch_states import BatchStates
from joblib_envs.errors import ArgumentError, ArgumentTypeError, WorkerDiedError
from joblib_envs.execution.actors import Actors
from joblib_envs.execution.in_flight import Done
from joblib_envs.info_columns import InfoColumns, batch_columns
from joblib_envs.relay import replay
from joblib_envs.rows import Array
from joblib_envs.shard import Reply

__all__ = ["BatchSending"]


class BatchSending(BatchStates):
    """What ``BatchEnv`` can do with some of its sub-environments at a time. It sets the attributes."""

    _sent: set[int]
    _action_checks: dict[int, arguments.ActionCheck]

    @abstractmethod
    def _cut_short(self, error: BaseException) -> None:
        """Note that an answer didn't come."""

    @staticmethod
    @abstractmethod
    def _raise(what: str, reply: Reply, partial: tuple[Any, ...]) -> NoReturn:
        """Raise what sub-environments have raised."""

    def send(self, actions: Any, indices: Any = None) -> None:
        """Begin a step of some sub-environments, each by itself, and return; ``recv`` brings what is done.

        For environments whose steps take unequal times: nobody waits for the slowest one. More may
        be sent before the first are received, each sub-environment again once it was received. What
        each of them goes through is what ``step`` would give it, the autoreset too.

        Args:
            actions: A batch of ``k`` actions, in the form that ``step`` takes, one for each of ``indices``.
            indices: Which: whole numbers, or a bool mask ``(n,)``; None: all.

        Raises:
            ArgumentError: The actions or the indices aren't allowed, or one of them was sent already;
                in tasks execution, where environments live in no worker.
            ResetNeededError: One of them needs a reset first.
        """
        guard = self._guard
        with guard("send", waits_for="send" if guard.pending == "send" else None):
            actors = self._actors("send")
            chosen = arguments.checked_indices(indices, self.num_envs)
            if not chosen:
                return
            twice = sorted(self._sent & set(chosen))
            if twice:
                raise ArgumentError(
                    f"send names the sub-environments {twice}, which were sent already and not yet received: call recv "
                    f"until it brings them"
                )
            checked = self._checked_for(len(chosen), actions)
            self._readiness.require(chosen)
            guard.pending = "send"
            self._sent.update(chosen)
            try:
                actors.start_some(chosen, checked, apart=True)
            except BaseException as error:
                self._cut_short(error)
                raise

    def recv(
        self, min_envs: int = 1, timeout: float | None = None
    ) -> tuple[Any, Array, Array, Array, dict[str, Any], Array]:
        """Return what is done of what was sent: at least ``min_envs`` sub-environments, first finished first.

        The results of one sub-environment come in the order in which it was sent. Sub-environments
        of the caller's own shard are stepped here, while nothing else is done.

        Args:
            min_envs: How many to wait for; no more than were sent and not yet received.
            timeout: Seconds to wait for the workers; nothing is lost when they take longer.

        Returns:
            As ``step``, for the ``k`` sub-environments that are done: observations ``(k, ...)``,
            rewards, terminations and truncations ``(k,)``, infos; and their indices, int64 ``(k,)``.
            All are the caller's own.

        Raises:
            ArgumentError: ``min_envs`` isn't allowed.
            CallTimeoutError: Fewer were done in time: receive again.
            NoPendingCallError: Nothing was sent.
            SubEnvError: A sub-environment raised; ``partial`` has the others, as returned.
        """
        guard = self._guard
        with guard("recv", waits_for="send"):
            actors = self._actors("recv")
            _check_min_envs(min_envs, actors.num_in_flight)
            timeout_s = arguments.checked_timeout(timeout)
            try:
                done = actors.take_some(int(min_envs), timeout_s)
            except WorkerDiedError as error:
                self._cut_short(error)
                raise
            try:
                batch, reply = self._received(actors, done)
            except BaseException as error:  # an interrupt: what was taken, nobody has seen
                self._cut_short(error)
                raise
        if reply.failures:
            self._raise("step", reply, (*batch, np.isin(batch[-1], list(reply.failures))))
        return batch

    def _received(self, actors: Actors, done: Sequence[Done]) -> tuple[tuple[Any, ...], Reply]:
        """Return what ``recv`` does, and all that went wrong."""
        indices = np.array([index for each in done for index in each.indices], dtype=np.int64)
        reply = Reply()
        for each in done:
            reply.failures.update(each.reply.failures)
            reply.output.extend(each.reply.output)
        observations, rewards, terminations, truncations = actors.rows.chosen(self.single_observation_space, indices)
        parts = [part for each in done for part in each.reply.infos or (InfoColumns(len(each.indices)),)]
        infos = batch_columns(parts) if any(each.reply.infos for each in done) else {}
        self._readiness.after_some(indices, terminations | truncations, reply.failures)
        self._sent.difference_update(indices.tolist())
        if not self._sent:
            self._guard.pending = None
        replay(reply.output)
        return (observations, rewards, terminations, truncations, infos, indices), reply

    def _actors(self, what: str) -> Actors:
        if not isinstance(self._execution, Actors):
            raise ArgumentError(
                f"{what} needs workers that keep their environments, and in tasks execution nobody does: build the "
                f"batch with execution='actors', on 'loky', 'threading' or 'sequential'"
            )
        return self._execution

    def _checked_for(self, count: int, actions: Any) -> Array | list[Any]:
        """Check the actions of so many sub-environments."""
        if count not in self._action_checks:
            space = self.single_action_space
            self._action_checks[count] = arguments.ActionCheck(batch_space(space, count), space, count)
        return self._action_checks[count](actions)


def _check_min_envs(min_envs: Any, in_flight: int) -> None:
    if not isinstance(min_envs, int | np.integer) or isinstance(min_envs, bool):
        raise ArgumentTypeError(f"min_envs={min_envs!r} must be a whole number of sub-environments to wait for")
    if not 1 <= min_envs <= in_flight:
        raise ArgumentError(
            f"min_envs={min_envs} must be from 1 to {in_flight}, the number of sub-environments that were sent and not "
            f"yet received"
        )
