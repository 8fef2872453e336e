"""The look of all charts: sizes, fonts, and colours that colour-blind readers can tell apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from joblib_envs.equality import Verdict

__all__ = ["BASELINE_COLOUR", "CELL_LOOKS", "OTHERS_COLOUR", "OURS_COLOUR", "RC", "VERDICT_LOOKS", "CellLook", "Look"]

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
