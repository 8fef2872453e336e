"""Writes the study that ``joblib-envs compare`` runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import joblib

from joblib_envs.errors import ArgumentError
from joblib_envs.harness.contenders import BatchEnvContender, all_contenders
from joblib_envs.harness.environments import EnvironmentSource
from joblib_envs.harness.study import Study

__all__ = ["comparison_name", "comparison_study", "parsed_kwargs"]


def comparison_study(
    env_id: str,
    env_kwargs: str,
    backends: Sequence[str],
    executions: Sequence[str],
    *,
    num_envs: int,
    n_jobs: int,
    rounds: int,
    min_time: float,
    quick: bool,
    seed: int,
) -> Study:
    """Write a study of one environment and every contender that passes the filters.

    Raises:
        ArgumentError: The environment, its arguments, or a filter names nothing.
    """
    source = EnvironmentSource(env_id, parsed_kwargs(env_kwargs))
    source.check()
    study = Study(
        name=f"compare-{source.slug}",
        environments=(source,),
        contenders=_contenders(backends, executions),
        num_envs=(num_envs,),
        n_jobs=(_effective_n_jobs(n_jobs),),
        question=f"Which ways to step {source.label} are correct here, and how fast are they?",
        seed=seed,
        rounds=rounds,
        min_time_s=min_time,
    )
    return study.made_quick() if quick else study


def comparison_name(study: Study) -> str:
    """Return the name of the results folder: the environment and the time."""
    return f"{study.name}-{datetime.now(UTC).astimezone():%Y%m%d-%H%M%S}"


def parsed_kwargs(text: str) -> dict[str, Any]:
    """Read what was given as ``--env-kwargs``.

    Raises:
        ArgumentError: It isn't a JSON object.
    """
    try:
        kwargs = json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"--env-kwargs {text!r} is not JSON: {error}") from error
    if not isinstance(kwargs, dict):
        raise ArgumentError(f"--env-kwargs {text!r} is not a JSON object: give one, as in '{{\"size\": 5}}'")
    return kwargs


def _effective_n_jobs(n_jobs: int) -> int:
    if n_jobs == 0:
        raise ArgumentError("--n-jobs 0 is not allowed: give 1 or more, or -1 for one per usable CPU")
    return n_jobs if n_jobs > 0 else max(1, joblib.cpu_count() + 1 + n_jobs)


def _contenders(backends: Sequence[str], executions: Sequence[str]) -> tuple[str, ...]:
    from joblib_envs.execution import install_hints

    known = all_contenders()
    hints = install_hints()
    ours = {name: each for name, each in known.items() if isinstance(each, BatchEnvContender)}
    for option, given, allowed in (
        ("--backend", backends, {each.backend for each in ours.values()}),
        ("--execution", executions, {each.execution for each in ours.values()}),
    ):
        for value in given:
            if value not in allowed:
                hint = f"{hints[value]}, or " if option == "--backend" and value in hints else ""
                choices = ", ".join(sorted(allowed))
                raise ArgumentError(f"{option} {value!r} can't run here: {hint}choose among {choices}")
    return tuple(
        name
        for name in known
        if getattr(known[name], "in_comparisons", True)  # the others are for studies
        and (
            name not in ours
            or (
                (not backends or ours[name].backend in backends)
                and (not executions or ours[name].execution in executions)
            )
        )
    )
