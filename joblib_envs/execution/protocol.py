"""What a batch asks of an execution, and what both executions share."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gymnasium.vector import AutoresetMode

from joblib_envs.failures import Failure
from joblib_envs.info_columns import InfoColumns
from joblib_envs.rows import Leaf, Rows
from joblib_envs.shard import NOTHING_SAID, EnvFactory, Reply, Request, ShardDescription
from joblib_envs.state.pickling import DEFAULT_OPTIONS, CaptureOptions
from joblib_envs.thread_limit import ThreadLimit

__all__ = ["BatchPlan", "ConstructionFailed", "Execution", "merge_replies", "split_evenly"]


@dataclass(frozen=True)
class BatchPlan:
    """What an execution is built from.

    Attributes:
        factories: One for each sub-environment.
        autoreset_mode: The batch's.
        n_jobs: Number of workers, the caller included where it steps a shard.
        caller_steps: Whether the caller steps the last shard itself.
        limit: BLAS and OpenMP threads while environments run.
        capture_options: How environments are pickled where they travel.
    """

    factories: tuple[EnvFactory, ...]
    autoreset_mode: AutoresetMode
    n_jobs: int
    caller_steps: bool
    limit: ThreadLimit
    capture_options: CaptureOptions = DEFAULT_OPTIONS


class ConstructionFailed(Exception):  # noqa: N818 -- carries data to BatchEnv, which raises the error
    """A factory raised; everything that was made is closed again."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Execution(Protocol):
    """Where the shards live. Calls alternate: ``start`` or ``start_step``, then ``finish``."""

    rows: Rows
    """The batch's current rows."""

    placement: tuple[str, ...]
    """Where each sub-environment lives."""

    num_workers: int
    """Number of workers, the caller included where it steps a shard."""

    @property
    def descriptions(self) -> Sequence[ShardDescription]:
        """What each shard told of its sub-environments, in index order."""

    bounds_waits: bool
    """Whether ``finish`` can be given a timeout."""

    def bind(self, leaves: Sequence[Leaf], num_slots: int, action_shape: tuple[int, ...] | None) -> None:
        """Allocate the batch's rows, now that the spaces are known to agree."""

    def start(self, requests: Sequence[Request]) -> None:
        """Begin a request for each shard."""

    def start_step(self, actions: Any) -> None:
        """Begin a step: a checked array of actions, or a list of one action each."""

    def finish(self, timeout_s: float | None) -> Reply:
        """Wait for what was begun: one reply for the whole batch.

        Raises:
            CallTimeoutError: The workers took longer than ``timeout_s``.
            WorkerDiedError: A worker ended.
        """

    def drain(self, timeout_s: float) -> bool:
        """After an interrupt, wait for the workers; tell whether all have come to rest."""

    def close(self, *, graceful: bool = True) -> Reply:
        """Close all sub-environments and end the workers. May be called again."""

    def abandon(self) -> None:
        """Close what can be closed when the batch was collected, or the program ends."""

    @property
    def shards(self) -> Sequence[range]:
        """The sub-environments of each shard."""


def split_evenly(num_envs: int, num_shards: int) -> list[range]:
    """Cut the batch into contiguous shards whose sizes differ by one at most."""
    cuts = [num_envs * shard // num_shards for shard in range(num_shards + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(cuts)]


def merge_replies(replies: Sequence[Reply], shards: Sequence[range]) -> Reply:
    """Join the shards' replies in index order."""
    if len(replies) == 1:
        return replies[0]
    said = [reply for reply in replies if reply is not NOTHING_SAID]
    if not said:
        return NOTHING_SAID
    merged = Reply()
    has_infos = has_results = False
    for reply in said:
        has_infos = has_infos or bool(reply.infos)
        has_results = has_results or reply.results is not None
        if reply.failures:
            merged.failures.update(reply.failures)
        if reply.output:
            merged.output.extend(reply.output)
        if reply.records:
            merged.records.extend(reply.records)
    if has_infos:
        infos: list[InfoColumns] = []
        for reply, shard in zip(replies, shards, strict=True):
            infos += reply.infos or (InfoColumns(len(shard)),)
        merged.infos = tuple(infos)
    if has_results:
        merged.results = []
        for reply, shard in zip(replies, shards, strict=True):
            merged.results += reply.results or [None] * len(shard)
    return merged
