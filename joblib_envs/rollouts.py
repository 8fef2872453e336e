"""What a rollout gives: the shards' records, joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space

from joblib_envs.info_history import time_major_infos
from joblib_envs.policy_states import joined_states
from joblib_envs.rows import Array, leaves_of, nested
from joblib_envs.shard_rollout import ShardRecord

__all__ = ["Rollout", "joined_rollout"]


@dataclass(frozen=True, eq=False)
class Rollout:
    """T steps of n sub-environments with a policy's actions, time-major; its arrays are the caller's own.

    ``actions[t]`` were chosen from ``observations[t]``, and gave ``rewards[t]``, both flags and
    infos; ``observations[t + 1]`` came with them (``last_observations`` after the last). The autoreset
    mode is the batch's: with NEXT_STEP, the step after an episode's end only resets.

    Attributes:
        observations: ``(T, n, *single_observation_space.shape)``, the space's dtype. Dict and Tuple spaces give
            dictionaries and tuples of such arrays; where a space has no fixed size (Text, Sequence, Graph,
            OneOf, custom ones), an object array ``(T, n)``, of which ``tuple(observations[t])`` is what a step gives.
        actions: The same for actions, in the policy's dtype; an object array ``(T, n)`` with the actions unchanged
            where the policy gave several dtypes.
        rewards: float64 ``(T, n)``.
        terminations: bool ``(T, n)``.
        truncations: bool ``(T, n)``.
        infos: For each key that anybody told at any time an array ``(T, n)`` or ``(T, n, *shape)``, and its
            bool mask ``_key`` ``(T, n)``, by the rule for one step's infos, applied to all T * n at once.
        last_observations: The current observations after it, as ``step`` returns them (views with ``copy=False``).
        policy_state: The recurrent policy's state for ``last_observations``, with ``initial_state`` where those
            begin an episode: what to give to the next rollout. None where the policy has no state.
        equals_lockstep: Whether the policy passed the check that its actions for some sub-environments are those
            that it gives them among all.
        steps_made: int64 ``(n,)``: T, or less in the ``partial`` of an error; later entries are zero or None.

    Example:
        >>> from joblib_envs import BatchEnv
        >>> from joblib_envs.envs import CountingEnv
        >>> envs = BatchEnv(CountingEnv, 2, backend="sequential")
        >>> observations, infos = envs.reset(seed=0)
        >>> rollout = envs.rollout(lambda counts: counts % 2, num_steps=3)
        >>> rollout.observations.tolist(), rollout.actions.tolist()
        ([[0, 0], [1, 1], [2, 2]], [[0, 0], [1, 1], [0, 0]])
        >>> rollout.infos["count"].tolist(), rollout.last_observations.tolist()
        ([[1, 1], [2, 2], [3, 3]], [3, 3])
        >>> envs.close()
    """

    observations: Any
    actions: Any
    rewards: Array
    terminations: Array
    truncations: Array
    infos: dict[Any, Any]
    last_observations: Any
    policy_state: Any
    equals_lockstep: bool
    steps_made: Array

    def __len__(self) -> int:
        return len(self.rewards)

    def __repr__(self) -> str:
        steps, envs = self.rewards.shape
        return f"Rollout({steps} steps of {envs} sub-environments, equals_lockstep={self.equals_lockstep})"


def joined_rollout(
    records: Sequence[ShardRecord],
    shape: tuple[int, int],
    observation_space: Space[Any],
    action_space: Space[Any],
    last_observations: Any,
    *,
    equals_lockstep: bool,
) -> Rollout:
    """Join the records of the shards; where one has none, since nothing of it could cross, there are zeros.

    Args:
        records: What the shards recorded, in index order.
        shape: Number of steps and of sub-environments.
        observation_space: The single observation space.
        action_space: The single action space.
        last_observations: The batch's current observations.
        equals_lockstep: What the check of the policy has found.
    """
    leaves, action_leaves = leaves_of(observation_space), leaves_of(action_space)
    arrays = iter(range(len(leaves)))
    objects = iter(range(len(leaves)))
    columns: list[Any] = []
    for leaf in leaves:
        if leaf.is_array:
            number = next(arrays)
            parts = {record.first_index: record.observations[number] for record in records}
            columns.append(_joined(parts, shape, (leaf.space.shape or (), leaf.space.dtype)))
        else:
            number = next(objects)
            parts = {record.first_index: record.objects[number] for record in records}
            columns.append(_joined(parts, shape, ((), object)))
    action_columns = []
    for number, leaf in enumerate(action_leaves):
        parts = {record.first_index: record.actions[number] for record in records if record.actions}
        blank = (leaf.space.shape or (), leaf.space.dtype) if leaf.is_array else ((), object)
        action_columns.append(_joined(parts, shape, blank))
    states = [record.policy_state for record in records]
    all_there = sum(len(record.steps_made) for record in records) == shape[1]
    return Rollout(
        nested(observation_space, leaves, columns),
        nested(action_space, action_leaves, action_columns),
        _joined({record.first_index: record.rewards for record in records}, shape, ((), np.float64)),
        _joined({record.first_index: record.terminations for record in records}, shape, ((), np.bool_)),
        _joined({record.first_index: record.truncations for record in records}, shape, ((), np.bool_)),
        time_major_infos([(record.first_index, record.infos) for record in records], *shape),
        last_observations,
        joined_states(states) if all_there and states[0] is not None else None,
        equals_lockstep,
        _steps_made(records, shape[1]),
    )


def _joined(parts: Mapping[int, Array], shape: tuple[int, int], blank: tuple[tuple[int, ...], Any]) -> Array:
    """Return the shards' arrays side by side.

    Args:
        parts: By first index.
        shape: Number of steps and of sub-environments.
        blank: Shape and dtype of one entry where there are no parts.
    """
    arrays = list(parts.values())
    kinds = {(array.dtype, array.shape[2:]) for array in arrays}
    if len(kinds) == 1 and sum(array.shape[1] for array in arrays) == shape[1]:
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)
    if len(kinds) > 1:  # a policy's actions, of another dtype in another worker
        whole: Array = np.full(shape, None, dtype=object)
        for first, array in parts.items():
            for step, row in np.ndindex(array.shape[:2]):
                whole[step, first + row] = array[step, row]
        return whole
    dtype, inner = next(iter(kinds)) if kinds else (blank[1], blank[0])
    whole = np.full((*shape, *inner), None if np.dtype(dtype).hasobject else 0, dtype=dtype)
    for first, array in parts.items():
        whole[:, first : first + array.shape[1]] = array
    return whole


def _steps_made(records: Sequence[ShardRecord], num_envs: int) -> Array:
    made = np.zeros(num_envs, dtype=np.int64)
    for record in records:
        made[record.first_index : record.first_index + len(record.steps_made)] = record.steps_made
    return made
