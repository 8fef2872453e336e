"""Decides which way of keeping a state is faithful for an environment, by trying it (``trial.py``).

Answers are remembered for this process, by what the factories' pickles hold: spec, arguments,
wrappers, and functions of the user's script by their code.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence

from joblib_envs.equality import Verdict
from joblib_envs.errors import StateCannotTravelError
from joblib_envs.processes import run_in_fresh_process
from joblib_envs.state.adapters import StateAdapter, generation, registered, take_registered
from joblib_envs.state.pickling import DEFAULT_OPTIONS, CaptureOptions
from joblib_envs.state.trial import Proof, arrive_all, depart_all

__all__ = ["prove", "require_travelling_state"]

_TIMEOUT_S = 120.0

_DECIDED = (Verdict.CORRECT, Verdict.UNAVAILABLE)
"""What isn't refused: an environment that can't be made is left to the batch, which will say why."""


def require_travelling_state(
    packed_factories: Iterable[bytes], label: str, num_threads: int, purpose: str, remedy: str
) -> CaptureOptions:
    """Refuse environments whose state would be lost, and tell the way of pickling that is right for all.

    Args:
        packed_factories: Pickled functions that make one environment each.
        label: What the environment is called in the error.
        num_threads: BLAS and OpenMP threads, as in the batch.
        purpose: What it is needed for, to follow the label.
        remedy: What else can be done.

    Raises:
        StateCannotTravelError: No way is right, or it can't be told.
    """
    packed = list(packed_factories)
    proofs = prove(packed, num_threads)
    ways = list(dict.fromkeys(proof.options for proof in proofs if proof.verdict is Verdict.CORRECT))
    if len(ways) > 1:  # different kinds of environments in one batch: is there one way for all?
        for way in ways:
            tried = prove(packed, num_threads, only=way)
            if all(proof.verdict in _DECIDED for proof in tried):
                return way
        proofs = tried
    for proof in proofs:
        if proof.verdict not in _DECIDED:
            raise StateCannotTravelError(
                f"{purpose.format(label)}, and its state can't be trusted to survive that: {proof.reason}. {remedy}"
            )
    return ways[0] if ways else DEFAULT_OPTIONS


def prove(
    packed_factories: Sequence[bytes], num_threads: int = 1, *, only: CaptureOptions | None = None
) -> list[Proof]:
    """Try whether environments' states survive the trip into another process.

    Args:
        packed_factories: Pickled functions that make one environment each.
        num_threads: BLAS and OpenMP threads.
        only: The way of pickling to try; None: all that may differ.

    Returns:
        A proof for each; a verdict other than ``correct`` is a reason to refuse.
    """
    keys = [(hashlib.sha256(packed).digest(), num_threads, only, generation()) for packed in packed_factories]
    unknown = {key: packed for key, packed in zip(keys, packed_factories, strict=True) if key not in _known}
    _known.update(zip(unknown, _tried(list(unknown.values()), num_threads, only), strict=True))
    return [_known[key] for key in keys]


_known: dict[tuple[bytes, int, CaptureOptions | None, int], Proof] = {}


def _tried(packed_factories: list[bytes], num_threads: int, only: CaptureOptions | None) -> list[Proof]:
    if not packed_factories:
        return []
    run = functools.partial(run_in_fresh_process, num_threads=num_threads, timeout_s=_TIMEOUT_S)
    adapters = registered()
    try:
        departed = run(_depart, adapters, packed_factories, only)
        arrived: list[Proof] = run(_arrive, adapters, departed)
    except (TimeoutError, EOFError) as error:
        if len(packed_factories) > 1:  # one of them: which one is told by trying each alone
            return [proof for packed in packed_factories for proof in _tried([packed], num_threads, only)]
        if isinstance(error, TimeoutError):
            return [Proof(Verdict.HANGS, f"trying it took more than {_TIMEOUT_S:g} s")]
        return [Proof(Verdict.RAISES, f"it ended its process while it was tried ({error})")]
    return arrived


def _depart(
    adapters: Mapping[str, StateAdapter], packed_factories: list[bytes], only: CaptureOptions | None
) -> list[Proof | bytes]:
    take_registered(adapters)
    return depart_all(packed_factories, only)


def _arrive(adapters: Mapping[str, StateAdapter], departed: list[Proof | bytes]) -> list[Proof]:
    take_registered(adapters)
    return arrive_all(departed)
