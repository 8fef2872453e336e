"""``BatchEnv(backend="auto")`` on real environments."""

import copy
import itertools
import os
import random
import threading
import time

import gymnasium
import joblib
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from joblib_envs import ArgumentError, BatchEnv, EnvInsideFactoryError, SubEnvError
from joblib_envs.choosing import auto, trial
from joblib_envs.choosing.decision import HandOver
from joblib_envs.envs import BusyEnv, CountingEnv, GlobalRandomEnv, SleepingEnv
from joblib_envs.equality import bit_equal

MACHINE = HandOver(call_us=25.0, per_env_us=1.5, per_byte_us=5e-5, worker_us={"threading": 20.0, "loky": 40.0})


@pytest.fixture(autouse=True)
def two_quiet_cpus(monkeypatch):
    """Let what is chosen depend on the environment alone."""
    monkeypatch.setattr(auto, "known_hand_over", lambda: MACHINE)
    monkeypatch.setattr(auto.joblib, "cpu_count", lambda: 2)


def sleeping():
    return SleepingEnv(0.005)


def busy():
    return BusyEnv(0.002)


class SharingEnv(SleepingEnv):
    """Keeps its count in its class while it waits."""

    scratch = 0

    def step(self, action):
        SharingEnv.scratch = self.count
        time.sleep(0.002)
        self.count = SharingEnv.scratch
        return CountingEnv.step(self, action)


class LockingEnv(SleepingEnv):
    """Lets one instance wait at a time."""

    lock = threading.Lock()

    def step(self, action):
        with self.lock:
            return super().step(action)


class DyingEnv(CountingEnv):
    def step(self, action):
        os._exit(3)


class BrokenStepEnv(CountingEnv):
    def step(self, action):
        raise ValueError("this step is broken")


class BrokenEnv(CountingEnv):
    def __init__(self):
        raise KeyError("no such file")


def test_it_chooses_the_caller_for_few_cheap_steps_and_says_why():
    with BatchEnv("CartPole-v1", 2, backend="auto") as envs:
        assert set(envs.placement) == {"caller"}
        assert (envs.choice.backend, envs.choice.n_jobs) == ("sequential", 1)
        assert "2 environments should take" in envs.choice.reason
        assert envs.choice.costs.num_steps > 100


def test_it_chooses_processes_for_steps_that_compute():
    with BatchEnv(busy, 4, backend="auto") as envs:
        assert (envs.choice.backend, envs.n_jobs) == ("loky", 2)
        assert not envs.choice.costs.waits


def test_it_chooses_a_thread_for_each_environment_that_waits():
    with BatchEnv(sleeping, 8, backend="auto") as envs:
        assert (envs.choice.backend, envs.n_jobs) == ("threading", 8)


@pytest.mark.parametrize("env", [SharingEnv, LockingEnv], ids=["sharing", "locking"])
def test_instances_that_disturb_one_another_in_threads_get_processes(env):
    with BatchEnv(env, 3, backend="auto") as envs:
        assert envs.choice.backend == "loky"
        assert envs.choice.costs.waits
        assert "Threads were left out" in envs.choice.reason


def test_the_data_are_those_of_gymnasium_s_sync_vector_env():
    with BatchEnv("CartPole-v1", 3, backend="auto") as ours, SyncVector("CartPole-v1", 3) as theirs:
        seen = [[envs.reset(seed=3), *(envs.step(np.ones(3, np.int64)) for _ in range(30))] for envs in (ours, theirs)]

    assert bit_equal(*seen)


class SyncVector(SyncVectorEnv):
    def __init__(self, env_id, num_envs):
        super().__init__([lambda: gymnasium.make(env_id)] * num_envs)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


@pytest.mark.parametrize("options", [{"n_jobs": 1}, {"num_envs": 1}])
def test_nothing_is_measured_where_there_is_nothing_to_choose(monkeypatch, options):
    monkeypatch.setattr(auto, "try_env", lambda *_: pytest.fail("it was measured"))

    with BatchEnv("CartPole-v1", **{"num_envs": 4, **options}, backend="auto") as envs:
        assert envs.choice.backend == "sequential"
        assert "nothing was measured" in envs.choice.reason


def test_on_one_cpu_it_chooses_the_caller(monkeypatch):
    monkeypatch.setattr(auto.joblib, "cpu_count", lambda: 1)

    with BatchEnv(busy, 4, backend="auto") as envs:
        assert envs.choice.backend == "sequential"


def test_n_jobs_and_joblib_s_context_bound_it():
    with BatchEnv(sleeping, 8, backend="auto", n_jobs=3) as envs:
        assert envs.n_jobs == 3
    with joblib.parallel_config(n_jobs=4), BatchEnv(sleeping, 8, backend="auto") as envs:
        assert envs.n_jobs == 4


def test_caller_steps_false_keeps_environments_out_of_the_callers_process():
    with BatchEnv("CartPole-v1", 2, backend="auto", caller_steps=False) as envs:
        assert all(place.startswith("process") for place in envs.placement)


def test_tasks_are_refused():
    with pytest.raises(ArgumentError, match="chooses among actors"):
        BatchEnv("CartPole-v1", 2, backend="auto", execution="tasks")


def test_a_factory_that_cannot_be_pickled_stays_in_the_callers_process():
    numbers = (number for number in range(10))

    def factory():
        return CountingEnv(start=next(numbers))

    with BatchEnv(factory, 2, backend="auto") as envs:
        assert envs.choice.backend == "sequential"
        assert "can't be pickled" in envs.choice.reason
        assert envs.reset()[0].tolist() == [0, 1]  # no trial has drawn from them


def test_what_factories_share_is_not_used_up_by_the_trial():
    numbers = itertools.count()

    with BatchEnv(lambda: CountingEnv(start=next(numbers)), 2, backend="auto") as envs:
        assert envs.reset()[0].tolist() == [0, 1]


def test_an_environment_object_in_a_factory_is_refused():
    env = CountingEnv()

    with pytest.raises(EnvInsideFactoryError):
        BatchEnv(lambda: env, 2, backend="auto")


def test_a_constructor_that_raises_gives_the_error_of_the_other_backends():
    with pytest.raises(SubEnvError, match="no such file") as caught:
        BatchEnv(BrokenEnv, 2, backend="auto")

    assert isinstance(caught.value, KeyError)
    assert 0 in caught.value.failures


def test_a_step_that_raises_is_left_to_the_user():
    with BatchEnv(BrokenStepEnv, 2, backend="auto") as envs:
        assert "this step is broken" in envs.choice.reason
        assert envs.choice.costs is None
        envs.reset(seed=0)
        with pytest.raises(SubEnvError, match="this step is broken"):
            envs.step([0, 0])


def test_an_environment_that_ends_its_process_is_kept_out_of_the_callers():
    with BatchEnv(DyingEnv, 2, backend="auto") as envs:
        assert "caller" not in envs.placement
        assert "it ended its process" in envs.choice.reason


def test_an_environment_that_gives_no_answer_gets_the_default(monkeypatch):
    monkeypatch.setattr(auto, "_TIMEOUT_S", 0.01)

    with BatchEnv(sleeping, 2, backend="auto") as envs:
        assert "no answer" in envs.choice.reason
        assert envs.choice.backend == "loky"


def test_the_trial_leaves_global_generators_as_they_were_and_prints_nothing(capfd):
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()

    with BatchEnv(GlobalRandomEnv, 2, backend="auto"):
        after = random.getstate(), np.random.get_state()

    assert bit_equal(before, after)
    assert capfd.readouterr() == ("", "")


def test_the_trial_closes_what_it_has_made(tmp_path):
    log = tmp_path / "log"

    class LoggedEnv(SleepingEnv):
        def __init__(self):
            super().__init__(0.001)
            with log.open("a") as file:
                file.write("+")

        def close(self):
            with log.open("a") as file:
                file.write("-")

    found = trial.try_env(auto._packed([LoggedEnv] * 2), 1, 10.0)

    assert found.safe_in_threads
    assert log.read_text().count("+") == log.read_text().count("-") > 2


def test_different_environments_are_measured_together():
    found = trial.try_env(auto._packed([BusyEnv, lambda: BusyEnv(0.003)]), 1, 10.0)

    assert 1500 < found.step_us < 3000
    assert found.step_std_us > 500


def test_where_no_worker_process_can_be_had_it_goes_on_without(monkeypatch):
    def refuse():
        raise OSError("no shared memory")

    monkeypatch.setattr(auto, "known_hand_over", lambda: None)
    monkeypatch.setattr(auto, "HandOverMeter", refuse)

    with BatchEnv(busy, 4, backend="auto") as envs:
        assert envs.choice.backend == "sequential"


def test_the_machine_is_measured_where_that_was_not_done_yet(monkeypatch):
    monkeypatch.setattr(auto, "known_hand_over", lambda: None)

    with BatchEnv(sleeping, 8, backend="auto") as envs:
        assert envs.choice.backend == "threading"
        assert envs.choice.hand_over.worker_us["threading"] > 0
        assert envs.choice.measured_s < 5  # about one second, on a machine that does nothing else


def test_a_copied_batch_goes_on_where_it_was(monkeypatch):
    with BatchEnv("CartPole-v1", 2, backend="auto", probe=False) as envs:
        envs.reset(seed=0)
        monkeypatch.setattr(auto, "try_env", lambda *_: pytest.fail("it was measured again"))
        with copy.deepcopy(envs) as twin:
            assert twin.placement == envs.placement
            assert twin.choice is None
            assert bit_equal(envs.step([0, 1]), twin.step([0, 1]))


def test_a_named_backend_has_no_choice():
    with BatchEnv("CartPole-v1", 2, backend="sequential") as envs:
        assert envs.choice is None
