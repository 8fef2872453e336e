"""What a study of travel found out, environment by environment, derived from its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pandas as pd

from joblib_envs.equality import Verdict
from joblib_envs.harness.records import Metric
from joblib_envs.harness.results import Recorded
from joblib_envs.harness.travel_course import MOMENTS
from joblib_envs.harness.travel_methods import METHODS, Method, select_methods

__all__ = ["Copying", "Row", "families", "findings_in_words", "short_bytes", "short_time", "summarise_travel"]


@dataclass(frozen=True)
class Copying:
    """What is known about one method for one environment; None where it wasn't measured.

    Attributes:
        method: Its name.
        verdict: The verdict.
        reason: Why, for those that aren't correct.
        moments: When copies were so: ``make``, ``reset``, ``mid``, ``end``; empty where always.
        payload_bytes: What travels each time.
        shared_bytes: What travels once for each worker.
        copy_s: Median time to make what travels.
        restore_s: Median time to make an environment of it.
    """

    method: str
    verdict: Verdict
    reason: str
    moments: tuple[str, ...]
    payload_bytes: int | None = None
    shared_bytes: int | None = None
    copy_s: float | None = None
    restore_s: float | None = None

    @property
    def total_s(self) -> float | None:
        """There and back."""
        return None if self.copy_s is None or self.restore_s is None else self.copy_s + self.restore_s


@dataclass(frozen=True)
class Row:
    """One environment.

    Attributes:
        environment: Its label.
        family: What it is one of.
        is_wrapped: Whether it is in further wrappers.
        copyings: What each method did, in table order.
    """

    environment: str
    family: str
    is_wrapped: bool
    copyings: tuple[Copying, ...]


def summarise_travel(recorded: Recorded) -> list[Row]:
    """Return a row for each environment that has verdicts, in the order of the study."""
    return list(_rows(recorded))


def families(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Group rows by family, in the order of the study."""
    first = {family: number for number, family in reversed(list(enumerate(row.family for row in rows)))}
    ordered = sorted(rows, key=lambda row: first[row.family])
    return [(family, list(group)) for family, group in groupby(ordered, key=lambda row: row.family)]


def findings_in_words(rows: Sequence[Row]) -> str:
    """Return one sentence for each group of methods: how often each was what."""
    return " ".join(_sentence(METHODS[copying.method], rows) for copying in (rows[0].copyings if rows else ()))


def _sentence(method: Method, rows: Sequence[Row]) -> str:
    found = [each for row in rows for each in row.copyings if each.method == method.name]
    judged = [each for each in found if each.verdict is not Verdict.UNAVAILABLE]
    counts = {verdict: sum(each.verdict is verdict for each in judged) for verdict in _COUNTED}
    words = ", ".join(f"{_WORDS.get(verdict, str(verdict))} for {count}" for verdict, count in counts.items() if count)
    never = "; never wrong" if method.ours and not counts[Verdict.WRONG] else ""
    return f"{method.title}: {words or 'nothing to judge'}{never}."


_COUNTED = [verdict for verdict in Verdict if verdict is not Verdict.UNAVAILABLE]
_WORDS = {Verdict.WRONG: "silently wrong", Verdict.NOT_REPRODUCIBLE: "not reproducible"}


def short_bytes(count: float) -> str:
    """Return a size in two or three digits."""
    for factor, unit in ((1e6, "MB"), (1e3, "kB")):
        if count >= 0.9995 * factor:
            return f"{_digits(count / factor)} {unit}"
    return f"{count:.0f} B"


def short_time(seconds: float) -> str:
    """Return a time in two or three digits."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= 0.9995 * factor:
            return f"{_digits(seconds / factor)} {unit}"
    return f"{seconds * 1e6:.0f} µs"


def _digits(value: float) -> str:
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def _rows(recorded: Recorded) -> Iterator[Row]:
    methods = select_methods(recorded.study.methods)
    for source in recorded.study.environments:
        verdicts = recorded.verdicts[recorded.verdicts["environment"] == source.label].set_index("contender")
        samples = recorded.measurements[recorded.measurements["environment"] == source.label]
        if verdicts.empty:
            continue  # interrupted before it
        known = [method for method in methods if method.name in verdicts.index]
        copyings = tuple(_copying(method, verdicts.loc[method.name].to_dict(), samples) for method in known)
        yield Row(source.label, getattr(source, "family", ""), bool(getattr(source, "wrappers", ())), copyings)


def _copying(method: Method, row: dict[Any, Any], samples: pd.DataFrame) -> Copying:
    verdict = Verdict(row["verdict"])
    reason, at = ("" if pd.isna(row[name]) else str(row[name]) for name in ("reason", "at"))
    moments = tuple(at.split(", ")) if at else ()
    if len(moments) == len(MOMENTS) - (row["episode_ends"] == 0):
        moments = ()
    if verdict is not Verdict.CORRECT:
        return Copying(method.name, verdict, reason, moments)
    medians = samples[samples["contender"] == method.name].groupby("metric")["value"].median()
    values = {str(metric): float(value) for metric, value in medians.items()}
    payload, shared = (
        None if (size := values.get(metric)) is None else int(size) for metric in (Metric.PAYLOAD, Metric.SHARED)
    )
    copy_s, restore_s = values.get(Metric.COPY), values.get(Metric.RESTORE)
    return Copying(method.name, verdict, reason, moments, payload, shared, copy_s, restore_s)
