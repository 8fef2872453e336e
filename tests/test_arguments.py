"""What a batch is given is checked before anything happens."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from batches import counting_batch, make_batch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, iterate

from joblib_envs import ArgumentError, ArgumentTypeError
from joblib_envs.arguments import (
    ActionCheck,
    check_observation_mode,
    checked_autoreset_mode,
    checked_seeds,
    checked_values,
    split_options,
)
from joblib_envs.envs import SpaceKind, make_space
from joblib_envs.equality import first_difference

PLANE = Box(-1.0, 1.0, (2,), np.float32)


def checked(actions, space, num_envs=2):
    return ActionCheck(batch_space(space, num_envs), space, num_envs)(actions)


@pytest.mark.parametrize(
    ("seed", "wanted"),
    [
        (None, [None, None]),
        (0, [0, 1]),
        (np.int64(7), [7, 8]),
        ([3, None], [3, None]),
        ((0, 0), [0, 0]),
        (np.array([5, 4], dtype=np.uint8), [5, 4]),
        (range(2), [0, 1]),
        (2**40, [2**40, 2**40 + 1]),
    ],
)
def test_seeds_become_one_python_integer_or_none_each(seed, wanted):
    seeds = checked_seeds(seed, 2)

    assert seeds == wanted
    assert all(type(each) in (int, type(None)) for each in seeds)


@pytest.mark.parametrize("seed", [1.0, "12", b"12", [1, 2.0], [True, 1], True, {1: 2}, np.zeros((1, 2)), {1, 2}])
def test_seeds_of_another_type_are_refused(seed):
    with pytest.raises(ArgumentTypeError) as caught:
        checked_seeds(seed, 2)

    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("seed", [[], [1], [1, 2, 3]])
def test_a_list_of_seeds_of_another_length_is_refused(seed):
    with pytest.raises(ArgumentError, match=f"seed has {len(seed)} entries but there are 2"):
        checked_seeds(seed, 2)


def test_options_are_split_from_the_mask_and_stay_as_they_are():
    mask = np.array([True, False])
    options = {"level": 1, "reset_mask": mask}

    env_options, own_mask = split_options(options, 2)

    assert env_options == {"level": 1}
    assert own_mask.tolist() == [True, False]
    assert own_mask is not mask
    assert options == {"level": 1, "reset_mask": mask}


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        ([True, False], ArgumentTypeError),
        (np.array([1, 0]), ArgumentTypeError),
        (None, ArgumentTypeError),
        (np.array([True]), ArgumentError),
        (np.array([[True, False]]), ArgumentError),
        (np.array([False, False]), ArgumentError),
    ],
)
def test_a_mask_that_is_none_is_refused(mask, kind):
    with pytest.raises(kind, match="reset_mask"):
        split_options({"reset_mask": mask}, 2)


def test_options_that_are_no_dictionary_are_refused():
    with pytest.raises(ArgumentTypeError, match="must be a dictionary"):
        split_options(["level"], 2)


def test_refused_arguments_of_a_reset_touch_nobody(backend):
    with counting_batch(backend) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        for wrong in ({"seed": [1]}, {"seed": 1.5}, {"options": {"reset_mask": np.zeros(2, bool)}}, {"options": 3}):
            with pytest.raises(ArgumentError):
                envs.reset(**wrong)
        observations, *_ = envs.step([0, 0])

    assert observations.tolist() == [2, 2]


def test_refused_actions_move_nobody(backend):
    with counting_batch(backend) as envs:
        envs.reset(seed=0)
        for wrong in ([0], [0, 0, 0], np.zeros((2, 1), int), 1, np.int64(1), None):
            with pytest.raises(ArgumentError):
                envs.step(wrong)
        observations, *_ = envs.step([0, 0])

    assert observations.tolist() == [1, 1]


@pytest.mark.parametrize("kind", list(SpaceKind))
@pytest.mark.parametrize("form", [lambda batch, each: batch, lambda batch, each: each], ids=["batch", "list"])
def test_each_sub_environment_gets_the_action_that_gymnasium_would_give_it(kind, form):
    single = make_space(kind)
    space = batch_space(single, 3)
    space.seed(1)
    batch = space.sample()
    wanted = list(iterate(space, batch))

    each = ActionCheck(space, single, 3)(form(batch, wanted))

    assert first_difference(wanted, list(each)) is None


def test_actions_are_not_cast():
    whole = np.array([[1, 0], [0, 1]])

    assert checked(whole, PLANE) is whole


@pytest.mark.parametrize("actions", [np.zeros((2, 2)), [[0, 0], [1, 1]], (np.zeros(2), np.ones(2)), [np.zeros(2)] * 2])
def test_arrays_lists_and_tuples_of_actions_are_taken(actions):
    each = checked(actions, PLANE)

    assert len(each) == 2
    assert all(np.shape(action) == (2,) for action in each)


def test_actions_with_one_axis_too_many_come_with_the_remedy():
    with pytest.raises(ArgumentError, match=r"squeeze\(-1\)"):
        checked(np.zeros((2, 1), int), Discrete(3))


@pytest.mark.parametrize(
    ("actions", "space", "kind"),
    [
        (np.zeros((3, 2)), PLANE, ArgumentError),
        (np.zeros(2), PLANE, ArgumentError),
        ([np.zeros(2), np.zeros(3)], PLANE, ArgumentError),
        ([0, [1]], Discrete(3), ArgumentError),
        (1, Discrete(3), ArgumentTypeError),
        (np.array(1), Discrete(3), ArgumentTypeError),
        ({"a": np.zeros(3, int)}, Dict(a=Discrete(3)), ArgumentError),
        ({"b": np.zeros(2, int)}, Dict(a=Discrete(3)), ArgumentError),
        ([{"a": 1}, {"b": 1}], Dict(a=Discrete(3)), ArgumentError),
        ([{"a": 1}], Dict(a=Discrete(3)), ArgumentError),
        (3, Dict(a=Discrete(3)), ArgumentTypeError),
        ("ab", make_space("text"), ArgumentTypeError),
        (["ab"], make_space("text"), ArgumentError),
    ],
)
def test_actions_of_another_number_or_form_are_refused(actions, space, kind):
    with pytest.raises(kind):
        checked(actions, space)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_an_autoreset_mode_is_given_as_enum_or_value(mode):
    assert checked_autoreset_mode(mode) is checked_autoreset_mode(mode.value) is mode


@pytest.mark.parametrize("mode", ["next_step", None, True, 1])
def test_another_autoreset_mode_is_refused_with_the_allowed_ones(mode):
    with pytest.raises(ArgumentError, match="'NextStep', 'SameStep', 'Disabled'"):
        checked_autoreset_mode(mode)


@pytest.mark.parametrize("mode", ["same", "different", (batch_space(PLANE, 2), PLANE)])
def test_an_observation_mode_is_a_name_or_two_spaces(mode):
    check_observation_mode(mode)


@pytest.mark.parametrize("mode", ["equal", None, (PLANE,), (PLANE, 1)])
def test_another_observation_mode_is_refused(mode):
    with pytest.raises(ArgumentError):
        check_observation_mode(mode)


def test_values_are_a_list_for_each_or_one_for_all():
    assert checked_values([1, 2], 2) == [1, 2]
    assert checked_values((1, 2), 2) == [1, 2]
    assert checked_values("ab", 2) == ["ab", "ab"]
    with pytest.raises(ArgumentError, match="values has 3 entries"):
        checked_values([1, 2, 3], 2)


@pytest.mark.parametrize("observation_mode", ["different", "tuple"])
def test_environments_with_other_bounds_are_batched_where_the_mode_allows(backend, observation_mode):
    narrow, wide = Box(0, 1, (2,), np.float32), Box(-5, 5, (2,), np.float32)
    mode = (batch_space(wide, 2), wide) if observation_mode == "tuple" else observation_mode
    factories = [partial(BoundedEnv, 0.0, 1.0), partial(BoundedEnv, -5.0, 5.0)]
    with make_batch(backend, factories, observation_mode=mode) as envs:
        space, single = envs.observation_space, envs.single_observation_space
        observations, _ = envs.reset(seed=0)

    assert single == (wide if observation_mode == "tuple" else narrow)
    assert space.low[:, 0].tolist() == ([-5.0, -5.0] if observation_mode == "tuple" else [0.0, -5.0])
    assert observations.tolist() == [[1.0, 1.0], [5.0, 5.0]]


class BoundedEnv(gymnasium.Env):
    """Observes its upper bound."""

    def __init__(self, low, high):
        self.observation_space = Box(low, high, (2,), np.float32)
        self.action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.high.copy(), {}
