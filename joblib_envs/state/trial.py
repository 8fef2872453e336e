"""Tries, in fresh processes, whether an environment's state survives the trip, and by which way of pickling.

In the first process an instance is pickled at several moments, while a twin that never is
makes the same calls and tells what is right. In the second process each pickle goes on: steps,
resets without a seed and with one; once as it is, and once travelling anew after each call, as in
tasks execution. What comes out must equal what the twin gave, to the last bit. Handles of
outside simulators, state in module globals and state that the pickle drops all show as a
difference, also those that show only at an episode's boundary.
"""

from __future__ import annotations

import copy
import functools
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import cloudpickle
import gymnasium

from joblib_envs.equality import Difference, Verdict, bit_equal, first_difference
from joblib_envs.processes import unpickled
from joblib_envs.state.cargo import Blob, Departure
from joblib_envs.state.journal import JournaledEnv
from joblib_envs.state.pickling import DEFAULT_OPTIONS, CaptureOptions, captured, culprit, restored

__all__ = ["Proof", "arrive_all", "depart_all", "layers_of"]

_SEED = 20_261
_STEPS_BEFORE = 12
_STEPS_AFTER = 12
_NUM_CONTROLS = 3
_RESET_TRIES = 3
_DEEPEST_INFO = 8
"""How far down an info is looked through key by key: one that holds itself has no bottom."""
_BUDGET_S = 10.0
_RUNS = 50
"""How often the steps before or after a moment are made in all, about."""


_Path: TypeAlias = tuple[Any, ...]
"""The keys that lead to an entry of an info."""


@dataclass(frozen=True)
class Proof:
    """What was found out.

    Attributes:
        verdict: ``correct``, ``wrong``, ``raises``, ``not_reproducible``, ``hangs``, or
            ``unavailable`` where no instance could be made.
        reason: Why, in words; empty for ``correct``.
        options: The way of pickling that is right, where one is.
        layers: The names of the environment's layers, the outermost first.
        reset_suffices: Whether what was done before a reset with a seed makes no difference after it.
    """

    verdict: Verdict
    reason: str = ""
    options: CaptureOptions = DEFAULT_OPTIONS
    layers: tuple[str, ...] = ()
    reset_suffices: bool = False


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
        actions: What it is given from there on.
        trace: What the twin answered.
    """

    name: str
    pickles: tuple[_Pickle, ...]
    ended: bool
    fresh: bool
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
        actions, num_before = _sampled_actions(made[0])
        controls = [_whole_run(env, actions) for env in made[1 : _NUM_CONTROLS + 1]]
        varying = _varying_infos(controls)
        known = [_without(control, varying) for control in controls]
        for other in known[1:]:
            difference = first_difference(known[0], other, "the run")
            if difference is not None:
                return Proof(Verdict.NOT_REPRODUCIBLE, _not_reproducible(difference), layers=layers)
        if len(controls[0]) == _RESET_TRIES and _raised(controls[0][-1]):
            return Proof(Verdict.UNAVAILABLE, "it can't be reset")  # nor can it in the batch, which says why
        suffices = _reset_suffices(factory, made, actions, varying)
        moments = _Moments(only, varying)
        moments.take_all(made[-4:], actions, num_before)
        if moments.problem is not None:
            return Proof(*moments.problem, layers=layers)
        return cloudpickle.dumps((packed_factory, moments.taken, varying, layers, suffices))  # type: ignore[no-any-return]
    except Exception as error:
        return Proof(Verdict.RAISES, f"trying it raised {type(error).__name__}: {error}")
    finally:
        _close(made)


def layers_of(env: gymnasium.Env[Any, Any]) -> tuple[str, ...]:
    """Name the types of an environment's wrappers and of itself, the outermost first."""
    names = []
    while True:
        names.append(f"{type(env).__module__}.{type(env).__qualname__}")
        if not isinstance(env, gymnasium.Wrapper):
            return tuple(names)
        env = env.env


def _reset_suffices(
    factory: Callable[[], gymnasium.Env[Any, Any]],
    made: list[gymnasium.Env[Any, Any]],
    actions: Sequence[Any],
    varying: frozenset[_Path],
) -> bool:
    """Compare an instance that has had several episodes with a new one, both after a reset with the same seed."""
    if not isinstance(made[0], JournaledEnv):
        return False  # nobody needs to know
    new = factory()
    try:
        traces = [(_tried(env.reset, seed=_SEED + 2), *_go_on(env, actions, ended=False)) for env in (made[1], new)]
    finally:
        _close([new])
    return first_difference(_without(traces[0], varying), _without(traces[1], varying)) is None


def _not_reproducible(difference: Difference) -> str:
    return (
        f"two instances with equal seeds and actions differ from one another ({difference}), so it can't be told "
        f"whether a copy is faithful (a global random generator or the clock may be behind it)"
    )


def _sampled_actions(env: gymnasium.Env[Any, Any]) -> tuple[list[Any], int]:
    """Sample the actions, fewer where a step is slow, after one step that tells how slow."""
    env.action_space.seed(_SEED)
    started = time.perf_counter()
    _tried(env.reset, seed=_SEED)
    _stepped(env, env.action_space.sample())
    cost_s = time.perf_counter() - started
    if isinstance(env, JournaledEnv):
        cost_s *= _STEPS_AFTER  # each trip makes the steps before it again
    affordable = int(_BUDGET_S / max(cost_s * _RUNS, 1e-9))
    num_before = max(2, min(_STEPS_BEFORE, affordable))
    num_after = max(2, min(_STEPS_AFTER, affordable))
    return [env.action_space.sample() for _ in range(num_before + 2 * num_after)], num_before


def _whole_run(env: gymnasium.Env[Any, Any], actions: Sequence[Any]) -> tuple[Any, ...]:
    resets = _seeded_resets(env)
    # After a reset that raised, an environment may draw from a generator that nobody seeded.
    return resets if _raised(resets[-1]) else (*resets, *_go_on(env, actions, ended=False))


def _seeded_resets(env: gymnasium.Env[Any, Any]) -> tuple[Any, ...]:
    """Reset with the seed, again where that raises; the last result tells whether it worked."""
    resets = [_tried(env.reset, seed=_SEED)]
    while _raised(resets[-1]) and len(resets) < _RESET_TRIES:
        resets.append(_tried(env.reset, seed=_SEED))
    return tuple(resets)


def _go_on(
    env: gymnasium.Env[Any, Any],
    actions: Sequence[Any],
    *,
    ended: bool,
    fresh: bool = False,
    travel: Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]] = lambda env: env,
) -> tuple[Any, ...]:
    """Step, with a reset without a seed after each end and once in the middle; last, resets of both kinds.

    Args:
        env: The environment.
        actions: What it is given.
        ended: Whether its episode has ended.
        fresh: Whether it was never reset.
        travel: What is done with it before each step.
    """
    trace: list[Any] = list(_seeded_resets(env)) if fresh else []
    if trace and _raised(trace[-1]):
        return tuple(trace)
    for number, action in enumerate(actions):
        env = travel(env)
        if ended or number == len(actions) // 2:
            trace.append(_tried(env.reset))
            if _raised(trace[-1]):
                return tuple(trace)
        step, frame = _stepped(env, action)
        ended = _has_ended(step)
        trace.extend((step, frame))
    env = travel(env)
    trace.append(_tried(env.reset))
    env = travel(env)
    trace.append(_tried(env.reset, seed=_SEED + 1))
    return tuple(trace)


def _stepped(env: gymnasium.Env[Any, Any], action: Any) -> tuple[Any, Any]:
    """Step, and draw the frame if there is one to be had: drawing may bring what can't be pickled."""
    step = _tried(env.step, copy.deepcopy(action))  # which it may keep or change
    return step, (_tried(env.render) if env.render_mode not in (None, "human") else None,)


def _tried(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what a call returns, or how it raised, which a faithful copy does alike.

    A snapshot, since the environment may reuse its buffers.
    """
    try:
        returned = call(*args, **kwargs)
    except (Exception, SystemExit) as error:
        return "raised", type(error).__name__, str(error)
    return pickle.loads(cloudpickle.dumps(returned))


def _varying_infos(traces: Sequence[tuple[Any, ...]]) -> frozenset[_Path]:
    """Find the info entries in which an environment differs from itself, such as times of the clock.

    They can't be promised to anybody, and say nothing about a copy.
    """
    varying: set[_Path] = set()
    for trace in traces[1:]:
        for one, other in zip(traces[0], trace, strict=False):
            if isinstance(one[-1], dict) and isinstance(other[-1], dict):
                varying.update(_differing_paths(one[-1], other[-1], ()))
    return frozenset(varying)


def _differing_paths(one: dict[Any, Any], other: dict[Any, Any], above: _Path) -> Iterator[_Path]:
    for key in one.keys() | other.keys():
        if key not in one or key not in other:
            yield (*above, key)
        elif isinstance(one[key], dict) and isinstance(other[key], dict) and len(above) < _DEEPEST_INFO:
            yield from _differing_paths(one[key], other[key], (*above, key))
        elif not bit_equal(one[key], other[key]):
            yield (*above, key)


def _without(trace: tuple[Any, ...], varying: frozenset[_Path]) -> tuple[Any, ...]:
    """Return a trace without the info entries that vary by themselves."""
    if not varying:
        return trace
    return tuple((*step[:-1], _pruned(step[-1], varying, ())) if isinstance(step[-1], dict) else step for step in trace)


def _pruned(info: dict[Any, Any], varying: frozenset[_Path], above: _Path) -> dict[Any, Any]:
    return {
        key: _pruned(value, varying, (*above, key)) if isinstance(value, dict) and len(above) < _DEEPEST_INFO else value
        for key, value in info.items()
        if (*above, key) not in varying
    }


def _raised(step: Any) -> bool:
    return len(step) == 3


def _has_ended(step: Any) -> bool:
    return _raised(step) or bool(step[2] or step[3])


class _Moments:
    """Takes an environment at several moments, with a twin beside it that is never pickled."""

    def __init__(self, only: CaptureOptions | None, varying: frozenset[_Path]) -> None:
        self._only = only
        self._varying = varying
        self.taken: list[_Moment] = []
        self.problem: tuple[Verdict, str] | None = None

    def take_all(self, envs: Sequence[gymnasium.Env[Any, Any]], actions: list[Any], num_before: int) -> None:
        """Just after make and after a reset, at two ages of an episode, and where one has ended."""
        tail = tuple(actions[num_before:])
        self._take("before its first reset", envs[:2], tail, fresh=True)
        pair = envs[2:]
        _in_step(pair, _seeded_resets)
        self._take("just after a reset", pair, tail)
        for num_steps, name in ((1, "after one step"), (num_before, "in mid-episode")):
            if _in_step(pair, functools.partial(_run_into_an_episode, actions=actions, num_steps=num_steps)):
                self._take(name, pair, tail)
        until_end = _run_to_an_end(pair[0], actions)
        if until_end is not None and self.problem is None:
            _run_to_an_end(pair[1], actions, until_end)
            self._take("at the end of an episode", pair, tail, ended=True)

    def _take(
        self,
        name: str,
        pair: Sequence[gymnasium.Env[Any, Any]],
        actions: tuple[Any, ...],
        *,
        ended: bool = False,
        fresh: bool = False,
    ) -> None:
        if self.problem is not None:
            return
        env, twin = pair
        pickles = _pickled(env, self._only)
        if all(each.error for each in pickles):
            self.problem = (Verdict.RAISES, f"it can't be pickled {name}: {pickles[0].error}")
            return
        # The one that was pickled goes on too: an outside simulator that a copy would share has
        # moved by the time the copy steps, and pickling must not have changed anything.
        trace, after = (_go_on(each, actions, ended=ended, fresh=fresh) for each in (twin, env))
        difference = first_difference(_without(trace, self._varying), _without(after, self._varying), "step")
        if difference is not None:
            self.problem = (Verdict.WRONG, f"pickling it {name} changes what it does then ({difference})")
        self.taken.append(_Moment(name, pickles, ended, fresh, actions, trace))


def _pickled(env: gymnasium.Env[Any, Any], only: CaptureOptions | None) -> tuple[_Pickle, ...]:
    """Pickle in each way that may differ for this environment, the one that is tried first foremost."""
    if only is not None:
        return (_pickled_so(env, only)[0],)
    pickles = []
    first, has_hooks, has_drawings = _pickled_so(env, CaptureOptions())
    pickles.append(first)
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


def _run_into_an_episode(env: gymnasium.Env[Any, Any], actions: Sequence[Any], num_steps: int) -> bool:
    """Step at least so often, and on until an episode is under way; False where they all last one step."""
    ended = _raised(_seeded_resets(env)[-1])
    for number in range(num_steps + len(actions)):
        if ended and _raised(_tried(env.reset)):
            return False
        ended = _has_ended(_stepped(env, actions[number % len(actions)])[0])
        if number + 1 >= num_steps and not ended:
            return True
    return False


def _run_to_an_end(env: gymnasium.Env[Any, Any], actions: Sequence[Any], most_steps: int | None = None) -> int | None:
    """Step until an episode ends; return after how many steps, or None where it doesn't within the time."""
    if _raised(_tried(env.reset)):
        return None
    give_up = time.perf_counter() + _BUDGET_S / 5
    number = 0
    while number < 1000 if most_steps is None else number < most_steps:
        step = _tried(env.step, copy.deepcopy(actions[number % len(actions)]))
        number += 1
        if _has_ended(step):
            return number
        if most_steps is None and time.perf_counter() > give_up:
            break
    return None


def _arrive(departed: bytes) -> Proof:
    packed_factory, moments, varying, layers, suffices = unpickled(departed)
    proof = replace(_proof_of(moments, varying), layers=layers, reset_suffices=suffices)
    if proof.verdict is Verdict.CORRECT:
        return proof
    control = _run_here(packed_factory, moments[0])
    if control is None:
        return proof
    # What an instance of this process tells differently, such as the order of a set of strings, no copy could keep.
    varying_here = varying | _varying_infos((moments[0].trace, control))
    difference = first_difference(_without(moments[0].trace, varying_here), _without(control, varying_here), "the run")
    if difference is not None:
        reason = f"in another process, {_not_reproducible(difference)}"
        return Proof(Verdict.NOT_REPRODUCIBLE, reason, layers=layers)
    if varying_here == varying:
        return proof
    return replace(_proof_of(moments, varying_here), layers=layers, reset_suffices=suffices)


def _proof_of(moments: Sequence[_Moment], varying: frozenset[_Path]) -> Proof:
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
    options: CaptureOptions, moments: Sequence[_Moment], varying: frozenset[_Path]
) -> tuple[Verdict, str] | None:
    """Go on from each moment, once as it was pickled and once travelling anew after each call."""
    for moment in moments:
        each = _pickle_of(moment, options)
        if each.error:
            return Verdict.RAISES, f"it can't be pickled {moment.name}: {each.error}"
        for travels in (False, True):
            problem = _problem_at(moment, each, varying, travels_by=options if travels else None)
            if problem is not None:
                return problem
    return None


def _pickle_of(moment: _Moment, options: CaptureOptions) -> _Pickle:
    """Return the pickle in this way, or the one that doesn't differ from it at this moment."""
    by_options = {each.options: each for each in moment.pickles}
    plainer = CaptureOptions(own_hooks=options.own_hooks)
    return by_options.get(options) or by_options.get(plainer) or moment.pickles[0]


def _problem_at(
    moment: _Moment, pickled: _Pickle, varying: frozenset[_Path], *, travels_by: CaptureOptions | None
) -> tuple[Verdict, str] | None:
    def travel(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        if travels_by is None:
            return env
        data, departure = captured(env, travels_by)
        made[:] = [restored(data, departure.shared)]
        return made[0]

    made: list[gymnasium.Env[Any, Any]] = []
    how = f"a copy pickled {moment.name}" + (" and again after each step" if travels_by else "")
    try:
        made.append(restored(pickled.data, pickled.shared or {}))
        got = _go_on(made[0], moment.actions, ended=moment.ended, fresh=moment.fresh, travel=travel)
    except (Exception, SystemExit) as error:
        return Verdict.WRONG, f"{how} raised {type(error).__name__}: {error} where it went on"
    finally:
        _close(made)
    raised = next(
        (step for step, right in zip(got, moment.trace, strict=False) if _raised(step) > _raised(right)),
        None,
    )
    if raised is not None:
        return Verdict.WRONG, f"{how} raised {raised[1]}: {raised[2]} where the original went on"
    difference = first_difference(_without(moment.trace, varying), _without(got, varying), "step")
    if difference is not None:
        return Verdict.WRONG, f"{how} goes on differently ({difference}), so the pickle drops state"
    return None


def _run_here(packed_factory: bytes, fresh_moment: _Moment) -> tuple[Any, ...] | None:
    """Let an instance of this process do what one of the first process did."""
    made: list[gymnasium.Env[Any, Any]] = []
    try:
        made.append(unpickled(packed_factory)())
        return _go_on(made[0], fresh_moment.actions, ended=False, fresh=True)
    except (Exception, SystemExit):  # it was made and reset in the first process
        return None
    finally:
        _close(made)


def _close(envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
    for env in envs:
        try:
            env.close()
        except Exception:  # what a throw-away instance does when closed is nobody's concern
            continue
