"""The errors that a client raises.

ClientError                      .retriable says whether the same call may succeed later
├── ConfigInvalid                the call or a setting cannot work as written
├── ClientClosed                 used before start or after close
├── NameserverUnreachable        no nameserver answered
├── BrokerUnreachable            no connection to the broker, or it broke before the answer
├── DeadlineExceeded             no answer within the deadline: the outcome is unknown
├── BrokerRefused                the broker answered with an error: .code, .remark
│   ├── TopicNotFound, PermissionDenied, MessageRejected, BrokerBusy, NotSupported,
│   └── InvalidRequest, OffsetNotFound, GroupNotFound, CommitFenced, SubscriptionDiffers
├── SendFailed                   all attempts of a send failed: .attempts
├── TableSendFailed              some rows of a table are not acknowledged: .acknowledged_rows
├── QueueNotAssigned             a call named a queue that this consumer does not hold
└── DataDamaged                  a broker's answer holds bytes that are no records
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from actors.remoting.codes import ResponseCode

if TYPE_CHECKING:
    from store.message.message_queue import MessageQueue


class ClientError(Exception):
    """The root of everything a client raises. `retriable`: the same call may succeed later."""

    retriable: bool = False


class ConfigInvalid(ClientError, ValueError):
    """A setting or argument that cannot work; the message names it, its value and the remedy."""


class ClientClosed(ClientError):
    """The client was used before it was started, or after it was closed."""


class NameserverUnreachable(ClientError):
    """No nameserver of the list answered."""

    retriable = True


class BrokerUnreachable(ClientError):
    """No connection to the broker, or it broke before the answer came (outcome unknown)."""

    retriable = True


class DeadlineExceeded(ClientError, TimeoutError):
    """No answer within the deadline. Whether the request took effect is unknown."""

    retriable = True


class BrokerRefused(ClientError):
    """A broker or nameserver answered with an error.

    `code` is RocketMQ's response code, `remark` the peer's text, `address` the peer.
    """

    def __init__(self, code: int, remark: str, address: str = "", retriable: bool | None = None) -> None:
        super().__init__(code, remark, address, retriable)  # all of them: errors cross processes pickled
        self.code = code
        self.remark = remark
        self.address = address
        if retriable is not None:
            self.retriable = retriable

    def __str__(self) -> str:
        source = f" from {self.address}" if self.address else ""
        return f"{self.remark or 'no remark'} (response code {self.code}{source})"


class TopicNotFound(BrokerRefused):
    """The topic does not exist in the cluster, and is not created automatically."""


class PermissionDenied(BrokerRefused):
    """The topic, queue or broker does not permit it (read-only, write-only, draining)."""


class MessageRejected(BrokerRefused):
    """The message itself is illegal: too large, bad topic name, bad properties."""


class BrokerBusy(BrokerRefused):
    """The broker sheds load, or its disk is full: try later, or elsewhere."""

    retriable = True


class NotSupported(BrokerRefused):
    """The peer does not know this request."""

    def __str__(self) -> str:
        return f"{super().__str__()}; it is one of RocketMQ's brokers, or of an older RayMQ"


class InvalidRequest(BrokerRefused):
    """A parameter is outside what the broker accepts."""


class OffsetNotFound(BrokerRefused):
    """The group has no committed offset for this queue."""


class GroupNotFound(BrokerRefused):
    """The consumer group is unknown, or none of its members is online."""


class CommitFenced(BrokerRefused):
    """The commit was made under an older generation: the queue belongs to another member now."""


class SubscriptionDiffers(BrokerRefused):
    """The group's other members have another subscription (see `allow_subscription_change`)."""


class SendFailed(ClientError):
    """All attempts of one send failed. `attempts`: what happened, in order; the last is also the cause."""

    def __init__(self, topic: str, attempts: Sequence[ClientError], retriable: bool) -> None:
        super().__init__(topic, attempts, retriable)
        self.topic = topic
        self.attempts = tuple(attempts)
        self.retriable = retriable

    def __str__(self) -> str:
        runs: list[str] = []
        number = 0
        for text, same in groupby(map(str, self.attempts)):
            first, number = number + 1, number + sum(1 for _ in same)
            runs.append(f"{first}. {text}" if first == number else f"{first}. to {number}. {text}")
        return f"send to topic {self.topic!r} failed after {number} attempt(s): {'; '.join(runs)}"


class TableSendFailed(ClientError):
    """Rows of a table were not acknowledged.

    `acknowledged_rows` of `rows` are stored; `failures` gives the reason for each queue that failed.
    Rows of a failed queue that come before the failed batch are stored, none after it is.
    """

    def __init__(
        self, topic: str, rows: int, acknowledged_rows: int, failures: dict[MessageQueue, ClientError]
    ) -> None:
        super().__init__(topic, rows, acknowledged_rows, failures)
        self.topic = topic
        self.rows = rows
        self.acknowledged_rows = acknowledged_rows
        self.failures = failures
        self.retriable = all(error.retriable for error in failures.values())

    def __str__(self) -> str:
        reasons = "; ".join(f"{queue}: {error}" for queue, error in self.failures.items())
        counts = f"{self.acknowledged_rows:,} of {self.rows:,} rows"
        return f"{counts} sent to {self.topic!r} are acknowledged: {reasons}"


class QueueNotAssigned(ClientError):
    """The call named a queue that this consumer does not hold."""


class DataDamaged(ClientError):
    """A broker's answer holds bytes that are no records; the message names the queue and offset."""


# RocketMQ DefaultMQProducer.retryResponseCodes, and FLOW_CONTROL: another queue may accept it.
RETRIABLE_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)

_CLASS_OF_CODE: dict[int, type[BrokerRefused]] = {
    ResponseCode.SYSTEM_BUSY: BrokerBusy,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: NotSupported,
    ResponseCode.MESSAGE_ILLEGAL: MessageRejected,
    ResponseCode.SERVICE_NOT_AVAILABLE: BrokerBusy,
    ResponseCode.NO_PERMISSION: PermissionDenied,
    ResponseCode.TOPIC_NOT_EXIST: TopicNotFound,
    ResponseCode.QUERY_NOT_FOUND: OffsetNotFound,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: GroupNotFound,
    ResponseCode.INVALID_PARAMETER: InvalidRequest,
    ResponseCode.CONSUMER_NOT_ONLINE: GroupNotFound,
    ResponseCode.FLOW_CONTROL: BrokerBusy,
    ResponseCode.GENERATION_FENCED: CommitFenced,
    ResponseCode.SUBSCRIPTION_DIFFERS: SubscriptionDiffers,
}


def refused(code: int, remark: str | None, address: str = "") -> BrokerRefused:
    """Return the typed error of a response code."""
    kind = _CLASS_OF_CODE.get(code, BrokerRefused)
    return kind(code, remark or "", address, code in RETRIABLE_CODES)
