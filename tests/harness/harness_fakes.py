"""Contenders with one known fault each, importable by the processes that judge them."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

import numpy as np

from joblib_envs.envs import register
from joblib_envs.errors import BackendUnavailableError, StateCannotTravelError
from joblib_envs.harness.environments import EnvironmentSource
from joblib_envs.harness.loops import PlainLoop
from joblib_envs.harness.records import Cell

register()

COUNTING = "harness_fakes:joblib_envs/Counting-v0"


def counting_cell(num_envs=2, **kwargs):
    return Cell(EnvironmentSource(COUNTING, kwargs), num_envs, n_jobs=1, seed=0)


class FaultyLoop(PlainLoop):
    """Steps rightly until step 3."""

    def __init__(self, make_env, num_envs, fault):
        super().__init__(make_env, num_envs, 1)
        self.fault = fault
        self.steps = 0

    def step(self, actions):
        self.steps += 1
        observations, rewards, terminations, truncations, infos = super().step(actions)
        if self.steps == 3:
            if self.fault == "observations":
                observations[1] += 1
            elif self.fault == "rewards":
                rewards[0] += 1e-9
            elif self.fault == "infos":
                infos[1]["more"] = 1
            elif self.fault == "raises":
                raise RuntimeError("step 3 is one too many")
            elif self.fault == "crashes":
                os._exit(3)
            elif self.fault == "hangs":
                threading.Event().wait()
        return observations, rewards, terminations, truncations, infos


class ForgetfulLoop(PlainLoop):
    """Loses attributes."""

    def get_attr(self, name):
        return (None,) * len(self.envs)


class UnseededLoop(PlainLoop):
    """Ignores the mask of a masked reset."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)


class IntegerRewards(PlainLoop):
    """Returns rewards in another type."""

    def step(self, actions):
        observations, rewards, *others = super().step(actions)
        return observations, rewards.astype(np.float32), *others


@dataclass(frozen=True)
class Fake:
    name: str
    ours: bool = False
    parallel: bool = False

    @property
    def title(self):
        return f"fake {self.name}"

    def build(self, make_env, num_envs, n_jobs):
        if self.name == "refuses":
            raise StateCannotTravelError("the state stays at home: use actors")
        if self.name == "unavailable":
            raise BackendUnavailableError("needs the package 'nothing': run `pip install nothing`")
        special = {"forgets": ForgetfulLoop, "unmasked": UnseededLoop, "float32": IntegerRewards}
        if self.name in special:
            return special[self.name](make_env, num_envs, 1)
        return FaultyLoop(make_env, num_envs, self.name)

    def code(self, source, num_envs, n_jobs):
        return f"envs = Fake({source.env_code}, {num_envs})"
