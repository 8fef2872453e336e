"""A batch beside other batches, and beside the user's own use of joblib."""

import os
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import psutil
import pytest
from batches import BACKENDS, PROCESSES, Backend, counting_batch, make_batch, run_script, wait_until
from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky import get_reusable_executor
from odd_envs import PlaceEnv

from joblib_envs import BatchEnv
from joblib_envs.envs import CountingEnv, LinearAlgebraEnv, VariableLengthEnv
from joblib_envs.equality import first_difference

LOKY = [backend for backend in BACKENDS if backend.name == "loky"]


def run(envs, num_steps=4, between=lambda: None):
    """Step a batch, do something else between two steps, and return everything."""
    envs.action_space.seed(1)
    results = [envs.reset(seed=1)]
    for _ in range(num_steps):
        between()
        results.append(envs.step(envs.action_space.sample()))
    return results


@pytest.fixture(scope="module")
def wanted():
    with make_batch(BACKENDS[0], partial(VariableLengthEnv, 4), 3) as envs:
        return run(envs)


def test_two_open_batches_do_not_mix(backend, wanted):
    with (
        make_batch(backend, partial(VariableLengthEnv, 4), 3) as envs,
        counting_batch(backend, num_envs=2) as others,
    ):
        others.reset(seed=0)
        counts = []

        got = run(envs, between=lambda: counts.append(others.step([0, 0])[0].tolist()))

    assert first_difference(wanted, got) is None
    assert counts == [[count, count] for count in range(1, 5)]


def test_batches_of_all_backends_are_open_at_once(wanted):
    batches = [make_batch(backend, partial(VariableLengthEnv, 4), 3) for backend in BACKENDS]
    try:
        results = [[envs.reset(seed=1)] for envs in batches]
        for envs in batches:
            envs.action_space.seed(1)
        for _ in range(4):
            for envs, result in zip(batches, results, strict=True):
                result.append(envs.step(envs.action_space.sample()))
    finally:
        for envs in batches:
            envs.close()

    for got in results:
        assert first_difference(wanted, got) is None


def test_halves_of_steps_of_two_batches_may_overlap(backend):
    with counting_batch(backend) as first, counting_batch(backend, start=10) as second:
        for envs in (first, second):
            envs.reset(seed=0)
        first.step_async([0, 0])
        second.step_async([0, 0])
        observations = [envs.step_wait()[0].tolist() for envs in (second, first)]

    assert observations == [[11, 11], [1, 1]]


def test_batches_in_two_threads_do_not_disturb_one_another(backend, wanted):
    results = [[], []]

    def work(result):
        with make_batch(backend, partial(VariableLengthEnv, 4), 3) as envs:
            result.extend(run(envs))

    threads = [threading.Thread(target=work, args=(result,)) for result in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    for got in results:
        assert first_difference(wanted, got) is None


def _square(number):
    return number * number


@pytest.mark.parametrize("users", ["loky", "threading"])
def test_the_users_own_parallel_calls_go_on_beside_a_batch(backend, wanted, users):
    squares = []

    def own_call():
        squares.append(Parallel(n_jobs=2, backend=users)(delayed(_square)(number) for number in range(4)))

    with make_batch(backend, partial(VariableLengthEnv, 4), 3) as envs:
        got = run(envs, between=own_call)

    assert first_difference(wanted, got) is None
    assert squares == [[0, 1, 4, 9]] * 4


def test_the_users_other_numbers_of_workers_do_not_disturb_tasks(wanted):
    numbers = iter([1, 3, 2, 3])

    def own_call():
        Parallel(n_jobs=next(numbers))(delayed(_square)(number) for number in range(4))

    with BatchEnv(partial(VariableLengthEnv, 4), 3, backend="loky", execution="tasks", n_jobs=2, probe=False) as envs:
        got = run(envs, between=own_call)

    assert first_difference(wanted, got) is None


@pytest.mark.parametrize("backend", [*LOKY, Backend("threading", "tasks")], ids=str)
def test_scikit_learn_fits_beside_a_batch(backend):
    ensemble = pytest.importorskip("sklearn.ensemble")
    features = np.arange(40.0).reshape(20, 2)
    labels = np.arange(20) % 2
    predictions = []

    def fit():
        forest = ensemble.RandomForestClassifier(4, n_jobs=2, random_state=0)
        predictions.append(forest.fit(features, labels).predict(features).tolist())

    with make_batch(backend, partial(LinearAlgebraEnv, 30), 2) as envs:
        got = run(envs, 3, between=fit)
    with make_batch(BACKENDS[0], partial(LinearAlgebraEnv, 30), 2) as envs:
        alone = run(envs, 3)

    assert first_difference(alone, got) is None
    assert predictions[0] == predictions[1] == predictions[2]


@pytest.mark.parametrize("backend", LOKY, ids=str)
def test_anybody_may_shut_joblibs_shared_executor_down_between_two_steps(backend):
    Parallel(n_jobs=2, backend="loky")(delayed(_square)(number) for number in range(2))
    with counting_batch(backend) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        get_reusable_executor().shutdown(kill_workers=True)
        observations, *_ = envs.step([0, 0])

    assert observations.tolist() == [2, 2]


def test_workers_that_time_out_between_two_steps_change_nothing():
    with parallel_config("loky", idle_worker_timeout=0.5, n_jobs=2):
        envs = BatchEnv(partial(PlaceEnv, 100), 2, execution="tasks", probe=False)
    with envs:
        envs.reset(seed=0)
        before = set(envs.call("pid"))
        assert wait_until(lambda: not any(psutil.pid_exists(pid) for pid in before))
        observations, *_ = envs.step([0, 0])

    assert observations.tolist() == [1, 1]


def test_an_open_batch_of_actors_does_not_hold_joblibs_executor():
    with counting_batch(Backend("loky", "actors")) as envs:
        envs.reset(seed=0)
        get_reusable_executor().shutdown(kill_workers=True)
        pids = Parallel(n_jobs=2, backend="loky")(delayed(os.getpid)() for _ in range(2))
        envs.step([0, 0])

    assert os.getpid() not in pids


def _count_in_a_worker(backend_name, execution):
    with BatchEnv(CountingEnv, 2, backend=backend_name, execution=execution, probe=False) as envs:
        envs.reset(seed=0)
        for _ in range(2):
            observations, *_ = envs.step([0, 0])
        return observations.tolist(), os.getpid()


@pytest.mark.filterwarnings("ignore:Loky-backed parallel loops cannot be nested below threads")
@pytest.mark.parametrize(
    ("outer", "inner", "execution"),
    [
        ("loky", None, None),
        ("loky", "sequential", "tasks"),
        ("loky", "threading", "actors"),
        ("loky", "loky", "actors"),
        ("loky", "loky", "tasks"),
        ("threading", None, None),
        ("threading", "loky", "actors"),
        ("threading", "loky", "tasks"),
        ("multiprocessing", None, None),
        ("multiprocessing", "loky", "actors"),
    ],
)
def test_a_batch_works_inside_a_worker_of_joblib(outer, inner, execution):
    results = Parallel(n_jobs=2, backend=outer)(delayed(_count_in_a_worker)(inner, execution) for _ in range(2))

    assert [observations for observations, _ in results] == [[2, 2], [2, 2]]
    assert all((pid == os.getpid()) == (outer == "threading") for _, pid in results)


class SubprocessEnv(CountingEnv):
    """Starts a process of its own in each step."""

    def step(self, action):
        subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
        return super().step(action)


class ParallelEnv(CountingEnv):
    """Uses joblib itself in each step."""

    def step(self, action):
        assert Parallel(n_jobs=2)(delayed(_square)(number) for number in range(3)) == [0, 1, 4]
        return super().step(action)


@pytest.mark.parametrize("backend", [*PROCESSES, Backend("threading", "actors")], ids=str)
def test_an_environment_may_start_processes(backend):
    with make_batch(backend, partial(SubprocessEnv, 100), 2) as envs:
        envs.reset(seed=0)
        observations, *_ = envs.step([0, 0])

    assert observations.tolist() == [1, 1]


@pytest.mark.parametrize("backend", [*LOKY, Backend("threading", "actors")], ids=str)
def test_an_environment_may_use_joblib_itself(backend):
    with make_batch(backend, partial(ParallelEnv, 100), 2) as envs:
        envs.reset(seed=0)
        observations, *_ = envs.step([0, 0])

    assert observations.tolist() == [1, 1]


@pytest.mark.parametrize("backend", PROCESSES, ids=str)
def test_pygame_in_the_caller_or_in_workers_does_not_keep_a_batch_from_closing(backend, tmp_path):
    """SDL's own handler of SIGTERM is inherited by forked workers."""
    pytest.importorskip("pygame")

    ended = run_script(
        tmp_path,
        f"""
        import os
        os.environ["SDL_VIDEODRIVER"] = os.environ["SDL_AUDIODRIVER"] = "dummy"
        import pygame
        from batches import Backend, make_batch

        if __name__ == "__main__":
            pygame.init()
            options = {{"env_kwargs": {{"render_mode": "rgb_array"}}}}
            for env_id in ("CartPole-v1", "FrozenLake-v1"):
                with make_batch(Backend({backend.name!r}, {backend.execution!r}), env_id, 2, **options) as envs:
                    envs.reset(seed=0)
                    envs.step([0, 0])
                    print(len(envs.render()))
        """,
    )

    assert (ended.returncode, ended.stdout.split()[-2:]) == (0, ["2", "2"]), ended.stderr
