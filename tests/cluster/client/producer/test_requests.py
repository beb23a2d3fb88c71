"""Request and reply messages over real sockets: replies, timeouts, restarts and malformed replies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from actors.transport.client import RemotingClient
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.hot_headers import SendMessageHeader
from cluster.client import Message, MessageExt, Producer, ProducerConfig, PullConsumer, PushConsumer, aio
from cluster.client.errors import BrokerRefused, ConfigInvalid, DeadlineExceeded, TopicNotFound
from store.common.clock import SystemClock
from tests.cluster.client.conftest import Cluster
from tests.cluster.client.test_pull_consumer import poll_messages
from tests.eventually import LIMIT_S, eventually

REPLY_MS = int(LIMIT_S * 1000)


def replier(cluster: Cluster, group: str, topic: str, producer: Producer) -> PushConsumer:
    """Return a started consumer that replies to each message of `topic` with its body in upper case."""

    def listen(messages: list[MessageExt]) -> None:
        for each in messages:
            producer.reply(each, each.body.upper(), properties={"shop": "corner"}, timeout_ms=REPLY_MS)

    consumer = PushConsumer(cluster.address, group, listen)
    consumer.subscribe(topic)
    return consumer


def test_request_returns_the_reply_of_the_consumer(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    given = Message(topic, b"4 apples", tags="fruit")
    with (
        Producer(cluster.address, "shop") as shop,
        Producer(cluster.address, "customers") as customer,
        replier(cluster, group, topic, shop),
    ):
        reply = customer.request(given, timeout_ms=REPLY_MS)
    assert reply.body == b"4 APPLES"
    assert reply.topic == "DefaultCluster_REPLY_TOPIC"
    assert reply.properties["shop"] == "corner"
    assert (reply.properties["MSG_TYPE"], reply.properties["TTL"]) == ("reply", str(REPLY_MS))
    assert reply.store_timestamp > 0
    assert reply.born_host.ip == "127.0.0.1"
    assert list(given.properties) == ["TAGS"], "the caller's message is not modified"


def test_concurrent_requests_get_their_own_replies(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    with (
        Producer(cluster.address, "shop") as shop,
        Producer(cluster.address, "customers") as customer,
        replier(cluster, group, topic, shop),
        ThreadPoolExecutor(8) as threads,
    ):
        bodies = [f"order {number}" for number in range(40)]

        def ask(body: str) -> bytes:
            return customer.request(topic, body, sharding_key=body, timeout_ms=REPLY_MS).body

        assert list(threads.map(ask, bodies)) == [body.upper().encode() for body in bodies]


def test_asyncio_request_and_reply(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()

    async def story() -> list[MessageExt]:
        async with aio.Producer(cluster.address, "both") as producer:

            async def listen(messages: list[MessageExt]) -> None:
                for each in messages:
                    await producer.reply(each, each.body * 2, timeout_ms=REPLY_MS)

            async with aio.PushConsumer(cluster.address, group, listen) as consumer:
                await consumer.subscribe(topic)
                requests = (producer.request(topic, b"%d" % n, timeout_ms=REPLY_MS) for n in range(10))
                return await asyncio.gather(*requests)

    assert [reply.body for reply in asyncio.run(story())] == [b"%d%d" % (n, n) for n in range(10)]


def test_compressed_reply_is_decompressed(cluster: Cluster, group: str) -> None:
    topic = cluster.topic()
    config = ProducerConfig(compression="lz4")
    with (
        Producer(cluster.address, "shop", config=config) as shop,
        replier(cluster, group, topic, shop),
    ):
        assert shop.request(topic, b"a" * 100_000, timeout_ms=REPLY_MS).body == b"A" * 100_000


def test_request_without_reply_times_out_and_ignores_the_late_reply(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    with (
        Producer(cluster.address, "customers") as customer,
        PullConsumer(cluster.address, group) as consumer,
    ):
        with pytest.raises(
            DeadlineExceeded, match=f"no reply to the request to topic '{topic}' within 200 ms"
        ):
            customer.request(topic, b"first", timeout_ms=200)
        consumer.assign(consumer.queues(topic))
        [late] = poll_messages(consumer, 1)
        assert customer.reply(late, b"late").queue.topic == "DefaultCluster_REPLY_TOPIC"

        def reply() -> None:
            [request] = poll_messages(consumer, 1)
            customer.reply(request, b"in time")

        thread = threading.Thread(target=reply)
        thread.start()
        assert customer.request(topic, b"second", timeout_ms=REPLY_MS).body == b"in time"
        thread.join()


def test_reply_to_a_closed_requester_is_refused(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    with Producer(cluster.address, "customers") as customer, pytest.raises(DeadlineExceeded):
        customer.request(topic, b"first", timeout_ms=200)
    with PullConsumer(cluster.address, group) as consumer, Producer(cluster.address, "shop") as shop:
        consumer.assign(consumer.queues(topic))
        [request] = poll_messages(consumer, 1)
        with pytest.raises(BrokerRefused, match="not found"):
            shop.reply(request, b"too late", timeout_ms=500)


def test_requests_succeed_again_after_a_broker_restart(clusters: Callable[..., Cluster], group: str) -> None:
    cluster = clusters(brokers=1)
    topic = cluster.topic()
    with (
        Producer(cluster.address, "shop") as shop,
        Producer(cluster.address, "customers") as customer,
        replier(cluster, group, topic, shop),
    ):
        assert customer.request(topic, b"before", timeout_ms=REPLY_MS).body == b"BEFORE"
        cluster.stop_broker("a")
        cluster.start_broker("a")

        def after() -> bool:
            try:
                return customer.request(topic, b"after", timeout_ms=1_000).body == b"AFTER"
            except DeadlineExceeded:
                return False

        eventually(after)


def test_invalid_requests_and_replies_are_refused(cluster: Cluster) -> None:
    topic = cluster.topic()
    with Producer(cluster.address) as producer:
        with pytest.raises(
            ConfigInvalid, match="has no property CLUSTER: reply only to messages of Producer"
        ):
            producer.reply(MessageExt(topic, b"x"), b"y")
        with pytest.raises(ConfigInvalid, match="without a body"):
            producer.request(topic)
        with pytest.raises(ConfigInvalid, match="timeout_ms is 0: it must be greater than 0"):
            producer.request(topic, b"x", timeout_ms=0)
    config = ProducerConfig(default_topic_queue_nums=0)
    with Producer(cluster.address, config=config) as producer, pytest.raises(TopicNotFound):
        producer.request("missing", b"x")


def test_malformed_reply_is_refused_and_the_requester_continues(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    with (
        Producer(cluster.address, "shop") as shop,
        PullConsumer(cluster.address, group) as consumer,
        ThreadPoolExecutor(1) as threads,
    ):
        waiting = threads.submit(shop.request, topic, b"first", timeout_ms=REPLY_MS)
        consumer.assign(consumer.queues(topic))
        [request] = poll_messages(consumer, 1)
        names = ("CORRELATION_ID", "REPLY_TO_CLIENT")
        properties = "".join(f"{name}\x01{request.properties[name]}\x02" for name in names)
        compressed = 0x301
        header = SendMessageHeader("shop", "DefaultCluster_REPLY_TOPIC", 0, properties, sys_flag=compressed)

        async def send_malformed() -> RemotingCommand:
            client = RemotingClient(SystemClock())
            command = RemotingCommand(RequestCode.SEND_REPLY_MESSAGE_V2, header.to_ext(), b"not compressed")
            address = cluster.brokers[request.broker_name].address
            response = await client.invoke(address, command, REPLY_MS)
            await client.close()
            return response

        response = asyncio.run(send_malformed())
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert "cannot be decompressed" in (response.remark or "")
        shop.reply(request, b"valid")
        assert waiting.result().body == b"valid"
