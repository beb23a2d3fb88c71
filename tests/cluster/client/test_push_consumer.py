"""Push consumer: commits, failing listeners, queues that move, rebalancer restarts, and admin requests."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from actors.broker.core.group.offset_requests import OffsetRequests
from actors.rebalancer.group import Group
from actors.transport.client import RemotingClient
from actors.transport.request import RequestContext
from actors.wire.bodies.groups import SyncGroupReply, SyncGroupRequest
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from cluster.client import (
    Admin,
    ConsumeStatus,
    MessageExt,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
    aio,
)
from cluster.client.errors import ConfigInvalid, SubscriptionDiffers
from store.common.clock import SystemClock
from store.message.json_text import parse_rocketmq_json
from tests.conftest import ClockAtRest
from tests.eventually import LIMIT_S, NEVER_S, eventually

from .conftest import LONG_LEASE_MS, Cluster
from .test_pull_consumer import committed, fill


class Seen:
    """Listener that counts the messages by number."""

    def __init__(self) -> None:
        self.numbers: Counter[int] = Counter()
        self._lock = threading.Lock()

    def __call__(self, messages: list[MessageExt]) -> None:
        with self._lock:
            self.numbers.update(int(message.body) for message in messages)

    def wait_for(self, count: int) -> None:
        eventually(lambda: len(self.numbers) >= count)


def test_commits_to_rocketmq_broker_are_sequential(
    clusters: Callable[..., Cluster], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_flight: list[RequestContext] = []
    overlaps: list[int] = []
    update = OffsetRequests.update

    def unknown(_requests: OffsetRequests, _context: RequestContext) -> None:
        raise Refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "like RocketMQ's brokers")

    def update_late(requests: OffsetRequests, context: RequestContext) -> None:
        in_flight.append(context)
        overlaps.append(len(in_flight))

        def respond() -> None:
            in_flight.remove(context)
            context.reply(update(requests, context))

        asyncio.get_running_loop().call_later(0.002, respond)

    monkeypatch.setattr(OffsetRequests, "commit_all", unknown)
    monkeypatch.setattr(OffsetRequests, "update", update_late)
    cluster = clusters(brokers=1)
    topic = cluster.topic(queues=8)
    fill(cluster, topic, 80)
    seen = Seen()
    with PushConsumer(cluster.address, group, seen) as consumer:
        consumer.subscribe(topic)
        seen.wait_for(80)
    assert committed(cluster, group, topic) == 80
    assert set(overlaps) == {1}


def test_every_message_is_consumed_once_and_committed(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 2_500)
    seen = Seen()
    with PushConsumer(cluster.address, group, seen, config=PushConfig(consume_batch=16)) as consumer:
        consumer.subscribe(topic)
        seen.wait_for(2_500)
        assert len(consumer.assignment()) == 8
    assert set(seen.numbers.values()) == {1}
    assert committed(cluster, group, topic) == 2_500


def test_unwanted_tags_are_skipped_and_committed(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 100, tags=["Aa", "BB"] * 50)
    seen = Seen()
    with PushConsumer(cluster.address, group, seen, config=PushConfig(commit_interval_ms=50)) as consumer:
        consumer.subscribe(topic, "BB")
        seen.wait_for(50)
        eventually(lambda: committed(cluster, group, topic) == 100)
    assert all(number % 2 for number in seen.numbers)


def test_failing_message_is_retried_then_dead_lettered(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 20)
    attempts: Counter[int] = Counter()
    reconsume_times: list[int] = []

    def listen(messages: list[MessageExt]) -> ConsumeStatus:
        number = int(messages[0].body)
        attempts[number] += 1
        reconsume_times.append(messages[0].reconsume_times) if number == 7 else None
        if number == 7:
            raise ValueError("seven is bad")
        if number == 8 and attempts[8] < 3:
            return ConsumeStatus.RECONSUME_LATER
        return ConsumeStatus.CONSUME_SUCCESS

    config = PushConfig(max_reconsume_times=2, retry_backoff_ms=(1,), consume_threads=2)
    with PushConsumer(cluster.address, group, listen, config=config) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: len(attempts) == 20 and attempts[7] == 3 and attempts[8] == 3)
        with Admin(cluster.address) as admin:
            eventually(lambda: f"%DLQ%{group}" in admin.topics())
    assert reconsume_times == [0, 1, 2]
    assert {number: count for number, count in attempts.items() if count > 1} == {7: 3, 8: 3}
    assert committed(cluster, group, topic) == 20
    with PullConsumer(cluster.address, f"{group}-dead") as dead:
        dead.assign(dead.queues(f"%DLQ%{group}"))
        assert [message.body for message in dead.poll(timeout_ms=60_000)] == [b"7"]


def test_close_finishes_running_listeners_only(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 40)
    entered, unblock = threading.Semaphore(0), threading.Event()
    finished: list[int] = []

    def listen(messages: list[MessageExt]) -> None:
        entered.release()
        unblock.wait(LIMIT_S)
        finished.append(int(messages[0].body))

    config = PushConfig(consume_threads=2, close_timeout_ms=int(NEVER_S * 1000))
    consumer = PushConsumer(cluster.address, group, listen, config=config).start()
    consumer.subscribe(topic)
    assert all(entered.acquire(timeout=LIMIT_S) for _ in range(2))
    closing = threading.Thread(target=consumer.close)
    closing.start()
    eventually(lambda: not consumer.assignment())
    unblock.set()
    closing.join(LIMIT_S)
    assert not closing.is_alive()
    assert len(finished) == 2
    seen = Seen()
    with PushConsumer(cluster.address, group, seen) as successor:
        successor.subscribe(topic)
        seen.wait_for(38)
    assert set(seen.numbers) == set(range(40)) - set(finished)
    assert set(seen.numbers.values()) == {1}


def test_revoked_queue_is_released_after_listener_returns(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 10)
    entered, unblock = threading.Semaphore(0), threading.Event()
    first_numbers: list[int] = []

    def slow(messages: list[MessageExt]) -> None:
        entered.release()
        unblock.wait(LIMIT_S)
        first_numbers.extend(int(message.body) for message in messages)

    seen = Seen()
    config = PushConfig(consume_threads=10, lease_ms=LONG_LEASE_MS)
    first = PushConsumer(cluster.address, group, slow, config=config).start()
    second = PushConsumer(cluster.address, group, seen, config=config).start()
    first.subscribe(topic)
    assert all(entered.acquire(timeout=LIMIT_S) for _ in range(10))
    second.subscribe(topic)
    eventually(lambda: len(first.assignment()) == 1)
    assert second.assignment() == [], "the first member has not committed yet"
    unblock.set()
    eventually(lambda: len(second.assignment()) == 1)
    eventually(lambda: len(first_numbers) + len(seen.numbers) >= 10)
    first.close()
    second.close()
    assert sorted([*first_numbers, *seen.numbers.elements()]) == list(range(10))


def test_rebalancer_restart_keeps_single_owner_per_queue(
    clusters: Callable[..., Cluster], group: str, clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = clusters(rebalancer_clock=clock)
    topic = cluster.topic()
    config = PushConfig(lease_ms=LONG_LEASE_MS, sync_interval_ms=100, commit_interval_ms=50)
    synced: Counter[str] = Counter()
    sync = Group.sync

    def counted(group: Group, request: SyncGroupRequest, *options: Any) -> SyncGroupReply:
        synced[request.client_id] += 1
        return sync(group, request, *options)

    def await_renewals() -> None:
        synced.clear()
        eventually(lambda: sum(count >= 2 for count in list(synced.values())) == 3)

    monkeypatch.setattr(Group, "sync", counted)
    owners: dict[int, set[int]] = {}
    lock = threading.Lock()

    def listener(member: int) -> Callable[[list[MessageExt]], None]:
        def listen(messages: list[MessageExt]) -> None:
            with lock:
                for message in messages:
                    owners.setdefault(int(message.body), set()).add(member)

        return listen

    consumers = [PushConsumer(cluster.address, group, listener(n), config=config).start() for n in range(3)]
    consumers[0].subscribe(topic)
    consumers[1].subscribe(topic)
    eventually(lambda: sorted(len(c.assignment()) for c in consumers[:2]) == [4, 4])
    fill(cluster, topic, 300)
    eventually(lambda: len(owners) == 300)
    consumers[2].subscribe(topic)
    cluster.stop_rebalancer()  # while the third member gets its share
    with Producer(cluster.address, "fills") as producer:
        numbers = [f"{n}" for n in range(300, 600)]
        producer.send_many(topic, [n.encode() for n in numbers], sharding_keys=numbers)
    eventually(lambda: len(owners) == 600)
    cluster.start_rebalancer()
    for _ in range(2):  # until the old leases expire; the current leases are renewed halfway
        await_renewals()
        clock.advance(LONG_LEASE_MS // 2)
    eventually(lambda: sorted(len(c.assignment()) for c in consumers) == [2, 3, 3])
    held = [queue for consumer in consumers for queue in consumer.assignment()]
    assert len(held) == len(set(held)) == 8
    for consumer in consumers:
        consumer.close()
    assert {number for number, members in owners.items() if len(members) > 1} == set()
    assert committed(cluster, group, topic) == 600


def test_async_listener_runs_on_event_loop(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 100)

    async def consume() -> set[int]:
        numbers: set[int] = set()
        done = asyncio.Event()

        async def listen(messages: list[MessageExt]) -> None:
            await asyncio.sleep(0)
            numbers.update(int(message.body) for message in messages)
            if len(numbers) == 100:
                done.set()

        async with aio.PushConsumer(cluster.address, group, listen) as consumer:
            await consumer.subscribe(topic)
            async with asyncio.timeout(LIMIT_S):
                await done.wait()
        return numbers

    assert asyncio.run(consume()) == set(range(100))
    assert committed(cluster, group, topic) == 100


def test_concurrent_async_listeners_are_limited(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 200)

    async def consume() -> list[int]:
        done, running, most = 0, 0, []
        three, everything = asyncio.Event(), asyncio.Event()

        async def listen(messages: list[MessageExt]) -> None:
            nonlocal done, running
            running += 1
            most.append(running)
            if running == 3:
                three.set()
            await three.wait()
            await asyncio.sleep(0)  # a fourth call would start now
            running -= 1
            done += len(messages)
            if done == 200:
                everything.set()

        config = PushConfig(consume_threads=3)
        async with aio.PushConsumer(cluster.address, group, listen, config=config) as consumer:
            await consumer.subscribe(topic)
            async with asyncio.timeout(LIMIT_S):
                await everything.wait()
        return most

    assert max(asyncio.run(consume())) == 3


def test_join_raises_if_subscription_differs(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    with (
        PushConsumer(cluster.address, group, Seen()) as first,
        PushConsumer(cluster.address, group, Seen()) as second,
    ):
        first.subscribe(topic, "a")
        eventually(lambda: len(first.assignment()) == 2)
        second.subscribe(topic, "b")
        with pytest.raises(SubscriptionDiffers):
            second.join()


def test_push_consumer_without_listener_is_refused() -> None:
    with pytest.raises(ConfigInvalid, match="needs a listener"):
        PushConsumer("127.0.0.1:1", "group")
    with pytest.raises(ConfigInvalid, match="the listener is 5: give a function"):
        PushConsumer("127.0.0.1:1", "group", 5)  # type: ignore[arg-type]
    with pytest.raises(ConfigInvalid, match="sync_interval_ms"):
        PushConfig(lease_ms=1_000)


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_consumer_responds_to_admin_tools(cluster: Cluster, group: str, kind: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 40)
    bodies: list[bytes] = []
    verdicts = iter([*[ConsumeStatus.CONSUME_SUCCESS] * 41, ConsumeStatus.RECONSUME_LATER])

    def listener(messages: list[MessageExt]) -> ConsumeStatus:
        bodies.extend(message.body for message in messages)
        return next(verdicts)  # raises StopIteration after the last verdict

    async def listener_async(messages: list[MessageExt]) -> ConsumeStatus:
        try:
            return listener(messages)
        except StopIteration as error:
            raise RuntimeError("no verdict") from error

    with (
        PushConsumer(cluster.address, group, listener_async if kind == "async" else listener) as consumer,
        Admin(cluster.address) as admin,
    ):
        consumer.subscribe(topic)
        eventually(lambda: len(bodies) == 40)
        queue = max(admin.end_offsets(topic).items(), key=lambda each: each[1])[0]
        [message] = admin.messages_at(queue, 5, 1)
        connected = admin.group_connection(group)
        assert connected is not None
        client_id = connected.connections[0].client_id

        def request(code: RequestCode, ext: dict[str, str]) -> dict[str, Any]:
            async def send() -> bytes:
                client = RemotingClient(SystemClock())
                address = cluster.brokers[queue.broker_name].address
                response = await client.invoke(address, RemotingCommand(code, ext), int(LIMIT_S * 1000))
                await client.close()
                assert response.code == 0, response.remark
                return bytes(response.body)

            return parse_rocketmq_json(asyncio.run(send()))

        member = {"consumerGroup": group, "clientId": client_id}
        directly = {**member, "msgId": message.offset_msg_id}
        results = [request(RequestCode.CONSUME_MESSAGE_DIRECTLY, directly) for _ in range(3)]
        assert [each["consumeResult"] for each in results] == ["CR_SUCCESS", "CR_LATER", "CR_THROW_EXCEPTION"]
        assert bodies[40:] == [message.body] * 3
        info = request(RequestCode.GET_CONSUMER_RUNNING_INFO, {**member, "jstackEnable": "true"})
        status = info["statusTable"][topic]
        assert status["consumeOKTPS"] > 0
        assert status["pullTPS"] > 0
        assert status["consumeFailedMsgs"] == 0
        queues = [each for each in info["mqTable"].values() if each["commitOffset"]]
        assert sum(each["commitOffset"] for each in queues) == 40
        for each in queues:
            assert each["lastConsumeTimestamp"] > message.store_timestamp - 1000
            assert each["lastPullTimestamp"] > message.store_timestamp - 1000
        assert "TID:" in info["jstack"]
        status = request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": topic, "group": group})
        assert sum(status["consumerTable"][client_id].values()) == 40
