"""What ``BatchEnv(backend="auto")`` does: measure, choose, say why.

The environment is tried in a process of its own (:mod:`~joblib_envs.choosing.trial`), while the workers
start with which the machine is measured. Nothing is measured where there is nothing to choose. Where
an environment can't be tried, what is right for every environment is taken, and the reason says so.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import joblib
from joblib.parallel import get_active_backend

from joblib_envs.choosing.decision import Choice, EnvCosts, HandOver, Place, choose
from joblib_envs.choosing.machine import HandOverMeter, known_hand_over
from joblib_envs.choosing.trial import Trouble, TroubleKind, try_env
from joblib_envs.errors import ArgumentError
from joblib_envs.execution.registry import Workers, actor_backends, choose_backend
from joblib_envs.factories import different_factories, packed_factories
from joblib_envs.shard import EnvFactory

__all__ = ["choose_for"]

_MOST_FACTORIES = 3
_TIMEOUT_S = 5.0
"""For an environment that takes long to import and to make, which building the batch would take too."""

_MANY = 1024


def choose_for(
    factories: Sequence[EnvFactory],
    n_jobs: int | None,
    execution: str | None,
    caller_steps: bool | None,
    inner_max_num_threads: int | None,
) -> Choice:
    """Choose how a batch of these environments runs.

    Args:
        factories: One for each sub-environment.
        n_jobs: A bound for the number of workers. None: the context's, else what pays.
        execution: None or ``"actors"``.
        caller_steps: False keeps the environments out of the caller's process, hence in worker processes.
        inner_max_num_threads: As for ``BatchEnv``.

    Raises:
        ArgumentError: A number or a combination isn't allowed.
    """
    started = time.perf_counter()
    if execution not in (None, "actors"):
        raise ArgumentError(
            f"execution={execution!r} can't be had with backend='auto', which chooses among actors: leave it out, or "
            f"name the backend, as in backend='loky', execution={execution!r}"
        )
    num_envs = len(factories)
    places, num_threads = _places(n_jobs, caller_steps, inner_max_num_threads, num_envs)
    choice = _without_measuring(places, num_envs)
    if choice is None:
        packed = _packed(factories)
        if packed is None:
            choice = _of_caller(places, "A factory can't be pickled, so it can be tried in no process of its own")
        else:
            choice = _measured(packed, places, num_envs, num_threads)
    return replace(choice, measured_s=time.perf_counter() - started)


def _places(
    n_jobs: int | None, caller_steps: bool | None, inner_max_num_threads: int | None, num_envs: int
) -> tuple[list[Place], int]:
    """Return where environments can be stepped, the simplest first, and the BLAS threads."""
    bound = get_active_backend()[1] if n_jobs is None else n_jobs
    places, num_threads = [], 1
    for name, entry in actor_backends().items():
        if caller_steps is False and entry.workers is not Workers.PROCESSES:
            continue
        chosen = choose_backend(
            name, _MANY if bound is None else bound, None, caller_steps, inner_max_num_threads, num_envs
        )
        num_threads = chosen.num_threads
        if entry.workers is Workers.CALLER or chosen.n_jobs > 1 or not chosen.caller_steps:
            places.append(Place(name, entry.workers, chosen.caller_steps, chosen.n_jobs))
    return places, num_threads


def _without_measuring(places: Sequence[Place], num_envs: int) -> Choice | None:
    """Choose where there is nothing to measure."""
    if num_envs == 1 or max(place.most_workers for place in places) == 1:
        words = (
            "There is one environment" if num_envs == 1 else "n_jobs=1, or the place of this call, allows one worker"
        )
        return _taken(places[0], 1, f"{words}, so nothing was measured: nobody is faster than the caller alone.")
    return None


def _packed(factories: Sequence[EnvFactory]) -> list[bytes] | None:
    """Pickle some different factories, evenly taken; None where one can't be."""
    different = different_factories(factories)
    step = max(1, -(-len(different) // _MOST_FACTORIES))
    try:
        return packed_factories(different[::step])
    except Exception:  # whatever a pickle raises
        return None


def _measured(packed: list[bytes], places: Sequence[Place], num_envs: int, num_threads: int) -> Choice:
    costs, hand_over = _costs_and_hand_over(packed, num_threads)
    if isinstance(costs, Trouble):
        return _in_trouble(costs, places)
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return choose(costs, hand_over, places, num_envs, num_cpus=joblib.cpu_count(), has_gil=has_gil)


def _costs_and_hand_over(packed: list[bytes], num_threads: int) -> tuple[EnvCosts | Trouble, HandOver]:
    known = known_hand_over()
    if known is not None:
        return try_env(packed, num_threads, _TIMEOUT_S), known
    outcome: list[EnvCosts | Trouble | BaseException] = []

    def run() -> None:
        try:
            outcome.append(try_env(packed, num_threads, _TIMEOUT_S))
        except BaseException as error:
            outcome.append(error)

    aside = threading.Thread(target=run, daemon=True)
    aside.start()
    with contextlib.ExitStack() as stack:
        stack.callback(aside.join)
        meter = stack.enter_context(HandOverMeter())
        aside.join()  # one after the other: what is timed has the machine to itself
        hand_over = meter.measured()
    found = outcome[0]
    if isinstance(found, BaseException):
        raise found
    return found, hand_over


def _in_trouble(trouble: Trouble, places: Sequence[Place]) -> Choice:
    """Choose what is right for every environment."""
    if trouble.kind is TroubleKind.CANNOT_TRAVEL:
        return _of_caller(places, trouble.words[0].upper() + trouble.words[1:])
    place = next((each for each in places if each.workers is Workers.PROCESSES), places[0])
    n_jobs = max(1, min(place.most_workers, joblib.cpu_count()))
    if place.caller_steps and n_jobs == 1:
        place = places[0]
    words = f"Nothing could be measured, since {trouble.words} when it was tried"
    if trouble.kind is TroubleKind.DIED and place.workers is Workers.PROCESSES:
        safe = replace(place, caller_steps=False)
        return _taken(safe, n_jobs, f"{words}: worker processes, so that it can't take the caller along.")
    return _taken(place, n_jobs, f"{words}: the default is taken.")


def _of_caller(places: Sequence[Place], why: str) -> Choice:
    return _taken(
        places[0],
        1,
        f"{why}: {places[0].backend} needs no pickling and is right for every environment. "
        f"(Where steps wait, backend='threading' is faster, if instances don't disturb one another.)",
    )


def _taken(place: Place, n_jobs: int, reason: str) -> Choice:
    return Choice(place.backend, "actors", n_jobs, place.caller_steps, reason)
