"""Draws a study of scaling: cross-overs, scaling, and where a step's time goes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, LogLocator, NullLocator

from joblib_envs.equality import Verdict
from joblib_envs.harness import style
from joblib_envs.harness.contenders import BASELINE, LIMIT
from joblib_envs.harness.results import Recorded
from joblib_envs.harness.scaling import Curve, Parts, breakdown, curve_cross_over, curves, points_of, sweep_of
from joblib_envs.harness.summary import CellSummary, Estimate, Line
from joblib_envs.harness.sweep import FACTOR_WORDS, Point, Sweep, bytes_words, time_words

__all__ = ["scaling_figures"]

STEP_COST = "step_us"
TICKS = 4.5
"""Ticks for which an axis with a logarithmic scale has room."""

LABEL_ROOM = 0.075
"""Share of the chart's width that the label of a cross-over takes."""

PARTS = {
    "environment": "environments' own time",
    "batching": "batching",
    "handover": "hand-over",
    "rest": "waiting, and the rest",
}


@dataclass(frozen=True)
class _Data:
    """What all figures of a study share."""

    sweep: Sweep
    cells: dict[Point, CellSummary]
    looks: dict[str, style.LineLook]

    @property
    def work(self) -> str:
        """What steps do, in words."""
        return {"compute": "computing", "sleep": "sleeping"}[self.sweep.base.work]

    def but(self, factor: str) -> str:
        """Return the base in words, without one factor."""
        base = self.sweep.base
        jobs = f"{base.n_jobs} worker{'s' * (base.n_jobs > 1)}"
        words = {
            "num_envs": f"{base.num_envs} environment{'s' * (base.num_envs > 1)}",
            "n_jobs": jobs,
            STEP_COST: f"{time_words(base.step_us)} a step",
            "observation_bytes": f"observations of {bytes_words(base.observation_bytes)}",
            "episode_length": f"episodes of {base.episode_length} step{'s' * (base.episode_length > 1)}",
        }
        return ", ".join(text for name, text in words.items() if name != factor)


def scaling_figures(recorded: Recorded) -> Iterator[tuple[str, Figure]]:
    """Yield the figures for which there are data: ``step-cost``, ``scaling`` and ``breakdown``."""
    sweep, cells = sweep_of(recorded), points_of(recorded)
    contenders = dict.fromkeys((line.contender, line.ours) for cell in cells.values() for line in cell.lines)
    data = _Data(sweep, cells, style.line_looks(list(contenders), BASELINE, LIMIT))
    if STEP_COST in sweep.values:
        yield "step-cost", _step_cost_figure(data)
    factors = [factor for factor in FACTOR_WORDS if factor in sweep.values and factor != STEP_COST]
    if factors:
        yield "scaling", _scaling_figure(data, factors)
    if sweep.base in cells:
        parts = breakdown(recorded, sweep.base, cells[sweep.base])
        if parts:
            yield "breakdown", _breakdown_figure(data, parts)


def _step_cost_figure(data: _Data) -> Figure:
    """Draw speed-up over the cost of a step; where it passes 1 a dotted line goes up to its value."""
    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    drawn = curves(data.cells, data.sweep, STEP_COST)
    _draw_curves(axes, data, drawn, "speed_up")
    _set_value_axis(axes, STEP_COST, [point.step_us for point in data.sweep.along(STEP_COST)])
    _set_ratio_axis(axes)
    axes.set_xlabel(f"time of a step ({data.work}), log scale")
    axes.set_ylabel("times the plain loop, log scale")
    _draw_title(figure, "Speed-up over the cost of a step", data.but(STEP_COST))
    words = (
        "Medians of the rounds, with 95 % intervals. Dotted: where a line surely passes 1, between measured points.\n"
        "Times of steps are on top of what any step in Python takes, about two microseconds."
    )
    _draw_foot(figure, _handles(data, drawn), words)
    _draw_crossings(figure, axes, data, _crossings(drawn))
    return figure


def _crossings(drawn: Sequence[Curve]) -> list[tuple[float, str]]:
    """Return the places where lines pass 1, ascending, with the contenders' names."""
    found = []
    for curve in drawn:
        place = None if curve.contender in (BASELINE, LIMIT) else curve_cross_over(curve)
        if place is not None:
            found.append((place, curve.contender))
    return sorted(found)


def _columns(rated: Sequence[tuple[float, Estimate]]) -> tuple[list[float], list[Estimate]]:
    return [value for value, _ in rated], [ratio for _, ratio in rated]


def _draw_crossings(figure: Figure, axes: Axes, data: _Data, crossings: Sequence[tuple[float, str]]) -> None:
    """Mark each place and write its value above the chart, in as many rows as neighbours need."""
    figure.draw_without_rendering()  # settles the limits of the axes
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    width = axes.transAxes.inverted().transform
    ends: list[float] = []  # where each row's last label ends
    for place, contender in crossings:
        colour = data.looks[contender].colour
        across = float(width(axes.transData.transform((place, 1.0)))[0])
        row = next((index for index, end in enumerate(ends) if across - LABEL_ROOM / 2 > end), len(ends))
        ends[row : row + 1] = [across + LABEL_ROOM / 2]
        height = 1.015 + 0.05 * row
        axes.plot([place], [1.0], "o", markersize=7, markerfacecolor="white", markeredgecolor=colour, zorder=6)
        axes.plot(
            [across, across],
            [float(width(axes.transData.transform((place, 1.0)))[1]), height],
            transform=axes.transAxes,
            color=colour,
            linestyle=":",
            linewidth=1.1,
            clip_on=False,
            zorder=1.5,
        )
        settings: Any = {"ha": "center", "va": "bottom", "fontsize": 8, "weight": "bold", "color": colour}
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        axes.text(across, height, time_words(float(f"{place:.2g}")), transform=axes.transAxes, bbox=box, **settings)


def _scaling_figure(data: _Data, factors: Sequence[str]) -> Figure:
    """Draw a column for each factor: throughput above, speed-up below."""
    figure = Figure(figsize=(max(6.2, 0.6 + 2.5 * len(factors)), 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid: Any = figure.subplots(2, len(factors), sharey="row", sharex="col", squeeze=False)
    drawn: dict[str, Curve] = {}
    for column, factor in enumerate(factors):
        above, below = grid[0][column], grid[1][column]
        along = curves(data.cells, data.sweep, factor)
        drawn |= {curve.contender: curve for curve in along}
        for axes, quantity in ((above, "env_steps_per_s"), (below, "speed_up")):
            axes.axvline(getattr(data.sweep.base, factor), color="#eeeeee", linewidth=4, zorder=0)
            _draw_curves(axes, data, along, quantity)
        _set_value_axis(below, factor, [getattr(point, factor) for point in data.sweep.along(factor)])
        below.set_xlabel(FACTOR_WORDS[factor][0])
        for axes in (above, below)[: 2 * (column > 0)]:
            axes.tick_params(axis="y", length=0)
        above.set_title(f"by {FACTOR_WORDS[factor][0]}", fontsize=9)
    grid[0][0].set_yscale("log")
    grid[0][0].yaxis.set_major_formatter(EngFormatter(sep=""))
    grid[0][0].yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    grid[0][0].yaxis.set_minor_locator(NullLocator())
    grid[0][0].set_ylabel("steps per second, log scale")
    _set_ratio_axis(grid[1][0])
    grid[1][0].set_ylabel("times the plain loop, log scale")
    _draw_title(figure, "Scaling, one factor at a time around the base", f"{data.but('')} ({data.work})")
    words = "Medians of the rounds, with 95 % intervals. Grey band: the base, the same point in all columns."
    if data.sweep.only_along:
        words += " Single marks: contenders that weren't run elsewhere."
    _draw_foot(figure, _handles(data, list(drawn.values())), words)
    return figure


def _draw_curves(axes: Axes, data: _Data, drawn: Sequence[Curve], quantity: str) -> None:
    """Draw a line with its interval for each contender; ``quantity`` is an attribute of its summaries."""
    for curve in drawn:
        look = data.looks[curve.contender]
        pairs = [
            (value, estimate)
            for value, line in zip(curve.values, curve.lines, strict=True)
            if (estimate := getattr(line, quantity)) is not None
        ]
        if curve.contender == BASELINE and quantity == "speed_up":
            axes.axhline(1.0, color=look.colour, linewidth=1.6, zorder=2)
            continue
        values, estimates = _columns(pairs)
        medians = [each.median for each in estimates]
        errors = [
            [each.median - each.low for each in estimates],
            [each.high - each.median for each in estimates],
        ]
        line: Any = {"color": look.colour, "linestyle": look.dashes, "linewidth": 1.4}
        marks: Any = {"marker": look.marker, "markersize": 4.5, "elinewidth": 0.9, "capsize": 2.0}
        axes.errorbar(values, medians, yerr=errors, zorder=3, **line, **marks)


def _set_value_axis(axes: Axes, factor: str, values: Sequence[float]) -> None:
    """Give an axis the factor's values as ticks, as many as there is room for."""
    words = FACTOR_WORDS[factor][1]
    axes.grid(visible=True, axis="both")
    if factor == "n_jobs":
        ticks: Sequence[float] = values
    else:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        ticks = _decades(values) if factor == STEP_COST else _thinned(values)
    axes.xaxis.set_major_locator(FixedLocator(list(map(float, ticks))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
    if len(values) == 1:
        axes.set_xlim(values[0] / 2, values[0] * 2)


def _decades(values: Sequence[float]) -> list[float]:
    """Return the powers of ten in reach of the values, or the values where there is only one."""
    tens = [10.0**power for power in range(-3, 10) if min(values) <= 10.0**power * 1.001 <= max(values) * 1.002]
    return tens if len(tens) > 1 else list(values)


def _thinned(values: Sequence[float]) -> list[float]:
    """Return the first and the last value, and those between that are far enough from their neighbours."""
    room = math.log(values[-1] / values[0]) / TICKS
    ticks = [values[0]]
    for value in values[1:-1]:
        if math.log(value / ticks[-1]) >= room <= math.log(values[-1] / value):
            ticks.append(value)
    return list(dict.fromkeys([*ticks, values[-1]]))


def _set_ratio_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))


def _draw_title(figure: Figure, title: str, base: str) -> None:
    """Write what is shown, and below it around which point."""
    figure.suptitle(f"{title}\n", x=0.01, ha="left", fontsize=10, linespacing=1.3)
    top = 1 - 0.27 / figure.get_figheight()
    figure.text(0.01, top, base, ha="left", va="top", fontsize=8, color="#333333")


def _handles(data: _Data, drawn: Sequence[Curve]) -> list[Line2D | Patch]:
    """Return what a legend shows: the lines, and those that were never timed with their verdict."""
    handles: list[Line2D | Patch] = []
    for curve in drawn:
        look = data.looks[curve.contender]
        settings: Any = {"marker": look.marker, "linestyle": look.dashes, "markersize": 4.5}
        handles.append(Line2D([], [], color=look.colour, linewidth=1.4, label=curve.title, **settings))
    for line in _never_timed(data, {curve.contender for curve in drawn}):
        swatch = style.VERDICT_LOOKS[line.verdict]
        label = f"{line.title}: {line.verdict.replace('_', ' ')}"
        handles.append(Patch(facecolor="white", edgecolor=swatch.colour, hatch=swatch.hatch, label=label))
    return handles


def _draw_foot(figure: Figure, handles: Sequence[Line2D | Patch], words: str, columns: int = 3) -> None:
    """Put the legend below the charts, and under it the words on what is drawn."""
    height_in = figure.get_figheight()
    words_in = 0.06 + 0.125 * len(words.splitlines())
    foot_in = words_in + 0.08 + 0.19 * -(-len(handles) // columns)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0.008, foot_in / height_in, 0.984, 1 - foot_in / height_in))
    place: Any = {"loc": "lower center", "bbox_to_anchor": (0.5, words_in / height_in), "borderaxespad": 0.2}
    figure.legend(handles=handles, ncols=columns, fontsize=8, **place)
    figure.text(0.01, 0.06 / height_in, words, va="bottom", fontsize=7, color="#333333", linespacing=1.25)


def _never_timed(data: _Data, timed: set[str]) -> Iterator[Line]:
    """Yield the contenders without a line, each once, with its first verdict."""
    seen = set(timed)
    for cell in data.cells.values():
        for line in cell.lines:
            if line.contender not in seen and line.verdict is not Verdict.CORRECT:
                seen.add(line.contender)
                yield line


def _breakdown_figure(data: _Data, parts: Sequence[Parts]) -> Figure:
    """Draw a bar for each contender, divided into the parts of a call, the call's time beside it."""
    figure = Figure(figsize=(7.5, max(3.4, 2.2 + 0.32 * len(parts))), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for row, each in enumerate(parts):
        left = 0.0
        for name in PARTS:
            share = 100 * (getattr(each, f"{name}_s") or 0.0) / each.total.median
            axes.barh(row, share, left=left, height=0.65, color=style.PART_COLOURS[name], edgecolor="white")
            if share >= 7:
                ink = "white" if name == "environment" else "black"
                axes.text(left + share / 2, row, f"{share:.0f} %", ha="center", va="center", fontsize=8, color=ink)
            left += share
        axes.text(101.5, row, _total_words(each), va="center", fontsize=8)
    axes.set_yticks(range(len(parts)), [each.title for each in parts])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))
    axes.set_xlabel("share of the time of one step() of the batch")
    axes.text(101.5, -0.62, "time of a call", va="bottom", fontsize=8, color="#333333")
    _draw_title(figure, "Where a step's time goes", f"{data.but('')} ({data.work})")
    handles = [Patch(color=style.PART_COLOURS[name], label=label) for name, label in PARTS.items()]
    _draw_foot(figure, handles, _breakdown_words(parts), columns=len(handles))
    return figure


def _total_words(each: Parts) -> str:
    """Return a call's time, with its interval."""
    low, median, high = (f"{value * 1e3:.3g}" for value in (each.total.low, each.total.median, each.total.high))
    return f"{median} ms ({low}..{high})"


def _breakdown_words(parts: Sequence[Parts]) -> str:
    """Say how each part is measured."""
    workers = max(each.workers for each in parts)
    divided = f", divided by {workers} where {workers} workers step at once" if workers > 1 else ""
    return (
        "An empty call is a step() of environments that do nothing, with observations of the same size (the median of "
        "all points with such batches).\n"
        f"Environments' own time: a call of the plain loop less its empty call{divided}.\n"
        f"Batching: the plain loop's empty call{', divided alike' * (workers > 1)}. "
        "Hand-over: what the contender's own empty call takes beyond that.\n"
        "The rest: what its call takes beyond all these: waiting for the slowest worker, a processor or the "
        "interpreter lock.\nTime of a call: median of the rounds and 95 % interval."
    )
