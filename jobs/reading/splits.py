"""Plan a read: choose the range of each queue and cut the ranges into splits. No I/O, no Spark.

A split is a range [begin, end) of queue offsets of one queue; one Spark task reads one split. A split
contains only offsets that the broker reported as confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from jobs.job_errors import MissingRange, OffsetsInvalid, OptionInvalid
from jobs.reading.starting_offsets import Offsets, resolve
from store.message.message_queue import MessageQueue

Item = TypeVar("Item")


@dataclass(frozen=True)
class StoreLocation:
    """The address of a broker, and the machine, path and file sizes of its store.

    Attributes:
        address: The address of the broker, `host:port`.
        store_root: The path of the store on the broker's machine.
        store_id: The id of the store.
        commit_log_file_bytes: Size of a CommitLog file.
        consume_queue_file_units: Number of units of a ConsumeQueue file.
        node_ip: The Ray node of the broker, on which readers of the store should run. Empty outside of Ray.
        machine_id: The id of the broker's machine; empty if it is unknown.
        history: The id of the epoch of the broker's log; empty if the broker names none.
    """

    address: str
    store_root: str
    store_id: str
    commit_log_file_bytes: int
    consume_queue_file_units: int
    node_ip: str = ""
    machine_id: str = ""
    history: str = ""


NO_STORE = StoreLocation("", "", "", 0, 0)
"""The location of messages that are not in a store of a broker."""


@dataclass(frozen=True)
class QueueState:
    """The confirmed offsets [min_offset, max_offset) of one queue, and the location of its store."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    location: StoreLocation


@dataclass(frozen=True)
class Split:
    """A range of offsets [begin, end) of one queue, which one Spark task reads."""

    queue: MessageQueue
    begin: int
    end: int
    location: StoreLocation

    @property
    def message_count(self) -> int:
        """The number of offsets in the split."""
        return self.end - self.begin


def choose_ranges(
    states: Iterable[QueueState],
    starting: Offsets,
    ending: Offsets,
    option_names: tuple[str, str] = ("startingOffsets", "endingOffsets"),
) -> tuple[list[Split], list[MissingRange]]:
    """Resolve the starting and ending offsets of a read for every queue.

    `option_names` are the names of the two options in error messages.

    Returns:
        One split per queue that has offsets to read, not cut yet, and the requested ranges that do not exist.

    Raises:
        OffsetsInvalid: A requested range ends before it starts, or an option lists an unknown queue.
    """
    states = sorted(states, key=lambda state: state.queue)
    for option, offsets in zip(option_names, (starting, ending), strict=True):
        offsets.check_known(option, (state.queue for state in states))
    ranges: list[Split] = []
    missing: list[MissingRange] = []
    for state in states:
        wanted = starting.wanted(state.queue), ending.wanted(state.queue)
        begin, end = (resolve(each, state.min_offset, state.max_offset) for each in wanted)
        if min(wanted) >= 0 and begin > end:
            raise OffsetsInvalid(
                f"{state.queue}: {option_names[0]} {begin} is greater than {option_names[1]} {end}"
            )
        missing += _missing(state, begin, end)
        begin, end = max(begin, state.min_offset), min(end, state.max_offset)
        if begin < end:
            ranges.append(Split(state.queue, begin, end, state.location))
    return ranges, missing


def _missing(state: QueueState, begin: int, end: int) -> Iterable[MissingRange]:
    low, high = state.min_offset, state.max_offset
    if begin < low:
        yield MissingRange(*state.queue, begin, max(begin, min(low, end)), f"before the first offset, {low}")
    if end > high:
        yield MissingRange(*state.queue, max(begin, high), end, f"after the end of the queue, {high}")
    elif begin > high:
        yield MissingRange(*state.queue, high, begin, f"after the end of the queue, {high}")


def cut_splits(
    ranges: Sequence[Split], min_partitions: int, max_records_per_partition: int | None = None
) -> list[Split]:
    """Cut each queue's range into splits of about equal size, at least `min_partitions` in total.

    `ranges` has one uncut split per queue. The number of splits of a queue is proportional to its messages,
    so a long queue does not become one long task. There are fewer than `min_partitions` splits only if there
    are fewer messages. No split has more than `max_records_per_partition` messages. Raises OptionInvalid if
    `min_partitions` or `max_records_per_partition` is less than 1.
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
        yield Split(whole.queue, begin, end, whole.location)


def join_small(
    items: Iterable[Item], size: Callable[[Item], float], size_max: float
) -> Iterator[tuple[Item, ...]]:
    """Join neighbours to groups of at most `size_max` in total; a larger item is alone."""
    held: list[Item] = []
    total = 0.0
    for each in items:
        if held and total + size(each) > size_max:
            yield tuple(held)
            held, total = [], 0.0
        held.append(each)
        total += size(each)
    if held:
        yield tuple(held)
