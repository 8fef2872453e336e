"""Programs: lists of operations that one interpreter runs on two vector environments."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from gymnasium.vector.utils import concatenate, create_empty_array

from joblib_envs.conformance.workloads import Workload

__all__ = [
    "Call",
    "GetAttr",
    "MaskedReset",
    "Operation",
    "Render",
    "Reset",
    "SetAttr",
    "Step",
    "batch_actions",
    "random_program",
]

Seed = int | Sequence[int | None] | None


class Operation(Protocol):
    """One call on a vector environment."""

    def arguments(self) -> dict[str, Any]:
        """Return new copies of what is passed, by name."""

    def perform(self, envs: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        """Make the call and return its results by field."""


@dataclass(frozen=True)
class Reset:
    """Reset all sub-environments; ``seed`` is an int, a sequence of ints and Nones, or None."""

    seed: Seed = None
    options: Mapping[str, Any] | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the seed (a list for a sequence) and the options."""
        seed = list(self.seed) if isinstance(self.seed, Sequence) else self.seed
        return {"seed": seed, "options": None if self.options is None else copy.deepcopy(dict(self.options))}

    def perform(self, envs: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return observations and infos."""
        return dict(zip(("observations", "infos"), envs.reset(**arguments), strict=True))

    @property
    def fully_seeded(self) -> bool:
        """Whether every sub-environment gets a seed."""
        if isinstance(self.seed, Sequence):
            return all(seed is not None for seed in self.seed)
        return self.seed is not None


@dataclass(frozen=True)
class MaskedReset:
    """Reset the sub-environments where ``mask`` is True and leave the others as they are."""

    mask: Sequence[bool]
    seed: Seed = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Return the seed, and the options with the mask among them."""
        arguments = Reset(self.seed, self.options).arguments()
        arguments["options"]["reset_mask"] = np.array(self.mask, dtype=np.bool_)
        return arguments

    def perform(self, envs: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return observations and infos."""
        return Reset().perform(envs, arguments)


@dataclass(frozen=True, eq=False)
class Step:
    """Step all with ``actions``, which are passed as they are: a batch, or a list."""

    actions: Any

    def arguments(self) -> dict[str, Any]:
        """Return the actions."""
        return {"actions": copy.deepcopy(self.actions)}

    def perform(self, envs: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return observations, rewards, terminations, truncations and infos."""
        fields = ("observations", "rewards", "terminations", "truncations", "infos")
        return dict(zip(fields, envs.step(arguments["actions"]), strict=True))


@dataclass(frozen=True)
class SetAttr:
    """Set an attribute: one value for all, or a list with one for each."""

    name: str
    values: Any

    def arguments(self) -> dict[str, Any]:
        """Return the values."""
        return {"values": copy.deepcopy(self.values)}

    def perform(self, envs: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the attribute as it can be read afterwards."""
        envs.set_attr(self.name, **arguments)
        return GetAttr(self.name).perform(envs, {})


@dataclass(frozen=True)
class GetAttr:
    """Read an attribute of all."""

    name: str

    def arguments(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def perform(self, envs: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the values."""
        return {f"attribute {self.name}": envs.get_attr(self.name, **arguments)}


@dataclass(frozen=True)
class Call:
    """Call a method of all."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments by position and by name."""
        return {"args": copy.deepcopy(self.args), "kwargs": copy.deepcopy(dict(self.kwargs))}

    def perform(self, envs: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the results."""
        return {f"call {self.name}": envs.call(self.name, *arguments["args"], **arguments["kwargs"])}


@dataclass(frozen=True)
class Render:
    """Render all."""

    def arguments(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def perform(self, envs: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the frames."""
        return {"frames": envs.render(**arguments)}


def random_program(
    rng: np.random.Generator, workload: Workload, action_space: Space[Any], num_operations: int = 16
) -> list[Operation]:
    """Draw a program; it begins with a reset that seeds every sub-environment.

    Args:
        rng: Where the draws come from; equal states give equal programs.
        workload: What may be set, called and rendered.
        action_space: The space of one sub-environment's actions; it is not changed.
        num_operations: The length of the program.
    """
    program: list[Operation] = [Reset(int(rng.integers(3)), _random_options(rng))]
    source = copy.deepcopy(action_space)
    source.seed(int(rng.integers(2**31)))
    while len(program) < num_operations:
        draw = rng.random()
        if draw < 0.65:
            program.append(Step(_random_actions(rng, source, workload.num_envs)))
        elif draw < 0.77:
            mask = rng.random(workload.num_envs) < 0.5
            mask[rng.integers(workload.num_envs)] = True
            seed = _random_seed(rng, workload.num_envs)
            program.append(MaskedReset(tuple(mask.tolist()), seed, _random_options(rng) or {}))
        elif draw < 0.83:
            program.append(Reset(_random_seed(rng, workload.num_envs), _random_options(rng)))
        else:
            program.append(_random_access(rng, workload))
    return program


def batch_actions(action_space: Space[Any], actions: Sequence[Any]) -> Any:
    """Put one action for each sub-environment into one batch of Gymnasium's form."""
    out: Any = create_empty_array(action_space, len(actions))
    return concatenate(action_space, actions, out)


def _random_actions(rng: np.random.Generator, source: Space[Any], num_envs: int) -> Any:
    actions = [source.sample() for _ in range(num_envs)]
    draw = rng.random()
    if draw < 0.2 and isinstance(source, Discrete):
        return [int(action) for action in actions]
    if draw < 0.2 and isinstance(source, Box | MultiDiscrete | MultiBinary):
        return actions
    batch = batch_actions(source, actions)
    # Nothing in the contract casts an action: a policy's float64 arrives as float64.
    wide = draw < 0.4 and isinstance(source, Box) and source.dtype == np.float32
    return batch.astype(np.float64) if wide else batch


def _random_seed(rng: np.random.Generator, num_envs: int) -> Seed:
    draw = rng.random()
    if draw < 0.5:
        return None
    if draw < 0.75:
        return int(rng.integers(3))
    return tuple(None if rng.random() < 0.3 else int(rng.integers(2**31)) for _ in range(num_envs))


def _random_options(rng: np.random.Generator) -> dict[str, Any] | None:
    draw = rng.random()
    if draw < 0.6:
        return None
    return {} if draw < 0.7 else {"level": int(rng.integers(10)), "name": "hard"}


def _random_access(rng: np.random.Generator, workload: Workload) -> Operation:
    choices: list[Operation] = [GetAttr("np_random"), GetAttr("np_random_seed")]
    choices += [Call(name, args, kwargs) for name, args, kwargs in workload.calls]
    if workload.renders:
        choices.append(Render())
    for name in workload.attributes:
        value = float(rng.integers(100)) / 8
        values = [value + env_index for env_index in range(workload.num_envs)]
        choices += [SetAttr(name, value), SetAttr(name, values), GetAttr(name)]
    return choices[int(rng.integers(len(choices)))]
