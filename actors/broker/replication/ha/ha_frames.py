"""RocketMQ's HA protocol, sans I/O: how a master sends its CommitLog to a slave.

    slave → master    0       8
                      |  end  |                    the report: the end of the slave's log

    master → slave    0        8      12
                      | offset | size | data … |   bytes of the master's log, which begin at `offset`

All integers are big-endian. A frame without data is a heartbeat; its offset is that of the next data. There
is no handshake. A slave sends its first report within 5 s after it has connected, and further ones when its
log has grown, or every 5 s. Data is not aligned to records, and ends at the end of a log file at the latest.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from actors.wire.remoting_errors import ProtocolError
from store.message.buffers import Buffer

_REPORT: Final = struct.Struct(">q")
_HEADER: Final = struct.Struct(">qi")
REPORT_BYTES: Final = _REPORT.size
HEADER_BYTES: Final = _HEADER.size
CHUNK_BYTES: Final = 32 * 1024
"""The most data that a master sends in one frame (RocketMQ's haTransferBatchSize)."""
DATA_BYTES_MAX: Final = 4 * 1024 * 1024 - HEADER_BYTES
"""The most data of a frame that a slave accepts; a frame must fit into the buffer of RocketMQ's slaves."""


class HaFrame(NamedTuple):
    """Bytes of the master's log and the CommitLog offset at which they begin; without bytes a heartbeat."""

    offset: int
    data: memoryview


def encode_report(end: int) -> bytes:
    """Return a slave's report that its log ends at CommitLog offset `end`."""
    return _REPORT.pack(end)


def encode_header(offset: int, size_bytes: int) -> bytes:
    """Return the header of a frame; the `size_bytes` bytes of the log at `offset` must follow it."""
    return _HEADER.pack(offset, size_bytes)


class ReportReader:
    """Reads the reports of one slave, at the master."""

    def __init__(self) -> None:
        self._rest = b""

    def received(self, data: Buffer) -> int | None:
        """Take received bytes. Return the newest complete report; None without one.

        Raises ProtocolError if it is negative; the reader cannot be used after that.
        """
        buffer = self._rest + data
        whole = len(buffer) - len(buffer) % REPORT_BYTES
        self._rest = buffer[whole:]
        if not whole:
            return None
        (end,) = _REPORT.unpack_from(buffer, whole - REPORT_BYTES)
        if end < 0:
            raise ProtocolError(
                f"a slave reported the negative log end {end:,}", "another protocol on the HA port"
            )
        return int(end)


class HaFrameReader:
    """Reads the frames of a master, at a slave. Holds the bytes of one incomplete frame at most."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = HEADER_BYTES

    @property
    def held_bytes(self) -> int:
        """Number of bytes of an incomplete frame."""
        return len(self._buffer)

    def received(self, data: Buffer) -> list[HaFrame]:
        """Take received bytes and return the frames that they complete.

        Raises ProtocolError if an offset or a size is out of bounds; the reader cannot be used after that.
        """
        self._buffer += data
        if len(self._buffer) < self._needed:
            return []
        # The frames keep the old buffer: their data is not copied.
        view, self._buffer = memoryview(self._buffer), bytearray()
        frames, at = [], 0
        while len(view) - at >= HEADER_BYTES:
            offset, size_bytes = _HEADER.unpack_from(view, at)
            _check(offset, size_bytes)
            end = at + HEADER_BYTES + size_bytes
            if end > len(view):
                break
            frames.append(HaFrame(offset, view[at + HEADER_BYTES : end].toreadonly()))
            at = end
        self._buffer += view[at:]
        self._needed = HEADER_BYTES
        if len(self._buffer) >= HEADER_BYTES:
            self._needed += _HEADER.unpack_from(self._buffer)[1]
        return frames


def _check(offset: int, size_bytes: int) -> None:
    if offset < 0 or not 0 <= size_bytes <= DATA_BYTES_MAX:
        raise ProtocolError(
            f"a frame of {size_bytes:,} bytes at offset {offset:,}: the limit is {DATA_BYTES_MAX:,} bytes, "
            "and offsets are not negative",
            "another protocol on the HA port",
        )
