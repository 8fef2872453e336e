"""What a study of travel says in the terminal: a table, the reasons that need one, what it shows; or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from joblib_envs.equality import Verdict
from joblib_envs.harness.results import Recorded
from joblib_envs.harness.style import CELL_LOOKS
from joblib_envs.harness.travel_methods import METHODS
from joblib_envs.harness.travel_summary import (
    Copying,
    Row,
    families,
    findings_in_words,
    short_time,
    summarise_travel,
)

__all__ = ["print_travel", "travel_as_json"]

STYLES = {
    Verdict.CORRECT: "green",
    Verdict.WRONG: "bold red",
    Verdict.REFUSED: "yellow",
    Verdict.UNAVAILABLE: "dim",
}
SHORT = {Verdict.NOT_REPRODUCIBLE: "varies", Verdict.UNAVAILABLE: "not here"}
LEGEND = (
    "A time: right, and the median to copy and restore. wrong: silently, the rest is told.",
    "varies: differs from itself, so nobody can tell. not here: can't be made.",
)


def print_travel(recorded: Recorded, console: Console) -> None:
    """Print the table, why ours refused and what is missing, and what the study shows."""
    rows = summarise_travel(recorded)
    if not rows:
        return
    console.print(_table(rows))
    console.print("\n".join(LEGEND), style="dim", highlight=False)
    for reason, environments in _reasons(rows).items():
        console.print(f"  {escape(', '.join(environments))}: {escape(reason)}", highlight=False)
    console.print(f"\n{escape(findings_in_words(rows))}", highlight=False)


def travel_as_json(recorded: Recorded) -> dict[str, Any]:
    """Return everything that the table and the charts show, ready for JSON."""
    rows = summarise_travel(recorded)
    return {
        "study": recorded.study.name,
        "environments": [asdict(row) for row in rows],
        "findings": findings_in_words(rows),
        "machine": recorded.machine,
    }


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("environment", overflow="fold")
    methods = [copying.method for copying in max((row.copyings for row in rows), key=len)]
    for name in methods:
        table.add_column(METHODS[name].title.replace(": ", ":\n"), no_wrap=True)
    for family, members in families(rows):
        table.add_row(f"[bold]{escape(family)}[/]")
        for row in members:
            found = {copying.method: _cell(copying) for copying in row.copyings}
            table.add_row(f" {escape(row.environment)}", *(found.get(name, "") for name in methods))
    return table


def _cell(copying: Copying) -> str:
    verdict = copying.verdict
    words = SHORT.get(verdict, str(verdict))
    if verdict is Verdict.CORRECT and copying.total_s is not None:
        words = short_time(copying.total_s)
    return f"[{STYLES.get(verdict, 'magenta')}]{CELL_LOOKS[verdict].symbol} {words}[/]"


def _reasons(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the reasons of ours, and of what concerns all methods, each with its environments."""
    grouped: dict[str, list[str]] = {}
    for row in rows:
        for reason in dict.fromkeys(_told(row)):
            grouped.setdefault(reason, []).append(row.environment)
    return grouped


def _told(row: Row) -> Iterator[str]:
    shared = {copying.reason for copying in row.copyings}
    for copying in row.copyings:
        if copying.verdict is Verdict.CORRECT:
            continue
        if len(shared) == 1:
            yield f"{copying.verdict.replace('_', ' ')}: {copying.reason}"
        elif METHODS[copying.method].ours:
            yield f"{METHODS[copying.method].title}: {copying.verdict}: {copying.reason}"
