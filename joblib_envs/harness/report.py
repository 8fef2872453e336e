"""What a run says in the terminal: the table, the reasons, the recommendation; or JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from joblib_envs.equality import Verdict
from joblib_envs.harness.recommendation import recommend
from joblib_envs.harness.results import Recorded
from joblib_envs.harness.study import Study
from joblib_envs.harness.summary import CellSummary, Estimate, Line, summarise

__all__ = ["console_on", "print_results", "results_as_json"]

PLAIN_WIDTH = 120

STYLES = {Verdict.CORRECT: "green", Verdict.WRONG: "bold red", Verdict.REFUSED: "yellow"}


def console_on(*, stderr: bool) -> Console:
    """Return a console; where there is no terminal it is wide enough for the table."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=PLAIN_WIDTH)


def print_results(recorded: Recorded, console: Console) -> None:
    """Print each cell's table, the reasons below it, and what to use."""
    for cell in summarise(recorded):
        console.print(_table(cell))
        for titles, verdict, reason in _reasons(cell):
            console.print(f"  {escape(titles)}: {verdict}: {escape(reason)}", highlight=False)
        sentence, code = recommend(cell, _source(recorded.study, cell))
        console.print(f"\n{escape(sentence)}", highlight=False)
        if code:
            console.print(escape("\n".join(f"    {row}" for row in code.splitlines())), highlight=False, soft_wrap=True)


def results_as_json(recorded: Recorded) -> dict[str, Any]:
    """Return everything the table shows, ready for JSON."""
    cells = []
    for cell in summarise(recorded):
        sentence, code = recommend(cell, _source(recorded.study, cell))
        cells.append(asdict(cell) | {"recommendation": sentence, "code": code})
    return {"study": recorded.study.name, "cells": cells, "machine": recorded.machine}


def _reasons(cell: CellSummary) -> Iterator[tuple[str, Verdict, str]]:
    """Yield each reason once, with the titles of all that share it."""
    grouped: dict[tuple[Verdict, str], list[str]] = {}
    for line in cell.lines:
        if line.verdict is not Verdict.CORRECT:
            grouped.setdefault((line.verdict, line.reason), []).append(line.title)
    for (verdict, reason), titles in grouped.items():
        yield ", ".join(titles), verdict, reason


def _source(study: Study, cell: CellSummary) -> Any:
    return next(source for source in study.environments if source.label == cell.environment)


def _table(cell: CellSummary) -> Table:
    table = Table(
        title=escape(cell.title), box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, collapse_padding=True
    )
    table.add_column("contender", overflow="fold", min_width=15)
    table.add_column("verdict", no_wrap=True)
    for heading in ("steps/s", "95 %\ninterval", "speed-up", "start-up\nms", "empty\ncall ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in cell.lines:
        style = STYLES.get(line.verdict, "magenta")
        table.add_row(escape(line.title), f"[{style}]{line.verdict}[/]", *_numbers(line))
    return table


def _numbers(line: Line) -> tuple[str, ...]:
    return (
        _short(line.env_steps_per_s.median) if line.env_steps_per_s else "-",
        _interval(line.env_steps_per_s),
        f"{line.speed_up.median:.3g}x" if line.speed_up else "-",
        f"{line.start_up_s * 1e3:,.0f}" if line.start_up_s is not None else "-",
        f"{line.empty_call_s * 1e3:.3g}" if line.empty_call_s is not None else "-",
    )


def _interval(estimate: Estimate | None) -> str:
    return f"{_short(estimate.low)}..{_short(estimate.high)}" if estimate else "-"


def _short(value: float) -> str:
    """Return three digits, with k for thousands and M for millions."""
    for factor, unit in ((1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"
