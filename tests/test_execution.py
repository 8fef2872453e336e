"""Which backend runs a batch, with how many workers, and where each sub-environment lives."""

import contextlib
import os
import re
import threading
from functools import partial
from typing import ClassVar

import joblib
import joblib.parallel
import pytest
from batches import BACKENDS, Backend, counting_batch, make_batch
from joblib.parallel import LokyBackend, ThreadingBackend
from odd_envs import PlaceEnv

from joblib_envs import ArgumentError, ArgumentTypeError, BackendUnavailableError, BatchEnv
from joblib_envs.envs import CountingEnv
from joblib_envs.execution import available_backends, choose_backend, executions_of, install_hints
from joblib_envs.execution.protocol import split_evenly

PLACEMENTS = {
    "sequential-actors": ("caller",) * 4,
    "sequential-tasks": ("task-0",) * 4,
    "threading-actors": ("thread-0", "thread-0", "thread-1", "thread-1"),
    "threading-tasks": ("task-0", "task-0", "task-1", "task-1"),
    "loky-actors": ("process-0", "process-0", "caller", "caller"),
    "loky-tasks": ("task-0", "task-0", "task-1", "task-1"),
    "multiprocessing-tasks": ("task-0", "task-0", "task-1", "task-1"),
}


def chosen(backend=None, n_jobs=None, execution=None, caller_steps=None, inner_max_num_threads=None, num_envs=8):
    return choose_backend(backend, n_jobs, execution, caller_steps, inner_max_num_threads, num_envs)


class CountingThreads(ThreadingBackend):
    """Counts the tasks that reach it."""

    counts: ClassVar[list[int]] = []

    def submit(self, func, callback=None):
        self.counts.append(1)
        return super().submit(func, callback)


def test_tasks_make_every_reset_step_and_call_through_joblib_and_actors_none(backend, monkeypatch):
    parallel_calls, counts = [], []
    original = joblib.Parallel.__call__

    def counted(self, iterable):
        parallel_calls.append(1)
        return original(self, iterable)

    monkeypatch.setattr(joblib.Parallel, "__call__", counted)
    with counting_batch(backend) as envs:
        for call in (lambda: envs.reset(seed=0), lambda: envs.step([0, 0]), lambda: envs.get_attr("count")):
            before = len(parallel_calls)
            result = call()
            counts.append(len(parallel_calls) - before)

    assert counts == ([1, 1, 1] if backend.execution == "tasks" else [0, 0, 0])
    assert result == (1, 1)


def test_a_backend_of_ones_own_gets_a_task_for_each_shard():
    CountingThreads.counts.clear()
    counts = []
    with BatchEnv(CountingEnv, 4, backend=CountingThreads(), n_jobs=2) as envs:
        for call in (lambda: envs.reset(seed=0), lambda: envs.step([0] * 4)):
            before = len(CountingThreads.counts)
            call()
            counts.append(len(CountingThreads.counts) - before)

    assert counts == [2, 2]
    assert envs.placement == ("task-0", "task-0", "task-1", "task-1")


def test_a_registered_backend_is_known_by_its_name():
    CountingThreads.counts.clear()
    joblib.register_parallel_backend("counted", CountingThreads)
    try:
        assert "counted" in available_backends()
        assert executions_of("counted") == ("tasks",)
        with BatchEnv(CountingEnv, 2, backend="counted", n_jobs=2) as envs:
            envs.reset(seed=0)
            observations, *_ = envs.step([0, 0])
        with pytest.raises(ArgumentError, match="no actors"):
            BatchEnv(CountingEnv, 2, backend="counted", execution="actors")
    finally:
        del joblib.parallel.BACKENDS["counted"]

    assert observations.tolist() == [1, 1]
    assert CountingThreads.counts


def test_nothing_is_registered_by_using_a_batch(backend):
    before = dict(joblib.parallel.BACKENDS)

    with counting_batch(backend) as envs:
        envs.reset(seed=0)

    assert before == joblib.parallel.BACKENDS


def test_each_sub_environment_lives_where_placement_says(backend):
    with make_batch(backend, PlaceEnv, 4) as envs:
        placement, n_jobs = envs.placement, envs.n_jobs
        pids = envs.call("pid")
        threads = envs.call("thread_name")
        again = envs.call("pid")

    assert placement == PLACEMENTS[str(backend)]
    assert n_jobs == (1 if backend.name == "sequential" else 2)
    if backend.shares_memory:
        assert set(pids) == {os.getpid()}
    if backend.execution == "actors":
        assert again == pids
        for place in set(placement):
            assert len({pid for pid, where in zip(pids, placement, strict=True) if where == place}) == 1
        assert [pid == os.getpid() for pid in pids] == [not where.startswith("process") for where in placement]
    if str(backend) == "threading-actors":
        assert threads == ("joblib-envs-0",) * 2 + ("joblib-envs-1",) * 2
    if str(backend) == "loky-tasks":
        assert os.getpid() not in pids


@pytest.mark.parametrize("name", ["threading", "loky"])
def test_caller_steps_decides_whether_the_caller_has_the_last_shard(name):
    with BatchEnv(PlaceEnv, 3, backend=name, n_jobs=2, caller_steps=True) as envs:
        with_caller = envs.placement, envs.call("thread_name")
    with BatchEnv(PlaceEnv, 3, backend=name, n_jobs=2, caller_steps=False) as envs:
        without, pids = envs.placement, envs.call("pid")

    kind = {"threading": "thread", "loky": "process"}[name]
    assert with_caller[0] == (f"{kind}-0", "caller", "caller")
    assert with_caller[1][1:] == (threading.current_thread().name,) * 2
    assert without == (f"{kind}-0", f"{kind}-1", f"{kind}-1")
    assert (os.getpid() in pids) == (name == "threading")


def test_a_refused_combination_with_caller_steps():
    with pytest.raises(ArgumentError, match="execution='actors'"):
        chosen("loky", execution="tasks", caller_steps=True)
    with pytest.raises(ArgumentError, match="backend='loky'"):
        chosen("sequential", caller_steps=False)
    with pytest.raises(ArgumentTypeError):
        chosen("loky", caller_steps=1)


@pytest.mark.parametrize(("name", "execution"), [("sequential", "actors"), ("threading", "actors"), ("loky", "actors")])
def test_the_default_execution_is_actors_where_there_are_any(name, execution):
    assert chosen(name).execution == execution
    assert executions_of(name) == ("actors", "tasks")


def test_multiprocessing_has_tasks_only():
    assert chosen("multiprocessing").execution == "tasks"
    assert executions_of("multiprocessing") == ("tasks",)
    with pytest.raises(ArgumentError, match="no actors"):
        chosen("multiprocessing", execution="actors")


@pytest.mark.parametrize("execution", ["actor", "", True, 1])
def test_another_execution_is_refused(execution):
    with pytest.raises(ArgumentError, match="'actors', 'tasks' or None"):
        chosen("loky", execution=execution)


def test_loky_on_all_cpus_is_the_default():
    choice = chosen()

    assert (choice.name, choice.execution) == ("loky", "actors")
    assert choice.n_jobs == min(joblib.cpu_count(), 8)
    assert choice.num_threads == 1


def test_the_innermost_context_decides_where_arguments_do_not():
    with joblib.parallel_config("threading", n_jobs=2), joblib.parallel_config("loky", n_jobs=3):
        choice = chosen()
    with joblib.parallel_config("threading", n_jobs=2):
        threads, explicit = chosen(), chosen("loky", 3)
    with joblib.parallel_config(n_jobs=1):
        one = chosen()
    with joblib.parallel_config("loky", inner_max_num_threads=2):
        inner, inner_explicit = chosen(), chosen(inner_max_num_threads=3)

    assert (choice.name, choice.n_jobs) == ("loky", 3)
    assert (threads.name, threads.n_jobs) == ("threading", 2)
    assert (explicit.name, explicit.n_jobs) == ("loky", 3)
    assert (one.name, one.n_jobs) == ("loky", 1)
    assert (inner.num_threads, inner_explicit.num_threads) == (2, 3)


def test_the_context_is_read_once_when_the_batch_is_built():
    with joblib.parallel_config("threading", n_jobs=2):
        envs = BatchEnv(PlaceEnv, 2)
    with envs, joblib.parallel_config("sequential"):
        envs.reset(seed=0)
        names = envs.call("thread_name")

    assert names == ("joblib-envs-0", "joblib-envs-1")


def test_a_context_around_the_calls_of_tasks_changes_nothing(backend):
    with make_batch(backend, CountingEnv, 2) as envs, joblib.parallel_config("threading", n_jobs=1, verbose=50):
        envs.reset(seed=0)
        observations, *_ = envs.step([0, 0])

    assert observations.tolist() == [1, 1]


@pytest.mark.parametrize(("n_jobs", "num_envs", "wanted"), [(1, 4, 1), (3, 4, 3), (100, 4, 4), (2, 1, 1)])
def test_there_are_never_more_workers_than_environments(n_jobs, num_envs, wanted):
    for name in ("threading", "loky", "multiprocessing"):
        assert chosen(name, n_jobs, num_envs=num_envs).n_jobs == wanted


def test_minus_one_counts_the_cpus_that_this_process_may_use(monkeypatch):
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")

    assert chosen("loky", -1).n_jobs == 1


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"n_jobs": 0}, ArgumentError),
        ({"n_jobs": 1.5}, ArgumentTypeError),
        ({"n_jobs": "2"}, ArgumentTypeError),
        ({"n_jobs": True}, ArgumentTypeError),
        ({"inner_max_num_threads": 0}, ArgumentError),
        ({"inner_max_num_threads": 1.0}, ArgumentTypeError),
        ({"backend": 3}, ArgumentTypeError),
        ({"backend": LokyBackend}, ArgumentTypeError),
    ],
    ids=str,
)
def test_other_numbers_and_types_are_refused(options, kind):
    with pytest.raises(kind):
        chosen(**options)


def test_an_unknown_backend_is_refused_with_those_that_work():
    with pytest.raises(BackendUnavailableError, match=r"'lokky' is unknown to joblib: choose one of \['sequential'"):
        BatchEnv(CountingEnv, 2, backend="lokky")


@pytest.mark.parametrize("is_installed", [False, True])
@pytest.mark.parametrize(("name", "step"), [("ray", "call ray.init"), ("spark", "call joblibspark.register_spark")])
def test_a_known_backend_that_cannot_be_used_says_how_to_get_it(name, step, is_installed, monkeypatch):
    if name in joblib.parallel.BACKENDS:
        pytest.skip(f"{name} is registered")
    monkeypatch.setattr("importlib.util.find_spec", lambda package: object() if is_installed else None)

    with pytest.raises(BackendUnavailableError, match=re.escape(step)) as caught:
        BatchEnv(CountingEnv, 2, backend=name)
    assert ("run `pip install" in str(caught.value)) == (not is_installed)
    assert step in install_hints()[name]


def test_a_backend_whose_package_is_missing_says_so(monkeypatch):
    def register():
        raise ImportError("no package named far")

    monkeypatch.setitem(joblib.parallel.EXTERNAL_BACKENDS, "far", register)

    with pytest.raises(BackendUnavailableError, match="'far' can't be used here") as caught:
        BatchEnv(CountingEnv, 2, backend="far")
    assert isinstance(caught.value.__cause__, ImportError)


def test_a_backend_that_joblib_registers_but_cannot_make_is_not_left_registered(monkeypatch):
    def refuse(**_):
        raise ValueError("far is not installed")

    monkeypatch.setitem(
        joblib.parallel.EXTERNAL_BACKENDS, "far", lambda: joblib.parallel.BACKENDS.setdefault("far", refuse)
    )

    with pytest.raises(BackendUnavailableError, match="'far' can't be used here") as caught:
        BatchEnv(CountingEnv, 2, backend="far")
    assert "far is not installed" in str(caught.value.__cause__)
    assert "far" not in available_backends()


def test_an_instance_of_joblibs_own_backend_has_actors():
    with BatchEnv(PlaceEnv, 2, backend=ThreadingBackend(), n_jobs=2) as envs:
        placement = envs.placement

    assert placement == ("thread-0", "thread-1")


def test_one_instance_serves_several_batches():
    instance = ThreadingBackend()
    with contextlib.ExitStack() as stack:
        batches = [
            stack.enter_context(BatchEnv(CountingEnv, 2, backend=instance, execution="tasks", n_jobs=2))
            for _ in range(2)
        ]
        for envs in batches:
            envs.reset(seed=0)
        batches[0].step([0, 0])
        seconds = [envs.step([0, 0])[0].tolist() for envs in batches]

    assert seconds == [[2, 2], [1, 1]]


@pytest.mark.parametrize(
    ("num_envs", "num_shards", "sizes"), [(4, 2, [2, 2]), (5, 2, [2, 3]), (3, 3, [1, 1, 1]), (7, 3, [2, 2, 3])]
)
def test_shards_are_contiguous_and_even(num_envs, num_shards, sizes):
    shards = split_evenly(num_envs, num_shards)

    assert [len(shard) for shard in shards] == sizes
    assert [index for shard in shards for index in shard] == list(range(num_envs))


@pytest.mark.parametrize("n_jobs", [1, 2, 3])
def test_the_number_of_workers_changes_no_data(backend, n_jobs):
    factories = [partial(CountingEnv, 3, start) for start in (1, 2, 3)]
    with make_batch(backend, factories, n_jobs=n_jobs) as envs:
        first, infos = envs.reset(seed=4)
        steps = [envs.step([0, 0, 0])[0].tolist() for _ in range(4)]

    assert first.tolist() == [1, 2, 3]
    assert infos["drawn"].tolist() == [CountingEnv().reset(seed=seed)[1]["drawn"] for seed in (4, 5, 6)]
    assert steps == [[2, 3, 4], [3, 4, 5], [4, 5, 6], [1, 2, 3]]


def test_the_tests_run_on_every_pair_of_joblibs_own_backends():
    names = ("sequential", "threading", "loky", "multiprocessing")
    pairs = {Backend(name, execution) for name in names for execution in executions_of(name)}

    assert set(names) <= set(available_backends())
    assert pairs == set(BACKENDS)
