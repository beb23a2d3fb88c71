"""LiteNames: the names of lite topics, and the id of each. A name is `topic$lite topic`.

    <store>/lite/names   append-only; the last entry of a name or an id counts

    0          8    12           16           18
    | position | id | nextOffset | nameLength | name |

An entry says that the name has this id from the record at CommitLog offset `position` on, and that its next
offset is at least `nextOffset`. With the id DROPPED it is a tombstone: the records of the name before
`position` are dead. The file outlives a rebuild, so that expired lite topics stay dropped, and offsets of
lite topics whose messages are gone are not given twice.
"""

from __future__ import annotations

import binascii
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from store.disk.files import replace_file, write_all
from store.message.buffers import Buffer

LITE: Final = "lite"
"""The directory of the files, in the root of the store, and the name of the sink."""
SEPARATOR: Final = "$"
DROPPED: Final = 0xFFFF_FFFF
_HEAD: Final = Struct(">qIIH")
_BUFFER_BYTES: Final = 64 * 1024


class NameEntry(NamedTuple):
    """One entry of the file."""

    position: int
    id: int
    next_offset: int
    name: str

    def encode(self) -> bytes:
        """Return the bytes of the entry."""
        name = self.name.encode()
        return _HEAD.pack(self.position, self.id, self.next_offset, len(name)) + name


class LiteNames:
    """The file of names of one store."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._buffer = bytearray()
        self._written = self._crc = 0

    def add(self, entry: NameEntry) -> None:
        """Append an entry, which is written later."""
        self._buffer += entry.encode()

    def add_encoded(self, entries: Buffer) -> None:
        """Append encoded entries, which are written later."""
        self._buffer += entries

    def write_if_long(self) -> None:
        """Write what is buffered if it is much. Raises OSError."""
        if len(self._buffer) >= _BUFFER_BYTES:
            self.state()

    def state(self) -> tuple[int, int]:
        """Write what is buffered; return size and CRC-32 of the file. Raises OSError."""
        if self._buffer:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                write_all(descriptor, self._buffer, self._written)
            finally:
                os.close(descriptor)
            self._crc = binascii.crc32(self._buffer, self._crc)
            self._written += len(self._buffer)
            self._buffer.clear()
        return self._written, self._crc

    def load(self, size_bytes: int | None, crc: int) -> Sequence[NameEntry]:
        """Return the entries of the file, or, if `size_bytes` is None, those before the first invalid one.

        Raises ValueError if the first `size_bytes` have another CRC.
        """
        content = self._path.read_bytes() if self._path.exists() else b""
        if size_bytes is not None:
            content = content[:size_bytes]
            if len(content) < size_bytes or binascii.crc32(content) != crc:
                raise ValueError(f"the CRC of {self._path} does not match")
        entries: list[NameEntry] = []
        at = 0
        while at + _HEAD.size <= len(content):
            position, id_, next_offset, length = _HEAD.unpack_from(content, at)
            name = content[at + _HEAD.size : at + _HEAD.size + length]
            if len(name) < length or position < 0 or not name.isascii() or len(entries) < id_ < DROPPED:
                break
            entries.append(NameEntry(position, id_, next_offset, name.decode()))
            at += _HEAD.size + length
        self._written, self._crc = at, binascii.crc32(content[:at])
        self._buffer.clear()
        return entries

    def replace(self, entries: Iterable[NameEntry]) -> None:
        """Replace the file by one with these entries. Raises OSError."""
        content = b"".join(entry.encode() for entry in entries)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._path, content)
        self._buffer.clear()
        self._written, self._crc = len(content), binascii.crc32(content)
