"""What one trip of a state costs: by our capture, and by replay."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from joblib_envs.equality import Verdict
from joblib_envs.inspection.driving import Env, sampled_actions
from joblib_envs.inspection.errands import Errands, Mishap, Whereabouts
from joblib_envs.inspection.findings import ReplayFinding, StateFinding
from joblib_envs.processes import unpickled
from joblib_envs.state.pickling import DEFAULT_OPTIONS, CaptureOptions, captured, restored
from joblib_envs.state.trial import Proof
from joblib_envs.state.trial_runs import close_all

__all__ = ["find_state"]

_CALLS_TO_REPLAY = 100
_STEPS_BEFORE = 12
_MOST_TRIPS = 100

_Trip = tuple[int, int, float, int]
"""Bytes each time, bytes once for each worker, median microseconds, number of trips."""


def find_state(
    errands: Errands,
    proofs: Sequence[Proof],
    packed: bytes,
    journaled: bytes,
    seed: int,
    step_us: float,
    budget_s: float,
) -> tuple[StateFinding, ReplayFinding]:
    """Time a trip of states that were proven to go on bit for bit.

    Args:
        errands: Sends out.
        proofs: Of captured states, and of replay.
        packed: The pickled function that makes an environment.
        journaled: The one that makes it keep a journal.
        seed: Of resets and actions.
        step_us: What a step takes, which decides how many are replayed.
        budget_s: About how long trips of one kind are timed.
    """
    proof, replay_proof = proofs
    num_calls = max(5, min(_CALLS_TO_REPLAY, int(budget_s / 5 * 1e6 / max(step_us, 1e-3))))
    state = StateFinding(verdict=proof.verdict, reason=proof.reason)
    replay = ReplayFinding(verdict=replay_proof.verdict, reason=replay_proof.reason)
    asked = [
        (packed, proof.options, _STEPS_BEFORE) if proof.verdict is Verdict.CORRECT else None,
        (journaled, DEFAULT_OPTIONS, num_calls - 1) if replay_proof.verdict is Verdict.CORRECT else None,
    ]
    trips = errands.run(_trips, asked, seed, budget_s)
    if isinstance(trips, Mishap):
        return replace(state, reason=state.reason or f"not timed: {trips.reason}"), replay
    if trips[0] is not None:
        size, shared, trip_us, samples = trips[0]
        state = replace(state, size_bytes=size, shared_size_bytes=shared, trip_us=trip_us, trip_samples=samples)
    if trips[1] is not None:
        size, _, trip_us, samples = trips[1]
        replay = replace(replay, num_calls=num_calls, size_bytes=size, trip_us=trip_us, trip_samples=samples)
    return state, replay


def _trips(
    where: Whereabouts, asked: list[tuple[bytes, CaptureOptions, int] | None], seed: int, budget_s: float
) -> list[_Trip | None]:
    return [None if each is None else _timed(where, *each, seed, budget_s) for each in asked]


def _timed(
    where: Whereabouts, packed: bytes, options: CaptureOptions, num_steps: int, seed: int, budget_s: float
) -> _Trip:
    """Capture and restore again and again; each time what was restored goes on to the next."""
    made: list[Env] = []
    try:
        where.at("its constructor")
        made.append(unpickled(packed)())
        where.at("the steps before a capture")
        _run(made[0], sampled_actions(made[0], seed, num_steps), seed)
        times: list[float] = []
        began = time.perf_counter()
        where.at("a capture or a restore")
        while len(times) < 4 or (len(times) < _MOST_TRIPS and time.perf_counter() - began < budget_s):
            started = time.perf_counter()
            data, departure = captured(made[0], options)
            made[:] = [restored(data, departure.shared, is_private=True)]
            times.append(time.perf_counter() - started)
        shared = sum(len(blob.data) for blob in departure.shared.values())
        return len(data), shared, statistics.median(times[1:]) * 1e6, len(times) - 1
    finally:
        close_all(made)


def _run(env: Env, actions: Sequence[object], seed: int) -> None:
    """Step so often, resets after ends not counted."""
    env.reset(seed=seed)
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
