"""What the process of an actor runs: it makes a shard, then answers requests until it is told to close."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import cloudpickle

from joblib_envs import channel
from joblib_envs.errors import UnpicklableError
from joblib_envs.execution.crossing import pack_reply
from joblib_envs.failures import Failure
from joblib_envs.info_columns import Form, InfoColumns, Table
from joblib_envs.processes import unpickled
from joblib_envs.relay import Relay
from joblib_envs.rows import Array, Rows
from joblib_envs.shard import Reply, Request, Shard
from joblib_envs.signals import Signal

__all__ = ["all_fail", "parts_of", "serve"]


def serve(connection: Connection, request_ready: Signal, reply_ready: Signal, bell: Signal) -> None:
    """Run an actor: build the shard, then answer requests until told to close.

    Args:
        connection: The pipe to the batch.
        request_ready: Comes with each request.
        reply_ready: To be sent with each reply.
        bell: To be rung when some rows are done.
    """
    shard, relay = _build(connection, reply_ready)
    if shard is None:
        return
    message = pickle.loads(connection.recv_bytes())
    if isinstance(message, Request):  # the batch is closed before it was complete
        shard.close()
        reply_ready.send()
        return
    worker = _Worker(connection, shard, relay, *message)
    reply_ready.send()
    is_open = True
    while is_open:
        request_ready.wait()
        task = worker.next_task()
        is_of_rows, message = worker.carry_out(task)
        reply_ready.send()
        if is_of_rows:
            bell.send()
        if message is not None:
            worker.send(message)
        is_open = not (isinstance(task.request, Request) and task.request.method == "close")


class _Task(NamedTuple):
    """What is to be done now.

    Attributes:
        request: The request, or why it can't be read.
        rows: The rows of the slot that it is for.
        chosen: Which of them.
        is_of_rows: Whether it is one of several that may be under way.
    """

    request: Request | UnpicklableError
    rows: Rows
    chosen: range
    is_of_rows: bool


class _Worker:
    """A shard with its place in shared memory."""

    def __init__(
        self, connection: Connection, shard: Shard, relay: Relay, shared: channel.SharedArrays, number: int
    ) -> None:
        self._connection, self._shard, self._relay, self._shared = connection, shard, relay, shared
        self._block = channel.SharedBlock.receive(connection, shared.size)
        self._header = shared.header(self._block, number)
        self._begun, self._done = shared.rings(self._block, number)
        self._place = slice(shard.first_index, shard.first_index + len(shard))
        self._tables = channel.NewTables()
        indices = range(self._place.start, self._place.stop)
        self._slots = parts_of(shared.all_rows(self._block), indices, self._tables)
        self._hand_outs = [array[self._place] for array in shared.hand_outs(self._block)]
        self._actions: dict[int, Array] = {}

    def next_task(self) -> _Task:
        """Read what was begun."""
        command, rows = self._header[channel.COMMAND], self._slots[self._header[channel.SLOT]]
        everyone = range(len(self._shard))
        if command == channel.STEP:
            request = Request("step", (self._actions_of(self._header[channel.ACTION_DTYPE], everyone),))
            return _Task(request, rows, everyone, is_of_rows=False)
        if command == channel.MESSAGE:
            return _Task(self._received(), rows, everyone, is_of_rows=False)
        start, stop, number = self._begun.take()
        chosen = range(start, stop)
        if number == channel.IN_MESSAGE:
            return _Task(self._received(), rows, chosen, is_of_rows=True)
        return _Task(Request("step", (self._actions_of(number, chosen), start)), rows, chosen, is_of_rows=True)

    def carry_out(self, task: _Task) -> tuple[bool, bytes | None]:
        """Do it; return whether it is one of several, and what is to be sent through the pipe after the signal."""
        request, rows, chosen, is_of_rows = task
        first = self._shard.first_index
        if isinstance(request, Request):
            reply = self._shard.handle(request, rows)
        else:
            reply = all_fail(range(first + chosen.start, first + chosen.stop), request)
        beside = _beside(reply.infos, self._tables)
        has_infos, reply = bool(reply.infos), reply.with_output(self._relay.drain())
        reply.infos = ()
        message = None
        if not reply.is_empty or rows.objects or any(beside()):
            some = rows if len(chosen) == len(rows) else rows.some(chosen.start, chosen.stop)
            message = pack_reply(reply, some, first + chosen.start, beside)
        self._hand_out(rows)  # what can't cross is out of the rows by now
        said = channel.SAID_MESSAGE * (message is not None) + channel.SAID_INFOS * has_infos
        if is_of_rows:
            self._done.put(chosen.start, chosen.stop, said)
        else:
            self._header[channel.SAID] = said
        return is_of_rows, message

    def send(self, message: bytes) -> None:
        """Send a message, and the blocks of the tables that it tells of."""
        self._connection.send_bytes(message)
        self._tables.send(self._connection, os.getppid())

    def _hand_out(self, rows: Rows) -> None:
        number = self._header[channel.HAND_OUT]
        if number >= 0:
            self._hand_outs[number][...] = rows.observations[0]
            self._header[channel.HAND_OUT] = -1  # from now on it is the caller's

    def _actions_of(self, number: int, chosen: range) -> Array:
        """Return a copy of the shared actions of some rows, of the dtype of that number."""
        if number not in self._actions:
            self._actions[number] = self._shared.actions(self._block, number)[self._place]
        return self._actions[number][chosen.start : chosen.stop].copy()

    def _received(self) -> Request | UnpicklableError:
        data = self._connection.recv_bytes()
        try:
            request: Request = unpickled(data)
        except Exception as error:
            return UnpicklableError(f"an argument can't be unpickled in a worker: {type(error).__name__}: {error}")
        return request


def parts_of(slots: Sequence[Rows], shard: range, new_table: Callable[[Form, int], Table] | None = None) -> list[Rows]:
    """Return a shard's rows of each slot; their infos are in the same columns, since they don't outlive a call."""
    infos = InfoColumns(len(shard), slots[0].infos.numbers[shard.start : shard.stop], new_table)
    return [rows.part(shard.start, shard.stop, infos) for rows in slots]


def all_fail(indices: range, error: BaseException) -> Reply:
    """Return the reply for sub-environments that all failed alike."""
    return Reply((), [None] * len(indices), {index: Failure.of(index, error) for index in indices})


def _beside(infos: Sequence[InfoColumns], tables: channel.NewTables) -> Callable[[], tuple[Any, Any]]:
    """Return what tells of infos that aren't in columns, and of new tables."""
    return lambda: (infos[0].beside if infos else {}, tables.untold)


def _build(connection: Connection, reply_ready: Signal) -> tuple[Shard | None, Relay]:
    indices, settings, packed = pickle.loads(connection.recv_bytes())
    relay = Relay(settings)
    relay.install()
    outcome: Any
    try:
        shard = unpickled(packed)()
        outcome = shard if isinstance(shard, Failure) else cloudpickle.dumps(shard.describe())
    except Exception as error:
        cannot = UnpicklableError(
            f"a factory, or the spaces that its environment declares, can't cross between this process and a worker: "
            f"{type(error).__name__}: {error}. Import what it needs inside the factory, or use backend='threading' "
            f"or 'sequential', which need no pickling"
        )
        cannot.__cause__ = error
        outcome = Failure.of(indices[0], cannot)
    reply_ready.send()
    connection.send_bytes(cloudpickle.dumps((outcome, relay.drain())))
    return (shard if isinstance(outcome, bytes) else None), relay
