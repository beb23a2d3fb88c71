"""Splits the records of one queue into batches of limited size, and writes the queue id into the records."""

from typing import NamedTuple

import numpy as np
from numba import types

from store.kernels.compiled import kernel
from store.kernels.memory import I64, U8, WRITABLE_BYTES, load_i32, store_i32
from store.message.record import QUEUE_ID, TOTAL_SIZE


class Piece(NamedTuple):
    """One batch of records: `records` contains `rows` complete records."""

    rows: int
    records: memoryview


def split_into_batches(records: memoryview, count: int, queue_id: int, max_bytes: int) -> list[Piece]:
    """Write `queue_id` into each record, and split the records into batches of at most `max_bytes`.

    A record longer than `max_bytes` becomes a batch by itself.

    Args:
        records: Consecutive valid records; they are changed in place.
        count: The number of records.
        queue_id: The id of the queue on its broker.
        max_bytes: The maximum size of a batch.
    """
    ends = np.empty(count, np.int64)
    counts = np.empty(count, np.int64)
    pieces = _split_into_batches(np.frombuffer(records, np.uint8), queue_id, max_bytes, ends, counts)
    starts = [0, *ends[:pieces].tolist()][:pieces]
    return [
        Piece(counted, records[start:end])
        for start, end, counted in zip(starts, ends[:pieces].tolist(), counts[:pieces].tolist(), strict=True)
    ]


@kernel(
    types.int64(WRITABLE_BYTES, types.int64, types.int64, types.int64[::1], types.int64[::1]),
)
def _split_into_batches(records: U8, queue_id: int, max_bytes: int, ends: I64, counts: I64) -> int:
    """Compute where the batches of `records` end, and write `queue_id` into each record.

    For each batch, `ends` receives the byte position after its last record, and `counts` the number of its
    records. Returns the number of batches.
    """
    pieces = 0
    start = 0
    position = 0
    counted = 0
    while position < len(records):
        size = load_i32(records, position + TOTAL_SIZE)
        if counted > 0 and position + size - start > max_bytes:
            ends[pieces] = position
            counts[pieces] = counted
            pieces += 1
            start = position
            counted = 0
        store_i32(records, position + QUEUE_ID, queue_id)
        position += size
        counted += 1
    if counted > 0:
        ends[pieces] = position
        counts[pieces] = counted
        pieces += 1
    return pieces
