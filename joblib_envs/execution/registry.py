"""The registry of backends: what joblib-envs knows of each, and the only place that tells them apart.

To add actors to a backend, or a variant of it for tasks, add a :class:`BackendEntry`; a cluster's
variant stands in :mod:`~joblib_envs.execution.clusters`.
A backend that joblib knows and this registry doesn't runs as it is, in tasks execution.
"""

from __future__ import annotations

import concurrent.futures
import enum
import importlib.util
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import joblib.parallel
from joblib._memmapping_reducer import SYSTEM_SHARED_MEM_FS, SYSTEM_SHARED_MEM_FS_MIN_SIZE
from joblib.parallel import (
    LokyBackend,
    MultiprocessingBackend,
    ParallelBackendBase,
    SequentialBackend,
    ThreadingBackend,
    get_active_backend,
)

from joblib_envs.errors import ArgumentError, ArgumentTypeError, BackendUnavailableError
from joblib_envs.execution.actors import Actors, HostFactory
from joblib_envs.execution.clusters import ClusterTasks, cluster_tasks
from joblib_envs.execution.hosts import ProcessHost, ThreadHost
from joblib_envs.execution.protocol import BatchPlan, Execution
from joblib_envs.execution.tasks import Tasks
from joblib_envs.gil import gil_is_enabled
from joblib_envs.processes import end_at_termination, killed_unless_ended

__all__ = [
    "BACKENDS",
    "BackendEntry",
    "ChosenBackend",
    "Workers",
    "actor_backends",
    "available_backends",
    "choose_backend",
    "executions_of",
    "install_hints",
]


_SLICE_S = 0.1
"""How long to wait at a time: a signal that comes just before a wait doesn't end it, and Ctrl-C would be lost."""


class _Waiting:
    """Makes ``Parallel`` wait for results in place of polling for them.

    joblib 1.6.0 polls every asynchronous backend with a sleep of 10 ms, unless it
    doesn't support callbacks for retrieval. No longer needed once an empty
    ``Parallel(n_jobs=2, backend="threading")`` call takes less than a millisecond.
    """

    supports_retrieve_callback = False
    supports_timeout = True


class _WaitingThreads(_Waiting, ThreadingBackend):  # type: ignore[misc]
    def retrieve_result(self, out: Any, timeout: float | None = None) -> Any:  # noqa: ARG002 -- none is ever given
        while not out.ready():
            out.wait(_SLICE_S)
        return self.retrieve_result_callback(out.get())  # which raises a captured exception


class _WaitingPool(_Waiting, MultiprocessingBackend):  # type: ignore[misc]
    def configure(self, *args: Any, **kwargs: Any) -> Any:
        return super().configure(*args, **{"initializer": end_at_termination, **self.backend_kwargs, **kwargs})

    def terminate(self) -> None:
        # A pool waits for ever for a worker that SIGTERM doesn't end, since native code handles it.
        with killed_unless_ended([] if self._pool is None else list(self._pool._pool)):
            super().terminate()

    def retrieve_result(self, out: Any, timeout: float | None = None) -> Any:  # noqa: ARG002
        workers = self._workers()
        while not out.ready():
            out.wait(_SLICE_S)
            # A pool replaces a worker that died, and waits for its result for ever.
            if self._workers() != workers and not out.ready():
                raise RuntimeError("a worker process of the pool ended")
        return self.retrieve_result_callback(out.get())

    def _workers(self) -> list[int]:
        return [process.pid for process in self._pool._pool]


class _WaitingLoky(_Waiting, LokyBackend):  # type: ignore[misc]
    def configure(self, *args: Any, temp_folder: str | None = None, **kwargs: Any) -> Any:
        # joblib 1.6.0 makes a folder for large arrays, which stays until the program ends, unless
        # it is told where such folders go; ours are never needed, hence never made there.
        return super().configure(*args, temp_folder=temp_folder or _joblib_temp_folder(), **kwargs)

    def retrieve_result(self, out: Any, timeout: float | None = None) -> Any:  # noqa: ARG002
        while not out.done():
            concurrent.futures.wait([out], _SLICE_S)
        return out.result()


def _joblib_temp_folder() -> str:
    """Return the folder that joblib would choose for large arrays.

    The executor is shared with the user's own calls, whose arrays must go where they always do.
    """
    chosen = os.environ.get("JOBLIB_TEMP_FOLDER")
    if chosen is not None:
        return chosen
    try:
        usage = os.statvfs(SYSTEM_SHARED_MEM_FS)
    except (AttributeError, OSError):
        return tempfile.gettempdir()
    is_large = usage.f_bsize * usage.f_bavail > SYSTEM_SHARED_MEM_FS_MIN_SIZE
    return SYSTEM_SHARED_MEM_FS if is_large and os.access(SYSTEM_SHARED_MEM_FS, os.W_OK) else tempfile.gettempdir()


class Workers(enum.StrEnum):
    """What steps the shards, the simplest first."""

    CALLER = "caller"
    THREADS = "threads"
    PROCESSES = "processes"


@dataclass(frozen=True)
class BackendEntry:
    """What joblib-envs adds to one of joblib's backends.

    Attributes:
        joblib_class: joblib's class; instances of subclasses are somebody else's backends.
        new_host: Makes the actors' hosts; None where the backend has no actors.
        tasks_class: The variant for tasks execution.
        always_caller: Whether the caller is the only worker.
        caller_steps: Tells whether the caller steps a shard unless told otherwise.
    """

    joblib_class: type[ParallelBackendBase]
    new_host: HostFactory | None = None
    tasks_class: type[ParallelBackendBase] | None = None
    always_caller: bool = False
    caller_steps: Callable[[], bool] = lambda: False

    @property
    def workers(self) -> Workers:
        """What steps the shards."""
        if self.always_caller:
            return Workers.CALLER
        shares_memory = getattr(self.joblib_class, "supports_sharedmem", False)
        return Workers.THREADS if shares_memory else Workers.PROCESSES


BACKENDS: dict[str, BackendEntry] = {
    "sequential": BackendEntry(SequentialBackend, new_host=ThreadHost, always_caller=True, caller_steps=lambda: True),
    # With the GIL a caller that steps keeps the threads from running; without, it is one more worker.
    "threading": BackendEntry(
        ThreadingBackend, new_host=ThreadHost, tasks_class=_WaitingThreads, caller_steps=lambda: not gil_is_enabled()
    ),
    "loky": BackendEntry(LokyBackend, new_host=ProcessHost, tasks_class=_WaitingLoky, caller_steps=lambda: True),
    "multiprocessing": BackendEntry(MultiprocessingBackend, tasks_class=_WaitingPool),
}


@dataclass(frozen=True)
class _Provider:
    """What it takes to have a backend that another package brings.

    Attributes:
        package: What is imported.
        requirement: What is installed.
        step: What the user does before the batch is built.
    """

    package: str
    requirement: str
    step: str

    @property
    def hint(self) -> str:
        if importlib.util.find_spec(self.package) is not None:
            return self.step
        return f"run `pip install '{self.requirement}'`, and {self.step}"


_PROVIDERS = {
    "dask": _Provider("distributed", "joblib-envs[dask]", "open a distributed.Client before the batch"),
    "ray": _Provider("ray", "joblib-envs[ray]", "call ray.init() and ray.util.joblib.register_ray() before the batch"),
    "spark": _Provider("joblibspark", "joblibspark", "call joblibspark.register_spark() before the batch"),
}


def available_backends() -> list[str]:
    """List the names of the backends that can run here: joblib's own and the registered ones."""
    known = [name for name in BACKENDS if name in joblib.parallel.BACKENDS]
    return known + sorted(set(joblib.parallel.BACKENDS) - set(known))


def actor_backends() -> dict[str, BackendEntry]:
    """Return the backends that have actors and can run here, the simplest first."""
    names = [name for name in available_backends() if name in BACKENDS and BACKENDS[name].new_host is not None]
    order = list(Workers)
    return {name: BACKENDS[name] for name in sorted(names, key=lambda name: order.index(BACKENDS[name].workers))}


def install_hints() -> dict[str, str]:
    """Tell how to get the backends that are known but not available here."""
    return {name: each.hint for name, each in _PROVIDERS.items() if name not in joblib.parallel.BACKENDS}


def executions_of(name: str) -> tuple[str, ...]:
    """List the executions of a backend, its default first."""
    return _executions(BACKENDS.get(name))


def _executions(entry: BackendEntry | None) -> tuple[str, ...]:
    return ("actors", "tasks") if entry is not None and entry.new_host is not None else ("tasks",)


@dataclass(frozen=True)
class ChosenBackend:
    """A backend, with everything that the user's arguments and joblib's context leave to decide.

    Attributes:
        name: How it is shown.
        instance: joblib's backend.
        execution: ``"actors"`` or ``"tasks"``.
        n_jobs: Number of workers.
        caller_steps: Whether the caller steps the last shard itself.
        num_threads: BLAS and OpenMP threads while environments run.
    """

    name: str
    instance: ParallelBackendBase
    entry: BackendEntry | None
    execution: str
    n_jobs: int
    caller_steps: bool
    num_threads: int

    @property
    def shares_memory(self) -> bool:
        """Whether workers see the caller's objects."""
        return bool(getattr(self.instance, "supports_sharedmem", False))

    @property
    def sends_factories(self) -> bool:
        """Whether factories must be pickled."""
        only_caller = self.caller_steps and self.n_jobs == 1
        return not self.shares_memory and not only_caller

    @property
    def state_travels(self) -> bool:
        """Whether the environments' state is pickled at each call."""
        return self.execution == "tasks" and not self.shares_memory

    def execute(self, plan: BatchPlan) -> Execution:
        """Build the batch's shards where they shall live."""
        if self.execution == "actors":
            assert self.entry is not None  # choose_backend saw to it
            assert self.entry.new_host is not None
            return Actors(plan, self.entry.new_host)
        backend = self.instance
        if self.entry is not None and self.entry.tasks_class is not None:
            backend = self.entry.tasks_class(
                nesting_level=self.instance.nesting_level,
                inner_max_num_threads=self.instance.inner_max_num_threads,
                **self.instance.backend_kwargs,
            )
        return Tasks(plan, backend, shares_memory=self.shares_memory)


def choose_backend(
    backend: Any,
    n_jobs: Any,
    execution: str | None,
    caller_steps: bool | None,
    inner_max_num_threads: Any,
    num_envs: int,
) -> ChosenBackend:
    """Decide how a batch runs: explicit arguments win, then the innermost ``joblib.parallel_config``.

    Raises:
        BackendUnavailableError: The backend is unknown or not installed.
        ArgumentError: A number or a combination isn't allowed.
    """
    active, active_n_jobs = get_active_backend()
    name, instance = _instance_of(backend, active)
    instance = cluster_tasks(instance) or instance
    entry = next((e for e in BACKENDS.values() if type(instance) is e.joblib_class), None)
    chosen = _checked_execution(execution, name, entry)
    workers = _num_workers(n_jobs, active_n_jobs, instance, num_envs)
    only_caller = chosen == "actors" and entry is not None and entry.always_caller
    return ChosenBackend(
        name,
        instance,
        entry,
        chosen,
        1 if only_caller else workers,
        _checked_caller_steps(caller_steps, chosen, name, entry, only_caller),
        _num_threads(inner_max_num_threads, instance),
    )


def _instance_of(backend: Any, active: ParallelBackendBase) -> tuple[str, ParallelBackendBase]:
    if backend is None:
        backend = active
    if isinstance(backend, ParallelBackendBase):
        if backend.nesting_level is None:
            backend.nesting_level = active.nesting_level
        factories = joblib.parallel.BACKENDS.items()
        names = [name for name, factory in factories if factory is type(backend)]
        return (names[0] if names else type(backend).__name__), backend
    if not isinstance(backend, str):
        raise ArgumentTypeError(
            f"backend={backend!r} must be the name of a joblib backend, one of {available_backends()}, "
            f"or a ParallelBackendBase instance"
        )
    known = backend in joblib.parallel.BACKENDS
    if not known:
        _register_external(backend)
    try:
        instance = joblib.parallel.BACKENDS[backend]()
        instance.nesting_level = active.nesting_level  # given as an argument, dask's would hand it to each task
    except (ImportError, ValueError) as error:  # joblib registers dask whether or not it is installed
        if not known:
            del joblib.parallel.BACKENDS[backend]
        raise _unavailable(backend) from error
    return backend, instance


def _register_external(name: str) -> None:
    """Let joblib register a backend that it knows but hasn't loaded, such as dask."""
    register: Callable[[], None] | None = joblib.parallel.EXTERNAL_BACKENDS.get(name)
    if register is None:
        raise _unavailable(name)
    try:
        register()
    except ImportError as error:
        raise _unavailable(name) from error


def _unavailable(name: str) -> BackendUnavailableError:
    others = [other for other in available_backends() if other != name]
    if name in _PROVIDERS:
        return BackendUnavailableError(
            f"backend {name!r} can't be used here: {_PROVIDERS[name].hint}, or choose one of {others}"
        )
    state = "can't be used here" if name in joblib.parallel.EXTERNAL_BACKENDS else "is unknown to joblib"
    return BackendUnavailableError(
        f"backend {name!r} {state}: choose one of {others}, or register it with joblib.register_parallel_backend"
    )


def _checked_execution(execution: Any, name: str, entry: BackendEntry | None) -> str:
    allowed = _executions(entry)
    if execution is None:
        return allowed[0]
    if execution not in ("actors", "tasks"):
        raise ArgumentError(f"execution={execution!r} must be 'actors', 'tasks' or None")
    if execution not in allowed:
        with_actors = [known for known, e in BACKENDS.items() if e.new_host is not None]
        raise ArgumentError(
            f"backend {name!r} has no actors: use execution='tasks', or one of the backends {with_actors}"
        )
    return str(execution)


def _num_workers(n_jobs: Any, active_n_jobs: Any, instance: ParallelBackendBase, num_envs: int) -> int:
    if n_jobs is None:
        n_jobs = -1 if active_n_jobs is None else active_n_jobs
    if not isinstance(n_jobs, Integral) or isinstance(n_jobs, bool):
        raise ArgumentTypeError(f"n_jobs={n_jobs!r} must be a whole number: workers, or -1 for one per usable CPU")
    if n_jobs == 0:
        raise ArgumentError("n_jobs=0 has no meaning: give the number of workers, or -1 for one per usable CPU")
    count = instance.num_workers if isinstance(instance, ClusterTasks) else instance.effective_n_jobs
    return max(1, min(int(count(int(n_jobs))), num_envs))


def _checked_caller_steps(
    caller_steps: Any, execution: str, name: str, entry: BackendEntry | None, only_caller: bool
) -> bool:
    if caller_steps is not None and not isinstance(caller_steps, bool):
        raise ArgumentTypeError(f"caller_steps={caller_steps!r} must be True, False or None")
    if execution == "tasks":
        if caller_steps:
            raise ArgumentError(
                "caller_steps=True needs execution='actors': in tasks, joblib's workers step everything"
            )
        return False
    if only_caller and caller_steps is False:
        raise ArgumentError(
            f"caller_steps=False can't be had with backend {name!r}, where the caller is the only worker: "
            f"use backend='loky' to keep environments out of the caller's process"
        )
    default = entry is not None and entry.caller_steps()
    return default if caller_steps is None else caller_steps


def _num_threads(inner_max_num_threads: Any, instance: ParallelBackendBase) -> int:
    if inner_max_num_threads is None:
        inner_max_num_threads = instance.inner_max_num_threads or 1
    if not isinstance(inner_max_num_threads, Integral) or isinstance(inner_max_num_threads, bool):
        raise ArgumentTypeError(f"inner_max_num_threads={inner_max_num_threads!r} must be a whole number, 1 or more")
    if inner_max_num_threads < 1:
        raise ArgumentError(f"inner_max_num_threads={inner_max_num_threads} must be 1 or more")
    return int(inner_max_num_threads)
