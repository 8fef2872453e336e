"""Hypothesis strategies for the checker's programs."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
from hypothesis import strategies as st

from joblib_envs.conformance import (
    Call,
    GetAttr,
    MaskedReset,
    Operation,
    Render,
    Reset,
    SetAttr,
    Step,
    Workload,
    batch_actions,
)

seeds = st.integers(0, 2**31 - 1)
options = st.none() | st.fixed_dictionaries({}, optional={"level": st.integers(0, 9), "name": st.just("hard")})


def programs(workload: Workload, action_space: gymnasium.Space[Any]) -> st.SearchStrategy[list[Operation]]:
    """Programs that begin with a reset that seeds every sub-environment."""
    first = st.builds(Reset, full_seeds(workload.num_envs), options)
    rest = st.lists(operations(workload, action_space), min_size=1, max_size=25)
    return st.builds(lambda reset, operations: [reset, *operations], first, rest)


def operations(workload: Workload, action_space: gymnasium.Space[Any]) -> st.SearchStrategy[Operation]:
    steps = seeds.map(lambda seed: Step(sampled_actions(action_space, workload.num_envs, seed)))
    resets = st.builds(Reset, any_seeds(workload.num_envs), options)
    masks = st.lists(st.booleans(), min_size=workload.num_envs, max_size=workload.num_envs).filter(any)
    masked_resets = st.builds(
        MaskedReset, masks.map(tuple), any_seeds(workload.num_envs), options.map(lambda given: given or {})
    )
    # Steps twice, so that episodes end.
    return st.one_of(steps, steps, resets, masked_resets, accesses(workload))


def accesses(workload: Workload) -> st.SearchStrategy[Operation]:
    values = st.floats(-1e6, 1e6)
    one_each = st.lists(values, min_size=workload.num_envs, max_size=workload.num_envs)
    choices: list[st.SearchStrategy[Operation]] = [st.sampled_from([GetAttr("np_random"), GetAttr("np_random_seed")])]
    choices += [st.builds(SetAttr, st.just(name), values | one_each) for name in workload.attributes]
    choices += [st.just(GetAttr(name)) for name in workload.attributes]
    choices += [st.just(Call(*call)) for call in workload.calls]
    if workload.renders:
        choices.append(st.just(Render()))
    return st.one_of(choices)


def full_seeds(num_envs: int) -> st.SearchStrategy[Any]:
    return seeds | st.lists(seeds, min_size=num_envs, max_size=num_envs).map(tuple)


def any_seeds(num_envs: int) -> st.SearchStrategy[Any]:
    some = st.lists(st.none() | seeds, min_size=num_envs, max_size=num_envs).map(tuple)
    return st.none() | seeds | some


def sampled_actions(action_space: gymnasium.Space[Any], num_envs: int, seed: int) -> Any:
    source = copy.deepcopy(action_space)
    source.seed(seed)
    return batch_actions(source, [source.sample() for _ in range(num_envs)])
