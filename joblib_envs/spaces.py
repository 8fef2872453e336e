"""Checks that the sub-environments' spaces agree, and batches them, by Gymnasium's rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from joblib_envs.errors import SpacesDifferError
from joblib_envs.shard import ShardDescription

__all__ = ["AgreedSpaces", "batched_spaces"]

Space = gymnasium.Space[Any]


@dataclass(frozen=True)
class AgreedSpaces:
    """A batch's spaces: of one sub-environment, and of all."""

    single_observation: Space
    observation: Space
    single_action: Space
    action: Space


def batched_spaces(
    descriptions: Sequence[ShardDescription], observation_mode: str | tuple[Space, Space], num_envs: int
) -> AgreedSpaces:
    """Batch the sub-environments' spaces.

    Args:
        descriptions: What the shards told, in index order.
        observation_mode: A checked mode, as in ``gymnasium.vector.SyncVectorEnv``.
        num_envs: Number of sub-environments.

    Raises:
        SpacesDifferError: They can't be batched under this mode.
    """
    observation_spaces = _all_of([d.observation_spaces for d in descriptions])
    action_spaces = _all_of([d.action_spaces for d in descriptions])
    _check_action_spaces(action_spaces)
    single: Space
    if isinstance(observation_mode, tuple):
        batched, single = observation_mode
        _check_alike(observation_spaces, single)
    elif observation_mode == "same":
        single = observation_spaces[0]
        _check_same(observation_spaces)
        batched = batch_space(single, num_envs)
    else:
        single = observation_spaces[0]
        _check_alike(observation_spaces, single)
        batched = batch_differing_spaces(observation_spaces)
    return AgreedSpaces(single, batched, action_spaces[0], batch_space(action_spaces[0], num_envs))


def _all_of(by_shard: Sequence[tuple[Space | None, ...]]) -> list[Space]:
    """Return every sub-environment's space; None stands for its shard's first."""
    spaces: list[Space] = []
    for shard_spaces in by_shard:
        first = shard_spaces[0]
        assert first is not None  # a shard always tells its first one's
        spaces.extend(first if space is None else space for space in shard_spaces)
    return spaces


def _check_same(spaces: Sequence[Space]) -> None:
    for index, space in enumerate(spaces):
        if space is not spaces[0] and space != spaces[0]:
            raise SpacesDifferError(
                f"the observation space of sub-environment {index} is {space}, that of sub-environment 0 is "
                f"{spaces[0]}: with observation_mode='same' they must be equal; use observation_mode='different' "
                f"where only the bounds differ"
            )


def _check_alike(spaces: Sequence[Space], single: Space) -> None:
    for index, space in enumerate(spaces):
        if space is not single and not is_space_dtype_shape_equiv(space, single):
            raise SpacesDifferError(
                f"the observation space of sub-environment {index} is {space}, which has not the shape and dtype of "
                f"{single}: no observation_mode can batch the two"
            )


def _check_action_spaces(spaces: Sequence[Space]) -> None:
    for index, space in enumerate(spaces):
        if space is not spaces[0] and space != spaces[0]:
            raise SpacesDifferError(
                f"the action space of sub-environment {index} is {space}, that of sub-environment 0 is {spaces[0]}: "
                f"they must be equal"
            )
