"""Bodies about routes and registration: TopicRouteData, ClusterInfo, TopicList, RegisterBrokerBody."""

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

import orjson
from msgspec.structs import replace

from actors.wire.bodies.body import Body, ShapedBody, wire
from actors.wire.codes import ResponseCode
from actors.wire.command import Buffer
from actors.wire.header import (
    ITEMS_MAX,
    AnyListOf,
    AnyTableOf,
    Int,
    ListOf,
    Long,
    Name,
    Text,
    Topic,
    too_long,
)
from actors.wire.json_fields import KEPT_BYTES_MAX, check_values, conform, get_object, load_request
from actors.wire.remoting_errors import Refused
from store.message.data_version import DataVersion
from store.message.validate import MAX_RETRY_TOPIC_CHARS

PERM_PRIORITY: Final = 8
PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1
MASTER_ID: Final = 0

MAX_INFLATED_BYTES: Final = 64 * 1024 * 1024
REGISTERED_TOPICS_MAX: Final = 200_000
DATA_VERSION_VALUES_MAX: Final = 100
_VALUES_OF_TOPIC: Final = 32
_UNQUOTED_BYTES_MAX: Final = 1024 * 1024
"""In longer registrations all keys must be quoted, as RocketMQ writes them unless there are static topics."""
_I32: Final = struct.Struct(">i")


def read_data_version(content: Mapping[str, Any]) -> DataVersion:
    """Return the data version in decoded JSON. Raises Refused if it is invalid."""
    return conform(content, DataVersion, "DataVersion")


def encode_data_version(version: DataVersion) -> bytes:
    """Return a body that consists of a data version."""
    return orjson.dumps(version.to_json())


class QueueData(Body):
    """Number of read and write queues of a topic on one broker, and the topic's permissions."""

    broker_name: Name = ""
    read_queue_nums: Int = 0
    write_queue_nums: Int = 0
    perm: Int = 0
    topic_sys_flag: Int = 0

    @property
    def is_readable(self) -> bool:
        """Whether the topic is readable on this broker."""
        return self.perm & PERM_READ != 0


class BrokerData(Body):
    """Addresses of a broker's replicas by broker id; id 0 is the master."""

    cluster: Name = ""
    broker_name: Name = ""
    broker_addrs: AnyTableOf[Long, Name] = wire(default_factory=dict)
    enable_acting_master: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the JSON fields, with the broker ids as strings, which Java clients accept."""
        return {
            "brokerAddrs": {str(each): self.broker_addrs[each] for each in sorted(self.broker_addrs)},
            "brokerName": self.broker_name,
            "cluster": self.cluster,
            "enableActingMaster": self.enable_acting_master,
        }


class TopicRouteData(ShapedBody):
    """Response body of GET_ROUTEINFO_BY_TOPIC: the brokers and queues of one topic."""

    queue_datas: AnyListOf[QueueData] = wire(default_factory=list)
    broker_datas: AnyListOf[BrokerData] = wire(default_factory=list)
    order_topic_conf: Text | None = None
    filter_servers: AnyTableOf[Name, AnyListOf[Name]] = wire(name="filterServerTable", default_factory=dict)

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Return the route in `body`. Raises Refused if it is invalid.

        Accepts `topicSynFlag`, as RocketMQ 4.x misspells `topicSysFlag`.
        """
        return super().decode(bytes(body).replace(b'"topicSynFlag":', b'"topicSysFlag":'))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON fields; `orderTopicConf` is omitted if it is not set."""
        content: dict[str, Any] = {
            "brokerDatas": [each.to_json() for each in self.broker_datas],
            "filterServerTable": self.filter_servers,
            "queueDatas": self.queue_datas,
        }
        if self.order_topic_conf is not None:
            content["orderTopicConf"] = self.order_topic_conf
        return content


class ClusterInfo(ShapedBody):
    """Response body of GET_BROKER_CLUSTER_INFO: brokers by name, and broker names by cluster."""

    brokers: AnyTableOf[Name, BrokerData] = wire(name="brokerAddrTable", default_factory=dict)
    clusters: AnyTableOf[Name, AnyListOf[Name]] = wire(name="clusterAddrTable", default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON fields."""
        brokers = {name: broker.to_json() for name, broker in self.brokers.items()}
        return {**super().to_json(), "brokerAddrTable": brokers}


class _TopicList(ShapedBody):
    title = "TopicList"

    topic_list: AnyListOf[Topic] = wire(default_factory=list)
    broker_addr: Name | None = None


class _KVTable(Body):
    title = "KVTable"

    table: AnyTableOf[Text, Text] = wire(default_factory=dict)


def encode_topic_list(topics: list[str], broker_addr: str | None = None) -> bytes:
    """Return a TopicList body with these topics, and the address of the broker that has further ones."""
    return _TopicList(topics, broker_addr).encode()


def decode_topic_list(body: Buffer) -> list[str]:
    """Return the topics in a TopicList body. Raises Refused if it is invalid."""
    return _TopicList.decode(body).topic_list


def encode_kv_table(table: Mapping[str, str]) -> bytes:
    """Return a KVTable body with these entries."""
    return _KVTable(dict(table)).encode()


def decode_kv_table(body: Buffer) -> dict[str, str]:
    """Return the entries of a KVTable body; none for an empty body. Raises Refused if it is invalid."""
    return _KVTable.decode(body).table if body else {}


@dataclass(slots=True)
class RegisterBrokerBody:
    """Request body of REGISTER_BROKER: the broker's topics and their version.

    `topic_configs` has RocketMQ's TopicConfig as JSON, by topic name.
    """

    data_version: DataVersion = field(default_factory=DataVersion)
    topic_configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    filter_servers: list[str] = field(default_factory=list)

    def encode(self) -> bytes:
        """Return the uncompressed body."""
        return self._encode(self.data_version, self.topic_configs)

    def encode_parts(self, bytes_max: int) -> Iterator[bytes]:
        """Yield the uncompressed body, or several of about `bytes_max` that together have all topics.

        A nameserver ignores topics under a version that it knows, so each part but the last has a version of
        its own, as with RocketMQ's `enableSplitRegistration`.
        """
        topics: dict[str, orjson.Fragment] = {}
        size_bytes = parts = 0
        for name, config in self.topic_configs.items():
            text = orjson.dumps(config)
            if topics and size_bytes + len(text) + len(name) > bytes_max:
                parts += 1
                yield self._encode(replace(self.data_version, counter=-parts), topics)
                topics, size_bytes = {}, 0
            topics[name] = orjson.Fragment(text)
            size_bytes += len(text) + len(name)
        yield self._encode(self.data_version, topics)

    def _encode(self, version: DataVersion, topics: Mapping[str, Any]) -> bytes:
        wrapper = {"dataVersion": version.to_json(), "topicConfigTable": topics}
        return orjson.dumps({"filterServerList": self.filter_servers, "topicConfigSerializeWrapper": wrapper})

    @classmethod
    def decode(cls, body: Buffer, compressed: bool = False, topics_max: int = REGISTERED_TOPICS_MAX) -> Self:
        """Return the registration in `body`; inflate it first if `compressed`.

        Raises Refused if it is invalid or has too many topics.
        """
        if compressed:
            return cls._decode_compressed(body, topics_max)
        # Not a `Body`: for 1,000 topics that are stored undecoded, msgspec is not faster than orjson.
        content = load_request(body, "RegisterBrokerBody", _VALUES_OF_TOPIC * topics_max, _UNQUOTED_BYTES_MAX)
        wrapper = get_object(content, "topicConfigSerializeWrapper")
        configs = get_object(wrapper, "topicConfigTable")
        _check_count(len(configs), topics_max)
        return cls(
            read_data_version(get_object(wrapper, "dataVersion")),
            _checked({name: get_object(configs, name) for name in configs}),
            conform(content.get("filterServerList") or [], ListOf[Name], "list of filter servers"),
        )

    @classmethod
    def _decode_compressed(cls, body: Buffer, topics_max: int) -> Self:
        """Decode RocketMQ's compressed form.

        The inflated data is: version, number of topics (i32), one text per topic, filter servers. Each part
        except the number follows its length (i32).
        """
        try:
            data = _inflate(body)
            version, at = _part(data, 0)
            (count,) = _I32.unpack_from(data, at)
            _check_count(count, topics_max)
            at += _I32.size
            configs = {}
            for _ in range(count):
                text, at = _part(data, at)
                config = _read_topic_text(text)
                configs[config["topicName"]] = config
            servers, _ = _part(data, at)
            check_values(servers, "list of filter servers", ITEMS_MAX)
            return cls(
                read_data_version(load_request(version, "DataVersion", DATA_VERSION_VALUES_MAX)),
                _checked(configs),
                conform(orjson.loads(servers), ListOf[Name], "list of filter servers"),
            )
        except (zlib.error, struct.error, ValueError) as error:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"the body is not a valid compressed RegisterBrokerBody: {error}"
            ) from error


def _check_count(topics: int, topics_max: int) -> None:
    if topics > topics_max:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"the registration has {topics:,} topics, but the limit is {topics_max:,}: raise max_topics",
        )


def _checked(configs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    longest = max(configs, key=len, default="")
    if len(longest) > MAX_RETRY_TOPIC_CHARS:
        raise too_long("the topic", longest[:40], longest, MAX_RETRY_TOPIC_CHARS)
    return configs


def _inflate(body: Buffer) -> bytes:
    inflater = zlib.decompressobj()
    data = inflater.decompress(body, MAX_INFLATED_BYTES)
    if inflater.unconsumed_tail:
        raise ValueError(f"the body decompresses to more than {MAX_INFLATED_BYTES:,} bytes")
    return data


def _part(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _I32.unpack_from(data, at)
    start = at + _I32.size
    end = start + length
    if length < 0 or end > len(data):
        raise ValueError(
            f"a part at byte {at:,} has length {length:,}, beyond the end of the {len(data):,} bytes"
        )
    return data[start:end], end


def _read_topic_text(data: bytes) -> dict[str, Any]:
    """Return the TopicConfig of RocketMQ's one-line form.

    The line has name, read queues, write queues, permission, filter type and, since 5.x, attributes.
    """
    if len(data) > KEPT_BYTES_MAX:
        raise ValueError(f"a topic has {len(data):,} bytes, over the limit of {KEPT_BYTES_MAX:,}")
    text = data.decode()
    words = text.split(" ", 5)
    if len(words) < 5:
        raise ValueError(f"a topic needs at least 5 fields, but has {len(words)}: {text[:100]!r}")
    return {
        "topicName": words[0],
        "readQueueNums": int(words[1]),
        "writeQueueNums": int(words[2]),
        "perm": int(words[3]),
        "topicFilterType": words[4],
        "attributes": orjson.loads(words[5]) if len(words) > 5 and words[5].strip() else {},
    }
