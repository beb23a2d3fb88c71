"""Settings of the clients. Names and defaults are RocketMQ's where it has them, with units in the name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cluster.client.errors import ConfigInvalid

Nameservers = str | Sequence[str] | Callable[[], Sequence[str]]
"""`"host:port;host:port"`, a list of such, or a function that gives the list (asked again at each
refresh).
"""

DEFAULT_NAMESERVERS = "127.0.0.1:9876"
NAMESERVERS_ENV = "RAYMQ_NAMESERVERS"

KIB = 1024
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """What all clients share.

    `sticky_broker_ms`: how long keyed sends keep a broker's queues in their hash after it left the routes.
    """

    nameservers: Nameservers | None = None
    instance_name: str = ""
    request_timeout_ms: int = 3_000
    route_refresh_ms: int = 30_000
    heartbeat_ms: int = 30_000
    sticky_broker_ms: int = 120_000

    def addresses(self) -> list[str]:
        """The nameservers' addresses now; raises ConfigInvalid when there is none."""
        given = self.nameservers
        if given is None:
            given = os.environ.get(NAMESERVERS_ENV, DEFAULT_NAMESERVERS)
        if callable(given):
            given = given()
        return parse_addresses(given)


@dataclass(frozen=True, slots=True)
class ProducerConfig(ClientConfig):
    """Settings of a producer.

    `send_timeout_ms` bounds a send to any queue, retries included; `delivery_timeout_ms` one that has its
    own queue (sharding key, selector, table), long enough for a broker to be restarted.
    """

    group: str = "DEFAULT_PRODUCER"
    send_timeout_ms: int = 3_000
    delivery_timeout_ms: int = 60_000
    retry_times_when_send_failed: int = 2
    default_topic_queue_nums: int = 4
    max_message_bytes: int = 4 * MIB
    table_batch_bytes: int = 1 * MIB
    table_buffer_bytes: int = 48 * MIB

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        require_positive(
            self, "send_timeout_ms", "delivery_timeout_ms", "table_batch_bytes", "table_buffer_bytes"
        )


AutoOffset = Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True)
class ConsumerConfig(ClientConfig):
    """Settings of both consumers.

    `consume_from`: where a group without a committed offset begins. `lease_ms`: after how long without a word
    from this member its queues may be given to another. `max_poll_interval_ms`: how long a polled batch may
    be worked on before its queue is given away.
    """

    group: str = "DEFAULT_CONSUMER"
    consume_from: AutoOffset = "earliest"
    auto_commit: bool = True
    commit_interval_ms: int = 5_000
    lease_ms: int = 15_000
    sync_interval_ms: int = 4_000
    strategy: str | None = None
    allow_subscription_change: bool = False
    self_assign_after_ms: int = 30_000
    long_poll_ms: int = 15_000
    fetch_bytes: int = 4 * MIB
    prefetch_bytes: int = 32 * MIB
    max_poll_interval_ms: int = 300_000
    close_timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        require_positive(
            self, "commit_interval_ms", "lease_ms", "sync_interval_ms", "fetch_bytes", "prefetch_bytes"
        )
        if self.consume_from not in ("earliest", "latest"):
            raise ConfigInvalid(f"consume_from is {self.consume_from!r}: give 'earliest' or 'latest'")
        if self.sync_interval_ms * 2 > self.lease_ms:
            raise ConfigInvalid(
                f"sync_interval_ms {self.sync_interval_ms} is over half of lease_ms {self.lease_ms}: "
                "one lost request would cost the lease"
            )


@dataclass(frozen=True, slots=True)
class PushConfig(ConsumerConfig):
    """Settings of a push consumer; `consume_threads` listeners run at once, each with ≤ `consume_batch`
    messages.
    """

    consume_threads: int = 20
    consume_batch: int = 1
    max_cached_messages: int = 1_000
    max_cached_bytes: int = 100 * MIB
    max_reconsume_times: int = 16
    retry_backoff_ms: Sequence[int] = field(default=(100, 500, 1_000, 5_000, 10_000, 30_000))
    fetch_bytes: int = 256 * KIB

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        ConsumerConfig.__post_init__(self)
        require_positive(self, "consume_threads", "consume_batch", "max_cached_messages", "max_cached_bytes")
        if not self.retry_backoff_ms:
            raise ConfigInvalid("retry_backoff_ms is empty: give at least one delay")


def require_positive(config: object, *names: str) -> None:
    """Raise ConfigInvalid for the first of `names` that is not over zero."""
    for name in names:
        if getattr(config, name) <= 0:
            raise ConfigInvalid(f"{name} is {getattr(config, name)}: it must be over 0")


def parse_addresses(given: str | Sequence[str]) -> list[str]:
    """`"a:1;b:2"` (or commas, or a list) → `["a:1", "b:2"]`; raises ConfigInvalid."""
    parts = given.replace(",", ";").split(";") if isinstance(given, str) else list(given)
    addresses = [part.strip() for part in parts if part.strip()]
    if not addresses:
        raise ConfigInvalid('no nameserver given: pass nameservers="host:9876"')
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigInvalid(f"nameserver address {address!r} is not host:port")
    return addresses
