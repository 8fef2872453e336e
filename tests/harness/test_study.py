import sys

import pytest

from joblib_envs.errors import ArgumentError
from joblib_envs.harness.environments import EnvironmentSource
from joblib_envs.harness.results import ResultsFolder
from joblib_envs.harness.study import Study, load_study

GOOD = """
question = "Which?"
contenders = ["plain_loop"]
[[environments]]
id = "CartPole-v1"
[grid]
num_envs = [2, 4]
n_jobs = [1]
[timing]
rounds = 0
"""


def loaded(tmp_path, text):
    path = tmp_path / "asked.toml"
    path.write_text(text)
    return load_study(path)


def test_a_study_is_read(tmp_path):
    study = loaded(tmp_path, GOOD)

    assert study.name == "asked"
    assert (study.num_envs, study.n_jobs, study.rounds) == ((2, 4), (1,), 0)
    assert study.environments == (EnvironmentSource("CartPole-v1"),)


def test_a_written_study_is_read_back_equal(tmp_path):
    sources = (
        EnvironmentSource("FrozenLake-v1", {"desc": None, "map_name": "8x8"}),
        EnvironmentSource("a.py:B", {"size": 3, "names": ["x"]}),
    )
    study = Study(
        "asked", sources, ("plain_loop",), (1,), (2,), question='"quoted"\nand \\', min_time_s=0.5
    ).made_quick()

    assert loaded(tmp_path, study.to_toml()) == study


@pytest.mark.parametrize(
    ("right", "broken", "words"),
    [
        ("rounds = 0", "rounds = -1", ["timing.rounds = -1", "0 or more"]),
        ("rounds = 0", "rouds = 3", ["timing.rouds", "rounds, min_time_s"]),
        ("num_envs = [2, 4]", "num_envs = 2", ["grid.num_envs = 2", "list of whole numbers"]),
        ("num_envs = [2, 4]", "num_envs = [true]", ["grid.num_envs = [True]"]),
        ("num_envs = [2, 4]", "", ["grid.num_envs is missing"]),
        ('id = "CartPole-v1"', "id = 3", ["environments[0].id = 3"]),
        ('id = "CartPole-v1"', 'kwargs = "{"', ["environments[0].id is missing", "environments[0].kwargs"]),
        ('contenders = ["plain_loop"]', "contenders = []", ["contenders = []"]),
        ('question = "Which?"', "question = 1\nverdict = 2", ["question = 1", "verdict is not a key"]),
        ('question = "Which?"', 'name = "../up"', ["name = '../up'", "as in a folder's name"]),
        ('question = "Which?"', "seed = 1.5", ["seed = 1.5"]),
        ('question = "Which?"', "question = ", ["not TOML"]),
    ],
)
def test_faults_name_the_file_the_key_what_was_given_and_what_is_allowed(tmp_path, right, broken, words):
    with pytest.raises(ArgumentError) as caught:
        loaded(tmp_path, GOOD.replace(right, broken))

    assert "asked.toml" in str(caught.value)
    assert all(word in str(caught.value) for word in words)


def test_a_recorded_study_keeps_its_name(tmp_path):
    study = loaded(tmp_path, GOOD)
    (tmp_path / "folder").mkdir()
    recorded = tmp_path / "folder" / "study.toml"

    recorded.write_text(study.to_toml())
    assert load_study(recorded).name == "asked"
    recorded.write_text(GOOD)
    assert load_study(recorded).name == "folder"


def test_a_relative_file_is_found_from_the_study_s_folder_upwards(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    text = GOOD.replace("CartPole-v1", "study_user_envs.py:CountingEnv")
    (tmp_path / "results" / "one").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    study = loaded(tmp_path / "results" / "one", text)

    with pytest.raises(ArgumentError) as caught:
        study.environments[0].check()
    (tmp_path / "study_user_envs.py").write_text("from joblib_envs.envs import CountingEnv")
    study.environments[0].check()

    for folder in ("elsewhere", "results/one", "results", "."):
        assert str(tmp_path / folder) in str(caught.value)
    assert str(tmp_path) not in study.to_toml()


def test_a_study_that_is_written_far_from_its_file_finds_it_again(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    for folder in ("mine", "out", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "mine" / "study_far_envs.py").write_text("from joblib_envs.envs import CountingEnv")
    monkeypatch.chdir(tmp_path / "mine")
    for target in ("study_far_envs.py:CountingEnv", f"{tmp_path}/mine/study_far_envs.py:CountingEnv"):
        study = Study("far", (EnvironmentSource(target),), ("plain_loop",), (1,), (1,))
        ResultsFolder(tmp_path / "out").write_study(study)
        monkeypatch.chdir(tmp_path / "elsewhere")

        again = load_study(tmp_path / "out" / "study.toml")

        again.environments[0].check()
        assert str(tmp_path) not in again.to_toml()
        (tmp_path / "out" / "study.toml").unlink()
        monkeypatch.chdir(tmp_path / "mine")


def test_all_faults_are_told_at_once(tmp_path):
    with pytest.raises(ArgumentError) as caught:
        loaded(tmp_path, GOOD.replace("rounds = 0", "rounds = -1").replace("n_jobs = [1]", "n_jobs = [0]"))

    assert len(str(caught.value).splitlines()) == 2


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(ArgumentError, match=r"nowhere\.toml.*No such file"):
        load_study(tmp_path / "nowhere.toml")
