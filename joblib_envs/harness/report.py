"""What a run says in the terminal: the table, the reasons, the recommendation; or JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from joblib_envs.equality import Verdict
from joblib_envs.harness.recommendation import ratio_words, recommend
from joblib_envs.harness.records import NOT_JUDGED
from joblib_envs.harness.results import Recorded
from joblib_envs.harness.scaling_report import print_scaling
from joblib_envs.harness.study import Study
from joblib_envs.harness.summary import CellSummary, Estimate, Line, summarise
from joblib_envs.harness.travel_report import print_travel, travel_as_json

__all__ = ["console_on", "print_results", "results_as_json"]

PLAIN_WIDTH = 120

LEGEND = (
    "speed-up: times the plain loop in the same round. start: build and first reset.",
    "call: one step() of environments that do nothing, so the contender's own cost. memory: of all its processes,",
    "what they share counted once.",
)
LEGEND_OF_LIMIT = "of limit: of what as many processes reach that exchange nothing."

STYLES = {Verdict.CORRECT: "green", Verdict.WRONG: "bold red", Verdict.REFUSED: "yellow"}


def console_on(*, stderr: bool) -> Console:
    """Return a console; where there is no terminal it is wide enough for the table."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=PLAIN_WIDTH)


def print_results(recorded: Recorded, console: Console) -> None:
    """Print the tables of a study's results, the reasons below, and what follows from them."""
    PRINTERS[recorded.study.measure](recorded, console)


def results_as_json(recorded: Recorded) -> dict[str, Any]:
    """Return everything that is printed, ready for JSON."""
    return AS_JSON[recorded.study.measure](recorded)


def _print_speed(recorded: Recorded, console: Console) -> None:
    """Print each cell's table, the reasons below it, and what to use."""
    for cell in summarise(recorded):
        if cell.fault:
            continue  # the caller tells it as an error, once
        console.print(_table(cell))
        if any(line.env_steps_per_s for line in cell.lines):
            has_limit = any(line.of_limit for line in cell.lines)
            legend = (*LEGEND, LEGEND_OF_LIMIT) if has_limit else LEGEND
            console.print("\n".join(legend), style="dim", highlight=False)
        for titles, verdict, reason in _reasons(cell):
            console.print(f"  {escape(titles)}: {verdict}: {escape(reason)}", highlight=False)
        sentence, code = recommend(cell, _source(recorded.study, cell))
        console.print(f"\n{escape(sentence)}", highlight=False)
        if code:
            console.print(escape("\n".join(f"    {row}" for row in code.splitlines())), highlight=False, soft_wrap=True)


def _speed_as_json(recorded: Recorded) -> dict[str, Any]:
    cells = []
    for cell in summarise(recorded):
        sentence, code = recommend(cell, _source(recorded.study, cell))
        cells.append(asdict(cell) | {"recommendation": sentence, "code": code})
    return {"study": recorded.study.name, "cells": cells, "machine": recorded.machine}


def _reasons(cell: CellSummary) -> Iterator[tuple[str, Verdict, str]]:
    """Yield each reason once, with the titles of all that share it."""
    grouped: dict[tuple[Verdict, str], list[str]] = {}
    for line in cell.lines:
        if line.verdict is not Verdict.CORRECT and line.reason != NOT_JUDGED:
            grouped.setdefault((line.verdict, line.reason), []).append(line.title)
    for (verdict, reason), titles in grouped.items():
        yield ", ".join(titles), verdict, reason


def _source(study: Study, cell: CellSummary) -> Any:
    return next(source for source in study.environments if source.label == cell.environment)


def _table(cell: CellSummary) -> Table:
    """Return the table; columns in which nobody has a number are left out, to fit 80 characters."""
    table = Table(
        title=escape(cell.title), box=box.SIMPLE_HEAD, title_justify="left", padding=0, pad_edge=False, show_edge=False
    )  # fmt: skip
    table.add_column("contender", overflow="fold", min_width=15)
    table.add_column("verdict", no_wrap=True)
    columns = [(heading, [number(line) for line in cell.lines]) for heading, number in NUMBERS.items()]
    columns = [(heading, texts) for heading, texts in columns if any(texts)]
    for heading, _ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row, line in enumerate(cell.lines):
        style = STYLES.get(line.verdict, "magenta")
        numbers = (texts[row] or "-" for _, texts in columns)
        said = "not judged" if line.reason == NOT_JUDGED else line.verdict
        table.add_row(escape(line.title), f"[{style}]{said}[/]", *numbers)
    return table


def _interval(estimate: Estimate) -> str:
    return f"{ratio_words(estimate.low)}..{ratio_words(estimate.high)}"


def _short(value: float) -> str:
    """Return three digits, with k for thousands and M for millions."""
    for factor, unit in ((1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def _ratio(estimate: Estimate | None) -> str:
    return f"{ratio_words(estimate.median)}" if estimate else ""


NUMBERS: dict[str, Callable[[Line], str]] = {
    "steps/s": lambda line: _short(line.env_steps_per_s.median) if line.env_steps_per_s else "",
    "speed\n-up": lambda line: f"{ratio_words(line.speed_up.median)}x" if line.speed_up else "",
    "95 %\ninterval": lambda line: _interval(line.speed_up) if line.speed_up else "",
    "of\nlimit": lambda line: _ratio(line.of_limit),
    "times\nSync": lambda line: _ratio(line.of_sync),
    "times\nAsync": lambda line: _ratio(line.of_async),
    "start\nms": lambda line: f"{line.start_up_s * 1e3:,.0f}" if line.start_up_s is not None else "",
    "call\nµs": lambda line: _short(line.empty_call_s * 1e6) if line.empty_call_s is not None else "",
    "memory\nMB": lambda line: f"{line.memory_bytes / 1e6:,.0f}" if line.memory_bytes is not None else "",
}
"""The columns of numbers; empty where something wasn't measured."""

PRINTERS: Mapping[str, Callable[[Recorded, Console], None]] = {
    "speed": _print_speed,
    "scaling": print_scaling,
    "travel": print_travel,
}
AS_JSON: Mapping[str, Callable[[Recorded], dict[str, Any]]] = {
    "speed": _speed_as_json,
    "scaling": _speed_as_json,
    "travel": travel_as_json,
}
"""What prints and what returns the results, by what the study measures."""
