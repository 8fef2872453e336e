"""What the file of a study may hold, key by key, for each kind of measurement."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from joblib_envs.envs.synthetic import Work
from joblib_envs.harness.travel_methods import METHODS
from joblib_envs.harness.wrapping import WRAPPERS

__all__ = ["KINDS", "Key", "Kind", "check_table", "kwargs_from_toml"]


@dataclass(frozen=True)
class Key:
    """What a key of a study may hold."""

    allowed: str
    accepts: Callable[[Any], bool]
    required: bool = False
    convert: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True)
class Kind:
    """The keys of one kind of study, by table."""

    study: Mapping[str, Key]
    environment: Mapping[str, Key]
    timing: Mapping[str, Key]
    grid: Mapping[str, Key] = field(default_factory=dict)
    base: Mapping[str, Key] = field(default_factory=dict)
    sweep: Mapping[str, Key] = field(default_factory=dict)


def check_table(table: Mapping[str, Any], keys: Mapping[str, Key], prefix: str, faults: list[str]) -> dict[str, Any]:
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


def kwargs_from_toml(value: Any) -> dict[str, Any]:
    """Return an environment's arguments, which may stand there as JSON text."""
    kwargs: dict[str, Any] = json.loads(value) if isinstance(value, str) else value
    return kwargs


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


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _names_of(known: Mapping[str, Any]) -> Key:
    """Return a key for a list of different names out of those that are known."""
    return Key(
        f"a list of different names among {', '.join(known)}",
        lambda value: (
            isinstance(value, list)
            and all(map(_is_text, value))
            and set(value) <= set(known)
            and len(value) == len(set(value))
        ),
        convert=tuple,
    )


_ALL_STUDIES = {
    "name": Key(
        "letters, digits, '.', '_' and '-', as in a folder's name",
        lambda value: _is_text(value) and re.fullmatch(r"\w[\w.-]*", value) is not None,
    ),
    "measure": Key("", _is_text),  # checked first, since it decides on the keys
    "question": Key("text", _is_text),
    "expectation": Key("text", _is_text),
    "answer": Key("text", _is_text),
    "import": Key(
        'a list of modules, such as ["my_contenders"]',
        lambda value: isinstance(value, list) and all(map(_is_text, value)),
        convert=tuple,
    ),
    "seed": Key("a whole number, 0 or more", lambda value: _is_int(value) and value >= 0),
    "environments": Key(
        "tables [[environments]] with an id",
        _is_list_of(lambda value: isinstance(value, dict)),
        required=True,
    ),
    "timing": Key("a table", lambda value: isinstance(value, dict)),
}
_ALL_ENVIRONMENTS = {
    "id": Key(
        'text, such as "CartPole-v1" or "envs.py:MyEnv"',
        lambda value: _is_text(value) and value,
        required=True,
    ),
    "kwargs": Key("a table, or JSON text where a value is null", _is_kwargs),
}
_COUNTS = _is_list_of(lambda value: _is_int(value) and value >= 1)
_ROUNDS = Key("a whole number, 0 or more", lambda value: _is_int(value) and value >= 0)
_SECONDS = Key("seconds, more than 0", _is_positive, convert=float)
_ALL_TIMINGS = {
    "hang_s": _SECONDS,
    "quick": Key("true or false", lambda value: isinstance(value, bool)),
}

_CONTENDERS = Key(
    'a list of contenders, such as ["plain_loop", "batch_env/*"]',
    _is_list_of(_is_text),
    required=True,
    convert=tuple,
)
_FACTORS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "num_envs": ("whole numbers, 1 or more", lambda value: _is_int(value) and value >= 1),
    "n_jobs": ("whole numbers, 1 or more", lambda value: _is_int(value) and value >= 1),
    "step_us": ("microseconds, more than 0", _is_positive),
    "observation_bytes": ("whole numbers, 8 or more", lambda value: _is_int(value) and value >= 8),
    "episode_length": ("whole numbers, 1 or more", lambda value: _is_int(value) and value >= 1),
}
"""What can be swept: in words, and what a value of it may be."""


def _different(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: _is_list_of(accepts)(value) and len(value) == len(set(value))


def _one_of(words: str) -> str:
    return words.replace("numbers", "number").replace("whole", "a whole")


KINDS = {
    "speed": Kind(
        study=_ALL_STUDIES
        | {
            "contenders": _CONTENDERS,
            "grid": Key("a table", _is_table, required=True),
        },
        environment=_ALL_ENVIRONMENTS
        | {
            "num_envs": Key("a list of whole numbers, 1 or more", _COUNTS, convert=tuple),
            "n_jobs": Key("a list of whole numbers, 1 or more", _COUNTS, convert=tuple),
        },
        timing={"rounds": _ROUNDS, "min_time_s": _SECONDS, **_ALL_TIMINGS},
        grid={
            "num_envs": Key("a list of whole numbers, 1 or more", _COUNTS, required=True, convert=tuple),
            "n_jobs": Key("a list of whole numbers, 1 or more", _COUNTS, required=True, convert=tuple),
        },
    ),
    "travel": Kind(
        study=_ALL_STUDIES | {"methods": _names_of(METHODS)},
        environment=_ALL_ENVIRONMENTS
        | {
            "family": Key('text, such as "MuJoCo v5"', lambda value: _is_text(value) and value, required=True),
            "install": Key("text, such as \"pip install 'joblib-envs[mujoco]'\"", _is_text),
            "wrappers": _names_of(WRAPPERS),
            "quick": Key("true or false", lambda value: isinstance(value, bool)),
        },
        timing={"rounds": _ROUNDS, **_ALL_TIMINGS},
    ),
    "scaling": Kind(
        study={name: key for name, key in _ALL_STUDIES.items() if name != "environments"}
        | {
            "contenders": _CONTENDERS,
            "base": Key(f"a table with {', '.join(_FACTORS)}", _is_table, required=True),
            "sweep": Key(
                f"a table with a list for at least one of {', '.join(_FACTORS)}",
                lambda value: _is_table(value) and len(value) > 0,
                required=True,
            ),
            "only_along": Key(
                f"a table of contenders, each with a list of some of {', '.join(_FACTORS)}",
                lambda value: (
                    _is_table(value)
                    and all(
                        _different(_is_text)(factors) and set(factors) <= set(_FACTORS) for factors in value.values()
                    )
                ),
                convert=lambda value: {pattern: tuple(factors) for pattern, factors in value.items()},
            ),
        },
        environment={},
        timing={"rounds": _ROUNDS, "min_time_s": _SECONDS, "cell_s": _SECONDS, **_ALL_TIMINGS},
        base={name: Key(_one_of(words), accepts, required=True) for name, (words, accepts) in _FACTORS.items()}
        | {"work": Key(" or ".join(repr(str(each)) for each in Work), lambda value: value in list(Work))},
        sweep={
            name: Key(f"a list of different {words}", _different(accepts), convert=tuple)
            for name, (words, accepts) in _FACTORS.items()
        },
    ),
}
"""By what ``measure`` in the file says; a study that doesn't say is of speed."""
