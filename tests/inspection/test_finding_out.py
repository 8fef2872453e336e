"""Each finding in both directions: reproducible, generators, costs, copies, fields, threads, GIL."""

import os
import random
import sys
import threading
import time
from functools import partial

import cloudpickle
import numpy as np
import pytest
from gymnasium import wrappers

from joblib_envs.envs import (
    BusyEnv,
    CountingEnv,
    EzPickledCountingEnv,
    GlobalRandomEnv,
    HandleEnv,
    SleepingEnv,
    UnpicklableEnv,
)
from joblib_envs.equality import Verdict
from joblib_envs.inspection.copying import find_copies
from joblib_envs.inspection.errands import Errands, Mishap, Whereabouts
from joblib_envs.inspection.fields import lost_fields
from joblib_envs.inspection.findings import (
    Gil,
    Inspection,
    LostField,
    ThreadSafety,
)
from joblib_envs.inspection.first_look import look
from joblib_envs.inspection.report import as_text
from joblib_envs.inspection.reproducibility import compare_elsewhere
from joblib_envs.inspection.threads import find_gil, find_thread_safety

ACTIONS = cloudpickle.dumps([0, 1] * 20)
BUDGET_S = 0.05
OK = Verdict.CORRECT


class PythonRandomEnv(CountingEnv):
    def reset(self, **kwargs):
        observation, info = super().reset(**kwargs)
        self.length = random.random()
        return observation, info

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, self.length, *rest


class EntropyEnv(CountingEnv):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float(os.urandom(1)[0]), *rest


class HashingEnv(CountingEnv):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float(hash("a text")), *rest


class TimedEnv(CountingEnv):
    def step(self, action):
        *rest, info = super().step(action)
        return *rest, {**info, "took": time.perf_counter()}


class CrowdedEnv(CountingEnv):
    """Keeps its count where all instances keep theirs, during a step."""

    counts = {}  # noqa: RUF012

    def step(self, action):
        self.counts["now"] = self.count
        time.sleep(0.0001)
        self.count = self.counts["now"]
        return super().step(action)


class Here:
    """Sends nothing out: what the processes would run is run here."""

    def __init__(self, path):
        self.where = Whereabouts(str(path))
        path.touch()

    def run(self, function, *args):
        return function(self.where, *args)


@pytest.fixture
def here(tmp_path):
    return Here(tmp_path / "whereabouts")


def packed(factory):
    return cloudpickle.dumps(factory)


def seen(here, factory):
    return here.run(look, packed(factory), 0, BUDGET_S)


def copies_of(here, factory, *, judges=True):
    found = find_copies(here, packed(factory), ACTIONS, 0, (), judges=judges)
    return {each.way: each for each in found}


def test_equal_seeds_that_give_equal_data_are_called_reproducible(here):
    found = seen(here, CountingEnv).reproducible

    assert (found.verdict, found.one_process, found.first_difference, found.varying_infos) == (OK, True, "", ())
    assert found.num_steps > 5


@pytest.mark.parametrize(
    ("env_class", "seeded_by"),
    [(GlobalRandomEnv, ("numpy.random",)), (PythonRandomEnv, ("random",)), (EntropyEnv, ())],
)
def test_what_makes_an_environment_reproducible_is_found(here, env_class, seeded_by):
    found = seen(here, env_class).reproducible

    assert (found.verdict, found.one_process) == (Verdict.NOT_REPRODUCIBLE, False)
    assert found.seeded_by == seeded_by
    assert "reward is" in found.first_difference


def test_infos_that_vary_do_not_spoil_reproducible_data(here):
    found = seen(here, TimedEnv).reproducible

    assert found.verdict is OK
    assert found.varying_infos == ("took",)


@pytest.mark.parametrize(("env_class", "equal"), [(CountingEnv, True), (HashingEnv, False)])
def test_two_processes_with_different_hashes_are_compared(here, env_class, equal):
    first = seen(here, env_class)

    with Errands(60) as errands:
        found = compare_elsewhere(
            errands, packed(env_class), first.reproducible, first.actions, first.trace, first.hash_seed, 0
        )

    assert first.reproducible.one_process is True
    assert found.two_processes is equal
    assert found.verdict is (OK if equal else Verdict.NOT_REPRODUCIBLE)
    assert found.hash_seeds_differ is ("PYTHONHASHSEED" not in os.environ)


@pytest.mark.parametrize(
    ("env_class", "by_numpy", "by_random"),
    [(CountingEnv, (), ()), (GlobalRandomEnv, ("step",), ()), (PythonRandomEnv, (), ("reset",))],
)
def test_calls_that_change_a_global_generator_are_named(here, env_class, by_numpy, by_random):
    found = seen(here, env_class).global_random

    assert (found.numpy_random, found.random) == (by_numpy, by_random)
    assert found.is_correct is not (by_numpy or by_random or False)


def test_costs_are_medians_of_counted_samples(here):
    costs = seen(here, CountingEnv).costs

    assert min(costs.first_constructor_us, costs.constructor_us, costs.reset_us, costs.step_us) > 0
    assert (costs.constructor_samples, costs.reset_samples) == (20, 200)
    assert costs.step_samples >= 3


@pytest.mark.parametrize(("factory", "waits"), [(partial(SleepingEnv, 0.002), True), (CountingEnv, False)])
def test_an_environment_that_waits_is_told_from_one_that_works(here, factory, waits):
    assert seen(here, factory).costs.waits is waits


@pytest.mark.parametrize("way", ["pickle", "cloudpickle", "deepcopy"])
@pytest.mark.parametrize(
    ("factory", "verdict"),
    [
        (CountingEnv, OK),
        (EzPickledCountingEnv, Verdict.WRONG),
        (UnpicklableEnv, Verdict.RAISES),
    ],
)
def test_what_others_copies_are_worth(here, way, factory, verdict):
    found = copies_of(here, factory)[way]

    assert found.verdict is verdict
    assert bool(found.reason) is (verdict is not OK)


def test_fields_that_a_pickle_loses_are_named_and_those_it_keeps_are_not(here):
    found = copies_of(here, lambda: wrappers.TimeLimit(EzPickledCountingEnv(50), 50))["pickle"]

    paths = [each.path for each in found.lost]
    assert found.num_lost == len(paths)
    assert {"EzPickledCountingEnv.count", "EzPickledCountingEnv.np_random"} <= set(paths)
    assert not any(path.startswith("TimeLimit") for path in paths)
    assert found.reason.startswith("a copy made in mid-episode goes another way, without an error")


def test_a_copy_that_drives_the_original_s_simulator_is_wrong(here):
    found = copies_of(here, HandleEnv)["deepcopy"]

    assert (found.verdict, found.num_lost) == (Verdict.WRONG, 0)
    assert "change the original" in found.reason


def test_what_differs_from_itself_gives_no_verdict_on_copies(here):
    found = copies_of(here, EzPickledCountingEnv, judges=False)["pickle"]

    assert found.verdict is Verdict.NOT_REPRODUCIBLE
    assert found.num_lost > 0


def test_every_layer_and_what_it_holds_is_compared():
    original, copy = (wrappers.TimeLimit(CountingEnv(), 9) for _ in range(2))
    for env in (original, copy):
        env.reset(seed=0)
        env.action_space.seed(0)
        env.unwrapped.nested = {"list": [1, np.zeros(3)], "lock": threading.Lock()}
    assert lost_fields(original, copy) == []

    original.step(0)
    original.action_space.sample()
    original.unwrapped.nested["list"][1][2] = 1.0
    original.unwrapped.extra = 5
    del copy.unwrapped.bonus

    found = {each.path: each for each in lost_fields(original, copy)}
    assert set(found) == {
        "TimeLimit._elapsed_steps",
        "CountingEnv.count",
        "CountingEnv.action_space.np_random",
        "CountingEnv.nested['list'][1]",
        "CountingEnv.extra",
        "CountingEnv.bonus",
    }
    assert found["TimeLimit._elapsed_steps"] == LostField("TimeLimit._elapsed_steps", "1", "0")
    assert found["CountingEnv.bonus"].now == "missing"


def test_arrays_of_native_objects_are_fields_too():
    mujoco = pytest.importorskip("mujoco")
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><body><joint type='slide'/><geom size='1'/></body></worldbody></mujoco>"
    )
    original, copy = CountingEnv(), CountingEnv()
    original.data, copy.data = mujoco.MjData(model), mujoco.MjData(model)
    assert lost_fields(original, copy) == []

    original.data.qpos[:] = 1.0

    assert lost_fields(original, copy) == [LostField("CountingEnv.data.qpos", "array([1.])", "array([0.])")]


def test_instances_that_share_nothing_are_safe_in_threads(here):
    found = find_thread_safety(here, packed(CountingEnv), 0, 1.0, 500, (), BUDGET_S)

    assert found == ThreadSafety(verdict=OK, num_steps=1500)


def test_instances_that_share_something_are_unsafe_in_threads(here):
    found = find_thread_safety(here, packed(partial(CrowdedEnv, 50)), 0, 100.0, 500, (), 0.5)

    assert found.verdict is Verdict.WRONG
    assert "in two threads at once it differs" in found.reason


def test_thread_safety_of_what_differs_from_itself_is_not_judged(here):
    assert find_thread_safety(here, packed(EntropyEnv), 0, 1.0, 500, (), BUDGET_S).verdict is Verdict.NOT_REPRODUCIBLE


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="this Python has no GIL")
@pytest.mark.parametrize(
    ("factory", "gil"),
    [(SleepingEnv, Gil.RELEASED), (CountingEnv, Gil.HELD), (partial(BusyEnv, 0.0002), Gil.HELD)],
)
def test_whether_a_step_lets_other_threads_run_is_told(here, factory, gil):
    found = find_gil(here, packed(factory), 0, 0.2)

    assert found.gil is gil
    assert found.num_rounds == 5
    assert sys.getswitchinterval() < 1


def test_a_death_in_one_finding_spoils_that_one_alone(tmp_path):
    class Dying(Here):
        def run(self, function, *args):
            return Mishap(Verdict.RAISES, "it ended its process by SIGSEGV")

    dying = Dying(tmp_path / "whereabouts")

    found = find_gil(dying, b"", 0, 1.0)
    copies = find_copies(dying, b"", b"", 0, (), judges=True)

    assert (found.verdict, found.share) == (Verdict.RAISES, None)
    assert {each.verdict for each in copies} == {Verdict.INCOMPLETE}
    assert "SIGSEGV" in as_text(Inspection(env="one", gil=found, copies=copies))


class ReloadingEnv(CountingEnv):
    """Ends the process in which it is unpickled, where that isn't the one that made it."""

    home = None

    def __init__(self):
        super().__init__()
        self.home = os.getpid()

    def __setstate__(self, state):
        if state["home"] != os.getpid():
            os._exit(9)
        vars(self).update(state)


def test_a_copy_that_ends_its_process_is_told_from_those_that_do_not():
    with Errands(60) as errands:
        found = {each.way: each for each in find_copies(errands, packed(ReloadingEnv), ACTIONS, 0, (), judges=True)}

    assert {way: each.verdict for way, each in found.items()} == {
        "pickle": Verdict.RAISES,
        "cloudpickle": Verdict.RAISES,
        "deepcopy": OK,
    }
    assert "exit code 9" in found["pickle"].reason


def test_frames_are_compared_too_without_being_kept(here):
    found = seen(here, partial(CountingEnv, render_mode="rgb_array"))

    assert found.reproducible.verdict is OK
    names = [name for name, _, _ in cloudpickle.loads(found.trace)]
    assert "the frame after step 1" in names
