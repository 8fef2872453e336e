"""The environments that the checker puts into a batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import NormalizeObservation, OrderEnforcing, TimeLimit

from joblib_envs.envs import (
    BufferReusingEnv,
    CountingEnv,
    EchoEnv,
    EzPickledCountingEnv,
    HandleEnv,
    InfoEnv,
    InfoKind,
    LinearAlgebraEnv,
    SpaceEnv,
    SpaceKind,
    UnpicklableEnv,
    VariableLengthEnv,
)

__all__ = ["Workload", "standard_workloads"]

EnvFn = Callable[[], "gymnasium.Env[Any, Any]"]

# Infos in which SyncVectorEnv loses a value, or raises (gymnasium 1.4.0).
LOSSY_INFOS = frozenset(
    {
        InfoKind.INT_THEN_FLOAT,
        InfoKind.BOOL_THEN_FLOAT,
        InfoKind.FLOAT_THEN_TEXT,
        InfoKind.DICT_THEN_SCALAR,
        InfoKind.NESTED_MIXED,
        InfoKind.UNEQUAL_SHAPES,
        InfoKind.OVERFLOW,
    }
)
# Observation spaces that AsyncVectorEnv refuses with its shared memory, or reads zeros
# from: text and one_of (gymnasium 1.4.0).
NOT_SHAREABLE = frozenset({SpaceKind.SEQUENCE, SpaceKind.GRAPH, SpaceKind.CUSTOM, SpaceKind.TEXT, SpaceKind.ONE_OF})


@dataclass(frozen=True)
class Workload:
    """A batch of environments, and what a program may do to them.

    Attributes:
        name: The name in a report.
        env_fns: One factory for each sub-environment. They pickle with cloudpickle.
        attributes: Names that take a float from ``set_attr``.
        calls: Method name, positional and keyword arguments for ``call``.
        renders: Whether ``render`` gives frames.
        lossy_infos: Whether ``SyncVectorEnv`` would lose or refuse some info.
        plain_modes: The autoreset modes in which Gymnasium's own vector environments are
            right; in the others it is run only by the strict check.
        travels: Whether its state can be captured.
    """

    name: str
    env_fns: tuple[EnvFn, ...]
    attributes: tuple[str, ...] = ()
    calls: tuple[tuple[str, tuple[Any, ...], Mapping[str, Any]], ...] = ()
    renders: bool = False
    lossy_infos: bool = False
    plain_modes: frozenset[AutoresetMode] = field(default_factory=lambda: frozenset(AutoresetMode))
    travels: bool = True

    @property
    def num_envs(self) -> int:
        """Number of sub-environments."""
        return len(self.env_fns)


def standard_workloads(num_envs: int) -> list[Workload]:
    """Return the environments that the checker uses, by itself, in its order."""
    return [
        *_counting_workloads(num_envs),
        *_own_workloads(num_envs),
        *_gymnasium_workloads(num_envs),
        *(_echo(kind, num_envs) for kind in SpaceKind),
        *(_space(kind, num_envs) for kind in SpaceKind),
        *(_infos(kind, num_envs) for kind in InfoKind),
    ]


def _wrapped_counting(episode_length: int, start: int) -> gymnasium.Env[Any, Any]:
    env = CountingEnv(episode_length, start, render_mode="rgb_array")
    return TimeLimit(OrderEnforcing(env), max_episode_steps=4)


def _normalized(max_length: int) -> gymnasium.Env[Any, Any]:
    return TimeLimit(NormalizeObservation(VariableLengthEnv(max_length)), max_episode_steps=6)


def _counting_workloads(num_envs: int) -> list[Workload]:
    calls: tuple[tuple[str, tuple[Any, ...], Mapping[str, Any]], ...] = (
        ("count_after", (3,), {}),
        ("count_after", (1,), {"twice": True}),
    )

    def counting(name: str, make: Callable[..., Any], *, renders: bool, travels: bool = True) -> Workload:
        env_fns = tuple(partial(make, 2 + env_index % 4, 10 * env_index) for env_index in range(num_envs))
        return Workload(name, env_fns, ("bonus",), calls, renders=renders, travels=travels)

    return [
        counting("counting", partial(CountingEnv, render_mode="rgb_array"), renders=True),
        counting("wrapped_counting", _wrapped_counting, renders=True),
        counting("ez_pickled_counting", EzPickledCountingEnv, renders=False),
        counting("unpicklable", UnpicklableEnv, renders=False, travels=False),
        counting("handle", HandleEnv, renders=False, travels=False),
    ]


def _own_workloads(num_envs: int) -> list[Workload]:
    # Gymnasium keeps the environment's own object as `final_obs`, and the reset inside
    # the same step overwrites it (gymnasium 1.4.0).
    without_same_step = frozenset(AutoresetMode) - {AutoresetMode.SAME_STEP}
    return [
        Workload(
            "buffer_reusing",
            tuple(partial(BufferReusingEnv, 2 + env_index % 3) for env_index in range(num_envs)),
            plain_modes=without_same_step,
        ),
        Workload("variable_length", (partial(VariableLengthEnv, 5),) * num_envs),
        Workload("normalized_observation", (partial(_normalized, 5),) * num_envs),
        Workload("linear_algebra", (partial(LinearAlgebraEnv, episode_length=3),) * num_envs),
    ]


def _gymnasium_workloads(num_envs: int) -> list[Workload]:
    env_ids = ["CartPole-v1", _newest("Taxi"), "Blackjack-v1", "Pendulum-v1"]
    return [Workload(env_id, (partial(gymnasium.make, env_id, max_episode_steps=4),) * num_envs) for env_id in env_ids]


def _newest(name: str) -> str:
    versions = [re.fullmatch(rf"{name}-v(\d+)", env_id) for env_id in gymnasium.registry]
    return f"{name}-v{max(int(match[1]) for match in versions if match)}"


def _echo(kind: SpaceKind, num_envs: int) -> Workload:
    return Workload(
        f"echo[{kind}]",
        tuple(partial(EchoEnv, kind.value, 2 + env_index % 3) for env_index in range(num_envs)),
        plain_modes=_plain_modes(kind),
    )


def _space(kind: SpaceKind, num_envs: int) -> Workload:
    return Workload(
        f"space[{kind}]",
        tuple(partial(SpaceEnv, kind.value, 2 + env_index % 3) for env_index in range(num_envs)),
        plain_modes=_plain_modes(kind),
    )


def _plain_modes(kind: SpaceKind) -> frozenset[AutoresetMode]:
    return frozenset() if kind in NOT_SHAREABLE else frozenset(AutoresetMode)


def _infos(kind: InfoKind, num_envs: int) -> Workload:
    env_fns = tuple(partial(InfoEnv, kind.value, env_index, 2 + env_index % 3) for env_index in range(num_envs))
    return Workload(f"infos[{kind}]", env_fns, lossy_infos=kind in LOSSY_INFOS)
