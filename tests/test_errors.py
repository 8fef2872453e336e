"""The tree of errors, and the combination with the original's type."""

import pickle
import threading

import gymnasium
import pytest

import joblib_envs
from joblib_envs import Failure, JoblibEnvsError, SubEnvError
from joblib_envs.envs import TwoArgumentError, UnpicklableFailureError
from joblib_envs.failures import Failure as RecordedFailure

GYMNASIUMS = {
    "ArgumentError": ValueError,
    "ArgumentTypeError": TypeError,
    "BackendUnavailableError": ValueError,
    "CallTimeoutError": TimeoutError,
    "ClosedBatchError": gymnasium.error.ClosedEnvironmentError,
    "ConcurrentUseError": RuntimeError,
    "EnvInsideFactoryError": TypeError,
    "EpisodeOverError": AssertionError,
    "ForkedBatchError": RuntimeError,
    "NoPendingCallError": gymnasium.error.NoAsyncCallError,
    "PendingCallError": gymnasium.error.AlreadyPendingCallError,
    "PolicyError": RuntimeError,
    "ResetNeededError": gymnasium.error.ResetNeeded,
    "SpacesDifferError": RuntimeError,
    "StateCannotTravelError": RuntimeError,
    "StateFormatError": ValueError,
    "StateVersionError": ValueError,
    "SubEnvError": RuntimeError,
    "UnpicklableError": TypeError,
    "WorkerDiedError": RuntimeError,
}


class DemandingError(Exception):
    """Takes keyword arguments only and has no text."""

    def __init__(self, *, code):
        self.code = code

    def __str__(self):
        raise RuntimeError("no text")


class SlottedError(Exception):
    __slots__ = ("code",)


class SealedError(Exception):
    def __init_subclass__(cls, **_options):
        raise TypeError("no subclasses")


def raised(original):
    failure = Failure.of(1, original)
    return SubEnvError.of("it failed", {1: failure}, (None, "partial"), original)


def test_every_error_is_public_and_has_its_place_in_the_tree():
    errors = {name for name in joblib_envs.__all__ if name.endswith("Error")} - {"JoblibEnvsError"}

    assert errors - {"ConformanceError"} == set(GYMNASIUMS)  # that one is the checker's, an AssertionError
    for name, kind in GYMNASIUMS.items():
        assert issubclass(getattr(joblib_envs, name), kind)
        assert issubclass(getattr(joblib_envs, name), JoblibEnvsError)


@pytest.mark.parametrize(
    "original",
    [
        ValueError("a"),
        KeyError("a"),
        OSError(2, "no such file"),
        FileNotFoundError(2, "no such file", "name"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        TwoArgumentError("a", 3),
        UnpicklableFailureError("a"),
        DemandingError(code=3),
        SlottedError("a"),
        AssertionError(),
        ImportError("a", name="b"),
        gymnasium.error.ResetNeeded("a"),
        joblib_envs.ArgumentError("a"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_it_is_an_instance_of_the_originals_type_too(original):
    error = raised(original)

    assert isinstance(error, SubEnvError)
    assert isinstance(error, type(original))
    assert str(error) == "it failed"
    assert error.partial == (None, "partial")
    assert error.env_index == 1


@pytest.mark.parametrize(
    "original",
    [StopIteration(1), SystemExit(1), SealedError(), ExceptionGroup("a", [ValueError()]), RuntimeError("a")],
    ids=lambda error: type(error).__name__,
)
def test_what_cannot_be_combined_gives_a_plain_sub_env_error(original):
    error = raised(original)

    assert type(error) is SubEnvError
    assert str(error) == "it failed"


def test_it_survives_a_pickle():
    error = pickle.loads(pickle.dumps(raised(KeyError("a"))))

    assert isinstance(error, SubEnvError)
    assert str(error) == "it failed"
    assert error.env_index == 1
    assert error.partial == (None, "partial")
    assert error.failures[1].message == "'a'"


def test_the_indices_survive_a_pickle():
    error = pickle.loads(pickle.dumps(joblib_envs.ResetNeededError("reset", [1, 2])))
    died = pickle.loads(pickle.dumps(joblib_envs.WorkerDiedError("died", [1, 2], -9)))

    assert error.env_indices == (1, 2)
    assert (died.env_indices, died.exitcode) == ((1, 2), -9)


def test_a_failure_records_class_text_and_traceback():
    try:
        raise TwoArgumentError("lost", 3)
    except TwoArgumentError as error:
        failure = RecordedFailure.of(4, error)

    assert failure.env_index == 4
    assert failure.type_name == "joblib_envs.envs.failing.TwoArgumentError"
    assert failure.message == "lost"
    assert 'raise TwoArgumentError("lost", 3)' in failure.traceback
    assert failure.as_cause() is failure.exception


def test_an_exception_whose_text_fails_is_recorded_all_the_same():
    failure = Failure.of(0, DemandingError(code=3))

    assert failure.message == "<its text raised RuntimeError>"
    assert "DemandingError" in failure.traceback


@pytest.mark.parametrize("original", [TwoArgumentError("lost", 3), UnpicklableFailureError("lost")], ids=type)
def test_an_exception_that_does_not_pickle_whole_travels_with_its_type_and_what_else_can(original):
    failure = pickle.loads(pickle.dumps(Failure.of(2, original)))

    assert type(failure.exception) is type(original)
    assert failure.exception.args == ("lost",)
    assert getattr(failure.exception, "code", None) == getattr(original, "code", None)
    assert not hasattr(failure.exception, "lock")


def test_an_exception_whose_class_cannot_travel_is_described():
    class LockedError(Exception):
        lock = threading.Lock()  # held by the class, which is no module's and would travel by value

    failure = pickle.loads(pickle.dumps(Failure.of(2, LockedError("lost"))))

    assert failure.exception is None
    assert "lost (this exception could not be pickled)" in str(failure.as_cause())


def test_the_combined_error_has_the_originals_attributes():
    two = SubEnvError.of("it failed", {0: None}, (), TwoArgumentError("lost", 3))
    missing = SubEnvError.of("it failed", {0: None}, (), FileNotFoundError(2, "no such file", "name"))

    assert two.code == 3
    assert (missing.errno, missing.filename) == (2, "name")
    assert (str(two), str(missing)) == ("it failed", "it failed")


def test_a_failure_travels_with_its_exception_and_the_traceback_as_a_note():
    failure = pickle.loads(pickle.dumps(Failure.of(2, ValueError("lost"), needs_reset=False)))

    assert type(failure.exception) is ValueError
    assert failure.exception.args == ("lost",)
    assert "The traceback in the worker" in failure.exception.__notes__[0]
    assert not failure.needs_reset
