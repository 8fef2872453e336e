"""Draws which ways to copy an environment are right: a row for each environment, a column for each way."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from joblib_envs.equality import Verdict
from joblib_envs.harness.results import Recorded
from joblib_envs.harness.style import CELL_LOOKS, CellLook
from joblib_envs.harness.travel_methods import METHODS
from joblib_envs.harness.travel_summary import Copying, Row, families, short_bytes, short_time, summarise_travel

__all__ = ["CELL_ID", "cell_words", "travel_figures"]

ROW_IN, COLUMN_IN, FAMILY_IN, LABELS_IN = 0.2, 1.32, 0.09, 1.5
HEAD_IN, FOOT_IN = 0.55, 0.62
TEXT = 7.0
GAP = FAMILY_IN / ROW_IN
CELL_ID = "cell"
"""Marks the words of a cell in the figure and the SVG."""

EXPLAINED = {
    Verdict.CORRECT: "goes on bit for bit",
    Verdict.WRONG: "silently wrong",
    Verdict.RAISES: "raises an error",
    Verdict.REFUSED: "refused, with the reason",
    Verdict.HANGS: "hangs",
    Verdict.NOT_REPRODUCIBLE: "differs from itself",
    Verdict.UNAVAILABLE: "can't be made here",
    Verdict.INCOMPLETE: "not tried",
}
NUMBERS = (
    "Where right: bytes that travel each time (+ those that travel once for each worker), and the median time to copy "
    "and restore."
)
MOMENTS_IN_WORDS = (
    "Where wrong: the moments at which a copy is wrong; at the others it raises or is right (make: just made; "
    "reset: just reset; mid: in mid-episode; end: an episode has ended)."
)


def travel_figures(recorded: Recorded) -> Iterator[tuple[str, Figure]]:
    """Yield a heat map of the environments as they are, and one of those in further wrappers, where there are any."""
    rows = summarise_travel(recorded)
    for stem, title, chosen in (
        ("travel", "Does a copy go on bit for bit?", [row for row in rows if not row.is_wrapped]),
        ("travel-wrapped", "Does a copy go on bit for bit, in wrappers?", [row for row in rows if row.is_wrapped]),
    ):
        if chosen:
            yield stem, _figure(title, _versions(recorded), chosen)


def _versions(recorded: Recorded) -> str:
    """Name what was measured, where its version may decide."""
    packages = recorded.machine.get("packages", {})
    return ", ".join(f"{name} {packages[name]}" for name in ("gymnasium", "mujoco", "ale-py") if name in packages)


def _figure(title: str, versions: str, rows: Sequence[Row]) -> Figure:
    groups = families(rows)
    methods = [copying.method for copying in max((row.copyings for row in rows), key=len)]
    height = len(rows) + GAP * (len(groups) - 1)
    labels_in = max(LABELS_IN, 0.051 * max(len(line) for row in rows for line in _label(row).splitlines()) + 0.15)
    family_in = 0.075 * max(len(line) for family, _ in groups for line in _folded(family)) + 0.1
    width_in = family_in + labels_in + COLUMN_IN * len(methods) + 0.05
    height_in = HEAD_IN + ROW_IN * height + FOOT_IN
    figure = Figure(figsize=(width_in, height_in))
    FigureCanvasAgg(figure)
    left = (family_in + labels_in) / width_in
    axes = figure.add_axes(
        (left, FOOT_IN / height_in, COLUMN_IN * len(methods) / width_in, ROW_IN * height / height_in)
    )
    axes.set(xlim=(0, len(methods)), ylim=(height, 0))
    axes.axis("off")
    figure.text(0.08 / width_in, 1 - 0.08 / height_in, title, va="top", fontsize=10)
    figure.text(1 - 0.05 / width_in, 1 - 0.1 / height_in, versions, va="top", ha="right", fontsize=6.5, color="#666666")
    for column, name in enumerate(methods):
        axes.text(column + 0.5, -0.25, METHODS[name].title, ha="center", va="bottom", fontsize=8, weight="bold")
    top = 0.0
    for family, members in groups:
        _draw_family(axes, family, top, len(members), -labels_in / COLUMN_IN)
        for row in members:
            axes.text(-0.06, top + 0.5, _label(row), ha="right", va="center", fontsize=TEXT)
            for copying in row.copyings:
                _draw_cell(axes, methods.index(copying.method), top, copying)
            top += 1
        top += GAP
    _draw_legend(figure, rows, (width_in, height_in))
    return figure


def _draw_family(axes: Axes, family: str, top: float, count: int, right: float) -> None:
    lines = _folded(family)
    size = 6.3 if len(lines) > count else 7.5  # two lines beside one row
    place: dict[str, Any] = {"ha": "right", "va": "center", "linespacing": 1.05}
    axes.text(right - 0.03, top + count / 2, "\n".join(lines), fontsize=size, weight="bold", **place)
    axes.plot([right + 0.01] * 2, [top + 0.08, top + count - 0.08], color="#999999", linewidth=1.2, clip_on=False)


def _draw_cell(axes: Axes, column: int, top: float, copying: Copying) -> None:
    look = CELL_LOOKS[copying.verdict]
    _draw_box(axes, column + 0.01, top + 0.05, 0.98, look)
    settings: Any = {"va": "center", "color": look.ink, "fontsize": TEXT - 0.5}
    axes.text(column + 0.065, top + 0.52, look.symbol, ha="center", **settings | {"fontsize": TEXT + 0.5})
    words, time = cell_words(copying)
    axes.text(column + 0.13, top + 0.52, words, ha="left", gid=CELL_ID, **settings)
    axes.text(column + 0.97, top + 0.52, time, ha="right", **settings)


def cell_words(copying: Copying) -> tuple[str, str]:
    """Return what a cell says: a verdict, or what a right copy costs, in bytes and in time."""
    if copying.verdict is not Verdict.CORRECT:
        word = copying.verdict.replace("_", " ")
        return f"{word}: {', '.join(copying.moments)}" if copying.moments else word, ""
    size = "" if copying.payload_bytes is None else short_bytes(copying.payload_bytes)
    once = f" +{short_bytes(copying.shared_bytes)}" if copying.shared_bytes else ""
    return size + once, "" if copying.total_s is None else short_time(copying.total_s)


def _draw_box(axes: Axes, x: float, y: float, width: float, look: CellLook) -> None:
    box = Rectangle((x, y), width, 0.9, facecolor=look.fill, edgecolor=look.edge, hatch=look.hatch, linewidth=0.6)
    axes.add_patch(box)


def _label(row: Row) -> str:
    return row.environment


def _folded(text: str) -> list[str]:
    return textwrap.wrap(text, 14, break_long_words=False) or [""]


def _draw_legend(figure: Figure, rows: Sequence[Row], size: tuple[float, float]) -> None:
    """Explain the verdicts that occur, the numbers and the moments."""
    verdicts = [each for each in EXPLAINED if any(copying.verdict is each for row in rows for copying in row.copyings)]
    axes = figure.add_axes((0, 0, 1, FOOT_IN / size[1]))
    axes.set(xlim=(0, size[0] / ROW_IN), ylim=(FOOT_IN / ROW_IN, 0))
    axes.axis("off")
    across = 0.5
    for verdict in verdicts:
        look = CELL_LOOKS[verdict]
        _draw_box(axes, across, 0.45, 1.1, look)
        axes.text(across + 0.55, 0.92, look.symbol, ha="center", va="center", fontsize=TEXT, color=look.ink)
        axes.text(across + 1.35, 0.92, EXPLAINED[verdict], va="center", fontsize=TEXT)
        across += 2.0 + 0.285 * len(EXPLAINED[verdict])
    axes.text(0.5, 1.95, NUMBERS, va="center", fontsize=TEXT - 0.3, color="#333333")
    axes.text(0.5, 2.75, MOMENTS_IN_WORDS, va="center", fontsize=TEXT - 0.3, color="#333333")
