"""MuJoCo's objects: apart from one another, never changed under anybody's hands, used again where nobody has them."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import numpy as np
import pytest
from voyages import travelled

from joblib_envs.state import mujoco_objects, restore
from joblib_envs.state.pickling import CaptureOptions, captured, restored
from joblib_envs.state.snapshot import captured_state

mujoco = pytest.importorskip("mujoco")

from laboratory import GravityAtResetEnv, begun  # noqa: E402


@pytest.fixture(autouse=True)
def _logs_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where MuJoCo writes its log


def test_environments_of_one_state_share_neither_model_nor_data():
    state = captured_state(begun(), CaptureOptions(), is_proven=False)

    one, other = restore(state), restore(state)
    qpos, mass = other.data.qpos.copy(), other.model.body_mass.copy()
    one.model.body_mass[:] = 9
    one.model.opt.gravity[:] = 0
    one.step(np.ones(2))

    assert np.array_equal(other.data.qpos, qpos)
    assert np.array_equal(other.model.body_mass, mass)
    assert other.model.opt.gravity[2] == pytest.approx(-9.81)
    assert not np.shares_memory(one.data.qpos, other.data.qpos)
    assert not np.shares_memory(one.model.body_mass, other.model.body_mass)


def test_a_change_of_the_original_does_not_reach_its_copy_nor_the_other_way():
    env = begun()
    copy = travelled(env)

    env.model.opt.gravity[2] = -1
    copy.model.body_mass[1] = 5
    again = travelled(env)

    assert copy.model.opt.gravity[2] == pytest.approx(-9.81)
    assert env.model.body_mass[1] == 1
    assert (again.model.opt.gravity[2], again.model.body_mass[1]) == (-1, 1)


def test_a_model_that_was_changed_and_changed_back_is_the_first_again():
    env = begun()
    mass = float(env.model.body_mass[1])
    keys = []
    for value in (mass, 2.5, mass):
        env.model.body_mass[1] = value
        _, departure = captured(env, CaptureOptions())
        keys.append(tuple(departure.shared))

    assert keys[0] == keys[2]
    assert keys[0] != keys[1]


HELD = {
    "data.qpos": lambda env: env.data.qpos,
    "a slice of data.qpos": lambda env: env.data.qpos[2:],
    "data.xpos": lambda env: env.data.xpos[1],
    "a memoryview of data.qpos": lambda env: np.asarray(memoryview(env.data.qpos)),
    "an iterator of data.qpos": lambda env: env.data.qpos.flat,
    "data.body(...).xpos": lambda env: env.data.body("ball").xpos,
    "data.joint(...).qpos": lambda env: env.data.joint("elbow").qpos,
    "model.body_mass": lambda env: env.model.body_mass,
    "a slice of model.body_mass": lambda env: env.model.body_mass[1:],
    "model.body(...).mass": lambda env: env.model.body("ball").mass,
    "model.opt.gravity": lambda env: env.model.opt.gravity,
    "model.qpos0": lambda env: env.model.qpos0,
}


@pytest.mark.parametrize("name", HELD)
def test_what_somebody_holds_of_an_environment_that_is_gone_stays_as_it_was(name):
    source, other = begun(steps=20), begun(steps=30)
    env = travelled(source)
    held = HELD[name](env)
    kept = np.array(held)
    assert kept.size
    del env
    gc.collect()

    restored_later = []
    for _ in range(4):
        restored_later.append(travelled(other))
        restored_later[-1].step(np.ones(2))
        restored_later[-1].model.body_mass[:] = 77
        restored_later[-1].model.qpos0[:] = 77
        restored_later[-1].model.opt.gravity[:] = 77

    assert np.array_equal(np.array(held), kept)


HELD_OBJECTS = {
    "the data": lambda env: (env.data, lambda data: data.qpos),
    "the model": lambda env: (env.model, lambda model: model.body_mass),
    "the contacts": lambda env: (env.data.contact, lambda contacts: contacts.dist),
    "a contact": lambda env: (env.data.contact[0], lambda contact: [contact.dist, *contact.pos]),
    "the options": lambda env: (env.model.opt, lambda options: options.gravity),
    "the names of a body": lambda env: (env.data.body("ball"), lambda body: body.xpos),
    "the warnings": lambda env: (env.data.warning, lambda warning: warning.number),
}


@pytest.mark.parametrize("name", HELD_OBJECTS)
def test_an_object_that_somebody_holds_of_an_environment_that_is_gone_stays_as_it_was(name):
    source, other = begun(steps=20), begun(steps=30)
    env = travelled(source)
    held, look = HELD_OBJECTS[name](env)
    kept = np.array(look(held))
    assert kept.size
    del env
    gc.collect()

    restored_later = []
    for _ in range(4):
        restored_later.append(travelled(other))
        restored_later[-1].step(np.ones(2))
        restored_later[-1].model.body_mass[:] = 77
        restored_later[-1].model.opt.gravity[:] = 77
        restored_later[-1].data.warning.number[:] = 77

    assert np.array_equal(np.array(look(held)), kept)


COUNTED = ["data.qpos", "a slice of data.qpos", "data.xpos", "model.body_mass", "a slice of model.body_mass"]


@pytest.mark.parametrize("name", COUNTED)
def test_in_a_task_too_an_array_that_somebody_holds_stays_as_it_was(name):
    source, other = begun(steps=20), begun(steps=30)
    env = travelled(source, is_private=True)
    held = HELD[name](env)
    kept = np.array(held)
    del env
    gc.collect()

    later = [travelled(other, is_private=True) for _ in range(4)]
    for each in later:
        each.step(np.ones(2))
        each.model.body_mass[:] = 77

    assert np.array_equal(np.array(held), kept)


@pytest.fixture
def made(monkeypatch):
    """The list of MuJoCo objects that are made, and not used again."""
    natives = []
    make = mujoco_objects._Native.__init__

    def noting(native, model, data):
        natives.append(native)
        make(native, model, data)

    mujoco_objects._counts_when_new()
    monkeypatch.setattr(mujoco_objects._Native, "__init__", noting)
    return natives


def test_in_a_task_what_nobody_holds_is_used_again_and_is_as_good_as_new(made):
    source = GravityAtResetEnv()
    source.reset(seed=0)
    first = travelled(source, is_private=True)
    mass = first.model.body_mass.copy()
    first.step(np.ones(2))
    first.data.xfrc_applied[:] = 3
    del first
    gc.collect()
    made.clear()

    second = travelled(source, is_private=True)

    assert made == []
    assert np.array_equal(second.data.qpos, source.data.qpos)
    assert np.array_equal(second.model.body_mass, mass)
    assert not second.data.xfrc_applied.any()


def test_two_environments_of_one_task_have_nothing_in_common():
    source = begun()

    one, other = (travelled(source, is_private=True) for _ in range(2))
    one.model.body_mass[:] = 9
    one.step(np.ones(2))

    assert np.array_equal(other.data.qpos, source.data.qpos)
    assert np.array_equal(other.model.body_mass, source.model.body_mass)


def test_a_model_that_its_last_owner_changed_is_not_used_again(made):
    source = begun()
    first = travelled(source, is_private=True)
    first.model.body_mass[1] = 55
    del first
    gc.collect()

    second = travelled(source, is_private=True)

    assert second.model.body_mass[1] == source.model.body_mass[1] == 1


@pytest.mark.parametrize("is_private", [False, True], ids=["anywhere", "in tasks"])
def test_threads_that_restore_and_step_at_once_all_get_the_same(is_private):
    env = gymnasium.make("HalfCheetah-v5")
    env.reset(seed=0)
    data, departure = captured(env, CaptureOptions())
    actions = [np.full(6, 0.1 * number) for number in range(5)]
    start = threading.Barrier(4)

    def go_on(_):
        start.wait(30)
        seen = []
        for _ in range(10):
            copy = restored(data, departure.shared, is_private=is_private)
            for action in actions:
                observation = copy.step(action)[0]
                again, beside = captured(copy, CaptureOptions())
                copy = restored(again, beside.shared, is_private=is_private)
            seen.append(observation.tobytes())
        return seen

    with ThreadPoolExecutor(4) as pool:
        seen = [each for result in pool.map(go_on, range(4)) for each in result]
    wanted = [env.step(action)[0] for action in actions][-1].tobytes()

    assert set(seen) == {wanted}
