"""Runs one cell of a study of speed: every verdict, then the timing of the correct."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from joblib_envs.equality import Verdict
from joblib_envs.harness.contenders import Contender, patience_with, select_contenders
from joblib_envs.harness.isolation import run_isolated
from joblib_envs.harness.judge import Survey, judge, survey
from joblib_envs.harness.records import NOT_JUDGED, NOT_RUN, Cell, Judgement, Metric, Sample
from joblib_envs.harness.rounds import Rounds

if TYPE_CHECKING:
    from joblib_envs.harness.results import ResultsFolder
    from joblib_envs.harness.runner import Progress
    from joblib_envs.harness.study import Study

__all__ = ["SpeedRun"]

SURVEY_PATIENCE = 5
"""Nobody knows yet how slow the environment is, so the first look gets more time to answer."""


class SpeedRun:
    """One cell on its way through survey, verdicts and timing."""

    def __init__(self, study: Study, cell: Cell, folder: ResultsFolder, progress: Progress) -> None:
        self._study, self._cell, self._contenders = study, cell, select_contenders(study.contenders)
        self._folder, self._progress = folder, progress
        self._judgements: dict[str, Judgement] = {}

    @staticmethod
    def units(study: Study) -> int:
        """Return the work of a cell: a verdict and all rounds for each contender."""
        return len(select_contenders(study.contenders)) * (1 + study.rounds)

    def run(self) -> list[str]:
        """Record all verdicts and samples; return a line if the environment itself raised."""
        surveyed = self._survey()
        correct = []
        for contender in self._contenders:
            if surveyed.fault:
                self._record(contender, Judgement(Verdict.INCOMPLETE, f"{NOT_RUN}{surveyed.fault}"))
                self._progress.advance()
                continue
            if not getattr(contender, "is_judged", True):
                self._record(contender, Judgement(Verdict.INCOMPLETE, NOT_JUDGED))
                correct.append(contender)
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
        silence_s = patience_with(contender, max(self._study.hang_s, SURVEY_PATIENCE * surveyed.slowest_s))

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
            if sample.metric == Metric.THROUGHPUT:
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
