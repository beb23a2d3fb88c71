"""Bodies that say where topics are: TopicRouteData, ClusterInfo, TopicList, RegisterBrokerBody."""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

import orjson

from actors.remoting.codes import ResponseCode
from actors.remoting.command import Buffer
from actors.remoting.json_fields import (
    get_bool,
    get_int,
    get_object,
    get_objects,
    get_str,
    get_strings,
    load_object,
)
from actors.remoting.remoting_errors import Refused
from store.metadata.data_version import DataVersion

PERM_PRIORITY: Final = 8
PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1
MASTER_ID: Final = 0

MAX_INFLATED_BYTES: Final = 64 * 1024 * 1024
_I32: Final = struct.Struct(">i")


def read_data_version(fields: Mapping[str, Any]) -> DataVersion:
    """A version as it stands in a body. Raises Refused."""
    return DataVersion(
        get_int(fields, "counter"), get_int(fields, "timestamp"), get_int(fields, "stateVersion")
    )


def encode_data_version(version: DataVersion) -> bytes:
    """A version as a body of its own."""
    return orjson.dumps(version.to_json())


@dataclass(frozen=True, slots=True)
class QueueData:
    """How many queues of a topic a broker has, and what may be done with them."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0

    @property
    def is_readable(self) -> bool:
        """Whether consumers may use it."""
        return self.perm & PERM_READ != 0

    @property
    def is_writable(self) -> bool:
        """Whether producers may use it."""
        return self.perm & PERM_WRITE != 0

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """As it stands in a body."""
        return cls(
            get_str(fields, "brokerName"),
            get_int(fields, "readQueueNums"),
            get_int(fields, "writeQueueNums"),
            get_int(fields, "perm"),
            get_int(fields, "topicSysFlag", get_int(fields, "topicSynFlag")),
        )

    def to_json(self) -> dict[str, Any]:
        """As it goes into a body."""
        return {
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }


@dataclass(slots=True)
class BrokerData:
    """The addresses of a broker's replicas, by id; id 0 is the master."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool = False

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """As it stands in a body."""
        addresses = get_object(fields, "brokerAddrs")
        return cls(
            get_str(fields, "cluster"),
            get_str(fields, "brokerName"),
            {get_int({"brokerId": key}, "brokerId"): str(address) for key, address in addresses.items()},
            get_bool(fields, "enableActingMaster"),
        )

    def to_json(self) -> dict[str, Any]:
        """As it goes into a body; the ids are quoted, which Java reads as well."""
        return {
            "brokerAddrs": {
                str(broker_id): self.broker_addrs[broker_id] for broker_id in sorted(self.broker_addrs)
            },
            "brokerName": self.broker_name,
            "cluster": self.cluster,
            "enableActingMaster": self.enable_acting_master,
        }


@dataclass(slots=True)
class TopicRouteData:
    """Where the queues of one topic are: the answer of GET_ROUTEINFO_BY_TOPIC."""

    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    order_topic_conf: str | None = None
    filter_servers: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Raises Refused where the body is no route."""
        fields = load_object(body, "TopicRouteData")
        return cls(
            [QueueData.from_json(item) for item in get_objects(fields, "queueDatas")],
            [BrokerData.from_json(item) for item in get_objects(fields, "brokerDatas")],
            get_str(fields, "orderTopicConf") or None,
            get_object(fields, "filterServerTable"),
        )

    def encode(self) -> bytes:
        """The body."""
        fields: dict[str, Any] = {
            "brokerDatas": [item.to_json() for item in self.broker_datas],
            "filterServerTable": self.filter_servers,
            "queueDatas": [item.to_json() for item in self.queue_datas],
        }
        if self.order_topic_conf is not None:
            fields["orderTopicConf"] = self.order_topic_conf
        return orjson.dumps(fields)


@dataclass(slots=True)
class ClusterInfo:
    """All brokers by name, and their names by cluster: the answer of GET_BROKER_CLUSTER_INFO."""

    brokers: dict[str, BrokerData] = field(default_factory=dict)
    clusters: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Raises Refused where the body is none."""
        fields = load_object(body, "ClusterInfo")
        brokers = get_object(fields, "brokerAddrTable")
        clusters = get_object(fields, "clusterAddrTable")
        return cls(
            {name: BrokerData.from_json(get_object(brokers, name)) for name in brokers},
            {name: get_strings(clusters, name) for name in clusters},
        )

    def encode(self) -> bytes:
        """The body."""
        return orjson.dumps(
            {
                "brokerAddrTable": {name: broker.to_json() for name, broker in self.brokers.items()},
                "clusterAddrTable": self.clusters,
            }
        )


def encode_topic_list(topics: list[str]) -> bytes:
    """The body of a TopicList."""
    return orjson.dumps({"topicList": topics})


def decode_topic_list(body: Buffer) -> list[str]:
    """The topics of a TopicList."""
    return get_strings(load_object(body, "TopicList"), "topicList")


def encode_kv_table(table: Mapping[str, str]) -> bytes:
    """The body of a KVTable."""
    return orjson.dumps({"table": dict(table)})


def decode_kv_table(body: Buffer) -> dict[str, str]:
    """The entries of a KVTable; an empty body is an empty one."""
    if not body:
        return {}
    return {key: str(value) for key, value in get_object(load_object(body, "KVTable"), "table").items()}


@dataclass(slots=True)
class RegisterBrokerBody:
    """What a broker registers: all its topics (RocketMQ's TopicConfig as JSON, by name) and their version."""

    data_version: DataVersion = field(default_factory=DataVersion)
    topic_configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    filter_servers: list[str] = field(default_factory=list)

    def encode(self) -> bytes:
        """The body, uncompressed."""
        wrapper = {"dataVersion": self.data_version.to_json(), "topicConfigTable": self.topic_configs}
        return orjson.dumps({"filterServerList": self.filter_servers, "topicConfigSerializeWrapper": wrapper})

    @classmethod
    def decode(cls, body: Buffer, compressed: bool = False) -> Self:
        """Raises Refused where the body is none."""
        if compressed:
            return cls._decode_compressed(body)
        fields = load_object(body, "RegisterBrokerBody")
        wrapper = get_object(fields, "topicConfigSerializeWrapper")
        configs = get_object(wrapper, "topicConfigTable")
        return cls(
            read_data_version(get_object(wrapper, "dataVersion")),
            {name: get_object(configs, name) for name in configs},
            get_strings(fields, "filterServerList"),
        )

    @classmethod
    def _decode_compressed(cls, body: Buffer) -> Self:
        """Deflated parts, each after its length: the version, a count of topics, the topics, the filter
        servers.
        """
        try:
            data = _inflate(body)
            version, at = _part(data, 0)
            (count,) = _I32.unpack_from(data, at)
            at += _I32.size
            configs = {}
            for _ in range(count):
                text, at = _part(data, at)
                config = _read_topic_text(text.decode())
                configs[config["topicName"]] = config
            servers, _ = _part(data, at)
            return cls(
                read_data_version(load_object(version, "DataVersion")),
                configs,
                get_strings({"filterServerList": orjson.loads(servers)}, "filterServerList"),
            )
        except (zlib.error, struct.error, ValueError) as error:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"the body is no compressed RegisterBrokerBody: {error}"
            ) from error


def _inflate(body: Buffer) -> bytes:
    inflater = zlib.decompressobj()
    data = inflater.decompress(body, MAX_INFLATED_BYTES)
    if inflater.unconsumed_tail:
        raise ValueError(f"it inflates to more than {MAX_INFLATED_BYTES:,} bytes")
    return data


def _part(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _I32.unpack_from(data, at)
    start = at + _I32.size
    end = start + length
    if length < 0 or end > len(data):
        raise ValueError(f"a part of {length:,} bytes at {at:,} of {len(data):,}")
    return data[start:end], end


def _read_topic_text(text: str) -> dict[str, Any]:
    """RocketMQ's one-line form: name, read queues, write queues, permission, filter type, and in 5.x
    attributes.
    """
    words = text.split(" ", 5)
    if len(words) < 5:
        raise ValueError(f"a topic of {len(words)} words, not 5: {text[:100]!r}")
    return {
        "topicName": words[0],
        "readQueueNums": int(words[1]),
        "writeQueueNums": int(words[2]),
        "perm": int(words[3]),
        "topicFilterType": words[4],
        "attributes": orjson.loads(words[5]) if len(words) > 5 and words[5].strip() else {},
    }
