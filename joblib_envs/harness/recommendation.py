"""A sentence or two that say what to use, and the code for it.

Whoever is compared is compared within rounds, as in the table: the machine's mood is then
nearly the same for both. The rule is that of ``backend="auto"``, with what was measured in place of what is
predicted: the simplest way is recommended unless the lower bound says that another is faster.
"""

from __future__ import annotations

from collections.abc import Sequence

from joblib_envs.choosing.decision import preferred
from joblib_envs.equality import Verdict
from joblib_envs.harness.contenders import AUTO_CONTENDER, BASELINE, LIMIT, VECTOR_FORM, all_contenders
from joblib_envs.harness.environments import EnvironmentSource
from joblib_envs.harness.summary import CellSummary, Estimate, Line, paired_ratio

__all__ = ["ratio_words", "recommend"]


def recommend(cell: CellSummary, source: EnvironmentSource) -> tuple[str, str]:
    """Return the sentences, and the code to paste (empty where there is nothing to recommend)."""
    timed = [line for line in cell.lines if line.env_steps_per_s and line.contender != LIMIT]
    if not timed:
        return _without_times(cell), ""
    auto = next((line for line in timed if line.contender == AUTO_CONTENDER), None)
    timed = [line for line in timed if line is not auto] or timed  # it is one of the others
    single = _fastest([line for line in timed if not _is_parallel(line)], timed)
    parallel = _fastest([line for line in timed if _is_parallel(line)], timed)
    chosen = preferred([line for line in (single, parallel) if line is not None], _is_faster)
    words = _go_parallel(chosen, timed, cell) if chosen is parallel else _stay(chosen, parallel, timed)
    if auto is not None and auto is not chosen:
        words.append(f'backend="auto": {_times(auto, chosen)}.')
    contender = all_contenders().get(chosen.contender)
    return " ".join(words), contender.code(source, cell.num_envs, cell.n_jobs) if contender else ""


def ratio_words(value: float) -> str:
    """Return a ratio as the table and the sentences show it."""
    if value < 0.01:
        return f"{value:.1g}"
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def _stay(chosen: Line, parallel: Line | None, timed: Sequence[Line]) -> list[str]:
    """Say that one process is the right place, and how near the parallel ways came."""
    if parallel is None:
        return [f"Use {_described(chosen, timed)}; nothing parallel was timed."]
    ratio = paired_ratio(parallel, chosen)
    if ratio is None or ratio.high < 1:
        pays = "Nothing parallel pays here"
    else:
        pays = "Nothing parallel surely pays here (the intervals overlap)"
    words = [f"{pays}: stay in one process, with {_described(chosen, timed)}."]
    words.append(f"The fastest in parallel is {parallel.title}: {_times(parallel, chosen)}.")
    ours = _fastest([line for line in timed if line.ours], timed)
    if ours is not None and ours not in (chosen, parallel):
        words.append(f"The fastest of ours is {ours.title}: {_times(ours, chosen)}.")
    form = next((line for line in timed if line.contender == VECTOR_FORM), None)
    if chosen.contender == BASELINE and form is not None:
        words.append(f"As one vector environment, {form.title}: {_times(form, chosen)}.")
    return words


def _go_parallel(chosen: Line, timed: Sequence[Line], cell: CellSummary) -> list[str]:
    """Say what pays, against whom, and who is as fast."""
    words = [f"Use {_described(chosen, timed)}."]
    others = _fastest([line for line in timed if not line.ours and line.contender != BASELINE], timed)
    if chosen.ours and others is not None:
        words.append(f"It is {_times(chosen, others)}, the fastest of the others.")
    ours = _fastest([line for line in timed if line.ours], timed)
    if not chosen.ours and ours is not None:
        words.append(f"The fastest of ours is {ours.title}: {_times(ours, chosen)}.")
        if cell.n_jobs < cell.num_envs:
            words.append(f"It had n_jobs={cell.n_jobs}; more may pay where steps wait.")
    ties = [line.title for line in timed if line is not chosen and not _is_faster(chosen, line)]
    if ties:
        words.append(f"About as fast, for the intervals overlap: {', '.join(ties)}.")
    return words


def _described(line: Line, timed: Sequence[Line]) -> str:
    """Return the title, against the plain loop where that is another, and the throughput."""
    baseline = next((each for each in timed if each.contender == BASELINE), None)
    speed = f"{line.env_steps_per_s.median:,.0f} steps/s" if line.env_steps_per_s else ""
    if baseline is None or baseline is line:
        return f"{line.title} ({speed})"
    return f"{line.title}: {_times(line, baseline)}, {speed}"


def _times(line: Line, other: Line) -> str:
    ratio = paired_ratio(line, other)
    name = "the plain loop" if other.contender == BASELINE else other.title
    if ratio is None:
        return f"never timed in the same round as {name}"
    return f"{ratio_words(ratio.median)} times {name} ({ratio_words(ratio.low)}..{ratio_words(ratio.high)})"


def _fastest(lines: Sequence[Line], timed: Sequence[Line]) -> Line | None:
    """Return the fastest by its ratio to the plain loop; that itself, unless another is surely faster.

    Where it wasn't timed the first that was takes its place.
    """
    if not lines:
        return None
    base = next((line for line in timed if line.contender == BASELINE), timed[0])
    best = max(lines, key=lambda line: (paired_ratio(line, base) or Estimate(0, 0, 0)).median)
    return preferred([base, best], _is_faster) if base in lines else best


def _is_faster(one: Line, other: Line) -> bool:
    """Tell whether one is faster even at the lower bound."""
    ratio = paired_ratio(one, other)
    return ratio is not None and ratio.low > 1


def _is_parallel(line: Line) -> bool:
    contender = all_contenders().get(line.contender)
    return contender is None or contender.parallel


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
    if cell.fault:
        return f"Nothing was run: {cell.fault}."
    return "No contender is correct here, so nothing can be recommended."
