"""MessageQueue: the name of one queue of one broker."""

from typing import NamedTuple


class MessageQueue(NamedTuple):
    """Ordered by topic, broker name and queue id: the order in which RocketMQ allocates queues."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        # RocketMQ's own text; its consistent-hash allocation hashes exactly this.
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"
