"""The ways to copy an environment that a study of travel compares, behind one small protocol."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import cloudpickle
import gymnasium

from joblib_envs.state.env_state import EnvState
from joblib_envs.state.pickling import CaptureOptions, restored
from joblib_envs.state.snapshot import captured_state

__all__ = ["METHODS", "Method", "select_methods"]

Env: TypeAlias = gymnasium.Env[Any, Any]


class Method(Protocol):
    """One way to copy an environment."""

    @property
    def name(self) -> str:
        """The name in studies and files."""
        ...

    @property
    def title(self) -> str:
        """The name in tables and charts."""
        ...

    @property
    def ours(self) -> bool:
        """Whether it is joblib-envs', which must never be wrong: it proves its way first, or refuses."""
        ...

    @property
    def leaves(self) -> bool:
        """Whether copies leave the process that they were made in."""
        ...

    @property
    def keeps_journal(self) -> bool:
        """Whether the environment must have kept a journal of its calls."""
        ...

    def copy(self, env: Env, options: CaptureOptions) -> Any:
        """Return what travels; ``options`` is the way of capturing that was proven right."""
        ...

    def restore(self, parcel: Any) -> Env:
        """Return the environment that goes on."""
        ...

    def sizes(self, parcel: Any) -> tuple[int, int] | None:
        """Return the bytes that travel each time, and those that do once for each worker."""
        ...


@dataclass(frozen=True)
class Pickling:
    """A pickle, as everybody makes it."""

    name: str
    dumps: Callable[[Any], bytes]
    ours: bool = False
    leaves: bool = True
    keeps_journal: bool = False

    @property
    def title(self) -> str:
        """The name in tables and charts."""
        return self.name

    def copy(self, env: Env, options: CaptureOptions) -> bytes:  # noqa: ARG002
        """Pickle it."""
        return self.dumps(env)

    def restore(self, parcel: bytes) -> Env:
        """Unpickle it."""
        env: Env = pickle.loads(parcel)
        return env

    def sizes(self, parcel: bytes) -> tuple[int, int]:
        """Return the pickle's length."""
        return len(parcel), 0


@dataclass(frozen=True)
class Deepcopy:
    """``copy.deepcopy``, whose copies stay in the process."""

    name: str = "deepcopy"
    title: str = "deepcopy"
    ours: bool = False
    leaves: bool = False
    keeps_journal: bool = False

    def copy(self, env: Env, options: CaptureOptions) -> Env:  # noqa: ARG002
        """Copy it."""
        return copy.deepcopy(env)

    def restore(self, parcel: Env) -> Env:
        """Return the copy itself."""
        return parcel

    def sizes(self, parcel: Env) -> None:
        """Return nothing, since no bytes are made."""


@dataclass(frozen=True)
class OurStates:
    """An ``EnvState`` of joblib-envs, captured or to be replayed."""

    name: str
    title: str
    keeps_journal: bool
    ours: bool = True
    leaves: bool = True

    def copy(self, env: Env, options: CaptureOptions) -> EnvState:
        """Capture it."""
        return captured_state(env, options, is_proven=True)

    def restore(self, parcel: EnvState) -> Env:
        """Restore it."""
        # As tasks execution does: nothing of a copy is kept here either.
        env: Env = restored(parcel.payload, parcel.shared, is_private=True)
        return env

    def sizes(self, parcel: EnvState) -> tuple[int, int]:
        """Return the state's own sizes."""
        return parcel.size, parcel.shared_size


_METHODS: tuple[Method, ...] = (
    Pickling("pickle", pickle.dumps),
    Pickling("cloudpickle", cloudpickle.dumps),
    Deepcopy(),
    OurStates("capture", "ours: capture", keeps_journal=False),
    OurStates("replay", "ours: replay", keeps_journal=True),
)
METHODS: Mapping[str, Method] = {method.name: method for method in _METHODS}


def select_methods(names: tuple[str, ...]) -> list[Method]:
    """Return the methods of these names, in table order."""
    return [method for name, method in METHODS.items() if name in names]
