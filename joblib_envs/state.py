"""Decides whether an environment's state survives a pickle, by trying it.

The probe makes throw-away instances in a fresh process, steps one, pickles it at several
moments, and lets a second fresh process go on from each pickle: steps, a reset without a
seed, steps. What comes out must equal, to the last bit, what an instance gives that never
moved. Handles to outside simulators, state in module globals and state that the pickle
drops all show as a difference, also those that show only at an episode's boundary.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import cloudpickle
import gymnasium

from joblib_envs.equality import Verdict, bit_equal, first_difference
from joblib_envs.errors import StateCannotTravelError
from joblib_envs.processes import run_in_fresh_process, unpickled

__all__ = ["ProbeResult", "probe", "require_travelling_state"]

_SEED = 20_261
_STEPS_BEFORE = 12
_STEPS_AFTER = 12
_NUM_CONTROLS = 3
_RESET_TRIES = 3
_DEEPEST_INFO = 8
"""How far down an info is looked through key by key: one that holds itself has no bottom."""
_BUDGET_S = 10.0
_TIMEOUT_S = 120.0


_Path: TypeAlias = tuple[Any, ...]
"""The keys that lead to an entry of an info."""


@dataclass(frozen=True)
class ProbeResult:
    """What the probe found out.

    Attributes:
        verdict: ``correct``, ``wrong``, ``raises``, ``not_reproducible``, ``hangs``, or
            ``unavailable`` where no instance could be made.
        reason: Why, in words; empty for ``correct``.
    """

    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True)
class _Moment:
    """A pickle of the environment, and what happened from there on to the one that stayed.

    Attributes:
        name: When it was taken.
        state: The pickled environment and whether its episode had ended.
        actions: What the environment was given from there on.
        trace: What it answered.
    """

    name: str
    state: bytes
    actions: tuple[Any, ...]
    trace: tuple[Any, ...]


def require_travelling_state(packed_factories: Iterable[bytes], label: str, num_threads: int) -> None:
    """Refuse environments whose state tasks execution on a process backend would lose.

    Answers are remembered for this process by what the factories' pickles hold.

    Args:
        packed_factories: Pickled functions that make one environment each.
        label: What the environment is called in the error.
        num_threads: BLAS and OpenMP threads, as in the batch.

    Raises:
        StateCannotTravelError: It would, or it can't be told.
    """
    packed = {_key(data, num_threads): data for data in packed_factories}
    unknown = {key: data for key, data in packed.items() if key not in _known}
    _known.update(zip(unknown, probe(list(unknown.values()), num_threads), strict=True))
    for key in packed:
        result = _known[key]
        if result.verdict not in (Verdict.CORRECT, Verdict.UNAVAILABLE):
            raise StateCannotTravelError(
                f"tasks execution on a process backend would send {label} to a worker and back at each call, and its "
                f"state can't be trusted to survive that: {result.reason}. Use execution='actors' (the default on "
                f"'loky'), where each environment stays in its worker, or a backend that shares memory ('threading', "
                f"'sequential')"
            )


_known: dict[tuple[bytes, int], ProbeResult] = {}


def _key(packed: bytes, num_threads: int) -> tuple[bytes, int]:
    return hashlib.sha256(packed).digest(), num_threads


def probe(packed_factories: Sequence[bytes], num_threads: int = 1) -> list[ProbeResult]:
    """Try whether environments' states survive a pickle into another process.

    Args:
        packed_factories: Pickled functions that make one environment each.
        num_threads: BLAS and OpenMP threads.

    Returns:
        A verdict for each; anything but ``correct`` is a reason to refuse.
    """
    if not packed_factories:
        return []
    run = functools.partial(run_in_fresh_process, num_threads=num_threads, timeout_s=_TIMEOUT_S)
    try:
        departed = run(_depart_all, list(packed_factories))
        arrived: list[ProbeResult] = run(_arrive_all, departed)
    except (TimeoutError, EOFError) as error:
        if len(packed_factories) > 1:  # one of them: which one is told by trying each alone
            return [result for packed in packed_factories for result in probe([packed], num_threads)]
        if isinstance(error, TimeoutError):
            return [ProbeResult(Verdict.HANGS, f"trying it took more than {_TIMEOUT_S:g} s")]
        return [ProbeResult(Verdict.RAISES, f"it ended its process while it was tried ({error})")]
    return arrived


def _depart_all(packed_factories: list[bytes]) -> list[ProbeResult | bytes]:
    return [_depart(packed) for packed in packed_factories]


def _arrive_all(departed: list[ProbeResult | bytes]) -> list[ProbeResult]:
    return [_arrive(each) if isinstance(each, bytes) else each for each in departed]


def _depart(packed_factory: bytes) -> ProbeResult | bytes:
    """In the first fresh process: compare two instances, then pickle a third at several moments."""
    made: list[gymnasium.Env[Any, Any]] = []
    try:
        try:
            factory = unpickled(packed_factory)
            for _ in range(_NUM_CONTROLS + 2):  # one to look at, the controls, one to pickle
                made.append(factory())
                if not isinstance(made[-1], gymnasium.Env):
                    raise TypeError(f"a factory returned {type(made.pop()).__name__}")
        except (Exception, SystemExit):  # building the batch will meet the same and say it better
            return ProbeResult(Verdict.UNAVAILABLE, "it can't be made")
        actions, num_before = _sampled_actions(made[0])
        controls = [_whole_run(env, actions) for env in made[1 : _NUM_CONTROLS + 1]]
        varying = _varying_infos(controls)
        known = [_without(control, varying) for control in controls]
        for other in known[1:]:
            difference = first_difference(known[0], other, "the run")
            if difference is not None:
                return ProbeResult(
                    Verdict.NOT_REPRODUCIBLE,
                    f"two instances with equal seeds and actions differ from one another ({difference}), so it can't "
                    f"be told whether a copy is faithful (a global random generator or the clock may be behind it)",
                )
        if len(controls[0]) == _RESET_TRIES and _raised(controls[0][-1]):
            return ProbeResult(Verdict.UNAVAILABLE, "it can't be reset")  # nor can it in the batch, which says why
        return _moments(made[-1], actions, num_before, varying)
    except Exception as error:
        return ProbeResult(Verdict.RAISES, f"trying it raised {type(error).__name__}: {error}")
    finally:
        _close(made)


def _sampled_actions(env: gymnasium.Env[Any, Any]) -> tuple[list[Any], int]:
    """Sample the actions, fewer where a step is slow, after one step that tells how slow."""
    env.action_space.seed(_SEED)
    started = time.perf_counter()
    _tried(env.reset, seed=_SEED)
    _tried(env.step, env.action_space.sample())
    cost_s = time.perf_counter() - started
    affordable = int(_BUDGET_S / max(cost_s * 12, 1e-9))
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


def _go_on(env: gymnasium.Env[Any, Any], actions: Sequence[Any], *, ended: bool) -> tuple[Any, ...]:
    """Step, with a reset without a seed after each end, once in the middle, and last."""
    trace: list[Any] = []
    for number, action in enumerate(actions):
        if ended or number == len(actions) // 2:
            trace.append(_tried(env.reset))
            if _raised(trace[-1]):
                return tuple(trace)
        step, frame = _stepped(env, action)
        ended = _has_ended(step)
        trace.extend((step, frame))
    trace.append(_tried(env.reset))
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


def _moments(env: gymnasium.Env[Any, Any], actions: list[Any], num_before: int, varying: frozenset[_Path]) -> bytes:
    """Pickle the environment after its reset, at two ages of an episode, and where one has ended."""
    moments: list[_Moment] = []
    tail = tuple(actions[num_before:])
    _seeded_resets(env)
    moments.append(_taken("just after a reset", env, tail, ended=False))
    for num_steps, name in ((1, "after one step"), (num_before, "in mid-episode")):
        if _run_into_an_episode(env, actions, num_steps):
            moments.append(_taken(name, env, tail, ended=False))
    if _run_to_an_end(env, actions):
        moments.append(_taken("at the end of an episode", env, tail, ended=True))
    packed = [(m.name, m.state, cloudpickle.dumps((m.actions, m.trace))) for m in moments]
    return pickle.dumps((packed, cloudpickle.dumps(varying)))


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


def _run_to_an_end(env: gymnasium.Env[Any, Any], actions: Sequence[Any]) -> bool:
    """Step until an episode ends; False where it doesn't within the time."""
    if _raised(_tried(env.reset)):
        return False
    give_up = time.perf_counter() + _BUDGET_S / 5
    number = 0
    while time.perf_counter() < give_up and number < 1000:
        step = _tried(env.step, copy.deepcopy(actions[number % len(actions)]))
        number += 1
        if _has_ended(step):
            return True
    return False


def _taken(name: str, env: gymnasium.Env[Any, Any], actions: tuple[Any, ...], *, ended: bool) -> _Moment:
    try:
        state = cloudpickle.dumps((env, ended))
    except Exception as error:
        raise pickle.PicklingError(f"it can't be pickled {name}: {type(error).__name__}: {error}") from error
    # The one that stayed goes on after the pickle was taken: an outside simulator that a
    # copy would share has moved by the time the copy steps.
    return _Moment(name, state, actions, _go_on(env, actions, ended=ended))


def _arrive(moments: bytes) -> ProbeResult:
    """In the second fresh process: go on from each pickle, twice, and compare."""
    taken, varying = pickle.loads(moments)
    varying = unpickled(varying)
    for name, state, packed in taken:
        actions, wanted = unpickled(packed)
        for _ in range(2):
            made: list[gymnasium.Env[Any, Any]] = []
            try:
                env, ended = unpickled(state)
                made.append(env)
                got = _go_on(env, actions, ended=ended)
            except (Exception, SystemExit) as error:
                return ProbeResult(
                    Verdict.WRONG,
                    f"a copy pickled {name} raised {type(error).__name__}: {error} where it went on",
                )
            finally:
                _close(made)
            difference = first_difference(_without(wanted, varying), _without(got, varying), "step")
            raised = next(
                (each for each, right in zip(got, wanted, strict=False) if _raised(each) > _raised(right)), None
            )
            if raised is not None:
                return ProbeResult(
                    Verdict.WRONG, f"a copy pickled {name} raised {raised[1]}: {raised[2]} where the original went on"
                )
            if difference is not None:
                return ProbeResult(
                    Verdict.WRONG,
                    f"a copy pickled {name} goes on differently ({difference}), so the pickle drops state",
                )
    return ProbeResult(Verdict.CORRECT)


def _close(envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
    for env in envs:
        try:
            env.close()
        except Exception:  # what a throw-away instance does when closed is nobody's concern
            continue
