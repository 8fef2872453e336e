"""The values that cross between a study's processes and end up as rows of its files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from joblib_envs.equality import Verdict
from joblib_envs.harness.environments import EnvironmentSource

__all__ = ["NOT_JUDGED", "NOT_RUN", "Cell", "Judgement", "Metric", "Sample", "Send", "describe_error"]

NOT_JUDGED = "not judged: it returns nothing, so there are no data"
"""The reason of a contender that is timed without a verdict."""

NOT_RUN = "not run: "
"""Begins the reason of contenders that were spared an environment that fails by itself."""

Send = Callable[..., None]
"""What a child process reports with: ``send(kind, *values)``."""


class Metric:
    """The names of what is measured; each says its unit.

    A state's ``payload_bytes`` travel each time, its ``shared_bytes`` once for each worker.
    """

    THROUGHPUT = "env_steps_per_s"
    START_UP = "start_up_s"
    CALL = "empty_call_s"
    MEMORY = "memory_bytes"
    COPY = "copy_s"
    RESTORE = "restore_s"
    PAYLOAD = "payload_bytes"
    SHARED = "shared_bytes"


@dataclass(frozen=True)
class Cell:
    """One point of a study's grid: the work that all contenders are given."""

    environment: EnvironmentSource
    num_envs: int
    n_jobs: int
    seed: int


@dataclass(frozen=True)
class Judgement:
    """What was found out about one contender in one cell.

    Attributes:
        verdict: The one word.
        reason: One line for a reader; empty for ``correct``.
        at: The call in which it differed, failed or hung, such as ``"step 3"``; of a copy, the
            moments at which it was made, such as ``"reset, end"``.
        step: The number of that step, counted from 1; None before the first.
        env_index: The first sub-environment that differs.
        field: What differs: ``observations``, ``rewards``, ``infos['speed']`` ...
        wanted: The reference's value.
        got: The contender's value.
        judged_steps: Calls of ``step`` that were compared.
        episode_ends: Episode ends that every sub-environment has passed in them, at least.
    """

    verdict: Verdict
    reason: str = ""
    at: str = ""
    step: int | None = None
    env_index: int | None = None
    field: str = ""
    wanted: str = ""
    got: str = ""
    judged_steps: int = 0
    episode_ends: int = 0


@dataclass(frozen=True)
class Sample:
    """One raw measurement.

    Attributes:
        contender: The contender's name, or that of the method by which states travel.
        metric: One of :class:`Metric`.
        value: The measurement in the metric's unit.
        round: The round it belongs to, from 0.
        position: Its place in the round's shuffled order.
        env_steps: Transitions of sub-environments; those that only reset don't count.
        reset_steps: Rows in which a sub-environment was only reset.
        calls: Calls of ``step``.
        wall_s: Wall time.
        cpu_s: CPU time of the contender's process and its workers.
    """

    contender: str
    metric: str
    value: float
    round: int = 0
    position: int = 0
    env_steps: int = 0
    reset_steps: int = 0
    calls: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0


def describe_error(error: BaseException) -> str:
    """Return an exception as one line: its type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
