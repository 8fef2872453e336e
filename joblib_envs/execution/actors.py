"""Actors execution: each shard stays with one worker for the batch's life; requests and replies cross."""

from __future__ import annotations

import atexit
import copy
import os
import time
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import joblib
import numpy as np

from joblib_envs.channel import SharedArrays, SharedBlock
from joblib_envs.errors import CallTimeoutError, WorkerDiedError
from joblib_envs.execution.hosts import CallerHost, Host, ProcessHost, worker_died
from joblib_envs.execution.in_flight import Done, InFlight, spans_of
from joblib_envs.execution.protocol import BatchPlan, ConstructionFailed, merge_replies, split_evenly
from joblib_envs.execution.worker import parts_of
from joblib_envs.factories import Construction
from joblib_envs.failures import Failure
from joblib_envs.hand_out import NUM_ARRAYS, HandOuts, is_worth_handing_out
from joblib_envs.rows import Array, Leaf, Rows
from joblib_envs.shard import NOTHING_SAID, Reply, Request, ShardDescription
from joblib_envs.signals import Signal, ThreadBell
from joblib_envs.thread_limit import ThreadLimit

__all__ = ["Actors", "HostFactory"]


class HostFactory(Protocol):
    """Makes the host of one shard: ``ThreadHost`` or ``ProcessHost``."""

    @property
    def new_bell(self) -> type[Signal]:
        """The kind of signal that its hosts can send."""
        ...

    def __call__(
        self, construction: Construction, limit: ThreadLimit, number: int, bell: Signal, *, may_poll: bool
    ) -> Host:
        """Make it.

        Args:
            construction: Makes the sub-environments.
            limit: Of BLAS threads.
            number: The shard's.
            bell: To be rung when some rows are done.
            may_poll: Whether there is a processor for each worker.
        """
        ...


class Actors:
    """An execution whose workers own their sub-environments.

    Args:
        plan: What to build.
        new_host: Makes the host of one shard: ``ThreadHost`` or ``ProcessHost``.
    """

    def __init__(self, plan: BatchPlan, new_host: HostFactory) -> None:
        self._limit = plan.limit
        self.shards = split_evenly(len(plan.factories), plan.n_jobs)
        self.num_workers = plan.n_jobs
        self.bounds_waits = True
        self._hosts: list[Host] = []
        self._in_flight = InFlight([], [], ThreadBell())
        self._awaited: set[int] = set()
        self._slots: list[Rows] = []
        self._slot = 0
        self.rows = Rows.allocate((), 0)
        self._collects = False
        self._hand_outs: HandOuts | None = None
        self._handed_out = -1
        self._taken_dtype: np.dtype[Any] | None = None
        self._block: SharedBlock | None = None
        _open_executions.add(self)
        try:
            self._make_hosts(plan, new_host)
            self.descriptions: Sequence[ShardDescription] = self._build()
        except BaseException:
            self.close(graceful=False)
            raise
        self.placement = tuple(
            host.placement for host, shard in zip(self._hosts, self.shards, strict=True) for _ in shard
        )

    def bind(self, leaves: Sequence[Leaf], num_slots: int, action_shape: tuple[int, ...] | None) -> None:
        """Allocate the rows: in shared memory where a process hosts a shard."""
        num_envs = self.shards[-1].stop
        arrays: list[Array] = []
        processes = [host for host in self._hosts if isinstance(host, ProcessHost)]
        if processes:
            is_large = num_slots == 1 and is_worth_handing_out(leaves, num_envs)
            num_hand_outs = NUM_ARRAYS if is_large else 0
            shared = SharedArrays(leaves, num_envs, num_slots, action_shape, len(processes), num_hand_outs)
            self._block = SharedBlock(shared.size)
            self._slots = shared.all_rows(self._block)
            arrays = shared.hand_outs(self._block)
            self._hand_outs = HandOuts(arrays) if arrays else None
            for worker, host in enumerate(processes):
                host.share(shared, self._block, worker)
            self._block.close()
        else:
            self._slots = [Rows.allocate(leaves, num_envs) for _ in range(num_slots)]
        self.rows = self._slots[0]
        self._collects = bool(self.rows.objects)
        self._parts = [parts_of(self._slots, shard) for shard in self.shards]
        for each, parts, shard in zip(self._hosts, self._parts, self.shards, strict=True):
            each.bind(parts, [array[shard.start : shard.stop] for array in arrays])

    def start(self, requests: Sequence[Request]) -> None:
        """Begin a request for each shard."""
        packed = [host.pack(request) for host, request in zip(self._hosts, requests, strict=True)]
        if requests[0].fills_rows:
            self._turn_slot(keep_rows=True)
        if self._hand_outs is not None:
            self._choose_hand_out(self._hand_outs if requests[0].method in ("step", "reset") else None)
        for number in self._starting_order:
            if number == self._first_here:
                self._begin()
            self._awaited.add(number)  # first: an interrupt may come in between
            self._hosts[number].start(packed[number], self._slot)

    def start_step(self, actions: Any) -> None:
        """Begin a step."""
        if not isinstance(actions, np.ndarray):
            self.start([Request("step", (copy.deepcopy(actions[part]),)) for part in self._slices])
            return
        if actions.dtype is not self._taken_dtype:
            if not all(host.takes(actions) for host in self._hosts):
                self.start([Request("step", (copy.deepcopy(actions[part]),)) for part in self._slices])
                return
            self._taken_dtype = actions.dtype
        if len(self._slots) > 1:
            self._turn_slot(keep_rows=False)
        if self._hand_outs is not None:
            self._choose_hand_out(self._hand_outs)
        for number in self._starting_order:
            if number == self._first_here:
                self._begin()
            self._awaited.add(number)
            self._hosts[number].start_step(actions[self._slices[number]], self._slot)

    def finish(self, timeout_s: float | None) -> Reply:
        """Wait for all; the caller's own shard comes first, while the others are at work."""
        deadline = None if timeout_s is None else time.perf_counter() + timeout_s
        replies = [NOTHING_SAID] * len(self._hosts)
        died: list[WorkerDiedError] = []
        for number in self._waiting_order:
            if number == self._first_away:
                self._end()  # while they alone are waited for, the caller's BLAS threads are its own again
            try:
                replies[number] = self._hosts[number].finish(deadline)
            except TimeoutError as error:
                self._end()
                raise CallTimeoutError(
                    f"{error} after {timeout_s:g} s: the batch can only be closed, so that its late answer never "
                    f"lands in a later call"
                ) from None
            except WorkerDiedError as error:
                died.append(error)
            self._awaited.discard(number)
        self._end()
        if died:
            raise _one_of(died)
        if self._collects:
            self._collect_objects()
        if self._hand_outs is not None and self._handed_out >= 0:
            self.rows.ready_copy = self._hand_outs.array(self._handed_out)
        return merge_replies(replies, self.shards)

    @property
    def num_in_flight(self) -> int:
        """How many sub-environments were begun by ``start_some`` and not yet taken."""
        return self._in_flight.count

    def start_some(self, indices: Sequence[int], actions: Array | list[Any], *, apart: bool) -> None:
        """Begin a step of some sub-environments, none of which is in flight."""
        own = actions.copy() if isinstance(actions, np.ndarray) else copy.deepcopy(actions)
        spans = spans_of(indices, own, self.shards, apart=apart)
        if self._hand_outs is not None:
            self._choose_hand_out(None)
        if not self._in_flight.count:
            self._turn_slot(keep_rows=True)  # views that were handed out live on
        self._awaited.update(range(len(self._hosts)))
        if self._first_here is not None:
            self._begin()
        self._in_flight.start(spans, self._slot)

    def take_some(self, min_envs: int, timeout_s: float | None) -> list[Done]:
        """Return what is done of what ``start_some`` began: at least so many sub-environments.

        Raises:
            CallTimeoutError: It took longer; nothing is lost.
            WorkerDiedError: A worker ended.
        """
        deadline = None if timeout_s is None else time.perf_counter() + timeout_s
        try:
            done = self._in_flight.take(min_envs, deadline)
        except TimeoutError as error:
            raise CallTimeoutError(f"{error} after {timeout_s:g} s: receive again, or close the batch") from None
        if not self._in_flight.count:
            self._awaited.clear()
            self._end()
        if self._collects:
            for number, shard in enumerate(self.shards):
                part = self._parts[number][self._slot]
                for each in done:
                    if each.indices.start in shard:
                        rows = [index - shard.start for index in each.indices]
                        self.rows.take_objects(shard.start, part.objects, rows)
        return done

    def drain(self, timeout_s: float) -> bool:
        """Wait for the workers that are still at work after an interrupt."""
        deadline = time.perf_counter() + timeout_s
        if self._in_flight.count:
            try:
                self._in_flight.take(self._in_flight.count, deadline)
            except (TimeoutError, WorkerDiedError):
                return False
            self._awaited.clear()
        at_rest = True
        for number in sorted(self._awaited):
            host = self._hosts[number]
            if not isinstance(host, CallerHost):
                try:
                    host.finish(deadline)
                except (TimeoutError, WorkerDiedError):
                    at_rest = False  # it stays awaited: close() knows that it won't listen
                    continue
            self._awaited.discard(number)
        self._end()
        return at_rest

    def close(self, *, graceful: bool = True) -> Reply:
        """Close all sub-environments, whatever single ones do, and end the workers."""
        hosts, self._hosts = self._hosts, []
        self._in_flight = InFlight([], [], ThreadBell())  # it had the hosts, whose semaphores go with them
        _open_executions.discard(self)
        busy, self._awaited = self._awaited, set()
        closed = Reply()
        listening = [host for number, host in enumerate(hosts) if graceful and number not in busy]
        for host in listening:
            host.start_close()
        for host in hosts:
            reply = host.stop(graceful=host in listening)
            if reply is not None:
                closed.failures.update(reply.failures)
                closed.output.extend(reply.output)
        self._end()
        if self._block is not None:
            self._block.close()
        return closed

    def abandon(self) -> None:
        """Close a batch that nobody closed."""
        self.close()

    def _make_hosts(self, plan: BatchPlan, new_host: HostFactory) -> None:
        may_poll = plan.n_jobs <= joblib.cpu_count()
        bell = new_host.new_bell(may_poll=may_poll)
        for number, shard in enumerate(self.shards):
            construction = Construction(plan.factories[shard.start : shard.stop], shard, plan.autoreset_mode)
            if plan.caller_steps and number == len(self.shards) - 1:
                self._hosts.append(CallerHost(construction, plan.limit))
            else:
                self._hosts.append(new_host(construction, plan.limit, number, bell, may_poll=may_poll))
        numbers = range(len(self._hosts))
        away = [number for number in numbers if self._hosts[number].is_away]
        here = [number for number in numbers if not self._hosts[number].is_away]
        # Those away start at once; before the first in this process its BLAS threads are bounded.
        self._starting_order = away + here
        self._first_here = here[0] if here else None
        # The caller's own shard first: it is stepped while the others are at work. Of those here, who
        # began last is waited for first: when it is done the others mostly are, and the caller wakes once.
        callers = [number for number in here if isinstance(self._hosts[number], CallerHost)]
        self._waiting_order = callers + [number for number in reversed(here) if number not in callers] + away
        self._first_away = away[0] if away else None
        self._slices = [slice(shard.start, shard.stop) for shard in self.shards]
        self._in_flight = InFlight(self._hosts, self.shards, bell)

    def _build(self) -> list[ShardDescription]:
        """Make all sub-environments, the shards side by side; none is left if one can't be made."""
        for host in self._hosts:
            host.start_build()
        built: list[ShardDescription] = []
        failure: Failure | None = None
        self._begin()
        try:
            for host in self._hosts:
                outcome = host.finish_build()
                if isinstance(outcome, Failure):
                    failure = failure or outcome
                else:
                    built.append(outcome)
        finally:
            self._end()
        if failure is not None:
            self.close(graceful=True)
            raise ConstructionFailed(failure)
        return built

    def _turn_slot(self, *, keep_rows: bool) -> None:
        """Go on to the next set of rows, so that views of this one live until the step after next."""
        if len(self._slots) > 1:
            before = self._slot
            self._slot = (before + 1) % len(self._slots)
            self.rows = self._slots[self._slot]
            if keep_rows:
                for parts in self._parts:
                    parts[self._slot].take(0, parts[before], range(len(parts[before])))

    def _choose_hand_out(self, hand_outs: HandOuts | None) -> None:
        """Choose where the workers copy the observations that begin now, for the caller to have."""
        self.rows.ready_copy = None
        self._handed_out = -1 if hand_outs is None else hand_outs.choose()
        for host in self._hosts:
            host.hand_out(self._handed_out)

    def _collect_objects(self) -> None:
        for shard, parts in zip(self.shards, self._parts, strict=True):
            self.rows.take_objects(shard.start, parts[self._slot].objects, range(len(shard)))

    _holds_limit = False

    def _begin(self) -> None:
        if not self._holds_limit:
            self._limit.acquire()
            self._holds_limit = True

    def _end(self) -> None:
        if self._holds_limit:
            self._holds_limit = False
            self._limit.release()


def _one_of(died: list[WorkerDiedError]) -> WorkerDiedError:
    if len(died) == 1:
        return died[0]
    indices = sorted(index for error in died for index in error.env_indices)
    together = worker_died(indices, died[0].exitcode, f"that had them and {len(died) - 1} more")
    together.__cause__ = died[0]
    return together


_open_executions: weakref.WeakSet[Actors] = weakref.WeakSet()
_owner_pid = os.getpid()


def _close_open_executions() -> None:
    """At the program's end, before multiprocessing waits for its children."""
    if os.getpid() == _owner_pid:  # a forked child leaves its parent's workers alone
        for execution in list(_open_executions):
            execution.close(graceful=True)


# joblib has imported multiprocessing by now, and exit functions run in reverse order.
atexit.register(_close_open_executions)
