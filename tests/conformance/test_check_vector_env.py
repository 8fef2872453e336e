"""What the public checker promises its users."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import Env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from joblib_envs import BatchEnv
from joblib_envs.conformance import (
    ConformanceError,
    FaultFoundError,
    MaskedReset,
    Reset,
    Session,
    Step,
    Workload,
    check_vector_env,
    find_faults,
    random_program,
    standard_workloads,
)
from joblib_envs.envs import BufferReusingEnv, CountingEnv, GlobalRandomEnv

from . import mutants

COUNTING = Workload("counting", (partial(CountingEnv, 2),) * 3)
FEW = ["wrapped_counting", "buffer_reusing", "space[dict]", "echo[tuple]", "infos[some_empty]", "CartPole-v1"]


def test_gymnasiums_processes_pass_the_default_check() -> None:
    assert find_faults(AsyncVectorEnv, programs=1, environments=FEW) == []


def test_strict_check_finds_that_sync_takes_the_mask_from_the_callers_options() -> None:
    faults = find_faults(SyncVectorEnv, environments=["counting"], strict=True)

    assert any("the caller's argument['options']" in fault.field for fault in faults)


def test_sync_is_found_to_overwrite_the_final_observation_of_a_reused_buffer() -> None:
    reusing = Workload("reusing", (BufferReusingEnv,) * 3)

    faults = find_faults(SyncVectorEnv, environments=[reusing])

    assert [fault.autoreset_mode for fault in faults] == [AutoresetMode.SAME_STEP]
    assert faults[0].field.startswith("infos['final_obs']")


def test_lossless_infos_can_be_asked_for_alone() -> None:
    lossy = ["infos[int_then_float]"]

    assert find_faults(SyncVectorEnv, environments=lossy) == []
    assert find_faults(SyncVectorEnv, environments=lossy, infos="lossless")[0].field.startswith("infos")


def test_error_names_environment_mode_operations_and_difference() -> None:
    with pytest.raises(ConformanceError) as caught:
        check_vector_env(mutants.RewardsAreFloat32, environments=["counting"])

    message = str(caught.value)
    assert message.startswith("program on 'counting', AutoresetMode.NEXT_STEP: rewards differ\n")
    assert "wanted: dtype float64\n" in message
    assert "got:    dtype float32\n" in message
    assert "1. Reset(seed=" in message
    assert message.splitlines()[-1].strip().startswith(f"{len(caught.value.fault.operations)}. Step(actions=")


def test_error_names_the_first_sub_environment_that_differs() -> None:
    class LastRewardIsOff(mutants.ChangedTransition):
        def spoil(self, observations: Any, rewards: Any, *rest: Any) -> Any:
            return observations, rewards + np.eye(3)[2], *rest

    with pytest.raises(ConformanceError) as caught:
        check_vector_env(LastRewardIsOff, environments=["counting"])

    assert caught.value.fault.env_index == 2


def test_error_survives_a_pickle() -> None:
    with pytest.raises(ConformanceError) as caught:
        check_vector_env(mutants.RewardsAreFloat32, environments=["counting"])

    copied = pickle.loads(pickle.dumps(caught.value))

    assert copied.fault == caught.value.fault


def test_equal_seeds_find_the_same_fault() -> None:
    first, second, other = (
        find_faults(mutants.MaskedOutOnesAreResetToo, environments=["counting"], seed=seed) for seed in (3, 3, 4)
    )

    assert first == second
    assert first != other


def test_what_make_raises_is_a_fault() -> None:
    def make(env_fns: object, *, autoreset_mode: AutoresetMode) -> None:
        raise RuntimeError("out of order")

    faults = find_faults(make, environments=["counting"], autoreset_modes=[AutoresetMode.DISABLED])

    assert {fault.field for fault in faults} == {"construction"}
    assert "out of order" in faults[0].got


def test_own_environments_can_be_checked() -> None:
    irreproducible = Workload("global random", (GlobalRandomEnv,) * 3)

    faults = find_faults(SyncVectorEnv, environments=[irreproducible])

    assert faults[0].environment == "global random"
    assert faults[0].field.startswith("rewards")


@pytest.mark.parametrize("wrong", [{"environments": ["no such"]}, {"num_envs": 2}, {"infos": "some"}])
def test_wrong_argument_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        find_faults(SyncVectorEnv, **wrong)  # type: ignore[arg-type]


def test_program_without_a_first_seed_is_refused() -> None:
    with (
        Session(SyncVectorEnv, COUNTING, AutoresetMode.NEXT_STEP) as session,
        pytest.raises(ValueError, match="begin with"),
    ):
        session.run([Reset(seed=[0, None, 2])])


def test_ended_environments_are_reset_before_the_next_step_where_autoreset_is_disabled() -> None:
    with Session(mutants.RewardsAreFloat32, COUNTING, AutoresetMode.DISABLED) as session:
        session.run([Reset(0)])
        session.judged.spoil = lambda *transition: transition
        session.run([Step([0] * 3)] * 2)
        del session.judged.spoil

        with pytest.raises(FaultFoundError) as caught:
            session.run([Step([0] * 3)])

    assert list(caught.value.fault.operations[-2:]) == [
        repr(MaskedReset((True, True, True))),
        repr(Step([0] * 3)),
    ]


def test_random_programs_are_equal_for_equal_generators() -> None:
    for workload in standard_workloads(3):
        space = workload.env_fns[0]().action_space

        programs = [random_program(np.random.default_rng(1), workload, space) for _ in range(2)]

        assert repr(programs[0]) == repr(programs[1])
        assert len(programs[0]) == 16


def test_random_program_leaves_the_action_space_as_it_was() -> None:
    space = CountingEnv().action_space
    space.seed(1)
    before = space.np_random.bit_generator.state

    random_program(np.random.default_rng(1), COUNTING, space)

    assert space.np_random.bit_generator.state == before


def test_the_projects_own_batch_passes_as_it_is() -> None:
    def make(env_fns: Sequence[Callable[[], Env[Any, Any]]], *, autoreset_mode: AutoresetMode) -> BatchEnv:
        return BatchEnv(env_fns, backend="sequential", autoreset_mode=autoreset_mode)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what a workload does on purpose is nobody's concern
        check_vector_env(make)
        check_vector_env(make, strict=True, programs=1)


def test_the_step_of_the_judged_may_name_its_argument_as_it_likes() -> None:
    class Renamed(SyncVectorEnv[Any, Any]):
        def step(self, chosen: Any) -> Any:  # type: ignore[override]
            return super().step(chosen)

    check_vector_env(Renamed, programs=1, environments=["counting"])
