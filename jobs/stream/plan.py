"""Plan the batches of a stream: which offsets of which queues are next. No I/O, no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jobs.job_errors import DataLoss, MissingRange, OptionInvalid
from jobs.splits import QueueState, Split, cut_splits
from jobs.starting_offsets import Offsets, resolve
from store.message.message_queue import MessageQueue

Positions = Mapping[MessageQueue, int]
"""The next offset to read of each queue."""


@dataclass(frozen=True)
class Limits:
    """The size of a batch: at most `max_offsets` messages, in at least `min_partitions` splits if it has as
    many messages."""

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
    """The splits of one batch, the positions after it, and the messages after them in each queue (`lags`)."""

    splits: Sequence[Split]
    positions: Positions
    lags: Mapping[MessageQueue, int]

    @property
    def is_limited(self) -> bool:
        """Return True if messages remain for a next batch."""
        return any(self.lags.values())


def initial_positions(
    states: Iterable[QueueState], starting: Offsets, *, fail_on_data_loss: bool
) -> tuple[dict[MessageQueue, int], list[MissingRange]]:
    """Return the position of each queue for the option startingOffsets, and the requested ranges that do not
    exist.

    Raises `OffsetsInvalid` if the option lists a queue that does not exist, and `DataLoss` if ranges are
    missing and `fail_on_data_loss` is set.
    """
    states = list(states)
    starting.check_known("startingOffsets", (state.queue for state in states))
    wanted = {
        state.queue: resolve(starting.wanted(state.queue), state.min_offset, state.max_offset)
        for state in states
    }
    return existing_positions(states, wanted, fail_on_data_loss=fail_on_data_loss)


def existing_positions(
    states: Iterable[QueueState], positions: Positions, *, fail_on_data_loss: bool
) -> tuple[dict[MessageQueue, int], list[MissingRange]]:
    """Return positions that exist in the queues, and the ranges that are skipped for them.

    A queue without a position is new: it is read from its first offset. A queue that no broker reports keeps
    its position, because its broker may be restarted. A queue that ends before its position continues at its
    end, so that no message is read twice.

    Raises `DataLoss` if ranges are missing and `fail_on_data_loss` is set.
    """
    found, missing = dict(positions), []
    for state in states:
        position = positions.get(state.queue, state.min_offset)
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
    """Return the batch that follows `positions`; it has no splits if the queues have no more messages.

    `positions` are those of `existing_positions`. `turn` is the number of the batch.
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


def share(available: Positions, limit: int | None, turn: int) -> dict[MessageQueue, int]:
    """Distribute `limit` messages over the queues, in proportion to the messages that each has.

    Each queue with messages gets at least one, so that a long queue does not delay a short one. If there are
    more such queues than messages, the queues take turns.
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
