"""Read a split from the files of the store, without the broker.

A split is a range of offsets of one queue. The consume queue units of these offsets contain the positions of
the records. A kernel decodes the records in the mapped CommitLog files into Arrow columns, which is the only
copy. A split contains confirmed records only, which the broker never changes.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actors.broker.core.loop.log_history import stored_epoch
from actors.wire.raymq_requests import GROUP_EPOCH
from cluster.client.message_selector import ALL_MESSAGES, MessageSelector
from jobs.reading.chunk import LostRange, Numbers, ReadChunk, lost_ranges, make_chunks
from jobs.reading.selection import UNIT, select_records, select_units
from jobs.reading.splits import Split, StoreLocation
from store.commitlog.log_paths import COMMIT_LOG
from store.ownership.identity import read_name
from store.ownership.machine import machine_id
from store.store_errors import StoreError

BATCH_ROWS = 16_384
# Limits the memory of a batch: Spark holds several at once, and Arrow's offsets in a column have 32 bits.
BATCH_BYTES = 16 * 1024 * 1024


def is_local(location: StoreLocation) -> bool:
    """Return True if the store is on this machine and its files are visible to this process.

    That is the case if the broker's machine id is this machine's id, and the path exists and contains a store
    with the same store id. In another epoch of its log only the broker knows whether the log went back.
    """
    if location.machine_id not in ("", machine_id()):
        return False
    try:
        name = read_name(Path(location.store_root))
    except (OSError, StoreError):
        return False
    if name is None or name.store_id != location.store_id:
        return False
    if location.history.endswith(GROUP_EPOCH):
        return True  # the epochs of a Raft group are only in its log
    return not location.history or location.history == stored_epoch(Path(location.store_root))


@dataclass(frozen=True)
class _LogFile:
    base: int
    data: memoryview

    def has(self, position: int) -> bool:
        return self.base <= position < self.base + len(self.data)


class MappedSplit:
    """Reads the messages of one split from the store in the directory `split.location.store_root`."""

    def __init__(
        self, split: Split, columns: Sequence[str], selector: MessageSelector = ALL_MESSAGES
    ) -> None:
        root = Path(split.location.store_root)
        queue = split.queue
        self._split = split
        self._columns = tuple(columns)
        self._selector = selector
        name = read_name(root)
        self._log_directories = [root / path for path in (name.commit_log_paths if name else (COMMIT_LOG,))]
        self._queue_directory = root / "consumequeue" / queue.topic / str(queue.queue_id)
        self._units_per_file = split.location.consume_queue_file_units
        self._log_file_bytes = split.location.commit_log_file_bytes
        self._file: _LogFile | None = None

    def read(self, offset: int) -> Iterator[ReadChunk]:
        """Yield up to one batch of the selected messages, from queue offset `offset` on.

        All messages are from the same CommitLog file.
        """
        first = offset - offset % self._units_per_file
        end = min(self._split.end, first + self._units_per_file)
        path = self._queue_directory / f"{first * UNIT.itemsize:020d}"
        count = min(end - offset, BATCH_ROWS)
        try:
            units = np.fromfile(path, UNIT, count, offset=(offset - first) * UNIT.itemsize)
        except OSError as error:
            yield ReadChunk(
                None, end, [LostRange(offset, end, f"ConsumeQueue file {path}: {error.strerror}")]
            )
            return
        positions, sizes = units["position"].astype(np.int64), units["size_bytes"].astype(np.int64)
        selected = select_units(units, self._selector)
        read_bytes = np.cumsum(sizes if isinstance(selected, slice) else np.where(selected, sizes, 0))
        is_valid = (positions >= 0) & (sizes > 0)
        count = _leading(is_valid & (read_bytes <= max(BATCH_BYTES, *read_bytes[:1])))
        if not count:
            fault = f"the unit in {path} is not valid"
            yield ReadChunk(None, offset + 1, [LostRange(offset, offset + 1, fault)])
            return
        rows = np.arange(count)[selected if isinstance(selected, slice) else selected[:count]]
        yield from self._read_log(positions[rows], sizes[rows], offset + rows, offset + count)

    def _log_path(self, base: int) -> Path:
        """Return the path of the CommitLog file that begins at CommitLog offset `base`.

        The file is searched in all CommitLog directories of the store.
        """
        paths = [directory / f"{base:020d}" for directory in self._log_directories]
        return next((path for path in paths if path.exists()), paths[0])

    def close(self) -> None:
        """Release the mapped CommitLog file.

        The file is unmapped when the last batch that refers to it is released.
        """
        self._file = None

    def _read_log(
        self, positions: Numbers, sizes: Numbers, offsets: Numbers, next_offset: int
    ) -> Iterator[ReadChunk]:
        """Decode the records at CommitLog offsets `positions`, up to the end of the first record's file.

        `sizes` are the sizes of the records in bytes, `offsets` their queue offsets. If all records are in
        one file, the next read continues at `next_offset`.
        """
        if not len(positions):
            yield ReadChunk(None, next_offset)
            return
        base = int(positions[0]) - int(positions[0]) % self._log_file_bytes
        count = _leading((positions >= base) & (positions < base + self._log_file_bytes))
        if count < len(positions):
            next_offset = int(offsets[count])
        if self._file is None or not self._file.has(base):
            try:
                self._file = _LogFile(base, _map_file(self._log_path(base)))
            except OSError as error:
                reason = f"CommitLog file {error.filename}: {error.strerror}"
                yield ReadChunk(None, next_offset, lost_ranges(offsets[:count], reason))
                return
        data, inside = self._file.data, positions[:count] - base
        rows = select_records(data, inside, sizes[:count], self._selector)
        broker_name = self._split.queue.broker_name
        yield from make_chunks(
            data, inside[rows], offsets[:count][rows], next_offset, broker_name, self._columns
        )


def _leading(flags: NDArray[np.bool_]) -> int:
    """Return the number of True values at the beginning of `flags`."""
    return len(flags) if flags.all() else int(np.argmin(flags))


def _map_file(path: Path) -> memoryview:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # The file is unmapped when the last view of it is released.
        return memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
    finally:
        os.close(descriptor)
