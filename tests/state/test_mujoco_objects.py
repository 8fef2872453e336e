"""MuJoCo's models and data: kept to the last bit, apart from one another, and small."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import gymnasium
import numpy as np
import pytest
from voyages import difference_on_the_way, travelled

from joblib_envs.state import restore
from joblib_envs.state.pickling import CaptureOptions, captured, restored
from joblib_envs.state.snapshot import captured_state

mujoco = pytest.importorskip("mujoco")

IDS = ["HalfCheetah-v5", "Ant-v5", "Humanoid-v5", "Reacher-v5", "Pusher-v5", "Hopper-v5", "InvertedDoublePendulum-v5"]

LAB = """
<mujoco>
  <option timestep="0.005"/>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 .1"/>
    <body name="ball" pos="0 0 .12"><freejoint/><geom name="ball" type="sphere" size=".1" mass="1"/></body>
    <body name="box" pos=".3 0 .12"><freejoint/><geom name="box" type="box" size=".1 .1 .1" mass="1"/></body>
    <body name="upper" pos="0 1 1">
      <joint name="shoulder" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 .3 0 0" size=".04"/>
      <body name="lower" pos=".3 0 0">
        <joint name="elbow" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 .3 0 0" size=".03"/>
        <site name="tip" pos=".3 0 0"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="shoulder"/><motor joint="elbow"/></actuator>
</mujoco>
"""


@pytest.fixture(autouse=True)
def _logs_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where MuJoCo writes its log


class LabEnv(gymnasium.Env):
    """Rolls a ball and a box on a floor and swings an arm; the observation is all that moves."""

    def __init__(self):
        self.model = mujoco.MjModel.from_xml_string(LAB)
        self.data = mujoco.MjData(self.model)
        size = self.model.nq + self.model.nv
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1, 1, (self.model.nu,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        mujoco.mj_resetData(self.model, self.data)
        self.data.qvel[:3] = self.np_random.normal(size=3)
        mujoco.mj_forward(self.model, self.data)
        return self._observed(), {}

    def step(self, action):
        self.data.ctrl[:] = self.before_step(action)
        mujoco.mj_step(self.model, self.data)
        return self._observed(), float(self.data.ncon), False, False, {}

    def before_step(self, action):
        """Return the controls, of what MuJoCo has derived in the step before."""
        return action

    def _observed(self):
        return np.concatenate([self.data.qpos, self.data.qvel])


# To the last bit


@pytest.mark.parametrize("env_id", IDS)
def test_an_environment_that_travels_before_each_step_goes_on_to_the_last_bit(env_id):
    assert difference_on_the_way(partial(gymnasium.make, env_id), 150) is None


class ContactsEnv(LabEnv):
    """Pushes by how many contacts there are, and how deep and where they are, before it steps."""

    def before_step(self, action):
        data = self.data
        contacts = data.contact
        depth = sum(contacts[index].dist for index in range(data.ncon))
        frames = contacts.frame.sum() + contacts.pos.sum() + contacts.friction.sum() + contacts.geom.sum()
        return action + np.array([data.ncon, 100 * depth + 0.01 * frames])


class InverseDynamicsEnv(LabEnv):
    """Controls with the bias forces, the inertia matrix, jacobians and sensors of the step before."""

    def before_step(self, action):
        model, data = self.model, self.data
        inertia = np.zeros((model.nv, model.nv))
        try:
            mujoco.mj_fullM(model, data, inertia)
        except TypeError:  # before MuJoCo 4
            mujoco.mj_fullM(model, inertia, data.qM)
        position, rotation = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        mujoco.mj_jacSite(model, data, position, rotation, model.site("tip").id)
        acceleration = np.zeros(model.nv)
        acceleration[-2:] = action
        return (inertia @ acceleration + data.qfrc_bias)[-2:] - position[0, -2:] + 0.1 * rotation[1, -2:]


class DerivedEnv(LabEnv):
    """Reads positions, velocities and accelerations of bodies, which lag behind the joints' by a step."""

    def before_step(self, action):
        data = self.data
        velocity = np.zeros(6)
        mujoco.mj_objectVelocity(self.model, data, mujoco.mjtObj.mjOBJ_BODY, self.model.body("lower").id, velocity, 0)
        height = data.body("lower").xpos[2] + data.site("tip").xpos[0]
        return action + np.array([height, data.cvel.sum() + velocity.sum() + data.qacc[-1]])


class PushedEnv(LabEnv):
    """Leaves forces, and a time, in the data between steps."""

    def before_step(self, action):
        self.data.xfrc_applied[1] += 0.01 * action[0]
        self.data.qfrc_applied[-1] = np.sin(self.data.time)
        return action


class GravityAtResetEnv(LabEnv):
    """Draws the gravity and the ball's mass at each reset."""

    def reset(self, *, seed=None, options=None):
        gymnasium.Env.reset(self, seed=seed)
        self.model.opt.gravity[2] = -self.np_random.uniform(1, 20)
        self.model.body_mass[1] = self.np_random.uniform(0.5, 2)
        self.model.geom("box").friction[0] = self.np_random.uniform(0.1, 2)
        return super().reset()


class WindEnv(LabEnv):
    """Changes its model in the middle of an episode."""

    def before_step(self, action):
        self.model.opt.wind[0] += 0.1
        self.model.body_mass[2] *= 1.01
        self.model.opt.density = 1.0 + self.data.time
        return action


class AliasEnv(LabEnv):
    """Names an array of its data, as FrankaKitchen does: its initial velocity is whatever the velocity is."""

    def __init__(self):
        super().__init__()
        self.velocity = self.data.qvel
        self.tail = self.data.qpos[-2:]

    def before_step(self, action):
        self.velocity[-1] += 0.1
        return action + self.tail


class TwoDataEnv(LabEnv):
    """Thinks ahead in a second MjData of the same model."""

    def __init__(self):
        super().__init__()
        self.thoughts = mujoco.MjData(self.model)

    def before_step(self, action):
        assert self.thoughts.model is not None
        self.thoughts.ctrl[:] = action
        mujoco.mj_step(self.model, self.thoughts, 2)
        return action + self.thoughts.qpos[-2:]


class TwoModelsEnv(LabEnv):
    """Has another simulation beside its own."""

    def __init__(self):
        super().__init__()
        self.other = LabEnv()
        self.other.model.opt.gravity[2] = -1
        self.other.reset(seed=1)

    def before_step(self, action):
        return action + self.other.step(action)[0][-2:]


@pytest.mark.parametrize(
    "make",
    [
        ContactsEnv,
        InverseDynamicsEnv,
        DerivedEnv,
        AliasEnv,
        PushedEnv,
        GravityAtResetEnv,
        WindEnv,
        TwoDataEnv,
        TwoModelsEnv,
    ],
)
def test_what_an_environment_reads_or_changes_between_steps_travels(make):
    assert difference_on_the_way(make, 80) is None


class ModelOnlyEnv(LabEnv):
    """Has a model, and data that it makes anew for each step."""

    def __init__(self):
        super().__init__()
        del self.data

    def reset(self, *, seed=None, options=None):
        gymnasium.Env.reset(self, seed=seed)
        self.model.body_mass[1] = self.np_random.uniform(0.5, 2)
        return np.zeros(self.observation_space.shape), {}

    def step(self, action):
        self.data = mujoco.MjData(self.model)
        self.model.qpos0[-1] += 0.1
        try:
            return super().step(action)
        finally:
            del self.data


def test_a_model_without_data_travels():
    assert difference_on_the_way(ModelOnlyEnv, 20) is None


def test_data_without_a_model_beside_them_travel():
    data = LabEnv().data
    data.qpos[-1] = 0.5

    there = travelled(data)

    assert there.qpos.tolist() == data.qpos.tolist()
    assert np.array_equal(there.model.body_mass, data.model.body_mass)


def test_one_model_of_two_data_is_one_model_there():
    env = TwoDataEnv()
    env.reset(seed=0)

    env = travelled(env)
    env.model.body_mass[1] = 3.0

    assert env.data.model.body_mass[1] == 3.0
    assert env.thoughts.model.body_mass[1] == 3.0
    assert not np.shares_memory(env.data.qpos, env.thoughts.qpos)


DERIVED = [
    "qpos",
    "qvel",
    "act",
    "qacc",
    "qacc_warmstart",
    "ctrl",
    "qfrc_applied",
    "xfrc_applied",
    "xpos",
    "xquat",
    "xmat",
    "xipos",
    "ximat",
    "xanchor",
    "xaxis",
    "geom_xpos",
    "geom_xmat",
    "site_xpos",
    "site_xmat",
    "subtree_com",
    "cdof",
    "cinert",
    "cvel",
    "cacc",
    "cfrc_int",
    "cfrc_ext",
    "qfrc_bias",
    "qfrc_passive",
    "qfrc_actuator",
    "qfrc_smooth",
    "qacc_smooth",
    "qfrc_constraint",
    "qfrc_inverse",
    "actuator_force",
    "actuator_length",
    "actuator_velocity",
    "sensordata",
    "subtree_linvel",
    "subtree_angmom",
    "energy",
    "userdata",
    "mocap_pos",
    "eq_active",
]


def test_what_can_be_read_of_the_data_is_what_it_was():
    env = ContactsEnv()
    env.reset(seed=0)
    for _ in range(30):
        env.step(np.ones(2))
    mujoco.mj_rnePostConstraint(env.model, env.data)
    mujoco.mj_subtreeVel(env.model, env.data)
    mujoco.mj_energyPos(env.model, env.data)

    there = travelled(env).data

    different = [name for name in DERIVED if getattr(there, name).tobytes() != getattr(env.data, name).tobytes()]
    assert different == []
    assert there.ncon == env.data.ncon > 0
    for name in ("dist", "pos", "frame", "friction", "geom", "dim"):
        assert getattr(there.contact, name).tobytes() == getattr(env.data.contact, name).tobytes()


def test_warnings_and_the_time_travel():
    data = LabEnv().data
    data.warning.number[:2] = [3, 4]
    data.warning.lastinfo[1] = 7
    data.time = 12.5

    there = travelled(data)

    assert there.time == 12.5
    assert there.warning.number[:2].tolist() == [3, 4]
    assert there.warning.lastinfo[1] == 7


# Apart from one another


def test_environments_of_one_state_share_neither_model_nor_data():
    state = captured_state(_begun(), CaptureOptions(), is_proven=False)

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
    env = _begun()
    copy = travelled(env)

    env.model.opt.gravity[2] = -1
    copy.model.body_mass[1] = 5
    again = travelled(env)

    assert copy.model.opt.gravity[2] == pytest.approx(-9.81)
    assert env.model.body_mass[1] == 1
    assert (again.model.opt.gravity[2], again.model.body_mass[1]) == (-1, 1)


def test_a_model_that_was_changed_and_changed_back_is_the_first_again():
    env = _begun()
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
    source, other = _begun(steps=20), _begun(steps=30)
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
    source, other = _begun(steps=20), _begun(steps=30)
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


def test_what_nobody_holds_is_used_again_and_is_as_good_as_new():
    source = GravityAtResetEnv()
    source.reset(seed=0)
    first = travelled(source)
    place = first.data.qpos.__array_interface__["data"][0]
    mass = first.model.body_mass.copy()
    first.step(np.ones(2))
    first.data.userdata[:] = 1
    first.data.xfrc_applied[:] = 3
    del first
    gc.collect()

    second = travelled(source)

    assert second.data.qpos.__array_interface__["data"][0] == place
    assert np.array_equal(second.data.qpos, source.data.qpos)
    assert np.array_equal(second.model.body_mass, mass)
    assert not second.data.xfrc_applied.any()


def test_a_model_that_its_last_owner_changed_is_not_used_again():
    source = _begun()
    first = travelled(source)
    first.model.body_mass[1] = 55
    del first
    gc.collect()

    second = travelled(source)

    assert second.model.body_mass[1] == source.model.body_mass[1] == 1


def _begun(make=LabEnv, steps=10):
    env = make()
    env.reset(seed=0)
    for _ in range(steps):
        env.step(np.array([0.1, -0.1]))
    return env


# Threads


def test_threads_that_restore_and_step_at_once_all_get_the_same():
    env = gymnasium.make("HalfCheetah-v5")
    env.reset(seed=0)
    data, departure = captured(env, CaptureOptions())
    actions = [np.full(6, 0.1 * number) for number in range(5)]
    start = threading.Barrier(4)

    def go_on(_):
        start.wait(30)
        seen = []
        for _ in range(10):
            copy = restored(data, departure.shared)
            for action in actions:
                observation = copy.step(action)[0]
                again, beside = captured(copy, CaptureOptions())
                copy = restored(again, beside.shared)
            seen.append(observation.tobytes())
        return seen

    with ThreadPoolExecutor(4) as pool:
        seen = [each for result in pool.map(go_on, range(4)) for each in result]
    wanted = [env.step(action)[0] for action in actions][-1].tobytes()

    assert set(seen) == {wanted}


# Size


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Ant-v5"])
def test_a_state_is_small_and_its_model_beside_it(env_id):
    env = gymnasium.make(env_id)
    env.reset(seed=0)
    for _ in range(20):
        env.step(env.action_space.sample())

    state = captured_state(env, CaptureOptions(), is_proven=False)

    assert state.size <= 20_000
    assert len(state.shared) == 1
    assert state.shared_size > 100_000


def test_an_environment_that_leaves_its_model_alone_refers_to_one_model_all_the_time():
    env = gymnasium.make("Ant-v5")
    env.reset(seed=0)
    keys = set()
    for _ in range(5):
        data, departure = captured(env, CaptureOptions())
        keys.update(departure.shared)
        env = restored(data, departure.shared)
        env.step(env.action_space.sample())

    assert len(keys) == 1
