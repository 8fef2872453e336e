"""How the tests make batches: small ones, on one (backend, execution) pair."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from joblib_envs import BatchEnv
from joblib_envs.envs import CountingEnv

DEADLINE_S = 30.0
"""After so long something counts as hanging."""


@dataclass(frozen=True)
class Backend:
    """One way to run a batch."""

    name: str
    execution: str

    @property
    def shares_memory(self):
        return self.name in ("sequential", "threading")

    @property
    def has_processes(self):
        return not self.shares_memory

    def __str__(self):
        return f"{self.name}-{self.execution}"


BACKENDS = [
    *(Backend(name, execution) for name in ("sequential", "threading", "loky") for execution in ("actors", "tasks")),
    Backend("multiprocessing", "tasks"),
]
IN_PROCESS = [backend for backend in BACKENDS if backend.shares_memory]
PROCESSES = [backend for backend in BACKENDS if backend.has_processes]
TRAVELLING = [backend for backend in PROCESSES if backend.execution == "tasks"]


def make_batch(backend, env, num_envs=None, **options):
    """Make a batch with two workers and without a probe, unless told otherwise."""
    settings = {"n_jobs": 2, "probe": False, **options}
    return BatchEnv(env, num_envs, backend=backend.name, execution=backend.execution, **settings)


def counting_batch(backend, num_envs=2, episode_length=100, start=0, **options):
    """Make a batch of environments that count."""
    return make_batch(backend, partial(CountingEnv, episode_length, start), num_envs, **options)


def wait_until(condition, deadline_s=DEADLINE_S):
    """Look again and again until the condition holds; tell whether it did before the deadline."""
    give_up = time.monotonic() + deadline_s
    while time.monotonic() < give_up:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())


def descendants(pid=None):
    """List the living processes below one, without joblib's resource trackers."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [child for child in children if is_running(child) and not _is_tracker(child)]


def is_running(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is_tracker(process):
    try:
        return any("resource_tracker" in part for part in process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def shared_memory_of(pid):
    """List what a process has put into /dev/shm; joblib and loky write its number into the names, between others.

    By itself: joblib's names have hexadecimal numbers as well, in which a short process number is soon found.
    """
    folder = Path("/dev/shm")
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(name for name in names if re.search(rf"(?<![0-9a-z]){pid}(?![0-9a-z])", name))


def start_script(folder, text, **options):
    """Start a Python script that finds joblib_envs and the tests' modules."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parent), str(here)]), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, str(path)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As at a terminal, also where the tests themselves were started in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


@dataclass(frozen=True)
class Ended:
    """How a script ended."""

    pid: int
    returncode: int
    stdout: str
    stderr: str


def run_script(folder, text):
    """Run a script to its end."""
    script = start_script(folder, text)
    try:
        stdout, stderr = script.communicate(timeout=2 * DEADLINE_S)
    except subprocess.TimeoutExpired:
        script.kill()
        raise
    return Ended(script.pid, script.returncode, stdout, stderr)
