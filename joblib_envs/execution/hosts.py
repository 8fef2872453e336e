"""What hosts a shard for an actor's life: the caller itself, a thread, or a process.

An *actor* is a stateful worker that owns sub-environments, not a policy.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import cloudpickle
import numpy as np

from joblib_envs import channel
from joblib_envs.errors import WorkerDiedError
from joblib_envs.execution.crossing import pack_request, unpack_reply
from joblib_envs.execution.worker import all_fail, serve
from joblib_envs.factories import Construction
from joblib_envs.failures import Failure
from joblib_envs.processes import WorkerProcess
from joblib_envs.relay import OutputSettings, replay
from joblib_envs.rows import Array, Rows
from joblib_envs.shard import NOTHING_SAID, Reply, Request, Shard, ShardDescription
from joblib_envs.signals import Signal, ThreadBell, ThreadSignal
from joblib_envs.thread_limit import ThreadLimit

__all__ = ["CallerHost", "Host", "ProcessHost", "ThreadHost", "worker_died"]

Built: TypeAlias = ShardDescription | Failure

_UNREAD_BYTES = 1 << 14
"""What any pipe takes without anybody reading."""

_CLOSE_S = 5.0
"""How long environments may take to close before their process is ended."""


class Host(Protocol):
    """Where one shard lives. Calls alternate: a ``start...``, then ``finish``."""

    placement: str
    """What ``envs.placement`` says of the sub-environments here."""

    is_away: bool
    """Whether they are in another process than the caller."""

    def start_build(self) -> None:
        """Begin to make the sub-environments."""

    def finish_build(self) -> Built:
        """Wait until they are made."""

    def bind(self, slots: Sequence[Rows], hand_outs: Sequence[Array] = ()) -> None:
        """Take this shard's rows, one set for each slot, and its rows of what is handed out."""

    def hand_out(self, number: int) -> None:
        """Copy the observations into one of those arrays too, in the step or reset that begins next; -1: into none."""

    def pack(self, request: Request) -> Any:
        """Make a request ready for ``start``, before any host starts.

        Raises:
            UnpicklableError: It can't cross to the worker.
        """

    def start(self, packed: Any, slot: int) -> None:
        """Begin a request."""

    def takes(self, actions: Any) -> bool:
        """Tell whether ``start_step`` can take these actions."""

    def start_step(self, actions: Array, slot: int) -> None:
        """Begin a step with the shard's rows of an array of actions."""

    def finish(self, deadline: float | None = None) -> Reply:
        """Wait for what was begun.

        Raises:
            TimeoutError: It wasn't done by ``deadline`` (of ``time.perf_counter()``).
            WorkerDiedError: The worker ended.
        """

    def start_rows(self, start: int, actions: Array | list[Any], slot: int) -> None:
        """Begin a step of as many of the shard's rows as there are actions, from ``start`` on.

        Others may be begun before these are done; each is in one of them at most.
        """

    def take_rows(self) -> tuple[range, Reply] | None:
        """Return the rows that were done first, of those not taken yet; None if there are none."""

    def has_ended(self) -> bool:
        """Tell whether the worker is gone."""

    def start_close(self) -> None:
        """Begin to close the sub-environments."""

    def stop(self, *, graceful: bool) -> Reply | None:
        """End the worker: after what ``start_close`` began, if ``graceful``, else at once."""


class CallerHost:
    """The caller's own thread: a shard that is stepped while the caller would wait."""

    placement = "caller"
    is_away = False

    def __init__(self, construction: Construction, limit: ThreadLimit) -> None:
        self._construction = construction
        self._limit = limit
        self._shard: Shard | None = None
        self._slots: Sequence[Rows] = ()
        self._hand_outs: Sequence[Array] = ()
        self._copied_to: Array | None = None
        self._begun: tuple[Request, int] | None = None
        self._rows_begun: deque[tuple[Request, int]] = deque()

    def start_build(self) -> None:
        """Begin nothing: ``finish_build`` does it, after the other hosts have begun."""

    def finish_build(self) -> Built:
        """Make the sub-environments."""
        with self._limit.in_this_thread():
            shard = self._construction.build()
        if isinstance(shard, Failure):
            return shard
        self._shard = shard
        return shard.describe()

    def bind(self, slots: Sequence[Rows], hand_outs: Sequence[Array] = ()) -> None:
        """Take this shard's rows."""
        self._slots, self._hand_outs = slots, hand_outs

    def hand_out(self, number: int) -> None:
        """Remember where to copy the observations."""
        self._copied_to = self._hand_outs[number] if number >= 0 else None

    def pack(self, request: Request) -> Request:
        """Return the request as it is."""
        return request

    def start(self, packed: Request, slot: int) -> None:
        """Remember the request: it runs in ``finish``, while the other hosts are at work."""
        self._begun = (packed, slot)

    def takes(self, actions: Any) -> bool:
        """Take every array."""
        return isinstance(actions, np.ndarray)

    def start_step(self, actions: Array, slot: int) -> None:
        """Remember a copy of the actions."""
        self._begun = Request("step", (actions.copy(),)), slot

    def finish(self, deadline: float | None = None) -> Reply:  # noqa: ARG002 -- it waits for nobody
        """Carry out the request."""
        begun = self._begun
        if begun is None or self._shard is None:
            return Reply()
        self._begun = None
        request, slot = begun
        if not self._limit.is_per_thread:
            reply = self._shard.handle(request, self._slots[slot])
        else:
            with self._limit.in_this_thread():
                reply = self._shard.handle(request, self._slots[slot])
        if self._copied_to is not None:
            self._copied_to[...] = self._slots[slot].observations[0]
            self._copied_to = None  # from now on it is the caller's
        return reply

    def start_rows(self, start: int, actions: Array | list[Any], slot: int) -> None:
        """Remember the actions: ``take_rows`` makes the steps."""
        self._rows_begun.append((Request("step", (actions, start)), slot))

    def take_rows(self) -> tuple[range, Reply] | None:
        """Make the steps that were begun first."""
        if not self._rows_begun:
            return None
        self._begun = self._rows_begun.popleft()
        actions, start = self._begun[0].arguments
        return range(start, start + len(actions)), self.finish()

    def has_ended(self) -> bool:
        """Tell that the caller is there."""
        return False

    def start_close(self) -> None:
        """Begin nothing: ``stop`` does it, after the other hosts have begun."""

    def stop(self, *, graceful: bool) -> Reply | None:  # noqa: ARG002
        """Close the sub-environments."""
        shard, self._shard = self._shard, None
        return shard.close() if shard is not None else None


class ThreadHost:
    """A thread of its own, which makes, steps and closes its sub-environments."""

    is_away = False
    new_bell = ThreadBell

    def __init__(
        self, construction: Construction, limit: ThreadLimit, number: int, bell: Signal, *, may_poll: bool = True
    ) -> None:
        self.placement = f"thread-{number}"
        self._construction = construction
        self._limit = limit
        self._slots: Sequence[Rows] = ()
        self._inbox: deque[tuple[Request, int, bool] | None] = deque()
        self._something_begun = ThreadBell(may_poll=may_poll)
        self._reply_ready = ThreadSignal(may_poll=may_poll)
        self._answer: Any = None
        self._rows_done: deque[tuple[range, Reply]] = deque()
        self._bell = bell
        self._closing = False
        # A daemon: an open batch must not keep the program from ending.
        self._thread = threading.Thread(target=self._run, name=f"joblib-envs-{number}", daemon=True)

    def start_build(self) -> None:
        """Start the thread, which makes the sub-environments first."""
        self._thread.start()

    def finish_build(self) -> Built:
        """Wait until they are made."""
        built: Built = self._receive(None)
        return built

    def bind(self, slots: Sequence[Rows], hand_outs: Sequence[Array] = ()) -> None:  # noqa: ARG002
        """Take this shard's rows; threads hand out nothing."""
        self._slots = slots

    def hand_out(self, number: int) -> None:
        """Leave the copying to the caller."""

    def pack(self, request: Request) -> Request:
        """Return the request as it is."""
        return request

    def start(self, packed: Request, slot: int) -> None:
        """Hand a request to the thread."""
        self._hand_over((packed, slot, False))

    def takes(self, actions: Any) -> bool:
        """Take every array."""
        return isinstance(actions, np.ndarray)

    def start_step(self, actions: Array, slot: int) -> None:
        """Hand a copy of the actions to the thread."""
        self._inbox.append((Request("step", (actions.copy(),)), slot, False))
        self._something_begun.send()

    def finish(self, deadline: float | None = None) -> Reply:
        """Wait for the thread's reply."""
        reply: Reply = self._receive(deadline)
        return reply

    def start_rows(self, start: int, actions: Array | list[Any], slot: int) -> None:
        """Hand the actions to the thread."""
        self._hand_over((Request("step", (actions, start)), slot, True))

    def take_rows(self) -> tuple[range, Reply] | None:
        """Return what the thread did first, of what wasn't taken yet."""
        return self._rows_done.popleft() if self._rows_done else None

    def has_ended(self) -> bool:
        """Tell that a thread is always there."""
        return False

    def start_close(self) -> None:
        """Hand the thread its last request."""
        self._closing = self._thread.is_alive()
        if self._closing:
            self.start(Request("close"), 0)

    def stop(self, *, graceful: bool) -> Reply | None:
        """Wait for the thread's end; a busy thread is left to end itself."""
        if not graceful:
            self._inbox.clear()
            self._hand_over(None)
            return None
        if not self._closing:
            return None
        reply = self.finish()
        self._hand_over(None)
        self._thread.join()
        return reply

    def _hand_over(self, begun: tuple[Request, int, bool] | None) -> None:
        self._inbox.append(begun)
        self._something_begun.send()

    def _receive(self, deadline: float | None) -> Any:
        # Nobody is ever alone with a thread; but asked, the wait comes in slices: a signal that
        # comes just before a wait doesn't end it, and Ctrl-C would be lost.
        if not self._reply_ready.wait(self.has_ended, deadline):
            raise TimeoutError(f"{self.placement} is still at work")
        answer = self._answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _reply(self, answer: Any) -> None:
        self._answer = answer
        self._reply_ready.send()

    def _run(self) -> None:
        try:
            with self._limit.in_this_thread():
                shard = self._construction.build()
            built = shard if isinstance(shard, Failure) else shard.describe()
        except BaseException as error:  # whatever it is, the caller waits for an answer
            self._reply(error)
            return
        self._reply(built)
        if isinstance(shard, Failure):
            return
        while self._something_begun.wait():
            while self._inbox:
                begun = self._inbox.popleft()
                if begun is None:
                    return
                self._answer_to(shard, *begun)

    def _answer_to(self, shard: Shard, request: Request, slot: int, is_of_rows: bool) -> None:
        try:
            rows = self._slots[slot] if self._slots else Rows.allocate((), 0)
            if self._limit.is_per_thread:
                with self._limit.in_this_thread():
                    reply = shard.handle(request, rows)
            else:
                reply = shard.handle(request, rows)
        except BaseException as error:  # an interrupt that an environment raises is its own
            chosen = _rows_of(request, shard) if is_of_rows else range(len(shard))
            reply = all_fail(range(shard.first_index + chosen.start, shard.first_index + chosen.stop), error)
        if is_of_rows:
            self._rows_done.append((_rows_of(request, shard), reply))
            self._bell.send()
        else:
            self._answer = reply
            self._reply_ready.send()


def _rows_of(request: Request, shard: Shard) -> range:
    """Return the rows of a shard that a step of some of them is for."""
    actions, start = request.arguments
    return range(start, min(start + len(actions), len(shard)))


class ProcessHost:
    """A process of its own; arrays cross in shared memory, the rest in a pipe."""

    is_away = True
    new_bell = Signal

    def __init__(
        self, construction: Construction, limit: ThreadLimit, number: int, bell: Signal, *, may_poll: bool = True
    ) -> None:
        self.placement = f"process-{number}"
        self._indices = construction.indices
        self._request_ready = Signal(may_poll=may_poll)
        self._reply_ready = Signal(may_poll=may_poll)
        self._setup = cloudpickle.dumps((self._indices, OutputSettings.current(), construction.packed()))
        self._process = WorkerProcess(
            serve, (self._request_ready, self._reply_ready, bell), limit.num_threads, f"joblib-envs-{number}"
        )
        # Rows whose actions go through the pipe: those yet to be sent, and the bytes of those under way.
        self._held: deque[tuple[int, int, bytes]] = deque()
        self._sent: dict[int, int] = {}
        self._header = channel.no_header()
        self._actions: dict[int, Array] = {}
        self._shared: channel.SharedArrays | None = None
        self._block: channel.SharedBlock | None = None
        self._slots: Sequence[Rows] = ()
        self._slot = 0
        self._closing = False

    def start_build(self) -> None:
        """Send the factories."""
        with channel.ignore_broken_pipe():
            self._process.connection.send_bytes(self._setup)
        self._setup = b""

    def finish_build(self) -> Built:
        """Wait for the description, or what went wrong."""
        self._await(None)
        outcome, records = pickle.loads(self._receive())
        replay(records)
        if isinstance(outcome, Failure):
            return outcome
        built: Built = pickle.loads(outcome)
        return built

    def share(self, shared: channel.SharedArrays, block: channel.SharedBlock, worker: int) -> None:
        """Give the process the block that holds everybody's rows, and its own place in it."""
        self._shared, self._block = shared, block
        self._header = shared.header(block, worker)
        self._header[channel.HAND_OUT] = -1
        self._rows_begun, self._rows_done = shared.rings(block, worker)
        with channel.ignore_broken_pipe():
            self._process.connection.send_bytes(cloudpickle.dumps((shared, worker)))
            block.send(self._process.connection, self._process.pid)
        self._await(None)

    def bind(self, slots: Sequence[Rows], hand_outs: Sequence[Array] = ()) -> None:  # noqa: ARG002
        """Take this shard's rows; the process finds the arrays that are handed out by itself."""
        self._slots = slots

    def hand_out(self, number: int) -> None:
        """Tell the process where to copy the observations."""
        self._header[channel.HAND_OUT] = number

    def pack(self, request: Request) -> bytes:
        """Pickle the request."""
        return pack_request(request)

    def start(self, packed: bytes, slot: int) -> None:
        """Send a request through the pipe."""
        self._begin(channel.MESSAGE, slot)
        with channel.ignore_broken_pipe():
            self._process.connection.send_bytes(packed)

    def takes(self, actions: Any) -> bool:
        """Take arrays whose items fit the shared buffer."""
        return self._shared is not None and self._shared.takes_actions(actions)

    def start_step(self, actions: Array, slot: int) -> None:
        """Write the actions to shared memory, and wake the process."""
        self._shared_actions(actions.dtype.num)[...] = actions
        self._header[channel.ACTION_DTYPE] = actions.dtype.num
        self._begin(channel.STEP, slot)

    def finish(self, deadline: float | None = None) -> Reply:
        """Wait for the process's reply."""
        self._await(deadline)
        said = self._header[channel.SAID]
        if not said:
            return NOTHING_SAID
        rows = self._slots[self._slot] if self._slots else None
        reply = self._take_message(rows, 0) if said & channel.SAID_MESSAGE else Reply()
        if said & channel.SAID_INFOS and rows is not None:
            rows.infos.take_in()
            reply.infos = (rows.infos,)
        return reply

    def start_rows(self, start: int, actions: Array | list[Any], slot: int) -> None:
        """Write the actions to shared memory, or send them through the pipe, and wake the process."""
        stop = start + len(actions)
        if isinstance(actions, np.ndarray) and self.takes(actions):
            self._shared_actions(actions.dtype.num)[start:stop] = actions
            self._sent[start] = 0
            self._rows_begun.put(start, stop, actions.dtype.num)
            self._begin(channel.ROWS, slot)
        else:
            self._held.append((start, stop, self.pack(Request("step", (actions, start)))))
            self._send_held(slot)

    def take_rows(self) -> tuple[range, Reply] | None:
        """Return what the process did first, of what wasn't taken yet."""
        if not self._reply_ready.has_come():
            return None
        start, stop, said = self._rows_done.take()
        rows = self._slots[self._slot]
        reply = self._take_message(rows, start, stop) if said & channel.SAID_MESSAGE else Reply()
        if said & channel.SAID_INFOS:
            reply.infos = (rows.infos.part(start, stop),)
        self._sent.pop(start, None)  # now that the process waits no longer for room
        self._send_held(self._slot)
        return range(start, stop), reply

    def has_ended(self) -> bool:
        """Tell whether the process is gone."""
        return self._process.has_ended()

    def start_close(self) -> None:
        """Send the process its last request."""
        self._closing = not self._process.has_ended()
        if self._closing:
            self.start(self.pack(Request("close")), 0)

    def stop(self, *, graceful: bool) -> Reply | None:
        """Wait for the environments to close, then end the process."""
        reply = None
        if graceful and self._closing:
            try:
                reply = self.finish(time.perf_counter() + _CLOSE_S)
            except (TimeoutError, WorkerDiedError):
                graceful = False
        self._process.stop() if graceful else self._process.stop(0.0)
        return reply

    def _begin(self, command: int, slot: int) -> None:
        self._slot = slot
        self._header[channel.COMMAND] = command
        self._header[channel.SLOT] = slot
        self._request_ready.send()

    def _send_held(self, slot: int) -> None:
        """Send as many messages as the pipe takes without anybody reading.

        A process that waits for room to send its reply doesn't read; if the caller waited for room too, both would
        wait for ever.
        """
        while self._held and (not self._sent or sum(self._sent.values()) + len(self._held[0][2]) <= _UNREAD_BYTES):
            start, stop, packed = self._held.popleft()
            self._sent[start] = len(packed)
            self._rows_begun.put(start, stop, channel.IN_MESSAGE)
            self._begin(channel.ROWS, slot)
            with channel.ignore_broken_pipe():
                self._process.connection.send_bytes(packed)

    def _shared_actions(self, number: int) -> Array:
        """Return the shard's rows of the shared actions, of the dtype of that number."""
        if number not in self._actions:
            assert self._shared is not None  # as ``takes`` has said
            assert self._block is not None
            first, last = self._indices[0], self._indices[-1]
            self._actions[number] = self._shared.actions(self._block, number)[first : last + 1]
        return self._actions[number]

    def _take_message(self, rows: Rows | None, start: int, stop: int | None = None) -> Reply:
        """Receive what didn't cross in shared memory."""
        reply, objects, beside = unpack_reply(self._receive(), self._indices[start:stop])
        if beside is None:
            return reply
        not_in_columns, new_tables = beside
        for form, size in new_tables:
            block = channel.SharedBlock.receive(self._process.connection, size)
            if rows is not None:
                rows.infos.add_table(form, channel.shared_table(form, len(rows), block)[0])
            block.close()
        if rows is not None:
            rows.infos.part(start, len(rows) if stop is None else stop).take_beside(not_in_columns)
            if objects:
                rows.take_objects(start, objects, range(len(objects[0])))
        return reply

    def _await(self, deadline: float | None) -> None:
        if not self._reply_ready.wait(self._process.has_ended, deadline):
            if self._process.has_ended():
                raise self._died()
            raise TimeoutError(f"{self.placement} is still at work")

    def _receive(self) -> bytes:
        try:
            return self._process.connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._died() from error

    def _died(self) -> WorkerDiedError:
        return worker_died(self._indices, self._process.exitcode, self.placement)


def worker_died(indices: Sequence[int], exitcode: int | None, where: str) -> WorkerDiedError:
    """Make the error that tells which sub-environments were lost with a worker."""
    lost = f"sub-environment {indices[0]}" if len(indices) == 1 else f"sub-environments {indices[0]} to {indices[-1]}"
    how = "" if exitcode is None else f" by signal {-exitcode}" if exitcode < 0 else f" with exit code {exitcode}"
    return WorkerDiedError(
        f"the worker {where} ended{how}, and with it {lost}: one of them ended its process (a crash in native code, "
        f"os._exit, or too little memory). The batch can only be closed; run the environment alone to see why",
        indices,
        exitcode,
    )
