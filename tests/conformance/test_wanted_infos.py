"""The rule of lossless infos, written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from joblib_envs.conformance import gymnasium_infos, lossless_infos
from joblib_envs.conformance.workloads import LOSSY_INFOS
from joblib_envs.envs import InfoEnv, InfoKind
from joblib_envs.equality import bit_equal


def infos_of(kind: InfoKind) -> list[tuple[int, dict[str, Any]]]:
    return [(variant, InfoEnv(kind, variant).reset(seed=0)[1]) for variant in range(3)]


def objects(*values: Any) -> np.ndarray[Any, Any]:
    array = np.full(len(values), None, dtype=object)
    for index, value in enumerate(values):
        array[index] = value
    return array


@pytest.mark.parametrize("kind", sorted(set(InfoKind) - LOSSY_INFOS))
def test_infos_that_gymnasium_keeps_are_gymnasiums(kind: InfoKind) -> None:
    records = infos_of(kind)

    assert bit_equal(gymnasium_infos(records, 3), lossless_infos(records, 3))


@pytest.mark.parametrize(
    "values",
    [
        (1, 0.5, 1.0),
        (True, 0.5, 1.0),
        (0.5, "1", "2"),
        (0.5, None, 1.0),
        ({"a": 1}, 2, 3),
        (2, {"a": 1}, 3),
        (np.zeros(2), np.zeros(3), np.zeros(2)),
        (np.zeros(2), 1.0, np.zeros(2)),
        (1, 2**70, 3),
        (1.0, 2**53 + 1, 3.0),
        (np.float32(0.5), 0.1, 0.25),
        (np.array(["a"]), np.array(["longer"]), np.array(["b"])),
    ],
    ids=repr,
)
def test_values_that_gymnasium_changes_are_kept_as_objects(values: tuple[Any, ...]) -> None:
    infos = lossless_infos([(index, {"value": value}) for index, value in enumerate(values)], 3)

    assert bit_equal({"value": objects(*values), "_value": np.ones(3, dtype=np.bool_)}, infos)


@pytest.mark.parametrize("values", [(1, 2.0, 3), (np.float64(0.5), np.float32(0.25), 1), (0.5, float("nan"), 1)])
def test_equal_values_of_other_types_stay_in_gymnasiums_array(values: tuple[Any, ...]) -> None:
    records = [(index, {"value": value}) for index, value in enumerate(values)]

    assert bit_equal(gymnasium_infos(records, 3), lossless_infos(records, 3))


def test_the_loss_is_repaired_inside_a_nested_dict() -> None:
    infos = lossless_infos(infos_of(InfoKind.NESTED_MIXED), 3)

    assert infos["outer"]["value"].tolist() == [1, 0.5, 0.5]
    assert [type(value) for value in infos["outer"]["value"]] == [int, float, float]


def test_key_that_is_another_ones_mask_is_left_to_gymnasium() -> None:
    records = [(1, {"x": 4, "_x": True, "speed": 1}), (2, {"x": 5, "speed": 0.5})]

    infos = lossless_infos(records, 3)

    assert infos["_x"].tolist() == [False, True, True]
    assert infos["speed"].tolist() == [None, 1, 0.5]
