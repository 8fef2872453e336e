"""BLAS threads: equal bits on every backend, and the caller's own setting restored."""

import threading
from functools import partial

import numpy as np
import pytest
from batches import make_batch
from gymnasium.vector import SyncVectorEnv
from threadpoolctl import threadpool_info, threadpool_limits

from joblib_envs.envs import CountingEnv, FailingEnv, LinearAlgebraEnv
from joblib_envs.equality import first_difference
from joblib_envs.thread_limit import ThreadLimit, thread_variables


class ThreadsEnv(CountingEnv):
    """Tells how many BLAS threads it has."""

    def threads(self):
        return _blas_threads()


def _blas_threads():
    np.linalg.solve(np.eye(2), np.ones(2))
    return {info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"}


def run(envs):
    envs.action_space.seed(3)
    results = [envs.reset(seed=3)]
    results.extend(envs.step(envs.action_space.sample()) for _ in range(6))
    envs.close()
    return results


@pytest.fixture(scope="module")
def wanted():
    with threadpool_limits(1):
        return run(SyncVectorEnv([LinearAlgebraEnv] * 3))


@pytest.mark.parametrize("outside", [1, 2])
def test_linear_algebra_has_equal_bits_on_every_backend(backend, wanted, outside):
    with threadpool_limits(outside):
        got = run(make_batch(backend, LinearAlgebraEnv, 3))

    assert first_difference(wanted, got, "run") is None


@pytest.mark.parametrize("num_threads", [None, 2])
def test_environments_have_as_many_threads_as_were_asked_for(backend, num_threads):
    with (
        threadpool_limits(2 if num_threads is None else 1),
        make_batch(backend, ThreadsEnv, 2, inner_max_num_threads=num_threads) as envs,
    ):
        threads = envs.call("threads")

    assert threads == ({num_threads or 1},) * 2


@pytest.mark.parametrize("own", [1, 2])
def test_the_callers_own_number_is_restored_after_every_call(backend, own):
    with threadpool_limits(own):
        before = threadpool_info()
        with make_batch(backend, CountingEnv, 2, inner_max_num_threads=3 - own) as envs:
            numbers = [threadpool_info()]
            envs.reset(seed=0)
            numbers.append(threadpool_info())
            envs.step([0, 0])
            numbers.append(threadpool_info())
            envs.get_attr("count")
            numbers.append(threadpool_info())
        numbers.append(threadpool_info())

    assert all(each == before for each in numbers)


def test_the_callers_own_number_is_restored_after_a_failure(backend):
    with threadpool_limits(2):
        before = threadpool_info()
        with pytest.raises(ValueError):
            make_batch(backend, partial(FailingEnv, 1, "init"), 2)
        with make_batch(backend, FailingEnv, 2) as envs:
            envs.reset(seed=0)
            with pytest.raises(ValueError):
                envs.step([0, 0])
        after = threadpool_info()

    assert after == before


def test_the_newest_of_several_limits_holds_and_the_last_one_restores():
    with threadpool_limits(2):
        first, second = ThreadLimit(1), ThreadLimit(3)
        first.acquire()
        with_first = _blas_threads()
        second.acquire()
        with_both = _blas_threads()
        first.release()
        with_second = _blas_threads()
        second.release()
        with_none = _blas_threads()

    assert (with_first, with_both, with_second, with_none) == ({1}, {3}, {3}, {2})


def test_a_limit_can_be_set_from_any_thread():
    seen = []

    def work():
        limit = ThreadLimit(1)
        limit.acquire()
        seen.append(_blas_threads())
        limit.release()
        seen.append(_blas_threads())

    with threadpool_limits(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert seen == [{1}, {2}]


def test_new_processes_get_the_number_in_their_environment():
    variables = thread_variables(3)

    assert {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"} <= set(variables)
    assert set(variables.values()) == {"3"}
