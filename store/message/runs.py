"""Runs: V1 records of several queues in one body, and where the first record of each has got its place.

What is sent; all numbers are big-endian and signed:

    0   4         8          12     16                 4 + 12·n
    | n | queueId | messages | size | … n of these … | records of the first run | of the second | …

A run is the records of one queue, so many `messages`, `size` bytes in all. The queue ids rise, so that none
stands there twice. What is answered:

    0             8
    | queueOffset | … n of these
"""

from collections.abc import Sequence
from struct import Struct, error, pack, unpack
from typing import NamedTuple

from store.errors import MessageIllegal
from store.message.buffers import Buffer

RUNS_MAX = 1024
"""How many runs a body may have: each costs its broker some 3 µs, and a request must not hold the loop up."""

_COUNT = Struct(">i")
RUN = Struct(">iii")


class Run(NamedTuple):
    """The records of one queue, so many `messages` of `size_bytes` in all."""

    queue_id: int
    messages: int
    size_bytes: int


class Runs(NamedTuple):
    """What a body holds; `records` are those of all runs, back to back."""

    runs: Sequence[Run]
    records: memoryview


def encode_runs(runs: Sequence[Run]) -> bytes:
    """What stands before the records of `runs`."""
    return _COUNT.pack(len(runs)) + b"".join([RUN.pack(*run) for run in runs])


def decode_runs(body: Buffer) -> Runs:
    """The runs of a body, whose records are not looked at. Raises MessageIllegal with what is wrong."""
    view = memoryview(body)
    if len(view) < _COUNT.size:
        raise MessageIllegal(f"a body of {len(view)} bytes has no count of runs")
    (count,) = _COUNT.unpack_from(view)
    if not 1 <= count <= RUNS_MAX:
        raise MessageIllegal(f"a body of {count} runs: send 1 to {RUNS_MAX:,}")
    head_bytes = _COUNT.size + count * RUN.size
    if head_bytes > len(view):
        raise MessageIllegal(
            f"the heads of {count} runs take {head_bytes:,} bytes, the body has {len(view):,}"
        )
    runs = [Run._make(fields) for fields in RUN.iter_unpack(view[_COUNT.size : head_bytes])]
    before = -1
    for number, run in enumerate(runs):
        if run.queue_id <= before:
            raise MessageIllegal(
                f"run {number} is of queue {run.queue_id}, that before it of {before}: queue ids must rise"
            )
        if run.messages <= 0 or run.size_bytes <= 0:
            raise MessageIllegal(
                f"run {number}, of queue {run.queue_id}, has {run.messages} messages "
                f"in {run.size_bytes} bytes"
            )
        before = run.queue_id
    size_bytes = sum([run.size_bytes for run in runs])
    if size_bytes != len(view) - head_bytes:
        raise MessageIllegal(
            f"the runs have {size_bytes:,} bytes of records, the body {len(view) - head_bytes:,}"
        )
    return Runs(runs, view[head_bytes:])


def encode_offsets(offsets: Sequence[int]) -> bytes:
    """The body of the answer."""
    return pack(f">{len(offsets)}q", *offsets)


def decode_offsets(body: Buffer, count: int) -> tuple[int, ...]:
    """The queue offsets of `count` runs. Raises ValueError when the body has not so many."""
    try:
        return unpack(f">{count}q", body)
    except error:
        raise ValueError(f"{len(body)} bytes in place of the offsets of {count} runs") from None
