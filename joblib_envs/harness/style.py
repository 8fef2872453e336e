"""The look of all charts: sizes, fonts, and colours that colour-blind readers can tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from joblib_envs.equality import Verdict

__all__ = [
    "BASELINE_COLOUR",
    "CELL_LOOKS",
    "OTHERS_COLOUR",
    "OURS_COLOUR",
    "PART_COLOURS",
    "RC",
    "VERDICT_LOOKS",
    "CellLook",
    "LineLook",
    "Look",
    "line_looks",
]

# Okabe and Ito's palette.
OURS_COLOUR, OTHERS_COLOUR, BASELINE_COLOUR = "#0072B2", "#E69F00", "#777777"

RC: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "svg.hashsalt": "joblib-envs",  # equal data give equal files
}


@dataclass(frozen=True)
class Look:
    """How a verdict without a throughput is drawn: hatching, colour and a word."""

    hatch: str
    colour: str


VERDICT_LOOKS = {
    Verdict.WRONG: Look("xxxx", "#D55E00"),
    Verdict.REFUSED: Look("....", "#56B4E9"),
    Verdict.RAISES: Look("////", "#CC79A7"),
    Verdict.HANGS: Look("||||", "#CC79A7"),
    Verdict.NOT_REPRODUCIBLE: Look("++", "#009E73"),
    Verdict.UNAVAILABLE: Look("", "#bbbbbb"),
    Verdict.INCOMPLETE: Look("--", "#bbbbbb"),
    Verdict.CORRECT: Look("", "#bbbbbb"),
}


@dataclass(frozen=True)
class CellLook:
    """How a verdict is drawn in a heat map: also without colours it is told by its symbol, hatching and word."""

    symbol: str
    fill: str
    edge: str
    ink: str = "black"
    hatch: str = ""


CELL_LOOKS = {
    Verdict.CORRECT: CellLook("✓", "#cfe4f3", "#cfe4f3"),
    Verdict.WRONG: CellLook("✗", "#c44e00", "#c44e00", ink="white"),
    Verdict.RAISES: CellLook("!", "#f7dfa3", "#eecb6e", hatch="/////"),
    Verdict.REFUSED: CellLook("⊘", "#ececec", "#cccccc", hatch="....."),
    Verdict.HANGS: CellLook("…", "#f7dfa3", "#eecb6e", hatch="|||||"),
    Verdict.NOT_REPRODUCIBLE: CellLook("?", "#ffffff", "#b9dccf", hatch="xxxxx"),
    Verdict.UNAVAILABLE: CellLook("∅", "#ffffff", "#dddddd", ink="#777777"),
    Verdict.INCOMPLETE: CellLook("~", "#ffffff", "#dddddd", ink="#777777", hatch="-----"),
}


@dataclass(frozen=True)
class LineLook:
    """How a contender's line is drawn: also without colours it is told by its marker and dashes."""

    colour: str
    marker: str
    dashes: str = "-"


BASELINE_LOOK = LineLook(BASELINE_COLOUR, "")
LIMIT_LOOK = LineLook("black", "", ":")
OURS_LOOKS = (
    LineLook("#0072B2", "o"),
    LineLook("#56B4E9", "s"),
    LineLook("#009E73", "^", "--"),
    LineLook("#004166", "D", "--"),
    LineLook("#7FB77E", "v", "-."),
)
OTHERS_LOOKS = (
    LineLook("#E69F00", "X"),
    LineLook("#D55E00", "P", "--"),
    LineLook("#CC79A7", "*", "-."),
    LineLook("#8C5A2B", "<", "--"),
    LineLook("#B8A000", ">", "-."),
)

PART_COLOURS = {"environment": "#0072B2", "batching": "#56B4E9", "handover": "#E69F00", "rest": "#dddddd"}
"""Parts of a step's time; light and dark take turns."""


def line_looks(contenders: Sequence[tuple[str, bool]], baseline: str, limit: str) -> dict[str, LineLook]:
    """Return the look of each contender, given as its name and whether it is ours; blues and greens are ours."""
    looks = {baseline: BASELINE_LOOK, limit: LIMIT_LOOK}
    taken = {True: 0, False: 0}
    for name, ours in contenders:
        if name not in looks:
            family = OURS_LOOKS if ours else OTHERS_LOOKS
            looks[name] = family[taken[ours] % len(family)]
            taken[ours] += 1
    return looks
