"""BatchEnv's own protocol: lifetime, exclusive use, ownership of arrays and arguments."""

import contextlib
import copy
import gc
import threading
import warnings
from functools import partial

import gymnasium
import numpy as np
import pytest
from batches import counting_batch, descendants, make_batch, wait_until
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from odd_envs import BigEnv, BlockingEnv, GreedyEnv, LevelWrapper

from joblib_envs import (
    ArgumentError,
    BatchEnv,
    ClosedBatchError,
    ConcurrentUseError,
    EpisodeOverError,
    NoPendingCallError,
    PendingCallError,
)
from joblib_envs.envs import CountingEnv, EchoEnv, FailingEnv

ALL_CALLS = {
    "reset": lambda envs: envs.reset(seed=0),
    "step": lambda envs: envs.step([0, 0]),
    "step_async": lambda envs: envs.step_async([0, 0]),
    "step_wait": lambda envs: envs.step_wait(),
    "call": lambda envs: envs.call("count_after", 1),
    "get_attr": lambda envs: envs.get_attr("count"),
    "set_attr": lambda envs: envs.set_attr("bonus", 1.0),
    "render": lambda envs: envs.render(),
    "np_random": lambda envs: envs.np_random,
    "np_random_seed": lambda envs: envs.np_random_seed,
}


def test_it_describes_itself_as_gymnasiums_vector_environments_do(backend):
    with make_batch(backend, "joblib_envs/Counting-v0", 2, env_kwargs={"render_mode": "rgb_array"}) as envs:
        assert isinstance(envs, VectorEnv)
        assert repr(envs) == "BatchEnv(joblib_envs/Counting-v0, num_envs=2)"
        assert envs.num_envs == 2
        assert envs.metadata == {**CountingEnv.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        assert envs.render_mode == "rgb_array"
        assert envs.unwrapped is envs
        assert envs.observation_space == gymnasium.vector.utils.batch_space(envs.single_observation_space, 2)
        assert envs.spec.id == "joblib_envs/Counting-v0"
    assert "autoreset_mode" not in CountingEnv.metadata


def test_every_value_of_an_episode_is_as_expected(backend):
    with counting_batch(backend, num_envs=3, episode_length=2, start=5) as envs:
        first, _ = envs.reset(seed=0)
        steps = [envs.step([0, 1, 0]) for _ in range(3)]

    assert first.tolist() == [5, 5, 5]
    assert first.dtype == np.int64
    assert [step[0].tolist() for step in steps] == [[6] * 3, [7] * 3, [5] * 3]
    assert [step[1].tolist() for step in steps] == [[6.0] * 3, [7.0] * 3, [0.0] * 3]
    assert [step[2].tolist() for step in steps] == [[False] * 3, [True] * 3, [False] * 3]
    assert steps[0][1].dtype == np.float64
    assert steps[0][2].dtype == steps[0][3].dtype == np.bool_


def test_with_closes_and_a_second_close_does_nothing(backend):
    with counting_batch(backend) as envs:
        envs.reset(seed=0)

    assert envs.closed
    envs.close()


def test_with_closes_after_an_error_and_lets_it_through(backend):
    with pytest.raises(ZeroDivisionError), counting_batch(backend) as envs:
        1 / 0  # noqa: B018

    assert envs.closed


def test_every_call_on_a_closed_batch_is_refused(backend):
    envs = counting_batch(backend)
    envs.close()

    for call in ALL_CALLS.values():
        with pytest.raises(ClosedBatchError) as caught:
            call(envs)
        assert isinstance(caught.value, gymnasium.error.ClosedEnvironmentError)


def test_closing_between_the_halves_of_a_step_works(backend):
    envs = counting_batch(backend)
    envs.reset(seed=0)
    envs.step_async([0, 0])

    envs.close()

    with pytest.raises(ClosedBatchError):
        envs.step_wait()


@pytest.mark.parametrize("name", sorted(set(ALL_CALLS) - {"step_wait"}))
def test_between_the_halves_of_a_step_every_other_call_is_refused(name):
    with BatchEnv(CountingEnv, 2, backend="sequential") as envs:
        envs.reset(seed=0)
        envs.step_async([0, 0])

        with pytest.raises(PendingCallError) as caught:
            ALL_CALLS[name](envs)
        observations, *_ = envs.step_wait()

    assert isinstance(caught.value, gymnasium.error.AlreadyPendingCallError)
    assert observations.tolist() == [1, 1]


def test_the_two_halves_of_a_step_are_a_step(backend):
    with counting_batch(backend) as envs:
        envs.reset(seed=0)
        envs.step_async([0, 0])
        with pytest.raises(PendingCallError):
            envs.step_async([0, 0])
        observations, *_ = envs.step_wait()
        with pytest.raises(NoPendingCallError) as caught:
            envs.step_wait()
        after, *_ = envs.step([0, 0])

    assert isinstance(caught.value, gymnasium.error.NoAsyncCallError)
    assert observations.tolist() == [1, 1]
    assert after.tolist() == [2, 2]


def test_actions_changed_after_step_async_have_no_effect(backend):
    with make_batch(backend, partial(EchoEnv, "box_float64"), 2) as envs:
        envs.reset(seed=0)
        actions = np.zeros((2, 2, 2))
        envs.step_async(actions)
        actions[:] = 9
        observations, *_ = envs.step_wait()

    assert observations.tolist() == np.zeros((2, 2, 2)).tolist()


def test_stepping_before_a_reset_is_for_the_environments_to_refuse(backend):
    with make_batch(backend, "joblib_envs/Counting-v0", 2) as envs:
        with pytest.raises(gymnasium.error.ResetNeeded):
            envs.step([0, 0])
        envs.reset(seed=0)
        observations, *_ = envs.step([0, 0])

    assert observations.tolist() == [1, 1]


def test_a_masked_first_reset_is_refused_since_the_others_have_no_observation(backend):
    with counting_batch(backend) as envs:
        with pytest.raises(ArgumentError, match=r"\[1\], which have never been reset"):
            envs.reset(seed=0, options={"reset_mask": np.array([True, False])})
        observations, _ = envs.reset(seed=0)

    assert observations.tolist() == [0, 0]


def test_with_autoreset_disabled_an_ended_episode_needs_a_reset(backend):
    lengths = [partial(CountingEnv, 1), partial(CountingEnv, 100)]
    with make_batch(backend, lengths, autoreset_mode=AutoresetMode.DISABLED) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        with pytest.raises(EpisodeOverError, match=r"\[0\] has ended its episode") as caught:
            envs.step([0, 0])
        envs.reset(options={"reset_mask": np.array([True, False])})
        observations, *_ = envs.step([0, 0])

    assert isinstance(caught.value, AssertionError)
    assert observations.tolist() == [1, 2]


def test_a_masked_reset_leaves_the_other_environments_running(backend):
    with counting_batch(backend, num_envs=2) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])

        observations, infos = envs.reset(options={"reset_mask": np.array([True, False])})

    assert observations.tolist() == [0, 1]
    assert infos["_count"].tolist() == [True, False]


def test_a_full_reset_cancels_the_autoreset_that_was_due(backend):
    with counting_batch(backend, episode_length=1) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        envs.reset(seed=0)
        observations, *_ = envs.step([0, 0])

    assert observations.tolist() == [1, 1]


def test_returned_arrays_belong_to_the_caller(backend):
    with make_batch(backend, BigEnv, 2) as envs:
        observations, _ = envs.reset(seed=0)
        kept = [observations, *envs.step([0, 0])[:4], *envs.step([0, 0])[:4]]
        copies = copy.deepcopy(kept)
        envs.step([0, 0])
        envs.reset(seed=1)

    assert all(array.flags.writeable for array in kept)
    assert all(np.array_equal(array, unchanged) for array, unchanged in zip(kept, copies, strict=True))


def test_a_large_array_inside_an_environment_stays_writable(backend):
    with make_batch(backend, BigEnv, 2) as envs:
        envs.reset(seed=0)
        for _ in range(2):
            observations, _, _, _, infos = envs.step([0, 0])

    assert observations.min() == observations.max() == 2.0
    assert infos["flags"].tolist() == [(True, "ndarray")] * 2


def test_views_live_until_the_next_step_but_one(backend):
    with counting_batch(backend, copy=False) as envs:
        first, _ = envs.reset(seed=0)
        second, *_ = envs.step([0, 0])
        assert first.tolist() == [0, 0]
        third, *_ = envs.step([0, 0])

        assert second.tolist() == [1, 1]
        assert third.tolist() == [2, 2]
        assert np.shares_memory(first, third)


def test_calls_between_two_steps_do_not_shorten_the_life_of_views(backend):
    alive = {}
    with counting_batch(backend, copy=False) as envs:
        envs.reset(seed=0)
        for number, name in enumerate(("call", "get_attr", "set_attr", "render")):
            view, *_ = envs.step([0, 0])
            ALL_CALLS[name](envs)
            envs.step([0, 0])
            alive[name] = view.tolist() == [2 * number + 1] * 2

    assert all(alive.values()), alive


def test_closing_leaves_the_last_two_views_as_they_are(backend):
    with counting_batch(backend, copy=False) as envs:
        envs.reset(seed=0)
        first, *_ = envs.step([0, 0])
        second, *_ = envs.step([0, 0])

    assert (first.tolist(), second.tolist()) == ([1, 1], [2, 2])


def test_views_show_a_masked_resets_other_rows(backend):
    with counting_batch(backend, copy=False) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        observations, _ = envs.reset(options={"reset_mask": np.array([False, True])})

        assert observations.tolist() == [1, 0]


def test_arguments_are_never_changed(backend):
    options = {"levels": [1], "reset_mask": np.array([True, True])}
    seeds, actions, mutable = [3, None], np.arange(4.0).reshape(2, 2), [7]
    given = copy.deepcopy((options, seeds, actions, mutable))

    with make_batch(backend, GreedyEnv, 2) as envs:
        _, infos = envs.reset(seed=seeds, options=options)
        observations, *_ = envs.step(actions)
        results = envs.call("put", mutable, named={"key": mutable})
        envs.set_attr("extra", {"a": mutable})

    assert list(options) == ["levels", "reset_mask"]
    assert repr((options, seeds, actions, mutable)) == repr(given)
    assert infos["given"].tolist() == ["{'levels': [1]}"] * 2
    assert observations.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert results == ((2, 2), (2, 2))


def test_a_list_of_actions_is_never_changed(backend):
    actions = [np.zeros(2), np.ones(2)]
    with make_batch(backend, GreedyEnv, 2) as envs:
        envs.reset(seed=0)
        envs.step(actions)

    assert [action.tolist() for action in actions] == [[0.0, 0.0], [1.0, 1.0]]


def test_one_value_for_all_is_not_shared_between_sub_environments(backend):
    value = {"values": []}
    with make_batch(backend, GreedyEnv, 3) as envs:
        envs.set_attr("box", value)
        first = envs.call("grow")
        second = envs.call("grow")

    assert first == (1, 1, 1)
    assert second == (2, 2, 2)
    assert value == {"values": []}


def test_one_argument_for_all_is_not_shared_between_sub_environments(backend):
    with make_batch(backend, GreedyEnv, 3) as envs:
        results = envs.call("put", [], named={"key": []})

    assert results == ((1, 1), (1, 1), (1, 1))


def test_attributes_are_found_and_set_where_they_are_defined(backend):
    with make_batch(
        backend, partial(CountingEnv, 100), 2, wrappers=(LevelWrapper, partial(LevelWrapper, level=2))
    ) as envs:
        envs.reset(seed=0)
        envs.set_attr("bonus", [1.0, 2.0])
        envs.set_attr("level", (5, 6))
        bonuses = envs.get_attr("bonus")
        levels = envs.get_wrapper_attr("level")
        after = envs.call("count_after", 3, twice=True)
        _, rewards, *_ = envs.step([0, 0])

    assert bonuses == (1.0, 2.0)
    assert levels == (5, 6)
    assert after == (6, 6)
    assert rewards.tolist() == [(2 * 10 + 1) * 10 + 5, (3 * 10 + 1) * 10 + 6]


def test_frames_come_in_index_order(backend):
    factories = [partial(CountingEnv, 100, start, "rgb_array") for start in (1, 2, 3)]
    with make_batch(backend, factories) as envs:
        envs.reset(seed=0)
        frames = envs.render()

    assert [frame.shape for frame in frames] == [(2, 2, 3)] * 3
    assert [int(frame[0, 0, 0]) for frame in frames] == [1, 2, 3]


def test_every_environment_has_its_own_random_stream_that_goes_on(backend):
    with counting_batch(backend, num_envs=3) as envs:
        _, first = envs.reset(seed=11)
        seeds = envs.np_random_seed
        _, second = envs.reset()
        generators = envs.np_random

    wanted = [np.random.default_rng(11 + index) for index in range(3)]
    assert first["drawn"].tolist() == [int(rng.integers(2**31)) for rng in wanted]
    assert second["drawn"].tolist() == [int(rng.integers(2**31)) for rng in wanted]
    assert [rng.bit_generator.state for rng in generators] == [rng.bit_generator.state for rng in wanted]
    assert seeds == (11, 12, 13)


def test_two_threads_at_once_are_refused(in_process_backend):
    BlockingEnv.entered, BlockingEnv.may_go_on = threading.Event(), threading.Event()
    with make_batch(in_process_backend, partial(BlockingEnv, 100), 2) as envs:
        envs.reset(seed=0)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(envs.step([0, 0])))
        thread.start()
        assert BlockingEnv.entered.wait(30)

        for name in ("reset", "step", "call", "get_attr", "set_attr", "render"):
            with pytest.raises(ConcurrentUseError):
                ALL_CALLS[name](envs)
        with pytest.raises(ConcurrentUseError):
            envs.close()
        BlockingEnv.may_go_on.set()
        thread.join(30)
        observations, *_ = envs.step([0, 0])

    assert answers[0][0].tolist() == [1, 1]
    assert observations.tolist() == [2, 2]


def test_a_batch_may_be_used_from_one_thread_after_the_other(backend):
    with counting_batch(backend) as envs:
        envs.reset(seed=0)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(envs.step([0, 0])))
        thread.start()
        thread.join(30)
        observations, *_ = envs.step([0, 0])

    assert answers[0][0].tolist() == [1, 1]
    assert observations.tolist() == [2, 2]


def test_a_batch_that_is_forgotten_leaves_nothing_behind(backend):
    gc.collect()
    threads, processes = threading.active_count(), {child.pid for child in descendants()}
    envs = counting_batch(backend)
    envs.reset(seed=0)
    started = {child.pid for child in descendants()} - processes

    del envs
    gc.collect()

    if backend.execution == "actors":
        assert wait_until(lambda: not started & {child.pid for child in descendants()})
    if str(backend) == "threading-actors":
        assert wait_until(lambda: threading.active_count() <= threads)


def test_a_forgotten_batch_whose_close_fails_is_silent(backend, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs = make_batch(backend, partial(FailingEnv, 1, "close"), 2)
        del envs
        gc.collect()

    assert capfd.readouterr().err == ""


def test_a_batch_that_was_never_built_closes_in_silence():
    envs = BatchEnv.__new__(BatchEnv)
    with contextlib.suppress(ValueError):
        envs.__init__("CartPole-v1", 0)

    envs.close()

    assert envs.closed


def test_gymnasiums_vector_wrappers_take_it(backend):
    with counting_batch(backend, episode_length=2) as envs:
        wrapped = RecordEpisodeStatistics(envs)
        wrapped.reset(seed=0)
        wrapped.step([0, 0])
        _, _, _, _, infos = wrapped.step([0, 0])

    assert infos["episode"]["r"].tolist() == [3.0, 3.0]
    assert infos["episode"]["l"].tolist() == [2, 2]


def test_recorded_statistics_survive_a_masked_reset(backend):
    with counting_batch(backend) as envs:
        wrapped = RecordEpisodeStatistics(envs)
        wrapped.reset(seed=0)
        wrapped.step([0, 0])
        wrapped.reset(options={"reset_mask": np.array([True, False])})

        assert wrapped.episode_lengths.tolist() == [0, 1]
