"""Check the files of a consume queue when the store opens.

Files that have not changed since the last checkpoint are trusted without reading them, so opening a cleanly
closed store only lists directories. All other files are read and checked unit by unit.
"""

from typing import NamedTuple

import numpy as np

from store.consumequeue.consume_queue import ConsumeQueue, QueueSnapshot
from store.consumequeue.unit import UNIT, UNIT_BYTES, Unit
from store.kernels.units import valid_units
from store.message.crc import running_crc

_FIRST_READ_UNITS = 204  # a page
_READ_UNITS = 65_536


def check_queue(
    queue: ConsumeQueue, times_ns: dict[int, int], log_end: int, snapshot: QueueSnapshot | None
) -> tuple[QueueSnapshot, str | None]:
    """Check the files of a consume queue and find its last valid unit.

    Args:
        queue: The queue. Its extent is changed so that all its files can be read.
        times_ns: Maps the queue offset at which each file begins, ascending, to the file's modification time.
        log_end: The physical offset at which the CommitLog ends.
        snapshot: The state of the queue in the last checkpoint, or None if it is unknown.

    Returns:
        The state of the queue up to its last valid unit, and a description of the damage after that unit, or
        None if there is no damage.
    """
    if snapshot is not None and _is_unchanged(queue, times_ns, log_end, snapshot):
        return snapshot, None
    per_file = queue.units_per_file
    first, files_end = min(times_ns), max(times_ns) + per_file
    # `read_units` reads only within the extent of the queue, so the extent covers all files first.
    queue.set_extent(QueueSnapshot(first, first, files_end, 0, [], []), files_end)
    found = _FileCheck(first, 0, 0, None)
    crcs: list[int] = []
    for start in range(first, files_end, per_file):
        expected_to, crc = _expected_crc(snapshot, start, start + per_file)
        if expected_to == start + per_file and times_ns[start] == _snapshot_time_ns(
            snapshot, start, per_file
        ):
            here = _trusted_file(queue, expected_to, crc)
        else:
            here = check_file(queue, start, found.end_physical, log_end, expected_to, crc)
        if here.end_physical > log_end:  # the log lost its tail: find the last unit that is still valid
            here = check_file(queue, start, found.end_physical, log_end, start, 0)
        found = here
        if found.next_offset > start:
            crcs.append(found.crc)
        if found.next_offset < start + per_file:
            break
    min_offset = min(max(first, snapshot.min_offset), found.next_offset) if snapshot is not None else first
    return (
        QueueSnapshot(first, min_offset, found.next_offset, found.end_physical, crcs, [0] * len(crcs)),
        found.damage,
    )


def _is_unchanged(
    queue: ConsumeQueue, times_ns: dict[int, int], log_end: int, snapshot: QueueSnapshot
) -> bool:
    """Return True if the queue has the same files as in the snapshot, and none has changed since."""
    return (
        list(times_ns.values()) == snapshot.times_ns
        and 0 not in snapshot.times_ns
        and list(times_ns) == list(range(snapshot.first_offset, snapshot.next_offset, queue.units_per_file))
        and snapshot.end_physical_offset <= log_end
    )


class _FileCheck(NamedTuple):
    """Result of checking one consume queue file.

    `next_offset` is the queue offset after the last valid unit, and `end_physical` the physical offset at
    which the record of that unit ends. `crc` is the CRC of the valid units. `damage` describes the damage
    after them, or is None.
    """

    next_offset: int
    end_physical: int
    crc: int
    damage: str | None


def _trusted_file(queue: ConsumeQueue, stop: int, crc: int) -> _FileCheck:
    """Return the check result for a full consume queue file that is trusted because it has not changed.

    `stop` is the queue offset after its last unit. Only this unit is read, to find the end of its record.
    """
    last = Unit(*UNIT.unpack(queue.read_units(stop - 1, 1)))
    return _FileCheck(stop, 0 if last.is_filler else last.physical_offset + last.size, crc, None)


def check_file(
    queue: ConsumeQueue, start: int, end_physical: int, log_end: int, expected_to: int, expected_crc: int
) -> _FileCheck:
    """Check the units of one consume queue file.

    Args:
        queue: The queue that the file belongs to.
        start: The queue offset of the first unit in the file.
        end_physical: The physical offset at which the record of the preceding unit ends.
        log_end: The physical offset at which the CommitLog ends.
        expected_to: The CRC of the units before this queue offset must be `expected_crc`.
        expected_crc: The CRC that the last checkpoint stored for these units.
    """
    stop = start + queue.units_per_file
    offset, end, crc = start, end_physical, 0
    window = _FIRST_READ_UNITS
    while offset < stop:
        units = queue.read_units(
            offset, min(window, (expected_to if offset < expected_to else stop) - offset)
        )
        count = len(units) // UNIT_BYTES
        valid_count, end = valid_units(np.frombuffer(units, dtype=np.uint8), count, end, log_end)
        crc = running_crc(units[: valid_count * UNIT_BYTES], crc)
        offset += valid_count
        if valid_count < count:
            is_end = not any(units[valid_count * UNIT_BYTES : valid_count * UNIT_BYTES + UNIT_BYTES])
            return _FileCheck(offset, end, crc, None if is_end else f"unit {offset} is not valid")
        if offset == expected_to and crc != expected_crc:
            damage = f"units {start} to {expected_to} do not match the CRC of the last checkpoint"
            return _FileCheck(start, end_physical, 0, damage)
        window = min(4 * count, _READ_UNITS) if count == window else window
    return _FileCheck(offset, end, crc, None)


def _expected_crc(snapshot: QueueSnapshot | None, start: int, stop: int) -> tuple[int, int]:
    """Return which units of the file for [start, stop) the snapshot covers, and the CRC of these units.

    The units are those before the returned queue offset; it is `start` if the snapshot does not cover the
    file.
    """
    if snapshot is None or not snapshot.first_offset <= start < snapshot.next_offset:
        return start, 0
    file = (start - snapshot.first_offset) // (stop - start)
    if (start - snapshot.first_offset) % (stop - start) or file >= len(snapshot.crcs):
        return start, 0
    return min(stop, snapshot.next_offset), snapshot.crcs[file]


def _snapshot_time_ns(snapshot: QueueSnapshot | None, start: int, per_file: int) -> int:
    """Return the modification time that the snapshot has for the file that begins at `start`.

    -1 if unknown.
    """
    file = (start - snapshot.first_offset) // per_file if snapshot is not None else -1
    return (
        snapshot.times_ns[file] or -1 if snapshot is not None and 0 <= file < len(snapshot.times_ns) else -1
    )
