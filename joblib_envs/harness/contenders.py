"""The ways to step environments that a study compares, behind one small protocol.

A contender is an object in a registry. To add one, write a class with the members of
:class:`Contender`, call :func:`register_contender` in a module of yours, and let a study
name both: ``import = ["my_module"]`` and ``contenders = ["plain_loop", "my_contender"]``.

Four names mean something elsewhere: :data:`BASELINE`, :data:`LIMIT`, :data:`VECTOR_FORM` and
:data:`AUTO_CONTENDER`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Protocol

import gymnasium
import joblib
from gymnasium.vector import AutoresetMode

from joblib_envs.choosing import AUTO
from joblib_envs.errors import ArgumentError
from joblib_envs.harness.environments import EnvironmentSource
from joblib_envs.harness.loops import HalfLoop, NaiveLoop, PlainLoop, RepairedLoop

__all__ = [
    "AUTO_CONTENDER",
    "BASELINE",
    "LIMIT",
    "VECTOR_FORM",
    "Contender",
    "VectorLike",
    "all_contenders",
    "autoreset_mode_of",
    "patience_with",
    "register_contender",
    "select_contenders",
]

BASELINE = "plain_loop"
"""The contender that the others' throughput is divided by."""

LIMIT = "limit"
"""The contender that nobody can beat; see :mod:`joblib_envs.harness.limit`. It is never recommended."""

VECTOR_FORM = "gymnasium_sync"
"""The contender that is a plain loop behind Gymnasium's vector interface."""

AUTO_CONTENDER = f"batch_env/{AUTO}"
"""The contender that chooses among ours."""


class VectorLike(Protocol):
    """What a contender builds: the part of ``gymnasium.vector.VectorEnv`` that a judge drives.

    Episodes are reset at the next step, unless the contender has another ``autoreset_mode``.
    Infos may be a list, one dict per sub-environment.
    """

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Reset all sub-environments, or those in ``options["reset_mask"]``."""
        ...

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Step all sub-environments."""
        ...

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each sub-environment."""
        ...

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each sub-environment."""
        ...

    def close(self) -> Any:
        """Let go of everything."""
        ...


class Contender(Protocol):
    """One way to step environments. It must pickle: each is judged in its own process.

    It may have more: ``autoreset_mode``, where it isn't ``NEXT_STEP`` (see :func:`autoreset_mode_of`);
    ``open(cell)``, which returns a :class:`~joblib_envs.harness.timing.TimedRun` where stepping isn't how it is
    timed; ``patience_s``, where it may be silent for so long though nothing hangs (see :func:`patience_with`);
    ``is_judged = False``, where it returns no data; ``in_comparisons = False``, where only studies name it.
    """

    @property
    def name(self) -> str:
        """The name in studies and files."""
        ...

    @property
    def title(self) -> str:
        """The name in tables and charts."""
        ...

    @property
    def ours(self) -> bool:
        """Whether it is BatchEnv, whose data must never be wrong."""
        ...

    @property
    def parallel(self) -> bool:
        """Whether anyone but the caller steps."""
        ...

    def build(self, make_env: EnvironmentSource, num_envs: int, n_jobs: int) -> VectorLike:
        """Build it over ``num_envs`` environments.

        Raises:
            StateCannotTravelError: It would lose this environment's state, and says so.
            BackendUnavailableError: Something isn't installed; the message says what.
        """
        ...

    def code(self, source: EnvironmentSource, num_envs: int, n_jobs: int) -> str:
        """Return Python that builds it and runs when pasted, imports included; empty where nobody should."""
        ...


@dataclass(frozen=True)
class LoopContender:
    """A loop over a list of environments."""

    name: str
    title: str
    loop: type[PlainLoop]
    ours: bool = False
    parallel: bool = True

    def build(self, make_env: EnvironmentSource, num_envs: int, n_jobs: int) -> VectorLike:
        """Build the loop."""
        return self.loop(make_env, num_envs, n_jobs)

    def code(self, source: EnvironmentSource, num_envs: int, n_jobs: int) -> str:  # noqa: ARG002
        """Return the plain loop; nothing for the others, which nobody should write."""
        if self.parallel:
            return ""
        lines = (
            f"envs = [{source.make_code} for _ in range({num_envs})]",
            "observations = [env.reset(seed=seed)[0] for seed, env in enumerate(envs)]",
            "transitions = [env.step(env.action_space.sample()) for env in envs]",
        )
        return "\n".join((*(("import gymnasium",) if source.is_id else ()), *source.imports, *lines))


@dataclass(frozen=True)
class GymnasiumContender:
    """One of Gymnasium's own vector environments."""

    name: str
    title: str
    class_name: str
    ours: bool = False
    parallel: bool = True

    def build(self, make_env: EnvironmentSource, num_envs: int, n_jobs: int) -> VectorLike:  # noqa: ARG002
        """Build it; Gymnasium has no ``n_jobs``."""
        vectors: VectorLike = getattr(gymnasium.vector, self.class_name)([make_env] * num_envs)
        return vectors

    def code(self, source: EnvironmentSource, num_envs: int, n_jobs: int) -> str:  # noqa: ARG002
        """Return the line that builds it."""
        line = f"envs = gymnasium.vector.{self.class_name}([lambda: {source.make_code}] * {num_envs})"
        return "\n".join(("import gymnasium", *source.imports, line))


@dataclass(frozen=True)
class BatchEnvContender:
    """BatchEnv on one backend with one execution."""

    backend: str
    execution: str
    ours: bool = True

    @property
    def name(self) -> str:
        """The name in studies and files."""
        return f"batch_env/{self.backend}/{self.execution}"

    @property
    def title(self) -> str:
        """The name in tables and charts."""
        return f"BatchEnv {self.backend} {self.execution}"

    @property
    def parallel(self) -> bool:
        """Whether the backend has workers beside the caller."""
        from joblib_envs.execution.registry import BACKENDS

        entry = BACKENDS.get(self.backend)
        return entry is None or not entry.always_caller

    def build(self, make_env: EnvironmentSource, num_envs: int, n_jobs: int) -> VectorLike:
        """Build the batch."""
        from joblib_envs import BatchEnv

        envs: VectorLike = BatchEnv(make_env, num_envs, backend=self.backend, execution=self.execution, n_jobs=n_jobs)
        return envs

    def code(self, source: EnvironmentSource, num_envs: int, n_jobs: int) -> str:
        """Return the line that builds it."""
        from joblib_envs.execution import executions_of

        is_default = self.execution == executions_of(self.backend)[0]
        execution = "" if is_default else f', execution="{self.execution}"'
        workers = f", n_jobs={n_jobs}" if self.parallel else ""
        kwargs = f", env_kwargs={dict(source.kwargs)!r}" if source.kwargs else ""
        line = f'envs = BatchEnv({source.env_code}, {num_envs}, backend="{self.backend}"{execution}{workers}{kwargs})'
        return "\n".join(("from joblib_envs import BatchEnv", *source.imports, line))


@dataclass(frozen=True)
class AutoContender(BatchEnvContender):
    """BatchEnv on the backend that it chooses by itself."""

    backend: str = AUTO
    execution: str = "actors"

    @property
    def name(self) -> str:
        """The name in studies and files."""
        return AUTO_CONTENDER

    @property
    def title(self) -> str:
        """The name in tables and charts."""
        return f"BatchEnv {self.backend}"

    @property
    def parallel(self) -> bool:
        """Whether it may have workers beside the caller."""
        return True

    def build(self, make_env: EnvironmentSource, num_envs: int, n_jobs: int) -> VectorLike:
        """Build the batch. One worker for each CPU is what a study has unless told otherwise: no bound for it."""
        from joblib_envs import BatchEnv

        bound = None if n_jobs == joblib.cpu_count() else n_jobs
        envs: VectorLike = BatchEnv(make_env, num_envs, backend=self.backend, n_jobs=bound)
        return envs

    def code(self, source: EnvironmentSource, num_envs: int, n_jobs: int) -> str:  # noqa: ARG002
        """Return the line that builds it."""
        kwargs = f", env_kwargs={dict(source.kwargs)!r}" if source.kwargs else ""
        line = f'envs = BatchEnv({source.env_code}, {num_envs}, backend="{self.backend}"{kwargs})'
        return "\n".join(("from joblib_envs import BatchEnv", *source.imports, line))


_REGISTERED: dict[str, Contender] = {}


def register_contender(contender: Contender) -> None:
    """Add a contender, or replace the one of the same name."""
    _REGISTERED[contender.name] = contender


for _contender in (
    LoopContender(BASELINE, "plain loop", PlainLoop, parallel=False),
    GymnasiumContender(VECTOR_FORM, "gymnasium Sync", "SyncVectorEnv", parallel=False),
    GymnasiumContender("gymnasium_async", "gymnasium Async", "AsyncVectorEnv"),
    LoopContender("naive_joblib", "joblib loop: naive", NaiveLoop),
    LoopContender("half_joblib", "joblib loop: steps only", HalfLoop),
    LoopContender("repaired_joblib", "joblib loop: env returned", RepairedLoop),
):
    register_contender(_contender)


def all_contenders() -> dict[str, Contender]:
    """Return every contender that can be named here, ours last."""
    from joblib_envs.execution import available_backends, executions_of
    from joblib_envs.execution.registry import actor_backends
    from joblib_envs.harness.limit import LimitContender
    from joblib_envs.harness.peers import RayActorsContender, Sb3Contender
    from joblib_envs.harness.rollouts import RolloutContender

    ours = [
        BatchEnvContender(backend, execution)
        for backend in available_backends()
        for execution in executions_of(backend)
    ]
    rollouts = [RolloutContender(backend) for backend in available_backends() if backend in actor_backends()]
    peers = (Sb3Contender(), RayActorsContender())
    others: tuple[Contender, ...] = (LimitContender(), *peers, *ours, AutoContender(), *rollouts)
    return _REGISTERED | {contender.name: contender for contender in others if contender.name not in _REGISTERED}


def autoreset_mode_of(contender: Contender) -> AutoresetMode:
    """Return when a contender resets an ended episode: by that it is judged, and its steps are counted."""
    mode: AutoresetMode = getattr(contender, "autoreset_mode", AutoresetMode.NEXT_STEP)
    return mode


def patience_with(contender: Contender, silence_s: float) -> float:
    """Return the silence after which a contender counts as hanging: the study's, or its own if that is longer."""
    return max(silence_s, float(getattr(contender, "patience_s", 0.0)))


def select_contenders(patterns: Iterable[str]) -> list[Contender]:
    """Return the contenders that match any of the names or shell patterns, in table order.

    Raises:
        ArgumentError: A pattern matches none.
    """
    known = all_contenders()
    chosen: set[str] = set()
    for pattern in patterns:
        matches = [name for name in known if fnmatchcase(name, pattern)]
        if not matches:
            raise ArgumentError(f"contender {pattern!r} is not known here: choose among {', '.join(known)}")
        chosen.update(matches)
    return [contender for name, contender in known.items() if name in chosen]
