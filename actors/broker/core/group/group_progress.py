"""GroupProgress: the topics of a consumer group, and the offset at which it resumes in each queue.

    queue   | … acknowledged … | in flight | ready … | end
                               ▲
                             begin: the committed offset, or where the group would start

Every figure of a lag is computed from it: GET_CONSUME_STATS, the metrics, and the progress of a drain, which
the autoscaler reads too.

Of a group without a committed offset, what it would get counts. Clients request the offset first
(QUERY_CONSUMER_OFFSET) and decide by their `consumeFromWhere` if the broker knows none:

    in order of precedence                                                        begin
    the group is broadcasting: its members keep their offsets                     unknown
    an offset is committed                                                        that offset
    a retry topic of the group                                                    the first message
    a member has started here since the start of the broker                       where it started
    an empty queue                                                                its end
    members are online, CONSUME_FROM_FIRST_OFFSET                                 the first message
    no message was deleted yet, with `consume_new_topics_from_start`              0
    members are online, CONSUME_FROM_LAST_OFFSET                                  the end
    otherwise: CONSUME_FROM_TIMESTAMP, or no member is online to ask              unknown
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.group.clients import Clients
from actors.broker.core.metadata.attributes import LITE_BIND_TOPIC
from actors.broker.core.metadata.tables import BrokerTables
from actors.transport.connection import Connection
from actors.wire.bodies.groups import BROADCASTING, CONSUME_POP
from store.message.pop_records import RETRY_V1, RETRY_V2, pop_retry_topic
from store.message.validate import LMQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from store.message_store import MessageStore

FROM_FIRST = "CONSUME_FROM_FIRST_OFFSET"
FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class GroupProgress:
    """Where the groups of one broker are."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        tables: BrokerTables,
        clients: Clients[Connection],
    ) -> None:
        self._settings = settings
        self._store = store
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._clients = clients

    def topics_of(self, group: str) -> list[str]:
        """Return the topics that a group consumes or has consumed here, sorted."""
        return self._existing(group, {topic for topic, name in self._offsets.consumed() if name == group})

    def topics_by_group(self) -> dict[str, list[str]]:
        """Return the topics that each group consumes or has consumed here, by group."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for topic, group in self._offsets.consumed():
            found[group].add(topic)
        for online in self._clients.groups():
            found[online.name]  # a group that has not consumed yet
        return {group: self._existing(group, topics) for group, topics in sorted(found.items())}

    def may_consume(self, group: str, topic: str) -> bool:
        """Return False if the online members subscribe to topics, but not to this one.

        Retries and lite topics count.
        """
        own = (RETRY_TOPIC_PREFIX, LMQ_TOPIC_PREFIX)
        return topic.startswith(own) or self._clients.may_consume(group, topic)

    def keeps_offsets(self, group: str) -> bool:
        """Return False for a group whose members broadcast: each of them keeps its offsets itself."""
        online = self._clients.group(group)
        return online is None or online.message_model != BROADCASTING

    def begin(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset at which the group resumes, or None if it is unknown.

        Reads the first offset of a queue if none is committed, so it may raise NotResident (see `Reads`).
        """
        if not self.keeps_offsets(group):
            return None
        known = self._offsets.query(group, topic, queue_id)
        if known is None and not topic.startswith(RETRY_TOPIC_PREFIX):
            known = self._offsets.started(group, topic, queue_id)
        if known is not None:
            return known
        first, end = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        online = self._clients.group(group)
        where = None if online is None else online.consume_from_where
        if topic.startswith(RETRY_TOPIC_PREFIX) or where == FROM_FIRST:
            return first
        if first >= end:
            return end
        # RayMQ's clients, which claim queues with a generation, start at the end of a new topic too.
        if self.is_young(topic, queue_id) and not (
            online is not None and self._offsets.generation(group, topic, queue_id)
        ):
            return 0
        if online is None or where == FROM_TIMESTAMP:
            return None
        return self.pop_begin(topic, queue_id, at_end=True) if online.consume_type == CONSUME_POP else end

    def pop_begin(self, topic: str, queue_id: int, *, at_end: bool) -> int:
        """Return the offset of a group's first pop of a queue (RocketMQ's getInitOffset)."""
        first = self._store.min_offset(topic, queue_id)
        if not at_end or topic.startswith(RETRY_TOPIC_PREFIX):
            return first
        if first == 0 and self._settings.consume_new_topics_from_start:
            return 0
        return max(self._store.max_offset(topic, queue_id) - 1, first)

    def is_young(self, topic: str, queue_id: int) -> bool:
        """Return True if a group starts at 0 because no message of the queue was deleted yet."""
        return (
            self._settings.consume_new_topics_from_start
            and self._store.min_offset(topic, queue_id) <= 0
            and self._store.max_offset(topic, queue_id) > 0
        )

    def _existing(self, group: str, consumed: Iterable[str]) -> list[str]:
        if not self.keeps_offsets(group):
            return []
        online = self._clients.group(group)
        found = {each for each in consumed if self.may_consume(group, each)}
        config = self._groups.table.groups.get(group)
        if online is not None and (config is None or LITE_BIND_TOPIC not in config.attributes):
            found |= online.subscriptions.keys()
        for topic in tuple(found):
            found |= {pop_retry_topic(group, topic, kind) for kind in (RETRY_V1, RETRY_V2)}
        if found:
            found.add(f"{RETRY_TOPIC_PREFIX}{group}")
        return sorted(each for each in found if self._holds(each, consumed))

    def _holds(self, topic: str, consumed: Iterable[str]) -> bool:
        """Return True if a topic exists; a retry topic that never had a message is left out."""
        config = self._topics.table.topics.get(topic)
        if config is None or topic in consumed or not topic.startswith(RETRY_TOPIC_PREFIX):
            return config is not None
        return any(self._store.max_offsets(topic, config.read_queue_nums))
