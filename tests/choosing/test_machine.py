"""What a batch costs on a machine, and where that is kept."""

import json
import time
from dataclasses import replace

import pytest

from joblib_envs.choosing import machine
from joblib_envs.choosing.decision import HandOver

FOUND = HandOver(call_us=25.0, per_env_us=1.5, per_byte_us=5e-5, worker_us={"threading": 20.0, "loky": 40.0})


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("JOBLIB_ENVS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "_remembered", {})
    return tmp_path / "cache"


def test_what_was_measured_is_known_to_other_processes(folder):
    machine._write(machine._key(), FOUND)

    assert machine.known_hand_over() == FOUND
    assert [path.name for path in folder.iterdir()] == ["hand-over.json"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"key": 3}', '{"key": {"measured_at": "x"}}', "\x00\xff"]
)  # fmt: skip
def test_a_broken_file_is_measured_anew_and_replaced(folder, text):
    folder.mkdir()
    (folder / "hand-over.json").write_text(text.replace("key", machine._key()), encoding="latin-1")

    assert machine.known_hand_over() is None
    machine._write(machine._key(), FOUND)
    assert machine.known_hand_over() == FOUND


@pytest.mark.parametrize("change", [{"measured_at": 0.0}, {"call_us": float("nan")}, {"worker_us": {"loky": -1.0}}])
def test_what_is_too_old_or_no_number_is_not_used(folder, change):
    machine._write(machine._key(), FOUND)
    path = folder / "hand-over.json"
    kept = json.loads(path.read_text())
    kept[machine._key()].update(change)
    path.write_text(json.dumps(kept))

    assert machine.known_hand_over() is None


def test_what_a_busy_machine_gave_is_soon_measured_again(folder, monkeypatch):
    busy = replace(FOUND, slowdown=1.9)
    machine._write(machine._key(), busy)
    machine._write("another", FOUND)

    assert machine._read(machine._key()) == busy
    now = time.time()
    monkeypatch.setattr(machine.time, "time", lambda: now + 3600)
    assert machine._read(machine._key()) is None
    assert machine._read("another") == FOUND


def test_measurements_of_other_versions_stay_beside_it(folder):
    folder.mkdir()
    (folder / "hand-over.json").write_text(json.dumps({"another": {"measured_at": time.time()}}))

    machine._write(machine._key(), FOUND)

    assert set(json.loads((folder / "hand-over.json").read_text())) == {"another", machine._key()}


def test_a_folder_that_cannot_be_written_and_an_empty_variable_keep_nothing(folder, monkeypatch):
    folder.write_text("a file where the folder should be")
    machine._write(machine._key(), FOUND)
    assert machine.known_hand_over() is None

    monkeypatch.setenv("JOBLIB_ENVS_CACHE", "")
    assert machine.cache_file() is None


def test_the_file_is_in_the_users_cache_unless_told_otherwise(tmp_path, monkeypatch):
    monkeypatch.delenv("JOBLIB_ENVS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert machine.cache_file() == tmp_path / "joblib-envs" / "hand-over.json"

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert machine.cache_file() == tmp_path / ".cache" / "joblib-envs" / "hand-over.json"


def test_it_is_measured_with_environments_that_count():
    with machine.HandOverMeter() as meter:
        found = meter.measured()

    assert found.call_us > 1
    assert found.per_env_us > 0
    assert 0 < found.per_byte_us < 0.1
    assert set(found.worker_us) == {"threading", "loky"}
    assert machine.known_hand_over() == found
