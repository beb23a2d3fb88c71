"""Counts of retries and dead letters, for DESCRIBE_BROKER and GET_BROKER_RUNTIME_INFO."""

from __future__ import annotations

from collections.abc import Mapping

from actors.broker.capability import Capability
from actors.broker.metadata.tables import BrokerTables
from actors.broker.stats import BrokerStats
from store.message.validate import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from store.message_store import MessageStore

TOOLS_GROUP = "TOOLS_CONSUMER"
"""Group whose offsets mark the dead letters that were resent or purged."""


def build_retry_state(tables: BrokerTables, store: MessageStore, stats: BrokerStats) -> Capability:
    """Return a Capability without requests, which adds the counts to the broker's fields."""
    return Capability(fields=lambda: retry_fields(tables, store, stats))


def retry_fields(tables: BrokerTables, store: MessageStore, stats: BrokerStats) -> Mapping[str, object]:
    """Return the numbers of messages in retry topics, in dead-letter topics, and sent back by consumers.

    A message in a retry topic is pending until its group has committed a higher offset; one that still waits
    for its delay is not counted. A dead letter is pending until it is resent or purged, which a commit of
    TOOLS_CONSUMER records. Messages sent back are counted since the start of the broker.
    """
    retries = dead_letters = 0
    for topic, config in tables.topics.table.topics.items():
        if topic.startswith(RETRY_TOPIC_PREFIX):
            group = topic.removeprefix(RETRY_TOPIC_PREFIX)
            retries += _pending(tables, store, topic, config.read_queue_nums, group)
        elif topic.startswith(DLQ_TOPIC_PREFIX):
            dead_letters += _pending(tables, store, topic, config.write_queue_nums, TOOLS_GROUP)
    sent_back = sum(tally.messages for tally in stats.send_backs.values())
    return {
        "retries_pending": retries,
        "dead_letters_pending": dead_letters,
        "messages_sent_back": sent_back,
    }


def _pending(tables: BrokerTables, store: MessageStore, topic: str, queues: int, group: str) -> int:
    """Return the number of messages of `topic` at or after the committed offsets of `group`."""
    return sum(
        max(store.max_offset(topic, queue_id) - (tables.offsets.query(group, topic, queue_id) or 0), 0)
        for queue_id in range(queues)
    )
