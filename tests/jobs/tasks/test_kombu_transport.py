"""The kombu transport against brokers: what kombu's virtual transports promise, and what POP adds to it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import ChannelError, OperationalError

from cluster.client import Admin, aio
from cluster.client import Producer as PlainProducer
from cluster.client.errors import BrokerUnreachable, ConfigInvalid
from jobs.tasks.kombu_transport import exchange_topic_of, name_of, topic_of
from tests.cluster.client.conftest import Cluster
from tests.eventually import LIMIT_S, eventually
from tests.ports import free_port

_numbers = itertools.count()


@pytest.fixture
def connect(cluster: Cluster) -> Iterator[Callable[..., Connection]]:
    """Yield a function that connects with the cluster."""
    made: list[Connection] = []

    def connection(**options: Any) -> Connection:
        path = options.pop("path", "")
        made.append(Connection(f"raymq://{cluster.address}{path}", transport_options=options))
        return made[-1]

    yield connection
    for each in made:
        each.release()


@pytest.fixture
def connection(connect: Callable[..., Connection]) -> Connection:
    return connect()


@pytest.fixture
def name() -> str:
    """Return a name that no other test uses."""
    return f"queue.{next(_numbers)}"


class Received(list[Any]):
    """The messages of a consumer."""

    def __init__(self, connection: Connection, *, acks: bool) -> None:
        super().__init__()
        self._connection = connection
        self._acks = acks

    def __call__(self, body: Any, message: Any) -> None:
        self.append(message)
        if self._acks:
            message.ack()

    def wait(self, count: int, timeout_s: float = LIMIT_S) -> list[Any]:
        """Return the bodies of all messages, of which there are at least `count`."""
        while len(self) < count:
            self._connection.drain_events(timeout=timeout_s)
        return [message.payload for message in self]

    def wait_for_none(self, timeout_s: float = 0.5) -> None:
        """Return if no message arrives for a while."""
        with pytest.raises(TimeoutError):
            self._connection.drain_events(timeout=timeout_s)


@contextmanager
def consuming(
    connection: Connection, *queues: Queue, acks: bool = True, prefetch: int = 0, **options: Any
) -> Iterator[Received]:
    received = Received(connection, acks=acks)
    with connection.channel() as channel:
        if prefetch:
            channel.basic_qos(0, prefetch, False)
        with Consumer(channel, queues, callbacks=[received], **options):
            yield received


def send(connection: Connection, queue: str | Queue, *bodies: Any, **options: Any) -> None:
    queue = Queue(queue) if isinstance(queue, str) else queue
    with connection.channel() as channel:
        queue(channel).declare()
        for body in bodies:
            Producer(channel).publish(body, routing_key=queue.name, **options)


async def unreachable(*_: object) -> None:
    raise BrokerUnreachable("a fault of the test")


def test_names_become_topics_reversibly() -> None:
    names = ["celery", "w1@host.celery.pidbox", "a_b-c", "ä|x", "a|2E", "a.x", " "]
    topics = [topic_of(name) for name in names] + [exchange_topic_of("a")]
    assert len(set(topics)) == len(topics)
    assert all(re.fullmatch(r"[%|a-zA-Z0-9_-]+", topic) for topic in topics)
    assert [name_of(topic_of(name)) for name in names] == names


def test_messages_keep_their_content(connection: Connection, name: str) -> None:
    bodies = [{"text": "ä", "list": [1, None]}, "plain", 17]
    send(connection, name, *bodies, headers={"color": "blue"}, correlation_id="task-1")
    send(connection, name, b"\x00\xff", serializer="raw")
    with consuming(connection, Queue(name), accept=["json", "text/plain", "application/data"]) as received:
        found = received.wait(4)
    assert sorted(map(repr, found)) == sorted(map(repr, [*bodies, b"\x00\xff"]))
    assert {message.headers.get("color") for message in received} == {"blue", None}
    assert all(message.delivery_info["redelivered"] is False for message in received)


def test_task_id_is_the_key_of_the_message(cluster: Cluster, connection: Connection, name: str) -> None:
    send(connection, name, "one", correlation_id="task-7")
    with Admin(cluster.address) as admin:
        eventually(lambda: len(admin.messages_by_key(topic_of(name), "task-7")) == 1)


def test_rejected_message_is_requeued_or_dropped(connection: Connection, name: str) -> None:
    send(connection, name, "again")
    with consuming(connection, Queue(name), acks=False) as received:
        received.wait(1)
        received[0].reject(requeue=True)
        received.wait(2)
        assert received[1].delivery_info["redelivered"] is True
        received[1].reject()
        received.wait_for_none()
    assert connection.default_channel.queue_declare(name, passive=True).message_count == 0


@pytest.mark.parametrize("delivered", [1, 3])
def test_unacknowledged_messages_return_when_the_channel_closes(
    connect: Callable[..., Connection], name: str, delivered: int
) -> None:
    connection = connect(visibility_timeout=600)
    send(connection, name, 1, 2, 3)
    with consuming(connection, Queue(name), acks=False) as first:
        first.wait(delivered)
        first[0].ack()
    with consuming(connection, Queue(name)) as second:
        assert sorted(second.wait(2)) == sorted({1, 2, 3} - {first[0].payload})


def test_prefetch_limits_the_unacknowledged_messages(connect: Callable[..., Connection], name: str) -> None:
    one, two = connect(), connect()
    send(one, name, *range(5))
    with consuming(one, Queue(name), acks=False, prefetch=2) as slow:
        slow.wait(2)
        slow.wait_for_none()
        with consuming(two, Queue(name)) as fast:
            fast.wait(3)
        slow[0].ack()
        send(one, name, "next")
        assert slow.wait(3)[-1] == "next"


def test_cancelled_consumer_gives_back_what_it_still_receives(
    connect: Callable[..., Connection], name: str
) -> None:
    one, two = connect(visibility_timeout=600), connect()
    consumer = Consumer(one.default_channel, [Queue(name)], callbacks=[Received(one, acks=True)])
    with consuming(two, Queue(name)) as other:
        consumer.consume()
        send(two, name, *range(4))
        consumer.cancel()
        send(two, name, *range(4, 8))
        assert set(other.wait(8)) == set(range(8))


def test_claims_are_renewed_and_end_with_their_process(
    connect: Callable[..., Connection], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, other = connect(visibility_timeout=0.6), connect()
    send(holder, name, "long")
    with consuming(holder, Queue(name), acks=False) as held:
        held.wait(1)
        with consuming(other, Queue(name)) as waiting:
            waiting.wait_for_none(1.5)
            held.clear()
            monkeypatch.setattr(aio.PopConsumer, "extend", unreachable)  # as if the process were killed
            assert waiting.wait(1) == ["long"]
            assert waiting[0].delivery_info["redelivered"] is True


def test_messages_without_ack_are_delivered_once(connection: Connection, name: str) -> None:
    send(connection, name, 1, 2)
    with consuming(connection, Queue(name), no_ack=True, acks=False) as received:
        received.wait(2)
    assert connection.default_channel.basic_get(name) is None


def test_single_messages_are_fetched(connection: Connection, name: str) -> None:
    channel = connection.default_channel
    send(connection, name, "a", "b")
    got = [channel.basic_get(name, no_ack=True), channel.basic_get(name)]
    got[1].ack()
    assert sorted(message.payload for message in got) == ["a", "b"]
    assert channel.basic_get(name) is None


def test_size_and_purge_count_waiting_messages(connection: Connection, name: str) -> None:
    channel = connection.default_channel
    send(connection, name, *range(40))
    assert channel.queue_declare(name, passive=True).message_count == 40
    assert channel.queue_purge(name) == 40
    eventually(lambda: channel.queue_declare(name, passive=True).message_count == 0)


def test_passive_declare_needs_the_queue_and_delete_removes_it(connection: Connection, name: str) -> None:
    channel = connection.default_channel
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        channel.queue_declare(name, passive=True)
    send(connection, name, 1)
    channel.queue_delete(name, if_empty=True)
    assert channel.queue_declare(name, passive=True).message_count == 1
    channel.queue_delete(name)
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        channel.queue_declare(name, passive=True)


def test_message_to_no_queue_is_dropped(cluster: Cluster, connection: Connection, name: str) -> None:
    Producer(connection.default_channel).publish("lost", routing_key=name)
    with Admin(cluster.address) as admin:
        assert topic_of(name) not in admin.topics()


@pytest.mark.parametrize(
    ("kind", "keys", "sent", "expected"),
    [
        ("direct", ["red", "blue"], ["red", "green", "blue"], [["red"], ["blue"]]),
        ("topic", ["log.*", "log.#"], ["log.a", "log.a.b", "x"], [["log.a"], ["log.a", "log.a.b"]]),
        ("fanout", ["", ""], ["any"], [["any"], ["any"]]),
    ],
)
def test_exchange_routes_between_processes(
    connect: Callable[..., Connection],
    name: str,
    kind: str,
    keys: list[str],
    sent: list[str],
    expected: list[list[str]],
) -> None:
    consumers, publisher = connect(), connect()  # no state in common
    exchange = Exchange(f"ex.{name}", kind)
    queues = [Queue(f"{name}.{number}", exchange, key) for number, key in enumerate(keys)]
    received: dict[str, list[str]] = {queue.name: [] for queue in queues}
    with consumers.channel() as channel:
        for queue in queues:
            queue(channel).declare()
        producer = Producer(publisher.default_channel)
        for key in sent:
            producer.publish(key, exchange=exchange, routing_key=key, declare=[exchange])
        for queue in queues:
            with consuming(consumers, queue) as found:
                received[queue.name] = found.wait(len(expected[queues.index(queue)]))
                found.wait_for_none()
    assert [sorted(bodies) for bodies in received.values()] == expected


def test_queue_has_no_messages_from_before_its_bind(connect: Callable[..., Connection], name: str) -> None:
    exchange = Exchange(f"ex.{name}", "fanout")
    connection = connect()
    producer = Producer(connection.default_channel)
    for _ in range(4):  # on both brokers
        producer.publish("before", exchange=exchange, declare=[exchange])
    queue = Queue(name, exchange)
    queue(connection.default_channel).declare()
    producer.publish("after", exchange=exchange)
    with consuming(connection, queue) as received:
        received.wait(1)
        received.wait_for_none()
        assert [message.payload for message in received] == ["after"]


def test_removed_bindings_route_no_more_messages(
    connect: Callable[..., Connection], cluster: Cluster, name: str
) -> None:
    exchange, channel = Exchange(f"ex.{name}", "topic"), connect().default_channel
    producer = Producer(connect().default_channel)
    queue = Queue(name, exchange, "log.#")(channel)
    queue.declare()
    other = Exchange(f"other.{name}", "topic")
    other(channel).declare()
    queue.bind_to(other, "log.#")
    queue.unbind_from(other, "log.#")

    def publish() -> int:
        producer.publish("line", exchange=exchange, routing_key="log.a.b", declare=[exchange])
        return int(channel.queue_declare(name, passive=True).message_count)

    assert publish() == 1
    queue.unbind_from(exchange, "log.#")
    assert publish() == 1
    queue.bind_to(exchange, "log.#")
    assert publish() == 2
    exchange(channel).delete()
    assert publish() == 2
    with Admin(cluster.address) as admin:
        assert exchange_topic_of(exchange.name) not in admin.topics()


def test_urgent_messages_are_delivered_first(clusters: Callable[..., Cluster], name: str) -> None:
    address = clusters(brokers=1).address
    with Connection(f"raymq://{address}") as connection, connection.channel() as channel:
        queue, later = Queue(name, max_priority=3), datetime.now(UTC) + timedelta(hours=1)
        send(connection, queue, "late", priority=3, headers={"eta": later.isoformat()})
        for priority in (0, 3, 1, None, 9):
            send(connection, queue, priority, priority=priority)
        found = [channel.basic_get(name, no_ack=True).payload for _ in range(5)]
        assert found == [3, 9, 1, 0, None]
        assert channel.basic_get(name) is None


def test_auto_delete_queue_goes_with_its_last_consumer(
    connect: Callable[..., Connection], cluster: Cluster, name: str
) -> None:
    one, two = connect(), connect()
    queue = Queue(name, auto_delete=True)
    with Admin(cluster.address) as admin:

        def members() -> int:
            known = admin.group_connection(topic_of(name))
            return len(known.connections) if known is not None else 0

        with consuming(one, queue):
            with consuming(two, queue):
                eventually(lambda: members() == 2)
            eventually(lambda: members() == 1)
            assert topic_of(name) in admin.topics()
        eventually(lambda: topic_of(name) not in admin.topics())


def test_expired_messages_are_dropped(connection: Connection, name: str) -> None:
    queue = Queue(name, expires=0.2)
    send(connection, queue, "while the queue had no consumer")
    send(connection, f"{name}.b", "short", expiration=0.2)
    with consuming(connection, Queue(f"{name}.c")) as nothing:
        nothing.wait_for_none(0.5)
    with consuming(connection, queue, Queue(f"{name}.b")) as received:
        send(connection, queue, "now")
        received.wait(1)
        received.wait_for_none()
        assert [message.payload for message in received] == ["now"]


def test_task_with_eta_waits_in_the_broker(connection: Connection, name: str) -> None:
    due = datetime.now(UTC) + timedelta(seconds=2)
    send(connection, name, "later", headers={"eta": due.isoformat()})
    assert connection.default_channel.basic_get(name) is None
    with consuming(connection, Queue(name)) as received:
        assert received.wait(1) == ["later"]
    assert datetime.now(UTC) > due - timedelta(seconds=1)


def test_message_of_a_plain_producer_is_a_body(cluster: Cluster, connection: Connection, name: str) -> None:
    Queue(name)(connection.default_channel).declare()
    with PlainProducer(cluster.address) as producer:
        producer.send(topic_of(name), b"\xffnot JSON")
        producer.send(topic_of(name), b"[1]")
    with consuming(connection, Queue(name), accept=["application/data"]) as received:
        received.wait(2)
    assert sorted(message.body for message in received) == [b"[1]", b"\xffnot JSON"]


def test_simple_queue_and_buffer_work_and_connection_opens_again(connection: Connection, name: str) -> None:
    for number, open_queue in enumerate((connection.SimpleQueue, connection.SimpleBuffer)):
        with closing(open_queue(f"{name}.{number}")) as queue:
            queue.put({"number": 1}, headers={"color": "blue"})
            message = queue.get(timeout=LIMIT_S)
            assert (message.payload, message.headers) == ({"number": 1}, {"color": "blue"})
            message.ack()
            with pytest.raises(queue.Empty):
                queue.get(timeout=0.1)
        connection.close()


def test_virtual_host_is_the_namespace(
    cluster: Cluster, connect: Callable[..., Connection], name: str
) -> None:
    shop = connect(path="/shop")
    send(shop, name, 1)
    with Admin(cluster.address) as admin:
        assert f"shop%{topic_of(name)}" in admin.topics()
    with consuming(shop, Queue(name)) as received:
        assert received.wait(1) == [1]
    shop.default_channel.queue_delete(name)


def test_url_may_list_several_nameservers(cluster: Cluster, name: str) -> None:
    closed = free_port()
    with Connection(f"raymq://127.0.0.1:{closed};{cluster.address}") as connection:
        send(connection, name, 1)
        with consuming(connection, Queue(name)) as received:
            assert received.wait(1) == [1]


def test_unreachable_nameserver_is_a_connection_error() -> None:
    connection = Connection(f"raymq://127.0.0.1:{free_port()}")
    with pytest.raises(OperationalError, match="nameserver"):
        connection.ensure_connection(max_retries=1, interval_start=0)


def test_unknown_tls_setting_is_refused() -> None:
    connection = Connection("raymq://127.0.0.1", ssl={"ca_certs": "ca.pem", "ciphers": "x"})
    with pytest.raises(ConfigInvalid, match="ciphers: give ca_certs"):
        connection.connect()
