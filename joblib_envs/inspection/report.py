"""An inspection in words: rows of a table, as plain text or for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from joblib_envs.equality import Verdict
from joblib_envs.inspection.findings import CopyFinding, Finding, Gil, Inspection, LostField
from joblib_envs.inspection.units import bytes_words, us_words

__all__ = ["Row", "as_text", "rows_of"]

Mark: TypeAlias = Callable[[str, bool | None], str]

_MOST_FIELDS = 6
_MOST_OF_AN_OBJECT = 2


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: What was looked at.
        answer: What was found, in a word; empty where numbers are all there is.
        details: The same at length.
        is_good: Whether that is as one would wish; None: neither good nor bad.
    """

    name: str
    answer: str
    details: str
    is_good: bool | None = None


def rows_of(found: Inspection) -> list[Row]:
    """Return the lines of the table."""
    if found.fault:
        return [Row("the environment", "fails", found.fault, is_good=False)]
    return [
        _costs(found),
        _reproducible(found),
        _global_random(found),
        _state(found),
        _replay(found),
        *_copies(found.copies),
        _threads(found),
        _gil(found),
    ]


def as_text(found: Inspection, width: int = 80, mark: Mark | None = None) -> str:
    """Return the table and the recommendation as plain text.

    Args:
        found: The inspection.
        width: Columns.
        mark: Colours an answer, given whether it is as one would wish.
    """
    rows = rows_of(found)
    names, answers = (max(len(getattr(row, part)) for row in rows) for part in ("name", "answer"))
    margin = names + answers + 4
    lines = textwrap.wrap(_title(found), width)
    for row in rows:
        first, *others = textwrap.wrap(row.details, max(20, width - margin)) or [""]
        answer = f"{row.answer:<{answers}}"
        answer = mark(answer, row.is_good) if mark and row.answer else answer
        lines.append(f"{row.name:<{names}}  {answer}  {first}".rstrip())
        lines += [" " * margin + other for other in others]
    lines.append("")
    for line in found.recommendation:
        lines += textwrap.wrap(line, width, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


def _title(found: Inspection) -> str:
    return f"{found.env}: {' > '.join(found.layers)}" if found.layers else found.env


def _costs(found: Inspection) -> Row:
    costs = found.costs
    words = (
        f"step {us_words(costs.step_us)}, reset {us_words(costs.reset_us)}, constructor "
        f"{us_words(costs.constructor_us)} (the first {us_words(costs.first_constructor_us)}); medians of "
        f"{costs.step_samples:,}, {costs.reset_samples} and {costs.constructor_samples} calls"
    )
    if costs.waits and costs.cpu_share is not None:
        words += f"; a step waits: {costs.cpu_share:.0%} of it is processor time"
    return Row("costs", "", words)


def _reproducible(found: Inspection) -> Row:
    finding = found.reproducible
    if finding.is_correct:
        hashes = "" if finding.hash_seeds_differ else " (of equal PYTHONHASHSEED)"
        words = f"equal seeds give equal data, in one process and in two{hashes}: {finding.num_steps} steps"
        if finding.varying_infos:
            words += f"; only infos vary: {', '.join(finding.varying_infos)}"
        return Row("reproducible", "yes", words, is_good=True)
    words = finding.reason
    if finding.first_difference:
        words += f": {finding.first_difference}"
    if finding.seeded_by:
        words += f"; seeding {' and '.join(finding.seeded_by)} before makes it reproducible"
    elif finding.one_process is False:
        words += "; seeding numpy.random and random before does not help"
    answer = "no" if finding.verdict is Verdict.NOT_REPRODUCIBLE else _word(finding)
    return Row("reproducible", answer, words, is_good=False)


def _global_random(found: Inspection) -> Row:
    if found.global_random.is_correct:
        return Row("global random", "untouched", "numpy.random and random stay as they are", is_good=True)
    return Row("global random", "changed", found.global_random.reason)


def _state(found: Inspection) -> Row:
    state = found.state
    if not state.is_correct:
        return Row("state travels", _refusal(state), _refusal_words(found, state), is_good=False)
    words = "goes on bit for bit in another process"
    if state.size_bytes is None:
        return Row("state travels", "yes", f"{words}; {state.reason}", is_good=True)
    words = f"{bytes_words(state.size_bytes)}, {us_words(state.trip_us)} a trip (capture and restore); {words}"
    if state.shared_size_bytes:
        words += f"; and {bytes_words(state.shared_size_bytes)} once for each worker"
    return Row("state travels", "yes", words, is_good=True)


def _replay(found: Inspection) -> Row:
    replay = found.replay
    if not replay.is_correct:
        return Row("replay", _refusal(replay), _refusal_words(found, replay), is_good=False)
    words = "made anew and given all its calls again, it goes on bit for bit"
    if replay.size_bytes is None:
        return Row("replay", "exact", words, is_good=True)
    words = f"{bytes_words(replay.size_bytes)}, {us_words(replay.trip_us)} for {replay.num_calls} calls"
    return Row("replay", "exact", words, is_good=True)


def _copies(copies: tuple[CopyFinding, ...]) -> list[Row]:
    rows: list[Row] = []
    for number, finding in enumerate(copies):
        row, earlier = _copy(finding), copies[0]
        same_words = finding.reason == earlier.reason
        both_wrong = finding.verdict is Verdict.WRONG is earlier.verdict
        same_loss = both_wrong and bool(finding.num_lost) and finding.num_lost == earlier.num_lost
        if number and not finding.is_correct and (same_words or same_loss):
            row = replace(row, details="in the same way")
        rows.append(row)
    return rows


def _copy(finding: CopyFinding) -> Row:
    name = {"pickle": "plain pickle"}.get(finding.way, finding.way)
    if finding.is_correct:
        size = f"{bytes_words(finding.size_bytes)}; " if finding.size_bytes is not None else ""
        return Row(name, "faithful", f"{size}a copy goes on bit for bit", is_good=True)
    words = finding.reason
    if finding.num_lost:
        words += f". It loses {_fields(finding.lost, finding.num_lost)}"
    elif finding.num_lost == 0 and finding.verdict is Verdict.WRONG:
        words += (
            ". No attribute that can be compared differs: what is lost lies in native objects or outside (a simulator, "
            "a module's globals)"
        )
    return Row(name, _word(finding), words, is_good=False if finding.verdict is Verdict.WRONG else None)


def _fields(lost: tuple[LostField, ...], num_lost: int) -> str:
    """Name some fields, few of each object, and count the rest."""
    named: list[str] = []
    of_each: dict[str, int] = {}
    for each in lost:
        parent = each.path.rpartition(".")[0]
        of_each[parent] = of_each.get(parent, 0) + 1
        if of_each[parent] <= (_MOST_OF_AN_OBJECT if parent.count(".") else _MOST_FIELDS):
            named.append(each.path)
    named = named[:_MOST_FIELDS]
    rest = num_lost - len(named)
    return ", ".join(named) + (f" and {rest} more" if rest else "")


def _threads(found: Inspection) -> Row:
    threads = found.threads
    drawn = "; it may draw with pygame, so BatchEnv lets one thread at a time" if threads.drawn_one_by_one else ""
    if threads.is_correct:
        words = f"two threads at once, {threads.num_steps:,} steps each, equal each alone{drawn}"
        return Row("two threads", "safe", words, is_good=True)
    if threads.verdict is Verdict.NOT_REPRODUCIBLE:
        return Row("two threads", "unknown", threads.reason)
    if threads.verdict is Verdict.INCOMPLETE:
        return Row("two threads", "not tried", threads.reason)
    return Row("two threads", "unsafe", threads.reason + drawn, is_good=False)


def _gil(found: Inspection) -> Row:
    gil = found.gil
    if gil.share is None:
        return Row("GIL", _word(gil), gil.reason, is_good=False)
    words = f"another thread could run in {_percent(gil.share)} of {gil.num_steps:,} steps"
    if gil.gil is Gil.ABSENT:
        words = "this Python has none"
    if gil.gil is not Gil.HELD:  # else one waits for the other, and the ratio is the machine's noise
        words += f"; two threads made {gil.two_threads_speed:.1f} times the steps of one"
        words += f" ({gil.two_threads_low:.1f} to {gil.two_threads_high:.1f})"
    return Row("GIL", gil.gil.value, words, is_good=None if gil.gil is Gil.UNCLEAR else gil.gil is not Gil.HELD)


def _percent(share: float) -> str:
    return "none" if share == 0 else f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def _refusal(finding: Finding) -> str:
    """Return a word for what joblib-envs does then: what can't be kept it refuses."""
    return "refused" if finding.verdict is Verdict.RAISES else _word(finding)


def _refusal_words(found: Inspection, finding: Finding) -> str:
    """Return why, unless a line above has said it."""
    if finding.verdict is found.reproducible.verdict is Verdict.NOT_REPRODUCIBLE:
        return "it differs from itself"
    return finding.reason


def _word(finding: Finding) -> str:
    words = {Verdict.NOT_REPRODUCIBLE: "unknown", Verdict.INCOMPLETE: "not tried"}
    return words.get(finding.verdict, finding.verdict.value)
