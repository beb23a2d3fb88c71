"""Message traces of Python producers and consumers, also when the trace topic cannot be written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from cluster.client import (
    Admin,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
    aio,
)
from cluster.client.errors import ConfigInvalid
from cluster.client.trace.trace_dispatcher import TraceDispatcher
from cluster.client.trace.trace_records import (
    ConsumeCode,
    MessageType,
    Pub,
    SubAfter,
    SubBefore,
    TraceRecord,
    decode_trace,
)
from cluster.client.transport.instance import ClientInstance
from tests.cluster.client.conftest import Cluster
from tests.cluster.client.test_pull_consumer import committed, poll_messages
from tests.eventually import eventually

TRACED = ProducerConfig(trace=True)


@pytest.fixture(scope="module")
def trace_topic(cluster: Cluster) -> str:
    return cluster.topic(queues=1)


def traces(cluster: Cluster, topic: str, msg_id: str) -> list[TraceRecord]:
    with Admin(cluster.address) as admin:
        return admin.message_trace(msg_id, trace_topic=topic)


def test_sent_and_consumed_message_has_its_three_records(
    cluster: Cluster, group: str, trace_topic: str
) -> None:
    topic = cluster.topic(queues=1)
    config = ProducerConfig(trace=True, trace_topic=trace_topic)
    with Producer(cluster.address, "traced", config=config) as producer:
        sent = producer.send(topic, b"4 apples", tags="fruit", keys=["order-1", "order-2"])
    push = PushConfig(trace=True, trace_topic=trace_topic)
    with PushConsumer(cluster.address, group, lambda _: None, config=push) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: consumer.assignment() != [])
        eventually(lambda: len(traces(cluster, trace_topic, sent.msg_id)) == 3)
    pub, before, after = traces(cluster, trace_topic, sent.msg_id)
    assert isinstance(pub, Pub)
    assert (pub.group, pub.topic, pub.tags, pub.keys) == ("traced", topic, "fruit", "order-1 order-2")
    assert (pub.body_bytes, pub.is_success, pub.message_type) == (8, True, MessageType.NORMAL)
    assert (pub.offset_msg_id, pub.region_id) == (sent.offset_msg_id, "DefaultRegion")
    assert pub.store_host == cluster.brokers[sent.queue.broker_name].address
    assert isinstance(before, SubBefore)
    assert (before.group, before.retries, before.keys) == (group, 0, "order-1 order-2")
    assert isinstance(after, SubAfter)
    assert (after.group, after.call_id, after.is_success) == (group, before.call_id, True)
    with Admin(cluster.address) as admin:
        assert admin.messages_by_key(trace_topic, "order-2"), "traces are found by the keys too"


def test_failed_listener_calls_are_traced_with_their_outcome(
    cluster: Cluster, group: str, trace_topic: str
) -> None:
    topic, calls = cluster.topic(queues=1), [0]

    def listen(messages: list[MessageExt]) -> bool:
        calls[0] += 1
        if calls[0] == 1:
            raise ValueError("the first call fails")
        return calls[0] == 3

    config = PushConfig(trace=True, trace_topic=trace_topic, retry_backoff_ms=(1,), commit_interval_ms=20)
    with Producer(cluster.address) as producer:
        sent = producer.send(topic, b"x")
    with PushConsumer(cluster.address, group, listen, config=config) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: committed(cluster, group, topic) == 1)
    found = traces(cluster, trace_topic, sent.msg_id)
    codes = [(record.code, record.is_success) for record in found if isinstance(record, SubAfter)]
    expected = [(ConsumeCode.EXCEPTION, False), (ConsumeCode.FAILED, False), (ConsumeCode.SUCCESS, True)]
    assert sorted(codes) == sorted(expected)
    assert sorted(record.retries for record in found if isinstance(record, SubBefore)) == [0, 1, 2]


def test_messages_of_a_batch_and_of_asyncio_producers_are_traced(cluster: Cluster, trace_topic: str) -> None:
    topic = cluster.topic(queues=1)

    async def send() -> list[str]:
        config = ProducerConfig(trace=True, trace_topic=trace_topic)
        async with aio.Producer(cluster.address, "traced", config=config) as producer:
            batch = await producer.send_batch([Message(topic, b"1"), Message(topic, b"2")])
            delayed = await producer.send(Message(topic, b"later", delay_level=18))
            return [*batch.msg_id.split(","), delayed.msg_id]

    types = []
    for msg_id in asyncio.run(send()):
        [record] = traces(cluster, trace_topic, msg_id)
        assert isinstance(record, Pub)
        types.append(record.message_type)
    assert types == [MessageType.NORMAL, MessageType.NORMAL, MessageType.DELAY]


def test_broker_may_ask_for_no_traces(clusters: Callable[..., Cluster], group: str) -> None:
    cluster = clusters(brokers=1, trace_on=False)
    topic, trace_topic = cluster.topic(queues=1), cluster.topic(queues=1)
    with Producer(cluster.address, config=ProducerConfig(trace=True, trace_topic=trace_topic)) as producer:
        assert not producer.send(topic, b"x").is_trace_on
    config = PushConfig(trace=True, trace_topic=trace_topic, commit_interval_ms=20)
    with PushConsumer(cluster.address, group, lambda _: None, config=config) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: committed(cluster, group, topic) == 1)
    with Admin(cluster.address) as admin:
        assert sum(admin.end_offsets(trace_topic).values()) == 0


def test_missing_trace_topic_fails_no_send_and_no_listener(
    clusters: Callable[..., Cluster], group: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = clusters(brokers=1, auto_create_topics=False)
    topic = cluster.topic(queues=1)
    with Producer(cluster.address, config=TRACED) as producer:
        assert [producer.send(topic, b"x").queue_offset for _ in range(3)] == [0, 1, 2]
    config = PushConfig(trace=True, commit_interval_ms=20)
    with PushConsumer(cluster.address, group, lambda _: None, config=config) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: committed(cluster, group, topic) == 3)
    with Admin(cluster.address) as admin:
        assert "RMQ_SYS_TRACE_TOPIC" not in admin.topics()


def test_tracing_is_off_by_default(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    with Producer(cluster.address) as producer:
        producer.send(topic, b"x")
    with Admin(cluster.address) as admin:
        assert "RMQ_SYS_TRACE_TOPIC" not in admin.topics()


def test_records_beyond_the_limit_are_dropped_and_large_ones_split(cluster: Cluster, group: str) -> None:
    trace_topic = cluster.topic(queues=1, brokers=["a"])

    async def write() -> int:
        config = ProducerConfig(nameservers=cluster.address)
        instance = ClientInstance(config)
        dispatcher = TraceDispatcher(instance, config, trace_topic, max_records=250)
        for number in range(300):
            keys = "k" * 30_000 if number == 7 else None
            dispatcher.add(SubBefore(number, "r", "g", "call", f"id-{number}", 0, keys))
        await instance.close()
        return dispatcher.dropped

    dropped = asyncio.run(write())
    with PullConsumer(cluster.address, group) as consumer:
        consumer.assign(consumer.queues(trace_topic))
        found = poll_messages(consumer, 4)
    records = [record for each in found for record in decode_trace(each.body)]
    numbers = [record.time_ms for record in records]
    assert dropped == 50
    assert numbers == list(range(250))
    assert all(len(decode_trace(each.body)) <= 100 for each in found)


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(ConfigInvalid, match="trace is 'RMQ_SYS_TRACE_TOPIC': give True or False"):
        ProducerConfig(trace="RMQ_SYS_TRACE_TOPIC")  # type: ignore[arg-type]
    with pytest.raises(ConfigInvalid, match="trace_topic: topic 'a b' contains"):
        PushConfig(trace=True, trace_topic="a b")
