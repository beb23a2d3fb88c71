"""Parse the timestamp options of a read and convert times to queue offsets. No I/O.

Names and meanings are those of Spark's Kafka source, with a broker level added. A time is in milliseconds
since the epoch; it selects the first message that was stored at that time or later::

    startingTimestamp, endingTimestamp                      one time for all queues
    startingOffsetsByTimestamp, endingOffsetsByTimestamp    {"topic": {"broker": {"queueId": time}}}
    startingOffsetsByTimestampStrategy                      "error" | "latest", if no message is new enough

If several options are given, a time for all queues overrides times by queue, and times by queue override the
offset options. If a queue has no message at its ending time or later, the read ends at the end of the queue.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from jobs.job_errors import OffsetsInvalid, OptionInvalid
from jobs.option_values import INTEGER, as_choice
from jobs.reading.splits import QueueState
from jobs.reading.starting_offsets import EARLIEST, LATEST, Offsets, parse_listed
from store.message.message_queue import MessageQueue
from store.plausible_time import implausible

TimestampOption = str | int | datetime
TimestampsOption = str | Mapping[str, Mapping[str, Mapping[str | int, int]]]
Strategy = Literal["error", "latest"]

STRATEGIES = ("error", "latest")
SHOWN = 5

_SHAPE = 'milliseconds since the epoch, as in {"topic": {"broker": {"queueId": 1735689600000}}}'


@dataclass(frozen=True)
class Times:
    """The parsed timestamp options for the start or the end of a read, in ms since the epoch.

    `everywhere` is the time for all queues, or None; otherwise `listed` maps some queues to their times.
    """

    option: str
    everywhere: int | None = None
    listed: Mapping[MessageQueue, int] = field(default_factory=dict)

    def wanted(self, queue: MessageQueue) -> int | None:
        """Return the time that the options request for `queue`, or None if they have none for it."""
        return self.everywhere if self.everywhere is not None else self.listed.get(queue)

    def by_queue(self, states: Iterable[QueueState]) -> dict[MessageQueue, int]:
        """Map each queue that contains messages to its requested time.

        Queues without a requested time are omitted. Raises `OffsetsInvalid` if the option lists a queue that
        is not in `states`.
        """
        states = list(states)
        Offsets(LATEST, self.listed).check_known(self.option, (state.queue for state in states))
        wanted = {s.queue: self.wanted(s.queue) for s in states if s.min_offset < s.max_offset}
        return {queue: time_ms for queue, time_ms in wanted.items() if time_ms is not None}


def parse_times(
    edge: Literal["starting", "ending"], timestamp: TimestampOption | None, listed: TimestampsOption | None
) -> Times | None:
    """Parse the two timestamp options for one end of the read; `edge` is "starting" or "ending".

    The options are `<edge>Timestamp` and `<edge>OffsetsByTimestamp`. Returns None if neither is given. Raises
    OffsetsInvalid.
    """
    if timestamp is not None:
        option = f"{edge}Timestamp"
        return Times(option, everywhere=_time(option, timestamp))
    if listed is None:
        return None
    option = f"{edge}OffsetsByTimestamp"
    if isinstance(listed, str):
        try:
            listed = json.loads(listed)
        except (ValueError, RecursionError) as error:
            raise OffsetsInvalid(f"{option}={listed!r} is not valid JSON; give {_SHAPE}") from error
    return Times(option, listed=parse_listed(option, listed, _time, _SHAPE))


def parse_strategy(strategy: str) -> str:
    """Return a startingOffsetsByTimestampStrategy as one of STRATEGIES. Raises `OptionInvalid`."""
    remedy = "give 'error', or 'latest' to read nothing from queues without a message of that time or later"
    return as_choice("startingOffsetsByTimestampStrategy", strategy, STRATEGIES, remedy)


def check_order(starting: Times | None, ending: Times | None) -> None:
    """Raise `OptionInvalid` if the time for all queues at which to start is after that at which to end."""
    begin_ms, end_ms = (times.everywhere if times else None for times in (starting, ending))
    if begin_ms is not None and end_ms is not None and begin_ms > end_ms:
        assert starting is not None
        assert ending is not None
        raise OptionInvalid(f"{starting.option}={begin_ms} is after {ending.option}={end_ms}")


def starting_offsets(
    times: Times, states: Sequence[QueueState], found: Mapping[MessageQueue, int], strategy: str
) -> Offsets:
    """Return the offsets at which to start reading, for a read with starting times.

    `found` maps queues to the offset of the first message at the queue's time or later. Queues that are not
    in `found` start at their first offset. Raises `OffsetsInvalid` if the strategy is "error" and a queue has
    no message at its time or later.
    """
    late = [state.queue for state in states if found.get(state.queue, -1) >= state.max_offset]
    if late and strategy == "error":
        shown = "; ".join(f"{_show(queue)} has none since {times.wanted(queue)}" for queue in late[:SHOWN])
        more = f"; and {len(late) - SHOWN} more" if len(late) > SHOWN else ""
        raise OffsetsInvalid(
            f"{times.option}: {len(late)} of {len(states)} queues have no message of that time or later:"
            f" {shown}{more}. Give an earlier time (in milliseconds), or"
            " startingOffsetsByTimestampStrategy='latest' to read nothing from them."
        )
    return _within(EARLIEST, states, found)


def ending_offsets(states: Sequence[QueueState], found: Mapping[MessageQueue, int]) -> Offsets:
    """Return the offsets (exclusive) at which to stop reading, for a read with ending times.

    `found` maps queues to the offset of the first message at the queue's time or later. Queues that are not
    in `found` are read to their end.
    """
    return _within(LATEST, states, found)


def _within(default: int, states: Sequence[QueueState], found: Mapping[MessageQueue, int]) -> Offsets:
    """Limit each offset in `found` to the end of its queue as recorded in `states`.

    Messages that arrived later would otherwise be included.
    """
    ends = {state.queue: state.max_offset for state in states}
    return Offsets(default, {queue: min(offset, ends[queue]) for queue, offset in found.items()})


def _show(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def _time(where: str, value: object) -> int:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise OffsetsInvalid(
                f"{where}: {value!r} has no time zone; give an aware datetime or milliseconds"
            )
        value = round(value.timestamp() * 1000)
    if isinstance(value, str) and INTEGER.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise OffsetsInvalid(f"{where}: {value!r} is not a time; give {_SHAPE}")
    if (why := implausible(value, time.time_ns() // 1_000_000)) is not None:
        raise OffsetsInvalid(f"{where}: {why}")
    return value
