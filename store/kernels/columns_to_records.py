"""Encodes rows of columns as records, grouped by queue, for a bulk send.

A row is one message to send; its body, key and tag are elements of three columns. `plan_rows` checks the
rows, sorts them by queue and computes the size of each queue's records. `encode_queues` then encodes the
records of some queues at a time, so that the client can send the first records while it encodes the next.

The record fields that only the broker knows stay 0, and so does bodyCRC: the broker fills them in (see
`store.kernels.stamp`).
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from store.kernels.compiled import helper, kernel
from store.kernels.java_hash import as_i32, hash_bytes
from store.kernels.memory import (
    BYTES,
    I64,
    U8,
    WRITABLE_BYTES,
    copy_bytes,
    store_i16,
    store_i32,
    store_u8,
)
from store.message.hosts import V4_BYTES
from store.message.message_id import SEQUENCE_HEX, UniqKeyBlock
from store.message.properties import MessageConst
from store.message.record import (
    MAX_PROPERTIES_BYTES,
    QUEUE_ID,
    RecordDraft,
    record_template,
    topic_field,
)
from store.store_errors import MessageInvalid

_I64 = types.Array(types.int64, 1, "C", readonly=True)
_I32 = types.Array(types.int32, 1, "C", readonly=True)
_WRITABLE_I64 = types.Array(types.int64, 1, "C")

_KEYS = np.frombuffer(f"{MessageConst.KEYS}\x01".encode(), np.uint8)
_TAGS = np.frombuffer(f"{MessageConst.TAGS}\x01".encode(), np.uint8)
_NAME_VALUE_SEPARATOR = 0x01
_SEPARATOR = 0x02

BAD_QUEUE = 1
BAD_BODY = 2
BAD_PROPERTIES = 3
BAD_TEXT = 4
NO_BODY = 5


class TextColumn(NamedTuple):
    """A column of byte strings in Arrow's layout: row i is `data[offsets[i] : offsets[i + 1]]`."""

    offsets: I64
    data: U8

    def row(self, index: int) -> bytes:
        """Return the value in row `index` of the column."""
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()

    @classmethod
    def absent(cls, rows: int) -> "TextColumn":
        """Return a column with `rows` empty values, for a property that no message has."""
        return cls(np.zeros(rows + 1, np.int64), np.empty(0, np.uint8))


class RowBatch(NamedTuple):
    """Messages (rows) to be sent to the queues of one topic.

    Row i goes to queue `q = queues[i]`, whose id on its broker is `queue_ids[q]`. `draft` has the fields and
    properties that all rows share. An empty key or tag means that the message has none. `properties` has the
    encoded properties of each row; None means that no row has any.
    """

    draft: RecordDraft
    bodies: TextColumn
    keys: TextColumn
    tags: TextColumn
    queues: npt.NDArray[np.int32]
    queue_ids: npt.NDArray[np.int32]
    uniq_keys: UniqKeyBlock
    max_body_bytes: int
    store_host_bytes: int = V4_BYTES
    properties: TextColumn | None = None

    @property
    def own_properties(self) -> TextColumn:
        """Return the encoded properties of each row, or empty ones if no row has any."""
        return TextColumn.absent(len(self.queues)) if self.properties is None else self.properties


class RowPlan(NamedTuple):
    """The order of the records of a bulk send: by queue, and within a queue in the order of the rows.

    The records of queue q are those of the rows `order[first_rows[q] : first_rows[q + 1]]`. They occupy the
    bytes [`starts[q]`, `starts[q + 1]`) of the encoded records.
    """

    order: I64
    first_rows: I64
    starts: I64


def plan_rows(rows: RowBatch) -> RowPlan:
    """Check all rows, and compute the order and sizes of their records.

    Raises:
        MessageInvalid: A row has an empty or too long body, too long properties, a queue index out of range,
            or a key or tag that contains a separator character. The error message contains the row's index.
    """
    count, queue_count = len(rows.queues), len(rows.queue_ids)
    template, topic, fixed = _common(rows)
    first_rows, starts = np.zeros(queue_count + 1, np.int64), np.zeros(queue_count + 1, np.int64)
    row, fault = _measure_rows(
        rows.bodies.offsets,
        *rows.keys,
        *rows.tags,
        rows.own_properties.offsets,
        rows.queues,
        len(template) + len(topic) + 2,
        len(fixed) + SEQUENCE_HEX + 1,
        rows.max_body_bytes,
        first_rows[1:],
        starts[1:],
    )
    if fault:
        raise row_error(rows, row, fault)
    np.cumsum(first_rows, out=first_rows)
    np.cumsum(starts, out=starts)
    order = np.empty(count, np.int64)
    _sort_rows(rows.queues, first_rows[:-1].copy(), order)
    return RowPlan(order, first_rows, starts)


def encode_queues(rows: RowBatch, plan: RowPlan, first: int, end: int) -> memoryview:
    """Encode the records of the queues `first` to `end` - 1, and return them in the order of `plan`.

    The message in row i gets UNIQ_KEY i of the block `rows.uniq_keys`.
    """
    template, topic, fixed = _common(rows)
    records = np.empty(plan.starts[end] - plan.starts[first], np.uint8)
    is_all = end - first == len(rows.queue_ids)
    order = plan.order[plan.first_rows[first] : plan.first_rows[end]]
    _encode_rows(
        *rows.bodies,
        *rows.keys,
        *rows.tags,
        *rows.own_properties,
        rows.queues,
        rows.queue_ids,
        # Read the rows in ascending order: alternating between the queues' output positions is faster than
        # alternating between input rows.
        np.arange(len(order)) if is_all else np.sort(order),
        plan.starts - plan.starts[first],
        np.frombuffer(template, np.uint8),
        np.frombuffer(topic, np.uint8),
        np.frombuffer(fixed, np.uint8),
        rows.uniq_keys.first,
        records,
    )
    return records.data


def queues_of_keys(keys: TextColumn, queue_count: int) -> npt.NDArray[np.int32]:
    """Return a queue index for each row, by the hash of its key as in RocketMQ's SelectMessageQueueByHash.

    An empty key selects queue 0.
    """
    queue_ids = np.empty(len(keys.offsets) - 1, np.int32)
    _queues_of_keys(keys.offsets, keys.data, queue_count, queue_ids)
    return queue_ids


def _common(rows: RowBatch) -> tuple[bytes, bytes, bytes]:
    """Encode the bytes that the records of all rows have in common.

    Returns:
        The record header, the topic field, and the beginning of the properties up to the last digits of
            UNIQ_KEY.
    """
    fixed = rows.draft.properties + f"{MessageConst.UNIQ_KEY}\x01{rows.uniq_keys.prefix}".encode()
    template = record_template(rows.draft, 0, bytes(rows.store_host_bytes))
    return template, topic_field(rows.draft.topic)[1], fixed


def row_error(rows: RowBatch, row: int, fault: int) -> MessageInvalid:
    """Return the error for row `row`; `fault` is NO_BODY or one of the BAD_ codes."""
    body_bytes = int(rows.bodies.offsets[row + 1] - rows.bodies.offsets[row])
    faults = {
        BAD_QUEUE: f"queue {rows.queues[row]} is not one of the topic's {len(rows.queue_ids)} queues",
        BAD_BODY: f"body of {body_bytes:,} bytes is over max_message_bytes {rows.max_body_bytes:,}",
        BAD_PROPERTIES: f"the properties are over the limit of {MAX_PROPERTIES_BYTES:,} bytes",
        NO_BODY: "the body is missing or empty",
        BAD_TEXT: "the keys or tags contain a separator character (0x01 or 0x02)",
    }
    return MessageInvalid(f"row {row}: {faults[fault]}")


@helper()
def _has_separator(data: U8, start: int, end: int) -> bool:
    for index in range(start, end):  # noqa: SIM110 -- numba compiles no generator expressions
        if _NAME_VALUE_SEPARATOR <= data[index] <= _SEPARATOR:
            return True
    return False


@kernel(
    types.UniTuple(types.int64, 2)(
        _I64, _I64, BYTES, _I64, BYTES, _I64, _I32, *[types.int64] * 3, _WRITABLE_I64, _WRITABLE_I64
    ),
)
def _measure_rows(
    body_offsets: I64,
    key_offsets: I64,
    key_data: U8,
    tag_offsets: I64,
    tag_data: U8,
    property_offsets: I64,
    queues: npt.NDArray[np.int32],
    bare_bytes: int,
    fixed_properties_bytes: int,
    max_body_bytes: int,
    counts: I64,
    sizes: I64,
) -> tuple[int, int]:
    """Check all rows, and add up the sizes of their records.

    `counts` receives the number of rows of each queue, `sizes` the bytes of their records.

    Returns:
        Index and fault code of the first invalid row, or (-1, 0) if all rows are valid.
    """
    for row in range(len(queues)):
        queue = queues[row]
        if queue < 0 or queue >= len(counts):
            return row, BAD_QUEUE
        body = body_offsets[row + 1] - body_offsets[row]
        if body <= 0:
            return row, NO_BODY
        if body > max_body_bytes:
            return row, BAD_BODY
        keys = key_offsets[row + 1] - key_offsets[row]
        tags = tag_offsets[row + 1] - tag_offsets[row]
        properties = fixed_properties_bytes + property_offsets[row + 1] - property_offsets[row]
        if keys > 0:
            properties += len(_KEYS) + keys + 1
        if tags > 0:
            properties += len(_TAGS) + tags + 1
        if properties > MAX_PROPERTIES_BYTES:
            return row, BAD_PROPERTIES
        if _has_separator(key_data, key_offsets[row], key_offsets[row + 1]) or _has_separator(
            tag_data, tag_offsets[row], tag_offsets[row + 1]
        ):
            return row, BAD_TEXT
        counts[queue] += 1
        sizes[queue] += bare_bytes + body + properties
    return -1, 0


@kernel(types.void(_I32, _WRITABLE_I64, _WRITABLE_I64))
def _sort_rows(queues: npt.NDArray[np.int32], places: I64, order: I64) -> None:
    """Fill `order` with the indexes of the rows, sorted by queue.

    On entry, `places[q]` is the index in `order` at which the rows of queue q begin; on return, at which they
    end.
    """
    for row in range(len(queues)):
        queue = queues[row]
        order[places[queue]] = row
        places[queue] += 1


@helper()
def _write_pair(records: U8, target: int, name: U8, data: U8, start: int, end: int) -> int:
    """Write a property (name and value) at `position`, unless its value is empty.

    Returns the position after the written bytes.
    """
    if start == end:
        return target
    copy_bytes(records, target, name, 0, len(name))
    target += len(name)
    copy_bytes(records, target, data, start, end - start)
    target += end - start
    store_u8(records, target, _SEPARATOR)
    return target + 1


@helper()
def _write_hex(records: U8, target: int, value: int) -> None:
    """Write `value` as SEQUENCE_HEX upper-case hexadecimal digits."""
    for index in range(SEQUENCE_HEX):
        digit = (value >> (4 * (SEQUENCE_HEX - 1 - index))) & 0xF
        store_u8(records, target + index, digit + (48 if digit < 10 else 55))


@kernel(
    types.void(
        *[_I64, BYTES] * 4,
        _I32,
        _I32,
        _I64,
        _WRITABLE_I64,
        BYTES,
        BYTES,
        BYTES,
        types.int64,
        WRITABLE_BYTES,
    ),
)
def _encode_rows(
    body_offsets: I64,
    body_data: U8,
    key_offsets: I64,
    key_data: U8,
    tag_offsets: I64,
    tag_data: U8,
    property_offsets: I64,
    property_data: U8,
    queues: npt.NDArray[np.int32],
    queue_ids: npt.NDArray[np.int32],
    order: I64,
    places: I64,
    template: U8,
    topic: U8,
    fixed_properties: U8,
    first_uniq: int,
    records: U8,
) -> None:
    """Encode the records of the rows in `order`.

    `places[q]` is the byte position at which the next record of queue q is written; each record advances it.
    """
    for row in order:
        queue = queues[row]
        start = places[queue]
        copy_bytes(records, start, template, 0, len(template))
        body_length = body_offsets[row + 1] - body_offsets[row]
        target = start + len(template)
        store_i32(records, target - 4, body_length)
        copy_bytes(records, target, body_data, body_offsets[row], body_length)
        target += body_length
        copy_bytes(records, target, topic, 0, len(topic))
        properties = target + len(topic) + 2
        copy_bytes(records, properties, fixed_properties, 0, len(fixed_properties))
        target = properties + len(fixed_properties)
        _write_hex(records, target, first_uniq + row)
        store_u8(records, target + SEQUENCE_HEX, _SEPARATOR)
        target += SEQUENCE_HEX + 1
        target = _write_pair(records, target, _KEYS, key_data, key_offsets[row], key_offsets[row + 1])
        target = _write_pair(records, target, _TAGS, tag_data, tag_offsets[row], tag_offsets[row + 1])
        own_bytes = property_offsets[row + 1] - property_offsets[row]
        copy_bytes(records, target, property_data, property_offsets[row], own_bytes)
        target += own_bytes
        store_i16(records, properties - 2, target - properties)
        store_i32(records, start, target - start)
        store_i32(records, start + QUEUE_ID, queue_ids[queue])
        places[queue] = target


@kernel(types.void(_I64, BYTES, types.int64, types.int32[::1]))
def _queues_of_keys(offsets: I64, data: U8, queue_count: int, queue_ids: npt.NDArray[np.int32]) -> None:
    for row in range(len(queue_ids)):
        queue_ids[row] = abs(as_i32(hash_bytes(data, offsets[row], offsets[row + 1], 0))) % queue_count
