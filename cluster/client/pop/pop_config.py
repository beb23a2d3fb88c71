"""PopConfig: the settings of a pop consumer."""

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
