"""What copies that others make are worth: plain pickle, cloudpickle, ``copy.deepcopy``.

A copy is made in mid-episode and where an episode has ended. It then goes on, with a reset without
a seed on the way, pickles in another process. A twin that was never copied tells what is right.
"""

from __future__ import annotations

import copy
import pickle
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle

from joblib_envs.equality import Verdict
from joblib_envs.inspection.driving import Env, Trace, difference_between, play
from joblib_envs.inspection.errands import Errands, Mishap, Whereabouts, words_of
from joblib_envs.inspection.fields import lost_fields
from joblib_envs.inspection.findings import CopyFinding, LostField
from joblib_envs.processes import unpickled
from joblib_envs.state.trial_runs import close_all

__all__ = ["find_copies"]

_STEPS_BEFORE = 12
_STEPS_AFTER = 12
_MOST_LISTED = 50
_MOST_OF_AN_OBJECT = 10
_DUMPS: dict[str, Callable[[Any], bytes]] = {"pickle": pickle.dumps, "cloudpickle": cloudpickle.dumps}
WAYS = ("pickle", "cloudpickle", "deepcopy")


@dataclass(frozen=True)
class _Outcome:
    """What one way did at one moment.

    Attributes:
        way: The way.
        moment: When: ``in mid-episode`` or ``at the end of an episode``.
        error: How copying raised, or the copy where it went on; empty where neither.
        difference: Where the copy went another way; empty where it didn't.
        data: The pickle, which has yet to be judged.
        actions: What the copy is to be given.
        ended: Whether its episode has ended.
        right: What the twin answered.
    """

    way: str
    moment: str
    error: str = ""
    difference: str = ""
    data: bytes = b""
    actions: tuple[Any, ...] = ()
    ended: bool = False
    right: Trace | None = None


def find_copies(
    errands: Errands, packed: bytes, actions: bytes, seed: int, varying: tuple[str, ...], *, judges: bool
) -> tuple[CopyFinding, ...]:
    """Find out what each way of copying does.

    Args:
        errands: Sends out.
        packed: The pickled function that makes an environment.
        actions: Pickled actions.
        seed: Of resets.
        varying: Keys of infos that vary by themselves.
        judges: Whether the environment is reproducible: what can't be compared with a twin is only
            looked at for its fields.
    """
    departed = errands.run(_depart, packed, actions, seed, varying, judges)
    if isinstance(departed, Mishap):
        return tuple(_spoilt(way, departed) for way in WAYS)
    outcomes, lost = cloudpickle.loads(departed)
    waiting = [each for each in outcomes if each.data and each.right is not None]
    arrived = _sent(errands, waiting, varying) if waiting else []
    judged = [each for each in outcomes if not each.data or each.right is None] + arrived
    return tuple(_finding(way, [each for each in judged if each.way == way], lost, judges=judges) for way in WAYS)


def _spoilt(way: str, mishap: Mishap) -> CopyFinding:
    """Blame a crash on the way of copying that was being tried; the others then weren't."""
    verdict = mishap.verdict if f" in {way} " in mishap.reason else Verdict.INCOMPLETE
    return CopyFinding(way=way, verdict=verdict, reason=mishap.reason)


def _sent(errands: Errands, waiting: list[_Outcome], varying: tuple[str, ...]) -> list[_Outcome]:
    """Judge pickles in another process; where one of them ends it, each in its own."""
    arrived: list[_Outcome] | Mishap = errands.run(_arrive, cloudpickle.dumps(waiting), varying)
    if not isinstance(arrived, Mishap):
        return arrived
    if len(waiting) > 1:
        return [judged for each in waiting for judged in _sent(errands, [each], varying)]
    return [replace(waiting[0], error=f"going on elsewhere, {arrived.reason}")]


def _finding(
    way: str, outcomes: list[_Outcome], lost: dict[str, list[LostField]], *, judges: bool
) -> CopyFinding:  # fmt: skip
    fields = lost.get(way)
    finding = CopyFinding(
        way=way,
        size_bytes=next((len(each.data) for each in outcomes if each.data), None),
        lost=_chosen(fields or []),
        num_lost=None if fields is None else len(fields),
    )
    wrong = [each for each in outcomes if each.difference]
    raised = [each for each in outcomes if each.error]
    if wrong:
        also = f"; {raised[0].error}" if raised else ""
        return replace(finding, verdict=Verdict.WRONG, reason=f"{wrong[0].difference}{also}")
    if raised:
        return replace(finding, verdict=Verdict.RAISES, reason=raised[0].error)
    if not judges:
        return replace(finding, verdict=Verdict.NOT_REPRODUCIBLE, reason="it differs from itself")
    if not outcomes:
        return replace(finding, reason="no episode is long enough, nor ends soon")
    return replace(finding, verdict=Verdict.CORRECT)


def _chosen(fields: list[LostField]) -> tuple[LostField, ...]:
    """Choose which fields are told: few of each object, so that all objects have some."""
    told: Counter[str] = Counter()
    chosen = []
    for each in fields:
        parent = each.path.rpartition(".")[0]
        told[parent] += 1
        if told[parent] <= _MOST_OF_AN_OBJECT:
            chosen.append(each)
    return tuple(chosen[:_MOST_LISTED])


def _depart(
    where: Whereabouts, packed: bytes, actions: bytes, seed: int, varying: tuple[str, ...], judges: bool
) -> bytes:  # fmt: skip
    made: list[Env] = []
    outcomes: list[_Outcome] = []
    lost: dict[str, list[LostField]] = {}
    try:
        factory, given = unpickled(packed), unpickled(actions)
        given = given * (1 + (_STEPS_BEFORE + _STEPS_AFTER) // len(given))
        for moment, run in (("in mid-episode", _into_an_episode), ("at the end of an episode", _to_an_end)):
            where.at(f"a run that was to be copied {moment}")
            pair = factory(), factory()
            made.extend(pair)
            steps = [run(env, given, seed) for env in pair]
            if steps[0] is None or steps[0] != steps[1]:
                continue  # no episode is that long, or that short
            base = _Outcome("", moment, actions=tuple(given[:_STEPS_AFTER]), ended=run is _to_an_end)
            if judges:
                base = replace(base, right=_gone_on(pair[1], base))
            for way in WAYS:
                where.at(f"{way} {moment}")
                outcome, fields = _copied(replace(base, way=way), pair[0], made, varying)
                outcomes.append(outcome)
                if fields is not None:
                    lost.setdefault(way, fields)
        return cloudpickle.dumps((outcomes, lost))  # type: ignore[no-any-return]
    finally:
        close_all(made)


def _copied(
    base: _Outcome, env: Env, made: list[Env], varying: tuple[str, ...]
) -> tuple[_Outcome, list[LostField] | None]:
    """Copy an environment; judge a deep copy here, keep a pickle for another process."""
    try:
        data = _DUMPS[base.way](env) if base.way in _DUMPS else b""
    except Exception as error:
        return replace(base, error=f"it can't be copied {base.moment} ({words_of(error)})"), None
    try:
        copied = pickle.loads(data) if data else copy.deepcopy(env)
    except Exception as error:
        done = "unpickled" if data else "copied"
        return replace(base, error=f"it can't be {done} {base.moment} ({words_of(error)})"), None
    made.append(copied)  # and closed later: it may share something with the original
    lost = _lost(env, copied)
    if data or base.right is None:
        return replace(base, data=data), lost
    judged = _judged(base, copied, base.right, varying)
    if not judged.difference and not judged.error:
        after = difference_between(base.right, _gone_on(env, base), varying, ("a twin", "the original"))
        if after:
            judged = replace(judged, difference=f"steps of a copy made {base.moment} change the original ({after})")
    return judged, lost


def _lost(env: Env, copied: Env) -> list[LostField] | None:
    try:
        return lost_fields(env, copied)
    except Exception:  # an attribute that can't be looked at
        return None


def _gone_on(env: Env, outcome: _Outcome) -> Trace:
    num_actions = len(outcome.actions)
    return play(env, outcome.actions, seed=None, is_running=not outcome.ended, reset_at=num_actions // 2 + 1)


def _judged(outcome: _Outcome, copied: Env, right: Trace, varying: tuple[str, ...]) -> _Outcome:
    try:
        got = _gone_on(copied, outcome)
    except (Exception, SystemExit) as error:
        return replace(outcome, error=f"a copy made {outcome.moment} raises {words_of(error)} when it goes on")
    difference = difference_between(right, got, varying, ("the original", "the copy"))
    if not difference:
        return outcome
    return replace(
        outcome, difference=f"a copy made {outcome.moment} goes another way, without an error ({difference})"
    )


def _arrive(where: Whereabouts, packed: bytes, varying: tuple[str, ...]) -> list[_Outcome]:
    judged = []
    for outcome in cloudpickle.loads(packed):
        where.at(f"a {outcome.way} copy, {outcome.moment}")
        made: list[Env] = []
        try:
            made.append(pickle.loads(outcome.data))
            done = _judged(outcome, made[0], outcome.right or [], varying)
        except (Exception, SystemExit) as error:
            done = replace(outcome, error=f"a pickle made {outcome.moment} can't be unpickled ({words_of(error)})")
        finally:
            close_all(made)
        judged.append(done)
    return judged


def _into_an_episode(env: Env, actions: list[Any], seed: int) -> int | None:
    """Step some times, and on until an episode is under way; return after how many steps."""
    env.reset(seed=seed)
    for number, action in enumerate(actions, 1):
        _, _, terminated, truncated, _ = env.step(copy.deepcopy(action))
        if terminated or truncated:
            env.reset()
        elif number >= _STEPS_BEFORE:
            return number
    return None


def _to_an_end(env: Env, actions: list[Any], seed: int) -> int | None:
    """Step until an episode ends; None where it doesn't soon."""
    env.reset(seed=seed)
    give_up = time.perf_counter() + 0.5
    for number in range(2000):
        _, _, terminated, truncated, _ = env.step(copy.deepcopy(actions[number % len(actions)]))
        if terminated or truncated:
            return number
        if time.perf_counter() > give_up:
            break
    return None
