"""Computes the offset ranges of the next batch of a stream, without I/O and independent of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from jobs.job_errors import DataLoss, MissingRange, OptionInvalid
from jobs.reading.log_epochs import lost_past
from jobs.reading.splits import QueueState, Split, cut_splits
from jobs.reading.starting_offsets import Offsets, resolve
from jobs.reading.table_files import TableSplit, cut_tables
from store.message.message_queue import MessageQueue

Positions = Mapping[MessageQueue, int]
"""The next offset to read of each queue."""


EMPTY: Positions = MappingProxyType({})


@dataclass(frozen=True)
class Limits:
    """Limits of a batch.

    Attributes:
        max_offsets: Maximum number of messages of a batch; None means no limit.
        min_partitions: Minimum number of splits of a batch that has at least as many messages.
    """

    max_offsets: int | None
    min_partitions: int

    def __post_init__(self) -> None:
        for option, value in (
            ("maxOffsetsPerTrigger", self.max_offsets),
            ("minPartitions", self.min_partitions),
        ):
            if value is not None and value < 1:
                raise OptionInvalid(f"{option}={value} must be at least 1")


@dataclass(frozen=True)
class Batch:
    """One batch of a stream.

    Attributes:
        splits: The offset ranges to read.
        positions: The next offset to read of each queue after the batch.
        lags: The number of available messages of each queue that are not in the batch.
        history: The files of tables to read.
    """

    splits: Sequence[Split]
    positions: Positions
    lags: Mapping[MessageQueue, int]
    history: Sequence[TableSplit] = ()

    @property
    def is_limited(self) -> bool:
        """Return True if the limits left available messages for the next batch."""
        return any(self.lags.values())


def initial_positions(
    states: Iterable[QueueState], starting: Offsets, *, fail_on_data_loss: bool
) -> tuple[dict[MessageQueue, int], list[MissingRange]]:
    """Return the positions at which a new query starts, and the requested offset ranges that do not exist.

    `starting` is the option startingOffsets. Raises `OffsetsInvalid` if it lists a queue that does not exist,
    and `DataLoss` if ranges are missing and `fail_on_data_loss` is True.
    """
    states = list(states)
    starting.check_known("startingOffsets", (state.queue for state in states))
    wanted = {
        state.queue: resolve(starting.wanted(state.queue), state.min_offset, state.max_offset)
        for state in states
    }
    return existing_positions(states, wanted, fail_on_data_loss=fail_on_data_loss)


def existing_positions(
    states: Iterable[QueueState],
    positions: Positions,
    *,
    fail_on_data_loss: bool,
    past_ends: Positions = EMPTY,
) -> tuple[dict[MessageQueue, int], list[MissingRange]]:
    """Return `positions` adjusted to the offsets that exist, and the offset ranges that are missing.

    A queue without a position is new, and is read from its first offset. A queue that is not in `states`
    keeps its position, because its broker may be restarting. A position after the end of its queue is moved
    to the end, so that no message is read twice. A queue in `past_ends` is read from there on: its log went
    back to before its position.

    Raises `DataLoss` if ranges are missing and `fail_on_data_loss` is True.
    """
    found, missing = dict(positions), []
    for state in states:
        position = positions.get(state.queue, state.min_offset)
        if state.queue in past_ends:
            end = past_ends[state.queue]
            missing.append(MissingRange(*state.queue, end, position, lost_past(state.queue.broker_name, end)))
            position = end
        if position < state.min_offset:
            reason = f"before the first offset, {state.min_offset}"
            missing.append(MissingRange(*state.queue, position, state.min_offset, reason))
        elif position > state.max_offset:
            reason = f"after the end of the queue, {state.max_offset}"
            missing.append(MissingRange(*state.queue, state.max_offset, position, reason))
        found[state.queue] = min(max(position, state.min_offset), state.max_offset)
    if missing and fail_on_data_loss:
        raise DataLoss(missing)
    return found, missing


def next_batch(states: Iterable[QueueState], positions: Positions, limits: Limits, turn: int = 0) -> Batch:
    """Return the batch that starts at `positions`. It has no splits if the queues have no more messages.

    Args:
        states: Current offsets of the queues.
        positions: Positions that `existing_positions` returned for the same states.
        limits: Limits of the batch.
        turn: Number of the batch; see `share`.
    """
    states = sorted(states, key=lambda state: state.queue)
    available = {state.queue: state.max_offset - positions[state.queue] for state in states}
    counts = share(available, limits.max_offsets, turn)
    ranges = [
        Split(state.queue, positions[state.queue], positions[state.queue] + count, state.location)
        for state in states
        if (count := counts[state.queue])
    ]
    after = {queue: position + counts.get(queue, 0) for queue, position in positions.items()}
    lags = {queue: count - counts[queue] for queue, count in available.items()}
    return Batch(cut_splits(ranges, limits.min_partitions), after, lags)


def history_batches(tables: Sequence[TableSplit], positions: Positions, limits: Limits) -> list[Batch]:
    """Return the batches of the tables, from the oldest files on; the stream continues at `positions`.

    Without a limit it is one batch. A limit may be exceeded by the rows of one row group.
    """
    total = sum(each.message_count for each in tables)
    count = 1 if limits.max_offsets is None else -(-total // limits.max_offsets)
    batches: list[list[TableSplit]] = []
    rows = 0
    for split in cut_tables(tables, limits.min_partitions * count, limits.max_offsets):
        if not batches or rows + split.message_count > (limits.max_offsets or total):
            batches.append([])
            rows = 0
        batches[-1].append(split)
        rows += split.message_count
    found = []
    for history in batches:
        total -= sum(each.message_count for each in history)
        found.append(Batch((), positions, {history[0].queue: total}, history))
    return found


def share(available: Positions, limit: int | None, turn: int) -> dict[MessageQueue, int]:
    """Return the number of messages to read from each queue, `limit` in total.

    The numbers are proportional to the `available` messages. Each queue with messages gets at least one, so
    that a long queue does not delay a short queue. If `limit` is less than the number of these queues, the
    first queue depends on `turn`, so that each queue is read after some batches.
    """
    if limit is None or sum(available.values()) <= limit:
        return dict(available)
    counts = dict.fromkeys(available, 0)
    filled = sorted(queue for queue, count in available.items() if count)
    first = turn * limit % len(filled)
    filled = filled[first:] + filled[:first]
    for queue in filled[:limit]:
        counts[queue] = 1
    rest = limit - sum(counts.values())
    if not rest:
        return counts
    remaining = {queue: available[queue] - 1 for queue in filled}
    total = sum(remaining.values())
    for queue, count in remaining.items():
        counts[queue] += count * rest // total
    rounded = [queue for queue in filled if counts[queue] < available[queue]]
    for queue in rounded[: limit - sum(counts.values())]:
        counts[queue] += 1
    return counts
