"""Builds the retries of a broker: messages sent back, dead letters and their figures."""

from __future__ import annotations

from collections.abc import Sequence

from actors.broker.build_loop import BrokerLoop
from actors.broker.core.capability import Capability
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.parts import BrokerParts
from actors.broker.features.retry.dead_letters import DeadLetters
from actors.broker.features.retry.send_back import SendBack
from actors.host.figures import Figure, Kind
from store.message.validate import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from store.message_store import MessageStore

TOOLS_GROUP = "TOOLS_CONSUMER"
"""Group whose offsets mark the dead letters that were resent or purged."""


def build_retries(parts: BrokerParts) -> Capability:
    """Build the retries of a broker."""
    loop, tables = parts.loop, parts.tables
    back = SendBack(loop.store, loop.reads, tables, loop.acks, loop.stats, parts.access.may_read)
    return Capability(
        rows=tuple(back.rows()),
        interceptors=(DeadLetters(tables, parts.groups.locks, loop.stats),),
        figures=retry_figures(tables, loop),
    )


def retry_figures(tables: BrokerTables, loop: BrokerLoop) -> Sequence[Figure]:
    """Return the figures of retries and dead letters.

    A message in a retry topic is pending until its group has committed a higher offset; one that still waits
    for its delay is not counted. A dead letter is pending until it is resent or purged, which a commit of
    TOOLS_CONSUMER records. Messages sent back are counted since the start of the broker.
    """

    store, stats, known = loop.store, loop.stats, loop.log_end.known

    def retries() -> int:
        return sum(
            _pending(tables, store, topic, config.read_queue_nums, tables.groups.of_retry_topic(topic))
            for topic, config in tables.topics.table.topics.items()
            if topic.startswith(RETRY_TOPIC_PREFIX)
        )

    def dead_letters() -> int:
        return sum(
            _pending(tables, store, topic, config.write_queue_nums, TOOLS_GROUP)
            for topic, config in tables.topics.table.topics.items()
            if topic.startswith(DLQ_TOPIC_PREFIX)
        )

    def sent_back() -> int:
        return sum(tally.messages for tally in stats.send_backs.values())

    return (
        Figure(
            "retries_pending", Kind.GAUGE, "", known(retries), "Messages in retry topics.",
            runtime_names=("retriesPending",),
            metric="raymq_retries_pending",
        ),
        Figure(
            "dead_letters_pending", Kind.GAUGE, "", known(dead_letters), "Messages in dead-letter topics.",
            runtime_names=("deadLettersPending",),
            metric="raymq_dead_letters_pending",
        ),
        Figure(
            "messages_sent_back", Kind.COUNTER, "", sent_back, "Messages that consumers sent back.",
            runtime_names=("messagesSentBack",),
            metric="raymq_messages_sent_back_total",
        ),
    )  # fmt: skip


def _pending(tables: BrokerTables, store: MessageStore, topic: str, queues: int, group: str) -> int:
    """Return the number of messages of `topic` at or after the committed offsets of `group`."""
    return sum(
        max(store.max_offset(topic, queue_id) - (tables.offsets.query(group, topic, queue_id) or 0), 0)
        for queue_id in range(queues)
    )
