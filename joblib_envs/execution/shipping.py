"""A shard as a value: packed for its way to a worker and back, with simulator models sent once.

The caller keeps shards as bytes that it never unpickles. What several states refer to (a
:class:`~joblib_envs.state.cargo.Blob`) goes to a worker with the first call that may need it;
later calls name it only. A worker that hasn't got it, since it is new, says so before it
does anything, and the call is made again with all that it may need.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle

from joblib_envs.processes import unpickled
from joblib_envs.state.adapters import registered, take_registered
from joblib_envs.state.cargo import Blob
from joblib_envs.state.pickling import CaptureOptions, captured, restored

__all__ = ["Parcel", "Warehouse", "pack_parcel", "packed_adapters", "take_adapters", "unpack_parcel"]


@dataclass(frozen=True)
class Parcel:
    """Something with environments in it, pickled.

    Attributes:
        data: The pickle.
        keys: The blobs that it refers to.
    """

    data: bytes
    keys: tuple[str, ...] = ()


class Warehouse:
    """The caller's side: the blobs of its parcels, and which of them every worker may have."""

    def __init__(self) -> None:
        self._blobs: dict[str, Blob] = {}
        self._sent: set[str] = set()

    def take_in(self, blobs: Iterable[Blob]) -> None:
        """Keep blobs that came with a parcel."""
        self._blobs.update((blob.key, blob) for blob in blobs)

    def first_needs(self, parcel: Parcel) -> tuple[Blob, ...]:
        """Return what a parcel refers to and was never sent to anybody."""
        return tuple(self._blobs[key] for key in parcel.keys if key not in self._sent)

    def all_needs(self, parcel: Parcel) -> tuple[Blob, ...]:
        """Return all that a parcel refers to."""
        return tuple(self._blobs[key] for key in parcel.keys)

    def settle(self, parcels: Iterable[Parcel]) -> None:
        """Forget what no parcel refers to any more, after a call."""
        needed = {key for parcel in parcels for key in parcel.keys}
        self._sent = needed & self._blobs.keys()
        self._blobs = {key: blob for key, blob in self._blobs.items() if key in needed}


def pack_parcel(value: Any, options: CaptureOptions, known: Iterable[str] = ()) -> tuple[Parcel, tuple[Blob, ...]]:
    """In a worker: pack a value.

    Returns:
        The parcel, and the blobs that it refers to and the caller doesn't know.
    """
    data, departure = captured(value, options)
    _cellar.keep(departure.shared.values())
    known = set(known)
    return Parcel(data, tuple(departure.shared)), tuple(b for k, b in departure.shared.items() if k not in known)


def unpack_parcel(parcel: Parcel, enclosed: Iterable[Blob]) -> Any | None:
    """In a worker: unpack a value, or return None where a blob is missing."""
    _cellar.keep(enclosed)
    shared = _cellar.find(parcel.keys)
    return None if shared is None else restored(parcel.data, shared, is_private=True)


class _Cellar:
    """A worker's side: the blobs that it has seen last, for whichever batch."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._blobs: OrderedDict[str, Blob] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, blobs: Iterable[Blob]) -> None:
        with self._lock:
            for blob in blobs:
                self._blobs[blob.key] = blob
                self._blobs.move_to_end(blob.key)
            while len(self._blobs) > 1 and sum(len(each.data) for each in self._blobs.values()) > self._most_bytes:
                self._blobs.popitem(last=False)

    def find(self, keys: Iterable[str]) -> Mapping[str, Blob] | None:
        with self._lock:
            if not all(key in self._blobs for key in keys):
                return None
            return {key: self._blobs[key] for key in keys}


_cellar = _Cellar(most_bytes=256 * 2**20)


def packed_adapters() -> bytes:
    """In the caller: pickle the state adapters that were registered here."""
    adapters = registered()
    data: bytes = cloudpickle.dumps(adapters) if adapters else b""
    return data


class _Taken:
    adapters = b""


def take_adapters(packed: bytes) -> None:
    """In a worker: register what the caller has registered, unless that was done."""
    if packed and packed != _Taken.adapters:
        take_registered(unpickled(packed))
        _Taken.adapters = packed
