"""Tests of the admin client: topics, routes, offsets, consumer groups and messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from actors.wire.codes import RequestCode
from cluster.client import Admin, MessageQueue, Producer, ProducerConfig, PullConsumer, aio
from cluster.client.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ClientClosed,
    ConfigInvalid,
    GroupNotFound,
    TopicNotFound,
)
from store.message.group_config import SubscriptionGroupConfig
from tests.eventually import eventually

from .conftest import Cluster, ResponseDroppingProxy
from .test_pull_consumer import fill


def test_admin_creates_changes_and_deletes_topic(cluster: Cluster) -> None:
    with Admin(cluster.address) as admin:
        route = admin.create_topic("admin-topic", queues=2)
        assert len(route.writable) == 4
        route = admin.create_topic("admin-topic", queues=3, read_queues=5, brokers=["a"])
        shares = {share.broker_name: (share.read_queues, share.write_queues) for share in route.shares}
        assert shares == {"a": (5, 3), "b": (2, 2)}
        assert "admin-topic" in admin.topics()
        admin.delete_topic("admin-topic")
        eventually(lambda: "admin-topic" not in admin.topics())
        with pytest.raises(TopicNotFound):
            admin.route("never-made")
        with pytest.raises(ConfigInvalid, match="no broker z in the cluster; known brokers: a, b"):
            admin.create_topic("admin-topic", brokers=["z"])
        with pytest.raises(BrokerRefused, match="contains illegal characters"):
            admin.create_topic("no blanks")


def test_admin_returns_offsets_and_group_members(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=2)
    fill(cluster, topic, 40)
    with Admin(cluster.address) as admin, PullConsumer(cluster.address, group) as consumer:
        ends = admin.end_offsets(topic)
        assert sum(ends.values()) == 40
        assert set(admin.beginning_offsets(topic).values()) == {0}
        assert set(admin.offsets_at(topic, 0).values()) == {0}
        assert set(admin.committed_offsets(group, topic).values()) == {None}
        assert admin.group_members(group) == []
        admin.commit_offsets(group, ends)
        assert admin.committed_offsets(group, topic) == ends
        consumer.subscribe(topic)
        eventually(lambda: admin.group_members(group))
        eventually(lambda: len(consumer.assignment()) == 4)
        assert consumer.poll(timeout_ms=0) == []


def test_admin_returns_brokers_and_splits(cluster: Cluster) -> None:
    topic = cluster.topic(queues=2)
    fill(cluster, topic, 10)
    with Admin(cluster.address) as admin:
        assert set(admin.cluster_info().brokers) == {"a", "b"}
        splits = {split.broker_name: split for split in admin.splits(topic)}
        ends = admin.end_offsets(topic)
    for name, split in splits.items():
        for queue in split.queues:
            assert queue.max_offset == ends[MessageQueue(topic, name, queue.queue_id)]


def test_admin_returns_group_progress_and_members(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 10)
    with Admin(cluster.address) as admin:
        admin.put_group(SubscriptionGroupConfig(group, retry_max_times=2))
        assert admin.groups()[group].retry_max_times == 2
        assert set(admin.reset_offsets(group, topic, 0).values()) == {0}
        stats = admin.group_stats(group, topic)
        assert (stats.lag, admin.all_group_stats()[group].lag) == (10, 10)
        spans = admin.group_time_spans(group, topic)
        assert all(span.min_timestamp <= span.max_timestamp for span in spans)
        assert admin.groups_of_topic(topic) == [group]
        assert admin.topics_of_group(group) == [topic]
        admin.clone_offsets(group, f"{group}-2", topic)
        assert admin.topics_of_group(f"{group}-2") == [topic]
        assert admin.group_connection(group) is None
        with pytest.raises(GroupNotFound, match="no member 'x'"):
            admin.running_info(group, "x")
        admin.delete_group(group)
        assert group not in admin.groups()
        assert admin.topics_of_group(group) == []
        with pytest.raises(GroupNotFound):
            admin.reset_offsets(group, topic)


def test_admin_returns_producers_units_and_statistics(cluster: Cluster) -> None:
    topic = cluster.topic(queues=1)
    config = ProducerConfig(nameservers=cluster.address, group="listed-producers", heartbeat_ms=50)
    with Producer(config=config) as producer, Admin(cluster.address) as admin:
        for number in range(40):
            producer.send(topic, f"{number}", queue=MessageQueue(topic, "a", 0))
        eventually(lambda: admin.producers("listed-producers"))
        assert admin.producers("no-such-group") == []
        queue = MessageQueue(topic, "a", 0)
        assert [unit.physic_size > 91 for unit in admin.units(queue, 38, 10).units] == [True, True]
        messages = admin.messages_at(queue, 3, 100)
        assert [message.body for message in messages] == [f"{n}".encode() for n in range(3, 40)]
        assert admin.messages_at(queue, 40) == []
        assert admin.topic_stats(topic).offsets[queue].max_offset == 40
        assert admin.brokers().keys() == {"a", "b"}
        stats = admin.broker_stats("a", "TOPIC_PUT_NUMS", topic)
        assert stats is not None
        assert stats.minute.sum == 40
        assert admin.broker_stats("b", "TOPIC_PUT_NUMS", topic) is None


def test_async_admin_finds_messages(cluster: Cluster) -> None:
    topic = cluster.topic(queues=1)

    async def run() -> None:
        async with aio.Admin(cluster.address) as admin, aio.Producer(cluster.address, "p") as producer:
            result = await producer.send(topic, b"x", keys="k")
            assert (await admin.message_by_id(result.offset_msg_id)).body == b"x"
            assert [m.body for m in await admin.messages_by_key(topic, "k")] == [b"x"]
            assert await admin.messages_by_key(topic, "another") == []
        with pytest.raises(ClientClosed):
            await admin.topics()

    asyncio.run(run())


def test_query_by_key_searches_all_brokers(cluster: Cluster) -> None:
    topic = cluster.topic(queues=1)
    with Producer(cluster.address, "p") as producer, Admin(cluster.address) as admin:
        for number, queue in enumerate(producer.queues(topic)):
            producer.send(topic, f"{number}", keys="shared", queue=queue)
        found = admin.messages_by_key(topic, "shared")
    assert {(message.broker_name, message.body) for message in found} == {("a", b"0"), ("b", b"1")}


def test_query_by_key_can_leave_out_a_broker_without_response(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters()
    proxy = ResponseDroppingProxy(cluster, "a", lambda code, _: code == RequestCode.QUERY_MESSAGE)
    cluster.stop_broker("a")
    cluster.start_broker("a", advertised_port=proxy.port)
    topic = cluster.topic(queues=1)
    with Admin(cluster.address) as admin, Producer(cluster.address) as producer:
        for queue in producer.queues(topic):
            producer.send(topic, queue.broker_name, keys="k", queue=queue)
        with pytest.raises(BrokerUnreachable):
            admin.messages_by_key(topic, "k")
        assert [each.body for each in admin.messages_by_key(topic, "k", skip_unreachable=True)] == [b"b"]
    proxy.stop()
