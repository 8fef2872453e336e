"""State adapters: what to keep, by type, of objects whose state lives in native code or can be made again.

An adapter is a function as for :func:`copyreg.pickle`: it takes the object and returns
``(function, arguments)``, or one of the longer tuples that ``object.__reduce__`` may return.
The function must be importable, since another process calls it to make the object again. It
is given a :class:`~joblib_envs.state.cargo.Departure` beside the object, where it can leave
what is large and seldom changes to be sent once for each worker.

A package brings adapters without being imported here, by an entry point in the group
``joblib_envs.state_adapters`` whose name is the type and whose value is the adapter::

    [project.entry-points."joblib_envs.state_adapters"]
    "my_simulator.World" = "my_simulator.travel:reduce_world"
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from joblib_envs.errors import ArgumentTypeError
from joblib_envs.state.cargo import Departure

__all__ = [
    "StateAdapter",
    "adapter_of",
    "generation",
    "qualified_name",
    "register_state_adapter",
    "registered",
    "take_registered",
]

StateAdapter: TypeAlias = Callable[[Any, Departure], tuple[Any, ...]]

ENTRY_POINT_GROUP = "joblib_envs.state_adapters"

_OWN: dict[str, str] = {
    "joblib_envs.state.journal.JournaledEnv": "joblib_envs.state.journal:reduce_journaled_env",
    "mujoco._structs.MjModel": "joblib_envs.state.mujoco_objects:reduce_model",
    "mujoco._structs.MjData": "joblib_envs.state.mujoco_objects:reduce_data",
    "gymnasium.envs.mujoco.mujoco_rendering.MujocoRenderer": "joblib_envs.state.drawings:reduce_mujoco_renderer",
    "ale_py.env.AtariEnv": "joblib_envs.state.atari:reduce_atari_env",
    "pygame.surface.Surface": "joblib_envs.state.drawings:reduce_surface",
    "pygame.time.Clock": "joblib_envs.state.drawings:reduce_clock",
}
"""By the type's name, so that a package is imported only where an environment has imported it."""

_registered: dict[str, StateAdapter] = {}


class _Registry:
    generation = 0
    """Counts the changes, for those who remember what :func:`adapter_of` said."""


def register_state_adapter(kind: type | str, adapter: StateAdapter) -> None:
    """Say how the state of objects of a type, and of its subclasses, is kept.

    It goes before the type's own pickling, and before an adapter that was registered earlier.
    Batches that are built from now on send it to their workers.

    Args:
        kind: The type, or its module and name, as in ``"my_simulator.World"``.
        adapter: ``adapter(object, departure)``, which returns what ``object.__reduce__`` would.

    Raises:
        ArgumentTypeError: ``kind`` is no type and no name, or ``adapter`` can't be called.

    Example:
        >>> class Handle:
        ...     def __init__(self, total):
        ...         self.total = total
        >>> register_state_adapter(Handle, lambda handle, departure: (Handle, (handle.total,)))
    """
    if not isinstance(kind, type | str) or (isinstance(kind, str) and "." not in kind.strip(".")):
        raise ArgumentTypeError(f"kind={kind!r} must be a type, or its name as in 'my_simulator.World'")
    if not callable(adapter):
        raise ArgumentTypeError(
            f"adapter={adapter!r} must be a function of the object and the departure that returns what "
            f"object.__reduce__ would: a function that makes it again, and its arguments"
        )
    _registered[kind if isinstance(kind, str) else qualified_name(kind)] = adapter
    _changed()


def generation() -> int:
    """Return a number that changes with each registration."""
    return _Registry.generation


def _changed() -> None:
    adapter_of.cache_clear()
    _Registry.generation += 1


def registered() -> Mapping[str, StateAdapter]:
    """Return what was registered in this process, for its workers to know too."""
    return dict(_registered)


def take_registered(adapters: Mapping[str, StateAdapter]) -> None:
    """Register, in a worker, what the caller has registered."""
    if any(_registered.get(name) is not adapter for name, adapter in adapters.items()):
        _registered.update(adapters)
        _changed()


def qualified_name(kind: type) -> str:
    """Return a type's name as adapters are registered by."""
    return f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def adapter_of(kind: Any) -> StateAdapter | None:
    """Find the adapter of a type: that of the nearest of its bases that has one."""
    for base in inspect.getmro(kind):
        name = qualified_name(base)
        if name in _registered:
            return _registered[name]
        if name in _entry_points():
            adapter: StateAdapter = _entry_points()[name].load()
            return adapter
        if name in _OWN:
            module, _, function = _OWN[name].partition(":")
            own: StateAdapter = getattr(importlib.import_module(module), function)
            return own
    return None


@functools.cache
def _entry_points() -> Mapping[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}
