"""IndexService: all index files of a store, and queries over them.

It is a dispatch sink (`store.dispatch.sink`): the dispatch passes it the keys of all records.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from store.common.logs import get_logger
from store.dispatch.sink import RecordBatch
from store.index.index_file import IndexFile, IndexSnapshot, IndexView, index_file_bytes
from store.kernels.index import HEADER_BYTES, KEY_PHYSICAL_OFFSET, KEY_TIMESTAMP, SLOT_BYTES
from store.store_errors import StoreError

_log = get_logger(__name__)

_NOTHING = -1
_CALENDAR_END_MS = 253_402_214_400_000  # the last day of the year 9999, in any time zone


def index_file_name(timestamp_ms: int, after: str | None) -> str:
    """Return the name of the index file whose first record has this storeTimestamp, as in RocketMQ.

    The name is the local time with milliseconds. It is derived from the record so that a rebuild produces the
    same name. If the name would not be greater than `after`, the name of the previous file, because the clock
    was set back, the successor of `after` is returned. The record CRC does not cover the timestamp, so a
    damaged timestamp may be outside the calendar: it is replaced by the last valid time.
    """
    in_calendar = timestamp_ms if 0 <= timestamp_ms < _CALENDAR_END_MS else _CALENDAR_END_MS - 1
    local = datetime.fromtimestamp(in_calendar / 1000, tz=UTC).astimezone()
    name = local.strftime("%Y%m%d%H%M%S") + f"{in_calendar % 1000:03d}"
    return name if after is None or name > after else f"{int(after) + 1:017d}"


class IndexSearch:
    """A search over index files. `run` may be called on any thread, because it may wait for the disk."""

    def __init__(
        self, files: Sequence[IndexView], key_hash: int, begin_ms: int, end_ms: int, limit: int
    ) -> None:
        self._files = files
        self._key_hash = key_hash
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self._limit = limit

    def run(self) -> list[int]:
        """Return the CommitLog offsets of up to `limit` records with the searched key hash, newest first."""
        found: list[int] = []
        for file in self._files:
            found += file.select(self._key_hash, self._begin_ms, self._end_ms, self._limit - len(found))
            if len(found) >= self._limit:
                break
        return found


class IndexService:
    """All index files of a store, in the order of their names."""

    def __init__(self, directory: Path, slots: int, capacity: int) -> None:
        self.directory = directory
        self.slots = slots
        self.capacity = capacity
        self._files: list[IndexFile] = []
        self._dirty: set[Path] = set()
        self._end: int | None = None  # cached `end_physical_offset`; None if it must be computed
        self.next_file: IndexFile | None = None
        """An empty file created in advance, not yet named; None if no file is prepared."""
        self.missing_from: int | None = None
        """The first physical offset whose record must be indexed again; known after `load`."""

    def snapshots(self) -> list[IndexSnapshot]:
        """Return the current state of every file for a checkpoint."""
        return [file.snapshot() for file in self._files]

    @property
    def end_physical_offset(self) -> int:
        """CommitLog offset of the last record in the index; -1 if the index is empty."""
        if self._end is None:
            ends = (file.end_physical_offset for file in reversed(self._files) if file.count > 1)
            self._end = next(ends, _NOTHING)
        return self._end

    @property
    def end_timestamp(self) -> int:
        """storeTimestamp of the last record in the index, in milliseconds; 0 if the index is empty."""
        return self._files[-1].end_timestamp if self._files else 0

    @property
    def needs_next_file(self) -> bool:
        """True if the last file is three quarters full and no next file has been prepared."""
        if self.next_file is not None or not self._files:
            return False
        return self._files[-1].count > self.capacity - self.capacity // 4

    @property
    def last(self) -> IndexFile | None:
        """The file that receives new entries; None if there is no file yet."""
        return self._files[-1] if self._files else None

    def __iter__(self) -> Iterator[IndexFile]:
        return iter(self._files)

    # ---- load ----------------------------------------------------------------------------------------------

    def load(self, snapshots: list[IndexSnapshot], log_min: int, *, closed_cleanly: bool) -> None:
        """Open the index files that match their snapshots in the last checkpoint, and delete all others.

        Loading stops at the first damaged or missing file; `missing_from` is then the CommitLog offset from
        which the index is rebuilt. A missing first file is accepted if all its records are before `log_min`,
        the beginning of the log: the file was deleted together with them. Entries added after a snapshot are
        removed, because dispatch adds them again.

        Files that cannot have changed after their snapshot are not read if their modification time matches:
        all files but the last one, and after a clean shutdown the last one too.
        """
        paths = {path.name: path for path in self.directory.iterdir()} if self.directory.is_dir() else {}
        for snapshot in snapshots:
            path = paths.get(snapshot.name)
            if path is None and not self._files and snapshot.end_physical_offset < log_min:
                continue
            may_trust = closed_cleanly or snapshot is not snapshots[-1]
            damage = (
                "the file is missing" if path is None else self._open(path, snapshot, may_trust=may_trust)
            )
            if damage is not None:
                _log.warning(
                    "index_file_damaged",
                    path=str(self.directory / snapshot.name),
                    damage=damage,
                    rebuilt_from=self.end_physical_offset,
                )
                self.missing_from = self.end_physical_offset
                break
            del paths[snapshot.name]
        self._remove(list(paths.values()))

    def check_settings(self) -> None:
        """Raise StoreError if the existing index files were created with other index settings."""
        expected_bytes = index_file_bytes(self.slots, self.capacity)
        paths = self.directory.iterdir() if self.directory.is_dir() else []
        sizes = {path.stat().st_size for path in paths if path.is_file()}
        if expected_bytes in sizes or len(sizes) != 1:
            return
        found_bytes = sizes.pop()
        if found_bytes > HEADER_BYTES and (found_bytes - HEADER_BYTES) % SLOT_BYTES == 0:
            raise StoreError(
                f"index files have {found_bytes:,} bytes, but index_slots {self.slots:,} and index_entries "
                f"{self.capacity:,} need {expected_bytes:,}: set them to the store's original values",
                self.directory,
            )

    def _open(self, path: Path, snapshot: IndexSnapshot, *, may_trust: bool) -> str | None:
        """Open one index file and restore its snapshot. Return a description of the damage, or None."""
        try:
            file = IndexFile(path, self.slots, self.capacity)
        except StoreError as error:
            return error.reason
        damage = None if may_trust and file.adopt_if_unchanged(snapshot) else file.restore(snapshot)
        if damage is None:
            self._files.append(file)
            self._end = None
        return damage

    def _remove(self, paths: list[Path]) -> None:
        for path in paths:
            if path.is_file():
                path.unlink()
            self._dirty.discard(path)

    def rebuild_from(self, offset: int) -> None:
        """Delete all index files, so that dispatch rebuilds the index from CommitLog offset `offset` on."""
        self.missing_from = offset
        self._end = None
        for file in self._files:
            file.close()
        self._files = []
        self._remove(sorted(self.directory.iterdir()) if self.directory.is_dir() else [])

    def take_dead_files(self, min_physical_offset: int) -> list[IndexFile]:
        """Detach the index files whose records were all deleted from the log, and return these files.

        The caller must delete the files. The last index file is always kept.
        """
        dead: list[IndexFile] = []
        while len(self._files) > 1 and self._files[0].end_physical_offset < min_physical_offset:
            dead.append(self._files.pop(0))
            self._dirty.discard(dead[-1].path)
        return dead

    def rewind(self, offset: int) -> None:
        """Remove the entries of records at or after the CommitLog offset `offset`."""
        self._end = None
        while self._files:
            last = self._files[-1]
            if last.count > 1 and last.end_physical_offset < offset:
                return
            if last.count > 1 and last.begin_physical_offset < offset:
                last.cut_at(offset)
                self._dirty.add(last.path)
                return
            last.close()
            self._remove([self._files.pop().path])

    # ---- put -----------------------------------------------------------------------------------------------

    def accept(self, batch: RecordBatch) -> None:
        """Insert the keys of a batch, except for records that are already in the index. Raises OSError."""
        keys, count, first = batch.keys, len(batch.keys), 0
        if not count:
            return
        known = self.end_physical_offset
        if keys[0, KEY_PHYSICAL_OFFSET] <= known:
            offsets = keys[:, KEY_PHYSICAL_OFFSET]
            # The keys of a record may span two files, of which the second may be lost.
            of_last = int(np.searchsorted(offsets, known)) + self._keys_of_last_record(known)
            first = min(of_last, int(np.searchsorted(offsets, known, side="right")))
        self._end = None  # unknown if an insert fails because the disk is full
        while first < count:
            file = self._files[-1] if self._files else None
            if file is None or file.is_full:
                file = self._create(int(keys[first, KEY_TIMESTAMP]), file)
            self._dirty.add(file.path)
            first += file.insert(keys, first, count)
        self._end = max(known, int(keys[count - 1, KEY_PHYSICAL_OFFSET]))

    def _keys_of_last_record(self, physical_offset: int) -> int:
        """Return how many entries the last record in the index has; the record is at `physical_offset`."""
        entries = 0
        for file in reversed(self._files):
            found = file.entries_from(physical_offset)
            entries += found
            if found < file.count - 1:
                break
        return entries

    def _create(self, timestamp_ms: int, previous: IndexFile | None) -> IndexFile:
        self.directory.mkdir(parents=True, exist_ok=True)
        name = index_file_name(timestamp_ms, previous.path.name if previous is not None else None)
        path = self.directory / name
        if self.next_file is None:
            file = IndexFile.create(path, self.slots, self.capacity, self.directory.parent, previous)
        else:
            file = self.next_file
            file.move_to(path)
            self.next_file = None
            file.follow(previous)
        self._files.append(file)
        return file

    # ---- query ---------------------------------------------------------------------------------------------

    def search(self, key_hash: int, begin_ms: int, end_ms: int, limit: int) -> "IndexSearch":
        """Prepare a search for a key hash over the current entries; `IndexSearch.run` executes it."""
        return IndexSearch([file.view() for file in reversed(self._files)], key_hash, begin_ms, end_ms, limit)

    def take_dirty_paths(self) -> list[str]:
        """Return the paths of the index files written since the last call; the caller must sync them."""
        paths = [str(path) for path in self._dirty]
        self._dirty.clear()
        return paths

    def close(self) -> None:
        """Unmap all index files."""
        for file in self._files:
            file.close()
        self._files = []
