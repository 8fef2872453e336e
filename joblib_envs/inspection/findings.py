"""What an inspection finds out: one frozen dataclass for each finding, and all of them together."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from typing import Any

from joblib_envs.choosing.decision import HandOver
from joblib_envs.equality import Verdict

__all__ = [
    "CopyFinding",
    "Costs",
    "Exchange",
    "Finding",
    "Gil",
    "GilFinding",
    "GlobalRandom",
    "Inspection",
    "LostField",
    "ReplayFinding",
    "Reproducibility",
    "StateFinding",
    "ThreadSafety",
]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that was found out, or why it wasn't.

    Attributes:
        verdict: ``correct`` where all is well, ``incomplete`` where it wasn't tried; the other words
            are those of ``joblib-envs compare``.
        reason: Why, in words; empty for ``correct``.
    """

    verdict: Verdict = Verdict.INCOMPLETE
    reason: str = ""

    @property
    def is_correct(self) -> bool:
        """Whether all is well."""
        return self.verdict is Verdict.CORRECT


@dataclass(frozen=True, kw_only=True)
class Costs(Finding):
    """What calls take, in a process that has no other work: medians in microseconds; None: not measured.

    Attributes:
        first_constructor_us: The first instance, imports included.
        constructor_us: The others.
        constructor_samples: How many of them.
        reset_us: A reset without a seed.
        reset_samples: How many.
        step_us: A step.
        step_samples: How many.
        cpu_share: Processor time of the steps, relative to their time.
        waits: Whether steps gave the processor away by themselves, as one that sleeps or waits for a
            device does.
    """

    first_constructor_us: float | None = None
    constructor_us: float | None = None
    constructor_samples: int = 0
    reset_us: float | None = None
    reset_samples: int = 0
    step_us: float | None = None
    step_samples: int = 0
    cpu_share: float | None = None
    waits: bool = False


@dataclass(frozen=True, kw_only=True)
class Reproducibility(Finding):
    """Whether equal seeds and actions give equal observations, rewards and flags.

    Attributes:
        num_steps: How many steps of each instance were compared.
        one_process: Whether two instances in one process are equal; None: not tried.
        two_processes: Whether instances in two processes are; None: not tried.
        hash_seeds_differ: Whether Python's hashes of strings differed in the two processes.
        first_difference: Where the first difference is; empty where there is none.
        seeded_by: What makes it reproducible when seeded before: ``numpy.random``, ``random``.
        varying_infos: Keys of infos that differ although the data are equal, such as times.
    """

    num_steps: int = 0
    one_process: bool | None = None
    two_processes: bool | None = None
    hash_seeds_differ: bool | None = None
    first_difference: str = ""
    seeded_by: tuple[str, ...] = ()
    varying_infos: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GlobalRandom(Finding):
    """Which calls change a global random generator: correct where none does.

    Attributes:
        numpy_random: Calls that change ``numpy.random``'s: ``constructor``, ``reset``, ``step``.
        random: Calls that change the module ``random``'s.
    """

    numpy_random: tuple[str, ...] = ()
    random: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StateFinding(Finding):
    """Whether states that this package captures go on bit for bit, and what one trip costs.

    Attributes:
        size_bytes: What travels each time; None: not measured, as below.
        shared_size_bytes: What travels once for each worker: simulator models.
        trip_us: Capture and restore, median, after the first.
        trip_samples: How many trips.
    """

    size_bytes: int | None = None
    shared_size_bytes: int | None = None
    trip_us: float | None = None
    trip_samples: int = 0


@dataclass(frozen=True, kw_only=True)
class ReplayFinding(Finding):
    """Whether making the environment anew and all calls again is exact, and what it costs.

    Attributes:
        num_calls: The calls in the journal that was measured.
        size_bytes: What travels with them.
        trip_us: Capture and restore, median, after the first.
        trip_samples: How many trips.
    """

    num_calls: int = 0
    size_bytes: int | None = None
    trip_us: float | None = None
    trip_samples: int = 0


@dataclass(frozen=True)
class LostField:
    """An attribute that a copy has not got, or has with another value.

    Attributes:
        path: Where it is: layer, attribute, and what is in it.
        was: The original's value.
        now: The copy's value.
    """

    path: str
    was: str
    now: str


@dataclass(frozen=True, kw_only=True)
class CopyFinding(Finding):
    """What a copy that others make is worth: correct, wrong without an error, or an error.

    Attributes:
        way: ``pickle``, ``cloudpickle`` or ``deepcopy``.
        size_bytes: The pickle's; None where there is none.
        lost: Attributes that a copy made in mid-episode has lost: at most 10 of each object, 50 in all.
        num_lost: How many there are in all; None: not known.
    """

    way: str
    size_bytes: int | None = None
    lost: tuple[LostField, ...] = ()
    num_lost: int | None = None


@dataclass(frozen=True, kw_only=True)
class ThreadSafety(Finding):
    """Whether two instances that step in two threads at once give what each gives alone.

    Attributes:
        num_steps: Steps of each instance.
        drawn_one_by_one: Whether ``BatchEnv`` steps it one thread at a time, since it may draw
            with pygame.
    """

    num_steps: int = 0
    drawn_one_by_one: bool = False


class Gil(enum.StrEnum):
    """What steps do with Python's global interpreter lock."""

    RELEASED = "released"
    HELD = "held"
    UNCLEAR = "unclear"
    ABSENT = "absent"


@dataclass(frozen=True, kw_only=True)
class GilFinding(Finding):
    """Whether other threads can run Python during a step.

    Python is kept from switching threads by itself, so that another thread, which only counts, can run
    only where a step releases the lock.

    Attributes:
        gil: ``released`` where the other thread ran in at least a tenth of the steps, ``held`` where it
            did in less than a hundredth, ``absent`` where this Python has no such lock.
        share: The share of steps in which the other thread ran; None: not measured.
        num_steps: How many steps were looked at.
        two_threads_speed: Steps of two threads together, divided by those of one in the same time: median.
        two_threads_low: The smallest of the rounds.
        two_threads_high: The largest.
        num_rounds: How many rounds.
    """

    gil: Gil = Gil.UNCLEAR
    share: float | None = None
    num_steps: int = 0
    two_threads_speed: float | None = None
    two_threads_low: float | None = None
    two_threads_high: float | None = None
    num_rounds: int = 0


@dataclass(frozen=True, kw_only=True)
class Exchange(Finding):
    """What a step of a batch costs on this machine, whatever the environment: medians in microseconds.

    Attributes:
        num_workers: Workers that were used: one for each usable CPU, at least two.
        num_cpus: Usable CPUs.
        exchange_us: A step with that many workers of loky's actors, whatever it is that they step.
        per_env_us: What a sequential batch adds to each environment's step.
        hand_over: All that was measured.
    """

    num_workers: int = 0
    num_cpus: int = 0
    exchange_us: float | None = None
    per_env_us: float | None = None
    hand_over: HandOver | None = None


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """All that was found out about an environment.

    Attributes:
        env: What it is called.
        layers: The types of its wrappers and of itself, the outermost first.
        observation_space: Its text.
        action_space: Its text.
        seed: The seed of resets and actions.
        fault: What the environment itself does wrong, such as raising in its second step; empty
            where it does nothing wrong. Nothing else is tried then.
        costs: What calls take.
        reproducible: Whether equal seeds give equal data.
        global_random: Whether it draws from global generators.
        state: Whether its state travels, and what a trip costs.
        replay: The same by replay.
        copies: What plain pickle, cloudpickle and deepcopy do.
        threads: Whether it can be stepped in several threads.
        gil: Whether its steps let other threads run.
        exchange: What a batch costs here.
        recommendation: What follows, in words; one line for each subject.
        duration_s: How long the inspection took.
        load_1_min: The machine's load in the minute before; None where it has none.

    Example:
        >>> Inspection(env="CartPole-v1", fault="it raises").to_dict()["costs"]["verdict"]
        'incomplete'
    """

    env: str
    layers: tuple[str, ...] = ()
    observation_space: str = ""
    action_space: str = ""
    seed: int = 0
    fault: str = ""
    costs: Costs = field(default_factory=Costs)
    reproducible: Reproducibility = field(default_factory=Reproducibility)
    global_random: GlobalRandom = field(default_factory=GlobalRandom)
    state: StateFinding = field(default_factory=StateFinding)
    replay: ReplayFinding = field(default_factory=ReplayFinding)
    copies: tuple[CopyFinding, ...] = ()
    threads: ThreadSafety = field(default_factory=ThreadSafety)
    gil: GilFinding = field(default_factory=GilFinding)
    exchange: Exchange = field(default_factory=Exchange)
    recommendation: tuple[str, ...] = ()
    duration_s: float = 0.0
    load_1_min: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as dictionaries, lists, texts and numbers, ready for JSON."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain

    def __str__(self) -> str:
        from joblib_envs.inspection.report import as_text  # which needs this module

        return as_text(self)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value.value if isinstance(value, enum.Enum) else value
