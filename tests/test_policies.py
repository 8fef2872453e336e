"""Policies: the driver that asks them, their states, and the random one."""

import copy
import pickle

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from odd_policies import InPlace, Remembering, lean

from joblib_envs import ArgumentError, ArgumentTypeError, Policy, PolicyError, RandomPolicy, RecurrentPolicy
from joblib_envs.arguments import ActionCheck
from joblib_envs.envs import SpaceKind, make_space
from joblib_envs.equality import first_difference
from joblib_envs.policies import PolicyDriver, starting_memory

TWO = spaces.Discrete(2)


def driver_of(policy, num_envs=2, mode=AutoresetMode.SAME_STEP, pending=None, state=None, space=TWO):
    check = ActionCheck(batch_space(space, num_envs), space, num_envs)
    return PolicyDriver(policy, check, starting_memory(policy, num_envs, state), mode, pending)


class Counter:
    """Recurrent: its state is how often it was asked in the episode, from 10 on."""

    def initial_state(self, num_envs):
        return np.full(num_envs, 10)

    def __call__(self, observations, state):
        return np.zeros(len(observations), np.int64), state + 1


def flags(*values):
    return np.array(values, dtype=bool)


def test_functions_are_policies_and_what_has_initial_state_is_recurrent():
    assert isinstance(lean, Policy)
    assert not isinstance(lean, RecurrentPolicy)
    assert isinstance(Remembering(), RecurrentPolicy)
    assert isinstance(RandomPolicy(TWO, 0), RecurrentPolicy)


def test_with_same_step_the_state_starts_anew_right_after_an_end():
    driver = driver_of(Counter())

    driver(np.zeros(2))
    driver.after_step(flags(True, False), flags(False, False))
    first = driver.state.tolist()
    driver(np.zeros(2))
    driver.after_step(flags(False, False), flags(False, True))

    assert first == [10, 11]
    assert driver.state.tolist() == [11, 10]


def test_with_next_step_the_state_starts_anew_after_the_step_that_resets():
    driver = driver_of(Counter(), mode=AutoresetMode.NEXT_STEP, pending=[False, True])
    states = []

    for ended in (flags(True, False), flags(False, False), flags(False, False)):
        driver(np.zeros(2))
        driver.after_step(ended, flags(False, False))
        states.append(driver.state.tolist())

    assert states == [[11, 10], [10, 11], [11, 12]]


def test_a_state_that_spans_episodes_goes_on():
    policy = Counter()
    policy.state_spans_episodes = True
    driver = driver_of(policy)

    driver(np.zeros(2))
    driver.after_step(flags(True, True), flags(False, False))

    assert driver.state.tolist() == [11, 11]


def test_a_policy_that_changes_its_state_in_place_doesnt_reach_what_it_starts_from():
    given = Remembering().initial_state(2)
    driver = driver_of(InPlace(), state=given)

    for _ in range(3):
        driver(np.ones((2, 1)))
        driver.after_step(flags(True, False), flags(False, False))

    assert first_difference(Remembering().initial_state(2), given) is None
    assert driver.state["sum"].tolist() == [[0.5], [3.5]]
    assert driver.state["steps"][0].tolist() == [0, 3]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (np.zeros(3, np.int64), "actions have shape"),
        (0, "must hold 2 actions"),
        (None, "must hold 2 actions"),
        ([0], "got 1 actions for 2"),
    ],
    ids=["too many", "one action", "nothing", "too few"],
)
def test_what_is_no_batch_of_actions_is_told(answer, says):
    with pytest.raises(PolicyError, match=says):
        driver_of(lambda _: answer)(np.zeros(2))


def test_one_array_is_no_batch_where_actions_have_no_fixed_shape():
    with pytest.raises(PolicyError, match="must hold 2 actions"):
        driver_of(lambda _: np.array("a"), space=spaces.Text(3))(np.zeros(2))


def test_actions_are_copies():
    answer = np.zeros(2, np.int64)
    driver = driver_of(lambda _: answer)

    driver(np.zeros(2))[...] = 1

    assert answer.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (np.zeros(2, np.int64), "must return \\(actions, state\\)"),
        ((np.zeros(2, np.int64), np.zeros(3)), "array of shape \\(3,\\)"),
        ((np.zeros(2, np.int64), "warm"), "holds str"),
        ((np.zeros(2, np.int64), np.zeros((2, 2))), "another form"),
        ((np.zeros(2, np.int64), [np.zeros(2)]), "another form"),
    ],
    ids=["no state", "too many rows", "no array", "other shape", "other tree"],
)
def test_what_is_no_next_state_is_told(answer, says):
    class Policy(Counter):
        def __call__(self, observations, state):
            return answer

    with pytest.raises(PolicyError, match=says):
        driver_of(Policy())(np.zeros(2))


def test_a_state_for_a_policy_without_one_is_refused():
    with pytest.raises(ArgumentError, match="no method initial_state"):
        starting_memory(lean, 2, np.zeros(2))


@pytest.mark.parametrize(
    "state", [np.zeros(3), np.zeros((2, 1)), {"a": np.zeros(2)}, [1, 2]], ids=["rows", "shape", "tree", "list"]
)
def test_a_state_of_another_form_is_refused(state):
    with pytest.raises(ArgumentError):
        starting_memory(Counter(), 2, state)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(ArgumentTypeError, match="can't be called"):
        starting_memory("left", 2)


def draws(policy, num_envs, count, state=None):
    """Return actions (count, num_envs) and the state after them."""
    state = policy.initial_state(num_envs) if state is None else state
    drawn = []
    for _ in range(count):
        actions, state = policy(None, state)
        drawn.append(list(actions))
    return drawn, state


@pytest.mark.parametrize("kind", list(SpaceKind))
def test_random_actions_are_in_the_space_and_of_its_dtype(kind):
    space = make_space(kind)
    policy = RandomPolicy(space, seed=3)

    drawn, _ = draws(policy, 3, 70)

    assert all(action in space for step in drawn for action in step)
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Discrete):
        assert {action.dtype for step in drawn for action in step} == {space.dtype}
    assert first_difference(drawn[0], drawn[1]) is not None


@pytest.mark.parametrize("kind", [SpaceKind.DISCRETE, SpaceKind.BOX_FLOAT32, SpaceKind.DICT])
def test_random_actions_depend_on_seed_index_and_number_alone(kind):
    space = make_space(kind)
    wanted, _ = draws(RandomPolicy(space, seed=3), 5, 150)
    policy = RandomPolicy(space, seed=3)

    # Some rows alone, the state cut and joined, two batches in turn, copies.
    whole = policy.initial_state(5)
    first, two = draws(policy, 5, 30, whole[1:3].copy())
    second, other = draws(pickle.loads(pickle.dumps(policy)), 5, 130, whole[3:].copy())
    third, _ = draws(copy.deepcopy(policy), 5, 20, np.concatenate([two, other]))

    assert first_difference([step[1:3] for step in wanted[:30]], first) is None
    assert first_difference([step[3:] for step in wanted[:130]], second) is None
    assert first_difference([step[1:3] for step in wanted[30:50]], [step[:2] for step in third]) is None
    assert first_difference([step[3:] for step in wanted[130:150]], [step[2:] for step in third]) is None


def test_other_seeds_and_other_rows_give_other_actions():
    policies = [RandomPolicy(spaces.Discrete(1000), seed) for seed in (0, 1)]

    one, other = (np.array(draws(policy, 3, 100)[0]) for policy in policies)

    streams = np.concatenate([one.T, other.T])
    agreement = [(a == b).mean() for i, a in enumerate(streams) for b in streams[:i]]
    assert max(agreement) < 0.05


def test_random_actions_are_uniform():
    policy = RandomPolicy(spaces.MultiDiscrete([4, 3], start=[2, 0]), seed=0)

    drawn = np.array(draws(policy, 20, 600)[0]).reshape(-1, 2)

    assert np.bincount(drawn[:, 0]).tolist()[:2] == [0, 0]
    assert np.abs(np.bincount(drawn[:, 0])[2:] / 12_000 - 1 / 4).max() < 0.02
    assert np.abs(np.bincount(drawn[:, 1]) / 12_000 - 1 / 3).max() < 0.02
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.03


def test_random_actions_of_a_box_fill_it():
    space = spaces.Box(np.array([-3.0, 1.0], np.float32), np.array([5.0, 1.5], np.float32))

    drawn = np.array(draws(RandomPolicy(space, seed=0), 10, 400)[0]).reshape(-1, 2)

    assert np.abs(drawn.mean(axis=0) - [1.0, 1.25]).max() < 0.15
    assert (drawn.min(axis=0) < [-2.9, 1.01]).all()
    assert (drawn.max(axis=0) > [4.9, 1.49]).all()


def test_a_state_that_was_given_before_gives_the_same_actions_again():
    policy = RandomPolicy(spaces.Discrete(1000), seed=0)
    state = policy.initial_state(2)

    first, following = policy(None, state)
    second, _ = policy(None, following)
    again, _ = policy(None, state)

    assert again.tolist() == first.tolist()
    assert second.tolist() != first.tolist()


@pytest.mark.parametrize("seed", [-1, 1.5, None, True])
def test_a_seed_that_is_no_whole_number_is_refused(seed):
    with pytest.raises(ArgumentError, match="whole number from 0 on"):
        RandomPolicy(TWO, seed)


def test_a_space_is_wanted():
    with pytest.raises(ArgumentTypeError, match="must be a space"):
        RandomPolicy(2, 0)
