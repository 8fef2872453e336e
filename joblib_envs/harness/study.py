"""A study: a question, and the grid of work that answers it. Read from and written to TOML."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from joblib_envs.errors import ArgumentError
from joblib_envs.harness.contenders import select_contenders
from joblib_envs.harness.environments import EnvironmentSource
from joblib_envs.harness.judge import Limits
from joblib_envs.harness.records import Cell
from joblib_envs.harness.study_keys import KINDS, Kind, check_table, kwargs_from_toml
from joblib_envs.harness.sweep import Point, Sweep
from joblib_envs.harness.timing import Timing
from joblib_envs.harness.travel_methods import METHODS
from joblib_envs.harness.travel_source import TravelSource

__all__ = ["Study", "load_study"]

SOURCES: Mapping[str, Callable[..., EnvironmentSource]] = {"speed": EnvironmentSource, "travel": TravelSource}
"""What a study's environments are, by what it measures."""


@dataclass(frozen=True)
class Study:
    """What is asked, of whom, and how often.

    Attributes:
        name: The name of its file and of its results.
        environments: What is stepped.
        contenders: Names, or shell patterns such as ``batch_env/*``; none in a study of travel.
        num_envs: The numbers of sub-environments.
        n_jobs: The numbers of workers.
        measure: ``speed`` of stepping, whether states ``travel``, or ``scaling``: the speed at each
            point of a sweep.
        methods: The ways in which states travel; none in a study of speed.
        question: What is asked, in words.
        expectation: What the author expected before running it.
        answer: What the recorded results show, written after running it.
        seed: Seed of environments, actions and shuffles.
        rounds: Timing rounds; 0 asks for verdicts only.
        min_time_s: Time of a sample, at least.
        judging_s: Time of the calls that a verdict must cover, at most.
        cell_s: In a sweep, time of a point's rounds: where steps are slow there are fewer of them.
        hang_s: Silence after which a contender counts as hanging.
        quick: Judge and time briefly, for a first look.
        imports: Modules that register contenders; looked for as environments' files are.
        near: The folder of the study's file.
        sweep: The points of a study of scaling, from which its environments follow.
    """

    name: str
    environments: tuple[EnvironmentSource, ...]
    contenders: tuple[str, ...] = ()
    num_envs: tuple[int, ...] = (1,)
    n_jobs: tuple[int, ...] = (1,)
    measure: str = "speed"
    methods: tuple[str, ...] = tuple(METHODS)
    question: str = ""
    expectation: str = ""
    answer: str = ""
    seed: int = 0
    rounds: int = 10
    min_time_s: float = 0.2
    judging_s: float = Limits.required_s
    cell_s: float = 20.0
    hang_s: float = 60.0
    quick: bool = field(default=False)
    imports: tuple[str, ...] = ()
    near: Path | None = field(default=None, compare=False)
    sweep: Sweep | None = None

    @classmethod
    def of_sweep(cls, name: str, sweep: Sweep, contenders: tuple[str, ...], **others: Any) -> Study:
        """Return a study of scaling: its environments are those of the sweep's points."""
        return cls(name, _sources(sweep), contenders, sweep=sweep, **{"measure": "scaling"} | others)

    def of_cell(self, cell: Cell) -> Study:
        """Return the study as a cell runs it: in a sweep, with the contenders that run there.

        There are as many rounds as its time allows, but three at least. Batches of more than 70
        milliseconds are judged by a short program: that is how a judge understands the time it has.
        """
        if self.sweep is None:
            return self
        point = self.sweep.point_of(cell.environment.label, cell.num_envs, cell.n_jobs)
        names = [each.name for each in select_contenders(self.contenders)]
        chosen = tuple(name for name in names if self.sweep.runs(name, point))
        turns_s = max(self.min_time_s, point.batch_s) * len(chosen)
        rounds = max(3, round(self.cell_s / turns_s)) if chosen else 0
        judging_s = max(10.0, 100 * point.batch_s)
        return replace(self, contenders=chosen, rounds=min(self.rounds, rounds), judging_s=judging_s)

    @property
    def limits(self) -> Limits:
        """How long judging may take."""
        return Limits(self.judging_s, 0.5, 0.05) if self.quick else Limits(self.judging_s)

    @property
    def timing(self) -> Timing:
        """How the measuring is done."""
        return Timing(self.rounds, self.min_time_s)

    def import_modules(self) -> None:
        """Import what registers the study's contenders.

        Raises:
            ArgumentError: There is no such module, or it raised.
        """
        near = self.near.resolve() if self.near else Path.cwd()
        folders = list(dict.fromkeys((Path.cwd(), near, *near.parents)))
        for name in self.imports:
            top = name.partition(".")[0]
            found = next((each for each in folders if (each / f"{top}.py").is_file() or (each / top).is_dir()), None)
            if found and str(found) not in sys.path:
                sys.path.append(str(found))
            try:
                importlib.import_module(name)
            except Exception as error:
                raise ArgumentError(
                    f"study {self.name!r}: importing {name!r} raised {type(error).__name__}: {error}; its file is "
                    f"looked for in {', '.join(map(str, folders))}, and where Python looks"
                ) from error

    def made_quick(self) -> Study:
        """Return the study with three short rounds, one environment of each family, less patience with what hangs.

        Of a sweep, the base and one other value of each factor.
        """
        sweep = self.sweep and self.sweep.made_quick()
        return replace(
            self,
            environments=_sources(sweep) if sweep else self._first_of_each_family(),
            sweep=sweep,
            quick=True,
            rounds=min(self.rounds, 3),
            min_time_s=min(self.min_time_s, 0.05),
            hang_s=min(self.hang_s, 15.0),
        )

    def _first_of_each_family(self) -> tuple[EnvironmentSource, ...]:
        families: dict[Any, EnvironmentSource] = {}
        for source in self.environments:
            if not isinstance(source, TravelSource):
                families[id(source)] = source
            elif source.quick:
                families.setdefault(source.family, source)
        return tuple(families.values()) or self.environments

    def to_toml(self, folder: Path | None = None) -> str:
        """Return the file that :func:`load_study` reads back as an equal study.

        Args:
            folder: Where it will be; an environment's file is found again from there.
        """
        kind = KINDS[self.measure]
        whole = {
            "name": self.name,
            "measure": self.measure,
            "question": self.question,
            "expectation": self.expectation,
            "answer": self.answer,
            "import": list(self.imports),
            "contenders": list(self.contenders),
            "methods": list(self.methods),
            "seed": self.seed,
            "environments": [source.to_table(folder) for source in self.environments],
            "grid": {"num_envs": list(self.num_envs), "n_jobs": list(self.n_jobs)},
            **(self.sweep.to_tables() if self.sweep else {}),
            "timing": {name: getattr(self, name) for name in kind.timing},
        }
        return tomli_w.dumps({key: value for key, value in whole.items() if key in kind.study})


def load_study(path: Path) -> Study:
    """Read a study and validate it whole.

    Raises:
        ArgumentError: One line per fault: the file, the key, what was given, what is allowed.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(f"study {str(path)!r} can't be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ArgumentError(f"study {str(path)!r} is not TOML: {error}") from error
    measure = document.get("measure", "speed")
    if not isinstance(measure, str) or measure not in KINDS:
        raise ArgumentError(f"{path}: measure = {measure!r} is not allowed: give {' or '.join(map(repr, KINDS))}")
    kind = KINDS[measure]
    faults: list[str] = []
    values = check_table(document, kind.study, "", faults)
    grid = check_table(values.pop("grid", {}), kind.grid, "grid.", faults)
    timing = check_table(values.pop("timing", {}), kind.timing, "timing.", faults)
    sweep = _read_sweep(values, kind, faults) if measure == "scaling" else None
    sources: list[EnvironmentSource] = []
    for index, table in enumerate(values.pop("environments", ())):
        entry = check_table(table, kind.environment, f"environments[{index}].", faults)
        kwargs = kwargs_from_toml(entry.pop("kwargs", {}))
        sources.append(SOURCES[measure](entry.pop("id", ""), kwargs, path.parent, **entry))
    faults.extend(_repeated(sources))
    if faults:
        raise ArgumentError("\n".join(f"{path}: {fault}" for fault in faults))
    # Recorded studies are all called study.toml; those without a name have their folder's.
    name = values.pop("name", path.resolve().parent.name if path.stem == "study" else path.stem)
    imports = values.pop("import", ())
    if sweep is not None:
        return Study.of_sweep(name, sweep, imports=imports, near=path.parent, **values, **timing)
    return Study(name, tuple(sources), imports=imports, near=path.parent, **values, **grid, **timing)


def _read_sweep(values: dict[str, Any], kind: Kind, faults: list[str]) -> Sweep | None:
    """Take the tables of a sweep out of a study's values; return None where they are wrong."""
    known = len(faults)
    base = check_table(values.pop("base"), kind.base, "base.", faults) if "base" in values else {}
    swept = check_table(values.pop("sweep", {}), kind.sweep, "sweep.", faults)
    only_along = values.pop("only_along", {})
    return Sweep(Point(**base), swept, only_along) if base and len(faults) == known else None


def _sources(sweep: Sweep) -> tuple[EnvironmentSource, ...]:
    """Return the environments of a sweep's points, each once."""
    return tuple({point.source.label: point.source for point in sweep.points()}.values())


def _repeated(sources: Sequence[EnvironmentSource]) -> Iterator[str]:
    """Yield a line for each environment that the tables of results couldn't tell from an earlier one."""
    seen: dict[str, int] = {}
    for index, source in enumerate(sources):
        if source.label and seen.setdefault(source.label, index) != index:
            yield (
                f"environments[{index}] is called {source.label!r}, as environments[{seen[source.label]}] is, and "
                f"results are told apart by that: give each once"
            )
