"""Frames of gRPC messages within the data of an HTTP/2 stream.

    0            1        5
    | compressed | length | message |

`compressed` is 0, or 1 for a message in the encoding of the header `grpc-encoding`; `length` is big-endian.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from actors.gateway.grpc.gzip_data import declared_size
from actors.gateway.grpc.status import CallFailed, StatusCode

PREFIX: Final = struct.Struct(">BI")
ENCODINGS: Final = ("identity", "gzip")


def encode_frame(message: bytes) -> bytes:
    """Return the frame of one uncompressed message."""
    return PREFIX.pack(0, len(message)) + message


class Packed(NamedTuple):
    """A message as it was received."""

    data: bytes
    is_gzip: bool = False

    @property
    def plain_bytes(self) -> int:
        """Size of the message when it is inflated, as its sender declares it."""
        return declared_size(self.data) if self.is_gzip else len(self.data)


class MessageReader:
    """Collects the data of one stream and returns its messages.

    Raises CallFailed for a message over the limit, and for one that is compressed against the call's headers.
    """

    __slots__ = ("_data", "_encoding", "_max_bytes")

    def __init__(self, encoding: str, max_bytes: int) -> None:
        """Create the reader.

        Args:
            encoding: the call's `grpc-encoding`, one of `ENCODINGS`.
            max_bytes: limit of one message, before and after its decompression.
        """
        self._encoding = encoding
        self._max_bytes = max_bytes
        self._data = bytearray()

    @property
    def size_bytes(self) -> int:
        """Size of the data that has not been returned as messages."""
        return len(self._data)

    @property
    def declared_bytes(self) -> int:
        """Size that the incomplete message will have, 0 if it is not known yet."""
        return int(PREFIX.unpack_from(self._data)[1]) if len(self._data) >= PREFIX.size else 0

    def clear(self) -> None:
        """Drop the data."""
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Packed]:
        """Add data; return the messages that are complete now."""
        buffer: bytes | bytearray = data
        if self._data:
            self._data += data
            buffer = self._data
        found: list[Packed] = []
        at = 0
        while len(buffer) - at >= PREFIX.size:
            compressed, length = PREFIX.unpack_from(buffer, at)
            if length > self._max_bytes:
                raise self._too_long(f"{length:,} bytes")
            if compressed > 1:
                raise CallFailed(StatusCode.INTERNAL, f"the compressed flag {compressed} is not 0 or 1")
            end = at + PREFIX.size + length
            if end > len(buffer):
                break
            message = Packed(bytes(memoryview(buffer)[at + PREFIX.size : end]), bool(compressed))
            if compressed and self._encoding != "gzip":
                raise CallFailed(
                    StatusCode.INTERNAL, "a compressed message needs the header grpc-encoding: gzip"
                )
            if compressed and message.plain_bytes > self._max_bytes:
                raise self._too_long(f"{message.plain_bytes:,} bytes after its decompression")
            found.append(message)
            at = end
        if buffer is self._data:
            del self._data[:at]
        elif at < len(data):
            self._data += memoryview(data)[at:]
        return found

    def _too_long(self, size: str) -> CallFailed:
        return CallFailed(
            StatusCode.RESOURCE_EXHAUSTED,
            f"a message of {size} is over the limit of {self._max_bytes:,} bytes: send smaller messages",
        )
