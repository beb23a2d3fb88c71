"""What a source gives at a time: messages in Arrow, where to go on, and what was not there."""

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
class Lost:
    """Queue offsets [begin, end) that cannot be read, and why."""

    begin: int
    end: int
    reason: str


@dataclass(frozen=True)
class Chunk:
    """Messages (None: there were none to read here), the offset to go on at, and what is lost before it."""

    batch: pa.RecordBatch | None
    next_offset: int
    lost: Sequence[Lost] = ()


class Source(Protocol):
    """Where a split's messages come from."""

    def read(self, offset: int) -> Chunk:
        """Give the messages at queue offset `offset`; `next_offset` of the answer is always beyond it."""

    def close(self) -> None:
        """Let go of what is open."""


def make_chunk(
    records: Buffer, positions: Numbers, offset: int, broker_name: str, columns: Sequence[str]
) -> Chunk:
    """Make a chunk of the records at `positions` of a buffer, which should be those at `offset` and after it.

    Records that are damaged, or that name another offset than the one they were found under, are lost.
    """
    # What the record says of itself is compared with where it was found, whether or not it is asked for.
    wanted = columns if QUEUE_OFFSET in columns else (QUEUE_OFFSET, *columns)
    batch, damaged = records_at_to_arrow(records, positions, broker_name, wanted)
    expected = np.arange(offset, offset + len(positions))
    lost: list[Lost] = []
    if damaged:
        rows = np.searchsorted(positions, [each.position or 0 for each in damaged])
        lost += [
            Lost(offset + int(row), offset + int(row) + 1, f"record at byte {each.position}: {each.reason}")
            for row, each in zip(rows, damaged, strict=True)
        ]
        expected = np.delete(expected, rows)
    found = batch.column(QUEUE_OFFSET).to_numpy()
    if not np.array_equal(found, expected):
        strays = np.flatnonzero(found != expected)
        lost += [
            Lost(
                int(expected[row]), int(expected[row]) + 1, f"the record there says queueOffset {found[row]}"
            )
            for row in strays
        ]
        batch = batch.filter(pa.array(found == expected))
    return Chunk(_for_spark(batch, columns), offset + len(positions), lost)


def _for_spark(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    arrays = [
        _timestamps(batch.column(name)) if name in TIMESTAMPS else batch.column(name) for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _timestamps(milliseconds: pa.Array) -> pa.Array:
    """Spark has microseconds only."""
    return pc.multiply(milliseconds, 1000).view(MICROSECONDS)
