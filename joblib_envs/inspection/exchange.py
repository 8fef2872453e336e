"""What a step of a batch costs on this machine, measured with environments that only count."""

from __future__ import annotations

import functools
import statistics
import time

import joblib

from joblib_envs.equality import Verdict
from joblib_envs.inspection.errands import Errands, Mishap, Whereabouts
from joblib_envs.inspection.findings import Exchange

__all__ = ["find_exchange"]

_ENVS_OF_A_LONG_BATCH = 64
_TIMEOUT_S = 60.0


@functools.cache
def find_exchange() -> Exchange:
    """Time loky actors and a sequential batch, once in this process's life."""
    num_cpus = joblib.cpu_count()
    with Errands(_TIMEOUT_S) as errands:
        found = errands.run(_measure, max(2, num_cpus))
    if isinstance(found, Mishap):
        return Exchange(verdict=found.verdict, reason=found.reason, num_cpus=num_cpus)
    exchange_us, per_env_us = found
    return Exchange(
        verdict=Verdict.CORRECT,
        num_workers=max(2, num_cpus),
        num_cpus=num_cpus,
        exchange_us=exchange_us,
        per_env_us=per_env_us,
    )


def _measure(where: Whereabouts, num_workers: int) -> tuple[float, float]:
    where.at("a batch of environments that count")
    exchange_us = _step_us("loky", num_workers, num_workers)
    return exchange_us, _step_us("sequential", _ENVS_OF_A_LONG_BATCH, 1) / _ENVS_OF_A_LONG_BATCH


def _step_us(backend: str, num_envs: int, n_jobs: int) -> float:
    from joblib_envs.batch_env import BatchEnv  # which needs the modules of states, as this package does

    actions = [0] * num_envs
    times: list[float] = []
    with BatchEnv("joblib_envs/Counting-v0", num_envs, backend=backend, n_jobs=n_jobs) as envs:
        envs.reset(seed=0)
        began = time.perf_counter()
        while len(times) < 50 or (len(times) < 1000 and time.perf_counter() - began < 0.3):
            started = time.perf_counter()
            envs.step(actions)
            times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6
