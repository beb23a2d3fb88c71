"""Checking a queue's files at the start: what was noted of them and has not been touched since is taken as it
is, without a look into it, so that a start costs a listing; everything else is read.
"""

from typing import NamedTuple

import numpy as np

from store.consumequeue.consume_queue import ConsumeQueue, QueueNote
from store.consumequeue.unit import UNIT, UNIT_BYTES, Unit
from store.kernels.units import valid_units
from store.message.crc import running_crc

_FIRST_READ_UNITS = 204  # a page
_READ_UNITS = 65_536


def check_queue(
    queue: ConsumeQueue, times_ns: dict[int, int], log_end: int, note: QueueNote | None
) -> tuple[QueueNote, str | None]:
    """Count the sound units of a queue with a file, changed at that time, for each first unit in `times_ns`,
    in order; returns what it holds, and what is wrong behind that.
    """
    if note is not None and _is_unchanged(queue, times_ns, log_end, note):
        return note, None
    per_file = queue.units_per_file
    first, made_to = min(times_ns), max(times_ns) + per_file
    queue.set_extent(QueueNote(first, first, made_to, 0, [], []), made_to)  # so that all can be read
    found = _FileCheck(first, 0, 0, None)
    crcs: list[int] = []
    for start in range(first, made_to, per_file):
        noted_to, crc = _noted(note, start, start + per_file)
        if noted_to == start + per_file and times_ns[start] == _noted_time(note, start, per_file):
            here = _last_of(queue, noted_to, crc)
        else:
            here = check_file(queue, start, found.end_physical, log_end, noted_to, crc)
        if here.end_physical > log_end:  # the log has lost its end
            here = check_file(queue, start, found.end_physical, log_end, start, 0)
        found = here
        if found.next_offset > start:
            crcs.append(found.crc)
        if found.next_offset < start + per_file:
            break
    min_offset = min(max(first, note.min_offset), found.next_offset) if note is not None else first
    return (
        QueueNote(first, min_offset, found.next_offset, found.end_physical, crcs, [0] * len(crcs)),
        found.damage,
    )


def _is_unchanged(queue: ConsumeQueue, times_ns: dict[int, int], log_end: int, note: QueueNote) -> bool:
    """Whether all files are there as they were noted, and no others."""
    return (
        list(times_ns.values()) == note.times_ns
        and 0 not in note.times_ns
        and list(times_ns) == list(range(note.first_offset, note.next_offset, queue.units_per_file))
        and note.end_physical_offset <= log_end
    )


class _FileCheck(NamedTuple):
    """How far a file's units are sound, where the last one's record ends, their CRC, and what is wrong."""

    next_offset: int
    end_physical: int
    crc: int
    damage: str | None


def _last_of(queue: ConsumeQueue, stop: int, crc: int) -> _FileCheck:
    """A full file whose last unit is the one before `stop`, taken as it was noted."""
    last = Unit(*UNIT.unpack(queue.read_units(stop - 1, 1)))
    return _FileCheck(stop, 0 if last.is_filler else last.physical_offset + last.size, crc, None)


def check_file(
    queue: ConsumeQueue, start: int, end_physical: int, log_end: int, noted_to: int, noted_crc: int
) -> _FileCheck:
    """Check the units of the file that begins with unit `start`; `end_physical` is where the record before it
    ends. Those up to `noted_to` have had this CRC.
    """
    stop = start + queue.units_per_file
    offset, end, crc = start, end_physical, 0
    window = _FIRST_READ_UNITS
    while offset < stop:
        units = queue.read_units(offset, min(window, (noted_to if offset < noted_to else stop) - offset))
        count = len(units) // UNIT_BYTES
        sound, end = valid_units(np.frombuffer(units, dtype=np.uint8), count, end, log_end)
        crc = running_crc(units[: sound * UNIT_BYTES], crc)
        offset += sound
        if sound < count:
            is_end = not any(units[sound * UNIT_BYTES : sound * UNIT_BYTES + UNIT_BYTES])
            return _FileCheck(offset, end, crc, None if is_end else f"unit {offset} is not sound")
        if offset == noted_to and crc != noted_crc:
            return _FileCheck(start, end_physical, 0, f"units {start} to {noted_to} are not what was written")
        window = min(4 * count, _READ_UNITS) if count == window else window
    return _FileCheck(offset, end, crc, None)


def _noted(note: QueueNote | None, start: int, stop: int) -> tuple[int, int]:
    """Up to which unit of a file there is a note, and the CRC that it has."""
    if note is None or not note.first_offset <= start < note.next_offset:
        return start, 0
    file = (start - note.first_offset) // (stop - start)
    if (start - note.first_offset) % (stop - start) or file >= len(note.crcs):
        return start, 0
    return min(stop, note.next_offset), note.crcs[file]


def _noted_time(note: QueueNote | None, start: int, per_file: int) -> int:
    """The time of a file that was noted; −1 when none was, or it says nothing."""
    file = (start - note.first_offset) // per_file if note is not None else -1
    return note.times_ns[file] or -1 if note is not None and 0 <= file < len(note.times_ns) else -1
