"""The generic pickle: views, EzPickle, hooks, slots, random generators, wrappers, classes without a module."""

import sys
import types
from functools import partial

import cloudpickle
import gymnasium
import numpy as np
import pytest
from batches import run_script
from gymnasium import spaces, wrappers
from gymnasium.utils import EzPickle
from odd_envs import ForgettingEnv, LevelWrapper, LockedEnv
from voyages import difference_on_the_way, travelled

from joblib_envs.envs import CountingEnv, EzPickledCountingEnv
from joblib_envs.state.pickling import CaptureOptions, captured

CARTPOLE = partial(gymnasium.make, "CartPole-v1")
PENDULUM = partial(gymnasium.make, "Pendulum-v1")
OWN_HOOKS = CaptureOptions(own_hooks=True)

VIEWS = {
    "a slice": lambda base: base[1:],
    "a column": lambda base: base[:, 1],
    "backwards": lambda base: base[::-1, ::-2],
    "transposed": lambda base: base.T,
    "other bytes": lambda base: base.view(np.uint8),
    "one element": lambda base: base[1, 1:2].reshape(()),
    "another shape": lambda base: base.reshape(2, -1),
    "a view of a view": lambda base: base[1:][:, 2:],
    "all of it": lambda base: base[:],
}
BASES = {
    "C order": lambda: np.arange(24.0).reshape(4, 6),
    "Fortran order": lambda: np.asfortranarray(np.arange(24.0).reshape(4, 6)),
}


def generations(value, number=3):
    for _ in range(number):
        value = travelled(value)
    return value


# EzPickle


class Instrument(EzPickle):
    """No environment, but a user of EzPickle with state."""

    def __init__(self, name):
        super().__init__(name)
        self.name = name
        self.readings = []


class NestingEnv(CountingEnv):
    """Has another environment, and an instrument, as attributes."""

    def __init__(self):
        super().__init__(100)
        self.inner = EzPickledCountingEnv(1000)
        self.instrument = Instrument("gauge")
        self.all = {"inner": [self.inner], "instruments": (self.instrument,)}

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        inner = self.all["inner"][0].step(0)[0]
        self.instrument.readings.append(int(inner))
        return observation, float(sum(self.all["instruments"][0].readings)), terminated, truncated, info


class DictOfSettings(dict, EzPickle):
    """A dict that uses EzPickle, whose pickling must stay that of a dict."""

    def __init__(self, **settings):
        EzPickle.__init__(self, **settings)
        dict.__init__(self, **settings)


def test_an_environment_below_ez_pickle_keeps_its_count_and_its_stream():
    assert difference_on_the_way(partial(EzPickledCountingEnv, 7)) is None


def test_users_of_ez_pickle_inside_an_environment_keep_their_state():
    env = NestingEnv()
    env.reset(seed=0)
    env.step(0)

    env = travelled(env)
    observation, reward, *_ = env.step(0)

    assert observation == 2
    assert reward == 3.0  # readings 1 and 2
    assert env.instrument is env.all["instruments"][0]
    assert env.inner is env.all["inner"][0]


def test_a_dict_that_uses_ez_pickle_keeps_its_items():
    settings = travelled(DictOfSettings(level=3))

    assert settings == {"level": 3}


# Hooks


class ReducedEnv(CountingEnv):
    """Says that it is made again by its constructor."""

    def __reduce__(self):
        return ReducedEnv, ()


@pytest.mark.parametrize("make", [partial(ForgettingEnv, 100), partial(ReducedEnv, 100)])
def test_a_hook_that_drops_state_is_not_asked(make):
    assert difference_on_the_way(make) is None


def test_a_hook_that_is_needed_is_asked_where_that_is_the_way():
    with pytest.raises(TypeError, match="lock"):
        travelled(LockedEnv())

    assert difference_on_the_way(LockedEnv, options=OWN_HOOKS) is None


@pytest.mark.parametrize("make", [CountingEnv, EzPickledCountingEnv, CARTPOLE])
def test_an_environment_without_hooks_of_its_own_has_none_noted(make):
    _, departure = captured(wrappers.TimeLimit(make(), 5), CaptureOptions())

    assert not departure.has_hooks


def test_hooks_of_an_inner_layer_are_noted():
    _, departure = captured(wrappers.TimeLimit(ForgettingEnv(100), 5), CaptureOptions())

    assert departure.has_hooks


def test_ez_pickle_is_never_asked_whatever_the_way():
    assert difference_on_the_way(partial(EzPickledCountingEnv, 7), options=OWN_HOOKS) is None


# Slots


class SlottedBase(gymnasium.Env):
    __slots__ = ("_hidden", "count", "never_set")


class SlottedEnv(SlottedBase):
    """Keeps its state in slots; one of them is private, one has no value."""

    __slots__ = ("total",)

    def __init__(self):
        self.observation_space = spaces.Box(0, 1e6, (), np.float64)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.total, self._hidden = 0, 0.0, [1]
        return np.float64(0), {}

    def step(self, action):
        self.count += 1
        self.total += self.np_random.random() + len(self._hidden)
        self._hidden.append(action)
        return np.float64(self.total), float(self.count), False, False, {}


def test_slots_travel():
    assert difference_on_the_way(SlottedEnv) is None


# Random generators


class SpacesEnv(gymnasium.Env):
    """Samples from its own spaces, and from generators that it spawns."""

    def __init__(self):
        pair = spaces.Tuple((spaces.Discrete(9), spaces.MultiBinary(3)))
        inner = spaces.Dict({"where": spaces.Box(-1, 1, (2,)), "what": pair})
        self.action_space = spaces.Tuple((spaces.Discrete(5), inner))
        self.observation_space = spaces.Dict({"inner": inner, "text": spaces.Text(4)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.child = self.np_random.spawn(1)[0]
        return self.observation_space.sample(), {}

    def step(self, action):
        grandchild = self.child.spawn(1)[0]
        drawn = [float(each.random()) for each in (self.np_random, self.child, grandchild)]
        return self.observation_space.sample(), sum(drawn), False, False, {"drawn": drawn}


def test_generators_of_the_environment_its_children_and_its_nested_spaces_go_on():
    assert difference_on_the_way(SpacesEnv) is None


@pytest.mark.parametrize("bits", [np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_a_generator_of_another_kind_goes_on(bits):
    env = CountingEnv(10)
    env.np_random = np.random.Generator(bits(5))
    env.np_random.integers(2, size=3, dtype=np.uint8)  # keeps half-used words
    twin = travelled(env)

    assert type(twin.np_random.bit_generator) is bits
    drawn = [
        (each.np_random.integers(200, size=9, dtype=np.uint8).tolist(), each.np_random.random()) for each in (env, twin)
    ]
    assert drawn[0] == drawn[1]


def test_a_generator_that_two_layers_hold_is_one_generator_there():
    env = LevelWrapper(CountingEnv(10))
    env.reset(seed=1)
    env.mine = env.unwrapped.np_random

    env = travelled(env)

    assert env.mine is env.unwrapped.np_random


# Wrappers


WRAPPERS = {
    "TimeLimit": lambda: wrappers.TimeLimit(PENDULUM(), 7),
    "FrameStackObservation": lambda: wrappers.FrameStackObservation(CARTPOLE(), 3),
    "DelayObservation": lambda: wrappers.DelayObservation(CARTPOLE(), 2),
    "MaxAndSkipObservation": lambda: wrappers.MaxAndSkipObservation(PENDULUM(), 3),
    "NormalizeObservation": lambda: wrappers.NormalizeObservation(CARTPOLE()),
    "NormalizeReward": lambda: wrappers.NormalizeReward(CARTPOLE()),
    "RecordEpisodeStatistics": lambda: Untimed(wrappers.RecordEpisodeStatistics(CARTPOLE())),
    "TimeAwareObservation": lambda: wrappers.TimeAwareObservation(CARTPOLE()),
    "StickyAction": lambda: wrappers.StickyAction(CARTPOLE(), 0.5),
    "Autoreset": lambda: wrappers.Autoreset(CARTPOLE()),
    "TransformReward": lambda: wrappers.TransformReward(CARTPOLE(), lambda reward: reward / 3),
    "TransformObservation": lambda: wrappers.TransformObservation(PENDULUM(), lambda seen: seen * 2, None),
    "TransformAction": lambda: wrappers.TransformAction(PENDULUM(), lambda action: -action, None),
    "RescaleAction": lambda: wrappers.RescaleAction(PENDULUM(), np.float32(-1), np.float32(1)),
    "ClipReward": lambda: wrappers.ClipReward(PENDULUM(), -1, 0),
    "FlattenObservation": lambda: wrappers.FlattenObservation(gymnasium.make("Blackjack-v1")),
    "a user's": lambda: HoldingWrapper(LevelWrapper(CARTPOLE())),
    "five at once": lambda: wrappers.NormalizeReward(
        wrappers.NormalizeObservation(wrappers.FrameStackObservation(wrappers.TimeLimit(CARTPOLE(), 9), 2))
    ),
}


class Untimed(gymnasium.Wrapper):
    """Leaves the time out of the infos, which is no function of seeds and actions."""

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        info.get("episode", {}).pop("t", None)
        return observation, reward, terminated, truncated, info


class HoldingWrapper(gymnasium.Wrapper):
    """Keeps state in a closure, in a bound method of the environment below, and in a reference to itself."""

    def __init__(self, env):
        super().__init__(env)
        self.below = env.unwrapped.step
        self.me = {"self": self}
        past = []
        self.remember = lambda reward: past.append(reward) or sum(past)

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        assert self.below.__self__ is self.unwrapped
        assert self.me["self"] is self
        return observation, self.remember(reward), terminated, truncated, info


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrappers_state_goes_on(name):
    assert difference_on_the_way(WRAPPERS[name], 60) is None


# Classes that no module has

SAVING = """
    import sys
    import gymnasium
    from gymnasium import wrappers
    from joblib_envs.envs import CountingEnv
    from joblib_envs.state import capture

    LEVEL = 3

    class Mine(CountingEnv):
        def step(self, action):
            observation, reward, *rest = super().step(action)
            return observation, reward + helper(self.total()), *rest

        def total(self):
            self.sum = getattr(self, "sum", 0) + LEVEL
            return self.sum

    def helper(value):
        return value * 10.0

    env = wrappers.TransformReward(Mine(100), lambda reward: reward + LEVEL / 10)
    env.reset(seed=0)
    env.step(0)
    with open("state", "wb") as file:
        file.write(capture(env, prove=False).to_bytes())
    print(*env.step(0)[:2])
"""

LOADING = """
    from joblib_envs.state import EnvState, restore

    with open("state", "rb") as file:
        state = EnvState.from_bytes(file.read())
    print(*restore(state).step(0)[:2])
"""


def test_classes_functions_and_lambdas_of_a_script_go_on_in_another_process(tmp_path):
    saved = run_script(tmp_path, SAVING)

    loaded = run_script(tmp_path, LOADING)

    assert saved.stdout.split()[0] == "2"
    assert loaded.stdout == saved.stdout, loaded.stderr


MADE_UP = """
from joblib_envs.envs import CountingEnv
class MadeUp(CountingEnv):
    step_size = 3
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward * self.step_size, *rest
"""


@pytest.fixture
def made_up():
    module = types.ModuleType("made_up_module")
    exec(MADE_UP, module.__dict__)
    return module


def test_a_class_of_a_module_that_was_never_imported_travels_by_its_code(made_up, tmp_path):
    env = made_up.MadeUp(100)
    env.reset(seed=0)
    env.step(0)

    loaded = _loaded_elsewhere(env, tmp_path)

    assert loaded.stdout.split() == ["2", str(env.step(0)[1])], loaded.stderr


def test_a_class_of_a_module_that_is_only_in_memory_is_told_by_a_readable_error(made_up, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, made_up.__name__, made_up)
    env = made_up.MadeUp(100)
    env.reset(seed=0)

    loaded = _loaded_elsewhere(env, tmp_path)

    assert "StateFormatError: the state can't be unpickled here" in loaded.stderr
    assert "made_up_module" in loaded.stderr


def test_a_module_that_is_registered_to_be_pickled_by_value_is(made_up, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, made_up.__name__, made_up)
    env = made_up.MadeUp(100)
    env.reset(seed=0)
    travelled(env)  # by reference, which must not be remembered
    cloudpickle.register_pickle_by_value(made_up)
    try:
        loaded = _loaded_elsewhere(env, tmp_path)
    finally:
        cloudpickle.unregister_pickle_by_value(made_up)

    assert loaded.stdout.split() == ["1", str(env.step(0)[1])], loaded.stderr


def _loaded_elsewhere(env, folder):
    from joblib_envs.state import capture

    (folder / "state").write_bytes(capture(env, prove=False).to_bytes())
    return run_script(folder, LOADING)
