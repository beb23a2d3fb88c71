"""Fields: counts what a protobuf message consists of before it is decoded.

Two bytes of a message can become an object of a hundred bytes. The walk follows the wire format with the
descriptor of the message: a field that has a message is entered, a packed list counts as many as it has
bytes. It stops at the limit, and pauses after each slice, because it runs on the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

FIELDS_MAX: Final = 65_536
"""Fields of one request, also of the messages in it: 128 messages of it may have 128 properties each."""
SHORT_BYTES: Final = 4096
"""A shorter message is decoded in less than a millisecond, whatever it has."""
SLICE_FIELDS: Final = 1024
"""Fields that are counted at once: takes a quarter of a millisecond."""

_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
_LEAF, _PACKED = 0, 1
_TEXTS: Final = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)

Table = dict[int, Any]
"""By field number: the table of a field's message, or the fields that each byte of it counts as (`_LEAF`)."""


def count_fields(data: bytes, kind: type[Message], limit: int = FIELDS_MAX) -> Iterator[int]:
    """Yield the number of fields of an encoded message, or more than `limit` as soon as it has more.

    Before, it yields the number so far after each `SLICE_FIELDS`. Raises ValueError if the data is invalid.
    """
    table: Table = _table(kind.DESCRIPTOR)
    at = count = 0
    pause_at = SLICE_FIELDS
    end = len(data)
    outer: list[tuple[int, Table]] = []  # the end and the table of each message around the present one
    while count <= limit:
        if at >= end:
            if at > end:
                raise ValueError("a field is longer than the message")
            if not outer:
                break
            end, table = outer.pop()
            continue
        if count >= pause_at:
            yield count
            pause_at = count + SLICE_FIELDS
        count += 1
        tag = data[at]  # most tags and sizes have one byte
        at += 1
        if tag >= 0x80:
            tag, at = _varint(data, at - 1)
        wire_type = tag & 7
        if wire_type != _SIZED:
            at = _after(data, at, wire_type)
            continue
        if at < end and data[at] < 0x80:
            size = data[at]
            at += 1
        else:
            size, at = _varint(data, at)
        if size > end - at:
            raise ValueError("a field is longer than the message")
        inner = table.get(tag >> 3, _LEAF)
        if isinstance(inner, dict):
            outer.append((end, table))
            end, table = at + size, inner
        else:
            at += size
            count += size * inner
    yield count


def _after(data: bytes, at: int, wire_type: int) -> int:
    """Return the position after a number at position `at`."""
    if wire_type == _VARINT:
        return _varint(data, at)[1]
    if wire_type == _FIXED64:
        return at + 8
    if wire_type == _FIXED32:
        return at + 4
    raise ValueError(f"wire type {wire_type} is not supported")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at position `at`, and the position after it."""
    try:
        value = data[at]
        at += 1
        if value < 0x80:
            return value, at
        value &= 0x7F
        for shift in range(7, 70, 7):
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
    except IndexError:
        pass
    raise ValueError("a number is incomplete")


@cache
def _table(descriptor: Any) -> Table:
    found: Table = {}
    for field in descriptor.fields:
        if field.message_type is not None:
            found[field.number] = _table(field.message_type)
        elif field.is_repeated and field.type not in _TEXTS:
            found[field.number] = _PACKED
    return found
