"""What follows from the findings, in words.

Where to step it is decided by the rule of ``backend="auto"``, fed with these findings
(``joblib_envs/choosing/decision.py``); from how many environments on workers pay is the smallest number for
which it takes them. Threads are a candidate where two of them were measured to do more than one in every
round, and where they don't disturb one another.

Tasks and states: right where the proof says so; each call of tasks execution takes one trip for each
environment. Replay is the way out where it was exact; its trip takes as long as all calls before it.
"""

from __future__ import annotations

import math

from joblib_envs.choosing.decision import Choice, EnvCosts, Place, choose
from joblib_envs.equality import Verdict
from joblib_envs.execution.registry import Workers, actor_backends
from joblib_envs.inspection.findings import Gil, Inspection
from joblib_envs.inspection.units import us_words

__all__ = ["advise", "break_even", "choice_for"]

_BUSY = 0.75
"""A load for each CPU from which on times are longer than they need be."""

_CLEARLY_FASTER = 1.2
"""Two threads pay where they did so much more than one in every round."""


def advise(found: Inspection) -> tuple[str, ...]:
    """Return one text for each subject on which there is something to say."""
    if found.fault:
        return (f"Mend the environment first: {found.fault}. Nothing else was tried.",)
    lines = (
        _on_stepping(found),
        _on_states(found),
        _on_copies(found),
        _on_randomness(found),
        _on_threads(found),
        _on_load(found),
    )
    return tuple(line for line in lines if line)


def choice_for(found: Inspection, num_envs: int) -> Choice | None:
    """Return what ``backend="auto"`` would choose by these findings; None where something wasn't measured."""
    costs, exchange = found.costs, found.exchange
    if costs.step_us is None or exchange.hand_over is None:
        return None
    places = [Place(name, entry.workers, entry.caller_steps(), num_envs) for name, entry in actor_backends().items()]
    measured = EnvCosts(
        step_us=costs.step_us,
        cpu_share=1.0 if costs.cpu_share is None else min(1.0, costs.cpu_share),
        waits=costs.waits,
        held_share=min(1.0, max(0.0, 2 / found.gil.two_threads_low - 1)) if found.gil.two_threads_low else 1.0,
        safe_in_threads=_threads_pay(found),
    )
    has_gil = found.gil.gil is not Gil.ABSENT
    return choose(
        measured, exchange.hand_over, places, num_envs, num_cpus=exchange.num_cpus, has_gil=has_gil
    )  # fmt: skip


def break_even(found: Inspection) -> int | None:
    """Return from how many environments on workers are chosen; None where they never are, or it can't be told."""
    low, high = 1, 2
    while not _takes_workers(found, high):
        low, high = high, 2 * high
        if high > _MOST_ENVS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _takes_workers(found, middle) else (middle, high)
    return high


_MOST_ENVS = 2**17


def _takes_workers(found: Inspection, num_envs: int) -> bool:
    choice = choice_for(found, num_envs)
    return choice is not None and choice.n_jobs > 1


def _on_stepping(found: Inspection) -> str:
    step_us, exchange = found.costs.step_us, found.exchange
    if step_us is None:
        return ""
    if found.costs.waits:
        return _on_waiting(found, step_us)
    words = f"A step takes {us_words(step_us)}"
    if exchange.num_cpus == 1:
        return f"{words}, and there is one usable CPU: backend='sequential'."
    if exchange.hand_over is None:
        return f"{words}; what a batch costs here could not be measured ({exchange.reason}): see joblib-envs compare."
    number = break_even(found)
    words += (
        f", a sequential batch adds {us_words(exchange.per_env_us)} to each, and an exchange with "
        f"{exchange.num_workers} loky workers takes {us_words(exchange.exchange_us)} here: "
    )
    choice = None if number is None else choice_for(found, number)
    if number is None or choice is None:
        words += "backend='sequential' for any number of environments."
    elif number == 2:
        words += f"{choice.backend} actors (backend={choice.backend!r}) from two environments on."
    else:
        words += f"sequential below about {_rounded(number):,} environments, {choice.backend} actors above."
    words += " (Worked out from these, as backend='auto' does; joblib-envs compare measures it.)"
    if _threads_pay(found) and (choice is None or not _in_threads(choice)):
        words += f" Or backend='threading': {_speed_words(found)}."
    return words


def _on_waiting(found: Inspection, step_us: float) -> str:
    words = f"A step waits ({us_words(step_us)}, {found.costs.cpu_share:.0%} of it processor time)"
    choice = choice_for(found, _SOME_ENVS)
    if choice is None:
        return f"{words}, so more workers than CPUs should pay: backend='auto' finds out which."
    if choice.n_jobs == 1:
        return f"{words}, but not for long enough for workers to pay: backend='sequential'."
    each = choice.n_jobs == _SOME_ENVS
    number = "one worker for each environment, n_jobs=num_envs" if each else f"n_jobs={choice.n_jobs}"
    return f"{words}, so more workers than CPUs should pay: backend={choice.backend!r} with {number}."


_SOME_ENVS = 8


def _in_threads(choice: Choice) -> bool:
    return actor_backends()[choice.backend].workers is Workers.THREADS


def _threads_pay(found: Inspection) -> bool:
    low = found.gil.two_threads_low
    safe = found.threads.is_correct and not found.threads.drawn_one_by_one
    return safe and found.gil.gil is not Gil.HELD and low is not None and low > _CLEARLY_FASTER


def _speed_words(found: Inspection) -> str:
    gil = found.gil
    return (
        f"two threads made {gil.two_threads_speed:.1f} times the steps of one "
        f"({gil.two_threads_low:.1f} to {gil.two_threads_high:.1f})"
    )


def _rounded(number: int) -> int:
    """Return two digits: more would promise too much."""
    step: int = 10 ** max(0, len(str(number)) - 2)
    return math.ceil(number / step) * step


def _on_states(found: Inspection) -> str:
    state, replay = found.state, found.replay
    if state.is_correct:
        words = "States travel: get_state, save and execution='tasks' are right"
        if state.trip_us is not None and found.costs.step_us:
            words += (
                f"; tasks take a trip of {us_words(state.trip_us)} for each environment at each call, "
                f"{_times(state.trip_us / found.costs.step_us)} its step"
            )
        return f"{words}."
    if found.reproducible.verdict is Verdict.NOT_REPRODUCIBLE:
        return "Whether its state travels can't be told, so get_state, and tasks in processes, refuse it: use actors."
    if state.verdict is Verdict.INCOMPLETE:
        return ""
    words = "Its state can't be captured, so tasks in processes refuse it: use actors"
    if replay.is_correct:
        words += "; where states are needed, state_method='replay' is exact"
        if replay.trip_us is not None:
            words += f", at {us_words(replay.trip_us)} for {replay.num_calls} calls, and longer for more"
        return f"{words}."
    if replay.verdict is Verdict.INCOMPLETE:
        return f"{words}."
    return f"{words}. Replay isn't exact either ({replay.reason})."


def _times(ratio: float) -> str:
    return f"{ratio:.1f} times" if ratio < 10 else f"{_rounded(math.ceil(ratio)):,} times"


def _on_copies(found: Inspection) -> str:
    wrong = [each.way for each in found.copies if each.verdict is Verdict.WRONG]
    if not wrong:
        return ""
    remedy = " joblib_envs.capture(env) keeps it." if found.state.is_correct else ""
    return (
        f"Don't copy it by {_listed(wrong)}, nor let joblib.Parallel do so: state is lost without an error.{remedy}"
    )  # fmt: skip


def _listed(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _on_randomness(found: Inspection) -> str:
    reproducible, touched = found.reproducible, found.global_random
    if reproducible.verdict is Verdict.NOT_REPRODUCIBLE:
        words = "Equal seeds give different data, so no backend's data can be called right. "
        if reproducible.seeded_by:
            names = " and ".join(reproducible.seeded_by)
            return f"{words}{names} is behind it, for seeding that made it reproducible: draw from self.np_random."
        return (
            f"{words}Seeding numpy.random and random did not help: the clock, another generator, the order of a set "
            f"or state that instances share may be behind it."
            if reproducible.one_process is False
            else f"{words}Python's hashes, or what a module does when it is imported, may be behind it."
        )
    if touched.verdict is Verdict.WRONG:
        return (
            "It changes a global random generator, which other code in its process shares, and which differs in each "
            "worker: draw from self.np_random."
        )
    return ""


def _on_load(found: Inspection) -> str:
    load, num_cpus = found.load_1_min, found.exchange.num_cpus
    if load is None or not num_cpus or load < _BUSY * num_cpus:
        return ""
    return f"The machine had other work (load {load:.1f} on {num_cpus} CPUs): on a quiet one times are shorter."


def _on_threads(found: Inspection) -> str:
    is_unsafe = found.threads.verdict in (Verdict.WRONG, Verdict.RAISES, Verdict.HANGS)
    if is_unsafe and not found.threads.drawn_one_by_one:
        return "Instances disturb one another in threads: never backend='threading'; processes keep them apart."
    if found.gil.gil is Gil.RELEASED and found.gil.two_threads_low is not None and not _threads_pay(found):
        return f"Steps release the GIL, yet threads weren't clearly faster here: {_speed_words(found)}."
    return ""
