"""The bytes of states: read whole and unchanged, or refused before anything is unpickled."""

import hashlib
import json
import struct

import pytest

from joblib_envs.errors import ArgumentTypeError, StateFormatError, StateVersionError
from joblib_envs.state.container import LAYOUT_VERSION, pack, unpack

HEADER = {"method": "capture", "words": ["ü", 1, None]}
PARTS = {"payload": bytes(range(256)), "empty": b"", "zeros": bytes(100)}
HEAD_LENGTH = 30
CHECKSUM_LENGTH = 32


def packed():
    return pack("state", HEADER, PARTS)


def test_what_was_packed_is_unpacked():
    header, parts = unpack(packed(), "state", "the state")

    assert parts == PARTS
    assert {key: header[key] for key in HEADER} == HEADER
    assert header["kind"] == "state"


@pytest.mark.parametrize("convert", [bytes, bytearray, memoryview])
def test_any_kind_of_bytes_is_read(convert):
    _, parts = unpack(convert(packed()), "state", "the state")

    assert parts == PARTS


def test_equal_contents_give_equal_bytes():
    assert packed() == packed()


def test_bytes_that_were_cut_anywhere_are_refused():
    data = packed()

    for length in range(1, len(data), 10):
        with pytest.raises(StateFormatError, match=f"the state was cut: it has {length} bytes"):
            unpack(data[:length], "state", "the state")


def test_bytes_that_were_appended_are_refused():
    with pytest.raises(StateFormatError, match="3 more than were written"):
        unpack(packed() + b"abc", "state", "the state")


def test_any_flipped_bit_is_found():
    data = packed()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8

        with pytest.raises((StateFormatError, StateVersionError)):
            unpack(changed, "state", "the state")


@pytest.mark.parametrize("bit", range(8))
def test_every_bit_of_the_header_and_the_checksum_counts(bit):
    data = packed()
    for place in (HEAD_LENGTH + 3, len(data) // 2, len(data) - CHECKSUM_LENGTH, len(data) - 1):
        changed = bytearray(data)
        changed[place] ^= 1 << bit

        with pytest.raises(StateFormatError, match="checksum is wrong; nothing was restored"):
            unpack(changed, "state", "the state")


def test_parts_that_changed_places_are_found():
    data = packed()
    place = data.index(PARTS["payload"])
    moved = data[:place] + PARTS["zeros"] + PARTS["payload"] + data[-CHECKSUM_LENGTH:]
    assert len(moved) == len(data)

    with pytest.raises(StateFormatError, match="checksum"):
        unpack(moved, "state", "the state")


def with_checksum(body):
    return body + hashlib.sha256(body).digest()


def test_another_layout_is_refused_by_its_number_though_its_checksum_is_right():
    body = bytearray(packed()[:-CHECKSUM_LENGTH])
    body[16:18] = struct.pack("<H", LAYOUT_VERSION + 1)

    with pytest.raises(StateVersionError, match=rf"layout version {LAYOUT_VERSION + 1}.* version {LAYOUT_VERSION}"):
        unpack(with_checksum(bytes(body)), "state", "the state")


def test_another_kind_is_refused_by_its_name():
    with pytest.raises(StateFormatError, match=r"the file 'x' is a 'batch' .*, but a 'state' is needed"):
        unpack(pack("batch", {}, {}), "state", "the file 'x'")


@pytest.mark.parametrize("data", [b"\x80\x05K\x01.", b"PK\x03\x04" + bytes(60), b"", b"joblib-envs", bytes(500)])
def test_foreign_bytes_are_refused(data):
    with pytest.raises(StateFormatError):
        unpack(data, "state", "the state")


@pytest.mark.parametrize("data", ["joblib-envs/st", None, 5, [1, 2], object()])
def test_what_is_no_bytes_is_refused_by_its_type(data):
    with pytest.raises(ArgumentTypeError, match=f"must be bytes.*not {type(data).__name__}"):
        unpack(data, "state", "the state")


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.pop("parts"),
        lambda header: header.update(parts=[["payload", 10**6]]),
        lambda header: header.update(parts=[["payload", -5]]),
        lambda header: header.update(parts=[["payload"]]),
        lambda header: header.update(parts=7),
    ],
)
def test_a_header_that_makes_no_sense_is_refused_though_its_checksum_is_right(change):
    with pytest.raises(StateFormatError):
        unpack(_with_header(change), "state", "the state")


@pytest.mark.parametrize("text", [b"[]", b"not JSON", b"\xff\xfe", b""])
def test_a_header_that_is_no_object_is_refused_though_its_checksum_is_right(text):
    with pytest.raises(StateFormatError):
        unpack(_with_text(text), "state", "the state")


def _with_header(change):
    header, _ = unpack(packed(), "state", "the state")
    change(header)
    return _with_text(json.dumps(header).encode())


def _with_text(text):
    rest = b"".join(PARTS.values())
    length = HEAD_LENGTH + len(text) + len(rest) + CHECKSUM_LENGTH
    return with_checksum(struct.pack("<16sHIQ", packed()[:16], LAYOUT_VERSION, len(text), length) + text + rest)
