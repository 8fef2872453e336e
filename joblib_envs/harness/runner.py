"""Runs a study: for each cell of its grid first every verdict, then the timing of the correct."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Protocol

from joblib_envs.harness.machine import describe_machine
from joblib_envs.harness.records import Cell
from joblib_envs.harness.results import ResultsFolder
from joblib_envs.harness.speed_run import SpeedRun
from joblib_envs.harness.study import Study
from joblib_envs.harness.travel_run import TravelRun

__all__ = ["Progress", "cells_of", "run_study"]

CELL_RUNS: Mapping[str, type[SpeedRun] | type[TravelRun]] = {
    "speed": SpeedRun,
    "scaling": SpeedRun,
    "travel": TravelRun,
}
"""What runs a cell, by what the study measures."""


class Progress(Protocol):
    """Is told how far a run is."""

    def start(self, total: int) -> None:
        """Begin; ``total`` units of work are expected."""
        ...

    def begin(self, text: str) -> None:
        """Say what is being done now."""
        ...

    def advance(self, units: int = 1) -> None:
        """Say that units of work are done."""
        ...

    def note(self, text: str) -> None:
        """Say something that stays on the screen."""
        ...


def cells_of(study: Study) -> Iterator[Cell]:
    """Return the points of the study's grid, or of its sweep."""
    if study.sweep is not None:
        for point in study.sweep.points():
            yield Cell(point.source, point.num_envs, point.n_jobs, study.seed)
        return
    for source in study.environments:
        numbers = itertools.product(source.num_envs or study.num_envs, source.n_jobs or study.n_jobs)
        for num_envs, n_jobs in numbers:
            yield Cell(source, num_envs, n_jobs, study.seed)


def run_study(study: Study, folder: ResultsFolder, progress: Progress) -> list[str]:
    """Run a study into a folder.

    Every verdict and sample is in the files as soon as it is known.

    Returns:
        One line for each cell whose environment itself raised.
    """
    study.import_modules()
    cell_run = CELL_RUNS[study.measure]
    cells = list(cells_of(study))
    folder.write_study(study)
    folder.write_machine(describe_machine())
    progress.start(sum(cell_run.units(study.of_cell(cell)) for cell in cells))
    faults: list[str] = []
    for cell in cells:
        faults.extend(cell_run(study.of_cell(cell), cell, folder, progress).run())
    return faults
