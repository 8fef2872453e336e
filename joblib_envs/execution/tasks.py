"""Tasks execution: each call is ``(shard, request) -> (shard, reply)`` through ``joblib.Parallel``.

The shard travels to a worker with the call, and the changed shard travels back with the
result. To backends that share memory it goes by reference; to the others as bytes, which
the caller keeps as they are: it never makes a copy of an environment itself.
"""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
from joblib import Parallel, delayed
from joblib.parallel import ParallelBackendBase

from joblib_envs.errors import JoblibEnvsError, StateCannotTravelError, UnpicklableError
from joblib_envs.execution.clusters import ClusterGoneError, LostCallError
from joblib_envs.execution.crossing import pack_reply, pack_request, unpack_reply
from joblib_envs.execution.hosts import worker_died
from joblib_envs.execution.protocol import BatchPlan, ConstructionFailed, merge_replies, split_evenly
from joblib_envs.execution.shipping import (
    Parcel,
    Warehouse,
    pack_parcel,
    packed_adapters,
    take_adapters,
    unpack_parcel,
)
from joblib_envs.factories import Construction
from joblib_envs.failures import Failure
from joblib_envs.processes import end_with_parent, interrupts_ignored, refuse_while_unpickling, unpickled
from joblib_envs.relay import OutputSettings, Relay, replay
from joblib_envs.rows import Leaf, Rows
from joblib_envs.shard import Reply, Request, Shard, ShardDescription
from joblib_envs.state.cargo import Blob
from joblib_envs.state.pickling import CaptureOptions, captured
from joblib_envs.thread_limit import ThreadLimit

__all__ = ["Tasks"]


class Tasks:
    """An execution that makes every call through ``joblib.Parallel``.

    Args:
        plan: What to build.
        backend: joblib's backend, used as it is.
        shares_memory: Whether its workers see the caller's objects.
    """

    def __init__(self, plan: BatchPlan, backend: ParallelBackendBase, *, shares_memory: bool) -> None:
        if not shares_memory:
            refuse_while_unpickling()
        self._limit = plan.limit
        self.shards = split_evenly(len(plan.factories), plan.n_jobs)
        self.num_workers = plan.n_jobs
        self.bounds_waits = False
        self._values: list[Any] = []
        self._warehouse = Warehouse()
        self._shares_memory = shares_memory
        self._calls = _ParallelCalls(backend, plan.n_jobs)
        self._begun: list[tuple[Request, Any]] = []
        self._leaves: Sequence[Leaf] = ()
        self.rows = Rows.allocate((), 0)
        self.placement = tuple(f"task-{number}" for number, shard in enumerate(self.shards) for _ in shard)
        try:
            self.descriptions: Sequence[ShardDescription] = self._build(plan)
        except BaseException:
            self._calls.throw_away()
            raise

    def bind(self, leaves: Sequence[Leaf], num_slots: int, action_shape: tuple[int, ...] | None) -> None:  # noqa: ARG002
        """Allocate the rows."""
        self._leaves = leaves
        self._slots = [Rows.allocate(leaves, self.shards[-1].stop) for _ in range(num_slots)]
        self._slot = 0
        self.rows = self._slots[0]

    def start(self, requests: Sequence[Request]) -> None:
        """Remember the requests: ``Parallel`` has no call that returns before the work is done."""
        packed = [request if self._shares_memory else pack_request(request) for request in requests]
        self._begun = list(zip(requests, packed, strict=True))

    def start_step(self, actions: Any) -> None:
        """Remember a step, with a copy of the actions."""
        self.start([Request("step", (copy.deepcopy(actions[s.start : s.stop]),)) for s in self.shards])

    def finish(self, timeout_s: float | None) -> Reply:  # noqa: ARG002
        """Make the call; ``timeout_s`` is None, since joblib's tasks can't be waited for in part."""
        begun, self._begun = self._begun, []
        answers = self._answers([packed for _, packed in begun])
        self._values = [answer[0] for answer in answers]
        replies = [self._arrived(answer, shard) for answer, shard in zip(answers, self.shards, strict=True)]
        if begun[0][0].fills_rows:
            previous, self._slot = self._slot, (self._slot + 1) % len(self._slots)
            self.rows = self._slots[self._slot]
            for (_, part), (request, _), shard in zip(replies, begun, self.shards, strict=True):
                self._take_rows(part, request, shard, previous)
        return merge_replies([reply for reply, _ in replies], self.shards)

    def drain(self, timeout_s: float) -> bool:  # noqa: ARG002
        """Tell whether the workers are at rest after an interrupt: the states are the caller's."""
        self._calls.throw_away()
        # A thread goes on with its step, and that step must not land in a later one.
        return not self._shares_memory

    def close(self, *, graceful: bool = True) -> Reply:
        """Close all sub-environments: those that travel in workers, unless ``graceful`` is False."""
        values, self._values = self._values, []
        closed = Reply()
        try:
            if self._shares_memory:
                closed = merge_replies([local.shard.close() for local in values], self.shards)
            elif graceful and values:
                self._values = values
                with contextlib.suppress(ClusterGoneError):  # nobody is there to close them
                    answers = self._answers([pack_request(Request("close"))] * len(values))
                    arrived = [self._arrived(answer, shard) for answer, shard in zip(answers, self.shards, strict=True)]
                    closed = merge_replies([reply for reply, _ in arrived], self.shards)
                self._values = []
        finally:
            self._calls.throw_away()
        return closed

    def abandon(self) -> None:
        """Close without the workers' help: at the program's end, joblib must not be started once more."""
        self.close(graceful=False)

    def _build(self, plan: BatchPlan) -> list[ShardDescription]:
        calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        settings = _WorkerSettings(
            OutputSettings.current(), plan.limit.num_threads, plan.capture_options, packed_adapters()
        )
        for shard in self.shards:
            construction = Construction(plan.factories[shard.start : shard.stop], shard, plan.autoreset_mode)
            if self._shares_memory:
                calls.append((_build_shared, (construction, plan.limit.num_threads)))
            else:
                calls.append((_build_travelling, (construction.packed(), settings)))
        answers = self._run(calls, self.shards)
        if not self._shares_memory:
            answers = [pickle.loads(answer) for answer in answers]
        built = [number for number, answer in enumerate(answers) if not isinstance(answer[1], Failure)]
        self._values = [answers[number][0] for number in built]
        self._settings = settings
        for number in built:
            self._warehouse.take_in(answers[number][3])
        for _, outcome, records, _ in answers:
            replay(records)
            if isinstance(outcome, Failure):
                self.shards = [self.shards[number] for number in built]
                self.close()
                raise ConstructionFailed(outcome)
        return [description for _, description, _, _ in answers]

    def _answers(self, packed: Sequence[Any]) -> list[Any]:
        """Make a call of each shard."""
        if self._shares_memory:
            shared = zip(self._values, packed, strict=True)
            return self._run([(_run_shared, (value, request, self._leaves)) for value, request in shared], self.shards)
        answers = self._travelled(range(len(self._values)), packed, self._warehouse.first_needs)
        again = [number for number, answer in enumerate(answers) if answer is None]
        if again:  # those workers were new: nothing has happened there yet
            for number, answer in zip(again, self._travelled(again, packed, self._warehouse.all_needs), strict=True):
                answers[number] = answer
        for answer in answers:
            self._warehouse.take_in(answer[3])
        self._warehouse.settle([answer[0] for answer in answers])
        return answers

    def _travelled(
        self, numbers: Sequence[int], packed: Sequence[Any], needs: Callable[[Parcel], tuple[Blob, ...]]
    ) -> list[Any]:
        """Make a call of some shards, with what their workers may need."""
        calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        for number in numbers:
            parcel: Parcel = self._values[number]
            calls.append((_run_travelling, (parcel, needs(parcel), packed[number], self._leaves, self._settings)))
        return self._run(calls, [self.shards[number] for number in numbers])

    def _run(self, calls: list[tuple[Callable[..., Any], tuple[Any, ...]]], shards: Sequence[range]) -> list[Any]:
        """Make the calls side by side; where workers were lost, once more and one by one.

        Anybody may have shut joblib's shared executor down. A call on a travelling shard changes
        nothing but its answer, so it may be repeated. One that loses its worker again is that
        shard's own doing.
        """
        if self._shares_memory:
            self._limit.acquire()
            try:
                return self._calls(calls)
            finally:
                self._limit.release()
        guarded = [(_guarded, (function, *args)) for function, args in calls]
        try:
            outcomes = self._calls(guarded)
        except LostCallError as lost:  # a cluster has run the call again by itself
            raise worker_died(list(shards[lost.number]), None, f"of a task ({lost})") from lost.__cause__
        except ClusterGoneError as gone:
            gone.env_indices = tuple(range(self.shards[-1].stop))
            raise
        except JoblibEnvsError:  # a cluster can't run it at all
            raise
        except Exception:  # never our own code's, which answers with its exceptions
            outcomes = []
            for call, shard in zip(guarded, shards, strict=True):
                try:
                    outcomes.extend(self._calls([call]))
                except Exception as error:
                    where = f"of a task ({type(error).__name__})"
                    raise worker_died(list(shard), None, where) from error
        for succeeded, outcome in outcomes:
            if not succeeded:
                raise outcome
        return [outcome for _, outcome in outcomes]

    def _arrived(self, answer: Any, shard: range) -> tuple[Reply, Rows | None]:
        """Return a worker's reply and the rows it filled, if any."""
        if self._shares_memory:
            _, reply, part = answer
            return reply, part
        _, packed, arrays, _ = answer
        reply, objects, _ = unpack_reply(packed, shard)
        part = None
        if arrays is not None:
            observations, rewards, flags = arrays
            part = Rows(self._leaves, observations, rewards, flags)
            if objects:
                part.take_objects(0, objects, range(len(shard)))
        return reply, part

    def _take_rows(self, part: Rows | None, request: Request, shard: range, previous: int) -> None:
        mask = request.row_mask
        kept = [row for row in range(len(shard)) if part is None or (mask is not None and not mask[row])]
        if kept and previous != self._slot:
            before = self._slots[previous].part(shard.start, shard.stop)
            before.take_objects(
                0, [objects[shard.start : shard.stop] for objects in self._slots[previous].objects], kept
            )
            self.rows.take(shard.start, before, kept)
        if part is not None:
            self.rows.take(shard.start, part, [row for row in range(len(shard)) if row not in set(kept)])


class _ParallelCalls:
    """Calls through one ``joblib.Parallel``, with settings of its own whatever the context says."""

    def __init__(self, backend: ParallelBackendBase, n_jobs: int) -> None:
        self._backend = backend
        self._n_jobs = n_jobs
        self._open: Parallel | None = None

    def __call__(self, calls: list[tuple[Callable[..., Any], tuple[Any, ...]]]) -> list[Any]:
        if self._open is None:
            # Kept open: with joblib 1.6.0, each configuration of loky leaves a folder and an exit
            # function behind. max_nbytes=None, or large arrays would arrive as read-only maps.
            parallel = Parallel(
                n_jobs=self._n_jobs,
                backend=self._backend,
                batch_size=1,
                pre_dispatch="all",
                max_nbytes=None,
                verbose=0,
                prefer=None,
                require=None,
            )
            self._open = parallel.__enter__()
        try:
            answers: list[Any] = self._open([delayed(function)(*args) for function, args in calls])
        except BaseException:
            # A Parallel object that raised is thrown away: joblib 1.6.0 keeps the failed call's
            # queued tasks in it and would run them in the next call.
            self.throw_away()
            raise
        return answers

    def throw_away(self) -> None:
        """End the Parallel object, if there is one."""
        used, self._open = self._open, None
        if used is not None:
            used.__exit__(None, None, None)


class _Local:
    """A shard that shares the caller's memory, with its rows and limit."""

    def __init__(self, shard: Shard, num_threads: int) -> None:
        self.shard = shard
        self.limit = ThreadLimit(num_threads)
        self.rows: Rows | None = None


@dataclass(frozen=True)
class _WorkerSettings:
    """What holds in a worker while it has a shard.

    Attributes:
        output: Warning filters, log levels, and where output goes.
        num_threads: BLAS and OpenMP threads.
        capture_options: How environments are pickled.
        adapters: The pickled state adapters that the caller has registered.
    """

    output: OutputSettings
    num_threads: int
    capture_options: CaptureOptions
    adapters: bytes


def _build_shared(construction: Construction, num_threads: int) -> tuple[Any, Any, list[Any], tuple[Blob, ...]]:
    with ThreadLimit(num_threads).in_this_thread():
        shard = construction.build()
    if isinstance(shard, Failure):
        return None, shard, [], ()
    return _Local(shard, num_threads), shard.describe(), [], ()


def _run_shared(local: _Local, request: Request, leaves: Sequence[Leaf]) -> tuple[_Local, Reply, Rows]:
    if local.rows is None:
        local.rows = Rows.allocate(leaves, len(local.shard))
    with local.limit.in_this_thread():
        reply = local.shard.handle(request, local.rows)
    return local, reply, local.rows


def _build_travelling(packed: bytes, settings: _WorkerSettings) -> bytes:
    take_adapters(settings.adapters)
    with _held(settings) as relay:
        shard = unpickled(packed)()
        if isinstance(shard, Failure):
            outcome: tuple[Any, Any] = (None, shard)
            blobs: tuple[Blob, ...] = ()
        else:
            # No identities: the objects end with this task, and another may get their addresses.
            description = replace(shard.describe(), identities=())
            parcel, blobs = pack_parcel(shard, settings.capture_options)
            outcome = (parcel, description)
    data: bytes = cloudpickle.dumps((*outcome, relay.drain(), blobs))
    return data


def _run_travelling(
    parcel: Parcel, enclosed: tuple[Blob, ...], packed: bytes, leaves: Sequence[Leaf], settings: _WorkerSettings
) -> tuple[Parcel, bytes, Any, tuple[Blob, ...]] | None:
    take_adapters(settings.adapters)
    shard: Shard | None = unpack_parcel(parcel, enclosed)
    if shard is None:
        return None
    request = unpickled(packed)
    rows = Rows.allocate(leaves, len(shard))
    with _held(settings) as relay:
        reply = shard.handle(request, rows).with_output(relay.drain())
    changed: tuple[Parcel, tuple[Blob, ...]] = (parcel, ())
    if request.method != "close":
        try:
            changed = pack_parcel(shard, settings.capture_options, parcel.keys)
        except Exception:
            changed = _without_the_stuck(parcel, shard, reply, rows, settings.capture_options)
    arrays = (rows.observations, rows.rewards, (rows.terminations, rows.truncations)) if request.fills_rows else None
    return changed[0], pack_reply(reply, rows, shard.first_index), arrays, changed[1]


def _without_the_stuck(
    parcel: Parcel, shard: Shard, reply: Reply, rows: Rows, options: CaptureOptions
) -> tuple[Parcel, tuple[Blob, ...]]:
    """Pickle a shard in which some environments can't be pickled any more: those stay as they were before the call."""
    before: Shard | None = unpack_parcel(parcel, ())
    assert before is not None  # its blobs were here a moment ago
    for row, env in enumerate(shard.envs):
        try:
            captured(env, options)
        except Exception as error:
            index = shard.first_index + row
            stuck = StateCannotTravelError(
                f"sub-environment {index} could be pickled before this call and can't be after it "
                f"({type(error).__name__}: {error}), so it can't leave its worker. Use execution='actors'"
            )
            shard.envs[row] = before.envs[row]
            reply.failures[index] = Failure.of(index, stuck)
            rows.clear(row)
            if reply.results is not None:
                reply.results[row] = None
    return pack_parcel(shard, options, parcel.keys)


def _guarded(function: Callable[..., Any], *args: Any) -> tuple[bool, Any]:
    """Answer with an exception in place of raising it, so that what joblib raises is joblib's own."""
    try:
        return True, function(*args)
    except Exception as error:
        cannot = UnpicklableError(
            f"an environment or an argument can't be pickled or unpickled in a worker: {type(error).__name__}: "
            f"{error}. Use execution='actors', where environments stay in their workers"
        )
        return False, cannot


@contextlib.contextmanager
def _held(settings: _WorkerSettings) -> Iterator[Relay]:
    """Hold the caller's warning filters, log levels and thread limit for one task, in a worker that others use too."""
    in_worker = settings.output.pid != os.getpid()
    if in_worker:
        end_with_parent(settings.output.pid)
    relay, limit = Relay(settings.output), ThreadLimit(settings.num_threads)
    restore = relay.install()
    limit.acquire()
    try:
        with limit.in_this_thread(), interrupts_ignored() if in_worker else contextlib.nullcontext():
            yield relay
    finally:
        limit.release()
        restore()
        if in_worker:
            sys.stdout.flush()  # what an environment prints appears when it prints
