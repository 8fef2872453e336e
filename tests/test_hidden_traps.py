"""Traps that went unseen until somebody who had not read the source looked for them."""

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from batches import TRAVELLING, make_batch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from joblib_envs import ArgumentTypeError, BatchEnv, EnvInsideFactoryError, SubEnvError
from joblib_envs.envs import CountingEnv, FailingEnv
from joblib_envs.equality import first_difference

IMPORTED = """
import gymnasium
from joblib_envs import BatchEnv
from joblib_envs.envs import CountingEnv

class OwnEnv(CountingEnv):
    pass

envs = BatchEnv(OwnEnv, 2, backend="loky", execution={execution!r}, n_jobs=2, probe=False, caller_steps={steps})
"""


@pytest.mark.parametrize(("execution", "steps"), [("actors", False), ("actors", None), ("tasks", None)])
def test_a_module_that_builds_a_batch_when_imported_starts_no_workers_without_end(tmp_path, execution, steps):
    (tmp_path / "careless.py").write_text(IMPORTED.format(execution=execution, steps=steps))

    ended = subprocess.run(
        [sys.executable, "-c", "import careless; careless.envs.close()"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert ended.returncode == 1
    assert "if __name__ == '__main__'" in ended.stderr


class Panic(BaseException):
    """What native code raises when it gives up; not an Exception."""


class PanickingEnv(CountingEnv):
    """Panics in the step that is given action 1."""

    def step(self, action):
        if action:
            raise Panic("in native code")
        return super().step(action)


def test_what_is_no_exception_is_a_failure_like_any_other(backend):
    with make_batch(backend, partial(PanickingEnv, 100), 4) as envs:
        envs.reset(seed=0)
        with pytest.raises(SubEnvError, match="Panic in step: in native code") as caught:
            envs.step([0, 1, 1, 0])
        observations, _ = envs.reset(options={"reset_mask": np.array([False, True, True, False])})

    assert list(caught.value.failures) == [1, 2]
    assert caught.value.partial[0].tolist() == [1, 0, 0, 1]
    assert observations.tolist() == [1, 0, 0, 1]


MADE = {}


def always_the_same():
    """Make one environment, once for each process."""
    if "env" not in MADE:
        MADE["env"] = CountingEnv(100)
    return MADE["env"]


def test_one_object_for_several_places_is_refused_in_every_worker(backend):
    MADE.clear()

    with pytest.raises(EnvInsideFactoryError, match="one and the same environment object"):
        make_batch(backend, always_the_same, 4, n_jobs=2)


class SummingEnv(CountingEnv):
    """Adds its action up in the order in which it lies in memory."""

    def __init__(self, shape=(33, 65)):
        super().__init__(100)
        self.action_space = spaces.Box(-1, 1, shape, np.float32)

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(0)
        return observation, float(action.sum()), terminated, truncated, info


@pytest.mark.parametrize("layout", ["fortran", "transposed", "sliced", "contiguous"])
def test_an_actions_layout_is_the_same_on_every_backend(backend, layout):
    rng = np.random.default_rng(0)
    batch = {
        "fortran": lambda: np.asfortranarray(rng.standard_normal((3, 33, 65), np.float32)),
        "transposed": lambda: rng.standard_normal((3, 65, 33), np.float32).transpose(0, 2, 1),
        "sliced": lambda: rng.standard_normal((6, 33, 65), np.float32)[::2],
        "contiguous": lambda: rng.standard_normal((3, 33, 65), np.float32),
    }[layout]()
    reference = SyncVectorEnv([SummingEnv] * 3)
    reference.reset(seed=0)
    wanted = reference.step(batch)

    with make_batch(backend, SummingEnv, 3) as envs:
        envs.reset(seed=0)
        got = envs.step(batch)

    assert first_difference(wanted, got) is None


def test_a_generator_that_factories_share_is_told_of_where_workers_would_copy_it(process_backend):
    rng = np.random.default_rng(0)

    with pytest.warns(UserWarning, match="refers to Generator, of which each worker process gets a copy"):
        make_batch(process_backend, lambda: CountingEnv(int(rng.integers(1, 9))), 3).close()


def test_a_space_in_a_factory_is_nothing_to_warn_of(process_backend, recwarn):
    space = spaces.Discrete(3, seed=1)

    def make():
        env = CountingEnv(100)
        env.action_space = space
        return env

    make_batch(process_backend, make, 2).close()

    assert not [warning for warning in recwarn if "refers to" in str(warning.message)]


class GreedyEnv(CountingEnv):
    """Overwrites its action."""

    def __init__(self):
        super().__init__(100)
        self.action_space = spaces.Box(-1, 1, (2,))

    def step(self, action):
        observation, _, *rest = super().step(0)
        reward = float(action.sum())
        action *= 0
        return observation, reward, *rest


class KnottedEnv(CountingEnv):
    """Gives an info that holds itself."""

    def step(self, action):
        *rest, info = super().step(action)
        info["self"] = info
        return *rest, info


@pytest.mark.parametrize("backend", TRAVELLING, ids=str)
@pytest.mark.parametrize("env", [GreedyEnv, KnottedEnv])
def test_the_probe_is_not_misled(backend, env):
    with make_batch(backend, env, 2, probe=True) as envs:
        envs.reset(seed=0)
        observations, *_ = envs.step(envs.action_space.sample())

    assert observations.tolist() == [1, 1]


@pytest.mark.parametrize("backend", TRAVELLING, ids=str)
def test_the_probe_leaves_an_environments_own_error_to_the_batch(backend):
    envs = make_batch(backend, partial(FailingEnv, 1, "reset"), 2, probe=True)
    with envs, pytest.raises(SubEnvError, match="in reset"):
        envs.reset()
    with pytest.raises(ArgumentTypeError, match="a factory returned int"):
        make_batch(backend, lambda: 3, 2, probe=True)


@pytest.mark.parametrize("options", [{"wrappers": 3}, {"env_kwargs": 3}, {"env_kwargs": [("a", 1)]}])
def test_what_is_no_sequence_or_dictionary_is_named(options):
    (name,) = options

    with pytest.raises(ArgumentTypeError, match=f"{name}="):
        BatchEnv("CartPole-v1", 2, backend="sequential", **options)
