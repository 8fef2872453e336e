"""What a study of scaling found, derived from its raw samples: curves, cross-overs, parts of a step's time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from joblib_envs.harness.contenders import BASELINE, LIMIT, all_contenders
from joblib_envs.harness.records import Metric
from joblib_envs.harness.results import CELL_COLUMNS, Recorded
from joblib_envs.harness.summary import CellSummary, Estimate, Line, estimate_median, summarise
from joblib_envs.harness.sweep import Point, Sweep

__all__ = ["Curve", "Parts", "breakdown", "cross_over", "curve_cross_over", "curves", "points_of", "sweep_of"]


@dataclass(frozen=True)
class Curve:
    """One contender along one factor; only points at which it was timed.

    Attributes:
        contender: Its name.
        title: Its name for readers.
        ours: Whether it is BatchEnv.
        values: The factor's values, ascending.
        lines: What is known about it there.
    """

    contender: str
    title: str
    ours: bool
    values: tuple[float, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Parts:
    """Where the time of one ``step`` of a batch goes; the parts add up to the whole, and none is negative.

    Attributes:
        contender: The contender's name.
        title: Its name for readers.
        total: Seconds a call takes, measured.
        workers: Those among whom the environments' own time is divided.
        environment_s: The environments' own time, by the plain loop's: its call less its empty
            call, divided among the workers.
        batching_s: The plain loop's empty call, divided among the workers: observations,
            rewards and flags become one batch.
        handover_s: The rest of the contender's own empty call; None where it has none.
        rest_s: What is left: waiting for the slowest, for a processor or for the interpreter lock.
    """

    contender: str
    title: str
    total: Estimate
    workers: int
    environment_s: float
    batching_s: float
    handover_s: float | None
    rest_s: float


def sweep_of(recorded: Recorded) -> Sweep:
    """Return the sweep of a study of scaling."""
    if recorded.study.sweep is None:
        raise TypeError(f"the study {recorded.study.name!r} has no sweep: give one with measure = 'scaling'")
    return recorded.study.sweep


def points_of(recorded: Recorded) -> dict[Point, CellSummary]:
    """Return the summary of each point that was begun, in the order of the study."""
    sweep = sweep_of(recorded)
    cells = summarise(recorded)
    return {sweep.point_of(cell.environment, cell.num_envs, cell.n_jobs): cell for cell in cells}


def curves(cells: Mapping[Point, CellSummary], sweep: Sweep, factor: str) -> list[Curve]:
    """Return each contender's curve along a factor, in the order of the study."""
    along = [(float(getattr(point, factor)), cells[point]) for point in sweep.along(factor) if point in cells]
    found: dict[str, list[tuple[float, Line]]] = {}
    for value, cell in along:
        for line in cell.lines:
            known = found.setdefault(line.contender, [])
            if line.env_steps_per_s is not None:
                known.append((value, line))
    return [
        Curve(name, known[0][1].title, known[0][1].ours, *map(tuple, zip(*known, strict=True)))
        for name, known in found.items()
        if known
    ]


def cross_over(values: Sequence[float], ratios: Sequence[Estimate]) -> float | None:
    """Return where the ratio passes 1 on its way up, or None where it doesn't, or not surely.

    It passes 1 between a point that is surely below (all of its interval) and the next one that is
    surely above; points between them that are neither belong to neither side. The place is where
    the line through the medians crosses 1, both axes logarithmic as in the chart.
    """
    below: int | None = None
    for index, ratio in enumerate(ratios):
        if ratio.high < 1:
            below = index
        elif ratio.low > 1:
            return None if below is None else _passes_one(values[below : index + 1], ratios[below : index + 1])
    return None


def curve_cross_over(curve: Curve) -> float | None:
    """Return where a curve's speed-up passes 1; see :func:`cross_over`."""
    rated = [
        (value, line.speed_up)
        for value, line in zip(curve.values, curve.lines, strict=True)
        if line.speed_up is not None
    ]
    return cross_over([value for value, _ in rated], [ratio for _, ratio in rated])


def _passes_one(values: Sequence[float], ratios: Sequence[Estimate]) -> float:
    medians = [ratio.median for ratio in ratios]
    after = next(index for index in range(1, len(medians)) if medians[index] >= 1)
    (low, high), (start, end) = medians[after - 1 : after + 1], values[after - 1 : after + 1]
    share = -math.log(low) / (math.log(high) - math.log(low))
    return float(start * (end / start) ** share)


def breakdown(recorded: Recorded, point: Point, cell: CellSummary) -> list[Parts]:
    """Return the parts of a call's time at one point, of each contender that was timed there."""
    samples = recorded.measurements
    here = samples[(samples[CELL_COLUMNS] == [cell.environment, cell.num_envs, cell.n_jobs]).all(axis=1)]
    totals = {line.contender: _call_s(here, line) for line in cell.lines}
    empty = _empty_calls_s(recorded, point)
    plain_total = totals.get(BASELINE)
    if plain_total is None or BASELINE not in empty:
        return []
    batching_s = min(empty[BASELINE], plain_total.median)
    environment_s = plain_total.median - batching_s
    usable = int(recorded.machine.get("usable_threads") or point.n_jobs)
    return [
        _parts(line, total, empty.get(line.contender), _workers(line, point, usable), environment_s, batching_s)
        for line in cell.lines
        if (total := totals[line.contender]) is not None and line.contender != LIMIT
    ]


def _call_s(here: pd.DataFrame, line: Line) -> Estimate | None:
    """Return the time of a call of ``step`` in the rounds, of a contender whose data are right."""
    chosen = here[(here["contender"] == line.contender) & (here["metric"] == Metric.THROUGHPUT)]
    right = line.env_steps_per_s is not None
    return estimate_median((chosen["wall_s"] / chosen["calls"]).to_numpy(dtype=float)) if right else None


def _empty_calls_s(recorded: Recorded, point: Point) -> dict[str, float]:
    """Return each contender's empty call: the median of all points at which it does the same.

    What environments do in a step, and how long an episode is, are nothing to those that do nothing.
    """
    alike = [
        each
        for each in sweep_of(recorded).points()
        if (each.num_envs, each.n_jobs, each.observation_bytes)
        == (point.num_envs, point.n_jobs, point.observation_bytes)
    ]
    samples = recorded.measurements[recorded.measurements["metric"] == Metric.CALL]
    samples = samples[
        samples["environment"].isin([each.source.label for each in alike])
        & (samples["num_envs"] == point.num_envs)
        & (samples["n_jobs"] == point.n_jobs)
    ]
    return {str(name): float(values.median()) for name, values in samples.groupby("contender")["value"]}


def _workers(line: Line, point: Point, usable: int) -> int:
    """Return how many may step at once: workers, and no more than environments and processors."""
    contender = all_contenders().get(line.contender)
    parallel = contender is not None and contender.parallel
    return max(1, min(point.num_envs, point.n_jobs, usable)) if parallel else 1


def _parts(
    line: Line, total: Estimate, empty_s: float | None, workers: int, environment_s: float, batching_s: float
) -> Parts:
    """Divide a call's time; each part takes no more than the ones before it have left."""
    left_s = total.median
    shares: list[float] = []
    shared_batching_s = batching_s / workers if empty_s is None else min(batching_s / workers, empty_s)
    for wanted_s in (environment_s / workers, shared_batching_s, (empty_s or 0.0) - shared_batching_s):
        shares.append(min(left_s, max(0.0, wanted_s)))
        left_s -= shares[-1]
    handover_s = None if empty_s is None else shares[2]
    return Parts(line.contender, line.title, total, workers, shares[0], shares[1], handover_s, max(0.0, left_s))
