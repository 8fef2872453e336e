"""States as values: what they tell, and how they are written and read."""

import hashlib
import pickle
import platform
from dataclasses import FrozenInstanceError, replace

import gymnasium
import pytest

from joblib_envs.envs import CountingEnv
from joblib_envs.errors import ArgumentTypeError, StateFormatError, StateVersionError
from joblib_envs.state import EnvState, restore
from joblib_envs.state.cargo import Blob
from joblib_envs.state.container import pack
from joblib_envs.state.env_state import Situation, check_versions, checked_state, versions_of
from joblib_envs.state.pickling import CaptureOptions
from joblib_envs.state.snapshot import captured_state

ran = []
"""What unpickling :class:`Runs` leaves here."""


def _run():
    ran.append("ran")
    return CountingEnv(3)


class Runs:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return _run, ()


@pytest.fixture
def state():
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    return captured_state(env, CaptureOptions(), is_proven=True)


def full_state():
    blobs = [Blob.of(b"a model"), Blob.of(b"")]
    return EnvState(
        "replay",
        b"payload",
        {blob.key: blob for blob in blobs},
        reset_pending=True,
        situation=b"situation",
        spec_json='{"x": 1}',
        versions={"python": "3.11.2", "mujoco": "4.0"},
        is_proven=True,
    )


def test_a_state_is_read_as_it_was_written():
    state = full_state()

    read = EnvState.from_bytes(state.to_bytes())

    assert read == state
    assert read.shared.keys() == state.shared.keys()
    assert [blob.data for blob in read.shared.values()] == [b"a model", b""]
    assert read.to_bytes() == state.to_bytes()


def test_a_state_goes_through_pickle_too():
    state = full_state()

    assert pickle.loads(pickle.dumps(state)) == state


def test_equal_blobs_are_one_object_in_a_process():
    state = full_state()

    read = [EnvState.from_bytes(state.to_bytes()) for _ in range(2)]

    assert all(one is other for one, other in zip(read[0].shared.values(), read[1].shared.values(), strict=True))


def test_the_sizes_tell_what_travels_each_time_and_what_once():
    state = full_state()

    assert state.size == len(b"payload") + len(b"situation")
    assert state.shared_size == len(b"a model")


def test_the_checksum_is_that_of_payload_and_situation(state):
    assert state.checksum == hashlib.sha256(state.payload + state.situation).hexdigest()
    assert state.checksum != replace(state, payload=state.payload + b"x").checksum


def test_the_spec_is_that_of_the_environment(state):
    assert state.spec.id == "CartPole-v1"
    assert state.spec.max_episode_steps == 500
    assert "CartPole-v1" in repr(state)


def test_a_state_without_a_spec_has_none():
    state = captured_state(CountingEnv(3), CaptureOptions(), is_proven=False)

    assert state.spec is None
    assert repr(state).startswith("EnvState(method='capture', size=")


def test_a_state_can_not_be_changed(state):
    with pytest.raises(FrozenInstanceError):
        state.payload = b""


def test_bytes_that_were_cut_or_changed_are_refused(state):
    data = state.to_bytes()

    for length in range(10, len(data), len(data) // 50):
        with pytest.raises(StateFormatError, match="the state was cut"):
            EnvState.from_bytes(data[:length])
    for place in range(30, len(data), len(data) // 50):
        changed = bytearray(data)
        changed[place] ^= 4
        with pytest.raises(StateFormatError, match="checksum is wrong"):
            EnvState.from_bytes(changed)


def test_reading_runs_no_code_and_restoring_does():
    ran.clear()
    payload = pickle.dumps(Runs())
    state = EnvState("capture", payload, situation=payload, spec_json=None)

    read = EnvState.from_bytes(state.to_bytes())
    assert (read.size, read.spec) == (2 * len(payload), None)
    assert read == state
    assert ran == []

    restore(read)  # as the warning in its description says
    assert ran == ["ran"]


def test_a_changed_payload_is_refused_before_it_could_run_code():
    ran.clear()
    harmless = EnvState("capture", pickle.dumps("x" * (len(pickle.dumps(Runs())) - len(pickle.dumps("")))))
    data = harmless.to_bytes()
    evil = pickle.dumps(Runs())
    place = data.index(harmless.payload)

    with pytest.raises(StateFormatError, match="checksum"):
        EnvState.from_bytes(data[:place] + evil + data[place + len(evil) :])
    with pytest.raises(StateFormatError, match="nothing that joblib-envs has saved"):
        EnvState.from_bytes(evil)

    assert ran == []


def test_a_part_that_is_missing_is_told():
    data = pack("state", full_state().header(), {"payload": b""})

    with pytest.raises(StateFormatError, match="situation"):
        EnvState.from_bytes(data)


def test_a_state_whose_model_did_not_come_along_is_refused():
    pytest.importorskip("mujoco")
    env = gymnasium.make("InvertedPendulum-v5")
    state = captured_state(env, CaptureOptions(), is_proven=False)

    with pytest.raises(StateFormatError, match=r"a part .* that didn't come with it"):
        restore(replace(state, shared={}))


# Versions


def test_the_versions_are_those_of_python_and_of_what_is_inside(state):
    assert state.versions["python"] == platform.python_version()
    assert state.versions["gymnasium"] == gymnasium.__version__
    assert "mujoco" not in state.versions


def test_the_version_of_mujoco_counts_where_it_is_inside():
    mujoco = pytest.importorskip("mujoco")
    state = captured_state(gymnasium.make("InvertedPendulum-v5"), CaptureOptions(), is_proven=False)

    assert state.versions["mujoco"] == mujoco.__version__


@pytest.mark.parametrize("name", ["python", "gymnasium", "numpy", "mujoco"])
def test_a_state_of_other_versions_is_refused_and_restored_where_that_is_wanted(state, name):
    other = replace(state, versions={**state.versions, name: "1.99.3"})

    with pytest.raises(StateVersionError, match=f"{name} 1.99.3 .here .*strict=False"):
        restore(other)
    env = restore(other, strict=False)

    assert env.step(0)


def test_every_version_that_differs_is_named(state):
    other = replace(state, versions={"python": "2.7", "gymnasium": "0.1", "not-installed-here": "1.0"})

    with pytest.raises(StateVersionError, match=r"python 2.7 .*gymnasium 0.1 .*-here 1.0 \(here not installed\)"):
        check_versions(other)


def test_patches_and_the_version_of_joblib_envs_do_not_count(state):
    python = ".".join(platform.python_version().split(".")[:2]) + ".99"

    check_versions(replace(state, versions={**state.versions, "python": python, "joblib-envs": "99.0"}))


def test_the_versions_hold_what_was_asked_for():
    assert versions_of(["numpy", "never-heard-of"])["never-heard-of"] == ""


# Arguments


@pytest.mark.parametrize("value", [None, "state", 3, {}])
def test_what_is_no_state_is_refused(value):
    with pytest.raises(ArgumentTypeError, match=f"must be an EnvState, not {type(value).__name__}"):
        restore(value)


def test_bytes_in_the_place_of_a_state_are_answered_with_how_to_read_them(state):
    with pytest.raises(ArgumentTypeError, match=r"EnvState\.from_bytes"):
        checked_state(state.to_bytes())


# Situations


def test_a_situation_is_in_the_state_and_comes_out_of_it(state):
    situation = Situation("it failed", (1, "two"))

    assert Situation.of(situation.into(state)) == situation
    assert Situation.of(state) == Situation()
