"""Reading a split out of the store's own files: no broker, no socket, no copy but that into Arrow.

ConsumeQueue units say where the records lie; a kernel makes columns of them straight from mapped CommitLog
files. What is read is confirmed: the writer never touches it again.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jobs.chunk import Chunk, Lost, Numbers, make_chunk
from jobs.splits import Split, StorePlace
from store.commitlog.log_paths import COMMIT_LOG
from store.ownership.identity import read_name
from store.store_errors import StoreError

UNIT = np.dtype([("position", ">i8"), ("size_bytes", ">i4"), ("tags_code", ">i8")])
BATCH_ROWS = 16_384
# A batch's columns are addressed by 32-bit offsets, and Spark holds a few batches at once.
BATCH_BYTES = 16 * 1024 * 1024


def lies_here(place: StorePlace) -> bool:
    """Whether that very store lies on this machine: a path of the same name proves nothing."""
    try:
        name = read_name(Path(place.store_root))
    except (OSError, StoreError):
        return False
    return name is not None and name.store_id == place.store_id


@dataclass(frozen=True)
class _LogFile:
    base: int
    data: memoryview

    def has(self, position: int) -> bool:
        return self.base <= position < self.base + len(self.data)


class MappedSplit:
    """One split's messages, out of the files below `split.place.store_root`."""

    def __init__(self, split: Split, columns: Sequence[str]) -> None:
        root = Path(split.place.store_root)
        queue = split.queue
        self._split = split
        self._columns = tuple(columns)
        name = read_name(root)
        self._log_directories = [root / path for path in (name.commit_log_paths if name else (COMMIT_LOG,))]
        self._queue_directory = root / "consumequeue" / queue.topic / str(queue.queue_id)
        self._units_per_file = split.place.consume_queue_file_units
        self._log_file_bytes = split.place.commit_log_file_bytes
        self._file: _LogFile | None = None

    def read(self, offset: int) -> Chunk:
        """Give the messages at `offset`: up to a batch, as far as they lie in one CommitLog file."""
        first = offset - offset % self._units_per_file
        end = min(self._split.end, first + self._units_per_file)
        path = self._queue_directory / f"{first * UNIT.itemsize:020d}"
        count = min(end - offset, BATCH_ROWS)
        try:
            units = np.fromfile(path, UNIT, count, offset=(offset - first) * UNIT.itemsize)
        except OSError as error:
            return Chunk(None, end, [Lost(offset, end, f"consume-queue file {path}: {error.strerror}")])
        positions, sizes = units["position"].astype(np.int64), units["size_bytes"].astype(np.int64)
        count = _leading((positions >= 0) & (sizes > 0) & (np.cumsum(sizes) <= max(BATCH_BYTES, *sizes[:1])))
        if not count:
            return Chunk(None, offset + 1, [Lost(offset, offset + 1, f"no unit of a message in {path}")])
        return self._read_log(positions[:count], offset)

    def _log_path(self, base: int) -> Path:
        """The file that begins at `base`: in whichever of the log's directories it is."""
        paths = [directory / f"{base:020d}" for directory in self._log_directories]
        return next((path for path in paths if path.exists()), paths[0])

    def close(self) -> None:
        """Let go of the mapped file; it is unmapped with the last batch that is made from it."""
        self._file = None

    def _read_log(self, positions: Numbers, offset: int) -> Chunk:
        """Give those of the records that lie in the CommitLog file of the first."""
        base = int(positions[0]) - int(positions[0]) % self._log_file_bytes
        positions = positions[: _leading((positions >= base) & (positions < base + self._log_file_bytes))]
        if self._file is None or not self._file.has(base):
            try:
                self._file = _LogFile(base, _map_file(self._log_path(base)))
            except OSError as error:
                end = offset + len(positions)
                return Chunk(
                    None, end, [Lost(offset, end, f"CommitLog file {error.filename}: {error.strerror}")]
                )
        return make_chunk(
            self._file.data, positions - base, offset, self._split.queue.broker_name, self._columns
        )


def _leading(sound: NDArray[np.bool_]) -> int:
    """How many are true before the first that is not."""
    return len(sound) if sound.all() else int(np.argmin(sound))


def _map_file(path: Path) -> memoryview:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # The map goes when the last view of it goes.
        return memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
    finally:
        os.close(descriptor)
