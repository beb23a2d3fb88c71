"""Send interceptors: what a broker does with one message between its checks and its append.

    SEND_MESSAGE → checks → interceptors, in the order that `build_broker` gives → append

An interceptor changes what is stored (another topic and queue, other properties) or refuses the message.
A topic that it redirects to must exist (`Topics.ensure`). Batches and finished records pass no interceptors:
like RocketMQ, the broker stores them as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from actors.broker.group.queue_locks import QueueLocks
from actors.broker.metadata.tables import BrokerTables
from actors.broker.sending.stored_properties import delay_level, is_prepared, of_dead_letter
from actors.remoting.codes import ResponseCode
from actors.remoting.hot_headers import SendMessageHeader
from actors.remoting.remoting_errors import Refused
from store.message.record import RecordDraft
from store.message.sys_flag import TRANSACTION_MASK
from store.message.validate import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX


@dataclass(slots=True)
class SendDraft:
    """One message on its way to the log.

    The response names the queue that the sender chose, whatever queue an interceptor chooses for the record.
    """

    header: SendMessageHeader
    """What the client sent; not to be changed."""
    record: RecordDraft
    """What is stored. Its own properties are empty until the interceptors are done."""
    properties: str
    """The properties to store: name, 0x01, value, 0x02 for each. The broker's own are added later."""


class SendInterceptor(Protocol):
    """A step before the append."""

    def before_append(self, draft: SendDraft) -> None:
        """Change the draft's record and properties, or leave them as they are. Raises Refused."""
        ...


class DeadLetters:
    """Stores what a consumer returned too often in the dead-letter topic of its group.

    Consumers return messages by a send to their retry topic when CONSUMER_SEND_MSG_BACK fails, and those that
    consume in order always do.
    """

    def __init__(self, tables: BrokerTables, locks: QueueLocks) -> None:
        self._topics = tables.topics
        self._groups = tables.groups
        self._locks = locks

    def before_append(self, draft: SendDraft) -> None:
        """Replace the retry topic by the dead-letter topic once the group's limit is exceeded."""
        if not draft.record.topic.startswith(RETRY_TOPIC_PREFIX):
            return
        header = draft.header
        group = self._groups.get(draft.record.topic.removeprefix(RETRY_TOPIC_PREFIX))
        limit = group.retry_max_times if header.max_reconsume_times is None else header.max_reconsume_times
        # CONSUMER_SEND_MSG_BACK compares with >=, a client's own retry with >, as in RocketMQ. A consumer in
        # order has given the message up already: retried later it would be out of order.
        if header.reconsume_times <= limit and not self._locks.is_orderly(group.group_name):
            return
        draft.record.topic = self._topics.ensure(f"{DLQ_TOPIC_PREFIX}{group.group_name}", 1).topic_name
        draft.record.queue_id = 0
        draft.properties = of_dead_letter(draft.properties)


class NoTransactions:
    """Refuses transactional messages."""

    def before_append(self, draft: SendDraft) -> None:
        """Raise Refused for the first half of a transaction."""
        if draft.header.sys_flag & TRANSACTION_MASK or (
            is_prepared(draft.properties) and not _is_returned(draft)
        ):
            raise Refused(ResponseCode.NO_PERMISSION, "this broker takes no transactional messages")


def _is_returned(draft: SendDraft) -> bool:
    """Return True for a retry by a client before 4.6.1: it keeps the properties of the first send."""
    return draft.header.reconsume_times > 0 and delay_level(draft.properties) > 0
