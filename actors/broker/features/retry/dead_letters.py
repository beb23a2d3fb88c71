"""DeadLetters: redirects messages that were retried too often, when a consumer sends them again."""

from __future__ import annotations

from collections.abc import Mapping

from actors.broker.core.group.queue_locks import QueueLocks
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.metadata.topics import Topics
from actors.broker.core.sending.interceptors import SendDraft
from actors.broker.core.sending.stored_properties import dead_letter_properties
from actors.broker.core.stats import BrokerStats
from store.message.properties import MessageConst, decode_properties
from store.message.validate import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX


def origin_topic(topics: Topics, properties: Mapping[str, str], topic: str) -> str:
    """Return the topic to which a retried message was sent first, as far as it exists, else `topic`.

    Counters are kept by it, and clients may name any.
    """
    origin = properties.get(MessageConst.RETRY_TOPIC, topic)
    return topic if topics.find(origin) is None else origin


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
        group = self._groups.get(self._groups.of_retry_topic(draft.record.topic))
        limit = group.retry_max_times if header.max_reconsume_times is None else header.max_reconsume_times
        # As in RocketMQ, CONSUMER_SEND_MSG_BACK compares with >=, a send to the retry topic with >. An
        # orderly consumer has already used up its retries: a later delivery would be out of order.
        if header.reconsume_times <= limit and not self._locks.is_orderly(group.group_name):
            return
        properties = decode_properties(draft.properties.encode("utf-8", "replace"))
        origin = origin_topic(self._topics, properties, draft.record.topic)
        self._stats.dead_letter(group.group_name, origin)
        draft.record.topic = self._topics.ensure(f"{DLQ_TOPIC_PREFIX}{group.group_name}", 1).topic_name
        draft.record.queue_id = 0
        draft.properties = dead_letter_properties(draft.properties)
