"""Retries: makes a popped message visible again, by an append to the group's retry topic."""

from __future__ import annotations

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.sending.moved import moved
from actors.broker.features.pop.claims import ClaimQueue
from actors.broker.features.pop.pop_counts import PopCounts
from store.message.message import MessageExt
from store.message.pop_records import POP_RETRY_SEPARATORS, pop_retry_topic
from store.message.properties import MessageConst
from store.message.validate import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from store.message_store import MessageStore


class Retries:
    """Appends the messages of one broker whose claims are over to their retry topics."""

    def __init__(
        self, settings: BrokerSettings, store: MessageStore, tables: BrokerTables, counts: PopCounts
    ) -> None:
        self._settings = settings
        self._store = store
        self._tables = tables
        self._counts = counts

    def is_wanted(self, queue: ClaimQueue) -> bool:
        """Return True if the group and the topic still exist."""
        tables = self._tables
        return queue.group in tables.groups.table.groups and tables.topics.find(queue.topic) is not None

    def append(self, queue: ClaimQueue, message: MessageExt, pop_ms: int) -> int:
        """Append a message of a wanted queue that was popped at `pop_ms` again; return the end of its record.

        With the setting `pop_dead_letters`, a message that was delivered too often becomes a dead letter.

        Raises:
            Refused: the retry topic cannot be created.
            StoreError: the store refuses appends.
        """
        tables, properties = self._tables, dict(message.properties)
        properties.setdefault(MessageConst.FIRST_POP_TIME, str(pop_ms))
        topic = retry_topic_of(queue)
        limit = tables.groups.table.groups[queue.group].retry_max_times
        if self._settings.pop_dead_letters and message.reconsume_times >= limit:
            topic = f"{DLQ_TOPIC_PREFIX}{queue.group}"
            properties.setdefault(MessageConst.RETRY_TOPIC, message.topic)
            properties.setdefault(MessageConst.ORIGIN_MESSAGE_ID, message.offset_msg_id)
        elif tables.topics.find(topic) is None:
            tables.topics.ensure(topic, 1)
            tables.offsets.commit(queue.group, topic, 0, 0)
        draft = moved(message, tables.topics.ensure(topic, 1).topic_name, 0, properties)
        draft.reconsume_times += 1
        result = self._store.append(draft)
        if topic.startswith(RETRY_TOPIC_PREFIX):
            self._counts.retried(topic, queue.group)
        return result.physical_offset + result.size_bytes


def retry_topic_of(queue: ClaimQueue) -> str:
    """Return the topic for the messages of a queue that were not acked: a retry topic is its own."""
    if queue.topic.startswith(RETRY_TOPIC_PREFIX):
        return queue.topic
    return pop_retry_topic(queue.group, queue.topic)


def requested_topic_of(queue: ClaimQueue) -> str:
    """Return the topic that the group's consumers name in their pops of a queue."""
    for separator in POP_RETRY_SEPARATORS:
        prefix = f"{RETRY_TOPIC_PREFIX}{queue.group}{separator}"
        if queue.topic.startswith(prefix):
            return queue.topic.removeprefix(prefix)
    return queue.topic
