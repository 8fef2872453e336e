"""The course that an environment and its copies are given: to four moments, and on from each.

After each moment come more than fifty steps, a reset without a seed among them, and one with a
seed. What a copy answers must equal, to the last bit, what an instance answered that nobody copied.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import gymnasium

from joblib_envs.equality import first_difference
from joblib_envs.harness.records import describe_error
from joblib_envs.state.trial_runs import tried, varying_infos, without

__all__ = [
    "MOMENTS",
    "Course",
    "CourseFault",
    "Departure",
    "Irreproducible",
    "go_on",
    "in_mid_episode",
    "plan_course",
    "require_equal",
    "visit",
]

Env: TypeAlias = gymnasium.Env[Any, Any]
Trace: TypeAlias = tuple[Any, ...]

MADE, RESET, MIDDLE, END = MOMENTS = ("make", "reset", "mid", "end")
"""Just after make; just after a reset; in mid-episode; when an episode has ended."""

_LEGS = (52, 8, 8)
"""Steps before a reset without a seed, after it, and after one with a seed that comes last."""

_STEPS_BEFORE = 15
_MOST_STEPS = 1000
"""An episode that is longer than that isn't awaited; Gymnasium's MuJoCo episodes last as long."""
_END_BUDGET_S = 10.0
_NUM_CONTROLS = 3


class CourseFault(Exception):  # noqa: N818 - a fault of the environment, not of the caller
    """The environment itself can't be driven along the course; the message says why."""


class Irreproducible(CourseFault):
    """The environment differs from itself when it is made again."""


@dataclass(frozen=True)
class Course:
    """What is done with an environment, and what one answers that nobody copies.

    Attributes:
        seed: Of the resets.
        actions: What it is given from a moment on; before it, the same.
        has_end: Whether an episode ends soon enough.
        traces: The answers after each moment.
        varying: Info entries in which the environment differs from itself, such as times of the clock.
    """

    seed: int
    actions: tuple[Any, ...]
    has_end: bool = True
    traces: dict[str, Trace] | None = None
    varying: frozenset[Any] = frozenset()

    def difference(self, moment: str, trace: Trace) -> tuple[str, bool] | None:
        """Tell in words where the answers after a moment differ first, and whether by an error that was raised."""
        assert self.traces is not None
        wanted, got = (without(each, self.varying) for each in (self.traces[moment], trace))
        steps = 0
        for right, answer in zip(wanted, got, strict=False):
            kind = "reset" if len(right) == 2 else "step"
            steps += kind == "step"
            where = f"{kind} after step {steps}" if kind == "reset" else f"step {steps}"
            if _raised(answer) and not _raised(right):
                return f"{where} raises {answer[1]}: {_first_line(answer[2])}", True
            for name, one, other in zip(_FIELDS[len(right)], right, answer, strict=False):
                difference = first_difference(one, other, name)
                if difference is not None:
                    return f"{where}: {difference.path} should be {difference.wanted}, is {difference.got}", False
        return None if len(wanted) == len(got) else (f"it ends after {steps} steps", False)


Departure: TypeAlias = Callable[[str, Env], None]
"""Called with a moment's name and the environment that is there."""

_FIELDS = {
    2: ("observation", "info"),
    3: ("answer", "error", "message"),
    5: ("observation", "reward", "terminated", "truncated", "info"),
}


def plan_course(make: Callable[[], Env], seed: int) -> Course:
    """Try the course on instances that nobody copies.

    Raises:
        Irreproducible: They differ from one another.
        CourseFault: None can be made or reset.
    """
    first = _made(make)
    try:
        first.action_space.seed(seed)
        actions = tuple(first.action_space.sample() for _ in range(sum(_LEGS)))
        answer = tried(first.reset, seed=seed)
        if _raised(answer):
            raise CourseFault(f"it can't be reset: {answer[1]}: {_first_line(answer[2])}")
        course = Course(seed, actions, has_end=_has_end(first, actions))
    finally:
        first.close()
    controls = [visit(make, course) for _ in range(_NUM_CONTROLS)]
    moments = [moment for moment in MOMENTS if all(moment in control for control in controls)]
    traces = {moment: controls[0][moment] for moment in moments}
    flat = [sum((control[moment] for moment in moments), ()) for control in controls]
    course = Course(seed, actions, course.has_end, traces, varying_infos(flat))
    for control in controls[1:]:
        require_equal(course, control)
    return course


def require_equal(course: Course, traces: dict[str, Trace]) -> None:
    """Raise :class:`Irreproducible` where another instance that nobody copied answers differently."""
    for moment in course.traces or ():
        difference = course.difference(moment, traces.get(moment, ()))
        if difference is not None:
            raise Irreproducible(
                f"two instances with equal seeds and actions differ from one another ({difference[0]})"
            )


def visit(make: Callable[[], Env], course: Course, depart: Departure | None = None) -> dict[str, Trace]:
    """Bring an environment to each moment, and go on with it; return its answers after each."""
    traces: dict[str, Trace] = {}

    def take(moment: str, env: Env) -> None:
        if depart is not None:
            depart(moment, env)
        traces[moment] = go_on(env, course, moment)

    env = _made(make)
    try:
        take(MADE, env)
    finally:
        env.close()
    env = _made(make)
    try:
        tried(env.reset, seed=course.seed)
        take(RESET, env)
        if _run_into_an_episode(env, course):
            take(MIDDLE, env)
        if course.has_end and any(_to_an_end(env, course.actions)):
            take(END, env)
    finally:
        env.close()
    return traces


def in_mid_episode(make: Callable[[], Env], course: Course) -> Env:
    """Make an environment and bring it into an episode."""
    env = _made(make)
    _run_into_an_episode(env, course)
    return env


def go_on(env: Env, course: Course, moment: str) -> Trace:
    """Step from a moment on, with a reset without a seed after each end; return all answers."""
    actions = iter(course.actions)
    resets: tuple[dict[str, Any] | None, ...] = (
        {"seed": course.seed} if moment == MADE else {} if moment == END else None,
        {},
        {"seed": course.seed + 1},
    )
    trace: list[Any] = []
    for reset, num_steps in zip(resets, _LEGS, strict=True):
        if reset is not None:
            trace.append(tried(env.reset, **reset))
        for _ in range(num_steps):
            if trace and _has_ended(trace[-1]):
                trace.append(tried(env.reset))
            trace.append(tried(env.step, copy.deepcopy(next(actions))))
    return tuple(trace)


def _made(make: Callable[[], Env]) -> Env:
    try:
        return make()
    except (Exception, SystemExit) as error:
        raise CourseFault(f"it can't be made: {describe_error(error)}") from error


def _run_into_an_episode(env: Env, course: Course) -> bool:
    """Step on until an episode is under way; False where they all last one step."""
    answer = tried(env.reset, seed=course.seed)
    for number in range(len(course.actions)):
        if _has_ended(answer):
            tried(env.reset)
        answer = tried(env.step, copy.deepcopy(course.actions[number]))
        if number + 1 >= _STEPS_BEFORE and not _has_ended(answer):
            return True
    return False


def _has_end(env: Env, actions: Sequence[Any]) -> bool:
    """Tell whether an episode ends, and soon."""
    give_up = time.perf_counter() + _END_BUDGET_S
    for ended in _to_an_end(env, actions):
        if ended or time.perf_counter() > give_up:
            return ended
    return False


def _to_an_end(env: Env, actions: Sequence[Any]) -> Iterator[bool]:
    """Reset, then step, and tell after each step whether the episode has ended."""
    tried(env.reset)
    for number in range(_MOST_STEPS):
        yield _has_ended(tried(env.step, copy.deepcopy(actions[number % len(actions)])))


def _raised(answer: Any) -> bool:
    return len(answer) == 3


def _has_ended(answer: Any) -> bool:
    return _raised(answer) or (len(answer) == 5 and bool(answer[2] or answer[3]))


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
