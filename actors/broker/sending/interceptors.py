"""Send interceptors: what a broker does with one message between its checks and its append.

    SEND_MESSAGE → checks → interceptors, in the order that `build_broker` gives → append

An interceptor may replace the record that is stored (another topic and queue, other properties) or refuse the
message. Batches and finished records take no interceptors: like RocketMQ, the broker stores them as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from actors.broker.group.queue_locks import QueueLocks
from actors.broker.metadata.tables import BrokerTables
from actors.broker.sending.stored_properties import (
    PropertyWriter,
    StoredProperties,
    is_prepared,
    of_dead_letter,
)
from actors.remoting.codes import ResponseCode
from actors.remoting.hot_headers import SendMessageHeader
from actors.remoting.remoting_errors import Refused
from store.message.record import RecordDraft
from store.message.sys_flag import TRANSACTION_MASK
from store.message.validate import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX


@dataclass(slots=True)
class SendDraft:
    """One message on its way to the log."""

    header: SendMessageHeader
    record: RecordDraft
    """What is to be stored."""
    properties: StoredProperties
    """The record's properties, and what the broker read in them."""
    queue_id: int
    """The queue that the response names: the message's own, also while it is delayed."""


class SendInterceptor(Protocol):
    """A step before the append."""

    def before_append(self, draft: SendDraft) -> None:
        """Change the draft, or leave it as it is. Raises Refused."""
        ...


class DeadLetters:
    """Stores what a consumer returned too often in the dead-letter topic of its group.

    Consumers return messages by a send to their retry topic when CONSUMER_SEND_MSG_BACK fails, and those that
    consume in order always do.
    """

    def __init__(self, tables: BrokerTables, locks: QueueLocks, properties: PropertyWriter) -> None:
        self._topics = tables.topics
        self._groups = tables.groups
        self._locks = locks
        self._properties = properties

    def before_append(self, draft: SendDraft) -> None:
        """Replace the retry topic by the dead-letter topic once the group's limit is exceeded."""
        if draft.record.topic.startswith(RETRY_TOPIC_PREFIX):
            self._check_retries(draft)

    def _check_retries(self, draft: SendDraft) -> None:
        header = draft.header
        group = self._groups.get(draft.record.topic.removeprefix(RETRY_TOPIC_PREFIX))
        limit = group.retry_max_times if header.max_reconsume_times is None else header.max_reconsume_times
        # CONSUMER_SEND_MSG_BACK compares with >=, a client's own retry with >, as in RocketMQ. A consumer in
        # order has given the message up already: retried later it would be out of order.
        if header.reconsume_times <= limit and not self._locks.is_orderly(group.group_name):
            return
        topic = self._topics.ensure(f"{DLQ_TOPIC_PREFIX}{group.group_name}", 1)
        draft.properties = self._properties.write(of_dead_letter(header.properties))
        draft.record = replace(
            draft.record, topic=topic.topic_name, queue_id=0, properties=draft.properties.encoded
        )
        draft.queue_id = 0


class NoTransactions:
    """Refuses transactional messages."""

    def before_append(self, draft: SendDraft) -> None:
        """Raise Refused for the first half of a transaction."""
        header = draft.header
        is_returned = header.reconsume_times > 0 and draft.properties.delay_level > 0  # by an old consumer
        if header.sys_flag & TRANSACTION_MASK or (is_prepared(header.properties) and not is_returned):
            raise Refused(ResponseCode.NO_PERMISSION, "this broker takes no transactional messages")
