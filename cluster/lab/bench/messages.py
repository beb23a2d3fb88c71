"""Messages of the benchmarks: a reusable table whose keys are replaced in place before each send."""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

KEY_PREFIX_BYTES = 6
KEY_DIGITS = 8
SEED = 5
KEY_BYTES = KEY_PREFIX_BYTES + KEY_DIGITS
TAGS = ("red", "green", "blue", "black")


class MessagePool:
    """Table of `rows` messages with random bodies of `body_bytes` bytes, sent once per round.

    `stamp` writes new keys in place: the number of the round and of the row, for example `r0002-00012345`.
    Raises ValueError if `body_bytes` is not a multiple of 8.
    """

    def __init__(self, rows: int, body_bytes: int) -> None:
        if body_bytes % 8:
            raise ValueError(f"body_bytes={body_bytes} is not a multiple of 8, as the checksum requires")
        self.rows = rows
        self.body_bytes = body_bytes
        random = np.random.default_rng(SEED)
        self._bodies: NDArray[np.uint8] = random.integers(0, 256, rows * body_bytes, np.uint8)
        self._keys = np.zeros((rows, KEY_BYTES), np.uint8)
        numbers = np.arange(rows)
        for digit in range(KEY_DIGITS):
            self._keys[:, KEY_BYTES - 1 - digit] = ord("0") + numbers // 10**digit % 10
        self.table = pa.table(
            {
                "body": _column(pa.binary(), rows, body_bytes, self._bodies),
                "keys": _column(pa.string(), rows, KEY_BYTES, self._keys),
                "tags": pa.array(TAGS).take(pa.array(numbers % len(TAGS))),
            }
        )
        self.stamp(0)

    def stamp(self, number: int) -> pa.Table:
        """Write the keys of round `number` into the table and return it.

        The table of an earlier round shares the memory and must no longer be in use.
        """
        prefix = f"r{number:0{KEY_PREFIX_BYTES - 2}d}-".encode()
        self._keys[:, :KEY_PREFIX_BYTES] = np.frombuffer(prefix, np.uint8)
        return self.table

    def last_key(self) -> str:
        """Return the current key of the last row."""
        return bytes(self._keys[-1]).decode()

    def body(self, row: int) -> bytes:
        """Return the body of row `row`."""
        return self._bodies[row * self.body_bytes : (row + 1) * self.body_bytes].tobytes()

    def checksum(self) -> int:
        """Return the sum of all bodies, read as 64-bit integers, modulo 2**64."""
        return checksum(self._bodies)

    def crc_sum(self) -> int:
        """Return the sum of the CRC-32s of all bodies, as Spark's `sum(crc32(body))` computes it."""
        return sum(zlib.crc32(self.body(row)) for row in range(self.rows))


def checksum(data: NDArray[np.uint8]) -> int:
    """Return the sum of `data`, read as 64-bit integers, modulo 2**64; its size is a multiple of 8."""
    # A view is enough: numpy also reads unaligned data.
    return int(data.view(np.uint64).sum(dtype=np.uint64))


def bodies_of(column: pa.Array) -> NDArray[np.uint8]:
    """Return the concatenated bytes of a binary column, without a copy."""
    _, offsets, data = column.buffers()
    borders = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return np.frombuffer(data, np.uint8)[borders[0] : borders[-1]]


def _column(kind: pa.DataType, rows: int, width: int, data: NDArray[np.uint8]) -> pa.Array:
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
