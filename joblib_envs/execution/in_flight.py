"""Steps of some sub-environments at a time: begun in any order, taken as they are done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from joblib_envs.errors import WorkerDiedError
from joblib_envs.execution.hosts import CallerHost, Host
from joblib_envs.rows import Array
from joblib_envs.shard import Reply
from joblib_envs.signals import Signal

__all__ = ["Done", "InFlight", "Span", "spans_of"]


class Span(NamedTuple):
    """Sub-environments of one shard, which are stepped together and done together.

    Attributes:
        indices: Their indices in the batch.
        actions: An array, or a list, of an action for each.
    """

    indices: range
    actions: Array | list[Any]


class Done(NamedTuple):
    """What sub-environments that were stepped together told.

    Attributes:
        indices: Their indices in the batch.
        reply: Theirs.
    """

    indices: range
    reply: Reply


class InFlight:
    """The sub-environments whose steps were begun and not yet taken.

    Args:
        hosts: The workers.
        shards: Their sub-environments.
        bell: Rings when a worker has done something.

    Attributes:
        count: How many there are.
    """

    def __init__(self, hosts: Sequence[Host], shards: Sequence[range], bell: Signal) -> None:
        self._bell = bell
        self._places = list(zip(hosts, shards, strict=True))
        self._others = [place for place in self._places if not isinstance(place[0], CallerHost)]
        self._callers = [place for place in self._places if isinstance(place[0], CallerHost)]
        self._done: list[Done] = []
        self.count = 0

    def start(self, spans: Sequence[Span], slot: int) -> None:
        """Begin steps; none of the sub-environments is in flight."""
        for indices, actions in spans:
            host, shard = next(place for place in self._places if indices.start in place[1])
            self.count += len(indices)
            host.start_rows(indices.start - shard.start, actions, slot)

    def take(self, min_envs: int, deadline: float | None) -> list[Done]:
        """Return what is done: at least so many sub-environments, in the order in which they were done.

        The caller's own are stepped only while there is nothing else to take.

        Raises:
            TimeoutError: There were fewer by ``deadline`` (of ``time.perf_counter()``); they can be taken later.
            WorkerDiedError: A worker ended.
        """
        while self._look() < min_envs:
            if self._look_at(self._callers):
                continue
            if not self._bell.wait(self._any_has_ended, deadline):
                if self._any_has_ended() and self._look() < min_envs:
                    self._find_the_dead()
                elif self._look() < min_envs:
                    raise TimeoutError(f"{self.count} sub-environments are still at work")
        done, self._done = self._done, []
        self.count -= sum(len(each.indices) for each in done)
        return done

    def _look(self) -> int:
        """Take what the others have done, and return how many sub-environments are there to be returned."""
        while self._look_at(self._others):
            pass
        return sum(len(each.indices) for each in self._done)

    def _look_at(self, places: Sequence[tuple[Host, range]]) -> bool:
        found = False
        for host, shard in places:
            taken = host.take_rows()
            if taken is not None:
                rows, reply = taken
                self._done.append(Done(range(shard.start + rows.start, shard.start + rows.stop), reply))
                found = True
        return found

    def _any_has_ended(self) -> bool:
        return any(host.has_ended() for host, _ in self._others)

    def _find_the_dead(self) -> None:
        for host, _ in self._others:
            if host.has_ended():
                host.finish()  # which raises what is to be said
        raise WorkerDiedError("a worker ended, and with it what it was doing: the batch can only be closed")


def spans_of(indices: Sequence[int], actions: Array | list[Any], shards: Sequence[range], *, apart: bool) -> list[Span]:
    """Cut sub-environments into spans: each by itself, or as many together as follow one another in one shard.

    Args:
        indices: Which, each once.
        actions: An action for each of them.
        shards: The batch's shards.
        apart: Whether each is to be done by itself.
    """
    ends = {shard.stop for shard in shards}
    spans: list[Span] = []
    start = 0
    for position in range(1, len(indices) + 1):
        is_last = position == len(indices)
        before = indices[position - 1]
        if is_last or apart or indices[position] != before + 1 or before + 1 in ends:
            spans.append(Span(range(indices[start], before + 1), actions[start:position]))
            start = position
    return spans
