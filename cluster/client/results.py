"""Results of sends, and the result that a listener returns."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from cluster.client.errors import ConfigInvalid
from store.message.message_queue import MessageQueue


class SendStatus(Enum):
    """Status of a stored message: whether the flush and the replication that the broker waits for succeeded.

    The value is RocketMQ's response code.
    """

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


STATUS_OF_CODE = {status.value: status for status in SendStatus}


class SendResult(msgspec.Struct, frozen=True):
    """Result of a successful send. The ids of a batch are joined by commas.

    Attributes:
        status: Status of the message.
        msg_id: Id that the producer gave the message (property UNIQ_KEY).
        queue: Queue in which the message is stored.
        queue_offset: Offset of the message in the queue; of a batch, the offset of its first message.
        offset_msg_id: Id made by the broker from its address and the position in its CommitLog.
        transaction_id: The UNIQ_KEY as returned by the broker.
        region_id: Region of the broker.
        is_trace_on: False if the broker asks clients to write no message traces.
        recall_handle: Names a message with a delivery time, for `recall`; empty for other messages.
    """

    status: SendStatus
    msg_id: str
    queue: MessageQueue
    queue_offset: int
    offset_msg_id: str = ""
    transaction_id: str = ""
    region_id: str = "DefaultRegion"
    is_trace_on: bool = True
    recall_handle: str = ""


@dataclass(frozen=True, slots=True)
class QueueReceipt:
    """The rows of one table that are stored in one queue.

    Attributes:
        rows: Number of rows; each row is counted once.
        resent_rows: Number of rows that were sent again because the result of an earlier attempt was unknown.
            At most this many duplicates, with equal UNIQ_KEYs, are in the queue.
        first_offset: Queue offset of the first row.
        last_offset: Queue offset of the last row. Messages of other producers, or duplicates, may be stored
            between the two.
    """

    rows: int
    resent_rows: int
    first_offset: int
    last_offset: int


class QueueReceipts(Mapping[MessageQueue, QueueReceipt]):
    """Mapping of each queue that received rows to its receipt, sorted by queue.

    Receipts are stored in columns, because a table may be spread over tens of thousands of queues.
    """

    __slots__ = (
        "_first_offsets",
        "_last_offsets",
        "_places",
        "_resent_rows",
        "_rows",
        "_run_begins",
        "_run_ends",
        "_run_places",
    )

    def __init__(self) -> None:
        self._places: dict[MessageQueue, int] = {}
        self._rows = array("q")
        self._resent_rows = array("q")
        self._first_offsets = array("q")
        self._last_offsets = array("q")
        self._run_places = array("q")
        self._run_begins = array("q")
        self._run_ends = array("q")

    def add(self, queue: MessageQueue, rows: int, resent_rows: int, first_offset: int) -> None:
        """Add acknowledged rows of `queue`, the first at `first_offset`. Call it in the order of the rows."""
        place = self._places.get(queue)
        self._run_places.append(len(self._rows) if place is None else place)
        self._run_begins.append(first_offset)
        self._run_ends.append(first_offset + rows)
        if place is None:
            self._places[queue] = len(self._rows)
            self._rows.append(rows)
            self._resent_rows.append(resent_rows)
            self._first_offsets.append(first_offset)
            self._last_offsets.append(first_offset + rows - 1)
            return
        self._rows[place] += rows
        self._resent_rows[place] += resent_rows
        self._last_offsets[place] = first_offset + rows - 1

    def runs(self) -> Iterator[tuple[MessageQueue, int, int]]:
        """Yield the queue offsets [begin, end) of each acknowledged batch of rows, grouped by queue.

        The ranges contain these rows only: no message of another producer and no duplicate.
        """
        queues = list(self._places)
        for place, begin, end in sorted(zip(self._run_places, self._run_begins, self._run_ends, strict=True)):
            yield queues[place], begin, end

    @property
    def rows(self) -> int:
        """Return the number of acknowledged rows of all queues."""
        return sum(self._rows)

    @property
    def resent_rows(self) -> int:
        """Return how many of the acknowledged rows were sent more than once."""
        return sum(self._resent_rows)

    def __getitem__(self, queue: MessageQueue) -> QueueReceipt:
        """Return the receipt of `queue`. Raises KeyError if no row was stored in it."""
        place = self._places[queue]
        return QueueReceipt(
            self._rows[place],
            self._resent_rows[place],
            self._first_offsets[place],
            self._last_offsets[place],
        )

    def __iter__(self) -> Iterator[MessageQueue]:
        return iter(sorted(self._places))

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return repr(dict(self))


@dataclass(frozen=True, slots=True)
class TableReceipt:
    """Result of a table send; all rows are acknowledged.

    Attributes:
        topic: The topic.
        rows: Number of rows.
        resent_rows: Number of rows that were sent more than once.
        batches: Number of requests with rows, without their retries.
        queues: Receipt of each queue that received rows.
    """

    topic: str
    rows: int
    resent_rows: int
    batches: int
    queues: QueueReceipts


class ConsumeStatus(Enum):
    """Result of a listener.

    Instead of CONSUME_SUCCESS a listener may return None or True, instead of RECONSUME_LATER False; an
    exception has the effect of RECONSUME_LATER. `reconsume_later(level)` selects the delay of the retry.
    """

    CONSUME_SUCCESS = "success"
    RECONSUME_LATER = "later"


@dataclass(frozen=True, slots=True)
class ReconsumeLater:
    """Result of a listener: retry the messages after the delay of `delay_level`. See `reconsume_later`."""

    delay_level: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigInvalid if `delay_level` is not an integer of at least -1."""
        if type(self.delay_level) is not int or self.delay_level < -1:
            raise ConfigInvalid(
                f"delay level {self.delay_level!r} is invalid: give 1 to 18, 0 for the broker's choice, "
                "or -1 to send the messages to the dead-letter queue"
            )


def reconsume_later(delay_level: int = 0) -> ReconsumeLater:
    """Return a listener result that retries the messages after the delay of `delay_level`.

    Levels above 0 need `PushConfig(retry="broker")`.

    Args:
        delay_level: One of RocketMQ's levels, 1 to 18 with the broker's default levels. A level above the
            highest one means the highest. 0: level 3 for the first retry, then one level more for each retry.
            -1: no retry; the messages become dead letters now.

    Raises:
        ConfigInvalid: The level is not an integer of at least -1.
    """
    return ReconsumeLater(delay_level)
