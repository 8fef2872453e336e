"""From what the user gives to one factory for each sub-environment."""

import functools
import sys
import threading
import types
from functools import partial

import cloudpickle
import gymnasium
import numpy as np
import pytest
from batches import PROCESSES, make_batch, run_script
from gymnasium.envs.registration import EnvSpec, WrapperSpec
from odd_envs import GreedyEnv, LevelWrapper, OtherShapeEnv, PlaceEnv, give_shared

from joblib_envs import (
    ArgumentError,
    ArgumentTypeError,
    BatchEnv,
    EnvInsideFactoryError,
    SpacesDifferError,
    UnpicklableError,
)
from joblib_envs.envs import CountingEnv, EchoEnv
from joblib_envs.factories import check_factories, source_of


@pytest.fixture
def registered():
    """Register environments for one test."""
    names = []

    def register(name, **options):
        gymnasium.register(name, **options)
        names.append(name)

    yield register
    for name in names:
        gymnasium.registry.pop(name)


@pytest.mark.parametrize(
    ("given", "num_envs", "wanted"),
    [
        ("joblib_envs/Counting-v0", None, 1),
        ("joblib_envs/Counting-v0", 3, 3),
        ("joblib_envs/Counting", np.int64(2), 2),
        ("joblib_envs.envs:joblib_envs/Counting-v0", 2, 2),
        (EnvSpec("Mine-v0", entry_point=CountingEnv), 2, 2),
        (CountingEnv, None, 1),
        (CountingEnv, 2, 2),
        ([CountingEnv, CountingEnv], None, 2),
        ((CountingEnv,), 1, 1),
        (dict.fromkeys(range(3), CountingEnv).values(), None, 3),
    ],
    ids=str,
)
def test_every_form_gives_one_factory_each(given, num_envs, wanted):
    source = source_of(given, num_envs, (), None)

    assert len(source.factories) == wanted
    assert all(isinstance(factory().unwrapped, CountingEnv) for factory in source.factories)


@pytest.mark.parametrize(
    ("given", "num_envs", "kind"),
    [
        (3, None, ArgumentTypeError),
        (None, None, ArgumentTypeError),
        ([], None, ArgumentTypeError),
        (["CartPole-v1"], None, ArgumentTypeError),
        ({}, None, ArgumentTypeError),
        ("CartPole-v1", 0, ArgumentError),
        ("CartPole-v1", -1, ArgumentError),
        ("CartPole-v1", 1.0, ArgumentTypeError),
        ("CartPole-v1", True, ArgumentTypeError),
        ([CountingEnv], 2, ArgumentError),
        ("Unheard-v0", 1, gymnasium.error.UnregisteredEnv),
        ("CartPole-v99", 1, gymnasium.error.Error),
        ("nowhere/CartPole-v1", 1, gymnasium.error.Error),
        ("no_such_module:CartPole-v1", 1, ModuleNotFoundError),
    ],
    ids=str,
)
def test_anything_else_is_refused(given, num_envs, kind):
    with pytest.raises(kind):
        BatchEnv(given, num_envs, backend="sequential")


@pytest.mark.parametrize("wrappers", [LevelWrapper, (3,), [None]])
def test_wrappers_that_are_none_are_refused(wrappers):
    with pytest.raises(ArgumentTypeError, match="wrappers"):
        source_of(CountingEnv, 1, wrappers, None)


def test_wrappers_are_applied_the_first_one_innermost(backend):
    wrappers = (LevelWrapper, partial(LevelWrapper, level=2))
    for given in ("joblib_envs/Counting-v0", CountingEnv, [CountingEnv]):
        with make_batch(backend, given, wrappers=wrappers, env_kwargs={"start": 3}) as envs:
            envs.reset(seed=0)
            _, rewards, *_ = envs.step([0])

        assert rewards.tolist() == [(4 * 10 + 1) * 10 + 2]


def test_arguments_of_the_constructor_are_not_shared(backend):
    box = {"values": [0]}
    with make_batch(backend, KeepingEnv, 2, env_kwargs={"box": box}) as envs:
        sizes = envs.call("grow"), envs.call("grow")

    assert sizes == ((2, 2), (3, 3))
    assert box == {"values": [0]}


class KeepingEnv(GreedyEnv):
    """Keeps the box it is given."""

    def __init__(self, box):
        super().__init__()
        self.box = box


def test_the_spec_stays_the_original():
    with BatchEnv("CartPole-v1", 2, backend="sequential") as envs:
        spec = envs.spec

    assert spec == gymnasium.spec("CartPole-v1")
    assert spec is not gymnasium.spec("CartPole-v1")


def test_each_factory_is_called_once_in_index_order(in_process_backend):
    made = []

    def make(number):
        made.append(number)
        return CountingEnv(100, start=number)

    factories = [partial(make, number) for number in range(4)]
    with make_batch(in_process_backend, factories) as envs:
        observations, _ = envs.reset(seed=0)

    assert sorted(made) == [0, 1, 2, 3]
    assert made.index(0) < made.index(1)
    assert made.index(2) < made.index(3)
    assert observations.tolist() == [0, 1, 2, 3]


def test_a_lambda_over_a_loop_variable_is_called_as_python_has_it(backend):
    factories = [lambda start=start: CountingEnv(100, start) for start in (4, 5)]
    with make_batch(backend, factories) as envs:
        observations, _ = envs.reset(seed=0)

    assert observations.tolist() == [4, 5]


@pytest.mark.parametrize(
    "hide",
    [
        lambda env: env,
        lambda env: [env],
        lambda env: lambda: env,
        lambda env: partial(LevelWrapper, env),
        lambda env: partial(dict, nested=[{"deep": (env,)}]),
        lambda env: gymnasium.wrappers.TimeLimit(env, 3),
        lambda env: [lambda: CountingEnv(), lambda: env],
        lambda env: types.MethodType(lambda self: self, env),
    ],
    ids=["itself", "in a list", "in a lambda", "in a partial", "deep inside", "wrapped", "second", "bound"],
)
def test_an_environment_inside_a_factory_is_refused_on_every_backend(backend, hide):
    with pytest.raises(EnvInsideFactoryError, match="environment object") as caught:
        make_batch(backend, hide(CountingEnv()))

    assert isinstance(caught.value, TypeError)


def test_an_environment_beside_what_cannot_be_pickled_is_refused_too(in_process_backend):
    lock, env = threading.Lock(), CountingEnv()

    with pytest.raises(EnvInsideFactoryError):
        make_batch(in_process_backend, lambda: (lock, env)[1], 2)


def test_one_environment_for_all_is_refused_wherever_it_comes_from(in_process_backend):
    with pytest.raises(EnvInsideFactoryError, match="one and the same environment") as caught:
        make_batch(in_process_backend, give_shared, 2)

    assert caught.value.__cause__ is not caught.value


def test_what_a_factory_returns_must_be_an_environment(backend):
    with pytest.raises(ArgumentTypeError, match="a factory returned dict"):
        make_batch(backend, dict, 2)


def test_spaces_that_differ_are_refused(backend, capfd):
    with pytest.raises(SpacesDifferError, match="sub-environment 1 is Box"):
        make_batch(backend, [CountingEnv, OtherShapeEnv])
    with pytest.raises(SpacesDifferError, match="no observation_mode can batch"):
        make_batch(backend, [CountingEnv, OtherShapeEnv], observation_mode="different")
    with pytest.raises(SpacesDifferError, match="action space"):
        make_batch(backend, [partial(EchoEnv, "discrete"), partial(OtherActionEnv, "discrete")])

    assert capfd.readouterr().err == ""


class OtherActionEnv(EchoEnv):
    """Has another action space."""

    def __init__(self, kind):
        super().__init__(kind)
        self.action_space = gymnasium.spaces.Discrete(17)


def test_a_factory_that_cannot_be_pickled_is_refused_where_it_must_travel(process_backend):
    lock = threading.Lock()

    with pytest.raises(UnpicklableError, match="backend='threading'") as caught:
        make_batch(process_backend, lambda: (lock, CountingEnv())[1], 2)

    assert isinstance(caught.value, TypeError)


def test_a_factory_that_cannot_be_pickled_is_fine_elsewhere(in_process_backend):
    lock = threading.Lock()

    with make_batch(in_process_backend, lambda: (lock, CountingEnv())[1], 2) as envs:
        observations, _ = envs.reset(seed=0)

    assert observations.tolist() == [0, 0]


def test_looking_for_environments_copies_no_large_arrays():
    table = np.zeros(50_000_000, np.uint8)
    calls = []

    class Counted(np.ndarray):
        def tobytes(self, *args):
            calls.append(1)
            return super().tobytes(*args)

    check_factories([partial(CountingEnv, data=table.view(Counted))], must_travel=True)

    assert not calls


def test_ids_registered_by_the_caller_work_inside_factories(backend, registered):
    registered("odd/Place-v0", entry_point=PlaceEnv, kwargs={"start": 7})

    with make_batch(backend, lambda: gymnasium.make("odd/Place-v0"), 2) as envs:
        observations, _ = envs.reset(seed=0)

    assert observations.tolist() == [7, 7]


def test_additional_wrappers_of_a_spec_travel(backend, registered):
    wrapper = WrapperSpec("Level", "odd_envs:LevelWrapper", {"level": 4})
    registered("odd/Wrapped-v0", entry_point=CountingEnv, additional_wrappers=(wrapper,))

    with make_batch(backend, "odd/Wrapped-v0", 2) as envs:
        envs.reset(seed=0)
        _, rewards, *_ = envs.step([0, 0])

    assert rewards.tolist() == [14.0, 14.0]
    assert envs.spec.additional_wrappers == (wrapper,)


@pytest.fixture
def memory_module():
    """Make a module that exists in memory only."""
    module = types.ModuleType("only_in_memory")
    sys.modules["only_in_memory"] = module
    source = """
from joblib_envs.envs import CountingEnv

BONUS = 100

class Base(CountingEnv):
    def bonus_of(self):
        return helper()

def helper():
    return BONUS

class MemoryEnv(Base):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + self.bonus_of(), *rest

def make():
    return MemoryEnv()
"""
    exec(source, vars(module))
    yield module
    del sys.modules["only_in_memory"]


@pytest.mark.parametrize("form", ["class", "function", "id", "spec", "partial"])
def test_environments_of_a_module_made_in_memory_reach_every_worker(process_backend, memory_module, registered, form):
    registered("odd/Memory-v0", entry_point="only_in_memory:MemoryEnv")
    given = {
        "class": memory_module.MemoryEnv,
        "function": memory_module.make,
        "id": "odd/Memory-v0",
        "spec": gymnasium.spec("odd/Memory-v0"),
        "partial": functools.partial(memory_module.MemoryEnv, 9),
    }[form]

    with make_batch(process_backend, given, 2) as envs:
        envs.reset(seed=0)
        _, rewards, *_ = envs.step([0, 0])

    assert rewards.tolist() == [101.0, 101.0]
    assert memory_module.__name__ not in cloudpickle.list_registry_pickle_by_value()


def test_a_factory_that_needs_a_module_which_workers_lack_is_told_so(memory_module):
    for backend in (backend for backend in PROCESSES if backend.name == "loky"):
        with pytest.raises(UnpicklableError, match="No module named 'only_in_memory'"):
            make_batch(backend, lambda: memory_module.MemoryEnv(), 2)


MAIN_SCRIPT = """
import gymnasium
import numpy as np
from gymnasium.envs.registration import WrapperSpec
from gymnasium.spaces import Box, Discrete
from batches import BACKENDS, make_batch


class MyBox(Box):
    pass


class Note:
    def __init__(self, text):
        self.text = text


class MyError(Exception):
    pass


class MyEnv(gymnasium.Env):
    def __init__(self, start=0):
        self.observation_space = MyBox(0, 100, (1,), np.float64)
        self.action_space = Discrete(2)
        self.start = start

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = self.start
        return np.array([float(self.count)]), {"note": Note("reset")}

    def step(self, action):
        if action == 1:
            raise MyError("one")
        self.count += 1
        return np.array([float(self.count)]), 1.0, False, False, {"note": Note(f"step {self.count}")}


class Doubled(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 2 * reward


gymnasium.register("MyEnv-v0", entry_point="__main__:MyEnv")
gymnasium.register("MyClass-v0", entry_point=MyEnv)
gymnasium.register(
    "MyWrapped-v0", entry_point=MyEnv, additional_wrappers=(WrapperSpec("Doubled", "__main__:Doubled", {}),)
)
GIVEN = {
    "MyEnv-v0": 1.0,
    "MyClass-v0": 1.0,
    "MyWrapped-v0": 2.0,
    (lambda: gymnasium.make("MyEnv-v0")): 1.0,
    (lambda: gymnasium.make("MyWrapped-v0")): 2.0,
    MyEnv: 1.0,
}
for number, (given, reward) in enumerate(GIVEN.items()):
    for backend in BACKENDS:
        with make_batch(backend, given, 2, probe=number == 0) as envs:
            assert type(envs.single_observation_space) is MyBox
            envs.reset(seed=0)
            observations, rewards, _, _, infos = envs.step([0, 0])
            assert observations.tolist() == [[1.0], [1.0]]
            assert rewards.tolist() == [reward, reward]
            assert [type(note) for note in infos["note"]] == [Note, Note]
            assert [note.text for note in infos["note"]] == ["step 1", "step 1"]
            try:
                envs.step([1, 0])
            except MyError as error:
                assert type(error.__cause__) is MyError
            else:
                raise AssertionError("nothing was raised")
print("done")
"""


def test_what_only_the_script_defines_works_on_every_backend(tmp_path):
    ended = run_script(tmp_path, MAIN_SCRIPT)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
