"""Runs one environment of a study of travel: all verdicts, then the timing of the correct."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from joblib_envs.equality import Verdict
from joblib_envs.harness.isolation import Ending, Isolated
from joblib_envs.harness.records import NOT_RUN, Cell, Judgement, Sample
from joblib_envs.harness.travel import Finding, Journey, arrive, depart, judge_findings, time_methods
from joblib_envs.harness.travel_methods import METHODS, Method, select_methods

if TYPE_CHECKING:
    from joblib_envs.harness.results import ResultsFolder
    from joblib_envs.harness.runner import Progress
    from joblib_envs.harness.study import Study

__all__ = ["TravelRun"]

PROBE_S = 300.0
"""Our own probe says nothing while it tries an environment, and has a limit of its own for each of two ways."""


class TravelRun:
    """One environment on its way through departure, arrival and timing."""

    def __init__(self, study: Study, cell: Cell, folder: ResultsFolder, progress: Progress) -> None:
        self._study, self._cell, self._folder, self._progress = study, cell, folder, progress
        self._methods: list[Method] = select_methods(study.methods)
        self._journey = Journey(cell.environment, cell.seed)  # type: ignore[arg-type]
        self._findings: dict[str, list[Finding]] = {}
        self._parcels: dict[str, dict[str, bytes]] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._current: str | None = None

    @staticmethod
    def units(study: Study) -> int:
        """Return the work of a cell: a verdict for each method."""
        return len(study.methods)

    def run(self) -> list[str]:
        """Record all verdicts and samples; return a line if the environment itself ended its process."""
        label = self._cell.environment.label
        for stage, words in ((depart, "copying it"), (arrive, "going on from the copies")):
            self._progress.begin(f"{label}: {words}")
            fault = self._through(stage)
            if fault:
                return [fault]
            if not self._names():
                return []
        for name in self._names():
            self._settle(name, judge_findings(self._findings[name]))
        correct = [name for name, verdict in self._verdicts.items() if verdict is Verdict.CORRECT]
        if correct and self._study.rounds:
            self._progress.begin(f"{label}: timing")
            self._time(correct)
        return []

    def _names(self) -> list[str]:
        """Return the methods that nothing is decided about."""
        return [method.name for method in self._methods if method.name not in self._verdicts]

    def _through(self, stage: Callable[..., None]) -> str:
        """Let all methods pass a stage; one that ends its process is judged, and the others go on in a new one."""
        done: set[str] = set()

        def receive(kind: str, *values: Any) -> None:
            if kind == "fault":
                for name in self._names():
                    self._settle(name, values[0])
            elif kind == "planned":
                self._journey = values[0]
            elif kind == "begin":
                self._current = values[0]
            else:
                name, findings, *parcels = values
                done.add(name)
                self._findings.setdefault(name, []).extend(findings)
                for each in parcels:
                    self._parcels[name] = each

        while left := [name for name in self._names() if name not in done]:
            self._current = None
            work = left if stage is depart else {name: self._parcels[name] for name in left}
            ending = self._listened(stage, work, receive)
            if ending.finished or self._current in done:
                continue
            if self._current is None:
                return self._fail(ending)
            words = ending.describe(self._study.hang_s)
            self._settle(self._current, Judgement(Verdict.HANGS if ending.hung else Verdict.RAISES, words))
        return ""

    def _listened(self, stage: Callable[..., None], work: Any, receive: Callable[..., None]) -> Ending:
        with Isolated(stage, self._journey, work) as process:
            if stage is not depart or process.listen(receive, PROBE_S, until="planned"):
                process.listen(receive, self._study.hang_s)
            return process.end()

    def _fail(self, ending: Ending) -> str:
        """Judge all methods that are left: the environment itself ended the process."""
        words = ending.describe(PROBE_S)
        fault = f"the environment {self._cell.environment.label} itself fails, so no method was tried: {words}"
        for name in self._names():
            self._settle(name, Judgement(Verdict.INCOMPLETE, f"{NOT_RUN}{fault}"))
        return fault

    def _settle(self, name: str, judgement: Judgement) -> None:
        method = METHODS[name]
        self._verdicts[name] = judgement.verdict
        self._folder.set_verdict(self._cell, name, method.title, judgement, ours=method.ours)
        self._progress.advance()
        if judgement.verdict is not Verdict.CORRECT:
            self._progress.note(f"{method.title}: {judgement.verdict}: {judgement.reason}")

    def _time(self, names: Sequence[str]) -> None:
        def receive(kind: str, samples: list[Sample]) -> None:  # noqa: ARG001
            self._folder.add_samples(self._cell, samples)

        with Isolated(time_methods, self._journey, names, self._study.rounds) as process:
            process.listen(receive, self._study.hang_s)
            ending = process.end()
        if not ending.finished:
            self._progress.note(f"timing: {ending.describe(self._study.hang_s)}")
