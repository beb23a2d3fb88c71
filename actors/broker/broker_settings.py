"""The broker's settings.

A setting that RocketMQ has too keeps RocketMQ's meaning and default, and accepts its camelCase key.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, AliasChoices, Field, model_validator

from actors.host.cluster_access import AccessSettings
from actors.host.metrics.endpoint import MetricsSettings
from actors.wire.settings_text import Addresses, HostName, Texts
from store.common.live_settings import LIVE
from store.message.hosts import split_address
from store.store_settings import StoreSettings

VIP_PORT_DISTANCE = 2
"""RocketMQ's VIP port is `listen_port` minus this (MixAll.brokerVIPChannel)."""

SLAVE = "slave"
"""Value of the setting `role`."""
RAFT = "raft"
"""Value of the setting `replication`: the broker is a replica of a Raft group."""
_WAIT = re.compile(r"[%|a-zA-Z0-9_*-]+@[%|a-zA-Z0-9_-]+")


def broker_id_of(role: str, replica: int) -> int:
    """Return the id under which a replica registers: 0 as the master, its number + 1 as a slave."""
    return replica + 1 if role == SLAVE else 0


def raft_member(text: str) -> tuple[str, str]:
    """Return store id and address of an entry `STORE_ID@HOST:PORT` of `raft_members`.

    The id is empty if the entry has none. Raises ValueError if the address is invalid.
    """
    store_id, _, address = text.strip().rpartition("@")
    split_address(address)
    return store_id, address


def _check_waits(entries: list[str]) -> list[str]:
    for entry in entries:
        if not _WAIT.fullmatch(entry):
            raise ValueError(f"{entry!r} is not TOPIC@GROUP, for example orders@audit or pay*@audit")
    return entries


Waits = Annotated[Texts, AfterValidator(_check_waits)]


def _alias(name: str, rocketmq_key: str) -> AliasChoices:
    return AliasChoices(name, rocketmq_key)


class BrokerSettings(AccessSettings, MetricsSettings):
    """The settings of one broker process, including those of its store."""

    cluster_name: str = Field(
        default="DefaultCluster", validation_alias=_alias("cluster_name", "brokerClusterName")
    )
    """The cluster that the broker registers in."""
    broker_name: str = Field(default="broker-a", validation_alias=_alias("broker_name", "brokerName"))
    """The broker group's name."""
    replica: int = Field(default=0, ge=0)
    """The index of this replica in its group; it stays the same when the role changes."""
    role: Literal["master", "slave"] = "master"
    """The role in the group. A master registers with broker id 0, a slave with `replica` + 1."""
    group_epoch: int = Field(default=0, ge=0, lt=2**31)
    """The epoch of the group's present master, the same on all replicas and greater after each promotion;
    0: the group has no epochs. Nameservers and slaves refuse a master of a lower epoch.
    """
    slave_read_enable: Annotated[bool, LIVE] = Field(
        default=False, validation_alias=_alias("slave_read_enable", "slaveReadEnable")
    )
    """Whether a slave serves pulls. If false, it refuses them with SYSTEM_BUSY. If true on a master,
    consumers that are far behind are sent to a slave.
    """
    access_message_in_memory_max_ratio: Annotated[int, LIVE] = Field(
        default=40,
        ge=0,
        le=100,
        validation_alias=_alias("access_message_in_memory_max_ratio", "accessMessageInMemoryMaxRatio"),
    )
    """With `slave_read_enable`, a consumer is sent to a slave if the messages that it reads are followed by
    more bytes than this share of the memory, in percent.
    """

    listen_host: HostName = "127.0.0.1"
    """The address to bind to."""
    listen_port: int = Field(
        default=10911, ge=0, le=65535, validation_alias=_alias("listen_port", "listenPort")
    )
    """The port to listen on; 0 chooses a free port."""
    vip_channel: bool = True
    """Whether the broker also listens on RocketMQ's VIP port, `listen_port` - 2. Clients with
    `vipChannelEnabled` connect to it. Has no effect if that port is in use or `listen_port` is 0.
    """
    advertised_host: HostName | None = Field(
        default=None, validation_alias=_alias("advertised_host", "brokerIP1")
    )
    """The host name or address in routes and message ids; default: `listen_host`."""
    advertised_port: int | None = None
    """The port in routes and message ids; default: `listen_port`."""
    nameservers: Addresses = Field(
        default_factory=list, validation_alias=_alias("nameservers", "namesrvAddr")
    )
    """Addresses (`host:port`) of the nameservers to register with."""
    rebalancers: Addresses = Field(default_factory=list)
    """Addresses (`host:port`) of the rebalancers, which assign queues to the members of consumer groups."""

    store_root: Path = Field(default=Path("store"), validation_alias=_alias("store_root", "storePathRootDir"))
    """The directory of the store."""
    adopt_store: bool = False
    """Whether the broker may open a store that RocketMQ or another broker wrote."""
    store: StoreSettings = Field(default_factory=lambda: StoreSettings.model_validate({}))
    """The settings of the store."""

    auto_create_topics: Annotated[bool, LIVE] = Field(
        default=True, validation_alias=_alias("auto_create_topics", "autoCreateTopicEnable")
    )
    """Whether a send to an unknown topic creates the topic."""
    auto_create_groups: Annotated[bool, LIVE] = Field(
        default=True, validation_alias=_alias("auto_create_groups", "autoCreateSubscriptionGroup")
    )
    """Whether a consumer of an unknown group creates the group."""
    default_topic_queues: Annotated[int, LIVE] = Field(
        default=8, ge=1, le=65535, validation_alias=_alias("default_topic_queues", "defaultTopicQueueNums")
    )
    """The largest number of queues of an automatically created topic."""
    max_topics: Annotated[int, LIVE] = Field(default=50_000, ge=1)
    """The largest number of topics, retry and dead-letter topics included; a further one is refused."""
    max_groups: Annotated[int, LIVE] = Field(default=50_000, ge=1)
    """The largest number of consumer groups; a further one is refused."""
    lite_topic_quota_enabled: Annotated[bool, LIVE] = Field(
        default=False, validation_alias=_alias("lite_topic_quota_enabled", "enableLmqQuota")
    )
    """Whether `max_lite_topics` limits the lite topics."""
    max_lite_topics: Annotated[int, LIVE] = Field(
        default=20_000, ge=1, validation_alias=_alias("max_lite_topics", "maxLmqConsumeQueueNum")
    )
    """The largest number of lite topics with messages; one more is refused if there is a quota."""
    max_lite_subscriptions: Annotated[int, LIVE] = Field(
        default=100_000, ge=1, validation_alias=_alias("max_lite_subscriptions", "maxLiteSubscriptionCount")
    )
    """The largest number of lite topics that all clients together subscribe."""
    lite_subscription_timeout_ms: Annotated[int, LIVE] = Field(
        default=180_000,
        ge=1,
        validation_alias=_alias("lite_subscription_timeout_ms", "liteSubscriptionCheckTimeoutMills"),
    )
    """A client that has not synchronized its lite topics for this long loses them."""
    min_lite_ttl_ms: Annotated[int, LIVE] = Field(
        default=900_000, ge=0, validation_alias=_alias("min_lite_ttl_ms", "minLiteTTl")
    )
    """No lite topic expires sooner after its last message, nor sooner after the start of the broker."""
    lite_ttl_check_interval_ms: Annotated[int, LIVE] = Field(
        default=120_000, ge=1, validation_alias=_alias("lite_ttl_check_interval_ms", "liteTtlCheckInterval")
    )
    """How often lite topics that have expired are looked for."""
    permission: Annotated[int, LIVE] = Field(
        default=6, ge=0, le=7, validation_alias=_alias("permission", "brokerPermission")
    )
    """The permission of the whole broker, a sum of 4 (read) and 2 (write). Without 2, routes show its topics
    as read-only, so that producers choose other brokers; sends that still arrive are accepted, except to
    ordered topics.
    """
    region_id: str = Field(default="DefaultRegion", validation_alias=_alias("region_id", "regionId"))
    """The region written into the properties of each message (MSG_REGION)."""
    trace_on: bool = Field(default=True, validation_alias=_alias("trace_on", "traceOn"))
    """Whether send responses ask clients to write message traces (TRACE_ON)."""
    consume_new_topics_from_start: Annotated[bool, LIVE] = True
    """Whether a group without a committed offset starts at offset 0 of a queue whose first message is still
    stored, as with RocketMQ. If false, the client chooses the starting offset.
    """

    retention_waits_for: Annotated[Waits, LIVE] = Field(default_factory=list)
    """Consumer groups for which log files are kept until they have acknowledged the messages, unless the disk
    is fuller than `disk_force_clean_percent`: `TOPIC@GROUP`, where `*` in TOPIC stands for any characters.
    """

    transaction_timeout_ms: Annotated[int, LIVE] = Field(
        default=6000, ge=0, validation_alias=_alias("transaction_timeout_ms", "transactionTimeOut")
    )
    """How old a message of a transaction must be before the broker checks the transaction. A message with
    property CHECK_IMMUNITY_TIME_IN_SECONDS has its own limit.
    """
    transaction_check_interval_ms: int = Field(
        default=30_000,
        ge=1,
        validation_alias=_alias("transaction_check_interval_ms", "transactionCheckInterval"),
    )
    """The interval between checks of transactions that are not committed or rolled back."""
    transaction_check_max: Annotated[int, LIVE] = Field(
        default=15, ge=0, validation_alias=_alias("transaction_check_max", "transactionCheckMax")
    )
    """After this many checks of a transaction, its message is moved to TRANS_CHECK_MAX_TIME_TOPIC."""

    timer_wheel_enable: bool = Field(
        default=True, validation_alias=_alias("timer_wheel_enable", "timerWheelEnable")
    )
    """Whether messages may set their own delivery time (timer messages)."""
    timer_max_delay_s: Annotated[int, LIVE] = Field(
        default=259_200, ge=1, validation_alias=_alias("timer_max_delay_s", "timerMaxDelaySec")
    )
    """The longest time, in seconds, until the delivery of a timer message."""
    timer_roll_window_slots: int = Field(
        default=172_800,
        ge=2,
        le=604_740,
        validation_alias=_alias("timer_roll_window_slots", "timerRollWindowSlot"),
    )
    """A timer message that is due later than this number of seconds is stored again after that time. It must
    be shorter than `file_reserved_time_h`, because CommitLog files with pending messages are deleted too.
    """
    timer_log_file_bytes: int = Field(
        default=100 << 20,
        ge=4096,
        validation_alias=_alias("timer_log_file_bytes", "mappedFileSizeTimerLog"),
    )
    """Size of a timer log file in bytes; cannot be changed once the store has one."""
    timer_flush_interval_ms: int = Field(
        default=1000, ge=1, validation_alias=_alias("timer_flush_interval_ms", "timerFlushIntervalMs")
    )
    """The interval between saves of the timer's progress."""

    long_polling: Annotated[bool, LIVE] = Field(
        default=True, validation_alias=_alias("long_polling", "longPollingEnable")
    )
    """Whether the broker holds a pull at the end of a queue until messages arrive, as long as the client
    requests. If false, it holds a pull 1 s at most, as in RocketMQ (shortPollingTimeMills).
    """
    pop_dead_letters: Annotated[bool, LIVE] = False
    """Whether a popped message becomes a dead letter of its group when it was not acked after `retryMaxTimes`
    retries. If false, it is delivered again without limit: RocketMQ leaves this to consumers and proxies.
    """
    priority_order_asc: Annotated[bool, LIVE] = Field(
        default=True, validation_alias=_alias("priority_order_asc", "priorityOrderAsc")
    )
    """Whether a larger number is more urgent in topics of type PRIORITY; if false, queue 0 is the first."""
    pop_from_retry_probability_for_priority: Annotated[int, LIVE] = Field(
        default=0,
        ge=0,
        le=100,
        validation_alias=_alias(
            "pop_from_retry_probability_for_priority", "popFromRetryProbabilityForPriority"
        ),
    )
    """Percentage of the pops of a topic of type PRIORITY that read its retry topic first instead of last."""
    refuse_mixed_request_modes: Annotated[bool, LIVE] = False
    """Whether a pull of a topic is refused that the group pops. Both begin at the same committed offsets, so
    such a group gets messages twice. If false, the broker only logs `mixed_request_modes`.
    """
    max_held_pulls: int = Field(default=100_000, ge=1)
    """The largest number of held pulls; further pulls at the end of a queue are refused."""
    max_hold_ms: Annotated[int, LIVE] = Field(default=20_000, ge=0)
    """The longest time that the broker holds a pull. A pull of a RocketMQ client that requests 5 s or more is
    held 5 s longer than requested (up to this limit): RocketMQ's brokers check held pulls every 5 s.
    """
    pull_max_messages: Annotated[int, LIVE] = Field(
        default=32, ge=1, validation_alias=_alias("pull_max_messages", "maxTransferCountOnMessageInMemory")
    )
    """The largest number of messages in the response to a RocketMQ client's pull."""
    pull_max_bytes: Annotated[int, LIVE] = Field(
        default=256 * 1024,
        ge=1,
        validation_alias=_alias("pull_max_bytes", "maxTransferBytesOnMessageInMemory"),
    )
    """The largest number of bytes in the response to a RocketMQ client's pull."""
    sync_flush_timeout_ms: int = Field(
        default=5000, ge=1, validation_alias=_alias("sync_flush_timeout_ms", "syncFlushTimeout")
    )
    """Under sync flush, how long a send waits for the disk before it gets FLUSH_DISK_TIMEOUT."""

    send_queue_capacity: Annotated[int, LIVE] = Field(
        default=10_000, ge=1, validation_alias=_alias("send_queue_capacity", "sendThreadPoolQueueCapacity")
    )
    """How many sends may wait for the disk before further sends are refused (SYSTEM_BUSY)."""
    max_sends_per_s: Annotated[int, LIVE] = Field(default=0, ge=0)
    """How many send requests per second are accepted; further ones are refused (SYSTEM_BUSY). 0: no limit."""
    pull_queue_capacity: int = Field(
        default=100_000, ge=1, validation_alias=_alias("pull_queue_capacity", "pullThreadPoolQueueCapacity")
    )
    """How many reads of pages that are not in memory may wait for one of the `cold_read_threads`."""
    wait_in_pull_queue_ms: int = Field(
        default=5_000, ge=1, validation_alias=_alias("wait_in_pull_queue_ms", "waitTimeMillsInPullQueue")
    )
    """How long a read waits for the disk, or for messages to be dispatched, before it is refused."""
    cold_read_threads: int = Field(default=4, ge=1, le=64)
    """Number of threads that load pages from the disk for reads."""
    os_page_cache_busy_ms: Annotated[int, LIVE] = Field(
        default=1_000, ge=1, validation_alias=_alias("os_page_cache_busy_ms", "osPageCacheBusyTimeOutMills")
    )
    """If the event loop stalled for this long, the sends that waited meanwhile are refused (SYSTEM_BUSY)."""
    max_pending_requests: Annotated[int, LIVE] = Field(default=32_768, ge=1)
    """How many requests of one connection may be without a response, held pulls included."""
    max_unread_bytes: Annotated[int, LIVE] = Field(default=512 * 1024 * 1024, ge=1)
    """Bytes of responses that all clients together may leave unread before pulls are refused. At twice the
    limit the broker stops reading from connections with unread responses; at three times it closes those
    with the most unread bytes.
    """
    unread_timeout_ms: int = Field(default=60_000, ge=1)
    """A connection that reads no byte of its unread responses for this long is closed."""
    idle_timeout_ms: int = Field(default=120_000, ge=1)
    """A connection without traffic for this long is closed."""
    max_connections: int = Field(default=20_000, ge=1)
    """The largest number of open connections. Over it, idle ones are closed for new ones."""
    max_connections_per_address: int = Field(default=0, ge=0)
    """The largest number of open connections of one IP address, or IPv6 network (/64); 0: no limit. Many
    clients may share one.
    """

    replication: Literal["", "async", "sync", "raft"] = ""
    """How the broker, as a master, sends its CommitLog to slaves: `async`: without waiting for them; `sync`:
    a send is acknowledged, and its message visible, when `in_sync_replicas` replicas have it. Empty: the
    HA port is closed. `raft`: the broker is a replica of the group in `raft_members`, which elects its
    master.
    """
    raft_members: Texts = Field(default_factory=list)
    """With `replication: raft`, the first replicas of the group in the order of their numbers, the same list
    on all of them: `STORE_ID@HOST:PORT`. The first start of a replica without a store id creates its store.
    Empty: the replica joins a running group when `raymq replica add` or `replace` names it.
    """
    route_refresh_ms: int = Field(default=30_000, ge=0)
    """With `replication: raft`, how long a leader that has transferred the leadership forwards requests to
    the new one: the longest time between two route refreshes of a client (`pollNameServerInterval`).
    """
    in_sync_replicas: int = Field(default=2, ge=2, le=16)
    """With `replication: sync`, how many replicas must have a message, the master included. While fewer are
    connected, sends are refused. Slaves are counted by their IP address.
    """
    slave_timeout_ms: int = Field(
        default=3000, ge=1, validation_alias=_alias("slave_timeout_ms", "slaveTimeout")
    )
    """With `replication: sync`, how long a send waits for slaves before it gets FLUSH_SLAVE_TIMEOUT."""
    ha_listen_port: int = Field(
        default=0, ge=0, le=65535, validation_alias=_alias("ha_listen_port", "haListenPort")
    )
    """The HA port, to which slaves connect; 0: `listen_port` + 1."""
    ha_allow_unauthenticated: bool = False
    """Whether the HA port is open although `authentication_enabled` is set. RocketMQ's HA protocol has
    neither authentication nor encryption: a process that can connect to the port can read all messages.
    """
    ha_tls: bool = False
    """Whether the HA port uses TLS; the same on all replicas of a group. It needs `tls_certificate`,
    `tls_key` and `tls_ca`: a slave must present a certificate that `tls_ca` has signed, so this must be a CA
    of the cluster's processes alone, and a broker does not start if `tls_client_ca` is the same. Then the
    port is open with `authentication_enabled` too. RocketMQ's brokers cannot connect to it.
    """
    ha_max_bytes_per_s: Annotated[int, LIVE] = Field(default=0, ge=0)
    """How many bytes per second of the CommitLog all slaves together get; 0: no limit."""

    register_interval_ms: int = Field(
        default=30_000, ge=1, validation_alias=_alias("register_interval_ms", "registerNameServerPeriod")
    )
    """The interval between registrations; a change is registered immediately."""
    persist_offsets_interval_ms: Annotated[int, LIVE] = Field(
        default=5000,
        ge=1,
        validation_alias=_alias("persist_offsets_interval_ms", "flushConsumerOffsetInterval"),
    )
    """The interval between saves of the consumer offsets."""
    client_expiry_ms: int = Field(
        default=120_000, ge=1, validation_alias=_alias("client_expiry_ms", "channelExpiredTimeout")
    )
    """A client that sends no heartbeat for this long is removed."""
    busy_poll_us: int = Field(default=100, ge=0, le=10_000)
    """How long the event loop polls for the next request before it sleeps, if requests arrive one by one
    and soon after one another. Replicas of a Raft group do not poll.
    """
    compiled_turn: bool = True
    """Whether ordinary messages and batches that arrive together are appended by one call of compiled code.
    Sends with a delay, a transaction or another special property, and signed sends, are always handled one by
    one.
    """
    rebalancer_timeout_ms: int = Field(default=3000, ge=1)
    """The time-out of a request to a rebalancer."""
    start_timeout_ms: int = Field(default=10_000, ge=0)
    """How long a start retries while another process holds the port or the store."""

    authorization_enabled: bool = Field(
        default=False, validation_alias=_alias("authorization_enabled", "authorizationEnabled")
    )
    """Whether the policies of the signing user must allow a request (mqadmin's createAcl). Needs
    `authentication_enabled`.
    """

    @model_validator(mode="after")
    def _check_authorization(self) -> Self:
        if self.authorization_enabled and not self.authentication_enabled:
            raise ValueError(
                "authorization_enabled needs authentication_enabled: without signatures a client could use "
                "the name of any user"
            )
        return self

    @model_validator(mode="after")
    def _check_raft(self) -> Self:
        members = [raft_member(each) for each in self.raft_members]
        if self.replication != RAFT:
            if members:
                raise ValueError("raft_members has an effect only with replication: raft; remove it")
            return self
        problems = {
            f"raft_members has {len(members)} replicas: a majority needs 3 or more": 0 < len(members) < 3,
            f"raft_members has no replica {self.replica}": 0 < len(members) <= self.replica,
            "two replicas in raft_members have one address": len({each for _, each in members})
            < len(members),
            "it needs store.flush: sync, because a majority must not lose what it has acknowledged": (
                self.store.flush != "sync"
            ),
            "role must not be set: the group elects its master": self.role != "master",
            "group_epoch must not be set: the term of the group replaces it": bool(self.group_epoch),
            "adopt_store must not be set: the store of another broker cannot be a member": self.adopt_store,
        }
        for problem, is_present in problems.items():
            if is_present:
                raise ValueError(f"replication: raft: {problem}")
        return self

    @model_validator(mode="after")
    def _check_ha_tls(self) -> Self:
        if self.ha_tls and (self.tls_certificate is None or self.tls_ca is None):
            raise ValueError(
                "ha_tls needs tls_certificate, tls_key and tls_ca, with which the replicas of a group verify "
                "each other"
            )
        return self

    @property
    def uses_ha_tls(self) -> bool:
        """True if replicas of this broker connect to each other by TLS, also after a promotion."""
        return self.ha_tls and (self.role == SLAVE or self.replication in ("async", "sync"))

    @property
    def logs_progress(self) -> bool:
        """True if acks and commits are logged, and answered when other replicas have them."""
        return self.replication in ("sync", RAFT) and self.role != SLAVE

    @property
    def host(self) -> str:
        """The host name or address in routes: `advertised_host`, else `listen_host`."""
        return self.advertised_host or self.listen_host
