"""What travels beside the pickle of a state: large parts that are sent once, and native objects to use again.

On the way out an adapter is given a :class:`Departure`. On the way in, the function that makes
an object again asks :func:`arriving` for what was sent beside it.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joblib_envs.errors import StateFormatError

__all__ = ["Blob", "Departure", "Lent", "SpareParts", "arrival", "is_private", "lend", "shared_blob", "take_spare"]


class Blob:
    """Bytes that many states refer to, such as a simulator's model; kept once in each process.

    Attributes:
        key: The SHA-256 of the bytes, in hexadecimal.
        data: The bytes.
    """

    def __init__(self, key: str, data: bytes) -> None:
        self.key = key
        self.data = data

    @staticmethod
    def of(data: bytes, key: str | None = None) -> Blob:
        """Return the blob of these bytes, the one that is known already where there is one."""
        key = hashlib.sha256(data).hexdigest() if key is None else key
        with _lock:
            known = _blobs.get(key)
            if known is None:
                known = _blobs[key] = Blob(key, data)
        return known

    def __reduce__(self) -> tuple[Any, ...]:
        return Blob.of, (self.data, self.key)


_lock = threading.Lock()
_blobs: weakref.WeakValueDictionary[str, Blob] = weakref.WeakValueDictionary()


class Departure:
    """What one capture gathers beside the pickle.

    Attributes:
        shared: The blobs that the pickle refers to, by key.
        keys: The keys of what was shared, by the native object's ``id``.
        natives: Simulators that were met, of whose arrays others may hold views.
        packages: Distributions whose objects' insides are in the pickle: other versions of them
            may read it wrongly.
        has_hooks: Whether a layer has a way of its own to be pickled, other than EzPickle's.
        has_drawings: Whether a layer had something at hand that it draws with.
        replays: Whether it holds a journal in place of a state.
    """

    def __init__(self) -> None:
        self.shared: dict[str, Blob] = {}
        self.keys: dict[int, str] = {}
        self.natives: list[Any] = []
        self.packages: set[str] = {"gymnasium", "numpy"}
        self.has_hooks = False
        self.has_drawings = False
        self.replays = False

    def share(self, blob: Blob) -> str:
        """Send a blob along, once for each worker; return the key that finds it on the other side."""
        self.shared[blob.key] = blob
        return blob.key


@dataclass(frozen=True)
class Lent:
    """A native object that a restored environment has, and that may be used again once nothing refers to it.

    Attributes:
        key: Under which :func:`take_spare` finds it.
        native: The object.
        size: The bytes of memory that it holds, about.
        is_free: Tells whether only ``native`` itself still refers to it.
    """

    key: Hashable
    native: Any
    size: int
    is_free: Callable[[Any], bool]


class SpareParts:
    """Native objects that environments had, and others can have: making a new one may cost more than a step.

    Args:
        most_bytes: How much is kept; the oldest go first.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lent: deque[tuple[weakref.ref[Any], Lent]] = deque()
        self._lock = threading.Lock()

    def lend(self, lent: Sequence[Lent], owner: Any) -> None:
        """Take parts back once their owner is gone and nothing else refers to them."""
        with self._lock:
            self._lent.extend((weakref.ref(owner), part) for part in lent)
            self._bytes += sum(part.size for part in lent)
            while self._bytes > self._most_bytes:
                self._bytes -= self._lent.popleft()[1].size

    def take(self, key: Hashable) -> Any | None:
        """Return a part that nobody else has from now on, or None."""
        with self._lock:
            for place, (owner, part) in enumerate(self._lent):
                if owner() is None and part.key == key and part.is_free(part.native):
                    del self._lent[place]
                    self._bytes -= part.size
                    return part.native
        return None


class _Arrival(threading.local):
    shared: Mapping[str, Blob] = {}
    spares: SpareParts | None = None
    lent: list[Lent] | None = None
    is_private = False


_arrival = _Arrival()


@contextlib.contextmanager
def arrival(
    shared: Mapping[str, Blob], spares: SpareParts | None = None, *, is_private: bool = False
) -> Iterator[list[Lent]]:
    """Let :func:`shared_blob` and :func:`take_spare` find these, in this thread, while a state is unpickled.

    Yields:
        The list of native objects that the state is given.
    """
    before = _arrival.shared, _arrival.spares, _arrival.lent, _arrival.is_private
    lent: list[Lent] = []
    _arrival.shared, _arrival.spares, _arrival.lent, _arrival.is_private = shared, spares, lent, is_private
    try:
        yield lent
    finally:
        _arrival.shared, _arrival.spares, _arrival.lent, _arrival.is_private = before


def shared_blob(key: str) -> Blob:
    """Return a blob that was sent beside the state.

    Raises:
        StateFormatError: It wasn't.
    """
    try:
        return _arrival.shared[key]
    except KeyError:
        raise StateFormatError(
            f"the state refers to a part {key[:12]}... that didn't come with it: restore states with "
            f"joblib_envs.restore, not by unpickling their payload"
        ) from None


def take_spare(key: Hashable) -> Any | None:
    """Return a native object that may be used again, or None where a new one has to be made."""
    return None if _arrival.spares is None else _arrival.spares.take(key)


def lend(part: Lent) -> None:
    """Say that a native object was given to the state that is being unpickled."""
    if _arrival.lent is not None:
        _arrival.lent.append(part)


def is_private() -> bool:
    """Tell whether nothing of the environment outlives the call for which its state is unpickled.

    Only then may a native object be used again of which views may exist that nobody can count.
    """
    return _arrival.is_private
