"""Stamps records: writes the fields that only the broker knows into records that a client encoded.

These fields are bodyCRC, queueOffset, physicalOffset, bornHost, storeTimestamp and storeHost. The other
fields are checked: sizes, magic, topic, queue id, flags, and the sizes of both hosts. If a function raises
MessageInvalid, some records may already be stamped; the caller must discard the whole batch.

A run is a sequence of consecutive records of one queue (`store.message.runs`).
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numba import types

from store.kernels.compiled import helper, kernel
from store.kernels.crc32 import crc32_kernel
from store.kernels.memory import BYTES, I64, U8, WRITABLE_BYTES, copy_bytes, load_i32, store_i32, store_i64
from store.kernels.walk import record_parts, record_size
from store.message.hosts import V6_BYTES
from store.message.record import (
    BODY_CRC,
    BORN_HOST,
    MAGIC,
    PHYSICAL_OFFSET,
    QUEUE_ID,
    QUEUE_OFFSET,
    SYS_FLAG,
    topic_field,
)
from store.message.runs import Runs
from store.message.sys_flag import BORN_HOST_V6, COMPRESSED, COMPRESSION_MASK, MULTI_TAGS, STORE_HOST_V6
from store.store_errors import MessageInvalid

# sysFlag bits that a client may set. Transactions and RocketMQ's inner batches are not allowed in bulk sends.
FREE_FLAGS = COMPRESSED | COMPRESSION_MASK | MULTI_TAGS

BAD_RECORD = -1
BAD_TOPIC = -2
BAD_QUEUE = -3
BAD_FLAGS = -4
BAD_BODY = -5
BAD_COUNT = -6


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
        raise run_error(stamp, runs, number, position, fault)


def record_error(stamp: Stamp, queue_id: int, position: int, fault: int) -> MessageInvalid:
    """Return the error for the record at byte `position`; `fault` is one of the BAD_ codes."""
    faults = {
        BAD_RECORD: "is truncated or malformed",
        BAD_FLAGS: "has a sysFlag of a transaction, an inner batch, or hosts of another size",
        BAD_TOPIC: f"is not of the topic {stamp.topic!r}",
        BAD_QUEUE: f"is not of queue {queue_id}",
        BAD_BODY: f"has a body over max_message_bytes {stamp.max_body_bytes:,} (raise it on the broker)",
    }
    return MessageInvalid(f"the record at byte {position} of the batch {faults[fault]}")


def run_error(stamp: Stamp, runs: Runs, number: int, position: int, fault: int) -> MessageInvalid:
    """Return the error for run `number`, whose check stopped at byte `position` with this fault."""
    queue_id = runs.queue_ids[number]
    if fault == BAD_COUNT:
        return MessageInvalid(
            f"the run of queue {queue_id} that ends at byte {position} of the batch does not contain "
            f"{runs.messages[number]:,} records, the number in its header"
        )
    return record_error(stamp, queue_id, position, fault)


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
        return BAD_RECORD, 0, 0, 0
    body, body_length, _, _, _, _ = record_parts(records, position, size)
    if body_length < 0:
        return BAD_RECORD, 0, 0, 0
    fault = 0
    if load_i32(records, position + SYS_FLAG) & ~FREE_FLAGS != host_flags:
        fault = BAD_FLAGS
    elif load_i32(records, position + MAGIC) != magic or not _same_bytes(records, body + body_length, topic):
        fault = BAD_TOPIC
    elif load_i32(records, position + QUEUE_ID) != queue_id:
        fault = BAD_QUEUE
    elif body_length > max_body_bytes:
        fault = BAD_BODY
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
            fault = BAD_COUNT
        if fault != 0:
            return number, position, fault
        begin = end
    return runs.shape[1], begin, 0
