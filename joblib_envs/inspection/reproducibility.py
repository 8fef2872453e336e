"""Whether equal seeds and actions give equal data: in one process, and in another one."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cloudpickle
import numpy as np

from joblib_envs.equality import Verdict
from joblib_envs.inspection.driving import Env, Trace, difference_between, play, varying_infos
from joblib_envs.inspection.errands import Errands, Mishap, Whereabouts
from joblib_envs.inspection.findings import Reproducibility
from joblib_envs.processes import unpickled
from joblib_envs.state.trial_runs import close_all

__all__ = ["GENERATORS", "compare_elsewhere", "compare_here", "pack_trace"]

GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[int], None]]] = {
    "numpy.random": (np.random.get_state, np.random.seed),
    "random": (random.getstate, random.seed),
}
"""The global random generators: how their state is read, and how they are seeded."""


def compare_here(
    factory: Callable[[], Env], made: list[Env], actions: list[Any], seed: int, where: Whereabouts
) -> tuple[Reproducibility, Trace]:
    """Compare two new instances; where they differ, find out which global generator is behind it.

    Args:
        factory: Makes an instance.
        made: Where instances are kept, to be closed.
        actions: What each is given.
        seed: Of the first reset.
        where: Told what comes next.

    Returns:
        The finding, and what the first instance answered.
    """

    def trace() -> Trace:
        where.at("its constructor")
        made.append(factory())
        return play(made[-1], actions, seed=seed, at=where.at)

    one, other = trace(), trace()
    difference = difference_between(one, other)
    if not difference:
        return Reproducibility(
            verdict=Verdict.CORRECT,
            num_steps=len(actions),
            one_process=True,
            varying_infos=varying_infos(one, other),
        ), one
    return Reproducibility(
        verdict=Verdict.NOT_REPRODUCIBLE,
        reason="two instances in one process differ, with equal seeds and actions",
        num_steps=len(actions),
        one_process=False,
        first_difference=difference,
        seeded_by=_what_seeds_it(trace),
    ), one


def _what_seeds_it(trace: Callable[[], Trace]) -> tuple[str, ...]:
    """Try the global generators: each alone, then all."""
    for names in (("numpy.random",), ("random",), ("numpy.random", "random")):
        one, other = _seeded(names, trace), _seeded(names, trace)
        if not difference_between(one, other):
            return names
    return ()


def _seeded(names: tuple[str, ...], trace: Callable[[], Trace]) -> Trace:
    for name in names:
        _, seed = GENERATORS[name]
        seed(0)
    return trace()


def compare_elsewhere(
    errands: Errands, packed: bytes, found: Reproducibility, actions: bytes, trace: bytes, hash_seed: int, seed: int
) -> Reproducibility:
    """Add to a finding whether an instance in another process answers the same.

    Args:
        errands: Sends out.
        packed: The pickled function that makes an environment.
        found: What one process could tell.
        actions: Pickled actions.
        trace: The pickled trace of the first process.
        hash_seed: What tells the seed of hashes there.
        seed: Of the first reset.
    """
    if not found.one_process:
        return found
    if not trace:
        reason = "what it answers can't be pickled, so that two processes can't be compared"
        return replace(found, verdict=Verdict.INCOMPLETE, reason=reason)
    answer = errands.run(_trace, packed, actions, seed)
    if isinstance(answer, Mishap):
        return replace(found, verdict=answer.verdict, reason=f"in another process: {answer.reason}")
    there, hash_seed_there = answer
    one, other = unpickled(trace), unpickled(there) if there else []
    difference = difference_between(one, other)
    found = replace(
        found,
        two_processes=not difference,
        hash_seeds_differ=hash_seed_there != hash_seed,
        first_difference=difference,
        varying_infos=tuple(dict.fromkeys((*found.varying_infos, *varying_infos(one, other)))),
    )
    if not difference:
        return found
    reason = "instances in two processes differ, though two in one process don't"
    return replace(found, verdict=Verdict.NOT_REPRODUCIBLE, reason=reason)


def _trace(where: Whereabouts, packed: bytes, actions: bytes, seed: int) -> tuple[bytes, int]:
    """In another process: return the pickled trace of an instance, and what tells the seed of hashes."""
    made: list[Env] = []
    try:
        where.at("its constructor")
        made.append(unpickled(packed)())
        return pack_trace(play(made[0], unpickled(actions), seed=seed, at=where.at)), hash("joblib-envs")
    finally:
        close_all(made)


def pack_trace(trace: Trace) -> bytes:
    """Pickle a trace, without infos where they can't be; nothing where it can't be at all."""
    try:
        data: bytes = cloudpickle.dumps(trace)
        pickle.loads(data)
    except Exception:  # infos that hold locks, windows ...
        try:
            return cloudpickle.dumps([(name, values, {}) for name, values, _ in trace])  # type: ignore[no-any-return]
        except Exception:
            return b""
    return data
