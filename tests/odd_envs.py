"""Environments that only the tests need, in a module that workers can import."""

from __future__ import annotations

import logging
import os
import signal
import threading
import warnings
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from joblib_envs.envs import CountingEnv


class PlaceEnv(CountingEnv):
    """Tells where it lives."""

    def pid(self):
        return os.getpid()

    def thread_name(self):
        return threading.current_thread().name


class KilledEnv(CountingEnv):
    """Kills its own process with SIGKILL at a place: in its constructor, ``reset`` or the second ``step``."""

    def __init__(self, place):
        super().__init__(100)
        self.place = place
        if place == "init":
            _kill()

    def reset(self, *, seed=None, options=None):
        if self.place == "reset":
            _kill()
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.place == "step" and self.count == 1:
            _kill()
        return super().step(action)


def _kill():
    os.kill(os.getpid(), signal.SIGKILL)


class DiaryEnv(CountingEnv):
    """Leaves a file in a folder when it is made, stepped and closed: ``made-0``, ``stepped-0``, ``closed-0``."""

    def __init__(self, folder, number, *, fails=False):
        super().__init__(100)
        self.folder, self.number = Path(folder), number
        self._note("made")
        if fails:
            raise ValueError(f"number {number} can't be made")

    def step(self, action):
        self._note("stepped")
        return super().step(action)

    def close(self):
        self._note("closed")

    def _note(self, what):
        with (self.folder / f"{what}-{self.number}").open("a") as file:
            file.write("x")


class WarningDiaryEnv(DiaryEnv):
    """Warns when it is made and when it steps."""

    def __init__(self, folder):
        super().__init__(folder, 0)
        warnings.warn("made with a warning", RuntimeWarning, stacklevel=1)

    def step(self, action):
        warnings.warn("stepped with a warning", RuntimeWarning, stacklevel=1)
        return super().step(action)


class TalkingEnv(CountingEnv):
    """Warns, logs or prints in each step."""

    def __init__(self, how):
        super().__init__(100)
        self.how = how

    def step(self, action):
        if self.how == "warn":
            warnings.warn(f"count is {self.count}", RuntimeWarning, stacklevel=1)
        elif self.how == "log":
            logging.getLogger("odd.envs").info("count is %d", self.count)
            logging.getLogger("odd.envs").debug("nobody asked")
        elif self.how == "print":
            print(f"count is {self.count}")  # noqa: T201
        return super().step(action)


class BlockingEnv(CountingEnv):
    """Waits in each step until the test lets it go on; for backends that share memory."""

    entered = threading.Event()
    may_go_on = threading.Event()

    def step(self, action):
        type(self).entered.set()
        assert type(self).may_go_on.wait(30)
        return super().step(action)


class GreedyEnv(gymnasium.Env):
    """Changes everything it is given, in place; the infos show what that was."""

    def __init__(self):
        self.observation_space = Box(-100, 100, (2,), np.float64)
        self.action_space = Box(-100, 100, (2,), np.float64)
        self.box = {"values": [0]}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        given = repr(options)
        if options is not None:
            options["levels"].append("changed")
            options["more"] = 1
        return np.zeros(2), {"given": given}

    def step(self, action):
        given = action.copy()
        action[:] = -99
        return given, 0.0, False, False, {}

    def put(self, value, *, named):
        value.append(1)
        named["key"].append(1)
        return len(value), len(named["key"])

    def grow(self):
        self.box["values"].append(1)
        return len(self.box["values"])


class HoldingEnv(CountingEnv):
    """Has an attribute that can't be pickled."""

    @property
    def lock(self):
        return threading.Lock()

    def take(self, _value):
        return self.count


class UnpicklableInfoEnv(CountingEnv):
    """Gives an info that can't be pickled in its second step."""

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.count == 2:
            info["lock"] = threading.Lock()
        return observation, reward, terminated, truncated, info


class BigEnv(gymnasium.Env):
    """Has a large array, which it changes in place, and gives it as observation."""

    def __init__(self):
        self.observation_space = Box(0, 1000, (500, 500), np.float64)
        self.action_space = Discrete(2)
        self.picture = np.zeros((500, 500))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.picture[:] = 0
        return self.picture, {}

    def step(self, action):
        self.picture += 1
        return self.picture, 0.0, False, False, {"flags": (self.picture.flags.writeable, type(self.picture).__name__)}


class OtherShapeEnv(CountingEnv):
    """Has an observation space like no other."""

    def __init__(self):
        super().__init__(100)
        self.observation_space = Box(0, 1, (7,), np.float32)


class StoppingEnv(CountingEnv):
    """Raises an exception of any class, with any arguments, in its second step."""

    def __init__(self, kind, *arguments):
        super().__init__(100)
        self.kind, self.arguments = kind, arguments

    def step(self, action):
        if self.count == 1:
            raise self.kind(*self.arguments)
        return super().step(action)


class BareError(BaseException):
    """No Exception, as some native libraries raise."""


class BareInitEnv(CountingEnv):
    """Raises what is no Exception when it is made."""

    def __init__(self):
        super().__init__(100)
        raise BareError("in the constructor")


class LevelWrapper(gymnasium.Wrapper):
    """Adds its level to the reward."""

    def __init__(self, env, level=1):
        super().__init__(env)
        self.level = level

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward * 10 + self.level, terminated, truncated, info


SHARED = CountingEnv(100)


def give_shared():
    """Return one and the same environment each time."""
    return SHARED


class ForgettingEnv(CountingEnv):
    """Drops its count when it is pickled."""

    def __getstate__(self):
        return {**self.__dict__, "_count": 0, "count": 0}


class LockedEnv(CountingEnv):
    """Holds a lock, which it drops when it is pickled, and makes anew afterwards."""

    def __init__(self, episode_length=100):
        super().__init__(episode_length)
        self.lock = threading.Lock()

    def step(self, action):
        with self.lock:
            return super().step(action)

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.lock = threading.Lock()


class FreeCellsEnv(CountingEnv):
    """Go to a cell that is drawn from a list of a set, whose order no pickle keeps."""

    def reset(self, *, seed=None, options=None):
        self.free, self.cell = {(x, y) for x in range(6) for y in range(6)}, (9, 9)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        observation, _, *rest = super().step(action)
        cells = list(self.free)
        cell = cells[int(self.np_random.integers(len(cells)))]
        self.free.discard(cell)
        self.free.add(self.cell)
        self.cell = cell
        return observation, float(cell[0] * 10 + cell[1]), *rest


class VisitedCellsEnv(CountingEnv):
    """Pay for what a set doesn't hold yet: in which order it gives its elements makes no difference."""

    def reset(self, *, seed=None, options=None):
        self.visited = set()
        return super().reset(seed=seed, options=options)

    def step(self, action):
        observation, _, *rest = super().step(action)
        cell = int(self.np_random.integers(30))
        is_new = cell not in self.visited
        self.visited.add(cell)
        return observation, float(is_new), *rest


class LateForgettingEnv(CountingEnv):
    """Show after many steps only that a part of it forgets when it is pickled."""

    def __init__(self, shown_after=100):
        super().__init__(episode_length=10_000)
        self.shown_after = shown_after
        self.memory = _Forgetful()

    def step(self, action):
        observation, _, *rest = super().step(action)
        self.memory.total += 1
        return observation, float(self.memory.total * (int(observation) > self.shown_after)), *rest


class _Forgetful:
    def __init__(self):
        self.total = 0

    def __getstate__(self):
        return {"total": 0}
