"""Decodes records into MessageExt objects for consumers, without a Python loop over the records.

A kernel converts the records to MessagePack, and msgspec creates the objects from that. Each record becomes a
map with the fields of MessageExt:

    template   | map16 | "broker_name" str16 | "queue_id" i32 | "queue_offset" i64 | … the other numbers |
    after it   | "topic" str16 | "body" bin32 | "properties" map32: str16 str16 … |
               | "born_host" [ip str8, port i32] | "store_host" [ip str8, port i32] |

Numbers are big-endian in both formats and are copied unchanged. `store.message.fetched.decode_messages` is
the pure-Python equivalent; it also decodes the records that the kernel does not support: those with an IPv6
host, a compressed or large body, invalid UTF-8, or damage.
"""

import threading
from functools import lru_cache

import msgspec
import numpy as np
from numba import types

from store.kernels.compiled import helper, kernel
from store.kernels.memory import (
    BYTES,
    U8,
    WRITABLE_BYTES,
    copy_bytes,
    find_byte,
    load_i32,
    store_i16,
    store_i32,
    store_u8,
)
from store.kernels.messagepack import (
    ARRAY32,
    BIN32,
    FIXARRAY,
    FIXSTR,
    INT32,
    INT64,
    MAP16,
    MAP32,
    STR8,
    STR16,
)
from store.kernels.walk import body_is_valid, record_parts, record_size
from store.message import fetched, record
from store.message.buffers import Buffer
from store.message.message import MessageExt
from store.message.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from store.message.sys_flag import COMPRESSED, HOST_BITS

SCRATCH_BYTES = 256 * 1024
"""Size of the buffer in which each thread collects MessagePack data; it limits the memory per thread.

`decode_message_records` returns when the buffer is full, and the caller calls it again for the remaining
records.
"""

_HEAD_BYTES = 5  # header of the array of all messages

# The numeric fields of a record with IPv4 hosts: position and size in bytes.
_NUMBERS = {
    "queue_id": (record.QUEUE_ID, 4),
    "queue_offset": (record.QUEUE_OFFSET, 8),
    "commit_log_offset": (record.PHYSICAL_OFFSET, 8),
    "flag": (record.FLAG, 4),
    "store_size": (record.TOTAL_SIZE, 4),
    "sys_flag": (record.SYS_FLAG, 4),
    "body_crc": (record.BODY_CRC, 4),
    "born_timestamp": (record.BORN_TIMESTAMP, 8),
    "store_timestamp": (record.STORE_TIMESTAMP, 8),
    "reconsume_times": (record.RECONSUME_TIMES, 4),
    "prepared_transaction_offset": (record.PREPARED_TRANSACTION_OFFSET, 8),
}


def _key(name: str) -> bytes:
    return bytes([FIXSTR | len(name)]) + name.encode()


def _numbers() -> tuple[bytes, list[tuple[int, int, int]]]:
    """Build the part of the template that contains the numeric fields of MessageExt.

    Returns:
        The part, and for each field a tuple: its position in the template, its position in the record, its
            size.
    """
    part, places = b"", []
    for name, (at, width) in _NUMBERS.items():
        part += _key(name) + bytes([INT32 if width == 4 else INT64])
        places.append((len(part), at, width))
        part += bytes(width)
    return part, places


_NUMBERS_PART, _PLACES = _numbers()
_NUMBER_PLACES = np.array(_PLACES, np.int64)
_NUMBERS_BYTES = len(_NUMBERS_PART)
_TOPIC, _BODY, _PROPERTIES, _BORN_HOST, _STORE_HOST = (
    np.frombuffer(_key(name), np.uint8) for name in ("topic", "body", "properties", "born_host", "store_host")
)
# Field names, length prefixes, and two hosts with addresses of at most 15 characters.
_OTHERS_BYTES = (
    sum(map(len, (_TOPIC, _BODY, _PROPERTIES, _BORN_HOST, _STORE_HOST))) + 3 + 5 + 5 + 2 * (3 + 15 + 5)
)
_FIELDS = 1 + len(_NUMBERS) + 5  # broker_name, the numbers, and the five fields above
_UNUSUAL = HOST_BITS | COMPRESSED
_NAME_END, _PAIR_END = ord(NAME_VALUE_SEPARATOR), ord(PROPERTY_SEPARATOR)
# A property of n bytes (at least 4, or 3 at the end) becomes n - 2 bytes and two lengths of 3 bytes each.
_PROPERTIES_GROWTH = 3

_decoder = msgspec.msgpack.Decoder(list[MessageExt])
_of_thread = threading.local()


def decode_message_records(
    records: Buffer, position: int, count: int, broker_name: str
) -> tuple[list[MessageExt], int]:
    """Decode up to `count` records into messages, starting at byte `position` of `records`.

    Like `store.message.fetched.decode_messages`, but may return fewer messages per call, because the buffer
    for MessagePack data is limited to SCRATCH_BYTES.

    Returns:
        The messages, and the position of the next record.

    Raises:
        RecordDamaged: The first record is damaged.
    """
    scratch = _scratch()
    written, end, used = _write_messages(
        np.frombuffer(records, np.uint8), position, count, _template(broker_name), scratch
    )
    if not written:
        return fetched.decode_messages(records, position, 1, broker_name)
    try:
        return _decoder.decode(scratch.data[:used]), end
    except (UnicodeDecodeError, msgspec.DecodeError):  # invalid UTF-8
        return fetched.decode_messages(records, position, written, broker_name)


def _scratch() -> U8:
    found: U8 | None = getattr(_of_thread, "scratch", None)
    if found is None:
        found = _of_thread.scratch = np.empty(SCRATCH_BYTES, np.uint8)
    return found


@lru_cache(maxsize=256)
def _template(broker_name: str) -> U8:
    name = broker_name.encode()
    head = bytes([MAP16]) + _FIELDS.to_bytes(2, "big")
    broker = _key("broker_name") + bytes([STR16]) + len(name).to_bytes(2, "big") + name
    return np.frombuffer(head + broker + _NUMBERS_PART, np.uint8)


@helper()
def _write_numbers(records: U8, position: int, template: U8, out: U8, used: int) -> int:
    copy_bytes(out, used, template, 0, len(template))
    used += len(template)
    for number in range(len(_NUMBER_PLACES)):
        place = used - _NUMBERS_BYTES + _NUMBER_PLACES[number, 0]
        copy_bytes(out, place, records, position + _NUMBER_PLACES[number, 1], _NUMBER_PLACES[number, 2])
    return used


@helper()
def _write_key(key: U8, out: U8, used: int) -> int:
    copy_bytes(out, used, key, 0, len(key))
    return used + len(key)


@helper()
def _write_text(records: U8, start: int, length: int, out: U8, used: int) -> int:
    store_u8(out, used, STR16)
    store_i16(out, used + 1, length)
    copy_bytes(out, used + 3, records, start, length)
    return used + 3 + length


@helper()
def _write_properties(records: U8, start: int, end: int, out: U8, used: int) -> int:
    """Write the properties of a record as a MessagePack map, without those that have no name or no value.

    If a name occurs twice, both pairs are written, and the decoder uses the last one.
    """
    head = used
    used += 5
    pairs = 0
    while start < end:
        stop = find_byte(records, start, end, _PAIR_END)
        separator = find_byte(records, start, stop, _NAME_END)
        if start < separator < stop - 1:
            used = _write_text(records, start, separator - start, out, used)
            used = _write_text(records, separator + 1, stop - separator - 1, out, used)
            pairs += 1
        start = stop + 1
    store_u8(out, head, MAP32)
    store_i32(out, head + 1, pairs)
    return used


@helper()
def _write_host(records: U8, start: int, out: U8, used: int) -> int:
    """Write a host as a MessagePack array of two values: the IPv4 address in dotted decimal, and the port."""
    store_u8(out, used, FIXARRAY | 2)
    store_u8(out, used + 1, STR8)
    text = used + 3
    end = text
    for part in range(4):
        number = np.int64(records[start + part])
        if part:
            store_u8(out, end, 0x2E)
            end += 1
        if number >= 100:
            store_u8(out, end, 0x30 + number // 100)
            end += 1
        if number >= 10:
            store_u8(out, end, 0x30 + number // 10 % 10)
            end += 1
        store_u8(out, end, 0x30 + number % 10)
        end += 1
    store_u8(out, used + 2, end - text)
    store_u8(out, end, INT32)
    copy_bytes(out, end + 1, records, start + 4, 4)
    return end + 5


@kernel(
    types.UniTuple(types.int64, 3)(BYTES, types.int64, types.int64, BYTES, WRITABLE_BYTES), keeps_gil=True
)
def _write_messages(records: U8, position: int, count: int, template: U8, out: U8) -> tuple[int, int, int]:
    """Convert up to `count` records to MessagePack in `out`.

    Returns:
        The number of messages written, the position of the next record, and the bytes used in `out`.
    """
    used = _HEAD_BYTES
    written = 0
    while written < count and position < len(records):
        size = record_size(records, position, len(records))
        if size <= 0:
            break
        body, body_length, topic, topic_length, properties, properties_length = record_parts(
            records, position, size
        )
        if body_length < 0 or (load_i32(records, position + record.SYS_FLAG) & _UNUSUAL) != 0:
            break
        most = (
            len(template)
            + _OTHERS_BYTES
            + topic_length
            + body_length
            + _PROPERTIES_GROWTH * properties_length
        )
        if used + most > len(out) or not body_is_valid(records, position, body, body_length):
            break
        used = _write_numbers(records, position, template, out, used)
        used = _write_key(_TOPIC, out, used)
        used = _write_text(records, topic, topic_length, out, used)
        used = _write_key(_BODY, out, used)
        store_u8(out, used, BIN32)
        store_i32(out, used + 1, body_length)
        copy_bytes(out, used + 5, records, body, body_length)
        used = _write_key(_PROPERTIES, out, used + 5 + body_length)
        used = _write_properties(records, properties, position + size, out, used)
        used = _write_key(_BORN_HOST, out, used)
        used = _write_host(records, position + record.BORN_HOST, out, used)
        used = _write_key(_STORE_HOST, out, used)
        used = _write_host(records, position + record.STORE_HOST, out, used)
        position += size
        written += 1
    store_u8(out, 0, ARRAY32)
    store_i32(out, 1, written)
    return written, position, used
