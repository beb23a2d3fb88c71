"""Every call rejects invalid arguments immediately, with an error that names the argument."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cluster.client import (
    Admin,
    ClientConfig,
    ConsumerConfig,
    Message,
    MessageQueue,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
    SelectMessageQueueByHash,
    aio,
)
from cluster.client.errors import BrokerUnreachable, ConfigInvalid, QueueNotAssigned, TopicNotFound
from tests.eventually import eventually

from .conftest import Cluster
from .test_pull_consumer import fill, poll_messages, poll_numbers

UNUSED_ADDRESS = "127.0.0.1:9"


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (ClientConfig, {"request_timeout_ms": 0}),
        (ProducerConfig, {"heartbeat_ms": 0}),
        (ConsumerConfig, {"route_refresh_ms": -1}),
        (PushConfig, {"sticky_broker_ms": -1}),
        (ProducerConfig, {"send_timeout_ms": "5"}),
        (ProducerConfig, {"retry_times_when_send_failed": -1}),
        (ConsumerConfig, {"long_poll_ms": -1}),
        (ConsumerConfig, {"max_poll_interval_ms": 0}),
        (ConsumerConfig, {"commit_interval_ms": 0.5}),
        (ConsumerConfig, {"consume_from": "timestamp", "consume_timestamp_ms": -1}),
        (ConsumerConfig, {"strategy": 5}),
        (PushConfig, {"close_timeout_ms": -1}),
        (PushConfig, {"max_reconsume_times": -2}),
        (PushConfig, {"retry": "later"}),
        (PushConfig, {"ordered": True, "retry": "broker"}),
        (PushConfig, {"retry_backoff_ms": 5}),
        (PushConfig, {"retry_backoff_ms": [100, -1]}),
    ],
)
def test_invalid_setting_is_named_in_the_error(config: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigInvalid, match=list(settings)[-1]):
        config(**settings)


WRONG_TYPES = ["5", b"x", -5, True, 1.5, float("nan"), float("inf"), 10**30, None, [], {}, object()]
ALLOWED: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: type(value) is int,
    "Positive": lambda value: type(value) is int and value > 0,
    "NotNegative": lambda value: type(value) is int and value >= 0,
    "Sequence": lambda value: isinstance(value, list),
}


@pytest.mark.parametrize("config", [ClientConfig, ProducerConfig, ConsumerConfig, PushConfig])
def test_every_setting_refuses_values_of_another_type_by_name(config: Any) -> None:
    for each in fields(config):
        kind = each.type.partition("[")[0]
        for value in WRONG_TYPES:
            if kind in ALLOWED and not ALLOWED[kind](value):
                with pytest.raises(ConfigInvalid, match=each.name):
                    config(**{each.name: value})
        if each.name.endswith("_ms"):
            for value in (-5, 10**30):
                with pytest.raises(ConfigInvalid, match=each.name):
                    config(
                        **{
                            each.name: value,
                            **({"consume_from": "timestamp"} if "stamp" in each.name else {}),
                        }
                    )


@pytest.mark.parametrize(
    "make",
    [
        Producer,
        PullConsumer,
        PushConsumer,
        ClientConfig,
        ProducerConfig,
        PushConfig,
        aio.Producer,
        Admin,
        aio.Admin,
    ],
)
def test_unknown_keyword_is_refused_by_name(make: Any) -> None:
    with pytest.raises(TypeError, match="retries"):
        make(retries=3)


def test_max_reconsume_times_of_minus_one_means_16() -> None:
    assert PushConfig(max_reconsume_times=-1).max_reconsume_times == 16
    assert PushConfig(max_reconsume_times=0).max_reconsume_times == 0


@pytest.mark.parametrize("given", [5, [5], "http://127.0.0.1:9876"])
def test_invalid_nameserver_lists_are_rejected(given: Any) -> None:
    with pytest.raises(ConfigInvalid, match="nameserver"):
        Producer(given)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Producer(UNUSED_ADDRESS, config=PushConfig()),  # type: ignore[arg-type]
        lambda: Producer(UNUSED_ADDRESS, config={}),  # type: ignore[arg-type]
        lambda: PullConsumer(UNUSED_ADDRESS, config=ProducerConfig()),  # type: ignore[arg-type]
        lambda: Producer(UNUSED_ADDRESS, 5),  # type: ignore[arg-type]
        lambda: PullConsumer(UNUSED_ADDRESS, 5),  # type: ignore[arg-type]
        lambda: PushConsumer(UNUSED_ADDRESS, print, "group"),  # type: ignore[arg-type]
    ],
)
def test_constructors_reject_arguments_of_the_wrong_type(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigInvalid, match=r"config is a|group is 5|listener is"):
        make()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tags": 5}, "message to topic 'T': tags are 5"),
        ({"tags": ["a"]}, "tags are"),
        ({"properties": {"a": 1}}, "'a': 1"),
        ({"properties": {"a": None}}, "'a': None"),
        ({"properties": {None: "a"}}, "None: 'a'"),
        ({"properties": ["a"]}, "mapping"),
        ({"queue": MessageQueue("T", "a", -1)}, "does not exist"),
        ({"selector": "hash"}, "selector is 'hash'"),
        ({"selector": SelectMessageQueueByHash}, "an instance"),
        ({"argument": 5}, "without a selector"),
        ({"timeout_ms": "5"}, "timeout_ms is '5'"),
        ({"timeout_ms": float("nan")}, "timeout_ms"),
        ({"timeout_ms": float("inf")}, "timeout_ms"),
        ({"timeout_ms": True}, "timeout_ms is True"),
        ({"timeout_ms": 10**30}, "timeout_ms"),
        ({"timeout_ms": -1}, "timeout_ms is -1"),
    ],
)
def test_invalid_send_arguments_are_rejected_without_a_request(options: dict[str, Any], message: str) -> None:
    with Producer(UNUSED_ADDRESS) as producer:
        with pytest.raises(ConfigInvalid, match=message):
            producer.send("T", b"x", **options)
        with pytest.raises(ConfigInvalid, match=message):
            producer.send_async("T", b"x", **options)
        with pytest.raises(ConfigInvalid, match="a generator: give a list"):
            producer.send_batch(Message("T", b"x") for _ in range(2))  # type: ignore[arg-type]
        for topic in (None, b"T", 5):
            with pytest.raises(Exception, match=r"the topic is .*: give a string"):
                producer.send(topic, b"x")  # type: ignore[arg-type]
            with pytest.raises(Exception, match=r"the topic is .*: give a string"):
                producer.queues(topic)  # type: ignore[arg-type]


def test_lone_surrogate_is_encoded_as_a_question_mark(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    with Producer(cluster.address, group) as producer:
        producer.send(topic, b"x", tags="a\ud800", timeout_ms=60_000.5)  # type: ignore[arg-type]
        producer.send(topic, b"x", tags="ä\ud800")
    with PullConsumer(cluster.address, group) as consumer:
        consumer.assign(consumer.queues(topic))
        eventually(lambda: sum(consumer.lag().values()) == 2)
        tags = {message.tags for message in poll_messages(consumer, 2)}
    assert tags == {"a?", "ä?"}


@pytest.mark.parametrize("topics", [None, 5, "", "a b", ["T", 5], "T." * 80])
def test_subscribe_rejects_invalid_topics(cluster: Cluster, group: str, topics: Any) -> None:
    with PullConsumer(cluster.address, group) as pulls, PushConsumer(cluster.address, group, print) as pushes:
        for consumer in (pulls, pushes):
            with pytest.raises(ConfigInvalid, match="subscribe"):
                consumer.subscribe(topics)


@pytest.mark.parametrize("expression", [None, 5, "a > 5 AND b = 'x'", "age BETWEEN 3 AND 5", "x || a = 1"])
def test_subscribe_rejects_expressions_that_are_not_tag_lists(
    cluster: Cluster, group: str, expression: Any
) -> None:
    with PullConsumer(cluster.address, group) as consumer:
        with pytest.raises(ConfigInvalid, match="expression"):
            consumer.subscribe("T", expression)
        for fine in ("", "IN || NOT", "New York || a=b"):
            consumer.subscribe("T", fine)


def test_poll_without_subscription_or_assignment_is_rejected(cluster: Cluster, group: str) -> None:
    with PullConsumer(cluster.address, group) as consumer:
        for poll in (consumer.poll, consumer.poll_arrow, lambda: next(consumer)):
            with pytest.raises(ConfigInvalid, match="subscribe, or assign, first"):
                poll()
        consumer.assign([])
        assert consumer.poll(timeout_ms=0) == []


def test_assign_rejects_unknown_queues_and_assigns_nothing(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=2)
    with PullConsumer(cluster.address, group) as consumer:
        with pytest.raises(ConfigInvalid, match="does not exist"):
            consumer.assign([MessageQueue(topic, "a", 2)])
        with pytest.raises(BrokerUnreachable, match="no route names that broker; the topic is on a, b"):
            consumer.assign([MessageQueue(topic, "unknown-broker", 0)])
        with pytest.raises(TopicNotFound):
            consumer.assign([MessageQueue("no-such-topic", "a", 0)])
        for wrong in (topic, None, [(topic, 0)], MessageQueue(topic, "a", 0)):
            with pytest.raises(ConfigInvalid, match="give"):
                consumer.assign(wrong)  # type: ignore[arg-type]
        consumer.subscribe(topic)  # would be rejected if a queue had been assigned


def test_consumer_rejects_invalid_offsets_times_and_queues(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 4)
    with PullConsumer(cluster.address, group) as consumer:
        consumer.assign(consumer.queues(topic))
        queue = consumer.assignment()[0]
        calls: list[Callable[[], object]] = [
            *(lambda wrong=wrong: consumer.seek(queue, wrong) for wrong in (-1, 1.5, "5", None, 1 << 63)),
            *(lambda wrong=wrong: consumer.commit({queue: wrong}) for wrong in (-1, "5", None)),
            *(lambda wrong=wrong: consumer.seek_to_time(wrong) for wrong in (-1, 1.5, "2020-01-01", 1 << 70)),
            *(lambda wrong=wrong: consumer.pause(wrong) for wrong in ([queue], 0, None)),
            *(lambda wrong=wrong: consumer.committed(wrong) for wrong in (0, None, topic)),
            *(lambda wrong=wrong: consumer.poll(wrong) for wrong in ("5", 1.5, 0)),
            lambda: consumer.commit([queue]),  # type: ignore[arg-type]
            lambda: consumer.seek_to_beginning(queue),
            lambda: consumer.poll(timeout_ms=None),  # type: ignore[arg-type]
            lambda: consumer.poll_arrow(columns=["nope"]),
            lambda: consumer.poll_arrow(columns="body"),
            lambda: consumer.queues(None),  # type: ignore[arg-type]
        ]
        for call in calls:
            with pytest.raises(ConfigInvalid):
                call()
        consumer.seek(queue, np.int64(0))  # type: ignore[arg-type]
        consumer.commit({queue: np.int64(1)})  # type: ignore[dict-item]
        assert consumer.committed(queue) == 1
        assert sorted(poll_numbers(consumer, 4)) == [0, 1, 2, 3]


def test_assign_times_out_if_a_broker_does_not_respond(
    cluster: Cluster, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cluster.client.consumer import pull_core
    from cluster.client.errors import DeadlineExceeded
    from cluster.client.group.offset_client import OffsetClient

    topic = cluster.topic(queues=1)
    committed = OffsetClient.committed
    timeout = asyncio.Timeout(None)  # expires once the position in the other broker's queue is known

    async def not_responding(client: OffsetClient, queue: MessageQueue, generation: int = 0) -> int | None:
        if queue.broker_name == "b":
            with suppress(QueueNotAssigned):
                consumer.position(MessageQueue(topic, "a", 0))
                timeout.reschedule(0)
            raise BrokerUnreachable("no connection")
        return await committed(client, queue, generation)

    monkeypatch.setattr(OffsetClient, "committed", not_responding)
    patched_asyncio = SimpleNamespace(**{**vars(asyncio), "timeout": lambda _limit_s: timeout})
    monkeypatch.setattr(pull_core, "asyncio", patched_asyncio)
    with PullConsumer(cluster.address, group) as consumer:
        with pytest.raises(DeadlineExceeded, match=r"no starting offset .*brokerName=b"):
            consumer.assign(consumer.queues(topic))
        assert [queue.broker_name for queue in consumer.assignment()] == ["a"]


def test_paused_queue_returns_no_prefetched_messages(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 40)
    with PullConsumer(cluster.address, group) as consumer:
        consumer.assign(consumer.queues(topic))
        [first] = poll_messages(consumer, 1, max_messages=1)
        paused_broker = first.broker_name
        paused = MessageQueue(topic, paused_broker, 0)
        active = next(queue for queue in consumer.assignment() if queue != paused)
        consumer.pause(paused)
        count = consumer.end_offset(active)
        others = poll_messages(consumer, count, max_messages=1)
        assert {message.broker_name for message in others} == {active.broker_name}
        assert consumer.poll(timeout_ms=0) == [], "prefetched messages of the paused queue are not returned"
        consumer.resume(paused)
        rest = poll_messages(consumer, consumer.end_offset(paused) - 1)
        offsets = [message.queue_offset for message in rest]
        assert offsets == list(range(1, consumer.end_offset(paused)))


def test_pause_without_queues_includes_queues_assigned_later(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 10)
    with PullConsumer(cluster.address, group) as consumer:
        consumer.pause()
        consumer.subscribe(topic)
        eventually(lambda: len(consumer.lag()) == 2)
        assert consumer.poll(timeout_ms=100) == []
        consumer.resume()
        assert sorted(poll_numbers(consumer, 10)) == list(range(10))
        consumer.pause()
        fill(cluster, topic, 2)
        assert consumer.poll(timeout_ms=100) == []


def test_commit_of_all_queues_overrides_an_earlier_explicit_commit(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 10)
    with PullConsumer(cluster.address, group, config=ConsumerConfig(auto_commit=False)) as consumer:
        consumer.assign(consumer.queues(topic))
        poll_numbers(consumer, 10)
        consumer.commit()
        queue = consumer.assignment()[0]
        end = consumer.end_offset(queue)
        consumer.commit({queue: 1})
        assert consumer.committed(queue) == 1
        consumer.commit()
        assert consumer.committed(queue) == end


@pytest.mark.parametrize("kind", ["pull", "push"])
def test_new_subscription_expression_applies_to_later_messages(
    cluster: Cluster, group: str, kind: str
) -> None:
    topic, tags, lock = cluster.topic(queues=1), [], threading.Lock()

    def listen(messages: list[Any]) -> None:
        with lock:
            tags.extend(message.tags for message in messages)

    consumer: PullConsumer | PushConsumer
    consumer = (
        PullConsumer(cluster.address, group)
        if kind == "pull"
        else PushConsumer(cluster.address, group, listen)
    )

    def seen(count: int) -> bool:
        if isinstance(consumer, PullConsumer):
            listen(consumer.poll(timeout_ms=10))
        return len(tags) >= count

    with consumer, Producer(cluster.address, group) as producer:
        queue = MessageQueue(topic, "a", 0)
        consumer.subscribe(topic, "a")
        eventually(lambda: len(consumer.assignment()) == 2)
        for tag in ("b", "a", "b", "a"):
            producer.send(topic, b"1", tags=tag, queue=queue)
        eventually(lambda: seen(2))
        consumer.subscribe(topic, "a || b")
        for tag in ("c", "a", "b", "c", "a", "b"):
            producer.send(topic, b"2", tags=tag, queue=queue)
        eventually(lambda: seen(6))
        consumer.subscribe(topic, "c")
        for tag in ("a", "b", "c", "a", "b", "c"):
            producer.send(topic, b"3", tags=tag, queue=queue)
        eventually(lambda: seen(8))
    assert tags[:2] == ["a", "a"]
    assert sorted(tags[2:6]) == ["a", "a", "b", "b"]  # listeners of one queue run concurrently
    assert tags[6:] == ["c", "c"]


def test_asyncio_consumer_rejects_the_same_arguments() -> None:
    async def main() -> None:
        async with aio.PullConsumer(UNUSED_ADDRESS, "g") as consumer:
            with pytest.raises(ConfigInvalid, match="subscribe, or assign"):
                await consumer.poll()
            with pytest.raises(ConfigInvalid, match="subscribe"):
                await consumer.subscribe("a b")
            with pytest.raises(ConfigInvalid, match="timestamp_ms"):
                await consumer.seek_to_time(1.5)  # type: ignore[arg-type]

    asyncio.run(main())
