"""Client settings. Names and defaults follow RocketMQ's client; names of times and sizes end in the unit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Literal, get_args

from actors.strategies import make_strategy
from actors.transport.clients.proofs import RequestSigner, client_signer
from actors.transport.tls.contexts import ClientTls
from actors.wire.signing import Credentials, CredentialsInvalid, read_credentials
from cluster.client.errors import ConfigInvalid
from cluster.client.times import check_plausible
from cluster.client.tls import TlsConfig
from cluster.client.trace.trace_records import TRACE_TOPIC
from store.message.hosts import split_address
from store.message.validate import check_topic
from store.store_errors import MessageInvalid

if TYPE_CHECKING:
    from cluster.client.hooks import CallHook, ConsumeHook, SendHook

Nameservers = str | Sequence[str] | Callable[[], Sequence[str]]
"""`"host:port;host:port"`, a list of `"host:port"`, or a function that returns such a list.

The client calls the function before each request to a nameserver.
"""

DEFAULT_NAMESERVERS = "127.0.0.1:9876"
NAMESERVERS_ENV = "RAYMQ_NAMESERVERS"
SIGNATURE_ENV = "RAYMQ_SIGNATURE"
SIGNATURES = ("raymq", "rocketmq")
CREDENTIALS_ENV = "RAYMQ_CREDENTIALS"

MAX_MS = 1 << 42  # longer durations would overflow timers; as a time, it is in the year 2109
KIB = 1024
MIB = 1024 * 1024

# `require_types` knows these types by their names.
Positive = int
NotNegative = int
Retry = Literal["in_place", "broker"]
MessageModel = Literal["clustering", "broadcasting"]
AutoOffset = Literal["earliest", "latest", "timestamp"]
PopFrom = Literal["earliest", "latest"]
Compression = Literal["zlib", "lz4", "zstd"]
MAX_RECONSUME_TIMES = 16  # RocketMQ's default, which it writes as -1
COMPRESSION_LEVELS = {"zlib": range(10), "lz4": range(17), "zstd": range(1, 23)}


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings that all clients have.

    Attributes:
        nameservers: Addresses of the nameservers. None: the environment variable RAYMQ_NAMESERVERS, else
            127.0.0.1:9876.
        instance_name: Part of the client id. Empty: the process id.
        request_timeout_ms: Default timeout of a request to a nameserver or broker.
        route_refresh_ms: Interval at which the client refreshes the routes of its topics.
        heartbeat_ms: Interval at which the client sends heartbeats to brokers.
        sticky_broker_ms: How long the queues of a broker that left the routes stay in the hash of keyed
            sends. Keys keep their queues while the broker restarts.
        call_hooks: Hooks called before and after each request.
        access_key: Name of the user as which requests are signed, if the brokers require authentication.
        secret_key: Secret key of this user; it is not part of the repr. Without both keys, the environment
            variable RAYMQ_CREDENTIALS may name a file that contains them (`raymq user credentials`).
        signature: "raymq": requests are signed with their code, fields and time (`actors.wire.signing`).
            "rocketmq": RocketMQ's signature, which its brokers require. Empty: the environment variable
            RAYMQ_SIGNATURE, else "raymq".
        tls: TLS settings of the connections. None: the environment variables RAYMQ_TLS_CA,
            RAYMQ_TLS_VERIFY, RAYMQ_TLS_CERTIFICATE and RAYMQ_TLS_KEY, else connections without TLS.
    """

    nameservers: Nameservers | None = None
    instance_name: str = ""
    request_timeout_ms: Positive = 3_000
    route_refresh_ms: Positive = 30_000
    heartbeat_ms: Positive = 30_000
    sticky_broker_ms: NotNegative = 120_000
    call_hooks: Sequence[CallHook] = ()
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    signature: str = ""
    tls: TlsConfig | None = None

    def __post_init__(self) -> None:
        """Validate the settings. Raises ConfigInvalid if one of them is invalid."""
        require_types(self)
        keys: tuple[object, object] = (self.access_key, self.secret_key)
        if not all(isinstance(key, str) for key in keys) or bool(keys[0]) != bool(keys[1]):
            raise ConfigInvalid("access_key and secret_key must both be strings: give both or neither")
        if self.signature not in ("", *SIGNATURES):
            raise ConfigInvalid(f"signature is {self.signature!r}: use {' or '.join(SIGNATURES)}")
        if self.tls is not None and not isinstance(self.tls, TlsConfig):
            raise ConfigInvalid(f"tls is {self.tls!r}: give a TlsConfig, or None")

    def credentials(self) -> Credentials | None:
        """Return the keys to sign requests with, or None. Raises ConfigInvalid if their file is invalid."""
        if self.access_key:
            return Credentials(self.access_key, self.secret_key)
        path = os.environ.get(CREDENTIALS_ENV)
        if not path:
            return None
        try:
            return read_credentials(Path(path).expanduser())
        except CredentialsInvalid as error:
            raise ConfigInvalid(f"{CREDENTIALS_ENV}: {error}") from None

    def request_signer(self) -> RequestSigner | None:
        """Return the signer of requests, or None without keys. Raises ConfigInvalid if these are invalid.

        With the keys of the inner user, brokers must prove that they are of the cluster.
        """
        credentials = self.credentials()
        if credentials is None:
            return None
        version = self.signature or os.environ.get(SIGNATURE_ENV) or "raymq"
        if version not in SIGNATURES:
            raise ConfigInvalid(f"{SIGNATURE_ENV} is {version!r}: use {' or '.join(SIGNATURES)}")
        return client_signer(credentials, self.addresses, version == "rocketmq")

    def load_tls(self) -> ClientTls | None:
        """Load the TLS files; None if TLS is not configured. Raises ConfigInvalid if a file is invalid."""
        tls = self.tls or TlsConfig.from_environment()
        return None if tls is None else tls.load()

    def addresses(self) -> list[str]:
        """Return the current nameserver addresses. Raises ConfigInvalid if the list is empty or malformed."""
        given = self.nameservers
        if given is None:
            given = os.environ.get(NAMESERVERS_ENV, DEFAULT_NAMESERVERS)
        if callable(given):
            given = given()
        return parse_addresses(given)


@dataclass(frozen=True, slots=True)
class ProducerConfig(ClientConfig):
    """Settings of a producer.

    Attributes:
        group: Name of the producer group.
        namespace: Namespace of the topics and of the group: topic `orders` is `NAMESPACE%orders` in the
            cluster. The application does not see the prefix, except in texts of errors and logs.
        send_timeout_ms: Deadline of a send that may use any queue, including its retries.
        delivery_timeout_ms: Deadline of a send that is bound to one queue (by a sharding key, a selector, a
            given queue, or as part of a table). The default is long enough for a broker restart.
        retry_times_when_send_failed: Number of retries of a send that may use any queue.
        default_topic_queue_nums: Number of queues of a topic that a broker creates for the first send to it.
        max_message_bytes: Maximum size of a body after compression.
        compress_over_bytes: Bodies of this size or more are compressed. Batches and tables are not.
        compression: Compression codec; None disables compression.
        compression_level: Level of the codec.
        sticky_key_groups: Consumer groups for which the order of each sharding key is kept when the queues of
            a topic change: the key moves to another queue once these groups have consumed its messages. All
            producers of a topic should use the same groups. Empty: keys move at once, as in RocketMQ.
        send_latency_fault_enable: Sends that may use any queue avoid brokers that were slow or failed.
        table_batch_bytes: Maximum size of the records in one request of a table send.
        table_buffer_bytes: Maximum size of all records of table sends that are in flight.
        send_hooks: Hooks called before and after each send.
        trace: Write a trace of each sent message to `trace_topic`, in RocketMQ's format. Traces that cannot
            be sent are dropped.
        trace_topic: The topic of message traces.
    """

    group: str = "DEFAULT_PRODUCER"
    namespace: str = ""
    send_timeout_ms: Positive = 3_000
    delivery_timeout_ms: Positive = 60_000
    retry_times_when_send_failed: NotNegative = 2
    default_topic_queue_nums: NotNegative = 4
    max_message_bytes: Positive = 4 * MIB
    compress_over_bytes: Positive = 4 * KIB
    compression: Compression | None = "zlib"
    compression_level: int = 5
    sticky_key_groups: Sequence[str] = ()
    send_latency_fault_enable: bool = False
    table_batch_bytes: Positive = 1 * MIB
    table_buffer_bytes: Positive = 48 * MIB
    send_hooks: Sequence[SendHook] = ()
    trace: bool = False
    trace_topic: str = TRACE_TOPIC

    def __post_init__(self) -> None:
        """Validate the settings. Raises ConfigInvalid if one of them is invalid."""
        ClientConfig.__post_init__(self)
        _require_topic("trace_topic", self.trace_topic)
        self._check_compression()

    def _check_compression(self) -> None:
        if self.compression is None:
            return
        levels = COMPRESSION_LEVELS.get(self.compression) if isinstance(self.compression, str) else None
        if levels is None:
            known = ", ".join(COMPRESSION_LEVELS)
            raise ConfigInvalid(f"compression is {self.compression!r}: give one of {known}, or None")
        if self.compression_level not in levels:
            raise ConfigInvalid(
                f"compression_level is {self.compression_level}: "
                f"{self.compression} accepts {levels[0]} to {levels[-1]}"
            )


@dataclass(frozen=True, slots=True)
class ConsumerConfig(ClientConfig):
    """Settings of the pull consumer and the push consumer.

    Attributes:
        group: Name of the consumer group.
        namespace: Namespace of the topics and of the group: topic `orders` is `NAMESPACE%orders` in the
            cluster. The application does not see the prefix, except in texts of errors and logs.
        consume_from: Where the group starts to read a queue for which it has no committed offset. None: the
            beginning; with broadcasting the end, as in RocketMQ.
        consume_timestamp_ms: With `consume_from="timestamp"`: start at the first message stored at or after
            this time, in milliseconds since the epoch. None: half an hour before the consumer starts, as in
            RocketMQ.
        auto_commit: The client commits the offsets of consumed messages by itself.
        commit_interval_ms: Interval of automatic commits.
        commit_timeout_ms: How long a commit is retried while its broker is unreachable. The default is
            longer than a broker restart.
        lease_ms: The queues of a member are assigned to another one if the member sends nothing for this
            long.
        sync_interval_ms: Interval at which a member renews its leases.
        strategy: How the queues are assigned to the members: `averagely`, `averagely_by_circle`,
            `consistent_hash`, `machine_room:ROOM,…`, `machine_room_nearby[:INNER]` or
            `config:TOPIC/BROKER/ID,…`. The setting of the group's first member is used.
        allow_subscription_change: The subscription of this member may differ from those of the group's other
            members.
        self_assign_after_ms: If no rebalancer responds for this long, members assign the queues themselves.
        long_poll_ms: How long a broker holds a pull request while the queue has no new message.
        fetch_bytes: Maximum size of the messages in one response.
        prefetch_bytes: Maximum size of the fetched messages that wait for the application.
        max_poll_interval_ms: The queues of a pull consumer are assigned to other members if it does not poll
            for this long. Its next poll joins the group again; a `commit` of the messages polled before
            raises CommitFenced.
        close_timeout_ms: Maximum time that the push consumer's `close` waits for running listeners.
    """

    group: str = "DEFAULT_CONSUMER"
    namespace: str = ""
    consume_from: AutoOffset | None = None
    consume_timestamp_ms: int | None = None
    auto_commit: bool = True
    commit_interval_ms: Positive = 5_000
    commit_timeout_ms: NotNegative = 30_000
    lease_ms: Positive = 15_000
    sync_interval_ms: Positive = 4_000
    strategy: str | None = None
    allow_subscription_change: bool = False
    self_assign_after_ms: NotNegative = 30_000
    long_poll_ms: NotNegative = 15_000
    fetch_bytes: Positive = 4 * MIB
    prefetch_bytes: Positive = 32 * MIB
    max_poll_interval_ms: Positive = 300_000
    close_timeout_ms: NotNegative = 30_000

    def __post_init__(self) -> None:
        """Validate the settings. Raises ConfigInvalid if one of them is invalid."""
        ClientConfig.__post_init__(self)
        if self.consume_timestamp_ms is not None:
            check_plausible("consume_timestamp_ms", self.consume_timestamp_ms, time.time_ns() // 1_000_000)
        if self.consume_timestamp_ms is not None and self.consume_from != "timestamp":
            raise ConfigInvalid(
                "consume_timestamp_ms needs consume_from='timestamp', "
                f"but consume_from is {self.consume_from!r}"
            )
        if self.strategy is not None:
            try:
                make_strategy(self.strategy)
            except ValueError as error:
                raise ConfigInvalid(f"strategy: {error}") from error
        if self.sync_interval_ms * 2 > self.lease_ms:
            raise ConfigInvalid(
                f"sync_interval_ms {self.sync_interval_ms} is more than half of lease_ms {self.lease_ms}: "
                "one lost request would let the lease expire; lower sync_interval_ms or raise lease_ms"
            )

    @property
    def start_from(self) -> AutoOffset:
        """Return `consume_from`, or its default."""
        return self.consume_from or "earliest"


@dataclass(frozen=True, slots=True)
class PushConfig(ConsumerConfig):
    """Settings of a push consumer.

    The consumer stops fetching a queue while one of the queue's `max_cached_…` limits or `max_offset_span` is
    reached.

    Attributes:
        message_model: `clustering`: the members of the group share the queues. `broadcasting`: each member
            gets all messages, and keeps its offsets in a file on its machine. The file belongs to
            `instance_name`, which must differ for consumers of a group on one machine.
        local_offset_dir: Directory of the offset files of broadcasting consumers (RocketMQ
            rocketmq.client.localOffsetStoreDir).
        ordered: The listener gets the messages of each queue in order, one call after another. A message that
            failed is retried before the queue continues.
        consume_threads: Number of threads that call the listener.
        consume_batch: Maximum number of messages in one call of the listener.
        max_cached_messages: Limit of fetched, unfinished messages of a queue (RocketMQ
            pullThresholdForQueue).
        max_cached_bytes: Limit of their size (RocketMQ pullThresholdSizeForQueue).
        max_cached_messages_for_topic: Limit for all queues of a topic in this consumer; the queues share it
            equally (RocketMQ pullThresholdForTopic). None: no limit.
        max_cached_bytes_for_topic: The same in bytes (RocketMQ pullThresholdSizeForTopic).
        max_offset_span: Limit of the distance from the first to the last unfinished offset of a queue
            (RocketMQ consumeConcurrentlyMaxSpan).
        retry: `in_place`: the listener is called again after `retry_backoff_ms`, and the offset is not
            committed meanwhile. `broker`: a message that failed is sent back to its broker, as RocketMQ's
            clients do. The broker delivers it again through the retry topic of the group after a delay, to
            any member of the group.
        max_reconsume_times: A message that failed is delivered again at most this many times, then it is
            sent to the dead-letter queue. -1: 16, as in RocketMQ. A broadcasting consumer discards it
            instead.
        retry_backoff_ms: Delays before the first, second, … redelivery; the last delay repeats. With
            `retry="broker"`, only for messages that the broker did not accept.
        consume_timeout_ms: Messages that a listener has not finished after this time are sent back to the
            broker, which delivers them again later (RocketMQ consumeTimeout). Ordered consumers wait without
            limit, because a later delivery would be out of order.
        consume_hooks: Hooks called before and after each call of the listener.
        trace: Write a trace of each consumed message to `trace_topic`, in RocketMQ's format. Traces that
            cannot be sent are dropped.
        trace_topic: The topic of message traces.
    """

    message_model: MessageModel = "clustering"
    local_offset_dir: str = "~/.rocketmq_offsets"
    ordered: bool = False
    consume_threads: Positive = 20
    consume_batch: Positive = 1
    max_cached_messages: Positive = 1_000
    max_cached_bytes: Positive = 100 * MIB
    max_cached_messages_for_topic: Positive | None = None
    max_cached_bytes_for_topic: Positive | None = None
    max_offset_span: Positive = 2_000
    retry: Retry = "in_place"
    max_reconsume_times: int = MAX_RECONSUME_TIMES
    retry_backoff_ms: Sequence[int] = field(default=(100, 500, 1_000, 5_000, 10_000, 30_000))
    consume_timeout_ms: Positive = 15 * 60_000
    fetch_bytes: Positive = 1 * MIB
    consume_hooks: Sequence[ConsumeHook] = ()
    trace: bool = False
    trace_topic: str = TRACE_TOPIC

    def __post_init__(self) -> None:
        """Validate the settings. Raises ConfigInvalid if one of them is invalid."""
        ConsumerConfig.__post_init__(self)
        _require_topic("trace_topic", self.trace_topic)
        if self.retry == "broker" and (self.ordered or self.is_broadcasting):
            setting = "ordered=True" if self.ordered else "message_model='broadcasting'"
            raise ConfigInvalid(f"retry='broker' cannot be used with {setting}: give retry='in_place'")
        _require_integer("max_reconsume_times", self.max_reconsume_times, -1)
        if self.max_reconsume_times == -1:
            object.__setattr__(self, "max_reconsume_times", MAX_RECONSUME_TIMES)
        delays_ms = self.retry_backoff_ms
        if not delays_ms or not all(isinstance(each, int | float) and each >= 0 for each in delays_ms):
            raise ConfigInvalid(
                f"retry_backoff_ms is {delays_ms!r}: give at least one delay, each 0 or more, in a list"
            )

    @property
    def is_broadcasting(self) -> bool:
        """Return True if each member of the group gets all messages."""
        return self.message_model == "broadcasting"

    @property
    def start_from(self) -> AutoOffset:
        """Return `consume_from`; if it is None, "latest" for a broadcasting consumer, else "earliest"."""
        return self.consume_from or ("latest" if self.is_broadcasting else "earliest")


_KINDS: Mapping[str, tuple[type | UnionType, str]] = {
    "str": (str, "it must be a string"),
    "bool": (bool, "give True or False"),
    "Sequence": (list | tuple, "give a list"),
}
_LEAST = {"int": None, "Positive": 1, "NotNegative": 0}
_CHOICES = {"Retry": Retry, "MessageModel": MessageModel, "AutoOffset": AutoOffset, "PopFrom": PopFrom}


def require_types(config: ClientConfig) -> None:
    """Raise ConfigInvalid if a setting has another type than its annotation, or is out of its range."""
    for each in fields(config):
        value = getattr(config, each.name)
        kind, _, optional = str(each.type).partition("[")[0].partition(" | ")
        if (value is None and optional) or each.name in ("access_key", "secret_key"):
            continue
        if kind in _LEAST:
            _require_integer(each.name, value, _LEAST[kind])
        elif kind in _CHOICES:
            *others, last = map(repr, get_args(_CHOICES[kind]))
            if value not in get_args(_CHOICES[kind]):
                raise ConfigInvalid(f"{each.name} is {value!r}: give {', '.join(others)} or {last}")
        elif kind in _KINDS and not isinstance(value, _KINDS[kind][0]):
            raise ConfigInvalid(f"{each.name} is {value!r}: {_KINDS[kind][1]}")


def _require_integer(name: str, value: object, least: int | None) -> None:
    if type(value) is not int:
        raise ConfigInvalid(f"{name} is {value!r}: it must be an integer")
    if least is not None and value < least:
        bound = "greater than 0" if least == 1 else f"{least} or more"
        raise ConfigInvalid(f"{name} is {value}: it must be {bound}")
    if least is not None and name.endswith("_ms") and value > MAX_MS:
        raise ConfigInvalid(f"{name} is {value}: it must be at most {MAX_MS:,}")


def _require_topic(name: str, topic: str) -> None:
    try:
        check_topic(topic)
    except MessageInvalid as error:
        raise ConfigInvalid(f"{name}: {error}") from error


def parse_addresses(given: str | Sequence[str]) -> list[str]:
    """Return the addresses in `given`: a list, or one string with addresses separated by ";" or ",".

    Raises ConfigInvalid if there is no address, or one is not `host:port`.
    """
    parts: object = given.replace(",", ";").split(";") if isinstance(given, str) else given
    if not isinstance(parts, Iterable) or not all(isinstance(part, str) for part in parts):
        raise ConfigInvalid(f'nameservers is {given!r}: give "host:port;host:port" or a list of "host:port"')
    addresses = [part.strip() for part in parts if part.strip()]
    if not addresses:
        raise ConfigInvalid('no nameserver given: pass nameservers="host:9876"')
    for address in addresses:
        try:
            split_address(address)
        except ValueError as error:
            raise ConfigInvalid(f"nameserver address {error}") from None
    return addresses
