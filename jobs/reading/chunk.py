"""Chunk: the result of one read from a split.

A chunk holds an Arrow batch of messages, and the queue offsets that could not be read. A split is a range of
offsets of one queue (`jobs.reading.splits`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.kernels.arrow import BodiesTooLarge, records_at_to_arrow
from store.message.buffers import Buffer

Numbers = NDArray[np.int64]

MICROSECONDS = pa.timestamp("us", tz="UTC")
TIMESTAMPS = ("bornTimestamp", "storeTimestamp")
QUEUE_OFFSET = "queueOffset"


@dataclass(frozen=True)
class LostRange:
    """A range of queue offsets [begin, end) whose messages cannot be read, and the reason."""

    begin: int
    end: int
    reason: str


@dataclass(frozen=True)
class ReadChunk:
    """The result of one read: a batch of messages, and the offsets of messages that cannot be read.

    `next_offset` is the queue offset at which the next read continues. All offsets in `lost` are below it.
    `batch` is None if no message could be read.
    """

    batch: pa.RecordBatch | None
    next_offset: int
    lost: Sequence[LostRange] = ()


class ChunkSource(Protocol):
    """Reads the messages of one split, from the store's files or from the broker."""

    def read(self, offset: int) -> Iterator[ReadChunk]:
        """Read messages, beginning with the message at queue offset `offset`. Yield at least one chunk.

        The `next_offset` of each chunk is greater than that before it, so that a read loop ends.
        """

    def close(self) -> None:
        """Close open files and connections."""


def make_chunks(
    records: Buffer,
    positions: Numbers,
    expected: Numbers,
    next_offset: int,
    broker_name: str,
    columns: Sequence[str],
) -> Iterator[ReadChunk]:
    """Convert the records at byte positions `positions` of the buffer `records` to chunks.

    It is one chunk, unless their bodies are large when they are decompressed. The arguments and the rest are
    those of `_make_chunk`.
    """
    begin, count = 0, len(positions)
    while True:
        end = begin + count
        following = next_offset if end == len(positions) else int(expected[end])
        try:
            chunk = _make_chunk(
                records, positions[begin:end], expected[begin:end], following, broker_name, columns
            )
        except BodiesTooLarge as error:
            count = error.rows
            continue
        yield chunk
        if end == len(positions):
            return
        begin, count = end, min(count, len(positions) - end)


def _make_chunk(
    records: Buffer,
    positions: Numbers,
    expected: Numbers,
    next_offset: int,
    broker_name: str,
    columns: Sequence[str],
) -> ReadChunk:
    """Convert the records at byte positions `positions` of the buffer `records` to a chunk.

    `expected` is the queue offset that each record must have. Records that are damaged or have another
    queueOffset are left out and listed as lost. The next read continues at `next_offset`.
    """
    if not len(positions):
        return ReadChunk(None, next_offset)
    # queueOffset is always decoded, because it is compared with the expected offset below.
    wanted = columns if QUEUE_OFFSET in columns else (QUEUE_OFFSET, *columns)
    batch, damaged = records_at_to_arrow(records, positions, broker_name, wanted)
    lost: list[LostRange] = []
    if damaged:
        rows = np.searchsorted(positions, [each.position or 0 for each in damaged])
        lost += [
            LostRange(offset, offset + 1, f"record at byte {each.position}: {each.reason}")
            for offset, each in zip(expected[rows].tolist(), damaged, strict=True)
        ]
        expected = np.delete(expected, rows)
    found = batch.column(QUEUE_OFFSET).to_numpy()
    if not np.array_equal(found, expected):
        strays = np.flatnonzero(found != expected)
        lost += [
            LostRange(int(expected[row]), int(expected[row]) + 1, f"the record has queueOffset {found[row]}")
            for row in strays
        ]
        batch = batch.filter(pa.array(found == expected))
    return ReadChunk(_to_spark_batch(batch, columns), next_offset, lost)


def lost_ranges(offsets: Numbers, reason: str) -> list[LostRange]:
    """Return the ranges of these increasing queue offsets, as lost for `reason`."""
    if not len(offsets):
        return []
    borders = np.flatnonzero(np.diff(offsets) != 1) + 1
    return [LostRange(int(part[0]), int(part[-1]) + 1, reason) for part in np.split(offsets, borders)]


def _to_spark_batch(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    arrays = [
        _timestamps(batch.column(name)) if name in TIMESTAMPS else batch.column(name) for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _timestamps(milliseconds: pa.Array) -> pa.Array:
    """Convert milliseconds to microseconds, because Spark's timestamps have no other unit."""
    return pc.multiply(milliseconds, 1000).view(MICROSECONDS)
