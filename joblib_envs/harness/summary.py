"""Medians, intervals and ratios, derived from the raw samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd

from joblib_envs.equality import Verdict
from joblib_envs.harness.contenders import BASELINE, LIMIT, VECTOR_FORM
from joblib_envs.harness.records import NOT_JUDGED, NOT_RUN, Metric
from joblib_envs.harness.results import CELL_COLUMNS, Recorded

__all__ = ["CellSummary", "Estimate", "Line", "estimate_median", "paired_ratio", "summarise"]

RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A median and its bootstrap interval of 95 percent."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """What is known about one contender in one cell; None where it wasn't measured.

    Attributes:
        contender: Its name.
        title: Its name for readers.
        ours: Whether it is BatchEnv.
        verdict: The verdict.
        reason: Why, for those that aren't correct.
        env_steps_per_s: Throughput.
        speed_up: Throughput divided by the plain loop's of the same round.
        start_up_s: Construction and first reset, in a fresh process.
        empty_call_s: One ``step`` over environments that do nothing.
        memory_bytes: Of all its processes, once it runs.
        of_limit: Throughput divided by the limit's of the same round.
        of_sync: The same by Gymnasium's Sync.
        of_async: The same by Gymnasium's Async.
        env_steps_per_s_by_round: The throughput of each round.
    """

    contender: str
    title: str
    ours: bool
    verdict: Verdict
    reason: str
    env_steps_per_s: Estimate | None
    speed_up: Estimate | None
    start_up_s: float | None
    empty_call_s: float | None
    memory_bytes: float | None
    of_limit: Estimate | None
    of_sync: Estimate | None
    of_async: Estimate | None
    env_steps_per_s_by_round: dict[int, float]


@dataclass(frozen=True)
class CellSummary:
    """All contenders of one cell, in the order of the study."""

    environment: str
    num_envs: int
    n_jobs: int
    lines: tuple[Line, ...]

    @property
    def fault(self) -> str:
        """What the environment itself raised, where that spared all contenders; empty otherwise."""
        reasons = {line.reason for line in self.lines}
        reason = reasons.pop() if len(reasons) == 1 else ""
        return reason.removeprefix(NOT_RUN) if reason.startswith(NOT_RUN) else ""

    @property
    def title(self) -> str:
        """The cell in words."""
        return f"{self.environment}, {self.num_envs} environments, n_jobs={self.n_jobs}"


def summarise(recorded: Recorded) -> list[CellSummary]:
    """Return a summary of each cell, in the order of the study."""
    return list(_cells(recorded))


def _cells(recorded: Recorded) -> Iterator[CellSummary]:
    for key, verdicts in recorded.verdicts.groupby(CELL_COLUMNS, sort=False):
        environment, num_envs, n_jobs = cast(tuple[str, int, int], key)
        samples = recorded.measurements
        samples = samples[(samples[CELL_COLUMNS] == [environment, num_envs, n_jobs]).all(axis=1)]
        others = {name: _throughput(samples, name) for name in (BASELINE, LIMIT, VECTOR_FORM, "gymnasium_async")}
        rows: list[dict[str, Any]] = verdicts.to_dict("records")  # type: ignore[assignment]
        yield CellSummary(environment, num_envs, n_jobs, tuple(_line(row, samples, others) for row in rows))


def _line(row: dict[str, Any], samples: pd.DataFrame, others: dict[str, pd.Series[float]]) -> Line:
    verdict, baseline = Verdict(row["verdict"]), others[BASELINE]
    is_timed = verdict is Verdict.CORRECT or row["reason"] == NOT_JUDGED
    throughput = _throughput(samples, row["contender"]) if is_timed else baseline[:0]
    return Line(
        contender=row["contender"],
        title=row["title"],
        ours=bool(row["ours"]),
        verdict=verdict,
        reason="" if pd.isna(row["reason"]) else str(row["reason"]),
        env_steps_per_s=estimate_median(throughput.to_numpy()),
        speed_up=_ratio(throughput, baseline),
        start_up_s=_median(samples, row["contender"], Metric.START_UP),
        empty_call_s=_median(samples, row["contender"], Metric.CALL),
        memory_bytes=_median(samples, row["contender"], Metric.MEMORY),
        of_limit=_ratio(throughput, others[LIMIT]),
        of_sync=_ratio(throughput, others[VECTOR_FORM]),
        of_async=_ratio(throughput, others["gymnasium_async"]),
        env_steps_per_s_by_round=dict(zip(map(int, throughput.index), map(float, throughput), strict=True)),
    )


def paired_ratio(one: Line, other: Line) -> Estimate | None:
    """Return how many times as fast one contender is as another, by the rounds that both were timed in."""
    series = [pd.Series(line.env_steps_per_s_by_round, dtype=float) for line in (one, other)]
    return _ratio(*series)


def _ratio(one: pd.Series[float], other: pd.Series[float]) -> Estimate | None:
    return estimate_median((one / other).dropna().to_numpy())


def estimate_median(values: np.ndarray[Any, Any]) -> Estimate | None:
    """Return the median with its bootstrap interval, or None without values."""
    if len(values) == 0:
        return None
    draws = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(np.median(values[draws], axis=1), [0.025, 0.975])
    return Estimate(float(np.median(values)), float(low), float(high))


def _throughput(samples: pd.DataFrame, contender: str) -> pd.Series[float]:
    """Return a contender's throughput by round."""
    chosen = samples[(samples["contender"] == contender) & (samples["metric"] == Metric.THROUGHPUT)]
    return chosen.set_index("round")["value"].astype(float)


def _median(samples: pd.DataFrame, contender: str, metric: str) -> float | None:
    values = samples[(samples["contender"] == contender) & (samples["metric"] == metric)]["value"]
    return float(values.median()) if len(values) else None
