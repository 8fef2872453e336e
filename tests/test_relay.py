"""Warnings, log records and prints of environments reach the caller."""

import logging
import pickle
import warnings
from functools import partial

import pytest
from batches import make_batch, wait_until
from joblib.externals.loky import get_reusable_executor
from odd_envs import TalkingEnv, WarningDiaryEnv

from joblib_envs import SubEnvError
from joblib_envs.relay import OutputSettings, Relay, replay


class CustomWarning(UserWarning):
    """A class that the caller can import."""


@pytest.fixture
def elsewhere(monkeypatch):
    """Make settings that look as if another process had taken them."""

    def take():
        settings = OutputSettings.current()
        object.__setattr__(settings, "pid", -1)
        return settings

    return take


@pytest.mark.filterwarnings("always::RuntimeWarning")
def test_a_warning_of_a_step_reaches_the_caller_from_every_sub_environment(backend):
    with make_batch(backend, partial(TalkingEnv, "warn"), 2) as envs:
        envs.reset(seed=0)

        with pytest.warns(RuntimeWarning, match="count is 0") as caught:
            envs.step([0, 0])

    assert [str(each.message) for each in caught] == ["count is 0", "count is 0"]
    assert caught[0].filename.endswith("odd_envs.py")


def test_a_warning_of_a_constructor_reaches_the_caller(backend, tmp_path):
    with (
        pytest.warns(RuntimeWarning, match="made with a warning"),
        make_batch(backend, partial(WarningDiaryEnv, tmp_path), 2) as envs,
    ):
        assert envs.num_envs == 2


def test_warnings_that_the_caller_makes_errors_are_raised_in_the_environment(backend):
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with make_batch(backend, partial(TalkingEnv, "warn"), 2) as envs:
            envs.reset(seed=0)

            with pytest.raises(RuntimeWarning, match="count is 0") as caught:
                envs.step([0, 0])
            counts = envs.get_attr("count")

    assert isinstance(caught.value, SubEnvError)
    assert sorted(caught.value.failures) == [0, 1]
    assert counts == (0, 0)


def test_warnings_that_the_caller_ignores_are_not_shown(backend, capfd):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        with make_batch(backend, partial(TalkingEnv, "warn"), 2) as envs:
            envs.reset(seed=0)
            envs.step([0, 0])

    assert caught == []
    assert capfd.readouterr().err == ""


def test_a_warning_is_shown_once_where_the_caller_wants_each_once(backend):
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        warnings.simplefilter("once")
        with make_batch(backend, partial(TalkingEnv, "warn"), 2) as envs:
            for _ in range(2):
                envs.reset(seed=0)
                envs.step([0, 0])

    assert [str(each.message) for each in caught if each.category is RuntimeWarning] == ["count is 0"]


def test_log_records_reach_the_callers_handlers_by_its_levels(backend, caplog):
    with caplog.at_level(logging.INFO, "odd.envs"), make_batch(backend, partial(TalkingEnv, "log"), 2) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        envs.step([0, 0])

    records = [record for record in caplog.records if record.name == "odd.envs"]
    assert [record.getMessage() for record in records] == ["count is 0"] * 2 + ["count is 1"] * 2
    assert all(record.levelno == logging.INFO for record in records)
    assert all(record.funcName == "step" for record in records)


def test_log_records_below_the_callers_level_are_not_shown(backend, caplog):
    with caplog.at_level(logging.WARNING), make_batch(backend, partial(TalkingEnv, "log"), 2) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])

    assert [record for record in caplog.records if record.name == "odd.envs"] == []


def test_what_an_environment_prints_appears_while_the_batch_is_open(backend, capfd):
    printed = []

    def has_appeared():
        printed.append(capfd.readouterr().out)
        return "".join(printed).count("count is 0") == 2

    # Workers that an earlier test has started print to where its output went.
    get_reusable_executor().shutdown(wait=True)
    with make_batch(backend, partial(TalkingEnv, "print"), 2) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])

        assert wait_until(has_appeared, 3)


def test_the_callers_own_warnings_and_logging_stay_as_they_were(backend):
    before = (warnings.filters[:], warnings.showwarning, logging.getLogger().handlers[:], logging.getLogger().level)
    with make_batch(backend, partial(TalkingEnv, "log"), 2) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])

    after = (warnings.filters[:], warnings.showwarning, logging.getLogger().handlers[:], logging.getLogger().level)
    assert after == before


def test_a_relay_restores_what_it_found(elsewhere):
    before = (warnings.filters[:], warnings.showwarning, logging.getLogger().handlers[:])
    relay = Relay(elsewhere())

    restore = relay.install()
    assert logging.getLogger().handlers == [relay]
    restore()

    assert (warnings.filters[:], warnings.showwarning, logging.getLogger().handlers[:]) == before


def test_a_relay_in_the_callers_own_process_changes_nothing():
    before = (warnings.filters[:], warnings.showwarning, logging.getLogger().handlers[:])

    restore = Relay(OutputSettings.current()).install()

    assert (warnings.filters[:], warnings.showwarning, logging.getLogger().handlers[:]) == before
    restore()


@pytest.mark.filterwarnings("always")
def test_what_is_collected_travels_and_is_replayed(elsewhere, caplog):
    class Local(CustomWarning):
        pass

    relay = Relay(elsewhere())
    restore = relay.install()
    try:
        warnings.warn("mine", CustomWarning, stacklevel=1)
        warnings.warn(Local("local"), stacklevel=1)
        logging.getLogger("some.where").warning("value %s of %r", 1, object)
        try:
            raise ValueError("inside")
        except ValueError:
            logging.getLogger("some.where").exception("failed")
    finally:
        restore()
    records = pickle.loads(pickle.dumps(relay.drain()))
    assert relay.drain() == []

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        replay(records)

    assert [(str(each.message), each.category) for each in caught] == [
        ("mine", CustomWarning),
        ("local", CustomWarning),
    ]
    assert caplog.records[0].getMessage() == "value 1 of <class 'object'>"
    assert "ValueError: inside" in caplog.records[1].getMessage()


def test_filters_that_cannot_travel_are_left_out():
    class Local(Warning):
        __reduce_ex__ = None

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=Local)
        settings = OutputSettings.current()

    assert pickle.loads(settings.filters)
