"""State adapters: found by type, name, base and entry point, and known to workers."""

import sys
import threading
from functools import partial

import gymnasium
import pytest
from batches import TRAVELLING, make_batch
from voyages import difference_on_the_way, travelled

from joblib_envs import StateCannotTravelError
from joblib_envs.envs import CountingEnv
from joblib_envs.errors import ArgumentTypeError
from joblib_envs.state import adapters, capture, register_state_adapter, restore
from joblib_envs.state.adapters import adapter_of
from joblib_envs.state.cargo import Blob, shared_blob
from joblib_envs.state.pickling import CaptureOptions, captured, restored


class World:
    """A simulation with a lock, as native ones are: no pickle takes it."""

    def __init__(self, total=0):
        self.total = total
        self.lock = threading.Lock()


class SmallWorld(World):
    """A kind of world."""


class WorldEnv(CountingEnv):
    """Counts in a world."""

    def __init__(self, kind=World):
        super().__init__(100)
        self.world = kind()

    def reset(self, *, seed=None, options=None):
        self.world.total = 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        self.world.total += 1 + action
        return observation, reward * self.world.total, terminated, truncated, info


def reduce_world(world, departure):
    return type(world), (world.total,)


@pytest.fixture(autouse=True)
def _registry(monkeypatch):
    """Forget afterwards what a test has registered."""
    monkeypatch.setattr(adapters, "_registered", {})
    yield
    monkeypatch.undo()
    adapters._changed()


def test_without_an_adapter_it_can_not_travel():
    with pytest.raises(StateCannotTravelError, match="register a state adapter"):
        capture(WorldEnv(), prove=False)


@pytest.mark.parametrize("kind", [World, "test_adapters.World"])
def test_an_adapter_is_found_by_its_type_and_by_its_name(kind):
    register_state_adapter(kind, reduce_world)

    assert difference_on_the_way(WorldEnv) is None


def test_an_adapter_holds_for_subclasses_too():
    register_state_adapter(World, reduce_world)

    env = travelled(WorldEnv(SmallWorld))

    assert type(env.world) is SmallWorld


def test_the_adapter_of_the_nearest_base_is_used():
    register_state_adapter(World, reduce_world)
    register_state_adapter(SmallWorld, lambda world, departure: (SmallWorld, (world.total + 1000,)))

    assert travelled(SmallWorld(1)).total == 1001
    assert travelled(World(1)).total == 1


def test_a_later_adapter_goes_before_an_earlier_one_also_where_the_type_was_met_before():
    register_state_adapter(World, reduce_world)
    assert travelled(World(1)).total == 1

    register_state_adapter(World, lambda world, departure: (World, (-1,)))

    assert travelled(World(1)).total == -1


def test_an_adapter_goes_before_the_types_own_pickling():
    register_state_adapter(CountingEnv, lambda env, departure: (CountingEnv, (7,)))

    assert travelled(CountingEnv(50)).episode_length == 7


def test_an_adapter_may_return_a_state_and_a_way_to_set_it():
    register_state_adapter(World, lambda world, departure: (World, (), world.total, None, None, _set_total))

    assert travelled(World(5)).total == 5


def _set_total(world, total):
    world.total = total


def test_an_adapter_may_send_large_parts_beside_the_pickle():
    register_state_adapter(World, lambda world, departure: (_of_blob, (departure.share(Blob.of(b"x" * 10_000)),)))

    data, departure = captured([World(), World()], CaptureOptions())
    there = restored(data, departure.shared)

    assert len(data) < 1000
    assert [world.total for world in there] == [10_000, 10_000]


def _of_blob(key):
    return World(len(shared_blob(key).data))


@pytest.mark.parametrize("kind", [None, 3, World(), ("module", "name")])
def test_what_is_no_type_and_no_name_is_refused(kind):
    with pytest.raises(ArgumentTypeError, match="must be a type, or its name"):
        register_state_adapter(kind, reduce_world)


def test_an_adapter_that_can_not_be_called_is_refused():
    with pytest.raises(ArgumentTypeError, match="must be a function"):
        register_state_adapter(World, "reduce_world")


def test_an_adapter_that_raises_is_told_with_what_it_raised():
    register_state_adapter(World, lambda world, departure: 1 / 0)

    with pytest.raises(StateCannotTravelError, match="ZeroDivisionError"):
        capture(WorldEnv(), prove=False)


def test_a_type_without_an_adapter_has_none():
    assert adapter_of(World) is None
    assert adapter_of(gymnasium.Env) is None


@pytest.mark.parametrize("backend", TRAVELLING, ids=str)
def test_workers_know_what_only_the_caller_has_registered(backend):
    register_state_adapter(World, lambda world, departure: (type(world), (world.total,)))

    with make_batch(backend, WorldEnv, 2, probe=True) as envs:
        envs.reset(seed=0)
        envs.step([0, 1])
        observations, rewards, *_ = envs.step([0, 1])

    assert observations.tolist() == [2, 2]
    assert rewards.tolist() == [2 * 2.0, 2 * 4.0]


def test_the_probe_refuses_an_adapter_that_loses_state():
    register_state_adapter(World, lambda world, departure: (type(world), ()))

    with pytest.raises(StateCannotTravelError, match="goes on differently"):
        make_batch(TRAVELLING[0], WorldEnv, 2, probe=True)


def test_an_adapter_is_found_by_the_entry_point_of_an_installed_distribution(tmp_path, monkeypatch):
    information = tmp_path / "my_simulator-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: my-simulator\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[joblib_envs.state_adapters]\ntest_adapters.World = my_simulator_travel:reduce_world\n"
    )
    (tmp_path / "my_simulator_travel.py").write_text(
        "def reduce_world(world, departure):\n"
        "    departure.packages.add('my-simulator')\n"
        "    return type(world), (world.total,)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    adapters._entry_points.cache_clear()
    adapters._changed()
    try:
        state = capture(WorldEnv(), prove=False)
        env = restore(state)
    finally:
        monkeypatch.undo()
        adapters._entry_points.cache_clear()
        sys.modules.pop("my_simulator_travel", None)

    assert state.versions["my-simulator"] == "1.0"
    assert env.world.total == 0


def test_what_a_worker_is_told_twice_changes_nothing():
    register_state_adapter(World, reduce_world)
    before = adapters.generation()

    adapters.take_registered(adapters.registered())

    assert adapters.generation() == before


def test_one_instance_of_a_world_in_two_places_is_one_there():
    register_state_adapter(World, reduce_world)
    world = World(3)

    one, other = travelled((world, world))

    assert one is other


def test_wrappers_of_an_environment_with_an_adapter_travel_as_ever():
    register_state_adapter(World, reduce_world)

    assert difference_on_the_way(partial(gymnasium.wrappers.TimeLimit, WorldEnv(), 5), 3) is None
