"""Arrays in a state: views stay views, names of a simulator's arrays stay such."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from voyages import difference_on_the_way, travelled

from joblib_envs.envs import BufferReusingEnv, CountingEnv
from joblib_envs.state.pickling import CaptureOptions, captured, restored

CARTPOLE = partial(gymnasium.make, "CartPole-v1")
PENDULUM = partial(gymnasium.make, "Pendulum-v1")
OWN_HOOKS = CaptureOptions(own_hooks=True)

VIEWS = {
    "a slice": lambda base: base[1:],
    "a column": lambda base: base[:, 1],
    "backwards": lambda base: base[::-1, ::-2],
    "transposed": lambda base: base.T,
    "other bytes": lambda base: base.view(np.uint8),
    "one element": lambda base: base[1, 1:2].reshape(()),
    "another shape": lambda base: base.reshape(2, -1),
    "a view of a view": lambda base: base[1:][:, 2:],
    "all of it": lambda base: base[:],
}
BASES = {
    "C order": lambda: np.arange(24.0).reshape(4, 6),
    "Fortran order": lambda: np.asfortranarray(np.arange(24.0).reshape(4, 6)),
}


def generations(value, number=3):
    for _ in range(number):
        value = travelled(value)
    return value


# Views


COPIED_BY_NUMPY = [("other bytes", "Fortran order"), ("another shape", "Fortran order")]


@pytest.mark.parametrize(
    ("kind", "order"), [(kind, order) for kind in VIEWS for order in BASES if (kind, order) not in COPIED_BY_NUMPY]
)
def test_a_view_is_still_a_view_after_several_generations(kind, order):
    base = _owner_of(BASES[order]())
    view = VIEWS[kind](base)
    expected = np.array(view)

    base_there, view_there = generations((base, view))

    assert np.shares_memory(base_there, view_there)
    assert np.array_equal(view_there, expected)
    assert (view_there.dtype, view_there.shape, view_there.strides) == (view.dtype, view.shape, view.strides)
    base_there[...] += 1
    base[...] += 1
    assert np.array_equal(view_there, VIEWS[kind](base))


def _owner_of(array):
    return array.copy(order="K")  # arange().reshape() is itself a view


def test_two_views_of_one_array_that_nobody_names_still_overlap():
    whole = np.zeros(10)
    pair = whole[:6], whole[4:]
    del whole

    left, right = generations(pair)
    left[4:] = 7

    assert right.tolist() == [7, 7, 0, 0, 0, 0]


def test_a_field_of_a_record_array_is_still_a_view():
    records = np.zeros(3, [("name", np.int32), ("value", np.float64)])

    records, values = generations((records, records["value"]))
    values[1] = 5

    assert records["value"].tolist() == [0, 5, 0]


def test_a_view_stays_read_only_while_its_array_does_not():
    base = np.zeros(4)
    view = base[:]
    view.flags.writeable = False

    base, view = generations((base, view))

    assert base.flags.writeable
    assert not view.flags.writeable


def test_a_writable_view_of_an_array_that_became_read_only_is_taken_too():
    base = np.arange(4.0)
    view = base[1:]
    base.flags.writeable = False

    _, view = generations((base, view))

    assert view.tolist() == [1, 2, 3]
    assert view.flags.writeable


def test_a_broadcast_view_travels():
    base = np.arange(3.0)

    base_there, view = generations((base, np.broadcast_to(base, (5, 3))))

    assert view.tolist() == [[0, 1, 2]] * 5
    assert base_there.tolist() == [0, 1, 2]


def test_a_view_of_a_far_larger_array_travels_alone():
    data_set = np.zeros(1_000_000)

    data, _ = captured(data_set[10:20], CaptureOptions())

    assert len(data) < 1000
    assert restored(data, {}).tolist() == [0] * 10


def test_an_empty_view_travels():
    empty = np.zeros(5)[5:]

    assert generations(empty).shape == (0,)


def test_views_of_arrays_of_objects_are_equal():
    objects = np.array([[1], "two", None], dtype=object)

    assert generations(objects[1:]).tolist() == ["two", None]


def test_an_array_that_two_places_name_is_one_array_there():
    array = np.zeros(3)

    one, other = generations((array, array))

    assert one is other


class ViewingEnv(CountingEnv):
    """Writes its count into an array, and reads it in a view of that."""

    def __init__(self):
        super().__init__(100)
        self.memory = np.zeros((3, 4), np.int64)
        self.window = self.memory[1:, ::-1]

    def step(self, action):
        _, _, terminated, truncated, info = super().step(action)
        self.memory[2, 1] += 10
        return np.array(self.window[1, 2]), float(self.window.sum()), terminated, truncated, info


@pytest.mark.parametrize("make", [ViewingEnv, BufferReusingEnv])
def test_an_environment_that_writes_into_its_views_goes_on(make):
    assert difference_on_the_way(make) is None
