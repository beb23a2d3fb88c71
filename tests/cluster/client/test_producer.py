"""Sending single messages and batches over real sockets."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable

import pytest

from actors.wire.codes import RequestCode
from cluster.client import (
    Admin,
    Message,
    MessageQueue,
    Producer,
    ProducerConfig,
    PullConsumer,
    SendStatus,
    aio,
)
from cluster.client.errors import (
    BrokerUnreachable,
    ClientClosed,
    ConfigInvalid,
    DeadlineExceeded,
    MessageRejected,
    NameserverUnreachable,
    PermissionDenied,
    SendFailed,
    TopicNotFound,
    refused,
)
from tests.eventually import LIMIT_S, NEVER_S, eventually

from .conftest import Cluster, ResponseDroppingProxy
from .test_pull_consumer import poll_messages


def read_all(cluster: Cluster, topic: str) -> list[tuple[MessageQueue, bytes, str | None]]:
    """Return the queue, body and UNIQ_KEY of every message of a topic."""
    with Admin(cluster.address) as admin:
        missing = sum(admin.end_offsets(topic).values()) - sum(admin.beginning_offsets(topic).values())
    with PullConsumer(cluster.address, "reads-all") as consumer:
        consumer.assign(consumer.queues(topic))
        consumer.seek_to_beginning()
        return [
            (MessageQueue(topic, message.broker_name, message.queue_id), message.body, message.uniq_key)
            for message in poll_messages(consumer, missing)
        ]


def test_send_result_locates_the_stored_message(cluster: Cluster) -> None:
    topic = cluster.topic()
    with Producer(cluster.address, "sends") as producer:
        result = producer.send(topic, b"4 apples", tags="fruit", keys=["order-1", "apple"])
    assert result.status is SendStatus.SEND_OK
    with Admin(cluster.address) as admin:
        by_id = admin.message_by_id(result.offset_msg_id)
        by_key = admin.messages_by_key(topic, "apple")
        by_uniq_key = admin.messages_by_key(topic, result.msg_id, unique=True)
    assert (by_id.body, by_id.tags, by_id.keys) == (b"4 apples", "fruit", "order-1 apple")
    assert (by_id.queue_id, by_id.queue_offset) == (result.queue.queue_id, result.queue_offset)
    assert [m.msg_id for m in by_key] == [m.msg_id for m in by_uniq_key] == [result.msg_id]
    assert result.transaction_id == result.msg_id


def test_unkeyed_sends_use_all_queues_in_turn(cluster: Cluster) -> None:
    topic = cluster.topic(queues=2)
    with Producer(cluster.address, "sends") as producer:
        queues = {producer.send(topic, b"x").queue for _ in range(4)}
    assert len(queues) == 4


def test_equal_sharding_keys_share_a_queue_and_keep_order(cluster: Cluster) -> None:
    topic = cluster.topic()
    with Producer(cluster.address, "sends") as producer:
        results = [producer.send(topic, f"{n}", sharding_key=f"key-{n % 3}") for n in range(30)]
    for key in range(3):
        mine = results[key::3]
        assert len({result.queue for result in mine}) == 1
        offsets = [result.queue_offset for result in mine]
        assert offsets == sorted(offsets)


def test_selector_or_queue_argument_determines_the_queue(cluster: Cluster) -> None:
    topic = cluster.topic()
    last = MessageQueue(topic, "b", 3)
    with Producer(cluster.address, "sends") as producer:
        chosen = producer.send(
            topic, b"x", selector=lambda queues, message, argument: queues[argument], argument=7
        )
        given = producer.send(topic, b"x", queue=last)
        with pytest.raises(ConfigInvalid, match="one of"):
            producer.send(topic, b"x", queue=last, sharding_key="k")
    assert chosen.queue == given.queue == last


def test_batch_is_stored_in_one_queue(cluster: Cluster) -> None:
    topic = cluster.topic()
    messages = [Message(topic, f"{n}".encode(), keys=f"k{n}") for n in range(10)]
    with Producer(cluster.address, "sends") as producer:
        result = producer.send_batch(messages)
        with pytest.raises(ConfigInvalid, match="empty"):
            producer.send_batch([])
        with pytest.raises(MessageRejected, match="send a batch for each topic"):
            producer.send_batch([messages[0], Message("another", b"x")])
    found = read_all(cluster, topic)
    assert [body for _, body, _ in found] == [message.body for message in messages]
    assert {queue for queue, _, _ in found} == {result.queue}
    assert result.msg_id.split(",") == [uniq_key for _, _, uniq_key in found]
    assert "UNIQ_KEY" not in messages[0].properties, "the caller's messages are not modified"


def test_async_and_oneway_sends_are_stored(cluster: Cluster) -> None:
    topic = cluster.topic()
    with Producer(cluster.address, "sends") as producer:
        futures = [producer.send_async(topic, f"{n}") for n in range(100)]
        producer.flush()
        assert all(future.done() for future in futures)
        assert len({(f.result().queue, f.result().queue_offset) for f in futures}) == 100
        producer.send_oneway(topic, b"one way")
        # The one-way send uses the same connection as these sends, so it is stored before their responses.
        for queue in producer.queues(topic):
            producer.send_async(topic, b"after", queue=queue).result()
    assert b"one way" in {body for _, body, _ in read_all(cluster, topic)}


def test_close_waits_for_sends_in_flight(cluster: Cluster) -> None:
    topic = cluster.topic()
    producer = Producer(cluster.address, "sends")
    futures = [producer.send_async(topic, b"x") for _ in range(50)]
    producer.close()
    assert all(future.result().status is SendStatus.SEND_OK for future in futures)
    with pytest.raises(ClientClosed):
        producer.send(topic, b"too late")


def test_asyncio_producer_sends_concurrently(cluster: Cluster) -> None:
    topic = cluster.topic()

    async def send() -> None:
        async with aio.Producer(cluster.address, "sends") as producer:
            results = await asyncio.gather(*(producer.send(topic, f"{n}") for n in range(64)))
            assert len({(result.queue, result.queue_offset) for result in results}) == 64
            batch = await producer.send_batch([Message(topic, b"a"), Message(topic, b"b")], sharding_key="k")
            receipt = await producer.send_many(topic, [b"c"] * 10, sharding_keys=["k"] * 10)
            assert list(receipt.queues) == [batch.queue]
            await producer.send_oneway(topic, b"d")

    asyncio.run(send())


def test_invalid_messages_are_rejected_before_they_are_sent(cluster: Cluster) -> None:
    with Producer(cluster.address, "sends", config=ProducerConfig(compression=None)) as producer:
        with pytest.raises(MessageRejected, match="4,194,305 bytes is over max_message_bytes 4,194,304"):
            producer.send("any", bytes(4 * 1024 * 1024 + 1))
        with pytest.raises(MessageRejected, match="empty"):
            producer.send("any", b"")
        with pytest.raises(MessageRejected, match="letters, digits"):
            producer.send("no blanks", b"x")
        with pytest.raises(MessageRejected, match="properties of"):
            producer.send("any", b"x", keys="k" * 40_000)
        with pytest.raises(ConfigInvalid, match="without a body"):
            producer.send("any")
        for wrong in (5, ["x"]):
            with pytest.raises(ConfigInvalid, match=f"is a {type(wrong).__name__}: give bytes"):
                producer.send("any", wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigInvalid, match="is a str: give bytes"):
            producer.send(Message("any", "text"))  # type: ignore[arg-type]
        with pytest.raises(ConfigInvalid, match="is a str: give bytes"):
            producer.send_batch([Message("any", b"x"), Message("any", "text")])  # type: ignore[arg-type]
        with pytest.raises(ConfigInvalid, match="b'x' is not a Message"):
            producer.send_batch([b"x"])  # type: ignore[list-item]
        with pytest.raises(ConfigInvalid, match=r"message to topic 'any': keys are \[3\]"):
            producer.send("any", b"x", keys=[3])  # type: ignore[list-item]
        with pytest.raises(ConfigInvalid, match=r"queue is 'any': give one of Producer\.queues"):
            producer.send("any", b"x", queue="any")  # type: ignore[arg-type]


def test_first_send_creates_the_topic_if_brokers_allow_it(cluster: Cluster) -> None:
    with Producer(cluster.address, "sends") as producer:
        result = producer.send("made-by-sending", b"x")
    with Admin(cluster.address) as admin:
        eventually(lambda: "made-by-sending" in admin.topics())
        route = admin.route("made-by-sending")
    assert result.queue in route.writable
    assert len(route.writable) == 4, "one broker, default_topic_queue_nums queues"


def test_unknown_and_read_only_topics_raise_different_errors(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(brokers=1, auto_create_topics=False)
    read_only = cluster.topic(perm=4)
    with Producer(cluster.address, "sends") as producer:
        with pytest.raises(TopicNotFound, match=r"Admin\.create_topic"):
            producer.send("unknown-topic", b"x")
        with pytest.raises(PermissionDenied, match="no writable queue"):
            producer.send(read_only, b"x")


def test_sends_refresh_a_route_without_writable_queues(cluster: Cluster) -> None:
    def read_only_topic() -> str:
        return cluster.topic(queues=1, perm=4)

    def permit(topic: str) -> None:
        with Admin(cluster.address) as admin:
            admin.set_topic_perm(topic, 6)
            eventually(lambda: admin.route(topic).writable)

    with Producer(cluster.address, "sends") as producer:
        for send in (producer.send, lambda topic, body: producer.send_async(topic, body).result(LIMIT_S)):
            topic = read_only_topic()
            with pytest.raises(PermissionDenied, match="no writable queue"):
                send(topic, b"x")
            permit(topic)
            assert send(topic, b"x").status is SendStatus.SEND_OK

    async def send_by_asyncio_producer(topic: str) -> SendStatus:
        async with aio.Producer(cluster.address, "sends") as producer:
            with pytest.raises(PermissionDenied, match="no writable queue"):
                await producer.send(topic, b"x")
            await asyncio.to_thread(permit, topic)
            return (await producer.send(topic, b"x")).status

    assert asyncio.run(send_by_asyncio_producer(read_only_topic())) is SendStatus.SEND_OK


def test_unkeyed_send_uses_another_broker_if_one_is_down(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters()
    topic = cluster.topic()
    with Producer(cluster.address, "sends") as producer:
        producer.send(topic, b"the route is known now")
        cluster.stop_broker("a")
        results = [producer.send(topic, b"x") for _ in range(8)]
    assert {result.queue.broker_name for result in results} == {"b"}


def test_keyed_send_waits_until_its_broker_restarts(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters()
    topic = cluster.topic()
    config = ProducerConfig(delivery_timeout_ms=int(NEVER_S * 1000))
    with Producer(cluster.address, "sends", config=config) as producer:
        key = next(
            k for k in map(str, range(99)) if producer.send(topic, k, sharding_key=k).queue.broker_name == "a"
        )
        before = producer.send(topic, b"before", sharding_key=key)
        cluster.stop_broker("a")
        with pytest.raises((SendFailed, DeadlineExceeded)) as failed:
            producer.send(topic, b"too early", sharding_key=key, timeout_ms=200)
        assert failed.value.retriable
        waiting = producer.send_async(topic, b"after", sharding_key=key)
        cluster.start_broker("a")
        after = waiting.result(timeout=LIMIT_S)
    assert after.queue == before.queue
    assert after.queue_offset == before.queue_offset + 1


def test_lost_response_causes_a_duplicate_with_equal_uniq_key(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(brokers=1)
    proxy = ResponseDroppingProxy(
        cluster, "a", lambda code, n: code == RequestCode.SEND_MESSAGE_V2 and n == 2
    )
    cluster.stop_broker("a")
    cluster.start_broker("a", advertised_port=proxy.port)
    topic = cluster.topic()
    with Producer(cluster.address, "sends") as producer:
        results = [producer.send(topic, f"{n}", sharding_key="k") for n in range(5)]
    found = read_all(cluster, topic)
    assert proxy.dropped_count == 1
    assert [body for _, body, _ in found] == [b"0", b"1", b"2", b"2", b"3", b"4"]
    assert len({uniq_key for _, _, uniq_key in found}) == 5
    assert [result.queue_offset for result in results] == [0, 1, 3, 4, 5]
    proxy.stop()


def test_send_reconnects_after_the_broker_closed_the_connection(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(brokers=1)
    topic = cluster.topic()
    with Producer(cluster.address, "sends") as producer:
        producer.send(topic, b"first")
        cluster.stop_broker("a")
        cluster.start_broker("a")
        assert producer.send(topic, b"second", sharding_key="k").status is SendStatus.SEND_OK


def test_threads_may_share_a_producer(cluster: Cluster) -> None:
    topic = cluster.topic()
    with Producer(cluster.address, "sends") as producer:

        def send(thread: int) -> None:
            for n in range(20):
                producer.send(topic, f"{thread}-{n}", sharding_key=str(thread))

        threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
    bodies = [body.decode() for _, body, _ in read_all(cluster, topic)]
    for number in range(8):
        assert [b for b in bodies if b.startswith(f"{number}-")] == [f"{number}-{n}" for n in range(20)]


def test_unreachable_nameserver_error_names_the_address() -> None:
    config = ProducerConfig(nameservers="127.0.0.1:1", request_timeout_ms=500, send_timeout_ms=500)
    with (
        Producer(config=config) as producer,
        pytest.raises((SendFailed, NameserverUnreachable), match=r"127\.0\.0\.1:1"),
    ):
        producer.send("any", b"x")
    with pytest.raises(ConfigInvalid, match="host:port"):
        Producer("localhost")
    with pytest.raises(ConfigInvalid, match="producer group"):
        Producer("127.0.0.1:1", "no blanks")


def test_errors_can_be_pickled() -> None:
    cause = TopicNotFound(17, "no such topic", "127.0.0.1:1", True)
    for error in (cause, SendFailed("t", [cause], True), DeadlineExceeded("late")):
        copy = pickle.loads(pickle.dumps(error))
        assert str(copy) == str(error)
        assert copy.retriable == error.retriable


def test_send_failed_lists_equal_consecutive_errors_once() -> None:
    unreachable, late = BrokerUnreachable("a:1: no connection"), DeadlineExceeded("late")
    text = str(SendFailed("t", [unreachable] * 3 + [late, unreachable], True))
    assert text == (
        "send to topic 't' failed: attempts 1 to 3: a:1: no connection; attempt 4: late; "
        "attempt 5: a:1: no connection"
    )


def test_sharding_key_must_be_a_string(cluster: Cluster) -> None:
    with (
        Producer(cluster.address) as producer,
        pytest.raises(ConfigInvalid, match="sharding_key of a message to topic 'orders' is 5: give a string"),
    ):
        producer.send("orders", b"x", sharding_key=5)  # type: ignore[arg-type]


def test_not_supported_error_names_the_likely_peers() -> None:
    text = str(refused(3, "request type 7105 not supported", "a:1"))
    assert text == (
        "request type 7105 not supported (response code 3 from a:1); the peer is an Apache RocketMQ broker, "
        "an older RayMQ broker, or no broker"
    )


@pytest.mark.parametrize("face", ["send", "send_async", "oneway", "batch", "many", "request"])
@pytest.mark.parametrize(
    ("queue", "reason"), [(("nosuch", 0), "broker 'nosuch' is not in the route"), (("a", 99), "no queue 99")]
)
def test_send_to_a_queue_that_does_not_exist_is_refused_at_once(
    cluster: Cluster, face: str, queue: tuple[str, int], reason: str
) -> None:
    topic = cluster.topic()
    given = MessageQueue(topic, *queue)
    config = ProducerConfig(nameservers=cluster.address, delivery_timeout_ms=int(NEVER_S * 1000))
    sends: dict[str, Callable[[Producer], object]] = {
        "send": lambda producer: producer.send(topic, b"x", queue=given),
        "send_async": lambda producer: producer.send_async(topic, b"x", queue=given).result(),
        "oneway": lambda producer: producer.send_oneway(topic, b"x", queue=given),
        "batch": lambda producer: producer.send_batch([Message(topic, b"x")], queue=given),
        "many": lambda producer: producer.send_many(topic, [b"x"], queue=given),
        "request": lambda producer: producer.request(topic, b"x", queue=given),
    }
    with Producer(config=config) as producer, pytest.raises(ConfigInvalid, match=reason):
        sends[face](producer)
