"""Bodies about how far queues and groups have come: offsets, lags, rates and times.

Names and fields are RocketMQ's (`org.apache.rocketmq.remoting.protocol.body` and `.admin`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

import orjson

from actors.remoting.bodies.flat import Flat, queue_json, queue_map, queue_of, queue_of_key
from actors.remoting.command import Buffer
from actors.remoting.json_fields import get_float, get_int, get_object, get_objects, get_strings, load_object
from store.message.message_queue import MessageQueue

_MINUS_ONE_MS: Final = -1


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
        return cls(offsets, get_float(content, "topicPutTps"))

    def encode(self) -> bytes:
        """The body."""
        table = queue_map({queue: offset.to_json() for queue, offset in self.offsets.items()})
        return orjson.dumps({"offsetTable": table, "topicPutTps": self.put_tps})


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
        return cls(offsets, get_float(content, "consumeTps"))

    def to_json(self) -> dict[str, Any]:
        """As it goes into a body."""
        table = queue_map({queue: offset.to_json() for queue, offset in self.offsets.items()})
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
    return orjson.dumps({"offsetTable": queue_map(offsets)})


def decode_offsets(body: Buffer) -> dict[MessageQueue, int]:
    """The inverse. Raises Refused."""
    table = get_object(load_object(body, "ResetOffsetBody"), "offsetTable")
    return {queue_of_key(key): get_int(table, key) for key in table}
