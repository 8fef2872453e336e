"""A whole batch as bytes or a file: how it was built, each sub-environment's state, and its spaces' generators.

The bytes are those of ``state/container.py``: a checksum stands over everything, and nothing is
unpickled before it has been found right. They hold pickles: load only what you trust.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
from gymnasium.vector import AutoresetMode

from joblib_envs.errors import ArgumentError, ArgumentTypeError, StateFormatError
from joblib_envs.factories import EnvSource, pack_by_value
from joblib_envs.state import container
from joblib_envs.state.env_state import EnvState, check_versions

__all__ = ["BatchSetup", "pack_batch", "read_file", "unpack_batch", "write_file"]

_SPACES = ("single_observation_space", "observation_space", "single_action_space", "action_space")


@dataclass(frozen=True)
class BatchSetup:
    """How a batch was built.

    Attributes:
        source: The factories, and their spec.
        autoreset_mode: As given.
        observation_mode: As given.
        copy: As given.
        state_method: As given.
        probe: As given.
        num_threads: BLAS and OpenMP threads in effect, which decide last bits of linear algebra.
        where: ``backend``, ``n_jobs``, ``execution`` and ``caller_steps`` as given; they don't change the data.
    """

    source: EnvSource
    autoreset_mode: AutoresetMode
    observation_mode: Any
    copy: bool
    state_method: str
    probe: bool
    num_threads: int
    where: dict[str, Any]


def pack_batch(setup: BatchSetup, states: Sequence[EnvState], batch: Any) -> bytes:
    """Join all that a batch can be made from again.

    Raises:
        UnpicklableError: A factory can't be pickled.
    """
    spaces = {name: getattr(batch, name) for name in _SPACES}
    parts = {"setup": pack_by_value(setup, setup.source.factories), "spaces": cloudpickle.dumps(spaces)}
    shared: dict[str, bytes] = {}
    for number, state in enumerate(states):
        for name, part in state.parts().items():
            if name.startswith("shared:"):
                shared[name] = part  # once, however many states refer to it
            else:
                parts[f"{number}:{name}"] = part
    headers = [{**state.header(), "shared": list(state.shared)} for state in states]
    return container.pack("batch", {"states": headers}, {**parts, **shared})


def unpack_batch(data: bytes, what: str) -> tuple[BatchSetup, list[EnvState], dict[str, gymnasium.Space[Any]]]:
    """Take apart what ``pack_batch`` has joined.

    Raises:
        StateFormatError: It was cut or changed, is of something else, or can't be unpickled here.
        StateVersionError: It was made with other versions.
    """
    header, parts = container.unpack(data, "batch", what)
    states = []
    for number, each in enumerate(header["states"]):
        own = {name: parts[f"{number}:{name}"] for name in ("payload", "situation")}
        own.update((f"shared:{key}", parts[f"shared:{key}"]) for key in each["shared"])
        states.append(EnvState.of_parts(each, own))
        check_versions(states[-1])
    try:
        return pickle.loads(parts["setup"]), states, pickle.loads(parts["spaces"])
    except Exception as error:
        raise StateFormatError(
            f"{what} can't be unpickled here ({type(error).__name__}: {error}): the packages and modules that its "
            f"environments come from must be importable"
        ) from error


def write_file(path: Any, data: bytes) -> None:
    """Write a file whole or not at all: a file of that name is replaced when the new one is on the disk.

    Raises:
        ArgumentError: There is something of that name that is no file.
        OSError: It can't be written; a file that was there is as it was.
    """
    target = Path(os.path.realpath(_checked_path(path)))  # what a link leads to, not the link
    if target.exists() and not target.is_file():
        raise ArgumentError(f"path={os.fspath(path)!r} is no file but a folder or a device: give the name of a file")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise type(error)(error.errno, f"{error.strerror}, when a file was to be made beside it", str(target)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def read_file(path: Any) -> bytes:
    """Read a file whole."""
    return _checked_path(path).read_bytes()


def _checked_path(path: Any) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError(f"path={path!r} must be the path of a file, as a string or a pathlib.Path")
    if not os.fspath(path):
        raise ArgumentError("path is empty: give the name of a file")
    return Path(path)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
