"""The broker's settings. Those that RocketMQ has keep its meaning, its default and, as an alias, its
camelCase key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AliasChoices, Field

from actors.remoting.settings_text import Addresses
from store.live_settings import LIVE
from store.settings_model import SettingsModel
from store.store_settings import StoreSettings

VIP_PORT_DISTANCE = 2
"""How far below its port a RocketMQ broker listens once more (MixAll.brokerVIPChannel)."""


def _alias(name: str, rocketmq_key: str) -> AliasChoices:
    return AliasChoices(name, rocketmq_key)


class BrokerSettings(SettingsModel):
    """Everything one broker process is told at its start."""

    RENAMED: ClassVar[Mapping[str, str]] = {
        "young_topics_are_read_from_start": "consume_new_topics_from_start",
    }

    cluster_name: str = Field(
        default="DefaultCluster", validation_alias=_alias("cluster_name", "brokerClusterName")
    )
    """The cluster that the broker registers in."""
    broker_name: str = Field(default="broker-a", validation_alias=_alias("broker_name", "brokerName"))
    """The broker group's name."""
    broker_id: int = Field(default=0, ge=0, validation_alias=_alias("broker_id", "brokerId"))
    """0 is the master of its group."""
    replica: int = Field(default=0, ge=0)
    """The index of this replica in its group, which does not move with the role."""

    listen_host: str = "127.0.0.1"
    """The address to bind to."""
    listen_port: int = Field(
        default=10911, ge=0, le=65535, validation_alias=_alias("listen_port", "listenPort")
    )
    """The port to listen on; 0 is a free one."""
    vip_channel: bool = True
    """Whether the port two below a `listen_port` that is not 0 is listened on as well, as RocketMQ's brokers
    do: clients with `vipChannelEnabled` dial it. Where it is taken, it is left to its owner.
    """
    advertised_host: str | None = Field(default=None, validation_alias=_alias("advertised_host", "brokerIP1"))
    """The host that stands in routes and message ids; without it the one listened on."""
    advertised_port: int | None = None
    """The port that stands there; without it the one listened on."""
    nameservers: Addresses = Field(
        default_factory=list, validation_alias=_alias("nameservers", "namesrvAddr")
    )
    """Where to register."""
    rebalancers: Addresses = Field(default_factory=list)
    """Who assigns queues to consumer groups."""

    store_root: Path = Field(default=Path("store"), validation_alias=_alias("store_root", "storePathRootDir"))
    """The directory of the store."""
    adopt_store: bool = False
    """Whether a store that RocketMQ wrote is taken over."""
    store: StoreSettings = Field(default_factory=lambda: StoreSettings.model_validate({}))
    """The store's own settings."""

    auto_create_topics: Annotated[bool, LIVE] = Field(
        default=True, validation_alias=_alias("auto_create_topics", "autoCreateTopicEnable")
    )
    """Whether a send to an unknown topic makes it."""
    auto_create_groups: Annotated[bool, LIVE] = Field(
        default=True, validation_alias=_alias("auto_create_groups", "autoCreateSubscriptionGroup")
    )
    """Whether a consumer of an unknown group makes it."""
    default_topic_queues: Annotated[int, LIVE] = Field(
        default=8, ge=1, le=65535, validation_alias=_alias("default_topic_queues", "defaultTopicQueueNums")
    )
    """How many queues such a topic gets at most."""
    permission: Annotated[int, LIVE] = Field(
        default=6, ge=0, le=7, validation_alias=_alias("permission", "brokerPermission")
    )
    """What the whole broker allows: 4 read, 2 write."""
    region_id: str = Field(default="DefaultRegion", validation_alias=_alias("region_id", "regionId"))
    """Stands in each message's properties."""
    trace_on: bool = Field(default=True, validation_alias=_alias("trace_on", "traceOn"))
    """Whether clients are told to send traces."""
    consume_new_topics_from_start: Annotated[bool, LIVE] = True
    """RocketMQ's rule for a group without an offset on a queue whose first message is still there: it begins
    at 0.
    """

    long_polling: Annotated[bool, LIVE] = Field(
        default=True, validation_alias=_alias("long_polling", "longPollingEnable")
    )
    """Whether a pull at the end of a queue may wait for messages."""
    max_held_pulls: int = Field(default=100_000, ge=1)
    """How many pulls wait at most."""
    max_hold_ms: Annotated[int, LIVE] = Field(default=20_000, ge=0)
    """How long a pull waits at most. One of RocketMQ's clients that may wait for 5 s or more waits 2.5 s
    longer than it asks, as on average with RocketMQ, whose brokers look every 5 s.
    """
    pull_max_messages: Annotated[int, LIVE] = Field(
        default=32, ge=1, validation_alias=_alias("pull_max_messages", "maxTransferCountOnMessageInMemory")
    )
    """How many messages a pull of a RocketMQ client gets at most."""
    pull_max_bytes: Annotated[int, LIVE] = Field(
        default=256 * 1024,
        ge=1,
        validation_alias=_alias("pull_max_bytes", "maxTransferBytesOnMessageInMemory"),
    )
    """How many bytes it gets at most."""
    sync_flush_timeout_ms: int = Field(
        default=5000, ge=1, validation_alias=_alias("sync_flush_timeout_ms", "syncFlushTimeout")
    )
    """How long a send waits for the disk before it is told so."""

    send_queue_capacity: Annotated[int, LIVE] = Field(
        default=10_000, ge=1, validation_alias=_alias("send_queue_capacity", "sendThreadPoolQueueCapacity")
    )
    """How many sends may wait for the disk before further ones are refused."""
    pull_queue_capacity: int = Field(
        default=100_000, ge=1, validation_alias=_alias("pull_queue_capacity", "pullThreadPoolQueueCapacity")
    )
    """How many reads may wait for a thread that brings in what the page cache lacks."""
    wait_in_pull_queue_ms: int = Field(
        default=5_000, ge=1, validation_alias=_alias("wait_in_pull_queue_ms", "waitTimeMillsInPullQueue")
    )
    """How long such a read, or one of messages that are not dispatched yet, waits before it is refused."""
    cold_read_threads: int = Field(default=4, ge=1, le=64)
    """How many of these threads there are."""
    os_page_cache_busy_ms: Annotated[int, LIVE] = Field(
        default=1_000, ge=1, validation_alias=_alias("os_page_cache_busy_ms", "osPageCacheBusyTimeOutMills")
    )
    """Sends that waited this long because the broker stood still are refused: their senders have given up."""
    max_pending_requests: Annotated[int, LIVE] = Field(default=32_768, ge=1)
    """How many requests of one connection may be without an answer, held pulls among them."""
    max_unread_bytes: Annotated[int, LIVE] = Field(default=512 * 1024 * 1024, ge=1)
    """How much of our answers all peers together may leave unread before pulls are refused. At twice as much
    nothing more is read of those who are behind; at three times, those who leave most are closed.
    """
    unread_timeout_ms: int = Field(default=60_000, ge=1)
    """How long a peer may leave answers unread without taking a byte before its connection is closed."""
    idle_timeout_ms: int = Field(default=120_000, ge=1)
    """How long a connection may be without a word before it is closed."""
    max_connections: int = Field(default=20_000, ge=1)
    """How many connections are open at most."""

    register_interval_ms: int = Field(
        default=30_000, ge=1, validation_alias=_alias("register_interval_ms", "registerNameServerPeriod")
    )
    """How often the broker registers, beside on every change."""
    persist_offsets_interval_ms: Annotated[int, LIVE] = Field(
        default=5000,
        ge=1,
        validation_alias=_alias("persist_offsets_interval_ms", "flushConsumerOffsetInterval"),
    )
    """How often consumer offsets are saved."""
    client_expiry_ms: int = Field(
        default=120_000, ge=1, validation_alias=_alias("client_expiry_ms", "channelExpiredTimeout")
    )
    """After which a silent client is forgotten."""
    busy_poll_us: int = Field(default=100, ge=0, le=10_000)
    """How long the loop looks for more after a turn before it sleeps."""
    rebalancer_timeout_ms: int = Field(default=3000, ge=1)
    """How long an answer of a rebalancer is waited for."""
    start_timeout_ms: int = Field(default=10_000, ge=0)
    """How long a start goes on trying for a port or a store that another process still holds."""

    @property
    def host(self) -> str:
        """The advertised host."""
        return self.advertised_host or self.listen_host
