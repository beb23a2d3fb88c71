"""Two nameservers: either may be away, and they may disagree; clients go on with what is known to any."""

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
"""Routes are asked for so often that a nameserver's loss is met at once."""


def producer_of(cluster: Cluster) -> Producer:
    return Producer(cluster.address, config=ProducerConfig(group="two", route_refresh_ms=SOON_MS))


def brokers_written(producer: Producer, topic: str, count: int = 8) -> set[str]:
    return {producer.send(topic, b"%d" % number).queue.broker_name for number in range(count)}


@pytest.fixture
def two(clusters: Callable[..., Cluster]) -> Cluster:
    return clusters(nameservers=2)


@pytest.mark.parametrize("killed", [0, 1])
def test_either_may_go_and_clients_that_run_and_clients_that_start_go_on(two: Cluster, killed: int) -> None:
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


def test_one_that_was_started_again_is_told_by_the_brokers_at_once(two: Cluster) -> None:
    topic = two.topic()
    first, second = two.addresses
    two.stop_nameserver(first)
    two.start_nameserver(first)
    two.stop_nameserver(second)
    with Admin(first) as admin:
        eventually(lambda: set(admin.cluster_info().brokers) == {"a", "b"})
        assert admin.route(topic).brokers() == ["a", "b"]


def test_one_that_has_forgotten_everything_takes_no_broker_from_those_who_knew(two: Cluster) -> None:
    topic = two.topic()
    with producer_of(two) as producer:
        assert brokers_written(producer, topic) == {"a", "b"}
        for broker in ("a", "b"):
            two.make_forget(two.addresses[0], broker)
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
                two.make_forget(address, broker)
        assert admin.route(topic).writable == before.writable


def test_one_that_lags_behind_hides_a_broker_from_nobody_who_knew_it(two: Cluster) -> None:
    topic = two.topic()
    with Admin(two.address) as admin:
        before = admin.route(topic)
        for address in two.addresses:
            two.make_forget(address, "b")
            assert len(before.writable) == 8
            if address == two.addresses[0]:
                assert admin.route(topic) == before
        # Now nobody knows it: its queues get no new messages, but keep their keys for a while.
        after = admin.route(topic)
        assert {queue.broker_name for queue in after.writable} == {"a"}
        assert after.keyed == before.keyed


def test_who_is_told_of_one_broker_only_works_with_that(two: Cluster) -> None:
    topic = two.topic()
    two.make_forget(two.addresses[0], "b")
    with Producer(two.addresses[0], group="two") as producer:
        assert brokers_written(producer, topic) == {"a"}


def test_a_topic_is_made_on_all_brokers_that_any_nameserver_knows(two: Cluster) -> None:
    two.make_forget(two.addresses[0], "a")
    two.make_forget(two.addresses[1], "b")
    with Admin(two.address) as admin:
        assert admin.create_topic("everywhere", queues=2).brokers() == ["a", "b"]
        assert "everywhere" in admin.topics()
        assert set(admin.cluster_info().brokers) == {"a", "b"}
        two.stop_nameserver(two.addresses[1])
        admin.delete_topic("everywhere")
        eventually(lambda: "everywhere" not in admin.topics())


def test_members_keep_the_queues_of_a_broker_that_one_has_forgotten(two: Cluster) -> None:
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
        two.make_forget(two.addresses[0], "b")
        two.refresh_routes()
        two.refresh_routes()
        held = consumer.assignment()
        other.subscribe(topic)  # when it has its share, the first knows what the rebalancer knows
        eventually(lambda: len(other.assignment()) == 2)
        assert sorted([*consumer.assignment(), *other.assignment()]) == held


def test_with_both_away_what_is_known_goes_on_and_what_is_not_is_said(two: Cluster) -> None:
    topic = two.topic()
    with producer_of(two) as producer:
        assert brokers_written(producer, topic) == {"a", "b"}
        for address in two.addresses:
            two.stop_nameserver(address)
        assert brokers_written(producer, topic) == {"a", "b"}
        with pytest.raises(SendFailed, match="no nameserver responded"):
            producer.send("never-heard-of", b"x")
