"""A failing sub-environment: the others have moved, nothing of them is lost, and a reset heals."""

import threading
from functools import partial

import numpy as np
import pytest
from batches import BACKENDS, IN_PROCESS, make_batch, wait_until
from odd_envs import BareInitEnv, DiaryEnv, HoldingEnv, StoppingEnv, UnpicklableInfoEnv

from joblib_envs import ResetNeededError, SubEnvError, UnpicklableError
from joblib_envs.envs import FailingEnv, TwoArgumentError, UnpicklableFailureError
from joblib_envs.equality import first_difference

REFERENCE = BACKENDS[0]
KINDS = ["value_error", "two_arguments", "unpicklable", "sys_exit"]


def failing_batch(backend, where="step", fail_at=2, kind="value_error", failing=(1,), num_envs=3, **options):
    """Make environments that count, of which some fail once."""
    length = options.pop("episode_length", 100)
    return make_batch(
        backend,
        [
            partial(FailingEnv, fail_at if index in failing else None, where, kind, length, "rgb_array")
            for index in range(num_envs)
        ],
        **options,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_others_have_stepped_and_their_transitions_are_kept(backend, kind):
    with failing_batch(backend, kind=kind, failing=(0, 2)) as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0])

        with pytest.raises(SubEnvError) as caught:
            envs.step([0, 0, 0])

    observations, rewards, terminations, truncations, infos, failed = caught.value.partial
    assert caught.value.env_index == 0
    assert list(caught.value.failures) == [0, 2]
    assert failed.tolist() == [True, False, True]
    assert observations.tolist() == [0, 2, 0]
    assert rewards.tolist() == [0.0, 2.0, 0.0]
    assert terminations.tolist() == truncations.tolist() == [False, False, False]
    assert infos["count"].tolist() == [0, 2, 0]
    assert infos["_count"].tolist() == [False, True, False]


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_says_the_same_on_every_backend(backend, kind):
    with failing_batch(backend, kind=kind) as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0])
        with pytest.raises(SubEnvError) as caught:
            envs.step([0, 0, 0])

    type_names = {
        "value_error": "ValueError",
        "two_arguments": "joblib_envs.envs.failing.TwoArgumentError",
        "unpicklable": "joblib_envs.envs.failing.UnpicklableFailureError",
        "sys_exit": "SystemExit",
    }
    message = "7" if kind == "sys_exit" else "step 2 fails"
    failure = caught.value.failures[1]
    assert (failure.env_index, failure.type_name, failure.message) == (1, type_names[kind], message)
    assert failure.needs_reset
    assert "in _meet" in failure.traceback
    assert str(caught.value) == f"sub-environment 1 raised {type_names[kind]} in step: {message}"


def test_a_failed_step_gives_the_same_bits_on_every_backend(backend):
    def failed_step(envs):
        with envs:
            envs.reset(seed=5)
            envs.step([0, 0, 0])
            with pytest.raises(SubEnvError) as caught:
                envs.step([1, 1, 1])
            return caught.value.partial

    wanted = failed_step(failing_batch(REFERENCE, failing=(1,), episode_length=2))
    got = failed_step(failing_batch(backend, failing=(1,), episode_length=2))

    assert first_difference(wanted, got) is None


def test_stepping_after_a_failure_names_who_needs_a_reset_and_moves_nobody(backend):
    with failing_batch(backend, failing=(0, 2)) as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0])
        with pytest.raises(SubEnvError):
            envs.step([0, 0, 0])

        with pytest.raises(ResetNeededError, match=r"\[0, 2\] raised an exception") as caught:
            envs.step([0, 0, 0])
        counts = envs.get_attr("count")

    assert caught.value.env_indices == (0, 2)
    assert counts == (1, 2, 1)


def test_a_masked_reset_heals_and_leaves_the_others_running(backend):
    with failing_batch(backend) as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0])
        with pytest.raises(SubEnvError):
            envs.step([0, 0, 0])

        reset_observations, _ = envs.reset(options={"reset_mask": np.array([False, True, False])})
        observations, *_ = envs.step([0, 0, 0])

    assert reset_observations.tolist() == [2, 0, 2]
    assert observations.tolist() == [3, 1, 3]


def test_a_masked_reset_of_others_does_not_heal(backend):
    with failing_batch(backend) as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0])
        with pytest.raises(SubEnvError):
            envs.step([0, 0, 0])
        envs.reset(options={"reset_mask": np.array([True, False, False])})

        with pytest.raises(ResetNeededError) as caught:
            envs.step([0, 0, 0])

    assert caught.value.env_indices == (1,)


def test_a_failed_reset_keeps_the_others_observations(backend):
    with failing_batch(backend, where="reset", fail_at=2) as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0])

        with pytest.raises(SubEnvError, match="sub-environment 1 raised ValueError in reset: reset 2 fails") as caught:
            envs.reset(seed=1)
        with pytest.raises(ResetNeededError) as needed:
            envs.step([0, 0, 0])
        envs.reset(options={"reset_mask": np.array([False, True, False])})
        observations, *_ = envs.step([0, 0, 0])

    partial_observations, infos, failed = caught.value.partial
    assert partial_observations.tolist() == [0, 0, 0]
    assert infos["_drawn"].tolist() == [True, False, True]
    assert failed.tolist() == [False, True, False]
    assert needed.value.env_indices == (1,)
    assert observations.tolist() == [1, 1, 1]


def test_a_failed_first_reset_leaves_only_the_failed_one_unready(backend):
    with failing_batch(backend, where="reset", fail_at=1, failing=(2,)) as envs:
        with pytest.raises(SubEnvError):
            envs.reset(seed=0)

        with pytest.raises(ResetNeededError) as needed:
            envs.step([0, 0, 0])

    assert needed.value.env_indices == (2,)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_reset_inside_a_step_may_fail(backend, mode):
    with failing_batch(backend, where="reset", fail_at=2, episode_length=2, autoreset_mode=mode) as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0])
        if mode == "NextStep":
            envs.step([0, 0, 0])

        with pytest.raises(SubEnvError, match="in step: reset 2 fails") as caught:
            envs.step([0, 0, 0])
        envs.reset(options={"reset_mask": np.array([False, True, False])})
        observations, *_ = envs.step([0, 0, 0])

    partial_observations, rewards, terminations, _, infos, failed = caught.value.partial
    ended = mode == "SameStep"
    assert failed.tolist() == [False, True, False]
    assert partial_observations.tolist() == [0, 0, 0]
    assert rewards.tolist() == ([2.0, 0.0, 2.0] if ended else [0.0, 0.0, 0.0])
    assert terminations.tolist() == [ended, False, ended]
    assert ("final_obs" in infos) == ended
    assert observations.tolist() == [1, 1, 1]


def test_a_failed_call_keeps_the_others_results(backend):
    with failing_batch(backend, where="call", fail_at=1) as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0])

        with pytest.raises(SubEnvError, match="'explode': call 1 fails") as caught:
            envs.call("explode")
        with pytest.raises(ResetNeededError) as needed:
            envs.step([0, 0, 0])

    results, failed = caught.value.partial
    assert results == (1, None, 1)
    assert failed.tolist() == [False, True, False]
    assert needed.value.env_indices == (1,)


def test_a_failed_render_keeps_the_others_frames(backend):
    with failing_batch(backend, where="render", fail_at=1) as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0])

        with pytest.raises(SubEnvError, match="render 1 fails") as caught:
            envs.render()

    frames, failed = caught.value.partial
    assert [None if frame is None else int(frame[0, 0, 0]) for frame in frames] == [1, None, 1]
    assert failed.tolist() == [False, True, False]


def test_a_failed_set_attr_sets_the_others(backend):
    with failing_batch(backend, where="set_attr", fail_at=1) as envs:
        envs.reset(seed=0)

        with pytest.raises(SubEnvError, match="set_attr 1 fails") as caught:
            envs.set_attr("fragile", [4, 5, 6])
        values = envs.get_attr("fragile")

    assert caught.value.partial[1].tolist() == [False, True, False]
    assert values == (4, 0, 6)


def test_a_missing_attribute_needs_no_reset(backend):
    with failing_batch(backend, fail_at=None) as envs:
        envs.reset(seed=0)

        with pytest.raises(AttributeError) as caught:
            envs.get_attr("nowhere")
        observations, *_ = envs.step([0, 0, 0])

    assert isinstance(caught.value, SubEnvError)
    assert list(caught.value.failures) == [0, 1, 2]
    assert observations.tolist() == [1, 1, 1]


def test_a_failed_close_closes_the_others_and_the_batch(backend, tmp_path):
    factories = [partial(FailingEnv, 1, "close"), *(partial(DiaryEnv, tmp_path, number) for number in (1, 2))]
    envs = make_batch(backend, factories)

    with pytest.raises(SubEnvError, match="sub-environment 0 raised ValueError in close"):
        envs.close()
    envs.close()

    assert envs.closed
    assert {path.name for path in tmp_path.glob("closed-*")} == {"closed-1", "closed-2"}


def test_a_constructor_that_fails_closes_all_others(backend, tmp_path):
    factories = [partial(DiaryEnv, tmp_path, number, fails=number == 1) for number in range(3)]

    with pytest.raises(ValueError, match="sub-environment 1 raised ValueError when it was made") as caught:
        make_batch(backend, factories)

    assert isinstance(caught.value, SubEnvError)
    assert caught.value.env_index == 1
    assert isinstance(caught.value.__cause__, ValueError)
    made = {path.name[-1] for path in tmp_path.glob("made-*")} - {"1"}
    assert wait_until(lambda: {path.name[-1] for path in tmp_path.glob("closed-*")} == made, 2)
    assert all(path.read_text() == "x" for path in tmp_path.glob("closed-*"))


def test_a_constructor_that_fails_writes_nothing_to_the_terminal(process_backend, tmp_path, capfd):
    factories = [partial(DiaryEnv, tmp_path, number, fails=number == 2) for number in range(3)]

    with pytest.raises(SubEnvError):
        make_batch(process_backend, factories)

    assert capfd.readouterr() == ("", "")


@pytest.mark.timeout(8)
@pytest.mark.parametrize("kind", ["actors", "tasks"])
def test_what_is_no_exception_does_not_hang_threads(kind):
    backend = next(each for each in IN_PROCESS if str(each) == f"threading-{kind}")

    with pytest.raises(BaseException, match="in the constructor"):
        make_batch(backend, BareInitEnv, 2)


def test_the_error_has_the_type_of_the_original_and_is_raised_from_it(backend):
    with make_batch(backend, partial(StoppingEnv, KeyError, "lost"), 2) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])

        with pytest.raises(KeyError) as caught:
            envs.step([0, 0])

    assert isinstance(caught.value, SubEnvError)
    assert type(caught.value.__cause__) is KeyError
    assert caught.value.__cause__.args == ("lost",)
    assert caught.value.failures[1].exception.args == ("lost",)
    assert str(caught.value) == "sub-environment 0 raised KeyError in step: 'lost' (and 1 more: [1])"


def test_the_traceback_of_a_worker_is_a_note_of_the_cause(process_backend):
    with make_batch(process_backend, partial(StoppingEnv, ValueError, "deep"), 2, n_jobs=2) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        with pytest.raises(SubEnvError) as caught:
            envs.step([0, 0])

    assert "odd_envs.py" in "".join(caught.value.__cause__.__notes__)
    assert "raise self.kind(*self.arguments)" in caught.value.failures[0].traceback


def test_an_exception_with_two_arguments_keeps_its_type_on_every_backend(backend):
    with failing_batch(backend, kind="two_arguments") as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0])
        with pytest.raises(TwoArgumentError) as caught:
            envs.step([0, 0, 0])

    assert caught.value.code == 2
    assert caught.value.__cause__.code == 2


def test_an_exception_that_holds_what_cannot_travel_keeps_its_type_on_every_backend(backend):
    with failing_batch(backend, kind="unpicklable") as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0])
        with pytest.raises(UnpicklableFailureError, match="step 2 fails"):
            envs.step([0, 0, 0])
        observations, *_ = envs.reset(options={"reset_mask": np.array([False, True, False])})

    assert observations.tolist() == [2, 0, 2]


def test_an_attribute_that_cannot_leave_its_process_is_named_and_the_batch_goes_on(process_backend):
    with make_batch(process_backend, partial(HoldingEnv, 100), 2) as envs:
        envs.reset(seed=0)

        with pytest.raises(SubEnvError, match="can't be pickled") as caught:
            envs.get_attr("lock")
        observations, *_ = envs.step([0, 0])

    assert isinstance(caught.value.__cause__, UnpicklableError)
    assert observations.tolist() == [1, 1]


def test_an_info_that_cannot_leave_its_process_fails_its_sub_environment(travelling_backend):
    with make_batch(travelling_backend, [partial(UnpicklableInfoEnv, 100), partial(HoldingEnv, 100)]) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])

        with pytest.raises(SubEnvError, match="the info of sub-environment 0 can't be pickled") as caught:
            envs.step([0, 0])

    assert caught.value.partial[0].tolist() == [0, 2]


def test_an_argument_that_cannot_be_pickled_is_refused_before_anyone_moves(process_backend):
    with make_batch(process_backend, partial(HoldingEnv, 100), 2) as envs:
        envs.reset(seed=0)

        with pytest.raises(UnpicklableError):
            envs.call("take", threading.Lock())
        observations, *_ = envs.step([0, 0])

    assert observations.tolist() == [1, 1]


def test_two_failures_in_one_worker_are_both_told(backend):
    with failing_batch(backend, failing=(1, 2)) as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0])
        with pytest.raises(SubEnvError, match=r"\(and 1 more: \[2\]\)") as caught:
            envs.step([0, 0, 0])

    assert list(caught.value.failures) == [1, 2]
