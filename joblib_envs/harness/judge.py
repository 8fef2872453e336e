"""Judges one contender against the reference, in the process it is called in."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np

from joblib_envs.equality import Difference, Verdict, first_difference
from joblib_envs.errors import BackendUnavailableError, StateCannotTravelError
from joblib_envs.harness.contenders import Contender, VectorLike, autoreset_mode_of
from joblib_envs.harness.program import Operation, make_program
from joblib_envs.harness.records import Cell, Judgement, Metric, Sample, Send, describe_error
from joblib_envs.harness.reference import CONSTRUCTOR, Answer, EnvironmentFault, make_reference, record_answers
from joblib_envs.harness.trivial import TrivialSource

__all__ = ["Limits", "Survey", "env_index_of", "judge", "survey"]

MEMORY_BYTES = 500_000_000


@dataclass(frozen=True)
class Limits:
    """How long judging may take.

    Attributes:
        required_s: Time for the calls without which a verdict is ``incomplete``.
        optional_s: Time after which the other calls are skipped.
        overhead_s: Time spent on measuring the call overhead.
    """

    required_s: float = 60.0
    optional_s: float = 8.0
    overhead_s: float = 0.2


@dataclass(frozen=True)
class Survey:
    """What a look at the environment itself told, before any contender.

    Attributes:
        short: The environment is slow: judge with few steps.
        slowest_s: Time of the reference's slowest call, its constructor included.
        fault: What the environment itself raised, where it did; empty otherwise.
        irreproducible: How the reference differs from itself; empty where it doesn't.
    """

    short: bool = False
    slowest_s: float = 0.0
    fault: str = ""
    irreproducible: str = ""


def survey(send: Send, cell: Cell, limits: Limits) -> None:
    """Run the reference twice and send a :class:`Survey` as ``"survey"``."""
    try:
        found = _survey(_Stopwatch(send), cell, limits)
    except EnvironmentFault as fault:
        found = Survey(fault=_explain(fault))
    send("survey", found)


def _explain(fault: EnvironmentFault) -> str:
    """Say what the environment raised, where, and what to do about it."""
    error = fault.__cause__ or fault
    if isinstance(error, ImportError | gymnasium.error.DependencyNotInstalled):
        advice = "install what is missing"
    elif fault.at == CONSTRUCTOR:
        advice = "check its arguments (--env-kwargs), or mend it"
    else:
        advice = "mend it first"
    return f"{describe_error(error)} (in {fault.at}, already in Gymnasium's own loop): {advice}"


class _Stopwatch:
    """Passes on what is being done, and keeps the longest time between two messages."""

    def __init__(self, send: Send) -> None:
        self.longest_s, self._send, self._last = 0.0, send, time.monotonic()

    def __call__(self, *message: Any) -> None:
        now = time.monotonic()
        self.longest_s, self._last = max(self.longest_s, now - self._last), now
        self._send(*message)


def _survey(send: _Stopwatch, cell: Cell, limits: Limits) -> Survey:
    send("at", CONSTRUCTOR)
    reference = make_reference(cell.environment, cell.num_envs)
    program = make_program(reference.action_space, cell.num_envs, cell.seed, short=True)
    started = time.monotonic()
    record_answers(reference, program[:4], limits.required_s, MEMORY_BYTES, send)
    step_s = (time.monotonic() - started) / 4
    short = 45 * step_s > limits.required_s / 4
    program = make_program(reference.action_space, cell.num_envs, cell.seed, short=short)
    reference.close()
    first = _record(cell, program, limits, send)
    second = _record(cell, program, limits, send)
    for wanted, got in zip(first, second, strict=False):
        again = got.wanted({"infos": {}}, lossless=True)
        found = _compare(wanted, again, lossless=True)
        if found is not None:
            reason = f"the reference differs from itself when rebuilt with the same seeds: {found.reason}"
            return Survey(short, send.longest_s, irreproducible=reason)
    return Survey(short, send.longest_s)


def judge(send: Send, contender: Contender, cell: Cell, surveyed: Survey, limits: Limits) -> None:
    """Judge a contender; send its start-up time as ``"sample"`` and the answer as ``"judgement"``."""
    try:
        reference = make_reference(cell.environment, cell.num_envs, autoreset_mode_of(contender))
        program = make_program(reference.action_space, cell.num_envs, cell.seed, short=surveyed.short)
        answers = record_answers(reference, program, limits.required_s / 3, MEMORY_BYTES, send)
        reference.close()
    except EnvironmentFault as fault:
        error = fault.__cause__ or fault
        reason = f"the environment itself raises {describe_error(error)}"
        send("judgement", Judgement(Verdict.RAISES, reason, at=fault.at))
        return
    send("at", "its constructor")
    started = time.perf_counter()
    try:
        envs = contender.build(cell.environment, cell.num_envs, cell.n_jobs)
    except Exception as error:
        send("judgement", _raised(error, "its constructor"))
        return
    built_s = time.perf_counter() - started
    judgement, first_reset_s = _drive(send, envs, program, answers, limits, lossless=contender.ours)
    comparable = (Verdict.CORRECT, Verdict.INCOMPLETE, Verdict.WRONG)
    if surveyed.irreproducible and judgement.verdict in comparable:
        judgement = replace(judgement, verdict=Verdict.NOT_REPRODUCIBLE, reason=surveyed.irreproducible)
    send("judgement", judgement)
    if judgement.verdict is Verdict.CORRECT:
        start_up_s = built_s + first_reset_s
        send("sample", Sample(contender.name, Metric.START_UP, start_up_s, wall_s=start_up_s))
    send("at", "close")
    envs.close()
    if judgement.verdict is Verdict.CORRECT:
        _measure_empty_call(send, contender, cell, limits.overhead_s)


def _record(cell: Cell, program: Sequence[Operation], limits: Limits, send: Send) -> list[Answer]:
    reference = make_reference(cell.environment, cell.num_envs)
    answers = record_answers(reference, program, limits.required_s / 3, MEMORY_BYTES, send)
    reference.close()
    return answers


def _drive(
    send: Send,
    envs: VectorLike,
    program: Sequence[Operation],
    answers: Sequence[Answer],
    limits: Limits,
    *,
    lossless: bool,
) -> tuple[Judgement, float]:
    """Make the recorded calls and compare; return the judgement and the first reset's time."""
    started, first_reset_s = time.monotonic(), 0.0
    ends = _EpisodeEnds(answers)
    done = 0
    for answer in answers:
        operation = answer.operation
        spent = time.monotonic() - started
        if spent > (limits.required_s if operation.required else limits.optional_s):
            break
        send("at", operation.label)
        before = time.perf_counter()
        try:
            got = operation.apply(envs)
        except Exception as error:
            return replace(_raised(error, operation.label), step=operation.step or None), 0.0
        if done == 0:
            first_reset_s = time.perf_counter() - before
        found = _compare(answer, got, lossless=lossless)
        if found is not None:
            return replace(found, judged_steps=operation.step, episode_ends=ends.after(done)), first_reset_s
        done += 1
    steps = answers[done - 1].operation.step if done else 0
    missing = [operation.label for operation in program[done:] if operation.required]
    if missing:
        uncovered = ", ".join(dict.fromkeys(missing))
        reason = f"agreed for {steps} steps, then time or memory was over; not covered: {uncovered}"
        return Judgement(Verdict.INCOMPLETE, reason, judged_steps=steps, episode_ends=ends.after(done)), first_reset_s
    return Judgement(Verdict.CORRECT, judged_steps=steps, episode_ends=ends.after(done)), first_reset_s


class _EpisodeEnds:
    """Counts the episode ends of each sub-environment: its own, and those forced by a reset."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = answers

    def after(self, done: int) -> int:
        """Return the fewest ends of any sub-environment within the first ``done`` calls."""
        total: Any = 0
        for answer in self._answers[1:done]:
            if answer.operation.kind == "step":
                total = total + (answer.fields["terminations"] | answer.fields["truncations"])
            elif answer.operation.kind == "reset":
                mask = answer.operation.argument[1]
                total = total + (1 if mask is None else mask)
        return int(np.min(total))


def _compare(answer: Answer, got: dict[str, Any], *, lossless: bool) -> Judgement | None:
    """Find the first difference in one call's answer, as a judgement ``wrong``."""
    for name, wanted in answer.wanted(got, lossless=lossless).items():
        value = got[name]
        difference = first_difference(wanted, value, name)
        if difference is not None:
            index = env_index_of(name, wanted, value, difference)
            return _wrong(answer.operation, index, difference)
    return None


def _wrong(operation: Operation, env_index: int | None, difference: Difference) -> Judgement:
    where = "" if env_index is None else f", sub-environment {env_index}"
    reason = f"{operation.label}{where}: {difference.path} should be {difference.wanted}, is {difference.got}"
    return Judgement(
        Verdict.WRONG,
        reason,
        at=operation.label,
        step=operation.step or None,
        env_index=env_index,
        field=difference.path,
        wanted=difference.wanted,
        got=difference.got,
    )


def env_index_of(name: str, wanted: Any, got: Any, difference: Difference) -> int | None:
    """Return the sub-environment in which two batches differ first, where one can be named."""
    if name == "observations" and not isinstance(wanted, np.ndarray):
        return _first_row(wanted, got)
    return _first_number(difference.path)


def _first_row(wanted: Any, got: Any) -> int | None:
    """Return the first row in which two nested batches differ.

    A Dict's batch is a dict of batches and a Tuple's a tuple of them; any other space
    without arrays is batched as a tuple with one item per sub-environment.
    """
    if isinstance(wanted, dict):
        pairs = [(wanted[key], got[key]) for key in wanted]
    elif isinstance(wanted, tuple) and any(isinstance(part, np.ndarray | dict) for part in wanted):
        pairs = list(zip(wanted, got, strict=True))
    else:
        difference = first_difference(wanted, got, "")
        return None if difference is None else _first_number(difference.path)
    rows = [_first_row(*pair) for pair in pairs]
    return min((row for row in rows if row is not None), default=None)


def _first_number(path: str) -> int | None:
    match = re.search(r"\[(\d+)", re.sub(r"\['[^']*'\]", "", path))
    return int(match.group(1)) if match else None


def _raised(error: Exception, at: str) -> Judgement:
    if isinstance(error, StateCannotTravelError):
        return Judgement(Verdict.REFUSED, str(error), at=at)
    if isinstance(error, BackendUnavailableError):
        return Judgement(Verdict.UNAVAILABLE, str(error), at=at)
    return Judgement(Verdict.RAISES, f"{describe_error(error)} (in {at})", at=at)


def _measure_empty_call(send: Send, contender: Contender, cell: Cell, seconds: float) -> None:
    """Time ``step`` over environments that do nothing: what the contender itself costs."""
    send("at", "the empty call")
    try:
        source = TrivialSource.like(cell.environment)
        envs = contender.build(source, cell.num_envs, cell.n_jobs)
    except Exception:
        return  # spaces that can't be rebuilt elsewhere: the column stays empty
    try:
        envs.reset(seed=0)
        actions = source.actions(cell.num_envs)
        envs.step(actions)
        started, calls = time.perf_counter(), 0
        while calls < 3 or time.perf_counter() - started < seconds:
            envs.step(actions)
            calls += 1
        wall_s = time.perf_counter() - started
        send("sample", Sample(contender.name, Metric.CALL, wall_s / calls, calls=calls, wall_s=wall_s))
    finally:
        envs.close()
