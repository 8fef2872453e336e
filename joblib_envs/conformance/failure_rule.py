"""joblib-envs' rule for a sub-environment that raises: the others' data are not lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium.error
import numpy as np
from gymnasium.vector import AutoresetMode

from joblib_envs.conformance.programs import (
    Call,
    GetAttr,
    MaskedReset,
    Operation,
    Render,
    Reset,
    SetAttr,
    Step,
)
from joblib_envs.conformance.session import MakeVectorEnv, Session
from joblib_envs.conformance.wanted_infos import InfoRule, lossless_infos
from joblib_envs.conformance.workloads import EnvFn, Workload
from joblib_envs.envs import FailingEnv, FailureKind, FailurePlace

__all__ = ["failure_checks"]

_ONE = 1
_SHORT, _LONG = 2, 9


def failure_checks(make: MakeVectorEnv, autoreset_mode: AutoresetMode, num_envs: int) -> list[Callable[[], None]]:
    """Return the checks of the rule, each of which raises FaultFoundError.

    The rule: the error is of the original's type, names the failed in ``env_index`` and
    ``failures``, and has in ``partial`` what the others returned, zeros for the failed,
    and the mask ``failed``. Before a reset of the failed, ``step`` raises ``ResetNeeded``
    and nobody moves; the others are as if nothing had happened.

    Args:
        make: Builds the vector environment to judge.
        autoreset_mode: The batch's autoreset mode.
        num_envs: Number of sub-environments, at least 3.
    """
    begin = partial(_Failures, make, autoreset_mode, num_envs)
    step = _step(num_envs)
    checks: list[Callable[[], None]] = [
        lambda: _check_transition(begin({_ONE: _failing(2)}), [Reset(0), step], step),
        lambda: _check_transition(begin(_two_at_once(num_envs)), [Reset(0)], step),
        lambda: _check_transition(begin({_ONE: _failing(2, FailurePlace.RESET)}), [Reset(0)], Reset(1)),
        lambda: _check_accesses(begin, num_envs),
    ]
    if autoreset_mode is not AutoresetMode.DISABLED:
        # The reset that fails is the one that ends the short episode.
        short = partial(_failing, 2, FailurePlace.RESET, episode_length=_SHORT)
        num_steps = 1 if autoreset_mode is AutoresetMode.SAME_STEP else 2
        program: list[Operation] = [Reset(0), *[step] * num_steps]
        checks.append(lambda: _check_transition(begin({_ONE: short()}), program, step))
    return checks


class _Failures(Session):
    """A session whose judged batch has failing sub-environments, and whose reference has not."""

    def __init__(
        self, make: MakeVectorEnv, autoreset_mode: AutoresetMode, num_envs: int, failing: dict[int, EnvFn]
    ) -> None:
        lengths = [_episode_length(env_index, failing.get(env_index)) for env_index in range(num_envs)]
        healthy = [partial(FailingEnv, None, episode_length=length, render_mode="rgb_array") for length in lengths]
        self.failing = sorted(failing)

        def make_failing(env_fns: Any, *, autoreset_mode: AutoresetMode) -> Any:
            mixed = [failing.get(env_index, env_fn) for env_index, env_fn in enumerate(env_fns)]
            return make(mixed, autoreset_mode=autoreset_mode)

        workload = Workload("failing", tuple(healthy))
        super().__init__(make_failing, workload, autoreset_mode, strict=True, infos=InfoRule.LOSSLESS, check="failures")

    @property
    def failed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """The mask of those that fail."""
        return np.isin(np.arange(self.workload.num_envs), self.failing)

    def error_of(self, operation: Operation) -> Any:
        """Return the error of an operation that must fail, with its attributes checked."""
        self.note(f"{operation!r}, in which {self.failing} fail")
        try:
            operation.perform(self.judged, operation.arguments())
        except Exception as error:
            raised: Any = error
        else:
            self.fail("exception", "one that names the failed", "none")
        if not all(hasattr(raised, name) for name in ("env_index", "failures", "partial")):
            self.fail("error", "one with env_index, failures and partial", repr(raised), raised)
        self.compare("error.env_index", self.failing[0], raised.env_index)
        self.compare("error.failures", self.failing, sorted(raised.failures))
        if self.failing == [_ONE] and not isinstance(raised, ValueError):
            self.fail("error", "an instance of the original's type, ValueError", repr(raised))
        return raised


def _failing(
    fail_at: int,
    where: FailurePlace = FailurePlace.STEP,
    kind: FailureKind = FailureKind.VALUE_ERROR,
    episode_length: int = _LONG,
) -> EnvFn:
    return partial(FailingEnv, fail_at, where.value, kind.value, episode_length=episode_length, render_mode="rgb_array")


def _two_at_once(num_envs: int) -> dict[int, EnvFn]:
    return {
        0: _failing(1, kind=FailureKind.TWO_ARGUMENTS),
        num_envs - 1: _failing(1, kind=FailureKind.UNPICKLABLE),
    }


def _episode_length(env_index: int, env_fn: EnvFn | None) -> int:
    if isinstance(env_fn, partial):
        length: int = env_fn.keywords["episode_length"]
        return length
    # The first one's episode ends in the step in which another fails.
    return _SHORT if env_index == 0 else _LONG


def _step(num_envs: int) -> Step:
    return Step([0] * num_envs)


def _check_transition(session: _Failures, before: list[Operation], failing: Step | Reset) -> None:
    """Check a step or reset that fails: its error, the pause after it, and the way out."""
    with session:
        session.run(before)
        wanted = _partial(session, failing.perform(session.reference, failing.arguments()))
        got = session.error_of(failing).partial
        session.compare("error.partial", wanted, got)
        _check_pause(session)
        heal = MaskedReset(tuple(session.failed.tolist()), 5)
        step = _step(session.workload.num_envs)
        session.run([heal, GetAttr("count"), GetAttr("np_random"), step, step])


def _partial(session: _Failures, results: dict[str, Any]) -> tuple[Any, ...]:
    """Return what the reference gives, without the rows and infos of the failed."""
    failed = session.failed
    for field, value in results.items():
        if field != "infos":
            value[failed] = 0
    records = [record for record in session.reference.records if not failed[record[0]]]
    results["infos"] = lossless_infos(records, session.workload.num_envs)
    return (*results.values(), failed)


def _check_pause(session: _Failures) -> None:
    """Until a reset of the failed, a step raises and nobody moves."""
    counts = session.judged.get_attr("count")
    try:
        session.judged.step([0] * session.workload.num_envs)
    except gymnasium.error.ResetNeeded:
        pass
    except Exception as error:
        session.fail("step before a reset of the failed", "ResetNeeded", repr(error), error)
    else:
        session.fail("step before a reset of the failed", "ResetNeeded", "no exception")
    session.compare("count after the refused step", counts, session.judged.get_attr("count"))


def _check_accesses(begin: Callable[[dict[int, EnvFn]], _Failures], num_envs: int) -> None:
    """Check call, set_attr and render: the others' results are in the error."""
    places: dict[FailurePlace, tuple[Operation, Any]] = {
        FailurePlace.CALL: (Call("explode"), None),
        FailurePlace.RENDER: (Render(), None),
        FailurePlace.SET_ATTR: (SetAttr("fragile", 4), "fragile"),
    }
    for place, (operation, attribute) in places.items():
        with begin({_ONE: _failing(1, place)}) as session:
            session.run([Reset(0), _step(num_envs)])
            wanted = operation.perform(session.reference, operation.arguments())
            got = session.error_of(operation).partial
            session.compare("error.partial[-1]", session.failed, got[-1])
            if attribute is None:
                (results,) = wanted.values()
                others = tuple(None if index == _ONE else value for index, value in enumerate(results))
                session.compare("error.partial", (others, session.failed), got)
            else:
                wanted_values = tuple(0 if index == _ONE else 4 for index in range(num_envs))
                session.compare(attribute, wanted_values, session.judged.get_attr(attribute))
            session.run([Reset(3), _step(num_envs)])
