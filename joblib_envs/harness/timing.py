"""Times one contender, turn by turn, in the process it is called in."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
import psutil
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from joblib_envs.harness.contenders import Contender, VectorLike, autoreset_mode_of
from joblib_envs.harness.records import Cell, Metric, Sample, Send, describe_error

__all__ = ["TimedRun", "Timing", "cpu_s", "memory_bytes", "sample_actions", "settle", "time_contender"]

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
        run = _opened(contender, cell)
        send("at", "warm-up")
        run.warm_up(timing.min_time_s / 2)
        send("memory", Sample(contender.name, Metric.MEMORY, memory_bytes()))
        send("ready")
        for number, position in requests:
            send("at", f"round {number + 1}")
            send("sample", run.measure(timing.min_time_s, number, position))
    except Exception as error:
        send("failed", f"while timing: {describe_error(error)}")
        return
    run.close()


class TimedRun(Protocol):
    """A contender in the middle of its episodes."""

    def warm_up(self, chunk_s: float) -> None:
        """Step until the rate has settled."""

    def measure(self, min_time_s: float, number: int, position: int) -> Sample:
        """Step for a while and return the sample."""

    def close(self) -> Any:
        """Let go of everything."""


def _opened(contender: Contender, cell: Cell) -> TimedRun:
    open_it = getattr(contender, "open", None)
    run: TimedRun = _Run(contender, cell) if open_it is None else open_it(cell)
    return run


def settle(rate_of_a_chunk: Callable[[], float]) -> None:
    """Go on until the rate of two chunks is the same within 5 percent."""
    rate = 0.0
    for _ in range(WARM_UP_CHUNKS):
        last, rate = rate, rate_of_a_chunk()
        if abs(rate - last) <= SETTLED * rate:
            break


class _Run:
    """One open contender, in the middle of its episodes."""

    def __init__(self, contender: Contender, cell: Cell) -> None:
        self.name = contender.name
        self.num_envs = cell.num_envs
        self.envs: VectorLike = contender.build(cell.environment, cell.num_envs, cell.n_jobs)
        self.envs.reset(seed=cell.seed)
        self._actions = itertools.cycle(sample_actions(cell))
        self._resets_take_a_step = autoreset_mode_of(contender) is AutoresetMode.NEXT_STEP
        self._ended = 0  # sub-environments whose next step only resets

    def warm_up(self, chunk_s: float) -> None:
        """Step until the rate has settled."""
        settle(lambda: self.measure(chunk_s, 0, 0).value)

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()

    def measure(self, min_time_s: float, number: int, position: int) -> Sample:
        """Step for a while and return the sample."""
        step, next_action, clock = self.envs.step, self._actions.__next__, time.perf_counter
        flags: list[tuple[Any, Any]] = []
        cpu_before = cpu_s()
        started = clock()
        while True:
            _, _, terminations, truncations, _ = step(next_action())
            flags.append((terminations, truncations))
            wall_s = clock() - started
            if wall_s >= min_time_s:
                break
        spent_s = cpu_s() - cpu_before
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
            cpu_s=spent_s,
        )

    def _count(self, flags: Sequence[tuple[Any, Any]]) -> tuple[int, int]:
        """Count transitions; where the step after an end only resets, that is none."""
        if not self._resets_take_a_step:
            return len(flags) * self.num_envs, 0
        resets = 0
        for terminations, truncations in flags:
            resets += self._ended
            self._ended = int(np.count_nonzero(np.logical_or(terminations, truncations)))
        return len(flags) * self.num_envs - resets, resets


def sample_actions(cell: Cell) -> list[Any]:
    """Return batches of actions, the same for every contender."""
    env = cell.environment()
    space: gymnasium.Space[Any] = batch_space(deepcopy(env.action_space), cell.num_envs)
    env.close()
    space.seed(cell.seed + 1)
    return [space.sample() for _ in range(ACTION_BATCHES)]


def cpu_s() -> float:
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


def memory_bytes() -> float:
    """Return the memory of this process and all below it, with what they share counted once.

    That is the proportional set size where the system tells it (Linux), else what each has for itself.
    """
    total = 0.0
    for each in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            memory = each.memory_full_info()
        except psutil.Error:
            continue
        total += next(getattr(memory, kind) for kind in ("pss", "uss", "rss") if hasattr(memory, kind))
    return total
