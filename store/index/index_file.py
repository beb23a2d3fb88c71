"""IndexFile: finds records by key.

The layout stands in `store.kernels.index`; offsets never fall within a file.
"""

import mmap
import os
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.commitlog.mapped_file import allocate_file
from store.disk.files import check_size, settled_time_ns
from store.kernels import index as kernel
from store.kernels.index import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES
from store.message.crc import running_crc

_TIMES_AND_OFFSETS = Struct(">qqqq")
_COUNT = Struct(">i")
_COUNT_AT = 36
_UNCOUNTED_MAX = 16_384


def index_file_bytes(slots: int, entries: int) -> int:
    """The exact size of an index file."""
    return HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES * entries


class IndexSnapshot(NamedTuple):
    """What an index file held: its count, the CRC of its entries, its header (hexadecimal); and when it was
    last changed, 0 where that could not tell a later change.
    """

    name: str
    entries: int
    crc: int
    header: str
    time_ns: int

    @property
    def end_physical_offset(self) -> int:
        """Where the last entry's record stood."""
        return int(_TIMES_AND_OFFSETS.unpack_from(bytes.fromhex(self.header))[3])


class IndexView:
    """What a search needs of an index file; it keeps the map, so that the file may be closed or removed."""

    __slots__ = ("_array", "_slots")

    def __init__(self, array: NDArray[np.uint8], slots: int) -> None:
        self._array = array
        self._slots = slots

    def select(self, key_hash: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Physical offsets of up to `limit` entries with this hash within the times, newest first.

        For any thread: it waits for pages that have to come from the disk, without the GIL.
        """
        begin, end, _, _ = _TIMES_AND_OFFSETS.unpack_from(self._array.data)
        if begin > end_ms or end + 999 < begin_ms:
            return []
        found = np.empty(limit, dtype=np.int64)
        count = kernel.select_key(self._array, self._slots, key_hash, begin_ms, end_ms, found)
        offsets: list[int] = found[:count].tolist()
        return offsets


class IndexFile:
    """One mapped index file with `slots` hash slots and room for `capacity` − 1 entries."""

    __slots__ = ("_counted_crc", "_crc", "_view", "array", "capacity", "path", "slots")

    def __init__(self, path: Path, slots: int, capacity: int, *, copy_on_write: bool = False) -> None:
        """Map a file. Raises StoreError when its size is another one."""
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
        self._crc = 0  # of the entries below number …
        self._counted_crc = 1

    @classmethod
    def create(
        cls, path: Path, slots: int, capacity: int, scratch: Path, previous: "IndexFile | None" = None
    ) -> "IndexFile":
        """Make a file; RocketMQ starts its header with the end of the file before it. Raises OSError."""
        allocate_file(path, index_file_bytes(slots, capacity), scratch)
        file = cls(path, slots, capacity)
        file.follow(previous)
        return file

    def follow(self, previous: "IndexFile | None") -> None:
        """Start the header of an empty file with the end of the file before it."""
        if previous is not None:
            timestamp, offset = previous.end_timestamp, previous.end_physical_offset
            _TIMES_AND_OFFSETS.pack_into(self._view, 0, timestamp, timestamp, offset, offset)

    def move_to(self, path: Path) -> None:
        """Give it the name that it was made for. Raises OSError."""
        self.path.rename(path)
        self.path = path

    def _header(self) -> tuple[int, int, int, int]:
        begin, end, begin_offset, end_offset = _TIMES_AND_OFFSETS.unpack_from(self._view, 0)
        return begin, end, begin_offset, end_offset

    @property
    def end_timestamp(self) -> int:
        """The storeTimestamp of the last entry's record."""
        return self._header()[1]

    @property
    def begin_physical_offset(self) -> int:
        """Where the first entry's record stands."""
        return self._header()[2]

    @property
    def end_physical_offset(self) -> int:
        """Where the last entry's record stands."""
        return self._header()[3]

    @property
    def count(self) -> int:
        """The number of the next entry; 1 in an empty file."""
        count: int = _COUNT.unpack_from(self._view, _COUNT_AT)[0]
        return max(count, 1)

    @property
    def size_bytes(self) -> int:
        """How long the file is."""
        return len(self.array)

    @property
    def slots_end(self) -> int:
        """The byte behind the slots, where the entries begin."""
        return index_file_bytes(self.slots, 0)

    @property
    def written_bytes(self) -> int:
        """Where the next entry goes."""
        return index_file_bytes(self.slots, self.count)

    @property
    def is_full(self) -> bool:
        """Whether no entry fits any more."""
        return self.count >= self.capacity

    def insert(self, keys: NDArray[np.int64], first: int, end: int) -> int:
        """Put rows [first, end) of `keys` (columns KEY_…) in; returns how many found room."""
        inserted = int(kernel.insert_keys(self.array, self.slots, self.capacity, keys, first, end))
        if self.count - self._counted_crc > _UNCOUNTED_MAX:  # a note must not have to do it all at once
            self._count_crc()
        return inserted

    def note(self) -> IndexSnapshot:
        """What it holds now."""
        count = self._count_crc()
        header = self.array[:HEADER_BYTES].tobytes().hex()
        return IndexSnapshot(self.path.name, count, self._crc, header, settled_time_ns(str(self.path)))

    def _count_crc(self) -> int:
        """Take the new entries into the CRC; returns the number of the next one."""
        count = self.count
        self._crc = self._entries_crc(self._counted_crc, count, self._crc)
        self._counted_crc = count
        return count

    def _entries_crc(self, first: int, end: int, crc: int) -> int:
        entries = HEADER_BYTES + SLOT_BYTES * self.slots
        return running_crc(self.array[entries + ENTRY_BYTES * first : entries + ENTRY_BYTES * end], crc)

    def take_unused(self, note: IndexSnapshot) -> bool:
        """Whether it is as it was noted, told by its header and the time of its last change; if so, it is
        taken as that without a look into it.

        Only for a file that was not written to between its note and the end of its writer: what comes through
        a map changes that time but once, until the page has been written to the disk.
        """
        if self.array[:HEADER_BYTES].tobytes().hex() != note.header:
            return False
        if note.time_ns == 0 or self.path.stat().st_mtime_ns != note.time_ns:
            return False
        self._crc, self._counted_crc = note.crc, note.entries
        return True

    def restore(self, note: IndexSnapshot) -> str | None:
        """Go back to what was noted: later entries are taken out. Returns what is wrong, or None."""
        if not 1 <= note.entries <= min(self.count, self.capacity):
            return f"it counts {self.count} entries in place of {note.entries}"
        if self._entries_crc(1, note.entries, 0) != note.crc:
            return "its entries are not what was written"
        self._crc, self._counted_crc = note.crc, note.entries
        header = bytes.fromhex(note.header)
        if self.array[:HEADER_BYTES].tobytes() != header:
            self._cut(note.entries)
            self.array[:HEADER_BYTES] = np.frombuffer(header, dtype=np.uint8)
        return None if self.is_valid() else "its chains are not what its entries make"

    def view(self) -> IndexView:
        """What a search needs of it."""
        return IndexView(self.array, self.slots)

    def select(self, key_hash: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """As `IndexView.select`."""
        return self.view().select(key_hash, begin_ms, end_ms, limit)

    def entries_from(self, physical_offset: int) -> int:
        """How many entries it has of records at or after `physical_offset`."""
        return self.count - int(kernel.entry_at_or_after(self.array, self.slots, physical_offset))

    def is_valid(self) -> bool:
        """Whether slots, chains and header agree with the entries."""
        newest = np.zeros(self.slots, dtype=np.int32)
        return bool(kernel.index_is_valid(self.array, self.slots, self.capacity, newest))

    def cut_at(self, physical_offset: int) -> None:
        """Forget the entries of records at or after `physical_offset`, and what a kill left behind the last
        entry.
        """
        self._cut(int(kernel.entry_at_or_after(self.array, self.slots, physical_offset)))
        self._crc, self._counted_crc = 0, 1

    def _cut(self, number: int) -> None:
        # An entry knows its time to the second; the next insert sets the exact end time again.
        written = int(kernel.written_entries(self.array, self.slots, self.capacity))
        kernel.cut_entries(self.array, self.slots, number, max(number, written))

    def release(self) -> bool:
        """Let go of the map, on a thread that may wait for it; always True."""
        self.close()
        return True

    def close(self) -> None:
        """Let go of the map."""
        self.array = np.empty(0, dtype=np.uint8)
        self._view = memoryview(b"")
