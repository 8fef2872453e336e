"""Draws a study's charts from its recorded data alone."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter

from joblib_envs.equality import Verdict
from joblib_envs.harness import style
from joblib_envs.harness.contenders import BASELINE
from joblib_envs.harness.heat_map import travel_figures
from joblib_envs.harness.results import Recorded
from joblib_envs.harness.scaling_charts import scaling_figures
from joblib_envs.harness.summary import CellSummary, Line, summarise

__all__ = ["draw_charts"]


def draw_charts(recorded: Recorded, folder: Path) -> list[Path]:
    """Write the charts of a study's results, as PNG and SVG.

    Args:
        recorded: The results.
        folder: Where they go. Of speed: a bar chart of throughput for each cell, ``throughput.png``
            and ``.svg``; with several cells the cell is part of the name. Of scaling: speed-up over
            the cost of a step, ``step-cost``, over the other factors, ``scaling``, and the parts of
            a step's time, ``breakdown``. Of travel: heat maps of
            verdicts, sizes and times, ``travel.png`` and ``.svg``, and ``travel-wrapped``.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with matplotlib.rc_context(style.RC):
        for stem, figure in FIGURES[recorded.study.measure](recorded):
            for suffix, metadata in ((".png", {}), (".svg", {"Date": None})):
                path = folder / f"{stem}{suffix}"
                figure.savefig(path, metadata=metadata)
                written.append(path)
    return written


def _throughput_figures(recorded: Recorded) -> Iterator[tuple[str, Figure]]:
    cells = summarise(recorded)
    for cell in cells:
        words = "" if len(cells) == 1 else f"-{cell.environment}-{cell.num_envs}-envs-{cell.n_jobs}-jobs"
        yield "throughput" + re.sub(r"[^A-Za-z0-9.]+", "-", words), _throughput_figure(cell)


def _throughput_figure(cell: CellSummary) -> Figure:
    """Draw one bar per contender; without a throughput a hatched band says why."""
    figure = Figure(figsize=(7.0, 1.5 + 0.3 * len(cell.lines)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    longest = max((line.env_steps_per_s.high for line in cell.lines if line.env_steps_per_s), default=1.0)
    for row, line in enumerate(cell.lines):
        if line.env_steps_per_s:
            _draw_bar(axes, row, line, longest)
        else:
            _draw_band(axes, row, line, longest)
    axes.set_yticks(range(len(cell.lines)), [line.title for line in cell.lines])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, longest * 1.28)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("steps per second (median, 95 % interval; x: times the plain loop)")
    axes.set_title("\n".join(textwrap.wrap(cell.title, 80)))
    _draw_legend(figure, cell)
    return figure


def _draw_bar(axes: Axes, row: int, line: Line, longest: float) -> None:
    estimate = line.env_steps_per_s
    if estimate is None:
        return
    errors = [[estimate.median - estimate.low], [estimate.high - estimate.median]]
    axes.barh(row, estimate.median, height=0.65, color=_colour(line))
    axes.errorbar(estimate.median, row, xerr=errors, color="black", capsize=2.5, linewidth=0.9)
    ratio = f"  {line.speed_up.median:.2g}x" if line.speed_up else ""
    text = f"{EngFormatter(places=None, sep='')(_rounded(estimate.median))}{ratio}"
    axes.text(max(estimate.high, estimate.median) + 0.012 * longest, row, text, va="center", fontsize=8)


def _draw_band(axes: Axes, row: int, line: Line, longest: float) -> None:
    look = style.VERDICT_LOOKS[line.verdict]
    width = longest * 0.07  # a swatch, too short to be taken for a measurement
    axes.barh(row, width, height=0.65, facecolor="white", edgecolor=look.colour, hatch=look.hatch, linewidth=0.9)
    words = "" if line.verdict is Verdict.CORRECT else f"{line.verdict.replace('_', ' ')}, so "
    axes.text(width + 0.012 * longest, row, f"{words}not timed", va="center", fontsize=8)


def _draw_legend(figure: Figure, cell: CellSummary) -> None:
    handles = [
        Patch(color=colour, label=label)
        for colour, label in (
            (style.BASELINE_COLOUR, "plain loop"),
            (style.OTHERS_COLOUR, "others, correct"),
            (style.OURS_COLOUR, "BatchEnv, correct"),
        )
        if any(line.env_steps_per_s and _colour(line) == colour for line in cell.lines)
    ]
    for verdict in dict.fromkeys(line.verdict for line in cell.lines if line.verdict is not Verdict.CORRECT):
        look = style.VERDICT_LOOKS[verdict]
        label = verdict.replace("_", " ")
        handles.append(Patch(facecolor="white", edgecolor=look.colour, hatch=look.hatch, label=label))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 6), fontsize=8)


def _colour(line: Line) -> str:
    if line.contender == BASELINE:
        return style.BASELINE_COLOUR
    return style.OURS_COLOUR if line.ours else style.OTHERS_COLOUR


def _rounded(value: float) -> Any:
    return float(f"{value:.3g}")


FIGURES: Mapping[str, Callable[[Recorded], Iterator[tuple[str, Figure]]]] = {
    "speed": _throughput_figures,
    "scaling": scaling_figures,
    "travel": travel_figures,
}
"""Yields names and figures, by what the study measures."""
