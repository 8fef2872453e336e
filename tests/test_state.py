"""The probe: which environments' states survive a pickle into another process."""

import threading
from functools import partial

import gymnasium
import numpy as np
import pytest
from batches import BACKENDS, TRAVELLING, make_batch
from gymnasium import wrappers
from odd_envs import WarningDiaryEnv

from joblib_envs import BatchEnv, StateCannotTravelError, SubEnvError, state
from joblib_envs.envs import (
    BufferReusingEnv,
    CountingEnv,
    EchoEnv,
    EzPickledCountingEnv,
    FailingEnv,
    GlobalRandomEnv,
    HandleEnv,
    LinearAlgebraEnv,
    SpaceEnv,
    UnpicklableEnv,
    VariableLengthEnv,
)
from joblib_envs.equality import Verdict
from joblib_envs.factories import packed_factories, source_of

CARTPOLE = partial(gymnasium.make, "CartPole-v1")
FAITHFUL = {
    **{
        env_id: partial(gymnasium.make, env_id)
        for env_id in (
            "CartPole-v1",
            "Acrobot-v1",
            "MountainCar-v0",
            "MountainCarContinuous-v0",
            "Pendulum-v1",
            "FrozenLake-v1",
            "Taxi-v4",
            "CliffWalking-v1",
            "Blackjack-v1",
        )
    },
    "TimeLimit": lambda: wrappers.TimeLimit(gymnasium.make("Pendulum-v1"), 5),
    "FrameStack": lambda: wrappers.FrameStackObservation(CARTPOLE(), 3),
    "NormalizeObservation": lambda: wrappers.NormalizeObservation(CARTPOLE()),
    "NormalizeReward": lambda: wrappers.NormalizeReward(CARTPOLE()),
    "RecordEpisodeStatistics": lambda: _without_clock(wrappers.RecordEpisodeStatistics(CARTPOLE())),
    "TimeAware": lambda: wrappers.TimeAwareObservation(CARTPOLE()),
    "Flatten": lambda: wrappers.FlattenObservation(CARTPOLE()),
    "Transform": lambda: wrappers.TransformReward(CARTPOLE(), lambda reward: reward / 3),
    "ClipReward": lambda: wrappers.ClipReward(CARTPOLE(), 0, 0.5),
    "RescaleAction": lambda: wrappers.RescaleAction(gymnasium.make("Pendulum-v1"), -1, 1),
    "Autoreset": lambda: wrappers.Autoreset(CARTPOLE()),
    "StickyAction": lambda: wrappers.StickyAction(CARTPOLE(), 0.3),
    "Counting": CountingEnv,
    "Buffer": BufferReusingEnv,
    "Variable": VariableLengthEnv,
    "Linear": LinearAlgebraEnv,
    "Echo": partial(EchoEnv, "dict"),
    "Space": partial(SpaceEnv, "graph"),
    "failing": partial(FailingEnv, 2),
    "exiting": partial(FailingEnv, 2, "step", "sys_exit"),
}
UNFAITHFUL = {
    "EzPickled": (EzPickledCountingEnv, Verdict.WRONG, "goes on differently"),
    "EzPickled below wrappers": (
        lambda: wrappers.TimeLimit(EzPickledCountingEnv(), 50),
        Verdict.WRONG,
        "goes on differently",
    ),
    "Handle": (HandleEnv, Verdict.WRONG, "goes on differently"),
    "Unpicklable": (UnpicklableEnv, Verdict.RAISES, "can't be pickled"),
    "GlobalRandom": (GlobalRandomEnv, Verdict.NOT_REPRODUCIBLE, "global random generator"),
    "dying": (partial(FailingEnv, 1, "step", "os_exit"), Verdict.RAISES, "exit code 7"),
}


def _without_clock(env):
    """Leave the time out of the infos, which is no function of seeds and actions."""
    return Untimed(env)


class Untimed(gymnasium.Wrapper):
    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        info.get("episode", {}).pop("t", None)
        return observation, reward, terminated, truncated, info


@pytest.fixture(scope="module")
def verdicts():
    """Probe all at once: two fresh processes for the lot, and more for those that end theirs."""
    factories = {**FAITHFUL, **{name: case[0] for name, case in UNFAITHFUL.items()}}
    alone = {name: factories.pop(name) for name in ("dying", "exiting")}
    results = dict(zip(factories, state.probe(packed_factories(list(factories.values()))), strict=True))
    for name, factory in alone.items():
        (results[name],) = state.probe(packed_factories([factory]))
    return results


@pytest.mark.parametrize("name", FAITHFUL)
def test_a_state_that_survives_is_accepted(verdicts, name):
    assert verdicts[name] == state.ProbeResult(Verdict.CORRECT)


@pytest.mark.parametrize("name", UNFAITHFUL)
def test_a_state_that_does_not_survive_is_refused_with_the_reason(verdicts, name):
    _, verdict, reason = UNFAITHFUL[name]

    assert verdicts[name].verdict is verdict
    assert reason in verdicts[name].reason


def test_environments_that_end_their_process_do_not_spoil_the_verdict_on_others():
    results = state.probe(packed_factories([partial(FailingEnv, 1, "step", "os_exit"), CountingEnv]))

    assert [result.verdict for result in results] == [Verdict.RAISES, Verdict.CORRECT]


def test_nothing_to_probe_starts_nothing():
    assert state.probe([]) == []


@pytest.mark.parametrize("backend", TRAVELLING, ids=str)
@pytest.mark.parametrize("env_class", [EzPickledCountingEnv, HandleEnv, UnpicklableEnv, GlobalRandomEnv])
def test_tasks_in_processes_refuse_what_they_would_lose(backend, env_class):
    with pytest.raises(StateCannotTravelError, match="execution='actors'"):
        make_batch(backend, env_class, 2, probe=True)


def test_one_unfaithful_environment_of_several_is_enough_to_refuse():
    factories = [CountingEnv, EzPickledCountingEnv]

    with pytest.raises(StateCannotTravelError, match="goes on differently"):
        make_batch(TRAVELLING[0], factories, probe=True)


@pytest.mark.parametrize("backend", TRAVELLING, ids=str)
def test_tasks_in_processes_refuse_mujoco(backend, tmp_path, monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)  # where MuJoCo writes its log

    with pytest.raises(StateCannotTravelError, match="HalfCheetah-v5"):
        make_batch(backend, "HalfCheetah-v5", 2, probe=True)


def test_the_same_environment_is_probed_once(monkeypatch):
    calls = []
    monkeypatch.setattr(state, "_known", {})
    monkeypatch.setattr(state, "probe", lambda packed, threads: calls.append(packed) or [CORRECT] * len(packed))
    packed = packed_factories(source_of("CartPole-v1", 3, (), None).factories)

    state.require_travelling_state(packed, "CartPole-v1", 1)
    state.require_travelling_state(packed, "CartPole-v1", 1)
    assert [len(each) for each in calls if each] == [1]
    state.require_travelling_state(packed, "CartPole-v1", 2)

    assert [len(each) for each in calls if each] == [1, 1]


CORRECT = state.ProbeResult(Verdict.CORRECT)


def test_the_probe_can_be_switched_off(travelling_backend):
    with make_batch(travelling_backend, EzPickledCountingEnv, 2, probe=False) as envs:
        envs.reset(seed=0)
        observations, *_ = envs.step([0, 0])
        again, *_ = envs.step([0, 0])

    assert observations.tolist() == again.tolist() == [1, 1]


def test_actors_keep_any_state():
    for backend in (each for each in BACKENDS if each.execution == "actors"):
        with make_batch(backend, [EzPickledCountingEnv, HandleEnv, UnpicklableEnv], probe=True) as envs:
            envs.reset(seed=0)
            envs.step([0, 0, 0])
            observations, rewards, *_ = envs.step([0, 0, 0])

        assert observations.tolist() == [2, 2, 2]
        assert rewards.tolist() == [2.0, 2.0, 2.0]


def test_throw_away_instances_are_closed_and_never_seen(tmp_path, capfd):
    with make_batch(TRAVELLING[0], partial(WarningDiaryEnv, tmp_path), 2, probe=True) as envs:
        envs.reset(seed=0)
        captured = capfd.readouterr()
        made, closed = ((tmp_path / f"{what}-0").read_text() for what in ("made", "closed"))

    assert len(made) > 2
    assert len(closed) >= len(made) - 2
    assert captured.err == ""


def test_an_environment_that_cannot_be_made_is_told_by_the_batch(travelling_backend):
    with pytest.raises(SubEnvError, match="ValueError when it was made: init 1 fails"):
        make_batch(travelling_backend, partial(FailingEnv, 1, "init"), 2, probe=True)


class SouringEnv(CountingEnv):
    """Can't be pickled any more once it was told to hold a lock, or has drawn a frame."""

    def __init__(self, sours=True, render_mode=None):
        super().__init__(100, render_mode=render_mode)
        self.sours = sours

    def hold(self):
        if self.sours:
            self.held = threading.Lock()
        return self.sours

    def render(self):
        self.hold()
        return super().render()


@pytest.mark.parametrize("name", ["loky", "multiprocessing"])
def test_an_environment_that_can_no_longer_be_pickled_fails_alone(name):
    factories = [SouringEnv, partial(SouringEnv, sours=False)]
    with BatchEnv(factories, backend=name, execution="tasks", n_jobs=1 if name == "loky" else 2) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])

        with pytest.raises(StateCannotTravelError, match="sub-environment 0 could be pickled before") as caught:
            envs.call("hold")
        observations, _ = envs.reset(options={"reset_mask": np.array([True, False])})
        moved, *_ = envs.step([0, 0])

    assert list(caught.value.failures) == [0]
    assert caught.value.partial[0] == (None, False)
    assert observations.tolist() == [0, 1]
    assert moved.tolist() == [1, 2]


def test_the_probe_draws_frames_where_there_are_some():
    packed = packed_factories([partial(SouringEnv, render_mode="rgb_array"), SouringEnv])

    drawn, blind = state.probe(packed)

    assert drawn.verdict is Verdict.RAISES
    assert "can't be pickled" in drawn.reason
    assert blind.verdict is Verdict.CORRECT
