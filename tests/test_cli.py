import csv
import json
import os
import platform
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from joblib_envs.cli import main
from joblib_envs.equality import Verdict
from joblib_envs.gil import gil_is_enabled
from joblib_envs.harness import contenders, progress
from joblib_envs.harness.environments import EnvironmentSource
from joblib_envs.harness.progress import LineProgress
from joblib_envs.harness.records import Cell, Judgement, Metric, Sample
from joblib_envs.harness.results import ResultsFolder
from joblib_envs.harness.study import Study

STUDY = """
question = "Which?"
contenders = {contenders}
environments = [{{ id = "CartPole-v1" }}]
[grid]
num_envs = [2]
n_jobs = [1]
[timing]
rounds = 2
min_time_s = 0.001
quick = true
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Work in an empty folder, without leaving anything on the path."""
    monkeypatch.setattr(sys, "path", [str(Path(path).absolute()) for path in sys.path])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def few(monkeypatch):
    """Let only the quick contenders be known, so that a comparison takes seconds."""
    known = contenders.all_contenders()
    names = ["plain_loop", "half_joblib", "batch_env/sequential/actors"]
    monkeypatch.setattr("joblib_envs.harness.comparison.all_contenders", lambda: {n: known[n] for n in names})


def called(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def written(folder, text=STUDY, names=("plain_loop", "half_joblib")):
    path = folder / "asked.toml"
    path.write_text(text.format(contenders=json.dumps(list(names))))
    return path


def test_compare_shows_verdicts_a_recommendation_and_how_to_repeat(folder, few):
    result = called("compare", "CartPole-v1", "--num-envs", 2, "--n-jobs", 1, "--quick")

    assert result.exit_code == 0, result.output
    assert re.search(r"plain loop\s+correct", result.stdout)
    assert re.search(r"joblib loop: steps only\s+wrong", result.stdout)
    assert "step 2, sub-environment 0: observations[0, 0] should be" in result.stdout.replace("\n", " ")
    (results,) = (folder / "results").iterdir()
    assert results.name.startswith("compare-CartPole-v1-")
    assert f"reproduce: joblib-envs run results/{results.name}/study.toml" in result.stdout
    names = {path.relative_to(results).as_posix() for path in results.rglob("*.*")}
    assert names == {
        "charts/throughput.png",
        "charts/throughput.svg",
        "machine.json",
        "measurements.csv",
        "study.toml",
        "verdicts.csv",
    }


def test_the_generated_study_can_be_run_again(folder, monkeypatch):
    known = contenders.all_contenders()
    monkeypatch.setattr("joblib_envs.harness.comparison.all_contenders", lambda: {"plain_loop": known["plain_loop"]})
    called("compare", "CartPole-v1", "--num-envs", 2, "--n-jobs", 1, "--quick", "--out", "first")

    result = called("run", "first/study.toml", "--out", "second")

    assert result.exit_code == 0, result.output
    verdicts = [list(csv.DictReader((folder / name / "verdicts.csv").open())) for name in ("first", "second")]
    assert verdicts[0] == verdicts[1]


def test_json_is_all_there_is_on_stdout(folder):
    result = called("run", written(folder), "--json", "-")

    (cell,) = json.loads(result.stdout)["cells"]
    assert json.loads(result.stdout)["study"] == "asked"
    assert {line["contender"]: line["verdict"] for line in cell["lines"]}["half_joblib"] == "wrong"
    assert cell["recommendation"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "NoSuchEnv-v7"], "NoSuchEnv"),
        (["compare", "no_such_file.py:make"], "there is no file"),
        (["compare", "CartPole-v1", "--env-kwargs", "{"], "not JSON"),
        (["compare", "CartPole-v1", "--env-kwargs", "[1]"], "not a JSON object"),
        (["compare", "CartPole-v1", "--n-jobs", "0"], "--n-jobs 0"),
        (["compare", "CartPole-v1", "--num-envs", "0"], "--num-envs"),
        (["compare", "CartPole-v1", "--backend", "carrier_pigeon"], "carrier_pigeon"),
        (["compare", "CartPole-v1", "--backend", "ray"], "register_ray()"),
        (["compare", "CartPole-v1", "--execution", "dreams"], "actors, tasks"),
        (["compare", "CartPole-v1", "--colour"], "--colour"),
        (["run", "nowhere.toml"], "nowhere.toml"),
        (["plot", "nowhere"], "not a results folder"),
    ],
)
def test_faults_in_what_was_given_end_with_2_and_a_message(folder, arguments, words):
    result = called(*arguments)

    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.output
    assert not (folder / "results").exists()


def test_an_environment_that_raises_is_said_to_be_at_fault(folder, few):
    (folder / "cli_user_env.py").write_text(
        "from joblib_envs.envs import FailingEnv\ndef make():\n    return FailingEnv(fail_at=2)\n"
    )

    result = called("compare", "cli_user_env.py:make", "--quick")

    assert result.exit_code == 2
    assert "cli_user_env.py:make itself fails, so no contender was run: ValueError" in result.stderr
    assert "step 2" in result.stderr
    assert result.output.count("ValueError") == 1
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("raise DependencyNotInstalled('run `pip install \"gymnasium[mujoco]\"`')", "gymnasium[mujoco]"),
        ("raise TypeError('no such argument')", "--env-kwargs"),
    ],
)
def test_an_environment_that_cannot_be_made_is_told_once_with_what_to_do(folder, few, line, words):
    text = f"from gymnasium.error import DependencyNotInstalled\ndef make():\n    {line}\n"
    (folder / "cli_unmade_env.py").write_text(text)
    sys.modules.pop("cli_unmade_env", None)

    result = called("compare", "cli_unmade_env.py:make", "--quick")

    assert result.exit_code == 2
    assert words in result.stderr
    assert ("install what is missing" in result.stderr) == ("mujoco" in words)
    assert result.output.count("itself fails") == 1
    assert "raises" not in result.output


def test_a_folder_that_holds_something_is_refused(folder, few):
    (folder / "full").mkdir()
    (folder / "full" / "precious").touch()

    result = called("compare", "CartPole-v1", "--quick", "--out", "full")

    assert result.exit_code == 2
    assert "not empty" in result.stderr
    assert [path.name for path in (folder / "full").iterdir()] == ["precious"]


def test_run_takes_another_name_where_results_are_recorded(folder):
    study = written(folder, names=["plain_loop"])

    first, second = called("run", study), called("run", study)

    assert (first.exit_code, second.exit_code) == (0, 0)
    assert sorted(path.name for path in (folder / "results").iterdir()) == ["asked", "asked-2"]


def test_a_wrong_verdict_on_ours_ends_with_1(folder, monkeypatch):
    half = contenders._REGISTERED["half_joblib"]
    ours = contenders.LoopContender("ours", "ours", half.loop, ours=True)
    monkeypatch.setitem(contenders._REGISTERED, "ours", ours)

    assert called("run", written(folder, names=["ours"])).exit_code == 1


def test_a_study_reaches_a_contender_of_the_user_s_own(folder, monkeypatch):
    monkeypatch.setattr(contenders, "_REGISTERED", dict(contenders._REGISTERED))
    (folder / "studies").mkdir()
    (folder / "cli_user_contenders.py").write_text(
        "from joblib_envs.harness.contenders import LoopContender, register_contender\n"
        "from joblib_envs.harness.loops import PlainLoop\n"
        "class MyLoop(PlainLoop):\n    pass\n"
        "register_contender(LoopContender('my_loop', 'my loop', MyLoop))\n"
    )
    study = written(folder / "studies", 'import = ["cli_user_contenders"]\n' + STUDY, names=["my_loop"])

    first = called("run", study, "--out", "first")
    again = called("run", "first/study.toml")

    assert (first.exit_code, again.exit_code) == (0, 0), first.output + again.output
    assert re.search(r"my loop\s+correct", again.stdout)


def test_a_module_that_is_not_there_is_told(folder):
    result = called("run", written(folder, 'import = ["cli_no_such_module"]\n' + STUDY))

    assert result.exit_code == 2
    assert "cli_no_such_module" in result.stderr
    assert str(folder) in result.stderr


def test_an_unknown_contender_is_told_before_anything_runs(folder):
    result = called("run", written(folder, names=["plain_loup"]))

    assert result.exit_code == 2
    assert "plain_loup" in result.stderr
    assert "plain_loop" in result.stderr
    assert not (folder / "results").exists()


def test_plot_draws_from_the_recorded_data_alone(folder):
    called("run", written(folder, names=["plain_loop"]), "--out", "out")
    (folder / "asked.toml").unlink()
    (folder / "out" / "charts" / "throughput.png").unlink()

    result = called("plot", "out")

    assert result.exit_code == 0
    assert (folder / "out" / "charts" / "throughput.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("verdicts.csv", lambda text: text.replace(",correct,", ",corre"), "verdicts.csv"),
        ("verdicts.csv", lambda text: text.replace(",correct,", ",fine,"), "verdict is fine"),
        ("verdicts.csv", lambda text: text.replace("CartPole-v1", "Other-v1"), "environment is Other-v1"),
        ("verdicts.csv", lambda text: text.splitlines()[0] + "\n", "holds no verdicts"),
        ("verdicts.csv", lambda text: "", "can't be read"),
        ("measurements.csv", lambda text: text[:-9], "measurements.csv' is cut"),
        ("measurements.csv", lambda text: text.rpartition(",")[0] + "\n", "measurements.csv' is cut or not"),
        ("measurements.csv", lambda text: "a,b\n1,2\n", "lacks the columns"),
        ("study.toml", None, "not a results folder"),
    ],
)
def test_plot_says_what_is_wrong_with_a_file(folder, file, change, words):
    cell = Cell(EnvironmentSource("CartPole-v1"), 2, 1, seed=0)
    results = ResultsFolder(folder / "out")
    results.write_study(Study("asked", (cell.environment,), ("plain_loop",), (2,), (1,)))
    results.write_machine({})
    results.set_verdict(cell, "plain_loop", "plain loop", Judgement(Verdict.CORRECT), ours=False)
    results.add_sample(cell, Sample("plain_loop", Metric.THROUGHPUT, 1234.5, cpu_s=0.123456789))
    path = folder / "out" / file
    path.unlink() if change is None else path.write_text(change(path.read_text()))

    result = called("plot", "out")

    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""


def test_an_interrupt_keeps_the_files_and_ends_with_130(folder, monkeypatch):
    class Impatient(LineProgress):
        def begin(self, text):
            if text.startswith("timing, round 2"):
                raise KeyboardInterrupt

    monkeypatch.setattr(progress, "progress_on", Impatient)

    result = called("run", written(folder))

    assert result.exit_code == 130
    assert result.stderr.endswith("\nInterrupted; what was measured so far is in results/asked\n")
    verdicts = list(csv.DictReader((folder / "results/asked/verdicts.csv").open()))
    assert [row["verdict"] for row in verdicts] == ["correct", "wrong"]
    measured = list(csv.DictReader((folder / "results/asked/measurements.csv").open()))
    assert measured[-1]["metric"] == "env_steps_per_s"


@contextmanager
def started(study, until, **environment):
    """Run the command in a process of its own until a line of its progress has come."""

    def heed_signals():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # it is ignored in a script's background jobs

    command = [sys.executable, "-m", "joblib_envs.cli", "run", str(study)]
    environment = os.environ | environment | {"PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=heed_signals
    ) as process:
        next(line for line in process.stderr if line.startswith(until))
        yield process


def test_ctrl_c_leaves_one_line(folder):
    with started(written(folder), "judging joblib loop") as process:
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()

    assert process.returncode == 130
    assert rest.splitlines()[-1] == "Interrupted; what was measured so far is in results/asked"
    assert "Traceback" not in rest
    assert (folder / "results/asked/verdicts.csv").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_command_that_is_ended_leaves_no_process_and_no_file(folder, number, code):
    (folder / "temp").mkdir()
    study = written(folder, STUDY.replace("rounds = 2", "rounds = 10000"), names=["plain_loop", "repaired_joblib"])

    with started(study, "timing, round 2", JOBLIB_TEMP_FOLDER=str(folder / "temp")) as process:
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        process.wait()
        _, left = psutil.wait_procs(below, timeout=30)
        for each in left:
            each.kill()

    assert process.returncode == code
    assert len(below) > 2
    assert left == []
    assert list((folder / "temp").iterdir()) == []


def test_list_shows_backends_contenders_studies_and_results(folder):
    (folder / "experiments").mkdir()
    written(folder / "experiments", STUDY.replace("Which?", "Which? " + 40 * "word after "))

    result = called("list")

    assert result.exit_code == 0
    for words in ("loky", "actors, tasks", "naive_joblib", "asked", "Which?", platform.python_version()):
        assert words in result.stdout
    assert f"the GIL is {'on' if gil_is_enabled() else 'off'}" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize("command", [[], ["compare"], ["run"], ["plot"], ["list"]])
def test_help_shows_an_example(command):
    result = called(*command, "--help")

    assert result.exit_code == 0
    assert re.search(r"Examples?:\n +joblib-envs ", result.stdout)


def test_help_is_whole_and_names_every_exit_code():
    for command in ("compare", "run"):
        (codes,) = re.findall(r"\n\n  Exit codes:\n((?:    .*\n)+)", called(command, "--help").stdout)
        assert all(code in codes for code in ("0", "1", "2", "130", "143"))
        assert max(map(len, called(command, "--help").stdout.splitlines())) <= 80
    assert "..." not in called("--help").stdout.partition("Commands:")[2]


def test_the_command_starts_without_the_heavy_packages():
    code = (
        "import sys, joblib_envs, joblib_envs.cli;print({'pandas', 'matplotlib', 'rich', 'scipy'} & set(sys.modules))"
    )

    output = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True
    )

    assert output.stdout == "set()\n"


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_time_that_is_no_number_is_refused(value: str) -> None:
    result = CliRunner().invoke(main, ["compare", "CartPole-v1", "--min-time", value])

    assert result.exit_code == 2
    assert "--min-time" in result.output
