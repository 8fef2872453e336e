"""The project's own environments do what their docstrings say."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from batches import run_script
from gymnasium.utils.env_checker import check_env

from joblib_envs import envs
from joblib_envs.envs import (
    BufferReusingEnv,
    BusyEnv,
    CountingEnv,
    EchoEnv,
    EzPickledCountingEnv,
    FailingEnv,
    FailureKind,
    FailurePlace,
    GlobalRandomEnv,
    HandleEnv,
    InfoEnv,
    InfoKind,
    LinearAlgebraEnv,
    SleepingEnv,
    SpaceEnv,
    SpaceKind,
    SyntheticEnv,
    UnpicklableEnv,
    VariableLengthEnv,
    make_space,
    register,
)
from joblib_envs.equality import bit_equal

register()

DETERMINISTIC = [
    CountingEnv,
    BufferReusingEnv,
    VariableLengthEnv,
    LinearAlgebraEnv,
    EzPickledCountingEnv,
    HandleEnv,
    UnpicklableEnv,
    partial(SyntheticEnv, 1, "compute", 100, 3),
    partial(FailingEnv, None),
    *(partial(EchoEnv, kind) for kind in SpaceKind),
    *(partial(SpaceEnv, kind) for kind in SpaceKind),
    *(partial(InfoEnv, kind, 1) for kind in InfoKind),
]


def name_of(env_fn: Any) -> str:
    return str(env_fn if isinstance(env_fn, partial) else env_fn.__name__)


def played(env: gymnasium.Env[Any, Any], seed: int, num_steps: int = 30) -> list[Any]:
    env.action_space.seed(seed)
    results: list[Any] = [copy.deepcopy(env.reset(seed=seed))]
    for _ in range(num_steps):
        transition = copy.deepcopy(env.step(env.action_space.sample()))
        results.append(transition)
        if transition[2] or transition[3]:
            results.append(copy.deepcopy(env.reset()))
    return results


@pytest.mark.parametrize("env_fn", DETERMINISTIC, ids=name_of)
def test_equal_seeds_and_actions_give_equal_episodes(env_fn: Any) -> None:
    assert bit_equal(played(env_fn(), 3), played(env_fn(), 3))


@pytest.mark.parametrize("env_fn", DETERMINISTIC, ids=name_of)
def test_observations_are_in_the_space(env_fn: Any) -> None:
    env = env_fn()

    observations = [result[0] for result in played(env, 3)]

    assert all(observation in env.observation_space for observation in observations)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("env_id", sorted(env_id for env_id in gymnasium.registry if "joblib_envs/" in env_id))
def test_registered_environment_passes_gymnasiums_checker(env_id: str) -> None:
    kwargs: dict[str, Any] = {"Info": {"kind": "nested"}, "Failing": {"fail_at": None}}.get(env_id[12:-3], {})
    env = gymnasium.make(env_id, **kwargs).unwrapped
    deterministic = env_id not in ("joblib_envs/GlobalRandom-v0", "joblib_envs/BufferReusing-v0")

    if deterministic:
        check_env(env, skip_render_check=True)

    assert env.spec is not None
    assert env.spec.id == env_id


def test_every_environment_is_registered_once() -> None:
    register()
    before = dict(gymnasium.registry)

    register()

    own = [env_id for env_id in gymnasium.registry if env_id.startswith("joblib_envs/")]
    assert dict(gymnasium.registry) == before
    classes = {gymnasium.registry[env_id].entry_point.split(":")[1] for env_id in own}
    assert classes == {name for name in envs.__all__ if name.endswith("Env")}


def test_registration_loads_no_heavy_package() -> None:
    code = (
        "import sys, gymnasium; from joblib_envs.envs.registration import register; register(); "
        "print({'pandas', 'matplotlib', 'scipy', 'pygame', 'mujoco'} & set(sys.modules))"
    )

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert shown.strip() == "set()"


def test_counting_env_counts() -> None:
    env = CountingEnv(episode_length=2, start=10, render_mode="rgb_array")

    observation, info = env.reset(seed=0)
    env.bonus = 0.5
    transitions = [env.step(0), env.step(1)]

    assert (observation.tolist(), info["count"]) == (10, 10)
    assert [transition[0].tolist() for transition in transitions] == [11, 12]
    assert [transition[1:] for transition in transitions] == [
        (11.5, False, False, {"count": 11}),
        (12.5, True, False, {"count": 12}),
    ]
    assert np.array_equal(env.render(), np.full((2, 2, 3), 12, dtype=np.uint8))
    assert env.count_after(3, twice=True) == 18


def test_seedless_reset_of_counting_env_goes_on_with_the_stream() -> None:
    env = CountingEnv()

    drawn = [env.reset(seed=seed)[1]["drawn"] for seed in (0, None, None, 0, None)]

    assert drawn[:2] == drawn[3:]
    assert len(set(drawn)) == 3


def test_buffer_reusing_env_returns_the_same_objects() -> None:
    env = BufferReusingEnv()
    first_observation, first_info = env.reset(seed=0)

    observation, _, _, _, info = env.step(3)

    assert observation is first_observation
    assert info is first_info
    assert first_observation.tolist() == [1, 1, 3]
    assert first_info == {"array": first_info["array"], "history": [0, 1], "inner": {"count": 1, "log": [1]}}


def test_variable_length_env_ends_in_every_way() -> None:
    env = VariableLengthEnv()

    ends = [transition for transition in played(env, 0, 500) if len(transition) == 5 and any(transition[2:4])]

    assert {transition[2:4] for transition in ends} == {(True, False), (False, True), (True, True)}
    assert all(transition[0][0] == transition[0][1] for transition in ends)
    assert {2 <= transition[0][1] <= 20 for transition in ends} == {True}


@pytest.mark.parametrize("kind", SpaceKind)
def test_echo_env_gives_the_action_back(kind: SpaceKind) -> None:
    env = EchoEnv(kind)
    env.reset(seed=0)
    env.action_space.seed(1)
    action = env.action_space.sample()

    observation, _, _, _, info = env.step(action)

    assert bit_equal(observation, action)
    assert bit_equal(info["action"], action)
    assert bit_equal(env.last_action, action)


def test_echo_env_tells_types_apart() -> None:
    env = EchoEnv("discrete")
    env.reset(seed=0)

    types = [env.step(action)[4]["type"] for action in (1, np.int64(1), np.array(1, dtype=np.int32))]

    assert types == ["int", "int64", "ndarray int32 ()"]


@pytest.mark.parametrize("kind", SpaceKind)
def test_spaces_of_one_kind_are_equal(kind: SpaceKind) -> None:
    assert make_space(kind) == make_space(kind)


@pytest.mark.parametrize("where", sorted(set(FailurePlace) - {FailurePlace.INIT, FailurePlace.SET_ATTR}))
def test_failing_env_fails_where_it_is_told_and_only_once(where: FailurePlace) -> None:
    env = FailingEnv(fail_at=2, where=where)
    calls = {"reset": env.reset, "step": lambda: env.step(0), "call": env.explode}
    call = calls.get(where, getattr(env, where, None))
    call()

    with pytest.raises(ValueError, match=f"{where} 2 fails"):
        call()
    call()


def test_failing_env_fails_in_its_constructor_and_its_setter() -> None:
    with pytest.raises(ValueError, match="init 1 fails"):
        FailingEnv(where="init")
    with pytest.raises(ValueError, match="set_attr 1 fails"):
        FailingEnv(where="set_attr").fragile = 3


def test_failing_step_changes_nothing() -> None:
    env = FailingEnv(fail_at=2)
    env.reset(seed=0)
    env.step(0)

    with pytest.raises(ValueError):
        env.step(0)

    assert env.count == 1


def test_failing_envs_exceptions_do_not_pickle(tmp_path: Path) -> None:
    """In a process of its own: dask teaches the one that loads it to pickle any exception."""
    ended = run_script(
        tmp_path,
        """
        import pickle
        from joblib_envs.envs import FailingEnv

        for kind in ("two_arguments", "unpicklable"):
            try:
                FailingEnv(where="reset", kind=kind).reset()
            except Exception as error:
                try:
                    pickle.loads(pickle.dumps(error))
                except TypeError:
                    print(type(error).__name__)
        """,
    )

    assert ended.stdout.split() == ["TwoArgumentError", "UnpicklableFailureError"], ended.stderr


@pytest.mark.parametrize("kind", [FailureKind.OS_EXIT, FailureKind.SYS_EXIT])
def test_failing_env_ends_the_process(kind: FailureKind) -> None:
    code = f"from joblib_envs.envs import FailingEnv; FailingEnv(where='init', kind={kind.value!r})"

    assert subprocess.run([sys.executable, "-c", code]).returncode == 7


def test_pickle_loses_the_count_of_an_ez_pickled_env() -> None:
    env = EzPickledCountingEnv(5, 10)
    env.reset(seed=0)
    env.step(0)

    copied = pickle.loads(pickle.dumps(env))

    assert (env.count, copied.count, copied.start) == (11, 10, 10)


def test_unpicklable_env_does_not_pickle() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(UnpicklableEnv())


def test_copy_of_a_handle_env_drives_the_originals_simulator() -> None:
    env = HandleEnv()
    env.reset(seed=0)
    copied = pickle.loads(pickle.dumps(env))

    rewards = [one.step(0)[1] for one in (env, copied, env)]

    assert rewards == [1.0, 2.0, 3.0]


def test_global_random_env_does_not_repeat_itself() -> None:
    assert not bit_equal(played(GlobalRandomEnv(), 3), played(GlobalRandomEnv(), 3))


def test_sleeping_and_busy_env_take_their_time() -> None:
    sleeping, busy = SleepingEnv(0.02), BusyEnv(0.02)
    for env in (sleeping, busy):
        env.reset(seed=0)

    start_s, start_cpu_s = time.perf_counter(), time.thread_time()
    sleeping.step(0)
    slept_s, slept_cpu_s = time.perf_counter() - start_s, time.thread_time() - start_cpu_s
    busy.step(0)
    busy_cpu_s = time.thread_time() - start_cpu_s - slept_cpu_s

    assert slept_s >= 0.02
    assert slept_cpu_s < 0.02
    assert busy_cpu_s >= 0.02


def test_synthetic_env_costs_what_was_asked_for() -> None:
    costs = {}
    for step_us, steps in ((5, 1000), (200, 50)):
        one, without = SyntheticEnv(step_us), SyntheticEnv(0)
        for env in (one, without):
            env.reset(seed=0)
        costs[step_us] = min(cpu_s(one, steps) for _ in range(5)) - min(cpu_s(without, steps) for _ in range(5))
        costs[step_us] *= 1e6 / steps

    # Wide bounds: a busy neighbour on the same core slows loops down, which the short steps count.
    assert 2 < costs[5] < 25
    assert 190 < costs[200] < 400


def cpu_s(env: Any, steps: int) -> float:
    start_s = time.thread_time()
    for _ in range(steps):
        env.step(0)
    return time.thread_time() - start_s


def test_synthetic_env_sleeps_if_asked_to() -> None:
    env = SyntheticEnv(20_000, work="sleep")
    env.reset(seed=0)

    start_s, start_cpu_s = time.perf_counter(), time.thread_time()
    env.step(0)

    assert time.perf_counter() - start_s >= 0.02
    assert time.thread_time() - start_cpu_s < 0.02


def test_synthetic_env_has_data_that_seeds_and_actions_decide() -> None:
    env = SyntheticEnv(0, observation_bytes=1000, episode_length=2)
    first, _ = env.reset(seed=3)
    number = int.from_bytes(first[:8].tobytes(), "little")

    observation, reward, terminated, truncated, _ = env.step(1)

    assert int.from_bytes(observation[:8].tobytes(), "little") == reward == number + 2
    assert observation[8:-1].tolist() == [number % 256] * 991
    assert observation[-1] == (number + 2) % 256
    assert (observation.nbytes, terminated, truncated) == (1000, False, False)
    assert env.step(0)[3]


@pytest.mark.parametrize("kwargs", [{"observation_bytes": 7}, {"episode_length": 0}, {"step_us": -1}, {"work": "play"}])
def test_synthetic_env_refuses_what_it_cannot_be(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is not allowed: give"):
        SyntheticEnv(**kwargs)
