"""What can be compared here: Python, backends, contenders, studies and recorded results."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

from joblib_envs.errors import ArgumentError
from joblib_envs.gil import gil_is_enabled
from joblib_envs.harness.contenders import all_contenders
from joblib_envs.harness.study import Study, load_study
from joblib_envs.harness.travel_methods import METHODS

__all__ = ["list_everything"]


def list_everything(experiments: Path, results: Path) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return sections of (name, description) pairs."""
    return [
        ("Python", [(platform.python_version(), _interpreter())]),
        ("backends", _backends()),
        ("contenders", [(name, contender.title) for name, contender in all_contenders().items()]),
        ("methods to copy an environment", [(name, method.title) for name, method in METHODS.items()]),
        (
            f"studies in {experiments}",
            [(path.stem, _question(path)) for path in sorted(experiments.glob("*.toml"))],
        ),
        (
            f"results in {results}",
            [(path.parent.name, _answer(path)) for path in sorted(results.glob("*/study.toml"))],
        ),
    ]


def _interpreter() -> str:
    if gil_is_enabled():
        return "the GIL is on: one thread at a time runs Python"
    return "the GIL is off: threads run Python at the same time"


def _backends() -> list[tuple[str, str]]:
    from joblib_envs.execution import available_backends, executions_of, install_hints

    rows = [(name, ", ".join(executions_of(name))) for name in available_backends()]
    return rows + [(name, f"not here: {hint}") for name, hint in install_hints().items()]


def _question(path: Path) -> str:
    return _said(path, lambda study: study.question)


def _answer(path: Path) -> str:
    """Return the answer's first sentence; the file has the rest."""
    answer = _said(path, lambda study: study.answer or study.question)
    first, _, more = answer.partition(". ")
    return f"{first}. (More in {path})" if more else answer


def _said(path: Path, words: Callable[[Study], str]) -> str:
    try:
        return " ".join(words(load_study(path)).split())
    except ArgumentError as error:
        return f"can't be read: {str(error).splitlines()[0]}"
