"""Tries, in fresh processes, whether an environment's state survives the trip, and by which way of pickling.

In the first process an instance is pickled at several moments, while a twin that never is
makes the same calls and tells what is right. In the second process each pickle goes on: steps,
resets without a seed and with one; once as it is, and once travelling anew after each call, as in
tasks execution. What comes out must equal what the twin gave, to the last bit. Handles of
outside simulators, state in module globals and state that the pickle drops all show as a
difference, also those that show only at an episode's boundary.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
import gymnasium

from joblib_envs.equality import Difference, Verdict, first_difference
from joblib_envs.processes import unpickled
from joblib_envs.state.cargo import Blob, Departure
from joblib_envs.state.env_state import layers_of
from joblib_envs.state.pickling import DEFAULT_OPTIONS, CaptureOptions, captured, culprit, restored
from joblib_envs.state.reordering import may_hold_sets, restored_in_another_order
from joblib_envs.state.trial_runs import (
    Path,
    can_be_reset,
    close_all,
    go_on,
    has_raised,
    run_early,
    run_into_an_episode,
    run_to_an_end,
    sampled_actions,
    seeded_resets,
    varying_infos,
    whole_run,
    without,
)

__all__ = ["Proof", "arrive_all", "depart_all"]

_NUM_CONTROLS = 3
_FEW = 3


class _Trip(enum.Enum):
    """How a copy is tried; the value follows the words that say when it was pickled."""

    ONCE = ""
    EACH_STEP = " and again after each step"
    OTHER_ORDER = ", whose sets give their elements in another order,"

    @property
    def blame(self) -> str:
        """What a difference means."""
        if self is _Trip.OTHER_ORDER:
            return "what it does depends on the order of a set, which no other process keeps"
        return "the copy lacks state"


@dataclass(frozen=True)
class Proof:
    """What was found out.

    Attributes:
        verdict: ``correct``, ``wrong``, ``raises``, ``not_reproducible``, ``hangs``, or
            ``unavailable`` where no instance could be made.
        reason: Why, in words; empty for ``correct``.
        options: The way of pickling that is right, where one is.
        layers: The names of the environment's layers, the outermost first.
    """

    verdict: Verdict
    reason: str = ""
    options: CaptureOptions = DEFAULT_OPTIONS
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Pickle:
    """One way of pickling at one moment.

    Attributes:
        options: The way.
        data: The pickle; empty where it raised.
        shared: What travels beside it.
        error: How it raised, in words.
    """

    options: CaptureOptions
    data: bytes = b""
    shared: dict[str, Blob] | None = None
    error: str = ""


@dataclass(frozen=True)
class _Moment:
    """An environment at one moment, and what happened from there on to the twin that was never pickled.

    Attributes:
        name: When it was.
        pickles: The environment, in each way that might be right.
        ended: Whether its episode had ended.
        fresh: Whether it was never reset.
        is_long: Whether it goes on for long, without a reset in the middle, and without travelling anew.
        actions: What it is given from there on.
        trace: What the twin answered.
    """

    name: str
    pickles: tuple[_Pickle, ...]
    ended: bool
    fresh: bool
    is_long: bool
    actions: tuple[Any, ...]
    trace: tuple[Any, ...]


def depart_all(packed_factories: list[bytes], only: CaptureOptions | None) -> list[Proof | bytes]:
    """In the first fresh process: a proof that there is nothing to try, or what the second process needs."""
    return [_depart(packed, only) for packed in packed_factories]


def arrive_all(departed: list[Proof | bytes]) -> list[Proof]:
    """In the second fresh process: go on from each pickle, and compare."""
    return [_arrive(each) if isinstance(each, bytes) else each for each in departed]


def _depart(packed_factory: bytes, only: CaptureOptions | None) -> Proof | bytes:
    made: list[gymnasium.Env[Any, Any]] = []
    try:
        try:
            factory = unpickled(packed_factory)
            for _ in range(_NUM_CONTROLS + 5):  # one to look at, the controls, two pairs to pickle
                made.append(factory())
                if not isinstance(made[-1], gymnasium.Env):
                    raise TypeError(f"a factory returned {type(made.pop()).__name__}")
        except (Exception, SystemExit):  # building the batch will meet the same and say it better
            return Proof(Verdict.UNAVAILABLE, "it can't be made")
        layers = layers_of(made[0])
        actions, num_before, long = sampled_actions(made[0])
        controls = [whole_run(env, actions) for env in made[1 : _NUM_CONTROLS + 1]]
        varying = varying_infos(controls)
        known = [without(control, varying) for control in controls]
        for other in known[1:]:
            difference = first_difference(known[0], other, "the run")
            if difference is not None:
                return Proof(Verdict.NOT_REPRODUCIBLE, _not_reproducible(difference), layers=layers)
        if not can_be_reset(controls[0]):
            return Proof(Verdict.UNAVAILABLE, "it can't be reset")  # nor can it in the batch, which says why
        moments = _Moments(only, varying)
        try:
            moments.take_all(made[-4:], actions, num_before, long)
        except _ProblemFound as found:
            return Proof(found.verdict, str(found), layers=layers)
        return cloudpickle.dumps((packed_factory, moments.taken, varying, layers))  # type: ignore[no-any-return]
    except Exception as error:
        return Proof(Verdict.RAISES, f"trying it raised {type(error).__name__}: {error}")
    finally:
        close_all(made)


def _not_reproducible(difference: Difference) -> str:
    return (
        f"two instances with equal seeds and actions differ from one another ({difference}), so it can't be told "
        f"whether a copy is faithful (a global random generator or the clock may be behind it)"
    )


class _ProblemFound(Exception):  # noqa: N818 -- never leaves this module
    """There is nothing left to try."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict


class _Moments:
    """Takes an environment at several moments, with a twin beside it that is never pickled."""

    def __init__(self, only: CaptureOptions | None, varying: frozenset[Path]) -> None:
        self._only = only
        self._varying = varying
        self.taken: list[_Moment] = []

    def take_all(
        self, envs: Sequence[gymnasium.Env[Any, Any]], actions: list[Any], num_before: int, long: list[list[Any]]
    ) -> None:
        """Just after make and after a reset, at two ages of an episode, where one has ended, and in several layouts."""
        tail = tuple(actions[num_before:])
        self._take("before its first reset", envs[:2], tail, fresh=True)
        pair = envs[2:]
        _in_step(pair, seeded_resets)
        self._take("just after a reset", pair, tail)
        for num_steps, name in ((1, "after one step"), (num_before, "in mid-episode")):
            if _in_step(pair, functools.partial(run_into_an_episode, actions=actions, num_steps=num_steps)):
                self._take(name, pair, tail)
        has_ended_one, num_steps = run_to_an_end(pair[0], actions)
        run_to_an_end(pair[1], actions, num_steps)
        if has_ended_one:
            self._take("at the end of an episode", pair, tail, ended=True)
        for layout, actions_then in enumerate(long, start=1):
            if _in_step(pair, functools.partial(run_early, actions=actions[:_FEW], layout=layout)):
                self._take("early in an episode", pair, tuple(actions_then), is_long=True)

    def _take(
        self,
        name: str,
        pair: Sequence[gymnasium.Env[Any, Any]],
        actions: tuple[Any, ...],
        *,
        ended: bool = False,
        fresh: bool = False,
        is_long: bool = False,
    ) -> None:
        env, twin = pair
        pickles = _pickled(env, self._only)
        if all(each.error for each in pickles):
            raise _ProblemFound(Verdict.RAISES, f"it can't be pickled (tried {name}): {pickles[0].error}")
        # The one that was pickled goes on too: an outside simulator that a copy would share has
        # moved by the time the copy steps, and pickling must not have changed anything.
        trace, after = (go_on(each, actions, ended=ended, fresh=fresh, resets=not is_long) for each in (twin, env))
        difference = first_difference(without(trace, self._varying), without(after, self._varying), "step")
        if difference is not None:
            raise _ProblemFound(Verdict.WRONG, f"pickling it {name} changes what it does then ({difference})")
        self.taken.append(_Moment(name, pickles, ended, fresh, is_long, actions, trace))


def _pickled(env: gymnasium.Env[Any, Any], only: CaptureOptions | None) -> tuple[_Pickle, ...]:
    """Pickle in each way that may differ for this environment, the one that is tried first foremost."""
    if only is not None:
        return (_pickled_so(env, only)[0],)
    first, has_hooks, has_drawings = _pickled_so(env, DEFAULT_OPTIONS)
    pickles = [first]
    for own_hooks in (False, True)[: 1 + has_hooks]:
        for keeps_drawings in (False, True)[: 1 + has_drawings]:
            if own_hooks or keeps_drawings:
                pickles.append(_pickled_so(env, CaptureOptions(own_hooks, keeps_drawings))[0])
    return tuple(pickles)


def _pickled_so(env: gymnasium.Env[Any, Any], options: CaptureOptions) -> tuple[_Pickle, bool, bool]:
    departure = Departure()
    try:
        data, _ = captured(env, options, departure)
    except Exception as error:
        text = f"{type(error).__name__}: {error}{culprit(env, options)}"
        return _Pickle(options, error=text), departure.has_hooks, departure.has_drawings
    return _Pickle(options, data, departure.shared), departure.has_hooks, departure.has_drawings


def _in_step(pair: Sequence[gymnasium.Env[Any, Any]], run: Callable[[gymnasium.Env[Any, Any]], Any]) -> Any:
    outcome, _ = (run(env) for env in pair)
    return outcome


def _arrive(departed: bytes) -> Proof:
    packed_factory, moments, varying, layers = unpickled(departed)
    proof = replace(_proof_of(moments, varying), layers=layers)
    if proof.verdict is Verdict.CORRECT:
        return proof
    control = _run_here(packed_factory, moments[0])
    if control is None:
        return proof
    # What an instance of this process tells differently, such as the order of a set of strings, no copy could keep.
    varying_here = varying | varying_infos((moments[0].trace, control))
    difference = first_difference(without(moments[0].trace, varying_here), without(control, varying_here), "the run")
    if difference is not None:
        reason = f"in another process, {_not_reproducible(difference)}"
        return Proof(Verdict.NOT_REPRODUCIBLE, reason, layers=layers)
    if varying_here == varying:
        return proof
    return replace(_proof_of(moments, varying_here), layers=layers)


def _proof_of(moments: Sequence[_Moment], varying: frozenset[Path]) -> Proof:
    """Try each way; return the first that is right, or why the first isn't."""
    problem: tuple[Verdict, str] | None = None
    for options in dict.fromkeys(each.options for moment in moments for each in moment.pickles):
        found = _problem_of(options, moments, varying)
        if found is None:
            return Proof(Verdict.CORRECT, options=options)
        problem = problem or found
    assert problem is not None  # there is at least one way
    return Proof(*problem)


def _problem_of(
    options: CaptureOptions, moments: Sequence[_Moment], varying: frozenset[Path]
) -> tuple[Verdict, str] | None:
    """Go on from each moment in each way of travelling; long runs don't travel anew after each call."""
    for moment in moments:
        each = _pickle_of(moment, options)
        if each.error:
            return Verdict.RAISES, f"it can't be pickled (tried {moment.name}): {each.error}"
        trips = (_Trip.ONCE, _Trip.OTHER_ORDER) if moment.is_long else _Trip
        for trip in trips:
            problem = _problem_at(moment, each, varying, options, trip)
            if problem is not None:
                return problem
    return None


def _pickle_of(moment: _Moment, options: CaptureOptions) -> _Pickle:
    """Return the pickle in this way, or the one that doesn't differ from it at this moment."""
    by_options = {each.options: each for each in moment.pickles}
    plainer = CaptureOptions(own_hooks=options.own_hooks)
    return by_options.get(options) or by_options.get(plainer) or moment.pickles[0]


def _problem_at(
    moment: _Moment, pickled: _Pickle, varying: frozenset[Path], options: CaptureOptions, trip: _Trip
) -> tuple[Verdict, str] | None:
    def travel(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        if trip is not _Trip.EACH_STEP:
            return env
        data, departure = captured(env, options)
        made[:] = [restored(data, departure.shared, is_private=True)]
        return made[0]

    made: list[gymnasium.Env[Any, Any]] = []
    how = f"a copy pickled {moment.name}{trip.value}"
    shared = pickled.shared or {}
    try:
        if trip is _Trip.OTHER_ORDER:
            if not may_hold_sets(pickled.data):
                return None
            env, is_other = restored_in_another_order(pickled.data, shared)
            made.append(env)
            if not is_other:
                return None
        else:
            made.append(restored(pickled.data, shared))
        got = go_on(
            made[0],
            moment.actions,
            ended=moment.ended,
            fresh=moment.fresh,
            resets=not moment.is_long,
            travel=travel,
        )
    except (Exception, SystemExit) as error:
        return Verdict.WRONG, f"{how} raised {type(error).__name__}: {error} where it went on"
    finally:
        close_all(made)
    raised = next(
        (step for step, right in zip(got, moment.trace, strict=False) if has_raised(step) > has_raised(right)),
        None,
    )
    if raised is not None:
        return Verdict.WRONG, f"{how} raised {raised[1]}: {raised[2]} where the original went on"
    difference = first_difference(without(moment.trace, varying), without(got, varying), "step")
    if difference is not None:
        return Verdict.WRONG, f"{how} goes on differently ({difference}), so {trip.blame}"
    return None


def _run_here(packed_factory: bytes, fresh_moment: _Moment) -> tuple[Any, ...] | None:
    """Let an instance of this process do what one of the first process did."""
    made: list[gymnasium.Env[Any, Any]] = []
    try:
        made.append(unpickled(packed_factory)())
        return go_on(made[0], fresh_moment.actions, ended=False, fresh=True)
    except (Exception, SystemExit):  # it was made and reset in the first process
        return None
    finally:
        close_all(made)
