"""Chunk: the result of one read from a split, an Arrow batch and the offsets that could not be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.message.buffers import Buffer
from store.reading.columns import records_at_to_arrow

Numbers = NDArray[np.int64]

MICROSECONDS = pa.timestamp("us", tz="UTC")
TIMESTAMPS = ("bornTimestamp", "storeTimestamp")
QUEUE_OFFSET = "queueOffset"


@dataclass(frozen=True)
class LostRange:
    """Queue offsets [begin, end) that cannot be read, and the reason."""

    begin: int
    end: int
    reason: str


@dataclass(frozen=True)
class Chunk:
    """A batch of messages, the offset at which to continue, and the offsets before it that are lost.

    `batch` is None if no message could be read.
    """

    batch: pa.RecordBatch | None
    next_offset: int
    lost: Sequence[LostRange] = ()


class Source(Protocol):
    """Reads the messages of one split."""

    def read(self, offset: int) -> Chunk:
        """Return the messages from queue offset `offset` on. `next_offset` of the chunk is always greater."""

    def close(self) -> None:
        """Close open files and connections."""


def make_chunk(
    records: Buffer, positions: Numbers, offset: int, broker_name: str, columns: Sequence[str]
) -> Chunk:
    """Return a chunk of the records at `positions` in a buffer, with queue offsets from `offset` on.

    A record is lost if it is damaged or if its queueOffset field has another value than expected.
    """
    # queueOffset is always decoded, because it is compared with the expected offset below.
    wanted = columns if QUEUE_OFFSET in columns else (QUEUE_OFFSET, *columns)
    batch, damaged = records_at_to_arrow(records, positions, broker_name, wanted)
    expected = np.arange(offset, offset + len(positions))
    lost: list[LostRange] = []
    if damaged:
        rows = np.searchsorted(positions, [each.position or 0 for each in damaged])
        lost += [
            LostRange(
                offset + int(row), offset + int(row) + 1, f"record at byte {each.position}: {each.reason}"
            )
            for row, each in zip(rows, damaged, strict=True)
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
    return Chunk(_to_spark_batch(batch, columns), offset + len(positions), lost)


def _to_spark_batch(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    arrays = [
        _timestamps(batch.column(name)) if name in TIMESTAMPS else batch.column(name) for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _timestamps(milliseconds: pa.Array) -> pa.Array:
    """Convert milliseconds to microseconds, the only unit of Spark's timestamps."""
    return pc.multiply(milliseconds, 1000).view(MICROSECONDS)
