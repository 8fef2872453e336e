r"""The bytes of a state or of a saved batch: a header that anyone may read, parts, and a checksum.

Layout, all numbers little-endian:

    16 bytes  b"joblib-envs/st\r\n"
     2 bytes  version of this layout
     4 bytes  length of the header
     8 bytes  length of everything, checksum included
     ...      the header, JSON in UTF-8; its ``"parts"`` lists names and lengths
     ...      the parts, one after the other
    32 bytes  SHA-256 of everything before

Nothing is unpickled before the checksum has been found right.
"""

from __future__ import annotations

import hashlib
import json
import operator
import struct
from collections.abc import Mapping
from typing import Any

from joblib_envs.errors import ArgumentTypeError, StateFormatError, StateVersionError

__all__ = ["LAYOUT_VERSION", "pack", "unpack"]

LAYOUT_VERSION = 1

_MAGIC = b"joblib-envs/st\r\n"
_HEAD = struct.Struct("<16sHIQ")
_CHECKSUM_LENGTH = 32


def pack(kind: str, header: Mapping[str, Any], parts: Mapping[str, bytes]) -> bytes:
    """Join a header, which JSON must be able to hold, and parts."""
    whole = {**header, "kind": kind, "parts": [[name, len(part)] for name, part in parts.items()]}
    text = json.dumps(whole, separators=(",", ":")).encode()
    length = _HEAD.size + len(text) + sum(map(len, parts.values())) + _CHECKSUM_LENGTH
    body = b"".join([_HEAD.pack(_MAGIC, LAYOUT_VERSION, len(text), length), text, *parts.values()])
    return body + hashlib.sha256(body).digest()


def unpack(data: Any, kind: str, what: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Take apart what :func:`pack` has joined.

    Args:
        data: The bytes.
        kind: What they must be.
        what: How errors call them.

    Raises:
        ArgumentTypeError: They are no bytes.
        StateFormatError: They aren't whole, unchanged and of this kind.
        StateVersionError: They have the layout of another version.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ArgumentTypeError(f"{what} must be bytes, as to_bytes() and save() make them, not {type(data).__name__}")
    data = bytes(data)
    header, start = _header(data, what)
    if header.get("kind") != kind:
        raise StateFormatError(f"{what} is a {header.get('kind')!r} of joblib-envs, but a {kind!r} is needed here")
    parts = {}
    for name, length in header["parts"]:
        parts[name] = data[start : start + length]
        start += length
    return header, parts


def _header(data: bytes, what: str) -> tuple[dict[str, Any], int]:
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        if data and _MAGIC.startswith(data[: len(_MAGIC)]):
            raise _cut(what, len(data), f"at least {_HEAD.size + _CHECKSUM_LENGTH}")
        raise StateFormatError(f"{what} is nothing that joblib-envs has saved: it begins with {data[:16]!r}")
    _, version, header_length, length = _HEAD.unpack_from(data)
    if version != LAYOUT_VERSION:
        raise StateVersionError(
            f"{what} has layout version {version}, and this joblib-envs reads version {LAYOUT_VERSION}: read it with "
            f"the joblib-envs that wrote it (or its first bytes were changed)"
        )
    if len(data) < length:
        raise _cut(what, len(data), str(length))
    if len(data) > length:
        raise StateFormatError(f"{what} has {len(data)} bytes, {len(data) - length} more than were written")
    if hashlib.sha256(data[:-_CHECKSUM_LENGTH]).digest() != data[-_CHECKSUM_LENGTH:]:
        raise StateFormatError(f"{what} was changed since it was written: its checksum is wrong; nothing was restored")
    start = _HEAD.size + header_length
    try:
        header: dict[str, Any] = json.loads(data[_HEAD.size : start])
        lengths = {str(name): operator.index(number) for name, number in header["parts"]}.values()
    except (KeyError, TypeError, ValueError):
        lengths = {"none": -1}.values()
    if min(lengths, default=0) < 0 or start + sum(lengths) + _CHECKSUM_LENGTH != length:
        raise StateFormatError(f"{what} has a header that doesn't describe it: another program wrote it")
    return header, start


def _cut(what: str, given: int, wanted: str) -> StateFormatError:
    return StateFormatError(f"{what} was cut: it has {given} bytes of {wanted}; nothing was restored")
