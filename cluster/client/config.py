"""Settings of the clients. Names and defaults are RocketMQ's where it has them, with units in the name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from actors.strategies import make_strategy
from cluster.client.errors import ConfigInvalid

if TYPE_CHECKING:
    from cluster.client.hooks import CallHook, ConsumeHook, SendHook

Nameservers = str | Sequence[str] | Callable[[], Sequence[str]]
"""`"host:port;host:port"`, a list of such, or a function that returns the list (called at each
refresh).
"""

DEFAULT_NAMESERVERS = "127.0.0.1:9876"
NAMESERVERS_ENV = "RAYMQ_NAMESERVERS"

KIB = 1024
MIB = 1024 * 1024

Compression = Literal["zlib", "lz4", "zstd"]
MAX_RECONSUME_TIMES = 16  # RocketMQ's default, which it writes as -1
COMPRESSION_LEVELS = {"zlib": range(10), "lz4": range(17), "zstd": range(1, 23)}


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings of all clients.

    `sticky_broker_ms`: how long keyed sends keep a broker's queues in their hash after it left the routes.
    """

    nameservers: Nameservers | None = None
    instance_name: str = ""
    request_timeout_ms: int = 3_000
    route_refresh_ms: int = 30_000
    heartbeat_ms: int = 30_000
    sticky_broker_ms: int = 120_000
    call_hooks: Sequence[CallHook] = ()

    def __post_init__(self) -> None:
        """Raise ConfigInvalid for settings that cannot work."""
        require_positive(self, "request_timeout_ms", "route_refresh_ms", "heartbeat_ms")
        require_at_least(0, self, "sticky_broker_ms")

    def addresses(self) -> list[str]:
        """Return the nameservers' addresses now. Raises ConfigInvalid if there is none."""
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

    A body of `compress_over_bytes` or more is compressed (`compression` None: never);
    `max_message_bytes` limits the compressed body. Batches and tables are not compressed.
    `send_latency_fault_enable`: sends to any queue pass over brokers that were slow or failed.
    """

    group: str = "DEFAULT_PRODUCER"
    send_timeout_ms: int = 3_000
    delivery_timeout_ms: int = 60_000
    retry_times_when_send_failed: int = 2
    default_topic_queue_nums: int = 4
    max_message_bytes: int = 4 * MIB
    compress_over_bytes: int = 4 * KIB
    compression: Compression | None = "zlib"
    compression_level: int = 5
    send_latency_fault_enable: bool = False
    table_batch_bytes: int = 1 * MIB
    table_buffer_bytes: int = 48 * MIB
    send_hooks: Sequence[SendHook] = ()

    def __post_init__(self) -> None:
        """Raise ConfigInvalid for settings that cannot work."""
        ClientConfig.__post_init__(self)
        require_at_least(0, self, "retry_times_when_send_failed", "default_topic_queue_nums")
        require_positive(
            self,
            "send_timeout_ms",
            "delivery_timeout_ms",
            "max_message_bytes",
            "compress_over_bytes",
            "table_batch_bytes",
            "table_buffer_bytes",
        )
        self._check_compression()

    def _check_compression(self) -> None:
        if self.compression is None:
            return
        levels = COMPRESSION_LEVELS.get(self.compression)
        if levels is None:
            known = ", ".join(COMPRESSION_LEVELS)
            raise ConfigInvalid(f"compression is {self.compression!r}: give one of {known}, or None")
        if self.compression_level not in levels:
            raise ConfigInvalid(
                f"compression_level is {self.compression_level}: "
                f"{self.compression} has {levels[0]} to {levels[-1]}"
            )


AutoOffset = Literal["earliest", "latest", "timestamp"]
AUTO_OFFSETS: tuple[AutoOffset, ...] = ("earliest", "latest", "timestamp")


@dataclass(frozen=True, slots=True)
class ConsumerConfig(ClientConfig):
    """Settings of both consumers.

    `consume_from`: where a group without a committed offset begins; with "timestamp" at the first message
    stored at `consume_timestamp_ms` (since the epoch; None: half an hour before it begins, as RocketMQ does)
    or later. `strategy` names how the group shares its queues out: `averagely`, `averagely_by_circle`,
    `consistent_hash`, `machine_room:ROOM,…`, `machine_room_nearby[:INNER]`, `config:TOPIC/BROKER/ID,…`; the
    group's first member decides. `commit_timeout_ms`: how long a commit is tried again where a broker is
    away; one that is restarted is back before. `lease_ms`: after how long without a word
    from this member its queues may be given to another. `max_poll_interval_ms`: how long a polled batch may
    be worked on before its queue is given away.
    """

    group: str = "DEFAULT_CONSUMER"
    consume_from: AutoOffset = "earliest"
    consume_timestamp_ms: int | None = None
    auto_commit: bool = True
    commit_interval_ms: int = 5_000
    commit_timeout_ms: int = 30_000
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
        """Raise ConfigInvalid for settings that cannot work."""
        ClientConfig.__post_init__(self)
        require_positive(
            self,
            "commit_interval_ms",
            "lease_ms",
            "sync_interval_ms",
            "fetch_bytes",
            "prefetch_bytes",
            "max_poll_interval_ms",
        )
        require_at_least(
            0, self, "self_assign_after_ms", "long_poll_ms", "close_timeout_ms", "commit_timeout_ms"
        )
        if self.consume_timestamp_ms is not None:
            require_at_least(0, self, "consume_timestamp_ms")
        if self.consume_from not in AUTO_OFFSETS:
            raise ConfigInvalid(
                f"consume_from is {self.consume_from!r}: give 'earliest', 'latest' or 'timestamp'"
            )
        if self.consume_timestamp_ms is not None and self.consume_from != "timestamp":
            raise ConfigInvalid(
                f"consume_timestamp_ms is given with consume_from={self.consume_from!r}: make it 'timestamp'"
            )
        if self.strategy is not None:
            if not isinstance(self.strategy, str):
                raise ConfigInvalid(f"strategy is {self.strategy!r}: give its name, a text")
            try:
                make_strategy(self.strategy)
            except ValueError as error:
                raise ConfigInvalid(f"strategy: {error}") from error
        if self.sync_interval_ms * 2 > self.lease_ms:
            raise ConfigInvalid(
                f"sync_interval_ms {self.sync_interval_ms} is over half of lease_ms {self.lease_ms}: "
                "one lost request would cost the lease"
            )


@dataclass(frozen=True, slots=True)
class PushConfig(ConsumerConfig):
    """Settings of a push consumer; `consume_threads` listeners run at once, each with ≤ `consume_batch`
    messages.

    A queue is fetched no further while it has `max_cached_messages`, `max_cached_bytes`, or a span of
    `max_offset_span` offsets from the first unfinished message to the last (RocketMQ pullThresholdForQueue,
    pullThresholdSizeForQueue, consumeConcurrentlyMaxSpan); what `max_cached_…_for_topic` allows, the topic's
    queues here share (RocketMQ pullThresholdForTopic, pullThresholdSizeForTopic). Messages on which a
    listener has worked for `consume_timeout_ms` are sent back to the broker, to come again later (RocketMQ
    consumeTimeout).
    """

    consume_threads: int = 20
    consume_batch: int = 1
    max_cached_messages: int = 1_000
    max_cached_bytes: int = 100 * MIB
    max_cached_messages_for_topic: int | None = None
    max_cached_bytes_for_topic: int | None = None
    max_offset_span: int = 2_000
    max_reconsume_times: int = MAX_RECONSUME_TIMES
    retry_backoff_ms: Sequence[int] = field(default=(100, 500, 1_000, 5_000, 10_000, 30_000))
    consume_timeout_ms: int = 15 * 60_000
    fetch_bytes: int = 1 * MIB
    consume_hooks: Sequence[ConsumeHook] = ()

    def __post_init__(self) -> None:
        """Raise ConfigInvalid for settings that cannot work."""
        ConsumerConfig.__post_init__(self)
        require_positive(
            self,
            "consume_threads",
            "consume_batch",
            "max_cached_messages",
            "max_cached_bytes",
            "max_offset_span",
            "consume_timeout_ms",
        )
        for name in ("max_cached_messages_for_topic", "max_cached_bytes_for_topic"):
            if getattr(self, name) is not None:
                require_positive(self, name)
        require_at_least(-1, self, "max_reconsume_times")
        if self.max_reconsume_times == -1:
            object.__setattr__(self, "max_reconsume_times", MAX_RECONSUME_TIMES)
        delays_ms: object = self.retry_backoff_ms
        if (
            not isinstance(delays_ms, Sequence)
            or not delays_ms
            or not all(isinstance(each, int | float) and each >= 0 for each in delays_ms)
        ):
            raise ConfigInvalid(
                f"retry_backoff_ms is {delays_ms!r}: give at least one delay, each 0 or more, in a list"
            )


def require_positive(config: object, *names: str) -> None:
    """Raise ConfigInvalid for the first of `names` that is not a whole number over zero."""
    require_at_least(1, config, *names)


def require_at_least(least: int, config: object, *names: str) -> None:
    """Raise ConfigInvalid for the first of `names` that is not a whole number from `least` on."""
    for name in names:
        value = getattr(config, name)
        if type(value) is not int:
            raise ConfigInvalid(f"{name} is {value!r}: it must be a whole number")
        if value < least:
            bound = "over 0" if least == 1 else f"{least} or more"
            raise ConfigInvalid(f"{name} is {value}: it must be {bound}")


def parse_addresses(given: str | Sequence[str]) -> list[str]:
    """`"a:1;b:2"` (or commas, or a list) → `["a:1", "b:2"]`; raises ConfigInvalid."""
    parts: object = given.replace(",", ";").split(";") if isinstance(given, str) else given
    if not isinstance(parts, Iterable) or not all(isinstance(part, str) for part in parts):
        raise ConfigInvalid(f'nameservers is {given!r}: give "host:port;host:port", or a list of such')
    addresses = [part.strip() for part in parts if part.strip()]
    if not addresses:
        raise ConfigInvalid('no nameserver given: pass nameservers="host:9876"')
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not colon or not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigInvalid(f"nameserver address {address!r} is not host:port")
    return addresses
