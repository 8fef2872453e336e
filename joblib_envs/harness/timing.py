"""Times one contender, turn by turn, in the process it is called in."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import psutil
from gymnasium.vector.utils import batch_space

from joblib_envs.harness.contenders import Contender, VectorLike
from joblib_envs.harness.records import Cell, Metric, Sample, Send, describe_error

__all__ = ["Timing", "time_contender"]

ACTION_BATCHES = 64
WARM_UP_CHUNKS = 6
SETTLED = 0.05


@dataclass(frozen=True)
class Timing:
    """How the measuring is done.

    Attributes:
        rounds: Number of rounds; each gives one sample per contender.
        min_time_s: Time that a sample takes, at least.
    """

    rounds: int
    min_time_s: float


def time_contender(
    send: Send, requests: Iterator[tuple[int, int]], contender: Contender, cell: Cell, timing: Timing
) -> None:
    """Open a contender at the first request, and measure it at each one that follows.

    Args:
        send: Is told ``"ready"`` once, then a ``"sample"`` for each request, or
            ``"failed"`` with the reason, which is the end.
        requests: The round and the position in it; the first means nothing.
        contender: The contender.
        cell: The work.
        timing: How long a sample takes.
    """
    next(requests)
    try:
        send("at", "opening it")
        run = _Run(contender, cell)
        send("at", "warm-up")
        run.warm_up(timing.min_time_s / 2)
        send("ready")
        for number, position in requests:
            send("at", f"round {number + 1}")
            send("sample", run.measure(timing.min_time_s, number, position))
    except Exception as error:
        send("failed", f"while timing: {describe_error(error)}")
        return
    run.envs.close()


class _Run:
    """One open contender, in the middle of its episodes."""

    def __init__(self, contender: Contender, cell: Cell) -> None:
        self.name = contender.name
        self.num_envs = cell.num_envs
        self.envs: VectorLike = contender.build(cell.environment, cell.num_envs, cell.n_jobs)
        self.envs.reset(seed=cell.seed)
        self._actions = itertools.cycle(_sample_actions(cell))
        self._ended = 0  # sub-environments whose next step only resets

    def warm_up(self, chunk_s: float) -> None:
        """Step until the rate of two chunks is the same within 5 percent."""
        rate = 0.0
        for _ in range(WARM_UP_CHUNKS):
            last, rate = rate, self.measure(chunk_s, 0, 0).value
            if abs(rate - last) <= SETTLED * rate:
                break

    def measure(self, min_time_s: float, number: int, position: int) -> Sample:
        """Step for a while and return the sample."""
        step, next_action, clock = self.envs.step, self._actions.__next__, time.perf_counter
        flags: list[tuple[Any, Any]] = []
        cpu_before = _cpu_s()
        started = clock()
        while True:
            _, _, terminations, truncations, _ = step(next_action())
            flags.append((terminations, truncations))
            wall_s = clock() - started
            if wall_s >= min_time_s:
                break
        cpu_s = _cpu_s() - cpu_before
        env_steps, reset_steps = self._count(flags)
        return Sample(
            self.name,
            Metric.THROUGHPUT,
            env_steps / wall_s,
            round=number,
            position=position,
            env_steps=env_steps,
            reset_steps=reset_steps,
            calls=len(flags),
            wall_s=wall_s,
            cpu_s=cpu_s,
        )

    def _count(self, flags: Sequence[tuple[Any, Any]]) -> tuple[int, int]:
        """Count transitions; the step after an end only resets and is no transition."""
        resets = 0
        for terminations, truncations in flags:
            resets += self._ended
            self._ended = int(np.count_nonzero(np.logical_or(terminations, truncations)))
        return len(flags) * self.num_envs - resets, resets


def _sample_actions(cell: Cell) -> list[Any]:
    env = cell.environment()
    space: gymnasium.Space[Any] = batch_space(deepcopy(env.action_space), cell.num_envs)
    env.close()
    space.seed(cell.seed + 1)
    return [space.sample() for _ in range(ACTION_BATCHES)]


def _cpu_s() -> float:
    """Return the CPU time of this process and all below it."""
    process = psutil.Process()
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        try:
            times = each.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total
