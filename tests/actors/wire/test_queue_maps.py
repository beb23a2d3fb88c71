"""Maps with queues as keys, in the bytes of RocketMQ brokers; 5.3.3 and 5.5.0 write the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.wire.bodies.consumer_status import encode_of_member
from actors.wire.bodies.progress import (
    ConsumeStats,
    OffsetWrapper,
    TopicOffset,
    TopicStatsTable,
    decode_consume_stats_list,
    decode_progress_offsets,
    encode_consume_stats_list,
    encode_progress_offsets,
)
from actors.wire.command import Buffer
from store.message.message_queue import MessageQueue

Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)

TOPIC_STATS = TopicStatsTable({Q1: TopicOffset(0, 3, 1795515497866), Q0: TopicOffset(0, 0, 0)})
TOPIC_STATS_BODY = (
    b'{"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"T"}:{"lastUpdateTimestamp":1795515497866,'
    b'"maxOffset":3,"minOffset":0},{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"lastUpdateTimestamp":0,'
    b'"maxOffset":0,"minOffset":0}},"topicPutTps":0.0}'
)
CONSUME_STATS = ConsumeStats({Q1: OffsetWrapper(3, 2, 3, 1795515497857), Q0: OffsetWrapper(0, 0, 0, 0)})
CONSUME_STATS_BODY = (
    b'{"consumeTps":0.0,"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"T"}:{"brokerOffset":3,'
    b'"consumerOffset":2,"lastTimestamp":1795515497857,"pullOffset":3},{"brokerName":"broker-a","queueId":0,'
    b'"topic":"T"}:{"brokerOffset":0,"consumerOffset":0,"lastTimestamp":0,"pullOffset":0}}}'
)
CONSUME_STATS_LIST = {"G": [CONSUME_STATS], "CID_RMQ_SYS_TRANS": []}
CONSUME_STATS_LIST_BODY = (
    b'{"brokerAddr":"127.0.0.1:63640","consumeStatsList":[{"G":[%b]},{"CID_RMQ_SYS_TRANS":[]}],'
    b'"totalDiff":1,"totalInflightDiff":1}' % CONSUME_STATS_BODY
)
OFFSETS = {Q1: 3, Q0: 0}
OFFSETS_BODY = (
    b'{"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"T"}:3,'
    b'{"brokerName":"broker-a","queueId":0,"topic":"T"}:0}}'
)
DECODED: list[tuple[Callable[[Buffer], object], object, bytes]] = [
    (TopicStatsTable.decode, TOPIC_STATS, TOPIC_STATS_BODY),
    (ConsumeStats.decode, CONSUME_STATS, CONSUME_STATS_BODY),
    (decode_consume_stats_list, CONSUME_STATS_LIST, CONSUME_STATS_LIST_BODY),
    (decode_progress_offsets, OFFSETS, OFFSETS_BODY),
]
NAMES = ["topic stats", "consume stats", "consume stats list", "offsets"]


def test_queue_maps_encode_to_the_bytes_of_rocketmq() -> None:
    assert TOPIC_STATS.encode() == TOPIC_STATS_BODY
    assert CONSUME_STATS.encode() == CONSUME_STATS_BODY
    assert encode_consume_stats_list(CONSUME_STATS_LIST, "127.0.0.1:63640") == CONSUME_STATS_LIST_BODY
    assert encode_progress_offsets(OFFSETS) == OFFSETS_BODY
    assert encode_of_member({Q1: 3}) == (
        b'{"consumerTable":{},"messageQueueTable":{{"brokerName":"broker-a","queueId":1,"topic":"T"}:3}}'
    )


@pytest.mark.parametrize("hold", [bytes, bytearray, memoryview])
@pytest.mark.parametrize(("decode", "content", "body"), DECODED, ids=NAMES)
def test_rocketmq_queue_maps_are_decoded(
    decode: Callable[[Buffer], object], content: object, body: bytes, hold: type[bytes]
) -> None:
    assert decode(hold(body)) == content


@pytest.mark.parametrize(("decode", "content", "body"), DECODED, ids=NAMES)
def test_queue_maps_with_string_keys_are_decoded(
    decode: Callable[[Buffer], object], content: object, body: bytes
) -> None:
    """JSON libraries write this form, because JSON has no objects as keys."""
    for queue in (Q0, Q1):
        key = f'{{"brokerName":"broker-a","queueId":{queue.queue_id},"topic":"T"}}'
        body = body.replace(key.encode(), json.dumps(key).encode())
    assert json.loads(body)
    assert decode(body) == content


longs = st.integers(0, (1 << 63) - 1)
names = st.text(st.characters(exclude_categories=["Cs"])) | st.text('{}[]":,\\ 01', max_size=8)
queues = st.builds(MessageQueue, names, names, st.integers(0, (1 << 31) - 1))


@given(
    topic=st.dictionaries(queues, st.builds(TopicOffset, longs, longs, longs), max_size=4),
    group=st.dictionaries(queues, st.builds(OffsetWrapper, longs, longs, longs, longs), max_size=4),
    offsets=st.dictionaries(queues, longs, max_size=4),
)
def test_queue_maps_round_trip(
    topic: dict[MessageQueue, TopicOffset],
    group: dict[MessageQueue, OffsetWrapper],
    offsets: dict[MessageQueue, int],
) -> None:
    topic_stats, stats = TopicStatsTable(topic, 1.5), ConsumeStats(group, 2.5)
    assert TopicStatsTable.decode(topic_stats.encode()) == topic_stats
    assert ConsumeStats.decode(stats.encode()) == stats
    listed = {"G": [stats, stats], "none": []}
    assert decode_consume_stats_list(encode_consume_stats_list(listed, "h:1")) == listed
    assert decode_progress_offsets(encode_progress_offsets(offsets)) == offsets
