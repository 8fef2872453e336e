"""What the calls of an environment cost: medians of many, in a process that has no other work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from joblib_envs.equality import Verdict
from joblib_envs.inspection.driving import Env, sampled_actions
from joblib_envs.inspection.findings import Costs
from joblib_envs.state.trial_runs import close_all

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

__all__ = ["measured_costs", "voluntary_switches"]


def measured_costs(
    factory: Callable[[], Env], env: Env, made: list[Env], seed: int, budget_s: float, first_s: float
) -> Costs:  # fmt: skip
    """Time constructors, resets and steps.

    Args:
        factory: Makes an instance.
        env: The instance that is stepped.
        made: Where instances are kept, to be closed.
        seed: Of resets and actions.
        budget_s: About how long each is timed.
        first_s: What the first constructor took.
    """
    constructors = _times_of(lambda: made.append(factory()), budget_s, 3, 20)
    close_all(made[1:])
    del made[1:]
    resets = _times_of(env.reset, budget_s / 2, 3, 200)
    actions = sampled_actions(env, seed, 64)
    env.reset(seed=seed)
    steps: list[float] = []
    began, cpu_began, waited = time.perf_counter(), time.process_time(), voluntary_switches()
    while len(steps) < 3 or (time.perf_counter() - began < budget_s and len(steps) < 20_000):
        action = actions[len(steps) % len(actions)]
        started = time.perf_counter()
        _, _, terminated, truncated, _ = env.step(action)
        steps.append(time.perf_counter() - started)
        if terminated or truncated:
            env.reset()
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    # A processor that others take away isn't waiting: only what gives it away by itself waits.
    gave_away = (voluntary_switches() - waited) / len(steps)
    return Costs(
        verdict=Verdict.CORRECT,
        first_constructor_us=first_s * 1e6,
        constructor_us=statistics.median(constructors) * 1e6,
        constructor_samples=len(constructors),
        reset_us=statistics.median(resets) * 1e6,
        reset_samples=len(resets),
        step_us=statistics.median(steps) * 1e6,
        step_samples=len(steps),
        cpu_share=cpu / elapsed,
        waits=gave_away > 0.5 and cpu < elapsed / 2,
    )


def _times_of(call: Callable[[], Any], budget_s: float, fewest: int, most: int) -> list[float]:
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < fewest or (len(times) < most and time.perf_counter() - began < budget_s):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return times


def voluntary_switches() -> int:
    """Return how often this process has given the processor away by itself; 0 where that isn't counted."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw if resource is not None else 0
