"""An environment whose costs are its arguments: time of a step, size of an observation, length of an episode."""

from __future__ import annotations

import time
from enum import StrEnum
from functools import cache
from itertools import repeat
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

__all__ = ["SyntheticEnv", "Work"]

COUNTED_BELOW_S = 50e-6
"""Steps that cost less count loops: reading the clock takes a good part of a microsecond."""

SLICE_S = 1e-6
"""Time between two looks at the clock."""

CALIBRATION_LOOPS, CALIBRATION_RUNS = 20_000, 15


class Work(StrEnum):
    """What a step does with its time."""

    COMPUTE = "compute"
    SLEEP = "sleep"


class SyntheticEnv(gymnasium.Env[npt.NDArray[np.uint8], int]):
    """Cost what is asked for: the workload of the scaling study.

    Computing keeps the interpreter busy, lock included, until the *thread's processor time* has
    grown by ``step_us``. Wall time would pass by itself while another process has the processor,
    so that environments that share a core seemed to cost nothing; processor time is the same
    whoever runs beside. A fixed number of loops would do for that too, but what it costs changes
    with the processor's clock rate and with what its other thread does, and then the axis of a
    chart would say something else than its label. Steps below 50 microseconds have to count loops
    all the same, for a look at the thread's clock costs up to a microsecond itself: each process
    measures once, when it makes its first environment, how many loops a microsecond takes.

    All is on top of the microseconds that a step of any environment in Python takes, and of making
    the observation. Data depend on seeds and actions alone, and are the same on every machine.

    Spaces:
        observation: ``Box`` of shape ``(observation_bytes,)``, uint8. The first 8 bytes are a
            number, little-endian; the others are its lowest byte at the reset, but the last one,
            which follows the number. Each is a new array, as Gymnasium asks for; to make one takes time
            by its size, about as long as to copy it once.
        action: ``Discrete(2)``.
    Reward: the number, a float: drawn at the reset, then each step adds one plus the action.
    Episode end: truncated when ``episode_length`` steps were made.
    Info: empty.

    Args:
        step_us: Microseconds a step takes, 0 or more.
        work: ``"compute"``, or ``"sleep"`` as what waits for a device or a network does.
        observation_bytes: Size of an observation, at least 8.
        episode_length: Steps in an episode, at least 1.

    Example:
        >>> env = SyntheticEnv(step_us=10, observation_bytes=1000)
        >>> observation, _ = env.reset(seed=0)
        >>> observation.nbytes
        1000
    """

    def __init__(
        self,
        step_us: float = 100.0,
        work: str = Work.COMPUTE,
        observation_bytes: int = 8,
        episode_length: int = 1000,
    ) -> None:
        if work not in list(Work):
            raise ValueError(f"work {work!r} is not allowed: give {' or '.join(repr(str(each)) for each in Work)}")
        for name, value, least in (
            ("step_us", step_us, 0),
            ("observation_bytes", observation_bytes, 8),
            ("episode_length", episode_length, 1),
        ):
            if not value >= least:
                raise ValueError(f"{name} {value} is not allowed: give {least} or more")
        self.observation_space = Box(0, 255, shape=(observation_bytes,), dtype=np.uint8)
        self.action_space = Discrete(2)  # type: ignore[assignment]
        self.step_s = step_us / 1e6
        self.work = Work(work)
        self.episode_length = episode_length
        self._observation = np.zeros(observation_bytes, dtype=np.uint8)
        self._number = 0
        self._steps = 0
        # What processes measure differs a little, so it is kept: it travels with the state.
        self._loops_per_s = _loops_per_s() if self.work is Work.COMPUTE else 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        """Draw a number to go on from; it takes no time."""
        super().reset(seed=seed, options=options)
        self._number = int(self.np_random.integers(2**40))
        self._steps = 0
        self._observation[8:] = self._number % 256
        return self._next_observation(), {}

    def step(self, action: int) -> tuple[npt.NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Spend the time, then add to the number."""
        if self.work is Work.SLEEP:
            time.sleep(self.step_s)
        elif self.step_s < COUNTED_BELOW_S:
            _spin(int(self.step_s * self._loops_per_s))
        else:
            _spin_until(time.thread_time() + self.step_s, int(SLICE_S * self._loops_per_s))
        self._number += 1 + int(action)
        self._steps += 1
        return self._next_observation(), float(self._number), False, self._steps >= self.episode_length, {}

    def _next_observation(self) -> npt.NDArray[np.uint8]:
        if self._observation.size > 8:
            self._observation[-1] = self._number % 256
        self._observation[:8] = np.frombuffer(self._number.to_bytes(8, "little"), dtype=np.uint8)
        return self._observation.copy()


def _spin(loops: int) -> None:
    """Loop; ``repeat`` makes no numbers, so that each round takes the same time."""
    for _ in repeat(None, loops):
        pass


def _spin_until(end_s: float, loops: int) -> None:
    """Spin until the thread's processor time is ``end_s``, looking at it every so many loops."""
    clock = time.thread_time
    while clock() < end_s:
        for _ in repeat(None, loops):
            pass


@cache
def _loops_per_s() -> float:
    """Return how many loops a second of processor time takes; the fastest of some runs, since noise only slows."""
    fastest_s = float("inf")
    for _ in range(CALIBRATION_RUNS):
        started_s = time.thread_time()
        _spin(CALIBRATION_LOOPS)
        fastest_s = min(fastest_s, time.thread_time() - started_s)
    return CALIBRATION_LOOPS / fastest_s if fastest_s > 0 else 50e6  # where the clock ticks too slowly to tell
