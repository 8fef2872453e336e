"""What an environment is put through when its state is tried, and what is seen of it.

A *trace* is a tuple of what the calls returned, in order, or of how they raised.
"""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import cloudpickle
import gymnasium

from joblib_envs.equality import bit_equal
from joblib_envs.state.journal import JournaledEnv

__all__ = [
    "Path",
    "can_be_reset",
    "close_all",
    "go_on",
    "has_ended",
    "has_raised",
    "run_early",
    "run_into_an_episode",
    "run_to_an_end",
    "sampled_actions",
    "seeded_resets",
    "tried",
    "varying_infos",
    "whole_run",
    "without",
]

_SEED = 20_261
_STEPS_BEFORE = 24
_STEPS_AFTER = 32
_RESET_TRIES = 3
_DEEPEST_INFO = 8
"""How far down an info is looked through key by key: one that holds itself has no bottom."""
_BUDGET_S = 10.0
_RUNS = 50
"""How often the steps after a moment are made in all, about."""

_NUM_LONG = 6
_LONG_STEPS = 240
_HELD = 8
_LONG_BUDGET_S = 3.0

Path: TypeAlias = tuple[Any, ...]
"""The keys that lead to an entry of an info."""


def sampled_actions(env: gymnasium.Env[Any, Any]) -> tuple[list[Any], int, list[list[Any]]]:
    """Sample the actions, fewer where a step is slow, after one step that tells how slow.

    Returns:
        The actions; how many of them come before a moment; and those of some longer runs, in half
        of which each action is held for a while. There are none of these where a step is slow.
    """
    env.action_space.seed(_SEED)
    started = time.perf_counter()
    tried(env.reset, seed=_SEED)
    _stepped(env, env.action_space.sample())
    cost_s = time.perf_counter() - started
    if isinstance(env, JournaledEnv):
        cost_s *= _STEPS_AFTER  # each trip makes the steps before it again
    affordable = int(_BUDGET_S / max(cost_s * _RUNS, 1e-9))
    num_before = max(2, min(_STEPS_BEFORE, affordable))
    num_after = max(2, min(_STEPS_AFTER, affordable))
    actions = [env.action_space.sample() for _ in range(num_before + 2 * num_after)]
    long = min(_LONG_STEPS, int(_LONG_BUDGET_S / max(cost_s * _NUM_LONG * 3, 1e-9)))
    if long < _LONG_STEPS // 4:
        return actions, num_before, []
    held = (1, _HELD) * (_NUM_LONG // 2)
    return actions, num_before, [_sampled(env, long, each) for each in held]


def _sampled(env: gymnasium.Env[Any, Any], number: int, held: int) -> list[Any]:
    """Sample actions, each of which is given some times."""
    different = [env.action_space.sample() for _ in range(-(-number // held))]
    return [different[index // held] for index in range(number)]


def whole_run(env: gymnasium.Env[Any, Any], actions: Sequence[Any]) -> tuple[Any, ...]:
    """Reset with the seed, then go on."""
    resets = seeded_resets(env)
    # After a reset that raised, an environment may draw from a generator that nobody seeded.
    return resets if has_raised(resets[-1]) else (*resets, *go_on(env, actions, ended=False))


def seeded_resets(env: gymnasium.Env[Any, Any], layout: int = 0) -> tuple[Any, ...]:
    """Reset with the seed, again where that raises; the last result tells whether it worked."""
    resets = [tried(env.reset, seed=_SEED + layout)]
    while has_raised(resets[-1]) and len(resets) < _RESET_TRIES:
        resets.append(tried(env.reset, seed=_SEED + layout))
    return tuple(resets)


def go_on(
    env: gymnasium.Env[Any, Any],
    actions: Sequence[Any],
    *,
    ended: bool,
    fresh: bool = False,
    resets: bool = True,
    travel: Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]] = lambda env: env,
) -> tuple[Any, ...]:
    """Step, with a reset without a seed after each end and once in the middle; last, resets of both kinds.

    Args:
        env: The environment.
        actions: What it is given.
        ended: Whether its episode has ended.
        fresh: Whether it was never reset.
        resets: Whether it is reset in the middle; else only where an episode has ended.
        travel: What is done with it before each step.
    """
    trace: list[Any] = list(seeded_resets(env)) if fresh else []
    if trace and has_raised(trace[-1]):
        return tuple(trace)
    for number, action in enumerate(actions):
        env = travel(env)
        if ended or (resets and number == len(actions) // 2):
            trace.append(tried(env.reset))
            if has_raised(trace[-1]):
                return tuple(trace)
        step, frame = _stepped(env, action)
        ended = has_ended(step)
        trace.extend((step, frame))
    env = travel(env)
    trace.append(tried(env.reset))
    env = travel(env)
    trace.append(tried(env.reset, seed=_SEED + 1))
    return tuple(trace)


def _stepped(env: gymnasium.Env[Any, Any], action: Any) -> tuple[Any, Any]:
    """Step, and draw the frame if there is one to be had: drawing may bring what can't be pickled."""
    step = tried(env.step, copy.deepcopy(action))  # which it may keep or change
    return step, (tried(env.render) if env.render_mode not in (None, "human") else None,)


def tried(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what a call returns, or how it raised, which a faithful copy does alike.

    A snapshot, since the environment may reuse its buffers.
    """
    try:
        returned = call(*args, **kwargs)
    except (Exception, SystemExit) as error:
        return "raised", type(error).__name__, str(error)
    return pickle.loads(cloudpickle.dumps(returned))


def varying_infos(traces: Sequence[tuple[Any, ...]]) -> frozenset[Path]:
    """Find the info entries in which an environment differs from itself, such as times of the clock.

    They can't be promised to anybody, and say nothing about a copy.
    """
    varying: set[Path] = set()
    for trace in traces[1:]:
        for one, other in zip(traces[0], trace, strict=False):
            if isinstance(one[-1], dict) and isinstance(other[-1], dict):
                varying.update(_differing_paths(one[-1], other[-1], ()))
    return frozenset(varying)


def _differing_paths(one: dict[Any, Any], other: dict[Any, Any], above: Path) -> Iterator[Path]:
    for key in one.keys() | other.keys():
        if key not in one or key not in other:
            yield (*above, key)
        elif isinstance(one[key], dict) and isinstance(other[key], dict) and len(above) < _DEEPEST_INFO:
            yield from _differing_paths(one[key], other[key], (*above, key))
        elif not bit_equal(one[key], other[key]):
            yield (*above, key)


def without(trace: tuple[Any, ...], varying: frozenset[Path]) -> tuple[Any, ...]:
    """Return a trace without the info entries that vary by themselves."""
    if not varying:
        return trace
    return tuple((*step[:-1], _pruned(step[-1], varying, ())) if isinstance(step[-1], dict) else step for step in trace)


def _pruned(info: dict[Any, Any], varying: frozenset[Path], above: Path) -> dict[Any, Any]:
    return {
        key: _pruned(value, varying, (*above, key)) if isinstance(value, dict) and len(above) < _DEEPEST_INFO else value
        for key, value in info.items()
        if (*above, key) not in varying
    }


def can_be_reset(trace: tuple[Any, ...]) -> bool:
    """Tell whether a whole run got beyond its resets."""
    return len(trace) != _RESET_TRIES or not has_raised(trace[-1])


def has_raised(step: Any) -> bool:
    """Tell whether an entry of a trace is an exception."""
    return len(step) == 3


def has_ended(step: Any) -> bool:
    """Tell whether a step raised or ended its episode."""
    return has_raised(step) or bool(step[2] or step[3])


def run_early(env: gymnasium.Env[Any, Any], actions: Sequence[Any], layout: int) -> bool:
    """Reset with one of several seeds and make the steps; False where the episode has ended by then."""
    if has_raised(seeded_resets(env, layout)[-1]):
        return False
    return not any(has_ended(tried(env.step, copy.deepcopy(action))) for action in actions)


def run_into_an_episode(env: gymnasium.Env[Any, Any], actions: Sequence[Any], num_steps: int) -> bool:
    """Step at least so often, and on until an episode is under way; False where they all last one step."""
    ended = has_raised(seeded_resets(env)[-1])
    for number in range(num_steps + len(actions)):
        if ended and has_raised(tried(env.reset)):
            return False
        ended = has_ended(_stepped(env, actions[number % len(actions)])[0])
        if number + 1 >= num_steps and not ended:
            return True
    return False


def run_to_an_end(
    env: gymnasium.Env[Any, Any], actions: Sequence[Any], num_steps: int | None = None
) -> tuple[bool, int]:
    """Reset, and step until an episode ends.

    Args:
        env: The environment.
        actions: What it is given, again and again.
        num_steps: How many steps a twin has made, which are made again; None: until the time is over.

    Returns:
        Whether an episode has ended, and after how many steps.
    """
    if has_raised(tried(env.reset)):
        return False, 0
    give_up = time.perf_counter() + _BUDGET_S / 5
    for number in range(1000 if num_steps is None else num_steps):
        if has_ended(tried(env.step, copy.deepcopy(actions[number % len(actions)]))):
            return True, number + 1
        if num_steps is None and time.perf_counter() > give_up:
            return False, number + 1
    return False, 1000 if num_steps is None else num_steps


def close_all(envs: Iterable[gymnasium.Env[Any, Any]]) -> None:
    """Close throw-away instances."""
    for env in envs:
        with suppress(Exception, SystemExit):  # what a throw-away instance does when closed is nobody's concern
            env.close()
