"""Bodies about how far queues and groups have come: offsets, lags, rates and times.

Names and fields are RocketMQ's (`org.apache.rocketmq.remoting.protocol.body` and `.admin`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from actors.remoting.bodies.body import (
    Body,
    QueueField,
    QueueKey,
    ShapedBody,
    encode_json,
    queue_json,
    queue_of,
    queue_of_key,
    queue_table,
    wire,
)
from actors.remoting.command import Buffer
from actors.remoting.header import Long
from store.message.message_queue import MessageQueue


class _OfQueues(ShapedBody):
    """Base of a body with a table by queue."""

    offsets: dict[QueueKey, Any] = wire(name="offsetTable", default_factory=dict)

    def __post_init__(self) -> None:
        self.offsets = {queue_of_key(key): value for key, value in self.offsets.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the fields, with the queues as bare objects."""
        return {**super().to_json(), "offsetTable": queue_table(self.offsets)}


class TopicOffset(Body):
    """The first and the next offset of a queue; `last_update_timestamp` is its newest message's, or 0."""

    min_offset: Long = 0
    max_offset: Long = 0
    last_update_timestamp: Long = 0


class TopicStatsTable(_OfQueues):
    """The response of GET_TOPIC_STATS_INFO."""

    offsets: dict[QueueKey, TopicOffset] = wire(name="offsetTable", default_factory=dict)
    put_tps: float = wire(name="topicPutTps", default=0.0)


class OffsetWrapper(Body):
    """How far a group is in a queue, committed and pulled; `last_timestamp`: of the last consumed message."""

    broker_offset: Long = 0
    consumer_offset: Long = 0
    pull_offset: Long = 0
    last_timestamp: Long = 0

    @property
    def lag(self) -> int:
        """The number of messages that are not committed."""
        return self.broker_offset - self.consumer_offset

    @property
    def in_flight(self) -> int:
        """The number of messages that have been pulled and are not committed."""
        return self.pull_offset - self.consumer_offset


class ConsumeStats(_OfQueues):
    """The response of GET_CONSUME_STATS."""

    offsets: dict[QueueKey, OffsetWrapper] = wire(name="offsetTable", default_factory=dict)
    consume_tps: float = 0.0

    @property
    def lag(self) -> int:
        """The lag of all queues."""
        return sum(offset.lag for offset in self.offsets.values())

    @property
    def in_flight(self) -> int:
        """The messages in flight of all queues."""
        return sum(offset.in_flight for offset in self.offsets.values())


class _ConsumeStatsList(Body):
    title = "ConsumeStatsList"

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = wire(default_factory=list)


def encode_consume_stats_list(groups: Mapping[str, Iterable[ConsumeStats]], address: str) -> bytes:
    """Return the response of GET_BROKER_CONSUME_STATS: of each group, a table for each of its topics."""
    rows = {group: list(stats) for group, stats in groups.items()}
    everything = [stats for stats_of_group in rows.values() for stats in stats_of_group]
    return encode_json(
        {
            "brokerAddr": address,
            "consumeStatsList": [{group: [each.to_json() for each in rows[group]]} for group in rows],
            "totalDiff": _as_long(sum(stats.lag for stats in everything)),
            "totalInflightDiff": _as_long(sum(stats.in_flight for stats in everything)),
        }
    )


def _as_long(number: int) -> int:
    """Return a sum as Java adds longs: two groups with the largest offset exceed what JSON's writers hold."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def decode_consume_stats_list(body: Buffer) -> dict[str, list[ConsumeStats]]:
    """Return the tables in that response by group. Raises Refused."""
    return {
        group: stats
        for row in _ConsumeStatsList.decode(body).consume_stats_list
        for group, stats in row.items()
    }


class QueueTimeSpan(Body):
    """How far behind a group is in a queue, in times; −1 if there is no message."""

    queue: QueueField = wire(name="messageQueue")
    min_timestamp: Long = wire(name="minTimeStamp", default=-1)
    max_timestamp: Long = wire(name="maxTimeStamp", default=-1)
    consume_timestamp: Long = wire(name="consumeTimeStamp", default=-1)
    delay_ms: Long = wire(name="delayTime", default=0)

    def __post_init__(self) -> None:
        self.queue = queue_of(self.queue)

    def to_json(self) -> dict[str, Any]:
        """Return the fields, with the queue as an object."""
        return {**super().to_json(), "messageQueue": queue_json(self.queue)}


class _TimeSpans(Body):
    title = "QueryConsumeTimeSpanBody"

    consume_time_span_set: list[QueueTimeSpan] = wire(default_factory=list)


def encode_time_spans(spans: Iterable[QueueTimeSpan]) -> bytes:
    """Return the response of QUERY_CONSUME_TIME_SPAN."""
    return encode_json({"consumeTimeSpanSet": [span.to_json() for span in spans]})


def decode_time_spans(body: Buffer) -> list[QueueTimeSpan]:
    """Return the time spans in that response. Raises Refused."""
    return _TimeSpans.decode(body).consume_time_span_set


class _GroupList(Body):
    title = "GroupList"

    group_list: list[str] = wire(default_factory=list)


def encode_group_list(groups: Iterable[str]) -> bytes:
    """Return the response of QUERY_TOPIC_CONSUME_BY_WHO."""
    return _GroupList(sorted(groups)).encode()


def decode_group_list(body: Buffer) -> list[str]:
    """Return the groups in that response. Raises Refused."""
    return _GroupList.decode(body).group_list


def encode_topics_of_group(topics: Iterable[str], address: str) -> bytes:
    """Return the response of QUERY_TOPICS_BY_CONSUMER: a TopicList that names its broker."""
    return encode_json({"brokerAddr": address, "topicList": sorted(topics)})


class _ResetOffsetBody(_OfQueues):
    title = "ResetOffsetBody"

    offsets: dict[QueueKey, Long] = wire(name="offsetTable", default_factory=dict)


def encode_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Return a ResetOffsetBody, the response of INVOKE_BROKER_TO_RESET_OFFSET."""
    return _ResetOffsetBody(dict(offsets)).encode()


def decode_offsets(body: Buffer) -> dict[MessageQueue, int]:
    """Return the offsets in that response. Raises Refused."""
    return _ResetOffsetBody.decode(body).offsets
