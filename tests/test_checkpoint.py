"""A batch as a file or a pickle: it goes on bit for bit, or is refused whole."""

import copy
import os
import pickle
import threading
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from batches import BACKENDS, Backend, make_batch, run_script
from gymnasium import wrappers

from joblib_envs import (
    ArgumentError,
    ArgumentTypeError,
    BatchEnv,
    StateFormatError,
    UnpicklableError,
)
from joblib_envs.envs import (
    CountingEnv,
)
from joblib_envs.equality import first_difference

LOKY = Backend("loky", "actors")
SEQUENTIAL = Backend("sequential", "actors")


def make_cartpole():
    return wrappers.NormalizeObservation(gymnasium.make("CartPole-v1", max_episode_steps=15))


def go_on(envs, num_steps, seed=7):
    """Step with seeded actions, and reset in the middle."""
    envs.action_space.seed(seed)
    trace = []
    for number in range(num_steps):
        trace.append(envs.step(envs.action_space.sample()))
        if number == num_steps // 2:
            trace.append(envs.reset(options={"reset_mask": np.arange(envs.num_envs) % 2 == 0}))
    return trace


def started(backend, env, num_envs=4, num_steps=9, **options):
    envs = make_batch(backend, env, num_envs, **options)
    envs.reset(seed=3)
    envs.action_space.seed(1)
    for _ in range(num_steps):
        envs.step(envs.action_space.sample())
    return envs


@pytest.mark.parametrize("target", BACKENDS, ids=str)
def test_a_saved_batch_goes_on_on_any_backend_with_any_number_of_workers(tmp_path, target):
    with started(LOKY, make_cartpole, 5) as envs:
        envs.save(tmp_path / "batch")
        wanted = [envs.step(envs.action_space.sample()) for _ in range(40)]

    loaded = BatchEnv.load(tmp_path / "batch", backend=target.name, execution=target.execution, n_jobs=3)
    with loaded:
        got = [loaded.step(loaded.action_space.sample()) for _ in range(40)]

        assert first_difference(wanted, got) is None
        assert loaded.n_jobs == (1 if target.name == "sequential" else 3)


def test_a_saved_batch_is_built_as_it_was():
    with (
        make_batch(
            LOKY, "CartPole-v1", 3, n_jobs=2, autoreset_mode="SameStep", copy=False, observation_mode="different"
        ) as envs,
        pickle.loads(pickle.dumps(envs)) as other,
    ):
        assert other.placement == envs.placement
        assert other.metadata == envs.metadata
        assert other.copy == envs.copy
        assert other.spec == envs.spec
        assert other.observation_space == envs.observation_space


def test_a_saved_batch_goes_on_in_another_process(tmp_path):
    with started(LOKY, "CartPole-v1") as envs:
        envs.save(tmp_path / "batch")
        wanted = [envs.step(envs.action_space.sample())[0].tobytes().hex() for _ in range(30)]

    ended = run_script(
        tmp_path,
        """
        from joblib_envs import BatchEnv

        if __name__ == "__main__":
            with BatchEnv.load("batch", backend="threading", n_jobs=3) as envs:
                for _ in range(30):
                    print(envs.step(envs.action_space.sample())[0].tobytes().hex())
        """,
    )

    assert ended.stdout.split() == wanted, ended.stderr


def test_an_environment_of_a_script_can_be_saved_and_loaded_by_another_script(tmp_path):
    text = """
        import gymnasium, numpy as np
        from joblib_envs import BatchEnv

        class Env(gymnasium.Env):
            observation_space = gymnasium.spaces.Discrete(100)
            action_space = gymnasium.spaces.Discrete(2)
            count = 0
            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                self.count = 0
                return 0, {}
            def step(self, action):
                self.count += 1
                return self.count, 1.0, False, False, {}

        if __name__ == "__main__":
            with BatchEnv(Env, 3, n_jobs=2) as envs:
                envs.reset(seed=0)
                envs.step([0] * 3)
                envs.save("batch")
        """
    first = run_script(tmp_path, text)
    ended = run_script(
        tmp_path,
        """
        from joblib_envs import BatchEnv

        if __name__ == "__main__":
            with BatchEnv.load("batch") as envs:
                print(envs.step([0] * 3)[0].tolist())
        """,
    )

    assert first.stderr == ""
    assert ended.stdout == "[2, 2, 2]\n", ended.stderr


def test_a_deep_copy_is_a_batch_of_its_own(backend):
    with started(backend, make_cartpole) as envs, copy.deepcopy(envs) as other:
        assert first_difference(go_on(envs, 10), go_on(other, 10)) is None


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "batch"
    path.write_bytes(b"before")

    with started(SEQUENTIAL, CountingEnv) as envs:
        monkeypatch.setattr(os, "fsync", lambda _descriptor: (_ for _ in ()).throw(OSError("no space left")))
        with pytest.raises(OSError, match="no space left"):
            envs.save(path)

    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_are_no_whole_batch_are_refused(tmp_path):
    path = tmp_path / "batch"
    with started(SEQUENTIAL, CountingEnv) as envs:
        envs.save(path)
        state = envs.get_state()[0]
    whole = path.read_bytes()

    for data in (*(whole[:cut] for cut in range(0, len(whole), 10)), whole[:-1] + b"?", whole + b"0", b"", b"other"):
        path.write_bytes(data)
        with pytest.raises(StateFormatError, match="the file"):
            BatchEnv.load(path)
    path.write_bytes(state.to_bytes())
    with pytest.raises(StateFormatError, match="'batch' is needed"):
        BatchEnv.load(path)


@pytest.mark.parametrize("path", [3, None, b"name"])
def test_a_path_must_be_one(path):
    with started(SEQUENTIAL, CountingEnv) as envs, pytest.raises(ArgumentTypeError, match="path"):
        envs.save(path)


def test_only_files_are_replaced_and_links_lead_to_them(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with started(SEQUENTIAL, CountingEnv) as envs:
        envs.save(tmp_path / "link")

        for path, message in ((tmp_path / "folder", "no file"), (os.devnull, "no file"), ("", "empty")):
            with pytest.raises(ArgumentError, match=message):
                envs.save(path)
        with pytest.raises(FileNotFoundError, match="nowhere/file"):
            envs.save(tmp_path / "nowhere" / "file")

    assert (tmp_path / "link").is_symlink()
    BatchEnv.load(tmp_path / "file").close()


def test_a_file_that_is_not_there_is_told_as_usual(tmp_path):
    with pytest.raises(FileNotFoundError):
        BatchEnv.load(tmp_path / "nothing")


def test_a_factory_that_cannot_be_pickled_cannot_be_saved(tmp_path):
    lock = threading.Lock()

    with make_batch(SEQUENTIAL, lambda: (lock, CountingEnv())[1], 2) as envs:
        with pytest.raises(UnpicklableError, match="factory"):
            envs.save(tmp_path / "batch")

        assert list(tmp_path.iterdir()) == []


def test_mujoco_goes_on_from_a_file_with_its_model_in_it_once(tmp_path, monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)  # where MuJoCo writes its log
    with started(LOKY, "HalfCheetah-v5", 6) as envs:
        envs.save("batch")
        wanted = [envs.step(envs.action_space.sample()) for _ in range(20)]
        model_size = envs.get_state()[0].shared_size

    assert Path("batch").stat().st_size < 2 * model_size
    with BatchEnv.load("batch", execution="tasks", backend="loky", n_jobs=2) as loaded:
        assert first_difference(wanted, [loaded.step(loaded.action_space.sample()) for _ in range(20)]) is None
