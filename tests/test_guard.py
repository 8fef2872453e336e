"""The order of calls: what may follow on what, and what a wait is bounded by."""

import multiprocessing
import threading
from functools import partial

import numpy as np
import pytest
from batches import counting_batch, make_batch
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from joblib_envs import BatchEnv, CallTimeoutError
from joblib_envs.envs import CountingEnv, SleepingEnv


class BlockingEnv(CountingEnv):
    """Step when the event is set."""

    def __init__(self, event):
        super().__init__(100)
        self.event = event

    def step(self, action):
        self.event.wait(30)
        return super().step(action)


def test_a_reset_can_be_begun_and_waited_for(backend):
    with counting_batch(backend) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])

        envs.reset_async(seed=[0, 1], options={"reset_mask": np.array([True, False])})
        observations, _ = envs.reset_wait()

    assert observations.tolist() == [0, 1]


@pytest.mark.parametrize("begun", ["step", "reset"])
def test_what_was_begun_is_waited_for_before_anything_else(backend, begun):
    with counting_batch(backend) as envs:
        envs.reset(seed=0)
        envs.step_async([0, 0]) if begun == "step" else envs.reset_async()

        with pytest.raises(AlreadyPendingCallError, match=f"{begun}_wait first") as caught:
            envs.get_attr("count")
        other = envs.reset_wait if begun == "step" else envs.step_wait
        with pytest.raises(NoAsyncCallError):
            other()
        result = envs.step_wait() if begun == "step" else envs.reset_wait()

    assert caught.value.name == begun
    assert result[0].tolist() == ([1, 1] if begun == "step" else [0, 0])


def test_a_wait_that_takes_too_long_ends_and_its_step_never_lands():
    event = threading.Event()
    envs = BatchEnv([partial(BlockingEnv, event)] * 2, backend="threading", n_jobs=2)
    envs.reset(seed=0)
    envs.step_async([0, 0])

    with pytest.raises(CallTimeoutError, match="still at work") as caught:
        envs.step_wait(timeout=0.05)
    with pytest.raises(CallTimeoutError):
        envs.reset()
    event.set()
    envs.close()

    assert isinstance(caught.value, multiprocessing.TimeoutError)


def test_a_process_that_takes_too_long_is_ended_with_the_batch():
    envs = BatchEnv(partial(SleepingEnv, 60.0), 2, backend="loky", n_jobs=2, caller_steps=False)
    envs.reset(seed=0)
    envs.step_async([0, 0])

    with pytest.raises(TimeoutError):
        envs.step_wait(timeout=0.05)
    envs.close()

    assert envs.closed


def test_a_timeout_is_refused_in_tasks_and_the_step_can_still_be_waited_for(backend):
    if backend.execution != "tasks":
        with counting_batch(backend) as envs:
            envs.reset(seed=0)
            envs.step_async([0, 0])
            assert envs.step_wait(timeout=30)[0].tolist() == [1, 1]
        return
    with make_batch(backend, partial(CountingEnv, 100), 2) as envs:
        envs.reset(seed=0)
        envs.step_async([0, 0])

        with pytest.raises(ValueError, match=r"timeout=0\.5 can't be had in tasks"):
            envs.step_wait(timeout=0.5)
        observations, *_ = envs.step_wait()

    assert observations.tolist() == [1, 1]
