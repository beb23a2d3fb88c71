"""PopConfig: the settings of a pop consumer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cluster.client.config import ClientConfig, require_positive
from cluster.client.errors import ConfigInvalid


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
    invisible_ms: int = 60_000
    consume_from: Literal["earliest", "latest"] = "earliest"

    def __post_init__(self) -> None:
        """Validate the settings. Raises ConfigInvalid if one of them is invalid."""
        ClientConfig.__post_init__(self)
        require_positive(self, "invisible_ms")
        if self.consume_from not in ("earliest", "latest"):
            raise ConfigInvalid(f"consume_from is {self.consume_from!r}: give 'earliest' or 'latest'")
