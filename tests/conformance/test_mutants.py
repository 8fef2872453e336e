"""Every planted fault is found, and named; without a fault nothing is."""

from __future__ import annotations

import re

import pytest
from gymnasium.vector import SyncVectorEnv

from joblib_envs.conformance import ConformanceError, check_vector_env, find_faults

from .careful import CarefulVectorEnv
from .mutants import Mutant
from .strict_mutants import MUTANTS

# What joblib-envs promises beyond Gymnasium shows on these; the check on all takes seconds.
SHOWS_STRICT_FAULTS = ["counting", "buffer_reusing", "infos[int_then_float]"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_planted_fault_is_found_and_named(mutant: Mutant) -> None:
    with pytest.raises(ConformanceError) as caught:
        check_vector_env(mutant.cls, strict=mutant.strict, environments=SHOWS_STRICT_FAULTS if mutant.strict else None)

    assert re.search(mutant.field, caught.value.fault.field), str(caught.value)


def test_unmutated_base_has_no_fault() -> None:
    assert find_faults(SyncVectorEnv) == []


def test_unmutated_careful_base_has_no_fault_in_the_strict_check() -> None:
    assert find_faults(CarefulVectorEnv, strict=True) == []
