"""One row of arrays and objects for each sub-environment."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from gymnasium.vector.utils import concatenate, create_empty_array

from joblib_envs.envs import SpaceKind, make_space
from joblib_envs.equality import first_difference
from joblib_envs.rows import Rows, leaves_of

BOX = Box(-10, 10, (2,), np.float32)


def rows_of(space, num_rows=2):
    return Rows.allocate(leaves_of(space), num_rows)


def test_leaves_are_found_in_the_spaces_order_with_their_paths():
    space = Dict(b=Box(0, 1, (1,)), a=Tuple((Discrete(2), Text(3), Dict(c=Discrete(3)))))

    leaves = leaves_of(space)

    assert [leaf.path for leaf in leaves] == [("b",), ("a", 0), ("a", 1), ("a", 2, "c")]
    assert [leaf.is_array for leaf in leaves] == [True, True, False, True]


@pytest.mark.parametrize("kind", list(SpaceKind))
@pytest.mark.parametrize("copied", [True, False])
def test_the_batch_is_what_gymnasium_concatenates(kind, copied):
    space = make_space(kind)
    space.seed(2)
    observations = [space.sample() for _ in range(3)]
    rows = rows_of(space, 3)
    for row, observation in enumerate(observations):
        rows.write_observation(row, observation)

    got = rows.batch(space, copied=copied)

    wanted = concatenate(space, observations, create_empty_array(space, n=3))
    assert first_difference(wanted, got, "observations") is None


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i2", "<f4", "f2", "?", "u1", "i8", np.longdouble])
@pytest.mark.parametrize(
    "given",
    [
        lambda dtype: np.array([1, 0, 1], dtype),
        lambda dtype: np.array([1, 0, 1], np.dtype(dtype).newbyteorder()),
        lambda dtype: [np.array(value, dtype) for value in (1, 0, 1)],
        lambda dtype: np.array([[1, 5], [0, 5], [1, 5]], dtype)[:, 0],
        lambda dtype: np.ma.masked_array(np.array([1, 0, 1], dtype), [False, False, False]),
    ],
    ids=["array", "other byte order", "list", "strided", "masked"],
)
def test_vectors_of_any_dtype_and_form_are_taken(dtype, given):
    space = Box(0, 1, (3,), np.dtype(dtype))
    rows = rows_of(space, 1)

    rows.write_observation(0, given(dtype))

    wanted = np.array([[1, 0, 1]], dtype)
    assert first_difference(wanted, rows.batch(space, copied=True)) is None


def test_text_in_bytes_is_no_vector_of_numbers():
    with pytest.raises((ValueError, TypeError)):
        rows_of(Box(0, 255, (3,), np.uint8), 1).write_observation(0, b"abc")


@pytest.mark.parametrize("kind", list(SpaceKind))
def test_a_cleared_row_is_what_gymnasium_makes_empty(kind):
    space = make_space(kind)
    space.seed(2)
    rows = rows_of(space, 2)
    fresh = rows_of(space, 2).batch(space, copied=True)
    for row in range(2):
        rows.write_observation(row, space.sample())
        rows.rewards[row], rows.terminations[row], rows.truncations[row] = 1.0, True, True

    rows.clear(0)
    rows.clear(1)

    assert first_difference(fresh, rows.batch(space, copied=True)) is None
    assert not rows.rewards.any()
    assert not rows.terminations.any()
    assert not rows.truncations.any()


@pytest.mark.parametrize(
    ("space", "observation", "wanted"),
    [
        (BOX, np.array([1, 2], np.float64), [1.0, 2.0]),
        (BOX, [1.5, 2], [1.5, 2.0]),
        (BOX, np.array([[1, 2], [3, 4]], np.float32)[:, 0], [1.0, 3.0]),
        (Discrete(5), 3, 3),
        (Discrete(5), np.array(3, np.uint8), 3),
        (Box(0, 9, (), np.int64), np.int32(4), 4),
    ],
)
def test_observations_of_another_kind_are_stored_where_no_value_is_lost(space, observation, wanted):
    rows = rows_of(space)

    rows.write_observation(1, observation)

    assert rows.observations[0][1].tolist() == wanted
    assert rows.observations[0].dtype == space.dtype


@pytest.mark.parametrize(
    ("space", "observation", "kind"),
    [
        (BOX, np.zeros(3, np.float32), ValueError),
        (BOX, np.zeros((2, 1), np.float32), ValueError),
        (BOX, np.float32(0), ValueError),
        (Box(0, 9, (2,), np.int64), np.array([0.5, 1.0]), TypeError),
        (BOX, np.array([1j, 2j]), TypeError),
    ],
)
def test_observations_that_do_not_fit_are_refused(space, observation, kind):
    with pytest.raises(kind, match="an observation has"):
        rows_of(space).write_observation(0, observation)


def test_the_refusal_names_the_place_in_a_nested_space():
    rows = rows_of(Dict(a=Tuple((BOX,))))

    with pytest.raises(ValueError, match="at a/0"):
        rows.write_observation(0, {"a": (np.zeros(3, np.float32),)})


def test_a_copy_belongs_to_the_caller_and_a_view_does_not():
    rows = rows_of(BOX)
    view, copied = rows.batch(BOX, copied=False), rows.batch(BOX, copied=True)

    rows.write_observation(0, np.ones(2, np.float32))

    assert view[0].tolist() == [1.0, 1.0]
    assert copied[0].tolist() == [0.0, 0.0]


def test_objects_are_snapshots():
    space = gymnasium.spaces.Sequence(BOX)
    rows = rows_of(space)
    part = np.ones(2, np.float32)

    rows.write_observation(0, (part,))
    part[:] = 9

    assert rows.batch(space, copied=True)[0][0].tolist() == [1.0, 1.0]


def test_a_part_shares_its_arrays_with_the_whole():
    rows = rows_of(BOX, 4)
    part = rows.part(1, 3)

    part.write_observation(0, np.ones(2, np.float32))
    part.rewards[1] = 5.0

    assert len(part) == 2
    assert rows.observations[0][:, 0].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert rows.rewards.tolist() == [0.0, 0.0, 5.0, 0.0]


def test_chosen_rows_are_taken_and_the_others_stay():
    space = Dict(a=BOX, t=Text(3))
    source, target = rows_of(space, 3), rows_of(space, 4)
    for row in range(3):
        source.write_observation(row, {"a": np.full(2, row + 1, np.float32), "t": str(row)})
        source.rewards[row] = row + 1
        source.truncations[row] = True

    target.take(1, source, [0, 2])

    assert target.observations[0][:, 0].tolist() == [0.0, 1.0, 0.0, 3.0]
    assert target.rewards.tolist() == [0.0, 1.0, 0.0, 3.0]
    assert target.truncations.tolist() == [False, True, False, True]
    assert target.objects[0][1::2] == ["0", "2"]
