"""Judges and times the ways to copy one environment, in the processes that it is called in.

Copies depart from one process and arrive in another; those that can't leave are judged where
they were made. Ours are made as ``BatchEnv`` makes them: the way is proven first, or refused.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import cloudpickle
import gymnasium
import numpy as np

from joblib_envs.equality import Verdict
from joblib_envs.errors import StateCannotTravelError
from joblib_envs.factories import EnvSource, packed_factories, source_of
from joblib_envs.harness.records import Judgement, Metric, Sample, Send, describe_error
from joblib_envs.harness.travel_course import (
    MOMENTS,
    Course,
    CourseFault,
    Irreproducible,
    go_on,
    in_mid_episode,
    plan_course,
    require_equal,
    visit,
)
from joblib_envs.harness.travel_methods import METHODS, Method
from joblib_envs.harness.travel_source import TravelSource
from joblib_envs.state.pickling import CaptureOptions
from joblib_envs.state.probe import prove
from joblib_envs.state.trial import Proof

__all__ = ["Finding", "Journey", "arrive", "depart", "judge_findings", "time_methods"]

Env: TypeAlias = gymnasium.Env[Any, Any]


@dataclass(frozen=True)
class Finding:
    """What was found out about a copy that was made at one moment.

    Attributes:
        moment: The moment.
        verdict: ``correct``, ``wrong``, ``raises`` or ``refused``.
        reason: Why, in words.
    """

    moment: str
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True)
class Journey:
    """What all processes of one environment are told.

    Attributes:
        source: Makes the environment.
        seed: Of resets and actions.
        course: The pickled :class:`Course`; empty until it was tried.
        proofs: What our own probe says, by the name of the method.
    """

    source: TravelSource
    seed: int
    course: bytes = b""
    proofs: dict[str, Proof] | None = None

    def maker(self, method: Method) -> Callable[[], Env]:
        """Return what makes the environment, with a journal where the method needs one."""
        if not method.keeps_journal:
            return self.source
        make: Callable[[], Env] = _source(self.source).journaled().factories[0]
        return make

    def options(self, method: Method) -> CaptureOptions:
        """Return the way of capturing that was proven right."""
        return self._proof(method).options

    def _proof(self, method: Method) -> Proof:
        return (self.proofs or {}).get(method.name, Proof(Verdict.CORRECT))


def depart(send: Send, journey: Journey, names: Sequence[str]) -> None:
    """In the first process: try the environment itself, prove ours, and make the copies.

    Sends ``"fault"`` with a judgement for all methods, which is the end; or ``"planned"`` with
    the journey, and for each method ``"begin"`` and ``"departed"`` with findings and the
    pickled copies by moment.
    """
    if not journey.course:
        send("at", "making it and driving it")
        try:
            course = plan_course(journey.source, journey.seed)
        except CourseFault as fault:
            send("fault", _judge_fault(fault, journey.source))
            return
        send("at", "our probe")
        proofs = dict(_proofs(journey.source, [METHODS[name] for name in names]))
        journey = Journey(journey.source, journey.seed, cloudpickle.dumps(course), proofs)
    else:
        course = cloudpickle.loads(journey.course)
    send("planned", journey)
    for name in names:
        send("begin", name)
        send("departed", name, *_Departing(send, journey, course, METHODS[name]).run())


def arrive(send: Send, journey: Journey, departed: dict[str, dict[str, bytes]]) -> None:
    """In the second process: go on from each copy, and compare.

    Sends ``"fault"`` with a judgement for all methods, or ``"begin"`` and ``"arrived"`` with the
    findings for each.
    """
    course: Course = cloudpickle.loads(journey.course)
    send("at", "making it again")
    try:
        require_equal(course, visit(journey.source, course))
    except CourseFault as fault:
        send("fault", _judge_fault(fault, journey.source))
        return
    for name, parcels in departed.items():
        send("begin", name)
        findings = []
        for moment, packed in parcels.items():
            send("at", f"a copy made at {moment!r} by {name}")
            findings.append(_arrived(METHODS[name], functools.partial(cloudpickle.loads, packed), course, moment))
        send("arrived", name, findings)


def time_methods(send: Send, journey: Journey, names: Sequence[str], rounds: int) -> None:
    """Copy and restore in mid-episode, in rounds in which the methods take turns; send each round's ``"samples"``."""
    course: Course = cloudpickle.loads(journey.course)
    turns = []
    for name in names:
        send("at", f"making what {name} copies")
        method = METHODS[name]
        turns.append((method, journey.options(method), in_mid_episode(journey.maker(method), course)))
    shuffle = np.random.default_rng(journey.seed)
    for number in range(-1, rounds):  # the first warms up
        samples: list[Sample] = []
        for position, at in enumerate(shuffle.permutation(len(turns))):
            method, options, env = turns[at]
            send("at", f"timing {method.name}")
            samples.extend(_timed(method, options, env, number, position))
            if number == 0:
                samples.extend(_sized(method, options, env))
        if number >= 0:
            send("samples", samples)


def judge_findings(findings: Sequence[Finding]) -> Judgement:
    """Join what was found at each moment to one judgement: the worst, when, and why."""
    covered = {each.moment for each in findings}
    for verdict in (Verdict.WRONG, Verdict.HANGS, Verdict.RAISES, Verdict.REFUSED):
        bad = [each for each in findings if each.verdict is verdict]
        if bad:
            moments = [each.moment for each in bad]
            others = "".join(
                f"; {other.verdict} at {other.moment!r}: {other.reason}"
                for other in findings
                if other.verdict not in (verdict, Verdict.CORRECT)
            )
            return Judgement(
                verdict,
                f"{bad[0].reason}{others}",
                at=", ".join(moment for moment in MOMENTS if moment in moments),
                episode_ends=int(MOMENTS[-1] in covered),
            )
    return Judgement(Verdict.CORRECT, episode_ends=int(MOMENTS[-1] in covered))


class _Departing:
    """One method on its way through the moments, in the process that the copies leave."""

    def __init__(self, send: Send, journey: Journey, course: Course, method: Method) -> None:
        self._send, self._journey, self._course, self._method = send, journey, course, method
        self._parcels: dict[str, Any] = {}
        self._findings: list[Finding] = []

    def run(self) -> tuple[list[Finding], dict[str, bytes]]:
        """Return what was found, and the copies that are to arrive elsewhere, by moment."""
        method, course = self._method, self._course
        proof = (self._journey.proofs or {}).get(method.name)
        if proof is not None and proof.verdict is not Verdict.CORRECT:
            moments = list(course.traces or ())
            return [Finding(moment, Verdict.REFUSED, proof.reason) for moment in moments], {}
        traces = visit(self._journey.maker(method), course, self._copy)
        for moment, trace in traces.items():
            difference = course.difference(moment, trace)
            if difference is not None and moment in self._parcels:
                reason = f"copying it changes what the original does: {difference[0]}"
                self._findings.append(Finding(moment, Verdict.WRONG, reason))
                del self._parcels[moment]
        if method.leaves:
            return self._findings, {moment: cloudpickle.dumps(parcel) for moment, parcel in self._parcels.items()}
        for moment, parcel in self._parcels.items():
            self._send("at", f"a copy made at {moment!r} by {method.name}")
            self._findings.append(_arrived(method, functools.partial(_itself, parcel), course, moment))
        return self._findings, {}

    def _copy(self, moment: str, env: Env) -> None:
        self._send("at", f"copying it at {moment!r} by {self._method.name}")
        try:
            self._parcels[moment] = self._method.copy(env, self._journey.options(self._method))
        except (Exception, SystemExit) as error:
            self._findings.append(Finding(moment, _verdict_on(error), f"it can't be copied: {describe_error(error)}"))


def _itself(parcel: Any) -> Any:
    return parcel


def _arrived(method: Method, unpack: Callable[[], Any], course: Course, moment: str) -> Finding:
    try:
        env = method.restore(unpack())
    except (Exception, SystemExit) as error:
        return Finding(moment, _verdict_on(error), f"the copy can't be restored: {describe_error(error)}")
    try:
        difference = course.difference(moment, go_on(env, course, moment))
    finally:
        with suppress(Exception):
            env.close()
    if difference is None:
        return Finding(moment, Verdict.CORRECT)
    words, by_error = difference
    verdict = Verdict.RAISES if by_error else Verdict.WRONG
    return Finding(moment, verdict, f"a copy made at {moment!r}: {words}")


def _verdict_on(error: BaseException) -> Verdict:
    return Verdict.REFUSED if isinstance(error, StateCannotTravelError) else Verdict.RAISES


def _judge_fault(fault: CourseFault, source: TravelSource) -> Judgement:
    if isinstance(fault, Irreproducible):
        return Judgement(Verdict.NOT_REPRODUCIBLE, str(fault))
    hint = f"; what it needs is installed by `{source.install}`" if source.install else ""
    return Judgement(Verdict.UNAVAILABLE, f"{fault}{hint}")


def _source(source: TravelSource) -> EnvSource:
    return source_of(source, None, (), None)


def _proofs(source: TravelSource, methods: Sequence[Method]) -> Iterator[tuple[str, Proof]]:
    """Prove ours as ``BatchEnv`` does, all at once."""
    ours = [method for method in methods if method.ours]
    plain = _source(source)
    sources = [plain.journaled() if method.keeps_journal else plain for method in ours]
    packed = [data for each in sources for data in packed_factories(each.factories)]
    yield from zip((method.name for method in ours), prove(packed), strict=True)


def _timed(method: Method, options: CaptureOptions, env: Env, number: int, position: int) -> Iterator[Sample]:
    started = time.perf_counter()
    parcel = method.copy(env, options)
    copied = time.perf_counter()
    restored = method.restore(parcel)
    ended = time.perf_counter()
    for metric, value in ((Metric.COPY, copied - started), (Metric.RESTORE, ended - copied)):
        yield Sample(method.name, metric, value, round=number, position=position, calls=1, wall_s=value)
    del restored  # what it took of native memory is there for the next one, as in tasks execution


def _sized(method: Method, options: CaptureOptions, env: Env) -> Iterator[Sample]:
    sizes = method.sizes(method.copy(env, options))
    if sizes is not None:
        for metric, value in zip((Metric.PAYLOAD, Metric.SHARED), sizes, strict=True):
            yield Sample(method.name, metric, value)
