"""Frames: the requests that send the rows of a slice.

A frame contains one run of records for each of several queues of one broker, up to a maximum size.
This module imports numpy and kernels. Import it only when a table is sent.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.kernels.batches import split_into_batches
from store.kernels.columns_to_records import RowBatch, RowPlan, encode_queues, plan_rows
from store.message.message_queue import MessageQueue
from store.message.runs import RUNS_MAX, Runs

ONE_GO_BYTES = 32 * 1024 * 1024
"""A slice up to this size is encoded in one kernel call, a larger one frame by frame."""


class Frame(NamedTuple):
    """One request: a run for each of `queues`, which belong to one broker and have ascending ids."""

    queues: Sequence[MessageQueue]
    runs: Runs


class QueueList:
    """The queues over which the rows are distributed. A queue's number is its index in the list."""

    def __init__(self, queues: Sequence[MessageQueue]) -> None:
        self.queues = queues
        self.ids: NDArray[np.int32] = np.array([queue.queue_id for queue in queues], np.int32)
        brokers = [queue.broker_name for queue in queues]
        borders = [
            number
            for number in range(1, len(queues))
            if brokers[number] != brokers[number - 1] or self.ids[number] <= self.ids[number - 1]
        ]
        self.borders = np.array([*borders, len(queues)], np.int64)
        """Numbers at which another broker begins or the queue ids stop ascending. No request spans one."""

    def __len__(self) -> int:
        return len(self.queues)


def frames(rows: RowBatch, queues: QueueList, max_bytes: int) -> Iterator[Frame]:
    """Return an iterator over the requests that send `rows`, each with records of at most `max_bytes`.

    Raises MessageInvalid if a row cannot be sent; in this case there are no requests. The records of a queue
    that exceed `max_bytes` are sent in several requests.
    """
    return _frames(rows, plan_rows(rows), queues, max_bytes)


def _frames(rows: RowBatch, plan: RowPlan, queues: QueueList, max_bytes: int) -> Iterator[Frame]:
    counts = np.diff(plan.first_rows)
    sizes = np.diff(plan.starts)
    present = np.flatnonzero(counts)
    whole = encode_queues(rows, plan, 0, len(queues)) if plan.starts[-1] <= ONE_GO_BYTES else None
    for begin, end in frame_borders(present, plan.starts, queues.borders, max_bytes):
        numbers = present[begin:end]
        first, after = int(numbers[0]), int(numbers[-1]) + 1
        if whole is not None:
            records = whole[plan.starts[first] : plan.starts[after]]
        else:
            records = encode_queues(rows, plan, first, after)
        of_frame = [queues.queues[number] for number in numbers.tolist()]
        if len(records) > max_bytes:
            for piece in split_into_batches(
                records, int(counts[numbers[0]]), of_frame[0].queue_id, max_bytes
            ):
                runs = Runs([of_frame[0].queue_id], [piece.rows], [len(piece.records)], piece.records)
                yield Frame(of_frame, runs)
            continue
        ids, messages, run_bytes = (column[numbers].tolist() for column in (queues.ids, counts, sizes))
        yield Frame(of_frame, Runs(ids, messages, run_bytes, records))


def frame_borders(
    present: NDArray[np.int64], starts: NDArray[np.int64], borders: NDArray[np.int64], max_bytes: int
) -> Iterator[tuple[int, int]]:
    """Group the queues into requests; yield each group as a begin and an end index of `present`.

    A group has at most `max_bytes` of records, unless it is a single queue, and at most RUNS_MAX queues. It
    does not span a number of `borders`.

    Args:
        present: Numbers of the queues that have rows, ascending.
        starts: The records of queue q are the bytes `starts[q]` to `starts[q + 1]` of the slice.
        borders: See QueueList.borders.
        max_bytes: Maximum size of the records of a request.
    """
    # Lists, because numpy's search releases the GIL and may then wait for the thread of the event loop.
    queues, begins = present.tolist(), starts[present].tolist()
    ends, among = starts[present + 1].tolist(), borders.tolist()
    begin = 0
    while begin < len(queues):
        border = among[bisect_right(among, queues[begin])]
        fitting = bisect_right(ends, begins[begin] + max_bytes)
        end = max(min(fitting, bisect_left(queues, border), begin + RUNS_MAX), begin + 1)
        yield begin, end
        begin = end
