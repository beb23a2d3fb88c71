"""Results of sends and of listeners."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from store.message.message_queue import MessageQueue


class SendStatus(Enum):
    """How safely the broker has the message; the value is RocketMQ's response code."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


STATUS_OF_CODE = {status.value: status for status in SendStatus}


@dataclass(frozen=True, slots=True)
class SendResult:
    """Where a message went.

    `msg_id` is the producer's UNIQ_KEY (of a batch: comma-joined), `offset_msg_id` the broker's id(s),
    `queue_offset` the queue offset of the (first) message, `transaction_id` the UNIQ_KEY as the broker read
    it.
    """

    status: SendStatus
    msg_id: str
    queue: MessageQueue
    queue_offset: int
    offset_msg_id: str = ""
    transaction_id: str = ""


@dataclass(frozen=True, slots=True)
class QueueReceipt:
    """The rows of one table that went to one queue: offsets `first_offset` to `last_offset`, if sent without
    a break.

    `rows` counts each row once. At most `resent_rows` more may stand in the queue, as duplicates
    with equal UNIQ_KEYs: their first result was unknown, so they were sent again.
    """

    rows: int
    resent_rows: int
    first_offset: int
    last_offset: int


class QueueReceipts(Mapping[MessageQueue, QueueReceipt]):
    """The receipt of each queue that got rows, in the order of queues.

    Stored in columns: a table may go to tens of thousands of queues, and few receipts are read.
    """

    __slots__ = ("_first_offsets", "_last_offsets", "_places", "_resent_rows", "_rows")

    def __init__(self) -> None:
        self._places: dict[MessageQueue, int] = {}
        self._rows = array("q")
        self._resent_rows = array("q")
        self._first_offsets = array("q")
        self._last_offsets = array("q")

    def add(self, queue: MessageQueue, rows: int, resent_rows: int, first_offset: int) -> None:
        """Add `rows` acknowledged rows, which follow all earlier ones of the queue."""
        place = self._places.get(queue)
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

    @property
    def rows(self) -> int:
        """Return the number of acknowledged rows."""
        return sum(self._rows)

    @property
    def resent_rows(self) -> int:
        """Return how many of them were sent again."""
        return sum(self._resent_rows)

    def __getitem__(self, queue: MessageQueue) -> QueueReceipt:
        """Return a queue's receipt. Raises KeyError for a queue without rows."""
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
    """The result of a table send: all `rows` are acknowledged."""

    topic: str
    rows: int
    resent_rows: int
    batches: int
    queues: Mapping[MessageQueue, QueueReceipt]


class ConsumeStatus(Enum):
    """The result of a listener. None and True mean success, False and an exception later."""

    CONSUME_SUCCESS = "success"
    RECONSUME_LATER = "later"
