"""Priorities: messages of topics with the attribute message.type=PRIORITY, whose queue ids are priorities.

    send with a priority ──► queue min(priority, queues - 1)
    pop ──► the most urgent queue first; the retry topic last

A pop empties each queue before the next one, so a low priority may wait without limit. The group's attribute
`priority.factor` is the percentage of its pops that do so; the others begin at a random queue.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.metadata.attributes import PRIORITY_FACTOR, PRIORITY_FACTOR_MAX, is_priority_topic
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.sending.interceptors import SendDraft
from actors.broker.core.sending.stored_properties import without
from store.message.priority import overruled_by, priority_of
from store.message.properties import MessageConst, decode_properties
from store.message.topic_config import TopicConfig

_RETRY_PROBABILITY: Final = 20
"""RocketMQ's popFromRetryProbability, for the pops that do not obey priorities."""


class Priorities:
    """Chooses the queue of messages with a priority, and the order in which pops read queues."""

    property_names = (MessageConst.PRIORITY,)

    def __init__(self, settings: BrokerSettings, tables: BrokerTables, rng: random.Random) -> None:
        self._settings = settings
        self._tables = tables
        self._rng = rng

    def before_append(self, draft: SendDraft) -> None:
        """Send interceptor: choose the queue of a message with a priority, whatever its topic's type.

        As in RocketMQ, a message with a priority and another type loses the priority, and an invalid
        priority has no effect.
        """
        if MessageConst.PRIORITY not in draft.properties:
            return
        properties = decode_properties(draft.properties.encode("utf-8", "replace"))
        priority = priority_of(properties)
        if priority is None:
            return
        if overruled_by(properties) is not None:
            draft.properties = without(draft.properties, (f"{MessageConst.PRIORITY}\x01",))
            return
        topic = self._tables.topics.find(draft.record.topic)
        if topic is not None and topic.write_queue_nums > 0:
            queue_id = draft.record.queue_id = min(priority, topic.write_queue_nums - 1)
            draft.response_fields = (*draft.response_fields, ("queueId", str(queue_id)))

    def of_pop(self, topic: TopicConfig, group: str) -> tuple[Sequence[int], bool] | None:
        """Return the order of the queues for a pop, and True if the retry topic is the first.

        None if the topic has no priorities.
        """
        if not is_priority_topic(topic):
            return None
        roll, settings, count = self._rng.randrange, self._settings, topic.read_queue_nums
        if (factor := self._factor(group)) < PRIORITY_FACTOR_MAX and roll(PRIORITY_FACTOR_MAX) >= factor:
            first = roll(max(count, 1))
            return (*range(first, count), *range(first)), roll(100) < _RETRY_PROBABILITY
        queues = range(count - 1, -1, -1) if settings.priority_order_asc else range(count)
        probability = settings.pop_from_retry_probability_for_priority
        return queues, bool(probability) and roll(100) < probability

    def _factor(self, group: str) -> int:
        config = self._tables.groups.table.groups.get(group)
        text = None if config is None else config.attributes.get(PRIORITY_FACTOR)
        return int(text) if text is not None and text.isdecimal() else PRIORITY_FACTOR_MAX
