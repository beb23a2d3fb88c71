"""Sealed files: full consume queue files, which a broker can replace while it runs.

The job builds the queues from the sealed part of the log, up to the last checkpoint, and keeps the full files
that differ from those of the broker. The broker verifies a new file before it puts the file in place: each
unit must point to a record that has the queue id, the queue offset and the size of the unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.consumequeue.unit import FILLER_SIZE, UNIT_BYTES
from store.message.crc import running_crc
from store.message.record import decode_record
from store.store_errors import StoreError
from store.tools.reindex.queues import BuiltQueue, Shard, build_queues
from store.tools.reindex.store_files import StoreFiles
from store.tools.verify.index import LogExtent

_UNITS = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_HEADER = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("position", ">i8"),
    ]
)
"""The first fields of a record (docs/store-format.md#record)."""


class SealedFile(NamedTuple):
    """The consume queue file of a queue that begins at queue offset `offset`; `crc` is its new CRC-32."""

    topic: str
    queue_id: int
    offset: int
    crc: int

    def path(self, directory: Path) -> Path:
        """Return the path of the file below `directory`, the directory of all consume queues."""
        return directory / self.topic / str(self.queue_id) / f"{self.offset * UNIT_BYTES:020d}"


class SealedResult(NamedTuple):
    """The sealed files of one shard.

    `different` are the files that differ from those of the broker. `lost` are those among them that have
    placeholders for damaged records, which a running broker does not accept. `queues` is the number of queues
    in the shard.
    """

    different: list[SealedFile]
    lost: list[SealedFile]
    queues: int


def build_sealed(files: StoreFiles, extent: LogExtent, bases: Sequence[int], shard: Shard) -> SealedResult:
    """Build the queues of one shard, and compare their full files with those of the broker.

    Only files whose records are all in the log are compared. `bases` are the CommitLog offsets at which the
    log files begin. Raises StoreError, OSError.
    """
    result = SealedResult([], [], 0)
    states = build_queues(files, extent, bases, shard, {}).queues
    for state in states:
        for offset in _full_files(state, files.sizes.queue_file_bytes // UNIT_BYTES):
            name = SealedFile(state.topic, state.queue_id, offset, 0)
            content = name.path(files.new_queues).read_bytes()
            old = name.path(files.queues)
            if not old.exists() or old.read_bytes() == content:
                continue
            new = name._replace(crc=running_crc(content))
            is_lost = (np.frombuffer(content, _UNITS)["size"] == FILLER_SIZE).any()
            (result.lost if is_lost else result.different).append(new)
    return result._replace(queues=len(states))


def _full_files(state: BuiltQueue, units: int) -> range:
    """Return the queue offsets at which the full files of a queue begin; a file has `units` units."""
    _, min_offset, next_offset, *_ = state.snapshot
    first = -(-min_offset // units) * units
    return range(first, next_offset - units + 1, units)


def verify_sealed(files: StoreFiles, new: SealedFile, end: int) -> None:
    """Verify the new file of a queue, in the work directory, against the records of the log.

    `end` is the CommitLog offset before which all records are dispatched. The tags codes are covered by the
    CRC only. Raises StoreError if the file must not be used, and OSError.
    """
    path = new.path(files.new_queues)
    if not path.is_file():
        raise StoreError("the new consume queue file does not exist: run the re-index again", path)
    content = path.read_bytes()
    if len(content) != files.sizes.queue_file_bytes:
        raise StoreError(
            f"the file has {len(content):,} bytes instead of {files.sizes.queue_file_bytes:,}", path
        )
    if running_crc(content) != new.crc:
        raise StoreError(f"the CRC of the file is not {new.crc}: run the re-index again", path)
    units = np.frombuffer(content, _UNITS)
    positions, sizes = units["position"].astype(np.int64), units["size"].astype(np.int64)
    log = files.open_log(0, end)
    try:
        first = log.bases[0] if log.bases else 0
        is_valid = (positions >= first) & (positions < end) & (sizes >= _HEADER.itemsize)
        _require_all(is_valid, path)  # first: a sum of larger numbers would exceed 64 bits
        ends = positions + sizes
        bases = first + (positions - first) // log.file_bytes * log.file_bytes
        is_valid &= (ends <= end) & (ends <= bases + log.file_bytes)
        is_valid[1:] &= positions[1:] >= ends[:-1]
        _require_all(is_valid, path)
        for base in np.unique(bases).tolist():
            rows = np.flatnonzero(bases == base)
            places = positions[rows] - base
            bytes_of = log.file_at(base).array[places[:, None] + np.arange(_HEADER.itemsize)]
            header = np.frombuffer(bytes_of.tobytes(), _HEADER)
            is_valid[rows] = (
                (header["size"] == sizes[rows])
                & (header["queue_id"] == new.queue_id)
                & (header["queue_offset"] == new.offset + rows)
                & (header["position"] == positions[rows])
            )
        _require_all(is_valid, path)
        for row in (0, len(units) - 1):
            record = decode_record(log.slice(int(positions[row]), int(sizes[row])))
            if record.topic != new.topic:
                raise StoreError(f"unit {row} points to a record of topic {record.topic}", path)
    finally:
        log.close()


def _require_all(is_valid: NDArray[np.bool_], path: Path) -> None:
    if not is_valid.all():
        row = int(np.argmin(is_valid))
        reason = f"unit {row} does not point to the record that has its queue offset"
        raise StoreError(reason, path, row * UNIT_BYTES)
