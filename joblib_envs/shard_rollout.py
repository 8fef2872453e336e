"""Many steps of a shard with a policy's actions, where the environments are; nothing is exchanged in between."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
from gymnasium import Space

from joblib_envs.arguments import ActionCheck
from joblib_envs.copies import own
from joblib_envs.errors import UnpicklableError
from joblib_envs.failures import Failure
from joblib_envs.info_history import InfoHistory
from joblib_envs.policies import Memory, PolicyDriver
from joblib_envs.rows import Array, Leaf, Rows, leaves_of
from joblib_envs.tape import Tape

if TYPE_CHECKING:
    from joblib_envs.shard import Reply, Shard

__all__ = ["Recorder", "RolloutForm", "RolloutOrder", "ShardRecord", "TravellingPolicy", "fill_rows", "roll_out"]


class TravellingPolicy:
    """A policy on its way to a shard, which gets one of its own.

    To another process it goes as a pickle, which is made once for all; in one process it is copied
    where that can be done, so that what shards do to it side by side is the same everywhere.

    Args:
        policy: The policy.
    """

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self._data: bytes | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self._data is None:
            try:
                self._data = cloudpickle.dumps(self._policy)
            except Exception as error:
                raise UnpicklableError(
                    f"the policy can't be pickled ({type(error).__name__}: {error}); make such things in its first call"
                ) from error
        return _ArrivedPolicy, (self._data,)

    def take(self) -> Any:
        """Return the shard's own policy."""
        return own(self._policy)


class _ArrivedPolicy(TravellingPolicy):
    """A policy in a worker process: unpickled where a failure can be told as the policy's own."""

    def __init__(self, data: bytes) -> None:
        super().__init__(None)
        self._data = data

    def take(self) -> Any:
        return cloudpickle.loads(self._data or b"")


class RolloutForm:
    """What is the same in all rollouts of a shard. It is pickled once, and unpickled once in each worker.

    Args:
        observation_space: The single observation space of the batch.
        action_space: The single action space.
        check_actions: Checks the shard's actions.
    """

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], check_actions: ActionCheck) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.check_actions = check_actions
        self._data: bytes | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self._data is None:
            self._data = cloudpickle.dumps((self.observation_space, self.action_space, self.check_actions))
        return _form_of, (self._data,)


@functools.lru_cache(maxsize=64)
def _form_of(data: bytes) -> RolloutForm:
    return RolloutForm(*cloudpickle.loads(data))


@dataclass(frozen=True)
class RolloutOrder:
    """What a shard needs for a rollout.

    Attributes:
        policy: The policy for this shard's sub-environments.
        memory: What it starts from, if it is recurrent.
        num_steps: How many steps to make.
        observations: The current observations: for each array leaf ``(n, *shape)``.
        objects: For each object leaf a list of n.
        form: The spaces, and the check of the actions.
    """

    policy: TravellingPolicy
    memory: Memory | None
    num_steps: int
    observations: Sequence[Array]
    objects: Sequence[list[Any]]
    form: RolloutForm


@dataclass
class ShardRecord:
    """What a shard's sub-environments did in a rollout of T steps; later rows are zero where it stopped early.

    Attributes:
        first_index: The batch's index of the first sub-environment.
        steps_made: int64 ``(n,)``.
        observations: For each array leaf ``(T, n, *shape)``.
        objects: For each object leaf an object array ``(T, n)``.
        actions: For each leaf of the action space ``(T, n, *shape)``; an object array ``(T, n)`` where it has no
            fixed shape, or the policy gave several dtypes. Nothing where it never gave any.
        rewards: float64 ``(T, n)``.
        terminations: bool ``(T, n)``.
        truncations: bool ``(T, n)``.
        infos: The infos.
        policy_state: The policy's state for the observations that come next.
        policy_failure: The exception that the policy raised, if it did.
    """

    first_index: int
    steps_made: Array
    observations: list[Array]
    objects: list[Array]
    actions: list[Array]
    rewards: Array
    terminations: Array
    truncations: Array
    infos: InfoHistory
    policy_state: Any = None
    policy_failure: Failure | None = None

    def fail_what_cannot_cross(self, refuses: Callable[[Any], BaseException | None]) -> dict[int, BaseException]:
        """Take out infos, observations and actions that can't be pickled.

        Args:
            refuses: Returns why a value can't be pickled, or None.

        Returns:
            By row why; such a row counts as having made the steps before only.
        """
        found: dict[int, BaseException] = {}
        for row in range(len(self.steps_made)):
            first = [self.infos.drop(row, refuses)]
            for array in (*self.objects, *(each for each in self.actions if each.dtype.hasobject)):
                errors = [(step, refuses(value)) for step, value in enumerate(array[:, row])]
                bad = [(step, error) for step, error in errors if error is not None]
                for step, _ in bad:
                    array[step, row] = None
                first.append(bad[0] if bad else None)
            if any(first):
                step, found[row] = min((each for each in first if each is not None), key=lambda each: each[0])
                self.steps_made[row] = min(self.steps_made[row], step)
        return found


def fill_rows(rows: Rows, observations: Sequence[Array], objects: Sequence[list[Any]]) -> None:
    """Put observations into the rows."""
    for mine, given in zip(rows.observations, observations, strict=True):
        mine[...] = given
    for values, items in zip(rows.objects, objects, strict=True):
        values[:] = items


def roll_out(
    shard: Shard, rows: Rows, order: RolloutOrder, pending: Sequence[bool]
) -> tuple[ShardRecord, dict[int, Failure]]:
    """Step a shard many times.

    It stops after a step in which a sub-environment failed, or before one for which the policy did.

    Args:
        shard: The shard.
        rows: Filled as by its last step.
        order: What to do.
        pending: With NEXT_STEP, which sub-environments the first step resets.

    Returns:
        The record, and the sub-environments that failed in the last step, by index.
    """
    fill_rows(rows, order.observations, order.objects)
    recorder = Recorder(rows, order.num_steps, order.form, shard.first_index)
    try:
        policy = order.policy.take()
    except Exception as error:
        return recorder.finish(0, None, Failure.of(shard.first_index, _cannot_unpickle(error))), {}
    driver = PolicyDriver(policy, order.form.check_actions, order.memory, shard.autoreset_mode, pending)
    observe, step, has_objects = recorder.observer(), shard.step, bool(rows.objects)
    policy_failure = None
    failures: dict[int, Failure] = {}
    made, num_steps = 0, order.num_steps
    while made < num_steps and not failures:
        try:
            actions = driver(observe())
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            policy_failure = Failure.of(shard.first_index, error)
            break
        recorder.actions.append(actions)
        # Of an array of one dimension the environments get values, else what they may change.
        given: Any = actions if type(actions) is np.ndarray and actions.ndim == 1 else own(actions)
        reply = step(rows, given)
        for data, source in recorder.written:
            data += source
        if has_objects or reply.infos:
            recorder.keep_others(made, reply)
        if driver.forgets:
            driver.after_step(rows.terminations, rows.truncations)
        failures = reply.failures
        made += 1
    rows.infos.clear()  # they are in the record
    return recorder.finish(made, driver.state, policy_failure, failures), failures


def _cannot_unpickle(error: Exception) -> UnpicklableError:
    cannot = UnpicklableError(
        f"the policy can't be unpickled in a worker ({type(error).__name__}: {error}): what it imports must be there, "
        f"too; or use backend='threading' or 'sequential', which need no pickling"
    )
    cannot.__cause__ = error
    return cannot


class Recorder:
    """Copies what is in the rows, step by step: the rows are written again in the next step.

    Args:
        rows: The rows, with the current observations.
        num_steps: How many steps are to be made.
        form: The spaces.
        first_index: The batch's index of the first sub-environment.

    Attributes:
        actions: The actions of each step; appended to by who asks for them.
        written: What keeps the arrays after each step: bytes so far, and those to append to them. (As they
            are, without calls: this is most of what a step costs beside the environments.)
    """

    def __init__(self, rows: Rows, num_steps: int, form: RolloutForm, first_index: int) -> None:
        self._rows, self._num_steps, self._form, self._first_index = rows, num_steps, form, first_index
        self._observations = [Tape(array) for array in rows.observations]
        self._objects = [[list(values)] for values in rows.objects]
        self._results = [Tape(array) for array in (rows.rewards, rows.terminations, rows.truncations)]
        self.written = [(tape.data, tape.source) for tape in (*self._observations, *self._results)]
        self.actions: list[Any] = []
        self._infos = InfoHistory(len(rows))
        for tape in self._observations:
            tape.data += tape.source

    def observer(self) -> Callable[[], Any]:
        """Return what returns a copy of the observations for the policy, which may do with it what it likes."""
        rows, space = self._rows, self._form.observation_space
        only = rows.leaves[0] if len(rows.leaves) == 1 else None
        if only is not None and only.is_array and not only.path:
            return rows.observations[0].copy
        return lambda: rows.batch(space, copied=True)

    def keep(self, step: int, reply: Reply) -> None:
        """Keep all that a step gave."""
        for data, source in self.written:
            data += source
        self.keep_others(step, reply)

    def keep_others(self, step: int, reply: Reply) -> None:
        """Keep what a step gave beside the arrays."""
        for kept, values in zip(self._objects, self._rows.objects, strict=True):
            kept.append(list(values))
        for infos in reply.infos:
            self._infos.add_columns(step, infos)

    def finish(
        self, made: int, policy_state: Any, policy_failure: Failure | None, failures: Iterable[int] = ()
    ) -> ShardRecord:
        """Return the record of so many steps, the last of which some sub-environments haven't made."""
        self._infos.pack()
        num_steps, num_rows = self._num_steps, len(self._rows)
        steps_made = np.full(num_rows, made, dtype=np.int64)
        steps_made[[index - self._first_index for index in failures]] -= 1
        rewards, terminations, truncations = (tape.time_major(made, num_steps) for tape in self._results)
        return ShardRecord(
            self._first_index,
            steps_made,
            [tape.time_major(made, num_steps) for tape in self._observations],
            [_object_array(kept[:made], (num_steps, num_rows)) for kept in self._objects],
            _time_major_actions(self.actions, self._num_steps, self._form, num_rows),
            rewards,
            terminations,
            truncations,
            self._infos,
            policy_state,
            policy_failure,
        )


def _time_major_actions(batches: Sequence[Any], num_steps: int, form: RolloutForm, num_rows: int) -> list[Array]:
    """Return each leaf of the actions; nothing where there are none."""
    if not batches:
        return []
    first = batches[0]
    if all(type(batch) is np.ndarray and batch.dtype == first.dtype for batch in batches):
        actions: Array = np.zeros((num_steps, *first.shape), first.dtype)
        np.concatenate(batches, out=actions[: len(batches)].reshape((len(batches) * num_rows, *first.shape[1:])))
        return [actions]
    shape = (num_steps, num_rows)
    leaves = leaves_of(form.action_space)
    return [_time_major_leaf(leaf, [[leaf.of(one) for one in batch] for batch in batches], shape) for leaf in leaves]


def _time_major_leaf(leaf: Leaf, values: list[list[Any]], shape: tuple[int, int]) -> Array:
    """Return one leaf of the actions as an array of their dtype, or as an object array where one can't hold them."""
    flat = [np.asarray(value) for step in values for value in step] if leaf.is_array else []
    if flat and len({(value.dtype, value.shape) for value in flat}) == 1:
        array: Array = np.zeros((*shape, *flat[0].shape), flat[0].dtype)
        array[: len(values)] = np.reshape(flat, (len(values), *array.shape[1:]))
        return array
    return _object_array(values, shape)


def _object_array(values: Sequence[Sequence[Any]], shape: tuple[int, int]) -> Array:
    objects: Array = np.full(shape, None, dtype=object)
    for step, batch in enumerate(values):
        for row, value in enumerate(batch):
            objects[step, row] = value
    return objects
