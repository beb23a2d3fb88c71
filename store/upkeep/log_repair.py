"""LogRepair: overwrites damaged records of the CommitLog with those of another replica's log.

|record|~~damage~~|record|blank||~~damage~~|record|      the log, in two files
       |      the same range of another log      |
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from store.commitlog.holes import KnownHoles
from store.disk.files import explain
from store.kernels import walk
from store.message.buffers import Buffer
from store.message.record import body_of
from store.recovery.opening import StoreParts
from store.store_errors import RecordDamaged, StoreError

_SIZE_BYTES = 4


class _Piece(NamedTuple):
    """Whole records in one log file: those at `begin` to `end` of the data."""

    begin: int
    end: int
    records: list[tuple[int, int]]
    """Begin and end of each record but a blank one."""


class LogRepair:
    """The repair of one store's CommitLog. Used only on the store's thread."""

    def __init__(
        self, root: Path, parts: StoreParts, holes: KnownHoles, fail: Callable[[StoreError], None]
    ) -> None:
        """Create the repair; `fail` makes the store read-only."""
        self._root = root
        self._log = parts.log
        self._positions = parts.positions
        self._holes = holes
        self._fail = fail

    def repair(self, offset: int, data: Buffer) -> bool:
        """Overwrite confirmed records at CommitLog offset `offset` with `data`, durably.

        `data` are the same records from the log of another replica; the next record begins at their end.

        Returns True if recovery had found the damage, or more than bodies was damaged: consume queues and
        index may lack these records, or have what the damaged ones said, such as another topic. They are
        right only after the store was reopened without them and without its derived summary.

        Raises:
            RecordDamaged: `data` is damaged too, or has other records. Nothing was written.
            StoreError: The records are not confirmed, or the log cannot be written.
        """
        end, positions = offset + len(data), self._positions
        if not positions.min <= offset < end <= positions.confirmed:
            raise StoreError(
                f"cannot repair offsets {offset:,} to {end:,}: the confirmed log covers "
                f"{positions.min:,} to {positions.confirmed:,}",
                self._root,
            )
        pieces = list(self._check(offset, data))
        found = [each for each in self._holes.all if offset < each.position + each.size_bytes]
        is_derived_wrong = any(each.position < end for each in found) or not all(
            self._has_same_fields(offset + begin, memoryview(data)[begin:end])
            for piece in pieces
            for begin, end in piece.records
        )
        try:
            for piece in pieces:
                file = self._log.file_at(offset + piece.begin)
                place = offset + piece.begin - file.base
                file.write_at(place, [memoryview(data)[piece.begin : piece.end]])
                os.fdatasync(file.descriptor)
        except OSError as error:
            reason = f"repair at {offset:,} failed: {explain(error)}; restart the broker to recover"
            self._fail(StoreError(reason, self._root))
            raise StoreError(reason, self._root) from error
        self._holes.repair(offset, end)
        return is_derived_wrong

    def _has_same_fields(self, offset: int, record: memoryview) -> bool:
        """Return True if the damaged record at `offset` differs from `record` in its body only."""
        damaged, body = self._log.slice(offset, len(record)), body_of(record)
        return damaged[: body.start] == record[: body.start] and damaged[body.stop :] == record[body.stop :]

    def _check(self, offset: int, data: Buffer) -> Iterator[_Piece]:
        """Yield the part of `data` in each log file. Raises RecordDamaged if it is not the records there."""
        records = np.frombuffer(data, dtype=np.uint8)
        place = 0
        while place < len(records):
            begin, found = place, []
            file_end = self._log.base_of(offset + place) + self._log.file_bytes - offset
            while place < min(len(records), file_end):
                code = walk.check_record_at(records, place, min(len(records), file_end), offset, True)
                size = int.from_bytes(bytes(records[place : place + _SIZE_BYTES]), "big")
                is_last_blank = code == walk.BLANK and place + size == file_end
                if code <= 0 and not is_last_blank:
                    reason = walk.REASONS.get(code, "a blank record does not end at the end of its file")
                    raise RecordDamaged(
                        f"the bytes for the repair are damaged at {offset + place:,}: {reason}"
                    )
                if not is_last_blank:
                    found.append((place, place + size))
                place += size
            yield _Piece(begin, place, found)
