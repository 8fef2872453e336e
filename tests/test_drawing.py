"""Environments that draw with pygame give the same pixels on threads as in a plain loop."""

import threading

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from joblib_envs import BatchEnv
from joblib_envs.drawing import DRAWING, draws_with_pygame
from joblib_envs.envs import CountingEnv

pygame = pytest.importorskip("pygame")


class DrawingEnv(CountingEnv):
    """Tell how many environments are in a step at once; its module refers to pygame."""

    inside = 0
    most = 0
    lock = threading.Lock()

    def step(self, action):
        cls = DrawingEnv
        with cls.lock:
            cls.inside += 1
            cls.most = max(cls.most, cls.inside)
        threading.Event().wait(0.01)
        with cls.lock:
            cls.inside -= 1
        return super().step(action)


@pytest.mark.parametrize("execution", ["actors", "tasks"])
def test_one_thread_at_a_time_steps_environments_that_draw(execution):
    DrawingEnv.most = 0

    with BatchEnv(DrawingEnv, 4, backend="threading", n_jobs=4, execution=execution) as envs:
        envs.reset(seed=0)
        for _ in range(3):
            envs.step([0] * 4)

    assert DrawingEnv.most == 1


def test_an_environment_that_does_not_draw_needs_no_lock():
    assert not draws_with_pygame(gymnasium.make("CartPole-v1"))
    assert not draws_with_pygame(CountingEnv())
    assert draws_with_pygame(gymnasium.wrappers.TimeLimit(DrawingEnv(), 5))


def test_frames_are_drawn_one_thread_at_a_time():
    held = []

    class WatchingEnv(CountingEnv):
        def render(self):
            # An RLock that another thread holds can't be had: here it is this thread's own.
            stranger = threading.Thread(target=lambda: held.append(DRAWING.acquire(blocking=False)))
            stranger.start()
            stranger.join()
            return super().render()

    with BatchEnv(lambda: WatchingEnv(render_mode="rgb_array"), 2, backend="threading", n_jobs=2) as envs:
        envs.reset(seed=0)
        envs.render()

    assert held == [False, False]


def test_frames_equal_those_of_a_plain_loop():
    def make():
        return gymnasium.make("CartPole-v1", render_mode="rgb_array")

    reference = SyncVectorEnv([make] * 4)
    with BatchEnv(make, 4, backend="threading", n_jobs=4) as envs:
        for batch in (reference, envs):
            batch.reset(seed=0)
            batch.step(np.array([0, 1, 0, 1]))
        wanted, got = reference.render(), envs.render()
    reference.close()

    assert all(np.array_equal(one, other) for one, other in zip(wanted, got, strict=True))
