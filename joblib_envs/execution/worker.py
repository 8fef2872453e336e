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
from joblib_envs.shard import NOTHING_SAID, Reply, Request, Shard
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
    while True:
        request_ready.wait()
        answer = worker.answer()
        reply_ready.send()
        if answer is not None:
            if answer.is_of_rows:
                bell.send()
            if answer.message is not None:
                worker.send(answer.message)
            if answer.is_last:
                return


class _Answer(NamedTuple):
    """What a signal isn't enough for.

    Attributes:
        message: What is to be sent through the pipe.
        is_of_rows: Whether several requests may be under way, so that the bell must ring too.
        is_last: Whether the shard is closed.
    """

    message: bytes | None
    is_of_rows: bool = False
    is_last: bool = False


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
        self._everyone = range(len(shard))
        self._actions: dict[int, Array] = {}

    def answer(self) -> _Answer | None:
        """Do what was begun; mostly the shared memory says all, and the answer is None."""
        header = self._header
        command, rows = header[channel.COMMAND], self._slots[header[channel.SLOT]]
        if command == channel.ROWS:
            return self._answer_of_rows(rows)
        request: Request | UnpicklableError
        if command == channel.STEP:
            request = Request("step", (self._actions_of(header[channel.ACTION_DTYPE], self._everyone),))
        else:
            request = self._received()
        header[channel.SAID], message = self._carry_out(request, rows, self._everyone)
        is_last = isinstance(request, Request) and request.method == "close"
        return _Answer(message, is_last=is_last) if message is not None or is_last else None

    def _answer_of_rows(self, rows: Rows) -> _Answer:
        """Step the rows that were begun first."""
        start, stop, number = self._begun.take()
        chosen = range(start, stop)
        request: Request | UnpicklableError
        if number == channel.IN_MESSAGE:
            request = self._received()
        else:
            request = Request("step", (self._actions_of(number, chosen), start))
        said, message = self._carry_out(request, rows, chosen)
        self._done.put(start, stop, said)
        return _Answer(message, is_of_rows=True)

    def _carry_out(self, request: Request | UnpicklableError, rows: Rows, chosen: range) -> tuple[int, bytes | None]:
        """Carry out a request for some of the rows; return what is said beside them, and the message, if any."""
        if isinstance(request, Request):
            reply = self._shard.handle(request, rows)
        else:
            first = self._shard.first_index
            reply = all_fail(range(first + chosen.start, first + chosen.stop), request)
        output = self._relay.drain()
        said, message = 0, None
        if reply is not NOTHING_SAID or output or rows.objects:
            said, message = self._told(reply.with_output(output), rows, chosen)
        self._hand_out(rows)  # what can't cross is out of the rows by now
        return said, message

    def _told(self, reply: Reply, rows: Rows, chosen: range) -> tuple[int, bytes | None]:
        """Return what is said beside the rows, and the message with what can't cross in columns, if there is any."""
        infos, reply.infos = reply.infos, ()
        beside = _beside(infos, self._tables)
        said = channel.SAID_INFOS if infos else 0
        if reply.is_empty and not rows.objects and not any(beside()):
            return said, None
        some = rows if len(chosen) == len(rows) else rows.some(chosen.start, chosen.stop)
        message = pack_reply(reply, some, self._shard.first_index + chosen.start, beside)
        return said | channel.SAID_MESSAGE, message

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
        actions = self._actions[number]
        return actions.copy() if chosen is self._everyone else actions[chosen.start : chosen.stop].copy()

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
