"""Bit-equality and the first difference."""

import math
import struct

import numpy as np
import pytest

from joblib_envs.equality import Difference, Verdict, bit_equal, first_difference

OTHER_NAN = struct.unpack("d", struct.pack("Q", 0x7FF8000000000001))[0]


class Plain:
    def __init__(self, value):
        self.value = value


class Uncomparable:
    __slots__ = ()

    def __eq__(self, other):
        raise RuntimeError("never")

    __hash__ = None


@pytest.mark.parametrize(
    "make",
    [
        lambda: 1,
        lambda: True,
        lambda: math.nan,
        lambda: -0.0,
        lambda: "text",
        lambda: None,
        lambda: np.float32(0.1),
        lambda: np.array([1.0, math.nan, -0.0]),
        lambda: np.array([], dtype=np.int8),
        lambda: np.array([{"a": np.zeros(2)}, None, [math.nan]], dtype=object),
        lambda: {"a": (1, [2.0, {"b": np.arange(3)}])},
        lambda: np.random.default_rng(3),
        lambda: Plain([1, Plain(np.zeros(2))]),
        lambda: {1, 2},
        lambda: np.datetime64("2020-01-01"),
    ],
)
def test_equal_values_are_equal(make):
    assert bit_equal(make(), make())


@pytest.mark.parametrize(
    ("wanted", "got", "path"),
    [
        (1, 2, "value"),
        (1, 1.0, "value"),
        (True, 1, "value"),
        (0.0, -0.0, "value"),
        (math.nan, OTHER_NAN, "value"),
        (1.0, 1.0 + 1e-16 * 3, "value"),
        (np.float32(1), np.float64(1), "value"),
        (np.float32(1), 1.0, "value"),
        ([1], (1,), "value"),
        ([1, 2], [1], "value"),
        ([1, 2], [1, 3], "value[1]"),
        ({"a": 1}, {"b": 1}, "value"),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, "value['a']['b'][1]"),
        (np.zeros(2), np.zeros(3), "value"),
        (np.zeros(2), np.zeros(2, np.float32), "value"),
        (np.zeros((2, 2)), np.array([[0.0, 0.0], [-0.0, 0.0]]), "value[1, 0]"),
        (np.array([None, [1]], dtype=object), np.array([None, [2]], dtype=object), "value[1][0]"),
        (np.array([1], dtype=object), np.array([1.0], dtype=object), "value[0]"),
        (Plain(1), Plain(2), "value.__dict__['value']"),
        (np.random.default_rng(1), np.random.default_rng(2), "value state['state']['state']"),
        ("a", "b", "value"),
        (np.float64(0.0), np.float64(-0.0), "value"),
    ],
)
def test_the_first_difference_is_found_and_named(wanted, got, path):
    difference = first_difference(wanted, got)

    assert difference is not None
    assert difference.path == path
    assert not bit_equal(wanted, got)


def test_arrays_of_other_strides_are_equal():
    assert bit_equal(np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)))
    assert bit_equal(np.arange(3), np.arange(6)[::2] // 2)


def test_values_that_contain_themselves_are_compared_once():
    first, second, third = [1], [1], [2]
    for each in (first, second, third):
        each.append(each)

    assert first_difference(first, second) is None
    assert first_difference(first, third).path == "value[0]"


def test_a_comparison_that_raises_is_a_difference():
    difference = first_difference(Uncomparable(), Uncomparable())

    assert "comparing raised RuntimeError('never')" in difference.got


def test_a_difference_reads_as_a_sentence():
    difference = first_difference({"speed": np.array([1, 2])}, {"speed": np.array([1, 3])}, "infos")

    assert difference == Difference("infos['speed'][1]", "np.int64(2)", "np.int64(3)")
    assert str(difference) == "infos['speed'][1]: wanted np.int64(2), got np.int64(3)"


def test_there_is_one_vocabulary_of_verdicts():
    assert [str(verdict) for verdict in Verdict] == [
        "correct",
        "wrong",
        "raises",
        "refused",
        "hangs",
        "not_reproducible",
        "unavailable",
        "incomplete",
    ]
