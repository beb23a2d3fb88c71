"""RawRecords: appends the log bytes of another replica, after checking the records in them.

The bytes arrive in pieces that are not aligned to records, and include the blank end of each file. A record
is checked, with the CRC of its body, when its last byte has arrived:

         next_record          written     end of the piece
    ──────────┼──────────────────┼──────────────┼──→
    complete  │ first part       │ the piece    │
"""

from typing import NamedTuple

import numpy as np

from store.commitlog.commit_log import CommitLog
from store.commitlog.mapped_file import file_name
from store.kernels import walk
from store.message.buffers import Buffer
from store.message.record import BLANK_BYTES, MAGIC_BLANK, MIN_RECORD_BYTES
from store.store_errors import RecordDamaged, StoreError

_SIZE_BYTES = 4


class _Checked(NamedTuple):
    next_record: int
    timestamp: int  # 0 if no record is complete


class RawRecords:
    """Appends checked log bytes to one CommitLog."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._next_record = -1  # -1: all records up to `written` are complete

    @property
    def next_record(self) -> int:
        """The CommitLog offset at which the next record begins.

        Less than `positions.written` while the last record is incomplete, and more while blank bytes of a
        file are missing.
        """
        return self._log.positions.written if self._next_record < 0 else self._next_record

    def forget(self) -> None:
        """Continue at `positions.written`, because the log now ends there with a complete record."""
        self._next_record = -1

    def append(self, offset: int, data: Buffer) -> int:
        """Append `data` at CommitLog offset `offset`.

        Nothing is written of a part of `data` that is damaged; the log files before it keep theirs.

        Returns the storeTimestamp in ms of the last complete record in `data`; 0 if no record is complete.

        Raises:
            RecordDamaged: A record in `data` is damaged, or is not the record of its position.
            StoreError: `offset` is not the end of this log.
            OSError: The disk is full.
        """
        log, positions, timestamp, rest = self._log, self._log.positions, 0, memoryview(data)
        is_empty = not log.bases and not positions.written  # begins at the first offset that it gets
        if offset != positions.written and not is_empty:
            raise StoreError(
                f"cannot append raw bytes at offset {offset:,}: the log ends at {positions.written:,}"
            )
        while len(rest):
            base = log.base_of(offset) if log.bases else offset
            part = rest[: base + log.file_bytes - offset]
            checked = self._check(base, offset if is_empty else self.next_record, offset, part)
            if is_empty:
                positions.set_all(offset, offset)
                is_empty = False
            log.append_raw(offset, part)
            self._next_record = checked.next_record
            timestamp = max(timestamp, checked.timestamp)
            offset += len(part)
            rest = rest[len(part) :]
        return timestamp

    def _check(self, base: int, begin: int, offset: int, part: memoryview) -> _Checked:
        """Check the records from `begin` on that are complete with `part`. Raises RecordDamaged."""
        end = offset + len(part)
        if begin >= end:
            return _Checked(begin, 0)  # the blank end of a file
        first = self._log.slice(begin, offset - begin) if begin < offset else b""
        if len(first) >= BLANK_BYTES and begin + int.from_bytes(first[:_SIZE_BYTES], "big") > end:
            return _Checked(begin, 0)  # its size is checked; do not copy a large record once per piece
        records = bytearray(first) + part
        found = np.zeros(walk.SCAN_FIELDS, dtype=np.int64)
        buffer = np.frombuffer(records, dtype=np.uint8)
        place, code = walk.scan_records(buffer, 0, len(records), begin, True, found)
        timestamp = int(found[walk.SCAN_LAST_TIMESTAMP]) if found[walk.SCAN_COUNT] else 0
        return _Checked(
            self._following(base, begin + place, bytes(records[place : place + 8]), code), timestamp
        )

    def _following(self, base: int, position: int, head: bytes, code: int) -> int:
        """Return the offset of the next record, given the reason why the scan stopped at `position`."""
        room = base + self._log.file_bytes - position
        size = int.from_bytes(head[:_SIZE_BYTES], "big")
        is_blank = int.from_bytes(head[_SIZE_BYTES:], "big", signed=True) == MAGIC_BLANK
        if code == walk.NO_ROOM and (room >= BLANK_BYTES or not room):
            return position
        if is_blank and size == room:
            return position + room
        is_incomplete = code == walk.BEYOND_END and not is_blank
        if is_incomplete and MIN_RECORD_BYTES <= size <= room - BLANK_BYTES:
            return position
        reason = walk.REASONS[walk.BEYOND_END if code == walk.BLANK else code]
        raise RecordDamaged(
            f"the received record at offset {position:,} is damaged: {reason}; nothing of it was appended",
            file_name(base),
            position - base,
        )
