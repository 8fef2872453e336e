"""Infos go through columns and come out as they were told; batched, they are what the dictionaries would give."""

import copy
import itertools
import pickle
import threading

import gymnasium
import numpy as np
import pytest
from batches import PROCESSES, make_batch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_infos import LOSING, LOSSLESS

from joblib_envs import channel
from joblib_envs.equality import first_difference
from joblib_envs.info_columns import InfoColumns, batch_columns
from joblib_envs.infos import batch_infos

EVERY = [*LOSSLESS, *(infos for infos, _ in LOSING)]
ODD = [
    [{"a": 2**63}, {"a": -(2**63)}],
    [{"a": {"b": {"c": {"d": {"e": {"f": 1}}}}}}],
    [{1: 0.5}, {True: 1}],
    [{"a": np.ma.masked_array([1, 2], [True, False])}],
    [{"a": np.array(["x"]), "b": 1.5}],
    [{"a": np.array([1, 2], ">i4")}],
    [{"a": np.zeros((0, 3))}, {"a": np.zeros((0, 3))}],
    [{"a": np.longlong(3)}, {"a": np.int64(3)}],
    [{"a": np.float16(0.1), "b": np.longdouble("0.1")}] * 2,
    [{"a": np.asfortranarray(np.arange(6).reshape(2, 3))}],
    [{"name": "x", "value": 1, "inner": {"name": "y", "value": 0.5}}] * 3,
    [{"x": 1, "inner": {"y": 1}}, {"inner": {"y": 1}, "x": 1}],
]


class Reading(dict):
    """A dictionary of another type."""


def told(env_infos, columns=None):
    columns = columns or InfoColumns(len(env_infos))
    columns.clear()
    for row, info in enumerate(env_infos):
        if info:
            columns.write(row, info)
    return columns


def exactly(env_infos):
    return [info or None for info in env_infos]


@pytest.mark.parametrize("env_infos", [*EVERY, *ODD], ids=str)
def test_infos_come_out_as_they_were_told(env_infos):
    columns = told(copy.deepcopy(env_infos))

    assert first_difference(exactly(env_infos), columns.dicts(), "infos") is None
    assert (
        first_difference(exactly(env_infos), pickle.loads(pickle.dumps(columns, protocol=5)).dicts(), "pickled") is None
    )


@pytest.mark.parametrize("env_infos", [*EVERY, *ODD], ids=str)
@pytest.mark.parametrize("cut", [None, 1])
def test_they_are_batched_by_the_one_rule(env_infos, cut):
    wanted = batch_infos(env_infos)
    cuts = [0, len(env_infos)] if cut is None else [0, min(cut, len(env_infos)), len(env_infos)]
    parts = [told(env_infos[start:stop]) for start, stop in itertools.pairwise(cuts)]

    assert first_difference(wanted, batch_columns(parts), "infos") is None
    assert list(batch_columns(parts)) == list(wanted)


VALUES = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(2**65), 2**65),
        st.floats(),
        st.floats(width=32).map(np.float32),
        st.integers(-5, 5).map(np.int8),
        st.just(np.bool_(True)),
        st.none(),
        st.text(max_size=2),
        st.lists(st.floats(), max_size=3).map(np.array),
        st.integers(0, 3).map(lambda n: np.arange(n, dtype=np.int16)),
    ),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=4,
)
INFOS = st.none() | st.dictionaries(st.sampled_from(["x", "y", "final_obs"]), VALUES, max_size=3)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(INFOS, min_size=3, max_size=3), min_size=1, max_size=4))
def test_any_calls_one_after_another_in_the_same_columns(calls):
    columns = [InfoColumns(1), InfoColumns(2)]
    for env_infos in calls:
        told(env_infos[:1], columns[0])
        told(env_infos[1:], columns[1])
        dicts = columns[0].dicts() + columns[1].dicts()

        assert first_difference(exactly(env_infos), dicts, "infos") is None
        assert first_difference(batch_infos(env_infos), batch_columns(columns), "batch") is None


def test_what_an_environment_does_later_to_its_info_changes_nothing():
    info = {"number": 1.0, "array": np.zeros(2), "list": [1], "inner": {"array": np.zeros(2), "list": [1]}}
    columns = told([info])
    before = copy.deepcopy(info)

    info["array"][:] = info["inner"]["array"][:] = 9
    info["list"].append(9)
    info["inner"]["list"].append(9)
    info["number"] = 2.0

    assert first_difference([before], columns.dicts(), "infos") is None


def test_the_batch_is_the_callers_own():
    columns = told([{"a": 1.0, "b": np.zeros(2)}] * 2)
    batch = batch_columns([columns])
    before = copy.deepcopy(batch)

    told([{"a": 2.0, "b": np.ones(2)}] * 2, columns)
    batch["_a"][:] = False

    assert first_difference(before["a"], batch["a"], "a") is None
    assert first_difference(before["b"], batch["b"], "b") is None
    assert batch["_b"].all()


def test_an_integer_too_large_for_its_column_is_kept():
    columns = told([{"a": 1}])

    assert told([{"a": 2**70}], columns).dicts() == [{"a": 2**70}]
    assert told([{"a": 2}], columns).dicts() == [{"a": 2}]


def test_infos_that_never_look_alike_are_kept_and_need_no_end_of_tables():
    columns = InfoColumns(1)
    for number in range(200):
        info = {f"key-{number}": number, "shape": np.zeros(number)}
        assert first_difference([info], told([info], columns).dicts(), "infos") is None

    assert len(columns._store.tables) < 200


def test_dictionaries_of_other_types_and_those_that_hold_themselves_are_kept():
    knot = {"a": 1}
    knot["self"] = knot
    columns = told([Reading(a=1), knot])

    first, second = columns.dicts()
    assert first == {"a": 1}
    assert second["a"] == 1
    assert second["self"]["self"]["a"] == 1


def test_parts_have_rows_of_their_own_in_the_same_columns():
    whole = InfoColumns(4)
    parts = [whole.part(start, start + 2) for start in (0, 2)]
    told([{"a": 1.0, "b": "x"}, {"a": 2.0, "b": "y"}], parts[0])
    told([None, {"a": 3.0, "b": "z"}], parts[1])
    told([{"c": [1]}, None], parts[0])

    assert parts[1].dicts() == [None, {"a": 3.0, "b": "z"}]
    assert whole.dicts() == [{"c": [1]}, None, None, {"a": 3.0, "b": "z"}]


class Key(str):
    """Equal to the text that it holds, and something else."""

    def __repr__(self):
        return f"Key({super().__repr__()})"

    __str__ = __repr__


@pytest.mark.parametrize("nested", [False, True])
def test_a_key_that_only_equals_another_is_kept_as_it_is(nested):
    def wrapped(info):
        return {"inner": info} if nested else info

    columns = told([wrapped({"a": 1}), None])
    env_infos = [None, wrapped({Key("a"): 2})]
    got = told(env_infos, columns)

    assert repr(got.dicts()) == repr(env_infos)
    assert repr(batch_columns([got])) == repr(batch_infos(env_infos))


def test_a_dropped_row_has_no_info_any_more():
    columns = told([{"a": 1}, {"b": "x"}])
    columns.drop(0)
    columns.drop(1)

    assert columns.dicts() == [None, None]
    assert batch_columns([columns]) == {}


class TalkativeEnv(gymnasium.Env):
    """Tells infos of changing forms: numbers at each step, more at some, other types at others."""

    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(20)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return 0, {"seed": seed or 0, "name": "reset"}

    def step(self, action):
        self.count += 1
        info = {"x": self.count * 0.5, "where": np.full(3, self.count)}
        if action == 1:
            info["inner"] = {"n": self.count, "text": "t" * self.count}
        elif action == 2:
            info["x"] = self.count
        elif action == 3:
            info = {}
        elif action == 4:
            info = {"lock": "none", "x": 2**70}
        elif action > 4:
            info[f"key-{action}"] = np.zeros(action)
        return 0, 0.0, False, False, info


def test_infos_of_changing_forms_are_the_same_on_every_backend(backend):
    single = [TalkativeEnv() for _ in range(4)]
    rng = np.random.default_rng(0)
    with make_batch(backend, TalkativeEnv, 4) as envs:
        wanted = [env.reset(seed=3 + index)[1] for index, env in enumerate(single)]
        assert first_difference(batch_infos(wanted), envs.reset(seed=3)[1], "reset") is None
        for step in range(60):
            actions = rng.integers(0, 20, 4) if step % 3 else np.zeros(4, dtype=int)
            wanted = [env.step(action)[4] for env, action in zip(single, actions, strict=True)]
            assert first_difference(batch_infos(wanted), envs.step(actions)[4], f"step {step}") is None


class LockedEnv(TalkativeEnv):
    """Tells something that can't be pickled, beside a number."""

    def step(self, action):
        observation, *rest, info = super().step(0)
        return observation, *rest, {**info, **({"lock": threading.Lock()} if action == 1 else {})}


@pytest.mark.parametrize("backend", PROCESSES, ids=str)
def test_only_the_sub_environment_whose_info_cannot_cross_fails(backend):
    with make_batch(backend, LockedEnv, 4) as envs:
        envs.reset(seed=0)
        with pytest.raises(Exception, match="info of sub-environment 1 can't be pickled") as caught:
            envs.step(np.array([0, 1, 0, 0]))

        infos = caught.value.partial[4]
        assert caught.value.partial[-1].tolist() == [False, True, False, False]
        assert infos["_x"].tolist() == [True, False, True, True]
        assert infos["x"].tolist() == [0.5, 0.0, 0.5, 0.5]


def test_without_memory_to_share_infos_go_by_message(monkeypatch):
    def no_memory(*_):
        raise OSError("no file descriptor is left")

    monkeypatch.setattr(channel, "SharedBlock", no_memory)
    columns = InfoColumns(1, new_table=channel.NewTables())

    assert told([{"a": 1.0}], columns).dicts() == [{"a": 1.0}]
    assert columns.beside == {0: {"a": 1.0}}
