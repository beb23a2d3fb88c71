"""Encodes the messages of a batch request as records of the CommitLog.

Each record starts as a copy of a template (the header of a record with an empty body), in which the kernel
fills in the fields that differ.
"""

from typing import NamedTuple

import numpy as np
from numba import types

from store.kernels.compiled import helper, kernel
from store.kernels.crc32 import crc32_kernel
from store.kernels.memory import (
    BYTES,
    I64,
    U8,
    WRITABLE_BYTES,
    copy_bytes,
    load_i16,
    load_i32,
    store_i16,
    store_i32,
    store_i64,
    store_u8,
)
from store.message import batch as element
from store.message import record
from store.message.buffers import Buffer
from store.message.properties import PROPERTY_SEPARATOR, MessageConst
from store.message.record import RecordDraft, record_template, topic_field
from store.store_errors import MessageInvalid

_SEPARATOR = ord(PROPERTY_SEPARATOR)
_CRC_NAME = np.frombuffer(f"{MessageConst.CRC32}\x01".encode(), np.uint8)


class EncodedRecords(NamedTuple):
    """Encoded records, one after another in `records`, and the byte position at which each of them begins."""

    records: memoryview
    positions: I64


def measure_batch(
    batch: Buffer, draft: RecordDraft, store_host_bytes: int, *, append_crc: bool = False
) -> tuple[int, int]:
    """Return the number of messages in a batch request, and the total size of their records in bytes.

    Args:
        batch: The body of the batch request.
        draft: The fields that the messages share. Its properties, which end with a separator, are appended to
            the properties of each message.
        store_host_bytes: The size of the encoded address of the broker: 8 or 20.
        append_crc: Include a property with the CRC of the whole record in the sizes.

    Raises:
        MessageInvalid: The lengths in the batch are inconsistent, or properties are too long.
    """
    count, unterminated, longest = _measured(batch)
    common_bytes = len(draft.properties)
    check_room(longest, common_bytes)
    if append_crc and longest + common_bytes > record.MAX_PROPERTIES_BYTES - record.CRC_PROPERTY_BYTES:
        raise record.no_room_for_crc(longest + common_bytes)
    empty_record = RecordDraft(draft.topic, 0, b"", born_host=draft.born_host)
    overhead_bytes = record.record_size(empty_record, store_host_bytes) - element.MIN_ELEMENT_BYTES
    added_bytes = common_bytes + append_crc * record.CRC_PROPERTY_BYTES
    return count, len(batch) + count * (overhead_bytes + added_bytes) + (unterminated if added_bytes else 0)


def check_batch(batch: Buffer) -> int:
    """Return the number of messages in a batch request. Raises MessageInvalid as `measure_batch` does."""
    return _measured(batch)[0]


def _measured(batch: Buffer) -> tuple[int, int, int]:
    count, unterminated, longest, bad_position = measure_batch_kernel(np.frombuffer(batch, np.uint8))
    if bad_position >= 0:
        raise MessageInvalid(f"the lengths of the message at byte {bad_position} of the batch do not add up")
    return count, unterminated, longest


def encode_batch_records(
    batch: Buffer,
    draft: RecordDraft,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
    store_host: bytes,
    *,
    append_crc: bool = False,
) -> EncodedRecords:
    """Encode the records of all messages of a batch request.

    Args:
        batch: The body of the batch request.
        draft: The fields that the records share: all except flag, body and properties. Its properties are
            appended to the properties of each message.
        queue_offset: Queue offset of the first record; the others follow.
        physical_offset: CommitLog offset of the first record; the others follow.
        store_timestamp: In ms since the epoch.
        store_host: The encoded address of the broker (`Host.packed`).
        append_crc: Add a property with the CRC of the whole record.

    Raises:
        MessageInvalid: The lengths in the batch are inconsistent, or properties are too long.
    """
    count, size_bytes = measure_batch(batch, draft, len(store_host), append_crc=append_crc)
    template = record_template(draft, store_timestamp, store_host)
    records = np.empty(size_bytes, np.uint8)
    positions = np.empty(count, np.int64)
    encode_batch_kernel(
        np.frombuffer(batch, np.uint8),
        np.frombuffer(template, np.uint8),
        np.frombuffer(topic_field(draft.topic)[1], np.uint8),
        np.frombuffer(draft.properties, np.uint8),
        queue_offset,
        physical_offset,
        append_crc,
        records,
        positions,
    )
    return EncodedRecords(records.data, positions)


def check_room(own_bytes: int, common_bytes: int) -> None:
    """Raise MessageInvalid if a message's own properties and the common ones are too long together."""
    if common_bytes and own_bytes + common_bytes > record.MAX_PROPERTIES_BYTES:
        raise MessageInvalid(
            f"properties of {own_bytes + common_bytes:,} bytes (including {common_bytes:,} that the broker "
            f"adds) are over the limit of {record.MAX_PROPERTIES_BYTES:,}: move data to the body"
        )


@kernel([types.UniTuple(types.int64, 4)(BYTES)])
def measure_batch_kernel(batch: U8) -> tuple[int, int, int, int]:
    """Check the lengths in the body of a batch request, and measure its messages.

    Returns:
        A tuple: the number of messages; how many of them lack the separator at the end of their properties;
        the size of the longest properties, including that separator; and the byte position of the first
        invalid message, or -1 if all are valid.
    """
    count = 0
    longest = 0
    unterminated = 0
    position = 0
    while position < len(batch):
        available = len(batch) - position
        if available < element.MIN_ELEMENT_BYTES:
            return count, unterminated, longest, position
        size = load_i32(batch, position)
        body_length = load_i32(batch, position + element.BODY_LENGTH)
        if size > available or body_length < 0 or body_length > size - element.MIN_ELEMENT_BYTES:
            return count, unterminated, longest, position
        properties_length = load_i16(batch, position + element.ELEMENT_HEADER_BYTES + body_length)
        if properties_length != size - element.MIN_ELEMENT_BYTES - body_length:
            return count, unterminated, longest, position
        position += size
        if properties_length > 0 and batch[position - 1] != _SEPARATOR:
            unterminated += 1
            properties_length += 1
        longest = max(longest, properties_length)
        count += 1
    return count, unterminated, longest, -1


@helper()
def write_crc_property(records: U8, start: int, end: int) -> None:
    """Write the CRC of the record `records[start:end]` into its last 20 bytes.

    See docs/store-format.md#crc-property.
    """
    property_start = end - record.CRC_PROPERTY_BYTES
    digits = property_start + len(_CRC_NAME)
    remaining = crc32_kernel(records, start, property_start)
    for index in range(len(_CRC_NAME)):
        store_u8(records, property_start + index, _CRC_NAME[index])
    for index in range(record.CRC_PROPERTY_DIGITS):
        store_u8(records, digits + index, 48 + remaining % 10)
        remaining //= 10
    store_u8(records, end - 1, _SEPARATOR)


@kernel(
    [
        types.void(
            BYTES,
            BYTES,
            BYTES,
            BYTES,
            types.int64,
            types.int64,
            types.boolean,
            WRITABLE_BYTES,
            types.int64[::1],
        )
    ],
)
def encode_batch_kernel(
    batch: U8,
    template: U8,
    topic: U8,
    common: U8,
    queue_offset: int,
    physical_offset: int,
    append_crc: bool,
    records: U8,
    positions: I64,
) -> None:
    """Encode the records into `records`, and the byte position of each record into `positions`.

    Both arrays must have the sizes that `measure_batch` returned.
    """
    source = 0
    start = 0
    for index in range(len(positions)):
        body_length = load_i32(batch, source + element.BODY_LENGTH)
        body = source + element.ELEMENT_HEADER_BYTES
        properties_length = load_i16(batch, body + body_length)
        copy_bytes(records, start, template, 0, len(template))
        target = start + len(template)
        store_i32(records, target - 4, body_length)
        copy_bytes(records, target, batch, body, body_length)
        target += body_length
        copy_bytes(records, target, topic, 0, len(topic))
        properties_at = target + len(topic)
        target = properties_at + 2
        copy_bytes(records, target, batch, body + body_length + 2, properties_length)
        target += properties_length
        if append_crc or len(common) > 0:
            if properties_length > 0 and batch[body + body_length + 1 + properties_length] != _SEPARATOR:
                store_u8(records, target, _SEPARATOR)
                target += 1
            copy_bytes(records, target, common, 0, len(common))
            target += len(common)
        if append_crc:
            target += record.CRC_PROPERTY_BYTES
        store_i16(records, properties_at, target - properties_at - 2)
        store_i32(records, start, target - start)
        store_i32(records, start + record.BODY_CRC, crc32_kernel(batch, body, body + body_length))
        store_i32(records, start + record.FLAG, load_i32(batch, source + element.FLAG))
        store_i64(records, start + record.QUEUE_OFFSET, queue_offset + index)
        store_i64(records, start + record.PHYSICAL_OFFSET, physical_offset + start)
        if append_crc:
            write_crc_property(records, start, target)
        positions[index] = start
        source = body + body_length + 2 + properties_length
        start = target
