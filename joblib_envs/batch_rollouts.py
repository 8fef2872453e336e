"""Rollouts of a batch: the policy is checked, goes to the shards, and what they recorded comes back."""

from __future__ import annotations

import copy
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from numbers import Integral
from typing import Any, NoReturn

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from joblib_envs.arguments import ActionCheck
from joblib_envs.batch_sending import BatchSending
from joblib_envs.caller_rollout import CallerRollout, Group, halves_of, memory_of
from joblib_envs.copies import own
from joblib_envs.equality import Difference, first_difference
from joblib_envs.errors import ArgumentError, ArgumentTypeError, BatchSizeDependentWarning, PolicyError, SubEnvError
from joblib_envs.execution.actors import Actors
from joblib_envs.policies import Memory, PolicyDriver, policy_for, starting_memory
from joblib_envs.policy_states import joined_states, rows_of_state
from joblib_envs.relay import replay
from joblib_envs.rollouts import Rollout, joined_rollout
from joblib_envs.rows import Array, Leaf, Rows
from joblib_envs.shard import Reply, Request
from joblib_envs.shard_rollout import RolloutForm, RolloutOrder, ShardRecord, TravellingPolicy, fill_rows
from joblib_envs.thread_limit import ThreadLimit

__all__ = ["BatchRollouts"]


class BatchRollouts(BatchSending):
    """What ``BatchEnv`` can do with policies. It sets the attributes."""

    autoreset_mode: AutoresetMode
    _leaves: tuple[Leaf, ...]
    _check_actions: ActionCheck

    def __init__(self, *_env: Any, **_settings: Any) -> None:
        super().__init__()
        self._forms: dict[int, RolloutForm] = {}

    def rollout(
        self,
        policy: Any,
        num_steps: int,
        *,
        policy_state: Any = None,
        policy_at: str = "workers",
        pipelined: bool = True,
    ) -> Rollout:
        """Make many steps with a policy that runs where the sub-environments are: no exchange per step.

        The result is what as many calls of ``step`` with ``policy(observations)`` would give, and after it
        the batch stands where they would have brought it. Each worker asks the policy for its own
        sub-environments, so that holds for policies with ``policy(x)[i:j] == policy(x[i:j])``. It is checked
        to the last bit on the current observations; where it doesn't hold, a warning says what differs.
        (Matrix products may change their last bits with the number of rows.)

        The policy, or a copy of it, is called here for the check; each worker gets a copy of its own, where it
        can be copied, so what it keeps in itself doesn't come back: see :class:`~joblib_envs.RecurrentPolicy`.
        On threads, functions and what can't be copied are called by several workers at once.
        BLAS and OpenMP have ``inner_max_num_threads`` while it runs in a worker.

        Args:
            policy: From observations to actions: see :class:`~joblib_envs.Policy` and
                :class:`~joblib_envs.RecurrentPolicy`.
            num_steps: How many steps, T.
            policy_state: The state that a recurrent policy starts from, such as ``policy_state`` of the rollout
                before; None: its ``initial_state``.
            policy_at: ``"workers"``, or ``"caller"``: the policy itself is asked here, for one that can't
                be pickled, or that has a device of its own; observations and actions cross in each step.
            pipelined: With the policy at the caller, whether one half of the sub-environments steps while it
                thinks for the other half. It is asked for each half, so where it doesn't pass the check, or
                has a method ``for_envs``, all step together. In tasks execution they always do.

        Returns:
            A :class:`~joblib_envs.Rollout`: time-major arrays ``(T, n, ...)``.

        Raises:
            ArgumentError: ``num_steps``, the policy or its state isn't allowed, or autoreset is disabled; nobody
                has moved.
            ResetNeededError: A sub-environment needs a reset first, or was never reset; nobody has moved.
            UnpicklableError: The policy can't be pickled, and must be; nobody has moved.
            PolicyError: The policy raised, or gave something else than actions. Its worker stops before that
                step, the others make theirs; no sub-environment needs a reset. See ``partial``.
            SubEnvError: A sub-environment raised. Its worker stops after that step, which all others in it have
                made; the other workers make all steps. ``partial`` is the rollout so far, and the mask ``failed``.

        Example:
            >>> from joblib_envs import BatchEnv
            >>> envs = BatchEnv("CartPole-v1", 3, backend="sequential")
            >>> observations, infos = envs.reset(seed=0)
            >>> rollout = envs.rollout(lambda x: (x[:, 2] > 0).astype(int), num_steps=100)
            >>> rollout.observations.shape, rollout.actions.shape, rollout.rewards.sum()
            ((100, 3, 4), (100, 3), np.float64(294.0))
            >>> envs.close()
        """
        num_steps = _checked_num_steps(num_steps)
        _check_policy_at(policy_at)
        self._check_autoreset()
        with self._guard("rollout"):
            self._readiness.require()
            self._readiness.require_observed()
            memory = starting_memory(policy, self.num_envs, policy_state)
            difference = None
            if policy_at == "caller":
                reply = self._rolled_out_here(policy, memory, num_steps, pipelined=pipelined)
            else:
                orders = self._orders(policy, memory, num_steps)
                difference = self._difference(policy, memory, orders)
                if difference is not None:
                    warnings.warn(_difference_text(difference), BatchSizeDependentWarning, stacklevel=2)
                reply = self._ask([Request("rollout", (order,)) for order in orders])
            self._readiness.after_step(self._execution.rows, reply.failures)
            replay(reply.output)
            rollout = joined_rollout(
                reply.records,
                (num_steps, self.num_envs),
                self.single_observation_space,
                self.single_action_space,
                self._observations(),
                equals_lockstep=difference is None,
            )
        policy_error = _policy_error(reply.records, rollout)
        if reply.failures:
            try:
                self._raise("rollout", reply, (rollout, self._failed_mask(reply)))
            except SubEnvError as error:
                if policy_error is not None:
                    error.add_note(f"Besides, {policy_error}")
                raise
        if policy_error is not None:
            raise policy_error
        return rollout

    @abstractmethod
    def _failed_mask(self, reply: Reply) -> Array:
        """Return which sub-environments failed."""

    @staticmethod
    @abstractmethod
    def _raise(what: str, reply: Reply, partial: tuple[Any, ...]) -> NoReturn:
        """Raise the error for the sub-environments that failed."""

    def _check_autoreset(self) -> None:
        if self.autoreset_mode is AutoresetMode.DISABLED:
            raise ArgumentError(
                "a rollout needs autoreset, since nobody is there to reset an ended episode in the middle of it: build "
                "the batch with autoreset_mode='NextStep' or 'SameStep'"
            )

    def _orders(self, policy: Any, memory: Memory | None, num_steps: int) -> list[RolloutOrder]:
        """Return what each shard is to do."""
        rows = self._execution.rows
        shared = TravellingPolicy(policy)
        orders = []
        for shard in self._execution.shards:
            is_made_for_some = hasattr(policy, "for_envs")
            orders.append(
                RolloutOrder(
                    TravellingPolicy(_for_envs(policy, shard)) if is_made_for_some else shared,
                    None if memory is None else memory.rows(shard),
                    num_steps,
                    [array[shard.start : shard.stop].copy() for array in rows.observations],
                    [copy.deepcopy(values[shard.start : shard.stop]) for values in rows.objects],
                    self._form_for(len(shard)),
                )
            )
        return orders

    def _rolled_out_here(self, policy: Any, memory: Memory | None, num_steps: int, *, pipelined: bool) -> Reply:
        """Make a rollout with the policy at the caller; the reply has a record for each part of a shard."""
        execution = self._execution
        groups = [list(execution.shards)]
        if pipelined and isinstance(execution, Actors) and not hasattr(policy, "for_envs"):
            halves = halves_of(execution.shards)
            if self._answers_alike(policy, memory, halves):
                groups = halves
        pending = None
        if memory is not None and memory.initial is not None:
            pending = np.array(self._ask([Request("pending_resets")] * len(execution.shards)).results, dtype=np.bool_)
        made = [self._group(policy, memory, ranges, pending, num_steps) for ranges in groups]
        running = CallerRollout(execution, num_steps)
        try:
            running.run(made)
        except BaseException as error:
            self._cut_short(error)
            raise
        records = [record for group in made for record in group.records()]
        failures = {index: failure for group in made for index, failure in group.failures.items()}
        return Reply((), None, failures, running.output, sorted(records, key=lambda record: record.first_index))

    def _group(
        self, policy: Any, memory: Memory | None, ranges: Sequence[range], pending: Array | None, num_steps: int
    ) -> Group:
        indices = [index for each in ranges for index in each]
        driver = PolicyDriver(
            policy,
            self._form_for(len(indices)).check_actions,
            memory_of(memory, ranges),
            self.autoreset_mode,
            None if pending is None else pending[indices],
        )
        return Group(ranges, driver, self._execution.rows, num_steps, self._form_for)

    def _answers_alike(self, policy: Any, memory: Memory | None, groups: Sequence[Sequence[range]]) -> bool:
        """Tell whether the policy's answers for each group are those that it gives when asked for all."""
        tried = own(policy)
        rows = self._execution.rows
        observations = rows.batch(self.single_observation_space, copied=True)
        actions, state = self._answer(tried, self._check_actions, memory, observations)
        for ranges in groups:
            indices = [index for each in ranges for index in each]
            check, part = self._form_for(len(indices)).check_actions, memory_of(memory, ranges)
            some = rows.chosen(self.single_observation_space, np.array(indices))[0]
            got, got_state = self._answer(tried, check, part, some)
            if first_difference([actions[index] for index in indices], list(got)) is not None:
                return False
            if memory is not None:
                wanted = joined_states([rows_of_state(state, each) for each in ranges])
                if first_difference(wanted, got_state) is not None:
                    return False
        return True

    def _form_for(self, num_envs: int) -> RolloutForm:
        if num_envs not in self._forms:
            space = self.single_action_space
            check = ActionCheck(batch_space(space, num_envs), space, num_envs)
            self._forms[num_envs] = RolloutForm(self.single_observation_space, space, check)
        return self._forms[num_envs]

    def _difference(self, policy: Any, memory: Memory | None, orders: Sequence[RolloutOrder]) -> Difference | None:
        """Ask the policy for all, as in lockstep, and for each shard, as in a worker: tell what differs first.

        Raises:
            PolicyError: It raises, or gives something else than actions.
        """
        tried = own(policy)
        observations = self._execution.rows.batch(self.single_observation_space, copied=True)
        actions, state = self._answer(tried, self._check_actions, memory, observations)
        limit = ThreadLimit(self._setup.num_threads)
        limit.acquire()
        try:
            with limit.in_this_thread():
                for shard, order in zip(self._execution.shards, orders, strict=True):
                    rows = Rows.allocate(self._leaves, len(shard))
                    fill_rows(rows, order.observations, order.objects)
                    some = rows.batch(self.single_observation_space, copied=True)
                    part = _for_envs(tried, shard)
                    some_actions, some_state = self._answer(part, order.form.check_actions, order.memory, some)
                    difference = _first_in_actions(actions, some_actions, shard)
                    if difference is None and memory is not None:
                        path = f"the policy's state of the sub-environments {shard.start} to {shard.stop - 1}"
                        difference = first_difference(rows_of_state(state, shard), some_state, path)
                    if difference is not None:
                        return difference
        finally:
            limit.release()
        return None

    def _answer(self, policy: Any, check: ActionCheck, memory: Memory | None, observations: Any) -> tuple[Any, Any]:
        """Return the policy's actions and its next state; what it was given stays as it is."""
        driver = PolicyDriver(policy, check, copy.deepcopy(memory), self.autoreset_mode)
        try:
            # Copied: its next answer may be in the same array.
            return copy.deepcopy((driver(observations), driver.state))
        except PolicyError as error:
            error.add_note(f"(asked for {check.num_envs} sub-environments; nobody has moved)")
            raise
        except Exception as error:
            raise _raised(error, f"asked for {check.num_envs} sub-environments; nobody has moved") from error


def _for_envs(policy: Any, indices: range) -> Any:
    try:
        return policy_for(policy, indices)
    except Exception as error:
        raise _raised(error, f"in for_envs({indices}); nobody has moved") from error


def _raised(error: BaseException, when: str) -> PolicyError:
    return PolicyError(f"the policy raised {type(error).__name__}: {error} ({when})")


def _check_policy_at(policy_at: Any) -> None:
    if policy_at not in ("workers", "caller"):
        raise ArgumentError(f"policy_at={policy_at!r} must be 'workers' or 'caller'")


def _checked_num_steps(num_steps: Any) -> int:
    if isinstance(num_steps, bool) or not isinstance(num_steps, Integral):
        raise ArgumentTypeError(f"num_steps={num_steps!r} must be a whole number, 1 or more")
    if num_steps < 1:
        raise ArgumentError(f"num_steps={num_steps} must be 1 or more")
    return int(num_steps)


def _first_in_actions(wanted: Any, got: Any, shard: range) -> Difference | None:
    if first_difference(wanted[shard.start : shard.stop], got) is None:
        return None
    for index in shard:
        path = f"the action of sub-environment {index} among {shard.start} to {shard.stop - 1}"
        difference = first_difference(wanted[index], got[index - shard.start], path)
        if difference is not None:
            return difference
    return None


def _difference_text(difference: Difference) -> str:
    return (
        f"{difference.path} is {difference.got} where the policy is asked for these alone, and {difference.wanted} "
        f"where it is asked for all: its answers depend on the number of rows, or change from call to call. The "
        f"rollout asks it worker by worker, so what it does may differ from stepping in lockstep, and with the number "
        f"of workers (equals_lockstep is False). Compute each row by itself, and keep what changes in the state of a "
        f"RecurrentPolicy"
    )


def _policy_error(records: Sequence[ShardRecord], rollout: Rollout) -> PolicyError | None:
    """Return the error for a policy that failed in the middle, if it did."""
    failed = [(record, record.policy_failure) for record in records if record.policy_failure is not None]
    if not failed:
        return None
    record, failure = failed[0]
    last = record.first_index + len(record.steps_made) - 1
    what = (
        failure.message
        if isinstance(failure.exception, PolicyError)
        else (f"the policy raised {failure.type_name}: {failure.message}")
    )
    made = (
        f"after {record.steps_made[0]} of {len(rollout)} steps of the sub-environments {record.first_index} to {last}"
    )
    more = f"; it also failed in {len(failed) - 1} more workers" if len(failed) > 1 else ""
    error = PolicyError(f"{what} ({made}{more}). No sub-environment needs a reset; see partial and its steps_made")
    error.partial = rollout
    error.__cause__ = failure.as_cause()
    return error
