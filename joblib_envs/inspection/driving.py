"""Environments that are driven by sampled actions, and what they answer."""

from __future__ import annotations

import copy
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from joblib_envs.copies import own
from joblib_envs.equality import Difference, bit_equal, first_difference

__all__ = [
    "Env",
    "Trace",
    "affordable_steps",
    "difference_between",
    "nbytes",
    "play",
    "run_steps",
    "sampled_actions",
    "varying_infos",
]

Env: TypeAlias = gymnasium.Env[Any, Any]
Trace: TypeAlias = list[tuple[str, dict[str, Any], Any]]
"""For each call its name, what it returned without the info, and the info."""


_TRACE_BYTES = 20_000_000


def sampled_actions(env: Env, seed: int, num_actions: int) -> list[Any]:
    """Sample actions of an environment's space."""
    env.action_space.seed(seed)
    return [env.action_space.sample() for _ in range(num_actions)]


def play(
    env: Env,
    actions: Sequence[Any],
    *,
    seed: int | None,
    is_running: bool = False,
    reset_at: int = -1,
    most_frames: int = 10,
    at: Callable[[str], None] | None = None,
) -> Trace:
    """Step through the actions, with a reset after each end.

    Args:
        env: The environment.
        actions: What it is given.
        seed: Of the first reset.
        is_running: Whether it goes on in its episode, without that reset.
        reset_at: Before this step it is reset in any case, without a seed.
        most_frames: How many frames are drawn, after the first steps, where it can draw.
        at: Told what comes next.

    Returns:
        Snapshots of all that it answered.
    """
    trace: Trace = []
    ended = not is_running
    say = at or _say_nothing

    def reset(name: str, **kwargs: Any) -> None:
        say(name)
        observation, info = env.reset(**kwargs)
        trace.append((name, {"observation": own(observation)}, own(info)))

    for number, action in enumerate(actions, 1):
        if ended or number == reset_at:
            reset("the first reset" if number == 1 else f"the reset before step {number}", seed=seed)
            seed = None
        say(f"step {number}")
        observation, reward, terminated, truncated, info = env.step(copy.deepcopy(action))
        data = {"observation": observation, "reward": reward, "terminated": terminated, "truncated": truncated}
        trace.append((f"step {number}", own(data), own(info)))
        if number <= most_frames and env.render_mode not in (None, "human"):
            say(f"the frame after step {number}")
            trace.append((f"the frame after step {number}", {"frame": _digest(env.render())}, {}))
        ended = bool(terminated or truncated)
    return trace


def _digest(frame: Any) -> str:
    """Return what tells frames apart: many of them would fill the memory."""
    if isinstance(frame, np.ndarray):
        return hashlib.sha256(frame.tobytes()).hexdigest()[:16]
    return type(frame).__name__


def affordable_steps(observation: Any, most: int) -> int:
    """Return how many steps may be kept in a trace without filling the memory."""
    return max(5, min(most, _TRACE_BYTES // max(1, nbytes(observation))))


def nbytes(value: Any) -> int:
    """Return about how many bytes an observation has."""
    if isinstance(value, dict):
        return sum(map(nbytes, value.values()))
    if isinstance(value, tuple | list):
        return sum(map(nbytes, value))
    return int(getattr(value, "nbytes", 64))


def _say_nothing(_label: str) -> None:
    """Nobody wants to know."""


def run_steps(env: Env, actions: Sequence[Any], until: float, most_steps: int = 2**62) -> int:
    """Step, and reset where an episode ends, up to a moment of ``time.perf_counter``; return how often."""
    num_steps = 0
    while num_steps < most_steps and time.perf_counter() < until:
        _, _, terminated, truncated, _ = env.step(actions[num_steps % len(actions)])
        num_steps += 1
        if terminated or truncated:
            env.reset()
    return num_steps


def difference_between(
    one: Trace,
    other: Trace,
    varying: Iterable[str] | None = None,
    names: tuple[str, str] = ("one", "the other"),
) -> str:
    """Return where two traces differ first, in words; empty where they are equal.

    Args:
        one: The trace that is right.
        other: The trace to judge.
        varying: Keys of infos to leave out; None: leave all infos out.
        names: What the two are called.
    """
    left_out = None if varying is None else set(varying)
    for (name, data, info), (other_name, other_data, other_info) in zip(one, other, strict=False):
        if name != other_name:
            return f"{name} in {names[0]}, {other_name} in {names[1]}"
        for kind in data:
            found = first_difference(data[kind], other_data.get(kind), kind)
            if found is not None:
                return _said(name, found, names)
        if left_out is not None:
            found = first_difference(_without(info, left_out), _without(other_info, left_out), "info")
            if found is not None:
                return _said(name, found, names)
    return "" if len(one) == len(other) else "one goes on for longer"


def _said(call: str, found: Difference, names: tuple[str, str]) -> str:
    wanted, got = (re.sub(r"np\.\w+\(([^()]*)\)", r"\1", text) for text in (found.wanted, found.got))
    return f"{call}: {found.path} is {wanted} in {names[0]}, {got} in {names[1]}"


def _without(info: Any, left_out: set[str]) -> Any:
    return {key: value for key, value in info.items() if str(key) not in left_out} if isinstance(info, dict) else info


def varying_infos(one: Trace, other: Trace) -> tuple[str, ...]:
    """Return the keys of infos that differ between traces whose data are equal."""
    keys: dict[str, None] = {}
    for (_, _, info), (_, _, other_info) in zip(one, other, strict=False):
        if isinstance(info, dict) and isinstance(other_info, dict):
            for key in [*info, *(key for key in other_info if key not in info)]:
                if key not in info or key not in other_info or not bit_equal(info[key], other_info[key]):
                    keys[str(key)] = None
    return tuple(keys)
