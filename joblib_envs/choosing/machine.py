"""What a batch costs on this machine, measured with environments that only count, and kept.

It is kept for the process's life and, for a day, in a file: ``hand-over.json`` in the folder that the
environment variable ``JOBLIB_ENVS_CACHE`` names, else in ``joblib-envs`` in ``XDG_CACHE_HOME``, else in
``~/.cache``. An empty variable keeps nothing on the disk. A file that can't be read, is of another
version, Python or number of CPUs, or is too old, is measured anew; one that can't be written is done without.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np

from joblib_envs.choosing.decision import HandOver
from joblib_envs.execution.registry import Workers, actor_backends

__all__ = ["HandOverMeter", "cache_file", "known_hand_over"]

_OLDEST_S = 24 * 3600.0
_SAMPLE_S = 0.03
_FEWEST_SAMPLES = 20
_MANY = 8
_QUANTILE = 0.25
"""Of the calls' times: other work on the machine only makes them longer."""

_remembered: dict[str, HandOver] = {}


def known_hand_over() -> HandOver | None:
    """Return what was measured before; None where nothing was, or too long ago."""
    key = _key()
    if key not in _remembered:
        kept = _read(key)
        if kept is None:
            return None
        _remembered[key] = kept
    return _remembered[key]


class HandOverMeter:
    """Measures what a batch costs here; workers start when it is made, so that something else can be done meanwhile.

    As a context manager it closes what it has started.
    """

    def __init__(self) -> None:
        # Late: BatchEnv needs this package.
        from joblib_envs.batch_env import BatchEnv

        self._batches: dict[str, Any] = {}
        self._entries = actor_backends()

        def counting(num_envs: int, backend: str, n_jobs: int) -> Any:
            return BatchEnv("joblib_envs/Counting-v0", num_envs, backend=backend, n_jobs=n_jobs)

        self._counting = counting
        for name, entry in self._entries.items():
            if entry.workers is Workers.PROCESSES:
                self._batches[name] = counting(2, name, 2)

    def __enter__(self) -> HandOverMeter:
        return self

    def __exit__(self, *error: object) -> None:
        for batch in self._batches.values():
            batch.close()

    def measured(self) -> HandOver:
        """Measure, and keep it."""
        call_us, per_env_us = self._of_caller()
        worker_us: dict[str, float] = {}
        for name, entry in self._entries.items():
            if entry.workers is Workers.CALLER:
                continue
            num_envs = _MANY
            if entry.workers is Workers.PROCESSES:
                num_envs = 2
            else:
                self._batches[name] = self._counting(num_envs, name, num_envs)
            batch = self._batches[name]
            handed = sum(place != "caller" for place in batch.placement)
            # Threads run Python one after the other; the other way it is a matter of a microsecond.
            rest_us = call_us + per_env_us * num_envs
            worker_us[name] = max(1.0, (_call_us(batch) - rest_us) / max(handed, 1))
        found = HandOver(
            call_us=call_us, per_env_us=per_env_us, per_byte_us=_copy_us_of_a_byte(), worker_us=worker_us
        )  # fmt: skip
        _remembered[_key()] = found
        _write(_key(), found)
        return found

    def _of_caller(self) -> tuple[float, float]:
        name = next(name for name, entry in self._entries.items() if entry.workers is Workers.CALLER)
        with self._counting(1, name, 1) as one, self._counting(2 * _MANY, name, 1) as many:
            one_us, many_us = _call_us(one), _call_us(many)
        per_env_us = max(0.1, (many_us - one_us) / (2 * _MANY - 1))
        return max(1.0, one_us - per_env_us), per_env_us


def _call_us(batch: Any) -> float:
    batch.reset(seed=0)
    actions = np.zeros(batch.num_envs, np.int64)
    for _ in range(5):
        batch.step(actions)
    return _quiet_us(lambda: batch.step(actions))


def _copy_us_of_a_byte() -> float:
    source = np.ones(500_000, np.uint8)
    target = np.zeros_like(source)
    return _quiet_us(lambda: np.copyto(target, source)) / source.nbytes


def _quiet_us(call: Callable[[], Any]) -> float:
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < _FEWEST_SAMPLES or time.perf_counter() - began < _SAMPLE_S:
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return float(np.quantile(times, _QUANTILE)) * 1e6


def cache_file() -> Path | None:
    """Return where measurements are kept; None where they aren't."""
    folder = os.environ.get("JOBLIB_ENVS_CACHE")
    if folder is not None:
        return Path(folder) / "hand-over.json" if folder else None
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "joblib-envs" / "hand-over.json"
    except RuntimeError:  # there is no home
        return None


def _key() -> str:
    from joblib_envs import __version__

    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    parts = (
        __version__,
        platform.python_version(),
        platform.node(),
        joblib.cpu_count(),
        "gil" if has_gil else "no gil",
    )
    return " ".join(map(str, (*parts, ",".join(actor_backends()))))


def _read(key: str) -> HandOver | None:
    path = cache_file()
    if path is None:
        return None
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))[key]
        age_s = time.time() - float(kept["measured_at"])
        found = HandOver(
            call_us=float(kept["call_us"]),
            per_env_us=float(kept["per_env_us"]),
            per_byte_us=float(kept["per_byte_us"]),
            worker_us={str(name): float(value) for name, value in kept["worker_us"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    numbers = [found.call_us, found.per_env_us, found.per_byte_us, *found.worker_us.values()]
    is_sound = all(math.isfinite(number) and number >= 0 for number in numbers)
    return found if is_sound and 0 <= age_s < _OLDEST_S else None


def _write(key: str, found: HandOver) -> None:
    """Add it to the file, which is replaced as a whole; of two that write at once one is lost, and measured again."""
    path = cache_file()
    if path is None:
        return
    kept: Any = {}
    with contextlib.suppress(OSError, ValueError):
        kept = json.loads(path.read_text(encoding="utf-8"))
    kept = kept if isinstance(kept, dict) else {}
    kept[key] = {
        "measured_at": time.time(),
        "call_us": found.call_us,
        "per_env_us": found.per_env_us,
        "per_byte_us": found.per_byte_us,
        "worker_us": dict(found.worker_us),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".hand-over.", dir=path.parent)
    except OSError:
        return
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(kept, file, indent=2)
        Path(name).replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            Path(name).unlink()
