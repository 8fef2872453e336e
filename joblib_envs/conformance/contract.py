"""What a vector environment must have and do, apart from stepping."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium.error
import numpy as np
from gymnasium.envs.registration import EnvSpec

from joblib_envs.conformance.programs import GetAttr, MaskedReset, Reset, Step, batch_actions
from joblib_envs.conformance.session import Session

__all__ = ["check_arguments", "check_attributes", "check_closing", "check_contract", "check_numpy_seeds"]

_ATTRIBUTES = (
    "num_envs",
    "single_observation_space",
    "single_action_space",
    "observation_space",
    "action_space",
    "metadata",
    "render_mode",
    "closed",
)
_MISSING = "(missing)"


def check_attributes(session: Session) -> None:
    """Compare the attributes with the reference's.

    Raises:
        FaultFoundError: One is missing or different.
    """
    for name in _ATTRIBUTES:
        session.compare(name, getattr(session.reference, name), getattr(session.judged, name, _MISSING))
    spec = getattr(session.judged, "spec", _MISSING)
    if not isinstance(spec, EnvSpec | None):
        session.fail("spec", "an EnvSpec or None", repr(spec))


def check_contract(session: Session) -> None:
    """Check what every vector environment has; the session's batch is a counting one.

    Raises:
        FaultFoundError: Something is missing or different.
    """
    _check_metadata(session)
    if f"num_envs={session.workload.num_envs}" not in repr(session.judged):
        session.fail("repr", f"num_envs={session.workload.num_envs} in it", repr(session.judged))
    session.run([Reset(0), GetAttr("np_random"), GetAttr("np_random_seed")])
    for name in ("np_random", "np_random_seed"):
        session.compare(name, getattr(session.reference, name), getattr(session.judged, name, _MISSING))
    for name in ("single_action_space", "action_space"):
        samples = []
        for envs in (session.reference, session.judged):
            space = getattr(envs, name)
            space.seed(5)
            samples.append([space.sample() for _ in range(3)])
        session.compare(f"samples of the seeded {name}", *samples)


def check_arguments(session: Session) -> None:
    """Check that wrong arguments raise what they should, and that nobody moves.

    The wrong number of actions comes last: Gymnasium's own vector environments step
    some before they notice it, and only the strict check goes on after it.

    Raises:
        FaultFoundError: A wrong argument is taken, raises something else, or has an effect.
    """
    judged, num_envs = session.judged, session.workload.num_envs
    actions = _zeros(session)
    session.run([Reset(0), Step(actions)])

    def refuses(name: str, wanted: type[Exception], call: Callable[[], Any]) -> None:
        session.note(name)
        _must_raise(session, name, wanted, call)

    refuses("reset(seed=[0])", ValueError, lambda: judged.reset(seed=[0] * (num_envs + 1)))
    masks: list[tuple[Any, type[Exception]]] = [
        ([True] * num_envs, TypeError),
        (np.ones(num_envs, dtype=np.int64), TypeError),
        (np.ones(num_envs + 1, dtype=np.bool_), ValueError),
        (np.zeros(num_envs, dtype=np.bool_), ValueError),
    ]
    for mask, wanted in masks:
        options = {"reset_mask": mask}
        refuses(f"reset(options={options!r})", wanted, partial(judged.reset, options=options))
    refuses("step(0)", TypeError, lambda: judged.step(0))
    too_many = [0.5] * (num_envs + 1)
    refuses("set_attr with too many values", ValueError, lambda: judged.set_attr("bonus", too_many))
    session.run([Step(actions), GetAttr("count"), MaskedReset((True, *[False] * (num_envs - 1)), 3)])
    for count in (num_envs - 1, num_envs + 1) if session.strict else (num_envs - 1,):
        refuses(f"step with {count} actions", ValueError, partial(judged.step, actions[:1] * count))
    if session.strict:
        session.run([GetAttr("count"), Step(actions), GetAttr("np_random")])


def check_numpy_seeds(session: Session) -> None:
    """Check that NumPy integers are taken as seeds, with the effect of Python's.

    Raises:
        FaultFoundError: They are refused, or have another effect.
    """
    many = [3, None, *range(session.workload.num_envs - 2)]
    numpy_many = [None if seed is None else np.int32(seed) for seed in many]
    for seed, numpy_seed in ((7, np.int64(7)), (many, numpy_many)):
        session.note(f"reset(seed={numpy_seed!r})")
        try:
            got = session.judged.reset(seed=numpy_seed)
        except Exception as error:
            session.fail("exception", "none", repr(error), error)
        session.compare("reset", session.reference.reset(seed=seed), got)


def check_closing(session: Session) -> None:
    """Close the batch and check that it is, that a second time does nothing, and (strict) that it stays so.

    Raises:
        FaultFoundError: It isn't closed, raises, or goes on stepping.
    """
    actions = _zeros(session)
    session.run([Reset(0), Step(actions)])
    for time in ("close()", "close() a second time"):
        session.note(time)
        try:
            session.judged.close()
        except Exception as error:
            session.fail(time, "no exception", repr(error), error)
        session.compare("closed", True, getattr(session.judged, "closed", _MISSING))
    if session.strict:
        closed_error = gymnasium.error.ClosedEnvironmentError
        _must_raise(session, "step after close", closed_error, lambda: session.judged.step(actions))
        _must_raise(session, "reset after close", closed_error, lambda: session.judged.reset(seed=0))


def _check_metadata(session: Session) -> None:
    """The batch's autoreset mode must not be written into the environment class's own dict."""
    for env in session.reference.envs:
        if "autoreset_mode" in type(env.unwrapped).metadata:
            session.fail("metadata of the environment's class", "left as it was", "has autoreset_mode")


def _must_raise(session: Session, name: str, wanted: type[Exception], call: Callable[[], Any]) -> None:
    try:
        result = call()
    except wanted:
        return
    except Exception as error:
        session.fail(name, f"a {wanted.__name__}", repr(error), error)
    session.fail(name, f"a {wanted.__name__}", f"no exception, but {result!r}")


def _zeros(session: Session) -> list[Any]:
    space = session.reference.single_action_space
    return list(batch_actions(space, [0] * session.workload.num_envs))
