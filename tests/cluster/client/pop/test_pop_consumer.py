"""PopConsumer: receive, ack, nack and extend, blocking and async, on several brokers."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster.client import Admin, MessageSelector, PopConfig, PopConsumer, Producer
from cluster.client.aio import PopConsumer as AioPopConsumer
from cluster.client.errors import ClientClosed, ConfigInvalid, ReceiptExpired, TopicNotFound
from cluster.views.groups import describe_group
from store.message.message import MessageExt
from tests.cluster.client.conftest import Cluster
from tests.eventually import LIMIT_S, NEVER_S, eventually

WAIT_MS = int(LIMIT_S * 1000)


def send(cluster: Cluster, topic: str, count: int, **fields: object) -> list[str]:
    bodies = [f"{number:03}" for number in range(count)]
    with Producer(cluster.address) as producer:
        for body in bodies:
            producer.send(topic, body.encode(), **fields)  # type: ignore[arg-type]
    return bodies


def receive_all(worker: PopConsumer, topic: str, count: int) -> list[MessageExt]:
    found: list[MessageExt] = []
    while len(found) < count:
        found += worker.receive(topic, max_messages=32, timeout_ms=WAIT_MS)
    return found


def texts(messages: list[MessageExt]) -> list[str]:
    return sorted(message.body.decode() for message in messages)


def lag(cluster: Cluster, group: str, topic: str) -> int:
    with Admin(cluster.address) as admin:
        return admin.group_stats(group, topic).lag


def test_received_messages_are_acknowledged(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    sent = send(cluster, topic, 40)
    with PopConsumer(cluster.address, group) as worker:
        received = receive_all(worker, topic, 40)
        assert texts(received) == sent
        assert {message.topic for message in received} == {topic}
        worker.ack(received[0])
        worker.ack(received[1:])
        worker.ack(received[1:])  # again: no effect
        eventually(lambda: lag(cluster, group, topic) == 0)
        assert worker.receive(topic, timeout_ms=0) == []


def test_worker_is_a_member_of_its_group(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    with Admin(cluster.address) as admin:
        with PopConsumer(cluster.address, group) as worker:
            worker.receive(topic, "red", timeout_ms=0)
            found = admin.group_connection(group)
            assert found is not None
            assert (len(found.connections), found.consume_type) == (1, "CONSUME_POP")
            described = describe_group(admin, group, None)
            assert described is not None
            assert [each.client_id for each in described.members] == [found.connections[0].client_id]
            assert described.subscriptions == {topic: "red"}
        eventually(lambda: admin.group_connection(group) is None)


def test_more_workers_than_queues_share_the_messages(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    started = threading.Barrier(6)

    def work() -> list[str]:
        with PopConsumer(cluster.address, group) as worker:
            started.wait(LIMIT_S)
            done: list[str] = []
            while jobs := worker.receive(topic, max_messages=2, timeout_ms=2_000):
                done += texts(jobs)
                worker.ack(jobs)
            return done

    with ThreadPoolExecutor(5) as pool:
        workers = [pool.submit(work) for _ in range(5)]
        started.wait(LIMIT_S)
        sent = send(cluster, topic, 60)
        done = [each.result(LIMIT_S) for each in workers]
    assert sorted(body for each in done for body in each) == sent
    assert sum(1 for each in done if each) > 2


def test_nack_delivers_again_and_extend_keeps_invisible(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    send(cluster, topic, 1)
    with PopConsumer(cluster.address, group) as worker:
        (job,) = worker.receive(topic, timeout_ms=WAIT_MS)
        worker.extend(job, 3_600_000)
        worker.nack(job)
        (again,) = worker.receive(topic, timeout_ms=WAIT_MS)
        assert (again.body, again.reconsume_times, again.topic) == (job.body, 1, topic)
        with pytest.raises(ReceiptExpired):
            worker.extend(job, 1_000)
        worker.nack(again, delay_ms=50)
        (last,) = worker.receive(topic, timeout_ms=WAIT_MS)
        assert last.reconsume_times == 2
        worker.ack(pickle.loads(pickle.dumps(last)))  # another process may acknowledge it
        with pytest.raises(ReceiptExpired):
            worker.nack(last)


def test_unacknowledged_message_is_delivered_to_another_worker(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    send(cluster, topic, 1)
    config = PopConfig(invisible_ms=200)
    with PopConsumer(cluster.address, group, config=config) as first:
        assert len(first.receive(topic, timeout_ms=WAIT_MS)) == 1
    with PopConsumer(cluster.address, group) as second:
        (job,) = second.receive(topic, timeout_ms=WAIT_MS)
        assert job.reconsume_times == 1
        second.ack(job)


def test_selectors_choose_messages(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    for tag in ("a", "b"):
        send(cluster, topic, 3, tags=tag)
    with PopConsumer(cluster.address, group) as worker:
        found = worker.receive(topic, "b", max_messages=32, timeout_ms=WAIT_MS)
        assert {message.tags for message in found} == {"b"}
    with PopConsumer(cluster.address, f"{group}-sql") as worker:
        selector = MessageSelector.by_sql("TAGS = 'a'")
        assert {m.tags for m in worker.receive(topic, selector, max_messages=32, timeout_ms=WAIT_MS)} == {"a"}


def test_waiting_worker_gets_a_message_of_any_broker(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    with PopConsumer(cluster.address, group) as worker, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.receive, topic, timeout_ms=WAIT_MS)
        send(cluster, topic, 1)
        (job,) = waiting.result(LIMIT_S)
        worker.ack(job)


def test_async_worker_receives_and_acknowledges(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    send(cluster, topic, 2)

    async def work() -> int:
        async with AioPopConsumer(cluster.address, group) as worker:
            done = 0
            while done < 2:
                jobs = await worker.receive(topic, max_messages=2, timeout_ms=WAIT_MS)
                await worker.ack(jobs)
                done += len(jobs)
            return done

    assert cluster.run(work()) == 2
    eventually(lambda: lag(cluster, group, topic) == 0)


def test_workers_continue_while_one_broker_is_down(clusters: Callable[..., Cluster], group: str) -> None:
    cluster = clusters()
    topic = cluster.topic()
    sent = send(cluster, topic, 20)
    with PopConsumer(cluster.address, group) as worker:
        first = worker.receive(topic, max_messages=1, timeout_ms=WAIT_MS)
        worker.ack(first)
        cluster.stop_broker("a")
        there = [m for m in iter(lambda: worker.receive(topic, timeout_ms=0), []) for m in m]
        worker.ack(there)
        cluster.start_broker("a")
        rest = receive_all(worker, topic, 20 - len(first) - len(there))
        worker.ack(rest)
        assert texts(first + there + rest) == sent


def test_invalid_calls_are_refused(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    send(cluster, topic, 1)
    for config in ({"invisible_ms": 0}, {"invisible_ms": "1"}, {"consume_from": "timestamp"}):
        with pytest.raises(ConfigInvalid):
            PopConfig(**config)  # type: ignore[arg-type]
    with pytest.raises(ConfigInvalid):
        PopConsumer(cluster.address, "bad group")
    worker = PopConsumer(cluster.address, group)
    for arguments in ({"max_messages": 33}, {"max_messages": 0}, {"invisible_ms": 0}, {"timeout_ms": -1}):
        with pytest.raises(ConfigInvalid):
            worker.receive(topic, **arguments)  # type: ignore[arg-type]
    with pytest.raises(TopicNotFound):
        worker.receive("no-such-topic", timeout_ms=0)
    with pytest.raises(ConfigInvalid, match="not received"):
        worker.ack(MessageExt(topic=topic, body=b""))
    with pytest.raises(ConfigInvalid, match="delay_ms"):
        worker.nack(MessageExt(topic=topic, body=b""), delay_ms=-1)
    assert len(worker.receive(topic, timeout_ms=WAIT_MS, invisible_ms=int(NEVER_S * 1000))) == 1
    worker.close()
    with pytest.raises(ClientClosed):
        worker.receive(topic)


def test_ordered_messages_are_received_one_by_one_and_count_deliveries(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    with Producer(cluster.address) as producer:
        queue = producer.queues(topic)[0]
        for body in (b"1", b"2"):
            producer.send(topic, body, queue=queue)
    with PopConsumer(cluster.address, group) as worker, PopConsumer(cluster.address, group) as other:
        (first,) = worker.receive(topic, timeout_ms=WAIT_MS, ordered=True)
        assert (first.body, first.reconsume_times) == (b"1", 0)
        assert other.receive(topic, timeout_ms=0, ordered=True) == []  # its queue is blocked
        worker.nack(first)
        (again,) = other.receive(topic, timeout_ms=WAIT_MS, ordered=True)
        assert (again.body, again.reconsume_times) == (b"1", 1)
        other.ack(again)
        (second,) = worker.receive(topic, timeout_ms=WAIT_MS, ordered=True)
        assert (second.body, second.reconsume_times) == (b"2", 0)
