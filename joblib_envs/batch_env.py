"""BatchEnv: many Gymnasium environments as one ``gymnasium.vector.VectorEnv``, on a joblib backend."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from joblib_envs import arguments
from joblib_envs.batch_rollouts import BatchRollouts
from joblib_envs.checkpoint import BatchSetup
from joblib_envs.choosing import AUTO
from joblib_envs.errors import (
    ArgumentError,
    CallTimeoutError,
    JoblibEnvsError,
    SubEnvError,
    UnpicklableError,
    WorkerDiedError,
)
from joblib_envs.execution import BatchPlan, ChosenBackend, ConstructionFailed, Execution, choose_backend
from joblib_envs.factories import check_factories, source_of
from joblib_envs.guard import Guard
from joblib_envs.info_columns import batch_columns
from joblib_envs.readiness import Readiness
from joblib_envs.relay import replay
from joblib_envs.rows import Array, leaves_of
from joblib_envs.shard import Reply, Request, check_distinct
from joblib_envs.spaces import batched_spaces
from joblib_envs.state.pickling import DEFAULT_OPTIONS
from joblib_envs.thread_limit import ThreadLimit

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

    from joblib_envs.choosing.decision import Choice

__all__ = ["BatchEnv"]

_DRAIN_S = 0.2
"""How long an interrupted call waits for its workers before the interrupt is passed on."""


class BatchEnv(BatchRollouts):
    """Step many Gymnasium environments together, on a backend you choose.

    The backend changes the speed, never the data: for environments that are functions of
    their constructor, seeds and actions, equal seeds and actions give bit-identical batches
    on every backend, in either execution, with any number of workers. Where a backend can't
    keep that, building the batch raises and says what works.

    In *actors* execution each worker owns some of the sub-environments for the batch's life
    (an actor is a stateful worker, not a policy). In *tasks* execution every reset and step is a
    ``joblib.Parallel`` call, and the environments travel to the workers and back with it.

    Shapes, with ``n = num_envs``:
        observations: ``(n, *single_observation_space.shape)``, the space's dtype; Dict and Tuple
        spaces give dictionaries and tuples of such arrays; spaces without a fixed size, tuples of n.
        rewards: ``(n,)`` float64. terminations, truncations: ``(n,)`` bool.
        infos: for each key an array ``(n,)`` or ``(n, *shape)``, and its bool mask ``_key``; an
        object array with the values unchanged where one dtype can't hold them.
    With ``copy=True`` returned arrays belong to the caller; later steps never write to them.

    Args:
        env: Environment id (also ``"module:Id-v0"``), EnvSpec, a function that makes an
            environment, or a list of such functions, one for each sub-environment. They are called
            in the workers, once for each sub-environment, in index order within a worker.
        num_envs: Number of sub-environments; 1 unless given, or the list's length.
        backend: ``"sequential"``, ``"threading"``, ``"loky"``, any other name that joblib knows, or a
            ``ParallelBackendBase`` instance. None: that of the innermost ``joblib.parallel_config``,
            else loky. ``"auto"``: the fastest for this environment on this machine, which is measured
            for about a second with throw-away instances in a process of their own; ``choice`` tells
            what was taken and why. ``n_jobs`` bounds it then, and ``caller_steps=False`` allows worker
            processes only.
        n_jobs: Number of workers; -1 means one per CPU that this process may use. None: the
            context's, else -1 (where joblib has 1). Never more than sub-environments.
        execution: ``"actors"`` or ``"tasks"``; None: actors where the backend has them.
        caller_steps: Whether the caller steps the last shard itself and counts as one of ``n_jobs``.
            None: yes for process actors and sequential, and for threads where Python has no global
            lock. A sub-environment that crashes in the caller takes it down: what is promised of
            crashes holds with False.
        inner_max_num_threads: BLAS and OpenMP threads while environments run; None: the context's,
            else 1. Linear algebra changes its last bits with it.
        autoreset_mode: Gymnasium's NEXT_STEP (default), SAME_STEP or DISABLED, as enum or value.
        observation_mode: ``"same"``, ``"different"``, or a tuple of the batched and the single
            observation space, as in ``gymnasium.vector.SyncVectorEnv``.
        copy: With False, returned observations are views that live until the next step but one.
        wrappers: Applied to each sub-environment, the first one innermost.
        env_kwargs: Keyword arguments for the environment's constructor.
        state_method: How states travel and are saved: ``"capture"`` keeps an environment's attributes and
            its simulator's state; ``"replay"`` keeps all its calls since it was made and makes them
            again, for environments that can't be captured but are reproducible. Going on from a
            replayed state costs as much as all those calls did.
        probe: Whether it is proven first, with throw-away instances in fresh processes, that states
            go on bit for bit, where they are needed: in tasks execution on a process backend, by
            ``get_state``, ``save`` and pickling. With False a state that doesn't is lost in silence.

    Raises:
        ArgumentError: An argument isn't allowed.
        BackendUnavailableError: The backend is unknown or not installed.
        EnvInsideFactoryError: An environment object was given, or is held by a factory.
        SpacesDifferError: The sub-environments' spaces can't be batched.
        StateCannotTravelError: Tasks execution would lose this environment's state.
        UnpicklableError: A factory can't be pickled and must be.
        SubEnvError: A sub-environment's constructor raised; all others are closed.

    Example:
        >>> envs = BatchEnv("CartPole-v1", 3, backend="sequential")
        >>> observations, infos = envs.reset(seed=42)
        >>> observations.shape
        (3, 4)
        >>> observations, rewards, terminations, truncations, infos = envs.step([1, 0, 1])
        >>> rewards
        array([1., 1., 1.])
        >>> envs.close()
    """

    def __init__(
        self,
        env: str | EnvSpec | Callable[[], gymnasium.Env[Any, Any]] | Iterable[Callable[[], gymnasium.Env[Any, Any]]],
        num_envs: int | None = None,
        *,
        backend: Any = None,
        n_jobs: int | None = None,
        execution: str | None = None,
        caller_steps: bool | None = None,
        inner_max_num_threads: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        observation_mode: str | tuple[gymnasium.Space[Any], gymnasium.Space[Any]] = "same",
        copy: bool = True,
        wrappers: Sequence[Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]] = (),
        env_kwargs: dict[str, Any] | None = None,
        state_method: str = "capture",
        probe: bool = True,
    ) -> None:
        super().__init__()
        # Until it is built there is nothing to close, whatever goes wrong below.
        self.closed = True
        self.autoreset_mode = arguments.checked_autoreset_mode(autoreset_mode)
        arguments.check_observation_mode(observation_mode)
        state_method = arguments.checked_state_method(state_method)
        source = source_of(env, num_envs, wrappers, env_kwargs)
        self.num_envs = len(source.factories)
        self._choice: Choice | None = None
        if isinstance(backend, str) and backend == AUTO:
            from joblib_envs.choosing.auto import choose_for  # late: workers import this module too

            check_factories(source.factories, must_travel=False)
            self._choice = choose_for(source.factories, n_jobs, execution, caller_steps, inner_max_num_threads)
            # From here on it is as if the user had named them: a saved batch goes on where this one was.
            backend, n_jobs = self._choice.backend, self._choice.n_jobs
            execution, caller_steps = self._choice.execution, self._choice.caller_steps
        chosen = choose_backend(backend, n_jobs, execution, caller_steps, inner_max_num_threads, self.num_envs)
        check_factories(source.factories, must_travel=chosen.sends_factories)
        self.spec = source.spec
        given = backend if isinstance(backend, str | None) else chosen.name
        where = {"backend": given, "n_jobs": n_jobs, "execution": execution, "caller_steps": caller_steps}
        self._setup = BatchSetup(
            source, self.autoreset_mode, observation_mode, copy, state_method, probe, chosen.num_threads, where
        )
        self._factories = source.factories if state_method == "capture" else source.journaled().factories
        self.copy = copy
        self._guard = Guard()
        self._begun_reset_mask: Array | None = None
        self._sent = set()
        self._action_checks = {}
        self._readiness = Readiness(self.num_envs, self.autoreset_mode)
        self._execution = self._built(chosen)
        self.closed = False
        self._finalizer = weakref.finalize(self, _close_unclosed, self._execution, self._guard)
        try:
            self._take_descriptions(observation_mode)
        except BaseException:
            with contextlib.suppress(SubEnvError):  # what is wrong with the batch is the thing to tell
                self.close_extras()
            raise

    @property
    def placement(self) -> tuple[str, ...]:
        """Where each sub-environment lives, by index: ``"caller"``, ``"thread-0"``, ``"process-0"``, ``"task-0"``."""
        return self._execution.placement

    @property
    def n_jobs(self) -> int:
        """The number of workers in effect, the caller included where it steps a shard."""
        return self._execution.num_workers

    @property
    def choice(self) -> Choice | None:
        """What ``backend="auto"`` has chosen, and why; None where the backend was named, or the batch was loaded."""
        return self._choice

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The sub-environments' random generators; copies where they live in other processes."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seeds of the sub-environments' random generators."""
        return self.get_attr("np_random_seed")

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all sub-environments, or those that ``options["reset_mask"]`` names.

        Args:
            seed: None: each random stream goes on; an integer: ``seed + i`` for sub-environment i;
                or one integer or None for each sub-environment.
            options: Handed to each ``env.reset``, without ``"reset_mask"``: a bool array ``(n,)``
                with at least one True; the others keep state and observation and give no info. It
                is never changed.

        Returns:
            Observations ``(n, ...)`` and infos.

        Raises:
            ArgumentError: The seed or the mask isn't allowed; nobody has moved.
            SubEnvError: A sub-environment raised.
        """
        with self._guard("reset"):
            self._start_reset(seed, options)
            return self._finish_reset(None)

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step all sub-environments.

        Args:
            actions: A batch of actions, in the form of ``action_space``, or a list of n actions.

        Returns:
            Observations ``(n, ...)``, rewards ``(n,)`` float64, terminations and truncations ``(n,)``
            bool, infos.

        Raises:
            ArgumentError: Wrong number or shape of actions; nobody has moved.
            ResetNeededError: A sub-environment needs a reset first; nobody has moved.
            SubEnvError: A sub-environment raised; all others have made the step.
        """
        self._guard("step")
        try:  # a with statement would call two functions more, in what is called most
            self._start_step(actions)
            return self._finish_step(None)
        finally:
            self._guard.leave()

    def step_async(self, actions: Any) -> None:
        """Begin a step and return while the workers are at it; ``step_wait`` brings the results.

        The caller's own shard, if it has one, is stepped in ``step_wait``; so are tasks.
        """
        with self._guard("step_async"):
            self._start_step(actions)
            self._guard.pending = "step"

    def step_wait(self, timeout: float | None = None) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Wait for the step that ``step_async`` began; returns and raises as ``step`` does.

        Args:
            timeout: Seconds to wait for the workers; the caller's own shard is not bounded by it.

        Raises:
            CallTimeoutError: They took longer. The batch can only be closed then, so that the late
                step never lands in a later one.
        """
        with self._guard("step_wait", waits_for="step"):
            self._check_timeout(timeout)
            self._guard.pending = None
            return self._finish_step(timeout)

    def reset_async(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Begin a reset and return while the workers are at it; arguments as for ``reset``."""
        with self._guard("reset_async"):
            self._start_reset(seed, options)
            self._guard.pending = "reset"

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Wait for the reset that ``reset_async`` began; ``timeout`` as for ``step_wait``."""
        with self._guard("reset_wait", waits_for="reset"):
            self._check_timeout(timeout)
            self._guard.pending = None
            return self._finish_reset(timeout)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each sub-environment, or get an attribute, through its wrappers.

        Args:
            name: The method or attribute.
            *args: For the method.
            **kwargs: For the method.

        Returns:
            A tuple of n results. From environments in other processes they are copies.
        """
        with self._guard(f"call({name!r})"):
            reply = self._ask([Request("call", (name, args, kwargs))] * len(self._execution.shards))
            self._readiness.after_call(reply.failures)
            replay(reply.output)
        results = tuple(reply.results or ())
        if reply.failures:
            self._raise(f"{name!r}", reply, (results, self._failed_mask(reply)))
        return results

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each sub-environment, found through its wrappers: a tuple of n."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each sub-environment, where it is defined among its wrappers.

        Args:
            name: The attribute.
            values: A list or tuple of n values, or one value for all. Each gets its own copy.

        Raises:
            ArgumentError: The list isn't n long.
        """
        each = arguments.checked_values(values, self.num_envs)
        with self._guard("set_attr"):
            reply = self._ask([Request("set_attr", (name, each[s.start : s.stop])) for s in self._execution.shards])
            self._readiness.after_call(reply.failures)
            replay(reply.output)
        if reply.failures:
            self._raise("set_attr", reply, (tuple(reply.results or ()), self._failed_mask(reply)))

    def get_wrapper_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each sub-environment; the same as ``get_attr``."""
        return self.call(name)

    def set_wrapper_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each sub-environment; the same as ``set_attr``."""
        self.set_attr(name, values)

    def render(self) -> tuple[Any, ...]:
        """Return each sub-environment's frame, in index order."""
        return self.call("render")

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:  # noqa: ARG002
        """Close the sub-environments and end the workers; called once, by ``close``.

        Args:
            timeout: Taken for Gymnasium's sake: closing never takes longer than a few seconds.
            terminate: Whether to end worker processes without closing their environments.
        """
        if not self._guard.enter_close():
            return
        self._finalizer.detach()
        self.closed = True
        if self._guard.pending is not None and not self._execution.drain(_DRAIN_S):
            terminate = True
        reply = self._execution.close(graceful=not terminate and self._guard.broken is None)
        replay(reply.output)
        if reply.failures:
            self._raise("close", reply, ((None,) * self.num_envs, self._failed_mask(reply)))

    def __enter__(self) -> BatchEnv:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _built(self, chosen: ChosenBackend) -> Execution:
        """Make the sub-environments, where it is proven that their state survives what is done with it."""
        options = DEFAULT_OPTIONS
        if chosen.state_travels:
            options = self._capture_options(
                "tasks execution on a process backend would send {} to a worker and back at each call",
                [
                    "execution='actors' (the default on 'loky'), where each environment stays in its worker",
                    "a backend that shares memory ('threading', 'sequential')",
                ],
            )
        limit = ThreadLimit(chosen.num_threads)
        plan = BatchPlan(self._factories, self.autoreset_mode, chosen.n_jobs, chosen.caller_steps, limit, options)
        try:
            return chosen.execute(plan)
        except ConstructionFailed as failed:
            error, cause = self._construction_error(failed), failed.failure.as_cause()
            raise error from (cause.__cause__ if error is cause else cause)

    def _take_descriptions(self, observation_mode: Any) -> None:
        descriptions = self._execution.descriptions
        check_distinct(descriptions)
        self.metadata = {**descriptions[0].metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = descriptions[0].render_mode
        agreed = batched_spaces(descriptions, observation_mode, self.num_envs)
        self.single_observation_space, self.observation_space = agreed.single_observation, agreed.observation
        self.single_action_space, self.action_space = agreed.single_action, agreed.action
        self._leaves = leaves_of(self.single_observation_space)
        self._check_actions = arguments.ActionCheck(self.action_space, self.single_action_space, self.num_envs)
        self._execution.bind(self._leaves, 1 if self.copy else 2, self._check_actions.shape)

    def _check_timeout(self, timeout: float | None) -> None:
        arguments.checked_timeout(timeout)
        if timeout is not None and not self._execution.bounds_waits:
            raise ArgumentError(
                f"timeout={timeout!r} can't be had in tasks execution, where joblib decides how long a call lasts: use "
                f"execution='actors', or timeout=None"
            )

    def _start_reset(self, seed: Any, options: Any) -> None:
        seeds = arguments.checked_seeds(seed, self.num_envs)
        env_options, mask = arguments.split_options(options, self.num_envs)
        self._readiness.check_mask(mask)
        masks = None if mask is None else mask.tolist()
        requests = [
            Request("reset", (seeds[s.start : s.stop], env_options, masks and masks[s.start : s.stop]))
            for s in self._execution.shards
        ]
        self._start(requests)
        self._begun_reset_mask = mask

    def _finish_reset(self, timeout_s: float | None) -> tuple[Any, dict[str, Any]]:
        reply = self._finish(timeout_s)
        self._readiness.after_reset(self._begun_reset_mask, reply.failures)
        replay(reply.output)
        observations, infos = self._observations(), batch_columns(reply.infos)
        if reply.failures:
            self._raise("reset", reply, (observations, infos, self._failed_mask(reply)))
        return observations, infos

    def _start_step(self, actions: Any) -> None:
        checked = self._check_actions(actions)
        self._readiness.require()
        try:
            self._execution.start_step(checked)
        except UnpicklableError:
            raise  # found before anyone moved
        except BaseException as error:
            self._cut_short(error)
            raise

    def _finish_step(self, timeout_s: float | None) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        reply = self._finish(timeout_s)
        rows = self._execution.rows
        self._readiness.after_step(rows, reply.failures)
        if reply.output:
            replay(reply.output)
        infos = batch_columns(reply.infos) if reply.infos else {}
        observations = rows.batch(self.single_observation_space, copied=self.copy)
        batch = (observations, rows.rewards.copy(), rows.terminations.copy(), rows.truncations.copy(), infos)
        if reply.failures:
            self._raise("step", reply, (*batch, self._failed_mask(reply)))
        return batch

    def _ask(self, requests: Sequence[Request]) -> Reply:
        self._start(requests)
        return self._finish(None)

    def _start(self, requests: Sequence[Request]) -> None:
        try:
            self._execution.start(requests)
        except UnpicklableError:
            raise  # found before anyone moved
        except BaseException as error:
            self._cut_short(error)
            raise

    def _observations(self) -> Any:
        return self._execution.rows.batch(self.single_observation_space, copied=self.copy)

    def _failed_mask(self, reply: Reply) -> Array:
        failed = np.zeros(self.num_envs, dtype=np.bool_)
        failed[list(reply.failures)] = True
        return failed

    @staticmethod
    def _raise(what: str, reply: Reply, partial: tuple[Any, ...]) -> NoReturn:
        failures = dict(sorted(reply.failures.items()))
        first, *others = failures.values()
        more = f" (and {len(others)} more: {[other.env_index for other in others]})" if others else ""
        if isinstance(first.exception, gymnasium.error.ResetNeeded):
            more += ". Call reset() on the batch first, or give factories that reset what they make"
        raise SubEnvError.of(
            f"sub-environment {first.env_index} raised {first.type_name} in {what}: {first.message}{more}",
            failures,
            partial,
            first.exception,
        ) from first.as_cause()

    @staticmethod
    def _construction_error(failed: ConstructionFailed) -> JoblibEnvsError:
        failure = failed.failure
        if isinstance(failure.exception, JoblibEnvsError):
            return failure.exception
        message = f"sub-environment {failure.env_index} raised {failure.type_name} when it was made: {failure.message}"
        return SubEnvError.of(message, {failure.env_index: failure}, (), failure.exception)

    def _finish(self, timeout_s: float | None) -> Reply:
        try:
            return self._execution.finish(timeout_s)
        except BaseException as error:
            self._cut_short(error)
            raise

    def _cut_short(self, error: BaseException) -> None:
        """Note that an answer didn't come: what the sub-environments did, nobody has seen."""
        if isinstance(error, WorkerDiedError | CallTimeoutError):
            self._guard.broken = error
            return
        self._readiness.interrupted()
        self._sent.clear()
        self._guard.pending = None
        if not self._execution.drain(_DRAIN_S):
            self._guard.broken = WorkerDiedError(
                f"a call was cut short by {type(error).__name__} while workers were in the middle of it: "
                f"the batch can only be closed"
            )


def _close_unclosed(execution: Execution, guard: Guard) -> None:
    """Close what the user didn't, when the batch is collected or the program ends; nobody is there to hear errors."""
    if guard.owned:
        with contextlib.suppress(Exception):
            execution.abandon()
