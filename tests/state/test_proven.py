"""``capture`` and ``restore``: proven where that can be, said where it can't, refused where it is wrong."""

import pickle
import warnings
from functools import partial

import gymnasium
import numpy as np
import pytest
from batches import run_script
from gymnasium import wrappers

from joblib_envs import StateCannotTravelError
from joblib_envs.envs import CountingEnv, EzPickledCountingEnv, GlobalRandomEnv, HandleEnv, UnpicklableEnv
from joblib_envs.equality import first_difference
from joblib_envs.errors import ArgumentTypeError
from joblib_envs.state import EnvState, UnprovenStateWarning, capture, probe, proven, restore


@pytest.fixture
def no_proofs(monkeypatch):
    """Forget what was proven before; tell what is tried."""
    tried = []

    def prove(packed, *args, **kwargs):
        tried.extend(packed)
        return probe_prove(packed, *args, **kwargs)

    probe_prove = probe.prove
    monkeypatch.setattr(probe, "_known", {})
    monkeypatch.setattr(proven, "_proofs", {})
    monkeypatch.setattr(probe, "prove", prove)
    return tried


@pytest.fixture
def registered(monkeypatch):
    """Register environments for one test."""

    def register(env_class, **options):
        name = f"proven/{env_class.__name__}-v0"
        module = "joblib_envs.envs" if env_class.__module__.startswith("joblib_envs") else env_class.__module__
        gymnasium.register(name, entry_point=f"{module}:{env_class.__name__}", **options)
        names.append(name)
        return name

    names = []
    yield register
    for name in names:
        gymnasium.registry.pop(name)


def test_a_state_of_gymnasiums_make_is_proven_once(no_proofs):
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        states = [capture(env), capture(env), capture(gymnasium.make("CartPole-v1"))]

    assert all(state.is_proven for state in states)
    assert [state.method for state in states] == ["capture"] * 3
    assert len(no_proofs) == 1


def test_recorded_wrappers_are_a_part_of_what_is_proven(no_proofs):
    env = wrappers.NormalizeReward(wrappers.FlattenObservation(gymnasium.make("CartPole-v1")), gamma=0.5)
    env.reset(seed=0)

    assert capture(env).is_proven


@pytest.mark.parametrize(
    "make",
    [
        partial(CountingEnv, 5),
        lambda: wrappers.TimeLimit(CountingEnv(5), 3),
        lambda: Plain(gymnasium.make("CartPole-v1")),
    ],
)
def test_what_can_not_be_made_again_is_captured_with_a_warning(make):
    env = make()
    env.reset(seed=0)

    with pytest.warns(UnprovenStateWarning, match="prove=False") as caught:
        state = capture(env)

    assert not state.is_proven
    assert caught[0].filename == __file__
    assert first_difference(env.step(0), restore(state).step(0)) is None


class Plain(gymnasium.Wrapper):
    """A wrapper that records no arguments."""


def test_without_a_proof_nothing_is_tried_and_nobody_is_warned(no_proofs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        state = capture(CountingEnv(5), prove=False)
        capture(gymnasium.make("CartPole-v1"), prove=False)

    assert not state.is_proven
    assert no_proofs == []


@pytest.mark.parametrize(
    ("env_class", "reason"),
    [
        (HandleEnv, "goes on differently"),
        (UnpicklableEnv, "can't be pickled"),
        (GlobalRandomEnv, "global random generator"),
    ],
)
def test_a_state_that_was_found_to_be_wrong_is_refused(registered, env_class, reason):
    env = gymnasium.make(registered(env_class))
    env.reset(seed=0)

    with pytest.raises(StateCannotTravelError, match=reason) as caught:
        capture(env)

    assert "state_method='replay'" in str(caught.value)


def test_what_was_refused_is_taken_as_it_is_where_that_is_wanted(registered):
    env = gymnasium.make(registered(HandleEnv))
    env.reset(seed=0)

    assert not capture(env, prove=False).is_proven
    with pytest.raises(StateCannotTravelError, match=r"something in it can't be pickled .*register a state adapter"):
        capture(UnpicklableEnv(), prove=False)


def test_an_environment_below_ez_pickle_is_proven(registered):
    env = gymnasium.make(registered(EzPickledCountingEnv), episode_length=50)
    env.reset(seed=0)
    env.step(0)

    state = capture(env)

    assert state.is_proven
    assert restore(state).step(0)[0] == 2


@pytest.mark.parametrize("value", [None, "CartPole-v1", CountingEnv, object()])
def test_what_is_no_environment_is_refused(value):
    with pytest.raises(ArgumentTypeError, match=r"must be a gymnasium.Env, not"):
        capture(value)


def test_a_vector_environment_is_no_environment():
    with pytest.raises(ArgumentTypeError, match="SyncVectorEnv"):
        capture(gymnasium.make_vec("CartPole-v1", 1, vectorization_mode="sync"))


# What is left alone


@pytest.mark.parametrize("moment", ["made", "reset", "stepped", "ended"])
def test_capture_leaves_the_environment_as_it_is(moment):
    env, twin = (wrappers.NormalizeObservation(wrappers.TimeLimit(CountingEnv(5), 4)) for _ in range(2))
    for each in (env, twin):
        each.action_space.seed(1)
        if moment != "made":
            each.reset(seed=1)
        for _ in range({"stepped": 2, "ended": 4}.get(moment, 0)):
            each.step(each.action_space.sample())
    before = pickle.dumps(vars(env.unwrapped))

    for _ in range(3):
        capture(env, prove=False)

    assert pickle.dumps(vars(env.unwrapped)) == before
    answers = [(each.reset(), each.action_space.sample(), each.step(1), each.reset(seed=2)) for each in (env, twin)]
    if moment == "made":  # without a seed, both would draw one from the operating system
        answers = [each[1:] for each in answers]
    assert first_difference(*answers) is None


def test_a_state_is_restored_as_often_as_wanted():
    env = gymnasium.make("Pendulum-v1")
    env.reset(seed=0)
    state = capture(env)
    data = state.to_bytes()

    answers = [restore(state).step(np.ones(1, np.float32)) for _ in range(3)]
    env.step(np.zeros(1, np.float32))

    assert first_difference(answers[0], answers[1]) is None
    assert first_difference(answers[0], answers[2]) is None
    assert state.to_bytes() == data


def test_a_state_of_a_state_is_the_same_state():
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)

    state = capture(env)
    again = capture(restore(state))

    assert first_difference(restore(state).step(1), restore(again).step(1)) is None


def test_a_wrapped_environment_keeps_its_layers_and_spec():
    env = wrappers.TimeLimit(Plain(CountingEnv(50)), 7)
    env.reset(seed=0)

    there = restore(capture(env, prove=False))

    assert [type(there), type(there.env), type(there.unwrapped)] == [wrappers.TimeLimit, Plain, CountingEnv]
    there = restore(capture(gymnasium.make("CartPole-v1", max_episode_steps=3), prove=False))
    assert there.spec.max_episode_steps == 3


# In a fresh process

GOING_ON = """
    import gymnasium, sys, pickle
    from joblib_envs.state import EnvState, restore

    with open("states", "rb") as file:
        states = pickle.load(file)
    answers = []
    for data in states:
        env = restore(EnvState.from_bytes(data))
        answers.append([env.step(env.action_space.sample()) for _ in range(30)] + [env.reset(), env.reset(seed=5)])
    with open("answers", "wb") as file:
        pickle.dump(answers, file)
"""


def test_a_fresh_process_goes_on_to_the_last_bit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ids = ["Pendulum-v1", "Acrobot-v1", "CliffWalkingSlippery-v1", *_mujoco_ids()]
    envs = [gymnasium.make(env_id) for env_id in ids]
    for env in envs:
        env.action_space.seed(1)
        env.reset(seed=1)
        for _ in range(10):
            env.step(env.action_space.sample())
    (tmp_path / "states").write_bytes(pickle.dumps([capture(env, prove=False).to_bytes() for env in envs]))

    ended = run_script(tmp_path, GOING_ON)
    wanted = [
        [env.step(env.action_space.sample()) for _ in range(30)] + [env.reset(), env.reset(seed=5)] for env in envs
    ]

    assert ended.returncode == 0, ended.stderr
    assert first_difference(wanted, pickle.loads((tmp_path / "answers").read_bytes())) is None


def _mujoco_ids():
    try:
        import mujoco  # noqa: F401
    except ImportError:
        return []
    return ["HalfCheetah-v5", "Reacher-v5", "Ant-v5"]


def test_the_state_of_an_environment_that_is_gone_for_long_is_still_good():
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    data = capture(env).to_bytes()
    wanted = env.step(1)
    env.close()
    del env

    assert first_difference(wanted, restore(EnvState.from_bytes(data)).step(1)) is None
