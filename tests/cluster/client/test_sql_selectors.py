"""SQL92 selectors of Python consumers: pull, push and async, changes, mistakes and differing members."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from actors.broker.core.reading.pull import Puller
from actors.transport.request import RequestContext
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from cluster.client import (
    Admin,
    ConsumerConfig,
    Message,
    MessageSelector,
    Producer,
    PullConsumer,
    PushConsumer,
    aio,
)
from cluster.client.errors import ConfigInvalid, SubscriptionDiffers
from tests.eventually import eventually

from .conftest import LONG_LEASE_MS, Cluster
from .test_pull_consumer import poll_numbers
from .test_push_consumer import Seen

SELECTOR = MessageSelector.by_sql("a > 10 AND region IN ('x', 'y')")
MATCHING = {number for number in range(100) if number > 10 and number % 3 < 2}


def fill(cluster: Cluster, topic: str, count: int = 100) -> None:
    """Send the messages "0", "1", … with their numbers as the property `a`, and one of three regions."""
    with Producer(cluster.address, "fills") as producer:
        for number in range(count):
            properties = {"a": str(number), "region": "xyz"[number % 3]}
            producer.send(Message(topic, b"%d" % number, properties=properties))


def test_pull_consumer_gets_the_messages_that_a_sql_selector_selects(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    fill(cluster, topic)
    with PullConsumer(cluster.address, group) as consumer:
        consumer.subscribe(topic, SELECTOR)
        assert set(poll_numbers(consumer, len(MATCHING))) == MATCHING
        eventually(lambda: consumer.poll(timeout_ms=0) == [] and sum(consumer.lag().values()) == 0)
        with Admin(cluster.address) as admin:
            connection = admin.group_connection(group)
    assert connection is not None
    subscription = connection.subscriptions[topic]
    assert (subscription.sub_string, subscription.expression_type) == (SELECTOR.expression, "SQL92")


def test_assigned_queues_can_be_read_with_a_sql_selector(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic)
    with PullConsumer(cluster.address, group) as consumer:
        consumer.assign(consumer.queues(topic), SELECTOR)
        found: list[int] = []
        while len(found) < len(MATCHING):
            rows = consumer.poll_arrow(timeout_ms=60_000, columns=["body"])
            assert rows.num_rows
            found += map(int, rows.column("body").to_pylist())
    assert set(found) == MATCHING


def test_push_consumer_gets_the_messages_that_a_sql_selector_selects(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    fill(cluster, topic)
    seen = Seen()
    with PushConsumer(cluster.address, group, seen) as consumer:
        consumer.subscribe(topic, SELECTOR)
        seen.wait_for(len(MATCHING))
        fill(cluster, topic)
        eventually(lambda: sum(seen.numbers.values()) == 2 * len(MATCHING))
    assert seen.numbers.keys() == MATCHING


def test_async_consumer_takes_a_sql_selector(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    fill(cluster, topic)

    async def consume() -> set[int]:
        found: set[int] = set()
        async with aio.PullConsumer(cluster.address, group) as consumer:
            await consumer.subscribe(topic, SELECTOR)
            while len(found) < len(MATCHING):
                found |= {int(message.body) for message in await consumer.poll(timeout_ms=60_000)}
        return found

    assert asyncio.run(consume()) == MATCHING


def test_rocketmqs_pull_request_has_the_sql_selector(
    clusters: Callable[..., Cluster], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_puller: Puller, _context: RequestContext) -> None:
        raise Refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "like RocketMQ's brokers")

    monkeypatch.setattr(Puller, "pull_records", unknown)
    cluster = clusters(brokers=1)
    topic = cluster.topic()
    fill(cluster, topic)
    with PullConsumer(cluster.address, group) as consumer:
        consumer.subscribe(topic, SELECTOR)
        assert set(poll_numbers(consumer, len(MATCHING))) == MATCHING


def test_new_sql_selector_applies_to_messages_that_are_not_fetched_yet(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 10)
    with PullConsumer(cluster.address, group) as consumer:
        consumer.subscribe(topic, MessageSelector.by_sql("a < 5"))
        assert set(poll_numbers(consumer, 5)) == set(range(5))
        eventually(lambda: consumer.poll(timeout_ms=0) == [] and sum(consumer.lag().values()) == 0)
        consumer.subscribe(topic, MessageSelector.by_sql("a >= 8"))
        fill(cluster, topic, 10)
        assert set(poll_numbers(consumer, 2)) == {8, 9}


@pytest.mark.parametrize(
    ("expression", "mistake"),
    [
        ("a > > 5", r"unexpected '> 5'.*\(at character 5\)"),
        ("a = 1 OR " * 12_000 + "a = 2", "over the limit of"),
        ("(" * 1000 + "a" + ")" * 1000, "nested more than"),
        ("", "is empty"),
        (None, "give a string"),
    ],
)
def test_invalid_sql_expression_is_refused_at_subscribe_time(
    cluster: Cluster, group: str, expression: Any, mistake: str
) -> None:
    with pytest.raises(ConfigInvalid, match=mistake):
        MessageSelector.by_sql(expression)
    with (
        PullConsumer(cluster.address, group) as consumer,
        pytest.raises(ConfigInvalid, match=mistake),
    ):
        consumer.subscribe("T", MessageSelector(expression, "SQL92"))


def test_string_that_looks_like_sql_is_refused_with_the_remedy(cluster: Cluster, group: str) -> None:
    with (
        PullConsumer(cluster.address, group) as consumer,
        pytest.raises(ConfigInvalid, match=r"MessageSelector\.by_sql"),
    ):
        consumer.subscribe("T", "a > 5 AND b = 'x'")


def test_tag_selector_means_the_same_as_a_string() -> None:
    assert MessageSelector.by_tag("a || b").tags == ["a", "b"]
    assert MessageSelector.by_tag("a || *").tags == []
    assert SELECTOR.tags == []


def test_member_with_another_sql_selector_is_refused(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    config = ConsumerConfig(lease_ms=LONG_LEASE_MS)
    with (
        PullConsumer(cluster.address, group, config=config) as first,
        PullConsumer(cluster.address, group, config=config) as second,
    ):
        first.subscribe(topic, MessageSelector.by_sql("a = 1"))
        eventually(lambda: len(first.assignment()) == 2)
        second.subscribe(topic, MessageSelector.by_sql("a = 2"))
        with pytest.raises(SubscriptionDiffers, match="SQL92: a = 2"):
            second.poll(timeout_ms=60_000)
