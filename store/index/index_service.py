"""IndexService: the index files of a store, one after the other, and queries over all of them.

It is a dispatch sink (`store.dispatch.sink`).
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from store.dispatch.sink import RecordBatch
from store.index.index_file import IndexFile, IndexSnapshot, IndexView, index_file_bytes
from store.kernels.index import HEADER_BYTES, KEY_PHYSICAL_OFFSET, KEY_TIMESTAMP, SLOT_BYTES
from store.logs import get_logger
from store.store_errors import StoreError

_log = get_logger(__name__)

_NOTHING = -1
_CALENDAR_END_MS = 253_402_214_400_000  # the last day of the year 9999, in any time zone


def index_file_name(timestamp_ms: int, after: str | None) -> str:
    """RocketMQ's name: local time to the millisecond; later than `after`, whatever the clock did.

    It is the time of the file's first record, so that a rebuilt file gets the same name. No CRC covers that
    time: one that no calendar has is named as the last that there is.
    """
    in_calendar = timestamp_ms if 0 <= timestamp_ms < _CALENDAR_END_MS else _CALENDAR_END_MS - 1
    local = datetime.fromtimestamp(in_calendar / 1000, tz=UTC).astimezone()
    name = local.strftime("%Y%m%d%H%M%S") + f"{in_calendar % 1000:03d}"
    return name if after is None or name > after else f"{int(after) + 1:017d}"


class IndexSearch:
    """Finds entries in index files, whose pages may have to come from the disk: `run` is for any thread."""

    def __init__(
        self, files: Sequence[IndexView], key_hash: int, begin_ms: int, end_ms: int, limit: int
    ) -> None:
        self._files = files
        self._key_hash = key_hash
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self._limit = limit

    def run(self) -> list[int]:
        """Physical offsets of up to `limit` records, newest first."""
        found: list[int] = []
        for file in self._files:
            found += file.select(self._key_hash, self._begin_ms, self._end_ms, self._limit - len(found))
            if len(found) >= self._limit:
                break
        return found


class IndexService:
    """All index files, in order of their names."""

    def __init__(self, directory: Path, slots: int, capacity: int) -> None:
        self.directory = directory
        self.slots = slots
        self.capacity = capacity
        self._files: list[IndexFile] = []
        self._dirty: set[Path] = set()
        self._end: int | None = None  # of the last record, once it is known
        self.next_file: IndexFile | None = None
        """One that was made ahead, empty and not yet named."""
        self.missing_from: int | None = None
        """From this offset on, records are to be put in again; known after `load`."""

    def notes(self) -> list[IndexSnapshot]:
        """What the files hold now."""
        return [file.note() for file in self._files]

    @property
    def end_physical_offset(self) -> int:
        """Where the last record with a key stands that is in the index; −1 if there is none."""
        if self._end is None:
            ends = (file.end_physical_offset for file in reversed(self._files) if file.count > 1)
            self._end = next(ends, _NOTHING)
        return self._end

    @property
    def end_timestamp(self) -> int:
        """The storeTimestamp of the last record in the index; 0 if there is none."""
        return self._files[-1].end_timestamp if self._files else 0

    @property
    def missing_next(self) -> bool:
        """Whether another file will soon be needed, three quarters of the last one being full."""
        if self.next_file is not None or not self._files:
            return False
        return self._files[-1].count > self.capacity - self.capacity // 4

    @property
    def last(self) -> IndexFile | None:
        """The file that entries go to."""
        return self._files[-1] if self._files else None

    def __iter__(self) -> Iterator[IndexFile]:
        return iter(self._files)

    # ---- load ----------------------------------------------------------------------------------------------

    def load(self, notes: list[IndexSnapshot], log_min: int, *, closed_cleanly: bool) -> None:
        """Open the files as they were noted, as far as they are sound; everything else is removed.

        Those that were not written to after their note – all but the last one, or all after an orderly end –
        and have not been touched since are not looked into.

        A first file whose records are all before `log_min` may be missing: it was removed with them.

        What came after the note is taken out too: it is put in again, with whatever a kill has kept from it.
        """
        paths = {path.name: path for path in self.directory.iterdir()} if self.directory.is_dir() else {}
        for note in notes:
            path = paths.get(note.name)
            if path is None and not self._files and note.end_physical_offset < log_min:
                continue
            may_trust = closed_cleanly or note is not notes[-1]
            damage = "it is missing" if path is None else self._open(path, note, may_trust=may_trust)
            if damage is not None:
                _log.warning(
                    "index_file_damaged",
                    path=str(self.directory / note.name),
                    damage=damage,
                    rebuilt_from=self.end_physical_offset,
                )
                self.missing_from = self.end_physical_offset
                break
            del paths[note.name]
        self._remove(list(paths.values()))

    def check_settings(self) -> None:
        """Raise StoreError when the files look like those of a store with other index settings."""
        right_bytes = index_file_bytes(self.slots, self.capacity)
        paths = self.directory.iterdir() if self.directory.is_dir() else []
        sizes = {path.stat().st_size for path in paths if path.is_file()}
        if right_bytes in sizes or len(sizes) != 1:
            return
        found_bytes = sizes.pop()
        if found_bytes > HEADER_BYTES and (found_bytes - HEADER_BYTES) % SLOT_BYTES == 0:
            raise StoreError(
                f"index files of {found_bytes:,} bytes, where index_slots {self.slots:,} and index_entries "
                f"{self.capacity:,} make {right_bytes:,} (set them to what the store was made with)",
                self.directory,
            )

    def _open(self, path: Path, note: IndexSnapshot, *, may_trust: bool) -> str | None:
        """Take in a file as it was noted; returns what is wrong with it, or None."""
        try:
            file = IndexFile(path, self.slots, self.capacity)
        except StoreError as error:
            return error.reason
        damage = None if may_trust and file.take_unused(note) else file.restore(note)
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
        """Remove every file: the index is to be built again, from the record at `offset` on."""
        self.missing_from = offset
        self._end = None
        for file in self._files:
            file.close()
        self._files = []
        self._remove(sorted(self.directory.iterdir()) if self.directory.is_dir() else [])

    def take_dead_files(self, min_physical_offset: int) -> list[IndexFile]:
        """Forget the files whose records are all gone, but the last one; returns them to be removed."""
        dead: list[IndexFile] = []
        while len(self._files) > 1 and self._files[0].end_physical_offset < min_physical_offset:
            dead.append(self._files.pop(0))
            self._dirty.discard(dead[-1].path)
        return dead

    def rewind(self, offset: int) -> None:
        """Forget the records at or after `offset`."""
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
        """Put the keys of a batch in, except those of records that are in already. Raises OSError."""
        keys, count, first = batch.keys, len(batch.keys), 0
        if not count:
            return
        known = self.end_physical_offset
        if keys[0, KEY_PHYSICAL_OFFSET] <= known:
            offsets = keys[:, KEY_PHYSICAL_OFFSET]
            # A record's keys may stand in two files, of which only the first is there.
            of_last = int(np.searchsorted(offsets, known)) + self._keys_of_last_record(known)
            first = min(of_last, int(np.searchsorted(offsets, known, side="right")))
        self._end = None  # until all is in: a disk may be full
        while first < count:
            file = self._files[-1] if self._files else None
            if file is None or file.is_full:
                file = self._create(int(keys[first, KEY_TIMESTAMP]), file)
            self._dirty.add(file.path)
            first += file.insert(keys, first, count)
        self._end = max(known, int(keys[count - 1, KEY_PHYSICAL_OFFSET]))

    def _keys_of_last_record(self, physical_offset: int) -> int:
        """How many entries there are of the last record in the index, which stands at `physical_offset`."""
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
        """A search for records that may have a key of this hash, as the index is now."""
        return IndexSearch([file.view() for file in reversed(self._files)], key_hash, begin_ms, end_ms, limit)

    def take_dirty_paths(self) -> list[str]:
        """The files written since the last call, for whoever makes them durable."""
        paths = [str(path) for path in self._dirty]
        self._dirty.clear()
        return paths

    def close(self) -> None:
        """Let go of all files."""
        for file in self._files:
            file.close()
        self._files = []
