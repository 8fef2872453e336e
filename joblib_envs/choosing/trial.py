"""Tries an environment, with throw-away instances in a fresh, silent process.

Not in the caller's: there an environment could crash, hang or print, draw from global generators, or
use up what factories share with one another, such as an iterator.
"""

from __future__ import annotations

import enum
import itertools
import pickle
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np

from joblib_envs.choosing.decision import EnvCosts
from joblib_envs.drawing import draws_with_pygame
from joblib_envs.gil import gil_is_enabled
from joblib_envs.info_columns import InfoColumns, batch_columns
from joblib_envs.inspection.costs import voluntary_switches
from joblib_envs.inspection.driving import (
    Env,
    Trace,
    affordable_steps,
    difference_between,
    nbytes,
    play,
    sampled_actions,
)
from joblib_envs.inspection.errands import words_of
from joblib_envs.inspection.threads import at_once, switching_every
from joblib_envs.processes import run_in_fresh_process, unpickled
from joblib_envs.state.trial_runs import close_all

__all__ = ["Trouble", "TroubleKind", "try_env"]

_SEED = 0
_STEPS_S = 0.2
"""How long steps are timed, of all factories together."""

_FEWEST_STEPS = 3
_STEADY = 0.2
"""Steps that vary by a larger share of their time are looked at once more."""

_MOST_STEPS = 5000

_BLOCKS = 8

_THREADS_S = 0.25
"""How long instances may be stepped to see whether threads disturb them."""

_MOST_STEPS_IN_THREADS = 300
_THREAD_ROUNDS = 3
_WAITED_FOR_ONE_ANOTHER = 1.5
"""Two threads that wait at the same time do at least so much more than one."""


class TroubleKind(enum.StrEnum):
    """Why an environment couldn't be tried."""

    CANNOT_TRAVEL = "cannot travel"
    RAISED = "raised"
    DIED = "died"
    SLOW = "slow"


@dataclass(frozen=True)
class Trouble:
    """What went wrong when it was tried, for the batch to deal with.

    Attributes:
        kind: What happened.
        words: The same as a clause.
    """

    kind: TroubleKind
    words: str


def try_env(packed: Sequence[bytes], num_threads: int, timeout_s: float) -> EnvCosts | Trouble:
    """Measure an environment in a process of its own.

    Args:
        packed: The pickled functions that make it.
        num_threads: BLAS and OpenMP threads.
        timeout_s: After how long it is given up.
    """
    try:
        found: EnvCosts | Trouble = run_in_fresh_process(
            _try_here, list(packed), num_threads=num_threads, timeout_s=timeout_s
        )
    except TimeoutError:
        return Trouble(TroubleKind.SLOW, f"it gave no answer within {timeout_s:g} s")
    except EOFError:
        return Trouble(TroubleKind.DIED, "it ended its process")
    except Exception as error:
        return Trouble(TroubleKind.RAISED, f"it raised {words_of(error)}")
    return found


def _try_here(packed: list[bytes]) -> EnvCosts | Trouble:
    try:
        factories = [unpickled(each) for each in packed]
    except Exception as error:
        return Trouble(TroubleKind.CANNOT_TRAVEL, f"another process can't unpickle it ({words_of(error)})")
    made: list[Env] = []
    try:
        each = [_costs(factory, made, _STEPS_S / len(factories)) for factory in factories]
        costs = _together(each)
        is_gil_enabled = gil_is_enabled()
        # Where steps compute and hold the lock, processes do what threads can't; nobody needs to know.
        if (costs.waits or not is_gil_enabled) and not any(map(draws_with_pygame, made)):
            pair = [factories[0], factories[-1]]
            costs = _tried_in_threads(costs, pair, made)
        return costs
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return Trouble(TroubleKind.RAISED, f"it raised {words_of(error)}")
    finally:
        close_all(made)


def _costs(factory: Callable[[], Env], made: list[Env], budget_s: float) -> EnvCosts:
    """Step one instance for a while."""
    env = factory()
    if not isinstance(env, gymnasium.Env):
        raise TypeError(f"the factory returned {type(env).__name__}, not a gymnasium.Env")
    made.append(env)
    actions = sampled_actions(env, _SEED, 64)
    env.reset(seed=_SEED)
    env.step(actions[0])  # the first one may import, compile or allocate
    env.reset()
    began, cpu_began, gave_away = time.perf_counter(), time.process_time(), voluntary_switches()
    times, observation, info = _step_times(env, actions, budget_s, time.perf_counter)
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    gave_away = voluntary_switches() - gave_away
    # A processor that others take away isn't waiting: only what gives it away by itself waits.
    waits = gave_away > 0.05 * len(times) and cpu < elapsed / 2
    spent = elapsed if waits else min(elapsed, cpu)
    variation = _variation(times)
    if not waits and variation > _STEADY * spent / len(times):
        # Once more, by the time that they keep a processor busy: what others take isn't their own.
        variation = _variation(_step_times(env, actions, budget_s / 2, time.process_time)[0])
    told = InfoColumns(8)
    for row in range(len(told) if info else 0):
        told.write(row, info)
    pack_us, unpack_us = _trip_us(told)
    return EnvCosts(
        step_us=spent / len(times) * 1e6,
        step_std_us=variation * 1e6,
        cpu_share=min(1.0, cpu / max(spent, 1e-9)),
        waits=waits,
        observation_bytes=nbytes(observation),
        info_us=_time_of(lambda: batch_columns([told])) / len(told) if info else 0.0,
        info_pack_us=pack_us,
        info_unpack_us=unpack_us,
        num_steps=len(times),
    )


def _step_times(
    env: Env, actions: Sequence[Any], budget_s: float, clock: Callable[[], float]
) -> tuple[list[float], Any, dict[Any, Any]]:
    """Step for a while; return what each step took by a clock, and the last observation and info."""
    times: list[float] = []
    cycle = itertools.cycle(actions)
    began = time.perf_counter()
    until, deadline = began + budget_s, began + _FEWEST_STEPS * budget_s
    observation: Any = None
    info: dict[Any, Any] = {}
    now = began
    last = clock()
    # As little as possible beside the steps; a reset counts with the step after it.
    while now < deadline and len(times) < (_MOST_STEPS if now < until else _FEWEST_STEPS):
        observation, _, terminated, truncated, info = env.step(next(cycle))
        if terminated or truncated:
            env.reset()
        at, now = clock(), time.perf_counter()
        times.append(at - last)
        last = at
    return times, observation, info


def _variation(times: Sequence[float]) -> float:
    """Return the standard deviation of steps, without the machine's hiccups, which are seldom."""
    if len(times) < 2 * _BLOCKS:
        return float(np.std(sorted(times)[:-1])) if len(times) > 2 else 0.0
    return statistics.median(float(np.std(block)) for block in np.array_split(times, _BLOCKS))


def _trip_us(told: InfoColumns) -> tuple[float, float]:
    """Return what it takes to pickle and to unpickle an info's part that goes through no column."""
    beside = told.beside
    if not beside:
        return 0.0, 0.0
    try:
        data = pickle.dumps(beside, protocol=5)
        pack_us, unpack_us = _time_of(lambda: pickle.dumps(beside, protocol=5)), _time_of(lambda: pickle.loads(data))
    except Exception:  # workers have another way, or fail with the reason
        return 0.0, 0.0
    return pack_us / len(told), unpack_us / len(told)


def _time_of(call: Callable[[], Any]) -> float:
    """Return what a call takes, in microseconds."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def _together(each: Sequence[EnvCosts]) -> EnvCosts:
    """Return the mean of what different factories' environments cost; how they differ counts as variation."""
    if len(each) == 1:
        return each[0]

    def mean(name: str) -> float:
        return statistics.fmean(getattr(costs, name) for costs in each)

    spread = statistics.pstdev([costs.step_us for costs in each])
    return EnvCosts(
        step_us=mean("step_us"),
        cpu_share=mean("cpu_share"),
        info_us=mean("info_us"),
        info_pack_us=mean("info_pack_us"),
        info_unpack_us=mean("info_unpack_us"),
        step_std_us=max(spread, *(costs.step_std_us for costs in each)),
        waits=all(costs.waits for costs in each),
        observation_bytes=max(costs.observation_bytes for costs in each),
        num_steps=sum(costs.num_steps for costs in each),
    )


def _tried_in_threads(costs: EnvCosts, factories: list[Callable[[], Env]], made: list[Env]) -> EnvCosts:
    """Step two instances in two threads at once, against each alone."""
    runs = 2 + _THREAD_ROUNDS
    most_steps = affordable_steps(np.empty(costs.observation_bytes, np.uint8), _MOST_STEPS_IN_THREADS)
    num_steps = min(most_steps, int(_THREADS_S / runs / max(costs.step_us * 1e-6, 1e-9)))
    num_rounds = _THREAD_ROUNDS
    if num_steps < 5:
        num_steps, num_rounds = 3, 1
        if costs.step_us * 1e-6 * 3 * num_steps > 2 * _THREADS_S:
            return costs  # too slow to be tried
    started = time.perf_counter()
    right, alone_s = [], []
    for index in range(2):
        run = _run(factories[index], index, num_steps, made)
        began = time.perf_counter()
        right.append(run())
        alone_s.append(time.perf_counter() - began)
    is_costly = time.perf_counter() - started > _THREADS_S
    speeds = []
    for _ in range(1 if is_costly else num_rounds):
        pair = [_run(factories[index], index, num_steps, made) for index in range(2)]
        with switching_every(1e-5):
            began = time.perf_counter()
            got = at_once(list(pair))
            speeds.append(sum(alone_s) / (time.perf_counter() - began))
        for one, other in zip(right, got, strict=True):
            # Infos may hold times; data that differ are found, be it for threads or by itself.
            if isinstance(other, BaseException) or difference_between(one, other, None):
                return costs
    speed = max(speeds)
    is_safe = not costs.waits or speed > _WAITED_FOR_ONE_ANOTHER
    held = min(1.0, max(0.0, 2 / speed - 1))
    is_gil_enabled = gil_is_enabled()
    return replace(costs, safe_in_threads=is_safe, held_share=1.0 if is_gil_enabled else held)


def _run(factory: Callable[[], Env], index: int, num_steps: int, made: list[Env]) -> Callable[[], Trace]:
    """Make an instance, and a function that steps it."""
    env = factory()
    made.append(env)
    actions = sampled_actions(env, _SEED + index, num_steps)
    return lambda: play(env, actions, seed=_SEED + index, most_frames=0)
