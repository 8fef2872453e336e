"""``inspect_env``: sends out for each finding, and puts them together."""

from __future__ import annotations

import functools
import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import gymnasium

from joblib_envs.equality import Verdict
from joblib_envs.errors import ArgumentError, ArgumentTypeError
from joblib_envs.factories import EnvSource, check_factories, packed_factories, source_of
from joblib_envs.inspection.advice import advise
from joblib_envs.inspection.copying import find_copies
from joblib_envs.inspection.errands import Errands, Mishap, words_of
from joblib_envs.inspection.exchange import find_exchange
from joblib_envs.inspection.findings import Inspection, Reproducibility, ThreadSafety
from joblib_envs.inspection.first_look import FirstLook, look
from joblib_envs.inspection.reproducibility import compare_elsewhere
from joblib_envs.inspection.threads import find_gil, find_thread_safety
from joblib_envs.inspection.travelling import find_state
from joblib_envs.state.probe import prove
from joblib_envs.state.trial import Proof

__all__ = ["inspect_env"]

_BUDGET_S = 0.5
_QUICK_BUDGET_S = 0.15


def inspect_env(
    env: Any,
    *,
    env_kwargs: dict[str, Any] | None = None,
    wrappers: Iterable[Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]] = (),
    seed: int = 0,
    quick: bool = False,
    timeout_s: float = 60.0,
    progress: Callable[[str], None] | None = None,
) -> Inspection:
    """Find out what an environment is like to run in parallel, and what follows from that.

    Whether its state travels, by which bytes and in which time, what other copies of it lose, whether
    it is reproducible and draws from global generators, whether threads may step it and run
    meanwhile, and what its calls take. All this is tried with throw-away instances in fresh,
    silent processes, in about ten seconds: an environment that crashes or hangs there is a finding too.

    Args:
        env: Environment id, EnvSpec, or a function that makes an environment.
        env_kwargs: Arguments of the environment's constructor, ``render_mode`` among them.
        wrappers: Functions that wrap it, the innermost first.
        seed: Of resets and actions.
        quick: Whether times are measured for a third as long.
        timeout_s: After how many seconds without an answer a process is given up; proofs of states
            have a limit of their own, of two minutes.
        progress: Told what is being tried.

    Returns:
        The findings. ``print`` shows them as a table, ``to_dict`` makes JSON of them.

    Raises:
        ArgumentError: An argument's value isn't allowed.
        ArgumentTypeError: ``env`` is none of what is allowed.
        UnpicklableError: The function that makes the environment can't reach another process.
        gymnasium.error.UnregisteredEnv: The id is unknown.

    Example:
        >>> found = inspect_env("CartPole-v1", quick=True)
        >>> found.state.verdict, found.reproducible.two_processes
        (<Verdict.CORRECT: 'correct'>, True)
    """
    started = time.perf_counter()
    _check(seed, timeout_s)
    source = _one_source(env, wrappers, env_kwargs)
    name = _name_of(env, source)
    with Errands(timeout_s) as errands:
        inspector = _Inspector(errands, source, seed, _QUICK_BUDGET_S if quick else _BUDGET_S, progress)
        found = inspector.inspect(Inspection(env=name, seed=int(seed), load_1_min=_load()))
    found = replace(found, recommendation=advise(found))
    return replace(found, duration_s=time.perf_counter() - started)


class _Inspector:
    """Makes the findings about one environment."""

    def __init__(
        self,
        errands: Errands,
        source: EnvSource,
        seed: int,
        budget_s: float,
        progress: Callable[[str], None] | None,
    ) -> None:
        self._errands = errands
        self._packed = packed_factories(source.factories)[0]
        self._journaled = packed_factories(source.journaled().factories)[0]
        self._seed = int(seed)
        self._budget_s = budget_s
        self._say = progress or _say_nothing

    def inspect(self, blank: Inspection) -> Inspection:
        """Fill in a blank inspection."""
        self._say("a first look: does it run, and what does it cost?")
        seen = self._errands.run(look, self._packed, self._seed, self._budget_s)
        if isinstance(seen, Mishap):
            return replace(blank, fault=_fault(seen))
        # What isn't timed can share the machine: the proofs run beside the rest of it.
        proofs = _Aside(self._prove)
        self._say("is it reproducible in another process? (proving its state meanwhile)")
        reproducible = compare_elsewhere(
            self._errands, self._packed, seen.reproducible, seen.actions, seen.trace, seen.hash_seed, self._seed
        )
        self._say("what do other copies lose?")
        varying = reproducible.varying_infos
        copies = find_copies(
            self._errands, self._packed, seen.actions, self._seed, varying, judges=reproducible.one_process is True
        )
        self._say("do two threads disturb one another?")
        step_us = seen.costs.step_us or 0.0
        threads = self._threads(seen, reproducible)
        self._say("does its state go on, bit for bit?")
        proven = proofs.result()
        self._say("what does a trip of its state cost?")
        state, replay = find_state(
            self._errands, proven, self._packed, self._journaled, self._seed, step_us, self._budget_s
        )
        self._say("do its steps let other threads run?")
        gil = find_gil(self._errands, self._packed, self._seed, 2 * self._budget_s)
        self._say("what does a batch cost here?")
        return replace(
            blank,
            layers=seen.layers,
            observation_space=seen.observation_space,
            action_space=seen.action_space,
            costs=seen.costs,
            reproducible=reproducible,
            global_random=seen.global_random,
            state=state,
            replay=replay,
            copies=copies,
            threads=threads,
            gil=gil,
            exchange=find_exchange(),
        )

    def _threads(self, seen: FirstLook, reproducible: Reproducibility) -> ThreadSafety:
        if not reproducible.one_process:
            return ThreadSafety(verdict=Verdict.NOT_REPRODUCIBLE, reason="it differs from itself")
        found = find_thread_safety(
            self._errands,
            self._packed,
            self._seed,
            seen.costs.step_us or 0.0,
            seen.most_steps,
            reproducible.varying_infos,
            4 * self._budget_s,
        )
        return replace(found, drawn_one_by_one=seen.draws_with_pygame)

    def _prove(self) -> list[Proof]:
        try:
            return prove([self._packed, self._journaled])
        except Exception as error:  # what a process raised that was to try it
            return [Proof(Verdict.RAISES, f"trying it raised {words_of(error)}")] * 2


def _say_nothing(_words: str) -> None:
    """Nobody wants to know."""


class _Aside:
    """A call in a thread, which doesn't keep the program from ending."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._outcome: tuple[bool, Any] = False, None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._outcome = True, call()
        except Exception as error:
            self._outcome = False, error

    def result(self) -> Any:
        """Wait for what it returns, or raise what it raised."""
        self._thread.join()
        succeeded, value = self._outcome
        if succeeded:
            return value
        raise value


def _check(seed: Any, timeout_s: Any) -> None:
    if isinstance(seed, bool) or not hasattr(type(seed), "__index__"):
        raise ArgumentTypeError(f"seed={seed!r} must be a whole number, 0 or more")
    if seed < 0:
        raise ArgumentError(f"seed={seed} must be 0 or more")
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise ArgumentTypeError(f"timeout_s={timeout_s!r} must be a number of seconds")
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise ArgumentError(f"timeout_s={timeout_s} must be a number of seconds above 0")


def _one_source(env: Any, wrappers: Any, env_kwargs: dict[str, Any] | None) -> EnvSource:
    source = source_of(env, None, wrappers, env_kwargs)
    if len({id(factory) for factory in source.factories}) > 1:
        raise ArgumentError(
            f"env is a list of {len(source.factories)} different factories: inspect one environment at a time"
        )
    check_factories(source.factories[:1], must_travel=True)
    # A partial can be hashed whatever the factory is, as a journal needs it.
    return replace(source, factories=(functools.partial(source.factories[0]),))


def _name_of(env: Any, source: EnvSource) -> str:
    if source.spec is not None:
        return source.spec.id
    if isinstance(env, list | tuple):
        return _name_of(env[0], source)
    if isinstance(env, functools.partial):
        return _name_of(env.func, source)
    return str(getattr(env, "label", None) or getattr(env, "__name__", None) or repr(env))


def _load() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def _fault(mishap: Mishap) -> str:
    if mishap.verdict is Verdict.HANGS:
        return f"it hangs: {mishap.reason}"
    return mishap.reason if mishap.reason.startswith("it ") else f"it raises {mishap.reason}"
