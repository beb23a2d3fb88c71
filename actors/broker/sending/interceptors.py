"""Send interceptors: steps between the checks of a message and its append.

    SEND_MESSAGE → checks → interceptors, in the order that `build_broker` gives → append

An interceptor changes the topic, queue or properties to store, or refuses the message. A topic that it
redirects to must exist (`Topics.ensure`). Batches and records encoded by clients do not pass interceptors:
like RocketMQ, the broker stores them unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from actors.broker.group.queue_locks import QueueLocks
from actors.broker.metadata.tables import BrokerTables
from actors.broker.sending.stored_properties import dead_letter_properties
from actors.broker.stats import BrokerStats
from actors.remoting.hot_headers import SendMessageHeader
from store.message.properties import MessageConst, decode_properties
from store.message.record import RecordDraft
from store.message.validate import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX


@dataclass(slots=True)
class SendDraft:
    """One message before its append.

    The response to the sender has the queue of the request, even if an interceptor redirects the record.
    """

    header: SendMessageHeader
    """The header that the client sent; must not be changed."""
    record: RecordDraft
    """The record to append. Its `properties` are set after the last interceptor."""
    properties: str
    """The properties to store, each as name, 0x01, value, 0x02. The broker adds its own ones later."""
    response_fields: Iterable[tuple[str, str]] = ()
    """Header fields, as (name, value), that interceptors add to the response."""


class SendInterceptor(Protocol):
    """A step before the append."""

    @property
    def property_names(self) -> Collection[str] | None:
        """Names of the properties of which a message must have one, or else `before_append` does nothing.

        None if it may change any message: then no message takes the compiled path (`plain_sends`), which
        messages to retry and dead-letter topics never take.
        """
        ...

    def before_append(self, draft: SendDraft) -> None:
        """Change the record and properties of the draft if needed. Raises Refused to refuse the message."""
        ...


class DeadLetters:
    """Redirects messages that were retried too often to the dead-letter topic of their group.

    A consumer sends a message to its retry topic if CONSUMER_SEND_MSG_BACK fails; an orderly consumer always
    does.
    """

    property_names = ()

    def __init__(self, tables: BrokerTables, locks: QueueLocks, stats: BrokerStats) -> None:
        self._stats = stats
        self._topics = tables.topics
        self._groups = tables.groups
        self._locks = locks

    def before_append(self, draft: SendDraft) -> None:
        """Replace the retry topic by the dead-letter topic if the group's retry limit is exceeded."""
        if not draft.record.topic.startswith(RETRY_TOPIC_PREFIX):
            return
        header = draft.header
        group = self._groups.get(draft.record.topic.removeprefix(RETRY_TOPIC_PREFIX))
        limit = group.retry_max_times if header.max_reconsume_times is None else header.max_reconsume_times
        # As in RocketMQ, CONSUMER_SEND_MSG_BACK compares with >=, a send to the retry topic with >. An
        # orderly consumer has already used up its retries: a later delivery would be out of order.
        if header.reconsume_times <= limit and not self._locks.is_orderly(group.group_name):
            return
        properties = decode_properties(draft.properties.encode("utf-8", "replace"))
        origin = properties.get(MessageConst.RETRY_TOPIC, draft.record.topic)
        self._stats.dead_letters[origin, group.group_name] += 1
        draft.record.topic = self._topics.ensure(f"{DLQ_TOPIC_PREFIX}{group.group_name}", 1).topic_name
        draft.record.queue_id = 0
        draft.properties = dead_letter_properties(draft.properties)
