"""PopConfig and LiteConfig: the settings of consumers that pop messages."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.client.config import ClientConfig, PopFrom, Positive


@dataclass(frozen=True, slots=True)
class PopConfig(ClientConfig):
    """Settings of the pop consumer.

    Attributes:
        group: Name of the consumer group.
        namespace: Namespace of the topics and of the group, as in ConsumerConfig.
        invisible_ms: How long a received message is invisible to other workers, by default.
        consume_from: Where a new group starts to read a queue: `earliest` or `latest`. A new queue is read
            from its beginning.
    """

    group: str = "DEFAULT_CONSUMER"
    namespace: str = ""
    invisible_ms: Positive = 60_000
    consume_from: PopFrom = "earliest"


@dataclass(frozen=True, slots=True)
class LiteConfig(ClientConfig):
    """Settings of the lite consumer.

    Attributes:
        group: Name of the consumer group, which is bound to the topic (attribute lite.bind.topic).
        topic: The topic of type LITE.
        namespace: Namespace of the topic and of the group, as in ConsumerConfig.
        invisible_ms: How long a received message is invisible to other consumers.
    """

    group: str = "DEFAULT_CONSUMER"
    topic: str = ""
    namespace: str = ""
    invisible_ms: Positive = 60_000
