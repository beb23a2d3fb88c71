"""What sends and consumers give back."""

from __future__ import annotations

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
    `queue_offset` the place of the (first) message in its queue.
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

    `rows` counts each row once. At most `resent_rows` more may stand in the queue, with UNIQ_KEYs that are
    there already: their first result was unknown, so they were sent again.
    """

    rows: int
    resent_rows: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class TableReceipt:
    """What became of a table: all `rows` are acknowledged."""

    topic: str
    rows: int
    resent_rows: int
    batches: int
    queues: dict[MessageQueue, QueueReceipt]


class ConsumeStatus(Enum):
    """What a listener says of the messages it got. `None` and `True` mean success, `False` and an exception
    later.
    """

    CONSUME_SUCCESS = "success"
    RECONSUME_LATER = "later"
