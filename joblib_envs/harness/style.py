"""The look of all charts: sizes, fonts, and colours that colour-blind readers can tell apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from joblib_envs.equality import Verdict

__all__ = ["BASELINE_COLOUR", "OTHERS_COLOUR", "OURS_COLOUR", "RC", "VERDICT_LOOKS", "Look"]

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
