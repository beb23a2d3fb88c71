"""Pure-Python equivalents of the kernels that walk, dispatch, index and find records."""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from store.kernels.index import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES
from store.kernels.java_hash import plain_key_hash
from store.kernels.units import (
    FILLER_SIZE,
    GROUP_COUNT,
    GROUP_FIRST_QUEUE_OFFSET,
    GROUP_FIRST_UNIT,
    GROUP_QUEUE_ID,
    GROUP_TOPIC,
    GROUP_TOPIC_LENGTH,
    UNIT_BYTES,
    Numbers,
)
from store.kernels.walk import BAD_PARTS, BLANK, record_size
from store.message.record import CRC_PROPERTY_BYTES, MAGIC_BLANK, MAGIC_V1, decode_record
from store.message.sys_flag import TRANSACTION_MASK, TRANSACTION_ROLLBACK, TRANSACTION_UNQUEUED
from store.message.tags import java_hash, tags_code
from tests.store.kernels.plain_check import RecordVerdict, check_record

_HEAD_BYTES = 8
_SECONDS_MAX = 0x7FFFFFFF
_FILE_MODE = 0o644
_HEADER = Struct(">qqqqii")
_SLOT = Struct(">i")
_ENTRY = Struct(">iqii")


def plain_check_record_at(buffer: Any, position: int, limit: int, base: int, check_crc: bool) -> int:
    """Pure-Python equivalent of `check_record_at`. Returns BAD_PARTS for every kind of damage."""
    view = memoryview(buffer)[:limit]
    check = check_record(view, position, check_crc=check_crc)
    if check.verdict == RecordVerdict.BLANK:
        return BLANK
    if check.verdict == RecordVerdict.DAMAGED:
        return BAD_PARTS
    own_place = int.from_bytes(view[position + 28 : position + 36], "big", signed=True)
    message = decode_record(view, position, check_crc=False)
    topic = message.topic
    is_name = bool(topic.strip(".")) and min(topic) > " " and "/" not in topic
    end = position + check.size_bytes
    hosts = sum(12 for bit in (0x10, 0x20) if message.sys_flag & bit)
    width = 1 if view[position + 7] == MAGIC_V1 & 0xFF else 2
    name = position + 88 + hosts + len(message.body)
    properties = name + width + int.from_bytes(view[name : name + width], "big") + 2
    is_torn = end > properties and view[end - 1] == 0
    return check.size_bytes if own_place == base + position and is_name and not is_torn else BAD_PARTS


def plain_next_record(buffer: Any, start: int, stop: int, size: int, base: int) -> int:
    """Pure-Python equivalent of `next_record`."""
    for position in range(start, stop - _HEAD_BYTES + 1):
        if plain_check_record_at(buffer, position, size, base, True) > 0:
            return position
    return stop


def plain_closing_blank(buffer: Any, start: int, stop: int, size: int) -> int:
    """Pure-Python equivalent of `closing_blank`."""
    for position in range(start, stop - _HEAD_BYTES + 1):
        head = (size - position).to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big", signed=True)
        if bytes(buffer[position : position + _HEAD_BYTES]) == head:
            return position
    return stop


def plain_append_end(buffer: Any, start: int, size: int, base: int) -> int:
    """Pure-Python equivalent of `append_end`."""
    position, expected = start, None
    while (code := plain_check_record_at(buffer, position, size, base, True)) > 0:
        message = decode_record(buffer, position)
        made_by = (message.topic, message.queue_id, message.store_timestamp, message.queue_offset)
        if expected is not None and made_by != expected:
            break
        expected = (*made_by[:3], message.queue_offset + 1)
        position += code
    return position


def plain_next_bad_crc_property(buffer: Any, start: int, end: int) -> tuple[int, int]:
    """Pure-Python equivalent of `next_bad_crc_property`."""
    view = memoryview(buffer)[:end]
    position = start
    while position < end:
        check = check_record(view, position, check_crc=False)
        if check.verdict != RecordVerdict.RECORD:
            break
        whole = bytes(view[position : position + check.size_bytes])
        has_one = whole[-CRC_PROPERTY_BYTES:].startswith(b"__CRC32#\x01")
        if has_one and check_record(whole, force_crc_property=True).verdict != RecordVerdict.RECORD:
            return position, check.size_bytes
        position += check.size_bytes
    return end, 0


class PlainUnit(NamedTuple):
    """The result of `plain_dispatch` for one record: its consume queue unit, and its index keys.

    `unit` is None for a transaction's record that belongs to no consume queue.
    """

    topic: str
    queue_id: int
    queue_offset: int
    unit: tuple[int, int, int] | None
    keys: list[tuple[int, int, int]]


def plain_dispatch(buffer: Any, start: int, end: int, base: int, delays_ms: list[int]) -> list[PlainUnit]:
    """Pure-Python equivalent of `dispatch_records`.

    Stops at the first invalid record header.
    """
    made: list[PlainUnit] = []
    position = start
    while position < end and record_size(np.frombuffer(buffer, dtype=np.uint8), position, end) > 0:
        message = decode_record(buffer, position, check_crc=False)
        properties = message.properties
        code = tags_code(properties.get("TAGS"))
        level = min(int(properties.get("DELAY", "0")), len(delays_ms) - 1)
        if message.topic == "SCHEDULE_TOPIC_XXXX" and level > 0:
            code = message.store_timestamp + delays_ms[level]
        names = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
        names += [name for name in properties.get("KEYS", "").split(" ") if name]
        physical = base + position
        keys = [
            (plain_key_hash(f"{message.topic}#{name}".encode()), physical, message.store_timestamp)
            for name in names
        ]
        transaction = message.sys_flag & TRANSACTION_MASK
        unit = None if transaction & TRANSACTION_UNQUEUED else (physical, message.store_size, code)
        made.append(
            PlainUnit(
                message.topic,
                message.queue_id,
                message.queue_offset,
                unit,
                [] if transaction == TRANSACTION_ROLLBACK else keys,
            )
        )
        position += message.store_size
    return made


def plain_hash(text: bytes) -> int:
    """Pure-Python equivalent of `hash_bytes` with seed 0."""
    return java_hash(text.decode("utf-8", "replace")) & 0xFFFFFFFF


def plain_insert_keys(index: Any, slots: int, capacity: int, keys: list[tuple[int, int, int]]) -> int:
    """Pure-Python equivalent of `insert_keys`.

    `index` is a writable buffer with the index file; `keys` are tuples (hash, CommitLog offset,
    storeTimestamp).
    """
    inserted = 0
    for key_hash, physical_offset, timestamp in keys:
        begin, _, begin_offset, _, used, count = _HEADER.unpack_from(index, 0)
        count = max(count, 1)
        if count >= capacity:
            break
        place = HEADER_BYTES + SLOT_BYTES * (key_hash % slots)
        (previous,) = _SLOT.unpack_from(index, place)
        previous = previous if 0 < previous <= count else 0
        seconds = min(max((timestamp - begin) // 1000, 0), _SECONDS_MAX) if begin > 0 else 0
        entry = HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES * count
        _ENTRY.pack_into(index, entry, key_hash, physical_offset, seconds, previous)
        _SLOT.pack_into(index, place, count)
        if count == 1:
            begin, begin_offset = timestamp, physical_offset
        used += previous == 0
        _HEADER.pack_into(index, 0, begin, timestamp, begin_offset, physical_offset, used, count + 1)
        inserted += 1
    return inserted


def plain_record_spans(
    limit: int, base: int, units: list[tuple[int, int, int]], codes: frozenset[int] | None, max_messages: int,
    max_bytes: int, gap: int, spans_max: int,
) -> tuple[list[tuple[int, int]], int]:  # fmt: skip
    """Pure-Python equivalent of `record_spans`.

    `units` are tuples (CommitLog offset, size, tags code). Begins with the first unit.
    """
    spans: list[tuple[int, int]] = []
    messages = size_bytes = 0
    low = {code & 0xFFFFFFFF for code in codes} if codes is not None else None
    for physical_offset, size, wanted in units:
        if size == FILLER_SIZE or (low is not None and wanted & 0xFFFFFFFF not in low):
            continue
        begin, end = physical_offset - base, physical_offset - base + size
        is_enough = messages >= max_messages or (messages > 0 and size_bytes + size > max_bytes)
        if is_enough or begin < 0 or size <= 0 or end > limit:
            break
        if spans and spans[-1][0] <= begin <= spans[-1][1] + gap:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end))
        elif len(spans) < spans_max:
            spans.append((begin, end))
        else:
            break
        messages += 1
        size_bytes += size
    return spans, messages


def write_units_plain(
    directory: Path,
    file_bytes: int,
    log: bytes,
    groups: Numbers,
    chosen: list[int],
    is_new: list[bool],
    units: bytes,
) -> int:
    """Pure-Python equivalent of `write_units`."""
    for done, number in enumerate(chosen):
        group = groups[number].tolist()
        topic = log[group[GROUP_TOPIC] : group[GROUP_TOPIC] + group[GROUP_TOPIC_LENGTH]].decode()
        place = group[GROUP_FIRST_QUEUE_OFFSET] * UNIT_BYTES
        base = place - place % file_bytes
        path = directory / topic / str(group[GROUP_QUEUE_ID]) / f"{base:020d}"
        first = group[GROUP_FIRST_UNIT] * UNIT_BYTES
        try:
            if is_new[done]:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(_FILE_MODE)
                os.truncate(path, file_bytes)
            with path.open("r+b", buffering=0) as file:
                file.seek(place - base)
                part = units[first : first + group[GROUP_COUNT] * UNIT_BYTES]
                if file.write(part) != len(part):
                    return done
        except OSError:
            return done
    return len(chosen)
