"""Describes the machine, as far as it bears on results; never who or where."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import threadpoolctl

from joblib_envs.gil import gil_is_enabled

__all__ = ["describe_machine"]

PACKAGES = (
    "joblib-envs", "gymnasium", "joblib", "numpy", "cloudpickle", "scipy", "pandas",
    "mujoco", "ale-py", "box2d", "minigrid", "gymnasium-robotics", "highway-env", "panda-gym",
    "distributed", "ray", "stable-baselines3",
)  # fmt: skip
"""Those that are installed are named with their versions."""


def describe_machine() -> dict[str, Any]:
    """Return the processor, memory, versions, linear algebra and load, ready for JSON.

    It holds no user, host name or path.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "usable_threads": len(affinity(0)) if affinity else psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "gil": gil_is_enabled(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "blas": _blas(),
        "load_1_min": round(psutil.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1) if match else platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        import joblib_envs

        return joblib_envs.__version__ if name == "joblib-envs" else None


def _blas() -> list[dict[str, Any]]:
    """Return the loaded linear algebra libraries, without their paths."""
    keys = ("internal_api", "version", "threading_layer", "architecture", "num_threads")
    found = [{key: library.get(key) for key in keys} for library in threadpoolctl.threadpool_info()]
    return [each for index, each in enumerate(found) if each not in found[:index]]
