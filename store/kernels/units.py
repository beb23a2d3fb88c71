"""The dispatch kernel: converts records of the log to consume queue units and index keys.

This is the only dispatch (docs/design.md#invariant-3). It reads records that were checked when they were
written or recovered. The records of one call that belong to the same queue form a group. The units of a group
are stored contiguously, so that each queue needs one write regardless of its number of records.

A unit has 20 bytes, big-endian (docs/store-format.md#consume-queue):

    0                8      12         20
    | physicalOffset | size | tagsCode |
"""

import numpy as np
from numpy.typing import NDArray

from store.kernels.compiled import kernel
from store.kernels.java_hash import byte_at, hash_bytes
from store.kernels.memory import load_i32, load_i64, store_i32, store_i64
from store.kernels.properties import add_keys, find_properties, tags_code_of
from store.kernels.walk import (
    BAD_CRC,
    BAD_PARTS,
    BAD_PLACE,
    BAD_TOPIC,
    BLANK,
    body_is_valid,
    is_topic,
    record_parts,
    record_size,
    store_timestamp_at,
)
from store.message.sys_flag import TRANSACTION_MASK, TRANSACTION_ROLLBACK, TRANSACTION_UNQUEUED

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]

UNIT_BYTES = 20
FILLER_SIZE = 0x7FFFFFFF  # the size of a placeholder unit, which stands for a lost record

# Columns of the row of a record.
ROW_POSITION = 0
ROW_SIZE = 1
ROW_GROUP = 2  # -1: the record is in no queue
ROW_TAGS_CODE = 3
ROW_FIELDS = 4

# Columns of a group: the records of one queue.
GROUP_HASH = 0
GROUP_TOPIC = 1  # position of the topic name; consecutive groups of one topic have the same position
GROUP_TOPIC_LENGTH = 2
GROUP_QUEUE_ID = 3
GROUP_COUNT = 4
GROUP_FIRST_QUEUE_OFFSET = 5
GROUP_NEXT_QUEUE_OFFSET = 6
GROUP_IN_ORDER = 7  # 1 if the queue offsets are consecutive
GROUP_FIRST_PHYSICAL_OFFSET = 8
GROUP_END_PHYSICAL_OFFSET = 9
GROUP_FIRST_UNIT = 10  # index of its first unit in the output
GROUP_KEY_SEED = 11  # the hash of "topic#", the prefix of its index keys
GROUP_IS_SCHEDULE = 12
GROUP_BUCKET = 13
GROUP_FIELDS = 14

# Why the dispatch stopped; negative values are reasons of `store.kernels.walk`.
AT_END = 1  # all records are dispatched, or the output is full: call again
AT_BLANK = BLANK

_HASH_SIGN = 0x23
_KEYS_PER_RECORD_MAX = 16_384  # more keys do not fit in 32,767 bytes of properties
_SCHEDULE_TOPIC = np.frombuffer(b"SCHEDULE_TOPIC_XXXX", dtype=np.uint8)


@kernel()
def _same_topic(buffer: Bytes, first: int, second: int, length: int) -> bool:
    position = 0
    while position + 8 <= length:
        if load_i64(buffer, first + position) != load_i64(buffer, second + position):
            return False
        position += 8
    while position < length:
        if buffer[first + position] != buffer[second + position]:
            return False
        position += 1
    return True


@kernel()
def _is_of_group(buffer: Bytes, topic: int, length: int, queue_id: int, groups: Numbers, group: int) -> bool:
    return (
        groups[group, GROUP_QUEUE_ID] == queue_id
        and groups[group, GROUP_TOPIC_LENGTH] == length
        and _same_topic(buffer, groups[group, GROUP_TOPIC], topic, length)
    )


@kernel()
def _topic_hash(buffer: Bytes, start: int, length: int, queue_id: int) -> int:
    value = queue_id * 0x9E3779B1 + length
    position = start
    end = start + length
    while position + 8 <= end:
        value = (value ^ load_i64(buffer, position)) * 0x100000001B3
        value ^= value >> 29
        position += 8
    while position < end:
        value = (value ^ byte_at(buffer, position)) * 0x100000001B3
        position += 1
    return (value ^ value >> 32) & 0x7FFFFFFF


@kernel()
def _is_schedule_topic(buffer: Bytes, start: int, length: int) -> bool:
    index = 0
    while index < length and index < _SCHEDULE_TOPIC.size and buffer[start + index] == _SCHEDULE_TOPIC[index]:
        index += 1
    return index == length == _SCHEDULE_TOPIC.size


@kernel()
def _group_of(
    buffer: Bytes,
    topic: int,
    length: int,
    queue_id: int,
    groups: Numbers,
    count: int,
    buckets: NDArray[np.int32],
) -> int:
    """Return the index in `groups` of the group for a queue, which is given by topic and queue id.

    A group collects the units of one queue. If `groups` has no group for this queue, one is initialized at
    index `count`. Returns -1 if `groups` is full. `buckets` is a hash table from queues to group indexes.
    """
    wanted = _topic_hash(buffer, topic, length, queue_id)
    bucket = wanted & (buckets.size - 1)
    while buckets[bucket] != 0:
        group = buckets[bucket] - 1
        if groups[group, GROUP_HASH] == wanted and _is_of_group(
            buffer, topic, length, queue_id, groups, group
        ):
            return group
        bucket = (bucket + 1) & (buckets.size - 1)
    if count == groups.shape[0]:
        return -1
    buckets[bucket] = count + 1
    groups[count, :] = 0
    groups[count, GROUP_HASH] = wanted
    groups[count, GROUP_TOPIC] = topic
    if count > 0 and groups[count - 1, GROUP_TOPIC_LENGTH] == length:
        before = groups[count - 1, GROUP_TOPIC]
        if _same_topic(buffer, before, topic, length):
            groups[count, GROUP_TOPIC] = before
    groups[count, GROUP_TOPIC_LENGTH] = length
    groups[count, GROUP_QUEUE_ID] = queue_id
    groups[count, GROUP_FIRST_QUEUE_OFFSET] = -1
    groups[count, GROUP_IN_ORDER] = 1
    groups[count, GROUP_BUCKET] = bucket
    groups[count, GROUP_IS_SCHEDULE] = _is_schedule_topic(buffer, topic, length)
    seed = hash_bytes(buffer, topic, topic + length, 0)
    groups[count, GROUP_KEY_SEED] = (seed * 31 + _HASH_SIGN) & 0xFFFFFFFF
    return count


@kernel()
def _add_to_group(groups: Numbers, group: int, queue_offset: int, physical_offset: int, size: int) -> None:
    """Count one more record of a queue in the queue's group: update its counters and offsets."""
    if groups[group, GROUP_FIRST_QUEUE_OFFSET] < 0:
        groups[group, GROUP_FIRST_QUEUE_OFFSET] = queue_offset
        groups[group, GROUP_FIRST_PHYSICAL_OFFSET] = physical_offset
    elif groups[group, GROUP_NEXT_QUEUE_OFFSET] != queue_offset:
        groups[group, GROUP_IN_ORDER] = 0
    groups[group, GROUP_NEXT_QUEUE_OFFSET] = queue_offset + 1
    groups[group, GROUP_END_PHYSICAL_OFFSET] = physical_offset + size
    groups[group, GROUP_COUNT] += 1


@kernel()
def _write_units(
    rows: Numbers, count: int, groups: Numbers, group_count: int, base: int, units: Bytes
) -> None:
    first = 0
    for group in range(group_count):
        groups[group, GROUP_FIRST_UNIT] = first
        first += groups[group, GROUP_COUNT]
        groups[group, GROUP_HASH] = groups[group, GROUP_FIRST_UNIT]  # reused below: index of its next unit
    for row in range(count):
        group = rows[row, ROW_GROUP]
        if group < 0:
            continue
        unit = groups[group, GROUP_HASH] * UNIT_BYTES
        groups[group, GROUP_HASH] += 1
        store_i64(units, unit, base + rows[row, ROW_POSITION])
        store_i32(units, unit + 8, rows[row, ROW_SIZE])
        store_i64(units, unit + 12, rows[row, ROW_TAGS_CODE])


@kernel()
def _clear_buckets(groups: Numbers, group_count: int, buckets: NDArray[np.int32]) -> None:
    for group in range(group_count):
        buckets[groups[group, GROUP_BUCKET]] = 0


@kernel()
def _fault(
    buffer: Bytes,
    position: int,
    size: int,
    base: int,
    check_crc: bool,
    parts: tuple[int, int, int, int, int, int],
) -> int:
    body, body_length, topic, topic_length, _, properties_length = parts
    if body_length < 0 or (check_crc and properties_length > 0 and buffer[position + size - 1] == 0):
        return BAD_PARTS
    if not check_crc:
        return 0
    if not is_topic(buffer, topic, topic_length):
        return BAD_TOPIC
    if load_i64(buffer, position + 28) != base + position:
        return BAD_PLACE
    return 0 if body_is_valid(buffer, position, body, body_length) else BAD_CRC


@kernel()
def dispatch_records(
    buffer: Bytes,  # a log file
    start: int,
    end: int,
    base: int,  # CommitLog offset of the file's first byte
    check_crc: bool,  # check the records completely, including their CRC
    delays_ms: Numbers,  # delay of each delay level, for records of the schedule topic
    rows: Numbers,  # work area: one row per record (ROW_FIELDS)
    groups: Numbers,  # output: one row per queue (GROUP_FIELDS)
    buckets: NDArray[np.int32],  # hash table of the groups: a power of two of zeros, and zeros on return
    units: Bytes,  # output: the units, group by group
    keys: Numbers,  # output: the index keys (KEY_FIELDS of store.kernels.index)
    found: Numbers,  # work area (FOUND_FIELDS of store.kernels.properties)
) -> tuple[int, int, int, int, int, int]:
    """Convert the records in [start, end) of a log file to consume queue units and index keys.

    Returns the position at which the conversion stopped, the reason (AT_END, AT_BLANK or a code of
    `store.kernels.walk`), the numbers of records, groups and keys, and the last record's storeTimestamp.
    """
    position = start
    status = AT_END
    count = group_count = key_count = timestamp = 0
    last_group = -1
    while position < end and count < rows.shape[0] and key_count + _KEYS_PER_RECORD_MAX < keys.shape[0]:
        size = record_size(buffer, position, end)
        if size <= 0:
            status = size
            break
        parts = record_parts(buffer, position, size)
        topic, topic_length, properties, properties_length = parts[2:]
        fault = _fault(buffer, position, size, base, check_crc, parts)
        if fault < 0:
            status = fault
            break
        queue_id = load_i32(buffer, position + 12)
        group = last_group
        if group < 0 or not _is_of_group(buffer, topic, topic_length, queue_id, groups, group):
            group = _group_of(buffer, topic, topic_length, queue_id, groups, group_count, buckets)
            if group < 0:
                break
            group_count = max(group_count, group + 1)
            last_group = group
        timestamp = store_timestamp_at(buffer, position)
        find_properties(buffer, properties, properties + properties_length, found)
        transaction = load_i32(buffer, position + 36) & TRANSACTION_MASK
        rows[count, ROW_POSITION] = position
        rows[count, ROW_SIZE] = size
        rows[count, ROW_GROUP] = -1 if transaction & TRANSACTION_UNQUEUED else group
        is_schedule = groups[group, GROUP_IS_SCHEDULE]
        rows[count, ROW_TAGS_CODE] = tags_code_of(buffer, found, timestamp, delays_ms, is_schedule)
        if not transaction & TRANSACTION_UNQUEUED:
            _add_to_group(groups, group, load_i64(buffer, position + 20), base + position, size)
        if transaction != TRANSACTION_ROLLBACK:
            seed = groups[group, GROUP_KEY_SEED]
            key_count = add_keys(buffer, found, seed, base + position, timestamp, keys, key_count)
        position += size
        count += 1
    _write_units(rows, count, groups, group_count, base, units)
    _clear_buckets(groups, group_count, buckets)
    return position, status, count, group_count, key_count, timestamp


@kernel()
def valid_units(units: Bytes, count: int, previous_end: int, log_end: int) -> tuple[int, int]:
    """Check the first `count` consume queue units in `units`.

    Valid units have positive sizes and ascending CommitLog offsets of at least `previous_end`, and their
    records end at or before `log_end`. Placeholder units for lost records are valid anywhere.

    Returns:
        The number of units before the first invalid one, and the CommitLog offset at which the record of the
        last of them ends.
    """
    end = previous_end
    for index in range(count):
        unit = index * UNIT_BYTES
        physical = load_i64(units, unit)
        size = load_i32(units, unit + 8)
        if size == FILLER_SIZE and physical == 0:
            continue
        if size <= 0 or physical < end or physical + size > log_end:
            return index, end
        end = physical + size
    return count, end
