"""Blocking and asyncio clients have equal methods, signatures and docstrings; closed clients stay closed."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
from collections.abc import Callable

import pytest

from cluster import client
from cluster.client import aio
from cluster.client.errors import ClientClosed
from cluster.client.transport.faces import BlockingFace

# Only the blocking producer returns futures and supports fork; the blocking consumer uses `acknowledged`.
ONLY_BLOCKING = {
    (producer, method)
    for producer in ("Producer", "TransactionProducer")
    for method in ("send_async", "reset_after_fork")
}
ONLY_ASYNC = {("PullConsumer", "acknowledged")}
CLASSES = [
    "Admin",
    "LiteConsumer",
    "PopConsumer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "TransactionProducer",
]


def methods(kind: type) -> dict[str, Callable[..., object]]:
    return {
        name: member
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") or name == "__init__"
    }


def parameters_of(method: Callable[..., object]) -> list[tuple[str, object, object, object]]:
    parameters = inspect.signature(method).parameters.values()
    return [(each.name, each.kind, each.default, each.annotation) for each in parameters]


@pytest.mark.parametrize("name", CLASSES)
def test_blocking_and_asyncio_clients_have_the_same_methods(name: str) -> None:
    blocking, asynchronous = methods(getattr(client, name)), methods(getattr(aio, name))
    only_blocking = {(name, each) for each in blocking.keys() - asynchronous.keys()}
    only_async = {(name, each) for each in asynchronous.keys() - blocking.keys()}
    assert only_blocking <= ONLY_BLOCKING
    assert only_async <= ONLY_ASYNC
    for each in blocking.keys() & asynchronous.keys():
        one, other = blocking[each], asynchronous[each]
        assert parameters_of(one) == parameters_of(other), each
        assert inspect.signature(one).return_annotation == inspect.signature(other).return_annotation, each
        if each not in ("__init__", "start"):
            assert one.__doc__ == other.__doc__, each


@pytest.mark.parametrize("name", CLASSES)
def test_blocking_clients_are_faces_of_the_asyncio_clients(name: str) -> None:
    assert issubclass(getattr(client, name), BlockingFace)


def test_blocking_methods_show_parameters_and_result_type() -> None:
    assert str(inspect.signature(client.Admin.end_offsets)) == (
        "(self, topic: 'str') -> 'dict[MessageQueue, int]'"
    )
    assert str(inspect.signature(client.PullConsumer.lag)) == "(self) -> 'dict[MessageQueue, int]'"
    assert "*queues: 'MessageQueue'" in pydoc.render_doc(client.PushConsumer.pause, renderer=pydoc.plaintext)
    assert "return the next ones" in pydoc.render_doc(client.PullConsumer.poll, renderer=pydoc.plaintext)
    assert "Create `topic`" in pydoc.render_doc(client.Admin.create_topic, renderer=pydoc.plaintext)
    assert "sharding_key: 'str | None' = None" in pydoc.render_doc(
        client.Producer.send, renderer=pydoc.plaintext
    )


async def nothing(_messages: object) -> None:
    """Ignore all messages."""


@pytest.mark.parametrize("is_started", [False, True])
@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: aio.Producer(group="g"), "producer"),
        (lambda: aio.PullConsumer(group="g"), "consumer"),
        (lambda: aio.PushConsumer(group="g", listener=nothing), "consumer"),
    ],
)
def test_closed_asyncio_client_refuses_calls_and_may_be_closed_again(
    build: Callable[[], aio.Producer | aio.PullConsumer | aio.PushConsumer], name: str, is_started: bool
) -> None:
    async def close_twice() -> None:
        client = build()
        if is_started:
            await client.start()
        await client.close()
        await client.close()
        with pytest.raises(ClientClosed, match=f"the {name} is closed"):
            await client.start()

    asyncio.run(close_twice())
