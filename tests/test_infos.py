"""Infos are batched as Gymnasium does where that keeps every value, and unchanged elsewhere."""

import copy
import math
import threading
import warnings
from functools import partial

import gymnasium
import numpy as np
import pytest
from batches import make_batch
from gymnasium.vector import SyncVectorEnv, VectorEnv

from joblib_envs import infos as infos_module
from joblib_envs.envs import BufferReusingEnv, InfoEnv, InfoKind
from joblib_envs.equality import bit_equal, first_difference
from joblib_envs.infos import batch_infos, own_info

LOSSLESS = [
    [{"a": 1}, {"a": 2}],
    [{"a": 1}, None, {"a": 2}],
    [None, {}, {"a": True}],
    [{"a": 0.5}, {"b": 1}],
    [{"a": 0.5}, {"a": 1}],
    [{"a": np.float32(0.1)}, {"a": np.float32(0.2)}],
    [{"a": np.float64(0.1)}, {"a": np.float32(0.5)}],
    [{"a": np.zeros((2, 2))}, {"a": np.ones((2, 2))}],
    [{"a": np.zeros(2, np.float64)}, {"a": np.ones(2, np.float32)}],
    [{"a": np.array(1)}, {"a": np.array(2)}],
    [{"a": "text"}, {"a": "other"}],
    [{"a": None}, {"a": [1, 2]}],
    [{"a": {"b": 1}}, {"a": {"b": 2, "c": {"d": np.zeros(1)}}}],
    [{"a": {}}, {"a": {}}],
    [{"a": np.bool_(True)}, {"a": np.bool_(False)}],
    [{"a": math.nan}, {"a": -0.0}],
    [{"a": 1 + 2j}, {"a": 3j}],
    [{"a": (1, 2)}, {"a": (3,)}],
    [{"final_obs": np.zeros(2), "final_info": {"a": 1}}, {"a": 3}],
]

LOSING = [
    ([{"a": 1}, {"a": 0.5}], [1, 0.5]),
    ([{"a": True}, {"a": 0.5}], [True, 0.5]),
    ([{"a": 0.5}, {"a": "x"}], [0.5, "x"]),
    ([{"a": 1}, {"a": 2**70}], [1, 2**70]),
    ([{"a": np.int8(1)}, {"a": 300}], [np.int8(1), 300]),
    ([{"a": np.float32(1)}, {"a": 0.1}], [np.float32(1), 0.1]),
    ([{"a": {"b": 1}}, {"a": 2}], [{"b": 1}, 2]),
    ([{"a": 2}, {"a": {"b": 1}}], [2, {"b": 1}]),
    ([{"a": np.zeros(2)}, {"a": np.zeros(3)}], [np.zeros(2), np.zeros(3)]),
    ([{"a": np.zeros(2)}, {"a": 1.0}], [np.zeros(2), 1.0]),
    ([{"a": 1.0}, {"a": np.zeros(2)}], [1.0, np.zeros(2)]),
    ([{"a": 1.0}, {"a": np.zeros(1)}], [1.0, np.zeros(1)]),
    ([{"a": 1}, {"a": None}], [1, None]),
    ([{"a": 1.0}, {"a": "2.5"}], [1.0, "2.5"]),
    ([{"a": 1}, {"a": 1 + 2j}], [1, 1 + 2j]),
    ([{"a": np.array(["a"])}, {"a": np.array(["longer"])}], [np.array(["a"]), np.array(["longer"])]),
    ([{"a": 2**70}, {"a": 1}], [2**70, 1]),
    ([{"a": 2**53 + 1.0}, {"a": 2**53 + 1}], [2**53 + 1.0, 2**53 + 1]),
]


def gymnasiums(env_infos):
    batcher = VectorEnv()
    batcher.num_envs = len(env_infos)
    result = {}
    for index, info in enumerate(copy.deepcopy(env_infos)):
        result = batcher._add_info(result, info or {}, index)
    return result


@pytest.mark.parametrize("env_infos", LOSSLESS, ids=str)
def test_where_gymnasium_keeps_every_value_the_result_is_gymnasiums(env_infos):
    assert first_difference(gymnasiums(env_infos), batch_infos(env_infos), "infos") is None


@pytest.mark.parametrize(("env_infos", "wanted"), LOSING, ids=str)
def test_where_gymnasium_would_lose_the_values_are_unchanged(env_infos, wanted):
    result = batch_infos(env_infos)

    assert result["a"].dtype == object
    assert first_difference(wanted, list(result["a"])) is None
    assert result["_a"].tolist() == [True, True]


def test_losing_is_found_inside_dictionaries_too():
    result = batch_infos([{"a": {"b": 1, "c": 1}}, {"a": {"b": 0.5, "c": 2}}])

    assert result["a"]["b"].tolist() == [1, 0.5]
    assert result["a"]["c"].dtype == np.int64
    assert result["a"]["_b"].tolist() == [True, True]


def test_no_infos_give_an_empty_dictionary():
    assert batch_infos([None, {}, None]) == {}


def test_empty_infos_do_not_shift_later_ones():
    result = batch_infos([{}, {"a": 7}, None, {"a": 8}])

    assert result["a"].tolist() == [0, 7, 0, 8]
    assert result["_a"].tolist() == [False, True, False, True]


def test_nothing_is_shared_with_the_environments():
    values = {"array": np.zeros(2), "list": [1], "odd": np.zeros(3), "nested": {"list": [1]}}
    result = batch_infos([own_info(values), own_info({"odd": np.zeros(2)})])
    before = copy.deepcopy(result)

    values["array"][:] = 9
    values["odd"][:] = 9
    values["list"].append(9)
    values["nested"]["list"].append(9)

    assert bit_equal(before, result)


def test_the_environments_infos_are_not_changed():
    env_infos = [{"a": 1, "final_info": {"b": [1]}}, {"a": 0.5, "c": {"d": 1}}]
    before = copy.deepcopy(env_infos)

    batch_infos(env_infos)

    assert env_infos == before


def test_values_that_cannot_be_copied_are_kept_as_they_are():
    lock = threading.Lock()

    assert batch_infos([{"lock": lock}])["lock"][0] is lock


def test_dictionaries_that_hold_themselves_end():
    info = {"a": 1}
    info["self"] = info

    result = batch_infos([info, {"a": 2}])

    assert result["a"].tolist() == [1, 2]
    assert result["_self"].tolist() == [True, False]


def test_dictionaries_that_hold_themselves_further_down_end():
    info = {"a": {"b": {}}}
    info["a"]["b"]["up"] = info["a"]

    result = batch_infos([info])

    assert result["_a"].tolist() == [True]


def test_lists_that_hold_themselves_end():
    value = [1]
    value.append(value)

    kept = batch_infos([{"a": value}])["a"][0]

    assert kept[0] == 1
    assert kept[1] is kept


def test_a_key_that_collides_with_a_mask_keeps_gymnasiums_result_and_warns_once(monkeypatch):
    monkeypatch.setattr(infos_module, "_collisions_warned", set())
    env_infos = [{"x": 1, "_x": True}, {"x": 2, "_x": False}]
    wanted = gymnasiums(env_infos)

    with pytest.warns(UserWarning, match="both 'x' and '_x'"):
        result = batch_infos(env_infos)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch_infos(env_infos)

    assert first_difference(wanted, result, "infos") is None


def test_a_collision_into_which_gymnasium_cannot_write_keeps_the_users_values(monkeypatch):
    monkeypatch.setattr(infos_module, "_collisions_warned", set())

    with pytest.raises(ValueError):
        gymnasiums([{"x": 1, "_x": np.arange(2)}])
    with pytest.warns(UserWarning, match="both 'x' and '_x'"):
        result = batch_infos([{"x": 1, "_x": np.arange(2)}, {"x": 2, "_x": np.arange(2)}])

    assert result["x"].tolist() == [1, 2]
    assert result["_x"].tolist() == [[0, 1], [0, 1]]


def test_a_private_key_without_a_public_one_is_no_collision():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = batch_infos([{"_x": 1}])

    assert result["_x"].tolist() == [1]
    assert result["__x"].tolist() == [True]


def test_keys_that_are_no_text_are_taken():
    result = batch_infos([{1: "a", ("b", 2): 3}])

    assert result[1].tolist() == ["a"]
    assert result["_1"].tolist() == [True]
    assert result["b", 2].tolist() == [3]


@pytest.mark.filterwarnings("ignore:the environments' infos have both")
def test_infos_of_every_kind_are_the_same_on_every_backend(backend):
    kinds = [kind for kind in InfoKind if kind not in (InfoKind.OVERFLOW, InfoKind.MASK_COLLISION)]
    factories = [partial(EveryKindEnv, tuple(kinds), variant) for variant in range(3)]
    wanted = [factory().reset()[1] for factory in factories]

    with make_batch(backend, factories) as envs:
        _, got = envs.reset(seed=0)

    assert first_difference(batch_infos(wanted), got, "infos") is None


class EveryKindEnv(gymnasium.Env):
    """Gives the infos of several kinds at once."""

    def __init__(self, kinds, variant):
        self.parts = {str(kind): InfoEnv(kind, variant) for kind in kinds}
        first = next(iter(self.parts.values()))
        self.observation_space, self.action_space = first.observation_space, first.action_space

    def reset(self, *, seed=None, options=None):
        results = {name: part.reset(seed=seed) for name, part in self.parts.items()}
        infos = {f"{name}-{key}": value for name, (_, info) in results.items() for key, value in info.items()}
        return np.array(0), infos


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_infos_of_environments_that_reuse_their_buffers_are_snapshots(backend, mode):
    kept, copies = [], []
    with make_batch(backend, partial(BufferReusingEnv, 2), 2, autoreset_mode=mode) as envs:
        reference = SyncVectorEnv([partial(BufferReusingEnv, 2)] * 2, autoreset_mode=envs.metadata["autoreset_mode"])
        kept.append(envs.reset(seed=0)[1])
        copies.append(copy.deepcopy(reference.reset(seed=0)[1]))
        for _ in range(5):
            kept.append(envs.step([1, 2])[4])
            copies.append(copy.deepcopy(reference.step([1, 2])[4]))

    assert first_difference(copies[0]["array"], kept[0]["array"]) is None
    assert [list(info["history"]) for info in kept] == [list(info["history"]) for info in copies]
    if mode == "SameStep":
        assert [list(observation) for observation in kept[2]["final_obs"]] == [[2.0, 1.0, 1.0], [2.0, 1.0, 2.0]]
        assert list(kept[2]["final_info"]["history"]) == [[0, 1, 2], [0, 1, 2]]
