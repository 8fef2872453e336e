"""The probe: which environments' states survive the trip into another process, and by which way of pickling."""

import threading
from functools import partial

import gymnasium
import numpy as np
import pytest
from batches import BACKENDS, TRAVELLING, make_batch
from gymnasium import wrappers
from odd_envs import ForgettingEnv, FreeCellsEnv, LateForgettingEnv, LockedEnv, VisitedCellsEnv, WarningDiaryEnv

from joblib_envs import BatchEnv, StateCannotTravelError, SubEnvError
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
from joblib_envs.state import probe
from joblib_envs.state.pickling import CaptureOptions
from joblib_envs.state.trial import Proof

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
    "statistics of an endless episode": lambda: wrappers.NormalizeObservation(
        gymnasium.make("Pendulum-v1", max_episode_steps=5000)
    ),
    "NormalizeReward": lambda: wrappers.NormalizeReward(CARTPOLE()),
    "RecordEpisodeStatistics": lambda: wrappers.RecordEpisodeStatistics(wrappers.TimeLimit(CARTPOLE(), 6)),
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
    "EzPickled": EzPickledCountingEnv,
    "EzPickled below wrappers": lambda: wrappers.TimeLimit(EzPickledCountingEnv(), 50),
    "a hook that drops state": partial(ForgettingEnv, 5),
    "failing": partial(FailingEnv, 2),
    "exiting": partial(FailingEnv, 2, "step", "sys_exit"),
}
BY_OWN_HOOKS = {
    "a hook that is needed": partial(LockedEnv, 5),
    "a hook that is needed, below wrappers": lambda: wrappers.TimeLimit(LockedEnv(5), 4),
}
UNFAITHFUL = {
    "Handle": (HandleEnv, Verdict.WRONG, "goes on differently"),
    "Unpicklable": (UnpicklableEnv, Verdict.RAISES, "can't be pickled"),
    "GlobalRandom": (GlobalRandomEnv, Verdict.NOT_REPRODUCIBLE, "global random generator"),
    "dying": (partial(FailingEnv, 1, "step", "os_exit"), Verdict.RAISES, "exit code 7"),
}


class SetEnv(CountingEnv):
    """Tells a set of strings as a list, whose order is another one in each process."""

    NAMES = ("kettle", "microwave", "light switch", "slide cabinet", "hinge cabinet", "bottom burner", "top burner")

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"names": list(set(self.NAMES))}


@pytest.fixture(scope="module")
def proofs():
    """Probe all at once: two fresh processes for the lot, and more for those that end theirs."""
    factories = {**FAITHFUL, **BY_OWN_HOOKS, **{name: case[0] for name, case in UNFAITHFUL.items()}}
    alone = {name: factories.pop(name) for name in ("dying", "exiting")}
    results = dict(zip(factories, probe.prove(packed_factories(list(factories.values()))), strict=True))
    for name, factory in alone.items():
        (results[name],) = probe.prove(packed_factories([factory]))
    return results


@pytest.mark.parametrize("name", FAITHFUL)
def test_a_state_that_survives_is_accepted(proofs, name):
    proof = proofs[name]

    assert (proof.verdict, proof.reason, proof.options) == (Verdict.CORRECT, "", CaptureOptions())


@pytest.mark.parametrize("name", BY_OWN_HOOKS)
def test_an_environment_that_needs_its_own_hooks_is_pickled_by_them(proofs, name):
    proof = proofs[name]

    assert (proof.verdict, proof.options) == (Verdict.CORRECT, CaptureOptions(own_hooks=True))


@pytest.mark.parametrize("name", UNFAITHFUL)
def test_a_state_that_does_not_survive_is_refused_with_the_reason(proofs, name):
    _, verdict, reason = UNFAITHFUL[name]

    assert proofs[name].verdict is verdict
    assert reason in proofs[name].reason


def test_the_layers_are_those_of_the_environment(proofs):
    assert proofs["EzPickled below wrappers"].layers == (
        "gymnasium.wrappers.common.TimeLimit",
        "joblib_envs.envs.travelling.EzPickledCountingEnv",
    )


def test_environments_that_end_their_process_do_not_spoil_the_verdict_on_others():
    results = probe.prove(packed_factories([partial(FailingEnv, 1, "step", "os_exit"), CountingEnv]))

    assert [result.verdict for result in results] == [Verdict.RAISES, Verdict.CORRECT]


def test_nothing_to_probe_starts_nothing():
    assert probe.prove([]) == []


def test_an_info_whose_order_the_process_decides_is_no_reason_to_refuse():
    (proof,) = probe.prove(packed_factories([SetEnv]))

    assert proof.verdict is Verdict.CORRECT, proof.reason


# In batches


@pytest.mark.parametrize("backend", TRAVELLING, ids=str)
@pytest.mark.parametrize("env_class", [HandleEnv, UnpicklableEnv, GlobalRandomEnv])
def test_tasks_in_processes_refuse_what_they_would_lose(backend, env_class):
    with pytest.raises(StateCannotTravelError, match=r"execution='actors'.*state_method='replay'"):
        make_batch(backend, env_class, 2, probe=True)


def test_one_unfaithful_environment_of_several_is_enough_to_refuse():
    factories = [CountingEnv, HandleEnv]

    with pytest.raises(StateCannotTravelError, match="goes on differently"):
        make_batch(TRAVELLING[0], factories, probe=True)


@pytest.mark.parametrize(
    ("env", "verdict", "reason"),
    [
        (FreeCellsEnv, Verdict.WRONG, "order of a set"),
        (VisitedCellsEnv, Verdict.CORRECT, ""),
        (LateForgettingEnv, Verdict.WRONG, "lacks state"),
    ],
)
def test_what_shows_seldom_or_late_is_looked_for(env, verdict, reason):
    (proof,) = probe.prove(packed_factories([env]))

    assert proof.verdict is verdict, proof.reason
    assert reason in proof.reason


@pytest.mark.parametrize("backend", TRAVELLING, ids=str)
def test_ez_pickled_environments_go_on_in_tasks(backend):
    with make_batch(backend, partial(EzPickledCountingEnv, 4), 3, probe=True) as envs:
        envs.reset(seed=0)
        observations = [envs.step([0, 0, 0])[0].tolist() for _ in range(6)]

    assert observations == [[1] * 3, [2] * 3, [3] * 3, [4] * 3, [0] * 3, [1] * 3]


@pytest.mark.parametrize("backend", TRAVELLING, ids=str)
def test_mujoco_goes_on_in_tasks_to_the_last_bit(backend, tmp_path, monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)  # where MuJoCo writes its log
    sequential = next(each for each in BACKENDS if each.name == "sequential")
    with (
        make_batch(sequential, "HalfCheetah-v5", 2) as wanted,
        make_batch(backend, "HalfCheetah-v5", 2, probe=True) as got,
    ):
        wanted.action_space.seed(0)
        for envs in (wanted, got):
            envs.reset(seed=0)
        for _ in range(50):
            actions = wanted.action_space.sample()
            assert wanted.step(actions)[0].tobytes() == got.step(actions)[0].tobytes()
        assert wanted.reset()[0].tobytes() == got.reset()[0].tobytes()


def test_environments_that_need_different_ways_find_one_for_all():
    factories = [CountingEnv, LockedEnv, EzPickledCountingEnv]

    with make_batch(TRAVELLING[0], factories, probe=True) as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0])
        observations, *_ = envs.step([0, 0, 0])

    assert observations.tolist() == [2, 2, 2]


def test_environments_that_have_no_way_in_common_are_refused():
    factories = [partial(ForgettingEnv, 50), LockedEnv]  # its hooks drop state; its hooks are needed

    with pytest.raises(StateCannotTravelError, match=r"can't be pickled|goes on differently"):
        make_batch(TRAVELLING[0], factories, probe=True)


def test_the_same_environment_is_probed_once(monkeypatch):
    calls = []
    monkeypatch.setattr(probe, "_known", {})
    monkeypatch.setattr(
        probe, "_tried", lambda packed, *_: calls.append(len(packed)) or [Proof(Verdict.CORRECT)] * len(packed)
    )
    packed = packed_factories(source_of("CartPole-v1", 3, (), None).factories)

    for num_threads in (1, 1, 2):
        probe.require_travelling_state(packed, "CartPole-v1", num_threads, "{} is to travel", "Don't")

    assert [number for number in calls if number] == [1, 1]


def test_the_reason_the_purpose_and_the_remedy_are_in_the_error(monkeypatch):
    monkeypatch.setattr(probe, "prove", lambda *_, **__: [Proof(Verdict.WRONG, "it is wrong")])

    with pytest.raises(StateCannotTravelError) as caught:
        probe.require_travelling_state([b""], "Name-v0", 1, "{} is to travel", "Do something else")

    assert str(caught.value).startswith("Name-v0 is to travel, and its state can't be trusted")
    assert str(caught.value).endswith("it is wrong. Do something else")


def test_the_probe_can_be_switched_off(travelling_backend):
    with make_batch(travelling_backend, HandleEnv, 2, probe=False) as envs:
        envs.reset(seed=0)
        observations, *_ = envs.step([0, 0])

    assert observations.tolist() == [1, 1]


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

    drawn, blind = probe.prove(packed)

    assert drawn.verdict is Verdict.RAISES
    assert "can't be pickled" in drawn.reason
    assert blind.verdict is Verdict.CORRECT
