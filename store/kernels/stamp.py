"""Stamps records: writes the fields that only the broker knows into records that a client encoded.

These fields are bodyCRC, queueOffset, physicalOffset, bornHost, storeTimestamp and storeHost. The other
fields are checked: sizes, magic, topic, queue id, flags, and the sizes of both hosts. If a function raises
MessageInvalid, some records may already be stamped; the caller must discard the whole batch.

A run is a sequence of consecutive records of one queue (`store.message.runs`).
"""

from collections.abc import Sequence
from struct import pack_into
from typing import NamedTuple, TypeAlias

import numpy as np
from numba import types

from store.kernels.compiled import helper, kernel
from store.kernels.crc32 import crc32_kernel
from store.kernels.memory import BYTES, I64, U8, WRITABLE_BYTES, copy_bytes, load_i32, store_i32, store_i64
from store.kernels.walk import record_parts, record_size
from store.message.crc import crc32
from store.message.hosts import V6_BYTES
from store.message.message import MessageExt
from store.message.record import (
    BODY_CRC,
    BORN_HOST,
    MAGIC,
    PHYSICAL_OFFSET,
    QUEUE_ID,
    QUEUE_OFFSET,
    SYS_FLAG,
    decode_record,
    topic_field,
)
from store.message.runs import Runs
from store.message.sys_flag import BORN_HOST_V6, COMPRESSED, COMPRESSION_MASK, MULTI_TAGS, STORE_HOST_V6
from store.store_errors import MessageInvalid, RecordDamaged

# sysFlag bits that a client may set. Transactions and RocketMQ's inner batches are not allowed in bulk sends.
FREE_FLAGS = COMPRESSED | COMPRESSION_MASK | MULTI_TAGS

_BAD_RECORD = -1
_BAD_TOPIC = -2
_BAD_QUEUE = -3
_BAD_FLAGS = -4
_BAD_BODY = -5
_BAD_COUNT = -6


Shared: TypeAlias = tuple[int, U8, int, int, int, U8, U8]
"""The values that are the same for all records of one call: magic, topic field, sysFlag bits of the hosts,
max_body_bytes, storeTimestamp, born host, store host.
"""
_SHARED = types.Tuple((types.int64, BYTES, types.int64, types.int64, types.int64, BYTES, BYTES))


class Stamp(NamedTuple):
    """The values for checking and stamping a sequence of records.

    Each record must have `topic`, and a body of at most `max_body_bytes`. The other values are written into
    the records. Hosts are encoded addresses (`Host.packed`). `physical_offset` is that of the first record.
    """

    topic: str
    physical_offset: int
    store_timestamp: int
    born_host: bytes
    store_host: bytes
    max_body_bytes: int

    @property
    def host_flags(self) -> int:
        """The sysFlag bits that mark born host and store host as IPv6 addresses."""
        born = BORN_HOST_V6 if len(self.born_host) == V6_BYTES else 0
        return born | (STORE_HOST_V6 if len(self.store_host) == V6_BYTES else 0)

    @property
    def shared(self) -> Shared:
        """The values that are the same for all records, in the form in which the kernels take them."""
        magic, topic = topic_field(self.topic)
        return (
            magic,
            np.frombuffer(topic, np.uint8),
            self.host_flags,
            self.max_body_bytes,
            self.store_timestamp,
            np.frombuffer(self.born_host, np.uint8),
            np.frombuffer(self.store_host, np.uint8),
        )


def stamp_runs(runs: Runs, stamp: Stamp, queue_offsets: Sequence[int]) -> None:
    """Check and stamp the records of several queues in place.

    Args:
        runs: The records, as one run of consecutive records per queue.
        stamp: The values that all records share.
        queue_offsets: The queue offset of the first record of each run.

    Raises:
        MessageInvalid: A record is invalid, or a run contains another number of records than its header says.
            The error message contains the byte position.
    """
    number, position, fault = _stamp_runs(
        np.frombuffer(runs.records, np.uint8),
        np.array((*runs.heads, queue_offsets), np.int64),
        stamp.physical_offset,
        stamp.shared,
    )
    if fault:
        raise _run_error(stamp, runs, number, position, fault)


def stamp_runs_plain(runs: Runs, stamp: Stamp, queue_offsets: Sequence[int]) -> None:
    """Pure-Python equivalent of `stamp_runs`, for tests."""
    position = 0
    for number, (queue_id, messages, size_bytes, queue_offset) in enumerate(
        zip(*runs.heads, queue_offsets, strict=True)
    ):
        end = position + size_bytes
        count = _stamp_run_plain(runs.records[:end], position, queue_id, queue_offset, stamp)
        position = end
        if count != messages:
            raise _run_error(stamp, runs, number, position, _BAD_COUNT)


def _stamp_run_plain(view: memoryview, begin: int, queue_id: int, queue_offset: int, stamp: Stamp) -> int:
    """Check and stamp the records of one queue in `view[begin:]`. Return the number of records."""
    hosts = stamp.born_host + stamp.store_timestamp.to_bytes(8, "big") + stamp.store_host
    position = begin
    count = 0
    while position < len(view):
        try:
            message = decode_record(view, position, check_crc=False)
        except RecordDamaged:
            raise _record_error(stamp, queue_id, position, _BAD_RECORD) from None
        magic = int.from_bytes(view[position + MAGIC :][:4], "big", signed=True)
        fault = _find_fault_plain(message, magic, queue_id, stamp)
        if fault:
            raise _record_error(stamp, queue_id, position, fault)
        pack_into(">i", view, position + BODY_CRC, crc32(message.body))
        pack_into(
            ">qq", view, position + QUEUE_OFFSET, queue_offset + count, stamp.physical_offset + position
        )
        view[position + BORN_HOST :][: len(hosts)] = hosts
        position += message.store_size
        count += 1
    return count


def _find_fault_plain(message: MessageExt, magic: int, queue_id: int, stamp: Stamp) -> int:
    """Return the code of the first fault of a record, or 0 if the record is valid."""
    if message.sys_flag & ~FREE_FLAGS != stamp.host_flags:
        return _BAD_FLAGS
    if (message.topic, magic) != (stamp.topic, topic_field(stamp.topic)[0]):
        return _BAD_TOPIC
    if message.queue_id != queue_id:
        return _BAD_QUEUE
    return _BAD_BODY if len(message.body) > stamp.max_body_bytes else 0


def _record_error(stamp: Stamp, queue_id: int, position: int, fault: int) -> MessageInvalid:
    faults = {
        _BAD_RECORD: "is truncated or malformed",
        _BAD_FLAGS: "has a sysFlag of a transaction, an inner batch, or hosts of another size",
        _BAD_TOPIC: f"is not of the topic {stamp.topic!r}",
        _BAD_QUEUE: f"is not of queue {queue_id}",
        _BAD_BODY: f"has a body over max_message_bytes {stamp.max_body_bytes:,} (raise it on the broker)",
    }
    return MessageInvalid(f"the record at byte {position} of the batch {faults[fault]}")


def _run_error(stamp: Stamp, runs: Runs, number: int, position: int, fault: int) -> MessageInvalid:
    queue_id = runs.queue_ids[number]
    if fault == _BAD_COUNT:
        return MessageInvalid(
            f"the run of queue {queue_id} that ends at byte {position} of the batch does not contain "
            f"{runs.messages[number]:,} records, the number in its header"
        )
    return _record_error(stamp, queue_id, position, fault)


@helper()
def _find_fault(
    records: U8,
    position: int,
    end: int,
    magic: int,
    topic: U8,
    queue_id: int,
    host_flags: int,
    max_body_bytes: int,
) -> tuple[int, int, int, int]:
    """Check the record at `position`, which must end at or before `end`.

    Returns:
        The code of the record's first fault or 0, its size, and the start and end positions of its body.
    """
    size = record_size(records, position, end)
    if size <= 0:
        return _BAD_RECORD, 0, 0, 0
    body, body_length, _, _, _, _ = record_parts(records, position, size)
    if body_length < 0:
        return _BAD_RECORD, 0, 0, 0
    fault = 0
    if load_i32(records, position + SYS_FLAG) & ~FREE_FLAGS != host_flags:
        fault = _BAD_FLAGS
    elif load_i32(records, position + MAGIC) != magic or not _same_bytes(records, body + body_length, topic):
        fault = _BAD_TOPIC
    elif load_i32(records, position + QUEUE_ID) != queue_id:
        fault = _BAD_QUEUE
    elif body_length > max_body_bytes:
        fault = _BAD_BODY
    return fault, size, body, body + body_length


@helper()
def _same_bytes(records: U8, start: int, topic: U8) -> bool:
    """Return True if the topic field at position `start` of the record equals `topic`.

    Both topic fields include their length prefix.
    """
    for index in range(len(topic)):  # noqa: SIM110 -- numba compiles no generator expressions
        if records[start + index] != topic[index]:
            return False
    return True


@helper()
def _stamp_run(
    records: U8, begin: int, end: int, queue_id: int, queue_offset: int, physical_offset: int, shared: Shared
) -> tuple[int, int, int]:
    """Check and stamp the consecutive records of one queue in `records[begin:end]`.

    `queue_offset` is that of the first record. `physical_offset` is the CommitLog offset of `records[0]`.

    Returns:
        The number of records stamped, the position at which the check stopped, and the fault code of the
        invalid record at this position (0 if all records are valid).
    """
    magic, topic, host_flags, max_body_bytes, store_timestamp, born_host, store_host = shared
    store_timestamp_at = BORN_HOST + len(born_host)
    position = begin
    count = 0
    while position < end:
        fault, size, body, body_end = _find_fault(
            records, position, end, magic, topic, queue_id, host_flags, max_body_bytes
        )
        if fault != 0:
            return count, position, fault
        store_i32(records, position + BODY_CRC, crc32_kernel(records, body, body_end))
        store_i64(records, position + QUEUE_OFFSET, queue_offset + count)
        store_i64(records, position + PHYSICAL_OFFSET, physical_offset + position)
        copy_bytes(records, position + BORN_HOST, born_host, 0, len(born_host))
        store_i64(records, position + store_timestamp_at, store_timestamp)
        copy_bytes(records, position + store_timestamp_at + 8, store_host, 0, len(store_host))
        position += size
        count += 1
    return count, position, 0


@kernel(
    [types.UniTuple(types.int64, 3)(WRITABLE_BYTES, types.int64[:, ::1], types.int64, _SHARED)],
)
def _stamp_runs(records: U8, runs: I64, physical_offset: int, shared: Shared) -> tuple[int, int, int]:
    """Check and stamp the records of several queues, one run of consecutive records per queue.

    `runs` has one column per run; its rows are queue id, number of records, size in bytes, and queue offset
    of the first record.

    Returns:
        A tuple: the index of the first invalid run, the byte position of its fault in `records`, and the
            fault
        code. If all runs are valid, these are the number of runs, the end position and 0.
    """
    begin = 0
    for number in range(runs.shape[1]):
        queue_id, wanted, size_bytes, queue_offset = runs[:, number]
        end = begin + size_bytes
        count, position, fault = _stamp_run(
            records, begin, end, queue_id, queue_offset, physical_offset, shared
        )
        if fault == 0 and count != wanted:
            fault = _BAD_COUNT
        if fault != 0:
            return number, position, fault
        begin = end
    return runs.shape[1], begin, 0
