"""MuJoCo's models and data: kept to the last bit, apart from one another, and small."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from voyages import difference_on_the_way, travelled

from joblib_envs.state.pickling import CaptureOptions, captured, restored
from joblib_envs.state.snapshot import captured_state

mujoco = pytest.importorskip("mujoco")

from laboratory import GravityAtResetEnv, LabEnv  # noqa: E402

IDS = ["HalfCheetah-v5", "Ant-v5", "Humanoid-v5", "Reacher-v5", "Pusher-v5", "Hopper-v5", "InvertedDoublePendulum-v5"]


@pytest.fixture(autouse=True)
def _logs_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where MuJoCo writes its log


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
