"""PopConfig: the settings of a pop consumer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from cluster.client.config import ClientConfig, Nameservers, require_positive
from cluster.client.errors import ConfigInvalid
from cluster.client.namespaces import Namespace
from store.message.validate import check_group
from store.store_errors import MessageInvalid


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


def pop_config(nameservers: Nameservers | None, group: str | None, config: PopConfig) -> PopConfig:
    """Return `config` with `nameservers` and `group` replaced if they are given.

    Raises ConfigInvalid before any connection is opened.
    """
    if not isinstance(config, PopConfig):
        raise ConfigInvalid(f"config is a {type(config).__name__}: a pop consumer needs a PopConfig")
    if nameservers is not None:
        config = replace(config, nameservers=nameservers)
    if group is not None:
        config = replace(config, group=group)
    config.addresses()
    config = replace(config, group=Namespace(config.namespace).wrap(config.group))
    try:
        check_group(config.group)
    except MessageInvalid as error:
        raise ConfigInvalid(f"consumer group: {error}") from error
    return config
