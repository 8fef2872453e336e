"""A study: a question, and the grid of work that answers it. Read from and written to TOML."""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from joblib_envs.errors import ArgumentError
from joblib_envs.harness.environments import EnvironmentSource
from joblib_envs.harness.judge import Limits
from joblib_envs.harness.timing import Timing

__all__ = ["Study", "load_study"]


@dataclass(frozen=True)
class Study:
    """What is asked, of whom, and how often.

    Attributes:
        name: The name of its file and of its results.
        environments: What is stepped.
        contenders: Names, or shell patterns such as ``batch_env/*``.
        num_envs: The numbers of sub-environments.
        n_jobs: The numbers of workers.
        question: What is asked, in words.
        expectation: What the author expected before running it.
        answer: What the recorded results show, written after running it.
        seed: Seed of environments, actions and shuffles.
        rounds: Timing rounds; 0 asks for verdicts only.
        min_time_s: Time of a sample, at least.
        hang_s: Silence after which a contender counts as hanging.
        quick: Judge and time briefly, for a first look.
        imports: Modules that register contenders; looked for as environments' files are.
        near: The folder of the study's file.
    """

    name: str
    environments: tuple[EnvironmentSource, ...]
    contenders: tuple[str, ...]
    num_envs: tuple[int, ...]
    n_jobs: tuple[int, ...]
    question: str = ""
    expectation: str = ""
    answer: str = ""
    seed: int = 0
    rounds: int = 10
    min_time_s: float = 0.2
    hang_s: float = 60.0
    quick: bool = field(default=False)
    imports: tuple[str, ...] = ()
    near: Path | None = field(default=None, compare=False)

    @property
    def limits(self) -> Limits:
        """How long judging may take."""
        return Limits(optional_s=0.5, overhead_s=0.05) if self.quick else Limits()

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
        """Return the study with three short rounds, and less patience with what hangs."""
        return replace(
            self,
            quick=True,
            rounds=min(self.rounds, 3),
            min_time_s=min(self.min_time_s, 0.05),
            hang_s=min(self.hang_s, 15.0),
        )

    def to_toml(self, folder: Path | None = None) -> str:
        """Return the file that :func:`load_study` reads back as an equal study.

        Args:
            folder: Where it will be; an environment's file is found again from there.
        """
        environments = [
            {"id": source.target_from(folder) if folder else source.target}
            | ({"kwargs": _kwargs_to_toml(source.kwargs)} if source.kwargs else {})
            for source in self.environments
        ]
        return tomli_w.dumps(
            {
                "name": self.name,
                "question": self.question,
                "expectation": self.expectation,
                "answer": self.answer,
                "import": list(self.imports),
                "contenders": list(self.contenders),
                "seed": self.seed,
                "environments": environments,
                "grid": {"num_envs": list(self.num_envs), "n_jobs": list(self.n_jobs)},
                "timing": {
                    "rounds": self.rounds,
                    "min_time_s": self.min_time_s,
                    "hang_s": self.hang_s,
                    "quick": self.quick,
                },
            }
        )


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
    faults: list[str] = []
    values = _check_table(document, STUDY_KEYS, "", faults)
    grid = _check_table(values.pop("grid", {}), GRID_KEYS, "grid.", faults)
    timing = _check_table(values.pop("timing", {}), TIMING_KEYS, "timing.", faults)
    sources = []
    for index, table in enumerate(values.pop("environments", ())):
        entry = _check_table(table, ENVIRONMENT_KEYS, f"environments[{index}].", faults)
        kwargs = _kwargs_from_toml(entry.get("kwargs", {}))
        sources.append(EnvironmentSource(entry.get("id", ""), kwargs, near=path.parent))
    if faults:
        raise ArgumentError("\n".join(f"{path}: {fault}" for fault in faults))
    # Recorded studies are all called study.toml; those without a name have their folder's.
    name = values.pop("name", path.resolve().parent.name if path.stem == "study" else path.stem)
    imports, contenders = values.pop("import", ()), tuple(values.pop("contenders"))
    return Study(name, tuple(sources), contenders, imports=imports, near=path.parent, **values, **grid, **timing)


@dataclass(frozen=True)
class _Key:
    """What a key of a study may hold."""

    allowed: str
    accepts: Callable[[Any], bool]
    required: bool = False
    convert: Callable[[Any], Any] = lambda value: value


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _is_list_of(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) > 0 and all(map(accepts, value))


def _is_kwargs(value: Any) -> bool:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return False
    return isinstance(value, dict)


STUDY_KEYS = {
    "name": _Key(
        "letters, digits, '.', '_' and '-', as in a folder's name",
        lambda value: _is_text(value) and re.fullmatch(r"\w[\w.-]*", value) is not None,
    ),
    "question": _Key("text", _is_text),
    "expectation": _Key("text", _is_text),
    "answer": _Key("text", _is_text),
    "import": _Key(
        'a list of modules, such as ["my_contenders"]',
        lambda value: isinstance(value, list) and all(map(_is_text, value)),
        convert=tuple,
    ),
    "contenders": _Key(
        'a list of contenders, such as ["plain_loop", "batch_env/*"]', _is_list_of(_is_text), required=True
    ),
    "seed": _Key("a whole number, 0 or more", lambda value: _is_int(value) and value >= 0),
    "environments": _Key(
        "tables [[environments]] with an id",
        _is_list_of(lambda value: isinstance(value, dict)),
        required=True,
    ),
    "grid": _Key("a table", lambda value: isinstance(value, dict), required=True),
    "timing": _Key("a table", lambda value: isinstance(value, dict)),
}
ENVIRONMENT_KEYS = {
    "id": _Key(
        'text, such as "CartPole-v1" or "envs.py:MyEnv"',
        lambda value: _is_text(value) and value,
        required=True,
    ),
    "kwargs": _Key("a table, or JSON text where a value is null", _is_kwargs),
}
_COUNTS = _is_list_of(lambda value: _is_int(value) and value >= 1)
GRID_KEYS = {
    "num_envs": _Key("a list of whole numbers, 1 or more", _COUNTS, required=True, convert=tuple),
    "n_jobs": _Key("a list of whole numbers, 1 or more", _COUNTS, required=True, convert=tuple),
}
TIMING_KEYS = {
    "rounds": _Key("a whole number, 0 or more", lambda value: _is_int(value) and value >= 0),
    "min_time_s": _Key("seconds, more than 0", _is_positive, convert=float),
    "hang_s": _Key("seconds, more than 0", _is_positive, convert=float),
    "quick": _Key("true or false", lambda value: isinstance(value, bool)),
}


def _check_table(table: Mapping[str, Any], keys: Mapping[str, _Key], prefix: str, faults: list[str]) -> dict[str, Any]:
    """Return the values of the keys that are right; add a line for each that isn't."""
    checked: dict[str, Any] = {}
    for name, value in table.items():
        if name not in keys:
            faults.append(f"{prefix}{name} is not a key of a study: allowed here are {', '.join(keys)}")
        elif not keys[name].accepts(value):
            faults.append(f"{prefix}{name} = {value!r} is not allowed: give {keys[name].allowed}")
        else:
            checked[name] = keys[name].convert(value)
    for name, key in keys.items():
        if key.required and name not in table:
            faults.append(f"{prefix}{name} is missing: give {key.allowed}")
    return checked


def _kwargs_to_toml(kwargs: Mapping[str, Any]) -> Any:
    """Return a table, or JSON text for values that TOML has no word for (null)."""
    try:
        tomli_w.dumps(dict(kwargs))
    except TypeError:
        return json.dumps(kwargs)
    return dict(kwargs)


def _kwargs_from_toml(value: Any) -> dict[str, Any]:
    kwargs: dict[str, Any] = json.loads(value) if isinstance(value, str) else value
    return kwargs
