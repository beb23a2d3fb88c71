"""IndexFile: finds the records that have a key.

An entry stores the location of one record that has a key; entries are identified by their index in the file.
The layout is described in `store.kernels.index`. Physical offsets (CommitLog offsets) never decrease from one
entry to the next.
"""

import mmap
import os
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.commitlog.mapped_file import allocate_file
from store.disk.files import check_size, data_ranges, settled_time_ns
from store.kernels import index as kernel
from store.kernels.index import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES
from store.message.crc import running_crc

_TIMES_AND_OFFSETS = Struct(">qqqq")
_COUNT = Struct(">i")
_COUNT_AT = 36
_UPDATE_CRC_AFTER_ENTRIES = 16_384


def index_file_bytes(slots: int, entries: int) -> int:
    """Return the exact size in bytes of an index file with `slots` hash slots and `entries` entries."""
    return HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES * entries


class IndexSnapshot(NamedTuple):
    """State of an index file as stored in a checkpoint.

    `entries` is the index of the next entry, `crc` covers all entries before it, and `header` is the file
    header in hexadecimal. `time_ns` is the modification time; it is 0 if the file changed so recently that a
    later change could keep the same time.
    """

    name: str
    entries: int
    crc: int
    header: str
    time_ns: int

    @property
    def end_physical_offset(self) -> int:
        """CommitLog offset of the record to which the last entry belongs."""
        return int(_TIMES_AND_OFFSETS.unpack_from(bytes.fromhex(self.header))[3])


class IndexView:
    """Read access to an index file for a search; it remains usable after the file is closed or deleted."""

    __slots__ = ("_array", "_slots")

    def __init__(self, array: NDArray[np.uint8], slots: int) -> None:
        self._array = array
        self._slots = slots

    def select(self, key_hash: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Return the CommitLog offsets of up to `limit` records with this key hash, newest first.

        Only records whose storeTimestamp is in [begin_ms, end_ms] are returned. May be called on any thread;
        the GIL is released while pages are read from disk.
        """
        begin, end, _, _ = _TIMES_AND_OFFSETS.unpack_from(self._array.data)
        if begin > end_ms or end + 999 < begin_ms:
            return []
        found = np.empty(limit, dtype=np.int64)
        count = kernel.select_key(self._array, self._slots, key_hash, begin_ms, end_ms, found)
        offsets: list[int] = found[:count].tolist()
        return offsets


class IndexFile:
    """One memory-mapped index file with `slots` hash slots and room for `capacity` − 1 entries."""

    __slots__ = ("_crc", "_crc_end", "_view", "array", "capacity", "path", "slots")

    def __init__(self, path: Path, slots: int, capacity: int, *, copy_on_write: bool = False) -> None:
        """Map an existing file. Raises StoreError if the file does not have the expected size."""
        self.path = path
        self.slots = slots
        self.capacity = capacity
        size_bytes = index_file_bytes(slots, capacity)
        descriptor = os.open(path, os.O_RDONLY if copy_on_write else os.O_RDWR)
        try:
            check_size(descriptor, path, size_bytes)
            access = mmap.ACCESS_COPY if copy_on_write else mmap.ACCESS_WRITE
            self._view = memoryview(mmap.mmap(descriptor, size_bytes, access=access))
        finally:
            os.close(descriptor)
        self.array: NDArray[np.uint8] = np.frombuffer(self._view, dtype=np.uint8)
        self._crc = 0  # CRC of the entries before number `_crc_end`
        self._crc_end = 1

    @classmethod
    def create(
        cls, path: Path, slots: int, capacity: int, scratch: Path, previous: "IndexFile | None" = None
    ) -> "IndexFile":
        """Create an empty index file. Raises OSError.

        The header starts with the end time and end offset of the file `previous` (see `follow`). `scratch` is
        the directory for the temporary file.
        """
        allocate_file(path, index_file_bytes(slots, capacity), scratch)
        file = cls(path, slots, capacity)
        file.follow(previous)
        return file

    def follow(self, previous: "IndexFile | None") -> None:
        """Initialize the header of an empty file with the end of the file `previous`, as RocketMQ does."""
        if previous is not None:
            self.begin_after(previous.end_timestamp, previous.end_physical_offset)

    def begin_after(self, timestamp: int, physical_offset: int) -> None:
        """Initialize the header of an empty file with the last record in the file before it.

        `timestamp` is the record's storeTimestamp, and `physical_offset` its CommitLog offset.
        """
        _TIMES_AND_OFFSETS.pack_into(self._view, 0, timestamp, timestamp, physical_offset, physical_offset)

    def move_to(self, path: Path) -> None:
        """Rename the file to `path`. Raises OSError."""
        self.path.rename(path)
        self.path = path

    def _header(self) -> tuple[int, int, int, int]:
        begin, end, begin_offset, end_offset = _TIMES_AND_OFFSETS.unpack_from(self._view, 0)
        return begin, end, begin_offset, end_offset

    @property
    def end_timestamp(self) -> int:
        """storeTimestamp of the record to which the last entry belongs, in milliseconds."""
        return self._header()[1]

    @property
    def begin_physical_offset(self) -> int:
        """CommitLog offset of the record to which the first entry belongs."""
        return self._header()[2]

    @property
    def end_physical_offset(self) -> int:
        """CommitLog offset of the record to which the last entry belongs."""
        return self._header()[3]

    @property
    def count(self) -> int:
        """Index at which the next entry will be stored; 1 in an empty file, because entry 0 is never used."""
        count: int = _COUNT.unpack_from(self._view, _COUNT_AT)[0]
        return max(count, 1)

    @property
    def size_bytes(self) -> int:
        """Size of the file in bytes."""
        return len(self.array)

    @property
    def slots_end(self) -> int:
        """Byte position after the hash slots, where the entries begin."""
        return index_file_bytes(self.slots, 0)

    @property
    def written_bytes(self) -> int:
        """Byte position at which the next entry is written."""
        return index_file_bytes(self.slots, self.count)

    @property
    def is_full(self) -> bool:
        """True if the file has no room for another entry."""
        return self.count >= self.capacity

    def insert(self, keys: NDArray[np.int64], first: int, end: int) -> int:
        """Insert entries for rows [first, end) of `keys` (columns `kernels.index.KEY_…`).

        Returns the number of entries inserted, which is lower than the number of rows if the file became
        full.
        """
        inserted = int(kernel.insert_keys(self.array, self.slots, self.capacity, keys, first, end))
        if self.count - self._crc_end > _UPDATE_CRC_AFTER_ENTRIES:  # keeps a later snapshot short
            self._update_crc()
        return inserted

    def snapshot(self) -> IndexSnapshot:
        """Return the current state for a checkpoint."""
        count = self._update_crc()
        header = self.array[:HEADER_BYTES].tobytes().hex()
        return IndexSnapshot(self.path.name, count, self._crc, header, settled_time_ns(str(self.path)))

    def _update_crc(self) -> int:
        """Update the CRC with the entries added since the last call.

        Returns the index at which the next entry will be stored.
        """
        count = self.count
        self._crc = self._entries_crc(self._crc_end, count, self._crc)
        self._crc_end = count
        return count

    def _entries_crc(self, first: int, end: int, crc: int) -> int:
        entries = HEADER_BYTES + SLOT_BYTES * self.slots
        return running_crc(self.array[entries + ENTRY_BYTES * first : entries + ENTRY_BYTES * end], crc)

    def adopt_if_unchanged(self, snapshot: IndexSnapshot) -> bool:
        """Adopt the state of the snapshot, without reading entries, if header and modification time match it.

        Returns False if they do not match. The call is safe only if the file was not written to between its
        snapshot and the end of the process that wrote it: writes through a map change the modification time
        only once, until the page has been written to disk.
        """
        if self.array[:HEADER_BYTES].tobytes().hex() != snapshot.header:
            return False
        if snapshot.time_ns == 0 or self.path.stat().st_mtime_ns != snapshot.time_ns:
            return False
        self._crc, self._crc_end = snapshot.crc, snapshot.entries
        return True

    def restore(self, snapshot: IndexSnapshot) -> str | None:
        """Restore the file to the state of the snapshot: remove all later entries.

        Returns a description of the damage, or None if the file is valid.
        """
        if not 1 <= snapshot.entries <= min(self.count, self.capacity):
            return f"it has {self.count} entries instead of {snapshot.entries}"
        if self._entries_crc(1, snapshot.entries, 0) != snapshot.crc:
            return "its entries do not match the CRC of the last checkpoint"
        self._crc, self._crc_end = snapshot.crc, snapshot.entries
        self._cut(snapshot.entries)
        self._clear_from(snapshot.entries)
        self.array[:HEADER_BYTES] = np.frombuffer(bytes.fromhex(snapshot.header), dtype=np.uint8)
        return None if self.is_valid() else "its hash chains do not match its entries"

    def view(self) -> IndexView:
        """Return an object for searches in the file."""
        return IndexView(self.array, self.slots)

    def select(self, key_hash: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Search the file; see `IndexView.select`."""
        return self.view().select(key_hash, begin_ms, end_ms, limit)

    def entries_from(self, physical_offset: int) -> int:
        """Return the number of entries whose records are at or after CommitLog offset `physical_offset`."""
        return self.count - int(kernel.entry_at_or_after(self.array, self.slots, physical_offset))

    def is_valid(self) -> bool:
        """Return True if the slots, chains and header of the file agree with its entries."""
        newest = np.zeros(self.slots, dtype=np.int32)
        return bool(kernel.index_is_valid(self.array, self.slots, self.capacity, newest))

    def cut_at(self, physical_offset: int) -> None:
        """Remove the entries whose records are at or after the CommitLog offset `physical_offset`.

        Incomplete entries that a killed process left after the last entry are removed too.
        """
        self._cut(int(kernel.entry_at_or_after(self.array, self.slots, physical_offset)))
        self._crc, self._crc_end = 0, 1

    def _cut(self, number: int) -> None:
        # Entries have their time in seconds only; the next insert sets the exact end time again.
        written = int(kernel.written_entries(self.array, self.slots, self.capacity))
        kernel.cut_entries(self.array, self.slots, number, max(number, written))

    def _clear_from(self, number: int) -> None:
        """Clear entry `number` and all later ones: a power loss may keep some of them, and lose others."""
        with self.path.open("rb") as file:
            for begin, end in data_ranges(
                file.fileno(), index_file_bytes(self.slots, number), self.size_bytes
            ):
                if self.array[begin:end].any():
                    self.array[begin:end] = 0

    def release(self) -> bool:
        """Unmap the file; called on a background thread, because it may wait.

        Always returns True: the file is never in use at that time.
        """
        self.close()
        return True

    def close(self) -> None:
        """Unmap the file."""
        self.array = np.empty(0, dtype=np.uint8)
        self._view = memoryview(b"")
