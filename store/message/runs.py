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
from operator import lt
from struct import Struct, error, pack, unpack, unpack_from
from typing import NamedTuple

from store.message.buffers import Buffer
from store.store_errors import MessageInvalid

RUNS_MAX = 1024
"""How many runs a body may have: each costs its broker some 3 µs, and a request must not hold the loop up."""

_COUNT = Struct(">i")
_HEAD_FIELDS = 3
_HEAD_BYTES = 4 * _HEAD_FIELDS


class Runs(NamedTuple):
    """What a body holds, in columns: run i is of queue `queue_ids[i]`, and has `messages[i]` records of
    `sizes[i]` bytes in all. `records` are those of all runs, back to back.
    """

    queue_ids: Sequence[int]
    messages: Sequence[int]
    sizes: Sequence[int]
    records: memoryview

    @property
    def heads(self) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """The columns of numbers, in the order in which they are sent."""
        return self.queue_ids, self.messages, self.sizes


def encode_heads(runs: Runs) -> bytes:
    """What stands before the records of `runs`."""
    count = len(runs.queue_ids)
    fields = [0] * (_HEAD_FIELDS * count)
    for number, column in enumerate(runs.heads):
        fields[number::_HEAD_FIELDS] = column
    return pack(f">i{len(fields)}i", count, *fields)


def decode_runs(body: Buffer) -> Runs:
    """The runs of a body, whose records are not looked at. Raises MessageInvalid with what is wrong."""
    view = memoryview(body)
    if len(view) < _COUNT.size:
        raise MessageInvalid(f"a body of {len(view)} bytes has no count of runs")
    (count,) = _COUNT.unpack_from(view)
    if not 1 <= count <= RUNS_MAX:
        raise MessageInvalid(f"a body of {count} runs: send 1 to {RUNS_MAX:,}")
    head_bytes = _COUNT.size + count * _HEAD_BYTES
    if head_bytes > len(view):
        raise MessageInvalid(
            f"the heads of {count} runs take {head_bytes:,} bytes, the body has {len(view):,}"
        )
    fields = unpack_from(f">{_HEAD_FIELDS * count}i", view, _COUNT.size)
    queue_ids, messages, sizes = (fields[number::_HEAD_FIELDS] for number in range(_HEAD_FIELDS))
    runs = Runs(queue_ids, messages, sizes, view[head_bytes:])
    if min(messages) <= 0 or min(sizes) <= 0 or not _rise(queue_ids):
        raise _refusal(runs)
    size_bytes = sum(sizes)
    if size_bytes != len(runs.records):
        raise MessageInvalid(f"the runs have {size_bytes:,} bytes of records, the body {len(runs.records):,}")
    return runs


def _rise(queue_ids: Sequence[int]) -> bool:
    return all(map(lt, (-1, *queue_ids), queue_ids))


def _refusal(runs: Runs) -> MessageInvalid:
    """What is wrong with the first bad run."""
    before = -1
    for number, (queue_id, messages, size_bytes) in enumerate(zip(*runs.heads, strict=True)):
        if queue_id <= before:
            return MessageInvalid(
                f"run {number} is of queue {queue_id}, that before it of {before}: queue ids must rise"
            )
        if messages <= 0 or size_bytes <= 0:
            break
        before = queue_id
    return MessageInvalid(f"run {number}, of queue {queue_id}, has {messages} messages in {size_bytes} bytes")


def encode_offsets(offsets: Sequence[int]) -> bytes:
    """The body of the answer."""
    return pack(f">{len(offsets)}q", *offsets)


def decode_offsets(body: Buffer, count: int) -> tuple[int, ...]:
    """The queue offsets of `count` runs. Raises ValueError when the body has not so many."""
    try:
        return unpack(f">{count}q", body)
    except error:
        raise ValueError(f"{len(body)} bytes in place of the offsets of {count} runs") from None
