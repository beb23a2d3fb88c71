"""SendChecks: checks the topic, queue and size of a send before the append."""

from __future__ import annotations

import random

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.metadata.attributes import is_lite_topic
from actors.broker.core.metadata.topics import Topics
from actors.wire.codes import ResponseCode
from actors.wire.command import Buffer
from actors.wire.remoting_errors import Refused
from store.message.topic_config import TopicConfig


class SendChecks:
    """Finds the topic and queue of a send, and checks the size of its body."""

    def __init__(self, settings: BrokerSettings, topics: Topics, rng: random.Random) -> None:
        """Create the object; `rng` chooses the queue of sends without a queue id."""
        self._settings = settings
        self._topics = topics
        self._rng = rng

    @property
    def max_message_bytes(self) -> int:
        """The limit of the body of a request."""
        return self._settings.store.max_message_bytes

    def topic(self, name: str, default_topic: str, default_queues: int) -> TopicConfig:
        """Return the topic; create it from `default_topic` if it does not exist and that is allowed.

        Raises Refused if the topic does not exist or sends to it are not permitted.
        """
        return self._topics.for_sending(name, default_topic, default_queues)

    def batch_topic(self, name: str, default_topic: str, default_queues: int) -> TopicConfig:
        """Return the topic as `topic` does. Raises Refused also if its messages cannot be in a batch."""
        topic = self.topic(name, default_topic, default_queues)
        if is_lite_topic(topic):
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"topic {name!r} is of type LITE, whose messages cannot be in a batch: send them one by one",
            )
        return topic

    def queue(self, topic: TopicConfig, queue_id: int) -> int:
        """Return `queue_id`, or a random queue if it is negative. Raises Refused if it does not exist."""
        if queue_id < 0:
            return self._rng.randrange(max(topic.write_queue_nums, 1))
        count = max(topic.write_queue_nums, topic.read_queue_nums)
        if queue_id >= count:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queue {queue_id} of topic {topic.topic_name!r} does not exist: "
                f"it has queues 0 to {count - 1}",
            )
        return queue_id

    def check_size(self, body: Buffer) -> None:
        """Raise Refused if a body exceeds `max_message_bytes`."""
        limit_bytes = self.max_message_bytes
        if len(body) > limit_bytes:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"body of {len(body):,} bytes exceeds max_message_bytes {limit_bytes:,}: "
                "raise it on the broker or compress the body",
            )
