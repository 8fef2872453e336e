"""The first look at an environment, in one fresh process: is it sound, what does it cost, is it reproducible?"""

from __future__ import annotations

import pickle
import statistics
import time
from dataclasses import dataclass

import cloudpickle
import gymnasium

from joblib_envs.drawing import draws_with_pygame
from joblib_envs.equality import Verdict
from joblib_envs.inspection.costs import measured_costs
from joblib_envs.inspection.driving import (
    Env,
    affordable_steps,
    sampled_actions,
)
from joblib_envs.inspection.errands import Whereabouts
from joblib_envs.inspection.findings import Costs, GlobalRandom, Reproducibility
from joblib_envs.inspection.reproducibility import GENERATORS, compare_here, pack_trace
from joblib_envs.processes import unpickled
from joblib_envs.state.trial_runs import close_all

__all__ = ["FirstLook", "look"]

_WALK_STEPS = 30
_MOST_STEPS = 200
"""In a trace that is compared."""

_MOST_STEPS_IN_THREADS = 500


@dataclass(frozen=True)
class FirstLook:
    """What the first look has found.

    Attributes:
        layers: The types of wrappers and environment, the outermost first.
        observation_space: Its text.
        action_space: Its text.
        costs: What calls take.
        reproducible: As far as one process can tell.
        global_random: Which calls change global generators.
        actions: Those of the trace, pickled; some spaces' actions are made by the environment's classes.
        trace: What an instance answered to them, pickled; empty where it can't be.
        hash_seed: Tells whether another process hashes strings alike.
        most_steps: How many steps' observations may be kept.
        draws_with_pygame: Whether ``BatchEnv`` steps it one thread at a time.
    """

    layers: tuple[str, ...]
    observation_space: str
    action_space: str
    costs: Costs
    reproducible: Reproducibility
    global_random: GlobalRandom
    actions: bytes
    trace: bytes
    hash_seed: int
    most_steps: int
    draws_with_pygame: bool


def look(where: Whereabouts, packed: bytes, seed: int, budget_s: float) -> FirstLook:
    """Make instances, step and time them, and compare two.

    Args:
        where: Told what comes next.
        packed: The pickled function that makes an environment.
        seed: Of resets and actions.
        budget_s: About how long steps are timed; a slow environment takes longer.

    Raises:
        Exception: What the environment raised.
    """
    made: list[Env] = []
    touched = _Touched()
    try:
        where.at("its constructor")
        started = time.perf_counter()
        factory = unpickled(packed)
        with touched.by("constructor"):
            made.append(factory())
        first_s = time.perf_counter() - started
        env = made[0]
        if not isinstance(env, gymnasium.Env):
            raise TypeError(f"the factory returned {type(made.pop()).__name__}, not a gymnasium.Env")
        step_s = _walk(env, where, seed, touched)
        where.at("a reset or a step, while it was timed")
        costs = measured_costs(factory, env, made, seed, budget_s, first_s)
        observation, _ = env.reset()
        num_steps = max(5, min(affordable_steps(observation, _MOST_STEPS), int(budget_s / max(step_s, 1e-9))))
        actions = sampled_actions(env, seed, num_steps)
        reproducible, trace = compare_here(factory, made, actions, seed, where)
        return FirstLook(
            _class_names(env),
            str(env.observation_space),
            str(env.action_space),
            costs,
            reproducible,
            touched.finding(),
            cloudpickle.dumps(actions),
            pack_trace(trace),
            hash("joblib-envs"),
            affordable_steps(observation, _MOST_STEPS_IN_THREADS),
            draws_with_pygame(env),
        )
    finally:
        close_all(made)


def _class_names(env: Env) -> tuple[str, ...]:
    names = [type(env).__name__]
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
        names.append(type(env).__name__)
    return tuple(names)


class _Touched:
    """Notes which calls change the global random generators."""

    def __init__(self) -> None:
        self._calls: dict[str, dict[str, None]] = {name: {} for name in GENERATORS}
        self._call = ""
        self._before: dict[str, bytes] = {}

    def by(self, call: str) -> _Touched:
        """Name the call that is made in this context."""
        self._call = call
        return self

    def __enter__(self) -> None:
        self._before = _global_states()

    def __exit__(self, *error: object) -> None:
        for name, state in _global_states().items():
            if state != self._before[name]:
                self._calls[name][self._call] = None

    def finding(self) -> GlobalRandom:
        """Return which calls do."""
        by_numpy, by_random = (tuple(self._calls[name]) for name in ("numpy.random", "random"))
        if not by_numpy and not by_random:
            return GlobalRandom(verdict=Verdict.CORRECT)
        words = [
            f"{name} is changed by {_listed(calls)}"
            for name, calls in (("numpy.random", by_numpy), ("random", by_random))
            if calls
        ]
        return GlobalRandom(
            verdict=Verdict.WRONG, reason="; ".join(words), numpy_random=by_numpy, random=by_random
        )  # fmt: skip


def _global_states() -> dict[str, bytes]:
    return {name: pickle.dumps(get()) for name, (get, _) in GENERATORS.items()}


def _listed(calls: tuple[str, ...]) -> str:
    names = ["the constructor" if call == "constructor" else f"a {call}" for call in calls]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _walk(env: Env, where: Whereabouts, seed: int, touched: _Touched) -> float:
    """Step through some episodes, saying where it is; return the seconds of a step, about."""
    actions = sampled_actions(env, seed, _WALK_STEPS)
    where.at("the first reset")
    with touched.by("reset"):
        env.reset(seed=seed)
    times, ended = [], False
    for number, action in enumerate(actions, 1):
        if ended:
            where.at(f"the reset before step {number}")
            with touched.by("reset"):
                env.reset()
        where.at(f"step {number}")
        with touched.by("step"):
            started = time.perf_counter()
            _, _, terminated, truncated, _ = env.step(action)
            times.append(time.perf_counter() - started)
        ended = bool(terminated or truncated)
        if sum(times) > 3.0 and number >= 3:
            break
    where.at("a reset in mid-episode")
    with touched.by("reset"):
        env.reset()
    return statistics.median(times)
