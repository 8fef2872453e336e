"""Replay: an environment kept as how it was made and all that was done with it since.

For environments that can't be captured (an outside simulator, objects of native code) but are
reproducible. Going on from a journal costs as much as all the calls in it did, so it is for
checkpoints and rollouts, and in a step loop only where somebody asks for it.

A journal is never cut at a reset, with a seed or without: that the history before it makes no
difference can't be seen in a run as short as a trial's (Box2D's world in BipedalWalker-v3 shows
it after 50 steps).

What an environment answers is summed up as it goes; a replay that sums up to something else
is refused, since the environment isn't reproducible then.
"""

from __future__ import annotations

import functools
import pickle
import zlib
from collections.abc import Callable
from typing import Any, TypeAlias

import cloudpickle
import gymnasium
import numpy as np

from joblib_envs.copies import own
from joblib_envs.errors import StateCannotTravelError
from joblib_envs.processes import unpickled
from joblib_envs.state.cargo import Departure
from joblib_envs.state.env_state import EnvState
from joblib_envs.state.snapshot import restored_env

__all__ = ["MOST_BYTES", "Journal", "JournaledEnv", "journaled", "keeping_its_journal", "reduce_journaled_env"]

MOST_BYTES = 64 * 2**20
"""What a journal may hold of actions and arguments: about 800 000 steps with a discrete action."""

_ENTRY_BYTES = 80
"""What an entry without large arguments takes, about."""

_Entry: TypeAlias = tuple[str, tuple[Any, ...], dict[str, Any]]


class Journal:
    """All calls of an environment since it was made.

    Attributes:
        packed_factory: The pickled function that makes the environment.
        entries: The calls in order: name, arguments.
        digest: Sums up what the environment answered.
        size: The bytes that the entries hold, about.
        full: Whether there were too many; the entries are gone then, and the journal ends.
    """

    def __init__(self, packed_factory: bytes) -> None:
        self.packed_factory = packed_factory
        self.entries: list[_Entry] = []
        self.digest = 0
        self.size = 0
        self.full = False

    def begin(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a call before it is made: it may raise, and have changed the environment then too."""
        if not self.full:
            self.entries.append((name, own(args), own(kwargs)))
            self.size += _ENTRY_BYTES + _size_of(args) + _size_of(kwargs)
            if self.size > MOST_BYTES:
                self.entries, self.full = [], True

    def answer(self, value: Any) -> None:
        """Sum up what came of the call that was begun last."""
        self.digest = _summed(value, self.digest)

    def replayed(self) -> gymnasium.Env[Any, Any]:
        """Make the environment anew and make all calls again.

        Raises:
            StateCannotTravelError: It didn't do what it did before.
        """
        env = unpickled(self.packed_factory)()
        again = Journal(self.packed_factory)
        for name, args, kwargs in self.entries:
            _made(env, again, name, own(args), own(kwargs))
        if again.digest != self.digest:
            env.close()
            raise StateCannotTravelError(
                f"made anew and given its {len(self.entries)} calls again, the environment answered differently than "
                f"before, so it can't be restored by replay: something that its seeds don't decide changes what it does"
            )
        made: gymnasium.Env[Any, Any] = env
        return made


def _made(
    env: gymnasium.Env[Any, Any], journal: Journal, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Make a call again; one that raised does so again, which is summed up too."""
    try:
        answer = _METHODS[name](env, *args, **kwargs)
    except (Exception, SystemExit) as error:
        journal.answer(type(error).__name__)
    else:
        if name in _SUMMED_UP:
            journal.answer(answer)


def _call(env: gymnasium.Env[Any, Any], name: str, *args: Any, **kwargs: Any) -> Any:
    return env.get_wrapper_attr(name)(*args, **kwargs)


_METHODS: dict[str, Callable[..., Any]] = {
    "step": lambda env, action: env.step(action),
    "reset": lambda env, **kwargs: env.reset(**kwargs),
    "render": lambda env: env.render(),
    "set": lambda env, name, value: env.set_wrapper_attr(name, value),
    "call": _call,
}
_SUMMED_UP = {"step", "reset"}


class JournaledEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keep a journal of an environment, as its outermost wrapper.

    The first reset without a seed is given a drawn one, which the journal records.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], journal: Journal, *, is_seeded: bool = False) -> None:
        super().__init__(env)
        self._journal = journal
        self._is_seeded = is_seeded

    @property
    def spec(self) -> Any:  # type: ignore[override]
        """The environment's own."""
        return self.env.spec

    def step(self, action: Any) -> Any:
        """Step, and note it."""
        return self._noted("step", (action,), {}, summed_up=True)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset, and note it."""
        if seed is None and not self._is_seeded:
            seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1)
        self._is_seeded = True
        return self._noted("reset", (), {"seed": seed, "options": options}, summed_up=True)

    def render(self) -> Any:
        """Draw, and note it: drawing may change something."""
        return self._noted("render", (), {})

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute; a method notes that it is called."""
        if name in ("step", "reset", "render"):
            return getattr(self, name)
        attribute = self.env.get_wrapper_attr(name)
        return functools.partial(self._called, name) if callable(attribute) else attribute

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:  # noqa: ARG002
        """Set an attribute where it is defined, and note it."""
        self._noted("set", (name, value), {})
        return True

    def _called(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._noted("call", (name, *args), kwargs)

    def _noted(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, summed_up: bool = False) -> Any:
        self._journal.begin(name, args, kwargs)
        try:
            answer = _METHODS[name](self.env, *args, **kwargs)
        except (Exception, SystemExit) as error:
            self._journal.answer(type(error).__name__)
            raise
        if summed_up:
            self._journal.answer(answer)
        return answer


def journaled(packed_factory: bytes) -> JournaledEnv:
    """Make an environment that keeps a journal."""
    return JournaledEnv(unpickled(packed_factory)(), Journal(packed_factory))


def keeping_its_journal(
    env: gymnasium.Env[Any, Any], state: EnvState, *, like: gymnasium.Env[Any, Any]
) -> gymnasium.Env[Any, Any]:
    """Let an environment that was restored from a captured state keep a journal, where ``like`` keeps one."""
    if not isinstance(like, JournaledEnv) or isinstance(env, JournaledEnv):
        return env
    packed: bytes = cloudpickle.dumps(functools.partial(restored_env, state))
    return JournaledEnv(env, Journal(packed), is_seeded=True)


def reduce_journaled_env(env: JournaledEnv, departure: Departure) -> tuple[Any, ...]:
    """Keep the journal in place of the environment."""
    journal = env._journal
    if journal.full:
        raise pickle.PicklingError(
            f"its journal grew beyond {MOST_BYTES // 2**20} MiB and was ended: reset a new batch more often, or use an "
            f"environment that can be captured"
        )
    departure.replays = True
    return _replayed_env, (journal, env._is_seeded)


def _replayed_env(journal: Journal, is_seeded: bool) -> JournaledEnv:
    return JournaledEnv(journal.replayed(), journal, is_seeded=is_seeded)


def _size_of(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(_size_of, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_size_of, value))
    return len(value) if isinstance(value, str | bytes) else 8


def _summed(value: Any, digest: int) -> int:
    """Sum up an answer; infos are left out, since they may hold times of the clock."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return zlib.crc32(value.tobytes(), digest)
    if isinstance(value, tuple):
        kept = value[:-1] if value and isinstance(value[-1], dict) else value
        return functools.reduce(lambda total, each: _summed(each, total), kept, digest)
    if isinstance(value, dict):
        return functools.reduce(lambda total, each: _summed(each, total), value.values(), digest)
    if isinstance(value, bool | int | float | str | np.generic):
        return zlib.crc32(repr(value).encode(), digest)
    try:
        return zlib.crc32(cloudpickle.dumps(value), digest)
    except Exception:  # what can't be pickled isn't an answer that a batch could pass on
        return digest
