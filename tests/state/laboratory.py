"""A MuJoCo environment with a bit of everything, for the tests of states."""

import gymnasium
import mujoco
import numpy as np

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


class GravityAtResetEnv(LabEnv):
    """Draws the gravity and the ball's mass at each reset."""

    def reset(self, *, seed=None, options=None):
        gymnasium.Env.reset(self, seed=seed)
        self.model.opt.gravity[2] = -self.np_random.uniform(1, 20)
        self.model.body_mass[1] = self.np_random.uniform(0.5, 2)
        self.model.geom("box").friction[0] = self.np_random.uniform(0.1, 2)
        return super().reset()


def begun(make=LabEnv, steps=10):
    env = make()
    env.reset(seed=0)
    for _ in range(steps):
        env.step(np.array([0.1, -0.1]))
    return env
