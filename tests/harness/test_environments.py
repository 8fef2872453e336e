import pickle
import sys

import pytest

from joblib_envs.errors import ArgumentError
from joblib_envs.harness.contenders import select_contenders
from joblib_envs.harness.environments import EnvironmentSource

MODULE = """
import gymnasium
from joblib_envs.envs import CountingEnv

class MyEnv(CountingEnv):
    pass

def make(start=0):
    return MyEnv(start=start)

if "Mine-v0" not in gymnasium.registry:
    gymnasium.register("Mine-v0", MyEnv)
"""


@pytest.fixture
def env_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "harness_user_envs.py"
    path.write_text(MODULE)
    yield path
    sys.modules.pop("harness_user_envs", None)


@pytest.mark.parametrize("name", ["MyEnv", "make", "Mine-v0"])
def test_a_file_gives_a_class_a_factory_or_an_id(env_file, name):
    source = EnvironmentSource(f"{env_file}:{name}")

    source.check()
    env = source()

    assert type(env.unwrapped).__name__ == "MyEnv"
    assert source.label == f"harness_user_envs.py:{name}"


def test_a_source_travels_with_its_arguments(env_file):
    source = pickle.loads(pickle.dumps(EnvironmentSource(f"{env_file}:make", {"start": 7})))

    assert source().reset()[0] == 7


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("NoSuchEnv-v7", "NoSuchEnv"),
        ("no_such_module:Id-v0", "no_such_module"),
        ("no_such_file.py:make", "there is no file"),
        ("some_file.py", "names a file only"),
        ("CartPole-v99", "CartPole"),
    ],
)
def test_an_environment_that_does_not_exist_is_told(target, words):
    with pytest.raises(ArgumentError, match=words):
        EnvironmentSource(target).check()


def test_a_name_that_the_file_lacks_is_told(env_file):
    with pytest.raises(ArgumentError, match="no such class or function"):
        EnvironmentSource(f"{env_file}:Other").check()


def test_a_file_that_fails_on_import_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "harness_broken_envs.py").write_text("1 / 0")

    with pytest.raises(ArgumentError, match="ZeroDivisionError"):
        EnvironmentSource(f"{tmp_path / 'harness_broken_envs.py'}:make").check()


@pytest.mark.parametrize("name", ["plain_loop", "gymnasium_sync", "batch_env/sequential/actors"])
@pytest.mark.parametrize("target", ["CartPole-v1", "MyEnv", "make", "Mine-v0"])
def test_the_code_runs_when_it_is_pasted(env_file, name, target):
    kwargs = {} if target == "CartPole-v1" else {"start": 7}
    source = EnvironmentSource(f"{env_file}:{target}" if kwargs else target, kwargs)
    source.check()
    (contender,) = select_contenders([name])
    code = contender.code(source, 2, 4)
    names = {}

    exec(code, names)

    assert "n_jobs" not in code
    if name == "plain_loop":
        assert [len(transition) for transition in names["transitions"]] == [5, 5]
    else:
        observations, _ = names["envs"].reset(seed=0)
        names["envs"].close()
        assert len(observations) == 2
        assert not kwargs or observations.tolist() == [7, 7]


def test_the_code_of_parallel_workers_says_how_many():
    (contender,) = select_contenders(["batch_env/loky/tasks"])

    assert contender.code(EnvironmentSource("CartPole-v1"), 8, 2) == (
        "from joblib_envs import BatchEnv\n"
        'envs = BatchEnv("CartPole-v1", 8, backend="loky", execution="tasks", n_jobs=2)'
    )
