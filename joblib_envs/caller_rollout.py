"""Rollouts with the policy at the caller: half of the sub-environments step while it thinks for the other half."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from joblib_envs.copies import own
from joblib_envs.execution import Execution
from joblib_envs.execution.actors import Actors
from joblib_envs.failures import Failure
from joblib_envs.policies import Memory, PolicyDriver
from joblib_envs.policy_states import joined_states, rows_of_state
from joblib_envs.rows import Rows
from joblib_envs.shard import Reply
from joblib_envs.shard_rollout import Recorder, RolloutForm, ShardRecord

__all__ = ["CallerRollout", "Group", "halves_of", "memory_of"]


def halves_of(shards: Sequence[range]) -> list[list[range]]:
    """Return two halves of a batch, each with a half of every shard, so that each keeps all workers at work."""
    cuts = [(shard.start + shard.stop + number % 2) // 2 for number, shard in enumerate(shards)]
    first = [range(shard.start, cut) for shard, cut in zip(shards, cuts, strict=True) if cut > shard.start]
    second = [range(cut, shard.stop) for shard, cut in zip(shards, cuts, strict=True) if shard.stop > cut]
    return [half for half in (first, second) if half]


def memory_of(memory: Memory | None, ranges: Sequence[range]) -> Memory | None:
    """Return what a policy starts from for some sub-environments."""
    if memory is None:
        return None
    parts = [memory.rows(each) for each in ranges]
    initial = None if memory.initial is None else joined_states([part.initial for part in parts])
    return Memory(joined_states([part.state for part in parts]), initial)


class Group:
    """Sub-environments for which the policy is asked together.

    Args:
        ranges: Which: consecutive ones of one shard each, in index order.
        driver: Asks the policy.
        rows: The batch's rows, with the current observations.
        num_steps: How many steps are to be made.
        form_for: Returns the form of a rollout of so many sub-environments.

    Attributes:
        ranges: As given.
        indices: Of all of them.
        made: How many steps they have made.
        failures: What they raised in the last one.
    """

    def __init__(
        self,
        ranges: Sequence[range],
        driver: PolicyDriver,
        rows: Rows,
        num_steps: int,
        form_for: Callable[[int], RolloutForm],
    ) -> None:
        self.indices = [index for each in ranges for index in each]
        self.driver = driver
        self.made = 0
        self.failures: dict[int, Failure] = {}
        self._policy_failure: Failure | None = None
        self._space = form_for(len(self.indices)).observation_space
        self._positions = np.array(self.indices)
        self.ranges = list(ranges)
        self._kept: list[tuple[Rows, Recorder]] = []
        for each in ranges:
            own_rows = Rows.allocate(rows.leaves, len(each))
            _copy_rows(rows, each, own_rows)
            self._kept.append((own_rows, Recorder(own_rows, num_steps, form_for(len(each)), each.start)))

    def actions(self, rows: Rows) -> Any:
        """Ask the policy for the next actions; None where it fails."""
        try:
            actions = self.driver(rows.chosen(self._space, self._positions)[0])
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            self._policy_failure = Failure.of(self.indices[0], error)
            return None
        start = 0
        for each, (_, recorder) in zip(self.ranges, self._kept, strict=True):
            recorder.actions.append(own(actions[start : start + len(each)]))
            start += len(each)
        return actions

    def keep(self, rows: Rows, replies: Sequence[Reply]) -> None:
        """Record a step, with a reply for each range."""
        for each, (own_rows, recorder), reply in zip(self.ranges, self._kept, replies, strict=True):
            _copy_rows(rows, each, own_rows)
            recorder.keep(self.made, reply)
            self.failures.update(reply.failures)
        self.made += 1
        if self.driver.forgets:
            _, _, terminations, truncations = rows.chosen(self._space, self._positions)
            self.driver.after_step(terminations, truncations)

    def records(self) -> list[ShardRecord]:
        """Return the record of each range."""
        records, start = [], 0
        for each, (_, recorder) in zip(self.ranges, self._kept, strict=True):
            place = range(start, start + len(each))
            state = None if self.driver.state is None else rows_of_state(self.driver.state, place)
            failed = [index for index in self.failures if index in each]
            records.append(recorder.finish(self.made, state, self._policy_failure if start == 0 else None, failed))
            start += len(each)
        return records


class CallerRollout:
    """Steps groups of sub-environments in turn.

    Args:
        execution: Where they are.
        num_steps: How many steps to make.
    """

    def __init__(self, execution: Execution, num_steps: int) -> None:
        self._execution = execution
        self._num_steps = num_steps
        self._done: dict[int, Reply] = {}
        self.output: list[Any] = []

    def run(self, groups: Sequence[Group]) -> None:
        """Make the steps; no more are begun once a sub-environment, or the policy, has failed."""
        under_way = [group for group in groups if self._begin(group)]
        while under_way:
            group = under_way.pop(0)
            group.keep(self._execution.rows, self._replies(group))
            if not any(each.failures for each in groups) and group.made < self._num_steps and self._begin(group):
                under_way.append(group)

    def _begin(self, group: Group) -> bool:
        actions = group.actions(self._execution.rows)
        if actions is None:
            return False
        if isinstance(self._execution, Actors):
            self._execution.start_some(group.indices, actions, apart=False)
        else:
            self._execution.start_step(actions)
        return True

    def _replies(self, group: Group) -> list[Reply]:
        """Wait for a group, and return a reply for each of its ranges."""
        if not isinstance(self._execution, Actors):
            return self._all_replies()
        starts = [each.start for each in group.ranges]
        while not all(start in self._done for start in starts):
            for done in self._execution.take_some(1, None):
                self._done[done.indices.start] = done.reply
                self.output.extend(done.reply.output)
        return [self._done.pop(start) for start in starts]

    def _all_replies(self) -> list[Reply]:
        reply = self._execution.finish(None)
        self.output.extend(reply.output)
        replies = []
        for number, shard in enumerate(self._execution.shards):
            failures = {index: failure for index, failure in reply.failures.items() if index in shard}
            replies.append(Reply(reply.infos[number : number + 1], None, failures))
        return replies


def _copy_rows(rows: Rows, chosen: range, own_rows: Rows) -> None:
    own_rows.take(-chosen.start, rows, chosen)
