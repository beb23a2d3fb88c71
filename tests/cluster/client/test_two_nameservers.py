"""Clients of two nameservers keep working if one is down or knows fewer brokers than the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.client import Admin, Producer, ProducerConfig, PullConsumer
from cluster.client.config import ConsumerConfig
from cluster.client.errors import SendFailed
from tests.eventually import eventually

from .conftest import LONG_LEASE_MS, Cluster
from .test_pull_consumer import poll_messages

SOON_MS = 50
"""Route refresh interval, short enough that clients soon notice a nameserver that is down."""


def producer_of(cluster: Cluster) -> Producer:
    return Producer(cluster.address, config=ProducerConfig(group="two", route_refresh_ms=SOON_MS))


def brokers_written(producer: Producer, topic: str, count: int = 8) -> set[str]:
    return {producer.send(topic, b"%d" % number).queue.broker_name for number in range(count)}


@pytest.fixture
def two(clusters: Callable[..., Cluster]) -> Cluster:
    return clusters(nameservers=2)


@pytest.mark.parametrize("killed", [0, 1])
def test_clients_work_while_one_nameserver_is_down(two: Cluster, killed: int) -> None:
    topic = two.topic()
    config = ConsumerConfig(group="two", route_refresh_ms=SOON_MS)
    with producer_of(two) as producer, PullConsumer(two.address, config=config) as consumer:
        consumer.subscribe(topic)
        assert brokers_written(producer, topic) == {"a", "b"}
        received = eventually(lambda: len(consumer.poll(100, 100)))

        two.stop_nameserver(two.addresses[killed])
        assert brokers_written(producer, topic) == {"a", "b"}
        fresh = two.topic()
        with producer_of(two) as late:
            assert brokers_written(late, fresh) == {"a", "b"}
        poll_messages(consumer, 16 - received)


def test_brokers_register_again_with_a_restarted_nameserver(two: Cluster) -> None:
    topic = two.topic()
    first, second = two.addresses
    two.stop_nameserver(first)
    two.start_nameserver(first)
    two.stop_nameserver(second)
    with Admin(first) as admin:
        eventually(lambda: set(admin.cluster_info().brokers) == {"a", "b"})
        assert admin.route(topic).brokers() == ["a", "b"]


def test_producer_keeps_brokers_that_one_nameserver_lost(two: Cluster) -> None:
    topic = two.topic()
    with producer_of(two) as producer:
        assert brokers_written(producer, topic) == {"a", "b"}
        for broker in ("a", "b"):
            two.remove_route(two.addresses[0], broker)
        with Admin(two.addresses[0]) as admin:
            assert topic not in admin.topics()
        keyed = {key: producer.send(topic, b"x", sharding_key=key).queue for key in "pqrst"}
        assert brokers_written(producer, topic) == {"a", "b"}
        assert {key: producer.send(topic, b"x", sharding_key=key).queue for key in "pqrst"} == keyed
    with producer_of(two) as late:
        assert brokers_written(late, topic) == {"a", "b"}


def test_queues_stay_writable_while_no_nameserver_knows_a_broker(two: Cluster) -> None:
    topic = two.topic()
    with Admin(two.address) as admin:
        before = admin.route(topic)
        for address in two.addresses:
            for broker in ("a", "b"):
                two.remove_route(address, broker)
        assert admin.route(topic).writable == before.writable


def test_broker_missing_in_one_nameserver_stays_in_the_route(two: Cluster) -> None:
    topic = two.topic()
    with Admin(two.address) as admin:
        before = admin.route(topic)
        for address in two.addresses:
            two.remove_route(address, "b")
            assert len(before.writable) == 8
            if address == two.addresses[0]:
                assert admin.route(topic) == before
        # No nameserver knows broker b now: unkeyed sends avoid it, but keys keep its queues for a while.
        after = admin.route(topic)
        assert {queue.broker_name for queue in after.writable} == {"a"}
        assert after.keyed == before.keyed


def test_client_with_one_nameserver_uses_the_brokers_it_knows(two: Cluster) -> None:
    topic = two.topic()
    two.remove_route(two.addresses[0], "b")
    with Producer(two.addresses[0], group="two") as producer:
        assert brokers_written(producer, topic) == {"a"}


def test_create_topic_reaches_the_brokers_of_all_nameservers(two: Cluster) -> None:
    two.remove_route(two.addresses[0], "a")
    two.remove_route(two.addresses[1], "b")
    with Admin(two.address) as admin:
        assert admin.create_topic("everywhere", queues=2).brokers() == ["a", "b"]
        assert "everywhere" in admin.topics()
        assert set(admin.cluster_info().brokers) == {"a", "b"}
        two.stop_nameserver(two.addresses[1])
        admin.delete_topic("everywhere")
        eventually(lambda: "everywhere" not in admin.topics())


def test_members_keep_queues_of_a_broker_one_nameserver_lost(two: Cluster) -> None:
    topic = two.topic(queues=2)
    two.stop_rebalancer()
    two.start_rebalancer(route_grace_ms=0)
    config = ConsumerConfig(lease_ms=LONG_LEASE_MS)
    with (
        PullConsumer(two.address, "keeps", config=config) as consumer,
        PullConsumer(two.address, "keeps", config=config) as other,
    ):
        consumer.subscribe(topic)
        eventually(lambda: len(consumer.assignment()) == 4)
        two.remove_route(two.addresses[0], "b")
        two.refresh_routes()
        two.refresh_routes()
        held = consumer.assignment()
        other.subscribe(topic)  # an assignment to the second member shows that the rebalancer has responded
        eventually(lambda: len(other.assignment()) == 2)
        assert sorted([*consumer.assignment(), *other.assignment()]) == held


def test_cached_routes_work_while_both_nameservers_are_down(two: Cluster) -> None:
    topic = two.topic()
    with producer_of(two) as producer:
        assert brokers_written(producer, topic) == {"a", "b"}
        for address in two.addresses:
            two.stop_nameserver(address)
        assert brokers_written(producer, topic) == {"a", "b"}
        with pytest.raises(SendFailed, match="no nameserver responded"):
            producer.send("unknown-topic", b"x")
