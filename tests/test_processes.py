"""Worker processes: their death, Ctrl-C, forks, and what is left behind."""

import os
import signal
import subprocess
from functools import partial

import psutil
import pytest
from batches import (
    DEADLINE_S,
    Backend,
    counting_batch,
    descendants,
    is_running,
    make_batch,
    run_script,
    shared_memory_of,
    start_script,
    wait_until,
)
from odd_envs import KilledEnv

from joblib_envs import BatchEnv, ForkedBatchError, WorkerDiedError
from joblib_envs.envs import CountingEnv, FailingEnv

LOKY_ACTORS, LOKY_TASKS = Backend("loky", "actors"), Backend("loky", "tasks")
DYING = {
    "exits": (lambda place: partial(FailingEnv, 2 if place == "step" else 1, place, "os_exit", 100), 7),
    "is killed": (lambda place: partial(KilledEnv, place), -signal.SIGKILL),
}


def isolated(factories):
    """Make a batch on loky actors, all of them in processes."""
    return BatchEnv(factories, backend="loky", n_jobs=2, caller_steps=False)


@pytest.mark.parametrize("how", DYING)
def test_a_worker_that_dies_in_a_step_is_named_and_the_batch_can_only_be_closed(how):
    make, exitcode = DYING[how]
    envs = isolated([CountingEnv, CountingEnv, make("step"), CountingEnv])
    envs.reset(seed=0)
    envs.step([0] * 4)

    with pytest.raises(WorkerDiedError, match="sub-environments 2 to 3") as caught:
        envs.step([0] * 4)
    for call in (lambda: envs.step([0] * 4), lambda: envs.reset(seed=0), lambda: envs.get_attr("count"), envs.render):
        with pytest.raises(WorkerDiedError):
            call()
    envs.close()

    assert caught.value.env_indices == (2, 3)
    assert caught.value.exitcode == exitcode
    assert envs.closed


@pytest.mark.parametrize("how", DYING)
def test_a_worker_that_dies_in_a_reset_is_named(how):
    make, exitcode = DYING[how]
    with (
        isolated([make("reset"), CountingEnv]) as envs,
        pytest.raises(WorkerDiedError, match="sub-environment 0:") as caught,
    ):
        envs.reset(seed=0)

    assert (caught.value.env_indices, caught.value.exitcode) == ((0,), exitcode)


@pytest.mark.parametrize("how", DYING)
def test_a_worker_that_dies_in_a_constructor_is_named_and_nothing_is_left(how):
    make, exitcode = DYING[how]
    before = {child.pid for child in descendants()}

    with pytest.raises(WorkerDiedError, match="sub-environment 1:") as caught:
        isolated([CountingEnv, make("init")])

    assert (caught.value.env_indices, caught.value.exitcode) == ((1,), exitcode)
    assert wait_until(lambda: {child.pid for child in descendants()} <= before)


def test_a_worker_that_is_killed_between_two_calls_is_named():
    with isolated([partial(CountingEnv, 100)] * 2) as envs:
        envs.reset(seed=0)
        victim = next(child for child in descendants() if "joblib-envs-0" in child.cmdline())
        victim.kill()
        assert wait_until(lambda: not is_running(victim))

        with pytest.raises(WorkerDiedError) as caught:
            envs.step([0, 0])

    assert caught.value.exitcode == -signal.SIGKILL


def test_workers_that_die_together_are_all_named():
    with isolated([partial(FailingEnv, 1, "step", "os_exit")] * 2) as envs:
        envs.reset(seed=0)
        with pytest.raises(WorkerDiedError, match="sub-environments 0 to 1") as caught:
            envs.step([0, 0])

    assert caught.value.env_indices == (0, 1)


@pytest.mark.parametrize("how", DYING)
@pytest.mark.parametrize("place", ["init", "reset", "step"])
def test_a_task_that_loses_its_worker_names_its_sub_environments(how, place):
    make, _ = DYING[how]

    def run():
        with make_batch(LOKY_TASKS, [partial(CountingEnv, 100), make(place)]) as envs:
            envs.reset(seed=0)
            envs.step([0, 0])
            try:
                envs.step([0, 0])
            finally:
                with pytest.raises(WorkerDiedError):
                    envs.get_attr("count")

    with pytest.raises(WorkerDiedError, match="sub-environment 1:") as caught:
        run()

    assert caught.value.env_indices == (1,)


def test_joblib_works_after_a_task_has_lost_its_worker():
    factory = partial(FailingEnv, 1, "reset", "os_exit")
    with make_batch(LOKY_TASKS, factory, 2) as envs, pytest.raises(WorkerDiedError):
        envs.reset(seed=0)

    with counting_batch(LOKY_TASKS) as envs:
        observations, _ = envs.reset(seed=0)

    assert observations.tolist() == [0, 0]


def test_a_worker_killed_from_outside_costs_tasks_nothing():
    with counting_batch(LOKY_TASKS) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        for child in descendants():
            if "popen_loky" in " ".join(child.cmdline()):
                child.kill()
        observations, *_ = envs.step([0, 0])

    assert observations.tolist() == [2, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_refused_and_does_not_disturb_its_parent(backend):
    with counting_batch(backend) as envs:
        envs.reset(seed=0)
        child = os.fork()
        if child == 0:
            os._exit(_use_in_a_child(envs))
        _, status = os.waitpid(child, 0)
        observations, *_ = envs.step([0, 0])

    assert os.waitstatus_to_exitcode(status) == 0
    assert observations.tolist() == [1, 1]


def _use_in_a_child(envs):
    refused = 0
    for call in (lambda: envs.step([0, 0]), lambda: envs.reset(seed=0), lambda: envs.get_attr("count")):
        try:
            call()
        except ForkedBatchError:
            refused += 1
    envs.close()
    return 3 - refused


FORK_SCRIPT = """
import os, sys
from batches import BACKENDS, counting_batch

# Not multiprocessing: at a forked child's end Python ends the workers of its parent's pools.
batches = [counting_batch(backend) for backend in BACKENDS[:-1]]
for envs in batches:
    envs.reset(seed=0)
child = os.fork()
if child == 0:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Python complains there of its parent's children
    sys.exit(0)  # with everything that Python does at its end
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
for envs in batches:
    assert envs.step([0, 0])[0].tolist() == [1, 1]
    envs.close()
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_that_exits_leaves_its_parents_batches_alone(tmp_path):
    ended = run_script(tmp_path, FORK_SCRIPT)

    assert (ended.returncode, ended.stdout) == (0, "done\n")


@pytest.mark.parametrize("end", ["closed", "open", "pending", "deleted"])
def test_a_script_without_a_main_guard_ends_and_says_nothing(tmp_path, end):
    ended = run_script(
        tmp_path,
        f"""
        from batches import BACKENDS, counting_batch

        batches = []
        for backend in BACKENDS:
            envs = counting_batch(backend, probe=True)
            envs.reset(seed=0)
            envs.step([0, 0])
            batches.append(envs)
            if {end!r} == "pending":
                envs.step_async([0, 0])
            if {end!r} == "closed":
                envs.close()
        if {end!r} == "deleted":
            del batches, envs
        print("done")
        """,
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
    assert _left_over(tmp_path) == []
    assert wait_until(lambda: not shared_memory_of(ended.pid), 10)


def _left_over(folder):
    """List the processes that were started below a script's folder and are still there."""

    def still_there():
        found = []
        for process in psutil.process_iter():
            try:
                if process.cwd() == str(folder) and is_running(process):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    wait_until(lambda: not still_there(), 10)
    return [" ".join(process.cmdline()) for process in still_there()]


@pytest.mark.parametrize("where", ["script", "environment", "constructor"])
def test_an_exception_shows_exactly_one_traceback_and_ends_the_script(tmp_path, where):
    ended = run_script(
        tmp_path,
        f"""
        from functools import partial
        from batches import BACKENDS, counting_batch, make_batch
        from joblib_envs.envs import CountingEnv, FailingEnv

        batches = [counting_batch(backend) for backend in BACKENDS]
        envs = make_batch(BACKENDS[4], [CountingEnv, partial(FailingEnv, 1, "step")])
        for each in [*batches, envs]:
            each.reset(seed=0)
        if {where!r} == "script":
            raise ValueError("of the script")
        if {where!r} == "constructor":
            make_batch(BACKENDS[4], [CountingEnv, partial(FailingEnv, 1, "init")])
        envs.step([0, 0])
        """,
    )

    assert ended.returncode == 1
    wanted = "ValueError: of" if where == "script" else "joblib_envs.errors.SubEnvError: sub-environment 1"
    assert ended.stderr.splitlines()[-1].startswith(wanted)
    assert ended.stderr.count("joblib_envs.errors.SubEnvError:") == (where != "script")
    assert "Exception ignored" not in ended.stderr
    assert "Process " not in ended.stderr
    assert _left_over(tmp_path) == []


SLOW_SCRIPT = """
import os
import time
from functools import partial
from batches import make_batch, Backend
from joblib_envs import BatchEnv
from joblib_envs.envs import CountingEnv


class SlowEnv(CountingEnv):
    def step(self, action):
        if action:
            os.write(1, b"busy\\n")  # in one piece, whichever thread
            time.sleep(60)
        return super().step(action)


envs = BatchEnv(
    partial(SlowEnv, 100), 2, backend={name!r}, execution={execution!r}, n_jobs=2, probe=False,
    caller_steps={caller_steps!r},
)
envs.reset(seed=0)
envs.step([0, 0])
print("ready", flush=True)
envs.step({actions!r})
"""
SLOW = [
    ("loky", "actors", None, [1, 0]),
    ("loky", "actors", None, [0, 1]),
    ("loky", "actors", False, [1, 1]),
    ("loky", "tasks", None, [1, 1]),
    ("threading", "actors", None, [1, 1]),
    ("threading", "tasks", None, [1, 0]),
    ("sequential", "actors", None, [1, 0]),
    ("sequential", "tasks", None, [1, 0]),
]


def start_slow(folder, name, execution, caller_steps, actions):
    script = start_script(
        folder,
        SLOW_SCRIPT.format(name=name, execution=execution, caller_steps=caller_steps, actions=actions),
        start_new_session=True,
    )
    # A worker of joblib's that isn't in a task of ours yet tells of the interrupt itself: both must be.
    num_busy = sum(actions) if (name, execution) == ("loky", "tasks") else 1
    for line in ("ready\n", *["busy\n"] * num_busy):
        assert script.stdout.readline() == line
    return script


def stderr_of(script):
    try:
        _, stderr = script.communicate(timeout=15)
    except subprocess.TimeoutExpired:
        os.killpg(script.pid, signal.SIGKILL)
        raise
    return stderr


@pytest.mark.parametrize(("name", "execution", "caller_steps", "actions"), SLOW)
def test_ctrl_c_in_a_long_step_ends_the_script_with_one_traceback(tmp_path, name, execution, caller_steps, actions):
    script = start_slow(tmp_path, name, execution, caller_steps, actions)

    os.killpg(script.pid, signal.SIGINT)  # as a terminal does: to the whole group
    stderr = stderr_of(script)  # within 15 s, where the step would take 60

    assert stderr.count("Traceback (most recent call last)") == 1
    assert stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert "Process " not in stderr
    assert "leaked" not in stderr
    assert script.returncode == -signal.SIGINT
    assert _left_over(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "execution", "caller_steps", "actions"),
    [("loky", "actors", None, [1, 0]), ("loky", "actors", False, [1, 1]), ("threading", "tasks", None, [1, 0])],
)
def test_when_the_parent_is_killed_nothing_is_left(tmp_path, name, execution, caller_steps, actions):
    script = start_slow(tmp_path, name, execution, caller_steps, actions)

    os.kill(script.pid, signal.SIGKILL)
    script.communicate(timeout=DEADLINE_S)

    assert _left_over(tmp_path) == []
    assert wait_until(lambda: not shared_memory_of(script.pid), 10)


def test_when_the_parent_is_killed_idle_workers_end_too(tmp_path):
    script = start_script(
        tmp_path,
        """
        from batches import Backend, counting_batch

        envs = counting_batch(Backend("loky", "actors"))
        envs.reset(seed=0)
        print("ready", flush=True)
        input()
        """,
        stdin=subprocess.PIPE,
    )
    assert script.stdout.readline() == "ready\n"
    assert len(descendants(script.pid)) == 1

    script.kill()
    script.wait(DEADLINE_S)

    assert _left_over(tmp_path) == []
    assert wait_until(lambda: not shared_memory_of(script.pid), 10)


def test_closing_leaves_nothing_in_shared_memory():
    names = set(shared_memory_of(os.getpid()))
    with counting_batch(LOKY_ACTORS) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])

    assert wait_until(lambda: set(shared_memory_of(os.getpid())) <= names, 5)


def test_handles_and_processes_are_as_before_after_many_batches():
    def use():
        with counting_batch(LOKY_ACTORS) as envs:
            envs.reset(seed=0)
            envs.step([0, 0])

    use()
    this = psutil.Process()
    descriptors, children, threads = this.num_fds(), {child.pid for child in descendants()}, this.num_threads()

    for _ in range(20):
        use()

    assert wait_until(lambda: this.num_fds() <= descriptors), (descriptors, this.num_fds())
    assert wait_until(lambda: {child.pid for child in descendants()} <= children)
    assert wait_until(lambda: this.num_threads() <= threads)


def test_handlers_of_signals_stay_as_they_were(backend):
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])

    with counting_batch(backend) as envs:
        envs.reset(seed=0)

    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == handlers
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask


def test_the_start_method_of_multiprocessing_stays_as_it_was(tmp_path):
    ended = run_script(
        tmp_path,
        """
        import multiprocessing
        from batches import BACKENDS, counting_batch

        for backend in BACKENDS:
            if backend.execution == "actors":  # the pools that joblib makes for tasks settle it
                counting_batch(backend).close()
        print(multiprocessing.get_start_method(allow_none=True))
        """,
    )

    assert (ended.stdout, ended.stderr) == ("None\n", "")
