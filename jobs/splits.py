"""Which ranges of which queues a read takes, and how they are cut into splits: plain arithmetic, no Spark.

A split is a range [begin, end) of queue offsets of one queue; one Spark task reads one split. Ranges never
pass the offsets that the broker gave as confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from jobs.job_errors import MissingRange, OffsetsInvalid, OptionInvalid
from jobs.starting_offsets import Offsets, resolve
from store.message.message_queue import MessageQueue


@dataclass(frozen=True)
class StorePlace:
    """Where a broker answers, and where on its host its store lies."""

    address: str
    store_root: str
    store_id: str
    commit_log_file_bytes: int
    consume_queue_file_units: int


@dataclass(frozen=True)
class QueueState:
    """What one broker holds of one queue: offsets [min_offset, max_offset), all of them confirmed."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    place: StorePlace


@dataclass(frozen=True)
class Split:
    """A range of one queue for one task to read."""

    queue: MessageQueue
    begin: int
    end: int
    place: StorePlace

    @property
    def message_count(self) -> int:
        """How many messages lie in it."""
        return self.end - self.begin


def choose_ranges(
    states: Iterable[QueueState], starting: Offsets, ending: Offsets
) -> tuple[list[Split], list[MissingRange]]:
    """Say what is to be read of each queue, as one split a queue, and which wanted offsets are not there.

    Raises `OffsetsInvalid` for a range that ends before it starts, or for a listed queue that nobody holds.
    """
    states = sorted(states, key=lambda state: state.queue)
    for option, offsets in (("startingOffsets", starting), ("endingOffsets", ending)):
        offsets.check_known(option, (state.queue for state in states))
    ranges: list[Split] = []
    missing: list[MissingRange] = []
    for state in states:
        wanted = starting.wanted(state.queue), ending.wanted(state.queue)
        begin, end = (resolve(each, state.min_offset, state.max_offset) for each in wanted)
        if min(wanted) >= 0 and begin > end:
            raise OffsetsInvalid(f"{state.queue}: startingOffsets {begin} is beyond endingOffsets {end}")
        missing += _missing(state, begin, end)
        begin, end = max(begin, state.min_offset), min(end, state.max_offset)
        if begin < end:
            ranges.append(Split(state.queue, begin, end, state.place))
    return ranges, missing


def _missing(state: QueueState, begin: int, end: int) -> Iterable[MissingRange]:
    low, high = state.min_offset, state.max_offset
    if begin < low:
        yield MissingRange(*state.queue, begin, max(begin, min(low, end)), f"older than the oldest, {low}")
    if end > high:
        yield MissingRange(*state.queue, max(begin, high), end, f"beyond the newest, {high}")
    elif begin > high:
        yield MissingRange(*state.queue, high, begin, f"beyond the newest, {high}")


def cut_splits(
    ranges: Sequence[Split], min_partitions: int, max_records_per_partition: int | None = None
) -> list[Split]:
    """Cut ranges so that there are at least `min_partitions` splits, none larger than its fair share.

    Every queue is cut by its share of all messages, so one long queue does not become one long task. There
    are fewer splits only where there are fewer messages. Raises OptionInvalid.
    """
    for option, value in (
        ("minPartitions", min_partitions),
        ("maxRecordsPerPartition", max_records_per_partition),
    ):
        if value is not None and value < 1:
            raise OptionInvalid(f"{option}={value} must be at least 1")
    total = sum(each.message_count for each in ranges)
    return [part for each in ranges for part in _cut(each, total, min_partitions, max_records_per_partition)]


def _cut(whole: Split, total: int, min_partitions: int, max_records: int | None) -> Iterable[Split]:
    count = whole.message_count
    parts = min(-(-count * min_partitions // total), count)
    if max_records is not None:
        parts = max(parts, -(-count // max_records))
    borders = [whole.begin + count * index // parts for index in range(parts + 1)]
    for begin, end in pairwise(borders):
        yield Split(whole.queue, begin, end, whole.place)
