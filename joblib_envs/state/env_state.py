"""EnvState: one environment's state as a value, and the two functions that make and use it."""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.metadata
import pickle
import platform
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import cloudpickle
import gymnasium
from gymnasium.envs.registration import EnvSpec

from joblib_envs.errors import ArgumentTypeError, StateFormatError, StateVersionError
from joblib_envs.state import container
from joblib_envs.state.cargo import Blob

__all__ = ["EnvState", "Situation", "check_versions", "checked_state", "layers_of", "spec_json_of", "versions_of"]

_SHARED = "shared:"


@dataclass(frozen=True)
class Situation:
    """Where in a batch's life a sub-environment was: what the batch knows of it, and it doesn't itself.

    Attributes:
        needs_reset: Why it must be reset before it may step, or None.
        observation: Its last observation, a value for each leaf of the space; None where it never had one.
    """

    needs_reset: str | None = None
    observation: tuple[Any, ...] | None = None

    @classmethod
    def of(cls, state: EnvState) -> Situation:
        """Return a state's situation; that of an environment that no batch has seen, where it has none."""
        situation: Situation = pickle.loads(state.situation) if state.situation else cls()
        return situation

    def into(self, state: EnvState) -> EnvState:
        """Return the state with this situation."""
        return replace(state, situation=cloudpickle.dumps(self))


@dataclass(frozen=True, repr=False)
class EnvState:
    """The state of one environment with its wrappers, which any process can go on from.

    It holds a pickle: restore states only from sources that you trust, since unpickling runs code.

    Attributes:
        method: ``"capture"``, or ``"replay"`` where the environment is made anew and given all its
            calls again.
        payload: The pickle of the environment, or of how to make it and its journal.
        shared: What the payload refers to and a worker needs once, by its SHA-256: simulator models.
        reset_pending: Whether the next step is to reset it (autoreset mode NEXT_STEP).
        situation: The pickle of a :class:`Situation`; empty for a state that comes from no batch.
        spec_json: The environment's spec as JSON, or None where it has none that JSON can hold.
        versions: Of Python and of the packages that made it.
        is_proven: Whether it was tried in fresh processes that such states go on bit for bit.
    """

    method: str
    payload: bytes
    shared: Mapping[str, Blob] = field(default_factory=dict)
    reset_pending: bool = False
    situation: bytes = b""
    spec_json: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    is_proven: bool = False

    version = container.LAYOUT_VERSION
    """The version of the layout of its bytes."""

    @property
    def size(self) -> int:
        """The number of bytes that travel each time: the pickle."""
        return len(self.payload) + len(self.situation)

    @property
    def shared_size(self) -> int:
        """The number of bytes that travel once for each worker: simulator models."""
        return sum(len(blob.data) for blob in self.shared.values())

    @property
    def checksum(self) -> str:
        """The SHA-256 of payload and situation, in hexadecimal."""
        return hashlib.sha256(self.payload + self.situation).hexdigest()

    @property
    def spec(self) -> EnvSpec | None:
        """The environment's spec, where it has one that JSON can hold."""
        return None if self.spec_json is None else EnvSpec.from_json(self.spec_json)

    def __hash__(self) -> int:
        return hash((self.method, self.payload, self.situation))

    def __repr__(self) -> str:
        name = f"{self.spec.id!r}, " if self.spec is not None else ""
        return f"EnvState({name}method={self.method!r}, size={self.size}, shared_size={self.shared_size})"

    def to_bytes(self) -> bytes:
        """Return everything as bytes with a checksum, for a file or another process."""
        return container.pack("state", self.header(), self.parts())

    @classmethod
    def from_bytes(cls, data: bytes) -> EnvState:
        """Read what ``to_bytes`` has written; nothing is unpickled by that.

        Raises:
            ArgumentTypeError: ``data`` are no bytes.
            StateFormatError: They are no state, or were cut or changed.
            StateVersionError: They are of another version of the layout.
        """
        header, parts = container.unpack(data, "state", "the state")
        return cls.of_parts(header, parts)

    def header(self) -> dict[str, Any]:
        """Return what of it JSON can hold."""
        return {
            "method": self.method,
            "spec": self.spec_json,
            "versions": dict(self.versions),
            "is_proven": self.is_proven,
            "reset_pending": self.reset_pending,
        }

    def parts(self) -> dict[str, bytes]:
        """Return what of it are bytes."""
        shared = {f"{_SHARED}{key}": blob.data for key, blob in self.shared.items()}
        return {"payload": self.payload, "situation": self.situation, **shared}

    @classmethod
    def of_parts(cls, header: Mapping[str, Any], parts: Mapping[str, bytes]) -> EnvState:
        """Put a state together from its header and its parts."""
        try:
            shared = {
                name.removeprefix(_SHARED): Blob.of(part) for name, part in parts.items() if name.startswith(_SHARED)
            }
            return cls(
                header["method"],
                parts["payload"],
                shared,
                header["reset_pending"],
                parts["situation"],
                header["spec"],
                header["versions"],
                header["is_proven"],
            )
        except (KeyError, TypeError) as error:
            raise StateFormatError(f"the state has no {error}, which each has: another program wrote it") from error


@functools.cache
def _version_of(name: str) -> str:
    """Return an installed distribution's version; empty where it isn't installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python, of joblib-envs and of some packages."""
    return {"python": platform.python_version(), **{name: _version_of(name) for name in ("joblib-envs", *packages)}}


def check_versions(state: EnvState) -> None:
    """Refuse a state that this process may read wrongly.

    Python's minor version must be the same, since functions travel as bytecode, and so must the
    first two numbers of each package whose objects' insides are in the state.

    Raises:
        StateVersionError: It was made with other versions.
    """
    different = []
    for name, made_with in state.versions.items():
        here = platform.python_version() if name == "python" else _version_of(name)
        if name != "joblib-envs" and _series(made_with) != _series(here):
            different.append(f"{name} {made_with} (here {here or 'not installed'})")
    if different:
        raise StateVersionError(
            f"the state was made with {', '.join(different)}, whose objects may be different inside: restore it with "
            f"those versions, or with strict=False, which takes the risk of an error or of wrong data"
        )


def _series(version: str) -> list[str]:
    return version.split(".")[:2]


def spec_json_of(env: gymnasium.Env[Any, Any]) -> str | None:
    """Return an environment's spec as JSON, where it has one that JSON can hold."""
    try:
        spec = env.spec
        if spec is None:
            return None
        # To compare specs takes a tenth of the time that it takes to write one.
        known = next((text for other, text in tuple(_written) if other == spec), None)
        if known is None:
            known = spec.to_json()
            _written.append((copy.deepcopy(spec), known))
    except Exception:  # arguments that JSON can't hold
        return None
    return known


_written: deque[tuple[EnvSpec, str]] = deque(maxlen=8)


def layers_of(env: gymnasium.Env[Any, Any]) -> tuple[str, ...]:
    """Name the types of an environment's wrappers and of itself, the outermost first."""
    names = []
    while True:
        names.append(f"{type(env).__module__}.{type(env).__qualname__}")
        if not isinstance(env, gymnasium.Wrapper):
            return tuple(names)
        env = env.env


def checked_state(state: Any, name: str = "state") -> EnvState:
    """Refuse what is no state.

    Raises:
        ArgumentTypeError: It is something else.
    """
    if not isinstance(state, EnvState):
        hint = ": read it with EnvState.from_bytes first" if isinstance(state, bytes) else ""
        raise ArgumentTypeError(f"{name} must be an EnvState, not {type(state).__name__}{hint}")
    return state
