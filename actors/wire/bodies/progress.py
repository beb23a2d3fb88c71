"""Bodies about the progress of queues and groups: offsets, lags, rates and times.

Class and field names are RocketMQ's (`org.apache.rocketmq.remoting.protocol.body` and `.admin`).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import UNSET, UnsetType

from actors.wire.bodies.body import (
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
from actors.wire.command import Buffer
from actors.wire.header import AnyListOf, AnyTableOf, Group, Long, Name
from store.message.message_queue import MessageQueue

EXPECTED: Final = "expected"
UNKNOWN: Final = "unknown"


class _OfQueues(ShapedBody):
    """Base class of bodies with a table keyed by queue."""

    offsets: AnyTableOf[QueueKey, Any] = wire(name="offsetTable", default_factory=dict)

    def __post_init__(self) -> None:
        self.offsets = {queue_of_key(key): value for key, value in self.offsets.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the JSON fields, with the queues as unquoted map keys."""
        return {**super().to_json(), "offsetTable": queue_table(self.offsets)}


class TopicOffset(Body):
    """First offset of a queue and the offset of the next message.

    `last_update_timestamp` is the store timestamp of the newest message in milliseconds, or 0.
    """

    min_offset: Long = 0
    max_offset: Long = 0
    last_update_timestamp: Long = 0


class TopicStatsTable(_OfQueues):
    """Response body of GET_TOPIC_STATS_INFO."""

    offsets: AnyTableOf[QueueKey, TopicOffset] = wire(name="offsetTable", default_factory=dict)
    put_tps: float = wire(name="topicPutTps", default=0.0)


class TopicCounters(Body):
    """Stored messages of a topic on one broker, the sum of the end offsets, and messages put per second."""

    messages: Long = 0
    end: Long = 0
    put_tps: float = wire(name="putTps", default=0.0)


class TopicCountersTable(Body):
    """Response body of GET_TOPIC_COUNTERS."""

    topics: AnyTableOf[Name, TopicCounters] = wire(name="topics", default_factory=dict)


class OffsetWrapper(Body):
    """Committed and pulled offset of a group in one queue, and the queue's maximum offset.

    `last_timestamp` is the store timestamp of the last consumed message in milliseconds.

    RayMQ's brokers add fields where they are needed, which RocketMQ's tools ignore. `origin` says what
    `consumer_offset` is if the group has not committed one: EXPECTED, where the group would start, or
    UNKNOWN; `first_timestamp` is the store timestamp of the first message that it would get. `claimed` is the
    number of messages before `consumer_offset` that are popped and not acknowledged.
    """

    broker_offset: Long = 0
    consumer_offset: Long = 0
    pull_offset: Long = 0
    last_timestamp: Long = 0
    origin: Name | UnsetType = wire(name="raymqOrigin", default=UNSET)
    first_timestamp: Long | UnsetType = wire(name="raymqFirstTimestamp", default=UNSET)
    claimed: Long | UnsetType = wire(name="raymqClaimed", default=UNSET)

    @property
    def committed(self) -> int | None:
        """The committed offset, or None without one."""
        return self.consumer_offset if self.origin is UNSET else None

    @property
    def behind_since_ms(self) -> int | None:
        """Store time of the last message consumed, or of the first one if the group has not consumed any.

        None without lag, or if it is unknown.
        """
        since_ms = self.last_timestamp if self.first_timestamp is UNSET else self.first_timestamp
        return since_ms if self.lag and since_ms > 0 else None

    @property
    def lag(self) -> int | None:
        """The number of messages that the group has not acknowledged; None if it is unknown."""
        if self.origin == UNKNOWN:
            return None
        return max(self.broker_offset - self.consumer_offset, 0) + self._claimed

    @property
    def in_flight(self) -> int | None:
        """The number of messages that are delivered but not acknowledged; None if it is unknown.

        RocketMQ's list of all groups has no pulled offsets: they are 0 there.
        """
        if self.origin == UNKNOWN or self.pull_offset < self.consumer_offset:
            return None
        return self.pull_offset - self.consumer_offset + self._claimed

    @property
    def _claimed(self) -> int:
        return 0 if self.claimed is UNSET else self.claimed


class ConsumeStats(_OfQueues):
    """Response body of GET_CONSUME_STATS."""

    offsets: AnyTableOf[QueueKey, OffsetWrapper] = wire(name="offsetTable", default_factory=dict)
    consume_tps: float = 0.0

    @property
    def lag(self) -> int | None:
        """The sum of the lags of all queues; None if one is unknown, or without queues."""
        found = [each.lag for each in self.offsets.values()]
        known = [each for each in found if each is not None]
        return sum(known) if found and len(known) == len(found) else None


class _ConsumeStatsList(Body):
    title = "ConsumeStatsList"

    consume_stats_list: AnyListOf[AnyTableOf[Group, AnyListOf[ConsumeStats]]] = wire(default_factory=list)


def encode_consume_stats_list(groups: Mapping[str, Iterable[ConsumeStats]], address: str) -> bytes:
    """Return the response body of GET_BROKER_CONSUME_STATS.

    `groups` has the tables of each group, one per topic; `address` is that of the broker.
    """
    rows = {group: list(stats) for group, stats in groups.items()}
    offsets = [each for group in rows.values() for stats in group for each in stats.offsets.values()]
    return encode_json(
        {
            "brokerAddr": address,
            "consumeStatsList": [{group: [each.to_json() for each in rows[group]]} for group in rows],
            "totalDiff": _as_long(sum(each.broker_offset - each.consumer_offset for each in offsets)),
            "totalInflightDiff": _as_long(sum(each.pull_offset - each.consumer_offset for each in offsets)),
        }
    )


def _as_long(number: int) -> int:
    """Return `number` wrapped to 64 bits, as in Java: the sum of several lags may overflow."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def decode_consume_stats_list(body: Buffer) -> dict[str, list[ConsumeStats]]:
    """Return the tables in a GET_BROKER_CONSUME_STATS response, by group. Raises Refused if it is invalid."""
    return {
        group: stats
        for row in _ConsumeStatsList.decode(body).consume_stats_list
        for group, stats in row.items()
    }


class QueueTimeSpan(Body):
    """Timestamps of the first, last and last consumed message of a queue, and the delay of the group.

    All are in milliseconds; a timestamp is -1 if there is no such message.
    """

    queue: QueueField = wire(name="messageQueue")
    min_timestamp: Long = wire(name="minTimeStamp", default=-1)
    max_timestamp: Long = wire(name="maxTimeStamp", default=-1)
    consume_timestamp: Long = wire(name="consumeTimeStamp", default=-1)
    delay_ms: Long = wire(name="delayTime", default=0)

    def __post_init__(self) -> None:
        self.queue = queue_of(self.queue)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON fields, with the queue as an object."""
        return {**super().to_json(), "messageQueue": queue_json(self.queue)}


class _TimeSpans(Body):
    title = "QueryConsumeTimeSpanBody"

    consume_time_span_set: AnyListOf[QueueTimeSpan] = wire(default_factory=list)


def encode_time_spans(spans: Iterable[QueueTimeSpan]) -> bytes:
    """Return the response body of QUERY_CONSUME_TIME_SPAN."""
    return encode_json({"consumeTimeSpanSet": [span.to_json() for span in spans]})


def decode_time_spans(body: Buffer) -> list[QueueTimeSpan]:
    """Return the time spans in a QUERY_CONSUME_TIME_SPAN response. Raises Refused if it is invalid."""
    return _TimeSpans.decode(body).consume_time_span_set


class _GroupList(Body):
    title = "GroupList"

    group_list: AnyListOf[Group] = wire(default_factory=list)


def encode_group_list(groups: Iterable[str]) -> bytes:
    """Return the response body of QUERY_TOPIC_CONSUME_BY_WHO."""
    return _GroupList(sorted(groups)).encode()


def decode_group_list(body: Buffer) -> list[str]:
    """Return the groups in a response body of QUERY_TOPIC_CONSUME_BY_WHO. Raises Refused if it is invalid."""
    return _GroupList.decode(body).group_list


def encode_topics_of_group(topics: Iterable[str], address: str) -> bytes:
    """Return the response body of QUERY_TOPICS_BY_CONSUMER: a TopicList with the address of the broker."""
    return encode_json({"brokerAddr": address, "topicList": sorted(topics)})


class _ResetOffsetBody(_OfQueues):
    title = "ResetOffsetBody"

    offsets: AnyTableOf[QueueKey, Long] = wire(name="offsetTable", default_factory=dict)


def encode_progress_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Return the response body of INVOKE_BROKER_TO_RESET_OFFSET, a ResetOffsetBody."""
    return _ResetOffsetBody(dict(offsets)).encode()


def decode_progress_offsets(body: Buffer) -> dict[MessageQueue, int]:
    """Return the offsets in a ResetOffsetBody. Raises Refused if it is invalid."""
    return _ResetOffsetBody.decode(body).offsets
