"""Bodies that tools read: offsets and rates of topics and groups, who is connected, what a queue holds.

Names and fields are RocketMQ's (`org.apache.rocketmq.remoting.protocol.body` and `.admin`). Where its maps
have queues as keys, the key here is a JSON string that holds the queue, which all of its tools read as well.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

import orjson

from actors.remoting.codes import ResponseCode
from actors.remoting.command import Buffer
from actors.remoting.errors import Refused
from actors.remoting.groups import SubscriptionData
from actors.remoting.json_fields import (
    get_bool,
    get_int,
    get_object,
    get_objects,
    get_str,
    get_strings,
    load_object,
)
from store.message.message_queue import MessageQueue

_MINUS_ONE_MS: Final = -1


def queue_json(queue: MessageQueue) -> dict[str, Any]:
    """A queue as an object."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def queue_of(content: Mapping[str, Any]) -> MessageQueue:
    """The queue that an object says. Raises Refused."""
    return MessageQueue(
        get_str(content, "topic"), get_str(content, "brokerName"), get_int(content, "queueId")
    )


def queue_key(queue: MessageQueue) -> str:
    """A queue as the key of a map."""
    return orjson.dumps(queue_json(queue)).decode()


def queue_of_key(key: str) -> MessageQueue:
    """The inverse of `queue_key`. Raises Refused."""
    return queue_of(load_object(key.encode(), "queue"))


@dataclass(slots=True)
class Flat:
    """An object of numbers, texts and truth values, whose fields are ours in camelCase."""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """As it stands in a body; what is missing has its default. Raises Refused."""
        return cls(**{each.name: _READ[each.type](content, _camel(each.name)) for each in fields(cls)})

    def to_json(self) -> dict[str, Any]:
        """As it goes into a body."""
        return {_camel(each.name): getattr(self, each.name) for each in fields(self)}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.title() for word in others)


def _get_float(content: Mapping[str, Any], key: str) -> float:
    value = content.get(key)
    if value is None or value == "NaN":
        return 0.0
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise Refused(ResponseCode.SYSTEM_ERROR, f"`{key}` in the body is {str(value)[:60]!r}, not a number")


_READ: Final[dict[Any, Any]] = {int: get_int, float: _get_float, str: get_str, bool: get_bool}


# ---- topics ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class TopicOffset(Flat):
    """Where a queue begins and ends; `last_update_timestamp` is its newest message's, 0 where it has none."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@dataclass(slots=True)
class TopicStatsTable:
    """The answer of GET_TOPIC_STATS_INFO."""

    offsets: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    put_tps: float = 0.0

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Raises Refused where the body is none."""
        content = load_object(body, "TopicStatsTable")
        table = get_object(content, "offsetTable")
        offsets = {queue_of_key(key): TopicOffset.from_json(value) for key, value in table.items()}
        return cls(offsets, _get_float(content, "topicPutTps"))

    def encode(self) -> bytes:
        """The body."""
        table = {queue_key(queue): offset.to_json() for queue, offset in self.offsets.items()}
        return orjson.dumps({"offsetTable": table, "topicPutTps": self.put_tps})


# ---- groups ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class OffsetWrapper(Flat):
    """How far a group is in a queue, committed and pulled; `last_timestamp`: of the last consumed message."""

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0

    @property
    def lag(self) -> int:
        """How many messages are not committed."""
        return self.broker_offset - self.consumer_offset

    @property
    def in_flight(self) -> int:
        """How many have been pulled and are not committed."""
        return self.pull_offset - self.consumer_offset


@dataclass(slots=True)
class ConsumeStats:
    """The answer of GET_CONSUME_STATS."""

    offsets: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0

    @property
    def lag(self) -> int:
        """Of all queues."""
        return sum(offset.lag for offset in self.offsets.values())

    @property
    def in_flight(self) -> int:
        """In all queues."""
        return sum(offset.in_flight for offset in self.offsets.values())

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Raises Refused where the body is none."""
        return cls.from_json(load_object(body, "ConsumeStats"))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """As it stands in a body. Raises Refused."""
        table = get_object(content, "offsetTable")
        offsets = {queue_of_key(key): OffsetWrapper.from_json(value) for key, value in table.items()}
        return cls(offsets, _get_float(content, "consumeTps"))

    def to_json(self) -> dict[str, Any]:
        """As it goes into a body."""
        table = {queue_key(queue): offset.to_json() for queue, offset in self.offsets.items()}
        return {"consumeTps": self.consume_tps, "offsetTable": table}

    def encode(self) -> bytes:
        """The body."""
        return orjson.dumps(self.to_json())


def encode_consume_stats_list(groups: Mapping[str, Iterable[ConsumeStats]], address: str) -> bytes:
    """The answer of GET_BROKER_CONSUME_STATS: of each group, a table for each of its topics."""
    rows = {group: list(stats) for group, stats in groups.items()}
    everything = [stats for stats_of_group in rows.values() for stats in stats_of_group]
    return orjson.dumps(
        {
            "brokerAddr": address,
            "consumeStatsList": [{group: [each.to_json() for each in rows[group]]} for group in rows],
            "totalDiff": _as_long(sum(stats.lag for stats in everything)),
            "totalInflightDiff": _as_long(sum(stats.in_flight for stats in everything)),
        }
    )


def _as_long(number: int) -> int:
    """As Java adds longs up: two groups with the largest offset are more than JSON's writers hold."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def decode_consume_stats_list(body: Buffer) -> dict[str, list[ConsumeStats]]:
    """The inverse. Raises Refused."""
    content = load_object(body, "ConsumeStatsList")
    return {
        group: [ConsumeStats.from_json(stats) for stats in get_objects(row, group)]
        for row in get_objects(content, "consumeStatsList")
        for group in row
    }


@dataclass(slots=True)
class QueueTimeSpan:
    """How far behind a group is in a queue, in times; −1 where there is no message."""

    queue: MessageQueue
    min_timestamp: int = _MINUS_ONE_MS
    max_timestamp: int = _MINUS_ONE_MS
    consume_timestamp: int = _MINUS_ONE_MS
    delay_ms: int = 0

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """As it stands in a body. Raises Refused."""
        return cls(
            queue_of(get_object(content, "messageQueue")),
            get_int(content, "minTimeStamp"),
            get_int(content, "maxTimeStamp"),
            get_int(content, "consumeTimeStamp"),
            get_int(content, "delayTime"),
        )

    def to_json(self) -> dict[str, Any]:
        """As it goes into a body."""
        return {
            "consumeTimeStamp": self.consume_timestamp,
            "delayTime": self.delay_ms,
            "maxTimeStamp": self.max_timestamp,
            "messageQueue": queue_json(self.queue),
            "minTimeStamp": self.min_timestamp,
        }


def encode_time_spans(spans: Iterable[QueueTimeSpan]) -> bytes:
    """The answer of QUERY_CONSUME_TIME_SPAN."""
    return orjson.dumps({"consumeTimeSpanSet": [span.to_json() for span in spans]})


def decode_time_spans(body: Buffer) -> list[QueueTimeSpan]:
    """The inverse. Raises Refused."""
    content = load_object(body, "QueryConsumeTimeSpanBody")
    return [QueueTimeSpan.from_json(span) for span in get_objects(content, "consumeTimeSpanSet")]


def encode_group_list(groups: Iterable[str]) -> bytes:
    """The answer of QUERY_TOPIC_CONSUME_BY_WHO."""
    return orjson.dumps({"groupList": sorted(groups)})


def decode_group_list(body: Buffer) -> list[str]:
    """The inverse. Raises Refused."""
    return get_strings(load_object(body, "GroupList"), "groupList")


def encode_topics_of_group(topics: Iterable[str], address: str) -> bytes:
    """The answer of QUERY_TOPICS_BY_CONSUMER: a TopicList that names its broker."""
    return orjson.dumps({"brokerAddr": address, "topicList": sorted(topics)})


def encode_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """ResetOffsetBody: the answer of INVOKE_BROKER_TO_RESET_OFFSET."""
    return orjson.dumps({"offsetTable": {queue_key(queue): offset for queue, offset in offsets.items()}})


def decode_offsets(body: Buffer) -> dict[MessageQueue, int]:
    """The inverse. Raises Refused."""
    table = get_object(load_object(body, "ResetOffsetBody"), "offsetTable")
    return {queue_of_key(key): get_int(table, key) for key in table}


# ---- clients ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ClientConnection(Flat):
    """A client that is connected; the address is `ip:port`."""

    client_id: str = ""
    client_addr: str = ""
    language: str = "JAVA"
    version: int = 0


@dataclass(slots=True)
class ProducerInfo:
    """A producer; `last_update_timestamp` is when it was last heard of."""

    client_id: str
    remote_ip: str
    language: str
    version: int
    last_update_timestamp: int

    def to_json(self) -> dict[str, Any]:
        """As it goes into a body."""
        return {
            "clientId": self.client_id,
            "language": self.language,
            "lastUpdateTimestamp": self.last_update_timestamp,
            "remoteIP": self.remote_ip,
            "version": self.version,
        }


@dataclass(slots=True)
class ConsumerConnection:
    """The answer of GET_CONSUMER_CONNECTION_LIST."""

    connections: list[ClientConnection] = field(default_factory=list)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Raises Refused where the body is none."""
        content = load_object(body, "ConsumerConnection")
        table = get_object(content, "subscriptionTable")
        return cls(
            [ClientConnection.from_json(each) for each in get_objects(content, "connectionSet")],
            {topic: SubscriptionData.from_json(table[topic]) for topic in table},
            get_str(content, "consumeType"),
            get_str(content, "messageModel"),
            get_str(content, "consumeFromWhere"),
        )

    def encode(self) -> bytes:
        """The body."""
        return orjson.dumps(
            {
                "connectionSet": [each.to_json() for each in self.connections],
                "consumeFromWhere": self.consume_from_where,
                "consumeType": self.consume_type,
                "messageModel": self.message_model,
                "subscriptionTable": {
                    topic: subscription.to_json() for topic, subscription in self.subscriptions.items()
                },
            }
        )


def encode_producers(connections: Iterable[ClientConnection]) -> bytes:
    """The answer of GET_PRODUCER_CONNECTION_LIST."""
    return orjson.dumps({"connectionSet": [each.to_json() for each in connections]})


def decode_producers(body: Buffer) -> list[ClientConnection]:
    """The inverse. Raises Refused."""
    content = load_object(body, "ProducerConnection")
    return [ClientConnection.from_json(each) for each in get_objects(content, "connectionSet")]


def encode_subscription(group: str, topic: str, subscription: SubscriptionData | None) -> bytes:
    """The answer of QUERY_SUBSCRIPTION_BY_CONSUMER."""
    content: dict[str, Any] = {"group": group, "topic": topic}
    if subscription is not None:
        content["subscriptionData"] = subscription.to_json()
    return orjson.dumps(content)


def encode_producer_table(groups: Mapping[str, Iterable[ProducerInfo]]) -> bytes:
    """The answer of GET_ALL_PRODUCER_INFO."""
    return orjson.dumps({"data": {group: [each.to_json() for each in groups[group]] for group in groups}})


# ---- the broker ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class BrokerStatsItem(Flat):
    """How much within a window: the sum, by the second, and by the request."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@dataclass(slots=True)
class BrokerStatsData:
    """The answer of VIEW_BROKER_STATS_DATA."""

    minute: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    hour: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    day: BrokerStatsItem = field(default_factory=BrokerStatsItem)

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Raises Refused where the body is none."""
        content = load_object(body, "BrokerStatsData")
        names = ("statsMinute", "statsHour", "statsDay")
        return cls(*(BrokerStatsItem.from_json(get_object(content, name)) for name in names))

    def encode(self) -> bytes:
        """The body."""
        return orjson.dumps(
            {
                "statsDay": self.day.to_json(),
                "statsHour": self.hour.to_json(),
                "statsMinute": self.minute.to_json(),
            }
        )


@dataclass(slots=True)
class ConsumeQueueData(Flat):
    """One unit of a consume queue; `eval`: whether the filter of the group that was named takes it."""

    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    eval: bool = False


@dataclass(slots=True)
class ConsumeQueueUnits:
    """The answer of QUERY_CONSUME_QUEUE: units, and where the queue begins and ends; `filter_data` says where
    a group that was named is not online.
    """

    min_offset: int
    max_offset: int
    units: list[ConsumeQueueData] = field(default_factory=list)
    subscription: SubscriptionData | None = None
    filter_data: str = ""

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Raises Refused where the body is none."""
        content = load_object(body, "QueryConsumeQueueResponseBody")
        subscription = content.get("subscriptionData")
        return cls(
            get_int(content, "minQueueIndex"),
            get_int(content, "maxQueueIndex"),
            [ConsumeQueueData.from_json(unit) for unit in get_objects(content, "queueData")],
            SubscriptionData.from_json(subscription) if isinstance(subscription, dict) else None,
            get_str(content, "filterData"),
        )

    def encode(self) -> bytes:
        """The body."""
        content: dict[str, Any] = {
            "maxQueueIndex": self.max_offset,
            "minQueueIndex": self.min_offset,
            "queueData": [unit.to_json() for unit in self.units],
        }
        if self.subscription is not None:
            content["subscriptionData"] = self.subscription.to_json()
        if self.filter_data:
            content["filterData"] = self.filter_data
        return orjson.dumps(content)
