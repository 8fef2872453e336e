"""Runs a study: for each cell of its grid first every verdict, then the timing of the correct."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from joblib_envs.equality import Verdict
from joblib_envs.harness.contenders import Contender, select_contenders
from joblib_envs.harness.isolation import run_isolated
from joblib_envs.harness.judge import Survey, judge, survey
from joblib_envs.harness.machine import describe_machine
from joblib_envs.harness.records import NOT_RUN, Cell, Judgement, Sample
from joblib_envs.harness.results import ResultsFolder
from joblib_envs.harness.rounds import Rounds
from joblib_envs.harness.study import Study

__all__ = ["Progress", "cells_of", "run_study"]


SURVEY_PATIENCE = 5
"""Nobody knows yet how slow the environment is, so the first look gets more time to answer."""


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
    """Return the points of the study's grid."""
    for source, num_envs, n_jobs in itertools.product(study.environments, study.num_envs, study.n_jobs):
        yield Cell(source, num_envs, n_jobs, study.seed)


def run_study(study: Study, folder: ResultsFolder, progress: Progress) -> list[str]:
    """Run a study into a folder.

    Every verdict and sample is in the files as soon as it is known.

    Returns:
        One line for each cell whose environment itself raised.
    """
    study.import_modules()
    contenders = select_contenders(study.contenders)
    cells = list(cells_of(study))
    folder.write_study(study)
    folder.write_machine(describe_machine())
    progress.start(len(cells) * len(contenders) * (1 + study.rounds))
    faults: list[str] = []
    for cell in cells:
        faults.extend(_CellRun(study, cell, contenders, folder, progress).run())
    return faults


class _CellRun:
    """One cell on its way through survey, verdicts and timing."""

    def __init__(
        self, study: Study, cell: Cell, contenders: list[Contender], folder: ResultsFolder, progress: Progress
    ) -> None:
        self._study, self._cell, self._contenders = study, cell, contenders
        self._folder, self._progress = folder, progress
        self._judgements: dict[str, Judgement] = {}

    def run(self) -> list[str]:
        surveyed = self._survey()
        correct = []
        for contender in self._contenders:
            if surveyed.fault:
                self._record(contender, Judgement(Verdict.INCOMPLETE, f"{NOT_RUN}{surveyed.fault}"))
                self._progress.advance()
                continue
            self._progress.begin(f"judging {contender.title}")
            self._judge(contender, surveyed)
            if self._judgements[contender.name].verdict is Verdict.CORRECT:
                correct.append(contender)
            self._progress.advance()
        if correct and self._study.rounds:
            self._time(correct)
        self._progress.advance(self._study.rounds * (len(self._contenders) - len(correct)))
        return [surveyed.fault] if surveyed.fault else []

    def _survey(self) -> Survey:
        label = self._cell.environment.label
        patience_s = SURVEY_PATIENCE * self._study.hang_s
        self._progress.begin(f"looking at {label} (for {patience_s:g} s of silence at most)")
        found: list[Survey] = []
        ending = run_isolated(
            survey,
            self._cell,
            self._study.limits,
            receive=lambda _, value: found.append(value),
            silence_s=patience_s,
        )
        if not found:
            found.append(Survey(fault=ending.describe(patience_s)))
        surveyed = found[0]
        if surveyed.fault:
            surveyed = replace(
                surveyed, fault=f"the environment {label} itself fails, so no contender was run: {surveyed.fault}"
            )
        if surveyed.irreproducible:
            self._progress.note(f"{label}: {surveyed.irreproducible}")
        return surveyed

    def _judge(self, contender: Contender, surveyed: Survey) -> None:
        silence_s = max(self._study.hang_s, SURVEY_PATIENCE * surveyed.slowest_s)

        def receive(_: str, value: Judgement | Sample) -> None:
            if isinstance(value, Judgement):
                self._settle(contender, value)
            else:
                self._folder.add_sample(self._cell, value)

        ending = run_isolated(
            judge, contender, self._cell, surveyed, self._study.limits, receive=receive, silence_s=silence_s
        )
        if not ending.finished:
            verdict = Verdict.HANGS if ending.hung else Verdict.RAISES
            self._settle(contender, Judgement(verdict, ending.describe(silence_s), at=ending.at))

    def _record(self, contender: Contender, judgement: Judgement) -> None:
        self._judgements[contender.name] = judgement
        self._folder.set_verdict(self._cell, contender.name, contender.title, judgement, ours=contender.ours)

    def _settle(self, contender: Contender, judgement: Judgement) -> None:
        self._record(contender, judgement)
        if judgement.verdict is not Verdict.CORRECT:
            self._progress.note(f"{contender.title}: {judgement.verdict}: {judgement.reason}")

    def _time(self, contenders: list[Contender]) -> None:
        def add_sample(sample: Sample) -> None:
            self._folder.add_sample(self._cell, sample)
            self._progress.advance()

        rounds = Rounds(
            contenders,
            self._cell,
            self._study.timing,
            self._study.hang_s + 10 * self._study.min_time_s,
            add_sample=add_sample,
            drop=self._settle,
        )
        rounds.run(self._progress.begin)
