"""A producer with sticky keys and an ordered consumer on real brokers, while the queues of a topic change."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from cluster.client import (
    Admin,
    ConsumerConfig,
    MessageExt,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
)
from cluster.client.errors import ConfigInvalid, SendFailed
from tests.eventually import eventually

from .conftest import Cluster


def sticky(group: str, **more: int) -> ProducerConfig:
    return ProducerConfig(route_refresh_ms=100, sticky_key_groups=[group], **more)


def consuming(cluster: Cluster, group: str) -> PullConsumer:
    config = ConsumerConfig(commit_interval_ms=20, sync_interval_ms=100, route_refresh_ms=100)
    return PullConsumer(cluster.address, group, config=config)


def test_keys_keep_their_order_while_queues_are_added(clusters: Callable[..., Cluster], group: str) -> None:
    """The keys move to the added queues once the group has consumed their messages; not one is overtaken."""
    cluster = clusters(brokers=1)
    topic = cluster.topic(queues=1)
    keys = [f"key-{n}" for n in range(12)]
    numbers = itertools.count()
    read: dict[str, list[int]] = defaultdict(list)

    def listen(messages: Sequence[MessageExt]) -> None:
        for message in messages:
            read[message.keys].append(int(message.body))

    def send_all(producer: Producer) -> set[int]:
        """Send one message of each key; return the queues."""
        sends = [producer.send_async(topic, f"{next(numbers)}", keys=key, sharding_key=key) for key in keys]
        return {send.result().queue.queue_id for send in sends}

    config = PushConfig(ordered=True, commit_interval_ms=20, sync_interval_ms=100, route_refresh_ms=100)
    with Producer(cluster.address, "sticky", config=sticky(group)) as producer:
        send_all(producer)
        with Admin(cluster.address) as admin:
            admin.create_topic(topic, queues=4)
        eventually(lambda: len(producer.queues(topic)) == 4)
        assert send_all(producer) == {0}
        with PushConsumer(cluster.address, group, listen, config=config) as consumer:
            consumer.subscribe(topic)
            eventually(lambda: len(send_all(producer)) == 4)
            sent = next(numbers)
            eventually(lambda: sum(map(len, read.values())) == sent)
    assert {key: values for key, values in read.items() if values != sorted(values)} == {}


def test_a_send_waits_until_the_queue_of_its_key_that_became_read_only_is_consumed(
    clusters: Callable[..., Cluster], group: str
) -> None:
    cluster = clusters(brokers=1)
    topic = cluster.topic(queues=2)
    with (
        Producer(cluster.address, "sticky", config=sticky(group)) as producer,
        consuming(cluster, group) as consumer,
    ):
        key = next(
            key
            for key in map(str, range(99))
            if producer.send(topic, "0", sharding_key=key).queue.queue_id == 1
        )
        with Admin(cluster.address) as admin:
            admin.create_topic(topic, queues=1, read_queues=2)
        eventually(lambda: len(producer.queues(topic)) == 1)
        with pytest.raises(SendFailed, match="has not consumed"):
            producer.send(topic, "refused", sharding_key=key, timeout_ms=300)

        waiting = producer.send_async(topic, "1", sharding_key=key)
        consumer.subscribe(topic)
        eventually(lambda: consumer.poll(100, timeout_ms=50) is None or waiting.done())
        assert waiting.result().queue.queue_id == 0


def test_keys_of_a_namespace_wait_for_the_group_of_the_namespace(
    clusters: Callable[..., Cluster], group: str
) -> None:
    cluster = clusters(brokers=1)
    topic, keys = "orders%topic", [f"key-{n}" for n in range(12)]

    def send_all(producer: Producer) -> set[int]:
        sends = [producer.send_async("topic", "x", sharding_key=key) for key in keys]
        return {send.result().queue.queue_id for send in sends}

    config = PushConfig(commit_interval_ms=20, sync_interval_ms=100, route_refresh_ms=100)
    with (
        Admin(cluster.address) as admin,
        Producer(cluster.address, "sticky", config=replace(sticky(group), namespace="orders")) as producer,
    ):
        admin.create_topic(topic, queues=1)
        send_all(producer)
        admin.create_topic(topic, queues=4)
        eventually(lambda: len(producer.queues("topic")) == 4)
        assert send_all(producer) == {0}
        with PushConsumer(cluster.address, f"orders%{group}", lambda _: None, config=config) as consumer:
            consumer.subscribe(topic)
            assert eventually(lambda: len(send_all(producer)) == 4)


def test_tables_with_a_sharding_key_are_refused(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    with Producer(cluster.address, "sticky", config=sticky(group)) as producer:
        with pytest.raises(ConfigInvalid, match="sticky_key_groups"):
            producer.send_many(topic, [b"1"], sharding_keys=["k"])
        assert producer.send_many(topic, [b"1", b"2"]).rows == 2


def test_sticky_key_groups_must_be_a_list() -> None:
    with pytest.raises(ConfigInvalid, match="sticky_key_groups is 'orders': give a list"):
        ProducerConfig(sticky_key_groups="orders")
