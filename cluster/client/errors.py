"""The errors that a client raises.

ClientError                      .retriable: True if the same call may succeed later
├── ConfigInvalid                an argument or a setting is invalid
├── PackageMissing               a call needs packages that raymq-client does not install
├── ClientClosed                 the client is closed, or belongs to another event loop or process
├── NameserverUnreachable        no nameserver responded
├── BrokerUnreachable            no connection to the broker, or it broke before the response
├── DeadlineExceeded             no response within the deadline: the outcome is unknown
├── BrokerRefused                the broker responded with an error: .code, .remark
│   ├── TopicNotFound, PermissionDenied, MessageRejected, BrokerBusy, NotSupported,
│   ├── InvalidRequest, OffsetNotFound, GroupNotFound, CommitFenced, SubscriptionDiffers,
│   └── ReceiptExpired, LiteQuotaExceeded
├── SendFailed                   all attempts of a send failed: .attempts
├── TableSendFailed              some rows of a table are not acknowledged: .acknowledged_rows
├── QueueNotConsumed             a key waits until its former queue is consumed (sticky_key_groups)
├── QueueNotAssigned             a call named a queue that this consumer does not hold
└── DataDamaged                  a broker's response contains bytes that are not valid records
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING

from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused, RemotingError

if TYPE_CHECKING:
    from store.message.message_queue import MessageQueue


class ClientError(Exception):
    """Base class of all client errors. `retriable` is True if the same call may succeed later."""

    retriable: bool = False


class ConfigInvalid(ClientError, ValueError):
    """A setting or argument is invalid. The message names it, its value and the remedy."""


class PackageMissing(ClientError, ImportError):
    """The call needs packages that are not installed. The message names them and the remedy."""


class ClientClosed(ClientError):
    """The client is closed, or it belongs to another event loop or to the parent of a forked process."""


class NameserverUnreachable(ClientError):
    """None of the configured nameservers responded."""

    retriable = True


class BrokerUnreachable(ClientError):
    """The client cannot connect to the broker, or the connection broke before the response arrived.

    In the second case it is unknown whether the broker executed the request.
    """

    retriable = True


class DeadlineExceeded(ClientError, TimeoutError):
    """No response arrived within the deadline. It is unknown whether the request was executed."""

    retriable = True


class BrokerRefused(ClientError):
    """A broker or nameserver responded with an error.

    Attributes:
        code: RocketMQ response code.
        remark: Text of the response.
        address: `host:port` of the peer; empty if the client found the error itself.
    """

    def __init__(self, code: int, remark: str, address: str = "", retriable: bool | None = None) -> None:
        super().__init__(code, remark, address, retriable)  # all arguments, so that the error can be pickled
        self.code = code
        self.remark = remark
        self.address = address
        if retriable is not None:
            self.retriable = retriable

    def __str__(self) -> str:
        source = f" from {self.address}" if self.address else ""
        return f"{self.remark.strip() or 'no remark'} (response code {self.code}{source})"


class TopicNotFound(BrokerRefused):
    """The topic does not exist and is not created automatically."""


class PermissionDenied(BrokerRefused):
    """The topic, queue or broker does not permit the request: it is read-only, write-only or draining."""


class MessageRejected(BrokerRefused):
    """The message is invalid: it is too large, or its topic name or properties are malformed."""


class BrokerBusy(BrokerRefused):
    """The broker is overloaded or its disk is full. Retry later or on another broker."""

    retriable = True


class NotSupported(BrokerRefused):
    """The peer does not support this request code."""

    def __str__(self) -> str:
        return (
            f"{super().__str__()}; the peer is an Apache RocketMQ broker, an older RayMQ broker, or no broker"
        )


class InvalidRequest(BrokerRefused):
    """The broker rejected the value of a parameter."""


class OffsetNotFound(BrokerRefused):
    """The group has no committed offset for this queue."""


class GroupNotFound(BrokerRefused):
    """The consumer group is unknown, or none of its members is online."""


class CommitFenced(BrokerRefused):
    """The broker rejected a commit of an older generation: the queue is now assigned to another member."""


class SubscriptionDiffers(BrokerRefused):
    """The other members of the group have another subscription (see `allow_subscription_change`)."""


class ReceiptExpired(BrokerRefused):
    """The message is not claimed with this receipt: it was acknowledged, or is visible to others again."""


class LiteQuotaExceeded(BrokerRefused):
    """There would be too many lite topics, or too many subscriptions of them. The remark has the limit."""


class SendFailed(ClientError):
    """All attempts of one send failed. `attempts` holds their errors in order."""

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
            span = f"attempt {first}" if first == number else f"attempts {first} to {number}"
            runs.append(f"{span}: {text}")
        return f"send to topic {self.topic!r} failed: {'; '.join(runs)}"


class TableSendFailed(ClientError):
    """Some rows of a table were not acknowledged.

    In each failed queue the rows before the failed batch are stored, and the rows after it are not.

    Attributes:
        topic: Topic of the table.
        rows: Number of rows of the table.
        acknowledged_rows: Number of rows that are stored.
        failures: The error of each queue that failed.
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
        return f"only {counts} sent to topic {self.topic!r} were acknowledged; failed queues: {reasons}"


class QueueNotConsumed(ClientError):
    """A send of a key is held, because its former queue is not writable and not consumed yet."""

    retriable = True


class QueueNotAssigned(ClientError):
    """The call named a queue that is not assigned to this consumer."""


class DataDamaged(ClientError):
    """A broker's response contains invalid records. The message names the queue and the offset."""


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
    ResponseCode.ILLEGAL_OPERATION: InvalidRequest,
    ResponseCode.NO_MESSAGE: ReceiptExpired,
    ResponseCode.CONSUMER_NOT_ONLINE: GroupNotFound,
    ResponseCode.FLOW_CONTROL: BrokerBusy,
    ResponseCode.LMQ_QUOTA_EXCEEDED: LiteQuotaExceeded,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: LiteQuotaExceeded,
    ResponseCode.GENERATION_FENCED: CommitFenced,
    ResponseCode.SUBSCRIPTION_DIFFERS: SubscriptionDiffers,
}


def refused(code: int, remark: str | None, address: str = "") -> BrokerRefused:
    """Return the error of a response with this `code`, as an instance of the matching BrokerRefused class."""
    kind = _CLASS_OF_CODE.get(code, BrokerRefused)
    return kind(code, remark or "", address, code in RETRIABLE_CODES)


@contextmanager
def nameserver_errors() -> Iterator[None]:
    """Raise the errors of `Nameservers` as the ClientErrors that correspond to them."""
    try:
        yield
    except Refused as error:
        raise refused(error.code, error.remark) from error
    except RemotingError as error:
        raise NameserverUnreachable(str(error)) from error
