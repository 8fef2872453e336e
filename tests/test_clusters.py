"""dask and ray, each as a cluster of two worker processes on this machine."""

import _thread
import contextlib
import gc
import logging
import os
import shutil
import signal
import tempfile
import threading
import time
import warnings
from functools import partial
from pathlib import Path

import gymnasium
import joblib.parallel
import numpy as np
import pytest
from batches import DEADLINE_S, run_script, wait_until
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from joblib import parallel_config
from joblib.pool import PicklingPool

from joblib_envs import BatchEnv, RandomPolicy, SubEnvError, WorkerDiedError, check_vector_env
from joblib_envs.envs import CountingEnv, FailingEnv
from joblib_envs.equality import first_difference

pytestmark = pytest.mark.xdist_group("clusters")

HAS = {"dask": "distributed", "ray": "ray"}
"""Each backend's package."""


@pytest.fixture(scope="module", params=sorted(HAS))
def running_cluster(request):
    """The name of the backend, while its cluster runs."""
    pytest.importorskip(HAS[request.param])
    known = dict(joblib.parallel.BACKENDS)
    with {"dask": dask_cluster, "ray": ray_cluster}[request.param]():
        yield request.param
    joblib.parallel.BACKENDS.clear()
    joblib.parallel.BACKENDS.update(known)


@pytest.fixture
def cluster(running_cluster):
    """The name of the backend, once both workers are there."""
    if running_cluster == "dask":
        from distributed import get_client

        # A worker that is killed while it starts isn't started again (distributed 2026.8).
        get_client().wait_for_workers(2, timeout=DEADLINE_S)
    return running_cluster


@contextlib.contextmanager
def dask_cluster(num_workers=2, num_threads=1, processes=True):
    import dask
    from distributed import Client, LocalCluster

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            n_workers=num_workers,
            threads_per_worker=num_threads,
            processes=processes,
            host="127.0.0.1" if processes else None,
            dashboard_address=None,
            local_directory=folder,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextlib.contextmanager
def ray_cluster():
    # Not below pytest's folder: the paths of ray's sockets may have 107 characters.
    folder = tempfile.mkdtemp(prefix="ray-")
    before = dict(os.environ)
    # No files in the user's home, no word to ray's makers, and workers that find the tests' modules.
    here = Path(__file__).parent
    path = os.pathsep.join([str(here.parent), str(here)])
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", PYTHONPATH=path)
    import ray
    from ray.util.joblib import register_ray

    register_ray()
    try:
        ray.init(
            address="local",
            num_cpus=2,
            object_store_memory=100 * 2**20,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=folder,
        )
        yield
    finally:
        ray.shutdown()
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


class WorkerEnv(CountingEnv):
    """Tells its process, kills it once, warns, takes its time and carries a large state, as it is asked to."""

    def __init__(self, marker=None, num_bytes=0, text="", step_s=0.0):
        super().__init__(episode_length=4)
        self.marker = marker
        self.text = text
        self.step_s = step_s
        self.ballast = np.zeros(num_bytes, dtype=np.uint8)

    def step(self, action):
        if self.marker is not None and self.count == 2 and not Path(self.marker).exists():
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.text:
            warnings.warn(self.text, stacklevel=1)
            logging.getLogger("worker_env").warning(self.text)
        self.ballast += 1
        time.sleep(self.step_s)
        return super().step(action)

    def pid(self):
        return os.getpid()

    def total(self):
        return int(self.ballast.sum(dtype=np.int64))


def play(envs, num_steps):
    """Reset and step by seeded actions; return all there is to compare."""
    envs.action_space.seed(3)
    seen = [envs.reset(seed=7)]
    seen.extend(envs.step(envs.action_space.sample()) for _ in range(num_steps))
    envs.close()
    return seen


@pytest.mark.parametrize(("env_id", "num_steps"), [("CartPole-v1", 60), ("HalfCheetah-v5", 10)])
def test_a_cluster_gives_the_data_of_gymnasium_bit_for_bit(cluster, env_id, num_steps):
    if env_id != "CartPole-v1":
        pytest.importorskip("mujoco")
    wanted = play(SyncVectorEnv([partial(gymnasium.make, env_id)] * 3), num_steps)

    got = play(BatchEnv(env_id, 3, backend=cluster), num_steps)

    assert first_difference(wanted, got) is None


def test_a_rollout_equals_the_one_in_the_caller(cluster):
    rollouts = []
    for backend in ("sequential", cluster):
        with BatchEnv("CartPole-v1", 3, backend=backend, execution="tasks", n_jobs=2, probe=False) as envs:
            envs.reset(seed=0)
            rollouts.append([envs.rollout(lambda x: (x[:, 2] > 0).astype(np.int64), 30)])
            rollouts[-1].append(envs.rollout(RandomPolicy(envs.single_action_space, 4), 30))

    for wanted, got in zip(*rollouts, strict=True):
        for name in ("observations", "actions", "rewards", "terminations", "truncations", "last_observations"):
            assert first_difference(getattr(wanted, name), getattr(got, name), name) is None


def test_a_cluster_keeps_the_strict_contract(cluster):
    check_vector_env(
        partial(BatchEnv, backend=cluster, probe=False),
        programs=1,
        autoreset_modes=[AutoresetMode.NEXT_STEP],
        environments=["counting", "ez_pickled_counting", "echo[dict]", "infos[coming_and_going]"],
        strict=True,
        inner_max_num_threads=1,
    )


def test_a_worker_killed_in_the_middle_of_a_step_changes_nothing(cluster, tmp_path):
    wanted = play(SyncVectorEnv([WorkerEnv] * 3), 6)
    marker = tmp_path / "killed"

    got = play(BatchEnv([WorkerEnv, WorkerEnv, partial(WorkerEnv, str(marker))], backend=cluster, probe=False), 6)

    assert marker.exists()
    assert first_difference(wanted, got) is None


def test_a_worker_killed_between_two_steps_changes_nothing(cluster):
    with BatchEnv(WorkerEnv, 2, backend=cluster, probe=False) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        os.kill(envs.call("pid")[0], signal.SIGKILL)
        observations, *_ = envs.step([0, 0])

    assert observations.tolist() == [2, 2]


class PidWrapper(gymnasium.Wrapper):
    def pid(self):
        return os.getpid()


def test_new_workers_get_all_that_a_simulation_needs(cluster):
    pytest.importorskip("mujoco")
    wanted = play(SyncVectorEnv([partial(gymnasium.make, "HalfCheetah-v5")] * 2), 2)

    with BatchEnv("HalfCheetah-v5", 2, backend=cluster, wrappers=[PidWrapper]) as envs:
        envs.action_space.seed(3)
        got = [envs.reset(seed=7), envs.step(envs.action_space.sample())]
        os.kill(envs.call("pid")[0], signal.SIGKILL)
        got.append(envs.step(envs.action_space.sample()))

    assert first_difference(wanted, got) is None


def test_an_environment_that_always_ends_its_worker_is_named_and_the_cluster_goes_on(cluster):
    dying = partial(FailingEnv, 1, "step", "os_exit", 100)
    with BatchEnv([CountingEnv, CountingEnv, dying], backend=cluster, probe=False) as envs:
        envs.reset(seed=0)
        with pytest.raises(WorkerDiedError, match="sub-environments 1 to 2") as caught:
            envs.step([0, 0, 0])

    with BatchEnv(CountingEnv, 2, backend=cluster, probe=False) as envs:
        observations, _ = envs.reset(seed=0)

    assert caught.value.env_indices == (1, 2)
    assert observations.tolist() == [0, 0]


def test_an_exception_in_an_environment_arrives_as_itself_and_the_others_go_on(cluster):
    failing = partial(FailingEnv, 1, "step", "value_error", 100)
    with BatchEnv([CountingEnv, failing, CountingEnv], backend=cluster, probe=False) as envs:
        envs.reset(seed=0)
        with pytest.raises(ValueError, match="sub-environment 1 raised ValueError in step") as caught:
            envs.step([0, 0, 0])
        envs.reset(options={"reset_mask": caught.value.partial[-1]})
        observations, *_ = envs.step([0, 0, 0])

    assert isinstance(caught.value, SubEnvError)
    assert caught.value.partial[0].tolist() == [1, 0, 1]
    assert observations.tolist() == [2, 1, 2]


def test_an_interrupt_ends_the_call_and_the_batch_goes_on(cluster):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with BatchEnv(partial(WorkerEnv, step_s=3.0), 2, backend=cluster, probe=False) as envs:
            envs.reset(seed=0)
            threading.Timer(0.5, _thread.interrupt_main).start()
            with pytest.raises(KeyboardInterrupt):
                envs.step([0, 0])
            envs.set_attr("step_s", 0.0)
            envs.reset(seed=0)
            observations, *_ = envs.step([0, 0])
    finally:
        signal.signal(signal.SIGINT, before)

    assert observations.tolist() == [1, 1]


def test_warnings_and_log_records_of_a_cluster_reach_the_caller(cluster, caplog):
    with BatchEnv(partial(WorkerEnv, text="watch out"), 2, backend=cluster, probe=False) as envs:
        envs.reset(seed=0)
        with pytest.warns(UserWarning, match="watch out") as warned:
            envs.step([0, 0])

    assert len(warned) == 2
    assert [record.getMessage() for record in caplog.records if record.name == "worker_env"] == ["watch out"] * 2


def test_a_batch_has_no_more_workers_than_its_cluster_and_less_if_told_so(cluster):
    counts = []
    for n_jobs in (None, -1, -2, 1, 2, 50):
        with BatchEnv(CountingEnv, 4, backend=cluster, n_jobs=n_jobs, probe=False) as envs:
            counts.append(envs.n_jobs)

    assert counts == [2, 2, 1, 1, 2, 2]


def test_one_worker_of_a_cluster_is_not_the_caller(cluster):
    with BatchEnv(WorkerEnv, 2, backend=cluster, n_jobs=1, probe=False) as envs:
        pids = envs.call("pid")

    assert os.getpid() not in pids


def test_a_batch_follows_the_context_of_a_cluster(cluster):
    with parallel_config(backend=cluster), BatchEnv(WorkerEnv, 2, probe=False) as envs:
        pids = envs.call("pid")

    assert envs.placement == ("task-0", "task-1")
    assert os.getpid() not in pids


def test_states_of_many_megabytes_travel_in_silence(cluster):
    # More than dask warns of; all of them together are more than the store that ray was given.
    num_bytes, num_steps = 15 * 2**20, 5
    with BatchEnv(partial(WorkerEnv, num_bytes=num_bytes), 2, backend=cluster, probe=False) as envs:
        envs.reset(seed=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(num_steps):
                envs.step([0, 0])
        totals = envs.call("total")

    assert totals == (num_bytes * (num_steps - 1),) * 2


def test_a_closed_batch_leaves_its_cluster_as_it_was(cluster):
    gc.collect()  # errors of other tests hold results
    before = what_is_there(cluster)

    with BatchEnv(partial(WorkerEnv, num_bytes=2**20), 4, backend=cluster, probe=False) as envs:
        envs.reset(seed=0)
        envs.step([0] * 4)
        assert wait_until(lambda: what_is_there(cluster) == before)  # released soon after
    with BatchEnv(CountingEnv, 2, backend="multiprocessing", n_jobs=2, probe=False) as envs:
        envs.reset(seed=0)

    assert wait_until(lambda: what_is_there(cluster) == before)


def what_is_there(cluster):
    """Return what a batch could leave behind; ray's own backend leaves joblib's pool on top of ray's."""
    if cluster == "ray":
        import ray

        return ray.is_initialized(), PicklingPool.__bases__
    from distributed import get_client

    return get_client().status, len(get_client().futures), PicklingPool.__bases__


@pytest.mark.parametrize("processes", [True, False])
def test_threads_of_one_worker_take_one_call_at_a_time(processes):
    pytest.importorskip("distributed")
    seen = {}
    with (
        dask_cluster(num_workers=1, num_threads=2, processes=processes) as client,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        settings = client.run(output_settings)
        batches = {
            text: BatchEnv(partial(WorkerEnv, text=text, step_s=0.01), 2, backend="dask", probe=False)
            for text in ("first", "second")
        }
        threads = [
            threading.Thread(target=lambda text=text: seen.update({text: play(batches[text], 20)})) for text in batches
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        left = client.run(output_settings)

    assert first_difference(play(SyncVectorEnv([WorkerEnv] * 2), 20), seen["first"]) is None
    assert first_difference(seen["first"], seen["second"]) is None
    assert [sum(str(each.message) == text for each in caught) for text in batches] == [40 - 8] * 2
    assert left == settings


def output_settings():
    return len(warnings.filters), warnings.showwarning.__module__, len(logging.getLogger().handlers)


def test_a_dask_cluster_that_is_not_there_is_told(tmp_path):
    pytest.importorskip("distributed")
    script = run_script(
        tmp_path,
        """
        import time

        from distributed import Client, LocalCluster
        from joblib import parallel_config
        from joblib_envs import BackendUnavailableError, BatchEnv, WorkerDiedError
        from joblib_envs.envs import CountingEnv

        def build(**options):
            return BatchEnv(CountingEnv, 2, probe=False, **options)

        def tell(function, *args, **options):
            try:
                function(*args, **options)
            except (BackendUnavailableError, WorkerDiedError) as error:
                print(error)

        if __name__ == "__main__":
            tell(build, backend="dask")
            with LocalCluster(n_workers=1, dashboard_address=None, host="127.0.0.1") as cluster:
                with Client(cluster), parallel_config(backend="dask"):
                    envs = build()
                    envs.reset(seed=0)
                    begun = build()
                tell(envs.step, [0, 0])
                tell(envs.step, [0, 0])
                envs.close()
                begun.close()
                client = Client(cluster)
                with parallel_config(backend="dask", wait_for_workers_timeout=1.5):
                    client.close()
                    tell(build)
                with Client(cluster) as client, parallel_config(backend="dask", wait_for_workers_timeout=1.5):
                    envs = build()
                    cluster.scale(0)
                    while client.ncores():
                        time.sleep(0.01)
                    tell(build)
                    tell(envs.reset)
                    envs.close()
        """,
    )

    assert script.returncode == 0, script.stderr
    told = script.stdout.splitlines()
    assert len(told) == 6
    assert "open a distributed.Client before the batch" in told[0]
    assert all("its distributed.Client isn't connected to a cluster" in text for text in told[1:4])
    assert all("has no worker, and none came within 1.5 s: start some" in text for text in told[4:])


def test_a_ray_cluster_that_is_not_there_is_told(tmp_path):
    pytest.importorskip("ray")
    script = run_script(
        tmp_path,
        """
        import os
        import tempfile

        os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")

        import ray
        from ray.util.joblib import register_ray
        from joblib import parallel_config
        from joblib_envs import ArgumentError, BatchEnv, WorkerDiedError
        from joblib_envs.envs import CountingEnv

        def build(**options):
            return BatchEnv(CountingEnv, 2, probe=False, **options)

        def tell(function, *args, **options):
            try:
                function(*args, **options)
            except (ArgumentError, WorkerDiedError) as error:
                print(error)

        tell(build, backend="ray")
        register_ray()
        tell(build, backend="ray")
        print(ray.is_initialized())
        folder = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
        ray.init(
            address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=folder.name
        )
        with parallel_config(backend="ray", ray_remote_args={"max_restarts": 2}):
            tell(build)
        envs = build(backend="ray")
        envs.reset(seed=0)
        ray.shutdown()
        tell(envs.step, [0, 0])
        tell(envs.step, [0, 0])
        print(ray.is_initialized())
        envs.close()
        """,
    )

    assert script.returncode == 0, script.stderr
    told = script.stdout.splitlines()
    assert len(told) == 7
    assert "call ray.init() and ray.util.joblib.register_ray() before the batch" in told[0]
    assert "ray isn't running in this process. Call ray.init() first" in told[1]
    assert "must be options of a ray task" in told[3]
    assert all("ray isn't running in this process. The batch can only be closed" in text for text in told[4:6])
    assert (told[2], told[6]) == ("False", "False")


@pytest.mark.parametrize("name", sorted(HAS))
def test_joblib_envs_loads_no_cluster_until_one_is_used(name, tmp_path):
    script = run_script(
        tmp_path,
        f"""
        import sys

        from joblib_envs import BatchEnv
        from joblib_envs.envs import CountingEnv

        BatchEnv(CountingEnv, 2, execution="tasks", backend="threading", n_jobs=2).close()
        print({HAS[name]!r} in sys.modules)
        """,
    )

    assert script.stdout == "False\n", script.stderr
