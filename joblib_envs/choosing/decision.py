"""Which backend to take: a rule without a clock, fed with what was measured.

A step of a batch of n environments on w workers is predicted to take, with s the time of a step, c its
processor time and b what a batch adds to each (its loop, and the observation's copy)::

    caller:   call + n (s + b)                      one after the other
    workers:  call + h w + max(longest, processor)  h: handing work to one worker, and back
    longest   = ceil(n / w) (s + b), and more where steps vary: the batch waits for the slowest
    processor = n (c + b) / min(w, CPUs), and what holds the interpreter lock isn't shared by threads

and, in each case, what the caller does for each environment: it copies observations and batches infos,
which processes pickle too. Computing takes longer while other CPUs compute, by a factor that was
measured. Steps that wait need no processor, so more workers than CPUs pay; with them it is
``hypot(longest, processor)`` in place of the larger of the two.

Whatever the numbers are, measured or predicted, the simplest way is taken unless another is
surely faster (:func:`preferred`): that is the rule of ``compare`` as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from joblib_envs.execution.registry import Workers
from joblib_envs.hand_out import MIN_BYTES
from joblib_envs.inspection.units import us_words

__all__ = ["Choice", "EnvCosts", "HandOver", "Place", "Prediction", "choose", "predicted_us", "preferred"]

MARGIN = 1.08
"""A prediction is surely faster where it is so many times as fast: the model isn't better than that."""

_MOST_THREADS = 256
_MOST_PROCESSES = 16
"""For steps that wait, beyond one for each CPU: each costs a start and the memory of an interpreter."""

_MOSTLY_HELD = 0.25
"""Without a GIL threads are preferred, unless instances hold one another up for so much of their time."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class EnvCosts:
    """What a step of one environment costs, as far as the choice needs to know.

    Attributes:
        step_us: Time of a step, resets in proportion.
        step_std_us: How much that varies: the standard deviation.
        cpu_share: Processor time of steps, relative to their time.
        waits: Whether steps give the processor away by themselves.
        held_share: The share of a step's processor time in which no other thread can run.
        observation_bytes: Of one observation.
        info_us: What the caller takes to batch one environment's info.
        info_pack_us: What a worker process takes to pickle it.
        info_unpack_us: What the caller takes to unpickle it.
        safe_in_threads: Whether instances stepped in two threads at once gave what each gives alone, and
            did not keep each other waiting. False where it wasn't tried.
        num_steps: How many steps were made to find out.
    """

    step_us: float
    step_std_us: float = 0.0
    cpu_share: float = 1.0
    waits: bool = False
    held_share: float = 1.0
    observation_bytes: int = 0
    info_us: float = 0.0
    info_pack_us: float = 0.0
    info_unpack_us: float = 0.0
    safe_in_threads: bool = False
    num_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class HandOver:
    """What a batch costs on this machine, whatever the environment.

    Attributes:
        call_us: A step of a batch, apart from what follows.
        per_env_us: What it adds for each environment.
        per_byte_us: Copying a byte.
        worker_us: By backend: handing work to one worker and waiting for its answer.
        slowdown: How many times as long computing takes while another CPU computes too: they share
            caches, memory and, as hyper-threads, more than that.
    """

    call_us: float
    per_env_us: float
    per_byte_us: float = 0.0
    worker_us: Mapping[str, float] = field(default_factory=dict)
    slowdown: float = 1.0


@dataclass(frozen=True)
class Place:
    """Where environments can be stepped.

    Attributes:
        backend: Its name.
        workers: What steps them.
        caller_steps: Whether the caller steps a shard, and counts as a worker.
        most_workers: The most that may be had.
    """

    backend: str
    workers: Workers
    caller_steps: bool
    most_workers: int


@dataclass(frozen=True)
class Prediction:
    """What a candidate is predicted to do.

    Attributes:
        place: Where.
        n_jobs: With how many workers.
        call_us: How long a step of the whole batch takes.
        env_steps_per_s: Steps of environments in a second.
    """

    place: Place
    n_jobs: int
    call_us: float
    env_steps_per_s: float

    def __str__(self) -> str:
        return f"{_where(self)}: {self.env_steps_per_s:,.0f} steps/s"


@dataclass(frozen=True)
class Choice:
    """What ``backend="auto"`` has chosen, and why.

    Attributes:
        backend: The backend's name.
        execution: ``"actors"``.
        n_jobs: Number of workers.
        caller_steps: Whether the caller steps a shard.
        reason: Why, in a sentence or two.
        predictions: What each backend would do with its best number of workers, the fastest first; empty
            where there was nothing to compare.
        costs: What was measured of the environment; None where it wasn't.
        hand_over: What a batch costs on this machine; None where it wasn't needed.
        measured_s: How long the measuring took.

    Example:
        >>> place = Place("sequential", Workers.CALLER, caller_steps=True, most_workers=1)
        >>> choice = choose(EnvCosts(step_us=2.0), HandOver(call_us=25.0, per_env_us=1.0), [place], 4, num_cpus=2)
        >>> choice.backend, choice.n_jobs
        ('sequential', 1)
    """

    backend: str
    execution: str
    n_jobs: int
    caller_steps: bool
    reason: str
    predictions: tuple[Prediction, ...] = ()
    costs: EnvCosts | None = None
    hand_over: HandOver | None = None
    measured_s: float = 0.0

    def __repr__(self) -> str:
        predicted = "".join(f"\n  {each}" for each in self.predictions)
        return f"Choice(backend={self.backend!r}, n_jobs={self.n_jobs}): {self.reason}{predicted}"


def preferred(options: Sequence[T], is_surely_faster: Callable[[T, T], bool]) -> T:
    """Return the simplest option than which no other is surely faster.

    Args:
        options: The simplest first.
        is_surely_faster: Tells whether its first argument is faster than its second, beyond doubt.

    Example:
        >>> preferred([10.0, 9.8, 7.0], lambda one, other: one * 1.05 < other)  # times
        7.0
        >>> preferred([10.0, 9.8], lambda one, other: one * 1.05 < other)
        10.0
    """
    chosen = options[0]
    for option in options[1:]:
        if is_surely_faster(option, chosen):
            chosen = option
    return chosen


def choose(
    costs: EnvCosts,
    hand_over: HandOver,
    places: Sequence[Place],
    num_envs: int,
    *,
    num_cpus: int,
    has_gil: bool = True,
) -> Choice:
    """Choose among places, by what is predicted of them.

    Args:
        costs: The environment's.
        hand_over: The machine's.
        places: What can be had, the simplest first. Threads are passed over where the environment isn't
            known to be safe there.
        num_envs: Size of the batch.
        num_cpus: Usable CPUs.
        has_gil: Whether this Python has a global interpreter lock.
    """
    candidates = list(_candidates(costs, hand_over, _allowed(places, costs, has_gil), num_envs, num_cpus, has_gil))
    chosen = preferred(candidates, _is_surely_faster)
    best = _best_of_each(candidates)
    rivals = [each for each in best if each.place != chosen.place]
    return Choice(
        chosen.place.backend,
        "actors",
        chosen.n_jobs,
        chosen.place.caller_steps,
        _reason(chosen, rivals[0] if rivals else None, costs, num_envs),
        tuple(best),
        costs,
        hand_over,
    )


def predicted_us(
    costs: EnvCosts,
    hand_over: HandOver,
    place: Place,
    num_envs: int,
    n_jobs: int,
    *,
    num_cpus: int,
    has_gil: bool = True,
) -> float:
    """Return how long a step of the batch is predicted to take."""
    copy_us = costs.observation_bytes * hand_over.per_byte_us
    added_us = hand_over.per_env_us + copy_us
    caller_us = hand_over.call_us + num_envs * (copy_us + costs.info_us)
    if place.workers is Workers.CALLER:
        return caller_us + num_envs * (costs.step_us + added_us)
    handed = n_jobs - place.caller_steps
    worker_us = hand_over.worker_us.get(place.backend, _WOKEN_US)
    if place.workers is Workers.PROCESSES and n_jobs > num_cpus:
        worker_us = max(worker_us, _WOKEN_US)
    caller_us += handed * worker_us
    cpu_us = costs.step_us * costs.cpu_share
    step_us, held_us = costs.step_us, 0.0
    if place.workers is Workers.THREADS:
        held_us = cpu_us * costs.held_share + (added_us if has_gil else 0.0)
    else:
        added_us += costs.info_pack_us
        caller_us += num_envs * handed / n_jobs * costs.info_unpack_us
        if place.workers is Workers.PROCESSES and num_envs * costs.observation_bytes >= MIN_BYTES:
            # The workers make the caller's copy, while what they have written is still in their caches.
            caller_us -= num_envs * copy_us
            added_us += copy_us
        else:
            # What another CPU has just written is slower to read: it comes from its cache.
            caller_us += num_envs * handed / n_jobs * copy_us
    if num_cpus > 1 and (place.workers is Workers.PROCESSES or not has_gil):
        step_us += cpu_us * (hand_over.slowdown - 1)
        cpu_us, added_us = cpu_us * hand_over.slowdown, added_us * hand_over.slowdown
    free_us = cpu_us + added_us - held_us
    processor_us = num_envs * (held_us + free_us / min(n_jobs, num_cpus))
    of_each = math.ceil(num_envs / n_jobs)
    longest_us = of_each * (step_us + added_us)
    # About the largest of n_jobs sums of that many steps.
    longest_us += costs.step_std_us * math.sqrt(of_each) * math.sqrt(2 * math.log(max(n_jobs, 1)))
    if costs.waits:
        # Waiting and computing overlap, but steps that are due at the same time queue for the processor.
        return caller_us + math.hypot(longest_us, processor_us)
    return caller_us + max(longest_us, processor_us)


_WOKEN_US = 120.0
"""Handing work to a process that must be woken, since it has no CPU to itself on which to look out for work.

Measured with 4 and 16 processes on 2 CPUs: 110 to 200 us each.
"""


def _allowed(places: Sequence[Place], costs: EnvCosts, has_gil: bool) -> list[Place]:
    allowed = [each for each in places if costs.safe_in_threads or each.workers is not Workers.THREADS]
    threads_do = not has_gil and costs.held_share < _MOSTLY_HELD
    if threads_do and any(each.workers is Workers.THREADS for each in allowed):
        # No process to start, nothing to pickle, and as many CPUs.
        allowed = [each for each in allowed if each.workers is not Workers.PROCESSES]
    return allowed


def _candidates(
    costs: EnvCosts, hand_over: HandOver, places: Sequence[Place], num_envs: int, num_cpus: int, has_gil: bool
) -> Iterator[Prediction]:
    for place in places:
        for n_jobs in _worker_counts(place, costs, num_envs, num_cpus):
            call_us = predicted_us(costs, hand_over, place, num_envs, n_jobs, num_cpus=num_cpus, has_gil=has_gil)
            yield Prediction(place, n_jobs, call_us, num_envs / call_us * 1e6)


def _worker_counts(place: Place, costs: EnvCosts, num_envs: int, num_cpus: int) -> list[int]:
    """Return the numbers of workers to consider, the smallest first."""
    if place.workers is Workers.CALLER:
        return [1]
    most = num_cpus
    if costs.waits:
        most = max(most, _MOST_THREADS if place.workers is Workers.THREADS else _MOST_PROCESSES)
    most = min(most, place.most_workers, num_envs)
    fewest = 2 if place.caller_steps else 1
    doubled = {2**power for power in range(most.bit_length())}
    return sorted(number for number in {*doubled, most} if fewest <= number <= most)


def _is_surely_faster(one: Prediction, other: Prediction) -> bool:
    return one.call_us * MARGIN < other.call_us


def _best_of_each(candidates: Sequence[Prediction]) -> list[Prediction]:
    best: dict[Place, Prediction] = {}
    for each in candidates:
        if each.place not in best or each.call_us < best[each.place].call_us:
            best[each.place] = each
    return sorted(best.values(), key=lambda each: each.call_us)


def _reason(chosen: Prediction, rival: Prediction | None, costs: EnvCosts, num_envs: int) -> str:
    if costs.waits:
        words = f"A step waits ({us_words(costs.step_us)}, {costs.cpu_share:.0%} of it processor time)"
    else:
        words = f"A step takes {us_words(costs.step_us)}"
    who = "one environment" if num_envs == 1 else f"{num_envs} environments"
    words += f": {who} should take {us_words(chosen.call_us)} a call {_how(chosen)}"
    if rival is None:
        return f"{words}, and nothing else can be had."
    words += f", {us_words(rival.call_us)} {_how(rival)}."
    if not costs.safe_in_threads and costs.waits and chosen.place.workers is not Workers.THREADS:
        words += " Threads were left out: two at once didn't give what each gives alone, or it wasn't tried."
    return words


def _how(prediction: Prediction) -> str:
    return {
        Workers.CALLER: "one after the other",
        Workers.THREADS: f"in {prediction.n_jobs} threads",
        Workers.PROCESSES: f"with {prediction.n_jobs} workers of {prediction.place.backend}",
    }[prediction.place.workers]


def _where(prediction: Prediction) -> str:
    return f"{prediction.place.backend} actors, n_jobs={prediction.n_jobs}"
