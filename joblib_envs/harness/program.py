"""The calls that every contender is judged by: resets, masked resets, steps, attributes.

The order puts what a verdict must cover first, so that a slow contender can stop early.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from joblib_envs.harness.contenders import VectorLike

__all__ = ["Operation", "make_program"]

ATTRIBUTE = "joblib_envs_mark"
"""A name that no environment has; setting and reading it back shows whether attributes stay."""


@dataclass(frozen=True)
class Operation:
    """One call, and what it tells.

    Attributes:
        label: Its name for a reader, such as ``"step 3"``.
        kind: ``reset``, ``step``, ``set_attr`` or ``get_attr``.
        argument: The seed and mask, the actions, or the values.
        required: Whether a verdict without it is ``incomplete``.
        step: Calls of ``step`` up to this one.
    """

    label: str
    kind: str
    argument: Any
    required: bool
    step: int

    def apply(self, envs: VectorLike) -> dict[str, Any]:
        """Make the call and return what it gave, by field."""
        argument = deepcopy(self.argument)
        if self.kind == "reset":
            seed, mask = argument
            options = None if mask is None else {"reset_mask": mask}
            return dict(zip(("observations", "infos"), envs.reset(seed=seed, options=options), strict=True))
        if self.kind == "step":
            fields = ("observations", "rewards", "terminations", "truncations", "infos")
            return dict(zip(fields, envs.step(argument), strict=True))
        if self.kind == "set_attr":
            envs.set_attr(ATTRIBUTE, argument)
            return {}
        return {"get_attr": tuple(envs.get_attr(ATTRIBUTE))}


def make_program(action_space: gymnasium.Space[Any], num_envs: int, seed: int, *, short: bool) -> list[Operation]:
    """Write the program for one batch; equal arguments give equal programs.

    Two episode ends per sub-environment are forced, by a masked and by a full reset
    without seed, however long the episodes are.

    Args:
        action_space: The batch's; its random stream is not used up.
        num_envs: Number of sub-environments.
        seed: Seed of the first reset and of the actions.
        short: Make few steps, for slow environments.
    """
    space = deepcopy(action_space)
    space.seed(seed)
    even = np.arange(num_envs) % 2 == 0
    operations: list[Operation] = []
    count = 0

    def add(kind: str, argument: Any, label: str, *, required: bool = True) -> None:
        operations.append(Operation(label, kind, argument, required, count))

    def steps(number: int, *, required: bool = True) -> None:
        nonlocal count
        for _ in range(number):
            count += 1
            add("step", space.sample(), f"step {count}", required=required)

    few = 1 if short else 3
    add("reset", (seed, None), "reset(seed)")
    steps(3 if short else 24)
    add("set_attr", list(range(num_envs)), "set_attr")
    steps(few)
    add("get_attr", None, "get_attr")
    for mask in (even, ~even):
        if mask.any():
            add("reset", (None, mask), "masked reset without seed")
            steps(few)
    add("reset", (None, None), "reset without seed")
    steps(few)
    add("get_attr", None, "get_attr after resets")
    add("reset", ([seed + 7 * index for index in range(num_envs)], None), "reset(list of seeds)")
    steps(few)
    steps(0 if short else 64, required=False)
    return operations
