"""Topics with different numbers of read and write queues, added queues, and assignment strategies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import pytest

from actors.strategies import make_strategy
from cluster.client import (
    Admin,
    ConsumerConfig,
    MessageQueue,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
)
from cluster.client.errors import ConfigInvalid
from tests.eventually import eventually

from .conftest import Cluster
from .test_pull_consumer import committed, fill, poll_numbers
from .test_push_consumer import Seen


def numbers_of(queues: list[MessageQueue]) -> set[tuple[str, int]]:
    return {(queue.broker_name, queue.queue_id) for queue in queues}


def new_member(admin: Admin, group: str, known: Collection[str]) -> str:
    """Return the client id of the next member that joins `group`."""
    (joined,) = eventually(lambda: set(admin.group_members(group)) - set(known))
    return joined


def test_topic_may_have_more_read_queues_than_write_queues(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=2, read_queues=4)
    with (
        Producer(cluster.address, "counts") as producer,
        PullConsumer(cluster.address, group) as consumer,
    ):
        written = {producer.send(topic, f"{n}").queue for n in range(8)}
        keyed = producer.send_many(topic, [b"8", b"9"], sharding_keys=["a", "b"])
        consumer.subscribe(topic)
        assert sorted(poll_numbers(consumer, 10)) == list(range(10))
        assert numbers_of(consumer.assignment()) == {(b, n) for b in "ab" for n in range(4)}
    assert numbers_of(list(written)) == {(b, n) for b in "ab" for n in range(2)}
    assert all(queue.queue_id < 2 for queue in keyed.queues)


def test_queues_no_longer_writable_are_still_read(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=4)
    fill(cluster, topic, 100)
    change_topic(cluster, topic, queues=2, read_queues=4)
    with Producer(cluster.address, "counts") as producer:
        assert {producer.send(topic, f"{n}").queue.queue_id for n in range(100, 108)} == {0, 1}
    with PullConsumer(cluster.address, group) as consumer:
        consumer.subscribe(topic)
        assert sorted(poll_numbers(consumer, 108)) == list(range(108))


def change_topic(cluster: Cluster, topic: str, **options: Any) -> None:
    with Admin(cluster.address) as admin:
        admin.create_topic(topic, **options)


def test_queues_added_later_are_written_and_read(clusters: Callable[..., Cluster], group: str) -> None:
    cluster = clusters()
    topic = cluster.topic(queues=1)
    seen = Seen()
    quick = {"route_refresh_ms": 100}
    consuming = PushConfig(sync_interval_ms=100, commit_interval_ms=50, **quick)  # type: ignore[arg-type]
    with (
        Producer(cluster.address, "counts", config=ProducerConfig(**quick)) as producer,  # type: ignore[arg-type]
        PushConsumer(cluster.address, group, seen, config=consuming) as consumer,
    ):
        consumer.subscribe(topic)
        producer.send(topic, b"0")
        seen.wait_for(1)
        change_topic(cluster, topic, queues=3)
        eventually(lambda: len(producer.queues(topic)) == 6)
        places = Counter(producer.send(topic, f"{n}").queue for n in range(1, 13))
        assert set(places.values()) == {2}
        seen.wait_for(13)
        assert len(consumer.assignment()) == 6
    assert set(seen.numbers.values()) == {1}
    assert committed(cluster, group, topic) == 13


@pytest.mark.parametrize(
    "strategy",
    [
        "averagely",
        "averagely_by_circle",
        "consistent_hash",
        "machine_room:r1",
        "machine_room_nearby:averagely_by_circle",
        "config:{topic}/a/1,{topic}/b/0",
    ],
)
def test_members_share_queues_by_strategy(cluster: Cluster, group: str, strategy: str) -> None:
    topic = cluster.topic()
    named = strategy.format(topic=topic)
    config = ConsumerConfig(strategy=named, sync_interval_ms=100, lease_ms=5_000)
    with (
        Admin(cluster.address) as admin,
        PullConsumer(cluster.address, group, config=config) as first,
        PullConsumer(cluster.address, group, config=config) as second,
    ):
        members: dict[str, PullConsumer] = {}
        for consumer in (first, second):
            consumer.subscribe(topic)
            members[new_member(admin, group, members)] = consumer
        queues = first.queues(topic)
        expected = {member: make_strategy(named).allocate(member, queues, members) for member in members}
        if named.startswith("config:"):
            expected[max(members)] = []  # a queue configured for two members goes to the first

        def shared() -> bool:
            first.poll(timeout_ms=0)
            second.poll(timeout_ms=0)
            return {member: consumer.assignment() for member, consumer in members.items()} == expected

        eventually(shared)


def test_unknown_strategy_is_refused() -> None:
    with pytest.raises(ConfigInvalid, match="strategy: unknown strategy 'best': use averagely, "):
        ConsumerConfig(strategy="best")
    with pytest.raises(ConfigInvalid, match="'orders/a' is not a valid queue: use TOPIC/BROKER/ID"):
        ConsumerConfig(strategy="config:orders/a")
