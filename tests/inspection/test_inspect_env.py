"""``inspect_env`` and ``joblib-envs inspect`` as a whole, also where an environment fails."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import gymnasium
import pytest
from click.testing import CliRunner
from gymnasium import wrappers

from joblib_envs import ArgumentError, ArgumentTypeError, EnvInsideFactoryError, UnpicklableError, inspect_env
from joblib_envs.cli import main
from joblib_envs.envs import (
    CountingEnv,
    FailingEnv,
    HandleEnv,
)


class SilentlySlowEnv(CountingEnv):
    def step(self, action):
        if self.count == 2:
            time.sleep(3600)
        return super().step(action)


def test_a_whole_inspection_finds_what_travels_and_what_is_lost(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    result = CliRunner().invoke(
        main, ["inspect", "joblib_envs/EzPickledCounting-v0", "--quick", "--json", "found.json"]
    )

    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["env"] == "joblib_envs/EzPickledCounting-v0"
    assert found["layers"] == ["OrderEnforcing", "PassiveEnvChecker", "EzPickledCountingEnv"]
    assert (found["state"]["verdict"], found["replay"]["verdict"]) == ("correct", "correct")
    assert found["state"]["size_bytes"] > 0
    assert found["state"]["trip_us"] > 0
    assert found["replay"]["num_calls"] > 0
    assert found["replay"]["trip_us"] > 0
    assert [each["verdict"] for each in found["copies"]] == ["wrong"] * 3
    assert found["reproducible"]["two_processes"] is True
    assert (found["threads"]["verdict"], found["gil"]["gil"]) == ("correct", "held")
    assert found["exchange"]["exchange_us"] > 0
    assert re.search(r"state travels +yes", result.stdout)
    assert re.search(r"plain pickle +wrong", result.stdout)
    assert "joblib_envs.capture(env) keeps it" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("factory", "fault"),
    [
        (partial(FailingEnv, 1, "init"), "it raises ValueError: init 1 fails in its constructor"),
        (partial(FailingEnv, 1, "reset"), "it raises ValueError: reset 1 fails in the first reset"),
        (partial(FailingEnv, 3, "step", "os_exit"), "it ended its process with exit code 7 in step 3"),
        (partial(FailingEnv, 2, "step", "sys_exit"), "it raises SystemExit: 7 in step 2"),
    ],
)
def test_an_environment_that_fails_itself_is_told_with_the_call(factory, fault):
    found = inspect_env(factory, quick=True)

    assert found.fault == fault
    assert found.costs.step_us is None
    assert fault in " ".join(str(found).split())


def test_an_environment_that_hangs_is_given_up():
    found = inspect_env(SilentlySlowEnv, timeout_s=5)

    assert found.fault == "it hangs: no answer within 5 s in step 3"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((5,), ArgumentTypeError, "environment id"),
        ((CountingEnv(),), EnvInsideFactoryError, "environment object"),
        (([CountingEnv, HandleEnv],), ArgumentError, "one environment at a time"),
        ((partial(wrappers.TimeLimit, threading.Lock()),), UnpicklableError, "can't be pickled"),
    ],
)
def test_what_cannot_be_inspected_is_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        inspect_env(*arguments)


@pytest.mark.parametrize(
    ("options", "error"),
    [({"seed": -1}, ArgumentError), ({"seed": "x"}, ArgumentTypeError), ({"timeout_s": 0}, ArgumentError)],
)
def test_options_that_are_not_allowed_are_refused(options, error):
    with pytest.raises(error):
        inspect_env(CountingEnv, **options)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["CartPol-v1"], "CartPole"),
        (["CartPole-v1", "--env-kwargs", "["], "not JSON"),
        (["CartPole-v1", "--timeout", "nan"], "--timeout"),
        (["CartPole-v1", "--seed", "-1"], "--seed"),
        (["joblib_envs/Failing-v0", "--quick"], "itself fails, so nothing else was tried: it raises ValueError"),
        (["CartPole-v1", "--env-kwargs", '{"size": 5}'], "unexpected keyword argument 'size'"),
    ],
)
def test_faults_end_the_command_with_2_and_a_message(arguments, words):
    result = CliRunner().invoke(main, ["inspect", *arguments])

    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""


def test_help_has_an_example_and_every_exit_code():
    result = CliRunner().invoke(main, ["inspect", "--help"])

    assert "joblib-envs inspect CartPole-v1" in result.stdout
    assert all(code in result.stdout.partition("Exit codes:")[2] for code in ("0", "2", "130", "143"))
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_ctrl_c_ends_the_command_with_130_and_one_line(tmp_path):
    (tmp_path / "inspected_slowly.py").write_text(
        "import pathlib, time\nfrom joblib_envs.envs import CountingEnv\n"
        "class Slow(CountingEnv):\n"
        "    def step(self, action):\n"
        f"        pathlib.Path({str(tmp_path / 'reached')!r}).touch()\n"
        "        time.sleep(3600)\n"
    )
    command = [sys.executable, "-m", "joblib_envs.cli", "inspect", "inspected_slowly.py:Slow"]
    environment = os.environ | {"PYTHONPATH": ":".join(sys.path)}

    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        while not (tmp_path / "reached").exists():
            assert process.poll() is None
            threading.Event().wait(0.05)
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()

    assert process.returncode == 130
    assert errors == "Interrupted.\n"


def test_the_package_loads_no_inspection_until_it_is_asked_for():
    code = "import sys, joblib_envs; print([name for name in sys.modules if name.startswith('joblib_envs.inspection')])"

    output = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True
    )

    assert output.stdout == "[]\n"
    assert gymnasium.spec("joblib_envs/Counting-v0")
