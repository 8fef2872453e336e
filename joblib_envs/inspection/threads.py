"""Two instances in two threads at once: do they disturb one another, and do they let one another run?"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from joblib_envs.equality import Verdict
from joblib_envs.gil import gil_is_enabled
from joblib_envs.inspection.driving import (
    Env,
    Trace,
    difference_between,
    play,
    run_steps,
    sampled_actions,
)
from joblib_envs.inspection.errands import Errands, Mishap, Whereabouts
from joblib_envs.inspection.findings import Gil, GilFinding, ThreadSafety
from joblib_envs.processes import unpickled
from joblib_envs.state.trial_runs import close_all

__all__ = ["at_once", "find_gil", "find_thread_safety", "switching_every"]

_AT_ONCE = "a run in two threads at once"
_SAFETY_ROUNDS = 3
_SPEED_ROUNDS = 5
_RELEASED_FROM = 0.1
_HELD_BELOW = 0.01
_NEVER_S = 60.0
"""A switch interval after which Python would take the lock away from a thread; no run takes so long."""


def find_thread_safety(
    errands: Errands,
    packed: bytes,
    seed: int,
    step_us: float,
    most_steps: int,
    varying: tuple[str, ...],
    budget_s: float,
) -> ThreadSafety:
    """Step two instances in two threads, against each of them alone.

    Args:
        errands: Sends out.
        packed: The pickled function that makes an environment.
        seed: Of resets and actions.
        step_us: What a step takes.
        most_steps: How many steps are made at most.
        varying: Keys of infos that vary by themselves.
        budget_s: About how long they step.
    """
    num_steps = max(5, min(most_steps, int(budget_s / (2 * _SAFETY_ROUNDS) * 1e6 / max(step_us, 1e-3))))
    found = errands.run(_together_and_alone, packed, seed, num_steps, varying)
    if isinstance(found, Mishap):
        is_due_to_threads = found.reason.endswith(_AT_ONCE)
        verdict = found.verdict if is_due_to_threads else Verdict.INCOMPLETE
        return ThreadSafety(verdict=verdict, reason=found.reason, num_steps=num_steps)
    safety: ThreadSafety = found
    return safety


def find_gil(errands: Errands, packed: bytes, seed: int, budget_s: float) -> GilFinding:
    """Look whether another thread runs during steps, and how much two threads get done.

    Args:
        errands: Sends out.
        packed: The pickled function that makes an environment.
        seed: Of resets and actions.
        budget_s: About how long it is looked at.
    """
    found = errands.run(_watched, packed, seed, budget_s)
    if isinstance(found, Mishap):
        return GilFinding(verdict=found.verdict, reason=found.reason)
    gil: GilFinding = found
    return gil


def _together_and_alone(
    where: Whereabouts, packed: bytes, seed: int, num_steps: int, varying: tuple[str, ...]
) -> ThreadSafety:
    factory = unpickled(packed)
    made: list[Env] = []

    def pair() -> list[Callable[[], Trace]]:
        envs = [factory(), factory()]
        made.extend(envs)
        actions = [sampled_actions(env, seed + index, num_steps) for index, env in enumerate(envs)]
        return [
            # No frames: BatchEnv lets one thread at a time draw.
            lambda env=env, index=index: play(env, actions[index], seed=seed + index, most_frames=0)  # type: ignore[misc]
            for index, env in enumerate(envs)
        ]

    try:
        where.at("a run alone")
        right = [run() for run in pair()]
        again = [run() for run in pair()]
        if any(difference_between(*both, varying) for both in zip(right, again, strict=True)):
            return ThreadSafety(verdict=Verdict.NOT_REPRODUCIBLE, reason="it differs from itself")
        where.at(_AT_ONCE)
        for _ in range(_SAFETY_ROUNDS):
            with switching_every(1e-5):
                got = at_once(pair())
            for one, other in zip(right, got, strict=True):
                if isinstance(other, BaseException):
                    words = f"in two threads at once one raises {type(other).__name__}: {other}"
                    return ThreadSafety(verdict=Verdict.RAISES, reason=words)
                difference = difference_between(one, other, varying)
                if difference:
                    words = f"in two threads at once it differs ({difference})"
                    return ThreadSafety(
                        verdict=Verdict.WRONG, reason=words, num_steps=num_steps
                    )  # fmt: skip
        num_steps *= _SAFETY_ROUNDS
        return ThreadSafety(verdict=Verdict.CORRECT, num_steps=num_steps)
    finally:
        close_all(made)


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """Call in threads that begin together; return what they return or raise."""
    results: list[Any] = [None] * len(calls)
    start = threading.Barrier(len(calls))

    def run(index: int) -> None:
        try:
            start.wait()
            results[index] = calls[index]()
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@contextmanager
def switching_every(interval_s: float) -> Iterator[None]:
    """Let Python take the lock away from a thread so often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval_s)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _watched(where: Whereabouts, packed: bytes, seed: int, budget_s: float) -> GilFinding:
    factory = unpickled(packed)
    where.at("its constructor")
    made: list[Env] = [factory(), factory()]
    try:
        actions = sampled_actions(made[0], seed, 64)
        for env in made:
            where.at("the first reset")
            env.reset(seed=seed)
            where.at("a step")
            run_steps(env, actions, time.perf_counter() + budget_s / 20, most_steps=3)
        where.at("a step, while another thread waits for the interpreter lock")
        share, num_steps = _share_of_steps_that_let_run(made[0], actions, budget_s / 2)
        where.at("a step in two threads at once")
        speeds = [_speed_of_two(made, actions, budget_s / _SPEED_ROUNDS / 4) for _ in range(_SPEED_ROUNDS)]
        return GilFinding(
            verdict=Verdict.CORRECT,
            gil=_judged(share),
            share=share,
            num_steps=num_steps,
            two_threads_speed=statistics.median(speeds),
            two_threads_low=min(speeds),
            two_threads_high=max(speeds),
            num_rounds=len(speeds),
        )
    finally:
        close_all(made)


def _judged(share: float) -> Gil:
    if not gil_is_enabled():
        return Gil.ABSENT
    if share >= _RELEASED_FROM:
        return Gil.RELEASED
    return Gil.HELD if share < _HELD_BELOW else Gil.UNCLEAR


def _share_of_steps_that_let_run(env: Env, actions: list[Any], budget_s: float) -> tuple[float, int]:
    """Return the share of steps in which a thread that only counts got the interpreter lock.

    That thread gives the lock back after each turn. Python is kept from taking it away from the
    stepping thread, so a turn within a step means that the step released it, however busy the machine is.
    """
    counted, stopping = [0], [False]

    def count() -> None:
        while not stopping[0]:
            counted[0] += 1
            time.sleep(0)

    counter = threading.Thread(target=count, daemon=True)
    num_steps = num_with_turns = 0
    with switching_every(_NEVER_S):
        counter.start()
        while not counted[0]:
            time.sleep(0.001)
        until = time.perf_counter() + budget_s
        ended = False
        while num_steps < 3 or time.perf_counter() < until:
            if ended:
                env.reset()
            before = counted[0]
            _, _, terminated, truncated, _ = env.step(actions[num_steps % len(actions)])
            num_with_turns += counted[0] != before
            num_steps += 1
            ended = bool(terminated or truncated)
        stopping[0] = True
        counter.join()
    return num_with_turns / num_steps, num_steps


def _speed_of_two(envs: list[Env], actions: list[Any], budget_s: float) -> float:
    """Return the steps of two threads together, divided by those of one thread in the same time."""

    def run(env: Env) -> float:
        began = time.perf_counter()
        num_steps = max(1, run_steps(env, actions, began + budget_s))
        return num_steps / (time.perf_counter() - began)

    alone = run(envs[0])
    together: list[Any] = at_once([lambda: run(envs[0]), lambda: run(envs[1])])
    for outcome in together:
        if isinstance(outcome, BaseException):
            raise outcome
    return float(sum(together)) / alone
