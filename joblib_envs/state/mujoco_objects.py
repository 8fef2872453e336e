"""MuJoCo's models and data: the model travels once for each worker, the data each time.

MuJoCo's own pickle of an ``MjData`` holds its whole model and is 0.7 MB for HalfCheetah. Its
state vector (``mj_getState``) holds too little: environments read positions, forces and
velocities of bodies that MuJoCo derives in a step, and that lag the state vector by a part of
a step. So all arrays of the data's buffer travel, the contacts, and the scalars that say which
of them are up to date.

Not kept is MuJoCo's workspace, which it computes anew before it uses it: the constraint solver's
arrays (``efc_*``, whose forces ``mj_contactForce`` reads) and its statistics, the factors and
derivatives of integrators, bounding volumes.
"""

from __future__ import annotations

import copy
import functools
import pickle
import sys
import threading
import weakref
from typing import Any, TypeAlias

import mujoco
import numpy as np
import numpy.typing as npt

from joblib_envs.gil import gil_is_enabled
from joblib_envs.state.cargo import Blob, Departure, Lent, is_private, lend, shared_blob, take_spare

__all__ = ["all_arrays", "reduce_data", "reduce_model"]

Words: TypeAlias = npt.NDArray[np.uint64]

_WORKSPACE = ("efm_", "bvh_", "qH", "qLU", "qDeriv", "crb", "cdof_dot")
_FIRST_IN_BUFFER = (
    "qpos",
    "qvel",
    "act",
    "history",
    "qacc_warmstart",
    "plugin_state",
    "ctrl",
    "qfrc_applied",
    "xfrc_applied",
)
"""The buffer begins with the first of these that isn't empty; the last one never is (MJDATA_POINTERS in mjxmacro.h)."""
_NOTHING = np.empty(0)
_NOTHING_OF = tuple(np.zeros(size, np.uint8) for size in range(8))
_CONTACT_FIELDS = (
    "dist",
    "pos",
    "frame",
    "includemargin",
    "friction",
    "solref",
    "solreffriction",
    "solimp",
    "mu",
    "H",
    "dim",
    "geom",
    "flex",
    "elem",
    "vert",
    "exclude",
    "adhesion",
    "surfacevel",
)
"""Those that a version of MuJoCo has, of which 4.0 has all; ``efc_address`` points into the solver's arrays."""


def reduce_model(model: mujoco.MjModel, departure: Departure) -> tuple[Any, ...]:
    """Refer to a model by what it holds."""
    departure.packages.add("mujoco")
    return _restored_model, (_shared_key(model, departure),)


def reduce_data(data: mujoco.MjData, departure: Departure) -> tuple[Any, ...]:
    """Keep what is in the data, with a reference to its model."""
    model = data.model
    if data.nplugin:
        raise pickle.PicklingError("the data of MuJoCo's plugins can't be read, hence not be kept")
    key = _shared_key(model, departure)
    parts = [getattr(data, name) for name in _array_names(key, data)]
    parts.append(_NOTHING_OF[-sum(part.nbytes for part in parts) % 8])  # to whole words
    parts.extend(_contact_values(data.contact[index]) for index in range(data.ncon))
    packed = _pack(b"".join([part.tobytes() for part in parts]))
    # Copies of arrays, such as maxuse_threadstack of MuJoCo 3: the data's own are kept by their names.
    scalars = tuple([copy.copy(getattr(data, name)) for name in _scalar_names(mujoco.MjData)])
    numbers = data.warning.number
    warnings = (data.warning.lastinfo.tolist(), numbers.tolist()) if numbers.any() else None
    return _restored_data, (model, key, packed, scalars, warnings, data.ncon)


def _shared_key(model: mujoco.MjModel, departure: Departure) -> str:
    """Return the key of a model's blob, which is looked for once in each capture."""
    key = departure.keys.get(id(model))
    if key is None:
        key = departure.keys[id(model)] = departure.share(_blob_of(model))
    return key


def _saved(model: mujoco.MjModel, buffer: Words | None) -> Words:
    """Return the model as MuJoCo saves it, in words, which are compared faster than bytes."""
    size = mujoco.mj_sizeModel(model)
    if buffer is None:
        buffer = np.zeros(-(-size // 8), np.uint64)
    mujoco.mj_saveModel(model, None, buffer.view(np.uint8)[:size])
    return buffer


def _blob_of(model: mujoco.MjModel) -> Blob:
    """Return the model's blob; an environment may have changed it, so it is compared each time."""
    size = mujoco.mj_sizeModel(model)
    with _lock:
        saved = _scratch[size] = _saved(model, _scratch.get(size))
        known = _known.get(id(model))
        if known is not None and known[0]() is model and _are_equal(_words[known[1]], saved):
            return known[1]
        # Most models are copies of one that is known; to look for it is faster than to sum it up.
        blob = next((each for each, words in _words.items() if _are_equal(words, saved)), None)
        if blob is None:
            blob = Blob.of(saved.tobytes()[:size])
            _words[blob] = saved.copy()
        for number in [number for number, (reference, _) in _known.items() if reference() is None]:
            del _known[number]
        _known[id(model)] = weakref.ref(model), blob
        return blob


def _are_equal(one: Words, other: Words) -> bool:
    return one.size == other.size and bool((one == other).all())


_lock = threading.Lock()
_known: dict[int, tuple[weakref.ref[Any], Blob]] = {}
"""What each living model was when it was last looked at."""
_words: weakref.WeakKeyDictionary[Blob, Words] = weakref.WeakKeyDictionary()
_scratch: dict[int, Words] = {}


def _restored_model(key: str) -> mujoco.MjModel:
    spare: _Native | None = take_spare(("mujoco", key)) if is_private() else None
    if spare is not None and _blob_of(spare.model).key == key:  # whoever had it may have changed it
        _spares_in_use[id(spare.model)] = spare
        return spare.model
    pattern = _patterns.get(key)
    if pattern is None:
        blob = shared_blob(key)
        pattern = mujoco.MjModel.from_binary_path("model.mjb", {"model.mjb": blob.data})
        while len(_patterns) >= _MOST_PATTERNS:
            del _patterns[next(iter(_patterns))]
        _patterns[key] = pattern
    return copy.copy(pattern)


_MOST_PATTERNS = 8
_patterns: dict[str, mujoco.MjModel] = {}
"""Models to copy, which is several times faster than to load one; no environment ever has them."""

_spares_in_use: dict[int, _Native] = {}
"""The spare that a model came with, until the state's own data ask for theirs."""


def _restored_data(
    model: mujoco.MjModel,
    key: str,
    packed: tuple[bytes, bytes, int],
    scalars: tuple[Any, ...],
    warnings: tuple[list[int], list[int]] | None,
    num_contacts: int,
) -> mujoco.MjData:
    native = _spares_in_use.pop(id(model), None)
    if native is not None:
        mujoco.mj_resetData(model, native.data)
    elif is_private():
        native = _Native(model, mujoco.MjData(model))
    data = mujoco.MjData(model) if native is None else native.data
    raw = _unpack(packed)
    start = 0
    for name in _array_names(key, data):
        array = getattr(data, name)
        array[...] = np.frombuffer(raw, array.dtype, array.size, start).reshape(array.shape)
        start += array.nbytes
    for name, value in zip(_scalar_names(mujoco.MjData), scalars, strict=True):
        setattr(data, name, value)
    if warnings is not None:
        data.warning.lastinfo[:], data.warning.number[:] = warnings
    if native is not None:
        lend(Lent(("mujoco", key), native, mujoco.mj_sizeModel(model) + data.nbuffer, _Native.is_free))
    if num_contacts:
        for values in np.frombuffer(raw, np.float64, offset=start + -start % 8).reshape(num_contacts, -1):
            mujoco.mj_addContact(model, data, _contact(values))
    return data


class _Native:
    """A model and its data, with all their arrays: whoever else holds one, or a slice of it, shows in its count."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        self.model = model
        self.data = data
        self._arrays = [
            getattr(each, name)
            for kind, each in ((mujoco.MjModel, model), (mujoco.MjData, data))
            for name in all_arrays(kind)
        ]

    def is_free(self) -> bool:
        """Tell whether nobody else refers to any of it."""
        return _counts_are_exact and self.reference_counts() == _counts_when_new()

    def reference_counts(self) -> list[int]:
        """Count the references to the model, the data and their arrays."""
        return [sys.getrefcount(self.model), sys.getrefcount(self.data), *map(sys.getrefcount, self._arrays)]


_counts_are_exact = gil_is_enabled()


def _new_native() -> _Native:
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    return _Native(model, mujoco.MjData(model))


@functools.cache
def _counts_when_new() -> list[int]:
    return _new_native().reference_counts()


@functools.cache
def all_arrays(kind: Any) -> tuple[str, ...]:
    """List the arrays of which MuJoCo's object keeps one; it makes the others when they are asked for."""
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    example = model if kind is mujoco.MjModel else mujoco.MjData(model)
    names = [name for name in dir(kind) if not name.startswith("_")]
    arrays = [name for name in names if isinstance(getattr(example, name, None), np.ndarray)]
    return tuple(name for name in arrays if getattr(example, name) is getattr(example, name))


def _array_names(key: str, data: mujoco.MjData) -> tuple[str, ...]:
    """List the arrays that lie in the data's buffer, of fixed size; those of the arena come and go with contacts."""
    names = _names_by_model.get(key)
    if names is None:
        first = next(name for name in _FIRST_IN_BUFFER if getattr(data, name, _NOTHING).size)
        start = getattr(data, first).__array_interface__["data"][0]
        stop = start + data.nbuffer
        kept = []
        for name in dir(type(data)):
            array = None if name.startswith(("_", *_WORKSPACE)) else getattr(data, name, None)
            if isinstance(array, np.ndarray) and array.size:
                address = array.__array_interface__["data"][0]
                if name == "energy" or (start <= address and address + array.nbytes <= stop):
                    kept.append((name, (address, array.nbytes)))
        # Some have two names, as M and qM may have.
        names = tuple({place: name for name, place in reversed(kept)}.values())
        _names_by_model[key] = names
    return names


_names_by_model: dict[str, tuple[str, ...]] = {}


@functools.cache
def _scalar_names(kind: Any) -> tuple[str, ...]:
    """List the scalars that aren't MuJoCo's bookkeeping of its own memory."""
    return tuple(
        name
        for name in dir(kind)
        if name == "time" or name.startswith(("flg_", "maxuse_")) or (name.endswith("_awake") and name.startswith("n"))
        if isinstance(getattr(kind, name), property) and getattr(kind, name).fset is not None
    )


def _contact_values(contact: Any) -> npt.NDArray[np.float64]:
    return np.concatenate(
        [np.ravel(getattr(contact, name)) for name in _contact_fields(mujoco.MjContact)], dtype=np.float64
    )


def _contact(values: npt.NDArray[np.float64]) -> Any:
    contact, start = mujoco.MjContact(), 0
    for name in _contact_fields(mujoco.MjContact):
        before = getattr(contact, name)
        if isinstance(before, np.ndarray):
            setattr(contact, name, values[start : start + before.size].reshape(before.shape).astype(before.dtype))
            start += before.size
        else:
            setattr(contact, name, type(before)(values[start]))
            start += 1
    contact.efc_address = -1
    return contact


@functools.cache
def _contact_fields(kind: Any) -> tuple[str, ...]:
    return tuple(name for name in _CONTACT_FIELDS if hasattr(kind, name))


def _pack(raw: bytes) -> tuple[bytes, bytes, int]:
    """Leave out the zeros, of which there are many: a bit for each eight bytes, and those that aren't zero."""
    words = np.frombuffer(raw, np.uint64)
    present = words != 0
    return np.packbits(present).tobytes(), words[present].tobytes(), len(words)


def _unpack(packed: tuple[bytes, bytes, int]) -> bytes:
    bits, kept, length = packed
    words = np.zeros(length, np.uint64)
    words[np.unpackbits(np.frombuffer(bits, np.uint8), count=length).view(np.bool_)] = np.frombuffer(kept, np.uint64)
    return words.tobytes()
