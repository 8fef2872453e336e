"""A study's folder of results: written after each measurement, read back as tables."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd

from joblib_envs.equality import Verdict
from joblib_envs.errors import ArgumentError
from joblib_envs.harness.records import Cell, Judgement, Sample
from joblib_envs.harness.study import Study, load_study

__all__ = ["CELL_COLUMNS", "Recorded", "ResultsFolder", "load_results"]

CELL_COLUMNS = ["environment", "num_envs", "n_jobs"]
VERDICT_COLUMNS = [*CELL_COLUMNS, "contender", "title", "ours", *(f.name for f in fields(Judgement))]
MEASUREMENT_COLUMNS = [*CELL_COLUMNS, *(f.name for f in fields(Sample))]
NUMBERS = {
    "num_envs", "n_jobs", "judged_steps", "episode_ends",
    "value", "round", "position", "env_steps", "reset_steps", "calls", "wall_s", "cpu_s",
}  # fmt: skip
"""The columns that hold a number in every row."""


class ResultsFolder:
    """Writes the files of one run; each write replaces a file as a whole.

    A reader, or an interrupt, finds complete files at any moment.

    Args:
        path: The folder. It is made, and must be empty.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ArgumentError(
                f"results folder {str(path)!r} exists and is not empty: name another, nothing is overwritten"
            )
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._verdicts: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._measurements: list[dict[str, Any]] = []

    @classmethod
    def unused(cls, path: Path) -> ResultsFolder:
        """Make ``path``, or ``path-2``, ``path-3`` ... where that is taken."""
        candidate, number = path, 1
        while candidate.exists():
            number += 1
            candidate = path.with_name(f"{path.name}-{number}")
        return cls(candidate)

    def write_study(self, study: Study) -> None:
        """Write ``study.toml``, from which the run can be repeated."""
        _write(self.path / "study.toml", study.to_toml(self.path))

    def write_machine(self, machine: dict[str, Any]) -> None:
        """Write ``machine.json``."""
        _write(self.path / "machine.json", json.dumps(machine, indent=2) + "\n")

    def set_verdict(self, cell: Cell, contender: str, title: str, judgement: Judgement, *, ours: bool) -> None:
        """Add a row to ``verdicts.csv``, or replace it."""
        row = _cell_row(cell) | {"contender": contender, "title": title, "ours": ours} | asdict(judgement)
        self._verdicts[(*_cell_row(cell).values(), contender)] = row
        _write_csv(self.path / "verdicts.csv", VERDICT_COLUMNS, list(self._verdicts.values()))

    def add_sample(self, cell: Cell, sample: Sample) -> None:
        """Add a row to ``measurements.csv``."""
        self.add_samples(cell, [sample])

    def add_samples(self, cell: Cell, samples: Sequence[Sample]) -> None:
        """Add rows to ``measurements.csv``, which is written once for all of them."""
        self._measurements.extend(_cell_row(cell) | asdict(sample) for sample in samples)
        _write_csv(self.path / "measurements.csv", MEASUREMENT_COLUMNS, self._measurements)


@dataclass(frozen=True)
class Recorded:
    """A results folder's content.

    Attributes:
        study: The study that was run.
        verdicts: One row per cell and contender.
        measurements: One row per raw sample.
        machine: What it ran on.
    """

    study: Study
    verdicts: pd.DataFrame
    measurements: pd.DataFrame
    machine: dict[str, Any]


def load_results(path: Path) -> Recorded:
    """Read a results folder.

    Raises:
        ArgumentError: It isn't one, or a file of it is cut or foreign.
    """
    if not path.is_dir():
        raise ArgumentError(f"{str(path)!r} is not a results folder, for there is no such folder: give results/NAME")
    if not (path / "study.toml").is_file():
        raise ArgumentError(f"{str(path)!r} is not a results folder, for it has no study.toml: give results/NAME")
    study = load_study(path / "study.toml")
    try:
        machine = json.loads((path / "machine.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{str(path / 'machine.json')!r} can't be read: {error}") from error
    words = {"environment": {source.label for source in study.environments}}
    verdicts = _read_csv(path / "verdicts.csv", VERDICT_COLUMNS, words | {"verdict": set(Verdict)})
    measurements = _read_csv(path / "measurements.csv", MEASUREMENT_COLUMNS, words)
    return Recorded(study, verdicts, measurements, machine)


def _cell_row(cell: Cell) -> dict[str, Any]:
    return {"environment": cell.environment.label, "num_envs": cell.num_envs, "n_jobs": cell.n_jobs}


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)  # noqa: PTH105 - atomic, and says so


def _write_csv(path: Path, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    _write(path, text.getvalue())


def _read_csv(path: Path, columns: Sequence[str], words: Mapping[str, set[str]]) -> pd.DataFrame:
    """Read a table; ``words`` are all that a column may hold."""
    if not path.exists():
        return pd.DataFrame(columns=list(columns))  # interrupted before the first row
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{str(path)!r} can't be read: {error}") from error
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise ArgumentError(f"{str(path)!r} is not a file of results: it lacks the columns {', '.join(missing)}")
    if not path.read_bytes().endswith(b"\n"):
        raise ArgumentError(f"{str(path)!r} is cut: its last line, {len(table) + 1}, has no end")
    for column in columns:
        _check_column(path, table[column], words.get(column))
    return table


def _check_column(path: Path, column: pd.Series[Any], words: set[str] | None) -> None:
    """Raise :class:`ArgumentError` for the first value that no run has written."""
    if words is not None:
        right = column.isin(words)
    elif column.name in NUMBERS:
        right = pd.to_numeric(column, errors="coerce").notna()
    elif column.name == "ours":
        right = column.isin([True, False])
    else:
        return
    if not right.all():
        row = int(right.to_numpy().argmin())
        raise ArgumentError(
            f"{str(path)!r} is cut or not of this run: in line {row + 2}, {column.name} is {column.iloc[row]}"
        )
