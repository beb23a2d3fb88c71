"""Pull consumer: polls, Arrow rows, seeks, commits, and queues that move to another member."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
import structlog

from cluster.client import Admin, ConsumerConfig, MessageExt, MessageQueue, Producer, PullConsumer, aio
from cluster.client.consumer.deliveries import Deliveries
from cluster.client.consumer.fetcher import Chunk
from cluster.client.errors import (
    BrokerUnreachable,
    ClientClosed,
    ConfigInvalid,
    QueueNotAssigned,
    SubscriptionDiffers,
)
from cluster.client.group.offset_client import Commit, Committed, OffsetClient
from tests.eventually import LIMIT_S, NEVER_S, eventually

from .conftest import LONG_LEASE_MS, Cluster


def fill(cluster: Cluster, topic: str, count: int, **options: object) -> None:
    """Send the messages "0", "1", … with their numbers as sharding keys."""
    numbers = [f"{n}" for n in range(count)]
    with Producer(cluster.address, "fills") as producer:
        producer.send_many(topic, [n.encode() for n in numbers], sharding_keys=numbers, **options)  # type: ignore[arg-type]


def poll_messages(consumer: PullConsumer, count: int, max_messages: int = 500) -> list[MessageExt]:
    """Poll until at least `count` messages have arrived, and return them."""
    messages: list[MessageExt] = []
    while len(messages) < count:
        polled = consumer.poll(max_messages, timeout_ms=int(LIMIT_S * 1000))
        assert polled, f"{len(messages)} of {count} messages arrived"
        messages += polled
    return messages


def poll_numbers(consumer: PullConsumer, count: int) -> list[int]:
    """Poll until at least `count` messages have arrived, and return their numbers."""
    return [int(message.body) for message in poll_messages(consumer, count)]


def make_config(cluster: Cluster, group: str, **more: object) -> ConsumerConfig:
    return ConsumerConfig(nameservers=cluster.address, group=group, **more)  # type: ignore[arg-type]


def committed(cluster: Cluster, group: str, topic: str) -> int:
    with Admin(cluster.address) as admin:
        return sum(offset or 0 for offset in admin.committed_offsets(group, topic).values())


def test_poll_returns_each_message_once_in_queue_order(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 500)
    with PullConsumer(cluster.address, group) as consumer:
        consumer.assign(consumer.queues(topic))
        messages = poll_messages(consumer, 500, max_messages=70)
        assert sum(consumer.lag().values()) == 0
        assert consumer.poll(timeout_ms=0) == []
    assert sorted(int(message.body) for message in messages) == list(range(500))
    for queue in {(message.broker_name, message.queue_id) for message in messages}:
        offsets = [m.queue_offset for m in messages if (m.broker_name, m.queue_id) == queue]
        assert offsets == list(range(len(offsets)))
    assert committed(cluster, group, topic) == 500


def test_poll_and_poll_arrow_may_alternate(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 300)
    numbers: list[int] = []
    with PullConsumer(cluster.address, group) as consumer:
        consumer.assign(consumer.queues(topic))
        while len(numbers) < 300:
            rows = consumer.poll_arrow(max_rows=7, timeout_ms=60_000, columns=["body"])
            assert rows.num_rows
            assert rows.schema.names == ["body"]
            numbers += [int(body) for body in rows.column("body").to_pylist()]
            numbers += [int(message.body) for message in consumer.poll(max_messages=5, timeout_ms=0)]
            positions = sum(consumer.position(queue) for queue in consumer.assignment())
            assert positions == len(numbers)
        assert consumer.poll_arrow(timeout_ms=0).num_rows == 0
    assert sorted(numbers) == list(range(300))


def test_tags_are_compared_by_text_not_only_by_hash(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    tags = ["Aa", "BB", None, "C"] * 25  # "Aa" and "BB" have the same Java hash
    fill(cluster, topic, 100, tags=tags)
    with PullConsumer(cluster.address, group) as consumer:
        consumer.assign(consumer.queues(topic), "Aa || C")
        found = poll_numbers(consumer, 50)
        assert consumer.poll(timeout_ms=0) == []
        consumer.seek_to_beginning()
        rows = 0
        while rows < 50:
            batch = consumer.poll_arrow(timeout_ms=60_000)
            assert batch.num_rows
            assert set(batch.column("tags").to_pylist()) <= {"Aa", "C"}
            rows += batch.num_rows
    assert all(tags[number] in ("Aa", "C") for number in found)


@pytest.mark.parametrize(("commit", "expected"), [(True, 20), (None, 0), (False, 0)])
def test_close_without_auto_commit_commits_on_request(
    cluster: Cluster, group: str, commit: bool | None, expected: int
) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 20)
    consumer = PullConsumer(config=make_config(cluster, group, auto_commit=False)).start()
    consumer.subscribe(topic)
    poll_messages(consumer, 20)

    consumer.close(commit=commit)

    assert committed(cluster, group, topic) == expected


def test_group_resumes_at_its_committed_offsets(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 100)
    with PullConsumer(cluster.address, group, config=ConsumerConfig(auto_commit=False)) as consumer:
        consumer.assign(consumer.queues(topic))
        first = poll_numbers(consumer, 1)
        consumer.commit()
        poll_numbers(consumer, 100 - len(first))
    with PullConsumer(cluster.address, group) as consumer:
        consumer.assign(consumer.queues(topic))
        rest = poll_numbers(consumer, 100 - len(first))
    assert sorted(first + rest) == list(range(100))


def test_failed_with_block_does_not_commit_last_message(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 50)
    done: list[bytes] = []

    def consume() -> None:
        with PullConsumer(cluster.address, group) as consumer:
            consumer.assign(consumer.queues(topic))
            for message in consumer:
                if len(done) == 20:
                    raise ZeroDivisionError
                done.append(message.body)

    with pytest.raises(ZeroDivisionError):
        consume()
    assert committed(cluster, group, topic) == 20, "the message that failed is not committed"


def test_seek_by_offset_and_by_time(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    queue = MessageQueue(topic, "a", 0)
    with Producer(cluster.address, "fills") as producer:
        for n in range(10):
            producer.send(topic, f"{n}", queue=queue)
    with PullConsumer(cluster.address, group) as consumer:
        consumer.assign([queue])
        everything = poll_messages(consumer, 10, max_messages=1)
        consumer.seek(queue, 7)
        assert poll_numbers(consumer, 3) == [7, 8, 9]
        consumer.seek_to_time(everything[4].store_timestamp)
        [again] = poll_messages(consumer, 1, max_messages=1)
        assert again.store_timestamp == everything[4].store_timestamp
        assert again.queue_offset <= 4
        consumer.seek_to_end()
        assert consumer.position(queue) == consumer.end_offset(queue) == 10
        consumer.seek(queue, 1_000)  # beyond the end: the broker responds with the end offset
        assert eventually(lambda: consumer.poll(timeout_ms=0) or consumer.position(queue) == 10)
        with pytest.raises(QueueNotAssigned):
            consumer.seek(MessageQueue(topic, "b", 0), 0)


def test_paused_queue_returns_nothing_and_loses_nothing(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 100)
    with PullConsumer(cluster.address, group) as consumer:
        consumer.assign(consumer.queues(topic))
        quiet, loud = consumer.assignment()
        consumer.pause(quiet)
        ends = {queue: consumer.end_offset(queue) for queue in (quiet, loud)}
        messages = poll_messages(consumer, ends[loud])
        assert {message.broker_name for message in messages} == {loud.broker_name}
        assert consumer.poll(timeout_ms=0) == []
        consumer.resume(quiet)
        messages += poll_messages(consumer, 100 - len(messages))
    assert sorted(int(message.body) for message in messages) == list(range(100))


def test_new_group_may_start_at_end(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 50)
    config = make_config(cluster, group, consume_from="latest")
    with PullConsumer(config=config) as consumer, Producer(cluster.address, "fills") as producer:
        consumer.assign(consumer.queues(topic))
        producer.send(topic, b"1000")
        assert poll_numbers(consumer, 1) == [1000]


def test_poll_refuses_invalid_arguments(cluster: Cluster, group: str) -> None:
    with PullConsumer(cluster.address, group) as consumer:
        for count in (0, -1):
            with pytest.raises(ConfigInvalid, match=f"max_messages is {count}: it must be over 0"):
                consumer.poll(count)
        with pytest.raises(ConfigInvalid, match="max_rows is -1"):
            consumer.poll_arrow(-1)
        with pytest.raises(ConfigInvalid, match="timeout_ms is -1: it must be 0 or more"):
            consumer.poll(timeout_ms=-1)


def test_seek_to_negative_offset_is_refused(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 3)
    with PullConsumer(cluster.address, group) as consumer:
        consumer.assign(consumer.queues(topic))
        poll_numbers(consumer, 3)
        with pytest.raises(ConfigInvalid, match="to -5: offsets begin at 0"):
            consumer.seek(consumer.queues(topic)[0], -5)
        with Producer(cluster.address, "fills") as producer:
            for queue in consumer.queues(topic):
                producer.send(topic, b"7", queue=queue)
        assert set(poll_numbers(consumer, len(consumer.queues(topic)))) == {7}, (
            "no message is delivered twice"
        )


def test_moved_offset_is_logged_with_group(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 3)
    with structlog.testing.capture_logs() as logs, PullConsumer(cluster.address, group) as consumer:
        consumer.assign(consumer.queues(topic))
        poll_numbers(consumer, 3)
        queue = consumer.queues(topic)[0]
        end = consumer.end_offset(queue)
        consumer.seek(queue, end + 1000)
        eventually(lambda: any(each["event"] == "offset_moved" for each in logs))
    [moved] = [each for each in logs if each["event"] == "offset_moved"]
    assert (moved["group"], moved["requested"], moved["resumed_at"]) == (group, end + 1000, end)


def test_waiting_poll_returns_when_message_arrives(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    with PullConsumer(cluster.address, group) as consumer, Producer(cluster.address, "fills") as producer:
        consumer.assign(consumer.queues(topic))
        sent = producer.send_async(topic, b"7")
        assert poll_numbers(consumer, 1) == [7]
        sent.result()


def test_leaving_member_hands_over_its_queues(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    config = ConsumerConfig(lease_ms=LONG_LEASE_MS)
    first = PullConsumer(cluster.address, group, config=config)
    second = PullConsumer(cluster.address, group, config=config)
    first.subscribe(topic)
    eventually(lambda: len(first.assignment()) == 8)
    second.subscribe(topic)
    eventually(lambda: first.poll(timeout_ms=0) == [] and len(second.assignment()) == 4)
    assert not set(first.assignment()) & set(second.assignment())
    fill(cluster, topic, 200)
    seen = {int(m.body) for m in first.poll(timeout_ms=60_000)} | {
        int(m.body) for m in second.poll(timeout_ms=60_000)
    }
    first.close()
    while len(seen) < 200:
        polled = {int(message.body) for message in second.poll(timeout_ms=60_000)}
        assert polled
        assert not polled & seen, "a message was delivered twice although its member closed properly"
        seen |= polled
    eventually(lambda: len(second.assignment()) == 8)
    second.close()
    assert committed(cluster, group, topic) == 200


def test_revoked_queue_is_released_by_next_poll(
    cluster: Cluster, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[int] = []
    arrived = Deliveries.arrived

    def counted(deliveries: Deliveries, chunk: Chunk) -> None:
        arrived(deliveries, chunk)
        fetched.append(chunk.count)

    monkeypatch.setattr(Deliveries, "arrived", counted)
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 20)
    config = ConsumerConfig(lease_ms=LONG_LEASE_MS)
    first, second = (PullConsumer(cluster.address, group, config=config) for _ in range(2))
    first.subscribe(topic)
    eventually(lambda: sum(fetched) == 20)
    assert len(first.poll(timeout_ms=60_000)) == 20, "the messages of this poll are not acknowledged yet"
    second.subscribe(topic)
    eventually(lambda: len(first.assignment()) == 1)
    assert second.assignment() == [], "the first member has not acknowledged its last poll"
    assert first.poll(timeout_ms=0) == []
    eventually(lambda: len(second.assignment()) == 1)
    with Producer(cluster.address, "fills") as producer:
        producer.send(topic, b"20", queue=second.assignment()[0])
    assert poll_numbers(second, 1) == [20], "the first member has committed its messages"
    first.close()
    second.close()


def test_member_with_different_subscription_is_refused(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    config = ConsumerConfig(lease_ms=LONG_LEASE_MS)
    with (
        PullConsumer(cluster.address, group, config=config) as first,
        PullConsumer(cluster.address, group, config=config) as second,
    ):
        first.subscribe(topic, "a")
        eventually(lambda: len(first.assignment()) == 2)
        second.subscribe(topic, "b")
        with pytest.raises(SubscriptionDiffers, match="allow_subscription_change"):
            second.poll(timeout_ms=60_000)


def test_consumer_with_assigned_queues_cannot_subscribe(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    with PullConsumer(cluster.address, group) as consumer:
        consumer.assign(consumer.queues(topic))
        with pytest.raises(ConfigInvalid, match="cannot subscribe"):
            consumer.subscribe(topic)
    with pytest.raises(ClientClosed):
        consumer.poll()
    with pytest.raises(ConfigInvalid, match="consumer group"):
        PullConsumer(cluster.address, "no blanks")


def test_consumer_resumes_after_broker_restart(clusters: Callable[..., Cluster], group: str) -> None:
    cluster = clusters(brokers=1)
    topic = cluster.topic()
    fill(cluster, topic, 100)
    with PullConsumer(cluster.address, group) as consumer:
        consumer.subscribe(topic)
        before = poll_numbers(consumer, 100)
        cluster.stop_broker("a")
        cluster.start_broker("a")
        with Producer(cluster.address, "fills") as producer:
            producer.send(topic, b"100", sharding_key="k")
        assert poll_numbers(consumer, 1) == [100]
    assert sorted(before) == list(range(100))
    assert committed(cluster, group, topic) == 101


def test_missing_broker_does_not_block_commits_to_others(
    clusters: Callable[..., Cluster], group: str
) -> None:
    cluster = clusters()
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 100)
    kept, gone = (MessageQueue(topic, name, 0) for name in "ab")
    config = make_config(cluster, group, commit_interval_ms=20, commit_timeout_ms=0, sticky_broker_ms=1)
    with structlog.testing.capture_logs() as logs, PullConsumer(config=config) as consumer:
        consumer.assign([kept, gone])
        poll_numbers(consumer, 100)
        cluster.stop_broker("b")
        eventually(lambda: consumer.queues(topic) == [kept])  # no route names broker b any more
        consumer.seek(kept, 7)
        consumer.seek(gone, 7)
        eventually(lambda: committed(cluster, group, topic) == 7)
        consumer.seek(kept, 8)
        eventually(lambda: committed(cluster, group, topic) == 8)
        with pytest.raises(BrokerUnreachable, match="has no master of broker 'b'"):
            consumer.commit()
    assert [entry["broker"] for entry in logs if entry["event"] == "commit_failed"] == ["b"]


def test_commit_is_retried_until_broker_restarts(
    clusters: Callable[..., Cluster], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[Committed] = []
    commit_once = OffsetClient.commit

    async def recorded(client: OffsetClient, offsets: Mapping[MessageQueue, Commit]) -> Committed:
        outcomes.append(await commit_once(client, offsets))
        return outcomes[-1]

    monkeypatch.setattr(OffsetClient, "commit", recorded)
    cluster = clusters()
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 100)
    config = make_config(cluster, group, auto_commit=False, commit_timeout_ms=int(NEVER_S * 1000))
    with PullConsumer(config=config) as consumer, ThreadPoolExecutor(1) as other:
        consumer.assign(consumer.queues(topic))
        poll_numbers(consumer, 100)
        cluster.stop_broker("b")
        commit = other.submit(consumer.commit)
        eventually(lambda: len(outcomes) >= 2)
        assert all(outcome.unconfirmed.keys() == {"b"} for outcome in outcomes)
        assert not commit.done()
        cluster.start_broker("b")
        commit.result(timeout=LIMIT_S)
    assert committed(cluster, group, topic) == 100


def test_close_by_another_thread_ends_iteration(
    cluster: Cluster, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.client.consumer.aio_pull_consumer.ITERATION_WAIT_MS", int(NEVER_S * 1000))
    topic = cluster.topic()
    fill(cluster, topic, 10)
    consumer = PullConsumer(cluster.address, group).start()
    consumer.subscribe(topic)
    numbers: list[int] = []
    reading = threading.Thread(target=lambda: numbers.extend(int(message.body) for message in consumer))
    reading.start()
    eventually(lambda: len(numbers) == 10)
    consumer.close()
    reading.join(LIMIT_S)
    assert not reading.is_alive()
    assert sorted(numbers) == list(range(10))


def test_async_consumer_iterates(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 100)

    async def read() -> None:
        numbers = []
        async with aio.PullConsumer(cluster.address, group) as consumer:
            await consumer.subscribe(topic)
            async for message in consumer:
                numbers.append(int(message.body))
                if len(numbers) == 100:
                    break
            assert sum((await consumer.lag()).values()) == 0
            await consumer.commit()
            await consumer.seek_to_beginning()
            rows = await consumer.poll_arrow(timeout_ms=60_000)
            assert rows.num_rows
            queue = consumer.assignment()[0]
            await consumer.pause(queue)
            await consumer.resume(queue)
            assert await consumer.beginning_offset(queue) == 0
        assert sorted(numbers) == list(range(100))

    asyncio.run(read())


def test_topic_may_be_subscribed_before_it_exists(cluster: Cluster, group: str) -> None:
    config = make_config(cluster, group, sync_interval_ms=50)
    with PullConsumer(config=config) as consumer:
        consumer.subscribe("created-later")
        with Admin(cluster.address) as admin:
            admin.create_topic("created-later", queues=1)
        fill(cluster, "created-later", 10)
        assert sorted(poll_numbers(consumer, 10)) == list(range(10))
