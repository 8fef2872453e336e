"""From what the user gives (an id, a spec, a factory, a list of factories) to one factory per sub-environment."""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
from gymnasium.envs.registration import (
    EnvSpec,
    find_highest_version,
    get_env_id,
    load_env_creator,
    parse_env_id,
    registry,
)
from gymnasium.vector import AutoresetMode

from joblib_envs.errors import ArgumentError, ArgumentTypeError, EnvInsideFactoryError, UnpicklableError
from joblib_envs.failures import Failure
from joblib_envs.shard import EnvFactory, Shard
from joblib_envs.state.journal import journaled

__all__ = [
    "Construction",
    "EnvSource",
    "SpecFactory",
    "check_factories",
    "different_factories",
    "pack_by_value",
    "packed_factories",
    "source_of",
]

Wrapper = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]


@dataclass(frozen=True)
class EnvSource:
    """The factories of a batch, one for each sub-environment, and the spec they come from."""

    factories: tuple[EnvFactory, ...]
    spec: EnvSpec | None = None

    def journaled(self) -> EnvSource:
        """Return factories whose environments keep a journal of all that is done with them.

        Raises:
            UnpicklableError: One can't be pickled, hence not be a part of a journal.
        """
        check_factories(self.factories, must_travel=True)
        packed = zip(different_factories(self.factories), packed_factories(self.factories), strict=True)
        made = {id(factory): functools.partial(journaled, data) for factory, data in packed}
        return replace(self, factories=tuple(made[id(factory)] for factory in self.factories))


@dataclass(frozen=True, eq=False)
class SpecFactory:
    """Make an environment from its spec.

    The spec travels, not the id, so that ids known only to the caller's script work in workers.
    """

    spec: EnvSpec
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: tuple[Wrapper, ...] = ()

    @classmethod
    def of(cls, spec: EnvSpec, env_kwargs: dict[str, Any], wrappers: tuple[Wrapper, ...]) -> SpecFactory:
        """Make the factory; what a worker couldn't import is resolved here and travels by value."""
        added: tuple[Wrapper, ...] = ()
        portable = _portable_spec(spec)
        if not all(_workers_import(wrapper.entry_point) for wrapper in spec.additional_wrappers):
            # Gymnasium loads a spec's wrappers by name only, so all of them are applied here, in order.
            added = tuple(
                functools.partial(_wrap, load_env_creator(wrapper.entry_point), wrapper.kwargs or {})
                for wrapper in spec.additional_wrappers
            )
            portable.additional_wrappers = ()
        return cls(portable, env_kwargs, (*added, *wrappers))

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Make and wrap one environment."""
        env = gymnasium.make(self.spec, **copy.deepcopy(self.env_kwargs))
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env


def _wrap(creator: Callable[..., Any], kwargs: dict[str, Any], env: gymnasium.Env[Any, Any]) -> Any:
    return creator(env=env, **copy.deepcopy(kwargs))


@dataclass(frozen=True, eq=False)
class WrappedFactory:
    """Make an environment by the user's factory, then wrap it."""

    factory: Callable[..., gymnasium.Env[Any, Any]]
    env_kwargs: dict[str, Any]
    wrappers: tuple[Wrapper, ...]

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Make and wrap one environment."""
        env = self.factory(**copy.deepcopy(self.env_kwargs))
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env


@dataclass(frozen=True)
class Construction:
    """All that a worker needs to make its shard.

    Attributes:
        factories: One for each of the shard's sub-environments.
        indices: Their places in the batch.
        autoreset_mode: The batch's.
    """

    factories: tuple[EnvFactory, ...]
    indices: range
    autoreset_mode: AutoresetMode

    def build(self) -> Shard | Failure:
        """Make the sub-environments."""
        return Shard.build(self.factories, self.indices.start, self.autoreset_mode)

    def packed(self) -> bytes:
        """Pickle the call of ``build`` for a worker process."""
        specs = _caller_specs()
        knowing = tuple(_KnowingSpecs(factory, specs) for factory in self.factories)
        return _pack(replace(self, factories=knowing).build, self.factories)


@dataclass(frozen=True, eq=False)
class _KnowingSpecs:
    """A factory that may call ``gymnasium.make`` with an id that only the caller's script registered."""

    factory: EnvFactory
    specs: _CallerSpecs

    def __call__(self) -> gymnasium.Env[Any, Any]:
        try:
            return self.factory()
        except gymnasium.error.UnregisteredEnv:
            # Not before: packages register their environments when they are imported here, and
            # Gymnasium warns of each id that it knows already.
            self.specs.make_known()
            return self.factory()


def source_of(env: Any, num_envs: Any, wrappers: Iterable[Wrapper], env_kwargs: dict[str, Any] | None) -> EnvSource:
    """Turn the user's arguments into factories.

    Raises:
        ArgumentError: ``num_envs`` isn't a positive number, or not the list's length.
        ArgumentTypeError: ``env`` is none of what is allowed.
        EnvInsideFactoryError: ``env`` is an environment, or a list with one in it.
        gymnasium.error.UnregisteredEnv: The id is unknown.
    """
    if not isinstance(env_kwargs, Mapping | None):
        raise ArgumentTypeError(f"env_kwargs={env_kwargs!r} must be a dictionary, of the environment's arguments")
    kwargs = dict(env_kwargs or {})
    chain = _checked_wrappers(wrappers)
    if isinstance(env, EnvSource):  # of a batch that was saved
        return env
    if isinstance(env, gymnasium.Env):
        raise _env_given("env is")
    if isinstance(env, str | EnvSpec):
        spec = env if isinstance(env, EnvSpec) else _find_spec(env)
        factory: EnvFactory = SpecFactory.of(spec, kwargs, chain)
        return EnvSource((factory,) * _checked_num_envs(num_envs, 1), copy.deepcopy(spec))
    if isinstance(env, Iterable) and not callable(env):
        return _source_of_list(list(env), num_envs, kwargs, chain)
    if not callable(env):
        raise ArgumentTypeError(
            f"env is {env!r} ({type(env).__name__}), but must be an environment id such as 'CartPole-v1', an EnvSpec, "
            f"a function that makes an environment, or a list of such functions"
        )
    factory = WrappedFactory(env, kwargs, chain) if kwargs or chain else env
    return EnvSource((factory,) * _checked_num_envs(num_envs, 1))


def check_factories(factories: Sequence[EnvFactory], *, must_travel: bool) -> None:
    """Refuse factories that hold an ``Env``, and, where they must travel, those that can't.

    Raises:
        EnvInsideFactoryError: A factory refers to an environment object.
        UnpicklableError: A factory can't be pickled and ``must_travel``.
    """
    for index, factory in enumerate(factories):
        if index and any(factory is earlier for earlier in (factories[0], factories[index - 1])):
            continue
        finder = _EnvFinder()
        try:
            finder.dump(factory)
        except EnvInsideFactoryError:
            raise
        except Exception as error:
            if must_travel:
                raise UnpicklableError(
                    f"the factory of sub-environment {index} can't be pickled, so it can't reach a worker process: "
                    f"{type(error).__name__}: {error}. Make such objects inside the factory, or use "
                    f"backend='threading' or 'sequential', which need no pickling"
                ) from error
        if must_travel and finder.state is not None and len(factories) > 1:
            _warn_of_state(finder.state, index)


def _warn_of_state(found: Any, index: int) -> None:
    warnings.warn(
        f"the factory of sub-environment {index} refers to {type(found).__name__}, of which each worker process gets a "
        f"copy: what factories draw from it depends on the number of workers. Draw first, and give each factory its "
        f"value, as in [functools.partial(make, length) for length in lengths]",
        stacklevel=4,
    )


def packed_factories(factories: Sequence[EnvFactory]) -> list[bytes]:
    """Pickle each different factory once, as a function that a fresh process can call."""
    specs = _caller_specs()
    return [_pack(_KnowingSpecs(factory, specs), [factory]) for factory in different_factories(factories)]


def different_factories(factories: Sequence[EnvFactory]) -> list[EnvFactory]:
    """Return each factory once; some can't be hashed."""
    return list({id(factory): factory for factory in factories}.values())


def pack_by_value(value: Any, factories: Sequence[EnvFactory]) -> bytes:
    """Pickle something that holds factories, by value where another process couldn't import what they refer to.

    Raises:
        UnpicklableError: It can't be pickled.
    """
    try:
        return _pack(value, factories)
    except Exception as error:
        raise UnpicklableError(
            f"a factory can't be pickled, so it can't be saved: {type(error).__name__}: {error}. Make such objects "
            f"inside the factory"
        ) from error


def _pack(call: Any, factories: Sequence[EnvFactory]) -> bytes:
    """Pickle a call, by value where the worker couldn't import what it refers to."""
    with _by_value(factories):
        data: bytes = cloudpickle.dumps(call)
    return data


class _NullFile:
    def write(self, data: bytes) -> int:
        return len(data)


class _EnvFinder(cloudpickle.Pickler):  # type: ignore[misc]
    """Walks what a factory refers to as a pickle would, and keeps nothing."""

    def __init__(self) -> None:
        # Large arrays are passed over: their buffers aren't copied.
        super().__init__(_NullFile(), protocol=5, buffer_callback=lambda _buffer: None)

        self.state: Any = None
        self._of_spaces: set[int] = set()

    def persistent_id(self, value: Any) -> None:
        if isinstance(value, gymnasium.Env):
            raise _env_given("a factory refers to")
        if isinstance(value, gymnasium.Space):
            self._of_spaces.add(id(value._np_random))  # for sampling: seeded where it is used
        elif id(value) in self._of_spaces:
            pass
        elif isinstance(value, np.random.Generator | np.random.RandomState | random.Random | Iterator):
            self.state = value


def _env_given(where: str) -> EnvInsideFactoryError:
    return EnvInsideFactoryError(
        f"{where} an environment object, which would be shared by all sub-environments in one process and be copied "
        f"in others: give the id, or a function that makes a new environment at each call, "
        f"as in `BatchEnv(lambda: gymnasium.make('CartPole-v1'), 4)`"
    )


def _source_of_list(items: list[Any], num_envs: Any, kwargs: dict[str, Any], chain: tuple[Wrapper, ...]) -> EnvSource:
    if any(isinstance(item, gymnasium.Env) for item in items):
        raise _env_given("the list holds")
    if not items or not all(callable(item) for item in items):
        raise ArgumentTypeError(
            f"a list of environments must hold functions, one for each sub-environment, each of which makes an "
            f"environment; got {items!r:.200}"
        )
    if num_envs is not None and _checked_num_envs(num_envs, 1) != len(items):
        raise ArgumentError(
            f"num_envs={num_envs} was given with a list of {len(items)} factories: leave num_envs out, "
            f"or make the list that long"
        )
    return EnvSource(tuple(WrappedFactory(item, kwargs, chain) if kwargs or chain else item for item in items))


def _checked_num_envs(num_envs: Any, default: int) -> int:
    if num_envs is None:
        return default
    if not isinstance(num_envs, Integral) or isinstance(num_envs, bool):
        raise ArgumentTypeError(f"num_envs={num_envs!r} must be a whole number of sub-environments, 1 or more")
    if num_envs < 1:
        raise ArgumentError(f"num_envs={num_envs} must be 1 or more")
    return int(num_envs)


def _checked_wrappers(wrappers: Any) -> tuple[Wrapper, ...]:
    if callable(wrappers) or not isinstance(wrappers, Iterable):
        raise ArgumentTypeError(f"wrappers={wrappers!r} must be a sequence of wrappers, as in wrappers=(TimeAware,)")
    chain = tuple(wrappers)
    for wrapper in chain:
        if not callable(wrapper):
            raise ArgumentTypeError(f"each of wrappers must be a function of an environment; got {wrapper!r}")
    return chain


def _find_spec(env_id: str) -> EnvSpec:
    """Find a spec as ``gymnasium.make`` does: ``module:Id-v0`` imports the module, no version means the newest."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    if name not in registry:
        try:
            namespace, plain, version = parse_env_id(name)
            newest = find_highest_version(namespace, plain) if version is None else None
        except gymnasium.error.Error:
            newest = None
        if newest is not None:
            name = get_env_id(namespace, plain, newest)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        error.add_note(
            f"{env_id!r} is no environment id that Gymnasium knows: import the package that registers it first, or "
            f"give it as 'module:Id-v0'; gymnasium.pprint_registry() lists the ids"
        )
        raise


def _portable_spec(spec: EnvSpec) -> EnvSpec:
    """Return a spec whose entry point a worker can load: one that it couldn't import is resolved here."""
    portable = copy.copy(spec)
    if isinstance(spec.entry_point, str) and not _workers_import(spec.entry_point):
        portable.entry_point = load_env_creator(spec.entry_point)  # type: ignore[assignment]
    return portable


def _workers_import(entry_point: str) -> bool:
    return _is_importable(entry_point.split(":")[0])


def _is_importable(module: str) -> bool:
    """Tell whether another process can import a module: made in memory, or the script itself, it can't."""
    if module == "__main__":
        return False
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False


@dataclass(frozen=True, eq=False)
class _CallerSpecs:
    """The registered environments that a fresh process, which imports Gymnasium, wouldn't know.

    Attributes:
        specs: Their specs.
        wrappers: What the names of their wrappers stand for, where a worker can't import them.
    """

    specs: tuple[EnvSpec, ...]
    wrappers: dict[str, Callable[..., Any]]

    def make_known(self) -> None:
        """Register the specs in this process, and let the wrappers' names be found."""
        for spec in self.specs:
            registry.setdefault(spec.id, spec)
        for name, wrapper in self.wrappers.items():
            module, attribute = name.split(":")
            namespace = sys.modules.setdefault(module, types.ModuleType(module))
            if not hasattr(namespace, attribute):
                setattr(namespace, attribute, wrapper)


def _caller_specs() -> _CallerSpecs:
    specs: list[EnvSpec] = []
    wrappers: dict[str, Callable[..., Any]] = {}
    for spec in list(registry.values()):
        if isinstance(spec.entry_point, str) and spec.entry_point.startswith(_KNOWN_EVERYWHERE):
            continue
        names = {each.entry_point for each in spec.additional_wrappers if not _workers_import(each.entry_point)}
        try:
            portable = _portable_spec(spec)
            named = {name: load_env_creator(name) for name in names}
            cloudpickle.dumps((portable, named))
        except Exception:  # it can't be loaded or can't travel: no worker could make it
            continue
        specs.append(portable)
        wrappers.update(named)
    return _CallerSpecs(tuple(specs), wrappers)


_KNOWN_EVERYWHERE = ("gymnasium.", "joblib_envs.")


@contextmanager
def _by_value(factories: Sequence[EnvFactory]) -> Iterator[None]:
    """Pickle by value what lives in modules that exist only in this process's memory."""
    registered = []
    for name in {_module_of(factory) for factory in factories} - {None, "__main__"}:
        module = sys.modules.get(str(name))
        if module is not None and not _is_importable(str(name)):
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
    try:
        yield
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def _module_of(factory: Any) -> str | None:
    """Return the module in which what a factory makes is written, as far as that shows."""
    if isinstance(factory, WrappedFactory):
        return _module_of(factory.factory)
    if isinstance(factory, functools.partial):
        return _module_of(factory.func)
    if isinstance(factory, SpecFactory):
        return _module_of(factory.spec.entry_point) if callable(factory.spec.entry_point) else None
    return getattr(factory, "__module__", None)
