"""Parts: what the dispatch makes of one CommitLog file, written to files for the later steps.

A part has three files in `raymq.reindex/parts`, named by the CommitLog offset at which the log file begins:

    <base>.units    consume queue units, batch by batch as the dispatch passes them to its sinks
    <base>.groups   one row of 64-bit numbers per queue and batch: the columns of `kernels.units.GROUP_…`,
                    the index in .units of the batch's first unit, and the shard of the queue
    <base>.keys     index keys in the order of the log (`kernels.index.KEY_…`)
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.commitlog.holes import next_valid
from store.commitlog.mapped_file import MappedFile, file_name
from store.consumequeue.unit import UNIT_BYTES
from store.dispatch.dispatcher import Dispatcher, Mode
from store.dispatch.sink import RecordBatch
from store.kernels import units as kernel
from store.kernels import walk
from store.kernels.index import KEY_FIELDS
from store.recovery.scan_ahead import Scan, scan_file
from store.store_errors import StoreError
from store.tools.reindex.store_files import StoreFiles

BATCH_FIRST_UNIT = kernel.GROUP_FIELDS
SHARD = kernel.GROUP_FIELDS + 1
GROUP_COLUMNS = kernel.GROUP_FIELDS + 2

_SLICE_BYTES = 4 << 20

Numbers = NDArray[np.int64]


class Part(NamedTuple):
    """A part, and the scans of its log file.

    `scans` maps the CommitLog offset at which each scan began to its result. `end` is the offset at which
    the last of the `records` dispatched records ends. `keys` is their number of index keys.
    """

    base: int
    end: int
    records: int
    keys: int
    scans: dict[int, Scan]


class PartPaths(NamedTuple):
    """The files of one part."""

    units: Path
    groups: Path
    keys: Path


def part_paths(files: StoreFiles, base: int) -> PartPaths:
    """Return the paths of the part of the log file that begins at CommitLog offset `base`."""
    name = file_name(base)
    return PartPaths(*(files.parts / f"{name}.{kind}" for kind in PartPaths._fields))


def shard_of(topic: str, queue_id: int, shards: int) -> int:
    """Return the shard of a queue; the units of all queues of a shard are put together by one task."""
    return (zlib.crc32(topic.encode("utf-8", "replace")) + queue_id) % shards


class OneFile:
    """A log that consists of a single file, for the functions that read a log."""

    def __init__(self, file: MappedFile) -> None:
        self._file = file

    @property
    def end(self) -> int:
        """The CommitLog offset after the last byte of the file."""
        return self._file.end

    def file_at(self, offset: int) -> MappedFile:
        """Return the file. Raises StoreError if it does not contain the CommitLog offset `offset`."""
        if not self._file.base <= offset < self._file.end:
            raise StoreError(f"offset {offset:,} is outside this file", self._file.path)
        return self._file

    def slice(self, offset: int, size_bytes: int) -> memoryview:
        """Return `size_bytes` bytes from CommitLog offset `offset` on. Raises StoreError."""
        place = offset - self.file_at(offset).base
        if size_bytes < 0 or place + size_bytes > self._file.size_bytes:
            raise StoreError(f"{size_bytes:,} bytes from here on exceed the file", self._file.path, place)
        return self._file.view[place : place + size_bytes]


class PartSink:
    """A dispatch sink that writes batches to the files of a part."""

    def __init__(self, units: BinaryIO, groups: BinaryIO, keys: BinaryIO, shards: int) -> None:
        """Write to three open files; `shards` is the number of shards of the queues."""
        self._units = units
        self._groups = groups
        self._keys = keys
        self._shards = shards
        self._shard_of: dict[tuple[bytes, int], int] = {}
        self._unit_count = 0
        self.record_count = 0
        self.key_count = 0

    def accept(self, batch: RecordBatch) -> None:
        """Write units, groups and keys of a batch. Raises OSError."""
        count = int(batch.groups[:, kernel.GROUP_COUNT].sum())
        rows = np.empty((len(batch.groups), GROUP_COLUMNS), dtype=np.int64)
        rows[:, : kernel.GROUP_FIELDS] = batch.groups
        rows[:, BATCH_FIRST_UNIT] = self._unit_count
        rows[:, SHARD] = [self._shard(batch, *group) for group in self._queues(batch)]
        self._groups.write(rows.data)
        self._units.write(batch.units[: count * UNIT_BYTES].data)
        self._keys.write(batch.keys.data)
        self._unit_count += count
        self.record_count += len(batch.rows)
        self.key_count += len(batch.keys)

    @staticmethod
    def _queues(batch: RecordBatch) -> list[list[int]]:
        columns = [kernel.GROUP_TOPIC, kernel.GROUP_TOPIC_LENGTH, kernel.GROUP_QUEUE_ID]
        queues: list[list[int]] = batch.groups[:, columns].tolist()
        return queues

    def _shard(self, batch: RecordBatch, topic: int, length: int, queue_id: int) -> int:
        queue = bytes(batch.file.view[topic : topic + length]), queue_id
        shard = self._shard_of.get(queue)
        if shard is None:
            name = queue[0].decode("utf-8", "replace")  # the name of the queue's directory
            shard = self._shard_of[queue] = shard_of(name, queue_id, self._shards)
        return shard

    def rewind(self, offset: int) -> None:
        """Do nothing: a stopped store is not truncated."""

    @property
    def missing_from(self) -> int | None:
        """Always None, because the whole file is dispatched."""
        return None


def write_part(files: StoreFiles, base: int, shards: int, limit: int | None = None) -> Part:
    """Scan and dispatch the log file that begins at CommitLog offset `base`, and write its part.

    Records at or after the CommitLog offset `limit` are left out. The files of the part get their names when
    they are complete, so the part may be written again, even at the same time. Raises StoreError, OSError.
    """
    log = files.open_log()
    attempt = uuid.uuid4().hex
    written = PartPaths(*(path.with_name(f"{path.name}.{attempt}") for path in part_paths(files, base)))
    try:
        file = log.file_at(base)
        scans = dict(_scans(file, is_ours=files.is_ours))
        with ExitStack() as opened:
            units, groups, keys = (opened.enter_context(path.open("wb")) for path in written)
            sink = PartSink(units, groups, keys, shards)
            end = _dispatch(file, scans, sink, files, file.end if limit is None else limit)
        for path, target in zip(written, part_paths(files, base), strict=True):
            path.rename(target)
    finally:
        for path in written:
            path.unlink(missing_ok=True)
        log.close()
    return Part(base, end, sink.record_count, sink.key_count, scans)


def _scans(file: MappedFile, *, is_ours: bool) -> Iterator[tuple[int, Scan]]:
    """Scan a log file: yield the CommitLog offset of each sequence of valid records, and its scan."""
    position, last_timestamp = file.base, 0
    log = OneFile(file)
    while position < file.end:
        scan = scan_file(file, position, check_crc=True)
        yield position, scan
        last_timestamp = scan.last_timestamp if scan.records else last_timestamp
        following = None
        if scan.code != walk.BLANK and scan.position < file.end:
            following = next_valid(log, scan.position, None if is_ours else last_timestamp)
        if following is None:
            return
        position = following


def _dispatch(file: MappedFile, scans: dict[int, Scan], sink: PartSink, files: StoreFiles, limit: int) -> int:
    """Dispatch the scanned records before CommitLog offset `limit`. Return where the last of them ends."""
    dispatcher = Dispatcher(OneFile(file), [sink], list(files.delays_ms), _SLICE_BYTES)
    end = file.base
    for begin, scan in scans.items():
        position, stop = begin, min(scan.position, limit)
        while position < stop:
            following = dispatcher.step(position, stop, Mode.CHECKED).position
            if following == position:
                raise StoreError("the log cannot be dispatched here", file.path, position - file.base)
            position = following
        end = max(end, stop) if scan.records else end
    return end


def read_groups(files: StoreFiles, base: int) -> Numbers:
    """Return the rows of a part's .groups file."""
    return np.fromfile(part_paths(files, base).groups, np.int64).reshape(-1, GROUP_COLUMNS)


def map_units(files: StoreFiles, base: int) -> NDArray[np.uint8]:
    """Map the .units file of a part."""
    return _map(part_paths(files, base).units)


def map_keys(files: StoreFiles, base: int) -> Numbers:
    """Map the .keys file of a part, with one row per key."""
    return _map(part_paths(files, base).keys).view(np.int64).reshape(-1, KEY_FIELDS)


def _map(path: Path) -> NDArray[np.uint8]:
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype=np.uint8)
    # Copy-on-write, because the kernels are compiled for writable arrays.
    return np.memmap(path, np.uint8, mode="c").view(np.ndarray)
