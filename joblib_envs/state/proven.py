"""``capture`` and ``restore``, as users call them: a state whose way of being kept was tried first."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium

from joblib_envs.equality import Verdict
from joblib_envs.errors import ArgumentTypeError, StateCannotTravelError
from joblib_envs.factories import packed_factories, source_of
from joblib_envs.state import probe
from joblib_envs.state.env_state import EnvState, check_versions, checked_state, layers_of, spec_json_of
from joblib_envs.state.pickling import DEFAULT_OPTIONS
from joblib_envs.state.snapshot import captured_state, restored_env
from joblib_envs.state.trial import Proof

__all__ = ["UnprovenStateWarning", "capture", "restore"]


class UnprovenStateWarning(UserWarning):
    """A state was captured of which nobody has tried whether it goes on bit for bit."""


def capture(env: gymnasium.Env[Any, Any], *, prove: bool = True) -> EnvState:
    """Return the state of an environment with all its wrappers, as a value.

    The random generators of the environment and of its spaces, the wrappers' counters and
    statistics, and the simulator's state are in it; what is only there to draw (windows, viewers)
    is made again. The environment is left as it is.

    The first time for an environment, throw-away instances are made from its spec in fresh
    processes, which takes a second or two, to try whether such states go on bit for bit.

    Args:
        env: The environment.
        prove: Whether that is tried. An environment that its spec doesn't describe can't be
            tried; its state is captured with a warning.

    Returns:
        Its state. ``restore`` makes an environment of it, in any process, as often as wanted.

    Raises:
        ArgumentTypeError: ``env`` is no environment.
        StateCannotTravelError: The state can't be captured, or was found to be wrong.

    Warns:
        UnprovenStateWarning: It could not be tried.

    Example:
        >>> env = gymnasium.make("CartPole-v1")
        >>> observation, info = env.reset(seed=0)
        >>> state = capture(env)
        >>> copy = restore(state)
        >>> env.step(1)[0].tolist() == copy.step(1)[0].tolist()
        True
    """
    if not isinstance(env, gymnasium.Env):
        raise ArgumentTypeError(f"env must be a gymnasium.Env, not {type(env).__name__}")
    if not prove:
        return captured_state(env, DEFAULT_OPTIONS, is_proven=False)
    proof = _proof_of(env)
    if proof is None:
        warnings.warn(
            f"nobody has tried whether states of {env} go on bit for bit, since it can't be made again from its spec "
            f"(env.spec): make it with gymnasium.make and wrappers that record their arguments, use BatchEnv, which "
            f"has the function that makes it, or silence this with prove=False",
            UnprovenStateWarning,
            stacklevel=2,
        )
        return captured_state(env, DEFAULT_OPTIONS, is_proven=False)
    if proof.verdict is not Verdict.CORRECT:
        as_it_is = "" if proof.verdict is Verdict.RAISES else ", or prove=False to take it as it is"
        raise StateCannotTravelError(
            f"the state of {env} can't be captured, since it was tried and found that {proof.reason}. "
            f"Use BatchEnv(..., state_method='replay'), which keeps all calls in its place{as_it_is}"
        )
    return captured_state(env, proof.options, is_proven=True)


def restore(state: EnvState, *, strict: bool = True) -> gymnasium.Env[Any, Any]:
    """Make an environment that goes on from a state, bit for bit.

    It unpickles the state, which runs code: only restore states from sources that you trust.

    Args:
        state: The state; it stays as it is, and may be restored as often as wanted.
        strict: Whether a state that was made with other versions of Python, or of packages whose
            objects are in it, is refused.

    Returns:
        A new environment with all its wrappers.

    Raises:
        ArgumentTypeError: ``state`` is no EnvState.
        StateVersionError: It was made with other versions.
        StateFormatError: It can't be unpickled here.
        StateCannotTravelError: It was to be replayed, and the environment answered differently.
    """
    checked_state(state)
    if strict:
        check_versions(state)
    return restored_env(state)


def _proof_of(env: gymnasium.Env[Any, Any]) -> Proof | None:
    """Prove an environment by throw-away instances; None where its spec doesn't describe it."""
    key = spec_json_of(env)
    layers = layers_of(env)
    if key is None or (key, layers) not in _proofs:
        proof = _tried(env)
        if proof is not None and (proof.verdict is Verdict.UNAVAILABLE or proof.layers != layers):
            proof = None
        if key is None:
            return proof
        _proofs[key, layers] = proof
    return _proofs[key, layers]


_proofs: dict[tuple[str, tuple[str, ...]], Proof | None] = {}


def _tried(env: gymnasium.Env[Any, Any]) -> Proof | None:
    try:
        spec = env.spec
        packed = packed_factories(source_of(spec, None, (), None).factories) if spec is not None else []
    except Exception:  # arguments of wrappers that weren't recorded, or can't travel
        return None
    return probe.prove(packed)[0] if packed else None
