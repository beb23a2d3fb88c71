"""Finds the records to which consume-queue units point.

Each record is checked and compared with its unit before it is served (docs/design.md#invariant-8).
"""

import numpy as np
from numpy.typing import NDArray

from store.kernels.compiled import kernel
from store.kernels.memory import load_i32, load_i64
from store.kernels.walk import body_is_valid, record_parts, record_size

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]

UNIT_BYTES = 20
FILLER_SIZE = 0x7FFFFFFF

# Counters that `gather_records` keeps in `progress` between calls.
READ_UNITS = 0
READ_MESSAGES = 1
READ_BYTES = 2
READ_FILLERS = 3  # placeholder units of lost records
READ_FIELDS = 4

RUNS_MAX = 4096
SPANS_MAX = 64

# Why `gather_records` stopped.
ALL_UNITS = 0  # all units are processed
OTHER_FILE = 1  # the next unit points to another file, or `runs` is full
ENOUGH = 2  # the requested number of messages or bytes is reached
BAD_UNIT = 3  # the next unit does not point to a record of this queue and offset


@kernel()
def same_bytes(buffer: Bytes, start: int, expected: Bytes, length: int) -> bool:
    """Return True if `buffer[start:]` begins with the first `length` bytes of `expected`."""
    index = 0
    while index < length and buffer[start + index] == expected[index]:
        index += 1
    return index == length


@kernel()
def _is_record_of(
    log: Bytes, place: int, limit: int, base: int, size: int, queue_id: int, queue_offset: int, topic: Bytes
) -> bool:
    if record_size(log, place, limit) != size or load_i32(log, place + 12) != queue_id:
        return False
    if load_i64(log, place + 20) != queue_offset or load_i64(log, place + 28) != base + place:
        return False
    body, body_length, start, length, _, _ = record_parts(log, place, size)
    if body_length < 0 or length != topic.size:
        return False
    if not body_is_valid(log, place, body, body_length):
        return False
    return same_bytes(log, start, topic, length)


@kernel()
def _is_wanted(codes: Numbers, tags_code: int) -> bool:
    """Return True if `codes` contains `tags_code`. Only the low 32 bits are compared, as in RocketMQ."""
    wanted = False
    for code in codes:
        wanted |= (code ^ tags_code) & 0xFFFFFFFF == 0
    return wanted


@kernel()
def gather_records(
    log: Bytes,  # the log file
    limit: int,  # the end of the written bytes in it
    base: int,  # CommitLog offset of its first byte
    units: Bytes,  # consecutive units of one queue
    first_offset: int,  # queue offset of the first unit
    queue_id: int,
    topic: Bytes,
    codes: Numbers,  # tags codes to select, if `filters` is true
    filters: bool,
    max_messages: int,
    max_bytes: int,  # stop before the records exceed this size, except for the first one
    progress: Numbers,  # counters between calls (READ_FIELDS); updated
    runs: Numbers,  # output: ranges (begin, end) of adjacent records in the file
) -> tuple[int, int]:
    """Find and check the records of consecutive consume queue units, as far as they are in one log file.

    Begins with the unit after the `progress[READ_UNITS]` units already processed. The byte ranges of the
    records are written to `runs`; adjacent records share a range. Returns the number of ranges in `runs`, and
    why the search stopped: ALL_UNITS, OTHER_FILE, ENOUGH or BAD_UNIT.
    """
    count = 0
    index = progress[READ_UNITS]
    status = ALL_UNITS
    while index < units.size // UNIT_BYTES:
        unit = index * UNIT_BYTES
        place = load_i64(units, unit) - base
        size = load_i32(units, unit + 8)
        if size == FILLER_SIZE:
            progress[READ_FILLERS] += 1
            index += 1
            continue
        if filters and not _is_wanted(codes, load_i64(units, unit + 12)):
            index += 1
            continue
        if progress[READ_MESSAGES] >= max_messages:
            status = ENOUGH
            break
        if progress[READ_MESSAGES] > 0 and progress[READ_BYTES] + size > max_bytes:
            status = ENOUGH
            break
        if place < 0 or place >= limit or count == runs.shape[0]:
            status = OTHER_FILE
            break
        if not _is_record_of(log, place, limit, base, size, queue_id, first_offset + index, topic):
            status = BAD_UNIT
            break
        if count > 0 and runs[count - 1, 1] == place:
            runs[count - 1, 1] = place + size
        else:
            runs[count, 0] = place
            runs[count, 1] = place + size
            count += 1
        progress[READ_MESSAGES] += 1
        progress[READ_BYTES] += size
        index += 1
    progress[READ_UNITS] = index
    return count, status


@kernel()
def record_spans(
    limit: int,
    base: int,
    units: Bytes,
    codes: Numbers,
    filters: bool,
    max_messages: int,
    max_bytes: int,
    progress: Numbers,
    gap: int,
    spans: Numbers,
) -> tuple[int, int]:
    """Compute from consume queue units alone which byte ranges of the log file `gather_records` would read.

    The parameters are those of `gather_records`. `spans` receives the ranges (begin, end); records less than
    `gap` bytes apart share a range.

    Returns:
        The number of ranges, and the number of messages up to the end of the last range, including the
        `progress[READ_MESSAGES]` messages already found.
    """
    count = 0
    messages = progress[READ_MESSAGES]
    size_bytes = progress[READ_BYTES]
    for index in range(progress[READ_UNITS], units.size // UNIT_BYTES):
        unit = index * UNIT_BYTES
        place = load_i64(units, unit) - base
        size = load_i32(units, unit + 8)
        if (filters and not _is_wanted(codes, load_i64(units, unit + 12))) or size == FILLER_SIZE:
            continue
        if messages >= max_messages or (messages > 0 and size_bytes + size > max_bytes):
            break
        if place < 0 or size <= 0 or place + size > limit:
            break  # another file, or a damaged unit, which `gather_records` will report
        if count > 0 and spans[count - 1, 0] <= place <= spans[count - 1, 1] + gap:
            spans[count - 1, 1] = max(spans[count - 1, 1], place + size)
        elif count < spans.shape[0]:
            spans[count, 0] = place
            spans[count, 1] = place + size
            count += 1
        else:
            break
        messages += 1
        size_bytes += size
    return count, messages
