"""Codec of runs: a request body with the records of several queues, and its response.

A run is a sequence of V1 records of one queue. The request body (all numbers are big-endian and signed):

    0   4         8          12     16                 4 + 12·n
    | n | queueId | messages | size | … n of these … | records of the first run | of the second | …

`messages` is the number of records of the run, `size` their total size in bytes. The queue ids are in
ascending order, so that no queue occurs twice. The response body holds, for each run, the queue offset of its
first record:

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
"""Maximum number of runs in one request body, so that one request does not block the broker's event loop.

A broker needs about 3 µs for each run.
"""

_COUNT = Struct(">i")
_HEAD_FIELDS = 3
_HEAD_BYTES = 4 * _HEAD_FIELDS


class Runs(NamedTuple):
    """The runs in one request body, as columns. A run is a sequence of records of one queue.

    Run i belongs to queue `queue_ids[i]` and has `messages[i]` records of `sizes[i]` bytes in total.
    `records` holds the consecutive records of all runs.
    """

    queue_ids: Sequence[int]
    messages: Sequence[int]
    sizes: Sequence[int]
    records: memoryview

    @property
    def heads(self) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """The numeric columns: queue ids, numbers of messages and sizes of all runs.

        Their order is that of the fields in the request body.
        """
        return self.queue_ids, self.messages, self.sizes


def encode_heads(runs: Runs) -> bytes:
    """Encode the part of the request body that precedes the records.

    It contains the number of runs, and three fields per run.
    """
    count = len(runs.queue_ids)
    fields = [0] * (_HEAD_FIELDS * count)
    for number, column in enumerate(runs.heads):
        fields[number::_HEAD_FIELDS] = column
    return pack(f">i{len(fields)}i", count, *fields)


def decode_runs(body: Buffer) -> Runs:
    """Decode a request body into its runs. The records in the runs are not checked.

    Raises:
        MessageInvalid: The number of runs, or a field of a run, is not valid.
    """
    view = memoryview(body)
    if len(view) < _COUNT.size:
        raise MessageInvalid(f"body of {len(view)} bytes is too short for the number of runs (4 bytes)")
    (count,) = _COUNT.unpack_from(view)
    if not 1 <= count <= RUNS_MAX:
        raise MessageInvalid(f"body of {count} runs: send 1 to {RUNS_MAX:,}")
    head_bytes = _COUNT.size + count * _HEAD_BYTES
    if head_bytes > len(view):
        raise MessageInvalid(
            f"the headers of {count} runs take {head_bytes:,} bytes, but the body has {len(view):,}"
        )
    fields = unpack_from(f">{_HEAD_FIELDS * count}i", view, _COUNT.size)
    queue_ids, messages, sizes = (fields[number::_HEAD_FIELDS] for number in range(_HEAD_FIELDS))
    runs = Runs(queue_ids, messages, sizes, view[head_bytes:])
    if min(messages) <= 0 or min(sizes) <= 0 or not _is_ascending(queue_ids):
        raise _run_error(runs)
    size_bytes = sum(sizes)
    if size_bytes != len(runs.records):
        raise MessageInvalid(
            f"the sizes of the runs add up to {size_bytes:,} bytes, "
            f"but the body has {len(runs.records):,} bytes of records"
        )
    return runs


def _is_ascending(queue_ids: Sequence[int]) -> bool:
    return all(map(lt, (-1, *queue_ids), queue_ids))


def _run_error(runs: Runs) -> MessageInvalid:
    """Return the error for the first run that is not valid."""
    before = -1
    for number, (queue_id, messages, size_bytes) in enumerate(zip(*runs.heads, strict=True)):
        if queue_id <= before:
            return MessageInvalid(
                f"run {number} has queue id {queue_id}, which is not above {before}: "
                "queue ids must be in ascending order, starting at 0 or above"
            )
        if messages <= 0 or size_bytes <= 0:
            break
        before = queue_id
    return MessageInvalid(
        f"run {number} of queue {queue_id} has {messages} messages and {size_bytes} bytes: "
        "both must be positive"
    )


def encode_offsets(offsets: Sequence[int]) -> bytes:
    """Encode the response body: the queue offset of the first record of each run."""
    return pack(f">{len(offsets)}q", *offsets)


def decode_offsets(body: Buffer, count: int) -> tuple[int, ...]:
    """Decode a response body: the queue offset of the first record of each of `count` runs.

    Raises ValueError if the body does not have the length for `count` offsets.
    """
    try:
        return unpack(f">{count}q", body)
    except error:
        raise ValueError(
            f"body of {len(body)} bytes: the offsets of {count} runs take {8 * count} bytes"
        ) from None
