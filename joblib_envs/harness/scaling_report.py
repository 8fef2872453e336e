"""What a study of scaling says in the terminal: a table of speed-ups for each factor, and the cross-overs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from joblib_envs.equality import Verdict
from joblib_envs.harness.contenders import BASELINE, LIMIT
from joblib_envs.harness.recommendation import ratio_words
from joblib_envs.harness.results import Recorded
from joblib_envs.harness.scaling import curve_cross_over, curves, points_of, sweep_of
from joblib_envs.harness.summary import CellSummary, Line
from joblib_envs.harness.sweep import FACTOR_WORDS, Point, Sweep, time_words

__all__ = ["print_scaling"]


def print_scaling(recorded: Recorded, console: Console) -> None:
    """Print speed-ups along each factor, where steps begin to pay, and the reasons of what isn't correct."""
    sweep, cells = sweep_of(recorded), points_of(recorded)
    for factor in sweep.values:
        console.print(_table(cells, sweep, factor))
    console.print("\nTimes the plain loop in the same round; a dash: not run there, or not correct.", style="dim")
    for sentence in _cross_overs(cells, sweep):
        console.print(escape(sentence), highlight=False)
    for title, verdict, reason in _reasons(cells):
        console.print(f"  {escape(title)}: {verdict}: {escape(reason)}", highlight=False)


def _table(cells: Mapping[Point, CellSummary], sweep: Sweep, factor: str) -> Table:
    title, words = FACTOR_WORDS[factor]
    settings: Any = {"title_justify": "left", "padding": (0, 1, 0, 0), "pad_edge": False, "show_edge": False}
    table = Table(title=f"\nSpeed-up by {title}", box=box.SIMPLE_HEAD, **settings)
    table.add_column("contender", overflow="fold", min_width=15)
    points = [point for point in sweep.along(factor) if point in cells]
    for point in points:
        table.add_column(words(getattr(point, factor)), justify="right", no_wrap=True)
    names = dict.fromkeys(line.contender for point in points for line in cells[point].lines)
    for name in names:
        lines = [_line(cells[point], name) for point in points]
        title = next(line.title for line in lines if line is not None)
        table.add_row(escape(title), *(_ratio(line) for line in lines))
    return table


def _line(cell: CellSummary, name: str) -> Line | None:
    return next((line for line in cell.lines if line.contender == name), None)


def _ratio(line: Line | None) -> str:
    return "-" if line is None or line.speed_up is None else f"{ratio_words(line.speed_up.median)}x"


def _cross_overs(cells: Mapping[Point, CellSummary], sweep: Sweep) -> Iterator[str]:
    """Say from which step cost on each contender is faster than the plain loop."""
    if "step_us" not in sweep.values:
        return
    for curve in curves(cells, sweep, "step_us"):
        if curve.contender in (BASELINE, LIMIT):
            continue
        place = curve_cross_over(curve)
        ratios = [line.speed_up for line in curve.lines if line.speed_up is not None]
        if place is not None:
            yield f"{curve.title}: faster than the plain loop from {time_words(float(f'{place:.2g}'))} a step on."
        elif ratios and ratios[0].low > 1:
            yield f"{curve.title}: faster than the plain loop from the cheapest step on."
        else:
            yield f"{curve.title}: nowhere surely faster than the plain loop."


def _reasons(cells: Mapping[Point, CellSummary]) -> Iterator[tuple[str, Verdict, str]]:
    """Yield each contender's reasons once, with the first cell that has them."""
    seen: set[tuple[str, str]] = set()
    lines: Sequence[tuple[CellSummary, Line]] = [(cell, line) for cell in cells.values() for line in cell.lines]
    for cell, line in lines:
        if line.verdict is not Verdict.CORRECT and (line.contender, line.reason) not in seen:
            seen.add((line.contender, line.reason))
            yield f"{line.title} ({cell.title})", line.verdict, line.reason
