"""What a step of a batch costs on this machine: as ``backend="auto"`` knows it, measured once and kept."""

from __future__ import annotations

import functools

import joblib

from joblib_envs.choosing.machine import HandOverMeter, known_hand_over
from joblib_envs.equality import Verdict
from joblib_envs.execution.registry import Workers, actor_backends
from joblib_envs.inspection.errands import words_of
from joblib_envs.inspection.findings import Exchange

__all__ = ["find_exchange"]


@functools.cache
def find_exchange() -> Exchange:
    """Time workers and a sequential batch, unless that was done lately."""
    num_cpus = joblib.cpu_count()
    hand_over = known_hand_over()
    if hand_over is None:
        try:
            with HandOverMeter() as meter:
                hand_over = meter.measured()
        except Exception as error:  # no processes or no shared memory to be had
            return Exchange(verdict=Verdict.RAISES, reason=words_of(error), num_cpus=num_cpus)
    num_workers = max(2, num_cpus)
    processes = [(name, entry) for name, entry in actor_backends().items() if entry.workers is Workers.PROCESSES]
    name, entry = processes[0]
    handed = num_workers - entry.caller_steps()
    return Exchange(
        verdict=Verdict.CORRECT,
        num_workers=num_workers,
        num_cpus=num_cpus,
        exchange_us=hand_over.call_us + handed * hand_over.worker_us[name],
        per_env_us=hand_over.per_env_us,
        hand_over=hand_over,
    )
