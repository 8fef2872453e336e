"""A sweep: a base point of work, and one factor at a time that leaves it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any

from joblib_envs.envs.synthetic import Work
from joblib_envs.harness.environments import EnvironmentSource

__all__ = ["FACTOR_WORDS", "Point", "Sweep", "SyntheticSource", "bytes_words", "time_words"]


@dataclass(frozen=True)
class SyntheticSource(EnvironmentSource):
    """A factory of synthetic environments, called in tables by what they cost.

    Example:
        >>> SyntheticSource.of(Point(8, 2, step_us=1500)).label
        'computing 1.5 ms, 8 B, 1000 steps'
    """

    @classmethod
    def of(cls, point: Point) -> SyntheticSource:
        """Return the source of a point's environments."""
        names = ("step_us", "work", "observation_bytes", "episode_length")
        return cls("joblib_envs/Synthetic-v0", {name: getattr(point, name) for name in names})

    @property
    def label(self) -> str:
        """The name for tables and charts."""
        costs = self.kwargs
        work = {Work.COMPUTE: "computing", Work.SLEEP: "sleeping"}[Work(costs["work"])]
        size, steps = bytes_words(costs["observation_bytes"]), costs["episode_length"]
        return f"{work} {time_words(costs['step_us'])}, {size}, {steps} step{'s' * (steps > 1)}"


@dataclass(frozen=True)
class Point:
    """One point of a sweep: the batch, and what its environments cost.

    Attributes:
        num_envs: Sub-environments.
        n_jobs: Workers.
        step_us: Microseconds a step takes.
        observation_bytes: Size of an observation.
        episode_length: Steps in an episode.
        work: What a step does: ``compute`` or ``sleep``.
    """

    num_envs: int
    n_jobs: int
    step_us: float = 100
    observation_bytes: int = 8
    episode_length: int = 1000
    work: str = "compute"

    @property
    def source(self) -> SyntheticSource:
        """What makes its environments."""
        return SyntheticSource.of(self)

    @property
    def batch_s(self) -> float:
        """Time that the steps of one batch take, one after the other."""
        return self.num_envs * self.step_us / 1e6


@dataclass(frozen=True)
class Sweep:
    """A base point, and for each factor the values that take its place there.

    Attributes:
        base: The point.
        values: The values of each factor, in the order of the file.
        only_along: Contenders, by name or shell pattern, that run at some factors' points only:
            those that take long to start.

    Example:
        >>> sweep = Sweep(Point(8, 2), {"n_jobs": (1, 2, 4)})
        >>> [(point.num_envs, point.n_jobs) for point in sweep.points()]
        [(8, 2), (8, 1), (8, 4)]
    """

    base: Point
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    only_along: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def points(self) -> Iterator[Point]:
        """Yield each point once, the base first."""
        every = [self.base, *(point for factor in self.values for point in self.along(factor))]
        yield from dict.fromkeys(every)

    def along(self, factor: str) -> list[Point]:
        """Return the points of one factor from the lowest to the highest, the base among them."""
        values = {getattr(self.base, factor), *self.values.get(factor, ())}
        return [replace(self.base, **{factor: value}) for value in sorted(values)]

    def point_of(self, label: str, num_envs: int, n_jobs: int) -> Point:
        """Return the point with this environment and batch; tables of results tell points apart by these."""
        return next(
            point
            for point in self.points()
            if (point.source.label, point.num_envs, point.n_jobs) == (label, num_envs, n_jobs)
        )

    def runs(self, contender: str, point: Point) -> bool:
        """Tell whether a contender runs at a point."""
        return all(
            any(point in self.along(factor) for factor in factors)
            for pattern, factors in self.only_along.items()
            if fnmatchcase(contender, pattern)
        )

    def made_quick(self) -> Sweep:
        """Return the sweep with the first value of each factor that isn't the base's own."""
        return replace(
            self,
            values={
                factor: tuple(value for value in values if value != getattr(self.base, factor))[:1]
                for factor, values in self.values.items()
            },
        )

    def to_tables(self) -> dict[str, Any]:
        """Return the tables of a study's file that stand for it."""
        base = {each.name: getattr(self.base, each.name) for each in fields(self.base)}
        return {
            "base": base,
            "sweep": {factor: list(values) for factor, values in self.values.items()},
            "only_along": {pattern: list(factors) for pattern, factors in self.only_along.items()},
        }


def bytes_words(size: float) -> str:
    """Return a size in words, by powers of 1000: ``1.5 kB``."""
    return _scaled(size, ("B", "kB", "MB", "GB"))


def time_words(microseconds: float) -> str:
    """Return a time in words: ``1.5 ms``."""
    return _scaled(microseconds, ("µs", "ms", "s"))


def _scaled(value: float, units: tuple[str, ...]) -> str:
    power = 0 if value < 1 else min(int(math.log10(float(f"{value:.3g}")) / 3 + 1e-9), len(units) - 1)
    return f"{value / 1000**power:.3g} {units[power]}"


FACTOR_WORDS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "num_envs": ("environments", "{:g}".format),
    "n_jobs": ("workers (n_jobs)", "{:g}".format),
    "step_us": ("time of a step", time_words),
    "observation_bytes": ("size of an observation", bytes_words),
    "episode_length": ("steps in an episode", "{:g}".format),
}
"""What stands at an axis of a factor, and how its values are written."""
