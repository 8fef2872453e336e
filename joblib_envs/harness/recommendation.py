"""One sentence that says what to use, and the line of code for it."""

from __future__ import annotations

from joblib_envs.equality import Verdict
from joblib_envs.harness.contenders import BASELINE, all_contenders
from joblib_envs.harness.environments import EnvironmentSource
from joblib_envs.harness.records import NOT_RUN
from joblib_envs.harness.summary import CellSummary, Line

__all__ = ["recommend"]

IN_PROCESS = (BASELINE, "gymnasium_sync")


def recommend(cell: CellSummary, source: EnvironmentSource) -> tuple[str, str]:
    """Return the sentence, and the code to paste (empty where there is nothing to recommend)."""
    timed = sorted((line for line in cell.lines if line.env_steps_per_s), key=_median, reverse=True)
    if not timed:
        return _without_times(cell), ""
    best = timed[0]
    ours = next((line for line in timed if line.ours), None)
    if best.contender in IN_PROCESS:
        kept = next((line for line in timed if line.contender == "gymnasium_sync"), ours or best)
        sentence = f"Nothing parallel pays here: the fastest is {_speed(best)}, so stay in one process."
        return f"{sentence}{_ours_beside(ours, best)}", _code(kept, cell, source)
    if not best.ours:
        hint = f" It had n_jobs={cell.n_jobs}; more may pay where steps wait." if cell.n_jobs < cell.num_envs else ""
        sentence = f"The fastest here is {_speed(best)}.{_ours_beside(ours, best)}{hint if ours else ''}"
        return sentence, _code(best, cell, source)
    others = next((line for line in timed if not line.ours), None)
    versus = f" ({_median(best) / _median(others):.2g} times {others.title})" if others else ""
    tied = "" if others is None or not _overlap(best, others) else ", though the intervals overlap"
    return f"Use {_speed(best)}: the fastest that is correct here{versus}{tied}.", _code(best, cell, source)


def _without_times(cell: CellSummary) -> str:
    verdicts = {line.verdict for line in cell.lines}
    if Verdict.NOT_REPRODUCIBLE in verdicts and Verdict.CORRECT not in verdicts:
        return (
            "The environment differs from itself when rebuilt with the same seeds, so nothing can be called "
            "correct: draw all its random numbers from `self.np_random`."
        )
    if Verdict.CORRECT in verdicts:
        correct = [line.title for line in cell.lines if line.verdict is Verdict.CORRECT]
        return f"Correct here: {', '.join(correct)}; nothing was timed."
    if all(line.reason.startswith(NOT_RUN) for line in cell.lines):
        return "The environment itself fails, in a plain loop too: mend it first."
    return "No contender is correct here, so nothing can be recommended."


def _code(line: Line, cell: CellSummary, source: EnvironmentSource) -> str:
    contender = all_contenders().get(line.contender)
    return contender.code(source, cell.num_envs, cell.n_jobs) if contender else ""


def _ours_beside(ours: Line | None, best: Line) -> str:
    if ours is None:
        return ""
    return f" The fastest of ours is {_speed(ours)}, {_median(ours) / _median(best):.2g} times that."


def _speed(line: Line) -> str:
    return f"{line.title} with {_median(line):,.0f} steps/s"


def _median(line: Line) -> float:
    return line.env_steps_per_s.median if line.env_steps_per_s else 0.0


def _overlap(one: Line, other: Line) -> bool:
    a, b = one.env_steps_per_s, other.env_steps_per_s
    return bool(a and b and a.low <= b.high and b.low <= a.high)
