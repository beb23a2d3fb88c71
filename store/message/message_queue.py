"""MessageQueue: identifies one queue of a topic on one broker."""

from typing import NamedTuple


class MessageQueue(NamedTuple):
    """Identifies one queue of a topic on one broker.

    Instances are ordered by topic, broker name and queue id, as in RocketMQ's assignment of queues to
    consumers.
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        # Must equal the text of RocketMQ's class: its consistent-hash assignment strategy hashes this string.
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"
