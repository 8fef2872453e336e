"""States of a batch: taken, put back and branched, on every backend."""

import pickle
import threading
from functools import partial

import gymnasium
import numpy as np
import pytest
from batches import IN_PROCESS, Backend, counting_batch, make_batch
from gymnasium import wrappers
from gymnasium.vector import AutoresetMode

from joblib_envs import (
    ArgumentError,
    ArgumentTypeError,
    BatchEnv,
    ClosedBatchError,
    EnvState,
    EpisodeOverError,
    PendingCallError,
    ResetNeededError,
    StateCannotTravelError,
    StateFormatError,
    SubEnvError,
    restore,
)
from joblib_envs.envs import (
    BufferReusingEnv,
    CountingEnv,
    EchoEnv,
    EzPickledCountingEnv,
    FailingEnv,
    HandleEnv,
    SpaceEnv,
    UnpicklableEnv,
    VariableLengthEnv,
)
from joblib_envs.equality import first_difference

LOKY = Backend("loky", "actors")
SEQUENTIAL = Backend("sequential", "actors")


def make_cartpole():
    return wrappers.NormalizeObservation(gymnasium.make("CartPole-v1", max_episode_steps=15))


def go_on(envs, num_steps, seed=7):
    """Step with seeded actions, and reset in the middle."""
    envs.action_space.seed(seed)
    trace = []
    for number in range(num_steps):
        trace.append(envs.step(envs.action_space.sample()))
        if number == num_steps // 2:
            trace.append(envs.reset(options={"reset_mask": np.arange(envs.num_envs) % 2 == 0}))
    return trace


def started(backend, env, num_envs=4, num_steps=9, **options):
    envs = make_batch(backend, env, num_envs, **options)
    envs.reset(seed=3)
    envs.action_space.seed(1)
    for _ in range(num_steps):
        envs.step(envs.action_space.sample())
    return envs


@pytest.mark.parametrize(
    "env",
    [
        make_cartpole,
        VariableLengthEnv,
        BufferReusingEnv,
        EzPickledCountingEnv,
        partial(EchoEnv, "dict"),
        partial(SpaceEnv, "graph"),
        partial(SpaceEnv, "text"),
    ],
    ids=["cartpole", "variable", "buffer", "ez_pickled", "dict", "graph", "text"],
)
def test_a_batch_goes_on_from_its_states(backend, env):
    with started(backend, env) as envs:
        states = envs.get_state()
        wanted = go_on(envs, 20)

        envs.set_state(states)

        assert first_difference(wanted, go_on(envs, 20)) is None


def test_states_of_one_backend_go_on_in_another(backend):
    with started(SEQUENTIAL, make_cartpole, n_jobs=1) as first, make_batch(backend, make_cartpole, 4) as second:
        second.set_state(first.get_state())

        assert first_difference(go_on(first, 40), go_on(second, 40)) is None


def test_get_state_changes_nothing(backend):
    with started(backend, make_cartpole) as envs, started(backend, make_cartpole) as others:
        envs.get_state()

        assert first_difference(go_on(others, 20), go_on(envs, 20)) is None


def test_one_state_can_go_into_all_64_sub_environments(backend):
    with counting_batch(backend, 64) as envs:
        envs.reset(seed=0)
        for _ in range(5):
            envs.step([0] * 64)

        observations = envs.set_state(envs.get_state()[17])

        assert observations.tolist() == [5] * 64
        assert envs.step([0] * 64)[0].tolist() == [6] * 64


def test_branches_of_one_state_are_independent(backend):
    with make_batch(backend, "CartPole-v1", 3) as envs:
        envs.reset(seed=0)

        envs.set_state(envs.get_state()[0])
        observations, *_ = envs.step([0, 1, 0])

    assert observations[0].tolist() == observations[2].tolist() != observations[1].tolist()


@pytest.mark.parametrize("indices", [[2, 0], np.array([2, 0]), (2, 0)], ids=["list", "array", "tuple"])
def test_set_state_of_some_leaves_the_others_alone(backend, indices):
    with counting_batch(backend, 3) as envs:
        envs.reset(seed=0)
        states = envs.get_state()
        envs.step([0] * 3)
        later = envs.get_state()
        envs.step([0] * 3)

        observations = envs.set_state([states[0], later[0]], indices)

        assert observations.tolist() == [1, 2, 0]


def test_set_state_takes_a_mask_and_a_single_index(backend):
    with counting_batch(backend, 3) as envs:
        envs.reset(seed=0)
        state = envs.get_state()[0]
        envs.step([0] * 3)

        assert envs.set_state(state, np.array([True, False, True])).tolist() == [0, 1, 0]
        assert envs.set_state(state, 1).tolist() == [0, 0, 0]


def test_a_pending_autoreset_is_in_the_state(backend):
    with counting_batch(backend, 2, episode_length=2) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        *_, terminations, _, _ = envs.step([0, 0])
        states = envs.get_state()
        envs.reset()

        envs.set_state(states)
        observations, rewards, *_ = envs.step([0, 0])

    assert terminations.tolist() == [True, True]
    assert observations.tolist() == [0, 0]
    assert rewards.tolist() == [0.0, 0.0]


def test_a_failure_is_in_the_state(backend):
    with make_batch(backend, [partial(FailingEnv, 2), CountingEnv]) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        with pytest.raises(SubEnvError):
            envs.step([0, 0])
        states = envs.get_state()
        envs.reset()

        envs.set_state(states)

        with pytest.raises(ResetNeededError) as error:
            envs.step([0, 0])
        assert error.value.env_indices == (0,)


def test_the_end_of_an_episode_is_in_the_state_where_the_user_resets(backend):
    with counting_batch(backend, 2, episode_length=1, autoreset_mode=AutoresetMode.DISABLED) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        states = envs.get_state()
        envs.reset()

        envs.set_state(states)

        with pytest.raises(EpisodeOverError):
            envs.step([0, 0])


def test_a_masked_reset_after_set_state_returns_the_last_observations(backend):
    with counting_batch(backend, 2) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        states = envs.get_state()
        envs.reset()
        envs.set_state(states)

        observations, _ = envs.reset(options={"reset_mask": np.array([True, False])})

    assert observations.tolist() == [0, 1]


def test_views_of_the_step_before_live_through_set_state(backend):
    with counting_batch(backend, 2, copy=False) as envs:
        envs.reset(seed=0)
        state = envs.get_state()[0]
        view, *_ = envs.step([0, 0])

        assert envs.set_state(state).tolist() == [0, 0]
        assert view.tolist() == [1, 1]


def test_a_state_from_before_the_first_reset_must_be_reset_in_full(backend):
    with counting_batch(backend, 2) as envs:
        states = envs.get_state()
        envs.reset(seed=0)
        envs.step([0, 0])

        envs.set_state(states)

        with pytest.raises(ArgumentError, match="never been reset"):
            envs.reset(options={"reset_mask": np.array([True, False])})


def test_a_state_is_an_environment_too(backend):
    with started(backend, make_cartpole) as envs:
        state = envs.get_state()[2]
        env = restore(state)

        observations, *_ = envs.step([1] * 4)

        assert env.step(1)[0].tolist() == observations[2].tolist()


@pytest.mark.parametrize(
    ("states", "indices", "error", "message"),
    [
        (lambda states: states[:2], None, ArgumentError, "2 states were given for 3"),
        (lambda states: states, [0, 1], ArgumentError, "3 states were given for 2"),
        (lambda states: states[:1], [3], ArgumentError, "0 to 2"),
        (lambda states: states[:1], [-1], ArgumentError, "0 to 2"),
        (lambda states: states[:2], [1, 1], ArgumentError, "twice"),
        (lambda states: states[:2], [0.0, 1.0], ArgumentTypeError, "whole numbers"),
        (lambda states: [states[0].to_bytes()] * 3, None, ArgumentTypeError, "from_bytes"),
        (lambda states: states[0].to_bytes(), None, ArgumentTypeError, "from_bytes"),
        (lambda states: None, None, ArgumentTypeError, "must be an EnvState"),
    ],
)
def test_states_that_do_not_fit_are_refused_before_anything_happens(backend, states, indices, error, message):
    with counting_batch(backend, 3) as envs:
        envs.reset(seed=0)
        taken = envs.get_state()
        envs.step([0] * 3)

        with pytest.raises(error, match=message):
            envs.set_state(states(taken), indices)

        assert envs.step([0] * 3)[0].tolist() == [2, 2, 2]


def test_a_state_of_another_environment_is_refused_and_nothing_changes(backend):
    with make_batch(SEQUENTIAL, "CartPole-v1", 1) as others, counting_batch(backend, 3) as envs:
        envs.reset(seed=0)
        first = envs.get_state()[0]
        envs.step([0] * 3)

        with pytest.raises(ArgumentError, match="of another environment"):
            envs.set_state([first, first, others.get_state()[0]])

        assert envs.step([0] * 3)[0].tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (partial(gymnasium.make, "CartPole-v1", sutton_barto_reward=True), "spec"),
        (partial(gymnasium.make, "CartPole-v1", max_episode_steps=3), "spec"),
        (lambda: Untimed(gymnasium.make("CartPole-v1")), "spec|layers"),
    ],
    ids=["arguments", "time limit", "wrapper"],
)
def test_a_state_of_an_environment_that_was_made_otherwise_is_refused(backend, other, what):
    with make_batch(SEQUENTIAL, other, 1) as others, make_batch(backend, "CartPole-v1", 2) as envs:
        others.reset(seed=0)
        envs.reset(seed=0)

        with pytest.raises(ArgumentError, match=f"of another environment: its ({what})"):
            envs.set_state(others.get_state()[0])


class Untimed(gymnasium.Wrapper):
    """Has equal spaces."""


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_a_pending_autoreset_is_the_users_to_make_where_the_next_step_would_not(backend, mode):
    with (
        counting_batch(SEQUENTIAL, 2, episode_length=1) as first,
        counting_batch(backend, 2, episode_length=1, autoreset_mode=mode) as second,
    ):
        first.reset(seed=0)
        first.step([0, 0])
        second.reset(seed=0)

        second.set_state(first.get_state()[0], 1)

        with pytest.raises(ResetNeededError) as error:
            second.step([0, 0])
        assert error.value.env_indices == (1,)


def test_a_state_that_cannot_be_unpickled_is_refused_and_nothing_changes(backend):
    with counting_batch(backend, 2) as envs:
        envs.reset(seed=0)
        broken = EnvState("capture", b"no pickle")

        with pytest.raises(StateFormatError, match="can't be unpickled here"):
            envs.set_state(broken)

        assert envs.step([0] * 2)[0].tolist() == [1, 1]


@pytest.mark.parametrize("env", [UnpicklableEnv, HandleEnv])
def test_states_that_would_be_lost_are_refused_on_every_backend(env):
    for backend in (LOKY, *IN_PROCESS):
        with make_batch(backend, env, 2, probe=True) as envs:
            envs.reset(seed=0)
            with pytest.raises(StateCannotTravelError, match="state_method='replay'"):
                envs.get_state()

            assert envs.step([0, 0])[0].tolist() == [1, 1]


def test_a_factory_that_cannot_be_tried_elsewhere_is_refused():
    lock = threading.Lock()
    envs = make_batch(SEQUENTIAL, lambda: (lock, CountingEnv())[1], 2, probe=True)

    with envs, pytest.raises(StateCannotTravelError, match="factory can't be pickled"):
        envs.get_state()


@pytest.mark.parametrize("env", [HandleEnv, UnpicklableEnv])
def test_replay_goes_on_where_nothing_can_be_captured(backend, env):
    with make_batch(backend, env, 2, state_method="replay") as envs, make_batch(SEQUENTIAL, env, 2) as plain:
        assert first_difference(plain.reset(seed=3), envs.reset(seed=3)) is None
        assert first_difference(go_on(plain, 12), go_on(envs, 12)) is None
        states = envs.get_state()
        wanted = go_on(envs, 12)

        envs.set_state(states)

        assert {state.method for state in states} == {"replay"}
        assert first_difference(wanted, go_on(envs, 12)) is None


def test_replay_knows_calls_and_attributes_that_were_set(backend):
    with make_batch(backend, CountingEnv, 2, state_method="replay") as envs:
        envs.reset(seed=0)
        envs.set_attr("bonus", [3.0, 4.0])
        envs.step([0, 0])
        states = envs.get_state()
        envs.set_attr("bonus", 0.0)

        envs.set_state(states)

        assert envs.get_attr("bonus") == (3.0, 4.0)


def test_a_replayed_batch_without_a_seed_is_given_one():
    with make_batch(SEQUENTIAL, VariableLengthEnv, 2, state_method="replay") as envs:
        envs.reset()
        go_on(envs, 8)
        states = envs.get_state()
        wanted = go_on(envs, 30)

        envs.set_state(states)

        assert first_difference(wanted, go_on(envs, 30)) is None


def test_a_captured_state_can_go_into_a_batch_that_keeps_journals(backend):
    with (
        started(SEQUENTIAL, make_cartpole) as first,
        make_batch(backend, make_cartpole, 4, state_method="replay") as second,
    ):
        second.set_state(first.get_state())
        go_on(first, 5), go_on(second, 5)
        states = second.get_state()
        go_on(second, 3)
        second.set_state(states)

        assert first_difference(go_on(first, 20), go_on(second, 20)) is None


def test_an_unknown_state_method_is_refused():
    with pytest.raises(ArgumentError, match="'capture'"):
        BatchEnv("CartPole-v1", 2, state_method="pickle")


def test_states_are_neither_taken_nor_put_between_a_call_and_its_end():
    with counting_batch(LOKY, 4) as envs:
        envs.reset(seed=0)
        states = envs.get_state()
        envs.step_async([0] * 4)

        for call in (envs.get_state, partial(pickle.dumps, envs), partial(envs.set_state, states)):
            with pytest.raises(PendingCallError):
                call()

        assert envs.step_wait()[0].tolist() == [1] * 4


def test_a_closed_batch_has_no_states(backend):
    envs = counting_batch(backend, 2)
    envs.close()

    for call in (envs.get_state, partial(pickle.dumps, envs)):
        with pytest.raises(ClosedBatchError):
            call()
