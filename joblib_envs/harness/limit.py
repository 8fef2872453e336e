"""The limit: as many independent processes as there are workers, each with a bare loop, nothing exchanged.

No way to step environments together can be faster, so what others reach of it says how much they lose.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import cloudpickle
from gymnasium.vector.utils import batch_space, iterate

from joblib_envs.errors import ArgumentError
from joblib_envs.execution.protocol import split_evenly
from joblib_envs.harness.environments import EnvironmentSource
from joblib_envs.harness.records import Cell, Metric, Sample
from joblib_envs.harness.timing import cpu_s, sample_actions, settle
from joblib_envs.processes import WorkerProcess, unpickled

__all__ = ["LimitContender"]


@dataclass(frozen=True)
class LimitContender:
    """Independent processes. They return nothing, so there are no data to judge, and nobody should use them."""

    name: str = "limit"
    title: str = "limit: nothing exchanged"
    ours: bool = False
    parallel: bool = True
    is_judged: bool = False
    in_comparisons: bool = False

    def build(self, make_env: EnvironmentSource, num_envs: int, n_jobs: int) -> NoReturn:  # noqa: ARG002
        """Refuse: it has no vector interface."""
        raise ArgumentError("the limit is no vector environment: its processes exchange nothing")

    def code(self, source: EnvironmentSource, num_envs: int, n_jobs: int) -> str:  # noqa: ARG002
        """Return nothing."""
        return ""

    def open(self, cell: Cell) -> LimitRun:
        """Start the processes."""
        return LimitRun(self.name, cell)


class LimitRun:
    """The processes, with their environments in the middle of their episodes."""

    def __init__(self, name: str, cell: Cell) -> None:
        self._name = name
        self._workers: list[WorkerProcess] = []
        env = cell.environment()
        space = batch_space(env.action_space, cell.num_envs)
        env.close()
        batches = [list(iterate(space, batch)) for batch in sample_actions(cell)]
        for shard in split_evenly(cell.num_envs, min(cell.n_jobs, cell.num_envs)):
            actions = [batch[shard.start : shard.stop] for batch in batches]
            worker = WorkerProcess(_serve, (), 1, f"limit-{shard.start}")
            worker.connection.send_bytes(cloudpickle.dumps((cell.environment, shard, cell.seed, actions)))
            self._workers.append(worker)
        for worker in self._workers:
            worker.connection.recv()

    def warm_up(self, chunk_s: float) -> None:
        """Step until the rate of two chunks is the same."""
        settle(lambda: self.measure(chunk_s, 0, 0).value)

    def measure(self, min_time_s: float, number: int, position: int) -> Sample:
        """Let all step for a while, and return the sum of their rates as a sample."""
        cpu_before = cpu_s()
        for worker in self._workers:
            worker.connection.send(min_time_s)
        answers: list[tuple[int, float]] = [worker.connection.recv() for worker in self._workers]
        steps = sum(each for each, _ in answers)
        rate = sum(each / wall_s for each, wall_s in answers)
        wall_s = max(wall_s for _, wall_s in answers)
        spent_s = cpu_s() - cpu_before
        return Sample(
            self._name, Metric.THROUGHPUT, rate, number, position, env_steps=steps, wall_s=wall_s, cpu_s=spent_s
        )

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.connection.send(None)
        for worker in self._workers:
            worker.stop()


def _serve(connection: Connection) -> None:
    source, shard, seed, batches = unpickled(connection.recv_bytes())
    envs = [source() for _ in shard]
    for index, env in zip(shard, envs, strict=True):
        env.reset(seed=seed + index)
    connection.send("ready")
    made = 0
    while (min_time_s := connection.recv()) is not None:
        steps, wall_s, made = bare_loop(envs, batches, min_time_s, made)
        connection.send((steps, wall_s))
    for env in envs:
        env.close()


def bare_loop(
    envs: Sequence[Any], batches: Sequence[Iterable[Any]], min_time_s: float, made: int
) -> tuple[int, float, int]:
    """Step environments one after the other for a while, and reset those whose episode ends at once.

    Args:
        envs: The environments.
        batches: Actions, used in turn.
        min_time_s: How long, at least.
        made: How many batches were used before.

    Returns:
        The number of steps, the time that they took, and how many batches were used.
    """
    clock: Callable[[], float] = time.perf_counter
    first, started = made, clock()
    while True:
        for env, action in zip(envs, batches[made % len(batches)], strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        made += 1
        wall_s = clock() - started
        if wall_s >= min_time_s:
            return (made - first) * len(envs), wall_s, made
