"""The ways to run a batch, each with the share of the suite that its start-up cost allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode

from joblib_envs import BatchEnv
from joblib_envs.conformance import Workload, standard_workloads
from joblib_envs.envs import FailingEnv

NUM_ENVS = 3
ALL = [workload.name for workload in standard_workloads(NUM_ENVS)]
FEW = [
    "wrapped_counting",
    "buffer_reusing",
    "infos[dict_then_scalar]",
    "normalized_observation",
    "linear_algebra",
    "space[dict]",
    "space[graph]",
    "echo[tuple]",
    "infos[coming_and_going]",
    "CartPole-v1",
]


@dataclass(frozen=True)
class Backend:
    """A backend and an execution, as ``make`` for the checker.

    Attributes:
        programs: Random programs for each environment and autoreset mode.
        share: One in so many environments is checked in each autoreset mode, another one in
            each, next to three that are checked in all; None: only the few.
        max_examples: Programs that hypothesis draws.
    """

    name: str
    execution: str
    programs: int
    share: int | None
    max_examples: int

    def __str__(self) -> str:
        return f"{self.name}-{self.execution}"

    def __call__(self, env_fns: Sequence[Any], *, autoreset_mode: AutoresetMode) -> BatchEnv:
        # The probe steps throw-away instances, and one that fails then is refused.
        fails = any(isinstance(env_fn, partial) and env_fn.func is FailingEnv for env_fn in env_fns)
        return BatchEnv(
            list(env_fns),
            backend=self.name,
            execution=self.execution,
            n_jobs=2,
            autoreset_mode=autoreset_mode,
            probe=not fails,
        )

    def environments(self, autoreset_mode: AutoresetMode) -> list[str]:
        turn = list(AutoresetMode).index(autoreset_mode)
        others = [] if self.share is None else ALL[turn :: self.share]
        in_all_modes = FEW if self.share is None else FEW[:3]
        return [name for name in ALL if name in in_all_modes or name in others]


BACKENDS = [
    Backend("sequential", "actors", programs=2, share=1, max_examples=60),
    Backend("sequential", "tasks", programs=2, share=1, max_examples=30),
    Backend("threading", "actors", programs=2, share=1, max_examples=60),
    Backend("threading", "tasks", programs=1, share=1, max_examples=30),
    Backend("loky", "actors", programs=1, share=3, max_examples=30),
    Backend("loky", "tasks", programs=1, share=None, max_examples=15),
    Backend("multiprocessing", "tasks", programs=1, share=None, max_examples=15),
]


@pytest.fixture(params=BACKENDS, ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.param


@pytest.fixture(params=list(AutoresetMode), ids=lambda mode: mode.name.lower())
def autoreset_mode(request: pytest.FixtureRequest) -> AutoresetMode:
    return request.param


def workload_named(name: str) -> Workload:
    return next(workload for workload in standard_workloads(NUM_ENVS) if workload.name == name)
