import pickle
import sys

import pytest

from joblib_envs.errors import ArgumentError
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


def test_the_line_of_code_can_be_pasted(env_file):
    line = "envs = BatchEnv({env}, 2{kwargs})"

    assert EnvironmentSource("CartPole-v1").code(line) == 'envs = BatchEnv("CartPole-v1", 2)'
    assert EnvironmentSource(f"{env_file}:make", {"start": 1}).code(line) == (
        "from harness_user_envs import make\nenvs = BatchEnv(make, 2, env_kwargs={'start': 1})"
    )
