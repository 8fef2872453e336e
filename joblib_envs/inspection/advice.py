"""What follows from the findings, in words.

Where to step it: n environments that step one after the other take n (s + b), with s the step and b what a
sequential batch adds to each. On w workers of loky's actors they take n (s + b) / w plus one
exchange e. The two are equal at n = e / ((s + b) (1 - 1 / w)): sequential is right below it, actors
above. s, b and e were measured; that n environments share w CPUs evenly is assumed, which the
sentence says. Steps that wait, rather than work, need no CPU, so more workers than CPUs pay.
Threads are named where two of them were measured to do more than one in every round, and where they
don't disturb one another.

Tasks and states: right where the proof says so; each call of tasks execution takes one trip for each
environment. Replay is the way out where it was exact; its trip takes as long as all calls before it.
"""

from __future__ import annotations

import math

from joblib_envs.equality import Verdict
from joblib_envs.inspection.findings import Exchange, Gil, Inspection
from joblib_envs.inspection.units import us_words

__all__ = ["advise", "break_even"]

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


def break_even(step_us: float, exchange: Exchange) -> int | None:
    """Return from how many environments on loky actors take less time than one process; at least 2."""
    if exchange.exchange_us is None or exchange.per_env_us is None or exchange.num_cpus < 2:
        return None
    saved_us = (step_us + exchange.per_env_us) * (1 - 1 / exchange.num_workers)
    return max(2, math.ceil(exchange.exchange_us / max(saved_us, 1e-9)))


def _on_stepping(found: Inspection) -> str:
    step_us, exchange = found.costs.step_us, found.exchange
    if step_us is None:
        return ""
    threads_pay = _threads_pay(found)
    if found.costs.waits:
        where = "backend='threading'" if threads_pay else "backend='loky'"
        return (
            f"A step waits ({us_words(step_us)}, {found.costs.cpu_share:.0%} of it processor time), so more workers "
            f"than CPUs should pay: {where} with one worker for each environment, n_jobs=num_envs."
        )
    words = f"A step takes {us_words(step_us)}"
    if exchange.num_cpus == 1:
        return f"{words}, and there is one usable CPU: backend='sequential'."
    number = break_even(step_us, exchange)
    if number is None:
        return f"{words}; what a batch costs here could not be measured ({exchange.reason}): see joblib-envs compare."
    words += (
        f", a sequential batch adds {us_words(exchange.per_env_us)} to each, and an exchange with "
        f"{exchange.num_workers} loky workers takes {us_words(exchange.exchange_us)} here: "
    )
    words += (
        "loky actors (backend='loky') from two environments on."
        if number == 2
        else f"sequential below about {_rounded(number):,} environments, loky actors above."
    )
    words += " (Worked out from these; joblib-envs compare measures it.)"
    if threads_pay:
        words += f" Or backend='threading': {_speed_words(found)}."
    return words


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
