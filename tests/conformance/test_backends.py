"""BatchEnv gives what SyncVectorEnv gives, to the last bit, on every backend in either execution."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joblib_envs import BatchEnv, StateCannotTravelError
from joblib_envs.conformance import (
    ConformanceError,
    FaultFoundError,
    InfoRule,
    Session,
    check_vector_env,
    standard_workloads,
)
from joblib_envs.envs import GlobalRandomEnv
from joblib_envs.equality import first_difference

from .conftest import ALL, BACKENDS, NUM_ENVS, Backend, workload_named
from .strategies import programs

# One of each kind of trouble; their batches are kept for many programs.
DRAWN = ["wrapped_counting", "buffer_reusing", "echo[dict]", "infos[coming_and_going]", "infos[dict_then_scalar]"]
SHARED_MEMORY = [backend for backend in BACKENDS if backend.name in ("sequential", "threading")]
PROCESS_TASKS = [backend for backend in BACKENDS if backend not in SHARED_MEMORY and backend.execution == "tasks"]


def travelling(backend: Backend, names: list[str]) -> list[str]:
    """Leave out what the backend refuses: environments whose state can't travel to its tasks."""
    return [name for name in names if backend not in PROCESS_TASKS or workload_named(name).travels]


@pytest.mark.filterwarnings("ignore:the environments' infos have both:UserWarning")
def test_batch_env_keeps_the_strict_contract(backend: Backend, autoreset_mode: AutoresetMode) -> None:
    check_vector_env(
        backend,
        programs=backend.programs,
        autoreset_modes=[autoreset_mode],
        environments=travelling(backend, backend.environments(autoreset_mode)),
        num_envs=NUM_ENVS,
        strict=True,
        inner_max_num_threads=1,
    )


def test_every_environment_is_checked_on_processes_in_some_mode() -> None:
    (loky_actors,) = (backend for backend in BACKENDS if str(backend) == "loky-actors")

    checked = {name for mode in AutoresetMode for name in loky_actors.environments(mode)}

    assert checked == set(ALL)


class Sessions:
    """Batches kept between programs; one that showed a fault is thrown away."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._kept: dict[tuple[str, AutoresetMode], Session] = {}

    def get(self, name: str, autoreset_mode: AutoresetMode) -> Session:
        key = name, autoreset_mode
        if key not in self._kept:
            self._kept[key] = Session(
                self.backend,
                workload_named(name),
                autoreset_mode,
                strict=True,
                infos=InfoRule.LOSSLESS,
                inner_max_num_threads=1,
            )
        return self._kept[key]

    def discard(self, session: Session) -> None:
        self._kept = {key: kept for key, kept in self._kept.items() if kept is not session}
        session.judged.close()

    def close(self) -> None:
        for session in self._kept.values():
            session.judged.close()
        self._kept.clear()


@pytest.fixture
def sessions(backend: Backend) -> Iterator[Sessions]:
    sessions = Sessions(backend)
    yield sessions
    sessions.close()


def test_any_program_gives_what_sync_gives(sessions: Sessions) -> None:
    @settings(
        max_examples=sessions.backend.max_examples,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(DRAWN), label="environment")
        mode = data.draw(st.sampled_from(AutoresetMode), label="autoreset mode")
        session = sessions.get(name, mode)
        program = data.draw(programs(session.workload, session.reference.single_action_space), label="program")
        session.forget()
        try:
            session.run(program)
        except FaultFoundError as found:
            sessions.discard(session)
            raise ConformanceError(found.fault) from found

    run()


@pytest.mark.parametrize("backend", PROCESS_TASKS, ids=str)
@pytest.mark.parametrize("name", [workload.name for workload in standard_workloads(NUM_ENVS) if not workload.travels])
def test_environment_whose_state_cannot_travel_is_refused(backend: Backend, name: str) -> None:
    workload = workload_named(name)

    with pytest.raises(StateCannotTravelError, match="actors"):
        backend(workload.env_fns, autoreset_mode=AutoresetMode.NEXT_STEP)


def test_global_random_numbers_equal_syncs_where_one_loop_draws_them() -> None:
    """No backend can promise more: elsewhere several workers draw, each from a generator of its own."""

    def run(envs: VectorEnv[Any, Any, Any]) -> list[Any]:
        np.random.seed(7)
        steps = [envs.reset(seed=0), *(envs.step([0] * NUM_ENVS) for _ in range(12))]
        envs.close()
        return steps

    wanted = run(SyncVectorEnv([GlobalRandomEnv] * NUM_ENVS))

    for execution in ("actors", "tasks"):
        got = run(BatchEnv([GlobalRandomEnv] * NUM_ENVS, backend="sequential", execution=execution))
        assert first_difference(wanted, got) is None


@pytest.mark.parametrize("backend", PROCESS_TASKS, ids=str)
def test_global_random_numbers_are_refused_where_they_would_travel(backend: Backend) -> None:
    with pytest.raises(StateCannotTravelError, match="differ from one another"):
        BatchEnv([GlobalRandomEnv] * NUM_ENVS, backend=backend.name, execution=backend.execution)
