"""joblib's backends for clusters, dask and ray, as tasks execution uses them: calls of stateless functions.

A variant takes the cluster, and the options for its tasks, from joblib's own backend and waits for
results as :mod:`~joblib_envs.execution.registry` does elsewhere, in place of polling. What else
joblib's own do, and what makes them unfit for long batches (joblib 1.6.0, ray 2.60):

- dask: a call whose worker died too often never returns, since its callback isn't called;
- ray: a pool keeps every argument in the object store until it ends, hence each step's states; it goes on
  using actors that died; and it puts itself below joblib's own ``PicklingPool`` for the whole process;
- both run everything in the caller where the cluster has one worker.

The engines run a call again when its worker died. :class:`LostCallError` says that they gave one up,
:class:`ClusterGoneError` that there is no engine any more.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import threading
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from joblib.parallel import ParallelBackendBase

from joblib_envs.errors import ArgumentError, BackendUnavailableError, UnpicklableError, WorkerDiedError

__all__ = ["ClusterGoneError", "ClusterTasks", "LostCallError", "cluster_tasks"]

_SLICE_S = 0.1
"""How long to wait at a time: a signal that comes just before a wait doesn't end it, and Ctrl-C would be lost."""

_CHECK_S = 1.0
"""How often to ask whether the cluster still has workers."""

_AFTER_ABORT_S = 5.0
"""How long after an interrupt workers that are gone aren't waited for: Ctrl-C has ended those of a local cluster."""


class LostCallError(Exception):
    """A cluster gave a call up, after it had run it again.

    Attributes:
        number: Which of the calls that were made side by side.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class ClusterGoneError(WorkerDiedError):
    """There is no cluster any more, or no worker in it."""

    def __init__(self, what: str) -> None:
        super().__init__(f"a call has no answer: {what}. The batch can only be closed, best before its cluster")


class ClusterTasks(ParallelBackendBase):  # type: ignore[misc]
    """A cluster as joblib's backend.

    Args:
        backend: joblib's own for the same cluster.
    """

    supports_retrieve_callback = False
    supports_timeout = True

    def __init__(self, backend: ParallelBackendBase) -> None:
        super().__init__(nesting_level=backend.nesting_level, inner_max_num_threads=backend.inner_max_num_threads)
        self._begun: list[Any] = []
        self._aborted_at = -math.inf

    def num_workers(self, n_jobs: int) -> int:
        """Return how many workers a batch gets: the cluster's, or ``n_jobs`` of them; negative as in joblib.

        Raises:
            BackendUnavailableError: There is no cluster, or nobody in it.
        """
        available = self._available()
        return min(n_jobs, available) if n_jobs > 0 else max(1, available + 1 + n_jobs)

    def effective_n_jobs(self, n_jobs: int) -> int:
        """Return what ``Parallel`` takes for the number of workers: with one, it would run everything in the caller."""
        return max(2, n_jobs)

    def start_call(self) -> None:
        """Begin to number the calls."""
        self._begun = []

    def stop_call(self) -> None:
        """Let go of the results, which the cluster keeps as long as anybody knows of them."""
        self._begun = []

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], None] | None = None) -> Any:
        """Start a call."""
        with self._told_apart(None):
            future = self._start(func)
        self._begun.append(future)
        return future, len(self._begun) - 1, callback

    def retrieve_result(self, out: Any, timeout: float | None = None) -> Any:  # noqa: ARG002 -- none is ever given
        """Wait for a call's result."""
        future, number, callback = out
        with self._told_apart(number):
            result = self._result(future)
        if callback is not None:
            callback(result)  # joblib counts what is done
        return result

    def abort_everything(self, ensure_ready: bool = True) -> None:  # noqa: ARG002
        """Cancel what has begun; the cluster stays as it is."""
        self._aborted_at = time.monotonic()
        begun, self._begun = self._begun, []
        for future in begun:
            with contextlib.suppress(Exception):
                self._cancel(future)

    @contextlib.contextmanager
    def _told_apart(self, number: int | None) -> Iterator[None]:
        """Raise what a cluster's error means; a cancelled call's goes on, and the call is made again."""
        try:
            yield
        except ClusterGoneError:
            raise
        except Exception as error:
            gone = self._gone()
            if gone:
                raise ClusterGoneError(gone) from error
            if number is None or self._is_cancelled(error):
                raise
            if self._is_lost(error):
                raise LostCallError(f"{type(error).__name__}, after it was run again", number) from error
            raise UnpicklableError(
                f"a worker of the cluster can't run a call. Workers need the same Python and packages as the caller, "
                f"joblib-envs among them. What the cluster says: {type(error).__name__}: {error}"
            ) from error

    @abstractmethod
    def _available(self) -> int:
        """Count the workers."""

    @abstractmethod
    def _start(self, func: Callable[[], Any]) -> Any:
        """Start a call."""

    @abstractmethod
    def _result(self, future: Any) -> Any:
        """Wait for a call."""

    @abstractmethod
    def _cancel(self, future: Any) -> None:
        """Give a call up."""

    @abstractmethod
    def _gone(self) -> str:
        """Tell what has become of the cluster, where it can't be used any more."""

    @abstractmethod
    def _is_cancelled(self, error: Exception) -> bool:
        """Whether somebody else has cancelled a call, or all of them."""

    @abstractmethod
    def _is_lost(self, error: Exception) -> bool:
        """Whether a call has lost its worker, and the workers of its repetitions too."""


class _Dask(ClusterTasks):
    """A ``distributed.Client``'s cluster; its worker processes are the workers, each with one call at a time."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self._backend = backend
        self._client = backend.client
        self._patience_s = backend.wait_for_workers_timeout or math.inf  # without one joblib never gives up

    def _available(self) -> int:
        if self._client.asynchronous:
            raise BackendUnavailableError(
                "backend 'dask' was given a Client with asynchronous=True, whose answers can't be waited for here: "
                "open one without it"
            )
        gone = self._gone()
        if gone:
            raise BackendUnavailableError(
                f"backend 'dask' can't be used: {gone}. Open one and build the batch inside it"
            )
        try:
            self._backend.effective_n_jobs(-1)  # waits for a first worker
        except TimeoutError as error:
            raise BackendUnavailableError(f"backend 'dask' can't be used: {self._nobody(self._patience_s)}") from error
        return max(1, len(self._client.ncores()))

    def _start(self, func: Callable[[], Any]) -> Any:
        import dask

        # Not scattered: a shard's bytes would be on one worker alone, and lost with it.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}):
            key = f"joblib-envs-{uuid.uuid4().hex}"
            return self._client.submit(_one_at_a_time, func, key=key, **self._backend.submit_kwargs)

    def _result(self, future: Any) -> Any:
        # Not distributed.wait: when its time is over, the error and what it holds are one cycle, and
        # the results stay in the cluster until the next garbage collection.
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        begun = seen = asked = time.monotonic()
        patience_s = self._patience_s
        if begun - self._aborted_at < _AFTER_ABORT_S:
            patience_s = min(patience_s, _CHECK_S)
        while not done.wait(_SLICE_S) and not future.done():
            now = time.monotonic()
            if now - asked > _CHECK_S:
                asked = now
                if self._client.ncores():
                    seen = now
                elif now - seen > patience_s:
                    raise ClusterGoneError(self._nobody(patience_s))
        return future.result()

    def _cancel(self, future: Any) -> None:
        self._client.cancel([future])

    def _gone(self) -> str:
        if self._client.status == "running":
            return ""
        return f"its distributed.Client isn't connected to a cluster (it is {self._client.status!r})"

    def _nobody(self, patience_s: float) -> str:
        address = self._client.scheduler.address
        return (
            f"the cluster at {address} has no worker, and none came within {patience_s:g} s: start some "
            f"(`dask worker {address}`), or give it more time: "
            f"parallel_config(backend='dask', wait_for_workers_timeout=...)"
        )

    def _is_cancelled(self, error: Exception) -> bool:
        return isinstance(error, concurrent.futures.CancelledError | asyncio.CancelledError | TimeoutError)

    def _is_lost(self, error: Exception) -> bool:
        from distributed import KilledWorker

        return isinstance(error, KilledWorker)


class _Ray(ClusterTasks):
    """The cluster that ``ray.init()`` has joined; a call is a ray task, which takes a CPU unless told otherwise."""

    def __init__(self, backend: Any) -> None:
        import ray

        super().__init__(backend)
        options = backend.ray_remote_args or {}
        try:
            self._function = ray.remote(_one_at_a_time).options(**options)
        except ValueError as error:
            raise ArgumentError(f"ray_remote_args={options!r} must be options of a ray task: {error}") from error

    def _available(self) -> int:
        import ray

        gone = self._gone()
        if gone:
            raise BackendUnavailableError(
                f"backend 'ray' can't be used: {gone}. Call ray.init() first, which starts ray on this machine, or "
                f"ray.init(address=...), which joins a cluster"
            )
        return max(1, int(ray.cluster_resources().get("CPU", 0)))

    def _start(self, func: Callable[[], Any]) -> Any:
        self._require()
        return self._function.remote(func)

    def _result(self, future: Any) -> Any:
        import ray

        self._require()
        while not ray.wait([future], timeout=_SLICE_S)[0]:
            self._require()
        return ray.get(future)

    def _cancel(self, future: Any) -> None:
        import ray

        if not self._gone():
            ray.cancel(future)

    def _require(self) -> None:
        gone = self._gone()
        if gone:  # ray would start a cluster by itself
            raise ClusterGoneError(gone)

    def _gone(self) -> str:
        import ray

        return "" if ray.is_initialized() else "ray isn't running in this process"

    def _is_cancelled(self, error: Exception) -> bool:
        from ray.exceptions import TaskCancelledError

        return isinstance(error, TaskCancelledError)

    def _is_lost(self, error: Exception) -> bool:
        from ray.exceptions import RayError, RayTaskError

        return isinstance(error, RayError) and not isinstance(error, RayTaskError)


_alone = threading.Lock()


def _one_at_a_time(func: Callable[[], Any]) -> Any:
    """Run a call in a worker, which may have several threads: output settings hold for the whole process."""
    with _alone:
        return func()


_VARIANTS: dict[tuple[str, str], type[ClusterTasks]] = {
    ("joblib._dask", "DaskDistributedBackend"): _Dask,
    ("ray.util.joblib.ray_backend", "RayBackend"): _Ray,
}


def cluster_tasks(backend: ParallelBackendBase) -> ClusterTasks | None:
    """Return the variant of a backend, or None where it is no cluster's; loads neither dask nor ray."""
    kind = type(backend)
    variant = _VARIANTS.get((kind.__module__, kind.__qualname__))
    return None if variant is None else variant(backend)
