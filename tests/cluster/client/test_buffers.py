"""A send stores the bytes that its argument had at the call, whatever buffer it is, or raises."""

from __future__ import annotations

import array
import asyncio
import ctypes
import inspect
import mmap
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from cluster.client import (
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    TransactionProducer,
    aio,
)
from cluster.client.errors import ConfigInvalid
from cluster.client.hooks import SendContext
from tests.eventually import LIMIT_S

from .conftest import Cluster
from .test_producer import read_all

SENDS = 20
TIMEOUT_MS = int(LIMIT_S * 1000)
BODIES = [b"msg%05d" % number for number in range(SENDS)]


def mapped() -> mmap.mmap:
    return mmap.mmap(-1, 8)


BUFFERS: dict[str, Callable[[], Any]] = {
    "bytearray": lambda: bytearray(8),
    "memoryview": lambda: memoryview(bytearray(8)),
    "numpy": lambda: np.zeros(8, np.uint8),
    "array": lambda: array.array("B", bytes(8)),
    "mmap": mapped,
    "ctypes": lambda: (ctypes.c_char * 8)(),
}
BLOCKING: dict[str, Callable[[Producer, str, Any], object]] = {
    "send": lambda producer, topic, body: producer.send(topic, body),
    "send_async": lambda producer, topic, body: producer.send_async(topic, body),
    "message": lambda producer, topic, body: producer.send_async(Message(topic, body)),
    "oneway": lambda producer, topic, body: producer.send_oneway(topic, body),
    "batch": lambda producer, topic, body: producer.send_batch([Message(topic, body)]),
    "send_many": lambda producer, topic, body: producer.send_many(topic, [body]),
}
ASYNC: dict[str, Callable[[aio.Producer, str, Any], Awaitable[object]]] = {
    "send": lambda producer, topic, body: producer.send(topic, body, timeout_ms=TIMEOUT_MS),
    "keyword": lambda producer, topic, body: producer.send(message=topic, body=body),
    "message": lambda producer, topic, body: producer.send(Message(topic, body)),
    "oneway": lambda producer, topic, body: producer.send_oneway(topic, body),
    "batch": lambda producer, topic, body: producer.send_batch([Message(topic, body)]),
    "send_many": lambda producer, topic, body: producer.send_many(topic, [body]),
}


def overwrite(buffer: Any, body: bytes) -> None:
    memoryview(buffer).cast("B")[:] = body


def bodies_of(cluster: Cluster, topic: str) -> list[bytes]:
    return sorted(body for _, body, _ in read_all(cluster, topic))


@pytest.mark.parametrize("face", BLOCKING)
@pytest.mark.parametrize("kind", BUFFERS)
def test_blocking_send_stores_the_bytes_of_the_call(cluster: Cluster, face: str, kind: str) -> None:
    topic, buffer = cluster.topic(), BUFFERS[kind]()
    with Producer(cluster.address, "sends") as producer:
        for body in BODIES:
            overwrite(buffer, body)
            BLOCKING[face](producer, topic, buffer)
        overwrite(buffer, bytes(8))
        producer.flush()
        producer.send(topic, b"z" * 8)  # on the connection of the one-way sends, so that they are stored
        for queue in producer.queues(topic):
            producer.send(topic, b"z" * 8, queue=queue)
    assert [body for body in bodies_of(cluster, topic) if body[:1] != b"z"] == BODIES


@pytest.mark.parametrize("face", ASYNC)
@pytest.mark.parametrize("kind", BUFFERS)
def test_task_of_a_send_stores_the_bytes_of_the_call(cluster: Cluster, face: str, kind: str) -> None:
    topic, buffer = cluster.topic(), BUFFERS[kind]()

    async def run() -> None:
        async with aio.Producer(cluster.address, "sends") as producer:
            tasks = []
            for body in BODIES:
                overwrite(buffer, body)
                tasks.append(asyncio.ensure_future(ASYNC[face](producer, topic, buffer)))
            overwrite(buffer, bytes(8))
            await asyncio.gather(*tasks)
            for queue in await producer.queues(topic):
                await producer.send(topic, b"z" * 8, queue=queue)

    asyncio.run(run())
    assert [body for body in bodies_of(cluster, topic) if body[:1] != b"z"] == BODIES


def test_task_sends_the_message_and_properties_of_the_call(cluster: Cluster) -> None:
    topic = cluster.topic()

    async def run() -> None:
        async with aio.Producer(cluster.address, "sends") as producer:
            message, properties, keys = Message(topic, b"first", tags="a"), {"n": "1"}, ["k"]
            tasks = [
                asyncio.ensure_future(producer.send(message)),
                asyncio.ensure_future(producer.send(topic, b"second", properties=properties, keys=keys)),
            ]
            message.body, message.tags, properties["n"] = b"wrong", "wrong", "wrong"
            keys.append("wrong")
            await asyncio.gather(*tasks)

    asyncio.run(run())
    assert bodies_of(cluster, topic) == [b"first", b"second"]


def test_every_send_of_the_asyncio_producers_captures_its_arguments() -> None:
    plain = ("close", "start", "flush", "queues", "recall", "send_table")
    for kind in (aio.Producer, aio.TransactionProducer):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and name not in plain:
                assert not inspect.iscoroutinefunction(method), f"{kind.__name__}.{name} lacks @capturing"


def test_message_of_a_transaction_and_of_hooks_has_bytes(cluster: Cluster) -> None:
    topic, buffer = cluster.topic(), bytearray(b"half")
    bodies: list[object] = []

    def commit(message: Message) -> LocalTransactionState:
        buffer[:] = b"late"
        bodies.append(message.body)
        return LocalTransactionState.COMMIT

    class Hook:
        def before_send(self, context: SendContext) -> None:
            bodies.extend(message.body for message in context.messages)

        def after_send(self, context: SendContext) -> None:
            """Do nothing."""

    config = ProducerConfig(nameservers=cluster.address, send_hooks=[Hook()])
    with TransactionProducer(group="halves", check_listener=commit, config=config) as producer:
        producer.send_in_transaction(Message(topic, buffer), commit)  # type: ignore[arg-type]
    assert bodies == [b"half", b"half"]
    assert bodies_of(cluster, topic) == [b"half"]


ODD_VIEWS: dict[str, tuple[Any, bytes]] = {
    "two dimensions": (memoryview(b"123456").cast("B", (2, 3)), b"123456"),
    "items of four bytes": (memoryview(array.array("i", [1, 2])), array.array("i", [1, 2]).tobytes()),
    "every second byte": (memoryview(b"123456")[::2], b"135"),
    "reversed": (memoryview(b"123456")[::-1], b"654321"),
    "columns first": (np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3)), bytes(range(6))),
    "floats": (np.array([1.5, 2.5], np.float32), np.array([1.5, 2.5], np.float32).tobytes()),
}


@pytest.mark.parametrize("name", ODD_VIEWS)
def test_view_of_any_shape_is_stored_as_its_bytes(cluster: Cluster, name: str) -> None:
    topic = cluster.topic()
    view, body = ODD_VIEWS[name]

    async def run() -> None:
        async with aio.Producer(cluster.address, "sends") as producer:
            for send in ASYNC.values():
                await send(producer, topic, view)

    with Producer(cluster.address, "sends") as producer:
        for send in BLOCKING.values():
            send(producer, topic, view)
        producer.flush()
        asyncio.run(run())
        for queue in producer.queues(topic):
            producer.send(topic, b"\xff", queue=queue)
    bodies = [body for body in bodies_of(cluster, topic) if body != b"\xff"]
    assert bodies == [body] * (len(BLOCKING) + len(ASYNC))


def test_request_and_reply_carry_the_bytes_of_the_call(cluster: Cluster, group: str) -> None:
    topic, question, answer = cluster.topic(), bytearray(b"question"), bytearray(b"answer")
    found: list[bytes] = []

    async def run() -> bytes:
        async with aio.Producer(cluster.address, "asks") as producer:

            async def respond(messages: list[MessageExt]) -> None:
                found.extend(each.body for each in messages)
                for each in messages:
                    task = asyncio.ensure_future(producer.reply(each, answer))  # type: ignore[arg-type]
                    answer[:] = b"wrong."
                    await task

            async with aio.PushConsumer(cluster.address, group, respond) as consumer:
                await consumer.subscribe(topic)
                request = producer.request(topic, question, timeout_ms=TIMEOUT_MS)  # type: ignore[arg-type]
                task = asyncio.ensure_future(request)
                question[:] = b"wrong..."
                return (await task).body

    assert (asyncio.run(run()), found) == (b"answer", [b"question"])


def released() -> memoryview:
    view = memoryview(b"x")
    view.release()
    return view


NOT_BUFFERS = [
    5,
    1.5,
    ["x"],
    np.int64(3),
    np.array(3),
    np.array([None]),
    np.array([1], "M8[s]"),
    released(),
    "\udce9",
]


@pytest.mark.parametrize("body", NOT_BUFFERS, ids=lambda body: type(body).__name__)
def test_body_that_is_no_buffer_is_refused(cluster: Cluster, body: Any) -> None:
    topic = cluster.topic()
    with Producer(cluster.address, "sends") as producer:
        for face, send in BLOCKING.items():
            if isinstance(body, str) and face == "send_many":
                continue
            with pytest.raises(ConfigInvalid, match="bod"):
                send(producer, topic, body)
    assert bodies_of(cluster, topic) == []


@pytest.mark.parametrize(
    "value", [b"x", bytearray(b"x"), 5, 0, None, memoryview(b"x")], ids=lambda value: type(value).__name__
)
def test_property_set_to_no_string_is_refused(cluster: Cluster, value: Any) -> None:
    topic = cluster.topic()
    with Producer(cluster.address, "sends") as producer:
        for name in ("TAGS", "KEYS", "color"):
            message = Message(topic, b"x")
            message.properties[name] = value
            with pytest.raises(ConfigInvalid, match="wrong type"):
                producer.send(message)
            with pytest.raises(ConfigInvalid, match="wrong type"):
                producer.send_batch([message])
    assert bodies_of(cluster, topic) == []


@pytest.mark.parametrize("flag", [1.5, "1", True, 2**31, None])
def test_flag_of_a_wrong_type_is_refused(cluster: Cluster, flag: Any) -> None:
    topic = cluster.topic()
    with Producer(cluster.address, "sends") as producer:
        with pytest.raises(ConfigInvalid, match="flag"):
            producer.send(Message(topic, b"x", flag=flag))
        with pytest.raises(ConfigInvalid, match="flag"):
            producer.send_batch([Message(topic, b"x", flag=flag)])
